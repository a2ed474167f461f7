"""Thermo rows of a run and of the one that it goes on from, as one run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hpcagent.science.lammps.log_records import Run

__all__ = ["gaps", "stacked", "timed"]


def stacked(first: Run, then: Run, step: int) -> Run | None:
    """A run with the rows up to `step` of the one that it goes on from; None if they do not fit."""
    if first.columns != then.columns or not len(then) or int(then["Step"][0]) != step:
        return None
    data = then.data.copy()
    if "Time" in then:
        # A restart file does not always keep the time: it begins again at 0, or at step * timestep.
        column = then._position("Time")
        data[:, column] += _time_at(first, then, step) - data[0, column]
    if len(first) and int(first["Step"][-1]) >= step:
        data = data[1:]
    return replace(
        then,
        data=np.vstack([first.data, data]),
        n_atoms_start=then.n_atoms_start if first.n_atoms_start is None else first.n_atoms_start,
        atoms_changed_by=tuple(dict.fromkeys((*first.atoms_changed_by, *then.atoms_changed_by))),
        baths=tuple(dict.fromkeys((*first.baths, *then.baths))),
        units=then.units or first.units,
        timestep=then.timestep if then.timestep is not None else first.timestep,
    )


def _time_at(first: Run, then: Run, step: int) -> float:
    """Time at `step`, from the rows before it and the step size of the rows after it."""
    last_step, last_time = float(first["Step"][-1]), float(first["Time"][-1])
    for run in (first, then):
        if len(run) > 1:
            per_step = (run["Time"][-1] - run["Time"][0]) / (run["Step"][-1] - run["Step"][0])
            return last_time + float(per_step) * (step - last_step)
    return last_time + (first.timestep or 0.0) * (step - last_step)


def gaps(run: Run) -> str:
    """Which thermo rows of a run are not there, though they were due, in a clause; empty: none, or nobody knows.

    Example:
        >>> rows = np.array([[0.0], [10.0], [40.0]])
        >>> gaps(Run(("Step",), rows, True, every=10))
        'its log lacks the thermo rows between steps 10 and 40'
    """
    if not run.every or "Step" not in run:
        return ""
    steps = run["Step"]
    wide = np.flatnonzero(np.diff(steps) > run.every)
    if not wide.size:
        return ""
    first = int(wide[0])
    return f"its log lacks the thermo rows between steps {steps[first]:.0f} and {steps[first + 1]:.0f}"


def timed(whole: Run, first: Run, leg: Run, step: int, *, finished: bool) -> Run:
    """The joined run with its length, and the times and counts of both parts where the first one has its own.

    Where it was killed (not `finished`) those of the last part are scaled to the whole.
    """
    last = leg.steps or 1
    steps = step - int(first["Step"][0]) + last
    scale = steps / last

    def of_both(before: float | None, then: float | None) -> float | None:
        if then is None:
            return None
        return before + then if finished and before is not None else then * scale

    builds = of_both(first.neighbor_builds, leg.neighbor_builds)
    dangerous = of_both(first.dangerous_builds, leg.dangerous_builds)
    return replace(
        whole,
        steps=steps,
        loop_time_s=of_both(first.loop_time_s, leg.loop_time_s),
        neighbor_builds=None if builds is None else round(builds),
        dangerous_builds=None if dangerous is None else round(dangerous),
        performance={} if finished else leg.performance,  # LAMMPS's own line is of the last part
    )
