"""A stand-in for `flux` that speaks the formats of flux-core's manual pages and runs jobs on this machine.

    python flux.py [--parent] batch|jobs|cancel|getattr|resource|queue|run|uptime|version|hostlist ...

Its state is a JSON file for each job in $FAKE_FLUX. A job is a process with FLUX_URI=fake:ID, the "instance" of its
own; without FLUX_URI the commands ask the system's.
"""

import json
import os
import pwd
import re
import shlex
import signal
import string
import subprocess
import sys
import time
from pathlib import Path

STATE = Path(os.environ["FAKE_FLUX"])
CORES, GPUS = 2, 0
QUEUES = {
    "pbatch": {"timelimit": "1d", "min": "0", "max": "4"},
    "pdebug": {"timelimit": "1h", "min": "1", "max": "1"},
}
FULL = 4  # jobs that run at a time
DIGITS = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"


def fail(words):
    print(f"flux-{sys.argv[1]}: ERROR: {words}", file=sys.stderr)
    raise SystemExit(1)


def instance():
    uri = os.environ.get("FLUX_URI", "")
    return uri.removeprefix("fake:") if uri.startswith("fake:") else ""


def f58(number):
    text = ""
    while number:
        number, digit = divmod(number, 58)
        text = DIGITS[digit] + text
    return ("f" if os.environ.get("FLUX_F58_FORCE_ASCII") else "ƒ") + (text or "1")


def canceled(name):
    return (STATE / f"{name}.canceled").exists()


class Jobs:
    def __init__(self):
        STATE.mkdir(exist_ok=True)

    def load(self, name):
        path = STATE / f"{name.replace('ƒ', 'f')}.json"
        try:
            return json.loads(path.read_text())
        except FileNotFoundError:
            return None

    def save(self, job):
        path = STATE / f"{job['name_']}.json"
        new = path.with_suffix(f".{os.getpid()}")
        new.write_text(json.dumps(job))
        new.replace(path)

    def all(self):
        return [json.loads(p.read_text()) for p in sorted(STATE.glob("f*.json"))]


def directives(script):
    words, sentinel = [], None
    for line in script.splitlines():
        found = re.match(r"([^A-Za-z0-9]*(?:flux|FLUX):)(.*)", line)
        if found:
            if sentinel not in (None, found[1]):
                fail(f"sentinel changed from '{sentinel}' to '{found[1]}'")
            sentinel = found[1]
            words += shlex.split(found[2], comments=True)
    return words


def options(words):
    given = {}
    known = {
        "job-name",
        "nodes",
        "time-limit",
        "exclusive",
        "nslots",
        "cores-per-slot",
        "queue",
        "bank",
        "requires",
    }
    known |= {"output", "error", "dependency", "setattr", "gpus-per-slot"}
    for word in words:
        key, _, value = word.removeprefix("--").partition("=")
        if key not in known:
            fail(f"unrecognized arguments: {word}")
        given[key] = value
    return given


