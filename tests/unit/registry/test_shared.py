"""Tools that are shared as a folder or a git repository: with digests, and pending where they arrive."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from hpcagent.errors import BadInput
from hpcagent.registry.record import digest_of
from hpcagent.registry.shared import DIGESTS, read_shared, write_shared

TEXT = "def half(x):\n    return x / 2\n"
CARD = {"name": "half", "version": "1.1.0", "sha256": digest_of(TEXT), "text": TEXT, "usable": True, "problem": ""}
git = pytest.mark.skipif(shutil.which("git") is None, reason="there is no git")


def test_a_folder_has_texts_with_their_digests(tmp_path):
    folder = tmp_path / "ours"
    assert write_shared(folder, [CARD]) == ["half@1.1.0"]
    assert read_shared(folder).tools == (("half", TEXT, "imported from the folder ours, half@1.1.0"),)
    other = CARD | {"name": "third", "text": "x", "sha256": digest_of("x")}
    write_shared(folder, [other])
    assert [one[0] for one in read_shared(folder).tools] == ["half", "third"]
    with pytest.raises(BadInput, match="approved tools are shared"):
        write_shared(folder, [CARD | {"usable": False, "state": "pending"}])


def test_what_was_changed_on_the_way_is_refused(tmp_path):
    write_shared(tmp_path, [CARD])
    (tmp_path / "half.py").write_text(TEXT.replace("2", "3"))
    with pytest.raises(BadInput, match="was changed since"):
        read_shared(tmp_path)
    (tmp_path / "half.py").unlink()
    (tmp_path / "half.py").symlink_to("/etc/passwd")
    with pytest.raises(BadInput, match="symbolic link"):
        read_shared(tmp_path)


AGENT = {"name": "chem", "role": "You compute rates of reactions.", "tools": ["half", "rdf"]}


def test_agents_go_along_with_their_digests(tmp_path):
    folder = tmp_path / "ours"
    assert write_shared(folder, [CARD], [AGENT]) == ["half@1.1.0", "agent chem"]
    (agent,) = read_shared(folder).agents
    assert agent == ("chem", AGENT["role"], ("half", "rdf"), "imported from the folder ours")
    write_shared(folder, [CARD])  # without agents: those that are there stay
    assert read_shared(folder).agents == (agent,)
    file = folder / "agents" / "chem.json"
    text = file.read_text()
    file.write_text(text.replace("rates", "lies about rates"))
    with pytest.raises(BadInput, match="was changed since"):
        read_shared(folder)
    file.write_text(text.replace('"chem"', '"other"'))
    table = json.loads((folder / DIGESTS).read_text())
    table["agents"]["chem"]["sha256"] = digest_of(file.read_text())
    (folder / DIGESTS).write_text(json.dumps(table))
    with pytest.raises(BadInput, match="it is the record of other"):
        read_shared(folder)
    table["agents"] = {"../chem": {"sha256": "0"}}
    (folder / DIGESTS).write_text(json.dumps(table))
    with pytest.raises(BadInput, match="no name of a tool"):
        read_shared(folder)


@pytest.mark.parametrize("name", ["../half", "/etc/passwd", "a b", ""])
def test_a_table_that_names_other_files_is_refused(tmp_path, name):
    (tmp_path / DIGESTS).write_text(
        json.dumps({"format": 1, "tools": {name: {"version": "1.0.0", "sha256": "0"}}})
    )
    with pytest.raises(BadInput, match="no name of a tool"):
        read_shared(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", '{"format": 2, "tools": {}}', '{"format": 1, "tools": {"a": 3}}'])
def test_what_is_no_table_is_refused(tmp_path, text):
    (tmp_path / DIGESTS).write_text(text)
    with pytest.raises(BadInput, match="no table of shared tools"):
        read_shared(tmp_path)
    with pytest.raises(BadInput, match="no folder of shared tools"):
        read_shared(tmp_path / "nowhere")


@git
def test_a_git_repository_does_as_well_and_its_hooks_do_not_run(tmp_path, monkeypatch):
    for name in ("GIT_AUTHOR", "GIT_COMMITTER"):
        monkeypatch.delenv(f"{name}_NAME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".gitconfig").write_text("[user]\nname = ada\nemail = ada@example.org\n")
    folder = tmp_path / "tools.git"
    write_shared(folder, [CARD], commit="half")
    hook = folder / ".git" / "hooks" / "pre-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/trap\n")
    hook.chmod(0o755)
    write_shared(folder, [CARD | {"version": "1.2.0"}], commit="again")
    write_shared(folder, [CARD | {"version": "1.2.0"}], commit="nothing new")
    log = subprocess.run(
        ["git", "-C", str(folder), "log", "--format=%s"], capture_output=True, text=True, check=True
    )
    assert log.stdout.split() == ["again", "half"] and not (tmp_path / "trap").exists()
    ((name, text, origin),) = read_shared(f"file://{folder}").tools
    assert (name, text) == ("half", TEXT) and "half@1.2.0" in origin and " at " in origin


@git
@pytest.mark.parametrize(
    "address", ["ext::sh -c touch% TRAP .git", "--upload-pack=touch TRAP.git", "file:///nowhere.git"]
)
def test_an_address_runs_nothing(tmp_path, address):
    trap = tmp_path / "trap"
    with pytest.raises(BadInput):
        read_shared(address.replace("TRAP", str(trap)))
    assert not trap.exists()


@git
def test_a_repository_that_names_programs_is_not_committed_to(tmp_path):
    """A folder that came as a copy brings its own settings, by which git would run a filter or a signer."""
    folder, ran = tmp_path / "ours", tmp_path / "ran"
    subprocess.run(["git", "init", "--quiet", str(folder)], check=True)
    program = tmp_path / "filter.sh"
    program.write_text(f"#!/bin/sh\ntouch {ran}\ncat\n")
    program.chmod(0o755)
    with (folder / ".git" / "config").open("a") as config:
        config.write(f'[filter "x"]\n\tclean = {program}\n[user]\n\tname = a\n\temail = a@b\n')
    (folder / ".gitattributes").write_text("*.py filter=x\n")
    with pytest.raises(BadInput, match=r"git may run a program: filter\.x\.clean"):
        write_shared(folder, [CARD], commit="share")
    assert not ran.exists()
