"""A workspace on a real Slurm: a run outlives the service that was asked for it, and can be cancelled on its node."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
import tomli_w

import hpcagent as ha
from hpcagent.sites.ledger import read_ledger
from hpcagent.store.journal import read_events

pytestmark = pytest.mark.slow

PATIENCE_S = 240
SITE = {
    "name": "here",
    "kind": "slurm",
    "address": "127.0.0.1",
    "poll_s": 0.5,
    "margin_s": 10.0,
    "nodes": {"n": {"cores": 1}},
    "queues": {"debug": {"node": "n"}},
    "block": {"queue": "debug", "walltime": "00:10:00"},
    "executors": {"workers": {}},
}


def until_running(workspace: ha.Workspace, run: str) -> Path:
    """Wait until a run's own directory is there: a worker has begun it."""
    place = workspace.folder.work / workspace.status(run, lines=0)["execution_id"]
    until = time.monotonic() + PATIENCE_S
    while not (place / "manifest.json").exists():
        assert time.monotonic() < until, workspace.about()["news"]
        time.sleep(0.1)
    return place


def test_a_run_on_a_node_outlives_the_service_and_another_is_cancelled_there(cluster, tmp_path):
    (tmp_path / "here.toml").write_text(tomli_w.dumps(SITE))
    root = tmp_path / "ws"
    workspace = ha.Workspace(root, create=True)
    (root / "workspace.toml").write_text(
        f'name = "ws"\ndefault_site = "here"\n[sites.here]\nprofile = "{tmp_path / "here.toml"}"\n'
    )
    try:
        run = workspace.run("synthetic", {"x": 0.3, "run_time_s": 8.0})["id"]
        place = until_running(workspace, run)
        began = (place / "manifest.json").stat().st_mtime_ns
        os.kill(workspace.about()["pid"], signal.SIGKILL)
        status = workspace.wait(run, PATIENCE_S)
        assert (status["state"], status["failure"]) == ("completed", None)
        assert status["metrics"]["value"] == pytest.approx(25.2)
        assert (place / "manifest.json").stat().st_mtime_ns == began  # it was begun once
        jobs = {entry.job_id for entry in read_ledger(root / "sites" / "here" / "jobs.jsonl")}
        assert len(jobs) == 1

        long = workspace.run("synthetic", {"x": 0.4, "run_time_s": 600.0})["id"]
        until_running(workspace, long)
        assert workspace.cancel(long)["how"] == "its worker is ended"
        after = workspace.run("synthetic", {"x": 0.5})["id"]  # the one worker is free again
        assert workspace.wait(after, PATIENCE_S)["state"] == "completed"
        assert workspace.status(long)["state"] == "cancelled"
        took = [event for event in read_events(root / "journal.jsonl") if event["event"] == "took"]
        assert [event["id"] for event in took] == [long] and 0 < took[0]["node_hours"] < 600 / 3600
    finally:
        workspace.end(runs=True)
    assert not workspace.folder.keepers()
