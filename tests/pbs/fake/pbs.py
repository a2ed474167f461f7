"""A PBS of one machine, for tests: qsub, qstat, qdel, qselect and pbsnodes with a real OpenPBS's words.

Formats, words and exit codes are those captured on an unpatched OpenPBS 23.06.06 of four hosts; `config.json` says
which of its variants is played. State is one JSON file below a lock. Each job has a process of its own ("mom"),
begun by qsub, that waits for cores, runs the script in a session of its own, watches the walltime and writes down
the end. Times are shorter than the real ones unless a test asks for those: see `REAL_TIMES`. Commands are called by the
hundred: `command.py` runs this module as it was compiled, and what few of them need is imported in their functions.
"""

import contextlib
import fcntl
import json
import os
import pwd
import re
import signal
import sys
import time
from pathlib import Path

HOME = Path(os.environ.get("FAKE_PBS_HOME", ""))
USER = pwd.getpwuid(os.getuid()).pw_name
HERE = Path(__file__).resolve().parent

DEFAULTS = {
    # M: the snapshot of 2026, which shows the first of several jobs only; R: the release 23.06.06, which
    # makes numbers of what looks like one; F: neither.
    "variant": "F",
    "history": True,
    "down": False,  # True: nobody answers; "going": the second in which it goes away
    "conf": True,  # whether there is a pbs.conf
    "server": "vm",
    "login": "login",
    "hosts": {"vm": 2},  # cores of each
    "gpus": 0,  # of each host
    "default_queue": "workq",
    # Of each: enabled, started, max_walltime (s), max_ncpus, max_nodect, min_nodect; route (another queue);
    # max_queued, max_run, queued_jobs_threshold as PBS writes them, e.g. "[u:PBS_GENERIC=2]".
    "queues": {"workq": {}},
    "server_limits": {},  # the same three of the server
    "down_hosts": {},  # {host: since when} of nodes that do not answer, with the processes of their jobs
    "shown_down_s": 60.0,  # so long the server takes such a node for a good one
    "filesystems": None,  # a resource of the site: None (not defined), "job" or "host"
    "root_may_submit": True,
    "exit_lag_s": 0.0,  # how long a job stays in E
    "copy_retry_s": 20.0,  # how long it stays there if the folder of -o or -e is missing
    "walltime_lag_s": 0.0,  # enforcement is late: mom looks every so often
    "end_lag_s": 0.3,  # so long a job stays R after its processes died, if its shell was the first of them
    "starting_s": 0.2,  # so long it is in substate 41
    "poll_s": 1.0,  # in such steps resources_used.walltime moves
    "kill_delay_s": 1.0,  # between SIGTERM and SIGKILL
    "qdel_status": 271,  # Exit_status after a qdel while it ran; 0 where all of PBS is on one host
    "ids_illegal": False,  # every id is "illegally formed", as where the server's name is not known
    "answer_s": 0.0,  # how long every command takes
    "broken_json": False,  # an odd environment value makes the JSON of all jobs invalid (openpbs#2541)
    "qsub_says": "",  # a greeting of the site's
    "qsub_fails": None,  # [exit code, words] of any other failure
    "id_chars": None,  # the length to which ids in answers are cut, as some short forms are
    "job_has_commands": False,  # whether PBS's are on the PATH of a job
    "job_path": "/usr/local/bin:/usr/bin:/bin",
    "qsub_hangs_after": False,  # takes the job, and never answers
}
REAL_TIMES = {"walltime_lag_s": 9.0, "end_lag_s": 10.0, "starting_s": 1.0, "poll_s": 10.0, "kill_delay_s": 10.0}
"""What was seen; up to 15 s and 13 s of the first two."""
RESOURCES = ("walltime", "ncpus", "mem", "nodect", "place", "select", "mpiprocs", "ngpus", "cput", "pmem", "vmem")
UNKNOWN_JOB, SYSTEM, BAD_VALUE, UNKNOWN_QUEUE, NOT_ENABLED, BAD_UID = 153, 162, 166, 170, 173, 175
UNKNOWN_RESOURCE, OVER_LIMIT, FINISHED, TOO_MANY, BAD_STATE, NO_MOM = 187, 188, 35, 38, 168, 222
GENERIC = {"u": "PBS_GENERIC", "g": "PBS_GENERIC", "p": "PBS_GENERIC", "o": "PBS_ALL"}
WHOSE = {"u": "User", "g": "Group", "p": "Project"}


def config():
    with contextlib.suppress(FileNotFoundError):
        return {**DEFAULTS, **json.loads((HOME / "config.json").read_text())}
    return dict(DEFAULTS)


