"""What the apps that compute with an engine have in common: parameters, settings, metrics of a calculation."""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Any

from hpcagent.apps.run import Run
from hpcagent.apps.structures import write_structure
from hpcagent.errors import AppFailed
from hpcagent.model.contract import Metric
from hpcagent.model.parameter import Choice, Int, Parameter
from hpcagent.science.engines.base import ENGINES, LEVEL
from hpcagent.science.engines.watched import Watch

if TYPE_CHECKING:
    from ase import Atoms

__all__ = [
    "CALCULATION",
    "FILES",
    "GPUS",
    "MACHINE_LEARNED",
    "RANKS",
    "RESOURCES_FROM",
    "RESOURCES_FROM_GPUS",
    "SETTINGS",
    "calculation",
    "counts",
    "electronic",
    "gap",
    "keep_structure",
    "largest",
    "pressure_gpa",
    "three_periods",
]

RANKS: dict[str, Parameter] = {
    "ranks": Int(1, 4096, default=1, description="MPI ranks on each node, for espresso and vasp"),
    "threads": Int(1, 256, default=1, description="threads of each rank, or of the one process"),
}
"""Parameters that decide the resources of a run."""

RESOURCES_FROM = {"ranks_per_node": "ranks", "threads_per_rank": "threads"}

GPUS: dict[str, Parameter] = RANKS | {
    "gpus": Int(0, 16, default=0, description="GPUs, for machine-learned engines")
}
RESOURCES_FROM_GPUS = RESOURCES_FROM | {"gpus_per_node": "gpus"}

MACHINE_LEARNED: dict[str, Parameter] = LEVEL | {
    "engine": Choice(*ENGINES, default="mace", description=LEVEL["engine"].description)
}
"""The level of theory of apps that are for machine-learned potentials, and take every other engine too."""

SETTINGS: dict[str, Any] = {
    "keywords": {},
    "pseudopotentials": {},
    "family": "",
    "pseudo_dir": "",
    "command": "",
    "calculator": "",
    "vacuum": 0.0,
    "pools": 0,
    "keep": False,
    "dipole": "off",
}
"""Settings of an app with an engine: see the engines for what each of them reads."""

FILES = ("checkpoint",)

CALCULATION: dict[str, Metric] = {
    name: Metric(name=name, unit=unit, description=description, required=required)
    for name, unit, description, required in (
        (
            "energy",
            "eV",
            "energy of the cell or molecule, extrapolated to no smearing where the engine does so",
            True,
        ),
        ("energy_per_atom", "eV/atom", "energy divided by the number of atoms", True),
        ("max_force", "eV/angstrom", "largest force on an atom", False),
        ("pressure", "GPa", "minus a third of the trace of the stress, for three periodic directions", False),
        ("volume", "angstrom^3", "volume of the cell, for three periodic directions", False),
        ("n_atoms", "1", "number of atoms", True),
        ("scf_steps", "1", "SCF steps in all, those of repaired attempts included; 0 without an SCF", True),
        ("n_repairs", "1", "repairs that were needed to make an SCF converge; scf.json names them", True),
        ("gap", "eV", "smallest difference between empty and occupied levels (HOMO-LUMO, Kohn-Sham)", False),
        ("fermi", "eV", "Fermi level, or the highest occupied level, on the engine's scale", False),
        ("magnetic_moment", "1", "spin moment of the cell or molecule in Bohr magnetons", False),
    )
}
"""Metrics of a calculation; `calculation` and `electronic` fill them in."""


def calculation(atoms: Atoms, watch: Watch, *, forces: bool = True) -> tuple[dict[str, float], list[str]]:
    """Energy, forces and pressure of atoms with a watched calculator.

    Returns:
        Metrics of `CALCULATION` and notes.

    Raises:
        AppFailed: `NonNumeric`, or what the engine says.
    """
    notes: list[str] = []
    n = len(atoms)
    energy = float(atoms.get_potential_energy())
    if not math.isfinite(energy):
        raise _not_numeric("energy", energy)
    metrics = {"energy": energy, "energy_per_atom": energy / n, "n_atoms": n}
    if forces:
        metrics["max_force"] = largest(atoms.get_forces())
        if not math.isfinite(metrics["max_force"]):
            raise _not_numeric("largest force", metrics["max_force"])
    if three_periods(atoms):
        metrics["volume"] = float(atoms.get_volume())
        if forces and "stress" in atoms.calc.implemented_properties:
            try:
                metrics["pressure"] = pressure_gpa(atoms.get_stress())
            except AppFailed as error:
                if error.details["name"] != "NoProperty":
                    raise
                notes.append(f"no pressure: {error.message}")
    return metrics | electronic(watch) | counts(watch), notes


