"""EMT and Lennard-Jones against numbers from elsewhere."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, molecule
from ase.units import GPa

from hpcagent.apps.run import Run
from hpcagent.errors import AppFailed
from hpcagent.science.engines.base import Level
from hpcagent.science.engines.registry import engine


def calculator(name: str, atoms: Atoms, **keywords: Any) -> Any:
    return engine(name).calculator(atoms, Level(name, options={"keywords": keywords}), Run(workdir=Path()))


def test_emt_copper_has_its_lattice_constant_and_bulk_modulus() -> None:
    # Jacobsen, Stoltze and Norskov fitted the parameters to B = 134 GPa of copper; a0 as ASE's EMT is known to give
    # it (3.59 angstrom; 3.61 measured).
    lattice = np.linspace(3.55, 3.65, 7)
    energies = []
    for a in lattice:
        atoms = bulk("Cu", a=a)
        atoms.calc = calculator("emt", atoms)
        energies.append(atoms.get_potential_energy())
    cubic = np.polyfit(lattice, energies, 3)
    slope = np.polyder(cubic)
    a0 = next(float(r.real) for r in np.roots(slope) if 3.5 < r.real < 3.7)
    # V = a^3 / 4, so B = V E''(V) = 4 / (9 a) E''(a) where E'(a) = 0.
    modulus = 4 / (9 * a0) * float(np.polyval(np.polyder(slope), a0)) / GPa
    assert a0 == pytest.approx(3.59, abs=0.01)
    assert modulus == pytest.approx(134, rel=0.03)


def test_two_lennard_jones_atoms_are_epsilon_deep_at_the_sixth_root_of_two() -> None:
    epsilon, sigma, rc = 0.0103, 3.4, 34.0

    def energy(distance: float) -> float:
        atoms = Atoms("Ar2", [[0, 0, 0], [0, 0, distance]])
        atoms.calc = calculator("lj", atoms, epsilon=epsilon, sigma=sigma, rc=rc)
        return float(atoms.get_potential_energy())

    minimum = 2 ** (1 / 6) * sigma
    shift = 4 * epsilon * ((sigma / rc) ** 12 - (sigma / rc) ** 6)
    assert energy(minimum) == pytest.approx(-epsilon - shift, rel=1e-10)
    assert energy(minimum) < min(energy(0.99 * minimum), energy(1.01 * minimum))


def test_the_lennard_jones_crystal_has_its_cohesive_energy() -> None:
    # Sum over the fcc lattice: 2 epsilon (12.13188 (s/r)^12 - 14.45392 (s/r)^6), -8.610 epsilon at its minimum
    # r = 1.0902 s (Kittel, Introduction to Solid State Physics, ch. 3).
    epsilon, sigma = 1.0, 1.0
    nearest = 1.0902 * sigma
    a, rc = math.sqrt(2) * nearest, 4.0 * sigma
    atoms = bulk("Ar", a=a)
    atoms.calc = calculator("lj", atoms, epsilon=epsilon, sigma=sigma, rc=rc)
    cut_off = float(atoms.get_potential_energy())
    half = a / 2 * np.array([(i, j, k) for i, j, k in product(range(-8, 9), repeat=3) if (i + j + k) % 2 == 0])
    distances = np.sort(np.linalg.norm(half, axis=1))[1:]
    distances = distances[distances < rc]
    pair = 4 * (distances**-12 - distances**-6)
    shift = 4 * (rc**-12 - rc**-6)
    assert cut_off == pytest.approx(0.5 * float(np.sum(pair - shift)), rel=1e-9)
    # What the cutoff leaves out, as a uniform fluid beyond it: -(8 pi / 3) rho (s^6 / rc^3).
    tail = -8 * math.pi / 3 * (4 / a**3) * rc**-3
    assert 0.5 * float(pair.sum()) + tail == pytest.approx(-8.610, abs=0.02)


@pytest.mark.parametrize("name", ["emt", "lj"])
def test_forces_are_minus_the_slope_of_the_energy(name: str) -> None:
    keywords = {"epsilon": 0.2, "sigma": 2.3, "rc": 6.0} if name == "lj" else {}
    atoms = bulk("Cu", cubic=True)
    atoms.rattle(0.1, seed=1)
    atoms.calc = calculator(name, atoms, **keywords)
    force = atoms.get_forces()[1, 2]
    energies = []
    for shift in (-1e-4, 1e-4):
        moved = atoms.copy()
        moved.positions[1, 2] += shift
        moved.calc = calculator(name, moved, **keywords)
        energies.append(moved.get_potential_energy())
    assert -(energies[1] - energies[0]) / 2e-4 == pytest.approx(force, abs=1e-6)


@pytest.mark.parametrize(
    ("name", "keywords", "said"),
    [
        ("emt", {}, "no parameters for .*; it has them for"),
        ("lj", {}, "no epsilon and no sigma"),
        ("lj", {"epsilon": 1.0}, "has no sigma"),
        ("lj", {"epsilon": 1.0, "sigma": 1.0, "cutoff": 3}, "no keyword 'cutoff'"),
    ],
)
def test_what_they_cannot_do_is_refused(name: str, keywords: dict[str, Any], said: str) -> None:
    with pytest.raises(AppFailed, match=said) as failed:
        calculator(name, Atoms("Si2"), **keywords)
    assert (failed.value.kind, failed.value.name) == ("contract", "BadSettings")


def test_there_is_no_scf_to_tell_of_or_to_repair() -> None:
    found = engine("emt")
    assert found.iterations(calculator("emt", molecule("H2O"))) == ()
    assert found.repairs(Level("emt")) == ()
    with pytest.raises(AppFailed, match="no bands"):
        found.bands(None, bulk("Cu"), Level("emt"), None, Run(workdir=Path()))
