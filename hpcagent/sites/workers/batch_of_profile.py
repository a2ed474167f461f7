"""The executor of a site with a batch system, made of its profile: nodes, workers on them, addresses, provider."""

from __future__ import annotations

import dataclasses
import json
import math
import shlex
import time
import uuid
from collections.abc import Sequence
from typing import Any

import psutil
from parsl.addresses import address_by_interface
from parsl.executors.high_throughput.manager_selector import RandomManagerSelector

from hpcagent.errors import BadInput
from hpcagent.lifeline import node_name
from hpcagent.sites.block import Block, block_of, worker_launcher_of
from hpcagent.sites.launchers import NodeWorkers, SrunWorkers, worker_launcher
from hpcagent.sites.ledger import Ledger
from hpcagent.sites.profile import Profile
from hpcagent.sites.schedulers.answers import Allocation, NodeShape
from hpcagent.sites.schedulers.base import Scheduler, SchedulerDown
from hpcagent.sites.tables import ExecutorProfile
from hpcagent.sites.workers.batch import BatchExecutor
from hpcagent.sites.workers.inside_blocks import InsideBlocks

__all__ = ["addresses_of", "batch_executor", "cores_of", "provider_of"]

_MOST_MPI_RUNS = 64
"""Runs at once in a block of mode mpi, where the profile does not say: each holds a small Python process."""


def batch_executor(
    profile: Profile,
    label: str,
    *,
    scheduler: Scheduler,
    ledger: Ledger,
    account: str | None,
    workers: int | None = None,
    max_blocks: int | None = None,
    inside: Allocation | None = None,
) -> BatchExecutor:
    """Make the executor of a site with a batch system.

    Args:
        profile: The site's.
        label: Of the executor in the profile.
        scheduler: Answers how jobs stand.
        ledger: Where every job is written down.
        account: Who is charged.
        workers: Runs at once on a node (mode tasks) or in a block (mpi), in place of what the profile says.
        max_blocks: Blocks at a time, in place of what the profile says.
        inside: The allocation whose nodes are to be used; None: jobs are submitted.
    """
    settings = profile.executors[label]
    block = _fitted(profile, block_of(profile, label), inside)
    cores = cores_of(block, scheduler, inside)
    shapes = _shapes(block, inside)
    if inside is not None:
        provider = _inside_provider(profile, block, inside)
    else:
        if block.cpus_per_node is None:  # PBS has to be told
            block = dataclasses.replace(block, cpus_per_node=cores)
        provider = provider_of(profile, block, account, settings.worker_init, settings.cores_per_worker)
        provider.prepare(
            scheduler,
            ledger,
            poll_s=profile.poll_s,
            site=profile.name,
            executor=label,
            nodes=block.nodes_per_block,
            walltime_s=block.walltime_s,
        )
    counts = _workers_on(block, settings, shapes, cores, workers)
    count = max(counts)
    addresses = addresses_of(profile)
    executor = BatchExecutor(
        label=label,
        provider=provider,
        address=addresses[0] if len(addresses) == 1 else "0.0.0.0",  # Parsl's default asks the world for it
        max_workers_per_node=count,
        cores_per_worker=1e-6,
        prefetch_capacity=settings.prefetch_capacity,
        heartbeat_period=max(1, int(profile.heartbeat_s / 15)),
        heartbeat_threshold=max(2, int(profile.heartbeat_s)),
        poll_period=100,
        encrypted=settings.encrypted,
        manager_selector=RandomManagerSelector(),
    )
    executor.block = block
    executor.addresses = addresses
    executor.max_blocks = 1 if inside is not None else (max_blocks or block.max_blocks)
    executor.submit_retries = profile.submit_retries
    executor.slots = sum(counts)
    executor.shapes = shapes
    executor.unused_nodes = 0 if inside is None else len(inside.nodes) - block.nodes_per_block
    executor.hosts_cores = cores
    executor.hosts_gpus = block.node.gpus if block.node else 0
    executor.python = settings.python
    executor.mark = uuid.uuid4().hex
    if isinstance(provider, InsideBlocks):
        provider.mark = executor.mark
    executor.pool_arguments = [
        f"--preload={','.join(settings.preload)}",
        f"--max_workers_per_node={count}",
        *_differing(shapes, counts),
        *_pinning(block, settings.cores_per_worker, alike=len({node.cores for node in shapes}) < 2),
        *_places(profile, block),
        *_time(profile, block, inside),
    ]
    return executor


