"""The engine `gpaw`, with the real GPAW, and against Quantum ESPRESSO."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ase import Atoms
from ase.build import bulk
from numpy.polynomial import Polynomial

from hpcagent.apps.run import Run
from hpcagent.errors import AppFailed
from hpcagent.science.engines.base import Level, NotConverged
from hpcagent.science.engines.gpaw import ENGINE
from hpcagent.science.engines.registry import engine
from hpcagent.science.engines.watched import Watch

CHEAP = Level("gpaw", kpts=2, ecut=250.0, smearing=0.0)


def _missing(words: str) -> None:
    if os.environ.get("CI") == "true":
        pytest.fail(words)
    pytest.skip(words)


@pytest.fixture(scope="session")
def gpaw() -> Any:
    """The package, with its setups."""
    try:
        import gpaw as package
    except ImportError:
        _missing("no GPAW to test with; see docs/howto/gpaw_build.md")
    return package


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(workdir=tmp_path, resources={"walltime_s": 300})


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As where an app runs: NumPy's own threads, one for each core, would be in each other's way."""
    limits = pytest.importorskip("threadpoolctl").threadpool_limits(1)
    yield
    limits.restore_original_limits()


@pytest.fixture
def solved(gpaw: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Atoms, Path]]:
    folder = tmp_path_factory.mktemp("solved")
    atoms = bulk("Si", "diamond", a=5.47)
    atoms.positions[1, 0] += 0.1
    atoms.calc = ENGINE.calculator(atoms, CHEAP, Run(workdir=folder))
    yield atoms, folder


def test_without_gpaw_it_says_how_to_get_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "gpaw", None)
    with pytest.raises(AppFailed, match="'gpaw' cannot be imported") as caught:
        ENGINE.calculator(bulk("Si"), CHEAP, run)
    assert (caught.value.kind, caught.value.name) == ("infrastructure", "NoEngine")
    assert "GPAW_CONFIG" in caught.value.repair


def test_forces_are_the_derivative_of_the_energy(solved: tuple[Atoms, Path], run: Run) -> None:
    atoms, folder = solved
    force = atoms.get_forces()[1, 0]
    energies = []
    for step in (-0.02, 0.02):
        moved = atoms.copy()
        moved.positions[1, 0] += step
        moved.calc = ENGINE.calculator(moved, CHEAP, run)
        energies.append(moved.get_potential_energy())
    assert force == pytest.approx(-(energies[1] - energies[0]) / 0.04, abs=0.02)
    assert force < -0.5
    history = ENGINE.iterations(atoms.calc)
    assert len(history) > 4
    assert history[-1].energy == pytest.approx(atoms.get_potential_energy(), abs=1e-5)
    assert history[-1].change < 1e-4
    said = (folder / "gpaw.txt").read_text()
    assert "change in last 3 cyles: 1e-05 eV\n" in said  # of the cell, not of each electron
    assert "ecut=250" in said and "(2, 2, 2)" in said and "gamma=True" in said


def test_the_stress_is_the_derivative_of_the_energy(gpaw: Any, run: Run) -> None:
    # Hydrostatic: dE/dV = trace(stress)/3, at a cutoff that suffices for a fixed number of plane waves not to matter.
    energies = {}
    for a in (5.3, 5.35, 5.4):
        atoms = bulk("Si", "diamond", a=a)
        atoms.calc = ENGINE.calculator(atoms, replace(CHEAP, ecut=450.0), run)
        energies[a**3 / 4] = atoms.get_potential_energy()
        if a == 5.35:
            stress = atoms.get_stress()[:3].mean()
    (small, e_small), _, (large, e_large) = energies.items()
    assert stress == pytest.approx((e_large - e_small) / (large - small), abs=2e-3)


def test_an_scf_that_does_not_converge_has_its_history(gpaw: Any, run: Run) -> None:
    atoms = bulk("Si", "diamond", a=5.47)
    atoms.calc = ENGINE.calculator(atoms, replace(CHEAP, max_scf=3), run)
    with pytest.raises(NotConverged, match="did not converge in 3 steps") as caught:
        atoms.get_potential_energy()
    assert len(caught.value.history) == 3
    assert all(-20 < step.energy < 0 for step in caught.value.history)


def test_a_repair_is_tried_and_named(gpaw: Any, run: Run) -> None:
    atoms = bulk("Si", "diamond", a=5.47)
    watch = Watch(ENGINE, atoms, replace(CHEAP, max_scf=3), run)
    energy = watch.compute(atoms, ["energy"])["energy"]
    assert [done.split(":")[0] for done in watch.repaired] == ["more_steps"]
    assert energy == pytest.approx(ENGINE.calculator(atoms, CHEAP, run).get_property("energy", atoms), abs=1e-4)


