from __future__ import annotations

import numpy as np
import pytest
from pydantic import TypeAdapter

from hpcagent.errors import BadInput
from hpcagent.model.base import Record
from hpcagent.model.objective import at_most, maximize
from hpcagent.model.parameter import Choice, Float
from hpcagent.model.records import Observation
from hpcagent.model.space import Space
from hpcagent.policies.stop import Progress
from hpcagent.policies.stop_combined import AnyOf, StopCondition, all_of, any_of, read_stop
from hpcagent.policies.stop_infeasible import no_feasible_point
from hpcagent.policies.stop_reached import plateau, target
from hpcagent.policies.stop_spent import max_batches, max_runs, node_hours, wall_time
from hpcagent.statistics.sensitivity import sensitivity

SPACE = Space.of(timestep=Float(0.001, 0.03, log=True, unit="ps"), skin=Float(0.3, 6), style=Choice("a", "b"))
LIMITED = maximize("ns_per_day", subject_to={"drift": at_most(50.0)})


def progress(history=(), **more):
    return Progress(history=tuple(history), objective=LIMITED, space=SPACE, **more)


def runs(n, speed=lambda p, rng: 10.0, drift=lambda p, rng: 10.0, per_batch=6, seed=0):
    rng = np.random.default_rng(seed)
    return [
        Observation(
            p, metrics={"ns_per_day": speed(p, rng), "drift": drift(p, rng)}, batch=i // per_batch, index=i
        )
        for i, p in enumerate(SPACE.sample(rng, n))
    ]


def test_limits_are_reached_exactly():
    assert max_runs(5).check(progress(runs=4)) is None
    assert max_runs(5).check(progress(runs=5, failed=2)) == "All 5 runs have ended, 2 of them failed."
    assert max_batches(2).check(progress(batches_done=1)) is None
    assert "2 batches" in max_batches(2).check(progress(batches_done=2))
    assert wall_time(60).check(progress(wall_s=59.9)) is None
    assert "60 s" in wall_time(60).check(progress(wall_s=60.0))
    assert node_hours(1.5).check(progress(node_hours=1.4)) is None
    assert "1.5" in node_hours(1.5).check(progress(node_hours=1.6))


def test_a_target_needs_the_limits_kept():
    fast = runs(1, speed=lambda p, rng: 3.0)
    broken = runs(1, speed=lambda p, rng: 3.0, drift=lambda p, rng: 99.0)
    goal = target("ns_per_day", at_least=2.0)
    assert goal.check(progress(broken)) is None
    assert "ns_per_day >= 2 is reached" in goal.check(progress(fast))
    assert target("ns_per_day", at_least=2.0, feasible=False).check(progress(broken))
    assert target("ns_per_day", at_least=4.0).check(progress(fast)) is None
    assert target("unheard_of", at_least=4.0).check(progress(fast)) is None


def test_a_target_with_a_probability_waits_until_it_is_sure():
    goal = target("ns_per_day", at_least=2.0, probability=0.9)
    point = {"timestep": 0.01, "skin": 1.0, "style": "a"}

    def seen(error):
        return [Observation(point, metrics={"ns_per_day": 2.1, "drift": 1.0}, uncertainty={"ns_per_day": error})]

    assert goal.check(progress(seen(0.5))) is None
    assert "with probability 1.00" in goal.check(progress(seen(0.01)))


def test_a_distrusted_run_does_not_reach_a_target():
    point = {"timestep": 0.01, "skin": 1.0, "style": "a"}
    run = Observation(point, metrics={"ns_per_day": 9.0, "drift": 1.0}, distrusted=True)
    assert target("ns_per_day", at_least=2.0).check(progress([run])) is None


def test_a_plateau_is_seen_and_growth_is_not():
    flat = runs(30, speed=lambda p, rng: 100.0)
    growing = [
        Observation(
            o.params | {"timestep": 0.002 * (1 + o.batch)},
            metrics={"ns_per_day": 10.0 * (1 + o.batch), "drift": 1.0},
            batch=o.batch,
        )
        for o in runs(30)
    ]
    assert "has improved by less than" in plateau(3).check(progress(flat))
    assert plateau(3).check(progress(growing)) is None
    assert plateau(3).check(progress(flat[:18])) is None
    assert plateau(3).check(progress()) is None


