"""Hysteresis loops: states at rest in a field that goes from one end to the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from hpcagent.errors import AppFailed

__all__ = ["Branch", "Loop", "Relaxation", "descend", "loop_of"]

_Array = NDArray[np.float64]

Relaxation = Callable[[_Array, float], tuple[_Array, float, float]]
"""(state, field in T) -> state at rest there, m along the field, largest torque left in T."""

# A change of the mean of m between two fields, from which on they are looked at more closely.
_JUMP = 0.2
# How far m along the field at both ends may be from mirror images.
_CLOSED = 1e-3


@dataclass(slots=True)
class Branch:
    """The descending branch, from the largest field to its negative.

    Attributes:
        fields: Applied, T, falling.
        along: m along the field in each.
        states: Mean of m (3,) in each.
        torque: Largest torque that was left, T.
        relaxations: States that were computed.
    """

    fields: list[float] = field(default_factory=list)
    along: list[float] = field(default_factory=list)
    states: list[_Array] = field(default_factory=list)
    torque: float = 0.0
    relaxations: int = 0


@dataclass(frozen=True, slots=True)
class Loop:
    """What a loop says; fields are applied ones.

    Attributes:
        coercivity: Field at which m along it is 0, as its size on the descending branch, T; negative: before 0.
        coercivity_resolution: Distance of the two fields between which that lies, T.
        remanence: m along the field without one.
        switching_field: Where the mean of m jumps most, T; None where no finest step changes it by 0.2.
        largest_jump: Largest change of the mean of m in one step, as the length of the vector.
        loop_area: mu0 times the integral of M dH around the loop over Ms, T.
        loop_area_error: Standard error of that from the distances of the fields, T.
    """

    coercivity: float
    coercivity_resolution: float
    remanence: float
    switching_field: float | None
    largest_jump: float
    loop_area: float
    loop_area_error: float


def descend(
    start: _Array,
    relaxed: Relaxation,
    mean: Callable[[_Array], _Array],
    *,
    field_max: float,
    steps: int,
    resolution: float,
) -> Branch:
    """Go down from `field_max` to its negative, with finer steps where m changes its sign or jumps.

    Args:
        start: A state to begin with.
        relaxed: Finds the state at rest.
        mean: (3,) of a state.
        field_max: T.
        steps: Of the way, before they are made finer.
        resolution: Shortest step, T.
    """
    branch = Branch()

    def at_rest(state: _Array, b: float) -> tuple[_Array, float]:
        new, along, torque = relaxed(state, b)
        branch.torque, branch.relaxations = max(branch.torque, torque), branch.relaxations + 1
        return new, along

    def record(b: float, state: _Array, along: float) -> tuple[_Array, float]:
        branch.fields.append(b)
        branch.along.append(along)
        branch.states.append(mean(state))
        return state, along

    def go(state: _Array, along: float, high: float, low: float) -> tuple[_Array, float]:
        new, there = at_rest(state, low)
        jumps = float(np.linalg.norm(mean(new) - mean(state))) > _JUMP or (along > 0.0) != (there > 0.0)
        if jumps and high - low > resolution:
            middle = 0.5 * (high + low)
            return go(*go(state, along, high, middle), middle, low)
        return record(low, new, there)

    state, along = record(field_max, *at_rest(start, field_max))
    fields = [field_max * (1.0 - 2.0 * i / steps) for i in range(steps + 1)]
    for high, low in pairwise(fields):
        state, along = go(state, along, high, low)
    return branch


def loop_of(branch: Branch) -> Loop:
    """The loop of a descending branch; the ascending one is its image: energies stay when m and field turn round.

    Raises:
        AppFailed: `NotSaturated`: the ends are no images of each other, so that the loop is not closed.
    """
    b, along = np.array(branch.fields), np.array(branch.along)
    if abs(along[0] + along[-1]) > _CLOSED:
        raise AppFailed(
            f"the loop is not closed: m along the field is {along[0]:.5g} at {b[0]:.6g} T and {along[-1]:.5g} at "
            f"{b[-1]:.6g} T, where a closed one has opposite values: the magnetisation has not reversed.",
            kind="simulation",
            name="NotSaturated",
            repair="a larger field_max",
        )
    crossing = int(np.flatnonzero((along[:-1] > 0.0) & (along[1:] <= 0.0))[0])
    share = along[crossing] / (along[crossing] - along[crossing + 1])
    zero = b[crossing] + share * (b[crossing + 1] - b[crossing])
    change = np.linalg.norm(np.diff(np.array(branch.states), axis=0), axis=1)
    jump = int(np.argmax(change))
    switching = float(-0.5 * (b[jump] + b[jump + 1])) + 0.0
    area, area_error = _integral(b[::-1], along[::-1])
    return Loop(
        coercivity=float(-zero) + 0.0,
        coercivity_resolution=float(b[crossing] - b[crossing + 1]),
        remanence=float(np.interp(0.0, b[::-1], along[::-1])),
        switching_field=switching if change[jump] > _JUMP else None,
        largest_jump=float(change[jump]),
        loop_area=2.0 * area,
        loop_area_error=2.0 * area_error,
    )


def _integral(x: _Array, y: _Array) -> tuple[float, float]:
    """Integral of y dx and its standard error; between jumps by cubics that keep y monotonic (F. N. Fritsch, R. E.
    Carlson, SIAM J. Numer. Anal. 17, 238 (1980)).

    Straight lines cut the bends of y, at half the steps four times as much. Half the difference of the two is the
    error, and that of a jump its height times the standard deviation of a place between its two fields.
    """
    from scipy.interpolate import PchipInterpolator

    change = np.abs(np.diff(y))
    jumps = np.flatnonzero(change > _JUMP)
    straight = 0.5 * (y[:-1] + y[1:]) * np.diff(x)
    total, bent = float(straight[jumps].sum()), 0.0
    for first, last in pairwise([0, *(jumps + 1), len(x)]):
        if last - first < 2:
            continue
        cubic = float(PchipInterpolator(x[first:last], y[first:last]).integrate(x[first], x[last - 1]))
        bent += cubic - float(straight[first : last - 1].sum())
        total += cubic
    places = change[jumps] * np.diff(x)[jumps] / np.sqrt(12.0)
    return total, float(np.sqrt((0.5 * bent) ** 2 + (places**2).sum()))
