"""Blocks on PBS: Parsl's provider as we use it, beside Parsl's own in the same situation."""

from __future__ import annotations

import re
import subprocess
import threading
import time
from pathlib import Path

import pytest
from parsl.jobs.states import JobState
from parsl.launchers import SimpleLauncher
from parsl.providers import PBSProProvider
from parsl.providers.errors import SubmitException

from hpcagent.sites.launchers import worker_launcher
from hpcagent.sites.ledger import Ledger, read_ledger
from hpcagent.sites.limits import with_overrides
from hpcagent.sites.profiles import find_profile
from hpcagent.sites.schedulers.pbs import Pbs
from hpcagent.sites.schedulers.submission import Refused
from hpcagent.sites.workers.executor import log_tail
from hpcagent.sites.workers.job_scripts import coordinator_script, job_script
from hpcagent.sites.workers.pbs_blocks import PbsBlocks

PENDING, RUNNING, COMPLETED = JobState.PENDING, JobState.RUNNING, JobState.COMPLETED


@pytest.fixture
def blocks(pbs, tmp_path):
    return make(PbsBlocks, tmp_path)


@pytest.fixture
def stock(pbs, tmp_path):
    """Parsl's own, as it is."""
    return make(PBSProProvider, tmp_path)


def make(cls, tmp_path, **options):
    provider = cls(**{"walltime": "00:05:00", "launcher": SimpleLauncher(), "cmd_timeout": 20} | options)
    provider.script_dir = str(tmp_path / "submit_scripts")
    if cls is PBSProProvider:
        (tmp_path / "submit_scripts").mkdir()
    else:
        provider.prepare(Pbs(), Ledger(tmp_path / "jobs.jsonl"), poll_s=0.5, site="fake", executor="htex")
    return provider


def states(provider, ids):
    return [status.state for status in provider.status(ids)]


def until(provider, ids, wanted, within_s=120.0):
    give_up = time.monotonic() + within_s
    while (seen := states(provider, ids)) != wanted:
        assert time.monotonic() < give_up, f"{seen} instead of {wanted}"
        time.sleep(0.1)


# ---- where Parsl's own is wrong


def test_newer_blocks_look_finished_to_parsl_where_qstat_shows_the_first_only(pbs, stock, blocks):
    pbs.set(variant="M")
    theirs = [stock.submit("sleep 30", 1, "theirs") for _ in range(2)]
    for job_id in theirs:
        pbs.wait(job_id, "R")
    assert states(stock, theirs) == [RUNNING, COMPLETED]  # both run
    Pbs().cancel_and_see(theirs)
    ours = [blocks.submit("sleep 30", 1, "ours") for _ in range(2)]
    until(blocks, ours, [RUNNING, RUNNING])
    blocks.end_all()


def test_running_blocks_look_finished_to_parsl_where_no_history_is_kept(pbs, stock, blocks):
    pbs.set(history=False)
    theirs = stock.submit("sleep 30", 1, "theirs")
    ours = blocks.submit("sleep 30", 1, "ours")
    pbs.wait(theirs, "R"), pbs.wait(ours, "R")
    assert states(stock, [theirs]) == [COMPLETED]
    assert states(blocks, [ours]) == [RUNNING]
    Pbs().cancel([theirs])
    blocks.end_all()
    assert [entry.ended is not None for entry in read_ledger(blocks.ledger.path)] == [True]


def test_one_purged_job_stops_all_news_of_parsls(pbs, stock, blocks, tmp_path):
    for provider in (stock, blocks):
        first = provider.submit("exit 0", 1, "first")
        go_on = tmp_path / type(provider).__name__
        second = provider.submit(f"until [ -e {go_on} ]; do sleep 0.05; done", 1, "second")
        pbs.wait(first), pbs.wait(second, "R")
        assert states(provider, [second]) == [RUNNING]
        go_on.touch()
        pbs.purge(first), pbs.wait(second)
        expected = RUNNING if provider is stock else COMPLETED  # it has ended
        assert states(provider, [second]) == [expected]


