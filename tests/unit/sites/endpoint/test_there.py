"""What an endpoint's worker does with requests: all through a real worker process, JSON in and out."""

import base64
import gzip
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path

import pytest

import hpcagent
from hpcagent.lifeline import birth
from hpcagent.sites.endpoint import files_there, protocol
from hpcagent.sites.endpoint.protocol import LARGEST_CHUNK, unpacked_bytes

HERE = Path(__file__).parent

# A worker of an endpoint: requests and answers as lines of JSON, each answered in a thread of its own.
WORKER = """
import json, sys, threading
from hpcagent.sites.endpoint import running_there
from hpcagent.sites.endpoint.there import answer
running_there.LATE_S = 1.5
lock = threading.Lock()

def serve(line):
    told = json.dumps(answer(json.loads(line)))
    with lock:
        sys.stdout.write(told + chr(10)); sys.stdout.flush()

for line in sys.stdin:
    threading.Thread(target=serve, args=(line,)).start()
"""


class Worker:
    """A process that answers requests, as a worker of an endpoint does."""

    def __init__(self, **env: str) -> None:
        path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **env},
        )
        self.answers: dict[str, dict] = {}
        self.came = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self.process.stdout:
            answer = json.loads(line)
            with self.came:
                self.answers[answer["key"]] = answer
                self.came.notify_all()

    def send(self, request: dict) -> str:
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return request["key"]

    def wait(self, key: str, timeout: float = 300) -> dict:
        with self.came:
            assert self.came.wait_for(lambda: key in self.answers, timeout), f"no answer within {timeout} s"
            return self.answers.pop(key)

    def ask(self, request: dict) -> dict:
        return self.wait(self.send(request))

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(20)
        self.process.stdout.close()


@pytest.fixture(scope="module")
def worker():
    worker = Worker(CUDA_VISIBLE_DEVICES="3")
    yield worker
    worker.close()


@pytest.fixture
def root(tmp_path):
    return str(tmp_path / "work_dir" / "tuning")


def order(name, function="fine", *, walltime_s=None, threads=1, **params):
    """A plain order, as JSON has it."""
    resources = {"nodes": 1, "ranks_per_node": 1, "threads_per_rank": threads, "walltime_s": walltime_s}
    manifest = {"execution_id": name, "seed": 1, "replicate": 0, "params": params, "resources": resources}
    return {
        "manifest": manifest,
        "function": f"there_apps:{function}",
        "settings": {},
        "promises": {"x": ["1", True]},
        "site": {},
        "left_out": params,
    }


def until(test, timeout=120.0):
    deadline = time.monotonic() + timeout
    while not (found := test()):
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.05)
    return found


def pids_of(root, name):
    """Process ids that a run of `sleeps` has written down."""
    path = Path(root, "work", name, "pids")
    return until(lambda: path.exists() and path.read_text() and [int(pid) for pid in path.read_text().split()])


def all_gone(pids):
    return until(lambda: all(birth(pid) is None for pid in pids))


# ---- runs


def test_orders_of_a_task_are_answered_each_with_its_files_and_their_sha256(worker, root):
    answer = worker.ask(protocol.run(root, [order("a"), order("b", "raises"), order("c")]))
    assert answer["protocol"] == 1 and answer["hpcagent"] == hpcagent.__version__ and "error" not in answer
    first, second, third = answer["answers"]
    assert [one["status"] for one in answer["answers"]] == ["COMPLETED", "FAILED", "COMPLETED"]
    assert second["failure"]["name"] == "ValueError" and "there_apps.py" in second["failure"]["log_tail"]
    assert first["remote"]["workdir"] == first["workdir"] == f"{root}/work/a"
    assert first["remote"]["files"]["made.txt"] == [4, hashlib.sha256(b"made").hexdigest()]
    assert sorted(third["remote"]["files"]) == ["made.txt", "manifest.json", "result.json"]
    # Charged is its share of the node, by the cores that the node has.
    assert first["cost"]["node_hours"] == pytest.approx(first["cost"]["wall_s"] / 3600 / os.cpu_count())
    # Sent again it is found, not run again.
    again = worker.ask(protocol.run(root, [order("a")]))["answers"][0]
    assert again["started_at"] == first["started_at"]


