"""A service that is killed in the middle of a request, and the next one, which is sent that request again."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import hpcagent as ha
from hpcagent.catalog import find_app
from hpcagent.errors import StoreFull
from hpcagent.gate.not_allowed import NotAllowed
from hpcagent.registry.trials import Trial
from hpcagent.runs.run import run
from hpcagent.store.journal import Journal, read_events
from hpcagent.workspace import beginning, booking, campaigns, lines_told
from hpcagent.workspace import core as cores
from hpcagent.workspace.app_store import packed
from hpcagent.workspace.core import Core
from hpcagent.workspace.folder import Folder
from hpcagent.workspace.outbox import Outbox
from hpcagent.workspace.rows import Row
from hpcagent.workspace.service import Service

PATIENCE_S = 120
RULES = 'name = "ws"\ndefault_site = "threads"\nretention_days = 1\n'
SIZE = 1000
TWO = '''\
def twice(x: float = 1.0) -> float:
    """Twice a number.

    Args:
        x: Number [1], 0 to 10.

    Returns:
        Twice that [1].
    """
    return 2 * x


def thrice(x: float = 1.0) -> float:
    """Thrice a number.

    Args:
        x: Number [1], 0 to 10.

    Returns:
        Thrice that [1].
    """
    return 3 * x
'''


class Killed(BaseException):
    """In place of SIGKILL: nothing that the service does about errors is done about it."""


class Services:
    """One service after the other, in this process; a campaign's coordinator is a thread of it, a run a file.

    Attributes:
        now: Unix time of the services, in seconds.
    """

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.root, self.now = root, time.time()
        self._patch = patch
        patch.setattr("hpcagent.workspace.service.Core", lambda root, apart: Core(root, clock=lambda: self.now))
        patch.setattr(Core, "_send", ended_at_once)
        patch.setattr(Core, "_try", lambda *_: None)
        patch.setattr(campaigns, "begin", beginning.begin)
        detached = partial(run, progress=False)
        patch.setattr(beginning, "run_detached", lambda *args, report, **more: detached(*args, **more))
        self.one = Service(root)

    @property
    def core(self) -> Core:
        """What the service of this moment has."""
        return self.one.core

    @property
    def me(self) -> Any:
        """The owner."""
        return self.core.caller(os.getuid())

    def ask(self, do: str, key: str = "", **args: Any) -> Any:
        """The answer to a request."""
        request = {"do": do, "args": args} | ({"key": key} if key else {})
        found = self.one.answer(json.dumps(request).encode(), os.getuid())
        return found["ok"] if "ok" in found else pytest.fail(str(found))

    def sent_twice(self, do: str, *, line: bool = True, **args: Any) -> Any:
        """The second answer to a request: the service is killed behind (or before) the line that it writes."""
        append = Journal.append

        def dying(journal: Journal, events: Iterable[Any]) -> None:
            if journal.path.name == "journal.jsonl":
                if line:
                    append(journal, events)
                raise Killed
            append(journal, events)

        with self._patch.context() as killing, pytest.raises(Killed):
            killing.setattr(Journal, "append", dying)
            self.ask(do, "k", **args)
        self.next()
        return self.ask(do, "k", **args)

    def next(self) -> None:
        """Another service takes the place of this one."""
        self.one.close()
        self.one = Service(self.root)

    def ended(self, identity: str) -> Any:
        """A campaign once it is booked."""
        until = time.monotonic() + PATIENCE_S
        while not self.core.rows[identity].over and time.monotonic() < until:
            self.core._look_at_campaigns()
            time.sleep(0.02)
        return self.core.rows[identity]

    def told(self) -> Counter[str]:
        """Lines of the journal, by event."""
        return Counter(one["event"] for one in read_events(self.root / "journal.jsonl"))


def ended_at_once(core: Core, row: Any, *_: Any) -> None:
    """A run has ended as soon as its site has it, and has left a file."""
    folder = core._workdir(row)
    folder.mkdir(parents=True)
    (folder / "out.txt").write_bytes(bytes(SIZE))
    core._end(row, "completed", bytes=SIZE)


@pytest.fixture
def services(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Services]:
    root = tmp_path / "ws"
    Folder(root).create()
    (root / "workspace.toml").write_text(RULES)
    found = Services(root, monkeypatch)
    yield found
    found.one.close()


def lost(services: Services, identity: str) -> None:
    """The machine has lost a run: asked for again it is done again."""
    row = services.core.rows[identity]
    row.state, row.result = "failed", None
    shutil.rmtree(services.core._workdir(row))


def started(services: Services) -> str:
    """A campaign that has ended."""
    begun = services.ask("start", campaign="synthetic", changes={"until.max_runs": 2})["id"]
    assert services.ended(begun).state == "completed"
    return str(begun)


def booked_as_it_took(services: Services, identity: str, runs: int) -> None:
    row, campaign = services.ended(identity), services.core.campaign(services.me, identity)
    assert row.state == "completed" and campaign["runs"]["done"] == runs
    assert row.settled == pytest.approx(campaign["node_hours"], rel=1e-9) and row.settled > 0
    account = services.core.accounts.whole
    assert account.node_hours == pytest.approx(row.settled) and not account.committed


# -- campaigns ------------------------------------------------------------------------------------


def test_a_campaign_is_begun_by_the_next_service_and_its_approval_is_not_spent_in_vain(services):
    with (services.root / "workspace.toml").open("a") as file:
        file.write("[[approval]]\nnodes_times_hours = 0.0\n")
    wanted = {"campaign": "synthetic", "changes": {"until.max_runs": 2, "until.node_hours": 0.5}}
    services.next()
    with pytest.raises(NotAllowed) as asked:
        services.core.start(services.me, wanted["campaign"], changes=wanted["changes"])
    services.core.decide(services.me, asked.value.approval, grant=True)
    begun = services.sent_twice("start", **wanted)
    assert begun["state"] == "running" and not begun["found"]
    booked_as_it_took(services, begun["id"], 2)
    assert services.core.approvals.get(asked.value.approval).used_for == begun["id"]
    assert services.told()["asked"] == 1 and services.ask("start", "k", **wanted) == begun


def test_what_a_campaign_is_to_do_is_not_left_behind_when_its_line_cannot_be_written(services, monkeypatch):
    monkeypatch.setattr(Core, "_begin", refuse_for_want_of_room)
    assert "error" in services.one.answer(b'{"do": "start", "args": {"campaign": "synthetic"}}', os.getuid())
    assert not list((services.root / "campaigns").iterdir()) and services.told()["asked"] == 0


def refuse_for_want_of_room(*_: Any, **__: Any) -> None:
    raise StoreFull("no space left on the device")


def test_a_campaign_that_was_let_go_on_is_begun_by_the_next_service(services):
    one = started(services)
    again = services.sent_twice("extend", identity=one, changes={"until.max_runs": 4})
    assert again["id"] == one and not again["found"]
    booked_as_it_took(services, one, 4)
    assert services.told()["extended"] == 1 and services.told()["ended"] == 2


def test_a_campaign_that_was_let_go_on_goes_on_also_when_nobody_asks_again(services):
    one = started(services)
    with pytest.MonkeyPatch().context() as patch:
        patch.setattr(Core, "_soon", lambda core, row, *_: core._said(row, found=False))  # killed behind it
        services.ask("extend", identity=one, changes={"until.max_runs": 4}, at_once=True)
    services.next()
    booked_as_it_took(services, one, 4)


def test_the_last_end_of_a_campaign_is_none_once_it_was_let_go_on(services, monkeypatch):
    """Looked at between the line and its beginning."""
    one, begin = started(services), Core._in_the_background

    def looked_at(core: Core, *args: Any, **more: Any) -> Any:
        core._look_at_campaigns()
        assert not core.rows[one].over and core.accounts.whole.committed.keys() == {one}
        return begin(core, *args, **more)

    monkeypatch.setattr(Core, "_in_the_background", looked_at)
    services.ask("extend", identity=one, changes={"until.max_runs": 4, "until.node_hours": 0.5})
    booked_as_it_took(services, one, 4)


def test_what_was_read_of_a_campaign_before_it_was_let_go_on_ends_nothing(services, monkeypatch):
    one, read = started(services), booking.snapshot
    row = services.core.rows[one]
    row.state, row.ended_at = "stopped", 0.0  # interrupted, and gone on with by hand: it is looked at

    def late(folder: Path) -> Any:
        monkeypatch.setattr(booking, "snapshot", read)
        found = read(folder)
        services.ask("extend", identity=one, changes={"until.max_runs": 4})
        return found

    monkeypatch.setattr(booking, "snapshot", late)
    services.core._look_at_campaigns()
    assert not row.over
    booked_as_it_took(services, one, 4)


def test_a_campaign_whose_coordinator_is_killed_as_it_goes_on_was_interrupted(services, monkeypatch):
    one = started(services)

    def killed(root: Path, identity: str, _: str) -> None:
        with (root / "campaigns" / identity / "events.jsonl").open("a") as file:
            file.write(json.dumps({"event": "session", "at": time.time()}) + "\n")

    monkeypatch.setattr(campaigns, "begin", killed)
    services.ask("extend", identity=one, changes={"until.max_runs": 4})
    row = services.ended(one)
    assert row.state == "stopped" and "it was interrupted" in row.note


def test_two_who_look_at_once_book_a_campaign_once(services, monkeypatch):
    one, read = started(services), booking.snapshot
    row = services.core.rows[one]
    row.state = "running"
    before = row.settled = row.settled / 2

    def late(folder: Path) -> Any:
        monkeypatch.setattr(booking, "snapshot", read)
        found = read(folder)
        services.core._look_at_campaigns()
        row.state = "stopped"  # as of one that was interrupted
        return found

    monkeypatch.setattr(booking, "snapshot", late)
    services.core._look_at_campaigns()
    assert services.told()["ended"] == 2 and row.settled == pytest.approx(2 * before)


# -- folders of old runs --------------------------------------------------------------------------


def old_run(services: Services) -> Path:
    begun = services.ask("run", app="synthetic", params={"x": 0.3})
    services.now += 2 * 86400
    assert services.core.accounts.whole.bytes == SIZE
    return Path(begun["workdir"])


@pytest.mark.parametrize("line", [False, True], ids=["before its line", "behind its line"])
def test_folders_that_are_removed_are_given_back_once(services, line):
    folder = old_run(services)
    removed = services.sent_twice("expire", line=line)
    assert removed["bytes"] == SIZE and len(removed["removed"]) == 1
    assert not folder.exists() and services.core.accounts.whole.bytes == 0
    services.next()
    assert services.core.accounts.whole.bytes == 0 and services.ask("expire")["removed"] == []
    assert services.told()["expired"] == services.told()["removed"] == 1


def test_a_folder_that_cannot_be_removed_is_tried_again(services):
    folder = old_run(services)
    with pytest.MonkeyPatch().context() as patch:
        patch.setattr(cores.shutil, "rmtree", refuse_to_remove)
        said = services.ask("expire")
        assert len(said["removed"]) == 1 and "not all folders could be removed yet: busy" in said["note"]
        assert services.ask("expire")["removed"] == [] and services.core.accounts.whole.bytes == 0
    assert folder.exists()
    services.ask("expire")
    assert not folder.exists() and services.core.accounts.whole.bytes == 0


def refuse_to_remove(_: Path) -> None:
    raise OSError("busy")


def test_the_folder_of_work_that_was_done_again_since_is_not_removed(services):
    folder = old_run(services)
    with pytest.MonkeyPatch().context() as patch:
        patch.setattr(cores.shutil, "rmtree", refuse_to_remove)
        services.ask("expire")
    lost(services, next(iter(services.core.rows)))
    services.now += 1
    again = services.ask("run", app="synthetic", params={"x": 0.3})
    assert not again["found"] and again["workdir"] == str(folder)
    services.next()
    assert (folder / "out.txt").exists()


# -- events ---------------------------------------------------------------------------------------

SCRIPT = (
    "units lj\nlattice fcc 0.8442\nregion b block 0 2 0 2 0 2\ncreate_box 1 b\ncreate_atoms 1 box\nmass 1 1.0\n"
    "variable T index 1.0\nvelocity all create ${T} 1\npair_style lj/cut 2.5\npair_coeff 1 1 1.0 1.0\nfix 1 all nve\nrun 10\n"
)


def untold(services: Services, do: str, **args: Any) -> Any:
    """The service is killed behind the line that a request writes, before it tells it."""

    def dying(*_: Any) -> None:
        raise Killed

    with services._patch.context() as killing, pytest.raises(Killed):
        killing.setattr(Outbox, "tell", dying)
        services.ask(do, f"{do} {len(events_of(services))}", **args)


def events_of(services: Services) -> list[tuple[str, str]]:
    """All events that were told: name, and its key."""
    return [(line.data["event"], line.data.get("key", "")) for line in services.core.events.log.read(0, 1000)[0]]


def test_the_end_of_a_run_that_was_not_told_is_told_once_by_the_next_service(services):
    services.ask("run", app="synthetic", params={"x": 0.1})
    untold(services, "run", app="synthetic", params={"x": 0.3})
    assert len(events_of(services)) == 1 and services.told()["ended"] == 2
    for _ in range(3):
        services.next()
    ends = [f"{identity} ended" for identity in services.core.rows]
    assert events_of(services) == [("on_job_complete", end) for end in ends]


def test_without_any_event_the_last_end_is_told_and_none_of_long_ago(services):
    services.ask("run", app="synthetic", params={"x": 0.1})
    services.now += 3600
    untold(services, "run", app="synthetic", params={"x": 0.3})
    services.one.close()
    shutil.rmtree(services.root / "events")
    services.one = Service(services.root)
    (_, last) = services.core.rows
    assert events_of(services) == [("on_job_complete", f"{last} ended")]


def test_what_was_not_told_is_told_before_what_a_service_finds_as_it_begins(services, monkeypatch):
    """Else the time from which events are missing would be that of the later one."""
    with monkeypatch.context() as patch:
        patch.setattr(Core, "_send", lambda *_: None)
        waits = services.ask("run", app="synthetic", params={"x": 0.1})["id"]
    untold(services, "run", app="synthetic", params={"x": 0.3})
    services.now += 3600
    newer = find_app("synthetic")
    newer = newer._changed(contract=newer.contract.model_copy(update={"version": "9.0.0"}))
    monkeypatch.setattr("hpcagent.workspace.references.find_app", lambda _: newer)
    services.next()  # which does not take up the run that waits
    (quick,) = set(services.core.rows) - {waits}
    assert events_of(services) == [("on_job_complete", f"{quick} ended"), ("on_job_failed", f"{waits} ended")]


def test_a_service_that_is_killed_as_it_tells_what_was_not_told_leaves_the_rest_to_the_next(services, monkeypatch):
    services.ask("run", app="synthetic", params={"x": 0.05})
    untold(services, "run", app="synthetic", params={"x": 0.1})
    services.now += 1
    untold(services, "run", app="synthetic", params={"x": 0.2})
    services.now += 3600
    tell = Core._tell_end

    def once(core: Core, row: Row) -> None:
        if len(core.events.log.read(0, 1000)[0]) > 1:
            core._lock_file.release()
            raise Killed
        tell(core, row)

    with monkeypatch.context() as patch:
        patch.setattr(Core, "_tell_end", once)
        services.one.close()
        with pytest.raises(Killed):
            Service(services.root)
    services.now += 3600
    services.one = Service(services.root)
    assert events_of(services) == [("on_job_complete", f"{one} ended") for one in services.core.rows]


def test_what_a_full_disk_refuses_is_told_later_and_in_its_order(services, monkeypatch):
    def full(*_: Any, **__: Any) -> int:
        raise StoreFull("no space left on the disk", path="log")

    with monkeypatch.context() as patch:
        patch.setattr(type(services.core.events), "tell", full)
        for x in (0.1, 0.2):
            services.ask("run", app="synthetic", params={"x": x})
        services.core.look()
    assert events_of(services) == [] and len(services.core.news) == 1
    services.ask("run", app="synthetic", params={"x": 0.3})
    assert events_of(services) == [("on_job_complete", f"{one} ended") for one in services.core.rows]
    with monkeypatch.context() as patch:
        patch.setattr(type(services.core.events), "tell", full)
        services.ask("run", app="synthetic", params={"x": 0.4})
    services.core.look()
    assert len(events_of(services)) == 4


def test_behind_very_many_events_of_others_nothing_is_told_twice(services, monkeypatch):
    monkeypatch.setattr(lines_told, "_MOST", 5)
    services.ask("run", app="synthetic", params={"x": 0.1})
    for _ in range(10):
        services.core.events.tell("of_mine", {}, owner="ada", by="ada")
    services.next()
    assert [event for event, _ in events_of(services)] == ["on_job_complete"] + 10 * ["of_mine"]


@pytest.mark.parametrize("hours", ["much", None, -1e6, float("nan"), float("inf")])
def test_a_cost_that_is_none_in_the_journal_counts_in_no_quota(services, hours):
    services.ask("run", app="synthetic", params={"x": 0.1})
    services.one.close()
    journal = services.root / "journal.jsonl"
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    wrong = [line | {"node_hours": hours} if line["event"] == "ended" else line for line in lines]
    journal.write_text("".join(json.dumps(line) + "\n" for line in wrong))
    shutil.rmtree(services.root / "work")  # the run, whose end is not known any more, is done again
    services.one = Service(services.root)
    (row,) = services.core.rows.values()
    assert services.core.damaged == 1 and row.state == "completed"
    assert services.core.accounts.whole.node_hours == 0.0 and services.core.accounts.whole.in_flight == (0.0, 0.0)


@pytest.mark.parametrize("at", ["yesterday", None, float("nan")])
def test_a_time_that_is_none_in_the_journal_keeps_no_service_from_beginning(services, at):
    services.ask("run", app="synthetic", params={"x": 0.1})
    services.ask("register_tool", text=TWO, sandbox="limits")
    services.one.close()
    journal = services.root / "journal.jsonl"
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    wrong = [line | {"at": at} if line["event"] in ("ended", "tool_registered") else line for line in lines]
    journal.write_text("".join(json.dumps(line) + "\n" for line in wrong))
    shutil.rmtree(services.root / "work")  # the run, whose end is not known any more, is done again
    services.one = Service(services.root)
    (row,) = services.core.rows.values()
    assert services.core.damaged >= 1 and row.ended_at != at
    assert services.ask("run", app="synthetic", params={"x": 0.2})["state"] == "completed"


def test_each_end_of_a_campaign_that_was_let_go_on_is_an_event_of_its_own(services):
    one = started(services)
    services.ask("extend", identity=one, changes={"until.max_runs": 4})
    booked_as_it_took(services, one, 4)
    keys = [key for event, key in events_of(services) if event == "on_job_complete"]
    assert len(keys) == 2 == len(set(keys)) and all(key.startswith(f"{one} ended") for key in keys)
    services.next()
    assert [key for event, key in events_of(services) if event == "on_job_complete"] == keys


def test_what_was_decided_of_a_tool_and_an_app_and_not_told_is_told_by_the_next_service(services, tmp_path):
    untold(services, "register_tool", text=TWO, sandbox="limits")
    services.next()
    for name in ("twice", "thrice"):
        seen = services.core.tools.see(name).record
        services.core.tools.tested(name, seen.sha256, Trial(state="passed"))
    untold(services, "decide_tool", name="twice", approve=True)
    services.next()
    untold(services, "remove_tool", name="thrice")
    services.next()
    (tmp_path / "in.mine").write_text(SCRIPT)
    made = packed(ha.lammps(tmp_path / "in.mine", variables={"T": ha.Float(0.5, 2.0)}))
    untold(services, "add_app", app=made)
    services.next()
    untold(services, "remove_app", name="mine")
    services.next()
    services.next()
    told = [line.data["payload"] for line in services.core.events.log.read(0, 1000)[0]]
    assert [(one["tool"], one["state"], one["why"].partition(" by ")[0]) for one in told] == [
        ("twice", "pending", "registered"),
        ("thrice", "pending", "registered"),
        ("twice", "approved", "approved"),
        ("thrice", "pending", "removed"),
        ("mine", "approved", "added"),
        ("mine", "removed", "removed"),
    ]


# -- tools and invocations ------------------------------------------------------------------------


def test_all_tools_of_a_text_are_registered_and_told(services):
    mine = services.ask("subscribe", events="on_tool_registered")["subscription_id"]
    cards = services.sent_twice("register_tool", text=TWO, sandbox="limits")["tools"]
    assert [card["name"] for card in cards] == ["twice", "thrice"]
    assert services.told()["tool_registered"] == 2
    told = services.ask("notifications", subscription_id=mine)
    assert [one["payload"]["tool"] for one in told] == ["twice", "thrice"]


@pytest.mark.parametrize("approve", [True, False])
def test_a_tool_is_decided_once(services, approve):
    services.ask("register_tool", text=TWO, sandbox="limits")
    for name in ("twice", "thrice"):
        seen = services.core.tools.see(name).record
        services.core.tools.tested(name, seen.sha256, Trial(state="passed"))
    card = services.sent_twice("decide_tool", name="twice", approve=approve)
    assert card["state"] == ("approved" if approve else "rejected") and card["usable"] == approve
    assert services.told()["tool_approved" if approve else "tool_rejected"] == 1


def test_an_invocation_is_one_run(services):
    first = services.ask("run", app="synthetic", params={"x": 0.3})
    written = services.ask("invocation", identity=first["id"])
    lost(services, first["id"])
    begun = services.sent_twice("invoke", invocation=written)
    assert begun["id"] != first["id"] and not begun["found"]
    assert services.told()["asked"] == 2 and services.ask("invoke", "k", invocation=written) == begun