def test_one_bad_id_makes_parsl_believe_that_nothing_was_cancelled(pbs, stock, blocks):
    for provider, told in ((stock, [False, False]), (blocks, [True, True])):
        gone = provider.submit("exit 0", 1, "gone")
        good = provider.submit("sleep 30", 1, "good")
        pbs.wait(gone), pbs.wait(good, "R")
        pbs.purge(gone)
        assert provider.cancel([gone, good]) == told
        if provider is stock:
            Pbs().cancel([good])
        pbs.wait(good)


def test_parsl_knows_no_failed_block_and_no_walltime(pbs, stock, blocks):
    pbs.set(kill_delay_s=0.2)
    stock.walltime = blocks.walltime = "00:00:01"
    for provider in (stock, blocks):
        ids = [provider.submit(command, 1, "block") for command in ("exit 3", "sleep 60")]
        pbs.wait(ids[0]), pbs.wait(ids[1])
        expected = [COMPLETED, COMPLETED] if provider is stock else [JobState.FAILED, JobState.TIMEOUT]
        assert states(provider, ids) == expected
    failed, timed_out = blocks.status(ids)
    assert failed.exit_code == 3 and "and failed" in failed.message
    assert "exceeded resource walltime" in timed_out.message
    assert "=>> PBS: job killed: walltime" in timed_out.stderr_summary


def test_a_block_that_is_exiting_has_ended_for_parsl_and_not_for_us(pbs, stock, blocks):
    pbs.set(exit_lag_s=60.0)
    for provider, expected in ((stock, COMPLETED), (blocks, RUNNING)):
        job_id = provider.submit("exit 0", 1, "block")
        pbs.wait(job_id, "E")
        assert states(provider, [job_id]) == [expected]
    pbs.set(exit_lag_s=0.0)
    pbs.wait("0.vm"), pbs.wait("1.vm")


# ---- what ours does


def test_nothing_is_asked_when_it_is_made_or_shows_a_script(pbs, blocks):
    assert "sleep 30" in blocks.script("sleep 30", "name")
    assert pbs.calls() == [] and not (pbs.home / "scripts").exists()


def test_the_script_shown_is_the_script_submitted_and_holds_all_options(pbs, tmp_path):
    pbs.set(queues={"workq": {}, "debug": {}}, filesystems="job")
    provider = make(
        PbsBlocks,
        tmp_path,
        account="myproject",
        queue="debug",
        select_options="ngpus=1",
        scheduler_options="#PBS -l filesystems=home:eagle",
        worker_init="module load conda",
        cpus_per_node=2,
    )
    job_id = provider.submit("exit 0", 1, "parsl.htex.block-7")
    job = pbs.jobs()[job_id]
    assert (job["queue"], job["account"]) == ("debug", "myproject")
    assert job["resources"]["select"] == "1:ncpus=2:ngpus=1" and job["resources"]["filesystems"] == "home:eagle"
    shown = provider.script("exit 0", job["name"])
    written = tmp_path / "submit_scripts" / job["name"]
    assert written.read_text() == shown
    assert pbs.calls("qsub") == [["qsub", str(written)]]  # no option beside it
    assert shown.index("#PBS -q debug") < shown.index("module load conda") < shown.index("exit 0")
    assert provider.script("exit 0", job["name"]) == shown  # as often as one likes
    pbs.wait(job_id)


def test_blocks_of_several_nodes_are_scattered_unless_the_site_says_otherwise(pbs, tmp_path):
    pbs.set(hosts={"x1": 4, "x2": 4})
    provider = make(PbsBlocks, tmp_path, nodes_per_block=2, cpus_per_node=2)
    job_id = provider.submit("sleep 30", 1, "block")
    pbs.wait(job_id, "R")
    assert provider.look()[job_id].hosts == ("x1", "x2")
    provider.end_all()
    provider.scheduler_options = "#PBS -l place=scatter:excl"
    assert provider.script("x").count("place=") == 1
    provider.scheduler_options, provider.nodes_per_block = "", 1
    assert "place=" not in provider.script("x")


