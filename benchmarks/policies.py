"""How the policies do on a simulated version of the packaged Lennard-Jones tuning campaign.

    python benchmarks/policies.py                         all policies, 20 instances, 36 runs in batches of 6
    python benchmarks/policies.py --policy quality_first --seeds 40

Each seed is its own instance of the physics. The numbers follow measurements of argon with LAMMPS (22 Jul
2025): rms(E_total)/rms(KE) grows as dt^2 and reaches 0.3 % at about 10 fs, ns/day is proportional to the
timestep, the skin is worth a factor of 1.7 with a flat top at 0.5 to 1.5 angstrom, the OPT and OMP styles
25 %.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from hpcagent.model.objective import Objective, at_most, maximize
from hpcagent.model.parameter import Choice, Float, Params
from hpcagent.model.records import Observation
from hpcagent.model.space import Space
from hpcagent.policies import Policy, make_policy
from hpcagent.statistics.recommend import recommend

LIMIT = 0.003
POLICIES = (
    "bayes",
    "quality_first",
    "sobol",
    "random",
    "latin_hypercube",
    "grid",
    "thompson",
    "ucb",
    "epsilon_greedy",
)


@dataclass(frozen=True)
class LennardJonesTuning:
    """timestep x skin x accelerator; maximise ns/day while the energy fluctuation stays below 0.3 %.

    Args:
        seed: The instance.
        noise: Relative standard deviation of ns/day.
        fluctuation_noise: Relative standard deviation of the energy fluctuation.
        log: Whether timestep and skin are logarithmic in the space.
    """

    seed: int = 0
    noise: float = 0.05
    fluctuation_noise: float = 0.15
    log: bool = True

    @property
    def space(self) -> Space:
        return Space.of(
            timestep=Float(0.001, 0.03, unit="ps", log=self.log, default=0.002),
            skin=Float(0.3, 6.0, unit="angstrom", default=2.0),
            accelerator=Choice("off", "opt", "omp", default="off"),
        )

    @property
    def objective(self) -> Objective:
        return maximize("ns_per_day", subject_to={"energy_fluctuation": at_most(LIMIT)})

    @property
    def _physics(self) -> dict[str, float]:
        rng = np.random.default_rng([self.seed, 1])
        limit_ps = rng.uniform(0.006, 0.016)
        return {
            "limit_ps": limit_ps,
            "power": rng.uniform(1.9, 2.2),
            "crash_ps": limit_ps * rng.uniform(1.6, 2.8),
            "shift": rng.uniform(-0.15, 0.25),
            "opt": rng.uniform(1.22, 1.30),
            "omp": rng.uniform(1.15, 1.24),
        }

    def truth(self, params: Params) -> dict[str, float] | None:
        """The metrics without noise, or None for a crash."""
        p = self._physics
        dt, skin = float(params["timestep"]), float(params["skin"])
        if dt > p["crash_ps"]:
            return None
        skins = [0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
        worth = [0.90, 0.98, 1.00, 1.00, 0.97, 0.91, 0.79, 0.71, 0.59]
        speed = np.interp(skin, np.array(skins) + p["shift"], worth)
        style = {"off": 1.0, "opt": p["opt"], "omp": p["omp"]}[str(params["accelerator"])]
        return {
            "ns_per_day": 72_000 * dt * float(speed) * style,
            "energy_fluctuation": LIMIT * (dt / p["limit_ps"]) ** p["power"],
        }

    @property
    def best(self) -> float:
        p = self._physics
        return 72_000 * p["limit_ps"] * p["opt"]

    def run(self, params: Params, *, batch: int, index: int, rng: np.random.Generator) -> Observation:
        true = self.truth(params)
        if true is None:
            return Observation(params, completed=False, failure="LostAtoms", batch=batch, index=index)
        size = {"ns_per_day": self.noise, "energy_fluctuation": self.fluctuation_noise}
        metrics = {m: v * math.exp(size[m] * rng.standard_normal()) for m, v in true.items()}
        return Observation(params, metrics=metrics, batch=batch, index=index)


@dataclass(frozen=True)
class Outcome:
    """What a campaign came to.

    Attributes:
        gap: (best - recommended) / best, without noise; 1 where nothing was recommended, or something wrong.
        over: The recommended point was called feasible and its true fluctuation is above the limit at all.
        wrong: ... above the limit by more than 5 %, a third of the noise of one run.
        failed: Runs that crashed.
    """

    gap: float
    over: bool
    wrong: bool
    failed: int


def campaign(
    problem: LennardJonesTuning, policy: Policy, *, runs: int = 36, batch: int = 6, default_first: bool = False
) -> list[Observation]:
    """Run a whole campaign against the simulated truth."""
    rng = np.random.default_rng([problem.seed, 2])
    history: list[Observation] = []
    number = 0
    while len(history) < runs:
        points = policy.suggest(tuple(history), min(batch, runs - len(history)))
        if number == 0 and default_first:
            points[0] = problem.space.validated({})
        if not points:
            break
        start = len(history)
        history += [problem.run(p, batch=number, index=start + i, rng=rng) for i, p in enumerate(points)]
        number += 1
    return history


def judge(problem: LennardJonesTuning, history: Sequence[Observation]) -> Outcome:
    """Compare the recommended point with the truth."""
    failed = sum(not o.completed for o in history)
    answer = recommend(history, problem.objective, space=problem.space)
    if answer is None or not answer.feasible:
        return Outcome(1.0, False, False, failed)
    true = problem.truth(answer.params)
    if true is None or true["energy_fluctuation"] > 1.05 * LIMIT:
        return Outcome(1.0, True, True, failed)
    over = true["energy_fluctuation"] > LIMIT
    return Outcome(max(1 - true["ns_per_day"] / problem.best, 0.0), over, False, failed)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", choices=POLICIES, action="append")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--runs", type=int, default=36)
    parser.add_argument("--batch", type=int, default=6)
    parser.add_argument("--noise", type=float, default=0.05)
    parser.add_argument("--linear", action="store_true", help="timestep not logarithmic")
    options = parser.parse_args(arguments)
    print(
        f"{'policy':16} {'median gap':>10} {'worst':>7} {'within 5 %':>10} {'over':>5} {'wrong':>6} {'failed':>7}"
    )
    for name in options.policy or POLICIES:
        outcomes = []
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            problem = LennardJonesTuning(seed, noise=options.noise, log=not options.linear)
            policy = make_policy(name, space=problem.space, objective=problem.objective, seed=seed)
            history = campaign(problem, policy, runs=options.runs, batch=options.batch)
            outcomes.append(judge(problem, history))
        gaps = [o.gap for o in outcomes]
        within = sum(g <= 0.05 for g in gaps)
        over, wrong = sum(o.over for o in outcomes), sum(o.wrong for o in outcomes)
        failed = sum(o.failed for o in outcomes) / len(outcomes)
        print(
            f"{name:16} {median(gaps):10.1%} {max(gaps):7.1%} {within:6d}/{len(gaps):<3d} "
            f"{over:5d} {wrong:6d} {failed:7.1f}"
        )


if __name__ == "__main__":
    main()
