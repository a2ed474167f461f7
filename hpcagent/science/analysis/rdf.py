"""The radial distribution function of a trajectory."""

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
from hpcagent.model.parameter import Float, Int, Text
from hpcagent.science.analysis.frames import RANKS, Communicator, analyse, shares
from hpcagent.science.lammps.frames import READING, Frame, Reading, Trajectory
from hpcagent.statistics.timeseries import block_average

__all__ = ["averaged", "count", "freud_system", "is_flat", "largest_radius", "pair_masks", "peaks", "rdf"]

_Array = NDArray[np.float64]
FAILURES = (
    "NoTrajectory",
    "BadTrajectory",
    "TooFewFrames",
    "NoUnits",
    "ReducedUnits",
    "NoSuchSpecies",
    "NotPeriodic",
    "CellTooSmall",
    "MissingFile",
    "NoEngine",
    "AnalysisFailed",
)
_DRAWS = 200
# Used where r_max is not given: beyond it g(r) of liquids is 1.
_FAR = 15.0


@app(
    name="rdf",
    version="1.1.0",
    app_type="analysis",
    inputs=("run",),
    parameters={
        "r_max": Float(
            0.0,
            100.0,
            unit="angstrom",
            default=0.0,
            description="largest distance; 0: 0.48 of the cell's smallest height (of the plane), at most 15",
        ),
        "bins": Int(10, 10000, default=200, description="intervals of the distance"),
        "a": Text(default="", description="species around which is counted; empty: all"),
        "b": Text(default="", description="species that are counted; empty: all"),
        "ranks": RANKS,
        **READING,
    },
    metrics={
        "first_peak": Metric(
            name="first_peak", unit="angstrom", description="distance of the first maximum of g(r)", required=False
        ),
        "first_peak_height": Metric(
            name="first_peak_height", unit="1", description="g(r) at the first maximum", required=False
        ),
        "first_minimum": Metric(
            name="first_minimum", unit="angstrom", description="distance of the minimum after it", required=False
        ),
        "coordination_number": Metric(
            name="coordination_number",
            unit="1",
            description="atoms b around an atom a up to the first minimum: 4 pi rho_b times the integral of g r^2 "
            "(2 pi rho_b times that of g r in two dimensions)",
            required=False,
        ),
        "number_density": Metric(
            name="number_density",
            unit="1/angstrom^3",
            description="mean number density of the atoms b, in three dimensions",
            required=False,
        ),
        "areal_density": Metric(
            name="areal_density",
            unit="1/angstrom^2",
            description="mean number of atoms b for an area, in two dimensions",
            required=False,
        ),
        "n_frames": Metric(name="n_frames", unit="1", description="frames used"),
    },
    resources_from={"ranks_per_node": "ranks"},
    seeded=False,
    failure_modes=FAILURES,
    estimated_runtime_s=2.0,
)
def rdf(r_max: float, bins: int, a: str, b: str, ranks: int, run: Run, **reading: Any) -> Outcome:
    """Radial distribution function g(r) of a trajectory, its first shell and the coordination number.

    g(r) = <V n(r)> / (N_a (N_b - delta_ab) 4/3 pi ((r+dr)^3 - r^3)), n(r) the pairs in [r, r+dr): 1 for an ideal
    gas also of few atoms, as LAMMPS and freud's `finite_size` have it (M. P. Allen and D. J. Tildesley, Computer
    Simulation of Liquids, 2nd ed., sec. 2.6). Pairs are counted by freud (V. Ramasubramani et al., Comput. Phys.
    Commun. 254, 107275 (2020), doi:10.1016/j.cpc.2020.107275); the division is done here because freud takes the
    volume of the last frame for all of them. Errors are those of correlated blocks of frames.

    The first maximum is the first one that stands out by more than a tenth of g's highest value and more than four
    of its errors; a gas has none, and then the metrics of the shell are absent.

    In two dimensions areas pi ((r+dr)^2 - r^2) take the place of volumes: where the log of the run says
    `dimension 2` or, without a log, all atoms of the first and the last frame lie in one plane z.

    Raises:
        AppFailed: See `FAILURES`; `CellTooSmall`: r_max is more than half of the cell's smallest height.
    """
    arrays = analyse(run, count, Reading(**reading), {"r_max": r_max, "bins": bins, "a": a, "b": b}, ranks)
    edges, weights = arrays["edges"], arrays["frames"]
    n_frames = int(weights.sum())
    r, g, g_error, noise = averaged(arrays)
    around = np.cumsum(np.average(arrays["neighbors"], axis=0, weights=weights))
    table = np.column_stack([r, g, g_error, around])
    np.savetxt(
        run.workdir / "rdf.csv",
        table,
        delimiter=",",
        fmt="%.8g",
        header="r_angstrom,g_1,g_error_1,neighbors_within_1",
        comments="",
    )
    density, density_error = block_average(arrays["density"])
    flat = bool(arrays["flat"])
    which = "areal_density" if flat else "number_density"
    metrics = {which: density, "n_frames": float(n_frames)}
    uncertainty = {which: density_error}
    notes = [str(n) for n in arrays["notes"]]
    if flat:
        notes.append("g(r) is that of two dimensions")
    peak, minimum = peaks(r, g, noise)
    if peak is None:
        notes.append("g(r) has no maximum that stands out of its noise: no first shell")
    else:
        metrics |= {"first_peak": peak[0], "first_peak_height": peak[1]}
        uncertainty["first_peak_height"] = float(g_error[int(np.argmin(np.abs(r - peak[0])))])
        others = _redrawn(r, g, noise)
        uncertainty["first_peak"] = _scatter([p[0] for p, _ in others if p is not None])
        if minimum is None:
            notes.append("g(r) has no minimum after its first maximum within r_max; a larger r_max may show it")
    if peak is not None and minimum is not None:
        shell = arrays["neighbors"] @ _inside(edges, minimum)
        metrics |= {
            "first_minimum": minimum,
            "coordination_number": float(np.average(shell, weights=weights)),
        }
        # Most of its error is that of where the shell ends.
        ends = [m for _, m in others if m is not None]
        whole = np.average(arrays["neighbors"], axis=0, weights=weights)
        uncertainty["first_minimum"] = _scatter(ends)
        uncertainty["coordination_number"] = math.hypot(
            block_average(shell)[1], _scatter([float(whole @ _inside(edges, end)) for end in ends])
        )
    return Outcome(
        metrics=metrics,
        uncertainty={k: v for k, v in uncertainty.items() if math.isfinite(v)},
        artifacts={"rdf": "rdf.csv"},
        notes=tuple(notes),
    )