def test_a_child_is_as_its_worker_is_but_for_its_random_numbers_and_its_group(worker, root):
    answers = [
        worker.ask(protocol.run(root, [order(f"s{n}", "surroundings", threads=t)]))
        for n, t in ((1, 1), (2, 1), (3, 2))
    ]
    told = [json.loads(Path(root, "work", f"s{n}", "told.json").read_text()) for n in (1, 2, 3)]
    assert {one["gpu"] for one in told} == {"3"} and all(one["group"] for one in told)
    assert told[0]["cores"] == sorted(os.sched_getaffinity(worker.process.pid))
    assert told[0]["drawn"] != told[1]["drawn"]
    assert [one["omp"] for one in told] == ["1", "1", "2"]
    assert told[0]["threads"] == 1 and told[0]["numpy_before"] and not told[2]["numpy_before"]
    assert all(one["answers"][0]["status"] == "COMPLETED" for one in answers)


@pytest.mark.parametrize(
    ("function", "kind", "name", "words", "tail"),
    [
        ("crashes", "simulation", "FunctionCrashed", "SIGSEGV", "before the crash"),
        ("exits", "contract", "FunctionExited", "exit code 3", ""),
        ("leaves", "contract", "SystemExit", "3", "sys.exit(3)"),
        ("killed", "infrastructure", "Killed", "SIGKILL", "before the kill"),
    ],
)
def test_however_a_run_ends_it_is_a_typed_failure_and_the_next_one_goes_on(
    worker, root, function, kind, name, words, tail
):
    broken, fine = worker.ask(protocol.run(root, [order("bad", function), order("good")]))["answers"]
    failure = broken["failure"]
    assert (failure["kind"], failure["name"]) == (kind, name) and words in failure["message"]
    assert tail in failure["log_tail"]
    assert fine["status"] == "COMPLETED"
    # What it wrote can be fetched.
    assert broken["remote"]["workdir"] == f"{root}/work/bad" and "manifest.json" in broken["remote"]["files"]
    # Also in its folder, so that it is not run again where that would tell the same.
    kept = json.loads(Path(root, "work", "bad", "result.json").read_text())
    assert kept["failure"]["name"] == name


def test_a_walltime_ends_a_run_that_prints_without_end_and_all_it_has_started(worker, root):
    request = protocol.run(
        root, [order("p", "prints"), order("s", "sleeps", walltime_s=1.5), order("z")], walltime_s=1
    )
    prints, sleeps, fine = worker.ask(request)["answers"]
    assert prints["failure"]["name"] == sleeps["failure"]["name"] == "Walltime"
    assert "1.5 s" in sleeps["failure"]["message"] and "xxx" in prints["failure"]["log_tail"]
    assert fine["status"] == "COMPLETED"
    all_gone(pids_of(root, "s"))


# ---- cancel and look


def test_cancel_reaches_the_process_group_and_is_requested_until_it_has_ended(worker, root):
    key = worker.send(protocol.run(root, [order("one"), order("two", "sleeps"), order("three")]))
    pids = pids_of(root, "two")
    state = worker.ask(protocol.look(root, keys=[key], executions=["one", "two", "three"]))
    assert state["executions"] == {"one": "finished", "two": "begun", "three": "unknown"}
    running = state["states"][key]
    assert (
        running["state"] == "running" and running["pid"] == worker.process.pid and running["since"] <= time.time()
    )
    assert worker.ask(protocol.cancel(root, [key]))["states"] == {key: "requested"}
    answer = worker.wait(key)
    assert answer["cancelled"] and [one and one["status"] for one in answer["answers"]] == [
        "COMPLETED",
        None,
        None,
    ]
    assert all(birth(pid) is None for pid in pids)
    assert worker.ask(protocol.cancel(root, [key]))["states"] == {key: "ended"}
    assert worker.ask(protocol.look(root, keys=[key]))["states"][key]["state"] == "cancelled"


