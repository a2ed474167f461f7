"""A campaign whose runs, names and texts mean harm: its report, its progress and its answer are text."""

from __future__ import annotations

import io
import re
import subprocess
from pathlib import Path

import pytest

import hpcagent as ha
from hpcagent.campaign.answer import read_run
from hpcagent.campaign.view import Live
from hpcagent.reports.report import report
from hpcagent.sites.profiles import find_profile
from hpcagent.sites.workers.job_scripts import job_script

EVIL = "<script>alert(1)</script> | x\n# Answer\n![t](http://t/x.png) [red]\x1b[2J\x1b]52;c;cm0=\x07"


@ha.app(parameters={"x": ha.Float(0, 1)}, metrics={"y": "1"})
def hostile(x: float) -> dict[str, float]:
    """Fail with a text of one's own."""
    if x > 0.3:
        raise ha.AppFailed(EVIL, name="Bad[/red]<b>", log_tail=EVIL, repair=EVIL)
    return {"y": x}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hostile") / "run"
    campaign = ha.Campaign(
        hostile, ha.maximize("y"), description=EVIL, until=ha.until.max_runs(8), batch_size=8, policy="sobol"
    )
    ha.run(campaign, site="threads", run_dir=path)
    return path


def test_the_report_is_text(folder: Path) -> None:
    page = report(folder, plots=False).path.read_text()
    assert "&lt;script>alert(1)" in page and not re.search(r"<[a-zA-Z/!]", page)
    assert "](http" not in page and "\x1b" not in page and page.count("\n# Answer") == 0
    table = [line for line in page.splitlines() if line.startswith("| Bad")]
    assert len(table) == 1 and len(re.findall(r"(?<!\\)\|", table[0])) == 7  # six columns


def test_what_is_read_again_does_nothing_to_a_terminal(folder: Path) -> None:
    result = read_run(folder)
    failures = [r.failure for r in result.results if r.failure is not None]
    assert failures and all("\x1b" not in f"{f.message}{f.log_tail}{f.repair}{f.name}" for f in failures)
    assert "\x1b" not in str(result) + str(result.table())


def test_the_live_view_survives_the_name_of_a_failure(folder: Path) -> None:
    from rich.console import Console

    result = read_run(folder)
    view = Live(result.campaign, Console(file=io.StringIO(), force_terminal=False, width=200))
    view._tally.results = list(result.results)
    view._live.update(view._draw(), refresh=True)
    view.close()
    drawn = Console(file=io.StringIO(), width=200)
    drawn.print(view._draw())
    assert "Bad[/red]<b>" in drawn.file.getvalue()  # type: ignore[attr-defined]


def test_secrets_are_in_no_file_that_others_may_read(tmp_path: Path) -> None:
    profile = tmp_path / "mine.toml"
    profile.write_text('kind = "threads"\n[env]\nAPI_TOKEN = "swordfish"\n')
    profile.chmod(0o600)
    campaign = ha.Campaign(hostile, ha.maximize("y"), until=ha.until.max_runs(2), policy="sobol")
    ha.run(campaign, site=profile, run_dir=tmp_path / "run")
    holding = [p for p in tmp_path.rglob("*") if p.is_file() and b"swordfish" in p.read_bytes()]
    assert (tmp_path / "run/site.toml") in holding  # `resume` needs it
    assert [p for p in holding if p.stat().st_mode & 0o077] == []


def test_a_job_script_says_only_what_a_profile_means(tmp_path: Path) -> None:
    profile = tmp_path / "mine.toml"
    text = 'a\'b "c" $(id) `id` ; id # \\\\'
    profile.write_text(f"kind = 'slurm'\nnode_cores = 4\n[block]\ncores_per_node = 4\n[env]\nODD = '''{text}'''\n")
    script = job_script(find_profile(profile), "workers")
    line = next(line for line in script.splitlines() if line.startswith("export ODD="))
    said = subprocess.run(["bash", "-c", f'{line}\nprintf %s "$ODD"'], capture_output=True, text=True, check=True)
    assert said.stdout == text
