"""A connection to the process that serves a workspace, which is started when it is needed."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
import uuid
import weakref
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Self

from hpcagent import errors
from hpcagent.elsewhere.detach import spawned
from hpcagent.errors import BadInput, HpcAgentError, SiteFailed
from hpcagent.gate.not_allowed import NotAllowed
from hpcagent.shown import size_text
from hpcagent.workspace.calls import CHANGES, READS, SERVED
from hpcagent.workspace.folder import KEEPER, Folder, find_folder
from hpcagent.workspace.sockets import Lines, connect

__all__ = ["Answer", "Connection", "at_most", "traced"]

STARTS_WITHIN_S = 30.0
TRIES = 3
LEAST_FREE = 1 << 20  # bytes on a disk that has room for a service to begin

Answer = dict[str, Any]
_TRACE: ContextVar[str] = ContextVar("trace", default="")
_AT_MOST: ContextVar[float | None] = ContextVar("at_most", default=None)


@contextlib.contextmanager
def traced(trace: str) -> Iterator[None]:
    """Have this id written down with the calls that are made within, in place of the workspace's own."""
    token = _TRACE.set(trace)
    try:
        yield
    finally:
        _TRACE.reset(token)


@contextlib.contextmanager
def at_most(node_hours: float | None) -> Iterator[None]:
    """Have each call that is made within refused where it would begin what takes more than so many node-hours.

    Args:
        node_hours: As an estimate has said; None: the gate's own rules are all that bounds them.
    """
    token = _AT_MOST.set(node_hours)
    try:
        yield
    finally:
        _AT_MOST.reset(token)


