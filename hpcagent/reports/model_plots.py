"""The report's plots of what the runs taught: importance, slices, convergence, calibration. Needs matplotlib."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np

from hpcagent.campaign.numbers import point_text
from hpcagent.campaign.result import CampaignResult
from hpcagent.campaign.table import headed
from hpcagent.model.base import Scalar
from hpcagent.model.parameter import Parameter
from hpcagent.reports.lessons import Learned
from hpcagent.reports.saved import save
from hpcagent.statistics.insight import Bin, Prediction, Slice

__all__ = ["draw_learned"]

# Colour-blind safe (Okabe and Ito 2008).
BLUE, ORANGE, GREY, RED, GREEN, SKY = "#0072B2", "#E69F00", "#999999", "#D55E00", "#009E73", "#56B4E9"
COLOURS = (BLUE, ORANGE, GREEN, RED, SKY, GREY)
WIDE = 30.0  # values that differ by more than this factor are drawn on a logarithmic axis


def draw_learned(result: CampaignResult, found: Learned, folder: Path) -> list[Path]:
    """Draw what there is of it; returns the PNG files written into `folder`."""
    from matplotlib.figure import Figure

    drawn = []
    plots = (
        ("convergence", _convergence),
        ("importance", _importance),
        ("slices", _slices),
        ("calibration", _calibration),
    )
    for name, plot in plots:
        figure = Figure(figsize=(7.5, 4.2), layout="constrained")
        if plot(figure, result, found):
            path = folder / f"{name}.png"
            save(figure, path, dpi=110)
            drawn.append(path)
    return drawn


def _labels(result: CampaignResult) -> dict[str, str]:
    """Of the metrics; a parameter may have the name of one, and another unit."""
    units = {m.name: m.unit for m in result.campaign.app.contract.metrics}
    return {name: headed(name, unit) for name, unit in units.items()}


def _convergence(figure: Any, result: CampaignResult, found: Learned) -> bool:
    """The answer in the course of the campaign, against runs and against node-hours."""
    if len(found.progress) < 2:
        return False
    goal = result.campaign.objective.goal
    left, right = figure.subplots(1, 2, sharey=True)
    for axes, at, label in (
        (left, [p.runs for p in found.progress], "runs"),
        (right, [p.node_hours for p in found.progress], "node-hours"),
    ):
        values = np.array([p.value for p in found.progress])
        errors = np.array([p.error for p in found.progress])
        axes.fill_between(
            at, values - errors, values + errors, color=SKY, alpha=0.3, lw=0, label="± standard error"
        )
        axes.plot(at, values, color=BLUE, lw=1.2)
        for feasible, style, name in (
            (True, {"c": BLUE}, "best feasible point"),
            (False, {"ec": ORANGE, "fc": "white"}, "most probable point, none is feasible"),
        ):
            which = [i for i, p in enumerate(found.progress) if p.feasible is feasible]
            if which:
                axes.scatter([at[i] for i in which], values[which], s=26, label=name, zorder=3, **style)
        axes.set_xlabel(label)
        axes.grid(color="0.93")
    left.xaxis.get_major_locator().set_params(integer=True)
    left.set_ylabel(f"{_labels(result)[goal.metric]}, to {goal.direction}")
    left.legend(fontsize=8, framealpha=0.9)
    right.tick_params(axis="x", labelrotation=30 if found.progress[-1].node_hours < 1e-3 else 0)
    figure.suptitle("the answer as it was, by all runs until then", fontsize=10)
    return True


def _importance(figure: Any, result: CampaignResult, found: Learned) -> bool:
    """Bars: total index, and within it the part of the parameter alone."""
    if not found.importance:
        return False
    names = found.importance[0].names
    count = len(found.importance)
    figure.set_size_inches(7.5, max(2.2, 1.3 + 0.28 * len(names) * count))
    axes = figure.subplots()
    height = 0.8 / count
    for k, weights in enumerate(found.importance):
        at = [i + (k - (count - 1) / 2) * height for i in range(len(names))]
        colour = COLOURS[k % len(COLOURS)]
        label = weights.metric + ("" if weights.trusted else " (not to be trusted)")
        axes.barh(at, weights.total, 0.9 * height, color=colour, alpha=0.35, lw=0)
        axes.barh(at, np.minimum(weights.first, weights.total), 0.9 * height, color=colour, lw=0, label=label)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.02)
    axes.set_xlabel("share of the variance over the whole space (dark: alone; light: with others)")
    figure.legend(loc="outside upper center", ncols=3, fontsize=8, frameon=False)
    return True


def _slices(figure: Any, result: CampaignResult, found: Learned) -> bool:
    """A row of panels for each metric, a column for each parameter."""
    if not found.slices or found.point is None:
        return False
    metrics = list(dict.fromkeys(s.metric for s in found.slices))
    names = list(dict.fromkeys(s.name for s in found.slices))
    figure.set_size_inches(max(5.0, 1.0 + 2.7 * len(names)), 1.2 + 2.3 * len(metrics))
    panels = figure.subplots(len(metrics), len(names), squeeze=False, sharey="row", sharex="col")
    figure.get_layout_engine().set(wspace=0.06)
    labels = _labels(result)
    for s in found.slices:
        axes = panels[metrics.index(s.metric), names.index(s.name)]
        _slice(axes, s, result.campaign.search[s.name], found.point[s.name])
        if s.name == names[0]:
            axes.set_ylabel(labels[s.metric])
        if s.metric == metrics[-1]:
            axes.set_xlabel(headed(s.name, result.campaign.search[s.name].unit))
    for row, metric in zip(panels, metrics, strict=True):
        _scale_row(row, [s for s in found.slices if s.metric == metric])
    shown: dict[str, Any] = {}
    for axes in panels.ravel():
        handles, texts = axes.get_legend_handles_labels()
        shown |= dict(zip(texts, handles, strict=True))
    figure.legend(
        shown.values(),
        shown.keys(),
        loc="outside lower center",
        ncols=min(len(shown), 4),
        fontsize=8,
        frameon=False,
    )
    goals = result.campaign.objective.goals
    through = "the answer" if len(goals) == 1 else f"the point with the best {goals[0].metric}"
    through = through if result.best is not None and result.best.feasible else "the most probable point"
    units = {p.name: p.unit for p in result.campaign.search.parameters}
    title = f"the model through {through}: {point_text(found.point, units)}"
    figure.suptitle(fill(title, int(13 * figure.get_size_inches()[0])), fontsize=9)
    return True


def _slice(axes: Any, s: Slice, parameter: Parameter, here: Scalar) -> None:
    if parameter.kind == "choice":
        at = np.arange(len(s.values), dtype=float)
        bars = [s.mean - s.low, s.high - s.mean]
        axes.errorbar(at, s.mean, yerr=bars, fmt="_", ms=12, c=BLUE, capsize=3, label="model, 90 %")
        axes.set_xticks(at, [str(v) for v in s.values], rotation=30 if len(s.values) > 4 else 0)
        axes.set_xlim(-0.5, len(at) - 0.5)
        marked = float(s.values.index(here)) if here in s.values else math.nan
        edges = [(x - 0.5, x + 0.5) for x, p in zip(at, s.feasible, strict=True) if p < 0.5]
    else:
        at = np.array([float(v) for v in s.values])
        axes.fill_between(at, s.low, s.high, color=SKY, alpha=0.35, lw=0, label="90 %")
        axes.plot(at, s.mean, c=BLUE, lw=1.3, label="model")
        if at[-1] > at[0]:  # else the constraints leave one value
            axes.set_xlim(at[0], at[-1])
        if parameter.log:
            _logarithmic(axes, float(at[0]), float(at[-1]))
        marked = float(here)
        edges = _stretches(at, s.feasible < 0.5)
    for i, (low, high) in enumerate(edges):
        label = "P(completes and feasible) < 0.5" if i == 0 else None
        axes.axvspan(low, high, color=ORANGE, alpha=0.13, lw=0, label=label, zorder=0)
    if math.isfinite(marked):
        axes.axvline(marked, c="0.6", lw=0.8, ls=":", zorder=1)
    if s.limit is not None:
        axes.axhline(s.limit, c=RED, lw=1, ls="--", label="limit")
    if s.runs:
        x = [float(s.values.index(v)) if parameter.kind == "choice" else float(v) for v, _, _ in s.runs]
        # Runs that are not quite on the slice are paler.
        colours = [(0.1, 0.1, 0.1, 0.25 + 0.7 * close) for _, _, close in s.runs]
        axes.scatter(x, [y for _, y, _ in s.runs], s=12, c=colours, lw=0, label="runs near it", zorder=3)


def _logarithmic(axes: Any, low: float, high: float) -> None:
    """Few labels, as plain numbers: matplotlib's own run into one another in small panels."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set_xscale("log")
    decades = math.log10(high / low)
    marks = (1.0, 2.0, 5.0) if decades < 1.6 else (1.0, 3.0) if decades < 2.6 else (1.0,)
    axes.xaxis.set_major_locator(LogLocator(subs=marks, numticks=9))
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())


