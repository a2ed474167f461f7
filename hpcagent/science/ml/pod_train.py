"""Trains a potential of the kind POD on labelled structures, with calibrated errors of its forces."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcagent.apps.decorator import app
from hpcagent.apps.ending import Limit, finish
from hpcagent.apps.launch import planned
from hpcagent.apps.made_with import sha256
from hpcagent.apps.packages import versions_of
from hpcagent.apps.printed import read_tail
from hpcagent.apps.run import Outcome, Run
from hpcagent.errors import AppFailed
from hpcagent.model.contract import Metric
from hpcagent.model.parameter import Float, Int, Parameter, Text
from hpcagent.science.lammps.executable import command, variables
from hpcagent.science.ml.labelled import Labelled, read_labelled, write_dropped
from hpcagent.science.ml.pod import (
    Calibration,
    Committee,
    Frame,
    Rows,
    calibrated,
    fitted,
    parameter_file,
    rows_of,
)
from hpcagent.science.ml.saved import path_of, save
from hpcagent.statistics.rms import rms_error

__all__ = ["DESCRIPTORS", "train_pod_potential"]

_Array = NDArray[np.float64]
PARAMETERS_FILE = "potential.pod"
COEFFICIENTS_FILE = "potential_coefficients.pod"
MODEL_FILE = "potential.npz"
_FOLDER = "training"
# fitpod reads positions with 8 digits, and prints coefficients with as many.
_SAME_FORCES = 1e-3

DESCRIPTORS: dict[str, Parameter] = {
    "rcut": Float(2.0, 15.0, unit="angstrom", default=4.7, description="outer cutoff of the descriptors"),
    "rin": Float(0.1, 3.0, unit="angstrom", default=0.5, description="inner cutoff, below all distances"),
    "two_body": Int(1, 20, default=6, description="radial functions of pairs"),
    "three_body": Int(0, 20, default=5, description="radial functions of triples"),
    "three_body_angular": Int(0, 10, default=4, description="angular degree of triples"),
    "four_body": Int(0, 20, default=3, description="radial functions of quadruples"),
    "four_body_angular": Int(0, 6, default=2, description="angular degree of quadruples"),
    "energy_weight": Float(
        1e-3, 1e6, unit="1/eV", log=True, default=100.0, description="of energies per atom in the fit"
    ),
    "force_weight": Float(1e-3, 1e6, unit="angstrom/eV", log=True, default=1.0, description="of forces"),
    "members": Int(4, 64, default=8, description="fits to bootstrap samples"),
    "flag_level": Float(
        0.5, 1.0, default=0.95, description="share of held-out frames that each leverage does not flag"
    ),
}
"""Parameters of the potential and its committee."""


@app(
    name="train_pod_potential",
    version="1.1.0",
    app_type="ml",
    parameters={
        "condition": Text(description="key of the frames' comment line with the condition each was made at"),
        **DESCRIPTORS,
    },
    metrics={
        name: Metric(name=name, unit=unit, description=description, required=required)
        for name, unit, description, required in (
            ("force_rmse", "meV/angstrom", "rms error of force components on held-out conditions", True),
            ("energy_rmse", "meV/atom", "rms error of energies on held-out conditions", True),
            ("force_rmse_training", "meV/angstrom", "rms error of force components of the training frames", True),
            ("energy_rmse_training", "meV/atom", "rms error of energies of the training frames", True),
            ("sigma_scale", "1", "factor of the committee's spread: rms of error / spread, held out", True),
            (
                "coverage",
                "1",
                "share of held-out force components within 1.96 sigma, calibrated on the other conditions; "
                "flagged frames left out",
                True,
            ),
            ("coverage_lowest", "1", "the same of the condition where it is lowest", True),
            ("leverage_threshold", "1", "largest leverage that is not flagged; 1: training frames' mean", True),
            ("force_leverage_threshold", "1", "the same of the rows of forces, their mean", True),
            ("flagged_share", "1", "share of held-out frames that a leverage flags", True),
            ("n_frames", "1", "frames that were used", True),
            ("n_dropped", "1", "frames that were not; dropped.csv says why", True),
            ("n_conditions", "1", "conditions", True),
            ("n_coefficients", "1", "coefficients of the potential", True),
            ("test_force_rmse", "meV/angstrom", "rms error of force components of the test frames", False),
            ("test_energy_rmse", "meV/atom", "rms error of energies of the test frames", False),
            ("test_coverage", "1", "share of their force components within 1.96 sigma, not flagged", False),
            ("test_coverage_flagged", "1", "the same of flagged frames, for which no sigma is stated", False),
            ("test_flagged_share", "1", "share of test frames that are flagged", False),
        )
    },
    files=("data", "test"),
    estimated_runtime_s=30.0,
    failure_modes=(
        "NoData",
        "BadData",
        "MissingFile",
        "FileTooLarge",
        "TooFewFrames",
        "OneCondition",
        "UnknownElement",
        "FitFailed",
        "FitDisagrees",
        "NonNumeric",
        "NoExecutable",
        "NoEngine",
        "EngineFailed",
        "Walltime",
        "BlockEnded",
    ),
)
def train_pod_potential(run: Run, *, condition: str, **params: Any) -> Outcome:
    """Train an interatomic potential (POD) on energies and forces by LAMMPS's `fitpod`, with a committee.

    Setting `data`: labelled frames (extended XYZ), three periodic directions, energies in eV and forces in
    eV/angstrom, each with its condition (a temperature, a strain, a phase: what is left out whole) in its comment
    line. Setting `test`: further ones that the potential is only tried on. Frames that cannot be used are named in
    `dropped.csv`.

    The potential is that of `fitpod` (N. C. Nguyen and A. Rohskopf, doi:10.1016/j.jcp.2023.112030). The committee
    solves the same normal equations for bootstrap samples of the frames; that both solve the same problem is
    checked (`FitDisagrees`). The spread of the members is far too small an error: it is multiplied by
    rms(error / spread) of conditions that were held out (leave-condition-out), and the coverage of that is
    measured on each condition with the factor of the others. Errors of energies have a bias that all members
    share, so no sigma of energies is stated.

    A frame is flagged where the leverage of its energy row, x' (A'A)^-1 x, or the mean one of its rows of forces
    is above that of `flag_level` of the held-out frames, or its volume for an atom outside of the training
    frames' by a tenth of their range: there no sigma is stated, however large, as its coverage is not known. Two
    standard errors of the rms errors hold 95 %, by the scatter between conditions (`hpcagent.statistics.rms`).

    Artifacts: `model` (npz; its SHA-256 is the model_id, see `hpcagent.science.ml.saved`), `parameters` and
    `coefficients` (for `pair_style pod`), `report` (JSON), `frames` (CSV: each held-out and test frame),
    `dropped` (CSV).
    """
    data = read_labelled(path_of(run, "data", why="a potential is trained on labelled frames"), condition)
    test = _test(run, condition, data)
    _check_enough(data)
    (run.workdir / PARAMETERS_FILE).write_text(parameter_file(data.elements, params))
    coefficients = _by_fitpod(run, data.frames, params)
    rows = [_rows(run, f, data.elements) for f in data.frames]
    weights = (params["energy_weight"], params["force_weight"])
    _check_same(rows, data.frames, weights, coefficients)
    calibration = calibrated(rows, data.frames, weights, params["members"], run.seed, params["flag_level"])
    committee = replace(
        Committee.of(rows, data.frames, weights, params["members"], np.random.default_rng([run.seed, 2])),
        main=coefficients,
    )
    write_dropped(run.workdir / "dropped.csv", data.dropped, "frame")
    report, metrics, errors = _judged(data.frames, calibration)
    own = _errors_of(rows, data.frames, committee)
    metrics |= {
        "force_rmse_training": 1e3 * _rms(np.concatenate(own[0])),
        "energy_rmse_training": 1e3 * _rms(own[1]),
        "n_frames": len(data.frames),
        "n_dropped": len(data.dropped),
        "n_conditions": len({f.condition for f in data.frames}),
        "n_coefficients": len(coefficients),
    }
    table = [_row("held out", f, *of) for f, of in zip(data.frames, _held_out(calibration), strict=True)]
    if test is not None:
        of_test, test_errors, said, test_table = _tried(run, test, data.elements, committee, calibration)
        metrics, errors, report = metrics | of_test, errors | test_errors, report | {"test": said}
        table += test_table
    record = {
        "elements": data.elements,
        "condition": condition,
        "params": params,
        "data_sha256": sha256(path_of(run, "data", why="")),
        "test_sha256": None if test is None else sha256(path_of(run, "test", why="")),
        "n_frames": len(data.frames),
        "dropped": data.dropped,
        "seed": run.seed,
        "sigma_scale": calibration.scale,
        "leverage_threshold": calibration.threshold,
        "force_leverage_threshold": calibration.force_threshold,
        "versions": versions_of("hpcagent", "lammps", "numpy", "ase"),
        "parameters": (run.workdir / PARAMETERS_FILE).read_text(),
        "coefficients": (run.workdir / COEFFICIENTS_FILE).read_text(),
        "held_out": report["held_out"],
    }
    arrays = {
        "main": committee.main,
        "members": committee.members,
        "centre": committee.centre,
        "whitening": committee.whitening,
        "force_whitening": committee.force_whitening,
        "volumes": committee.volumes,
    }
    identity = save(run.workdir / MODEL_FILE, "pod", arrays, record)
    said = {"model_id": identity, **{k: v for k, v in record.items() if k not in ("parameters", "coefficients")}}
    (run.workdir / "report.json").write_text(json.dumps(said | report | {"metrics": metrics}, indent=1) + "\n")
    _write_table(run.workdir / "frames.csv", table)
    notes = [f"model_id {identity}", f"sigma calibrated by leaving out: {condition}"]
    if data.dropped:
        number, why = data.dropped[0]
        notes.append(f"{len(data.dropped)} frames were not used, the first: frame {number}, {why}")
    return Outcome(
        metrics={k: float(v) for k, v in metrics.items()},
        uncertainty=errors,
        artifacts={
            "model": MODEL_FILE,
            "parameters": PARAMETERS_FILE,
            "coefficients": COEFFICIENTS_FILE,
            "report": "report.json",
            "frames": "frames.csv",
            "dropped": "dropped.csv",
        },
        notes=tuple(notes),
        versions=versions_of("lammps", "ase"),
    )


# ---- what goes in


def _test(run: Run, condition: str, data: Labelled) -> Labelled | None:
    if not (run.settings.get("paths") or {}).get("test"):
        return None
    test = read_labelled(path_of(run, "test", why=""), condition)
    unknown = sorted(set(test.elements) - set(data.elements))
    if unknown:
        raise AppFailed(
            f"the test frames have {', '.join(unknown)}, which the training frames have not "
            f"({', '.join(data.elements)}).",
            kind="contract",
            name="UnknownElement",
        )
    if test.dropped:
        said = "; ".join(f"frame {number}: {why}" for number, why in test.dropped[:3])
        raise AppFailed(
            f"{len(test.dropped)} test frames cannot be used ({said}).",
            kind="contract",
            name="BadData",
            repair="take them out of the file: a test on a part would stand for the whole",
        )
    return test


def _check_enough(data: Labelled) -> None:
    conditions = {f.condition for f in data.frames}
    if len(conditions) < 2:
        raise AppFailed(
            f"all {len(data.frames)} frames are of one condition ({next(iter(conditions))!r}): none can be held "
            "out, so no error can be calibrated.",
            kind="contract",
            name="OneCondition",
            repair="frames of two or more conditions, or another key as `condition`",
        )
    if len(data.frames) < 6:
        raise AppFailed(
            f"{len(data.frames)} usable frames are too few for a committee; six or more are needed.",
            kind="contract",
            name="TooFewFrames",
        )


def _rows(run: Run, frame: Frame, elements: Sequence[str]) -> Rows:
    return rows_of(frame.atoms, elements, run.workdir / PARAMETERS_FILE, run.workdir / COEFFICIENTS_FILE)


# ---- the fit


def _by_fitpod(run: Run, frames: Sequence[Frame], params: Mapping[str, Any]) -> _Array:
    """Coefficients that LAMMPS's `fitpod` finds."""
    folder = run.workdir / _FOLDER
    folder.mkdir(exist_ok=True)
    _write_training(folder / "frames.xyz", frames)
    said = {
        "file_format": "extxyz",
        "file_extension": "xyz",
        "path_to_training_data_set": f'"{_FOLDER}"',
        "path_to_test_data_set": f'"{_FOLDER}"',
        "basename_for_output_files": "potential",
        "fitting_weight_energy": f"{params['energy_weight']:.10g}",
        "fitting_weight_force": f"{params['force_weight']:.10g}",
        "fitting_regularization_parameter": "1e-10",
        "error_analysis_for_training_data_set": 1,
        "error_analysis_for_test_data_set": 0,
    }
    (run.workdir / "data.pod").write_text("".join(f"{name} {value}\n" for name, value in said.items()))
    (run.workdir / "in.fitpod").write_text(f"fitpod {PARAMETERS_FILE} data.pod\n")
    output = run.workdir / "fitpod.txt"
    words = [*command(run.site), "-in", "in.fitpod", "-log", "log.fitpod", "-nocite"]
    finished = finish(
        planned(run, words, app="lammps", env=variables(run.site)),
        cwd=run.workdir,
        output=output,
        limit=Limit.of(run),
    )
    tail = read_tail(output, 4000)
    if finished.stopped is not None:
        raise finished.stopped.failure(wall_s=finished.wall_s, log_tail=tail)
    path = run.workdir / COEFFICIENTS_FILE
    if finished.returncode != 0 or not path.is_file():
        raise AppFailed(
            f"fitpod ended with exit code {finished.returncode} and "
            f"{'a' if path.is_file() else 'no'} file of coefficients.",
            name="FitFailed",
            log_tail=tail,
            repair="read fitpod.txt in the run's directory; a LAMMPS with the package ML-POD is needed",
        )
    found = np.loadtxt(path, skiprows=1).reshape(-1)
    if not np.isfinite(found).all():
        raise AppFailed(
            "fitpod found coefficients that are no numbers.",
            name="NonNumeric",
            log_tail=tail,
            repair="fewer functions, or more frames",
        )
    return np.asarray(found)