def test_a_task_that_is_cancelled_before_it_begins_never_does(worker, root):
    request = protocol.run(root, [order("never")])
    assert worker.ask(protocol.cancel(root, [request["key"]]))["states"] == {request["key"]: "never"}
    assert worker.ask(request) | {"answers": 0} == worker.ask(request) | {
        "answers": 0,
        "cancelled": True,
        "begun": False,
    }
    assert not Path(root, "work", "never").exists()
    done = protocol.run(root, [order("done")])
    worker.ask(done)
    assert worker.ask(protocol.cancel(root, [done["key"]]))["states"] == {done["key"]: "finished"}


def test_a_run_that_is_deaf_to_a_polite_end_is_ended_for_good(worker, root):
    key = worker.send(protocol.run(root, [order("deaf", "deaf")]))
    pids = pids_of(root, "deaf")
    worker.ask(protocol.cancel(root, [key]))
    assert worker.wait(key)["cancelled"]
    all_gone(pids)


def test_a_killed_worker_takes_helper_and_runs_with_it_and_its_task_is_dead(root, worker):
    mine = Worker()
    request = protocol.run(root, [order("k", "sleeps")])
    mine.send(request)
    pids = pids_of(root, "k")
    warm = int(Path(f"/proc/{pids[0]}/stat").read_text().rpartition(")")[2].split()[1])
    mine.process.kill()
    mine.process.wait()
    mine.process.stdout.close()
    mine.process.stdin.close()
    all_gone([*pids, warm])
    assert worker.ask(protocol.look(root, keys=[request["key"]]))["states"][request["key"]]["state"] == "dead"
    assert worker.ask(protocol.cancel(root, [request["key"]]))["states"] == {request["key"]: "ended"}


def test_a_killed_helper_is_a_lost_worker_of_that_run_only(worker, root):
    key = worker.send(protocol.run(root, [order("h", "sleeps"), order("i")]))
    pids = pids_of(root, "h")
    warm = int(Path(f"/proc/{pids[0]}/stat").read_text().rpartition(")")[2].split()[1])
    assert warm != worker.process.pid
    os.kill(warm, signal.SIGKILL)
    lost, fine = worker.wait(key)["answers"]
    assert (lost["failure"]["kind"], lost["failure"]["name"]) == ("infrastructure", "WorkerLost")
    assert fine["status"] == "COMPLETED"
    all_gone(pids[:3])
    os.kill(pids[3], signal.SIGKILL)  # without a mark, in a session of its own: nobody's child then


def test_tasks_in_threads_of_one_worker_go_at_once(worker, root):
    keys = [worker.send(protocol.run(root, [order(f"t{n}", seconds=1.0)])) for n in range(4)]
    answers = [worker.wait(key)["answers"][0] for key in keys]
    assert all(answer["status"] == "COMPLETED" for answer in answers)
    times = sorted((answer["started_at"], answer["ended_at"]) for answer in answers)
    assert any(began < before for (_, before), (began, _) in pairwise(times))  # one has begun before another ended


# ---- files


def test_an_input_is_put_in_chunks_of_any_order_by_two_at_once(worker, root):
    data = os.urandom(2_500_000)
    requests = list(protocol.puts(root, data, chunk=1_000_000))
    keys = [worker.send(request | {"key": protocol.new_key()}) for _ in range(2) for request in reversed(requests)]
    answers = [worker.wait(key) for key in keys]
    assert [answer["error"] for answer in answers if "error" in answer] == []
    assert any(answer["stored"] for answer in answers)
    inputs = Path(root).parent / "inputs"
    digest = hashlib.sha256(data).hexdigest()
    assert [path.name for path in inputs.iterdir()] == [digest] and (inputs / digest).read_bytes() == data
    assert inputs.stat().st_mode & 0o777 == 0o700 and (inputs / digest).stat().st_mode & 0o077 == 0


