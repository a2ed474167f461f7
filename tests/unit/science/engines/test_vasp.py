"""The engine `vasp`, against a stand-in for the program that reads and writes its formats."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import pytest
from ase import Atoms
from ase.build import bulk, fcc111
from ase.calculators.emt import EMT
from ase.constraints import FixAtoms

from hpcagent.apps.run import Run
from hpcagent.errors import AppFailed
from hpcagent.science.engines.base import Level, NotConverged
from hpcagent.science.engines.vasp import ENGINE
from hpcagent.science.engines.watched import Watch

FAKE = [sys.executable, str(Path(__file__).parent / "data" / "fake_vasp.py")]


@pytest.fixture
def potcars(tmp_path: Path) -> Path:
    """A folder as VASP's: potpaw_PBE/Cu/POTCAR and so on (not real potentials)."""
    for folder, symbol, made in (
        ("potpaw_PBE", "Cu", "PE"),
        ("potpaw_PBE", "Cu_pv", "PE"),
        ("potpaw_PBE", "O", "PE"),
        ("potpaw", "Cu", "CA"),
        ("potpaw_PBE", "Ni", "CA"),  # a file in the wrong folder
    ):
        path = tmp_path / "potentials" / folder / symbol / "POTCAR"
        path.parent.mkdir(parents=True)
        path.write_text(
            f"  PAW {symbol} 01Jan2000\n  11.0000000000000\n parameters from PSCTR are:\n"
            f"   VRHFIN ={symbol}: d10 p1\n   LEXCH  = {made}\n\n   TITEL  = PAW {symbol} 01Jan2000\n"
            "   LULTRA =        F    use ultrasoft PP ?\n   IUNSCR =        1    unscreen: 0-lin 1-nonlin 2-no\n"
            "   RPACOR =    2.000    partial core radius\n   POMASS =   63.546; ZVAL   =   11.000    mass and valenz\n"
            "   ENMAX  =  295.446; ENMIN  =  221.585 eV\n End of Dataset\n"
        )
    return tmp_path / "potentials"


def a_run(tmp_path: Path, **more: object) -> Run:
    workdir = tmp_path / "run"
    workdir.mkdir(exist_ok=True)
    return Run(workdir=workdir, site={"apps": {"vasp": {"command": FAKE}}}, **more)


def a_level(potcars: Path, **changes: object) -> Level:
    options = {"pseudo_dir": str(potcars), **changes.pop("options", {})}
    return Level("vasp", **{"kpts": 4, "ecut": 350.0, "smearing": 0.2, "options": options, **changes})


def test_energy_forces_and_stress_are_those_of_the_program(tmp_path: Path, potcars: Path) -> None:
    atoms = bulk("Cu", cubic=True)
    atoms.rattle(0.05, seed=1)
    wanted = atoms.copy()
    wanted.calc = EMT()
    atoms.calc = ENGINE.calculator(atoms, a_level(potcars), a_run(tmp_path))
    assert atoms.get_potential_energy() == pytest.approx(wanted.get_potential_energy(), abs=1e-7)
    assert atoms.get_forces() == pytest.approx(wanted.get_forces(), abs=1e-7)
    assert atoms.get_stress() == pytest.approx(wanted.get_stress(), abs=1e-7)
    history = ENGINE.iterations(atoms.calc)
    assert len(history) > 5
    assert history[-1].energy == pytest.approx(wanted.get_potential_energy(), abs=1e-4)
    assert history[-1].change < 1e-5


def test_atoms_of_several_elements_come_back_in_their_own_order(tmp_path: Path, potcars: Path) -> None:
    atoms = Atoms("CuOCu", [[0, 0, 0], [0, 0, 1.9], [0, 2.0, 2.5]], cell=[6, 6, 8], pbc=True)
    wanted = atoms.copy()
    wanted.calc = EMT()
    atoms.calc = ENGINE.calculator(atoms, a_level(potcars), a_run(tmp_path))
    assert atoms.get_forces() == pytest.approx(wanted.get_forces(), abs=1e-6)


