"""Families of pseudopotentials: hashes, recommended cutoffs, and what is refused."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ase.build import bulk

from hpcagent.apps.run import Run
from hpcagent.errors import AppFailed
from hpcagent.science.engines import espresso
from hpcagent.science.engines.base import Level
from hpcagent.science.engines.espresso import ENGINE
from hpcagent.science.engines.espresso_pseudopotentials import PSEUDO_DIR
from hpcagent.science.engines.families import family_of
from hpcagent.science.engines.upf import RY


@pytest.fixture(autouse=True)
def no_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is started here."""
    monkeypatch.setattr(espresso, "program", lambda *args, **kwargs: SimpleNamespace(words=("pw.x",)))


def written(folder: Path, element: str, wfc: float = 0.0) -> Path:
    path = folder / f"{element}.upf"
    path.write_text(
        f'<UPF version="2.0.1">\n<PP_HEADER element="{element}" pseudo_type="NC" relativistic="scalar" '
        f'is_ultrasoft="F" is_paw="F" is_coulomb="F" functional="PBE" z_valence="4.0" wfc_cutoff="{wfc}" '
        'rho_cutoff="0.0"/>\n</UPF>\n'
    )
    return path


def listed(folder: Path, algorithm: str = "md5") -> Path:
    found = {}
    for element, cutoff in (("Si", 30.0), ("C", 45.0)):
        digest = hashlib.new(algorithm, written(folder, element).read_bytes()).hexdigest()
        found[element] = {
            "filename": f"{element}.upf", algorithm: digest, "cutoff_wfc": cutoff, "cutoff_rho": 8 * cutoff
        }  # fmt: skip
    path = folder / "own.json"
    path.write_text(json.dumps(found))
    return path


def made(folder: Path, atoms: Any = None, ecut: float = 0.0, **options: Any) -> Any:
    work = folder / "work"
    work.mkdir(exist_ok=True)
    level = Level("espresso", kpts=2, smearing=0.0, ecut=ecut, options=options)
    return ENGINE.calculator(atoms or bulk("SiC", "zincblende", a=4.36), level, Run(workdir=work))


@pytest.mark.parametrize("algorithm", ["md5", "sha256"])
def test_the_largest_recommended_cutoff_is_taken_and_said(tmp_path: Path, algorithm: str) -> None:
    path = listed(tmp_path, algorithm)
    for given in (str(path), str(tmp_path)):
        calculator = made(tmp_path, family=given)
        assert calculator.parameters["input_data"]["ecutwfc"] == 45
        (note,) = [n for n in calculator.notes if "family own" in n]
        assert "hashes as listed" in note and f"{45 * RY:.0f} eV" in note
    assert made(tmp_path, family=str(path), ecut=500.0).parameters["input_data"]["ecutwfc"] == pytest.approx(
        500 / RY
    )
    record = json.loads((tmp_path / "work" / "pseudopotentials.json").read_text())
    assert record["family"] == str(path)


def test_a_file_with_another_content_is_refused(tmp_path: Path) -> None:
    path = listed(tmp_path)
    written(tmp_path, "C", wfc=1.0)
    with pytest.raises(
        AppFailed, match=r"C\.upf is not the file that the family 'own' lists for C: its md5"
    ) as caught:
        made(tmp_path, family=str(path))
    assert (caught.value.kind, caught.value.name) == ("contract", "OtherPseudopotential")


def test_the_list_decides_the_run_by_its_content(tmp_path: Path) -> None:
    path = listed(tmp_path)
    found = {one.name: one for one in ENGINE.files(Level("espresso", options={"family": str(path)}), {})}
    assert set(found) == {"Si", "C", "family"} and found["family"].path == path
    assert found["C"].element == "C" and found["family"].element == ""


def test_what_a_family_lacks_is_said(tmp_path: Path) -> None:
    path = listed(tmp_path)
    with pytest.raises(AppFailed, match=r"has no file of Ge.* it has those of C, Si") as caught:
        made(tmp_path, bulk("Ge"), family=str(path))
    assert caught.value.name == "NoPseudopotential"
    for given, words in (("sssp", "no file, no folder and not debian"), (str(tmp_path / "work"), "with 0 lists")):
        with pytest.raises(AppFailed, match=words):
            family_of(given, tmp_path)
    path.write_text('{"Si": {"filename": "Si.upf"}}')
    with pytest.raises(AppFailed, match="is no list of pseudopotentials"):
        family_of(str(path), tmp_path)


