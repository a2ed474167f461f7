"""Pieces of one leg put together: `run N every M`, `run N pre no` and loops of `jump`.

LAMMPS prints a table for each piece. Where a piece goes on at the step at which the one before it ended, with the
same columns, timestep and `thermo` interval and no command in between that acts on the atoms, the forces or the
integration, the pieces are what one unbroken run would have been, and are measured as one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from hpcagent.science.lammps.log_records import Run

__all__ = ["legs"]


def legs(runs: Sequence[Run]) -> tuple[Run, ...]:
    """The runs of a log with the pieces that follow on from each other put together.

    Args:
        runs: Runs in the order of the log.

    Returns:
        Fewer or as many runs; of one in pieces, `pieces` says how many. Times, steps and counts are sums, speeds
        and CPU use means weighted by time; each is None where a piece does not say it.

    Example:
        >>> from hpcagent.science.lammps.log import parse_log
        >>> legs(parse_log("").runs)
        ()
    """
    groups: list[list[Run]] = []
    for run in runs:
        if run.follows and groups:
            groups[-1].append(run)
        else:
            groups.append([run])
    return tuple(group[0] if len(group) == 1 else _whole(group) for group in groups)


def _whole(pieces: list[Run]) -> Run:
    first, last = pieces[0], pieces[-1]
    return replace(
        last,
        data=_rows(pieces),
        steps=_sum([p.steps for p in pieces]),
        loop_time_s=_sum([p.loop_time_s for p in pieces]),
        n_atoms_start=first.n_atoms_start,
        cpu_use_percent=_mean([p.cpu_use_percent for p in pieces], pieces),
        performance={
            unit: mean
            for unit in last.performance
            if not unit.startswith("hours/")
            and (mean := _mean([p.performance.get(unit) for p in pieces], pieces)) is not None
        },
        timing={},
        neighbor_builds=_counted([p.neighbor_builds for p in pieces], pieces),
        dangerous_builds=_counted([p.dangerous_builds for p in pieces], pieces),
        neighbors_per_atom=_latest([p.neighbors_per_atom for p in pieces]),
        kspace_error=_latest([p.kspace_error for p in pieces]),
        kspace_error_relative=_latest([p.kspace_error_relative for p in pieces]),
        unread=sum(p.unread for p in pieces),
        unread_example=next((p.unread_example for p in pieces if p.unread), ""),
        missing=_sum([p.missing for p in pieces]),
        follows=first.follows,
        broken_by=first.broken_by,
        pieces=len(pieces),
    )


def _rows(pieces: list[Run]) -> NDArray[np.float64]:
    """The rows that one unbroken run prints: each step once, and none at a seam that is not due.

    Even spacing is what the errors of means are estimated by.
    """
    data = np.vstack([pieces[0].data, *(p.data[1:] for p in pieces[1:])])
    steps = np.concatenate([pieces[0]["Step"], *(p["Step"][1:] for p in pieces[1:])])
    every = pieces[-1].every
    if not every:
        return data
    due = steps % every == 0
    due[[0, -1]] = True
    rows: NDArray[np.float64] = data[due]
    return rows


_N = TypeVar("_N", int, float)


def _sum(values: Sequence[_N | None]) -> _N | None:
    known = [v for v in values if v is not None]
    return sum(known[1:], start=known[0]) if len(known) == len(values) else None


def _mean(values: Sequence[float | None], pieces: Sequence[Run]) -> float | None:
    """Mean weighted by the loop times."""
    times = [p.loop_time_s or 0.0 for p in pieces]
    products = _sum([None if v is None else v * t for v, t in zip(values, times, strict=True)])
    total = sum(times)
    return None if products is None or total <= 0 else products / total


def _counted(values: Sequence[int | None], pieces: Sequence[Run]) -> int | None:
    """A count that LAMMPS sets to zero when it sets up a run, and goes on with after `pre no`."""
    following = [*(p.follows for p in pieces[1:]), ""]
    return _sum([v for v, then in zip(values, following, strict=True) if then != "pre no"])


def _latest(values: Sequence[float | None]) -> float | None:
    return next((v for v in reversed(values) if v is not None), None)
