"""Which run of a log is measured, and what its rows are of: timestep, times, atoms, energies."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from hpcagent.errors import BadInput
from hpcagent.science.lammps.legs import legs
from hpcagent.science.lammps.log_records import Log, Run
from hpcagent.units import STYLES, factor, unit_style

__all__ = [
    "DISAGREEMENT",
    "PRINTED",
    "SECONDS_PER_DAY",
    "check_discard",
    "discarded_share",
    "dynamics",
    "energies_per_atom",
    "extent",
    "kept_rows",
    "production_run",
    "row_counts",
    "row_times",
    "step_size",
    "times_of",
]

_Array = NDArray[np.float64]


SECONDS_PER_DAY = 86400.0
DISAGREEMENT = 0.02
_DEFAULT_DISCARD = 0.2


def production_run(log: Log, production: int = -1) -> Run | None:
    """The run that is measured.

    Args:
        log: A parsed log.
        production: Index among the complete runs that made steps (minimisations and reruns not counted; pieces
            that follow on from each other, of `run N every M`, `pre no` or a loop of `jump`, are one).

    Returns:
        The run, or None if the log has no such run.
    """
    runs = dynamics(log)
    return runs[production] if -len(runs) <= production < len(runs) else None


def discarded_share(log: Log, discard: float | None) -> float:
    """The share of the production run that is left out: as given, or by default 0.2 of an only run, else 0."""
    if discard is not None:
        return discard
    return _DEFAULT_DISCARD if len(dynamics(log)) == 1 else 0.0


def check_discard(discard: float | None) -> None:
    """Refuse a share of rows to leave out that is none.

    Raises:
        BadInput: It is outside [0, 1).
    """
    if discard is not None and not 0.0 <= discard < 1.0:
        raise BadInput(f"discard={discard} is outside [0, 1).", value=discard)


def dynamics(log: Log) -> list[Run]:
    """Complete runs of dynamics of a log, pieces that follow on from each other as one."""
    return list(legs([r for r in log.runs if r.complete and r.steps and r.kind not in ("minimize", "rerun")]))


def extent(run: Run) -> list[str]:
    """What of a run in pieces is measured, what is not, and what speaks against its rows being all."""
    said = []
    if run.pieces > 1:
        first, last = run["Step"][[0, -1]]
        said.append(
            f"measured over {run.pieces} pieces that follow on from each other with nothing changed in between, "
            f"steps {first:.0f} to {last:.0f}"
        )
    if run.broken_by:
        begun = f" before step {run['Step'][0]:.0f}" if "Step" in run and len(run) else " before it"
        said.append(
            f"of a run in pieces, those{begun} are not measured: {run.broken_by!r} came between, and what was "
            "changed is not one leg"
        )
    return [*said, *run.doubts]


def kept_rows(run: Run, discard: float) -> NDArray[np.bool_]:
    """Rows after the discarded share of the run, by Step where there is one and by row number otherwise."""
    along = run["Step"] if "Step" in run else np.arange(len(run), dtype=np.float64)
    if len(run) == 0:
        return np.zeros(0, dtype=np.bool_)
    kept: NDArray[np.bool_] = along >= along[0] + discard * (along[-1] - along[0])
    return kept


def step_size(run: Run) -> tuple[float | None, str | None]:
    """Timestep in the style's unit of time, and a note if the sources disagree.

    The Time column and LAMMPS's own Performance line are what LAMMPS used; the echoed command can be missed
    (echo off, a library that sets it). They serve when they differ from it by more than their rounding.
    """
    echoed = run.timestep
    said, rounding = _performance_step(run)
    column = _column_step(run)
    if run.timestep_varies:
        # The Performance line is of the timestep that the run ended with.
        return column, (
            "fix dt/reset varies the timestep, and no column Time says by how much; add `time` to thermo_style"
            if column is None
            else "fix dt/reset varies the timestep: `timestep` is its mean"
        )
    if column is not None:
        if echoed is None or abs(column - echoed) > DISAGREEMENT * abs(column):
            return column, None if echoed is None else (
                f"timestep {echoed:g} was echoed, but the Time column advances by {column:g} a step, which is used"
            )
        return echoed, None
    if said is None:
        return echoed, None
    if echoed is None:
        return said, f"the log does not say the timestep; {said:.4g} is taken from the Performance line"
    if abs(said - echoed) > (DISAGREEMENT + rounding) * abs(said):
        return said, (
            f"timestep {echoed:g} was echoed, but LAMMPS's Performance line says {said:.4g}; the latter is used"
        )
    return echoed, None


# Performance prints three decimals.
PRINTED = 0.0005


def _performance_step(run: Run) -> tuple[float | None, float]:
    """Timestep behind the Performance line in the style's unit of time, and its relative rounding error."""
    per_second = run.performance.get("timesteps/s")
    for unit in ("ns/day", "fs/day", "tau/day"):
        rate = run.performance.get(unit)
        if not rate or not per_second or run.units not in STYLES:
            continue
        style = unit_style(run.units)
        if style.reduced != (unit == "tau/day"):
            return None, 0.0
        scale = 1.0 if style.reduced else factor(unit.partition("/")[0], style.time)
        return rate * scale / SECONDS_PER_DAY / per_second, PRINTED / rate + PRINTED / per_second
    return None, 0.0


