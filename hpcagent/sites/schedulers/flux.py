"""Flux, asked through its own commands: flux batch, jobs, cancel, queue, resource, getattr.

Written by the manual pages of flux-core (flux-batch(1), flux-jobs(1), flux-queue(1), flux-environment(7)), tried
against a stand-in that speaks their formats, not on a cluster.

A batch job of Flux is a Flux of its own: commands in it ask that one. Here they mean the one that jobs are
submitted to, `flux --parent` in a job.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpcagent.sites.schedulers.answers import Allocation, Job, NodeShape, Queue, State
from hpcagent.sites.schedulers.base import Scheduler, SchedulerDown
from hpcagent.sites.schedulers.slurm import expand_nodes
from hpcagent.sites.schedulers.submission import Refused, only_id

if TYPE_CHECKING:
    from hpcagent.sites.block import Block

__all__ = ["Flux"]

_STATES: dict[str, State] = {
    "DEPEND": "pending",
    "PRIORITY": "pending",
    "SCHED": "pending",
    "RUN": "running",
    "CLEANUP": "ending",
}
_RESULTS: dict[str, State] = {
    "COMPLETED": "completed",
    "FAILED": "failed",
    "CANCELED": "cancelled",
    "TIMEOUT": "timeout",
}
_FIELDS = (
    "id.f58",
    "state",
    "result",
    "urgency",
    "returncode",
    "t_submit",
    "t_run",
    "t_inactive",
    "expiration",
    "userid",
    "nodelist",
    "exception.type",
    "exception.note",
    "name",
)
_FORMAT = "\x1f".join(f"{{{field}}}" for field in _FIELDS)
_MOST = 100_000
"""Jobs in one answer; flux jobs shows 1000 otherwise."""
_AT_ONCE = 200
"""Job ids in one command line."""
_JOB_ID = re.compile(r"[fƒ][1-9A-HJ-NP-Za-km-z]+")
_UNKNOWN = re.compile(r"unknown|inactive|no such|already", re.IGNORECASE)
_LATER = re.compile(
    r"connect|timed out|timeout|not responding|unavailable|resource temporarily|disabled|stopped|max.*jobs"
    r"|limit of jobs|function not implemented|host is unreachable",
    re.IGNORECASE,
)
_NEVER = re.compile(
    r"invalid|unsatisfiable|exceeds|too (many|large|long)|unrecognized|not permitted|no such|unknown|requires"
    r"|expected|must (be|specify)",
    re.IGNORECASE,
)
_DURATION = re.compile(r"(\d+(?:\.\d*)?)(ms|s|m|h|d)?\Z")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, None: 1.0}


class Flux(Scheduler):
    """Flux, as the scheduler of a system or as an instance of one's own (`flux start`, `flux alloc`).

    Args:
        timeout_s: How long one of its commands may take.
    """

    name = "flux"
    title = "Flux"
    commands = ("flux",)
    ends_by = "flux cancel"
    begins_by = "flux alloc or flux batch"
    job_variable = "FLUX_ENCLOSING_ID"  # since flux-core 0.71
    takes = frozenset({"exclusive", "constraint"})
    instead = {
        "qos": "Flux has queues only",
        "mem_per_node_gb": "Flux gives out nodes and cores",
        "select_options": 'write constraint, or directives = ["--gpus-per-slot=1"]',
        "bind_cmd": "write the words in overrides",
        "filesystems": "write directives",
        "queue_means": "a queue is a queue",
    }
    own_launcher = "flux"
    host_lines = "flux hostlist --expand --nodelist=$'\\n' local"

    def __init__(self, *, timeout_s: float = 30.0) -> None:
        super().__init__(timeout_s=timeout_s)
        self._inside: bool | None = None

    @classmethod
    def ping(cls, said: Callable[[str], str]) -> tuple[bool, str]:
        """Return whether an instance answers; another program of that name does not know `uptime`."""
        words = said("flux uptime")
        up = re.search(r"\bdepth \d+.*\bsize \d+", words)
        return up is not None, up[0] if up else words

    def directives(self, block: Block, *, name: str, account: str | None, out: str, err: str) -> Sequence[str]:
        """Return the submission directives of a block (RFC 36)."""
        nodes = block.nodes_per_block
        options = [f"--job-name={name}", f"--nodes={nodes}", f"--time-limit={block.walltime_s}s"]
        if block.exclusive or block.cpus_per_node is None:
            options.append("--exclusive")
        else:
            options += [f"--nslots={nodes}", f"--cores-per-slot={block.cpus_per_node}"]
        options += [f"--queue={block.queue}"] if block.queue else []
        options += [f"--bank={account}"] if account else []
        options += [f"--requires={block.constraint}"] if block.constraint else []
        options += [f"--output={out}", f"--error={err}"]
        return [f"# flux: {words}" for words in (*map(shlex.quote, options), *block.directives)]

    @classmethod
    def launch_words(cls, nodes: int) -> str:
        """Return the words before a command that start it once on each node, with all of its cores."""
        return f"flux run --nodes={nodes} --ntasks={nodes} --exclusive -o cpu-affinity=off"

    def jobs(self, job_ids: Iterable[str]) -> dict[str, Job]:
        """Return how these jobs stand. One that is missing in the answer is not known (yet, or any more).

        Raises:
            SchedulerDown: It did not answer. Nothing is known, least of all that a job has ended.
        """
        wanted = list(dict.fromkeys(job_ids))
        found = {}
        for first in range(0, len(wanted), _AT_ONCE):
            for job in self._listed(*wanted[first : first + _AT_ONCE]):
                found[job.job_id] = job
        return {job_id: found[job_id] for job_id in wanted if job_id in found}

    def named(self, name: str) -> list[Job]:
        """Return the jobs of this user, waiting or running, whose name has `name` in it.

        Raises:
            SchedulerDown: It did not answer.
        """
        return [job for job in self._listed("--filter=pending,running", f"--count={_MOST}") if name in job.name]

    def _listed(self, *words: str) -> list[Job]:
        done = self._flux("jobs", "--no-header", f"--format={_FORMAT}", *words)
        wrong = [line for line in done.stderr.splitlines() if line.strip() and not _UNKNOWN.search(line)]
        if done.returncode and (wrong or not done.stderr.strip()):
            raise SchedulerDown(f"flux jobs ended with {done.returncode}: {_words(done)}")
        return [_job(line) for line in done.stdout.split("\n") if line.count("\x1f") == len(_FIELDS) - 1]

    def submit(self, script: Path, *, after: str | None = None) -> str:
        """Submit a job script and return the job's id, in F58 with an ASCII `f`.

        Raises:
            Refused: With Flux's words, and whether another try may help.
        """
        options = [] if after is None else [f"--dependency=afterany:{after}"]
        try:
            done = self._flux("batch", *options, str(script))
        except SchedulerDown as error:
            raise Refused(str(error), transient=True, unheard=True) from None
        found = [line.strip() for line in done.stdout.splitlines() if _JOB_ID.fullmatch(line.strip())]
        if found:
            return only_id(list(dict.fromkeys(found)), "flux batch took the job").replace("ƒ", "f")
        words = _words(done)
        later, never = _LATER.search(words), _NEVER.search(words)
        raise Refused(
            f"flux batch refused {script.name}: {words}",
            transient=bool(later) or not never,
            unclear=not later and not never,
            unheard=done.returncode == 0,
            log_tail=words,
        )

    def cancel(self, job_ids: Iterable[str]) -> None:
        """Ask to end these jobs. One that has ended or is unknown is no error.

        Raises:
            SchedulerDown: It did not answer.
        """
        for job_id in dict.fromkeys(job_ids):  # one that is unknown would keep the others from being ended
            done = self._flux("cancel", job_id)
            if done.returncode and not _UNKNOWN.search(done.stderr):
                raise SchedulerDown(f"flux cancel {job_id} ended with {done.returncode}: {_words(done)}")

    def inside(self, environ: Mapping[str, str]) -> str:
        """Return the id of the job whose instance is around a process with this environment; empty: there is none.

        FLUX_ENCLOSING_ID has it in a batch job and in the tasks of `flux run` there. Flux before 0.71 is asked:
        a batch script has no FLUX_JOB_ID, and that of a task is a job of the batch job's own instance. A task that
        the system's instance runs is in that job.

        Raises:
            SchedulerDown: FLUX_URI is set, and the instance did not answer.
        """
        job_id = environ.get(self.job_variable, "")
        if not job_id and environ.get("FLUX_URI"):
            if self._own("getattr", "instance-level", environ=environ) != "0":
                job_id = self._own("getattr", "jobid", environ=environ)
            else:
                job_id = environ.get("FLUX_JOB_ID", "")
        return job_id.replace("ƒ", "f")

    def allocation(self, environ: Mapping[str, str]) -> Allocation | None:
        """Return the job that a process with this environment is in, or None."""
        if not environ.get("FLUX_URI") or not self._in_job():
            return None
        job_id = self.inside(environ)
        hosts = expand_nodes(self._own("getattr", "hostlist"))
        here = os.uname().nodename.partition(".")[0]
        hosts = tuple(sorted(hosts, key=lambda host: host.partition(".")[0] != here))
        counts = self._own("resource", "list", "--states=all", "--no-header", "--format={nnodes} {ncores} {ngpus}")
        nodes, cores, gpus = (int(word) for word in counts.splitlines()[0].split())
        shape = (max(1, cores // max(1, nodes)), gpus // max(1, nodes))
        job = self.jobs([job_id]).get(job_id)
        return Allocation(
            job_id,
            tuple(NodeShape(host, *shape) for host in hosts),
            None if job is None else job.ends_at,
            started_at=None if job is None else job.started_at,
        )

    def queues(self) -> list[Queue]:
        """Return its queues; none where it has only the one without a name.

        Raises:
            SchedulerDown: It did not answer.
        """
        fields = (
            "queuem",
            "submission",
            "scheduling",
            "limits.timelimit",
            "limits.min.nnodes",
            "limits.max.nnodes",
            "resources.all.nnodes",
            "resources.all.ncores",
            "resources.all.ngpus",
        )
        form = "\x1f".join(f"{{{field}}}" for field in fields)
        done = self._flux("queue", "list", "--no-header", f"--format={form}")
        if done.returncode:
            raise SchedulerDown(f"flux queue list ended with {done.returncode}: {_words(done)}")
        lines = [line.split("\x1f") for line in done.stdout.split("\n")]
        return [_queue(parts) for parts in lines if len(parts) == len(fields) and parts[0].strip("* ")]

    def keeps_finished_jobs(self) -> tuple[bool, str]:
        """Return that it tells how finished jobs ended."""
        return True, "flux jobs tells how finished jobs ended, until the site purges them"

    def version(self) -> str:
        """Return its name and version in one line.

        Raises:
            SchedulerDown: Its commands are not there, or are another's.
        """
        done = self._flux("version")
        found = re.search(r"(?:commands|libflux-core):\s*(\S+)", done.stdout)
        if found is None:
            raise SchedulerDown(
                f"the flux on the PATH is not the scheduler's: `flux version` says {_words(done)!r}."
            )
        return f"Flux {found[1]}"

    def _in_job(self) -> bool:
        """Whether the instance around this process is a job of another one."""
        if self._inside is None:
            done = self._ask(("flux", "getattr", "instance-level"), env=_environ())
            self._inside = done.returncode == 0 and done.stdout.strip() not in ("", "0")
        return self._inside

    def _flux(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the instance that jobs are submitted to."""
        parent = ("--parent",) if os.environ.get("FLUX_URI") and self._in_job() else ()
        return self._ask(("flux", *parent, *words), env=_environ())

    def _own(self, *words: str, environ: Mapping[str, str] | None = None) -> str:
        """What a command of the instance around a process prints; without an environment, around this process.

        Raises:
            SchedulerDown: It failed.
        """
        done = self._ask(("flux", *words), env=_environ(environ))
        if done.returncode or not done.stdout.strip():
            raise SchedulerDown(f"`flux {' '.join(words)}` ended with {done.returncode}: {_words(done)}")
        return done.stdout.strip()


