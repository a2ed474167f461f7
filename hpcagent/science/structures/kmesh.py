"""The mesh of k-points that a structure gets."""

from __future__ import annotations

from typing import Any

from hpcagent.apps.decorator import app
from hpcagent.apps.run import Outcome, Run
from hpcagent.apps.structures import read_structure
from hpcagent.model.contract import Metric
from hpcagent.model.parameter import Float
from hpcagent.science.engines.base import KPOINTS, LEVEL, Level
from hpcagent.science.engines.protocols import settled
from hpcagent.science.engines.registry import engine as engine_of

__all__ = ["k_mesh"]


@app(
    name="k_mesh",
    version="1.0.0",
    inputs=("structure",),
    parameters={name: LEVEL[name] for name in ("engine", *KPOINTS)}
    | {"denser": Float(0.1, 10.0, default=1.0, description="so many times as many points along each vector")},
    metrics={
        f"n{i}": Metric(name=f"n{i}", unit="1", description=f"k-points along the {which} vector")
        for i, which in enumerate(("first", "second", "third"), 1)
    },
    estimated_runtime_s=0.05,
    seeded=False,
    failure_modes=("NoStructure", "BadSettings", "NeedsKpoints"),
)
def k_mesh(engine: str, denser: float, run: Run, **params: Any) -> Outcome:
    """Numbers of k-points for a structure, to keep while it is strained: a mesh that jumps makes energies jump.

    Their product is the parameter `mesh` of the apps with an engine, `8x8x6`. With `denser` numbers above 1 are
    multiplied and rounded up.

    Raises:
        AppFailed: `NoStructure`, `BadSettings`, or `NeedsKpoints`.
    """
    import math

    level, notes = settled(Level(engine=engine, smearing=0.0, **params), read_structure(run), engine_of(engine))
    numbers = [int(word) for word in (level.mesh or "1x1x1").split("x")]
    more = [n if n == 1 else math.ceil(n * denser - 1e-9) for n in numbers]
    return Outcome(metrics={f"n{i}": float(n) for i, n in enumerate(more, 1)}, notes=notes)
