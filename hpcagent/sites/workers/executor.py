"""Parsl's HighThroughputExecutor, with what it takes to live with it, wherever its workers are.

Each departure from Parsl 2026.10 says why. What Parsl does well is left to it: the protocol between opener,
interchange, manager and workers, dependencies between apps, serialization of functions.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import pickle
import queue
import shutil
import signal
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import zmq
from parsl import curvezmq
from parsl.app.errors import RemoteExceptionWrapper
from parsl.executors.high_throughput.errors import ManagerLost, WorkerLost
from parsl.executors.high_throughput.executor import HighThroughputExecutor, HTEXFuture
from parsl.executors.threads import ThreadPoolExecutor
from parsl.jobs.states import JobStatus
from parsl.serialize import deserialize

from hpcagent.errors import SiteFailed
from hpcagent.lifeline import birth, is_stopped
from hpcagent.sites.launch import python_command
from hpcagent.sites.workers import wire

__all__ = ["NEEDS", "Executor", "Threads", "log_tail"]

NEEDS = ("nodes", "cores", "gpus", "walltime_s", "here")
"""What a task may say of itself, for the interchange to place it; see `room.py`."""

_INTERCHANGE_S = 120.0
_ASK_EVERY_S = 10.0
"""So often is the interchange asked whether it answers, and so long is waited for the answer."""
_UNANSWERED_TOLD, _UNANSWERED_MOST = 3, 12
"""After so many times `_ASK_EVERY_S` without an answer the user hears of it, and the interchange is ended.

Only time counts that was waited for answers: a question counts no more than it may take, so neither a laptop that
slept nor a coordinator that was stopped itself gives a false alarm. Two minutes are generous on purpose: a loaded
login node can keep a process waiting for long.
"""
_ROUNDING_S = 0.05
_TROUBLE_IN_A_ROW = 3
_TROUBLE_S = 10.0
"""What looks after the blocks may fail so often, and at least for so long, before the site is given up."""
_TROUBLE = "exceptions.log"


def log_tail(*files: Path, lines: int = 15) -> str:
    """Return the last lines of the files that have any, for an error message."""
    tails = []
    for file in files:
        try:
            text = file.read_text(errors="replace").strip()
        except OSError:
            continue
        if text:
            tails.append("\n".join(text.splitlines()[-lines:]))
    return "\n".join(tails)


def no_turn() -> float | None:
    """No priority: there are no turns to take."""
    return None


@contextlib.contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """What is started inside never sees Ctrl-C, also before it has left the terminal's process group.

    Its first 0.3 s are imports, in which the interruption that ends its opener would be a traceback of its own.
    The mask is inherited (signal(7)); what reaches this process meanwhile is delivered at the end.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _PortLater:
    """Stands in for Parsl's command client while the interchange is started, so that nobody waits for it."""

    def __init__(self, port: int) -> None:
        self.port = port

    def run(self, message: object, timeout_s: float | None = None) -> int:
        """Answer the question for the workers' port, which they learn from a file instead."""
        return 0