def _stretches(at: Any, which: Any) -> list[tuple[float, float]]:
    """Beginnings and ends of the stretches where it is true."""
    found: list[tuple[float, float]] = []
    start: float | None = None
    for x, true in zip(at, which, strict=True):
        if true and start is None:
            start = float(x)
        if not true and start is not None:
            found.append((start, float(x)))
            start = None
    return [*found, *([] if start is None else [(start, float(at[-1]))])]


def _scale_row(row: Sequence[Any], of_metric: Sequence[Slice]) -> None:
    """One axis of values for a row: what the model and the near runs say, not the far ends of bands."""
    values = np.concatenate([*(s.mean for s in of_metric), [y for s in of_metric for _, y, _ in s.runs]])
    limits = [s.limit for s in of_metric if s.limit is not None]
    values = np.concatenate([values, limits])
    low, high = float(values.min()), float(values.max())
    if low > 0 and high > WIDE * low:
        row[0].set_yscale("log")
        row[0].set_ylim(low / 1.5, high * 1.5)
    else:
        room = 0.12 * (high - low) or 0.1 * abs(high) or 1.0
        row[0].set_ylim(low - room, high + room)


def _calibration(figure: Any, result: CampaignResult, found: Learned) -> bool:
    """Predicted against observed for each metric, and how often what had a probability came true."""
    metrics = list(dict.fromkeys(p.metric for p in found.predictions))[:3]
    if not metrics:
        return False
    bins = Bin.of(found.chances) if result.campaign.objective.constraints else ()
    count = len(metrics) + bool(bins)
    figure.set_size_inches(max(5.0, 3.6 * count), 3.9)
    panels = figure.subplots(1, count, squeeze=False)[0]
    for axes, metric in zip(panels, metrics, strict=False):
        _observed(axes, [p for p in found.predictions if p.metric == metric], _labels(result)[metric])
    if bins:
        _came_true(panels[-1], bins)
    panels[0].legend(fontsize=7, framealpha=0.9, loc="upper left")
    figure.suptitle("suggested runs, predicted from the runs before them (bars: 90 % for one run)", fontsize=10)
    return True


