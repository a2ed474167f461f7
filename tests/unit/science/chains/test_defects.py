"""Surfaces, vacancies and foreign atoms by EMT, against the same sums done by hand with ASE."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, fcc100, fcc111
from ase.calculators.emt import EMT
from ase.filters import FrechetCellFilter
from ase.optimize import BFGS

import hpcagent as ha

pytest.importorskip("spglib")

TIGHT = {"engine": "emt", "fmax": 0.001}


@pytest.fixture(autouse=True)
def here(tmp_path):
    """The folder of an open site."""
    with ha.open_site("threads", run_dir=tmp_path):
        yield tmp_path


def relaxed(atoms: Atoms, cell: bool = False) -> tuple[Atoms, float]:
    atoms.calc = EMT()
    with BFGS(FrechetCellFilter(atoms) if cell else atoms, logfile=None) as steps:
        assert steps.run(fmax=0.001, steps=300)
    return atoms, float(atoms.get_potential_energy())


def ok(result):
    assert result.ok, result.failure
    return result


def inner(folder: Path) -> Counter[str]:
    return Counter(json.loads(f.read_text())["app"] for f in folder.glob("work/*/manifest.json"))


@pytest.mark.parametrize(("miller", "made"), [((1, 1, 1), fcc111), ((1, 0, 0), fcc100)])
def test_the_energy_of_a_copper_face_is_that_of_ases_own_slabs(miller, made):
    h, k, l = miller  # noqa: E741
    result = ok(ha.apps.surface_energy(bulk("Cu"), h=h, k=k, l=l, layers=7, **TIGHT).result())
    crystal, inside = relaxed(bulk("Cu"), cell=True)
    slab, total = relaxed(made("Cu", (1, 1, 11), a=float(crystal.cell.lengths()[0]) * 2**0.5, vacuum=8.0))
    area = np.linalg.norm(np.cross(slab.cell[0], slab.cell[1]))
    by_hand = (total - 11 * inside) / (2 * area)
    # EMT's forces end within some layers: line and crystal agree.
    assert result["surface_energy_ev"] == pytest.approx(by_hand, rel=2e-4)
    assert result["surface_energy"] == pytest.approx(by_hand * 16.02176634, rel=2e-4)
    assert result["surface_energy_of_bulk"] == pytest.approx(result["surface_energy"], rel=2e-4)
    assert (result["n_layers"], result["n_slabs"], result["symmetric"]) == (11, 3, 1)
    with (Path(result.workdir) / result.artifacts["slabs"]).open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["n_layers"]) for row in rows] == [7, 9, 11]
    assert float(rows[-1]["energy_ev"]) == pytest.approx(total, abs=1e-4)


def test_close_packed_faces_cost_least_and_share_their_crystal(here):
    faces = []
    for face in ((1, 1, 1), (1, 0, 0), (1, 1, 0)):
        miller = dict(zip("hkl", face, strict=True))
        found = ok(ha.apps.surface_energy(bulk("Cu"), **miller, thicknesses=2, engine="emt").result())
        faces.append(found["surface_energy"])
    assert faces == sorted(faces)
    assert faces[0] > 0.8  # J/m^2: EMT is low, experiment about 1.8 (Tyson and Miller 1977)
    # One crystal and two slabs a face.
    assert inner(here)["dft_relax"] == 1 + 3 * 2


def test_the_slope_over_thickness_is_the_energy_of_an_alloys_inside():
    cu3au = Atoms(
        "AuCu3",
        scaled_positions=[(0, 0, 0), (0.5, 0.5, 0), (0.5, 0, 0.5), (0, 0.5, 0.5)],
        cell=[3.75] * 3,
        pbc=True,
    )
    result = ok(ha.apps.surface_energy(cu3au, h=1, k=0, l=0, layers=10, step=4, **TIGHT).result())
    assert result["bulk_energy_fit"] == pytest.approx(result["bulk_energy"], abs=2e-5)
    assert result["symmetric"] == 0 and any("mean" in note for note in result.notes)
    assert any("polar" in note for note in result.notes)


def test_a_slab_of_another_composition_is_refused():
    nial = bulk("NiAl", "cesiumchloride", a=2.88)
    failure = (
        ha.apps.surface_energy(nial, h=1, k=0, l=0, symmetric="yes", relax_bulk="no", engine="emt")
        .result()
        .failure
    )
    assert failure.name == "NotStoichiometric" and "chemical potentials" in failure.message
    failure = ha.apps.surface_energy(nial, thicknesses=1, engine="emt").result().failure
    assert failure.name == "TooFewRuns"


def test_a_vacancy_in_copper_costs_what_emt_says():
    result = ok(ha.apps.vacancy(bulk("Cu", cubic=True), repeat=2, sizes=2, **TIGHT).result())
    crystal, inside = relaxed(bulk("Cu", cubic=True), cell=True)
    energies = []
    for repeat in (2, 3):
        cell = crystal * (repeat, repeat, repeat)
        n = len(cell)
        del cell[0]
        energies.append(relaxed(cell)[1] - (n - 1) * inside / 4)
    assert result["formation_energy"] == pytest.approx(energies[1], abs=1e-3)
    assert result["size_change"] == pytest.approx(energies[1] - energies[0], abs=1e-3)
    # Of 108 atoms, from elsewhere: 1.225 eV relaxed.
    assert result["formation_energy"] == pytest.approx(1.225, abs=0.01)
    assert result["extrapolated"] == pytest.approx((108 * energies[1] - 32 * energies[0]) / 76, abs=2e-3)
    assert result["relaxation_energy"] > 0
    assert (result["n_atoms"], result["n_sites"]) == (108, 1)


def test_gold_in_copper_has_the_energy_of_the_four_terms():
    whole = {"element": "Cu", "replacement": "Au", "repeat": 2, "sizes": 1, **TIGHT}
    result = ok(ha.apps.substitution(bulk("Cu", cubic=True), **whole).result())
    copper, e_cu = relaxed(bulk("Cu", cubic=True), cell=True)
    e_au = relaxed(bulk("Au"), cell=True)[1]
    cell = copper * (2, 2, 2)
    cell.symbols[0] = "Au"
    by_hand = relaxed(cell)[1] - 32 * e_cu / 4 + e_cu / 4 - e_au
    assert result["formation_energy"] == pytest.approx(by_hand, abs=1e-3)
    richer = ok(ha.apps.substitution(bulk("Cu", cubic=True), mu_added=-0.3, mu_removed=0.1, **whole).result())
    assert richer["formation_energy"] - result["formation_energy"] == pytest.approx(0.4, abs=1e-9)
    assert richer["energy_added"] == pytest.approx(e_au, abs=1e-4)


def test_distinct_atoms_of_a_compound_have_their_own_references(here):
    # L1_2: gold is on one kind of site, copper on another.
    cu3au = Atoms(
        "AuCu3",
        scaled_positions=[(0, 0, 0), (0.5, 0.5, 0), (0.5, 0, 0.5), (0, 0.5, 0.5)],
        cell=[3.75] * 3,
        pbc=True,
    )
    found = {
        element: ok(ha.apps.vacancy(cu3au, element=element, sizes=1, engine="emt").result())
        for element in ("Cu", "Au")
    }
    for element, result in found.items():
        assert result["n_sites"] == 1
        assert result["energy_removed"] == pytest.approx(relaxed(bulk(element), cell=True)[1], abs=1e-3)
    # The compound is relaxed once, and one whole supercell serves both.
    assert inner(here)["dft_energy"] == 1
    assert inner(here)["dft_relax"] == 1 + 2 + 2


@pytest.mark.parametrize(
    ("app", "params"),
    [
        ("vacancy", {"element": "Ag"}),
        ("vacancy", {"site": 1}),
        ("substitution", {"replacement": "Qq"}),
    ],
)
def test_an_atom_that_is_not_there_is_refused(app, params):
    failure = getattr(ha.apps, app)(bulk("Cu"), engine="emt", **params).result().failure
    assert failure.name == "NoSuchAtom"


@pytest.mark.parametrize("app", ["vacancy", "substitution", "surface_energy"])
def test_a_charge_is_refused_for_every_cell_would_bear_it(app):
    charged = bulk("Cu", cubic=True)
    charged.info["charge"] = 1
    for structure, params in ((charged, {"engine": "emt"}), (bulk("Cu"), {"engine": "tblite", "charge": 1})):
        failure = getattr(ha.apps, app)(structure, **params).result().failure
        assert failure.name == "Charged" and "+1" in failure.message


def test_a_campaign_of_a_chain_that_takes_a_structure_is_refused_with_the_one_that_builds_it():
    with pytest.raises(ha.BadInput, match=r"takes structure as input.*crystal_substitution"):
        ha.Campaign(
            ha.find_app("substitution"),
            ha.minimize("formation_energy"),
            space={"replacement": {"choices": ["Au", "Ag"]}},
        )
    with pytest.raises(ha.BadInput, match="write a chain"):
        ha.Sweep(ha.find_app("elastic"), {"fmax": {"choices": [0.1, 0.2]}})


def test_a_named_crystal_has_the_energies_of_the_one_that_is_given(here):
    for app, cell, params in (
        ("vacancy", bulk("Cu", cubic=True), {"sizes": 1}),
        ("substitution", bulk("Cu", cubic=True), {"sizes": 1, "replacement": "Au"}),
        ("surface_energy", bulk("Cu"), {"thicknesses": 2}),
    ):
        given = ok(getattr(ha.apps, app)(cell, engine="emt", **params).result())
        named = ok(getattr(ha.apps, f"crystal_{app}")(name="Cu", engine="emt", **params).result())
        assert named.metrics == pytest.approx(given.metrics, abs=1e-6)


def test_a_face_of_high_indices_gets_planes_by_their_distance_and_thin_slabs_are_doubted():
    face = {"h": 3, "k": 2, "l": 1, "engine": "emt"}
    result = ok(ha.apps.surface_energy(bulk("Pd"), **face).result())
    # Planes are 0.52 angstrom apart. With 30 of them and more: 0.827 J/m^2 by the crystal's energy, too.
    assert result["n_layers"] >= 30 and result["surface_energy"] == pytest.approx(0.827, abs=0.002)
    assert not any("line" in note for note in result.notes)
    thin = ok(ha.apps.surface_energy(bulk("Pd"), layers=6, step=2, **face).result())
    assert thin["surface_energy"] > 0.88 and thin["fit_rms"] > 20
    assert any("off the crystal's" in note for note in thin.notes)
    assert any("meV off a line" in note for note in thin.notes)


def test_what_is_held_and_what_is_small_is_refused_or_said():
    failure = ha.apps.cut_slab(bulk("Cu"), layers=3, fixed_layers=9).result().failure
    assert failure.name == "TooManyHeld"
    small = ok(ha.apps.vacancy(bulk("Cu", cubic=True), repeat=1, sizes=1, engine="emt").result())
    assert any("(4 atoms) the defect is 3.5" in note for note in small.notes)
