"""What the commands that a log echoes, and LAMMPS's answers to them, have set when a run starts."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from hpcagent.science.lammps.log_words import as_float
from hpcagent.units import STYLES, unit_style

__all__ = ["Between", "Echoed", "State"]

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
# Styles of fixes that give energy to the atoms, or take it: thermostats, barostats, friction.
_BATHS = re.compile(
    r"(?:rigid/|tg)?(?:nvt|npt|nph|nvk)(?:/.*)?|(?:langevin|temp|press|brownian|viscous|ttm|electron/stopping|pimd)(?:/.*)?"
    r"|bocs|gjf|gl[de]|nphug|msst|qbmsst|qtb"
)
_CHANGE_ATOMS = frozenset(("bond/react", "charge/regulation", "deposit", "evaporate", "gcmc", "pour"))


@dataclass(slots=True)
class State:
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
    baths: dict[str, str] = field(default_factory=dict)  # likewise
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
class Between:
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


class Echoed:
    """What a log has echoed so far."""

    def __init__(self) -> None:
        self.state = State()
        self.between = Between()
        self._previous = b""

    def note(self, line: bytes) -> bool:
        """Take up what one line says; True for a command that prints a table."""
        state = self.state
        if line.startswith(b"  Unit style    :"):
            state.units, state.units_set = line.split(b":")[1].strip().decode("utf-8", "replace"), True
            return False
        if line.startswith(b"  Time step     :"):
            state.dt_said = as_float(line.split(b":")[1].strip())
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
        quoted = self._previous.lstrip().startswith(b"print") and line in self._previous
        self._previous = line
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
            value = as_float(accuracy[2], 0.0)
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
            value = as_float(first.encode())
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
            state.baths = {name: style for name, style in state.baths.items() if name != first}
        elif command == "kspace_style":
            state.kspace = {}
        elif command == "dimension" and first.isdigit():
            state.dimension = int(first)
        elif command == "read_data":
            state.adding = "add" in words
        elif command == "clear" and not words:
            self.state = State(echo=True, lost="error")
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
        elif _BATHS.fullmatch(style):
            state.baths = {**state.baths, name: style}
