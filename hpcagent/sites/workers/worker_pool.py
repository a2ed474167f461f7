"""Parsl's manager and workers, on one node. Started by an executor or a job script, never by hand.

The manager is Parsl's, with lighter parts put into it (`Light`), and with these differences:

* Workers are forked from the manager, which has imported everything already; Parsl starts each as a new
  Python that imports Parsl again, plus a server process for a shared dictionary.
* No lock is shared between workers, so that one killed at any moment cannot stop the others. With Parsl's
  `multiprocessing.Queue` a worker killed while idle keeps the queue's lock for ever.
* Manager, workers and whatever they started end when the process that opened the site ends: on the same
  machine at once, on a cluster's node when the interchange has been silent for the heartbeat's threshold.
* A manager that is told to end (SIGTERM: cancelled, out of time, preempted) says goodbye first, so that its
  runs are started again at once and not after missed heartbeats.
* It knows when its block ends, and on a block for MPI which cores and GPUs there are to hand out.
* A task can be cancelled: one that waits is answered without being begun, the worker of one that runs is killed.
* Nothing is logged per task.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import mmap
import multiprocessing
import os
import pickle
import queue
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from parsl.app.errors import RemoteExceptionWrapper
from parsl.executors.high_throughput import process_worker_pool as parsl_pool
from parsl.log_utils import set_file_logger
from parsl.serialize import serialize

from hpcagent.apps.as_found import cannot_be_given_back, flush_streams, ours
from hpcagent.lifeline import (
    MARK,
    adopt_orphans,
    birth,
    die_with_parent,
    end_all,
    end_strangers,
    end_tree,
    is_stopped,
    node_name,
    watch,
)
from hpcagent.sites.workers.wire import CANCEL, Cancelled, prefer_plain

_LARGEST_MESSAGE = 64 * 1024
_SLOT = struct.Struct("q")
_GOODBYE_S = 0.3
_LOOK_AT_WORKERS_S = 5.0
_STOPS_WITHIN_S = 0.5
_STOPPED_S = 120.0
"""A worker that somebody has stopped (SIGSTOP) may be so for so long; a debugger stops it in another way."""
_FORK = multiprocessing.get_context("fork")


class Mailbox:
    """A queue between processes without locks or threads: a Unix socket that keeps message boundaries.

    One end is only written, the other only read; any number of processes may do either, and a message is
    read whole by exactly one of them. What is too large for a datagram travels in a temporary file.
    """

    def __init__(self) -> None:
        self._in, self._out = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._in.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * 1024 * 1024)
        self._buffer = bytearray(_LARGEST_MESSAGE + 1)

    def put(self, item: object) -> None:
        """Send `item`; waits while the reader is far behind."""
        data = pickle.dumps(item, protocol=pickle.HIGHEST_PROTOCOL)
        if len(data) > _LARGEST_MESSAGE:
            handle, path = tempfile.mkstemp(prefix="hpcagent-")
            os.close(handle)
            Path(path).write_bytes(data)
            self._in.send(b"F" + path.encode())
        else:
            self._in.send(b"D" + data)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Return the next item.

        Raises:
            queue.Empty: None came within `timeout` seconds.
        """
        self._out.settimeout(timeout if block else 0.0)
        try:
            size = self._out.recv_into(self._buffer)
        except (TimeoutError, BlockingIOError):
            raise queue.Empty from None
        message = memoryview(self._buffer)[1:size]
        if self._buffer[0] == ord("D"):
            return pickle.loads(message)
        path = Path(message.tobytes().decode())
        try:
            return pickle.loads(path.read_bytes())
        finally:
            path.unlink()

    def qsize(self) -> int:
        """Parsl asks for its debug log only."""
        return 0


