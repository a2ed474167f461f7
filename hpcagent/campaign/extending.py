"""Going on from the end of a finished run: which run, whether it can, and what the worker is told of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hpcagent.campaign.numbers import with_error
from hpcagent.campaign.record import Campaign
from hpcagent.campaign.state import State
from hpcagent.errors import BadInput, in_brief
from hpcagent.model.extended import in_all, refusal
from hpcagent.model.records import Manifest, Result
from hpcagent.policies.longer import Longer
from hpcagent.science.lammps.collected import not_of_the_whole
from hpcagent.science.lammps.extended import other_end
from hpcagent.science.lammps.restart_file import END, restart_step
from hpcagent.science.lammps.restart_script import steps_in_all
from hpcagent.statistics.points import key

__all__ = [
    "Extension",
    "before_and_after",
    "estimate_of",
    "extension_of",
    "from_the_end_of",
    "in_the_way",
    "manifest_of",
    "run_meant",
    "wanted",
]


class Extension(NamedTuple):
    """A run that is to go on.

    Attributes:
        before: Its result so far.
        times: How many times as long as an ordinary run it is to be in all.
    """

    before: Result
    times: float


def from_the_end_of(before: Result | None, work: Path) -> dict[str, Any]:
    """What an extended run is told of the one that it goes on from, as plain data.

    Where the record of that one is lost, the run finds nothing to go on from, and fails as if its files were gone.
    """
    if before is None:
        nothing: dict[str, Any] = {
            "artifacts": {},
            "metrics": {},
            "uncertainty": {},
            "times": 0.0,
            "ends_with": {},
        }
        return nothing | {"execution_id": "", "workdir": f"{work}/its result is not on record"}
    manifest = before.manifest
    return {
        "execution_id": manifest.execution_id,
        # Not as it stands in the result: the campaign's folder may have been moved since.
        "workdir": f"{work}/{manifest.execution_id}",
        "artifacts": dict(before.artifacts),
        "metrics": dict(before.metrics),
        "uncertainty": dict(before.uncertainty),
        "times": manifest.times,
        "ends_with": {name: list(file) for name, file in before.ends_with.items()},
    }


def run_meant(state: State, run: object, campaign: Campaign) -> Result:
    """The result that somebody means by an execution id (or its beginning), a position, a `Result` or a point.

    Of a point it is the first ordinary run there that completed: so a script that is run again means the same one.

    Raises:
        BadInput: There is none, or several.
    """
    results = state.in_order()
    if isinstance(run, Result):
        run = run.manifest.execution_id
    if isinstance(run, Mapping):
        wanted = key(campaign.complete(campaign.search.validated(dict(run), where="extend")))
        there = [r for r in results if key(r.manifest.params) == wanted and r.ok and not r.manifest.extends]
        if there:
            return there[0]
        raise BadInput(f"no run at {in_brief(run)} has completed, so there is none to extend.", value=dict(run))
    if isinstance(run, int) and not isinstance(run, bool):
        some = [r for r in results if r.manifest.index == run]
    elif isinstance(run, str) and run:
        some = [r for r in results if r.manifest.execution_id.startswith(run)]
        if not some and run.isdecimal():
            some = [r for r in results if r.manifest.index == int(run)]
    else:
        raise BadInput(
            f"extend takes a run: its position, its execution id, a Result or a point; got {in_brief(run)}.",
            value=run,
        )
    if len(some) == 1:
        return some[0]
    last = state.next_index - 1
    known = f"positions 0 to {last}" if last >= 0 else "no runs yet"
    many = f"{len(some)} runs begin so; give more of the id" if some else f"the campaign has {known}"
    raise BadInput(f"run {in_brief(run)}: no single run with a result: {many}.", value=run)


def extension_of(campaign: Campaign, state: State, run: object, factor: float, work: Path) -> Extension:
    """The extension that somebody asks for.

    Raises:
        BadInput: The run is none, cannot be extended, or its files are gone.
    """
    before = run_meant(state, run, campaign)
    times = in_all(before, factor)
    words = in_the_way(campaign, before, times, work)
    if words:
        raise BadInput(f"extend: {words}", value=before.manifest.execution_id)
    return Extension(before, times)


def in_the_way(campaign: Campaign, before: Result, times: float, work: Path) -> str:
    """Why a run cannot be extended so far, in a sentence; empty where it can."""
    app, said = campaign.app, f"run {before.manifest.index}"
    words = refusal(before, app.settings, app.name, campaign.search.names)
    if words:
        return words
    if "script" in app.settings:
        anew = not_of_the_whole(app.settings)
        for metric in campaign.objective.metrics:
            if metric in anew:
                return (
                    f"{metric} of a longer {said} would be of the added part only: it comes from {anew[metric]}, "
                    "which LAMMPS begins anew. Run a replicate instead, or measure the mean of a thermo column."
                )
    folder = work / before.manifest.execution_id
    params = before.manifest.params
    length, now = (steps_in_all(app.settings, params, t) for t in (times, before.manifest.times))
    if length is None or now is None:
        return (
            ""
            if folder.is_dir() or not before.workdir
            else f"the files of {said} are gone ({folder}). Run a replicate instead."
        )
    name = app.settings["restart"]["steps"]
    if length <= now:
        factor = times / before.manifest.times
        return (
            f"factor={factor:.15g} adds no step to {said}, which has {name} = {now}; "
            f"{_least_factor(now, float(params[name]) * before.manifest.times)} is the smallest that adds one."
        )
    most = app.contract.space[name].high
    if most is not None and length > most:
        return f"{said} would have {name} = {length}, and the contract allows {most:.0f} at most."
    if restart_step(folder / END) is None:
        return f"the restart file of {said} is gone or damaged ({folder / END}). Run a replicate instead."
    words = other_end(folder, app.settings["logs"], before.ends_with)
    if words:
        return (
            f"the files of {said} are not those that it ended with ({folder}: {words}). Put them back as they "
            "were, or run a replicate instead; the earlier result stays on record."
        )
    return ""


def _least_factor(steps: int, exactly: float) -> str:
    """The smallest factor, in six digits behind the point or more, by which a run becomes longer by a step."""
    least = (steps + 0.5) / exactly
    for digits in range(6, 16):
        factor = (math.floor(least * 10**digits) + 1) / 10**digits
        if steps < round(exactly * factor) <= steps + 1:
            return f"{factor:.{digits}f}".rstrip("0")
    return repr((steps + 1) / exactly)


def before_and_after(campaign: Campaign, before: Result, after: Result) -> list[str]:
    """What a run gave before it was extended and what the longer one gives: metrics that are shown, new notes.

    Args:
        campaign: The campaign.
        before: The run that was extended.
        after: The extended run.
    """
    lines = [f"  length: {length(campaign, before)} before, {length(campaign, after)} now"]
    for metric in campaign.shown:
        if metric in before.metrics and metric in after.metrics:
            old, new = (with_error(r.metrics[metric], r.uncertainty.get(metric)) for r in (before, after))
            unit = campaign.app.contract.metric(metric).unit
            lines.append(f"  {metric}: {old} before, {new} now{'' if unit == '1' else f' ({unit})'}")
    return lines + [f"  note: {note}" for note in after.notes if note not in before.notes]


def length(campaign: Campaign, result: Result) -> str:
    """How long a run is in all: in steps where the app has them, which its parameters have of an ordinary run."""
    settings, m = campaign.app.settings, result.manifest
    steps = steps_in_all(settings, m.params, m.times)
    return f"{m.times:g} x an ordinary run" if steps is None else f"{settings['restart']['steps']} = {steps}"


def wanted(campaign: Campaign, state: State, point: Longer, work: Path | None) -> tuple[Extension | None, str]:
    """The extension that a policy asks for; None where it cannot be, and why, in a sentence."""
    before = next((r for r in state.results.values() if r.manifest.index == point.run), None)
    if before is None or work is None:
        return None, f"run {point.run} has no result."
    try:
        extension = Extension(before, in_all(before, point.factor))
    except BadInput as error:
        return None, error.message
    words = in_the_way(campaign, before, extension.times, work)
    if not words and any(
        (m.extends, m.times) == (before.manifest.execution_id, extension.times) for m in state.manifests
    ):
        words = f"run {before.manifest.index} was extended so before."
    return (None, words) if words else (extension, "")


def estimate_of(extension: Extension, whole: Mapping[str, float]) -> dict[str, float]:
    """What a manifest says of an extension's cost, from what the run before it says of itself.

    Args:
        extension: The extension.
        whole: The fields `estimated_*` of a run that begins anew.
    """
    before, cost = extension.before, extension.before.cost
    seconds = (before.extendable_s or 0.0) * (extension.times - before.manifest.times)
    if not seconds or cost.wall_s <= 0:
        return dict(whole)
    hours = seconds * cost.node_hours / cost.wall_s
    fields = {"estimated_runtime_s": seconds, "estimated_node_hours": hours}
    usual, high = whole.get("estimated_node_hours"), whole.get("estimated_node_hours_high")
    if usual and high:
        fields["estimated_node_hours_high"] = hours * high / usual
    return {**whole, **{name: float(f"{value:.4g}") for name, value in fields.items()}}


def manifest_of(campaign: Campaign, extension: Extension, **more: Any) -> Manifest:
    """The run that goes on: the point, seed and replicate of the one before, and its length in its identity."""
    m = extension.before.manifest
    return campaign.app.manifest(
        m.params,
        seed=m.seed,
        replicate=m.replicate,
        role="extended",
        extends=m.execution_id,
        times=extension.times,
        checked=True,
        **more,
    )
