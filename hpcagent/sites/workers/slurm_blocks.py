"""Blocks of a site on Slurm: Parsl's SlurmProvider, asking and submitting by `hpcagent.sites.schedulers.slurm`."""

from __future__ import annotations

import copy
import re
from dataclasses import replace
from pathlib import Path
from string import Template
from typing import Any

from parsl.jobs.states import JobState, JobStatus
from parsl.providers import SlurmProvider

from hpcagent.sites.schedulers.answers import Job
from hpcagent.sites.script_paths import OUTPUT_NOWHERE, outputs_in_script
from hpcagent.sites.workers.blocks import BatchBlocks
from hpcagent.store.files import open_own

__all__ = ["SlurmBlocks"]

# Slurm's own words in the output of a job without cgroups (OverMemoryKill: the job is FAILED, 0:9), and those
# of a step that cgroups ended while the job went on to fail.
_OUT_OF_MEMORY = re.compile(rb"exceeded memory limit|oom[-_]kill|Out Of Memory", re.IGNORECASE)
_TAIL_BYTES = 65536


class SlurmBlocks(BatchBlocks, SlurmProvider):  # type: ignore[misc]  # Parsl has no type information
    """Parsl's provider with Parsl's script.

    No `__init__` of its own, because Parsl inspects it; `prepare` comes before the first submission.
    """

    _drafts: list[str] | None = None

    def script(self, command: str, job_name: str = "hpcagent", *, tasks_per_node: int = 1) -> str:
        """Return the job script for a command, as `submit` would write it (the job's name gets a time)."""
        draft = copy.copy(self)
        draft.resources, draft._drafts = {}, []
        draft.script_dir = self.script_dir or "."
        SlurmProvider.submit(draft, command, tasks_per_node, job_name)
        return draft._drafts[0]

    def execute_wait(self, cmd: str, timeout: float | None = None) -> tuple[int, str, str]:
        """Parsl's way to run a command. Here only its sbatch does anything, and that is ours.

        The constructor's `sacct -X` is told no: a profile is looked at on machines without Slurm.
        """
        if not cmd.startswith("sbatch "):
            return 1, "", ""
        if self._drafts is not None:
            return 0, "Submitted batch job 0", ""
        return 0, f"Submitted batch job {self.scheduler.submit(Path(cmd.removeprefix('sbatch ')))}", ""

    def _write_submit_script(
        self, template: str, script_filename: str, job_name: str, configs: dict[str, Any]
    ) -> None:
        names = ("job_stdout_path", "job_stderr_path")
        quoted = {**configs, **{k: _quoted(configs[k]) for k in names}}
        if "\\" in configs[names[0]]:
            sent = outputs_in_script(*(Path(configs[k]) for k in names))
            quoted |= {**dict.fromkeys(names, OUTPUT_NOWHERE), "worker_init": f"{sent}\n{configs['worker_init']}"}
        if self._drafts is not None:
            self._drafts.append(Template(template).substitute(jobname=job_name, **quoted))
            return
        Path(script_filename).parent.mkdir(parents=True, exist_ok=True)
        # Not Parsl's, which prints all values if one is wrong, and whose file every user may read.
        with open_own(Path(script_filename), private=True) as file:
            file.write(Template(template).substitute(jobname=job_name, **quoted).encode())

    def _submit(self, command: str, tasks_per_node: int, name: str) -> str:
        # Parsl's, past BatchBlocks: it calls execute_wait.
        job_id: str = SlurmProvider.submit(self, command, tasks_per_node, name)
        return job_id

    def _found(self, name: str) -> str | None:
        for job in self.scheduler.named(name):
            path = (
                Path(self.script_dir or ".").absolute() / job.name[job.name.index(name) :]
            )  # Parsl adds the time to the name
            self.resources[job.job_id] = {
                "job_id": job.job_id,
                "status": JobStatus(JobState.PENDING),
                "job_stdout_path": f"{path}.stdout",
                "job_stderr_path": f"{path}.stderr",
            }
            return job.job_id
        return None

    def _judged(self, job: Job) -> Job:
        if job.state != "failed" or job.job_id not in self.resources:
            return job
        try:
            with self.logs(job.job_id)[0].open("rb") as file:
                file.seek(max(0, file.seek(0, 2) - _TAIL_BYTES))
                tail = file.read()
        except OSError:
            return job
        for line in reversed(tail.splitlines()):
            if _OUT_OF_MEMORY.search(line):
                return replace(job, state="out_of_memory", reason=line.decode(errors="replace").strip())
        return job


def _quoted(path: str) -> str:
    """A path as sbatch reads it in a directive: `%` begins a replacement, a space the next option.

    Example:
        >>> _quoted("/scratch/me/a.out"), _quoted("/my runs/100%")
        ('/scratch/me/a.out', '"/my runs/100%%"')
    """
    path = path.replace("%", "%%")
    if re.search(r"[\s'\"\\#]", path):
        return '"' + re.sub(r'(["\\])', r"\\\1", path) + '"'
    return path
