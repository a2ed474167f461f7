"""An open site: Parsl running with the executors of a profile."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from pathlib import Path
from types import TracebackType
from typing import Any

from hpcagent.errors import AppFailed, BadInput, SiteFailed, nearest
from hpcagent.sites.profile import ExecutorProfile, Profile, find_profile

__all__ = ["Site", "current_dfk", "current_site", "failure_of", "open_site", "usable_cores"]

_current: Site | None = None  # Parsl itself allows one loaded configuration per process; this is its owner

_INFRASTRUCTURE = {
    "BadStateException",
    "BrokenProcessPool",
    "CommandClientBadError",
    "CommandClientTimeoutError",
    "InterchangeError",
    "ManagerLost",
    "ScalingFailed",
    "SiteFailed",
    "SubmitException",
    "TooManyJobFailuresError",
    "VersionMismatch",
    "WorkerLost",
}


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
        workers: How many tasks run at once, over all executors.
        run_dir: Folder of Parsl's logs for this opening.
        work_dir: Folder for the runs, one below it each. Not made here.
        dfk: Parsl's DataFlowKernel, e.g. for `parsl.python_app(f, data_flow_kernel=site.dfk)`.
    """

    def __init__(self, profile: Profile, *, folder: Path, workers: int, dfk: Any, temporary: bool) -> None:
        self.profile = profile
        self.workers = workers
        self.run_dir = Path(dfk.run_dir)
        self.work_dir = folder / "work"
        self.dfk = dfk
        self._temporary = folder if temporary else None
        self._executors = [dfk.executors[name] for name in profile.executor_names]
        self._owner = os.getpid()
        self._closing = threading.Lock()
        self._closed = False
        atexit.register(self.close)

    def submit(
        self,
        function: Callable[..., Any],
        *args: Any,
        priority: float | None = None,
        executor: str | None = None,
    ) -> Future[Any]:
        """Send `function(*args)` to a worker, without Parsl's bookkeeping for dependencies between tasks.

        Args:
            function: Best a function of an importable module.
            args: Plain data: numbers, strings, lists, dicts. No futures; use a Parsl app for those.
            priority: Smaller goes first; not given goes last.
            executor: Label of an executor of the profile; not given: the first.

        Returns:
            The future of its result. It can't be cancelled: what was sent, runs.

        Raises:
            SiteFailed: The site is closed or has failed.
            BadInput: The profile has no such executor.
        """
        chosen: Future[Any] = self._executor(executor).submit_plain(function, args, priority)
        return chosen

    def _executor(self, label: str | None) -> Any:  # LocalExecutor or Threads
        if label is None:
            return self._executors[0]
        names = self.profile.executor_names
        if label not in names:
            raise BadInput(f"The site {self.profile.name} has no executor {label!r}; {nearest(label, names)}")
        return self._executors[names.index(label)]

    def close(self) -> None:
        """End the workers and all they started, and fail what is outstanding. Again: does nothing."""
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
        try:
            for executor in self._executors:
                executor.fail_outstanding()
            if not self.dfk.cleanup_called:  # a user may have called parsl.dfk().cleanup()
                self.dfk.cleanup()
        finally:
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

    def __enter__(self) -> Site:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"<Site {self.profile.name}, {self.workers} workers, {state}, {self.run_dir}>"


def _launch_nothing(task_record: object) -> None:
    """Stands in for Parsl's launch_if_ready while a site is being closed."""


def open_site(
    profile: str | Path | Profile = "laptop",
    *,
    run_dir: str | Path | None = None,
    workers: int | None = None,
    private: bool = False,
) -> Site:
    """Start Parsl with the executors of a profile. Returns before the workers are up.

    Args:
        profile: A profile's name, its file, or the profile itself.
        run_dir: Folder for Parsl's logs (`parsl/NNN`) and the runs (`work/`); not given: `runs/site-TIME`,
            whose logs are removed when the site is closed, and whose runs are kept (private: a temporary one).
        workers: Tasks at once, in place of the profile's `max_workers_per_node` of its first executor.
        private: False: load it as Parsl's configuration, so that every Parsl app of the process uses it.
            True: keep it apart from Parsl's configuration; any number may be open.

    Returns:
        The open site. Use it as `with open_site(...) as site:`.

    Raises:
        BadInput: The profile is wrong, or Parsl has a configuration already (and `private` is false).
        SiteFailed: Parsl could not be started.

    Example:
        >>> with open_site("threads", private=True) as site:
        ...     site.submit(max, 2, 3).result()
        3
    """
    global _current
    found = find_profile(profile)
    if workers is not None and workers < 1:
        raise BadInput(f"workers={workers}: a site needs at least one worker.", value=workers)
    import parsl  # 0.3 s

    if not private and current_dfk() is not None:
        raise BadInput(
            "Parsl has a configuration in this process already. Use it (call apps as they are), close it "
            "first (site.close() or parsl.dfk().cleanup()), or open this site with private=True."
        )
    temporary = run_dir is None
    folder = Path(run_dir or _own_folder(private)).absolute()
    executors, total = _executors(found, workers)
    config = parsl.Config(
        executors=executors,
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
        dfk = parsl.DataFlowKernel(config) if private else parsl.load(config)
    except BaseException as error:  # also Ctrl-C: what has been started would stay until this process ends
        for executor in executors:
            with contextlib.suppress(Exception):
                executor.shutdown()
        if isinstance(error, OSError):
            raise SiteFailed(f"Parsl could not start the site {found.name}: {error}.") from error
        raise
    site = Site(found, folder=folder, workers=total, dfk=dfk, temporary=temporary)
    if not private:
        _current = site
    return site


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


def _executors(profile: Profile, workers: int | None) -> tuple[list[Any], int]:
    """Return Parsl's executors for the profile, and the tasks that run at once on all of them."""
    from hpcagent.sites.htex import Threads, local_executor

    cores = usable_cores()
    executors: list[Any] = []  # LocalExecutor or Threads
    total = 0
    for index, (label, executor) in enumerate(profile.executors.items()):
        count = workers if workers is not None and index == 0 else _workers(executor, len(cores))
        total += count
        if profile.kind == "threads":
            executors.append(Threads(label=label, max_threads=count))
            continue
        executors.append(
            local_executor(
                label,
                workers=count,
                cores=cores if executor.cpu_affinity == "block" and hasattr(os, "sched_setaffinity") else None,
                cores_per_worker=executor.cores_per_worker,
                prefetch_capacity=executor.prefetch_capacity,
                worker_init=executor.worker_init,
                encrypted=executor.encrypted,
                environment=profile.env,
                preload=executor.preload,
                python=executor.python,
            )
        )
    return executors, total


def workers_of(profile: Profile) -> int:
    """How many tasks a profile runs at once on this machine, over all its executors."""
    return sum(_workers(executor, len(usable_cores())) for executor in profile.executors.values())


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


def failure_of(error: BaseException) -> tuple[str, str, str]:
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
    if isinstance(cause, AppFailed):
        return str(cause.details["kind"]), str(cause.details["name"]), message
    if isinstance(cause, CancelledError):
        return "cancelled", name, message
    if any(base.__name__ in _INFRASTRUCTURE for base in type(cause).__mro__):
        return "infrastructure", name, message
    return "contract", name, message


def _root(error: BaseException) -> BaseException:
    """Return the failure of the app that failed first, where apps that waited for it failed with it."""
    while inner := getattr(error, "dependent_exceptions_tids", None):  # Parsl's DependencyError, JoinError
        error = inner[0][0]
    return error