def _inside(edges: _Array, end: float) -> _Array:
    """(bins,) share of each interval that lies below `end`."""
    return np.clip((end - edges[:-1]) / (edges[1:] - edges[:-1]), 0.0, 1.0)


def _redrawn(r: _Array, g: _Array, noise: _Array) -> list[tuple[tuple[float, float] | None, float | None]]:
    """First maximum and minimum of g(r) with its noise added once more, many times over (a parametric bootstrap).

    B. Efron, Ann. Stat. 7, 1 (1979), doi:10.1214/aos/1176344552. A minimum is flat, so that it moves by jumps,
    which no derivative tells.
    """
    draws = np.random.default_rng(0).normal(size=(_DRAWS, g.size))
    return [peaks(r, np.maximum(g + noise * draw, 0.0), noise) for draw in draws]


def _scatter(found: list[float]) -> float:
    return float(np.std(found, ddof=1)) if len(found) > 0.9 * _DRAWS else math.nan


def count(
    trajectory: Trajectory, reading: Reading, params: Mapping[str, Any], folder: Path, comm: Communicator
) -> dict[str, NDArray[Any]]:
    """Work of `rdf`: sums of each block of frames.

    Returns:
        On rank 0: `edges` (bins + 1,) angstrom; `g` and `neighbors` (pairs for each atom a) (n_blocks, bins);
        `density` (n_blocks,) 1/angstrom^3, or 1/angstrom^2 where `flat`; `pairs` (n_blocks, bins), ordered ones
        that were counted; `frames` (n_blocks,), how many each block has.
    """
    import freud

    numbers = trajectory.chosen(reading)
    first = trajectory.read(int(numbers[0]))
    flat = is_flat(trajectory, numbers)
    _check_periodic(trajectory, first, flat=flat)
    bins = int(params["bins"])
    r_max = float(params["r_max"]) or min(0.48 * float(first.heights[: 2 if flat else 3].min()), _FAR)
    counter = freud.density.RDF(bins=bins, r_max=r_max)
    edges = np.asarray(counter.bin_edges, np.float64)
    shells = np.pi * np.diff(edges**2) if flat else 4.0 / 3.0 * np.pi * np.diff(edges**3)
    mine = []
    freud.parallel.set_num_threads(1)  # what the run has asked for
    trajectory.velocities = False
    for block, members in shares(numbers, comm):
        g, around, counted, density = np.zeros(bins), np.zeros(bins), np.zeros(bins), 0.0
        for frame in trajectory.frames(members):
            if flat:
                _check_in_plane(trajectory, frame)
            largest_radius(trajectory, frame, r_max, axes=2 if flat else 3)
            mask_a, mask_b = pair_masks(trajectory, frame, params["a"], params["b"])
            pairs = _pairs(counter, frame, mask_a, mask_b, same=params["a"] == params["b"], flat=flat)
            size = float(np.linalg.norm(np.cross(*frame.cell[:2]))) if flat else frame.volume
            n_a, n_b = int(mask_a.sum()), int(mask_b.sum())
            others = n_b - int((mask_a & mask_b).sum()) / n_a
            around += pairs / n_a
            counted += pairs
            density += n_b / size
            if others > 0:
                g += pairs * (size / (n_a * others)) / shells
        n = len(members)
        mine.append((block, n, g / n, around / n, density / n, counted))
    gathered = comm.gather(mine)
    if comm.rank != 0:
        return {}
    blocks = sorted((b for part in gathered for b in part), key=lambda b: b[0])
    return {
        "edges": edges,
        "frames": np.array([b[1] for b in blocks]),
        "g": np.array([b[2] for b in blocks]),
        "neighbors": np.array([b[3] for b in blocks]),
        "density": np.array([b[4] for b in blocks]),
        "pairs": np.array([b[5] for b in blocks]),
        "flat": np.array(flat),
    }


