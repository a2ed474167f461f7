"""Runs that wait at a site: whose turn it is, how many go, how often one is tried; over sites that are fakes."""

from __future__ import annotations

import json
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from hpcagent.catalog import find_app
from hpcagent.model.records import Failure, Manifest, Result
from hpcagent.workspace import desk, kept
from hpcagent.workspace.afterwards import AFTERWARDS
from hpcagent.workspace.desk import Desk, Job
from hpcagent.workspace.kept import Kept

PATIENCE_S = 60.0
APP = find_app("synthetic")


def until(true: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < end, "it has not come about"
        time.sleep(0.005)


def ended_as(manifest: Manifest, failure: str = "") -> Result:
    if not failure:
        return Result(manifest=manifest, status="COMPLETED", started_at=1.0, ended_at=2.0)
    why = Failure.model_validate({"kind": "infrastructure", "name": failure, "message": "it is gone"})
    return Result(manifest=manifest, status="FAILED", failure=why, started_at=1.0, ended_at=2.0)


class FakeSite:
    """A site with so many workers, whose runs end when the test says so."""

    def __init__(self, workers: int) -> None:
        self.workers, self.asked = workers, 0
        self.may_open = threading.Event()
        self.sent: list[Future[Any]] = []
        self.about: dict[str, Any] = {"name": "fake", "node_cores": 1}
        self.answer: Callable[[Future[Any]], None] = lambda future: None

    def place(self, resources: Any, *, estimated_runtime_s: float | None = None) -> tuple[str, dict[str, Any]]:
        return "all", {}

    def workers_for(self, resources: Any) -> int:
        self.asked += 1
        return self.workers

    def submit(self, function: Any, *args: Any, executor: str, needs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.sent.append(future)
        self.answer(future)
        return future

    def news(self) -> list[str]:
        return []

    def close(self) -> None:
        pass


class Jobs:
    """Jobs of a test, and what has become of them."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.ended: list[Result] = []

    def new(self, owner: str, n: int) -> Job:
        manifest = APP.manifest({"x": n / 10}, seed=sum(map(ord, owner)))
        return Job(
            APP,
            manifest,
            (),
            lambda result, lost: self.ended.append(result),
            lambda: self.began.append(f"{owner}{n}"),
            owner,
        )


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Desk]]:
    """A desk of a fake site."""
    made: list[Desk] = []

    def open_desk(site: FakeSite, retries: int = 1) -> Desk:
        def open_site(*_: Any, **__: Any) -> FakeSite:
            assert site.may_open.wait(PATIENCE_S)
            return site

        monkeypatch.setattr(desk, "open_site", open_site)
        made.append(Desk("fake", tmp_path / "site", tmp_path / "work", retries=retries, tell=print))
        return made[-1]

    yield open_desk
    for one in made:
        one.close()


def test_owners_take_turns(opened):
    site, jobs = FakeSite(workers=10), Jobs()
    here = opened(site)
    for owner in ("ada", "bob"):
        for n in (1, 2, 3):
            here.add(jobs.new(owner, n))
    site.may_open.set()
    until(lambda: len(jobs.began) == 6)
    assert jobs.began == ["ada1", "bob1", "ada2", "bob2", "ada3", "bob3"]


def test_a_site_has_one_run_ahead_of_each_worker_and_no_more(opened):
    site, jobs = FakeSite(workers=1), Jobs()
    here = opened(site)
    for n in range(1, 6):
        here.add(jobs.new("ada", n))
    site.may_open.set()
    until(lambda: site.asked == 3 or len(site.sent) > 2)  # whether there is room for the third
    assert jobs.began == ["ada1", "ada2"] and here.busy == 5
    site.sent[0].set_result(ended_as(jobs.new("ada", 1).manifest))
    until(lambda: len(site.sent) > 2)
    assert jobs.began == ["ada1", "ada2", "ada3"] and [one.status for one in jobs.ended] == ["COMPLETED"]


def test_a_run_that_the_machine_always_loses_is_given_up(opened):
    site, jobs = FakeSite(workers=1), Jobs()
    job = jobs.new("ada", 1)
    site.may_open.set()

    def lose(future: Future[Any]) -> None:  # the end that a desk without a bound would not come to
        future.set_result(ended_as(job.manifest, "NodeFailed" if len(site.sent) < 50 else ""))

    site.answer = lose
    opened(site, retries=1).add(job)
    until(lambda: jobs.ended)
    # The node's failures are not charged to the run: three times as many attempts as it may have, and the first.
    assert jobs.ended[0].status == "FAILED" and len(site.sent) == 3 * (1 + 1) + 1


def test_a_run_is_started_again_as_often_as_retries_says(opened):
    site, jobs = FakeSite(workers=1), Jobs()
    job = jobs.new("ada", 1)
    site.may_open.set()
    site.answer = lambda future: future.set_result(ended_as(job.manifest, "SiteFailed"))
    opened(site, retries=2).add(job)
    until(lambda: jobs.ended)
    assert jobs.ended[0].failure.name == "SiteFailed" and len(site.sent) == 1 + 2


def test_an_attempt_that_is_lost_is_charged_the_share_of_its_node(opened, tmp_path):
    site, jobs = FakeSite(workers=1), Jobs()
    site.about["node_cores"] = 4
    job = jobs.new("ada", 1)
    folder = tmp_path / "work" / job.manifest.execution_id
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text("{}")
    os.utime(folder / "manifest.json", (time.time() - 3600,) * 2)
    site.may_open.set()
    site.answer = lambda future: future.set_result(ended_as(job.manifest, "SiteFailed"))
    opened(site, retries=0).add(job)
    until(lambda: jobs.ended)
    assert jobs.ended[0].cost.node_hours == pytest.approx(0.25, rel=0.05)


# -- a site that another process keeps -----------------------------------------------------------


class FakeKeeper:
    """A connection to a keeper: what was written to it, and what it says."""

    def __init__(self, *, dies: bool = False) -> None:
        self.dies = dies
        self.written: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.says: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def write(self, one: dict[str, Any]) -> None:
        self.written.put(one)

    def read(self) -> bytes:
        return b"" if self.dies else self.says.get(timeout=PATIENCE_S)

    def say(self, **said: Any) -> None:
        self.says.put(json.dumps(said).encode())

    def close(self) -> None:
        self.says.put(b"")


def test_a_run_is_handed_to_the_keeper_and_its_end_is_taken(tmp_path, monkeypatch):
    keeper, jobs = FakeKeeper(), Jobs()
    monkeypatch.setattr(kept, "connect", lambda *_, **__: keeper)
    here, job = Kept("fake", tmp_path / "site", retries=1, tell=print), jobs.new("ada", 1)
    here.add(job)
    work = job.manifest.execution_id
    assert keeper.written.get(timeout=PATIENCE_S) == {"do": "wanted", "runs": [work]}
    run = keeper.written.get(timeout=PATIENCE_S)
    assert (run["do"], run["owner"], run["manifest"]["execution_id"]) == ("run", "ada", work)
    keeper.say(began=work)
    keeper.say(ended=work, result=ended_as(job.manifest).model_dump(mode="json"), lost_node_hours=0.5)
    until(lambda: jobs.ended)
    assert jobs.began == ["ada1"] and jobs.ended[0].status == "COMPLETED" and here.busy == 0
    here.close()


def test_a_run_is_sent_behind_the_answer_and_never_behind_its_cancellation(tmp_path, monkeypatch):
    keeper, jobs = FakeKeeper(), Jobs()
    monkeypatch.setattr(kept, "connect", lambda *_, **__: keeper)
    here = Kept("fake", tmp_path / "site", retries=1, tell=print)
    here.add(jobs.new("ada", 1))
    assert [keeper.written.get(timeout=PATIENCE_S)["do"] for _ in range(2)] == ["wanted", "run"]
    second, third = jobs.new("ada", 2), jobs.new("ada", 3)
    with AFTERWARDS.answering():
        here.add(second)
        with pytest.raises(queue.Empty):
            keeper.written.get(timeout=0.05)
        asked = threading.Thread(
            target=here.cancel, args=[second.manifest.execution_id]
        )  # another client, meanwhile
        asked.start()
        said = [keeper.written.get(timeout=PATIENCE_S) for _ in range(2)]
        assert [one["do"] for one in said] == ["run", "cancel"]
        keeper.say(how=second.manifest.execution_id, far="waiting")
        asked.join()
        here.add(third)
    assert keeper.written.get(timeout=PATIENCE_S)["manifest"]["execution_id"] == third.manifest.execution_id
    here.close()


def test_a_run_with_which_keepers_always_end_is_given_up(tmp_path, monkeypatch):
    jobs, keepers, news = Jobs(), [], []

    def connect(*_: Any, **__: Any) -> FakeKeeper:
        keepers.append(FakeKeeper(dies=True))
        return keepers[-1]

    monkeypatch.setattr(kept, "connect", connect)
    here = Kept("fake", tmp_path / "site", retries=1, tell=news.append)
    here.add(jobs.new("ada", 1))
    until(lambda: jobs.ended)
    assert jobs.ended[0].failure.name == "SiteFailed" and len(keepers) == 1 + 2
    assert "another is started" in news[0]
    here.close()
