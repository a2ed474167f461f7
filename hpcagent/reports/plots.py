"""The report's plots. Needs matplotlib (extra `plots`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hpcagent.campaign.far import far_log
from hpcagent.campaign.history import History
from hpcagent.campaign.numbers import point_text
from hpcagent.campaign.result import CampaignResult
from hpcagent.campaign.table import headed
from hpcagent.errors import HpcAgentError
from hpcagent.model.extended import counting
from hpcagent.model.objective import Goal
from hpcagent.model.parameter import Parameter, Params
from hpcagent.model.records import Observation, Result
from hpcagent.reports.lessons import Learned
from hpcagent.reports.saved import save

__all__ = ["available", "draw", "left_out"]

# Colour-blind safe (Okabe and Ito 2008).
BLUE, ORANGE, GREY, RED, GREEN = "#0072B2", "#E69F00", "#999999", "#D55E00", "#009E73"


def available() -> bool:
    """Whether matplotlib is installed."""
    from importlib.util import find_spec

    return find_spec("matplotlib") is not None


def draw(result: CampaignResult, folder: Path, found: Learned | None = None) -> list[Path]:
    """Draw what the campaign's results allow, and what they taught; returns the PNG files in `folder`."""
    from matplotlib.figure import Figure

    from hpcagent.reports.model_plots import draw_learned

    seen = History(result.campaign, result.results).own
    drawn = []
    plane = partial(_plane, ranked=_by_importance(found))
    for name, plot in (("progress", _progress), ("plane", plane), ("front", _front), ("best_run", _best_run)):
        figure = Figure(figsize=(7.5, 4.8), layout="constrained")
        if plot(figure, result, seen):
            path = folder / f"{name}.png"
            save(figure, path, dpi=120)
            drawn.append(path)
    return drawn + ([] if found is None else draw_learned(result, found, folder))


def left_out(result: CampaignResult) -> str:
    """Why a plot is missing whose file is not here: a clause, or empty."""
    found = _run_of_best(result)
    where = "" if found is None else far_log(found, _workdir(result, found), result.run_dir)
    return f"no plot of the best run: {where}" if where else ""


def _groups(result: CampaignResult, seen: Sequence[Observation]) -> dict[str, list[Observation]]:
    """Observations by how they are drawn."""
    objective = result.campaign.objective
    groups: dict[str, list[Observation]] = {
        "feasible": [],
        "infeasible": [],
        "failed": [],
        "reference": [],
        "distrusted": [],
        "cheaper level": [],
    }
    for o in seen:
        if not o.completed or not objective.known(o.metrics):
            groups["failed"].append(o)
        elif not result.campaign.full(o.params):
            groups["cheaper level"].append(o)
        elif o.role == "reference":
            groups["reference"].append(o)
        elif not objective.feasible(o.metrics):
            groups["infeasible"].append(o)
        else:
            groups["distrusted" if o.distrusted else "feasible"].append(o)
    return groups


_STYLE: dict[str, dict[str, Any]] = {
    "feasible": {"c": BLUE, "marker": "o", "s": 30},
    "infeasible": {"edgecolors": ORANGE, "facecolors": "none", "marker": "o", "s": 30},
    "reference": {"c": GREY, "marker": "D", "s": 18},
    "distrusted": {"edgecolors": BLUE, "facecolors": "none", "marker": "s", "s": 30},
    "cheaper level": {"c": GREY, "marker": "^", "s": 24},
}


def _labels(result: CampaignResult) -> dict[str, str]:
    """Of the metrics; a parameter may have the name of one, and another unit."""
    units = {m.name: m.unit for m in result.campaign.app.contract.metrics}
    return {name: headed(name, unit) for name, unit in units.items()}


