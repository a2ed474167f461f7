"""What breaks in the middle of a campaign: no result is lost, none comes twice, nothing stays behind there or here."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import hpcagent as ha

HPCAGENT = str(Path(sys.executable).with_name("hpcagent"))
STARTS = "starts.txt"
"""In the endpoint's home: a line for each run, at each of its starts."""

# A function of the user's own, which travels as source.
APP = """
import pathlib, time
import hpcagent as ha

@ha.app(parameters={"x": ha.Float(0.0, 1.0)}, metrics={"y": "1"}, seeded=False, estimated_runtime_s=1.0,
        resources=ha.Resources(walltime_s=100))
def held(x, run: ha.Run):
    with (pathlib.Path.home() / "starts.txt").open("a") as starts:
        starts.write(run.workdir.name + "\\n")
    until = time.monotonic() + SECONDS
    while time.monotonic() < until and not (pathlib.Path.home() / "enough.txt").exists():
        time.sleep(0.01)
    return {"y": x * x}
"""
CAMPAIGN = """
app = "held_there:held"
batch_size = {batch}
space = {{ x = {{}} }}
objective = {{ maximize = "y" }}
policy = {{ name = "random" }}
until = {{ max_runs = {runs} }}
"""


class Campaign:
    """A campaign of an app of the user's own, steered by `hpcagent run` in a process of its own."""

    def __init__(self, rig: Any, where: Path, profile: Path, *, runs: int, seconds: float, batch: int = 0) -> None:
        self.rig, self.where, self.runs = rig, where, runs
        self.folder = where / "run"
        self.starts = rig.endpoint.home / STARTS
        self.enough = rig.endpoint.home / "enough.txt"
        for file in (self.starts, self.enough):
            file.unlink(missing_ok=True)
        (where / "held_there.py").write_text(APP.replace("SECONDS", str(seconds)))
        (where / "mine.toml").write_text(CAMPAIGN.format(runs=runs, batch=batch or runs))
        self.begin("run", "mine.toml", "--site", str(profile), "--run-dir", "run", "--no-plots")

    def begin(self, *words: str) -> None:
        """Start a process of hpcagent that steers it."""
        self.out = (self.where / "out.txt").open("a")
        self.process = subprocess.Popen(
            [HPCAGENT, *words],
            cwd=self.where,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=self.out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def resume(self) -> None:
        self.begin("resume", "run")

    def let_end(self) -> None:
        """Runs end now, however many seconds they have left."""
        self.enough.touch()

    def said(self) -> str:
        return (self.where / "out.txt").read_text()

    def begun(self) -> Counter[str]:
        """How often each run has started there."""
        return Counter(self.starts.read_text().split() if self.starts.exists() else [])

    def events(self) -> list[dict[str, Any]]:
        file = self.folder / "events.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def results(self) -> list[dict[str, Any]]:
        return [result for event in self.events() if event["event"] == "results" for result in event["results"]]

    def sent(self) -> Counter[str]:
        """How often each run was sent, by the ledger."""
        lines = map(json.loads, (self.folder / "jobs.jsonl").read_text().splitlines())
        return Counter(
            run for e in lines if e["event"] == "tasks" for task in e["tasks"] for run, _ in task["runs"]
        )

    def until(self, what: str, true: Callable[[], Any], *, within_s: float = 300.0) -> None:
        def looked() -> Any:
            found = true()
            assert found or self.process.poll() is None, f"{what}: it ended first\n{self.said()}"
            return found

        try:
            self.rig.wait(what, looked, within_s=within_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.said()}") from None

    def until_begun(self, count: int) -> None:
        self.until(f"{count} runs began", lambda: len(self.begun()) >= count)

    def ended(self, *, within_s: float = 90.0) -> int:
        try:
            code = self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"not within {within_s:g} s:\n{self.said()}\n{self.rig.endpoint.log()}") from None
        self.out.close()
        return code

    def end(self, sign: signal.Signals = signal.SIGKILL) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, sign)
        if sign == signal.SIGKILL:
            self.process.wait()
            self.out.close()

    def complete(self, *, twice: int = 0) -> None:
        """It ended well: each run has one result, which is right; so many have started more than once."""
        assert self.ended() == 0, self.said()
        found = self.results()
        assert len({r["execution_id"] for r in found}) == len(found) == self.runs, self.said()
        assert {r["status"] for r in found} == {"COMPLETED"}, self.said()
        begun = self.begun()
        assert set(begun) == {r["execution_id"] for r in found}
        assert sum(begun.values()) <= self.runs + twice and max(begun.values()) <= (2 if twice else 1), begun


