"""What can go wrong on a cluster, done to a campaign while it runs: ours, or Parsl's alone for comparison."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import psutil

HERE = Path(__file__).parent
RUNS = 8
SECONDS = 2.0

PROFILE = """\
kind = "slurm"
address = "127.0.0.1"
poll_s = 1
heartbeat_s = 12
margin_s = 10
cmd_timeout_s = 20
[nodes.node]
cores = 2
memory_gb = 2
[block]
queue = "{partition}"
walltime = "{walltime}"
exclusive = true
max_blocks = 2
{memory}
[executors.workers]
worker_init = '''{worker_init}'''
preload = ["hpcagent.apps.decorator"]
"""


@dataclass
class Setting:
    """What of the set-up a fault needs to be other than usual."""

    partition: str = "debug"
    walltime: str = "00:10:00"
    worker_init: str = ""
    memory_gb: int = 0
    runs: int = RUNS
    seconds: float = SECONDS
    eats_mb: int = 0
    prints_mb: int = 0
    daemons: bool = False
    environment: dict[str, str] = field(default_factory=dict)


def _cold(command: Sequence[str], **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, *command], text=True, **options)


class Driven:
    """A campaign in a process of its own, on a cluster, in a folder; `kind` is `hpcagent` or `parsl`.

    Attributes:
        begin: Starts a script with its words; tests have one that costs no imports.
    """

    begin: ClassVar[Callable[..., subprocess.Popen[str]]] = staticmethod(_cold)

    def __init__(self, cluster: Any, folder: Path, setting: Setting, *, kind: str = "hpcagent") -> None:
        self.cluster, self.folder, self.setting, self.kind = cluster, folder, setting, kind
        self.run_dir = folder / "run"
        (folder / "marks").mkdir(parents=True, exist_ok=True)
        self.script = folder / "script"  # a copy, so that a fault can edit it
        shutil.copytree(HERE, self.script, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
        self.site = folder / "site.toml"
        self.site.write_text(self.profile())
        (folder / "prints_mb").write_text(str(setting.prints_mb))
        (folder / "daemons").write_text(str(int(setting.daemons)))
        self.began = time.time()
        self.disturbed = 0.0
        self.process = self.start()

    def profile(self) -> str:
        """The site."""
        setting = self.setting
        return PROFILE.format(
            partition=setting.partition,
            walltime=setting.walltime,
            memory=f"mem_per_node_gb = {setting.memory_gb}" if setting.memory_gb else "",
            worker_init=setting.worker_init,
        )

    def start(self) -> subprocess.Popen[str]:
        """Start (again)."""
        s = self.setting
        if self.kind == "hpcagent":
            words = ["drive_hpcagent.py", str(self.site), str(self.run_dir)]
            more: list[str] = []
        else:
            words = ["drive_parsl.py", s.partition, str(self.run_dir)]
            more = [s.worker_init, str(s.memory_gb), s.walltime]
        environment = {**os.environ, **self.cluster.env, **s.environment, "FAULTS_FOLDER": str(self.folder)}
        environment["HPCAGENT_TESTS_COLD"] = "1"  # its interchange is its child (tests/warm.py)
        if self.kind == "parsl":  # its scripts are found by the PATH only
            environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
        with (self.folder / "stderr").open("a") as stderr:
            command = [str(self.script / words[0]), *words[1:], str(s.runs), str(s.seconds), str(s.eats_mb), *more]
            self.process = self.begin(
                command,
                stdout=subprocess.PIPE,
                stderr=stderr,
                cwd=self.folder,
                env=environment,
            )
        return self.process

    def resume(self, folder: Path, marks: Path) -> subprocess.Popen[str]:
        """`hpcagent resume` of a folder, beside; its runs leave their marks elsewhere."""
        environment = {**os.environ, **self.cluster.env, **self.setting.environment}
        environment |= {"FAULTS_FOLDER": str(marks), "PYTHONPATH": str(self.script)}
        return subprocess.Popen(
            [sys.executable, "-m", "hpcagent.cli", "resume", str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.folder,
            env=environment,
        )

    def marks(self, what: str) -> list[str]:
        """Names of the runs that have begun, or are done: one for each time."""
        return sorted(p.name.split("-")[1] for p in (self.folder / "marks").glob(f"{what}-*"))

    def until(self, what: Callable[[], object], *, within_s: float = 300.0, name: str = "") -> None:
        """Wait until something holds while the campaign runs."""
        deadline = time.monotonic() + within_s
        while not what():
            assert time.monotonic() < deadline, f"not within {within_s} s: {name or what} ({self.words()})"
            assert self.process.poll() is None, f"ended while waiting for {name or what}: {self.words()}"
            time.sleep(0.05)

    def until_runs(self, begun: int = 4) -> None:
        """Wait until so many runs are under way."""
        self.until(lambda: len(self.marks("begun")) >= begun, name=f"{begun} runs begun")

    def words(self) -> str:
        """What it has printed for people."""
        return (self.folder / "stderr").read_text()[-2000:]

    def answer(self, *, within_s: float = 600.0) -> dict[str, Any]:
        """Wait for its end; what it printed last."""
        out, _ = self.process.communicate(timeout=within_s)
        lines = out.strip().splitlines()
        found: dict[str, Any] = json.loads(lines[-1]) if lines else {"error": f"nothing printed: {self.words()}"}
        return {"exit_code": self.process.returncode, **found}

    def jobs(self) -> list[str]:
        """Ids of the jobs that have not ended."""
        return sorted(self.cluster.jobs())

    def job_processes(self, script: str) -> list[psutil.Process]:
        """Processes of jobs whose command line names a script or module."""
        found = []
        for pid in self.cluster.processes():
            try:
                process = psutil.Process(pid)
                if script in " ".join(process.cmdline()):
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def managers(self) -> list[psutil.Process]:
        """The processes that hold the workers of a node."""
        pools = [p for p in self.job_processes("worker_pool") if p.name() != "srun"]
        ids = {p.pid for p in pools}
        return [p for p in pools if p.ppid() not in ids]  # ours are the parents of processes like themselves

    def interchange(self) -> psutil.Process:
        """The coordinator's interchange."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        return next(p for p in children if "interchange" in " ".join(p.cmdline()))

    def disturb(self) -> None:
        """Note the moment."""
        self.disturbed = time.time()

    def first_done_after(self) -> float | None:
        """Seconds from the disturbance to the first result of a run that was cut off by it."""
        folder = self.folder / "marks"
        cut = {
            begun.name.split("-")[1]
            for begun in folder.glob("begun-*")
            if begun.stat().st_mtime < self.disturbed
            and not (folder / begun.name.replace("begun-", "done-")).exists()
        }
        times = [done.stat().st_mtime for done in folder.glob("done-*") if done.name.split("-")[1] in cut]
        return min(times) - self.disturbed if times else None

    def next_done_after(self) -> float | None:
        """Seconds from the disturbance to the first result of a run that has begun after it."""
        folder = self.folder / "marks"
        later = [p for p in folder.glob("begun-*") if p.stat().st_mtime > self.disturbed]
        done = [folder / p.name.replace("begun-", "done-") for p in later]
        times = [p.stat().st_mtime for p in done if p.exists()]
        return min(times) - self.disturbed if times else None


