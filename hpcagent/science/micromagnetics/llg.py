"""Magnetisation in time: the equation of Landau, Lifshitz and Gilbert with a step that its error decides."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpcagent.errors import AppFailed
from hpcagent.science.micromagnetics.field import Magnet

__all__ = ["GYROMAGNETIC", "Moment", "evolve", "slope"]

_Array = NDArray[np.float64]

# Bohr magneton over hbar (CODATA 2018), rad/(s T); times g it is the gyromagnetic ratio.
GYROMAGNETIC = 9.2740100783e-24 / 1.054571817e-34
"""rad/(s T) for g = 1."""

# Coefficients of J. R. Dormand and P. J. Prince, J. Comput. Appl. Math. 6, 19 (1980): order 5, error of order 4.
_A = (
    (1 / 5,),
    (3 / 40, 9 / 40),
    (44 / 45, -56 / 15, 32 / 9),
    (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
    (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
    (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
)
_E = (71 / 57600, 0.0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40)

_SHORTEST = 1e-19  # s


@dataclass(frozen=True, slots=True)
class Moment:
    """A magnetisation on its way.

    Attributes:
        time: s.
        m: (3, nx, ny, nz).
        norm_error: Largest | |m| - 1 | of a cell in the step to here, before it was made 1 again.
        refused: Steps so far that were taken back.
    """

    time: float
    m: _Array
    norm_error: float
    refused: int


def slope(m: _Array, field: _Array, gamma: float, damping: float) -> _Array:
    """dm/dt = -gamma/(1 + alpha^2) (m x B + alpha m x (m x B)), 1/s.

    T. L. Gilbert, IEEE Trans. Magn. 40, 3443 (2004), doi:10.1109/TMAG.2004.836740.
    """
    turning = _cross(m, field)
    turning += damping * _cross(m, turning)
    turning *= -gamma / (1.0 + damping**2)
    return turning


def evolve(
    magnet: Magnet,
    m: _Array,
    applied: Callable[[float], _Array],
    *,
    duration: float,
    damping: float,
    g_factor: float,
    tolerance: float,
    largest_step: float,
    max_steps: int,
) -> Iterator[Moment]:
    """Follow the magnetisation; the first moment is that at 0.

    Args:
        magnet: The body.
        m: (3, nx, ny, nz) unit vectors.
        applied: Field (3,), T, at a time in s.
        duration: s.
        damping: Gilbert's alpha.
        g_factor: Of the moments.
        tolerance: Largest error of a cell's unit vector in one step.
        largest_step: s.
        max_steps: Trials, those taken back included.

    Raises:
        AppFailed: `Unstable`: the step became shorter than 1e-19 s, or a field is no number; `TooManySteps`.
    """
    gamma = g_factor * GYROMAGNETIC

    def rate(m: _Array, time: float) -> _Array:
        return slope(m, magnet.field(m, applied(time)), gamma, damping)

    time, refused = 0.0, 0
    yield Moment(0.0, m, 0.0, 0)
    first = rate(m, 0.0)
    step = min(largest_step, duration, 1e-14)
    for _ in range(max_steps):
        rest = duration - time
        if rest <= 1e-12 * duration:
            return
        step = min(step, rest, largest_step)
        rates = [first]
        for row in _A:
            at = m + step * _sum(row, rates)
            rates.append(rate(at, time + step * sum(row)))
        error = step * _largest(_sum(_E, rates))
        if error <= tolerance:  # not one that is no number
            norm = np.sqrt(np.einsum("ixyz,ixyz->xyz", at, at))
            off = float(np.abs(norm - 1.0)[magnet.body.inside].max())
            m, time = magnet.body.normalized(at), time + step
            # That of the vector before it was made a unit one: they differ by less than the error.
            first = rates[-1]
            yield Moment(time, m, off, refused)
        else:
            refused += 1
        step *= min(4.0, max(0.2, 0.9 * (tolerance / error) ** 0.2)) if error > 0 else 4.0 if error == 0 else 0.2
        if step < _SHORTEST:
            raise AppFailed(
                f"the time step has become shorter than {_SHORTEST:g} s at {time:.6g} s: the fields are no "
                "numbers, or no step keeps the tolerance.",
                name="Unstable",
                repair="a larger tolerance, or a look at the field and the material",
            )
    raise AppFailed(
        f"{max_steps} steps reach {time * 1e9:.6g} ns of {duration * 1e9:.6g} ns.",
        name="TooManySteps",
        repair="more max_steps, a shorter duration, or larger cells",
    )


def _sum(weights: tuple[float, ...], rates: list[_Array]) -> _Array:
    total = np.zeros_like(rates[0])
    for weight, rate in zip(weights, rates, strict=True):
        if weight:
            total += weight * rate
    return total


def _cross(a: _Array, b: _Array) -> _Array:
    out = np.empty_like(a)
    for i, j, k in ((0, 1, 2), (1, 2, 0), (2, 0, 1)):
        np.multiply(a[j], b[k], out=out[i])
        out[i] -= a[k] * b[j]
    return out


def _largest(vectors: _Array) -> float:
    return float(np.sqrt(np.einsum("ixyz,ixyz->xyz", vectors, vectors).max()))
