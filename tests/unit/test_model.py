"""Spaces, contracts, objectives and records: what they accept, refuse and write down."""

from __future__ import annotations

import json
import math
import pickle

import jsonschema
import numpy as np
import pytest

from hpcagent import errors
from hpcagent.errors import AppFailed, BadInput, HpcAgentError
from hpcagent.model.base import build, read_toml
from hpcagent.model.contract import Contract, Metric, Resources
from hpcagent.model.objective import Constraint, Objective, at_least, at_most, maximize, minimize, pareto_front
from hpcagent.model.parameter import Choice, Float, Int, Parameter, Text
from hpcagent.model.records import Failure, Manifest, Result
from hpcagent.model.space import Space

SPACE = Space.of(
    timestep=Float(0.001, 0.03, unit="ps", log=True, default=0.002),
    every=Int(1, 100, unit="steps", log=True),
    style=Choice("off", "opt", "omp"),
)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda: Float(2, 1, unit="ps"), "low > high"),
        (lambda: Float(0, 1, log=True), "low must be > 0"),
        (lambda: Float(math.nan, 1), "not finite"),
        (lambda: Float(0, 1, unit=""), "no unit"),
        (lambda: Int(1, 2.5), "bounds"),
        (lambda: Choice(), "without choices"),
        (lambda: Choice("a", "a"), "twice"),
        (lambda: Choice("run 1\nshell rm"), "not a plain word"),
        (lambda: Choice("../x"), "not a plain word"),
        (lambda: Choice("/etc/passwd"), "not a plain word"),
        (lambda: Float(0, 1, name="a b"), "not an identifier"),
        (lambda: Float(0, 1, default=3), "outside"),
    ],
)
def test_a_parameter_that_makes_no_sense_is_refused_with_a_sentence(made, words):
    with pytest.raises(ValueError, match=words):
        made()


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"timestep": 0.1}, r"timestep=0.1 ps is outside \[0.001, 0.03\] ps"),
        ({"timestep": math.nan}, "not finite"),
        ({"timestep": "0.01"}, "not a number"),
        ({"timestep": True}, "not a number"),
        ({"timstep": 0.01}, "did you mean 'timestep'"),
        ({"every": 2.5}, "not a whole number"),
        ({"style": "opd"}, "did you mean 'opt'"),
        ({"every": 1}, "parameter 'style' has no value"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(params, words):
    given = {"every": 1, "style": "off"} | params if "every" not in params or "style" in params else params
    with pytest.raises(BadInput, match=words):
        SPACE.validated(given)


def test_defaults_are_filled_in_and_numbers_become_plain_python():
    values = SPACE.validated({"every": np.int64(5), "style": "omp"})
    assert values == {"timestep": 0.002, "every": 5, "style": "omp"}
    assert [type(v) for v in values.values()] == [float, int, str]


def test_unit_cube_and_back_keeps_every_point_of_a_grid():
    for point in SPACE.grid(4):
        again = SPACE.from_unit(SPACE.to_unit(point))
        assert again["style"] == point["style"] and again["every"] == point["every"]
        assert again["timestep"] == pytest.approx(point["timestep"], rel=1e-9)


def test_samples_spread_evenly_over_the_logarithm():
    sample = SPACE.sample(np.random.default_rng(1), 4000)
    below = np.mean([p["timestep"] < math.sqrt(0.001 * 0.03) for p in sample])
    assert below == pytest.approx(0.5, abs=0.03)
    assert {p["style"] for p in sample} == {"off", "opt", "omp"}
    assert min(p["every"] for p in sample) == 1 and max(p["every"] for p in sample) == 100


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda: Choice(["off", "opt"]), "one by one: Choice('off', 'opt'), not as one list"),
        (lambda: Choice("off", ["opt"]), "choices.1: must be true or false, a number or a text; got ['opt']"),
        (
            lambda: Choice("off", default=["off"]),
            "default: must be true or false, a number or a text; got ['off']",
        ),
        (lambda: Choice("off", default="on"), "default='on' is not one of {off}"),
        (lambda: Choice("off", "on").narrowed(choices="on"), "choices of (unnamed) are a list; got 'on'"),
        (lambda: Float(0, 1, default=[1]), "default: must be true or false, a number or a text; got [1]"),
        (lambda: Float("0.1", 1), "low='0.1' is not a number"),
        (lambda: Int(0, True), "high=True is not a number"),
        (lambda: Text(default=["PBE"]), "default: must be true or false, a number or a text; got ['PBE']"),
        (lambda: Space.of(x=["a", "b"]), "x=['a', 'b']: a parameter is given as Float(low, high, unit=...)"),
    ],
)
def test_wrong_arguments_of_a_parameter_are_one_clear_sentence(made, words):
    with pytest.raises(BadInput) as caught:
        made()
    assert words in caught.value.message
    assert ".float" not in caught.value.message


