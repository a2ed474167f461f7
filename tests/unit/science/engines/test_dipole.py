"""The dipole correction: which slabs get one, where it goes, and who refuses it."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from ase import Atoms
from ase.build import add_adsorbate, bulk, fcc111, molecule
from ase.constraints import FixAtoms

import hpcagent as ha
from hpcagent.apps.base import App
from hpcagent.apps.run import Run
from hpcagent.errors import AppFailed
from hpcagent.science.dft.energy import dft_energy
from hpcagent.science.engines.base import Level
from hpcagent.science.engines.dipole import layer_of
from hpcagent.science.engines.espresso import ENGINE
from hpcagent.science.engines.espresso_pseudopotentials import PSEUDO_DIR

AUTO = Level("espresso", options={"dipole": "auto"})


def slab(vacuum: float = 12.0) -> Atoms:
    """Aluminium with vacuum, in all, of so many angstrom."""
    return fcc111("Al", (1, 1, 4), a=4.05, vacuum=vacuum / 2)


def covered(vacuum: float = 12.0, layers: int = 2) -> Atoms:
    """Oxygen on one side of aluminium, as a monolayer."""
    atoms = fcc111("Al", (1, 1, layers), a=4.05, vacuum=0)
    add_adsorbate(atoms, "O", 1.2, "fcc")
    atoms.center(vacuum=vacuum / 2, axis=2)
    return atoms


def test_only_a_slab_whose_sides_differ_gets_one():
    assert layer_of(slab(), AUTO)[0] is None
    assert "both sides" in layer_of(slab(), AUTO)[1][0]
    for atoms in (bulk("Al", cubic=True), fcc111("Al", (1, 1, 4), vacuum=1.0, periodic=True)):
        assert layer_of(atoms, AUTO)[0] is None
        assert "no slab" in layer_of(atoms, AUTO)[1][0]
    boxed = molecule("CO", vacuum=6.0)
    assert layer_of(boxed, AUTO) == (None, ())
    assert layer_of(covered(), replace(AUTO, options={})) == (None, ())
    assert layer_of(covered(), AUTO)[0] is not None
    # Held on one side only, it relaxes into one whose sides differ.
    held = slab()
    held.set_constraint(FixAtoms([0, 1]))
    assert layer_of(held, AUTO)[0] is not None


@pytest.mark.parametrize("shift", [0.0, 5.0, 11.0])
def test_the_layer_is_in_the_middle_of_the_vacuum(shift):
    atoms = covered(vacuum=10.0)
    atoms.positions[:, 2] += shift
    length = atoms.cell[2, 2]
    layer, notes = layer_of(atoms, AUTO)
    assert layer is not None and layer.axis == 2
    # The slab was centred: the vacuum's middle was on the border of the cell.
    assert (layer.middle * length - shift + 1e-9) % length == pytest.approx(0, abs=1e-6)
    assert layer.width * length == pytest.approx(10.0)
    assert "10.0 angstrom" in notes[0]


def test_a_slab_in_a_slanted_cell_is_refused():
    atoms = covered()
    cell = atoms.cell.array
    cell[2, 0] = 2.0
    atoms.set_cell(cell)
    with pytest.raises(AppFailed, match="perpendicular"):
        layer_of(atoms, AUTO)


@pytest.mark.parametrize(
    ("engine", "value", "said"), [("emt", "auto", "no dipole correction"), ("emt", "on", "not one of off, auto")]
)
def test_an_engine_without_one_refuses_it_in_words(tmp_path, engine, value, said):
    with ha.open_site("threads", run_dir=tmp_path):
        failure = dft_energy.with_settings(dipole=value)(bulk("Cu"), engine=engine).result().failure
    assert failure.name == "BadSettings" and said in failure.message


def test_runs_of_before_it_keep_their_ids():
    """An app read from an old record has no such setting: switched off it is the same app, switched on another."""
    record = dft_energy.model_dump(mode="json")
    del record["settings"]["dipole"]
    old = App.model_validate(record)
    assert old.digest == dft_energy.digest
    assert dft_energy.continuing(old) is not None
    on = dft_energy.with_settings(dipole="auto")
    assert on.digest != old.digest and on.continuing(old) is None


@pytest.mark.skipif(shutil.which("pw.x") is None or not Path(PSEUDO_DIR).is_dir(), reason="no pw.x: tests/apt.txt")
def test_pwx_gets_its_sawtooth_into_the_vacuum(tmp_path):
    atoms = covered(vacuum=10.0)
    atoms.positions[:, 2] += 4.0
    level = replace(AUTO, xc="lda", mesh="1x1x1", smearing=0.3, ecut=200.0)
    calculator = ENGINE.calculator(atoms, level, Run(workdir=tmp_path))
    said = calculator.parameters["input_data"]
    assert (said["tefield"], said["dipfield"], said["edir"], said["eamp"]) == (True, True, 3, 0.0)
    # The middle of its falling part is the middle of the vacuum; all of that part is in it.
    length = atoms.cell[2, 2]
    middle = (said["emaxpos"] + said["eopreg"] / 2) * length % length
    assert middle == pytest.approx(4.0, abs=1e-3)
    assert said["eopreg"] * length < 5.0
    assert any("dipole correction along the third vector" in note for note in calculator.notes)
    off = replace(level, options={})
    assert "tefield" not in ENGINE.calculator(atoms, off, Run(workdir=tmp_path)).parameters["input_data"]
