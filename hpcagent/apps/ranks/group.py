"""A launch of rank processes, and what is asked of them. Standard library only; it runs in a worker.

The ranks of a launch are divided into slots, each with a communicator of its own. A slot does one thing at a time;
slots know nothing of each other, so that one which fails, hangs or dies keeps nobody.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import IO, Any, Literal

from hpcagent.apps.ending import not_started, prepared
from hpcagent.apps.launch import Launch
from hpcagent.apps.ranks.wire import ADDRESS, SECRET, Wire, answered, challenge, newcomer
from hpcagent.errors import AppFailed
from hpcagent.lifeline import FORKS, end_tree, node_name

__all__ = ["MPI4PY", "Event", "Group", "refuse_without_mpi4py", "words_of"]

MPI4PY = "pip install 'hpcagent[lammps]', or mpi4py of the machine's MPI"
"""Where mpi4py comes from."""
START_S = 120.0
"""So long may a launch take until its ranks have said who they are, in seconds."""
STRANGERS_S = 20.0
"""So long may who has connected take to show the secret, in seconds: a rank does so at once."""
STRANGERS = 64
"""So many may be connected without having shown it, beyond the ranks of the launch that are awaited."""
LATE_S = 30.0
"""A launch whose ranks have not all connected after so many seconds says so."""
_GRACE_S = 5.0
_DEAF_S = 1.0
_TAIL = 20_000


@dataclass(frozen=True, slots=True)
class Event:
    """What has happened in a slot.

    Attributes:
        what: `ready`: all its ranks are there; `answer`; `lost`: a rank of it, or the whole launch, is gone.
        slot: Its number; -1 for a launch that ended before its ranks were there.
        answer: Of an answer: `key` of the request and what it gives. Of a slot that is lost: what the rank that
            gave up said; the `size` of its world, where that is another one than this launch's.
        aborted: Of a slot that is lost: a rank of it has failed by itself, so that the others would hang.
        hosts: Of a slot that is ready: where its ranks are.
    """

    what: Literal["ready", "answer", "lost"]
    slot: int
    answer: Mapping[str, Any] | None = None
    aborted: bool = False
    hosts: tuple[str, ...] = ()


def words_of(ranks_of_a_slot: int) -> list[str]:
    """The program that a launch starts on every rank."""
    # -P: a file of the run called `mpi4py.py` must not be imported in place of the package.
    return [sys.executable, "-P", "-m", "hpcagent.apps.ranks.process", str(ranks_of_a_slot)]


def refuse_without_mpi4py(who: str) -> None:
    """Raise `AppFailed` (`NoEngine`) where this Python, which is that of the ranks, has no mpi4py.

    Args:
        who: What needs it, as the beginning of a sentence.
    """
    if importlib.util.find_spec("mpi4py") is None:
        raise AppFailed(
            f"{who} needs mpi4py, which is not installed on {node_name()}.",
            kind="infrastructure",
            name="NoEngine",
            repair=MPI4PY,
        )


def addresses() -> list[str]:
    """Where ranks on this host and on others reach this process; the address that others know comes first."""
    found = []
    for name in (node_name(), socket.gethostname()):
        with contextlib.suppress(OSError):
            known = socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)
            found += [str(info[4][0]) for info in known]
    return list(dict.fromkeys([*found, "127.0.0.1"]))


class _Rank:
    """A connected rank."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.nonce = b""
        self.slot = self.rank = -1
        self.host = ""
        self.pid = 0
        self.since = time.monotonic()


