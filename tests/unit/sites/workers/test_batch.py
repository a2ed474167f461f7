"""How blocks are asked for and looked after, with a clock turned by hand; no scheduler, interchange or worker."""

from __future__ import annotations

import pickle
import sys
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from parsl.executors.high_throughput.errors import ManagerLost

from hpcagent.errors import SiteFailed
from hpcagent.sites.ledger import Ledger
from hpcagent.sites.opening import open_site
from hpcagent.sites.profile import Profile
from hpcagent.sites.schedulers.answers import Places
from hpcagent.sites.schedulers.slurm import Slurm
from hpcagent.sites.schedulers.submission import Refused
from hpcagent.sites.workers import batch as module
from hpcagent.sites.workers import executor as executor_module
from hpcagent.sites.workers import job_words
from hpcagent.sites.workers.batch import BatchExecutor
from hpcagent.sites.workers.batch_of_profile import batch_executor

FULL = "Slurm did not take job.sh: QOSMaxSubmitJobPerUserLimit"


class Clock:
    """In place of `time`: `now` is what its clocks show."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now

    def strftime(self, form: str) -> str:
        return "now"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(executor_module, "time", clock)
    monkeypatch.setattr(job_words, "time", clock)
    return clock


@pytest.fixture
def executor(tmp_path: Path, clock: Clock) -> BatchExecutor:
    """Of a Slurm site, with one task waiting; what it says is in `said`, what sbatch says in `sbatch`."""
    made = batch_executor(
        Profile(name="mine", kind="slurm"),
        "workers",
        scheduler=Slurm(),
        ledger=Ledger(tmp_path / "jobs.jsonl"),
        account=None,
        max_blocks=2,
    )
    made.run_dir = str(tmp_path)
    made.siblings = [made]
    made.said, made.sbatch, made.tries = [], [], 0
    made.tell = made.said.append
    state = {"blocks": {}, "waiting": 1, "seen": []}
    made._command = lambda message: state

    def launch(block_id: str) -> str:
        made.tries += 1
        answer = made.sbatch.pop(0) if len(made.sbatch) > 1 else made.sbatch[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    made._launch_block = launch
    made.start()
    made.submitted(1, {})
    made.tasks[1] = Future()
    return made


def wait(executor: BatchExecutor, clock: Clock, seconds: float) -> None:
    """Let time go by in steps of the poller's."""
    for _ in range(int(seconds)):
        clock.now += 1.0
        if not executor.bad_state_is_set:
            executor.look_after_blocks({})


def test_a_full_limit_is_waited_out_however_long_it_stays_full(executor: Any, clock: Clock) -> None:
    executor.sbatch = [Refused(FULL, transient=True)]
    wait(executor, clock, 59)
    assert executor.said == [] and executor.tries == 6  # after 0, 1, 3, 7, 15 and 31 s
    wait(executor, clock, 4 * 3600)
    assert not executor.bad_state_is_set and executor.refused_s == pytest.approx(4 * 3600 + 58)
    told = [int(line.split(" since ")[1].split()[0]) for line in executor.said]
    assert all(FULL in line for line in executor.said)
    assert told[0] in range(60, 130) and len(told) in range(7, 11)  # 1, 2, 4, ... 64 minutes, then every hour
    assert executor.tries < 4 * 3600 / 120 + 10
    executor.sbatch = ["77"]
    executor.provider.known = lambda: {"77": module.Job("77", "pending")}
    wait(executor, clock, 120)
    assert list(executor.blocks_to_job_id.values()) == ["77"] and executor.refused_s is None


def test_a_refusal_that_stays_ends_the_site_at_once(executor: Any, clock: Clock) -> None:
    executor.sbatch = [Refused("Slurm did not take job.sh: Invalid account")]
    wait(executor, clock, 1)
    assert executor.bad_state_is_set and "Invalid account" in str(executor.executor_exception)


