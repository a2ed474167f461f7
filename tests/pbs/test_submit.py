"""The coordinator as a job of PBS: one whose time is over, and its successor; and a queue that takes no second job."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from hpcagent.campaign.answer import read_run
from hpcagent.campaign.loading import load_campaign
from hpcagent.elsewhere.submit import submit
from hpcagent.errors import BadInput
from hpcagent.sites.ledger import read_ledger
from hpcagent.sites.profile import Profile
from hpcagent.sites.reap import end_leftovers, reap


@pytest.fixture
def here(pbs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Profile.model_validate(
        {
            "name": "here",
            "kind": "pbs",
            "address": "127.0.0.1",
            "poll_s": 0.5,
            "margin_s": 20.0,
            "block": {"walltime": "00:00:50", "cores_per_node": 1},
            "executors": {"workers": {}},
        }
    )


def log():
    path = Path("r/coordinator.log")
    return path.read_text() if path.exists() else ""


def wait(true, within_s=300.0):
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline, log()
        time.sleep(0.1)


def coordinators():
    return [e for e in read_ledger(Path("r/jobs.jsonl")) if (e.about or {}).get("role") == "coordinator"]


@pytest.mark.slow
def test_a_job_whose_time_is_over_is_followed_by_one_submitted_at_its_end_if_the_queue_took_none_before(pbs, here):
    # A job has 30 s for its runs and 20 s for its end: 16 runs of 2 s do not go into one, and where the machine is slow each
    # job still gets further.
    changes = {"until.max_runs": 16, "batch_size": 2, "fixed.run_time_s": 2.0, "policy.name": "sobol"}
    campaign = load_campaign("synthetic", changes=changes)
    done = submit(campaign, site=here, run_dir="r", inside=True)
    assert done.job_id in pbs.jobs() and f"#PBS -N {coordinators()[0].name}" in done.script
    pbs.wait(done.job_id, "R")
    pbs.set(queues={"workq": {"max_queued": "[u:PBS_GENERIC=1]"}})
    wait(lambda: "the next job was not taken now" in log())
    pbs.set(queues={"workq": {}})
    wait(lambda: read_run("r").reason)
    wait(lambda: not pbs.open_jobs())
    assert len(read_run("r").results) == 16
    *done_some, last = coordinators()
    assert len(done_some) >= 2 and {entry.ended for entry in done_some} == {"completed"}, log()
    assert last.ended == "cancelled", log()
    assert '"refused"' in Path("r/jobs.jsonl").read_text()
    # What is charged: a successor not from its submission, a job not until its own last word; nobody told the end of
    # the last one.
    assert [entry.estimated for entry in done_some] == [*[False] * (len(done_some) - 1), True]
    for entry in done_some:
        job = pbs.jobs()[entry.job_id]
        assert entry.started_at == int(job["stime"])
    first = pbs.jobs()[coordinators()[0].job_id]
    assert coordinators()[0].ended_at == int(first["mtime"])


def test_a_job_that_waits_is_reaped_and_a_second_submission_is_refused_until_then(pbs, here):
    pbs.set(queues={"workq": {"started": False}})
    done = submit("synthetic", site=here, run_dir="r")
    with pytest.raises(BadInput, match="is the coordinator of r already"):
        submit("r", site=here)
    assert end_leftovers(Path("r/jobs.jsonl")) == []  # a resume by hand leaves it waiting
    assert [job.done for job in reap("r")] == ["cancelled"]
    assert pbs.open_jobs() == [] and done.job_id is not None
    again = submit("r", site=here)
    assert pbs.open_jobs() == [again.job_id]
    reap("r")


def test_a_job_that_does_its_runs_itself_has_all_cores_of_a_node_also_where_only_pbs_knows_them(pbs, here):
    site = here.model_copy(update={"block": type(here.block)(walltime="00:01:00")})
    pbs.set(hosts={"n1": 6, "n2": 6})
    assert ":ncpus=6\n" in submit("synthetic", site=site, dry_run=True, inside=True).script
    assert ":ncpus=2\n" in submit("synthetic", site=site, dry_run=True).script
    assert pbs.jobs() == {}


def test_a_coordinator_beside_which_the_only_node_has_no_room_for_its_runs_is_refused(pbs, here):
    site = here.model_copy(update={"block": type(here.block)(walltime="00:01:00")})
    with pytest.raises(BadInput, match=r"1 node\(s\) of 2 cores.*--inside"):
        submit("synthetic", site=site, run_dir="r")
    assert pbs.jobs() == {} and not Path("r").exists()
    pbs.set(hosts={"n1": 2, "n2": 2}, queues={"workq": {"started": False}})
    assert submit("synthetic", site=site, run_dir="r").job_id in pbs.open_jobs()
    reap("r")


@pytest.mark.slow
def test_a_coordinator_in_a_job_leaves_a_place_for_its_blocks(pbs, here):
    """Two jobs of a user at a time: the coordinator's and a block's; the successor waits for a place."""
    pbs.set(hosts={"n1": 2, "n2": 2}, queues={"workq": {"max_queued": "[u:PBS_GENERIC=2]"}})
    site = here.model_copy(update={"block": type(here.block)(walltime="00:05:00", cores_per_node=1)})
    changes = {"until.max_runs": 4, "batch_size": 2, "fixed.run_time_s": 0.5, "policy.name": "sobol"}
    done = submit(load_campaign("synthetic", changes=changes), site=site, run_dir="r")
    assert any("the next is submitted when one ends" in note for note in done.notes)
    wait(lambda: read_run("r").reason)
    wait(lambda: not pbs.open_jobs())
    assert len(read_run("r").results) == 4 and len(pbs.jobs()) == 2, log()
    assert '"refused"' not in Path("r/jobs.jsonl").read_text() and len(pbs.calls("qsub")) == 2
    assert "until there is room its place is a block's (max_queued = [u:PBS_GENERIC=2] of queue workq)" in log()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"queues": {"workq": {"max_queued": "[u:PBS_GENERIC=1]"}}},
            "max_queued = .u:PBS_GENERIC=1. of queue workq",
        ),
        ({"queues": {"workq": {"max_run": "[u:PBS_GENERIC=1]"}}}, "max_run = .u:PBS_GENERIC=1. of queue workq"),
        ({"server_limits": {"max_run": "[o:PBS_ALL=1]"}}, "max_run = .o:PBS_ALL=1. of server"),
    ],
)
def test_a_queue_whose_limits_leave_no_place_for_blocks_is_refused_at_once(pbs, here, settings, words):
    pbs.set(hosts={"n1": 2, "n2": 2}, **settings)
    with pytest.raises(BadInput, match=rf"({words}).*2 are needed.*--inside"):
        submit("synthetic", site=here, run_dir="r")
    assert pbs.jobs() == {} and pbs.calls("qsub") == [] and not Path("r").exists()