class Executor(HighThroughputExecutor):  # type: ignore[misc]  # Parsl has no type information
    """Parsl's HighThroughputExecutor; what is common to workers on this machine and on a cluster.

    No `__init__` of its own, because Parsl inspects it.
    """

    by_hand: Callable[[], float | None] = staticmethod(no_turn)
    """Gives the priority of a task that has none; see `turns.py`."""
    tell: Callable[[str], None] = staticmethod(lambda text: None)
    """Called with a sentence that the user should hear."""
    command_client: Any  # CommandClient, for a moment _PortLater
    pool_arguments: Sequence[str] = ()
    python: str | None = None
    keys_in_logdir = False
    """Whether the secret keys lie beside the logs, where other machines see them; otherwise in a local folder."""
    eager = False
    """Start with the site; otherwise with the first task, for a login node counts processes."""
    out_of_time = False
    """Whether the nodes it was given have no time left for anything that waits."""
    _begun = False
    _closed = False
    _silent_s = 0.0
    _ended_because = ""
    _refusal: SiteFailed | None = None
    _results = 0

    def start(self) -> None:
        """Start if it is eager; Parsl calls this.

        Raises:
            SiteFailed: The interchange could not be started.
        """
        self._submit_lock = threading.Lock()
        self._start_lock = threading.Lock()
        self._ended_blocks: set[str] = set()
        self._trouble: dict[str, tuple[int, float]] = {}
        if self.eager:
            self.ensure_started()

    def ensure_started(self) -> None:
        """Start the interchange, unless that was done, wait for it, and let `begin` start the first workers."""
        with self._start_lock:
            if not self._begun and not self._closed:
                self._start_processes()
                self._begun = True

    def _start_processes(self) -> None:
        Path(self.logdir).mkdir(parents=True, exist_ok=True)
        if self.encrypted:
            # For workers of this machine not in the run directory, which people archive and share, and whose
            # file system may not be able to keep the keys from others.
            parent = Path(self.logdir) if self.keys_in_logdir else None
            self.cert_dir = curvezmq.create_certificates(tempfile.mkdtemp(prefix="hpcagent-keys-", dir=parent))
            for secret in Path(self.cert_dir).glob("*.key_secret"):  # zmq leaves it to the folder
                secret.chmod(0o600)
        try:
            super().start()
            # Parsl never sets these: without them a dead interchange blocks the sender, and closing, for ever.
            for socket in (self.outgoing_q.zmq_socket, self.incoming_q.results_receiver):
                socket.setsockopt(zmq.LINGER, 0)
                socket.setsockopt(zmq.SNDTIMEO, 10_000)
            # An answer that comes late is passed over, and the next question may be asked.
            for option in (zmq.REQ_RELAXED, zmq.REQ_CORRELATE):
                self.command_client.zmq_socket.setsockopt(option, 1)
            self.begin()
            self._wait_for_interchange()
            threading.Thread(target=self._watch_interchange, name="interchange-watch", daemon=True).start()
        except BaseException:
            self.shutdown()
            raise

    def begin(self) -> None:
        """Start what can start beside the interchange."""

    def _start_local_interchange_process(self) -> None:
        Path(self._port_file).unlink(missing_ok=True)
        self.interchange_launch_cmd = python_command(
            "hpcagent.sites.workers.interchange",
            str(os.getpid()),
            birth(os.getpid()) or "",
            self._port_file,
            self._interchange_log,
            str(Path(self.cert_dir).parent) if self.cert_dir else "",
        )
        client = self.command_client
        self.command_client = _PortLater(client.port)
        try:
            with _deaf_to_interrupts():
                super()._start_local_interchange_process()
        finally:
            self.command_client = client

    @property
    def _port_file(self) -> str:
        return f"{self.logdir}/worker_port"

    @property
    def _interchange_log(self) -> str:
        return f"{self.logdir}/interchange.err"

    def _wait_for_interchange(self) -> None:
        deadline = time.monotonic() + _INTERCHANGE_S
        while not Path(self._port_file).exists():
            if self.interchange_proc.poll() is not None:
                raise self._interchange_ended()
            if time.monotonic() > deadline:
                raise SiteFailed(f"Parsl's interchange on this machine is not up after {_INTERCHANGE_S:.0f} s.")
            time.sleep(0.002)

    def _command(self, message: object) -> Any:
        """Ask the interchange; None if it does not answer in time, which `_watch_interchange` sees to.

        Parsl's client waits out its time also for one that has ended, and is of no use any more after one answer
        that came late. In a job that is being ended both are told to at once, and these seconds are those that a
        batch system gives before it kills.
        """
        client = self.command_client
        give_up = time.monotonic() + _ASK_EVERY_S
        try:
            with client._lock:
                for event in (zmq.POLLOUT, zmq.POLLIN):
                    while not client.zmq_socket.poll(100, event):
                        if time.monotonic() > give_up or self.interchange_proc.poll() is not None:
                            return None
                    if event == zmq.POLLOUT:
                        client.zmq_socket.send_pyobj(message)
                return client.zmq_socket.recv_pyobj()
        except Exception:  # ZeroMQ's, of a socket that is being closed
            return None

    def _watch_interchange(self) -> None:
        """End an interchange that lives but does not answer, e.g. a stopped one; a dead one is replaced."""
        process = self.interchange_proc
        pause_s = _ASK_EVERY_S
        told = False
        answered_at = time.monotonic()  # or the last question was given up
        while not self._result_queue_thread_exit.wait(pause_s):
            if self._closed or process.poll() is not None:
                return
            asked_at = time.monotonic()
            answered = self._command("WORKER_BINDS") is not None
            if self._closed:
                return
            now = time.monotonic()
            # What is more than pause and question may take, this process did not wait: it was stopped itself.
            silent_s = min(now - answered_at, pause_s + _ASK_EVERY_S)
            answered_at = now
            pause_s = _ASK_EVERY_S if answered else max(0.0, _ASK_EVERY_S - (now - asked_at))
            self._silent_s = 0.0 if answered else self._silent_s + silent_s
            told = told and not answered
            how = " (somebody has stopped it)" if is_stopped(process.pid) else ""
            if not told and self._silent_s >= _UNANSWERED_TOLD * _ASK_EVERY_S - _ROUNDING_S:
                told = True
                self.tell(
                    f"the site's interchange (process {process.pid}) has not answered for "
                    f"{round(self._silent_s, 1):g} s{how}; "
                    f"after {_UNANSWERED_MOST * _ASK_EVERY_S:g} s it is replaced"
                )
            if self._silent_s >= _UNANSWERED_MOST * _ASK_EVERY_S - _ROUNDING_S:
                self._ended_because = f"did not answer for {round(self._silent_s, 1):g} s{how} and was ended"
                process.kill()
                return

    def _interchange_ended(self) -> SiteFailed:
        tail = log_tail(Path(self._interchange_log))
        how = self._ended_because or f"ended with exit code {self.interchange_proc.returncode}"
        return SiteFailed(
            f"Parsl's interchange on this machine {how}. Its log, "
            f"{self._interchange_log}, ends:\n{tail or '(empty)'}",
            log_tail=tail,
            mendable=True,  # nothing is wrong with site, profile or runs: open it again
        )

    def initialize_scaling(self) -> None:
        """Nothing to prepare. Parsl's fills in its command here, without quoting a path with a space."""

    # --- tasks

    def validate_resource_specification(self, resource_specification: Mapping[str, Any]) -> None:
        """Parsl knows `priority` only; what a task needs is checked by `Site.submit`."""

    validate_resource_spec = validate_resource_specification

    def submit_plain(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        priority: float | None,
        needs: Mapping[str, Any] | None = None,
    ) -> Future[Any]:
        """Send a task without Parsl's per-task bookkeeping. See `Site.submit`."""
        spec: dict[str, Any] = {**(needs or {})}
        if priority is not None:
            spec["priority"] = priority
        payload = wire.pack(function, args)
        if payload is None:
            future: Future[Any] = self.submit(function, spec, *args)
            return future
        return self.submit_payload({**wire.RUN, "resource_spec": spec}, payload)

    def submit_payload(self, context: dict[str, Any], buffer: bytes) -> Future[Any]:
        """Send a task. Parsl's is for one thread only, and a user's apps have another than the coordinator.

        Raises:
            SiteFailed: The site is closed, or its workers are lost for good.
        """
        if not self._begun:
            self.ensure_started()
        spec = context.get("resource_spec") or {}
        if "priority" not in spec and (turn := self.by_hand()) is not None:
            spec = {**spec, "priority": turn}
            context = {**context, "resource_spec": spec}
        needs = {key: spec[key] for key in NEEDS if key in spec}
        if needs:
            self.refuse_impossible(needs)
            # Away from Parsl's own key, which a worker turns into environment variables.
            rest = {key: value for key, value in spec.items() if key not in NEEDS}
            context = {**context, "resource_spec": rest, "needs": needs}
        with self._submit_lock:
            if self._refusal is not None:
                raise self._refusal
            self._task_counter += 1
            task_id = self._task_counter
            future: Future[Any] = HTEXFuture(task_id)
            # A sent task can't be called back. Without this, cancelling the future would end Parsl's
            # result thread with InvalidStateError when the result comes, and every other run with it.
            future.set_running_or_notify_cancel()
            self.tasks[task_id] = future
            try:
                self.outgoing_q.put({"task_id": task_id, "context": context, "buffer": buffer})
            except zmq.Again:
                del self.tasks[task_id]
                raise SiteFailed("Parsl's interchange on this machine does not take tasks any more.") from None
            self.submitted(task_id, needs)
        return future

    def cancel(self, executions: Iterable[str], futures: Iterable[Future[Any]] = ()) -> bool:
        """End tasks by their futures: those that wait are not begun, the worker of one that runs is killed.

        Returns:
            Whether the interchange has taken it over; each future is answered with an error as it is done.
        """
        with self._submit_lock:
            known = {id(future): task_id for task_id, future in self.tasks.items()}
        task_ids = [known[id(future)] for future in futures if id(future) in known]
        return bool(task_ids) and bool(self._command(("CANCEL", task_ids)))

    def refuse_impossible(self, needs: Mapping[str, Any]) -> None:
        """Raise `BadInput` for a task that would wait for ever, where that can be known."""

    def submitted(self, task_id: int, needs: Mapping[str, Any]) -> None:
        """A task was sent; called with the lock held."""

    def _result_queue_worker(self) -> None:
        """Hand results to their futures, as Parsl does, but outlive one that cannot be read or is unknown."""
        try:
            while not self._result_queue_thread_exit.is_set():
                message = self.incoming_q.get(timeout_ms=self.poll_period)
                if message is not None:
                    self._take(pickle.loads(message))
        except Exception as error:
            # Whose result it was is not known, and without this thread no other would come: all is sent again.
            where = self._write_trouble()
            self._fail(
                SiteFailed(f"The results of the workers cannot be read: {_said(error)}{where}", mendable=True)
            )
        finally:
            self.incoming_q.close()

    def _take(self, message: dict[str, Any]) -> None:
        if message["task_id"] == -1:  # the interchange gives up; it says why
            error = deserialize(message["exception"])
            self._fail(SiteFailed(f"The site's workers do not fit Parsl's interchange: {error}"))
            return
        future = self.tasks.pop(message["task_id"], None)
        self.returned(message["task_id"])
        if future is None or future.done():
            return
        try:
            if "result" in message:
                self._results += 1
                future.set_result(deserialize(message["result"]))
                return
            error = _exception(deserialize(message["exception"]))
            if isinstance(error, ManagerLost):
                self.lost(future, error, str(message.get("block_id", "")))
                return
            if not isinstance(error, WorkerLost):  # it does not show that the workers work
                self._results += 1
            future.set_exception(error)
        except Exception as error:
            if not future.done():
                future.set_exception(error)

    def returned(self, task_id: int) -> None:
        """A task has come back, one way or the other."""

    def lost(self, future: Future[Any], error: ManagerLost, block_id: str) -> None:
        """A task went down with the manager it was at."""
        future.set_exception(error)

    # --- processes

    def status(self) -> dict[str, JobStatus]:
        """Return the state of each block. Parsl's asks the interchange, for ever if that has ended."""
        found: dict[str, JobStatus] = self._status
        if self.bad_state_is_set:
            return found
        with self._outliving("how the blocks stand"):
            block_ids, job_ids = self._get_block_and_job_ids()
            found = {
                **dict(zip(block_ids, self.provider.status(job_ids), strict=True)),
                **self._simulated_status,
            }
        return found

    def handle_errors(self, status: dict[str, JobStatus]) -> None:
        """Notice what has died; Parsl calls this several times a second."""
        if self._closed or self.bad_state_is_set or not self._begun:
            return
        with self._outliving("what the blocks need"):
            if self.interchange_proc.poll() is not None:
                self._fail(self._interchange_ended())
                return
            self.look_after_blocks(status)

    @contextlib.contextmanager
    def _outliving(self, what: str) -> Iterator[None]:
        """Outlive an exception in Parsl's thread that calls, which drops them all; one that stays ends the site.

        Args:
            what: What was to be found out.
        """
        try:
            yield
        except Exception as error:
            count, since = self._trouble.get(what, (0, time.monotonic()))
            self._trouble[what] = count + 1, since
            words = f"{what[0].upper()}{what[1:]} could not be found out: {_said(error)}"
            if count == 0:
                self.tell(f"{words}{self._write_trouble()} It is tried again.")
            elif count + 1 >= _TROUBLE_IN_A_ROW and time.monotonic() - since >= _TROUBLE_S:
                times = f" {count + 1} times in {time.monotonic() - since:.0f} s."
                self._fail(SiteFailed(f"{words}{times}{self._write_trouble()}"))
        else:
            self._trouble.pop(what, None)

    def _write_trouble(self) -> str:
        """Write the exception that is being handled beside the logs; return a sentence on where that is."""
        path = Path(self.logdir, _TROUBLE)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a") as file:
                file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {traceback.format_exc()}\n")
        except OSError:
            return ""
        return f" Where it happened is in {path}."

    def look_after_blocks(self, status: dict[str, JobStatus]) -> None:
        """Act on what has become of the blocks."""
        raise NotImplementedError

    def _fail(self, error: SiteFailed) -> None:
        """Give up: refuse tasks from here on and give those outstanding `error`."""
        self._executor_exception = error
        self._executor_bad_state.set()
        self._refuse(error)

    def _refuse(self, error: SiteFailed) -> None:
        with self._submit_lock:
            self._refusal = self._refusal or error
            outstanding = [self.tasks.pop(task_id) for task_id in list(self.tasks)]
        for future in outstanding:
            if not future.done():
                future.set_exception(error)

    def fail_outstanding(self) -> None:
        """Refuse tasks and fail those outstanding, because the site is being closed."""
        self._refuse(closed_error())  # not Parsl's bad state, which it logs as a warning

    def scale_in(self, blocks: int, max_idletime: float | None = None) -> list[str]:
        """Nothing: this is not asked of Parsl's strategies.

        Parsl's own, asked for 0 blocks, cancels one that has not started; and at the end it asks the
        interchange, for ever if that has ended.
        """
        return []

    def end_blocks(self) -> None:
        """End workers and whatever they started."""
        raise NotImplementedError

    def shutdown(self, timeout: float = 2.0) -> None:
        """End workers, whatever they started, and the interchange. Called again, does nothing."""
        if self._closed:
            return
        self._closed = True
        self.fail_outstanding()
        try:
            self.end_blocks()
        finally:
            self._result_queue_thread_exit.set()
            super().shutdown(timeout)
            if self.cert_dir:
                shutil.rmtree(Path(self.cert_dir).parent, ignore_errors=True)


