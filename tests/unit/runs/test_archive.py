"""A campaign in one file: it opens elsewhere, tells nothing of this machine, and nothing hostile gets in."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import socket
import tarfile
import zipfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

import hpcagent as ha
from hpcagent.cli import cli
from hpcagent.errors import BadInput
from hpcagent.runs import unpacked
from hpcagent.runs.archive import CONTENTS, FORMAT, archive


def shell(*words):
    return CliRunner().invoke(cli, [str(w) for w in words])


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    folder = tmp_path_factory.mktemp("archive") / "run"
    changes = {"until.max_runs": 8, "policy.name": "sobol", "confirm": None}
    return ha.run(ha.load_campaign("synthetic", changes=changes), site="threads", run_dir=folder)


@pytest.fixture
def ended(once, tmp_path):
    return shutil.copytree(once.run_dir, tmp_path / "runs" / "one", symlinks=True)


def contents_of(path: Path) -> dict[str, bytes]:
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as whole:
            return {name: whole.read(name) for name in whole.namelist()}
    with tarfile.open(path) as whole:
        return {m.name: whole.extractfile(m).read() for m in whole}


@pytest.mark.parametrize("name", ["a.tar.gz", "a.zip"])
def test_an_archive_opens_elsewhere_with_the_same_answer(ended, once, tmp_path, monkeypatch, name):
    archive(ended, tmp_path / name)
    shutil.rmtree(ended)  # the original is elsewhere
    monkeypatch.chdir(tmp_path)
    found = ha.open_run(name)
    assert [(r.manifest, r.metrics) for r in found.results] == [(r.manifest, r.metrics) for r in once.results]
    assert found.best.params == once.best.params and found.status.reason == once.reason
    assert found.status.notes == () and repr(found) == f"CampaignRun('{name}': synthetic)"
    assert found.report(plots=False).path == Path("synthetic_report/report.md")
    text = shell("status", name).output
    assert "8 runs" in text and f"everything is in {name}" in text and "/hpcagent-" not in text
    assert shell("export", name).output.strip() == "synthetic_results.csv"
    assert len(Path("synthetic_results.csv").read_text().splitlines()) == 9
    assert isinstance(shell("resume", name).exception, BadInput)
    before = Path(name).read_bytes()
    with pytest.raises(BadInput, match="there already"):
        archive(once.run_dir, name)
    assert Path(name).read_bytes() == before
    place = found.folder
    found._unpacked.close()
    assert not place.exists()


def test_an_archive_tells_nothing_of_the_machine_and_says_what_it_left_out(ended, tmp_path, monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "login17.example")
    monkeypatch.setattr(Path, "home", lambda: Path("/home/annika"))
    monkeypatch.setattr("hpcagent.runs.masking.user_name", lambda: "annika")
    run = ended / "work" / "a-run"
    run.mkdir()
    words = f"on login17.example in {ended}/work, /home/annika/x and /scratch/annika/y, export API_TOKEN=hunter2"
    (run / "output.txt").write_text(words.replace(", export", "\nexport"))
    (run / "data.bin").write_bytes(b"\0" * 10)
    (run / "md.traj").write_bytes(b"t" * 4096)
    (run / "big.txt").write_text("x" * (1 << 21))
    (run / "secret").symlink_to("/etc/passwd")
    (ended / "notes.txt").write_text("mine")
    (ended / "site.toml").write_text('name = "s"\nkind = "threads"\n[env]\nMY_TOKEN = "hunter2"\n')
    journal = (ended / "events.jsonl").read_text()
    (ended / "events.jsonl").write_text(journal.replace(f'"host":"{_host(journal)}"', '"host":"node0815"'))
    for path in (ended / "work" / "records").iterdir():
        path.write_text(path.read_text().replace(f'"host":"{_host(journal)}"', '"host":"node0815"'))
    made = archive(ended, tmp_path / "a.tar.gz")
    inside = contents_of(made.path)
    whole = b"\n".join(inside.values())
    for word in (b"login17", b"annika", b"hunter2", b"node0815", str(tmp_path).encode()):
        assert word not in whole, word
    text = inside[f"work/{run.name}/output.txt"].decode()
    assert text == "on host1 in ./work, ~/x and /scratch/user/y\nexport API_TOKEN=(hidden)"
    listed = json.loads(inside[CONTENTS])
    for name, why in (("data.bin", "binary"), ("md.traj", "traj"), ("big.txt", "larger"), ("secret", "links")):
        assert why in listed["left_out"][f"work/{run.name}/{name}"]
    assert "no campaign writes it" in listed["left_out"]["notes.txt"]
    assert made.left_out.keys() == listed["left_out"].keys() and "left out: 1 file(s), no campaign" in str(made)
    assert any("/scratch/user" in note for note in made.notes)
    for name, facts in listed["files"].items():
        assert hashlib.sha256(inside[name]).hexdigest() == facts["sha256"] and len(inside[name]) == facts["size"]
    everything = archive(ended, tmp_path / "b.zip", with_work=True)
    inside = contents_of(everything.path)
    assert len(inside[f"work/{run.name}/md.traj"]) == 4096 and f"work/{run.name}/secret" not in inside
    assert any("as they are" in note for note in everything.notes)


def _host(journal: str) -> str:
    return json.loads(journal.splitlines()[0])["host"]


def packed(path: Path, files: dict[str, bytes], *, contents=None, add=lambda whole: None) -> Path:
    """An archive as an attacker writes it."""
    listed = {n: {"size": len(c), "sha256": hashlib.sha256(c).hexdigest()} for n, c in files.items()}
    about = {"format": FORMAT, "files": listed, **(contents or {})}
    with tarfile.open(path, "w:gz") as whole:
        for name, content in {CONTENTS: json.dumps(about).encode(), **files}.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            whole.addfile(info, io.BytesIO(content))
        add(whole)
    return path


def link(whole):
    info = tarfile.TarInfo("work")
    info.type, info.linkname = tarfile.SYMTYPE, "/tmp"
    whole.addfile(info)


def test_hostile_and_damaged_archives_are_refused(ended, tmp_path, monkeypatch):
    good = {n: c for n, c in contents_of(archive(ended, tmp_path / "a.tar.gz").path).items() if n != CONTENTS}
    assert len(ha.open_run(packed(tmp_path / "good.tar.gz", good)).results) == 8
    here = tmp_path / "x.tar.gz"
    missing = {"files": {"events.jsonl": {"size": 1, "sha256": "0"}}}
    for files, more, words in (
        ({**good, "../../evil": b"1"}, {}, "no name of a file"),
        ({**good, "/tmp/evil": b"1"}, {}, "no name of a file"),
        ({"work/a/../../b": b"1"}, {}, "no name of a file"),
        ({}, {"add": link, "contents": missing}, "no plain file"),
        ({}, {"contents": missing}, "is missing"),
        ({"events.jsonl": b"2"}, {"contents": missing}, "digest"),
        ({"events.jsonl": b"22"}, {"contents": missing}, "is not what"),
        ({}, {"contents": {"format": "else"}}, "another version"),
        ({}, {"contents": {"files": {"events.jsonl": {"size": 1 << 50, "sha256": ""}}}}, "more than"),
    ):
        with pytest.raises(BadInput, match=words):
            ha.open_run(packed(here, files, **more))
    here.write_bytes((tmp_path / "a.tar.gz").read_bytes()[:2000])
    with pytest.raises(BadInput, match="damaged"):
        ha.open_run(here)
    here.write_text("no archive")
    with pytest.raises(BadInput, match="no archive"):
        ha.open_run(here)
    monkeypatch.setattr(unpacked, "MOST_BYTES", 1000)
    with pytest.raises(BadInput, match="more than 1000 bytes"):
        ha.open_run(tmp_path / "a.tar.gz")
    (tmp_path / "a.tar.gz").chmod(0o666)
    monkeypatch.undo()
    with pytest.raises(BadInput, match="--trust"):
        ha.open_run(tmp_path / "a.tar.gz")
