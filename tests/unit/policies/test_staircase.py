"""The cheapest point of a staircase: cutoffs and meshes."""

from __future__ import annotations

import math
import random

import pytest

from hpcagent.errors import BadInput
from hpcagent.model.objective import at_most, maximize, minimize
from hpcagent.model.parameter import Choice, Float, Int
from hpcagent.model.records import Observation
from hpcagent.model.space import Space
from hpcagent.policies.staircase import Staircase
from hpcagent.statistics.recommend import recommend

GOAL = minimize("work", subject_to={"error": at_most(1.0)})

# Errors in meV/atom of silicon's energy, PBE, Si.pbe-rrkj, Quantum ESPRESSO 6.7, against 600 eV and 18 k-points,
# for ecut = 100 ... 450 eV; and k-points 4 ... 14.
SILICON = {
    4: [901.66, 285.89, 129.45, 98.58, 92.56, 91.27, 90.85, 90.57],
    5: [858.42, 230.86, 71.29, 39.03, 33.0, 31.74, 31.32, 31.05],
    6: [834.03, 214.14, 50.77, 19.53, 13.57, 12.35, 11.92, 11.64],
    7: [831.76, 203.31, 44.29, 12.52, 6.66, 5.43, 5.01, 4.73],
    8: [830.85, 200.49, 41.83, 9.87, 4.03, 2.8, 2.37, 2.09],
    9: [827.25, 201.03, 40.57, 8.83, 3.0, 1.75, 1.32, 1.04],
    10: [825.08, 201.1, 40.3, 8.37, 2.54, 1.31, 0.88, 0.6],
    11: [832.79, 199.98, 40.13, 8.21, 2.36, 1.11, 0.69, 0.41],
    12: [828.32, 199.7, 39.89, 8.1, 2.27, 1.03, 0.61, 0.33],
    13: [832.87, 200.81, 39.92, 8.07, 2.24, 0.99, 0.57, 0.29],
    14: [829.68, 199.99, 39.7, 8.04, 2.21, 0.98, 0.55, 0.27],
}


def played(policy, work, error, batch):
    history = []
    while points := policy.suggest(history, batch):
        for p in points:
            metrics = {"work": work(p), "error": error(p)}
            history.append(Observation(params=p, metrics=metrics, index=len(history)))
        assert len(history) < 1000
    return history


@pytest.mark.parametrize("batch", [1, 4, 8])
def test_silicons_cheapest_setting_is_found_in_less_than_half_of_the_grid(batch):
    space = Space.of(ecut=Float(100, 450, unit="eV"), kpts=Int(4, 14))
    history = played(
        Staircase(space, GOAL, levels=8),
        lambda p: p["ecut"] ** 1.5 * p["kpts"] ** 3,
        lambda p: SILICON[p["kpts"]][round(p["ecut"] / 50) - 2],
        batch,
    )
    assert recommend(history, GOAL).params == {"ecut": 400.0, "kpts": 10}
    assert len(history) <= 20  # of 88


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("sizes", [(8, 11), (6, 6, 6)])
def test_the_best_point_of_any_staircase_is_found(seed, sizes):
    rng = random.Random(seed)
    rate = [rng.uniform(0.5, 2) for _ in sizes]
    height = [rng.uniform(20, 500) for _ in sizes]
    space = Space.of(**{f"x{i}": Int(1, n) for i, n in enumerate(sizes)})

    def work(p):
        return math.prod(p[f"x{i}"] ** (1.5 + i) for i in range(len(sizes)))

    def error(p):
        return sum(h * math.exp(-r * p[f"x{i}"]) for i, (h, r) in enumerate(zip(height, rate, strict=True)))

    history = played(Staircase(space, GOAL), work, error, 4)
    fine = [p for p in space.grid({f"x{i}": n for i, n in enumerate(sizes)}) if error(p) <= 1]
    found = recommend(history, GOAL)
    if fine:
        assert found.feasible
        assert found.metrics["work"] == pytest.approx(min(work(p) for p in fine))
    else:
        assert not found.feasible
    assert len(history) <= 0.3 * math.prod(sizes)


def test_a_tolerance_falls():
    space = Space.of(tolerance=Float(1e-8, 1e-2, log=True))
    policy = Staircase(space, GOAL, levels=7, falling=["tolerance"])
    history = played(policy, lambda p: -math.log(p["tolerance"]), lambda p: p["tolerance"] / 1e-5 * 0.99, 1)
    assert recommend(history, GOAL).params["tolerance"] == pytest.approx(1e-5)


def test_a_failed_run_speaks_for_the_cheaper_ones():
    space = Space.of(kpts=Int(1, 5))
    failed = [Observation(params={"kpts": 3}, completed=False, failure="NotConverged")]
    assert {p["kpts"] for p in Staircase(space, GOAL).suggest(failed, 9)} == {4, 5}


def test_runs_under_way_are_not_suggested_again():
    space = Space.of(kpts=Int(1, 9))
    policy = Staircase(space, GOAL)
    first = policy.suggest([], 1)
    assert policy.suggest([], 1, first) != first


@pytest.mark.parametrize(
    ("space", "goal", "words"),
    [
        (Space.of(x=Int(1, 3)), maximize("work", subject_to={"error": at_most(1)}), "minimise a cost"),
        (Space.of(x=Int(1, 3)), minimize("work"), "subject to a limit"),
        (Space.of(x=Choice("low", "high")), GOAL, "'x' has words or booleans"),
        (Space.of(x=Choice(True, False)), GOAL, "'x' has words or booleans"),
        (Space.of(x=Int(1, 1000), y=Int(1, 1000)), GOAL, "1000000 points"),
    ],
)
def test_what_is_no_staircase_is_refused(space, goal, words):
    with pytest.raises(BadInput, match=words):
        Staircase(space, goal)
