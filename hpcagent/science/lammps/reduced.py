"""One number from a thermo column, with its standard error."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from hpcagent.errors import BadInput, nearest
from hpcagent.science.lammps.log_records import Run
from hpcagent.science.lammps.production import check_discard, kept_rows, step_size, times_of
from hpcagent.statistics.reductions import REDUCTIONS
from hpcagent.statistics.timeseries import block_average, fitted_slope

__all__ = ["reduce_column", "reduced"]

_WAYS = [how for how in REDUCTIONS if how != "sum"]


def reduce_column(
    run: Run,
    column: str,
    how: Literal["mean", "std", "last", "first", "min", "max", "slope"] | str,
    discard: float = 0.0,
) -> float:
    """One number from a thermo column.

    Args:
        run: A run of a log.
        column: Header, thermo keyword or alias.
        how: `slope` is the least-squares slope per unit of time of the style; `std` is the population's.
        discard: Share of the rows' span left out at the beginning, in [0, 1).

    Returns:
        The number, in the unit of the column; NaN if a value used is not finite, there is no row, or (slope)
        the time cannot be told.

    Raises:
        BadInput: No such column, no such `how`, or `discard` out of range.
    """
    return reduced(run, column, how, discard)[0]


def reduced(run: Run, column: str, how: str, discard: float = 0.0) -> tuple[float, float]:
    """As `reduce_column`, with the standard error.

    Those of a mean and of a slope are of `block_average` and `fitted_slope`. The error of a standard deviation s
    follows from that of the mean of (x - <x>)^2: error(s^2) / (2 s). Single rows
    (`first`, `last`, `min`, `max`) have none: it is NaN.

    Raises:
        BadInput: As `reduce_column`.
    """
    check_discard(discard)
    if column not in run:
        raise BadInput(f"the run has no thermo column {column!r}; {nearest(column, run.columns)}", value=column)
    if how not in _WAYS and how != "slope":
        raise BadInput(f"{how!r} is no way to reduce a column; {nearest(how, [*_WAYS, 'slope'])}", value=how)
    values = run[column]
    kept = kept_rows(run, discard)
    values = values[kept]
    if values.size == 0 or not np.isfinite(values).all():
        return math.nan, math.nan
    if how == "slope":
        time = times_of(run, step_size(run)[0])
        return (math.nan, math.nan) if time is None else fitted_slope(time[kept], values)
    if how == "mean":
        return block_average(values)
    value = float(REDUCTIONS[how](values))
    if how != "std" or value == 0.0:
        return value, math.nan
    return value, block_average((values - values.mean()) ** 2)[1] / (2.0 * value)