def _column_step(run: Run) -> float | None:
    """Mean timestep between the first and the last row by the Time column."""
    if "Time" not in run or "Step" not in run or len(run) < 2:
        return None
    steps, times = run["Step"], run["Time"]
    made = steps[-1] - steps[0]
    value = float((times[-1] - times[0]) / made) if made > 0 else math.nan
    # Eight printed digits: late in a long run the difference of two Times can be lost in rounding.
    lost = abs(times[-1]) * 1e-6 > DISAGREEMENT * abs(times[-1] - times[0])
    return value if math.isfinite(value) and value > 0 and not lost else None


def row_times(run: Run) -> _Array | None:
    """(n_rows,) time of each row since the first, in the style's unit of time; None where the log does not say."""
    return times_of(run, step_size(run)[0])


def times_of(run: Run, step_size: float | None) -> _Array | None:
    """(n_rows,) time of each row since the first, in the style's unit of time.

    From Step and the timestep; from the Time column where there is no Step or the timestep varies.
    """
    if "Time" in run and (run.timestep is None or step_size is None or "Step" not in run):
        time = run["Time"]
    elif "Step" in run and step_size is not None:
        time = run["Step"] * step_size
    else:
        return None
    since: _Array = time - time[0] if time.size else time
    return since


def row_counts(run: Run) -> tuple[_Array | None, tuple[str, ...]]:
    """(n_rows,) number of atoms in each row, and what is to be said; None where it changes and no row says it."""
    if "Atoms" in run:
        counts: _Array = run["Atoms"]
        if not np.isfinite(counts).all():
            return None, ("the column Atoms is not finite",)
        if np.ptp(counts) == 0:
            return counts, ()
        return counts, (
            f"the number of atoms changes, from {counts[0]:.0f} to {counts[-1]:.0f}: energies per atom are those "
            "of each row's atoms, and speeds are of a system that changes",
        )
    if run.n_atoms is None:
        return None, ()
    start = run.n_atoms_start
    if run.atoms_changed_by or (start is not None and start != run.n_atoms):
        why = f"by fix {', '.join(run.atoms_changed_by)}" if run.atoms_changed_by else f"from {start}"
        return None, (
            f"the number of atoms may change during the run ({why}; {run.n_atoms} at its end), and no row "
            "says it: nothing per atom; add `atoms` to thermo_style",
        )
    notes: tuple[str, ...] = ()
    if start is None and run.lost != "error":
        what = f"the log says thermo_modify lost {run.lost}" if run.lost else "the log hides commands"
        notes = (
            f"{what}, and does not say how many atoms the run began with: some may be lost without a word; add "
            "`atoms` to thermo_style",
        )
    return np.full(len(run), float(run.n_atoms)), notes


def energies_per_atom(run: Run) -> tuple[bool, str | None]:
    """Whether energies are printed per atom, and a note if that is not what was echoed.

    Kinetic energy and temperature tell it apart (a factor of N); the echoed `thermo_modify norm` or the style's
    default serves where they are not both printed.
    """
    echoed = bool(run.normalized)
    counts = run["Atoms"] if "Atoms" in run else np.full(len(run), float(run.n_atoms or 0))
    if run.units not in STYLES or "KinEng" not in run or "Temp" not in run:
        return echoed, None
    kinetic, temperature = run["KinEng"], run["Temp"]
    usable = np.isfinite(kinetic) & np.isfinite(temperature) & (kinetic > 0) & (temperature > 0) & (counts > 0)
    if not usable.any() or counts[usable].min() < 20:
        return echoed, None
    boltzmann = unit_style(run.units).boltzmann
    whole = 0.5 * run.dimension * (counts[usable] - 1) * boltzmann * temperature[usable]
    # 1 for the whole system, 1/N per atom; constraints change it by less than sqrt(N).
    ratio = float(np.median(kinetic[usable] / whole))
    seen = ratio < 1.0 / math.sqrt(float(np.median(counts[usable])))
    if seen == echoed or run.normalized is None:
        return seen, None
    return seen, f"energies are printed {'per atom' if seen else 'for the whole system'}, by KinEng against Temp"
