from __future__ import annotations

import numpy as np
import pytest

from hpcagent.model.objective import maximize
from hpcagent.model.parameter import Choice, Float, Int
from hpcagent.model.records import Observation
from hpcagent.model.space import Space
from hpcagent.policies import make_policy

SPACE = Space.of(
    timestep=Float(0.001, 0.03, unit="ps", log=True),
    skin=Float(0.3, 6, unit="angstrom"),
    style=Choice("a", "b", "c"),
)
SPREADS = ("random", "sobol", "latin_hypercube")


def policy(name, space=SPACE, seed=3, **options):
    return make_policy(name, space=space, objective=maximize("y"), seed=seed, **options)


def done(points, role="suggested"):
    return [Observation(p, metrics={"y": 1.0}, role=role) for p in points]


@pytest.mark.parametrize("name", [*SPREADS, "grid"])
def test_batches_of_any_size_give_the_same_points_in_the_same_order(name):
    at_once = policy(name).suggest((), 20)
    history, one_by_one = [], []
    for size in (1, 6, 3, 10):
        points = policy(name).suggest(history, size)
        one_by_one += points
        history += done(points)
    assert one_by_one == at_once


@pytest.mark.parametrize("name", SPREADS)
def test_pending_points_count_as_given(name):
    at_once = policy(name).suggest((), 8)
    assert policy(name).suggest(done(at_once[:3]), 3, at_once[3:5]) == at_once[5:]
    # Finished in another order than they were started: no matter.
    assert (
        policy(name).suggest(done([at_once[4], at_once[0]]), 2, [at_once[1], at_once[2], at_once[3]])
        == at_once[5:7]
    )


@pytest.mark.parametrize("name", SPREADS)
def test_reference_runs_do_not_move_the_sequence_on(name):
    at_once = policy(name).suggest((), 6)
    references = done([{"timestep": 0.002, "skin": 1.0, "style": "a"}] * 4, role="reference")
    assert policy(name).suggest(references + done(at_once[:2]), 4) == at_once[2:]


@pytest.mark.parametrize("name", SPREADS)
def test_a_point_lost_to_the_machine_gives_no_repeat(name):
    at_once = policy(name).suggest((), 12)
    finished = done(at_once[:2] + at_once[3:6])
    following = policy(name).suggest(finished, 6)
    assert not [p for p in following if p in [o.params for o in finished]]


@pytest.mark.parametrize("name", SPREADS)
def test_a_finite_space_is_given_completely_and_without_repeats(name):
    space = Space.of(k=Int(1, 5), c=Choice("a", "b"))
    history = []
    for _ in range(6):
        history += done(policy(name, space).suggest(history, 3))
    points = [tuple(o.params.values()) for o in history]
    assert len(points) == len(set(points)) == 10


def test_a_sobol_sequence_fills_every_eighth_of_the_range_after_eight_points():
    space = Space.of(x=Float(0, 8), y=Float(0, 8))
    points = policy("sobol", space).suggest((), 8)
    for name in ("x", "y"):
        assert sorted(int(p[name]) for p in points) == list(range(8))


def test_a_latin_hypercube_covers_every_step_once_in_each_block():
    space = Space.of(x=Float(0, 6), c=Choice("a", "b", "c"))
    points = policy("latin_hypercube", space, size=6).suggest((), 12)
    for block in (points[:6], points[6:]):
        assert sorted(int(p["x"]) for p in block) == list(range(6))
        assert sorted(p["c"] for p in block) == ["a", "a", "b", "b", "c", "c"]


def test_random_points_are_spread_on_the_logarithmic_scale():
    points = policy("random", seed=0).suggest((), 400)
    logs = np.log10([p["timestep"] for p in points])
    assert np.mean(logs) == pytest.approx(np.log10(0.001 * 0.03) / 2, abs=0.05)


def test_a_grid_gives_every_combination_and_then_nothing():
    grid = policy("grid", levels={"timestep": 2, "skin": 3})
    points = grid.suggest((), 100)
    assert len(points) == 2 * 3 * 3
    assert points[:2] == [
        {"timestep": 0.001, "skin": 0.3, "style": "a"},
        {"timestep": 0.001, "skin": 0.3, "style": "b"},
    ]
    assert grid.suggest(done(points), 5) == []


def test_a_grid_comes_back_to_a_point_that_was_lost():
    grid = policy("grid")
    points = grid.suggest((), 27)
    assert grid.suggest(done(points[:4] + points[5:]), 6) == [points[4]]


def test_a_failed_run_is_not_repeated():
    grid = policy("grid")
    points = grid.suggest((), 27)
    failed = [Observation(points[0], completed=False, failure="LostAtoms")]
    assert grid.suggest(failed, 1) == [points[1]]


def test_a_shuffled_grid_has_the_same_points_in_another_order():
    plain, shuffled = policy("grid").suggest((), 27), policy("grid", order="shuffled").suggest((), 27)
    assert plain != shuffled
    assert sorted(map(str, plain)) == sorted(map(str, shuffled))
