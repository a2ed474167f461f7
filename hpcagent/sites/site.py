"""An open site: Parsl running with the executors of a profile."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from hpcagent.apps.run_records import close_record_files
from hpcagent.errors import BadInput, SiteFailed, nearest
from hpcagent.html import Card
from hpcagent.model.contract import Resources
from hpcagent.moved import moved
from hpcagent.sites.block import block_of
from hpcagent.sites.limits import check, executor_for
from hpcagent.sites.profile import Profile
from hpcagent.sites.several_profiles import Several
from hpcagent.sites.tables import ExecutorProfile
from hpcagent.sites.workers.fair_share import Turns

if TYPE_CHECKING:
    from hpcagent.sites.schedulers.answers import Allocation

__all__ = [
    "Site",
    "current_dfk",
    "current_site",
    "usable_cores",
]

_current: Site | None = None  # Parsl itself allows one loaded configuration per process; this is its owner


def usable_cores() -> list[int]:
    """Return the cores this process may use, which on a shared node are fewer than the machine has.

    Example:
        >>> len(usable_cores()) >= 1
        True
    """
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


class Site:
    """An open site. Made by `open_site`; used as a context manager, or closed by `close()`.

    Rules: `submit` may be called from any thread. After `close()`, and after the site has failed, no future
    that it gave out stays pending: those outstanding carry `SiteFailed`. If the process ends without
    closing, in whatever way, the workers and all they started end by themselves within about a second.

    Attributes:
        profile: What it was opened with.
        workers: How many runs of one core go at once on its first executor, all blocks together.
        run_dir: Folder of Parsl's logs for this opening.
        work_dir: Folder for the runs, one below it each. Not made here.
        turns: In which order the runs of campaigns that share the site go.
        dfk: Parsl's DataFlowKernel, e.g. for `parsl.python_app(f, data_flow_kernel=site.dfk)`.
    """

    def __init__(
        self,
        profile: Profile,
        *,
        folder: Path,
        executors: dict[str, Any],  # by label: LocalExecutor, BatchExecutor, EndpointExecutor or Threads
        workers: dict[str, int],
        dfk: Any,
        temporary: bool,
        inside: Allocation | None = None,
    ) -> None:
        self.profile = profile
        self.workers = next(iter(workers.values()))
        self.run_dir = Path(dfk.run_dir)
        self.work_dir = folder / "work"
        self.dfk = dfk
        self.inside = inside
        self.turns = Turns()
        self._noted: set[str] = set()
        self._workers = workers
        self._temporary = folder if temporary else None
        self._executors = executors
        self._owner = os.getpid()
        self._closing = threading.Lock()
        self._closed = False
        self._news: deque[str] = deque(maxlen=1000)
        self._places: dict[tuple[Resources, float | None], tuple[str, dict[str, Any]]] = {}
        for executor in executors.values():
            executor.tell = self._news.append
            executor.by_hand = self.turns.by_hand
        self._signals = _close_on_signals() if profile.batch else None
        atexit.register(self.close)

    @property
    def about(self) -> dict[str, Any]:
        """What apps may want to know of the site, as plain data; see `Run.site`."""
        profile = self.profile
        return {
            "name": profile.name,
            "node_cores": profile.node_cores or self._node_cores(),
            "max_output_mb": profile.max_output_mb,
            "max_read_mb": profile.max_read_mb,
            "launcher": profile.mpi_launcher,
            "launchers": {name: list(launcher.command) for name, launcher in profile.launchers.items()},
            "apps": {name: settings.model_dump(mode="json") for name, settings in profile.apps.items()},
            "gpu_env": next((node.gpu_env for node in profile.nodes.values()), "CUDA_VISIBLE_DEVICES"),
        }

    def _node_cores(self) -> int | None:
        if self.profile.remote:
            return None  # it is counted there
        if not self.profile.batch:
            return len(usable_cores())
        return int(next(iter(self._executors.values())).hosts_cores)

    def tell(self, *sentences: str) -> None:
        """Add to what `news` returns next."""
        self._news.extend(sentences)

    def news(self) -> list[str]:
        """Return what has happened to the site's jobs since this was last asked: a sentence each."""
        told = []
        while self._news:
            told.append(self._news.popleft())
        return told

    @property
    def out_of_time(self) -> bool:
        """Whether the allocation that it was opened inside of has no time left for any waiting run."""
        if self.ends_at is not None and time.time() > self.ends_at - self.profile.margin_s / 2:
            return True  # runs have been ended by now; whatever did not heed it ends with the job
        return any(executor.out_of_time for executor in self._executors.values())

    @property
    def up(self) -> bool | None:
        """Whether there are workers: False while its jobs wait; None where only an answer would tell."""
        if self.profile.remote:
            return None
        return not self.profile.batch or any(executor.up for executor in self._executors.values())

    @property
    def offline(self) -> bool:
        """Whether it is an endpoint that is known to be offline now."""
        return any(getattr(executor, "offline", False) for executor in self._executors.values())

    def left_there(self) -> frozenset[str]:
        """Execution ids of runs that an earlier session left under way and that it has taken up again."""
        found: set[str] = set()
        for executor in self._executors.values():
            found.update(getattr(executor, "left_there", ()))
        return frozenset(found)

    @property
    def refused_s(self) -> float | None:
        """For how long, in seconds, its batch system has taken no job, where it has none; None if it is not so."""
        waits = [getattr(executor, "refused_s", None) for executor in self._executors.values()]
        return max((wait for wait in waits if wait is not None), default=None)

    @property
    def ends_at(self) -> float | None:
        """When the allocation ends that the site was opened inside of: Unix time, in seconds, or None."""
        return None if self.inside is None else self.inside.ends_at

    def place(
        self, resources: Resources, *, estimated_runtime_s: float | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Return the executor for runs with these resources, and what to tell it of each: see `submit`.

        Args:
            resources: Of a run.
            estimated_runtime_s: As the contract expects it; where no walltime is given, a run is put into a
                block that has three times as long to go.

        Raises:
            BadInput: The site has no place for them; one sentence with the numbers.
        """
        expected_s = estimated_runtime_s if self.profile.batch else None  # elsewhere nothing depends on it
        known = self._places.get((resources, expected_s))
        if known is None:
            known = self._place(resources, expected_s)
            self._places[resources, expected_s] = known
        return known

    def _place(self, resources: Resources, estimated_runtime_s: float | None) -> tuple[str, dict[str, Any]]:
        profile = self.profile
        label = executor_for(profile, resources)
        needs: dict[str, Any] = {}
        if profile.remote:
            check(profile, label, resources)
        if profile.batch:
            if self.inside is None:
                # Once each: the same resources come with many an estimate.
                notes = [note for note in check(profile, label, resources).notes if note not in self._noted]
                self._noted.update(notes)
                self._news.extend(notes)
                usable = block_of(profile, label).walltime_s - profile.margin_s
            else:
                usable = float("inf")
            walltime = resources.walltime_s or min(3 * (estimated_runtime_s or 0.0), usable)
            needs["walltime_s"] = walltime
        if profile.executors[label].mode == "mpi":
            serial = resources.nodes == 1 and resources.ranks_per_node == 1
            needs |= {
                "nodes": resources.nodes,
                "cores": resources.ranks_per_node * resources.threads_per_rank,
                "gpus": resources.gpus_per_node,
            } | ({"here": True} if serial else {})
            self._executors[label].refuse_impossible(needs)
        return label, needs

    def longest_s(self, resources: Resources) -> float | None:
        """Return the usable time of a fresh block for such runs, in seconds; None where no block ends."""
        if not self.profile.batch or self.inside is not None:
            return None
        label, _ = self.place(resources)
        return block_of(self.profile, label).walltime_s - self.profile.margin_s

    def largest(self, resources: Resources) -> tuple[int, int]:
        """Return how large one task can be that stands for many runs with these resources: nodes, cores of each.

        Where no executor is for MPI that is one such run.
        """
        mpi = [label for label, one in self.profile.executors.items() if one.mode == "mpi"]
        if not mpi:
            return resources.nodes, resources.ranks_per_node * resources.threads_per_rank
        executor = self._executors[mpi[0]]
        block = getattr(executor, "block", None)
        return (1 if block is None else int(block.nodes_per_block)), int(executor.hosts_cores)

    def workers_for(self, resources: Resources) -> int:
        """Return how many runs with these resources go at once, with all the blocks there may be.

        Raises:
            BadInput: The site has no place for them.
        """
        label, needs = self.place(resources)
        return max(1, self._executors[label].at_once(needs) if "cores" in needs else self._workers[label])

    def submit(
        self,
        function: Callable[..., Any],
        *args: Any,
        priority: float | None = None,
        executor: str | None = None,
        needs: Mapping[str, Any] | None = None,
    ) -> Future[Any]:
        """Send `function(*args)` to a worker, without Parsl's bookkeeping for dependencies between tasks.

        Args:
            function: Best a function of an importable module.
            args: Plain data: numbers, strings, lists, dicts. No futures; use a Parsl app for those.
            priority: Smaller goes first; not given goes last, or in turn with the campaigns there are (`turns`).
            executor: Label of an executor of the profile; not given: the first.
            needs: As `place` returned it beside the label.

        Returns:
            The future of its result. Its own `cancel` does nothing: what was sent, runs; see `cancel` here.

        Raises:
            SiteFailed: The site is closed or has failed.
            BadInput: The profile has no such executor, or a block of it is too small.
        """
        chosen: Future[Any] = self._executor(executor).submit_plain(function, args, priority, needs)
        return chosen

    def cancel(self, executions: Iterable[str], futures: Iterable[Future[Any]] = ()) -> bool:
        """Cancel runs whose answers nobody wants any more, where the site can: threads cannot.

        Args:
            executions: Their execution ids, by which an endpoint knows them.
            futures: What `submit` has returned for them, by which workers do: one that waits is not begun, and
                the worker of one that runs is killed, with all that it has started.

        Returns:
            Whether one was found, and is being ended.
        """
        executions, futures = list(executions), list(futures)
        taken = False
        for executor in self._executors.values():
            if cancel := getattr(executor, "cancel", None):
                taken |= cancel(executions, futures)
        return taken

    def _executor(self, label: str | None) -> Any:  # LocalExecutor or Threads
        if label is None:
            return next(iter(self._executors.values()))
        if label not in self._executors:
            raise BadInput(
                f"The site {self.profile.name} has no executor {label!r}; {nearest(label, self._executors)}"
            )
        return self._executors[label]

    def close(self) -> None:
        """End the workers and all they started, and fail what is outstanding. Again: does nothing.

        Raises:
            Unverified: Jobs were cancelled, but not seen to be gone; `hpcagent reap` looks again.
        """
        global _current
        if os.getpid() != self._owner:  # a fork of the opener, e.g. a multiprocessing worker of the user's
            return
        with self._closing:
            if self._closed:
                return
            self._closed = True
        atexit.unregister(self.close)
        if _current is self:
            _current = None
        apps = [record["app_fu"] for record in list(self.dfk.tasks.values())]
        # As apps fail now, those that wait for them would be launched, on a pool that is closing.
        self.dfk.launch_if_ready = _launch_nothing
        failures = []
        try:
            for executor in self._executors.values():
                executor.fail_outstanding()
            for executor in self._executors.values():
                # Before Parsl's cleanup, which would stop at the first that raises.
                try:
                    executor.shutdown()
                except SiteFailed as error:
                    failures.append(error)
            if not self.dfk.cleanup_called:  # a user may have called parsl.dfk().cleanup()
                self.dfk.cleanup()
        finally:
            close_record_files()  # of threads: a run that ended after its campaign had opened its file again
            if self._signals is not None:
                self._signals()
            # Apps that waited for others: Parsl leaves their futures pending for ever when it is cleaned up.
            for future in apps:
                if not future.done():
                    future.set_exception(SiteFailed("The site was closed before this app had started."))
        if self._temporary is not None:
            shutil.rmtree(self._temporary / "parsl", ignore_errors=True)
            with contextlib.suppress(OSError):  # there are runs in it
                self._temporary.rmdir()
                if self._temporary.parent.name == "runs":
                    self._temporary.parent.rmdir()
        if failures and sys.exc_info()[1] is None:
            raise failures[0]
        self.tell(*(str(failure) for failure in failures))  # another error is on its way: as news

    def __enter__(self) -> Site:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _card(self) -> Card:
        facts = [
            ("profile", f"{self.profile.name} ({self.profile.kind})"),
            ("state", "closed" if self._closed else "open"),
            ("runs at once", self.workers),
            ("runs in", self.work_dir),
            ("Parsl's logs", self.run_dir),
        ]
        return Card("Site", self.profile.name, facts)

    def _repr_html_(self) -> str:
        return self._card().html()

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"<Site {self.profile.name}, {self.workers} workers, {state}, {self.run_dir}>"


def _launch_nothing(task_record: object) -> None:
    """Stands in for Parsl's launch_if_ready while a site is being closed."""


def _close_on_signals() -> Callable[[], None] | None:
    """Let SIGTERM and SIGHUP end this process by way of `atexit`, where jobs are cancelled; else they do not.

    Returns what puts that back; None where somebody (a coordinator, the user) handles both already, or they are
    ignored, as SIGHUP is under nohup.
    """
    if threading.current_thread() is not threading.main_thread():
        return None
    ours = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is signal.SIG_DFL]
    if not ours:
        return None

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    for number in ours:
        signal.signal(number, leave)

    def put_back() -> None:
        if threading.current_thread() is threading.main_thread():
            for number in ours:
                if signal.getsignal(number) is leave:
                    signal.signal(number, signal.SIG_DFL)

    return put_back