def _observed(axes: Any, found: Sequence[Prediction], label: str) -> None:
    values = np.array([v for p in found for v in (p.value, p.mean)])
    low, high = float(values.min()), float(values.max())
    wide = low > 0 and high > WIDE * low
    for inside, colour, name in ((True, BLUE, "inside"), (False, RED, "outside")):
        group = [p for p in found if (abs(p.z) <= 1.6449) is inside]
        if not group:
            continue
        bars = np.array([[max(p.mean - p.low, 0.0), max(p.high - p.mean, 0.0)] for p in group]).T
        axes.errorbar(
            [p.value for p in group],
            [p.mean for p in group],
            yerr=bars,
            fmt="o",
            ms=3,
            elinewidth=0.7,
            alpha=0.8,
            c=colour,
            label=f"{name} ({len(group)})",
        )
    room = 0.06 * (high - low) or 0.1 * abs(high) or 1.0
    ends = (low / 1.3, high * 1.3) if wide else (low - room, high + room)
    if wide:
        axes.set_xscale("log")
        axes.set_yscale("log")
    axes.plot(ends, ends, c="0.6", lw=0.8, zorder=1)
    axes.set_xlim(ends)
    axes.set_ylim(ends)
    axes.set_xlabel(f"{label}, came out")
    axes.set_ylabel("predicted")


def _came_true(axes: Any, bins: Sequence[Bin]) -> None:
    axes.plot((0, 1), (0, 1), c="0.6", lw=0.8)
    axes.errorbar(
        [b.predicted for b in bins],
        [b.share for b in bins],
        yerr=[b.error for b in bins],
        fmt="o",
        c=GREEN,
        capsize=3,
    )
    for i, b in enumerate(bins):
        # The label of one that stands close beside another is on its other side.
        crowded = i > 0 and b.predicted - bins[i - 1].predicted < 0.16
        left = b.predicted > 0.2 and not (crowded and b.predicted < 0.87)
        axes.annotate(
            f"{b.runs} run{'s' if b.runs > 1 else ''}",
            (b.predicted, b.share),
            xytext=(-6 if left else 6, 0),
            textcoords="offset points",
            ha="right" if left else "left",
            va="center",
            fontsize=7,
        )
    axes.set_xlim(-0.05, 1.05)
    axes.set_ylim(-0.05, 1.05)
    axes.set_xlabel("predicted P(completes, keeps limits)")
    axes.set_ylabel("share that did")
