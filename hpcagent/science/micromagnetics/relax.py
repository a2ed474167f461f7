"""Magnetisation at rest: the local minimum of the energy that a magnetisation runs down to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpcagent.errors import AppFailed
from hpcagent.science.micromagnetics.body import Body
from hpcagent.science.micromagnetics.field import Magnet

__all__ = ["Rest", "perturbed", "relax"]

_Array = NDArray[np.float64]

# Largest rotation of a cell in one step, rad: the minimum is that of the valley in which the magnetisation is.
_LARGEST_TURN = 0.1
_ROUNDING = 1e-13


@dataclass(frozen=True, slots=True)
class Rest:
    """A magnetisation at rest.

    Attributes:
        m: (3, nx, ny, nz).
        torque: Largest |m x B| that is left, T.
        steps: Steps that it took.
    """

    m: _Array
    torque: float
    steps: int


def relax(magnet: Magnet, m: _Array, applied: _Array, *, tolerance: float, max_steps: int) -> Rest:
    """Run down the energy to where no cell has a torque above `tolerance`.

    Steepest descent on unit vectors with the step lengths of Barzilai and Borwein (L. Exl et al., J. Appl. Phys.
    115, 17D118 (2014), doi:10.1063/1.4862839); here no step turns a cell by more than 0.1 rad, or raises the
    energy.

    Args:
        magnet: The body.
        m: (3, nx, ny, nz) unit vectors to begin with.
        applied: (3,) T.
        tolerance: T.
        max_steps: Trials, those that were taken back included.

    Raises:
        AppFailed: `NotConverged`, or `Unstable`: the field is no number.
    """
    field, energy, scale = magnet.field_and_energy(m, applied)
    gradient = _gradient(m, field)
    torque = _largest(gradient)
    step = 1.0 / max(torque, _largest(field))
    for trial in range(max_steps):
        if not np.isfinite(energy) or not np.isfinite(torque):
            raise AppFailed(
                f"the effective field is no number after {trial} steps of minimisation.", name="Unstable"
            )
        if torque <= tolerance:
            return Rest(m, torque, trial)
        step = min(step, _LARGEST_TURN / torque)
        new = magnet.body.normalized(m - step * gradient)
        new_field, new_energy, _ = magnet.field_and_energy(new, applied)
        if not new_energy <= energy + _ROUNDING * scale:
            step *= 0.25
            continue
        new_gradient = _gradient(new, new_field)
        dm, dg = new - m, new_gradient - gradient
        curvature = float(np.vdot(dm, dg))
        if curvature > 0:
            # Both of their lengths in turn: the long one is fast, the short one goes down stiff directions.
            long = trial % 2
            step = float(np.vdot(dm, dm)) / curvature if long else curvature / float(np.vdot(dg, dg))
        else:
            step = 2.0 * step  # over the top of a barrier
        m, gradient, energy, torque = new, new_gradient, new_energy, _largest(new_gradient)
    raise AppFailed(
        f"the minimisation has not converged in {max_steps} steps in an applied field of "
        f"({', '.join(f'{b:.6g}' for b in applied)}) T: a torque of {torque:.3g} T is left, allowed are "
        f"{tolerance:.3g} T.",
        name="NotConverged",
        repair="more max_steps, smaller cells, or a larger tolerance",
    )


def perturbed(body: Body, m: _Array, angle: float, rng: np.random.Generator) -> _Array:
    """All cells turned together, and each by itself, by about `angle` (rad): what leaves an unstable balance."""
    together = rng.normal(size=(3, 1, 1, 1))
    together *= angle / np.linalg.norm(together)
    return body.normalized(m + np.cross(m, together, axis=0) + angle * rng.normal(size=m.shape) / np.sqrt(3.0))


def _gradient(m: _Array, field: _Array) -> _Array:
    """Of the energy, over Ms and the volume of a cell, along the sphere; T."""
    result: _Array = np.einsum("ixyz,ixyz->xyz", m, field) * m - field
    return result


def _largest(vectors: _Array) -> float:
    return float(np.sqrt(np.einsum("ixyz,ixyz->xyz", vectors, vectors).max()))
