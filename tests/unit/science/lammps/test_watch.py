"""Real runs of LAMMPS that are watched: stopped by a check file or a signal, and never where nothing is wrong."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcagent.apps import watching
from hpcagent.apps.guard import Sofar, Verdict
from hpcagent.apps.ranks.warm import end_helpers
from hpcagent.apps.run import Run as WorkerRun
from hpcagent.apps.watching import verdict_on
from hpcagent.apps.worker import execute
from hpcagent.errors import AppFailed
from hpcagent.model.records import Result
from hpcagent.science.lammps import watch as watch_module
from hpcagent.science.lammps.contract import lammps
from hpcagent.science.lammps.executable import installed
from hpcagent.science.lammps.failures import Ended
from hpcagent.science.lammps.log import parse_log, read_log
from hpcagent.science.lammps.log_records import Run
from hpcagent.science.lammps.watch import beyond_sense

pytestmark = pytest.mark.skipif(installed() is None, reason="the lammps package is not installed")

# 108 argon atoms, about 40 K; a row every 10 steps.
ARGON = """\
variable steps index 1000
variable dt index 0.004
units           metal
lattice         fcc 5.35
region          box block 0 3 0 3 0 3
create_box      1 box
create_atoms    1 box
mass            1 39.948
pair_style      lj/cut 6.5
pair_coeff      1 1 0.0103 3.405
pair_modify     shift yes
neighbor        0.5 bin
velocity        all create 80 4928459 mom yes rot yes dist gaussian
fix             nve all nve
thermo_style    custom step temp pe ke etotal press
thermo          10
run             100
timestep        ${dt}
"""
CONTRACT = """\
name = "argon"
version = "1.0.0"
script = "in.argon"
metrics = ["temperature"]
[variables.steps]
kind = "int"
low = 100
high = 100000000
default = 1000
unit = "steps"
[variables.dt]
low = 0.0001
high = 0.2
default = 0.004
unit = "ps"
[checks]
conserved_energy = true
[resources]
walltime_s = 120
"""
GUARD: Mapping[str, Any] = {
    "stops": ["blown_up", "limit"],
    "confidence": 0.95,
    "least_share": 0.0,
    "every_s": 0.1,
    "limits": [],
    "goal": None,
    "kinds": {"temperature": "mean"},
}
COLD: Mapping[str, Any] = {**GUARD, "limits": [{"metric": "temperature", "op": "<=", "value": 1.0}]}
LONG = 200_000


@pytest.fixture(autouse=True)
def many_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks may take more than 2 % of a run: on a fast machine these runs are over before there would be a fourth."""
    monkeypatch.setattr(watching, "_CHEAP", 2)


def ordered(
    folder: Path,
    production: str,
    guard: Mapping[str, Any] | None,
    *,
    ranks: int = 1,
    mode: str = "",
    table: str = "",
    **params: Any,
) -> dict[str, Any]:
    """An order for a run of this script; `table`: more of its contract."""
    folder.mkdir()
    (folder / "in.argon").write_text(ARGON + production)
    (folder / "in.argon.toml").write_text(CONTRACT + table)
    more: dict[str, Any] = {"mode": mode} if mode else {}
    resources = {"ranks_per_node": ranks, "walltime_s": 120.0}
    app = lammps(folder / "in.argon", contract=folder / "in.argon.toml", resources=resources, **more)
    order = app.order(app.manifest(params), work=folder / "work", site={})
    return order if guard is None else {**order, "guard": dict(guard)}


def done(folder: Path, production: str, guard: Mapping[str, Any] | None, **more: Any) -> tuple[Result, Path]:
    """The result of this script, and the run's directory."""
    order = ordered(folder, production, guard, **more)
    fields = execute(order)
    return Result.model_validate({"manifest": order["manifest"], **fields}), Path(fields["workdir"])


def rows(workdir: Path) -> Run:
    return read_log(workdir / "log.lammps").runs[1]


def stopped_early(result: Result) -> None:
    assert result.status == "STOPPED" and result.failure is None, result.failure
    assert result.stopped is not None and result.stopped.reason == "limit"
    assert result.bounds == {"temperature": "above"}
    assert 0 < result.stopped.share < 0.5 and result.stopped.saved_node_seconds > 0
    # What it gave so far, not what it was stopped for: about 40 K.
    assert result.metrics["temperature"] == pytest.approx(40, abs=8)
    assert "+-" in result.stopped.sentence


