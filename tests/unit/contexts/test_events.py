"""Events come to those who asked for them and may see them, at least once, also after a restart."""

from __future__ import annotations

import multiprocessing
import os
import re
import time

import pytest

from hpcagent.contexts import Contexts, Events, add_job
from hpcagent.contexts.events import EVERYONE, MISSED, NAMES
from hpcagent.contexts.filters import Filter
from hpcagent.errors import BadInput, Damaged

FORK = multiprocessing.get_context("fork")


@pytest.fixture
def events(tmp_path):
    return Events(tmp_path / "events")


def complete(events, job, *, owner="ada", job_type="reaction_simulation", **more):
    payload = {"job_id": job, "job_type": job_type, "result_url": f"file:///runs/{job}/result.json", **more}
    return events.tell("on_job_complete", payload, owner=owner)


def jobs(events, subscription, **options):
    found = events.look(subscription.subscription_id, owner=subscription.owner, **options).notifications
    return [one.payload["job_id"] for one in found]


def test_a_subscription_is_acknowledged_and_its_notifications_have_the_form_of_the_contract(events):
    mine = events.subscribe("on_job_complete", owner="ada", where={"job_type": "reaction_simulation"})
    assert mine.acknowledgement == {"subscription_id": mine.subscription_id, "status": "active"}
    assert re.fullmatch("[0-9a-f]{32}", mine.subscription_id)
    complete(events, "j7")
    complete(events, "j8", job_type="other")
    events.tell("on_job_started", {"job_id": "j9", "job_type": "reaction_simulation"}, owner="ada")
    (got,) = events.look(mine.subscription_id, owner="ada").notifications
    data = got.data()
    assert data.keys() == {"subscription_id", "event", "payload"} and data["event"] == "on_job_complete"
    assert data["payload"]["job_id"] == "j7" and data["payload"]["result_url"] == "file:///runs/j7/result.json"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", data["payload"]["timestamp"])


def test_every_event_of_the_contract_is_known_and_needs_its_fields(events):
    assert set(NAMES) == {
        "on_job_started",
        "on_job_complete",
        "on_job_failed",
        "on_resource_modified",
        "on_tool_registered",
        "on_tool_deprecated",
        "on_message",
        "on_comment_added",
        "on_quota_exceeded",
        "on_auth_expiring",
        "on_context_update",
    }
    for name, fields in NAMES.items():
        with pytest.raises(BadInput, match=f"{name}: its payload has no '{fields[0]}'"):
            events.tell(name, {}, owner="ada")
        assert events.tell(name, dict.fromkeys(fields, "x"), owner="ada") > 0
    assert events.tell("new_promising_catalyst", {"catalyst": "CuZnO"}, owner="ada") == len(NAMES) + 1


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("on_job_completed", "did you mean 'on_job_complete'"),
        ("on_my_event", "does not begin with on_"),
        ("two words", "is an identifier"),
        ("", "is an identifier"),
        (None, "is an identifier"),
    ],
)
def test_a_name_that_is_no_event_is_refused(events, name, said):
    with pytest.raises(BadInput, match=said):
        events.tell(name, {}, owner="ada")
    with pytest.raises(BadInput, match=said):
        events.subscribe([name], owner="ada")


def test_nobody_gets_what_its_owner_may_not_see(events):
    hers = events.subscribe("on_job_complete", owner="ada")
    his = events.subscribe("on_job_complete", owner="bob")
    complete(events, "of-ada")
    complete(events, "of-bob", owner="bob")
    complete(events, "of-all", owner=EVERYONE)
    said = {"job_id": "shared", "result_url": "file:///s"}
    events.tell("on_job_complete", said, owner="eve", readers=["bob"])
    assert jobs(events, hers) == ["of-ada", "of-all"]
    assert jobs(events, his) == ["of-bob", "of-all", "shared"]
    # Nor does a subscription's id help somebody else.
    for go in (
        lambda: events.look(hers.subscription_id, owner="bob"),
        lambda: events.acknowledge(hers.subscription_id, 1, owner="bob"),
        lambda: events.unsubscribe(hers.subscription_id, owner="bob"),
    ):
        with pytest.raises(BadInput, match="is not known"):
            go()
    assert events.subscriptions(owner="bob") == (his,)
    with pytest.raises(BadInput, match="is nobody"):
        events.subscribe("on_job_complete", owner=EVERYONE)


def test_whoever_hosts_it_may_say_who_sees_what(tmp_path):
    events = Events(tmp_path, may_see=lambda owner, told: told.payload.get("team") == owner)
    team = events.subscribe("my_event", owner="blue")
    events.tell("my_event", {"team": "blue"}, owner="ada")
    events.tell("my_event", {"team": "red"}, owner="blue")
    assert [one.n for one in events.look(team.subscription_id, owner="blue").notifications] == [1]


