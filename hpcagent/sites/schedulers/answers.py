"""The words in which every scheduler answers: how jobs stand, the job around us, queues and their limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["FINAL", "Allocation", "Job", "NodeShape", "Places", "Queue", "State"]

State = Literal[
    "pending",
    "held",
    "running",
    "ending",
    "completed",
    "failed",
    "cancelled",
    "timeout",
    "out_of_memory",
    "node_failed",
    "preempted",
]
"""`ending`: the scheduler is still tidying up behind it. Everything after that is final."""

FINAL = frozenset({"completed", "failed", "cancelled", "timeout", "out_of_memory", "node_failed", "preempted"})


@dataclass(frozen=True, slots=True)
class Job:
    """How a job stands, in one vocabulary for all schedulers.

    Attributes:
        job_id: The scheduler's full id.
        state: See `State`.
        name: The job's name, where the scheduler told it.
        reason: The scheduler's own words: Slurm's reason, PBS's comment; why it waits or how it ended.
        exit_code: Of the job script; negative: ended by that signal. None where unknown.
        hosts: Names of its nodes.
        started_at: Unix time, in seconds, or None.
        ends_at: When its walltime is over, or of a job that is over: when it ended; Unix time in seconds, or None.
        owner: Login name of whose it is; empty where the scheduler was asked for our own jobs only.
        submitted_at: Unix time, in seconds, or None where it is not told.
    """

    job_id: str
    state: State
    name: str = ""
    reason: str = ""
    exit_code: int | None = None
    hosts: tuple[str, ...] = ()
    started_at: float | None = None
    ends_at: float | None = None
    owner: str = ""
    submitted_at: float | None = None

    @property
    def over(self) -> bool:
        """Whether this state is final."""
        return self.state in FINAL


@dataclass(frozen=True, slots=True)
class NodeShape:
    """A node of an allocation: its name as launchers want it, and what of it is ours."""

    host: str
    cores: int
    gpus: int = 0


@dataclass(frozen=True, slots=True)
class Allocation:
    """The job that this process runs in.

    Attributes:
        job_id: The scheduler's id.
        nodes: Its nodes; the first is the one this process is on.
        ends_at: When its walltime is over, Unix time in seconds; None if it cannot be known.
        guessed: Whether the scheduler could not be asked, so that the cores are those of the environment.
        started_at: When it began, Unix time in seconds; None where it is not told.
    """

    job_id: str
    nodes: tuple[NodeShape, ...]
    ends_at: float | None
    guessed: bool = False
    started_at: float | None = None


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue or partition as the scheduler describes it; None where it does not say.

    Attributes:
        name: Its name.
        default: Whether jobs that name none go there.
        open: Whether it takes and starts jobs.
        min_nodes: Fewest nodes of a job.
        max_nodes: Most nodes of a job.
        max_walltime_s: Longest walltime, in seconds.
        cores: Cores of a node (hardware threads where the scheduler counts those).
        memory_gb: Memory of a node, in GB.
        gpus: GPUs of a node.
        nodes: How many nodes it has.
    """

    name: str
    default: bool = False
    open: bool = True
    min_nodes: int | None = None
    max_nodes: int | None = None
    max_walltime_s: float | None = None
    cores: int | None = None
    memory_gb: float | None = None
    gpus: int | None = None
    nodes: int | None = None


@dataclass(frozen=True, slots=True)
class Places:
    """How many jobs a scheduler takes of this user; None where it tells no limit.

    Attributes:
        most: Jobs at a time, waiting and running together.
        free: How many more it takes now.
        running: Jobs that run at a time.
        words: The limits, as the scheduler has them.
    """

    most: int | None = None
    free: int | None = None
    running: int | None = None
    words: tuple[str, ...] = ()

    def under(
        self, *, words: str, most: int | None = None, free: int | None = None, running: int | None = None
    ) -> Places:
        """Return these with one more limit.

        Example:
            >>> Places(most=5).under(most=2, free=1, words="max_queued = 2").most
            2
        """
        return Places(
            _least(self.most, most), _least(self.free, free), _least(self.running, running), (*self.words, words)
        )


def _least(one: int | None, other: int | None) -> int | None:
    told = [number for number in (one, other) if number is not None]
    return min(told) if told else None