class Group:
    """The rank processes of one launch.

    Use it from one thread at a time. Close it: what it has started ends then, or with this process.

    Args:
        launch: Its words end with `words_of(ranks)`; see `apps.launch.planned`.
        slots: How many slots it has.
        ranks: How many ranks each slot has.

    Raises:
        AppFailed: `NoLauncher`, `NoExecutable`: it cannot be started.

    Attributes:
        returncode: Exit code of what was started, once it has ended; negative for a signal.
    """

    def __init__(self, launch: Launch, *, slots: int, ranks: int) -> None:
        self.slots, self.ranks = slots, ranks
        self.returncode: int | None = None
        self._secret = secrets.token_hex(32)
        self._said = ""
        self._selector = selectors.DefaultSelector()
        self._listening: list[socket.socket] = []
        self._ranks: dict[int, list[_Rank]] = {slot: [] for slot in range(slots)}
        self._strangers: dict[_Rank, None] = {}  # the oldest first
        self._gone: set[int] = set()
        self._events: list[Event] = []
        self._output: IO[bytes] = tempfile.TemporaryFile(prefix="ranks-")  # noqa: SIM115  (closed in `close`)
        self._began = time.monotonic()
        self._deaf_until: float | None = None  # no connection is taken until then
        self._late_said = False
        try:
            env = launch.env | {
                ADDRESS: self._listen(["127.0.0.1"] if launch.launcher is None else addresses()),
                SECRET: self._secret,
            }
            if launch.launcher is None:
                env["HPCAGENT_RANKS_ALONE"] = "1"
            self._process = self._started(replace(launch, env=env))
        except BaseException:
            self._close_files()
            raise

    def _listen(self, hosts: Sequence[str]) -> str:
        told = []
        for host in hosts:
            try:
                sock = socket.create_server((host, 0), backlog=1024)
            except OSError:  # a name that is not this host's own
                continue
            sock.setblocking(False)
            self._listening.append(sock)
            self._selector.register(sock, selectors.EVENT_READ)
            told.append(f"{host}:{sock.getsockname()[1]}")
        return ",".join(told)

    def _started(self, launch: Launch) -> subprocess.Popen[bytes]:
        try:
            with FORKS:
                # In a group of its own, to be ended as a whole, but in the worker's session: it is the worker's,
                # and not what a run has left behind.
                return subprocess.Popen(
                    launch.words,
                    cwd="/",
                    env=launch.env,
                    stdin=subprocess.DEVNULL,
                    stdout=self._output,
                    stderr=subprocess.STDOUT,
                    process_group=0,
                    preexec_fn=prepared(launch),
                )
        except OSError as error:
            raise not_started(launch, error) from None

    # -- asking -------------------------------------------------------------------------------

    def send(self, slot: int, request: Mapping[str, Any], *, pickled: bool = False) -> str:
        """Ask something of all ranks of a slot; returns the key that the answer will have.

        Args:
            slot: One that is ready and has nothing to do.
            request: `what` it is (`lammps`, `call`, `load`), and what belongs to it.
            pickled: Whether there is more in it than plain data.
        """
        key = uuid.uuid4().hex
        for rank in self._ranks[slot]:
            with contextlib.suppress(OSError):  # it is gone: `wait` says so
                rank.wire.send({**request, "key": key}, pickled=pickled)
            self._watch(rank)
        return key

    def _watch(self, rank: _Rank) -> None:
        """Wait for what a rank says, and for room, where it has not taken all that it was sent."""
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if rank.wire.unsent else 0)
        with contextlib.suppress(KeyError, ValueError):  # dropped
            if self._selector.get_key(rank.wire).events != wanted:
                self._selector.modify(rank.wire, wanted, rank)

    def wait(self, timeout_s: float) -> list[Event]:
        """What has happened; nothing after so many seconds without anything.

        Of two ranks of which one ends because of the other, that one is in an earlier list, or both are in one.
        """
        deadline = time.monotonic() + timeout_s
        while not self._events:
            left = deadline - time.monotonic()
            # Looked at now and then: a process that has never connected ends without a word.
            for key, ready in self._selector.select(max(0.0, min(left, 0.2))):
                self._take(key.fileobj, ready)
            self._tidy_up()
            if self._process.poll() is not None and not self._events:
                self._ended()
            elif not self._events and self.waiting and time.monotonic() > self._began + START_S:
                self._give_up_waiting()
            if left <= 0:
                break
        events, self._events = self._events, []
        return events

    @property
    def waiting(self) -> list[int]:
        """Slots whose ranks have not all connected yet."""
        return [s for s, there in self._ranks.items() if len(there) < self.ranks and s not in self._gone]

    @property
    def ready(self) -> list[int]:
        """Slots that are there."""
        return [s for s, there in self._ranks.items() if len(there) == self.ranks and s not in self._gone]

    def late(self) -> str | None:
        """What is waited for, in a sentence, where ranks have not connected for long; once of a launch."""
        waiting = self.waiting
        if self._late_said or not waiting or time.monotonic() < self._began + LATE_S:
            return None
        self._late_said = True
        there = {rank.rank for slot in waiting for rank in self._ranks[slot]}
        absent = [
            n for slot in waiting for n in range(slot * self.ranks, (slot + 1) * self.ranks) if n not in there
        ]
        some = ", ".join(map(str, absent[:8])) + (", ..." if len(absent) > 8 else "")
        return (
            f"{len(absent)} of the {self.slots * self.ranks} rank(s) of a launch have not connected after "
            f"{time.monotonic() - self._began:.0f} s ({some}); they are waited for, {START_S:.0f} s in all."
        )

    def printed(self) -> str:
        """The end of what the launcher, and ranks outside of runs, have printed; of one that was closed, too."""
        if self._output.closed:
            return self._said
        size = os.fstat(self._output.fileno()).st_size
        text = os.pread(self._output.fileno(), _TAIL, max(0, size - _TAIL))
        return text.decode(errors="replace")

    # -- hearing ------------------------------------------------------------------------------

    def _take(self, source: Any, ready: int) -> None:
        if source in self._listening:
            self._accept(source)
            return
        if source.fileno() < 0:  # dropped with its slot, a moment ago
            return
        rank = self._selector.get_key(source).data
        try:
            if ready & selectors.EVENT_WRITE:
                rank.wire.flush()
                self._watch(rank)
            if ready & selectors.EVENT_READ:
                for message in rank.wire.read():
                    self._heard(rank, message)
        except Exception:  # whatever somebody sends is a loss of nobody else's
            self._lost(rank)

    def _accept(self, listening: socket.socket) -> None:
        if self._deaf_until is not None:  # seen together with the one that was refused
            return
        try:
            sock, _ = listening.accept()
        except (BlockingIOError, ConnectionError, InterruptedError):  # gone again
            return
        except OSError:  # no descriptor is left, most often: it would be told of again at once, and for ever
            if self._strangers:
                self._drop(next(iter(self._strangers)))
            self._deaf_until = time.monotonic() + _DEAF_S
            for one in self._listening:
                self._selector.unregister(one)
            return
        try:
            rank = _Rank(newcomer(sock))
            rank.nonce = challenge(sock)
        except OSError:
            sock.close()
            return
        self._strangers[rank] = None
        self._selector.register(rank.wire, selectors.EVENT_READ, rank)
        # As many as may be ranks on their way have a place each.
        if len(self._strangers) > STRANGERS + self.ranks * len(self.waiting):
            self._drop(next(iter(self._strangers)))

    def _tidy_up(self) -> None:
        """Drop who has been a stranger for too long, and take connections again after a pause."""
        now = time.monotonic()
        for rank in [one for one in self._strangers if now > one.since + STRANGERS_S]:
            self._drop(rank)
        if self._deaf_until is not None and now > self._deaf_until:
            self._deaf_until = None
            for one in self._listening:
                self._selector.register(one, selectors.EVENT_READ)

    def _heard(self, rank: _Rank, message: Mapping[str, Any]) -> None:
        if rank.wire.fileno() < 0:  # dropped by what it has said before
            return
        if rank in self._strangers:
            if not self._known(rank, message):
                self._drop(rank)
        elif message.get("aborted"):
            self._lost(rank, aborted=True, said=message.get("said"))
        elif rank.slot not in self._gone:
            self._events.append(Event("answer", rank.slot, answer=message))

    def _known(self, rank: _Rank, hello: Mapping[str, Any]) -> bool:
        """Take in a rank that shows the secret."""
        slot, number, size = hello.get("slot"), hello.get("rank"), hello.get("size")
        if not answered(rank.nonce, self._secret, hello.get("proof")) or not isinstance(slot, int):
            return False
        if size != self.slots * self.ranks or slot not in self._ranks or not isinstance(number, int):
            # Copies of one rank each, most often: the launcher and this MPI do not know each other.
            self._events.append(Event("lost", -1, answer={"size": size} if isinstance(size, int) else None))
            return False
        if slot in self._gone:  # given up before it came
            return False
        rank.host, rank.pid = str(hello.get("host")), int(hello.get("pid") or 0)
        self._strangers.pop(rank)
        rank.slot, rank.rank, rank.wire.most = slot, number, 1 << 30
        there = self._ranks[slot]
        there.append(rank)
        there.sort(key=lambda one: one.rank)
        if len(there) == self.ranks:
            self._events.append(Event("ready", slot, hosts=tuple(one.host for one in there)))
        return True

    def _drop(self, rank: _Rank) -> None:
        self._strangers.pop(rank, None)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(rank.wire)
        rank.wire.close()

    def _lost(self, rank: _Rank, *, aborted: bool = False, said: Any = None) -> None:
        if rank.slot not in self._ranks or rank.slot in self._gone:
            self._drop(rank)
            return
        slot = rank.slot
        self.end(slot)
        self._events.append(Event("lost", slot, answer=said if isinstance(said, dict) else None, aborted=aborted))

    def _give_up_waiting(self) -> None:
        """Give up the slots of which ranks have not come; those that are there go on."""
        if not self.ready:
            self.close()
            self._events.append(Event("lost", -1))
            return
        for slot in self.waiting:
            self.end(slot)
            self._events.append(Event("lost", slot))

    def _ended(self) -> None:
        self.returncode = self._process.returncode
        left = [slot for slot in self._ranks if slot not in self._gone]
        for slot in left:
            self.end(slot)
            self._events.append(Event("lost", slot))
        if not left:
            self._events.append(Event("lost", -1))

    # -- ending -------------------------------------------------------------------------------

    def end(self, slot: int) -> None:
        """End the ranks of a slot, whatever they are doing; the other slots go on."""
        self._gone.add(slot)
        for rank in self._ranks[slot]:
            with contextlib.suppress(OSError):
                rank.wire.send({"what": "quit"})
            self._drop(rank)

    def exit_code(self, *, grace_s: float = _GRACE_S) -> int | None:
        """How the whole launch has ended, if it has within a moment; negative for a signal."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.returncode = self._process.wait(grace_s)
        return self.returncode

    def close(self, *, at_once: bool = False) -> None:
        """End everything. Harmless when called twice.

        Args:
            at_once: Do not let the ranks end by themselves.
        """
        for slot in list(self._ranks):
            self.end(slot)
        if self._process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                if not at_once:
                    self._process.wait(0.5)
            self._signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_GRACE_S)
        end_tree(self._process.pid)
        self._signal(signal.SIGKILL)
        self.returncode = self._process.wait()
        self._close_files()

    def terminate(self) -> None:
        """End the launch, from any thread; `wait` then tells that it is lost."""
        self._signal(signal.SIGTERM)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def _close_files(self) -> None:
        for rank in list(self._strangers):
            self._drop(rank)
        for sock in self._listening:
            with contextlib.suppress(KeyError, ValueError):  # in a pause
                self._selector.unregister(sock)
            sock.close()
        self._listening = []
        self._selector.close()
        if not self._output.closed:
            self._said = self.printed()
        self._output.close()
