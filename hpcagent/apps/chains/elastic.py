"""Elastic constants: the relaxed cell, strained both ways in each direction."""

from __future__ import annotations

from typing import Any

from hpcagent.apps.analysis.elastic import elastic_constants
from hpcagent.apps.build.deform import deform
from hpcagent.apps.chain import artifacts_of, chain, metrics_of
from hpcagent.apps.chains.levels import level_of, own_settings
from hpcagent.apps.dft.relax import RELAXATION, dft_relax
from hpcagent.apps.engines.base import LEVEL
from hpcagent.apps.engines.task import FILES, RANKS, SETTINGS
from hpcagent.apps.run import Outcome, Run
from hpcagent.model.space import Choice, Float

__all__ = ["elastic"]


@chain(
    name="elastic",
    version="1.0.0",
    inputs=("structure",),
    parameters=LEVEL
    | RANKS
    | {
        "symmetry": Choice(
            "cubic", "none", default="cubic", description="of the crystal; cubic needs 4 strains, none 12"
        ),
        "strain": Float(1e-5, 0.05, log=True, default=0.005, description="largest strain, in both directions"),
        "fmax": RELAXATION["fmax"],
        "max_steps": RELAXATION["max_steps"],
    },
    metrics={m.name: m for m in elastic_constants.contract.metrics},
    settings=SETTINGS,
    files=FILES,
    estimated_runtime_s=600.0,
    seeded=False,
    failure_modes=(*elastic_constants.contract.failure_modes, "NotRelaxed", "NotConverged"),
)
def elastic(
    structure: Any, *, symmetry: str, strain: float, fmax: float, max_steps: int, run: Run, **params: Any
) -> Outcome:
    """Elastic constants of a crystal: relaxed with its cell, strained, atoms relaxed in each cell, fitted.

    Needs an engine with stresses. For a cubic crystal the strains are e1 and e4, else all six, each with both
    signs.
    """
    relaxed = dft_relax.with_settings(**own_settings(run.settings))
    level = level_of(params) | {"fmax": fmax, "max_steps": max_steps}
    at_rest = relaxed(structure, cell="shape_and_volume", **level)
    names = ("e1", "e4") if symmetry == "cubic" else tuple(f"e{i}" for i in range(1, 7))
    strains: list[dict[str, Any]] = [{name: sign * strain} for name in names for sign in (-1, 1)]
    strained = [relaxed(deform(at_rest, **e), cell="fixed", **level) for e in strains]
    fit = elastic_constants(at_rest, *strained, symmetry=symmetry)
    metrics: dict[str, Any] = {name: fit[name] for name in metrics_of(fit)}
    return Outcome(
        metrics=metrics,
        artifacts=artifacts_of(run, structure=at_rest),
    )
