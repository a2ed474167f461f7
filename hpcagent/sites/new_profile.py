"""A first profile of one's own, from what the scheduler tells and a few answers; and a profile in a few lines."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hpcagent.errors import BadInput, HpcAgentError, nearest
from hpcagent.sites.block import block_of
from hpcagent.sites.profile import Profile
from hpcagent.sites.profiles import find_profile, identify_site
from hpcagent.sites.schedulers.answers import Queue
from hpcagent.sites.schedulers.base import SchedulerDown
from hpcagent.sites.schedulers.registry import is_scheduler, scheduler, scheduler_class, scheduler_kinds
from hpcagent.sites.tables import walltime_s

__all__ = [
    "Answers",
    "answered",
    "proposed",
    "queue_table",
    "scheduler_queues",
    "summary",
    "target",
    "write_profile",
]

_HOUR_S = 3600.0


class Answers(NamedTuple):
    """What a new profile is written from.

    Attributes:
        name: Of the site, and of its file.
        kind: `local`, or a scheduler's, e.g. `slurm`.
        queue: Queue or partition of the jobs; None: the scheduler's default.
        account: Written down; None: from the environment or the command line.
        walltime: Of a job.
        nodes: Of a job.
        cores: Of a node; None: not known.
        lammps: The command that starts LAMMPS there; None: it is looked for.
        worker_init: A shell line before the workers.
        about: What the scheduler says of the queue.
        queues: What it says of all of them.
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
    queues: tuple[Queue, ...] = ()


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
    if kind != "local" and not is_scheduler(kind):
        raise BadInput(f"--kind {kind!r} is not known; {nearest(kind, ('local', *scheduler_kinds()))}", value=kind)
    known = {one.name: one for one in queues}
    if queue is not None and known and queue not in known:
        raise BadInput(f"There is no queue {queue!r} here; {nearest(queue, known)}", value=queue)
    chosen = known.get(queue or "") or next((one for one in queues if one.default and one.open), None)
    if chosen is None:
        return Answers(f"my_{kind}", kind, queue, queues=tuple(queues))
    longest = min(_HOUR_S, chosen.max_walltime_s or _HOUR_S)
    return Answers(
        f"my_{kind}",
        kind,
        chosen.name,
        walltime=_walltime(longest),
        nodes=chosen.min_nodes or 1,
        cores=chosen.cores,
        about=chosen,
        queues=tuple(queues),
    )


def _kind_here() -> str:
    found = identify_site()
    return found.kind if found.batch else "local"


def answered(answers: Answers, key: str, value: Any) -> Answers:
    """Return the answers with one more, held against what the scheduler says of the queue.

    Args:
        answers: Those given before, the queue before walltime, nodes and cores.
        key: A field of `Answers`.
        value: The answer, as typed or as an option; None where nothing is to be said.

    Raises:
        BadInput: It cannot be read, or the queue does not give so much; with both numbers.

    Example:
        >>> answered(Answers("mine", "slurm"), "nodes", "4").nodes
        4
    """
    if key == "queue":
        chosen = proposed(answers.kind, queue=value, queues=answers.queues)
        return chosen._replace(name=answers.name, account=answers.account)
    if key == "walltime":
        value = _fitting_walltime(answers, value)
    elif key in ("nodes", "cores") and value is not None:
        value = _fitting_number(answers, key, value)
    return answers._replace(**{key: value})


def _fitting_walltime(answers: Answers, text: str | None) -> str:
    seconds = walltime_s(text or "")
    its = scheduler_class(answers.kind)
    if its.whole_minutes and seconds < 60:
        raise BadInput(f"walltime {text!r}: on {its.title} a job has one minute at least, '00:01:00'.", value=text)
    most = answers.about.max_walltime_s if answers.about else None
    if most is not None and seconds > most:
        raise BadInput(
            f"walltime {text!r} is over the {_walltime(most)} that the queue {answers.queue} gives; "
            f"take that or less, or another queue.{_other_queues(answers)}",
            value=text,
        )
    return str(text)


def _fitting_number(answers: Answers, key: str, answer: Any) -> int:
    try:
        number = int(answer)
    except ValueError:
        raise BadInput(f"{key}: {answer!r} is not a whole number.", value=answer) from None
    if number < 1:
        raise BadInput(f"{key}: {number} is too few; 1 is the least.", value=number)
    if answers.about is None:
        return number
    queue = answers.about
    if key == "cores":
        if queue.cores is not None and number > queue.cores:
            raise BadInput(
                f"cores: {number} are more than the {queue.cores} that most nodes of the queue {queue.name} have; "
                f"take {queue.cores} or fewer, or another queue.{_other_queues(answers)}",
                value=number,
            )
        return number
    most = _most_nodes(queue)
    if most is not None and number > most:
        raise BadInput(
            f"nodes: {number} are more than the {most} that the queue {queue.name} gives a job; take {most} or "
            f"fewer, or another queue.{_other_queues(answers)}",
            value=number,
        )
    if queue.min_nodes is not None and number < queue.min_nodes:
        raise BadInput(
            f"nodes: {number} are fewer than the {queue.min_nodes} that the queue {queue.name} wants of a job; "
            f"take {queue.min_nodes} or more, or another queue.{_other_queues(answers)}",
            value=number,
        )
    return number


def _most_nodes(queue: Queue) -> int | None:
    return min((n for n in (queue.max_nodes, queue.nodes) if n), default=None)


