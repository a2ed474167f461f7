"""Shear viscosity of a liquid by Green and Kubo, from the pressure tensor of a LAMMPS run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hpcagent.apps.decorator import app
from hpcagent.apps.run import Outcome, Run
from hpcagent.errors import AppFailed
from hpcagent.model.contract import Metric
from hpcagent.model.parameter import Float
from hpcagent.science.analysis.vacf import autocorrelations
from hpcagent.statistics.timeseries import block_average
from hpcagent.units import BOLTZMANN_J_PER_K, UnitStyle, factor

if TYPE_CHECKING:
    from hpcagent.science.lammps.log_records import Run as _Leg

__all__ = ["GreenKubo", "green_kubo", "viscosity"]

_Array = NDArray[np.float64]
_BLOCKS = 20
_FEWEST_BLOCKS = 8
# The integral is followed up to this many times its own first guess of the correlation time, and further while
# the slower of the two fitted times is at its limit, the cut over `_SLOWEST`.
_START, _SLOWEST, _LONGER = 12.0, 4.0, 1.5
# Zhang et al. (2015) cut where the integrals of single runs scatter by 40 % of their mean; blocks are shorter.
_SCATTER = 1.0
_FITTED = 200
FAILURES = (
    "NoThermo",
    "BadThermo",
    "TooFewSamples",
    "RowsTooFarApart",
    "NotConverged",
    "WrongEnsemble",
    "NoUnits",
    "MissingFile",
)


@app(
    name="viscosity",
    version="1.0.0",
    app_type="analysis",
    inputs=("run",),
    parameters={
        "discard": Float(0.0, 0.95, default=0.0, description="share of the rows left out at the start"),
        "longest": Float(
            0.0,
            1e6,
            unit="1",
            default=0.0,
            description="longest lag, in the log's unit of time; 0: as the correlation itself asks for",
        ),
    },
    metrics={
        "viscosity": Metric(
            name="viscosity", unit="mPa*s", description="shear viscosity; absent in reduced units", required=False
        ),
        "viscosity_reduced": Metric(
            name="viscosity_reduced",
            unit="epsilon*tau/sigma^3",
            description="shear viscosity of a run in reduced units",
            required=False,
        ),
        "cut": Metric(name="cut", unit="1", description="longest lag that was used, in the log's unit of time"),
        "slow_time": Metric(
            name="slow_time", unit="1", description="slower of the two fitted times, in the log's unit of time"
        ),
        "temperature": Metric(
            name="temperature", unit="K", description="mean temperature; absent in reduced units", required=False
        ),
        "n_samples": Metric(name="n_samples", unit="1", description="rows used"),
    },
    seeded=False,
    failure_modes=FAILURES,
    estimated_runtime_s=2.0,
)
def viscosity(discard: float, longest: float, run: Run) -> Outcome:
    """Shear viscosity by Green and Kubo, with its error.

    eta = V / (k_B T) int_0^inf <P_ab(t0) P_ab(t0 + t)> dt, the mean over the five independent components of the
    traceless pressure tensor: Pxy, Pxz, Pyz, (Pxx - Pyy)/2 and (2 Pzz - Pxx - Pyy)/(2 sqrt 3) (P. J. Daivis and
    D. J. Evans, J. Chem. Phys. 100, 541 (1994), doi:10.1063/1.466970).

    The plateau of the running integral is found by time decomposition (Y. Zhang, A. Otani, E. J. Maginn, J. Chem.
    Theory Comput. 11, 3537 (2015), doi:10.1021/acs.jctc.5b00351), with twenty blocks of one run in place of runs
    of their own: eta(t) = sum_i eta_i (1 - exp(-t/tau_i)), i = 1, 2, is fitted with the weight 1/t^b, t^b the
    growth of the scatter of the blocks, up to four times the slower tau at least, and at most up to where the
    blocks scatter by as much as their mean. The error is a jackknife over the blocks, fit and all, with half of
    what fit and integral differ by at the cut: on correlated series of known integral +-2 errors held for 9 of 10.

    The run must print the components every few femtoseconds (`thermo_style custom step temp vol pxx pyy pzz pxy
    pxz pyz`, `thermo 5`) at constant volume, for some thousand times the relaxation time of the stress.

    Raises:
        AppFailed: `NoThermo`; `BadThermo`: a column is missing; `NoUnits`; `WrongEnsemble`: the volume changes, or
            the system has two dimensions; `TooFewSamples`; `RowsTooFarApart`: the stress is forgotten from one row
            to the next; `NotConverged`: the integral has no plateau (a solid, a glass, a run too short).
    """
    stress = _stress(run.upstream[0], discard)
    found = green_kubo(stress.components, stress.interval, longest=longest)
    eta, error = found.integral * stress.scale, found.error * stress.scale
    name = "viscosity_reduced" if stress.reduced else "viscosity"
    np.savetxt(
        run.workdir / "viscosity.csv",
        np.column_stack([found.lags, found.correlation, found.running * stress.scale, found.fit * stress.scale]),
        delimiter=",",
        fmt="%.8g",
        header=f"time_{stress.time},stress_autocorrelation_{stress.pressure}2,running_{name},fitted_{name}",
        comments="",
    )
    metrics = {
        name: eta,
        "cut": found.cut,
        "slow_time": found.slow,
        "n_samples": float(stress.components.shape[0]),
    }
    if not stress.reduced:
        metrics["temperature"] = stress.temperature
    return Outcome(
        metrics=metrics,
        uncertainty={name: error},
        artifacts={"viscosity": "viscosity.csv"},
        notes=(*stress.notes, *found.notes),
    )


# ---- from the log


@dataclass(frozen=True, slots=True, eq=False)
class _Stress:
    """(n_rows, k) independent components of the stress, and what its integral is multiplied with."""

    components: _Array
    interval: float
    temperature: float
    scale: float
    reduced: bool
    time: str
    pressure: str
    notes: tuple[str, ...]


def _stress(upstream: Any, discard: float) -> _Stress:
    from hpcagent.science.lammps.leg import leg_of

    leg = leg_of(upstream)
    run, style = leg.run, leg.style
    if run.dimension == 2:
        raise _wrong("the system has two dimensions; the formula is that of three")
    volume = _volume(run, leg.source)
    rows, interval = _even_rows(leg.times, leg.source, discard)
    components, notes = _components(run, rows)
    temperature = float(run["Temp"][rows].mean())
    if not np.isfinite(components).all() or not temperature > 0:
        raise _bad(f"the rows of {leg.source} hold values that are not finite, or no temperature", "check the run")
    return _Stress(
        components=components,
        interval=interval,
        temperature=temperature,
        scale=_scale(style, volume, temperature),
        reduced=style.reduced,
        time=style.time,
        pressure=style.pressure.replace("/", "_per_").replace("^", ""),
        notes=(*leg.notes, *notes),
    )


def _volume(run: _Leg, source: str) -> float:
    """The volume of the run, which must hold still; refuses a run that lacks a column."""
    missing = [column for column in ("Temp", "Pxy", "Pxz", "Pyz") if column not in run]
    volume: _Array | None = None
    if "Volume" in run:
        volume = run["Volume"]
    elif all(edge in run for edge in ("Lx", "Ly", "Lz")):
        volume = run["Lx"] * run["Ly"] * run["Lz"]
    if missing or volume is None:
        lacking = ", ".join([*missing, *(["Volume"] if volume is None else [])])
        raise _bad(
            f"{source} has no column {lacking}; it has {', '.join(run.columns)}",
            "thermo_style custom step temp vol pxx pyy pzz pxy pxz pyz",
        )
    if float(np.ptp(volume)) > 1e-6 * float(volume.mean()):
        raise _wrong(
            f"the volume of the run changes, by {np.ptp(volume) / volume.mean():.2%}; the formula is that of a "
            "constant one"
        )
    return float(volume.mean())


def _even_rows(times: _Array | None, source: str, discard: float) -> tuple[slice, float]:
    """The rows after the discarded share, and the time between them."""
    if times is None or times.size < 2:
        raise _bad(f"{source} does not say the times of its rows", "print step, or time")
    start = math.ceil(discard * times.size)
    times = times[start:]
    gaps = np.diff(times)
    if gaps.size and abs(gaps[-1] - gaps[0]) > 1e-3 * gaps[0]:
        times, gaps = times[:-1], gaps[:-1]  # the last step of a run is printed wherever it falls
    if not gaps.size or gaps.min() <= 0 or float(np.ptp(gaps)) > 1e-3 * float(gaps.mean()):
        raise _bad(f"the rows of {source} are not at equal intervals", "thermo N, with one timestep")
    return slice(start, start + times.size), float(gaps.mean())


def _components(run: _Leg, rows: slice) -> tuple[_Array, tuple[str, ...]]:
    """(n_rows, 5) independent components of the stress; three, with a note, without the diagonal ones."""
    components = [run[column][rows] for column in ("Pxy", "Pxz", "Pyz")]
    if not all(column in run for column in ("Pxx", "Pyy", "Pzz")):
        note = "without pxx, pyy and pzz there are three components of the stress, not five"
        return np.stack(components, axis=1), (note,)
    pxx, pyy, pzz = (run[column][rows] for column in ("Pxx", "Pyy", "Pzz"))
    components += [0.5 * (pxx - pyy), (2.0 * pzz - pxx - pyy) / (2.0 * math.sqrt(3.0))]
    return np.stack(components, axis=1), ()


def _scale(style: UnitStyle, volume: float, temperature: float) -> float:
    """V / (k_B T) with the units of the integral: mPa s of it in the style's pressure^2 time."""
    if style.reduced:
        return volume / temperature
    # Pa^2 m^3 s / J = Pa s
    scale = 1e3 * volume * factor(style.distance, "m") ** 3 * factor(style.pressure, "Pa") ** 2
    return scale * factor(style.time, "s") / (BOLTZMANN_J_PER_K * temperature * factor(style.temperature, "K"))