@contextlib.contextmanager
def state(*, write=True):
    """The state, below its lock; written back at the end."""
    with (HOME / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        path = HOME / "state.json"
        data = json.loads(path.read_text()) if path.exists() else {"next": 0, "jobs": {}}
        yield data
        if write:
            part = path.with_suffix(".part")
            part.write_text(json.dumps(data))
            part.rename(path)


class PbsError(Exception):
    def __init__(self, words, code):
        super().__init__(words)
        self.words, self.code = words, code


def main():
    name, arguments = sys.argv[1], sys.argv[2:]
    with (HOME / "calls.log").open("a") as log:
        log.write(json.dumps([name, *arguments]) + "\n")
    settings = config()
    if not settings["conf"]:
        sys.stderr.write("pbsconf error: pbs conf variables not found: PBS_HOME PBS_EXEC PBS_SERVER\n")
        return 1
    if "--version" in arguments:
        print("pbs_version = 23.06.06")
        return 0
    time.sleep(settings["answer_s"])
    if settings["down"]:
        return away(name, arguments, settings)
    try:
        return {"qsub": qsub, "qstat": qstat, "qdel": qdel, "qselect": qselect, "pbsnodes": pbsnodes}[name](
            arguments, settings
        )
    except PbsError as error:
        sys.stderr.write(f"{error.words}\n")
        return error.code


def away(name, arguments, settings):
    """What each of the commands says while the server is not there."""
    server = settings["server"]
    if name == "qstat" and "json" in arguments:
        show("Jobs", {}, "json", settings)
    if name == "qdel":
        sys.stderr.write(f"Connection refused\nCouldn't connect to cluster: {server}\n")
    elif name == "pbsnodes":
        sys.stderr.write(f"Connection refused\npbsnodes: cannot connect to server {server}, error=15010\n")
    elif name == "qstat" and settings["down"] == "going":
        for _ in [a for a in arguments if a[:1].isdigit()] or [""]:
            sys.stderr.write(f"Communication failure.\nqstat: cannot connect to server {server} (errno=15031)\n")
    else:
        sys.stderr.write(f"Connection refused\n{name}: cannot connect to server {server} (errno=15010)\n")
    return {"qstat": 255, "pbsnodes": 1}.get(name, SYSTEM)


# ---- limits


def limits(text):
    """{(kind, whose): most} of e.g. `[u:PBS_GENERIC=2],[o:PBS_ALL=9]`."""
    found = re.findall(r"\[([ugpo]):([^=\]]+)=(\d+)\]", text or "")
    return {(kind, whose): int(most) for kind, whose, most in found}


def over(text, jobs, queue, states):
    """The kind of limit that one more job of this user would be over; jobs in other queues do not count."""
    most = limits(text)
    mine = [j for j in jobs.values() if j["state"] in states and queue in (None, j["queue"])]
    for kind in "ugpo":
        allowed = most.get((kind, USER), most.get((kind, GENERIC[kind])))
        if allowed is not None and len(mine) >= allowed:
            return kind
    return None


def full_queue(jobs, queue, settings):
    """What qsub says if one more job is over a limit."""
    for name, states, more in (
        ("max_queued", "QHRBEW", ""),
        ("queued_jobs_threshold", "Q", " of jobs in 'Q' state"),
    ):
        for where, about, of in (
            ("queue generic's", settings["queues"][queue], queue),
            ("complex's", settings["server_limits"], None),
        ):
            kind = over(about.get(name), jobs, of, states)
            if kind is not None:
                whose = "total" if kind == "o" else f"per-{WHOSE[kind].lower()}"
                return f"qsub: would exceed {where} {whose} limit{more}"
    return None


# ---- qsub


def qsub(arguments, settings):
    import shlex

    options, rest = parsed(arguments)
    if not rest:
        raise PbsError("qsub: this fake reads no script from stdin", 2)
    script = Path(rest[0])
    if not script.is_file():
        raise PbsError("qsub: script file:: No such file or directory", 1)
    text = script.read_text()
    directives = []
    for line in text.splitlines():
        if line.startswith("#PBS"):
            directives += shlex.split(line[4:])
        elif line.strip() and not line.startswith("#"):
            break
    told, _ = parsed(directives)
    options = {**told, **options, "l": [*told.get("l", []), *options.get("l", [])]}
    job_name = options.get("N", script.name)
    if re.search(r"[\s/]", job_name):
        raise PbsError("qsub: illegal -N value\nusage: qsub [-a date_time] [-A account_string] ...", 2)
    if len(job_name) > 236:
        raise PbsError("qsub: Job name is too long ", 2)
    for option in "oe":
        if re.search(r"[^ -!#-&(-~]", options.get(option, "")):
            raise PbsError(f"qsub: illegal -{option} value\nusage: qsub [-a date_time] [-A account_string] ...", 2)
    resources = resources_of(options.get("l", []), settings)
    if any("'" in v or v.count('"') % 2 for v in [options.get("v", "")]):
        raise PbsError("qsub: cannot send environment with the job", 1)
    with state() as data:
        number = data["next"]
        data["next"] += 1  # also a job that is refused costs a number
    job_id = f"{number}.{settings['server']}"
    queue = options.get("q") or settings["default_queue"]
    if queue not in settings["queues"]:
        raise PbsError("qsub: Unknown queue", UNKNOWN_QUEUE)
    about = settings["queues"][queue]
    if not about.get("enabled", True):
        raise PbsError("qsub: Queue is not enabled", NOT_ENABLED)
    if "route" in about:
        queue = about["route"]
        about = settings["queues"][queue]
    if os.getuid() == 0 and not settings["root_may_submit"]:
        raise PbsError("qsub: Bad UID for job execution", BAD_UID)
    for limit, value in (
        ("max_walltime", resources["walltime_s"]),
        ("max_ncpus", resources["ncpus"]),
        ("max_nodect", resources["nodect"]),
    ):
        if value is not None and value > about.get(limit, value):
            raise PbsError("qsub: Job violates queue and/or server resource limits", OVER_LIMIT)
    if settings["qsub_fails"]:
        raise PbsError(settings["qsub_fails"][1], settings["qsub_fails"][0])
    now = time.time()
    after = [full(i, settings) for i in options.get("W", "").removeprefix("depend=afterany:").split(":") if i]
    job = {
        "number": number,
        "name": job_name,
        "owner": f"{USER}@{settings['login']}",
        "login": settings["login"],
        "rerunable": options.get("r", "y") != "n",
        "array": options.get("J"),
        "state": "H" if "h" in options or after else "Q",
        "substate": 20 if "h" in options else 22 if after else 10,
        "comment": "",
        "queue": queue,
        "account": options.get("A"),
        "resources": resources,
        "out": options.get("o") or str(Path.cwd() / f"{job_name}.o{number}"),
        "err": options.get("e") or str(Path.cwd() / f"{job_name}.e{number}"),
        "shell": options.get("S", "/bin/bash"),
        "join": options.get("j") == "oe",
        "after": after,
        "workdir": str(Path.cwd()),
        "arguments": shlex.join(arguments),
        "ctime": now,
        "mtime": now,
        "stime": None,
        "used_s": None,
        "hosts": [],
        "slots": [],
        "run_count": 0,
        "exit_status": None,
        "pid": None,
        "delete": None,
        "terms": 0,
        "qdel_tried": False,
    }
    if job["array"]:
        job_id = f"{number}[].{settings['server']}"
    with state() as data:
        words = full_queue(data["jobs"], queue, settings)
        if words:
            raise PbsError(words, TOO_MANY)
        data["jobs"][job_id] = job
    spool = HOME / "spool"
    spool.mkdir(exist_ok=True)
    (spool / f"{job_id}.SC").write_text(text)
    if os.fork() == 0:
        try:
            mom(job_id)
        finally:
            os._exit(0)
    if settings["qsub_hangs_after"]:
        time.sleep(3600)
    if settings["qsub_says"]:
        print(settings["qsub_says"])
    print(job_id)
    return 0


def parsed(arguments):
    options, rest, words = {}, [], list(arguments)
    while words:
        word = words.pop(0)
        if word in ("-h", "-V"):
            options[word[1:]] = ""
        elif re.match(r"-[NloeqASmjWvkPrJ]", word):
            value = word[2:] or words.pop(0)
            if word[1] == "l":
                options.setdefault("l", []).append(value)
            else:
                options[word[1]] = value
        elif word.startswith("-"):
            raise PbsError(f"qsub: illegal option -- '{word[1:2]}'", 2)
        else:
            rest.append(word)
    return options, rest


def resources_of(requests, settings):
    asked = {}
    for request in requests:
        for part in request.split(","):
            key, _, value = part.partition("=")
            asked[key] = value
    for key in asked:
        if key == "filesystems" and settings["filesystems"] == "job":
            continue
        of_a_host = key in ("ncpus", "mem", "ngpus") or (
            key == "filesystems" and settings["filesystems"] == "host"
        )
        if "select" in asked and of_a_host:
            raise PbsError(f'qsub: "-lresource=" cannot be used with "select" or "place", resource is: {key}', 5)
        if key not in RESOURCES:
            raise PbsError(f"qsub: Unknown resource Resource_List.{key}", UNKNOWN_RESOURCE)
    walltime = None
    if "walltime" in asked:
        if not re.fullmatch(r"\d+(:\d+){0,3}", asked["walltime"]):
            raise PbsError("qsub: Illegal attribute or resource value Resource_List.walltime", BAD_VALUE)
        parts = [int(p) for p in asked["walltime"].split(":")]
        walltime = sum(p * unit for p, unit in zip(reversed(parts), (1, 60, 3600, 86400), strict=False))
    select = asked.get("select", f"1:ncpus={asked.get('ncpus', '1')}")
    chunks = []
    for group in select.split("+"):
        count, *needs = group.split(":")
        told = dict(need.partition("=")[::2] for need in needs)
        for key, value in told.items():
            if key not in (*RESOURCES, "system", "host"):
                raise PbsError(f"qsub: Unknown resource: {key}", UNKNOWN_RESOURCE)
            if key == "ncpus" and not value.isdigit():
                raise PbsError("qsub: Illegal attribute or resource value select.ncpus", BAD_VALUE)
        if not count.isdigit():
            raise PbsError("qsub: Illegal attribute or resource value select", BAD_VALUE)
        chunks += [{"ncpus": int(told.get("ncpus", 1)), "ngpus": int(told.get("ngpus", 0))}] * int(count)
    return {
        "chunks": chunks,
        "select": asked.get("select"),
        "place": asked.get("place") or ("free" if "select" in asked else "pack"),
        "ncpus": sum(c["ncpus"] for c in chunks),
        "nodect": len(chunks),
        "walltime_s": walltime,
        "filesystems": asked.get("filesystems"),
    }


# ---- the life of a job


def mom(job_id):
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    os.environ["PBS_FAKE_MOM"] = job_id
    process = None
    try:
        while process is None:
            process = started(job_id)
            if process is False:
                return
            time.sleep(0 if process else 0.1)
        watch(job_id, process)
    except Exception as error:  # a broken fake must not look like a job that ended
        (HOME / f"mom-{job_id}.error").write_text(repr(error))
        raise


def started(job_id):
    """The job's process, None while it has to wait, False if there is nothing left to run."""
    settings = config()
    with state() as data:
        job = data["jobs"].get(job_id)
        if job is None or job["state"] == "F":
            return False
        if job["delete"]:
            finish(data, job_id, settings, substate=91, words="and terminated", status=None)
            return False
        if job["state"] == "R" and job["hosts"]:  # on a node that is away, which nobody has noticed yet
            return on_dead_node(data, job_id, settings)
        if settings["down"]:
            return None
        if job["substate"] == 22:
            waits_for = [data["jobs"].get(i, {"state": "?"})["state"] for i in job["after"]]
            if "?" in waits_for:
                finish(data, job_id, settings, substate=92, words="", status=None)
                return False
            if set(waits_for) <= {"F"}:
                job.update(state="Q", substate=10, after=[])
        if job["state"] != "Q":
            return None
        about = settings["queues"][job["queue"]]
        if not about.get("started", True):
            job["comment"] = "Not Running: Queue not started."
            return None
        for where, text, of in (
            (f"queue {job['queue']}", about.get("max_run"), job["queue"]),
            ("server", settings["server_limits"].get("max_run"), None),
        ):
            if kind := over(text, data["jobs"], of, "RBE"):
                whose = (
                    f"{WHOSE[kind]} has reached {where}" if kind in WHOSE else f"{where.capitalize()} has reached"
                )
                job["comment"] = f"Not Running: {whose} running job limit."
                return None
        most = max(settings["hosts"].values())
        for chunk in job["resources"]["chunks"]:
            if chunk["ncpus"] > most:
                job["comment"] = (
                    "Can Never Run: Insufficient amount of resource: ncpus "
                    f"(R: {chunk['ncpus']} A: {most} T: {most})"
                )
                return None
        placed = place(job, data, settings)
        if placed is None or any(
            j["state"] == "Q"
            and j["queue"] == job["queue"]
            and not j["comment"].startswith("Can Never")
            and j["number"] < job["number"]
            for j in data["jobs"].values()
        ):
            job["comment"] = "Not Running: Not enough free nodes available"
            return None
        now = time.time()
        vnodes = "+".join(
            f"({host}:ncpus={chunk['ncpus']}" + (f":ngpus={chunk['ngpus']})" if chunk["ngpus"] else ")")
            for host, chunk in placed
        )
        job.update(
            state="B" if job["array"] else "R",
            substate=70 if job["array"] else 42,
            stime=now,
            mtime=now,
            run_count=job["run_count"] + 1,
            slots=slots_of([host for host, _ in placed], data),
            hosts=[[host, chunk["ncpus"]] for host, chunk in placed],
            exec_vnode=vnodes,
            comment=f"Job run at {time.strftime('%a %b %d at %H:%M', time.localtime(now))} on {vnodes}",
        )
        if job["array"]:
            job["comment"] = f"Job Array Began at {time.strftime('%a %b %d at %H:%M', time.localtime(now))}"
        if dead(job, settings):
            return None
        process = run(job_id, job, settings)
        job["pid"] = process.pid
        return process


def dead(job, settings):
    return any(host in settings["down_hosts"] for host, _ in job["hosts"])


def shown_down(host, settings):
    since = settings["down_hosts"].get(host)
    return since is not None and time.time() - since > settings["shown_down_s"]


def on_dead_node(data, job_id, settings):
    """The server has sent the job to a node that does not answer; once it knows, the job goes elsewhere."""
    job = data["jobs"][job_id]
    if not dead(job, settings):  # it is back, and starts what it was sent
        process = run(job_id, job, settings)
        job["pid"] = process.pid
        return process
    if any(shown_down(host, settings) for host, _ in job["hosts"]):
        job.update(state="Q", substate=10, comment="", hosts=[], stime=None)
    return None


def slots_of(hosts, data):
    """The number behind the slash of exec_host for each chunk: the first on its host that nobody has."""
    used = {}
    for other in data["jobs"].values():
        if other["state"] in "RBE":
            for (host, _), slot in zip(other["hosts"], other["slots"], strict=True):
                used.setdefault(host, set()).add(slot)
    slots = []
    for host in hosts:
        taken = used.setdefault(host, set())
        slots.append(min(set(range(len(taken) + 1)) - taken))
        taken.add(slots[-1])
    return slots


def place(job, data, settings):
    """[(host, chunk)] or None."""
    free = {host: cores for host, cores in settings["hosts"].items() if not shown_down(host, settings)}
    for other in data["jobs"].values():
        if other["state"] in "RBE":
            for host, cores in other["hosts"]:
                if host in free:
                    free[host] -= cores
    placed, how = [], job["resources"]["place"]
    for chunk in job["resources"]["chunks"]:
        for host in free:
            taken = [h for h, _ in placed]
            if (how.startswith("scatter") and host in taken) or (
                how.startswith("pack") and taken and host != taken[0]
            ):
                continue
            if free[host] >= chunk["ncpus"]:
                free[host] -= chunk["ncpus"]
                placed.append((host, chunk))
                break
        else:
            return None
    return placed


def run(job_id, job, settings):
    import shlex
    import subprocess

    spool = HOME / "spool"
    user_home = HOME / "home"
    user_home.mkdir(exist_ok=True)
    (HOME / "aux").mkdir(exist_ok=True)
    nodefile = HOME / "aux" / job_id
    nodefile.write_text("".join(f"{host}\n" for host, _ in job["hosts"]))
    tmp = HOME / "tmp" / f"pbs.{job_id}"
    tmp.mkdir(parents=True, exist_ok=True)
    cores = str(job["resources"]["chunks"][0]["ncpus"])
    # As after a login: nothing of the submitter's environment but what PBS hands on as PBS_O_*. Where PBS is
    # installed beside the system, its commands are not on this PATH.
    environment = {
        "HOME": str(user_home),
        "USER": USER,
        "LOGNAME": USER,
        "SHELL": "/bin/bash",
        "LANG": "C.UTF-8",
        "PATH": f"{HERE}:{settings['job_path']}" if settings["job_has_commands"] else settings["job_path"],
        "FAKE_PBS_HOME": str(HOME),
        "FAKE_PBS_PYTHON": sys.executable,
        "PBS_JOBID": job_id,
        "PBS_JOBNAME": job["name"],
        "PBS_QUEUE": job["queue"],
        "PBS_NODEFILE": str(nodefile),
        "PBS_JOBDIR": str(user_home),
        "PBS_ENVIRONMENT": "PBS_BATCH",
        "ENVIRONMENT": "BATCH",
        "PBS_JOBCOOKIE": "0" * 32,
        "PBS_MOMPORT": "15003",
        "PBS_NODENUM": "0",
        "PBS_TASKNUM": "1",
        "PBS_O_WORKDIR": job["workdir"],
        "PBS_O_HOME": os.environ.get("HOME", ""),
        "PBS_O_PATH": os.environ.get("PATH", ""),
        "PBS_O_HOST": settings["server"],
        "PBS_O_LOGNAME": USER,
        "PBS_O_QUEUE": job["queue"],
        "NCPUS": cores,
        "OMP_NUM_THREADS": cores,
        "TMPDIR": str(tmp),
    }
    script = f"{shlex.quote(job['shell'])} {shlex.quote(str(spool / f'{job_id}.SC'))}"
    words = f"{script}; exit $?"
    if job["array"]:
        first, last = map(int, job["array"].split("-"))
        words = f"for i in {{{first}..{last}}}; do PBS_ARRAY_INDEX=$i {script} & done; wait"
    with (spool / f"{job_id}.OU").open("ab") as out, (spool / f"{job_id}.ER").open("ab") as err:
        # A login shell, which has the script as its child.
        return subprocess.Popen(
            ["-bash", "--noprofile", "-c", words],
            executable="/bin/bash",
            cwd=user_home,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out if job["join"] else err,
            start_new_session=True,
        )


def watch(job_id, process):
    import shutil

    ending, late = None, False
    while process.poll() is None:
        settings = config()
        with state(write=False) as data:
            job = data["jobs"][job_id]
        used = time.time() - job["stime"]
        limit = job["resources"]["walltime_s"]
        if dead(job, settings):
            lost_with_node(job_id, process)
            return
        if job["delete"]:
            ending = job["delete"]
        elif limit is not None and used > limit + settings["walltime_lag_s"]:
            ending = "walltime"
            with (HOME / "spool" / f"{job_id}.ER").open("a") as err:
                err.write(f"=>> PBS: job killed: walltime {used:.0f} exceeded limit {limit}\n")
        if ending:
            late = kill(process, 0.0 if ending == "force" else settings["kill_delay_s"], job_id)
            break
        time.sleep(0.1)
    code = process.wait()
    late = late or bool(members(process.pid))  # mom looks now and then, and does not see the end of these
    kill(process, 0.0)  # what the script left behind
    settings = config()
    with state() as data:
        job = data["jobs"][job_id]
        job["used_s"] = time.time() - job["stime"]
    if late and ending != "force":
        until = time.time() + settings["end_lag_s"]
        while time.time() < until:
            time.sleep(0.05)
            with state(write=False) as data:
                if data["jobs"].get(job_id, {"delete": "force"})["delete"] == "force":
                    break
    shutil.rmtree(HOME / "tmp" / f"pbs.{job_id}", ignore_errors=True)
    with state() as data:
        job = data["jobs"][job_id]
        ending = ending or job["delete"]
        job.update(state="E", substate=51, mtime=time.time())
    since = time.time()
    while time.time() - since < config()["exit_lag_s"]:  # a test may end it
        time.sleep(0.05)
    if not copied(job_id, job):
        give_up = time.time() + settings["copy_retry_s"]
        while time.time() < give_up and not copied(job_id, job):
            time.sleep(0.2)
            with state(write=False) as data:
                if data["jobs"][job_id]["delete"] == "force":
                    break
    status, substate, words = code, 92 if code == 0 else 93, "and finished" if code == 0 else "and failed"
    if code < 0:
        status = 256 - code
    if ending == "walltime":
        status, substate, words = -29, 93, "and exceeded resource walltime"
    elif ending == "term":
        status, substate, words = settings["qdel_status"], 91, f"and terminated by {job['owner']}"
    elif ending == "force":
        status, substate, words = 265, 91, "and terminated"
    with state() as data:
        finish(data, job_id, settings, substate=substate, words=words, status=status)


def lost_with_node(job_id, process):
    """What its processes did is over; the server hears of it when the node is back, or deletes the job unheard."""
    kill(process, 0.0)
    process.wait()
    while True:
        time.sleep(0.1)
        settings = config()
        with state() as data:
            job = data["jobs"].get(job_id)
            if job is None or job["state"] == "F":
                return
            if not dead(job, settings):
                substate, words = (91, "and terminated") if job["qdel_tried"] else (93, "and failed")
                finish(data, job_id, settings, substate=substate, words=words, status=-4)
                return


def copied(job_id, job):
    for stream, path in (("OU", job["out"]), ("ER", job["err"])):
        spooled = HOME / "spool" / f"{job_id}.{stream}"
        if spooled.exists() and not (stream == "ER" and job["join"]):
            try:
                Path(path).write_bytes(spooled.read_bytes())
            except OSError:
                return False
            spooled.unlink()
    return True


def finish(data, job_id, settings, *, substate, words, status):
    job = data["jobs"][job_id]
    now = time.time()
    # A server that was restarted meanwhile has forgotten the comment, and makes no new one.
    comment = f"{job['comment']} {words}".strip() if job["comment"] or job["stime"] is None else ""
    job.update(state="F", substate=substate, comment=comment, exit_status=status, mtime=now)
    for other in data["jobs"].values():
        other["after"] = [i for i in other["after"] if i != job_id]
    if not settings["history"]:
        del data["jobs"][job_id]


def kill(process, delay_s, job_id=None):
    """End the job's session and the children of its processes, as far as they can be traced from there.

    Returns whether others were alive when the job's shell had died.
    """
    shell_first = None
    for number, patience in ((signal.SIGTERM, delay_s), (signal.SIGKILL, 5.0)):
        if number == signal.SIGTERM and delay_s == 0:
            continue
        give_up, asked_before = time.time() + patience, None
        while (left := members(process.pid)) and time.time() < give_up:
            if shell_first is None and process.poll() is not None:
                shell_first = True
            now = asked(job_id)
            if asked_before is None or now > asked_before:  # each qdel sends another
                asked_before = now
                for pid in left:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, number)
            time.sleep(0.02)
        if process.poll() is not None and shell_first is None:
            shell_first = False
    return bool(shell_first)