def test_chunks_that_another_process_removes_when_it_has_joined_them_are_no_damage(tmp_path, monkeypatch):
    root = tmp_path / "runs"
    root.mkdir()
    data = os.urandom(3000)
    *first, last = protocol.puts(str(root), data, chunk=1000)
    assert [files_there.put(request, root)["stored"] for request in first] == [False, False]
    received = files_there._received

    def slowly(parts):
        found = received(parts)
        if found == 3000:  # the other one joins them now, and has removed two of three
            files_there._join(parts, parts.parent / last["sha256"], last["sha256"], 3000)
            for part in sorted(parts.iterdir())[:2]:
                part.unlink()
        return found

    monkeypatch.setattr(files_there, "_received", slowly)
    assert files_there.put(last, root) == {"stored": True, "received": 3000}


def test_what_was_damaged_on_the_way_is_refused(worker, root):
    for requests in (
        [protocol.put(root, b"other", sha256="0" * 64)],
        [
            protocol.put(root, b"a", sha256="0" * 64, total=2),
            protocol.put(root, b"b", sha256="0" * 64, offset=1, total=2),
        ],
    ):
        answers = [worker.ask(request) for request in requests]
        assert "damaged on the way" in answers[-1]["error"]["message"]
    assert list((Path(root).parent / "inputs").iterdir()) == []


def test_files_come_in_chunks_that_say_their_sha256_and_never_from_elsewhere(worker, root, tmp_path):
    worker.ask(protocol.run(root, [order("g")]))
    workdir = Path(root, "work", "g")
    data = os.urandom(LARGEST_CHUNK + 1000)
    (workdir / "sub").mkdir()
    (workdir / "sub" / "big.bin").write_bytes(data)
    got = b""
    while True:
        answer = worker.ask(protocol.get(root, "g", "sub/big.bin", offset=len(got)))
        chunk = unpacked_bytes(answer["data"], most=LARGEST_CHUNK)
        assert hashlib.sha256(chunk).hexdigest() == answer["sha256"] and answer["size"] == len(data)
        got += chunk
        if len(got) >= answer["size"]:
            break
    assert got == data
    files = worker.ask(protocol.list_files(root, "g"))["files"]
    assert files["sub/big.bin"] == [len(data), None]
    asked = worker.ask(protocol.list_files(root, "g", paths=["sub/big.bin"]))["files"]
    assert asked == {"sub/big.bin": [len(data), hashlib.sha256(data).hexdigest()]}
    (tmp_path / "secret").write_text("secret")
    (workdir / "link").symlink_to(tmp_path / "secret")
    (workdir / "folder").symlink_to(tmp_path)
    (workdir / "inside").symlink_to("made.txt")
    os.mkfifo(workdir / "fifo")
    assert worker.ask(protocol.get(root, "g", "inside"))["size"] == 4
    for path in ("link", "folder/secret", "fifo", "sub", "nothing"):
        assert worker.ask(protocol.get(root, "g", path))["error"]["name"] == "BadRequest", path
    assert "link" not in worker.ask(protocol.list_files(root, "g"))["files"]


def test_what_is_removed_is_what_was_named_and_nothing_that_runs(worker, root):
    done = protocol.run(root, [order("old")])
    worker.ask(done)
    key = worker.send(protocol.run(root, [order("now", "sleeps")]))
    pids_of(root, "now")
    answer = worker.ask(protocol.remove(root, keys=[done["key"], key], executions=["old", "now"]))
    assert answer["removed"] == {"keys": 1, "executions": 1, "inputs": 0}
    assert answer["kept"] == {key: "it is running", "now": "it is running"}
    assert "cancel them first" in worker.ask(protocol.remove(root, everything=True))["kept"][root]
    worker.ask(protocol.cancel(root, [key]))
    worker.wait(key)
    assert worker.ask(protocol.remove(root, everything=True))["removed"] == {"campaigns": 1}
    assert not Path(root).exists()
    elsewhere = Path(root).parent / "mine"
    elsewhere.mkdir()
    assert worker.ask(protocol.remove(str(elsewhere), everything=True))["removed"] == {} and elsewhere.exists()