@pytest.mark.parametrize(
    ("says", "words"),
    [
        ("mpiexec (OpenRTE) 4.1.4", ["--map-by", "ppr:1:node", "--bind-to", "none", "-x", "SITE"]),
        ("mpirun (Open MPI) 5.0.3", ["--map-by", "ppr:1:node", "--bind-to", "none", "-x", "SITE"]),
        ("HYDRA build details:", ["-ppn", "1", "-bind-to", "none"]),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.9", ["-ppn", "1", "-genv", "I_MPI_PIN", "0"]),
        ("mpiexec version 1.3.4", ["--ppn", "1", "--cpu-bind", "none"]),  # PALS
    ],
)
def test_every_mpiexec_is_told_one_process_a_node_in_its_own_words(tmp_path, says, words):
    folder = tmp_path / "a folder"
    folder.mkdir()
    (folder / "nodefile").write_text("n2\nn1\nn2\n")
    tool = folder / "mpiexec"
    tool.write_text(f'#!/bin/sh\nif [ "$1" = --version ]; then echo "{says}"; exit; fi\nprintf "%s\\n" "$@"\n')
    tool.chmod(0o755)
    environment = {"PATH": f"{folder}:/usr/bin:/bin", "JOBNAME": "j", "SITE": "x"}
    environment["PBS_NODEFILE"] = str(folder / "nodefile")

    def told(launcher, command="work --path='$HOME'"):
        lines = launcher(command, 1, 2, str(folder))
        return subprocess.run(
            ["/bin/bash", "-ec", lines], env=environment, capture_output=True, text=True, check=True
        ).stdout.splitlines()

    def mpiexec(**given):
        return worker_launcher("mpiexec", Pbs, **given)

    given = told(mpiexec())
    assert given[:4] == ["-n", "2", "--hostfile", f"{folder}/j.nodes"]
    assert given[4:8] == words[:4] and set(words) <= set(given)
    assert given[-2:] == ["work", "--path=$HOME"]
    assert (folder / "j.nodes").read_text() == "n1\nn2\n"
    # What the profile says stands.
    given = told(mpiexec(overrides="--depth=64 --ppn 1"), "work")
    assert given[4:] == ["--cpu-bind", "none", "--depth=64", "--ppn", "1", "work"]
    assert told(mpiexec(bind_cmd="--bind-to"), "work")[4:] == ["--bind-to", "none", "work"]


def test_the_name_is_one_that_pbs_takes_and_the_folder_of_its_output_is_there(pbs, blocks, tmp_path):
    job_id = blocks.submit("echo out; echo err >&2", 1, "parsl.htex.block-0")
    name = pbs.wait(job_id)["name"]
    assert re.fullmatch(r"parsl\.htex\.block-0\.[0-9a-f]{8}", name)
    err, out = blocks.logs(job_id)
    assert (out.read_text(), err.read_text()) == ("out\n", "err\n")
    assert out.parent == tmp_path / "submit_scripts"
    assert "#PBS -N job-123\n" in blocks.script("x", "123")
    assert "#PBS -N a_b\n" in blocks.script("x", "a b")
    assert len(re.search("#PBS -N (.*)", blocks.script("x", "n" * 300))[1]) <= 236


@pytest.mark.parametrize(
    "name",
    ['Müller\'s "runs"', "$HOME `x` 100% \\n", "host:path, and #1", "/".join(["long" * 50] * 4)],
    ids=["letters", "shell", "words", "long"],
)
def test_a_folder_that_no_directive_can_name_has_scripts_and_output_all_the_same(pbs, tmp_path, monkeypatch, name):
    folder = tmp_path / name
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    provider = make(PbsBlocks, folder)
    job_id = provider.submit('echo "$PBS_O_WORKDIR"; echo err >&2', 1, "block")
    job = pbs.wait(job_id)
    err, out = provider.logs(job_id)
    assert (out.read_text(), err.read_text()) == (f"{folder}\n", "err\n")
    assert out.parent == folder / "submit_scripts" and job["name"].startswith("block.")
    # Nothing of it is in what PBS keeps of the job.
    assert re.fullmatch(r"/tmp/\S+/job\.sh", job["arguments"]) and job["workdir"] == "/"
    assert not Path(job["arguments"]).exists() and job["out"] == "/dev/null"


