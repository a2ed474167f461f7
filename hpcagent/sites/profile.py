"""A site profile: a TOML file that says where runs happen, with Parsl's own keys where they are Parsl's."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from hpcagent.errors import BadInput, nearest
from hpcagent.model.base import Record
from hpcagent.model.texts import Line, Lines, Name, Variable, Word, Words, word
from hpcagent.moved import moved
from hpcagent.sites.endpoint_settings import (
    ENDPOINT_ONLY,
    ENDPOINT_REQUIRED,
    EXECUTOR_KEYS,
    NOT_ON_ENDPOINTS,
    ControlSettings,
    EndpointConfig,
    EndpointId,
    RemoteFolder,
    TransferSettings,
)
from hpcagent.sites.schedulers.base import SPECIAL, Scheduler
from hpcagent.sites.schedulers.registry import is_scheduler, scheduler_class, scheduler_kinds

__all__ = [
    "BATCH_ONLY",
    "BUILT_IN_LAUNCHERS",
    "AppSettings",
    "Block",
    "BlockSettings",
    "CoordinatorSettings",
    "ExecutorProfile",
    "Identify",
    "LauncherSettings",
    "NodeType",
    "Profile",
    "ProfileEntry",
    "QueueLimits",
    "account_of",
    "block_of",
    "check_where",
    "walltime_s",
    "worker_launcher_of",
]

BUILT_IN_LAUNCHERS = ("srun", "mpiexec", "hydra", "openmpi", "parsl_mpi", "ibrun")
"""Ways to start MPI programs that every profile may name; `hpcagent.apps.launch` has their words."""

_APPS = ("espresso", "gpaw", "lammps", "mace", "packmol", "pyscf", "synthetic", "tblite", "thermo", "vasp")
_AFFINITIES = ("none", "block")
_LAUNCHER_OF = {
    "local": "hydra",
    "threads": "hydra",
    "globus_compute": "parsl_mpi",
}
_WALLTIME = re.compile(r"(?:(\d+)-)?(\d+):([0-5]\d):([0-5]\d)\Z")

BATCH_ONLY = (
    "account",
    "account_required",
    "account_hint",
    "interface",
    "address",
    "nodes",
    "queues",
    "queue_means",
    "block",
    "filesystems",
    "poll_s",
    "heartbeat_s",
    "cmd_timeout_s",
    "submit_retries",
    "margin_s",
    "coordinator",
)
"""Keys that only batch systems know."""

NO_SCHEDULER = ("local", "threads", "globus_compute")
"""Kinds of sites that submit no jobs."""


def _known_kind(kind: str) -> str:
    if kind not in NO_SCHEDULER and not is_scheduler(kind):
        known = (*NO_SCHEDULER, *scheduler_kinds())
        raise BadInput(
            f"kind = {kind!r} is not known; {nearest(kind, known)} A package offers a scheduler of its own by an "
            "entry point in the group hpcagent.schedulers.",
            value=kind,
        )
    return kind


def _kinds_in_words(kinds: Sequence[str]) -> str:
    quoted = [f'"{kind}"' for kind in kinds]
    return f"{', '.join(quoted[:-1])} or {quoted[-1]}" if len(quoted) > 1 else "".join(quoted)


Kind = Annotated[str, AfterValidator(_known_kind)]
Positive = Annotated[int, Field(ge=1, le=10**9)]
Where = Literal["login", "job", "inside"]
_WHERE: tuple[Where, ...] = ("login", "job", "inside")


def walltime_s(text: str) -> int:
    """Read a walltime.

    Args:
        text: `HH:MM:SS` or `D-HH:MM:SS`. Two numbers are refused: Slurm and PBS read `1:30` as 90 seconds,
            people as 90 minutes.

    Returns:
        Seconds, more than 0.

    Raises:
        BadInput: It is neither, or no time at all.

    Example:
        >>> walltime_s("01:30:00"), walltime_s("2-00:00:00")
        (5400, 172800)
    """
    found = _WALLTIME.match(text)
    if found is None:
        raise BadInput(
            f"walltime {text!r} is not HH:MM:SS or D-HH:MM:SS; one hour is '01:00:00', two days '2-00:00:00'.",
            value=text,
        )
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    total = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    if total == 0:
        raise BadInput(f"walltime {text!r} is no time at all; one hour is '01:00:00'.", value=text)
    return total


class AppSettings(Record):
    """What a site says of one app.

    Example:
        >>> AppSettings(command=("lmp_frontera",), launcher="ibrun").env
        {}
    """

    command: tuple[Line, ...] | None = None
    """The command that starts the program on this site, word by word; not given: the app looks for one."""
    launcher: Word | None = None
    """How MPI runs of this app are started, if not as the site's others."""
    env: dict[Variable, Line] = Field(default_factory=dict)
    """Extra environment of the program."""