def test_a_run_that_cannot_keep_a_limit_ends_by_the_check_file(tmp_path: Path) -> None:
    after = "run ${steps}\nwrite_data end.data\nrun 100\n"
    result, workdir = done(tmp_path / "a", "run ${steps}\nwrite_data end.data\n", COLD, steps=LONG)
    stopped_early(result)
    log = read_log(workdir / "log.lammps")
    assert log.finished and log.runs[1].complete and log.runs[1].steps is not None
    assert log.runs[1].steps == rows(workdir)["Step"][-1] - 100
    assert (workdir / "end.data").is_file()  # what stands after the run was carried out
    assert not list(workdir.glob("stop.*"))
    assert any("check file" in note for note in result.notes)
    # To the last digit what the run is without a guard.
    plain, other = done(tmp_path / "b", after.removesuffix("run 100\n"), None, steps=1000)
    assert plain.status == "COMPLETED"
    here, there = rows(workdir), rows(other)
    common = min(len(here), len(there))
    assert common > 20 and here.columns == there.columns
    assert np.array_equal(here.data[:common], there.data[:common])
    assert (
        other / "in.lammps"
    ).read_text() == "include params.vars\n" + ARGON + "run ${steps}\nwrite_data end.data\n"


def test_what_counts_of_a_run_so_far_is_what_would_count_of_all_of_it(tmp_path: Path) -> None:
    seen: list[Mapping[str, float]] = []

    def decided(guard: Mapping[str, Any], history: list[Sofar]) -> Verdict | None:
        assert guard["discard"] == 0.5
        seen.append(history[-1].metrics)
        return verdict_on(guard, history)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watching, "verdict_on", decided)
        result, workdir = done(
            tmp_path / "a", "run ${steps}\n", {**COLD, "discard": 0.5}, table="[log]\ndiscard = 0.5\n", steps=LONG
        )
    stopped_early(result)
    leg = rows(workdir)

    def second_half(last: int) -> float:
        step, temperature = leg["Step"][: last + 1], leg["Temp"][: last + 1]
        return float(temperature[step >= (step[0] + step[-1]) / 2].mean())

    assert result.metrics["temperature"] == pytest.approx(second_half(len(leg) - 1), rel=1e-9)
    # At the looks: the mean of the second half of what there was then, of whichever row was the last.
    halves = np.array([second_half(last) for last in range(len(leg))])
    looks = [metrics["temperature"] for metrics in seen if "temperature" in metrics]
    assert looks and all(np.abs(halves - value).min() < 1e-9 for value in looks)


def test_a_run_inside_an_if_ends_by_a_signal(tmp_path: Path) -> None:
    several_looks = {**COLD, "least_share": 0.01}
    result, workdir = done(tmp_path / "a", 'if "1 == 1" then "run ${steps}"\n', several_looks, steps=LONG)
    stopped_early(result)
    assert not rows(workdir).complete
    assert any("signal" in note and "`if`" in note for note in result.notes)
    assert result.metrics["timesteps_per_s"] > 0  # by when its rows were written
    assert 0 < result.metrics["cpu_use_percent"] < 110  # by its process


@pytest.mark.skipif(
    subprocess.run(["nproc"], capture_output=True, check=False).stdout == b"1\n", reason="one core"
)
def test_ranks_end_together(tmp_path: Path) -> None:
    result, workdir = done(tmp_path / "a", "run ${steps}\n", COLD, ranks=2, steps=LONG)
    stopped_early(result)
    log = read_log(workdir / "log.lammps")
    assert log.finished and log.runs[1].procs == 2


def test_a_run_that_loses_its_energy_is_ended_before_lammps_notices(tmp_path: Path) -> None:
    # At 65 fs the energy runs away long before an atom is lost; in steps that are few enough for a loaded machine.
    result, workdir = done(tmp_path / "a", "run ${steps}\n", GUARD, steps=10_000_000, dt=0.066)
    assert result.failure is not None and result.failure.name == "BlownUp", result.failure
    assert result.failure.kind == "simulation"
    assert "total energy" in result.failure.message
    assert result.stopped is not None and result.stopped.reason == "blown_up"
    assert "ERROR" not in (workdir / "log.lammps").read_text()


