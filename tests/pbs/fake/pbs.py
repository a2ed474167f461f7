"""A PBS of one machine, for tests: qsub, qstat, qdel, qselect and pbsnodes with a real OpenPBS's words.

Formats, words and exit codes are those captured on OpenPBS 23.06.06; `config.json` says which of its variants
is played. State is one JSON file below a lock. Each job has a process of its own ("mom"), begun by qsub, that
waits for cores, runs the script in a session of its own, watches the walltime and writes down the end.
"""

import contextlib
import fcntl
import json
import os
import pwd
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

HOME = Path(os.environ["FAKE_PBS_HOME"])
USER = pwd.getpwuid(os.getuid()).pw_name
HERE = Path(__file__).resolve().parent

DEFAULTS = {
    # M: the snapshot of 2026, which shows the first of several jobs only; R: the release 23.06.06, which
    # makes numbers of what looks like one; F: neither.
    "variant": "F",
    "history": True,
    "down": False,
    "server": "vm",
    "hosts": {"vm": 2},  # cores of each
    "gpus": 0,  # of each host
    "default_queue": "workq",
    # of each: enabled, started, max_walltime (s), max_ncpus, max_nodect, min_nodect, max_queued (jobs in Q)
    "queues": {"workq": {}},
    "filesystems": None,  # a resource of the site: None (not defined), "job" or "host"
    "root_may_submit": True,
    "exit_lag_s": 0.0,  # how long a job stays in E
    "copy_retry_s": 20.0,  # how long it stays there if the folder of -o or -e is missing
    "walltime_lag_s": 0.0,  # enforcement is late: 13 s were seen
    "kill_delay_s": 1.0,  # between SIGTERM and SIGKILL
    "answer_s": 0.0,  # how long every command takes
    "broken_json": False,  # an odd environment value makes the JSON of all jobs invalid (openpbs#2541)
    "qsub_says": "",  # a greeting of the site's
    "qsub_fails": None,  # [exit code, words] of any other failure
    "id_chars": None,  # the length to which ids in answers are cut, as some short forms are
    "job_has_commands": False,  # whether PBS's are on the PATH of a job
    "job_path": "/usr/local/bin:/usr/bin:/bin",
    "qsub_hangs_after": False,  # takes the job, and never answers
}
RESOURCES = ("walltime", "ncpus", "mem", "nodect", "place", "select", "mpiprocs", "ngpus", "cput", "pmem", "vmem")
UNKNOWN_JOB, SYSTEM, BAD_VALUE, UNKNOWN_QUEUE, NOT_ENABLED, BAD_UID = 153, 162, 166, 170, 173, 175
UNKNOWN_RESOURCE, OVER_LIMIT, FINISHED, TOO_MANY = 187, 188, 35, 38
BAD_STATE = 168  # of the job; this one was not captured, and is as the source has it


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
        data = json.loads(path.read_text()) if path.exists() else {"next": 1, "jobs": {}}
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
    if "--version" in arguments:
        print("pbs_version = 23.06.06")
        return 0
    settings = config()
    time.sleep(settings["answer_s"])
    if settings["down"]:
        sys.stderr.write(
            f"Connection refused\n{name}: cannot connect to server {settings['server']} (errno=15010)\n"
        )
        return 255 if name == "qstat" else SYSTEM
    try:
        return {"qsub": qsub, "qstat": qstat, "qdel": qdel, "qselect": qselect, "pbsnodes": pbsnodes}[name](
            arguments, settings
        )
    except PbsError as error:
        sys.stderr.write(f"{error.words}\n")
        return error.code


# ---- qsub


