"""A first profile of one's own, from what the scheduler tells and a few answers; and a profile in a few lines."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hpcagent.errors import BadInput, HpcAgentError, nearest
from hpcagent.sites.profile import Profile, block_of, find_profile, identify_site, walltime_s
from hpcagent.sites.schedulers.base import Queue, SchedulerDown, scheduler

__all__ = ["Answers", "proposed", "queue_table", "scheduler_queues", "summary", "write_profile"]

_KINDS = ("local", "pbs", "slurm")
_HOUR_S = 3600.0


class Answers(NamedTuple):
    """What a new profile is written from.

    Attributes:
        name: Of the site, and of its file.
        kind: `slurm`, `pbs` or `local`.
        queue: Queue or partition of the jobs; None: the scheduler's default.
        account: Written down; None: from the environment or the command line.
        walltime: Of a job.
        nodes: Of a job.
        cores: Of a node; None: not known.
        lammps: The command that starts LAMMPS there; None: it is looked for.
        worker_init: A shell line before the workers.
        about: What the scheduler says of the queue.
    """

    name: str
    kind: str
    queue: str | None = None
    account: str | None = None
    walltime: str = "01:00:00"
    nodes: int = 1
    cores: int | None = None
    lammps: str | None = None
    worker_init: str | None = None
    about: Queue | None = None


def proposed(kind: str | None = None, *, queue: str | None = None, queues: Sequence[Queue] = ()) -> Answers:
    """Return sensible answers for this machine.

    Args:
        kind: Of the site; not given: what this machine has.
        queue: The one that is wanted; not given: the default one.
        queues: As the scheduler tells them.

    Raises:
        BadInput: There is no such kind, or no such queue.

    Example:
        >>> proposed("slurm", queues=[Queue("short", default=True, max_walltime_s=600, cores=8)]).walltime
        '00:10:00'
    """
    kind = kind or _kind_here()
    if kind not in _KINDS:
        raise BadInput(f"--kind {kind!r} is not known; {nearest(kind, _KINDS)}", value=kind)
    known = {one.name: one for one in queues}
    if queue is not None and known and queue not in known:
        raise BadInput(f"There is no queue {queue!r} here; {nearest(queue, known)}", value=queue)
    chosen = known.get(queue or "") or next((one for one in queues if one.default and one.open), None)
    if chosen is None:
        return Answers(f"my_{kind}", kind, queue)
    longest = min(_HOUR_S, chosen.max_walltime_s or _HOUR_S)
    return Answers(
        f"my_{kind}",
        kind,
        chosen.name,
        walltime=_walltime(longest),
        nodes=chosen.min_nodes or 1,
        cores=chosen.cores,
        about=chosen,
    )


def _kind_here() -> str:
    found = identify_site()
    if found.batch:
        return found.kind
    if shutil.which("sbatch"):
        return "slurm"
    return "local"


def scheduler_queues(kind: str) -> list[Queue]:
    """Return the queues of this machine's scheduler; none if it does not answer.

    Example:
        >>> scheduler_queues("local")
        []
    """
    if kind == "local":
        return []
    try:
        return scheduler(kind).queues()
    except SchedulerDown:
        return []


def queue_table(queues: Sequence[Queue]) -> str:
    """Return the queues with what they take, a line each.

    Example:
        >>> print(queue_table([Queue("short", default=True, max_walltime_s=600, cores=8, nodes=4)]))
        short (default): 4 nodes of 8 cores, up to 00:10:00
    """
    return "\n".join(_queue_line(one) for one in queues) or "the scheduler told no queues"


def _queue_line(one: Queue) -> str:
    head = one.name + (" (default)" if one.default else "") + ("" if one.open else " (closed)")
    words = []
    if one.nodes is not None:
        words.append(f"{one.nodes} nodes" + (f" of {one.cores} cores" if one.cores else ""))
    if one.memory_gb:
        words.append(f"{one.memory_gb:g} GB")
    if one.gpus:
        words.append(f"{one.gpus} GPUs a node")
    if one.max_walltime_s:
        words.append(f"up to {_walltime(one.max_walltime_s)}")
    if one.max_nodes:
        words.append(f"{one.min_nodes or 1}-{one.max_nodes} nodes a job")
    return f"{head}: {', '.join(words) or 'no limits told'}"


def _walltime(seconds: float) -> str:
    whole = int(seconds)
    return f"{whole // 3600:02}:{whole // 60 % 60:02}:{whole % 60:02}"


def write_profile(answers: Answers, *, folder: Path) -> Path:
    """Write a profile and read it back.

    Args:
        answers: What goes into it.
        folder: Where it goes, as NAME.toml.

    Raises:
        BadInput: The name cannot be a file's, the file is there already, or a value is wrong; nothing is left.
    """
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", answers.name) or answers.name == "auto":
        raise BadInput(f"{answers.name!r} cannot be the name of a site: letters, digits, _, - and . can.")
    path = folder / f"{answers.name}.toml"
    if path.exists():
        raise BadInput(f"{path} is there already; give another NAME, or remove it.", value=str(path))
    walltime_s(answers.walltime)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(_toml(answers))
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror}; name another folder with --to.") from None
    try:
        profile = find_profile(str(path) if "/" in str(path) else f"./{path}")
        for label in profile.executors if profile.batch else ():
            block_of(profile, label)
    except HpcAgentError:
        path.unlink()
        raise
    return path


def _toml(answers: Answers) -> str:
    def line(key: str, value: Any, comment: str = "") -> str:
        text = json.dumps(value, ensure_ascii=False)  # TOML's basic strings are JSON's
        return f"{key} = {text}" + (f"  # {comment}" if comment else "")

    batch = answers.kind != "local"
    lines = [
        f"# {answers.name}: written by `hpcagent site new`; every key is in the docs, reference/site_profile.",
        f"# Check it with `hpcagent doctor --site {answers.name}`.",
        line("description", f"{answers.name}, written by hpcagent site new"),
        line("kind", answers.kind),
    ]
    if batch:
        variables = "SBATCH_ACCOUNT" if answers.kind == "slurm" else "PBS_ACCOUNT"
        lines.append(
            line("account", answers.account)
            if answers.account
            else f'# account = "NAME"  # or --account NAME, or $HPCAGENT_ACCOUNT or ${variables}'
        )
        lines += [
            "# Where several networks reach the nodes, the one to use:",
            '# interface = ["hsn0", "ib0"]',
            "",
            "[block]  # the jobs in which the workers are",
            line("queue", answers.queue) if answers.queue else '# queue = "NAME"  # the scheduler\'s default',
            line("walltime", answers.walltime),
            line("nodes_per_block", answers.nodes),
            "max_blocks = 1  # jobs at a time",
        ]
        if answers.cores and not (answers.queue and answers.about):
            lines.append(line("cores_per_node", answers.cores))
        if answers.kind == "pbs":
            lines.append('directives = ["-l place=scatter"]  # without it PBS may put two chunks on one node')
    lines += ["", "[executors.workers]  # many small runs, one on each core", "cores_per_worker = 1"]
    if answers.worker_init:
        lines.append(line("worker_init", answers.worker_init))
    else:
        lines.append('# worker_init = "module load lammps"  # shell lines before the workers')
    lines += ["", "[executors.mpi]  # runs of several ranks", 'mode = "mpi"']
    if answers.worker_init:
        lines.append(line("worker_init", answers.worker_init))
    if answers.lammps:
        lines += ["", "[apps.lammps]", line("command", answers.lammps.split())]
    else:
        lines += ["", "# [apps.lammps]", '# command = ["lmp"]']
    if batch and answers.queue and answers.about is not None:
        lines += _tables(answers, answers.about, line)
    return "\n".join([*lines, ""])


def _tables(answers: Answers, queue: Queue, line: Any) -> list[str]:
    """What the scheduler says of nodes and queue, so that what cannot be is refused before it is submitted."""
    if not answers.cores:
        return []
    lines = [
        "",
        "# As the scheduler told it; correct what is wrong (cores may count hardware threads).",
        "[nodes.standard]",
    ]
    lines.append(line("cores", answers.cores))
    lines += [line("memory_gb", round(queue.memory_gb, 1))] if queue.memory_gb else []
    lines += [line("gpus", queue.gpus)] if queue.gpus else []
    lines += ["", f"[queues.{json.dumps(answers.queue)}]", line("node", "standard")]
    lines += [line("min_nodes", queue.min_nodes)] if queue.min_nodes and queue.min_nodes > 1 else []
    most = queue.max_nodes or queue.nodes
    lines += [line("max_nodes", most)] if most else []
    lines += [line("max_walltime", _walltime(queue.max_walltime_s))] if queue.max_walltime_s else []
    return lines


def summary(profile: Profile) -> str:
    """Return a profile of a batch system in a few lines: queues, executors, where the coordinator may be.

    Example:
        >>> print(summary(find_profile("slurm")).splitlines()[0])
        executor workers (tasks): 1 node(s) for 01:00:00, at most 1 job(s) at a time
    """
    lines = []
    for label, executor in profile.executors.items():
        block = block_of(profile, label)
        where = f" in {block.queue or block.qos}" if block.queue or block.qos else ""
        runs = f", {block.max_workers_per_node} runs a node" if block.max_workers_per_node else ""
        gpus = f", {len(block.accelerators)} GPUs" if block.accelerators else ""
        lines.append(
            f"executor {label} ({executor.mode}): {block.nodes_per_block} node(s){where} for {block.walltime}, "
            f"at most {block.max_blocks} job(s) at a time{runs}{gpus}"
        )
    for name, limits in profile.queues.items():
        node = profile.nodes[limits.node]
        size = f"{limits.min_nodes}-{limits.max_nodes or ''} nodes of {node.cores} cores"
        gpus = f" and {node.gpus} {node.gpu_kind or 'GPU'}s" if node.gpus else ""
        longest = max(
            [*limits.walltime_by_nodes.values(), limits.max_walltime or ""],
            key=lambda t: walltime_s(t) if t else 0,
        )
        jobs = f", {limits.max_jobs} job(s) of a user" if limits.max_jobs else ""
        lines.append(
            f"queue {name}: {size}{gpus}"
            + (f", up to {longest}" if longest else "")
            + jobs
            + (f". {limits.note}" if limits.note else "")
        )
    lines.append(
        f"the coordinator may be: {', '.join(profile.coordinator.where)}. {profile.coordinator.note}".strip()
    )
    return "\n".join(lines)
