"""Relaxation with a machine-learned potential."""

from __future__ import annotations

from typing import Any

from hpcagent.apps.decorator import app
from hpcagent.apps.run import Outcome, Run
from hpcagent.science.dft.relax import RELAX_FAILURES, RELAX_METRICS, RELAXATION, relax
from hpcagent.science.engines.isolated import run_isolated
from hpcagent.science.engines.task import FILES, GPUS, MACHINE_LEARNED, RESOURCES_FROM_GPUS, SETTINGS

__all__ = ["mlip_relax"]


@app(
    name="mlip_relax",
    version="1.0.0",
    inputs=("structure",),
    parameters=MACHINE_LEARNED | RELAXATION | GPUS,
    metrics=RELAX_METRICS,
    resources_from=RESOURCES_FROM_GPUS,
    settings=SETTINGS,
    files=FILES,
    estimated_runtime_s=30.0,
    seeded=False,
    failure_modes=(*RELAX_FAILURES, "MissingFile", "NoDevice"),
)
def mlip_relax(run: Run, **params: Any) -> Outcome:
    """Relax positions, and the cell if wanted, with a machine-learned potential.

    As `dft_relax`, with the engine `mace` and its `checkpoint` if nothing else is said.
    """
    return run_isolated(relax, run, **params)