def _write_training(path: Path, frames: Sequence[Frame]) -> None:
    """Extended XYZ with the keys that fitpod knows."""
    from ase.io.extxyz import write_extxyz

    made = []
    for frame in frames:
        atoms = frame.atoms.copy()
        atoms.info = {"energy": frame.energy}
        atoms.arrays["forces"] = frame.forces
        made.append(atoms)
    with path.open("w") as file:
        write_extxyz(file, made, columns=["symbols", "positions", "forces"])


def _check_same(
    rows: Sequence[Rows], frames: Sequence[Frame], weights: tuple[float, float], coefficients: _Array
) -> None:
    """Refuse a committee of another problem than fitpod's: forces must agree."""
    if len(rows[0].energy) != len(coefficients):
        raise AppFailed(
            f"fitpod has {len(coefficients)} coefficients, compute pod/global {len(rows[0].energy)} rows.",
            name="FitDisagrees",
        )
    own = fitted(rows, frames, weights)
    forces = np.concatenate([one.forces @ coefficients for one in rows])
    off = np.concatenate([one.forces @ (own - coefficients) for one in rows])
    left = np.concatenate([f.forces.ravel() for f in frames]) - forces
    if _rms(off) > _SAME_FORCES * _rms(forces) and _rms(off) > 0.1 * _rms(left):
        raise AppFailed(
            f"the least squares of the committee and of fitpod differ by {1e3 * _rms(off):.3g} meV/angstrom "
            f"(rms), with forces of {1e3 * _rms(forces):.3g}: this LAMMPS fits another problem, and the committee "
            "would say nothing of its potential.",
            name="FitDisagrees",
            repair="fewer functions or more frames (the fit may be undetermined), or another version of LAMMPS",
        )