def test_what_was_not_acknowledged_comes_again_also_after_a_restart(events):
    mine = events.subscribe("on_job_complete", owner="ada")
    for i in range(5):
        complete(events, f"j{i}")
    assert jobs(events, mine, most=2) == ["j0", "j1"] == jobs(events, mine, most=2)
    first = events.look(mine.subscription_id, owner="ada").notifications[0]
    events.acknowledge(mine.subscription_id, first.n, owner="ada")
    again = Events(events.folder)
    assert jobs(again, mine) == ["j1", "j2", "j3", "j4"]
    again.acknowledge(mine.subscription_id, 4, owner="ada")
    again.acknowledge(mine.subscription_id, 2, owner="ada")  # late: changes nothing
    assert jobs(events, mine) == ["j4"]
    with pytest.raises(BadInput, match="event 6 was not told yet, the last one is 5"):
        events.acknowledge(mine.subscription_id, 6, owner="ada")


def test_a_cursor_that_cannot_be_read_brings_events_twice_rather_than_never(events):
    mine = events.subscribe("on_job_complete", owner="ada")
    complete(events, "j0")
    events.acknowledge(mine.subscription_id, 1, owner="ada")
    assert jobs(events, mine) == []
    for spoilt in (b"", b"nonsense", b"00000000000000000009 00000000\n"):
        (events.folder / "cursors" / mine.subscription_id).write_bytes(spoilt)
        assert jobs(events, mine) == ["j0"]


def test_the_notification_at_which_a_subscriber_was_killed_comes_again(events):
    mine = events.subscribe("on_job_complete", owner="ada")
    for i in range(4):
        complete(events, f"j{i}")
    worked = []
    for one in events.notifications(mine.subscription_id, owner="ada", timeout_s=0):
        worked.append(one.payload["job_id"])
        if one.payload["job_id"] == "j2":
            break  # killed while it worked on this one
    rest = events.notifications(mine.subscription_id, owner="ada", timeout_s=0)
    worked += [one.payload["job_id"] for one in rest]
    assert worked == ["j0", "j1", "j2", "j2", "j3"]


def test_one_who_was_away_for_longer_than_events_are_kept_is_told_how_many_are_gone(tmp_path):
    events = Events(tmp_path, keep=20)
    mine = events.subscribe("on_job_complete", owner="ada")
    for i in range(1, 101):
        complete(events, f"j{i}")
    found = events.look(mine.subscription_id, owner="ada").notifications
    assert found[0].event == MISSED
    gone = found[0].payload
    kept = [one.payload["job_id"] for one in found[1:]]
    assert (gone["first"], gone["last"]) == (1, gone["count"]) and len(kept) == 100 - gone["count"]
    assert kept == [f"j{i}" for i in range(gone["count"] + 1, 101)] and 20 <= len(kept) < 25
    assert len(list(events.log.folder.glob("*.jsonl"))) < 14  # of two events each, and the one that is begun
    events.acknowledge(mine.subscription_id, found[0].n, owner="ada")
    assert jobs(events, mine) == kept


def test_a_subscriber_ahead_of_a_log_that_a_crash_has_cut_is_brought_back_and_told(events):
    old = events.subscribe("on_job_complete", owner="ada")
    for i in range(1, 11):
        complete(events, f"j{i}")
    events.acknowledge(old.subscription_id, 10, owner="ada")
    new = events.subscribe("on_job_complete", owner="ada")  # it began behind what is lost
    (path,) = events.log.folder.glob("*.jsonl")
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:7]))
    events = Events(events.folder)  # the machine is up again
    for one in (old, new):
        (gone,) = events.look(one.subscription_id, owner="ada").notifications
        assert gone.event == MISSED and gone.n == 7 and "crash" in gone.payload["why"]
        assert [gone.payload[name] for name in ("first", "last", "count")] == [8, 10, 3]
        events.acknowledge(one.subscription_id, gone.n, owner="ada")
        assert jobs(events, one) == []
    for i in range(100, 106):
        complete(events, f"j{i}")
    for again in (events, Events(events.folder)):
        for one in (old, new):
            found = again.look(one.subscription_id, owner="ada").notifications
            assert [n.payload["job_id"] for n in found] == [f"j{i}" for i in range(100, 106)]


