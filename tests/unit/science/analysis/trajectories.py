"""Trajectories with known answers, as runs leave them."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from hpcagent.apps.run import Run


def dump(
    path: Path,
    positions: np.ndarray,
    cell: np.ndarray | float,
    *,
    velocities: np.ndarray | None = None,
    element: str | list[str] = "Ar",
    wrapped: bool = True,
    every: int = 1,
    pbc: str = "pp",
) -> Path:
    """A LAMMPS dump of (n_frames, n_atoms, 3) positions in an upright cell (edges, or one for each frame)."""
    n = positions.shape[1]
    cells = np.broadcast_to(np.asarray(cell, float), (len(positions), 3))
    names = [element] * n if isinstance(element, str) else element
    columns = (
        "id element " + ("x y z" if wrapped else "xu yu zu") + (" vx vy vz" if velocities is not None else "")
    )
    with path.open("w") as file:
        for i, frame in enumerate(positions):
            file.write(
                f"ITEM: TIMESTEP\n{i * every}\nITEM: NUMBER OF ATOMS\n{n}\nITEM: BOX BOUNDS {pbc} {pbc} {pbc}\n"
            )
            file.writelines(f"0 {edge:.17g}\n" for edge in cells[i])
            file.write(f"ITEM: ATOMS {columns}\n")
            placed = np.mod(frame, cells[i]) if wrapped else frame
            rows = placed if velocities is None else np.hstack([placed, velocities[i]])
            file.writelines(
                f"{k + 1} {names[k]} " + " ".join(f"{v:.17g}" for v in row) + "\n"
                for k, row in enumerate(rows.tolist())
            )
    return path


def upstream(folder: Path, trajectory: str = "a.dump", **more: Any) -> dict[str, Any]:
    artifacts = {"trajectory": trajectory, **more.pop("artifacts", {})}
    return {"status": "COMPLETED", "workdir": str(folder), "artifacts": artifacts, "metrics": {}, **more}


def run_of(folder: Path, *inputs: dict[str, Any], ranks: int = 1) -> Run:
    """A run in a fresh directory of its own; its first input is the trajectory in `folder` if none is given."""
    work = Path(tempfile.mkdtemp(prefix="work-", dir=folder))
    resources = {"nodes": 1, "ranks_per_node": ranks, "threads_per_rank": 1}
    return Run(workdir=work, upstream=inputs or (upstream(folder),), resources=resources)


def walk(n_frames: int, n_atoms: int, step: float, seed: int, edge: float) -> np.ndarray:
    """A random walk with `step` angstrom (rms along each direction) between frames: D = step^2 / (2 dt)."""
    rng = np.random.default_rng(seed)
    jumps = rng.normal(0.0, step, (n_frames, n_atoms, 3))
    jumps[0] = rng.uniform(0, edge, (n_atoms, 3))
    return np.cumsum(jumps, axis=0)
