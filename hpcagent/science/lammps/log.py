"""Reads LAMMPS log files: the thermo tables, what LAMMPS says about each run, errors and warnings.

Tables are found by fast searches and handed in megabytes to numpy's C reader; a megabyte with anything else
between its rows (warnings, `print`, `fix print`) goes through a regular expression that picks the rows.

How a row is told from a printed line with the same number of numbers, in the one-line style:

- LAMMPS prints a row by one format for each column, so the first column ends, and each other column begins or
  ends, at one distance from the column before it, or directly after one that is wider than its format. Blanks at
  the end say nothing: there are some only where the last value is shorter than its format.
- Step grows within a run, stays within first step + number of steps, and between the first and the last row
  lies on the grid of the echoed `thermo N`.

A printed line that imitates all of these cannot be told from a row by anybody. A line that looks like a row and
is refused is counted in `Run.unread`; rows that `thermo N` promises and that are not there, in `Run.missing`.
"""

from __future__ import annotations

import bisect
import io
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Literal, overload

import numpy as np
from numpy.typing import NDArray

from hpcagent.apps.printed import read_bytes
from hpcagent.units import STYLES, unit_style

__all__ = ["Log", "Run", "TimingRow", "canonical", "column_units", "parse_log", "read_log"]

_Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TimingRow:
    """One row of `MPI task timing breakdown`; None where LAMMPS leaves the cell empty.

    Attributes:
        min_s, avg_s, max_s: Seconds over the MPI tasks.
        varavg: LAMMPS's `%varavg`.
        percent: Share of the loop time, in %.
    """

    min_s: float | None
    avg_s: float | None
    max_s: float | None
    varavg: float | None
    percent: float | None


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """One `run`, `minimize` or `rerun` of a log. None means that the log does not say.

    Attributes:
        columns: Column headers as printed.
        data: (n_rows, n_columns) float64, in the units of the style; NaN and infinity are kept.
        complete: Whether its `Loop time` line was seen.
        kind: The command: `run`, `minimize`, `rerun`, ...
        units: `units` style in force.
        timestep: Timestep in force when the run started, in the style's unit of time; None also if
            `fix dt/reset` was changing it.
        timestep_varies: Whether `fix dt/reset` was changing it.
        normalized: Whether energies are printed per atom (`thermo_modify norm`).
        loop_time_s: Wall time of the loop.
        steps: Steps (iterations of a minimisation) made.
        n_atoms: Number of atoms at the end.
        n_atoms_start: Number of atoms that the commands before it left; the first row's where they do not say.
        atoms_changed_by: Styles of the fixes in force that add or remove atoms, e.g. `deposit`.
        lost: What happens where atoms are lost (`thermo_modify lost`): `error`, `warn` or `ignore`; None where
            the commands, or some of them, are not echoed.
        dimension: 2 or 3.
        kspace_error: RMS error of the forces as `kspace_style` estimates it, in the style's unit of force; the
            larger one where it has two (Coulomb and dispersion).
        kspace_error_relative: The same against the force between two elementary charges at a distance of one.
        procs: MPI tasks.
        threads: OpenMP threads per MPI task.
        threaded: Whether the forces are computed with these threads (styles of OPENMP, INTEL or KOKKOS); else one
            thread works, whatever their number.
        cpu_use_percent: `% CPU use`, per MPI task; 100 times the threads at most.
        performance: Numbers of the `Performance:` line by LAMMPS's own unit, e.g. `ns/day`.
        timing: Rows of the timing breakdown by section, e.g. `Pair`.
        neighbor_builds: Neighbour list builds.
        dangerous_builds: Dangerous builds; None also for "not checked".
        neighbors_per_atom: Average number of neighbours per atom.
        unread: Lines inside the table that look like rows and were not taken for any.
        unread_example: The first of them.
        missing: Rows between the first and the last that the echoed `thermo N` promises and that are not there;
            None where the log does not say enough to count them.
        every: The echoed `thermo` interval.
        follows: How it goes on where the run before it in the log ended, with nothing changed in between: as a
            piece of `run N every M` ("every"), by "pre no", or as the repetition of a "loop" of `jump`; empty
            if it does not.
        broken_by: What came between, where it would follow the run before it otherwise.
        pieces: Number of pieces it was put together from.

    Example:
        >>> run = parse_log("Step Temp \\n0 80 \\n10 78.5 \\n").runs[0]
        >>> run["temp"].tolist()
        [80.0, 78.5]
    """

    columns: tuple[str, ...]
    data: _Array
    complete: bool
    kind: str | None = None
    units: str | None = None
    timestep: float | None = None
    timestep_varies: bool = False
    normalized: bool | None = None
    loop_time_s: float | None = None
    steps: int | None = None
    n_atoms: int | None = None
    n_atoms_start: int | None = None
    atoms_changed_by: tuple[str, ...] = ()
    lost: str | None = None
    dimension: int = 3
    kspace_error: float | None = None
    kspace_error_relative: float | None = None
    procs: int | None = None
    threads: int | None = None
    threaded: bool = False
    cpu_use_percent: float | None = None
    performance: dict[str, float] = field(default_factory=dict)
    timing: dict[str, TimingRow] = field(default_factory=dict)
    neighbor_builds: int | None = None
    dangerous_builds: int | None = None
    neighbors_per_atom: float | None = None
    unread: int = 0
    unread_example: str = ""
    missing: int | None = None
    every: int | None = None
    follows: Literal["", "every", "pre no", "loop"] = ""
    broken_by: str = ""
    pieces: int = 1

    def __len__(self) -> int:
        return len(self.data)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._position(name) is not None

    def __getitem__(self, name: str) -> _Array:
        """A column by header, thermo keyword or alias: `TotEng`, `etotal` and `E_tot` are one column.

        Args:
            name: Headers of computes, fixes and variables (`c_1`, `f_2[1]`, `v_x`) must match exactly.

        Returns:
            (n_rows,) float64 view.

        Raises:
            KeyError: There is no such column.
        """
        position = self._position(name)
        if position is None:
            raise KeyError(f"the run has no thermo column {name!r}; it has {', '.join(self.columns)}.")
        column: _Array = self.data[:, position]
        return column

    @property
    def doubts(self) -> tuple[str, ...]:
        """What speaks against the rows being all that LAMMPS printed, each a sentence without its full stop."""
        said = []
        if self.unread:
            lines = "line" if self.unread == 1 else "lines"
            said.append(
                f"{self.unread} {lines} of the log inside this run's thermo table look like rows but are not laid "
                f"out or numbered like its rows, and are not used; the first: {self.unread_example!r}"
            )
        if self.missing:
            said.append(
                f"{self.missing} of the thermo rows that the `thermo` command promises are not in the log: it is "
                "damaged, or the interval was changed where the log does not show it"
            )
        return tuple(said)

    def unit(self, name: str) -> str | None:
        """Unit of a column, or None where LAMMPS does not say (computes, fixes, variables, unknown style).

        Args:
            name: As for `[]`.

        Returns:
            A unit that `hpcagent.units` knows; energies of a normalised run are per `atom`.

        Raises:
            KeyError: There is no such column.
        """
        position = self._position(name)
        if position is None:
            raise KeyError(f"the run has no thermo column {name!r}; it has {', '.join(self.columns)}.")
        return _unit(canonical(self.columns[position]), self.units, self.normalized)

    def _position(self, name: str) -> int | None:
        if name in self.columns:
            return self.columns.index(name)
        wanted = canonical(name)
        for position, column in enumerate(self.columns):
            if canonical(column) == wanted:
                return position
        return None


