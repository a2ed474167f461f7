"""Contexts: versions, order, views, snapshots, damage, and waiting for what others write."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import threading
import time

import pytest

from hpcagent.contexts import (
    Contexts,
    add_job,
    change_job,
    drop,
    give_result,
    put,
    put_agent,
    record_call,
    refer,
)
from hpcagent.contexts import contexts as module
from hpcagent.contexts import document as documents
from hpcagent.contexts import lines as lines_module
from hpcagent.contexts.lines import Lines
from hpcagent.errors import BadInput, Busy, Damaged, Stale, StoreError, StoreFull

FORK = multiprocessing.get_context("fork")


@pytest.fixture
def contexts(tmp_path):
    return Contexts(tmp_path / "contexts")


@pytest.fixture
def context(contexts):
    return contexts.create("c", user="ada", project="co2", intent="find a better catalyst")


def test_a_document_has_the_parts_of_the_contract(context):
    context.write(put_agent("planner", role="plans"), put("shared", "metal", "Cu"), by="planner", version=1)
    context.write(add_job("dft-1", app="dft_energy"), by="planner")
    now = context.write(change_job("dft-1", "running"), by="executor")
    data = now.data()
    assert data["shared"] == {"metal": "Cu"} and data["agents"] == [{"name": "planner", "role": "plans"}]
    assert data["jobs"] == [{"id": "dft-1", "status": "running", "app": "dft_energy"}] and data["calls"] == []
    assert data["session"].pop("created_at") <= time.time()
    assert data["session"] == {"user": "ada", "project": "co2", "intent": "find a better catalyst"}
    assert data["version"] == 4


def test_a_stale_write_is_refused_with_the_version_that_there_is(contexts, context):
    seen = context.read()
    contexts.open("c").write(put("shared", "metal", "Zn"), by="other", version=seen.version)
    with pytest.raises(Stale, match="has version 2, not 1") as refused:
        context.write(put("shared", "metal", "Cu"), by="me", version=seen.version)
    assert refused.value.version == 2
    assert context.read().shared == {"metal": "Zn"}


def test_a_write_that_overwrites_says_of_which_version(context):
    with pytest.raises(BadInput, match="says of which version"):
        context.write(put("shared", "metal", "Cu"), by="me")


def test_all_operations_of_an_update_are_written_or_none(context):
    with pytest.raises(BadInput, match="has a job 'j' already"):
        context.write(put("shared", "metal", "Cu"), add_job("j"), add_job("j"), by="me", version=1)
    assert context.version == 1 and context.read().shared == {}


def test_a_job_that_has_ended_stays_so(context):
    context.write(add_job("j"), change_job("j", "running"), by="planner")
    with pytest.raises(BadInput, match="cannot be pending again"):
        context.write(change_job("j", "pending"), by="executor")
    with pytest.raises(BadInput, match="once it has ended"):
        context.write(drop("jobs", "j"), by="executor", version=2)
    context.write(change_job("j", "finished", result_uri="file:///runs/j/result.json"), by="executor")
    with pytest.raises(BadInput, match="'finished' for good"):
        context.write(change_job("j", "running"), by="executor")
    with pytest.raises(BadInput, match="did you mean 'finished'"):
        change_job("j", "finishd")
    with pytest.raises(BadInput, match="has no job 'k'"):
        context.write(change_job("k", "running"), by="executor")
    assert context.write(drop("jobs", "j"), by="executor", version=3).jobs == ()


def test_a_call_gets_its_result_later_and_old_calls_are_left_to_the_journal(context, monkeypatch):
    monkeypatch.setattr(documents, "KEPT_CALLS", 3)
    for i in range(5):
        context.write(record_call(f"call-{i}", "reaction", "1.0.0", {"temperature": 300 + i}), by="planner")
    now = context.write(give_result("call-4", "file:///runs/4.json", outputs={"energy": -1.5}), by="executor")
    assert [call.id for call in now.calls] == ["call-2", "call-3", "call-4"] and now.calls_before == 2
    assert now.call().result == "file:///runs/4.json" and now.call().outputs == {"energy": -1.5}
    assert now.call().by == "planner" and now.call("call-3").params == {"temperature": 303}
    with pytest.raises(BadInput, match="of 2 older ones only the journal knows"):
        now.call("call-0")


def test_what_is_done_to_a_document_changes_no_context(context):
    value = {"list": [1, 2]}
    context.write(put("shared", "a", value), by="me", version=1)
    value["list"].append(3)
    context.read().shared["a"]["list"].append(4)
    assert context.read().shared == {"a": {"list": [1, 2]}}


def test_the_state_is_what_the_journal_replays_at_every_version(contexts, context):
    for i in range(20):
        context.change(lambda d, i=i: put("shared", "n", i), by="me")
    again = Contexts(contexts.folder).open("c")
    assert again.read() == context.read()
    assert [again.at(v).shared.get("n") for v in (0, 1, 2, 11, 21)] == [None, None, 0, 9, 19]
    assert [u.version for u in again.updates(after=18)] == [19, 20, 21]
    with pytest.raises(BadInput, match=r"has no version 22; it has 0 to 21"):
        again.at(22)


def count_up(folder, who, times):
    context = Contexts(folder).open("c")
    for i in range(times):
        context.change(lambda d: [put("shared", "n", d.shared["n"] + 1), put("shared", who, i)], by=who)


def test_eight_processes_lose_no_update_and_all_readers_see_one_order(contexts, context):
    context.write(put("shared", "n", 0), by="me", version=1)
    watched = []
    with context.watch(watched.append) as watch:
        workers = [FORK.Process(target=count_up, args=(contexts.folder, f"w{k}", 1000)) for k in range(8)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        deadline = time.monotonic() + 60
        while len(watched) < 8000 and time.monotonic() < deadline and watch.error is None:
            time.sleep(0.01)
    assert [worker.exitcode for worker in workers] == [0] * 8
    assert context.read().shared == {"n": 8000, **{f"w{k}": 999 for k in range(8)}}
    told = list(contexts.view("c").updates(after=2))
    assert told == watched and [u.version for u in told] == list(range(3, 8003))
    # Each writer's own updates are in the order in which it wrote them, and each saw all before it.
    assert [u.operations[0][3] for u in told] == list(range(1, 8001))
    for k in range(8):
        assert [u.operations[1][3] for u in told if u.by == f"w{k}"] == list(range(1000))


def test_threads_of_one_process_lose_no_update_either(contexts, context):
    context.write(put("shared", "n", 0), by="me", version=1)
    same = [
        threading.Thread(target=lambda: [context.change(add_one, by="t") for _ in range(50)]) for _ in range(4)
    ]
    other = threading.Thread(target=lambda: [contexts.open("c").change(add_one, by="t") for _ in range(50)])
    for thread in (*same, other):
        thread.start()
    for thread in (*same, other):
        thread.join()
    assert context.read().shared == {"n": 250}


def add_one(document):
    return put("shared", "n", document.shared["n"] + 1)


def test_in_a_transaction_nobody_else_writes(contexts, context):
    other = contexts.open("c")
    with context.transaction(by="me") as held:
        assert held.document.version == 1
        with pytest.raises(Busy, match="was locked by another"):
            other.write(add_job("j"), by="other", wait_s=0.05)
        with pytest.raises(BadInput, match="inside of a transaction"):
            context.write(add_job("j"), by="me")
        held.do(add_job("mine"))
    assert held.document.version == 2 and other.read().jobs[0].id == "mine"


def test_a_transaction_that_fails_writes_nothing(context):
    with pytest.raises(FileNotFoundError), context.transaction(by="me") as held:
        held.do(add_job("j"))
        raise FileNotFoundError("of the caller's own")
    assert context.version == 1


def test_the_lock_of_a_killed_process_is_free(contexts, context):
    code = f"""
