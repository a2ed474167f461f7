"""Small things every policy does with points: name them, count them, draw random numbers for them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from hpcagent.errors import BadInput, in_brief
from hpcagent.later import Later
from hpcagent.model.base import Scalar
from hpcagent.model.parameter import Params
from hpcagent.model.records import Observation
from hpcagent.model.space import Space

if TYPE_CHECKING:
    import numpy as np
else:
    np = Later("numpy")

__all__ = [
    "Given",
    "Key",
    "fraction",
    "generator",
    "given",
    "inside",
    "key",
    "led_back",
    "located",
    "shares",
    "spread_size",
    "usable",
    "whole",
]

Key: TypeAlias = tuple[tuple[str, Scalar], ...]


def key(params: Mapping[str, Scalar]) -> Key:
    """A hashable name of a point: equal points have equal keys."""
    return tuple(sorted(params.items()))


def inside(space: Space, params: Mapping[str, Scalar]) -> Params | None:
    """The point as the space sees it, or None where it is not a point of the space.

    A history may hold runs from before the space was narrowed, and references outside of it or against its
    constraints. Parameters that are not active at the point are left out.
    """
    try:
        if space.simple:
            return {p.name: p.validated(params[p.name]) for p in space.parameters}
        known = space.validated({name: params[name] for name in space.names if name in params})
        return known if all(name in params for name in known) else None
    except (BadInput, KeyError):
        return None


def led_back(space: Space, params: Params, known: Sequence[Params]) -> Params:
    """The point, or where it is forbidden the furthest allowed one on the way to it from the nearest known.

    Args:
        space: The space.
        params: A point whose numbers are within their bounds.
        known: Allowed points; without any the middle of the space is taken.

    Example:
        >>> from hpcagent.model.parameter import Float
        >>> space = Space.of(x=Float(0, 1), y=Float(0, 1), constraints=["x + y <= 1"])
        >>> round(led_back(space, {"x": 1.0, "y": 1.0}, [{"x": 0.0, "y": 0.0}])["x"], 3)
        0.5
    """
    if space.allows(params):
        return params
    goal = space.to_unit(params)
    starts = np.array([space.to_unit(p) for p in known or [space.middle]])
    nearest = int(np.argmin(((starts - goal) ** 2).sum(axis=1)))
    start = starts[nearest]
    best, low, high = dict((known or [space.middle])[nearest]), 0.0, 1.0
    for _ in range(30):
        middle = 0.5 * (low + high)
        there = space.from_unit(start + middle * (goal - start))
        if space.allows(there):
            best, low = there, middle
        else:
            high = middle
    return best


def spread_size(space: Space) -> int:
    """Points of a first look at a space: two, and one for each number and further value of a choice; 4 to 12.

    Example:
        >>> from hpcagent.model.parameter import Choice, Float
        >>> spread_size(Space.of(x=Float(0, 1), y=Float(0, 1), style=Choice("a", "b", "c")))
        6
    """
    size = 2 + sum(len(p.choices) - 1 if p.kind == "choice" else 1 for p in space.parameters if not p.constant)
    return min(max(size, 4), 12)


def located(space: Space, history: Sequence[Observation]) -> list[tuple[Params, Observation]]:
    """The observations that lie in the space, each with its point."""
    points = ((inside(space, o.params), o) for o in history)
    return [(params, o) for params, o in points if params is not None]


def usable(runs: Sequence[Observation], metric: str, *, goal: bool) -> list[Observation]:
    """The runs of a point that tell of a metric: of a goal undisturbed ones, if there are any; each copy once.

    Runs that agree to the last digit of a value with a standard error are one run made again, e.g. of a simulation
    with a fixed seed: counted as repeats they would make the error smaller than it is.

    Example:
        >>> run = Observation({"x": 1}, metrics={"y": 2.5}, uncertainty={"y": 0.1})
        >>> len(usable([run, run, run], "y", goal=False))
        1
    """
    found = [o for o in runs if metric in o.metrics]
    if goal:
        found = [o for o in found if not o.distrusted] or found
    told: dict[object, Observation] = {}
    for i, o in enumerate(found):
        error = o.uncertainty.get(metric, 0.0)
        told.setdefault((o.metrics[metric], error) if error > 0 else i, o)
    return list(told.values())


def given(history: Sequence[Observation], pending: Sequence[Params]) -> list[Params]:
    """The points that were suggested so far: finished ones of role `suggested`, and the pending."""
    return [o.params for o in history if o.role == "suggested"] + list(pending)


class Given:
    """The keys of points that were suggested, kept from one question to the next: only new ones are worked out.

    What is kept follows from the history alone: another history than the one before, or a shorter one, is read
    from its beginning.
    """

    def __init__(self) -> None:
        self._past: list[Params] = []
        self._keys: set[Key] = set()

    def keys(self, history: Sequence[Observation]) -> tuple[int, set[Key]]:
        """How many finished suggestions there are, and their keys; not to be changed."""
        past = [o.params for o in history if o.role == "suggested"]
        n = len(self._past)
        if past[:n] != self._past:  # of the same objects this is quick
            n, self._keys = 0, set()
        self._keys.update(key(params) for params in past[n:])
        self._past = past
        return len(past), self._keys


def generator(seed: int, history: Sequence[Observation], pending: Sequence[Params]) -> np.random.Generator:
    """Random numbers that depend on the seed and on how far the campaign is."""
    return np.random.default_rng([abs(int(seed)), len(history), len(pending)])


def whole(name: str, value: Any, *, least: int = 1, most: int | None = None) -> int:
    """Return `value` as a whole number of at least `least` (and at most `most`), or raise `BadInput`."""
    right = isinstance(value, int) and not isinstance(value, bool)
    if not right or value < least or (most is not None and value > most):
        upper = "" if most is None else f" and at most {most}"
        raise BadInput(f"{name}={in_brief(value)} must be a whole number, at least {least}{upper}.", value=value)
    return int(value)


def shares(noise: Mapping[str, Any] | None) -> dict[str, float]:
    """Relative standard deviations of one run by metric, or raise `BadInput`."""
    if noise is not None and not isinstance(noise, Mapping):
        raise BadInput(
            f"noise={noise!r} must be a table of metrics and shares, e.g. {{speed = 0.05}}.", value=noise
        )
    found: dict[str, float] = {}
    for metric, share in (noise or {}).items():
        right = isinstance(share, (int, float)) and not isinstance(share, bool) and math.isfinite(share)
        if not right or not 0 <= share <= 1:
            raise BadInput(
                f"noise: {metric} = {share!r} must be a relative standard deviation, 0 to 1 (0.05 is 5 %).",
                value=share,
            )
        found[metric] = float(share)
    return found


def fraction(name: str, value: Any) -> float:
    """Return `value` as a number between 0 and 1 (both excluded), or raise `BadInput`."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1:
        raise BadInput(f"{name}={value!r} must be a number between 0 and 1.", value=value)
    return float(value)
