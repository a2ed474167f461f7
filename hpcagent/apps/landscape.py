"""A deterministic stand-in for a simulation: for tests, benchmarks and trying the library out.

The landscape is that of the timestep problem in miniature. With s = (steps per unit) `x`, a pure-speed
knob `y` and a `style`:

    value   = 100 x (1 - (y - 0.4)^2) f(style),   f(plain) = 1, f(tuned) = 1.25, f(heavy) = 0.8
    error   = (x / 0.6)^2

so that max(value) subject to error <= 1 is at x = 0.6, y = 0.4, style = tuned: value = 75.
"""

from __future__ import annotations

import math
import random
import time

from hpcagent.apps.decorator import app
from hpcagent.apps.run import Outcome, Run
from hpcagent.errors import AppFailed
from hpcagent.model.contract import Metric
from hpcagent.model.parameter import Choice, Float

__all__ = ["synthetic"]

FACTOR = {"plain": 1.0, "tuned": 1.25, "heavy": 0.8}


@app(
    name="synthetic",
    version="1.0.0",
    parameters={
        "x": Float(0.02, 1.0, log=True, default=0.1, description="like a timestep: value ~ x, error ~ x^2"),
        "y": Float(0.0, 1.0, default=0.8, description="a pure-speed knob, best at 0.4"),
        "style": Choice("plain", "tuned", "heavy", default="plain", description="factors 1, 1.25, 0.8"),
        "noise": Float(0.0, 1.0, default=0.0, description="relative standard deviation of value and error"),
        "fail_above": Float(
            0.0, 2.0, default=2.0, description="runs with x above this fail (as if atoms were lost)"
        ),
        "run_time_s": Float(0.0, 3600.0, unit="s", default=0.0, description="how long a run takes"),
        "spread": Float(0.0, 3.0, default=0.0, description="sigma of the lognormal spread of the run time"),
    },
    metrics={
        "value": Metric(name="value", unit="1", direction="maximize", description="to be made large"),
        "error": Metric(name="error", unit="1", direction="minimize", description="1 at x = 0.6"),
    },
    estimated_runtime_s=0.01,
    vary=("x", "y", "style"),  # not what a run costs, nor how it fails
)
def synthetic(
    x: float,
    y: float,
    style: str,
    noise: float,
    fail_above: float,
    run_time_s: float,
    spread: float,
    run: Run,
) -> Outcome:
    """A deterministic landscape with settable run time, seeded noise and failures by region."""
    rng = random.Random(f"{run.seed}/{run.replicate}/{x}/{y}/{style}")
    if run_time_s:
        time.sleep(run_time_s * math.exp(spread * rng.gauss(0, 1) - spread**2 / 2))
    if x > fail_above:
        raise AppFailed(
            f"x={x:g} is above fail_above={fail_above:g}.",
            name="SyntheticCrash",
            repair="stay below fail_above",
        )
    value = 100 * x * (1 - (y - 0.4) ** 2) * FACTOR[style] * (1 + noise * rng.gauss(0, 1))
    error = (x / 0.6) ** 2 * (1 + noise * rng.gauss(0, 1))
    return Outcome(
        metrics={"value": value, "error": error},
        uncertainty={"value": noise * abs(value), "error": noise * abs(error)} if noise else {},
    )
