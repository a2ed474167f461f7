"""The run directory when things go wrong: torn lines, full disks, second writers, damaged files."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from hpcagent.apps.ending import run_mpi
from hpcagent.apps.run import Run
from hpcagent.errors import BadInput, RunDirGone, RunDirLocked, StoreError, StoreFull
from hpcagent.lifeline import FORKS
from hpcagent.model.contract import Contract, Metric
from hpcagent.model.parameter import Choice, Float
from hpcagent.model.records import Failure, Manifest, Result
from hpcagent.model.space import Space
from hpcagent.store.export import export_table
from hpcagent.store.files import write_whole
from hpcagent.store.journal import Journal, read_events
from hpcagent.store.metrics_file import MetricsFile, read_table, table_of, units_of, write_table
from hpcagent.store.rundir import Lock, holder

CONTRACT = Contract(
    name="a",
    space=Space.of(x=Float(0, 1, unit="ps"), style=Choice("off", "opt")),
    metrics=(Metric(name="speed", unit="ns/day"),),
)


def result(i: int, *, failed: bool = False) -> Result:
    made = Manifest(
        execution_id=f"id-{i}",
        app="a",
        app_version="0.1.0",
        params={"x": 0.1 * i, "style": "opt"},
        index=i,
        batch=i // 2,
    )
    if failed:
        return Result(
            manifest=made, status="FAILED", failure=Failure(kind="simulation", name="LostAtoms", message="gone.")
        )
    return Result(manifest=made, status="COMPLETED", metrics={"speed": 10.0 * i}, uncertainty={"speed": 0.5})


def test_events_come_back_in_order(tmp_path):
    journal = Journal.open(tmp_path / "events.jsonl")
    journal.append([{"event": "a", "n": i} for i in range(3)])
    journal.append([{"event": "b"}])
    journal.close()
    assert [e.get("n", e["event"]) for e in read_events(tmp_path / "events.jsonl")] == [0, 1, 2, "b"]


@pytest.mark.parametrize("cut", [2, 5, 12])
def test_a_torn_last_line_is_set_aside_and_the_next_line_is_whole(tmp_path, cut):
    path = tmp_path / "events.jsonl"
    journal = Journal.open(path)
    journal.append([{"event": "first"}, {"event": "second"}])
    journal.close()
    path.write_bytes(path.read_bytes()[:-cut])
    assert [e["event"] for e in read_events(path)] == ["first"]
    journal = Journal.open(path)
    journal.append([{"event": "third"}])
    journal.close()
    assert [e["event"] for e in read_events(path)] == ["first", "third"]
    assert (tmp_path / "events.torn").read_bytes().startswith(b'{"event')


def test_a_last_event_of_which_only_the_newline_is_missing_is_kept(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"event":"first"}\n{"event":"second"}')
    assert [e["event"] for e in read_events(path)] == ["first", "second"]
    journal = Journal.open(path)
    journal.append([{"event": "third"}])
    journal.close()
    assert [e["event"] for e in read_events(path)] == ["first", "second", "third"]
    assert not (tmp_path / "events.torn").exists()


def test_a_file_that_is_one_torn_line_becomes_empty(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"event": "fir')
    Journal.open(path).close()
    assert path.read_bytes() == b""


def test_a_damaged_line_in_the_middle_costs_only_itself(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"event":"a"}\n\x00\x00garbage\n{"event":"c"}\n')
    assert [e["event"] for e in read_events(path)] == ["a", "damaged", "c"]


@pytest.fixture
def tiny_disk(tmp_path):
    """A file system of 64 kB: a real one where root may mount it, else a write limit of the process."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    if os.geteuid() == 0 and os.system(f"mount -t tmpfs -o size=64k,mode=755 tmpfs {folder} 2>/dev/null") == 0:
        yield folder
        os.system(f"umount {folder}")
        return
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 * 1024, before[1]))
    yield folder
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_one_clear_error_and_keeps_what_was_recorded(tiny_disk):
    path = tiny_disk / "events.jsonl"
    journal = Journal.open(path)
    with pytest.raises(StoreFull, match="hpcagent resume") as caught:
        for i in range(10_000):
            journal.append([{"event": "a", "n": i, "text": "x" * 100}])
    assert caught.value.errno in (errno.ENOSPC, errno.EFBIG)
    kept = [e["n"] for e in read_events(path)]
    assert kept == list(range(len(kept))) and len(kept) > 100
    journal.close()
    # Half a line would show as a torn end.
    assert path.read_bytes().endswith(b"\n")


