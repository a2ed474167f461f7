"""How long the latest runs took: of which runs it is taken, and that a resumed campaign knows it at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import hpcagent as ha
from hpcagent.apps.landscape import synthetic
from hpcagent.campaign.recent import RecentRuns
from hpcagent.campaign.recorded import snapshot
from hpcagent.model.records import Failure, Result, Stopped


def ended(wall_s: float, **more: Any) -> Result:
    return Result(
        **{"manifest": synthetic.manifest({"x": 0.5}), "status": "COMPLETED", "cost": {"wall_s": wall_s}} | more
    )


BROKEN = {"status": "FAILED", "failure": Failure(kind="simulation", name="LostAtoms", message="one is lost.")}


def test_before_the_first_run_what_its_manifest_says_counts_then_the_mean_of_the_latest() -> None:
    recent, manifest = RecentRuns(), synthetic.manifest({"x": 0.5})
    assert recent.mean_s is None and not recent.enough
    assert recent.expected_s(manifest) == manifest.estimated_runtime_s
    for wall_s in [100.0, *[2.0] * 16, *[4.0] * 16]:
        recent.add(ended(wall_s))
    assert recent.mean_s == recent.expected_s(manifest) == pytest.approx(3.0)  # the first is one of 33
    assert recent.enough


def test_runs_that_broke_off_were_short_ones_but_make_no_site_quick_and_no_run_late() -> None:
    recent = RecentRuns()
    for _ in range(10):
        recent.add(ended(1.0, site="broken", **BROKEN))
    assert recent.mean_s == 1.0 and recent.on("broken").mean_s is None and recent.longest_expected() is None


def test_what_the_guard_stopped_or_no_worker_timed_tells_nothing() -> None:
    recent = RecentRuns()
    recent.add(ended(5.0, status="STOPPED", stopped=Stopped(reason="blown_up", sentence="x", share=0.1)))
    recent.add(ended(0.0))
    recent.add_part(ended(7.0, site="here"))
    assert recent.mean_s is None and recent.on("here").mean_s == 7.0  # a chain is longer than its parts


def test_a_campaign_that_is_read_again_knows_how_long_its_runs_take(tmp_path: Path) -> None:
    wanted = ha.minimize("value")
    campaign = ha.Campaign(synthetic, wanted, space={"x": {}}, until=ha.until.max_runs(4), batch_size=4)
    result = ha.run(campaign, site="threads", run_dir=tmp_path / "r")
    walls = [r.cost.wall_s for r in result.results]
    assert snapshot(tmp_path / "r").state.recent.mean_s == pytest.approx(sum(walls) / 4)
