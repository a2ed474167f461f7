"""A context that is only read: replay, waiting for what others write, and a thread that follows it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType

from pydantic_core import from_json, to_json

from hpcagent.contexts.bell import POLL_S, Bell
from hpcagent.contexts.document import Document, State, Update, read
from hpcagent.contexts.lines import Line, Lines, seal_of
from hpcagent.errors import BadInput, Damaged, StoreError
from hpcagent.store.files import open_plain

__all__ = ["View", "Watch"]


class View:
    """A context that is only read.

    Args:
        folder: The folder of its contexts.
        id: Its id.

    Attributes:
        id: Its id.
        path: Its journal.
    """

    def __init__(self, folder: Path, id: str) -> None:
        self.id = id
        self.path = folder / f"{id}.jsonl"
        self._snapshot = folder / f"{id}.snapshot.json"
        self._lines = Lines(self.path)
        self._bell = Bell(self.path, folder / ".listening" / id)
        self._lock = threading.RLock()
        self._state = State(id)
        self._end = 0
        self._seal = ""
        self._snapshot_end = 0
        self._loaded = False

    def read(self) -> Document:
        """The context as it is now.

        Raises:
            Damaged: A line of its journal is not as it was written; the error has the last good `version`.
            StoreError: The journal cannot be read.
        """
        with self._lock:
            self._catch_up()
            return self._state.document()

    @property
    def version(self) -> int:
        """The version that it has now, without the document."""
        with self._lock:
            self._catch_up()
            return self._state.version

    def at(self, version: int) -> Document:
        """The context as it was at a version, by replay from the first line.

        Raises:
            BadInput: It has no such version.
            Damaged: A line up to there is not as it was written.
        """
        state = State(self.id)
        for update in self.updates() if version else ():
            _apply(state, update, self.path)
            if update.version == version:
                return state.document()
        if version == 0:
            return state.document()
        raise BadInput(
            f"context {self.id!r} has no version {version}; it has 0 to {state.version}.", value=version
        )

    def updates(self, after: int = 0) -> Iterator[Update]:
        """The updates that are there, behind a version, in the order in which they were written.

        Raises:
            Damaged: A line is not as it was written; those before it were yielded.
        """
        for line in self._each():
            if line.n > after:
                yield _read(line, self.path)

    def _each(self, *, held: bool = False) -> Iterator[Line]:
        try:
            yield from self._lines.each(held=held)
        except FileNotFoundError:
            raise self._gone() from None

    def verify(self) -> int:
        """Read the whole journal, whatever the snapshot says.

        Returns:
            The number of its updates.

        Raises:
            Damaged: The first line that is not as it was written.
        """
        return self._verified(held=False)

    def _verified(self, *, held: bool) -> int:
        state = State(self.id)
        start = 0
        for line in self._each(held=held):
            try:
                _apply(state, _read(line, self.path), self.path)
            except Damaged as damaged:
                damaged.details.setdefault("at", start)
                raise
            start = line.end
        return state.version

    def changes(
        self, after: int | None = None, *, timeout_s: float | None = None, poll_s: float = POLL_S
    ) -> Iterator[Update]:
        """Wait for updates and yield each, in order, once.

        Args:
            after: Those behind this version; None: those that come from now on.
            timeout_s: End when none has come for so long; None: never.
            poll_s: So often the file is looked at, in seconds, where nothing wakes it (a network file system).

        Raises:
            Damaged: A line is not as it was written.
        """
        return self._changes(self.version if after is None else after, timeout_s, poll_s, None)

    def _changes(
        self, seen: int, timeout_s: float | None, poll_s: float, ended: threading.Event | None
    ) -> Iterator[Update]:
        with self._bell.listen(poll_s=poll_s) as listener:
            at, end, seal = self._place(seen)
            while True:
                last = ended is not None and ended.is_set()  # what is there when it is closed is told
                try:
                    found, size = self._lines.read(after=at, end=end, seal=seal)
                except FileNotFoundError:
                    raise self._gone() from None
                for line in found:
                    at, end, seal = line.n, line.end, line.seal
                    if line.n > seen:
                        seen = line.n
                        yield _read(line, self.path)
                if last:
                    return
                if ended is not None:
                    if not found:
                        listener.wait(size, poll_s)  # without a pipe nobody wakes it when it is closed
                elif not found and not listener.wait(size, timeout_s):
                    return

    def _place(self, seen: int) -> tuple[int, int, str]:
        """A line, where it ends and its checksum, from which reading on finds all behind `seen`."""
        with self._lock:
            self._catch_up()
            here = self._state.version <= seen
            return (self._state.version, self._end, self._seal) if here else (0, 0, "")

    def watch(
        self, function: Callable[[Update], object], after: int | None = None, *, poll_s: float = POLL_S
    ) -> Watch:
        """Call a function with each update that comes, in a thread of its own.

        Args:
            function: Takes an `Update`. Where it raises, watching ends with that error (`Watch.error`).
            after: As for `changes`.
            poll_s: As for `changes`.
        """
        return Watch(self, function, self.version if after is None else after, poll_s)

    def _catch_up(self) -> None:
        if not self._loaded:
            self._load()
        try:
            found, _ = self._lines.read(after=self._state.version, end=self._end, seal=self._seal)
        except FileNotFoundError:
            raise self._gone() from None
        self._take(found)

    def _gone(self) -> StoreError:
        return StoreError(f"{self.path} is gone: the context was deleted or moved.", path=str(self.path))

    def _take(self, found: Sequence[Line]) -> None:
        for line in found:
            _apply(self._state, _read(line, self.path), self.path)
            self._end, self._seal = line.end, line.seal

    def _load(self) -> None:
        """Begin with the snapshot, where it fits to the journal."""
        self._state, self._end, self._snapshot_end = State(self.id), 0, 0
        self._seal = ""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            with os.fdopen(open_plain(self._snapshot, os.O_RDONLY), "rb") as file:
                kept = from_json(file.read())
            text = to_json(kept["state"])
            end, seal = int(kept["end"]), str(kept["seal"])
            fits = hashlib.sha256(text).hexdigest() == kept["sha256"] and kept["state"]["id"] == self.id
            if fits and seal and seal_of(self.path, end) == seal:
                self._state = State.of(kept["state"])
                self._end = self._snapshot_end = end
                self._seal = seal
        self._loaded = True


class Watch:
    """A thread that calls a function with each update of a context; ended by `close` or a `with` statement.

    Attributes:
        error: What ended it, if something did.
    """

    def __init__(self, view: View, function: Callable[[Update], object], after: int, poll_s: float) -> None:
        self.error: BaseException | None = None
        self._view = view
        self._function = function
        self._after = after
        self._poll_s = poll_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"watch {view.id}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for update in self._view._changes(self._after, None, self._poll_s, self._ended):
                self._function(update)
        except BaseException as error:  # told by `error` and `close`
            self.error = error

    def close(self) -> None:
        """End it, once it has told of what is written by now; raises what has ended it before."""
        self._ended.set()
        self._view._bell.ring()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        if self.error is not None:
            raise self.error

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self._ended.set()


def _apply(state: State, update: Update, path: Path) -> None:
    try:
        state.apply(update)
    except (BadInput, KeyError, ValueError, TypeError, IndexError) as error:
        raise Damaged(
            f"{path}, line {update.version}: its update does not fit to those before it ({error}). Read it up to "
            f"version {update.version - 1}, or put the file back from a backup.",
            version=update.version - 1,
            path=str(path),
        ) from None


def _read(line: Line, path: Path) -> Update:
    try:
        return read(line.n, line.data)
    except (KeyError, TypeError, ValueError) as error:
        raise Damaged(
            f"{path}, line {line.n}: it is no update of a context ({error!r}). Another version of hpcagent, or "
            "another program, has written it.",
            version=line.n - 1,
            path=str(path),
        ) from None