@dataclass(frozen=True, slots=True, eq=False)
class Log:
    """What a LAMMPS log says.

    Attributes:
        version: Text between the brackets of the first line, e.g. `22 Jul 2025 - Update 4`.
        units: Style of the last run. `lj`, LAMMPS's default, if the log echoes commands but no `units`;
            None if it cannot be known (no echo, or a restart file that brought its own).
        runs: In order. A run without `Loop time` is there too, with `complete` False.
        warnings: Texts of `WARNING` lines, in order.
        error: Text of the first `ERROR` line, without that word and the MPI rank.
        error_line: Input line LAMMPS was at, if it said so.
        finished: Whether `Total wall time` was printed.
        total_wall_s: That time, in seconds.
    """

    version: str | None
    units: str | None
    runs: tuple[Run, ...]
    warnings: tuple[str, ...]
    error: str | None
    error_line: str | None
    finished: bool
    total_wall_s: float | None


def read_log(path: str | Path) -> Log:
    """Reads a log file; see `parse_log`.

    Args:
        path: The file.

    Returns:
        Its content.

    Raises:
        OSError: The file cannot be read.
        AppFailed: `FileTooLarge`: it has more than 1000 MB.
    """
    return parse_log(read_bytes(Path(path)))


def parse_log(text: str | bytes) -> Log:
    """Reads the text of a log, or of LAMMPS's screen output.

    Never raises for what a log can contain: cut-off text, foreign lines and invalid UTF-8 give fewer or
    shorter runs.

    Args:
        text: The log; Windows newlines are understood.

    Returns:
        Its content.

    Example:
        >>> log = parse_log("units metal\\nrun 0\\n   Step   Temp \\n   0   80 \\n")
        >>> log.units, len(log.runs[0]), log.runs[0].complete
        ('metal', 1, False)
    """
    data = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n")
    return _Reader(data).read()


# ---- names and units of columns


# Printed header or common spelling, in lower case -> thermo keyword.
_KEYWORDS = {
    "toteng": "etotal",
    "etot": "etotal",
    "e_tot": "etotal",
    "e_total": "etotal",
    "poteng": "pe",
    "epot": "pe",
    "kineng": "ke",
    "ekin": "ke",
    "temperature": "temp",
    "pressure": "press",
    "volume": "vol",
    "e_vdwl": "evdwl",
    "e_coul": "ecoul",
    "e_pair": "epair",
    "e_bond": "ebond",
    "e_angle": "eangle",
    "e_dihed": "edihed",
    "e_impro": "eimp",
    "e_mol": "emol",
    "e_long": "elong",
    "e_tail": "etail",
    "t/cpu": "tpcpu",
    "s/cpu": "spcpu",
    "cpuleft": "cpuremain",
    "timeoutleft": "timeremain",
}
_ENERGIES = frozenset(
    (
        "etotal",
        "pe",
        "ke",
        "evdwl",
        "ecoul",
        "epair",
        "ebond",
        "eangle",
        "edihed",
        "eimp",
        "emol",
        "elong",
        "etail",
        "enthalpy",
        "ecouple",
        "econserve",
    )
)
_KINDS = {
    **dict.fromkeys(("time", "dt"), "time"),
    "temp": "temperature",
    **dict.fromkeys(("press", "pxx", "pyy", "pzz", "pxy", "pxz", "pyz"), "pressure"),
    **dict.fromkeys(
        ("lx", "ly", "lz", "xlo", "xhi", "ylo", "yhi", "zlo", "zhi", "xy", "xz", "yz", "cella", "cellb", "cellc"),
        "distance",
    ),
    **dict.fromkeys(("fmax", "fnorm"), "force"),
    "density": "density",
}
_FIXED = {
    **dict.fromkeys(("step", "elapsed", "elaplong", "part", "nbuild", "ndanger"), "1"),
    **dict.fromkeys(("cpu", "cpuremain", "timeremain"), "s"),
    "atoms": "1",
    "spcpu": "timesteps/s",
}


def canonical(name: str) -> str:
    """The thermo keyword behind a column header or one of its usual spellings.

    Args:
        name: Any spelling; what is not a keyword (computes, fixes, variables) comes back unchanged.

    Returns:
        The keyword, e.g. `etotal`.

    Example:
        >>> canonical("TotEng"), canonical("E_tot"), canonical("v_Etot")
        ('etotal', 'etotal', 'v_Etot')
    """
    lower = name.lower()
    if lower in _KEYWORDS:
        return _KEYWORDS[lower]
    if lower in _ENERGIES or lower in _KINDS or lower in _FIXED or lower in _OTHER_KEYWORDS:
        return lower
    return name


_OTHER_KEYWORDS = frozenset(("vol", "tpcpu", "cellalpha", "cellbeta", "cellgamma"))


def _unit(keyword: str, units: str | None, normalized: bool | None) -> str | None:
    if keyword in _FIXED:
        return _FIXED[keyword]
    if keyword in ("cellalpha", "cellbeta", "cellgamma") or units not in STYLES:
        return None
    style = unit_style(units)
    if keyword == "vol":
        return f"{style.distance}^3"
    if keyword in _ENERGIES:
        if normalized is None:
            return None
        return f"{style.energy}/atom" if normalized else style.energy
    if keyword in _KINDS:
        unit: str | None = getattr(style, _KINDS[keyword])
        return unit
    return None


def column_units(column: str, units: str | None) -> tuple[str, ...]:
    """Units in which LAMMPS may print a thermo column; empty where it does not say.

    Args:
        column: Keyword or header of the column.
        units: The script's units style.

    Returns:
        One unit, or two for energies: of the whole system, and per atom (`thermo_modify norm`).

    Example:
        >>> column_units("Press", "metal"), column_units("PotEng", "real"), column_units("c_own", "real")
        (('bar',), ('kcal/mol', 'kcal/mol/atom'), ())
    """
    found = (_unit(canonical(column), units, normalized) for normalized in (False, True))
    return tuple(dict.fromkeys(unit for unit in found if unit is not None))


# ---- reading


