"""How the policies steer: problems with a known best point, played run by run, and the time they take to suggest.

    python benchmarks/steering.py --seeds 500-524            the four problems, the default policy and three others
    python benchmarks/steering.py --problem md,mixed --policy bayes --noise 0.2
    python benchmarks/steering.py --problem levy10,rosenbrock20 --budget 100 --seeds 500-509
    python benchmarks/steering.py --problem argon,nacl --batch 6 --policy bayes,optuna,thompson
    python benchmarks/steering.py --policy bayes,optuna:sampler=GPSampler --seeds 500-504
    python benchmarks/steering.py --factory mine.py:Factory  any ask/tell optimiser beside them
    python benchmarks/steering.py --scaling                  CPU time of a suggestion, import time and memory

Every seed is its own instance: other physics, or the test function reflected and its axes exchanged. The gap is
(best - best allowed point that was run) / scale on the truth without noise, 1 where nothing allowed was run, or more. The
answer is what `recommend` says at the end; it is wrong if it is called allowed and breaks the limit in truth. `composite`
is the mean of the mean gaps of md, gardner, hartmann6 and mixed. The figures are of one thread.

`argon` and `nacl` are tables of real LAMMPS runs (lj_argon_grid.py, nacl_ewald_grid.py). There "close" means within the
noise of three compared runs, elsewhere within 1 %.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from pathlib import Path
from statistics import fmean, median
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import numpy as np
from threadpoolctl import threadpool_limits

from hpcagent.model.objective import Objective, at_most, maximize, minimize
from hpcagent.model.parameter import Choice, Float, Int, Params
from hpcagent.model.records import Observation
from hpcagent.model.space import Space
from hpcagent.policies import Policy, make_policy
from hpcagent.statistics.recommend import recommend

STANDARD = ("md", "gardner", "hartmann6", "mixed")
POLICIES = ("bayes", "quality_first", "optuna", "sobol")
SCALING = ("bayes", "quality_first", "optuna", "optuna:sampler=GPSampler", "ax")
HISTORIES = (50, 200, 1000, 5000)
LONGEST_S = 120.0

Truth = dict[str, float] | None
"""Metrics without noise; None where the run fails."""


class Problem:
    """A space, an objective and the truth.

    Args:
        seed: The instance.
        noise: Relative standard deviation of every noisy metric, in place of the problem's own.
    """

    name: ClassVar[str]
    space: Space
    objective: Objective
    noisy: Mapping[str, float] = {}
    """Metric -> relative standard deviation of one run (log-normal)."""
    stated: Mapping[str, float] = {}
    """Metric -> relative standard error that each run states of itself."""
    close = 0.01

    def __init__(self, seed: int, noise: float | None = None) -> None:
        self.seed = seed
        if noise is not None:
            self.noisy = dict.fromkeys(self.noisy or self.objective.metrics, noise)
        self.setup(np.random.default_rng([seed, 1]))

    def setup(self, rng: np.random.Generator) -> None:
        """Draw what is different in every instance."""

    def truth(self, params: Params) -> Truth:
        """The metrics without noise."""
        raise NotImplementedError

    @cached_property
    def best(self) -> float:
        """The score of the best allowed point."""
        raise NotImplementedError

    @cached_property
    def scale(self) -> float:
        """The difference of score that counts as a gap of 1."""
        return abs(self.best)

    def gap(self, params: Params) -> float | None:
        """(best - score) / scale; None where it fails or breaks a limit."""
        true = self.truth(params)
        if true is None or not self.objective.feasible(true):
            return None
        return (self.best - self.objective.score(true)) / self.scale

    def run(self, params: Params, *, batch: int, index: int, rng: np.random.Generator) -> Observation:
        """One noisy run."""
        errors = rng.standard_normal(len(self.objective.metrics))
        true = self.truth(params)
        if true is None:
            return Observation(params, completed=False, failure="Crash", batch=batch, index=index)
        metrics = {
            m: float(true[m]) * math.exp(self.noisy.get(m, 0.0) * e)
            for m, e in zip(self.objective.metrics, errors, strict=True)
        }
        stated = {m: share * metrics[m] for m, share in self.stated.items()}
        return Observation(params, metrics=metrics, uncertainty=stated, batch=batch, index=index)


class MolecularDynamics(Problem):
    """Timestep and skin: most ns/day while the energy drifts by at most 40 ppm; too long a step loses atoms.

    A step costs the pairs within cutoff + skin, and its share of rebuilding the neighbour list, which is due when an
    atom has gone half the skin. The drift grows as a power of the step, faster near the edge of stability, and with
    skins so thin that pairs are missed.
    """

    name = "md"
    space = Space.of(timestep=Float(0.5, 5.0, unit="fs"), skin=Float(0.2, 5.0, unit="angstrom"))
    objective = maximize("ns_per_day", subject_to={"drift": at_most(40.0)})
    noisy: Mapping[str, float] = {"ns_per_day": 0.05, "drift": 0.05}

    def setup(self, rng: np.random.Generator) -> None:
        self.cutoff = rng.uniform(8.0, 13.0)
        self.rebuild = rng.uniform(4.0, 9.0)
        self.speed = rng.uniform(0.012, 0.035)  # angstrom per fs, of the fastest atoms
        self.allowed = rng.uniform(1.4, 3.5)  # fs, at a wide skin
        self.power = rng.uniform(2.0, 4.0)
        self.thin = rng.uniform(0.3, 0.8)
        self.unstable = self.allowed * rng.uniform(1.15, 1.6)

    def truth(self, params: Params) -> Truth:
        dt, skin = float(params["timestep"]), float(params["skin"])
        if dt > self.unstable * (1.0 if skin > 0.4 else 0.85):
            return None
        rebuilds = 1 / max(1.0, 0.5 * skin / (self.speed * dt))
        cost = 0.2 + (1 + skin / self.cutoff) ** 3 * (1 + self.rebuild * rebuilds)
        near = math.exp(-((self.unstable - dt) / (0.08 * self.unstable)))
        missed = (self.thin / skin) ** 4
        return {
            "ns_per_day": 50 * dt / cost,
            "drift": 40.0 * (dt / self.allowed) ** self.power * (1 + near + missed),
        }

    @cached_property
    def best(self) -> float:
        skins = np.concatenate([np.linspace(0.2, 2.0, 901), np.linspace(2.0, 5.0, 301)])
        # At a skin both metrics grow with the step (the speed does not fall), so the best step is the longest allowed.
        return max(self.objective.score(t) for s in skins if (t := self._longest(float(s))) is not None)

    def _longest(self, skin: float) -> Truth:
        low, high = 0.5, 5.0
        found = None
        for _ in range(50):
            middle = (low + high) / 2
            true = self.truth({"timestep": middle, "skin": skin})
            if true is not None and self.objective.feasible(true):
                low, found = middle, true
            else:
                high = middle
        return found


class Gardner(Problem):
    """Simulation 2 of Gardner et al., ICML 2014: minimise sin(x) + y with sin(x) sin(y) <= -0.95 on [0, 6]^2.

    1.7 % of the square is allowed. At the best point sin(x) = -1 and sin(y) = 0.95.
    """

    name = "gardner"
    space = Space.of(a=Float(0.0, 6.0), b=Float(0.0, 6.0))
    objective = minimize("cost", subject_to={"product": at_most(-0.95)})
    best = math.nan

    def setup(self, rng: np.random.Generator) -> None:
        self.flipped, self.exchanged = rng.integers(0, 2, 2), bool(rng.integers(0, 2))
        self.best = 1 - math.asin(0.95)
        self.scale = 4.0  # half of the cost's range in the square

    def truth(self, params: Params) -> Truth:
        x, y = (6 - float(v) if f else float(v) for v, f in zip(params.values(), self.flipped, strict=True))
        x, y = (y, x) if self.exchanged else (x, y)
        return {"cost": math.sin(x) + y, "product": math.sin(x) * math.sin(y)}


class Hartmann(Problem):
    """The six-dimensional function of Hartman (Dixon and Szego, 1978), to be made large: 3.32237."""

    name = "hartmann6"
    space = Space.of(**{f"x{i}": Float(0.0, 1.0) for i in range(1, 7)})
    objective = maximize("y")
    best = 3.32237
    HEIGHTS = np.array([1.0, 1.2, 3.0, 3.2])
    WIDTHS = np.array(
        [
            [10.0, 3.0, 17.0, 3.5, 1.7, 8.0],
            [0.05, 10.0, 17.0, 0.1, 8.0, 14.0],
            [3.0, 3.5, 1.7, 10.0, 17.0, 8.0],
            [17.0, 8.0, 0.05, 10.0, 0.1, 14.0],
        ]
    )
    PLACES = np.array(
        [
            [0.1312, 0.1696, 0.5569, 0.0124, 0.8283, 0.5886],
            [0.2329, 0.4135, 0.8307, 0.3736, 0.1004, 0.9991],
            [0.2348, 0.1451, 0.3522, 0.2883, 0.3047, 0.6650],
            [0.4047, 0.8828, 0.8732, 0.5743, 0.1091, 0.0381],
        ]
    )

    def setup(self, rng: np.random.Generator) -> None:
        self.order, self.flipped = rng.permutation(6), rng.integers(0, 2, 6).astype(bool)

    @classmethod
    def value(cls, x: np.ndarray) -> float:
        return float(cls.HEIGHTS @ np.exp(-(cls.WIDTHS * (x - cls.PLACES) ** 2).sum(1)))

    def truth(self, params: Params) -> Truth:
        x = np.array([float(v) for v in params.values()])
        return {"y": self.value(np.where(self.flipped, 1 - x, x)[self.order])}


class Electrostatics(Problem):
    """Solver, pair style, mesh and cutoff: the fastest with a force error of at most 1 per mille.

    The error of the near field falls with the cutoff, that of the mesh as a power of its spacing, and they add up as
    squares. One solver runs out of memory on fine meshes.
    """

    name = "mixed"
    SOLVERS = ("pppm", "pppm/cg", "ewald", "msm")
    STYLES = ("plain", "opt", "omp")
    space = Space.of(
        solver=Choice(*SOLVERS), style=Choice(*STYLES), mesh=Int(16, 80), cutoff=Float(6.0, 15.0, unit="angstrom")
    )
    objective = maximize("steps_per_s", subject_to={"force_error": at_most(1.0)})
    noisy: Mapping[str, float] = {"steps_per_s": 0.05, "force_error": 0.05}

    def setup(self, rng: np.random.Generator) -> None:
        def one_each(names: Sequence[str], values: Sequence[float]) -> dict[str, float]:
            return dict(zip(names, rng.permutation(values) * rng.uniform(0.85, 1.15, len(values)), strict=True))

        self.pair = one_each(self.STYLES, (0.65, 0.9, 1.3))
        self.price = one_each(self.SOLVERS, (0.3, 0.6, 1.2, 2.4))
        self.start = one_each(self.SOLVERS, (0.02, 0.05, 0.1, 0.2))
        self.coarse = one_each(self.SOLVERS, (0.6, 1.0, 1.6, 2.4))
        self.power = rng.uniform(2.0, 4.0)
        self.mesh = rng.uniform(25.0, 45.0)
        self.reach, self.decay = rng.uniform(7.5, 11.0), rng.uniform(0.7, 1.6)
        self.hungry, self.most = str(rng.choice(self.SOLVERS)), int(rng.integers(48, 72))

    def truth(self, params: Params) -> Truth:
        solver, style, mesh, cutoff = str(params["solver"]), str(params["style"]), params["mesh"], params["cutoff"]
        mesh, cutoff = int(mesh), float(cutoff)
        if solver == self.hungry and mesh > self.most:
            return None
        grid = (mesh / 40) ** 3 * math.log2(mesh) / 5
        cost = self.pair[style] * (cutoff / 10) ** 3 + self.start[solver] + self.price[solver] * grid
        near = math.exp(-(cutoff - self.reach) / self.decay)
        far = self.coarse[solver] * (self.mesh / mesh) ** self.power * 10 / cutoff
        return {"steps_per_s": float(30 / cost), "force_error": math.hypot(near, far)}

    @cached_property
    def best(self) -> float:
        # Speed and error fall with the cutoff, so the best cutoff is the smallest that is allowed.
        found = 0.0
        for solver in self.SOLVERS:
            for style in self.STYLES:
                for mesh in range(16, 81):
                    low, high, true = 6.0, 15.0, self.truth(self._at(solver, style, mesh, 15.0))
                    if true is None or not self.objective.feasible(true):
                        continue
                    for _ in range(40):
                        here = self.truth(self._at(solver, style, mesh, (low + high) / 2))
                        assert here is not None
                        if self.objective.feasible(here):
                            high, true = (low + high) / 2, here
                        else:
                            low = (low + high) / 2
                    found = max(found, true["steps_per_s"])
        return found

    @staticmethod
    def _at(solver: str, style: str, mesh: int, cutoff: float) -> Params:
        return {"solver": solver, "style": style, "mesh": mesh, "cutoff": cutoff}


class FewActive(Problem):
    """A function of some of many numbers, with a limit on them; which ones is different in every instance.

    The scale is how far the lowest tenth of random allowed points lies from the best: what ten runs at random find.
    """

    active: ClassVar[int]
    width: ClassVar[float]
    objective = minimize("cost", subject_to={"load": at_most(1.0)})
    best = 0.0

    def setup(self, rng: np.random.Generator) -> None:
        self.numbers = rng.permutation(len(self.space.names))[: self.active]
        self.flipped = rng.integers(0, 2, self.active).astype(bool)
        drawn = self.width * (2 * rng.random((4096, self.active)) - 1)
        costs = [m["cost"] for z in drawn if (m := self.metrics(z))["load"] <= 1]
        self.scale = float(np.quantile(costs, 0.1))

    def metrics(self, z: np.ndarray) -> dict[str, float]:
        """Cost and load at the active numbers."""
        raise NotImplementedError

    def truth(self, params: Params) -> Truth:
        x = np.array([float(v) for v in params.values()])[self.numbers]
        return self.metrics(self.width * np.where(self.flipped, -x, x))


class Levy(FewActive):
    """Levy's function (Laguna and Marti, J. Global Optim. 33, 235, 2005) of 4 of 10 numbers, best at (1, 1, 1, 1).

    The limit, |z|^2 <= 16, does not bind there; 1 % of the box is allowed.
    """

    name = "levy10"
    space = Space.of(**{f"x{i}": Float(-1.0, 1.0) for i in range(1, 11)})
    active, width = 4, 5.0

    def metrics(self, z: np.ndarray) -> dict[str, float]:
        w = 1 + (z - 1) / 4
        inner = (w[:-1] - 1) ** 2 * (1 + 10 * np.sin(math.pi * w[:-1] + 1) ** 2)
        end = (w[-1] - 1) ** 2 * (1 + math.sin(2 * math.pi * w[-1]) ** 2)
        cost = math.sin(math.pi * w[0]) ** 2 + float(inner.sum()) + float(end)
        return {"cost": cost, "load": float((z**2).sum()) / 16}


class Rosenbrock(FewActive):
    """Rosenbrock's function (Comput. J. 3, 175, 1960) of 4 of 20 numbers in a ball, best at (1, 1, 1, 1) on its edge."""

    name = "rosenbrock20"
    space = Space.of(**{f"x{i}": Float(-1.0, 1.0) for i in range(1, 21)})
    active, width = 4, 2.0

    def metrics(self, z: np.ndarray) -> dict[str, float]:
        cost = float((100 * (z[1:] - z[:-1] ** 2) ** 2 + (1 - z[:-1]) ** 2).sum())
        return {"cost": cost, "load": float((z**2).sum()) / 4}


