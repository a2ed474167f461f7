"""What a folder has of its campaign already: whether it is the same one, and what was written down of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hpcagent.apps.base import App
from hpcagent.apps.chosen import keep
from hpcagent.campaign.changes import changeable
from hpcagent.campaign.decisions import policy_of
from hpcagent.campaign.loading import load_run
from hpcagent.campaign.on_sites import judged_speeds
from hpcagent.campaign.planned import Plan
from hpcagent.campaign.record import Campaign
from hpcagent.campaign.recorded import replayed
from hpcagent.campaign.same_files import changed_inputs, refusal, repair_of
from hpcagent.campaign.sweep_space import SWEEP
from hpcagent.campaign.where import going_on
from hpcagent.errors import RunDirChanged
from hpcagent.policies.design import POINTS
from hpcagent.sites.site import Site
from hpcagent.store.files import write_whole
from hpcagent.store.rundir import RunDir

__all__ = ["other_parts", "refuse_other_layout", "taken_up", "with_batch_size", "write_down"]


def taken_up(plan: Plan, written: Campaign | None) -> Plan:
    """The plan with the app that the campaign began with, or begins with now, and with the points of both.

    Args:
        plan: What is asked for.
        written: The campaign of the folder, if it was begun.

    Raises:
        InputsChanged: The app's code or files have another content than then.
        RunDirChanged: The folder belongs to another campaign.
    """
    if written is None:
        app, points = plan.campaign.app.frozen(), plan.campaign.points
    else:
        app = _same_app(plan, written)
        plan = _with_larger_hypercube(plan, written)
        points = written.enqueue(*plan.campaign.points).points  # what was enqueued then and not run yet
    return replace(plan, campaign=plan.campaign.model_copy(update={"app": app, "points": points}))


def with_batch_size(plan: Plan, site: Site, *, resumed: bool) -> Plan:
    """The plan with the default batch, which depends on the site; from here on it is written down."""
    campaign = plan.campaign
    if campaign.batch_size is not None:
        return plan
    # A batch as large as the site leaves workers idle while the last runs end; four times that
    # keeps them busy more than 90 % of the time.
    size = max(4 * site.workers_for(campaign.largest), 2)
    if resumed:
        size = load_run(plan.folder.root).batch_size or size
    return replace(plan, campaign=campaign.model_copy(update={"batch_size": size}))


def write_down(folder: RunDir, campaign: Campaign) -> None:
    """Write the campaign, its app and the files that its space chooses from."""
    keep(folder.root, campaign.app.contract.space)
    write_whole(folder.campaign, campaign.toml())
    write_whole(folder.app, campaign.app.model_dump_json(indent=1))


def other_parts(written: Campaign, given: Campaign) -> list[str]:
    """The parts by which one campaign is another than the one that was written: none of them may change."""
    ours, theirs, free = given.identity(), written.identity(), changeable(written, given)
    return [key for key in ours if ours[key] != theirs[key] and key not in free]


def _with_larger_hypercube(plan: Plan, written: Campaign) -> Plan:
    """A larger Latin hypercube keeps the points of the one that was run, and appends others of its size."""
    then, now = written.policy, plan.campaign.policy
    kinds = {(p.name, p.options.get("design")) for p in (then, now)}
    if kinds != {(SWEEP, "latin_hypercube")} or "block" in now.options:
        return plan
    block = then.options.get("block", then.options.get("points", POINTS))
    if block == now.options.get("points", POINTS):
        return plan
    choice = now.model_copy(update={"options": {**now.options, "block": block}})
    campaign = plan.campaign.model_copy(update={"policy": choice})
    return replace(plan, campaign=campaign, policy=policy_of(campaign))


def _same_app(plan: Plan, written: Campaign) -> App:
    campaign, root = plan.campaign, plan.folder.root
    app = campaign.app.continuing(written.app)
    changed = [key for key in other_parts(written, campaign) if key != "app" or app is None]
    inputs = changed_inputs(written.app, campaign.app)
    if inputs:
        done = replayed(plan.folder, written, look=True).finished
        raise refusal(str(root), inputs, done=done, repair=repair_of(written.app))
    if app is None or changed:
        said = [*changed, *(_different(written.app, campaign.app) if "app" in changed else ())]
        raise RunDirChanged(
            f"{root} belongs to another campaign: {', '.join(said)} differ(s). Go on with that "
            f"one by {going_on(written, root)}, or choose another folder (run_dir, --run-dir).",
            changed=changed,
        )
    refuse_other_layout(plan.folder, campaign, written)
    return app


def refuse_other_layout(folder: RunDir, campaign: Campaign, written: Campaign) -> None:
    """Refuse to measure speeds on other ranks or threads among those that are there, and to compare them.

    Raises:
        RunDirChanged: It would.
    """
    then, now = written.app.contract.resources.layout, campaign.app.contract.resources.layout
    other = [name for name in now if now[name] != then[name]]
    speeds = judged_speeds(campaign) if other else []
    if speeds and replayed(folder, written).results:
        raise RunDirChanged(
            f"{folder.root} has runs with {_these(then, other)}, and with {_these(now, other)} "
            f"{' and '.join(speeds)} would be measured otherwise. Go on as it was begun, or choose another folder "
            "(run_dir, --run-dir), which may begin with what this one knows (earlier).",
            changed=[f"resources.{name}" for name in other],
        )


def _these(layout: Mapping[str, int], names: Sequence[str]) -> str:
    return ", ".join(f"{name} = {layout[name]}" for name in names)


def _different(written: App, given: App) -> list[str]:
    """Which settings of an app differ, in words."""
    if written.source != given.source or written.contract.version != given.contract.version:
        return []
    keys = {k: None for k in (*written.settings, *given.settings) if k not in ("paths", "files")}
    return [f"its setting {k!r}" for k in keys if written.settings.get(k) != given.settings.get(k)]
