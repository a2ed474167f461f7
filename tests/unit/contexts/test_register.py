"""Subscriptions and the record of triggers are written anew now and then, and replay finds what it needs."""

from __future__ import annotations

import errno
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpcagent.contexts import Events, Trigger, Triggers
from hpcagent.contexts import register as register_module
from hpcagent.contexts import subscriptions as subscriptions_module
from hpcagent.contexts import triggers as triggers_module
from hpcagent.contexts.lines import Line, Lines
from hpcagent.contexts.register import Register
from hpcagent.errors import BadInput, Damaged, StoreFull

RULE = Trigger(name="look", when="found", then={"tool": "run_dft", "arguments": {"x": {"from": "x"}}})
PICKY = Trigger(name="picky", when="found", then={"tool": "run_dft", "arguments": {"y": {"from": "y"}}})


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Compaction is due after some tens of lines, not after a thousand."""
    monkeypatch.setattr(register_module, "SPARE", 20)


class Tally:
    """A state of which a register is: a number for each name."""

    def __init__(self, path) -> None:
        self.numbers: dict[str, int] = {}
        self.begun = 0
        self.register = Register(path, begin=self._begin, apply=self._apply, needed=self._needed)

    def _begin(self) -> None:
        self.begun += 1
        self.numbers.clear()

    def _apply(self, line: Line) -> None:
        self.numbers[line.data["name"]] = line.data["value"]

    def _needed(self):
        return [{"do": "set", "name": name, "value": value} for name, value in self.numbers.items()]

    def set(self, name: str, value: int) -> None:
        self.register.enter({"do": "set", "name": name, "value": value})


def lines_in(path) -> int:
    return path.read_bytes().count(b"\n")


def compacted(path) -> bool:
    return b'"do":"compacted"' in path.read_bytes().partition(b"\n")[0]


def test_a_register_is_no_longer_than_its_state_needs_and_says_the_same(tmp_path):
    path = tmp_path / "tally.jsonl"
    one = Tally(path)
    most = 0
    for i in range(300):
        one.set("abc"[i % 3], i)
        one.register.compact()
        most = max(most, lines_in(path))
    # Three names and the first line: twice that, and what is to spare.
    assert most <= 2 * 4 + 20
    fresh = Tally(path)
    fresh.register.open()
    assert fresh.numbers == one.numbers == {"a": 297, "b": 298, "c": 299}
    assert [line.n for line in Lines(path).each()] == list(range(1, lines_in(path) + 1))


def test_who_has_read_the_old_file_begins_anew_with_the_new_one(tmp_path):
    path = tmp_path / "tally.jsonl"
    writer, reader, second = Tally(path), Tally(path), Tally(path)
    for i in range(10):
        writer.set("a", i)
        writer.set("b", i)
    reader.register.catch_up()
    second.register.catch_up()
    for i in range(10, 200):
        writer.set("a", i)
        writer.register.compact()
    reader.register.catch_up()
    assert reader.numbers == {"a": 199, "b": 9} and reader.begun == 1
    second.set("c", 1)  # a writer who did not look before
    assert second.numbers == {"a": 199, "b": 9, "c": 1}
    writer.register.catch_up()
    assert writer.numbers == second.numbers


def test_a_file_that_was_cut_is_damaged_and_not_a_new_one(tmp_path):
    path = tmp_path / "tally.jsonl"
    for before in (0, 200):  # also behind a compaction
        writer = Tally(path)
        writer.register.open()
        for i in range(before):
            writer.set("a", i)
            writer.register.compact()
        for i in range(5):
            writer.set("b", i)
        whole = path.read_bytes()
        path.write_bytes(b"".join(whole.splitlines(keepends=True)[:-2]))
        for call in (writer.register.catch_up, lambda writer=writer: writer.set("c", 1)):
            with pytest.raises(Damaged):
                call()
        path.write_bytes(whole)


def test_a_full_disk_leaves_the_register_as_it_was_and_it_goes_on(tmp_path, monkeypatch):
    path = tmp_path / "tally.jsonl"
    one = Tally(path)

    def full(*args, **options):
        raise StoreFull("no space", path=str(path), errno=errno.ENOSPC)

    with monkeypatch.context() as patched:
        patched.setattr(register_module, "write_whole", full)
        for i in range(100):
            one.set("a", i)
            one.register.compact()
        assert lines_in(path) == 100 and one.numbers == {"a": 99}
    for i in range(100, 200):
        one.set("a", i)
        one.register.compact()
    assert lines_in(path) < 100 and one.numbers == {"a": 199}


def test_one_killed_while_writing_it_anew_has_changed_nothing(tmp_path):
    path = tmp_path / "tally.jsonl"
    code = f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from hpcagent.contexts import register
register.SPARE = 20
from test_register import Tally
from pathlib import Path
one = Tally(Path({str(path)!r}))
for i in range(60):
    one.set("a", i)
Path.replace = lambda self, to: os.kill(os.getpid(), 9)
one.register.compact()
"""
    ended = subprocess.run([sys.executable, "-c", code], check=False)
    assert ended.returncode == -9 and lines_in(path) == 60
    one = Tally(path)
    one.register.open()
    assert one.numbers == {"a": 59} and lines_in(path) == 2  # the first line, and what is needed


