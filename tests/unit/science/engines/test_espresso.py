"""The engine `espresso`: choosing pseudopotentials without pw.x, everything else with the real one."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from pathlib import Path

import pytest
from ase import Atoms
from ase.build import bulk

from hpcagent.apps.run import Run
from hpcagent.errors import AppFailed
from hpcagent.science.engines.base import Level, NotConverged
from hpcagent.science.engines.espresso import ENGINE
from hpcagent.science.engines.espresso_keywords import input_data
from hpcagent.science.engines.espresso_pseudopotentials import PSEUDO_DIR
from hpcagent.science.engines.mesh import boxed, mesh
from hpcagent.science.engines.upf import RY, Pseudopotential, choose, read_header
from hpcagent.science.engines.watched import Watch

CHEAP = Level("espresso", kpts=2, ecut=250.0, smearing=0.0)


@pytest.fixture(scope="session")
def pwx() -> str:
    """Path of the real pw.x."""
    found = shutil.which("pw.x")
    if found is None or not Path(PSEUDO_DIR).is_dir():
        words = "no pw.x to test with; apt-get install quantum-espresso quantum-espresso-data (tests/apt.txt)"
        if os.environ.get("CI") == "true":
            pytest.fail(words)
        pytest.skip(words)
    return found


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(workdir=tmp_path, resources={"walltime_s": 300})


def silicon(a: float = 5.47) -> Atoms:
    return bulk("Si", "diamond", a=a)


def changed(level: Level, **changes: object) -> Level:
    from dataclasses import replace

    return replace(level, **changes)


# ---- meshes and boxes


def test_a_mesh_follows_the_reciprocal_vectors() -> None:
    hexagonal = bulk("Ru", "hcp", a=2.7, c=4.3).cell
    # |b1| = |b2| = 4 pi / (sqrt(3) a) = 2.687, |b3| = 2 pi / c = 1.461 1/angstrom: 6 * 1.461 / 2.687 = 3.26
    assert mesh(hexagonal, (True, True, True), 6) == (6, 6, 4)
    assert mesh(silicon().cell, (True, True, True), 4) == (4, 4, 4)


def test_a_direction_that_is_not_periodic_has_one_point() -> None:
    cell = [[2.5, 0, 0], [0, 5, 0], [0, 0, 1]]  # along z not periodic, and short
    assert mesh(cell, (True, True, False), 4) == (4, 2, 1)
    assert mesh([[2.5, 0, 0], [0, 5, 0], [0, 0, 0]], (True, True, False), 4) == (4, 2, 1)
    assert mesh([[0, 0, 0]] * 3, (False, False, False), 7) == (1, 1, 1)


def test_a_box_leaves_vectors_that_are_there() -> None:
    layer = Atoms("Cu2", [[0, 0, 0], [0, 0, 2.0]], cell=[2.5, 2.5, 0], pbc=(True, True, False))
    box = boxed(layer, vacuum=6.0)
    assert box.cell.lengths().tolist() == [2.5, 2.5, 14.0]
    assert layer.cell.rank == 2  # a copy was made


# ---- pseudopotentials


def upf(
    folder: Path, name: str, element: str, functional: str, kind: str, relativistic: str, wfc: float = 40.0
) -> None:
    said = {
        "element": element,
        "pseudo_type": kind,
        "relativistic": relativistic,
        "is_ultrasoft": "F" if kind == "NC" else "T",
        "is_paw": "T" if kind == "PAW" else "F",
        "is_coulomb": "F",
        "functional": functional,
        "z_valence": "1.10000E+001",
        "wfc_cutoff": f"{wfc:E}",
        "rho_cutoff": f"{4 * wfc:E}",
    }
    attributes = "\n".join(f"{key}='{value}'" for key, value in said.items())
    (folder / name).write_text(f'<UPF version="2.0.1">\n<PP_HEADER generated="by hand" {attributes}/>\n</UPF>\n')


def test_a_pseudopotential_is_chosen_by_functional_kind_and_relativity(tmp_path: Path) -> None:
    upf(tmp_path, "a.UPF", "Cu", "SLA PZ NOGX NOGC", "PAW", "scalar")
    upf(tmp_path, "b.UPF", "Cu", "PBE", "NC", "scalar")
    upf(tmp_path, "c.UPF", "Cu", "SLA PW PBX PBC", "PAW", "full")
    upf(tmp_path, "d.upf", "Cu", " SLA  PW   PBE  PBE", "US", "scalar")
    upf(tmp_path, "e.UPF", "Cu", "SLA PW PSX PSC", "PAW", "scalar")
    assert choose(["Cu"], "PBE", tmp_path, {})["Cu"].path.name == "d.upf"
    assert choose(["Cu"], "LDA", tmp_path, {})["Cu"].path.name == "a.UPF"
    assert choose(["Cu"], "PBESOL", tmp_path, {})["Cu"].path.name == "e.UPF"
    (tmp_path / "d.upf").unlink()
    (tmp_path / "b.UPF").unlink()
    assert choose(["Cu"], "PBE", tmp_path, {})["Cu"].relativistic == "full"  # better than none


def test_both_versions_of_the_format_are_read(tmp_path: Path) -> None:
    upf(tmp_path, "new.UPF", " O", "SLA PW PBX PBC", "PAW", "scalar", wfc=37.5)
    (tmp_path / "old.UPF").write_text(
        "<PP_INFO>\n    2        The Pseudo was generated with a Fully-Relativistic Calculation\n</PP_INFO>\n\n\n"
        "<PP_HEADER>\n   0                   Version Number\n  Pt                   Element\n"
        "   US                  Ultrasoft pseudopotential\n    T                  Nonlinear Core Correction\n"
        " SLA  PW   PBX  PBC    PBE  Exchange-Correlation functional\n   10.00000000000      Z valence\n"
        "  -89.74702787920      Total energy\n     27.476    227.928 Suggested cutoff for wfc and rho\n</PP_HEADER>\n"
    )
    new, old = read_header(tmp_path / "new.UPF"), read_header(tmp_path / "old.UPF")
    assert new is not None and old is not None
    assert (new.element, new.functional, new.kind, new.relativistic) == ("O", "PBE", "PAW", "scalar")
    assert (new.valence, new.wfc_cutoff, new.rho_cutoff) == (11, 37.5, 150)
    assert (old.element, old.functional, old.kind, old.relativistic) == ("Pt", "PBE", "US", "full")
    assert (old.valence, old.wfc_cutoff, old.rho_cutoff) == (10, 27.476, 227.928)


def test_pseudopotentials_of_two_functionals_are_refused(tmp_path: Path) -> None:
    upf(tmp_path, "Cu.UPF", "Cu", "PBE", "PAW", "scalar")
    upf(tmp_path, "O.UPF", "O", "SLA PZ NOGX NOGC", "PAW", "scalar")
    with pytest.raises(AppFailed, match=r"O\.UPF of O was made with LDA, the run asks for PBE") as caught:
        choose(["Cu", "O"], "PBE", tmp_path, {"O": "O.UPF"})
    assert (caught.value.kind, caught.value.name) == ("contract", "MixedFunctionals")


def test_a_missing_pseudopotential_lists_what_is_there(tmp_path: Path) -> None:
    upf(tmp_path, "Al.UPF", "Al", "SLA PZ NOGX NOGC", "NC", "no")
    upf(tmp_path, "Cu.UPF", "Cu", "PBE", "PAW", "scalar")
    with pytest.raises(AppFailed, match=r"of Al there are: Al\.UPF \(LDA\); with PBE there are: Cu") as caught:
        choose(["Al"], "PBE", tmp_path, {})
    assert (caught.value.kind, caught.value.name) == ("contract", "NoPseudopotential")
    with pytest.raises(AppFailed, match="is one of Cu"):
        choose(["Al"], "PBE", tmp_path, {"Al": "Cu.UPF"})


@pytest.mark.parametrize("xc", ["PBEE", "B3LYPP", "foo"])
def test_a_misspelt_functional_is_refused_before_pwx_takes_a_part_of_it(pwx: str, run: Run, xc: str) -> None:
    # pw.x 6.7 takes "pbee" for exchange without correlation and converges to a wrong energy.
    with pytest.raises(AppFailed, match="is no functional that") as caught:
        ENGINE.calculator(silicon(), changed(CHEAP, xc=xc), run)
    assert (caught.value.kind, caught.value.name) == ("contract", "BadSettings")


def test_no_pwx_says_how_to_get_it(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("HPCAGENT_ESPRESSO", raising=False)
    with pytest.raises(AppFailed, match=r"PATH has no pw\.x.*quantum-espresso") as caught:
        ENGINE.calculator(silicon(), CHEAP, run)
    assert (caught.value.kind, caught.value.name) == ("infrastructure", "NoExecutable")
    with pytest.raises(AppFailed, match=r"'nowhere/pw\.x', from the setting `command`"):
        ENGINE.calculator(silicon(), changed(CHEAP, options={"command": "nowhere/pw.x"}), run)


# ---- the real pw.x


def test_forces_are_the_derivative_of_the_energy(pwx: str, run: Run) -> None:
    energies = {}
    for step in (-0.02, 0.0, 0.02):
        atoms = silicon()
        atoms.positions[1, 0] += 0.1 + step
        atoms.calc = ENGINE.calculator(atoms, changed(CHEAP, tolerance=1e-7), run)
        energies[step] = atoms.get_potential_energy()
        if step == 0.0:
            force = atoms.get_forces()[1, 0]
        atoms.calc.close()
    assert force == pytest.approx(-(energies[0.02] - energies[-0.02]) / 0.04, abs=0.02)
    assert force < -0.5


def test_what_was_computed_with_is_in_the_record(pwx: str, run: Run) -> None:
    atoms = silicon()
    atoms.calc = ENGINE.calculator(atoms, CHEAP, run)
    atoms.get_potential_energy()
    record = json.loads((run.workdir / "pseudopotentials.json").read_text())
    one = record["pseudopotentials"]["Si"]
    file = Path(PSEUDO_DIR) / one["file"]
    assert one["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    assert (one["functional"], one["chosen"]) == ("PBE", "found")
    assert record["ecutwfc_ry"] == pytest.approx(250 / RY)
    assert record["ecutrho_ry"] == pytest.approx(8 * 250 / RY, rel=0.5) and record["ecutrho_ry"] >= 8 * 250 / RY
    assert any("not named: Si" in note for note in atoms.calc.notes)
    assert any("below the" in note for note in atoms.calc.notes)
    assert "K_POINTS automatic\n2 2 2  0 0 0" in (run.workdir / "espresso.pwi").read_text()


def test_an_scf_that_does_not_converge_has_its_history(pwx: str, run: Run) -> None:
    atoms = silicon()
    atoms.calc = ENGINE.calculator(atoms, changed(CHEAP, max_scf=2), run)
    with pytest.raises(NotConverged, match="did not converge in 2 steps") as caught:
        atoms.get_potential_energy()
    history = caught.value.history
    assert len(history) == 2
    assert history[1].change < history[0].change
    # Four valence electrons of each atom, whose energy is some hundred eV whatever the pseudopotential.
    assert -400 < history[1].energy < -150


def test_a_repair_is_tried_and_named(pwx: str, run: Run) -> None:
    atoms = silicon()
    watch = Watch(ENGINE, atoms, changed(CHEAP, max_scf=3), run)
    results = watch.compute(atoms, ["energy"])
    assert [done.split(":")[0] for done in watch.repaired] == ["more_steps"]
    fresh = ENGINE.calculator(atoms, CHEAP, run)
    assert results["energy"] == pytest.approx(fresh.get_property("energy", atoms), abs=1e-4)


def test_the_gentle_repair_mixes_less_and_damps_long_waves_in_a_slab() -> None:
    slab = Atoms("Cu2", [[0, 0, 0], [0, 0, 2.0]], cell=[2.5, 2.5, 14], pbc=True)
    names, levels = zip(*ENGINE.repairs(Level("espresso", smearing=0.1)), strict=True)
    assert names == ("more_steps", "gentler_mixing", "more_smearing")
    assert (levels[0].max_scf, levels[1].mixing, levels[2].smearing) == (200, 0.3, 0.2)
    assert [name for name, _ in ENGINE.repairs(Level("espresso"))] == ["more_steps", "gentler_mixing"]
    copper = Pseudopotential(Path("Cu.UPF"), "Cu", "PBE", "PAW", "scalar", 11.0, 40.0, 160.0, "")
    for atoms, mode in ((slab, "local-TF"), (bulk("Cu"), None)):
        data, _ = input_data(atoms, levels[1], {"Cu": copper}, "PBE")
        assert (data["mixing_beta"], data.get("mixing_mode")) == (0.3, mode)


def test_an_odd_number_of_electrons_needs_smearing(pwx: str, run: Run) -> None:
    atoms = bulk("Cu", a=3.63)
    atoms.calc = ENGINE.calculator(atoms, Level("espresso", kpts=2, ecut=300.0), run)
    with pytest.raises(AppFailed, match="smearing is needed") as caught:
        atoms.get_potential_energy()
    assert (caught.value.kind, caught.value.name) == ("contract", "NeedsSmearing")
    assert "set smearing" in caught.value.repair


def test_two_ranks_give_the_energy_of_one(pwx: str, run: Run, tmp_path: Path) -> None:
    if shutil.which("mpirun") is None:
        pytest.skip("no mpirun; apt-get install openmpi-bin (tests/apt.txt)")
    (tmp_path / "two").mkdir()
    energies = []
    two = Run(
        workdir=tmp_path / "two",
        resources={"ranks_per_node": 2, "walltime_s": 300},
        site={"apps": {"espresso": {"launcher": "openmpi"}}},
    )
    for each in (run, two):
        atoms = silicon()
        atoms.calc = ENGINE.calculator(atoms, CHEAP, each)
        energies.append(atoms.get_potential_energy())
    assert energies[0] == pytest.approx(energies[1], abs=1e-4)
    assert re.search(r"running on\s+2 processors", (tmp_path / "two" / "espresso.pwo").read_text())


def test_ranks_that_do_not_know_each_other_are_refused(pwx: str, tmp_path: Path) -> None:
    # A launcher that starts one copy only, as that of another MPI starts many of one rank.
    site = {"apps": {"espresso": {"launcher": "wrong"}}, "launchers": {"wrong": ["env"]}}
    run = Run(workdir=tmp_path, resources={"ranks_per_node": 2, "walltime_s": 300}, site=site)
    atoms = silicon()
    atoms.calc = ENGINE.calculator(atoms, CHEAP, run)
    with pytest.raises(AppFailed, match="1 MPI rank") as caught:
        atoms.get_potential_energy()
    assert caught.value.name == "WrongRanks"


def test_the_density_is_used_again_and_the_energy_stays_that_of_a_fresh_start(pwx: str, run: Run) -> None:
    atoms = silicon()
    level = changed(CHEAP, tolerance=1e-6)
    first = ENGINE.calculator(atoms, level, run)
    atoms.calc = first
    atoms.get_forces()
    # From a structure of high symmetry to one of none: the k-points are others, so this one starts anew.
    atoms.rattle(0.01, seed=3)
    atoms.get_forces()
    assert "startingpot" not in (run.workdir / "espresso.pwi").read_text()
    atoms.rattle(0.001, seed=4)
    energy, forces, steps = atoms.get_potential_energy(), atoms.get_forces(), len(ENGINE.iterations(first))
    assert "startingpot" in (run.workdir / "espresso.pwi").read_text()
    atoms.calc = ENGINE.calculator(atoms, level, run)
    assert energy == pytest.approx(atoms.get_potential_energy(), abs=1e-4)
    assert forces == pytest.approx(atoms.get_forces(), abs=5e-3)
    assert steps < len(ENGINE.iterations(atoms.calc))
    # In another cell it starts anew.
    atoms.calc = first
    atoms.set_cell(atoms.cell * 1.02, scale_atoms=True)
    atoms.get_forces()
    assert "startingpot" not in (run.workdir / "espresso.pwi").read_text()


def test_wavefunctions_are_deleted_in_the_end_unless_they_are_to_be_kept(pwx: str, run: Run) -> None:
    for keep in (False, True):
        atoms = silicon()
        calculator = ENGINE.calculator(atoms, changed(CHEAP, options={"keep": keep}), run)
        calculator.get_property("energy", atoms)
        folder = calculator.scratch
        assert (folder / "pwscf.save" / "charge-density.dat").exists()
        calculator.close()
        assert folder.exists() is keep


def test_a_hydrogen_atom_in_a_box_has_its_known_energy_and_moment(pwx: str, run: Run) -> None:
    # PBE: -0.49999 hartree = -13.605 eV (Perdew, Burke, Ernzerhof, doi:10.1103/PhysRevLett.77.3865, give 0.4999 of
    # an exact 0.5); with a pseudopotential at this cutoff within 0.1 eV.
    atoms = Atoms("H", [[0, 0, 0]])
    atoms.calc = ENGINE.calculator(atoms, Level("espresso", ecut=350.0, magmom=1.0, tolerance=1e-4), run)
    assert atoms.get_potential_energy() == pytest.approx(-13.605, abs=0.1)
    assert atoms.calc.results["magmom"] == pytest.approx(1.0, abs=0.01)
    said = (run.workdir / "espresso.pwi").read_text()
    assert atoms.calc.results["magmoms"][0] > 0.3  # within a sphere around the nucleus
    assert "starting_magnetization(1) = 1.0" in re.sub(" +", " ", said)
    assert "K_POINTS gamma" in said and "tot_magnetization = 1" in re.sub(" +", " ", said)
    assert any("a box around the molecule" in note for note in atoms.calc.notes)


def test_a_moment_that_the_electrons_cannot_have_is_refused(pwx: str, run: Run) -> None:
    with pytest.raises(AppFailed, match="1 electrons cannot have a total moment of 2") as caught:
        ENGINE.calculator(Atoms("H", [[0, 0, 0]]), Level("espresso", magmom=2.0), run)
    assert caught.value.kind == "contract"


def test_it_is_stopped_at_the_runs_limit(pwx: str, tmp_path: Path) -> None:
    atoms = silicon()
    run = Run(workdir=tmp_path, resources={"walltime_s": 0.5})
    atoms.calc = ENGINE.calculator(atoms, Level("espresso", kpts=10, ecut=600.0), run)
    with pytest.raises(AppFailed) as caught:
        atoms.get_potential_energy()
    assert (caught.value.kind, caught.value.name) == ("infrastructure", "Walltime")


def test_a_wrong_keyword_is_named_in_pwxs_words(pwx: str, run: Run) -> None:
    atoms = silicon()
    level = changed(CHEAP, options={"keywords": {"system": {"nosymm": True}}})
    atoms.calc = ENGINE.calculator(atoms, level, run)
    with pytest.raises(AppFailed, match=r"nosymm|namelist") as caught:
        atoms.get_potential_energy()
    assert (caught.value.kind, caught.value.name) == ("contract", "BadSettings")
    with pytest.raises(AppFailed, match="did you mean 'nosym'") as caught:
        ENGINE.calculator(atoms, changed(CHEAP, options={"keywords": {"nosymm": True}}), run)
    assert caught.value.name == "BadSettings"


def test_a_keyword_is_handed_on(pwx: str, run: Run) -> None:
    atoms = silicon()
    atoms.calc = ENGINE.calculator(
        atoms, changed(CHEAP, options={"keywords": {"nosym": True, "ecutrho": 80}}), run
    )
    atoms.get_potential_energy()
    said = re.sub(" +", " ", (run.workdir / "espresso.pwi").read_text())
    assert "nosym = .true." in said and "ecutrho = 80" in said