def test_output_in_such_a_folder_is_joined_where_the_profile_joins_it(pbs, tmp_path):
    provider = make(PbsBlocks, tmp_path / "ü", scheduler_options="#PBS -r n\n#PBS -j oe")
    job_id = provider.submit("echo out; echo err >&2", 1, "block")
    pbs.wait(job_id)
    err, out = provider.logs(job_id)
    assert out.read_text() == "out\nerr\n" and not err.exists()


def test_a_folder_with_a_space_is_no_harm(pbs, tmp_path):
    provider = make(PbsBlocks, tmp_path)
    provider.script_dir = str(tmp_path / "my runs" / "scripts")
    job_id = provider.submit("echo out", 1, "block")
    pbs.wait(job_id)
    assert provider.logs(job_id)[1].read_text() == "out\n"


def test_a_job_finds_the_pbs_that_it_was_submitted_to(pbs, blocks, monkeypatch):
    """One beside the system has its commands and its settings where a fresh login does not look."""
    monkeypatch.setenv("PBS_CONF_FILE", "/somewhere/pbs.conf")
    job_id = blocks.submit("echo $PBS_CONF_FILE; qstat -f $PBS_JOBID | grep '^    job_state'", 1, "block")
    pbs.wait(job_id)
    err, out = blocks.logs(job_id)
    assert out.read_text() == "/somewhere/pbs.conf\n    job_state = R\n", err.read_text()


def test_a_block_of_one_node_starts_its_workers_without_mpiexec(pbs, tmp_path):
    profile = find_profile("pbs")
    for label in profile.executors:
        assert "mpiexec" not in job_script(profile, label, run_dir=tmp_path)
    two = with_overrides(profile, nodes=2)
    assert "mpiexec" in job_script(two, "workers", run_dir=tmp_path)
    assert "mpiexec" not in job_script(two, "mpi", run_dir=tmp_path)  # there, runs are started by it
    assert "mpiexec" not in coordinator_script(two, "workers", "true", name="c", folder=tmp_path, nodes=2)


def test_output_joined_into_one_file_is_found(pbs, tmp_path):
    provider = make(PbsBlocks, tmp_path, scheduler_options="#PBS -j oe")
    job_id = provider.submit("echo no such module >&2; exit 3", 1, "block")
    pbs.wait(job_id)
    err, out = provider.logs(job_id)
    assert not err.exists() and log_tail(err, out) == "no such module"


def test_a_job_waits_in_exiting_while_the_folder_of_its_output_is_missing(pbs, blocks, tmp_path):
    """What the folder is made for."""
    pbs.set(copy_retry_s=1.0)
    job_id = pbs.qsub("exit 0", f"-o {tmp_path}/none/x", f"-e {tmp_path}/none/y")
    began = pbs.wait(job_id, "E")["mtime"]
    assert pbs.wait(job_id)["mtime"] - began > 0.9


def test_a_refusal_says_the_words_of_pbs_and_is_in_the_ledger(pbs, stock, tmp_path):
    stock.queue = "nosuch"
    with pytest.raises(SubmitException, match="recode=None"):
        stock.submit("exit 0", 1, "theirs")
    provider = make(PbsBlocks, tmp_path, queue="nosuch")
    with pytest.raises(Refused, match=r"170.*: qsub: Unknown queue$"):
        provider.submit("exit 0", 1, "ours")
    (entry,) = read_ledger(provider.ledger.path)
    assert entry.ended == "refused" and "Unknown queue" in entry.reason and pbs.jobs() == {}


