"""Rolling mode: a policy that thinks while runs go on, what it was asked, whose run is next, which is late."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hpcagent as ha
from hpcagent.apps.landscape import synthetic
from hpcagent.apps.run_records import RunRecords
from hpcagent.apps.worker import execute_each
from hpcagent.campaign import slow_runs as late
from hpcagent.campaign.decisions import decision_of, decisions, replays
from hpcagent.campaign.recent import RecentRuns, longest_expected
from hpcagent.campaign.rolling import Suggester, due, in_flight
from hpcagent.campaign.slow_runs import LateRuns
from hpcagent.errors import BadInput, Interrupted
from hpcagent.model.records import Observation
from hpcagent.policies.sweeps import Sobol
from hpcagent.sites.workers.fair_share import Turns
from hpcagent.store.journal import read_events

PATIENCE_S = 30.0
GATED = ha.maximize("value", subject_to={"error": ha.at_most(1.0)})


class Patient(Sobol):
    """Thinks until another result has been recorded than it was given."""

    journal: Path

    def suggest(self, history: Any, n: int, pending: Any = ()) -> list[Any]:
        deadline = time.monotonic() + PATIENCE_S
        while pending and recorded(self.journal) <= len(history) and time.monotonic() < deadline:
            time.sleep(0.01)
        return super().suggest(history, n, pending)


class Seen(Patient):
    """Keeps what it was asked."""

    asked: list[tuple[list[Observation], int, list[Any]]] = []

    def suggest(self, history: Any, n: int, pending: Any = ()) -> list[Any]:
        self.asked.append((list(history), n, list(pending)))
        return super().suggest(history, n, pending)


class Stuck(Sobol):
    """Answers once; the second time it waits until it is let go."""

    reached = threading.Event()
    go_on = threading.Event()

    def suggest(self, history: Any, n: int, pending: Any = ()) -> list[Any]:
        if pending and not self.go_on.is_set():
            self.reached.set()
            self.go_on.wait(PATIENCE_S)
        return super().suggest(history, n, pending)


class Broken(Sobol):
    """Fails when it has seen three results."""

    def suggest(self, history: Any, n: int, pending: Any = ()) -> list[Any]:
        if len(history) >= 3:
            raise ArithmeticError("the model does not converge")
        return super().suggest(history, n, pending)


class Brief(Sobol):
    """Has seven points."""

    def suggest(self, history: Any, n: int, pending: Any = ()) -> list[Any]:
        return super().suggest(history, n, pending)[: max(0, 7 - len(history) - len(pending))]


def recorded(journal: Path) -> int:
    return sum(len(e["results"]) for e in read_events(journal) if e["event"] == "results")


def campaign(policy: str = "sobol", **changes: Any) -> ha.Campaign:
    data: dict[str, Any] = {
        "space": {"x": {}, "y": {}},
        "fixed": {"run_time_s": 0.02, "noise": 0.02, "fail_above": 0.8},
        "policy": f"{__name__}:{policy}" if policy[0].isupper() else policy,
        "until": ha.until.max_runs(24),
        "mode": "rolling",
        "batch_size": 6,
    }
    return ha.Campaign(synthetic, GATED, **data | changes)


def run(wanted: ha.Campaign, folder: Path, **how: Any) -> ha.types.CampaignResult:
    return ha.run(wanted, site="threads", run_dir=folder, workers=2, **how)


# -- while the policy thinks ----------------------------------------------------------------------


def test_results_are_recorded_while_the_policy_thinks(tmp_path):
    Patient.journal = tmp_path / "events.jsonl"
    result = run(campaign("Patient"), tmp_path)
    assert len(result.results) == 24
    rows, meanwhile = 0, 0
    for event in read_events(tmp_path / "events.jsonl"):
        if event["event"] == "results":
            rows += len(event["results"])
        elif event["event"] == "manifests" and event["asked"]["pending"]:
            meanwhile += rows > event["asked"]["seen"]
    assert meanwhile >= 3


def test_what_the_policy_does_not_know_yet_is_pending(tmp_path):
    Patient.journal = tmp_path / "events.jsonl"
    run(campaign("Patient"), tmp_path)
    for event in read_events(tmp_path / "events.jsonl"):
        if event["event"] == "manifests":
            first = event["manifests"][0]["index"]
            assert event["asked"]["seen"] + len(event["asked"]["pending"]) == first


def test_ctrl_c_while_the_policy_thinks_leaves_a_folder_that_goes_on(tmp_path):
    Stuck.reached.clear()
    Stuck.go_on.clear()

    def watch(event: ha.types.Event) -> None:
        if Stuck.reached.is_set() and event.kind == "tick" and not Stuck.go_on.is_set():
            signal.raise_signal(signal.SIGINT)

    try:
        with pytest.raises(Interrupted, match="Go on with"):
            run(campaign("Stuck"), tmp_path, watch=watch)
    finally:
        Stuck.go_on.set()
    assert recorded(tmp_path / "events.jsonl") >= 1
    assert len(run(campaign("Stuck"), tmp_path).results) == 24
    assert replays(tmp_path) == []


def test_close_does_not_wait_for_a_policy_that_never_comes_back(tmp_path):
    Stuck.reached.clear()
    Stuck.go_on.clear()
    coordinator = ha.Coordinator(campaign("Stuck", batch_size=1), site="threads", run_dir=tmp_path, workers=2)
    try:
        for _ in coordinator:
            assert Stuck.reached.wait(PATIENCE_S)
            break
        coordinator.close()
        assert not Stuck.go_on.is_set()
    finally:
        Stuck.go_on.set()
    again = ha.Coordinator(campaign("Stuck", batch_size=1), site="threads", run_dir=tmp_path, workers=2)
    again.open()  # the folder is free
    again.close()


def test_an_exception_of_the_policy_ends_the_campaign_with_it(tmp_path):
    with pytest.raises(ArithmeticError, match="does not converge"):
        run(campaign("Broken"), tmp_path)
    assert recorded(tmp_path / "events.jsonl") >= 3


def test_a_design_that_is_exhausted_ends_the_campaign_when_its_runs_have_ended(tmp_path):
    result = run(campaign("Brief"), tmp_path)
    assert len(result.results) == 7 and "exhausted" in (result.reason or "")


def test_an_answer_that_was_given_up_is_not_taken_for_the_next():
    wakes, gate = threading.Event(), threading.Event()
    suggester = Suggester(wakes.set)

    def first() -> list[Any]:
        gate.wait(PATIENCE_S)
        return [{"k": 1}]

    suggester.ask(first)
    suggester.forget()
    suggester.ask(lambda: [{"k": 2}])
    assert not suggester.wait(0.0)
    gate.set()
    assert wakes.wait(PATIENCE_S) and suggester.wait(PATIENCE_S) and suggester.take() == [{"k": 2}]
    suggester.close()


def test_a_question_that_imports_modules_does_not_tell_how_long_the_next_takes(monkeypatch):
    def asked(suggester: Suggester, question: Callable[[], list[Any]]) -> None:
        suggester.ask(question)
        assert suggester.wait(PATIENCE_S)
        suggester.take()

    def importing() -> list[Any]:
        monkeypatch.setitem(sys.modules, "imported_by_this_question", sys)
        return []

    plain, late = Suggester(lambda: None), Suggester(lambda: None)
    asked(plain, list)
    assert plain.sure
    asked(late, importing)
    assert not late.sure and late.takes_s > 0
    asked(late, list)
    assert late.sure
    plain.close()
    late.close()


def test_more_runs_are_in_flight_where_suggestions_are_slow_or_runs_short():
    assert in_flight(8, 100.0) == 9
    assert in_flight(8, 100.0) < in_flight(8, 1.0, 0.25) < in_flight(8, 0.1, 0.25) < in_flight(8, 0.0001, 0.25)
    assert due(in_flight(64, 1.0), 64, 64) >= 1  # many workers do not wait until a part of them is idle


# -- what it was asked ----------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["batch", "rolling"])
@pytest.mark.parametrize("reference", [None, {"x": 0.5, "y": 0.5}])
def test_decisions_are_what_the_policy_was_given(tmp_path, mode, reference):
    Seen.asked.clear()
    Seen.journal = tmp_path / "events.jsonl"
    wanted = campaign("Seen", mode=mode, reference=reference)
    run(wanted, tmp_path)
    rebuilt = [(d.history, d.n, list(d.pending)) for d in decisions(tmp_path)]
    given = [asked for asked in Seen.asked if asked[1] > 0][: len(rebuilt)]
    assert rebuilt == given and len(rebuilt) >= 4
    assert any(len(history) > 10 for history, _, _ in rebuilt)
    assert any(pending for _, _, pending in rebuilt) == (mode == "rolling")


@pytest.mark.parametrize("mode", ["batch", "rolling"])
@pytest.mark.parametrize("policy", ["sobol", "quality_first", "thompson"])
def test_the_policy_says_the_same_again(tmp_path, mode, policy):
    run(campaign(policy, mode=mode, reference={"x": 0.5, "y": 0.5}), tmp_path)
    assert sum(len(d.manifests) for d in decisions(tmp_path)) == 20  # beside four of the reference
    assert replays(tmp_path) == []


def test_another_policy_is_noticed(tmp_path):
    run(campaign(), tmp_path)
    file = tmp_path / "campaign.toml"
    file.write_text(file.read_text().replace("seed = 0", "seed = 1"))
    different = replays(tmp_path)
    assert different and "run 0 was suggested at" in str(different[0])


@pytest.mark.parametrize("mode", ["batch", "rolling"])
def test_decisions_are_rebuilt_over_an_interruption(tmp_path, mode):
    Seen.asked.clear()
    Seen.journal = tmp_path / "events.jsonl"
    with ha.Coordinator(campaign("Seen", mode=mode), site="threads", run_dir=tmp_path, workers=2) as coordinator:
        for _ in coordinator:
            break
    run(campaign("Seen", mode=mode), tmp_path)
    rebuilt = [(d.history, d.n, list(d.pending)) for d in decisions(tmp_path)]
    for question in rebuilt:  # one that was asked and not answered before the interruption is not among them
        assert question in Seen.asked
    assert replays(tmp_path) == []


def test_journals_without_the_question_are_read_as_what_they_were(tmp_path):
    run(campaign(mode="batch"), tmp_path)
    file = tmp_path / "events.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    assert sum('"asked":' in line for line in lines) == 4
    events = [{k: v for k, v in json.loads(line).items() if k != "asked"} for line in lines]
    file.write_text("".join(json.dumps(event) + "\n" for event in events))
    assert [len(d.history) for d in decisions(tmp_path)] == [0, 6, 12, 18] and replays(tmp_path) == []


def test_the_decision_of_a_run_is_found_and_of_others_it_is_said_why_not(tmp_path):
    run(campaign(mode="batch", reference={"x": 0.5, "y": 0.5}), tmp_path)
    assert any(m.index == 7 for m in decision_of(tmp_path, 7).manifests)
    references = [i for i in range(6) if not any(m.index == i for d in decisions(tmp_path) for m in d.manifests)]
    with pytest.raises(BadInput, match="reference run"):
        decision_of(tmp_path, references[0])
    with pytest.raises(BadInput, match="runs 0 to 23"):
        decision_of(tmp_path, 99)


# -- whose run is next ----------------------------------------------------------------------------


def test_a_campaign_that_submits_much_does_not_keep_another_from_its_turn():
    turns = Turns()
    many, few = turns.join(), turns.join()
    waiting = [("many", many.next(1.0)) for _ in range(50)] + [("few", few.next(1.0)) for _ in range(5)]
    order = [name for name, _ in sorted(waiting, key=lambda one: one[1])]
    assert order[:10].count("few") == 5


def test_turns_are_of_worker_time_and_not_of_runs():
    turns = Turns()
    long, short = turns.join(), turns.join()
    waiting = [("long", long.next(10.0)) for _ in range(10)] + [("short", short.next(1.0)) for _ in range(30)]
    order = [name for name, _ in sorted(waiting, key=lambda one: one[1])]
    assert order[:33].count("short") == 30


def test_who_had_nothing_to_run_gets_no_credit_for_it():
    turns = Turns()
    busy, idle = turns.join(), turns.join()
    for _ in range(100):
        busy.back(busy.next(1.0))
    order = sorted([("busy", busy.next(1.0)) for _ in range(4)] + [("idle", idle.next(1.0)) for _ in range(4)])
    assert {name for name, _ in sorted(order, key=lambda one: one[1])[:4]} == {"busy", "idle"}


def test_what_is_sent_again_goes_first_and_what_is_urgent_before_its_own():
    turns = Turns()
    turn = turns.join()
    waiting = [turn.next(1.0) for _ in range(5)]
    assert turn.again() < min(waiting) and turn.next(1.0, ahead=True) <= min(waiting) < turn.next(1.0)


def test_workers_that_others_do_not_use_are_free():
    turns = Turns()
    here, there = turns.join(), turns.join()
    assert here.share(8) == 8
    sent = [there.next(1.0) for _ in range(3)]
    assert here.share(8) == 5
    sent += [there.next(1.0) for _ in range(30)]
    assert here.share(8) == 4
    for priority in sent:
        there.back(priority)
    assert here.share(8) == 8


def test_tasks_sent_by_hand_take_turns_with_a_campaign():
    turns = Turns()
    assert turns.by_hand() is None
    turn = turns.join()
    waiting = [("campaign", turn.next(1.0)) for _ in range(20)] + [("hand", turns.by_hand()) for _ in range(5)]
    order = [name for name, _ in sorted(waiting, key=lambda one: one[1] or 0.0)]
    assert order[:10].count("hand") == 5
    turn.leave()
    assert turns.by_hand() is None


def test_threads_take_the_most_urgent_first():
    order: list[str] = []
    gate = threading.Event()
    with ha.open_site("threads", workers=1, private=True) as site:
        futures = [site.submit(gate.wait, PATIENCE_S)]
        for name, priority in (("last", None), ("third", 3.0), ("first", 1.0), ("second", 2.0)):
            futures.append(site.submit(order.append, name, priority=priority))
        gate.set()
        for future in futures:
            future.result(PATIENCE_S)
    assert order == ["first", "second", "third", "last"]


@pytest.mark.parametrize("mode", ["batch", "rolling"])
def test_two_campaigns_share_a_site(tmp_path, mode):
    results: dict[str, ha.types.CampaignResult] = {}
    opened = threading.Event()

    def one(name: str, site: ha.types.Site, seed: int, watch: Any = None) -> None:
        # The first has submitted all of its runs before the second begins.
        wanted = campaign(mode=mode, batch_size=24, seed=seed, fixed={"run_time_s": 0.1})
        results[name] = ha.run(wanted, site=site, run_dir=tmp_path / name, watch=watch)

    def heard(event: ha.types.Event) -> None:
        if event.kind == "finished":
            opened.set()

    with ha.open_site("threads", workers=2, private=True) as site:
        first = threading.Thread(target=one, args=("first", site, 1, heard))
        first.start()
        assert opened.wait(PATIENCE_S)
        second = threading.Thread(target=one, args=("second", site, 2))
        second.start()
        first.join(PATIENCE_S)
        second.join(PATIENCE_S)
    begun = sorted((r.started_at, name) for name, found in results.items() for r in found.results)
    names = [name for _, name in begun]
    assert names.count("first") == names.count("second") == 24
    # From when both were there they took turns: of the next 16 runs each had a good part.
    shared = names[names.index("second") :][:16]
    assert min(shared.count("first"), shared.count("second")) >= 5


# -- several to a worker --------------------------------------------------------------------------


def test_short_runs_go_to_a_worker_together_also_in_rolling_mode(tmp_path):
    sizes: list[int] = []
    with ha.open_site("threads", workers=2, private=True) as site:
        plain = site.submit

        def submit(function: Any, orders: Any, **how: Any) -> Any:
            sizes.append(len(orders) if function is execute_each else 1)
            return plain(function, orders, **how)

        site.submit = submit  # type: ignore[method-assign]
        short = campaign(until=ha.until.max_runs(400), fixed={}, batch_size=400)
        result = ha.run(short, site=site, run_dir=tmp_path)
    assert len(result.results) == 400 and sum(sizes) == 400 and max(sizes) > 1
    on_record = RunRecords(tmp_path / "work").of(lambda name: True)
    assert {name: line.result["metrics"] for name, line in on_record.items() if line.result} == {
        run.manifest.execution_id: run.metrics for run in result.results
    }


def test_finished_runs_of_a_pack_that_was_lost_are_not_run_again(tmp_path):
    manifests = [synthetic.manifest({"x": x}) for x in (0.1, 0.2, 0.3)]
    orders = [synthetic.order(m, work=tmp_path, site={}) for m in manifests]
    before = execute_each(orders[:2])  # then the worker was killed
    again = execute_each(orders)
    assert again[:2] == before and again[2]["status"] == "COMPLETED"


# -- which is late --------------------------------------------------------------------------------


def test_few_runs_say_nothing_of_what_is_late_and_many_say_what_one_in_a_hundred_exceeds():
    assert longest_expected([1.0] * 7) is None
    rng = random.Random(1)
    walls = [rng.lognormvariate(0.0, 0.5) for _ in range(400)]
    typical_s, longest_s = longest_expected(walls) or (0.0, 0.0)
    assert typical_s == pytest.approx(1.0, rel=0.1)
    assert longest_s == pytest.approx(3.2, rel=0.15)  # exp(2.326 * 0.5), the 99 % of that distribution


def test_a_run_that_waits_for_a_worker_is_not_late_and_one_that_goes_on_is_told_of_once(tmp_path):
    manifest = synthetic.manifest({"x": 0.5}).model_copy(update={"created_at": 1000.0})
    result = ha.Result(manifest=manifest, status="COMPLETED", cost={"wall_s": 1.0})
    recent = RecentRuns()
    for _ in range(20):
        recent.add(result)
    now = [1050.0]
    runs = LateRuns(tmp_path, every_s=0.0, clock=lambda: now[0])
    now[0] = 1100.0
    running = {manifest.execution_id: manifest}
    assert runs.look(running, recent) == []
    begun = tmp_path / manifest.execution_id / "manifest.json"
    begun.parent.mkdir()
    begun.touch()
    os.utime(begun, (1040.0, 1040.0))  # by an attempt of the session before
    assert runs.look(running, recent) == []
    os.utime(begun, (1099.0, 1099.0))
    assert runs.look(running, recent) == []
    now[0] = 1160.0
    (found,) = runs.look(running, recent)
    assert found.running_s == pytest.approx(61.0) and "late: it has been going for 61 s" in found.words(
        found.event()
    )
    assert runs.look(running, recent) == []


def test_a_campaign_tells_of_a_late_run_and_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(late, "LEAST_S", 0.1)
    told: list[str] = []
    wanted = campaign("Late", fixed={}, space={"x": {}, "y": {}, "run_time_s": {"high": 3.0}})
    coordinator = ha.Coordinator(
        wanted,
        site="threads",
        run_dir=tmp_path,
        workers=2,
        watch=lambda event: told.append(event.reason) if event.kind == "late" else None,
    )
    with coordinator:
        coordinator._session.late = LateRuns(coordinator.folder.work, every_s=0.05)
        for _ in coordinator:
            pass
        results = coordinator.result().results
    (words,) = told
    assert words.startswith("run 12 is late")
    (event,) = [e for e in read_events(tmp_path / "events.jsonl") if e["event"] == "late"]
    assert event["running_s"] > event["longest_s"] > event["typical_s"] and len(results) == 24
    arrived = [r["execution_id"] for e in read_events(tmp_path / "events.jsonl") for r in e.get("results", ())]
    slow = next(r.manifest.execution_id for r in results if r.manifest.index == 12)
    assert arrived.index(slow) > 14  # others went on beside it


class Late(Sobol):
    """Runs of 30 ms, and the 12th of a second."""

    def suggest(self, history: Any, n: int, pending: Any = ()) -> list[Any]:
        begun = len(history) + len(pending)
        points = super().suggest(history, n, pending)
        return [p | {"run_time_s": 1.2 if begun + i == 12 else 0.03} for i, p in enumerate(points)]


def test_the_policys_thread_outlives_whoever_it_wakes() -> None:
    def fails() -> None:
        raise OSError("the pipe is broken")

    suggester = Suggester(fails)
    suggester.ask(lambda: time.sleep(0.05) or [])
    assert not suggester.wait(0)
    while not suggester.wait(0.01):
        pass
    deadline = time.monotonic() + 60
    while suggester._answer.error is None and time.monotonic() < deadline:
        time.sleep(0.01)
    with pytest.raises(OSError, match="pipe is broken"):
        suggester.take()
    suggester.ask(lambda: [{"x": 1.0}])
    assert suggester.wait(60) and suggester.take() == [{"x": 1.0}]
    suggester.close()
