"""What the collector of garbage looks at while a campaign is open."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

import hpcagent as ha
from hpcagent.apps.landscape import synthetic
from hpcagent.aside import Aside
from hpcagent.campaign.coordinator import Coordinator


@pytest.fixture
def campaign() -> ha.Campaign:
    until = ha.until.max_runs(8)
    return ha.Campaign(
        synthetic, ha.maximize("value"), space={"x": {}}, policy="random", until=until, batch_size=4
    )


@pytest.fixture(autouse=True)
def nothing_aside() -> Iterator[None]:
    """As in a user's process: the test session has set its own objects aside."""
    aside = gc.get_freeze_count()
    gc.unfreeze()
    yield
    if aside:
        gc.freeze()


def test_what_was_there_before_is_looked_at_again_after_the_campaign(
    campaign: ha.Campaign, tmp_path: Path
) -> None:
    assert gc.get_freeze_count() == 0
    before, full = gc.get_threshold(), []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and info["generation"] == 2:
            full.append(len(gc.get_objects()))

    gc.callbacks.append(note)
    try:
        with Coordinator(campaign, site="threads", run_dir=tmp_path / "run", progress=False) as coordinator:
            aside = gc.get_freeze_count()
            assert aside > 10_000  # modules and what they define
            full.clear()
            gc.collect()
            assert full[0] < aside / 4
            batches = list(coordinator)
    finally:
        gc.callbacks.remove(note)
    assert len(batches) == 2 and gc.get_freeze_count() == 0 and gc.get_threshold() == before


def test_what_somebody_has_set_aside_stays_so(campaign: ha.Campaign, tmp_path: Path) -> None:
    gc.freeze()
    try:
        count, before = gc.get_freeze_count(), gc.get_threshold()
        with Coordinator(campaign, site="threads", run_dir=tmp_path / "run", progress=False):
            assert gc.get_threshold() == before
        assert 0 < gc.get_freeze_count() <= count
    finally:
        gc.unfreeze()


def test_thresholds_that_somebody_has_set_meanwhile_stay_so() -> None:
    before = gc.get_threshold()
    try:
        aside = Aside()
        aside.set(growing=True)
        gc.set_threshold(5000, 20, 100)
        aside.give_back()
        assert gc.get_threshold() == (5000, 20, 100) and gc.get_freeze_count() == 0
        gc.set_threshold(*before)
        aside = Aside()
        aside.set(growing=True)
        gc.set_threshold(5000, *gc.get_threshold()[1:])
        aside.give_back()
        assert gc.get_threshold() == (5000, *before[1:])
    finally:
        gc.set_threshold(*before)
