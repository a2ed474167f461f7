"""Vibrations by EMT and GFN2, against sqrt(k / mu), ASE's own and tables of entropies."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from ase import Atoms, units
from ase.build import add_adsorbate, fcc100, molecule
from ase.calculators.emt import EMT
from ase.constraints import FixAtoms
from ase.io import read
from ase.optimize import BFGS
from ase.vibrations import Vibrations

import hpcagent as ha
from hpcagent.errors import AppFailed
from hpcagent.science.analysis.free_energies import THERMO, free_energies
from hpcagent.science.analysis.rotations import rigid_motions, symmetry_number
from hpcagent.science.chains.vibrations import moved_atoms


@pytest.fixture
def here(tmp_path):
    """The folder of an open site."""
    with ha.open_site("threads", run_dir=tmp_path):
        yield tmp_path


def emt_n2(d: float) -> float:
    atoms = Atoms("N2", [(0, 0, 0), (0, 0, d)], calculator=EMT())
    return float(atoms.get_potential_energy())


def test_nitrogen_vibrates_at_the_root_of_k_over_mu_and_another_temperature_computes_nothing(here):
    result = ha.apps.molecule_vibrations(name="N2", engine="emt", fmax=1e-4).result()
    assert result.ok, result.failure
    bond = read(Path(result.workdir) / result.artifacts["structure"]).get_distance(0, 1)
    h = 1e-3
    k = (emt_n2(bond + h) - 2 * emt_n2(bond) + emt_n2(bond - h)) / h**2  # eV/angstrom^2
    mu = 14.007 / 2
    omega = math.sqrt(k * units._e * 1e20 / (mu * units._amu))
    assert result["highest_frequency"] == pytest.approx(omega / (2 * math.pi * units._c * 100), rel=5e-4)
    assert result["highest_frequency"] == pytest.approx(1231.3, abs=0.5)
    assert (result["n_modes"], result["n_imaginary"], result["symmetry_number"]) == (1, 0, 2)
    assert result["zero_point_energy"] == pytest.approx(0.5 * units._hbar * omega / units._e, rel=5e-4)
    # 191.6 J/mol/K at 298.15 K and 1 bar (NIST-JANAF); EMT's bond is 1.0 angstrom, the true one 1.098:
    # R ln (I / I') of the rotation.
    rotation = units._k * units._Nav * math.log((1.0977 / bond) ** 2)
    assert result["entropy"] + rotation == pytest.approx(191.61, abs=0.15)
    before = Counter(json.loads(f.read_text())["app"] for f in here.glob("work/*/manifest.json"))
    hot = ha.apps.molecule_vibrations(
        name="N2", engine="emt", fmax=1e-4, temperature=500.0, pressure=10.0
    ).result()
    after = Counter(json.loads(f.read_text())["app"] for f in here.glob("work/*/manifest.json"))
    assert before["dft_energy"] == after["dft_energy"] == 12 and after["vibration_modes"] == 2
    # 206.74 at 500 K and 1 bar (NIST-JANAF), with R ln 10 less at 10 bar; EMT's vibration is softer than the true
    # one (2330 1/cm, which adds 0.08 there).
    x = units._hbar * omega / (units._k * 500)
    soft = 8.31446 * (x / math.expm1(x) - math.log1p(-math.exp(-x)))
    assert hot["entropy"] + rotation - soft == pytest.approx(206.66 - 8.31446 * math.log(10), abs=0.15)
    assert hot["free_energy"] == pytest.approx(hot["energy"] + hot["free_energy_correction"])


@pytest.mark.parametrize(
    ("name", "frequencies", "entropy", "spin"),
    [
        # Frequencies of GFN2; entropies at 298.15 K and 1 bar of the NIST-JANAF tables.
        ("H2O", (1539, 3643, 3652), 188.84, 0),
        ("O2", (1629,), 205.15, 1),
    ],
)
def test_entropies_are_those_of_tables(here, name, frequencies, entropy, spin):
    result = ha.apps.molecule_vibrations(name=name, engine="tblite", fmax=1e-3).result()
    assert result.ok, result.failure
    found = np.loadtxt(Path(result.workdir) / result.artifacts["frequencies"], delimiter=",", skiprows=1, ndmin=2)
    assert found[:, 1] == pytest.approx(frequencies, abs=2)
    assert result["entropy"] == pytest.approx(entropy, abs=0.5)
    assert result["spin"] == spin and result["rigid_frequency"] < 100
    modes = read(Path(result.workdir) / result.artifacts["modes"], ":")
    assert len(modes) == len(frequencies)
    # No mode moves the centre of mass.
    for mode in modes:
        assert mode.get_masses() @ mode.arrays["mode"] == pytest.approx(0, abs=1e-4)


def slab_with_nitrogen() -> Atoms:
    slab = fcc100("Cu", (2, 2, 2), vacuum=6)
    add_adsorbate(slab, "N", 1.0, "hollow")
    slab.set_constraint(FixAtoms([a.index for a in slab if a.tag > 0]))
    return slab


def test_an_adsorbate_vibrates_on_a_held_slab_as_with_ase(here, tmp_path):
    slab = slab_with_nitrogen()
    result = ha.apps.vibrations(slab, engine="emt", fmax=1e-3).result()
    assert result.ok, result.failure
    slab.calc = EMT()
    with BFGS(slab, logfile=None) as steps:
        steps.run(fmax=1e-3)
    slab.set_constraint()
    by_ase = Vibrations(slab, indices=[8], name=str(tmp_path / "vib"))
    by_ase.run()
    wanted = np.real(by_ase.get_frequencies())
    found = np.loadtxt(Path(result.workdir) / result.artifacts["frequencies"], delimiter=",", skiprows=1)
    assert found[:, 1] == pytest.approx(wanted, rel=2e-3)
    assert result["n_modes"] == 3 and "rigid_frequency" not in result.metrics
    # Harmonic model by hand: U - T S.
    q, t = wanted * units.invcm, 298.15
    free = (q / 2 + units.kB * t * np.log(1 - np.exp(-q / (units.kB * t)))).sum()
    assert result["free_energy_correction"] == pytest.approx(free, abs=1e-4)
    assert any("8 are held" in note for note in result.notes)


def test_a_saddle_has_its_mode_and_a_free_energy_only_when_it_is_expected(here):
    # Flat ammonia is the saddle between its two umbrellas.
    flat = Atoms("NH3", [(0, 0, 0), *((math.cos(a), math.sin(a), 0) for a in np.arange(3) * 2 * math.pi / 3)])
    given = ha.apps.vibrations(flat, engine="tblite").result()
    assert given.ok, given.failure
    assert given["n_imaginary"] == 1 and given["lowest_frequency"] < -300
    assert "zero_point_energy" not in given.metrics and "free_energy" not in given.metrics
    assert any(note.startswith("vibration_modes: imaginary: ") for note in given.notes)
    expected = ha.apps.vibrations(flat, engine="tblite", imaginary=1).result()
    real = [f for f in _frequencies(expected) if f > 0]
    assert len(real) == 5 and expected["symmetry_number"] == 6  # D3h
    assert expected["zero_point_energy"] == pytest.approx(sum(real) * units.invcm / 2, rel=1e-4)
    refused = ha.apps.vibrations(flat, engine="emt", atoms="7", relax="no").result()
    assert not refused.ok and refused.failure.name == "BadAtoms"
    held = ha.apps.vibrations(flat, engine="emt", atoms="0-1", relax="no", model="ideal_gas").result()
    assert not held.ok and held.failure.name == "BadModel"


def _frequencies(result) -> list[float]:
    rows = np.loadtxt(Path(result.workdir) / result.artifacts["frequencies"], delimiter=",", skiprows=1)
    return [-f if i else f for f, i in rows[:, [1, 3]]]


def test_low_modes_go_over_to_rotors():
    atoms = molecule("C2H6")
    defaults = {name: p.default for name, p in THERMO.items()} | {"model": "harmonic", "temperature": 298.15}
    frequencies = np.array([20.0, 3000.0])

    def entropy(**changes) -> float:
        return free_energies(atoms, frequencies, 0.0, {}, free=True, **(defaults | changes))[0]["entropy"]

    # Grimme's equations 3 to 8 (doi:10.1002/chem.201200497) by hand, for the mode at 20 1/cm.
    r, t, f = 8.314462618, 298.15, 20.0
    x = units._hplanck * units._c * 100 * f / (units._k * t)
    vibration = r * (x / math.expm1(x) - math.log1p(-math.exp(-x)))
    inertia = np.mean(atoms.get_moments_of_inertia()) * units._amu * 1e-20
    mu = units._hplanck / (8 * math.pi**2 * f * 100 * units._c)
    mu = mu * inertia / (mu + inertia)
    rotor = r * (0.5 + math.log(math.sqrt(8 * math.pi**3 * mu * units._k * t / units._hplanck**2)))
    weight = 1 / (1 + (100.0 / f) ** 4)
    assert entropy() == pytest.approx(vibration, abs=1e-3)
    assert entropy(low_modes="grimme") == pytest.approx(weight * vibration + (1 - weight) * rotor, abs=1e-3)


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("N", 1),
        ("HCl", 1),
        ("CO2", 2),
        ("NH3", 3),
        ("C2H4", 4),
        ("C2H6", 6),
        ("CH4", 12),
        ("C6H6", 12),
        ("CH3OH", 1),
    ],
)
def test_symmetry_numbers_are_those_of_the_textbook(name, number):
    atoms = molecule(name) if name != "N" else Atoms("N")
    atoms.rotate(37, (1, 2, 3))
    atoms.rattle(0.003, seed=1)
    if name != "CO2":
        assert symmetry_number(atoms) == number
    motions = rigid_motions(atoms)
    assert motions @ motions.T == pytest.approx(np.eye(len(motions)), abs=1e-9)
    heavier = molecule("H2O")
    heavier.set_masses([15.999, 1.008, 2.014])
    assert symmetry_number(heavier) == 1


def test_atoms_are_chosen_by_number_element_tag_or_freedom():
    slab = slab_with_nitrogen()
    assert (
        moved_atoms(slab, "")
        == moved_atoms(slab, "N")
        == moved_atoms(slab, "free")
        == moved_atoms(slab, "8")
        == [8]
    )
    assert moved_atoms(slab, "0-1, N") == [0, 1, 8] and len(moved_atoms(slab, "all")) == 9
    for wrong in ("9", "Xx", "1-", "-1", "0;1"):
        with pytest.raises(AppFailed) as error:
            moved_atoms(slab, wrong)
        assert error.value.details["name"] == "BadAtoms"


def gas(atoms: Atoms, *frequencies: float, **changes):
    defaults = {name: p.default for name, p in THERMO.items()}
    return free_energies(atoms, np.array(frequencies), 0.0, {}, free=True, **(defaults | changes))


def test_a_loosely_relaxed_molecule_is_said_to_be_nearly_symmetric():
    benzene = molecule("C6H6")
    modes = np.linspace(400, 3000, 30)
    found, notes = gas(benzene, *modes)
    assert found["symmetry_number"] == 12 and not any("may be" in note for note in notes)
    benzene.rattle(0.04, seed=1)
    found, notes = gas(benzene, *modes)
    assert found["symmetry_number"] < 12 and any("but 12 if atoms may be" in note for note in notes)


def test_what_the_ideal_gas_leaves_out_is_said_or_left_out():
    # JANAF: O has 161.06 J/mol/K, nearly R ln 3 more than spin and translation: its term is 3P.
    found, notes = gas(Atoms("O"), spin=1.0)
    assert found["entropy"] == pytest.approx(161.06 - 8.314 * math.log(3), abs=1.0)
    assert any("orbital" in note for note in notes)
    assert not any("orbital" in note for note in gas(Atoms("N"), spin=1.5)[1])
    for cold in (gas(molecule("H2"), 4400.0, temperature=50.0), gas(Atoms("Ar"), temperature=0.1)):
        assert "free_energy" not in cold[0] and "entropy" not in cold[0]
        assert any("no free energy at" in note for note in cold[1])
    for spin in (0.3, -0.5):
        with pytest.raises(AppFailed, match="no total spin"):
            gas(Atoms("N"), spin=spin)