class Argon(Problem):
    """Real argon (lj_argon_grid.csv): timestep, skin and accelerator, energy fluctuation within 1 ps at most 0.25 %."""

    name = "argon"
    space = Space.of(
        timestep=Float(0.001, 0.03, unit="ps", log=True),
        skin=Float(0.3, 6.0, unit="angstrom", log=True),
        accelerator=Choice("off", "opt", "omp"),
    )
    objective = maximize("ns_per_day", subject_to={"energy_fluctuation_1ps": at_most(0.0025)})

    def setup(self, rng: np.random.Generator) -> None:
        grid = _sibling("lj_argon_grid")
        self.table, self.best = grid, grid.optimum()[0]
        own = {"ns_per_day": grid.NOISE, "energy_fluctuation_1ps": grid.seed_spread()}
        self.noisy = {m: self.noisy.get(m, sigma) for m, sigma in own.items()}
        self.stated = {"energy_fluctuation_1ps": self.noisy["energy_fluctuation_1ps"]}
        self.close = 2 * grid.NOISE * math.sqrt(2 / 3)

    def truth(self, params: Params) -> Truth:
        dt, skin, accelerator = 1000 * float(params["timestep"]), float(params["skin"]), params["accelerator"]
        return {
            "ns_per_day": self.table.true_speed(dt, skin, accelerator),
            "energy_fluctuation_1ps": self.table.true_fluctuation(dt),
        }


