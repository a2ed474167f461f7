"""What happens in the workspace, kept as one mirror, and told to each page that listens.

One thread asks the workspace what has changed, and looks at what no change tells of (progress, approvals, costs).
Each message has a number `BOOT-N`. Who has lost some of them is told to begin anew, and reads the mirror again.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from hpcagent.catalog import packaged
from hpcagent.errors import HpcAgentError
from hpcagent.gate.request import charged_of
from hpcagent.mcp.said import clean, to_approve
from hpcagent.workspace.client import Workspace

__all__ = ["COLUMNS", "Feed", "Listener", "Message", "units_of"]

log = logging.getLogger(__name__)

KEPT = 600
"""Messages that are kept for pages that were away for a moment."""
MOST_WAITING = 200
"""Messages that wait for one page; one that takes them no faster begins anew."""
WAIT_S = 0.5
LOOK_S = 1.0
TOOLS_S = 2.0
COSTS_S = 5.0
AGAIN_S = 1.0
REST_S = 60.0
"""Where no page has asked or listened for so long, the workspace is left alone: its service may end."""
WAKES_WITHIN_S = 20.0
MOST_FOLLOWED = 40
"""Runs and campaigns whose progress is looked at, the newest first."""
PAGE = 1000
COLUMNS = (
    "id",
    "kind",
    "app",
    "label",
    "site",
    "state",
    "owner",
    "asked_at",
    "ended_at",
    "failure",
    "wall_s",
    "node_hours",
    "campaign_runs",
    "point",
)

Message = tuple[int, str, str]
"""Number, kind, and data as JSON."""


class Listener:
    """A page that listens: what waits for it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.queue: asyncio.Queue[Message | None] = asyncio.Queue(MOST_WAITING)
        self.late = False
        self._loop = loop

    def tell(self, message: Message | None) -> None:
        """Have it told, from any thread; None: the server ends."""
        try:
            self._loop.call_soon_threadsafe(self._put, message)
        except RuntimeError:  # its loop is closed
            self.late = True

    def _put(self, message: Message | None) -> None:
        try:
            self.queue.put_nowait(message)
        except asyncio.QueueFull:
            self.late = True


