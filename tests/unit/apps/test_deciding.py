"""What decides a number is in its execution id by its content, and is looked at again where the run is."""

from __future__ import annotations

import hashlib
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest
from ase.build import bulk

import hpcagent as ha
from hpcagent.apps import deciding, made_with
from hpcagent.apps.deciding import Deciding, used
from hpcagent.apps.run import Run
from hpcagent.apps.worker import execute
from hpcagent.errors import AppFailed, RunDirChanged
from hpcagent.science.dft.energy import dft_energy
from hpcagent.science.engines import hooks

UPF = (
    '<UPF version="2.0.1"><PP_HEADER element="{element}" functional="{functional}" z_valence="4.0" '
    'relativistic="scalar"/>{rest}</UPF>\n'
)


def upf(folder: Path, name: str, element: str = "Si", functional: str = "PBE", rest: str = "") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(UPF.format(element=element, functional=functional, rest=rest))
    return folder / name


def identity(app=dft_energy, site=None, **params) -> str:
    return app.manifest({"engine": "espresso", **params}, site=site).execution_id


# ---- the id


def test_another_pseudopotential_in_the_same_place_is_another_run(tmp_path):
    app = dft_energy.with_settings(pseudopotentials={"Si": "Si.UPF"}, pseudo_dir=str(tmp_path))
    upf(tmp_path, "Si.UPF")
    first = identity(app)
    assert identity(app) == first
    upf(tmp_path, "Si.UPF", rest="<!-- another -->")
    assert identity(app) != first
    upf(tmp_path, "Si.UPF")
    assert identity(app) == first


def test_the_folder_counts_by_what_is_in_it_not_by_its_name(tmp_path, monkeypatch):
    upf(tmp_path / "a", "Si.UPF")
    upf(tmp_path / "b", "Si_under_another_name.UPF")
    upf(tmp_path / "c", "Si.UPF", rest="<!-- another -->")
    ids = {}
    for folder in "abc":
        monkeypatch.setenv("ESPRESSO_PSEUDO", str(tmp_path / folder))
        ids[folder] = identity()
    assert ids["a"] == ids["b"] != ids["c"]
    # The site's own variable goes before that of this process, as it does where the run is.
    of_site = {"apps": {"espresso": {"env": {"ESPRESSO_PSEUDO": str(tmp_path / "a")}}}}
    assert identity(site=of_site) == ids["a"]


def test_only_the_pseudopotentials_that_would_be_taken_count(tmp_path, monkeypatch):
    monkeypatch.setenv("ESPRESSO_PSEUDO", str(tmp_path))
    upf(tmp_path, "Si.UPF")
    pbe, emt = identity(), identity(engine="emt")
    upf(tmp_path, "Si.pz.UPF", functional="PZ")
    assert identity() == pbe  # no PBE calculation takes it
    assert identity(xc="LDA") != pbe
    assert identity(engine="emt") == emt == dft_energy.manifest({"engine": "emt"}).execution_id


@pytest.mark.parametrize("engine", ["gpaw", "vasp", "mace", "ase", "pyscf"])
def test_setups_potcars_models_modules_and_basis_sets_count_too(engine, tmp_path, monkeypatch):
    app, params, file = dft_energy, {"engine": engine}, tmp_path / "file"
    if engine == "gpaw":
        file = tmp_path / "Si.PBE"
        monkeypatch.setenv("GPAW_SETUP_PATH", str(tmp_path))
    elif engine == "vasp":
        file = tmp_path / "potpaw_PBE" / "Si" / "POTCAR"
        file.parent.mkdir(parents=True)
        monkeypatch.setenv("VASP_PP_PATH", str(tmp_path))
    elif engine == "pyscf":
        params["basis"] = str(file)
    elif engine == "ase":
        file = tmp_path / "of_mine.py"
        monkeypatch.syspath_prepend(str(tmp_path))
        app = app.with_settings(calculator="of_mine:Calculator")
    file.write_text("one")
    if engine == "mace":
        app = app.with_settings(checkpoint=file)
    first = app.manifest(params)
    file.write_text("another")
    assert app.manifest(params).execution_id != first.execution_id
    file.write_text("one")
    assert app.manifest(params).execution_id == first.execution_id