def test_one_that_has_read_to_a_line_that_a_later_file_has_too_begins_anew(tmp_path, monkeypatch):
    """Both files begin with lines of the same length, and the line that was read last is the same in both."""
    monkeypatch.setattr(register_module, "SPARE", 3)
    monkeypatch.setattr(register_module.time, "time", lambda: 1_700_000_000.25)
    one, other = Tally(tmp_path / "tally.jsonl"), Tally(tmp_path / "tally.jsonl")

    def compacted(number):
        for value in (number, 10, 11, number, 10, 11, number, 10, 11, number):
            one.set("a", value)
            one.set("z", 50)
        one.register.open()
        assert lines_in(one.register.path) == 3

    compacted(12)
    other.register.catch_up()
    assert other.numbers == {"a": 12, "z": 50}
    compacted(13)
    other.register.catch_up()
    assert other.numbers == {"a": 13, "z": 50}
    other.set("y", 1)
    one.register.catch_up()
    assert one.numbers == other.numbers == {"a": 13, "z": 50, "y": 1}


@pytest.mark.slow
def test_processes_that_write_and_compact_at_once_lose_nothing(tmp_path):
    path = tmp_path / "tally.jsonl"
    code = f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from hpcagent.contexts import register
register.SPARE = 20
from test_register import Tally
from pathlib import Path
one = Tally(Path({str(path)!r}))
for i in range(150):
    one.set(sys.argv[1] + str(i % 5), i)
    one.register.compact()