class Unwanted:
    """Tasks that are cancelled before a worker has begun them, in memory that manager and workers share."""

    MOST = 4095

    def __init__(self) -> None:
        self._slots = memoryview(mmap.mmap(-1, _SLOT.size * (1 + self.MOST))).cast("q")  # a count, then ids

    def add(self, task_id: int) -> None:
        """Only the manager writes. The oldest of more than `MOST` is forgotten: it is run, and nobody listens."""
        count = self._slots[0]
        self._slots[1 + count % self.MOST] = task_id
        self._slots[0] = count + 1

    def __contains__(self, task_id: int) -> bool:
        count = self._slots[0]
        return count > 0 and task_id in self._slots[1 : 1 + min(count, self.MOST)].tolist()


class Tasks:
    """The queue of tasks as a worker has it: one in which a run has left something ends before the next task.

    Args:
        tasks: The queue that all workers read.
        results: Where the worker's answers go.
        unwanted: Tasks that are answered without being begun.
    """

    def __init__(self, tasks: Any, results: Any, unwanted: Unwanted) -> None:
        self._tasks, self._results, self._unwanted = tasks, results, unwanted

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """As of the queue; does not return where the process is to be replaced."""
        if cannot_be_given_back():
            if hasattr(self._results, "join_thread"):  # multiprocessing's: a thread sends what was put into it
                self._results.close()
                self._results.join_thread()
            flush_streams()
            os._exit(0)
        task = self._tasks.get(block, timeout)
        if task["task_id"] in self._unwanted:
            self._results.put(cancelled(task["task_id"]))
            raise queue.Empty
        return task


def cancelled(task_id: int) -> bytes:
    """The answer to a task that was cancelled."""
    try:
        raise Cancelled("The run was cancelled.")
    except Cancelled:
        error = serialize(RemoteExceptionWrapper(*sys.exc_info()))
    return pickle.dumps({"type": "result", "task_id": task_id, "exception": error})


class TaskSlots:
    """Which task each worker is at, in memory they share. Parsl's is a server process asked twice a task."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _SLOT.size * 4096)
        self._used = mmap.mmap(-1, 4096)

    def __setitem__(self, worker: int, task: dict[str, Any]) -> None:
        _SLOT.pack_into(self._memory, worker * _SLOT.size, task["task_id"])
        self._used[worker] = 1

    def at(self, worker: int) -> int:
        """The id of the task of `worker`; 0 if it has none."""
        return int(_SLOT.unpack_from(self._memory, worker * _SLOT.size)[0])

    def used(self, worker: int) -> bool:
        """Tell, once, whether `worker` has had a task."""
        used, self._used[worker] = bool(self._used[worker]), 0
        return used

    def pop(self, worker: int) -> dict[str, int]:
        """Forget and return the task of `worker`; `KeyError` if it has none."""
        (task_id,) = _SLOT.unpack_from(self._memory, worker * _SLOT.size)
        if not task_id:  # Parsl counts tasks from 1
            raise KeyError(worker)
        _SLOT.pack_into(self._memory, worker * _SLOT.size, 0)
        return {"task_id": task_id}


class Light:
    """Stands in for the `multiprocessing` context that Parsl's manager builds its parts from."""

    # Only Linux has such sockets for messages above 2 kB; elsewhere as with Parsl.
    Queue: Any = Mailbox if sys.platform.startswith("linux") else _FORK.Queue
    Process = _FORK.Process
    cpu_count = staticmethod(_FORK.cpu_count)

    @staticmethod
    def Manager() -> SimpleNamespace:  # noqa: N802  # multiprocessing's name
        """Return what Parsl makes with a server process: the tasks in progress and a monitoring queue."""
        return SimpleNamespace(dict=TaskSlots, Queue=Light.Queue)

    @staticmethod
    def Value(kind: str, value: int) -> SimpleNamespace:  # noqa: N802  # multiprocessing's name
        """Return the count of ready workers, which Parsl uses for its debug log only, without its lock."""
        return SimpleNamespace(value=value, get_lock=contextlib.nullcontext)