# ---- what comes out


def _judged(
    frames: Sequence[Frame], calibration: Calibration
) -> tuple[dict[str, Any], dict[str, float], dict[str, float]]:
    """Report, metrics and standard errors of what was held out."""
    conditions = [f.condition for f in frames]
    trusted = ~calibration.flagged
    covered = {
        name: np.concatenate(
            [c for c, of, t in zip(calibration.covered, conditions, trusted, strict=True) if t and of == name]
            or [np.zeros(0, np.bool_)]
        )
        for name in sorted(set(conditions))
    }
    known = {name: found for name, found in covered.items() if len(found)}
    force, force_error = rms_error([(e**2).mean() for e in calibration.force_errors], conditions)
    energy, energy_error = rms_error(list(calibration.energy_errors**2), conditions)
    together = np.concatenate(list(known.values()))
    shares = {name: float(found.mean()) for name, found in known.items()}
    metrics = {
        "force_rmse": 1e3 * force,
        "energy_rmse": 1e3 * energy,
        "sigma_scale": calibration.scale,
        "coverage": float(together.mean()),
        "coverage_lowest": min(shares.values()),
        "leverage_threshold": calibration.threshold,
        "force_leverage_threshold": calibration.force_threshold,
        "flagged_share": float(calibration.flagged.mean()),
    }
    errors = {
        name: 1e3 * value
        for name, value in (("force_rmse", force_error), ("energy_rmse", energy_error))
        if math.isfinite(value)
    }
    held_out = {
        "folds": calibration.conditions,
        "wanted_coverage": 0.95,
        "coverage": metrics["coverage"],
        "coverage_by_condition": shares,
        "components": {name: len(found) for name, found in known.items()},
        "flagged_share": metrics["flagged_share"],
        "force_rmse_meV_per_angstrom": [metrics["force_rmse"], errors.get("force_rmse")],
        "energy_rmse_meV_per_atom": [metrics["energy_rmse"], errors.get("energy_rmse")],
    }
    return {"held_out": held_out}, metrics, errors


