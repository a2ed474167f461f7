"""What a run asks for, held against what the site gives, before anything is submitted.

A batch system says no late and in few words, or never: PBS leaves a job that can never run in its queue, and
Parsl a run that needs more nodes than a block has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from hpcagent.errors import BadInput, nearest
from hpcagent.model.base import build
from hpcagent.model.contract import Resources
from hpcagent.sites.block import Block, block_of
from hpcagent.sites.endpoint_settings import destination
from hpcagent.sites.profile import Profile
from hpcagent.sites.several_profiles import one_site
from hpcagent.sites.tables import QueueLimits, walltime_s

__all__ = ["Checked", "check", "executor_for", "most_blocks", "with_overrides"]


class Checked(NamedTuple):
    """What `check` settled.

    Attributes:
        max_blocks: Blocks at a time, no more than the queue allows a user.
        notes: What was changed, a sentence each.
    """

    max_blocks: int
    notes: tuple[str, ...]


def executor_for(profile: Profile, resources: Resources) -> str:
    """Return the label of the executor that takes runs with these resources.

    Runs of several ranks or nodes go to the first with `mode = "mpi"`, with GPUs to the first of these whose nodes
    have them; runs of one rank with a GPU to the first whose workers have one, else to `mpi`; other runs to the
    first of workers with enough cores, else to the first of workers.

    Raises:
        BadInput: The profile has none for them.

    Example:
        >>> from hpcagent.sites.profiles import find_profile
        >>> executor_for(find_profile("polaris"), Resources(gpus_per_node=1))
        'gpu'
        >>> executor_for(find_profile("polaris"), Resources(nodes=2, ranks_per_node=4))
        'mpi'
    """
    tasks = [label for label, executor in profile.executors.items() if executor.mode == "tasks"]
    mpi = [label for label, executor in profile.executors.items() if executor.mode == "mpi"]
    if resources.nodes > 1 or resources.ranks_per_node > 1:
        if not mpi:
            raise BadInput(
                f"A run of {_size(resources)} needs an executor for MPI, and the site {profile.name} has none "
                f'({", ".join(tasks)}): add to its profile [executors.mpi] with mode = "mpi"{_mpi_there(profile)}.'
            )
        return _with_gpus(profile, mpi, resources.gpus_per_node)
    if resources.gpus_per_node > 0:
        with_gpu = [label for label in tasks if profile.executors[label].available_accelerators]
        if resources.gpus_per_node == 1 and with_gpu:
            return with_gpu[0]
        if not mpi:
            raise BadInput(
                f"A run of {_size(resources)} needs an executor whose workers have a GPU each, or one for MPI, "
                f"and the site {profile.name} has neither ({', '.join(tasks)}): add to its profile "
                "[executors.gpu] with available_accelerators = 4 (the GPUs of a node), or [executors.mpi] with "
                'mode = "mpi".'
            )
        return _with_gpus(profile, mpi, resources.gpus_per_node)
    enough = [t for t in tasks if profile.executors[t].cores_per_worker >= resources.threads_per_rank]
    return (enough or tasks or mpi)[0]


def _mpi_there(profile: Profile) -> str:
    return ", and user_endpoint_config that gives it an engine for MPI there (GlobusMPIEngine)" * profile.remote


def _with_gpus(profile: Profile, labels: Sequence[str], gpus: int) -> str:
    """The first of these executors whose nodes have as many GPUs, as far as the profile says; else the first."""
    if not profile.batch or gpus == 0:
        return labels[0]
    nodes = {label: block_of(profile, label).node for label in labels}
    return next((label for label, node in nodes.items() if node is not None and node.gpus >= gpus), labels[0])


def check(profile: Profile, label: str, resources: Resources) -> Checked:
    """Check that the blocks of an executor are such as its queue takes, and that a run fits into one.

    Args:
        profile: Of the site; one of this machine has no limits to check, one of an endpoint those that it tells.
        label: Of the executor, e.g. from `executor_for`.
        resources: Of a run.

    Raises:
        BadInput: The first thing that does not fit, with both numbers. Nothing was submitted.

    Example:
        >>> from hpcagent.sites.profiles import find_profile
        >>> check(find_profile("polaris"), "workers", Resources()).max_blocks
        1
    """
    if profile.remote:
        for problem in _endpoint(profile, label, resources):
            raise BadInput(problem)
    if not profile.batch:
        return Checked(1, ())
    block = block_of(profile, label)
    for problem in (*_queue(profile, block), *_node(profile, block, resources), *_time(profile, block, resources)):
        raise BadInput(problem)
    return most_blocks(profile, label)


def most_blocks(profile: Profile, label: str) -> Checked:
    """Return how many blocks an executor may have at a time; whether any of them can run, `check` says.

    Raises:
        BadInput: `min_blocks` is more than the queue allows a user.

    Example:
        >>> most_blocks(Profile(name="mine", kind="slurm"), "workers").max_blocks
        1
    """
    block = block_of(profile, label)
    most = block.limits.max_jobs if block.limits else None
    if most is None or block.max_blocks <= most:
        return Checked(block.max_blocks, ())
    takes = f"{_called(profile, block)} takes {most} job(s) of a user at a time"
    if block.min_blocks > most:
        raise BadInput(f"min_blocks = {block.min_blocks} ({profile.name}, executor {label}), but {takes}.")
    return Checked(most, (f"max_blocks is {most} in place of {block.max_blocks}: {takes}.",))


def _queue(profile: Profile, block: Block) -> Iterator[str]:
    limits = block.limits
    if limits is None:
        return
    nodes, queue = block.nodes_per_block, _called(profile, block)
    if nodes < limits.min_nodes:
        yield (
            f"A block of {nodes} node(s) is too small for {queue}, which takes {limits.min_nodes} nodes or more"
            f"{_and_others(profile, block)}. {limits.note}".rstrip()
        )
    if limits.max_nodes is not None and nodes > limits.max_nodes:
        yield (
            f"A block of {nodes} nodes is too large for {queue}, which takes {limits.max_nodes} node(s) at most"
            f"{_and_others(profile, block)}. {limits.note}".rstrip()
        )
    if limits.min_walltime is not None and block.walltime_s < walltime_s(limits.min_walltime):
        yield (
            f"A block's walltime of {block.walltime} is under the {limits.min_walltime} that {queue} wants at "
            f"least. {limits.note}".rstrip()
        )
    longest = limits.walltime_limit(nodes)
    if longest is not None and block.walltime_s > walltime_s(longest):
        size = f" for jobs of {nodes} node(s)" if limits.walltime_by_nodes else ""
        yield (
            f"A block's walltime of {block.walltime} is over the {longest} that {queue} gives{size}"
            f"{_and_others(profile, block)}. {limits.note}".rstrip()
        )


def _node(profile: Profile, block: Block, resources: Resources) -> Iterator[str]:
    node = block.node
    if resources.nodes > block.nodes_per_block:
        yield (
            f"A run of {resources.nodes} nodes does not fit into a block of {block.nodes_per_block} "
            f"({profile.name}, executor {block.label}): give --nodes {resources.nodes} or more, or set "
            "nodes_per_block."
        )
    cores = block.usable_cores
    used = resources.ranks_per_node * resources.threads_per_rank
    if cores is not None and used > cores:
        yield (
            f"{resources.ranks_per_node} rank(s) of {resources.threads_per_rank} thread(s) need {used} cores on a "
            f"node; {_nodes_called(profile, block)} have {cores} usable ones."
        )
    if block.mode == "tasks":
        yield from _task(profile, block, resources)
    if node is None:
        return
    if resources.gpus_per_node > node.gpus:
        yield (
            f"A run with {resources.gpus_per_node} GPU(s) on a node does not fit: {_nodes_called(profile, block)} "
            f"have {node.gpus or 'none'}{_and_others(profile, block) if not node.gpus else ''}."
        )
    gpus = len(block.accelerators)
    if gpus > node.gpus:
        yield (
            f"executors.{block.label}.available_accelerators has {gpus} GPU(s); {_nodes_called(profile, block)} "
            f"have {node.gpus or 'none'}."
        )
    memory = block.mem_per_node_gb or node.memory_gb
    if resources.memory_gb is not None and memory is not None and resources.memory_gb > memory:
        yield (
            f"A run with {resources.memory_gb:g} GB on a node does not fit: {_nodes_called(profile, block)} have "
            f"{memory:g} GB."
        )
    if block.mem_per_node_gb and node.memory_gb and block.mem_per_node_gb > node.memory_gb:
        yield (
            f"mem_per_node_gb = {block.mem_per_node_gb:g} is more than the {node.memory_gb:g} GB of "
            f"{_nodes_called(profile, block)}."
        )


def _endpoint(profile: Profile, label: str, resources: Resources) -> Iterator[str]:
    """What an endpoint would refuse, or wait with for ever, as far as the profile tells.

    `walltime` and `nodes_per_block` are names of the packaged templates; another template's are not known.
    """
    where = f"the executor {label} of {profile.name}"
    config = destination(profile, label).user_endpoint_config
    executor = profile.executors[label]
    if executor.mode == "tasks":
        if resources.nodes > 1 or resources.ranks_per_node > 1:
            yield (
                f"A run of {_size(resources)} does not fit {where}, whose runs have one rank: it needs an "
                'executor with mode = "mpi".'
            )
        if resources.threads_per_rank > executor.cores_per_worker:
            yield (
                f"A run of {resources.threads_per_rank} threads does not fit a worker of {where}, which has "
                f"{executor.cores_per_worker} core(s): if workers have more there, set cores_per_worker in "
                f"[executors.{label}] to what they have."
            )
        gpus = executor.available_accelerators
        most = 1 if gpus else 0
        if resources.gpus_per_node > most:
            yield (
                f"A run with {resources.gpus_per_node} GPU(s) does not fit a worker of {where}, which has "
                f'{most or "none"}: if workers have one there, set available_accelerators, or use mode = "mpi".'
            )
    nodes = config.get("nodes_per_block")
    if isinstance(nodes, int) and resources.nodes > nodes:
        yield (
            f"A run of {resources.nodes} nodes does not fit into jobs of {nodes} on the endpoint of {where}: set "
            "nodes_per_block in its user_endpoint_config."
        )
    longest, wanted = config.get("walltime"), resources.walltime_s
    if isinstance(longest, str) and wanted is not None and _is_walltime(longest) and wanted > walltime_s(longest):
        yield (
            f"A run's walltime_s = {wanted:g} does not fit into jobs with walltime {longest} on the endpoint of "
            f"{where}: give the run less, or its user_endpoint_config more."
        )


def _is_walltime(text: str) -> bool:
    try:
        return walltime_s(text) > 0
    except BadInput:
        return False


def _task(profile: Profile, block: Block, resources: Resources) -> Iterator[str]:
    where = f"the executor {block.label} of {profile.name}"
    if resources.nodes > 1 or resources.ranks_per_node > 1:
        yield f'A run of {_size(resources)} does not fit {where}, whose runs have one rank: it needs mode = "mpi".'
    cores = profile.executors[block.label].cores_per_worker
    if resources.threads_per_rank > cores:
        yield (
            f"A run of {resources.threads_per_rank} threads does not fit a worker of {where}, which has {cores} "
            "core(s): set cores_per_worker."
        )
    gpus = 1 if block.accelerators else 0
    if resources.gpus_per_node > gpus:
        yield (
            f"A run with {resources.gpus_per_node} GPU(s) does not fit a worker of {where}, which has "
            f'{gpus or "none"}: set available_accelerators, or use an executor with mode = "mpi".'
        )


def _time(profile: Profile, block: Block, resources: Resources) -> Iterator[str]:
    usable = block.walltime_s - profile.margin_s
    if usable <= 0:
        yield (
            f"A block's walltime of {block.walltime} leaves no time for runs: the last {profile.margin_s:g} s are "
            "kept free (margin_s)."
        )
    wanted = resources.walltime_s
    if wanted is not None and wanted > usable:
        yield (
            f"A run's walltime_s = {wanted:g} does not fit into a block: walltime {block.walltime} less the last "
            f"{profile.margin_s:g} s (margin_s) is {usable:g} s. Give the run less, or the block more."
        )


def _size(resources: Resources) -> str:
    gpus = f" with {resources.gpus_per_node} GPU(s) each" if resources.gpus_per_node else ""
    return f"{resources.nodes} node(s) x {resources.ranks_per_node} rank(s){gpus}"


def _name(profile: Profile, block: Block) -> str | None:
    return block.queue if profile.queue_means == "partition" else block.qos


def _called(profile: Profile, block: Block) -> str:
    kind = "QOS" if profile.queue_means == "qos" else profile.scheduler.queue_word
    return f"the {kind} {_name(profile, block)} of {profile.name}"


def _nodes_called(profile: Profile, block: Block) -> str:
    return f"nodes of {_called(profile, block)}" if block.limits else f"nodes of {profile.name}"


def _and_others(profile: Profile, block: Block) -> str:
    others = [
        f"{name} ({_takes(limits)})" for name, limits in profile.queues.items() if limits is not block.limits
    ]
    return f"; others: {', '.join(others)}" if others else ""


def _takes(limits: QueueLimits) -> str:
    """Sizes and walltimes of a queue, in brief.

    Example:
        >>> _takes(QueueLimits(node="a100", max_nodes=2, max_walltime="01:00:00"))
        '1-2 nodes, up to 01:00:00'
    """
    most = "" if limits.max_nodes is None else f"{limits.max_nodes}"
    longest = max([*limits.walltime_by_nodes.values(), limits.max_walltime or ""], key=_seconds)
    return f"{limits.min_nodes}-{most} nodes" + (f", up to {longest}" if longest else "")


def _seconds(walltime: str) -> int:
    return walltime_s(walltime) if walltime else 0


def with_overrides(
    profile: Profile,
    *,
    account: str | None = None,
    queue: str | None = None,
    walltime: str | None = None,
    nodes: int | None = None,
    blocks: int | None = None,
) -> Profile:
    """Return the profile with what the command line says in place of what the file says.

    Args:
        profile: As read.
        account: Who is charged.
        queue: Queue of the blocks.
        walltime: Of a block, `HH:MM:SS`.
        nodes: Of a block.
        blocks: Most blocks at a time.

    An executor in a queue of its own with GPUs keeps that queue, with its walltime and nodes, if the queue given
    has none: `--queue` then means the other executors.

    Raises:
        BadInput: The site submits no jobs, the queue is not among its queues, or a value is wrong.

    Example:
        >>> from hpcagent.sites.profiles import find_profile
        >>> changed = with_overrides(find_profile("polaris"), queue="debug-scaling", nodes=4)
        >>> block_of(changed, "gpu").queue, block_of(changed, "mpi").nodes_per_block
        ('debug-scaling', 4)
    """
    wanted: dict[str, Any] = {"queue": queue, "walltime": walltime, "nodes_per_block": nodes, "max_blocks": blocks}
    wanted = {name: value for name, value in wanted.items() if value is not None}
    if account is None and not wanted:
        return profile
    one_site(profile, "--account, --queue, --walltime, --nodes and --blocks are")
    if not profile.batch:
        raise BadInput(
            f'The site {profile.name} has kind = "{profile.kind}", which submits no jobs: account, queue, '
            "walltime, nodes and blocks have no meaning there."
        )
    if queue is not None and profile.queues and queue not in profile.queues:
        raise BadInput(
            f"queue {queue!r} is not among those of the site {profile.name}; {nearest(queue, profile.queues)} "
            f"To use it, add a table [queues.{queue}] to a profile of your own.",
            value=queue,
        )
    data = profile.model_dump(exclude_unset=True)
    data["block"] = {**data.get("block", {}), **wanted}
    if account is not None:
        data["account"] = account
    for label, executor in data.get("executors", {}).items():
        if "block" not in executor:
            continue
        if queue is not None and _needs_its_queue(profile, label, queue):
            before = block_of(profile, label)
            kept = {"walltime": before.walltime, "nodes_per_block": before.nodes_per_block}
            executor["block"] = {**kept, **executor["block"]}
            executor["block"] |= {} if blocks is None else {"max_blocks": blocks}
        else:
            executor["block"] = {name: wanted.get(name, value) for name, value in executor["block"].items()}
    return build(Profile, data, where=f"the site {profile.name} with the command line's options")


def _needs_its_queue(profile: Profile, label: str, other: str) -> bool:
    own = profile.queues.get(profile.executors[label].block.queue or "")
    limits = profile.queues.get(other)
    if own is None or limits is None:
        return False
    return profile.nodes[own.node].gpus > 0 and profile.nodes[limits.node].gpus == 0
