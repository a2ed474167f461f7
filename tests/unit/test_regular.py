"""A named pipe in the place of a file is refused at once; nobody waits for whoever would write into it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcagent.apps import printed
from hpcagent.apps.finished import final_result
from hpcagent.errors import BadInput
from hpcagent.regular import open_regular, read_regular
from hpcagent.science.lammps.growing import Growing
from hpcagent.science.lammps.log import read_log
from hpcagent.science.lammps.restart import read_logs
from hpcagent.science.lammps.restart_file import restart_step
from hpcagent.science.lammps.script import read_script


def at_once(work: Callable[[], Any], pipe: Path) -> Any:
    """What a call gives, or the exception that it raises; it must not wait for the pipe."""
    given: list[Any] = []

    def call() -> None:
        try:
            given.append(work())
        except Exception as error:
            given.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(20)
    if thread.is_alive():
        os.close(os.open(pipe, os.O_RDWR))  # lets it go
        thread.join(20)
        raise AssertionError("it waits for the pipe")
    return given[0]


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    path = tmp_path / "log.lammps"
    os.mkfifo(path)
    return path


@pytest.mark.parametrize("read", [open_regular, read_regular, printed.read_bytes, printed.read_text, read_log])
def test_a_pipe_is_no_file(pipe: Path, read: Callable[[Path], Any]) -> None:
    error = at_once(lambda: read(pipe), pipe)
    assert isinstance(error, OSError) and "no regular file" in str(error)


@pytest.mark.parametrize("read", [printed.read_head, printed.read_tail])
def test_nor_is_its_beginning_or_its_end_waited_for(pipe: Path, read: Callable[[Path], Any]) -> None:
    assert isinstance(at_once(lambda: read(pipe), pipe), OSError)


def test_a_restart_file_that_is_a_pipe_is_not_whole(pipe: Path) -> None:
    assert at_once(lambda: restart_step(pipe), pipe) is None


def test_a_log_that_is_a_pipe_is_not_read(pipe: Path) -> None:
    assert at_once(lambda: read_logs(pipe.parent, []), pipe) == ""
    assert isinstance(at_once(Growing(pipe.parent).read, pipe), OSError)


def test_a_script_that_is_a_pipe_is_refused_in_a_sentence(pipe: Path) -> None:
    error = at_once(lambda: read_script(pipe), pipe)
    assert isinstance(error, BadInput) and "no regular file" in error.message


def test_a_result_that_is_a_pipe_is_an_error_of_the_machine(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    os.mkfifo(path)
    assert isinstance(at_once(lambda: final_result(tmp_path), path), OSError)


def test_a_folder_is_still_called_a_folder(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        open_regular(tmp_path)
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "none")


def test_a_link_is_not_followed_where_a_program_could_have_put_it(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("Step Temp\n")
    (tmp_path / "log.lammps").symlink_to(tmp_path / "secret")
    assert read_regular(tmp_path / "log.lammps") == b"Step Temp\n"
    with pytest.raises(OSError, match="symbolic link"):
        open_regular(tmp_path / "log.lammps", follow=False)
    with pytest.raises(OSError, match="symbolic link"):
        Growing(tmp_path, []).read()
