"""What a run says of its trajectory, which the file does not: units, the timestep, steps between frames."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcagent.apps.bounded import read_fields
from hpcagent.apps.missing import elsewhere, missing_file
from hpcagent.errors import AppFailed
from hpcagent.science.lammps.log_records import Log
from hpcagent.science.lammps.production import step_size

__all__ = ["Said", "timestep_of_log"]


class Said:
    """What the log or the protocol (`md.json`) of a run says: units, the timestep, steps between frames."""

    def __init__(self, upstream: Mapping[str, Any]) -> None:
        self._upstream = upstream

    @functools.cached_property
    def log(self) -> Log | None:
        """The run's log; None: it has none."""
        from hpcagent.science.lammps.log import read_log

        name = (self._upstream.get("artifacts") or {}).get("log")
        path = Path(self._upstream.get("workdir") or ".") / str(name)
        if name and elsewhere(self._upstream, path):
            raise missing_file(self._upstream, path, "log")  # it says the units of the trajectory
        return read_log(path) if name and path.is_file() else None

    def symbols(self) -> list[str] | None:
        """Elements of the run's structure, in the order of its atoms."""
        from hpcagent.apps.structures import structure_of

        name = (self._upstream.get("artifacts") or {}).get("structure")
        path = Path(self._upstream.get("workdir") or ".") / str(name)
        if name and elsewhere(self._upstream, path):
            raise missing_file(self._upstream, path, "structure")
        try:
            return list(structure_of(self._upstream).get_chemical_symbols())
        except (AppFailed, KeyError):
            return None

    def interval(self) -> tuple[float | None, int]:
        """Timestep in ps and steps between frames of a run of ASE's molecular dynamics (`md.json`)."""
        artifacts = self._upstream.get("artifacts") or {}
        path = Path(self._upstream.get("workdir") or ".") / artifacts.get("protocol", "md.json")
        if "protocol" in artifacts and elsewhere(self._upstream, path):
            raise missing_file(self._upstream, path, "protocol")
        if not self._upstream.get("workdir") or not path.is_file():
            return None, 1
        said = read_fields(path)
        step = said.get("timestep_fs")
        return None if step is None else float(step) * 1e-3, max(int(said.get("frames_every") or 1), 1)


def timestep_of_log(log: Log, first: int, last: int) -> float | None:
    """Timestep in the log's unit of time, if the runs that made these steps had one and the same.

    That of each run is `hpcagent.science.lammps.production.step_size`'s, as in its metrics.

    Looked for from the end: steps may have been counted anew (`reset_timestep`), which a dump does not survive.
    """
    sizes: set[float | None] = set()
    covered = last
    for leg in reversed([r for r in log.runs if len(r) and "Step" in r and r.kind not in ("minimize", "rerun")]):
        start = float(leg["Step"][0])
        end = start + leg.steps if leg.complete and leg.steps else math.inf
        if start >= covered > first or end < covered:
            continue
        # Without an echoed one it may change during the run (`fix dt/reset`).
        sizes.add(None if leg.timestep is None else step_size(leg)[0])
        covered = int(start)
        if start <= first:
            return sizes.pop() if len(sizes) == 1 else None
    return None
