"""Runs that write no file: a line each in their worker's file, and no directory."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import hpcagent as ha
from hpcagent.apps import run_records, worker
from hpcagent.apps.decorator import app
from hpcagent.apps.run import Run
from hpcagent.apps.run_records import Begun, Ended, RunRecords, record_file
from hpcagent.campaign.recorded import found_result
from hpcagent.model.parameter import Float
from hpcagent.model.records import Manifest


@app(parameters={"x": Float(-2, 2)}, metrics={"y": "eV"})
def seeded(x, run):
    return {"y": x**2 + run.seed}


@app(parameters={"x": Float(-2, 2)}, metrics={"y": "eV"})
def writing(x, run):
    with ThreadPoolExecutor(4) as threads:  # all of them get the one directory
        assert len(set(threads.map(lambda _: run.workdir, range(8)))) == 1
    (run.workdir / "out.txt").write_text(str(x))
    return {"y": x}


@app(parameters={"x": Float(-2, 2)}, metrics={"y": "eV"})
def breaking(x, run):
    raise RuntimeError("broken")


def order_of(made: Any, work: Path, x: float = 1.0, **more: Any) -> dict[str, Any]:
    order = made.order(made.manifest({"x": x}), work=work, site={"node_cores": 2})
    return order | {"records": f"{work}/records"} | more


def name_of(order: dict[str, Any]) -> str:
    return str(order["manifest"]["execution_id"])


def everything(work: Path) -> dict[str, run_records.OnRecord]:
    return RunRecords(work).of(lambda name: True)


def test_a_run_that_writes_no_file_has_a_line_and_no_directory(tmp_path):
    order, failed = order_of(seeded, tmp_path), order_of(breaking, tmp_path)
    answers = [worker.execute(order), worker.execute(failed)]
    assert [path.name for path in tmp_path.iterdir()] == ["records"]
    assert len(list((tmp_path / "records").iterdir())) == 1
    known = everything(tmp_path)
    for one, answer in zip((order, failed), answers, strict=True):
        assert known[name_of(one)].result == json.loads(json.dumps(answer))
        assert known[name_of(one)].manifest == json.loads(json.dumps(one["manifest"]))
    assert (
        answers[0]["workdir"] == ""
        and answers[0]["metrics"] == {"y": 1.0}
        and answers[1]["failure"]["name"] == "RuntimeError"
    )
    assert RunRecords(tmp_path).begun() == set(known)


def test_a_run_that_asks_for_its_directory_has_it_with_its_record_in_it(tmp_path):
    order = order_of(writing, tmp_path)
    answer = worker.execute(order)
    folder = tmp_path / name_of(order)
    assert {path.name for path in folder.iterdir()} == {"manifest.json", "result.json", "out.txt"}
    assert json.loads((folder / "result.json").read_text()) == json.loads(json.dumps(answer))
    assert everything(tmp_path)[name_of(order)].result is None and answer["metrics"] == {"y": 1.0}


def test_a_run_that_was_sent_before_uses_what_is_finished_and_sets_the_rest_aside(tmp_path):
    order = order_of(writing, tmp_path)
    folder = tmp_path / name_of(order)
    first = worker.execute(order)
    assert worker.execute(order | {"again": True}) == first
    (folder / "result.json").unlink()
    assert worker.execute(order | {"again": True})["started_at"] > first["started_at"]
    assert (folder / "attempt-1" / "out.txt").exists()
    assert not (tmp_path / name_of(order_of(seeded, tmp_path, again=True))).exists()


def test_a_run_that_has_ended_on_record_is_not_computed_again(tmp_path):
    order, failed = order_of(seeded, tmp_path), order_of(breaking, tmp_path)
    before = [worker.execute(one) for one in (order, failed)]  # then the worker was lost
    ended = Ended(tmp_path)
    ended.look(lambda name: False)
    again = [
        worker.execute(one | {"again": True, "attempt": 2, "ended": ended.of(name_of(one))})
        for one in (order, failed)
    ]
    assert [json.dumps(answer) for answer in again] == [json.dumps(answer) for answer in before]


@app(parameters={"x": Float(-2, 2)}, metrics={"y": "eV"})
def forking(x, run):
    children = []
    for part in range(3):
        child = os.fork()
        if child == 0:
            (run.workdir / f"part{part}").write_text("1")
            os._exit(0)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]
    return {"y": x}


def test_processes_that_a_function_forks_share_its_directory(tmp_path):
    order = order_of(forking, tmp_path)
    answer = worker.execute(order)
    folder = tmp_path / name_of(order)
    assert {path.name for path in folder.iterdir()} == {"manifest.json", "result.json", "part0", "part1", "part2"}
    assert answer["workdir"] == str(folder)


def test_a_damaged_number_of_the_records_ends_nothing(tmp_path):
    file = record_file(f"{tmp_path}/records")
    file.begun({"execution_id": "a"}, 1)
    [path] = (tmp_path / "records").iterdir()
    with path.open("ab") as more:
        more.write(b'{"event":"ended","execution_id":"a","result":{"ended_at":1' + b"0" * 400 + b"}}\n")
        more.write(b'{"event":"begun","execution_id":"b","at":nan,"attempt":nan,"manifest":{}}\n')
    assert "is damaged" in everything(tmp_path)["a"].wrong
    begun = Begun(tmp_path)
    begun.look()
    assert begun.last("b") == 0.0


def test_without_records_a_run_has_a_directory_as_before(tmp_path):
    order = order_of(seeded, tmp_path)
    del order["records"]
    worker.execute(order)
    assert {path.name for path in (tmp_path / name_of(order)).iterdir()} == {"manifest.json", "result.json"}


def test_a_hundred_runs_cost_hardly_a_call_on_the_file_system(tmp_path):
    """Counted by Python's audit events: opening, making, renaming, listing, removing; in another process."""
    code = """
    import sys
    from pathlib import Path
    from hpcagent.apps import worker
    from hpcagent.apps.landscape import synthetic
    work = Path(sys.argv[1])
    orders = [
        synthetic.order(synthetic.manifest({"x": 0.1 + i / 1000}), work=work, site={"node_cores": 2})
        | {"records": f"{work}/records"}
        for i in range(101)
    ]
    worker.execute(orders.pop())
    calls = []
    wanted = {"open", "os.mkdir", "os.rename", "os.listdir", "os.scandir", "os.remove", "os.rmdir", "os.link"}
    sys.addaudithook(lambda event, args: calls.append((event, str(args[0]))) if event in wanted else None)
    written, write = [], worker.os.write
    worker.os.write = lambda descriptor, data: written.append(len(data)) or write(descriptor, data)
    for order in orders:
        worker.execute(order)
    print(len(calls), len(written), max(written), calls[:5])
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(tmp_path)], capture_output=True, text=True, check=True
    )
    calls, writes, largest, *_ = done.stdout.split()
    assert int(calls) <= 10, done.stdout  # at most one opening a second
    assert int(writes) == 200 and int(largest) < 2000, done.stdout


def test_what_a_full_disk_has_cut_off_costs_one_line(tmp_path, monkeypatch):
    file = record_file(f"{tmp_path}/records")
    file.begun({"execution_id": "a"}, 1)
    write = os.write
    monkeypatch.setattr(run_records.os, "write", lambda descriptor, data: write(descriptor, data[:20]))
    with pytest.raises(OSError, match="No space"):
        file.ended("a", {"ended_at": 1.0})
    monkeypatch.undo()
    file.begun({"execution_id": "b"}, 1)
    file.ended("b", {"ended_at": 2.0})
    known = everything(tmp_path)
    assert known["a"].result is None and known["b"].result == {"ended_at": 2.0}


def test_a_full_disk_is_a_failure_of_the_machine(tmp_path, monkeypatch):
    order = order_of(seeded, tmp_path)
    monkeypatch.setattr(run_records.os, "write", lambda descriptor, data: 0)
    failure = worker.execute(order)["failure"]
    assert (failure["kind"], failure["name"]) == ("infrastructure", "DiskFull")


@app(parameters={"x": Float(-2, 2)}, metrics={"y": "eV"}, settings={"kept": ""})
def taking(x, run):
    """Close all descriptors, as a daemon does, and open files of its own under the lowest numbers and all others."""
    os.closerange(3, 4096)
    low = [os.open(run.settings["kept"], os.O_WRONLY | os.O_APPEND | os.O_CREAT) for _ in range(4)]
    for number in range(500, 510):
        os.dup2(low[0], number)
    os.write(low[0], b"mine\n")
    return {"y": x}


def test_a_run_that_closes_our_descriptors_gets_no_line_into_its_files_and_fails_nobody(tmp_path):
    """In a process of its own: it closes what the tests have open."""
    code = """
    import sys
    from pathlib import Path
    from hpcagent.apps import worker
    from test_run_records import order_of, seeded, taking
    work = Path(sys.argv[1])
    taker = order_of(taking, work)
    taker["settings"] = {**taker["settings"], "kept": str(work / "mine.txt")}
    orders = [order_of(seeded, work, 0.5), taker, order_of(seeded, work), order_of(seeded, work, 0.25)]
    print([worker.execute(order).get("failure") for order in orders])
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parent,
    )
    assert done.stdout.strip() == "[None, None, None, None]"
    assert (tmp_path / "mine.txt").read_text() == "mine\n"
    known = everything(tmp_path)
    assert len(known) == 4 and all(one.result["status"] == "COMPLETED" for one in known.values())


