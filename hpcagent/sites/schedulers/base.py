"""What hpcagent asks of a batch scheduler; the words of the answers are in `answers`."""

from __future__ import annotations

import os
import re
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from hpcagent.errors import SiteFailed
from hpcagent.moved import moved
from hpcagent.owners import user_name
from hpcagent.sites.schedulers.answers import Allocation, Job, Places, Queue, State
from hpcagent.sites.schedulers.submission import Sent

if TYPE_CHECKING:
    from hpcagent.sites.block import Block

__all__ = ["SPECIAL", "Scheduler", "SchedulerDown", "Unverified"]

SPECIAL = (
    "qos",
    "constraint",
    "exclusive",
    "mem_per_node_gb",
    "select_options",
    "bind_cmd",
    "filesystems",
    "queue_means",
)
"""Keys of a profile, most of `[block]`, that have a meaning for some schedulers only."""

_CLOCKS_APART_S = 600.0
"""A job that was submitted so much earlier than its line in the ledger is another one, however clocks are set."""


class SchedulerDown(SiteFailed):
    """The scheduler's command did not answer, or said that the scheduler cannot be reached. Ask again later."""


class Unverified(SiteFailed):
    """Jobs were cancelled, but the scheduler still shows them, or does not answer; `hpcagent reap` tries again."""


