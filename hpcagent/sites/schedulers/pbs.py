"""PBS: OpenPBS and PBS Professional, by their own commands.

What is believed of an answer was seen of a real OpenPBS: a `qstat` for several jobs may show the first one
only, and one that knows no history shows none at all, both without an error. A job is shown running for up to 13 s
after its processes have died, and one of a dead node until that is back. TORQUE is another system.
"""

from __future__ import annotations

import grp
import json
import os
import pwd
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hpcagent.owners import user_name
from hpcagent.sites.schedulers.answers import Allocation, Job, NodeShape, Places, Queue, State
from hpcagent.sites.schedulers.base import Scheduler, SchedulerDown
from hpcagent.sites.schedulers.submission import Refused, only_id
from hpcagent.sites.script_paths import is_plain

__all__ = ["Pbs", "tool"]

_STATES: dict[str, State] = {
    "Q": "pending",
    "T": "pending",  # on its way to another queue
    "W": "pending",  # for its time, or for its files
    "M": "pending",  # moved to another server, where it may well run: not ended
    "H": "held",
    "S": "held",
    "U": "held",  # suspended, as S: has nodes, and does nothing
    "R": "running",
    "B": "running",  # an array, some of whose members have begun
    "E": "ending",
}
_ENDED = ("F", "X", "C")

# A command ends with PBS's error number modulo 256; 15001 is 153.
_UNKNOWN_JOB, _FINISHED_JOB, _NO_MOM = 153, 35, 222
_NO_SERVER = (162, 255)
_LATER = {
    13: "the server's table of connections is full",
    17: "the licence server is down",
    38: "a limit of jobs",
    39: "a limit of resources in use",
    57: "the server cannot write its database",
    104: "the server asks to try again",
    162: "the server is not there",
    163: "an internal error of the server",
    185: "no free connections",
    186: "no server",
    196: "resources unavailable for now",
    198: "the queue is full",
    212: "the server is shutting down",
    242: "licensed cores exceeded",
    250: "no licence is free",
    255: "the server is not there",
}
_NEVER = {
    1: "the script cannot be read, or PBS has no settings on this machine",
    2: "a wrong option",
    5: "a resource that cannot be beside select",
    32: "a hook of the site refused it",
    166: "a value that is not allowed",
    170: "`qstat -Q` lists the queues",
    173: "the queue takes no jobs",
    174: "this user may not use the queue",
    175: "this user may not run jobs here",
    187: "a resource that this site has not defined",
    188: "`qstat -Qf` shows the limits",
}
_LATER_WORDS = re.compile(
    r"cannot connect|connection (refused|timed out)|would exceed .*limit|maximum number of jobs"
    r"|temporarily|try .*again|shutting down",
    re.IGNORECASE,
)
_DOWN_WORDS = re.compile(
    r"cannot connect|could not connect to server|connection (refused|timed out)|no server|shutting down"
    r"|no free connections",
    re.IGNORECASE,
)
# Not "illegally formed job identifier": that is said of jobs that run, where the server's name is not known.
_NO_SUCH_JOB = re.compile(r"unknown job id|job has finished|unknown queue destination", re.IGNORECASE)
_DEAD_NODE = re.compile(r"could not connect to mom", re.IGNORECASE)
_CUT_OFF = re.compile(r"communication failure|end of file|timed out|protocol", re.IGNORECASE)
"""A qsub that ended with such words may have been heard all the same."""
_NO_HISTORY = "not configured to maintain job history"
_KILLED = {-26: "vmem", -27: "mem", -28: "cput", -29: "walltime"}  # by PBS: Exit_status
_NODE_FAILED = {
    -4: "its node was started again",
    -5: "its node was started again",
    -6: "its node was started again",
    -14: "one of its nodes failed",
    -20: "one of its nodes could not join it",
}
"""By Exit_status of a job: JOB_EXEC_INITABT, INITRST, INITRMG, RERUN_SIS_FAIL and JOINJOB."""
_LIMIT = re.compile(r'\[([ugpo]):"?([^="\]]+)"?=(\d+)\]')
_QUEUED, _WAITING, _RUN = "max_queued", "queued_jobs_threshold", "max_run"
_OLD_LIMITS = {"max_queuable": (_QUEUED, "o"), "max_running": (_RUN, "o"), "max_user_run": (_RUN, "u")}
_NO_PROJECT = "_pbs_project_default"
_EXCEEDED = re.compile(r"exceeded resource (\w+)")
_MONTHS = "Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec"