def asked(job_id):
    """How many qdels there were."""
    if job_id is None:
        return 0
    with state(write=False) as data:
        return data["jobs"][job_id]["terms"]


def members(session):
    parents, found = {}, set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(") ")[2].split()
        except OSError:
            continue
        if fields[0] == "Z":
            continue
        parents[int(entry.name)] = int(fields[1])
        if int(fields[3]) == session:
            found.add(int(entry.name))
    grown = True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in found and pid not in found}
        found |= more
        grown = bool(more)
    return found


# ---- qstat, qselect, pbsnodes


def qstat(arguments, settings):
    flags, names, form = set(), [], None
    words = list(arguments)
    while words:
        word = words.pop(0)
        if word == "-F":
            form = words.pop(0)
        elif word.startswith("-"):
            flags |= set(word[1:])
        else:
            names.append(word)
    if form and "f" not in flags:
        raise PbsError("usage: qstat [-f] [-J] [-p] [-t] [-x] [-E] [-F format] ...", 2)
    if "Q" in flags:
        show("Queue", {n: queue_record(n, settings) for n in names or settings["queues"]}, form, settings)
        return 0
    if "B" in flags:
        show("Server", {settings["server"]: server_record(settings)}, form, settings)
        return 0
    with state(write=False) as data:
        jobs = data["jobs"]
    found, code = {}, 0
    for name in names:
        if settings["ids_illegal"]:
            sys.stderr.write(f"qstat: illegally formed job identifier: {full(name, settings)}\n")
            code = 1
            continue
        if not name[0].isdigit():
            sys.stderr.write(f"qstat: Unknown queue destination {name}\n")
            code = UNKNOWN_QUEUE
            continue
        job_id = full(name, settings)
        if "x" in flags and not settings["history"]:
            sys.stderr.write(f"qstat: PBS is not configured to maintain job history {job_id}\n")
        elif job_id not in jobs:
            sys.stderr.write(f"qstat: Unknown Job Id {job_id}\n")
            code = UNKNOWN_JOB
        elif jobs[job_id]["state"] == "F" and "x" not in flags:
            sys.stderr.write(
                f"qstat: {job_id} Job has finished, use -x or -H to obtain historical job information\n"
            )
            code = FINISHED
        elif not (settings["variant"] == "M" and found):
            found[job_id] = jobs[job_id]
    if not names:
        found = {i: j for i, j in jobs.items() if j["state"] != "F" or "x" in flags}
    if "f" in flags:
        show(
            "Jobs",
            {i[: settings["id_chars"]]: job_record(i, j, settings) for i, j in found.items()},
            form,
            settings,
        )
    else:
        short_form(found)
    return code


