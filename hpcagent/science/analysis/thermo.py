"""Averages over the thermo output of a finished LAMMPS run."""

from __future__ import annotations

from pathlib import Path

from hpcagent.apps.decorator import app
from hpcagent.apps.missing import elsewhere, missing_file
from hpcagent.apps.run import Outcome, Run
from hpcagent.errors import AppFailed
from hpcagent.model.contract import Metric
from hpcagent.model.parameter import Float

__all__ = ["thermo"]


@app(
    name="thermo",
    version="1.0.0",
    inputs=("run",),
    parameters={
        "discard": Float(0.0, 0.95, default=0.0, description="share of the production leg left out at its start")
    },
    metrics={
        "temperature": Metric(name="temperature", unit="K", description="mean temperature"),
        "pressure": Metric(name="pressure", unit="bar", description="mean pressure", required=False),
        "energy_fluctuation_1ps": Metric(
            name="energy_fluctuation_1ps",
            unit="1",
            description="rms(E_total)/rms(E_kinetic) within windows of 1 ps",
            required=False,
        ),
        "energy_fluctuation_run": Metric(
            name="energy_fluctuation_run",
            unit="1",
            description="the same over the whole run, with which it can grow",
            required=False,
        ),
        "energy_fluctuation": Metric(
            name="energy_fluctuation",
            unit="1",
            description="old name of energy_fluctuation_run",
            required=False,
        ),
        "drift_mev_per_atom_ns": Metric(
            name="drift_mev_per_atom_ns", unit="meV/atom/ns", description="fitted slope of E_total", required=False
        ),
        "n_samples": Metric(name="n_samples", unit="1", description="thermo rows used", required=False),
    },
    estimated_runtime_s=0.05,
)
def thermo(discard: float, run: Run) -> Outcome:
    """Mean temperature, pressure and energy conservation of a finished LAMMPS run, with block-averaged errors."""
    from hpcagent.science.lammps.log import read_log
    from hpcagent.science.lammps.metrics import measure

    before = run.upstream[0]
    name = before.get("artifacts", {}).get("log")
    if name is None:
        raise AppFailed(
            f"the input run {before['workdir']} has no LAMMPS log among its artifacts.",
            kind="contract",
            name="NoLog",
        )
    path = Path(before["workdir"]) / name
    if elsewhere(before, path):
        raise missing_file(before, path, "log")
    measured = measure(read_log(path), discard=discard)
    wanted = thermo.contract.metrics
    return Outcome(
        metrics={m.name: measured.values[m.name] for m in wanted if m.name in measured.values},
        units=measured.units,
        uncertainty=measured.uncertainty,
        notes=tuple(measured.notes),
    )
