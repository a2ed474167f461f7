"""A catalyst is looked up, computed only where nobody has, stored, and written down."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

import hpcagent as ha
from hpcagent.errors import AppFailed, BadInput, NoSite, NotPermitted
from hpcagent.materials import catalyst as catalyst_module
from hpcagent.materials import run_catalyst
from hpcagent.materials.catalyst_plan import _with_reference
from hpcagent.resources import Resource, Resources
from hpcagent.resources.record import CATALYST_DB, LAB_NOTEBOOK

pytest.importorskip("ase")

# From the free atom, so that EMT has something below the threshold.
HOW = {"engine": "emt", "relax": "none", "layers": 2, "site": "fcc", "reference": "O"}
SLAB = {"engine": "emt", "relax": "none", "site": "fcc", "reference": "O"}


def opened(folder, role="executor") -> Resources:
    return Resources.open(folder / "shared", caller="bot", role=role)


@pytest.fixture
def site(tmp_path):
    with ha.open_site("threads", run_dir=tmp_path / "runs") as site:
        yield site


def runs_in(folder) -> int:
    """Runs that were computed: folders of them."""
    work = folder / "runs" / "work"
    return sum(1 for _ in work.glob("*-*-*")) if work.is_dir() else 0


def by_hand(metal: str, height: float) -> float:
    """E(slab + O) - E(slab) - E(O) by EMT, in eV: the same geometry built with ASE alone (runs write 8 digits)."""
    from ase import Atoms
    from ase.build import add_adsorbate, fcc111
    from ase.calculators.emt import EMT

    clean = fcc111(metal, (1, 1, 2), vacuum=6.0)
    both = clean.copy()
    add_adsorbate(both, "O", height, "fcc")
    energies = []
    for atoms in (both, clean, Atoms("O")):
        atoms.calc = EMT()
        energies.append(atoms.get_potential_energy())
    return energies[0] - energies[1] - energies[2]


def test_it_is_computed_stored_written_down_and_told_once_and_then_found(tmp_path, site):
    told = []
    resources = opened(tmp_path)
    first = run_catalyst(resources, "Pt", "O", on_event=told.append, **HOW)
    assert not first.found
    stored = resources.objects().get(first.result_uri.removeprefix("dft_results/"))
    energy = by_hand("Pt", stored["metrics"]["height"])
    assert first.adsorption_energy == pytest.approx(energy, abs=1e-6) and energy < -1.2
    assert stored["metrics"]["adsorption_energy"] == first.adsorption_energy
    assert stored["units"]["adsorption_energy"] == "eV" and stored["versions"]["ase"]
    (row,) = resources.database().query({"metal": "Pt", "support": "none", "adsorbate": "O"})
    assert (row["adsorption_energy"], row["reference"]) == (first.adsorption_energy, first.result_uri)
    assert row["surface_area"] is None, "a slab has none"
    (entry,) = resources.notebook().entries()
    assert (
        entry["output_uri"] == first.result_uri and entry["experiment_id"] == row.run_id == stored["experiment_id"]
    )
    assert {k: entry["inputs"][k] for k in ("catalyst", "adsorbate")} == {"catalyst": "Pt", "adsorbate": "O"}
    assert told == [first.event]
    assert (first.event.catalyst, first.event.adsorption_energy) == ("Pt", first.adsorption_energy)
    events = [e for e in resources.history("catalyst_db") if e["event"] == "new_promising_catalyst"]
    assert [(e["catalyst"], e["result_uri"], e["adsorption_energy_unit"]) for e in events] == [
        ("Pt", first.result_uri, "eV")
    ]

    computed = runs_in(tmp_path)
    again = run_catalyst(resources, "Pt", "O", on_event=told.append, **HOW)
    assert again.found and again.row == row and again.adsorption_energy == first.adsorption_energy
    assert runs_in(tmp_path) == computed and len(told) == 1 and resources.notebook().verify() == 1


def test_what_was_found_is_written_down_where_that_is_asked_for(tmp_path, site):
    resources = opened(tmp_path)
    first = run_catalyst(resources, "Cu", "O", **HOW)
    again = run_catalyst(resources, "Cu", "O", note_found=True, **HOW)
    assert again.entry["found"] is True and again.entry["output_uri"] == first.result_uri
    assert resources.notebook().verify() == 2


def test_a_found_result_needs_no_site_and_a_new_one_does(tmp_path):
    resources = opened(tmp_path)
    with pytest.raises(NoSite, match="have to be computed"):
        run_catalyst(resources, "Cu", "O", **HOW)
    with ha.open_site("threads", run_dir=tmp_path / "runs"):
        run_catalyst(resources, "Cu", "O", **HOW)
    assert run_catalyst(opened(tmp_path, "reader"), "Cu", "O", **HOW).found


def test_another_method_is_another_result(tmp_path, site):
    resources = opened(tmp_path)
    three = run_catalyst(resources, "Cu", "O", **HOW)
    top = run_catalyst(resources, "Cu", "O", **{**HOW, "site": "ontop"})
    assert not top.found and top.result_uri != three.result_uri and resources.database().query().total == 2
    any_of = run_catalyst(resources, "Cu", "O", accept="any_method", **{**HOW, "layers": 3})
    assert any_of.found and any_of.row.id == three.row.id, "the one of this site"
    assert "2 rows of Cu and O" in any_of.notes[0] and any_of.notes[1:] == three.notes
    assert f"{min(three.adsorption_energy, top.adsorption_energy):.3f}" in any_of.notes[0]


def test_energies_of_other_references_and_places_are_rows_that_tell_them_apart(tmp_path, site):
    resources = opened(tmp_path)
    atom = run_catalyst(resources, "Cu", "O", **HOW)
    plain = {name: value for name, value in HOW.items() if name != "reference"}
    half = run_catalyst(resources, "Cu", "O", **plain)
    said = ("energy_reference", "facet", "site", "relax")
    assert [atom.row[name] for name in said] == ["1 O", "fcc111", "fcc", "none"]
    assert [half.row[name] for name in said] == ["0.5 O2", "fcc111", "fcc", "none"]
    # EMT: from half of O2 it is weaker by half of what binds the molecule; nothing is promising there.
    assert half.adsorption_energy > -1.2 > atom.adsorption_energy and half.event is None
    params = resources.objects().get(half.result_uri.removeprefix("dft_results/"))["parameters"]
    assert (params["reference"], params["share"], params["reference_magmom"]) == ("O2", 0.5, 1.0)
    asked = {**plain, "facet": "fcc100", "site": "ontop", "layers": 5}
    other = run_catalyst(resources, "Cu", "O", accept="any_method", **asked)
    assert other.row.id == half.row.id
    assert other.notes[1:3] == (
        "facet: asked for fcc100, the row has fcc111",
        "site: asked for ontop, the row has fcc",
    )
    assert other.notes[3:] == half.notes


def test_what_was_said_of_a_number_is_said_again_where_it_is_found(tmp_path, site):
    resources = opened(tmp_path)
    how = {"engine": "emt", "layers": 2, "fixed_layers": 1, "max_steps": 2, "fmax": 1.0}
    first = run_catalyst(resources, "Cu", "O", **how)
    assert any("binds too strongly" in note for note in first.notes)
    assert any("no DFT" in note for note in first.notes)
    assert any("site ontop" in note and "bind more strongly" in note for note in first.notes)
    again = run_catalyst(resources, "Cu", "O", **how)
    assert again.found and again.notes == first.notes
    run_catalyst(resources, "Cu", "O", **how, site="fcc")
    either = run_catalyst(resources, "Cu", "O", accept="any_method", **how)
    assert either.row.id == first.row.id and "2 rows of Cu and O" in either.notes[0]


def test_what_would_fail_without_k_points_is_refused_before_anything_runs(tmp_path):
    resources = opened(tmp_path)
    with pytest.raises(BadInput, match="give kspacing"):
        run_catalyst(resources, "Cu", "O")
    assert "lab_notebook" not in resources.provisioned


def test_a_table_from_before_these_columns_has_them_in_the_method(tmp_path, site):
    plain = CATALYST_DB.model_dump()
    names = ("energy_reference", "facet", "site", "relax")
    plain["content"]["fields"] = [f for f in plain["content"]["fields"] if f["name"] not in names]
    old = Resources.open(tmp_path / "shared", caller="bot", role="executor", define=[Resource(**plain)])
    old.database()
    found = run_catalyst(opened(tmp_path), "Cu", "O", **HOW)
    assert found.row["method"].endswith("; energy_reference 1 O; facet fcc111; site fcc; relax none")


@pytest.mark.parametrize(
    ("adsorbate", "more", "expected"),
    [
        ("H", {}, {"reference": "H2", "share": 0.5}),
        ("N", {"layers": 2}, {"reference": "N2", "share": 0.5, "layers": 2}),
        ("CO", {}, {}),
        ("C", {}, {}),
        ("O", {"share": 1.0}, {"share": 1.0}),
        ("O", {"reference": "H2O"}, {"reference": "H2O"}),
    ],
)
def test_the_reference_is_half_a_molecule_where_none_is_given(adsorbate, more, expected):
    assert _with_reference(adsorbate, more) == expected


def test_a_value_from_a_paper_will_do_where_any_method_does(tmp_path):
    paper = {"metal": "Cu", "support": "ZnO", "adsorbate": "CO2", "adsorption_energy": -0.4, "method": "TPD"}
    planner = opened(tmp_path, "planner")
    planner.database().add(paper | {"reference": "doi:10.0000/example"})
    from ase.build import fcc111

    slab = fcc111("Cu", (1, 1, 2), vacuum=6.0)
    found = run_catalyst(planner, slab, "CO2", catalyst="Cu-ZnO", accept="any_method", **SLAB)
    assert found.found and (found.adsorption_energy, found.result_uri) == (-0.4, "doi:10.0000/example")
    assert "energy_reference: asked for 1 O, the row does not say" in found.notes
    with pytest.raises(NoSite):
        run_catalyst(planner, slab, "CO2", catalyst="Cu-ZnO", **SLAB)


def test_a_slab_of_ones_own_has_the_name_that_is_given(tmp_path, site):
    from ase.build import fcc111

    slab = fcc111("Pt", (1, 1, 2), vacuum=6.0)
    resources = opened(tmp_path)
    named = run_catalyst(resources, slab, "O", catalyst="Pt-Al2O3", **SLAB)
    assert (named.row["metal"], named.row["support"]) == ("Pt", "Al2O3") and "PtAl2O3_O_run" in named.result_uri
    stored = resources.objects().get(named.result_uri.removeprefix("dft_results/"))
    assert named.adsorption_energy == pytest.approx(by_hand("Pt", stored["metrics"]["height"]), abs=1e-6)
    path = tmp_path / "slab.xyz"
    slab.info.clear()  # of ASE's builder; no file holds it
    slab.write(path)
    assert run_catalyst(resources, path, "O", **SLAB).found, "the same atoms from a file are the same run"


@pytest.mark.parametrize(
    ("structure", "adsorbate", "more", "said"),
    [
        ("Cu", "O", {"temperature": 600.0}, "has no input 'temperature', and nothing is dropped"),
        ("Cu", "O", {"layer": 2}, "did you mean 'layers'"),
        ("Cu", "O", {"metal": "Pt"}, "they are structure and adsorbate"),
        ("Cu", "O", {"layers": 0}, "layers"),
        ("Cu", "O", {"engine": "dft"}, "engine"),
        ("Cu-ZnO", "O", {}, "give the slab"),
        ("copper", "O", {}, "no chemical formula"),
        ("Cu", "", {}, "must be the name"),
        ("Cu", "O", {"catalyst": "Cu-ZnO-Al2O3"}, "a metal and its support"),
        ("Cu", "O", {"threshold_ev": float("nan")}, "finite number, in eV"),
        ("Cu", "O", {"accept": "anything"}, "same_method"),
        (7, "O", {}, "no element, no ASE Atoms"),
    ],
)
def test_what_the_run_does_not_have_is_refused_before_anything_is_done(structure, adsorbate, more, said, tmp_path):
    with pytest.raises(BadInput, match=said):
        run_catalyst(opened(tmp_path), structure, adsorbate, **{"engine": "emt", **more})
    assert not (tmp_path / "shared").exists()


def test_a_role_that_may_not_store_computes_nothing(tmp_path, site):
    opened(tmp_path, "planner").database()
    with pytest.raises(NotPermitted, match="may not add in catalyst_db"):
        run_catalyst(opened(tmp_path, "reader"), "Cu", "O", **HOW)
    assert runs_in(tmp_path) == 0


def test_who_may_not_write_the_notebook_computes_nothing_either(tmp_path, site):
    plain = LAB_NOTEBOOK.model_dump()
    plain["access"]["permissions"]["executor"] = ("read",)
    closed = Resource(**plain)
    resources = Resources.open(tmp_path / "shared", caller="bot", role="executor", define=[closed])
    with pytest.raises(NotPermitted, match="may not add in lab_notebook"):
        run_catalyst(resources, "Cu", "O", **HOW)
    assert runs_in(tmp_path) == 0


def test_the_threshold_decides_what_is_promising(tmp_path, site):
    told = []
    resources = opened(tmp_path)
    energy = run_catalyst(resources, "Cu", "O", threshold_ev=-100.0, on_event=told.append, **HOW).adsorption_energy
    assert told == []
    here = opened(tmp_path / "other")
    # Below it, not at it.
    run_catalyst(here, "Cu", "O", threshold_ev=energy, on_event=told.append, **HOW)
    assert told == []
    third = opened(tmp_path / "third")
    run_catalyst(third, "Cu", "O", threshold_ev=energy + 1e-6, on_event=told.append, **HOW)
    assert [e.adsorption_energy for e in told] == [energy]


def test_a_run_that_fails_is_an_entry_without_output_and_not_a_row(tmp_path, site):
    resources = opened(tmp_path)
    with pytest.raises(AppFailed, match="EMT has no parameters for Fe") as caught:
        run_catalyst(resources, "Fe", "O", **{**HOW, "facet": "bcc110", "site": "ontop"})
    assert caught.value.name == "BadSettings"
    (entry,) = resources.notebook().entries()
    assert entry["output_uri"] is None and entry["failure"]["name"] == "BadSettings"
    assert resources.database().query().total == 0 and resources.objects().listed().total == 0


@pytest.mark.parametrize("killed_at", ["entry_of", "PromisingCatalyst", "_tell_once", "added"])
def test_a_call_that_was_killed_in_between_is_completed_by_the_next(killed_at, tmp_path, site, monkeypatch):
    resources = opened(tmp_path)

    def killed(*args, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(catalyst_module, killed_at, killed)
        with pytest.raises(KeyboardInterrupt):
            run_catalyst(resources, "Pt", "O", **HOW)
    computed = runs_in(tmp_path)
    monkeypatch.setattr(catalyst_module, "_computed", killed)
    done = run_catalyst(resources, "Pt", "O", **HOW)
    assert (
        resources.database().query().total == 1 == resources.notebook().verify() and runs_in(tmp_path) == computed
    )
    assert done.adsorption_energy == resources.objects().get(done.result_uri[12:])["metrics"]["adsorption_energy"]
    assert len([e for e in resources.history("catalyst_db") if e["event"] == "new_promising_catalyst"]) == 1


def test_of_many_who_ask_at_once_one_computes(tmp_path, site, monkeypatch):
    resources, computed, answers = opened(tmp_path), [], []
    real = catalyst_module._computed

    def counted(*args):
        computed.append(args)
        return real(*args)

    monkeypatch.setattr(catalyst_module, "_computed", counted)
    threads = [
        threading.Thread(target=lambda: answers.append(run_catalyst(opened(tmp_path), "Pt", "O", **HOW)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(computed) == 1 and sorted(a.found for a in answers) == [False, True, True, True]
    assert len({a.adsorption_energy for a in answers}) == 1
    assert resources.database().query().total == 1 == resources.notebook().verify()


def test_what_was_computed_is_found_by_another_process(tmp_path, site):
    first = run_catalyst(opened(tmp_path), "Pt", "O", **HOW)
    code = f"""
import hpcagent as ha
resources = ha.resources.Resources.open({str(tmp_path / "shared")!r}, caller="other", role="reader")
print(repr(ha.materials.run_catalyst(resources, "Pt", "O", **{HOW!r}).adsorption_energy))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout) == first.adsorption_energy


def test_a_result_past_its_retention_is_computed_anew(tmp_path, site):
    clock = [1_000_000_000.0]

    def at_once() -> Resources:
        return Resources.open(tmp_path / "shared", caller="bot", role="executor", clock=lambda: clock[0])

    first = run_catalyst(at_once(), "Cu", "O", **HOW)
    clock[0] += 91 * 86400.0
    again = run_catalyst(at_once(), "Cu", "O", **HOW)
    assert not again.found and again.adsorption_energy == first.adsorption_energy
    assert at_once().notebook().verify() == 2, "an experiment of its own"
    assert at_once().database().query().total == 1 and run_catalyst(at_once(), "Cu", "O", **HOW).found