def full(name, settings):
    return name if "." in name else f"{name}.{settings['server']}"


def short_form(found):
    if found:
        print("Job id            Name             User              Time Use S Queue")
        print("----------------  ---------------- ----------------  -------- - -----")
    for job_id, job in found.items():
        name = job["name"] if len(job["name"]) <= 15 else job["name"][:15] + "*"
        print(f"{job_id[:17]:17} {name:16} {USER:17} 00:00:00 {job['state']} {job['queue']}")


def job_record(job_id, job, settings):
    """In the order in which PBS has them."""
    needs, server = job["resources"], settings["server"]
    resources = {}
    if needs["filesystems"]:
        resources["filesystems"] = needs["filesystems"]
    resources |= {"ncpus": needs["ncpus"], "nodect": needs["nodect"], "place": needs["place"]}
    select = needs["select"] or f"1:ncpus={needs['ncpus']}"
    resources["select"] = int(select) if select.isdigit() else select
    if needs["walltime_s"] is not None:
        resources["walltime"] = clock(needs["walltime_s"])
    with state(write=False) as data:
        waiting = [i for i, j in data["jobs"].items() if job_id in j["after"]]
    ran, over = job["stime"] is not None, job["state"] == "F"
    known = ran and (over or time.time() - job["stime"] > settings["starting_s"])
    substate = 41 if job["state"] == "R" and not known else job["substate"]
    record = {"Job_Name": job["name"], "Job_Owner": job["owner"]}
    if known and not job["array"]:
        used = job["used_s"]
        if used is None:
            step = settings["poll_s"]
            used = (time.time() - job["stime"]) // step * step if step else time.time() - job["stime"]
        record["resources_used"] = {
            "cpupercent": 0,
            "cput": "00:00:00",
            "mem": "0kb",
            "ncpus": needs["ncpus"],
            "vmem": "0kb",
            "walltime": clock(used),
        }
    record |= {"job_state": job["state"], "queue": job["queue"], "server": server}
    if job["account"]:
        record["Account_Name"] = job["account"]
    record |= {"Checkpoint": "u", "ctime": time.ctime(job["ctime"])}
    if job["after"]:
        record["depend"] = "afterany:" + ":".join(f"{i}@{server}" for i in job["after"])
    elif waiting and not over:
        record["depend"] = "beforeany:" + ":".join(f"{i}@{server}" for i in waiting)
    suffix = ".^array_index^" if job["array"] else ""
    record["Error_Path"] = f"{job['login']}:{job['err']}{suffix}"
    if ran and not job["array"]:
        record["exec_host"] = "+".join(
            f"{host}/{slot}" + (f"*{cores}" if cores > 1 else "")
            for (host, cores), slot in zip(job["hosts"], job["slots"], strict=True)
        )
        record["exec_vnode"] = job["exec_vnode"]
    record |= {
        "Hold_Types": {20: "u", 22: "s"}.get(job["substate"], "n") if job["state"] == "H" else "n",
        "Join_Path": "oe" if job["join"] else "n",
        "Keep_Files": "n",
        "Mail_Points": "a",
        "mtime": time.ctime(job["mtime"]),
        "Output_Path": f"{job['login']}:{job['out']}{suffix}",
        "Priority": 0,
        "qtime": time.ctime(job["ctime"]),
        "Rerunable": str(job["rerunable"]),
        "Resource_List": resources,
    }
    if ran:
        record["stime"] = time.ctime(job["stime"])
    heard = over and job["exit_status"] is not None
    if heard:
        record["obittime"] = time.ctime(job["mtime"])
    if known:
        record["jobdir"] = str(HOME / "home")
    record["substate"] = substate
    record["Variable_List"] = {
        "PBS_O_HOME": str(HOME / "home"),
        "PBS_O_LOGNAME": USER,
        "PBS_O_WORKDIR": job["workdir"],
        "PBS_O_SYSTEM": "Linux",
        "PBS_O_QUEUE": job["queue"],
        "PBS_O_HOST": job["login"],
        "ODD": "ba#ODD#d",
        "LIST": "one,job_state=F,two = 3",
    }
    if job["comment"]:
        record["comment"] = job["comment"]
    if job["state"] != "H":
        record["etime"] = time.ctime(job["ctime"])
    if ran:
        record["run_count"] = job["run_count"]
    if heard:
        record |= {"Stageout_status": 1, "Exit_status": job["exit_status"]}
    record["Submit_arguments"] = job["arguments"]
    if job["array"]:
        record |= array_fields(job)
    if over:
        record["history_timestamp"] = int(job["mtime"])
    return {**record, "project": "_pbs_project_default", "Submit_Host": job["login"]}


