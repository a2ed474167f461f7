"""Chains of LAMMPS runs with a Lennard-Jones potential: melting, quenching, diffusion. Argon by default."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from hpcagent.apps.base import App
from hpcagent.apps.chain import artifacts_of, chain
from hpcagent.apps.run import Outcome, Run
from hpcagent.model.contract import Metric
from hpcagent.model.parameter import Float, Int
from hpcagent.science.analysis.msd import msd
from hpcagent.science.analysis.rdf import rdf
from hpcagent.science.lammps.contract import lammps
from hpcagent.science.plots import plot_msd, plot_rdf
from hpcagent.science.structures.crystal import build_crystal
from hpcagent.units import factor

__all__ = ["argon_diffusion", "melt_quench"]

ARGON_AMU = 39.948
"""Mass of an argon atom in atomic mass units (CIAAW)."""

SIZE = {
    "cells": Int(2, 100, default=5, description="cubic cells of four atoms along each edge"),
    "density": Float(0.1, 3.0, unit="g/cm^3", default=1.374, description="mass density (Rahman's argon: 1.374)"),
    "timestep": Float(0.0005, 0.02, unit="ps", log=True, default=0.005, description="integration step"),
    "produce_steps": Int(100, 100_000_000, default=4000, unit="steps", description="length of the measured run"),
}


def metric(of: App, name: str, *, required: bool = True) -> Metric:
    """A metric of another app as the chain's own."""
    return of.contract.metric(name).model_copy(update={"required": required})


@lru_cache(maxsize=8)
def _stage(name: str) -> App:
    return lammps(name)


def lattice_constant(density: float) -> float:
    """Edge of the cubic cell of four argon atoms, in angstrom, at a density in g/cm^3.

    Example:
        >>> round(lattice_constant(1.374), 3)
        5.78
    """
    return float((4 * ARGON_AMU * factor("amu", "g") / density) ** (1 / 3) * factor("cm", "angstrom"))


def _crystal(cells: int, density: float) -> Any:
    return build_crystal(
        name="Ar", lattice="fcc", a=round(lattice_constant(density), 6), nx=cells, ny=cells, nz=cells,
        seed=0, replicate=0,
    )  # fmt: skip


@chain(
    name="melt_quench",
    version="1.0.0",
    deterministic=False,  # of LAMMPS
    parameters={
        "temperature": Float(1.0, 1000.0, unit="K", default=40.0, description="temperature after the quench"),
        "melt_temperature": Float(10.0, 2000.0, unit="K", default=200.0, description="temperature of the melt"),
        "melt_steps": Int(100, 10_000_000, default=2000, unit="steps", description="length of melting"),
        "quench_rate": Float(
            0.01, 1000.0, unit="K/ps", log=True, default=10.0, description="cooling from the melt to temperature"
        ),
        "settle_steps": Int(
            100, 10_000_000, default=1000, unit="steps", description="at temperature, before measuring"
        ),
    }
    | SIZE
    | {"density": Float(0.1, 3.0, unit="g/cm^3", default=1.6, description="mass density, kept throughout")},
    metrics={
        "first_peak": metric(rdf, "first_peak"),
        "first_peak_height": metric(rdf, "first_peak_height"),
        "coordination_number": metric(rdf, "coordination_number", required=False),
        "diffusion": metric(msd, "diffusion"),
        "mean_temperature": Metric(name="mean_temperature", unit="K", description="mean of the measured run"),
        "pressure": Metric(name="pressure", unit="bar", description="mean of the measured run"),
        "potential_energy": Metric(
            name="potential_energy", unit="meV/atom", description="mean of the measured run", direction="minimize"
        ),
    },
    estimated_runtime_s=20.0,
    failure_modes=("LostAtoms", "NoExecutable", "FramesTooFarApart"),
    vary=("temperature", "quench_rate"),
)
def melt_quench(
    temperature: float,
    melt_temperature: float,
    melt_steps: int,
    quench_rate: float,
    settle_steps: int,
    cells: int,
    density: float,
    timestep: float,
    produce_steps: int,
    run: Run,
) -> Outcome:
    """A crystal is built, minimised, melted, quenched at a rate, and measured: structure and diffusion.

    At constant volume. The quench is a straight line in temperature; the measured run is at constant energy.
    """
    rest = _stage("lj_minimize")(_crystal(cells, density), seed=0, replicate=0)
    bring = _stage("lj_equilibrate")
    melt = bring(rest, t_start=melt_temperature, t_stop=melt_temperature, steps=melt_steps, timestep=timestep)
    quench_steps = max(100, round((melt_temperature - temperature) / quench_rate / timestep))
    cold = bring(melt, t_start=melt_temperature, t_stop=temperature, steps=quench_steps, timestep=timestep)
    settled = bring(cold, t_start=temperature, t_stop=temperature, steps=settle_steps, timestep=timestep)
    made = _stage("lj_produce")(settled, steps=produce_steps, timestep=timestep)
    structure, motion = rdf(made), msd(made)
    drawn = plot_rdf(structure)
    metrics: dict[str, Any] = {
        "first_peak": structure["first_peak"],
        "first_peak_height": structure["first_peak_height"],
        "diffusion": motion["diffusion"],
        "mean_temperature": made["temperature"],
        "pressure": made["pressure"],
        "potential_energy": made["potential_energy_mev_per_atom"],
    }
    if "coordination_number" in structure.result().metrics:
        metrics["coordination_number"] = structure["coordination_number"]
    return Outcome(
        metrics=metrics,
        artifacts=artifacts_of(run, trajectory=made, structure=made, rdf=structure, plot=drawn),
    )