def test_a_block_whose_submission_was_never_answered_is_found_and_kept(pbs, blocks):
    pbs.set(qsub_hangs_after=True)
    blocks.scheduler = Pbs(timeout_s=6.0)  # by then also a slow machine has the job
    job_id = blocks.submit("sleep 30", 1, "block")
    assert job_id == "0.vm" and read_ledger(blocks.ledger.path)[0].job_id == "0.vm"
    until(blocks, [job_id], [RUNNING])
    blocks.end_all()


def test_a_server_that_is_down_changes_no_state(pbs, blocks):
    job_id = blocks.submit("sleep 30", 1, "block")
    until(blocks, [job_id], [RUNNING])
    pbs.kill_server()
    assert states(blocks, [job_id]) == [RUNNING] and "cannot connect" in blocks.down
    assert blocks.cancel([job_id]) == [False]
    pbs.start_server()
    assert states(blocks, [job_id]) == [RUNNING] and blocks.down is None
    blocks.end_all()
    assert [entry.ended for entry in read_ledger(blocks.ledger.path)] == ["cancelled"]


def test_blocks_that_wait_for_ever_say_why(pbs, tmp_path):
    provider = make(PbsBlocks, tmp_path, cpus_per_node=64)
    job_id = provider.submit("exit 0", 1, "block")
    give_up = time.monotonic() + 20
    while "Can Never Run" not in (status := provider.status([job_id])[0]).message:
        assert time.monotonic() < give_up
        time.sleep(0.1)
    assert status.state == PENDING
    provider.end_all()
    assert pbs.open_jobs() == []


@pytest.mark.parametrize("variant", ["M", "R", "F"])
def test_ending_all_leaves_nothing_in_the_queue(pbs, blocks, variant):
    pbs.set(variant=variant)
    for index in range(4):  # two run, two wait
        blocks.submit("sleep 60", 1, f"block-{index}")
    blocks.end_all()
    assert pbs.open_jobs() == []
    assert [entry.ended for entry in read_ledger(blocks.ledger.path)] == ["cancelled"] * 4


# ---- a node that is dead


def test_a_block_on_a_dead_node_is_seen_gone_at_the_end(pbs, blocks):
    job_id = blocks.submit("sleep 60", 1, "block")
    until(blocks, [job_id], [RUNNING])
    pbs.kill_node("vm")
    blocks.end_all(within_s=10)
    assert pbs.open_jobs() == []
    assert pbs.calls("qdel") == [["qdel", job_id], ["qdel", "-W", "force", job_id]]
    (entry,) = read_ledger(blocks.ledger.path)
    assert entry.ended == "node_failed" and "did not answer" in entry.reason


def test_a_job_that_its_node_took_down_is_no_failure_of_its_own(pbs, blocks):
    job_id = blocks.submit("sleep 60", 1, "block")
    until(blocks, [job_id], [RUNNING])
    pid = pbs.jobs()[job_id]["pid"]
    pbs.kill_node("vm")
    give_up = time.monotonic() + 60
    while pid in pbs.processes() and time.monotonic() < give_up:
        time.sleep(0.05)
    assert states(blocks, [job_id]) == [RUNNING]  # as long as the node is away
    pbs.start_node("vm")
    pbs.wait(job_id)
    until(blocks, [job_id], [JobState.FAILED])
    assert read_ledger(blocks.ledger.path)[0].ended == "node_failed"


# ---- what is charged


def test_a_block_is_charged_until_pbs_has_seen_its_end(pbs, blocks):
    pbs.set(walltime_lag_s=1.0, end_lag_s=1.5, kill_delay_s=5.0)
    blocks.walltime = "00:00:01"
    job_id = blocks.submit("trap 'sleep 0.4; exit 0' TERM; sleep 60 & wait", 1, "block")
    ended = pbs.wait(job_id)
    until(blocks, [job_id], [JobState.TIMEOUT])
    (entry,) = read_ledger(blocks.ledger.path)
    assert ended["mtime"] - ended["stime"] > 3.0  # three times its walltime
    assert entry.node_hours * 3600 == pytest.approx(int(ended["mtime"]) - int(ended["stime"]))
    assert not entry.estimated


