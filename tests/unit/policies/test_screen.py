"""Screening by a cheap fidelity."""

from __future__ import annotations

import pytest

from hpcagent.errors import BadInput
from hpcagent.model.objective import at_most, minimize
from hpcagent.model.records import Observation
from hpcagent.model.space import Choice, Space
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
    assert policy(keep=2).suggest(history, 10) == []


def test_it_needs_a_fidelity():
    with pytest.raises(BadInput, match=r"\[fidelity\]"):
        Screen(SPACE, minimize("e"))
