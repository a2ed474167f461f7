"""`hpcagent workspace` in a terminal: what a person reads, and what is said where something is wrong."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import hpcagent as ha
from hpcagent.cli import main
from hpcagent.commands.workspace_shown import shown
from hpcagent.errors import BadInput
from hpcagent.workspace.client import Workspace


@ha.app(parameters={name: ha.Text() for name in ("a", "b", "c", "d", "e", "text")}, metrics={"y": "1"})
def calc(a, b, c, d, e, text):
    return {"y": 1.0}


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Runs a command in a folder with a workspace; returns its exit code and what it printed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "below").mkdir()

    def run(*words: str) -> tuple[int, str]:
        monkeypatch.setattr("sys.argv", ["hpcagent", "workspace", *words])
        code = 0
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    assert run("init")[0] == 0
    (tmp_path / ".hpcagent" / "workspace.toml").write_text('name = "ws"\ndefault_site = "threads"\n')
    yield run
    monkeypatch.chdir(tmp_path)
    Workspace().end(runs=True)


def test_a_run_from_below_the_folder_is_waited_for_listed_and_accounted(shell, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path / "below")
    code, said = shell("run", "synthetic", "x=0.3", "--wait")
    assert code == 0 and "value: 25.2" in said and "(pending)" in said
    code, table = shell("list")
    assert code == 0 and "x=0.3" in table and "value=25.2" in table
    run = json.loads(shell("list", "--json")[1])["runs"][0]["id"]
    assert shell("wait", run)[0] == 0
    assert "actual_over_estimated" in shell("costs")[1]
    code, refused = shell("run", "synthetic", "x=0.3", "--site", "laptpo")
    assert code != 0 and "laptpo" in refused and "laptop" in refused
    assert "synthetic" in shell("apps")[1]


def test_a_campaign_that_is_waited_for_ends_with_its_answer(shell):
    code, said = shell("start", "synthetic", "--set", "until.max_runs=4", "--wait")
    assert code == 0 and "state: completed" in said
    campaign = ids(shell, "campaign")[0]
    answer = shell("answer", campaign)[1]
    assert answer in said and "{" not in answer, said
    lines = answer.splitlines()
    assert lines[0] == "maximize value subject to error <= 1" and lines[1].startswith("4 runs, 4 completed, ")
    assert "node-hours" in lines[1] and lines[2] == "stopped: All 4 runs have ended."
    assert lines[3].startswith("best: x = ") and lines[4].startswith("  value = ") and " ± " in lines[4]
    assert lines[5].startswith("  error = ") and lines[5].endswith("; limit: error <= 1")
    assert lines[6].startswith("  P(feasible) = ") and lines[-1].endswith(f"answer {campaign} --json")
    found = json.loads(shell("answer", campaign, "--json")[1])
    assert set(found["best"]["metrics"]) == {"value", "error"}


def ids(shell, kind: str) -> list[str]:
    return [one["id"] for one in json.loads(shell("list", "--json")[1])["runs"] if one["kind"] == kind]


def test_runs_of_a_campaign_are_a_table_and_taken_by_number(shell):
    assert (
        shell("start", "synthetic", "--set", "until.max_runs=5", "--set", "policy.name=random", "--wait")[0] == 0
    )
    campaign = ids(shell, "campaign")[0]
    lines = shell("runs", campaign)[1].splitlines()
    assert lines[0].startswith(f"{campaign}: 5 of 5 runs have ended, ") and lines[7] == "limits: error <= 1"
    assert lines[1].split() == ["run", "state", "x", "y", "style", "value", "error", "folder"]
    assert [line.split()[0] for line in lines[2:7]] == ["0", "1", "2", "3", "4"]
    assert all(" ± " in line for line in lines[2:7] if "completed" in line)
    last = shell("runs", campaign, "--last", "2")[1].splitlines()
    assert [line.split()[0] for line in last[2:4]] == ["3", "4"] and last[0].endswith("; 2 of 5 are shown")
    found = json.loads(shell("runs", campaign, "--first", "1", "--json")[1])
    assert [one["index"] for one in found["runs"]] == [0] and found["totals"]["done"] == 5
    assert f"run 0 of {campaign}" in shell("status", campaign, "0")[1]
    assert found["runs"][0]["id"] in shell("status", campaign, "0")[1]
    assert shell("runs", campaign, "--first", "1", "--last", "1")[0] == 2
    assert "are for `runs`" in shell("list", "--last", "1")[1]
    code, said = shell("fetch", campaign, "0")
    assert code == 2 and "the path is missing" in said


def test_a_campaign_more_of_it_and_a_run_are_estimated_and_nothing_runs(shell, tmp_path):
    toml = 'app = "synthetic"\n[objective]\nmaximize = "value"\n[policy]\nname = "random"\n[until]\nmax_runs = 3\n'
    (tmp_path / "press.toml").write_text(toml)
    code, said = shell("estimate", "press.toml", "--set", "until.node_hours=0.25")
    assert code == 0 and "press.toml: 3 runs at most of synthetic on the site threads; nothing was run" in said, (
        said
    )
    assert "at most 0.25 node-hours" in said and "expected: " in said
    assert json.loads(shell("estimate", "press.toml", "--json")[1])["runs"] == 3
    assert "lj_tuning: 40 runs at most of lj_argon" in shell("estimate", "lj_tuning")[1]
    assert ids(shell, "campaign") == []
    code, said = shell("estimate", "press.toml", "x=0.3")
    assert code == 2 and "it is a campaign, which takes --set, not x=0.3" in said

    shell("start", "press.toml", "--wait")
    campaign = ids(shell, "campaign")[0]
    code, said = shell("estimate", campaign, "--set", "until.max_runs=16")
    assert code == 0 and "16 runs in all; nothing was run" in said and "on top: 13 runs; " in said, said
    assert "so far: 3 runs, " in said and "expected on top: " in said
    code, said = shell("estimate", campaign, "--set", "until.max_runs=2")
    assert code == 2 and "3 runs have ended already" in said

    shell("run", "synthetic", "x=0.3", "--wait")
    run = ids(shell, "run")[0]
    code, said = shell("estimate", run, "x +0.1")
    assert code == 0 and "node_hours: " in said and ids(shell, "run") == [run]
    code, said = shell("estimate", run)
    assert code == 2 and "nothing is changed" in said
    code, said = shell("estimate", "synthetic", "x=0.3", "--set", "until.max_runs=3")
    assert code == 2 and "which takes --set" in said


def test_a_run_is_repeated_with_something_changed(shell):
    shell("run", "synthetic", "x=0.3", "--wait")
    run = ids(shell, "run")[0]
    code, said = shell("repeat", run, "x +0.1", "y = 0.5", "--wait")
    assert code == 0 and '"x": 0.4, "y": 0.5' in said and "state: completed" in said
    code, said = shell("repeat", run, "x = 0.7", "--why", "further out")
    assert code == 0 and f"as {run}, but: x=0.7" in said and "parameters: x = 0.7, y = 0.8" in said, said
    code, said = shell("repeat", run)
    assert code == 2 and "say what shall be other" in said
    code, said = shell("repeat", run, "x +0.1 K")
    assert code == 2 and said.count("error:") == 1


PROGRAM = """\
command = "./fails {x}"
parameters.x = { low = 0.0, high = 1.0, unit = "1" }
metrics.y = { regex = 'y = (.*)', unit = "1" }
"""


def test_the_log_of_a_failed_run_is_printed_as_lines(shell, tmp_path):
    (tmp_path / "fails.toml").write_text(PROGRAM)
    (tmp_path / "fails").write_text("#!/bin/sh\necho first\necho second\nexit 3\n")
    (tmp_path / "fails").chmod(0o755)
    code, said = shell("run", "fails.toml", "x=0.5", "--wait")
    assert code == 1 and "state: failed" in said and "failure: " in said and "\\n" not in said, said
    assert said.partition("log:\n")[2].splitlines()[:2] == ["  first", "  second"]
    (tmp_path / "c.toml").write_text(
        'app = "fails.toml"\n[objective]\nmaximize = "y"\n[policy]\nname = "random"\n[until]\nmax_runs = 2\n'
    )
    code, said = shell("start", "c.toml", "--wait")
    assert code == 1, said
    assert "no answer: no run completed" in said and "run 1: failed" in said and "\\n" not in said, said
    assert said.partition("log:\n")[2].splitlines()[:2] == ["    first", "    second"], said


def test_who_waits_has_the_exit_code_of_run(shell):
    begun = ["start", "synthetic", "--set", "until.max_runs=2", "--set", "policy.name=random", "--wait"]
    code, said = shell(*begun, "--set", "objective.subject_to.error.at_most=1e-9")
    assert code == 3 and "NOT feasible" in said, said
    code, said = shell("start", "synthetic", "--set", "until.max_runs=200", "--set", "fixed.run_time_s=1")
    stopped = next(word.rstrip(":") for word in said.split() if word.startswith("c-"))
    assert shell("stop", stopped)[0] == 0
    assert shell("wait", stopped)[0] == 1


def test_ctrl_c_while_waiting_says_that_it_goes_on(shell, tmp_path):
    """The whole process group gets it, as in a terminal."""
    words = ["start", "synthetic", "--set", "until.max_runs=6", "--set", "fixed.run_time_s=2", "--wait"]
    process = subprocess.Popen(
        [sys.executable, "-m", "hpcagent.cli", "workspace", *words],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        cwd=tmp_path,
    )
    assert process.stderr is not None
    campaign = process.stderr.readline().split()[0]
    assert campaign.startswith("c-")
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said.splitlines() == [
        f"{campaign} goes on: only the waiting for it has ended.",
        f"follow it: hpcagent workspace status {campaign}, hpcagent workspace wait {campaign}",
        f"its answer so far: hpcagent workspace answer {campaign}",
        f"stop it: hpcagent workspace stop {campaign}",
    ]
    assert "state: running" in shell("status", campaign)[1]
    assert shell("stop", campaign)[0] == 0


def test_ctrl_c_before_the_answer_leaves_open_whether_it_has_begun(shell, monkeypatch):
    def interrupted(*args, **more):
        raise KeyboardInterrupt

    monkeypatch.setattr(Workspace, "start", interrupted)
    code, said = shell("start", "synthetic", "--as", "ada")
    assert code == 130 and "it may have begun all the same" in said
    assert said.splitlines()[-1] == "look: hpcagent workspace --as ada list"


def test_a_sweep_has_points_and_no_answer(shell, tmp_path):
    (tmp_path / "s.toml").write_text('app = "synthetic"\n[sweep]\nvalues.x = [0.1, 0.3]\nreplicates = 1\n')
    code, said = shell("start", "s.toml", "--wait")
    campaign = ids(shell, "campaign")[0]
    assert code == 0 and f"its runs: hpcagent workspace runs {campaign}" in said and "best" not in said
    answer = shell("answer", campaign)[1]
    assert answer in said
    head, *points = [line.split() for line in answer.splitlines()[-5:-2]]
    assert head == ["x", "value", "error", "runs"] and [one[0] for one in points] == ["0.1", "0.3"], answer
    found = json.loads(shell("answer", campaign, "--json")[1])
    assert [one["params"] for one in found["points"]] == [{"x": 0.1}, {"x": 0.3}]
    assert all(set(one["metrics"]) == {"value", "error"} for one in found["points"])
    _, head, first = shell("runs", campaign)[1].splitlines()[:3]
    assert head.split() == ["run", "state", "x", "value", "error", "folder"] and "0.1" in first.split()


def test_the_runs_of_a_sweep_have_the_metrics_that_it_shows(shell, tmp_path):
    text = 'app = "synthetic"\nshow = ["error"]\n[sweep]\nvalues.x = [0.1, 0.3]\nreplicates = 1\n'
    (tmp_path / "s.toml").write_text(text)
    assert shell("start", "s.toml", "--wait")[0] == 0
    head = shell("runs", ids(shell, "campaign")[0])[1].splitlines()[1]
    assert head.split() == ["run", "state", "x", "error", "folder"]


def test_a_file_that_is_not_fetched_whole_leaves_nothing(shell, tmp_path, monkeypatch):
    shell("run", "synthetic", "x=0.3", "--wait")
    run = ids(shell, "run")[0]
    before = sorted(tmp_path.iterdir())
    assert shell("fetch", run, "nothere.txt")[0] == 2 and sorted(tmp_path.iterdir()) == before

    def interrupted(*args, **more):
        assert len(list(tmp_path.glob(".fetched.*.part"))) == 1
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Workspace, "piece", interrupted)
        assert shell("fetch", run, "result.json")[0] == 130 and sorted(tmp_path.iterdir()) == before
    size = len(Workspace().fetch(run, "result.json"))
    code, said = shell("fetch", run, "result.json")
    assert code == 0 and said == f"result.json: {size} B\n" and (tmp_path / "result.json").stat().st_size == size
    (tmp_path / "result.json").write_text("mine")
    code, said = shell("fetch", run, "result.json")
    assert code == 2 and "is there already" in said and (tmp_path / "result.json").read_text() == "mine"
    code, said = shell("fetch", run, "result.json", "no/such/folder")
    assert code == 2 and "no/such/folder cannot be written: No such file or directory." in said
    assert sorted(tmp_path.iterdir()) == sorted([*before, tmp_path / "result.json"])


def test_a_file_is_fetched_into_a_folder_under_its_own_name(shell, tmp_path):
    shell("run", "synthetic", "x=0.3", "--wait")
    run = ids(shell, "run")[0]
    size = len(Workspace().fetch(run, "result.json"))
    for to, path in ((".", "result.json"), ("below", "below/result.json")):
        code, said = shell("fetch", run, "result.json", to)
        assert (code, said) == (0, f"{path}: {size} B\n") and (tmp_path / path).stat().st_size == size
    code, said = shell("fetch", run, "result.json", str(tmp_path / "below"))
    assert code == 2 and f"{tmp_path}/below/result.json is there already" in said
    (tmp_path / "result.json").unlink()
    assert shell("fetch", run, "result.json", "")[0] == 0 and (tmp_path / "result.json").is_file()
    assert Workspace().fetch(run, "result.json", "below/other.json") == Path("below/other.json")
    code, said = shell("fetch", run, "result.json", "nothere/")
    assert code == 2 and "nothere/ cannot be written: there is no such folder" in said
    (tmp_path / "result.json").unlink()
    (tmp_path / "result.json").mkdir()
    code, said = shell("fetch", run, "result.json")
    assert code == 2 and "result.json is there already" in said


@pytest.mark.parametrize("path", [".", "/", ".."])
@pytest.mark.parametrize("to", [[], ["."], ["new"], ["/"]])
def test_what_is_the_name_of_no_file_is_refused(shell, path, to):
    shell("run", "synthetic", "x=0.3", "--wait")
    code, said = shell("fetch", ids(shell, "run")[0], path, *to)
    assert code == 2 and said.startswith("error: ") and "Traceback" not in said


@pytest.mark.parametrize(
    ("words", "surplus", "takes"),
    [
        ("status c-1 abc def", "abc def", "RUN, or CAMPAIGN_ID NUMBER"),
        ("status c-1 0 abc", "abc", "RUN, or CAMPAIGN_ID NUMBER"),
        ("status r-1 3", "3", "RUN, or CAMPAIGN_ID NUMBER"),
        ("wait c-1 3 zzz", "3 zzz", "RUN"),
        ("answer c-1 zzz", "zzz", "CAMPAIGN_ID"),
        ("runs c-1 5", "5", "CAMPAIGN_ID"),
        ("files c-1 0 x y z", "y z", "RUN, CAMPAIGN_ID or CAMPAIGN_ID NUMBER, [FOLDER]"),
        ("files r-1 x y", "y", "RUN, CAMPAIGN_ID or CAMPAIGN_ID NUMBER, [FOLDER]"),
        ("start synthetic x=1", "x=1", "CAMPAIGN"),
        ("extend c-1 16", "16", "CAMPAIGN_ID"),
        ("approve a-1 a-2", "a-2", "APPROVAL"),
        ("cancel r-1 r-2", "r-2", "RUN"),
        ("costs ada", "ada", "no more words"),
        ("init one two", "two", "[DIR]"),
    ],
)
def test_words_that_a_command_does_not_take_are_refused(shell, words, surplus, takes):
    code, said = shell(*words.split())
    assert code == 2 and f"`hpcagent workspace {words.split()[0]}` takes {takes}; too much: {surplus!r}." in said


def test_an_approval_is_shown_with_what_it_is_for(shell, tmp_path):
    with (tmp_path / ".hpcagent" / "workspace.toml").open("a") as file:
        file.write('[[approval]]\napp = "synthetic"\n')
    code, said = shell("run", "synthetic", "x=0.3", "--why", "for the paper")
    assert code != 0 and "hpcagent workspace approve a-" in said
    table = shell("approvals")[1]
    assert "what for: for the paper" in table and "    x = 0.3\n" in table


def test_an_approval_shows_each_parameter_whole_and_no_value_is_a_line_of_its_own(shell, tmp_path, monkeypatch):
    with (tmp_path / ".hpcagent" / "workspace.toml").open("a") as file:
        file.write('[[approval]]\napp = "calc"\n')
    values = {name: f"{name}-value" for name in "abcde"} | {"text": "ok" + 90 * " " + "rm"}
    with Workspace() as there, pytest.raises(BadInput) as refused:
        there.run(calc, values)
    said = shell("approvals")[1]
    identity = said.partition(":")[0]
    assert identity == refused.value.approval and shell("approvals", identity)[1] == said
    assert all(f'    {name} = "{name}-value"\n' in said for name in "abcde"), said
    whole = "".join(line.partition("| ")[2] for line in said.partition("text = ")[2].splitlines()[1:])
    assert json.loads(whole) == values["text"]
    assert shell("approvals", "a-nothing")[0] == 2
    assert shell("approve", identity)[0] == 0
    table = shell("approvals")[1]
    assert "granted" in table and f"approvals {identity}" not in table and "shows one whole" in table
    (one,) = json.loads(shell("approvals", "--json")[1])
    one |= {"params": {"lines": "ok\n  what: harmless\x1b[2J"}, "asked_why": "a\n  what: harmless\x07"}
    monkeypatch.setattr(Workspace, "approvals", lambda self: [one])
    said = shell("approvals", identity)[1]
    assert r'lines = "ok\n  what: harmless\u001b[2J"' in said, said
    assert r"what for: a\n  what: harmless\u0007" in said and said.count("\n  what: ") == 1


def test_an_approval_of_a_campaign_shows_the_ranges_of_what_it_varies(shell, tmp_path):
    with (tmp_path / ".hpcagent" / "workspace.toml").open("a") as file:
        file.write('[[approval]]\napp = "synthetic"\n')
    assert shell("start", "synthetic", "--set", "until.max_runs=4")[0] != 0
    said = shell("approvals")[1]
    for name in ("x", "y", "style", "objective and limits"):
        assert f"    {name} = " in said, said
    assert "    x = [0.02, 1]\n" in said


def test_with_wrong_rules_a_service_that_is_there_goes_on_and_about_tells(shell, tmp_path):
    assert shell("run", "synthetic", "x=0.3", "--wait")[0] == 0
    rules = tmp_path / ".hpcagent" / "workspace.toml"
    right = rules.read_text()
    rules.write_text("[quota]\nruns = 3\n")
    code, said = shell("about")
    assert code == 0 and "the rules as they were still hold" in said
    assert re.search(r"^since: 20\d\d-\d\d-\d\d \d\d:\d\d$", said, re.MULTILINE), said
    assert shell("run", "synthetic", "x=0.4", "--wait")[0] == 0
    assert shell("end")[0] == 0
    code, said = shell("about")
    assert code == 2 and "workspace.toml" in said
    rules.write_text(right)


def test_costs_say_what_is_a_mean_and_what_a_median(shell):
    assert shell("run", "synthetic", "x=0.3", "--wait")[0] == 0
    heads = shell("costs")[1].split()
    assert {"mean_estimated_s", "mean_actual_s", "median_actual_over_estimated"} <= set(heads)


def test_zeros_are_numbers_in_a_table():
    assert shown("", [{"who": "ada", "runs": 0, "usd": 0.0, "note": None}]).splitlines()[1].split() == [
        "ada",
        "0",
        "0",
    ]