"""
    running = [subprocess.Popen([sys.executable, "-c", code, name]) for name in "wxyz"]
    assert [one.wait(120) for one in running] == [0, 0, 0, 0]
    one = Tally(path)
    one.register.catch_up()
    assert one.numbers == {f"{name}{i}": 145 + i for name in "wxyz" for i in range(5)}
    assert lines_in(path) <= 2 * 21 + 20


# -- subscriptions --------------------------------------------------------------------------------


def test_subscriptions_are_those_that_are_active_after_any_number_that_were_not(tmp_path, monkeypatch):
    monkeypatch.setattr(subscriptions_module, "_ENDED_KEPT", 3)
    events, other = Events(tmp_path), Events(tmp_path)
    first = events.subscribe("on_message", owner="ada", where={"text": "tea"})
    events.tell("on_message", {"text": "tea"}, owner="ada")
    assert other.look(first.subscription_id, owner="ada").notifications
    other.acknowledge(first.subscription_id, 1, owner="ada")
    gone = []
    for _ in range(100):
        gone.append(events.subscribe("on_message", owner="ada").subscription_id)
        events.unsubscribe(gone[-1], owner="ada")
    assert lines_in(tmp_path / "subscriptions.jsonl") < 60  # of 201
    for one in (events, other, Events(tmp_path)):
        assert one.subscriptions(owner="ada") == (first,)
        assert one.look(first.subscription_id, owner="ada").cursor == 1
        with pytest.raises(BadInput, match="was ended"):
            one.subscription(gone[-1], owner="ada")
    with pytest.raises(BadInput, match="is not known"):
        Events(tmp_path).subscription(gone[0], owner="ada")
    # As much as the two say, it goes on between processes.
    second = other.subscribe("on_message", owner="bob")
    assert events.subscriptions(owner="bob") == (second,)


def test_a_subscription_that_has_expired_says_so_as_long_as_events_of_it_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(subscriptions_module, "_ENDED_KEPT", 3)
    events = Events(tmp_path, keep_s=1000.0)
    old = events.subscribe("on_message", owner="ada", expires_s=10)
    events.tell("on_message", {"text": "tea"}, owner="ada")
    events.acknowledge(old.subscription_id, 1, owner="ada")
    now = time.time()

    def busy(events) -> None:
        for _ in range(40):
            events.unsubscribe(events.subscribe("on_message", owner="bob").subscription_id, owner="bob")

    monkeypatch.setattr(time, "time", lambda: now + 500)
    busy(events)
    with pytest.raises(BadInput, match=r"has expired .*after=1 goes on"):
        Events(tmp_path).subscription(old.subscription_id, owner="ada")
    cursor = tmp_path / "cursors" / old.subscription_id
    assert cursor.exists()
    monkeypatch.setattr(time, "time", lambda: now + 5000)
    busy(events)
    with pytest.raises(BadInput, match="is not known"):
        Events(tmp_path).subscription(old.subscription_id, owner="ada")
    assert not cursor.exists()


# -- triggers -------------------------------------------------------------------------------------


def hosted(folder, events, rules, start):
    return Triggers(folder / "triggers", events, rules, start, owner="ada")


def test_what_has_started_is_not_started_again_after_the_record_was_written_anew(tmp_path):
    events, started = Events(tmp_path / "events"), []
    rule = RULE.model_copy(update={"most_per_minute": 1000})
    with hosted(tmp_path, events, [rule, PICKY], lambda job: started.append(job.key) or "job") as triggers:
        for i in range(60):
            events.tell("found", {"x": i}, owner="ada", key=f"k{i}")
            triggers.run_once()
        path = tmp_path / "triggers" / "triggers.jsonl"
        assert compacted(path) is False
        for _ in range(60):  # what sets nothing off is a line as well
            events.tell("other", {}, owner="ada")
            triggers.run_once()
        assert compacted(path)
        before = triggers.history()
    assert len(started) == 60 and {f.state for f in before if f.trigger == "picky"} == {"refused"}
    with hosted(tmp_path, events, [rule, PICKY], lambda job: started.append(job.key)) as triggers:
        assert triggers.history() == before
        for i in range(60):
            events.tell("found", {"x": i}, owner="ada", key=f"k{i}")  # told again, as after a crash
        assert triggers.run_once() == 0 and len(started) == 60


def test_the_record_of_triggers_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(triggers_module, "_FIRED_KEPT", 10)
    monkeypatch.setattr(triggers_module, "_REFUSED_KEPT", 5)
    events, started = Events(tmp_path / "events"), []
    rule = RULE.model_copy(update={"most_per_minute": 10_000})
    with hosted(tmp_path, events, [rule, PICKY], lambda job: started.append(job.key)) as triggers:
        for i in range(200):
            events.tell("found", {"x": i}, owner="ada")
            triggers.run_once()
        # A service that goes on for months as well: five lines for each event, and so many since the last time.
        assert lines_in(tmp_path / "triggers" / "triggers.jsonl") < 150
    with hosted(tmp_path, events, [rule, PICKY], lambda job: started.append(job.key)) as triggers:
        kept = triggers.history()
        assert triggers.run_once() == 0
    assert len(started) == 200
    # A flood of refusals pushes out nothing that has started.
    assert [f.n for f in kept if f.state == "started"][-10:] == [*range(191, 201)]


def test_what_was_begun_when_the_process_was_killed_is_handed_over_again_from_the_new_file(tmp_path):
    events = Events(tmp_path / "events")

    def killed(job):
        raise KeyboardInterrupt

    quiet = Trigger(name="other", when="nothing", then={"tool": "run_dft"})
    with hosted(tmp_path, events, [RULE, quiet], killed) as triggers:
        events.tell("found", {"x": 7}, owner="ada", key="k7")
        with pytest.raises(KeyboardInterrupt):
            triggers.run_once()
    path = tmp_path / "triggers" / "triggers.jsonl"
    lines = Lines(path)
    with lines.held() as held:  # others were looked at since: so much that it is worth writing anew
        found = held.read(after=0, end=0)
        for i in range(100):
            held.append(len(found) + 1 + i, {"at": time.time(), "do": "seen", "to": 0})
    again = []
    with hosted(tmp_path, events, [RULE, quiet], lambda job: again.append(job)) as triggers:
        assert lines_in(path) < 10
        assert triggers.run_once() == 1
    (job,) = again
    assert (job.key, job.again, job.arguments, job.event.key) == ("look:k7", True, {"x": 7}, "k7")


def test_the_rate_of_the_last_minute_holds_over_the_new_file(tmp_path, monkeypatch):
    events, started = Events(tmp_path / "events"), []
    rule = RULE.model_copy(update={"most_per_minute": 30})
    now = time.time()
    with hosted(tmp_path, events, [rule], lambda job: started.append(job.key)) as triggers:
        for i in range(29):
            events.tell("found", {"x": i}, owner="ada")
            triggers.run_once()
    with hosted(tmp_path, events, [rule], lambda job: started.append(job.key)) as triggers:
        for i in range(3):
            events.tell("found", {"x": i}, owner="ada")
            triggers.run_once()
        assert len(started) == 30 and triggers.history()[-1].state == "refused"
        monkeypatch.setattr(time, "time", lambda: now + 120)
        events.tell("found", {"x": 0}, owner="ada")
        triggers.run_once()
        assert len(started) == 31