class RockSalt(Problem):
    """Real rock salt (nacl_ewald_grid.csv): cutoff, accuracy and solver, force error at most 1 per mille."""

    name = "nacl"
    space = Space.of(
        cutoff=Float(5.0, 12.0, unit="angstrom"),
        accuracy=Float(3e-6, 1e-2, log=True),
        solver=Choice("pppm5", "pppm7", "ewald", "msm"),
    )
    objective = maximize("speed", subject_to={"force_error": at_most(1e-3)})

    def setup(self, rng: np.random.Generator) -> None:
        self.table = _sibling("nacl_ewald_grid")
        self.best = self.table.optimum()[0]
        self.noisy = {"speed": self.noisy.get("speed", self.table.noise())}  # the error repeats to all digits
        self.close = 2 * self.table.noise() * math.sqrt(2 / 3)

    def truth(self, params: Params) -> Truth:
        found = self.table.true(float(params["cutoff"]), float(params["accuracy"]), str(params["solver"]))
        return None if found is None else {"speed": found[0], "force_error": found[1]}


PROBLEMS: Mapping[str, type[Problem]] = {
    p.name: p for p in (MolecularDynamics, Gardner, Hartmann, Electrostatics, Levy, Rosenbrock, Argon, RockSalt)
}


@lru_cache
def _sibling(name: str) -> ModuleType:
    return _loaded(Path(__file__).with_name(f"{name}.py"))


