"""What every chain of computations hands on to its runs: the level of theory, the cores, the settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcagent.apps.chain import metrics_of
from hpcagent.apps.structures import total_charge
from hpcagent.errors import AppFailed
from hpcagent.science.engines.base import KPOINTS, LEVEL
from hpcagent.science.engines.registry import engine
from hpcagent.science.engines.task import RANKS
from hpcagent.science.structures.kmesh import k_mesh

__all__ = [
    "FORCE_TOLERANCE",
    "fit_for_forces",
    "fixed_mesh",
    "level_of",
    "level_of_engine",
    "own_settings",
    "refuse_charge",
]

FORCE_TOLERANCE = {"espresso": 1e-9, "vasp": 1e-8, "gpaw": 1e-8, "pyscf": 1e-9, "tblite": 1e-8}
"""Largest change of the energy in the last SCF step, in eV, with which small forces and stresses are good.

The error of the energy goes with the square of the density's, that of forces and stresses with the density's
itself. Of pw.x 7e-11 Ry, a third of what the shared protocols ask of each atom (2e-10 Ry).
"""


def level_of(params: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a chain's parameters that say what to compute with and on how many cores."""
    return {name: value for name, value in params.items() if name in LEVEL or name in RANKS}


def level_of_engine(params: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """As `level_of`, without what the engine does not take, and a note that says so.

    For chains whose engine may be varied: a classical potential has no functional, but the DFT beside it has one.
    """
    level = level_of(params)
    takes = engine(level["engine"]).takes
    unused = [
        n
        for n, v in level.items()
        if n in LEVEL and n not in (*takes, "engine", "repairs") and v != LEVEL[n].default
    ]
    note = f"engine {level['engine']} has no use for {', '.join(unused)}" if unused else ""
    return {n: v for n, v in level.items() if n not in unused}, (note,) if note else ()


def fixed_mesh(structure: Any, level: Mapping[str, Any], *, denser: float = 1.0) -> dict[str, Any]:
    """A level whose k-points are those of this structure, for all strained ones.

    The mesh of a strained cell would jump where a length passes a whole number of points, and the energy with it.

    Args:
        structure: The unstrained cell.
        level: Parameters of `LEVEL`.
        denser: So many times as many k-points along each vector.
    """
    if "mesh" not in engine(level["engine"]).takes:
        return dict(level)
    given = {name: level[name] for name in KPOINTS if name in level}
    found = metrics_of(k_mesh(structure, engine=level["engine"], denser=denser, **given))
    numbers = "x".join(f"{found[f'n{i}']:.0f}" for i in (1, 2, 3))
    return dict(level) | {"mesh": numbers, "kpts": 0, "kspacing": 0.0}


def fit_for_forces(params: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """A level whose SCF goes far enough for the small forces of small displacements, and what is to be said of it.

    Args:
        params: A chain's parameters; its `tolerance` is 0 where the engine's own (`FORCE_TOLERANCE`) is wanted.
    """
    level = level_of(params)
    if "tolerance" not in engine(level["engine"]).takes:
        if not level["tolerance"]:
            del level["tolerance"]
        return level, []
    if level["tolerance"]:
        return level, []
    level["tolerance"] = FORCE_TOLERANCE[level["engine"]]
    return level, [f"SCF converged to {level['tolerance']:g} eV, as small forces need"]


def refuse_charge(what: str, atoms: Any, params: Mapping[str, Any]) -> None:
    """Refuse a charge where every cell would bear it, the perfect one and the references too.

    Args:
        what: What is computed, in the plural: `vacancies`.
        atoms: The structure.
        params: The chain's parameters.

    Raises:
        AppFailed: `Charged`.
    """
    charge = params.get("charge") or total_charge(atoms)
    if charge:
        raise AppFailed(
            f"{what} of charged cells (charge {charge:+g}) are not defined here: the cells that are compared "
            "would all bear the charge, and its energy depends on the cell and on the Fermi level.",
            kind="contract",
            name="Charged",
            repair="charge = 0, and a structure without charges",
        )


def own_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A chain's settings as those of its apps; files by their paths."""
    paths = settings.get("paths", {})
    return {k: paths.get(k) or v for k, v in settings.items() if k not in ("files", "paths")}
