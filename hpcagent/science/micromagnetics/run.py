"""Micromagnetic simulations as apps: hysteresis loops, and the magnetisation in time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcagent.apps.decorator import app
from hpcagent.apps.packages import versions_of
from hpcagent.apps.run import Outcome, Run
from hpcagent.errors import AppFailed
from hpcagent.model.contract import Metric
from hpcagent.model.parameter import Choice, Float, Int, Parameter
from hpcagent.science.engines.isolated import in_child
from hpcagent.science.micromagnetics.body import Body, Grains, direction, grid, made
from hpcagent.science.micromagnetics.loop import Branch, Loop, descend, loop_of
from hpcagent.science.micromagnetics.material import MU0, Material, material_at
from hpcagent.science.micromagnetics.relax import perturbed
from hpcagent.science.micromagnetics.solver import ENGINES, solver
from hpcagent.science.plots import can_draw, drawing

__all__ = ["MAGNET", "dynamics", "hysteresis", "magnetization_dynamics", "simulate_micromagnetics"]

_Array = NDArray[np.float64]
_NM = 1e-9
_NS = 1e-9
_KUZMIN = "temperature_law == 'kuzmin'"
_GRAINS = "microstructure_model == 'voronoi'"


def _angle(low: float, high: float, description: str, default: float | None = None) -> Parameter:
    return Float(low, high, unit="deg", default=default, description=description)


def _towards(what: str, name: str) -> dict[str, Parameter]:
    return {
        f"{name}_polar": _angle(0.0, 180.0, f"angle of {what} to z"),
        f"{name}_azimuth": _angle(-360.0, 360.0, f"angle of {what} in the plane xy, from x to y"),
    }


MAGNET: dict[str, Parameter] = {
    "microstructure_model": Choice(
        "single_crystal",
        "voronoi",
        default="single_crystal",
        description="one easy axis, or grains (Voronoi cells around random points) with an axis each",
    ),
    "form": Choice(
        "block", "ellipsoid", "cylinder", default="block", description="form in the box; cylinder: along z"
    ),
    "size_x": Float(0.01, 1e6, unit="nm", log=True, description="edge of the body's box along x"),
    "size_y": Float(0.01, 1e6, unit="nm", log=True, description="edge of the body's box along y"),
    "size_z": Float(0.01, 1e6, unit="nm", log=True, description="edge of the body's box along z"),
    "cell": Float(
        0.01, 1e6, unit="nm", log=True, description="longest edge of a cell; at most the exchange length"
    ),
    "saturation_magnetization": Float(
        0.001, 1e4, unit="kA/m", log=True, description="Ms at the temperature constants_at"
    ),
    "exchange_stiffness": Float(
        1e-4, 1e4, unit="pJ/m", log=True, description="exchange stiffness A at the temperature constants_at"
    ),
    "anisotropy": Float(
        -1e6,
        1e6,
        unit="kJ/m^3",
        description="uniaxial anisotropy K1 at the temperature constants_at; negative: an easy plane",
    ),
    "axis_polar": _angle(0.0, 180.0, "angle of the easy axis (of the grains' mean one) to z", 0.0),
    "axis_azimuth": _angle(-360.0, 360.0, "angle of the easy axis in the plane xy, from x to y", 0.0),
    "grain_size": Float(
        0.01, 1e6, unit="nm", log=True, description="cube root of a grain's mean volume", when=_GRAINS
    ),
    "axis_spread": Float(
        0.0,
        90.0,
        unit="deg",
        description="half-angle of the cone in which the grains' easy axes lie evenly; 90: all directions",
        when=_GRAINS,
    ),
    "grain_coupling": Float(
        0.0, 1.0, description="exchange across grain boundaries over that inside of grains", when=_GRAINS
    ),
    "temperature": Float(0.0, 1e4, unit="K", description="of the material; moments do not fluctuate"),
    "constants_at": Float(0.0, 1e4, unit="K", description="temperature at which the material constants hold"),
    "temperature_law": Choice(
        "none",
        "kuzmin",
        default="none",
        description="none: the constants are those at the temperature; kuzmin: Ms(T) by Kuz'min's law, A as its "
        "square, K1 as its cube",
    ),
    "curie_temperature": Float(1.0, 1e4, unit="K", description="Curie temperature", when=_KUZMIN),
    "curve_shape": Float(
        0.0, 2.5, description="s of Kuz'min's law, of the material: Fe 0.35, Co 0.11, Ni 0.15", when=_KUZMIN
    ),
    "curve_power": Float(
        1.6, 10.0, description="p of Kuz'min's law, of the material: Fe 4, Co and Ni 2.5", when=_KUZMIN
    ),
    "tolerance": Float(
        1e-10, 1e-2, unit="T", log=True, default=1e-6, description="largest torque |m x B| of a state at rest"
    ),
    "max_steps": Int(10, 10_000_000, default=200_000, description="steps of one minimisation or of the dynamics"),
    "engine": Choice(*ENGINES, default="own", description="our own solver, or magnum.np in a process of its own"),
}
"""Parameters of a body and its material."""

_SIZE = {
    "saturation_magnetization": Metric(
        name="saturation_magnetization", unit="kA/m", description="Ms at the temperature"
    ),
    "n_cells": Metric(name="n_cells", unit="1", description="magnetic cells"),
    "n_grains": Metric(name="n_grains", unit="1", description="grains"),
    "simulation_stable": Metric(
        name="simulation_stable",
        unit="1",
        description="1: every state is converged and every vector of length 1; all else is a failure",
    ),
}
_FAILURES = (
    "UnknownTemperature",
    "CellTooLarge",
    "TooManyCells",
    "EmptyBody",
    "NotConverged",
    "Unstable",
    "NoEngine",
    "BadSettings",
    # Of the process of magnum.np, and of larger bodies.
    "EngineCrashed",
    "EngineFailed",
    "OutOfMemory",
    "Killed",
    "Walltime",
    "BlockEnded",
)
# Turn of all cells before each state is looked for, rad: it leaves a balance that is none, and is small against
# the distance to the barrier where a field is 1e-4 of the switching field below it.
_NUDGE = 3e-3


@app(
    name="simulate_micromagnetics",
    version="1.1.0",
    parameters=MAGNET
    | {
        "field_max": Float(1e-6, 1e3, unit="T", log=True, description="largest applied field (mu0 H) of the loop"),
        **_towards("the applied field", "field"),
        "field_steps": Int(4, 100_000, default=50, description="steps from the largest field to its negative"),
        "field_resolution": Float(
            1e-7,
            1.0,
            unit="T",
            log=True,
            default=1e-3,
            description="shortest step: where m jumps or changes its sign, steps are halved down to it",
        ),
        "starts": Int(
            1,
            100,
            default=2,
            description="loops from other small turns at random, of which the narrowest is given",
        ),
    },
    metrics=_SIZE
    | {
        "coercivity": Metric(
            name="coercivity",
            unit="T",
            description="mu0 times the applied field at which the magnetisation along it is 0",
        ),
        "coercive_field": Metric(name="coercive_field", unit="kA/m", description="the same as H"),
        "coercivity_resolution": Metric(
            name="coercivity_resolution",
            unit="T",
            description="distance of the two fields between which the magnetisation changes its sign",
        ),
        "switching_field": Metric(
            name="switching_field",
            unit="T",
            description="applied field of the largest jump of the magnetisation, where it jumps",
            required=False,
        ),
        "remanence": Metric(
            name="remanence", unit="1", description="magnetisation along the field at field 0, over Ms"
        ),
        "remanent_magnetization": Metric(
            name="remanent_magnetization", unit="kA/m", description="the same times Ms"
        ),
        "saturation": Metric(
            name="saturation", unit="1", description="magnetisation along the field at field_max, over Ms"
        ),
        "loop_area": Metric(
            name="loop_area",
            unit="J/m^3",
            description="energy lost in one loop, for a volume of magnetic material",
        ),
        "largest_torque": Metric(name="largest_torque", unit="T", description="|m x B| that was left, at most"),
        "n_relaxations": Metric(name="n_relaxations", unit="1", description="states at rest that were computed"),
    },
    vary=("field_polar",),
    failure_modes=(*_FAILURES, "NotSaturated"),
    estimated_runtime_s=60.0,
)
def simulate_micromagnetics(run: Run, **given: Any) -> Outcome:
    """Hysteresis loop of a magnetic body, by minimising its micromagnetic energy in one field after the other.

    E = sum over cells of V [-mu0 Ms m.H_stray / 2 + exchange A (grad m)^2 + K1 (1 - (m.u)^2) - mu0 Ms m.H], on a
    grid of cells, with Newell's demagnetising tensor. From saturation the field goes from `field_max` to its
    negative; each state begins with the one before, turned by 0.003 rad at random (the seed), and runs down to the
    next minimum. The way back is the image of the way there, as the energy stays when m and H turn round. Fields
    are applied ones: the stray field is the body's own.

    The state at each field is an athermal minimum: no moment is lifted over a barrier by temperature or time, so
    that coercivities are upper bounds. `temperature` acts by the material constants only.

    Along an axis of symmetry the body may reverse in one of several ways, e.g. with its ends turned to one side
    or to opposite ones, and the random turns decide which: each way is a bound of the coercivity, and the lowest
    of `starts` loops is given. Uncertainties have the scatter of the starts and the distances of the fields.

    `loop_area` is the integral of mu0 M dH around the loop, with cubics between the fields.
    `coercivity_resolution` is the width of a bracket; how much another grid or other grains (seeds) change is
    found by running them.

    Artifacts: `loop` (CSV: branch_1, field_T, m_along_field_1, m_x_1, m_y_1, m_z_1), `plot` where matplotlib is.

    Raises:
        AppFailed: `UnknownTemperature`: no constants at it. `CellTooLarge`: above the exchange length.
            `NotConverged`, `Unstable`: a minimisation. `NotSaturated`: the loop is not closed. `NoEngine`,
            and how its process ended (magnum.np, and bodies of more than 500 cells).
    """
    return in_child(hysteresis, run, given) if _apart(given) else hysteresis(run=run, **given)


def hysteresis(run: Run, **given: Any) -> Outcome:
    """What `simulate_micromagnetics` does, in this process."""
    body, material, notes = _magnet(run, given)
    towards = direction(given["field_polar"], given["field_azimuth"])
    magnet = solver(given["engine"], body, material)
    branches = [
        _descended(run, given, body, magnet, towards, np.random.default_rng([run.seed, run.replicate, 2, *more]))
        for more in [(), *((n,) for n in range(1, given["starts"]))]
    ]
    loops = [loop_of(branch) for branch in branches]
    lowest = min(range(len(loops)), key=lambda n: loops[n].coercivity)
    branch, loop = branches[lowest], loops[lowest]
    _write_loop(run.workdir / "loop.csv", branch)
    metrics = _size(body, material) | {
        **_numbers(loop, material),
        "coercivity_resolution": loop.coercivity_resolution,
        "saturation": branch.along[0],
        "largest_torque": max(one.torque for one in branches),
        "n_relaxations": float(sum(one.relaxations for one in branches)),
    }
    notes += _scatter_said(loops)
    if loop.switching_field is None:
        notes.append(
            "the magnetisation never jumps by 0.2 in one step: it turns, or reverses bit by bit; no "
            "switching field"
        )
    if abs(loop.coercivity) < 2.0 * loop.coercivity_resolution:
        notes.append(
            "the coercivity is no larger than twice its resolution: a smaller field_resolution would tell "
            "it from 0"
        )
    artifacts = {"loop": "loop.csv"}
    if can_draw():
        _draw_loop(run, branch, loop)
        artifacts["plot"] = "plot.png"
    return Outcome(
        metrics=metrics,
        uncertainty=_uncertainty(loop, loops, material),
        artifacts=artifacts,
        notes=tuple(notes),
        versions=versions_of(*_packages(given["engine"])),
    )


def _descended(
    run: Run,
    given: Mapping[str, Any],
    body: Body,
    magnet: Any,
    towards: _Array,
    rng: np.random.Generator,
) -> Branch:
    """One way down from saturation."""

    def relaxed(m: _Array, b: float) -> tuple[_Array, float, float]:
        rest = magnet.rest(
            perturbed(body, m, _NUDGE, rng),
            b * towards,
            tolerance=given["tolerance"],
            max_steps=given["max_steps"],
        )
        _check_norm(body, rest.m)
        return rest.m, float(body.mean(rest.m) @ towards), rest.torque

    return descend(
        body.uniform(towards),
        relaxed,
        body.mean,
        field_max=given["field_max"],
        steps=given["field_steps"],
        resolution=given["field_resolution"],
    )


def _numbers(loop: Loop, material: Material) -> dict[str, float]:
    """What a loop says, by the names of metrics."""
    found = {
        "coercivity": loop.coercivity,
        "coercive_field": loop.coercivity / MU0 / 1e3,
        "remanence": loop.remanence,
        "remanent_magnetization": loop.remanence * material.ms / 1e3,
        "loop_area": loop.loop_area * material.ms,
    }
    return found if loop.switching_field is None else found | {"switching_field": loop.switching_field}


def _uncertainty(loop: Loop, loops: Sequence[Loop], material: Material) -> dict[str, float]:
    """Standard errors: the standard deviation between starts, and what the distances of the fields leave open."""
    bracket = loop.coercivity_resolution / math.sqrt(12)
    own = {
        "coercivity": bracket,
        "coercive_field": bracket / MU0 / 1e3,
        "loop_area": loop.loop_area_error * material.ms,
    }
    if len(loops) > 1:
        each = [_numbers(one, material) for one in loops]
        for name in _numbers(loop, material):
            values = [numbers[name] for numbers in each if name in numbers]
            if len(values) > 1:
                own[name] = math.hypot(own.get(name, 0.0), float(np.std(values, ddof=1)))
    return own


def _scatter_said(loops: Sequence[Loop]) -> list[str]:
    if len(loops) == 1:
        return ["one start: whether another reverses in another way, at another field, is not known"]
    found = sorted(one.coercivity for one in loops)
    if found[-1] - found[0] <= max(one.coercivity_resolution for one in loops):
        return []
    values = ", ".join(f"{one:.4g}" for one in found)
    return [f"the starts reverse in different ways, at {values} T; the lowest is given: see `starts`"]


@app(
    name="magnetization_dynamics",
    version="1.0.0",
    parameters=MAGNET
    | {
        **_towards("the saturation that the start is relaxed from, without a field,", "start"),
        "field": Float(0.0, 1e3, unit="T", description="applied field (mu0 H), from time 0 on"),
        **_towards("the applied field", "field"),
        "damping": Float(0.0, 10.0, description="Gilbert's alpha"),
        "g_factor": Float(0.1, 10.0, default=2.0, description="g of the moments: 2.0 is 2.2102e5 m/(A s)"),
        "duration": Float(1e-6, 1e4, unit="ns", log=True, description="simulated time"),
        "step_error": Float(
            1e-12, 1e-2, log=True, default=1e-5, description="largest error of a cell's unit vector in one step"
        ),
    },
    metrics=_SIZE
    | {
        **{
            f"m_{axis}": Metric(name=f"m_{axis}", unit="1", description=f"mean of m along {axis} at the end")
            for axis in "xyz"
        },
        **{
            f"zero_{axis}": Metric(
                name=f"zero_{axis}",
                unit="ns",
                description=f"time at which the mean of m along {axis} is 0 first, if it is",
                required=False,
            )
            for axis in "xyz"
        },
        "energy": Metric(name="energy", unit="kJ/m^3", description="energy density at the end"),
        "energy_change": Metric(
            name="energy_change", unit="kJ/m^3", description="since time 0, in the applied field"
        ),
        "norm_error": Metric(
            name="norm_error", unit="1", description="largest | |m| - 1 | of a step, before it is made 1 again"
        ),
        "n_steps": Metric(name="n_steps", unit="1", description="time steps"),
        "n_refused": Metric(name="n_refused", unit="1", description="steps that were taken back and made shorter"),
    },
    vary=("damping",),
    failure_modes=(*_FAILURES, "TooManySteps"),
    estimated_runtime_s=60.0,
)
def magnetization_dynamics(run: Run, **given: Any) -> Outcome:
    """Magnetisation of a body in time after a field is applied, by the equation of Landau, Lifshitz and Gilbert.

    dm/dt = -gamma/(1 + alpha^2) (m x B + alpha m x (m x B)), gamma = g mu_B / hbar, at temperature 0: the material
    constants are those at `temperature`, but moments do not fluctuate. The start is the state at rest without a
    field that saturation along `start_polar`, `start_azimuth` runs down to. Steps are those of Dormand and Prince
    (order 5), as long as `step_error` allows. The energy in a constant field cannot rise: a run in which it does,
    by more than 1e-4 of its terms, is `Unstable`.

    Artifacts: `magnetization` (CSV: time_ns, m_x_1, m_y_1, m_z_1 of each step), `state` (NumPy, (3, nx, ny, nz),
    m at the end), `plot` where matplotlib is.

    Raises:
        AppFailed: As of `simulate_micromagnetics`; `TooManySteps`.
    """
    return in_child(dynamics, run, given) if _apart(given) else dynamics(run=run, **given)


def dynamics(run: Run, **given: Any) -> Outcome:
    """What `magnetization_dynamics` does, in this process."""
    body, material, notes = _magnet(run, given)
    magnet = solver(given["engine"], body, material)
    rng = np.random.default_rng([run.seed, run.replicate, 2])
    saturated = perturbed(body, body.uniform(direction(given["start_polar"], given["start_azimuth"])), _NUDGE, rng)
    rest = magnet.rest(saturated, np.zeros(3), tolerance=given["tolerance"], max_steps=given["max_steps"])
    applied = given["field"] * direction(given["field_polar"], given["field_azimuth"])
    table: list[_Array] = []
    lowest = first = magnet.energies(rest.m, applied)
    worst, refused, m = 0.0, 0, rest.m
    for moment in magnet.follow(
        rest.m,
        applied,
        duration=given["duration"] * _NS,
        damping=given["damping"],
        g_factor=given["g_factor"],
        step_error=given["step_error"],
        max_steps=given["max_steps"],
    ):
        m, worst, refused = moment.m, max(worst, moment.norm_error), moment.refused
        table.append(np.array([moment.time / _NS, *body.mean(m)]))
        if len(table) % _LOOKS == 0:
            lowest = _check_energy(magnet.energies(m, applied), lowest, moment.time)
    last = magnet.energies(m, applied)
    _check_energy(last, lowest, given["duration"] * _NS)
    _check_norm(body, m)
    rows = np.array(table)
    np.savetxt(
        run.workdir / "magnetization.csv",
        rows,
        delimiter=",",
        fmt="%.10g",
        header="time_ns,m_x_1,m_y_1,m_z_1",
        comments="",
    )
    np.save(run.workdir / "state.npy", m)
    metrics = _size(body, material) | {
        "m_x": float(rows[-1, 1]),
        "m_y": float(rows[-1, 2]),
        "m_z": float(rows[-1, 3]),
        "energy": last.total / 1e3,
        "energy_change": (last.total - first.total) / 1e3,
        "norm_error": worst,
        "n_steps": float(len(rows) - 1),
        "n_refused": float(refused),
    }
    zeros = {f"zero_{axis}": _first_zero(rows[:, 0], rows[:, n]) for n, axis in enumerate("xyz", 1)}
    artifacts = {"magnetization": "magnetization.csv", "state": "state.npy"}
    if can_draw():
        with drawing(run) as (_, (axes,)):
            for n, axis in enumerate("xyz", 1):
                axes.plot(rows[:, 0], rows[:, n], label=f"m_{axis}")
            axes.set(xlabel="time (ns)", ylabel="mean of m (1)")
            axes.legend()
        artifacts["plot"] = "plot.png"
    return Outcome(
        metrics=metrics | {name: zero for name, zero in zeros.items() if zero is not None},
        artifacts=artifacts,
        notes=tuple(notes),
        versions=versions_of(*_packages(given["engine"])),
    )


# Cells from which on a process of its own (a second to start) is worth it: a loop takes as long.
_MANY_CELLS = 500
# Steps between two looks at the energy, and how much of the terms' sizes it may seem to rise.
_LOOKS = 20
_RISE = 1e-4


def _check_energy(now: Any, lowest: Any, time: float) -> Any:
    terms = (now.demagnetization, now.exchange, now.anisotropy, now.zeeman)
    allowed = _RISE * sum(map(abs, terms))
    if not now.total <= lowest.total + allowed:
        raise AppFailed(
            f"the energy has risen from {lowest.total:.6g} to {now.total:.6g} J/m^3 at {time / _NS:.6g} ns, which "
            "it cannot in a constant field.",
            name="Unstable",
            repair="a smaller step_error",
        )
    return now if now.total < lowest.total else lowest


def _check_norm(body: Body, m: _Array) -> None:
    length = np.sqrt((m**2).sum(axis=0))[body.inside]
    off = float(np.abs(length - 1.0).max())
    if not off <= 1e-9:
        raise AppFailed(f"a cell's unit vector has a length that is off by {off:.3g}.", name="Unstable")


def _first_zero(time: _Array, m: _Array) -> float | None:
    """When a component is 0 first, having been something; None if never."""
    change = np.flatnonzero((m[:-1] != 0.0) & (m[:-1] * m[1:] <= 0.0))
    # A component that is only rounding has no sign.
    change = change[np.abs(m[change] - m[change + 1]) > 1e-9]
    if not change.size:
        return None
    i = int(change[0])
    return float(time[i] + (time[i + 1] - time[i]) * m[i] / (m[i] - m[i + 1]))


def _apart(given: Mapping[str, Any]) -> bool:
    """Whether a run has a process of its own, which its walltime can end: magnum.np, and what may take long."""
    counts = (max(1.0, given[f"size_{axis}"] / given["cell"]) for axis in "xyz")
    return bool(given["engine"] != "own" or math.prod(counts) > _MANY_CELLS)


def _magnet(run: Run, given: Mapping[str, Any]) -> tuple[Body, Material, list[str]]:
    """The body, its material at the temperature, and what was assumed."""
    constants = Material(
        given["saturation_magnetization"] * 1e3, given["exchange_stiffness"] * 1e-12, given["anisotropy"] * 1e3
    )
    material, said = material_at(
        constants,
        given["temperature"],
        given["constants_at"],
        given["temperature_law"],
        given.get("curie_temperature"),
        given.get("curve_shape"),
        given.get("curve_power"),
    )
    size = (given["size_x"] * _NM, given["size_y"] * _NM, given["size_z"] * _NM)
    counts = grid(size, given["cell"] * _NM, material)
    grains = None
    if given["microstructure_model"] == "voronoi":
        grains = Grains(given["grain_size"] * _NM, given["axis_spread"], given["grain_coupling"])
    axis = direction(given["axis_polar"], given["axis_azimuth"])
    body = made(given["form"], size, counts, axis, grains, seed=(run.seed, run.replicate))
    notes = [said, "athermal: no fluctuations, no waiting time; a coercivity is an upper bound"]
    edges = " x ".join(f"{edge / _NM:.4g}" for edge in body.cell)
    notes.append(
        f"{' x '.join(map(str, counts))} cells of {edges} nm; exchange length "
        f"{material.exchange_length / _NM:.4g} nm"
    )
    if body.form_error > 0.02:
        notes.append(
            f"the cells of the {given['form']} have a volume that is {body.form_error:.1%} off: smaller cells"
        )
    return body, material, notes


def _size(body: Body, material: Material) -> dict[str, float]:
    return {
        "saturation_magnetization": material.ms / 1e3,
        "n_cells": float(body.n_cells),
        "n_grains": float(body.n_grains),
        "simulation_stable": 1.0,
    }


def _packages(engine: str) -> tuple[str, ...]:
    return ("numpy", "scipy") if engine == "own" else ("magnumnp", "torch", "numpy")


def _write_loop(path: Path, branch: Branch) -> None:
    there = np.column_stack([branch.fields, branch.along, np.array(branch.states)])
    rows = np.vstack([np.column_stack([np.full(len(part), i), part]) for i, part in enumerate((there, -there))])
    header = "branch_1,field_T,m_along_field_1,m_x_1,m_y_1,m_z_1"
    np.savetxt(path, rows, delimiter=",", fmt="%.10g", header=header, comments="")


def _draw_loop(run: Run, branch: Branch, loop: Loop) -> None:
    b, along = np.array(branch.fields), np.array(branch.along)
    with drawing(run) as (_, (axes,)):
        axes.plot(b, along, marker=".", label="field falling")
        axes.plot(-b, -along, marker=".", label="field rising (its image)")
        axes.axhline(0.0, color="#888888", linewidth=0.8)
        axes.axvline(-loop.coercivity, color="#888888", linewidth=0.8, linestyle=":")
        axes.set(xlabel="applied field $\\mu_0 H$ (T)", ylabel="M along the field / Ms (1)")
        axes.legend()
