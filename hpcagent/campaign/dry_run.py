"""What a campaign would do first, and what it could cost: nothing is submitted."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from hpcagent.apps.ending import DEFAULT_WALLTIME_S
from hpcagent.campaign.history import History
from hpcagent.campaign.hopeless import refuse_unprinted
from hpcagent.campaign.on_sites import refuse_mixed_speeds
from hpcagent.campaign.record import Campaign
from hpcagent.campaign.ruled import notes as notes_of_space
from hpcagent.campaign.sweep_runs import PlannedRuns
from hpcagent.campaign.warm import read_earlier
from hpcagent.errors import AppFailed, BadInput
from hpcagent.model.contract import Resources
from hpcagent.model.records import Manifest
from hpcagent.policies.base import make_policy
from hpcagent.shown import without_secrets
from hpcagent.sites.block import block_of
from hpcagent.sites.endpoint.orders import resources_of
from hpcagent.sites.endpoint_settings import destination
from hpcagent.sites.limits import check, executor_for
from hpcagent.sites.profile import Profile, account_of
from hpcagent.sites.profiles import find_profile
from hpcagent.sites.several_profiles import Several
from hpcagent.sites.site import usable_cores, workers_of
from hpcagent.statistics.points import Key, key
from hpcagent.store.rundir import RunDir

__all__ = ["Jobs", "Plan", "plan"]


@dataclass(frozen=True, slots=True)
class Jobs:
    """The jobs that a site with a batch system would get.

    Attributes:
        executor: Label of the executor that takes the runs.
        script: The job script, as it would be submitted: RUN_DIR, PORT and MARK are settled at the start.
        nodes: Of a job.
        walltime_s: Of a job, in seconds.
        at_once: Jobs at a time.
        in_all: Jobs in all if every run takes its whole walltime, or None without a bound.
        account: Who is charged, or None.
    """

    executor: str
    script: str
    nodes: int
    walltime_s: int
    at_once: int
    in_all: int | None
    account: str | None


@dataclass(frozen=True, slots=True)
class Plan:
    """The first batch, and bounds on time and cost.

    Attributes:
        manifests: The first batch, as it would be written.
        profile: The site's profile.
        workers: Runs at the same time there.
        runs: Runs in all, or None without a bound.
        expected_s: Wall time if every run takes what the contract expects, in seconds, without the wait in a
            queue; or None.
        worst_node_hours: Node-hours if every run takes its whole walltime, or None. On a batch system these are
            whole nodes for the whole walltime of whole jobs. Runs that are started again are not in it.
        expected_node_hours: Node-hours as expected, or None. On a batch system: whole nodes for `expected_s`.
        jobs: What is submitted, on a site with a batch system.
        notes: What was changed or is missing, a sentence each.
    """

    manifests: tuple[Manifest, ...]
    profile: Profile
    workers: int
    runs: int | None
    expected_s: float | None
    worst_node_hours: float | None
    expected_node_hours: float | None
    jobs: Jobs | None = None
    notes: tuple[str, ...] = ()


def plan(
    campaign: Campaign,
    *,
    site: str | Path | Profile | None = None,
    workers: int | None = None,
    run_dir: str | Path | None = None,
) -> Plan:
    """Work out the first batch, the jobs and the cost without starting anything.

    Raises:
        BadInput: The campaign, its policy or the site is wrong, or the site has no place for its runs.

    Example:
        >>> from hpcagent.campaign.loading import load_campaign
        >>> len(plan(load_campaign("synthetic"), site="threads").manifests)
        6
    """
    profile = find_profile(site if site is not None else campaign.site)
    contract = campaign.app.contract
    largest = campaign.largest
    count = workers or workers_of(profile, largest)
    budget = PlannedRuns(campaign).count(())
    refuse_mixed_speeds(campaign, profile)
    if run_dir is None or not RunDir(run_dir).exists:
        refuse_unprinted(campaign)
    manifests = _first_batch(campaign, count, budget, profile)
    estimate = contract.estimated_runtime_s
    said = notes_of_space(campaign)
    started = (*said, *_started(campaign, manifests))
    # In batch mode, a batch waits for its last run before the next one is suggested.
    size = len(manifests) if campaign.mode == "batch" else count
    expected_s = None if budget is None else math.ceil(budget / size) * math.ceil(size / count) * estimate
    if profile.batch:
        jobs, notes = _jobs(campaign, profile, largest, count, budget, run_dir)
        # Whole nodes are charged, also while some of their cores have no run.
        in_one = max(1, count // jobs.at_once)
        used = None if budget is None else min(jobs.at_once, math.ceil(min(budget, size) / in_one))
        if size < count:
            notes += (
                f"a batch has {size} runs, and {count} could go at a time: the rest of the nodes would be idle. "
                "Set batch_size, or ask for less (--nodes, --blocks).",
            )
        worst = None if jobs.in_all is None else jobs.in_all * jobs.nodes * jobs.walltime_s / 3600
        expected = None if used is None or expected_s is None else used * jobs.nodes * expected_s / 3600
        if worst is not None and expected is not None:
            expected = min(expected, worst)
        if campaign.app.chain:
            notes = (*said, *notes, _of_chains(campaign))
            return Plan(manifests, profile, count, budget, None, None, None, jobs, notes)
        return Plan(manifests, profile, count, budget, expected_s, worst, expected, jobs, (*notes, *started))
    if profile.remote:
        started = (*_sent_there(profile, largest, run_dir or Path("runs") / campaign.name), *started)
    if isinstance(profile, Several):
        started = (*started, *_of_several(profile))
    if campaign.app.chain:
        return Plan(manifests, profile, count, budget, None, None, None, None, (*started, _of_chains(campaign)))
    resources = contract.resources
    cores = resources.ranks_per_node * resources.threads_per_rank
    # On an endpoint whose nodes' cores are not told a run is charged its whole node.
    node_cores = profile.node_cores or (cores if profile.remote else len(usable_cores()))
    share = min(1.0, cores / node_cores) if resources.nodes == 1 else 1.0
    each = resources.nodes * share / 3600
    return Plan(
        manifests=manifests,
        profile=profile,
        workers=count,
        runs=budget,
        expected_s=expected_s,
        worst_node_hours=None if budget is None else budget * each * (resources.walltime_s or DEFAULT_WALLTIME_S),
        expected_node_hours=None if budget is None else budget * each * estimate,
        notes=started,
    )


def _sent_there(profile: Profile, largest: Resources, run_dir: str | Path) -> tuple[str, ...]:
    """Where the runs go on an endpoint, and what its template is given."""
    label = executor_for(profile, largest)
    check(profile, label, largest)
    to = destination(profile, label)
    config = json.dumps(without_secrets(to.user_endpoint_config), sort_keys=True)
    name = Path(run_dir).absolute().name
    words = f"the runs would go to the endpoint {to.endpoint_id}, each in a directory of its own below "
    words += f"{profile.work_dir}/{name}-XXXXXXXX there; its template gets {config}"
    if profile.executors[label].mode == "mpi":
        words += f"; each task asks for {json.dumps(resources_of(largest.model_dump()))}"
    return (words,)


def _of_several(profile: Several) -> tuple[str, ...]:
    """What a plan for several sites does not show."""
    jobs = [member.name for member in profile.members if member.batch]
    said = ["runs go where there is room; time and node-hours are forecast as if all sites were like this machine"]
    said += [f"the jobs of {name} are shown by --dry-run --site {name}" for name in jobs]
    return tuple(said)


def _started(campaign: Campaign, manifests: tuple[Manifest, ...]) -> tuple[str, ...]:
    """What the first run of an executable would start."""
    from hpcagent.apps.executable.contract import FUNCTION
    from hpcagent.apps.executable.run import command_of

    if campaign.app.function != FUNCTION or not manifests:
        return ()
    first = manifests[0]
    try:
        command = command_of(campaign.app.settings, first.params, first.resources.model_dump(), first.execution_id)
    except AppFailed as error:
        raise BadInput(f"app {campaign.app.name}: {error.message}") from None
    return (f"the command of the first run, in a directory of its own: {command}",)


def _of_chains(campaign: Campaign) -> str:
    app = campaign.app
    return (
        f"each run of {app.name} is a chain, expected to take {app.contract.estimated_runtime_s:g} s by itself: "
        "which inner runs it makes, and what they occupy, is known when it runs, so the cost is not. "
        "Inner runs that need MPI or GPUs get jobs of the executors for them; put a limit on it with node_hours "
        "([until])."
    )


def _first_batch(campaign: Campaign, count: int, budget: int | None, profile: Profile) -> tuple[Manifest, ...]:
    policy = make_policy(
        campaign.policy.name,
        space=campaign.search,
        objective=campaign.objective,
        seed=campaign.seed,
        **campaign.policy_options,
    )
    size = campaign.batch_size or max(2, 4 * count)
    size = size if budget is None else min(size, budget)
    history = History(campaign, [], read_earlier(campaign))
    points = policy.suggest(history.shown(), size - (campaign.reference is not None))
    if campaign.reference is not None:
        points.insert(len(points) // 2, dict(campaign.reference.params))
    digest = campaign.app.digest
    about = {"apps": {name: settings.model_dump(mode="json") for name, settings in profile.apps.items()}}
    before: Counter[Key] = Counter()
    manifests = []
    for i, params in enumerate(points):
        values = campaign.complete(params)
        replicate = before[key(values)]
        before[key(values)] += 1
        manifests.append(
            campaign.app.manifest(
                values,
                seed=campaign.run_seed(replicate),
                replicate=replicate,
                index=i,
                role="suggested",
                digest=digest,
                checked=True,
                site=about,
            )
        )
    return tuple(manifests)


def _jobs(
    campaign: Campaign,
    profile: Profile,
    resources: Resources,
    count: int,
    budget: int | None,
    run_dir: str | Path | None,
) -> tuple[Jobs, tuple[str, ...]]:
    from hpcagent.sites.workers.job_scripts import job_script

    label = executor_for(profile, resources)
    checked = check(profile, label, resources)
    block = block_of(profile, label)
    notes = list(checked.notes)
    try:
        account = account_of(profile)
    except BadInput as error:
        account = None
        notes.append(f"nothing could be submitted yet: {error}")
    if block.cores_per_node is None and block.max_workers_per_node is None:
        notes.append(
            f"the profile {profile.name} does not say how many cores a node has (cores_per_node, or [nodes]); "
            "the figures here count one run at a time on each node, the jobs use what there is."
        )
    usable = block.walltime_s - profile.margin_s
    longest = resources.walltime_s or usable
    if resources.walltime_s is None:
        notes.append("runs have no walltime_s: at worst, each takes all of a job's time.")
    in_all = None
    if budget is not None:
        in_one = max(1, count // checked.max_blocks) * max(1, math.floor(usable / longest))
        in_all = math.ceil(budget / in_one)
    if campaign.retries:
        notes.append(f"not in the worst case: runs that are started again (retries = {campaign.retries}).")
    script = job_script(
        profile,
        label,
        account=account or ("ACCOUNT" if profile.account_required else None),
        run_dir=Path(run_dir or Path("runs") / campaign.name).absolute(),
    )
    return (
        Jobs(label, script, block.nodes_per_block, block.walltime_s, checked.max_blocks, in_all, account),
        tuple(notes),
    )