def _loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class AskTell:
    """An optimiser with ask(n), tell(points, outcomes) and perhaps recommend() as a policy.

    `Factory(space, constrained, seed, batch)`: space is a list of things with name, kind (float, int, cat), lo, hi and
    choices; an outcome is {"status": "ok" | "crash", "f": to be made large, "c": allowed if <= 0, or None}. Logarithmic
    numbers are given as their logarithm.
    """

    def __init__(self, factory: Callable[..., Any], batch: int, problem: Problem, seed: int) -> None:
        self.objective, self.told = problem.objective, 0
        self.logs = {p.name for p in problem.space.parameters if getattr(p, "log", False)}
        described = [
            SimpleNamespace(name=p.name, kind="cat", choices=list(p.choices))
            if p.kind == "choice"
            else SimpleNamespace(name=p.name, kind=p.kind, lo=self._in(p.name, p.low), hi=self._in(p.name, p.high))
            for p in problem.space.parameters
        ]
        self.inner = factory(described, bool(self.objective.constraints), seed=seed, batch=batch)

    def _in(self, name: str, value: Any) -> Any:
        return math.log(value) if name in self.logs else value

    def _out(self, name: str, value: Any) -> Any:
        return math.exp(value) if name in self.logs else value

    def suggest(self, history: Sequence[Observation], n: int, pending: Sequence[Params] = ()) -> list[Params]:
        self._tell(history)
        return [{k: self._out(k, v) for k, v in x.items()} for x in self.inner.ask(n)]

    def _tell(self, history: Sequence[Observation]) -> None:
        new, self.told = history[self.told :], len(history)
        if new:
            points = [{k: self._in(k, v) for k, v in o.params.items()} for o in new]
            self.inner.tell(points, [self._outcome(o) for o in new])

    def _outcome(self, o: Observation) -> dict[str, Any]:
        if not o.completed:
            return {"status": "crash", "f": None, "c": None}
        limits = [c.excess(o.metrics[c.metric]) for c in self.objective.constraints]
        return {"status": "ok", "f": self.objective.score(o.metrics), "c": max(limits, default=None)}

    def answer(self, history: Sequence[Observation]) -> Params | None:
        """Its own recommendation, or the best measured allowed point."""
        self._tell(history)
        if hasattr(self.inner, "recommend"):
            found = self.inner.recommend()
            return None if not found else {k: self._out(k, v) for k, v in found.items()}
        allowed = [o for o in history if o.completed and self.objective.feasible(o.metrics)]
        return max(allowed, key=lambda o: self.objective.score(o.metrics)).params if allowed else None


