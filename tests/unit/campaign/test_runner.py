"""Which runs are started again after their job has ended, and which are not: the site is played here."""

from __future__ import annotations

import contextlib
import os
import queue
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpcagent.apps import run_records, worker
from hpcagent.apps.base import App
from hpcagent.apps.landscape import synthetic
from hpcagent.campaign import attempts
from hpcagent.campaign.runner import Runner
from hpcagent.campaign.state import State
from hpcagent.errors import BlockLost
from hpcagent.sites.workers.fair_share import Turns
from hpcagent.store.journal import Journal, read_events
from hpcagent.store.rundir import RunDir

WHOLE_S = 3000.0


class PlayedSite:
    """Keeps what is submitted until the test ends it."""

    about: dict[str, Any] = {}
    workers = 4

    def __init__(self) -> None:
        self.turns = Turns()
        self.priorities: dict[str, float] = {}
        self.sent: dict[str, tuple[Future[Any], dict[str, Any]]] = {}
        self.orders: dict[str, dict[str, Any]] = {}

    def place(self, resources: Any, *, estimated_runtime_s: float | None = None) -> tuple[str, dict[str, Any]]:
        return "workers", {"walltime_s": 30.0}

    def longest_s(self, resources: Any) -> float:
        return WHOLE_S

    def submit(self, function: Any, order: Any, *, needs: Any, priority: float, **_: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.priorities[Path(order["workdir"]).name] = priority
        self.sent[Path(order["workdir"]).name] = future, needs
        self.orders[Path(order["workdir"]).name] = order
        return future

    def lose(self, *names: str, how: str) -> None:
        sent = [self.sent.pop(name)[0] for name in names]
        for future in sent:
            future.set_exception(BlockLost("job 7 ended", name=how))

    def cut(self, name: str, *, after_s: float, repair: str = "") -> None:
        failure = {"kind": "infrastructure", "name": "BlockEnded", "message": "stopped", "repair": repair}
        self.sent.pop(name)[0].set_result(
            {"status": "FAILED", "failure": failure, "cost": {"wall_s": after_s, "node_hours": after_s / 3600}}
        )

    def end(self, name: str) -> None:
        self.sent.pop(name)[0].set_result({"status": "COMPLETED", "metrics": {"value": 1.0, "error": 0.1}})


class Bench:
    def __init__(self, folder: Path, app: App, runs: int) -> None:
        self.site, self.state, self.folder = PlayedSite(), State(), RunDir(folder)
        journal = Journal.open(self.folder.events)
        self.manifests = [app.manifest({"x": (n + 1) / max(10, runs)}, index=n, batch=0) for n in range(runs)]
        event = {"event": "batch", "batch": 0, "manifests": [m.model_dump(mode="json") for m in self.manifests]}
        self.state.apply(event)
        self.runner = Runner(app, self.site, self.state, journal, self.folder)  # type: ignore[arg-type]
        self.names = [m.execution_id for m in self.manifests]
        self.runner.start(self.manifests)

    def wants_s(self, name: str) -> float:
        return float(self.site.sent[name][1]["walltime_s"])

    def attempt(self, name: str) -> int:
        return self.state.retried.get(name, 1)

    def retries(self) -> list[dict[str, Any]]:
        return [e for e in read_events(self.folder.events) if e["event"] == "retry"]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path, synthetic, 4)


def test_a_run_that_its_block_cut_off_asks_for_more_time_and_then_for_all_that_there_is(bench: Bench) -> None:
    (name, *_) = bench.names
    assert bench.wants_s(name) == 30
    bench.site.cut(name, after_s=400)
    assert bench.runner.collect() == [] and bench.wants_s(name) == 800
    bench.site.cut(name, after_s=800)
    assert bench.runner.collect() == [] and bench.wants_s(name) == WHOLE_S
    bench.site.cut(name, after_s=WHOLE_S)
    (result,) = bench.runner.collect()
    assert result.failure is not None and result.failure.name == "BlockEnded" and name not in bench.site.sent
    assert "whole usable time of a block (3000 s)" in result.failure.message
    assert "--walltime" in str(result.failure.repair)
    assert bench.state.node_hours == pytest.approx((400 + 800 + WHOLE_S) / 3600)


def test_runs_go_as_they_were_planned_and_one_that_is_repeated_before_all(bench: Bench) -> None:
    planned = [bench.site.priorities[name] for name in bench.names]
    assert planned == sorted(set(planned))
    bench.site.lose(bench.names[3], how="BlockCancelled")
    bench.runner.collect()
    assert bench.site.priorities[bench.names[3]] < min(planned)


def test_replicates_go_before_what_else_waits(bench: Bench) -> None:
    replicate = synthetic.manifest({"x": 0.9}, replicate=1, index=4, priority=-1)
    other = synthetic.manifest({"x": 0.95}, index=5)
    bench.runner.start([other, replicate])
    of = bench.site.priorities
    assert of[replicate.execution_id] <= min(of[name] for name in bench.names) < of[other.execution_id]


def test_a_run_whose_job_was_ended_at_its_walltime_gets_a_whole_block_once(bench: Bench) -> None:
    (name, *_) = bench.names
    bench.site.lose(name, how="BlockTimeout")
    assert bench.runner.collect() == [] and bench.wants_s(name) == WHOLE_S
    bench.site.lose(name, how="BlockTimeout")
    (result,) = bench.runner.collect()
    assert result.failure is not None and "whole usable time" in result.failure.message