def test_a_file_that_suggests_no_cutoff_asks_for_one(tmp_path: Path) -> None:
    written(tmp_path, "Si")
    with pytest.raises(AppFailed, match=r"Si\.upf suggests no cutoff, and none was given") as caught:
        made(tmp_path, bulk("Si"), pseudo_dir=str(tmp_path))
    assert (caught.value.kind, caught.value.name) == ("contract", "NeedsCutoff")
    assert made(tmp_path, bulk("Si"), 400.0, pseudo_dir=str(tmp_path)).parameters["input_data"]["ecutwfc"] > 29


@pytest.mark.skipif(not Path(PSEUDO_DIR).is_dir(), reason="needs Debian's pseudopotentials")
def test_debians_files_are_those_of_the_packaged_family(tmp_path: Path) -> None:
    family = family_of("debian", Path(PSEUDO_DIR))
    assert set(family.named) == set(family.members) >= {"H", "C", "N", "O", "Si", "Fe", "Ni", "Cu"}
    for element in family.members:
        made(tmp_path, bulk(element, "sc", a=3.0), family="debian", pseudo_dir=PSEUDO_DIR)
    # Its header has no cutoff, but it is in the list.
    named = made(tmp_path, bulk("Si"), pseudopotentials={"Si": "Si.pbe-rrkj.UPF"}, pseudo_dir=PSEUDO_DIR)
    assert named.parameters["input_data"]["ecutwfc"] == 30


@pytest.mark.parametrize("given", [3, 0, ["own.json"], False])
def test_a_family_that_is_no_text_is_refused(given: Any, tmp_path: Path) -> None:
    listed(tmp_path)
    with pytest.raises(AppFailed, match=r"family=.* is no text; give the path of one list"):
        made(tmp_path, family=given)
    assert ENGINE.files(Level("espresso", options={"family": given}), {}) == ()


@pytest.mark.parametrize("rho", [float("nan"), -240.0, 29.9, float("inf")])
def test_a_cutoff_of_the_density_that_makes_no_sense_is_refused(rho: float, tmp_path: Path) -> None:
    path = listed(tmp_path)
    entries = json.loads(path.read_text())
    entries["Si"]["cutoff_rho"] = rho
    path.write_text(json.dumps(entries))
    with pytest.raises(AppFailed, match=rf"own\.json .*Si: cutoff_rho={rho:g} Ry; it must be cutoff_wfc=30"):
        family_of(str(path), tmp_path)


@pytest.mark.parametrize("second", ["SI", "Si"])
def test_an_element_that_is_listed_twice_is_refused(second: str, tmp_path: Path) -> None:
    path = listed(tmp_path)
    one = json.dumps(json.loads(path.read_text())["C"])
    path.write_text(f'{{"Si": {one}, "{second}": {one}}}')
    with pytest.raises(AppFailed, match=r"'Si' (stands in it|is given) twice"):
        family_of(str(path), tmp_path)


def test_a_list_that_cannot_be_read_decides_the_run_by_its_content(tmp_path: Path) -> None:
    path = tmp_path / "own.json"
    for text in ("no list", "nor this"):
        path.write_text(text)
        (one,) = ENGINE.files(Level("espresso", options={"family": str(path)}), {})
        assert (one.name, one.path) == ("family", path)


@pytest.mark.parametrize("broken", ["link", "folder", "pipe", "unreadable"])
def test_a_broken_file_in_the_folder_is_no_concern_of_runs_without_it(broken: str, tmp_path: Path) -> None:
    spoiled = tmp_path / "Au.UPF"
    broken_file(spoiled, broken)
    written(tmp_path, "Si")
    level = Level("espresso", xc="PBE", options={"pseudo_dir": str(tmp_path)})
    assert [one.name for one in ENGINE.files(level, {})] == ["Si"]
    assert made(tmp_path, bulk("Si"), 400.0, pseudo_dir=str(tmp_path)) is not None
    assert made(tmp_path, bulk("Si"), 400.0, pseudo_dir=str(tmp_path), pseudopotentials={"Si": "Si.upf"})
    with pytest.raises(AppFailed, match=r"no PBE pseudopotential of Au.*not readable: Au\.UPF") as caught:
        made(tmp_path, bulk("Au"), 400.0, pseudo_dir=str(tmp_path))
    assert caught.value.name == "NoPseudopotential"
    with pytest.raises(AppFailed, match=r"'Au\.UPF' of Au in .* cannot be read") as caught:
        made(tmp_path, bulk("Au"), 400.0, pseudo_dir=str(tmp_path), pseudopotentials={"Au": "Au.UPF"})
    assert caught.value.name == "NoPseudopotential"


def broken_file(path: Path, how: str) -> None:
    if how == "link":
        path.symlink_to("/nonexistent/Au.UPF")
    elif how == "folder":
        path.mkdir()
    elif how == "pipe":
        os.mkfifo(path)
    else:
        path.write_text("another user's")
        path.chmod(0)
        if os.access(path, os.R_OK):
            pytest.skip("this user may read everything")
