"""Velocity autocorrelation, its spectrum and diffusion by Green and Kubo."""

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
from hpcagent.model.parameter import Float
from hpcagent.science.analysis.frames import BLOCKS, RANKS, Communicator, analyse, following, total
from hpcagent.science.lammps.frames import READING, Reading, Trajectory
from hpcagent.statistics.timeseries import block_average

__all__ = ["autocorrelations", "follow", "vacf"]

_Array = NDArray[np.float64]
_CM2_S = 1e-4
FAILURES = (
    "NoTrajectory",
    "BadTrajectory",
    "TooFewFrames",
    "NoUnits",
    "ReducedUnits",
    "NoTimes",
    "UnevenFrames",
    "NoIds",
    "NoVelocities",
    "NoMasses",
    "TooFewAtoms",
    "BadWindow",
    "MissingFile",
    "NoEngine",
    "AnalysisFailed",
)


@app(
    name="vacf",
    version="1.1.0",
    app_type="analysis",
    inputs=("run",),
    parameters={
        "length": Float(
            0.0, 1e6, unit="ps", default=0.0, description="longest lag; 0: a quarter of the time that is followed"
        ),
        "ranks": RANKS,
        **READING,
    },
    metrics={
        "diffusion": Metric(
            name="diffusion", unit="cm^2/s", description="self-diffusion coefficient (Green-Kubo)"
        ),
        "diffusion_angstrom2_ps": Metric(
            name="diffusion_angstrom2_ps", unit="angstrom^2/ps", description="the same in other units"
        ),
        "dos_peak": Metric(name="dos_peak", unit="THz", description="frequency at which the spectrum is largest"),
        "dos_mean": Metric(name="dos_mean", unit="THz", description="mean frequency of the spectrum"),
        "temperature": Metric(
            name="temperature", unit="K", description="mean kinetic temperature over d (N - 1)", required=False
        ),
        "n_frames": Metric(name="n_frames", unit="1", description="frames used"),
    },
    resources_from={"ranks_per_node": "ranks"},
    seeded=False,
    failure_modes=FAILURES,
    estimated_runtime_s=5.0,
)
def vacf(length: float, ranks: int, run: Run, **reading: Any) -> Outcome:
    """Velocity autocorrelation function, vibrational density of states and D by Green and Kubo.

    C(t) = <v_i(t0) . v_i(t0 + t)> over atoms and origins, without the velocity of the centre of mass;
    D = 1/d int C dt up to the longest lag (R. Kubo, J. Phys. Soc. Jpn. 12, 570 (1957)), d the number of directions
    in which atoms move. The density of states is
    the cosine transform of the mass-weighted C under a Hann window, normalised to d modes for each atom
    (J. M. Dickey and A. Paskin, Phys. Rev. 188, 1407 (1969), doi:10.1103/PhysRev.188.1407). The window widens
    lines to about 1/length. Our own code, by Fourier transforms: freud and MDAnalysis have no spectra, and
    dynasor's correlations are those of densities and currents.

    The error of D is the larger of the scatter of the atoms' own integrals and of what the time origins tell, as a
    correlated series (`hpcagent.statistics.timeseries`): atoms of a liquid move together.

    Raises:
        AppFailed: See `FAILURES`; `NoVelocities`; `NoMasses`: several species that are no elements; `BadWindow`;
            `TooFewAtoms`: a single one.
    """
    arrays = analyse(run, follow, Reading(**reading), {"length": length}, ranks)
    t, whole, weighted = arrays["lags"], arrays["vacf"], arrays["weighted"]
    names = [str(n) for n in arrays["names"]]
    interval = float(arrays["interval"])
    np.savetxt(
        run.workdir / "vacf.csv",
        np.column_stack([t, whole, whole / whole[0]]),
        delimiter=",",
        fmt="%.8g",
        header="time_ps,vacf_angstrom2_per_ps2,vacf_normalized_1",
        comments="",
    )
    frequency, spectra = _spectra(weighted, interval)
    dos = spectra.sum(axis=1)
    dimensions = int(arrays["dimensions"])
    scale = dimensions / np.trapezoid(dos, frequency)
    columns = [frequency, dos * scale, *(spectra.T * scale if len(names) > 1 else ())]
    partial = "".join(f",dos_{n}_per_atom_THz" for n in names) if len(names) > 1 else ""
    np.savetxt(
        run.workdir / "dos.csv",
        np.column_stack(columns),
        delimiter=",",
        fmt="%.8g",
        header=f"frequency_THz,dos_per_atom_THz{partial}",
        comments="",
    )
    own = arrays["integrals"] / dimensions
    diffusion = float(own.mean())
    # Atoms that push each other have fewer independent integrals than there are atoms.
    error = block_average(arrays["origins"])[1] / dimensions
    if own.size > 2:
        error = max(error, float(own.std(ddof=1)) / math.sqrt(own.size)) if math.isfinite(error) else error
    top = int(np.argmax(dos))
    notes = [str(n) for n in arrays["notes"]]
    if not math.isfinite(error):
        notes.append("no error is stated of the diffusion coefficient: the run holds too few correlation times")
    highest = 0.5 / interval
    if top > 0.5 * len(frequency) or dos[-1] > 0.05 * dos[top]:
        notes.append(
            f"frames are {interval:g} ps apart, so frequencies above {highest:.4g} THz appear as lower ones; "
            "write velocities more often"
        )
    metrics = {
        "diffusion": diffusion * _CM2_S,
        "diffusion_angstrom2_ps": diffusion,
        "dos_peak": float(frequency[top]),
        "dos_mean": float(np.trapezoid(frequency * np.maximum(dos, 0), frequency))
        / float(np.trapezoid(np.maximum(dos, 0), frequency)),
        "n_frames": float(arrays["n_frames"]),
    }
    temperature = float(arrays["temperature"])
    if math.isfinite(temperature):
        metrics["temperature"] = temperature
    return Outcome(
        metrics=metrics,
        uncertainty={"diffusion": error * _CM2_S, "diffusion_angstrom2_ps": error} if math.isfinite(error) else {},
        artifacts={"vacf": "vacf.csv", "dos": "dos.csv"},
        notes=tuple(notes),
    )