def test_gentler_mixing_leads_to_the_same_energy(gpaw: Any, run: Run) -> None:
    atoms = bulk("Si", "diamond", a=5.47)
    gentle = dict(ENGINE.repairs(CHEAP))["gentler_mixing"]
    assert gentle.mixing == 0.05
    found = [ENGINE.calculator(atoms, level, run).get_property("energy", atoms) for level in (CHEAP, gentle)]
    assert found[0] == pytest.approx(found[1], abs=1e-3)
    assert "Pulay" in (run.workdir / "gpaw.txt").read_text()


def test_a_hydrogen_atom_in_a_box_has_its_moment_and_energy(gpaw: Any, run: Run) -> None:
    # GPAW counts from its reference atoms, which are not spin-polarised: what is left is the polarisation energy,
    # in PBE 1.1 eV (LSDA 0.9; the difference of the polarised and unpolarised atom, -0.4999 and -0.458 hartree).
    atoms = Atoms("H", [[0, 0, 0]])
    atoms.calc = ENGINE.calculator(atoms, Level("gpaw", ecut=350.0, magmom=1.0, tolerance=1e-4), run)
    assert atoms.get_potential_energy() == pytest.approx(-1.1, abs=0.15)
    assert atoms.calc.results["magmom"] == pytest.approx(1.0, abs=0.01)
    assert any("a box around the molecule" in note for note in atoms.calc.notes)


def test_what_does_not_go_together_is_refused(gpaw: Any, run: Run) -> None:
    atoms = bulk("Si", "diamond", a=5.47)
    for level, words in (
        (replace(CHEAP, basis="lcoa", ecut=0.0), "did you mean 'lcao'"),
        (replace(CHEAP, basis="lcao"), "ecut=250 eV is for plane waves"),
        (replace(CHEAP, options={"keywords": {"no_such": 1}}), "no_such"),
        (replace(CHEAP, options={"keywords": {"maxiter": 1}}), "maxiter"),
        (replace(CHEAP, xc="NO-SUCH"), "NO-SUCH"),
    ):
        with pytest.raises(AppFailed, match=words) as caught:
            ENGINE.calculator(atoms, level, run).get_property("energy", atoms)
        assert (caught.value.kind, caught.value.name) == ("contract", "BadSettings")


def test_an_odd_number_of_electrons_needs_smearing(gpaw: Any, run: Run) -> None:
    with pytest.raises(AppFailed, match="29 electrons, which cannot have a total moment of 0") as caught:
        ENGINE.calculator(bulk("Cu"), replace(CHEAP, smearing=0.0), run)
    assert (caught.value.kind, caught.value.name) == ("contract", "NeedsSmearing")


def test_atomic_orbitals_are_another_mode(gpaw: Any, run: Run) -> None:
    atoms = Atoms("H2", [[0, 0, 0], [0, 0, 0.75]], cell=[6, 6, 6.75])
    atoms.center()
    atoms.calc = ENGINE.calculator(atoms, Level("gpaw", basis="lcao", tolerance=1e-4), run)
    # Atomisation energy of H2 in PBE 4.5 eV, less twice the polarisation energy of 1.1 eV of the atoms: -6.7 eV.
    assert atoms.get_potential_energy() == pytest.approx(-6.7, abs=0.3)


def _minimum(name: str, folder: Path) -> float:
    """Lattice constant of silicon, in angstrom: the equation of Birch and Murnaghan through four energies.

    It is a cubic in V**(-2/3). A fifth energy changes the result by less than 1e-4 angstrom.
    """
    places, energies = [], []
    for a in (5.36, 5.42, 5.54, 5.60):
        atoms = bulk("Si", "diamond", a=a)
        level = Level(name, kpts=4, ecut=300.0)
        run = Run(workdir=folder, resources={"walltime_s": 300})
        energies.append(engine(name).calculator(atoms, level, run).get_property("energy", atoms))
        places.append(atoms.get_volume() ** (-2 / 3))
    flat = Polynomial.fit(places, energies, 3).deriv().roots()
    (place,) = [float(x.real) for x in flat if abs(x.imag) < 1e-9 and min(places) < x.real < max(places)]
    return float(4 ** (1 / 3) * place**-0.5)


@pytest.mark.slow
def test_gpaw_and_quantum_espresso_agree_on_the_lattice_constant_of_silicon(gpaw: Any, tmp_path: Path) -> None:
    # All-electron PBE: 5.469 angstrom (Haas, Tran, Blaha, doi:10.1103/PhysRevB.79.085104).
    if shutil.which("pw.x") is None:
        _missing("no pw.x to test with; apt-get install quantum-espresso quantum-espresso-data (tests/apt.txt)")
    found = [_minimum(name, tmp_path) for name in ("gpaw", "espresso")]
    assert found[0] == pytest.approx(found[1], rel=0.005)
    assert found == pytest.approx([5.469, 5.469], rel=0.005)
