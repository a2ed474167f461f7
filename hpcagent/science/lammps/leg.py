"""The one leg of an input run that is analysed: its file, units, times, numbers of atoms and energies.

Every app that reads a LAMMPS log takes it from here, and by the functions of `hpcagent.science.lammps.production`
the metrics are decided too, so that no two of them tell another timestep or other energies of one log.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcagent.apps.missing import missing_file
from hpcagent.errors import AppFailed
from hpcagent.science.lammps.log import read_log
from hpcagent.science.lammps.log_records import Run
from hpcagent.science.lammps.production import (
    energies_per_atom,
    extent,
    production_run,
    row_counts,
    row_times,
    step_size,
)
from hpcagent.units import STYLES, UnitStyle, unit_style

__all__ = ["Leg", "leg_of"]

_Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Leg:
    """The last complete run of a log that made steps.

    Attributes:
        source: Name of the file.
        run: As the log has it.
        style: Its units.
        times: (n_rows,) time since the first row, in `style.time`; None where the log does not say it.
        counts: (n_rows,) number of atoms; None where it is not known.
        per_atom: Whether energies are printed per atom.
        notes: What is to be said of it.
    """

    source: str
    run: Run
    style: UnitStyle
    times: _Array | None
    counts: _Array | None
    per_atom: bool
    notes: tuple[str, ...]

    def energy(self, column: str) -> _Array | None:
        """(n_rows,) energy of the whole system in `style.energy`; None where it is not printed or not known."""
        if column not in self.run:
            return None
        if not self.per_atom:
            return self.run[column]
        return None if self.counts is None else self.run[column] * self.counts


def leg_of(upstream: Mapping[str, Any]) -> Leg:
    """The production run of an input run's log.

    Args:
        upstream: `workdir` and `artifacts`, with the `log` among them.

    Raises:
        AppFailed: `NoThermo`: no log; `MissingFile`; `BadThermo`: no complete run that made steps; `NoUnits`.
    """
    name = (upstream.get("artifacts") or {}).get("log")
    if name is None:
        raise AppFailed(
            "the input run has no LAMMPS log among its artifacts.",
            kind="contract",
            name="NoThermo",
            repair="pass a run of molecular dynamics with LAMMPS",
        )
    path = Path(upstream["workdir"]) / name
    if not path.is_file():
        raise missing_file(upstream, path, "log")
    run = production_run(read_log(path))
    if run is None or len(run) == 0:
        raise AppFailed(
            f"{path.name} holds no complete run that made steps.",
            kind="contract",
            name="BadThermo",
            repair="run at least one step",
        )
    if run.units not in STYLES:
        raise AppFailed(
            f"the units of {path.name} are not known: it does not echo its `units`.",
            kind="contract",
            name="NoUnits",
            repair="write `units metal` (or another) into the input script, and keep `echo log` on",
        )
    counts, of_counts = row_counts(run)
    per_atom, of_energies = energies_per_atom(run)
    notes = (*extent(run), step_size(run)[1], *of_counts, of_energies)
    return Leg(
        source=path.name,
        run=run,
        style=unit_style(run.units),
        times=row_times(run),
        counts=counts,
        per_atom=per_atom,
        notes=tuple(note for note in notes if note),
    )
