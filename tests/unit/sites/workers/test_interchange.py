"""What the interchange gives to which block, and what it does when one goes. Real sockets, one round at a time."""

from __future__ import annotations

import logging
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import zmq
from parsl.executors.high_throughput.interchange import PKL_SHUTDOWN_CODE
from parsl.executors.high_throughput.manager_selector import RandomManagerSelector
from parsl.serialize import deserialize
from parsl.version import VERSION

from hpcagent.lifeline import birth
from hpcagent.sites.workers import interchange, wire
from hpcagent.sites.workers.executor import Executor
from hpcagent.sites.workers.interchange import _PASSED_OVER, Interchange


class Pool:
    """What a manager of a node says and hears; no workers."""

    def __init__(self, bench: Bench, block: str, capacity: int = 64, **about: Any) -> None:
        self.bench, self.block = bench, block
        self.socket = bench.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.IDENTITY, f"manager-{block}".encode())
        self.socket.connect(f"tcp://127.0.0.1:{bench.interchange.worker_port}")
        version = ".".join(map(str, sys.version_info[:3]))
        self.say(
            type="registration", uid=f"manager-{block}", block_id=block, hostname=f"host-{block}",
            parsl_v=VERSION, python_v=version, start_time=time.time(), worker_count=capacity,
            max_capacity=capacity, **about,
        )  # fmt: skip

    def say(self, **message: Any) -> None:
        self.socket.send(pickle.dumps(message))

    def done(self, *task_ids: int) -> None:
        for task_id in task_ids:
            self.say(type="result", task_id=task_id, result=b"")

    def goodbye(self) -> None:
        self.say(type="monitoring", payload={"goodbye": f"manager-{self.block}"})

    def got(self) -> list[Any]:
        """What it was sent since it was last asked."""
        self.bench.rounds()
        got: list[Any] = []
        while self.socket.poll(10):
            message = self.socket.recv()
            got += ["shutdown"] if message == PKL_SHUTDOWN_CODE else pickle.loads(message)
        return got

    def ids(self) -> list[int]:
        return [task["task_id"] for task in self.got()]


class Bench:
    """A real interchange whose loop is turned by hand, with the opener's ends of its sockets."""

    def __init__(self, folder: Path) -> None:
        self.context = zmq.Context()
        self.sockets: list[Any] = []
        ends = [self.socket(kind) for kind in (zmq.DEALER, zmq.DEALER, zmq.REQ)]
        ports = [end.bind_to_random_port("tcp://127.0.0.1") for end in ends]
        self.tasks, self.results, self.commands = ends
        self.interchange = Interchange(
            client_address="127.0.0.1",
            interchange_address="127.0.0.1",
            client_ports=tuple(ports),
            worker_port=None,
            worker_port_range=(40000, 50000),
            hub_address=None,
            hub_zmq_port=None,
            heartbeat_threshold=60,
            logdir=str(folder),
            logging_level=logging.ERROR,
            poll_period=20,
            cert_dir=None,
            manager_selector=RandomManagerSelector(),
            run_id="",
            log_config=None,
            _check_python_mismatch=True,
        )
        self.interesting: set[bytes] = set()
        self.poller = zmq.Poller()
        for socket in (
            self.interchange.manager_sock,
            self.interchange.task_incoming,
            self.interchange.command_channel,
        ):
            self.poller.register(socket, zmq.POLLIN)

    def socket(self, kind: int) -> Any:
        self.sockets.append(self.context.socket(kind))
        return self.sockets[-1]

    def close(self) -> None:
        ix = self.interchange
        for socket in (*self.sockets, ix.manager_sock, ix.task_incoming, ix.results_outgoing, ix.command_channel):
            socket.close(linger=0)
        self.context.term()
        ix.zmq_context.term()

    def rounds(self, count: int = 3) -> None:
        """Rounds of Parsl's loop, in its order."""
        ix = self.interchange
        for _ in range(count):
            ix.socks = dict(self.poller.poll(10))
            ix.process_command(None)
            ix.process_task_incoming()
            ix.process_manager_socket_message(self.interesting, None, None)
            ix.expire_bad_managers(self.interesting, None)
            ix.expire_drained_managers(self.interesting, None)
            ix.process_tasks_to_send(self.interesting, None)

    def task(self, task_id: int, priority: float | None = None, **needs: Any) -> None:
        spec = {} if priority is None else {"priority": priority}
        context = {**wire.RUN, "resource_spec": spec, **({"needs": needs} if needs else {})}
        self.tasks.send_pyobj({"task_id": task_id, "context": context, "buffer": b""})

    def ask(self, request: Any) -> Any:
        self.commands.send_pyobj(request)
        self.rounds()
        assert self.commands.poll(1000)
        return self.commands.recv_pyobj()

    def lost(self) -> dict[int, str]:
        """Tasks reported as lost, with the block that they were in."""
        found = {}
        while self.results.poll(20):
            message = pickle.loads(self.results.recv())
            if "exception" in message:
                assert "host-" in str(deserialize(message["exception"]).get_exception())
                found[message["task_id"]] = message["block_id"]
        return found


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.close()