@pytest.mark.parametrize("kept", [False, True])
def test_a_slow_look_is_good_for_a_while_in_a_campaign_only(kept, tmp_path, monkeypatch):
    """A person changes a file and asks anew in the same second, on a machine that is busy."""
    monkeypatch.setattr(hooks, "_SLOW_S", -1.0)
    monkeypatch.setattr(hooks, "_GOOD_FOR", 1e9)
    app = dft_energy.with_settings(pseudopotentials={"Si": "Si.UPF"}, pseudo_dir=str(tmp_path))
    upf(tmp_path, "Si.UPF")
    looks: deciding.Looks = {}
    with deciding.keeping(looks) if kept else nullcontext():
        first = identity(app)
        upf(tmp_path, "Si.UPF", rest="<!-- another -->")
        assert (identity(app) == first) == kept
    assert len(looks) == kept
    assert identity(app) != first
    with deciding.keeping({}):  # another campaign
        assert identity(app) != first


def test_files_named_by_keywords_count(tmp_path):
    model = tmp_path / "model.pt"
    model.write_text("one")
    app = dft_energy.with_settings(calculator="ase.calculators.emt:EMT", keywords={"models": [str(model)]})
    first = app.manifest({"engine": "ase"}).execution_id
    model.write_text("other")
    assert app.manifest({"engine": "ase"}).execution_id != first


def test_a_content_is_read_once(tmp_path, monkeypatch):
    folder = tmp_path / "many"
    for n in range(5):
        upf(folder, f"Si{n}.UPF", rest=f"<!-- {n} -->")
    read = []
    real = hashlib.file_digest
    monkeypatch.setattr(
        made_with.hashlib, "file_digest", lambda file, how: read.append(file.name) or real(file, how)
    )
    app = dft_energy.with_settings(pseudo_dir=str(folder))
    for kpts in range(1, 9):
        identity(app, kpts=kpts)
    assert len(read) == len(set(read)) == 5


@pytest.mark.parametrize("named", [{}, {"Si": "Si.UPF"}, {"Si": "Si.UPF", "Au": "Au.UPF"}])
def test_a_link_into_nowhere_beside_the_pseudopotential_changes_no_id(tmp_path, named):
    upf(tmp_path, "Si.UPF")
    app = dft_energy.with_settings(pseudopotentials=named, pseudo_dir=str(tmp_path))
    before = identity(app)
    (tmp_path / "Au.UPF").symlink_to("/nonexistent/Au.UPF")
    assert identity(app) == before


# ---- where the run is


def test_a_file_that_changes_between_planning_and_running_is_not_computed_with(tmp_path):
    path = tmp_path / "Si.UPF"
    path.write_text("as planned")
    planned = {"Si": hashlib.sha256(b"as planned").hexdigest()}
    files = (Deciding("Si", path, "Si"), Deciding("Ge", tmp_path / "missing", "Ge"))
    run = Run(workdir=tmp_path, files=planned)
    assert used(files, run, ["Si"]) == ({str(path): planned["Si"]}, ())
    path.write_text("another")
    with pytest.raises(AppFailed, match="another content") as caught:
        used(files, run, ["Si"])
    assert caught.value.details["name"] == "FilesChanged" and caught.value.details["kind"] == "infrastructure"
    # Nothing of silicon is in this run.
    assert used(files, run, ["C"]) == ({}, ())


def test_a_file_that_could_not_be_read_where_the_run_was_planned_is_said(tmp_path):
    path = tmp_path / "Si.UPF"
    path.write_text("on the nodes only")
    digests, said = used((Deciding("Si", path, "Si"),), Run(workdir=tmp_path, files={}), ["Si"])
    assert list(digests) == [str(path)] and "not part of the run's execution id" in said[0]


def test_an_order_of_another_content_than_its_manifest_fails_for_now(tmp_path, monkeypatch):
    monkeypatch.setenv("ESPRESSO_PSEUDO", str(tmp_path / "p"))
    path = upf(tmp_path / "p", "Si.UPF")
    manifest = dft_energy.manifest({"engine": "espresso"})
    path.write_text(path.read_text() + "<!-- changed -->")
    failed = execute(dft_energy.order(manifest, work=tmp_path / "work", site={}))
    assert (failed["failure"]["name"], failed["failure"]["kind"]) == ("FilesChanged", "infrastructure")


def test_records_from_before_files_counted_can_still_be_run(tmp_path):
    upf(tmp_path, "Si.UPF")
    app = dft_energy.with_settings(pseudo_dir=str(tmp_path))
    old = app.manifest({"engine": "espresso"}).model_copy(update={"input_digest": app.digest})
    assert not app.order(old, work=tmp_path, site={})["outdated"]


# ---- what is said


