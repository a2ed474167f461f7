"""Point groups of crystals, and what they leave of an elastic tensor."""

from __future__ import annotations

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk

from hpcagent.apps.analysis.symmetry import bond, crystal_symmetry

RUTILE = Atoms(
    "Ti2O4",
    scaled_positions=[(0, 0, 0), (0.5, 0.5, 0.5), (0.305, 0.305, 0), (0.695, 0.695, 0), (0.805, 0.195, 0.5),
                      (0.195, 0.805, 0.5)],
    cell=[4.59, 4.59, 2.96],
    pbc=True,
)  # fmt: skip


def antiferromagnet() -> Atoms:
    atoms = bulk("Cr", cubic=True)
    atoms.set_initial_magnetic_moments([1.0, -1.0])
    return atoms


def layered() -> Atoms:
    """Moments in layers along z: tetragonal, though its atoms lie on a cubic lattice."""
    atoms = bulk("Mn", "fcc", a=3.6, cubic=True)
    atoms.set_initial_magnetic_moments([1.0 if z < 0.1 else -1.0 for z in atoms.positions[:, 2]])
    return atoms


# Numbers of constants: J. F. Nye, Physical Properties of Crystals, 1957, table 9.
@pytest.mark.parametrize(
    ("atoms", "name", "constants"),
    [
        (bulk("Cu"), "cubic", 3),
        (bulk("Si", cubic=True), "cubic", 3),
        (bulk("GaAs", "zincblende", a=5.65), "cubic", 3),
        (bulk("Mg"), "hexagonal", 5),
        (bulk("In"), "tetragonal", 6),
        (RUTILE, "tetragonal", 6),
        (bulk("Bi"), "trigonal", 6),
        (Atoms("Cu", cell=[3, 3.3, 3.7], pbc=True), "orthorhombic", 9),
        (Atoms("Cu", cell=[[3, 0, 0], [0, 3.3, 0], [0.8, 0, 3.7]], pbc=True), "monoclinic", 13),
        (Atoms("Cu", cell=[[3, 0, 0], [0.4, 3.3, 0], [0.8, 0.5, 3.7]], pbc=True), "triclinic", 21),
        (antiferromagnet(), "cubic", 3),
        (layered(), "tetragonal", 6),
    ],
)
def test_the_system_and_its_constants_are_found_however_the_crystal_lies(atoms, name, constants):
    for turned in (False, True):
        if turned:
            atoms = atoms.copy()
            atoms.rotate(33, (1, 2, 3), rotate_cell=True)
        found = crystal_symmetry(atoms)
        assert (found.name, len(found.basis)) == (name, constants)
        assert np.allclose(found.axes @ found.axes.T, np.eye(3)) and np.linalg.det(found.axes) == pytest.approx(1)


def test_in_its_standard_axes_a_turned_cube_has_three_constants():
    atoms = bulk("Cu")
    atoms.rotate(33, (1, 2, 3), rotate_cell=True)
    found = crystal_symmetry(atoms)
    for tensor in found.basis:
        straight = bond(found.axes) @ tensor @ bond(found.axes).T
        assert straight[0, 0] == pytest.approx(straight[2, 2]) and straight[3, 3] == pytest.approx(straight[5, 5])
        assert np.abs(straight[:3, 3:]).max() < 1e-6


def test_a_strained_cube_is_none():
    atoms = bulk("Cu", cubic=True)
    atoms.set_cell(np.diag([1.01, 1, 1]) * 3.6, scale_atoms=True)
    assert crystal_symmetry(atoms).name == "tetragonal"


def test_bonds_matrix_turns_a_stress():
    rotation = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))[0]
    stress = np.array([[1.0, 0.2, 0.3], [0.2, 2.0, 0.4], [0.3, 0.4, 3.0]])
    voigt = [(0, 0), (1, 1), (2, 2), (1, 2), (0, 2), (0, 1)]
    turned = rotation @ stress @ rotation.T
    assert bond(rotation) @ [stress[i] for i in voigt] == pytest.approx([turned[i] for i in voigt])