def test_a_probe_says_what_is_there_and_what_to_do_about_what_is_not(worker, root, tmp_path):
    lmp = tmp_path / "lmp"
    lmp.write_text(
        "#!/bin/sh\necho; echo 'Large-scale Atomic/Molecular Massively Parallel Simulator - 2 Aug 2023'\n"
    )
    lmp.chmod(0o755)
    site = {"apps": {"lammps": {"command": [str(lmp)]}, "other": {"command": ["no_such_program"]}}}
    told = worker.ask(protocol.probe(root, site=site))
    assert (
        told["versions"]["LAMMPS"].endswith("2 Aug 2023") and told["versions"]["hpcagent"] == hpcagent.__version__
    )
    assert (
        told["cores"] == len(os.sched_getaffinity(0)) and told["root"]["writable"] and told["root"]["path"] == root
    )
    assert any("no_such_program" in one and "worker_init" in one for one in told["missing"])
    lmp.write_text("#!/bin/sh\necho cannot open shared object >&2; exit 127\n")
    told = worker.ask(protocol.probe(root, site=site))
    assert any("cannot open shared object" in one for one in told["missing"])


# ---- bad requests

GOOD = protocol.run("/tmp/x/y", [])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"op": "eval"}, "allowed are run, put"),
        ({"key": "../../x"}, "32 digits"),
        ({"root": "relative"}, "absolute"),
        ({"root": "/a/../etc"}, "without '..'"),
        ({"root": "/"}, "without"),
        ({"root": "/a\n/b"}, "control characters"),
        ({"orders": "all"}, "a list"),
        ({"orders": [1]}, "JSON object"),
        ({"orders": [{}]}, "upstream has to have"),
        ({"walltime_s": -1}, "more than 0"),
        ({"walltime_s": True}, "seconds"),
        ({"shell": "rm"}, "unknown field"),
        (protocol.get("/tmp/x/y", "e", "f") | {"path": "../x"}, "without '..'"),
        (protocol.get("/tmp/x/y", "e", "f") | {"execution": "../e"}, "execution id"),
        (protocol.get("/tmp/x/y", "e", "f") | {"length": 10**9}, "at once"),
        (protocol.put("/tmp/x/y", b"", sha256="0" * 64) | {"sha256": "../x"}, "64 digits"),
        (protocol.put("/tmp/x/y", b"", sha256="0" * 64) | {"offset": 5}, "behind the end"),
    ],
)
def test_a_request_that_is_none_is_refused_in_words(change, words):
    from hpcagent.sites.endpoint.there import answer

    told = answer(GOOD | change if "op" not in change or len(change) == 1 else change)
    assert told["error"]["name"] == "BadRequest" and words in told["error"]["message"]


@pytest.mark.parametrize(
    "request_", [None, [], "x", {}, {"protocol": 2, "hpcagent": "9.0", "key": "k"}, {"protocol": 0}]
)
def test_another_protocol_is_refused_with_both_versions_and_what_to_do(request_):
    from hpcagent.sites.endpoint.there import answer

    told = answer(request_)["error"]
    if isinstance(request_, dict):
        assert told["name"] == "OtherProtocol" and hpcagent.__version__ in told["message"]
        assert "install the same hpcagent" in told["message"]
        assert "9.0" in told["message"] or "hpcagent" not in request_
    else:
        assert told["name"] == "BadRequest"


def test_what_unpacks_to_more_than_is_allowed_is_not_unpacked():
    bomb = base64.b64encode(gzip.compress(bytes(10**8))).decode()
    with pytest.raises(hpcagent.BadInput, match="more than the 1000 bytes"):
        unpacked_bytes(bomb, most=1000)
    for text in ("!", "AAAA", protocol.packed_bytes(b"abc")[:-8], protocol.packed_bytes(b"a") * 2):
        with pytest.raises(hpcagent.BadInput):
            unpacked_bytes(text, most=1000)


def test_folders_of_other_users_are_not_used(worker, root, monkeypatch):
    control = Path(root, "control")
    control.mkdir(parents=True)
    control.chmod(0o777)
    answer = worker.ask(protocol.run(root, [order("x")]))
    assert "can be written by every user" in answer["error"]["message"] and not Path(root, "work").exists()


