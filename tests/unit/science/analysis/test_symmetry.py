"""Point groups of crystals, and what they leave of an elastic tensor."""

from __future__ import annotations

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk

from hpcagent.science.analysis.elastic import _with_positive_c14
from hpcagent.science.analysis.symmetry import bond, crystal_symmetry

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


def vacancy() -> Atoms:
    """Of two cells one on top of the other, in which one atom is missing: no cell is a smaller one."""
    atoms = bulk("Cu", cubic=True) * (1, 1, 2)
    del atoms[0]
    return atoms


# Numbers of constants: J. F. Nye, Physical Properties of Crystals, 1957, table 9.
@pytest.mark.parametrize(
    ("atoms", "name", "constants"),
    [
        (bulk("Cu"), "cubic", 3),
        (bulk("Si", cubic=True), "cubic", 3),
        (bulk("GaAs", "zincblende", a=5.65), "cubic", 3),
        # Cells that have less symmetry than the crystal.
        (bulk("Cu") * (2, 1, 1), "cubic", 3),
        (bulk("Cu") * (3, 2, 1), "cubic", 3),
        (bulk("Cu", orthorhombic=True), "cubic", 3),
        (bulk("Si", cubic=True) * (1, 1, 2), "cubic", 3),
        (bulk("Mg", orthorhombic=True), "hexagonal", 5),
        (bulk("Mg") * (1, 2, 1), "hexagonal", 5),
        (vacancy(), "tetragonal", 6),
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


def crystal(points, cell, elements="CuO"):
    """Two kinds of atoms: one at the origin, the other at these points in scaled coordinates."""
    places = [(0, 0, 0), *points]
    symbols = elements[:2] + elements[2:] * len(points)
    return Atoms(symbols, scaled_positions=places, cell=cell, pbc=True)


HEXAGONAL = [[3.0, 0, 0], [-1.5, 1.5 * 3**0.5, 0], [0, 0, 3.4]]
X, Y, Z = 0.31, 0.12, 0.22
# General positions: 4/m, -3, and 32 along x (P321) and between (P312), as International Tables A has them.
FOUR = crystal(
    [(X, Y, Z), (-X, -Y, Z), (-Y, X, Z), (Y, -X, Z), (-X, -Y, -Z), (X, Y, -Z), (Y, -X, -Z), (-Y, X, -Z)],
    [3.0, 3.0, 3.8],
)
CENTRED = FOUR.copy()
CENTRED.set_cell([[-1.5, 1.5, 1.9], [1.5, -1.5, 1.9], [1.5, 1.5, -1.9]])
THREE = crystal(
    [(X, Y, Z), (-Y, X - Y, Z), (Y - X, -X, Z), (-X, -Y, -Z), (Y, Y - X, -Z), (X - Y, X, -Z)], HEXAGONAL
)
QUARTZ = crystal(
    [(X, Y, Z), (-Y, X - Y, Z), (Y - X, -X, Z), (Y, X, -Z), (X - Y, -Y, -Z), (-X, Y - X, -Z)], HEXAGONAL
)
BETWEEN = crystal(
    [(X, Y, Z), (-Y, X - Y, Z), (Y - X, -X, Z), (-Y, -X, -Z), (Y - X, Y, -Z), (X, X - Y, -Z)], HEXAGONAL
)


@pytest.mark.parametrize(
    ("atoms", "name", "constants"),
    [
        (bulk("Cu"), "cubic", 3),
        (bulk("Mg"), "hexagonal", 5),
        (bulk("In"), "tetragonal", 6),
        (RUTILE, "tetragonal", 6),
        (FOUR, "tetragonal", 7),
        (CENTRED, "tetragonal", 7),
        (bulk("Bi"), "trigonal", 6),
        (QUARTZ, "trigonal", 6),
        (BETWEEN, "trigonal", 6),
        (THREE, "trigonal", 7),
    ],
)
def test_constants_in_standard_axes_do_not_depend_on_how_the_crystal_lies(atoms, name, constants):
    straight = crystal_symmetry(atoms)
    assert (straight.name, len(straight.basis)) == (name, constants)
    # Any tensor of the crystal: a stiff body and some of each constant.
    rng = np.random.default_rng(3)
    body = np.diag([150.0, 150.0, 150.0, 40.0, 40.0, 40.0])
    tensor = np.einsum("n,nij->ij", np.einsum("nij,ij->n", straight.basis, body + 30 * rng.normal(size=(6, 6))),
                       straight.basis)  # fmt: skip
    known = in_standard_axes(straight, tensor)
    assert name != "trigonal" or known[0, 3] > 0.1
    for angle, axis in ((20, "z"), (40, "z"), (60, "z"), (90, "z"), (180, "z"), (180, "x"), (33, (1, 2, 3)),
                        (110, (1, -1, 0.3))):  # fmt: skip
        turned = atoms.copy()
        turned.rotate(angle, axis, rotate_cell=True)
        rotation = np.linalg.solve(atoms.cell[:], turned.cell[:]).T
        found = in_standard_axes(crystal_symmetry(turned), bond(rotation) @ tensor @ bond(rotation).T)
        for i, j in ((0, 0), (0, 1), (0, 2), (2, 2), (3, 3), (5, 5), (0, 3)):
            assert found[i, j] == pytest.approx(known[i, j], abs=1e-6), (angle, axis, i, j)


def in_standard_axes(symmetry, tensor):
    turn = bond(_with_positive_c14(symmetry, tensor).axes)
    return turn @ tensor @ turn.T


def test_x_of_a_tetragonal_crystal_is_its_a_and_of_a_trigonal_one_its_twofold_axis():
    for atoms in (FOUR, CENTRED, RUTILE, QUARTZ):
        turned = atoms.copy()
        turned.rotate(40, "z", rotate_cell=True)
        found = crystal_symmetry(turned)
        angle = np.degrees(np.arctan2(found.axes[0, 1], found.axes[0, 0]))
        fold = 60 if found.name == "trigonal" else 90
        assert (angle - 40) % fold == pytest.approx(0, abs=1e-4) or (angle - 40) % fold == pytest.approx(fold)
        assert found.turned
    # P312: the twofold axes lie between the lattice vectors.
    x = crystal_symmetry(BETWEEN).axes[0]
    assert np.degrees(np.arctan2(x[1], x[0])) % 60 == pytest.approx(30)


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
