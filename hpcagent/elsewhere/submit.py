"""A coordinator is submitted as a job of its own; what the job then does is in `attend`."""

from __future__ import annotations

import os
import shlex
import uuid
from dataclasses import dataclass
from pathlib import Path

from hpcagent.campaign.coordinator import Coordinator
from hpcagent.campaign.loading import load_campaign, load_run
from hpcagent.campaign.record import Campaign
from hpcagent.campaign.standing import ROLE
from hpcagent.campaign.where import chosen_site, note_site
from hpcagent.elsewhere.attend import attend, main  # scripts of queued jobs ask for main here
from hpcagent.elsewhere.job import LOG, submit_job
from hpcagent.errors import BadInput
from hpcagent.owners import TRUST
from hpcagent.sites.block import Block, block_of
from hpcagent.sites.launch import python_command
from hpcagent.sites.ledger import Entry, read_ledger
from hpcagent.sites.limits import check, executor_for
from hpcagent.sites.profile import Profile, account_of, check_where
from hpcagent.sites.profiles import find_profile
from hpcagent.sites.schedulers.base import Scheduler, SchedulerDown
from hpcagent.sites.schedulers.registry import scheduler
from hpcagent.sites.script_paths import refuse_unwritable
from hpcagent.sites.several_profiles import one_site
from hpcagent.store.files import refusing_clearly
from hpcagent.store.rundir import RunDir

__all__ = ["LOG", "ROLE", "Submitted", "attend", "main", "submit"]


@dataclass(frozen=True, slots=True)
class Submitted:
    """What `submit` has done, or would do.

    Attributes:
        run_dir: The campaign's folder.
        script: The job's script; it is in `coordinator.sh`.
        job_id: Of the first job; None for a dry run.
        block: The executor's blocks, whose queue and walltime the job has.
        nodes: Of the job.
        most_jobs: Jobs that may follow one another, this one included.
        notes: What is worth knowing, a sentence each.
    """

    run_dir: Path
    script: str
    job_id: str | None
    block: Block
    nodes: int
    most_jobs: int
    notes: tuple[str, ...] = ()


def submit(
    campaign: Campaign | str | Path,
    *,
    site: str | Path | Profile | None = None,
    run_dir: str | Path | None = None,
    inside: bool = False,
    most_jobs: int = 20,
    dry_run: bool = False,
) -> Submitted:
    """Submit a job that runs the campaign's coordinator, or goes on with one, and its successors after it.

    Args:
        campaign: The campaign, the path of its TOML, the name of a packaged one, or the folder of one that was
            begun.
        site: A site profile with a batch system; the campaign's own by default.
        run_dir: The campaign's folder; `runs/NAME` by default.
        inside: The job's own nodes do the runs as well, in place of further jobs.
        most_jobs: Jobs that may follow one another.
        dry_run: Write and submit nothing.

    Raises:
        BadInput: The campaign or the site is wrong, the site does not want coordinators in jobs, or a job of an
            earlier `submit` waits or runs.
        RunDirLocked: A coordinator has the folder.
        Refused: The scheduler did not take the job.
    """
    if most_jobs < 1:
        raise BadInput(f"most_jobs={most_jobs}: at least one job is needed.", value=most_jobs)
    campaign, run_dir = _campaign_and_folder(campaign, run_dir)
    profile = find_profile(site if site is not None else chosen_site(campaign, run_dir))
    one_site(profile, "`hpcagent submit` is")
    if not profile.batch:
        raise BadInput(
            f'The site {profile.name} has kind = "{profile.kind}", which takes no jobs; `hpcagent run --detach` '
            "goes on in the background."
        )
    check_where(profile, "inside" if inside else "job")
    profile = profile.model_copy(update={"account": account_of(profile)})
    needed = campaign.largest
    label = executor_for(profile, needed)
    notes = list(check(profile, label, needed).notes)
    block = block_of(profile, label)
    nodes = block.nodes_per_block if inside else (block.limits.min_nodes if block.limits else 1)
    if block.limits is not None and block.limits.max_jobs == 1 and not inside:
        raise BadInput(
            f"The queue {block.queue or block.qos} of {profile.name} takes one job of a user at a time, which "
            "would be the coordinator's own: its runs would wait for ever. Give --inside (the job's own nodes do "
            "the runs), or another --queue."
        )
    if nodes > 1 and not inside:
        notes.append(
            f"the coordinator's job has {nodes} nodes, the fewest that its queue takes; --inside would use them."
        )
    coordinator = Coordinator(campaign, site=profile, run_dir=run_dir, inside=inside)
    folder = coordinator.folder
    refuse_unwritable(folder.root.absolute())
    name = f"hpcagent.coordinator-1.{uuid.uuid4().hex[:8]}"
    script = _script(profile, label, folder, name, nodes=nodes, inside=inside, most_jobs=most_jobs)
    if dry_run:
        return Submitted(folder.root, script, None, block, nodes, most_jobs, tuple(notes))
    there = scheduler(profile.kind, timeout_s=profile.cmd_timeout_s)
    _refuse_second(folder, there)
    notes += _refuse_few_places(profile, block, there, inside=inside)
    if not inside:
        _refuse_no_room(profile, block, there)
    coordinator.prepare()
    with refusing_clearly(folder.root):
        (folder.root / "coordinator").mkdir(exist_ok=True)
    note_site(folder, profile)
    about = {"site": profile.name, "executor": label, "nodes": nodes, "walltime_s": block.walltime_s}
    job_id, _ = submit_job(folder, there, name, script, about=about)
    return Submitted(folder.root, script, job_id, block, nodes, most_jobs, tuple(notes))