def _environ(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    return {**(os.environ if environ is None else environ), "FLUX_F58_FORCE_ASCII": "1"}


def _words(done: subprocess.CompletedProcess[str]) -> str:
    return (done.stderr.strip() or done.stdout.strip() or "without a word")[-2000:]


def _job(line: str) -> Job:
    told = dict(zip(_FIELDS, (word.strip() for word in line.split("\x1f")), strict=True))
    state = _RESULTS.get(told["result"]) or _STATES.get(told["state"], "pending")
    if state == "pending" and told["urgency"] == "0":
        state = "held"
    what, note = told["exception.type"], told["exception.note"]
    if state == "failed" and (what == "node-failure" or "lost contact" in note):
        state = "node_failed"
    code = _number(told["returncode"])
    ended = _time(told["t_inactive"])
    return Job(
        told["id.f58"].replace("ƒ", "f"),
        state,
        name=told["name"],
        reason=": ".join(filter(None, (what, note))),
        exit_code=None if code is None or told["result"] == "" else _exit_code(int(code)),
        hosts=expand_nodes(told["nodelist"]) if told["nodelist"] else (),
        started_at=_time(told["t_run"]),
        ends_at=ended or _time(told["expiration"]),
        owner=told["userid"],
        submitted_at=_time(told["t_submit"]),
    )


def _exit_code(code: int) -> int | None:
    """Of the script, negative by a signal. -128: it was cancelled before it ran.

    Example:
        >>> _exit_code(137), _exit_code(3), _exit_code(-128)
        (-9, 3, None)
    """
    if code == -128:
        return None
    return 128 - code if code > 128 else code


def _number(word: str) -> float | None:
    try:
        found = float(word)
    except ValueError:
        return None
    return found if math.isfinite(found) else None


def _time(word: str) -> float | None:
    """Unix time, in seconds; Flux says 0.0 of what is not known."""
    return _number(word) or None


def _duration(word: str) -> float | None:
    """Seconds in a Flux standard duration (RFC 23); None: no limit.

    Example:
        >>> _duration("1.5h"), _duration("30m"), _duration("inf"), _duration("")
        (5400.0, 1800.0, None, None)
    """
    found = _DURATION.match(word.strip())
    return None if found is None else float(found[1]) * _SECONDS[found[2]]


def _queue(parts: Sequence[str]) -> Queue:
    name, takes, starts, longest, fewest, most, nodes, cores, gpus = (word.strip() for word in parts)
    count = int(_number(nodes) or 0)
    return Queue(
        name.rstrip("*"),
        default=name.endswith("*"),
        open=takes == "enabled" and starts == "started",
        min_nodes=_whole(fewest),
        max_nodes=_whole(most),
        max_walltime_s=_duration(longest),
        cores=int(_number(cores) or 0) // count or None if count else None,
        gpus=int(_number(gpus) or 0) // count or None if count else None,
        nodes=count or None,
    )


def _whole(word: str) -> int | None:
    found = _number(word)
    return None if found is None else int(found)
