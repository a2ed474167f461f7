"""What may stand in place of a run: structures and files."""

from __future__ import annotations

import pytest
from ase import Atoms
from ase.build import bulk

import hpcagent as ha
from hpcagent.apps.structures import given, structure_of, total_charge

DUMP = """ITEM: TIMESTEP
{step}
ITEM: NUMBER OF ATOMS
2
ITEM: BOX BOUNDS pp pp pp
0 20
0 20
0 20
ITEM: ATOMS id type x y z
1 1 {x} 1 1
2 1 5 5 5
"""


def test_a_structure_is_known_by_what_is_in_it(tmp_path):
    atoms = bulk("Cu", cubic=True)
    atoms.write(tmp_path / "a.xyz")
    atoms.write(tmp_path / "b.xyz")
    assert given(tmp_path / "a.xyz").identity == given(tmp_path / "b.xyz").identity
    assert structure_of(given(atoms).fields).get_chemical_formula() == "Cu4"
    atoms.positions[0] += 0.1
    assert given(atoms).identity != given(tmp_path / "a.xyz").identity


def test_a_trajectory_that_another_program_has_left_is_analysed_by_its_path(tmp_path):
    frames = [DUMP.format(step=10 * i, x=1 + 0.1 * i) for i in range(41)]
    path = tmp_path / "mine.lammpstrj"
    path.write_text("".join(frames[:40]) + frames[40][:60])  # cut in the last frame
    with ha.open_site("threads", run_dir=tmp_path / "site"):
        result = ha.apps.msd(path, timestep=0.001, units="metal").result()
    assert result.ok, result.failure
    # Two atoms, 0.1 angstrom in 0.01 ps apart: half of it each, without the drift of their centre: (5 t)^2.
    assert result["exponent"] == pytest.approx(2.0, abs=1e-6)
    assert any("not complete" in note for note in result.notes)


@pytest.mark.parametrize(
    ("name", "words"), [("none.lammpstrj", "no such file"), ("what.dat", "does not follow from its name")]
)
def test_a_path_that_is_no_run_is_refused(tmp_path, name, words):
    (tmp_path / "what.dat").write_text("1 2 3\n")
    with ha.open_site("threads", run_dir=tmp_path / "site"), pytest.raises(ha.BadInput, match=words):
        ha.apps.rdf(tmp_path / name)


def test_a_structure_without_atoms_is_refused():
    with pytest.raises(ha.BadInput, match="has no atoms"):
        given(Atoms())


def test_the_charge_of_a_structure_outlives_files_and_other_apps(tmp_path):
    atoms = Atoms("Mg", cell=[8, 8, 8], info={"charge": 2})
    atoms.write(tmp_path / "mg.extxyz")
    assert total_charge(structure_of(given(tmp_path / "mg.extxyz").fields)) == 2
    with ha.open_site("threads", run_dir=tmp_path / "site"):
        strained = ha.apps.deform(tmp_path / "mg.extxyz", e1=0.01)
        for structure in (atoms, tmp_path / "mg.extxyz", strained):
            refused = ha.apps.dft_energy(structure, engine="emt").result()
            assert refused.failure is not None and "charge of +2" in refused.failure.message
            result = ha.apps.dft_energy(structure, engine="tblite").result()
            # What tblite gives by hand with charge=2; the neutral atom has -12.68.
            assert result["energy"] == pytest.approx(35.81, abs=0.01)
