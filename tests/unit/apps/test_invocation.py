"""A call of an app as an agent hands it over: written, read back, refused where it was changed or does not fit."""

from __future__ import annotations

import hashlib
import json

import pytest

import hpcagent as ha
from hpcagent.apps.invocation import Invocation
from hpcagent.model.contract import Contract
from hpcagent.model.records import Manifest
from hpcagent.model.space import Space


@ha.app(
    version="1.2.0",
    parameters={"x": ha.Float(0.0, 1.0, unit="nm"), "n": ha.Int(1, 64, default=1)},
    metrics={"y": "1"},
    inputs=("start", "runs..."),
    resources_from={"ranks_per_node": "n"},
)
def fit(run, x, n):
    return {"y": x}


INPUTS = {"x": 0.5, "start": "a", "runs": ["b", "c"]}


def call(**more):
    return Invocation.make(fit, INPUTS, **{"requested_by": "planner", "random_seed": 7, **more})


def changed(made, **fields):
    """As somebody hands it over who has changed something and left the digest."""
    return json.dumps(json.loads(made.model_dump_json()) | fields)


def test_it_has_every_field_of_the_seed_form_and_of_what_was_missing_there():
    made = call(priority="high", approval="ticket 12", budget=0.5)
    plain = json.loads(made.model_dump_json())
    assert {k: plain[k] for k in ("tool_name", "tool_version", "requested_by", "random_seed", "priority")} == {
        "tool_name": "fit",
        "tool_version": "1.2.0",
        "requested_by": "planner",
        "random_seed": 7,
        "priority": "high",
    }
    assert plain["inputs"] == {"x": 0.5, "n": 1, "start": "a", "runs": ["b", "c"]}
    assert plain["resource_class"] == "cpu" and plain["approval"] == "ticket 12" and plain["budget"] == 0.5
    assert plain["created_at"] > 1.7e9 and len(plain["digest"]) == 64


def test_the_digest_is_that_of_the_canonical_json_without_it():
    plain = json.loads(call().model_dump_json())
    said = plain.pop("digest")
    # As a program in another language writes numbers: 1, not 1.0.
    plain = json.loads(
        json.dumps(plain), parse_float=lambda t: int(float(t)) if float(t).is_integer() else float(t)
    )
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    assert hashlib.sha256(text.encode()).hexdigest() == said


def test_a_program_that_writes_1_for_1_point_0_changes_nothing():
    made = Invocation.make(ha.apps.synthetic, {"x": 1.0}, requested_by="planner", random_seed=0)
    text = json.dumps(
        json.loads(made.model_dump_json(), parse_float=lambda t: int(float(t)) if float(t) == 1 else float(t))
    )
    assert '"x": 1,' in text
    assert Invocation.from_json(text).manifest(ha.apps.synthetic).params["x"] == 1.0


@pytest.mark.parametrize("more", [{}, {"priority": "low"}, {"priority": "high"}, {"replicate": 3}])
def test_it_is_read_back_into_the_manifest_that_the_app_would_write(more):
    made = call(**more)
    manifest = Invocation.from_json(made.model_dump_json()).manifest(fit)
    ours = fit.manifest({"x": 0.5}, seed=7, replicate=more.get("replicate", 0), upstream=("a", "b", "c"))
    assert manifest.execution_id == ours.execution_id == manifest.identity
    assert manifest.upstream == ("a", "b", "c") and manifest.params == {"x": 0.5, "n": 1}
    assert manifest.priority == {"low": 1, "high": -1}.get(more.get("priority"), 0)
    assert manifest.requested_by == "planner" and manifest.seed == 7


def test_a_manifest_of_ours_survives_the_way_there_and_back():
    ours = fit.manifest(
        {"x": 0.5, "n": 8},
        seed=3,
        replicate=2,
        upstream=("a", "b"),
        role="suggested",
        batch=4,
        index=17,
        requested_by="bayes",
        priority=5,
    )
    ours = ours.model_copy(update={"estimated_node_hours": 0.5, "estimated_node_hours_high": 0.9})
    there = Invocation.of(ours, fit.contract)
    assert there.resource_class == "hpc" and there.priority == "low"
    assert Invocation.from_json(there.model_dump_json()).manifest(fit) == ours


def test_an_extended_and_a_told_manifest_survive_too():
    longer = ha.apps.synthetic.manifest({"x": 0.5}, extends="a", times=2.0)
    assert Invocation.of(longer, ha.apps.synthetic.contract).manifest(ha.apps.synthetic) == longer
    told = ha.apps.synthetic.manifest({"x": 0.5}).model_copy(
        update={"role": "told", "origin": "a paper", "input_digest": "0" * 64}
    )
    told = told.model_copy(update={"execution_id": told.identity})
    assert Invocation.of(told, ha.apps.synthetic.contract).manifest(ha.apps.synthetic) == told