@pytest.fixture
def campaign(rig: Any, tmp_path: Path) -> Iterator[Callable[..., Campaign]]:
    made: list[Campaign] = []

    def begin(profile: Path, *, runs: int = 6, seconds: float = 1.0, **options: Any) -> Campaign:
        made.append(Campaign(rig, tmp_path, profile, runs=runs, seconds=seconds, **options))
        return made[-1]

    yield begin
    for one in made:
        one.end()


def test_two_hundred_runs_travel_together(rig: Any, tmp_path: Path) -> None:
    """Few requests, whatever the number of runs, and each run has its record; what fails there is told here; a chain."""
    (tmp_path / "mine.py").write_text(
        textwrap.dedent(
            """
            import sys, time
            import hpcagent as ha

            @ha.app(parameters={"x": ha.Float(0, 9)}, metrics={"y": "1"}, seeded=False)
            def root(x):
                if x > 4:
                    raise ValueError("no such crystal")
                return {"y": x**0.5}

            @ha.chain(parameters={"x": ha.Float(0, 9)}, metrics={"y": "1"}, seeded=False)
            def fourth(x):
                return root(x=root(x=x).result()["y"])

            def run(n):
                return ha.apps.synthetic(x=0.1 + n / 400, y=0.4, style="plain", noise=0.0, fail_above=0.9, run_time_s=0.01)

            with ha.open_site(sys.argv[1]):
                run(-1).result()
                began = time.monotonic()
                found = [f.result() for f in [run(n) for n in range(200)]]
                print(len({r.manifest.execution_id for r in found}), sorted({r.status for r in found}))
                print(time.monotonic() - began)
                failed = root(x=5.0).result().failure
                print(failed.kind, failed.name, failed.message.count("no such crystal"), "in root" in failed.log_tail)
                done = fourth(x=4.0).result()
                print(done["y"], [part.status for part in done.parts])
            """
        )
    )
    done = rig.run([sys.executable, "mine.py", str(rig.profile())], cwd=tmp_path)
    runs, seconds, failed, chained = done.stdout.splitlines()
    assert runs == "200 ['COMPLETED']"
    assert failed == "contract ValueError 1 True"
    assert chained.split()[0] == str(2**0.5) and chained.count("COMPLETED") == 2
    # 2 s of runs on two workers; half a second of a round trip each would be 100 s.
    assert float(seconds) < 30, seconds
    assert rig.service.count("POST", "/submit$") <= 30, rig.service.counts
    assert rig.service.counts.submitted <= 100
    assert rig.service.count("POST", "/functions$") <= 1
    assert rig.service.count() <= 80


def test_endpoint_killed_in_mid_campaign(rig: Any, campaign: Any) -> None:
    """What it held is lost, and nobody says so: it is found, and sent again; what it had answered is not."""
    one = campaign(rig.profile(), runs=6)
    one.until_begun(3)
    rig.endpoint.kill()
    rig.service.lose()
    one.until("it is said", lambda: "offline" in one.said(), within_s=20)
    rig.endpoint.start(wake=False)  # as the real one: the next task makes its process
    one.complete(twice=3)
    assert "were lost, and are sent again" in one.said()
    assert max(one.sent().values()) == 2


def test_broker_restarted_in_mid_campaign(rig: Any, campaign: Any) -> None:
    one = campaign(rig.profile(), runs=6)
    one.until_begun(2)
    rig.broker.stop()
    time.sleep(1)
    rig.broker.start()
    one.complete()


def test_client_killed_and_reattached(rig: Any, campaign: Any) -> None:
    """Results that came meanwhile are taken in, the others waited for; nothing is sent or started twice."""
    one = campaign(rig.profile(), runs=6)
    one.until_begun(2)
    # A run may begin before the service's answer to the request is on record.
    one.until("the ids are on record", lambda: '"tasks_sent"' in (one.folder / "jobs.jsonl").read_text())
    one.end()
    rig.wait("the endpoint goes on without it", lambda: len(one.begun()) >= 4)
    one.resume()
    one.complete()
    assert set(one.sent().values()) == {1}, "a run was sent twice"
    assert "are taken up" in one.said()


