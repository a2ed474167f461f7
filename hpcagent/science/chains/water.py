"""From the names of molecules to a simulated box: SMILES, packing, dynamics, analysis, a plot."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from hpcagent.apps.base import App
from hpcagent.apps.chain import artifacts_of, chain
from hpcagent.apps.run import Outcome, Run
from hpcagent.model.contract import Metric
from hpcagent.model.parameter import Float, Int
from hpcagent.science.analysis.rdf import rdf
from hpcagent.science.chains.argon import metric
from hpcagent.science.lammps.contract import lammps
from hpcagent.science.plots import plot_rdf, plot_thermo
from hpcagent.science.structures.box import packmol_box
from hpcagent.science.structures.molecule import smiles_to_xyz

__all__ = ["water_box"]


@lru_cache(maxsize=1)
def _dynamics() -> App:
    return lammps("water_nvt")


@chain(
    name="water_box",
    version="1.0.0",
    deterministic=False,  # of LAMMPS
    parameters={
        "waters": Int(1, 100_000, default=262, description="molecules of water"),
        "ion_pairs": Int(0, 1000, default=1, description="Na+ and Cl-, as many of each"),
        "box": Float(8.0, 500.0, unit="angstrom", default=20.0, description="edge of the cubic box"),
        "temperature": Float(200.0, 700.0, unit="K", default=300.0, description="of the thermostat"),
        "equil_steps": Int(0, 100_000_000, default=500, unit="steps", description="length of the equilibration"),
        "steps": Int(100, 100_000_000, default=1000, unit="steps", description="length of the measured run"),
        "timestep": Float(0.5, 4.0, unit="fs", default=2.0, description="integration step; the water is rigid"),
    },
    metrics={
        "density": Metric(name="density", unit="g/cm^3", description="mass of all molecules over the volume"),
        "mean_temperature": Metric(name="mean_temperature", unit="K", description="mean of the measured run"),
        "pressure": Metric(name="pressure", unit="bar", description="mean of the measured run"),
        "potential_energy": Metric(
            name="potential_energy", unit="meV/atom", description="mean of the measured run"
        ),
        "oo_peak": metric(rdf, "first_peak").model_copy(
            update={"name": "oo_peak", "description": "first maximum of g(r) of oxygen and oxygen"}
        ),
        "coordination_number": metric(rdf, "coordination_number", required=False),
    },
    estimated_runtime_s=60.0,
    failure_modes=("BadSmiles", "NotPacked", "NoExecutable", "LostAtoms"),
    vary=("temperature",),
)
def water_box(
    waters: int,
    ion_pairs: int,
    box: float,
    temperature: float,
    equil_steps: int,
    steps: int,
    timestep: float,
    run: Run,
) -> Outcome:
    """Water and ions from their SMILES, packed into a box, simulated at constant temperature, measured, drawn.

    Rigid SPC/E water (H. J. C. Berendsen et al., J. Phys. Chem. 91, 6269, 1987); the ions' parameters stand in the
    input `water_nvt`.
    """
    kinds = [("O", waters)] + ([("[Na+]", ion_pairs), ("[Cl-]", ion_pairs)] if ion_pairs else [])
    molecules = [smiles_to_xyz(smiles=smiles, seed=0, replicate=0) for smiles, _ in kinds]
    packed = packmol_box(*molecules, counts=",".join(str(n) for _, n in kinds), box=box)
    # Twenty frames at least, for g(r).
    every = max(1, min(50, steps // 20))
    made = _dynamics()(
        packed,
        temperature=temperature,
        equil_steps=equil_steps,
        steps=steps,
        timestep=timestep,
        every=min(10, every),
        dump_every=every,
    )
    around = rdf(made, a="O", b="O", r_max=min(9.0, round(0.49 * box, 2)))
    curve, thermo = plot_rdf(around), plot_thermo(made)
    metrics: dict[str, Any] = {
        "density": packed["density"],
        "mean_temperature": made["temperature"],
        "pressure": made["pressure"],
        "potential_energy": made["potential_energy_mev_per_atom"],
        "oo_peak": around["first_peak"],
    }
    if "coordination_number" in around.result().metrics:
        metrics["coordination_number"] = around["coordination_number"]
    drawn = artifacts_of(run, plot=curve) | {
        f"{name}_thermo": file for name, file in artifacts_of(run, plot=thermo).items()
    }
    return Outcome(metrics=metrics, artifacts=artifacts_of(run, trajectory=made, structure=made) | drawn)