def test_the_same_call_of_the_same_version_is_the_same_run():
    a, b = call(), call(requested_by="another", priority="low")
    assert a.execution_id == b.execution_id
    assert call(random_seed=8).execution_id != a.execution_id


@pytest.mark.parametrize(
    "change",
    [
        {"inputs": {"x": 0.6, "n": 1, "start": "a", "runs": ["b", "c"]}},
        {"random_seed": 8},
        {"requested_by": "admin"},
        {"priority": "high"},
        {"budget": 100.0},
        {"approval": "forged"},
        {"tool_version": "1.3.0"},
        {"created_at": 1.0},
        {"resource_class": "gpu"},
        {"record": {}},
        {"digest": "0" * 64},
    ],
)
def test_whatever_is_changed_is_noticed(change):
    made = call(budget=1.0)
    with pytest.raises(ha.BadInput, match="was changed after it was written"):
        Invocation.from_json(changed(made, **change))
    with pytest.raises(ha.BadInput, match="was changed"):
        made.model_copy(update=change).manifest(fit)


def test_it_cannot_be_changed_in_place():
    with pytest.raises(Exception, match="frozen"):
        call().budget = 5.0


def other(**contract):
    return fit._changed(contract=fit.contract.model_copy(update=contract))


def test_another_version_or_app_is_refused_with_what_is_there():
    with pytest.raises(ha.BadInput, match=r"of fit 1\.2\.0; what is here is fit 2\.0\.0"):
        call().manifest(other(version="2.0.0"))
    with pytest.raises(ha.BadInput, match=r"what is here is synthetic 1\.0\.0"):
        call().manifest(ha.apps.synthetic)


def test_a_deprecated_app_is_refused_unless_that_is_allowed():
    old = other(deprecated="use fit2, which converges")
    with pytest.raises(ha.BadInput, match=r"fit 1\.2\.0 is deprecated: use fit2"):
        call().manifest(old)
    with pytest.raises(ha.BadInput, match="deprecated"):
        Invocation.make(old, INPUTS, requested_by="planner", random_seed=0)
    assert call().manifest(old, allow_deprecated=True).app == "fit"
    assert Invocation.make(old, INPUTS, requested_by="a", random_seed=0, allow_deprecated=True).tool_name == "fit"


def test_other_code_or_settings_under_the_same_version_are_noticed():
    changed_code = fit._changed(code_digest="0" * 64)
    changed_code._frozen = True
    with pytest.raises(ha.BadInput, match="code, settings or files are others"):
        call().manifest(changed_code)


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({"x": 2.0}, "x=2"),
        ({"x": "far"}, "x="),
        ({"colour": "red"}, "colour"),
        ({"start": ""}, "'start'"),
        ({"start": ["a"]}, "'start'"),
        ({"runs": "b"}, "'runs'"),
        ({"runs": []}, "'runs'"),
        ({"runs": [1]}, "'runs'"),
    ],
)
def test_inputs_that_are_not_allowed_are_refused_by_name(inputs, said):
    with pytest.raises(ha.BadInput, match=said):
        Invocation.make(fit, INPUTS | inputs, requested_by="planner", random_seed=0)


def test_an_input_that_is_missing_is_named():
    with pytest.raises(ha.BadInput, match="input 'runs' of app fit is missing"):
        Invocation.make(fit, {"x": 0.5, "start": "a"}, requested_by="planner", random_seed=0)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"priority": "urgent"}, "low, normal or high"),
        ({"requested_by": " "}, "requested_by"),
        ({"budget": 0.0}, "budget"),
        ({"budget": float("nan")}, "budget"),
        ({"random_seed": 2**63}, "seed"),
        ({"approval": "two\nlines"}, "approval"),
    ],
)
def test_what_makes_no_sense_is_refused(more, said):
    with pytest.raises(ha.BadInput, match=said):
        call(**more)


def test_an_unknown_key_or_none_at_all_is_refused():
    with pytest.raises(ha.BadInput, match="unknown key 'tool'"):
        Invocation.from_json(changed(call(), tool="fit"))
    with pytest.raises(ha.BadInput, match="'digest' is missing"):
        Invocation.from_json(
            json.dumps({k: v for k, v in json.loads(call().model_dump_json()).items() if k != "digest"})
        )
    with pytest.raises(ha.BadInput, match="JSON"):
        Invocation.from_json("no")


@pytest.mark.parametrize(
    ("resources", "kind"),
    [
        ({}, "cpu"),
        ({"threads_per_rank": 8}, "cpu"),
        ({"ranks_per_node": 2}, "hpc"),
        ({"nodes": 2}, "hpc"),
        ({"nodes": 2, "gpus_per_node": 1}, "gpu"),
    ],
)
def test_the_class_of_resources_follows_from_what_a_run_occupies(resources, kind):
    contract = Contract(name="md", version="1.0.0", space=Space())
    manifest = Manifest(execution_id="a", app="md", app_version="1.0.0", resources=ha.Resources(**resources))
    assert Invocation.of(manifest, contract).resource_class == kind
