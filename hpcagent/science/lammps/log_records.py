"""What a LAMMPS log says, as records: the log, its runs with their thermo tables, rows of the timing breakdown."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hpcagent.science.lammps.thermo_columns import canonical, unit_of

__all__ = ["Log", "Run", "TimingRow"]

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
        baths: Styles of the fixes in force that give energy to the atoms or take it, e.g. `nvt`.
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
        >>> from hpcagent.science.lammps.log import parse_log
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
    baths: tuple[str, ...] = ()
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
        return unit_of(canonical(self.columns[position]), self.units, self.normalized)

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
