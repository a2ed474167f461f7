"""A sweep's plots: each chosen metric against what was varied. Needs matplotlib (extra `plots`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

from hpcagent.campaign.numbers import number
from hpcagent.campaign.sweep import SweepPoint, SweepResult
from hpcagent.campaign.table import headed
from hpcagent.model.base import Scalar
from hpcagent.model.parameter import Parameter
from hpcagent.reports.plots import BLUE, GREEN, GREY, ORANGE, RED
from hpcagent.reports.saved import save

__all__ = ["draw_sweep", "title_of"]

# So many values are told apart by colours of lines; more of them make a heat map.
MOST_LINES = 6
COLOURS = (BLUE, ORANGE, GREEN, RED, "#CC79A7", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P")


def draw_sweep(result: SweepResult, folder: Path) -> list[Path]:
    """Draw each chosen metric; returns the PNG files in `folder`, named `sweep_METRIC.png`.

    One numeric parameter: a line with error bars, and every run as a dot; a choice: bars. Two: a family of lines,
    or a heat map where both have many values. More: a matrix of all pairs, coloured by the metric.
    """
    from matplotlib.figure import Figure

    campaign = result.campaign
    units = {m.name: m.unit for m in campaign.app.contract.metrics}
    varied = [p for p in campaign.search.parameters if len(_values(result.points, p)) > 1]
    drawn = []
    for metric in campaign.shown:
        known = [p for p in result.points if metric in p.metrics]
        if not known or not varied:
            continue
        many = len(varied) > 2
        side = 2.1 * len(varied) + 1.2
        figure = Figure(figsize=(side + 0.8, side) if many else (7.2, 4.6), layout="constrained")
        label = headed(metric, units[metric])
        if many:
            _matrix(figure, result.points, varied, metric, label)
        elif len(varied) == 2:
            _pair(figure, result.points, varied, metric, label)
        else:
            axes = figure.subplots()
            _one(axes, result.points, varied[0], metric)
            axes.set_ylabel(label)
        figure.suptitle(title_of(result, metric), fontsize=10)
        path = folder / f"sweep_{metric}.png"
        save(figure, path, dpi=120)
        drawn.append(path)
    return drawn


def title_of(result: SweepResult, metric: str) -> str:
    """The title of a metric's plot: what its error bars are, or why there are none."""
    kinds = {p.error_of[metric] for p in result.points if metric in p.error_of}
    if kinds == {"replicates"}:
        what = "error bars: of the mean over runs; twice as long they cover 95 % (Student's t)"
    elif kinds == {"run"}:
        what = "error bars: of the one run, as the app states it"
    elif kinds:
        what = "error bars: over runs (twice as long: 95 %, Student's t), or of a single run as the app states it"
    elif any(p.runs > 1 and metric in p.metrics for p in result.points):
        what = "no error bars: runs at a point gave the same number, or only one was made"
    else:
        what = "no error bars: one run at a point"
    return f"{result.campaign.name}: {what}"


def _values(points: Sequence[SweepPoint], p: Parameter) -> list[Scalar]:
    """The values that were asked for, in the order of the axis."""
    found = {point.params[p.name] for point in points if p.name in point.params}
    if p.choices:
        return [c for c in p.choices if c in found] + sorted(found - set(p.choices), key=str)
    return sorted(found, key=lambda v: (isinstance(v, str), v))


def _numeric(p: Parameter) -> bool:
    return p.kind in ("float", "int")