def counts(watch: Watch) -> dict[str, float]:
    """How much SCF there was."""
    return {"scf_steps": watch.scf_steps, "n_repairs": len(watch.repaired)}


def electronic(watch: Watch) -> dict[str, float]:
    """Gap, Fermi level and moment, where the engine has them at no further cost; no entry where it has not."""
    calculator = watch.calculator
    results = getattr(calculator, "results", None) or {}
    found = {}
    if "magmom" in results:
        found["magnetic_moment"] = float(results["magmom"])
    if watch.engine.kind not in ("dft", "semi-empirical"):
        return found
    with contextlib.suppress(Exception):  # a bonus: whatever an engine lacks for it, the energy is there
        found["fermi"] = float(results["fermi"] if "fermi" in results else calculator.get_fermi_level())
    with contextlib.suppress(Exception):
        known = "gap" in results
        found["gap"] = float(
            results["gap"] if known else gap(_eigenvalues(calculator), found["fermi"], _electrons(calculator))
        )
    return {name: value for name, value in found.items() if math.isfinite(value)}


def _eigenvalues(calculator: Any) -> list[list[Any]]:
    """Eigenvalues of each spin and k-point, in eV."""
    spins, points = calculator.get_number_of_spins(), len(calculator.get_ibz_k_points())
    return [[calculator.get_eigenvalues(kpt=k, spin=s) for k in range(points)] for s in range(spins)]


def _electrons(calculator: Any) -> float | None:
    """Valence electrons, where the calculator tells."""
    told = getattr(calculator, "valence_electrons", None)
    if told is None and hasattr(calculator, "get_number_of_electrons"):
        told = calculator.get_number_of_electrons()
    return None if told is None else float(told)


def gap(eigenvalues: Any, fermi: float, electrons: float | None = None) -> float:
    """Lowest empty minus highest occupied eigenvalue: 0 in a metal, NaN where no empty ones were computed.

    An even number of electrons without spins fills half as many bands. Else those below the Fermi level are
    filled; smearing may put it outside of the gap (Marzari and Vanderbilt's below the valence bands, where
    the mesh is dense).

    Args:
        eigenvalues: (spins, k-points, bands), in eV.
        fermi: Fermi level, or the highest occupied eigenvalue, in eV.
        electrons: How many the bands hold, if known.

    Example:
        >>> gap([[[-5.0, 0.0, 1.5], [-6.0, -0.5, 1.1]]], 0.0)
        1.1
        >>> gap([[[-5.0, 0.0, 1.5], [-6.0, -0.5, 1.1]]], -0.04, electrons=4)
        1.1
    """
    import numpy as np

    energies = np.asarray(eigenvalues, dtype=float)
    pairs = -1.0 if electrons is None else electrons / 2
    if len(energies) == 1 and pairs > 0 and abs(pairs - round(pairs)) < 1e-6:
        filled = round(pairs)
        if filled >= energies.shape[-1]:
            return math.nan
        return max(0.0, float(energies[..., filled].min() - energies[..., filled - 1].max()))
    # The highest occupied one is printed with few digits.
    occupied = energies <= fermi + 1e-3
    if np.ptp(occupied.sum(axis=-1), axis=-1).any():
        return 0.0
    if not occupied.any() or occupied.all(axis=-1).any():
        return math.nan
    return max(0.0, float(energies[~occupied].min() - energies[occupied].max()))


def largest(forces: Any) -> float:
    """Largest absolute force, in the unit of `forces`: (n, 3)."""
    import numpy as np

    return float(np.sqrt((np.asarray(forces) ** 2).sum(axis=1).max()))


def pressure_gpa(stress: Any) -> float:
    """Pressure of a stress in eV/angstrom^3 as ASE orders it (xx, yy, zz, ...)."""
    from ase.units import GPa

    return -float(sum(stress[:3])) / 3 / float(GPa)


def three_periods(atoms: Atoms) -> bool:
    """Whether the structure fills space: only then it has a pressure and a density."""
    return bool(atoms.pbc.all()) and int(atoms.cell.rank) == 3


def keep_structure(run: Run, atoms: Atoms) -> dict[str, str]:
    """Write the structure with the results that its calculator has; returns the artifact."""
    from ase.calculators.singlepoint import SinglePointCalculator

    calculator = atoms.calc
    known = ("energy", "free_energy", "forces", "stress", "magmom", "magmoms", "dipole")
    results = {k: v for k, v in calculator.results.items() if k in known}
    atoms.calc = SinglePointCalculator(atoms, **results)
    try:
        return write_structure(run, atoms)
    finally:
        atoms.calc = calculator


def _not_numeric(what: str, value: float) -> AppFailed:
    return AppFailed(
        f"the {what} is {value}.", name="NonNumeric", repair="look at the structure: two atoms in one place?"
    )
