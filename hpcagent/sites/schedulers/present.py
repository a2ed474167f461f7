"""Which schedulers this machine belongs to: whose commands are on the PATH, and who answers.

A command alone says little: a stub of another site's, a client without a configuration or with its controller gone
all leave an `sbatch`, and TORQUE, Grid Engine and Slurm's look-alikes have a `qsub`.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from typing import NamedTuple

from hpcagent.errors import BadInput
from hpcagent.sites.schedulers.registry import scheduler, scheduler_class, scheduler_kinds

__all__ = ["Seen", "own_job", "schedulers_here", "who_answers"]

_WITHIN_S = 20.0
"""So long a command may take; Slurm's wait 10 s for a controller that is not there."""
# Of a client that belongs to no cluster: there is nothing to wait for.
_NO_CLUSTER = re.compile(
    r"configuration source|slurm\.conf|pbs conf variables not found|pbsconf error", re.IGNORECASE
)
_DOWN = re.compile(
    r"is DOWN|unable to contact|cannot connect|could not connect|connection (refused|timed out)|not responding"
    r"|did not answer|socket timed out",
    re.IGNORECASE,
)


class Seen(NamedTuple):
    """One scheduler whose commands are on the PATH.

    Attributes:
        kind: E.g. `slurm`.
        answers: Whether it does.
        down: Whether it belongs to a cluster that does not answer now.
        words: What it said.
        title: Its name in messages.
    """

    kind: str
    answers: bool
    down: bool
    words: str
    title: str

    def __str__(self) -> str:
        name = self.title
        how = "answers" if self.answers else "does not answer" if self.down else "is not set up on this machine"
        return f"{name} {how} ({self.words})"


def schedulers_here(environ: Mapping[str, str]) -> list[Seen]:
    """Ask the schedulers whose commands are on the PATH of this environment; none is asked that has none.

    Args:
        environ: The whole environment of the commands.
    """
    path = environ.get("PATH", "")
    found = []
    for kind in scheduler_kinds():
        try:
            its = scheduler_class(kind)
        except BadInput as error:  # another package's, which is broken: others are found all the same
            found.append(Seen(kind, False, False, error.message, kind))
            continue
        if all(shutil.which(command, path=path) for command in its.commands):
            heard: list[str] = []

            def said(command: str, heard: list[str] = heard) -> str:
                heard.append(_said(tuple(command.split()), environ))
                return heard[-1]

            answers, words = its.ping(said)
            down = not answers and bool(heard) and _is_down(heard[-1])
            found.append(Seen(kind, answers, down, words, its.title))
    return found


def own_job(environ: Mapping[str, str]) -> str:
    """Return the id of the job that a process with this environment is in, whichever scheduler's; empty: in none.

    Args:
        environ: The whole environment of the process.

    Raises:
        SchedulerDown: A scheduler has to be asked, and did not answer.

    Example:
        >>> own_job({"PBS_JOBID": "7.srv"}), own_job({})
        ('7.srv', '')
    """
    for kind in scheduler_kinds():
        try:
            there = scheduler(kind)
        except BadInput:  # another package's, which is broken
            continue
        if job_id := there.inside(environ):
            return job_id
    return ""


def who_answers(environ: Mapping[str, str]) -> str | None:
    """Return the scheduler of this machine: in a job the one it is a job of, otherwise the one that answers.

    Raises:
        BadInput: Both answer, or none does although this machine belongs to a cluster; with what each said.

    Example:
        >>> who_answers({"PATH": "", "PBS_JOBID": "7.srv"}), who_answers({"PATH": ""})
        ('pbs', None)
    """
    jobs = [kind for kind in scheduler_kinds() if _in_a_job_of(kind, environ)]
    seen = schedulers_here(environ)
    # On a node of a job the commands are often not there to be asked; TORQUE's own are, and say so.
    if len(jobs) == 1 and not any(s.kind == jobs[0] and not s.answers and not s.down for s in seen):
        return jobs[0]
    answering = [s for s in seen if s.answers]
    if len(answering) == 1:
        return answering[0].kind
    told = "; ".join(map(str, seen))
    if answering:
        count, names = len(answering), " or ".join(f"--site {s.kind}" for s in answering)
        raise BadInput(
            f"{'Two' if count == 2 else count} schedulers answer on this machine: {told}. Say which one is meant: "
            f"{names}, a profile of your own, or --kind (hpcagent site new).",
            value=[s.kind for s in seen],
        )
    if any(s.down for s in seen):
        raise BadInput(
            f"The scheduler of this machine cannot be told: {told}. Try again when it answers, or say what is "
            "meant: --site with a profile's name (laptop: this machine alone), or --kind (hpcagent site new).",
            value=[s.kind for s in seen],
        )
    return None


def _in_a_job_of(kind: str, environ: Mapping[str, str]) -> bool:
    try:
        return bool(environ.get(scheduler_class(kind).job_variable))
    except BadInput:
        return False


def _is_down(said: str) -> bool:
    return _NO_CLUSTER.search(said) is None and _DOWN.search(said) is not None


def _said(command: tuple[str, ...], environ: Mapping[str, str]) -> str:
    """What a command printed, on one line where it failed."""
    found = shutil.which(command[0], path=environ.get("PATH", ""))
    if found is None:
        return f"{command[0]} is not on the PATH"
    try:
        done = subprocess.run(
            [found, *command[1:]],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_WITHIN_S,
            check=False,
            env=dict(environ),
        )
    except subprocess.TimeoutExpired:
        return f"{' '.join(command)} did not answer within {_WITHIN_S:g} s"
    except OSError as error:
        return f"{found} cannot be started: {error.strerror}"
    printed = (done.stdout + done.stderr).decode(errors="replace").strip()
    if done.returncode == 0 and printed:
        return printed
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    return f"{' '.join(command)} ended with {done.returncode}: {'; '.join(lines) or 'without a word'}"
