"""A worker of an endpoint at a task: a child computes, the worker watches.

It takes the child's answers and the end of what it prints, ends it at a walltime or where somebody cancels, and
says in words how a child ended that did not say it itself. Whatever happens in the child, the worker lives.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcagent.apps.worker import broken_off
from hpcagent.errors import AppFailed
from hpcagent.lifeline import node_name
from hpcagent.sites.endpoint.computing import remote_of, small_enough
from hpcagent.sites.endpoint.control import Control, Task
from hpcagent.sites.endpoint.protocol import BEATS_S, LARGEST_ANSWER, LARGEST_RESULT
from hpcagent.sites.endpoint.warm import GRACE_S, has_children, received
from hpcagent.sites.endpoint.warmed import Warm, warm

__all__ = ["in_child", "run"]

LOOKS_S = 1.0
"""So often, in seconds, a task looks whether it was cancelled."""
LATE_S = GRACE_S + 3.0
"""So long after its walltime, in seconds, a run's program may be ended by whoever started it, who knows better."""
_TAIL = 16_000
_PIECE = 1 << 16
_GIVEN_UP_S = 60.0


def run(request: Mapping[str, Any], root: Path) -> dict[str, Any]:
    """Compute the orders of a checked request; see `protocol.run`."""
    task = Control(root).made().task(request["key"])
    orders = request["orders"]
    answers: list[dict[str, Any] | None] = [None] * len(orders)
    task.begin([_execution(order) for order in orders])
    if task.is_cancelled():
        task.end("cancelled")
        return {"cancelled": True, "begun": False, "answers": answers}
    state = "finished"
    try:
        first = 0
        while first < len(orders):
            child = _Child(task, root, request, first)
            child.follow()
            if child.missing:
                task.forget_beginning()
                state = ""
                return {"missing": child.missing}
            for index, result in child.results.items():
                answers[index] = result
            if child.cancelled:
                state = "cancelled"
                return _with_room({"cancelled": True, "begun": True}, answers)
            first = child.reached + 1
        return _with_room({}, answers)
    finally:
        if state:
            with contextlib.suppress(OSError):  # a full disk: it is said dead later, and is run again
                task.end(state)


def in_child(task: Mapping[str, Any], root: Path, *, limit_s: float) -> dict[str, Any]:
    """Do something else than a run in a child, and return what it said.

    Args:
        task: For `computing.compute`.
        root: The campaign's folder.
        limit_s: Seconds that it may take.

    Raises:
        AppFailed: It said nothing.
    """
    child = _Child(None, root, {"key": "", "orders": [], "upstream": []}, 0, dict(task), limit_s)
    child.follow()
    if child.said is None:
        failure = child.failure()
        raise AppFailed(
            failure["message"], kind=failure["kind"], name=failure["name"], log_tail=failure["log_tail"]
        )
    return child.said


def _execution(order: Mapping[str, Any]) -> str:
    manifest = order.get("manifest")
    found = manifest.get("execution_id") if isinstance(manifest, Mapping) else None
    return found if isinstance(found, str) else ""


def _with_room(told: dict[str, Any], answers: list[dict[str, Any] | None]) -> dict[str, Any]:
    """The answer, with null for results beyond its size: they lie in their folders, and are found again."""
    room = LARGEST_ANSWER - 100_000
    for index, result in enumerate(answers):
        room -= len(json.dumps(result))
        if room < 0:
            answers[index] = None
    return {**told, "answers": answers}