def batch(words):
    path = Path(words[-1])
    given = options([*directives(path.read_text()), *words[:-1]])
    if "queue" in given and given["queue"] not in QUEUES:
        fail(f"[Errno 22] Invalid queue '{given['queue']}' specified")
    if int(given.get("nodes", "1")) > 4:
        fail("[Errno 22] unsatisfiable request")
    number = time.time_ns()
    job = {
        "name_": "f" + f58(number)[1:], "number": number, "name": given.get("job-name", path.name), "state": "SCHED",
        "result": "", "urgency": 16, "waitstatus": "", "t_submit": time.time(), "t_run": 0.0, "t_inactive": 0.0,
        "expiration": 0.0, "nodelist": "", "exception_type": "", "exception_note": "",
        "script": path.read_text(), "nodes": int(given.get("nodes", "1")), "given": given, "pid": 0,
    }  # fmt: skip
    Jobs().save(job)
    # the job's own process waits for its turn, so that this command is over at once
    subprocess.Popen([sys.executable, __file__, "_attend", job["name_"]], start_new_session=True,
                     stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    print(f58(number))


def attend(name):
    jobs = Jobs()
    limit = re.match(r"(\d+(?:\.\d+)?)s", jobs.load(name)["given"].get("time-limit", "3600s"))
    after = jobs.load(name)["given"].get("dependency", "").removeprefix("afterany:")
    while True:
        job = jobs.load(name)
        if canceled(name):
            return end(jobs, job, "CANCELED", "", "cancel")
        waits = after and jobs.load(after)["state"] != "INACTIVE"
        job["state"] = "DEPEND" if waits else "SCHED"
        ahead = [
            j
            for j in jobs.all()
            if j["state"] in ("RUN", "CLEANUP") or (j["state"] == "SCHED" and j["number"] < job["number"])
        ]
        if not waits and len(ahead) < FULL:
            break
        jobs.save(job)
        time.sleep(0.05)
    given, now = job["given"], time.time()
    job |= {"state": "RUN", "t_run": now, "expiration": now + float(limit[1]), "nodelist": os.uname().nodename}
    script = STATE / f"{name}.sh"
    script.write_text(job["script"])
    env = {k: v for k, v in os.environ.items() if not re.match("(FLUX_JOB|FLUX_TASK|PMI_|SLURM_)", k)}
    out, err = (Path(given.get(key, "/dev/null")) for key in ("output", "error"))
    with out.open("ab") as out, err.open("ab") as err:
        process = subprocess.Popen(["/bin/bash", str(script)], stdout=out, stderr=err, stdin=subprocess.DEVNULL,
                                   env={**env, "FLUX_URI": f"fake:{name}"}, start_new_session=True)  # fmt: skip
        job["pid"] = process.pid
        jobs.save(job)
        why = ""
        while process.poll() is None:
            if not why and (canceled(name) or time.time() > job["expiration"]):
                why = "cancel" if canceled(name) else "timeout"
                os.killpg(process.pid, signal.SIGTERM)
                since = time.time()
            if why and time.time() - since > 3.0:
                os.killpg(process.pid, signal.SIGKILL)
            time.sleep(0.03)
        code = process.returncode
    status = -code if code < 0 else code << 8
    if why:
        return end(jobs, job, {"cancel": "CANCELED", "timeout": "TIMEOUT"}[why], status, why)
    return end(jobs, job, "COMPLETED" if code == 0 else "FAILED", status, "")


def end(jobs, job, result, status, what):
    job |= {"state": "INACTIVE", "result": result, "t_inactive": time.time(), "waitstatus": status}
    job |= {"exception_type": what, "exception_note": "resource allocation expired" if what == "timeout" else ""}
    jobs.save(job)


class Fields(string.Formatter):
    def __init__(self, values):
        self.values = values

    def get_field(self, name, args, kwargs):
        if name not in self.values:
            fail(f"Unknown format field: {name}")
        return self.values[name], name


def shown(form, values):
    return Fields(values).format(form)


def jobs_(words):
    form = next(w.partition("=")[2] for w in words if w.startswith("--format="))
    ids = [w for w in words if not w.startswith("-")]
    code = 0
    if ids:
        found = []
        for one in ids:
            job = Jobs().load(one)
            if job is None:
                print(f"flux-jobs: ERROR: JobID {one} unknown", file=sys.stderr)
                code = 1
            else:
                found.append(job)
    else:
        found = [job for job in Jobs().all() if job["state"] != "INACTIVE"]
    for job in found:
        status = job["waitstatus"]
        returncode = (
            "" if job["state"] != "INACTIVE" else -128 if status == "" else (-(status & 127) or status >> 8)
        )
        values = {key: job[key] for key in ("state", "result", "urgency", "t_submit", "t_run", "t_inactive")}
        values |= {key: job[key] for key in ("expiration", "nodelist", "name")}
        values |= {"id.f58": f58(job["number"]), "returncode": returncode, "userid": os.getuid()}
        values |= {"username": pwd.getpwuid(os.getuid()).pw_name}
        values |= {"exception.type": job["exception_type"], "exception.note": job["exception_note"]}
        print(shown(form, values))
    raise SystemExit(code)


def cancel(words):
    job = Jobs().load(words[0])
    if job is None:
        fail(f"{words[0]}: unknown job id")
    if job["state"] == "INACTIVE":
        fail(f"{words[0]}: job is inactive")
    (STATE / f"{job['name_']}.canceled").touch()


def run(words):
    count = int(next(w.partition("=")[2] for w in words if w.startswith("--ntasks=")))
    first = next(i for i, w in enumerate(words) if not w.startswith("-") and w != "cpu-affinity=off")
    for node in range(count):
        env = {**os.environ, "FLUX_TASK_RANK": str(node), "FLUX_JOB_ID": "f1"}
        if node == count - 1:
            os.execvpe(words[first], words[first:], env)
        subprocess.Popen(words[first:], env=env)


def main():
    words = sys.argv[1:]
    own = instance()
    if words[0] == "--parent":
        words, own = words[1:], ""
        sys.argv.pop(1)
    command, *words = words
    if command == "version":
        print("commands:    \t\t0.61.2\nlibflux-core:\t\t0.61.2")
    elif command == "uptime":
        print(f" 17:48:42 run 1.6m,  owner me,  depth {1 if own else 0},  size 4")
    elif command == "getattr":
        values = {"instance-level": "1" if own else "0"}
        if own:
            values |= {"jobid": "ƒ" + own[1:], "hostlist": os.uname().nodename}
        if words[0] not in values:
            fail(f"flux_attr_get: {words[0]}: No such file or directory")
        print(values[words[0]])
    elif command == "resource":
        form = next(w.partition("=")[2] for w in words if w.startswith("--format="))
        print(shown(form, {"nnodes": 1, "ncores": CORES, "ngpus": GPUS}))
    elif command == "queue":
        form = next(w.partition("=")[2] for w in words if w.startswith("--format="))
        for name, about in QUEUES.items():
            values = {"queuem": name + ("*" if name == "pbatch" else ""), "submission": "enabled"}
            values |= {"scheduling": "started", "limits.timelimit": about["timelimit"]}
            values |= {"limits.min.nnodes": about["min"], "limits.max.nnodes": about["max"]}
            values |= {"resources.all.nnodes": 4, "resources.all.ncores": 4 * CORES, "resources.all.ngpus": 0}
            print(shown(form, values))
    elif command == "hostlist":
        print(os.uname().nodename)
    elif command in ("batch", "jobs", "cancel", "run", "_attend"):
        if own and command in ("batch", "jobs", "cancel"):
            fail("this instance has no jobs")  # of the system's a job asks with --parent
        if command == "_attend":
            attend(words[0])
        else:
            {"batch": batch, "jobs": jobs_, "cancel": cancel, "run": run}[command](words)
    else:
        fail(f"'{command}' is not a flux command.")


if __name__ == "__main__":
    main()