def policy_of(name: str, problem: Problem, seed: int) -> Policy:
    """The policy written as `name` or `name:option=value:option=value`."""
    name, options = _read(name)
    return make_policy(name, space=problem.space, objective=problem.objective, seed=seed, **options)


def _read(written: str) -> tuple[str, dict[str, Any]]:
    name, *pairs = written.split(":")
    options: dict[str, Any] = {}
    for pair in pairs:
        key, _, value = pair.partition("=")
        try:
            options[key] = json.loads(value)
        except json.JSONDecodeError:
            options[key] = value
    return name, options


def campaign(problem: Problem, policy: Policy, *, budget: int = 40, batch: int = 4) -> dict[str, Any]:
    """Play one campaign and judge it by the truth."""
    rng = np.random.default_rng([problem.seed, 2])
    history: list[Observation] = []
    cpu: list[float] = []
    gaps: list[float] = []
    best, crashes, beyond = 1.0, 0, 0
    while len(history) < budget:
        began = time.process_time()
        points = policy.suggest(tuple(history), min(batch, budget - len(history)))
        cpu.append(time.process_time() - began)
        if not points:
            break
        number, start = len(cpu) - 1, len(history)
        for i, params in enumerate(points):
            run = problem.run(params, batch=number, index=start + i, rng=rng)
            gap = problem.gap(params)
            crashes += not run.completed
            beyond += run.completed and gap is None
            best = min(best, 1.0 if gap is None else gap)
            gaps.append(best)
            history.append(run)
    if isinstance(policy, AskTell):
        answer = policy.answer(history)
    else:
        found = recommend(history, problem.objective, space=problem.space)
        answer = found.params if found is not None and found.feasible else None
    answer_gap = None if answer is None else problem.gap(answer)
    return {
        "problem": problem.name,
        "seed": problem.seed,
        "gap": best,
        "gaps": gaps,
        "reached": next((i + 1 for i, g in enumerate(gaps) if g <= problem.close), None),
        "close": problem.close,
        "answered": answer is not None,
        "wrong": answer is not None and answer_gap is None,
        "excess": _excess(problem, answer),
        "answer_gap": answer_gap,
        "crashes": crashes,
        "beyond": beyond,
        "cpu": cpu,
    }