def test_a_refusal_that_says_nothing_of_it_is_tried_some_times(executor: Any, clock: Clock) -> None:
    executor.sbatch = [Refused("Slurm did not take job.sh: hm", transient=True, unclear=True)]
    wait(executor, clock, 100)
    assert executor.bad_state_is_set and executor.tries == 6 and len(executor.said) == 5


def test_the_words_of_a_limit_between_do_not_use_up_those_tries(executor: Any, clock: Clock) -> None:
    hm = Refused("Slurm did not take job.sh: hm", transient=True, unclear=True)
    executor.sbatch = [hm, Refused(FULL, transient=True), hm, Refused(FULL, transient=True)]
    wait(executor, clock, 3600)
    assert not executor.bad_state_is_set


def test_no_room_beside_blocks_that_then_end_is_tried_again_at_once(executor: Any, clock: Clock) -> None:
    executor.sbatch = ["1", Refused(FULL, transient=True), "2"]
    jobs = {"1": module.Job("1", "running"), "2": module.Job("2", "pending")}
    executor.provider.known = lambda: dict(jobs)
    executor.submitted(2, {}), executor.submitted(3, {})
    wait(executor, clock, 10)
    assert executor.tries == 2
    executor._results = 1
    executor._given_back.add("0")
    wait(executor, clock, 2)
    assert "2" in executor.blocks_to_job_id.values()


# ---- what runs were lost with


def test_no_run_is_forgotten_where_one_of_those_lost_cannot_be_settled(executor: Any, clock: Clock) -> None:
    executor.provider.known = lambda: {"7": module.Job("7", "failed")}
    answers: list[Any] = [OSError("Input/output error"), (Path("none"), Path("none"))]
    executor.provider.logs = lambda job_id: _raised(answers.pop(0)) if len(answers) > 1 else answers[0]
    executor.blocks_to_job_id["0"] = "7"
    futures: list[Future[Any]] = [Future(), Future()]
    for future in futures:
        executor.lost(future, ManagerLost(b"m", "n1"), "0")
    with pytest.raises(OSError, match="Input/output"):
        executor._settle(executor.provider.known())
    assert not any(future.done() for future in futures)
    executor._settle(executor.provider.known())
    assert [getattr(future.exception(timeout=0), "name", "") for future in futures] == ["BlockFailed"] * 2


def _lost(executor: Any, clock: Clock, job: Any, *, seconds: float) -> tuple[str, float]:
    """What a run is told that was lost with the workers of a job, and how long it waited for that."""
    executor.provider.known = lambda: {"7": job} if job.job_id == "7" else {}
    executor.provider.logs = lambda job_id: (Path("none"), Path("none"))
    executor.blocks_to_job_id["0"] = "7"
    future: Future[Any] = Future()
    executor.lost(future, ManagerLost(b"m", "n1"), "0")
    began = clock.now
    while not future.done() and clock.now < began + seconds:
        clock.now += 1.0
        executor._settle(executor.provider.known())
    return getattr(future.exception(timeout=0), "name", ""), clock.now - began


def test_workers_that_go_when_their_walltime_is_over_ran_out_of_time_whatever_the_scheduler_still_shows(
    executor: Any, clock: Clock
) -> None:
    """PBS shows a job running for up to 13 s after its processes have died."""
    job = module.Job("7", "running", started_at=clock.now - 83, ends_at=clock.now - 3)
    assert _lost(executor, clock, job, seconds=60) == ("BlockTimeout", 1.0)


def test_workers_that_go_before_are_lost_after_as_long_as_the_scheduler_may_take_to_tell(
    executor: Any, clock: Clock
) -> None:
    job = module.Job("7", "running", started_at=clock.now - 20, ends_at=clock.now + 60)
    assert _lost(executor, clock, job, seconds=60) == ("ManagerLost", 16.0)
    executor.provider.word_within_s = 30.0
    assert _lost(executor, clock, job, seconds=60) == ("ManagerLost", 31.0)