def test_a_file_that_the_file_system_has_lost_is_opened_once_more(tmp_path, monkeypatch):
    write, broken = os.write, [errno.ESTALE]
    monkeypatch.setattr(run_records, "_CLOSED_EVERY_S", 1e9)

    def failing(descriptor: int, data: bytes) -> int:
        if broken:
            raise OSError(broken.pop(), "gone bad")
        return write(descriptor, data)

    monkeypatch.setattr(run_records.os, "write", failing)
    assert worker.execute(order_of(seeded, tmp_path))["status"] == "COMPLETED"
    assert [path.name for path in tmp_path.iterdir()] == ["records"] and len(everything(tmp_path)) == 1
    broken += [errno.EIO, errno.EIO]  # for good: the run has a directory, as one that writes files
    order = order_of(seeded, tmp_path, 0.5)
    answer = worker.execute(order)
    folder = tmp_path / name_of(order)
    assert answer["workdir"] == str(folder) and "gone bad" in answer["notes"][0]
    assert {path.name for path in folder.iterdir()} == {"manifest.json", "result.json"}
    assert worker.execute(order_of(seeded, tmp_path, 0.25))["workdir"] == ""  # and the next one goes on there


def test_where_the_records_are_refused_a_run_has_a_directory_and_its_message_names_what_is_in_the_way(tmp_path):
    (tmp_path / "records").write_text("in the way")
    order = order_of(seeded, tmp_path)
    answer = worker.execute(order)
    folder = tmp_path / name_of(order)
    assert (
        answer["status"] == "COMPLETED" and "records/" in answer["notes"][0] and answer["workdir"] == str(folder)
    )
    assert json.loads((folder / "result.json").read_text()) == json.loads(json.dumps(answer))
    (tmp_path / "closed").write_text("in the way too")
    order = order_of(seeded, tmp_path) | {"workdir": str(tmp_path / "closed" / "a")}
    failure = worker.execute(order)["failure"]
    assert failure["name"] == "NotADirectoryError" and str(tmp_path / "closed") in failure["message"]
    # Gone between a run's two lines: the result is not lost.
    other = tmp_path / "other"
    order = order_of(seeded, other, 0.5)
    record_file(order["records"]).close()
    begun = run_records._RecordFile.begun

    def then_gone(self: Any, *given: Any) -> None:
        begun(self, *given)
        self.close()
        (other / "records").rename(other / "away")
        (other / "records").write_text("in the way")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_records._RecordFile, "begun", then_gone)
        answer = worker.execute(order)
    assert answer["workdir"] == order["workdir"] and "records/" in answer["notes"][0]
    assert {path.name for path in (other / name_of(order)).iterdir()} == {"manifest.json", "result.json"}