_MEMORY = (b"Per MPI rank memory allocation", b"Memory usage per processor")
_LOOP = re.compile(rb"Loop time of (\S+) on (\d+) procs(?: \([^)\n]*\))? for (\d+) steps with (\d+) atoms")
_ERROR = re.compile(rb"ERROR(?: on proc \d+)?: (.*)")
_WARNING = re.compile(rb"WARNING(?: on proc \d+)?: (.*)")
_BANNER = re.compile(rb"-+ Step +(\d+) -+ CPU = +(\S+) \(sec(?:s|onds)?\) -+[ \t]*")
_COMMAND = re.compile(
    rb"\s*(units|timestep|thermo|thermo_style|thermo_modify|fix|unfix|clear|read_restart|dimension"
    rb"|read_data|kspace_style"
    rb"|run|minimize|rerun|hyper|neb|temper|prd|tad|echo)(?:\s+(.*))?"
)
# What create_atoms, delete_atoms, read_data, read_restart, replicate and read_dump say of the number of atoms.
_BOX = re.compile(rb"Created (?:orthogonal|triclinic|general triclinic) box")
# One of these is given before anything that a box is needed for: where the first is echoed, all are.
_FIRST = re.compile(rb"\s*(?:units|create_box|read_data|read_restart)\s.*")
_READING = (b"Reading data file", b"Reading restart file")
_MOVING = (b"Changing box ...", b"Displacing atoms ...")
_CREATED = re.compile(rb"Created (\d+) atoms")
_DELETED = re.compile(rb"Deleted \d+ atoms, new total = (\d+)")
_ATOMS = re.compile(rb"  (\d+) atoms(?: after read)?\s*")
# "estimated absolute RMS force accuracy = 0.027", of PPPM for dispersion with "Coulomb" or "Dispersion" before it.
_ACCURACY = re.compile(rb"\s+(?:\w+ )?estimated (absolute|relative)(?: RMS)? force accuracy\s*=\s*(\S+)")
# What a style of OPENMP, INTEL or KOKKOS that computes forces leaves in the log, at the start of each run or once.
_THREADED = re.compile(rb"Last active /omp style is |KOKKOS mode |.*\bpair \S+/(?:omp|intel|kk)\b")
_GRID = re.compile(rb" +(\d+) by (\d+) by (\d+) MPI processor grid")
_NOT_THREADED = b"No /omp style for force computation"
_CHANGE_ATOMS = frozenset(("bond/react", "charge/regulation", "deposit", "evaporate", "gcmc", "pour"))
_NUMBER = rb"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|[nN][aA][nN]|[iI][nN][fF]|1\.#[A-Z]+)"
_IS_NUMBER = re.compile(_NUMBER)
_PAIR = re.compile(rb"(\S(?:[^=\n]*\S)?)\s+=\s*(" + _NUMBER + rb")(?:\s+|$)")
# "Climbing replica": the second half of a `neb`, with a table of its own.
_END_MARKS = tuple(
    b"\n" + mark for mark in (b"Loop time of ", b"ERROR", b"LAMMPS (", *_MEMORY, b"Climbing replica = ")
)
_DOUBTFUL_MARKS = _END_MARKS[:2]
_ROW_BYTES = b"0123456789+-.eE \t\n[],"
_NUMBER_BYTES = b"0123456789+-.eE \tnaifNAIF#DQS"
_YAML_ROW = b"  - ["
_CHUNK = 1 << 21
# The end of a table is looked for this far at first, then twice as far: what is looked at grows with the table.
_NEAR = 1 << 12
# Tables of all replicas together, by a column that only they have. Their rows may repeat a step.
_UNIVERSE = {"MaxReplicaForce": "neb", "Coincident": "prd", "T0": "temper", "Margin": "tad"}
# Its fifth column is a word: E, D or DF.
_TAD_HEADER = b"Step CPU N M Status "
_TAD_STATUS = re.compile(rb"^((?:[-+.\d]+ +){4})[A-Z]+", re.MULTILINE)
# Of a warning that is longer than a line.
_WARNING_GOES_ON = re.compile(rb" \([\w./]+:\d+\)[ \t]*")
_YAML_BLANKS = bytes.maketrans(b"],", b"  ")


@dataclass(slots=True)
class _State:
    """What the commands echoed so far have set."""

    units: str | None = None
    units_set: bool = False
    timestep: float | None = None
    restarted: bool = False
    echo: bool = False
    norm: bool | None = None
    every: int | None = None
    kind: str | None = None
    resetting_fix: str | None = None
    dt_said: float | None = None
    boxed: bool = False  # a box was made or read
    hidden: bool = False  # commands were given that the log does not show
    atoms: int | None = None
    adding: bool | None = False  # None: not known
    changing: dict[str, str] = field(default_factory=dict)  # fix -> style; never changed in place
    lost: str | None = None
    dimension: int = 3
    kspace: dict[bytes, float] = field(default_factory=dict)  # never changed in place
    threaded: bool = False
    tasks: int | None = None  # of the processor grid

    def style(self, performance: dict[str, float]) -> str | None:
        if self.units is not None:
            return self.units
        for unit, style in (("tau/day", "lj"), ("fs/day", "electron")):
            if unit in performance:
                return style
        return "lj" if self.echo and not self.restarted and "ns/day" not in performance else None

    def step_size(self, units: str | None) -> float | None:
        if self.resetting_fix is not None:
            return None
        if self.dt_said is not None:
            return self.dt_said
        if self.timestep is not None or self.restarted or units not in STYLES:
            return self.timestep
        return unit_style(units).default_timestep if self.echo or self.units_set else None

    def normalized(self, units: str | None) -> bool | None:
        if self.norm is not None:
            return self.norm
        return unit_style(units).normalized if units in STYLES else None


# Commands that act on the atoms, the forces or the integration, or on how fast they are computed.
_CHANGES = re.compile(
    rb"\s*(?:fix|unfix|fix_modify|velocity|change_box|displace_atoms|delete_atoms|delete_bonds|create_atoms"
    rb"|create_bonds|set|group|reset_timestep|reset_atoms|reset_ids|reset_atom_ids|(?:pair|bond|angle|dihedral"
    rb"|improper|kspace)_(?:style|coeff|modify|write)|special_bonds|dielectric|mass|neighbor|neigh_modify|run_style"
    rb"|read_data|read_dump|read_restart|replicate|clear|balance|comm_style|comm_modify)(?:\s+.*)?"
)
_RUN = re.compile(rb"\s*run\s+\d.*")


@dataclass(slots=True)
class _Between:
    """What was echoed since the last table began.

    Attributes:
        before: The `run` command of that table.
        run: The last `run` command since; empty if there was none.
        jumped: Whether there was a `jump`.
        changed: The first command that changes the system.
    """

    before: bytes = b""
    run: bytes = b""
    jumped: bool = False
    changed: bytes = b""

    def note(self, line: bytes) -> None:
        if _RUN.fullmatch(line):
            self.run = b" ".join(line.split())
        elif line.lstrip().startswith(b"jump"):
            self.jumped = True
        elif not self.changed and _CHANGES.fullmatch(line):
            self.changed = line.strip()

    @property
    def piece(self) -> Literal["", "every", "pre no", "loop"]:
        """How the table that begins now may be a piece of the run before it."""
        if not self.run:
            return "every" if b" every " in self.before else ""
        if b" pre no" in self.run:
            return "pre no"
        return "loop" if self.jumped and self.run == self.before else ""


@dataclass(slots=True)
class _Unread:
    """Lines that look like rows and were not taken for any."""

    count: int = 0
    first: bytes = b""

    def add(self, lines: Sequence[bytes]) -> None:
        if lines and not self.count:
            self.first = lines[0].strip()
        self.count += len(lines)


@dataclass(slots=True)
class _Table:
    """A table being read, and what followed it."""

    columns: tuple[str, ...]
    data: _Array
    state: _State
    loop: re.Match[bytes] | None
    unread: _Unread
    missing: int | None
    follows: Literal["", "every", "pre no", "loop"] = ""
    broken_by: str = ""
    said: list[bytes] = field(default_factory=list)