def _spectra(weighted: _Array, interval: float) -> tuple[_Array, _Array]:
    """Frequencies (n,) in THz and spectra (n, n_species), not normalised."""
    n = len(weighted)
    hann = 0.5 * (1.0 + np.cos(np.pi * np.arange(n) / n))
    windowed = weighted * hann[:, None]
    # The even continuation to negative lags makes the transform real.
    even = np.concatenate([windowed, np.zeros((1, weighted.shape[1])), windowed[:0:-1]])
    padded = np.zeros((4 * len(even), weighted.shape[1]))
    padded[:n] = windowed
    padded[-(n - 1) :] = even[-(n - 1) :]
    spectra: _Array = np.fft.rfft(padded, axis=0).real
    frequency: _Array = np.asarray(np.fft.rfftfreq(len(padded), interval), np.float64)
    return frequency, spectra


def follow(
    trajectory: Trajectory, reading: Reading, params: Mapping[str, Any], folder: Path, comm: Communicator
) -> dict[str, NDArray[Any]]:
    """Work of `vacf`.

    Returns:
        On rank 0: `lags` (n_lags,) ps; `vacf` (n_lags,) angstrom^2/ps^2; `weighted` (n_lags, n_species), the sums
        of m v.v over the atoms of each of `names`; `integrals` (n_atoms,) of v.v, angstrom^2/ps; `origins`
        (n_frames - n_lags + 1,), the same by time origin, for an atom; `interval` ps;
        `temperature`, `n_frames`; `dimensions`, in how many directions atoms move.
    """
    with following(trajectory, reading, "velocity", folder, comm) as data:
        return _correlated(trajectory, data, params, comm)


