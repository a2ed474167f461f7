"""Trains a regressor of a property with intervals that were calibrated, and tried, on held-out data."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcagent.apps.decorator import app
from hpcagent.apps.made_with import sha256
from hpcagent.apps.packages import versions_of
from hpcagent.apps.run import Outcome, Run
from hpcagent.errors import AppFailed
from hpcagent.model.contract import Metric
from hpcagent.model.parameter import Choice, Float, Int, Text
from hpcagent.science.ml.features import Features, list_of
from hpcagent.science.ml.regressors import MODELS, fit, predict, versions
from hpcagent.science.ml.saved import path_of, save
from hpcagent.science.ml.tables import Table, number, read_table, rows_said
from hpcagent.statistics.conformal import (
    conformal_quantile,
    coverage_range,
    fewest,
    folds,
    nearest,
)
from hpcagent.statistics.rms import rms_error

__all__ = ["Surrogate", "ml_train_surrogate"]

_Array = NDArray[np.float64]
MODEL_FILE = "surrogate.npz"
# Coverage of the standard errors in a result (twice one holds 95 %), and share of held-out points not flagged.
_STATED = 0.95
# Part of the median spread that the smallest spread counts as: where all trees agree it would be 0, and the score
# of any error infinite.
_FLOOR = 1 / 3


@dataclass(frozen=True, slots=True)
class Surrogate:
    """A fitted model with what makes its intervals.

    Attributes:
        arrays: Of the regressor, with `centre`, `width` (of the columns that vary), `varies` (columns), `constant`
            (value of each column that does not, nan for the others) and `near` (training rows, standardised).
        floor: Added to the spread in quadrature, in the target's unit.
        score: Conformal score of the coverage that was asked for.
        stated: That of 95 %.
        threshold: Largest distance to the training data that is not flagged.
    """

    arrays: dict[str, NDArray[Any]]
    floor: float = 0.0
    score: float = math.nan
    stated: float = math.nan
    threshold: float = math.inf

    @classmethod
    def fitted(cls, kind: str, x: _Array, y: _Array, *, seed: int, trees: int) -> Surrogate:
        """Fit to rows (n, columns) in their own units."""
        centre, width = x.mean(axis=0), x.std(axis=0)
        varies = width > 1e-12 * np.maximum(1e-300, np.abs(x).max(axis=0))
        if not varies.any():
            raise AppFailed(
                f"none of the {x.shape[1]} features varies over the {len(x)} rows.",
                kind="contract",
                name="BadData",
            )
        scaled = (x[:, varies] - centre[varies]) / width[varies]
        arrays = fit(kind, scaled, y, seed=seed, trees=trees)
        own = {
            "centre": centre[varies],
            "width": width[varies],
            "varies": varies,
            "constant": np.where(varies, np.nan, x[0]),
            "near": scaled,
        }
        return cls(arrays | own)

    def judged(self, x: _Array) -> tuple[_Array, _Array, _Array]:
        """Mean, spread with its floor, and distance to the training data of rows (m, columns): (m,) each.

        The distance is Euclidean in standard deviations of the training data, per root of the columns; infinite
        where a column differs that had one value in training.
        """
        varies = self.arrays["varies"].astype(bool)
        scaled = (x[:, varies] - self.arrays["centre"]) / self.arrays["width"]
        mean, spread = predict(self.arrays, scaled)
        distance = nearest(scaled, self.arrays["near"])
        fixed = self.arrays["constant"][~varies]
        off = np.abs(x[:, ~varies] - fixed) > 1e-9 * np.maximum(1.0, np.abs(fixed))
        return mean, np.hypot(spread, self.floor), np.where(off.any(axis=1), np.inf, distance)


@app(
    name="ml_train_surrogate",
    version="1.0.0",
    app_type="ml",
    parameters={
        "target": Text(description="column that is to be predicted"),
        "features": Text(default="", description="numeric columns it is predicted from, with commas between them"),
        "composition": Text(default="", description="column with formulas; empty: compositions are not used"),
        "composition_descriptors": Choice(
            "fractions", "magpie", default="fractions", description="shares of elements, or matminer's magpie set"
        ),
        "soap": Choice("no", "yes", default="no", description="averaged SOAP of the structures (dscribe)"),
        "soap_cutoff": Float(2.0, 12.0, unit="angstrom", default=5.0, description="its cutoff"),
        "soap_n_max": Int(1, 12, default=4, description="its radial functions"),
        "soap_l_max": Int(0, 9, default=3, description="its largest angular degree"),
        "group": Text(
            default="", description="column whose values are held out whole (a chemical system); empty: rows are"
        ),
        "model": Choice(*MODELS, default="gp", description="own Gaussian process, scikit-learn's, random forest"),
        "trees": Int(10, 5000, default=300, description="of a forest"),
        "calibration": Choice(
            "cross", "split", default="cross", description="intervals from all folds, or from one part of the rows"
        ),
        "folds": Int(2, 20, default=5, description="of the calibration; with `split` one of them calibrates"),
        "test_folds": Int(2, 20, default=5, description="one part in so many is held out for the figures"),
        "coverage": Float(0.5, 0.99, default=0.95, description="of the intervals"),
    },
    metrics={
        name: Metric(name=name, unit=unit, description=description, required=required)
        for name, unit, description, required in (
            ("rmse", "1", "rms error of the test rows, in the unit of the target", True),
            ("mae", "1", "mean absolute error of the test rows, in the unit of the target", True),
            ("r2", "1", "1 - squared errors / squares about the mean of the training rows, test rows", True),
            ("coverage_measured", "1", "share of the test rows inside their intervals", True),
            ("coverage_low", "1", "lower end of its 95 % range (Clopper-Pearson, of rows or groups)", True),
            ("coverage_high", "1", "upper end", True),
            ("coverage_unflagged", "1", "the same share of test rows that are not flagged", False),
            ("coverage_lowest_group", "1", "that of the test group where it is lowest, with `group`", False),
            ("width", "1", "median width of the intervals of the test rows, in the unit of the target", True),
            ("flagged_share", "1", "share of test rows that are flagged as extrapolation", True),
            ("distance_threshold", "1", "distance to the training data above which a row is flagged", True),
            ("n_rows", "1", "rows that were used", True),
            ("n_dropped", "1", "rows that were not; dropped.csv says why", True),
            ("n_training", "1", "rows that the model was fitted to", True),
            ("n_calibration", "1", "rows that the intervals are from", True),
            ("n_test", "1", "rows that the figures are from", True),
            ("n_groups", "1", "groups, or distinct rows without `group`", True),
            ("n_features", "1", "features", True),
        )
    },
    files=("data",),
    estimated_runtime_s=10.0,
    failure_modes=(
        "NoData",
        "MissingFile",
        "FileTooLarge",
        "BadData",
        "MissingColumn",
        "OtherUnit",
        "NoFeatures",
        "TooFewRows",
        "TooFewGroups",
        "TooManyRows",
        "NoEngine",
        "NotConverged",
        "NonNumeric",
    ),
)
def ml_train_surrogate(run: Run, **params: Any) -> Outcome:
    """Train a model of a property on a table, with intervals calibrated and then measured on held-out rows.

    Setting `data`: a CSV (headed `name [unit]`, as `hpcagent export` writes a campaign's results), JSON or
    extended XYZ file; see `hpcagent.science.ml.tables.read_table`. Rows without a finite number where one is
    needed are not used and named in `dropped.csv`.

    One part of the rows is put aside for the figures (whole groups with `group`, else equal rows together). Of the
    rest, `cross` takes each fold's errors from a model of the other folds and fits the final model to all;
    `split` fits to all folds but one and takes that one's errors. The intervals are mean +- q hypot(s, s0 / 3):
    s the model's own spread, s0 its median, q the conformal quantile of |error| over it (J. Lei et al.,
    doi:10.1080/01621459.2017.1307116). Their coverage holds for rows like the held-out ones: with `group` for
    new groups, else for new rows only. For others there is the flag: the distance to the nearest training row (in
    standard deviations) beyond that of 95 % of the calibration rows.

    Artifacts: `model` (npz without pickles; its SHA-256 is the model_id, see `hpcagent.science.ml.saved`),
    `report` (JSON: record, figures, coverage by group), `test` (CSV: each test row), `dropped` (CSV).
    """
    path = path_of(run, "data", why="a model is trained on a table")
    table = read_table(path)
    features, rows, dropped = _usable(table, params)
    x, names = features.matrix(table, rows)
    y = np.array([number(table.rows[i][params["target"]]) for i in rows], dtype=float)
    groups: list[Hashable] = (
        [str(table.rows[i][params["group"]]) for i in rows] if params["group"] else [row.tobytes() for row in x]
    )
    rng = np.random.default_rng([run.seed, run.replicate])
    aside = _folds(groups, params["test_folds"], rng, "test_folds") == 0
    rest, test = np.flatnonzero(~aside), np.flatnonzero(aside)
    model, n_training, n_calibration = _calibrated(
        x[rest], y[rest], [groups[i] for i in rest], params, run.seed, rng
    )
    tried = _tried(model, x[test], y[test], [groups[i] for i in test], float(y[rest].mean()), params)
    metrics = tried.metrics | {
        "distance_threshold": model.threshold,
        "n_rows": len(rows),
        "n_dropped": len(dropped),
        "n_training": n_training,
        "n_calibration": n_calibration,
        "n_test": len(test),
        "n_groups": len(set(groups)),
        "n_features": len(names),
    }
    unit = table.units[params["target"]]
    how = f"{params['calibration']} conformal, {params['folds']} folds of {params['group'] or 'rows'}"
    record = {
        "target": params["target"],
        "unit": unit,
        "features": features.record(),
        "feature_names": names,
        "params": params,
        "calibration": how,
        "coverage": params["coverage"],
        "coverage_measured": metrics["coverage_measured"],
        "coverage_range_95": [metrics["coverage_low"], metrics["coverage_high"]],
        "floor": model.floor,
        "score": model.score,
        "stated": model.stated,
        "threshold": model.threshold,
        "data_sha256": sha256(path),
        "n_rows": len(rows),
        "dropped": dropped,
        "seed": run.seed,
        "versions": versions_of("hpcagent") | versions(params["model"]) | features.versions(),
    }
    identity = save(run.workdir / MODEL_FILE, "surrogate", model.arrays, record)
    report = {"model_id": identity, **record, "metrics": metrics, "by_group": tried.by_group}
    (run.workdir / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    _write(
        run.workdir / "test.csv", tried.header, [[rows[i] + 1, *r] for i, r in zip(test, tried.rows, strict=True)]
    )
    _write(run.workdir / "dropped.csv", ("row", "why"), dropped)
    notes = [f"model_id {identity}", f"intervals: {how}"]
    if dropped:
        notes.append(f"{len(dropped)} of {len(table.rows)} rows were not used ({rows_said(dropped)})")
    return Outcome(
        metrics={k: float(v) for k, v in metrics.items()},
        units=dict.fromkeys(("rmse", "mae", "width"), unit),
        uncertainty=tried.errors,
        artifacts={"model": MODEL_FILE, "report": "report.json", "test": "test.csv", "dropped": "dropped.csv"},
        notes=tuple(notes),
        versions=versions(params["model"]) | features.versions(),
    )


def _usable(table: Table, params: Mapping[str, Any]) -> tuple[Features, list[int], list[tuple[int, str]]]:
    """The features with the elements of the data, rows that can be used, and why the others cannot."""
    names = list_of(params["features"])
    for name in (params["target"], *names, *([params["group"]] if params["group"] else [])):
        table.require(name)
    if params["target"] in names:
        raise AppFailed(
            f"the target {params['target']!r} is among the features.", kind="contract", name="NoFeatures"
        )
    soap = (
        {"cutoff": params["soap_cutoff"], "n_max": params["soap_n_max"], "l_max": params["soap_l_max"]}
        if params["soap"] == "yes"
        else None
    )
    features = Features(
        columns=tuple((name, table.units[name]) for name in names),
        composition=params["composition"],
        by=params["composition_descriptors"],
        soap=soap,
    )
    if not (names or params["composition"] or soap):
        raise AppFailed(
            "nothing to predict from: no features, no composition and no SOAP.",
            kind="contract",
            name="NoFeatures",
            repair="features='a,b', composition='formula' or soap='yes'",
        )
    good, dropped, _ = features.known(table)
    wanted = [i for i in good if number(table.rows[i].get(params["target"])) is not None]
    dropped += [(i + 1, f"no finite number in {params['target']}") for i in sorted(set(good) - set(wanted))]
    if params["group"]:
        nameless = [i for i in wanted if table.rows[i].get(params["group"]) in (None, "")]
        dropped += [(i + 1, f"nothing in {params['group']}") for i in nameless]
        wanted = [i for i in wanted if i not in set(nameless)]
    if not wanted:
        raise AppFailed(
            f"no row of {table.source} can be used ({rows_said(sorted(dropped))}).",
            kind="contract",
            name="BadData",
        )
    used = replace(table, rows=tuple(table.rows[i] for i in wanted), structures=())
    if table.structures:
        used = replace(used, structures=tuple(table.structures[i] for i in wanted))
    _, _, met = features.known(used)
    return replace(features, elements=tuple(sorted(met))), wanted, sorted(dropped)


def _folds(groups: Sequence[Hashable], count: int, rng: np.random.Generator, name: str) -> NDArray[np.int_]:
    there = len(set(groups))
    if there < count:
        raise AppFailed(
            f"{there} groups (or distinct rows) are fewer than {name}={count}: no part could be held out.",
            kind="contract",
            name="TooFewGroups",
            repair=f"{name}={max(2, there)}, or more data",
        )
    return folds(groups, count, rng)


def _calibrated(
    x: _Array,
    y: _Array,
    groups: Sequence[Hashable],
    params: Mapping[str, Any],
    seed: int,
    rng: np.random.Generator,
) -> tuple[Surrogate, int, int]:
    """The final model with its intervals, and the numbers of rows it was fitted to and calibrated on."""
    of = _folds(groups, params["folds"], rng, "folds")
    options = {"seed": seed, "trees": params["trees"]}
    held = range(params["folds"]) if params["calibration"] == "cross" else (0,)
    errors, spreads, distances = [], [], []
    for k in held:
        model = Surrogate.fitted(params["model"], x[of != k], y[of != k], **options)
        mean, spread, distance = model.judged(x[of == k])
        errors.append(np.abs(mean - y[of == k]))
        spreads.append(spread)
        distances.append(distance)
    error, spread, distance = (np.concatenate(parts) for parts in (errors, spreads, distances))
    needed = max(fewest(params["coverage"]), fewest(_STATED))
    if len(error) < needed:
        raise AppFailed(
            f"{len(error)} calibration rows are fewer than the {needed} that intervals of coverage "
            f"{max(params['coverage'], _STATED):g} need.",
            kind="contract",
            name="TooFewRows",
            repair="more data, calibration='cross', or a smaller coverage",
        )
    if params["calibration"] == "cross":
        model, n_training = Surrogate.fitted(params["model"], x, y, **options), len(x)
    else:
        n_training = int((of != 0).sum())
    floor = max(_FLOOR * float(np.median(spread)), 1e-12 * float(np.abs(y).max()), 1e-300)
    scores = error / np.hypot(spread, floor)
    done = replace(
        model,
        floor=floor,
        score=conformal_quantile(scores, params["coverage"]),
        stated=conformal_quantile(scores, _STATED),
        threshold=conformal_quantile(distance, _STATED),
    )
    return done, n_training, len(error)


@dataclass(frozen=True, slots=True)
class _Tried:
    metrics: dict[str, float]
    errors: dict[str, float]
    by_group: dict[str, dict[str, float]]
    header: tuple[str, ...]
    rows: list[list[Any]]


def _tried(
    model: Surrogate,
    x: _Array,
    y: _Array,
    groups: Sequence[Hashable],
    mean_before: float,
    params: Mapping[str, Any],
) -> _Tried:
    """The model on rows that it was neither fitted to nor calibrated on."""
    mean, spread, distance = model.judged(x)
    half = model.score * spread
    off = mean - y
    inside = np.abs(off) <= half
    flagged = distance > model.threshold
    rmse, rmse_error = rms_error(list(off**2), groups)
    spread_of_y = float(((y - mean_before) ** 2).sum())
    # Rows of a group are alike: a share of so many rows is as uncertain as one of so many groups.
    low, high = coverage_range(float(inside.mean()), len(set(groups)))
    metrics = {
        "rmse": rmse,
        "mae": float(np.abs(off).mean()),
        "r2": 1 - float((off**2).sum()) / spread_of_y if spread_of_y > 0 else math.nan,
        "coverage_measured": float(inside.mean()),
        "coverage_low": low,
        "coverage_high": high,
        "width": float(np.median(2 * half)),
        "flagged_share": float(flagged.mean()),
    }
    if not flagged.all():
        metrics["coverage_unflagged"] = float(inside[~flagged].mean())
    by_group: dict[str, dict[str, float]] = {}
    if params["group"]:
        for name in sorted({str(g) for g in groups}):
            of = np.array([str(g) == name for g in groups])
            by_group[name] = {
                "rows": int(of.sum()),
                "coverage": float(inside[of].mean()),
                "rmse": float(np.sqrt((off[of] ** 2).mean())),
                "flagged_share": float(flagged[of].mean()),
            }
        metrics["coverage_lowest_group"] = min(found["coverage"] for found in by_group.values())
    table = [
        [repr(float(v)) for v in (y[i], mean[i], mean[i] - half[i], mean[i] + half[i], distance[i])]
        + [int(flagged[i]), int(inside[i])]
        for i in range(len(y))
    ]
    header = ("row", "value", "prediction", "lower", "upper", "distance", "extrapolation", "inside")
    return _Tried(metrics, {"rmse": rmse_error} if math.isfinite(rmse_error) else {}, by_group, header, table)


def _write(path: Path, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)