def test_what_a_full_disk_cuts_off_is_never_the_line_of_another_writer(tmp_path, monkeypatch):
    path = tmp_path / "events.jsonl"
    journal = Journal.open(path)
    journal.append([{"event": "a"}])
    write = os.write

    def full(descriptor, line):
        with path.open("a") as other:  # since the last look
            other.write('{"event":"others"}\n')
        write(descriptor, line[:5])
        monkeypatch.setattr(os, "write", no_room)
        return 5

    def no_room(descriptor, line):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(StoreFull):
        journal.append([{"event": "b"}])
    monkeypatch.undo()
    journal.close()
    assert [e["event"] for e in read_events(path)][:2] == ["a", "others"]


def test_a_full_disk_leaves_the_old_metrics_file_whole(tiny_disk):
    path = tiny_disk / "metrics.h5"
    file = MetricsFile(path, CONTRACT)
    file.update(lambda: [result(1)], final=True)
    with pytest.raises(StoreFull):
        file.update(lambda: [result(i) for i in range(5000)], final=True)
    columns, _ = read_table(path)
    assert list(columns["metrics/speed"]) == [10.0]


FILLING = """
import resource, sys
from pathlib import Path
from hpcagent.errors import StoreFull
from hpcagent.store.metrics_file import write_table

resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
try:
    write_table(Path(sys.argv[1]), {"value": [0.5] * 4000, "name": ["a name"] * 500}, {"value": "s"})
except StoreFull as error:
    print(error)
"""