def array_fields(job):
    first, last = map(int, job["array"].split("-"))
    count = last - first + 1
    queued, running = (0, count) if job["state"] == "B" else (0 if job["state"] == "F" else count, 0)
    return {
        "array": "True",
        "array_state_count": f"Queued:{queued} Running:{running} Exiting:0 Expired:{count - queued - running}",
        "array_indices_submitted": job["array"],
        "array_indices_remaining": "-" if job["state"] in "BF" else job["array"],
    }


def state_count(jobs):
    """As PBS has it, with the space at its end."""
    letters = {
        "Transit": "T",
        "Queued": "Q",
        "Held": "H",
        "Waiting": "W",
        "Running": "R",
        "Exiting": "E",
        "Begun": "B",
    }
    return "".join(f"{word}:{sum(j['state'] == letter for j in jobs)} " for word, letter in letters.items())


def assigned(jobs):
    running = [j for j in jobs if j["state"] in "RBE"]
    return {
        "ncpus": sum(j["resources"]["ncpus"] for j in running),
        "nodect": sum(j["resources"]["nodect"] for j in running),
    }


def queue_record(name, settings):
    if name not in settings["queues"]:
        raise PbsError(f"qstat: Unknown queue {name}", UNKNOWN_QUEUE)
    about = settings["queues"][name]
    with state(write=False) as data:
        jobs = [j for j in data["jobs"].values() if j["queue"] == name and j["state"] != "F"]
    record = {
        "queue_type": "Route" if "route" in about else "Execution",
        "total_jobs": len(jobs),
        "state_count": state_count(jobs),
    }
    most = {k: about[f"max_{k}"] for k in ("ncpus", "nodect") if f"max_{k}" in about}
    if "max_walltime" in about:
        most["walltime"] = clock(about["max_walltime"])
    if most:
        record["resources_max"] = most
    if "min_nodect" in about:
        record["resources_min"] = {"nodect": about["min_nodect"]}
    if "route" in about:
        record["route_destinations"] = about["route"]
    else:
        record["resources_assigned"] = assigned(jobs)
    record["enabled"] = str(about.get("enabled", True))
    record["started"] = str(about.get("started", True))
    return record | limit_fields(about)


