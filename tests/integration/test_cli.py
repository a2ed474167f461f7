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
    return subprocess.run(
        [sys.executable, "-m", "hpcagent.cli", *map(str, words)],
        cwd=cwd,
        capture_output=True,
        text=True,
        **options,
    )


def test_run_status_report_export_and_resume_tell_the_same_story(tmp_path):
    (tmp_path / "my.toml").write_text(GOOD)
    run = hpcagent("run", "my.toml", cwd=tmp_path)
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
    again = hpcagent("resume", "runs/my", "--set", "until.max_runs=12", cwd=tmp_path)
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
    assert {"laptop", "threads"} <= {
        line.split()[0] for line in hpcagent("sites", cwd=tmp_path).stdout.splitlines()
    }
    assert json.loads(hpcagent("sites", "laptop", cwd=tmp_path).stdout)["kind"] == "local"
    listed = {line.split()[0] for line in hpcagent("apps", cwd=tmp_path).stdout.splitlines()}
    assert {"synthetic", "thermo", "lj_argon", "lj_melt", "eam_cu", "lammps"} <= listed
    schema = json.loads(hpcagent("apps", "lj_argon", "--schema", cwd=tmp_path).stdout)
    assert schema["properties"]["timestep"]["unit"] == "ps"
    assert "variables" in json.loads(hpcagent("apps", "lammps", "--schema", cwd=tmp_path).stdout)["properties"]
    assert "lj_melt" in hpcagent("inputs", cwd=tmp_path).stdout
    hpcagent("inputs", "lj_melt", cwd=tmp_path)
    assert (tmp_path / "in.lj_melt").is_file() and (tmp_path / "lj_melt.toml").is_file()
    assert hpcagent("inputs", "lj_melt", cwd=tmp_path).returncode == 2


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
    done = hpcagent("run", "my.toml", cwd=tmp_path)
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
    done = hpcagent(*words, cwd=tmp_path)
    assert done.returncode == 2 and says in done.stderr and "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_campaign_without_a_feasible_point_ends_with_exit_code_3(tmp_path):
    (tmp_path / "my.toml").write_text(GOOD.replace("at_most = 1.0", "at_most = 1e-9"))
    done = hpcagent("run", "my.toml", cwd=tmp_path)
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
    _, errors = process.communicate(timeout=20)
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
    done = hpcagent("run", "my.toml", cwd=tmp_path, env=os.environ | {"HPCAGENT_LAMMPS": "/nowhere/lmp"})
    assert done.returncode == 1 and "NoExecutable" in done.stdout and "no answer" in done.stdout
