"""Frames of copper labelled by EMT, at conditions that are known to be alike or far apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

CONDITIONS = {f"{strain:+.2%}": (strain, 0.07) for strain in (-0.015, -0.0075, 0.0, 0.0075, 0.015)}
"""Name -> linear strain and rattle (angstrom)."""


def copper(strain: float, rattle: float, rng: np.random.Generator, *, element: str = "Cu") -> Any:
    """32 atoms in a slightly sheared cell, with EMT's energy and forces."""
    from ase.build import bulk
    from ase.calculators.emt import EMT
    from ase.calculators.singlepoint import SinglePointCalculator

    atoms = bulk("Cu", a=3.6, cubic=True) * (2, 2, 2)
    atoms.symbols[:4] = element
    shape = (1 + strain) * np.eye(3) + 0.01 * rng.uniform(-1, 1, (3, 3))
    atoms.set_cell(atoms.cell @ shape, scale_atoms=True)
    atoms.positions += rng.normal(0, rattle, atoms.positions.shape)
    atoms.calc = EMT()
    energy, forces = atoms.get_potential_energy(), atoms.get_forces()
    atoms.calc = SinglePointCalculator(atoms, energy=energy, forces=forces)
    return atoms


def labelled(
    path: Path,
    conditions: dict[str, tuple[float, float]],
    each: int,
    seed: int,
    *,
    element: str = "Cu",
    more: tuple[Any, ...] = (),
) -> Path:
    """A file of frames with their condition in the comment line."""
    from ase.io.extxyz import write_extxyz

    rng = np.random.default_rng(seed)
    frames = []
    for name, (strain, rattle) in conditions.items():
        for _ in range(each):
            atoms = copper(strain, rattle, rng, element=element)
            atoms.info["condition"] = name
            frames.append(atoms)
    with path.open("w") as file:
        write_extxyz(file, [*frames, *more])
    return path
