"""An open site: Parsl running with the executors of a profile."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import getpass
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from hpcagent.errors import AppFailed, BadInput, BlockLost, SiteFailed, nearest
from hpcagent.html import Card
from hpcagent.model.contract import Resources
from hpcagent.model.failures import FailureKind, kind_of_error, known_kind
from hpcagent.owners import require_own_links, user_name
from hpcagent.sites.limits import check, executor_for, most_blocks
from hpcagent.sites.profile import ExecutorProfile, Profile, account_of, block_of, check_where
from hpcagent.sites.profiles import find_profile
from hpcagent.sites.script_paths import refuse_unwritable
from hpcagent.sites.several_profiles import Several
from hpcagent.sites.turns import Turns
from hpcagent.surroundings import require_working_directory

if TYPE_CHECKING:
    from hpcagent.sites.schedulers.base import Allocation

__all__ = ["Site", "current_dfk", "current_site", "failure_of", "open_site", "usable_cores"]

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
    def spent(self) -> bool:
        """Whether the allocation that it was opened inside of has no time left for any waiting run."""
        if self.ends_at is not None and time.time() > self.ends_at - self.profile.margin_s / 2:
            return True  # runs have been ended by now; whatever did not heed it ends with the job
        return any(executor.spent for executor in self._executors.values())

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
            The future of its result. It can't be cancelled: what was sent, runs.

        Raises:
            SiteFailed: The site is closed or has failed.
            BadInput: The profile has no such executor, or a block of it is too small.
        """
        chosen: Future[Any] = self._executor(executor).submit_plain(function, args, priority, needs)
        return chosen

    def cancel(self, executions: Iterable[str]) -> None:
        """Cancel runs whose answers nobody wants any more, where the site can: on an endpoint.

        Args:
            executions: Their execution ids.
        """
        for executor in self._executors.values():
            if cancel := getattr(executor, "cancel", None):
                cancel(executions)

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