class LauncherSettings(Record):
    """A way to start MPI programs, beside the built-in ones.

    Example:
        >>> LauncherSettings(command=("ibrun", "-n", "{ranks}")).command[0]
        'ibrun'
    """

    command: Annotated[tuple[Line, ...], Field(min_length=1)]
    """Words before the program's own, with fields in braces, e.g. `{ranks}`; see below."""


class NodeType(Record):
    """A kind of node, as its owner describes it.

    Example:
        >>> NodeType(cores=32, gpus=4).accelerator_ids
        ('0', '1', '2', '3')
    """

    cores: Positive
    """Physical cores of a node that jobs may use."""
    threads_per_core: Positive = 1
    """Hardware threads of a core, as the scheduler counts them."""
    memory_gb: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Memory of a node."""
    gpus: Annotated[int, Field(ge=0, le=10**9)] = 0
    """GPUs of a node, counted as the runs see them: GCDs, tiles."""
    gpu_kind: Line = ""
    """Which GPU, e.g. `a100`."""
    gpu_env: Variable = "CUDA_VISIBLE_DEVICES"
    """The variable that shows a run its GPU."""
    accelerators: tuple[Word, ...] = ()
    """Ids of the GPUs in the order of the workers; not given: 0, 1, 2 …"""
    cpu_affinity: Word = ""
    """Cores of the worker of each GPU, in Parsl's syntax: `list:0-7:8-15`."""

    @property
    def accelerator_ids(self) -> tuple[str, ...]:
        """Ids of the GPUs in the order of the workers."""
        return self.accelerators or tuple(str(i) for i in range(self.gpus))

    @model_validator(mode="after")
    def _ids_are_as_many_as_gpus(self) -> NodeType:
        if self.accelerators and len(self.accelerators) != self.gpus:
            raise BadInput(f"accelerators has {len(self.accelerators)} ids, but gpus = {self.gpus}.")
        return self

    @field_validator("cpu_affinity")
    @classmethod
    def _a_list(cls, value: str) -> str:
        if value and not value.startswith("list:"):
            raise BadInput(f"cpu_affinity = {value!r}: a node type's begins with 'list:'.", value=value)
        return value