import os, sys
from hpcagent.contexts import Contexts, add_job
with Contexts({str(contexts.folder)!r}).open("c").transaction(by="doomed") as held:
    held.do(add_job("never"))
    print("held", flush=True)
    sys.stdin.read()
"""
    doomed = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert doomed.stdout.readline() == "held\n"
    with pytest.raises(Busy):
        context.write(add_job("j"), by="me", wait_s=0.05)
    doomed.kill()
    doomed.communicate()
    assert [job.id for job in context.write(add_job("j"), by="me").jobs] == ["j"]


def write_and_tell(folder, who, told):
    context = Contexts(folder).open("c")
    with told.open("a", buffering=1) as file:
        for i in range(100_000):
            version = context.write(add_job(f"{who}-{i}", note="x" * 3000), by=who).version
            file.write(f"{version} {who}-{i}\n")


def test_what_was_written_stays_whoever_is_killed_meanwhile(contexts, context, tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "LARGEST_DOCUMENT", 1 << 30)
    writers = []
    for k in range(6):
        writer = FORK.Process(
            target=write_and_tell, args=(contexts.folder, f"w{k}", tmp_path / f"told-{k}"), daemon=True
        )
        writer.start()
        writers.append(writer)
    for k, writer in enumerate(writers):
        told = tmp_path / f"told-{k}"
        while not told.exists() or told.read_bytes().count(b"\n") < 20:
            assert writer.is_alive()
            time.sleep(0.002)
        writer.kill()
    for writer in writers:
        writer.join()
    version = context.write(add_job("after"), by="me").version
    assert contexts.view("c").verify() == version
    done = {u.version: u.operations[0][1] for u in context.updates(after=1)}
    for k in range(6):
        for line in (tmp_path / f"told-{k}").read_text().splitlines():
            at, job = line.split()
            assert done[int(at)] == job


def test_a_torn_last_line_is_set_aside_and_costs_nothing_else(contexts, context):
    context.write(add_job("j"), by="me")
    whole = context.path.read_bytes()
    with context.path.open("ab") as file:
        file.write(b'{"n":3,"at":1.0,"by":"killed","do":[["job+","k"')
    view = contexts.view("c")
    assert view.version == 2  # a reader leaves it out
    assert context.write(change_job("j", "running"), by="me").version == 3
    assert context.path.read_bytes().startswith(whole + b'{"n":3,"at":')
    assert b"killed" in (contexts.folder / "c.torn").read_bytes()
    assert view.read().jobs[0].status == "running"


def damage(path, n, change):
    lines = path.read_bytes().splitlines(keepends=True)
    lines[n - 1] = change(lines[n - 1])
    path.write_bytes(b"".join(lines))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda line: line.replace(b'"j2"', b'"j9"'), "its checksum does not fit"),
        (lambda line: b"", "it has the number 4 where 3 should stand"),
        (lambda line: line + line, "it has the number 3 where 4 should stand"),
        (lambda line: b"\n" + line, "it is empty"),
        (lambda line: b"\0" * len(line) + b"\n", "its checksum does not fit"),
    ],
)
def test_damage_is_named_with_its_line_and_what_is_before_it_is_kept(contexts, context, change, said):
    for i in range(1, 5):
        context.write(add_job(f"j{i}"), by="me")
    damage(context.path, 3, change)
    fresh = contexts.open("c")
    with pytest.raises(Damaged, match=said) as found:
        fresh.read()
    with pytest.raises(Damaged):
        fresh.write(add_job("more"), by="me")
    good = found.value.version
    assert [job.id for job in fresh.at(good).jobs] == [f"j{i}" for i in range(1, good)]
    assert fresh.repair() == good
    assert (contexts.folder / "c.damaged").stat().st_size > 0
    assert fresh.write(add_job("more"), by="me").version == good + 1
    with pytest.raises(BadInput, match="is not damaged"):
        fresh.repair()


def test_a_journal_that_is_cut_under_an_open_context_is_no_shorter_context(context):
    context.write(add_job("j"), by="me")
    whole = context.path.read_bytes()
    context.path.write_bytes(whole.splitlines(keepends=True)[0])
    with pytest.raises(Damaged, match="it was cut or replaced"):
        context.read()
    with pytest.raises(Damaged):
        context.write(add_job("k"), by="me")


def test_a_context_that_was_deleted_is_not_begun_anew_by_a_write(contexts, context):
    context.path.unlink()
    for go in (context.read, lambda: context.write(add_job("j"), by="me")):
        with pytest.raises(StoreError, match="is gone"):
            go()
    for wait in (context.changes(after=0, timeout_s=0), context.updates()):
        with pytest.raises(StoreError, match="is gone"):
            next(wait)
    with pytest.raises(StoreError, match="is gone"):
        context.verify()
    assert not context.path.exists()
    contexts.create("c", intent="another one, " * 30)
    for go in (context.read, lambda: context.write(add_job("j"), by="me")):
        with pytest.raises(Damaged, match="any more that was read before: it was cut or replaced"):
            go()
    assert contexts.open("c").write(add_job("j"), by="me").version == 2


def test_a_snapshot_saves_the_replay_and_is_never_believed_more_than_the_journal(contexts, context, monkeypatch):
    monkeypatch.setattr(module, "_SNAPSHOT_BYTES", 1000)
    monkeypatch.setattr(module, "_SNAPSHOT_TIMES", 0)
    for i in range(60):
        context.change(lambda d, i=i: put("shared", "n", i), by="me")
    snapshot = contexts.folder / "c.snapshot.json"
    read = []
    each = Lines.each
    monkeypatch.setattr(Lines, "each", lambda self, **place: read.append(place["after"]) or each(self, **place))
    assert contexts.view("c").read() == context.read()
    assert read[0] > 50
    good = snapshot.read_bytes()
    for spoilt in (
        b"",
        good[:-50],
        good.replace(b'"n":[', b'"m":['),
        json.dumps(json.loads(good) | {"end": 5}).encode(),
    ):
        snapshot.write_bytes(spoilt)
        read.clear()
        assert contexts.view("c").read() == context.read()
        assert read[0] == 0
    # That of a context of the same name that was deleted.
    snapshot.write_bytes(good)
    context.path.unlink()
    contexts.create("c")
    assert contexts.view("c").version == 1


def test_ten_thousand_updates_are_read_at_once(contexts, context):
    for i in range(10_000):
        context.write(put("shared", f"k{i % 50}", i), by="me", version=i + 1)
    started = time.process_time()
    view = contexts.view("c")
    assert view.version == 10_001
    # The whole journal takes a tenth of a second; with the snapshot there is less than a third of it to read.
    assert view._end - view._snapshot_end < context.path.stat().st_size / 3
    assert time.process_time() - started < 2


def test_a_view_writes_nothing_and_sees_what_is_written(contexts, context):
    before = {path.name: path.stat().st_mtime_ns for path in contexts.folder.iterdir()}
    view = contexts.view("c")
    assert view.read().version == 1 and not hasattr(view, "write")
    assert {path.name: path.stat().st_mtime_ns for path in contexts.folder.iterdir()} == before
    context.write(add_job("j"), by="me")
    assert view.read().jobs[0].id == "j"


def test_a_waiting_process_is_woken_by_a_write_of_another(contexts, context):
    got = FORK.Queue()

    def wait():
        view = contexts.view("c")
        updates = view.changes(after=1, poll_s=60, timeout_s=120)
        got.put("ready")
        got.put(next(updates).version)

    waiting = FORK.Process(target=wait)
    waiting.start()
    assert got.get(timeout=60) == "ready"
    while not list((contexts.folder / ".listening" / "c").glob("*")):
        assert waiting.is_alive()
        time.sleep(0.001)
    time.sleep(0.3)  # it has looked at the file once by now, most likely
    started = time.monotonic()
    context.write(add_job("j"), by="me")
    assert got.get(timeout=60) == 2
    assert time.monotonic() - started < 30  # it looks at the size only every 60 s
    waiting.join()


def test_without_pipes_a_listener_looks_at_the_size(contexts, context, monkeypatch):
    def none(*_):
        raise OSError("no pipes here")

    monkeypatch.setattr(os, "mkfifo", none)
    seen = []
    with context.watch(seen.append) as watch:
        contexts.open("c").write(add_job("i"), by="me")
    assert [u.version for u in seen] == [2]  # also of what it had not told yet when it was closed
    seen.clear()
    with context.watch(seen.append, poll_s=0.01) as watch:
        contexts.open("c").write(add_job("j"), by="me")
        deadline = time.monotonic() + 30
        while not seen and time.monotonic() < deadline:
            time.sleep(0.005)
        assert [u.version for u in seen] == [3] and watch.error is None
    writer = threading.Timer(0.2, lambda: contexts.open("c").write(add_job("k"), by="me"))
    writer.start()
    assert next(context.changes(poll_s=0.01, timeout_s=20)).version == 4
    writer.join()


def test_waiting_costs_next_to_nothing(context):
    updates = context.changes(timeout_s=1.0)
    started = time.process_time()
    assert list(updates) == []
    assert time.process_time() - started < 0.1


def test_pipes_of_killed_listeners_are_swept_away(contexts, context):
    folder = contexts.folder / ".listening" / "c"
    folder.mkdir(parents=True)
    os.mkfifo(folder / f"1-0@{os.uname().nodename}")
    os.mkfifo(folder / "1-0@elsewhere")
    (folder / f"plain@{os.uname().nodename}").write_text("no pipe")
    context.write(add_job("j"), by="me")
    assert sorted(path.name for path in folder.iterdir()) == ["1-0@elsewhere", f"plain@{os.uname().nodename}"]


def test_an_error_of_the_function_that_watches_is_told(context):
    def broken(update):
        raise RuntimeError(f"update {update.version}")

    watch = context.watch(broken)
    context.write(add_job("j"), by="me")
    deadline = time.monotonic() + 30
    while watch.error is None and time.monotonic() < deadline:
        time.sleep(0.005)
    with pytest.raises(RuntimeError, match="update 2"):
        watch.close()


def test_a_full_disk_leaves_the_journal_as_it_was(context, monkeypatch):
    before = context.path.read_bytes()
    write = os.write

    def full(descriptor, data):
        if len(data) > 40:
            return write(descriptor, data[:40])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(StoreFull, match="No space left"):
        context.write(add_job("j"), by="me")
    monkeypatch.undo()
    assert context.path.read_bytes() == before
    assert context.write(add_job("j"), by="me").version == 2


def test_a_document_has_an_end(context):
    text = "x" * 16_000
    with pytest.raises(BadInput, match=r"at most 1.0 MiB are allowed. Drop what is done with") as refused:
        for i in range(100):
            context.write(put("shared", f"k{i}", text), by="me", version=i + 1)
    assert refused.value.bytes > 1 << 20
    at = context.version
    context.write(drop("shared", "k0"), put("shared", "again", text), by="me", version=at)


def test_ids_are_names_of_files_and_nothing_else(contexts, tmp_path):
    for bad in ("../x", "a/b", "", ".hidden", "a\nb", 3):
        with pytest.raises(BadInput):
            contexts.create(bad)
    minted = contexts.create().id
    assert len(minted) == 32 and contexts.ids() == (minted,)
    with pytest.raises(BadInput, match="already"):
        contexts.create(minted)
    with pytest.raises(BadInput, match="has no context 'other'; there are: "):
        contexts.open("other")
    (tmp_path / "file").write_text("")
    (contexts.folder / "link.jsonl").symlink_to(tmp_path / "file")
    with pytest.raises(StoreFull, match="symbolic link"):
        contexts.open("link").write(add_job("j"), by="me")


def test_large_values_are_given_as_uris(context, tmp_path):
    with pytest.raises(BadInput, match=r"shared.trajectory has .* at most 16.0 KiB .*refer\(path\)"):
        put("shared", "trajectory", list(range(10_000)))
    path = tmp_path / "trajectory.csv"
    path.write_bytes(b"abc")
    reference = refer(path)
    assert reference == {
        "uri": path.as_uri(),
        # FIPS 180-2, the example of one block
        "sha256": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
        "bytes": 3,
    }
    assert (
        context.write(put("shared", "trajectory", reference), by="me", version=1).shared["trajectory"]["bytes"]
        == 3
    )
    with pytest.raises(BadInput, match="is no file"):
        refer(tmp_path)


def test_one_who_waited_for_a_file_that_was_removed_writes_the_new_one(tmp_path):
    path = tmp_path / "lines.jsonl"
    waiting = threading.Event()

    def write():
        lines = Lines(path)
        waits = lines._wait
        lines._wait = lambda *given: waiting.set() or waits(*given)
        with lines.held() as held:
            held.append(1, {"by": "the one who waited"})

    writer = threading.Thread(target=write)
    with Lines(path).held():
        writer.start()
        assert waiting.wait(30)
        path.unlink()
    writer.join()
    assert [line.data["by"] for line in Lines(path).each()] == ["the one who waited"]


def test_what_a_disk_refuses_at_fsync_is_not_in_the_journal(context, monkeypatch):
    before = context.path.read_bytes()

    def refused(descriptor):
        raise OSError(122, "Disk quota exceeded")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", refused)
        patched.setattr(lines_module, "SYNC_EVERY_S", -1.0)
        with pytest.raises(StoreFull, match="quota"):
            context.write(add_job("j"), by="me")
    assert context.path.read_bytes() == before
    assert context.write(add_job("j"), by="me").version == 2
