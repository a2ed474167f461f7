"""Harmonic vibrations from the forces of displaced atoms, and the free energies that follow."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hpcagent.apps.decorator import app
from hpcagent.apps.run import Outcome, Run
from hpcagent.apps.structures import structure_of
from hpcagent.errors import AppFailed
from hpcagent.model.contract import Metric
from hpcagent.science.analysis.free_energies import THERMO, free_energies
from hpcagent.science.analysis.rotations import rigid_motions
from hpcagent.science.plots import can_draw, drawing

if TYPE_CHECKING:
    from ase import Atoms

__all__ = ["VIBRATIONS", "vibration_modes"]

_Array = NDArray[np.float64]
# Frequencies below are noise of the forces, in 1/cm; a translation in a soft potential has some.
_ZERO = 1.0
_RIGID_SAID = 100.0  # 1/cm: above, the geometry is not relaxed or the forces are noisy (fmax 0.005 leaves H2O 40)

VIBRATIONS = {
    name: Metric(name=name, unit=unit, description=description, required=required)
    for name, unit, description, required in (
        ("n_modes", "1", "vibrations: 3 N, without translations and rotations of a free molecule", True),
        ("n_imaginary", "1", "of them with an imaginary frequency: downhill directions", True),
        ("lowest_frequency", "1/cm", "lowest frequency; an imaginary one as a negative number", False),
        ("highest_frequency", "1/cm", "highest frequency", False),
        ("rigid_frequency", "1/cm", "largest frequency of a free molecule's translations and rotations", False),
        ("asymmetry", "1", "largest difference of the force constants' two halves, over the largest of all", True),
        ("energy", "eV", "potential energy of the structure", True),
        ("zero_point_energy", "eV", "half the sum of the real frequencies", False),
        ("free_energy", "eV", "Gibbs energy (ideal gas) or Helmholtz energy (harmonic), with `energy`", False),
        ("free_energy_correction", "eV", "the same without `energy`", False),
        (
            "enthalpy_correction",
            "eV",
            "enthalpy (ideal gas) or internal energy (harmonic), without `energy`",
            False,
        ),
        ("entropy", "J/mol/K", "entropy", False),
        ("symmetry_number", "1", "rotations that leave the molecule as it is (ideal gas)", False),
        ("spin", "1", "total spin S that was taken (ideal gas)", False),
    )
}
"""Metrics of vibrations."""


@dataclass(frozen=True)
class _Measured:
    """The structure, its atoms that vibrate, force constants (3 n, 3 n) in eV/angstrom^2 as measured."""

    atoms: Atoms
    moving: tuple[int, ...]
    constants: _Array


@app(
    name="vibration_modes",
    version="1.0.0",
    app_type="analysis",
    inputs=("runs...",),
    parameters=THERMO,
    metrics=VIBRATIONS,
    seeded=False,
    failure_modes=("TooFewRuns", "NoStructure", "NoForces", "MixedRuns", "DisplacementsMissing", "BadModel"),
    estimated_runtime_s=0.5,
)
def vibration_modes(run: Run, **params: Any) -> Outcome:
    """Frequencies, zero-point and free energies; the first run is at rest, each other has one atom displaced.

    Force constants are central differences of the forces, (F(-) - F(+)) / (2 d), made symmetric. The modes are
    those of the mass-weighted force constants. Translations and rotations of a free molecule, all of whose atoms
    are displaced, are projected out; what frequency they had is `rigid_frequency`, far from 0 where the molecule
    was not relaxed. Atoms that are not displaced are held. Where there are imaginary modes no zero-point or
    free energy is given, unless so many are expected (`imaginary`), as at a saddle point; they are then left out.

    Models: `ideal_gas` (rigid rotor, harmonic oscillator), `harmonic` (all modes vibrate), both by
    `ase.thermochemistry` (C. J. Cramer, Essentials of Computational Chemistry, 2004, ch. 10); with `low_modes =
    "grimme"` entropies of low modes go over to those of rotors (S. Grimme, Chem. Eur. J. 18, 9955 (2012),
    doi:10.1002/chem.201200497).

    Artifacts: `frequencies` (CSV), `modes` (extended XYZ: a frame for each mode, with the displacements), `plot`.
    """
    measured = _measured(run)
    weights = np.repeat(measured.atoms.get_masses()[list(measured.moving)], 3) ** -0.5
    largest = float(np.abs(measured.constants).max()) or 1.0
    asymmetry = float(np.abs(measured.constants - measured.constants.T).max()) / largest
    matrix = weights[:, None] * (measured.constants + measured.constants.T) / 2 * weights[None]
    whole = len(measured.moving) == len(measured.atoms)
    # A molecule in a periodic box of empty space is one if it is said to be.
    free = whole and (not measured.atoms.pbc.any() or params["model"] == "ideal_gas")
    measured.atoms.pbc = measured.atoms.pbc & (not free)
    notes: list[str] = []
    metrics: dict[str, float] = {"asymmetry": asymmetry}
    if free:
        frequencies, vectors, rigid = _without_rigid(matrix, measured.atoms)
        metrics["rigid_frequency"] = rigid
        if rigid > _RIGID_SAID:
            notes.append(
                f"translations and rotations have up to {rigid:.0f} 1/cm before they are projected out: the "
                "structure is not relaxed well enough, or the forces are noisy"
            )
    else:
        frequencies, vectors = _modes(matrix)
        held = len(measured.atoms) - len(measured.moving)
        notes.append(f"{len(measured.moving)} atoms vibrate, {held} are held; nothing is projected out")
    imaginary = frequencies[frequencies < -_ZERO]
    if len(imaginary):
        said = ", ".join(f"{-f:.0f}i" for f in imaginary)
        notes.append(f"imaginary: {said} 1/cm")
    metrics |= {"n_modes": len(frequencies), "n_imaginary": len(imaginary)}
    if len(frequencies):
        metrics |= {"lowest_frequency": frequencies[0], "highest_frequency": frequencies[-1]}
    energies = run.upstream[0].get("metrics") or {}
    metrics["energy"] = energy = _energy(measured.atoms, energies)
    found, more = free_energies(measured.atoms, frequencies, energy, energies, free=free, **params)
    artifacts = _written(run, measured, frequencies, vectors * weights[:, None])
    return Outcome(
        metrics={k: float(v) for k, v in (metrics | found).items()},
        artifacts=artifacts | _drawn(run, frequencies),
        notes=(*notes, *more, *(() if can_draw() else ("no plot: matplotlib is not installed here",))),
    )


def _modes(matrix: _Array) -> tuple[_Array, _Array]:
    """Frequencies in 1/cm, imaginary ones negative, in order, and mass-weighted modes in columns."""
    from ase import units

    values, vectors = np.linalg.eigh(matrix)
    # sqrt(eV / (angstrom^2 u)) as an energy in eV, over that of one wave number.
    scale = units._hbar * 1e10 / np.sqrt(units._e * units._amu) / units.invcm
    return np.sign(values) * np.sqrt(np.abs(values)) * float(scale), vectors


def _without_rigid(matrix: _Array, atoms: Atoms) -> tuple[_Array, _Array, float]:
    """Frequencies and modes of the vibrations alone; the largest frequency of what is not one."""
    rigid = rigid_motions(atoms)
    # The rows of `rest` span all that is perpendicular to the rigid motions.
    rest = np.linalg.svd(rigid)[2][len(rigid) :]
    frequencies, vectors = _modes(rest @ matrix @ rest.T) if len(rest) else (np.zeros(0), np.zeros((0, 0)))
    left, _ = _modes(rigid @ matrix @ rigid.T)
    return frequencies, rest.T @ vectors if len(rest) else np.zeros((len(matrix), 0)), float(np.abs(left).max())


def _measured(run: Run) -> _Measured:
    found: list[Atoms] = [structure_of(fields) for fields in run.upstream]
    rest = found[0]
    forces: dict[tuple[int, int], dict[int, tuple[float, _Array]]] = {}
    for number, atoms in enumerate(found[1:], 2):
        if atoms.get_chemical_symbols() != rest.get_chemical_symbols() or not np.allclose(atoms.cell, rest.cell):
            raise _mixed(f"input {number} holds {atoms.symbols} in another cell or order than the first.")
        moved = atoms.positions - rest.positions
        places = np.argwhere(np.abs(moved) > 1e-6)
        if len(places) != 1:
            raise _mixed(f"input {number} differs from the first in {len(places)} coordinates, not in one.")
        atom, axis = (int(i) for i in places[0])
        step = float(moved[atom, axis])
        forces.setdefault((atom, axis), {})[1 if step > 0 else -1] = (step, _forces(atoms, run, number))
    moving = tuple(sorted({atom for atom, _ in forces}))
    wanted = [(atom, axis) for atom in moving for axis in range(3)]
    missing = [w for w in wanted if len(forces.get(w, {})) < 2]
    if missing or not moving:
        raise AppFailed(
            f"{len(missing)} of the displacements are missing: each atom that vibrates is to be displaced both "
            "ways along x, y and z.",
            kind="contract",
            name="DisplacementsMissing" if moving else "TooFewRuns",
            repair="use the chain `vibrations`, which makes them",
        )
    rows = []
    for place in wanted:
        (up, plus), (down, minus) = forces[place][1], forces[place][-1]
        rows.append((minus - plus)[list(moving)].ravel() / (up - down))
    return _Measured(rest, moving, np.array(rows))


def _mixed(what: str) -> AppFailed:
    return AppFailed(
        what,
        kind="contract",
        name="MixedRuns",
        repair="pass the structure at rest first, then copies of it with one coordinate displaced each",
    )


def _forces(atoms: Atoms, run: Run, number: int) -> _Array:
    forces = None if atoms.calc is None else atoms.calc.results.get("forces")
    if forces is None:
        raise AppFailed(
            f"the structure of input {number} ({run.upstream[number - 1].get('workdir')}) has no forces.",
            kind="contract",
            name="NoForces",
            repair="compute it with forces = 'yes'",
        )
    return np.asarray(forces, np.float64)


def _energy(atoms: Atoms, metrics: Mapping[str, Any]) -> float:
    if "energy" in metrics:
        return float(metrics["energy"])
    results = {} if atoms.calc is None else atoms.calc.results
    if "energy" not in results:
        raise AppFailed(
            "the first input, the structure at rest, has no energy.",
            kind="contract",
            name="NoForces",
            repair="compute it first, at the level of the displaced ones",
        )
    return float(results["energy"])


def _written(run: Run, measured: _Measured, frequencies: _Array, vectors: _Array) -> dict[str, str]:
    """frequencies.csv and modes.xyz: displacements as vectors, the longest 1."""
    from ase import units
    from ase.io.extxyz import write_extxyz

    with (run.workdir / "frequencies.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["mode", "frequency_per_cm", "energy_mev", "imaginary"])
        for number, f in enumerate(frequencies):
            table.writerow([number, f"{abs(f):.4f}", f"{abs(f) * units.invcm * 1000:.5f}", int(f < -_ZERO)])
    frames = []
    for f, vector in zip(frequencies, vectors.T, strict=True):
        frame = measured.atoms.copy()
        frame.calc = None
        frame.set_constraint()
        shown = np.zeros((len(frame), 3))
        shown[list(measured.moving)] = vector.reshape(-1, 3) / max(np.abs(vector).max(), 1e-30)
        frame.set_array("mode", shown)
        frame.info = {"frequency_per_cm": float(abs(f)), "imaginary": bool(f < -_ZERO)}
        frames.append(frame)
    if not frames:
        return {"frequencies": "frequencies.csv"}
    with (run.workdir / "modes.xyz").open("w") as file:
        write_extxyz(file, frames)
    return {"frequencies": "frequencies.csv", "modes": "modes.xyz"}


def _drawn(run: Run, frequencies: _Array) -> dict[str, str]:
    """Sticks at the frequencies; imaginary ones to the left of 0."""
    if not can_draw():
        return {}
    with drawing(run, size=(6.4, 2.6)) as (_, (axes,)):
        for real, color in ((True, "#0072B2"), (False, "#D55E00")):
            some = frequencies[(frequencies >= -_ZERO) == real]
            if len(some):
                axes.vlines(some, 0, 1, color=color, label="real" if real else "imaginary, below 0")
        axes.set_yticks([])
        axes.set_ylim(0, 1.3)
        axes.set_xlabel("frequency (1/cm)")
        if (frequencies < -_ZERO).any():
            axes.axvline(0, color="#888888", linewidth=0.8)
            axes.legend(ncols=2)
        else:
            axes.set_xlim(left=0)
    return {"plot": "plot.png"}
