"""What can go wrong on a cluster, done to a campaign while it runs: ours, or Parsl's alone for comparison."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
    environment: dict[str, str] = field(default_factory=dict)


class Driven:
    """A campaign in a process of its own, on a cluster, in a folder; `kind` is `hpcagent` or `parsl`."""

    def __init__(self, cluster: Any, folder: Path, setting: Setting, *, kind: str = "hpcagent") -> None:
        self.cluster, self.folder, self.setting, self.kind = cluster, folder, setting, kind
        self.run_dir = folder / "run"
        (folder / "marks").mkdir(parents=True, exist_ok=True)
        self.site = folder / "site.toml"
        self.site.write_text(
            PROFILE.format(
                partition=setting.partition,
                walltime=setting.walltime,
                memory=f"mem_per_node_gb = {setting.memory_gb}" if setting.memory_gb else "",
                worker_init=setting.worker_init,
            )
        )
        self.began = time.time()
        self.disturbed = 0.0
        self.process = self.start()

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
        if self.kind == "parsl":  # its scripts are found by the PATH only
            environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
        with (self.folder / "stderr").open("a") as stderr:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    str(HERE / words[0]),
                    *words[1:],
                    str(s.runs),
                    str(s.seconds),
                    str(s.eats_mb),
                    *more,
                ],
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                cwd=self.folder,
                env=environment,
            )
        return self.process

    def marks(self, what: str) -> list[str]:
        """Names of the runs that have begun, or are done: one for each time."""
        return sorted(p.name.split("-")[1] for p in (self.folder / "marks").glob(f"{what}-*"))

    def until(self, what: Callable[[], object], *, within_s: float = 60.0, name: str = "") -> None:
        """Wait until something holds while the campaign runs."""
        deadline = time.monotonic() + within_s
        while not what():
            assert time.monotonic() < deadline, f"not within {within_s} s: {name or what} ({self.words()})"
            assert self.process.poll() is None, f"ended while waiting for {name or what}: {self.words()}"
            time.sleep(0.05)

    def until_runs(self, begun: int = 4) -> None:
        """Wait until so many runs are under way."""
        self.until(lambda: len(self.marks("begun")) >= begun, name=f"{begun} runs begun", within_s=120)

    def words(self) -> str:
        """What it has printed for people."""
        return (self.folder / "stderr").read_text()[-2000:]

    def answer(self, *, within_s: float = 120.0) -> dict[str, Any]:
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


# --- the faults: each takes a Driven that has just been started


def block_cancelled(driven: Driven) -> None:
    """Somebody cancels a job that has runs in it."""
    driven.until_runs()
    driven.disturb()
    driven.cluster.run(f"scancel {driven.jobs()[0]}")


def walltime(driven: Driven) -> None:
    """The walltime of a job is over."""
    driven.until_runs()
    job = driven.jobs()[0]
    driven.cluster.run_out(job)
    driven.until(lambda: driven.cluster.jobs().get(job, ("",))[0] != "RUNNING", name="the end of the job")
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


def nothing(driven: Driven) -> None:
    """The set-up is the fault."""
    driven.disturb()
