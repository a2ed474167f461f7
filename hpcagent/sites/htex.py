"""Parsl's HighThroughputExecutor on this machine, with what it takes to live with it.

Each departure from Parsl 2026.10 says why. What Parsl does well is left to it: the protocol between opener,
interchange, manager and workers, dependencies between apps, serialization of functions.
"""

from __future__ import annotations

import os
import pickle
import shlex
import shutil
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import zmq
from parsl import curvezmq
from parsl.app.errors import RemoteExceptionWrapper
from parsl.executors.high_throughput.errors import ManagerLost, WorkerLost
from parsl.executors.high_throughput.executor import HighThroughputExecutor, HTEXFuture
from parsl.executors.high_throughput.manager_selector import RandomManagerSelector
from parsl.executors.threads import ThreadPoolExecutor
from parsl.jobs.states import JobState, JobStatus
from parsl.launchers import SimpleLauncher
from parsl.providers import LocalProvider
from parsl.serialize import deserialize

from hpcagent.errors import SiteFailed
from hpcagent.lifeline import MARK, birth, end_all
from hpcagent.sites import plain
from hpcagent.sites.launch import python_command

__all__ = ["LocalBlocks", "LocalExecutor", "Threads", "log_tail"]

_LOOPBACK = "127.0.0.1"
_NO_HEARTBEAT_S = 10 * 365 * 86400
"""The processes are watched instead: a laptop that slept for an hour has missed its heartbeats, not died."""
_LOOK_EVERY_S = 0.2
_INTERCHANGE_S = 120.0
_DEATHS_IN_A_ROW = 3
"""Blocks that may die one after another without a single result in between before the site is given up."""


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