Record = dict[str, str]
"""What qstat told of one thing, flat: `Resource_List.walltime`. R emits numbers where M emits strings."""


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
        found = {job_id: _job(job_id, record) for job_id, record in self._records(job_ids).items()}
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
        return {wanted: record for key, record in records.items() for wanted in _same(key, job_ids)}

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
            return done, _from_json(done.stdout, kind)
        except ValueError:
            # Before 23.06 an odd value in a job's environment made the JSON of all jobs invalid (openpbs#2541).
            text = self._told(["qstat", *options, *names])
            records = _from_text(text.stdout)
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
        unknown = bool(lines) and all(_NO_SUCH_JOB.search(line) for line in lines)
        if _DOWN_WORDS.search(done.stderr) or not (
            done.returncode in (0, _UNKNOWN_JOB, _FINISHED_JOB) or (unknown and done.returncode not in _NO_SERVER)
        ):
            raise SchedulerDown(
                f"`{' '.join(command)}` ended with {done.returncode}: {_words(done) or 'without a word'}"
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
        jobs = [_job(job_id, record) for job_id, record in records.items()]
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
        words = _words(done)
        if done.returncode == 0:
            lines = [line.strip() for line in done.stdout.splitlines()]  # some sites' qsub greets first
            if found := [line for line in lines if re.fullmatch(r"\d+(\[\d*\])?(\.\S+)?", line)]:
                return only_id(list(dict.fromkeys(found)), f"qsub took {script}")
            raise Refused(
                f"qsub took {script} and printed no job id: {words or 'nothing'}", transient=True, unheard=True
            )
        code = done.returncode
        # The words of a hook are the site's: "try again next month" does not mean that trying helps.
        known = code in _NEVER and code != 1
        transient = code in _LATER or (not known and bool(_LATER_WORDS.search(words)))
        hint = _LATER.get(code) or _NEVER.get(code)
        raise Refused(
            f"PBS did not take {script} (qsub ended with {code}{f', {hint}' if hint else ''}): {words}",
            transient=transient,
            unheard=bool(_CUT_OFF.search(words)),
        )

    def cancel(self, job_ids: Iterable[str]) -> None:
        """Ask to end these jobs. One that has ended or is unknown is no error.

        Raises:
            SchedulerDown: It did not answer.
        """
        # One by one: a bad id among several makes qdel fail, though the others are deleted.
        failures = []
        for job_id in dict.fromkeys(job_ids):
            done = self._ask(["qdel", job_id])
            if done.returncode == _NO_MOM or _DEAD_NODE.search(done.stderr):
                # Nothing of it can run on, and without force it would be shown running until its node is back.
                self._dead.add(job_id)
                done = self._ask(["qdel", "-W", "force", job_id])
            words = _words(done)
            if done.returncode in _NO_SERVER or _DOWN_WORDS.search(words):
                raise SchedulerDown(f"`qdel {job_id}` ended with {done.returncode}: {words or 'without a word'}")
            over = done.returncode in (0, _UNKNOWN_JOB, _FINISHED_JOB) or _NO_SUCH_JOB.search(words)
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
        shares = _shares(record.get("exec_vnode", ""), record.get("exec_host", ""))
        # The file is on the job's first node only.
        listed = _node_file(environ.get("PBS_NODEFILE", "")) or list(shares) or [socket.gethostname()]
        own = _short(socket.gethostname())
        hosts = sorted(dict.fromkeys(listed), key=lambda host: _short(host) != own)
        told = _int(environ.get("NCPUS")) or _int(environ.get("OMP_NUM_THREADS", "").partition(",")[0]) or 1
        nodes = []
        for host in hosts:
            guess = told if told > 1 else min(listed.count(host), os.cpu_count() or 1)
            cores, gpus = shares.get(_short(host), (guess, 0))
            nodes.append(NodeShape(host, cores or guess, gpus))
        job = _job(job_id, record)
        ends_at = job.ends_at or _end_by_environment(environ)
        return Allocation(job_id, tuple(nodes), ends_at, guessed=not shares, started_at=job.started_at)

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
        return [_queue(name, record, default, nodes) for name, record in records.items()]

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
        queue = queue or server.get("default_queue", "")
        names = {queue, *_routed(queues.get(queue, {}))}
        found = Places()
        for record, of, where in [
            *((queues[n], n, f"queue {n}") for n in sorted(names & queues.keys())),
            (server, None, "server"),
        ]:
            for limit, kind, most, words in _limits_in(record, project or _NO_PROJECT):
                used = self._count(limit, kind, record, of, project)
                told = f"{words} of {where}"
                if limit == _RUN:
                    found = found.under(running=most, words=told)
                else:
                    # Jobs that wait are not all of those that a threshold leaves room for.
                    found = found.under(most=most if limit == _QUEUED else None, free=most - used, words=told)
        return found

    def _count(self, limit: str, kind: str, record: Record, queue: str | None, project: str | None) -> int:
        """How many jobs a limit counts now."""
        if limit == _RUN:  # more of them wait, and are taken all the same
            return 0
        if kind == "o":
            waiting = re.search(r"Queued:(\d+)", record.get("state_count", ""))
            return int(waiting[1]) if limit == _WAITING and waiting else _int(record.get("total_jobs")) or 0
        words = ["qselect", "-u", user_name(os.getuid())]
        words += ["-q", queue] if queue else []
        words += ["-s", "Q"] if limit == _WAITING else []
        words += ["-P", project] if kind == "p" and project else []
        return len(self._told(words).stdout.split())

    def _nodes(self) -> list[Record]:
        """What pbsnodes tells, or nothing: it is of use, and not needed."""
        try:
            done = self._ask(["pbsnodes", "-a", "-F", "json"])
            return list(_from_json(done.stdout, "nodes").values()) if done.returncode == 0 else []
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
            said = _words(done) or done.stdout.strip()
            raise SchedulerDown(
                f"{tool('qstat')} is not the qstat of OpenPBS or PBS Professional: `qstat --version` says "
                f"{said[:100]!r}, not `pbs_version = …`. Slurm's wrappers (Debian's slurm-wlm-torque) look like "
                'it: then use scheduler = "slurm". TORQUE is not supported.'
            )
        return f"PBS {found[1]}"


def _routed(queue: Record) -> list[str]:
    """Where a routing queue sends its jobs, if that is one queue: the limits there are theirs."""
    to = [name.strip() for name in queue.get("route_destinations", "").split(",") if name.strip()]
    return to if len(to) == 1 else []


def _limits_in(record: Record, project: str) -> Iterator[tuple[str, str, int, str]]:
    """The limits of a queue or of the server that hold for this user's jobs: which, its kind, how many, its words.

    Example:
        >>> list(_limits_in({"max_run": "[u:PBS_GENERIC=2],[o:PBS_ALL=9]"}, ""))
        [('max_run', 'u', 2, 'max_run = [u:PBS_GENERIC=2]'), ('max_run', 'o', 9, 'max_run = [o:PBS_ALL=9]')]
    """
    whose = {"u": user_name(os.getuid()), "g": _group(), "p": project, "o": "PBS_ALL"}
    for limit in (_QUEUED, _WAITING, _RUN):
        told = {(kind, who): int(most) for kind, who, most in _LIMIT.findall(record.get(limit, ""))}
        for kind, who in whose.items():
            name = who if (kind, who) in told else "PBS_GENERIC"  # one of one's own comes first
            if (kind, name) in told:
                yield limit, kind, told[kind, name], f"{limit} = [{kind}:{name}={told[kind, name]}]"
    for old, (limit, kind) in _OLD_LIMITS.items():
        if (most := _int(record.get(old))) is not None:
            yield limit, kind, most, f"{old} = {most}"


def _group() -> str:
    try:  # the first group of the login: this process may be in another now
        return grp.getgrgid(pwd.getpwuid(os.getuid()).pw_gid).gr_name
    except KeyError:
        return ""


def tool(name: str) -> str | None:
    """Return where one of its commands is.

    In a job, which begins with the PATH of a login, that may be where it was for whoever submitted the job.
    """
    return shutil.which(name) or shutil.which(name, path=os.environ.get("PBS_O_PATH", ""))


def _words(done: subprocess.CompletedProcess[str]) -> str:
    return " / ".join(line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip())


def _same(key: str, wanted: list[str]) -> Iterator[str]:
    """The wanted ids that mean the job of this key; both may be without the end of the server's name."""
    if key in wanted:
        yield key
        return
    for job_id in wanted:
        if key.partition(".")[0] == job_id.partition(".")[0] and (
            job_id.startswith(key) or key.startswith(job_id)
        ):
            yield job_id


def _from_json(text: str, kind: str) -> dict[str, Record]:
    """Raises ValueError if it is no JSON, or not an object."""
    data = json.loads(text, strict=False)  # line ends and tabs of environment values may be in it as they are
    things = data.get(kind, {}) if isinstance(data, dict) else None
    if not isinstance(things, dict):
        raise ValueError(f"no {kind}")
    return {str(key): _flat(value) for key, value in things.items() if isinstance(value, dict)}


def _flat(record: Mapping[str, Any]) -> Record:
    flat: Record = {}
    for key, value in record.items():
        if isinstance(value, dict):
            flat.update((f"{key}.{inner}", str(v)) for inner, v in value.items())
        else:
            flat[key] = str(value)
    return flat


def _from_text(text: str) -> dict[str, Record]:
    """Read what `qstat -f` prints without -F: a headed paragraph each, long lines go on after a tab."""
    records: dict[str, Record] = {}
    record: Record = {}
    for line in text.replace("\n\t", "").splitlines():
        if heading := re.match(r"(Job Id|Queue|Server): (\S+)", line):
            record = records.setdefault(heading[2], {})
        elif field := re.match(r"    (\S+) = (.*)", line):
            record.setdefault(field[1], field[2])  # a value with line ends could fake a later field
    return records


def _job(job_id: str, record: Record) -> Job:
    letter = record.get("job_state", "")
    over = letter in _ENDED
    status = _int(record.get("Exit_status"))
    state, reason = _ending(record, status) if over else (_STATES.get(letter, "pending"), _waits_for(record))
    if not over and letter not in _STATES:
        reason = f"PBS shows the state {letter!r}. {reason}".strip()
    started = _time(record.get("stime"))
    walltime = _seconds(record.get("Resource_List.walltime"))
    until = started + walltime if started is not None and walltime is not None else None
    return Job(
        job_id,
        state,
        name=record.get("Job_Name", ""),
        reason=reason,
        exit_code=_exit_code(state, status) if over else None,
        hosts=tuple(dict.fromkeys(part.partition("/")[0] for part in _parts(record.get("exec_host", "")))),
        started_at=started,
        ends_at=_ended_at(record, started) if over else until,
        owner=record.get("Job_Owner", "").partition("@")[0],
        submitted_at=_time(record.get("ctime")),
    )


def _waits_for(record: Record) -> str:
    """PBS's comment; of a job that is held without one, why."""
    comment = record.get("comment", "")
    if record.get("job_state") != "H" or comment:
        return comment
    after = re.findall(r"(?:^|,)(?:after|on)\w*:([^,]+)", record.get("depend", ""))
    if after:
        ids = [job.partition("@")[0] for jobs in after for job in jobs.split(":")]
        return f"waits for job {', '.join(ids)}"
    holds = {"u": "by its user", "o": "by an operator", "s": "by the system"}
    whose = [words for letter, words in holds.items() if letter in record.get("Hold_Types", "")]
    return f"held {' and '.join(whose)}" if whose else ""


def _ended_at(record: Record, started: float | None) -> float | None:
    """When a job's end was told to the server, which is when it gave its nodes back; Unix time, in seconds.

    Not its start and its walltime: limits are enforced late, by 2 to 15 s and more.
    """
    obit = _time(record.get("obittime"))
    if obit is not None:
        return obit
    if (at := _int(record.get("history_timestamp"))) is not None:
        return float(at)
    used = _seconds(record.get("resources_used.walltime"))
    return started + used if started is not None and used is not None else _time(record.get("mtime"))


def _ending(record: Record, status: int | None) -> tuple[State, str]:
    """How a job ended: by comment and substate, because its Exit_status may be 0 after a qdel."""
    comment = record.get("comment", "")
    if status in _NODE_FAILED:
        return "node_failed", f"{_NODE_FAILED[status]} (Exit_status {status}). {comment}".strip()
    exceeded = _EXCEEDED.search(comment)
    what = exceeded[1] if exceeded else _KILLED.get(status or 0, "")
    if what in ("walltime", "cput"):
        return "timeout", comment or f"its {what} was over"
    if what.endswith("mem") or re.search(r"\boom|out of memory|mem(ory)? limit", comment, re.IGNORECASE):
        return "out_of_memory", comment or f"it needed more {what} than it asked for"
    if "preempt" in comment.lower():
        return "preempted", comment
    if record.get("substate") == "91" or re.search(r"and terminated\b", comment):
        return "cancelled", comment
    if status is None:
        # e.g. one whose dependency can no longer come true
        return "failed", f"it ended without having run. {comment}".strip()
    if status == 0 and record.get("substate") != "93":
        return "completed", comment
    if status < 0:
        return "failed", f"PBS could not run it (Exit_status {status}). {comment}".strip()
    return "failed", comment


def _exit_code(state: State, status: int | None) -> int | None:
    if status is None or status < 0:
        return None  # negative: PBS's own, not the script's
    if status == 0 and state != "completed":
        return None  # seen after qdel, whatever the script did
    return 256 - status if status > 256 else status


def _queue(name: str, record: Record, default: str | None, nodes: list[Record]) -> Queue:
    ours = [n for n in nodes if n.get("queue", name) == name and not n.get("resources_available.Qlist")]
    cores, memory, gpus = (_only(ours, f"resources_available.{what}") for what in ("ncpus", "mem", "ngpus"))
    return Queue(
        name,
        default=name == default,
        open=record.get("enabled") == "True" and record.get("started") == "True",
        min_nodes=_int(record.get("resources_min.nodect")),
        max_nodes=_int(record.get("resources_max.nodect")),
        max_walltime_s=_seconds(record.get("resources_max.walltime")),
        cores=_int(cores),
        memory_gb=_gigabytes(memory),
        gpus=_int(gpus) if ours else None,
        nodes=len(ours) or None,
    )


def _only(nodes: list[Record], key: str) -> str | None:
    """The value that all of them have, if they have one."""
    values = {node.get(key) for node in nodes}
    return values.pop() if len(values) == 1 else None


def _parts(text: str) -> list[str]:
    return [part for part in text.split("+") if part]


def _shares(exec_vnode: str, exec_host: str = "") -> dict[str, tuple[int, int]]:
    """Cores and GPUs by host of `(a:ncpus=2:ngpus=1)+(b[0]:ncpus=1+b[1]:ncpus=1)`.

    Vnodes may be called anything; `exec_host` has the host of each chunk, in the same order.

    Example:
        >>> _shares("(sn:ncpus=4)+(v7:ncpus=2+v8:ncpus=2)", "a/0*4+a/1*4")
        {'a': (8, 0)}
    """
    chunks = re.findall(r"\(([^)]*)\)", exec_vnode)
    hosts = [part.partition("/")[0] for part in _parts(exec_host)]
    shares: dict[str, tuple[int, int]] = {}
    for index, chunk in enumerate(chunks):
        for part in _parts(chunk):
            vnode, *resources = part.split(":")
            told = dict(r.partition("=")[::2] for r in resources)
            host = _short(hosts[index] if len(hosts) == len(chunks) else vnode.partition("[")[0])
            cores, gpus = shares.get(host, (0, 0))
            shares[host] = (cores + (_int(told.get("ncpus")) or 0), gpus + (_int(told.get("ngpus")) or 0))
    return shares


def _short(host: str) -> str:
    return host.partition(".")[0]


def _node_file(path: str) -> list[str]:
    try:
        return Path(path).read_text().split() if path else []
    except OSError:
        return []


def _end_by_environment(environ: Mapping[str, str]) -> float | None:
    """TORQUE's and some sites' PBS_WALLTIME, from when the node file was written: at the job's start."""
    walltime = _seconds(environ.get("PBS_WALLTIME"))
    try:
        begun = Path(environ["PBS_NODEFILE"]).stat().st_mtime
    except (KeyError, OSError):
        return None
    return None if walltime is None else begun + walltime


def _int(text: str | None) -> int | None:
    try:
        return None if text is None else int(float(text))
    except ValueError:
        return None


def _gigabytes(text: str | None) -> float | None:
    found = re.fullmatch(r"(\d+)([kmgt]?)b?", text or "", re.IGNORECASE)
    if found is None:
        return None
    return round(int(found[1]) * 1024.0 ** " kmgt".index(found[2].lower() or " ") / 1e9, 3)


def _seconds(text: str | None) -> float | None:
    """`HH:MM:SS`, `D:HH:MM:SS` or plain seconds.

    Example:
        >>> _seconds("01:30:00"), _seconds("30")
        (5400.0, 30.0)
    """
    try:
        parts = [float(part) for part in (text or "").split(":")]
    except ValueError:
        return None
    return sum(part * unit for part, unit in zip(reversed(parts), (1, 60, 3600, 86400), strict=False))


def _time(text: str | None) -> float | None:
    """Unix time of `Fri Nov 20 17:22:18 2026`, in this machine's time zone; strptime would ask the locale."""
    found = re.fullmatch(rf"\w+ +({_MONTHS}) +(\d+) (\d+):(\d+):(\d+) (\d+)", text or "")
    if found is None:
        return None
    day, hour, minute, second, year = (int(found[i]) for i in range(2, 7))
    return time.mktime((year, _MONTHS.index(found[1]) // 4 + 1, day, hour, minute, second, 0, 0, -1))
