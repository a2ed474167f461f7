"""`hpcagent contract`: the document of any app on the command line."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

import hpcagent as ha
from hpcagent.cli import cli


def called(*words):
    return CliRunner().invoke(cli, ["contract", *words])


@pytest.fixture(scope="module")
def campaign(tmp_path_factory):
    """Four runs of 0.05 s."""
    folder = tmp_path_factory.mktemp("campaign") / "run"
    asked = ha.Campaign(
        ha.apps.synthetic,
        ha.maximize("value"),
        space={"x": ha.Float(0.1, 0.9)},
        fixed={"run_time_s": 0.05},
        until=ha.until.max_runs(4),
    )
    ha.run(asked, site="threads", workers=1, run_dir=folder)
    return folder


def test_it_shows_a_document_and_writes_it_as_json():
    assert "synthetic 1.0.0" in called("synthetic").stdout
    document = ha.types.ContractDocument.from_json(called("synthetic", "--json").stdout)
    assert document == ha.runs.contract_document("synthetic")


def test_it_takes_a_lammps_input_a_program_and_a_function_of_a_module(tmp_path, monkeypatch):
    argon = json.loads(called("lj_argon", "--json").stdout)
    assert argon["input_schema"]["properties"]["timestep"]["unit"] == "ps" and argon["determinism"] == "stochastic"
    (tmp_path / "seq.toml").write_text(
        'command = "seq {n}"\n[parameters.n]\nkind = "int"\nlow = 1\nhigh = 9\nunit = "1"\n'
        '[metrics.last]\nregex = "^([0-9]+)$"\nunit = "1"\n'
    )
    assert json.loads(called(str(tmp_path / "seq.toml"), "--json").stdout)["tool_name"] == "seq"
    dotted = json.loads(called("hpcagent.apps.landscape:synthetic", "--json").stdout)
    assert dotted["tool_name"] == "synthetic"


def test_the_version_that_is_meant_is_held_against_the_one_that_is_there():
    assert called("synthetic", "--version", "1.0.0").exit_code == 0
    refused = called("synthetic", "--version", "2.0.0")
    assert isinstance(refused.exception, ha.BadInput) and "has version 1.0.0 here, not 2.0.0" in str(
        refused.exception
    )


def test_recorded_runs_give_the_estimate_and_a_price_the_dollars(campaign):
    said = json.loads(called("synthetic", "--json", "--runs", str(campaign), "--usd-per-node-hour", "3").stdout)
    results = ha.open_run(campaign).results
    assert said["estimated_from"] == f"the mean of 4 completed runs in {campaign}"
    assert 0.05 <= said["estimated_runtime_sec"] < 5
    assert said["estimated_runtime_sec"] == pytest.approx(sum(r.cost.wall_s for r in results) / 4)
    assert said["estimated_node_hours"] == pytest.approx(sum(r.cost.node_hours for r in results) / 4)
    assert said["estimated_cost_usd"] == pytest.approx(3 * said["estimated_node_hours"])


def test_a_folder_without_a_run_of_the_app_is_refused_with_what_it_has(campaign):
    refused = called("rdf", "--runs", str(campaign))
    assert "has no completed run of rdf 1.1.0" in str(refused.exception)
    assert "it has runs of synthetic 1.0.0" in str(refused.exception)


def test_inner_runs_of_a_chain_count_for_their_own_app(tmp_path):
    @ha.chain(metrics={"y": "1"}, parameters={"x": ha.Float(0.1, 0.9)})
    def twice(x):
        a, b = ha.apps.synthetic(x=x, run_time_s=0.02), ha.apps.synthetic(x=x / 2, run_time_s=0.02)
        return {"y": a.result().metrics["value"] + b.result().metrics["value"]}

    asked = ha.Campaign(twice, ha.maximize("y"), until=ha.until.max_runs(2), policy="random")
    ha.run(asked, site="threads", workers=1, run_dir=tmp_path / "run")
    document = ha.runs.contract_document("synthetic", run_dir=tmp_path / "run")
    assert document.estimated_from.startswith("the mean of 4 completed runs")
    assert ha.runs.contract_document(twice, run_dir=tmp_path / "run").estimated_from.startswith("the mean of 2")


def test_it_compares_a_document_with_the_app(tmp_path):
    path = tmp_path / "synthetic.json"
    path.write_text(called("synthetic", "--json").stdout)
    same = called("synthetic", "--compare", str(path))
    assert same.exit_code == 0 and "as the document says" in same.stdout
    plain = json.loads(path.read_text())
    plain["input_schema"]["properties"]["x"]["maximum"] = 0.5
    path.write_text(json.dumps(plain))
    other = called("synthetic", "--compare", str(path))
    assert other.exit_code == 1 and "input_schema.properties.x.maximum: 0.5 in the document, 1.0" in other.stdout
    assert json.loads(called("synthetic", "--compare", str(path), "--json").stdout) == other.stdout.splitlines()
    assert "no such file" in str(called("synthetic", "--compare", str(tmp_path / "none.json")).exception)