class Pool(parsl_pool.Manager):  # type: ignore[misc]  # Parsl has no type information
    """Parsl's manager, with workers that are forked and end with it."""

    def __init__(
        self,
        *,
        logdir: str,
        cores: list[set[int]],
        hosts: list[dict[str, Any]] | None,
        ends_at: float | None,
        lasts_s: float | None,
        local: bool,
        **arguments: Any,  # Parsl's own
    ) -> None:
        self._logdir = logdir
        self._cores = cores
        self._about = {"hosts": hosts, "ends_at": ends_at, "lasts_s": lasts_s}
        self._local = local
        self._useless = 0
        self._workers: dict[int, Any] = {}  # multiprocessing's ForkProcess by worker id
        self._unwanted = Unwanted()
        super().__init__(**arguments)
        self._give = self.task_scheduler.put_task
        self.task_scheduler.put_task = self._take

    def create_reg_message(self) -> dict[str, Any]:
        """Add to Parsl's registration how the interchange can see that this process has ended."""
        message: dict[str, Any] = super().create_reg_message()
        message.update(self._about, hostname=node_name())
        if self._local:  # on the interchange's own machine
            message.update(pid=os.getpid(), birth=birth(os.getpid()))
        Path(self._logdir, f"block-{self.block_id}", "up").touch()
        return message

    def start(self) -> None:
        """Run until told to stop, with an eye on workers that somebody has stopped."""
        threading.Thread(target=self._end_stopped, name="stopped-workers", daemon=True).start()
        super().start()

    def _end_stopped(self) -> None:
        """Kill a worker that was stopped and is not continued: its run would wait for ever, without a word.

        Looks are counted, not seconds: while this process is stopped as well (a suspended job), none are made.
        """
        looks: dict[int, int] = {}
        while not self._stop_event.wait(_LOOK_AT_WORKERS_S):
            stopped = [p.pid for p in list(self._workers.values()) if p.pid and is_stopped(p.pid)]
            looks = {pid: looks.get(pid, 0) + 1 for pid in stopped}
            for pid, count in looks.items():
                if count * _LOOK_AT_WORKERS_S > _STOPPED_S:
                    print(f"worker {pid} has been stopped for {_STOPPED_S:g} s and is ended", flush=True)
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)

    def _take(self, task: dict[str, Any]) -> None:
        """A task, or the word that one is not wanted any more."""
        if CANCEL in task:
            self._cancel(task["task_id"])
        else:
            self._give(task)

    def _cancel(self, task_id: int) -> None:
        """Kill the worker that is at a task; Parsl's thread then answers for it, and starts another."""
        self._unwanted.add(task_id)
        for worker_id, process in list(self._workers.items()):
            if self._tasks_in_progress.at(worker_id) != task_id:
                continue
            # It is stopped first, so that it is not killed at its next task.
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGSTOP)
                until = time.monotonic() + _STOPS_WITHIN_S
                while not is_stopped(process.pid) and time.monotonic() < until:
                    time.sleep(0.001)
                same = self._tasks_in_progress.at(worker_id) == task_id
                os.kill(process.pid, signal.SIGKILL if same else signal.SIGCONT)

    def say_goodbye(self) -> None:
        """Tell the interchange that this manager is being ended; see `Interchange._lose`."""
        self.pending_result_queue.put(pickle.dumps({"type": "monitoring", "payload": {"goodbye": self.uid}}))

    def interchange_communicator(self, *arguments: Any) -> None:
        """Parsl's thread that takes tasks and sends results and heartbeats."""
        self._end_with(super().interchange_communicator, *arguments)

    def ferry_result(self, *arguments: Any) -> None:
        """Parsl's thread that hands results on."""
        self._end_with(super().ferry_result, *arguments)

    def worker_watchdog(self, *arguments: Any) -> None:
        """Parsl's thread that starts another worker for one that has died."""
        self._end_with(super().worker_watchdog, *arguments)

    def _end_with(self, thread: Callable[..., None], *arguments: Any) -> None:
        """Do the work of a thread, and end the block where it ends before its time.

        Without it tasks would be taken, or heartbeats sent, for ever, and nothing would come back.
        """
        try:
            thread(*arguments)
        except Exception:  # in the block's log, which is shown when a block has ended
            traceback.print_exc()
        if not self._stop_event.is_set():
            print(f"{thread.__name__} has ended before its time, and with it all workers here", flush=True)
            sys.stderr.flush()
            try:
                end_all(os.environ[MARK])
            finally:
                os.killpg(0, signal.SIGKILL)

    def _start_worker(self, worker_id: int) -> Any:
        """Fork a worker; called by Parsl at the start, and again when one has died."""
        dead = self._workers.get(worker_id)
        if dead is not None:
            end_all(f"{os.environ[MARK]}/{dead.pid}")  # what it had started may have outlived it
            end_strangers(frozenset(w.pid for i, w in self._workers.items() if i != worker_id and w.pid))
            self._useless = 0 if self._tasks_in_progress.used(worker_id) else self._useless + 1
            if self._useless >= 3 * self.worker_count:
                # Parsl would start workers for ever, while every future stays pending.
                print(f"{self._useless} workers ended, one after another, without having had a task", flush=True)
                os.killpg(0, signal.SIGKILL)
        process = Light.Process(target=self._work, args=(worker_id, os.getpid()), name=f"worker-{worker_id}")
        process.start()
        self._workers[worker_id] = process
        return process

    def _work(self, worker_id: int, manager: int) -> None:
        """Be a worker: what runs in the forked process."""
        try:
            self._settle(worker_id, manager)
        except Exception:
            # The same would happen to the next worker: end the block, whose log says why.
            traceback.print_exc()
            os.killpg(0, signal.SIGKILL)
        parsl_pool.worker(
            worker_id,
            self.uid,
            self.worker_count,
            Tasks(self.pending_task_queue, self.pending_result_queue, self._unwanted),
            self.pending_result_queue,
            self.monitoring_queue,
            self.ready_worker_count,
            self._tasks_in_progress,
            self.cpu_affinity,
            self.available_accelerators[worker_id] if self.accelerators_available else None,
            self.block_id,
            self.heartbeat_period,
            manager,
            self._logdir,
            None,
            False,
            self.mpi_launcher,
        )

    def _settle(self, worker_id: int, manager: int) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        die_with_parent()
        adopt_orphans()
        if os.getppid() != manager:  # it ended before the line above
            os._exit(1)
        os.environ[MARK] += f"/{os.getpid()}"
        if self._cores:
            os.sched_setaffinity(0, self._cores[worker_id % len(self._cores)])
        _forget_parsl_logging()
        prefer_plain()
        ours()


