"""The fake PBS says what a real OpenPBS 23.06.06 said, as captured on four hosts."""

from __future__ import annotations

import json
import re
import time

import pytest

KEYS = [
    "Job_Name",
    "Job_Owner",
    "resources_used",
    "job_state",
    "queue",
    "server",
    "Checkpoint",
    "ctime",
    "Error_Path",
    "exec_host",
    "exec_vnode",
    "Hold_Types",
    "Join_Path",
    "Keep_Files",
    "Mail_Points",
    "mtime",
    "Output_Path",
    "Priority",
    "qtime",
    "Rerunable",
    "Resource_List",
    "stime",
    "obittime",
    "jobdir",
    "substate",
    "Variable_List",
    "comment",
    "etime",
    "run_count",
    "Stageout_status",
    "Exit_status",
    "Submit_arguments",
    "history_timestamp",
    "project",
    "Submit_Host",
]
"""Of a finished job, in the order of the capture."""


def record(pbs, job_id):
    told = json.loads(pbs.run("qstat", "-x", "-f", "-F", "json", job_id, check=False).stdout)
    return told["Jobs"][job_id]


def until(true, within_s=120.0):
    give_up = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < give_up
        time.sleep(0.05)


def test_a_finished_record_has_the_keys_and_the_form_of_the_capture(pbs):
    job_id = pbs.qsub("exit 0")
    assert job_id == "0.vm"  # a fresh server begins with it
    pbs.wait(job_id)
    assert list(record(pbs, job_id)) == KEYS
    as_m = pbs.run("qstat", "-x", "-f", "-F", "json", "0").stdout
    assert re.match(
        r'\{\n\t"timestamp":\t\d+,\n\t"pbs_version":\t"23.06.06",\n\t"pbs_server":\t"vm",\n\t"Jobs":\t\{\n', as_m
    )
    pbs.set(variant="R")
    assert '\n            "job_state":"F",\n' in pbs.run("qstat", "-x", "-f", "-F", "json", "0").stdout


def test_hosts_have_a_number_for_each_job_and_cores_where_there_are_several(pbs):
    pbs.set(hosts={"N1": 4, "N2": 2})
    jobs = [
        pbs.qsub("sleep 30"),
        pbs.qsub("sleep 30", "-l select=1:ncpus=2"),
        pbs.qsub("sleep 30", "-l select=1:ncpus=1+1:ncpus=2", "-l place=scatter"),
    ]
    for job_id in jobs:
        pbs.wait(job_id, "R")
    assert [record(pbs, job_id)["exec_host"] for job_id in jobs] == ["N1/0", "N1/1*2", "N1/2+N2/0*2"]
    pbs.run("qdel", *jobs)


def test_in_its_first_second_a_job_has_used_nothing(pbs):
    pbs.set(starting_s=30.0)
    job_id = pbs.qsub("sleep 30")
    pbs.wait(job_id, "R")
    first = record(pbs, job_id)
    assert first["substate"] == 41 and not {"resources_used", "jobdir"} & set(first)
    pbs.set(starting_s=0.0, poll_s=10.0)
    second = record(pbs, job_id)
    assert (second["substate"], second["resources_used"]["walltime"]) == (42, "00:00:00")
    pbs.run("qdel", job_id)


@pytest.mark.parametrize(
    ("command", "words", "code"),
    [
        ("qstat -x -f -F json 40", "Connection refused\nqstat: cannot connect to server vm (errno=15010)\n", 255),
        ("qdel 9", "Connection refused\nCouldn't connect to cluster: vm\n", 162),
        ("qsub x.sh", "Connection refused\nqsub: cannot connect to server vm (errno=15010)\n", 162),
        ("pbsnodes -a -F json", "Connection refused\npbsnodes: cannot connect to server vm, error=15010\n", 1),
        ("qselect -u x", "Connection refused\nqselect: cannot connect to server vm (errno=15010)\n", 162),
    ],
)
def test_a_server_that_is_away(pbs, command, words, code):
    pbs.kill_server()
    done = pbs.run(*command.split(), check=False)
    assert (done.stderr, done.returncode) == (words, code)
    if command.startswith("qstat"):
        assert list(json.loads(done.stdout)) == ["timestamp", "pbs_version", "pbs_server"]
        pbs.set(down="going")
        done = pbs.run("qstat", "-x", "-f", "-F", "json", "40", "41", check=False)
        assert done.stderr == "Communication failure.\nqstat: cannot connect to server vm (errno=15031)\n" * 2