def test_noise_is_not_taken_for_growth():
    """The best of ever more noisy runs rises by itself; a plateau has to see through that."""
    found = 0
    for seed in range(10):
        noisy = runs(48, speed=lambda p, rng: 100 * np.exp(0.1 * rng.standard_normal()), seed=seed)
        found += plateau(3).check(progress(noisy)) is not None
    assert found >= 8


def test_there_is_no_plateau_where_nothing_keeps_the_limits():
    assert plateau(2).check(progress(runs(30, drift=lambda p, rng: 99.0))) is None


def test_a_metric_that_depends_on_nothing_ends_the_campaign_with_its_range():
    """An unshifted cutoff: 11 400 ppm whatever the timestep is."""
    flat = runs(24, drift=lambda p, rng: rng.uniform(11300, 11800))
    reason = no_feasible_point(18).check(progress(flat))
    assert "does not depend on the parameters it was given (timestep, skin, style)" in reason
    assert "between 1.13" in reason and "e+04" in reason


def test_no_conclusion_is_drawn_too_early_or_wrongly():
    flat = runs(24, drift=lambda p, rng: rng.uniform(11300, 11800))
    assert no_feasible_point(30).check(progress(flat)) is None
    falling = runs(24, drift=lambda p, rng: 100 + 5e6 * p["timestep"] ** 2 * np.exp(0.3 * rng.standard_normal()))
    assert no_feasible_point(18).check(progress(falling)) is None
    near = runs(24, drift=lambda p, rng: 52 + 8 * abs(rng.standard_normal()))
    assert no_feasible_point(18).check(progress(near)) is None
    one = [*flat, Observation(flat[0].params, metrics={"ns_per_day": 1.0, "drift": 49.0})]
    assert no_feasible_point(18).check(progress(one)) is None
    assert no_feasible_point(18).check(progress()) is None


def test_a_steep_dependence_is_given_up_only_when_asked_for():
    falling = runs(40, drift=lambda p, rng: 100 + 5e6 * p["timestep"] ** 2)
    assert no_feasible_point(18).check(progress(falling)) is None
    reason = no_feasible_point(18, give_up_after=40).check(progress(falling))
    assert "depends on the parameters" in reason and "timestep=" in reason


def test_a_campaign_in_which_everything_fails_ends():
    failed = [Observation(o.params, completed=False, failure="LostAtoms") for o in runs(18)]
    assert "None of the 18 runs completed (LostAtoms 18)" in no_feasible_point(18).check(progress(failed))
    assert no_feasible_point(18).check(progress(failed[:10])) is None


@pytest.mark.parametrize("seed", range(5))
def test_dependence_on_each_kind_of_parameter_is_found(seed):
    rng = np.random.default_rng(seed)
    points = SPACE.sample(rng, 24)
    noise = np.exp(0.15 * rng.standard_normal(24))
    by_number = sensitivity(SPACE, points, [p["timestep"] ** 2 * e for p, e in zip(points, noise, strict=True)])
    assert by_number.depends(0.05) == ("timestep",)
    by_choice = sensitivity(
        SPACE, points, [{"a": 1.0, "b": 2.0}[p["style"]] * e for p, e in zip(points, noise, strict=True)]
    )
    assert by_choice.depends(0.05) == ("style",)
    hump = sensitivity(
        SPACE, points, [(p["skin"] - 3.15) ** 2 + 0.1 * e for p, e in zip(points, noise, strict=True)]
    )
    assert "skin" in hump.depends(0.05)


def test_pure_noise_is_seldom_called_a_dependence():
    wrong = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        wrong += not sensitivity(SPACE, SPACE.sample(rng, 24), rng.standard_normal(24)).insensitive(0.1)
    assert wrong <= 10


