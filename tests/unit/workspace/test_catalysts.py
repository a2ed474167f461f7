"""Catalysts, counters and rules of a workspace, as its callers ask for them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcagent.errors import BadInput, NotPermitted
from hpcagent.gate.not_allowed import NotAllowed
from hpcagent.workspace.client import Workspace

PATIENCE_S = 120
HOW = {"engine": "emt", "relax": "none", "layers": 2, "site": "fcc"}
RULES = """
name = "ws"
default_site = "threads"

[people.ada]
role = "planner"

[people.bob]
role = "planner"
quota = { runs_at_once = 3 }

[people.eve]
role = "viewer"

[quota]
node_hours = 5

[[approval]]
app = "lj_*"
nodes_times_hours = 0.5
"""


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    workspace = Workspace(tmp_path / "ws", create=True)
    (workspace.folder.root / "workspace.toml").write_text(RULES)
    yield workspace.folder.root
    workspace.end(runs=True)


def _recorded(workspace: Workspace, run: str) -> dict:
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        found = workspace.catalyst_state(run)
        if found["state"] in ("recorded", "failed"):
            return found
        time.sleep(0.05)
    raise AssertionError(workspace.about()["news"])


@pytest.mark.slow
def test_of_two_who_ask_at_once_one_row_comes(root):
    ada, bob = Workspace(root, as_="ada"), Workspace(root, as_="bob")
    one = ada.catalyst("Pt", "O", parameters=HOW, walltime_s=60.0)
    two = bob.catalyst("Pt", "O", parameters=HOW, walltime_s=60.0)
    assert (one["run_id"] == two["run_id"]) == (two["state"] == "found"), (one, two)
    first = _recorded(ada, one["run_id"])
    second = two if two["state"] == "found" else _recorded(bob, two["run_id"])
    assert first["adsorption_energy_ev"] == second["adsorption_energy_ev"]
    resources = ada.resources()
    assert resources.database().query({}, limit=10).total == 1
    assert len(resources.notebook().entries().items) == 1
    assert resources.database().query({}, limit=1).items[0].created_by.startswith(("ada", "bob"))
    with pytest.raises(BadInput, match="no run"):
        bob.catalyst_state(one["run_id"])


def test_who_may_not_store_computes_nothing(root):
    ada = Workspace(root, as_="ada")
    paper = {"metal": "Cu", "support": "none", "adsorbate": "O", "adsorption_energy": -1.0}
    ada.resources().database().add(paper | {"reference": "doi:x", "method": "measured"})
    eve = Workspace(root, as_="eve")
    assert eve.catalyst("Cu", "O", accept="any_method", parameters=HOW)["state"] == "found"
    with pytest.raises(NotPermitted):
        eve.catalyst("Cu", "O", parameters=HOW)
    with pytest.raises(NotAllowed, match="temperature"):
        ada.catalyst("Cu", "O", parameters={"temperature": 600})
    assert Workspace(root).list()["runs"] == []


def test_rules_are_told_in_words_to_whom_they_hold_for(root):
    rules = Workspace(root, as_="bob").rules()
    assert "at most 3 runs that wait or go of bob" in rules["rules"]
    assert "a person approves what is a run of lj_*, and takes more than 0.5 node-hours" in rules["rules"]
    assert not any("bob" in one for one in Workspace(root, as_="ada").rules()["rules"])
    assert {one["name"]: one["kind"] for one in rules["sites"]}["threads"] == "threads"


def test_counters_are_of_a_run_of_ones_own(root):
    ada = Workspace(root, as_="ada")
    run = ada.run("synthetic", {"x": 0.3}, walltime_s=60.0)["id"]
    ada.wait(run, PATIENCE_S)
    found = ada.counters(run)
    assert found["state"] == "completed" and found["wall_s"] >= 0 and found["ranks"] == 1
    assert "max_rss_bytes" in found["unknown"]
    with pytest.raises(BadInput, match="no run"):
        Workspace(root, as_="bob").counters(run)


def test_a_site_of_another_kind_and_settings_that_are_code_are_refused(root):
    ada = Workspace(root, as_="ada")
    with pytest.raises(NotAllowed, match="kind = slurm"):
        ada.run("synthetic", {"x": 0.3}, site_kind="slurm")
    with pytest.raises(NotAllowed, match="may be code"):
        ada.run("lj_argon", settings={"script": "shell id"}, data_only=True)
    assert ada.list()["runs"] == []
