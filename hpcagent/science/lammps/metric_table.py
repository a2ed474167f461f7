"""The metrics of a LAMMPS run: unit, what each is, how it is computed, and in which `units` styles it exists."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hpcagent.units import unit_style

__all__ = ["METRICS", "MetricInfo", "metric_units"]


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