def test_the_short_form_reads_and_writes_itself():
    texts = [
        {"max_runs": 36},
        {"max_runs": 36, "plateau": {"batches": 3, "relative": 0.02}},
        {"wall_time_s": 3600.0, "node_hours": 2.0, "max_batches": 8},
        {"target": {"metric": "drift", "at_most": 50.0, "feasible": False}},
        {"no_feasible_point": {"min_runs": 20, "give_up_after": 40, "significance": 0.1}},
        {"all_of": [{"max_runs": 12}, {"plateau": {"batches": 2, "relative": 0.01}}]},
        {"any_of": [{"max_runs": 12}, {"max_runs": 14}]},
        {"max_runs": 50, "all_of": [{"max_runs": 12}, {"node_hours": 1.0}]},
    ]
    for text in texts:
        assert read_stop(text).toml() == text
        assert read_stop(read_stop(text).model_dump()) == read_stop(text)
        assert (
            read_stop(TypeAdapter(StopCondition).validate_json(read_stop(text).model_dump_json())).toml() == text
        )


def test_a_number_is_short_for_the_main_field():
    assert read_stop({"no_feasible_point": 20}) == no_feasible_point(20)
    assert read_stop([{"max_runs": 3}, {"node_hours": 1}]) == any_of(max_runs(3), node_hours(1))


def test_a_field_of_a_record_takes_every_form():
    class Holder(Record):
        until: StopCondition

    assert Holder(until=max_runs(3)).until == max_runs(3)
    assert Holder.model_validate({"until": {"max_runs": 3}}).until == max_runs(3)
    assert Holder.model_validate_json(
        Holder(until=any_of(max_runs(3), plateau())).model_dump_json()
    ).until == any_of(max_runs(3), plateau())


def test_the_budget_is_the_smallest_of_any_and_the_largest_of_all():
    assert any_of(max_runs(36), max_runs(12), plateau()).budget() == 12
    assert all_of(max_runs(36), max_runs(12)).budget() == 36
    assert all_of(max_runs(36), plateau()).budget() is None
    assert plateau().budget() is None


def test_any_takes_the_first_reason_and_all_needs_every_one():
    now = progress(runs=5, batches_done=1)
    assert any_of(max_runs(9), max_batches(1)).check(now) == "The only batch has ended."
    assert all_of(max_runs(9), max_batches(1)).check(now) is None
    assert all_of(max_runs(5), max_batches(1)).check(now) == "All 5 runs have ended. The only batch has ended."
    assert isinstance(any_of(max_runs(1)), AnyOf)


@pytest.mark.parametrize(
    "data",
    [
        {},
        "soon",
        {"max_run": 3},
        {"max_runs": 0},
        {"max_runs": 2.5},
        {"max_runs": True},
        {"max_runs": "3"},
        {"wall_time_s": -1},
        {"wall_time_s": float("nan")},
        {"node_hours": float("inf")},
        {"plateau": 3},
        {"plateau": {"batch": 3}},
        {"plateau": {"batches": 0}},
        {"plateau": {"relative": -0.1}},
        {"target": {"metric": "x"}},
        {"target": {"metric": "x", "at_least": 1, "at_most": 2}},
        {"target": {"metric": "x", "at_least": 1, "probability": 1.5}},
        {"no_feasible_point": {"min_runs": 3}},
        {"no_feasible_point": {"min_runs": 20, "give_up_after": 10}},
        {"any_of": []},
        {"all_of": {"max_runs": 3}},
        {"all_of": [{"max_run": 3}]},
        {"kind": "soon"},
    ],
)
def test_a_bad_condition_is_refused(data):
    with pytest.raises(BadInput):
        read_stop(data, where="my.toml, stop")


def test_the_message_names_the_nearest_key():
    with pytest.raises(BadInput, match="did you mean 'max_runs'"):
        read_stop({"max_run": 3})
    with pytest.raises(BadInput, match="max_runs=-1 must be at least 1"):
        max_runs(-1)
