"""A campaign on PBS while things go wrong: nothing is lost, nothing is done twice, nothing is left behind."""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.warm import Script

pytestmark = pytest.mark.slow

FAULTS = Path(__file__).parents[1] / "slurm" / "faults"
NODES = {"n1": 2, "n2": 2}


def _module(name: str, path: Path) -> Any:
    """A file of a folder that is no package."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


faults = _module("faults", FAULTS / "faults.py")
on_pbs = _module("on_pbs", FAULTS / "on_pbs.py")  # imports `faults`
Driven = on_pbs.DrivenOnPbs
Driven.begin = Script
RUNS = faults.RUNS
REAL_TIMES = _module("tests_pbs_fake", Path(__file__).parent / "fake" / "pbs.py").REAL_TIMES


@pytest.fixture
def drive(pbs: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Starts a campaign on the PBS of the test; whatever happens, it ends with the test."""
    pbs.set(hosts=NODES, kill_delay_s=0.5)
    started: list[Any] = []

    def start(folder: Path = tmp_path / "campaign", **words: Any) -> Any:
        fields = {key: words.pop(key) for key in ("seconds", "worker_init") if key in words}
        setting = faults.Setting(**({"seconds": 0.7} | fields))
        started.append(Driven(pbs, folder, setting, **words))
        return started[-1]

    yield start
    for driven in started:
        if driven.process.poll() is None:
            driven.process.terminate()
            driven.process.communicate(timeout=60)


def ledger(driven: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (driven.run_dir / "jobs.jsonl").read_text().splitlines()]


