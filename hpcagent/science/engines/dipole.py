"""The dipole correction of slabs: whether one is needed, along which vector, and where the vacuum is.

A slab whose sides differ has a dipole moment m per area. The potential on its two sides differs by 4 pi m
(Gaussian units), which periodic boundary conditions make up for by a field through slab and vacuum. A dipole layer
in the middle of the vacuum takes that field away (J. Neugebauer, M. Scheffler, Phys. Rev. B 46, 16067 (1992);
L. Bengtsson, Phys. Rev. B 59, 12301 (1999)).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcagent.errors import AppFailed
from hpcagent.science.engines.base import Level
from hpcagent.science.engines.mesh import vacuum_along

if TYPE_CHECKING:
    from ase import Atoms

__all__ = ["DIPOLE", "ENGINES", "Layer", "check_dipole", "layer_of"]

DIPOLE = ("off", "auto")
"""Values of the setting `dipole`."""

ENGINES = ("espresso", "gpaw", "vasp")
"""Engines that have the correction."""

_AXES = ("first", "second", "third")


@dataclass(frozen=True, slots=True)
class Layer:
    """Where the dipole layer goes.

    Attributes:
        axis: Index of the cell vector across the slab.
        middle: Middle of the vacuum, in units of that vector, in [0, 1).
        width: Width of the vacuum, in the same unit.
    """

    axis: int
    middle: float
    width: float


def check_dipole(value: object, engine: str) -> None:
    """Refuse a setting that means nothing, or that the engine cannot do.

    Raises:
        AppFailed: `BadSettings`.
    """
    if value not in DIPOLE:
        raise AppFailed(
            f"the setting dipole={value!r} is not one of {', '.join(DIPOLE)}.", kind="contract", name="BadSettings"
        )
    if value == "auto" and engine not in ENGINES:
        raise AppFailed(
            f"engine {engine!r} has no dipole correction; dipole='auto' is for {', '.join(ENGINES)}.",
            kind="contract",
            name="BadSettings",
            repair="dipole = off, with a slab whose two sides are alike; or another engine",
        )


def layer_of(atoms: Atoms, level: Level) -> tuple[Layer | None, tuple[str, ...]]:
    """The dipole layer that this structure needs at this level, and what must be said of it.

    Args:
        atoms: With three cell vectors, as they are computed.
        level: Its option `dipole` is `off` or `auto`.

    Returns:
        None where it is off, or the structure is no slab, or both sides of the slab are alike.

    Raises:
        AppFailed: `BadSettings`: the vector across the slab is not perpendicular to it.
    """
    import numpy as np

    from hpcagent.science.analysis.symmetry import turned_over

    if level.options.get("dipole", "off") != "auto" or atoms.cell.rank < 3:
        return None, ()
    vacuum = vacuum_along(atoms)
    if sum(vacuum) != 1 or sum(bool(p) for p, v in zip(atoms.pbc, vacuum, strict=True) if not v) != 2:
        if all(vacuum):
            return None, ()
        return None, ("dipole = auto: no slab (vacuum of 5 angstrom along one vector), so no correction",)
    axis = vacuum.index(True)
    across, others = atoms.cell[axis], [atoms.cell[i] for i in range(3) if i != axis]
    if max(abs(across @ v) / np.linalg.norm(across) / np.linalg.norm(v) for v in others) > 1e-4:
        raise AppFailed(
            f"dipole='auto' needs a slab whose {_AXES[axis]} cell vector, along which the vacuum is, is "
            "perpendicular to the surface.",
            kind="contract",
            name="BadSettings",
            repair="slabs of cut_slab and build_slab are so; Atoms.set_cell with a perpendicular vector",
        )
    if turned_over(atoms, axis):
        return None, ("dipole = auto: both sides of the slab are alike, so no correction",)
    places = np.sort(atoms.get_scaled_positions(wrap=True)[:, axis])
    gaps = np.diff([*places, places[0] + 1])
    widest = int(np.argmax(gaps))
    width = float(gaps[widest])
    middle = float((places[widest] + width / 2) % 1.0)
    length = float(np.linalg.norm(across))
    where = f"the {_AXES[axis]} vector, in the middle of {width * length:.1f} angstrom of vacuum"
    return Layer(axis, middle, width), (f"dipole correction along {where}",)
