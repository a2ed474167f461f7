"""How far a cheap level ranks as a dear one does."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from scipy.stats import kendalltau

from hpcagent.model.objective import at_most, minimize
from hpcagent.model.parameter import Choice
from hpcagent.model.records import Observation
from hpcagent.model.space import Space
from hpcagent.statistics.ranking import _turned, agreements, chances, kendall

FIDELITY = {"parameter": "engine", "levels": ("emt", "gpaw")}
# Adsorption energies of O on fcc(100), eV: EMT, GPAW.
OXYGEN = {
    "Ag": (-0.270, -0.33), "Ni": (-0.036, -2.00), "Cu": (-0.014, -1.39), "Pd": (0.072, -0.74), "Au": (0.084, 0.76),
    "Pt": (0.389, -0.06),
}  # fmt: skip


def test_turned_pairs_of_random_orders_are_counted_as_by_hand():
    counts = [sum(p[i] > p[j] for i in range(4) for j in range(i + 1, 4)) for p in permutations(range(4))]
    assert _turned(4, 0.0) * 24 == pytest.approx(np.bincount(counts))


def test_tau_is_that_of_scipy():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 12))
    assert kendall(a, b)[1] == pytest.approx(kendalltau(a, b).statistic)


@pytest.mark.parametrize(("n", "low"), [(2, -0.95), (3, -0.53), (6, 0.42)])
def test_few_points_that_stand_alike_say_little(n, low):
    # n = 2: the one pair stands alike with chance p, and p = 0.025 can still be: tau = 2 p - 1 = -0.95.
    # n = 3: (1 + q)(1 + q + q^2) = 40, q = 2.67, and the mean number of turned pairs is 2.30 of 3: tau -0.53.
    alike, tau, found, high = kendall(range(n), range(n))
    assert (alike, tau, high) == (n * (n - 1) / 2, 1, 1)
    assert found == pytest.approx(low, abs=0.005)


@pytest.mark.parametrize(("n", "weight"), [(4, -1.0), (6, -0.5), (6, 0.3)])
def test_the_interval_covers_the_true_tau(n, weight):
    distribution = _turned(n, weight)
    pairs = len(distribution) - 1
    true = 1 - 2 * float(distribution @ np.arange(pairs + 1)) / pairs
    covered = 0.0
    for turned in range(pairs + 1):
        _, _, low, high = kendall(range(n), with_turned(n, turned))
        covered += float(distribution[turned]) * (low <= true <= high)
    assert covered >= 0.95


def with_turned(n, turned):
    """An order of n numbers in which so many pairs stand the other way round."""
    order = []
    for number in range(n):
        step = min(turned, number)
        order.insert(len(order) - step, number)
        turned -= step
    return order


def test_many_points_have_the_interval_of_the_normal_approximation():
    a = np.arange(40.0)
    b = a + np.random.default_rng(1).normal(0, 8, 40)
    _, tau, low, high = kendall(a, b)
    assert low < tau < high and high - low == pytest.approx(
        2 * 1.96 * (0.437 / 36) ** 0.5 * (1 - tau**2), rel=0.05
    )


def test_the_chance_of_another_point_is_that_of_students_distribution():
    key = lambda name: (("m", name),)  # noqa: E731
    cheap = {key(n): s for n, s in zip("abcd", (4.0, 3.0, 2.0, 1.0), strict=True)}
    found = chances(cheap, {key("a"): 5.0, key("b"): 5.0, key("c"): 4.0})
    # Shifts 1, 2, 2: mean 5/3, s = 0.577; d is expected at 2.667, 2.333 below the best; s sqrt(4/3) = 0.667;
    # t = -3.5 with 2 degrees of freedom: 0.0364 (tables: 2.920 is 5 %, 4.303 is 2.5 %).
    assert found == {key("d"): pytest.approx(0.0364, abs=5e-4)}


def history(*dear):
    found = [Observation({"metal": m, "engine": "emt"}, metrics={"e": e}) for m, (e, _) in OXYGEN.items()]
    return found + [Observation({"metal": m, "engine": "gpaw"}, metrics={"e": OXYGEN[m][1]}) for m in dear]


SPACE = Space.of(metal=Choice(*OXYGEN), engine=Choice("emt", "gpaw"))


def test_a_ranking_that_cannot_be_relied_on_is_said_to_be_one():
    (found,) = agreements(history("Ag", "Ni", "Cu"), minimize("e"), SPACE, FIDELITY)
    assert (found.points, found.alike, found.pairs) == (3, 1, 3)
    assert found.tau == pytest.approx(-1 / 3) and found.low < -0.9 and found.high > 0.8
    assert {p["metal"] for p in found.doubtful} == {"Pd", "Au", "Pt"} and min(found.chance) > 0.15
    assert "emt ranks 1 of 3 pairs of points as gpaw does: Kendall's tau -0.33" in str(found)
    assert "of the 3 other(s) may be better than the best: Pd (25%)" in str(found)
    (found,) = agreements(history(*OXYGEN), minimize("e"), SPACE, FIDELITY)
    assert found.alike == 11 and found.tau == pytest.approx(7 / 15)
    assert str(found).endswith("from 6 points; every point was computed by gpaw")


def test_runs_that_break_a_limit_or_failed_do_not_count():
    objective = minimize("e", subject_to={"e": at_most(0.0)})
    seen = [*history("Ni", "Cu", "Pd"), Observation({"metal": "Ag", "engine": "gpaw"}, completed=False)]
    (found,) = agreements(seen, objective, SPACE, FIDELITY)
    assert (found.points, found.left) == (2, 0)
    assert agreements(history(), objective, SPACE, FIDELITY) == ()


def test_the_interval_of_a_perfect_ranking_narrows_with_the_points_and_holds_it():
    lows = [kendall(range(n), range(n))[2:] for n in (30, 31, 100, 101, 200)]
    assert all(high == 1.0 for _, high in lows)
    # A perfect ranking of 101 points is not known to be worse than one of 30.
    assert [low for low, _ in lows] == sorted(low for low, _ in lows)