@pytest.mark.parametrize(("state", "name"), [("node_failed", "NodeFailed"), ("cancelled", "ManagerLost")])
def test_a_block_that_has_lost_its_workers_is_ended_where_that_tells_of_a_dead_node(
    executor: Any, clock: Clock, state: Any, name: str
) -> None:
    """PBS's qdel asks the node. That we have ended the job is no reason for which its runs were lost."""
    executor.provider.word_within_s, executor.provider.cancelling_tells = 30.0, True
    executor._vanished = {"0": clock.now}
    job = module.Job("7", "running")
    ended: list[str] = []

    def cancel(job_ids: Any) -> list[bool]:
        ended.extend(job_ids)
        executor.provider.known = lambda: {"7": module.Job("7", state)}
        return [True]

    executor.provider.cancel = cancel
    found, after_s = _lost(executor, clock, job, seconds=60)
    assert (found, ended) == (name, ["7"]) and after_s in (31, 32)  # not before its end may have been told
    assert executor.said == ["job 7 has lost its workers and is given back"]


def _ended_in_a_row(executor: Any, state: Any) -> None:
    """Three blocks that were up have ended without a result."""
    executor.provider.known = lambda: {str(n): module.Job(str(n), state) for n in range(3)}
    executor.provider.logs = lambda job_id: (Path("none"), Path("none"))
    executor._scale = lambda jobs: None
    for number in ("0", "1", "2"):
        executor.blocks_to_job_id[number] = number
        up = Path(executor.worker_logdir, f"block-{number}")
        up.mkdir(parents=True)
        (up / "up").touch()


def test_the_run_in_the_last_of_blocks_that_ended_in_a_row_fails_as_its_block_did_then_the_site(
    executor: Any, clock: Clock
) -> None:
    """The scheduler may tell of the end before the interchange has missed the workers."""
    _ended_in_a_row(executor, "out_of_memory")
    run, other = executor.tasks[1], Future()
    executor.tasks[2] = other
    wait(executor, clock, 1)
    assert not run.done() and not executor.bad_state_is_set
    executor.lost(executor.tasks.pop(1), ManagerLost(b"m", "n1"), "2")
    wait(executor, clock, 1)
    assert getattr(run.exception(timeout=0), "name", "") == "BlockOutOfMemory"
    wait(executor, clock, 10)
    assert "3 in a row" in str(executor.executor_exception) and isinstance(other.exception(timeout=0), SiteFailed)


def test_a_result_that_comes_late_saves_a_site_whose_blocks_ended_in_a_row(executor: Any, clock: Clock) -> None:
    _ended_in_a_row(executor, "failed")
    wait(executor, clock, 1)
    executor._results += 1
    jobs = {str(n): module.Job(str(n), "failed") for n in range(4)}  # one more in the same look
    executor.provider.known = lambda: jobs
    executor.blocks_to_job_id["3"] = "3"
    up = Path(executor.worker_logdir, "block-3")
    up.mkdir()
    (up / "up").touch()
    wait(executor, clock, 20)
    assert not executor.bad_state_is_set


def test_where_the_limits_leave_no_place_nothing_is_submitted(executor: Any, clock: Clock) -> None:
    executor.sbatch = ["77"]
    free = [0]
    executor.provider.scheduler.places = lambda queue, project=None: Places(
        most=2, free=free[0], words=("max_queued",)
    )
    wait(executor, clock, 200)
    assert executor.tries == 0 and not executor.bad_state_is_set
    assert "its limits are reached (max_queued)" in executor.said[0]
    free[0] = 1
    executor.provider.known = lambda: {"77": module.Job("77", "pending")}
    wait(executor, clock, 120)
    assert list(executor.blocks_to_job_id.values()) == ["77"]