def is_flat(trajectory: Trajectory, numbers: NDArray[np.intp]) -> bool:
    """Whether the system has two dimensions: as the run's log says, else by where its atoms are."""
    if trajectory.dimension is not None:
        return trajectory.dimension == 2
    ends = [trajectory.read(int(numbers[i])) for i in (0, -1)]
    return all(len(f.positions) > 2 and np.ptp(f.positions[:, 2]) == 0.0 and _upright(f) for f in ends)


def _upright(frame: Frame) -> bool:
    """Whether the third cell vector is along z, and the others are not."""
    return not (frame.cell[:2, 2].any() or frame.cell[2, :2].any())


def _check_in_plane(trajectory: Trajectory, frame: Frame) -> None:
    if np.ptp(frame.positions[:, 2]) > 1e-6 or not _upright(frame):
        raise trajectory.bad(
            f"at step {frame.step} the atoms do not lie in one plane z, though the system has two dimensions"
        )


def _check_periodic(trajectory: Trajectory, frame: Frame, *, flat: bool) -> None:
    if not all(frame.pbc[: 2 if flat else 3]) or frame.volume == 0.0:
        raise AppFailed(
            f"the cell of {trajectory.path.name} is not periodic in all directions, so it has no density to "
            "compare with and no g(r).",
            kind="contract",
            name="NotPeriodic",
            repair="`coordination` counts neighbours without one",
        )


def largest_radius(trajectory: Trajectory, frame: Frame, r_max: float, axes: int = 3) -> None:
    """Refuse a distance beyond which periodic images would be missed.

    Raises:
        AppFailed: `CellTooSmall`.
    """
    heights = frame.heights[:axes][np.array(frame.pbc[:axes])]
    half = 0.5 * float(np.min(heights, initial=np.inf))
    if r_max > half:
        raise AppFailed(
            f"r_max={r_max:g} angstrom is more than half of the smallest height of the cell, {half:.4g} angstrom, "
            f"at step {frame.step} of {trajectory.path.name}.",
            kind="contract",
            name="CellTooSmall",
            repair=f"r_max at most {math.floor(half * 100) / 100:g}, or a larger cell",
        )


