"""A plot of numbers that are given, as an app."""

from __future__ import annotations

import json
import math
import re

import numpy as np
from numpy.typing import NDArray

from hpcagent.apps.decorator import app
from hpcagent.apps.run import Outcome, Run
from hpcagent.errors import AppFailed
from hpcagent.model.contract import Metric
from hpcagent.model.parameter import Choice, Text
from hpcagent.science.plots import COLORS, drawing

__all__ = ["numbers_of", "plot_data"]

_Array = NDArray[np.float64]
_LARGEST = 1e300
_LOOKS = {"line": "-", "points": "o", "both": "-o"}


def _label(axis: str) -> dict[str, object]:
    return {
        f"{axis}_label": Text(default=axis, description=f"what stands along {axis}"),
        f"{axis}_unit": Text(default="", description=f"unit of {axis}; 1: a pure number; empty: not said"),
        f"{axis}_scale": Choice("linear", "log", default="linear", description=f"scale of the axis {axis}"),
    }


@app(
    name="plot_data",
    version="1.0.0",
    app_type="analysis",
    parameters={
        "x": Text(description="numbers: a JSON list, or separated by commas or blanks"),
        "y": Text(description="as many numbers as x"),
        "title": Text(default="", description="title; empty: none"),
        **_label("x"),  # type: ignore[dict-item]  # of parameters of several kinds
        **_label("y"),  # type: ignore[dict-item]
        "look": Choice("both", "line", "points", default="both", description="how the points are drawn"),
        "format": Choice("png", "svg", default="png", description="format of the picture"),
    },
    metrics={"n_points": Metric(name="n_points", unit="1", description="points drawn")},
    seeded=False,
    failure_modes=("BadData", "NoEngine"),
    estimated_runtime_s=1.0,
)
def plot_data(
    x: str,
    y: str,
    title: str,
    x_label: str,
    x_unit: str,
    x_scale: str,
    y_label: str,
    y_unit: str,
    y_scale: str,
    look: str,
    format: str,
    run: Run,
) -> Outcome:
    """Draw y against x, numbers that are given, with labels that have units.

    Points are drawn in the order in which they stand. A text takes 4096 characters, some 300 numbers; longer
    tables are drawn by the plots of their analyses.

    Artifacts: `plot` (`plot.png` or `plot.svg`), `data` (CSV with the columns x and y, all digits).

    Raises:
        AppFailed: `BadData`: no numbers, not as many y as x, a number that is not finite or above 1e300, one
            that a logarithmic axis does not have. `NoEngine`: matplotlib is not installed.
    """
    first, second = numbers_of(x, "x"), numbers_of(y, "y")
    if len(first) != len(second):
        raise AppFailed(
            f"x has {len(first)} numbers and y {len(second)}; each point needs both.",
            kind="contract",
            name="BadData",
            repair="give as many numbers y as x",
        )
    for name, values, scale in (("x", first, x_scale), ("y", second, y_scale)):
        below = np.flatnonzero(values <= 0)
        if scale == "log" and below.size:
            raise AppFailed(
                f"number {int(below[0]) + 1} of {name} is {values[below[0]]:g}, which a logarithmic axis does not "
                "have.",
                kind="contract",
                name="BadData",
                repair=f"{name}_scale = linear, or numbers above 0",
            )
    file = f"plot.{format}"
    with drawing(run, file=file) as (_, (axes,)):
        axes.plot(first, second, _LOOKS[look], color=COLORS[0], markersize=4)
        axes.set(
            xlabel=_with_unit(x_label, x_unit), ylabel=_with_unit(y_label, y_unit), xscale=x_scale, yscale=y_scale
        )
        if title:
            axes.set_title(_as_it_is(title))
    np.savetxt(
        run.workdir / "data.csv",
        np.column_stack([first, second]),
        delimiter=",",
        fmt="%.17g",
        header="x,y",
        comments="",
    )
    unsaid = [name for name, unit in (("x", x_unit), ("y", y_unit)) if not unit.strip()]
    notes = (f"the unit of {' and '.join(unsaid)} was not said: no unit stands at the axis",) if unsaid else ()
    return Outcome(
        metrics={"n_points": float(len(first))}, artifacts={"plot": file, "data": "data.csv"}, notes=notes
    )


def numbers_of(text: str, what: str) -> _Array:
    """The numbers of a text, float64.

    Raises:
        AppFailed: `BadData`.

    Example:
        >>> numbers_of("[1, 2.5, -3e2]", "x").tolist(), numbers_of("1 2, 3", "x").tolist()
        ([1.0, 2.5, -300.0], [1.0, 2.0, 3.0])
    """
    words: list[object]
    if text.strip().startswith("["):
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise _bad(f"{what}={text[:60]!r} is no JSON list: {error}") from None
        words = found if isinstance(found, list) else []
    else:
        words = list(filter(None, re.split(r"\s*,\s*|\s+", text.strip())))
    values = []
    for place, word in enumerate(words, 1):
        try:
            if isinstance(word, bool) or not isinstance(word, (int, float, str)):
                raise TypeError
            value = float(word)
        except (TypeError, ValueError, OverflowError):
            raise _bad(f"number {place} of {what} is {str(word)[:40]!r}, which is none") from None
        if not (math.isfinite(value) and abs(value) <= _LARGEST):
            raise _bad(f"number {place} of {what} is {value:g}; numbers are finite, up to {_LARGEST:g}")
        values.append(value)
    if not values:
        raise _bad(f"{what} has no numbers")
    return np.array(values)


def _bad(message: str) -> AppFailed:
    return AppFailed(f"{message}.", kind="contract", name="BadData", repair="e.g. [1, 2.5, 4]")


def _as_it_is(text: str) -> str:
    """A text in which matplotlib sees no formula."""
    return text.replace("\\", "\\\\").replace("$", r"\$") if "$" in text else text


def _with_unit(label: str, unit: str) -> str:
    shown = unit.strip()
    return _as_it_is(f"{label} ({shown})" if shown and shown != "1" else label)
