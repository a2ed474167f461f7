"""What is read out of the words of a real OpenPBS 23.06.06, as they were captured; no PBS is asked."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from parsl.launchers import SimpleLauncher

from hpcagent.sites.ledger import Ledger, read_ledger
from hpcagent.sites.schedulers import base
from hpcagent.sites.schedulers.answers import Job
from hpcagent.sites.schedulers.base import SchedulerDown
from hpcagent.sites.schedulers.pbs import Pbs
from hpcagent.sites.schedulers.submission import Refused, Sent
from hpcagent.sites.workers.pbs_blocks import PbsBlocks

FINISHED = """{
	"timestamp":	1795326766,
	"pbs_version":	"23.06.06",
	"pbs_server":	"SRV",
	"Jobs":	{
		"0.SRV":	{
			"Job_Name":	"j.sh",
			"Job_Owner":	"USER@LOGIN",
			"resources_used":	{
				"cpupercent":	0,
				"cput":	"00:00:00",
				"mem":	"0kb",
				"ncpus":	1,
				"vmem":	"0kb",
				"walltime":	"00:00:01"
			},
			"job_state":	"F",
			"queue":	"workq",
			"server":	"SRV",
			"Checkpoint":	"u",
			"ctime":	"Sun Nov 22 05:48:43 2026",
			"Error_Path":	"LOGIN:/home/USER/j.sh.e0",
			"exec_host":	"N1/0",
			"exec_vnode":	"(N1:ncpus=1)",
			"Hold_Types":	"n",
			"mtime":	"Sun Nov 22 05:48:46 2026",
			"qtime":	"Sun Nov 22 05:48:43 2026",
			"Rerunable":	"True",
			"Resource_List":	{
				"ncpus":	1,
				"nodect":	1,
				"place":	"pack",
				"select":	"1:ncpus=1"
			},
			"stime":	"Sun Nov 22 05:48:43 2026",
			"obittime":	"Sun Nov 22 05:48:46 2026",
			"jobdir":	"/home/USER",
			"substate":	92,
			"comment":	"Job run at Sun Nov 22 at 05:48 on (N1:ncpus=1) and finished",
			"etime":	"Sun Nov 22 05:48:43 2026",
			"run_count":	1,
			"Stageout_status":	1,
			"Exit_status":	0,
			"Submit_arguments":	"j.sh",
			"history_timestamp":	1795326526,
			"project":	"_pbs_project_default",
			"Submit_Host":	"LOGIN"
		}
	}
}"""
"""`qstat -x -f -F json 0` of a first job: what was left out of it here is read by nobody."""
AT = 1795326526.0  # Sun Nov 22 05:48:46 2026 UTC, as history_timestamp has it
QUEUES = {
    "one": {
        "queue_type": "Execution",
        "total_jobs": 0,
        "state_count": "Transit:0 Queued:0 Held:0 Waiting:0 Running:0 Exiting:0 Begun:0 ",
        "resources_assigned": {"ncpus": 0, "nodect": 0},
        "enabled": "True",
        "started": "True",
        "max_queued": "[u:PBS_GENERIC=2]",
        "max_run": "[u:PBS_GENERIC=1]",
    },
    "short": {
        "queue_type": "Execution",
        "total_jobs": 3,
        "state_count": "Transit:0 Queued:2 Held:0 Waiting:0 Running:1 Exiting:0 Begun:0 ",
        "resources_max": {"ncpus": 8, "nodect": 2, "walltime": "00:10:00"},
        "enabled": "True",
        "started": "True",
    },
    "route": {"queue_type": "Route", "route_destinations": "short", "enabled": "True", "started": "True"},
}
SERVER = {"server_state": "Active", "total_jobs": 4, "default_queue": "short", "job_history_enable": "True"}


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


class Told(Pbs):
    """A PBS whose commands answer as `answers` says: {command, or its beginning: (stdout, stderr, exit code)}."""

    def __init__(self, answers: dict[str, tuple[str, str, int]]) -> None:
        super().__init__()
        self.answers, self.asked = answers, []

    def _ask(self, command: Any, **rest: Any) -> subprocess.CompletedProcess[str]:
        words = " ".join(command)
        self.asked.append(words)
        best = max((k for k in self.answers if words.startswith(k)), key=len)
        out, err, code = self.answers[best]
        return subprocess.CompletedProcess(list(command), code, out, err)


def record(**changed: Any) -> str:
    """The captured record with other fields; None leaves one out."""
    told = json.loads(FINISHED)
    job = told["Jobs"]["0.SRV"]
    job.update(changed)
    told["Jobs"]["0.SRV"] = {k: v for k, v in job.items() if v is not None}
    return json.dumps(told)


def job(**changed: Any) -> Job:
    return Told({"qstat": (record(**changed), "", 0)}).jobs(["0.SRV"])["0.SRV"]


def refusal(words: str, code: int, tmp_path: Path) -> Refused:
    with pytest.raises(Refused) as refused:
        Told({"qsub": ("", words, code)}).submit(tmp_path / "x.sh")
    return refused.value


# ---- a job


def test_the_captured_record_of_a_finished_job():
    found = Told({"qstat": (FINISHED, "", 0)}).jobs(["0.SRV"])["0.SRV"]
    assert (found.state, found.name, found.exit_code, found.hosts) == ("completed", "j.sh", 0, ("N1",))
    assert (found.started_at, found.ends_at) == (AT - 3, AT)
    assert (found.owner, found.submitted_at) == ("USER", AT - 3)


@pytest.mark.parametrize(
    ("exec_host", "hosts"),
    [("N1/0", ("N1",)), ("N1/1*2", ("N1",)), ("N1/0*2+N2/0*2", ("N1", "N2")), ("N1/0*2+N1/1*2", ("N1",))],
)
def test_hosts_with_and_without_a_number_of_cores(exec_host, hosts):
    assert job(exec_host=exec_host).hosts == hosts


def test_a_timeout_ended_when_the_server_was_told_and_not_with_its_walltime():
    """Limits are enforced late: of 80 s of walltime 99 to 106 s are charged."""
    late = job(
        Exit_status=-29,
        substate=93,
        comment="Job run at Sun Nov 22 at 05:48 on (N1:ncpus=1) and exceeded resource walltime",
        Resource_List={"walltime": "00:01:20"},
        stime="Sun Nov 22 05:48:43 2026",
        obittime="Sun Nov 22 05:50:25 2026",
    )
    assert late.state == "timeout" and late.ends_at - late.started_at == 102


@pytest.mark.parametrize(
    ("left_out", "seconds"),
    [
        ({"obittime": None}, 3.0),  # e.g. deleted by force: history_timestamp
        ({"obittime": None, "history_timestamp": None}, 1.0),  # resources_used.walltime
        ({"obittime": None, "history_timestamp": None, "resources_used": None}, 3.0),  # mtime
    ],
)
def test_without_its_obituary_the_end_is_the_next_best(left_out, seconds):
    found = job(**left_out)
    assert found.ends_at - found.started_at == seconds


RAN = "Job run at Sun Nov 22 at 05:52 on (N1:ncpus=2) and "


@pytest.mark.parametrize(
    ("status", "substate", "comment", "state", "code"),
    [
        (271, 91, RAN + "terminated by USER@LOGIN", "cancelled", -15),
        (265, 93, RAN + "failed", "failed", -9),
        (-29, 93, RAN + "exceeded resource walltime", "timeout", None),
        (-29, 93, "", "timeout", None),  # a server that was restarted meanwhile
        (-4, 93, RAN + "failed", "node_failed", None),
        (-4, 91, RAN + "terminated", "node_failed", None),  # a qdel was tried while its node was away
        (-5, 93, "", "node_failed", None),
        (-6, 93, "", "node_failed", None),
        (-14, 93, "", "node_failed", None),
        (-20, 93, "", "node_failed", None),
        (-3, 93, "", "failed", None),
        (None, 91, RAN + "terminated", "cancelled", None),  # by force
    ],
)
def test_how_jobs_end(status, substate, comment, state, code):
    found = job(Exit_status=status, substate=substate, comment=comment or None)
    assert (found.state, found.exit_code) == (state, code) and found.reason


def test_a_job_of_a_dead_node_is_deleted_by_force_and_the_node_has_failed():
    answers = {
        "qdel 98": ("", "qdel: Server could not connect to MOM 98.SRV\n", 222),
        "qdel -W force 98": ("", "", 0),
    }
    there = Told(answers)
    there.cancel(["98.SRV"])
    assert there.asked == ["qdel 98.SRV", "qdel -W force 98.SRV"]
    ended = json.loads(record(Exit_status=None, obittime=None, substate=91, comment=RAN + "terminated"))
    ended["Jobs"] = {"98.SRV": ended["Jobs"]["0.SRV"]}
    there.answers["qstat"] = json.dumps(ended), "", 0
    found = there.jobs(["98.SRV"])["98.SRV"]
    assert found.state == "node_failed" and found.reason.startswith("its node did not answer")


def test_a_job_that_waits_for_another_says_so():
    waits = {"job_state": "H", "substate": 22, "Hold_Types": "s", "comment": None, "stime": None, "obittime": None}
    waiting = job(**waits, depend="afterany:6.SRV@SRV")
    assert (waiting.state, waiting.reason) == ("held", "waits for job 6.SRV")
    assert job(**waits, depend="afterany:6.SRV@SRV:7.SRV@SRV").reason == "waits for job 6.SRV, 7.SRV"
    assert job(**waits, depend="beforeany:7.SRV@SRV").reason == "held by the system"
    by_hand = "Job held by USER on Sun Nov 22 05:59:22 2026"
    assert job(**waits | {"Hold_Types": "u", "comment": by_hand}).reason == by_hand
    assert job(**waits | {"Hold_Types": "u"}).reason == "held by its user"  # qsub -h


def test_an_id_that_is_illegally_formed_is_not_gone():
    """Said of jobs that run, where the name of the server is not known."""
    words = "illegally formed job identifier: 152.SRV\n"
    there = Told({"qdel": ("", f"qdel: {words}", 1), "qstat": ("", f"qstat: {words}", 1)})
    with pytest.raises(SchedulerDown, match="illegally formed"):
        there.cancel(["152.SRV"])
    with pytest.raises(SchedulerDown, match="illegally formed"):
        there.jobs(["152.SRV"])


HEADER = '{"timestamp":\t1795326766,\n"pbs_version":\t"23.06.06",\n"pbs_server":\t"SRV"}'


@pytest.mark.parametrize(
    ("ask", "out", "words", "code"),
    [
        ("jobs", HEADER, "Connection refused\nqstat: cannot connect to server SRV (errno=15010)", 255),
        ("jobs", HEADER, "Communication failure.\nqstat: cannot connect to server SRV (errno=15031)", 255),
        ("cancel", "", "Connection refused\nCouldn't connect to cluster: SRV", 162),
        ("jobs", "", "pbsconf error: pbs conf variables not found: PBS_HOME PBS_EXEC PBS_SERVER", 1),
        ("cancel", "", "pbsconf error: pbs conf variables not found: PBS_HOME PBS_EXEC PBS_SERVER", 1),
    ],
)
def test_a_server_that_is_away_says_nothing_of_jobs(ask, out, words, code):
    there = Told({"q": (out, words, code)})
    with pytest.raises(SchedulerDown, match=r"onnect|pbsconf"):
        getattr(there, ask)(["40.SRV"])


@pytest.mark.parametrize(
    ("words", "code", "transient", "unheard"),
    [
        ("qsub: would exceed queue generic's per-user limit", 38, True, False),
        ("Connection refused\nqsub: cannot connect to server SRV (errno=15010)", 162, True, False),
        ("Communication failure.\nqsub: cannot connect to server SRV (errno=15031)", 162, True, True),
        ("qsub: project nosuch is not valid; see sbank", 32, False, False),
        ("qsub: no hours are left; try again next month", 32, False, False),
        ("qsub: illegal -o value\nusage: qsub [-a date_time]", 2, False, False),
        ("pbsconf error: pbs conf variables not found: PBS_HOME PBS_EXEC PBS_SERVER", 1, False, False),
    ],
)
def test_a_refusal_is_final_or_passes_and_leaves_no_job_behind(tmp_path, words, code, transient, unheard):
    refused = refusal(words, code, tmp_path)
    assert (refused.transient, refused.details["unheard"]) == (transient, unheard)
    assert not refused.details["unclear"]  # what passes is waited out
    assert words.splitlines()[-1] in str(refused)


# ---- limits


def places(there: Told, queue: str | None = None, **more: Any) -> Any:
    return there.places(queue, **more)


def limited(queue: dict[str, Any], server: dict[str, Any], own: int = 0) -> Told:
    ids = "".join(f"{n}.SRV\n" for n in range(own))
    queues = {**QUEUES, "short": {**QUEUES["short"], **queue}}
    return Told(
        {
            "qstat -Q": (json.dumps({"Queue": queues}), "", 0),
            "qstat -B": (json.dumps({"Server": {"SRV": {**SERVER, **server}}}), "", 0),
            "qselect": (ids, "", 0),
            "qselect -u me -s Q": ("", "", 0),
        }
    )


@pytest.fixture
def me(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpcagent.sites.schedulers.pbs_queues.user_name", lambda uid: "me")
    monkeypatch.setattr("hpcagent.sites.schedulers.pbs_queues._group", lambda: "ours")


def test_the_captured_limits_of_a_queue(me):
    there = limited({}, {}, own=1)
    found = places(there, "one")
    assert (found.most, found.free, found.running) == (2, 1, 1)
    assert found.words == (
        "max_queued = [u:PBS_GENERIC=2] of queue one",
        "max_run = [u:PBS_GENERIC=1] of queue one",
    )
    assert "qselect -u me -q one" in there.asked and len(there.asked) == 3  # commands of PBS, asked before jobs
    free = places(there, "short")
    assert (free.most, free.free, free.running, free.words) == (None, None, None, ())
    assert sum(words.startswith("qselect") for words in there.asked) == 1  # where there are no limits, none count


def test_a_user_without_an_entry_in_the_passwd_database_has_the_limits_of_everybody(monkeypatch):
    def nobody(uid: int) -> Any:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr(pwd, "getpwuid", nobody)
    there = limited({}, {})
    assert places(there, "one").most == 2 and f"qselect -u {os.getuid()} -q one" in there.asked
    assert there.another(Job("1", "running", "x", owner=str(os.getuid())), Sent("x")) == ""
    assert "'s" in there.another(Job("1", "running", "x", owner="root2"), Sent("x"))


@pytest.mark.parametrize(
    ("queue", "server", "most", "free"),
    [
        ({"max_queued": "[u:PBS_GENERIC=5]"}, {"max_queued": "[u:PBS_GENERIC=3]"}, 3, 1),
        ({"max_queued": "[u:PBS_GENERIC=5],[u:me=9],[u:you=1]"}, {}, 9, 7),
        ({"max_queued": "[o:PBS_ALL=4]"}, {}, 4, 1),  # three jobs of anybody's are in the queue
        ({}, {"max_queued": "[o:PBS_ALL=10]"}, 10, 6),
        ({"max_queued": "[g:ours=4],[g:theirs=1]"}, {}, 4, 2),
        ({"max_queued": "[p:PBS_GENERIC=4]"}, {}, 4, 2),
        ({"max_queued": "[p:_pbs_project_default=2]"}, {}, 2, 0),
        ({"queued_jobs_threshold": "[o:PBS_ALL=5]"}, {}, None, 3),
        ({"max_queuable": 5}, {}, 5, 2),
    ],
)
def test_limits_of_users_groups_projects_and_all_of_queue_and_server(me, queue, server, most, free):
    found = places(limited(queue, server, own=2), "short")
    assert (found.most, found.free) == (most, free)


def test_a_routing_queue_has_the_limits_of_where_it_leads(me):
    found = places(limited({"max_queued": "[u:PBS_GENERIC=3]"}, {}, own=1), "route")
    assert (found.most, found.free) == (3, 2)
    assert places(limited({"max_run": "[u:PBS_GENERIC=3]"}, {}), None).running == 3  # the default queue


# ---- blocks


@pytest.fixture
def blocks(tmp_path: Path) -> PbsBlocks:
    made = PbsBlocks(launcher=SimpleLauncher(), walltime="00:10:00")
    made.script_dir = str(tmp_path)
    made.prepare(Told({}), Ledger(tmp_path / "jobs.jsonl"), poll_s=1.0, nodes=2)
    return made


@pytest.mark.parametrize("words", ["qsub: would exceed queue generic's per-user limit", "Connection refused"])
def test_a_job_that_was_refused_is_not_open_in_the_ledger(blocks, words):
    blocks.scheduler.answers = {"qsub": ("", words, 38), "q": ("", "Connection refused", 162)}
    with pytest.raises(Refused):
        blocks.submit("true", 1)
    (entry,) = read_ledger(blocks.ledger.path)
    assert entry.ended == "refused" and words in entry.reason
    assert [words.split()[0] for words in blocks.scheduler.asked] == ["qsub"]


def running(job_id: str, **changed: Any) -> dict[str, Any]:
    told = json.loads(record(job_state="R", substate=42, Exit_status=None, obittime=None, history_timestamp=None))
    return {job_id: {**told["Jobs"]["0.SRV"], **changed}}


def test_a_qdel_that_failed_hides_nothing_of_how_jobs_stand(blocks):
    now = time.strftime("%a %b %d %H:%M:%S %Y")
    there = blocks.scheduler
    there.answers = {"qdel": ("", "qdel: Unauthorized Request  1.SRV", 7)}
    for job_id in ("1.SRV", "2.SRV"):
        there.answers["qsub"] = f"{job_id}\n", "", 0
        blocks.submit("true", 1)
    names = [blocks.known()[job_id].name for job_id in ("1.SRV", "2.SRV")]
    about = {"ctime": now, "stime": now, "Job_Owner": f"{base._me()[0]}@LOGIN"}
    shown = running("1.SRV", Job_Name=names[0], **about)
    shown |= {"2.SRV": {**json.loads(FINISHED)["Jobs"]["0.SRV"], "Job_Name": names[1], **about, "Exit_status": 3}}
    there.answers["qstat"] = json.dumps({"Jobs": shown}), "", 0
    assert blocks.cancel(["1.SRV"]) == [False]
    seen = blocks.look()
    assert (seen["1.SRV"].state, seen["2.SRV"].state) == ("running", "failed")
    assert blocks.down is None and "Unauthorized" in blocks.unended
    asked = len(there.asked)
    with pytest.raises(base.Unverified, match=r"1\.SRV is running.*Unauthorized") as unverified:
        there.cancel_and_see({"1.SRV": Sent(names[0])}, within_s=0.3)
    assert unverified.value.details["ended"] == {} and len(there.asked) > asked


def test_node_hours_are_those_from_start_to_end_and_said_to_be_estimated_where_nobody_tells(tmp_path):
    ledger = Ledger(tmp_path / "jobs.jsonl")
    now = time.time()
    ends = {
        "charged": Job("1", "timeout", started_at=now - 7200, ends_at=now - 3600),
        "never ran": Job("2", "failed", ends_at=now - 10),
        "unknown": Job("3", "failed", started_at=now - 3600),
    }
    for name, end in ends.items():
        ledger.submitting(name, "pbs", nodes=2)
        ledger.submitted(name, end.job_id)
        ledger.ended(name, end)
    charged, never, unknown = read_ledger(ledger.path)
    assert (charged.node_hours, charged.estimated) == (pytest.approx(2.0), False)
    assert (never.node_hours, never.estimated) == (0.0, False)
    assert unknown.node_hours == pytest.approx(2.0, abs=0.01) and unknown.estimated
