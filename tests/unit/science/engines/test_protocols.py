"""K-points and smearing where the level of theory leaves them open."""

from __future__ import annotations

from pathlib import Path

import pytest
from ase import Atoms
from ase.build import bulk, fcc111, graphene, molecule

from hpcagent.errors import AppFailed
from hpcagent.science.engines.base import Level
from hpcagent.science.engines.mesh import vacuum_along
from hpcagent.science.engines.protocols import sampled, settled
from hpcagent.science.engines.registry import engine


def level(name: str = "espresso", **changes: object) -> Level:
    return Level(name, **changes)  # type: ignore[arg-type]


def settle(atoms: Atoms, name: str = "espresso", **changes: object) -> tuple[Level, tuple[str, ...]]:
    return settled(level(name, **changes), atoms, engine(name))


@pytest.mark.parametrize(
    ("protocol", "mesh"), [("fast", "8x8x8"), ("moderate", "14x14x14"), ("precise", "20x20x20")]
)
def test_a_crystal_is_sampled_by_the_distance_of_its_protocol_and_that_is_said(protocol: str, mesh: str) -> None:
    # |b| = 2 pi sqrt(3) / a = 1.989 1/angstrom for a = 5.47: over 0.25, 0.15 and 0.10 it is 7.96, 13.3 and 19.9.
    found, notes = settle(bulk("Si", a=5.47), protocol=protocol)
    assert found.mesh == mesh
    assert any(f"k-points {mesh}" in note and f"protocol {protocol}" in note for note in notes)
    # 0.01 Ry, as in the protocols that the codes share.
    assert found.smearing == pytest.approx(0.136, abs=1e-3)
    assert any("smeared by 0.136 eV (Marzari-Vanderbilt; protocol" in note for note in notes)


@pytest.mark.parametrize(
    ("name", "means"),
    [("vasp", "a Gaussian of 0.01 eV"), ("pyscf", "fixed occupations"), ("tblite", "its own 300 K")],
)
def test_a_crystal_of_an_engine_without_cold_smearing_has_none_and_that_is_said(name: str, means: str) -> None:
    given = {} if name == "tblite" else {"mesh": "8x8x8"}
    found, notes = settle(bulk("Al"), name, **given)
    assert found.smearing == 0
    assert sum(f"none, which in {name} is {means}; right for an insulator, a metal needs" in n for n in notes) == 1
    assert not any("smearing" in n for n in settle(bulk("Al"), name, smearing=0.2, **given)[1])
    assert not any("smearing" in n for n in settle(molecule("H2O"), name)[1])


def test_a_distance_that_is_given_is_the_largest_one_2_pi_included() -> None:
    found, notes = settle(bulk("Si", a=5.47), kspacing=0.4, smearing=0.0)
    assert found.mesh == "5x5x5" and found.smearing == 0
    assert notes == ("k-points 5x5x5: at most 0.4 1/angstrom apart, 2 pi included",)
    # c of hcp magnesium is longer: fewer points. |b1| = 4 pi / (sqrt(3) 3.21) = 2.260, |b3| = 2 pi / 5.21 = 1.206.
    assert sampled(bulk("Mg", "hcp", a=3.21, c=5.21), level(kspacing=0.15)) == (16, 16, 9)


def test_molecules_keep_gamma_and_no_smearing_in_silence() -> None:
    for atoms in (molecule("H2O"), molecule("H2O", vacuum=6.0)):
        found, notes = settle(atoms)
        assert sampled(atoms, found) == (1, 1, 1) and found.smearing == 0 and notes == ()
    boxed = molecule("H2O", vacuum=6.0, pbc=True)
    found, _ = settle(boxed)
    assert (found.mesh, found.smearing) == ("1x1x1", 0)


@pytest.mark.parametrize("periodic", [True, False])
def test_a_slab_has_one_point_along_its_vacuum(periodic: bool) -> None:
    slab = fcc111("Cu", (1, 1, 4), vacuum=8.0, periodic=periodic)
    found, notes = settle(slab)
    # |b| = 4 pi / (sqrt(3) 2.553) = 2.842 1/angstrom.
    assert found.mesh == "19x19x1"
    assert any("one along c, where there is vacuum" in note for note in notes) == periodic
    assert settle(slab, kpts=12)[0].mesh == "12x12x1"


def test_layers_and_loose_crystals_are_no_vacuum() -> None:
    graphite = graphene(vacuum=3.35 / 2)
    graphite.pbc = True
    for atoms in (graphite, bulk("Cs", "bcc", a=6.2), bulk("Xe", "fcc", a=6.3), bulk("Po", "sc", a=3.35)):
        assert vacuum_along(atoms) == (False, False, False)


def test_a_mesh_is_taken_as_it_is() -> None:
    found, notes = settle(bulk("Si"), mesh="3x4x5", smearing=0.0)
    assert sampled(bulk("Si"), found) == (3, 4, 5) and notes == ()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kpts": 4, "kspacing": 0.2}, "kpts=4 and kspacing=0.2 both say"),
        ({"mesh": "4x4"}, "no mesh of k-points"),
        ({"mesh": "0x4x4"}, "three numbers from 1"),
        ({"smearing": -0.5}, "no width"),
    ],
)
def test_what_means_nothing_is_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(AppFailed, match=words) as caught:
        settle(bulk("Si"), **changes)
    assert (caught.value.kind, caught.value.name) == ("contract", "BadSettings")


def test_an_engine_without_a_converged_default_asks_for_k_points() -> None:
    with pytest.raises(AppFailed, match="no default for the k-points") as caught:
        settle(bulk("He", "fcc", a=2.6), "pyscf")
    assert (caught.value.kind, caught.value.name) == ("contract", "NeedsKpoints")
    assert settle(bulk("He", "fcc", a=2.6), "pyscf", kpts=2)[0].mesh == "2x2x2"
    assert settle(molecule("H2"), "pyscf")[0].smearing == 0


def test_engines_without_k_points_are_left_as_they_are() -> None:
    for name in ("emt", "lj"):
        found, notes = settle(bulk("Cu"), name)
        assert found == level(name) and notes == ()


def test_a_strain_series_keeps_the_mesh_of_its_first_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import hpcagent as ha

    # 2 pi sqrt(3) / 5.47 / 0.249 = 7.99: stretched it would be 8, squeezed 9 points.
    with ha.open_site("threads", run_dir=tmp_path):
        squeezed = ha.apps.k_mesh(bulk("Si", a=5.40), engine="espresso", kspacing=0.249).result()
        found = ha.apps.k_mesh(bulk("Si", a=5.47), engine="espresso", kspacing=0.249).result()
        denser = ha.apps.k_mesh(bulk("Si", a=5.47), engine="espresso", kspacing=0.249, denser=1.5).result()
    assert [found[n] for n in ("n1", "n2", "n3")] == [8, 8, 8]
    assert squeezed["n1"] == 9 and denser["n1"] == 12


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kspacing": 1e-4}, r"kspacing=0\.0001 1/angstrom makes a mesh of \d+x\d+x\d+"),
        ({"kspacing": 5e-324}, r"kspacing=\S+ 1/angstrom makes a mesh"),
        ({"kpts": 1001}, "kpts=1001 makes a mesh of 1001x1001x1001"),
    ],
)
def test_a_mesh_that_is_too_dense_is_refused_by_what_was_given(changes: dict[str, object], words: str) -> None:
    with pytest.raises(AppFailed, match=words) as caught:
        settle(bulk("Si"), **changes)
    assert "mesh=" not in caught.value.message and caught.value.name == "BadSettings"