def test_the_level_is_written_in_vasps_words(tmp_path: Path, potcars: Path) -> None:
    atoms = bulk("Cu", a=3.6)
    run = a_run(tmp_path)
    level = a_level(potcars, tolerance=1e-6, max_scf=77, mixing=0.2, magmom=0.5, charge=1)
    atoms.calc = ENGINE.calculator(atoms, level, run)
    assert atoms.calc.get_property("magmom", atoms) == 0.5
    said = dict(
        (word.strip() for word in line.split("=", 1))
        for line in (run.workdir / "INCAR").read_text().splitlines()
        if "=" in line
    )
    assert (float(said["ENCUT"]), float(said["EDIFF"]), int(said["NELM"])) == (350.0, 1e-6, 77)
    assert (int(said["ISMEAR"]), float(said["SIGMA"]), float(said["AMIX"])) == (0, 0.2, 0.2)
    assert (int(said["ISPIN"]), said["MAGMOM"], float(said["NELECT"])) == (2, "1*0.5000", 10.0)
    kpoints = (run.workdir / "KPOINTS").read_text().splitlines()
    assert kpoints[2].lower().startswith("g") and kpoints[3].split() == ["4", "4", "4"]


def test_a_slab_whose_sides_differ_gets_its_dipole_layer_into_the_vacuum(tmp_path: Path, potcars: Path) -> None:
    slab = fcc111("Cu", (1, 1, 3), a=3.6, vacuum=6.0)
    slab.set_constraint(FixAtoms([0]))
    run = a_run(tmp_path)
    level = a_level(potcars, options={"dipole": "auto"})
    slab.calc = ENGINE.calculator(slab, level, run)
    slab.calc.get_property("energy", slab)
    said = dict(
        (word.strip() for word in line.split("=", 1))
        for line in (run.workdir / "INCAR").read_text().splitlines()
        if "=" in line
    )
    assert (said["LDIPOL"], said["IDIPOL"]) == (".TRUE.", "3")
    # VASP wants the middle of the slab, half a cell from that of the vacuum.
    assert [float(x) for x in said["DIPOL"].split()] == pytest.approx([0.5, 0.5, 0.5])