def test_narrowing_stays_inside_and_drops_a_default_that_no_longer_fits():
    narrow = SPACE.narrowed({"timestep": {"low": 0.004, "high": 0.02}, "style": {"choices": ["opt"]}})
    assert narrow["timestep"].default is None
    assert narrow["style"].constant
    with pytest.raises(BadInput, match="outside"):
        SPACE.narrowed({"timestep": {"low": 1e-6}})
    with pytest.raises(BadInput, match="did you mean 'low'"):
        SPACE.narrowed({"timestep": {"lo": 0.004}})


def test_clipping_moves_to_the_nearest_allowed_point():
    assert SPACE.clipped({"timestep": 1.0, "every": 0, "style": "opt"}) == {
        "timestep": 0.03,
        "every": 1,
        "style": "opt",
    }


def test_json_schema_accepts_what_the_space_accepts_and_nothing_else():
    schema = SPACE.json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate({"every": 3, "style": "off"}, schema)
    for wrong in (
        {"every": 3},
        {"every": 3, "style": "x"},
        {"every": 3, "style": "off", "z": 1},
        {"every": 0, "style": "off"},
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)


def test_an_objective_reads_the_toml_form_and_writes_it_back():
    text = {"maximize": "v", "subject_to": {"e": {"at_most": 1.0}, "t": {"at_least": 2}}}
    objective = build(Objective, text, where="x.toml")
    assert objective.toml() == text
    assert objective == maximize("v", subject_to={"e": at_most(1.0), "t": at_least(2)})
    assert Objective.model_validate_json(objective.model_dump_json()) == objective


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"maximise": "v"}, "did you mean 'maximize'"),
        ({}, "maximize or minimize"),
        ({"maximize": 3}, "metric's name"),
        ({"maximize": "v", "subject_to": {"e": 1}}, "at_most"),
        ({"maximize": "v", "subject_to": {"e": {"at_mots": 1}}}, "did you mean 'at_most'"),
        ({"maximize": "v", "subject_to": {"e": {"at_most": 1, "at_least": 0}}}, "either"),
        ({"maximize": "v", "subject_to": {"e": {"at_most": math.nan}}}, "not finite"),
    ],
)
def test_a_wrong_objective_is_one_sentence_with_its_place(data, words):
    with pytest.raises(BadInput, match=words) as caught:
        build(Objective, data, where="x.toml")
    assert str(caught.value).startswith("x.toml")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("limits", [5, [("e", 5)], {"e": 5}, {"e": "5 percent"}])
def test_a_limit_that_is_none_says_how_to_write_one(limits):
    with pytest.raises(BadInput, match="at_most"):
        maximize("v", subject_to=limits)


def test_a_limit_that_is_no_number_is_bad_input():
    with pytest.raises(BadInput, match="at_most"):
        at_most("5 percent")


def test_the_same_goal_twice_is_refused():
    with pytest.raises(BadInput, match="'v' stands there 2 times"):
        maximize("v", "v")


def test_an_objective_without_names_is_refused():
    with pytest.raises(BadInput, match="one at least"):
        maximize()
    with pytest.raises(BadInput, match="names of metrics"):
        minimize(["a", "b"])


def test_probability_feasible_is_the_normal_integral():
    limit = Constraint(metric="e", at_most=1.0)
    # One standard deviation below the limit: Phi(1) = 0.8413 (any table).
    assert limit.probability(0.9, 0.1) == pytest.approx(0.8413, abs=1e-4)
    assert limit.probability(1.0, 0.0) == 1.0
    assert Constraint(metric="e", at_least=1.0).probability(0.9, 0.1) == pytest.approx(0.1587, abs=1e-4)