def _forget_parsl_logging() -> None:
    """Drop what the fork inherited of the manager's log; Parsl writes three lines per task into it."""
    logger = logging.getLogger("parsl")
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
    logger.setLevel(logging.WARNING)
    parsl_pool.set_file_logger = _no_file


def _no_file(filename: str, **options: Any) -> None:
    """Stands in for `set_file_logger` in a worker: no file, no lines."""


def _read_port(path: Path, opener: int, born: str) -> str:
    """Wait for the interchange, which starts at the same time, to say its port."""
    while not path.exists():
        if birth(opener) != born:
            sys.exit("the process that opened the site has ended")
        time.sleep(0.002)
    return path.read_text()


def _only_address(context: object, addresses: set[str], **options: Any) -> str:
    """Stands in for Parsl's search for an address that answers.

    It leaves a connection with the manager's identity that is closed a moment later. Parsl is slow enough
    then, but here the real connection follows at once, and ZeroMQ silently ignores the second of a name:
    the manager then waits for ever (seen once in eight starts).
    """
    (address,) = addresses
    return address


def _preload(modules: str) -> None:
    """Import what tasks will want before the workers are forked: once for all of them."""
    for module in filter(None, modules.split(",")):
        with contextlib.suppress(ImportError):
            importlib.import_module(module)


