"""Energy, forces and pressure of a structure as it is."""

from __future__ import annotations

from typing import Any

from hpcagent.apps.decorator import app
from hpcagent.apps.run import Outcome, Run
from hpcagent.model.contract import Metric
from hpcagent.model.parameter import Choice
from hpcagent.science.engines.base import LEVEL, Level
from hpcagent.science.engines.isolated import FAILURE_MODES, run_isolated
from hpcagent.science.engines.task import (
    CALCULATION,
    FILES,
    RANKS,
    RESOURCES_FROM,
    SETTINGS,
    calculation,
    keep_structure,
)
from hpcagent.science.engines.watched import attached

__all__ = ["dft_energy"]


@app(
    name="dft_energy",
    version="1.0.0",
    inputs=("structure",),
    parameters=LEVEL
    | {"forces": Choice("yes", "no", default="yes", description="whether forces and pressure are wanted")}
    | RANKS,
    metrics=CALCULATION
    | {"converged": Metric(name="converged", unit="1", description="1: a run that does not converge has failed")},
    resources_from=RESOURCES_FROM,
    settings=SETTINGS,
    files=FILES,
    estimated_runtime_s=10.0,
    seeded=False,
    failure_modes=(*FAILURE_MODES, "NonNumeric"),
)
def dft_energy(run: Run, **params: Any) -> Outcome:
    """Energy, forces and pressure of a structure at one level of theory.

    The SCF is watched: one that does not converge is tried again as the engine knows how, at most `repairs` times,
    and `scf.json` says what happened in each step. A run whose SCF does not converge in the end has failed
    (`NotConverged`); an energy of an unfinished SCF is never returned.

    Energies are total energies on the engine's own scale: only differences at the same level mean something.
    Artifacts: `structure` (with energy and forces), `scf`.
    """
    return run_isolated(_energy, run, **params)


def _energy(run: Run, *, forces: str, **params: Any) -> Outcome:
    atoms, watch = attached(run, Level.of(params, run.settings))
    try:
        metrics, notes = calculation(atoms, watch, forces=forces == "yes")
    finally:
        files = watch.close()
    return Outcome(
        metrics=metrics | {"converged": 1},
        artifacts=keep_structure(run, atoms) | files,
        notes=(*watch.remarks, *notes),
        **watch.made_with,
    )