@pytest.mark.parametrize(
    ("limit", "kept", "broken", "text"),
    [(at_most(2.0), 1.5, 3.0, "_ <= 2"), (at_least(2.0), 3.0, 1.5, "_ >= 2")],
)
def test_the_sign_of_a_limit_says_which_side_is_kept_on_any_increasing_scale(limit, kept, broken, text):
    for scale in (float, math.log, math.asinh):
        assert limit.sign * (scale(kept) - scale(limit.limit)) > 0
        assert limit.sign * (scale(broken) - scale(limit.limit)) < 0
    assert limit.excess(kept) < 0 < limit.excess(broken)
    assert limit.excess(2.0) == 0
    assert str(limit) == text
    both = maximize("a", subject_to={"b": limit, "c": at_most(0.0)})
    # By hand: |broken - 2| / 2, and 0.25 beyond a limit of 0, which has no share.
    assert both.violation({"b": broken, "c": 0.25}) == pytest.approx(abs(broken - 2) / 2 + 0.25)
    assert both.violation({"b": kept, "c": -1.0}) == 0


def test_minimizing_turns_the_sign():
    assert minimize("cost").score({"cost": 3.0}) == -3.0


def test_pareto_front_keeps_only_what_nothing_beats():
    objective = Objective(goals=(*maximize("a").goals, *minimize("b").goals))
    points = [{"a": 1, "b": 1}, {"a": 2, "b": 2}, {"a": 1, "b": 2}, {"a": 0, "b": 0.5}, {"a": 2}]
    assert pareto_front(objective, points) == [0, 1, 3]


def test_a_contract_names_the_nearest_metric():
    contract = Contract(name="x", metrics=(Metric(name="ns_per_day", unit="ns/day"),))
    with pytest.raises(BadInput, match="did you mean 'ns_per_day'"):
        contract.metric("ns_per_dya")
    with pytest.raises(ValueError, match="semantic version"):
        Contract(name="x", version="1")


@pytest.mark.parametrize("walltime", [-1.0, 0.0, math.nan, math.inf])
def test_a_walltime_is_a_positive_number_of_seconds(walltime):
    with pytest.raises(BadInput, match="walltime_s"):
        build(Resources, {"walltime_s": walltime}, where="x")


def manifest(**changes):
    deciding = {
        "app": "a",
        "app_version": "1.0.0",
        "input_digest": "d",
        "params": {"x": 0.1},
        "seed": 1,
        "replicate": 0,
    } | changes
    return Manifest(execution_id=Manifest.identify(**deciding), **deciding)


def test_same_work_has_the_same_execution_id_and_other_work_another():
    first = manifest()
    assert manifest().execution_id == first.execution_id
    others = [
        manifest(seed=2),
        manifest(replicate=1),
        manifest(params={"x": 0.2}),
        manifest(app_version="1.0.1"),
        manifest(input_digest="e"),
    ]
    assert len({m.execution_id for m in [first, *others]}) == 6


def test_a_result_survives_json_and_pickle_and_names_what_it_lacks():
    failure = Failure(kind="simulation", name="LostAtoms", message="Lost atoms.")
    result = Result(manifest=manifest(), status="FAILED", failure=failure)
    assert Result.model_validate(json.loads(result.model_dump_json())) == result
    assert pickle.loads(pickle.dumps(result)) == result
    with pytest.raises(KeyError, match="LostAtoms"):
        result["ns_per_day"]


def test_records_are_frozen_and_refuse_unknown_keys():
    with pytest.raises(ValueError, match="frozen"):
        manifest().seed = 3
    with pytest.raises(BadInput, match="did you mean 'seed'"):
        build(Manifest, {"execution_id": "x", "app": "a", "app_version": "1.0.0", "sede": 1}, where="line 3")


def test_all_faults_of_a_file_are_told_at_once():
    data = {"name": 3, "metrics": [{"name": "m", "unti": "1"}], "resources": {"nodes": "x", "walltime_s": "y"}}
    with pytest.raises(BadInput) as caught:
        build(Contract, data, where="x.toml")
    told = caught.value.message
    assert told.startswith("x.toml, name: input should be a valid string; got 3. Also ")
    for fault in (
        "metrics.0: unknown key 'unti'; did you mean 'unit'?",
        "resources.nodes: ",
        "resources.walltime_s: ",
    ):
        assert told.count(fault) == 1, told
    assert "missing" not in told  # `unit` is there, misspelt
    with pytest.raises(BadInput) as caught:
        build(Contract, {"name": "a"} | {f"key{i}": 1 for i in range(9)}, where="x.toml")
    assert caught.value.message.count("known: ") == 1 and caught.value.message.endswith(
        "Also unknown key 'key5'. And 3 more."
    )