def pair_masks(
    trajectory: Trajectory, frame: Frame, a: str, b: str
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which atoms are of species `a`, which of `b`; all for an empty name.

    Raises:
        AppFailed: `NoSuchSpecies`.
    """
    masks = []
    for name in (a, b):
        mask: NDArray[np.bool_] = frame.species == name if name else np.ones(len(frame.species), np.bool_)
        if not mask.any():
            raise AppFailed(
                f"{trajectory.path.name} has no atoms of species {name!r} at step {frame.step}; it has "
                f"{', '.join(sorted(set(map(str, frame.species))))}.",
                kind="contract",
                name="NoSuchSpecies",
                repair="types of a LAMMPS dump get their names from `species`",
            )
        masks.append(mask)
    return masks[0], masks[1]


def _pairs(
    counter: Any, frame: Frame, mask_a: NDArray[np.bool_], mask_b: NDArray[np.bool_], *, same: bool, flat: bool
) -> _Array:
    """Ordered pairs (a, b) in each interval of the distance."""
    box, positions = freud_system(frame, flat=flat)
    same = same or bool((mask_a & mask_b).any())
    if same and not np.array_equal(mask_a, mask_b):
        # One kind is all atoms, the other some: freud leaves out pairs by index, so the lists must agree.
        import freud

        query = freud.locality.AABBQuery(box, positions[mask_b])
        found = query.query(positions[mask_a], {"r_max": counter.r_max, "exclude_ii": False}).toNeighborList()
        index_a, index_b = np.flatnonzero(mask_a), np.flatnonzero(mask_b)
        found.filter(index_a[found.query_point_indices] != index_b[found.point_indices])
        counter.compute((box, positions[mask_b]), query_points=positions[mask_a], neighbors=found)
    elif same:
        counter.compute((box, positions[mask_b]))
    else:
        counter.compute((box, positions[mask_b]), query_points=positions[mask_a])
    return np.asarray(counter.bin_counts, np.float64)


def freud_system(frame: Frame, *, flat: bool = False) -> tuple[Any, NDArray[np.float32]]:
    """freud's box and positions of a frame, in the orientation that freud wants; `flat`: in two dimensions."""
    import freud

    if flat and all(frame.pbc[:2]):
        return _plane(frame)
    if not all(frame.pbc):
        return _open_system(frame)
    box, rotation = freud.box.Box.from_box(_lower(frame.cell).T), _rotation(frame.cell)
    box.periodic = frame.pbc
    return box, box.wrap(frame.positions @ rotation)


def _plane(frame: Frame) -> tuple[Any, NDArray[np.float32]]:
    import freud

    (ax, ay), (bx, by) = frame.cell[:2, :2]
    length = math.hypot(ax, ay)
    turn = np.array([[ax, -ay], [ay, ax]]) / length
    across = abs(ax * by - ay * bx) / length
    along = (ax * bx + ay * by) / length
    box = freud.box.Box(Lx=length, Ly=across, xy=along / across, is2D=True)
    inside = np.zeros_like(frame.positions)
    inside[:, :2] = frame.positions[:, :2] @ turn
    if ax * by < ay * bx:
        inside[:, 1] *= -1.0  # a left-handed cell is mirrored
    return box, box.wrap(inside)


def _open_system(frame: Frame) -> tuple[Any, NDArray[np.float32]]:
    """Open directions get a cell that holds all atoms and no image near enough to matter."""
    import freud
    from ase.geometry import complete_cell

    pbc = np.array(frame.pbc)
    cell = np.array(complete_cell(np.where(pbc[:, None], frame.cell, 0.0)))
    share = frame.positions @ np.linalg.inv(cell)
    for axis in np.flatnonzero(~pbc):
        low, high = share[:, axis].min(), share[:, axis].max()
        width = max(high - low, 1e-9)
        cell[axis] *= 2.0 * width + 1000.0 / np.linalg.norm(cell[axis])
    middle = 0.5 * (frame.positions.min(axis=0) + frame.positions.max(axis=0))
    box, rotation = freud.box.Box.from_box(_lower(cell).T), _rotation(cell)
    return box, box.wrap((frame.positions - middle) @ rotation)


def _lower(cell: _Array) -> _Array:
    """The cell turned so that a is along x and b in the plane of x and y; a left-handed one is mirrored."""
    _, r = np.linalg.qr(cell.T)
    signs = np.where(np.diag(r) < 0, -1.0, 1.0)
    result: _Array = (signs[:, None] * r).T
    return result


def _rotation(cell: _Array) -> _Array:
    q, r = np.linalg.qr(cell.T)
    signs = np.where(np.diag(r) < 0, -1.0, 1.0)
    result: _Array = q * signs
    return result


def averaged(arrays: Mapping[str, NDArray[Any]]) -> tuple[_Array, _Array, _Array, _Array]:
    """Distances, g, its error, and the noise by which a maximum is judged, from what `count` gives.

    Few blocks or pairs tell no error; the noise is then that of independent pairs, g sqrt(2 / pairs).
    """
    edges = arrays["edges"]
    g = np.average(arrays["g"], axis=0, weights=arrays["frames"])
    error = np.array([block_average(arrays["g"][:, i])[1] for i in range(g.size)])
    pairs = arrays["pairs"].sum(axis=0)
    independent = g * np.sqrt(2.0 / np.maximum(pairs, 1.0))
    noise = np.where(np.isnan(error) | (pairs < 50), independent, error)
    return 0.5 * (edges[1:] + edges[:-1]), g, error, noise


def peaks(r: _Array, g: _Array, noise: _Array) -> tuple[tuple[float, float] | None, float | None]:
    """First maximum (distance, height) and the minimum after it, where g has them.

    The minimum lies between the first maximum and the next one, in the middle of a flat stretch. Positions lie on
    the parabola through the three highest points, or the lowest ones as far as noise cannot tell them apart: which
    of them happens to be lowest would make the minimum jump by whole intervals, and the shell with it.
    """
    from scipy.signal import find_peaks

    padded = np.concatenate([[0.0], g])  # a maximum in the first interval counts as well
    tops, found = find_peaks(padded, prominence=max(0.1 * float(g.max()), 1e-12), height=1.0)
    tops = tops - 1
    clear = (found["prominences"] > 4.0 * noise[tops]) & (g[tops] > 1.0 + 4.0 * noise[tops])
    if not clear.any():
        return None, None
    top = int(tops[clear][0])
    # Any later maximum that stands out of the noise ends the search for the minimum.
    later, found = find_peaks(g, prominence=max(0.02 * float(g.max()), 1e-12))
    later = later[(later > top) & (found["prominences"] > 2.0 * noise[later])]
    peak = _parabola(r, g, top)
    if later.size == 0:
        return peak, None
    between = g[top : later[0] + 1]
    lowest = np.flatnonzero(between <= between.min() + 1e-12)
    if lowest.size > 1:
        return peak, float(0.5 * (r[top + lowest[0]] + r[top + lowest[-1]]))
    return peak, _valley(r, g, noise, top + int(lowest[0]), (top, int(later[0])))


def _valley(r: _Array, g: _Array, noise: _Array, lowest: int, ends: tuple[int, int]) -> float:
    """Minimum of the parabola fitted to the points within four errors of the lowest, three at least."""
    near = g <= g[lowest] + 4.0 * np.hypot(noise, noise[lowest])
    low, high = lowest - 1, lowest + 1
    while low > ends[0] + 1 and near[low - 1]:
        low -= 1
    while high < ends[1] - 1 and near[high + 1]:
        high += 1
    if low < 0 or high >= len(g) or high - low < 3:
        return _parabola(r, g, lowest)[0]
    around = r[low : high + 1] - r[lowest]
    curvature, slope, _ = np.polyfit(around, g[low : high + 1], 2)
    shift = -0.5 * slope / curvature if curvature > 0 else 0.0
    return float(r[lowest] + min(max(shift, around[0]), around[-1]))


def _parabola(r: _Array, g: _Array, i: int) -> tuple[float, float]:
    if not 0 < i < len(g) - 1:
        return float(r[i]), float(g[i])
    below, here, above = g[i - 1], g[i], g[i + 1]
    curvature = below - 2.0 * here + above
    if curvature == 0.0:
        return float(r[i]), float(here)
    shift = 0.5 * (below - above) / curvature
    return float(r[i] + shift * (r[1] - r[0])), float(here - 0.25 * (below - above) * shift)