def test_the_limits_are_asked_once_for_all_blocks_that_are_wanted_at_a_time(executor: Any, clock: Clock) -> None:
    executor.max_blocks, executor.sbatch, asked = 9, [str(n) for n in range(9)], []
    executor.provider.known = lambda: {j: module.Job(j, "pending") for j in "012345678"}
    for task in range(2, 7):
        executor.submitted(task, {})

    def places(queue: str, project: str | None = None) -> Places:
        asked.append(queue)
        return Places(most=4, free=4, words=("max_queued",))

    executor.provider.scheduler.places = places
    wait(executor, clock, 1)
    assert list(executor.blocks_to_job_id.values()) == ["0", "1", "2", "3"] and executor.tries == 4
    assert len(asked) == 1
    assert "no further job: No job can be added" in executor.said[-1]
    wait(executor, clock, 100)
    assert len(asked) == 1  # nor is it asked while there was no room


# ---- threads


def test_one_exception_of_the_poller_is_told_and_written_down(executor: Any, clock: Clock) -> None:
    executor._begun = True
    answers = [ValueError("invalid start byte"), []]
    executor.provider.status = lambda ids: _raised(answers.pop(0))
    executor.poll_facade()
    assert len(executor.said) == 1 and "ValueError: invalid start byte" in executor.said[0]
    (log,) = Path(executor.run_dir).rglob("exceptions.log")
    assert "Traceback" in log.read_text() and str(log) in executor.said[0]
    executor._last_poll_time = 0.0
    executor.poll_facade()
    assert answers == []
    assert not executor.bad_state_is_set and len(executor.said) == 1


def _raised(answer: Any) -> Any:
    if isinstance(answer, Exception):
        raise answer
    return answer


class Alive:
    def poll(self) -> None:
        return None


@pytest.mark.parametrize("where", ["status", "look_after_blocks"])
def test_exceptions_of_the_poller_that_repeat_fail_the_site_with_their_words(
    executor: Any, clock: Clock, where: str
) -> None:
    executor._begun, executor.interchange_proc = True, Alive()
    outstanding: Future[Any] = Future()
    lost: Future[Any] = Future()
    executor.tasks[1] = outstanding
    executor.lost(lost, ManagerLost(b"m", "n1"), "0")

    def fails(*args: Any) -> Any:
        raise UnicodeDecodeError("utf-8", b"\xe9", 0, 1, "invalid continuation byte")

    setattr(executor.provider if where == "status" else executor, where, fails)
    began = clock.now
    while not executor.bad_state_is_set and clock.now < began + 600:
        executor._last_poll_time = 0.0  # Parsl's own clock stands still
        executor.poll_facade()
        executor.handle_errors(executor.status_facade)
        clock.now += 0.2
    assert 10 <= clock.now - began < 120
    assert "invalid continuation byte" in str(outstanding.exception(timeout=0))
    assert isinstance(lost.exception(timeout=0), SiteFailed)  # nobody waits for ever
    with pytest.raises(SiteFailed, match="invalid continuation byte"):
        executor.submit_payload({}, b"")


class Queue:
    """The end of the interchange's results; the second message is no pickle."""

    def __init__(self, *messages: bytes) -> None:
        self.messages = list(messages)
        self.closed = False

    def get(self, timeout_ms: int) -> bytes | None:
        return self.messages.pop(0) if self.messages else None

    def close(self) -> None:
        self.closed = True


def test_results_that_cannot_be_read_end_the_site_and_not_only_the_thread(executor: Any) -> None:
    executor.tasks[1] = waiting = Future()
    executor.incoming_q = Queue(pickle.dumps({"task_id": 9, "result": b""}), b"no pickle")
    executor._begun = True
    executor._result_queue_worker()
    assert executor.incoming_q.closed
    error = waiting.exception(timeout=0)
    assert isinstance(error, SiteFailed) and error.mendable and "cannot be read" in str(error)


def test_a_task_that_ends_its_thread_leaves_no_future_pending() -> None:
    with open_site("threads", private=True) as site:
        error = site.submit(sys.exit, 3).exception(timeout=30)
        assert isinstance(error, SiteFailed) and "SystemExit: 3" in str(error)
        assert site.submit(max, 2, 3).result(timeout=30) == 3
