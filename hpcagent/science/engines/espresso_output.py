"""What pw.x wrote: its SCF steps, the Fermi energy, bands, and how it says that it failed."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

from hpcagent.apps.printed import number_or_nan, read_text
from hpcagent.errors import AppFailed
from hpcagent.science.engines.base import Iteration, NotConverged
from hpcagent.science.engines.external import Ended
from hpcagent.science.engines.upf import RY

__all__ = ["check", "eigenvalues", "fermi_energy", "iterations"]

_ENERGY = re.compile(r"^!?\s+total energy\s+=\s+(\S+) Ry", re.MULTILINE)
_ACCURACY = re.compile(r"^\s+estimated scf accuracy\s+<\s+(\S+) Ry", re.MULTILINE)


def iterations(output: str) -> tuple[Iteration, ...]:
    """SCF steps in an output of pw.x.

    Example:
        >>> (step,) = iterations(
        ...     "     total energy              =     -15.79448930 Ry\\n"
        ...     "     estimated scf accuracy    <       0.01000000 Ry\\n"
        ... )
        >>> round(step.energy, 3), round(step.change, 3)
        (-214.895, 0.136)
    """
    energies = [number_or_nan(word) * RY for word in _ENERGY.findall(output)]
    changes = [number_or_nan(word) * RY for word in _ACCURACY.findall(output)]
    changes += [math.nan] * (len(energies) - len(changes))
    return tuple(Iteration(energy, change) for energy, change in zip(energies, changes, strict=False))


def fermi_energy(output: str) -> float | None:
    """Fermi energy, or the highest occupied level, in eV."""
    found = re.findall(
        r"the Fermi energy is\s+(\S+) ev|highest occupied(?:, lowest unoccupied)? level \(ev\):\s+(\S+)", output
    )
    return number_or_nan(found[-1][0] or found[-1][1]) if found else None


# (pattern in pw.x's words, name, kind, repair); the first that matches wins.
_KNOWN = (
    (
        r"the system is metallic, specify occupations|fixed occupations and lsda",
        "NeedsSmearing",
        "contract",
        "set smearing, e.g. 0.2 eV for a metal",
    ),
    (
        r"S matrix not positive definite|eigenvectors failed to converge|too many bands are not converged"
        r"|problems computing cholesky|cdiaghg|rdiaghg",
        "DiagonalizationFailed",
        "simulation",
        "settings keywords = {'diagonalization': 'cg'}, or another mixing",
    ),
    (r"charge is wrong: smearing is needed", "NeedsSmearing", "contract", "set smearing"),
    (
        r"[Cc]annot allocate|out of memory|insufficient virtual memory",
        "OutOfMemory",
        "infrastructure",
        "more nodes",
    ),
    (
        r"not enough slots|cannot open shared object|wrong number of|some nodes have no k-points",
        "WrongRanks",
        "infrastructure",
        "fewer ranks, or the launcher of this pw.x's own MPI ([apps.espresso] launcher)",
    ),
    (
        r"reading namelist|unknown variable|bad line in namelist|functional|dft has",
        "BadSettings",
        "contract",
        "correct `keywords` (or xc)",
    ),
)


def check(ended: Ended, directory: Path) -> None:
    """Raise what went wrong in a calculation.

    Raises:
        AppFailed: One of the engine's `FAILURE_MODES`.
    """
    text = ended.text
    tail = text[-4000:]
    if ended.stopped is not None or "Maximum CPU time exceeded" in text:
        limit = ended.stopped
        if limit is not None:
            raise limit.failure(wall_s=ended.wall_s, log_tail=tail)
        raise AppFailed(
            f"pw.x stopped by itself after {ended.wall_s:.3g} s, shortly before the run's limit; what it wrote is "
            "kept.",
            kind="infrastructure",
            name="Walltime",
            log_tail=tail,
            repair="raise walltime_s, or make the calculation smaller",
        )
    history = iterations(text)
    if "convergence NOT achieved" in text:
        raise NotConverged(
            f"the SCF of pw.x did not converge in {len(history)} steps: estimated error "
            f"{history[-1].change:.2g} eV."
            if history
            else "the SCF of pw.x did not converge.",
            history=history,
            log_tail=tail,
            repair="more max_scf, less mixing, or more smearing",
        )
    _check_ranks(ended)
    said = _crash(text, directory)
    if said or ended.returncode != 0:
        raise _failure(said, ended, history, tail)
    if "JOB DONE." not in text:
        raise AppFailed(
            "pw.x ended with exit code 0, but its output has no end (no `JOB DONE.`): it was cut off.",
            name="ExecutableFailed",
            kind="infrastructure",
            log_tail=tail,
        )


def _check_ranks(ended: Ended) -> None:
    """Refuse copies of one rank each where the launcher's MPI is not that of pw.x."""
    got = re.search(r"running on\s+(\d+)\s+proc", ended.text)
    if got is None and "Serial version" not in ended.text:
        return
    running = int(got[1]) if got else 1
    if running < ended.ranks:
        raise AppFailed(
            f"pw.x ran on {running} MPI rank(s), {ended.ranks} were asked for: the launcher and the MPI library "
            "of this pw.x do not know each other.",
            kind="infrastructure",
            name="WrongRanks",
            log_tail=ended.text[-2000:],
            repair="in the site profile, the launcher of its own MPI ([apps.espresso] launcher)",
        )