def _progress(figure: Any, result: CampaignResult, seen: Sequence[Observation]) -> bool:
    """The goal against the run's number, with the best feasible value so far."""
    goal = result.campaign.objective.goal
    groups = _groups(result, seen)
    if not any(groups.values()):
        return False
    axes = figure.subplots()
    for name, style in _STYLE.items():
        points = groups[name]
        if points:
            label = f"{name} ({len(points)})"
            axes.scatter([o.index for o in points], [o.metrics[goal.metric] for o in points], label=label, **style)
    if groups["failed"]:
        low = axes.get_ylim()[0]
        axes.scatter(
            [o.index for o in groups["failed"]],
            [low] * len(groups["failed"]),
            c=RED,
            marker="x",
            label=f"failed ({len(groups['failed'])})",
            clip_on=False,
            zorder=5,
        )
    steps, best = [], -math.inf
    for o in sorted(groups["feasible"], key=lambda o: o.index):
        best = max(best, goal.score(o.metrics[goal.metric]))
        steps.append((o.index, goal.sign * best))
    if steps:
        steps.append((max(o.index for o in seen), steps[-1][1]))
        axes.step(*zip(*steps, strict=True), where="post", color=GREEN, lw=1.5, label="best feasible run so far")
    for number in sorted({o.batch for o in seen})[1:]:
        first = min(o.index for o in seen if o.batch == number)
        axes.axvline(first - 0.5, color="0.9", lw=0.8, zorder=0)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel("run (vertical lines: batches)")
    axes.set_ylabel(_labels(result)[goal.metric])
    axes.set_title(result.campaign.question, fontsize=10)
    axes.legend(fontsize=8, framealpha=0.9)
    return True


def _by_importance(found: Learned | None) -> tuple[str, ...]:
    """Parameters, those that matter most first; none where nothing is known of that."""
    if found is None or not found.importance or not found.importance[0].trusted:
        return ()
    most = {n: max(w.total[i] for w in found.importance) for i, n in enumerate(found.importance[0].names)}
    return tuple(sorted(most, key=lambda n: -most[n]))


def _plane(figure: Any, result: CampaignResult, seen: Sequence[Observation], ranked: Sequence[str] = ()) -> bool:
    """Two parameters, coloured by the goal; which points keep the limits and which failed.

    Of more than three, the numbers that come first in `ranked`.
    """
    parameters = list(result.campaign.search.free.parameters)
    if len(parameters) > 3:
        parameters.sort(key=lambda p: ranked.index(p.name) if p.name in ranked else len(ranked))
    numeric = [p for p in parameters if p.kind != "choice"]
    if not numeric or not seen:
        return False
    x = numeric[0]
    others = [*numeric[1:], *(p for p in parameters if p.kind in ("choice", "file"))]
    if not others:
        return _line(figure, result, seen, x)
    y = others[0]
    goal = result.campaign.objective.goal
    groups = _groups(result, seen)
    axes = figure.subplots()
    known = [o for name in ("feasible", "infeasible", "distrusted", "reference") for o in groups[name]]
    if known:
        values = [o.metrics[goal.metric] for o in known]
        low, high = min(values), max(values)
        for name, marker, label in (
            ("feasible", "o", "feasible"),
            ("distrusted", "s", "feasible, distrusted speed"),
            ("reference", "D", "reference"),
            ("infeasible", "v", "infeasible"),
        ):
            points = groups[name]
            if points:
                drawn = axes.scatter(
                    [_at(x, o) for o in points],
                    [_at(y, o) for o in points],
                    c=[o.metrics[goal.metric] for o in points],
                    vmin=low,
                    vmax=high,
                    cmap="viridis",
                    marker=marker,
                    s=42,
                    edgecolors=ORANGE if name == "infeasible" else "0.2",
                    linewidths=1.2 if name == "infeasible" else 0.5,
                    label=label,
                )
        figure.colorbar(drawn, ax=axes, label=_labels(result)[goal.metric])
    if groups["failed"]:
        axes.scatter(
            [_at(x, o) for o in groups["failed"]],
            [_at(y, o) for o in groups["failed"]],
            c=RED,
            marker="x",
            label="failed",
        )
    if result.best is not None:
        best = Observation(params=result.best.params)
        name = "best" if result.best.feasible else "most probable, not feasible"
        axes.scatter(
            [_at(x, best)],
            [_at(y, best)],
            marker="*",
            s=260,
            facecolors="none",
            edgecolors=RED,
            linewidths=1.5,
            label=f"{name}: {point_text(_few(result.best.params, x, y), result.best.point_units)}",
        )
    axes.set_xlabel(headed(x.name, x.unit))
    if x.log:
        axes.set_xscale("log")
    axes.set_ylabel(headed(y.name, y.unit))
    if y.choices:
        axes.set_yticks(range(len(y.choices)), [str(c) for c in y.choices])
    elif y.log:
        axes.set_yscale("log")
    figure.legend(loc="outside upper center", ncols=3, fontsize=8, frameon=False)
    return True


