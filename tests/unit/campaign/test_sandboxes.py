"""A campaign that is gone on with in a sandbox: the same runs and numbers, and it says so."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hpcagent.campaign.loading import load_campaign
from hpcagent.errors import BadInput
from hpcagent.runs.opened import open_run
from hpcagent.runs.run import run

MODULE = """\
import os
import hpcagent as ha

@ha.app(parameters={"x": ha.Float(0, 1)}, metrics={"y": "1", "pid": "1"})
def mine(x):
    return {"y": -(x - 0.3) ** 2, "pid": os.getpid()}
"""
CAMPAIGN = """\
app = "sandboxed_later:mine"
policy = "random"
batch_size = 2
[objective]
maximize = "y"
[until]
max_runs = 2
"""


@pytest.mark.slow
def test_a_campaign_goes_on_in_a_sandbox_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without_bubblewrap: None
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "sandboxed_later.py").write_text(MODULE)
    (tmp_path / "c.toml").write_text(CAMPAIGN)

    def go(folder: str, runs: int, **sandbox: object) -> dict[str, tuple[float, bool]]:
        changes = {"until.max_runs": runs} | ({"settings.sandbox": sandbox} if sandbox else {})
        campaign = load_campaign(tmp_path / "c.toml", changes=changes)
        result = run(campaign, site="threads", run_dir=tmp_path / folder, progress=False)
        assert all(r.ok for r in result.results), [r.failure for r in result.results]
        here = {r["pid"] for r in result.results if not r.notes}
        assert len(here) <= 1  # that of this process, whose workers are threads
        return {r.manifest.execution_id: (r["y"], r["pid"] in here) for r in result.results}

    whole = go("open", 4)
    first = go("mixed", 2)
    then = go("mixed", 4, require="limits", memory_mb=700)
    assert {i: y for i, (y, _) in then.items()} == {i: y for i, (y, _) in whole.items()}
    assert [i for i, (_, here) in then.items() if here] == list(first)
    said = "runs are confined to the sandbox limits or a better one"
    opened = open_run(tmp_path / "mixed")
    assert said in str(opened.status)
    assert said in opened.report(plots=False).path.read_text()
    assert "sandbox from none to" in str(opened.status)
    assert said not in str(open_run(tmp_path / "open").status)
    with pytest.raises(BadInput, match="memory_mb"):
        go("wrong", 2, require="limits", memory_mb=1)
    sys.modules.pop("sandboxed_later")
