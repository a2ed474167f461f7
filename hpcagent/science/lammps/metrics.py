"""Metrics of a LAMMPS run: speed, energy conservation, averages; each with a unit, many with an error.

A metric that cannot be computed is absent, never zero, and a note says why.

Energy conservation has no single number (P. Eastman and V. S. Pande, "Energy conservation as a measure of
simulation accuracy", bioRxiv 10.1101/083055). `energy_fluctuation_1ps` tells a timestep that is too long soonest,
and says the same of short and long runs; the slopes tell a drift, over long runs; `energy_fluctuation_run` holds
both, and grows with the run where the energy walks; the ppm forms divide by an energy whose zero is arbitrary,
and are left out where it is small.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hpcagent.errors import BadInput, nearest
from hpcagent.science.lammps.legs import legs
from hpcagent.science.lammps.log_records import Log, Run
from hpcagent.statistics.timeseries import (
    block_average,
    conserved,
    fitted_slope,
    fluctuation_ratio,
    windowed_fluctuation,
)
from hpcagent.units import STYLES, UnitStyle, factor, unit_style

__all__ = [
    "METRICS",
    "Measured",
    "MetricInfo",
    "discarded_share",
    "energies_per_atom",
    "extent",
    "measure",
    "metric_units",
    "production_run",
    "reduce_column",
    "reduced",
    "row_counts",
    "row_times",
    "step_size",
]

_Array = NDArray[np.float64]
_SECONDS_PER_DAY = 86400.0
_DISAGREEMENT = 0.02
_DEFAULT_DISCARD = 0.2


@dataclass(frozen=True, slots=True)
class MetricInfo:
    """One entry of the catalogue.

    Attributes:
        unit: Unit; the word `time` stands for the unit of time of the style.
        description: What it is.
        formula: How it is computed, or where it is read.
        styles: In which `units` styles it exists: all, those with physical units, or `lj` alone.
    """

    unit: str
    description: str
    formula: str
    styles: Literal["all", "physical", "lj"] = "all"


@dataclass(frozen=True, slots=True)
class Measured:
    """Metrics of one run.

    Attributes:
        values: Finite numbers by name.
        uncertainty: Standard errors in the same units, where known.
        units: Unit of every value.
        notes: Why something is missing, and what looks odd.
    """

    values: dict[str, float] = field(default_factory=dict)
    uncertainty: dict[str, float] = field(default_factory=dict)
    units: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


_LOOP = "the `Loop time` line"
_SLOPE = "b of the least-squares line E = a + b t; the error knows of random walks"
_WITHIN = "sqrt(<var(E)> / <var(K)>)"

METRICS: dict[str, MetricInfo] = {
    "ns_per_day": MetricInfo(
        "ns/day", "simulated time per day of wall time", "steps * timestep / loop time", "physical"
    ),
    "ns_per_day_cpu": MetricInfo(
        "ns/day",
        "simulated time per day of CPU time: the speed the run would have had with its cores to itself",
        "ns_per_day / (CPU use / (100 % * threads that compute forces))",
        "physical",
    ),
    "tau_per_day": MetricInfo(
        "tau/day", "simulated reduced time per day of wall time", "steps * timestep / loop time", "lj"
    ),
    "tau_per_day_cpu": MetricInfo(
        "tau/day",
        "simulated reduced time per day of CPU time: the speed the run would have had with its cores to itself",
        "tau_per_day / (CPU use / (100 % * threads that compute forces))",
        "lj",
    ),
    "timesteps_per_s": MetricInfo("timesteps/s", "steps per second of wall time", "steps / loop time"),
    "timesteps_per_s_cpu": MetricInfo(
        "timesteps/s",
        "steps per second of CPU time: the speed the run would have had with its cores to itself",
        "timesteps_per_s / (CPU use / (100 % * threads that compute forces))",
    ),
    "cpu_use_percent": MetricInfo("%", "CPU use per MPI task", "the `% CPU use` line"),
    "loop_time_s": MetricInfo("s", "wall time of the production leg", _LOOP),
    "neighbor_builds": MetricInfo("1", "neighbour list builds", "`Neighbor list builds`"),
    "neighbor_builds_per_step": MetricInfo("1", "neighbour list builds per step", "neighbor_builds / steps"),
    "dangerous_builds": MetricInfo(
        "1", "builds that may have come too late; absent when LAMMPS did not check", "`Dangerous builds`"
    ),
    "unsafe_builds": MetricInfo(
        "1",
        "builds that were not shown to be in time: the dangerous ones, or all where LAMMPS did not check",
        "`Dangerous builds`, else `Neighbor list builds`",
    ),
    "n_atoms": MetricInfo("1", "number of atoms at the end", _LOOP),
    "kspace_force_error_mev_per_angstrom": MetricInfo(
        "meV/angstrom",
        "RMS error of the forces by kspace_style's own estimate",
        "`estimated absolute RMS force accuracy`",
        "physical",
    ),
    "kspace_force_error_reduced": MetricInfo(
        "epsilon/sigma",
        "RMS error of the forces by kspace_style's own estimate",
        "`estimated absolute RMS force accuracy`",
        "lj",
    ),
    "kspace_force_error_relative": MetricInfo(
        "1",
        "the same against the force between two elementary charges at a distance of one unit of length",
        "`estimated relative force accuracy`",
    ),
    "timestep": MetricInfo("time", "timestep", "echoed `timestep`, or the style's default"),
    "simulated_ps": MetricInfo("ps", "simulated time of the production leg", "steps * timestep", "physical"),
    "simulated_tau": MetricInfo("tau", "simulated time of the production leg", "steps * timestep", "lj"),
    "sampled_ps": MetricInfo("ps", "time between the first and last row used", "t_last - t_first", "physical"),
    "sampled_tau": MetricInfo("tau", "time between the first and last row used", "t_last - t_first", "lj"),
    "n_samples": MetricInfo("1", "thermo rows used", "rows of the production leg without the discarded share"),
    "energy_fluctuation_1ps": MetricInfo(
        "1",
        "fluctuation of the conserved energy against that of the kinetic energy, within windows of 1 ps",
        f"{_WITHIN}, over all windows of 1 ps",
        "physical",
    ),
    "energy_fluctuation_1tau": MetricInfo(
        "1",
        "fluctuation of the conserved energy against that of the kinetic energy, within windows of 1 tau",
        f"{_WITHIN}, over all windows of 1 tau",
        "lj",
    ),
    "energy_fluctuation_run": MetricInfo(
        "1",
        "the same over the whole run: it grows with the run's length where the energy walks",
        "rms(E - <E>) / rms(K - <K>)",
    ),
    "energy_fluctuation": MetricInfo("1", "old name of `energy_fluctuation_run`", "rms(E - <E>) / rms(K - <K>)"),
    "drift_mev_per_atom_ns": MetricInfo(
        "meV/atom/ns", "signed drift of the conserved energy per atom", f"b / N; {_SLOPE}", "physical"
    ),
    "drift_epsilon_per_atom_tau": MetricInfo(
        "epsilon/atom/tau", "signed drift of the conserved energy per atom", f"b / N; {_SLOPE}", "lj"
    ),
    "drift_kt_per_dof_ns": MetricInfo(
        "kT/dof/ns", "signed drift per degree of freedom", f"b / (2 <K>), as 2 K = f k_B T; {_SLOPE}", "physical"
    ),
    "drift_kt_per_dof_tau": MetricInfo(
        "kT/dof/tau", "signed drift per degree of freedom", f"b / (2 <K>), as 2 K = f k_B T; {_SLOPE}", "lj"
    ),
    "drift_per_kinetic_energy_per_ns": MetricInfo(
        "1/ns", "signed drift against the kinetic energy", f"b / <K>; {_SLOPE}", "physical"
    ),
    "drift_per_kinetic_energy_per_tau": MetricInfo(
        "1/tau", "signed drift against the kinetic energy", f"b / <K>; {_SLOPE}", "lj"
    ),
    "drift_ppm": MetricInfo(
        "ppm", "size of the fitted drift over the rows used, of |<E>|", "|b| (t_last - t_first) / |<E>|"
    ),
    "drift_ppm_kinetic": MetricInfo(
        "ppm", "size of the fitted drift over the rows used, of <K>", "|b| (t_last - t_first) / <K>"
    ),
    "drift_ppm_last_first": MetricInfo(
        "ppm", "size of the change from first to last row used, of |E_first|", "|E_last - E_first| / |E_first|"
    ),
    "rms_ppm": MetricInfo("ppm", "fluctuation of the conserved energy, of |<E>|", "rms(E - <E>) / |<E>|"),
    "temperature": MetricInfo("K", "mean temperature", "block average of Temp", "physical"),
    "temperature_reduced": MetricInfo("epsilon/kB", "mean reduced temperature", "block average of Temp", "lj"),
    "pressure": MetricInfo("bar", "mean pressure", "block average of Press", "physical"),
    "pressure_reduced": MetricInfo("epsilon/sigma^3", "mean reduced pressure", "block average of Press", "lj"),
    "density": MetricInfo("g/cm^3", "mean density", "block average of Density", "physical"),
    "density_reduced": MetricInfo("mass/sigma^3", "mean reduced density", "block average of Density", "lj"),
    "potential_energy_mev_per_atom": MetricInfo(
        "meV/atom", "mean potential energy per atom", "block average of PotEng / N", "physical"
    ),
    "kinetic_energy_mev_per_atom": MetricInfo(
        "meV/atom", "mean kinetic energy per atom", "block average of KinEng / N", "physical"
    ),
    "total_energy_mev_per_atom": MetricInfo(
        "meV/atom",
        "mean total energy per atom; no error where it is conserved",
        "block average of TotEng / N",
        "physical",
    ),
    "potential_energy_epsilon_per_atom": MetricInfo(
        "epsilon/atom", "mean potential energy per atom", "block average of PotEng / N", "lj"
    ),
    "kinetic_energy_epsilon_per_atom": MetricInfo(
        "epsilon/atom", "mean kinetic energy per atom", "block average of KinEng / N", "lj"
    ),
    "total_energy_epsilon_per_atom": MetricInfo(
        "epsilon/atom",
        "mean total energy per atom; no error where it is conserved",
        "block average of TotEng / N",
        "lj",
    ),
}


def metric_units(units: str) -> dict[str, str]:
    """The metrics that exist in a `units` style, with their units.

    Args:
        units: A LAMMPS style, e.g. `metal`.

    Returns:
        Unit by metric name, in the order of `METRICS`.

    Raises:
        BadInput: LAMMPS has no such style.

    Example:
        >>> metric_units("real")["timestep"], "tau_per_day" in metric_units("real")
        ('fs', False)
    """
    style = unit_style(units)
    shown = ("all", "lj") if style.reduced else ("all", "physical")
    found = {}
    for name, info in METRICS.items():
        if info.styles not in shown or (name == "density" and style.density is None):
            continue
        found[name] = style.time if info.unit == "time" else info.unit
    return found


def production_run(log: Log, production: int = -1) -> Run | None:
    """The run that is measured.

    Args:
        log: A parsed log.
        production: Index among the complete runs that made steps (minimisations and reruns not counted; pieces
            that follow on from each other, of `run N every M`, `pre no` or a loop of `jump`, are one).

    Returns:
        The run, or None if the log has no such run.
    """
    runs = _dynamics(log)
    return runs[production] if -len(runs) <= production < len(runs) else None


def measure(log: Log, *, production: int = -1, discard: float | None = None) -> Measured:
    """Every metric that the production run of a log gives.

    Args:
        log: A parsed log.
        production: Index among the complete runs that made steps; the last by default.
        discard: Share of the run's simulated time left out at its beginning, in [0, 1). By default 0.2 if no
            other run came before (it holds the start-up), else 0.

    Returns:
        Values in the units of `metric_units`, with standard errors and notes. Empty, with a note, when the log
        holds no such run.

    Raises:
        BadInput: `discard` is outside [0, 1).

    Example:
        >>> from hpcagent.science.lammps.log import parse_log
        >>> measure(parse_log("")).notes
        ('the log holds no complete run that made steps',)
    """
    _check_discard(discard)
    run = production_run(log, production)
    if run is None:
        count = len(_dynamics(log))
        why = f"the log holds {count} complete runs that made steps, not number {production}"
        return Measured(notes=(why if count else "the log holds no complete run that made steps",))
    return _Measuring(run, discarded_share(log, discard)).all()


def discarded_share(log: Log, discard: float | None) -> float:
    """The share of the production run that is left out: as given, or by default 0.2 of an only run, else 0."""
    if discard is not None:
        return discard
    return _DEFAULT_DISCARD if len(_dynamics(log)) == 1 else 0.0


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
    _check_discard(discard)
    if column not in run:
        raise BadInput(f"the run has no thermo column {column!r}; {nearest(column, run.columns)}", value=column)
    if how not in _REDUCTIONS and how != "slope":
        raise BadInput(f"{how!r} is no way to reduce a column; {nearest(how, [*_REDUCTIONS, 'slope'])}", value=how)
    values = run[column]
    kept = _kept(run, discard)
    values = values[kept]
    if values.size == 0 or not np.isfinite(values).all():
        return math.nan, math.nan
    if how == "slope":
        time = _times(run, step_size(run)[0])
        return (math.nan, math.nan) if time is None else fitted_slope(time[kept], values)
    if how == "mean":
        return block_average(values)
    value = float(_REDUCTIONS[how](values))
    if how != "std" or value == 0.0:
        return value, math.nan
    return value, block_average((values - values.mean()) ** 2)[1] / (2.0 * value)


_REDUCTIONS: dict[str, Callable[[_Array], float]] = {
    "mean": lambda x: float(x.mean()),
    "std": lambda x: float(x.std()),
    "last": lambda x: float(x[-1]),
    "first": lambda x: float(x[0]),
    "min": lambda x: float(x.min()),
    "max": lambda x: float(x.max()),
}


def _check_discard(discard: float | None) -> None:
    if discard is not None and not 0.0 <= discard < 1.0:
        raise BadInput(f"discard={discard} is outside [0, 1).", value=discard)


def _dynamics(log: Log) -> list[Run]:
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


def _kept(run: Run, discard: float) -> NDArray[np.bool_]:
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
        if echoed is None or abs(column - echoed) > _DISAGREEMENT * abs(column):
            return column, None if echoed is None else (
                f"timestep {echoed:g} was echoed, but the Time column advances by {column:g} a step, which is used"
            )
        return echoed, None
    if said is None:
        return echoed, None
    if echoed is None:
        return said, f"the log does not say the timestep; {said:.4g} is taken from the Performance line"
    if abs(said - echoed) > (_DISAGREEMENT + rounding) * abs(said):
        return said, (
            f"timestep {echoed:g} was echoed, but LAMMPS's Performance line says {said:.4g}; the latter is used"
        )
    return echoed, None


# Performance prints three decimals.
_PRINTED = 0.0005
# Of solid and liquid argon rows up to 0.1 ps apart give the metric of every step within 1 %, at 0.5 ps 10 % more.
_COARSE = 0.1 * (1 + 1e-6)
# Intervals of time are one where they differ by less: times are printed with few digits.
_UNEVEN = 1e-3
# The energy over the run against that within windows: a bounded difference to the shadow energy gives about 1.
_WALKED = 1.5


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
        return rate * scale / _SECONDS_PER_DAY / per_second, _PRINTED / rate + _PRINTED / per_second
    return None, 0.0


def _column_step(run: Run) -> float | None:
    """Mean timestep between the first and the last row by the Time column."""
    if "Time" not in run or "Step" not in run or len(run) < 2:
        return None
    steps, times = run["Step"], run["Time"]
    made = steps[-1] - steps[0]
    value = float((times[-1] - times[0]) / made) if made > 0 else math.nan
    # Eight printed digits: late in a long run the difference of two Times can be lost in rounding.
    lost = abs(times[-1]) * 1e-6 > _DISAGREEMENT * abs(times[-1] - times[0])
    return value if math.isfinite(value) and value > 0 and not lost else None


def row_times(run: Run) -> _Array | None:
    """(n_rows,) time of each row since the first, in the style's unit of time; None where the log does not say."""
    return _times(run, step_size(run)[0])