def _line(figure: Any, result: CampaignResult, seen: Sequence[Observation], x: Parameter) -> bool:
    """Each metric of the objective against the only parameter, with its limit."""
    objective = result.campaign.objective
    groups = _groups(result, seen)
    metrics = objective.metrics
    figure.set_size_inches(7.5, 1.6 + 2.6 * len(metrics))
    rows = figure.subplots(len(metrics), 1, sharex=True, squeeze=False)[:, 0]
    for axes, metric in zip(rows, metrics, strict=True):
        for name, style in _STYLE.items():
            points = [o for o in groups[name] if metric in o.metrics]
            if points:
                at, values = [_at(x, o) for o in points], [o.metrics[metric] for o in points]
                errors = [o.uncertainty.get(metric, 0.0) for o in points]
                axes.errorbar(at, values, yerr=errors, fmt="none", ecolor="0.6", elinewidth=0.8, zorder=1)
                axes.scatter(at, values, label=name, zorder=2, **style)
        for limit in (c for c in objective.constraints if c.metric == metric):
            axes.axhline(limit.limit, color=ORANGE, ls="--", lw=1, label="limit")
        for i, o in enumerate(groups["failed"]):
            axes.axvline(_at(x, o), color=RED, lw=0.8, alpha=0.5, label="failed" if i == 0 else None)
        if result.best is not None:
            axes.axvline(float(result.best.params[x.name]), color=GREEN, lw=1, ls=":", label="answer")
        axes.set_ylabel(_labels(result)[metric])
        if x.log:
            axes.set_xscale("log")
    rows[-1].set_xlabel(headed(x.name, x.unit))
    handles: dict[str, Any] = {}
    for axes in rows:
        handles |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    figure.legend(handles.values(), handles, loc="outside upper center", ncols=4, fontsize=8, frameon=False)
    return True


def _few(params: Params, x: Parameter, y: Parameter) -> Params:
    """All of a few parameters; of many those of the axes."""
    return params if len(params) <= 3 else {n: v for n, v in params.items() if n in (x.name, y.name)}


def _at(parameter: Parameter, o: Observation) -> float:
    if parameter.name not in o.params:
        return math.nan  # not active there
    value = o.params[parameter.name]
    return float(parameter.choices.index(value)) if parameter.kind == "choice" else float(value)


def _front(figure: Any, result: CampaignResult, seen: Sequence[Observation]) -> bool:
    """With two goals: all runs and the Pareto front; with more: the first three against each other."""
    goals = result.campaign.objective.goals
    known = [r for r in counting(result.results) if r.ok and result.campaign.objective.known(r.metrics)]
    if len(goals) < 2 or not known:
        return False
    pairs = [(goals[0], goals[1])]
    if len(goals) > 2:
        pairs = [(goals[0], goals[1]), (goals[0], goals[2]), (goals[1], goals[2])]
        figure.set_size_inches(13, 4.8)
    panels = figure.subplots(1, len(pairs), squeeze=False)[0]
    for axes, (a, b) in zip(panels, pairs, strict=True):
        _front_panel(axes, result, known, a, b, alone=len(goals) == 2)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), fontsize=8, frameon=False)
    figure.draw_without_rendering()  # where points are is known when the layout is
    for axes, (a, b) in zip(panels, pairs, strict=True):
        _number(axes, result.front, a, b)
    return True


def _front_panel(
    axes: Any, result: CampaignResult, known: Sequence[Result], a: Goal, b: Goal, *, alone: bool
) -> None:
    objective = result.campaign.objective
    members = {r.manifest.index for r in result.front}
    rest = [r for r in known if r.manifest.index not in members]
    for label, runs, style in (
        ("breaks a limit", [r for r in rest if not objective.feasible(r.metrics)], {"ec": "0.75", "fc": "none"}),
        ("other runs", [r for r in rest if objective.feasible(r.metrics)], {"c": GREY}),
    ):
        if runs:
            axes.scatter(_of(runs, a), _of(runs, b), s=20, label=f"{label} ({len(runs)})", **style)
    front = sorted(result.front, key=lambda r: (r.metrics[a.metric], r.metrics[b.metric]))
    bars = {"xerr": _errors(front, a), "yerr": _errors(front, b)}
    label = f"Pareto front ({len(front)}, numbers: runs)"
    axes.errorbar(_of(front, a), _of(front, b), **bars, fmt="o", ms=5, c=BLUE, elinewidth=1, label=label, zorder=3)
    for axis, goal in ((axes.xaxis, a), (axes.yaxis, b)):
        values = [r.metrics[goal.metric] for r in known]
        if min(values) > 0 and max(values) > 30 * min(values):
            (axes.set_xscale if axis is axes.xaxis else axes.set_yscale)("log")
    if alone and len(front) > 1:
        # The corner between two points of the front is what both of them reach for sure.
        where = "pre" if a.direction == "maximize" else "post"
        axes.step(_of(front, a), _of(front, b), where=where, c=BLUE, lw=1, alpha=0.6, zorder=2)
    names = _labels(result)
    axes.set_xlabel(f"{names[a.metric]}, {_better(a, 'right', 'left')}")
    axes.set_ylabel(f"{names[b.metric]}, {_better(b, 'up', 'down')}")
    axes.margins(0.08)


