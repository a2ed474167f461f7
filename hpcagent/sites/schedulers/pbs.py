"""PBS: OpenPBS and PBS Professional, by their own commands.

What is believed of an answer was seen of a real OpenPBS: a `qstat` for several jobs may show the first one
only, and one that knows no history shows none at all, both without an error. A job is shown running for up to 13 s
after its processes have died, and one of a dead node until that is back. TORQUE is another system.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hpcagent.owners import user_name
from hpcagent.sites.schedulers.answers import Allocation, Job, Places, Queue
from hpcagent.sites.schedulers.base import Scheduler, SchedulerDown
from hpcagent.sites.schedulers.pbs_allocation import allocation_of
from hpcagent.sites.schedulers.pbs_errors import (
    DEAD_NODE,
    DOWN_WORDS,
    FINISHED_JOB,
    NO_MOM,
    NO_SERVER,
    NO_SUCH_JOB,
    UNKNOWN_JOB,
    printed,
    refusal,
)
from hpcagent.sites.schedulers.pbs_jobs import job_of
from hpcagent.sites.schedulers.pbs_queues import places_in, queue_of
from hpcagent.sites.schedulers.pbs_records import Record, from_json, from_text, same_jobs
from hpcagent.sites.schedulers.submission import Refused, only_id
from hpcagent.sites.script_paths import is_plain

__all__ = ["Pbs", "tool"]

_NO_HISTORY = "not configured to maintain job history"


class Pbs(Scheduler):
    """OpenPBS and PBS Professional.

    Args:
        timeout_s: How long one of its commands may take.
    """

    name = "pbs"
    title = "PBS"
    commands = ("qsub", "qstat")
    ends_by = "qdel"
    begins_by = "qsub"
    job_variable = "PBS_JOBID"
    account_variables = ("PBS_ACCOUNT",)
    takes = frozenset({"select_options", "bind_cmd", "filesystems"})
    instead = {
        "qos": "PBS has queues only",
        "constraint": 'write it in select_options, e.g. "system=crux"',
        "exclusive": 'write directives = ["-l place=scatter:excl"]',
        "mem_per_node_gb": 'write it in select_options, e.g. "mem=100gb"',
    }
    wants_cores = True
    not_launchers = frozenset()
    host_lines = 'sort -u "$PBS_NODEFILE"'
    block_notes = 'directives = ["-l place=scatter"]  # without it PBS may put two chunks on one node'

    @classmethod
    def ping(cls, said: Callable[[str], str]) -> tuple[bool, str]:
        """Return whether its server answers; TORQUE, Grid Engine and Slurm's look-alikes have a qstat, too."""
        version = said("qstat --version")
        if "pbs_version" not in version:  # an own PBS without a configuration says so here
            return False, f"its qstat says {version[:100]!r}, not pbs_version"
        words = said("qstat -B -f")
        server = re.search(r"^Server: (\S+)", words, re.MULTILINE)
        return server is not None, f"server {server[1]}" if server else words

    def __init__(self, *, timeout_s: float = 30.0) -> None:
        super().__init__(timeout_s=timeout_s)
        self._has_history = True
        self._dead: set[str] = set()  # jobs whose node did not answer when they were to be ended

    @property
    def _cwd(self) -> str | None:
        """Not in a folder with a quote or a comma in its name, which qsub hands on in a list of such."""
        try:
            return None if is_plain(Path.cwd()) else "/"
        except OSError:  # it was removed
            return "/"

    def _ask(
        self, command: Sequence[str], *, given: str | None = None, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run one of its commands (`env`: its whole environment, in place of ours).

        Raises:
            SchedulerDown: It is not there, or took longer than `timeout_s`.
        """
        name, *rest = command
        found = name if shutil.which(name) else tool(name)
        return super()._ask([found or name, *rest], given=given, env=env)

    def jobs(self, job_ids: Iterable[str]) -> dict[str, Job]:
        """Return how these jobs stand. One that is missing in the answer is not known (yet, or any more).

        Raises:
            SchedulerDown: It did not answer. Nothing is known, least of all that a job has ended.
        """
        found = {job_id: job_of(job_id, record) for job_id, record in self._records(job_ids).items()}
        for job_id in self._dead & found.keys():
            if found[job_id].state == "cancelled":
                words = f"its node did not answer. {found[job_id].reason}".strip()
                found[job_id] = replace(found[job_id], state="node_failed", reason=words)
        return found

    def _records(self, job_ids: Iterable[str]) -> dict[str, Record]:
        wanted = list(dict.fromkeys(job_ids))
        if not wanted:
            return {}
        found = self._qstat_jobs(wanted)
        if len(wanted) > 1:
            # OpenPBS of 2024 to 2026 reports the first of several and says nothing (openpbs#2672).
            for job_id in [job_id for job_id in wanted if job_id not in found]:
                found.update(self._qstat_jobs([job_id]))
        return found

    def _qstat_jobs(self, job_ids: list[str]) -> dict[str, Record]:
        for _ in range(2):
            done, records = self._qstat([*(["-x"] if self._has_history else []), "-f"], job_ids, kind="Jobs")
            if self._has_history and _NO_HISTORY in done.stderr:
                self._has_history = False
            elif not self._has_history and "Job has finished" in done.stderr:  # it was switched on meanwhile
                self._has_history = True
            else:
                break
        return {wanted: record for key, record in records.items() for wanted in same_jobs(key, job_ids)}

    def _qstat(
        self, options: list[str], names: list[str], *, kind: str
    ) -> tuple[subprocess.CompletedProcess[str], dict[str, Record]]:
        """Run qstat, as JSON and, should that not be readable, as text.

        Raises:
            SchedulerDown: It did not answer, or with what cannot be read.
        """
        command = ["qstat", *options, "-F", "json", *names]
        done = self._told(command)
        try:
            return done, from_json(done.stdout, kind)
        except ValueError:
            # Before 23.06 an odd value in a job's environment made the JSON of all jobs invalid (openpbs#2541).
            text = self._told(["qstat", *options, *names])
            records = from_text(text.stdout)
            if not records and text.returncode == 0 and _NO_HISTORY not in text.stderr:
                raise SchedulerDown(
                    f"`{' '.join(command)}` printed what is no JSON ({done.stdout[:60]!r}…), and without -F json "
                    "it shows nothing either."
                ) from None
            return text, records

    def _told(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        """Run qstat; jobs it does not know are no error.

        Raises:
            SchedulerDown: It said anything else.
        """
        done = self._ask(command)
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        unknown = bool(lines) and all(NO_SUCH_JOB.search(line) for line in lines)
        if DOWN_WORDS.search(done.stderr) or not (
            done.returncode in (0, UNKNOWN_JOB, FINISHED_JOB) or (unknown and done.returncode not in NO_SERVER)
        ):
            raise SchedulerDown(
                f"`{' '.join(command)}` ended with {done.returncode}: {printed(done) or 'without a word'}"
            )
        return done

    def named(self, name: str) -> list[Job]:
        """Return the jobs of this user, waiting or running, whose name has `name` in it.

        Raises:
            SchedulerDown: It did not answer.
        """
        # `qstat -u` shortens names and ids, also with -w; of -f it makes the short form again.
        user = user_name(os.getuid())
        if tool("qselect"):
            done = self._told(["qselect", "-u", user])
            records = self._records(done.stdout.split())
        else:
            _, everything = self._qstat(["-f"], [], kind="Jobs")
            records = {i: r for i, r in everything.items() if r.get("Job_Owner", "").partition("@")[0] == user}
        jobs = [job_of(job_id, record) for job_id, record in records.items()]
        return [job for job in jobs if name in job.name and not job.over]

    def submit(self, script: Path, *, after: str | None = None) -> str:
        """Submit a job script and return the job's full id.

        Args:
            script: The script, with all its options as directives.
            after: Id of a job after whose end, however it ends, this one may start.

        Raises:
            Refused: With the scheduler's words, and whether another try may help.
        """
        dependency = [] if after is None else ["-W", f"depend=afterany:{after}"]
        try:
            done = self._ask(["qsub", *dependency, str(script)])
        except SchedulerDown as error:  # it may have been taken all the same, unless there is no qsub
            there = tool("qsub") is not None
            raise Refused(str(error), transient=there, unheard=there) from error
        words = printed(done)
        if done.returncode == 0:
            lines = [line.strip() for line in done.stdout.splitlines()]  # some sites' qsub greets first
            if found := [line for line in lines if re.fullmatch(r"\d+(\[\d*\])?(\.\S+)?", line)]:
                return only_id(list(dict.fromkeys(found)), f"qsub took {script}")
            raise Refused(
                f"qsub took {script} and printed no job id: {words or 'nothing'}", transient=True, unheard=True
            )
        raise refusal(script, done)

    def cancel(self, job_ids: Iterable[str]) -> None:
        """Ask to end these jobs. One that has ended or is unknown is no error.

        Raises:
            SchedulerDown: It did not answer.
        """
        # One by one: a bad id among several makes qdel fail, though the others are deleted.
        failures = []
        for job_id in dict.fromkeys(job_ids):
            done = self._ask(["qdel", job_id])
            if done.returncode == NO_MOM or DEAD_NODE.search(done.stderr):
                # Nothing of it can run on, and without force it would be shown running until its node is back.
                self._dead.add(job_id)
                done = self._ask(["qdel", "-W", "force", job_id])
            words = printed(done)
            if done.returncode in NO_SERVER or DOWN_WORDS.search(words):
                raise SchedulerDown(f"`qdel {job_id}` ended with {done.returncode}: {words or 'without a word'}")
            over = done.returncode in (0, UNKNOWN_JOB, FINISHED_JOB) or NO_SUCH_JOB.search(words)
            # deleted already and on its way out: the next query tells
            if not over and not re.search(r"in progress|invalid for state", words, re.IGNORECASE):
                failures.append(f"`qdel {job_id}` ended with {done.returncode}: {words or 'without a word'}")
        if failures:
            raise SchedulerDown("; ".join(failures))

    def allocation(self, environ: Mapping[str, str]) -> Allocation | None:
        """Return the job that a process with this environment is in, or None.

        The cores are those qstat shows. Where it cannot be asked, they are NCPUS, or one for each line of the
        node file: of several lines of a host nobody can tell whether they are chunks or MPI ranks, and no more is
        taken than is ours.
        """
        job_id = self.inside(environ)
        if not job_id:
            return None
        try:
            record = self._records([job_id]).get(job_id, {})
        except SchedulerDown:  # on compute nodes it is often not there to be asked
            record = {}
        return allocation_of(job_id, record, environ)

    def queues(self) -> list[Queue]:
        """Return its queues.

        Raises:
            SchedulerDown: It did not answer.
        """
        _, records = self._qstat(["-Q", "-f"], [], kind="Queue")
        try:
            _, servers = self._qstat(["-B", "-f"], [], kind="Server")
        except SchedulerDown:
            servers = {}
        default = next((s["default_queue"] for s in servers.values() if "default_queue" in s), None)
        nodes = self._nodes()
        return [queue_of(name, record, default, nodes) for name, record in records.items()]

    def places(self, queue: str | None, *, project: str | None = None) -> Places:
        """Return how many jobs of this user a queue takes, by the limits of the queue and of the server.

        Limits of a group or a project are held against this user's jobs alone.

        Args:
            queue: Its name; None: the one where jobs go that name none.
            project: Of the jobs; None: PBS's default.

        Raises:
            SchedulerDown: It did not answer.
        """
        _, queues = self._qstat(["-Q", "-f"], [], kind="Queue")
        _, servers = self._qstat(["-B", "-f"], [], kind="Server")
        server = next(iter(servers.values()), {})
        return places_in(
            queues, server, queue, project, selected=lambda command: len(self._told(command).stdout.split())
        )

    def _nodes(self) -> list[Record]:
        """What pbsnodes tells, or nothing: it is of use, and not needed."""
        try:
            done = self._ask(["pbsnodes", "-a", "-F", "json"])
            return list(from_json(done.stdout, "nodes").values()) if done.returncode == 0 else []
        except (SchedulerDown, ValueError):
            return []

    def keeps_finished_jobs(self) -> tuple[bool, str]:
        """Return whether it tells how finished jobs ended, and a sentence on it."""
        command = ["qstat", "-x", "-f", "-F", "json", "0"]  # whether there is such a job does not matter
        try:
            done = self._told(command)
        except SchedulerDown as error:
            return False, str(error)
        if _NO_HISTORY in done.stderr:
            return False, (
                "PBS keeps no history of jobs here (job_history_enable is off): how a job ended, and whether its "
                "walltime was over, cannot be known. Its administrators can switch it on."
            )
        return True, "PBS tells how finished jobs ended."

    def version(self) -> str:
        """Return its name and version in one line.

        Raises:
            SchedulerDown: Its commands are not there, or are another's.
        """
        done = self._ask(["qstat", "--version"])
        found = re.search(r"pbs_version\s*=\s*(\S+)", done.stdout + done.stderr)
        if found is None:
            said = printed(done) or done.stdout.strip()
            raise SchedulerDown(
                f"{tool('qstat')} is not the qstat of OpenPBS or PBS Professional: `qstat --version` says "
                f"{said[:100]!r}, not `pbs_version = …`. Slurm's wrappers (Debian's slurm-wlm-torque) look like "
                'it: then use scheduler = "slurm". TORQUE is not supported.'
            )
        return f"PBS {found[1]}"


def tool(name: str) -> str | None:
    """Return where one of its commands is.

    In a job, which begins with the PATH of a login, that may be where it was for whoever submitted the job.
    """
    return shutil.which(name) or shutil.which(name, path=os.environ.get("PBS_O_PATH", ""))
