"""Regret at equal cost of `bayes` with and without `extend`, on a problem with known truth.

A run at x gives f(x) + b + e: b is what its start decides (drawn once, kept when it goes on), e the error of its own
series, sd / sqrt(length), known to the policy as the run's standard error. A run costs START + LENGTH, one that goes
on only what it adds. Both ways have the same total cost; the answer is the known point with the best mean of the
model; regret is how much lower f is there than at its best.

    python benchmarks/extend.py [--seeds 20] [--cost 100] [--world NAME] [--factors 2]

With `--factors` those lengths are compared with the ones that the policy chooses from, on the same seeds.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hpcagent.model.objective import maximize
from hpcagent.model.parameter import Float
from hpcagent.model.records import Observation
from hpcagent.model.space import Space
from hpcagent.policies import lengthening
from hpcagent.policies.bayes import Bayes
from hpcagent.policies.longer import Longer
from hpcagent.statistics.acquisition import incumbents
from hpcagent.statistics.surrogate import Surrogate

SPACE = Space.of(x=Float(0, 1), y=Float(0, 1))


def truth(x: float, y: float) -> float:
    """Two hills of nearly the same height; the best is 1.0 at (0.25, 0.3)."""
    first = np.exp(-(((x - 0.25) / 0.2) ** 2) - ((y - 0.3) / 0.2) ** 2)
    second = 0.9 * np.exp(-(((x - 0.8) / 0.15) ** 2) - ((y - 0.7) / 0.25) ** 2)
    return float(first + second)


@dataclass(frozen=True)
class World:
    """How runs scatter and what they cost.

    Attributes:
        within: Standard deviation of an ordinary run by its own series.
        between: By its start.
        start: Cost of starting and equilibrating.
        length: Cost of an ordinary run's production.
    """

    within: float
    between: float
    start: float
    length: float = 1.0


WORLDS = {
    "long equilibration": World(within=0.3, between=0.02, start=4.0),
    "short equilibration": World(within=0.3, between=0.02, start=1.0),
    "starts decide": World(within=0.05, between=0.3, start=4.0),
}


def regret(world: World, seed: int, *, extend: bool, cost: float) -> tuple[float, int, int]:
    """Regret of the answer when the cost is used up; runs that began anew, and that went on."""
    rng = np.random.default_rng([seed, 7])
    objective = maximize("z")
    policy = Bayes(SPACE, objective, seed=seed, extend=extend)
    history: list[Observation] = []
    offset: dict[int, float] = {}
    spent, begun, longer = 0.0, 0, 0
    while spent < cost:
        (point,) = policy.suggest(history, 1)
        index = begun + longer
        if isinstance(point, Longer):
            before = next(o for o in history if o.index == point.run)
            more = before.times * (point.factor - 1.0)
            price, times = more * world.length, before.times + more
            own = before.metrics["z"] - truth(**point) - offset[before.index]
            error = (own * before.times + rng.normal() * world.within * np.sqrt(more)) / times
            offset[index] = offset[before.index]
            history.remove(before)
            role, longer = "extended", longer + 1
        else:
            price, times, error = world.start + world.length, 1.0, rng.normal() * world.within
            offset[index] = rng.normal() * world.between
            role, begun = "suggested", begun + 1
        spent += price
        seen = Observation(
            dict(point),
            metrics={"z": truth(**point) + offset[index] + error},
            uncertainty={"z": world.within / np.sqrt(times)},
            index=index,
            batch=index,
            wall_s=price,
            extendable_s=world.length if extend else None,
            times=times,
        )
        history.append(replace(seen, role=role))
    _, tops = incumbents(Surrogate.fit(SPACE, objective, history))
    (answer,) = Surrogate.fit(SPACE, objective, history).features.points(tops[:1])
    return 1.0 - truth(**answer), begun, longer


def _lengths(factors: tuple[float, ...], worlds: Sequence[str], seeds: Sequence[int], cost: float) -> None:
    """Print the regret with these lengths beside that with the policy's own."""
    own = lengthening.FACTORS
    for name in worlds:
        found = []
        for allowed in (factors, own):
            lengthening.FACTORS = allowed
            found.append(np.array([regret(WORLDS[name], seed, extend=True, cost=cost) for seed in seeds]))
        one, other = found
        more = other[:, 0] - one[:, 0]
        print(
            f"{name}: mean regret {one[:, 0].mean():.4f} with {factors}, {other[:, 0].mean():.4f} with {own} "
            f"(difference {more.mean():.4f} +- {more.std(ddof=1) / np.sqrt(len(more)):.4f}, {len(more)} seeds); "
            f"longer runs {one[:, 2].mean():.1f} and {other[:, 2].mean():.1f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--cost", type=float, default=100.0)
    parser.add_argument("--world", choices=list(WORLDS), action="append")
    parser.add_argument("--factors", type=lambda text: tuple(float(one) for one in text.split(",")))
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    given = parser.parse_args()
    if given.factors:
        _lengths(
            given.factors, given.world or list(WORLDS), range(given.first, given.first + given.seeds), given.cost
        )
        return
    for name, world in WORLDS.items():
        if given.world and name not in given.world:
            continue
        found = {}
        for extend in (False, True):
            rows = [regret(world, seed, extend=extend, cost=given.cost) for seed in range(given.seeds)]
            found[extend] = np.array(rows)
        without, with_it = found[False], found[True]
        gain = without[:, 0] - with_it[:, 0]
        print(
            f"{name}: mean regret {without[:, 0].mean():.4f} without, {with_it[:, 0].mean():.4f} with extend "
            f"(difference {gain.mean():.4f} +- {gain.std(ddof=1) / np.sqrt(len(gain)):.4f}, {len(gain)} seeds); "
            f"runs {without[:, 1].mean():.1f}; {with_it[:, 1].mean():.1f} and {with_it[:, 2].mean():.1f} longer"
        )


if __name__ == "__main__":
    main()