def _excess(problem: Problem, answer: Params | None) -> float | None:
    """How far an answer is beyond its limits, relative to them."""
    true = None if answer is None else problem.truth(answer)
    if true is None:
        return None
    return max((c.excess(true[c.metric]) / abs(c.limit) for c in problem.objective.constraints), default=None)


HEAD = (
    f"{'problem':13}{'policy':26}{'mean':>7}{'median':>7}{'worst':>7}{'<=5%':>7}{'<=1%':>7}{'close':>7}{'runs':>6}"
    f"{'wrong':>6}{'none':>5}{'answer':>8}{'ans<=':>6}{'crash':>6}{'over':>6}{'cpu ms':>8}{'p95':>7}"
)


def line(policy: str, runs: Sequence[Mapping[str, Any]]) -> str:
    """A row of the table."""
    gaps, n = [r["gap"] for r in runs], len(runs)
    reached = sorted(math.inf if r["reached"] is None else r["reached"] for r in runs)[n // 2]
    # Without an answer, or with a wrong one, nothing was gained.
    answers = [min(r["answer_gap"], 1.0) if r["answer_gap"] is not None else 1.0 for r in runs]
    cpu = [1000 * c for r in runs for c in r["cpu"]]
    return (
        f"{runs[0]['problem']:13}{policy:26}{100 * fmean(gaps):7.2f}{100 * median(gaps):7.2f}{100 * max(gaps):7.1f}"
        f"{sum(g <= 0.05 for g in gaps):4d}/{n:<2d}{sum(g <= 0.01 for g in gaps):4d}/{n:<2d}"
        f"{sum(r['reached'] is not None for r in runs):4d}/{n:<2d}{reached:6.0f}{sum(r['wrong'] for r in runs):6d}"
        f"{sum(not r['answered'] for r in runs):5d}{100 * fmean(answers):8.2f}"
        f"{sum(a <= r['close'] for a, r in zip(answers, runs, strict=True)):6d}"
        f"{fmean(r['crashes'] for r in runs):6.1f}{fmean(r['beyond'] for r in runs):6.1f}{median(cpu):8.0f}"
        f"{float(np.percentile(cpu, 95)):7.0f}"
    )


def bench(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Play everything asked for and print the table."""
    first, _, last = arguments.seeds.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    asked: list[tuple[str, Callable[[Problem, int], Policy]]] = [
        (name, partial(policy_of, name)) for name in arguments.policy
    ]
    for path in arguments.factory:
        file, _, name = path.rpartition(":")
        factory = getattr(_loaded(Path(file)), name)
        asked.append((name, partial(AskTell, factory, arguments.batch)))
    if not asked:
        return bench(argparse.Namespace(**{**vars(arguments), "policy": list(POLICIES)}))
    print(HEAD)
    found: list[dict[str, Any]] = []
    means: dict[str, dict[str, float]] = {}
    for problem_name in arguments.problem:
        for label, make in asked:
            runs = []
            for seed in seeds:
                problem = PROBLEMS[problem_name](seed, arguments.noise)
                policy = make(problem, seed)
                runs.append(campaign(problem, policy, budget=arguments.budget, batch=arguments.batch))
            print(line(label, runs), flush=True)
            means.setdefault(label, {})[problem_name] = fmean(r["gap"] for r in runs)
            found += [{"policy": label, **r} for r in runs]
    for label, by in means.items():
        if set(STANDARD) <= set(by):
            print(f"composite {label}: {100 * fmean(by[p] for p in STANDARD):.2f} %")
    return found


SPACE = Space.of(
    a=Float(0.0, 1.0), b=Float(0.0, 1.0), c=Float(1e-3, 1.0, log=True), n=Int(1, 50), style=Choice("x", "y", "z")
)


def recorded(n: int) -> list[Observation]:
    """`n` runs spread over five parameters, with a limit and some failures."""
    points = make_policy("sobol", space=SPACE, objective=maximize("speed"), seed=1).suggest([], n)
    runs = []
    for i, p in enumerate(points):
        a, b, c = float(p["a"]), float(p["b"]), math.log10(float(p["c"]))
        style = {"x": 0.0, "y": 0.3, "z": 0.6}[str(p["style"])]
        speed = 3 - (a - 0.4) ** 2 - (c + 1.5) ** 2 / 4 + style + int(p["n"]) / 50
        error = 0.2 + b * a + style**2 + int(p["n"]) / 60
        metrics = {"speed": speed, "error": error}
        failed = b > 0.95
        runs.append(Observation(p, completed=not failed, metrics={} if failed else metrics, batch=i // 4, index=i))
    return runs


LOADING = """
import json, resource, sys, time
began = time.perf_counter()
from hpcagent.model.objective import maximize
from hpcagent.model.records import Observation
from hpcagent.model.parameter import Float
from hpcagent.model.space import Space
from hpcagent.policies import make_policy
space = Space.of(x=Float(0, 1), y=Float(0, 1))
runs = [Observation({"x": i % 4 / 4, "y": i / 12}, metrics={"speed": i % 5}, index=i) for i in range(12)]
make_policy(sys.argv[1], space=space, objective=maximize("speed"), seed=1, **json.loads(sys.argv[2])).suggest(runs, 1)
print(time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def child(name: str, n: int) -> None:
    """In a process of its own: print the CPU time of one suggestion after `n` runs."""
    objective = maximize("speed", subject_to={"error": at_most(0.8)})
    history = recorded(n)
    problem = SimpleNamespace(space=SPACE, objective=objective)
    policy = policy_of(name, problem, 1)  # type: ignore[arg-type]
    policy.suggest(history[:12], 4)  # loads what is loaded late
    began = time.process_time()
    policy.suggest(history, 4)
    print(time.process_time() - began)


def _output(command: Sequence[str]) -> str:
    """The last line that a Python process of its own prints, or why there is none."""
    try:
        done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=LONGEST_S)
    except subprocess.TimeoutExpired:
        return f"> {LONGEST_S:.0f}"
    said = (done.stderr if done.returncode else done.stdout).strip().splitlines()
    return said[-1] if said else "?"


def scaling(names: Sequence[str]) -> None:
    """CPU seconds of one suggest(4) by runs of history; seconds and memory until the first suggestion."""
    print(f"{'policy':26}" + "".join(f"{n:>10}" for n in HISTORIES) + f"{'first s':>10}{'MB':>8}")
    for written in names:
        name, options = _read(written)
        cells: list[str] = []
        for n in HISTORIES:
            found = _output([__file__, "--child", written, "--runs", str(n)])
            cells.append(f"{float(found):.3f}" if found[0].isdigit() else found)
            if not found[0].isdigit():
                break
        loading = _output(["-c", LOADING, name, json.dumps(options)]).split()
        row = f"{written:26}" + "".join(f"{c:>10}" for c in cells) + " " * 10 * (len(HISTORIES) - len(cells))
        if len(loading) == 2:
            row += f"{float(loading[0]):10.2f}{float(loading[1]):8.0f}"
        print(row, flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)

    def names(text: str) -> list[str]:
        wrong = [n for n in text.split(",") if n not in PROBLEMS]
        if wrong:
            raise argparse.ArgumentTypeError(f"unknown problem {wrong[0]!r}; known: {', '.join(PROBLEMS)}")
        return text.split(",")

    parser.add_argument("--problem", type=names, default=list(STANDARD), help=", ".join(PROBLEMS))
    parser.add_argument("--policy", help="names with commas, each perhaps with :option=value:option=value")
    parser.add_argument("--factory", action="append", default=[], metavar="FILE.py:NAME")
    parser.add_argument("--seeds", default="500-524", metavar="A-B")
    parser.add_argument("--budget", type=int, default=40)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument(
        "--noise", type=float, help="relative, of every noisy metric, in place of the problem's own"
    )
    parser.add_argument("--json", type=Path, help="write every campaign to this file")
    parser.add_argument("--scaling", action="store_true")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--runs", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    options.policy = options.policy.split(",") if options.policy else []
    for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = "1"  # for what is imported later, and for child processes
    threadpool_limits(1)
    if options.child:
        child(options.child, options.runs)
    elif options.scaling:
        scaling(options.policy or SCALING)
    else:
        found = bench(options)
        if options.json:
            options.json.write_text("".join(json.dumps(r) + "\n" for r in found))


if __name__ == "__main__":
    main()