def test_without_a_history_what_was_charged_is_said_to_be_an_estimate(pbs, blocks):
    pbs.set(history=False)
    job_id = blocks.submit("sleep 60", 1, "block")
    until(blocks, [job_id], [RUNNING])
    blocks.end_all()
    (entry,) = read_ledger(blocks.ledger.path)
    assert entry.ended == "cancelled" and entry.estimated and entry.node_hours > 0


# ---- jobs that the scheduler does not know any more


def test_a_deleted_block_is_cancelled_also_where_no_history_is_kept(pbs, blocks):
    pbs.set(history=False)
    job_id = blocks.submit("sleep 60", 1, "block")
    until(blocks, [job_id], [RUNNING])
    assert blocks.cancel([job_id]) == [True]
    until(blocks, [job_id], [JobState.CANCELLED])
    (entry,) = read_ledger(blocks.ledger.path)
    assert (entry.ended, entry.reason) == ("cancelled", "cancelled by hpcagent")


def test_one_that_somebody_else_deleted_is_told_with_the_history_that_is_missing(pbs, blocks):
    pbs.set(history=False)
    job_id = blocks.submit("sleep 60", 1, "block")
    until(blocks, [job_id], [RUNNING])
    pbs.run("qdel", job_id)
    until(blocks, [job_id], [JobState.FAILED])
    assert blocks.known()[job_id].reason == (
        "the scheduler does not know this job any more; PBS keeps no history of jobs here "
        "(job_history_enable is off)"
    )


def test_one_that_is_gone_when_its_walltime_is_over_ran_out_of_time(pbs, blocks):
    pbs.set(history=False, kill_delay_s=0.2)
    blocks.walltime = "00:00:10"  # long enough to be seen running on a busy machine
    job_id = blocks.submit("sleep 60", 1, "block")
    until(blocks, [job_id], [RUNNING])
    until(blocks, [job_id], [JobState.TIMEOUT])
    assert blocks.known()[job_id].reason.endswith("its walltime was over by then")


def test_one_purged_from_the_history_is_named(pbs, blocks):
    job_id = blocks.submit("exit 0", 1, "block")
    pbs.wait(job_id)
    pbs.purge(job_id)
    blocks.grace_s = 0.0
    until(blocks, [job_id], [JobState.FAILED])
    assert blocks.known()[job_id].reason == "the scheduler does not know this job any more"


def test_a_job_whose_submission_is_under_way_at_the_end_is_ended_too(pbs, blocks):
    pbs.set(answer_s=1.0)
    refused = []

    def submit():
        for _ in range(2):
            try:
                blocks.submit("sleep 60", 1, "block")
            except Refused as refusal:
                refused.append(str(refusal))

    thread = threading.Thread(target=submit)
    thread.start()
    give_up = time.monotonic() + 60
    while not pbs.calls("qsub"):
        assert time.monotonic() < give_up
        time.sleep(0.02)
    blocks.end_all()
    thread.join(20)
    assert pbs.open_jobs() == []
    assert refused == ["The site is being closed; no job is submitted any more."]
    assert [entry.ended for entry in read_ledger(blocks.ledger.path)] == ["cancelled"]


def test_a_job_that_no_look_has_seen_can_be_cancelled(pbs, blocks):
    job_id = blocks.submit("sleep 60", 1, "unseen")
    assert blocks.cancel([job_id]) == [True]
    pbs.wait(job_id)


def test_a_job_that_was_not_submitted_here_is_not_cancelled(pbs, blocks):
    job_id = pbs.qsub("sleep 60")
    assert blocks.cancel([job_id]) == [True]
    assert pbs.calls("qdel") == []
    Pbs().cancel_and_see([job_id])
