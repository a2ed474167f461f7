"""`hpcagent workspace` in a terminal: what a person reads, and what is said where something is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpcagent.cli import main
from hpcagent.commands.workspace import _shown
from hpcagent.workspace.client import Workspace


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
    assert code == 0 and '"best"' in said


def test_an_approval_is_shown_with_what_it_is_for(shell, tmp_path):
    with (tmp_path / ".hpcagent" / "workspace.toml").open("a") as file:
        file.write('[[approval]]\napp = "synthetic"\n')
    code, said = shell("run", "synthetic", "x=0.3", "--why", "for the paper")
    assert code != 0 and "hpcagent workspace approve a-" in said
    table = shell("approvals")[1]
    assert "for the paper" in table and "x=0.3" in table


def test_zeros_are_numbers_in_a_table():
    assert _shown("", [{"who": "ada", "runs": 0, "usd": 0.0, "note": None}]).splitlines()[1].split() == [
        "ada",
        "0",
        "0",
    ]
