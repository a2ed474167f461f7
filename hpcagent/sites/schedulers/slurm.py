"""Slurm, asked through its own commands: sbatch, squeue, scontrol, sacct, scancel, sinfo."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hpcagent.sites.schedulers.answers import Allocation, Job, NodeShape, Queue, State
from hpcagent.sites.schedulers.base import Scheduler, SchedulerDown
from hpcagent.sites.schedulers.submission import Refused, only_id

__all__ = ["Slurm", "expand_nodes"]

_STATES: dict[str, State] = {
    "PENDING": "pending",
    "CONFIGURING": "pending",  # its nodes boot
    "POWER_UP_NODE": "pending",
    "REQUEUED": "pending",
    "REQUEUE_FED": "pending",
    "REQUEUE_HOLD": "held",
    "RESV_DEL_HOLD": "held",
    "SPECIAL_EXIT": "held",
    "STOPPED": "held",
    "SUSPENDED": "held",
    "RUNNING": "running",
    "RESIZING": "running",
    "SIGNALING": "running",
    "COMPLETING": "ending",
    "STAGE_OUT": "ending",
    "COMPLETED": "completed",
    "FAILED": "failed",
    "CANCELLED": "cancelled",
    "REVOKED": "cancelled",  # another cluster of the federation started it
    "TIMEOUT": "timeout",
    "DEADLINE": "timeout",
    "OUT_OF_MEMORY": "out_of_memory",
    "NODE_FAIL": "node_failed",
    "BOOT_FAIL": "node_failed",
    "LAUNCH_FAILED": "node_failed",
    "RECONFIG_FAIL": "node_failed",
    "PREEMPTED": "preempted",
}

# The same submission may be taken later. Looked for first: "QOSMaxSubmitJobPerUserLimit" comes with "Job
# violates accounting/QOS policy (job submit limit, user's size and/or time limits)".
_LATER = re.compile(
    r"Max\w*Submit|Submit\w*Limit|MaxJobCount|timed out|unable to contact|temporarily|try again|not responding"
    r"|communication|connection|zero bytes|credential|not available now|inactive or drain|authentication",
    re.IGNORECASE,
)
_NEVER = re.compile(
    r"invalid|cannot be satisfied|configuration is not available|more processors requested|unrecognized option"
    r"|not permitted|access.{0,12}denied|unable to open file|does not look like a batch script"
    r"|too (long|large|many)|PerJobLimit|Max(Wall|Time|Cpu|Node|TRES|Mem)\w*Limit|dependency problem"
    r"|requires an argument|does not exist|no such file|mutually exclusive|exceeds",
    re.IGNORECASE,
)
_SILENT = re.compile(r"invalid job id|already complet|job/step already", re.IGNORECASE)

_ENDED_BY: dict[str, State] = {"NodeDown": "node_failed", "NodeFail": "node_failed", "TimeLimit": "timeout"}
"""In the reason of a job whose nodes are cleared."""

# What says how to reach Slurm. The other SLURM_ variables describe the job that this process is in, and sbatch
# would hand them on: a new job with the memory and the tasks of ours.
_HOW_TO_REACH = frozenset(
    {"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT", "SLURM_SACK_SOCKET", "SLURM_SACK_KEY"}
)
_FORMAT = "%i|%T|%S|%e|%V|%N|%r|%j"
# The whole of a line: other lines that begin with digits are a site's words ("250 SU left").
_JOB_ID = re.compile(r"(\d+)(;\S+)?")
_AT_ONCE = 200
"""Job ids in one command line."""


class Slurm(Scheduler):
    """Slurm. Works with and without accounting (sacct); squeue and scontrol are believed first.

    slurmctld knows a job from the moment sbatch returns until `MinJobAge` (five minutes as a rule) after its
    end; sacct learns of it seconds later, and keeps it.
    """

    name = "slurm"
    title = "Slurm"
    commands = ("sbatch",)
    ends_by = "scancel"
    begins_by = "salloc or sbatch"
    job_variable = "SLURM_JOB_ID"
    account_variables = ("SBATCH_ACCOUNT", "SLURM_ACCOUNT")
    queue_word = "partition"
    mpi_launcher = "srun"
    takes = frozenset({"qos", "constraint", "exclusive", "mem_per_node_gb", "queue_means"})
    instead = {
        "select_options": 'write constraint, or directives = ["--gpus-per-node=4"]',
        "bind_cmd": "write the words in overrides",
        "filesystems": 'write directives = ["--licenses=…"]',
    }
    whole_minutes = True
    own_launcher = "srun"
    not_launchers = frozenset({"pbsdsh"})
    host_lines = 'scontrol show hostnames "$SLURM_JOB_NODELIST"'

    @classmethod
    def ping(cls, said: Callable[[str], str]) -> tuple[bool, str]:
        """Return whether its controller is up, and what `scontrol ping` says."""
        words = said("scontrol ping")
        up = re.search(r"\S+ at \S+ is UP", words)
        return up is not None, up[0] if up else words

    def jobs(self, job_ids: Iterable[str]) -> dict[str, Job]:
        """Return how these jobs stand. One that is missing in the answer is not known (yet, or any more).

        Raises:
            SchedulerDown: It did not answer. Nothing is known, least of all that a job has ended.
        """
        wanted = list(dict.fromkeys(job_ids))
        if not wanted:
            return {}
        mine = self._mine()
        found = {job_id: mine[job_id] for job_id in wanted if job_id in mine}
        for job_id, job in found.items():
            if job.over:
                found[job_id] = self._with_exit_code(job)
        found.update(self._from_history([job_id for job_id in wanted if job_id not in found]))
        return found

    def _mine(self) -> dict[str, Job]:
        """All jobs of this user that slurmctld knows, also those that have ended."""
        # Never `-j IDS`: one id that slurmctld has forgotten turns the answer for all of them into an error.
        answer = self._tell(
            "squeue", "--all", "--states=all", f"--user={os.getuid()}", "--noheader", f"--format={_FORMAT}"
        )
        jobs = {}
        for line in answer.split("\n"):
            fields = line.split("|", 7)
            if len(fields) == 8:
                job_id, state, start, end, submitted, nodes, reason, name = (field.strip() for field in fields)
                jobs[job_id] = _job(job_id, state, reason, "", nodes, start, end, name, submitted=submitted)
        return jobs

    def _with_exit_code(self, job: Job) -> Job:
        """The job with what squeue does not tell."""
        try:
            answer = self._tell("scontrol", "--oneliner", "show", "job", job.job_id)
        except SchedulerDown:  # forgotten in between
            return job
        found = re.search(r" ExitCode=(\S+)", answer)
        return replace(job, exit_code=_exit_code(found[1] if found else "", job.state))

    def _from_history(self, job_ids: Sequence[str]) -> dict[str, Job]:
        """The final states that accounting has of jobs that slurmctld does not know."""
        jobs: dict[str, Job] = {}
        for some in _chunks(job_ids):
            done = self._ask(
                [
                    *("sacct", "--allocations", "--parsable2", "--noheader", f"--jobs={','.join(some)}"),
                    "--format=JobIDRaw,State,Start,End,Submit,User,NodeList,ExitCode,JobName",
                ],
                env=_environ(),
            )
            if done.returncode != 0:  # no accounting: what slurmctld has forgotten is unknown
                return jobs
            for line in done.stdout.split("\n"):
                fields = line.split("|", 8)
                if len(fields) == 9:
                    job_id, state, start, end, submitted, owner, nodes, code, name = fields
                    job = _job(job_id, state, "", code, nodes, start, end, name, submitted=submitted, owner=owner)
                    # A job that slurmctld does not know does not run, whatever the database has not heard.
                    if job.over:
                        jobs[job_id] = job
        return jobs

    def named(self, name: str) -> list[Job]:
        """Return the jobs of this user, waiting or running, whose name has `name` in it.

        Raises:
            SchedulerDown: It did not answer.
        """
        return [job for job in self._mine().values() if not job.over and name in job.name]

    def submit(self, script: Path, *, after: str | None = None) -> str:
        """Submit a job script and return the job's id.

        Args:
            script: The script, with all its options as directives.
            after: Id of a job after whose end, however it ends, this one may start.

        Raises:
            Refused: With sbatch's words, and whether another try may help. `unheard` is true if the job may
                have been taken all the same: sbatch was not answered in time.
        """
        if shutil.which("sbatch") is None:
            raise Refused("sbatch is not on this machine's PATH; is this a login node of the cluster?")
        command = ["sbatch", "--parsable"]
        if after is not None:
            command.append(f"--dependency=afterany:{after}")
        try:
            done = self._ask([*command, str(script)], env=_environ())
        except SchedulerDown as error:
            raise Refused(f"Slurm did not take {script}: {error}", transient=True, unheard=True) from None
        lines = [_JOB_ID.fullmatch(line.strip()) for line in done.stdout.splitlines()]
        if done.returncode == 0 and (found := list(dict.fromkeys(line[1] for line in lines if line))):
            return only_id(found, f"sbatch took {script}")
        words = _words(done)
        passes = bool(_LATER.search(words))
        transient = passes or done.returncode == 0 or not _NEVER.search(words)
        raise Refused(
            f"Slurm did not take {script}: {words}",
            transient=transient,
            unclear=transient and not passes,
            unheard=done.returncode == 0 or bool(re.search("timed out|zero bytes", words, re.IGNORECASE)),
        )

    def cancel(self, job_ids: Iterable[str]) -> None:
        """Ask to end these jobs. One that has ended or is unknown is no error.

        Raises:
            SchedulerDown: It did not answer, or refused.
        """
        # One word that is no job id, and scancel does nothing for any of them.
        wanted = [job_id for job_id in dict.fromkeys(job_ids) if re.fullmatch(r"\d+(_\d+)?", job_id)]
        for some in _chunks(wanted):
            done = self._ask(["scancel", *some], env=_environ())
            lines = [line for line in done.stderr.splitlines() if line.strip() and not _SILENT.search(line)]
            if done.returncode != 0 and lines:
                raise SchedulerDown(f"`scancel {' '.join(some)}` failed: {'; '.join(lines)}")

    def inside(self, environ: Mapping[str, str]) -> str:
        """Return the id of the job that a process with this environment is in; empty: it is in none."""
        return environ.get("SLURM_JOB_ID") or environ.get("SLURM_JOBID") or ""

    def allocation(self, environ: Mapping[str, str]) -> Allocation | None:
        """Return the job that a process with this environment is in, or None."""
        job_id = self.inside(environ)
        if not job_id:
            return None
        hosts = expand_nodes(environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST", ""))
        cores = _counts(environ.get("SLURM_JOB_CPUS_PER_NODE", ""))
        gpus = _gpus_here(environ)
        nodes = [
            NodeShape(host, cores[min(i, len(cores) - 1)] if cores else 1, gpus) for i, host in enumerate(hosts)
        ]
        here = environ.get("SLURMD_NODENAME")
        nodes.sort(key=lambda node: node.host != here)  # stable: ours first
        ends_at = _seconds(environ.get("SLURM_JOB_END_TIME", ""))  # since Slurm 23.02
        if ends_at is None:
            try:
                answer = self._tell("squeue", "--noheader", "--format=%e", f"--jobs={job_id}")
                ends_at = _seconds(answer.strip().splitlines()[0]) if answer.strip() else None
            except SchedulerDown:
                ends_at = None
        return Allocation(job_id, tuple(nodes), ends_at)

    def ended_by(self, job_id: str) -> State | None:
        """Return what ends a running job whose processes get SIGTERM, as the state that it will have.

        While its nodes are cleared a job is COMPLETING; the reason tells the end, and for `scancel` is None (so in
        22.05). Preemption with a grace time sends SIGTERM to a job that stays RUNNING.

        Raises:
            SchedulerDown: It did not answer.
        """
        job = self._mine().get(job_id)
        if job is None:
            return None
        if job.over:
            return job.state
        preempted = re.search(r" PreemptTime=\d", self._tell("scontrol", "--oneliner", "show", "job", job_id))
        if preempted or job.state == "pending":  # it was put back into the queue
            return "preempted"
        if job.state != "ending":
            return None
        return next((state for word, state in _ENDED_BY.items() if word in job.reason), "cancelled")

    def queues(self) -> list[Queue]:
        """Return the partitions; cores, memory and GPUs are those of most of a partition's nodes.

        Raises:
            SchedulerDown: It did not answer.
        """
        shapes: dict[str, tuple[int, int, float, int]] = {}
        for line in self._tell("sinfo", "--all", "--noheader", "--exact", "--format=%R|%D|%c|%m|%G").splitlines():
            name, count, cores, memory, gres = line.strip().split("|", 4)
            if name not in shapes or int(count) > shapes[name][0]:
                shapes[name] = (int(count), _leading(cores), _leading(memory) / 1024, _gpus_of(gres))
        queues = []
        for line in self._tell("scontrol", "--all", "--oneliner", "show", "partition").splitlines():
            about = dict(re.findall(r"(\w+)=(\S*)", line))
            if "PartitionName" not in about:
                continue
            name = about["PartitionName"]
            shape = shapes.get(name)
            queues.append(
                Queue(
                    name,
                    default=about.get("Default") == "YES",
                    open=about.get("State") == "UP",
                    min_nodes=_limit(about.get("MinNodes")) or None,
                    max_nodes=_limit(about.get("MaxNodes")),
                    max_walltime_s=_duration(about.get("MaxTime", "")),
                    cores=shape and shape[1],
                    memory_gb=shape and shape[2],
                    gpus=shape and shape[3],
                    nodes=_limit(about.get("TotalNodes")),
                )
            )
        return queues

    def keeps_finished_jobs(self) -> tuple[bool, str]:
        """Return whether sacct works here, and a sentence on it."""
        try:
            done = self._ask(["sacct", "--allocations", "--noheader", "--starttime=now"], env=_environ())
        except SchedulerDown as error:
            return False, f"How finished jobs ended is known for some minutes only: {error}"
        if done.returncode == 0:
            return True, "sacct tells how finished jobs ended."
        return False, f"How finished jobs ended is known for some minutes only: sacct says {_words(done)!r}."

    def version(self) -> str:
        """Return Slurm's name and version in one line.

        Raises:
            SchedulerDown: Its commands are not there, or are another's.
        """
        answer = self._tell("sbatch", "--version").strip()
        if not answer.lower().startswith("slurm"):
            raise SchedulerDown(
                f"sbatch on this machine's PATH is not Slurm's: `sbatch --version` says {answer!r}."
            )
        return answer

    def _tell(self, *command: str) -> str:
        """Run a command that asks something.

        Raises:
            SchedulerDown: It did not answer.
        """
        done = self._ask(command, env=_environ())
        if done.returncode != 0:
            raise SchedulerDown(f"`{command[0]}` failed: {_words(done)}")
        return done.stdout


def _environ() -> dict[str, str]:
    """Our environment without what would change the answers, and with times as Unix seconds."""
    environ = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SQUEUE_", "SACCT_", "SINFO_", "SCANCEL_", "SCONTROL_", "SLURMD_"))
        and (not name.startswith("SLURM_") or name in _HOW_TO_REACH)
    }
    return {**environ, "SLURM_TIME_FORMAT": "%s"}


def _words(done: subprocess.CompletedProcess[str]) -> str:
    said = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    return "\n".join(said) or f"exit code {done.returncode}"


def _chunks(job_ids: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(job_ids), _AT_ONCE):
        yield job_ids[start : start + _AT_ONCE]


def _job(
    job_id: str,
    words: str,
    reason: str,
    code: str,
    nodes: str,
    start: str,
    end: str,
    name: str,
    *,
    submitted: str = "",
    owner: str = "",
) -> Job:
    word = words.split()[0].rstrip("+") if words.split() else ""  # "CANCELLED by 1000"
    state = _STATES.get(word)
    if state == "pending" and (
        "held" in reason.lower()
    ):  # JobHeldUser, JobHeldAdmin, "launch failed requeued held"
        state = "held"
    reason = "" if reason in ("None", "(null)") else reason
    if state is None:  # a state newer than this: it may well hold its nodes
        state, reason = "running", f"{words} (a state unknown to hpcagent) {reason}".strip()
    job = Job(
        job_id,
        state,
        name,
        reason,
        None,
        expand_nodes(nodes),
        _seconds(start),
        _seconds(end),
        owner=owner,
        submitted_at=_seconds(submitted),
    )
    if state in ("pending", "held") and word != "SUSPENDED":
        return replace(job, started_at=None, ends_at=None)  # where squeue tells them, they are guesses
    if job.over:
        return replace(
            job,
            reason=", ".join(dict.fromkeys([words, *([reason] if reason else [])])),
            exit_code=_exit_code(code, state),
        )
    return job


def _exit_code(words: str, state: State) -> int | None:
    """From Slurm's CODE:SIGNAL.

    Example:
        >>> _exit_code("3:0", "failed"), _exit_code("0:9", "failed"), _exit_code("0:0", "cancelled")
        (3, -9, None)
    """
    found = re.fullmatch(r"(\d+):(\d+)", words)
    if not found:
        return None
    code, signal = int(found[1]), int(found[2])
    if signal:
        return -signal
    return code if code or state == "completed" else None  # 0:0 of a job that was ended before it had an exit code


def _seconds(words: str) -> float | None:
    """A time under SLURM_TIME_FORMAT=%s; N/A, NONE, Unknown and nothing are None."""
    return float(words) if re.fullmatch(r"\d+", words.strip()) and int(words) > 0 else None


def expand_nodes(nodes: str) -> tuple[str, ...]:
    """Return the names in a node list of Slurm's.

    Example:
        >>> expand_nodes("n[1-3,07],login,gpu[01-02]-ib")
        ('n1', 'n2', 'n3', 'n07', 'login', 'gpu01-ib', 'gpu02-ib')
    """
    if nodes in ("", "(null)", "None assigned"):
        return ()
    names: list[str] = []
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", nodes):
        expanded = [""]
        for text, ranges in re.findall(r"([^\[]+)|\[([^\]]*)\]", part):
            tails = [text] if text else [number for piece in ranges.split(",") for number in _range(piece)]
            expanded = [head + tail for head in expanded for tail in tails]
        names += expanded
    return tuple(names)


def _range(piece: str) -> list[str]:
    low, _, high = piece.partition("-")
    if not high:
        return [low]
    return [str(number).zfill(len(low)) for number in range(int(low), int(high) + 1)]


def _counts(words: str) -> list[int]:
    """Numbers of a list with repetitions.

    Example:
        >>> _counts("2(x3),1")
        [2, 2, 2, 1]
    """
    return [int(n) for n, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", words) for _ in range(int(times or 1))]


def _gpus_here(environ: Mapping[str, str]) -> int:
    """GPUs of this job on this node; every node of a job is taken to have as many."""
    # SLURM_GPUS_ON_NODE is in a job script; within a step, the indices.
    if found := re.search(r"(\d+)$", environ.get("SLURM_GPUS_ON_NODE", "")):
        return int(found[1])
    indices = environ.get("SLURM_JOB_GPUS") or environ.get("SLURM_STEP_GPUS") or ""
    return len([index for index in indices.split(",") if index])


def _gpus_of(gres: str) -> int:
    """GPUs of a node.

    Example:
        >>> _gpus_of("gpu:a100:4(S:0-1),craynetwork:4"), _gpus_of("gpu:2"), _gpus_of("(null)")
        (4, 2, 0)
    """
    return sum(int(n) for n in re.findall(r"(?:^|,)gpu(?::[^:,(]+)?:(\d+)", gres))


def _leading(words: str) -> int:
    """The number in `64+`, as sinfo writes for nodes that differ."""
    found = re.match(r"\d+", words)
    return int(found[0]) if found else 0


def _limit(words: str | None) -> int | None:
    return int(words) if words is not None and words.isdigit() else None


def _duration(words: str) -> float | None:
    """Seconds of a time limit; None if there is none.

    Example:
        >>> _duration("1-02:03:04"), _duration("00:02:00"), _duration("UNLIMITED")
        (93784.0, 120.0, None)
    """
    found = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d+):(\d+)", words)
    if not found:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
