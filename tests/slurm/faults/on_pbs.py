"""The fake PBS as a cluster to the faults, and a campaign on it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import faults

__all__ = [
    "DrivenOnPbs",
    "PbsCluster",
    "block_deleted",
    "job_purged",
    "node_dies",
    "output_folder_missing",
    "server_away",
    "walltime_over",
]

PROFILE = """\
kind = "pbs"
address = "127.0.0.1"
poll_s = 0.5
heartbeat_s = 8
margin_s = 5
cmd_timeout_s = 10
{top}
[env]
FAULTS_FOLDER = "{folder}"
[block]
max_blocks = 2
cores_per_node = 2
walltime = "{walltime}"
{block}
[executors.workers]
worker_init = '''{worker_init}'''
preload = ["hpcagent.apps.decorator"]
"""


class PbsCluster:
    """The fake PBS, as the faults know the Slurm cluster."""

    def __init__(self, pbs: Any) -> None:
        self.pbs, self.env = pbs, pbs.env

    def jobs(self) -> list[str]:
        """Ids of the jobs that have not ended."""
        return list(self.pbs.open_jobs())

    def processes(self) -> list[int]:
        """Processes of jobs."""
        return list(self.pbs.processes())

    def running(self, job_id: str) -> bool:
        """Whether PBS says R of it."""
        return bool(self.pbs.jobs()[job_id]["state"] == "R")

    def cancel(self, job_id: str) -> None:
        """Delete a job, as its owner does."""
        self.pbs.run("qdel", job_id)

    def run_out(self, job_id: str) -> None:
        """Let a running job's walltime be over now."""
        self.pbs.edit(job_id, resources={**self.pbs.jobs()[job_id]["resources"], "walltime_s": 1})

    def stop_controller(self) -> None:
        """From now on nobody answers."""
        self.pbs.kill_server()

    def start_controller(self) -> None:
        """The server is back."""
        self.pbs.start_server()


class DrivenOnPbs(faults.Driven):
    """A campaign in a process of its own, on PBS.

    Args:
        pbs: The fake.
        folder: Of the campaign.
        setting: As for Slurm.
        top: Further lines of the profile, at its top.
        block: Further lines of its `[block]`.
    """

    def __init__(self, pbs: Any, folder: Path, setting: Any = None, *, top: str = "", block: str = "") -> None:
        self.top, self.block = top, block
        super().__init__(PbsCluster(pbs), folder, setting or faults.Setting(seconds=0.7))

    def profile(self) -> str:
        """The site."""
        s = self.setting
        block = self.block + (f'\nqueue = "{s.partition}"' if s.partition != "debug" else "")
        return PROFILE.format(
            top=self.top, folder=self.folder, block=block, walltime=s.walltime, worker_init=s.worker_init
        )

    def managers(self) -> list[Any]:
        """The processes that hold the workers of a node; what started them has their words as well."""
        return [p for p in self.job_processes("worker_pool") if "python" in p.name() and _starts_alone(p)]


def _starts_alone(process: Any) -> bool:
    parent = process.parent()
    return parent is None or "python" not in parent.name() or "worker_pool" not in " ".join(parent.cmdline())


# --- the faults of PBS


def block_deleted(driven: DrivenOnPbs) -> None:
    """Somebody deletes a job that has runs in it."""
    driven.until_runs()
    driven.disturb()
    driven.cluster.pbs.run("qdel", driven.jobs()[0])


def walltime_over(driven: DrivenOnPbs) -> None:
    """The walltime of a job is over."""
    driven.until_runs()
    driven.disturb()
    pbs, job_id = driven.cluster.pbs, driven.jobs()[0]
    pbs.edit(job_id, resources={**pbs.jobs()[job_id]["resources"], "walltime_s": 1})


def node_dies(driven: DrivenOnPbs) -> None:
    """A node dies; the server takes a while to notice, and shows its job running all the time."""
    driven.until_runs()
    driven.disturb()
    driven.cluster.pbs.kill_node(driven.cluster.pbs.jobs()[driven.jobs()[0]]["hosts"][0][0])


def server_away(driven: DrivenOnPbs) -> None:
    """The server does not answer for some seconds."""
    driven.until_runs()
    driven.disturb()
    driven.cluster.pbs.kill_server()
    time.sleep(2)
    driven.cluster.pbs.start_server()


def job_purged(driven: DrivenOnPbs) -> None:
    """A job ends, and the server has forgotten it by the time it can be asked again."""
    driven.until_runs()
    driven.disturb()
    pbs, job_id = driven.cluster.pbs, driven.jobs()[0]
    pbs.kill_server()
    os.kill(pbs.jobs()[job_id]["pid"], signal.SIGKILL)
    pbs.wait(job_id)
    pbs.purge(job_id)
    pbs.start_server()


def output_folder_missing(driven: DrivenOnPbs) -> None:
    """The folder of a job's output is gone when it is deleted: the job stays in E."""
    driven.until_runs()
    driven.disturb()
    scripts = driven.run_dir / "parsl" / "000" / "submit_scripts"
    scripts.rename(scripts.with_name("elsewhere"))
    pbs, job_id = driven.cluster.pbs, driven.jobs()[0]
    pbs.run("qdel", job_id)
    pbs.wait(job_id, "E")
    time.sleep(1)
    assert pbs.jobs()[job_id]["state"] == "E"
