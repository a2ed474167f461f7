"""How far runs and campaigns are."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from hpcagent.science.lammps.steps_done import StepsDone
from hpcagent.workspace.client import Workspace
from hpcagent.workspace.progress import CampaignJournal, Progress
from hpcagent.workspace.rows import Row

PATIENCE_S = 120
HEAD = "run ${steps}\nrun 2000\n  1 neighbor lists, perpetual\nPer MPI rank memory allocation = 3 Mbytes\n"
YAML = "---\nkeywords: ['Step', 'Time', ]\ndata:\n"


def _grow(folder: Path, text: str) -> None:
    with (folder / "log.lammps").open("a") as file:
        file.write(text)


@pytest.mark.parametrize(
    ("header", "row"),
    [
        (YAML, "  - [{0}, 0.1, ]\n"),
        ("   Step          Temp\n", "  {0}  80.0\n"),
        ("   Temp          Step\n", "  80.0  {0}\n"),
        ("", "------------ Step {0:>14} ----- CPU = 0.1 (sec) -------------\nTemp = 1 Press = 2\n"),
    ],
)
def test_steps_of_a_growing_log(tmp_path, header, row):
    log = StepsDone(tmp_path)
    assert log.look() is None
    _grow(tmp_path, "thermo 10\n" + HEAD)
    assert log.look() is None
    _grow(tmp_path, header + row.format(100))
    assert log.look()["done"] == 0
    _grow(tmp_path, "".join(row.format(step) for step in range(110, 610, 10)) + row.format(1100)[:8])
    found = log.look()
    assert (found["done"], found["of"], found["unit"], found["share"]) == (500, 2000, "steps", 0.25)
    assert "run command 1," in found["from"]


def test_a_second_run_command_is_added_and_an_end_is_whole(tmp_path):
    log = StepsDone(tmp_path)
    _grow(tmp_path, HEAD + YAML + "  - [0, 0, ]\n  - [2000, 1, ]\n...\nLoop time of 2.7 on 1 procs\n")
    assert log.look()["share"] == 1.0
    _grow(tmp_path, "run 3000 upto\n  1 by 1 by 1 MPI processor grid\n" + YAML + "  - [2000, 1, ]\n")
    found = log.look()
    assert (found["done"], found["of"]) == (2000, 3000) and "run commands 1 to 2," in found["from"]
    _grow(tmp_path, "  - [2500, 1, ]\n")
    assert (log.look()["done"], log.look()["share"]) == (2500, 2500 / 3000)
    _grow(tmp_path, "...\nLoop time of 1 on 1 procs\nrun 500\n")
    assert (log.look()["done"], log.look()["of"]) == (3000, 3000)  # its first step is not told yet


def test_a_log_that_was_begun_anew_or_is_a_link_or_binary(tmp_path):
    log = StepsDone(tmp_path)
    _grow(tmp_path, HEAD + YAML + "  - [0, 0, ]\n  - [1000, 1, ]\n")
    assert log.look()["done"] == 1000
    (tmp_path / "log.lammps").write_text(HEAD + YAML + "  - [0, 0, ]\n")
    assert log.look()["done"] == 0
    (tmp_path / "other").write_bytes(b"\xff\x00\n" * 100)
    (tmp_path / "other").replace(tmp_path / "log.lammps")
    assert log.look() is None
    (tmp_path / "log.lammps").unlink()
    (tmp_path / "log.lammps").symlink_to("/etc/passwd")
    assert StepsDone(tmp_path).look() is None


def test_runs_of_a_campaign_count_once(tmp_path):
    journal = CampaignJournal(tmp_path, 8)
    assert journal.look()["done"] == 0
    line = '{"event":"results","at":1.0,"results":[{"execution_id":"%s","status":"COMPLETED"}]}\n'
    (tmp_path / "events.jsonl").write_text(line % "a" + line % "b" + line % "a")
    found = journal.look()
    assert (found["done"], found["of"], found["share"], found["unit"]) == (2, 8, 0.25, "runs")
    assert CampaignJournal(tmp_path, None).look()["share"] is None


@pytest.mark.parametrize(("now", "share", "of"), [(104.0, 0.4, 10.0), (190.0, None, None)])
def test_a_run_that_takes_longer_than_expected_is_not_said_to_be_done(tmp_path, now, share, of):
    row = Row("r-1", "run", "me", "app", "here", "running", 100.0, "id", request={"expected_s": 10.0})
    (tmp_path / "manifest.json").write_text("{}")
    os.utime(tmp_path / "manifest.json", (100.0, 100.0))
    said = Progress(lambda _: tmp_path, lambda: now).of(row)
    assert (said["done"], said["share"], said["of"]) == (now - 100.0, share, of)
    assert said["elapsed_s"] == now - 100.0 and said["expected_s"] == 10.0


@pytest.mark.slow
def test_a_lammps_run_and_a_campaign_tell_how_far_they_are(tmp_path):
    workspace = Workspace(tmp_path / "ws", create=True)
    try:
        run = workspace.run("lj_argon", {"steps": 40_000}, site="threads")
        said = _until_told(workspace, run["id"], lambda said: said["unit"] == "steps" and 0 < said["share"] < 1)
        assert said["of"] in (1000, 40_000) and said["elapsed_s"] >= 0
        workspace.cancel(run["id"])
        assert workspace.status(run["id"])["progress"] is None

        campaign = workspace.start("synthetic", site="threads", changes={"until.max_runs": 300})
        said = _until_told(workspace, campaign["id"], lambda said: said["done"] > 0)
        assert said["of"] == 300 and said["unit"] == "runs"
        workspace.stop(campaign["id"])
    finally:
        workspace.end(runs=True)


def _until_told(workspace, identity, enough):
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        said = workspace.status(identity)["progress"]
        if said is not None and enough(said):
            return said
        time.sleep(0.02)
    raise AssertionError(f"no such progress: {workspace.status(identity)}")
