"""Files of VASP: its SCF steps, how it says that it failed, and where its POTCARs are."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import threading
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hpcagent.apps.deciding import told_by
from hpcagent.apps.printed import number_or_nan, read_bytes, read_text
from hpcagent.errors import AppFailed
from hpcagent.science.engines.base import Iteration, NotConverged
from hpcagent.science.engines.external import Ended

__all__ = ["check", "contents", "iterations", "potential_folder", "potentials", "potpaw_folder"]

_ROW = re.compile(r"^\s*(?:DAV|RMM|CG|CGA|EDI|SDA|DMP)\s*:\s*\d+\s+(\S+)\s+(\S+)", re.MULTILINE)


def iterations(oszicar: str) -> tuple[Iteration, ...]:
    """SCF steps of an OSZICAR.

    Example:
        >>> iterations("DAV:   2    -0.108E+02   -0.24149E+02   -0.229E+02   128   0.110E+02\\n")
        (Iteration(energy=-10.8, change=24.149),)
    """
    return tuple(
        Iteration(number_or_nan(energy), abs(number_or_nan(change))) for energy, change in _ROW.findall(oszicar)
    )


# (pattern in what VASP printed, name, kind, repair); the first that matches wins.
_KNOWN = (
    (
        r"insufficient (virtual )?memory|[Cc]annot allocate",
        "OutOfMemory",
        "infrastructure",
        "more memory or nodes",
    ),
    (
        r"EDDDAV|ZHEGV|ZPOTRF|BRMIX|EDWAV",
        "DiagonalizationFailed",
        "simulation",
        "settings keywords = {'algo': 'All'}, or a sounder structure",
    ),
    (
        r"I REFUSE TO CONTINUE|Error reading item|ERROR: there must be 1 or 3 items|not enough memory for POTCAR",
        "BadSettings",
        "contract",
        "correct `keywords`",
    ),
    (r"[Ll]icen[sc]e", "NoExecutable", "infrastructure", "ask the site for VASP"),
    (
        r"cannot open shared object|not enough slots",
        "NoExecutable",
        "infrastructure",
        "load the modules of VASP in worker_init of the site profile",
    ),
)


def check(ended: Ended, directory: Path, max_scf: int) -> None:
    """Raise what went wrong in a calculation.

    Raises:
        AppFailed: `NotConverged`, `Walltime`, `BlockEnded` or another of the engine.
    """
    tail = ended.text[-4000:]
    if ended.stopped is not None:
        raise ended.stopped.failure(wall_s=ended.wall_s, log_tail=tail)
    outcar = contents(directory / "OUTCAR")
    if ended.returncode != 0 or "General timing and accounting" not in outcar:
        raise _failure(ended, tail)
    if "aborting loop because EDIFF is reached" in outcar:
        return
    history = iterations(contents(directory / "OSZICAR"))
    last = f": last change {history[-1].change:.2g} eV" if history else ""
    raise NotConverged(
        f"the SCF of VASP did not reach EDIFF in {len(history)} of at most {max_scf} steps{last}.",
        history=history,
        log_tail=tail,
        repair="more max_scf, ALGO = All, less mixing, or more smearing",
    )


def _failure(ended: Ended, tail: str) -> AppFailed:
    for pattern, name, kind, repair in _KNOWN:
        found = re.search(rf"^.*(?:{pattern}).*$", ended.text, re.MULTILINE)
        if found:
            return AppFailed(
                f"VASP stopped: {found[0].strip(' |')}.", kind=kind, name=name, log_tail=tail, repair=repair
            )
    how = f"signal {-ended.returncode}" if ended.returncode < 0 else f"exit code {ended.returncode}"
    cut = ", but its OUTCAR has no end" if ended.returncode == 0 else ""
    return AppFailed(
        f"VASP ended with {how}{cut}.", kind="simulation" if tail else "infrastructure", name="ExecutableFailed",
        log_tail=tail,
    )  # fmt: skip


def contents(path: Path) -> str:
    return read_text(path) if path.is_file() else ""


def potpaw_folder(options: Mapping[str, Any], site: Mapping[str, Any]) -> str:
    """The folder that holds those of the POTCARs."""
    return str(options.get("pseudo_dir") or told_by("VASP_PP_PATH", "vasp", site))


def potentials(directory: Path) -> dict[str, Any]:
    """What the POTCAR is made of, and its SHA-256.

    Raises:
        AppFailed: `MixedFunctionals`.
    """
    data = read_bytes(directory / "POTCAR")
    text = data.decode(errors="replace")
    titles = [" ".join(title.split()) for title in re.findall(r"^\s*TITEL\s*=\s*(.*)$", text, re.MULTILINE)]
    functionals = re.findall(r"^\s*LEXCH\s*=\s*(\w+)", text, re.MULTILINE)
    if len(set(functionals)) > 1:
        pairs = ", ".join(f"{title} ({made})" for title, made in zip(titles, functionals, strict=False))
        raise AppFailed(
            f"the POTCARs were made with different functionals: {pairs}.", kind="contract", name="MixedFunctionals"
        )
    return {"potcar": titles, "functional": functionals[:1], "sha256": hashlib.sha256(data).hexdigest()}


_ENVIRONMENT = threading.Lock()


@contextlib.contextmanager
def potential_folder(folder: str) -> Iterator[None]:
    """ASE finds POTCARs by this variable only; runs may be threads of one process."""
    with _ENVIRONMENT:
        before = os.environ.get("VASP_PP_PATH")
        os.environ["VASP_PP_PATH"] = folder
        try:
            with warnings.catch_warnings():
                # From 3.29 on ASE says that this should be in a file of its own settings.
                warnings.filterwarnings("ignore", "Loaded VASP_PP")
                yield
        finally:
            if before is None:
                os.environ.pop("VASP_PP_PATH", None)
            else:
                os.environ["VASP_PP_PATH"] = before
