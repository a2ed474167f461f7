"""Files of runs that other runs read: of runs that have ended, taken without a link, and kept by their content."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcagent.errors import BadInput
from hpcagent.gate.not_allowed import NotAllowed
from hpcagent.workspace import inputs
from hpcagent.workspace.core import Core
from hpcagent.workspace.folder import Folder
from hpcagent.workspace.inputs import Inputs

PATIENCE_S = 120


@pytest.fixture
def core(tmp_path: Path) -> Iterator[Core]:
    root = tmp_path / "ws"
    Folder(root).create()
    (root / "workspace.toml").write_text('name = "ws"\ndefault_site = "threads"\n')
    one = Core(root)
    yield one
    one.close()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "a.csv").write_text("7")
    return folder


def me(core: Core) -> Any:
    return core.caller(os.getuid())


def done(core: Core, x: float) -> str:
    identity = str(core.run(me(core), "synthetic", {"x": x})["id"])
    core.wait(me(core), identity, PATIENCE_S)
    return identity


# -- what is kept -----------------------------------------------------------------------------


def test_a_file_is_kept_once_by_its_content_under_its_name(tmp_path, run):
    kept = Inputs(tmp_path / "inputs")
    (run / "b.csv").write_text("7")
    first, second = kept.keep(run, "sub/a.csv"), kept.keep(run, "b.csv")
    digest = hashlib.sha256(b"7").hexdigest()
    assert (first, second) == (tmp_path / "inputs" / digest / "a.csv", tmp_path / "inputs" / digest / "b.csv")
    assert stat.S_IMODE(first.stat().st_mode) & 0o222 == 0 and first.stat().st_nlink == 1
    was = first.stat().st_ino
    (run / "sub" / "a.csv").write_text("8")
    assert first.read_text() == "7"
    (run / "sub" / "a.csv").write_text("7")
    assert kept.keep(run, "sub/a.csv") == first and first.stat().st_ino == was
    assert sorted(one.name for one in first.parent.iterdir()) == ["a.csv", "b.csv"]


def test_a_large_file_gets_a_second_name_and_a_copy_where_there_are_none(tmp_path, run, monkeypatch):
    monkeypatch.setattr(inputs, "COPIED", 0)
    source = run / "sub" / "a.csv"
    path = Inputs(tmp_path / "inputs").keep(run, "sub/a.csv")
    assert path.samefile(source)
    source.write_text("8")  # into the file itself: what stands there is no longer what its folder says
    again = Inputs(tmp_path / "inputs")
    assert again.keep(run, "sub/a.csv") != path
    source.write_text("7")
    source.rename(run / "b.csv")
    (run / "sub" / "a.csv").write_text("7")
    path.unlink()
    path.write_text("spoilt")
    assert again.keep(run, "sub/a.csv") == path and path.read_text() == "7"

    def none(*_: object, **__: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "link", none)
    copy = Inputs(tmp_path / "others").keep(run, "sub/a.csv")
    assert copy.read_text() == "7" and not copy.samefile(source if source.exists() else run / "b.csv")


@pytest.mark.parametrize("copied", [0, inputs.COPIED])
def test_what_takes_the_place_of_a_file_that_was_opened_is_not_taken(tmp_path, run, monkeypatch, copied):
    monkeypatch.setattr(inputs, "COPIED", copied)
    secret = tmp_path / "secret"
    secret.write_text("4242")
    opened = inputs.opened

    def swapped(folder: Path, path: str) -> int:
        file = opened(folder, path)
        (folder / path).unlink()
        (folder / path).symlink_to(secret)
        return file

    monkeypatch.setattr(inputs, "opened", swapped)
    kept = Inputs(tmp_path / "inputs").keep(run, "sub/a.csv")
    assert kept.read_text() == "7" and not kept.is_symlink()


def test_no_link_is_followed_whatever_part_of_the_path_it_is(tmp_path, run):
    secret = tmp_path / "secret"
    secret.write_text("4242")
    (run / "link").symlink_to(secret)
    (run / "folder").symlink_to(tmp_path)
    os.mkfifo(run / "pipe")
    for path in ("link", "folder/secret", "../secret", str(secret), "pipe", "sub"):
        with pytest.raises(BadInput):
            Inputs(tmp_path / "inputs").keep(run, path)
    assert not (tmp_path / "inputs").exists()


def test_a_file_that_is_written_while_it_is_taken_is_refused(tmp_path, run, monkeypatch):
    copied = inputs._copied

    def slowly(file: int, path: Path) -> str:
        (run / "sub" / "a.csv").write_text("77")
        return copied(file, path)

    monkeypatch.setattr(inputs, "_copied", slowly)
    with pytest.raises(BadInput, match="is being written at this moment"):
        Inputs(tmp_path / "inputs").keep(run, "sub/a.csv")
    assert not list((tmp_path / "inputs").rglob("*.*"))


def test_what_no_run_names_is_removed_in_time(tmp_path, run):
    kept = Inputs(tmp_path / "inputs")
    kept.tidy([], time.time())
    (run / "b.csv").write_text("8")
    named, unnamed = kept.keep(run, "sub/a.csv"), kept.keep(run, "b.csv")
    kept.tidy([{"file": str(named), "x": 1.0}], time.time() - 3600)
    assert named.is_file() and unnamed.is_file()
    kept.tidy([{"file": str(named), "x": 1.0}], time.time() + 1)
    assert named.is_file() and not unnamed.parent.exists()


# -- of which runs ----------------------------------------------------------------------------


def test_a_file_of_a_run_that_has_not_come_to_its_end_is_refused(core):
    identity = done(core, 0.3)
    text, row = f"artifact:{identity}/result.json", core.rows[identity]
    for state, words in (
        ("running", r"has not ended \(running\)"),
        ("pending", r"has not ended \(pending\)"),
        ("cancelled", "was cancelled"),
    ):
        row.state = state
        with pytest.raises(NotAllowed, match=words) as refused:
            core._file_of(me(core), text, field="table")
        assert (refused.value.check, refused.value.field, refused.value.value) == ("contract", "table", text)
        assert identity in str(refused.value) and refused.value.do
    for state in ("completed", "failed", "stopped"):
        row.state = state
        path = Path(core._file_of(me(core), text))
        assert path.is_relative_to(core.folder.inputs) and path.name == "result.json"


def test_a_file_of_a_run_whose_work_goes_on_for_another_is_refused(core):
    identity = done(core, 0.3)
    again = core.run(me(core), "synthetic", {"x": 0.3}, label="mine")["id"]
    text = f"artifact:{identity}/result.json"
    core._file_of(me(core), text)
    core.rows[again].state = "running"
    with pytest.raises(NotAllowed, match="is being done once more"):
        core._file_of(me(core), text)
    core.rows[again].state = "completed"


def test_files_of_runs_stay_as_long_as_a_run_that_reads_them(core):
    identity = done(core, 0.3)
    path = Path(core._file_of(me(core), f"artifact:{identity}/result.json"))
    row = core.rows[done(core, 0.4)]
    os.utime(path.parent, (0, 0))
    row.request = {**row.request, "params": {"x": 0.4, "file": str(path)}}

    def an_hour_later() -> None:
        core._expired_at = 0.0
        with core._turn:
            core._expire_in_time()

    an_hour_later()
    assert path.is_file()
    core._workdir(row).rename(core.folder.root / "elsewhere")
    an_hour_later()
    assert not path.exists()


# -- whose account they are on ----------------------------------------------------------------

PEOPLE = """
[roles.reader]
may = ["read", "run", "see_all"]