def _other_queues(answers: Answers) -> str:
    others = [_queue_line(one) for one in answers.queues if one.name != answers.queue]
    return f" Others: {'; '.join(others)}." if others else ""


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


def target(name: str, folder: Path) -> Path:
    """Return the file that a new profile of this name becomes.

    Raises:
        BadInput: The name cannot be a file's, or the file is there already.

    Example:
        >>> target("mine", Path("new_folder")).name
        'mine.toml'
    """
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name) or name == "auto":
        raise BadInput(f"{name!r} cannot be the name of a site: letters, digits, _, - and . can.", value=name)
    path = folder / f"{name}.toml"
    if path.exists():
        raise BadInput(f"{path} is there already; give another NAME, or remove it.", value=str(path))
    return path


def write_profile(answers: Answers, *, folder: Path) -> Path:
    """Write a profile and read it back.

    Args:
        answers: What goes into it.
        folder: Where it goes, as NAME.toml.

    Raises:
        BadInput: The name cannot be a file's, the file is there already, or a value is wrong or more than the
            queue gives; nothing is left.
    """
    path = target(answers.name, folder)
    if answers.kind != "local":
        for key in ("walltime", "nodes", "cores"):
            answered(answers, key, getattr(answers, key))
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
    batch = answers.kind != "local"
    lines = [
        f"# {answers.name}: written by `hpcagent site new`; every key is in the docs, reference/site_profile.",
        f"# Check it with `hpcagent doctor --site {answers.name}`.",
        _line("description", f"{answers.name}, written by hpcagent site new"),
        _line("kind", answers.kind),
    ]
    if batch:
        its = scheduler_class(answers.kind)
        variables = " or $".join(("HPCAGENT_ACCOUNT", *its.account_variables[:1]))
        lines.append(
            _line("account", answers.account)
            if answers.account
            else f'# account = "NAME"  # or --account NAME, or ${variables}'
        )
        lines += [
            "# Where several networks reach the nodes, the one to use:",
            '# interface = ["hsn0", "ib0"]',
            "",
            "[block]  # the jobs in which the workers are",
            _line("queue", answers.queue) if answers.queue else '# queue = "NAME"  # the scheduler\'s default',
            _line("walltime", answers.walltime),
            _line("nodes_per_block", answers.nodes),
            "max_blocks = 1  # jobs at a time",
        ]
        if answers.cores and not (answers.queue and answers.about):
            lines.append(_line("cores_per_node", answers.cores))
        lines += [its.block_notes] if its.block_notes else []
    lines += ["", "[executors.workers]  # many small runs, one on each core", "cores_per_worker = 1"]
    if answers.worker_init:
        lines.append(_line("worker_init", answers.worker_init))
    else:
        lines.append('# worker_init = "module load lammps"  # shell lines before the workers')
    lines += ["", "[executors.mpi]  # runs of several ranks", 'mode = "mpi"']
    if answers.worker_init:
        lines.append(_line("worker_init", answers.worker_init))
    if answers.lammps:
        lines += ["", "[apps.lammps]", _line("command", answers.lammps.split())]
    else:
        lines += ["", "# [apps.lammps]", '# command = ["lmp"]']
    if batch and answers.queue and answers.about is not None:
        lines += _tables(answers, answers.about)
    return "\n".join([*lines, ""])


def _line(key: str, value: Any) -> str:
    return f"{key} = {json.dumps(value, ensure_ascii=False)}"  # TOML's basic strings are JSON's


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)


def _tables(answers: Answers, chosen: Queue) -> list[str]:
    """What the scheduler says of nodes and queues, so that what cannot be is refused before it is submitted.

    All the queues: where a profile has any, it takes no other.
    """
    if not answers.cores:
        return []
    lines = ["", "# As the scheduler told it; correct what is wrong (cores may count hardware threads)."]
    names: dict[tuple[Any, ...], str] = {}
    tables: list[str] = []
    for queue in sorted(
        answers.queues or (chosen,), key=lambda one: one.name != chosen.name
    ):  # the chosen one first
        # Of one whose nodes were not told no more is known than of the chosen one's.
        shape = _shape(queue) if queue.cores and queue is not chosen else _shape(chosen)
        if shape not in names:
            names[shape] = "standard" if queue is chosen else f"of_{queue.name}"
            cores = answers.cores if queue is chosen else queue.cores
            lines += [*([""] if queue is not chosen else []), f"[nodes.{_key(names[shape])}]"]
            lines += _node_lines(queue, cores)
        tables += [
            "",
            f"[queues.{_key(queue.name)}]" + ("" if queue.open else "  # closed as this was written"),
        ]
        tables += _queue_lines(queue, names[shape])
    return lines + tables


def _shape(queue: Queue) -> tuple[Any, ...]:
    return queue.cores, round(queue.memory_gb or 0, 1), queue.gpus or 0


def _node_lines(queue: Queue, cores: int | None) -> list[str]:
    _, memory, gpus = _shape(queue)
    return [
        _line("cores", cores),
        *([_line("memory_gb", memory)] if memory else []),
        *([_line("gpus", gpus)] if gpus else []),
    ]


def _queue_lines(queue: Queue, node: str) -> list[str]:
    lines = [_line("node", node)]
    least, most = queue.min_nodes or 1, _most_nodes(queue)
    lines += [_line("min_nodes", least)] if least > 1 else []
    lines += [_line("max_nodes", most)] if most and most >= least else []
    lines += [_line("max_walltime", _walltime(queue.max_walltime_s))] if queue.max_walltime_s else []
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
