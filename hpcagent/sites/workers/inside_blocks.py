"""Workers on the nodes of the allocation that the coordinator runs in."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import Any

from hpcagent.lifeline import end_all
from hpcagent.sites.schedulers.answers import Job
from hpcagent.sites.workers.local import LocalBlocks

__all__ = ["InsideBlocks"]


class InsideBlocks(LocalBlocks):
    """The one block of a coordinator that runs inside an allocation: workers started here, on its nodes."""

    allocation = ""
    """Id of the scheduler's job around; the ids of blocks here are those of processes, which say nothing."""

    def known(self) -> dict[str, Job]:
        """Return how the block stands; nobody needs to be asked."""
        jobs = {}
        for job_id, job in self.resources.items():
            code = job["process"].poll()
            state: Any = "running" if code is None else ("cancelled" if job["cancelled"] else "failed")
            jobs[job_id] = Job(job_id, state, exit_code=code)
        return jobs

    def lines(self, command: str, tasks_per_node: int, job_name: str) -> str:
        """Return shell lines that start the workers on the nodes of the allocation."""
        folder = str(Path(self.script_dir or ".").absolute())
        nodes = len(getattr(self.launcher, "hosts", ())) or self.nodes_per_block
        start = self.launcher(command, tasks_per_node, nodes, folder)
        # Several lines see to their end themselves; see `launchers.py`.
        start = start if "\n" in start else f"exec {start}"
        return f"export JOBNAME={shlex.quote(job_name)}\n{start}"

    def wait(self, within_s: float) -> None:
        """Wait until the launchers have ended, which they do when their workers have."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline and any(j["process"].poll() is None for j in self.resources.values()):
            time.sleep(0.02)

    def end_all(self, *, within_s: float = 60.0) -> None:
        """End the workers with everything they started on this node; the launcher ends the others."""
        for job in self.resources.values():
            if job["process"].poll() is None:
                job["process"].terminate()
        self.wait(3.0)
        self.cancel(list(self.resources))
        end_all(self.mark)
