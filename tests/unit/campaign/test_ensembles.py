"""Runs that share a launch are recorded, retried, resumed and paid for as any others."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from hpcagent.apps.ensemble import execute_ensemble
from hpcagent.apps.lammps.contract import lammps
from hpcagent.apps.lammps.executable import installed
from hpcagent.campaign.coordinator import run
from hpcagent.campaign.ensemble_table import Ensemble
from hpcagent.campaign.record import load_campaign
from hpcagent.errors import BadInput
from hpcagent.model.contract import Resources
from hpcagent.store.gathered import read_gathered

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
bad = { kind = "int", low = 0, high = 1, unit = "1" }
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
    points = [point(20 * k) for k in range(1, 23)] + [point(13, bad=1), point(50, dt=5.0)]
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


def test_a_run_of_several_ranks_that_dies_costs_itself(tmp_path: Path) -> None:
    points = [point(40), point(60), point(13, bad=1), point(80), point(30)]
    path = written(tmp_path, points, ranks=2)
    result = run(load_campaign(path), run_dir=tmp_path / "run", progress=False)
    failed = {r.manifest.params["n"]: r.failure.name for r in result.results if r.failure is not None}
    assert failed == {13: "Crashed"} and len(result.results) == 5


def test_of_two_runs_of_several_ranks_one_dies_and_the_other_is_run_to_its_end(tmp_path: Path) -> None:
    """On the worker itself: more ranks than this machine may have cores, which no site would let pass."""
    written(tmp_path, [point(1)], ranks=2)
    app = lammps(tmp_path / "short.toml").with_settings(mode="ensemble")
    work = tmp_path / "work"
    orders = [
        app.order(app.manifest(point(n, bad=bad)), work=work, site={}) for n, bad in ((2000, 0), (13, 1), (30, 0))
    ]
    request = {
        "orders": orders,
        "folder": str(tmp_path / "ensemble"),
        "resources": {"nodes": 1, "ranks_per_node": 4, "threads_per_rank": 1},
        "slots": 2,
        "ranks": 2,
        "site": {},
    }
    answers = dict(execute_ensemble(request))
    names = [(answers[o["manifest"]["execution_id"]].get("failure") or {}).get("name") for o in orders]
    assert names == [None, "Crashed", None]


def test_killed_and_resumed_no_finished_run_is_run_again(tmp_path: Path) -> None:
    points = [point(20 * k) for k in range(1, 12)] + [point(15_000)]
    words = [sys.executable, "-m", "hpcagent.cli", "run", str(written(tmp_path, points)), "--run-dir"]
    folder = tmp_path / "run"
    process = subprocess.Popen([*words, str(folder)], cwd=tmp_path, stderr=subprocess.DEVNULL)
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
    (run.workdir / "x").write_text(str(x))
    return {"y": x**2, "pid": os.getpid()}


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
    assert {x: m["y"] for x, m in metrics.items()} == {x: x**2 for x in range(8) if x != 5}, done.stderr
    assert [(x, failure) for x, _, failure, _ in found if failure] == [(5, ["contract", "ValueError"])]
    launches = list((tmp_path / "run" / "ensembles").glob("*/answers.jsonl"))
    # Ranks that take run after run.
    assert launches and len({m["pid"] for m in metrics.values()}) < len(metrics)


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
    assert not (tmp_path / "run" / "ensembles").exists()