# --- the faults: each takes a Driven that has just been started


def block_cancelled(driven: Driven) -> None:
    """Somebody cancels a job that has runs in it."""
    driven.until_runs()
    driven.disturb()
    driven.cluster.cancel(driven.jobs()[0])


def walltime(driven: Driven) -> None:
    """The walltime of a job is over."""
    driven.until_runs()
    job = driven.jobs()[0]
    driven.cluster.run_out(job)
    driven.until(lambda: not driven.cluster.running(job), name="the end of the job")
    driven.disturb()


def worker_killed(driven: Driven) -> None:
    """A worker process is killed, as the kernel does when memory is short."""
    driven.until_runs()
    driven.disturb()
    manager = driven.managers()[0]
    workers = [p for p in manager.children() if "resource_tracker" not in " ".join(p.cmdline())]
    workers[-1].send_signal(signal.SIGKILL)


def manager_killed(driven: Driven) -> None:
    """The process that holds the workers of a node is killed."""
    driven.until_runs()
    driven.disturb()
    driven.managers()[0].send_signal(signal.SIGKILL)


def interchange_killed(driven: Driven) -> None:
    """The process between coordinator and nodes is killed."""
    driven.until_runs()
    driven.disturb()
    driven.interchange().send_signal(signal.SIGKILL)


def controller_restarted(driven: Driven) -> None:
    """slurmctld is away for some seconds."""
    driven.until_runs()
    driven.disturb()
    driven.cluster.stop_controller()
    time.sleep(5)
    driven.cluster.start_controller()


def node_drained(driven: Driven) -> None:
    """The administrator drains a node that runs are on."""
    driven.until_runs()
    driven.disturb()
    driven.cluster.drain("n1")


