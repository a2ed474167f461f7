"""An app from a Python function: what it takes, which numbers it gives in which units."""

import math
import uuid

import numpy as np

import hpcagent as ha


@ha.app(
    parameters={
        "temperature": ha.Float(300, 500, unit="K"),
        "time": ha.Float(1, 100, unit="min", log=True),
        "catalyst": ha.Choice("none", "Pd"),
    },
    metrics={"yield": "%", "impurity": "%"},
    resources=ha.Resources(walltime_s=60),
    estimated_runtime_s=0.1,
    failure_modes=("Runaway",),
)
def yield_of(temperature, time, catalyst, run: ha.Run):
    """Yield and impurity of two reactions one after the other (first order, Arrhenius), as measured."""
    if temperature > 480 and catalyst == "Pd":
        raise ha.AppFailed(f"runaway at {temperature:.0f} K.", kind="simulation", name="Runaway", repair="colder")
    barrier = 70e3 if catalyst == "none" else 55e3  # J/mol
    k1 = 1e8 * math.exp(-barrier / (8.314 * temperature))  # 1/min
    k2 = 1e9 * math.exp(-85e3 / (8.314 * temperature))
    wanted = k1 / (k2 - k1) * (math.exp(-k1 * time) - math.exp(-k2 * time))
    spoilt = 1 - math.exp(-k1 * time) - wanted
    # Noise of the run's own: others for every point and replicate, the same when a run is done again.
    rng = np.random.default_rng(uuid.UUID(run.execution_id).int)
    return {"yield": 100 * wanted + rng.normal(0, 0.5), "impurity": 100 * spoilt + rng.normal(0, 0.2)}