class Connection:
    """Asks the service of a workspace; starts it when it is needed.

    Args:
        where: The folder; by default `$HPCAGENT_WORKSPACE`, else `.hpcagent` here.
        as_: Somebody of `workspace.toml` to speak for.
        client: Program and version, written down with each call.
        create: Make the workspace if there is none.
        trace: An id of the caller's own, written down with each call.

    Raises:
        BadInput: There is no workspace, or another user owns it.
    """

    def __init__(
        self,
        where: str | Path | None = None,
        *,
        as_: str = "",
        client: str = "hpcagent",
        create: bool = False,
        trace: str = "",
    ) -> None:
        self.folder = Folder(find_folder(where))
        if create:
            self.folder.create()
        self._as, self._client, self._trace = as_, client, trace
        self._local = threading.local()  # a connection for each thread: one that waits holds up no other
        self._all: weakref.WeakSet[Lines] = weakref.WeakSet()
        try:
            self.folder.read_rules()
        except BadInput:
            # A service that is there goes on with the rules as they were, and `about` tells; none would begin.
            if not (self.folder.exists and self.served):
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def as_(self) -> str:
        """Whom it speaks for, by the name in `workspace.toml`; empty: whoever owns this process."""
        return self._as

    @property
    def served(self) -> bool:
        """Whether the service is there; this starts none."""
        return self._connected(start=False)

    def end(self, *, runs: bool = False) -> None:
        """End the service. Runs go on, and the next call starts another, which takes up their results.

        Args:
            runs: End what runs, too, and close the sites; the next service begins these runs again.
        """
        if runs and self.folder.keepers():
            self._connected(start=True)  # without a service nobody could tell those who keep the sites
        if self._connected(start=False):
            pids = [int(self._call("about")["pid"])]
            if runs:
                pids += self.folder.keepers()
            self._call("end", runs=runs)
            self.close()
            if runs:
                self._end_keepers()
            until = time.monotonic() + STARTS_WITHIN_S
            while time.monotonic() < until and any(map(_alive, pids)):
                time.sleep(0.02)

    def _end_keepers(self) -> None:
        """End those that keep a site, also one that the service has not used since it was started."""
        for note in self.folder.sites.glob(f"*/{KEEPER}"):
            with contextlib.suppress(HpcAgentError, OSError):
                lines = connect(note, what=f"the process that keeps {note.parent}", do="end it there")
                if lines is not None:
                    lines.write({"do": "leave", "end": True})
                    lines.close()

    def close(self, *, everywhere: bool = False) -> None:
        """Close this thread's connection; the service goes on.

        Args:
            everywhere: Those of all threads; a call that waits in one of them is asked again.
        """
        self._drop()
        if everywhere:
            for lines in list(self._all):
                lines.close()

    def _one(self, do: str, /, **args: Any) -> Answer:
        found: Answer = self._call(do, **args)
        return found

    def _call(self, do: str, /, **args: Any) -> Any:
        assert do in CHANGES or do in READS or do in ("about", "end"), do
        request: dict[str, Any] = {
            "do": do,
            "args": args,
            "as": self._as,
            "client": self._client,
            "trace": _TRACE.get() or self._trace,
        }
        if do in CHANGES:
            request["key"] = uuid.uuid4().hex
            if (bound := _AT_MOST.get()) is not None:
                request["at_most"] = bound
        for _ in range(TRIES):
            self._connected(start=True)
            lines: Lines | None = self._lines
            answer = b""
            with contextlib.suppress(OSError, ValueError):
                if lines is not None:
                    lines.write(request)
                    answer = lines.read()
            if not answer:
                # The service ended under the request. It is sent again with the same key: it is done once.
                self._drop()
                continue
            found = json.loads(answer)
            if "error" in found:
                raise _raised(found["error"])
            return found["ok"]
        raise SiteFailed(
            f"the service of {self.folder.root} ended {TRIES} times under a request{_why_ended(self.folder)}; see "
            f"{self.folder.log}."
        )

    @property
    def _lines(self) -> Lines | None:
        """This thread's connection, if it has one of this process."""
        if getattr(self._local, "pid", 0) != os.getpid():
            return None
        lines: Lines | None = self._local.lines
        return lines

    def _drop(self) -> None:
        lines = self._lines
        self._local.lines = None
        if lines is not None:
            lines.close()

    def _connected(self, *, start: bool) -> bool:
        if self._lines is not None:
            return True
        until = time.monotonic() + STARTS_WITHIN_S
        started = None
        while True:
            self._local.lines, self._local.pid = self._opened(), os.getpid()
            if self._local.lines is not None:
                self._all.add(self._local.lines)
                return True
            if not start:
                return False
            if started is None or started.code == SERVED:  # another has it: one that begins, or one that ends
                if started is not None:
                    time.sleep(0.2)
                started = spawned("hpcagent.workspace.service", str(self.folder.root), log=self.folder.log)
            elif started.code is not None:
                tail = self.folder.log.read_text(errors="replace").strip().splitlines()[-1:]
                raise BadInput(f"the service of {self.folder.root} did not start: {''.join(tail)}")
            if time.monotonic() > until:
                raise SiteFailed(
                    f"the service of {self.folder.root} has not answered within {STARTS_WITHIN_S:g} s; see "
                    f"{self.folder.log}."
                )
            time.sleep(0.02)

    def _opened(self) -> Lines | None:
        """A connection to the service that is there; None if there is none."""
        return connect(
            self.folder.service,
            what=f"the service of {self.folder.root}",
            do="log in there, or end it there (`hpcagent workspace end`)",
        )


def _raised(error: Mapping[str, Any]) -> HpcAgentError:
    if error["kind"] == "NotAllowed":
        return NotAllowed.of(dict(error["refused"]))
    kind = getattr(errors, error["kind"], HpcAgentError)
    if not (isinstance(kind, type) and issubclass(kind, HpcAgentError)):
        kind = HpcAgentError
    found: HpcAgentError = kind(error["message"])
    return found


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _why_ended(folder: Folder) -> str:
    """What a service cannot begin without and says nothing of, as it has no room for it: the disk."""
    try:
        disk = os.statvfs(folder.root)
    except OSError:
        return ""
    free = disk.f_bavail * disk.f_frsize
    if free >= LEAST_FREE and disk.f_favail != 0:
        return ""
    return f": its disk is full ({size_text(free)} left): make room there, then ask again"
