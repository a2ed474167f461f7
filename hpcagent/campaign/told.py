"""Results that were measured elsewhere: checked against the contract, written down as what they are."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Mapping
from typing import Any, TypeAlias

from hpcagent.campaign.own_points import own_point
from hpcagent.campaign.record import Campaign
from hpcagent.campaign.state import State, manifest_event, result_event
from hpcagent.errors import BadInput, in_brief, nearest
from hpcagent.model.base import canonical_json
from hpcagent.model.contract import Metric
from hpcagent.model.parameter import Params
from hpcagent.model.records import Failure, Manifest, Result, checked_counter
from hpcagent.store.files import refusing_clearly, write_whole
from hpcagent.store.rundir import RunDir
from hpcagent.units import convert

__all__ = ["BY_HAND", "Measured", "told_event", "told_result"]

BY_HAND = "by hand"
"""Where a result comes from if nobody says."""

_LONGEST_ORIGIN = 200

Measured: TypeAlias = float | tuple[float, str]
"""A number in the unit of the contract, or a number with its own unit: `(1.5, "kJ/mol")`."""


def told_result(
    campaign: Campaign,
    folder: RunDir,
    state: State,
    params: Mapping[str, object],
    metrics: Mapping[str, Measured],
    *,
    uncertainty: Mapping[str, Measured],
    failure: str,
    origin: str,
    replicate: int | None,
    suggested: bool = False,
) -> tuple[Result, bool]:
    """Make the result of a measurement; return it, and whether it was told before.

    The same numbers of the same point and origin are one measurement, however often a script tells them; other
    numbers are a further one. See `Coordinator.tell` for the arguments; with `suggested` it is the policy that
    wanted it measured now, so it is a further one whatever the numbers.

    Raises:
        BadInput: Point, metric, unit, number or origin is wrong, or the repetition was told with other numbers.
    """
    origin = _origin(origin)
    for name, given in (("metrics", metrics), ("uncertainty", uncertainty)):
        if not isinstance(given, Mapping):
            raise BadInput(
                f"tell: {name}={in_brief(given)}: give a dict of numbers by name, as {{'energy': -1.5}}.",
                value=given,
            )
    if not isinstance(failure, str):
        raise BadInput(
            f"tell: failure={in_brief(failure)} must say in words why there are no numbers.", value=failure
        )
    values = campaign.complete(own_point(campaign, params, where="tell"))
    if bool(metrics) == bool(failure):
        raise BadInput("tell: give the metrics that were measured, or failure='why there are none'; one of both.")
    numbers = _numbers(campaign, metrics)
    errors = _errors(campaign, uncertainty, numbers)
    if numbers:
        _refuse_without(campaign, numbers)
    first = 0 if replicate is None else replicate
    checked_counter("tell: replicate", first)
    while True:
        manifest = _manifest(campaign, state, values, origin, first, suggested=suggested)
        made = _result(campaign, folder, manifest, numbers, errors, failure, origin)
        before = state.results.get(manifest.execution_id)
        if before is None:
            return made, False
        if _said(before) == _said(made) and not suggested:
            return before, True
        if replicate is not None:
            raise BadInput(
                f"tell: replicate {replicate} of this point by {origin!r} was told with other numbers "
                f"({_said(before)}); a further measurement has a further replicate.",
                value=replicate,
            )
        first += 1


def told_event(folder: RunDir, result: Result, *, asked: Mapping[str, Any] | None) -> dict[str, Any]:
    """Write a told result into a directory of its own, as a run's is, and return its line for the journal.

    `asked` is what the policy was asked that wanted it measured, as `PolicyQuestion.record` has it. A damaged line
    costs it as little as it costs a run. The manifest comes last: what has one has a result.

    Raises:
        StoreFull: The folder cannot be written.
    """
    workdir = folder.work / result.manifest.execution_id
    with refusing_clearly(workdir):
        workdir.mkdir(parents=True, exist_ok=True)
    row = result_event(result)
    fields = {k: v for k, v in row.items() if k != "execution_id"}
    write_whole(workdir / "result.json", json.dumps(fields))
    write_whole(workdir / "manifest.json", result.manifest.model_dump_json())
    return {
        "event": "told",
        "at": time.time(),
        "manifest": manifest_event(result.manifest),
        "result": row,
    } | ({} if asked is None else {"asked": dict(asked)})


def _origin(origin: object) -> str:
    if not isinstance(origin, str) or not origin.strip() or not origin.isprintable():
        raise BadInput(
            f"tell: origin={origin!r} must say in a few words where the result comes from.", value=origin
        )
    if len(origin) > _LONGEST_ORIGIN:
        raise BadInput(
            f"tell: origin has {len(origin)} characters; allowed: {_LONGEST_ORIGIN}.", value=len(origin)
        )
    return origin.strip()


def _numbers(campaign: Campaign, metrics: Mapping[str, Measured]) -> dict[str, float]:
    known = {m.name: m for m in campaign.app.contract.metrics}
    found = {}
    for name, value in metrics.items():
        if name not in known:
            raise BadInput(
                f"tell: app {campaign.app.name!r} has no metric {name!r}; {nearest(str(name), known)}", value=name
            )
        found[name] = _number(value, known[name], f"tell: {name}")
    return found


def _errors(
    campaign: Campaign, uncertainty: Mapping[str, Measured], numbers: Mapping[str, float]
) -> dict[str, float]:
    found = {}
    for name, value in uncertainty.items():
        if name not in numbers:
            raise BadInput(f"tell: uncertainty of {name!r}, which is not among the metrics told.", value=name)
        error = _number(value, campaign.app.contract.metric(name), f"tell: uncertainty of {name}")
        if error < 0:
            raise BadInput(f"tell: uncertainty of {name} is {error:g}; a standard error is >= 0.", value=error)
        found[name] = error
    return found


def _number(value: object, metric: Metric, where: str) -> float:
    """A value in the metric's unit."""
    unit = metric.unit
    if isinstance(value, (tuple, list)):
        if len(value) != 2 or not isinstance(value[1], str):
            raise BadInput(f"{where} = {value!r}; give a number in {unit}, or (number, 'unit').", value=value)
        value, unit = value
    try:
        number = float(value)  # type: ignore[arg-type]  # whatever is no number is refused
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not isinstance(value, (bool, str)) and unit != metric.unit:
        number = convert(number, unit, metric.unit)
    if isinstance(value, (bool, str)) or not math.isfinite(number):
        raise BadInput(
            f"{where} = {in_brief(value)} is no finite number; in {metric.unit}, or (number, 'unit'). What could "
            "not be measured is told by failure='why'.",
            value=value,
        )
    return number


