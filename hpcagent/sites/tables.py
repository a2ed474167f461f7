"""The tables of a site profile: what is said of its nodes, queues, jobs, executors, apps and launchers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from hpcagent.errors import BadInput, nearest
from hpcagent.model.base import Record
from hpcagent.model.texts import Line, Lines, Variable, Word, Words
from hpcagent.sites.endpoint_settings import EndpointConfig

__all__ = [
    "WHERE",
    "AppSettings",
    "BlockSettings",
    "CoordinatorSettings",
    "ExecutorProfile",
    "Identify",
    "LauncherSettings",
    "NodeType",
    "Positive",
    "QueueLimits",
    "walltime_s",
]

_AFFINITIES = ("none", "block")
_WALLTIME = re.compile(r"(?:(\d+)-)?(\d+):([0-5]\d):([0-5]\d)\Z")
Positive = Annotated[int, Field(ge=1, le=10**9)]
Where = Literal["login", "job", "inside"]
WHERE: tuple[Where, ...] = ("login", "job", "inside")


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

    where: Annotated[tuple[Where, ...], Field(min_length=1)] = WHERE
    """`login`: on a login node; `job`: in a batch job of its own; `inside`: in the allocation of the workers."""
    note: Lines = ""
    """The rule, in a sentence or two, and where it stands."""


def _directives(value: tuple[str, ...]) -> tuple[str, ...]:
    for line in value:
        if line.startswith("#"):
            raise BadInput(f"directives: {line!r}: leave out {line.split()[0]!r}, which is written for you.")
        if not line.startswith("-"):
            raise BadInput(f"directives: {line!r} is not one option, such as '--gpus-per-node=4'.", value=line)
    return value