def _cores_here(limit: int | None) -> list[int]:
    """The cores of this node that are ours, if that can be told; empty where pinning could hit a neighbour."""
    if not hasattr(os, "sched_getaffinity"):
        return []
    mask = sorted(os.sched_getaffinity(0))
    told = os.environ.get("SLURM_CPUS_ON_NODE") or os.environ.get("NCPUS")
    if told and told.isdigit() and int(told) < len(mask):
        # The job has some of the node's cores, and nothing keeps it to them: which ones is not known.
        return []
    return mask[:limit] if limit else mask


def _groups(text: str, workers: int, each: int, limit: int | None) -> list[set[int]]:
    """Cores of each worker: as given (`0,1:2,3`, ranges as in `0-7`), or `auto`, dealt out here."""
    if not text:
        return []
    if text != "auto":
        return [_numbers(group) for group in text.removeprefix("list:").split(":")]
    cores = _cores_here(limit)
    if len(cores) < workers * each:
        return []
    return [set(cores[i * each : (i + 1) * each]) for i in range(workers)]


def _numbers(group: str) -> set[int]:
    """The numbers of `0-3,8`.

    Example:
        >>> sorted(_numbers("0-3,8"))
        [0, 1, 2, 3, 8]
    """
    numbers: set[int] = set()
    for part in group.split(","):
        first, _, last = part.partition("-")
        numbers |= set(range(int(first), int(last or first) + 1))
    return numbers


def _hosts(kind: str, cores: int | None, gpus: list[str]) -> list[dict[str, Any]]:
    """What this block has to hand out: the nodes of the job that this process runs in."""
    from hpcagent.sites.schedulers.registry import scheduler

    allocation = scheduler(kind).allocation(os.environ)
    if allocation is None:
        sys.exit(f"not in a {kind} job: the environment names none")
    hosts = []
    for node in allocation.nodes:
        count = min(node.cores, cores) if cores else node.cores
        hosts.append({"name": node.host, "cores": list(range(count)), "gpus": gpus})
    mine = _cores_here(None)
    if len(mine) == len(hosts[0]["cores"]):
        hosts[0]["cores"] = mine
    return hosts


def _first_that_answers(context: object, addresses: set[str], **options: Any) -> str:
    """Stands in for Parsl's search: a plain connection to each address in turn. See `_only_address`."""
    tried = []
    for address in sorted(addresses):
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=5):
                return address
        except OSError as error:
            tried.append(f"{address} ({error})")
    sys.exit(
        f"this node cannot reach the coordinator: {', '.join(tried)}; name an interface that both see in the "
        "profile's key `interface`"
    )


def _end_politely(pool: Pool) -> None:
    """On SIGTERM: say goodbye, give it time to leave, and end all that was started here."""

    def end(number: int, frame: object) -> None:
        def leave() -> None:
            try:
                pool.say_goodbye()
                time.sleep(_GOODBYE_S)
                end_all(os.environ[MARK])
                end_tree(os.getpid(), itself=False)
            finally:  # whatever a full disk or a broken socket did to the goodbye
                os._exit(128 + signal.SIGTERM)

        threading.Thread(target=leave, daemon=True).start()

    signal.signal(signal.SIGTERM, end)


