"""Mean squared displacement and self-diffusion."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcagent.apps.decorator import app
from hpcagent.apps.run import Outcome, Run
from hpcagent.errors import AppFailed
from hpcagent.model.contract import Metric
from hpcagent.model.parameter import Float, Text
from hpcagent.science.analysis.frames import BLOCKS, RANKS, Communicator, analyse, following, total
from hpcagent.science.lammps.frames import READING, Reading, Trajectory
from hpcagent.units import BOLTZMANN_J_PER_K

__all__ = ["XI", "follow", "msd", "squared_displacements", "yeh_hummer"]

_Array = NDArray[np.float64]
XI = 2.837297
"""The constant of a cubic cell in the finite-size correction of a diffusion coefficient."""
_CM2_S = 1e-4  # 1 angstrom^2/ps = 1e-20 m^2 / 1e-12 s = 1e-8 m^2/s = 1e-4 cm^2/s
_FEWEST_LAGS = 4
_FEWEST_STRETCHES, _MOST_STRETCHES = 4, 8
FAILURES = (
    "NoTrajectory",
    "BadTrajectory",
    "TooFewFrames",
    "NoUnits",
    "ReducedUnits",
    "NoTimes",
    "UnevenFrames",
    "NoIds",
    "NoSuchSpecies",
    "FramesTooFarApart",
    "TooFewAtoms",
    "BadWindow",
    "NoTemperature",
    "MissingFile",
    "NoEngine",
    "AnalysisFailed",
)


@app(
    name="msd",
    version="1.1.0",
    app_type="analysis",
    inputs=("run",),
    parameters={
        "fit_start": Float(
            0.0,
            1e6,
            unit="ps",
            default=0.0,
            description="begin of the fitted window of lags; 0: a quarter of its end",
        ),
        "fit_end": Float(
            0.0, 1e6, unit="ps", default=0.0, description="its end; 0: a fifth of the time that is followed"
        ),
        "a": Text(default="", description="species whose displacement is averaged; empty: all"),
        "viscosity": Float(
            0.0, 1e6, unit="mPa*s", default=0.0, description="for the finite-size correction; 0: not corrected"
        ),
        "temperature": Float(
            0.0, 1e5, unit="K", default=0.0, description="for that correction; 0: as the run or its velocities say"
        ),
        "ranks": RANKS,
        **READING,
    },
    metrics={
        "diffusion": Metric(name="diffusion", unit="cm^2/s", description="self-diffusion coefficient"),
        "diffusion_angstrom2_ps": Metric(
            name="diffusion_angstrom2_ps", unit="angstrom^2/ps", description="the same in other units"
        ),
        "diffusion_corrected": Metric(
            name="diffusion_corrected",
            unit="cm^2/s",
            description="diffusion in an infinite cell, where a viscosity is given",
            required=False,
        ),
        "exponent": Metric(
            name="exponent", unit="1", description="d ln(msd) / d ln(t) in the window: 1 diffusion, 0 a solid"
        ),
        "msd_at_end": Metric(
            name="msd_at_end", unit="angstrom^2", description="mean squared displacement at the end of the window"
        ),
        "fit_from": Metric(name="fit_from", unit="ps", description="begin of the fitted window"),
        "fit_to": Metric(name="fit_to", unit="ps", description="end of the fitted window"),
        "n_frames": Metric(name="n_frames", unit="1", description="frames used"),
    },
    resources_from={"ranks_per_node": "ranks"},
    seeded=False,
    failure_modes=FAILURES,
    estimated_runtime_s=5.0,
)
def msd(
    fit_start: float,
    fit_end: float,
    a: str,
    viscosity: float,
    temperature: float,
    ranks: int,
    run: Run,
    **reading: Any,
) -> Outcome:
    """Mean squared displacement over all time origins, and the self-diffusion coefficient from its slope.

    msd(t) = <|r_i(t0 + t) - r_i(t0)|^2> over atoms and origins, without the drift of the centre of mass, by
    Fourier transforms (G. R. Kneller et al., Comput. Phys. Commun. 91, 191 (1995)); D = slope / (2 d) of the
    least-squares line in the window (A. Einstein, Ann. Phys. 322, 549 (1905)), d the number of directions in which
    atoms move: 2 where LAMMPS has `dimension 2`. Our own code: freud's has single
    precision, in which its running difference of large squares loses the small displacements, and no file to
    stream from.

    The error of D is the larger of two: the scatter of the atoms' own slopes, each of which holds all correlation
    in time, and that of four to eight stretches of the trajectory by direction, with Student's variance. Atoms of
    a liquid push each other, and those of a molecule move together: they have fewer independent slopes. With fewer
    stretches no error is stated.

    With a viscosity eta, D_inf = D + k_B T xi / (6 pi eta L), xi = 2.837297, L the edge of the cubic cell: I.-C.
    Yeh and G. Hummer, J. Phys. Chem. B 108, 15873 (2004), doi:10.1021/jp0477147.

    Needs scratch space in the run's directory: 24 bytes for every atom and frame.

    Raises:
        AppFailed: See `FAILURES`; `FramesTooFarApart`: positions cannot be unwrapped; `BadWindow`: the window does
            not lie in the trajectory or holds fewer than four lags; `NoTemperature`; `TooFewAtoms`: a single one.
    """
    how = Reading(**reading)
    arrays = analyse(run, follow, how, {"fit_start": fit_start, "fit_end": fit_end, "a": a}, ranks)
    lags, mean, slopes, stretches = arrays["lags"], arrays["msd"], arrays["slopes"], arrays["stretches"]
    low, high = (int(i) for i in arrays["window"])
    diffusion = float(slopes.mean()) / 2.0
    error = _error(slopes, stretches) / 2.0
    whole = mean.sum(axis=1)
    np.savetxt(
        run.workdir / "msd.csv",
        np.column_stack([lags, whole, mean]),
        delimiter=",",
        fmt="%.8g",
        header="time_ps,msd_angstrom2,msd_x_angstrom2,msd_y_angstrom2,msd_z_angstrom2",
        comments="",
    )
    notes = [str(n) for n in arrays["notes"]]
    if not math.isfinite(error):
        notes.append(
            f"no error is stated of the diffusion coefficient: it needs {_FEWEST_STRETCHES} stretches of the "
            "trajectory, each a quarter longer than the window; run longer, or set a smaller fit_end"
        )
    exponent = _exponent(lags[low : high + 1], whole[low : high + 1])
    if exponent < 0.5:
        notes.append(
            f"the mean squared displacement levels off (exponent {exponent:.2f}, {whole[high]:.3g} angstrom^2 at "
            "the end of the window): the atoms stay at their sites as in a solid, and the diffusion coefficient "
            "says little"
        )
    elif not 0.8 <= exponent <= 1.2:
        notes.append(
            f"the mean squared displacement goes as t^{exponent:.2f} in the window, not as t: no diffusion yet; a "
            "later or longer window is needed"
        )
    metrics = {
        "diffusion": diffusion * _CM2_S,
        "diffusion_angstrom2_ps": diffusion,
        "exponent": exponent,
        "msd_at_end": float(whole[high]),
        "fit_from": float(lags[low]),
        "fit_to": float(lags[high]),
        "n_frames": float(arrays["n_frames"]),
    }
    uncertainty = {"diffusion": error * _CM2_S, "diffusion_angstrom2_ps": error} if math.isfinite(error) else {}
    edge = float(arrays["volume"]) ** (1.0 / 3.0)
    if slopes.shape[1] < 3:
        notes.append("not corrected for the finite size of the cell: the correction is that of three dimensions")
    elif viscosity and bool(arrays["periodic"]):
        kelvin = temperature or _temperature(run, float(arrays["temperature"]))
        metrics["diffusion_corrected"] = metrics["diffusion"] + yeh_hummer(kelvin, viscosity, edge)
        if "diffusion" in uncertainty:
            uncertainty["diffusion_corrected"] = uncertainty["diffusion"]
    elif bool(arrays["periodic"]):
        notes.append(
            f"not corrected for the finite size of the cell (L = {edge:.4g} angstrom); `viscosity` adds what Yeh "
            "and Hummer (2004) found, some ten percent for a thousand atoms of a liquid"
        )
    else:
        notes.append("the cell is not periodic in all directions: no finite-size correction is known")
    return Outcome(metrics=metrics, uncertainty=uncertainty, artifacts={"msd": "msd.csv"}, notes=tuple(notes))


def yeh_hummer(temperature: float, viscosity: float, edge: float) -> float:
    """What a cubic periodic cell takes from a diffusion coefficient: k_B T xi / (6 pi eta L).

    Args:
        temperature: K.
        viscosity: mPa*s.
        edge: Edge of the cell, angstrom.

    Returns:
        cm^2/s.

    Example:
        >>> round(yeh_hummer(298.15, 0.896, 18.64) * 1e5, 3)  # SPC-like water, 216 molecules
        0.371
    """
    return BOLTZMANN_J_PER_K * temperature * XI / (6 * math.pi * viscosity * 1e-3 * edge * 1e-10) * 1e4


def _temperature(run: Run, kinetic: float) -> float:
    before = run.upstream[0]
    said = (before.get("metrics") or {}).get("temperature")
    if said is not None and (before.get("units") or {}).get("temperature", "K") == "K":
        return float(said)
    if math.isfinite(kinetic):
        return kinetic
    raise AppFailed(
        "the finite-size correction needs the temperature, and neither the run's metrics nor velocities say it.",
        kind="contract",
        name="NoTemperature",
        repair="give `temperature`, in K",
    )


def _error(slopes: _Array, stretches: _Array) -> float:
    """The larger of what the stretches and the atoms tell: few stretches can agree by chance; atoms move together.

    Args:
        slopes: (n_atoms, d) by atom and direction.
        stretches: (k, d) by stretch and direction.
    """
    count, directions = stretches.shape
    freedom = (count - 1) * directions
    if count < _FEWEST_STRETCHES or freedom <= 2:
        return math.nan
    within = float(((stretches - stretches.mean(axis=0)) ** 2).sum()) / freedom
    # The variance of Student's distribution: so few stretches know their own scatter badly.
    of_time = math.sqrt(within / stretches.size * freedom / (freedom - 2))
    of_atoms = float(slopes.std(ddof=1)) / math.sqrt(slopes.size) if slopes.size > 2 else 0.0
    return max(of_time, of_atoms)


def _exponent(t: _Array, y: _Array) -> float:
    if (y <= 0).any():
        return 0.0
    return float(np.polyfit(np.log(t), np.log(y), 1)[0])


def follow(
    trajectory: Trajectory, reading: Reading, params: Mapping[str, Any], folder: Path, comm: Communicator
) -> dict[str, NDArray[Any]]:
    """Work of `msd`.

    Returns:
        On rank 0: `lags` (n_lags,) ps; `msd` (n_lags, 3) angstrom^2 by direction; `slopes` (n_atoms, d), of the d
        directions in which atoms move, and `stretches` (k, d), slopes of the msd along one direction in
        angstrom^2/ps; `window`, first and last fitted lag; `n_frames`, `volume`, `periodic`, `temperature`.
    """
    with following(trajectory, reading, "displacement", folder, comm) as data:
        return _displaced(trajectory, data, params, comm)


def _displaced(trajectory: Trajectory, data: Any, params: Mapping[str, Any], comm: Communicator) -> dict[str, Any]:
    n_frames = len(data.rows)
    low, high = window(n_frames, data.interval_ps, float(params["fit_start"]), float(params["fit_end"]))
    name = params["a"]
    atoms = np.flatnonzero(data.species == name) if name else np.arange(len(data.species))
    if atoms.size == 0:
        raise AppFailed(
            f"{trajectory.path.name} has no atoms of species {name!r}; it has "
            f"{', '.join(sorted(set(map(str, data.species))))}.",
            kind="contract",
            name="NoSuchSpecies",
            repair="types of a LAMMPS dump get their names from `species`",
        )
    n_lags = max(n_frames // 2, high) + 1
    lags = np.arange(n_lags) * data.interval_ps
    fitted = lags[low : high + 1]
    weights = (fitted - fitted.mean()) / ((fitted - fitted.mean()) ** 2).sum()
    # Each stretch is longer than the longest fitted lag by a quarter at least.
    parts = min(_MOST_STRETCHES, int(n_frames / (1.25 * high)))
    stretches = np.array_split(np.arange(n_frames), parts) if parts >= _FEWEST_STRETCHES else []
    groups = np.array_split(atoms, min(len(atoms), BLOCKS))
    first = np.cumsum([0, *map(len, groups)])

    def part(group: int) -> tuple[NDArray[Any], ...]:
        members = groups[group]
        summed, slopes, times = np.zeros((n_lags, 3)), np.zeros((len(atoms), 3)), np.zeros((_MOST_STRETCHES, 3))
        at_once = max(1, 2_000_000 // n_frames)
        for start in range(0, len(members), at_once):
            some = members[start : start + at_once]
            moved = np.asarray(data.rows[:, _span(some), :])[:, some - some[0], :]
            positions = np.cumsum(moved, axis=0)
            own = squared_displacements(positions, n_lags)
            summed += own.sum(axis=1)
            place = first[group] + start
            slopes[place : place + len(some)] = np.tensordot(weights, own[low : high + 1], axes=1)
            for k, rows in enumerate(stretches):
                shorter = squared_displacements(positions[rows], high + 1).sum(axis=1)
                times[k] += weights @ shorter[low:]
        return summed, slopes, times

    got = total(len(groups), part, comm)
    if got is None:
        return {}
    return {
        "lags": lags,
        "msd": got[0] / len(atoms),
        "slopes": got[1][:, list(data.moving)],
        "stretches": got[2][: len(stretches), list(data.moving)] / len(atoms),
        "window": np.array([low, high]),
        "n_frames": np.array(n_frames),
        "volume": np.array(data.volume),
        "periodic": np.array(data.periodic),
        "temperature": np.array(data.temperature),
    }


def _span(atoms: NDArray[np.intp]) -> slice:
    # Neighbours in the file are read with one slice, which is far quicker than picking single atoms.
    return slice(int(atoms[0]), int(atoms[-1]) + 1)


def window(n_frames: int, interval_ps: float, start_ps: float, end_ps: float) -> tuple[int, int]:
    """First and last lag of the fit, in frames.

    Raises:
        AppFailed: `BadWindow`.
    """
    span = (n_frames - 1) * interval_ps
    end = end_ps or 0.2 * span
    start = start_ps or 0.25 * end
    low, high = max(math.ceil(start / interval_ps - 1e-9), 1), math.floor(end / interval_ps + 1e-9)
    if high > n_frames - 2 or high - low + 1 < _FEWEST_LAGS:
        raise AppFailed(
            f"the window from {start:g} to {end:g} ps has {max(high - low + 1, 0)} lags of {interval_ps:g} ps, in "
            f"a trajectory of {span:g} ps; at least {_FEWEST_LAGS} are needed, all shorter than the trajectory.",
            kind="contract",
            name="BadWindow",
            repair="run longer, write frames more often, or set fit_start and fit_end",
        )
    return low, high


def squared_displacements(positions: _Array, n_lags: int) -> _Array:
    """Mean squared displacement of each atom along each direction over all time origins.

    msd(m) = 1/(T-m) sum_k [r(k+m)^2 + r(k)^2] - 2/(T-m) sum_k r(k) r(k+m); the first sum by running totals, the
    second by Fourier transforms. Positions are taken from their mean, where the two nearly equal terms are
    smallest.

    Args:
        positions: (n_frames, n_atoms, 3), not wrapped.
        n_lags: How many lags, 0 among them.

    Returns:
        (n_lags, n_atoms, 3), in the unit of `positions` squared.
    """
    from scipy.fft import irfft, next_fast_len, rfft

    n = len(positions)
    centered = positions - positions.mean(axis=0)
    length = next_fast_len(n + n_lags, real=True)
    spectrum = rfft(centered, length, axis=0)
    products = irfft((spectrum * spectrum.conj()).real, length, axis=0)[:n_lags]
    squares = np.cumsum(centered**2, axis=0)
    zero = np.zeros_like(squares[:1])
    running = np.concatenate([zero, squares])
    lags = np.arange(n_lags)
    both = (running[n] - running[lags]) + running[n - lags]
    result: _Array = (both - 2.0 * products) / (n - lags)[:, None, None]
    np.maximum(result, 0.0, out=result)  # what rounding leaves of zero
    result[0] = 0.0
    return result
