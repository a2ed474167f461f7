"""What the jobs of one executor are, once all is settled that a profile says of them."""

from __future__ import annotations

import dataclasses
import re
from typing import Literal

from hpcagent.errors import BadInput, nearest
from hpcagent.sites.profile import Profile
from hpcagent.sites.tables import BlockSettings, ExecutorProfile, NodeType, QueueLimits, walltime_s

__all__ = ["Block", "block_of", "project_of", "worker_launcher_of"]


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


def project_of(block: Block) -> str | None:
    """The project that a profile's own directives give its jobs (PBS); None: the default."""
    found = [re.search(r"(?:^|\s)-P\s*(\S+)", words) for words in block.directives]
    return next((word[1] for word in found if word), None)