def test_a_block_is_shown_running_after_its_processes_have_gone(pbs):
    """As where the job's shell dies before its workers: mom looks again only at its next poll."""
    pbs.set(end_lag_s=1.5)
    job_id = pbs.qsub("trap 'sleep 0.4; exit 0' TERM; sleep 60 & wait")
    pid = pbs.wait(job_id, "R")["pid"]
    began = time.time()
    pbs.run("qdel", job_id)
    assert pbs.run("qdel", job_id).stderr == ""  # again: rc 0, silent
    until(lambda: not any(f"/{job_id}.SC" in words for words in pbs.processes().values()))
    assert pid not in pbs.processes() and pbs.jobs()[job_id]["state"] == "R"
    ended = pbs.wait(job_id)
    assert ended["mtime"] - began > 1.5
    assert (ended["exit_status"], ended["substate"]) == (271, 91)
    assert re.fullmatch(r"Job run at .* on \(vm:ncpus=1\) and terminated by .*@login", ended["comment"])


def test_the_shell_killed_by_hand(pbs):
    job_id = pbs.qsub("sleep 60")
    pid = pbs.wait(job_id, "R")["pid"]
    pbs.run("kill", "-9", str(pid))
    ended = pbs.wait(job_id)
    assert (ended["exit_status"], ended["substate"]) == (265, 93) and ended["comment"].endswith("and failed")


@pytest.mark.parametrize(("plain_first", "by"), [(False, ""), (True, " by")])
def test_a_job_of_a_dead_node_goes_by_force_only(pbs, plain_first, by):
    job_id = pbs.qsub("sleep 60")
    pbs.wait(job_id, "R")
    pbs.kill_node("vm")
    if plain_first:
        refused = pbs.run("qdel", job_id, check=False)
        assert (refused.returncode, refused.stderr) == (222, f"qdel: Server could not connect to MOM {job_id}\n")
    assert pbs.jobs()[job_id]["state"] == "R"
    pbs.run("qdel", "-W", "force", job_id)
    ended = record(pbs, job_id)
    assert (ended["job_state"], ended["substate"], "Exit_status" in ended) == ("F", 91, False)
    assert ended["comment"].partition("and terminated")[2][:3] == by


@pytest.mark.parametrize(("plain_first", "words", "substate"), [(False, "failed", 93), (True, "terminated", 91)])
def test_a_node_that_comes_back_has_lost_its_jobs(pbs, plain_first, words, substate):
    job_id = pbs.qsub("sleep 60")
    pid = pbs.wait(job_id, "R")["pid"]
    pbs.kill_node("vm")
    until(lambda: pid not in pbs.processes())
    if plain_first:
        pbs.run("qdel", job_id, check=False)
    pbs.start_node("vm")
    ended = pbs.wait(job_id)
    assert (ended["exit_status"], ended["substate"]) == (-4, substate) and ended["comment"].endswith(
        f"and {words}"
    )


def test_a_node_that_is_down_gets_jobs_until_the_server_has_noticed(pbs):
    pbs.set(hosts={"N1": 1, "N2": 1}, shown_down_s=3600.0)
    pbs.kill_node("N1")
    assert json.loads(pbs.run("pbsnodes", "-a", "-F", "json").stdout)["nodes"]["N1"]["state"] == "free"
    job_id = pbs.qsub("sleep 30")
    assert pbs.wait(job_id, "R")["hosts"] == [["N1", 1]]
    pbs.set(shown_down_s=0.0)
    until(lambda: pbs.jobs()[job_id]["run_count"] == 2)
    assert pbs.jobs()[job_id]["hosts"] == [["N2", 1]]
    assert json.loads(pbs.run("pbsnodes", "-a", "-F", "json").stdout)["nodes"]["N1"]["state"] == "down"
    pbs.run("qdel", job_id)


