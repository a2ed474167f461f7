"""What the options of a sweep mean for its campaign: the space it spans, and whether repeats tell anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hpcagent.apps.base import App
from hpcagent.model.space import Space
from hpcagent.policies.stop import DesignDone, Stop
from hpcagent.policies.stop_combined import AllOf, AnyOf
from hpcagent.policies.stop_spent import MaxBatches, MaxRuns, NodeHours, WallTime

__all__ = ["SWEEP", "in_vain", "needless", "spanned"]

SWEEP = "sweep"
"""Name of the policy that runs a design; see `hpcagent.policies.design`."""

_PLAIN = (DesignDone, MaxRuns, MaxBatches, WallTime, NodeHours)


def spanned(
    whole: Space, options: Mapping[str, Any], given: Mapping[str, Mapping[str, Any]] | None
) -> dict[str, dict[str, Any]] | None:
    """The ranges that a sweep varies: those given, and from the least to the largest of the values listed.

    Args:
        whole: The app's parameters.
        options: Of the sweep; `values` and `points` name values.
        given: The campaign's `space`; what it says of a parameter goes before the values.

    Example:
        >>> from hpcagent.model.parameter import Choice, Float
        >>> space = Space.of(T=Float(0, 900, unit="K"), style=Choice("a", "b", "c"))
        >>> spanned(space, {"values": {"T": [300, 100], "style": ["a", "c"]}}, None)
        {'T': {'low': 100.0, 'high': 300.0}, 'style': {'choices': ['a', 'c']}}
    """
    listed: dict[str, list[Any]] = {}
    values, points = options.get("values"), options.get("points")
    if isinstance(values, Mapping):
        listed |= {str(name): list(of) for name, of in values.items() if _several(of)}
    for point in points if isinstance(points, Sequence) and not isinstance(points, str) else ():
        for name, value in point.items() if isinstance(point, Mapping) else ():
            listed.setdefault(str(name), []).append(value)
    ranges: dict[str, dict[str, Any]] = {}
    for name, of in listed.items():
        found = [whole[name].validated(value) for value in of]
        if not found or (given is not None and name in given):
            continue
        numeric = whole[name].kind in ("float", "int")
        ends = {"low": min(found, key=float), "high": max(found, key=float)} if numeric else {}
        ranges[name] = ends or {"choices": list(dict.fromkeys(found))}
    ranges |= {name: dict(of) for name, of in (given or {}).items()}
    return ranges or None


def _several(of: Any) -> bool:
    return isinstance(of, Sequence) and not isinstance(of, str)


def in_vain(app: App, metrics: Sequence[str], *, exact: bool) -> str:
    """Why a second run at a point would only copy the first, as a sentence without a full stop; empty where not.

    Args:
        app: What runs.
        metrics: The metrics that the sweep is about. A measured speed differs from run to run without any seed.
        exact: Whether they are known to be without noise.
    """
    if exact:
        return f"no seed decides what {app.name} gives, so a replicate would copy the first run"
    noisy = any(app.contract.metric(m).noise for m in metrics)
    if not app.contract.seeded and not noisy and not app.contract.timed & set(metrics):
        return (
            f"no seed reaches {app.name}, so a replicate would copy the first run (write {{seed}} in its "
            "command or template, name the variable in seed_variables, --seed-variable; or "
            "state the noise of its metrics)"
        )
    return ""


def needless(until: Stop) -> list[str]:
    """The stop conditions that ask for an objective, by their names in TOML.

    Example:
        >>> from hpcagent.policies.stop_combined import any_of
        >>> from hpcagent.policies.stop_reached import plateau
        >>> from hpcagent.policies.stop_spent import max_runs
        >>> needless(any_of(max_runs(9), plateau()))
        ['plateau']
    """
    if isinstance(until, (AnyOf, AllOf)):
        return [kind for condition in until.conditions for kind in needless(condition)]
    return [] if isinstance(until, _PLAIN) else list(until.toml())
