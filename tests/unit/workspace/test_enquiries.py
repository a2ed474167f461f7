"""Questions about campaigns, answered in the background; estimates of campaigns; the same run again."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import hpcagent as ha
from hpcagent.campaign.budget import Budget
from hpcagent.campaign.enqueued import enqueue
from hpcagent.errors import BadInput
from hpcagent.gate.not_allowed import NotAllowed
from hpcagent.gate.rules import Caller
from hpcagent.model.contract import Resources
from hpcagent.sites.site import usable_cores
from hpcagent.store.rundir import holder
from hpcagent.workspace import campaigns, questions
from hpcagent.workspace.core import Core
from hpcagent.workspace.folder import Folder
from hpcagent.workspace.on_top import OwnRuns
from hpcagent.workspace.questions import Question

PATIENCE_S = 120
TIGHT_S = 60.0
QUICK = {"fixed.run_time_s": 0.0, "until.max_runs": 6}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "ws"
    Folder(folder).create()
    (folder / "workspace.toml").write_text('name = "ws"\ndefault_site = "threads"\n')
    return folder


@pytest.fixture
def core(root: Path) -> Iterator[Core]:
    one = Core(root)
    yield one
    one.close()


def me(core: Core) -> Caller:
    return core.caller(os.getuid())


def until(holds: Callable[[], Any]) -> Any:
    end = time.monotonic() + PATIENCE_S
    while not (found := holds()):
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.02)
    return found


def ended(core: Core, identity: str) -> None:
    def over() -> bool:
        core._look_at_campaigns()
        return core.rows[identity].over

    until(over)


@pytest.fixture
def campaign(core: Core) -> str:
    begun = core.start(me(core), {"data": "synthetic"}, changes=QUICK)
    ended(core, begun["id"])
    return str(begun["id"])


def answered(core: Core, handle: str) -> dict[str, Any]:
    def said() -> dict[str, Any] | None:
        found = core.get_answer(me(core), handle)
        return None if found["state"] == "running" else found

    found: dict[str, Any] = until(said)
    return found


def test_a_question_is_asked_once_and_its_answer_is_kept(core, root, campaign):
    caller = me(core)
    first = core.ask_later(caller, campaign, what="explain", args={"run": 5})
    again = core.ask_later(caller, campaign, what="explain", args={"run": "5"})
    other = core.ask_later(caller, campaign, what="explain", args={"run": 4})
    assert first["state"] == "running" and first["handle"] == again["handle"] != other["handle"]
    found = answered(core, first["handle"])
    assert found["answer"]["index"] == 5 and found["campaign"] == campaign
    core.close()
    later = Core(root)
    try:
        assert later.get_answer(me(later), first["handle"]) == found
        assert later.ask_later(me(later), campaign, what="explain", args={"run": 5}) == found
    finally:
        later.close()


def test_a_changed_journal_is_another_question(core, campaign):
    caller = me(core)
    before = core.ask_later(caller, campaign, what="explain", args={"run": 5})["handle"]
    journal = core.folder.campaigns / campaign / "events.jsonl"
    os.utime(journal, (1, 1))
    assert core.ask_later(caller, campaign, what="explain", args={"run": 5})["handle"] != before
    for handle in list(core.questions._open):
        answered(core, handle)


def test_a_process_that_is_killed_is_started_again_and_then_has_failed(core, campaign):
    handle = core.ask_later(me(core), campaign, what="replay", args={"policies": ["random"], "seeds": 50})[
        "handle"
    ]
    folder = core.folder.root / "answers" / handle
    for n in range(1, questions.TRIES + 1):
        until(lambda: core.questions.look() or holder(folder)[0])
        assert core.questions.question(handle).tries == n
        process = core.questions.question(handle).process
        os.kill(process.pid, signal.SIGKILL)
        until(lambda: process.code is not None)
    found = answered(core, handle)
    assert found["state"] == "failed" and "has ended 2 times without an answer" in found["error"]["message"]
    assert not core.questions.busy


def still(*_: Any, log: Path) -> Any:
    """A process that never ends."""
    return type("Process", (), {"code": None, "pid": 0})()


def test_few_answer_at_once_and_nobody_asks_without_end(core, campaign, monkeypatch):
    monkeypatch.setattr(questions, "spawned", still)
    caller = me(core)
    handles = [
        core.ask_later(caller, campaign, what="recommend", args={"n": n})["handle"]
        for n in range(1, questions.MOST_OPEN + 1)
    ]
    begun = [core.questions.question(handle).tries for handle in handles]
    assert sum(begun) == questions.AT_ONCE and begun[0] == 1
    with pytest.raises(BadInput, match="20 questions of yours have no answer yet"):
        core.ask_later(caller, campaign, what="recommend", args={"n": 30})
    assert core.busy  # the service stays: somebody has to begin the others
    folder = core.folder.root / "answers"
    for handle in handles:
        (folder / handle / questions.ANSWER).write_text('{"state": "done", "answer": {}}')
    core.questions.look()
    assert not core.busy and core.ask_later(caller, campaign, what="recommend", args={"n": 30})


def test_nobody_waits_behind_the_replays_of_others(core, campaign, monkeypatch):
    monkeypatch.setattr(questions, "spawned", still)

    def ask(by: str, what: str, n: int) -> Any:
        facts = {"by": by, "args": {"n": n}, "app": "synthetic", "state": 0}
        return core.questions.question(core.questions.ask(what, "c", **facts))

    replays = [ask("eve", "replay", n) for n in range(questions.MOST_COSTLY)]
    with pytest.raises(BadInput, match=r"replay or report.* of yours have no answer yet, 3 at most"):
        ask("eve", "report", 9)
    assert [one.tries for one in replays] == [1, 0, 0]
    many = [ask("eve", "recommend", n) for n in range(5)]
    ada, bob = ask("ada", "answer", 0), ask("bob", "explain", 0)
    assert [one.tries for one in many[:3]] == [1, 1, 0] and not ada.tries
    for one in many[:2]:
        (core.folder.root / "answers" / one.handle / questions.ANSWER).write_text('{"state": "done"}')
    core.questions.look()
    assert ada.tries == bob.tries == 1 and not many[2].tries
    other = ask("ada", "replay", 7)
    (core.folder.root / "answers" / replays[0].handle / questions.ANSWER).write_text('{"state": "done"}')
    core.questions.look()
    assert other.tries == 1 and not replays[1].tries


def test_who_may_only_look_starts_no_replay(core, campaign):
    viewer = Caller(name=me(core).name, role="viewer")
    for what in ("replay", "report"):
        with pytest.raises(NotAllowed, match="may not run"):
            core.ask_later(viewer, campaign, what=what, args={})
    assert core.ask_later(viewer, campaign, what="explain", args={"run": 0})["handle"]


def test_a_campaign_that_a_site_can_never_hold_is_refused_at_once(core, monkeypatch):
    monkeypatch.setattr(ha.Campaign, "largest", Resources(nodes=2))
    for call in (core.estimate_campaign, core.start):
        with pytest.raises(NotAllowed, match="never run there"):
            call(me(core), {"data": "synthetic"}, changes=QUICK)


@pytest.mark.parametrize(
    "changes", [{"policy.nonsense": 1}, {"policy.seed": 3}, {"policy.name": "grid", "policy.levels": "many"}]
)
def test_options_that_a_policy_does_not_take_are_refused_before_anybody_is_asked(core, changes):
    with (core.folder.root / "workspace.toml").open("a") as file:
        file.write("[[approval]]\n")
    for call in (core.estimate_campaign, core.start):
        with pytest.raises(NotAllowed, match=r"policy") as refused:
            call(me(core), {"data": "synthetic"}, changes=QUICK | changes)
        assert refused.value.check == "contract"
    assert core.approval_list(me(core)) == []


def test_old_answers_are_removed_and_those_that_are_wanted_stay(core, campaign):
    old = core.ask_later(me(core), campaign, what="explain", args={"run": 1})["handle"]
    wanted = core.ask_later(me(core), campaign, what="explain", args={"run": 2})["handle"]
    for handle in (old, wanted):
        answered(core, handle)
        os.utime(core.folder.root / "answers" / handle / questions.ANSWER, (1, 1))
    core.get_answer(me(core), wanted)
    assert core.questions.expire() == [old]
    assert not (core.folder.root / "answers" / old).exists()
    with pytest.raises(BadInput, match="there is no answer"):
        core.get_answer(me(core), old)
    assert core.get_answer(me(core), wanted)["state"] == "done"


@pytest.mark.parametrize("handle", ["", "j-", "../answers", "j-" + "0" * 32, "j-" + "a" * 5000, "j-..%2f"])
def test_a_handle_that_is_none_reads_nothing(core, handle):
    with pytest.raises(BadInput, match="there is no answer"):
        core.get_answer(me(core), handle)


WRONG = [
    ("dance", {}, "is none of answer, explain"),
    ("explain", {}, "other arguments"),
    ("explain", {"run": ""}, "run is a number"),
    ("explain", {"run": 1, "to": "/tmp/x"}, "other arguments"),
    ("recommend", {"n": 0}, "must be 1 to 64"),
    ("replay", {"policies": ["a"] * 9}, "8 at most"),
    ("replay", {"policies": ["own:Policy"]}, "no policy of that name"),
    ("replay", {"policies": ["gest:generator='own:Generator'"]}, "neither a module nor a file"),
    ("replay", {"seeds": 1000}, "must be 1 to 50"),
    ("report", {"to": "/tmp/x"}, "other arguments"),
]


def test_wrong_questions_are_refused_and_nothing_is_started(core, campaign):
    for what, args, words in WRONG:
        with pytest.raises(BadInput, match=words):
            core.ask_later(me(core), campaign, what=what, args=args)
    assert not core.questions.busy


def test_an_answer_names_no_folder_of_this_machine(core, campaign):
    found = answered(core, core.ask_later(me(core), campaign, what="explain", args={"run": "zzzz"})["handle"])
    assert found["state"] == "failed" and found["error"]["kind"] == "BadInput"
    assert str(core.folder.root) not in json.dumps(found) and campaign in found["error"]["message"]


def test_the_answer_of_a_campaign_that_goes_on_follows_its_runs_by_what_an_answer_takes(core, monkeypatch):
    row, asked = SimpleNamespace(id="c-1", over=False), []
    now = runs = 0.0

    def ask(*given: Any, **more: Any) -> str:
        asked.append(Question(f"j-{len(asked)}", "answer", "c-1", "me", now, {"done": given[-1]["done"]}))
        return str(asked[-1].handle)

    monkeypatch.setattr(core, "_clock", lambda: now)
    monkeypatch.setattr(core, "_state_of", lambda row: [])
    monkeypatch.setattr(core, "_snapshot", lambda row: SimpleNamespace(state=SimpleNamespace(finished=int(runs))))
    monkeypatch.setattr(core, "_asked_of", ask)
    monkeypatch.setattr(core.questions, "newest", lambda *of: (asked[-1] if asked else None, None))
    monkeypatch.setattr(core.questions, "took_s", lambda handle: 2.0)
    for now in range(29):  # 40 runs in 28 s
        runs = 40 * now / 28
        core._answer_handle(me(core), row)
    assert len(asked) >= 5 and asked[-1].facts["done"] > 20
    asked.clear()
    for now in range(10_000):  # a run in 100 s
        runs = now // 100
        core._answer_handle(me(core), row)
    assert [one.facts["done"] for one in asked] == list(range(1, 100))  # none of what is known
    asked.clear()
    for now in range(10_000):  # a run in a second
        runs = 10_000 + now
        core._answer_handle(me(core), row)
    assert len(asked) == 500
    monkeypatch.setattr(core.questions, "took_s", lambda handle: None)
    asked.clear()
    for now in range(300):
        runs = 1 + now
        core._answer_handle(me(core), row)
    assert len(asked) == 10


def test_what_an_answer_took_is_known_and_not_part_of_it(core, campaign):
    found = answered(core, core.ask_later(me(core), campaign, what="answer", args={})["handle"])
    assert core.questions.took_s(found["handle"]) > 0 and "took_s" not in found
    assert core.questions.took_s("j-" + 32 * "0") is None


def test_a_campaign_says_how_it_stands_before_it_began_and_when_it_is_over(core):
    begun = core.start(me(core), {"data": "synthetic"}, changes=QUICK, at_once=True)
    first = core.campaign(me(core), begun["id"])
    assert first["state"] == "running" and first["runs"] == {"done": 0, "most": 6, "by_state": {}}
    assert first["answer"] is None and first["answer_state"] == "none"
    ended(core, begun["id"])

    def whole() -> dict[str, Any] | None:
        found = core.campaign(me(core), begun["id"])
        return found if found["answer_state"] != "running" else None

    last: dict[str, Any] = until(whole)
    assert last["runs"]["done"] == 6 and last["answer_of_runs"] == 6 and last["answer_handle"] is None
    assert last["answer"]["best"]["probability_feasible"] is not None
    assert core.campaign(me(core), begun["id"])["answer"] == last["answer"]


def test_a_campaign_that_does_not_begin_says_why(core, monkeypatch):
    def refuses(*_: Any) -> None:
        raise BadInput("the machine is asleep.")

    monkeypatch.setattr(campaigns, "begin", refuses)
    begun = core.start(me(core), {"data": "synthetic"}, changes=QUICK, at_once=True)
    assert begun["state"] == "running"
    until(lambda: core.rows[begun["id"]].over)
    found = core.campaign(me(core), begun["id"])
    assert found["state"] == "failed" and found["note"] == "it did not begin: the machine is asleep."
    assert found["runs"]["done"] == 0 and found["answer"] is None


def test_a_campaign_that_was_let_through_and_not_begun_is_begun_by_the_next_service(core, root, monkeypatch):
    came, held = threading.Event(), threading.Event()

    def waits(*_: Any) -> None:
        came.set()
        held.wait(PATIENCE_S)

    monkeypatch.setattr(campaigns, "begin", waits)
    begun = core.start(me(core), {"data": "synthetic"}, changes=QUICK, at_once=True)
    assert came.wait(PATIENCE_S)
    core.close()
    monkeypatch.undo()
    later = Core(root)
    try:
        ended(later, begun["id"])
        found = later.campaign(me(later), begun["id"])
        assert found["runs"]["done"] == 6, found
    finally:
        held.set()
        later.close()


def test_what_a_campaign_would_take_and_what_the_gate_would_say(root):
    with (root / "workspace.toml").open("a") as file:
        file.write("[quota]\nnode_hours = 1.0\n[[approval]]\nnodes_times_hours = 0.1\n")
    core = Core(root)
    try:
        caller = me(core)
        whole = core.estimate_campaign(caller, {"data": "lj_tuning"}, changes={"until.max_runs": 4})
        share = 1 / len(usable_cores())  # of this machine: a run is charged its cores, told before any has run
        assert whole["runs"] == 4 and whole["node_hours"] == pytest.approx(4 * share * 1.5 / 3600)
        assert whole["refused"]["check"] == "quota"  # nothing bounds its node-hours
        bound = {"until.max_runs": 4, "until.node_hours": 0.5}
        found = core.estimate_campaign(caller, {"data": "lj_tuning"}, changes=bound)
        assert found["node_hours_at_most"] == 0.5 and found["refused"] is None and found["approval"]
        found = core.estimate_campaign(caller, {"data": "lj_tuning"}, changes=bound | {"until.node_hours": 1e-6})
        assert found["node_hours"] == found["node_hours_at_most"] == 1e-6 and found["from"].startswith(
            "the cap, as"
        )
        with pytest.raises(NotAllowed) as caught:
            core.estimate_campaign(caller, {"data": "lj_tuning"}, changes={"space.skin.high": -1})
        assert caught.value.check == "contract"
        assert not core.rows
    finally:
        core.close()


def test_an_extension_is_priced_by_the_runs_on_top_and_what_runs_of_its_own_took(core, campaign, monkeypatch):
    caller = me(core)
    state = core._snapshot(core.rows[campaign]).state
    took = [state.results[m.execution_id].cost for m in state.manifests]
    each = sum(one.node_hours for one in took) / 6
    found = core.estimate_extension(caller, campaign, changes={"until.max_runs": 10})
    assert (found["runs"], found["runs_in_all"], found["node_hours_at_most"]) == (4, 10, None)
    assert each > 0 and found["node_hours"] == pytest.approx(4 * each)
    assert found["wall_s_per_run"] == pytest.approx(sum(one.wall_s for one in took) / 6)
    assert found["from"] == "the mean of 6 runs of this campaign"
    with pytest.raises(NotAllowed, match="6 runs have ended already"):
        core.estimate_extension(caller, campaign)
    little = {"until.max_runs": 1000, "until.node_hours": state.node_hours + 500 * each}
    found = core.estimate_extension(caller, campaign, changes=little)
    assert found["node_hours"] == pytest.approx(500 * each) and found["runs"] == 500
    assert found["node_hours"] <= found["node_hours_at_most"] == pytest.approx(500 * each, rel=1e-3)
    assert found["from"] == "the cap, as the mean of 6 runs of this campaign would be more"
    little["until.node_hours"] = state.node_hours + 0.5 * each
    found = core.estimate_extension(caller, campaign, changes=little)
    assert (found["runs"], found["node_hours"], found["node_hours_at_most"] > 0) == (0, 0.0, True)
    assert found["from"] == "no further run fits under the cap, by the mean of 6 runs of this campaign"
    little["until.node_hours"] = state.node_hours + 1.1 * each  # by the mean one would fit
    with monkeypatch.context() as patched:  # the forecast looks at the scatter of times, which is the machine's
        patched.setattr(Budget, "room", lambda *_: 0)
        found = core.estimate_extension(caller, campaign, changes=little)
    assert (found["runs"], found["node_hours"]) == (0, 0.0)
    assert found["from"].startswith("no further run fits under the cap, by the coordinator's forecast")
    for spent in (state.node_hours / 2, state.node_hours + state.overhead):
        with pytest.raises(NotAllowed, match="node-hours are spent already"):
            core.estimate_extension(caller, campaign, changes=little | {"until.node_hours": spent})
    found = core.estimate_extension(caller, campaign, changes={"until": {"node_hours": 1.0}})
    assert found["runs"] is found["node_hours"] is None and found["node_hours_at_most"] < 1.0
    assert found["from"].startswith("nothing says how many runs are to come")


def test_the_gate_and_whoever_approves_have_the_number_of_the_estimate(root):
    with (root / "workspace.toml").open("a") as file:
        file.write('[[approval]]\napp = "synthetic"\nnodes_times_hours = 0.04\n')
    core = Core(root)
    try:
        caller = me(core)

        def one(x: float) -> None:
            params = {"x": x, "y": 0.5, "noise": 0.02, "fail_above": 0.9, "run_time_s": 0.0}
            core.wait(caller, core.run(caller, "synthetic", params, walltime_s=60)["id"], PATIENCE_S)

        for x in (0.1, 0.2, 0.3, 0.4):
            one(x)
        wanted = QUICK | {"until.node_hours": 0.05}
        found = core.estimate_campaign(caller, {"data": "synthetic"}, changes=wanted)
        assert found["from"].startswith("4 runs here")

        def ask() -> NotAllowed:
            with pytest.raises(NotAllowed) as caught:
                core.start(caller, {"data": "synthetic"}, changes=wanted)
            return caught.value

        first = core.approvals.get(ask().approval)
        assert (
            first.request["expected_node_hours"] == pytest.approx(found["node_hours"]) and found["node_hours"] > 0
        )
        one(0.6)
        assert core.estimate_campaign(caller, {"data": "synthetic"}, changes=wanted)["from"].startswith("5 runs")
        core.approvals.decide(first.id, grant=True, by="boss", note="")  # holds, although the forecast is another
        now = core.estimate_campaign(caller, {"data": "synthetic"}, changes=wanted)["node_hours"]
        identity = core.start(caller, {"data": "synthetic"}, changes=wanted)["id"]
        assert core.status(caller, identity)["estimated_node_hours"] == pytest.approx(now)
        ended(core, identity)
        more = {"until.max_runs": 8, "until.node_hours": 0.1}
        on_top = core.estimate_extension(caller, identity, changes=more)
        with pytest.raises(NotAllowed) as caught:
            core.extend(caller, identity, changes=more)
        asked = core.approvals.get(caught.value.approval).request
        assert asked["expected_node_hours"] == pytest.approx(on_top["node_hours"]) and on_top["runs"] == 2
        tight = core.estimate_campaign(caller, {"data": "lj_tuning"}, changes={"until.node_hours": 1e-6})
        assert tight["node_hours"] == 1e-6
    finally:
        core.close()


def test_a_campaign_is_begun_and_refused_by_what_its_workspace_knows(core):
    caller = me(core)
    tight = QUICK | {"until.max_runs": 2, "until.node_hours": 0.8 * 0.01 / 3600 / len(usable_cores())}
    for changed in (tight, tight | {"until.node_hours": 1e-12}):
        found = core.estimate_campaign(caller, {"data": "synthetic"}, changes=changed)
        assert found["refused"]["check"] == "contract" and found["refused"]["field"] == "until.node_hours"
        with pytest.raises(NotAllowed, match=r"does not allow one run|No run could begin"):
            core.start(caller, {"data": "synthetic"}, changes=changed)
    assert not core.rows and not core.accounts.whole.committed
    for x in (0.1, 0.2, 0.3, 0.4):
        params = {"x": x, "y": 0.5, "noise": 0.02, "fail_above": 0.9, "run_time_s": 0.0}
        core.wait(caller, core.run(caller, "synthetic", params)["id"], PATIENCE_S)
    assert core.estimate_campaign(caller, {"data": "synthetic"}, changes=tight)["refused"] is None
    identity = core.start(caller, {"data": "synthetic"}, changes=tight)["id"]
    ended(core, identity)  # by the contract's estimate it would have begun no run
    assert core.rows[identity].state == "completed" and core.campaign(caller, identity)["runs"]["done"] >= 1


def test_a_campaign_that_could_begin_no_run_has_failed_and_says_why(core, monkeypatch):
    monkeypatch.setattr(campaigns.Campaigns, "_refuse_no_run", lambda *_: None)
    monkeypatch.setattr(campaigns.Campaigns, "_each", lambda *_: (TIGHT_S, "the contract's estimate"))
    hours = 1.2 * TIGHT_S / 3600 / len(usable_cores())  # above the typical run, below the mean of what it may be
    identity = core.start(me(core), {"data": "synthetic"}, changes=QUICK | {"until.node_hours": hours})["id"]
    ended(core, identity)
    row = core.rows[identity]
    assert row.state == "failed" and "leaves no room for another run" in row.note


def test_an_extension_without_a_run_of_its_own_is_priced_as_a_campaign_is(core, campaign, monkeypatch):
    monkeypatch.setattr(OwnRuns, "of", staticmethod(lambda _: None))
    more = {"until.max_runs": 10}
    found = core.estimate_extension(me(core), campaign, changes=more)
    whole = core.estimate_campaign(me(core), {"data": "synthetic"}, changes=QUICK | more)
    assert found["from"] == whole["from"] and found["node_hours"] == pytest.approx(0.4 * whole["node_hours"])


OWN = """
from pathlib import Path

