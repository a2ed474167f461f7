"""A process without streams, without a working directory, or with umask 000."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpcagent.campaign.loading import load_campaign
from hpcagent.campaign.view import Lines, watch
from hpcagent.errors import BadInput
from hpcagent.sites.opening import open_site
from hpcagent.store.rundir import RunDir
from hpcagent.surroundings import open_closed_streams


def test_a_process_without_streams_has_files_of_its_own_elsewhere(tmp_path):
    code = (
        "import os, sys; from hpcagent.surroundings import open_closed_streams; open_closed_streams(); "
        f"file = open({str(tmp_path / 'journal')!r}, 'w'); print('lost'); "
        "print('lost', file=sys.stderr); os.write(2, b'lost'); print(file.fileno(), file=file)"
    )
    subprocess.run(f'exec "{sys.executable}" -c "{code}" <&- >&- 2>&-', shell=True, check=True)
    assert int((tmp_path / "journal").read_text()) > 2


def test_where_stderr_is_closed_nobody_looks_and_nothing_breaks(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    view = watch(load_campaign("synthetic"))
    assert isinstance(view, Lines)
    view._say("text")
    monkeypatch.undo()
    open_closed_streams()
    assert sys.stderr is not None


def test_a_deleted_working_directory_is_one_clear_error(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(BadInput, match="working directory of this process was deleted"):
        open_site("threads", run_dir=tmp_path / "run")


def test_whatever_the_umask_other_users_write_no_folder_of_a_campaign(tmp_path):
    before = os.umask(0)
    try:
        RunDir(tmp_path / "a" / "b").create()
    finally:
        os.umask(before)
    modes = [Path(p).stat().st_mode & 0o777 for p in (tmp_path / "a", tmp_path / "a" / "b" / "work")]
    assert modes == [0o775, 0o775]
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(BadInput, match="can be written by every user"):
        RunDir(tmp_path / "open").create()
