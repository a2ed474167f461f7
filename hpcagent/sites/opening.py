"""Opens a site: its profile's executors, and Parsl over them."""

from __future__ import annotations

import contextlib
import dataclasses
import getpass
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcagent.errors import BadInput, SiteFailed
from hpcagent.owners import require_own_links, user_name
from hpcagent.sites.block import block_of
from hpcagent.sites.launch import load_parsl
from hpcagent.sites.limits import most_blocks
from hpcagent.sites.profile import Profile, account_of, check_where
from hpcagent.sites.profiles import find_profile
from hpcagent.sites.schedulers.present import own_job
from hpcagent.sites.script_paths import refuse_unwritable
from hpcagent.sites.several_profiles import Several
from hpcagent.sites.site import Site, current_dfk, make_current, usable_cores, workers_on
from hpcagent.sites.tables import ExecutorProfile
from hpcagent.surroundings import require_working_directory

if TYPE_CHECKING:
    from hpcagent.sites.schedulers.answers import Allocation

__all__ = ["open_site"]


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
        check_where(found, "inside" if inside else "job" if own_job(os.environ) else "login")
    load_parsl()  # 0.3 s
    from parsl.config import Config
    from parsl.dataflow.dflow import DataFlowKernel, DataFlowKernelLoader

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
    notes = _preflight(found) if found.batch and found.kind != "slurm" and not inside else []
    if found.batch:
        executors, counts = _batch_executors(found, workers, folder, charged, allocation)
    elif found.remote:
        executors, counts = _endpoint_executors(found, workers, folder)
    else:
        executors, counts = _executors(found, workers)
    config = Config(
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
            dfk = DataFlowKernel(config) if private else DataFlowKernelLoader.load(config)
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
        make_current(site)
    return site


def _preflight(profile: Profile) -> list[str]:
    """Look whether the scheduler is what answers, before anything is submitted; what the user should know of it.

    TORQUE and Slurm's wrappers have commands of PBS's names; another program is called flux, too.

    Raises:
        SchedulerDown: The commands are not there, or another's.
    """
    from hpcagent.sites.schedulers.registry import scheduler

    asked = scheduler(profile.kind, timeout_s=profile.cmd_timeout_s)
    asked.version()
    known, words = asked.keeps_finished_jobs()
    return [] if known else [words]


def _guessed(profile: Profile, executors: Mapping[str, Any]) -> list[str]:
    """Say where a scheduler that has to be told a number of cores was told one that nobody knows."""
    told = profile.batch and profile.scheduler.wants_cores
    labels = [e for e in executors if told and block_of(profile, e).cpus_per_node is None]
    return [
        f"How many cores a node has is not known ({profile.scheduler.title} does not say, or its "
        "nodes differ): the jobs of the "
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
            f"{profile.scheduler.begins_by}, or let `hpcagent submit` do so."
        )
    began = os.environ.get("HPCAGENT_JOB_STARTED", "")
    if found.ends_at is None and began.isdecimal():  # a job that `hpcagent submit` has made
        lasts_s = min(block_of(profile, label).walltime_s for label in profile.executors)
        found = dataclasses.replace(found, ends_at=float(began) + lasts_s)
    return found


def _batch_executors(
    profile: Profile, workers: int | None, folder: Path, account: str | None, inside: Allocation | None
) -> tuple[dict[str, Any], dict[str, int]]:
    from hpcagent.sites.ledger import Ledger
    from hpcagent.sites.schedulers.registry import scheduler
    from hpcagent.sites.workers.batch_of_profile import batch_executor

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
    from hpcagent.sites.workers.executor import Threads
    from hpcagent.sites.workers.local import local_executor

    cores = usable_cores()
    executors: dict[str, Any] = {}  # LocalExecutor or Threads
    counts: dict[str, int] = {}
    for index, (label, executor) in enumerate(profile.executors.items()):
        count = workers if workers is not None and index == 0 else workers_on(executor, len(cores))
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
