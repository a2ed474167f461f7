"""Screening by a cheap fidelity."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hpcagent.errors import BadInput
from hpcagent.model.objective import at_most, minimize
from hpcagent.model.parameter import Choice
from hpcagent.model.records import Observation
from hpcagent.model.space import Space
from hpcagent.policies.screen import Screen

SPACE = Space.of(metal=Choice("Cu", "Ni", "Pd", "Pt", "Au"), engine=Choice("emt", "gpaw"))
FIDELITY = {"parameter": "engine", "levels": ("emt", "gpaw")}
CHEAP = {"Cu": -1.0, "Ni": -3.0, "Pd": -2.0, "Pt": -2.5, "Au": 0.5}


def policy(**options):
    return Screen(SPACE, minimize("e", subject_to={"a": at_most(5)}), fidelity=FIDELITY, **options)


def seen(metal, engine, value, *, completed=True, a=1.0):
    metrics = {"e": value, "a": a} if completed else {}
    return Observation(params={"metal": metal, "engine": engine}, completed=completed, metrics=metrics)


def test_every_point_is_run_at_the_cheap_level_first():
    first = policy(keep=2).suggest([], 10)
    assert [(p["metal"], p["engine"]) for p in first] == [(m, "emt") for m in CHEAP]


def test_only_the_best_go_on_to_the_dear_level_in_their_order():
    history = [seen(m, "emt", e) for m, e in CHEAP.items()]
    assert policy(keep=2).suggest(history, 10) == [
        {"metal": "Ni", "engine": "gpaw"},
        {"metal": "Pt", "engine": "gpaw"},
    ]


def test_a_point_that_failed_or_breaks_a_limit_does_not_go_on():
    history = [seen(m, "emt", e, completed=m != "Ni", a=9.0 if m == "Pt" else 1.0) for m, e in CHEAP.items()]
    assert [p["metal"] for p in policy(keep=2).suggest(history, 10)] == ["Pd", "Cu"]


def disturbed(metal, value, role="suggested"):
    return replace(seen(metal, "emt", value), distrusted=True, role=role)


def test_a_run_without_its_core_does_not_promote_a_point():
    # Au was the worst, and seems the best by far in a run that did not have its core.
    history = [seen(m, "emt", e) for m, e in CHEAP.items() if m != "Au"] + [disturbed("Au", -90.0)]
    assert [p["metal"] for p in policy(keep=2).suggest(history, 10)] == ["Ni", "Pt"]
    # Places that are left over are better filled than empty.
    assert [p["metal"] for p in policy(keep=5).suggest(history, 10)] == ["Ni", "Pt", "Pd", "Cu", "Au"]


def test_a_repeat_that_had_its_core_counts_instead_of_the_one_that_had_not():
    history = [seen(m, "emt", e) for m, e in CHEAP.items() if m != "Ni"]
    history += [seen("Ni", "emt", -3.0), disturbed("Ni", 50.0, role="repeat")]
    assert [p["metal"] for p in policy(keep=2).suggest(history, 10)] == ["Ni", "Pt"]


def test_repeats_of_a_point_count_as_their_mean_not_as_the_last_one():
    # Ni: -3 and -1.4, mean -2.2, between Pt (-2.5) and Pd (-2); the last run alone would be behind Pd.
    history = [seen(m, "emt", e) for m, e in CHEAP.items()] + [replace(seen("Ni", "emt", -1.4), role="replicate")]
    assert [p["metal"] for p in policy(keep=3).suggest(history, 10)] == ["Pt", "Ni", "Pd"]


def test_a_point_that_breaks_its_limit_on_average_does_not_go_on_by_one_lucky_run():
    # a = 9 and 3: mean 6 is above the limit of 5.
    history = [seen(m, "emt", e, a=9.0 if m == "Ni" else 1.0) for m, e in CHEAP.items()]
    history.append(replace(seen("Ni", "emt", -3.0, a=3.0), role="replicate"))
    assert [p["metal"] for p in policy(keep=2).suggest(history, 10)] == ["Pt", "Pd"]


def test_nothing_goes_on_while_cheap_runs_are_pending():
    history = [seen(m, "emt", e) for m, e in CHEAP.items() if m != "Ni"]
    pending = [{"metal": "Ni", "engine": "emt"}]
    assert policy(keep=2).suggest(history, 10, pending) == []


def test_levels_are_not_compared_with_each_other():
    # At the dear level everything is worse; the ranking of the cheap one still decides who goes on.
    history = [seen(m, "emt", e) for m, e in CHEAP.items()] + [seen("Ni", "gpaw", 10.0)]
    assert [p["metal"] for p in policy(keep=3).suggest(history, 10)] == ["Pt", "Pd"]


def test_it_ends_when_the_last_level_is_done():
    history = [seen(m, "emt", e) for m, e in CHEAP.items()] + [seen(m, "gpaw", 0.0) for m in ("Ni", "Pt")]
    assert policy(keep=2, doubt=1).suggest(history, 10) == []


# Half a monolayer of oxygen on fcc(100), eV: EMT, and GPAW (PBE) for all six.
OXYGEN = {
    "Ag": (-0.270, -0.33), "Ni": (-0.036, -2.00), "Cu": (-0.014, -1.39), "Pd": (0.072, -0.74), "Au": (0.084, 0.76),
    "Pt": (0.389, -0.06),
}  # fmt: skip


def screened(values, **options):
    """The metals that the dear level has computed in the end, in their order."""
    space = Space.of(metal=Choice(*values), engine=Choice("emt", "gpaw"))
    screen = Screen(space, minimize("e"), fidelity=FIDELITY, **options)
    history, order = [], []
    while suggested := screen.suggest(history, 6):
        for point in suggested:
            dear = point["engine"] == "gpaw"
            order += [point["metal"]] * dear
            history.append(seen(point["metal"], point["engine"], values[point["metal"]][dear]))
    return order


def test_a_metal_is_not_given_up_on_the_word_of_a_level_that_ranks_at_random():
    # EMT has palladium behind silver; by DFT it binds more than twice as strongly.
    assert screened(OXYGEN, doubt=1) == ["Ag", "Ni", "Cu"]
    found = screened(OXYGEN)
    assert found[:3] == ["Ag", "Ni", "Cu"] and "Pd" in found


def test_a_level_that_is_off_by_a_constant_is_believed():
    values = {metal: (dear + 3.0 + 0.01 * i, dear) for i, (metal, (_, dear)) in enumerate(OXYGEN.items())}
    assert screened(values) == ["Ni", "Cu", "Pd"]


def test_a_single_pair_says_nothing_of_the_error_so_a_second_one_is_computed():
    values = {metal: (dear + 3.0, dear) for metal, (_, dear) in OXYGEN.items()}
    assert screened(values, keep=1) == ["Ni", "Cu"]
    assert screened(values, keep=1, doubt=1) == ["Ni"]


def test_the_best_is_lost_as_seldom_as_was_asked_for():
    rng = np.random.default_rng(3)
    lost = {0.05: 0, 1: 0}
    for _ in range(200):
        cheap = rng.normal(0, 1, 8)
        dear = cheap + 1.5 + rng.normal(0, 1.0, 8)
        values = {f"m{i}": (float(c), float(d)) for i, (c, d) in enumerate(zip(cheap, dear, strict=True))}
        best = f"m{dear.argmin()}"
        for doubt in lost:
            lost[doubt] += best not in screened(values, keep=3, doubt=doubt)
    # Of the points left behind any may be the best, each with a chance below 5 %.
    assert lost[1] > 25 and lost[0.05] <= 0.05 * 200


def test_it_needs_a_fidelity():
    with pytest.raises(BadInput, match=r"\[fidelity\]"):
        Screen(SPACE, minimize("e"))
