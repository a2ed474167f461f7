"""Endpoints: real processes of `globus-compute-endpoint`, one for each user_endpoint_config, as a Core Endpoint starts them."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .service import Service

__all__ = ["SCHEMA", "TEMPLATE", "Endpoint", "User", "marked", "missing"]

MARK = "HPCAGENT_RIG_ENDPOINT"
LAUNCH = Path(__file__).with_name("launch_endpoint.py")

# Everything on loopback. The engine is the user's choice here: what others take is a matter of the site's template.
# An endpoint hands texts to its template in double quotes, as YAML takes them.
TEMPLATE = """\
{% set kind = engine | default("htex") | replace('"', "") %}
display_name: rig
heartbeat_period: 5
idle_heartbeats_soft: 0
engine:
{% if kind == "htex" %}
  type: GlobusComputeEngine
  label: rig
  address: 127.0.0.1
  encrypted: false
  max_workers_per_node: {{ workers | default(2) }}
  heartbeat_period: 3
  heartbeat_threshold: 10
  provider:
    type: LocalProvider
    init_blocks: 1
    min_blocks: 0
    max_blocks: 1
    worker_init: {{ worker_init | default('""') }}
{% elif kind == "mpi" %}
  type: GlobusMPIEngine
  label: rig
  address: 127.0.0.1
  encrypted: false
  mpi_launcher: mpiexec
  max_workers_per_block: {{ workers | default(2) }}
  heartbeat_period: 3
  heartbeat_threshold: 10
  provider:
    type: LocalProvider
    launcher:
      type: SimpleLauncher
    init_blocks: 1
    min_blocks: 0
    max_blocks: 1
    worker_init: {{ worker_init | default('""') }}
{% elif kind == "threads" %}
  type: ThreadPoolEngine
  label: rig
  max_workers: {{ workers | default(2) }}
{% else %}
  type: ProcessPoolEngine
  label: rig
  max_workers: {{ workers | default(2) }}
{% endif %}
"""
SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {
        "engine": {"type": "string", "enum": ["htex", "mpi", "threads", "processes"]},
        "workers": {"type": "integer", "minimum": 1, "maximum": 64},
        "worker_init": {"type": "string"},
        "account": {"type": "string"},
        "partition": {"type": "string"},
        "walltime": {"type": "string"},
    },
    "additionalProperties": False,
}


def missing() -> list[str]:
    """What this environment lacks for an endpoint."""
    import importlib.util

    return [] if importlib.util.find_spec("globus_compute_endpoint") else ["globus-compute-endpoint"]


@dataclass
class User:
    """The process of one user_endpoint_config.

    Attributes:
        folder: The endpoint's own folder, with its logs.
    """

    id: str
    queue: str
    name: str
    folder: Path
    given: str
    process: subprocess.Popen[bytes] | None = None


class Endpoint:
    """An endpoint that the service knows; its processes start when the first task for them comes.

    Args:
        service: The rig's.
        folder: Where its home is (another one than the client's).
        name: For its status and its logs.
        template: user_config_template.yaml.j2.
        schema: user_config_schema.json; None: none.
        python: The Python it runs with, which has the endpoint installed; None: this one.
        environment: Further variables of its processes.

    Attributes:
        id: Its UUID.
        home: `~` there.
        offline: Say "offline" whatever the truth is, and start no process.
    """

    def __init__(
        self,
        service: Service,
        folder: Path,
        name: str,
        *,
        template: str = TEMPLATE,
        schema: dict[str, Any] | None = SCHEMA,
        python: Path | None = None,
        environment: dict[str, str] | None = None,
    ) -> None:
        self.id, self.name = str(uuid.uuid4()), name
        self.service, self.template, self.schema = service, template, schema
        self.python = python or Path(sys.executable)
        self.environment = environment or {}
        self.home = folder
        self.home.mkdir(parents=True)
        (self.home / "tmp").mkdir()
        self.offline = False
        self.up = True
        self.users: dict[str, User] = {}
        self._lock = threading.RLock()
        service.endpoints[self.id] = self

    @property
    def online(self) -> bool:
        """What its status says."""
        return self.up and not self.offline

    @property
    def work_dir(self) -> Path:
        """A place for runs there."""
        return self.home / "scratch" / "hpcagent"

    def uep_for(self, options: dict[str, Any], runtime: dict[str, Any]) -> User:
        """The process for these options; started if there is none and the endpoint is up."""
        key = json.dumps(options, sort_keys=True)
        with self._lock:
            if key not in self.users:
                own = str(uuid.uuid4())
                name = f"uep-{len(self.users)}"
                queue = f"{own}.tasks"
                given = {
                    "name": name,
                    "template": self.template,
                    "schema": self.schema,
                    "options": options,
                    "runtime": runtime,
                    "amqp_creds": self.service.credentials(own, queue),
                }
                folder = self.home / ".globus_compute" / name
                folder.mkdir(parents=True)
                self.users[key] = User(own, queue, name, folder, json.dumps(given))
            user = self.users[key]
            if self.online and (user.process is None or user.process.poll() is not None):
                self._launch(user)
            return user

    def _launch(self, user: User) -> None:
        kept = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith(
                ("GLOBUS_", "PYTHON", "PARSL", "HPCAGENT_", "COV_", "SLURM_", "PBS_", "VIRTUAL_ENV")
            )
        }
        own = {
            "HOME": str(self.home),
            "TMPDIR": str(self.home / "tmp"),
            "PATH": f"{self.python.parent}:{os.environ['PATH']}",
            MARK: self.id,
            "SPT_NOENV": "1",  # setproctitle would write over the mark in /proc
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": "1",
            **self.environment,
        }
        # A pid file of one that was killed makes the next one wait for its heartbeats.
        (user.folder / "daemon.pid").unlink(missing_ok=True)
        with (user.folder / "out.txt").open("ab") as out:
            user.process = _popen(
                ["setpriv", "--pdeathsig", "TERM", str(self.python), str(LAUNCH)],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=out,
                env={**kept, **own},
                cwd=self.home,
                start_new_session=True,
            )
        assert user.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            user.process.stdin.write(user.given.encode())
            user.process.stdin.close()

    def start(self, *, wake: bool = True) -> None:
        """Be there again after `kill` or `stop`; `wake`: with the processes it had, else each starts with its next task."""
        with self._lock:
            self.up = True
            for user in self.users.values():
                if wake and (user.process is None or user.process.poll() is not None):
                    self._launch(user)

    def kill(self) -> list[str]:
        """End all its processes with SIGKILL, those of runs too, as a node does that loses its power; what they were."""
        with self._lock:
            self.up = False
            ended = self._sweep()
            for user in self.users.values():
                if user.process is not None:
                    user.process.wait()
                    user.process = None
        return ended

    def _sweep(self) -> list[str]:
        ended: list[str] = []
        while left := self.processes():
            for pid, words in left:
                ended.append(words)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for user in self.users.values():
                if user.process is not None:
                    user.process.poll()
            time.sleep(0.02)
        return ended

    def stop(self, *, within_s: float = 60.0) -> None:
        """End its processes as `globus-compute-endpoint stop` does (SIGTERM), and wait for them."""
        with self._lock:
            self.up = False
            running = [user for user in self.users.values() if user.process is not None]
            for user in running:
                assert user.process is not None
                user.process.terminate()
            for user in running:
                assert user.process is not None
                with contextlib.suppress(subprocess.TimeoutExpired):
                    user.process.wait(within_s)
                user.process = None
            self._sweep()

    def processes(self, *words: str) -> list[tuple[int, str]]:
        """(pid, command and working directory) of its processes that live; with `words`: of those that have all of them."""
        return [
            (pid, said)
            for pid, said in marked(f"{MARK}={self.id}".encode())
            if all(word in said for word in words)
        ]

    def runs(self) -> list[tuple[int, str]]:
        """Its processes below a work directory: what runs, not what serves them."""
        return self.processes(f" [{self.home}/scratch")

    def log(self, lines: int = 40) -> str:
        """The ends of its logs."""
        files = sorted(self.home.glob(".globus_compute/*/*.log")) + sorted(
            self.home.glob(".globus_compute/*/out.txt")
        )
        return "\n".join(
            f"--- {file}\n" + "\n".join(file.read_text(errors="replace").splitlines()[-lines:]) for file in files
        )


# The kernel ends a child with the thread that made it (--pdeathsig), and a request's thread ends soon.
_LASTING = concurrent.futures.ThreadPoolExecutor(1, "launches-endpoints")


def _popen(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
    return _LASTING.submit(subprocess.Popen, command, **options).result()


def marked(mark: bytes) -> Iterator[tuple[int, str]]:
    """Processes with this variable in the environment they started with: (pid, command and working directory)."""
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            if mark not in (folder / "environ").read_bytes().split(b"\0"):
                continue
            if "\nState:\tZ" in (folder / "status").read_text():
                continue
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            yield int(folder.name), f"{command} [{(folder / 'cwd').readlink()}]"