def _campaign_and_folder(
    campaign: Campaign | str | Path, run_dir: str | Path | None
) -> tuple[Campaign, str | Path | None]:
    if isinstance(campaign, Campaign):
        return campaign, run_dir
    if RunDir(campaign).exists:
        return load_run(campaign), campaign
    return load_campaign(campaign), run_dir


def _script(
    profile: Profile, label: str, folder: RunDir, name: str, *, nodes: int, inside: bool, most_jobs: int
) -> str:
    from hpcagent.sites.workers.job_scripts import coordinator_script

    root = folder.root.absolute()
    words = [str(root), name, str(most_jobs), *(["--inside"] if inside else [])]
    command = python_command("hpcagent.elsewhere.submit", *words, python=profile.executors[label].python)
    # exec: the scheduler's SIGTERM then reaches the coordinator, not only the shell.
    trusted = os.environ.get(TRUST)
    before = f"export {TRUST}={shlex.quote(trusted)} && " if trusted else ""
    line = f"cd {shlex.quote(str(Path.cwd()))} && {before}exec {shlex.join(command)}"
    return coordinator_script(
        profile,
        label,
        line,
        name=name,
        folder=root / "coordinator",
        nodes=nodes,
        whole=inside,
        account=profile.account,
    )


def _coordinators(folder: RunDir) -> list[Entry]:
    """The coordinator's own jobs that have no end in the ledger."""
    entries = read_ledger(folder.jobs)
    return [e for e in entries if e.ended is None and (e.about or {}).get("role") == ROLE]


def _refuse_second(folder: RunDir, there: Scheduler) -> None:
    entries = {e.job_id: e.sent for e in _coordinators(folder) if e.job_id is not None}
    for job_id, job in there.ours(entries)[0].items():
        if not job.over:
            raise BadInput(
                f"Job {job_id} ({job.state}) is the coordinator of {folder.root} already. `hpcagent status "
                f"{folder.root} --follow` shows what it does; `hpcagent reap {folder.root}` cancels it while it "
                "waits.",
                value=job_id,
            )


def _refuse_no_room(profile: Profile, block: Block, there: Scheduler) -> None:
    """Where there are few nodes, the coordinator's job and a block that wants all of them wait for each other."""
    from hpcagent.sites.workers.job_scripts import COORDINATOR_CPUS

    try:
        queues = there.queues()
    except SchedulerDown:
        return
    chosen = next((q for q in queues if (q.name == block.queue if block.queue else q.default)), None)
    if chosen is None or chosen.nodes is None or chosen.cores is None:
        return
    own = min(COORDINATOR_CPUS, block.cpus_per_node or COORDINATOR_CPUS)
    wanted = chosen.cores if block.exclusive else block.cpus_per_node or chosen.cores
    beside = 1 if own + wanted <= chosen.cores else 0
    if chosen.nodes - 1 + beside < block.nodes_per_block:
        raise BadInput(
            f"The queue {chosen.name} of {profile.name} has {chosen.nodes} node(s) of {chosen.cores} cores, of "
            f"which the coordinator's job takes {own} cores and a block {block.nodes_per_block} node(s) x "
            f"{wanted} cores: its runs would wait for ever. Give --inside (the job's own nodes do the runs), or "
            "blocks less (nodes_per_block, cores_per_node in [block] of the profile).",
            value=wanted,
        )


def _refuse_few_places(profile: Profile, block: Block, there: Scheduler, *, inside: bool) -> list[str]:
    """Where few jobs of a user are taken, the coordinator must not have the place that its blocks would wait for.

    Returns:
        What is worth knowing.

    Raises:
        BadInput: The limits that the scheduler tells leave no place for a block, or none for the coordinator.
    """
    from hpcagent.sites.block import project_of

    try:
        places = there.places(block.queue, project=project_of(block))
    except SchedulerDown:
        return []
    needed = 1 if inside else 2
    told = [number for number in (places.most, places.free, places.running) if number is not None]
    limits = "; ".join(places.words)
    if told and min(told) < needed:
        now = "" if places.free is None else f" and takes {max(0, places.free)} more now"
        what = "the coordinator's own job" if inside else "the coordinator's own job and at least one for its runs"
        todo = "Wait until others have ended" if inside else "Give --inside (the job's own nodes do the runs)"
        raise BadInput(
            f"The queue {block.queue or 'by default'} of {profile.name} limits the jobs at a time ({limits})"
            f"{now}; {needed} are needed, for {what}. {todo}, or give another --queue.",
            value=min(told),
        )
    if told and places.most == needed:
        return [f"the queue takes {needed} job(s) at a time ({limits}): the next is submitted when one ends"]
    return []