def node_failed(driven: Driven) -> None:
    """A node fails."""
    driven.until_runs()
    driven.disturb()
    driven.cluster.down("n1")


def coordinator_killed(driven: Driven) -> None:
    """kill -9 of the coordinator, then the same script again while its jobs still run."""
    driven.until_runs()
    driven.disturb()
    driven.process.kill()
    driven.process.communicate()
    driven.start()


def sigterm(driven: Driven) -> None:
    """SIGTERM to the coordinator."""
    driven.until_runs()
    driven.disturb()
    driven.process.terminate()


def hangup(driven: Driven) -> None:
    """SIGHUP to the coordinator, as when the ssh connection is lost."""
    driven.until_runs()
    driven.disturb()
    driven.process.send_signal(signal.SIGHUP)


def latin_1(driven: Driven) -> None:
    """Another job of the user has a name that is not UTF-8, while one of ours is cancelled."""
    words = [b"sbatch", b"--parsable", b"--hold", b"-o", b"/dev/null", b"-J", b"s\xe9lf", b"--wrap", b"true"]
    environment = {**os.environ, **driven.cluster.env}
    other = subprocess.run(words, capture_output=True, check=True, env=environment).stdout.decode().strip()
    try:
        driven.until_runs()
        driven.disturb()
        first = next(job for job in driven.cluster.jobs() if job != other)
        driven.cluster.run(f"scancel {first}")
        driven.until(
            lambda: driven.first_done_after() is not None or driven.process.poll() is not None, within_s=240
        )
    finally:
        driven.cluster.run(f"scancel {other}")


def interchange_frozen(driven: Driven) -> None:
    """The process between coordinator and nodes stands still."""
    driven.until_runs()
    driven.disturb()
    driven.interchange().suspend()


def manager_frozen(driven: Driven) -> None:
    """The process that holds the workers of a node stands still, and its workers with it."""
    driven.until_runs()
    driven.disturb()
    manager = driven.managers()[0]
    for process in [manager, *manager.children(recursive=True)]:
        process.suspend()


def coordinator_frozen(driven: Driven) -> None:
    """The coordinator stands still for longer than its jobs wait for it, as in a suspended laptop."""
    driven.until_runs()
    driven.disturb()
    tree = psutil.Process(driven.process.pid)
    stopped = [tree, *tree.children(recursive=True)]
    for process in stopped:
        process.suspend()
    time.sleep(30)
    for process in stopped:
        process.resume()


def folder_deleted(driven: Driven) -> None:
    """Somebody deletes the run directory."""
    driven.until(lambda: driven.marks("done"), name="a run done", within_s=120)
    driven.disturb()
    shutil.rmtree(driven.run_dir, ignore_errors=True)


def _interrupted(driven: Driven) -> None:
    """Half of the runs are done, and the campaign is stopped by SIGTERM."""
    driven.until(lambda: len(driven.marks("done")) >= 4, name="four runs done", within_s=120)
    driven.process.terminate()
    driven.process.communicate(timeout=120)


def manifests_damaged(driven: Driven) -> None:
    """The line of the journal with what was sent is damaged; the same script again."""
    _interrupted(driven)
    journal = driven.run_dir / "events.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    at = next(i for i, line in enumerate(lines) if b'"manifests"' in line)
    lines[at] = lines[at][:200] + b"\0" * 50 + lines[at][250:]
    journal.write_bytes(b"".join(lines))
    driven.disturb()
    driven.start()


def function_edited(driven: Driven) -> None:
    """The function is edited; the same script again."""
    _interrupted(driven)
    work = driven.script / "work.py"
    work.write_text(work.read_text().replace("float(n * n)", "float(n * n + 1000)"))
    driven.disturb()
    driven.start()


def copied(driven: Driven) -> None:
    """A copy of the run directory is resumed while the campaign runs."""
    driven.until_runs()
    driven.disturb()
    copy = driven.folder / "copy"
    shutil.copytree(driven.run_dir, copy, symlinks=True, ignore_dangling_symlinks=True)
    beside = driven.folder / "beside"  # its marks are its own
    (beside / "marks").mkdir(parents=True)
    for name in ("prints_mb", "daemons"):
        shutil.copy(driven.folder / name, beside)
    site = copy / "site.toml"
    site.write_text(site.read_text().replace(f'"{driven.folder}"', f'"{beside}"'))
    again = driven.resume(copy, beside)
    again.communicate(timeout=120)


def nothing(driven: Driven) -> None:
    """The set-up is the fault."""
    driven.disturb()