Path(__file__).with_suffix(".imported").write_text(str(__import__("os").getpid()))


class Same:
    def __init__(self, *, space, objective, seed=0):
        self.space = space

    def suggest(self, history, n, pending=()):
        return [{"x": 0.1 * len(history)} for _ in range(n)]
"""


def test_a_policy_of_ones_own_is_asked_in_a_process_of_its_own(root, tmp_path, monkeypatch):
    (tmp_path / "own_policy_41.py").write_text(OWN)
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    )
    seen = tmp_path / "own_policy_41.imported"
    core = Core(root)
    try:
        text = 'app = "synthetic"\nobjective = { maximize = "value" }\nspace = { x = {} }\n'
        text += 'until = { max_runs = 2 }\nbatch_size = 1\npolicy = "sobol"\n'
        begun = core.start(me(core), {"data": text})
        ended(core, begun["id"])
        folder = core.folder.campaigns / begun["id"]
        written = folder / "campaign.toml"
        written.write_text(written.read_text().replace('"sobol"', '"own_policy_41:Same"'))
        found = answered(core, core.ask_later(me(core), begun["id"], what="explain", args={"run": 1})["handle"])
        assert found["state"] == "done", found
        assert seen.exists() and int(seen.read_text()) != os.getpid()
        assert "own_policy_41" not in sys.modules
    finally:
        core.close()


def test_the_same_run_with_something_changed_keeps_the_rest(core):
    caller = me(core)
    first = core.run(caller, "synthetic", {"x": 0.3}, seed=7, label="mine", resources={"threads_per_rank": 2})
    second = core.repeat(caller, changes=["x +0.1"])
    row, other = core.rows[first["id"]], core.rows[second["id"]]
    assert second["params"]["x"] == 0.4 and second["since"] == first["id"] and second["changes"] == ["x +0.1"]
    assert other.manifest["seed"] == 7 and other.label == "mine"
    assert other.manifest["resources"] == row.manifest["resources"]
    same = core.repeat(caller, changes=["x -0.1"])
    assert same["id"] == first["id"] and same["found"]


def test_a_repeated_run_goes_through_the_gate(root):
    core = Core(root)
    first = core.run(me(core), "synthetic", {"x": 0.3})
    core.close()
    with (root / "workspace.toml").open("a") as file:
        file.write('[[approval]]\napp = "synthetic"\n')
    core = Core(root)
    try:
        with pytest.raises(NotAllowed) as caught:
            core.repeat(me(core), changes=["x +0.1"], identity=first["id"])
        assert caught.value.approval
        core.decide(me(core), caught.value.approval, grant=True)
        assert not core.repeat(me(core), changes=["x +0.1"], identity=first["id"])["found"]
    finally:
        core.close()


def test_the_client_asks_the_service(root):
    with ha.Workspace(root) as workspace:
        try:
            whole = workspace.estimate_campaign("synthetic", changes=QUICK, data_only=True)
            assert whole["runs"] == 6
            begun = workspace.start("synthetic", changes=QUICK, data_only=True, at_once=True)
            workspace.wait(begun["id"], PATIENCE_S)
            later = workspace.ask_later(begun["id"], "explain", run=3)
            found = until(lambda: (a := workspace.get_answer(later["handle"], timeout_s=1))["answer"] and a)
            assert found["answer"]["index"] == 3
            assert workspace.campaign(begun["id"])["runs"]["done"] == 6
            own = ha.Campaign(ha.find_app("synthetic"), ha.maximize("value"), space={"x": {}})
            assert workspace.estimate_campaign(own)["runs"] == 32
        finally:
            workspace.end(runs=True)


def sent(core: Core, toml: str, **changes: Any) -> str:
    """A campaign of the synthetic landscape that has ended."""
    begun = core.start(
        me(core), {"data": f'app = "synthetic"\nobjective = {{ maximize = "value" }}\n{toml}'}, **changes
    )
    ended(core, begun["id"])
    return str(begun["id"])


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"fixed.run_time_s": 0.1, "until.max_runs": 9}, "fixed.run_time_s"),
        ({"seed": 9, "until.max_runs": 9}, "seed"),
        ({"app": "oscillator", "until.max_runs": 9}, "app"),
        ({"app": "nonsense"}, "app"),
        ({"space.x.high": 0.5, "until.max_runs": 9}, "space.x.high"),
    ],
)
@pytest.mark.parametrize("data_only", [False, True])
def test_a_change_that_makes_it_another_campaign_is_refused_before_anything_is_written(
    core, campaign, changes, key, data_only
):
    before = core.folder.journal.read_bytes()
    for ask in (core.estimate_extension, core.extend):
        with pytest.raises(NotAllowed, match="it would be another campaign") as caught:
            ask(me(core), campaign, changes=changes, data_only=data_only)
        assert caught.value.check == "contract" and caught.value.field == key and key in caught.value.message
        assert "until, policy, objective" in caught.value.allowed and "start another campaign" in caught.value.do
    assert core.rows[campaign].state == "completed"
    after = core.folder.journal.read_bytes()[len(before) :].splitlines()
    assert all(json.loads(line)["event"] == "refused" for line in after)


def test_what_may_change_lets_a_campaign_go_on(core, campaign):
    changes = {"policy.name": "random", "objective.minimize": "value", "until.max_runs": 7}
    assert core.estimate_extension(me(core), campaign, changes=changes)["runs"] == 1
    core.extend(me(core), campaign, changes=changes)
    ended(core, campaign)
    assert core.campaign(me(core), campaign)["runs"]["done"] == 7


def test_a_campaign_that_does_not_begin_to_go_on_stands_as_it_did(core, root, campaign, monkeypatch):
    def fails(*_: Any) -> None:
        raise BadInput("the disk is on fire.")

    caller, row = me(core), core.rows[campaign]
    told = core.subscribe(caller, events=["on_job_failed", "on_job_complete"])
    before, note = (row.state, row.ended_at, row.request, row.settled, row.end_key), row.note
    noted = (core.folder.campaigns / campaign / "workspace.json").read_bytes()
    monkeypatch.setattr(campaigns, "begin", fails)
    with pytest.raises(BadInput, match="on fire"):
        core.extend(caller, campaign, changes={"until.max_runs": 9})
    monkeypatch.undo()
    later = f"{note.rstrip('.')}. It did not go on: the disk is on fire."
    assert (row.state, row.ended_at, row.request, row.settled, row.end_key) == before and row.note == later
    assert core.campaign(caller, campaign)["note"] == later and not core.accounts.whole.committed
    assert (core.folder.campaigns / campaign / "workspace.json").read_bytes() == noted
    assert core.notifications(caller, subscription_id=told["subscription_id"]) == []
    core.close()
    again = Core(root)
    try:
        row = again.rows[campaign]
        assert (row.state, row.ended_at, row.request, row.settled, row.end_key) == before and row.note == later
        assert again.damaged == 0
        again.extend(me(again), campaign, changes={"until.max_runs": 7})
        ended(again, campaign)
        assert again.rows[campaign].state == "completed" and "did not go on" not in again.rows[campaign].note
        assert again.campaign(me(again), campaign)["runs"]["done"] == 7
    finally:
        again.close()


SWEEP = "space = { x = {} }\nfixed = { run_time_s = 0.0, noise = 0.1 }\n"
SWEEP += 'sweep = { design = "grid", replicates = 1, values = { x = [0.1, 0.2, 0.3] } }\n'


def test_a_design_that_is_complete_goes_on_only_with_more_of_it(core):
    one = sent(core, SWEEP)
    for changes in ({}, {"until.node_hours": 5.0}, {"until.max_runs": 40}):
        for ask in (core.estimate_extension, core.extend):
            with pytest.raises(NotAllowed, match=r"every run of the design has ended \(3 in all\)"):
                ask(me(core), one, changes=changes)
    more = {"sweep.values.x": [0.1, 0.2, 0.3, 0.4]}
    assert core.estimate_extension(me(core), one, changes=more)["runs"] == 1
    core.extend(me(core), one, changes=more)
    ended(core, one)
    assert core.campaign(me(core), one)["runs"]["done"] == 4


GRID = "space = { x = {} }\nfixed = { run_time_s = 0.0 }\npolicy = { name = 'grid', levels = 3 }\nbatch_size = 3\n"
CHOICES = "space = { style = {} }\nfixed = { run_time_s = 0.0 }\nbatch_size = 2\n"


@pytest.mark.parametrize(
    ("text", "runs", "most", "more"),
    [
        (GRID, 3, 3, {"policy.levels": 5}),  # at its end by its budget: the grid is complete all the same
        (GRID, 3, 9, {"policy.levels": 5}),  # at its end as it had no point left
        (CHOICES + "policy = 'sobol'\n", None, 9, None),
        (CHOICES + "policy = 'quality_first'\n", None, 9, None),
    ],
)
def test_a_policy_without_a_further_point_goes_on_only_with_more_of_them(core, text, runs, most, more):
    one = sent(core, f"{text}until = {{ max_runs = {most} }}\n")
    ran, journal = core.campaign(me(core), one)["runs"]["done"], core.folder.journal
    assert ran == runs or (runs is None and ran < most)
    for changes in ({"until.max_runs": most + 6}, {"until.max_runs": most + 6, "until.node_hours": 5.0}):
        before = journal.read_text()
        with pytest.raises(NotAllowed, match="has nothing left to suggest") as caught:
            core.estimate_extension(me(core), one, changes=changes)
        assert (caught.value.check, caught.value.field) == ("contract", "policy") and caught.value.do
        assert journal.read_text() == before
        with pytest.raises(NotAllowed, match="has nothing left to suggest"):
            core.extend(me(core), one, changes=changes)
        events = [json.loads(line)["event"] for line in journal.read_text()[len(before) :].splitlines()]
        assert events == ["refused"] and core.rows[one].over
    if more is not None:
        core.extend(me(core), one, changes={**more, "until.max_runs": 20})
        ended(core, one)
        assert core.campaign(me(core), one)["runs"]["done"] > runs


def test_a_complete_grid_goes_on_for_points_that_were_enqueued_and_for_a_confirmation(core):
    one = sent(core, f"{GRID}until = {{ max_runs = 3 }}\n")
    enqueue(core.folder.campaigns / one, [{"x": 0.123}])
    found = core.estimate_extension(me(core), one, changes={"until.max_runs": 9})
    assert (found["runs"], found["runs_in_all"]) == (1, 4)
    core.extend(me(core), one, changes={"until.max_runs": 9})
    ended(core, one)
    assert core.campaign(me(core), one)["runs"]["done"] == 4
    confirm = "confirm = { top = 1, replicates = 1 }\n"
    two = sent(core, f"{GRID}{confirm}until = {{ max_runs = 4 }}\n")
    core.extend(me(core), two, changes={"until.max_runs": 9})
    ended(core, two)
    assert core.campaign(me(core), two)["runs"]["done"] > 4


def test_a_run_that_was_given_up_at_the_cap_goes_on_with_a_larger_one(core):
    toml = "space = { x = {}, y = {} }\nfixed = { run_time_s = 2.0 }\nbatch_size = 1\npolicy = 'random'\n"
    one = sent(core, toml + "until = { max_runs = 1, node_hours = 1e-4 }\n")
    said = core.campaign(me(core), one)
    assert said["runs"]["by_state"] == {"given up": 1}, said
    with pytest.raises(NotAllowed, match=r"node-hours are spent already") as caught:
        core.estimate_extension(me(core), one)
    assert caught.value.field == "until.node_hours"
    more = {"until.node_hours": 0.1}
    assert core.estimate_extension(me(core), one, changes=more)["runs"] == 1
    core.extend(me(core), one, changes=more)
    ended(core, one)
    assert core.campaign(me(core), one)["runs"]["by_state"] == {"completed": 1}


def test_the_confirmation_of_a_sweep_is_among_its_runs(core):
    confirm = "confirm = { top = 1, replicates = 3 }\n"
    text = f'app = "synthetic"\nobjective = {{ maximize = "value" }}\n{SWEEP}{confirm}'
    found = core.estimate_campaign(me(core), {"data": text})
    assert found["runs"] == 6
    one = sent(core, SWEEP + confirm)
    assert core.rows[one].request["runs"] == 6
    assert core.campaign(me(core), one)["runs"] == {"done": 6, "most": 6, "by_state": {"completed": 6}}
    with pytest.raises(NotAllowed, match=r"every run of the design has ended \(6 in all\)"):
        core.extend(me(core), one, changes={})
    more = {"sweep.values.x": [0.1, 0.2, 0.3, 0.4]}
    found = core.estimate_extension(me(core), one, changes=more)
    assert (found["runs"], found["runs_in_all"]) == (4, 10)
    core.extend(me(core), one, changes=more)
    ended(core, one)
    assert core.campaign(me(core), one)["runs"]["done"] == 10


def test_points_of_a_sweep_that_are_outside_of_what_ran_are_said_with_the_price(core):
    toml = "space = { run_time_s = {} }\nuntil = { max_runs = 2 }\n"
    toml += 'sweep = { design = "grid", replicates = 1, values = { run_time_s = [0.01, 0.02, 6.0, 9.0] } }\n'
    one = sent(core, toml)
    found = core.estimate_extension(me(core), one, changes={"until.max_runs": 4})
    words = "points on top are outside of what ran: run_time_s = 6 to 9 (0.01 to 0.02 so far)"
    assert found["runs"] == 2 and found["from"] == f"the mean of 2 runs of this campaign; {words}"
    found = core.estimate_extension(me(core), one, changes={"until.max_runs": 3})
    assert found["runs"] == 1 and "run_time_s = 6 (0.01 to 0.02 so far)" in found["from"]
    inside = {"until.max_runs": 3, "sweep.values.run_time_s": [0.01, 0.015, 0.02]}
    found = core.estimate_extension(me(core), one, changes=inside)
    assert found["runs"] == 1 and found["from"] == "the mean of 2 runs of this campaign"


def test_a_campaign_whose_tool_was_rejected_since_does_not_go_on(core, campaign, monkeypatch):
    def rejected(reference: str) -> Any:
        raise NotAllowed("contract", "the tool is rejected", field="app", value=reference)

    monkeypatch.setattr(core.references, "app", rejected)
    for ask in (core.estimate_extension, core.extend):
        with pytest.raises(NotAllowed, match="the tool is rejected"):
            ask(me(core), campaign, changes={"until.max_runs": 10})
    assert core.rows[campaign].over