def test_old_events_are_dropped_by_their_age(tmp_path):
    events = Events(tmp_path, keep=20, keep_s=1000)
    for i in range(10):
        complete(events, f"j{i}")
    for path in events.log.folder.glob("*.jsonl"):
        os.utime(path, (time.time() - 2000,) * 2)
    complete(events, "new")
    complete(events, "newer")
    mine = events.subscribe("on_job_complete", owner="ada", after=0)
    found = events.look(mine.subscription_id, owner="ada").notifications
    assert found[0].event == MISSED and [one.payload["job_id"] for one in found[1:]] == ["new", "newer"]


def test_a_subscription_ends_when_it_is_ended_or_has_expired(events, monkeypatch):
    mine = events.subscribe("on_job_complete", owner="ada")
    short = events.subscribe("on_job_complete", owner="ada", expires_s=60)
    complete(events, "j0")
    events.unsubscribe(mine.subscription_id, owner="ada")
    with pytest.raises(BadInput, match="was ended; subscribe anew"):
        events.look(mine.subscription_id, owner="ada")
    assert Events(events.folder).subscriptions(owner="ada") == (short,)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 61)
    with pytest.raises(BadInput, match=r"has expired .* after=0 goes on where it ended"):
        events.look(short.subscription_id, owner="ada")
    assert events.subscriptions(owner="ada") == ()
    for bad in (0, -1, float("nan")):
        with pytest.raises(BadInput, match="expires_s="):
            events.subscribe("on_job_complete", owner="ada", expires_s=bad)


def test_a_subscription_of_a_key_that_has_expired_is_made_anew_with_what_is_asked_then(events, monkeypatch):
    def subscribe(job, **more):
        return events.subscribe(
            "on_job_complete", owner="ada", where={"job_id": job}, expires_s=60, key="k", **more
        )

    old = subscribe("old")
    complete(events, "old")
    complete(events, "new")
    assert jobs(events, old) == ["old"]
    events.acknowledge(old.subscription_id, 2, owner="ada")
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 61)
    new = subscribe("new", after=0)
    assert new.subscription_id == old.subscription_id and new.where != old.where
    for one in (events, Events(events.folder)):
        assert [n.n for n in one.look(new.subscription_id, owner="ada").notifications] == [2]
    events.acknowledge(new.subscription_id, 2, owner="ada")
    assert subscribe("new", after=0) == new and jobs(events, new) == []


def test_a_subscription_may_begin_with_what_was_told_before(events):
    complete(events, "before")
    late = events.subscribe("on_job_complete", owner="ada", after=0)
    new = events.subscribe(["on_job_complete", "on_job_failed"], owner="ada")
    complete(events, "after")
    assert jobs(events, late) == ["before", "after"] and jobs(events, new) == ["after"]


def test_processes_tell_at_once_and_no_event_is_lost_or_doubled(tmp_path):
    events = Events(tmp_path, keep=2000)
    mine = events.subscribe("my_event", owner="ada")
    tellers = [FORK.Process(target=tell_in, args=(tmp_path, k)) for k in range(4)]
    for teller in tellers:
        teller.start()
    got = []
    for one in events.notifications(mine.subscription_id, owner="ada", timeout_s=60):
        got.append((one.n, one.payload["who"], one.payload["i"]))
        if len(got) == 1000:
            break
    for teller in tellers:
        teller.join()
    assert [n for n, _, _ in got] == list(range(1, 1001))
    for k in range(4):
        assert [i for _, who, i in got if who == k] == list(range(250))
    assert len(list(events.log.folder.glob("*.jsonl"))) == 6  # of 200 each


def tell_in(folder, who):
    events = Events(folder, keep=2000)
    for i in range(250):
        events.tell("my_event", {"who": who, "i": i}, owner=EVERYONE)


def test_a_waiting_subscriber_is_woken_by_another_process(events):
    mine = events.subscribe("my_event", owner="ada")

    def tell():
        while not list((events.log.folder / ".listening").glob("*")):
            time.sleep(0.001)
        time.sleep(0.3)  # it has looked once by now, most likely
        Events(events.folder).tell("my_event", {"at": time.monotonic()}, owner="ada")

    teller = FORK.Process(target=tell)
    teller.start()
    got = next(events.notifications(mine.subscription_id, owner="ada", poll_s=60))
    assert time.monotonic() - got.payload["at"] < 30  # it looks only every 60 s
    teller.join()


def test_a_look_over_many_events_that_are_not_wanted_is_done_once(events, monkeypatch):
    mine = events.subscribe("my_event", owner="ada")
    for i in range(600):
        events.tell("other_event", {"i": i}, owner="ada")
    assert events.look(mine.subscription_id, owner="ada").notifications == ()
    read = []
    monkeypatch.setattr(events.log, "read", lambda after, most: read.append(after) or ([], 0))
    events.look(mine.subscription_id, owner="ada")
    assert read == [600]