class QueueLimits(Record):
    """What a queue (PBS), partition or QOS (Slurm) takes.

    Example:
        >>> prod = QueueLimits(node="a100", min_nodes=10, walltime_by_nodes={24: "03:00:00", 99: "06:00:00"})
        >>> prod.walltime_limit(10), prod.walltime_limit(25), prod.walltime_limit(100)
        ('03:00:00', '06:00:00', None)
    """

    node: Line
    """Its nodes: a name in `[nodes]`."""
    min_nodes: Positive = 1
    """Nodes a job must have."""
    max_nodes: Positive | None = None
    """Nodes a job may have."""
    min_walltime: Word | None = None
    """The shortest walltime."""
    max_walltime: Word | None = None
    """The longest walltime."""
    walltime_by_nodes: dict[Positive, Word] = Field(default_factory=dict)
    """The longest walltime by size: number of nodes = walltime of jobs with up to that many."""
    max_jobs: Positive | None = None
    """Jobs of one user at a time; running and waiting, where the site counts both."""
    directives: tuple[Line, ...] = ()
    """Added to the `directives` of jobs in this queue."""
    note: Lines = ""
    """Shown with an error about this queue."""

    @field_validator("directives")
    @classmethod
    def _without_prefix(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return _directives(value)

    @model_validator(mode="after")
    def _consistent(self) -> QueueLimits:
        for text in (self.min_walltime, self.max_walltime, *self.walltime_by_nodes.values()):
            if text is not None:
                walltime_s(text)
        if self.max_nodes is not None and self.max_nodes < self.min_nodes:
            raise BadInput(f"max_nodes = {self.max_nodes} is less than min_nodes = {self.min_nodes}.")
        return self

    def walltime_limit(self, nodes: int) -> str | None:
        """The longest walltime of a job with so many nodes, as it is written in the profile."""
        fitting = [size for size in self.walltime_by_nodes if size >= nodes]
        return self.walltime_by_nodes[min(fitting)] if fitting else self.max_walltime


class BlockSettings(Record):
    """A block: one job of the batch system, in which workers wait for runs.

    Example:
        >>> BlockSettings(queue="debug").walltime
        '01:00:00'
    """

    queue: Word | None = None
    """The queue, or Slurm's partition (QOS with `queue_means = "qos"`); not given: the scheduler's default."""
    nodes_per_block: Positive = 1
    """Nodes of a block."""
    min_blocks: Annotated[int, Field(ge=0, le=10**9)] = 0
    """Blocks that are kept when there is nothing to do."""
    max_blocks: Positive = 1
    """Blocks at a time; no more than the queue allows a user."""
    walltime: Word = "01:00:00"
    """Walltime of a block, `HH:MM:SS` or `D-HH:MM:SS`. Slurm gets whole minutes: the seconds are dropped."""
    max_idletime: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 60.0
    """A block that had nothing to do for so long is given back."""
    qos: Word | None = None
    """Slurm's quality of service."""
    constraint: Word | None = None
    """Slurm's constraint on the nodes, e.g. `cpu`."""
    directives: tuple[Line, ...] = ()
    """Further options of the job, one each, without `#SBATCH` or `#PBS`: `--gpus-per-node=4`."""
    select_options: Word = ""
    """PBS: added to `-l select=N:ncpus=M`, e.g. `ngpus=4`."""
    exclusive: bool | None = None
    """Slurm: whole nodes; not given: whole nodes unless `cores_per_node` is given."""
    mem_per_node_gb: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Slurm: memory asked for on each node; not given: the scheduler's default."""
    cores_per_node: Positive | None = None
    """Physical cores asked for on each node; not given: the node type's."""
    overrides: Words = ""
    """Words added to the command that starts the workers on the nodes, e.g. `-c 128`. A `$` in them stays one."""
    bind_cmd: Words = "--cpu-bind"
    """PBS: the option of mpiexec that keeps the workers unbound."""
    worker_launcher: Word = ""
    """What starts the workers on the nodes: `single` (on the first node only), `mpiexec`, `ssh`, and a scheduler's
    own: `srun`, `pbsdsh`, `flux`. Not given: srun on Slurm, flux on Flux, mpiexec on several nodes of PBS."""

    @field_validator("walltime")
    @classmethod
    def _a_walltime(cls, value: str) -> str:
        walltime_s(value)
        return value

    @field_validator("directives")
    @classmethod
    def _without_prefix(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return _directives(value)


class ExecutorProfile(Record):
    """One executor of a site: a kind of workers. The keys are Parsl's, with Parsl's meaning.

    Example:
        >>> ExecutorProfile(cores_per_worker=2).cpu_affinity
        'block'
    """

    mode: Literal["tasks", "mpi"] = "tasks"
    """`tasks`: workers on every node, one run each; `mpi`: runs of several ranks, over the nodes of a block."""
    max_workers_per_node: Positive | None = None
    """Tasks at once; not given: the usable cores divided by `cores_per_worker`."""
    cores_per_worker: Positive = 1
    """Cores of one worker, and the threads OpenMP and BLAS libraries get there."""
    cpu_affinity: Word = "block"
    """`block`: each worker, and what it starts, is pinned to cores of its own; `none`: not pinned."""
    available_accelerators: Annotated[int, Field(ge=0, le=10**9)] | tuple[Word, ...] = ()
    """GPUs for the workers: one worker for each, which sees no other. A number, or their ids."""
    prefetch_capacity: Annotated[int, Field(ge=0, le=10**9)] = 0
    """Tasks that may wait beside the workers of a node. Not given, on this machine: one for each worker."""
    worker_init: Lines = ""
    """Shell lines run before the workers start, e.g. `module load lammps`."""
    python: Line | None = None
    """Interpreter of the workers; not given: the one that opens the site."""
    encrypted: bool = True
    """Encrypt between opener and workers. Loopback ports are open to every user of the machine."""
    preload: tuple[Word, ...] = ("numpy", "hpcagent.apps.run")
    """Modules to import once for all workers, before the first task; one that is missing is skipped."""
    block: BlockSettings = BlockSettings()
    """Keys of `[block]` that are other for this executor."""
    user_endpoint_config: EndpointConfig = Field(default_factory=dict)
    """On an endpoint: values of its template that are other for this executor."""

    @field_validator("cpu_affinity")
    @classmethod
    def _known_affinity(cls, value: str) -> str:
        if value not in _AFFINITIES and not value.startswith("list:"):
            raise BadInput(
                f"cpu_affinity = {value!r} is not known; {nearest(value, _AFFINITIES)} "
                "A list of cores for each worker begins with 'list:'.",
                value=value,
            )
        return value

    @model_validator(mode="after")
    def _mpi_pins_nothing(self) -> ExecutorProfile:
        useless = self.model_fields_set & {"cores_per_worker", "available_accelerators", "cpu_affinity"}
        if self.mode == "mpi" and useless:
            raise BadInput(
                f'{", ".join(sorted(useless))} has no meaning with mode = "mpi": ranks, threads and GPUs are '
                "what a run's resources say, and the launcher places them."
            )
        return self


class Identify(Record):
    """By what `auto` knows that it is on this site: all variables of `env`, or one of the host names.

    Example:
        >>> Identify(env={"NERSC_HOST": "perlmutter"}).matches({"NERSC_HOST": "perlmutter"}, "login01")
        True
    """

    env: dict[Variable, Line] = Field(default_factory=dict)
    """Environment variables with a pattern (`*`, `?`) of their value."""
    hostname: tuple[Word, ...] = ()
    """Patterns of the full host name, e.g. `*.frontera.tacc.utexas.edu`."""

    def matches(self, environ: Mapping[str, str], hostname: str) -> bool:
        """Whether these are the environment and full name of a host of the site."""
        by_env = [name in environ and fnmatchcase(environ[name], glob) for name, glob in self.env.items()]
        return bool(by_env and all(by_env)) or any(fnmatchcase(hostname, glob) for glob in self.hostname)


class CoordinatorSettings(Record):
    """Where the process that suggests and submits may run, by the rules of the site.

    Example:
        >>> CoordinatorSettings().where
        ('login', 'job', 'inside')
    """

    where: Annotated[tuple[Where, ...], Field(min_length=1)] = _WHERE
    """`login`: on a login node; `job`: in a batch job of its own; `inside`: in the allocation of the workers."""
    note: Lines = ""
    """The rule, in a sentence or two, and where it stands."""


class Profile(Record):
    """Where runs happen, as one TOML file says it. `find_profile` reads one.

    Example:
        >>> Profile(name="mine", kind="threads").executor_names
        ('workers',)
    """

    name: Name
    """What the site is called, in messages and records."""
    description: Lines = ""
    """One line for `hpcagent sites`."""
    kind: Kind
    """`local`: processes of this machine; `threads`: of the opener; `slurm`, `pbs`, `flux`, and what packages
    offer as `hpcagent.schedulers`: jobs of a batch system; `globus_compute`: an endpoint on another machine."""
    executors: dict[Line, ExecutorProfile] = Field(default_factory=lambda: {"workers": ExecutorProfile()})
    """One table per executor, by label. A run goes to the first that suits its resources."""
    env: dict[Variable, Line] = Field(default_factory=dict)
    """Extra environment of the workers."""
    apps: dict[Line, AppSettings] = Field(default_factory=dict)
    """One table per app, by name, e.g. `[apps.lammps]`."""
    launcher: Word = ""
    """How MPI programs are started; else srun on Slurm, mpiexec on PBS and Flux, parsl_mpi on
    endpoints, hydra here."""
    launchers: dict[Word, LauncherSettings] = Field(default_factory=dict)
    """Further ways to start MPI programs, by name."""
    node_cores: Positive | None = None
    """Cores of one node, by which a run on some of them is charged; not given: the usable cores."""
    max_output_mb: Annotated[float, Field(gt=0)] = 64.0
    """Of what a program of a run prints so much is kept: the first part and the end. The run's notes say so."""
    max_read_mb: Annotated[float, Field(gt=0)] = 1000.0
    """A text file of a program (a log) that is larger is not read into memory: the run fails (`FileTooLarge`)."""
    identify: Identify = Identify()
    """By what `--site auto` knows this site."""

    account: Word | None = None
    """The account (project, allocation) that is charged. Never in a packaged profile."""
    account_required: bool = False
    """Whether the site refuses jobs without an account."""
    account_hint: Lines = ""
    """Shown when the account is missing: how accounts look here."""
    filesystems: tuple[Word, ...] = ()
    """PBS: file systems a job needs, for sites that want them named: `-l filesystems=home:eagle`."""
    interface: tuple[Word, ...] = ()
    """Network interfaces by which nodes reach the coordinator; the first that the machine has is taken."""
    address: Word | None = None
    """A fixed address of the coordinator's machine, in place of an interface's."""
    nodes: dict[Line, NodeType] = Field(default_factory=dict)
    """One table per kind of node."""
    queues: dict[Word, QueueLimits] = Field(default_factory=dict)
    """One table per queue with what it takes; if there are any, no other queue is accepted."""
    queue_means: Literal["partition", "qos"] = "partition"
    """Slurm: what a queue is here."""
    block: BlockSettings = BlockSettings()
    """The jobs in which the workers of all executors run."""
    poll_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 15.0
    """Time between two questions to the scheduler."""
    heartbeat_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 60.0
    """A node that has said nothing for so long is lost."""
    cmd_timeout_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 60.0
    """A command of the scheduler that takes longer has failed."""
    submit_retries: Annotated[int, Field(ge=0, le=10**9)] = 5
    """How often a submission is repeated whose refusal does not say whether it passes; one that does (a limit of
    jobs, a scheduler that is away) is waited for."""
    margin_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 60.0
    """At the end of a block, time in which nothing is to be running any more."""
    coordinator: CoordinatorSettings = CoordinatorSettings()
    """Where the coordinator may run."""

    endpoint_id: EndpointId = ""
    """The endpoint's UUID."""
    work_dir: RemoteFolder = ""
    """The folder on the endpoint for runs and inputs: absolute, or `~/…`. Each campaign gets one in it."""
    runs_at_once: Positive = 1
    """How many runs of one core go at once there, on each executor: the workers of a node times the nodes."""
    amqp_port: Literal[443, 5671, 5672] | None = None
    """Port on which results are heard; not given: the service's choice, 443."""
    at_close: Literal["cancel", "leave"] = "cancel"
    """What becomes of tasks there when a campaign is stopped (Ctrl-C). One that is killed leaves them: they are
    taken up again by `hpcagent resume`, or ended by `hpcagent reap`."""
    offline_wait_s: Annotated[float, Field(ge=0, le=14 * 86400, allow_inf_nan=False)] = 3600.0
    """How long a campaign waits for an endpoint that is offline before it ends; 0: it ends at once."""
    user_endpoint_config: EndpointConfig = Field(default_factory=dict)
    """Values for the endpoint's template: account, queue, nodes, walltime, by the names that the template has."""
    control: ControlSettings = ControlSettings()
    """Where errands go, so that they do not wait for the batch system."""
    transfer: TransferSettings | None = None
    """Two Globus collections for large files."""

    @model_validator(mode="before")
    @classmethod
    def _old_keys(cls, data: Any) -> Any:  # whatever stood in the file
        if isinstance(data, dict) and "lammps" in data:
            raise BadInput(
                "the key 'lammps' is now a table; write [apps.lammps] at the end of the file, and below it "
                f"command = {_toml_words(data['lammps'])}.",
                value=data["lammps"],
            )
        return data

    @field_validator("executors")
    @classmethod
    def _some_executor(cls, value: dict[str, ExecutorProfile]) -> dict[str, ExecutorProfile]:
        if not value:
            raise BadInput("executors is empty; leave it out, or add a table such as [executors.workers].")
        for label in value:
            if not label.isidentifier():  # it names folders and log files
                raise BadInput(f"executors: {label!r} must be letters, digits and underscores.", value=label)
            if label.startswith("_"):
                raise BadInput(f"executors: {label!r}: a leading underscore is Parsl's own.", value=label)
        return value

    @field_validator("apps")
    @classmethod
    def _no_misspelt_app(cls, value: dict[str, AppSettings]) -> dict[str, AppSettings]:
        """Any name may be an app of the user's own; but `[apps.lamps]` would pass and mean nothing."""
        for name in value:
            if name in _APPS or name.startswith(_APPS):  # lammps2 is no slip
                continue
            close = get_close_matches(name.lower(), _APPS, n=1, cutoff=0.75)
            if close:
                raise BadInput(
                    f"apps.{name}: there is no app {name!r}; did you mean [apps.{close[0]}]? An app of your own "
                    "needs a name less like it.",
                    value=name,
                )
        return value

    @model_validator(mode="after")
    def _threads_have_no_processes(self, info: ValidationInfo) -> Profile:
        if self.kind == "threads":
            for label, executor in self.executors.items():
                useless = executor.model_fields_set - {"max_workers_per_node"}
                if useless:
                    raise BadInput(
                        f"executors.{label}: {', '.join(sorted(useless))} has no meaning for "
                        'kind = "threads", which knows max_workers_per_node only.'
                    )
        return self

    @model_validator(mode="after")
    def _batch_keys_need_a_batch_system(self) -> Profile:
        if self.batch:
            return self
        useless = [name for name in BATCH_ONLY if name in self.model_fields_set]
        if useless:
            raise BadInput(
                f'{", ".join(useless)} has no meaning for kind = "{self.kind}", which submits no jobs; it belongs '
                f"to kind = {_kinds_in_words(scheduler_kinds())}."
            )
        for label, executor in self.executors.items():
            if "block" in executor.model_fields_set:
                raise BadInput(
                    f'executors.{label}: block has no meaning for kind = "{self.kind}", which submits no jobs.'
                )
        return self

    @model_validator(mode="after")
    def _endpoint_keys_need_an_endpoint(self) -> Profile:
        given = self.model_fields_set
        if not self.remote:
            useless = [name for name in ENDPOINT_ONLY if name in given]
            useless += [
                f"executors.{label}.user_endpoint_config"
                for label, executor in self.executors.items()
                if "user_endpoint_config" in executor.model_fields_set
            ]
            if useless:
                raise BadInput(
                    f'{", ".join(useless)} has no meaning for kind = "{self.kind}"; it belongs to '
                    'kind = "globus_compute".'
                )
            return self
        for name, what in ENDPOINT_REQUIRED.items():
            if not getattr(self, name) or name not in given:
                raise BadInput(f'the key {name!r} is missing, which kind = "globus_compute" needs: {what}.')
        for name, hint in NOT_ON_ENDPOINTS.items():
            if name in given:
                raise BadInput(f'{name} has no meaning for kind = "globus_compute": {hint}.')
        for label, executor in self.executors.items():
            useless = sorted(executor.model_fields_set - set(EXECUTOR_KEYS))
            if useless:
                raise BadInput(
                    f'executors.{label}: {", ".join(useless)} has no meaning for kind = "globus_compute": '
                    "workers are the endpoint's, and its template says how they are started. Known here: "
                    f"{', '.join(EXECUTOR_KEYS)}."
                )
        return self

    @model_validator(mode="after")
    def _keys_of_the_other_scheduler(self) -> Profile:
        if not self.batch:
            return self
        its = self.scheduler
        foreign = [name for name in SPECIAL if name not in its.takes]
        given = [(where, name) for where, settings in self._blocks() for name in settings.model_fields_set]
        given += [("", name) for name in self.model_fields_set]
        for where, name in given:
            if name in foreign and (where or name in ("filesystems", "queue_means")):
                instead = f"; {its.instead[name]}" if name in its.instead else ""
                key = f"{where}.{name}" if where else name
                raise BadInput(f'{key} has no meaning for kind = "{self.kind}"{instead}.')
        for where, settings in self._blocks():
            known = launchers_of(its)
            if settings.worker_launcher and settings.worker_launcher not in known:
                raise BadInput(
                    f"{where}.worker_launcher = {settings.worker_launcher!r} is not one of {its.title}; "
                    f"{nearest(settings.worker_launcher, known)}",
                    value=settings.worker_launcher,
                )
            if its.whole_minutes and walltime_s(settings.walltime) < 60:
                # Parsl cuts "00:00:30" to 0 minutes, which Slurm takes for "no limit".
                raise BadInput(
                    f"{where}.walltime = {settings.walltime!r}: on {its.title} a block has one minute at least.",
                    value=settings.walltime,
                )
        return self

    @model_validator(mode="after")
    def _names_are_known(self) -> Profile:
        launchers = (*BUILT_IN_LAUNCHERS, *self.launchers)
        named = {"launcher": self.launcher, **{f"apps.{n}.launcher": a.launcher for n, a in self.apps.items()}}
        for where, name in named.items():
            if name and name not in launchers:
                raise BadInput(
                    f"{where} = {name!r} is not known; {nearest(name, launchers)} "
                    f"Others are defined by a table [launchers.{name}].",
                    value=name,
                )
        if self.launchers:
            from hpcagent.apps.launch import check_template

            for name, launcher in self.launchers.items():
                check_template(launcher.command, f"launchers.{name}")
        for queue, limits in self.queues.items():
            if limits.node not in self.nodes:
                raise BadInput(
                    f"queues.{queue}.node = {limits.node!r} has no table in [nodes]; "
                    f"{nearest(limits.node, self.nodes)}",
                    value=limits.node,
                )
        for where, settings in self._blocks():
            if settings.queue is not None and self.queues and settings.queue not in self.queues:
                raise BadInput(
                    f"{where}.queue = {settings.queue!r} is not among the queues of the profile {self.name!r}; "
                    f"{nearest(settings.queue, self.queues)} To use it, add a table [queues.{settings.queue}].",
                    value=settings.queue,
                )
        return self

    def _blocks(self) -> Iterator[tuple[str, BlockSettings]]:
        yield "block", self.block
        for label, executor in self.executors.items():
            yield f"executors.{label}.block", executor.block

    @property
    def executor_names(self) -> tuple[str, ...]:
        """Labels of the executors, the default one first."""
        return tuple(self.executors)

    @property
    def batch(self) -> bool:
        """Whether the workers run in jobs of a batch system."""
        return self.kind not in NO_SCHEDULER

    @property
    def scheduler(self) -> type[Scheduler]:
        """What is known of its batch system; of a site with one."""
        return scheduler_class(self.kind)

    @property
    def remote(self) -> bool:
        """Whether the workers are an endpoint's, on another machine."""
        return self.kind == "globus_compute"

    @property
    def mpi_launcher(self) -> str:
        """How MPI programs are started here: a built-in name, or one of `launchers`."""
        return self.launcher or (self.scheduler.mpi_launcher if self.batch else _LAUNCHER_OF[self.kind])

    @property
    def lammps(self) -> tuple[str, ...] | None:
        """The command of `[apps.lammps]`."""
        return self.apps["lammps"].command if "lammps" in self.apps else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Block:
    """All that is settled about the jobs of one executor, and about the workers in them. See `block_of`.

    Attributes:
        label: The executor's.
        mode: `tasks` or `mpi`.
        queue: Queue or partition, or None for the scheduler's default.
        qos: Slurm's quality of service.
        limits: What the queue takes, if the profile says it.
        node: Its kind of node, if the profile says it.
        nodes_per_block: Nodes of a block.
        min_blocks: Blocks kept when there is nothing to do.
        max_blocks: Blocks at a time, before the queue's own limit.
        walltime: `HH:MM:SS`, as Parsl wants it.
        walltime_s: Seconds that a block really gets: Slurm's without those over the last whole minute.
        max_idletime: Seconds.
        constraint: Slurm's.
        directives: Options of the job without `#SBATCH`, `#PBS`: the file systems, the block's, the queue's.
        select_options: PBS's.
        exclusive: Whether Slurm is asked for whole nodes.
        mem_per_node_gb: Memory asked for.
        cores_per_node: Physical cores asked for; None: not known.
        usable_cores: Physical cores that runs may use: of those asked for, no more than the node type's.
        cpus_per_node: `cores_per_node` as the scheduler counts: times the hardware threads of a core.
        overrides: Words for the command that starts the workers.
        bind_cmd: PBS's mpiexec's.
        worker_launcher: `single`, `mpiexec`, `ssh` or a scheduler's own.
        accelerators: Ids of the GPUs, one for each worker; none: the workers have no GPU of their own.
        gpu_env: The variable that shows a worker its GPU.
        cpu_affinity: `none`, `block` or Parsl's `list:…`.
        max_workers_per_node: Runs at once on a node (`tasks`) or in a block (`mpi`); None: the node has to say.
    """

    label: str
    mode: Literal["tasks", "mpi"]
    queue: str | None
    qos: str | None
    limits: QueueLimits | None
    node: NodeType | None
    nodes_per_block: int
    min_blocks: int
    max_blocks: int
    walltime: str
    walltime_s: int
    max_idletime: float
    constraint: str | None
    directives: tuple[str, ...]
    select_options: str
    exclusive: bool
    mem_per_node_gb: float | None
    cores_per_node: int | None
    usable_cores: int | None
    cpus_per_node: int | None
    overrides: str
    bind_cmd: str
    worker_launcher: str
    accelerators: tuple[str, ...]
    gpu_env: str
    cpu_affinity: str
    max_workers_per_node: int | None


def block_of(profile: Profile, label: str) -> Block:
    """Settle what the jobs of one executor are: `[block]`, what the executor says over it, its queue and nodes.

    Args:
        profile: Of a site with a batch system.
        label: Of one of its executors.

    Raises:
        BadInput: There is no such executor, or the site has no batch system.

    Example:
        >>> mine = Profile(name="mine", kind="slurm", block=BlockSettings(queue="debug", walltime="00:10:30"))
        >>> block = block_of(mine, "workers")
        >>> block.walltime, block.walltime_s, block.worker_launcher, block.exclusive
        ('00:10:00', 600, 'srun', True)
    """
    if not profile.batch:
        raise BadInput(f'The site {profile.name} has kind = "{profile.kind}", which submits no jobs.')
    if label not in profile.executors:
        raise BadInput(
            f"The site {profile.name} has no executor {label!r}; {nearest(label, profile.executors)}", value=label
        )
    executor = profile.executors[label]
    settings = _settings(profile, executor)
    limits = profile.queues.get(settings.queue or "")
    node = _node_type(profile, limits)
    seconds = walltime_s(settings.walltime)
    if profile.scheduler.whole_minutes:
        seconds -= seconds % 60
    cores = settings.cores_per_node or (node.cores if node else None)
    usable = min(cores, node.cores) if cores and node else cores
    accelerators = _accelerators(executor, node)
    by_qos = profile.queue_means == "qos"
    return Block(
        label=label,
        mode=executor.mode,
        queue=None if by_qos else settings.queue,
        qos=settings.qos or settings.queue if by_qos else settings.qos,
        limits=limits,
        node=node,
        nodes_per_block=settings.nodes_per_block,
        min_blocks=settings.min_blocks,
        max_blocks=max(settings.max_blocks, settings.min_blocks),
        walltime=f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}",
        walltime_s=seconds,
        max_idletime=settings.max_idletime,
        constraint=settings.constraint,
        directives=(
            *([f"-l filesystems={':'.join(profile.filesystems)}"] if profile.filesystems else []),
            *settings.directives,
            *(limits.directives if limits else ()),
        ),
        select_options=settings.select_options,
        exclusive=settings.cores_per_node is None if settings.exclusive is None else settings.exclusive,
        mem_per_node_gb=settings.mem_per_node_gb,
        cores_per_node=cores,
        usable_cores=usable,
        cpus_per_node=cores * (node.threads_per_core if node else 1) if cores else None,
        overrides=settings.overrides,
        bind_cmd=settings.bind_cmd,
        worker_launcher=worker_launcher_of(profile, label, settings.nodes_per_block),
        accelerators=accelerators,
        gpu_env=node.gpu_env if node else "CUDA_VISIBLE_DEVICES",
        cpu_affinity=_cpu_affinity(executor, node, accelerators),
        max_workers_per_node=_workers_per_node(executor, usable, accelerators),
    )


def _node_type(profile: Profile, limits: QueueLimits | None) -> NodeType | None:
    if limits is not None:
        return profile.nodes[limits.node]
    return next(iter(profile.nodes.values())) if len(profile.nodes) == 1 else None


def _accelerators(executor: ExecutorProfile, node: NodeType | None) -> tuple[str, ...]:
    asked = executor.available_accelerators
    if isinstance(asked, tuple):
        return asked
    known = node.accelerator_ids if node else ()
    return known[:asked] if asked <= len(known) else tuple(str(i) for i in range(asked))


def _cpu_affinity(executor: ExecutorProfile, node: NodeType | None, accelerators: tuple[str, ...]) -> str:
    """The executor's; where each worker has a GPU, by default the cores next to it."""
    by_gpu = node is not None and node.cpu_affinity and accelerators == node.accelerator_ids
    if node is not None and by_gpu and "cpu_affinity" not in executor.model_fields_set:
        return node.cpu_affinity
    return executor.cpu_affinity


def _workers_per_node(executor: ExecutorProfile, cores: int | None, accelerators: tuple[str, ...]) -> int | None:
    if executor.max_workers_per_node is not None:
        return min(executor.max_workers_per_node, len(accelerators) or executor.max_workers_per_node)
    if accelerators:
        return len(accelerators)
    if executor.mode == "mpi" or cores is None:
        return None
    return max(1, cores // executor.cores_per_worker)


def _settings(profile: Profile, executor: ExecutorProfile) -> BlockSettings:
    return profile.block.model_copy(
        update={name: getattr(executor.block, name) for name in executor.block.model_fields_set}
    )


def launchers_of(scheduler: type[Scheduler]) -> tuple[str, ...]:
    """What may start the workers on the nodes of a scheduler's jobs.

    Example:
        >>> launchers_of(Profile(name="mine", kind="slurm").scheduler)
        ('single', 'srun', 'mpiexec', 'ssh')
    """
    known = dict.fromkeys(("single", "srun", "mpiexec", "pbsdsh", "ssh"))
    known |= dict.fromkeys([scheduler.own_launcher] if scheduler.own_launcher else [])
    return tuple(name for name in known if name not in scheduler.not_launchers)


def worker_launcher_of(profile: Profile, label: str, nodes: int) -> str:
    """What starts the workers of an executor in a job of so many nodes.

    Args:
        profile: Of a site with a batch system.
        label: Of one of its executors.
        nodes: Of the job: a block's, or those of the job that the coordinator itself is in.

    Example:
        >>> mine = Profile(name="mine", kind="pbs")
        >>> worker_launcher_of(mine, "workers", 1), worker_launcher_of(mine, "workers", 2)
        ('single', 'mpiexec')
    """
    executor = profile.executors[label]
    told = _settings(profile, executor).worker_launcher
    if told:
        return told
    if executor.mode == "mpi":  # one process on the block's first node, which is where the script runs
        return "single"
    return profile.scheduler.own_launcher or ("mpiexec" if nodes > 1 else "single")


def account_of(profile: Profile, given: str | None = None, environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the account that jobs are charged to.

    Args:
        profile: Of the site.
        given: From the command line; goes before the profile's own, which goes before the environment's.
        environ: Variables are `HPCAGENT_ACCOUNT`, then those the scheduler's own commands read.

    Raises:
        BadInput: The site needs an account and none is given.

    Example:
        >>> account_of(Profile(name="mine", kind="slurm"), environ={"SBATCH_ACCOUNT": "m1234"})
        'm1234'
    """
    variables = ("HPCAGENT_ACCOUNT", *profile.scheduler.account_variables) if profile.batch else ()
    found = given or profile.account or next((environ[name] for name in variables if environ.get(name)), None)
    if found is None and profile.account_required:
        set_one = " or ".join(f"${name}" for name in variables)
        raise BadInput(
            f"The site {profile.name} needs an account to charge: give --account NAME, or write "
            f'account = "NAME" in a profile of your own, or set {set_one}. {profile.account_hint}'.rstrip()
        )
    try:
        return None if found is None else word(found)  # an environment has not been checked
    except BadInput as error:
        raise BadInput(f"account: {error.message}", **error.details) from None


def check_where(profile: Profile, where: str) -> None:
    """Refuse a place for the coordinator that the site does not want it in.

    Args:
        profile: Of the site.
        where: `login`, `job` or `inside`.

    Raises:
        BadInput: With the site's rule.

    Example:
        >>> check_where(Profile(name="mine", kind="slurm"), "login")
    """
    allowed = profile.coordinator.where
    if where not in _WHERE:
        raise BadInput(f"where = {where!r} is not known; {nearest(where, _WHERE)}", value=where)
    if where not in allowed:
        raise BadInput(
            f"The site {profile.name} does not let the coordinator run with where = {where!r}; "
            f"allowed: {', '.join(allowed)}. {profile.coordinator.note}".rstrip(),
            value=where,
        )


class ProfileEntry(NamedTuple):
    """One line of `hpcagent sites`."""

    name: str
    source: Path
    description: str


def _directives(value: tuple[str, ...]) -> tuple[str, ...]:
    for line in value:
        if line.startswith("#"):
            raise BadInput(f"directives: {line!r}: leave out {line.split()[0]!r}, which is written for you.")
        if not line.startswith("-"):
            raise BadInput(f"directives: {line!r} is not one option, such as '--gpus-per-node=4'.", value=line)
    return value


def _toml_words(value: Any) -> str:  # whatever stood in the file
    words = value.split() if isinstance(value, str) else value
    return "[" + ", ".join(f'"{word}"' for word in words) + "]" if isinstance(words, list | tuple) else '["lmp"]'


__getattr__ = moved(
    __name__,
    dict.fromkeys(("find_profile", "identify_site", "list_profiles"), "hpcagent.sites.profiles"),
)
