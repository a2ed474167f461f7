"""Runs are looked at while they go on: functions that yield, and the thread that looks at a program."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import hpcagent as ha
from hpcagent.apps.guard import Sofar
from hpcagent.apps.run import Outcome, Run, noted, noting
from hpcagent.apps.watching import Watching, driven
from hpcagent.apps.worker import execute
from hpcagent.errors import AppFailed

GUARD: Mapping[str, Any] = {
    "stops": ["blown_up", "limit"],
    "confidence": 0.95,
    "least_share": 0.1,
    "every_s": 0.01,
    "limits": [{"metric": "heat", "op": "<=", "value": 10.0}],
    "goal": None,
    "kinds": {"heat": "mean"},
}


def ordered(app: Any, folder: Path, guard: Mapping[str, Any] | None, **params: Any) -> dict[str, Any]:
    order = app.order(app.manifest(params), work=folder, site={})
    return execute(order if guard is None else {**order, "guard": dict(guard)})


def counting(level: float, log: list[str], last: Any = None) -> Iterator[Any]:
    try:
        for step in range(1, 11):
            log.append(f"step {step}")
            yield {"heat": level + 0.01 * step}, {"heat": 0.1}, step / 10
        if last is not None:
            return last
    finally:
        log.append("closed")


def heated(level: float, run: Run) -> Iterator[tuple[dict[str, float], dict[str, float]]]:
    """Ten values, and a file of what was done."""
    with (run.workdir / "done").open("w") as file:
        for step in range(1, 11):
            print(step, file=file)
            yield {"heat": level + 0.01 * (step % 3), "share": step / 10}, {"heat": 0.1}
        print("end", file=file)


def test_the_last_value_is_the_outcome_where_nothing_stops_it(tmp_path: Path) -> None:
    log: list[str] = []
    outcome = driven(counting(1.0, log), Run(workdir=tmp_path))
    assert outcome.metrics == {"heat": pytest.approx(1.1)} and outcome.uncertainty == {"heat": 0.1}
    assert log == [*(f"step {n}" for n in range(1, 11)), "closed"]
    guarded = driven(counting(1.0, []), Run(workdir=tmp_path, guard=GUARD))
    assert guarded == outcome  # and the limit, which it keeps, stops nothing


def test_what_it_returns_counts_before_what_it_yielded(tmp_path: Path) -> None:
    outcome = driven(counting(1.0, [], last={"heat": 7.0}), Run(workdir=tmp_path))
    assert outcome.metrics == {"heat": 7.0}


def test_a_function_that_breaks_a_limit_is_closed(tmp_path: Path) -> None:
    log: list[str] = []
    outcome = driven(counting(300.0, log), Run(workdir=tmp_path, guard=GUARD))
    assert outcome.stopped is not None and outcome.stopped["reason"] == "limit"
    assert outcome.bounds == {"heat": "above"} and outcome.metrics["heat"] > 300
    assert log[-1] == "closed" and "step 10" not in log


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_value_that_is_no_number_has_blown_up_at_once(tmp_path: Path, value: float) -> None:
    def values() -> Iterator[dict[str, float]]:
        yield {"heat": 1.0}
        yield {"heat": value}
        raise AssertionError("it went on")

    with pytest.raises(AppFailed, match=f"heat is {value}") as caught:
        driven(values(), Run(workdir=tmp_path, guard=GUARD))
    assert (caught.value.details["name"], caught.value.details["kind"]) == ("BlownUp", "simulation")
    assert caught.value.details["stopped"]["reason"] == "blown_up"


@pytest.mark.parametrize("yielded", [[3], [({"heat": 1.0}, {}, 1.5)], [({"heat": 1.0}, 3)], []])
def test_what_is_no_value_is_refused(tmp_path: Path, yielded: list[Any]) -> None:
    with pytest.raises(AppFailed) as caught:
        driven((value for value in yielded), Run(workdir=tmp_path))
    assert caught.value.details["name"] == "BadReturn"


def test_outcomes_and_sofars_are_values_too(tmp_path: Path) -> None:
    for value in (Outcome(metrics={"heat": 2.0}), Sofar(share=0.5, metrics={"heat": 2.0})):
        assert driven((v for v in [value]), Run(workdir=tmp_path)).metrics == {"heat": 2.0}


def test_a_metric_of_the_contract_that_is_called_share_stays(tmp_path: Path) -> None:
    outcome = driven((v for v in [{"share": 0.5}]), Run(workdir=tmp_path), {"share": ("1", True)})
    assert outcome.metrics == {"share": 0.5}


def test_an_app_that_yields_runs_on_a_worker(tmp_path: Path) -> None:
    app = ha.app(parameters={"level": ha.Float(0, 1000)}, metrics={"heat": "K"})(heated)
    whole = ordered(app, tmp_path / "a", None, level=300.0)
    assert whole["status"] == "COMPLETED" and whole["metrics"] == {"heat": pytest.approx(300.01)}
    assert (Path(whole["workdir"]) / "done").read_text().endswith("end\n")
    early = ordered(app, tmp_path / "b", GUARD, level=300.0)
    assert early["status"] == "STOPPED" and early["stopped"]["reason"] == "limit"
    assert early["bounds"] == {"heat": "above"} and early["metrics"]["heat"] > 299
    done = (Path(early["workdir"]) / "done").read_text()  # it is there: the generator was closed, and so the file
    assert done.startswith("1\n2\n") and not done.endswith("end\n")


def test_a_better_best_of_the_campaign_counts_from_the_next_look_on(tmp_path: Path) -> None:
    news = tmp_path / "guard.json"
    goal = {"metric": "heat", "direction": "minimize", "best": None, "best_error": None}
    guard = {**GUARD, "stops": ["cannot_win"], "goal": goal, "news": str(news)}
    assert driven(counting(300.0, []), Run(workdir=tmp_path, guard=guard)).stopped is None
    news.write_text("damaged")
    assert driven(counting(300.0, []), Run(workdir=tmp_path, guard=guard)).stopped is None
    news.write_text(json.dumps({"best": 100.0, "best_error": 0.5}))
    outcome = driven(counting(300.0, []), Run(workdir=tmp_path, guard=guard))
    assert outcome.stopped is not None and outcome.stopped["reason"] == "cannot_win"
    assert outcome.stopped["threshold"] == 100.0


# ---- the thread


BAD = Sofar(share=0.25, blown_up="a is nan")


def test_a_run_that_ends_when_asked_gets_no_signal() -> None:
    ended, killed = threading.Event(), threading.Event()

    def ask() -> bool:
        ended.set()
        return True

    watching = Watching(GUARD, look=lambda: BAD, ask=ask)
    watching.kill_with(killed.set)
    with watching:
        assert ended.wait(30)
    assert watching.verdict is not None and watching.verdict.reason == "blown_up"
    assert (watching.by, watching.share, killed.is_set()) == ("asked", 0.25, False)


@pytest.mark.parametrize("asked", [False, True])
def test_a_run_that_does_not_end_gets_a_signal(monkeypatch: pytest.MonkeyPatch, asked: bool) -> None:
    monkeypatch.setattr("hpcagent.apps.watching.GRACE_S", 0.05)
    killed = threading.Event()
    watching = Watching(GUARD, look=lambda: BAD, ask=lambda: asked)
    watching.kill_with(killed.set)
    with watching:
        assert killed.wait(30)
    assert watching.by == "signal"


def test_what_is_wrong_with_watching_is_said_and_the_run_goes_on() -> None:
    looked = threading.Event()

    def look() -> Sofar | None:
        looked.set()
        raise ZeroDivisionError("no")

    with noting():
        with Watching(GUARD, look) as watching:
            assert looked.wait(30)
        assert watching.verdict is None
        assert noted() == ("the run was not watched to its end: ZeroDivisionError: no",)