class Feed:
    """The mirror of a workspace, and those who listen.

    Args:
        workspace: In the name of whom the page is for.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._turn = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._go, name="web feed", daemon=True)
        self.boot = secrets.token_hex(6)
        self._n = 0
        self._ring: deque[Message] = deque(maxlen=KEPT)
        self._listeners: set[Listener] = set()
        self._rows: dict[str, list[Any]] = {}
        self._parts: dict[str, Any] = {"approvals": [], "progress": {}, "costs": {}, "tools": [], "agents": []}
        self._parts |= {"chat": [], "news": [], "trouble": ""}
        self._after = ""
        self._looked = self._costed = self._tooled = -1e9
        self._asked_at = time.monotonic()
        self._called = threading.Event()
        self._round = threading.Condition()
        self._rounds = 0
        self.resting = False

    def begin(self) -> None:
        """Read the workspace, and follow it from now on.

        Raises:
            HpcAgentError: It does not answer.
        """
        self._read(0.0)
        self._look()
        self._thread.start()

    def close(self) -> None:
        """End the thread, and what listens."""
        self._stopped.set()
        self._called.set()
        with self._turn:
            listeners = [*self._listeners]
        for one in listeners:
            one.tell(None)
        self._workspace.close(everywhere=True)
        if self._thread.is_alive():
            self._thread.join(2 * LOOK_S)

    # -- those who listen -------------------------------------------------------------------------

    def listen(self, after: str) -> tuple[Listener, list[Message]] | None:
        """A listener, and what it has missed since; None where that is not known any more: it begins anew.

        Args:
            after: The number of the last message that it has.
        """
        boot, _, number = after.partition("-")
        listener = Listener(asyncio.get_running_loop())
        with self._turn:
            if boot != self.boot or not number.isdecimal():
                return None
            n = int(number)
            oldest = self._ring[0][0] if self._ring else self._n + 1
            if n > self._n or n + 1 < oldest:
                return None
            self._listeners.add(listener)
            self._called.set()
            return listener, [one for one in self._ring if one[0] > n]

    def leave(self, listener: Listener) -> None:
        """It listens no more."""
        with self._turn:
            self._listeners.discard(listener)

    def snapshot(self) -> dict[str, Any]:
        """Everything as it stands, with the number of the last message in it."""
        self._wake()
        with self._turn:
            rows = [*self._rows.values()]
            columns = dict(zip(COLUMNS, map(list, zip(*rows, strict=True)), strict=True)) if rows else {}
            return {"version": f"{self.boot}-{self._n}", "columns": COLUMNS, "runs": columns, **self._parts}

    def tell(self, name: str, value: Any) -> None:
        """Have a part of what pages know be as it is now, from any thread."""
        self._part(name, value)

    def tell_turn(self, turn: Mapping[str, Any]) -> None:
        """Have one turn of the chat be as it is now; the others are not sent again."""
        with self._turn:
            turns = {one["id"]: one for one in self._parts["chat"]}
            self._parts["chat"] = [*(turns | {turn["id"]: turn}).values()]
            self._tell("turn", turn)

    def _wake(self) -> None:
        """Somebody asks: follow again, if that was left off, and wait until the mirror is as the workspace is."""
        self._asked_at = time.monotonic()
        with self._round:
            if self.resting:
                rounds = self._rounds
                self._called.set()
                self._round.wait_for(lambda: self._rounds > rounds or self._stopped.is_set(), WAKES_WITHIN_S)

    def _wanted(self) -> bool:
        with self._turn:
            return bool(self._listeners) or time.monotonic() - self._asked_at < REST_S

    def _rest(self) -> None:
        """Ask nothing until somebody asks."""
        with self._round:
            self.resting = not self._wanted()
        if self.resting:
            self._workspace.close()  # this thread's connection: an open one keeps the service
            self._called.wait()
        self._called.clear()

    def _tell(self, kind: str, data: Any) -> None:
        """A message to all; within the turn."""
        self._n += 1
        message = (self._n, kind, json.dumps(data, separators=(",", ":")))
        self._ring.append(message)
        for one in self._listeners:
            one.tell(message)

    # -- the thread -------------------------------------------------------------------------------

    def _go(self) -> None:
        while not self._stopped.is_set():
            try:
                self._rest()
                self._read(0.0 if self.resting else WAIT_S)
                if self.resting or time.monotonic() - self._looked >= LOOK_S:
                    self._look()
                self._part("trouble", "")
                with self._round:
                    self.resting, self._rounds = False, self._rounds + 1
                    self._round.notify_all()
            except HpcAgentError as error:
                self._failed(error.message)
            except Exception as error:  # the thread goes on: what is told is late, not lost
                self._failed(repr(error))

    def _failed(self, why: str) -> None:
        if self._stopped.is_set():
            return
        if self._parts["trouble"] != why:
            log.warning("the workspace does not say what happens: %s", why)
        self._part("trouble", clean(why))
        self._stopped.wait(AGAIN_S)

    def _read(self, timeout_s: float) -> None:
        """Take in rows that have changed; waits for them at most so long."""
        anew = not self._after
        more = True
        while more and not self._stopped.is_set():
            found = self._workspace.changes(self._after, most=PAGE, timeout_s=timeout_s)
            anew, more, timeout_s = anew or found["anew"], found["more"], 0.0
            self._after = found["after"]
            rows = [_row(clean(one)) for one in found["rows"]]
            with self._turn:
                # After a restart of the service all rows come again: what is as it was is not told.
                changed = [row for row in rows if self._rows.get(row[0]) != row]
                self._rows.update({row[0]: row for row in changed})
                if changed and not (anew and len(changed) > KEPT):
                    self._tell("runs", changed)
                elif changed:
                    self._begin_anew()

    def _begin_anew(self) -> None:
        """So much has changed that pages read everything again; within the turn."""
        self._ring.clear()
        self._n += 1
        for one in self._listeners:
            one.late = True
            one.tell((self._n, "late", "{}"))

    def _look(self) -> None:
        """See what no change tells of."""
        self._looked = time.monotonic()
        pending = self._workspace.approvals()
        self._part("approvals", [_approval(one) for one in pending[:PAGE]])
        with self._turn:
            rows = [row for row in self._rows.values() if row[_STATE] == "running"]
        progress = {}
        for row in rows[-MOST_FOLLOWED:]:
            try:
                progress[row[0]] = self._workspace.status(row[0], lines=0)["progress"]
            except HpcAgentError:
                continue  # it is not there any more, or the next look says what is wrong
        self._part("progress", clean(progress))
        if self._looked - self._tooled >= TOOLS_S:
            self._tooled = self._looked
            self._part("tools", clean(self._workspace.tools()))
            self._part("agents", clean(self._workspace.agents()))
        if self._looked - self._costed >= COSTS_S:
            self._costed = self._looked
            self._part("costs", clean(self._workspace.costs()))
            self._part("news", clean(self._workspace.about()["news"]))

    def _part(self, name: str, value: Any) -> None:
        with self._turn:
            if self._parts[name] != value:
                self._parts[name] = value
                self._tell(name, value)


_STATE = COLUMNS.index("state")


def _row(row: Mapping[str, Any]) -> list[Any]:
    """A run as a row, in the order of the columns; its point in words."""
    units = units_of(str(row["app"]))
    words = [
        f"{name} = {_short(value)} {'' if (unit := units.get(name, '1')) == '1' else unit}".rstrip()
        for name, value in (row.get("params") or {}).items()
    ]
    point = ", ".join(words[:6]) + (" ..." if len(words) > 6 else "")
    return [*(row.get(name) for name in COLUMNS[:-1]), _cut(point, 160)]


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else _cut(str(value), 40)


def _cut(text: str, most: int) -> str:
    """A text of so many characters at most; one that is cut says so."""
    return text if len(text) <= most else f"{text[: most - 4].rstrip()} ..."


def _approval(one: Mapping[str, Any]) -> dict[str, Any]:
    """What a person needs to decide."""
    request = one.get("request") or {}
    names = ("kind", "app", "version", "site", "nodes", "node_hours", "expected_node_hours", "usd", "runs", "own")
    rest = {name: value for name, value in one.items() if name not in ("request", "digest")}
    asked = {name: request.get(name) for name in names} | {"node_hours": charged_of(request)}
    units = units_of(str(request.get("app", "")))
    shown: dict[str, Any] = clean(rest | {"asked": asked, "param_units": units})
    return shown | {"params": to_approve(one["params"])}


@functools.lru_cache(maxsize=1000)
def units_of(app: str) -> dict[str, str]:
    """Units of an app's parameters, where the app is one of the library's; for others they are not known here."""
    found = packaged(app.partition("@")[0])
    return {p.name: p.unit for p in found.contract.space.parameters} if found is not None else {}