def _one(
    axes: Any,
    points: Sequence[SweepPoint],
    p: Parameter,
    metric: str,
    *,
    colour: str = BLUE,
    marker: str = "o",
    label: str | None = None,
    shift: float = 0.0,
    width: float = 0.7,
) -> None:
    """One line with error bars, or the bars of a choice; failed points are crosses at the foot."""
    places: dict[Scalar, float] = {v: i + shift for i, v in enumerate(_values(points, p))}
    here = [q for q in points if p.name in q.params]
    here.sort(key=lambda q: _x(q.params[p.name], p, places))
    done = [q for q in here if metric in q.metrics]
    x = [_x(q.params[p.name], p, places) for q in done]
    y = [q.metrics[metric] for q in done]
    errors = [q.uncertainty.get(metric, math.nan) for q in done]
    several = [(a, q.values[metric]) for a, q in zip(x, done, strict=True) if len(q.values.get(metric, ())) > 1]
    dots = [(a, value) for a, of in several for value in of]
    if _numeric(p):
        axes.errorbar(x, y, yerr=errors, fmt=f"{marker}-", ms=4.5, lw=1.2, capsize=3, color=colour, label=label)
        if p.log:
            axes.set_xscale("log")
        elif p.kind == "int":
            axes.xaxis.get_major_locator().set_params(integer=True)
    else:
        axes.bar(x, y, width=width, yerr=errors, capsize=3, color=colour, alpha=0.75, label=label)
        axes.set_xticks(range(len(places)), [str(v) for v in places])
    if dots:
        axes.scatter(*zip(*dots, strict=True), s=7, color=GREY, alpha=0.7, zorder=3)
    lost = [_x(q.params[p.name], p, places) for q in here if q.failed and metric not in q.metrics]
    if lost:
        transform = axes.get_xaxis_transform()
        known = axes.get_legend_handles_labels()[1]
        name = None if "failed" in known else "failed"
        axes.scatter(lost, [0.03] * len(lost), marker="x", color=RED, transform=transform, label=name, zorder=4)
    axes.set_xlabel(headed(p.name, p.unit))
    if lost or label is not None:
        axes.legend(fontsize=8)


def _x(value: Scalar, p: Parameter, places: dict[Scalar, float]) -> float:
    return float(value) if _numeric(p) and not isinstance(value, str) else places[value]


def _pair(figure: Any, points: Sequence[SweepPoint], varied: Sequence[Parameter], metric: str, label: str) -> None:
    axes = figure.subplots()
    # The lines are of the parameter with fewer values, a choice before a number.
    along, family = sorted(varied, key=lambda p: (_numeric(p), len(_values(points, p))), reverse=True)
    members = _values(points, family)
    whole = len(points) >= 0.75 * len(members) * len(_values(points, along))
    if whole and len(members) <= MOST_LINES:
        for i, member in enumerate(members):
            of = [q for q in points if q.params.get(family.name) == member]
            unit = "" if family.unit == "1" else f" {family.unit}"
            width = 0.8 / len(members)
            _one(
                axes,
                of,
                along,
                metric,
                colour=COLOURS[i],
                marker=MARKERS[i],
                label=f"{family.name} = {number(member)}{unit}",
                shift=0.0 if _numeric(along) else (i - (len(members) - 1) / 2) * width,
                width=width,
            )
        axes.set_ylabel(label)
        return
    figure.colorbar(_map(axes, points, along, family, metric), ax=axes, label=label)


def _map(axes: Any, points: Sequence[SweepPoint], across: Parameter, up: Parameter, metric: str) -> Any:
    """The metric as a colour over two parameters: cells where the points are a whole grid, dots elsewhere."""
    xs, ys = _values(points, across), _values(points, up)
    px: dict[Scalar, float] = {v: float(i) for i, v in enumerate(xs)}
    py: dict[Scalar, float] = {v: float(i) for i, v in enumerate(ys)}
    at = {(q.params.get(across.name), q.params.get(up.name)): q for q in points}
    done = [q for q in points if metric in q.metrics and across.name in q.params and up.name in q.params]
    x = [_x(q.params[across.name], across, px) for q in done]
    y = [_x(q.params[up.name], up, py) for q in done]
    colours = [q.metrics[metric] for q in done]
    if len(at) == len(points) and all(pair in at for pair in product(xs, ys)):
        rows = [[at[a, b].metrics.get(metric, math.nan) for a in xs] for b in ys]
        grid = ([_x(a, across, px) for a in xs], [_x(b, up, py) for b in ys])
        drawn = axes.pcolormesh(*grid, rows, shading="nearest", cmap="viridis")
    else:
        drawn = axes.scatter(x, y, c=colours, cmap="viridis", s=28)
    lost = [q for q in points if q.failed and metric not in q.metrics]
    if lost:
        axes.scatter(
            [_x(q.params[across.name], across, px) for q in lost],
            [_x(q.params[up.name], up, py) for q in lost],
            marker="x",
            color=RED,
            label="failed",
        )
        axes.legend(fontsize=7)
    for p, values, axis in ((across, xs, "x"), (up, ys, "y")):
        if not _numeric(p):
            getattr(axes, f"set_{axis}ticks")(range(len(values)), [str(v) for v in values])
        elif p.log:
            getattr(axes, f"set_{axis}scale")("log")
        getattr(axes, f"set_{axis}label")(headed(p.name, p.unit))
    return drawn


