"""Coordination numbers of the atoms of a trajectory or of a structure."""

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
from hpcagent.science.analysis.frames import RANKS, Communicator, analyse, shares
from hpcagent.science.analysis.rdf import (
    FAILURES,
    averaged,
    count,
    freud_system,
    is_flat,
    largest_radius,
    pair_masks,
    peaks,
)
from hpcagent.science.lammps.frames import READING, Reading, Trajectory
from hpcagent.statistics.timeseries import block_average

__all__ = ["coordination", "count_neighbors"]

# More neighbours than this are counted as this many in the histogram.
_MOST = 200


@app(
    name="coordination",
    version="1.0.0",
    app_type="analysis",
    inputs=("run",),
    parameters={
        "cutoff": Float(
            0.0, 100.0, unit="angstrom", default=0.0, description="neighbours are nearer; 0: first minimum of g(r)"
        ),
        "a": Text(default="", description="species around which is counted; empty: all"),
        "b": Text(default="", description="species that are counted; empty: all"),
        "ranks": RANKS,
        **READING,
    },
    metrics={
        "coordination_number": Metric(
            name="coordination_number", unit="1", description="mean number of neighbours b of an atom a"
        ),
        "coordination_spread": Metric(
            name="coordination_spread", unit="1", description="standard deviation of that number over the atoms"
        ),
        "cutoff_used": Metric(name="cutoff_used", unit="angstrom", description="distance within which is counted"),
        "n_frames": Metric(name="n_frames", unit="1", description="frames used"),
    },
    resources_from={"ranks_per_node": "ranks"},
    seeded=False,
    failure_modes=(*FAILURES, "NoFirstShell"),
    estimated_runtime_s=2.0,
)
def coordination(cutoff: float, a: str, b: str, ranks: int, run: Run, **reading: Any) -> Outcome:
    """Mean coordination number and its distribution over the atoms of a trajectory.

    Neighbours are found by freud (doi:10.1016/j.cpc.2020.107275), also in cells that are open in some directions.

    Raises:
        AppFailed: As `rdf`; `NoFirstShell`: no cutoff is given and g(r) has no first minimum.
    """
    how = Reading(**reading)
    notes: list[str] = []
    if not cutoff:
        cutoff = _first_minimum(run, how, a, b, ranks)
        notes.append(f"neighbours are counted up to the first minimum of g(r), {cutoff:.4g} angstrom")
    arrays = analyse(run, count_neighbors, how, {"cutoff": cutoff, "a": a, "b": b}, ranks)
    histogram = arrays["histogram"].sum(axis=0)
    numbers = np.arange(histogram.size)
    share = histogram / histogram.sum()
    mean, error = block_average(arrays["mean"])
    mean = float(numbers @ share)
    last = int(np.flatnonzero(histogram)[-1]) + 1
    np.savetxt(
        run.workdir / "coordination.csv",
        np.column_stack([numbers, share])[:last],
        delimiter=",",
        fmt="%.8g",
        header="neighbors_1,share_of_atoms_1",
        comments="",
    )
    if histogram[-1]:
        notes.append(f"some atoms have {_MOST} neighbours or more; the mean is too low")
    return Outcome(
        metrics={
            "coordination_number": mean,
            "coordination_spread": math.sqrt(max(float(numbers**2 @ share) - mean**2, 0.0)),
            "cutoff_used": cutoff,
            "n_frames": float(arrays["frames"].sum()),
        },
        uncertainty={"coordination_number": error} if math.isfinite(error) else {},
        artifacts={"coordination": "coordination.csv"},
        notes=(*map(str, arrays["notes"]), *notes),
    )


def _first_minimum(run: Run, how: Reading, a: str, b: str, ranks: int) -> float:
    arrays = analyse(run, count, how, {"r_max": 0.0, "bins": 200, "a": a, "b": b}, ranks)
    r, g, _, noise = averaged(arrays)
    _, minimum = peaks(r, g, noise)
    if minimum is None:
        raise AppFailed(
            "g(r) has no first minimum, so there is no first shell to count.",
            kind="contract",
            name="NoFirstShell",
            repair="give `cutoff`, in angstrom",
        )
    return minimum


def count_neighbors(
    trajectory: Trajectory, reading: Reading, params: Mapping[str, Any], folder: Path, comm: Communicator
) -> dict[str, NDArray[Any]]:
    """Work of `coordination`: histograms (n_blocks, 201) of the number of neighbours, and each block's mean."""
    import freud

    cutoff = float(params["cutoff"])
    mine = []
    freud.parallel.set_num_threads(1)  # what the run has asked for
    trajectory.velocities = False
    numbers = trajectory.chosen(reading)
    flat = is_flat(trajectory, numbers)
    for block, members in shares(numbers, comm):
        histogram = np.zeros(_MOST + 1, np.int64)
        for frame in trajectory.frames(members):
            largest_radius(trajectory, frame, cutoff, axes=2 if flat else 3)
            mask_a, mask_b = pair_masks(trajectory, frame, params["a"], params["b"])
            box, positions = freud_system(frame, flat=flat)
            query = freud.locality.AABBQuery(box, positions[mask_b])
            found = query.query(positions[mask_a], {"r_max": cutoff, "exclude_ii": False}).toNeighborList()
            index_a, index_b = np.flatnonzero(mask_a), np.flatnonzero(mask_b)
            centers = np.asarray(found.query_point_indices)
            other = index_a[centers] != index_b[np.asarray(found.point_indices)]
            neighbors = np.bincount(centers[other], minlength=len(index_a))
            histogram += np.bincount(np.minimum(neighbors, _MOST), minlength=_MOST + 1)
        mine.append((block, len(members), histogram))
    gathered = comm.gather(mine)
    if comm.rank != 0:
        return {}
    blocks = sorted((b for part in gathered for b in part), key=lambda b: b[0])
    histograms = np.array([b[2] for b in blocks])
    return {
        "histogram": histograms,
        "frames": np.array([b[1] for b in blocks]),
        "mean": histograms @ np.arange(_MOST + 1) / histograms.sum(axis=1),
    }
