"""The command line as a user meets it: what it prints, what it refuses, how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.shell import forked
from tests.warm import Command, command

GOOD = """
app = "synthetic"
site = "threads"
batch_size = 4
[space]
x = {}
y = {}
[objective]
maximize = "value"
subject_to = { error = { at_most = 1.0 } }
[until]
max_runs = 8
[policy]
name = "sobol"
"""


def hpcagent(*words, cwd, **options):
    """The command: runs in a process of their own, all else in a fork of this one."""
    if words[0] != "run" or "--dry-run" in words:
        return forked(*words, cwd=cwd, **options)
    return command(*words, cwd=cwd, **options)


def test_run_status_report_export_and_resume_tell_the_same_story(tmp_path):
    (tmp_path / "my.toml").write_text(GOOD)
    words = [sys.executable, "-m", "hpcagent.cli", "run", "my.toml"]  # as users begin it
    run = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert "best: x = " in run.stdout and "runs/my" in run.stdout and "batch 1: 8/8 runs" in run.stderr
    folder = tmp_path / "runs" / "my"
    assert {"campaign.toml", "app.json", "events.jsonl", "metrics.h5", "work", "report"} <= {
        p.name for p in folder.iterdir()
    }
    status = hpcagent("status", "runs/my", cwd=tmp_path)
    assert status.returncode == 0 and "8 runs" in status.stdout and "stopped: All 8 runs" in status.stdout
    data = json.loads(hpcagent("status", "runs/my", "--json", cwd=tmp_path).stdout)
    assert data["runs"] == 8 and data["best"]["feasible"]
    report = hpcagent("report", "runs/my", cwd=tmp_path)
    assert "progress.png" in report.stdout and (folder / "report" / "plane.png").stat().st_size > 5000
    export = hpcagent("export", "runs/my", "--to", "csv", cwd=tmp_path)
    assert len(Path(tmp_path, export.stdout.strip()).read_text().splitlines()) == 9
    again = hpcagent("resume", "runs/my", "--no-plots", "--set", "until.max_runs=12", cwd=tmp_path)
    assert again.returncode == 0 and "12 runs" in again.stdout


def test_json_output_is_one_object_a_line(tmp_path):
    (tmp_path / "my.toml").write_text(GOOD)
    done = hpcagent("run", "my.toml", "--json", "--no-plots", "--run-dir", "x", cwd=tmp_path)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    kinds = [line["event"] for line in lines]
    assert kinds[0] == "opened" and kinds[-1] == "answer" and kinds.count("batch") == 2
    assert sum(len(line.get("results", [])) for line in lines) == 8


def test_a_dry_run_shows_manifests_and_cost_and_writes_nothing(tmp_path):
    done = hpcagent("run", "lj_tuning", "--dry-run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "first batch (6 runs)" in done.stdout and "node-hours" in done.stdout and "timestep = " in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_sites_apps_and_inputs_are_listed_and_shown(tmp_path):
    assert {"laptop", "threads"} <= {line.split()[0] for line in forked("sites", cwd=tmp_path).stdout.splitlines()}
    assert json.loads(forked("sites", "laptop", cwd=tmp_path).stdout)["kind"] == "local"
    listed = {line.split()[0] for line in forked("apps", cwd=tmp_path).stdout.splitlines()}
    assert {"synthetic", "thermo", "lj_argon", "lj_melt", "eam_cu", "lammps"} <= listed
    schema = json.loads(forked("apps", "lj_argon", "--schema", cwd=tmp_path).stdout)
    assert schema["properties"]["timestep"]["unit"] == "ps"
    assert "variables" in json.loads(forked("apps", "lammps", "--schema", cwd=tmp_path).stdout)["properties"]
    assert "lj_melt" in forked("inputs", cwd=tmp_path).stdout
    forked("inputs", "lj_melt", cwd=tmp_path)
    assert (tmp_path / "in.lj_melt").is_file() and (tmp_path / "lj_melt.toml").is_file()
    assert forked("inputs", "lj_melt", cwd=tmp_path).returncode == 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("max_runs = 8", "max_rusn = 8"), ["max_rusn", "max_runs"]),
        (('policy]\nname = "sobol"', 'policy]\nnmae = "sobol"'), ["nmae"]),
        (('app = "synthetic"', 'app = "synthetc"'), ["synthetc", "synthetic"]),
        (('app = "synthetic"', 'app = "no/such/in.file"'), ["no/such/in.file", "no such"]),
        (('app = "synthetic"', "app = 3"), ["app", "3"]),
        (("x = {}", "x = { low = 0.9, high = 0.1 }"), ["low > high", "0.9"]),
        (("x = {}", "x = { low = nan }"), ["not finite"]),
        (("x = {}", 'x = { low = "small" }'), ["small", "number"]),
        (("x = {}", "z = {}"), ["'z'"]),
        (('maximize = "value"', 'maximize = "valeu"'), ["valeu", "value"]),
        (("at_most = 1.0", "at_mots = 1.0"), ["at_mots", "at_most"]),
        (("at_most = 1.0", "at_most = nan"), ["not finite"]),
        (("batch_size = 4", "batch_size = 0"), ["batch_size=0", "at least 1"]),
        (("batch_size = 4", 'batch_size = "four"'), ["batch_size", "four"]),
        (("batch_size = 4", "batch_sise = 4"), ["batch_sise", "batch_size"]),
        (("x = {}\ny = {}", "x = { value = 0.5 }"), ["nothing varies"]),
        (('"threads"', '"thredas"'), ["thredas", "threads"]),
        (('name = "sobol"', 'name = "sobl"'), ["sobl", "sobol"]),
        (("max_runs = 8", "max_runs = -1"), ["max_runs", "-1"]),
        (("max_runs = 8", "wall_time_s = -5"), ["-5"]),
        (("[until]", "[until"), ["TOML", "line"]),
    ],
)
def test_bad_input_is_one_clear_line_and_exit_code_2(tmp_path, change, words):
    assert change[0] in GOOD
    (tmp_path / "my.toml").write_text(GOOD.replace(*change))
    done = forked("run", "my.toml", cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.startswith("error: ") and len(done.stderr.splitlines()) == 1
    for word in words:
        assert word in done.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("run", "nothing_here"), "no campaign 'nothing_here'"),
        (("run", "missing.toml"), "no such campaign file"),
        (("run", "synthetic", "--site", "nowhere"), "nowhere"),
        (("run", "synthetic", "--set", "seed"), "KEY=VALUE"),
        (("run", "synthetic", "--set", "seed=-1"), "seed=-1"),
        (("run", "synthetic", "--set", "until.max_runs=0"), "max_runs"),
        (("status", "nowhere"), "not the folder of a campaign"),
        (("resume", "nowhere"), "not the folder of a campaign"),
        (("export", ".", "--to", "xlsx"), "xlsx"),
        (("apps", "lj_argn"), "did you mean 'lj_argon'"),
        (("inputs", "lj_argn"), "did you mean 'lj_argon'"),
        (("sites", "laptpo"), "laptop"),
    ],
)
def test_a_wrong_word_on_the_command_line_is_one_clear_line(tmp_path, words, says):
    done = forked(*words, cwd=tmp_path)
    assert done.returncode == 2 and says in done.stderr and "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_campaign_without_a_feasible_point_ends_with_exit_code_3(tmp_path):
    (tmp_path / "my.toml").write_text(GOOD.replace("at_most = 1.0", "at_most = 1e-9"))
    done = hpcagent("run", "my.toml", "--no-plots", cwd=tmp_path)
    assert done.returncode == 3 and "NOT feasible" in done.stdout


@pytest.mark.slow
def test_ctrl_c_prints_how_to_go_on_and_ends_with_130(tmp_path):
    (tmp_path / "my.toml").write_text(
        GOOD.replace("max_runs = 8", "max_runs = 800") + "[fixed]\nrun_time_s = 0.1\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "hpcagent.cli", "run", "my.toml", "--site", "laptop"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    events = tmp_path / "runs" / "my" / "events.jsonl"
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and not (events.exists() and b'"results"' in events.read_bytes()):
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130 and "hpcagent resume runs/my" in errors and "Traceback" not in errors


def test_help_and_version(tmp_path):
    assert "Exit codes" in hpcagent("--help", cwd=tmp_path).stdout
    assert hpcagent("--version", cwd=tmp_path).stdout.startswith("hpcagent 0.")


def test_a_campaign_in_which_no_run_completed_ends_with_exit_code_1(tmp_path):
    text = (
        GOOD.replace('app = "synthetic"', 'app = "lj_argon"')
        .replace("x = {}\ny = {}", "timestep = {}")
        .replace('maximize = "value"', 'maximize = "ns_per_day"')
        .replace("subject_to = { error = { at_most = 1.0 } }", "")
    )
    (tmp_path / "my.toml").write_text(text)
    environment = os.environ | {"HPCAGENT_LAMMPS": "/nowhere/lmp"}
    done = hpcagent("run", "my.toml", "--no-plots", cwd=tmp_path, env=environment)
    assert done.returncode == 1 and "NoExecutable" in done.stdout and "no answer" in done.stdout


SLOW = (
    GOOD.replace("max_runs = 8", "max_runs = 800").replace('"threads"', '"laptop"') + "[fixed]\nrun_time_s = 0.5\n"
)


def wait_for(true, within_s=30.0):
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def has_results(folder):
    events = folder / "events.jsonl"
    return events.exists() and b'"results"' in events.read_bytes()


def test_a_detached_campaign_goes_on_by_itself_and_can_be_followed_and_stopped(tmp_path):
    (tmp_path / "my.toml").write_text(SLOW)
    folder = tmp_path / "runs" / "my"
    done = hpcagent("run", "my.toml", "--detach", cwd=tmp_path)
    assert done.returncode == 0 and "kill -TERM" in done.stdout, done.stderr
    pid = int(done.stdout.split("process ")[1].split()[0])
    try:
        wait_for(lambda: has_results(folder))
        told = json.loads(hpcagent("status", "runs/my", "--json", cwd=tmp_path).stdout)
        assert told["attended"] and told["coordinator"]["pid"] == pid and told["jobs"] == []
        for more in ([], ["--detach"]):
            second = hpcagent("run", "my.toml", *more, cwd=tmp_path)
            assert second.returncode == 1 and f"process {pid}" in second.stderr
        words = ["status", "runs/my", "--follow"]
        follower = Command(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert follower.stdout is not None
        first = [follower.stdout.readline() for _ in range(3)]
        assert "of 800 run(s) so far" in first[0] and f"a coordinator is at it (process {pid}" in first[1]
    finally:
        os.kill(pid, signal.SIGTERM)
    rest, errors = follower.communicate(timeout=30)
    assert follower.returncode == 1 and "batch" in first[2] + rest and "hpcagent resume runs/my" in errors
    assert "stopped by SIGTERM" in (folder / "coordinator.log").read_text()
    status = hpcagent("status", "runs/my", cwd=tmp_path).stdout
    assert "no coordinator is at it" in status and "hpcagent resume runs/my" in status


def test_what_keeps_a_detached_campaign_from_beginning_is_told_at_once_and_leaves_nothing(tmp_path):
    (tmp_path / "my.toml").write_text(GOOD)
    done = hpcagent("run", "my.toml", "--detach", "--inside", cwd=tmp_path)
    assert done.returncode == 2 and "knows no jobs" in done.stderr
    assert not (tmp_path / "runs" / "my" / "coordinator.log").exists()
    wrong = hpcagent("run", "my.toml", "--detach", "--queue", "debug", cwd=tmp_path)
    assert wrong.returncode == 2 and "submits no jobs" in wrong.stderr


def test_following_a_finished_campaign_tells_its_answer_and_leaving_one_is_no_error(tmp_path):
    (tmp_path / "my.toml").write_text(GOOD)
    assert hpcagent("run", "my.toml", "--no-plots", cwd=tmp_path).returncode == 0
    done = hpcagent("status", "runs/my", "--follow", cwd=tmp_path)
    assert done.returncode == 0 and "8 of 8 run(s) so far" in done.stdout and "best: x = " in done.stdout
    kinds = [
        json.loads(line)["event"]
        for line in hpcagent("status", "runs/my", "--follow", "--json", cwd=tmp_path).stdout.splitlines()
    ]
    assert kinds == ["opened", "stopped"]
    assert hpcagent("reap", "runs/my", cwd=tmp_path).stdout == "no job was left\n"


def test_a_dry_run_on_a_cluster_shows_its_job_and_what_the_worst_case_costs(tmp_path):
    done = hpcagent(
        "run", "lj_tuning", "--site", "polaris", "--dry-run", "--blocks", "2", "--set", "until.max_runs=64",
        cwd=tmp_path, env={k: v for k, v in os.environ.items() if "ACCOUNT" not in k},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for words in (
        "executor workers takes the runs: up to 2 job(s) at a time, 1 node(s) each for 1 h 0 min",
        "at worst 1 node-hours: 1 whole job(s)",  # 32 workers of 11 runs of 300 s each: one job of one hour
        "needs an account",
        "a batch has 6 runs, and 64 could go at a time",
        "#PBS -l select=1:ncpus=64:ngpus=4:system=polaris",
        "#PBS -A ACCOUNT",
        "nothing was written or submitted",
    ):
        assert words in done.stdout, done.stdout
    with_account = hpcagent(
        "run", "lj_tuning", "--site", "polaris", "--dry-run", "--account", "mine", "--queue", "debug-scaling",
        "--blocks", "4", cwd=tmp_path,
    ).stdout  # fmt: skip
    assert "#PBS -A mine" in with_account and "max_blocks is 1 in place of 4" in with_account
    assert list(tmp_path.iterdir()) == []


def test_a_new_profile_is_written_and_read_back_and_never_written_over(tmp_path):
    words = ("site", "new", "mine", "--kind", "pbs", "--yes", "--queue", "work", "--cores", "16", "--walltime",
             "02:00:00", "--nodes", "2", "--lammps", "lmp -sf omp", "--worker-init", 'module load "lammps"')  # fmt: skip
    done = hpcagent(*words, cwd=tmp_path)
    assert done.returncode == 0 and "hpcagent doctor --site mine" in done.stdout, done.stderr
    shown = json.loads(hpcagent("sites", "mine", cwd=tmp_path).stdout)
    assert shown["block"] | {"queue": "work", "walltime": "02:00:00", "nodes_per_block": 2} == shown["block"]
    assert shown["apps"]["lammps"]["command"] == ["lmp", "-sf", "omp"]
    assert shown["executors"]["mpi"]["worker_init"] == 'module load "lammps"'
    assert "queue" not in hpcagent("sites", "pbs", cwd=tmp_path).stderr.split("executor")[0]
    again = hpcagent(*words, cwd=tmp_path)
    assert again.returncode == 2 and "is there already" in again.stderr
    bad = hpcagent("site", "new", "other", "--kind", "pbs", "--yes", "--walltime", "2:00", cwd=tmp_path)
    assert (
        bad.returncode == 2 and "HH:MM:SS" in bad.stderr and not (tmp_path / "site_profiles/other.toml").exists()
    )


def test_a_new_profile_can_be_asked_for_without_options(tmp_path):
    done = hpcagent("site", "new", "--kind", "local", cwd=tmp_path, input="desk\n\nmodule load lammps\n")
    assert done.returncode == 0, done.stderr
    shown = json.loads(hpcagent("sites", "desk", cwd=tmp_path).stdout)
    assert shown["kind"] == "local" and shown["executors"]["workers"]["worker_init"] == "module load lammps"


def test_the_doctor_looks_at_this_machine_and_says_what_is_wrong(tmp_path):
    done = hpcagent("doctor", "--site", "threads", "--json", cwd=tmp_path)
    found = {c["what"]: c["status"] for c in map(json.loads, done.stdout.splitlines())}
    assert done.returncode == 0 and found["run directory"] == found["executor workers"] == "ok"
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "runs").write_text("in the way")
    bad = hpcagent("doctor", "--site", "threads", cwd=tmp_path)
    assert bad.returncode == 1 and "FAIL  run directory" in bad.stdout
    away = hpcagent("doctor", "--site", "slurm", "--no-submit", cwd=tmp_path, env=os.environ | {"PATH": ""})
    assert away.returncode == 1 and "FAIL  scheduler" in away.stdout and "sbatch" in away.stdout


def test_the_coordinator_has_one_thread_for_sums_and_its_workers_those_of_the_profile(tmp_path):
    (tmp_path / "mine.toml").write_text('kind = "local"\n[executors.workers]\ncores_per_worker = 2\n')
    code = (
        "import os, hpcagent.cli as c; c._few_threads(); "
        "from hpcagent.sites.opening import open_site\n"
        "with open_site('mine.toml', private=True) as site:\n"
        "    print(os.environ['OMP_NUM_THREADS'], site.submit(os.getenv, 'OMP_NUM_THREADS').result())"
    )
    environment = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, env=environment, check=True
    )
    assert done.stdout.split() == ["1", "2"]


def test_a_name_that_is_taken_is_refused_before_the_questions_or_asked_for_again(tmp_path):
    (tmp_path / "site_profiles").mkdir()
    (tmp_path / "site_profiles/desk.toml").write_text('kind = "local"\n')
    given = hpcagent("site", "new", "desk", "--kind", "local", cwd=tmp_path, input="\n\n")
    assert given.returncode == 2 and "is there already" in given.stderr and given.stdout == ""
    typed = hpcagent("site", "new", "--kind", "local", cwd=tmp_path, input="desk\ndesk two\ndesk2\n\n\n")
    assert typed.returncode == 0 and (tmp_path / "site_profiles/desk2.toml").exists(), typed.stderr
    assert "is there already" in typed.stderr and "'desk two' cannot be the name" in typed.stderr