def workers_of(profile: Profile, resources: Resources | None = None) -> int:
    """How many runs go at once on a site that is not open, as far as its profile tells.

    Raises:
        BadInput: The site has no place for runs with these resources.
    """
    resources = resources or Resources()
    if isinstance(profile, Several):
        return _workers_of_several(profile, resources)
    label = executor_for(profile, resources)
    cores = resources.ranks_per_node * resources.threads_per_rank
    if profile.remote:
        each = resources.nodes * cores if profile.executors[label].mode == "mpi" else 1
        return max(1, profile.runs_at_once // each)
    if not profile.batch:
        count = workers_on(profile.executors[label], len(usable_cores()))
        return count if profile.executors[label].mode == "tasks" else max(1, len(usable_cores()) // cores)
    most = check(profile, label, resources).max_blocks
    block = block_of(profile, label)
    if block.mode == "tasks":
        return most * block.nodes_per_block * (block.max_workers_per_node or 1)
    beside = (block.usable_cores or cores) // cores
    if resources.gpus_per_node and block.node:
        beside = min(beside, block.node.gpus // resources.gpus_per_node)
    return most * max(1, block.nodes_per_block * beside // resources.nodes)


def _workers_of_several(profile: Several, resources: Resources) -> int:
    counts, said = [], []
    for member in profile.members:
        try:
            counts.append(workers_of(member, resources))
        except BadInput as error:
            said.append(f"{member.name}: {error.message}")
    if not counts:
        raise BadInput(f"No site has a place for such a run. {' '.join(said)}")
    return sum(counts)


def workers_on(executor: ExecutorProfile, cores: int) -> int:
    """How many workers an executor has on a machine of so many cores."""
    return executor.max_workers_per_node or max(1, cores // executor.cores_per_worker)


def make_current(site: Site) -> None:
    """Say that a site owns the configuration that Parsl has loaded in this process."""
    global _current
    _current = site


def current_site() -> Site | None:
    """Return the site of this process that `open_site` opened last without `private`, if it is open."""
    return _current


def current_dfk() -> Any:  # parsl.DataFlowKernel | None
    """Return the DataFlowKernel that Parsl has loaded, by a site or by the user's own `parsl.load`, or None."""
    parsl = sys.modules.get("parsl.dataflow.dflow")  # else nobody can have loaded one
    return None if parsl is None else parsl.DataFlowKernelLoader._dfk


__getattr__ = moved(__name__, {"open_site": "hpcagent.sites.opening", "failure_of": "hpcagent.sites.ended"})