def test_results_say_what_they_were_made_with(tmp_path):
    import ase

    source = tmp_path / "springs.py"
    source.write_text("from ase.calculators.emt import EMT as Springs\n")
    script = dft_energy.with_settings(calculator="springs:Springs")
    with pytest.MonkeyPatch.context() as patch, ha.open_site("threads", run_dir=tmp_path / "site"):
        patch.syspath_prepend(str(tmp_path))
        result = script(bulk("Cu"), engine="ase").result()
    assert result.ok, result.failure
    assert result.files == {str(source): hashlib.sha256(source.read_bytes()).hexdigest()}
    assert result.versions == {"ase": ase.__version__}


def test_a_changed_version_is_said_when_a_finished_run_is_used_again(tmp_path, monkeypatch):
    from hpcagent.apps.structures import given

    manifest = dft_energy.manifest({"engine": "emt"})
    order = dft_energy.order(manifest, work=tmp_path, site={})
    first = execute(order, given(bulk("Cu")).fields)
    assert "notes" not in execute(order)
    monkeypatch.setattr(made_with, "package_version", lambda name: "99.0")
    again = execute(order)
    assert again["metrics"] == first["metrics"]
    assert again["notes"] == [
        f"found finished, not run again: computed with ase {first['versions']['ase']}, here is 99.0"
    ]


def test_a_finished_chain_is_run_again_where_a_file_of_its_inner_runs_has_changed(tmp_path):
    model = tmp_path / "model.py"
    model.write_text("from ase.calculators.emt import EMT as Model\n")

    @ha.chain(metrics={"energy": "eV"})
    def hidden():  # says nothing of its engine
        inner = dft_energy.with_settings(calculator="model:Model")
        return {"energy": inner(bulk("Cu"), engine="ase")["energy"]}

    def asked(folder: Path) -> ha.Result:
        with pytest.MonkeyPatch.context() as patch, ha.open_site("threads", run_dir=folder):
            patch.syspath_prepend(str(tmp_path))
            return hidden().result()

    first = asked(tmp_path / "site")
    assert first.ok and set(first.files) == {str(model)}
    assert asked(tmp_path / "site").started_at == first.started_at
    model.write_text("from ase.calculators.lj import LennardJones as Model\n")
    second = asked(tmp_path / "site")
    # Lennard-Jones of one atom in ASE's primitive cell of copper; no number of EMT.
    assert second.started_at != first.started_at and second["energy"] != first["energy"]