class _Child:
    """One child of a warm process, and what is known of it.

    Args:
        task: The task's control files; None for what is no run.
        root: The campaign's folder.
        request: With orders, upstream and walltime_s.
        first: Index of the first order that it computes.
        other: What it does instead.
        limit_s: Seconds that this may take.

    Attributes:
        results: Index of an order -> its result.
        reached: Index of the last order that has a result.
        missing: Inputs that are not there.
        cancelled: Whether it was ended because somebody wants that.
        said: What it said of something else.
    """

    def __init__(
        self,
        task: Task | None,
        root: Path,
        request: Mapping[str, Any],
        first: int,
        other: dict[str, Any] | None = None,
        limit_s: float | None = None,
    ) -> None:
        self._task = task
        self._root = root
        self._last = len(request["orders"]) - 1
        self._what = other or {
            "do": "run",
            "orders": request["orders"][first:],
            "upstream": (request.get("upstream") or [[] for _ in request["orders"]])[first:],
            "first": first,
            "walltime_s": request.get("walltime_s"),
        }
        self.results: dict[int, dict[str, Any]] = {}
        self.reached = first - 1
        self.missing: list[str] = []
        self.cancelled = False
        self.said: dict[str, Any] | None = None
        self._began = time.monotonic()
        self._at: Mapping[str, Any] | None = None  # the order that it is at, as it said itself
        self._limit_s = limit_s
        self._pid = 0
        self._why = ""  # it was ended
        self._asked_at = 0.0
        self._broken: Mapping[str, Any] | None = None
        self._end: Mapping[str, Any] | None = None
        self._line = bytearray()
        self._tail = bytearray()

    # ---- following it

    def follow(self) -> None:
        """Start it, and see it to its end; whatever it ends by, each order up to `reached` has a result then."""
        with warm(numpy=_threads(self._what.get("orders", ())) == 1) as process, contextlib.ExitStack() as opened:
            answers, their_answers = os.pipe()
            opened.callback(os.close, answers)
            output, their_output = os.pipe()
            opened.callback(os.close, output)
            try:
                process.start({**self._what, "root": str(self._root)}, their_answers, their_output)
            except OSError:
                process.lost = True
            finally:
                os.close(their_answers)
                os.close(their_output)
            if not process.lost:
                os.set_blocking(answers, False)
                os.set_blocking(output, False)
                self._watch(process, answers, output)
        self._conclude()

    def _watch(self, process: Warm, answers: int, output: int) -> None:
        poll = select.poll()
        for descriptor in (process.sock.fileno(), answers, output):
            poll.register(descriptor, select.POLLIN)
        looked = beaten = time.monotonic()
        while self._end is None and not process.lost:
            ready = dict(poll.poll(LOOKS_S * 1000))
            for descriptor, take in ((output, self._printed), (answers, self._answered)):
                if descriptor in ready and not take(descriptor):
                    poll.unregister(descriptor)
            if process.sock.fileno() in ready:
                self._hear(process)
            now = time.monotonic()
            if now - looked >= LOOKS_S:
                looked = now
                self._look(process, now)
            if self._task is not None and now - beaten >= BEATS_S:
                beaten = now
                self._task.beat()
        # What is in the pipes still; one that lives on elsewhere may hold them open for ever.
        for take, descriptor in ((self._printed, output), (self._answered, answers)):
            for _ in range(4 * LARGEST_RESULT // _PIECE):
                if not take(descriptor) or not select.select([descriptor], [], [], 0)[0]:
                    break

    def _hear(self, process: Warm) -> None:
        try:
            heard = received(process.sock)
        except (OSError, ValueError):
            heard = None
        if heard is None:
            process.lost = True
        elif "child" in heard[0]:
            self._pid = heard[0]["child"]
        elif "ended" in heard[0]:
            self._end = heard[0]

    def _printed(self, output: int) -> bool:
        """Take what it prints, of which the end is kept; return whether more may come."""
        try:
            piece = os.read(output, _PIECE)
        except BlockingIOError:
            return True
        self._tail += piece
        del self._tail[:-_TAIL]
        return bool(piece)

    def _answered(self, answers: int) -> bool:
        try:
            piece = os.read(answers, _PIECE)
        except BlockingIOError:
            return True
        self._line += piece
        *lines, rest = self._line.split(b"\n")
        self._line = rest
        for line in lines:
            self._take(bytes(line))
        return bool(piece) and len(self._line) <= 2 * LARGEST_RESULT

    def _take(self, line: bytes) -> None:
        try:
            words = json.loads(line)
        except (ValueError, RecursionError):
            return  # the function has found the pipe, and wrote into it
        if not isinstance(words, dict):
            return
        if "begins" in words:
            self._at, self._began, self._limit_s = words, time.monotonic(), words.get("walltime_s")
        elif isinstance(words.get("result"), dict) and words.get("ended") == self.reached + 1:
            self.reached += 1
            self.results[self.reached] = words["result"]
            self._at, self._limit_s = None, None
            self._tail.clear()
        elif isinstance(words.get("missing"), list):
            self.missing = [str(sha256) for sha256 in words["missing"]]
        elif isinstance(words.get("broken"), dict):
            self._broken = words["broken"]
        elif "said" in words:
            self.said = words["said"]

    # ---- ending it

    def _look(self, process: Warm, now: float) -> None:
        """End it where it is to end."""
        if self._why:
            if now - self._asked_at > _GIVEN_UP_S:  # it hangs in the kernel
                process.lost = True
        elif self._task is not None and self._task.is_cancelled():
            self._why, self._asked_at = "cancelled", now
            process.end_child()
        elif self._is_over(now):
            self._why, self._asked_at = "walltime", now
            process.end_child()

    def _is_over(self, now: float) -> bool:
        """Whether its time is over; one that has started a program, with the same limit, may end that itself."""
        if not isinstance(self._limit_s, (int, float)):
            return False
        late = now - self._began - self._limit_s
        return late > LATE_S or (late > LOOKS_S and not has_children(self._pid))

    # ---- what its end means

    def _conclude(self) -> None:
        self.cancelled = self._why == "cancelled" and self.reached < self._last
        if self.missing or self._last < 0 or self.cancelled or self.reached >= self._last:
            return
        if self._at is None and self._broken is not None:
            raise AppFailed(
                str(self._broken.get("message", "")),
                kind="contract",
                name="BadRequest",
                log_tail=str(self._broken.get("log_tail", "")),
            )
        self.reached += 1
        about = (self._at or {}).get("about")
        failure = self.failure()
        if about is None:  # ended between two orders
            raise AppFailed(
                failure["message"], kind="infrastructure", name=failure["name"], log_tail=failure["log_tail"]
            )
        result = broken_off(about, time.monotonic() - self._began, failure)
        self.results[self.reached] = small_enough({**result, "remote": remote_of(about["workdir"], result)})

    def failure(self) -> dict[str, Any]:
        """What the end of a child without an answer says."""
        if self._why == "walltime":
            said = f"stopped at its walltime limit of {self._limit_s:g} s; what it wrote is kept."
            return self._failure("infrastructure", "Walltime", said, "raise walltime_s, or make the run shorter")
        if self._broken is not None:
            return self._failure("contract", str(self._broken.get("name")), str(self._broken.get("message")))
        if self._end is None:
            said = f"the process that had forked the run on {node_name()} is gone."
            return self._failure("infrastructure", "WorkerLost", said)
        code = int(self._end.get("ended", 0))
        if code >= 0:
            said = f"the app's function ended its own process with exit code {code} (os._exit?); it must return."
            return self._failure("contract", "FunctionExited", said)
        return self._killed(-code, by_kernel=bool(self._end.get("memory")))

    def _killed(self, number: int, *, by_kernel: bool) -> dict[str, Any]:
        if number == signal.SIGKILL and by_kernel:
            said = "the run was ended by the kernel: out of memory."
            help_ = "more memory for the workers, or a smaller system"
            return self._failure("infrastructure", "OutOfMemory", said, help_)
        name = _signal_name(number)
        if number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGXCPU):
            said = f"the run was ended by {name} from outside (out of memory, or the job was stopped)."
            return self._failure("infrastructure", "Killed", said)
        machine = number in (signal.SIGILL, signal.SIGBUS)
        why = ": built for another processor, or the file system or its memory failed" if machine else ""
        said = f"the app's function crashed with {name}{why}."
        return self._failure("infrastructure" if machine else "simulation", "FunctionCrashed", said)

    def _failure(self, kind: str, name: str, message: str, repair: str | None = None) -> dict[str, Any]:
        tail = self._tail.decode(errors="replace")[-4000:]
        return {"kind": kind, "name": name, "message": message, "log_tail": tail, "repair": repair}


def _threads(orders: Any) -> int:
    most = 1
    for order in orders:
        with contextlib.suppress(KeyError, TypeError, ValueError):
            most = max(most, int(order["manifest"]["resources"].get("threads_per_rank") or 1))
    return most


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
