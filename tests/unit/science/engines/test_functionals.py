"""One name of a functional means the same in every engine, or is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from ase import Atoms
from ase.build import bulk, molecule

from hpcagent.apps.run import Run
from hpcagent.errors import AppFailed
from hpcagent.science.engines.base import Level
from hpcagent.science.engines.functionals import FUNCTIONALS, spelling
from hpcagent.science.engines.pyscf import ENGINE, gth

HARTREE = 27.211386245988


def energy(atoms: Atoms, **level) -> float:
    return ENGINE.calculator(
        atoms, Level("pyscf", tolerance=1e-7, **level), Run(workdir=Path())
    ).get_potential_energy(atoms)


def test_lda_has_a_correlation_in_pyscf():
    pytest.importorskip("pyscf")
    from pyscf import dft, gto

    atoms = molecule("H2O")
    parts = {
        "atom": list(zip(atoms.get_chemical_symbols(), atoms.positions, strict=True)),
        "basis": "sto-3g",
        "verbose": 0,
    }
    direct = {xc: dft.RKS(gto.M(**parts), xc=xc).kernel() * HARTREE for xc in ("lda,pw", "lda,vwn", "lda,")}
    found = energy(atoms, xc="LDA", basis="sto-3g")
    assert found == pytest.approx(direct["lda,pw"], abs=1e-4)
    # Another fit of the same electron gas; without correlation it would be 18 eV higher.
    assert found == pytest.approx(direct["lda,vwn"], abs=0.15)
    assert direct["lda,"] - found > 17


def test_helium_in_lda_is_that_of_the_tables():
    pytest.importorskip("pyscf")
    # NIST atomic reference data, LDA with VWN: -2.834836 hartree (S. Kotochigova et al., doi:10.18434/T4ZP4F).
    found = energy(Atoms("He"), xc="lda,vwn", basis="aug-cc-pv5z") / HARTREE
    assert found == pytest.approx(-2.834836, abs=2e-4)
    assert energy(Atoms("He"), xc="LDA", basis="aug-cc-pv5z") / HARTREE == pytest.approx(-2.834836, abs=2e-3)


def test_b3lyp_is_that_of_gaussian_not_the_one_with_vwn5():
    pytest.importorskip("pyscf")
    from pyscf import dft, gto

    mol = gto.M(atom="He", basis="def2-svp", verbose=0)
    parts = ".2*HF + .08*SLATER + .72*B88, .81*LYP + .19*{}"
    direct = {name: dft.RKS(mol, xc=parts.format(name)).kernel() * HARTREE for name in ("VWN_RPA", "VWN5")}
    found = energy(Atoms("He"), xc="B3LYP", basis="def2-svp")
    assert found == pytest.approx(direct["VWN_RPA"], abs=1e-5)
    assert abs(found - direct["VWN5"]) > 0.1
    assert spelling("b3lyp", "espresso")[0] == "b3lyp-v1r"


@pytest.mark.parametrize("xc", ["b88", "lda_x", "slater", "gga_c_lyp"])
def test_half_a_functional_is_refused(xc):
    pytest.importorskip("pyscf")
    with pytest.raises(AppFailed, match="only; name both"):
        energy(Atoms("He"), xc=xc, basis="sto-3g")


def test_half_a_functional_is_taken_where_the_comma_says_so():
    pytest.importorskip("pyscf")
    # Slater's exchange alone: -2.7236 hartree at the basis-set limit, and the engine says that no table has it.
    atoms = Atoms("He")
    made = ENGINE.calculator(atoms, Level("pyscf", xc="lda,", basis="aug-cc-pv5z"), Run(workdir=Path()))
    assert made.get_potential_energy(atoms) / HARTREE == pytest.approx(-2.7236, abs=1e-3)
    assert "in no table" in made.notes[0]


def test_a_functional_that_an_engine_has_not_got_is_refused_with_what_it_has():
    with pytest.raises(AppFailed, match="engine 'gpaw' has no PBEsol; it has LDA, PBE"):
        spelling("pbesol", "gpaw")
    assert {spelling("pbe", engine)[0].lower() for engine in ("gpaw", "espresso", "vasp")} == {"pbe"}


@pytest.mark.parametrize("name", [n for n, of in FUNCTIONALS.items() if "pyscf" in of])
def test_the_table_is_known_to_pyscf(name):
    libxc = pytest.importorskip("pyscf.dft.libxc")
    libxc.parse_xc(FUNCTIONALS[name]["pyscf"])


def test_the_table_is_known_to_ase_for_vasp():
    from ase.calculators.vasp.create_input import GenerateVaspInput

    assert {of["vasp"] for of in FUNCTIONALS.values() if "vasp" in of} <= set(GenerateVaspInput.xc_defaults)


@pytest.mark.parametrize(
    ("xc", "pseudo", "said"),
    [
        ("LDA", "gth-pade", ()),
        ("", "gth-pbe", ()),
        ("PBEsol", "gth-pbesol", ()),
        ("RPBE", "gth-pbe", ("RPBE with GTH pseudopotentials made with PBE",)),
    ],
)
def test_a_crystal_takes_the_pseudopotentials_of_its_functional_or_says_that_it_does_not(xc, pseudo, said):
    pytest.importorskip("pyscf")
    assert gth(Level("pyscf", xc=xc)) == (pseudo, said)
    made = ENGINE.calculator(bulk("Si"), Level("pyscf", xc=xc), Run(workdir=Path()))
    assert made.notes == said


def test_a_crystal_with_a_functional_of_no_table_is_refused_unless_its_pseudopotentials_are_named():
    with pytest.raises(AppFailed, match="which GTH pseudopotentials belong to it"):
        gth(Level("pyscf", xc="wb97x"))
    assert gth(Level("pyscf", xc="wb97x", options={"keywords": {"pseudo": "gth-pbe"}})) == ("gth-pbe", ())


# ---- keywords


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"xc": "b3lyp"}, "'xc' .use xc"),
        ({"max_cycle": 3}, "'max_cycle' .use max_scf"),
    ],
)
def test_keywords_of_pyscf_cannot_go_past_a_parameter(keywords, words):
    pytest.importorskip("pyscf")
    with pytest.raises(AppFailed, match=words):
        energy(Atoms("He"), basis="sto-3g", options={"keywords": keywords})


@pytest.mark.parametrize("keywords", [{"ecutwfc": 10}, {"system": {"input_dft": "pz"}}, {"input_DFT": "pz"}])
def test_keywords_of_pwx_cannot_go_past_a_parameter(keywords, tmp_path):
    import sys

    from hpcagent.science.engines.espresso import ENGINE as ESPRESSO

    folder = tmp_path / "pseudo"
    folder.mkdir()
    (folder / "Si.UPF").write_text('<PP_HEADER element="Si" functional="PBE" z_valence="4"/>')
    options = {"keywords": keywords, "pseudo_dir": str(folder), "command": sys.executable}
    with pytest.raises(AppFailed, match=r"use (ecut|xc)\)"):
        ESPRESSO.calculator(bulk("Si"), Level("espresso", options=options), Run(workdir=tmp_path))
