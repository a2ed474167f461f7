"""Scripts of jobs as they are submitted: of a block of workers, and of a coordinator of its own."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from hpcagent.sites.block import block_of
from hpcagent.sites.ledger import Ledger
from hpcagent.sites.profile import Profile, account_of
from hpcagent.sites.workers.batch_of_profile import batch_executor, cores_of, provider_of

__all__ = ["COORDINATOR_CPUS", "coordinator_script", "job_script"]


COORDINATOR_CPUS, _COORDINATOR_GB = 2, 4.0
"""What a coordinator in a job of its own asks for; it and its interchange take 0.2 GB, measured."""


def job_script(
    profile: Profile, label: str, *, account: str | None = None, run_dir: str | Path = "RUN_DIR"
) -> str:
    """Return the job script of a block, as it would be submitted; nothing is submitted or written.

    The scheduler is asked for the cores of a node if the profile does not say them. What is settled when the site
    is opened stands in capitals: PORT and MARK.
    """
    from hpcagent.sites.schedulers.registry import scheduler

    executor = batch_executor(
        profile,
        label,
        scheduler=scheduler(profile.kind, timeout_s=profile.cmd_timeout_s),
        ledger=Ledger(Path(run_dir, "jobs.jsonl")),
        account=account_of(profile, account),
    )
    logs = f"{run_dir}/parsl/000/{label}"
    executor.provider.script_dir = f"{run_dir}/parsl/000/submit_scripts"
    certificates = f"{logs}/KEYS" if executor.encrypted else "None"
    command = executor.worker_command("0", port="PORT", mark="MARK", cert_dir=certificates, logdir=logs)
    script: str = executor.provider.script(command, f"parsl.{label}.block-0")
    return script


def coordinator_script(
    profile: Profile,
    label: str,
    command: str,
    *,
    name: str,
    folder: str | Path,
    nodes: int = 1,
    whole: bool = True,
    account: str | None = None,
) -> str:
    """Return the script of a job in which the coordinator itself runs, such as blocks of an executor are.

    Args:
        profile: Of the site.
        label: The executor whose queue, walltime, directives and worker_init are used.
        command: Shell words that start the coordinator, on the job's first node.
        name: Of the job.
        folder: Where the job's own output goes.
        nodes: Of the job.
        whole: Whether the nodes are wanted for runs, too. A coordinator alone asks for a small part of one,
            which on a queue of shared nodes is all that is charged.
        account: Who is charged.
    """
    settings = profile.executors[label]
    block = dataclasses.replace(block_of(profile, label), nodes_per_block=nodes, worker_launcher="single")
    if whole and profile.scheduler.wants_cores and block.cpus_per_node is None:  # as for blocks
        from hpcagent.sites.schedulers.registry import scheduler

        asked = scheduler(profile.kind, timeout_s=profile.cmd_timeout_s)
        block = dataclasses.replace(block, cpus_per_node=cores_of(block, asked, None))
    if not whole:
        cpus, memory = block.cpus_per_node, block.mem_per_node_gb
        block = dataclasses.replace(
            block,
            exclusive=False,
            cpus_per_node=min(COORDINATOR_CPUS, cpus or COORDINATOR_CPUS),
            mem_per_node_gb=min(_COORDINATOR_GB, memory) if memory else None,
        )
    provider = provider_of(
        profile, block, account_of(profile, account), settings.worker_init, settings.cores_per_worker
    )
    provider.script_dir = str(folder)
    script: str = provider.script(command, name)
    return script