def test_a_disk_that_fills_under_the_metrics_file_does_not_kill_the_process(tmp_path):
    # HDF5 itself ends with a segmentation fault, at the latest when the interpreter exits.
    path = tmp_path / "metrics.h5"
    done = subprocess.run([sys.executable, "-c", FILLING, path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "metrics.h5 cannot be written: File too large" in done.stdout
    assert not done.stderr and not list(tmp_path.iterdir())


def test_a_whole_file_replaces_the_old_one_or_nothing(tmp_path):
    path = tmp_path / "x.json"
    write_whole(path, "old")
    missing = tmp_path / "no" / "x.json"
    with pytest.raises(StoreFull, match="No such file"):
        write_whole(missing, "new")
    write_whole(path, "new")
    assert path.read_text() == "new" and not list(tmp_path.glob("*.part"))


def test_metrics_come_with_units_and_missing_numbers_are_nan(tmp_path):
    path = tmp_path / "metrics.h5"
    MetricsFile(path, CONTRACT).update(lambda: [result(1), result(2, failed=True)], final=True)
    columns, units = read_table(path)
    assert columns["metrics/speed"][0] == 10.0 and np.isnan(columns["metrics/speed"][1])
    assert units["metrics/speed"] == "ns/day" and units["params/x"] == "ps"
    assert list(columns["failure"]) == ["", "LostAtoms"] and list(columns["params/style"]) == ["opt", "opt"]


@pytest.mark.parametrize("same", [True, False], ids=["same session", "resumed"])
def test_a_run_that_is_run_again_replaces_its_row(tmp_path, same):
    path = tmp_path / "metrics.h5"
    file = MetricsFile(path, CONTRACT)
    file.update(lambda: [result(1), result(2, failed=True)], final=True)
    (file if same else MetricsFile(path, CONTRACT)).update(lambda: [result(1), result(2)], final=True)
    columns, _ = read_table(path)
    assert list(columns["metrics/speed"]) == [10.0, 20.0]
    written = path.stat().st_mtime_ns
    MetricsFile(path, CONTRACT).update(lambda: [result(1), result(2)], final=True)
    assert path.stat().st_mtime_ns == written  # nothing new, nothing written


def test_metrics_can_be_read_again_and_again_while_they_are_written(tmp_path):
    path = tmp_path / "metrics.h5"
    file = MetricsFile(path, CONTRACT)
    file.update(lambda: [result(0)], final=True)
    stop, seen, errors = threading.Event(), [], []

    def read():
        while not stop.is_set():
            try:
                seen.append(len(read_table(path)[0]["index"]))
            except BadInput as error:
                errors.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    for n in range(1, 60):
        file.update(lambda: [result(i) for i in range(n)], final=True)
    stop.set()
    reader.join()
    assert not errors and seen == sorted(seen)


def test_a_second_coordinator_is_told_who_has_the_folder(tmp_path):
    first = Lock(tmp_path)
    first.acquire()
    with pytest.raises(RunDirLocked, match=f"process {os.getpid()}"):
        Lock(tmp_path).acquire()
    first.release()
    again = Lock(tmp_path)
    again.acquire()
    again.release()


def test_a_lock_that_a_full_disk_refuses_is_not_kept(tmp_path, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    lock = Lock(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(StoreFull):
            lock.acquire()
    other = Lock(tmp_path)
    other.acquire()
    other.release()
    lock.acquire()
    lock.release()


def test_a_read_only_folder_is_one_clear_error(tmp_path):
    # /proc refuses new files to everyone, root included.
    with pytest.raises(StoreFull):
        Lock(Path("/proc")).acquire()
    with pytest.raises(StoreFull):
        Journal.open(Path("/proc/events.jsonl"))


def test_a_journal_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(StoreError, match="No such file"):
        list(read_events(tmp_path / "events.jsonl"))


def test_csv_has_units_in_its_header_and_nothing_for_missing_numbers(tmp_path):
    results = [result(1), result(2, failed=True)]
    path = tmp_path / "r.csv"
    export_table(table_of(results, CONTRACT), units_of(results, CONTRACT), path, to="csv")
    header, first, second = path.read_text().splitlines()
    assert "params/x [ps]" in header and "metrics/speed [ns/day]" in header
    column = header.split(",").index("metrics/speed [ns/day]")
    assert first.split(",")[column] == "10.0" and second.split(",")[column] == ""


def test_parquet_reads_back_with_units(tmp_path):
    import pyarrow.parquet

    results = [result(1), result(2)]
    path = tmp_path / "r.parquet"
    export_table(table_of(results, CONTRACT), units_of(results, CONTRACT), path, to="parquet")
    table = pyarrow.parquet.read_table(path)
    assert table["metrics/speed"].to_pylist() == [10.0, 20.0]
    assert table.schema.field("metrics/speed").metadata[b"unit"] == b"ns/day"
    with pytest.raises(BadInput, match="known: csv, parquet"):
        export_table({}, {}, path, to="xlsx")


def test_a_journal_line_is_plain_json(tmp_path):
    journal = Journal.open(tmp_path / "events.jsonl")
    journal.append([{"event": "results", "results": [{"x": 1e-05}]}, b'{"event":"raw"}'])
    journal.close()
    lines = (tmp_path / "events.jsonl").read_text().splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["results", "raw"]


def test_who_holds_a_folder_for_a_moment_does_not_pass_for_its_coordinator(tmp_path):
    (tmp_path / ".lock").write_text('{"host": "login1", "pid": 7, "since": 0}')
    lock = Lock(tmp_path, passing=True)
    lock.acquire()
    assert holder(tmp_path)[0] and holder(tmp_path)[1].pid == os.getpid()
    lock.release()
    held, who = holder(tmp_path)
    assert not held and who is not None and (who.host, who.pid) == ("login1", 7)


@pytest.mark.parametrize("words", ["[" * 100_000, '{"host": "a", "pid": 1e999, "since": 0}', "[]", "\0" * 20, "7"])
def test_a_damaged_lock_file_names_nobody(tmp_path, words):
    (tmp_path / ".lock").write_text(words)
    assert holder(tmp_path) == (False, None)


def test_a_lock_file_with_a_time_beyond_the_calendar_can_be_shown(tmp_path):
    (tmp_path / ".lock").write_text('{"host": "a", "pid": 1, "since": 1e300}')
    assert "process 1 on a, since 1e+300 s" in str(holder(tmp_path)[1])


def test_a_damaged_metrics_file_is_an_error_that_names_it_wherever_the_damage_is(tmp_path):
    path = tmp_path / "metrics.h5"
    MetricsFile(path, CONTRACT).update(lambda: [result(i) for i in range(4)], final=True)
    whole = path.read_bytes()
    end = len(whole) - 32  # where the digest's own bytes begin
    for start in range(0, len(whole), len(whole) // 60):
        path.write_bytes(whole[:start] + b"\xff" * 24 + whole[start + 24 :])
        wrong = pytest.raises(BadInput, match=r"metrics\.h5 cannot be read.*delete it")
        with wrong if start < end - 64 else nullcontext():
            read_table(path)
    # It is derived: what is damaged is written anew, and a file without a digest is read as before.
    path.write_bytes(whole[:100] + b"\xff" * 24 + whole[124:])
    MetricsFile(path, CONTRACT).update(lambda: [result(i) for i in range(4)], final=True)
    assert len(read_table(path)[0]["execution_id"]) == 4
    path.write_bytes(whole[: whole.rindex(b"\0hpcagent sha256\0")])
    assert len(read_table(path)[0]["execution_id"]) == 4


def test_one_line_of_any_length_does_not_stop_a_reader(tmp_path, monkeypatch):
    monkeypatch.setattr("hpcagent.store.journal.LONGEST_EVENT", 1000)
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"event":"a"}\n{"event":"' + b"x" * 5000 + b'"}\n{"event":"b"}\n' + b"y" * 3500)
    assert [e["event"] for e in read_events(path)] == ["a", "damaged", "b", "damaged"]
    Journal.open(path).close()
    assert (tmp_path / "events.torn").read_bytes() == b"y" * 3500 + b"\n"


@pytest.mark.parametrize("what", ["write", "start"])
def test_no_program_is_started_while_hdf5_is_written(tmp_path, what):
    # Each would otherwise wait for a lock that the other has, where h5py was imported before logging.
    done = threading.Event()

    def work():
        if what == "write":
            write_table(tmp_path / "t.h5", {"a": ["text"]}, {})
        else:
            run_mpi(Run(workdir=tmp_path, site={}), ["true"])
        done.set()

    other = threading.Thread(target=work, daemon=True)
    with FORKS:
        other.start()
        assert not done.wait(0.3)
    assert done.wait(20)


def test_what_a_disk_refuses_only_when_it_is_asked_to_keep_it_is_not_in_the_journal(tmp_path, monkeypatch):
    """A network file system says at fsync that a quota is used up: the caller asks again, and nothing counts twice."""
    path = tmp_path / "events.jsonl"
    journal = Journal.open(path)
    journal.append([{"event": "one"}])
    before = path.read_bytes()

    def refused(*_):
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", refused)
        journal._synced_at = -1e9
        with pytest.raises(StoreFull):
            journal.append([{"event": "two"}])
        assert path.read_bytes() == before
        patched.setattr(os, "ftruncate", refused)  # nor can it be cut: then nothing is written behind it
        with pytest.raises(StoreFull):
            journal.append([{"event": "two"}])
    with pytest.raises(RunDirGone):
        journal.check()
    journal.close()
