"""Whoever connects to a launch is dropped until it has shown the secret; what a rank sends is its own slot's loss."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pickle
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from hpcagent.apps.launch import Launch
from hpcagent.apps.ranks import group as module
from hpcagent.apps.ranks.group import Event, Group
from hpcagent.apps.ranks.wire import Wire, connected


class Launched(Group):
    """A launch, with what a test has connected to it and what has happened meanwhile."""

    ends: list[socket.socket]
    seen: list[Event]


@contextlib.contextmanager
def launched(*, slots: int = 2, ranks: int = 1) -> Iterator[Launched]:
    """A launch whose ranks are what a test connects."""
    words = [sys.executable, "-c", "import time; time.sleep(600)"]
    group = Launched(Launch(words=words, env=dict(os.environ)), slots=slots, ranks=ranks)
    group.ends, group.seen = [], []
    try:
        yield group
    finally:
        group.close(at_once=True)
        for sock in group.ends:
            sock.close()


def address(group: Launched) -> str:
    return "{}:{}".format(*group._listening[0].getsockname())


def stranger(group: Launched) -> socket.socket:
    sock = socket.create_connection(group._listening[0].getsockname(), timeout=20)
    group.ends.append(sock)
    group.wait(0.01)
    while len(sock.recv(32, socket.MSG_PEEK)) < 32:
        group.wait(0.01)
    sock.recv(32)
    return sock


def rank(group: Launched, number: int, **said: Any) -> Wire:
    """A rank that has shown the secret."""
    hello = {"rank": number, "size": group.slots * group.ranks, "slot": number // group.ranks, **said}
    found: list[Wire] = []
    thread = threading.Thread(target=lambda: found.append(connected(address(group), group._secret, hello)))
    thread.start()
    while thread.is_alive():
        group.seen += group.wait(0.01)
    group.seen += group.wait(0.05)
    group.ends.append(found[0].sock)
    return found[0]


def heard(group: Launched, *, until: str, slot: int | None = None, most_s: float = 30.0) -> list[Event]:
    events, group.seen = group.seen, []
    deadline = time.monotonic() + most_s
    while time.monotonic() < deadline:
        if any(event.what == until and slot in (None, event.slot) for event in events):
            return events
        events += group.wait(0.05)
    raise AssertionError(events)


def dropped(group: Launched, sock: socket.socket, most_s: float = 20.0) -> bool:
    deadline = time.monotonic() + most_s
    sock.setblocking(False)
    while time.monotonic() < deadline:
        group.seen += group.wait(0.02)
        try:
            if not sock.recv(1):
                return True
        except BlockingIOError:
            continue
        except OSError:
            return True
    return False


def frame(body: bytes, kind: int = 0) -> bytes:
    return struct.pack(">IB", len(body), kind) + body


NONSENSE = {
    "nested": frame(b"[" * 4000),
    "surrogate": frame(json.dumps({"proof": "\ud800", "slot": 0}).encode()),
    "accent": frame(json.dumps({"proof": "é", "slot": 0}).encode()),
    "not unicode": frame(b"\xff\xfe{"),
    "digits": frame(b'{"slot": ' + b"9" * 4050 + b"}"),
    "pickle": frame(pickle.dumps({}), 1),
    "list": frame(b"[]"),
    "length": struct.pack(">IB", 1 << 31, 0),
}


@pytest.mark.parametrize("sent", NONSENSE.values(), ids=NONSENSE.keys())
def test_whatever_a_stranger_sends_only_the_stranger_is_dropped(sent: bytes) -> None:
    with launched() as group:
        sock = stranger(group)
        sock.sendall(sent)
        assert dropped(group, sock)
        rank(group, 0)
        rank(group, 1)
        assert group.ready == [0, 1]


@pytest.mark.parametrize("name", ["nested", "not unicode", "list", "pickle"])
def test_a_rank_that_sends_nonsense_is_the_loss_of_its_slot(name: str) -> None:
    with launched() as group:
        first, other = rank(group, 0), rank(group, 1)
        first.sock.sendall(NONSENSE[name])
        events = heard(group, until="lost")
        assert [event.slot for event in events if event.what == "lost"] == [0]
        assert group.ready == [1]
        key = group.send(1, {"what": "call"})
        assert other.read()[0]["key"] == key


@pytest.mark.parametrize("said", [{"pid": "x"}, {"pid": [1]}, {"slot": []}, {"rank": None}, {"size": []}])
def test_a_hello_of_another_form_ends_no_slot_that_is_there(said: dict[str, Any]) -> None:
    with launched() as group:
        rank(group, 1)
        wire = rank(group, 0, **said)
        assert dropped(group, wire.sock)
        assert group.ready == [1]


def test_strangers_have_a_deadline_and_are_not_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STRANGERS", 3)
    with launched() as group:
        silent = [stranger(group) for _ in range(8)]
        assert len(group._strangers) == 5  # three, and one for each of the two ranks that may be on their way
        assert all(dropped(group, sock) for sock in silent[:3])  # the oldest
        monkeypatch.setattr(module, "STRANGERS_S", 0.2)
        assert all(dropped(group, sock) for sock in silent[3:])
        rank(group, 0)
        assert group.ready == [0]


def test_where_no_descriptor_is_left_the_driver_waits_and_takes_ranks_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried = []

    class Full:
        """A listening socket while the process has as many files open as it may."""

        def __init__(self, sock: socket.socket) -> None:
            self.sock = sock

        def accept(self) -> Any:
            tried.append(time.monotonic())
            if len(tried) < 3:
                raise OSError(errno.EMFILE, "Too many open files")
            return self.sock.accept()

        def __getattr__(self, name: str) -> Any:
            return getattr(self.sock, name)

    with launched(slots=1) as group:
        sock = group._listening[0]
        group._selector.unregister(sock)
        group._listening[0] = Full(sock)  # type: ignore[call-overload]
        group._selector.register(group._listening[0], 1)
        monkeypatch.setattr(module, "_DEAF_S", 0.5)
        rank(group, 0)
        assert group.ready == [0]
        assert len(tried) == 3 and tried[2] - tried[0] > 0.9


def test_an_order_that_a_stopped_rank_does_not_take_blocks_no_other_slot() -> None:
    with launched() as group:
        stopped, other = rank(group, 0), rank(group, 1)
        began = time.monotonic()
        key = group.send(0, {"what": "call", "args": ["x" * (50 << 20)]})
        mine = group.send(1, {"what": "call"})
        assert other.read()[0]["key"] == mine
        other.send({"key": mine, "value": 1})
        heard(group, until="answer", slot=1)
        assert time.monotonic() - began < 20
        # It goes on where it stopped.
        messages: list[dict[str, Any]] = []
        stopped.sock.setblocking(False)
        while not messages:
            group.wait(0.001)
            messages = stopped.read()
        assert messages[0]["key"] == key and len(messages[0]["args"][0]) == 50 << 20
        group.end(0)
        assert group.ready == [1]


def test_a_launch_says_which_ranks_it_waits_for_and_slots_that_are_there_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with launched(slots=3, ranks=2) as group:
        rank(group, 0)
        assert group.late() is None
        monkeypatch.setattr(module, "LATE_S", 0.0)
        assert "5 of the 6 rank(s)" in (group.late() or "")
        assert group.late() is None  # said once
        rank(group, 1)
        assert group.ready == [0]
        monkeypatch.setattr(module, "START_S", 0.1)
        events = heard(group, until="lost", slot=2)
        assert {event.slot for event in events if event.what == "lost"} == {1, 2}
        assert group.ready == [0]
