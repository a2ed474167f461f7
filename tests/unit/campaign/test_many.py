"""Many campaigns: listed, measured, freed and removed."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import hpcagent as ha
from hpcagent.campaign.folders import find_campaigns
from hpcagent.cli import cli
from hpcagent.errors import BadInput, RunDirLocked
from hpcagent.runs.removed import remove_run
from hpcagent.runs.stopped import stop_run
from hpcagent.sites.ledger import Ledger
from hpcagent.sites.schedulers.answers import Job
from hpcagent.sites.schedulers.base import Scheduler
from hpcagent.store.rundir import Lock
from tests.unit.campaign.records_for_tests import in_directories
from tests.warm import Command


def shell(*words):
    return CliRunner().invoke(cli, [str(w) for w in words])


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    folder = tmp_path_factory.mktemp("many") / "run"
    changes = {"until.max_runs": 8, "policy.name": "sobol", "confirm": None}
    return ha.run(ha.load_campaign("synthetic", changes=changes), site="threads", run_dir=folder)


@pytest.fixture
def ended(once, tmp_path):
    folder = shutil.copytree(once.run_dir, tmp_path / "runs" / "one", symlinks=True)
    in_directories(folder)
    return folder


def test_campaigns_are_listed_with_how_far_they_are_and_damage_hides_none(ended, once):
    root = ended.parent
    shutil.copytree(ended, root / "group" / "held")
    shutil.copytree(ended, root / "bad")
    (root / "bad" / "app.json").write_text("{")
    shutil.copytree(ended, root / "open")
    lines = (ended / "events.jsonl").read_text().splitlines(keepends=True)
    (root / "open" / "events.jsonl").write_text("".join(lines[:-1]))  # killed before it said that it stopped
    (root / "elsewhere").symlink_to(ended)  # counts once
    sweep = ha.Sweep(ha.apps.synthetic, {"x": [0.1, 0.5]}, replicates=2, metrics=["value"])
    ha.run(sweep, site="threads", run_dir=root / "swept")
    lock = Lock(root / "group" / "held")
    lock.acquire()
    try:
        found = {one.folder.name: one for one in ha.runs.list_runs(root, size=True)}
        text = shell("list", root).output
    finally:
        lock.release()
    assert set(found) == {"one", "held", "bad", "open", "swept"}
    one = found["one"]
    assert (one.name, one.app, one.state, one.runs, one.planned) == ("synthetic", "synthetic 1.0.0", "ended", 8, 8)
    assert one.why == once.reason and one.site == "threads"
    kept = [r for r in once.results if r.ok and r.metrics["error"] <= 1]
    best = max(r.metrics["value"] for r in kept)
    assert one.best.startswith(f"value = {best:.4g}")
    assert one.node_hours == pytest.approx(once.node_hours)
    held = found["held"]
    assert held.state == "running" and held.coordinator.pid == os.getpid()
    assert f"process {os.getpid()} on {socket.gethostname()}" in text
    assert found["bad"].state == "damaged" and "app.json" in found["bad"].why and "cannot be read: " in text
    assert found["open"].state == "stopped"
    assert (found["swept"].sweep, found["swept"].best, found["swept"].runs) == (True, "2 points", 4)
    assert list(find_campaigns(root, depth=0)) == []
    rows = [json.loads(line) for line in shell("list", root, "--json").output.splitlines()]
    assert sorted(row["state"] for row in rows) == ["damaged", "ended", "ended", "ended", "stopped"]
    with pytest.raises(BadInput, match="no folder"):
        ha.runs.list_runs(root / "none")


def test_a_hundred_folders_are_listed_within_a_second(ended):
    for number in range(50):
        copy = ended.parent / f"c{number}"
        copy.mkdir()
        for name in ("events.jsonl", "campaign.toml", "app.json"):
            (copy / name).write_bytes((ended / name).read_bytes())
    began = time.process_time()
    assert len(ha.runs.list_runs(ended.parent)) == 51
    assert time.process_time() - began < 0.5


def test_disk_use_is_that_of_du_by_kind(ended):
    run = next((ended / "work").iterdir())
    (run / "md.traj").write_bytes(b"x" * 100_000)
    (run / "again.traj").hardlink_to(run / "md.traj")  # the same bytes
    (run / "log.lammps").write_bytes(b"x" * 50_000)
    (ended / "link").symlink_to("/usr")
    used = ha.runs.disk_use(ended.parent).campaigns[0]
    there = [ended, *ended.rglob("*")]
    blocks = {p.lstat().st_ino: p.lstat().st_blocks * 512 for p in there if p.name != "again.traj"}
    assert (used.total.size, used.total.files) == (sum(blocks.values()), len(blocks))
    assert used.kinds["trajectories"].size == (run / "md.traj").stat().st_blocks * 512
    assert used.largest[0][0] == run.name
    rm = remove_run(ended, keep_records=True, dry_run=True)
    assert used.freeable == rm.freed and len(rm.runs) == 8
    assert json.loads(shell("du", ended.parent, "--json").output)["freeable"]["files"] == rm.freed.files


def test_freed_runs_stay_on_record_and_are_not_run_again(ended, once, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("1")
    run = next((ended / "work").iterdir())
    (run / "data").symlink_to(outside)
    (ended / "work" / "unknown").mkdir()
    asked = shell("rm", ended, "--keep-records")
    assert asked.exit_code != 0 and run.is_dir()  # no terminal, no --yes
    done = shell("rm", ended, "--keep-records", "--yes")
    assert done.exit_code == 0 and "removed the folders of 8 run(s)" in done.output
    assert "1 folder(s) of runs that have not finished, or that the journal lacks: unknown" in done.output
    assert [p.name for p in (ended / "work").iterdir()] == ["unknown"] and (outside / "precious").exists()
    found = ha.open_run(ended)
    assert found.results == once.results and found.best == once.best
    assert "folders of 8 run(s) were removed" in str(found.status)
    assert found.report(plots=False).path.is_file()
    assert shell("export", ended, "-o", "-").output == shell("export", once.run_dir, "-o", "-").output
    again = ha.run(ha.load_campaign("synthetic", changes={"until.max_runs": 10, "policy.name": "sobol",
        "confirm": None}), site="threads", run_dir=ended)  # fmt: skip
    assert [r for r in again.results if r.manifest.index < 8] == list(once.results)
    assert {p.name for p in (ended / "work").iterdir()} == {"unknown", "records"}  # two runs more, without files
    assert any("removed" in r for r in again.remarks)


def test_records_of_runs_without_files_are_no_folders_of_runs(once):
    used = ha.runs.disk_use(once.run_dir).campaigns[0]
    assert not used.largest and used.kinds["records"].size > 8 * 1000
    removal = remove_run(once.run_dir, keep_records=True, dry_run=True)
    assert removal.runs == () and not any("records" in words for words in removal.kept)


def test_only_what_the_record_has_is_freed(ended):
    lines = (ended / "events.jsonl").read_text().splitlines(keepends=True)
    lost = next(i for i, line in enumerate(lines) if json.loads(line)["event"] == "results")
    ids = {row["execution_id"] for row in json.loads(lines[lost])["results"]}
    (ended / "events.jsonl").write_text("".join(lines[:lost] + lines[lost + 1 :]))
    assert not ids & set(remove_run(ended, keep_records=True, dry_run=True).runs)
    remove_run(ended, keep_records=True)
    assert {p.name for p in (ended / "work").iterdir()} == ids  # only there are their results


def test_inner_runs_that_were_freed_are_made_again_where_a_chain_needs_their_files(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parent)
    sum_of_squares = importlib.import_module("chains_for_tests").sum_of_squares

    def sweep(*n):
        return ha.Sweep(sum_of_squares, {"n": list(n)}, replicates=1, metrics=["total"])

    first = ha.run(sweep(2), site="threads", run_dir=tmp_path / "run")
    assert first.results[0].ok and len(list((tmp_path / "run" / "work").iterdir())) == 4
    assert len(remove_run(tmp_path / "run", keep_records=True).runs) == 4
    grown = ha.run(sweep(2, 3), site="threads", run_dir=tmp_path / "run")
    assert [r.metrics["total"] for r in grown.results] == [5, 14] and grown.results[0] == first.results[0]
    assert sorted((tmp_path / "run" / "ran").read_text().split()) == ["1", "1", "2", "2", "3"]
    assert len(list((tmp_path / "run" / "work").iterdir())) == 5  # the new chain, its sum and its squares


def test_only_a_campaign_is_removed_and_only_what_is_its_own(ended, tmp_path, monkeypatch):
    (ended / "notes.txt").write_text("mine")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("1")
    (ended / "report").mkdir(exist_ok=True)
    (ended / "report" / "link").symlink_to(outside)
    shutil.rmtree(ended / "parsl", ignore_errors=True)
    (ended / "parsl").symlink_to(outside)
    lock = Lock(ended)
    lock.acquire()
    with pytest.raises(RunDirLocked, match="hpcagent stop"):
        remove_run(ended, dry_run=True)
    with pytest.raises(RunDirLocked):
        remove_run(ended)
    lock.release()
    ledger = {"event": "submitting", "at": 1.0, "name": "job-1", "scheduler": "slurm", "nodes": 1}
    (ended / "jobs.jsonl").write_text(json.dumps(ledger) + "\n")
    with pytest.raises(BadInput, match="hpcagent reap"):
        remove_run(ended)
    (ended / "jobs.jsonl").unlink()
    whole = (ended / "events.jsonl").read_text()
    foreign = {"event": "session", "at": time.time(), "host": "login7", "pid": 1}
    (ended / "events.jsonl").write_text(whole + json.dumps(foreign) + "\n")
    with pytest.raises(RunDirLocked, match="on login7, has not written its end"):
        remove_run(ended)
    (ended / "events.jsonl").write_text(whole)
    (ended.parent / "link").symlink_to(ended)
    monkeypatch.chdir(ended / "work")
    for folder, words in (
        (ended.parent, "not the folder"),
        (ended.parent / "link", "symbolic link"),
        (ended, "in"),
    ):
        with pytest.raises(BadInput, match=words):
            remove_run(folder)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "events.jsonl").write_text('{"event": "click"}\n')
    (tmp_path / "other" / "app.json").write_text("{}")
    with pytest.raises(BadInput, match="does not begin as"):
        remove_run(tmp_path / "other")
    done = remove_run(ended)
    assert [p.name for p in ended.iterdir()] == ["notes.txt"] and (outside / "precious").exists()
    assert any("notes.txt" in words for words in done.kept) and any(str(outside) in words for words in done.kept)
    (ended / "notes.txt").unlink()


def test_a_coordinator_is_stopped_as_by_ctrl_c_and_what_has_finished_is_kept(tmp_path):
    folder = tmp_path / "run"
    words = (
        "run",
        "synthetic",
        "--site",
        "threads",
        "--run-dir",
        folder,
        "--no-plots",
        "--set",
        "fixed.run_time_s=0.5",
    )
    begun = Command(words, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while not (folder / "events.jsonl").exists() or not ha.open_run(folder).results:
        assert begun.poll() is None and time.monotonic() < deadline
        time.sleep(0.1)
    assert next(iter(ha.runs.list_runs(folder))).state == "running"
    done = shell("stop", folder)
    assert done.exit_code == 0 and f"stopped: process {begun.pid} on" in done.output
    assert f"it goes on with `hpcagent resume {folder}`" in done.output
    assert begun.wait(timeout=10) == 130
    begun.communicate()
    assert next(iter(ha.runs.list_runs(folder))).state == "stopped"
    assert 0 < ha.open_run(folder).status.counts["completed"] < 36


def test_stopping_ends_nobody_who_is_not_the_coordinator(ended):
    nothing = stop_run(ended)
    assert not nothing.stopped and "nothing was stopped" in str(nothing)
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    lock = Lock(ended)
    lock.acquire()
    try:
        with pytest.raises(BadInput, match="in this process"):
            stop_run(ended)
        for host, pid, words in (
            (socket.gethostname(), stranger.pid, "does not have"),
            ("n7", 1, "ssh n7 hpcagent"),
        ):
            (ended / ".lock").write_text(json.dumps({"host": host, "pid": pid, "since": 1.0}))
            with pytest.raises(BadInput, match=words):
                stop_run(ended)
        assert stranger.poll() is None
    finally:
        lock.release()
        stranger.kill()
        stranger.wait()


def test_the_jobs_of_a_coordinator_and_its_successor_are_cancelled_and_no_strangers(ended):
    class Three(Scheduler):
        name, job_variable = "slurm", "SLURM_JOB_ID"
        allocation = queues = history = version = submit = None

        def jobs(self, job_ids):
            return {i: taken[i] for i in job_ids if i in taken}

        def named(self, name):
            return [job for job in taken.values() if job.name == name]

        def cancel(self, job_ids):
            taken.update({i: replace(taken[i], state="cancelled") for i in job_ids})

    Three.__abstractmethods__ = frozenset()
    taken, ledger = {}, Ledger(ended / "jobs.jsonl")
    for i, state in ((1, "running"), (2, "pending"), (3, "running")):
        name = f"hpcagent.coordinator-{i}.0a1b2c3d"
        ledger.submitting(name, "slurm", role="coordinator", nodes=1)
        ledger.submitted(name, str(i))
        taken[str(i)] = Job(str(i), state, name if i < 3 else "of-somebody-else")
    done = stop_run(ended, ask=lambda kind: Three())
    assert done.stopped and done.jobs == ("1", "2") and done.left == ()
    assert [job.state for job in taken.values()] == ["cancelled", "cancelled", "running"]
    assert not stop_run(ended).stopped  # the ledger has their ends
