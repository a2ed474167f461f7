"""A campaign ends where its runs fail in a way that no parameter would change, whatever the guard stops between."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import hpcagent as ha
from hpcagent.types import Objective


@ha.app(parameters={"x": ha.Float(0.0, 1.0)}, metrics={"y": "1", "load": "1"}, vary=("x",))
def forgetful(x: float) -> Iterator[object]:
    """Its load is far above the limit but near 1; what comes to its end has no `y`."""
    for done in (0.25, 0.5, 0.6, 0.7, 0.8, 0.9):
        yield {"load": 1.0 if x > 0.8 else 100.0 + 0.01 * done}, {"load": 0.01}, done
    yield {"load": 1.0}, {"load": 0.01}, 1.0


@ha.app(parameters={"x": ha.Float(0.0, 1.0)}, metrics={"y": "1"}, vary=("x",))
def sometimes(x: float) -> dict[str, float]:
    """Has its metric at some points only."""
    return {"y": x} if x < 0.5 else {}


@pytest.mark.parametrize("mode", ["batch", "rolling"])
def test_runs_that_the_guard_stops_do_not_hide_that_no_run_has_the_objective(tmp_path: Path, mode: str) -> None:
    campaign = ha.Campaign(
        forgetful,
        Objective(minimize="y", subject_to={"load": {"at_most": 2.0}}),
        guard={},
        policy="sobol",
        batch_size=5,
        until=ha.until.max_runs(50),
        confirm=None,
        mode=mode,
        in_flight=3 if mode == "rolling" else None,
        seed=1,
    )
    found = ha.run(campaign, site="threads", run_dir=tmp_path, progress=False)
    lacking = [r for r in found.results if r.failure is not None]
    assert {r.failure.name for r in lacking if r.failure} == {"MissingMetric"}
    # While no run is whole, four at a time go to their ends: more than are in flight here.
    assert any(r.status == "STOPPED" for r in found.results) == (mode == "batch")
    assert len(lacking) >= 2 and len(found.results) < 30
    assert "without the metric 'y' of the objective, and none has ever given it" in str(found)
    assert "Correct" in str(found) and "or ask for another metric" in str(found)


def test_a_metric_that_some_points_have_ends_nothing(tmp_path: Path) -> None:
    campaign = ha.Campaign(
        sometimes, ha.minimize("y"), policy="sobol", batch_size=4, until=ha.until.max_runs(12), confirm=None
    )
    found = ha.run(campaign, site="threads", run_dir=tmp_path, progress=False)
    assert len(found.results) == 12