def test_the_potentials_are_in_the_record(tmp_path: Path, potcars: Path) -> None:
    atoms = bulk("Cu", a=3.6)
    run = a_run(tmp_path)
    level = a_level(potcars, options={"pseudopotentials": {"Cu": "Cu_pv"}})
    atoms.calc = ENGINE.calculator(atoms, level, run)
    atoms.get_potential_energy()
    record = json.loads((run.workdir / "pseudopotentials.json").read_text())
    assert record["potcar"] == ["PAW Cu_pv 01Jan2000"]
    file = potcars / "potpaw_PBE" / "Cu_pv" / "POTCAR"
    assert record["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()


def test_potentials_of_two_functionals_are_refused(tmp_path: Path, potcars: Path) -> None:
    atoms = Atoms("CuNi", [[0, 0, 0], [0, 0, 2.4]], cell=[6, 6, 8], pbc=True)
    atoms.calc = ENGINE.calculator(atoms, a_level(potcars), a_run(tmp_path))
    with pytest.raises(AppFailed, match=r"PAW Cu 01Jan2000 \(PE\), PAW Ni 01Jan2000 \(CA\)") as caught:
        atoms.get_potential_energy()
    assert (caught.value.kind, caught.value.name) == ("contract", "MixedFunctionals")


def test_nelm_reached_is_not_converged_and_has_the_history_of_the_oszicar(tmp_path: Path, potcars: Path) -> None:
    atoms = bulk("Cu", a=3.6)
    atoms.calc = ENGINE.calculator(atoms, a_level(potcars, max_scf=5), a_run(tmp_path))
    with pytest.raises(NotConverged, match="did not reach EDIFF in 5 of at most 5 steps") as caught:
        atoms.get_potential_energy()
    changes = [step.change for step in caught.value.history]
    assert len(changes) == 5
    assert changes[-1] / changes[-2] == pytest.approx(0.5, rel=1e-3)


def test_a_repair_is_tried_and_named(tmp_path: Path, potcars: Path) -> None:
    # Ten steps do not suffice, and neither do twenty: 2 * 0.5^20 = 2e-6 > 1e-8; ALGO = All does.
    atoms = bulk("Cu", a=3.6)
    watch = Watch(ENGINE, atoms, a_level(potcars, max_scf=10, tolerance=1e-8), a_run(tmp_path))
    watch.compute(atoms, ["energy"])
    assert [done.split(":")[0] for done in watch.repaired] == ["more_steps", "algo_all"]
    assert watch.scf_steps > 30
    assert "ALGO = All" in (tmp_path / "run" / "INCAR").read_text()


def test_wavefunctions_are_deleted_in_the_end_unless_they_are_to_be_kept(tmp_path: Path, potcars: Path) -> None:
    for keep in (True, False):
        atoms = bulk("Cu", a=3.6)
        atoms.calc = ENGINE.calculator(atoms, a_level(potcars, options={"keep": keep}), a_run(tmp_path))
        atoms.get_potential_energy()
        assert (tmp_path / "run" / "WAVECAR").exists()
        atoms.calc.close()
        assert (tmp_path / "run" / "WAVECAR").exists() is keep


@pytest.mark.parametrize(
    ("how", "name", "kind", "words"),
    [
        ("crash", "ExecutableFailed", "simulation", "exit code 139"),
        ("zhegv", "DiagonalizationFailed", "simulation", "ZHEGV"),
        ("cut", "ExecutableFailed", "simulation", "OUTCAR has no end"),
    ],
)
def test_failures_have_names(
    how: str, name: str, kind: str, words: str, tmp_path: Path, potcars: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_VASP", how)
    atoms = bulk("Cu", a=3.6)
    atoms.calc = ENGINE.calculator(atoms, a_level(potcars), a_run(tmp_path))
    with pytest.raises(AppFailed, match=words) as caught:
        atoms.get_potential_energy()
    assert (caught.value.name, caught.value.kind) == (name, kind)


def test_it_is_stopped_at_the_runs_limit(tmp_path: Path, potcars: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_VASP", "slow")
    atoms = bulk("Cu", a=3.6)
    run = a_run(tmp_path, resources={"walltime_s": 1.0})
    atoms.calc = ENGINE.calculator(atoms, a_level(potcars), run)
    with pytest.raises(AppFailed) as caught:
        atoms.get_potential_energy()
    assert caught.value.name == "Walltime"


def test_what_is_missing_is_named(tmp_path: Path, potcars: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HPCAGENT_VASP", "ASE_VASP_COMMAND", "VASP_COMMAND", "VASP_PP_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    atoms = bulk("Cu", a=3.6)
    bare = Run(workdir=tmp_path)
    with pytest.raises(AppFailed, match="licensed") as caught:
        ENGINE.calculator(atoms, a_level(potcars), bare)
    assert (caught.value.kind, caught.value.name) == ("infrastructure", "NoExecutable")
    with pytest.raises(AppFailed, match="VASP_PP_PATH not set"):
        ENGINE.calculator(atoms, Level("vasp"), a_run(tmp_path))
    silver = bulk("Ag")
    silver.calc = ENGINE.calculator(silver, a_level(potcars), a_run(tmp_path))
    with pytest.raises(AppFailed, match="No pseudopotential for Ag") as caught:
        silver.get_potential_energy()
    assert caught.value.name == "NoPseudopotential"


def test_the_command_may_come_from_the_environment(
    tmp_path: Path, potcars: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HPCAGENT_VASP", " ".join(FAKE))
    (tmp_path / "here").mkdir()
    atoms = bulk("Cu", a=3.6)
    atoms.calc = ENGINE.calculator(atoms, a_level(potcars), Run(workdir=tmp_path / "here"))
    assert atoms.get_potential_energy() < 1


def test_an_unknown_keyword_is_refused(tmp_path: Path, potcars: Path) -> None:
    level = a_level(potcars, options={"keywords": {"encutt": 3}})
    with pytest.raises(AppFailed, match="encutt") as caught:
        ENGINE.calculator(bulk("Cu"), level, a_run(tmp_path))
    assert caught.value.name == "BadSettings"
