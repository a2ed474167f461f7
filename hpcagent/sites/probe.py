"""What a worker tells of itself and of its node, for `hpcagent.sites.doctor`. Standard library and apps only."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from hpcagent.apps.ending import run_mpi
from hpcagent.apps.launch import LAUNCHERS
from hpcagent.apps.run import Run
from hpcagent.errors import AppFailed
from hpcagent.lifeline import node_name

__all__ = ["PACKAGES", "node", "ranks", "versions"]

PACKAGES = ("hpcagent", "parsl")

# What each rank prints: its host, its number as the launcher told it, and the cores that it may use.
_RANK = """
import os, socket
names = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "PALS_RANKID", "SLURM_PROCID")
rank = next((os.environ[n] for n in names if n in os.environ), "0")
cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
host = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
print("RANK", rank, host, ",".join(map(str, cores)), flush=True)
"""


def versions() -> dict[str, str]:
    """Return what runs here: Python and the packages that both ends must agree on.

    Example:
        >>> sorted(versions())
        ['hpcagent', 'parsl', 'python']
    """
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def node(folder: str, token: str, site: Mapping[str, Any], gpu_env: str) -> dict[str, Any]:
    """Tell of this node, as plain data; reads and writes one file in `folder`.

    Args:
        folder: Of the opener, which wrote `there.txt` into it with `token`.
        token: What must stand in it.
        site: `Site.about`.
        gpu_env: The variable that shows a worker its GPU.
    """
    host = node_name()
    scratch = tempfile.gettempdir()
    told: dict[str, Any] = {
        "host": host,
        "at": time.time(),
        "versions": versions(),
        "executable": sys.executable,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "gpu_variable": os.environ.get(gpu_env, ""),
        "gpus": _gpus(),
        "programs": _programs(site),
        "scratch": scratch,
        "free_gb": [shutil.disk_usage(place).free / 1e9 for place in (folder, scratch)],
    }
    try:
        told["read"] = (Path(folder) / "there.txt").read_text() == token
    except OSError as error:
        told["read"] = error.strerror
    try:
        (Path(folder) / "back.txt").write_text(token)
        told["written"] = True
    except OSError as error:
        told["written"] = error.strerror
    try:
        from hpcagent.science.lammps.executable import command

        told["lammps"] = " ".join(command(site))
    except AppFailed as error:
        told["no_lammps"] = str(error)
    return told


def _programs(site: Mapping[str, Any]) -> dict[str, str]:
    """Where the programs are that the profile names, by name; empty for one that is nowhere."""
    apps = site["apps"].values()
    launchers = {name for name in (site["launcher"], *(app.get("launcher") for app in apps)) if name}
    own = site["launchers"]
    words = [app["command"][0] for app in apps if app.get("command")]
    words += [own[name][0] if name in own else LAUNCHERS[name].words[0] for name in launchers]
    # One in braces is looked for in the program's own environment, run by run.
    return {word: shutil.which(word) or "" for word in sorted(set(words)) if "{" not in word}


def _gpus() -> int | None:
    """GPUs that the driver shows, or None where there is no command to ask."""
    for program, *arguments in (
        ("nvidia-smi", "-L"),
        ("rocm-smi", "--showid"),
        ("xpu-smi", "discovery", "--dump", "1"),
    ):
        if shutil.which(program) is None:
            continue
        try:
            done = subprocess.run(
                [program, *arguments],
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=30,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            continue
        return len({line.split(":")[0] for line in done.stdout.splitlines() if line.strip().startswith("GPU")})
    return None


def ranks(workdir: str, site: Mapping[str, Any], nodes: int, ranks_per_node: int) -> dict[str, Any]:
    """Start a small program with so many ranks where this run was placed.

    Returns:
        `ranks`: (number, host, cores) of each rank that printed, sorted; `error` and `output` if it failed.
    """
    folder = Path(workdir)
    folder.mkdir(parents=True, exist_ok=True)
    resources = {"nodes": nodes, "ranks_per_node": ranks_per_node, "threads_per_rank": 1, "walltime_s": 120}
    try:
        done = run_mpi(Run(folder, resources=resources, site=site), [sys.executable, "-c", _RANK])
    except AppFailed as error:
        return {"ranks": [], "error": str(error), "output": str(error.details.get("log_tail", ""))}
    found = []
    for line in done.stdout.splitlines():
        words = line.split()
        if len(words) == 4 and words[0] == "RANK":
            found.append((int(words[1]), words[2], words[3]))
    answer: dict[str, Any] = {"ranks": sorted(found), "output": done.stdout[-2000:]}
    if done.returncode != 0:
        answer["error"] = f"it ended with exit code {done.returncode}"
    return answer