def _held_out(calibration: Calibration) -> list[tuple[float, _Array, float, bool, float]]:
    return [
        (float(e), f, float(leverage), bool(flag), float(c.mean()))
        for e, f, leverage, flag, c in zip(
            calibration.energy_errors,
            calibration.force_errors,
            calibration.leverages,
            calibration.flagged,
            calibration.covered,
            strict=True,
        )
    ]


def _tried(
    run: Run, test: Labelled, elements: Sequence[str], committee: Committee, calibration: Calibration
) -> tuple[dict[str, float], dict[str, float], dict[str, Any], list[list[Any]]]:
    """Metrics, standard errors, report and rows of the test frames."""
    rows = [_rows(run, f, elements) for f in test.frames]
    forces, energies = _errors_of(rows, test.frames, committee)
    leverage = np.array([committee.leverage(one) for one in rows])
    thresholds = (calibration.threshold, calibration.force_threshold)
    flagged = np.array([committee.flagged(one, thresholds) for one in rows])
    held = [
        np.abs(e) <= 1.959964 * calibration.scale * committee.spread(one)
        for e, one in zip(forces, rows, strict=True)
    ]
    conditions = [f.condition for f in test.frames]
    force, force_error = rms_error([(e**2).mean() for e in forces], conditions)
    energy, energy_error = rms_error(list(energies**2), conditions)
    metrics = {
        "test_force_rmse": 1e3 * force,
        "test_energy_rmse": 1e3 * energy,
        "test_flagged_share": float(flagged.mean()),
    }
    for name, which in (("test_coverage", ~flagged), ("test_coverage_flagged", flagged)):
        if which.any():
            metrics[name] = float(np.concatenate([h for h, w in zip(held, which, strict=True) if w]).mean())
    errors = {
        name: 1e3 * value
        for name, value in (("test_force_rmse", force_error), ("test_energy_rmse", energy_error))
        if math.isfinite(value)
    }
    said = {}
    for name in sorted(set(conditions)):
        of = [i for i, c in enumerate(conditions) if c == name]
        inside = np.concatenate([held[i] for i in of])
        said[name] = {
            "frames": len(of),
            "flagged_share": float(flagged[of].mean()),
            "coverage": float(inside.mean()),
            # Components of a frame are not independent: the error is from the scatter between frames.
            "coverage_error": _mean_error([float(held[i].mean()) for i in of]),
            "stated": bool(not flagged[of].any()),
            "force_rmse_meV_per_angstrom": 1e3 * _rms(np.concatenate([forces[i] for i in of])),
            "energy_rmse_meV_per_atom": 1e3 * _rms(energies[of]),
        }
    table = [
        _row("test", f, float(energies[i]), forces[i], float(leverage[i]), bool(flagged[i]), float(held[i].mean()))
        for i, f in enumerate(test.frames)
    ]
    return metrics, errors, said, table