_late = threading.Event()
_threads: list[threading.Thread] = []


@app(parameters={"x": Float(-2, 2)}, metrics={"y": "eV"})
def leaving(x, run):
    def write() -> None:
        assert _late.wait(60)
        (run.workdir / "late.txt").write_text("late")

    _threads.append(threading.Thread(target=write))
    _threads[-1].start()
    return {"y": x}


def test_a_file_that_a_thread_writes_after_the_end_leaves_the_result_on_record_the_truth(tmp_path):
    order = order_of(leaving, tmp_path)
    answer = worker.execute(order)
    _late.set()
    _threads.pop().join()
    folder = tmp_path / name_of(order)
    assert {path.name for path in folder.iterdir()} == {"manifest.json", "late.txt"} and answer["workdir"] == ""
    manifest = Manifest.model_validate(order["manifest"])
    found, wrong = found_result(tmp_path, manifest, everything(tmp_path)[name_of(order)])
    assert found is not None and found.metrics == {"y": 1.0} and not wrong
    # Nobody holds the directory: a further attempt would wait for ever.
    descriptor = os.open(folder, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(descriptor)


def test_of_several_attempts_the_last_counts_whichever_file_it_is_in(tmp_path):
    first = run_records._RecordFile(f"{tmp_path}/records")
    second = run_records._RecordFile(f"{tmp_path}/records")
    for file, attempt, ended_at in ((second, 2, 20.0), (first, 1, 10.0)):
        file.begun({"execution_id": "a", "attempt": attempt}, attempt)
        file.ended("a", {"ended_at": ended_at})
    assert everything(tmp_path)["a"].result == {"ended_at": 20.0}


def test_runs_that_have_begun_are_followed_as_the_files_grow(tmp_path):
    begun = Begun(tmp_path)
    begun.look()  # nothing is there yet
    file = record_file(f"{tmp_path}/records")
    file.begun({"execution_id": "a"}, 1)
    begun.look()
    at = begun.at("a", 1)
    assert at is not None and begun.last("a") == at and begun.at("a", 2) is None and begun.at("b", 1) is None
    [path] = (tmp_path / "records").iterdir()
    with path.open("ab") as half:
        half.write(b'{"event":"begun","execution_id":"b","at":5.0,')
    begun.look()
    assert begun.last("b") is None
    with path.open("ab") as half:
        half.write(b'"attempt":3,"manifest":{}}\n')
    begun.look()
    assert begun.at("b", 3) == 5.0
    file.ended("a", {"ended_at": 1.0})
    begun.look()
    assert begun.last("a") is None and begun.last("b") == 5.0


def test_threads_share_a_file_line_by_line_and_a_forked_process_has_its_own(tmp_path):
    folder = f"{tmp_path}/records"

    def write(which: int) -> None:
        for i in range(50):
            record_file(folder).begun({"execution_id": f"{which}-{i}", "long": "x" * 500}, 1)

    threads = [threading.Thread(target=write, args=(which,)) for which in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    child = os.fork()
    if child == 0:
        record_file(folder).begun({"execution_id": "forked"}, 1)
        os._exit(0)
    os.waitpid(child, 0)
    files = list((tmp_path / "records").iterdir())
    assert len(files) == 2 and len(RunRecords(tmp_path).begun()) == 201
    for path in files:
        assert all(json.loads(line)["manifest"] for line in path.read_bytes().splitlines())


def test_a_lazy_run_can_be_replaced_and_shown(tmp_path):
    from dataclasses import replace

    from hpcagent.apps.run import LazyRun

    made: list[Path] = []
    run = LazyRun(workdir=lambda: made.append(tmp_path) or tmp_path, seed=3)  # type: ignore[arg-type,func-returns-value]
    assert run.seed == 3 and not made
    assert run.workdir == tmp_path and made == [tmp_path] and isinstance(run, Run)
    other = replace(run, seed=4)
    assert (other.seed, other.workdir) == (4, tmp_path)


def held(folder):
    """Files of records that this process has open."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # that of the listing itself
            found.append(str(link.readlink()))
    return [path for path in found if path.startswith(f"{folder}/work/records/")]


def test_a_closed_site_leaves_no_file_of_records_open(tmp_path):
    with ha.open_site("threads", workers=1, run_dir=tmp_path):
        record_file(f"{tmp_path}/work/records").begun({"execution_id": "early"}, 1)
        record_file(f"{tmp_path}/work/records").begun({"execution_id": "earlier"}, 1)
        assert len(held(tmp_path)) == 1
    assert held(tmp_path) == []


def test_a_run_that_outlives_its_campaign_in_a_thread_leaves_no_file_of_records_open(tmp_path):
    """On threads a run may end after its campaign has closed the file: a full disk stayed busy."""
    folder = f"{tmp_path}/work/records"
    kept = record_file(folder)
    kept.begun({"execution_id": "a"}, 1)
    run_records.close_record_file(folder)
    kept.ended("a", {"ended_at": 1.0})
    record_file(folder).begun({"execution_id": "b"}, 1)
    assert held(tmp_path) == []
    run_records.open_records(folder)  # the campaign goes on
    record_file(folder).begun({"execution_id": "c"}, 1)
    record_file(folder).ended("c", {"ended_at": 1.0})
    assert len(held(tmp_path)) == 1
    run_records.close_record_file(folder)
    assert held(tmp_path) == [] and everything(tmp_path / "work").keys() == {"a", "b", "c"}


def test_a_line_that_a_full_disk_refuses_after_the_end_leaves_no_file_open(tmp_path, monkeypatch):
    file = record_file(f"{tmp_path}/work/records")
    file.close()
    write = os.write
    monkeypatch.setattr(run_records.os, "write", lambda descriptor, line: write(descriptor, line[:20]))
    with pytest.raises(OSError, match="No space left"):
        file.begun({"execution_id": "a"}, 1)
    assert held(tmp_path) == []


def test_a_part_of_a_line_on_a_full_disk_leaves_no_file_open(tmp_path, monkeypatch):
    folder = f"{tmp_path}/work/records"
    file = record_file(folder)
    file.begun({"execution_id": "a"}, 1)
    write = os.write
    monkeypatch.setattr(run_records.os, "write", lambda descriptor, line: write(descriptor, line[:20]))
    for name in "bc":
        with pytest.raises(OSError, match="No space left"):
            file.begun({"execution_id": name}, 1)
        assert len(held(tmp_path)) <= 1
    run_records.close_record_file(folder)
    assert held(tmp_path) == []