class _Reader:
    """Walks through a log: text line by line, tables in one stroke."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.state = _State()
        self.tables: list[_Table] = []
        # Stretches of nothing but numbers; searches for words leave them out.
        self.numeric: list[tuple[int, int]] = []
        self.previous = b""
        self.between = _Between()

    def read(self) -> Log:
        # `sure`: the next line must be a table's header; `after_run`: it may well be.
        position, sure, after_run = 0, False, False
        continued = b""
        while position < len(self.data):
            end = self.data.find(b"\n", position)
            stop = len(self.data) if end < 0 else end
            line = self.data[position:stop]
            next_position = stop + 1
            table = self._table_at(position, line, next_position, sure=sure, after_run=after_run)
            if table is not None:
                position, sure, after_run = table, False, False
                continue
            if line.startswith(_MEMORY):
                sure = True
            elif line.strip() and not _is_warning(line):
                sure = False
            # An echoed command may go over several lines, each but the last ending in `&`.
            if line.rstrip().endswith(b"&"):
                continued += line.rstrip()[:-1] + b" "
            else:
                if self._note(continued + line):
                    after_run = True
                continued = b""
            position = next_position
        return self._log()

    # -- text between the tables

    def _note(self, line: bytes) -> bool:
        """Take up what one line says; True for a command that prints a table."""
        if self.tables:
            self.tables[-1].said.append(line)
        state = self.state
        if line.startswith(b"  Unit style    :"):
            state.units, state.units_set = line.split(b":")[1].strip().decode("utf-8", "replace"), True
            return False
        if line.startswith(b"  Time step     :"):
            state.dt_said = _float(line.split(b":")[1].strip())
            return False
        if line.startswith(b"Setting up "):
            state.kind = "minimize" if b"minimization" in line else "run"
            return False
        if _THREADED.match(line):
            state.threaded = True
        elif line.startswith(_NOT_THREADED):
            state.threaded = False
        elif grid := _GRID.match(line):
            state.tasks = math.prod(int(n) for n in grid.groups())
        self._count(line)
        if state.lost is None and not state.hidden and not state.boxed and _FIRST.fullmatch(line):
            state.lost = "error"
        command = _COMMAND.fullmatch(line)
        # The output of `print "timestep 7"` is no command.
        quoted = self.previous.lstrip().startswith(b"print") and line in self.previous
        self.previous = line
        if not quoted:
            self.between.note(line)
        if command is None or quoted:
            return False
        words = [w.strip("\"'") for w in (command[2] or b"").decode("utf-8", "replace").split("#")[0].split()]
        return self._obey(command[1].decode(), words)

    def _count(self, line: bytes) -> None:
        """Keep up with the number of atoms that the commands between runs leave."""
        state = self.state
        if line.startswith(b"Created "):
            if _BOX.match(line):
                state.boxed, state.atoms = True, 0
            elif (created := _CREATED.fullmatch(line.rstrip())) and state.atoms is not None:
                state.atoms += int(created[1])
        elif deleted := _DELETED.match(line):
            state.atoms = int(deleted[1])
        elif line.startswith(_READING):
            if state.lost is None and line.startswith(b"Reading data"):
                # Added to the atoms there are, or read after a `clear` that is not echoed.
                state.adding = None if state.boxed else False
            state.boxed = True
        elif line.startswith(_MOVING):
            # Both may leave atoms outside a box that is not periodic; LAMMPS warns and goes on.
            state.atoms = None
        elif line.endswith(b"initialization ...") and b"estimated" not in line:
            state.kspace = {}
        elif accuracy := _ACCURACY.match(line):
            value = _float(accuracy[2], 0.0)
            state.kspace = {**state.kspace, accuracy[1]: max(value, state.kspace.get(accuracy[1], 0.0))}
        elif found := _ATOMS.fullmatch(line):
            if state.adding is None:
                state.atoms = None
            elif not state.adding:
                state.atoms = int(found[1])
            elif state.atoms is not None:
                state.atoms += int(found[1])
            state.adding = False

    def _obey(self, command: str, words: list[str]) -> bool:
        state = self.state
        first = words[0] if words else ""
        if command == "units" and first in STYLES:
            state.units, state.units_set, state.timestep, state.echo = first, True, None, True
        elif command == "timestep":
            value = _float(first.encode())
            if value is not None:
                state.timestep = value
        elif command == "echo" and words:
            # What is not echoed any more may change it.
            if first not in ("log", "both"):
                state.every, state.lost, state.hidden = None, None, True
        elif command == "thermo":
            state.every = int(first) if first.isdigit() else None
        elif command == "thermo_style" and words:
            state.norm, state.lost = None, "error"
        elif command == "thermo_modify":
            said = dict(pairwise(words))
            state.norm = {"yes": True, "no": False, "on": True, "off": False}.get(said.get("norm", ""), state.norm)
            state.lost = said.get("lost", state.lost)
        elif command == "fix" and len(words) > 2:
            self._fixed(first, words[2])
        elif command == "unfix":
            if first == state.resetting_fix:
                state.resetting_fix = None
            state.changing = {name: style for name, style in state.changing.items() if name != first}
        elif command == "kspace_style":
            state.kspace = {}
        elif command == "dimension" and first.isdigit():
            state.dimension = int(first)
        elif command == "read_data":
            state.adding = "add" in words
        elif command == "clear" and not words:
            self.state = _State(echo=True, lost="error")
        elif command == "read_restart" and words:
            state.restarted, state.timestep = True, None
        elif command == "run" and words and not first.isdigit():
            # `run ${n}` before substitution; the substituted line follows. Plain text otherwise.
            return "$" in first or first.startswith("v_")
        elif command in ("run", "minimize", "rerun", "hyper", "neb", "temper", "prd", "tad") and words:
            state.kind, state.echo, state.dt_said = command, True, None
            return True
        return False

    def _fixed(self, name: str, style: str) -> None:
        state = self.state
        if style.startswith("dt/reset"):
            state.resetting_fix = name
        elif style == "enforce2d":
            # LAMMPS refuses it in three dimensions; after read_restart it is all that is echoed of them.
            state.dimension = 2
        elif style.removesuffix("/kk") in _CHANGE_ATOMS:
            state.changing = {**state.changing, name: style}

    # -- tables

    def _table_at(self, position: int, line: bytes, body: int, *, sure: bool, after_run: bool) -> int | None:
        """Read the table whose header starts at `position`, if one does; its end."""
        if line.startswith(b"keywords:"):
            names = [
                a.replace(b"''", b"'") if a else b
                for a, b in re.findall(rb"'((?:[^']|'')*)'|([^\s,\[\]']+)", line[len(b"keywords:") :])
            ]
            return self._finish(_text(names), body, _read_yaml) if body <= len(self.data) else None
        if _BANNER.fullmatch(line):
            end, loop = self._end(position)
            unread = _Unread()
            columns, data = _read_multi(self.data[position : end + 1], unread, cut=end >= len(self.data))
            return self._add(columns, data, end, loop, unread)
        if line.startswith(_TAD_HEADER) and body <= len(self.data):
            return self._finish(_text(line.split()), body, _read_tad)
        if body > len(self.data) or not self._is_header(line, body, sure=sure, after_run=after_run):
            return None
        return self._finish(_text(_header(line, self._next_line(body))), body, _read_one)

    def _is_header(self, line: bytes, body: int, *, sure: bool, after_run: bool) -> bool:
        words = line.split()
        if not words or _is_warning(line) or line == b"---":
            return False
        if sure:
            return not line.startswith((b"ERROR", b"Loop time"))
        if any(_IS_NUMBER.fullmatch(w) for w in words):
            return False
        follower = self._next_line(body)
        values = follower.split()
        numbers = bool(values) and all(_IS_NUMBER.fullmatch(v) for v in values)
        fits = numbers and len(values) == len(_header(line, follower))
        printed = _padded(line) and _padded(follower)
        if b"Step" in words:
            cut = not follower.strip() or follower.startswith(b"ERROR")
            return (fits and (after_run or printed or not self.state.echo)) or (cut and after_run)
        return fits and printed and (after_run or not self.state.echo)

    def _next_line(self, position: int) -> bytes:
        """The first finished line at or after `position` that is no warning; empty if there is none."""
        while (end := self.data.find(b"\n", position)) >= 0:
            line = self.data[position:end]
            if not _is_warning(line):
                return line
            position = end + 1
        return b""

    def _end(self, start: int) -> tuple[int, re.Match[bytes] | None]:
        """Newline before what ends the table that starts at `start`, and its `Loop time` line if that is it."""
        step = _NEAR
        while start < len(self.data):
            stop = self.data.find(b"\n", start + step)
            step = min(2 * step, _CHUNK)
            stop = len(self.data) if stop < 0 else stop + 1
            if not self.data[start:stop].translate(None, _ROW_BYTES):
                self.numeric.append((start, stop))
            elif (found := self._end_between(start, stop)) is not None:
                return found
            start = stop
        return len(self.data), None

    def _end_between(self, start: int, stop: int) -> tuple[int, re.Match[bytes] | None] | None:
        nearest, found = stop, None
        for mark in _END_MARKS:
            at = self.data.find(mark, max(start - 1, 0), nearest + len(mark))
            while 0 <= at < nearest:
                loop = _LOOP.match(self.data, at + 1)
                if loop or mark not in _DOUBTFUL_MARKS or _ERROR.match(self.data, at + 1):
                    nearest, found = at, (at, loop)
                    break
                at = self.data.find(mark, at + 1, nearest + len(mark))
        return found

    def _finish(
        self,
        columns: tuple[str, ...],
        body: int,
        read: Callable[[bytes, tuple[str, ...], _Unread], _Array],
    ) -> int:
        end, loop = self._end(body)
        unread = _Unread()
        return self._add(columns, read(self.data[body : end + 1], columns, unread), end, loop, unread)

    def _add(
        self,
        columns: tuple[str, ...],
        data: _Array,
        end: int,
        loop: re.Match[bytes] | None,
        unread: _Unread,
    ) -> int:
        snapshot = _State(**{name: getattr(self.state, name) for name in _State.__slots__})
        snapshot.kind = next((kind for name, kind in _UNIVERSE.items() if name in columns), snapshot.kind)
        names = [canonical(c) for c in columns]
        missing = None
        # A rerun may visit steps in any order.
        if "step" in names and snapshot.kind not in ("rerun", *_UNIVERSE.values()):
            data, missing = self._checked(data, data[:, names.index("step")], loop, unread)
        follows, broken_by = self._follows(columns, data, snapshot)
        self.tables.append(_Table(columns, data, snapshot, loop, unread, missing, follows, broken_by))
        self.state.atoms = int(loop[4]) if loop else None
        if loop is None:
            return end + 1
        return loop.end() + 1 if loop.end() < len(self.data) else len(self.data)

    def _follows(
        self, columns: tuple[str, ...], data: _Array, state: _State
    ) -> tuple[Literal["", "every", "pre no", "loop"], str]:
        """How a run follows the one before it, or else what came between where it might have."""
        between = self.between
        self.between = _Between(before=between.run or between.before)
        last = self.tables[-1] if self.tables else None
        piece = between.piece
        if last is None or not piece or (last.state.kind, state.kind) != ("run", "run"):
            return "", ""
        names = [canonical(c) for c in columns]
        if between.changed:
            return "", _decode(between.changed[:80])
        if columns != last.columns or state.norm != last.state.norm:
            return "", "another thermo output"
        if state.every != last.state.every:
            return "", "another `thermo` interval"
        if state.timestep != last.state.timestep:
            return "", "another timestep"
        step = names.index("step") if "step" in names else None
        if step is None or last.loop is None or not len(data) or not len(last.data):
            return "", ""
        going_on = data[0, step] == last.data[-1, step]
        return (piece, "") if going_on else ("", "another step")

    def _checked(
        self, data: _Array, step: _Array, loop: re.Match[bytes] | None, unread: _Unread
    ) -> tuple[_Array, int | None]:
        """The rows that the run can have printed, and how many of those that it must have printed are missing."""
        state = self.state
        # What follows from the commands holds for these two.
        steps = int(loop[3]) if loop and state.kind in ("run", "minimize") else None
        every = state.every if state.kind == "run" else None
        kept = _true_steps(step, every, steps)
        true = step[kept]
        if true.size < step.size:
            refused = np.setdiff1d(np.arange(step.size), kept)
            unread.add([b" ".join(b"%.10g" % v for v in data[i]) for i in refused[:1]])
            unread.count += refused.size - 1
        return data[kept], None if steps is None or not every else _gaps(true, every, steps)

    # -- the whole

    def _log(self) -> Log:
        runs = tuple(_run(table) for table in self.tables)
        version = self._first(re.compile(rb"LAMMPS \(([^)\n]*)\)"), b"LAMMPS (")
        units = runs[-1].units if runs else self.state.style({})
        error = self._first(_ERROR, b"ERROR")
        at = self._first(re.compile(rb"Last (?:command|input line): (.*)"), b"Last ")
        wall = self._first(re.compile(rb"Total wall time: ([\d:]+)"), b"Total wall time: ")
        return Log(
            version=_decode(version[1]) if version else None,
            units=units,
            runs=runs,
            warnings=tuple(_decode(m[1]).strip() for m in self._lines(_WARNING, b"WARNING")),
            error=_decode(error[1]).strip() if error else None,
            error_line=_decode(at[1]).strip() if at else None,
            finished=wall is not None,
            total_wall_s=_clock(wall[1]) if wall else None,
        )

    def _first(self, pattern: re.Pattern[bytes], start: bytes) -> re.Match[bytes] | None:
        return next(self._lines(pattern, start), None)

    def _lines(self, pattern: re.Pattern[bytes], start: bytes) -> Iterator[re.Match[bytes]]:
        """Matches of `pattern` at the start of a line; every match begins with `start`."""
        for low, high in self._wordy():
            at = self.data.find(start, low, high)
            while at >= 0:
                if at == 0 or self.data[at - 1] == 10:
                    match = pattern.match(self.data, at)
                    if match:
                        yield match
                at = self.data.find(start, at + len(start), high)

    def _wordy(self) -> Iterator[tuple[int, int]]:
        """What is left of the log without the numeric stretches."""
        low = 0
        for start, stop in self.numeric:
            if start > low:
                yield low, start
            low = stop
        if low < len(self.data):
            yield low, len(self.data)


# ---- rows


def _header(line: bytes, follower: bytes) -> list[bytes]:
    """Column names of a one-line header, given the line after it.

    `thermo_modify colname` allows names with blanks; those are told apart by the wider gaps between columns.
    """
    words, values = line.split(), follower.split()
    if len(values) == len(words) or not values or not all(_IS_NUMBER.fullmatch(v) for v in values):
        return words
    apart = re.split(rb"\s{2,}", line.strip())
    if len(apart) == len(values):
        return apart
    # Names that cannot be told apart must not end up on the wrong columns.
    return [b"column_%d" % (i + 1) for i in range(len(values))] if follower[-1:].isspace() else words


_INTEGERS = frozenset(("step", "elapsed", "elaplong", "atoms", "part", "nbuild", "ndanger"))
_POWERS = 10.0 ** np.arange(1, 19)


def _is_warning(line: bytes) -> bool:
    return line.startswith(b"WARNING") or _WARNING_GOES_ON.fullmatch(line) is not None


def _padded(line: bytes) -> bool:
    """Whether a line is printed in columns: there are wide gaps inside, or a blank at its end."""
    return line[-1:].isspace() or b"  " in line.strip()


def _read_one(text: bytes, columns: tuple[str, ...], unread: _Unread) -> _Array:
    """Rows of a one-line table: (n_rows, n_columns)."""
    n = len(columns)
    row = re.compile(
        rb"^[ \t]*(" + _NUMBER + rb")(?:[ \t]+" + _NUMBER + rb"){%d}([ \t]*)$" % (n - 1), re.MULTILINE
    )
    text = _whole_lines(text, row)
    first = row.search(text)
    if first is None:
        unread.add([li for li in text.split(b"\n") if _SIMILAR.match(li) and len(li.split()) == n])
        return np.empty((0, n))
    layout = _Layout.of(first[0], integer=first[1].isdigit() and canonical(columns[0]) in _INTEGERS)
    parts = []
    for chunk in _chunks(text, b"\n"):
        fields = _fields(chunk, n)
        if fields is None:
            # First refuse lines with letters that no number has: that is often all, and quick.
            lines: list[bytes] = []
            others: list[bytes] = []
            for line in chunk.split(b"\n"):
                (others if line.translate(None, _NUMBER_BYTES) else lines).append(line)
            unread.add([line for line in others if layout.similar(line)])
            chunk = b"\n".join(filter(None, lines)) + b"\n"
            fields = _fields(chunk, n)
        if fields is None:
            unread.add([li for li in chunk.split(b"\n") if layout.similar(li) and not row.match(li)])
            rows = [m[0] for m in row.finditer(chunk)]
            if not rows:
                continue
            chunk = _plain_nan(b"\n".join(rows) + b"\n")
            fields = _fields(chunk, n)
            assert fields is not None, "the pattern finds nothing else"
        values, starts, ends = fields
        kept = layout.fits(chunk, values[:, 0], starts, ends)
        if not kept.all():
            refused = np.flatnonzero(~kept)
            at = refused[0]
            unread.add([chunk[ends[at - 1] + 1 if at else 0 : ends[at]]])
            unread.count += refused.size - 1
        parts.append(values[kept])
    return np.concatenate(parts) if parts else np.empty((0, n))


def _read_tad(text: bytes, columns: tuple[str, ...], unread: _Unread) -> _Array:
    """Rows of the table of a `tad`, with NaN for the word in its fifth column: (n_rows, n_columns)."""
    return _read_one(_TAD_STATUS.sub(rb"\1nan", text), columns, unread)


def _whole_lines(text: bytes, row: re.Pattern[bytes]) -> bytes:
    """Drop an unfinished last line, unless a blank after its last number shows the row to be whole."""
    if not text or text.endswith(b"\n"):
        return text
    start = text.rfind(b"\n") + 1
    whole = row.match(text, start)
    return text + b"\n" if whole and whole[2] else text[:start]


def _plain_nan(text: bytes) -> bytes:
    """`1.#IND` and its like are how Windows prints NaN and infinity."""
    if b"#" not in text:
        return text
    return re.sub(rb"1\.#[A-Z]+", lambda m: b"inf" if m[0].startswith(b"1.#INF") else b"nan", text)


def _chunks(text: bytes, boundary: bytes) -> Iterator[bytes]:
    """Pieces of about `_CHUNK` bytes, each ending with the newline that opens `boundary`."""
    start = 0
    while start < len(text):
        end = text.find(boundary, start + _CHUNK)
        end = len(text) if end < 0 else end + 1
        yield text[start:end]
        start = end


def _fields(chunk: bytes, n: int) -> tuple[_Array, _Positions, _Positions] | None:
    """Numbers (n_rows, n), where each begins (n_rows, n), and where each line ends (n_rows,).

    None unless all lines are n numbers.
    """
    text = np.frombuffer(chunk, np.uint8)
    blank = text <= 32
    ends = np.flatnonzero(text == 10)
    starts = np.flatnonzero(blank[:-1] & ~blank[1:]) + 1
    if text.size and not blank[0]:
        starts = np.concatenate(([0], starts))
    if starts.size != n * ends.size:
        return None
    # The reader refuses lines of different lengths, so that one number less and one more do not even out.
    try:
        values = np.loadtxt(io.BytesIO(chunk), dtype=np.float64, comments=None, ndmin=2)
    except ValueError:
        return None
    return (values, starts.reshape(-1, n), ends) if values.shape == (ends.size, n) else None


_Positions = NDArray[np.intp]
_SIMILAR = re.compile(rb"[ \t]*(\d+)[ \t]+[-+]?\.?\d")


@dataclass(frozen=True, slots=True)
class _Layout:
    """How the first row of a table is laid out.

    Attributes:
        width: Where the number of its first column ends, if that is an integer; None otherwise.
        leading: Whether there are blanks before it: it is aligned to the right.
        anchors: (n, 3) where each number begins, begins with its sign (positive ones have a blank for it in
            LAMMPS's own format), and ends.
    """

    width: int | None
    leading: bool
    anchors: _Positions

    @classmethod
    def of(cls, row: bytes, *, integer: bool) -> _Layout:
        numbers = [(m.start(), m.start() - (m[0][:1] not in b"+-"), m.end()) for m in re.finditer(rb"\S+", row)]
        anchors = np.array(numbers, dtype=np.intp)
        return cls(numbers[0][2] if integer else None, numbers[0][0] > 0, anchors)

    def similar(self, line: bytes) -> bool:
        """Whether a line that is no row begins like one, or holds what no text file holds."""
        if b"\0" in line:
            return True
        if self.width is None or not self.leading:
            return False
        found = _SIMILAR.match(line)
        return found is not None and found.end(1) == max(self.width, len(found[1]))

    def fits(self, chunk: bytes, leading: _Array, starts: _Positions, ends: _Positions) -> NDArray[np.bool_]:
        """Which lines are laid out so.

        Args:
            chunk: Lines of n numbers each.
            leading: (n_rows,) first column.
            starts: (n_rows, n) where each number begins.
            ends: (n_rows,) where each line ends.
        """
        text = np.frombuffer(chunk, np.uint8)
        lines = np.concatenate(([0], ends[:-1] + 1))
        keep = np.ones(ends.size, dtype=np.bool_)
        if self.width is not None:
            digits = np.searchsorted(_POWERS, leading, side="right") + 1
            after = starts[:, 0] + digits
            keep &= after - lines == (np.maximum(self.width, digits) if self.leading else digits)
            keep &= text[np.minimum(after, text.size - 1)] <= 32
        # Where the last number begins shows in one stroke that all columns before it are as wide as usual.
        last = starts[:, -1]
        usual = last - lines - (text[last] != _MINUS) == self.anchors[-1, 1]
        doubtful = np.flatnonzero(~usual & keep)
        if doubtful.size and starts.shape[1] > 1:
            keep[doubtful] = self._spaced(_anchors(text, starts[doubtful], lines[doubtful]))
        return keep

    def _spaced(self, anchors: _Positions) -> NDArray[np.bool_]:
        """Which rows have their columns at the distances of the first row, or pushed on by one too wide.

        Args:
            anchors: (n_rows, n, 3).
        """
        # (..., n - 1, 3, 3): any anchor of a column against any of the one before it.
        apart = anchors[:, 1:, :, None] - anchors[:, :-1, None, :]
        usual = self.anchors[1:, :, None] - self.anchors[:-1, None, :]
        same = (apart == usual).any(axis=(2, 3))
        # What follows directly on the number before it, one blank between, in the first row: that number may have
        # been too wide, or its format has no width; the distance says nothing.
        free = usual[:, :2, 2].min(axis=1) <= 1
        pushed = (apart[:, :, :2, 2].min(axis=2) <= 1) & (
            (apart[:, :, 1, 1] > usual[:, 1, 1]) | (apart[:, :, 2, 2] > usual[:, 2, 2])
        )
        fits: NDArray[np.bool_] = (same | free | pushed).all(axis=1)
        return fits


_PLUS, _MINUS = b"+-"


def _anchors(text: NDArray[np.uint8], starts: _Positions, lines: _Positions) -> _Positions:
    """Where numbers begin, begin with their sign, and end, from the start of their line: (n_rows, n, 3)."""
    blank = np.flatnonzero(text <= 32)
    stops = blank[np.searchsorted(blank, starts)]
    first = text[starts]
    signed = starts - ((first != _MINUS) & (first != _PLUS))
    return np.stack([starts, signed, stops], axis=-1) - lines[:, None, None]


def _read_yaml(text: bytes, columns: tuple[str, ...], unread: _Unread) -> _Array:
    """Rows `  - [1, 2, ]` of a YAML table: (n_rows, n_columns)."""
    n = len(columns)
    number = re.compile(
        rb"^  - \[[ \t]*(" + _NUMBER + rb")(?:,[ \t]*" + _NUMBER + rb"){%d},?[ \t]*\][ \t]*$" % (n - 1),
        re.MULTILINE,
    )
    parts = []
    for chunk in _chunks(text[: text.rfind(b"\n") + 1], b"\n"):
        if chunk.count(b"\n") == chunk.count(b",]\n") + chunk.count(b", ]\n") == chunk.count(_YAML_ROW):
            fields = _fields(chunk.replace(_YAML_ROW, b"").translate(_YAML_BLANKS), n)
        else:
            fields = None
        if fields is None:
            rows = [m[0] for m in number.finditer(chunk)]
            unread.add(
                [li for li in chunk.split(b"\n") if (_YAML_ROW in li and not number.match(li)) or b"\0" in li]
            )
            if not rows:
                continue
            plain = b"\n".join(rows).replace(_YAML_ROW, b"").translate(_YAML_BLANKS)
            fields = _fields(_plain_nan(plain + b"\n"), n)
            assert fields is not None, "the pattern finds nothing else"
        parts.append(fields[0])
    return np.concatenate(parts) if parts else np.empty((0, n))


_Skeleton = tuple[tuple[bytes, ...], ...]


def _read_multi(text: bytes, unread: _Unread, *, cut: bool) -> tuple[tuple[str, ...], _Array]:
    """Columns and rows of a multi-line table that begins with the banner of its first record.

    Columns are Step and CPU of the banner and the fields in order, without a Step or CPU among them.
    """
    text = text[: text.rfind(b"\n") + 1]
    skeleton, whole = _skeleton(text, cut=cut)
    names = _text([b"Step", b"CPU", *(name for line in skeleton for name in line)])
    keep = [i for i, n in enumerate(names) if i < 2 or canonical(n) not in ("step", "cpu")]
    if not whole:
        return tuple(names[i] for i in keep), np.empty((0, len(keep)))
    # The first piece may end inside a record only if the table is cut there.
    parts = []
    for chunk in _chunks(text, b"\n--"):
        rows = _multi_regular(chunk, skeleton, len(names))
        parts.append(_multi_careful(chunk, skeleton, len(names), unread) if rows is None else rows)
    data = np.concatenate(parts) if parts else np.empty((0, len(names)))
    return tuple(names[i] for i in keep), data[:, keep]


def _skeleton(text: bytes, *, cut: bool) -> tuple[_Skeleton, bool]:
    """Names on each line of a record, and whether the first record is known to be whole."""
    records: list[list[tuple[bytes, ...]]] = []
    closed = False
    for line in text.split(b"\n"):
        if _BANNER.fullmatch(line):
            if len(records) == 2:
                break
            records.append([])
            closed = False
        elif records and line and not closed:
            pairs = _pairs(line)
            if pairs is None:
                closed = True
                continue
            records[-1].append(tuple(name for name, _ in pairs))
            # A line holds three fields unless it is the record's last, which (since 2022) ends without a blank.
            closed = len(pairs) < 3 or not line[-1:].isspace()
    if not records:
        return (), False
    first = records[0]
    if len(records) == 2 and len(records[1]) >= len(first):
        return tuple(a for a, b in zip(first, records[1], strict=False) if a == b), True
    return tuple(first), closed or len(records) == 2 or not cut


def _pairs(line: bytes) -> list[tuple[bytes, bytes]] | None:
    found, position = [], 0
    while position < len(line):
        match = _PAIR.match(line, position)
        if match is None:
            return None
        found.append((match[1], match[2]))
        position = match.end()
    return found or None


def _multi_regular(chunk: bytes, skeleton: _Skeleton, n: int) -> _Array | None:
    """Rows of a chunk of nothing but whole records; None if it holds anything else."""
    banner = chunk[: chunk.find(b"\n")].split()
    period: list[bytes | None] = [*banner]
    for place in (2, 6):
        period[place] = None
    for line in skeleton:
        for name in line:
            period += [*name.split(), b"=", None]
    tokens = chunk.split()
    records, rest = divmod(len(tokens), len(period))
    if rest or chunk.count(b"\n") != records * (1 + len(skeleton)):
        return None
    columns = []
    for place, literal in enumerate(period):
        taken = tokens[place :: len(period)]
        if literal is None:
            try:
                columns.append(np.fromiter(map(float, taken), np.float64, records))
            except ValueError:
                return None
        elif taken.count(literal) != records:
            return None
    return np.stack(columns, axis=1) if len(columns) == n else None


def _multi_careful(chunk: bytes, skeleton: _Skeleton, n: int, unread: _Unread) -> _Array:
    """Rows of the records whose lines all come, in order, whatever stands between them."""
    rows: list[list[float]] = []
    row: list[float] | None = None
    due, begun = 0, b""
    for line in chunk.split(b"\n"):
        banner = _BANNER.fullmatch(line)
        if banner:
            if row is not None:
                unread.add([begun])
            begun = line
            row, due = [float(banner[1]), _float(banner[2], np.nan)], 0
        elif row is not None and due < len(skeleton):
            pairs = _pairs(line)
            if pairs is None or tuple(name for name, _ in pairs) != skeleton[due]:
                continue
            row += [_float(_plain_nan(value), np.nan) for _, value in pairs]
            due += 1
        if row is not None and due == len(skeleton):
            rows.append(row)
            row = None
    return np.asarray(rows, dtype=np.float64).reshape(-1, n)


def _gaps(step: _Array, every: int, steps: int) -> int:
    """How many multiples of `every` between the first and the last step of a run are not among its rows.

    The last row is not counted: a run that is stopped (`fix halt`, `timer timeout`) does not always print it.
    """
    if not step.size:
        return 0
    first = int(step[0])
    promised = (first + steps - 1) // every - first // every
    return max(0, promised - int(((step > first) & (step < first + steps)).sum()))


def _true_steps(step: _Array, every: int | None, steps: int | None) -> NDArray[np.intp]:
    """Indices of the rows whose Step a run can have printed.

    Args:
        step: (n_rows,) Step column.
        every: The `thermo` interval, if known.
        steps: Number of steps of the run, if known.
    """
    n = len(step)
    if n == 0:
        return np.arange(0)
    good = np.isfinite(step)
    number = np.where(good, step, -1.0)
    first = number[0]
    good &= number == np.floor(number)
    good[1:] &= number[1:] > first
    if steps is not None:
        good &= number <= first + steps
    if every:
        exempt = number == first + steps if steps is not None else np.arange(n) == n - 1
        exempt[0] = True
        good &= (number % every == 0) | exempt
    kept = np.flatnonzero(good)
    if (np.diff(number[kept]) > 0).all():
        return kept
    return kept[_longest_rise(number[kept])]


def _longest_rise(values: _Array) -> list[int]:
    """Indices of the longest strictly rising subsequence: what is left when the fewest rows are refused."""
    tails: list[float] = []
    holders: list[int] = []
    before: list[int] = []
    for index, value in enumerate(values.tolist()):
        place = bisect.bisect_left(tails, value)
        before.append(holders[place - 1] if place else -1)
        if place == len(tails):
            tails.append(value)
            holders.append(index)
        else:
            tails[place], holders[place] = value, index
    chain, at = [], holders[-1]
    while at >= 0:
        chain.append(at)
        at = before[at]
    return chain[::-1]


# ---- what LAMMPS says after a table


_CPU = re.compile(rb"([\d.]+)% CPU use with (\d+) MPI tasks x (\d+|no) OpenMP threads")


def _run(table: _Table) -> Run:
    performance: dict[str, float] = {}
    timing: dict[str, TimingRow] = {}
    numbers: dict[bytes, bytes] = {}
    cpu: re.Match[bytes] | None = None
    cells: list[bytes] = []
    kind = table.state.kind
    for line in table.said if table.loop else ():
        if line.startswith(b"Section |"):
            cells = [cell.strip() for cell in line.split(b"|")]
        elif cells and b"|" in line:
            timing.update(_timing(cells, line))
        elif line.startswith(b"Performance: ") and not performance:
            pairs = re.findall(rb"([\d.eE+-]+) ([^\s,]+)", line)
            performance = {_decode(unit): float(v) for v, unit in pairs if _float(v) is not None}
        elif line.startswith((b"Neighbor list builds = ", b"Dangerous builds = ", b"Ave neighs/atom = ")):
            name, _, value = line.partition(b" = ")
            numbers.setdefault(name, value.strip())
        elif cpu is None and (match := _CPU.match(line)):
            cpu = match
        elif kind is None and line.startswith(b"Minimization stats"):
            kind = "minimize"
        if not line.strip().strip(b"-") and timing:
            cells = []
    if kind is None and performance:
        kind = "run"
    loop, state = table.loop, table.state
    units = state.style(performance)
    return Run(
        columns=table.columns,
        data=table.data,
        complete=loop is not None,
        kind=kind,
        units=units,
        timestep=state.step_size(units),
        timestep_varies=state.resetting_fix is not None,
        normalized=state.normalized(units),
        loop_time_s=_float(loop[1]) if loop else None,
        procs=_tasks(loop, cpu, state.tasks) if loop else None,
        steps=int(loop[3]) if loop else None,
        n_atoms=int(loop[4]) if loop else None,
        n_atoms_start=_atoms_at_start(table),
        atoms_changed_by=tuple(dict.fromkeys(state.changing.values())),
        lost=state.lost,
        dimension=state.dimension,
        kspace_error=state.kspace.get(b"absolute"),
        kspace_error_relative=state.kspace.get(b"relative"),
        threads=(1 if cpu[3] == b"no" else int(cpu[3])) if cpu else None,
        threaded=state.threaded,
        cpu_use_percent=_float(cpu[1]) if cpu else None,
        performance=performance,
        timing=timing,
        neighbor_builds=_int(numbers.get(b"Neighbor list builds")),
        dangerous_builds=_int(numbers.get(b"Dangerous builds")),
        neighbors_per_atom=_float(numbers.get(b"Ave neighs/atom", b"")),
        unread=table.unread.count,
        unread_example=_decode(table.unread.first[:200]),
        missing=table.missing,
        every=state.every,
        follows=table.follows,
        broken_by=table.broken_by,
    )


def _tasks(loop: re.Match[bytes], cpu: re.Match[bytes] | None, grid: int | None) -> int:
    """MPI tasks: the "procs" of the `Loop time` line are tasks times threads (LAMMPS's finish.cpp)."""
    if cpu is not None:  # not there after `timer off`
        return int(cpu[2])
    return grid or int(loop[2])


def _atoms_at_start(table: _Table) -> int | None:
    if table.state.atoms is not None:
        return table.state.atoms
    names = [canonical(column) for column in table.columns]
    if "atoms" not in names or not len(table.data):
        return None
    first = float(table.data[0, names.index("atoms")])
    return int(first) if np.isfinite(first) else None


def _timing(cells: list[bytes], line: bytes) -> dict[str, TimingRow]:
    found = dict(zip(cells, (cell.strip() for cell in line.split(b"|")), strict=False))

    def number(cell: bytes) -> float | None:
        return _float(found.get(cell, b""))

    row = TimingRow(
        min_s=number(b"min time"),
        avg_s=number(b"avg time"),
        max_s=number(b"max time"),
        varavg=number(b"%varavg"),
        percent=number(b"%total"),
    )
    return {_decode(found[b"Section"]): row}


@overload
def _float(text: bytes) -> float | None: ...
@overload
def _float(text: bytes, otherwise: float) -> float: ...
def _float(text: bytes, otherwise: float | None = None) -> float | None:
    try:
        return float(text)
    except ValueError:
        return otherwise


def _int(text: bytes | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


def _clock(text: bytes) -> float:
    seconds = 0
    for part in text.split(b":"):
        seconds = 60 * seconds + int(part or 0)
    return float(seconds)


def _decode(text: bytes) -> str:
    return text.decode("utf-8", "replace")


def _text(names: list[bytes]) -> tuple[str, ...]:
    return tuple(_decode(n) for n in names)