def _times(run: Run, step_size: float | None) -> _Array | None:
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


def _even(time: _Array) -> slice:
    """Rows without a first or last one off the grid of the others: a run prints both, whatever `thermo` says."""
    apart = np.diff(time)
    if apart.size < 3:
        return slice(None)
    first, last = np.abs(apart[[0, -1]] - np.median(apart)) > _UNEVEN * np.median(apart)
    return slice(int(first), time.size - int(last))


class _Measuring:
    """Takes one production run apart; each method adds the metrics of one kind."""

    def __init__(self, run: Run, discard: float) -> None:
        self.run = run
        self.values: dict[str, float] = {}
        self.uncertainty: dict[str, float] = {}
        self.notes: list[str] = [*extent(run)]
        # Means of which the rows are too few, or too correlated, to know an error.
        self.unsure: list[str] = []
        self.step_size, note = step_size(run)
        if note:
            self.notes.append(note)
        self.kept = _kept(run, discard)
        self.atoms = self._atoms()
        self.per_atom, note = energies_per_atom(run)
        if note:
            self.notes.append(note)
        self.style = unit_style(run.units) if run.units in STYLES else None
        if self.style is None:
            self.notes.append("the log does not say its units style: nothing that has units is computed")

    def all(self) -> Measured:
        self._speed()
        self._counts()
        style = self.style
        if style is not None:
            self._averages(style)
            self._conservation(style)
        if self.unsure:
            self.notes.append(
                f"no error is stated of {', '.join(self.unsure)}: the rows used hold too few correlation times; "
                "run longer"
            )
        known = metric_units(style.name) if style else {n: i.unit for n, i in METRICS.items()}
        values = {n: v for n, v in self.values.items() if n in known}
        for name in [n for n, v in values.items() if not math.isfinite(v)]:
            self.notes.append(f"{name} is not finite")
            del values[name]
        return Measured(
            values=values,
            uncertainty={n: u for n, u in self.uncertainty.items() if n in values and math.isfinite(u)},
            units={n: known[n] for n in values},
            notes=tuple(self.notes),
        )

    def _put(self, name: str, value: float, error: float = math.nan) -> None:
        self.values[name] = value
        self.uncertainty[name] = error

    def _atoms(self) -> _Array | None:
        """(n_kept,) number of atoms in each row used; None, with a note, where it changes and no row says it."""
        counts, notes = row_counts(self.run)
        self.notes += notes
        return None if counts is None else counts[self.kept]

    def _fixed_atoms(self) -> int | None:
        """The number of atoms where it stays the same in all rows used."""
        if self.atoms is None or not self.atoms.size or np.ptp(self.atoms) > 0:
            return None
        return int(self.atoms[0])

    def _put_mean(self, name: str, series: _Array, scale: float) -> None:
        mean, error = block_average(series)
        self._put(name, mean * scale, error * scale)
        if math.isnan(error) and np.ptp(series) > 0:
            self.unsure.append(name)

    # -- speed

    def _speed(self) -> None:
        run = self.run
        if run.loop_time_s is not None:
            self._put("loop_time_s", run.loop_time_s)
        if run.cpu_use_percent is not None:
            self._put("cpu_use_percent", run.cpu_use_percent)
        timed = bool(run.steps and run.loop_time_s and run.loop_time_s > 0)
        if run.steps and run.loop_time_s and timed:
            self._put_speed("timesteps_per_s", run.steps / run.loop_time_s)
        if self.style is None:
            return
        if self.step_size is None:
            self.notes.append("the log does not say the timestep: no simulated time, no speed per time, no drift")
            return
        self._put("timestep", self.step_size)
        simulated = (run.steps or 0) * self.step_size
        if self.style.reduced:
            self._put("simulated_tau", simulated)
            if run.loop_time_s and timed:
                self._put_speed("tau_per_day", simulated / run.loop_time_s * _SECONDS_PER_DAY)
            return
        self._put("simulated_ps", simulated * factor(self.style.time, "ps"))
        if not (run.loop_time_s and timed):
            return
        rate = simulated * factor(self.style.time, "ns") / run.loop_time_s * _SECONDS_PER_DAY
        self._put_speed("ns_per_day", rate)
        self._compare_with_performance(rate)

    def _put_speed(self, name: str, rate: float) -> None:
        """A speed by wall time, and what it would have been with the run's cores to itself."""
        self._put(name, rate)
        use = self.run.cpu_use_percent
        # A run of microseconds is below the clock's resolution, and says 0 %.
        if use:
            working = (self.run.threads or 1) if self.run.threaded else 1
            self._put(f"{name}_cpu", rate / min(use / 100.0 / working, 1.0))

    def _compare_with_performance(self, rate: float) -> None:
        said = self.run.performance.get("ns/day")
        if said and not self.run.timestep_varies and abs(rate - said) > _DISAGREEMENT * said + _PRINTED:
            self.notes.append(f"ns/day is {rate:.6g} by steps, timestep and loop time, but LAMMPS says {said:g}")

    def _counts(self) -> None:
        run = self.run
        if run.n_atoms is not None:
            self._put("n_atoms", run.n_atoms)
        if run.neighbor_builds is not None:
            self._put("neighbor_builds", run.neighbor_builds)
            if run.steps:
                self._put("neighbor_builds_per_step", run.neighbor_builds / run.steps)
        if run.dangerous_builds is not None:
            self._put("dangerous_builds", run.dangerous_builds)
            self._put("unsafe_builds", run.dangerous_builds)
        else:
            if run.neighbor_builds is not None:
                self._put("unsafe_builds", run.neighbor_builds)
            self.notes.append("LAMMPS did not report dangerous builds")
        self._put("n_samples", int(self.kept.sum()))
        if run.kspace_error_relative is not None:
            self._put("kspace_force_error_relative", run.kspace_error_relative)
        if run.kspace_error is not None and self.style is not None:
            if self.style.reduced:
                self._put("kspace_force_error_reduced", run.kspace_error)
            else:
                scale = factor(self.style.force, "meV/angstrom")
                self._put("kspace_force_error_mev_per_angstrom", run.kspace_error * scale)

    # -- averages

    def _column(self, name: str) -> _Array | None:
        """Rows used of a column; None, with a note if it is there, when a value is not finite."""
        if name not in self.run:
            return None
        values: _Array = self.run[name][self.kept]
        bad = int((~np.isfinite(values)).sum())
        if bad:
            note = f"{bad} of {values.size} values of {name} are not finite"
            if note not in self.notes:
                self.notes.append(note)
            return None
        return values if values.size else None

    def _averages(self, style: UnitStyle) -> None:
        if self.run.dimension == 2 and ("Press" in self.run or "Density" in self.run):
            self.notes.append(
                "in two dimensions LAMMPS's pressure and density are per area: the units given here are those "
                f"times {style.distance}"
            )
        suffix = "_reduced" if style.reduced else ""
        for column, metric, unit in (
            ("Temp", "temperature", style.temperature),
            ("Press", "pressure", style.pressure),
            ("Density", "density", style.density),
        ):
            values = self._column(column)
            name = metric + suffix
            if values is not None and unit is not None:
                scale = factor(unit, METRICS[name].unit)
                self._put_mean(name, values, scale)
        if self.atoms is None or not (self.atoms > 0).all():
            return
        scale = 1.0 if style.reduced else factor(style.energy, "meV")
        name = "{}_energy_epsilon_per_atom" if style.reduced else "{}_energy_mev_per_atom"
        for column, which in (("PotEng", "potential"), ("KinEng", "kinetic"), ("TotEng", "total")):
            energy = self._energy(column, style)
            if energy is not None and which == "total" and self._is_conserved(energy, style):
                self._put(name.format(which), float((energy / self.atoms).mean()) * scale)
            elif energy is not None:
                self._put_mean(name.format(which), energy / self.atoms, scale)

    def _is_conserved(self, total: _Array, style: UnitStyle) -> bool:
        atoms = self._fixed_atoms()
        kinetic = self._kinetic(style, atoms) if atoms else None
        return kinetic is not None and conserved(total, kinetic)

    # -- energy of the whole system, in the style's unit

    def _energy(self, column: str, style: UnitStyle) -> _Array | None:
        values = self._column(column)
        atoms = self.atoms
        if values is None or atoms is None or not (atoms > 0).all():
            return None
        return values * atoms if self.per_atom else values

    def _kinetic(self, style: UnitStyle, atoms: int) -> _Array | None:
        kinetic = self._energy("KinEng", style)
        if kinetic is not None or "KinEng" in self.run:
            return kinetic
        total, potential = self._energy("TotEng", style), self._energy("PotEng", style)
        if total is not None and potential is not None:
            return total - potential
        temperature = self._column("Temp")
        if temperature is None or atoms < 2:
            return None
        return 0.5 * self.run.dimension * (atoms - 1) * style.boltzmann * temperature

    def _conserved(self, style: UnitStyle) -> _Array | None:
        """What the dynamics conserve: Econserve where it is printed (thermostats), else the total energy."""
        if "Econserve" in self.run:
            return self._energy("Econserve", style)
        if "TotEng" in self.run:
            return self._energy("TotEng", style)
        potential, kinetic = self._energy("PotEng", style), self._energy("KinEng", style)
        return potential + kinetic if potential is not None and kinetic is not None else None

    # -- conservation

    def _conservation(self, style: UnitStyle) -> None:
        atoms = self._fixed_atoms()
        if atoms is None and self.run.n_atoms:
            self.notes.append("the number of atoms is not the same in all rows: no conservation of energy")
            return
        energy = self._conserved(style)
        if energy is None or not atoms:
            self.notes.append("no total energy to measure its conservation by")
            return
        kinetic = self._kinetic(style, atoms)
        if energy.size < 2:
            self.notes.append(f"{energy.size} thermo row in the production leg is too few for a drift")
            return
        if kinetic is not None:
            self._fluctuation(style, energy, kinetic)
        mean_kinetic = float(kinetic.mean()) if kinetic is not None else None
        drift = self._drift(style, energy, mean_kinetic, atoms)
        self._parts_per_million(energy, mean_kinetic, atoms, drift)

    def _fluctuation(self, style: UnitStyle, energy: _Array, kinetic: _Array) -> None:
        # Without an error: an energy that walks has another ratio for each length, and a run cannot tell that it
        # does not (one error stated so covered 38 % of twenty runs of solid argon).
        over_all, _ = fluctuation_ratio(energy, kinetic)
        if not math.isfinite(over_all):
            self.notes.append("kinetic energy does not fluctuate: no energy_fluctuation_run")
            return
        for name in ("energy_fluctuation_run", "energy_fluctuation"):
            self._put(name, over_all)
        name = "energy_fluctuation_1tau" if style.reduced else "energy_fluctuation_1ps"
        times = _times(self.run, self.step_size)
        if times is None:
            return
        even = _even(times[self.kept])
        rows = self._rows_of_window(style, name, times[self.kept][even])
        if rows is None:
            return
        within, error = windowed_fluctuation(energy[even], kinetic[even], rows)
        if not math.isfinite(within):
            self.notes.append(f"kinetic energy does not fluctuate within any window: no {name}")
            return
        self._put(name, within, error)
        if over_all > _WALKED * within:
            window = name.rpartition("_")[2]
            self.notes.append(
                f"the conserved energy walks: it fluctuates by {over_all:.2g} of the kinetic energy over this "
                f"run, by {within:.2g} within {window}; energy_fluctuation_run grows with the length of the "
                f"run, so gate by {name}"
            )

    def _rows_of_window(self, style: UnitStyle, name: str, time: _Array) -> float | None:
        """Rows in a window of 1 ps (1 tau); None, with a note, where those at these times cannot fill one."""
        window = 1.0 if style.reduced else factor("ps", style.time)
        span = float(time[-1] - time[0])
        interval = span / (time.size - 1)
        if not interval > 0 or float(np.ptp(np.diff(time))) > _UNEVEN * interval:
            self.notes.append(f"the rows are not at equal intervals of time: no {name}")
        elif span < window * (1 - 1e-6):
            self.notes.append(f"the rows used span {span:.3g} {style.time}, less than a window: no {name}")
        elif interval > 0.5 * window * (1 + 1e-6):
            self.notes.append(
                f"the rows are {interval:.3g} {style.time} apart, more than half a window: no {name}; print them "
                "more often (`thermo`)"
            )
        else:
            if interval > _COARSE * window:
                self.notes.append(
                    f"the rows are {interval:.3g} {style.time} apart, which hides what is faster: {name} leans "
                    f"towards energy_fluctuation_run; print {1 / _COARSE:.0f} rows or more in a window (`thermo`)"
                )
            return window / interval + 1.0
        return None

    def _drift(
        self, style: UnitStyle, energy: _Array, mean_kinetic: float | None, atoms: int
    ) -> tuple[float, float] | None:
        """Fitted change over the rows used (slope times duration) with its error, in the unit of energy."""
        times = _times(self.run, self.step_size)
        if times is None:
            return None
        time = times[self.kept]
        slope, error = fitted_slope(time, energy)
        duration = float(time[-1] - time[0])
        if not math.isfinite(slope) or duration <= 0:
            self.notes.append("time does not advance between the rows: no drift")
            return None
        if style.reduced:
            per_time, energy_scale = 1.0, 1.0
            names = ("drift_epsilon_per_atom_tau", "drift_kt_per_dof_tau", "drift_per_kinetic_energy_per_tau")
            self._put("sampled_tau", duration)
        else:
            per_time, energy_scale = factor("ns", style.time), factor(style.energy, "meV")
            names = ("drift_mev_per_atom_ns", "drift_kt_per_dof_ns", "drift_per_kinetic_energy_per_ns")
            self._put("sampled_ps", duration * factor(style.time, "ps"))
        per_atom = per_time * energy_scale / atoms
        self._put(names[0], slope * per_atom, error * per_atom)
        if mean_kinetic is not None and mean_kinetic > 0:
            # LAMMPS's Temp is 2 K / (k_B f), f the degrees of freedom in two or three dimensions less those
            # that are constrained (SHAKE, rigid bodies): k_B T f needs no count of ours.
            thermal = 2.0 * mean_kinetic
            self._put(names[1], slope * per_time / thermal, error * per_time / thermal)
            self._put(names[2], slope * per_time / mean_kinetic, error * per_time / mean_kinetic)
        return slope * duration, error * duration

    def _parts_per_million(
        self, energy: _Array, mean_kinetic: float | None, atoms: int, drift: tuple[float, float] | None
    ) -> None:
        if drift is not None and mean_kinetic is not None and mean_kinetic > 0:
            self._put("drift_ppm_kinetic", 1e6 * abs(drift[0]) / mean_kinetic, 1e6 * drift[1] / mean_kinetic)
        mean = abs(float(energy.mean()))
        # N k T from <K> = d/2 (N - 1) k T in d dimensions.
        freedom = 0.5 * self.run.dimension * max(atoms - 1, 1)
        thermal = mean_kinetic * atoms / freedom if mean_kinetic is not None else None
        if thermal is None or mean < thermal or energy[0] == 0.0:
            why = "kinetic energy is unknown" if thermal is None else "|<E>| < N k T, so they would show its zero"
            self.notes.append(f"drift_ppm, drift_ppm_last_first and rms_ppm are left out: {why}")
            return
        if drift is not None:
            self._put("drift_ppm", 1e6 * abs(drift[0]) / mean, 1e6 * drift[1] / mean)
        self._put("drift_ppm_last_first", 1e6 * abs(float(energy[-1] - energy[0]) / float(energy[0])))
        self._put("rms_ppm", 1e6 * float(energy.std()) / mean)