def test_a_sound_run_is_not_stopped_and_says_nothing_of_it(tmp_path: Path) -> None:
    result, workdir = done(tmp_path / "a", "run ${steps}\n", {**GUARD, "every_s": 0.02}, steps=2000)
    plain, other = done(tmp_path / "b", "run ${steps}\n", None, steps=2000)
    assert result.status == plain.status == "COMPLETED" and result.stopped is None
    assert np.array_equal(rows(workdir).data, rows(other).data)
    assert not any("guard" in note for note in result.notes)


def test_without_a_guard_nothing_watches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> None:
        raise AssertionError("watched")

    monkeypatch.setattr(watch_module, "LammpsWatch", never)
    begun: list[str] = []
    monkeypatch.setattr(
        threading.Thread,
        "start",
        lambda self, start=threading.Thread.start: (begun.append(self.name), start(self)),
    )
    result, _ = done(tmp_path / "a", "run ${steps}\n", None, steps=100)
    assert result.status == "COMPLETED" and "watching" not in begun


def test_a_script_of_which_the_run_is_not_known_is_watched_for_what_has_blown_up(tmp_path: Path) -> None:
    loop = "variable i loop 2\nlabel again\nrun ${steps}\nnext i\njump SELF again\n"
    result, _ = done(tmp_path / "a", loop, COLD, steps=200)
    assert result.status == "COMPLETED"
    assert any("only what has blown up is stopped" in note and "loop" in note for note in result.notes)


# ---- what has blown up


def leg(*lines: str, units: str = "metal") -> Run:
    head = "Step Temp PotEng KinEng TotEng Press"
    return parse_log(f"units {units}\nrun 1000\n" + "\n".join([head, *lines]) + "\n").runs[0]


@pytest.mark.parametrize(
    ("run", "said"),
    [
        (leg("0 80 -57 9 -48 1", "10 nan -57 9 -48 1"), "Temp is nan at step 10"),
        (leg("0 80 -57 9 -48 1", "10 80 -57 9 -48 inf"), "Press is inf"),
        (leg("0 80 -57 9 -48 1", "10 3e7 -57 9e5 9e5 1"), "run away, from 80 to 3e+07 at step 10"),
        # Heated on purpose, or hot from the beginning.
        (leg("0 1 -57 9 -48 1", "10 5000 -57 9 -48 1"), ""),
        (leg("0 2e6 -57 9 -48 1", "10 3e6 -57 9 -48 1"), ""),
        (leg("0 1 -57 9 -48 1", "10 5e4 -57 9 -48 1", units="lj"), "run away"),
        # Constant to 0.2 %; then gone by a third of the kinetic energy.
        (leg(*(f"{n} 80 -57 {9 + n % 3} {-48 + 0.002 * n} 1" for n in range(9))), ""),
        (leg(*(f"{n} 80 -57 9 {-48 + 0.4 * n} 1" for n in range(9))), "has changed by 0.36 of the kinetic energy"),
        # Three rows are too few to say.
        (leg("0 80 -57 9 -48 1", "1 80 -57 9 -40 1", "2 80 -57 9 -30 1"), ""),
    ],
)
def test_what_is_beyond_sense(run: Run, said: str) -> None:
    found = beyond_sense(run, conserved=True, limit=0.5)
    assert (said in found) if said else found == "", found


def test_where_nothing_says_that_it_is_conserved_the_energy_may_go_anywhere() -> None:
    run = leg(*(f"{n} 80 -57 9 {-48 + 4 * n} 1" for n in range(9)))
    assert beyond_sense(run, conserved=False, limit=0.5) == ""


# ---- in a process that is kept


@pytest.mark.parametrize(
    ("production", "how"), [("run ${steps}\n", "check file"), ('if "1 == 1" then "run ${steps}"\n', "signal")]
)
def test_a_run_in_library_mode_is_stopped_likewise(tmp_path: Path, production: str, how: str) -> None:
    try:
        result, workdir = done(tmp_path / "a", production, COLD, mode="library", steps=LONG)
        stopped_early(result)
        assert rows(workdir).complete == (how == "check file")
        assert any(how in note for note in result.notes)
        # The next run of the worker is none the worse for it.
        sound, _ = done(tmp_path / "b", "run ${steps}\n", None, mode="library", steps=200)
        assert sound.status == "COMPLETED", sound.failure
    finally:
        end_helpers()