def limit_fields(about):
    return {key: about[key] for key in ("max_queued", "queued_jobs_threshold", "max_run") if key in about}


def server_record(settings):
    with state(write=False) as data:
        jobs = [j for j in data["jobs"].values() if j["state"] != "F"]
    record = {
        "server_state": "Active",
        "server_host": settings["server"],
        "scheduling": "True",
        "total_jobs": len(jobs),
        "state_count": state_count(jobs),
        "default_queue": settings["default_queue"],
        "log_events": 511,
        "mail_from": "adm",
        "query_other_jobs": "True",
        "resources_default": {"ncpus": 1},
        "default_chunk": {"ncpus": 1},
        "resources_assigned": assigned(jobs),
        "scheduler_iteration": 20,
        "flatuid": "True",
        "resv_enable": "True",
        "node_fail_requeue": 310,
        "max_array_size": 10000,
        "resend_term_delay": 5,
        "pbs_license_min": 0,
        "pbs_version": "23.06.06",
        "eligible_time_enable": "False",
        **limit_fields(settings["server_limits"]),
    }
    if settings["history"]:
        record |= {"job_history_enable": "True", "job_history_duration": "24:00:00"}
    return {**record, "max_job_sequence_id": 9999999}


def show(kind, things, form, settings):
    if form == "json":
        answer = {"timestamp": int(time.time()), "pbs_version": "23.06.06", "pbs_server": settings["server"]}
        if things:
            answer[kind] = numbers(things) if settings["variant"] == "R" else things
        # As cJSON prints it, and as the release of 2023 did.
        form = {"indent": 4, "separators": (",", ":")} if settings["variant"] == "R" else {"indent": "\t"}
        text = json.dumps(answer, **{"separators": (",", ":\t"), **form}, ensure_ascii=False)
        print(text.replace("#ODD#", '"' if settings["broken_json"] else ""))
        return
    headings = {"Jobs": "Job Id", "Queue": "Queue", "Server": "Server"}
    for name, record in things.items():
        print(f"{headings[kind]}: {name}")
        for key, value in record.items():
            if key == "Variable_List":
                wrapped(key, ",".join(f"{k}={v}" for k, v in value.items()).replace("#ODD#", '"'))
            elif isinstance(value, dict):
                for inner, v in value.items():
                    wrapped(f"{key}.{inner}", v)
            else:
                wrapped(key, value)
        print()