def open_site(
    profile: str | Path | Profile | Sequence[str | Path | Profile] = "laptop",
    *,
    run_dir: str | Path | None = None,
    workers: int | None = None,
    private: bool = False,
    account: str | None = None,
    inside: bool = False,
) -> Site:
    """Start Parsl with the executors of a profile. Returns before the workers are up.

    On a site with a batch system nothing is submitted yet: the first job is when the first task comes.

    Args:
        profile: A profile's name, its file, the profile itself, or `auto`: the one of this machine. Several in a
            list (or with commas between their names) are opened as one site for campaigns: `Sites`, never
            Parsl's configuration.
        run_dir: Folder for Parsl's logs in `parsl/NNN`, the ledger of jobs in `jobs.jsonl`, runs in `work/`.
            Not given: `runs/site-TIME`, whose logs are removed when the site is closed, and whose runs are kept
            (private: a temporary one, except with a batch system, whose nodes would not see it).
        workers: Tasks at once, in place of the profile's `max_workers_per_node` of its first executor; of each
            site, where there are several.
        private: False: load it as Parsl's configuration, so that every Parsl app of the process uses it.
            True: keep it apart from Parsl's configuration; any number may be open.
        account: Who is charged, on a site with a batch system; see `account_of`.
        inside: Use the nodes of the job that this process is in, instead of submitting jobs.

    Returns:
        The open site; `with open_site(...) as site` closes it.

    Raises:
        BadInput: The profile is wrong, Parsl has a configuration already (and `private` is false), the site needs
            an account, or this process is in no job although `inside` says so.
        SiteFailed: Parsl could not be started.

    Example:
        >>> with open_site("threads", private=True) as site:
        ...     site.submit(max, 2, 3).result()
        3
    """
    global _current
    require_working_directory()
    found = find_profile(profile)
    if workers is not None and workers < 1:
        raise BadInput(f"workers={workers}: a site needs at least one worker.", value=workers)
    if isinstance(found, Several):
        from hpcagent.sites.several import open_several

        def opened(one: Profile) -> Site:
            return open_site(one, run_dir=run_dir, workers=workers, private=True)

        return open_several(found, opened, inside=inside, account=account)
    allocation = _allocation(found) if inside else None
    charged = account_of(found, account) if found.batch and not inside else None
    if found.batch:
        in_job = any(os.environ.get(name) for name in ("SLURM_JOB_ID", "PBS_JOBID"))
        check_where(found, "inside" if inside else "job" if in_job else "login")
    import parsl  # 0.3 s

    if not private and current_dfk() is not None:
        raise BadInput(
            "Parsl has a configuration in this process already. Use it (call apps as they are), close it "
            "first (site.close() or parsl.dfk().cleanup()), or open this site with private=True."
        )
    temporary = run_dir is None
    folder = Path(run_dir or _own_folder(private and not found.batch and not found.remote)).absolute()
    require_own_links(folder / "parsl", folder / "work")
    if found.batch:
        refuse_unwritable(folder)
    notes = _preflight(found) if found.kind == "pbs" and not inside else []
    if found.batch:
        executors, counts = _batch_executors(found, workers, folder, charged, allocation)
    elif found.remote:
        executors, counts = _endpoint_executors(found, workers, folder)
    else:
        executors, counts = _executors(found, workers)
    config = parsl.Config(
        executors=list(executors.values()),
        run_dir=str(folder / "parsl"),
        # Blocks start with their executor; Parsl's strategies start them up to 5 s later.
        strategy="none",
        strategy_period=0.2,
        # Parsl's debug log costs a third of the time per task and megabytes a minute; a user who wants it
        # configures the logger "parsl".
        initialize_logging=False,
        usage_tracking=0,
    )
    try:
        with _a_user_name():
            dfk = parsl.DataFlowKernel(config) if private else parsl.load(config)
    except BaseException as error:  # also Ctrl-C: what has been started would stay until this process ends
        for executor in executors.values():
            with contextlib.suppress(Exception):
                executor.shutdown()
        if isinstance(error, OSError):
            raise SiteFailed(f"Parsl could not start the site {found.name}: {error}.") from error
        raise
    dfk.submit = _to_the_first(dfk.submit, next(iter(executors)))
    site = Site(
        found,
        folder=folder,
        executors=executors,
        workers=counts,
        dfk=dfk,
        temporary=temporary,
        inside=allocation,
    )
    site.tell(*notes, *(_guessed(found, executors) if allocation is None else _unknown(allocation)))
    if not private:
        _current = site
    return site


def _preflight(profile: Profile) -> list[str]:
    """Look whether PBS is what answers, before anything is submitted; what the user should know of it.

    TORQUE and Slurm's wrappers have commands of the same names.

    Raises:
        SchedulerDown: The commands are not there, or not PBS's.
    """
    from hpcagent.sites.schedulers.registry import scheduler

    asked = scheduler(profile.kind, timeout_s=profile.cmd_timeout_s)
    asked.version()
    known, words = asked.history()
    return [] if known else [words]


def _guessed(profile: Profile, executors: Mapping[str, Any]) -> list[str]:
    """Say where PBS was told a number of cores that nobody knows."""
    labels = [e for e in executors if profile.kind == "pbs" and block_of(profile, e).cpus_per_node is None]
    return [
        "How many cores a node has is not known (PBS does not say, or its nodes differ): the jobs of the "
        f"executor {label} ask for one (ncpus=1). Set cores_per_node in [block] of the profile."
        for label in labels
        if executors[label].hosts_cores == 1
    ]


def _unknown(allocation: Allocation) -> list[str]:
    """Say what of the job around nobody here knows."""
    notes = []
    if allocation.guessed:
        have = ", ".join(f"{node.host} {node.cores}" for node in allocation.nodes)
        notes.append(
            f"The scheduler cannot be asked about job {allocation.job_id} from here: its cores are taken from the "
            f"environment ({have})."
        )
    if allocation.ends_at is None:
        notes.append(
            f"When job {allocation.job_id} ends is not known here: what runs then is cut off, and run again by "
            "`hpcagent resume`."
        )
    return notes