def test_jobs_that_wait_for_each_other(pbs):
    first = pbs.qsub("sleep 60")
    second = pbs.qsub("exit 0", f"-W depend=afterany:{first}")
    told = record(pbs, second)
    assert (told["job_state"], told["substate"], told["Hold_Types"]) == ("H", 22, "s") and "comment" not in told
    assert told["depend"] == f"afterany:{first}@vm"
    assert record(pbs, first)["depend"] == f"beforeany:{second}@vm"
    pbs.wait(first, "R")
    pbs.run("qdel", first)
    pbs.wait(second)
    assert "depend" not in record(pbs, first) and "depend" not in record(pbs, second)
    held = record(pbs, pbs.qsub("exit 0", "-h"))
    assert (held["substate"], held["Hold_Types"]) == (20, "u") and "comment" not in held
    pbs.run("qdel", "2")


def test_limits_and_why_jobs_wait(pbs):
    pbs.set(
        hosts={"vm": 4},
        queues={
            "workq": {"max_queued": "[u:PBS_GENERIC=2]", "max_run": "[u:PBS_GENERIC=1]"},
            "stopped": {"started": False},
            "route": {"route": "stopped"},
        },
    )
    jobs = [pbs.qsub("sleep 60") for _ in range(2)]
    pbs.wait(jobs[0], "R")
    until(lambda: pbs.jobs()[jobs[1]]["comment"])
    assert pbs.jobs()[jobs[1]]["comment"] == "Not Running: User has reached queue workq running job limit."
    refused = pbs.run("qsub", str(pbs.home / "scripts" / "job0.sh"), check=False)
    assert (refused.returncode, refused.stderr) == (38, "qsub: would exceed queue generic's per-user limit\n")
    routed = pbs.qsub("sleep 60", "-q route")
    assert record(pbs, routed)["queue"] == "stopped"
    until(lambda: pbs.jobs()[routed]["comment"] == "Not Running: Queue not started.")
    about = json.loads(pbs.run("qstat", "-Q", "-f", "-F", "json").stdout)["Queue"]
    assert about["workq"]["max_queued"] == "[u:PBS_GENERIC=2]"
    assert about["workq"]["state_count"] == (
        "Transit:0 Queued:1 Held:0 Waiting:0 Running:1 Exiting:0 Begun:0 "  # as it is, with the space
    )
    assert (about["route"]["queue_type"], about["route"]["route_destinations"]) == ("Route", "stopped")
    pbs.run("qdel", *jobs, routed)


def test_an_array(pbs):
    job_id = pbs.qsub("sleep 30", "-J 0-2")
    assert job_id == "0[].vm"
    pbs.wait(job_id, "B")
    told = record(pbs, job_id)
    assert (told["substate"], told["array"], told["array_indices_remaining"]) == (70, "True", "-")
    assert told["array_state_count"] == "Queued:0 Running:3 Exiting:0 Expired:0"
    assert told["comment"].startswith("Job Array Began at ") and told["Error_Path"].endswith(".^array_index^")
    assert pbs.run("qselect", "-u", pbs.user).stdout == "0[].vm\n"
    pbs.run("qdel", job_id)
    pbs.wait(job_id)


def test_refusals_and_what_is_wrong_with_ids(pbs):
    script = pbs.home / "x.sh"
    script.write_text("#PBS -o /somewhere/Zürich\nexit 0\n")
    refused = pbs.run("qsub", str(script), check=False)
    assert refused.returncode == 2 and refused.stderr.startswith("qsub: illegal -o value\nusage: ")
    ended = pbs.qsub("exit 0")
    pbs.wait(ended)
    both = pbs.run("qstat", "-f", "-F", "json", "999999", ended, check=False)
    assert both.returncode == 35 and len(both.stderr.splitlines()) == 2
    word = pbs.run("qstat", "-x", "-f", "-F", "json", ended, "nonsense", check=False)
    assert word.returncode == 170 and list(json.loads(word.stdout)["Jobs"]) == [ended]
    pbs.set(history=False)
    never = pbs.run("qstat", "-x", "-f", "-F", "json", "0", check=False)
    assert (never.returncode, never.stderr) == (0, "qstat: PBS is not configured to maintain job history 0.vm\n")
    pbs.set(conf=False)
    lost = pbs.run("qstat", "-f", check=False)
    assert lost.returncode == 1 and lost.stderr.startswith("pbsconf error: pbs conf variables not found: PBS_HOME")