def test_orders_that_are_nonsense_are_an_error_of_the_task_and_inputs_that_lack_are_named(worker, root):
    assert worker.ask(protocol.run(root, [{"manifest": 5}]))["error"]["name"] == "BadRequest"
    assert "execution id" in worker.ask(protocol.run(root, [order("../../up")]))["error"]["message"]
    assert not Path(root, "work").exists()


def test_a_run_travels_and_what_is_missing_is_put_once_and_the_same_task_sent_again(worker, root, tmp_path):
    """With the real luggage: an app's order as it is packed here, for the same numbers as here."""
    from hpcagent.apps.travel import pack
    from hpcagent.apps.worker import execute
    from hpcagent.catalog import find_app

    app = find_app("synthetic")
    site = {"node_cores": 2, "apps": {}}
    made = [app.order(app.manifest({}, seed=s, site=site), work=tmp_path / "work", site=site) for s in (1, 2)]
    packed = [pack(one) for one in made]
    request = protocol.run(root, [p.order for p in packed], upstream=[p.upstream for p in packed])
    blobs = {digest: blob for p in packed for digest, blob in p.blobs.items()}
    answer = worker.ask(request)
    assert set(answer["missing"]) == set(blobs) and "answers" not in answer
    assert worker.ask(protocol.look(root, keys=[request["key"]]))["states"][request["key"]]["state"] == "waiting"
    for digest, blob in blobs.items():
        for one in protocol.puts(root, blob, sha256=digest):
            assert worker.ask(one)["stored"]
    for order_, there in zip(made, worker.ask(request)["answers"], strict=True):
        execution = order_["manifest"]["execution_id"]
        assert there["status"] == "COMPLETED" and there["workdir"] == f"{root}/work/{execution}"
        assert there["metrics"] == execute(order_)["metrics"]


def test_a_helper_that_was_killed_while_it_waited_costs_no_run(worker, root):
    worker.ask(protocol.run(root, [order("w1")]))
    children = Path(f"/proc/{worker.process.pid}/task").glob("*/children")
    waiting = [int(pid) for path in children for pid in path.read_text().split()]
    for pid in waiting:
        os.kill(pid, signal.SIGKILL)
    all_gone(waiting)
    assert worker.ask(protocol.run(root, [order("w2")]))["answers"][0]["status"] == "COMPLETED"


def test_short_runs_in_one_task_cost_a_fraction_of_a_task_each(root):
    """CPU time of all processes, side by side: neither a busy nor a slow machine changes the ratio much."""
    worker = Worker()
    worker.ask(protocol.run(root, [order("warm")]))
    ticks = os.sysconf("SC_CLK_TCK")

    def used():
        text = Path(f"/proc/{worker.process.pid}/stat").read_text().rpartition(")")[2].split()
        helpers = Path(f"/proc/{worker.process.pid}/task").glob("*/children")
        pids = [pid for path in helpers for pid in path.read_text().split()]
        texts = [text, *(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids)]
        return sum(int(n) for one in texts for n in one[11:15]) / ticks

    before = used()
    answers = worker.ask(protocol.run(root, [order(f"q{n}") for n in range(200)]))["answers"]
    assert all(one["status"] == "COMPLETED" for one in answers)
    together, before = (used() - before) / 200, used()
    for n in range(30):
        worker.ask(protocol.run(root, [order(f"alone{n}")]))
    alone = (used() - before) / 30
    assert together < alone / 5
    worker.close()


def test_a_result_that_is_too_large_is_a_failure_and_what_has_no_room_is_asked_for_again(root, monkeypatch):
    from hpcagent.sites.endpoint import computing, running_there

    monkeypatch.setattr(computing, "LARGEST_RESULT", 2000)
    result = {"status": "COMPLETED", "workdir": "/w", "metrics": {f"m{n}": 1.0 for n in range(1000)}}
    small = computing.small_enough(result)
    assert small["failure"]["name"] == "ResultTooLarge" and "/w/result.json" in small["failure"]["message"]
    monkeypatch.setattr(running_there, "LARGEST_ANSWER", 100_000 + 2000)
    told = running_there._with_room({}, [{"x": "y" * 900}, {"x": "y" * 900}, {"x": "y" * 900}])
    assert [one is None for one in told["answers"]] == [False, False, True]