class Scheduler(ABC):
    """A batch scheduler. Makes no query when it is made; every method runs the scheduler's own commands.

    A new one is a subclass in a file of its own, found by an entry point in the group `hpcagent.schedulers` whose
    name is `name` (docs/howto/own_parts.md); `hpcagent.testing.SchedulerContract` tests it.

    Args:
        timeout_s: How long one of its commands may take.
    """

    name: ClassVar[str]
    """As a profile's `kind` has it, e.g. `slurm`."""
    title: ClassVar[str]
    """As people write it, e.g. `Slurm`."""
    commands: ClassVar[tuple[str, ...]]
    """What is on the PATH where it is installed."""
    ends_by: ClassVar[str]
    """The command, before a job's id, by which a person ends a job."""
    begins_by: ClassVar[str]
    """The commands by which a person gets an allocation, for messages."""
    job_variable: ClassVar[str] = ""
    """An environment variable that only its jobs have."""
    account_variables: ClassVar[tuple[str, ...]] = ()
    """Environment variables in which its own commands look for an account."""
    queue_word: ClassVar[str] = "queue"
    """What its users call a queue."""
    mpi_launcher: ClassVar[str] = "mpiexec"
    """How MPI programs are started in its jobs where a profile names no launcher."""
    takes: ClassVar[frozenset[str]] = frozenset()
    """Of `SPECIAL`, the keys of a profile that have a meaning for it."""
    instead: ClassVar[Mapping[str, str]] = {}
    """Of the others: what its users write."""
    whole_minutes: ClassVar[bool] = False
    """Whether walltimes are whole minutes, one at least."""
    wants_cores: ClassVar[bool] = False
    """Whether a job has to say how many cores of a node it wants."""
    own_launcher: ClassVar[str] = ""
    """A `worker_launcher` that starts the workers even of one node; see `launch_words`."""
    not_launchers: ClassVar[frozenset[str]] = frozenset({"srun", "pbsdsh"})
    """Those of a profile's `worker_launcher` that it does not have."""
    host_lines: ClassVar[str] = ""
    """A shell command that prints the names of a job's nodes, each once, for mpiexec and ssh."""
    block_notes: ClassVar[str] = ""
    """A line of TOML that `hpcagent site new` adds to `[block]`."""

    def __init__(self, *, timeout_s: float = 30.0) -> None:
        self.timeout_s = timeout_s

    @classmethod
    def ping(cls, said: Callable[[str], str]) -> tuple[bool, str]:
        """Return whether it answers on this machine, and its words; by default that its commands are there.

        Args:
            said: Runs a command line and returns what it printed.
        """
        return True, f"{' and '.join(cls.commands)} on the PATH"

    def directives(self, block: Block, *, name: str, account: str | None, out: str, err: str) -> Sequence[str]:
        """Return the lines of a job script that ask for a block; not called for Slurm and PBS, whose are Parsl's.

        Args:
            block: Nodes, walltime, queue and what else is asked for.
            name: Of the job.
            account: Who is charged.
            out: The file of the job's output; letters, digits and `_./+=@~-` only.
            err: That of its errors.
        """
        raise NotImplementedError

    @classmethod
    def launch_words(cls, nodes: int) -> str:
        """Return the words before a command that start it once on each node, where it has `own_launcher`.

        Args:
            nodes: Of the job.
        """
        raise NotImplementedError

    @property
    def _cwd(self) -> str | None:
        """Where its commands are run; None: where this process is."""
        return None

    @abstractmethod
    def jobs(self, job_ids: Iterable[str]) -> dict[str, Job]:
        """Return how these jobs stand. One that is missing in the answer is not known (yet, or any more).

        Raises:
            SchedulerDown: It did not answer. Nothing is known, least of all that a job has ended.
        """

    @abstractmethod
    def named(self, name: str) -> list[Job]:
        """Return the jobs of this user, waiting or running, whose name has `name` in it.

        It does not only begin with it: filters of sites put words before.

        Raises:
            SchedulerDown: It did not answer.
        """

    @abstractmethod
    def submit(self, script: Path, *, after: str | None = None) -> str:
        """Submit a job script and return the job's full id.

        Args:
            script: The script, with all its options as directives.
            after: Id of a job after whose end, however it ends, this one may start.

        Raises:
            Refused: With the scheduler's words, and whether another try may help.
        """

    @abstractmethod
    def cancel(self, job_ids: Iterable[str]) -> None:
        """Ask to end these jobs. One that has ended or is unknown is no error.

        Raises:
            SchedulerDown: It did not answer.
        """

    @abstractmethod
    def allocation(self, environ: Mapping[str, str]) -> Allocation | None:
        """Return the job that a process with this environment is in, or None."""

    def inside(self, environ: Mapping[str, str]) -> str:
        """Return the id of the job that a process with this environment is in; empty: it is in none.

        By default that is the value of `job_variable`, or where there is no such variable what `allocation` says.

        Args:
            environ: The whole environment of the process.

        Raises:
            SchedulerDown: It has to be asked, and did not answer.
        """
        if self.job_variable:
            return environ.get(self.job_variable, "")
        found = self.allocation(environ)
        return "" if found is None else found.job_id

    def ended_by(self, job_id: str) -> State | None:
        """Return what ends a running job whose processes get SIGTERM, as the state that it will have.

        None where nothing but the signal is known: it may have come from anybody.

        Raises:
            SchedulerDown: It did not answer.
        """
        return None

    @abstractmethod
    def queues(self) -> list[Queue]:
        """Return its queues.

        Raises:
            SchedulerDown: It did not answer.
        """

    @abstractmethod
    def keeps_finished_jobs(self) -> tuple[bool, str]:
        """Return whether it tells how finished jobs ended, and a sentence on it."""

    @abstractmethod
    def version(self) -> str:
        """Return its name and version in one line.

        Raises:
            SchedulerDown: Its commands are not there, or are another's.
        """

    def places(self, queue: str | None, *, project: str | None = None) -> Places:
        """Return how many jobs of this user a queue takes; nothing is known of it by default.

        Args:
            queue: Its name; None: the one where jobs go that name none.
            project: Of the jobs, where the scheduler has such limits; None: its default.

        Raises:
            SchedulerDown: It did not answer.
        """
        return Places()

    def is_named(self, job: Job, name: str) -> bool:
        """Return whether a job has this name, as the scheduler writes it.

        A `.` and more may follow (Parsl adds the time), and a filter of the site may have put words before it: our
        names are unique. A character that a scheduler takes in no name is a `_`; of a long name it may be the end.
        """
        theirs, ours = (re.sub(r"[^\w.+-]", "_", n, flags=re.ASCII) for n in (job.name, name))
        if ours and re.search(rf"{re.escape(ours)}(?![0-9A-Za-z])", theirs):
            return True
        return len(theirs) > 200 and ours.endswith(theirs)

    def first_seen(self, job: Job, sent: Sent) -> Sent:
        """Return how a job was submitted, with what the scheduler calls it where the site renames jobs.

        Args:
            job: As it is shown a moment after its submission: later, one of another name may be another job.
            sent: As it was submitted.
        """
        if not job.name or sent.called or self.is_named(job, sent.name):
            return sent
        if self.another(replace(job, name=sent.name), sent):
            return sent
        return replace(sent, called=job.name)

    def may_be(self, job: Job, sent: Sent) -> bool:
        """Return whether a job that has not ended could be ours under another name: it was submitted with ours."""
        if job.over or job.submitted_at is None or (job.owner and job.owner not in _me()):
            return False
        return abs(job.submitted_at - sent.at) < _CLOCKS_APART_S

    def another(self, job: Job, sent: Sent) -> str:
        """Return why a job with the id of one of ours is not that one; empty if it is."""
        if job.owner and job.owner not in _me():
            return f"job {job.job_id} is {job.owner}'s"
        if not (self.is_named(job, sent.name) or (sent.called and job.name == sent.called)):
            return f"job {job.job_id} is another one now, called {job.name!r}"
        if job.submitted_at is not None and job.submitted_at < sent.at - _CLOCKS_APART_S:
            return f"job {job.job_id} is another one, submitted before"
        return ""

    def ours(self, sent: Mapping[str, Sent]) -> tuple[dict[str, Job], dict[str, str]]:
        """Ask how jobs stand that were submitted as `sent` says.

        Args:
            sent: By job id.

        Returns:
            Those that are still the same, and of the other ids that the scheduler knows why they are not.

        Raises:
            SchedulerDown: It did not answer.
        """
        seen = self.jobs(sent)
        others = {job_id: words for job_id, job in seen.items() if (words := self.another(job, sent[job_id]))}
        return {job_id: job for job_id, job in seen.items() if job_id not in others}, others

    def cancel_ours(self, sent: Mapping[str, Sent]) -> dict[str, str]:
        """Ask to end jobs, after a look whether they still are what was submitted.

        Args:
            sent: By job id.

        Returns:
            Of the ids that are another's by now, which are left alone: why.

        Raises:
            SchedulerDown: It did not answer.
        """
        seen, others = self.ours(sent)
        self.cancel([job_id for job_id, job in seen.items() if not job.over])
        return others

    def cancel_and_see(
        self, job_ids: Iterable[str] | Mapping[str, Sent], *, within_s: float = 60.0
    ) -> dict[str, Job]:
        """Cancel jobs and come back when they are gone; asks a second time half-way.

        Args:
            job_ids: Their ids; with how each was submitted, an id that is another job's by now is left alone.
            within_s: How long to wait until they are gone.

        Returns:
            How each ended. One that the scheduler does not know (any more) counts as cancelled.

        Raises:
            Unverified: Some are still there (or the scheduler does not answer) after `within_s`; its `ended`
                has those that are gone.
        """
        left = list(dict.fromkeys(job_ids))
        sent = job_ids if isinstance(job_ids, Mapping) else {}
        ended: dict[str, Job] = {}
        if not left:
            return ended
        begun, pause, asked, words = time.monotonic(), 0.1, 0, ""
        while True:
            failed = ""
            try:
                if asked == 0 or (asked == 1 and time.monotonic() - begun > within_s / 2):
                    self._cancel(left, sent)
                    asked += 1
            except SchedulerDown as error:  # some may have ended all the same
                failed = str(error)
            try:
                seen, others = self.ours({j: sent[j] for j in left}) if sent else (self.jobs(left), {})
                gone = Job("", "cancelled", reason="cancelled by hpcagent")
                ended |= {
                    j: seen.get(j) or replace(gone, job_id=j, reason=others.get(j, gone.reason))
                    for j in left
                    if j not in seen or seen[j].over
                }
                left = [j for j in left if j not in ended]
                words = "; ".join([*(f"{j} is {seen[j].state}" for j in left), *([failed] if failed else [])])
            except SchedulerDown as error:
                words = str(error)
            if not left:
                return ended
            if time.monotonic() - begun > within_s:
                raise Unverified(
                    f"{', '.join(left)}: cancelled, but not seen to be gone within {within_s:g} s ({words}).",
                    ended=ended,
                )
            time.sleep(pause)
            pause = min(2.0, pause * 1.5)

    def _cancel(self, job_ids: Sequence[str], sent: Mapping[str, Sent]) -> None:
        if sent:
            self.cancel_ours({job_id: sent[job_id] for job_id in job_ids})
        else:
            self.cancel(job_ids)

    def _ask(
        self, command: Sequence[str], *, given: str | None = None, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run one of its commands (`env`: its whole environment, in place of ours).

        What it prints is read whatever bytes are in it: names of jobs, also of other people's, comments and
        messages are in any encoding.

        Raises:
            SchedulerDown: It is not there, could not be started, or took longer than `timeout_s`.
        """
        try:
            return subprocess.run(
                list(command),
                input=given,
                stdin=subprocess.DEVNULL if given is None else None,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=self.timeout_s,
                check=False,
                env=env,
                cwd=self._cwd,
            )
        except FileNotFoundError:
            raise SchedulerDown(
                f"{command[0]} is not on this machine's PATH; is this a login node of the cluster?"
            ) from None
        except subprocess.TimeoutExpired as error:
            said = _last_line(error.stderr)
            raise SchedulerDown(
                f"`{' '.join(command)}` did not answer within {self.timeout_s:g} s"
                + (f"; it said: {said}" if said else ".")
            ) from None
        except OSError as error:  # e.g. this login node's limit of processes is reached
            raise SchedulerDown(f"`{command[0]}` could not be started: {error.strerror or error}.") from error


def _me() -> tuple[str, ...]:
    """What schedulers call this user."""
    return user_name(os.getuid()), str(os.getuid())


def _last_line(printed: bytes | str | None) -> str:
    """The last line of what a command had printed when it was given up."""
    text = printed.decode(errors="replace") if isinstance(printed, bytes) else printed or ""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


__getattr__ = moved(
    __name__,
    {
        **dict.fromkeys(
            ("Allocation", "Job", "NodeShape", "Places", "Queue", "State"), "hpcagent.sites.schedulers.answers"
        ),
        **dict.fromkeys(
            ("LONGEST_PAUSE_S", "Refused", "Sent", "only_id", "pause_s"), "hpcagent.sites.schedulers.submission"
        ),
    },
)