def _matrix(
    figure: Any, points: Sequence[SweepPoint], varied: Sequence[Parameter], metric: str, label: str
) -> None:
    """All pairs below the diagonal, coloured by the metric; on it the metric itself over each parameter."""
    n = len(varied)
    panels = figure.subplots(n, n, squeeze=False)
    values = [q.metrics[metric] for q in points if metric in q.metrics]
    low, high = min(values), max(values)
    coloured: Any = None
    for row, column in product(range(n), range(n)):
        axes = panels[row][column]
        axes.tick_params(labelsize=7)
        if column > row:
            axes.set_axis_off()
        elif column == row:
            _against(axes, points, varied[row], metric)
            axes.set_title(label, fontsize=7)
        else:
            coloured = _spread(axes, points, varied[column], varied[row], metric, low, high)
        for axis in (axes.xaxis, axes.yaxis):
            axis.label.set_size(8)
    figure.colorbar(coloured, ax=panels, label=label, shrink=0.6)


def _against(axes: Any, points: Sequence[SweepPoint], p: Parameter, metric: str) -> None:
    places: dict[Scalar, float] = {v: float(i) for i, v in enumerate(_values(points, p))}
    done = [q for q in points if metric in q.metrics and p.name in q.params]
    x = [_x(q.params[p.name], p, places) for q in done]
    errors = [q.uncertainty.get(metric, math.nan) for q in done]
    axes.errorbar(x, [q.metrics[metric] for q in done], yerr=errors, fmt="o", ms=3, lw=0.8, color=BLUE)
    _scale(axes, p, places, "x")
    axes.set_xlabel(headed(p.name, p.unit))


def _spread(
    axes: Any, points: Sequence[SweepPoint], across: Parameter, up: Parameter, metric: str, low: float, high: float
) -> Any:
    """Dots of all points; those that differ in other parameters only lie side by side."""
    px: dict[Scalar, float] = {v: float(i) for i, v in enumerate(_values(points, across))}
    py: dict[Scalar, float] = {v: float(i) for i, v in enumerate(_values(points, up))}
    groups: dict[tuple[float, float], list[float]] = {}
    for q in points:
        if metric in q.metrics and across.name in q.params and up.name in q.params:
            place = (_x(q.params[across.name], across, px), _x(q.params[up.name], up, py))
            groups.setdefault(place, []).append(q.metrics[metric])
    # Rings inside one another: the outermost is the highest value there.
    rings = [
        (x, y, value, 22.0 * (len(of) - i) ** 1.3)
        for (x, y), of in groups.items()
        for i, value in enumerate(sorted(of, reverse=True))
    ]
    x, y, colours, sizes = (list(part) for part in zip(*rings, strict=True))
    drawn = axes.scatter(x, y, c=colours, s=sizes, cmap="viridis", vmin=low, vmax=high, edgecolors="white", lw=0.3)
    _scale(axes, across, px, "x")
    _scale(axes, up, py, "y")
    axes.set_xlabel(headed(across.name, across.unit))
    axes.set_ylabel(headed(up.name, up.unit))
    axes.margins(0.2)
    return drawn


def _scale(axes: Any, p: Parameter, places: dict[Scalar, float], axis: str) -> None:
    if not _numeric(p):
        getattr(axes, f"set_{axis}ticks")(list(places.values()), [str(v) for v in places])
    elif p.log:
        getattr(axes, f"set_{axis}scale")("log")