@pytest.mark.parametrize("control", [True, False])
def test_ctrl_c_ends_what_runs_there(rig: Any, campaign: Any, control: bool) -> None:
    """With `[control]` at once; without it by the first worker that is free, before the runs that wait there."""
    more = {"control": {"user_endpoint_config": {"engine": "threads"}}} if control else {}
    one = campaign(rig.profile(**more), runs=8, seconds=60.0 if control else 6.0)
    one.until_begun(2)
    one.end(signal.SIGINT)
    assert one.ended(within_s=40) == 130, one.said()
    assert "not seen" not in one.said() and not rig.runs()
    rig.wait("the others never start", lambda: not rig.service.unfinished(), within_s=30)
    assert sum(one.begun().values()) <= (2 if control else 3)


def test_what_is_left_to_its_end_is_taken_up(rig: Any, campaign: Any) -> None:
    one = campaign(rig.profile(at_close="leave"), runs=4, seconds=90.0)
    one.until_begun(2)
    one.end(signal.SIGINT)
    assert one.ended(within_s=30) == 130, one.said()
    assert rig.runs(), "it was not left"
    one.let_end()
    one.resume()
    one.complete()
    assert set(one.sent().values()) == {1}


def test_reap_ends_what_a_killed_client_left(rig: Any, campaign: Any) -> None:
    one = campaign(rig.profile(control={"user_endpoint_config": {"engine": "threads"}}), runs=3, seconds=60.0)
    one.until_begun(2)
    one.end()
    reaped = rig.run([HPCAGENT, "reap", "run"], cwd=one.where)
    assert not rig.runs(), reaped.stdout
    again = rig.run([HPCAGENT, "reap", "run"], cwd=one.where)
    assert again.stdout != reaped.stdout


def test_an_endpoint_that_is_offline_is_said_and_waited_for(rig: Any, campaign: Any) -> None:
    rig.endpoint.offline = True
    one = campaign(rig.profile(), runs=2, seconds=0.1)
    one.until("it is said", lambda: "offline" in one.said(), within_s=20)
    rig.endpoint.offline = False
    rig.endpoint.start()
    one.complete()
    rig.endpoint.offline = True
    began = time.monotonic()
    ended = rig.run(
        [HPCAGENT, "run", "synthetic", "--site", str(rig.profile(offline_wait_s=0)), "--run-dir", "off"],
        cwd=one.where,
        check=False,
    )
    assert ended.returncode not in (0, -9) and "offline_wait_s" in ended.stdout + ended.stderr
    assert time.monotonic() - began < 240


def test_one_of_two_sites_is_closed(rig: Any, tmp_path: Path) -> None:
    """Two in one process, each with its own tasks: the other loses nothing. What is too large costs one run."""
    fixed = {"style": "plain", "noise": 0.02, "fail_above": 0.9, "run_time_s": 0.5}

    def campaign(runs: int, batch: int) -> ha.Campaign:
        keys = {"space": {"x": {"low": 0.1, "high": 0.8}, "y": {}}, "fixed": fixed, "policy": {"name": "random"}}
        until = {"max_runs": runs}
        return ha.load_campaign("synthetic", changes={"batch_size": batch, "until": until, **keys})

    def steer(site: ha.types.Site, name: str, runs: int, batch: int) -> ha.types.CampaignResult:
        return ha.run(campaign(runs, batch), site=site, run_dir=tmp_path / name, progress=False)

    sites = [ha.open_site(rig.profile(), run_dir=tmp_path / name, private=True) for name in ("a", "b")]
    try:
        with ThreadPoolExecutor(2) as threads:
            short = threads.submit(steer, sites[0], "short", 2, 2)
            rig.wait("it is sent", rig.service.unfinished)
            long = threads.submit(steer, sites[1], "long", 12, 12)
            assert [r.status for r in short.result(90).results] == ["COMPLETED"] * 2
            assert not long.done()
            sites[0].close()
            assert [r.status for r in long.result(60).results] == ["COMPLETED"] * 12
        with rig.service.fail(413, times=1):
            [refused] = steer(sites[1], "large", 1, 1).results
        assert refused.failure is not None and refused.failure.name == "RequestTooLarge"
        assert [r.status for r in steer(sites[1], "after", 2, 2).results] == ["COMPLETED"] * 2
    finally:
        for site in sites:
            site.close()