def _bad(what: str, repair: str) -> AppFailed:
    return AppFailed(f"{what}.", kind="contract", name="BadThermo", repair=repair)


def _wrong(what: str) -> AppFailed:
    return AppFailed(f"{what}.", kind="contract", name="WrongEnsemble", repair="run at constant volume")


# ---- the integral


@dataclass(frozen=True, slots=True, eq=False)
class GreenKubo:
    """An integral of an autocorrelation up to infinity.

    Attributes:
        integral, error: With its standard error; unit of the series squared times that of time.
        cut: Longest lag that was used.
        slow: The slower of the two fitted times.
        lags, correlation, running, fit: (n_lags,) lag, mean autocorrelation, its running integral, and the fit.
        notes: What is to be said.
    """

    integral: float
    error: float
    cut: float
    slow: float
    lags: _Array
    correlation: _Array
    running: _Array
    fit: _Array
    notes: tuple[str, ...]


def green_kubo(series: _Array, interval: float, *, longest: float = 0.0) -> GreenKubo:
    """Integral from zero to infinity of the mean autocorrelation of some equivalent series; see `viscosity`.

    Args:
        series: (n, k) values of mean zero; a mean that is off by more than four of its errors is taken out.
        interval: Time between rows.
        longest: Longest lag, in the unit of `interval`; 0: found.

    Raises:
        AppFailed: `TooFewSamples`, `RowsTooFarApart`, `NotConverged`.
    """
    values, notes = _without_mean(series)
    n = len(values)
    squares = float((values**2).mean())
    neighbours = float((values[1:] * values[:-1]).mean()) / squares if squares > 0 else 0.0
    if neighbours < 0.2:
        raise AppFailed(
            f"from one row to the next the stress keeps {neighbours:.0%} of itself: rows {interval:g} apart are "
            "too far apart to integrate over.",
            kind="contract",
            name="RowsTooFarApart",
            repair="print more often (thermo 1 to 10)",
        )
    if neighbours < 0.7:
        notes += (f"rows are far apart: the stress keeps {neighbours:.0%} of itself from one to the next",)
    count = round(longest / interval) + 1 if longest else _first_lags(values)
    most = n // (2 * _FEWEST_BLOCKS)
    while True:
        if count > most:
            count = most
        if count < 10:
            raise AppFailed(
                f"{n} rows are too few: a block of an eighth of them must hold the longest lag twice.",
                kind="contract",
                name="TooFewSamples",
                repair="run longer, or print more often",
            )
        blocks = min(_BLOCKS, n // (2 * count))
        pieces = values[: n // blocks * blocks].reshape(blocks, n // blocks, -1)
        own = np.array([autocorrelations(piece, count).mean(axis=1) for piece in pieces])
        running = _cumulative(own, interval)
        lags: _Array = np.arange(count, dtype=np.float64) * interval
        scatter = running.std(axis=0, ddof=1)
        mean = running.mean(axis=0)
        noisy = np.flatnonzero(scatter[1:] > _SCATTER * np.abs(mean[1:]))
        late = noisy[noisy > count // 10]
        end = int(late[0]) + 1 if late.size else count
        plateau, times = _fitted(lags[:end], mean[:end], scatter[:end])
        slow = float(times.max())
        gained, noise = _gained(mean[:end], scatter[:end] / math.sqrt(blocks))
        held = slow * _SLOWEST > 0.99 * lags[end - 1] and gained > 1.5 * noise
        if longest or end < count or count == most or not held:
            break
        count = math.ceil(count * _LONGER)
    if plateau.sum() <= 0 or (held and gained > 0.1 * mean[end - 1]):
        raise AppFailed(
            f"the integral of the stress has no plateau: at {lags[end - 1]:.3g}, as far as it can be followed, it "
            "still rises by more than its noise.",
            kind="simulation",
            name="NotConverged",
            repair="run longer; a solid or a glass has none",
        )
    if held:
        notes += (
            f"the integral is followed up to {lags[end - 1]:.3g} only, {_SLOWEST:g} times its slow part's time: "
            "the end of the plateau is extrapolated, and a longer run is better",
        )
    left_out = np.array(
        [
            _fitted(lags[:end], np.delete(running, k, axis=0).mean(axis=0)[:end], scatter[:end])[0].sum()
            for k in range(blocks)
        ]
    )
    spread = left_out - left_out.mean()
    apart = 0.5 * (float(plateau.sum()) - float(mean[end - 1]))
    return GreenKubo(
        integral=float(plateau.sum()),
        error=math.sqrt((blocks - 1) / blocks * float(spread @ spread) + apart**2),
        cut=float(lags[end - 1]),
        slow=slow,
        lags=lags,
        correlation=own.mean(axis=0),
        running=mean,
        fit=_model(lags, *plateau, *times),
        notes=notes,
    )


def _gained(running: _Array, error: _Array) -> tuple[float, float]:
    """What the second half adds to the integral, and the noise of that."""
    half, end = len(running) // 2, len(running) - 1
    noise = math.sqrt(max(error[end] ** 2 - error[half] ** 2, 0.0))
    return float(running[end] - running[half]), noise


def _without_mean(series: _Array) -> tuple[_Array, tuple[str, ...]]:
    values = np.array(series, np.float64)
    removed = 0
    for k in range(values.shape[1]):
        mean, error = block_average(values[:, k])
        if math.isfinite(error) and abs(mean) > 4.0 * error:
            values[:, k] -= mean
            removed += 1
    if not removed:
        return values, ()
    return values, (
        f"the mean of {removed} component(s) of the stress is not zero, as it is in a liquid at rest; it is taken "
        "out",
    )


def _first_lags(values: _Array) -> int:
    """How many lags hold `_START` correlation times, by the self-consistent window t > 6 tau of Sokal."""
    n = len(values)
    correlation = autocorrelations(values, max(n // (2 * _FEWEST_BLOCKS), 2)).mean(axis=1)
    summed = np.cumsum(correlation / correlation[0]) - 0.5
    enough = np.flatnonzero(np.arange(len(summed)) > 6.0 * np.maximum(summed, 0.5))
    tau = max(float(summed[enough[0]]), 0.5) if enough.size else len(summed) / 6.0
    return math.ceil(_START * tau) + 1


def _cumulative(correlations: _Array, interval: float) -> _Array:
    """(..., n_lags) running integrals by the trapezoidal rule."""
    steps = 0.5 * (correlations[..., 1:] + correlations[..., :-1]) * interval
    zero = np.zeros_like(correlations[..., :1])
    result: _Array = np.concatenate([zero, np.cumsum(steps, axis=-1)], axis=-1)
    return result


def _model(t: _Array, a: float, b: float, first: float, second: float) -> _Array:
    result: _Array = a * (1.0 - np.exp(-t / first)) + b * (1.0 - np.exp(-t / second))
    return result


def _fitted(lags: _Array, running: _Array, scatter: _Array) -> tuple[_Array, _Array]:
    """The two plateaus and times of the weighted fit."""
    from scipy.optimize import least_squares

    picked = np.unique(np.linspace(1, len(lags) - 1, min(_FITTED, len(lags) - 1)).astype(int))
    t, y, s = lags[picked], running[picked], scatter[picked]
    grown = s > 0
    power = float(np.polyfit(np.log(t[grown]), np.log(s[grown]), 1)[0]) if grown.sum() > 2 else 0.5
    weight = (t / t[-1]) ** -power
    level = max(float(np.abs(y[len(y) // 2 :]).mean()), 1e-300)
    span, shortest = float(t[-1]), float(lags[1])

    def off(p: _Array) -> _Array:
        residual: _Array = weight * (_model(t, p[0], p[1], *np.exp(p[2:])) - y / level)
        return residual

    def slopes(p: _Array) -> _Array:
        left = [np.exp(-t / time) for time in np.exp(p[2:])]
        of_times = [-p[k] * left[k] * t / math.exp(p[2 + k]) for k in (0, 1)]
        result: _Array = weight[:, None] * np.stack([1.0 - left[0], 1.0 - left[1], *of_times], axis=1)
        return result

    best: Any = None
    for quick, slow in ((0.01, 0.1), (0.05, 0.3)):
        start = [0.5, 0.5, math.log(max(quick * span, shortest)), math.log(max(slow * span, 1.5 * shortest))]
        low = [0.0, 0.0, math.log(0.1 * shortest), math.log(0.1 * shortest)]
        high = [3.0, 3.0, math.log(span / _SLOWEST), math.log(span / _SLOWEST)]
        start[2:] = [min(x, high[2] - 0.1) for x in start[2:]]
        got = least_squares(off, start, jac=slopes, bounds=(low, high), max_nfev=200)
        if best is None or got.cost < best.cost:
            best = got
    heights, times = np.asarray(best.x[:2]) * level, np.exp(best.x[2:])
    # A part without height has no time.
    times = np.where(np.abs(heights) < 0.02 * abs(heights.sum()), times[int(np.argmax(np.abs(heights)))], times)
    return heights, times