def test_a_run_that_goes_on_from_its_restart_file_may_be_cut_off_often(bench: Bench) -> None:
    (name, *_) = bench.names
    for _ in range(6):
        bench.site.cut(name, after_s=WHOLE_S, repair="continues from its restart file at step 100")
        assert bench.runner.collect() == [] and bench.wants_s(name) == 30
    bench.site.end(name)
    (result,) = bench.runner.collect()
    assert result.ok


def test_a_run_whose_job_was_cancelled_is_not_blamed_for_it(bench: Bench) -> None:
    (name, *_) = bench.names
    for _ in range(6):
        bench.site.lose(name, how="BlockCancelled")
        assert bench.runner.collect() == [] and bench.wants_s(name) == 30
    assert not any(event["charged"] for event in bench.retries())


def full(bench: Bench, name: str) -> None:
    """The worker's answer where its disk is full."""
    failure = {"kind": "infrastructure", "name": "DiskFull", "message": "No space left on device."}
    bench.site.sent.pop(name)[0].set_result(
        {"status": "FAILED", "failure": failure, "attempt": bench.attempt(name)}
    )


def test_a_run_that_met_a_full_disk_is_sent_again_after_pauses_that_grow(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(attempts.time, "monotonic", lambda: now)
    name, other = bench.names[:2]
    bench.runner.attempts.retries = 4
    waited = []
    for _ in range(4):
        full(bench, name)
        assert bench.runner.collect() == [] and name in bench.runner.running
        began = now
        while name not in bench.site.sent:
            now += 1.0
            assert bench.runner.collect() == [] and now < began + 1000
        waited.append(now - began)
    assert waited == [5.0, 20.0, 60.0, 60.0]
    assert [event["attempt"] for event in bench.retries()] == [2, 3, 4, 5]
    assert any("DiskFull, and is begun anew in 5 s" in said for said in bench.runner.news())
    # The last attempt is the last; and what is lost otherwise waits for nothing.
    full(bench, name)
    (result,) = bench.runner.collect()
    assert result.failure is not None and result.failure.name == "DiskFull"
    bench.site.lose(other, how="BlockCancelled")
    assert bench.runner.collect() == [] and other in bench.site.sent


def test_what_waits_for_room_on_the_disk_moves_with_the_others_and_is_sent_once(bench: Bench) -> None:
    (name, *_) = bench.names
    full(bench, name)
    assert bench.runner.collect() == [] and name not in bench.site.sent
    site = PlayedSite()
    bench.runner.move(site)  # type: ignore[arg-type]
    assert sorted(site.sent) == sorted(bench.names) and bench.runner.attempts.paused == []


def test_runs_of_a_job_that_ran_out_of_memory_go_one_after_the_other_until_one_is_caught(bench: Bench) -> None:
    a, b, c, d = bench.names
    bench.site.lose(a, b, how="BlockOutOfMemory")
    assert bench.runner.collect() == []
    assert set(bench.site.sent) == {a, c, d}  # b waits, and is not forgotten
    assert set(bench.runner.running) == {a, b, c, d}
    bench.site.end(a)
    bench.runner.collect()
    assert set(bench.site.sent) == {b, c, d}
    bench.site.lose(b, c, how="BlockOutOfMemory")  # of these, b was the only one suspected
    bench.runner.collect()
    assert set(bench.site.sent) == {c, d}
    bench.site.end(c)
    bench.runner.collect()
    bench.site.lose(b, how="BlockOutOfMemory")
    assert bench.runner.collect() == []
    bench.site.lose(b, how="BlockOutOfMemory")
    assert [r.manifest.execution_id for r in bench.runner.collect()] == [b]
    assert {e["execution_id"] for e in bench.retries() if e["charged"]} == {b}


def test_runs_that_a_lost_block_had_ended_on_record_are_handed_on_after_one_look_at_what_has_grown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, synthetic, 50)
    read: list[tuple[str, int]] = []
    opened = run_records._opened

    @contextlib.contextmanager
    def counted(path: Path) -> Iterator[Any]:
        with opened(path) as file:
            yield file
            read.append((path.name, os.lseek(file.fileno(), 0, os.SEEK_CUR)))

    monkeypatch.setattr(run_records, "_opened", counted)
    before, lost, later = bench.names[:30], bench.names[30:], bench.names[40:]
    answers = {name: worker.execute(bench.site.orders[name]) for name in bench.names[:40]}
    for name in before:
        bench.site.sent.pop(name)[0].set_result(answers[name])
    bench.runner.collect()
    assert not read  # nobody was lost so far
    bench.site.lose(*lost, how="BlockCancelled")
    bench.runner.collect()
    assert len(read) == 1  # one file, once, for all of them
    for name in lost:
        order = bench.site.orders[name]
        assert order["again"] and order.get("ended", {}) == ({} if name in later else answers[name])
    assert [worker.execute(bench.site.orders[name]) for name in bench.names[30:40]] == [
        answers[name] for name in bench.names[30:40]
    ]
    answers |= {name: worker.execute(bench.site.orders[name]) for name in later}
    bench.site.lose(*later, how="BlockCancelled")
    bench.runner.collect()
    assert len(read) == 2 and bench.site.orders[later[0]]["ended"] == answers[later[0]]


def test_an_answer_that_comes_while_another_thread_takes_in_is_not_lost():
    """One thread waits in `peek`; the other takes in what is there, before the first has put its answer aside."""
    runner = object.__new__(Runner)
    runner._held, runner._asked, runner._sender = deque(), [], SimpleNamespace(spread=None)
    answer = object()

    class Finished:
        def get(self, block=True, timeout=None):
            assert runner._arrived() == []
            return answer

        def get_nowait(self):
            raise queue.Empty

    runner._finished = Finished()
    assert runner.peek(1.0)
    assert runner._arrived() == [answer]