def main() -> None:
    """Run a manager and its workers until told to stop, or until the opener of the site ends."""
    parser = parsl_pool.get_arg_parser()
    parser.add_argument("--opener", type=int, help="pid of the process that opened the site, if on this machine")
    parser.add_argument("--opener_birth", help="when it started")
    parser.add_argument("--port_file", type=Path, help="where the interchange says its port, if not by --port")
    parser.add_argument("--mark", default="", help="what its processes are marked with, see lifeline.py")
    parser.add_argument(
        "--cores", default="", help="cores of each worker, as in 0,1:2,3, or auto; empty: not pinned"
    )
    parser.add_argument("--node_cores", type=int, help="cores of the node to use, at most")
    parser.add_argument("--threads", type=int, default=1, help="cores of each worker, for --cores=auto")
    parser.add_argument("--hosts", default="", help="what there is to hand out: JSON, or the kind of scheduler")
    parser.add_argument("--gpus", default="", help="GPU ids of each host, comma-separated")
    parser.add_argument("--lasts_s", type=float, help="how long the block is usable, from its job's start")
    parser.add_argument("--ends_at", type=float, help="or until when, Unix time")
    parser.add_argument("--workers_of", default="{}", help="workers by host, where hosts differ: JSON")
    parser.add_argument("--preload", default="", help="modules to import before forking, comma-separated")
    args = parser.parse_args()
    os.umask(os.umask(0) | 0o002)  # what runs write is not for other users to change
    local = args.opener is not None
    if args.mark:
        os.environ[MARK] = f"{args.mark}/{socket.gethostname()}-{os.getpid()}"

    adopt_orphans()

    def opener_ended() -> None:
        try:
            end_all(os.environ[MARK])
            end_tree(os.getpid(), itself=False)
        finally:
            os.killpg(0, signal.SIGKILL)

    if local:
        watch(args.opener, args.opener_birth, opener_ended)
    folder = Path(args.logdir, f"block-{args.block_id}")
    folder.mkdir(parents=True, exist_ok=True)
    set_file_logger(str(folder / f"manager-{args.uid}.log"), level=logging.WARNING)
    ends_at = args.ends_at
    if args.lasts_s is not None:
        # The job script noted when it began; this process came later.
        ends_at = float(os.environ.get("HPCAGENT_JOB_STARTED") or time.time()) + args.lasts_s
    if ends_at is not None:
        os.environ["HPCAGENT_BLOCK_ENDS"] = str(ends_at)
    gpus = [gpu for gpu in args.gpus.split(",") if gpu]
    hosts = None
    if args.hosts:
        hosts = json.loads(args.hosts) if args.hosts.startswith("[") else _hosts(args.hosts, args.node_cores, gpus)
    by_host: dict[str, int] = json.loads(args.workers_of)
    workers = by_host.get(node_name().partition(".")[0], int(args.max_workers_per_node))
    if hosts is not None and not local:
        workers = min(workers, sum(len(host["cores"]) for host in hosts))
    _preload(args.preload)
    parsl_pool.SpawnContext = Light
    parsl_pool.distributions = tuple  # the list of installed packages: 0.04 s to 1 s, and nobody reads it
    parsl_pool.probe_addresses = _only_address if local else _first_that_answers
    pool = Pool(
        logdir=args.logdir,
        cores=_groups(args.cores, workers, args.threads, args.node_cores),
        hosts=hosts,
        ends_at=ends_at,
        lasts_s=args.lasts_s,
        local=local,
        port=_read_port(args.port_file, args.opener, args.opener_birth) if args.port_file else args.port,
        addresses=args.addresses,
        address_probe_timeout=int(args.address_probe_timeout),
        uid=args.uid,
        block_id=args.block_id,
        cores_per_worker=float(args.cores_per_worker),
        mem_per_worker=None,  # workers are counted by who starts this
        max_workers_per_node=workers,
        prefetch_capacity=int(args.prefetch_capacity),
        heartbeat_threshold=int(args.hb_threshold),
        heartbeat_period=int(args.hb_period),
        drain_period=None,  # see --lasts_s
        poll_period=int(args.poll),
        cpu_affinity=args.cpu_affinity,
        enable_mpi_mode=args.enable_mpi_mode,
        mpi_launcher=args.mpi_launcher,
        available_accelerators=args.available_accelerators,
        cert_dir=None if args.cert_dir == "None" else args.cert_dir,
        log_config=None,
    )
    if not local:
        _end_politely(pool)
    pool.start()
    if args.mark:  # it was told to end: so does what its workers had started
        end_all(os.environ[MARK])


if __name__ == "__main__":
    # Not this copy's: what a user's notebook defines is unpickled into __main__, and would replace names here.
    importlib.import_module("hpcagent.sites.workers.worker_pool").main()
