"""jobs.jsonl loses no job: not to a torn line, a full disk or another writer."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from hpcagent.errors import StoreError, StoreFull
from hpcagent.sites.ledger import Ledger, damage, read_ledger
from hpcagent.sites.schedulers.answers import Job


def test_a_job_is_followed_from_its_name_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "run" / "jobs.jsonl"
    assert read_ledger(path) == []
    ledger = Ledger(path)
    for name in ("a", "b", "c", "d"):
        ledger.submitting(name, "slurm", site="here", nodes=2)
    ledger.submitted("a", "1")
    ledger.ended("a", Job("1", "timeout", reason="TIMEOUT, TimeLimit", exit_code=-15))
    ledger.refused("b", "Invalid partition name specified")
    ledger.submitted("c", "3")
    a, b, c, d = read_ledger(path)
    assert (a.job_id, a.ended, a.reason, a.exit_code) == ("1", "timeout", "TIMEOUT, TimeLimit", -15)
    assert (b.job_id, b.ended, b.reason) == (None, "refused", "Invalid partition name specified")
    assert (c.job_id, c.ended) == ("3", None)
    assert (d.job_id, d.ended, d.scheduler) == (None, None, "slurm")
    assert d.about is not None and d.about["nodes"] == 2 and d.about["site"] == "here" and d.submitted_at > 0


def test_node_hours_of_a_job_are_its_nodes_times_the_time_from_its_start_to_its_end(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "jobs.jsonl")
    for name in ("ran", "waited", "unknown", "open"):
        ledger.submitting(name, "slurm", nodes=4)
    now = time.time()
    ledger.ended("ran", Job("1", "cancelled", started_at=now - 3600, ends_at=now - 1800))
    ledger.ended("waited", Job("2", "cancelled"))
    ledger.ended("unknown", Job("3", "failed", ends_at=now + 7200))  # the end of a walltime that it did not reach
    ran, waited, unknown, still_open = read_ledger(ledger.path)
    assert (ran.node_hours, waited.node_hours, still_open.node_hours) == (pytest.approx(2.0), 0.0, 0.0)
    assert 0.0 <= unknown.node_hours < 0.1


@pytest.mark.parametrize("cut", range(1, 40, 3))
def test_a_line_torn_anywhere_costs_only_what_it_said(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "jobs.jsonl"
    ledger = Ledger(path)
    ledger.submitting("a", "slurm")
    ledger.submitted("a", "1")
    ledger.submitting("b", "slurm")
    ledger.submitted("b", "2")
    path.write_bytes(path.read_bytes()[:-cut])  # the writer was killed, or the disk was full
    Ledger(path).submitting("c", "slurm")  # a later coordinator goes on
    a, b, c = read_ledger(path)
    assert (a.job_id, c.name) == ("1", "c")
    assert b.name == "b" and b.job_id in (None, "2") and b.ended is None  # never taken for ended


def test_damage_in_the_middle_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "jobs.jsonl"
    Ledger(path).submitting("a", "slurm")
    with path.open("ab") as file:
        file.write(b'\xff\x00garbage\n[1, 2]\n{"event": "submitted"}\n{"event": "ended", "name": "unheard of"}\n')
        file.write(b'{"event": "submitting", "name": "x"}\n')
    Ledger(path).submitted("a", "1")
    (a,) = read_ledger(path)
    assert a.job_id == "1"


def test_what_cannot_be_written_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreFull, match="could be left running unseen"):
        Ledger(tmp_path / "file" / "jobs.jsonl").submitting("a", "slurm")
    with pytest.raises(StoreFull, match="cannot be written"):
        Ledger(Path("/dev/full")).submitting("a", "slurm")


def test_writers_in_several_threads_do_not_mix_their_lines(tmp_path: Path) -> None:
    ledgers = [Ledger(tmp_path / "jobs.jsonl") for _ in range(4)]
    threads = [
        threading.Thread(target=lambda k=k: [ledgers[k].submitting(f"{k}.{i}", "pbs") for i in range(20)])
        for k in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(read_ledger(tmp_path / "jobs.jsonl")) == 80


@pytest.mark.parametrize(
    "line",
    [
        b"\0" * 80,
        b"{",
        b"[" * 100_000,
        b'{"event":"submitting","name":"b","scheduler":"slurm","at":1.0,"nodes":"many"}',
        b'{"event":"ended","name":"a","job_id":"7","state":"completed","started_at":"soon","ended_at":2.0}',
        b'{"event":"ended","name":"a","job_id":"7","state":"completed","started_at":1.0,"ended_at":1e999}',
        b'{"event":"submitted","name":"nobody","job_id":"8"}',
        b"7",
    ],
)
def test_a_line_that_cannot_be_read_is_said_with_what_it_may_mean(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "jobs.jsonl"
    ledger = Ledger(path)
    ledger.submitting("a", "slurm", nodes=1)
    ledger.submitted("a", "7")
    assert damage(path) == ""
    with path.open("ab") as file:
        file.write(line + b"\n")
    assert damage(path).startswith(
        "1 line(s) of jobs.jsonl cannot be read (line 3): a job that only they tell of may"
    )
    assert [(e.name, e.job_id, e.ended, e.node_hours) for e in read_ledger(path)] == [("a", "7", None, 0.0)]


def test_a_ledger_that_cannot_be_read_is_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "jobs.jsonl"
    path.symlink_to(path.name)
    with pytest.raises(StoreError, match=r"jobs\.jsonl cannot be read: Too many levels"):
        read_ledger(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(StoreError, match=r"jobs\.jsonl cannot be read: Is a directory"):
        read_ledger(path)
