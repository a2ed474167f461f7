"""The contract of an app as a document: what it says, how it is read back, what differs."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

import hpcagent as ha
from hpcagent.apps.document import ContractDocument, output_of
from hpcagent.catalog import list_apps
from hpcagent.model.contract import SIDE_EFFECTS, Contract
from hpcagent.model.records import Cost, Failure, Manifest, Result
from hpcagent.model.schema import input_schema, output_schema


@ha.app(
    name="oven",
    version="2.1.0",
    parameters={
        "temperature": ha.Float(300.0, 1500.0, unit="K", default=900.0, description="of the oven"),
        "steps": ha.Int(1, 10, description="how many"),
        "gas": ha.Choice("none", "argon", "hydrogen", default="none", description="around the sample"),
        "flow": ha.Float(0.0, 5.0, unit="L/min", when="gas != 'none'", description="of the gas"),
        "purity": ha.Float(0.9, 1.0, default=0.99, when="gas in ('argon', 'hydrogen') and temperature > 1000"),
        "label": ha.Text(default="", description="a note"),
    },
    constraints=["steps <= 8", "temperature * steps <= 9000"],
    metrics={
        "yield_": ha.Metric(name="yield_", unit="g", description="what came out", direction="maximize"),
        "loss": ha.Metric(name="loss", unit="g", required=False),
    },
    inputs=("sample", "runs..."),
    app_type="ml",
    failure_modes=("Burnt",),
    deterministic=False,
    side_effects="writes outside its folder",
    estimated_runtime_s=1800.0,
    resources=ha.Resources(nodes=2),
)
def oven(run, temperature, steps, gas, label, flow=0.0, purity=1.0):
    return {"yield_": 1.0}


INPUTS = {"steps": 3, "sample": "a", "runs": ["b"]}


def valid(schema, instance):
    jsonschema = pytest.importorskip("jsonschema")
    return jsonschema.Draft202012Validator(schema).is_valid(json.loads(json.dumps(instance)))


def test_it_has_every_field_of_the_seed_form_with_the_values_of_the_contract():
    document = ContractDocument.of(oven)
    plain = json.loads(document.model_dump_json())
    assert (plain["tool_name"], plain["tool_type"], plain["version"]) == ("oven", "ml", "2.1.0")
    assert plain["determinism"] == "stochastic" and plain["side_effects"] == "writes outside its folder"
    assert plain["failure_modes"] == ["Burnt"]
    assert plain["input_schema"]["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    temperature = plain["input_schema"]["properties"]["temperature"]
    assert (temperature["unit"], temperature["minimum"], temperature["maximum"]) == ("K", 300.0, 1500.0)
    assert plain["input_schema"]["properties"]["gas"]["enum"] == ["none", "argon", "hydrogen"]
    assert plain["input_schema"]["x-constraints"] == ["steps <= 8", "temperature * steps <= 9000"]
    metrics = plain["output_schema"]["properties"]["metrics"]
    assert metrics["properties"]["yield_"]["unit"] == "g" and metrics["required"] == ["yield_"]


def test_without_runs_the_estimate_is_the_contracts_and_node_hours_are_of_whole_nodes():
    document = ContractDocument.of(oven)
    # Two nodes for half an hour.
    assert (document.estimated_runtime_sec, document.estimated_node_hours) == (1800.0, 1.0)
    assert document.estimated_cost_usd is None and document.estimated_from.startswith("the contract")
    said = oven._changed(contract=oven.contract.model_copy(update={"estimated_cost": 0.25}))
    assert ContractDocument.of(said).estimated_node_hours == 0.25
    assert ContractDocument.of(said).estimated_from == "the contract"


def run(status="COMPLETED", version="2.1.0", app="oven", **more):
    manifest = Manifest(execution_id="x", app=app, app_version=version, origin=more.pop("origin", ""))
    return Result(manifest=manifest, status=status, **more)


def test_recorded_runs_of_this_app_and_version_give_the_means_and_a_price_the_dollars():
    costs = [Cost(wall_s=100.0, node_hours=0.1), Cost(wall_s=300.0, node_hours=0.5)]
    burnt = Failure(kind="simulation", name="Burnt", message="It burnt.")
    others = [
        run("FAILED", failure=burnt, cost=Cost(wall_s=1.0)),
        run(version="2.0.0", cost=Cost(wall_s=1.0)),
        run(app="stove", cost=Cost(wall_s=1.0)),
        run(origin="a book"),
    ]
    document = ContractDocument.of(oven, runs=[*(run(cost=c) for c in costs), *others], usd_per_node_hour=2.0)
    assert document.estimated_runtime_sec == 200.0  # (100 + 300) / 2
    assert document.estimated_node_hours == pytest.approx(0.3) and document.estimated_cost_usd == pytest.approx(
        0.6
    )
    assert document.estimated_from == "the mean of 2 completed runs"


def test_of_a_chain_the_time_is_from_start_to_end_not_the_sum_of_its_runs():
    part = ha.types.InnerRun(execution_id="y", app="z", status="COMPLETED")
    chain = run(parts=(part,), started_at=100.0, ended_at=130.0, cost=Cost(wall_s=400.0, node_hours=0.1))
    assert ContractDocument.of(oven, runs=[chain]).estimated_runtime_sec == 30.0


@pytest.mark.parametrize("price", [-1.0, math.nan, math.inf, "2", True])
def test_a_price_that_is_none_is_refused(price):
    with pytest.raises(ha.BadInput, match="usd_per_node_hour"):
        ContractDocument.of(oven, usd_per_node_hour=price)


def test_every_app_that_comes_along_is_read_back_without_a_difference():
    for app in list_apps():
        document = ContractDocument.of(app)
        again = ContractDocument.from_json(document.model_dump_json())
        assert again == document and again.differences(app) == ()
        assert document.side_effects in SIDE_EFFECTS


def test_what_differs_from_the_app_is_named_by_its_place():
    plain = json.loads(ContractDocument.of(oven).model_dump_json())
    plain["version"] = "2.0.0"
    plain["input_schema"]["properties"]["temperature"]["maximum"] = 1200
    del plain["input_schema"]["properties"]["label"]
    plain["failure_modes"].append("Flooded")
    assert ContractDocument.from_json(json.dumps(plain)).differences(oven) == (
        "version: '2.0.0' in the document, '2.1.0' in the app",
        "input_schema.properties.temperature.maximum: 1200 in the document, 1500.0 in the app",
        "input_schema.properties.label: not there in the document, {'description': 'a note', 'unit': '1', 'type': "
        "'string', 'maxLength': 4096, '... in the app",
        "failure_modes: ['Burnt', 'Flooded'] in the document, ['Burnt'] in the app",
    )


def test_an_estimate_from_runs_is_no_difference_and_another_of_the_contract_is():
    assert ContractDocument.of(oven, runs=[run(cost=Cost(wall_s=1.0))]).differences(oven) == ()
    plain = json.loads(ContractDocument.of(oven).model_dump_json())
    plain["estimated_runtime_sec"] = 60
    found = ContractDocument.from_json(json.dumps(plain)).differences(oven)
    assert found == ("estimated_runtime_sec: 60.0 in the document, 1800.0 in the app",)


def test_code_that_was_changed_under_the_same_version_is_a_difference():
    other = oven._changed(code_digest="0" * 64)
    other._frozen = True
    (found,) = ContractDocument.of(oven).differences(other)
    assert found.startswith("digest: ")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tool_type": "toy"}, "tool_type"),
        ({"version": "2"}, "semantic version"),
        ({"determinism": "mostly"}, "determinism"),
        ({"colour": "red"}, "unknown key 'colour'"),
        ({"estimated_runtime_sec": -1}, "estimated_runtime_sec"),
        ({"input_schema": {"type": "object"}}, "2020-12"),
        ({"input_schema": {**output_schema(oven.contract), "additionalProperties": True}}, "additionalProperties"),
    ],
)
def test_what_is_no_document_is_refused_by_its_key(change, said):
    plain = json.loads(ContractDocument.of(oven).model_dump_json()) | change
    with pytest.raises(ha.BadInput, match=said):
        ContractDocument.from_json(json.dumps(plain))


@pytest.mark.parametrize("text", ["", "{", "[]", "7", '{"a": NaN}'])
def test_what_is_no_json_object_is_refused(text):
    with pytest.raises(ha.BadInput, match="JSON"):
        ContractDocument.from_json(text)


@pytest.mark.parametrize(
    ("change", "fits"),
    [
        ({}, True),
        ({"temperature": 1500}, True),
        ({"temperature": 1500.1}, False),
        ({"steps": 2.5}, False),
        ({"steps": True}, False),
        ({"steps": 9}, False),  # steps <= 8 is a constraint
        ({"gas": "air"}, False),
        ({"pressure": 1}, False),
        ({"sample": 5}, False),
        ({"runs": []}, False),
        ({"runs": "b"}, False),
        ({"label": "two\nlines"}, False),
        ({"label": "µm, 5 °C"}, True),
        ({"flow": 1.0}, False),  # only where there is a gas
        ({"gas": "argon"}, False),  # then it is needed
        ({"gas": "argon", "flow": 1.0}, True),
        ({"gas": "argon", "flow": 6.0}, False),
        ({"gas": "argon", "flow": 1.0, "purity": 0.95}, False),  # at 900 K, the default
        ({"gas": "argon", "flow": 1.0, "purity": 0.95, "temperature": 1100}, True),
        ({"gas": "none", "purity": 0.95, "temperature": 1100}, False),
    ],
)
def test_the_schema_of_the_inputs_has_bounds_choices_and_conditions(change, fits):
    assert valid(input_schema(oven.contract), INPUTS | change) is fits


@pytest.mark.parametrize(
    "condition",
    [
        "s == 'a'",
        "s != 'a'",
        "not (s == 'a')",
        "s in ('a', 'b')",
        "0.25 < x <= 0.75",
        "x >= 0.5 and s == 'b'",
        "x > 0.5 or not on",
        "on",
        "0.5 > x",
    ],
)
def test_the_schema_and_the_space_agree_on_every_condition_that_a_schema_can_say(condition):
    """Also where a value is left out and its default decides."""
    for default in ("a", "b", None):
        space = ha.Space.of(
            s=ha.Choice("a", "b", "c", default=default),
            x=ha.Float(0.0, 1.0, default=0.3),
            on=ha.Choice(True, False, default=True),
            extra=ha.Float(0.0, 1.0, when=condition),
        )
        schema = input_schema(Contract(name="any", space=space))
        assert schema["properties"]["extra"]["x-when"] == condition
        rng = np.random.default_rng(1)
        for point in space.sample(rng, 30):
            for left_out in ([], [n for n in ("s", "x", "on") if space[n].default is not None]):
                inputs = {k: v for k, v in point.items() if k not in left_out}
                other = {k: v for k, v in inputs.items() if k != "extra"}
                if left_out:  # the condition may be another one now
                    other.pop("extra", None)
                    try:
                        active = "extra" in space.validated(other | {"extra": 0.5})
                    except ha.BadInput:
                        continue
                else:
                    active = "extra" in point
                assert valid(schema, other | {"extra": 0.5}) is active
                assert valid(schema, other) is not active


def test_a_condition_between_parameters_is_said_in_words_only():
    space = ha.Space.of(
        x=ha.Float(0, 1), y=ha.Float(0, 1), z=ha.Float(0, 1, when="x < y"), constraints=["x + y <= 1"]
    )
    schema = input_schema(Contract(name="any", space=space))
    assert "allOf" not in schema and schema["x-constraints"] == ["x + y <= 1"]
    assert schema["properties"]["z"]["x-when"] == "x < y"


def test_an_input_with_the_name_of_a_parameter_is_refused():
    with pytest.raises(ha.BadInput, match="'x'"):
        input_schema(Contract(name="any", space=ha.Space.of(x=ha.Float(0, 1)), inputs=("x...",)))


def test_outputs_fit_where_all_promised_metrics_are_there():
    identity = "6c1c0f5e-5d0b-5f6c-9a55-0d1d0b3c8a01"
    manifest = Manifest(execution_id=identity, app="oven", app_version="2.1.0")
    result = Result(
        manifest=manifest,
        status="COMPLETED",
        metrics={"yield_": 3.0},
        uncertainty={"yield_": 0.1},
        artifacts={"photo": "a.png"},
    )
    outputs = output_of(result)
    assert outputs["artifacts"] == {"photo": f"{identity}/photo"}
    schema = output_schema(oven.contract)
    assert valid(schema, outputs)
    assert not valid(schema, outputs | {"metrics": {"loss": 1.0}})
    assert not valid(schema, outputs | {"metrics": {"yield_": 3.0, "colour": 1.0}})
    assert not valid(schema, outputs | {"uncertainty": {"yield_": -0.1}})
    assert not valid(schema, outputs | {"artifacts": {"photo": "/home/me/a.png"}})


def test_a_run_that_failed_has_no_outputs():
    failed = run("FAILED", failure=Failure(kind="simulation", name="Burnt", message="It burnt."))
    with pytest.raises(ha.BadInput, match="Burnt"):
        output_of(failed)


def test_side_effects_are_of_a_closed_vocabulary():
    with pytest.raises(ha.BadInput, match="'declared outputs only'"):
        Contract(name="any", side_effects="none")
    # Records of before have it in other words, or in words of their own.
    assert Contract(name="any", side_effects="declared outputs in its own directory only").side_effects == (
        "declared outputs only"
    )
    assert "side effects" in dict(oven.contract._facts())


def test_its_text_has_the_tables_of_inputs_and_metrics():
    text = "\n".join(ContractDocument.of(oven, usd_per_node_hour=2.0).lines())
    assert "a run takes: 1800 s, 1 node-hours, 2 USD at 2 USD for a node-hour" in text
    assert "temperature  K" in text and "[300, 1500]" in text and "side effects: writes outside its folder" in text
