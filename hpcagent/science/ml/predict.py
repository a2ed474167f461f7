"""Predicts a property with a trained model: always with its interval, flagged where that was not measured."""

from __future__ import annotations

import csv
import math
from typing import Any

from hpcagent.apps.decorator import app
from hpcagent.apps.packages import versions_of
from hpcagent.apps.run import Outcome, Run
from hpcagent.errors import AppFailed, nearest
from hpcagent.model.contract import Metric
from hpcagent.model.parameter import Text
from hpcagent.science.ml.features import Features
from hpcagent.science.ml.saved import load, path_of
from hpcagent.science.ml.surrogate import Surrogate
from hpcagent.science.ml.tables import Table, number, read_table, rows_said

__all__ = ["ml_predict_property"]


@app(
    name="ml_predict_property",
    version="1.0.0",
    app_type="ml",
    parameters={
        "model_id": Text(description="SHA-256 of the model file; another file is refused"),
        "composition": Text(default="", description="formula, for a model that takes compositions"),
        "descriptors": Text(
            default="", description="the model's columns with their units: `gap = 1.2 eV, density = 5.3 g/cm^3`"
        ),
    },
    metrics={
        name: Metric(name=name, unit=unit, description=description, required=required)
        for name, unit, description, required in (
            ("prediction", "1", "of the one row that was asked for, in the unit of the target", False),
            ("lower", "1", "lower end of its interval, in the unit of the target", False),
            ("upper", "1", "upper end of its interval, in the unit of the target", False),
            ("half_width", "1", "half the width of its interval, in the unit of the target", False),
            ("extrapolation", "1", "1: beyond the data that the interval was measured on", False),
            (
                "distance",
                "1",
                "to the nearest training row, in standard deviations per root of the columns",
                False,
            ),
            ("coverage", "1", "share of held-out rows that such intervals were made to hold", True),
            ("coverage_measured", "1", "share of the test rows that they held", True),
            ("n_rows", "1", "rows that were predicted", True),
            ("n_extrapolated", "1", "of them flagged", True),
        )
    },
    files=("model", "rows"),
    seeded=False,
    estimated_runtime_s=1.0,
    failure_modes=(
        "NoData",
        "MissingFile",
        "FileTooLarge",
        "NotAModel",
        "OtherModel",
        "BadData",
        "MissingColumn",
        "OtherUnit",
        "UnknownElement",
        "NoEngine",
        "NonNumeric",
    ),
)
def ml_predict_property(run: Run, *, model_id: str, composition: str, descriptors: str) -> Outcome:
    """Predict a property by a model of `ml_train_surrogate`, with its interval and a flag for extrapolation.

    Setting `model`: the model file. What is predicted: `composition` and `descriptors`, or the setting `rows`, a
    table as `ml_train_surrogate` reads it, whose predictions are in the artifact `predictions` (CSV). Every column
    must be there, in the unit of the training data, and every element must be one of its.

    The interval holds the share `coverage` of held-out data, measured as `coverage_measured`. Where the row is
    farther from the training data than 95 % of the calibration rows, `extrapolation` is 1: the coverage of
    the interval is not known there, and the result has no standard error.

    Raises:
        AppFailed: `OtherModel`, `NotAModel`; `MissingColumn`, `OtherUnit`, `UnknownElement`, `BadData`: what is
            asked for is not what the model takes; `NoData`: nothing, or two things, are asked for.
    """
    arrays, record = load(path_of(run, "model", why="a property is predicted by a model"), "surrogate", model_id)
    features = Features.of(record["features"])
    table = _asked(run, features, composition, descriptors)
    rows, bad, met = features.known(table)
    if bad or not rows:
        raise AppFailed(
            f"{table.source} cannot be predicted ({rows_said(bad) or 'it has no rows'}).",
            kind="contract",
            name="BadData",
        )
    unknown = sorted(met - set(features.elements))
    if unknown:
        raise AppFailed(
            f"the model was not trained on {', '.join(unknown)}; it knows {', '.join(features.elements)}.",
            kind="contract",
            name="UnknownElement",
            repair="a model whose training data has these elements",
        )
    x, _ = features.matrix(table, rows)
    model = Surrogate(arrays, **{k: record[k] for k in ("floor", "score", "stated", "threshold")})
    mean, spread, distance = model.judged(x)
    half = model.score * spread
    flagged = distance > model.threshold
    metrics: dict[str, float] = {
        "coverage": record["coverage"],
        "coverage_measured": record["coverage_measured"],
        "n_rows": len(rows),
        "n_extrapolated": int(flagged.sum()),
    }
    errors = {}
    notes = [
        f"model_id {model_id}, training data {record['data_sha256']}",
        f"intervals: {record['calibration']}; they held {record['coverage_measured']:.3g} of the test rows",
    ]
    if flagged.any():
        notes.append(
            f"{int(flagged.sum())} of {len(rows)} rows lie beyond the training data: the coverage of their "
            "intervals is not known"
        )
    one = not _file(run)
    if one:
        metrics |= {
            "prediction": float(mean[0]),
            "lower": float(mean[0] - half[0]),
            "upper": float(mean[0] + half[0]),
            "half_width": float(half[0]),
            "extrapolation": float(flagged[0]),
        }
        if math.isfinite(distance[0]):
            metrics["distance"] = float(distance[0])
        if not flagged[0]:
            errors["prediction"] = float(model.stated * spread[0] / 2)
    unit = record["unit"]
    head = f" [{unit}]" if unit != "1" else ""
    with (run.workdir / "predictions.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(
            ("row", *(f"{n}{head}" for n in ("prediction", "lower", "upper")), "distance", "extrapolation")
        )
        for i in range(len(rows)):
            said = (mean[i], mean[i] - half[i], mean[i] + half[i], distance[i])
            writer.writerow((rows[i] + 1, *(repr(float(v)) for v in said), int(flagged[i])))
    return Outcome(
        metrics={k: float(v) for k, v in metrics.items()},
        units=dict.fromkeys(("prediction", "lower", "upper", "half_width"), unit),
        uncertainty=errors,
        artifacts={"predictions": "predictions.csv"},
        notes=tuple(notes),
        versions=versions_of("numpy", "scipy") | features.versions(),
    )


