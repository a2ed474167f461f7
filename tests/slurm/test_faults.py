"""The cluster misbehaves: nothing is lost, nothing is done twice, nothing is left behind."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.warm import Script

HERE = Path(__file__).parent


def _faults() -> Any:
    """faults/faults.py: the folder is no package."""
    if "tests_slurm_faults" not in sys.modules:
        spec = importlib.util.spec_from_file_location("tests_slurm_faults", HERE / "faults" / "faults.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["tests_slurm_faults"] = module
        spec.loader.exec_module(module)
    return sys.modules["tests_slurm_faults"]


faults = _faults()
Setting, Driven = faults.Setting, faults.Driven
Driven.begin = Script


@pytest.fixture
def drive(cluster: Any, tmp_path: Path) -> Any:
    """Start a campaign on the cluster; whatever happens, it is ended with the test."""
    started = []

    def start(setting: Any = None, folder: Path | None = None) -> Any:
        started.append(Driven(cluster, folder or tmp_path, setting or Setting()))
        return started[-1]

    yield start
    for driven in started:
        if driven.process.poll() is None:
            driven.process.terminate()
            driven.process.communicate(timeout=60)


def check_whole(driven: Any, answer: dict[str, Any], *, runs: int = faults.RUNS) -> None:
    """Every run has its right result, was finished once, and no job is left."""
    assert answer["error"] is None, answer["error"]
    assert sorted((r["n"], r["ok"], r["square"]) for r in answer["results"]) == [
        (n, True, n * n) for n in range(runs)
    ]
    assert driven.marks("done") == sorted(map(str, range(runs)))
    check_clean(driven)


def check_clean(driven: Any) -> None:
    """No job in the queue, and every one in the ledger has its end."""
    assert driven.jobs() == []
    lines = [json.loads(line) for line in (driven.run_dir / "jobs.jsonl").read_text().splitlines()]
    submitted = {line["job_id"] for line in lines if line["event"] == "submitted"}
    ended = {line["job_id"] for line in lines if line["event"] == "ended"}
    assert submitted == ended


def retries(driven: Any) -> list[str]:
    """Names of the failures after which runs were started again."""
    events = [json.loads(line) for line in (driven.run_dir / "events.jsonl").read_text().splitlines()]
    return sorted(e["failure"]["name"] for e in events if e["event"] == "retry")


def test_the_walltime_of_a_block_is_over(drive: Any) -> None:
    """First of all: Slurm looks every 30 s whose time is over."""
    driven = drive(Setting(runs=4, seconds=32.0))
    faults.walltime(driven)
    answer = driven.answer()
    check_whole(driven, answer, runs=4)
    assert set(retries(driven)) == {"BlockTimeout"}
    assert any("timeout" in line for line in answer["news"])


@pytest.mark.parametrize(
    ("fault", "names"),
    [
        (faults.block_cancelled, {"BlockCancelled"}),
        (faults.worker_killed, {"WorkerLost"}),
        (faults.manager_killed, {"BlockFailed", "ManagerLost"}),
        (faults.interchange_killed, {"SiteFailed"}),
        (faults.controller_restarted, set()),
        (faults.node_drained, set()),
        (faults.node_failed, {"NodeFailed"}),
        (faults.latin_1, {"BlockCancelled"}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_campaign_comes_through(drive: Any, fault: Callable[[Any], None], names: set[str]) -> None:
    driven = drive()
    fault(driven)
    check_whole(driven, driven.answer())
    assert set(retries(driven)) <= names
    assert bool(retries(driven)) == bool(names)


def test_runs_go_only_where_they_have_time(cluster: Any, drive: Any) -> None:
    # 60 s less 10 s margin; a run says 60 s at most, but 8 of 12 s need two rounds on four workers anyhow.
    driven = drive(Setting(partition="short", walltime="00:02:00", seconds=1.0))
    driven.until_runs()
    ends = {cluster.details(j)["TimeLimit"] for j in driven.jobs()}
    assert ends == {"00:02:00"}
    check_whole(driven, driven.answer())


def test_sbatch_fails_three_times_and_then_works(drive: Any, tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    real = shutil.which("sbatch")
    flaky = tools / "sbatch"
    flaky.write_text(
        f"#!/bin/sh\nn=$(cat {tools}/n 2>/dev/null || echo 0); echo $((n + 1)) > {tools}/n\n"
        'if [ "$n" -lt 3 ]; then\n'
        '  echo "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation" >&2; exit 1\n'
        f'fi\nexec {real} "$@"\n'
    )
    flaky.chmod(flaky.stat().st_mode | stat.S_IXUSR)
    driven = drive(Setting(environment={"PATH": f"{tools}:{os.environ['PATH']}"}))
    answer = driven.answer()
    check_whole(driven, answer)
    assert retries(driven) == []
    assert int((tools / "n").read_text()) >= 4  # three refusals, then a job or two
    assert not any("Socket timed out" in line for line in answer["news"])  # it passes: told after a minute


def test_a_bad_partition_is_told_in_seconds_in_slurms_own_words(drive: Any) -> None:
    driven = drive(Setting(partition="nope"))
    answer = driven.answer()
    assert "invalid partition specified: nope" in answer["error"]
    assert not [line for line in answer["news"] if "Trying again" in line]
    assert driven.marks("begun") == [] and driven.jobs() == []


def test_a_bad_worker_init_is_told_with_what_it_printed(drive: Any) -> None:
    driven = drive(Setting(worker_init="echo no such module: lammps >&2; exit 7"))
    answer = driven.answer()
    assert "before its workers were ready" in answer["error"]
    assert "exit code 7" in answer["error"] and "no such module: lammps" in answer["error"]
    assert driven.marks("begun") == []
    check_clean(driven)


def test_more_memory_than_a_node_has_is_told_before_anything_is_submitted(drive: Any) -> None:
    driven = drive(Setting(memory_gb=64))
    answer = driven.answer()
    assert "64" in answer["error"] and "2 GB" in answer["error"]
    assert not (driven.run_dir / "jobs.jsonl").exists()


def test_a_run_that_eats_the_memory_of_its_job_is_named(accounting_cluster: Any, tmp_path: Path) -> None:
    driven = Driven(accounting_cluster, tmp_path, Setting(memory_gb=1, eats_mb=1400, seconds=3.0))
    answer = driven.answer()
    assert answer["error"] is None, answer["error"]
    failed = {r["n"]: r["failure"] for r in answer["results"] if not r["ok"]}
    assert failed == {3: "BlockOutOfMemory"}
    assert "memory" in next(r["message"] for r in answer["results"] if r["n"] == 3)
    assert len([r for r in answer["results"] if r["ok"]]) == faults.RUNS - 1
    check_clean(driven)


def test_kill_9_and_the_same_script_again_while_its_jobs_still_run(drive: Any) -> None:
    driven = drive()
    driven.until_runs()
    left = driven.jobs()
    assert left
    driven.process.kill()
    driven.process.communicate()
    assert driven.jobs() == left  # nobody was left to cancel them
    driven.start()
    answer = driven.answer()
    check_whole(driven, answer)


def test_what_a_killed_coordinator_left_ends_by_itself(drive: Any) -> None:
    driven = drive()
    driven.until_runs()
    driven.process.kill()
    driven.process.communicate()
    deadline = time.monotonic() + 60  # heartbeat_s is 12
    while driven.jobs() and time.monotonic() < deadline:
        time.sleep(0.5)
    assert driven.jobs() == []


@pytest.mark.parametrize(
    ("fault", "name"), [(faults.sigterm, "SIGTERM"), (faults.hangup, "SIGHUP")], ids=["SIGTERM", "SIGHUP"]
)
def test_a_signal_cancels_every_job_and_says_how_to_go_on(
    drive: Any, fault: Callable[[Any], None], name: str
) -> None:
    driven = drive()
    fault(driven)
    answer = driven.answer(within_s=120)
    assert f"stopped by {name}" in answer["error"] and "hpcagent resume" in answer["error"]
    check_clean(driven)
    driven.start()
    check_whole(driven, driven.answer())


def test_two_campaigns_at_once_do_not_meet(drive: Any, tmp_path: Path) -> None:
    first, second = drive(folder=tmp_path / "a"), drive(folder=tmp_path / "b")
    answers = [driven.answer() for driven in (first, second)]
    for driven, answer in zip((first, second), answers, strict=True):
        check_whole(driven, answer)


def test_a_full_disk_costs_nothing_finished(drive: Any, tmp_path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("mounting a small file system needs root")
    folder = tmp_path / "small"
    folder.mkdir()
    full = folder / "run"
    full.mkdir()
    assert os.system(f"mount -t tmpfs -o size=3m,mode=755 tmpfs {full}") == 0
    try:
        driven = drive(Setting(), folder=folder)
        driven.until(lambda: len(driven.marks("done")) >= 1, name="a run done")
        ballast = full / "ballast"
        with ballast.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(b"x" * 4096)
            except OSError:
                pass
        answer = driven.answer()
        said = answer["error"] or str([r["message"] for r in answer["results"] if not r["ok"]])
        assert "No space left" in said or "disk" in said.lower(), answer
        assert driven.jobs() == []
        ballast.unlink()
        driven.start()
        answer = driven.answer()
        assert answer["error"] is None
        assert sorted((r["n"], r["ok"]) for r in answer["results"]) == [(n, True) for n in range(faults.RUNS)]
        check_clean(driven)
    finally:
        assert os.system(f"umount {full}") == 0


def test_blocks_come_with_the_work_and_go_without(cluster: Any, tmp_path: Path) -> None:
    from hpcagent.sites.opening import open_site

    profile = tmp_path / "site.toml"
    profile.write_text(
        faults.PROFILE.format(partition="debug", walltime="00:10:00", memory="max_idletime = 2", worker_init="")
    )
    with open_site(profile, run_dir=tmp_path / "run", private=True) as site:
        assert cluster.jobs() == {}
        one = site.submit(time.sleep, 0.5)
        one.result(60)
        assert len(cluster.jobs()) == 1  # one task, one block, and it was not cancelled while it waited
        many = [site.submit(time.sleep, 1.0) for _ in range(6)]
        assert [f.result(60) for f in many] == [None] * 6
        assert len(cluster.jobs()) == 2
        deadline = time.monotonic() + 30
        while cluster.jobs() and time.monotonic() < deadline:
            time.sleep(0.2)
        assert cluster.jobs() == {}
        assert site.submit(max, 1, 2).result(60) == 2  # and come again
    assert cluster.jobs() == {}