@chain(
    name="argon_diffusion",
    version="1.0.0",
    deterministic=False,  # of LAMMPS
    parameters={
        "temperature": Float(60.0, 500.0, unit="K", default=94.4, description="temperature aimed at"),
        "melt_temperature": Float(
            100.0, 2000.0, unit="K", default=250.0, description="at which the crystal is melted"
        ),
        "melt_steps": Int(100, 10_000_000, default=1000, unit="steps", description="length of melting"),
        "settle_steps": Int(
            100, 10_000_000, default=3000, unit="steps", description="at temperature, before measuring"
        ),
        "viscosity": Float(
            0.0, 100.0, unit="mPa*s", default=0.0, description="for the finite-size correction; 0: none"
        ),
    }
    | SIZE,
    metrics={
        "diffusion": metric(msd, "diffusion"),
        "diffusion_corrected": metric(msd, "diffusion_corrected", required=False),
        "mean_temperature": Metric(name="mean_temperature", unit="K", description="mean of the measured run"),
        "exponent": metric(msd, "exponent"),
        "pressure": Metric(name="pressure", unit="bar", description="mean of the measured run"),
        "first_peak": metric(rdf, "first_peak"),
    },
    estimated_runtime_s=15.0,
    failure_modes=("LostAtoms", "NoExecutable", "FramesTooFarApart"),
    vary=("temperature",),
)
def argon_diffusion(
    temperature: float,
    melt_temperature: float,
    melt_steps: int,
    settle_steps: int,
    viscosity: float,
    cells: int,
    density: float,
    timestep: float,
    produce_steps: int,
    run: Run,
) -> Outcome:
    """Self-diffusion of a Lennard-Jones liquid: melted, brought to temperature, followed at constant energy.

    A. Rahman, Phys. Rev. 136, A405 (1964), found 2.43e-5 cm^2/s for argon at 94.4 K and 1.374 g/cm^3.
    """
    bring = _stage("lj_equilibrate")
    melt = bring(
        _crystal(cells, density),
        t_start=melt_temperature,
        t_stop=melt_temperature,
        steps=melt_steps,
        timestep=timestep,
    )
    settled = bring(melt, t_start=temperature, t_stop=temperature, steps=settle_steps, timestep=timestep)
    made = _stage("lj_produce")(settled, steps=produce_steps, timestep=timestep)
    motion, structure = msd(made, viscosity=viscosity), rdf(made)
    drawn = plot_msd(motion)
    metrics: dict[str, Any] = {
        "diffusion": motion["diffusion"],
        "mean_temperature": made["temperature"],
        "exponent": motion["exponent"],
        "pressure": made["pressure"],
        "first_peak": structure["first_peak"],
    }
    if viscosity:
        metrics["diffusion_corrected"] = motion["diffusion_corrected"]
    return Outcome(
        metrics=metrics,
        artifacts=artifacts_of(run, trajectory=made, msd=motion, plot=drawn),
    )