def check_clean(driven: Any) -> None:
    """No job is in the queue, every one has its end in the ledger, and no process of theirs is left."""
    assert driven.jobs() == []
    lines = ledger(driven)
    submitted = {line["job_id"] for line in lines if line["event"] == "submitted"}
    assert submitted == {line["job_id"] for line in lines if line["event"] == "ended"}
    deadline = time.monotonic() + 60
    while (left := driven.cluster.pbs.processes()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left


def check_whole(driven: Driven, answer: dict[str, Any]) -> None:
    """Every run has its right result and was finished once."""
    assert answer["error"] is None, answer["error"]
    assert sorted((r["n"], r["ok"], r["square"]) for r in answer["results"]) == [
        (n, True, n * n) for n in range(RUNS)
    ]
    assert driven.marks("done") == sorted(map(str, range(RUNS)))
    check_clean(driven)


def retries(driven: Any) -> set[str]:
    """Names of the failures after which runs were started again."""
    events = [json.loads(line) for line in (driven.run_dir / "events.jsonl").read_text().splitlines()]
    return {e["failure"]["name"] for e in events if e["event"] == "retry"}


def told(answer: dict[str, Any], words: str) -> int:
    return sum(words in line for line in answer["news"])


def test_qsub_fails_three_times_and_then_works(pbs: Any, drive: Any) -> None:
    pbs.set(qsub_fails=[38, "qsub: would exceed queue generic's per-user limit of jobs in 'Q' state"])
    driven = drive()
    driven.until(lambda: len(pbs.calls("qsub")) >= 3)
    pbs.set(qsub_fails=None)
    answer = driven.answer()
    check_whole(driven, answer)
    assert retries(driven) == set()
    assert told(answer, "per-user limit of jobs in 'Q' state") == 0  # a limit of jobs passes: told after a minute


def test_kill_9_and_the_same_script_again_while_its_jobs_still_run(pbs: Any, drive: Any) -> None:
    driven = drive()
    driven.until_runs()
    left = driven.jobs()
    driven.process.kill()
    driven.process.communicate()
    assert driven.jobs() == left  # nobody was there to delete them
    driven.start()
    check_whole(driven, driven.answer())


@pytest.mark.parametrize("settings", [{"variant": "M"}, {"history": False}], ids=str)
def test_a_campaign_submits_as_many_jobs_as_it_needs_whatever_qstat_hides(
    pbs: Any, drive: Any, settings: dict[str, Any]
) -> None:
    pbs.set(**settings)
    driven = drive(seconds=3.0)  # for longer than a job may stay unseen
    driven.until_runs()
    assert len(driven.jobs()) == 2  # Parsl alone submits more and more where it believes that they have ended
    answer = driven.answer()
    check_whole(driven, answer)
    assert retries(driven) == set()
    assert {line["state"] for line in ledger(driven) if line["event"] == "ended"} == {"cancelled"}
    assert told(answer, "PBS keeps no history of jobs") == ("history" in settings)
    submits = [line for line in ledger(driven) if line["event"] == "submitting"]
    assert len(submits) == 2


def in_brief(value: Any) -> str:
    """A parameter in the name of a test."""
    if isinstance(value, dict):
        return ",".join(f"{k}={v}" for k, v in value.items())
    return "" if isinstance(value, set | str) else value.__name__


@pytest.mark.parametrize(
    ("fault", "settings", "names", "words"),
    [
        (on_pbs.block_deleted, {"variant": "M"}, {"BlockCancelled"}, "and terminated by"),
        (on_pbs.block_deleted, REAL_TIMES, {"BlockCancelled"}, "job 0.vm runs"),
        (on_pbs.block_deleted, {"history": False}, {"BlockFailed"}, "PBS keeps no history of jobs here"),
        (on_pbs.walltime_over, {"variant": "R"}, {"BlockTimeout"}, "and exceeded resource walltime"),
        (
            on_pbs.walltime_over,
            REAL_TIMES | {"end_lag_s": 20.0, "walltime_lag_s": 0.0},
            {"BlockTimeout"},
            "job 0.vm runs",
        ),
        (on_pbs.node_dies, {"shown_down_s": 5.0}, {"NodeFailed"}, "has lost its workers and is given back"),
        (on_pbs.server_away, {}, set(), "the scheduler does not answer"),
        (on_pbs.job_purged, {}, {"BlockFailed"}, "the scheduler does not know this job any more"),
        (on_pbs.output_folder_missing, {"copy_retry_s": 2.5}, {"BlockCancelled"}, "and terminated by"),
        (faults.worker_killed, {}, {"WorkerLost"}, ""),
        (faults.manager_killed, {}, {"BlockFailed"}, ""),
    ],
    ids=in_brief,
)
def test_a_campaign_comes_through(
    pbs: Any, drive: Any, fault: Callable[[Any], None], settings: dict[str, Any], names: set[str], words: str
) -> None:
    pbs.set(**settings)
    driven = drive(seconds=2.0)  # a busy machine takes a second to disturb it
    fault(driven)
    answer = driven.answer()
    check_whole(driven, answer)
    assert retries(driven) == names
    assert told(answer, words) >= 1


@pytest.mark.parametrize(
    ("settings", "block", "words"),
    [
        ({}, 'queue = "nosuch"', "qsub: Unknown queue"),
        (
            {"queues": {"workq": {"max_walltime": 300}}},
            "",
            "qsub: Job violates queue and/or server resource limits",
        ),
    ],
    ids=["unknown queue", "over the queue's walltime"],
)
def test_a_job_that_pbs_refuses_is_told_in_seconds_and_in_its_own_words(
    pbs: Any, drive: Any, settings: dict[str, Any], block: str, words: str
) -> None:
    pbs.set(**settings)
    driven = drive(block=block)
    answer = driven.answer()
    assert words in answer["error"]
    assert len(pbs.calls("qsub")) == 1  # no other try
    assert driven.marks("begun") == []
    assert [line["event"] for line in ledger(driven)] == ["submitting", "refused"]


@pytest.mark.parametrize("history", [True, False], ids=["history", "no history"])
def test_a_bad_worker_init_is_told_with_what_it_printed(pbs: Any, drive: Any, history: bool) -> None:
    pbs.set(history=history)
    driven = drive(worker_init="echo no such module: lammps >&2; exit 7")
    answer = driven.answer()
    assert "before its workers were ready" in answer["error"] and "no such module: lammps" in answer["error"]
    assert ("exit code 7" in answer["error"]) == history
    assert driven.marks("begun") == []
    check_clean(driven)


def test_a_job_that_can_never_run_is_not_waited_for(pbs: Any, drive: Any) -> None:
    pbs.set(hosts={"n1": 1, "n2": 1})  # fewer cores than the profile says: qsub takes it, and it waits for ever
    driven = drive()
    answer = driven.answer()
    assert "can never run" in answer["error"]
    assert "Can Never Run: Insufficient amount of resource: ncpus (R: 2 A: 1 T: 1)" in answer["error"]
    assert len(pbs.calls("qsub")) <= 2  # of the two jobs that there may be
    assert driven.marks("begun") == []
    check_clean(driven)


def test_sigterm_deletes_every_job_and_says_how_to_go_on(pbs: Any, drive: Any) -> None:
    driven = drive()
    faults.sigterm(driven)
    answer = driven.answer(within_s=120)
    assert "stopped by SIGTERM" in answer["error"] and "hpcagent resume" in answer["error"]
    check_clean(driven)


def test_two_campaigns_at_once_do_not_meet(pbs: Any, drive: Any) -> None:
    pbs.set(variant="M", hosts=dict.fromkeys(("n1", "n2", "n3", "n4"), 2))
    both = [drive(pbs.home.with_name(name)) for name in ("a", "b")]
    answers = [driven.answer() for driven in both]
    for driven, answer in zip(both, answers, strict=True):
        check_whole(driven, answer)


def mpiexec(folder: Path, *, says: str, takes: str) -> Path:
    """A folder with an mpiexec of that kind: it refuses words of others, and starts a process a line of hosts."""
    folder.mkdir()
    tool = folder / "mpiexec"
    tool.write_text(
        f"""#!{sys.executable}
import argparse, os, subprocess, sys
if sys.argv[1:] == ["--version"]:
    sys.exit(print({says!r}))
words, rest = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False), []
words.add_argument("-n", type=int, required=True)
words.add_argument("--hostfile", required=True)
for word in {takes!r}.split():
    words.add_argument(word, required=True)
begin = sys.argv.index({sys.executable!r})
told = words.parse_args(sys.argv[1:begin])
hosts = open(told.hostfile).read().split()
assert len(hosts) == told.n and told.hostfile.startswith("/"), (hosts, told)
open({str(folder)!r} + "/told", "a").write(" ".join(sys.argv[1:begin]) + "\\n")
ends = [subprocess.Popen(sys.argv[begin:], env={{**os.environ, "RANK_HOST": host}}) for host in hosts]
sys.exit(max(end.wait() for end in ends))
"""
    )
    tool.chmod(0o755)
    return folder


PALS = {"says": "mpiexec version 1.3.4", "takes": "--ppn --cpu-bind"}


@pytest.mark.parametrize("kind", ["hydra", "pals"])
def test_a_block_of_two_nodes_has_workers_on_both(pbs: Any, drive: Any, kind: str) -> None:
    where = Path(sys.prefix) / "bin"
    if kind == "pals":
        where = mpiexec(pbs.home.with_name("pals"), **PALS)
    elif not (where / "mpiexec.hydra").is_file():
        pytest.skip("the mpich package is not installed")
    # Hydra would reach the nodes by ssh; they are this machine.
    init = f"export PATH={where}:$PATH HYDRA_LAUNCHER=fork"
    driven = drive(block="nodes_per_block = 2", worker_init=init)
    driven.until_runs()
    job_id = driven.jobs()[0]  # another waits
    assert len(driven.managers()) == 2
    answer = driven.answer()
    check_whole(driven, answer)
    assert told(answer, f"job {job_id} runs on n1, n2") == 1
    assert list((pbs.home / "home").iterdir()) == []  # Parsl writes its list of hosts there
