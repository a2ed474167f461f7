"""Blocks of a site whose scheduler Parsl has no provider for: the scheduler's class writes what a job asks for."""

from __future__ import annotations

import shlex

from parsl.providers.cluster_provider import ClusterProvider

from hpcagent.sites.block import Block
from hpcagent.sites.schedulers.base import Scheduler
from hpcagent.sites.script_paths import OUTPUT_NOWHERE, is_plain, outputs_in_script
from hpcagent.sites.workers.blocks import ScriptedBlocks

__all__ = ["OwnBlocks"]


class OwnBlocks(ScriptedBlocks, ClusterProvider):  # type: ignore[misc]  # Parsl has no type information
    """A provider for every scheduler with `Scheduler.directives`; `asks` and `prepare` come before its first use.

    Args: Parsl's, of a ClusterProvider, and the account.
    """

    def __init__(
        self,
        account: str | None,
        nodes_per_block: int,
        init_blocks: int,
        min_blocks: int,
        max_blocks: int,
        walltime: str,
        worker_init: str,
        launcher: object,
        cmd_timeout: int,
    ) -> None:
        ClusterProvider.__init__(
            self,
            "own",
            nodes_per_block,
            init_blocks,
            min_blocks,
            max_blocks,
            1.0,
            walltime,
            launcher,
            cmd_timeout,
        )
        self.account, self.worker_init = account, worker_init

    def asks(self, scheduler: Scheduler, block: Block) -> None:
        """Say who writes what a job asks for, and what that is."""
        self._writes, self._block = scheduler, block

    def script(self, command: str, job_name: str = "hpcagent", *, tasks_per_node: int = 1) -> str:
        """Return the job script for a command, as `submit` would write it."""
        out, err = self._outputs(job_name)
        named = is_plain(out)
        lines = self._writes.directives(
            self._block,
            name=job_name,
            account=self.account,
            out=str(out) if named else OUTPUT_NOWHERE,
            err=str(err) if named else OUTPUT_NOWHERE,
        )
        before = [] if named else [outputs_in_script(out, err)]
        return "\n".join(
            [
                "#!/bin/bash",
                *lines,
                "",
                f"export JOBNAME={shlex.quote(job_name)}",
                *before,
                self.worker_init,
                self.launcher(command, tasks_per_node, self.nodes_per_block, self.script_dir or ""),
                "",
            ]
        )