def wrapped(key, value):
    line = f"    {key} = {value}"
    while len(line) > 79:
        print(line[:79])
        line = "\t" + line[79:]
    print(line)


def numbers(value):
    """What R does to strings that look like a number."""
    if isinstance(value, dict):
        return {k: numbers(v) for k, v in value.items()}
    if isinstance(value, str):
        for kind in (int, float):
            with contextlib.suppress(ValueError):
                return kind(value)
    return value


def clock(seconds):
    seconds = int(seconds)
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


def qselect(arguments, settings):
    options = dict(zip(arguments[::2], arguments[1::2], strict=True))
    with state(write=False) as data:
        for job_id, job in data["jobs"].items():
            user, name = options.get("-u", USER), options.get("-N", job["name"])
            wanted = (
                job["state"] in options.get("-s", "QHRBEW") and options.get("-q", job["queue"]) == job["queue"]
            )
            if wanted and job["owner"].startswith(f"{user}@") and job["name"] == name:
                print(job_id)
    return 0


def pbsnodes(arguments, settings):
    things = {}
    with state(write=False) as data:
        running = {i: j for i, j in data["jobs"].items() if j["state"] in "RBE"}
    for host, cores in settings["hosts"].items():
        available = {"arch": "linux", "host": host, "mem": "24053392kb", "ncpus": cores}
        if settings["gpus"]:
            available["ngpus"] = settings["gpus"]
        here = [job_id for job_id, job in running.items() if any(h == host for h, _ in job["hosts"])]
        taken = sum(c for job in running.values() for h, c in job["hosts"] if h == host)
        things[host] = {
            "Mom": host,
            "ntype": "PBS",
            "state": "down" if shown_down(host, settings) else "job-busy" if taken >= cores else "free",
            "pcpus": cores,
            **({"jobs": here} if here else {}),
            "resources_available": {**available, "vnode": host},
            "resources_assigned": {"ncpus": taken} if taken else {},
            "resv_enable": "True",
            "sharing": "default_shared",
            "license": "l",
            "last_state_change_time": int(settings["down_hosts"].get(host, 0)),
        }
    show("nodes", things, "json", settings)
    return 0