def test_of_a_missing_and_an_unknown_key_the_unknown_is_named_with_what_was_meant():
    with pytest.raises(BadInput, match=r"x\.toml: unknown key 'nmae'; did you mean 'name'\?"):
        build(Contract, {"nmae": "a"}, where="x.toml")
    with pytest.raises(BadInput, match=r"x\.toml, metrics\.0: unknown key 'unti'; did you mean 'unit'\?"):
        build(Contract, {"name": "a", "metrics": [{"name": "m", "unti": "1"}]}, where="x.toml")
    # One elsewhere says nothing about what is missing here.
    with pytest.raises(BadInput, match=r"metrics\.0: the key 'unit' is missing"):
        build(Contract, {"name": "a", "metrics": [{"name": "m"}], "resources": {"zz": 1}}, where="x.toml")


@pytest.mark.parametrize("name", [n for n in errors.__all__ if isinstance(getattr(errors, n), type)])
def test_every_error_survives_pickling_with_its_values(name):
    made = getattr(errors, name)("a full sentence.", value=3)
    again = pickle.loads(pickle.dumps(made))
    assert type(again) is type(made) and str(again) == "a full sentence." and again.value == 3
    assert isinstance(again, HpcAgentError)


def test_an_app_failure_keeps_its_kind_and_repair_across_processes():
    made = AppFailed("x.", kind="infrastructure", name="Walltime", repair="longer")
    again = pickle.loads(pickle.dumps(made))
    assert (again.kind, again.name, again.repair) == ("infrastructure", "Walltime", "longer")


def test_toml_that_cannot_be_read_says_why(tmp_path):
    with pytest.raises(BadInput, match="no such file"):
        read_toml(tmp_path / "x.toml")
    (tmp_path / "y.toml").write_text("a = = 1")
    with pytest.raises(BadInput, match="line 1"):
        read_toml(tmp_path / "y.toml")


def test_booleans_stay_booleans_through_space_json_and_execution_id():
    flag = Choice(True, False, default=True, name="flag")
    assert all(isinstance(c, bool) for c in flag.choices) and flag.default is True
    again = Parameter.model_validate_json(flag.model_dump_json())
    assert again == flag and all(isinstance(c, bool) for c in again.choices)
    space = Space.of(flag=Choice(True, False), x=Float(0, 1))
    assert [type(p["flag"]) for p in space.sample(np.random.default_rng(0), 4)] == [bool] * 4
    assert space.narrowed({"flag": {"choices": [False]}})["flag"].choices == (False,)
    jsonschema.validate({"flag": False, "x": 0.5}, space.json_schema())
    manifest = Manifest(
        execution_id="e", app="a", app_version="1", input_digest="d", params={"flag": False, "n": 1}
    )
    read = Manifest.model_validate_json(manifest.model_dump_json()).params
    assert read["flag"] is False and type(read["n"]) is int

    def identity(value):
        return Manifest.identify(
            app="a", app_version="1", input_digest="d", params={"flag": value}, seed=0, replicate=0
        )

    assert len({identity(v) for v in (True, False, 1.0, 1)}) == 4


def test_a_record_of_before_booleans_were_kept_still_lies_in_the_space():
    space = Space.of(flag=Choice(True, False))
    assert space.validated({"flag": 1.0})["flag"] is True and space.validated({"flag": 0.0})["flag"] is False
    old = Parameter.model_validate_json('{"name": "flag", "kind": "choice", "choices": [1.0, 0.0]}')
    assert old.choices == (1.0, 0.0) and old.validated(0.0) == 0.0
    # The other way round a boolean is no number, and beside one it is the same choice twice.
    with pytest.raises(BadInput, match="True is not one of"):
        Choice(1, 0).validated(True)
    with pytest.raises(BadInput, match="lists a choice twice"):
        Choice(True, 1)


def test_a_parameter_reads_back_from_json():
    for p in SPACE.parameters:
        assert Parameter.model_validate_json(p.model_dump_json()) == p


@pytest.mark.parametrize("noise", [20.0, 1.5, -0.1, math.nan])
def test_noise_of_a_metric_is_a_share_of_its_value(noise: float) -> None:
    with pytest.raises(ValueError, match="must be a share of the metric's value"):
        Metric(name="speed", unit="1/s", noise=noise)
    assert Metric(name="speed", unit="1/s", noise=0.2).noise == 0.2