[people.ada]
role = "reader"

[people.bob]
role = "reader"
"""
SIZE = 20_000


def rules(core: Core, text: str) -> None:
    (core.folder.root / "workspace.toml").write_text(f'name = "ws"\ndefault_site = "threads"\n{PEOPLE}{text}')
    core._rules_read = 0.0


def person(core: Core, name: str) -> Any:
    return core.caller(os.getuid(), as_=name)


def with_files(core: Core, **files: bytes) -> str:
    """A run that has ended, with these files in its folder beside those that were booked."""
    identity = done(core, 0.3)
    for name, content in files.items():
        (core._workdir(core.rows[identity]) / name).write_bytes(content)
    return f"artifact:{identity}/"


def used(core: Core, *people: str) -> list[int]:
    return [core.accounts.of(name).bytes for name in people]


def again(core: Core) -> Core:
    core.close()
    return Core(core.folder.root)


def an_hour_later(core: Core) -> None:
    core._expired_at = 0.0
    with core._turn:
        core._expire_in_time()


def test_a_file_that_is_kept_counts_once_for_whoever_brought_it_first_until_it_is_removed(core):
    rules(core, "")
    run = with_files(core, a=b"a" * SIZE, b=b"b" * SIZE)
    whole = core.accounts.whole.bytes
    path = Path(core._file_of(person(core, "ada"), run + "a"))
    assert used(core, "ada", "bob") == [SIZE, 0] and core.accounts.whole.bytes == whole + SIZE
    core._file_of(person(core, "bob"), run + "a")
    core._file_of(person(core, "ada"), run + "a")
    core._file_of(person(core, "bob"), run + "b")
    assert used(core, "ada", "bob") == [SIZE, SIZE] and core.accounts.whole.bytes == whole + 2 * SIZE
    assert core.costs(person(core, "ada"))["people"]["ada"]["bytes"] == SIZE
    core = again(core)
    assert used(core, "ada", "bob") == [SIZE, SIZE] and core.accounts.whole.bytes == whole + 2 * SIZE
    os.utime(path.parent, (0, 0))
    an_hour_later(core)
    assert not path.exists() and used(core, "ada", "bob") == [0, SIZE]
    core = again(core)
    assert used(core, "ada", "bob") == [0, SIZE] and core.accounts.whole.bytes == whole + SIZE
    core._file_of(person(core, "bob"), run + "a")
    assert used(core, "ada", "bob") == [0, 2 * SIZE]
    core.close()


@pytest.mark.parametrize(
    ("quota", "whose"),
    [("[people.ada.quota]\ngigabytes = 5e-5", "ada"), ("[quota]\ngigabytes = 5e-5", "the workspace")],
)
def test_a_file_beyond_a_quota_is_not_kept_and_it_is_said_what_is_used_and_what_to_do(core, quota, whose):
    rules(core, quota)
    run = with_files(core, a=b"a" * SIZE, b=b"b" * 2 * SIZE)
    core.accounts.whole.bytes = core.accounts.of("ada").bytes = 0
    ada = person(core, "ada")
    core._file_of(ada, run + "a")
    lines = core.folder.journal.read_text()
    with pytest.raises(NotAllowed) as caught:
        core._file_of(ada, run + "b")
    assert (caught.value.check, caught.value.field, caught.value.value) == ("quota", "gigabytes", 4e-5)
    assert (
        f"of 5e-05 GB of files of {whose} 2e-05 are used" in caught.value.why and "copy of b" in caught.value.why
    )
    assert caught.value.allowed == "at most 3e-05" and "expire" in caught.value.do
    assert core.folder.journal.read_text() == lines and used(core, "ada") == [SIZE]
    assert [one.name for one in core.folder.inputs.glob("*/*")] == ["a"]
    core._file_of(ada, run + "a")  # it is here already


def test_a_large_file_takes_no_room_until_the_folder_of_its_run_is_removed(core, monkeypatch):
    monkeypatch.setattr(inputs, "COPIED", 100)
    rules(core, "[people.ada.quota]\ngigabytes = 1e-5")
    path = Path(core._file_of(person(core, "ada"), with_files(core, a=b"a" * SIZE) + "a"))
    assert path.stat().st_nlink == 2 and used(core, "ada") == [0]
    core = again(core)
    next(core.folder.work.glob("*/a")).unlink()
    an_hour_later(core)
    assert path.is_file() and used(core, "ada") == [SIZE]
    core = again(core)
    assert used(core, "ada") == [SIZE]
    core.close()


def test_a_file_that_was_not_kept_after_all_does_not_count(core, monkeypatch):
    rules(core, "")
    run, copied = with_files(core, a=b"a" * SIZE, b=b"b" * SIZE), inputs._copied
    monkeypatch.setattr(inputs, "_copied", lambda *_: "of another file")
    with pytest.raises(BadInput, match="is being written"):
        core._file_of(person(core, "ada"), run + "a")
    assert used(core, "ada") == [0] and not core.kept_files
    monkeypatch.setattr(inputs, "_copied", copied)
    core._file_of(person(core, "ada"), run + "b")
    shutil.rmtree(core.folder.inputs)  # as a service that was killed between its line and the copy leaves it
    core = again(core)
    assert used(core, "ada") == [0] and not core.kept_files
    core.close()


def test_what_a_version_before_has_left_counts_for_the_workspace(core):
    Inputs(core.folder.inputs).keep(core._workdir(core.rows[done(core, 0.3)]), "result.json")
    whole = core.accounts.whole.bytes
    core = again(core)
    [(owner, size)] = core.kept_files.values()
    assert owner == "" and size > 0 and core.accounts.whole.bytes == whole + size
    core.close()


def test_files_whose_line_was_damaged_keep_no_other_from_being_removed(core):
    rules(core, "")
    core._file_of(person(core, "ada"), with_files(core, a=b"a" * SIZE) + "a")
    (path,) = core.kept_files
    core._replay({"event": "inputs_removed", "files": ["of/nobody", path]})
    assert used(core, "ada") == [0] and not core.kept_files and not core.damaged