def test_damage_is_named_and_can_be_set_aside_without_giving_a_number_twice(events):
    mine = events.subscribe("on_job_complete", owner="ada")
    for i in range(1, 7):
        complete(events, f"j{i}")
    (path,) = events.log.folder.glob("*.jsonl")
    path.write_bytes(path.read_bytes().replace(b'"job_id":"j4"', b'"job_id":"j5"'))
    fresh = Events(events.folder)
    with pytest.raises(Damaged, match=r"line 4 .* its checksum does not fit"):
        fresh.look(mine.subscription_id, owner="ada")
    assert fresh.log.repair() > 0 and fresh.log.repair() == 0
    assert complete(fresh, "j7") == 7
    found = fresh.look(mine.subscription_id, owner="ada").notifications
    assert [one.payload.get("job_id") for one in found if one.event != MISSED] == ["j1", "j2", "j3", "j7"]
    (gone,) = [one.payload for one in found if one.event == MISSED]
    assert (gone["first"], gone["last"]) == (4, 6)


def test_an_event_that_was_being_written_when_its_writer_was_killed_is_set_aside(events):
    mine = events.subscribe("on_job_complete", owner="ada")
    complete(events, "j1")
    (path,) = events.log.folder.glob("*.jsonl")
    with path.open("ab") as file:
        file.write(b'{"n":2,"at":')
    assert complete(Events(events.folder), "j2") == 2
    assert jobs(events, mine) == ["j1", "j2"]


def test_every_write_of_a_context_can_be_told(tmp_path, events):
    mine = events.subscribe("on_context_update", owner="ada", where={"context_id": "c"})
    context = Contexts(tmp_path / "contexts", announce=events.context_updates(owner="ada")).create("c")
    context.write(add_job("j"), by="planner")
    found = events.look(mine.subscription_id, owner="ada").notifications
    assert [(one.payload["version"], one.payload["by"]) for one in found] == [(1, ""), (2, "planner")]


def test_an_owner_has_no_end_of_subscriptions(events, monkeypatch):
    monkeypatch.setattr("hpcagent.contexts.subscriptions._MOST_SUBSCRIPTIONS", 2)
    for _ in range(2):
        events.subscribe("my_event", owner="ada")
    with pytest.raises(BadInput, match="'ada' has 2 subscriptions; at most 2"):
        events.subscribe("my_event", owner="ada")
    events.subscribe("my_event", owner="bob")


PAYLOAD = {"metal": "Cu", "energy": -1.5, "n": 3, "done": True, "inputs": {"metal": "Zn", "a.b": 1}, "none": None}


@pytest.mark.parametrize(
    ("where", "meets"),
    [
        ({}, True),
        ({"metal": "Cu"}, True),
        ({"metal": "cu"}, False),
        ({"metal": ["Zn", "Cu"]}, True),
        ({"metal": {"one_of": ["Zn", "Ni"]}}, False),
        ({"energy": {"below": -1.2}}, True),
        ({"energy": {"below": -1.5}}, False),
        ({"energy": {"at_most": -1.5}}, True),
        ({"energy": {"above": -1.5}}, False),
        ({"energy": {"at_least": -1.5, "below": 0}}, True),
        ({"energy": {"above": -2, "below": -1.6}}, False),
        ({"n": 3.0}, True),
        ({"n": {"equal": 4}}, False),
        ({"done": True}, True),
        ({"done": 1}, False),
        ({"n": True}, False),
        ({"metal": {"above": 1}}, False),
        ({"done": {"above": 0}}, False),
        ({"inputs.metal": "Zn"}, True),
        ({"inputs.support": "ZnO"}, False),
        ({"metal.deep": "x"}, False),
        ({"none": None}, True),
        ({"missing": None}, False),
        ({"metal": "Cu", "energy": {"above": 0}}, False),
    ],
)
def test_a_filter_compares_fields(where, meets):
    assert Filter(where).meets(PAYLOAD) is meets


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ({"energy": {"under": 1}}, "'under' is no condition; known: above"),
        ({"energy": {"below": "1"}}, "below is a number; got '1'"),
        ({"energy": {"below": True}}, "below is a number"),
        ({"energy": {"above": 2, "below": 1}}, "no number is above 2 and below 1"),
        ({"energy": {}}, "an empty table says nothing"),
        ({"energy": {"one_of": []}}, "one_of is a list"),
        ({"energy": []}, "one_of is a list"),
        ({"energy": {"below": float("nan")}}, "not finite"),
        ("energy < 1", "where is a table"),
        ({f"f{i}": i for i in range(60)}, "at most 50"),
    ],
)
def test_a_filter_that_makes_no_sense_is_refused(where, said):
    with pytest.raises(BadInput, match=said):
        Filter(where)