def _errors_of(rows: Sequence[Rows], frames: Sequence[Frame], committee: Committee) -> tuple[list[_Array], _Array]:
    """Errors of forces, (3 atoms,) each in eV/angstrom, and of energies, (frames,) in eV/atom."""
    forces = [committee.forces(one) - f.forces.ravel() for one, f in zip(rows, frames, strict=True)]
    energies = [(committee.energy(one) - f.energy) / one.atoms for one, f in zip(rows, frames, strict=True)]
    return forces, np.array(energies)


def _row(
    of: str, frame: Frame, energy: float, forces: _Array, leverage: float, flagged: bool, covered: float
) -> list[Any]:
    return [
        of,
        frame.number,
        frame.condition,
        len(frame.atoms),
        f"{1e3 * energy:.6g}",
        f"{1e3 * _rms(forces):.6g}",
        f"{leverage:.6g}",
        int(flagged),
        f"{covered:.4f}",
    ]


_COLUMNS = (
    "of",
    "frame",
    "condition",
    "n_atoms",
    "energy_error_meV_per_atom",
    "force_rmse_meV_per_angstrom",
    "leverage",
    "flagged",
    "covered_share",
)


def _write_table(path: Path, rows: Sequence[Sequence[Any]]) -> None:
    import csv

    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(_COLUMNS)
        writer.writerows(rows)


def _mean_error(values: Sequence[float]) -> float | None:
    """Standard error of a mean, so wide that twice it holds 95 %; None for a single value."""
    from scipy.stats import t

    n = len(values)
    if n < 2:
        return None
    return float(np.std(values, ddof=1) / math.sqrt(n) * t.ppf(0.975, n - 1) / 2)


def _rms(values: _Array) -> float:
    return float(np.sqrt(np.mean(np.square(values))))