def _crash(text: str, directory: Path) -> str:
    """What pw.x says in its box of % signs, in the output or the file CRASH."""
    crash = directory / "CRASH"
    for source in (text, read_text(crash) if crash.is_file() else ""):
        found = re.search(r"Error in routine\s+(.*?)(?:\n\s*%{10,}|\Z)", source, re.DOTALL)
        if found:
            return " ".join(found[1].split())
    return ""


def _killed(ended: Ended, tail: str) -> AppFailed:
    return AppFailed(
        f"pw.x was killed by signal {-ended.returncode} after {ended.wall_s:.3g} s; it says nothing of it itself.",
        kind="infrastructure",
        name="Killed",
        log_tail=tail,
        repair="if nobody did it: memory; fewer runs beside each other, or more memory",
    )


def _failure(said: str, ended: Ended, history: tuple[Iteration, ...], tail: str) -> AppFailed:
    for pattern, name, kind, repair in _KNOWN:
        if re.search(pattern, said or ended.text):
            return AppFailed(
                f"pw.x stopped: {said or _last(ended.text)}.", kind=kind, name=name, log_tail=tail, repair=repair
            )
    if not said and ended.returncode in (-9, -15):
        return _killed(ended, tail)
    how = f"signal {-ended.returncode}" if ended.returncode < 0 else f"exit code {ended.returncode}"
    return AppFailed(
        f"pw.x stopped: {said}." if said else f"pw.x ended with {how}: {_last(ended.text)}.",
        kind="simulation" if said or history else "infrastructure",
        name="ExecutableFailed",
        log_tail=tail,
    )


def _last(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "it printed nothing"


def eigenvalues(path: Path) -> tuple[Any, float]:
    """Band energies (spin, k-point, band) and the Fermi energy, in eV, from the XML file of pw.x."""
    import numpy as np
    from ase.units import Hartree

    structure = ElementTree.parse(path).getroot().find("output/band_structure")
    if structure is None:
        raise AppFailed(f"{path.name} of pw.x has no band structure.", name="ExecutableFailed")
    rows = [
        [float(word) for word in (node.text or "").split()]
        for node in structure.iterfind("ks_energies/eigenvalues")
    ]
    energies = np.array(rows)[None] * Hartree
    if (structure.findtext("lsda") or "").strip() == "true":
        # Those of spin up, then those of spin down.
        energies = np.concatenate(np.split(energies, 2, axis=2))
    fermi = structure.findtext("fermi_energy") or structure.findtext("highestOccupiedLevel")
    return energies, math.nan if fermi is None else float(fermi) * Hartree
