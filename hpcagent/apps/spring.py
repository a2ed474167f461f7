"""A simulation that needs no files, no network and no engine: a particle on a spring, step by step.

Velocity Verlet (Swope et al., J. Chem. Phys. 76 (1982) 637) of m x'' = -k x. What it must give is known: with
w = sqrt(k/m) and a timestep h the positions are those of an oscillator whose frequency W fulfils
cos(W h) = 1 - (w h)^2 / 2, so it is stable for w h < 2 only.
"""

from __future__ import annotations

import math
import random

from hpcagent.apps.decorator import app
from hpcagent.apps.run import Outcome, Run
from hpcagent.errors import AppFailed
from hpcagent.model.contract import Metric
from hpcagent.model.parameter import Float, Int

__all__ = ["oscillator"]

# CODATA 2018: eV in J, atomic mass constant in kg, Boltzmann's constant in eV/K.
EV_J = 1.602176634e-19
U_KG = 1.66053906660e-27
KB_EV = 8.617333262e-5
# (eV/angstrom^2)/u in 1/fs^2, and u (angstrom/fs)^2 in eV.
PER_FS2 = EV_J / 1e-20 / U_KG * 1e-30
KINETIC_EV = U_KG * 1e10 / EV_J
LARGEST_A = 1e6


@app(
    name="oscillator",
    version="1.1.0",
    parameters={
        "max_steps": Int(1, 10_000_000, default=1000, description="steps to make"),
        "timestep": Float(0.001, 1000.0, unit="fs", log=True, default=1.0, description="of one step"),
        "mass": Float(0.1, 1000.0, unit="u", log=True, default=39.948, description="of the particle"),
        "spring": Float(1e-4, 1e4, unit="eV/angstrom^2", log=True, default=1.0, description="its stiffness"),
        "temperature": Float(
            0.0, 1e5, unit="K", default=300.0, description="the start is drawn at; at 0: 0.1 angstrom, at rest"
        ),
    },
    metrics={
        "steps_completed": Metric(name="steps_completed", unit="1", noise=0.0, description="steps that were made"),
        "position": Metric(name="position", unit="angstrom", description="at the end"),
        "velocity": Metric(name="velocity", unit="angstrom/fs", description="at the end"),
        "energy": Metric(name="energy", unit="eV", description="kinetic and potential, at the end"),
        "energy_error": Metric(
            name="energy_error",
            unit="1",
            direction="minimize",
            description="largest distance of the energy from that at the start over all steps, as a share of it",
        ),
        "simulated_time": Metric(name="simulated_time", unit="fs", noise=0.0, description="steps x timestep"),
    },
    estimated_runtime_s=0.01,
    failure_modes=("Unstable",),
    vary=("timestep", "max_steps"),
)
def oscillator(
    max_steps: int, timestep: float, mass: float, spring: float, temperature: float, run: Run
) -> Outcome:
    """A particle on a spring by velocity Verlet, from a start that the seed draws."""
    rng = random.Random(f"{run.seed}/{run.replicate}")
    if temperature > 0:
        x = rng.gauss(0.0, math.sqrt(KB_EV * temperature / spring))
        v = rng.gauss(0.0, math.sqrt(KB_EV * temperature / mass / KINETIC_EV))
    else:
        x, v = 0.1, 0.0
    pull = spring / mass * PER_FS2

    def energy() -> float:
        return 0.5 * mass * v * v * KINETIC_EV + 0.5 * spring * x * x

    start = energy()
    worst = 0.0
    a = -pull * x
    for step in range(1, int(max_steps) + 1):
        v += 0.5 * timestep * a
        x += timestep * v
        a = -pull * x
        v += 0.5 * timestep * a
        if not abs(x) < LARGEST_A:
            limit = 2 / math.sqrt(pull)
            raise AppFailed(
                f"step {step}: the particle is {x:.3g} angstrom away; a timestep of {timestep:g} fs is not stable "
                f"(w h = {math.sqrt(pull) * timestep:.3g}, allowed: below 2).",
                name="Unstable",
                repair=f"a timestep below {limit:.3g} fs",
                reached={"steps_completed": step - 1},
            )
        # Every step: a period of the spring that divides a stride would show the same phase each time.
        worst = max(worst, abs(energy() - start))
    return Outcome(
        metrics={
            "steps_completed": float(max_steps),
            "position": x,
            "velocity": v,
            "energy": energy(),
            "energy_error": worst / start,
            "simulated_time": max_steps * timestep,
        }
    )
