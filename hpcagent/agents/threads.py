"""Conversations, in one SQLite file of the workspace's folder: a turn is there as a whole, or not at all."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcagent.errors import BadInput, Busy, Damaged, NotPermitted

__all__ = ["FILE", "Threads", "Turn"]

FILE = "threads.sqlite"
NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,79}\Z")
MOST_TURNS = 40
"""Turns of a thread that a model is told again; older ones stay on record."""
MOST_CHARACTERS = 200_000
KEEP_DAYS = 90.0
BUSY_S = 20.0
_TABLES = """
CREATE TABLE IF NOT EXISTS threads (id TEXT PRIMARY KEY, owner TEXT NOT NULL, made_at REAL NOT NULL,
    used_at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS turns (thread TEXT NOT NULL REFERENCES threads(id) ON DELETE CASCADE,
    n INTEGER NOT NULL, at REAL NOT NULL, goal TEXT NOT NULL, messages TEXT NOT NULL, reply TEXT NOT NULL,
    PRIMARY KEY (thread, n));
"""


@dataclass(frozen=True)
class Turn:
    """One question and what became of it.

    Attributes:
        n: Its number in the thread, from 1.
        goal: What was asked.
        messages: What went to and fro, as JSON.
        reply: The answer on record.
        at: Unix time, in seconds.
    """

    n: int
    goal: str
    messages: str
    reply: dict[str, Any]
    at: float = 0.0


class Threads:
    """The threads of a workspace's folder.

    Args:
        root: The folder.
        owner: Whose threads; those of others are as if they were not there.
        clock: Unix time, in seconds.
    """

    def __init__(self, root: Path, owner: str, *, clock: Callable[[], float] = time.time) -> None:
        self.path, self._owner, self._clock = root / FILE, owner, clock

    def new(self) -> str:
        """The name of a thread that nobody has yet."""
        return f"t-{secrets.token_urlsafe(9)}".replace("_", "-")

    def turns(self, thread: str) -> list[Turn]:
        """All turns of a thread, the oldest first; none of a thread that is not there.

        Raises:
            BadInput: That is no name of a thread.
            NotPermitted: It is somebody else's.
        """
        _named(thread)
        if not self.path.exists():
            return []
        with self._open() as base:
            self._own(base, thread)
            rows = base.execute(
                "SELECT n, goal, messages, reply, at FROM turns WHERE thread = ? ORDER BY n", (thread,)
            )
            return [Turn(n, goal, messages, json.loads(reply), at) for n, goal, messages, reply, at in rows]

    def recent(self, thread: str) -> list[Turn]:
        """The newest turns of a thread that a model is told again, the oldest of them first."""
        kept: list[Turn] = []
        size = 0
        for turn in reversed(self.turns(thread)[-MOST_TURNS:]):
            size += len(turn.messages)
            if kept and size > MOST_CHARACTERS:
                break
            kept.append(turn)
        return kept[::-1]

    def add(self, thread: str, turn: Turn) -> None:
        """Add a turn, as a whole or not at all.

        Raises:
            Busy: Somebody has added a turn of that number meanwhile; nothing was written.
        """
        _named(thread)
        now = self._clock()
        with self._open() as base:
            self._own(base, thread)
            base.execute(
                "INSERT INTO threads VALUES (?, ?, ?, ?) "
                "ON CONFLICT (id) DO UPDATE SET used_at = excluded.used_at",
                (thread, self._owner, now, now),
            )
            try:
                base.execute(
                    "INSERT INTO turns VALUES (?, ?, ?, ?, ?, ?)",
                    (thread, turn.n, now, turn.goal, turn.messages, json.dumps(turn.reply)),
                )
            except sqlite3.IntegrityError:
                raise Busy(
                    f"turn {turn.n} of the thread {thread} was added by another meanwhile; this one was not "
                    "written. Ask again: it goes on from there."
                ) from None

    def list(self) -> list[dict[str, Any]]:
        """One's own threads, the newest first: `thread`, `turns`, `used_at` (Unix time, s), the first `goal`."""
        if not self.path.exists():
            return []
        with self._open() as base:
            rows = base.execute(
                "SELECT id, COUNT(n), used_at, MIN(n), goal FROM threads JOIN turns ON thread = id "
                "WHERE owner = ? GROUP BY id ORDER BY used_at DESC",
                (self._owner,),
            )
            return [{"thread": t, "turns": n, "used_at": at, "goal": goal} for t, n, at, _, goal in rows]

    def forget(self, thread: str) -> int:
        """Remove a thread; returns how many turns it had."""
        found = len(self.turns(thread))
        if found:
            with self._open() as base:
                base.execute("DELETE FROM threads WHERE id = ?", (thread,))
        return found

    def prune(self, days: float = KEEP_DAYS) -> int:
        """Remove one's own threads that were not used for so many days; returns how many."""
        if not self.path.exists():
            return 0
        with self._open() as base:
            since = self._clock() - days * 86400
            return base.execute(
                "DELETE FROM threads WHERE owner = ? AND used_at < ?", (self._owner, since)
            ).rowcount

    # -- the file -----------------------------------------------------------------------------

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """One transaction; with the rollback journal, which works on file systems of clusters, too."""
        if self.path.is_symlink():
            raise BadInput(f"{self.path} is a link; a workspace's threads are a file of their own.")
        os.close(os.open(self.path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600))
        base = sqlite3.connect(self.path, timeout=BUSY_S)
        try:
            base.execute("PRAGMA foreign_keys = ON")
            base.executescript(_TABLES)
            base.execute("BEGIN IMMEDIATE")
            yield base
            base.commit()
        except sqlite3.OperationalError as error:
            raise Busy(f"{self.path} cannot be used: {error}. Try again.") from None
        except sqlite3.DatabaseError as error:
            raise Damaged(f"{self.path} is damaged ({error}): move it away; a new one is made.") from None
        finally:
            base.close()

    def _own(self, base: sqlite3.Connection, thread: str) -> None:
        row = base.execute("SELECT owner FROM threads WHERE id = ?", (thread,)).fetchone()
        if row is not None and row[0] != self._owner:
            raise NotPermitted(f"the thread {thread!r} is somebody else's; take another name.")


def _named(thread: str) -> None:
    if not NAME.match(thread):
        raise BadInput(
            f"{thread[:80]!r} is no name of a thread: letters, digits, `_`, `.` and `-`, 80 at most.",
            value=thread[:80],
        )