class LocalBlocks(LocalProvider):  # type: ignore[misc]  # Parsl has no type information
    """Parsl's LocalProvider, which here starts and ends its blocks itself.

    Parsl's goes through `ps` and `grep`, which not every container has, to end a block, and then leaves
    behind what a worker had put in a session of its own. It also leaves a shell waiting beside each block.
    """

    environment: Mapping[str, str] = {}
    mark = ""

    def submit(self, command: str, tasks_per_node: int, job_name: str = "block") -> str:
        """Start a block; Parsl calls this. Returns its job id."""
        script = Path(self.script_dir).absolute() / f"{job_name}.sh"
        script.write_text(f"{self.worker_init}\nexec {command}\n")
        with script.with_suffix(".out").open("wb") as out, script.with_suffix(".err").open("wb") as err:
            process = subprocess.Popen(
                [shutil.which("bash") or "/bin/sh", str(script)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                # its own session: Ctrl-C at the terminal is for the coordinator, which then decides
                start_new_session=True,
                env={**os.environ, **self.environment, MARK: f"{self.mark}/{job_name}"},
            )
        job = {"process": process, "script": script, "mark": f"{self.mark}/{job_name}", "cancelled": False}
        self.resources[str(process.pid)] = job
        return str(process.pid)

    def status(self, job_ids: Sequence[str]) -> list[JobStatus]:
        """Return the state of each block, from the process itself."""
        return [self._status(self.resources[job_id]) for job_id in job_ids]

    def _status(self, job: dict[str, Any]) -> JobStatus:
        code = job["process"].poll()
        if code is None:
            return JobStatus(JobState.RUNNING)
        state = JobState.CANCELLED if job["cancelled"] else JobState.FAILED
        return JobStatus(state, exit_code=code)

    def cancel(self, job_ids: Sequence[str]) -> list[bool]:
        """Kill blocks with everything that was started in them. May be called again."""
        for job_id in job_ids:
            job = self.resources[job_id]
            job["cancelled"] = True
            if job["process"].poll() is None:
                os.killpg(job["process"].pid, 9)
                job["process"].wait()
            end_all(job["mark"])
        return [True for _ in job_ids]

    def logs(self, job_id: str) -> tuple[Path, Path]:
        """Return the files with what a block printed: errors, output."""
        script: Path = self.resources[job_id]["script"]
        return script.with_suffix(".err"), script.with_suffix(".out")

    @property
    def status_polling_interval(self) -> float:
        """Seconds; asking costs one system call."""
        return _LOOK_EVERY_S


class _PortLater:
    """Stands in for Parsl's command client while the interchange is started, so that nobody waits for it."""

    def __init__(self, port: int) -> None:
        self.port = port

    def run(self, message: object, timeout_s: float | None = None) -> int:
        """Answer the question for the workers' port, which they learn from a file instead."""
        return 0


class LocalExecutor(HighThroughputExecutor):  # type: ignore[misc]  # Parsl has no type information
    """Parsl's HighThroughputExecutor for workers on this machine.

    No `__init__` of its own, because Parsl inspects it; use `local_executor`.
    """

    command_client: Any  # CommandClient, for a moment _PortLater
    pool_arguments: Sequence[str] = ()
    python: str | None = None
    _closed = False
    _refusal: SiteFailed | None = None
    _results = 0
    _results_at_last_death = -1
    _deaths = 0

    def start(self) -> None:
        """Start interchange and workers side by side, and wait only for the interchange.

        Stock Parsl starts the workers when its scaling strategy first looks, 5 s later.

        Raises:
            SiteFailed: The interchange could not be started.
        """
        self._submit_lock = threading.Lock()
        self._ended_blocks: set[str] = set()
        Path(self.logdir).mkdir(parents=True, exist_ok=True)
        if self.encrypted:
            # Not in the run directory, which people archive and share, and whose file system may not be
            # able to keep the keys from others.
            self.cert_dir = curvezmq.create_certificates(tempfile.mkdtemp(prefix="hpcagent-keys-"))
        try:
            super().start()
            # Parsl never sets these: without them a dead interchange blocks the sender, and closing, for ever.
            for socket in (self.outgoing_q.zmq_socket, self.incoming_q.results_receiver):
                socket.setsockopt(zmq.LINGER, 0)
                socket.setsockopt(zmq.SNDTIMEO, 10_000)
            self.scale_out_facade(1)
            self._wait_for_interchange()
        except BaseException:
            self.shutdown()
            raise

    def _start_local_interchange_process(self) -> None:
        Path(self._port_file).unlink(missing_ok=True)
        self.interchange_launch_cmd = python_command(
            "hpcagent.sites.interchange",
            str(os.getpid()),
            birth(os.getpid()) or "",
            self._port_file,
            self._interchange_log,
            str(Path(self.cert_dir).parent) if self.cert_dir else "",
        )
        client = self.command_client
        self.command_client = _PortLater(client.port)
        try:
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

    def _interchange_ended(self) -> SiteFailed:
        tail = log_tail(Path(self._interchange_log))
        code = self.interchange_proc.returncode
        return SiteFailed(
            f"Parsl's interchange on this machine ended with exit code {code}. Its log, "
            f"{self._interchange_log}, ends:\n{tail or '(empty)'}",
            log_tail=tail,
        )

    def initialize_scaling(self) -> None:
        """Nothing to prepare. Parsl's fills in its command here, without quoting a path with a space."""

    def _get_launch_command(self, block_id: str) -> str:
        return shlex.join(
            python_command(
                "hpcagent.sites.worker_pool",
                f"--opener={os.getpid()}",
                f"--opener_birth={birth(os.getpid())}",
                f"--port_file={self._port_file}",
                f"--block_id={block_id}",
                f"--addresses={_LOOPBACK}",
                "--port=0",
                f"--cert_dir={self.cert_dir}",
                f"--logdir={self.worker_logdir}",
                f"--max_workers_per_node={self.max_workers_per_node}",
                f"--cores_per_worker={self.cores_per_worker}",
                f"--mem_per_worker={self.mem_per_worker}",
                f"--prefetch_capacity={self.prefetch_capacity}",
                f"--hb_period={self.heartbeat_period}",
                f"--hb_threshold={self.heartbeat_threshold}",
                f"--drain_period={self.drain_period}",
                "--cpu-affinity=none",  # see --cores
                *self.pool_arguments,
                python=self.python,
            )
        )

    # --- tasks

    def submit_plain(
        self, function: Callable[..., Any], args: tuple[Any, ...], priority: float | None
    ) -> Future[Any]:
        """Send a task without Parsl's per-task bookkeeping. See `Site.submit`."""
        spec = {} if priority is None else {"priority": priority}
        payload = plain.pack(function, args)
        if payload is None:
            future: Future[Any] = self.submit(function, spec, *args)
            return future
        return self.submit_payload({**plain.RUN, "resource_spec": spec}, payload)

    def submit_payload(self, context: dict[str, Any], buffer: bytes) -> Future[Any]:
        """Send a task. Parsl's is for one thread only, and a user's apps have another than the coordinator.

        Raises:
            SiteFailed: The site is closed, or its workers are lost for good.
        """
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
        return future

    def _result_queue_worker(self) -> None:
        """Hand results to their futures, as Parsl does, but outlive one that cannot be read or is unknown."""
        while not self._result_queue_thread_exit.is_set():
            message = self.incoming_q.get(timeout_ms=self.poll_period)
            if message is not None:
                self._take(pickle.loads(message))
        self.incoming_q.close()

    def _take(self, message: dict[str, Any]) -> None:
        if message["task_id"] == -1:  # the interchange gives up; it says why
            error = deserialize(message["exception"])
            self._fail(SiteFailed(f"The site's workers do not fit Parsl's interchange: {error}"))
            return
        future = self.tasks.pop(message["task_id"], None)
        if future is None or future.done():
            return
        try:
            if "result" in message:
                self._results += 1
                future.set_result(deserialize(message["result"]))
                return
            error = _exception(deserialize(message["exception"]))
            if not isinstance(error, ManagerLost | WorkerLost):  # those do not show that the workers work
                self._results += 1
            future.set_exception(error)
        except Exception as error:
            if not future.done():
                future.set_exception(error)

    # --- processes

    def status(self) -> dict[str, JobStatus]:
        """Return the state of each block. Parsl's asks the interchange, for ever if that has ended."""
        block_ids, job_ids = self._get_block_and_job_ids()
        return {
            **dict(zip(block_ids, self.provider.status(job_ids), strict=True)),
            **self._simulated_status,
        }

    def handle_errors(self, status: dict[str, JobStatus]) -> None:
        """Notice what has died; Parsl calls this several times a second."""
        if self._closed or self.bad_state_is_set:
            return
        if self.interchange_proc.poll() is not None:
            self._fail(self._interchange_ended())
            return
        for block_id, state in status.items():
            if state.terminal and block_id not in self._ended_blocks:
                self._ended_blocks.add(block_id)
                self._block_ended(block_id, state)

    def _block_ended(self, block_id: str, state: JobStatus) -> None:
        """Start another block in place of one that died, unless that would not help."""
        job_id = self.blocks_to_job_id.get(block_id)
        if job_id is not None:
            self.provider.cancel([job_id])  # what its workers had started may have outlived it
        started = Path(self.worker_logdir, f"block-{block_id}", "up").exists()
        self._deaths = self._deaths + 1 if self._results == self._results_at_last_death else 1
        self._results_at_last_death = self._results
        if started and self._deaths < _DEATHS_IN_A_ROW:
            self.scale_out_facade(1)
            return
        files = () if job_id is None else self.provider.logs(job_id)
        tail = log_tail(*files, Path(self.worker_logdir, f"block-{block_id}", "manager.log"))
        when = "again and again" if started else "before they were ready"
        self._fail(
            SiteFailed(
                f"The workers on this machine ended {when} (exit code {state.exit_code}). "
                f"Their log, {files[0] if files else self.worker_logdir}, ends:\n"
                f"{tail or state.message or '(empty)'}",
                log_tail=tail,
            )
        )

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
        self._refuse(_closed_error())  # not Parsl's bad state, which it logs as a warning

    def scale_in(self, blocks: int, max_idletime: float | None = None) -> list[str]:
        """Nothing: the blocks of one machine end when it is closed. Parsl's asks the interchange, see `status`."""
        return []

    def shutdown(self, timeout: float = 2.0) -> None:
        """End workers, whatever they started, and the interchange. Called again, does nothing."""
        if self._closed:
            return
        self._closed = True
        self.fail_outstanding()
        self.provider.cancel(list(self.blocks_to_job_id.values()))
        end_all(self.provider.mark)
        self._result_queue_thread_exit.set()
        super().shutdown(timeout)
        if self.cert_dir:
            shutil.rmtree(Path(self.cert_dir).parent, ignore_errors=True)


class Threads(ThreadPoolExecutor):  # type: ignore[misc]  # Parsl has no type information
    """Parsl's ThreadPoolExecutor, whose futures do not stay pending when it is closed.

    A thread cannot be ended: a task that runs at the close runs on, and its result is dropped.
    """

    def start(self) -> None:
        """Make the threads."""
        super().start()
        self._outstanding: set[Future[Any]] = set()
        self._lock = threading.Lock()
        self._is_closed = False

    def submit(
        self, function: Callable[..., Any], resource_specification: Mapping[str, Any], *args: Any, **kwargs: Any
    ) -> Future[Any]:
        """Run `function` in a thread.

        Raises:
            SiteFailed: The site is closed.
        """
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()  # as on the other executor: a submitted task is not called back
        with self._lock:
            if self._is_closed:
                raise _closed_error()
            self._outstanding.add(future)
        self.executor.submit(self._run, future, function, args, kwargs)
        return future

    def _run(
        self, future: Future[Any], function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        if future.done():  # the site was closed before its turn came
            return
        try:
            result, error = function(*args, **kwargs), None
        except Exception as raised:
            result, error = None, raised
        with self._lock:
            if future not in self._outstanding:
                return
            self._outstanding.discard(future)
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def submit_plain(
        self, function: Callable[..., Any], args: tuple[Any, ...], priority: float | None
    ) -> Future[Any]:
        """Run `function` in a thread; threads know no priority."""
        return self.submit(function, {}, *args)

    def fail_outstanding(self) -> None:
        """Refuse tasks and fail those outstanding, because the site is being closed."""
        with self._lock:
            self._is_closed = True
            outstanding, self._outstanding = self._outstanding, set()
        for future in outstanding:
            future.set_exception(_closed_error())

    def shutdown(self, block: bool = False) -> None:
        """Stop without waiting for what runs."""
        self.fail_outstanding()
        super().shutdown(block=block)


def _exception(answer: object) -> Exception:
    """Return the exception that a worker or the interchange sent."""
    error = answer.get_exception() if isinstance(answer, RemoteExceptionWrapper) else answer
    if isinstance(error, Exception):
        return error
    return SiteFailed(f"A worker answered with {error!r} in place of an exception.")


def _closed_error() -> SiteFailed:
    return SiteFailed("The site was closed before this task had finished.")


def local_executor(
    label: str,
    *,
    workers: int,
    cores: Sequence[int] | None,
    cores_per_worker: int,
    prefetch_capacity: int,
    worker_init: str,
    encrypted: bool,
    environment: Mapping[str, str],
    preload: Sequence[str],
    python: str | None,
) -> LocalExecutor:
    """Make the executor for this machine.

    Args:
        label: Its name among the executors of the site.
        workers: How many tasks run at once.
        cores: Cores to pin the workers to, `cores_per_worker` each, in turn; None pins none.
        cores_per_worker: Also the threads that OpenMP and the BLAS libraries may use in a worker.
        prefetch_capacity: Tasks that wait beside the workers. There is one queue for all workers of the
            machine, so no task waits behind a long one while a worker is free.
        worker_init: Shell lines to run before the workers.
        encrypted: Whether the loopback connections are encrypted. Any user of the machine reaches the port.
        environment: Extra environment of the workers.
        preload: Modules to import once for all workers.
        python: Interpreter of the workers; None: the one running now.
    """
    provider = LocalBlocks(init_blocks=0, max_blocks=1, worker_init=worker_init, launcher=SimpleLauncher())
    threads = str(cores_per_worker)
    thread_limits = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), threads)
    provider.environment = {**thread_limits, **environment}
    provider.mark = uuid.uuid4().hex
    executor = LocalExecutor(
        label=label,
        provider=provider,
        address=_LOOPBACK,  # Parsl's default listens on every interface, and looks the machine up outside
        max_workers_per_node=workers,
        # Parsl cuts the workers to cores / cores_per_worker; here the profile has decided already
        cores_per_worker=1e-6,
        prefetch_capacity=prefetch_capacity,
        heartbeat_period=1,  # how often the manager looks for dead workers
        heartbeat_threshold=_NO_HEARTBEAT_S,
        poll_period=100,
        encrypted=encrypted,
        manager_selector=RandomManagerSelector(),
    )
    executor.pool_arguments = [
        f"--preload={','.join(preload)}",
        f"--cores={_affinity(workers, cores, cores_per_worker) if cores else ''}",
    ]
    executor.python = python
    return executor


def _affinity(workers: int, cores: Sequence[int], cores_per_worker: int) -> str:
    """Return worker 0's cores, worker 1's, …; around again if there are too few.

    Parsl's "block" divides all cores among the workers, so that two workers of eight cores get four each;
    and with more workers than cores its workers end at once, whatever the affinity, one after another.

    Example:
        >>> _affinity(2, [4, 5, 6, 7], 2)
        '4,5:6,7'
    """
    groups = []
    for worker in range(workers):
        first = worker * cores_per_worker
        groups.append(",".join(str(cores[(first + i) % len(cores)]) for i in range(cores_per_worker)))
    return ":".join(groups)
