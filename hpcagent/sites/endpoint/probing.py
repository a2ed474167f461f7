"""What is there on an endpoint: versions, programs, cores, and what would have to be installed."""

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
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hpcagent.errors import AppFailed
from hpcagent.lifeline import die_with_parent, node_name

__all__ = ["LIMIT_S", "probed"]

LIMIT_S = 60.0
"""A probe may take so long, in seconds."""
_LAMMPS_S = 30.0
_PACKAGES = (
    "hpcagent",
    "parsl",
    "globus-compute-endpoint",
    "globus-compute-sdk",
    "numpy",
    "pydantic",
    "lammps",
    "mpich",
)
_NEEDED = ("numpy", "pydantic")


def probed(task: Mapping[str, Any]) -> dict[str, Any]:
    """Look at this machine and environment; runs in a child, for a program may hang.

    Args:
        task: `site`: what the profile says of the site; `root`.
    """
    site: Mapping[str, Any] = task.get("site") or {}
    lammps = _lammps(site)
    told: dict[str, Any] = {
        "versions": _versions() | ({"LAMMPS": lammps["version"]} if lammps.get("version") else {}),
        "executable": sys.executable,
        "prefix": sys.prefix,
        "path": os.environ.get("PATH", "").split(os.pathsep)[:50],
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "node": node_name(),
        "at": time.time(),
        "system": platform.platform(),
        "lammps": lammps,
        "programs": _programs(site),
        "mpi": {
            name: os.environ[name] for name in ("PARSL_MPI_PREFIX", "PARSL_MPI_NODELIST") if name in os.environ
        },
        "gpus": os.environ.get("CUDA_VISIBLE_DEVICES") or os.environ.get("ROCR_VISIBLE_DEVICES") or "",
        "worker": {k: v for k, v in os.environ.items() if k.startswith("PARSL_WORKER_")},
        "root": _folder(Path(task["root"])),
    }
    return told | {"missing": _missing(told["versions"], lammps, told["programs"])}


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _lammps(site: Mapping[str, Any]) -> dict[str, Any]:
    """The command of LAMMPS and its version, as the program says it; else why not."""
    from hpcagent.science.lammps.executable import command, variables

    try:
        words = command(site)
        env = {**os.environ, **variables(site)}
    except AppFailed as error:
        return {"missing": str(error)}
    with tempfile.TemporaryFile() as said:
        try:
            done = subprocess.run(
                [*words, "-help"],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                env=env,
                timeout=_LAMMPS_S,
                check=False,
                preexec_fn=die_with_parent,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return {"command": words, "missing": f"{words[0]} does not answer to -help: {str(error)[:500]}"}
        said.seek(0)
        text = said.read(100_000).decode(errors="replace")
    version = next((line for line in text.splitlines() if "LAMMPS" in line or "Massively Parallel" in line), "")
    if not version:
        tail = text.strip()[-500:]
        return {"command": words, "missing": f"{words[0]} -help ended with code {done.returncode}: {tail}"}
    return {"command": words, "version": version.strip()[:200]}


def _programs(site: Mapping[str, Any]) -> dict[str, str]:
    """Where the programs are that the profile names; empty for one that is nowhere."""
    commands = [app.get("command") for app in (site.get("apps") or {}).values() if isinstance(app, Mapping)]
    words = {str(command[0]) for command in commands if isinstance(command, list) and command}
    return {word: shutil.which(word) or "" for word in sorted(words)}


def _folder(root: Path) -> dict[str, Any]:
    free = shutil.disk_usage(root).free / 1e9
    try:
        with tempfile.NamedTemporaryFile(dir=root, prefix=".probe-"):
            return {"path": str(root), "writable": True, "free_gb": free}
    except OSError as error:
        return {"path": str(root), "writable": False, "why": error.strerror or str(error), "free_gb": free}


def _missing(versions: Mapping[str, str], lammps: Mapping[str, Any], programs: Mapping[str, str]) -> list[str]:
    """What is not there, and what to do about it: a sentence each."""
    where = f"in the environment of {sys.executable}"
    found = [f"{name} is not installed {where}: pip install {name}" for name in _NEEDED if find_spec(name) is None]
    if "globus-compute-endpoint" not in versions:
        found.append(
            f"globus-compute-endpoint is not installed {where}: the workers need the endpoint's own version"
        )
    if "missing" in lammps:
        found.append(str(lammps["missing"]))
    lost = [word for word, path in programs.items() if not path]
    found += [f"{word!r} is not on the PATH of the workers: load its module in worker_init" for word in lost]
    return found