def _to_the_first(submit: Callable[..., Any], label: str) -> Callable[..., Any]:
    """Parsl throws dice over all executors for an app that names none: also onto those for MPI."""

    def chosen(*args: Any, executors: Any = "all", **options: Any) -> Any:  # as Parsl's
        return submit(*args, executors=[label] if executors == "all" else executors, **options)

    return chosen


def _allocation(profile: Profile) -> Allocation:
    from hpcagent.sites.schedulers.registry import scheduler

    if not profile.batch:
        raise BadInput(f'inside: the site {profile.name} has kind = "{profile.kind}", which knows no jobs.')
    found = scheduler(profile.kind, timeout_s=profile.cmd_timeout_s).allocation(os.environ)
    if found is None:
        raise BadInput(
            f"inside: this process is in no {profile.kind} job (its environment names none). Start it in one: "
            f"{'salloc or sbatch' if profile.kind == 'slurm' else 'qsub'}, or let `hpcagent submit` do so."
        )
    began = os.environ.get("HPCAGENT_JOB_STARTED", "")
    if found.ends_at is None and began.isdecimal():  # a job that `hpcagent submit` has made
        lasts_s = min(block_of(profile, label).walltime_s for label in profile.executors)
        found = dataclasses.replace(found, ends_at=float(began) + lasts_s)
    return found


def _batch_executors(
    profile: Profile, workers: int | None, folder: Path, account: str | None, inside: Allocation | None
) -> tuple[dict[str, Any], dict[str, int]]:
    from hpcagent.sites.batch import batch_executor
    from hpcagent.sites.ledger import Ledger
    from hpcagent.sites.schedulers.registry import scheduler

    asked = scheduler(profile.kind, timeout_s=profile.cmd_timeout_s)
    ledger = Ledger(folder / "jobs.jsonl")
    executors: dict[str, Any] = {}
    counts: dict[str, int] = {}
    for index, label in enumerate(profile.executors):
        most = most_blocks(profile, label).max_blocks if inside is None else 1
        executors[label] = batch_executor(
            profile,
            label,
            scheduler=asked,
            ledger=ledger,
            account=account,
            workers=workers if index == 0 else None,
            max_blocks=most,
            inside=inside,
        )
        counts[label] = executors[label].slots * executors[label].max_blocks
    for executor in executors.values():
        executor.siblings = list(executors.values())
    return executors, counts


def _endpoint_executors(
    profile: Profile, workers: int | None, folder: Path
) -> tuple[dict[str, Any], dict[str, int]]:
    from hpcagent.sites.endpoint.opening import endpoint_executors

    executors, counts = endpoint_executors(profile, folder=folder, workers=workers)
    return dict(executors), counts


@contextlib.contextmanager
def _a_user_name() -> Iterator[None]:
    """Parsl asks for the name of the user, which one without a passwd entry has not (`docker --user 2001`)."""
    try:
        getpass.getuser()
    except (KeyError, OSError):
        os.environ["LOGNAME"] = user_name(os.getuid())
        try:
            yield
        finally:
            del os.environ["LOGNAME"]
    else:
        yield


def _own_folder(private: bool) -> str:
    """A new folder: where the user is, because the runs in it are kept, or a temporary one."""
    if private:
        return tempfile.mkdtemp(prefix="hpcagent-site-")
    runs = Path("runs")
    try:
        runs.mkdir(exist_ok=True)
        return tempfile.mkdtemp(prefix=time.strftime("site-%Y%m%d-%H%M%S-"), dir=runs)
    except OSError as error:
        raise BadInput(
            f"{runs.absolute()} cannot be written ({error.strerror}); give open_site a run_dir.", value=str(runs)
        ) from None


