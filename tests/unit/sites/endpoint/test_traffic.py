"""What becomes of runs on an endpoint, driven by hand: no threads, no clock, no network."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from hpcagent.errors import AppFailed, BadInput, BlockLost, SiteFailed
from hpcagent.model.failures import MOST_LOST
from hpcagent.model.records import Manifest
from hpcagent.sites.endpoint.flight import Call, Run
from hpcagent.sites.endpoint.tasks import Book, may_run, open_tasks, read_tasks
from hpcagent.sites.endpoint.traffic import LEAST_IN_FLIGHT, Traffic

ENDPOINT = "11111111-2222-3333-4444-555555555555"
ROOT = "/scratch/me/tuning-0a1b2c3d"


@dataclass
class Sent:
    future: Future[Any] = field(default_factory=Future)


class Wire:
    """Keeps what was sent, and answers when the test says so."""

    def __init__(self) -> None:
        self.sent: list[tuple[dict[str, Any], Any, bool, Sent]] = []
        self.refuse: list[Exception] = []

    def submit(self, request: dict[str, Any], *, resources: Any = None, control: bool = False) -> Sent:
        if self.refuse:
            raise self.refuse.pop(0)
        sent = Sent()
        self.sent.append((request, resources, control, sent))
        return sent

    def of(self, op: str) -> list[dict[str, Any]]:
        return [request for request, *_ in self.sent if request["op"] == op]

    def answer(self, request: dict[str, Any], **fields: Any) -> None:
        sent = next(s for r, _, _, s in reversed(self.sent) if r["key"] == request["key"] and not s.future.done())
        sent.future.set_result({"protocol": 1, "key": request["key"], **fields})


class There:
    """Traffic with its wire, its ledger and its clock."""

    def __init__(self, folder: Path, *, at_once: int = 8, offline_wait_s: float = 60.0) -> None:
        self.now = 0.0
        self.wire = Wire()
        self.told: list[str] = []
        self.ledger = folder / "jobs.jsonl"
        self.book = Book(self.ledger, site="far", executor="workers", endpoint_id=ENDPOINT, root=ROOT)
        self.traffic = Traffic(
            self.wire,
            self.book,
            root=ROOT,
            site="far",
            endpoint_id=ENDPOINT,
            at_once=at_once,
            offline_wait_s=offline_wait_s,
            came=lambda key, future: self.traffic.answered(key, future, self.now),
            tell=self.told.append,
        )

    def add(self, *runs: Run) -> None:
        for run in runs:
            self.traffic.add(run)
        self.traffic.dispatch(self.now)

    def answer(self, request: dict[str, Any]) -> None:
        self.wire.answer(request, answers=[answer_of(order) for order in request["orders"]])


def run(index: int = 0, *, estimated_s: float = 10.0, priority: float = 1.0, **changes: Any) -> Run:
    manifest = Manifest(
        execution_id=f"run-{index}",
        app="fake",
        app_version="1",
        params={"x": float(index)},
        seed=1,
        input_digest="d",
        index=index,
        estimated_runtime_s=estimated_s,
    )
    fields = {
        "call": Call(1, single=True),
        "index": 0,
        "manifest": manifest.model_dump(),
        "attempt": 1,
        "workdir": f"/here/work/{manifest.execution_id}",
        "order": {"manifest": manifest.model_dump(mode="json")},
        "upstream": [],
        "blobs": {},
        "like": ("fake",),
        "resources": None,
        "estimated_s": estimated_s,
        "size": 1000,
        "priority": priority,
    }
    return Run(**{**fields, **changes})


def answer_of(order: dict[str, Any], **changes: Any) -> dict[str, Any]:
    name = order["manifest"]["execution_id"]
    fields = {
        "status": "COMPLETED",
        "started_at": 1.0,
        "ended_at": 1.01,
        "host": "n1",
        "cost": {"wall_s": 0.01, "cpu_s": 0.01, "core_hours": 1e-6, "node_hours": 1e-6},
        "workdir": f"{ROOT}/work/{name}",
        "attempt": 1,
        "metrics": {"value": order["manifest"]["params"]["x"]},
        "units": {"value": "1"},
        "remote": {"workdir": f"{ROOT}/work/{name}", "files": {"log.txt": [12, None]}},
    }
    return {**fields, **changes}


@pytest.fixture
def there(tmp_path: Path) -> There:
    return There(tmp_path)


def test_a_run_comes_back_with_its_remote_files_and_its_own_directory_here(there: There) -> None:
    one = run(3)
    there.add(one)
    request = there.wire.of("run")[0]
    assert [task.key for task in open_tasks(there.ledger)] == [request["key"]]  # written before it is sent
    there.answer(request)
    fields = one.call.future.result(0)
    assert fields["metrics"] == {"value": 3.0}
    assert fields["workdir"] == one.workdir
    assert fields["remote"]["workdir"] == f"{ROOT}/work/{one.execution_id}"
    assert fields["remote"]["files"] == {"log.txt": [12, None]}
    there.book.flush()
    assert read_tasks(there.ledger)[request["key"]].ended == "finished"


def test_short_runs_travel_together_and_leave_work_for_every_place(there: There) -> None:
    runs = [run(i, estimated_s=0.01) for i in range(200)]
    there.add(*runs)
    sizes = [len(request["orders"]) for request in there.wire.of("run")]
    assert sum(sizes) == 200
    assert 2 * 8 <= len(sizes) <= 4 * 8  # so every one of the 8 places has some, and none waits for one long task
    for request in there.wire.of("run"):
        there.answer(request)
    assert [r.call.future.result(0)["metrics"]["value"] for r in runs] == [float(i) for i in range(200)]


def test_long_runs_travel_alone_in_the_order_of_their_priorities_and_no_more_than_needed(there: There) -> None:
    there.add(*(run(i, priority=200.0 - i) for i in range(200)))
    requests = there.wire.of("run")
    assert len(requests) == LEAST_IN_FLIGHT
    assert [r["orders"][0]["manifest"]["params"]["x"] for r in requests] == [199.0 - i for i in range(64)]
    urgent = run(500, priority=0.0)
    there.answer(requests[0])
    there.add(urgent)
    assert there.wire.of("run")[-1]["orders"][0]["manifest"]["params"]["x"] == 500.0


def test_nodes_and_ranks_go_with_the_task_and_never_with_a_neighbour_of_another_size(there: There) -> None:
    two = {"num_nodes": 2, "ranks_per_node": 4, "num_ranks": 8}
    there.add(
        run(1, estimated_s=0.001, like=("fake", "2x4"), resources=two),
        run(2, estimated_s=0.001, like=("fake", "1x1"), resources=None),
    )
    assert [resources for _, resources, *_ in there.wire.sent] == [two, None]


def test_inputs_are_sent_once_by_content_and_before_the_runs_that_need_them(there: There) -> None:
    there.add(*(run(i, blobs={"ab" * 32: b"shared"}) for i in range(3)))
    assert [r["sha256"] for r in there.wire.of("put")] == ["ab" * 32]
    assert there.wire.of("run") == []
    there.wire.answer(there.wire.of("put")[0], stored=True)
    assert len(there.wire.of("run")) == 3
    there.add(run(4, blobs={"ab" * 32: b"shared"}))
    assert len(there.wire.of("put")) == 1
    assert len(there.wire.of("run")) == 4


def test_what_the_endpoint_lacks_after_all_is_sent_again_but_not_for_ever(there: There) -> None:
    one = run(blobs={"ab" * 32: b"shared"})
    there.add(one)
    for tries in range(4):
        there.wire.answer(there.wire.of("put")[tries], stored=True)
        there.wire.answer(there.wire.of("run")[tries], missing=["ab" * 32])
    with pytest.raises(AppFailed, match="lacks inputs"):
        one.call.future.result(0)


def test_one_request_that_is_refused_fails_its_own_run_only(there: There) -> None:
    there.wire.refuse.append(AppFailed("too large", kind="contract", name="TooLarge"))
    large, small = run(1), run(2)
    there.add(large, small)
    assert large.call.future.exception(0).details["name"] == "TooLarge"  # type: ignore[union-attr]
    there.answer(there.wire.of("run")[0])
    assert small.call.future.result(0)["metrics"] == {"value": 2.0}


@pytest.mark.parametrize(
    "odd",
    [{"metrics": {"value": float("nan")}}, {"cost": {"node_hours": float("nan")}}, {"cost": {"wall_s": -1e6}}],
)
def test_of_a_pack_the_run_without_a_good_answer_alone_has_failed(there: There, odd: dict[str, Any]) -> None:
    call = Call(2, single=False)
    runs = [replace(run(i, estimated_s=0.001), call=call, index=i) for i in range(2)]
    there.add(*runs)
    for request in there.wire.of("run"):
        first = request["orders"][0]["manifest"]["params"]["x"] == 0.0
        answers = [answer_of(order, **(odd if first else {})) for order in request["orders"]]
        there.wire.answer(request, answers=answers)
    bad, good = call.future.result(0)
    assert (bad["failure"]["name"], bad["failure"]["kind"]) == ("BadResult", "infrastructure")
    assert good["metrics"] == {"value": 1.0}


@pytest.mark.parametrize(
    "changes",
    [
        {"metrics": {"value": float("inf")}},
        {"metrics": {"value": True}},
        {"metrics": ["value"]},
        {"metrics": {"value": 10**400}},
        {"status": "FAILED"},
        {"status": "DONE"},
        {"started_at": float("nan")},
        {"notes": ["x" * 5_000_000]},
        {"failure": {"kind": "nobody", "name": "X", "message": ""}},
    ],
    ids=str,
)
def test_an_answer_that_is_no_result_is_a_failed_attempt(there: There, changes: dict[str, Any]) -> None:
    one = run()
    there.add(one)
    request = there.wire.of("run")[0]
    there.wire.answer(request, answers=[answer_of(request["orders"][0], **changes)])
    error = one.call.future.exception(0)
    assert isinstance(error, AppFailed)
    assert (error.details["name"], error.details["kind"]) == ("BadResult", "infrastructure")
    assert len(str(error)) < 1000


@pytest.mark.parametrize("answer", [{"answers": []}, {"answers": "all"}, {}, {"key": "0" * 32, "answers": [{}]}])
def test_an_answer_to_something_else_is_a_failed_attempt(there: There, answer: dict[str, Any]) -> None:
    one = run()
    there.add(one)
    sent = there.wire.sent[0]
    sent[3].future.set_result({"key": sent[0]["key"], **answer})
    assert one.call.future.exception(0).details["name"] == "BadResult"  # type: ignore[union-attr]


def test_an_answer_cannot_point_out_of_its_directory_or_pretend_to_be_another_run(there: There) -> None:
    one = run()
    there.add(one)
    request = there.wire.of("run")[0]
    remote = {"workdir": "/etc", "files": {"../../../home/me/.ssh/id": [1, None], "good.txt": [1, None]}}
    odd = answer_of(request["orders"][0], remote=remote, manifest={"app": "other"}, attempt=9, site="elsewhere")
    there.wire.answer(request, answers=[odd])
    fields = one.call.future.result(0)
    assert list(fields["remote"]["files"]) == ["good.txt"]
    assert fields["attempt"] == 1
    assert "manifest" not in fields
    assert any("manifest" in note for note in fields["notes"])


def test_an_error_there_keeps_its_name_its_kind_its_words_and_the_end_of_its_log(there: There) -> None:
    one = run()
    there.add(one)
    error = {"name": "DiskFull", "kind": "infrastructure", "message": "no space", "log_tail": "the end"}
    there.wire.answer(there.wire.of("run")[0], error=error)
    raised = one.call.future.exception(0)
    assert isinstance(raised, AppFailed)
    assert {name: raised.details[name] for name in ("name", "kind", "log_tail")} == {
        "name": "DiskFull",
        "kind": "infrastructure",
        "log_tail": "the end",
    }


# -- lost tasks -------------------------------------------------------------------------------


def test_after_the_endpoint_was_away_what_it_never_began_is_sent_again_and_nothing_else(there: There) -> None:
    runs = [run(i) for i in range(3)]
    there.add(*runs)
    lost, going, done = there.wire.of("run")
    there.traffic.status(False, "", 10.0)
    assert "is offline" in there.told[0]
    there.now = 20.0
    there.traffic.status(True, "", 20.0)
    look = there.wire.of("look")[0]
    assert sorted(look["keys"]) == sorted(request["key"] for request in (lost, going, done))
    there.answer(done)  # was under way
    states = {
        lost["key"]: {"state": "waiting"},
        going["key"]: {"state": "running"},
        done["key"]: {"state": "finished"},
    }
    there.wire.answer(look, states=states)
    there.traffic.dispatch(20.0)
    again = there.wire.of("run")[3:]
    assert [r["orders"] for r in again] == [lost["orders"]]
    assert again[0]["key"] != lost["key"]
    there.answer(again[0])
    assert runs[0].call.future.result(0)["metrics"] == {"value": 0.0}
    assert not runs[1].call.future.done()
    # It goes on there; if its worker dies meanwhile, the next question tells.
    there.traffic.tick(60.0)
    there.wire.answer(there.wire.of("look")[1], states={going["key"]: {"state": "dead"}})
    there.traffic.dispatch(60.0)
    there.answer(there.wire.of("run")[-1])
    assert runs[1].call.future.result(0)["metrics"] == {"value": 1.0}
    there.book.flush()
    assert open_tasks(there.ledger) == []


def test_a_task_that_was_taken_for_lost_and_answers_after_all_is_taken_and_its_twin_ignored(there: There) -> None:
    one = run(7)
    there.add(one)
    first = there.wire.of("run")[0]
    there.traffic.mark(1.0)
    there.wire.answer(there.wire.of("look")[0], states={first["key"]: {"state": "waiting"}})
    there.traffic.dispatch(1.0)
    there.answer(first)
    assert one.call.future.result(0)["metrics"] == {"value": 7.0}
    there.answer(there.wire.of("run")[1])
    assert not there.traffic.busy


def test_a_long_silence_asks_and_a_run_that_is_lost_too_often_is_given_up(there: There) -> None:
    one = run()
    there.add(one)
    now = 0.0
    for _ in range(MOST_LOST + 1):
        now += 1000.0
        there.now = now
        there.traffic.tick(now)
        there.wire.answer(
            there.wire.of("look")[-1], states={there.wire.of("run")[-1]["key"]: {"state": "waiting"}}
        )
        there.traffic.dispatch(now)
    error = one.call.future.exception(0)
    assert isinstance(error, BlockLost)
    assert error.details["name"] == "EndpointLost"


def test_an_endpoint_that_is_online_and_answers_nothing_is_told_once(there: There) -> None:
    there.add(run())
    for now in (1000.0, 2000.0, 4000.0, 6000.0):
        there.now = now
        there.traffic.tick(now)
        assert len(there.told) == (now > 1000.0)  # the first question may wait behind long runs
    assert "answers nothing" in there.told[0] and "1 task(s)" in there.told[0]


# -- offline ----------------------------------------------------------------------------------


def test_while_it_is_offline_nothing_is_sent_and_after_the_wait_the_site_has_failed(there: There) -> None:
    sent, held = run(1), run(2)
    there.add(sent)
    there.traffic.status(False, "no heartbeat", 100.0)
    there.add(held)
    assert len(there.wire.of("run")) == 1
    assert "no heartbeat" in there.told[0]
    assert "60 s" in there.told[0]
    there.traffic.tick(159.0)
    assert not held.call.future.done()
    there.traffic.tick(161.0)
    for one in (sent, held):
        error = one.call.future.exception(0)
        assert isinstance(error, BlockLost)
        assert error.details["name"] == "EndpointOffline"
    assert isinstance(there.traffic.refusal, SiteFailed)
    assert [task.runs for task in open_tasks(there.ledger)] == [{sent.execution_id: 1}]  # taken up on resume


def test_a_campaign_that_waits_for_no_endpoint_ends_at_once(tmp_path: Path) -> None:
    there = There(tmp_path, offline_wait_s=0.0)
    one = run()
    there.add(one)
    there.traffic.status(False, "", 1.0)
    assert one.call.future.done()


def test_a_service_that_does_not_answer_is_said_once_and_is_not_an_offline_endpoint(there: There) -> None:
    there.add(run())
    for now in range(5):
        there.traffic.status(None, "ConnectionError", float(now))
    assert len(there.told) == 1
    assert len(there.wire.of("run")) == 1


def test_a_link_that_has_failed_for_good_is_the_end_of_the_site_and_not_of_the_runs(there: There) -> None:
    one, other = run(1), run(2)
    there.add(one, other)
    there.wire.sent[0][3].future.set_exception(SiteFailed("nobody is logged in"))
    for ended in (one, other):
        error = ended.call.future.exception(0)
        assert isinstance(error, BlockLost)
        assert error.details["name"] == "EndpointOffline"
    assert str(there.traffic.refusal) == "nobody is logged in"
    assert len(open_tasks(there.ledger)) == 2


# -- an earlier session -----------------------------------------------------------------------


def test_tasks_of_an_earlier_session_are_taken_up_and_nothing_is_sent_twice(tmp_path: Path) -> None:
    before = There(tmp_path)
    before.add(*(run(i) for i in range(3)))
    requests = before.wire.of("run")

    after = There(tmp_path)
    after.traffic.adopt(open_tasks(after.ledger), 0.0)
    future: Future[Any] = Future()
    future.set_result({"key": requests[0]["key"], "answers": [answer_of(requests[0]["orders"][0])]})
    after.traffic.answered(requests[0]["key"], future, 0.0)  # came before anybody asked for it
    runs = [run(i) for i in range(3)]
    after.add(*runs)
    assert after.wire.of("run") == []
    assert runs[0].call.future.result(0)["metrics"] == {"value": 0.0}
    after.traffic.mark(1.0)
    after.wire.answer(
        after.wire.of("look")[0],
        states={requests[1]["key"]: {"state": "running"}, requests[2]["key"]: {"state": "waiting"}},
    )
    after.traffic.dispatch(1.0)
    assert [r["orders"][0]["manifest"]["params"] for r in after.wire.of("run")] == [{"x": 2.0}]
    future = Future()
    future.set_result({"key": requests[1]["key"], "answers": [answer_of(requests[1]["orders"][0])]})
    after.traffic.answered(requests[1]["key"], future, 2.0)
    assert runs[1].call.future.result(0)["metrics"] == {"value": 1.0}


def test_another_attempt_is_not_answered_by_the_task_of_the_one_before(tmp_path: Path) -> None:
    before = There(tmp_path)
    before.add(run(1))
    after = There(tmp_path)
    after.traffic.adopt(open_tasks(after.ledger), 0.0)
    after.add(run(1, attempt=2))
    assert len(after.wire.of("run")) == 1


# -- cancelling -------------------------------------------------------------------------------


def test_cancelling_drops_what_waits_and_names_the_tasks_that_have_nothing_else(there: There) -> None:
    runs = [run(i) for i in range(LEAST_IN_FLIGHT + 2)]
    there.add(*runs)
    sent, waiting = runs[0], runs[-1]
    keys = there.traffic.cancel(frozenset({sent.execution_id, waiting.execution_id}))
    assert keys == [there.wire.of("run")[0]["key"]]
    assert waiting.call.future.exception(0).details["kind"] == "cancelled"  # type: ignore[union-attr]
    assert not sent.call.future.done()  # asked for, and not confirmed
    there.wire.answer(there.wire.of("run")[0], answers=[None], cancelled=True)
    assert sent.call.future.exception(0).details["kind"] == "cancelled"  # type: ignore[union-attr]
    there.book.flush()
    assert read_tasks(there.ledger)[keys[0]].ended == "cancelled"


def test_an_input_that_is_too_large_fails_its_run_and_not_the_site(there: There) -> None:
    there.wire.refuse.append(BadInput("an input of 5 GB"))
    one, other = run(1, blobs={"cd" * 32: b"x"}), run(2)
    there.add(one, other)
    assert isinstance(one.call.future.exception(0), BadInput)
    there.answer(there.wire.of("run")[0])
    assert other.call.future.result(0)["metrics"] == {"value": 2.0}


@pytest.mark.parametrize("state", ["cancelled", "asleep", None])
def test_a_task_in_a_state_that_ends_it_or_that_nobody_knows_stays_open_for_no_one(
    there: There, state: Any
) -> None:
    one = run(1)
    there.add(one)
    key = there.wire.of("run")[0]["key"]
    there.traffic.mark(1.0)
    there.wire.answer(there.wire.of("look")[0], states={key: {"state": state}})
    error = one.call.future.exception(0)
    assert isinstance(error, AppFailed)
    assert error.kind == ("cancelled" if state == "cancelled" else "infrastructure")
    assert not there.traffic.busy


def test_a_question_that_finds_the_link_ended_fails_the_runs_at_once(there: There) -> None:
    one = run(1)
    there.add(one)
    there.wire.refuse = [SiteFailed("nobody is logged in")]
    there.traffic.mark(1.0)
    with pytest.raises(BlockLost, match="nobody is logged in"):
        one.call.future.result(0)
    assert there.traffic.refusal is not None


def test_the_twin_of_a_run_that_was_taken_for_lost_is_cancelled_reaped_and_known_after_a_resume(
    there: There, tmp_path: Path
) -> None:
    one = run(1)
    there.add(one)
    first = there.wire.of("run")[0]["key"]
    there.traffic.mark(1.0)
    there.wire.answer(there.wire.of("look")[0], states={first: {"state": "waiting"}})
    there.traffic.dispatch(1.0)
    second = there.wire.of("run")[1]["key"]
    there.book.flush()
    assert {task.key for task in may_run(read_tasks(there.ledger))} == {first, second}
    after = There(tmp_path)
    after.traffic.adopt_lost([task for task in may_run(read_tasks(there.ledger)) if task.ended])
    assert after.traffic.ghosts() == [first]
    assert sorted(there.traffic.cancel(frozenset([one.execution_id]))) == sorted([first, second])
    there.answer(there.wire.of("run")[1])
    there.book.flush()
    assert may_run(read_tasks(there.ledger)) == []
    assert there.traffic.ghosts() == []


def test_a_service_that_is_out_of_reach_is_waited_for_as_long_as_an_endpoint(there: There) -> None:
    one = run(1)
    there.add(one)
    for now in (0.0, 5.0, 10.0):
        there.traffic.status(None, "Globus cannot be reached: no route", now)
    there.traffic.status(True, "", 15.0)
    for now in (20.0, 30.0, 79.0):
        there.traffic.status(None, "Globus cannot be reached: no route", now)
    assert there.traffic.refusal is None
    there.traffic.status(None, "Globus cannot be reached: no route", 80.0)
    with pytest.raises(BlockLost, match=r"no route.*for 60 s.*resume"):
        one.call.future.result(0)
    assert [task.runs for task in open_tasks(there.ledger)] == [{one.execution_id: 1}]