# ---- qdel


def qdel(arguments, settings):
    code, how, forget = 0, "term", False
    words = list(arguments)
    while words and words[0].startswith("-"):
        option = words.pop(0)
        if option == "-x":
            forget = True
        elif option.startswith("-W") and (option[2:] or words.pop(0)) == "force":
            how = "force"
    for name in words:
        job_id = full(name, settings)
        with state() as data:
            job = data["jobs"].get(job_id)
            if settings["ids_illegal"]:
                sys.stderr.write(f"qdel: illegally formed job identifier: {job_id}\n")
                code = 1
            elif job is None:
                sys.stderr.write(f"qdel: Unknown Job Id {job_id}\n")
                code = UNKNOWN_JOB
            elif job["state"] == "F" and forget:
                del data["jobs"][job_id]
            elif job["state"] == "F":
                sys.stderr.write(f"qdel: Job has finished {job_id}\n")
                code = FINISHED
            elif job["state"] in "QH":
                finish(data, job_id, settings, substate=91, words="and terminated", status=None)
            elif job["state"] == "R" and dead(job, settings) and how == "force":
                by = f" by {job['owner']}" if job["qdel_tried"] else ""
                finish(data, job_id, settings, substate=91, words=f"and terminated{by}", status=None)
            elif job["state"] == "R" and dead(job, settings):
                sys.stderr.write(f"qdel: Server could not connect to MOM {job_id}\n")
                code, job["qdel_tried"] = NO_MOM, True
            elif job["state"] == "E" and how != "force":
                sys.stderr.write(f"qdel: Request invalid for state of job {job_id}\n")
                code = BAD_STATE
            else:
                job["delete"] = how
                job["terms"] += 1
    return code