def qsub(arguments, settings):
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
        "owner": f"{USER}@localhost",
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
        "exit_status": None,
        "pid": None,
        "delete": None,
    }
    with state() as data:
        queued = sum(j["state"] in "QH" and j["queue"] == queue for j in data["jobs"].values())
        if queued >= about.get("max_queued", queued + 1):
            raise PbsError("qsub: would exceed queue generic's per-user limit of jobs in 'Q' state", TOO_MANY)
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
        elif re.match(r"-[NloeqASmjWvkPr]", word):
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
            words = "and terminated" if job["comment"] == "" else f"{job['comment']} and terminated"
            finish(data, job_id, settings, substate=91, comment=words, status=None)
            return False
        if settings["down"]:
            return None
        if job["substate"] == 22:
            waits_for = [data["jobs"].get(i, {"state": "?"})["state"] for i in job["after"]]
            if "?" in waits_for:
                finish(data, job_id, settings, substate=92, comment="", status=None)
                return False
            if set(waits_for) <= {"F"}:
                job.update(state="Q", substate=10)
        if job["state"] == "H" or not settings["queues"][job["queue"]].get("started", True):
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
            job["comment"] = (
                f"Not Running: Insufficient amount of resource: ncpus (R: {job['resources']['ncpus']} A: 0 T: {most})"
            )
            return None
        now = time.time()
        vnodes = "+".join(
            f"({host}:ncpus={chunk['ncpus']}" + (f":ngpus={chunk['ngpus']})" if chunk["ngpus"] else ")")
            for host, chunk in placed
        )
        job.update(
            state="R",
            substate=42,
            stime=now,
            mtime=now,
            hosts=[[host, chunk["ncpus"]] for host, chunk in placed],
            exec_vnode=vnodes,
            comment=f"Job run at {time.strftime('%a %b %d at %H:%M', time.localtime(now))} on {vnodes}",
        )
        process = run(job_id, job, settings)
        job["pid"] = process.pid
        return process


def place(job, data, settings):
    """[(host, chunk)] or None."""
    free = dict(settings["hosts"])
    for other in data["jobs"].values():
        if other["state"] in "RE":
            for host, cores in other["hosts"]:
                free[host] = free.get(host, 0) - cores
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
    with (spool / f"{job_id}.OU").open("ab") as out, (spool / f"{job_id}.ER").open("ab") as err:
        return subprocess.Popen(
            [job["shell"], str(spool / f"{job_id}.SC")],
            cwd=user_home,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out if job["join"] else err,
            start_new_session=True,
        )


def watch(job_id, process):
    ending = None
    while process.poll() is None:
        settings = config()
        with state(write=False) as data:
            job = data["jobs"][job_id]
        used = time.time() - job["stime"]
        limit = job["resources"]["walltime_s"]
        if job["delete"]:
            ending = job["delete"]
        elif limit is not None and used > limit + settings["walltime_lag_s"]:
            ending = "walltime"
            with (HOME / "spool" / f"{job_id}.ER").open("a") as err:
                err.write(f"=>> PBS: job killed: walltime {used:.0f} exceeded limit {limit}\n")
        if ending:
            kill(process, 0.0 if ending == "force" else settings["kill_delay_s"])
            break
        time.sleep(0.1)
    kill(process, 0.0)  # what the script left behind
    code = process.wait()
    shutil.rmtree(HOME / "tmp" / f"pbs.{job_id}", ignore_errors=True)
    settings = config()
    with state() as data:
        job = data["jobs"][job_id]
        ending = ending or job["delete"]
        job.update(state="E", substate=51, mtime=time.time())
    time.sleep(settings["exit_lag_s"])
    if not copied(job_id, job):
        give_up = time.time() + settings["copy_retry_s"]
        while time.time() < give_up and not copied(job_id, job):
            time.sleep(0.2)
    status, substate, words = code, 92 if code == 0 else 93, "and finished" if code == 0 else "and failed"
    if code < 0:
        status = 128 - code
    if ending == "walltime":
        status, substate, words = -29, 93, "and exceeded resource walltime"
    elif ending == "term":
        status, substate, words = 0, 91, f"and terminated by {USER}@localhost"
    elif ending == "force":
        status, substate, words = 265, 91, "and terminated"
    with state() as data:
        finish(data, job_id, settings, substate=substate, comment=f"{job['comment']} {words}", status=status)


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


def finish(data, job_id, settings, *, substate, comment, status):
    job = data["jobs"][job_id]
    now = time.time()
    job.update(state="F", substate=substate, comment=comment, exit_status=status, mtime=now, etime=now)
    for other in data["jobs"].values():
        other["after"] = [i for i in other["after"] if i != job_id]
    if not settings["history"]:
        del data["jobs"][job_id]