def _executors(profile: Profile, workers: int | None) -> tuple[dict[str, Any], dict[str, int]]:
    """Return Parsl's executors for the profile, and how many tasks run at once on each."""
    from hpcagent.sites.executor import Threads
    from hpcagent.sites.htex import local_executor

    cores = usable_cores()
    executors: dict[str, Any] = {}  # LocalExecutor or Threads
    counts: dict[str, int] = {}
    for index, (label, executor) in enumerate(profile.executors.items()):
        count = workers if workers is not None and index == 0 else _workers(executor, len(cores))
        accelerators = executor.available_accelerators
        gpus = tuple(map(str, range(accelerators))) if isinstance(accelerators, int) else accelerators
        if gpus:
            count = min(count, len(gpus))
        counts[label] = count
        if profile.kind == "threads":
            executors[label] = Threads(label=label, max_threads=count)
            continue
        places = executor.mode == "mpi"
        pinned = executor.cpu_affinity == "block" and hasattr(os, "sched_setaffinity")
        executors[label] = local_executor(
            label,
            workers=count,
            cores=cores if pinned or places else None,
            cores_per_worker=executor.cores_per_worker,
            prefetch_capacity=_waiting_beside(executor, count),
            worker_init=executor.worker_init,
            encrypted=executor.encrypted,
            environment=profile.env,
            preload=executor.preload,
            python=executor.python,
            accelerators=gpus,
            places=places,
            eager=index == 0,
        )
    return executors, counts


def _waiting_beside(executor: ExecutorProfile, workers: int) -> int:
    """How many tasks wait beside the workers of this machine: one each, where the profile does not say.

    Then a worker need not wait for the next while its last result is on the way: 1 to 3 % of runs of 0.1 s. Runs
    with places of their own are handed out one by one.
    """
    if executor.mode == "mpi" or "prefetch_capacity" in executor.model_fields_set:
        return executor.prefetch_capacity
    return workers


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
        count = _workers(profile.executors[label], len(usable_cores()))
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


def _workers(executor: ExecutorProfile, cores: int) -> int:
    return executor.max_workers_per_node or max(1, cores // executor.cores_per_worker)


def current_site() -> Site | None:
    """Return the site of this process that `open_site` opened last without `private`, if it is open."""
    return _current


def current_dfk() -> Any:  # parsl.DataFlowKernel | None
    """Return the DataFlowKernel that Parsl has loaded, by a site or by the user's own `parsl.load`, or None."""
    if "parsl" not in sys.modules:  # then nobody can have loaded one, and importing it takes 0.3 s
        return None
    import parsl

    return parsl.DataFlowKernelLoader._dfk


def failure_of(error: BaseException) -> tuple[FailureKind, str, str]:
    """Say in the terms of a `Failure` what an exception from a future means.

    Args:
        error: From `future.exception()`.

    Returns:
        (kind, name, message). Kind is `infrastructure` (worth running again as it is), `cancelled`,
        what an `AppFailed` says of itself, or `contract`: the app broke its promise to return.

    Example:
        >>> failure_of(SiteFailed("The site was closed."))
        ('infrastructure', 'SiteFailed', 'The site was closed.')
        >>> failure_of(KeyError("skin"))[:2]
        ('contract', 'KeyError')
    """
    cause = _root(error)
    name = type(cause).__name__
    message = str(cause) or name
    if isinstance(cause, BlockLost):
        name = str(cause.details["name"])
    if isinstance(cause, AppFailed):
        return known_kind(cause.details["kind"]), str(cause.details["name"]), message
    return kind_of_error(cause) or "contract", name, message


def _root(error: BaseException) -> BaseException:
    """Return the failure of the app that failed first, where apps that waited for it failed with it."""
    while inner := getattr(error, "dependent_exceptions_tids", None):  # Parsl's DependencyError, JoinError
        error = inner[0][0]
    return error
