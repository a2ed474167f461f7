"""The journal of events: which file is written, and how often the folder is listed for that."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from hpcagent.contexts import event_log
from hpcagent.contexts.event_log import EventLog


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Folders that were listed."""
    found: list[str] = []
    scandir = os.scandir

    def counted(folder: str) -> object:
        found.append(str(folder))
        return scandir(folder)

    monkeypatch.setattr(event_log.os, "scandir", counted)
    return found


def numbers(folder: Path) -> list[int]:
    log = EventLog(folder, keep=1000, keep_s=1e6)
    return [line.n for line in log.read(0, 10_000)[0]]


def test_who_writes_alone_lists_the_folder_once_for_a_file(tmp_path: Path, listed: list[str]) -> None:
    log = EventLog(tmp_path, keep=200, keep_s=1e6)  # twenty lines a file
    for n in range(1, 61):
        assert log.append({"x": n}) == n
    assert len(list(tmp_path.glob("*.jsonl"))) == 4
    assert listed.count(str(tmp_path)) <= 4 * 3  # who listens is looked for with each line
    assert numbers(tmp_path) == list(range(1, 61))


def test_two_who_write_in_turn_begin_each_file_once_and_give_no_number_twice(tmp_path: Path) -> None:
    one, other = (EventLog(tmp_path, keep=50, keep_s=1e6) for _ in range(2))  # five lines a file
    turns = [one, one, other, one, other, other, other, one, one, one, one, other] * 6
    assert [log.append({"x": 1}) for log in turns] == list(range(1, len(turns) + 1))
    other.last()
    assert one.append({"x": 1}) == len(turns) + 1
    assert {int(path.stem) % 5 for path in tmp_path.glob("*.jsonl")} == {1}


def test_a_file_that_was_cut_to_where_it_was_left_is_not_gone_on_with(tmp_path: Path) -> None:
    one, other = (EventLog(tmp_path, keep=1000, keep_s=1e6) for _ in range(2))
    assert [one.append({"x": 1}) for _ in range(3)] == [1, 2, 3]
    (path,) = tmp_path.glob("*.jsonl")
    size = path.stat().st_size
    time.sleep(0.05)  # the kernel's clock for files is coarse; people are slower
    assert other.append({"x": "damaged"}) == 4
    path.write_bytes(path.read_bytes().replace(b"damaged", b"another"))
    assert other.repair() > 0
    assert path.stat().st_size == size
    # The number 4 was given: no other line has it.
    assert one.append({"x": 1}) > 3 and numbers(tmp_path)[:3] == [1, 2, 3]
    newest = max(tmp_path.glob("*.jsonl"), key=lambda p: p.stem)
    assert newest != path and path.stat().st_size == size


def test_a_number_beyond_the_last_line_is_no_place_and_does_not_count_as_written(tmp_path: Path) -> None:
    log = EventLog(tmp_path, keep=1000, keep_s=1e6)
    for n in range(10):
        log.append({"x": n})
    assert log.read(12, 100) == ([], 0) and log.read(10**9, 1) == ([], 0)
    assert not log.has(12) and not log.has(10**9) and log.has(10)
    assert (log.within(7), log.within(10), log.within(12)) == (7, 10, 10)
    for n in range(10, 15):
        log.append({"x": n})
    assert [line.n for line in log.read(12, 100)[0]] == [13, 14, 15]
    assert log.has(15) and log.within(15) == 15
