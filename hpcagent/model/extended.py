"""Runs that go on from the end of others: which results count, and what may be extended.

An extended run's metrics are those of the whole: of what it extends and of what it adds. So where it completed, it
takes the place of the run that it extends (and of what that one extended), which stays on record. One that did not
complete takes nobody's place.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from hpcagent.errors import BadInput
from hpcagent.model.records import Result

__all__ = [
    "MOST_TIMES",
    "cannot",
    "check_extendable",
    "counting",
    "in_all",
    "refusal",
    "superseded",
]

MOST_TIMES = 1024.0
"""So many times as long as an ordinary run may one be in all."""


def superseded(results: Iterable[Result]) -> dict[str, Result]:
    """Execution id of each run of which another result took the place -> the extended run that did.

    Args:
        results: Those on record, in any order.
    """
    results = tuple(results)
    if not any(r.manifest.extends for r in results):
        return {}
    before = {r.manifest.execution_id: r.manifest.extends for r in results}
    families: dict[str, list[Result]] = {}
    for result in results:
        root = result.manifest.execution_id
        while before.get(root):
            root = before[root]
        if result.ok:
            families.setdefault(root, []).append(result)
    taken: dict[str, Result] = {}
    for root, family in families.items():
        # All of them have the beginning in common: only the longest counts.
        longest = max(family, key=lambda r: (r.manifest.times, -r.manifest.index))
        if longest.manifest.extends:
            taken[root] = longest
            taken |= {r.manifest.execution_id: longest for r in family if r is not longest}
    return taken


def counting(results: Sequence[Result]) -> Sequence[Result]:
    """The results that count as measurements: without those of which an extended run has taken the place."""
    gone = superseded(results)
    return [r for r in results if r.manifest.execution_id not in gone] if gone else results


def in_all(before: Result, factor: float) -> float:
    """How many times as long as an ordinary run an extension by this factor is in all.

    Raises:
        BadInput: The factor is none, too small or too large.
    """
    if (
        isinstance(factor, bool)
        or not isinstance(factor, (int, float))
        or not math.isfinite(factor)
        or factor <= 1
    ):
        raise BadInput(
            f"factor={factor!r} must be a number above 1: 2 makes the run twice as long as it is.", value=factor
        )
    times = before.manifest.times * factor
    if times > MOST_TIMES:
        raise BadInput(
            f"factor={factor:g} makes run {before.manifest.index} {times:g} times as long as an ordinary one; "
            f"{MOST_TIMES:g} times is the most. Raise its length in the campaign instead.",
            value=factor,
        )
    return times


def refusal(result: Result, settings: Mapping[str, Any], app: str, varied: Iterable[str]) -> str:
    """Why a run cannot be extended, in a sentence; empty where it can, as far as its record says.

    Args:
        result: Of the run.
        settings: Of its app.
        app: The app's name.
        varied: The parameters that the campaign varies.
    """
    words = cannot(settings, app, varied)
    if words:
        return words
    m, said = result.manifest, f"run {result.manifest.index}"
    if m.origin:
        return f"{said} was not run here but told ({m.origin}), so there is nothing to go on from."
    if not result.ok:
        why = result.failure.name if result.failure else result.status
        return f"{said} did not complete ({why}); only a run that came to its end can be extended."
    if result.repairs:
        return (
            f"{said} was repaired ({', '.join(r.repair for r in result.repairs)}), and what it goes on with "
            "would be another script than it came with. Run a replicate instead."
        )
    if result.remote is not None:
        return (
            f"{said} lies on an endpoint ({result.remote.site}); runs are extended where the coordinator can see "
            "their files. Run a replicate instead."
        )
    if result.extendable_s is None:
        return (
            f"{said} has nothing to go on from: it was run before its app could be extended, or it has no restart "
            "file of its end, or its log lacks rows. Run a replicate instead."
        )
    return ""


def cannot(settings: Mapping[str, Any], app: str, varied: Iterable[str]) -> str:
    """Why no run of an app can be extended in a campaign, in a sentence; empty where they can."""
    if not settings.get("extendable"):
        return (
            f"app {app!r} cannot be extended: its contract's [restart] names no `steps`, or, of a Python "
            "function, it is not declared with extendable=True."
        )
    steps = (settings.get("restart") or {}).get("steps")
    if steps in set(varied):
        return (
            f"{steps!r} is the length of the run and is varied by the campaign, so a longer run would be another "
            "point: such runs are not extended. Give it a fixed value."
        )
    return ""


def check_extendable(function: Callable[..., Any], settings: Mapping[str, Any]) -> None:
    """Refuse a function that could not know from where to go on.

    Raises:
        BadInput: It takes no `run`, or has a setting of that name.
    """
    if "run" not in inspect.signature(function).parameters:
        raise BadInput(
            f"app {function.__name__}: extendable=True needs an argument `run`: run.extends says which run it "
            "goes on from, run.times how long it is to be.",
            value=function.__name__,
        )
    if "extendable" in settings:
        raise BadInput(
            f"app {function.__name__}: settings cannot have the name 'extendable'; say extendable=True.",
            value="extendable",
        )