def hosts(count: int = 2, cores: int = 2) -> list[dict[str, Any]]:
    return [{"name": f"n{i + 1}", "cores": list(range(cores)), "gpus": []} for i in range(count)]


def test_runs_go_where_their_cores_are_and_are_told_so(bench: Bench) -> None:
    pool = Pool(bench, "0", hosts=hosts())
    bench.task(1, nodes=2, cores=1, walltime_s=10)
    bench.task(2, nodes=1, cores=1, walltime_s=10)
    bench.task(3, nodes=2, cores=1, walltime_s=10)  # one core of n2 is left
    got = pool.got()
    assert [task["task_id"] for task in got] == [1, 2]
    wide, narrow = (task["context"]["task_executor"]["k"]["place"] for task in got)
    assert wide == (
        '{"hosts": [{"name": "n1", "cores": [0], "gpus": []}, {"name": "n2", "cores": [0], "gpus": []}], '
        '"first": "n1"}'
    )
    assert '"n1", "cores": [1]' in narrow
    pool.done(2)
    assert pool.ids() == [3]


def test_a_task_without_needs_goes_anywhere_and_is_told_nothing(bench: Bench) -> None:
    pool = Pool(bench, "0", hosts=hosts(), ends_at=time.time() - 1)
    bench.task(1)
    (task,) = pool.got()
    assert "k" not in task["context"]["task_executor"]


def test_the_more_urgent_goes_first_and_then_who_came_first(bench: Bench) -> None:
    bench.task(1, cores=2)
    bench.task(2, cores=2, priority=5.0)
    bench.task(3, cores=2, priority=1.0)
    bench.task(4, cores=2)
    bench.rounds()
    pool = Pool(bench, "0", hosts=hosts(1))
    order = []
    for _ in range(4):
        (task_id,) = pool.ids()
        order.append(task_id)
        pool.done(task_id)
    assert order == [3, 2, 1, 4]


def test_no_more_runs_than_workers(bench: Bench) -> None:
    pool = Pool(bench, "0", capacity=2, hosts=hosts(1, cores=8))
    for task_id in (1, 2, 3):
        bench.task(task_id, cores=1)
    assert pool.ids() == [1, 2]
    pool.done(1)
    assert pool.ids() == [3]


def test_a_large_run_is_passed_by_some_small_ones_but_not_for_ever(bench: Bench) -> None:
    pool = Pool(bench, "0", hosts=hosts(2))
    bench.task(1, cores=1)
    bench.task(2, cores=1)
    running = pool.ids()
    bench.task(50, nodes=2, cores=2)
    for task_id in range(100, 140):
        bench.task(task_id, cores=1)
    before: list[int] = []
    while 50 not in running:
        begun = pool.ids()
        before += [task_id for task_id in begun if task_id != 50]
        running += begun
        if 50 not in begun:
            pool.done(running.pop(0))
    assert len(before) == _PASSED_OVER