def _fitted(profile: Profile, block: Block, inside: Allocation | None) -> Block:
    """Inside an allocation a block is what there is, and its workers are started as on so many nodes."""
    if inside is None:
        return block
    launcher = worker_launcher_of(profile, block.label, len(inside.nodes))
    first_only = launcher == "single" and block.mode == "tasks"
    left = math.inf if inside.ends_at is None else max(60.0, inside.ends_at - time.time())
    return dataclasses.replace(
        block,
        nodes_per_block=1 if first_only else len(inside.nodes),
        worker_launcher=launcher,
        min_blocks=0,
        max_blocks=1,
        walltime_s=int(min(left, 10 * 365 * 86400)),
        max_idletime=math.inf,
    )


def _shapes(block: Block, inside: Allocation | None) -> tuple[NodeShape, ...]:
    """The nodes of an allocation with the cores that runs may use there; none outside of one."""
    if inside is None:
        return ()
    most = block.usable_cores
    return tuple(
        dataclasses.replace(node, cores=min(node.cores, most or node.cores))
        for node in inside.nodes[: block.nodes_per_block]
    )


def _workers_on(
    block: Block, settings: ExecutorProfile, shapes: Sequence[NodeShape], cores: int, asked: int | None
) -> list[int]:
    """Runs at once on each node of a block (mode tasks), or in all of it (mpi).

    Raises:
        BadInput: A node of the allocation has fewer cores than one worker takes.
    """
    each = settings.cores_per_worker
    if block.mode == "mpi":
        whole = sum(node.cores for node in shapes) if shapes else block.nodes_per_block * cores
        return [asked or block.max_workers_per_node or min(_MOST_MPI_RUNS, whole)]
    told = asked or (
        block.max_workers_per_node if not shapes or block.accelerators else settings.max_workers_per_node
    )
    if told:
        return [told] * block.nodes_per_block
    small = next((node for node in shapes if node.cores < each), None)
    if small is not None:
        raise BadInput(
            f"inside: a worker of the executor {block.label} takes {each} cores (cores_per_worker), but the node "
            f"{small.host} of this job has {small.cores} for it. Ask for more cores on each node, or change the "
            "profile.",
            value=each,
        )
    return [max(1, node.cores // each) for node in shapes] or [max(1, cores // each)] * block.nodes_per_block


def _differing(shapes: Sequence[NodeShape], counts: Sequence[int]) -> list[str]:
    """What tells each manager how many workers its node gets, where that is not the same for all."""
    if len(set(counts)) < 2:
        return []
    by_host = {node.host.partition(".")[0]: count for node, count in zip(shapes, counts, strict=True)}
    return [f"--workers_of={json.dumps(by_host)}"]


def cores_of(block: Block, scheduler: Scheduler, inside: Allocation | None) -> int:
    """Cores of a node: as the profile says, as the allocation is, or as the scheduler tells."""
    if inside is not None:
        fewest = min(node.cores for node in inside.nodes)
        return min(fewest, block.usable_cores or fewest)
    if block.usable_cores is not None:
        return block.usable_cores
    try:
        queues = {queue.name: queue for queue in scheduler.queues()}
    except SchedulerDown:
        return 1
    chosen = queues.get(block.queue or "") or next((q for q in queues.values() if q.default), None)
    return (chosen.cores if chosen else None) or 1


def _pinning(block: Block, cores_per_worker: int, *, alike: bool = True) -> list[str]:
    arguments = [f"--threads={cores_per_worker}"]
    if block.usable_cores:
        arguments.append(f"--node_cores={block.usable_cores}")
    if block.mode == "tasks":
        if block.cpu_affinity.startswith("list:"):
            arguments.append(f"--cores={block.cpu_affinity}")
        elif block.cpu_affinity == "block" and alike:  # a launcher hands on what the first node says of its cores
            arguments.append("--cores=auto")
        if block.accelerators:
            arguments += ["--available-accelerators", *block.accelerators]
    return arguments


def _places(profile: Profile, block: Block) -> list[str]:
    if block.mode != "mpi":
        return []
    gpus = block.node.accelerator_ids if block.node else ()
    return [f"--hosts={profile.kind}", f"--gpus={','.join(gpus)}"]


def _time(profile: Profile, block: Block, inside: Allocation | None) -> list[str]:
    if inside is not None:
        return [] if inside.ends_at is None else [f"--ends_at={inside.ends_at - profile.margin_s}"]
    return [f"--lasts_s={block.walltime_s - profile.margin_s}"]


def addresses_of(profile: Profile) -> list[str]:
    """Where workers reach the coordinator: as the profile says, or any of this machine's networks."""
    if profile.address:
        return [profile.address]
    found = []
    for interface in profile.interface:
        try:
            found.append(address_by_interface(interface))
        except OSError:
            continue  # profiles name what either kind of node may have
    if found:
        return found
    for name, entries in psutil.net_if_addrs().items():
        if name != "lo":
            found += [e.address for e in entries if e.family.name == "AF_INET"]
    return found or ["127.0.0.1"]


def _launcher(profile: Profile, block: Block) -> Any:  # Parsl's Launcher
    kind = "single" if block.mode == "mpi" else block.worker_launcher
    return worker_launcher(kind, profile.scheduler, bind_cmd=block.bind_cmd, overrides=block.overrides)


def _worker_init(profile: Profile, block: Block, worker_init: str, cores_per_worker: int) -> str:
    """Shell lines before the workers: when the job began, threads, the site's environment, the user's lines."""
    threads = "1" if block.mode == "mpi" else str(cores_per_worker)
    limits = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), threads)
    lines = ["export HPCAGENT_JOB_STARTED=$(date +%s)"]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in {**limits, **profile.env}.items()]
    return "\n".join([*lines, worker_init])


