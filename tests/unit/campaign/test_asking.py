"""Scripts and people that decide themselves what is run: ask, submit, tell, results as they come."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

import hpcagent as ha
from hpcagent.campaign.answer import read_run
from hpcagent.campaign.decisions import decisions, replays
from hpcagent.errors import BadInput, BudgetSpent, Interrupted
from hpcagent.policies.sweeps import Sobol
from hpcagent.reports.explain import explain
from hpcagent.reports.report import report
from tests.unit.campaign.records_for_tests import forget

SPACE = {"x": ha.Float(0.0, 4.0, unit="nm"), "y": ha.Float(-2.0, 2.0)}
ran: list[tuple[float, float]] = []


@ha.app(parameters=SPACE, metrics={"height": "mm", "weight": "1"}, seeded=False)
def hill(x: float, y: float) -> dict[str, float]:
    ran.append((x, y))
    if x > 3.9:
        raise ha.AppFailed("too far out", name="Fell")
    return {"height": 10.0 - (x - 1.0) ** 2 - (y - 0.5) ** 2, "weight": x + y}


@pytest.fixture(autouse=True)
def _fresh() -> None:
    ran.clear()


def campaign(**changes: Any) -> ha.Campaign:
    return ha.Campaign(
        hill,
        ha.maximize("height"),
        **{"policy": "sobol", "until": ha.until.max_runs(20), "batch_size": 4, **changes},
    )


def opened(folder: Path, **changes: Any) -> ha.Coordinator:
    return ha.Coordinator(campaign(**changes), site="threads", run_dir=folder)


@pytest.mark.parametrize("mode", ["batch", "rolling"])
def test_what_ask_gives_is_what_the_policy_suggests_and_the_record_replays(tmp_path: Path, mode: str) -> None:
    design = Sobol(campaign().search).suggest([], 7)
    with opened(tmp_path / "r", mode=mode) as coordinator:
        first, second = coordinator.ask(3), coordinator.ask(2)
        assert first + second == design[:5]  # asking again gives others
        assert not ran  # and nothing has been run or spent
        assert coordinator.result().results == ()
        results = coordinator.run_points([*second, {"x": 1.0, "y": 0.5}, *first[::-1]])
        assert [r.manifest.role for r in results] == ["suggested"] * 2 + ["enqueued"] + ["suggested"] * 3
        assert results[2]["height"] == 10.0
        # Grouped like the policy's own: four to a batch, or by position.
        numbers = sorted((r.manifest.index, r.manifest.batch) for r in results)
        assert numbers[0] == (0, 0) and all(0 <= batch <= 2 for _, batch in numbers)
        assert coordinator.ask(2) == design[5:]  # points of one's own are no suggestions
        assert coordinator.result().best is not None
    assert [len(d.manifests) for d in decisions(tmp_path / "r")] == [2, 3] or mode
    assert len(list(decisions(tmp_path / "r"))) == 2
    assert replays(tmp_path / "r") == []


def test_a_script_that_is_run_again_repeats_no_run_and_goes_on_with_what_was_cut_off(tmp_path: Path) -> None:
    points = [{"x": float(i), "y": 0.0} for i in range(3)]
    with opened(tmp_path / "r") as coordinator:
        asked = coordinator.ask(2)
        first = [r["height"] for r in coordinator.run_points([*points, asked[0]])]
    assert len(ran) == 4
    with opened(tmp_path / "r") as coordinator:
        runs = coordinator.submit([*points, points[0]])
        assert all(run.recorded for run in runs)
        assert [run.result()["height"] for run in runs[:3]] == first[:3]
        assert [r["height"] for r in coordinator.results()] == [*first[:3], first[0]]
        assert coordinator.ask(1) == asked[1:]  # it was not run, so it is given again
        assert len(ran) == 4
        other = coordinator.run_points(points[:1], replicate=1)[0]
        assert other.manifest.replicate == 1 and len(ran) == 5
        assert coordinator.run_points(points[:1], replicate=1) == [other] and len(ran) == 5
    # Planned, and cut off before it had ended: as if killed between the two lines of the journal.
    journal = tmp_path / "r" / "events.jsonl"
    lines = journal.read_text().splitlines()
    lost = {r.manifest.execution_id for r in (other,)}
    kept = [
        line for line in lines if not (json.loads(line)["event"] == "results" and any(i in line for i in lost))
    ]
    journal.write_text("\n".join(kept) + "\n")
    forget(tmp_path / "r", lost)
    with opened(tmp_path / "r") as coordinator:
        again = coordinator.run_points(points[:1], replicate=1)[0]
        assert again.manifest == other.manifest and len(ran) == 6


def test_what_an_interrupted_script_was_given_and_had_sent_is_given_first(tmp_path: Path) -> None:
    with opened(tmp_path / "r") as coordinator:
        asked = coordinator.ask(3)
        coordinator._asks()._planner.own(
            asked, batch=0, asked=next(iter(coordinator._asks()._offers.values())).asked
        )
    with opened(tmp_path / "r") as coordinator:
        assert coordinator.ask(4)[:3] == asked
        results = coordinator.run_points(asked)
        assert [r.manifest.index for r in results] == [0, 1, 2]
        assert len(ran) == 3
    assert replays(tmp_path / "r") == []


def test_the_budget_holds_for_points_of_ones_own(tmp_path: Path) -> None:
    with opened(tmp_path / "r", until=ha.until.max_runs(3)) as coordinator:
        coordinator.run_points([{"x": 0.0, "y": 0.0}, {"x": 1.0, "y": 0.0}])
        with pytest.raises(BudgetSpent, match=r"room for 1 more \(until: max_runs = 3\)") as refused:
            coordinator.submit([{"x": 2.0, "y": 0.0}, {"x": 3.0, "y": 0.0}])
        assert refused.value.room == 1 and len(ran) == 2
        asked = coordinator.ask(2)
        with pytest.raises(BudgetSpent):
            coordinator.submit(asked)
        assert coordinator.submit(asked[:1])[0].result().manifest.role == "suggested"
        assert coordinator.over is not None
        assert coordinator.run_points([{"x": 0.0, "y": 0.0}])[0].ok  # what is on record costs nothing


@pytest.mark.parametrize(
    ("point", "words"),
    [
        ({"x": 9.0, "y": 0.0}, "outside"),
        ({"x": 1.0}, "y"),
        ({"x": 1.0, "y": 0.0, "z": 1.0}, "unknown parameter 'z'"),
        ({"x": float("nan"), "y": 0.0}, "x"),
        ({"x": "1; rm -rf /", "y": 0.0}, "x"),
    ],
)
def test_points_that_are_not_allowed_are_refused_and_none_is_started(
    tmp_path: Path, point: dict[str, Any], words: str
) -> None:
    with opened(tmp_path / "r") as coordinator:
        with pytest.raises(BadInput, match=words):
            coordinator.submit([{"x": 0.0, "y": 0.0}, point])
        assert coordinator.result().states == {}


def test_what_is_held_constant_cannot_be_given_another_value(tmp_path: Path) -> None:
    with opened(tmp_path / "r", space={"x": {"high": 2.0}}, fixed={"y": 1.0}) as coordinator:
        assert coordinator.run_points([{"x": 1.0, "y": 1.0}])[0].manifest.params == {"x": 1.0, "y": 1.0}
        with pytest.raises(BadInput, match="does not vary 'y'"):
            coordinator.submit([{"x": 1.0, "y": 0.0}])
        with pytest.raises(BadInput, match="outside"):  # of the range of the campaign, which is narrower
            coordinator.submit([{"x": 3.0}])


def test_told_results_are_marked_learnt_from_and_cost_nothing(tmp_path: Path) -> None:
    with opened(tmp_path / "r", until=ha.until.max_runs(2)) as coordinator:
        first, second = coordinator.ask(2)
        told = coordinator.tell(
            first, {"height": (0.95, "cm")}, uncertainty={"height": (0.02, "cm")}, origin="lab"
        )
        assert told.metrics == {"height": 9.5} and told.uncertainty == {"height": 0.2}
        assert (told.manifest.role, told.manifest.origin, told.host) == ("suggested", "lab", "lab")
        own = coordinator.tell({"x": 1.0, "y": 0.5}, {"height": 10.5, "weight": 1.5})
        assert (own.manifest.role, own.manifest.origin) == ("told", "by hand")
        coordinator.tell({"x": 4.0, "y": 2.0}, failure="it fell off the table", origin="lab")
        assert coordinator.ask(1) == Sobol(campaign().search).suggest([], 3)[2:]
        # A run of the same point is a run: it has its own id, and its seed is the first.
        run = coordinator.run_points([{"x": 1.0, "y": 0.5}])[0]
        assert run["height"] == 10.0 and run.manifest.replicate == 0
        assert coordinator.run_points([second])[0].ok
        assert coordinator.over is not None  # two runs: the told ones do not count
    result = read_run(tmp_path / "r")
    assert sum(result.counts.values()) == 2
    status = ha.open_run(tmp_path / "r").status
    assert (status.runs, status.counts) == (2, result.counts) and next(iter(ha.runs.list_runs(tmp_path))).runs == 2
    assert "and 3 result(s) that were told, not run here (by hand: 1, lab: 2)" in str(status)
    assert "best run: run 1 (told, not run here: by hand): x = 1" in str(status)  # 10.5 told, 10.0 run
    assert "and 3 result(s) that were told, not run here (by hand: 1, lab: 2)" in str(result)
    assert result.best is not None and result.best.params == {"x": 1.0, "y": 0.5}
    assert "1 run(s) here, 1 told result(s), not run here" in str(result.best)
    assert result.results[2].failure is not None and result.results[2].failure.name == "ToldFailure"
    assert "told: lab" in report(tmp_path / "r", plots=False).path.read_text()
    assert replays(tmp_path / "r") == []
    assert "told, not run here (by hand)" in str(explain(tmp_path / "r", 1))
    assert explain(tmp_path / "r", 0).role == "suggested"


@pytest.mark.parametrize(
    ("metrics", "more", "words"),
    [
        ({"height": float("nan")}, {}, "no finite number"),
        ({"height": float("inf")}, {}, "no finite number"),
        ({"height": True}, {}, "no finite number"),
        ({"hieght": 1.0}, {}, "did you mean 'height'"),
        ({"weight": 1.0}, {}, "height is missing"),
        ({"height": (1.0, "kg")}, {}, "kg"),
        ({"height": 1.0}, {"uncertainty": {"height": -0.1}}, "standard error"),
        ({"height": 1.0}, {"uncertainty": {"weight": 0.1}}, "not among"),
        ({"height": 1.0}, {"origin": "lab\n\x1b[2J"}, "origin"),
        ({"height": 1.0}, {"failure": "both"}, "one of both"),
        ({}, {}, "one of both"),
        ([("height", 1.0)], {}, "give a dict of numbers"),
        ("height", {}, "give a dict of numbers"),
        ({"height": 1.0}, {"uncertainty": [0.1]}, "uncertainty=.*give a dict"),
        ({"height": 10**400}, {}, "no finite number"),
        ({"height": 10**5000}, {}, "a number of more than 4300 digits"),
        ({"height": (1e308, "m")}, {}, "no finite number"),
        ({}, {"failure": 123}, "failure=123 must say in words"),
        ({"height": 1.0}, {"replicate": 10**30}, r"replicate=10{30} must be a whole number, 0 to \d+"),
        ({"height": 1.0}, {"replicate": 10**5000}, "replicate=a number of more"),
    ],
)
def test_what_cannot_be_true_is_not_told(
    tmp_path: Path, metrics: dict[str, Any], more: dict[str, Any], words: str
) -> None:
    with opened(tmp_path / "r") as coordinator:
        asked = coordinator.ask(1)[0]
        with pytest.raises(BadInput, match=words):
            coordinator.tell(asked, metrics, **more)
        assert not list((tmp_path / "r" / "work").iterdir())
        assert coordinator.tell(asked, {"height": 1.0}).manifest.role == "suggested"  # it is still asked for


def test_what_no_table_holds_is_refused_and_the_largest_is_kept(tmp_path: Path) -> None:
    point = {"x": 0.0, "y": 0.0}
    with opened(tmp_path / "r") as coordinator:
        for call in (coordinator.run_points, coordinator.submit):
            with pytest.raises(BadInput, match="replicate=18446744073709551616"):
                call([point], replicate=2**64)
        for nothing in (None, 3, "x"):
            with pytest.raises(BadInput, match="submit takes a list of points"):
                coordinator.submit(nothing)
        for n in (0, 10**9, 10**5000):
            with pytest.raises(BadInput, match="at least 1 and at most 10000"):
                coordinator.ask(n)
        coordinator.tell(point, {"height": 1.0}, replicate=2**63 - 1)
        assert coordinator.run_points([point], replicate=2**63 - 1)[0].ok
    frame = ha.open_run(tmp_path / "r").to_pandas()
    assert list(frame["replicate"]) == [2**63 - 1] * 2
    with pytest.raises(BadInput, match="seed=9223372036854775808"):
        campaign(seed=2**63)
    with pytest.raises(BadInput, match="seed"):
        hill.manifest(point, seed=2**64)


@pytest.mark.parametrize("name", ["app.json", "campaign.toml"])
def test_a_pipe_in_place_of_a_record_is_refused_and_not_waited_for(tmp_path: Path, name: str) -> None:
    with opened(tmp_path / "r") as coordinator:
        coordinator.run_points([{"x": 0.0, "y": 0.0}])
    (tmp_path / "r" / name).unlink()
    os.mkfifo(tmp_path / "r" / name)
    with pytest.raises(BadInput, match=f"{name}.* cannot be read"):
        ha.open_run(tmp_path / "r")


def test_behind_its_with_block_a_coordinator_is_closed(tmp_path: Path) -> None:
    with opened(tmp_path / "r") as coordinator:
        assert coordinator.run_points([{"x": 0.0, "y": 0.0}])[0].ok
    for late in (
        lambda: coordinator.submit([{"x": 1.0, "y": 0.0}]),
        lambda: coordinator.ask(1),
        lambda: coordinator.tell({"x": 1.0, "y": 0.0}, {"height": 1.0}),
        lambda: coordinator.enqueue([{"x": 1.0, "y": 0.0}]),
        lambda: coordinator.over,
        lambda: next(iter(coordinator)),
    ):
        with pytest.raises(BadInput, match="closed at the end of its `with` block"):
            late()
    with opened(tmp_path / "r") as other:  # nobody holds the lock
        assert other.ask(1)
    with coordinator:  # meant so
        assert coordinator.ask(1)


def test_told_again_is_one_measurement_and_survives_a_damaged_journal(tmp_path: Path) -> None:
    point = {"x": 2.0, "y": 0.0}
    with opened(tmp_path / "r") as coordinator:
        first = coordinator.tell(point, {"height": 8.7})
        assert coordinator.tell(point, {"height": 8.7}) == first
        assert coordinator.tell(point, {"height": 8.9}).manifest.replicate == 1
        assert coordinator.tell(point, {"height": 8.7}, replicate=2).manifest.replicate == 2
        with pytest.raises(BadInput, match="other numbers"):
            coordinator.tell(point, {"height": 1.0}, replicate=2)
    journal = tmp_path / "r" / "events.jsonl"
    lines = [line for line in journal.read_text().splitlines() if '"event":"told"' not in line]
    journal.write_text("\n".join(lines) + "\n")
    with opened(tmp_path / "r") as coordinator:
        assert [r["height"] for r in coordinator.result().results] == [8.7, 8.9, 8.7]
        assert coordinator.tell(point, {"height": 8.9}).manifest.replicate == 1
        assert list(coordinator.results()) == [] and not ran


def test_the_loop_goes_on_after_a_script_and_finish_ends_it(tmp_path: Path) -> None:
    told: list[ha.types.Event] = []
    with ha.Coordinator(campaign(), site="threads", run_dir=tmp_path / "r", watch=told.append) as coordinator:
        coordinator.submit([{"x": i / 2, "y": 0.0} for i in range(6)])
        batches = [(batch.number, len(batch.results)) for batch in coordinator]
        result = coordinator.result()
        assert [r.manifest.batch for r in result.results[:6]] == [0] * 6  # submitted at once
        assert batches == [(0, 6), (1, 4), (2, 4), (3, 4), (4, 2)] and result.reason is not None
    assert sum(len(e.results) for e in told if e.kind == "batch") == 20
    with opened(tmp_path / "s") as coordinator:
        coordinator.submit([{"x": 1.0, "y": 0.5}])
        result = coordinator.finish("the script has what it wants")
        assert result.reason == "the script has what it wants" and result.best is not None
    assert read_run(tmp_path / "s").reason == "the script has what it wants"


def test_several_threads_may_drive_and_several_tasks_await(tmp_path: Path) -> None:
    with opened(tmp_path / "r") as coordinator:
        found: dict[int, float] = {}

        def drive(i: int) -> None:
            for j in range(2):
                found[10 * i + j] = coordinator.run_points([{"x": i / 2, "y": j / 2}])[0]["weight"]

        threads = [threading.Thread(target=drive, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == {10 * i + j: i / 2 + j / 2 for i in range(4) for j in range(2)}

        async def together() -> list[float]:
            ticks = 0

            async def tick() -> None:
                nonlocal ticks
                while True:
                    ticks += 1
                    await asyncio.sleep(0.001)

            ticking = asyncio.create_task(tick())
            runs = coordinator.submit([{"x": 3.0, "y": j / 4} for j in range(4)])
            results = await asyncio.gather(*(asyncio.ensure_future(_value(run)) for run in runs))
            seen = [r["weight"] async for r in coordinator.results()]
            ticking.cancel()
            assert ticks > 1 and sorted(seen) == sorted(results)
            return results

        assert asyncio.run(together()) == [3.0, 3.25, 3.5, 3.75]
        run = coordinator.submit([{"x": 3.95, "y": 0.0}])[0]
        failed = run.result()
        assert failed.failure is not None and failed.failure.name == "Fell"
    with pytest.raises(Interrupted, match="closed"):
        coordinator_closed(run)


async def _value(run: Any) -> float:
    result = await run
    return float(result["weight"])


def coordinator_closed(run: Any) -> None:
    run._asking.wait(lambda: False, 1.0)
