"""The fake PBS of `fake/pbs.py` as a fixture: a private PBS on the PATH of the test, gone after it."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import importlib.util
import json
import os
import pwd
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FAKE = Path(__file__).parent / "fake"


class FakePbs:
    """A PBS of one machine.

    Attributes:
        home: Its private folder.
        user: Who submits to it.
        bin: Folder of its qsub, qstat, qdel, qselect and pbsnodes.
        env: Environment for its commands; in the test's own environment already.
        may_leave_jobs: Set it where a test leaves jobs in the queue on purpose; otherwise that fails.
    """

    def __init__(self, home: Path) -> None:
        self.home, self.bin, self.user = home, FAKE, pwd.getpwuid(os.getuid()).pw_name
        home.mkdir()
        path = f"{FAKE}{os.pathsep}{os.environ.get('PATH', '')}"
        self.env = {"FAKE_PBS_HOME": str(home), "FAKE_PBS_PYTHON": sys.executable, "PATH": path}
        self.may_leave_jobs = False
        self._config: dict[str, Any] = {}

    def set(self, **settings: Any) -> None:
        """Change how it behaves from now on; the keys are those of DEFAULTS in `fake/pbs.py`."""
        unknown = set(settings) - set(_fake().DEFAULTS)
        assert not unknown, f"the fake PBS has no setting {unknown}"
        if settings.get("history") is False:
            with self._state() as state:  # switched on again, it does not know them either
                state["jobs"] = {i: job for i, job in state["jobs"].items() if job["state"] != "F"}
        self._config |= settings
        part = self.home / "config.part"
        part.write_text(json.dumps(self._config))
        part.rename(self.home / "config.json")

    def take_real_times(self) -> None:
        """Be as late with everything as a real PBS was seen to be."""
        self.set(**_fake().REAL_TIMES)

    def kill_server(self) -> None:
        """From now on nobody answers. What runs, runs on."""
        self.set(down=True)

    def start_server(self) -> None:
        """The server is back, and knows what it knew, but for the comments of jobs that run."""
        with self._state() as state:
            for job in state["jobs"].values():
                if job["state"] == "R":
                    job["comment"] = ""
        self.set(down=False)

    def kill_node(self, host: str) -> None:
        """A node dies with all processes of its jobs; the server notices after `shown_down_s`."""
        self.set(down_hosts={**self._config.get("down_hosts", {}), host: time.time()})

    def start_node(self, host: str) -> None:
        """The node is back, without its jobs."""
        self.set(down_hosts={h: at for h, at in self._config["down_hosts"].items() if h != host})

    def run(self, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run one of its commands."""
        return subprocess.run(command, env={**os.environ, **self.env}, capture_output=True, text=True, check=check)

    def qsub(self, body: str, *directives: str) -> str:
        """Submit a script, and return the job's id. Output goes to `home/out.NUMBER` and `home/err.NUMBER`."""
        scripts = self.home / "scripts"
        scripts.mkdir(exist_ok=True)
        script = scripts / f"job{len(list(scripts.iterdir()))}.sh"
        lines = ["#!/bin/bash", f"#PBS -o {script}.out", f"#PBS -e {script}.err"]
        lines += [f"#PBS {directive}" for directive in directives]
        script.write_text("\n".join([*lines, "", body, ""]))
        return self.run("qsub", str(script)).stdout.strip()

    def jobs(self) -> dict[str, dict[str, Any]]:
        """All jobs that it knows, by id: `state`, `substate`, `comment`, `exit_status`, `name`, `pid`, …"""
        with self._state() as state:
            return dict(state["jobs"])

    def open_jobs(self) -> list[str]:
        """Ids of the jobs that have not ended."""
        return [job_id for job_id, job in self.jobs().items() if job["state"] != "F"]

    def edit(self, job_id: str, **fields: Any) -> None:
        """Change what it knows of a job."""
        with self._state() as state:
            state["jobs"][job_id].update(fields)

    def purge(self, job_id: str) -> None:
        """Forget a job that has ended, as PBS does after job_history_duration."""
        with self._state() as state:
            assert state["jobs"].pop(job_id)["state"] == "F"

    def wait(self, job_id: str, states: str = "F", *, within_s: float = 120.0) -> dict[str, Any]:
        """Wait until a job is in one of these states (letters), and return it."""
        give_up = time.monotonic() + within_s
        while (job := self.jobs().get(job_id)) is None or job["state"] not in states:
            assert time.monotonic() < give_up, f"{job_id} is not in {states} within {within_s} s: {job}"
            time.sleep(0.05)
        return job

    def calls(self, command: str = "") -> list[list[str]]:
        """Its commands that were run since the start, word by word; those of one name."""
        log = self.home / "calls.log"
        lines = log.read_text().splitlines() if log.exists() else []
        return [call for line in lines if (call := json.loads(line))[0].startswith(command)]

    def processes(self) -> dict[int, str]:
        """What runs of it: the processes of jobs, and those that watch them."""
        home, script = f"FAKE_PBS_HOME={self.home}".encode(), str(FAKE / "command.py").encode()
        found = {}
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and home in (environment := (entry / "environ").read_bytes().split(b"\0")):
                    words = (entry / "cmdline").read_bytes()
                    if script in words or any(e.startswith(b"PBS_JOBID=") for e in environment):
                        found[int(entry.name)] = words.replace(b"\0", b" ").decode(errors="replace")
        return found

    def close(self) -> None:
        """End everything; fail if jobs were left in the queue or processes outlived their jobs."""
        left = [job_id for job_id in self.open_jobs() if not self.jobs()[job_id]["delete"]]
        self.set(
            down=False,
            conf=True,
            ids_illegal=False,
            copy_retry_s=0,
            exit_lag_s=0,
            kill_delay_s=0,
            end_lag_s=0,
            answer_s=0,
        )
        for job_id in self.open_jobs():
            self.run("qdel", "-W", "force", job_id, check=False)
        give_up = time.monotonic() + 60
        while self.processes() and time.monotonic() < give_up:
            time.sleep(0.05)
        outlived = self.processes()
        for pid in outlived:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        errors = [error.read_text() for error in self.home.glob("mom-*.error")]
        assert not errors, f"the fake PBS itself failed: {errors}"
        assert not outlived, f"these outlived their jobs: {outlived}"
        assert self.may_leave_jobs or not left, f"these jobs were left in the queue: {left}"

    @contextlib.contextmanager
    def _state(self) -> Iterator[dict[str, Any]]:
        with (self.home / "lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            path = self.home / "state.json"
            state = json.loads(path.read_text()) if path.exists() else {"next": 0, "jobs": {}}
            yield state
            path.with_suffix(".part").write_text(json.dumps(state))
            path.with_suffix(".part").rename(path)


@functools.cache
def _fake() -> Any:
    spec = importlib.util.spec_from_file_location("fake_pbs", FAKE / "pbs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def fake_pbs() -> type[FakePbs]:
    """For tests that make several."""
    return FakePbs


@pytest.fixture
def pbs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakePbs]:
    """A private PBS of one host, `vm`, with two cores; its commands are first on the PATH."""
    fake = FakePbs(tmp_path / "pbs")
    for name, value in fake.env.items():
        monkeypatch.setenv(name, value)
    yield fake
    fake.close()
