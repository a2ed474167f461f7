"""A full disk tears a line of a file; it loses none."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from hpcagent.apps.lines import Lines, new_lines


def test_a_line_that_found_no_room_comes_whole_later_and_the_torn_piece_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "answers.jsonl"
    room = [1000]
    whole = os.write

    def write(descriptor: int, text: bytes) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = whole(descriptor, text[: room[0]])
        room[0] -= written
        return written

    assert new_lines(path, 0) == ([], 0)
    lines = Lines(path)
    monkeypatch.setattr(os, "write", write)
    assert lines.add({"n": 1})
    room[0] = 4
    assert not lines.add({"n": 2}) and not lines.add({"n": 3})
    found, at = new_lines(path, 0)
    assert found == [{"n": 1}]
    room[0] = 3  # again only a piece
    assert not lines.flush()
    room[0] = 1000
    assert lines.add({"n": 4})
    lines.close()
    found, at = new_lines(path, at)
    assert found == [{"n": 2}, {"n": 3}, {"n": 4}] and at == path.stat().st_size
    assert new_lines(path, at) == ([], at)


def test_damaged_lines_are_passed_over_and_one_that_is_not_whole_waits(tmp_path: Path) -> None:
    path = tmp_path / "more.jsonl"
    path.write_bytes(b'{"order": {"n"\n\x00\xff\n[]\n' + b"[" * 100_000 + b'\n{"order": {"n": 1}}\n{"drop"')
    found, at = new_lines(path, 0)
    assert found == [{"order": {"n": 1}}]
    with path.open("ab") as file:
        file.write(b": true}\n")
    assert new_lines(path, at)[0] == [{"drop": True}]
