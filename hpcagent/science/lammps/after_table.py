"""A run of a log: its table, and the speed, timings and neighbour lists that LAMMPS prints after it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hpcagent.science.lammps.echoed import State
from hpcagent.science.lammps.log_records import Run, TimingRow
from hpcagent.science.lammps.log_words import as_float, as_int, decoded
from hpcagent.science.lammps.thermo_columns import canonical
from hpcagent.science.lammps.thermo_tables import Unread

__all__ = ["Table", "run_of"]

_Array = NDArray[np.float64]


@dataclass(slots=True)
class Table:
    """A table being read, and what followed it."""

    columns: tuple[str, ...]
    data: _Array
    state: State
    loop: re.Match[bytes] | None
    unread: Unread
    missing: int | None
    follows: Literal["", "every", "pre no", "loop"] = ""
    broken_by: str = ""
    said: list[bytes] = field(default_factory=list)


_CPU = re.compile(rb"([\d.]+)% CPU use with (\d+) MPI tasks x (\d+|no) OpenMP threads")


def run_of(table: Table) -> Run:
    """The run of a table, with what LAMMPS printed after it."""
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
            performance = {decoded(unit): float(v) for v, unit in pairs if as_float(v) is not None}
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
        loop_time_s=as_float(loop[1]) if loop else None,
        procs=_tasks(loop, cpu, state.tasks) if loop else None,
        steps=int(loop[3]) if loop else None,
        n_atoms=int(loop[4]) if loop else None,
        n_atoms_start=_atoms_at_start(table),
        atoms_changed_by=tuple(dict.fromkeys(state.changing.values())),
        baths=tuple(dict.fromkeys(state.baths.values())),
        lost=state.lost,
        dimension=state.dimension,
        kspace_error=state.kspace.get(b"absolute"),
        kspace_error_relative=state.kspace.get(b"relative"),
        threads=(1 if cpu[3] == b"no" else int(cpu[3])) if cpu else None,
        threaded=state.threaded,
        cpu_use_percent=as_float(cpu[1]) if cpu else None,
        performance=performance,
        timing=timing,
        neighbor_builds=as_int(numbers.get(b"Neighbor list builds")),
        dangerous_builds=as_int(numbers.get(b"Dangerous builds")),
        neighbors_per_atom=as_float(numbers.get(b"Ave neighs/atom", b"")),
        unread=table.unread.count,
        unread_example=decoded(table.unread.first[:200]),
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


def _atoms_at_start(table: Table) -> int | None:
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
        return as_float(found.get(cell, b""))

    row = TimingRow(
        min_s=number(b"min time"),
        avg_s=number(b"avg time"),
        max_s=number(b"max time"),
        varavg=number(b"%varavg"),
        percent=number(b"%total"),
    )
    return {decoded(found[b"Section"]): row}