def _file(run: Run) -> bool:
    return bool((run.settings.get("paths") or {}).get("rows"))


def _asked(run: Run, features: Features, composition: str, descriptors: str) -> Table:
    """What is to be predicted, as a table."""
    given = bool(composition or descriptors)
    if given == _file(run):
        raise AppFailed(
            f"{'two things are' if given else 'nothing is'} asked for; give a composition or descriptors, or the "
            "setting `rows`, and not both.",
            kind="contract",
            name="NoData",
        )
    if not given:
        return read_table(path_of(run, "rows", why=""))
    units: dict[str, str] = {}
    row: dict[str, Any] = {}
    known = dict(features.columns)
    for part in filter(None, (word.strip() for word in descriptors.split(","))):
        name, equals, said = (word.strip() for word in part.partition("="))
        value, _, unit = said.partition(" ")
        if not equals or number(value) is None:
            raise AppFailed(
                f"{part!r} is not `name = number unit`.", kind="contract", name="BadData", repair="gap = 1.2 eV"
            )
        if name not in known or name in row:
            said = "stands twice" if name in row else f"is no column of the model; {nearest(name, known)}"
            raise AppFailed(f"{name!r} {said}.", kind="contract", name="BadData")
        row[name], units[name] = value, unit.strip() or "1"
    if composition and not features.composition:
        raise AppFailed("the model takes no composition; leave it out.", kind="contract", name="BadData")
    if composition:
        row[features.composition], units[features.composition] = composition, "1"
    return Table(units, (row,), (), "what was asked for")
