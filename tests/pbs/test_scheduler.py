"""How PBS is asked, and what is believed of its answers. Captured tables of a real OpenPBS are in the fake."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time

import pytest

from hpcagent.sites.schedulers.base import SchedulerDown, Unverified
from hpcagent.sites.schedulers.pbs import Pbs
from hpcagent.sites.schedulers.registry import scheduler
from hpcagent.sites.schedulers.submission import Refused
from hpcagent.testing import SchedulerContract


def test_it_is_found_by_its_kind_and_asks_nothing_when_it_is_made(pbs):
    assert isinstance(scheduler("pbs", timeout_s=7), Pbs)
    assert pbs.calls() == []


@pytest.mark.usefixtures("pbs")
class TestContract(SchedulerContract):
    kind = "pbs"
    unknown_id = "999999.vm"

    def script(self, lines, name, folder):
        path = folder / f"{name}.sh"
        head = f"#!/bin/bash\n#PBS -N {name}\n#PBS -l select=1:ncpus=1\n#PBS -l walltime=00:02:00\n"
        path.write_text(f"{head}#PBS -o {folder}/out\n#PBS -e {folder}/err\n{lines}\n")
        return path


# ---- how jobs stand


@pytest.mark.parametrize("variant", ["M", "R", "F"])
def test_several_jobs_are_all_seen_whatever_this_qstat_shows_of_several(pbs, variant):
    pbs.set(variant=variant)
    ids = [pbs.qsub("sleep 30", f"-N block-{i}") for i in range(3)]
    for job_id in ids[:2]:
        pbs.wait(job_id, "R")
    seen = Pbs().jobs([*ids, "999.vm"])
    assert [seen[job_id].state for job_id in ids] == ["running", "running", "pending"]
    assert [seen[job_id].name for job_id in ids] == ["block-0", "block-1", "block-2"]
    assert "999.vm" not in seen
    Pbs().cancel(ids)


def test_one_question_is_enough_where_qstat_shows_all(pbs):
    ids = [pbs.qsub("sleep 30") for _ in range(3)]
    Pbs().jobs(ids)
    assert len(pbs.calls("qstat")) == 1
    Pbs().cancel(ids)


def test_no_jobs_are_no_question(pbs):
    assert Pbs().jobs([]) == {} and pbs.calls() == []


def test_a_running_job_tells_its_hosts_and_the_end_of_its_walltime(pbs):
    job_id = pbs.qsub("sleep 30", "-l select=1:ncpus=2", "-l walltime=00:10:00", "-N some.name")
    began = pbs.wait(job_id, "R")["stime"]
    job = Pbs().jobs([job_id])[job_id]
    assert (job.state, job.name, job.hosts, job.exit_code) == ("running", "some.name", ("vm",), None)
    assert job.started_at == int(began)  # PBS tells whole seconds, in local time
    assert job.ends_at == job.started_at + 600
    Pbs().cancel([job_id])


@pytest.mark.parametrize("zone", ["UTC", "America/Chicago", "Asia/Tokyo"])
def test_times_are_local_times(pbs, zone):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", zone)
        time.tzset()
        job_id = pbs.qsub("exit 0")
        pbs.wait(job_id)
        began = Pbs().jobs([job_id])[job_id].started_at
    time.tzset()
    assert abs(began - time.time()) < 20


@pytest.mark.parametrize(
    ("body", "state", "code", "words"),
    [
        ("exit 0", "completed", 0, "and finished"),
        ("exit 3", "failed", 3, "and failed"),
        ("kill -KILL $$", "failed", 137, "and failed"),
    ],
)
def test_a_script_that_ended_by_itself(pbs, body, state, code, words):
    job_id = pbs.qsub(body)
    pbs.wait(job_id)
    job = Pbs().jobs([job_id])[job_id]
    assert (job.state, job.exit_code) == (state, code)
    assert job.reason.endswith(words) and job.over


def test_a_walltime_that_was_over_is_a_timeout_however_late_pbs_is(pbs):
    pbs.set(walltime_lag_s=1.0, kill_delay_s=0.5)
    job_id = pbs.qsub("trap '' TERM; sleep 60 & wait; sleep 60", "-l walltime=1")
    record = pbs.wait(job_id)
    assert record["mtime"] - record["stime"] > 2
    job = Pbs().jobs([job_id])[job_id]
    assert (job.state, job.exit_code) == ("timeout", None)
    assert job.reason.endswith("and exceeded resource walltime")
    assert "=>> PBS: job killed: walltime" in (pbs.home / "scripts" / "job0.sh.err").read_text()


@pytest.mark.parametrize(("status", "code"), [(271, -15), (0, None)])
def test_a_job_deleted_while_it_ran_is_cancelled_whatever_its_exit_status_is(pbs, status, code):
    """271 is 256 + SIGTERM; 0 was seen where all of PBS was on one host."""
    pbs.set(qdel_status=status)
    job_id = pbs.qsub("trap 'exit 7' TERM; sleep 60 & wait")
    pbs.wait(job_id, "R")
    Pbs().cancel([job_id])
    assert pbs.wait(job_id)["exit_status"] == status
    job = Pbs().jobs([job_id])[job_id]
    assert (job.state, job.exit_code) == ("cancelled", code)
    assert "and terminated by" in job.reason


def test_a_job_deleted_by_force_or_while_it_waited_is_cancelled(pbs):
    running = pbs.qsub("sleep 60", "-l select=1:ncpus=2")
    waiting = pbs.qsub("sleep 60")
    pbs.wait(running, "R")
    pbs.run("qdel", waiting)
    pbs.run("qdel", "-W", "force", running)
    pbs.wait(running)
    seen = Pbs().jobs([running, waiting])
    assert (seen[running].state, seen[running].exit_code) == ("cancelled", -9)  # 265 = 256 + SIGKILL
    assert (seen[waiting].state, seen[waiting].exit_code) == ("cancelled", None)


@pytest.mark.parametrize(
    ("fields", "state", "code"),
    [
        ({"exit_status": -27, "substate": 93, "comment": ""}, "out_of_memory", None),
        ({"exit_status": 137, "substate": 93, "comment": "x and exceeded resource mem"}, "out_of_memory", 137),
        ({"exit_status": -29, "substate": 93, "comment": ""}, "timeout", None),
        ({"exit_status": 271, "substate": 91, "comment": "x and terminated by a@b"}, "cancelled", -15),
        ({"exit_status": 271, "substate": 93, "comment": "on (bloom1:ncpus=2) and failed"}, "failed", -15),
        ({"exit_status": -3, "substate": 93, "comment": ""}, "failed", None),
        ({"exit_status": None, "substate": 92, "comment": ""}, "failed", None),
    ],
)
def test_other_endings_by_comment_and_substate_first(pbs, fields, state, code):
    job_id = pbs.qsub("exit 0")
    pbs.wait(job_id)
    pbs.edit(job_id, **fields)
    job = Pbs().jobs([job_id])[job_id]
    assert (job.state, job.exit_code) == (state, code) and job.reason


@pytest.mark.parametrize(
    ("letter", "state"),
    [
        ("Q", "pending"),
        ("W", "pending"),
        ("T", "pending"),
        ("M", "pending"),
        ("H", "held"),
        ("S", "held"),
        ("U", "held"),
        ("R", "running"),
        ("B", "running"),
        ("E", "ending"),
    ],
)
def test_the_letters_of_a_job_that_has_not_ended(pbs, letter, state):
    pbs.set(queues={"workq": {"started": False}})
    job_id = pbs.qsub("exit 0", "-h")
    pbs.edit(job_id, state=letter)
    assert Pbs().jobs([job_id])[job_id].state == state
    pbs.edit(job_id, state="H")
    Pbs().cancel([job_id])


def test_a_job_that_is_exiting_has_not_ended(pbs):
    pbs.set(exit_lag_s=60.0)
    job_id = pbs.qsub("exit 0")
    pbs.wait(job_id, "E")
    job = Pbs().jobs([job_id])[job_id]
    assert job.state == "ending" and not job.over
    pbs.set(exit_lag_s=0.0)
    pbs.wait(job_id)


def test_a_job_that_can_never_run_is_pending_and_says_so(pbs):
    job_id = pbs.qsub("exit 0", "-l select=1:ncpus=64")
    give_up = time.monotonic() + 20
    while not (job := Pbs().jobs([job_id])[job_id]).reason and time.monotonic() < give_up:
        time.sleep(0.05)
    assert job.state == "pending"
    assert job.reason == "Can Never Run: Insufficient amount of resource: ncpus (R: 64 A: 2 T: 2)"
    Pbs().cancel([job_id])


def test_without_history_jobs_that_run_are_seen_and_those_that_ended_are_not_known(pbs):
    pbs.set(history=False)
    running, ended = pbs.qsub("sleep 30"), pbs.qsub("exit 0")
    pbs.wait(running, "R")
    give_up = time.monotonic() + 20
    while ended in pbs.jobs() and time.monotonic() < give_up:
        time.sleep(0.05)
    asked = Pbs()
    seen = asked.jobs([running, ended])
    assert seen[running].state == "running" and ended not in seen
    before = len(pbs.calls("qstat"))
    asked.jobs([running])
    assert len(pbs.calls("qstat")) == before + 1  # it has learnt not to ask for history
    asked.cancel([running])


def test_history_that_is_switched_on_later_is_used(pbs):
    pbs.set(history=False)
    job_id = pbs.qsub("sleep 30")
    asked = Pbs()
    assert asked.jobs([job_id])[job_id].state in ("pending", "running")
    pbs.set(history=True)
    asked.cancel([job_id])
    pbs.wait(job_id)
    assert asked.jobs([job_id])[job_id].state == "cancelled"


def test_one_id_that_was_purged_hides_no_other(pbs):
    first, second = pbs.qsub("exit 0"), pbs.qsub("exit 3")
    pbs.wait(first), pbs.wait(second)
    pbs.purge(first)
    seen = Pbs().jobs([first, second])
    assert list(seen) == [second] and seen[second].state == "failed"


def test_ids_are_known_again_with_and_without_the_server(pbs):
    pbs.set(server="pbs-01.some.site.gov")
    for number in range(12):
        job_id = pbs.qsub("exit 0", "-h", f"-N job-{number}")
    assert job_id == "11.pbs-01.some.site.gov"
    wanted = {"1": "job-1", "11": "job-11", "10.pbs-01.some.site.gov": "job-10"}
    assert {job_id: job.name for job_id, job in Pbs().jobs(wanted).items()} == wanted
    pbs.set(id_chars=12)
    assert list(Pbs().jobs(["10.pbs-01.some.site.gov"])) == ["10.pbs-01.some.site.gov"]
    assert len(pbs.calls("qstat")) == 2
    Pbs().cancel(pbs.open_jobs())


def test_names_of_digits_come_back_as_text_from_a_qstat_that_makes_numbers_of_them(pbs):
    pbs.set(variant="R")
    job_id = pbs.qsub("exit 0", "-N 123", "-A 12", "-h")
    assert Pbs().jobs([job_id])[job_id].name == "123"
    Pbs().cancel([job_id])


def test_json_that_is_none_is_read_as_text_instead(pbs):
    pbs.set(broken_json=True)
    long_name = "n" * 120  # is wrapped
    running = pbs.qsub("sleep 30", f"-N {long_name}", "-l walltime=00:10:00")
    ended = pbs.qsub("exit 3")
    pbs.wait(running, "R"), pbs.wait(ended)
    seen = Pbs().jobs([running, ended, "999.vm"])
    assert (seen[running].state, seen[running].name, seen[running].hosts) == ("running", long_name, ("vm",))
    assert seen[running].ends_at == seen[running].started_at + 600
    assert (seen[ended].state, seen[ended].exit_code) == ("failed", 3)
    assert "999.vm" not in seen
    Pbs().cancel([running])


def test_line_ends_in_the_environment_of_a_job_are_no_harm(pbs, monkeypatch):
    old = pbs.home / "old"
    old.mkdir()
    answer = '{"Jobs": {"7.vm": {"job_state": "R", "Variable_List": {"A": "one\n\ttwo"}}}}'
    (old / "qstat").write_text(f"#!/bin/sh\ncat <<'X'\n{answer}\nX\n")
    (old / "qstat").chmod(0o755)
    monkeypatch.setenv("PATH", f"{old}:{os.environ['PATH']}")
    assert Pbs().jobs(["7.vm"])["7.vm"].state == "running"


def another_qstat(pbs, monkeypatch, lines):
    """Put a qstat of one's own before the fake's."""
    folder = pbs.home / "another"
    folder.mkdir()
    (folder / "qstat").write_text(f"#!/bin/sh\n{lines}\n")
    (folder / "qstat").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


@pytest.mark.parametrize(
    ("words", "code"),
    [("qstat: Unknown Job Id 7.vm", 153), ("qstat: PBS is not configured to maintain job history 7.vm", 0)],
)
def test_an_answer_that_is_empty_beside_its_words_is_that_nothing_is_known(pbs, monkeypatch, words, code):
    another_qstat(pbs, monkeypatch, f"echo '{words}' >&2; exit {code}")
    assert Pbs().jobs(["7.vm", "8.vm"]) == {}


@pytest.mark.parametrize(
    ("words", "code"), [("", 0), ("", 1), ("Connection refused", 111), ("qstat: Invalid credential", 231)]
)
def test_an_answer_that_is_none_is_not_that_jobs_have_ended(pbs, monkeypatch, words, code):
    another_qstat(pbs, monkeypatch, f"echo '{words}' >&2; exit {code}")
    with pytest.raises(SchedulerDown, match=words or "qstat"):
        Pbs().jobs(["7.vm"])


def test_members_of_arrays_beside_our_jobs_are_no_harm(pbs, monkeypatch):
    jobs = '"16[].vm": {"job_state": "B", "Job_Name": "theirs"}, "17.vm": {"job_state": "R", "Job_Name": "ours"}'
    another_qstat(pbs, monkeypatch, f"""echo '{{"timestamp": 1, "Jobs": {{{jobs}}}}}'""")
    seen = Pbs().jobs(["16[].vm", "17.vm"])
    assert [(job_id, job.state) for job_id, job in seen.items()] == [("16[].vm", "running"), ("17.vm", "running")]


def test_a_server_that_is_down_is_told_and_nothing_is_believed_of_the_jobs(pbs):
    job_id = pbs.qsub("sleep 30")
    pbs.kill_server()
    asked = Pbs()
    for ask in (
        lambda: asked.jobs([job_id]),
        lambda: asked.named("x"),
        lambda: asked.cancel([job_id]),
        asked.queues,
    ):
        with pytest.raises(SchedulerDown, match=r"cannot connect to server vm|Couldn't connect to cluster: vm"):
            ask()
    assert asked.keeps_finished_jobs()[0] is False
    pbs.start_server()
    assert job_id in asked.jobs([job_id])
    asked.cancel([job_id])


def test_a_server_that_does_not_answer_in_time_is_down(pbs):
    pbs.set(answer_s=3)
    with pytest.raises(SchedulerDown, match=r"did not answer within 0\.3 s"):
        Pbs(timeout_s=0.3).jobs(["1.vm"])


def test_commands_that_are_not_there_are_named(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SchedulerDown, match="qstat is not on this machine's PATH"):
        Pbs().jobs(["1.vm"])
    with pytest.raises(Refused, match="qsub is not on this machine's PATH") as refusal:
        Pbs().submit(tmp_path / "x.sh")
    assert not refusal.value.transient
    assert Pbs().allocation({}) is None


# ---- submitting and cancelling


def script(tmp_path, body="exit 0", *directives):
    path = tmp_path / "a folder" / "job.sh"
    path.parent.mkdir()
    lines = [
        "#!/bin/bash",
        f"#PBS -o {tmp_path}/out",
        f"#PBS -e {tmp_path}/err",
        *(f"#PBS {d}" for d in directives),
        body,
        "",
    ]
    path.write_text("\n".join(lines))
    return path


@pytest.mark.parametrize(
    ("directives", "settings", "words", "transient"),
    [
        (["-q nosuch"], {}, "Unknown queue", False),
        ([], {"queues": {"workq": {"enabled": False}}}, "Queue is not enabled", False),
        (["-l walltime=2:00:00"], {"queues": {"workq": {"max_walltime": 3600}}}, "violates queue", False),
        (["-l select=1:ncpus=8"], {"queues": {"workq": {"max_ncpus": 4}}}, "violates queue", False),
        (["-l select=1:ncpus=1", "-l filesystems=home"], {}, r"Resource_List\.filesystems", False),
        (["-l select=1:ncpus=1", "-l filesystems=home"], {"filesystems": "host"}, "cannot be used with", False),
        (["-l select=1:foo=1"], {}, "Unknown resource: foo", False),
        (["-l select=1:ncpus=x"], {}, r"value select\.ncpus", False),
        (["-l walltime=soon"], {}, r"value Resource_List\.walltime", False),
        (["-l select=1:ncpus=1", "-l ncpus=2"], {}, "cannot be used with", False),
        (["-N 'a b'"], {}, "illegal -N value", False),
        (["-N " + "n" * 300], {}, "Job name is too long", False),
        ([], {"root_may_submit": False}, "Bad UID for job execution", False),
        ([], {"queues": {"workq": {"max_queued": "[u:PBS_GENERIC=0]"}}}, "per-user limit", True),
        ([], {"qsub_fails": [196, "qsub: Ask me tomorrow"]}, "Ask me tomorrow", True),
        ([], {"qsub_fails": [32, "qsub: No active allocation found"]}, "No active allocation", False),
        ([], {"down": True}, "cannot connect to server vm", True),
    ],
)
def test_a_refusal_has_the_words_of_pbs_and_whether_another_try_may_help(
    pbs, tmp_path, directives, settings, words, transient
):
    if words.startswith("Bad UID") and os.getuid() != 0:
        pytest.skip("only root is told this")
    pbs.set(**settings)
    with pytest.raises(Refused, match=words) as refusal:
        Pbs().submit(script(tmp_path, "exit 0", *directives))
    assert refusal.value.transient is transient
    assert "a folder/job.sh" in str(refusal.value)
    assert pbs.jobs() == {}


def test_a_script_that_is_not_there_is_refused_for_good(pbs, tmp_path):
    with pytest.raises(Refused, match="No such file or directory") as refusal:
        Pbs().submit(tmp_path / "none.sh")
    assert not refusal.value.transient


def test_the_id_is_found_below_a_greeting_of_the_site(pbs, tmp_path):
    pbs.set(qsub_says="Welcome to Polaris. Your allocation has 12 node-hours.")
    assert Pbs().submit(script(tmp_path)) == "0.vm"
    pbs.wait("0.vm")


def test_a_submission_without_an_answer_may_have_been_taken_and_is_found_by_its_name(pbs, tmp_path):
    pbs.set(qsub_hangs_after=True)
    with pytest.raises(Refused, match="did not answer") as refusal:
        Pbs(timeout_s=1).submit(script(tmp_path, "sleep 30", "-N hpcagent.abc"))
    assert refusal.value.transient
    found = Pbs().named("hpcagent.abc")
    assert [job.job_id for job in found] == ["0.vm"]
    Pbs().cancel(["0.vm"])


@pytest.mark.parametrize("history", [True, False])
def test_a_job_after_another_starts_when_that_has_ended_in_whatever_way(pbs, tmp_path, history):
    first = pbs.qsub("sleep 30")
    second = Pbs().submit(script(tmp_path, "sleep 30"), after=first)
    pbs.wait(first, "R")
    assert Pbs().jobs([second])[second].state == "held"
    pbs.set(history=history)
    Pbs().cancel([first])
    pbs.wait(second, "R")
    assert Pbs().jobs([second])[second].state == "running"
    Pbs().cancel_and_see([second])


def test_a_job_after_one_that_nobody_knows_has_ended_without_having_run(pbs, tmp_path):
    job_id = Pbs().submit(script(tmp_path), after="999.vm")
    record = pbs.wait(job_id)
    assert (record["substate"], record["exit_status"]) == (92, None)
    job = Pbs().jobs([job_id])[job_id]
    assert job.state == "failed" and "without having run" in job.reason


def test_cancelling_ends_the_good_ones_whatever_the_others_are(pbs):
    gone, ended, good = pbs.qsub("exit 0"), pbs.qsub("exit 0"), pbs.qsub("sleep 30")
    pbs.wait(gone), pbs.wait(ended), pbs.wait(good, "R")
    pbs.purge(gone)
    Pbs().cancel([gone, ended, good])
    assert pbs.wait(good)["substate"] == 91


def test_one_that_is_ending_already_needs_no_second_qdel(pbs):
    pbs.set(exit_lag_s=60.0)
    job_id = pbs.qsub("exit 0")
    pbs.wait(job_id, "E")
    refused = pbs.run("qdel", job_id, check=False)
    assert refused.returncode != 0 and "invalid for state" in refused.stderr
    Pbs().cancel([job_id])
    pbs.set(exit_lag_s=0.0)
    assert Pbs().cancel_and_see([job_id], within_s=20)[job_id].state == "completed"


def test_jobs_are_not_deleted_by_force(pbs):
    """PBS would give up on processes that may still run, and on what the job has printed."""
    job_id = pbs.qsub("sleep 30")
    pbs.wait(job_id, "R")
    Pbs().cancel([job_id])
    assert pbs.calls("qdel") == [["qdel", job_id]]


def test_cancelling_can_be_seen_to_the_end(pbs):
    pbs.set(variant="M", exit_lag_s=0.5)
    ids = [pbs.qsub("sleep 30") for _ in range(3)]
    Pbs().cancel_and_see(ids, within_s=20)
    assert pbs.open_jobs() == []


def test_a_cancellation_that_cannot_be_seen_is_an_error(pbs):
    pbs.may_leave_jobs = True
    job_id = pbs.qsub("sleep 30")
    pbs.kill_server()
    with pytest.raises(Unverified, match=r"0\.vm: cancelled, but not seen"):
        Pbs().cancel_and_see([job_id], within_s=0.5)


@pytest.mark.parametrize("variant", ["M", "F"])
@pytest.mark.parametrize("with_qselect", [True, False])
def test_jobs_are_found_by_the_beginning_of_their_name(pbs, variant, with_qselect, monkeypatch):
    pbs.set(variant=variant)
    ids = [
        pbs.qsub("sleep 30", f"-N {name}") for name in ("parsl.htex.block-0.1", "parsl.htex.block-1.2", "other")
    ]
    ended = pbs.qsub("exit 0", "-N parsl.htex.block-2.3", "-h")
    pbs.run("qdel", ended)
    if not with_qselect:
        without = pbs.home / "without"
        without.mkdir()
        for name in ("qstat", "qdel"):
            (without / name).write_text(f'#!/bin/sh\nexec {pbs.bin / name} "$@"\n')
            (without / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{without}:/usr/bin:/bin")
    asked = Pbs()
    assert [job.job_id for job in asked.named("parsl.htex.block-")] == ids[:2]
    assert [job.job_id for job in asked.named("parsl.htex.block-1")] == ids[1:2]
    assert asked.named("nothing") == []
    asked.cancel(ids)


# ---- inside a job


def inside(pbs, *directives):
    """The environment that a job has."""
    job_id = pbs.qsub("env -0 > env; cp $PBS_NODEFILE nodefile; sleep 30", *directives)
    pbs.wait(job_id, "R")
    path = pbs.home / "home" / "env"
    give_up = time.monotonic() + 20
    while not (path.exists() and path.with_name("nodefile").exists()) and time.monotonic() < give_up:
        time.sleep(0.05)
    time.sleep(0.1)
    return job_id, dict(line.split("=", 1) for line in path.read_text().split("\0") if "=" in line)


def test_a_job_starts_at_home_without_the_environment_of_its_submitter(pbs, monkeypatch):
    monkeypatch.setenv("VIRTUAL_ENV", "/some/venv")
    job_id, environ = inside(pbs, "-l select=1:ncpus=2")
    assert environ["PWD"] == str(pbs.home / "home") and "VIRTUAL_ENV" not in environ
    assert environ["PBS_O_WORKDIR"] == os.getcwd()  # noqa: PTH109
    assert (environ["NCPUS"], environ["OMP_NUM_THREADS"], environ["PBS_ENVIRONMENT"]) == ("2", "2", "PBS_BATCH")
    Pbs().cancel([job_id])


def test_the_commands_are_found_in_a_job_that_does_not_have_them_on_its_path(pbs, monkeypatch):
    job_id, environ = inside(pbs, "-l select=1:ncpus=2")
    assert str(pbs.bin) not in environ["PATH"].split(":")
    monkeypatch.setenv("PATH", environ["PATH"])
    monkeypatch.setenv("PBS_O_PATH", environ["PBS_O_PATH"])
    assert Pbs().jobs([job_id])[job_id].state == "running"
    assert [job.job_id for job in Pbs().named("job0.sh")] == [job_id]
    Pbs().cancel([job_id])


def test_the_allocation_has_each_host_once_with_all_its_cores_and_gpus(pbs):
    pbs.set(hosts={"x1": 4, "x2": 4}, gpus=4)
    job_id, environ = inside(pbs, "-l select=4:ncpus=2:ngpus=2", "-l walltime=600")
    found = Pbs().allocation(environ)
    assert found.job_id == job_id
    assert [(n.host, n.cores, n.gpus) for n in found.nodes] == [("x1", 4, 4), ("x2", 4, 4)]
    assert found.ends_at == Pbs().jobs([job_id])[job_id].ends_at is not None
    Pbs().cancel([job_id])


def test_the_allocation_is_told_by_the_environment_where_qstat_is_not_to_be_had(pbs, tmp_path):
    pbs.kill_server()
    nodefile = tmp_path / "nodes"
    here = socket.gethostname().partition(".")[0]
    nodefile.write_text(f"x1.site\nx1.site\n{here}.site\n")
    environ = {"PBS_JOBID": "5.vm", "PBS_NODEFILE": str(nodefile), "NCPUS": "1", "PBS_WALLTIME": "60"}
    found = Pbs().allocation(environ)
    assert [n.host for n in found.nodes] == [f"{here}.site", "x1.site"]  # this process's own first
    assert [n.cores for n in found.nodes] == [1, min(2, os.cpu_count())]
    assert found.ends_at == nodefile.stat().st_mtime + 60
    assert Pbs().allocation({"PBS_JOBID": "5.vm"}).ends_at is None


def test_the_nodes_are_those_of_qstat_where_the_node_file_is_not_and_vnodes_of_any_name_are_on_their_hosts(pbs):
    """The file is on the job's first node only; what its vnodes are called is the site's affair."""
    pbs.set(hosts={"x1": 4, "x2": 4})
    job_id, environ = inside(pbs, "-l select=1:ncpus=4+2:ncpus=1", "-l place=free")
    pbs.edit(job_id, exec_vnode="(sn0:ncpus=2+sn1:ncpus=2)+(x2-b:ncpus=1)+(x2-b:ncpus=1)")
    found = Pbs().allocation({**environ, "PBS_NODEFILE": "/gone"})
    assert [(n.host, n.cores) for n in found.nodes] == [("x1", 4), ("x2", 2)] and not found.guessed
    assert [(n.host, n.cores) for n in Pbs().allocation(environ).nodes] == [("x1", 4), ("x2", 2)]
    Pbs().cancel([job_id])


def test_lines_of_mpi_ranks_in_the_node_file_are_not_taken_for_cores_where_nobody_can_be_asked(pbs, tmp_path):
    pbs.kill_server()
    nodefile = tmp_path / "nodes"
    nodefile.write_text("x1\n" * 4 + "x2\n" * 4)  # select=2:ncpus=4:mpiprocs=4
    environ = {"PBS_JOBID": "5.vm", "PBS_NODEFILE": str(nodefile), "NCPUS": "4", "OMP_NUM_THREADS": "4"}
    found = Pbs().allocation(environ)
    assert [(n.host, n.cores) for n in found.nodes] == [("x1", 4), ("x2", 4)] and found.guessed
    odd = {**environ, "NCPUS": "", "OMP_NUM_THREADS": "2,1"}  # a list is OpenMP's for nested regions
    assert [n.cores for n in Pbs().allocation(odd).nodes] == [2, 2]


def test_outside_a_job_there_is_no_allocation_and_no_question(pbs):
    assert Pbs().allocation({"HOME": "/"}) is None and pbs.calls() == []


# ---- the system


def test_queues_tell_their_limits_and_their_nodes(pbs):
    pbs.set(
        hosts={"x1": 32, "x2": 32},
        gpus=4,
        default_queue="debug",
        queues={
            "debug": {"max_walltime": 3600, "max_nodect": 2, "min_nodect": 1},
            "closed": {"enabled": False},
            "stopped": {"started": False},
        },
    )
    debug, closed, stopped = Pbs().queues()
    assert (debug.name, debug.default, debug.open) == ("debug", True, True)
    assert (debug.min_nodes, debug.max_nodes, debug.max_walltime_s) == (1, 2, 3600)
    assert (debug.cores, debug.gpus, debug.nodes) == (32, 4, 2)
    assert debug.memory_gb == pytest.approx(24.631, abs=0.001)
    assert not closed.open and not stopped.open and not closed.default
    assert closed.max_walltime_s is None and closed.max_nodes is None


@pytest.mark.parametrize("variant", ["R", "F"])
def test_queues_are_read_from_text_as_well(pbs, variant, monkeypatch):
    pbs.set(variant=variant, queues={"workq": {"max_walltime": 3600}})
    as_json = Pbs().queues()
    old = pbs.home / "old"
    old.mkdir()
    (old / "qstat").write_text(
        f'#!/bin/sh\ncase "$*" in *json*) echo "{{" ;; *) exec {pbs.bin}/qstat "$@" ;; esac\n'
    )
    (old / "qstat").chmod(0o755)
    monkeypatch.setenv("PATH", f"{old}:{os.environ['PATH']}")
    assert Pbs().queues() == as_json
    assert as_json[0].max_walltime_s == 3600


def test_whether_history_is_kept_is_said(pbs):
    assert Pbs().keeps_finished_jobs()[0] is True
    pbs.set(history=False)
    kept, words = Pbs().keeps_finished_jobs()
    assert not kept and "job_history_enable" in words


def test_the_version_is_that_of_a_real_pbs(pbs):
    assert Pbs().version() == "PBS 23.06.06"


def test_look_alikes_are_not_pbs(pbs, monkeypatch):
    other = pbs.home / "other"
    other.mkdir()
    (other / "qstat").write_text("#!/bin/sh\necho 'Unknown option: version' >&2; exit 2\n")
    (other / "qstat").chmod(0o755)
    monkeypatch.setenv("PATH", f"{other}:{os.environ['PATH']}")
    with pytest.raises(SchedulerDown, match="slurm-wlm-torque"):
        Pbs().version()
    with pytest.raises(SchedulerDown, match="Unknown option"):
        Pbs().jobs(["1.vm"])


def test_many_commands_at_once_lose_nothing(pbs):
    pbs.set(hosts={"vm": 8})
    ids, failures = [], []

    def life():
        try:
            job_id = pbs.qsub("sleep 30", "-N many")
            ids.append(job_id)
            Pbs().jobs([job_id])
        except (subprocess.CalledProcessError, SchedulerDown) as error:
            failures.append(error)

    threads = [threading.Thread(target=life) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures and len(set(ids)) == 12
    assert set(Pbs().jobs(ids)) == set(ids)
    Pbs().cancel_and_see(ids)
    assert not pbs.open_jobs()
