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
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hpcagent.moved import moved
from hpcagent.science.lammps.log_records import Log, Run
from hpcagent.science.lammps.metric_table import METRICS, metric_units
from hpcagent.science.lammps.production import (
    DISAGREEMENT,
    PRINTED,
    SECONDS_PER_DAY,
    check_discard,
    discarded_share,
    dynamics,
    energies_per_atom,
    extent,
    kept_rows,
    production_run,
    row_counts,
    step_size,
    times_of,
)
from hpcagent.statistics.timeseries import (
    block_average,
    conserved,
    fitted_slope,
    fluctuation_ratio,
    windowed_fluctuation,
)
from hpcagent.units import STYLES, UnitStyle, factor, unit_style

__all__ = ["Measured", "measure"]

_Array = NDArray[np.float64]


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
    check_discard(discard)
    run = production_run(log, production)
    if run is None:
        count = len(dynamics(log))
        why = f"the log holds {count} complete runs that made steps, not number {production}"
        return Measured(notes=(why if count else "the log holds no complete run that made steps",))
    return _Measuring(run, discarded_share(log, discard)).all()


# Of solid and liquid argon rows up to 0.1 ps apart give the metric of every step within 1 %, at 0.5 ps 10 % more.
_COARSE = 0.1 * (1 + 1e-6)
# Intervals of time are one where they differ by less: times are printed with few digits.
_UNEVEN = 1e-3
# The energy over the run against that within windows: a bounded difference to the shadow energy gives about 1.
_WALKED = 1.5


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
        self.kept = kept_rows(run, discard)
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
                self._put_speed("tau_per_day", simulated / run.loop_time_s * SECONDS_PER_DAY)
            return
        self._put("simulated_ps", simulated * factor(self.style.time, "ps"))
        if not (run.loop_time_s and timed):
            return
        rate = simulated * factor(self.style.time, "ns") / run.loop_time_s * SECONDS_PER_DAY
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
        if said and not self.run.timestep_varies and abs(rate - said) > DISAGREEMENT * said + PRINTED:
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
        if self.run.baths and "Econserve" not in self.run:
            self.notes.append(
                f"fix {', '.join(self.run.baths)} changes the total energy, and thermo_style does not print "
                "`econserve`, which the dynamics conserve: no energy_fluctuation and no drift"
            )
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
        times = times_of(self.run, self.step_size)
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
        times = times_of(self.run, self.step_size)
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


__getattr__ = moved(
    __name__,
    {
        "MetricInfo": "hpcagent.science.lammps.metric_table",
        "reduce_column": "hpcagent.science.lammps.reduced",
        "reduced": "hpcagent.science.lammps.reduced",
        "row_times": "hpcagent.science.lammps.production",
    },
)