def cut_by_somebody(workdir: Path, done: threading.Event) -> None:
    """Make the file that ends the run, once it has rows of the run that is measured."""
    name = None
    while not done.wait(0.02):
        with contextlib.suppress(OSError):
            found = re.search(r"is_file\((\S+)\)", (workdir / "in.lammps").read_text())
            log = (workdir / "log.lammps").read_text()
            if found and log.rpartition("# hpcagent")[2].count("\n") > 20:
                name = found[1]
                (workdir / name).touch()
                return


@contextlib.contextmanager
def cutting(workdir: Path) -> Iterator[None]:
    done = threading.Event()
    thread = threading.Thread(target=cut_by_somebody, args=(workdir, done))
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def failed_as_cut_short(fields: Mapping[str, Any]) -> None:
    failure = fields["failure"]
    assert failure is not None and (failure["name"], failure["kind"]) == ("CutShort", "infrastructure"), fields
    assert f"of {LONG + 100}, although its guard has not stopped it" in failure["message"]
    assert "made by somebody else" in failure["message"] and not fields.get("metrics")
    assert not list(Path(fields["workdir"]).glob("stop.*"))


@pytest.mark.parametrize("mode", ["", "library"])
@pytest.mark.parametrize("style", ["", "thermo_modify line yaml\n"])
def test_a_run_that_somebody_else_ends_by_the_file_does_not_count_as_whole(
    tmp_path: Path, mode: str, style: str
) -> None:
    order = ordered(tmp_path / "a", f"{style}run ${{steps}}\n", GUARD, mode=mode, steps=LONG)
    try:
        with cutting(Path(order["workdir"])):
            failed_as_cut_short(execute(order))
    finally:
        end_helpers()


def test_inside_a_rank_process_it_does_not_count_as_whole_either(tmp_path: Path) -> None:
    order = ordered(tmp_path / "a", "run ${steps}\n", GUARD, mode="library", steps=LONG)
    words = [sys.executable, "-c", INSIDE.replace('["status"]', "")]
    with cutting(Path(order["workdir"])):
        ended = subprocess.run(
            words, input=json.dumps(order), capture_output=True, text=True, timeout=120, check=False
        )
    assert ended.returncode == 0, ended.stderr
    failed_as_cut_short(json.loads(ended.stdout.splitlines()[-1]))


def test_a_file_of_the_old_fixed_name_ends_no_run(tmp_path: Path) -> None:
    order = ordered(tmp_path / "a", "shell touch stop.now\nrun ${steps}\n", GUARD, steps=500)
    fields = execute(order)
    assert fields["status"] == "COMPLETED" and rows(Path(order["workdir"]))["Step"][-1] == 600


def test_a_script_may_end_its_own_run_early(tmp_path: Path) -> None:
    own = "variable now equal step\nfix own all halt 50 v_now >= 300 error soft message no\nrun ${steps}\n"
    result, workdir = done(tmp_path / "a", own, GUARD, steps=5000)
    assert result.status == "COMPLETED", result.failure
    assert rows(workdir).steps == 200
    # Without a means of its own to do so, it is not known what has ended it.
    watch = watch_module.LammpsWatch(
        WorkerRun(tmp_path / "b", settings={**ordered(tmp_path / "c", "run ${steps}\n", None)["settings"]}),
        GUARD,
        None,
        tmp_path / "b",
    )
    log = (workdir / "log.lammps").read_text().replace("fix own all halt", "fix own all nothing")
    ended = Ended(0, log, "", None, 1.0, None, None)
    with pytest.raises(AppFailed, match=r"step 300 of 5100.*it is not known why"):
        watch.check_whole(parse_log(log), ended)


INSIDE = """
import sys, json
from pathlib import Path
from hpcagent.apps.ranks.inside import Inside, set_inside
from hpcagent.apps.ranks.library import run_script
from hpcagent.apps.worker import execute
set_inside(Inside(None, 1, run_script, None, None))
print(json.dumps(execute(json.loads(sys.stdin.read()))["status"]))
"""


def test_a_run_inside_a_rank_process_is_ended_by_its_timer(tmp_path: Path) -> None:
    order = ordered(
        tmp_path / "a", 'if "1 == 1" then "run ${steps}"\nwrite_data end.data\n', COLD, mode="library", steps=LONG
    )
    words = [sys.executable, "-c", INSIDE]
    ended = subprocess.run(
        words, input=json.dumps(order), capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 0 and '"STOPPED"' in ended.stdout, ended.stderr
    workdir = Path(order["workdir"])
    assert rows(workdir).complete and (workdir / "end.data").is_file()