def test_waiting_alone_does_not_use_up_a_large_runs_patience(bench: Bench) -> None:
    pool = Pool(bench, "0", hosts=hosts(2))
    bench.task(1, cores=1)
    assert pool.ids() == [1]
    bench.task(50, nodes=2, cores=2)
    bench.rounds(5 * _PASSED_OVER)  # nobody went before it in these
    bench.task(2, cores=1)
    assert pool.ids() == [2]


def test_only_one_block_is_kept_free_for_a_large_run(bench: Bench) -> None:
    pools = [Pool(bench, block, hosts=hosts(1)) for block in "ab"]
    bench.rounds()
    for task_id in range(1, 5):
        bench.task(task_id, cores=1)
    running = [pool.ids() for pool in pools]
    assert sorted(running[0] + running[1]) == [1, 2, 3, 4]
    bench.task(50, cores=2)
    for task_id in range(100, 130):
        bench.task(task_id, cores=1)
    for _ in range(_PASSED_OVER // 2):
        for pool, at in zip(pools, running, strict=True):
            pool.done(at.pop(0))
            at += pool.ids()
            assert len(at) == 2 and 50 not in at
    for pool, at in zip(pools, running, strict=True):
        pool.done(at.pop(0))
        at += pool.ids()
    (kept, kept_at), (_, other_at) = sorted(zip(pools, running, strict=True), key=lambda pair: len(pair[1]))
    assert (len(kept_at), len(other_at)) == (1, 2)
    kept.done(*kept_at)
    assert kept.ids() == [50]


def test_a_large_run_that_has_no_time_here_keeps_nothing_free(bench: Bench) -> None:
    pool = Pool(bench, "0", hosts=hosts(2), ends_at=time.time() + 60)
    bench.task(50, nodes=2, cores=2, walltime_s=100)
    for task_id in range(100, 130):
        bench.task(task_id, cores=1, walltime_s=10)
        (got,) = pool.ids()
        pool.done(got)
    assert bench.ask("STATE")["waiting"] == 1


def test_a_run_goes_only_into_a_block_with_time_for_it(bench: Bench) -> None:
    short = Pool(bench, "short", hosts=None, ends_at=time.time() + 30)
    bench.task(1, walltime_s=60)
    bench.task(2, walltime_s=10)
    assert short.ids() == [2]
    state = bench.ask("STATE")
    assert state["waiting"] == 1 and not state["blocks"]["short"]["usable"]
    long = Pool(bench, "long", hosts=None, ends_at=time.time() + 90)
    assert long.ids() == [1]
    assert bench.ask("STATE")["blocks"]["long"]["usable"]  # nothing waits that it could not take


def test_a_block_that_is_full_now_is_usable_all_the_same(bench: Bench) -> None:
    pool = Pool(bench, "0", hosts=hosts(1))
    bench.task(1, cores=2)
    bench.task(2, cores=2)
    assert pool.ids() == [1]
    about = bench.ask("STATE")["blocks"]["0"]
    assert about["usable"] and about["tasks"] == 1 and about["managers"] == 1
    bench.task(3, nodes=2, cores=1)
    pool.done(1)
    assert pool.ids() == [2]
    assert not bench.ask("STATE")["blocks"]["0"]["usable"]


def test_a_goodbye_hands_its_runs_back_at_once(bench: Bench) -> None:
    pool = Pool(bench, "7", hosts=hosts(2))
    bench.task(1, cores=1)
    bench.task(2, cores=1)
    assert pool.ids() == [1, 2]
    pool.done(1)
    pool.goodbye()
    bench.rounds()
    assert bench.lost() == {2: "7"}
    assert bench.ask("STATE")["blocks"] == {}
    bench.task(3, cores=1)
    assert pool.got() == []


def test_an_expired_block_loses_its_runs_and_nothing_else_happens(bench: Bench) -> None:
    gone, stays = Pool(bench, "gone", hosts=hosts(2)), Pool(bench, "stays", hosts=hosts(1))
    bench.task(1, nodes=2, cores=1)
    assert gone.ids() == [1]
    bench.task(2, nodes=2, cores=2)  # waits, so that the manager with room left is looked at again
    bench.rounds()
    assert bench.ask(("EXPIRE", "gone")) is None
    assert bench.lost() == {1: "gone"}
    bench.task(3, cores=2)
    assert stays.ids() == [3]
    assert bench.ask("STATE")["seen"] == ["gone", "stays"]


def test_a_block_that_was_given_something_meanwhile_is_not_retired(bench: Bench) -> None:
    pool = Pool(bench, "0", hosts=hosts(1))
    bench.task(1, cores=1)
    assert pool.ids() == [1]
    assert bench.ask(("RETIRE", "0")) is False
    pool.done(1)
    bench.rounds()
    assert bench.ask(("RETIRE", "0")) is True
    bench.task(2, cores=1)
    assert pool.got() == ["shutdown"]
    assert bench.ask(("RETIRE", "never heard of")) is True
    assert bench.ask("MANAGERS") == [] and bench.ask("CONNECTED_BLOCKS") == ["0"]


def test_a_local_manager_that_lives_but_says_nothing_is_ended_before_its_runs_are_lost(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interchange, "_FROZEN_S", 0.6)
    manager = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        pool = Pool(bench, "0", hosts=hosts(), pid=manager.pid, birth=birth(manager.pid))
        bench.task(1, nodes=1, cores=1, walltime_s=10)
        assert pool.ids() == [1]
        os.kill(manager.pid, signal.SIGSTOP)
        deadline = time.monotonic() + 60
        while manager.poll() is None and time.monotonic() < deadline:
            bench.rounds()
        assert manager.wait(1) == -signal.SIGKILL
        assert bench.lost() == {1: "0"}
    finally:
        manager.kill()
        manager.wait()


def test_an_interchange_that_was_stopped_itself_does_not_take_its_managers_for_lost(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interchange, "_SLEPT_S", 0.8)
    bench.interchange.heartbeat_threshold = 0.7
    pool = Pool(bench, "0", hosts=hosts())
    bench.task(1, nodes=1, cores=1, walltime_s=10)
    assert pool.ids() == [1]
    bench.rounds()
    time.sleep(1.2)  # nobody turns the loop
    bench.rounds()
    assert bench.lost() == {}
    deadline = time.monotonic() + 60
    while not (lost := bench.lost()) and time.monotonic() < deadline:
        bench.rounds()
    assert lost == {1: "0"}  # it said nothing while the loop was turned


@pytest.mark.parametrize("answers_late", [False, True])
def test_an_interchange_without_answer_is_ended_after_the_time_that_is_stated(answers_late, monkeypatch):
    # Time by a clock of its own: a question takes all of its 10 s, or the coordinator was stopped for an hour in it.
    clock = [0.0]
    said: list[str] = []
    ended: list[float] = []
    asked = iter([True, *([False] * 2), None, True] if answers_late else [])

    def wait(pause_s: float) -> bool:
        clock[0] += pause_s
        return bool(ended) or clock[0] > 20_000

    def command(message: object) -> int | None:
        answer = next(asked, False)
        clock[0] += {True: 0.0, False: 10.0, None: 3600.0}[answer]
        return 1 if answer else None

    site = Executor.__new__(Executor)
    site.interchange_proc = SimpleNamespace(
        pid=os.getpid(), poll=lambda: None, kill=lambda: ended.append(clock[0])
    )
    site._result_queue_thread_exit = SimpleNamespace(wait=wait)
    site.tell = said.append
    monkeypatch.setattr(site, "_command", command)
    monkeypatch.setattr("hpcagent.sites.workers.executor.time", SimpleNamespace(monotonic=lambda: clock[0]))
    site._watch_interchange()
    begun = 10 + 20 + 10 + 3600 if answers_late else 0
    assert ended == [pytest.approx(begun + 120)]
    assert "has not answered for 30 s; after 120 s it is replaced" in said[-1]
    assert site._ended_because == "did not answer for 120 s and was ended"
