"""A campaign with a `[guard]`: what is stopped, what is kept of it, and what the user is told."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hpcagent as ha
from hpcagent.campaign.compare import compare, observations
from hpcagent.campaign.guard_table import Guard
from hpcagent.campaign.guarding import best_so_far
from hpcagent.campaign.loading import load_campaign, load_run
from hpcagent.campaign.record import Campaign
from hpcagent.campaign.recorded import snapshot
from hpcagent.errors import BadInput
from hpcagent.model.objective import at_most, maximize, minimize
from hpcagent.model.records import Observation
from hpcagent.reports.explain import explain
from hpcagent.runs.status import status_of
from hpcagent.science.lammps.contract import lammps


@ha.app(
    parameters={"x": ha.Float(0.0, 1.0)},
    metrics={"speed": "1", "error": "1"},
)
def slow_series(x: float) -> Iterator[Any]:
    """A speed of 10 x and an error of 2 x, known better and better; beyond x = 0.5 it breaks the limit."""
    for n in range(1, 21):
        share = n / 20
        yield {"speed": 10 * x, "error": 2 * x}, {"speed": 0.01 / share, "error": 0.001 / share}, share


def campaign(**other: Any) -> Campaign:
    return Campaign(
        slow_series,
        maximize("speed", subject_to={"error": at_most(1.0)}),
        **{"policy": "sobol", "until": ha.until.max_runs(12), "batch_size": 4, "seed": 2, "guard": Guard()}
        | other,
    )


def test_what_cannot_win_is_stopped_kept_and_told(tmp_path: Path) -> None:
    result = ha.run(campaign(), site="threads", run_dir=tmp_path / "run", progress=False)
    stopped = [r for r in result.results if r.stopped is not None]
    # Models need whole runs, so the first four, one parameter's first look, go to their ends.
    assert all(r.ok for r in result.results[:4]) and any(r.metrics["error"] > 1 for r in result.results[:4])
    over = [r for r in result.results[4:] if r.manifest.params["x"] > 0.5]
    assert over and all(r.state == "stopped" and r.stopped.reason == "limit" for r in over if r.stopped)
    assert all(r in stopped for r in over)
    assert all(r.failure is None and r.final and r.metrics and r.stopped and r.stopped.share < 1 for r in stopped)
    assert result.best is not None and result.best.params["x"] <= 0.5
    assert result.best.params in [r.manifest.params for r in result.results if r.ok]
    late = [r for r in result.results if r.manifest.batch == 1 and r.manifest.params["x"] < 0.2]
    assert all(r.stopped is not None and r.stopped.reason == "cannot_win" for r in late)

    text = str(status_of(tmp_path / "run"))
    assert f"{len(stopped)} stopped" in text
    assert f"the guard has stopped {len(stopped)} of 12 runs and saved" in text
    assert f"the guard has stopped {len(stopped)} of 12 runs" in str(result)
    result.report(plots=False)
    assert "breaks a limit" in next((tmp_path / "run").rglob("*.md")).read_text()
    why = str(explain(tmp_path / "run", over[0].manifest.index))
    assert "breaks a limit: error is" in why and "it is never the answer" in why

    again = ha.run(campaign(), site="threads", run_dir=tmp_path / "run", progress=False)
    assert [r.model_dump() for r in again.results] == [r.model_dump() for r in result.results]
    assert load_run(tmp_path / "run").guard == Guard()


def test_what_others_are_compared_with_is_measured_whatever_limit_it_breaks(tmp_path: Path) -> None:
    reference = ha.types.Reference(params={"x": 0.8})  # its error of 1.6 is above the limit
    asked = campaign(reference=reference, confirm=ha.types.Confirm(top=1, replicates=2))
    result = ha.run(asked, site="threads", run_dir=tmp_path, progress=False)
    measured = [r for r in result.results if r.manifest.role in ("reference", "replicate", "repeat")]
    assert {r.manifest.role for r in measured} >= {"reference", "replicate"}
    assert all(r.ok for r in measured) and any(r.stopped for r in result.results)
    compared = compare(snapshot(tmp_path).campaign, result.results)
    assert compared is not None and compared.scale and compared.value == 8.0


def test_a_policy_sees_the_side_of_the_limit_and_no_value(tmp_path: Path) -> None:
    ha.run(campaign(), site="threads", run_dir=tmp_path / "run", progress=False)
    read = snapshot(tmp_path / "run")
    seen = observations(read.campaign, read.results, compare(read.campaign, read.results))
    broke = [o for o in seen[4:] if o.params["x"] > 0.5]
    assert broke
    for o in broke:
        assert o.stopped and not o.completed and not o.failed and o.failure is None
        assert (o.metrics, o.bounds, o.uncertainty) == ({"error": 1.0}, {"error": "above"}, {})


@ha.app(parameters={"x": ha.Float(-3.0, 3.0)}, metrics={"y": "1", "c": "1"}, seeded=False)
def beside_the_best(x: float) -> Iterator[Any]:
    """Least at x = 1; only x <= -0.5 keeps c <= -5."""
    for n in range(1, 21):
        share = n / 20
        error = 0.1 / math.sqrt(share)
        yield {"y": (x - 1) ** 2 + 0.02 / n, "c": 10 * x}, {"y": error, "c": error / 2}, share


@pytest.mark.parametrize("seed", [11, 12, 14])
def test_where_most_points_break_a_limit_the_policy_still_learns(tmp_path: Path, seed: int) -> None:
    asked = Campaign(
        beside_the_best,
        minimize("y", subject_to={"c": at_most(-5.0)}),
        policy="bayes",
        seed=seed,
        until=ha.until.max_runs(24),
        batch_size=6,
        guard=Guard(),
    )
    result = ha.run(asked, site="threads", run_dir=tmp_path, progress=False)
    assert sum(r.stopped is not None for r in result.results) >= 6
    assert result.best is not None and result.best.params["x"] == pytest.approx(-0.5, abs=0.1)


def test_without_a_guard_every_run_goes_to_its_end(tmp_path: Path) -> None:
    result = ha.run(campaign(guard=None), site="threads", run_dir=tmp_path / "run", progress=False)
    assert all(r.ok for r in result.results)
    assert not (tmp_path / "run" / "guard.json").exists()


def test_the_table_goes_through_toml(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(load_campaign("lj_tuning", changes={"guard.confidence": 0.999}).toml())
    assert load_campaign(path).guard == Guard(confidence=0.999)
    assert load_campaign("lj_tuning").guard is None


@pytest.mark.parametrize(
    ("guard", "said"),
    [
        ({"stops": ["limits"]}, "guard.stops"),
        ({"stops": []}, "one or more of"),
        ({"confidence": 1.0}, "confidence"),
        ({"least_share": 0}, "least_share"),
        ({"every_s": -1}, "every_s"),
        ({"looks": 3}, "looks"),
    ],
)
def test_a_wrong_table_is_refused(guard: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        campaign(guard=guard)


def test_stops_that_the_objective_cannot_have_are_refused_by_name() -> None:
    argon = lammps("lj_argon")
    drift = maximize("ns_per_day", subject_to={"drift_mev_per_atom_ns": at_most(1.0)})
    with pytest.raises(BadInput, match=r"drift_mev_per_atom_ns.*cannot be told"):
        Campaign(argon, drift, guard={"stops": ["limit"]})
    with pytest.raises(BadInput, match="has none"):
        Campaign(argon, maximize("ns_per_day"), guard={"stops": ["limit"]})
    with pytest.raises(BadInput, match="one goal"):
        Campaign(argon, maximize("ns_per_day", "temperature"), guard={"stops": ["cannot_win"]}, policy="sobol")
    left = Campaign(argon, drift, guard={})
    assert left.guard is not None
    assert "drift_mev_per_atom_ns" in left.guard.unwatched(argon, drift)


def test_the_best_so_far_keeps_its_limits_for_sure() -> None:
    def one(x: float, speed: float, error: float, sd: float) -> Observation:
        return Observation(
            {"x": x}, metrics={"speed": speed, "error": error}, uncertainty={"error": sd, "speed": 1.0}
        )

    asked = campaign()
    sure, unsure, broken = one(0.1, 50, 0.5, 0.1), one(0.2, 60, 0.95, 0.2), one(0.3, 70, 2.0, 0.1)
    best = best_so_far(asked, [sure, unsure, broken])
    assert best is not None and best.value == 50 and best.error >= 1.0
    early = Observation(
        {"x": 0.9}, completed=False, stopped=True, metrics={"speed": 99.0}, bounds={"speed": "above"}
    )
    assert best_so_far(asked, [early]) is None