def provider_of(
    profile: Profile, block: Block, account: str | None, worker_init: str, cores_per_worker: int
) -> Any:
    """Parsl's provider of jobs for a block of a profile."""
    common: dict[str, Any] = {
        "account": account,
        "nodes_per_block": block.nodes_per_block,
        "init_blocks": 0,
        "min_blocks": 0,
        "max_blocks": block.max_blocks,
        "walltime": block.walltime,
        "worker_init": _worker_init(profile, block, worker_init, cores_per_worker),
        "launcher": _launcher(profile, block),
        "cmd_timeout": int(profile.cmd_timeout_s),
    }
    if profile.kind == "slurm":
        from hpcagent.sites.workers.slurm_blocks import SlurmBlocks

        return SlurmBlocks(
            partition=block.queue,
            qos=block.qos,
            constraint=block.constraint,
            cores_per_node=None if block.exclusive else block.cpus_per_node,
            mem_per_node=math.ceil(block.mem_per_node_gb) if block.mem_per_node_gb else None,
            exclusive=block.exclusive,
            # A job that is queued again by itself would come back without anyone to work for.
            scheduler_options="\n".join(f"#SBATCH {words}" for words in ("--no-requeue", *block.directives)),
            **common,
        )
    if profile.kind != "pbs":
        from hpcagent.sites.workers.own_blocks import OwnBlocks

        made = OwnBlocks(**common)
        made.asks(profile.scheduler(timeout_s=profile.cmd_timeout_s), block)
        return made
    from hpcagent.sites.workers.pbs_blocks import PbsBlocks

    return PbsBlocks(
        queue=block.queue,
        select_options=block.select_options,
        cpus_per_node=block.cpus_per_node or 1,
        scheduler_options="\n".join(f"#PBS {words}" for words in ("-r n", *block.directives)),
        **common,
    )


def _inside_provider(profile: Profile, block: Block, inside: Allocation) -> InsideBlocks:
    settings = profile.executors[block.label]
    launcher = _launcher(profile, block)
    if not isinstance(launcher, NodeWorkers) and profile.kind == "slurm" and not _on_a_node_of(inside):
        launcher = SrunWorkers()  # salloc leaves its shell on the login node
        launcher.hosts = [inside.nodes[0].host]
    elif isinstance(launcher, NodeWorkers) and not isinstance(launcher, SrunWorkers):
        launcher.hosts = [node.host for node in inside.nodes]
    provider = InsideBlocks(
        init_blocks=0,
        max_blocks=1,
        nodes_per_block=block.nodes_per_block,
        worker_init=_worker_init(profile, block, settings.worker_init, settings.cores_per_worker),
        launcher=launcher,
    )
    provider.allocation = inside.job_id
    return provider


def _on_a_node_of(inside: Allocation) -> bool:
    return node_name().partition(".")[0] in {node.host.partition(".")[0] for node in inside.nodes}
