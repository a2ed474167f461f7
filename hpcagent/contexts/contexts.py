"""Contexts of a folder: one journal for each, with versioned writes."""

from __future__ import annotations

import contextlib
import hashlib
import random
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic_core import to_json

from hpcagent.contexts.admitted import admitted_word
from hpcagent.contexts.document import Document, Operation, State, Update, put, written
from hpcagent.contexts.lines import WAIT_S, Held, seal_of
from hpcagent.contexts.views import View
from hpcagent.errors import BadInput, Damaged, Stale, StoreError
from hpcagent.model.texts import checked_name
from hpcagent.shown import size_text
from hpcagent.store.files import write_whole

__all__ = ["Context", "Contexts", "Transaction", "refer"]

T = TypeVar("T")

# A snapshot is written when the journal has grown by so much since the last one: then replay reads no more than
# this, and snapshots cost less than the lines.
_SNAPSHOT_BYTES = 256 << 10
_SNAPSHOT_TIMES = 4
_MOST_TRIES = 10_000

# Operations that overwrite what another may have written meanwhile: they need the version that they were thought
# of at.
_OVERWRITING = ("put", "drop", "agent")


class Contexts:
    """The contexts of a folder.

    A context's journal is `ID.jsonl`; `ID.snapshot.json` beside it is derived and may be deleted.

    Args:
        folder: The folder; made with the first context.
        announce: Called after each write as `announce(id, version, by)`, e.g. to tell of `on_context_update`.
            What it raises is raised; the write stands.
        permit: Called as `permit("read", what)` whenever a context is opened or they are listed, and as
            `permit("write", what)` before each write; raises where that is not permitted.

    Example:
        >>> import tempfile
        >>> from hpcagent.contexts import Contexts, add_job, put
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     context = Contexts(folder).create("co2_to_methanol", intent="find a better catalyst")
        ...     metal = put("shared", "metal", "Cu")
        ...     now = context.write(add_job("dft-1", app="dft_energy"), metal, by="planner", version=1)
        ...     now.version, now.jobs[0].status, now.shared
        (2, 'pending', {'metal': 'Cu'})
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        announce: Callable[[str, int, str], object] | None = None,
        permit: Callable[[Literal["read", "write"], str], object] | None = None,
    ) -> None:
        self.folder = Path(folder).expanduser()
        self.announce = announce
        self._permit = permit

    def create(self, id: str | None = None, *, by: str = "", **session: object) -> Context:
        """Begin a context.

        Args:
            id: Its id, which names its files; None: one that nobody can guess.
            by: Who begins it.
            session: What its `session` has: `user`, `project`, `intent`, ...

        Raises:
            BadInput: There is one with this id, or a value may not stand in a context.
        """
        name = _checked_id(uuid.uuid4().hex if id is None else id)
        self.require("read", f"the context {name}")  # what is begun is read as well
        context = Context(self, name, make=True)
        # The time is there in any case, so that a context that was begun has a first line.
        facts: dict[str, object] = {"created_at": time.time(), **session}
        operations = [put("session", key, value) for key, value in facts.items()]
        with context.transaction(by=by) as held:
            if held.document.version:
                raise BadInput(
                    f"{self.folder} has a context {context.id!r} already; open it, or choose another id.",
                    value=context.id,
                )
            held.do(*operations)
        return context

    def open(self, id: str) -> Context:
        """A context, to read and write it.

        Raises:
            BadInput: There is none with this id.
        """
        self._require(id)
        return Context(self, id)

    def view(self, id: str) -> View:
        """A context to read only: it changes no file of it.

        Raises:
            BadInput: There is none with this id.
        """
        self._require(id)
        return View(self.folder, id)

    def ids(self) -> tuple[str, ...]:
        """The ids of all contexts here, sorted."""
        self.require("read", "contexts")
        return tuple(sorted(path.name.removesuffix(".jsonl") for path in self.folder.glob("*.jsonl")))

    def require(self, action: Literal["read", "write"], what: str) -> None:
        """See that whoever has opened them may do this; what `permit` raises is raised."""
        if self._permit is not None:
            self._permit(action, what)

    def _require(self, id: str) -> None:
        _checked_id(id)
        self.require("read", f"the context {id}")
        if not (self.folder / f"{id}.jsonl").is_file():
            known = self.ids()
            listed = ", ".join(known[:5]) + (", ..." if len(known) > 5 else "")
            raise BadInput(
                f"{self.folder} has no context {id!r}; "
                + (f"there are: {listed}." if known else "there are none: `create` begins one."),
                value=id,
            )


def _checked_id(id: object) -> str:
    return checked_name(admitted_word(id, "a context's id"), "the context's id")


class Context(View):
    """A context that is read and written."""

    def __init__(self, contexts: Contexts, id: str, *, make: bool = False) -> None:
        super().__init__(contexts.folder, id)
        self._contexts = contexts
        self._make = make
        self._in_transaction = False

    def write(
        self, *operations: Operation, by: str, version: int | None = None, wait_s: float = WAIT_S
    ) -> Document:
        """Write an update: all of its operations or none.

        Args:
            operations: From `put`, `drop`, `put_agent`, `add_job`, `change_job`, `record_call`, `give_result`.
            by: Who writes.
            version: The version that the update was thought of at. It may be left out where no operation
                overwrites anything (jobs and calls).
            wait_s: So long it waits for the lock.

        Returns:
            The context after the update.

        Raises:
            Stale: It has another version now (attribute `version`); nothing was written.
            BadInput: An operation makes no sense here, or overwrites and no version is given.
            Busy: Another process has held the lock all the while.
            StoreFull: The disk refuses.
            Damaged: A line of the journal is not as it was written.
        """
        if version is None:
            word = next((one[0] for one in operations if one[0] in _OVERWRITING), None)
            if word is not None:
                raise BadInput(
                    f"an update of context {self.id!r} overwrites values ({word}) and says of which version; give "
                    "version=document.version of what it was thought of at, or use `change`.",
                    value=word,
                )
        with self.transaction(by=by, wait_s=wait_s) as held:
            now = self._state.version
            if version is not None and version != now:
                raise Stale(
                    f"context {self.id!r} has version {now}, not {version}: it was written meanwhile. Nothing of "
                    "this update was written; read it again and decide anew (`change` does so).",
                    version=now,
                    given=version,
                )
            held.do(*operations)
        return held.document

    def change(
        self,
        function: Callable[[Document], Operation | Sequence[Operation]],
        *,
        by: str,
        wait_s: float = WAIT_S,
    ) -> Document:
        """Read, decide, write; and again from the beginning whenever another was quicker.

        Args:
            function: Takes the document, and gives the operations that follow from it; none: nothing is written.
                It may be called several times.
            by: Who writes.
            wait_s: So long each try waits for the lock.

        Raises:
            As `write`, but never `Stale` for less than ten thousand tries.
        """
        for tries in range(_MOST_TRIES):
            document = self.read()
            operations = _listed(function(document))
            if not operations:
                return document
            try:
                return self.write(*operations, by=by, version=document.version, wait_s=wait_s)
            except Stale:
                if tries == _MOST_TRIES - 1:
                    raise
                # Not all at the same time again.
                time.sleep(random.uniform(0, 1e-4) * min(tries, 20))
        raise AssertionError("unreachable")

    @contextlib.contextmanager
    def transaction(self, *, by: str, wait_s: float = WAIT_S) -> Iterator[Transaction]:
        """Hold the context's lock, read it and write it: nobody else writes meanwhile. Keep it short.

        What is given to `do` is written when the block ends, as one update; nothing where it raises.

        Raises:
            As `write`, but `Stale`.
        """
        self._contexts.require("write", f"the context {self.id}")
        who = admitted_word(by, "by") if by else ""
        with self._lock, contextlib.ExitStack() as stack:
            if self._in_transaction:
                raise BadInput(
                    f"context {self.id!r} is written inside of a transaction of its own; give the operations to "
                    "`do` of that.",
                    value=self.id,
                )
            try:
                held = stack.enter_context(self._lines.held(make=self._make, wait_s=wait_s))
            except FileNotFoundError:
                raise self._gone() from None
            self._catch_up_held(held)
            transaction = Transaction(self._state)
            self._in_transaction = True
            try:
                yield transaction
            finally:
                self._in_transaction = False
            changed = bool(transaction.operations)
            if changed:
                self._append(held, transaction.operations, who)
                transaction.finish(self._state)
        if changed:
            self._bell.ring()
            if self._contexts.announce is not None:
                self._contexts.announce(self.id, transaction.document.version, who)

    def _catch_up_held(self, held: Held) -> None:
        if not self._loaded:
            self._load()
        self._take(held.read(after=self._state.version, end=self._end, seal=self._seal))

    def _append(self, held: Held, operations: Sequence[Operation], by: str) -> None:
        self._state.check(operations, by)
        update = Update(self._state.version + 1, time.time(), by, tuple(operations))
        line = held.append(update.version, written(update))
        self._state.apply(update)
        self._end, self._seal = line.end, line.seal
        self._make = False
        if self._end - self._snapshot_end > max(_SNAPSHOT_BYTES, _SNAPSHOT_TIMES * self._state.size):
            self._keep()

    def _keep(self) -> None:
        """Write a snapshot; the lock is held. A disk that refuses costs time at the next start, nothing else."""
        kept = self._state.kept()
        text = to_json(kept)
        whole = {
            "end": self._end,
            "seal": seal_of(self.path, self._end),
            "sha256": hashlib.sha256(text).hexdigest(),
        }
        with contextlib.suppress(StoreError):
            write_whole(self._snapshot, to_json(whole)[:-1] + b',"state":' + text + b"}")
        self._snapshot_end = self._end

    def repair(self) -> int:
        """Move a damaged line and all behind it from the journal to `ID.damaged`.

        Returns:
            The version that the context has then.

        Raises:
            BadInput: The journal is not damaged.
        """
        self._contexts.require("write", f"the context {self.id}")
        with self._lock, self._lines.held(make=False) as held:
            try:
                good = self._verified(held=True)
            except Damaged as damaged:
                held.cut(int(damaged.details["at"]))
                with contextlib.suppress(OSError):
                    self._snapshot.unlink()  # it may be of a later version
                self._load()
                self._catch_up()
                return self._state.version
        raise BadInput(f"{self.path} is not damaged: all {good} updates are as they were written.", value=self.id)


def _listed(given: Any) -> tuple[Operation, ...]:
    if not given:
        return ()
    one = isinstance(given, tuple) and isinstance(given[0], str)
    return (given,) if one else tuple(given)


class Transaction:
    """A context while its lock is held.

    Attributes:
        document: The context as it is; after the block as it was written.
        operations: What will be written at the end of the block.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._document: Document | None = None
        self.operations: list[Operation] = []

    @property
    def document(self) -> Document:
        """The context as it is; after the block, as it was written."""
        if self._document is None:
            self._document = self._state.document()
        return self._document

    def do(self, *operations: Operation) -> None:
        """Add operations to the update."""
        self.operations += operations

    def finish(self, state: State) -> None:
        """Take what was written."""
        self._document = state.document()


def refer(path: str | Path, *, most_bytes: int = 1 << 40) -> dict[str, Any]:
    """A reference to a file, to stand in a context in its place.

    Args:
        path: The file.
        most_bytes: A larger file is refused: it is read for its digest.

    Returns:
        `{"uri": ..., "sha256": ..., "bytes": ...}`.

    Raises:
        BadInput: It is no file, or too large.

    Example:
        >>> import pathlib
        >>> pathlib.Path("energies.csv").write_text("1.0")
        3
        >>> refer("energies.csv")["bytes"]
        3
    """
    whole = Path(path).expanduser().absolute()
    if not whole.is_file():
        raise BadInput(f"{path} is no file; only a file that is there can be referred to.", value=str(path))
    size = whole.stat().st_size
    if size > most_bytes:
        raise BadInput(f"{path} has {size_text(size)}; at most {size_text(most_bytes)} are read.", value=str(path))
    with whole.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"uri": whole.as_uri(), "sha256": digest, "bytes": size}