def _of(runs: Sequence[Result], goal: Goal) -> list[float]:
    return [r.metrics[goal.metric] for r in runs]


def _errors(runs: Sequence[Result], goal: Goal) -> list[float]:
    return [r.uncertainty.get(goal.metric, 0.0) for r in runs]


def _better(goal: Goal, more: str, less: str) -> str:
    arrows = {"right": "better \u2192", "left": "\u2190 better", "up": "better \u2192", "down": "\u2190 better"}
    return arrows[more if goal.direction == "maximize" else less]


def _number(axes: Any, front: Sequence[Result], a: Goal, b: Goal) -> None:
    """Write the runs' numbers beside their points, where there is room for them."""
    taken: list[tuple[float, float]] = []
    for r in front:
        x, y = axes.transData.transform((r.metrics[a.metric], r.metrics[b.metric]))
        if all(abs(x - u) > 20 or abs(y - v) > 12 for u, v in taken):
            taken.append((x, y))
            left = a.direction == "minimize"
            axes.annotate(
                str(r.manifest.index),
                (r.metrics[a.metric], r.metrics[b.metric]),
                xytext=(-5 if left else 5, 5 if b.direction == "maximize" else -5),
                textcoords="offset points",
                ha="right" if left else "left",
                va="bottom" if b.direction == "maximize" else "top",
                fontsize=7,
                color=BLUE,
            )


def _best_run(figure: Any, result: CampaignResult, seen: Sequence[Observation]) -> bool:
    """Energy and temperature of the best point's run against time, from its LAMMPS log."""
    found = _run_of_best(result)
    if found is None or "log" not in found.artifacts:
        return False
    from hpcagent.science.lammps.log import read_log

    if far_log(found, _workdir(result, found), result.run_dir):
        return False  # the report says where it is
    try:
        log = read_log(_workdir(result, found) / found.artifacts["log"])
    except (OSError, HpcAgentError):
        return False
    runs = [r for r in log.runs if r.complete and r.steps]
    if not runs or len(runs[-1]) < 2:
        return False
    run = runs[-1]
    time = run["time"] if "time" in run else run["step"]
    panels = [c for c in ("etotal", "temp") if c in run]
    if not panels:
        return False
    rows = figure.subplots(len(panels), 1, sharex=True, squeeze=False)
    for axes, column in zip(rows[:, 0], panels, strict=True):
        label = {"etotal": "total energy", "temp": "temperature"}[column]
        values = run[column]
        if column == "etotal" and len(values):
            values = values - values.mean()
            label = "total energy - mean"
        axes.plot(time, values, color=BLUE, lw=1)
        axes.set_ylabel(f"{label} ({run.unit(column)})")
    rows[-1, 0].set_xlabel(f"time ({run.unit('time')})" if "time" in run else "step")
    label = "best point" if result.best is not None and result.best.feasible else "most probable point"
    places = None if result.best is None else result.best.point_units
    rows[0, 0].set_title(f"{label}: {point_text(_varied(result, found), places)}", fontsize=10)
    return True


def _varied(result: CampaignResult, found: Result) -> dict[str, float | int | str]:
    return {n: v for n, v in found.manifest.params.items() if n in result.campaign.search}


def _run_of_best(result: CampaignResult) -> Result | None:
    if result.best is None:
        return None
    for found in counting(result.results):
        if found.ok and _varied(result, found) == result.best.params:
            return found
    return None


def _workdir(result: CampaignResult, found: Result) -> Path:
    """The run's directory; below the run directory, which may have been moved since."""
    below = result.run_dir / "work" / found.manifest.execution_id
    return below if below.is_dir() else Path(found.workdir)
