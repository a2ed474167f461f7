"""What finds states at rest and follows them in time: our own solver, or magnum.np in its place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hpcagent.science.micromagnetics import llg, relax
from hpcagent.science.micromagnetics.body import Body
from hpcagent.science.micromagnetics.field import Energies, Magnet
from hpcagent.science.micromagnetics.llg import Moment
from hpcagent.science.micromagnetics.material import Material
from hpcagent.science.micromagnetics.relax import Rest

__all__ = ["ENGINES", "Own", "Solver", "solver"]

_Array = NDArray[np.float64]

ENGINES = ("own", "magnumnp")


class Solver(Protocol):
    """A body of a material, and what can be done with its magnetisation: (3, nx, ny, nz) unit vectors, 0 outside.

    Fields are (3,) T, times s, energies J/m^3.
    """

    def rest(self, m: _Array, applied: _Array, *, tolerance: float, max_steps: int) -> Rest:
        """Run down the energy to where the largest torque is at most `tolerance`, T."""
        ...

    def follow(
        self,
        m: _Array,
        applied: _Array,
        *,
        duration: float,
        damping: float,
        g_factor: float,
        step_error: float,
        max_steps: int,
    ) -> Iterator[Moment]:
        """Follow it in a constant field; the first moment is that at 0."""
        ...

    def energies(self, m: _Array, applied: _Array) -> Energies:
        """Each energy."""
        ...


class Own:
    """Our own solver."""

    # A step is not longer than this, s: one in which nothing moves would grow without end.
    _LONGEST_STEP = 1e-10

    def __init__(self, body: Body, material: Material) -> None:
        self._magnet = Magnet(body, material)

    def rest(self, m: _Array, applied: _Array, *, tolerance: float, max_steps: int) -> Rest:
        """See `Solver`."""
        return relax.relax(self._magnet, m, applied, tolerance=tolerance, max_steps=max_steps)

    def follow(
        self,
        m: _Array,
        applied: _Array,
        *,
        duration: float,
        damping: float,
        g_factor: float,
        step_error: float,
        max_steps: int,
    ) -> Iterator[Moment]:
        """See `Solver`."""
        return llg.evolve(
            self._magnet,
            m,
            lambda _: applied,
            duration=duration,
            damping=damping,
            g_factor=g_factor,
            tolerance=step_error,
            largest_step=self._LONGEST_STEP,
            max_steps=max_steps,
        )

    def energies(self, m: _Array, applied: _Array) -> Energies:
        """See `Solver`."""
        return self._magnet.energies(m, applied)


def solver(engine: str, body: Body, material: Material) -> Solver:
    """The solver of a name, of `ENGINES`.

    Raises:
        AppFailed: `NoEngine`, or `BadSettings`: magnum.np has no exchange of its own across grain boundaries.
    """
    if engine == "magnumnp":
        from hpcagent.science.micromagnetics.magnum import Magnumnp

        return Magnumnp(body, material)
    return Own(body, material)