def test_a_campaign_is_not_continued_with_other_files(tmp_path):
    model = tmp_path / "model.py"
    model.write_text("from ase.calculators.emt import EMT as Model\n")

    @ha.chain(parameters={"strain": ha.Float(-0.05, 0.05)}, metrics={"energy": "eV"}, seeded=False)
    def strained(strain):
        inner = dft_energy.with_settings(calculator="model:Model")
        return {"energy": inner(ha.apps.build_crystal(name="Cu", strain=strain), engine="ase")["energy"]}

    def run(most: int) -> None:
        campaign = ha.Campaign(
            strained,
            ha.minimize("energy"),
            until=ha.until.max_runs(most),
            policy="random",
            batch_size=1,
            confirm=None,
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(str(tmp_path))
            ha.run(campaign, run_dir=tmp_path / "runs", site="threads")

    run(1)
    model.write_text("from ase.calculators.lj import LennardJones as Model\n")
    with pytest.raises(RunDirChanged, match=r"model\.py.*something else"):
        run(2)


@pytest.fixture
def of_folder(tmp_path, monkeypatch):
    """A campaign of a chain on `dft_energy`: called with the most runs and the pseudopotentials' folder."""
    from hpcagent.science.engines.espresso import ENGINE
    from hpcagent.science.engines.registry import engine

    # Lennard-Jones as if it took its files where Quantum ESPRESSO does.
    monkeypatch.setattr(type(engine("lj")), "files", lambda self, level, site: ENGINE.files(level, site))

    @ha.chain(parameters={"strain": ha.Float(-0.05, 0.05)}, metrics={"energy_per_atom": "eV"}, seeded=False)
    def strained(strain):
        inner = dft_energy.with_settings(keywords={"epsilon": 0.01, "sigma": 2.1, "rc": 6.0})
        run = inner(ha.apps.build_crystal(name="Si", strain=strain), engine="lj")
        return {"energy_per_atom": run["energy_per_atom"]}

    def run(most: int, folder: Path):
        monkeypatch.setenv("ESPRESSO_PSEUDO", str(folder))
        campaign = ha.Campaign(
            strained,
            ha.minimize("energy_per_atom"),
            until=ha.until.max_runs(most),
            policy="random",
            batch_size=1,
            confirm=None,
        )
        told = []
        found = ha.run(campaign, run_dir=tmp_path / "runs", site="threads", watch=told.append)
        assert all(r.ok for r in found.results), found.results[-1].failure
        return found, [event.reason for event in told]

    return run


def test_a_campaign_is_not_continued_with_the_pseudopotentials_of_another_folder(tmp_path, of_folder):
    one, two = upf(tmp_path / "e1", "Si.UPF"), upf(tmp_path / "e2", "Si.UPF", rest="<!-- another -->")
    of_folder(1, one.parent)
    with pytest.raises(RunDirChanged, match=r"e1/Si\.UPF.*e2/Si\.UPF.*Put the old content back") as caught:
        of_folder(2, two.parent)
    for path in (one, two):
        assert hashlib.sha256(path.read_bytes()).hexdigest()[:12] in caught.value.message
    # Files of other elements, or the same content elsewhere, change nothing.
    upf(tmp_path / "e3", "Si_of_mine.UPF")
    shutil.copyfile(one, tmp_path / "e3" / "Si.UPF")
    upf(tmp_path / "e3", "Ge.UPF", element="Ge")
    result, told = of_folder(2, tmp_path / "e3")
    assert len(result.results) == 2 and all(r.ok and not r.notes for r in result.results)
    assert not any("no record" in text for text in told)


def test_runs_without_a_record_of_their_files_are_told_of(tmp_path, of_folder):
    import json

    path = upf(tmp_path / "e1", "Si.UPF")
    of_folder(1, path.parent)
    events = tmp_path / "runs" / "events.jsonl"
    kept = []
    for line in map(json.loads, events.read_text().splitlines()):
        if line["event"] == "files":
            continue
        for row in line.get("results", ()):
            row.pop("files", None)
        kept.append(json.dumps(line) + "\n")
    events.write_text("".join(kept))
    upf(tmp_path / "e1", "Si.UPF", rest="<!-- swapped -->")
    result, told = of_folder(2, path.parent)
    words = "1 earlier run(s) of dft_energy in this campaign have no record of the pseudopotentials"
    assert any(words in text for text in told)
    assert not result.results[0].notes and any(words in note for note in result.results[1].notes)


# ---- the real pw.x


@pytest.mark.skipif(
    shutil.which("pw.x") is None or not Path("/usr/share/espresso/pseudo/Si.pbe-rrkj.UPF").is_file(),
    reason="no pw.x, or no pseudopotentials of Debian",
)
def test_another_si_upf_gives_another_energy_not_the_old_one(tmp_path):
    app = dft_energy.with_settings(pseudopotentials={"Si": "Si.UPF"}, pseudo_dir=str(tmp_path))
    energies = []
    for name in ("Si.pbe-rrkj.UPF", "Si.pbe-nl-rrkjus_psl.1.0.0.UPF"):
        shutil.copyfile(f"/usr/share/espresso/pseudo/{name}", tmp_path / "Si.UPF")
        with ha.open_site("threads", run_dir=tmp_path / "site"):
            result = app(bulk("Si", a=5.43), engine="espresso", ecut=200.0, kpts=2, forces="no").result()
        assert result.ok, result.failure
        assert result.versions["espresso"].startswith(("6", "7"))
        energies.append(result["energy"])
    # Neither engine nor level differ: only what is in the file does. The second has other core electrons.
    assert abs(energies[0] - energies[1]) > 10


# ---- futures of other people


def test_the_future_of_a_users_own_parsl_app_is_an_input_by_its_value(tmp_path):
    import parsl
    from ase.calculators.emt import EMT

    with ha.open_site("threads", run_dir=tmp_path):
        made = parsl.python_app(lambda: bulk("Cu", a=3.7))()
        wrong = parsl.python_app(lambda: {"a": 1})()
        failing = parsl.python_app(lambda: int("no number"))()
        found = dft_energy(made, engine="emt").result()
        same = dft_energy(bulk("Cu", a=3.7), engine="emt").result()
        with pytest.raises(ha.BadInput, match="got dict"):
            dft_energy(wrong, engine="emt")
        with pytest.raises(ha.BadInput, match="future that failed: ValueError"):
            dft_energy(failing, engine="emt")
    assert found.manifest.execution_id == same.manifest.execution_id
    copper = bulk("Cu", a=3.7)
    copper.calc = EMT()
    assert found["energy"] == pytest.approx(copper.get_potential_energy(), abs=1e-8)


# ---- LAMMPS


def test_a_potential_from_the_folder_of_lammps_counts_by_its_content(tmp_path, monkeypatch):
    from hpcagent.science.lammps.potentials import elsewhere

    (tmp_path / "p").mkdir()
    potential = tmp_path / "p" / "Cu.eam"
    potential.write_text("one")
    script = tmp_path / "in.copper"
    script.write_text(
        "units metal\nlattice fcc 3.615\nregion b block 0 2 0 2 0 2\ncreate_box 1 b\ncreate_atoms 1 box\n"
        "pair_style eam\npair_coeff * * &\n Cu.eam # at 4.95\ntimestep ${dt}\nthermo 10\nrun 10\n"
    )
    md = ha.lammps(script, variables={"dt": ha.Float(1e-4, 1e-2, unit="ps")})
    monkeypatch.setenv("LAMMPS_POTENTIALS", str(tmp_path / "p"))
    first = md.manifest({"dt": 1e-3}).execution_id
    assert [one.path for one in elsewhere(md.settings, {}, {})] == [potential]
    potential.write_text("another")
    assert md.manifest({"dt": 1e-3}).execution_id != first
    # The site's own folder goes first, as where the run is.
    potential.write_text("one")
    of_site = {"apps": {"lammps": {"env": {"LAMMPS_POTENTIALS": str(tmp_path)}}}}
    assert md.manifest({"dt": 1e-3}).execution_id == first != md.manifest({"dt": 1e-3}, site=of_site).execution_id
    # One beside the script is an input file already.
    (tmp_path / "Cu.eam").write_text("mine")
    assert elsewhere(ha.lammps(script, variables={"dt": ha.Float(1e-4, 1e-2, unit="ps")}).settings, {}, {}) == ()


def test_a_potential_held_in_a_variable_counts_by_its_content_or_is_said(tmp_path, monkeypatch):
    from hpcagent.science.lammps.potentials import elsewhere, undecided

    for name in ("Cu_u3.eam", "Cu_u6.eam", "Ni.eam"):
        (tmp_path / "p").mkdir(exist_ok=True)
        (tmp_path / "p" / name).write_text("one")
    script = tmp_path / "in.copper"
    script.write_text(
        "units metal\nlattice fcc 3.615\nregion b block 0 2 0 2 0 2\ncreate_box 1 b\ncreate_atoms 1 box\n"
        "variable folder string p\nvariable other index Ni.eam\nvariable cut equal 4.95\n"
        "variable mine getenv POTENTIAL\npair_style eam ${cut}\npair_coeff * * ${pot}\n"
        "pair_coeff 1 2 ${folder}/${other} $(v_cut)\npair_coeff 2 2 ${mine}\nthermo 10\nrun 10\n"
    )
    md = ha.lammps(script, variables={"pot": ha.Choice("Cu_u3.eam", "Cu_u6.eam")})
    monkeypatch.setenv("LAMMPS_POTENTIALS", str(tmp_path / "p"))
    used = elsewhere(md.settings, {}, {"pot": "Cu_u3.eam"})
    assert [one.path.name for one in used] == ["Cu_u3.eam", "Ni.eam"]
    assert ["${mine}" in note and "${cut}" not in note for note in undecided(md.settings, {"pot": "a.eam"})] == [
        True
    ]
    first = [md.manifest({"pot": name}).execution_id for name in ("Cu_u3.eam", "Cu_u6.eam")]
    (tmp_path / "p" / "Cu_u3.eam").write_text("another")
    then = [md.manifest({"pot": name}).execution_id for name in ("Cu_u3.eam", "Cu_u6.eam")]
    assert then[0] != first[0] and then[1] == first[1]


def test_a_file_by_a_path_that_is_not_absolute_is_refused_with_the_path_to_write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("model.pt", "mine", "pw"):
        (tmp_path / name).write_text("one")
    app = dft_energy.with_settings(calculator="ase.calculators.emt:EMT")
    for value in ("model.pt", "./model.pt", "~/model.pt"):
        with pytest.raises(ha.BadInput, match=f"write {tmp_path}/model.pt"):
            app.with_settings(keywords={"models": [value]}).manifest({"engine": "ase"})
    with pytest.raises(ha.BadInput, match=f"write {tmp_path}/mine"):
        dft_energy.manifest({"engine": "pyscf", "basis": "mine"})
    # A mode is no file, nor is what is not there.
    app.with_settings(keywords={"mode": "pw", "txt": "new.txt"}).manifest({"engine": "ase"})


def test_only_lammps_takes_a_setting_called_script_for_its_own(tmp_path):
    potential = tmp_path / "Cu.eam"
    potential.write_text("one")

    @ha.app(
        parameters={"x": ha.Float(0, 1)}, metrics={"y": "1"}, settings={"script": f"pair_coeff * * {potential}"}
    )
    def own(x: float) -> dict[str, float]:
        return {"y": x}

    first = own.manifest({"x": 0.5}).execution_id
    potential.write_text("another")
    assert own.manifest({"x": 0.5}).execution_id == first