class _Daemons:
    """Threads that a process does not wait for when it ends, unlike those of `concurrent.futures`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._threads = 0
        self._lock = threading.Lock()

    def submit(self, call: Callable[[], None]) -> None:
        """Call it in the next thread that is free."""
        self._calls.put(call)
        with self._lock:
            if not self._idle.acquire(blocking=False) and self._threads < self._most:
                self._threads += 1
                threading.Thread(target=self._work, name=f"run-{self._threads}", daemon=True).start()

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            self._idle.release()

    def shutdown(self, wait: bool = False) -> None:
        """Let the threads end after what they are at."""
        for _ in range(self._threads):
            self._calls.put(None)


class Threads(ThreadPoolExecutor):  # type: ignore[misc]  # Parsl has no type information
    """Parsl's ThreadPoolExecutor, whose futures do not stay pending when it is closed.

    A thread cannot be ended: a task that runs at the close runs on, until the process ends, and its result is
    dropped. The process does not wait for it when it ends.
    """

    out_of_time = False
    tell: Callable[[str], None] = staticmethod(lambda text: None)
    """Called with a sentence that the user should hear."""
    by_hand: Callable[[], float | None] = staticmethod(no_turn)

    def start(self) -> None:
        """Make the threads."""
        self.executor = _Daemons(self.max_threads)
        self._outstanding: set[Future[Any]] = set()
        self._begun: set[Future[Any]] = set()
        self._waiting: list[tuple[float, int, tuple[Any, ...]]] = []
        self._count = itertools.count()
        self._lock = threading.Lock()
        self._is_closed = False

    def submit(
        self, function: Callable[..., Any], resource_specification: Mapping[str, Any], *args: Any, **kwargs: Any
    ) -> Future[Any]:
        """Run `function` in a thread.

        Raises:
            SiteFailed: The site is closed.
        """
        return self._queue(function, args, kwargs, None)

    def _queue(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], priority: float | None
    ) -> Future[Any]:
        order = self.by_hand() if priority is None else priority
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()  # as on the other executor: a submitted task is not called back
        with self._lock:
            if self._is_closed:
                raise closed_error()
            self._outstanding.add(future)
            task = (future, function, args, kwargs)
            heapq.heappush(self._waiting, (float("inf") if order is None else order, next(self._count), task))
        self.executor.submit(self._run_next)
        return future

    def _run_next(self) -> None:
        with self._lock:
            *_, task = heapq.heappop(self._waiting)
        self._run(*task)

    def _run(
        self, future: Future[Any], function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        with self._lock:
            if future not in self._outstanding:  # the site was closed before its turn came
                return
            self._begun.add(future)
        result: Any = None
        error: Exception | None = None
        try:
            result = function(*args, **kwargs)
        except Exception as raised:
            error = raised
        except BaseException as raised:  # sys.exit: in the future it would end whoever asks for the result
            error = SiteFailed(f"A task has ended its thread: {_said(raised)}")
        with self._lock:
            self._begun.discard(future)
            if future not in self._outstanding:
                return
            self._outstanding.discard(future)
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def submit_plain(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        priority: float | None,
        needs: Mapping[str, Any] | None = None,
    ) -> Future[Any]:
        """Run `function` in a thread; threads know no place."""
        return self._queue(function, args, {}, priority)

    def fail_outstanding(self) -> None:
        """Refuse tasks and fail those outstanding, because the site is being closed."""
        with self._lock:
            self._is_closed = True
            outstanding, self._outstanding = self._outstanding, set()
            going = len(self._begun & outstanding)
        for future in outstanding:
            future.set_exception(closed_error())
        if going:
            self.tell(
                f"{going} run(s) go on in threads of this process, which cannot be ended; their results are "
                "dropped, and they end with the process"
            )

    def shutdown(self, block: bool = False) -> None:
        """Stop without waiting for what runs."""
        self.fail_outstanding()
        super().shutdown(block=block)


def _said(error: BaseException) -> str:
    """An exception in words, as a sentence."""
    return f"{type(error).__name__}: {str(error).rstrip('.') or 'no words'}."


def _exception(answer: object) -> Exception:
    """Return the exception that a worker or the interchange sent."""
    error = answer.get_exception() if isinstance(answer, RemoteExceptionWrapper) else answer
    if isinstance(error, Exception):
        return error
    return SiteFailed(f"A worker answered with {error!r} in place of an exception.")


def closed_error() -> SiteFailed:
    """What a task gets that had not ended when its site was closed."""
    return SiteFailed("The site was closed before this task had finished.")