def _correlated(
    trajectory: Trajectory, data: Any, params: Mapping[str, Any], comm: Communicator
) -> dict[str, Any]:
    names = sorted(set(map(str, data.species)))
    if not data.weighed and len(names) > 1:
        raise AppFailed(
            f"the spectrum is weighed with masses, and {', '.join(names)} of {trajectory.path.name} are no "
            "elements.",
            kind="contract",
            name="NoMasses",
            repair="name the dump's types with `species`, or add mass to its columns",
        )
    n_frames, n_atoms = data.rows.shape[:2]
    span = (n_frames - 1) * data.interval_ps
    wanted = float(params["length"]) or 0.25 * span
    n_lags = math.floor(wanted / data.interval_ps + 1e-9) + 1
    if not 4 <= n_lags < n_frames:
        raise AppFailed(
            f"length={wanted:g} ps is {n_lags - 1} intervals of {data.interval_ps:g} ps; at least 3 are needed, "
            f"and less than the trajectory's {span:g} ps.",
            kind="contract",
            name="BadWindow",
            repair="set `length`, or write more frames",
        )
    groups = np.array_split(np.arange(n_atoms), min(n_atoms, BLOCKS))
    of_species = {name: i for i, name in enumerate(names)}
    place = np.array([of_species[str(name)] for name in data.species])

    def part(group: int) -> tuple[NDArray[Any], ...]:
        summed, weighted = np.zeros(n_lags), np.zeros((n_lags, len(names)))
        integrals, origins = np.zeros(n_atoms), np.zeros(n_frames - n_lags + 1)
        members = groups[group]
        at_once = max(1, 2_000_000 // n_frames)
        for start in range(0, len(members), at_once):
            some = members[start : start + at_once]
            velocities = np.asarray(data.rows[:, some[0] : some[-1] + 1, :])
            own = autocorrelations(velocities, n_lags).sum(axis=2)
            summed += own.sum(axis=1)
            np.add.at(weighted.T, place[some], (own * data.masses[some]).T)
            integrals[some] = np.trapezoid(own, dx=data.interval_ps, axis=0)
            origins += (velocities[: len(origins)] * _integrated(velocities, n_lags, data.interval_ps)).sum(
                axis=(1, 2)
            )
        return summed, weighted, integrals, origins

    got = total(len(groups), part, comm)
    if got is None:
        return {}
    return {
        "lags": np.arange(n_lags) * data.interval_ps,
        "vacf": got[0] / n_atoms,
        "weighted": got[1],
        "integrals": got[2],
        "origins": got[3] / n_atoms,
        "names": np.array(names),
        "interval": np.array(data.interval_ps),
        "temperature": np.array(data.temperature),
        "n_frames": np.array(n_frames),
        "dimensions": np.array(len(data.moving)),
    }


def _integrated(velocities: _Array, n_lags: int, interval: float) -> _Array:
    """(n_frames - n_lags + 1, ...) integral over the `n_lags` frames from each one on, by the trapezoidal rule."""
    sums = np.concatenate([np.zeros_like(velocities[:1]), np.cumsum(velocities, axis=0)])
    count = len(velocities) - n_lags + 1
    ends = 0.5 * (velocities[:count] + velocities[n_lags - 1 :])
    result: _Array = (sums[n_lags:] - sums[:count] - ends) * interval
    return result


def autocorrelations(values: _Array, n_lags: int) -> _Array:
    """<x(t0) x(t0 + t)> of each column over all time origins, by Fourier transforms.

    Args:
        values: (n_frames, ...) float64.
        n_lags: How many lags, 0 among them.

    Returns:
        (n_lags, ...), in the unit of `values` squared.
    """
    from scipy.fft import irfft, next_fast_len, rfft

    n = len(values)
    length = next_fast_len(n + n_lags, real=True)
    spectrum = rfft(values, length, axis=0)
    products = irfft((spectrum * spectrum.conj()).real, length, axis=0)[:n_lags]
    pairs = (n - np.arange(n_lags)).reshape(-1, *([1] * (values.ndim - 1)))
    result: _Array = products / pairs
    return result
