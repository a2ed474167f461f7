"""Workers on this machine: blocks that are processes, started and ended here."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from parsl.executors.high_throughput.manager_selector import RandomManagerSelector
from parsl.jobs.states import JobState, JobStatus
from parsl.launchers import SimpleLauncher
from parsl.providers import LocalProvider

from hpcagent.errors import BadInput, SiteFailed
from hpcagent.lifeline import MARK, birth, end_all, end_tree, uninterrupted
from hpcagent.sites.launch import python_command
from hpcagent.sites.workers.executor import Executor, log_tail
from hpcagent.store.files import open_own

__all__ = ["LocalBlocks", "LocalExecutor", "local_executor"]

_LOOPBACK = "127.0.0.1"
_NO_HEARTBEAT_S = 10 * 365 * 86400
"""The processes are watched instead: a laptop that slept for an hour has missed its heartbeats, not died."""
_LOOK_EVERY_S = 0.2
_DEATHS_IN_A_ROW = 3
"""Blocks that may die one after another without a single result in between before the site is given up."""


class LocalBlocks(LocalProvider):  # type: ignore[misc]  # Parsl has no type information
    """Parsl's LocalProvider, which here starts and ends its blocks itself.

    Parsl's goes through `ps` and `grep`, which not every container has, to end a block, and then leaves
    behind what a worker had put in a session of its own. It also leaves a shell waiting beside each block.
    """

    environment: Mapping[str, str] = {}
    mark = ""

    def submit(self, command: str, tasks_per_node: int, job_name: str = "block") -> str:
        """Start a block; Parsl calls this. Returns its job id."""
        script = Path(self.script_dir).absolute() / f"{job_name}.sh"
        with open_own(script, private=True) as file:  # the environment in it may have secrets
            file.write(f"{self.worker_init}\n{self.lines(command, tasks_per_node, job_name)}\n".encode())
        with script.with_suffix(".out").open("wb") as out, script.with_suffix(".err").open("wb") as err:
            process = subprocess.Popen(
                [shutil.which("bash") or "/bin/sh", str(script)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                # its own session: Ctrl-C at the terminal is for the coordinator, which then decides
                start_new_session=True,
                env={**os.environ, **self.environment, MARK: f"{self.mark}/{job_name}"},
            )
        job = {"process": process, "script": script, "mark": f"{self.mark}/{job_name}", "cancelled": False}
        self.resources[str(process.pid)] = job
        return str(process.pid)

    def lines(self, command: str, tasks_per_node: int, job_name: str) -> str:
        """Return the last lines of a block's script; the started program takes the place of its shell."""
        return f"exec {command}"

    def status(self, job_ids: Sequence[str]) -> list[JobStatus]:
        """Return the state of each block, from the process itself."""
        return [self._status(self.resources[job_id]) for job_id in job_ids]

    def _status(self, job: dict[str, Any]) -> JobStatus:
        code = job["process"].poll()
        if code is None:
            return JobStatus(JobState.RUNNING)
        state = JobState.CANCELLED if job["cancelled"] else JobState.FAILED
        return JobStatus(state, exit_code=code)

    def cancel(self, job_ids: Sequence[str]) -> list[bool]:
        """Kill blocks with everything that was started in them. May be called again."""
        with uninterrupted():
            for job_id in job_ids:
                job = self.resources[job_id]
                job["cancelled"] = True
                if job["process"].poll() is None:
                    end_tree(job["process"].pid)
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(job["process"].pid, signal.SIGKILL)
                    job["process"].wait()
                end_all(job["mark"])
        return [True for _ in job_ids]

    def logs(self, job_id: str) -> tuple[Path, Path]:
        """Return the files with what a block printed: errors, output."""
        script: Path = self.resources[job_id]["script"]
        return script.with_suffix(".err"), script.with_suffix(".out")

    @property
    def status_polling_interval(self) -> float:
        """Seconds; asking costs one system call."""
        return _LOOK_EVERY_S