def _refuse_without(campaign: Campaign, numbers: Mapping[str, float]) -> None:
    lacking = [name for name in campaign.objective.metrics if name not in numbers]
    if lacking:
        raise BadInput(
            f"tell: {', '.join(lacking)} is missing, by which the objective judges ({campaign.question}).",
            value=lacking,
        )


def _manifest(
    campaign: Campaign, state: State, values: Params, origin: str, replicate: int, *, suggested: bool
) -> Manifest:
    # Its origin decides its numbers, as code and files do those of a run: so its id is never that of a run.
    digest = hashlib.sha256(canonical_json(["told", origin]).encode()).hexdigest()
    made = campaign.app.manifest(
        values,
        seed=campaign.seed,
        replicate=replicate,
        role="suggested" if suggested else "told",
        batch=max(0, state.last_batch),
        index=state.next_index,
        requested_by=campaign.policy.name if suggested else "user",
        digest=digest,
        checked=True,
    )
    # Files of an engine were not used.
    made = made.model_copy(update={"input_digest": digest, "estimated_runtime_s": None, "origin": origin})
    return made.model_copy(update={"execution_id": made.identity})


def _result(
    campaign: Campaign,
    folder: RunDir,
    manifest: Manifest,
    numbers: Mapping[str, float],
    errors: Mapping[str, float],
    failure: str,
    origin: str,
) -> Result:
    now = time.time()
    units = {name: campaign.app.contract.metric(name).unit for name in numbers}
    why = Failure(kind="simulation", name="ToldFailure", message=failure) if failure else None
    return Result(
        manifest=manifest,
        status="FAILED" if failure else "COMPLETED",
        metrics=dict(numbers),
        units=units,
        uncertainty=dict(errors),
        failure=why,
        started_at=now,
        ended_at=now,
        host=origin,
        workdir=str(folder.work.absolute() / manifest.execution_id),
        notes=(f"told, not run here: {origin}",),
    )


def _said(result: Result) -> tuple[Any, ...]:
    why = None if result.failure is None else result.failure.message
    return dict(result.metrics), dict(result.uncertainty), why