def kill(process, delay_s):
    """End the job's session and the children of its processes, as far as they can be traced from there."""
    for number, patience in ((signal.SIGTERM, delay_s), (signal.SIGKILL, 5.0)):
        if number == signal.SIGTERM and delay_s == 0:
            continue
        give_up = time.time() + patience
        for pid in members(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        while members(process.pid) and time.time() < give_up:
            process.poll()
            time.sleep(0.02)


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
        record = {"server_state": "Active", "default_queue": settings["default_queue"], "pbs_version": "23.06.06"}
        if settings["history"]:
            record["job_history_enable"] = "True"
        show("Server", {settings["server"]: record}, form, settings)
        return 0
    with state(write=False) as data:
        jobs = data["jobs"]
    found, code = {}, 0
    for name in names:
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
    needs = job["resources"]
    resources = {"ncpus": needs["ncpus"], "nodect": needs["nodect"], "place": needs["place"]}
    if needs["filesystems"]:
        resources["filesystems"] = needs["filesystems"]
    select = needs["select"] or f"1:ncpus={needs['ncpus']}"
    resources["select"] = int(select) if select.isdigit() else select
    if needs["walltime_s"] is not None:
        resources["walltime"] = clock(needs["walltime_s"])
    record = {
        "Job_Name": job["name"],
        "Job_Owner": job["owner"],
        "job_state": job["state"],
        "queue": job["queue"],
        "server": settings["server"],
        "ctime": time.ctime(job["ctime"]),
        "Error_Path": f"localhost:{job['err']}",
        "mtime": time.ctime(job["mtime"]),
        "Output_Path": f"localhost:{job['out']}",
        "qtime": time.ctime(job["ctime"]),
        "Resource_List": resources,
        "substate": job["substate"],
        "Variable_List": {
            "PBS_O_HOME": str(HOME / "home"),
            "PBS_O_WORKDIR": job["workdir"],
            "ODD": "ba#ODD#d",
            "LIST": "one,job_state=F,two = 3",
        },
        "Submit_arguments": job["arguments"],
        "project": "_pbs_project_default",
    }
    if job["account"]:
        record["Account_Name"] = job["account"]
    if job["comment"]:
        record["comment"] = job["comment"]
    if job["stime"]:
        ended = time.time() if job["state"] != "F" else job["mtime"]
        record["resources_used"] = {"ncpus": needs["ncpus"], "walltime": clock(ended - job["stime"])}
        record["exec_host"] = "+".join(f"{h}/{i}*{c}" for i, (h, c) in enumerate(job["hosts"]))
        record["exec_vnode"] = job["exec_vnode"]
        record["stime"] = time.ctime(job["stime"])
        record["run_count"] = 1
    if job["state"] == "F":
        record["history_timestamp"] = int(job["mtime"])
        if job["exit_status"] is not None:
            record["Exit_status"] = job["exit_status"]
            record["Stageout_status"] = 1
            record["obittime"] = time.ctime(job["mtime"])
    return record


def queue_record(name, settings):
    if name not in settings["queues"]:
        raise PbsError(f"qstat: Unknown queue {name}", UNKNOWN_QUEUE)
    about = settings["queues"][name]
    record = {
        "queue_type": "Execution",
        "total_jobs": 0,
        "enabled": str(about.get("enabled", True)),
        "started": str(about.get("started", True)),
    }
    most = {k: about[f"max_{k}"] for k in ("ncpus", "nodect") if f"max_{k}" in about}
    if "max_walltime" in about:
        most["walltime"] = clock(about["max_walltime"])
    if most:
        record["resources_max"] = most
    if "min_nodect" in about:
        record["resources_min"] = {"nodect": about["min_nodect"]}
    return record


def show(kind, things, form, settings):
    if form == "json":
        answer = {"timestamp": int(time.time()), "pbs_version": "23.06.06", "pbs_server": settings["server"]}
        if things:
            answer[kind] = numbers(things) if settings["variant"] == "R" else things
        text = json.dumps(answer, indent="\t")
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
            if job["state"] != "F" and job["owner"].startswith(f"{user}@") and job["name"] == name:
                print(job_id)
    return 0


def pbsnodes(arguments, settings):
    things = {}
    for host, cores in settings["hosts"].items():
        available = {"arch": "linux", "host": host, "mem": "24053392kb", "ncpus": cores, "vnode": host}
        if settings["gpus"]:
            available["ngpus"] = settings["gpus"]
        things[host] = {"Mom": host, "state": "free", "resources_available": available}
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
            if job is None:
                sys.stderr.write(f"qdel: Unknown Job Id {job_id}\n")
                code = UNKNOWN_JOB
            elif job["state"] == "F" and forget:
                del data["jobs"][job_id]
            elif job["state"] == "F":
                sys.stderr.write(f"qdel: Job has finished {job_id}\n")
                code = FINISHED
            elif job["state"] in "QH":
                comment = f"{job['comment']} and terminated".strip()
                finish(data, job_id, settings, substate=91, comment=comment, status=None)
            elif job["state"] == "E" and how != "force":
                sys.stderr.write(f"qdel: Request invalid for state of job {job_id}\n")
                code = BAD_STATE
            else:
                job["delete"] = how
    return code


if __name__ == "__main__":
    sys.exit(main())