class LocalExecutor(Executor):
    """Parsl's HighThroughputExecutor for workers on this machine; use `local_executor`."""

    hosts_cores = 0
    hosts_gpus = 0
    _results_at_last_death = -1
    _deaths = 0

    def begin(self) -> None:
        """Start the workers beside the interchange. Stock Parsl does when its strategy first looks, 5 s later."""
        self.scale_out_facade(1)

    def at_once(self, needs: Mapping[str, Any]) -> int:
        """Return how many such runs go at once (mode mpi)."""
        return max(1, self.hosts_cores // int(needs["cores"]))

    def refuse_impossible(self, needs: Mapping[str, Any]) -> None:
        """Raise `BadInput` for a run that is larger than this machine."""
        cores = int(needs.get("nodes", 1)) * int(needs.get("cores", 1))
        if "cores" in needs and (cores > self.hosts_cores or int(needs["nodes"]) > 1):
            raise BadInput(
                f"A run of {needs['nodes']} node(s) x {needs['cores']} core(s) does not fit on this machine, "
                f"which has one node with {self.hosts_cores} usable core(s); choose another --site, or give the "
                "run less.",
                value=cores,
            )

    def _get_launch_command(self, block_id: str) -> str:
        return shlex.join(
            python_command(
                "hpcagent.sites.workers.worker_pool",
                f"--opener={os.getpid()}",
                f"--opener_birth={birth(os.getpid())}",
                f"--port_file={self._port_file}",
                f"--block_id={block_id}",
                f"--addresses={_LOOPBACK}",
                "--port=0",
                f"--cert_dir={self.cert_dir}",
                f"--logdir={self.worker_logdir}",
                f"--max_workers_per_node={self.max_workers_per_node}",
                f"--cores_per_worker={self.cores_per_worker}",
                f"--prefetch_capacity={self.prefetch_capacity}",
                f"--hb_period={self.heartbeat_period}",
                f"--hb_threshold={self.heartbeat_threshold}",
                "--cpu-affinity=none",  # see --cores
                *self.pool_arguments,
                python=self.python,
            )
        )

    def look_after_blocks(self, status: dict[str, JobStatus]) -> None:
        """Notice blocks that have ended."""
        for block_id, state in status.items():
            if state.terminal and block_id not in self._ended_blocks:
                self._ended_blocks.add(block_id)
                self._block_ended(block_id, state)

    def _block_ended(self, block_id: str, state: JobStatus) -> None:
        """Start another block in place of one that died, unless that would not help."""
        job_id = self.blocks_to_job_id.get(block_id)
        if job_id is not None:
            self.provider.cancel([job_id])  # what its workers had started may have outlived it
        started = Path(self.worker_logdir, f"block-{block_id}", "up").exists()
        self._deaths = self._deaths + 1 if self._results == self._results_at_last_death else 1
        self._results_at_last_death = self._results
        if started and self._deaths < _DEATHS_IN_A_ROW:
            self.scale_out_facade(1)
            return
        files = () if job_id is None else self.provider.logs(job_id)
        tail = log_tail(*files, *Path(self.worker_logdir, f"block-{block_id}").glob("manager-*.log"))
        when = "again and again" if started else "before they were ready"
        self._fail(
            SiteFailed(
                f"The workers on this machine ended {when} (exit code {state.exit_code}). "
                f"Their log, {files[0] if files else self.worker_logdir}, ends:\n"
                f"{tail or state.message or '(empty)'}",
                log_tail=tail,
            )
        )

    def end_blocks(self) -> None:
        """Kill the workers and whatever they started."""
        self.provider.cancel(list(self.blocks_to_job_id.values()))
        end_all(self.provider.mark)


def local_executor(
    label: str,
    *,
    workers: int,
    cores: Sequence[int] | None,
    cores_per_worker: int,
    prefetch_capacity: int,
    worker_init: str,
    encrypted: bool,
    environment: Mapping[str, str],
    preload: Sequence[str],
    python: str | None,
    accelerators: Sequence[str] = (),
    places: bool = False,
    eager: bool = True,
) -> LocalExecutor:
    """Make the executor for this machine.

    Args:
        label: Its name among the executors of the site.
        workers: How many tasks run at once.
        cores: Cores to pin the workers to, `cores_per_worker` each, in turn; None pins none.
        cores_per_worker: Also the threads that OpenMP and the BLAS libraries may use in a worker.
        prefetch_capacity: Tasks that wait beside the workers. There is one queue for all workers of the
            machine, so no task waits behind a long one while a worker is free.
        worker_init: Shell lines to run before the workers.
        encrypted: Whether the loopback connections are encrypted. Any user of the machine reaches the port.
        environment: Extra environment of the workers.
        preload: Modules to import once for all workers.
        python: Interpreter of the workers; None: the one running now.
        accelerators: Ids of GPUs, one for each worker, or none.
        places: Whether each run gets cores of its own out of `cores`, as many as it needs, and its worker none.
        eager: Start the workers with the site, rather than with the first task.
    """
    provider = LocalBlocks(init_blocks=0, max_blocks=1, worker_init=worker_init, launcher=SimpleLauncher())
    threads = str(cores_per_worker)
    thread_limits = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), threads)
    provider.environment = {**thread_limits, **environment}
    provider.mark = uuid.uuid4().hex
    executor = LocalExecutor(
        label=label,
        provider=provider,
        address=_LOOPBACK,  # Parsl's default listens on every interface, and looks the machine up outside
        max_workers_per_node=workers,
        # Parsl cuts the workers to cores / cores_per_worker; here the profile has decided already
        cores_per_worker=1e-6,
        prefetch_capacity=prefetch_capacity,
        heartbeat_period=1,  # how often the manager looks for dead workers
        heartbeat_threshold=_NO_HEARTBEAT_S,
        poll_period=100,
        encrypted=encrypted,
        manager_selector=RandomManagerSelector(),
    )
    pinned = _affinity(workers, cores, cores_per_worker) if cores and not places else ""
    executor.pool_arguments = [f"--preload={','.join(preload)}", f"--cores={pinned}"]
    if accelerators:
        executor.pool_arguments += ["--available-accelerators", *accelerators]
    if places:
        here = {"name": socket.gethostname(), "cores": list(cores or ()), "gpus": []}
        executor.pool_arguments.append(f"--hosts={json.dumps([here])}")
    executor.python = python
    executor.eager = eager
    executor.hosts_cores = len(cores or ())
    return executor


def _affinity(workers: int, cores: Sequence[int], cores_per_worker: int) -> str:
    """Return worker 0's cores, worker 1's, …; around again if there are too few.

    Parsl's "block" divides all cores among the workers, so that two workers of eight cores get four each;
    and with more workers than cores its workers end at once, whatever the affinity, one after another.

    Example:
        >>> _affinity(2, [4, 5, 6, 7], 2)
        '4,5:6,7'
    """
    groups = []
    for worker in range(workers):
        first = worker * cores_per_worker
        groups.append(",".join(str(cores[(first + i) % len(cores)]) for i in range(cores_per_worker)))
    return ":".join(groups)
