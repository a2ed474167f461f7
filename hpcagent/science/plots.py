"""Plots of what runs and analyses give, as apps: each draws a PNG named `plot`.

They read the files that the apps before them have written, never their memory, so that a plot can be made again
from a run directory alone. Axes have units, points have error bars where errors are known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcagent.apps.base import App
from hpcagent.apps.bounded import read_csv, read_fields
from hpcagent.apps.decorator import app
from hpcagent.apps.missing import missing_file
from hpcagent.apps.run import Outcome, Run
from hpcagent.errors import AppFailed, nearest
from hpcagent.model.contract import Metric
from hpcagent.model.parameter import Choice, Text

__all__ = [
    "COLORS",
    "can_draw",
    "drawing",
    "plot_convergence",
    "plot_dos",
    "plot_eos",
    "plot_msd",
    "plot_rdf",
    "plot_scf",
    "plot_structure",
    "plot_thermo",
]

_Array = NDArray[np.float64]
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Colours that can be told apart with any kind of colour vision (M. Okabe and K. Ito, 2008)."""
FILE = "plot.png"
_STYLE: Any = {
    "font.size": 11,
    "axes.labelsize": 12,
    "legend.fontsize": 10,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.formatter.useoffset": False,
    "axes.formatter.limits": (-4, 5),
    "errorbar.capsize": 2.5,
    "svg.hashsalt": "hpcagent",
}
_GREY = "#888888"
_MOST_LINES = 24

_LABELS = Text(default="", description="names of the lines, separated by semicolons; empty: what differs")
_TITLE = Text(default="", description="title; empty: none")
_POINTS = Metric(name="n_points", unit="1", description="points drawn")
_FAILURES = ("NoData", "BadData", "MissingFile", "NoEngine")


def can_draw() -> bool:
    """Whether matplotlib is installed here, for analyses that draw beside their numbers."""
    return find_spec("matplotlib") is not None


@contextmanager
def drawing(
    run: Run,
    rows: int = 1,
    columns: int = 1,
    *,
    size: tuple[float, float] = (6.4, 4.4),
    file: str = FILE,
    **panels: Any,
) -> Iterator[tuple[Any, list[Any]]]:
    """A figure and its axes, row by row; saved in the run's directory on leaving.

    Args:
        run: The run.
        rows, columns: Panels.
        size: Width and height, in inches, at 150 dots each.
        file: Name of the picture; its ending decides the format.
        panels: For matplotlib's `subplots`.

    Raises:
        AppFailed: `NoEngine`: matplotlib is not installed.
    """
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        raise AppFailed(
            "plots need matplotlib, which is not installed here.",
            kind="infrastructure",
            name="NoEngine",
            repair="pip install matplotlib",
        ) from None
    # Without pyplot: no global state, no window.
    with rc_context(_STYLE):
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False, **panels)
        yield figure, [a for row in axes for a in row]
        # The same picture is the same file: no date in it.
        undated: dict[str, Any] = {"metadata": {"Date": None}} if file.endswith(".svg") else {}
        figure.savefig(run.workdir / file, dpi=150, **undated)


def _outcome(points: int, notes: Sequence[str] = ()) -> Outcome:
    return Outcome(metrics={"n_points": float(points)}, artifacts={"plot": FILE}, notes=tuple(notes))


def _finish(axes: Any, title: str, *, lines: int) -> None:
    if title:
        axes.set_title(title)
    if lines > 1:
        axes.legend(ncols=1 if lines <= 8 else 2)


# ---- what is drawn


def _file(fields: Mapping[str, Any], artifact: str, made_by: str) -> Path:
    name = (fields.get("artifacts") or {}).get(artifact)
    if name is None:
        raise AppFailed(
            f"the input run {fields.get('workdir') or '(without a directory)'} has no {artifact!r} among its "
            f"artifacts (it has: {', '.join(fields.get('artifacts') or {}) or 'none'}).",
            kind="contract",
            name="NoData",
            repair=f"pass a run of {made_by}",
        )
    path = Path(fields["workdir"]) / str(name)
    if not path.is_file():
        raise missing_file(fields, path, f"file {artifact!r}")
    return path


def _table(path: Path) -> dict[str, _Array]:
    """Columns of a CSV file of numbers by their header, e.g. `time_ps`."""
    try:
        table = read_csv(path)
    except ValueError as error:
        raise AppFailed(f"{path} is no table of numbers: {error}.", kind="contract", name="BadData") from None
    header, data = table.header, table.data
    if table.uneven or not len(data):
        raise AppFailed(f"{path} is empty, or its rows differ in length.", kind="contract", name="BadData")
    return {name: data[:, i] for i, name in enumerate(header)}


def _labels(run: Run, given: str) -> list[str]:
    """Names of the inputs: as given, or the parameters in which they differ."""
    names = [word.strip() for word in given.split(";")] if given.strip() else []
    if names and len(names) != len(run.upstream):
        raise AppFailed(
            f"labels={given!r} are {len(names)} names for {len(run.upstream)} runs.",
            kind="contract",
            name="BadData",
        )
    if names:
        return names
    params = [(fields.get("manifest") or {}).get("params") or {} for fields in run.upstream]
    differing = [k for k in params[0] if len({str(p.get(k)) for p in params}) > 1]
    found = [", ".join(f"{k} = {_short(p.get(k))}" for k in differing if p.get(k) != "") for p in params]
    if len(set(found)) == len(found):
        return found
    return [f"run {number + 1}" for number in range(len(run.upstream))]


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _check_lines(run: Run) -> None:
    if len(run.upstream) > _MOST_LINES:
        raise AppFailed(
            f"{len(run.upstream)} lines in one plot cannot be told apart; at most {_MOST_LINES}.",
            kind="contract",
            name="BadData",
        )


def _styles(n: int) -> list[dict[str, Any]]:
    dashes = ("-", "--", ":", "-.")
    return [{"color": COLORS[i % len(COLORS)], "linestyle": dashes[i // len(COLORS)]} for i in range(n)]


def _plot(**given: Any) -> Callable[[Callable[..., Any]], App]:
    """What all of these apps promise."""
    return app(
        version="1.0.0",
        app_type="analysis",
        metrics={"n_points": _POINTS},
        seeded=False,
        failure_modes=_FAILURES,
        estimated_runtime_s=1.0,
        **given,
    )


# ---- trajectories


@_plot(
    name="plot_rdf",
    inputs=("runs...",),
    parameters={"labels": _LABELS, "title": _TITLE},
)
def plot_rdf(labels: str, title: str, run: Run) -> Outcome:
    """Draw g(r) of one or more runs of `rdf`, with a band of one standard error and the first minimum."""
    _check_lines(run)
    names = _labels(run, labels)
    points = 0
    with drawing(run) as (_, (axes,)):
        for fields, name, style in zip(run.upstream, names, _styles(len(names)), strict=True):
            table = _table(_file(fields, "rdf", "rdf"))
            r, g, error = table["r_angstrom"], table["g_1"], np.nan_to_num(table["g_error_1"])
            axes.plot(r, g, label=name, **style)
            axes.fill_between(r, g - error, g + error, color=style["color"], alpha=0.25, linewidth=0)
            minimum = (fields.get("metrics") or {}).get("first_minimum")
            if minimum is not None:
                axes.axvline(minimum, color=style["color"], linewidth=0.8, linestyle=":")
            points += len(r)
        axes.axhline(1.0, color=_GREY, linewidth=0.8, zorder=0)
        axes.set(xlabel="r (angstrom)", ylabel="g(r)", ylim=(0, None))
        axes.set_xlim(0, float(r[-1]))
        _finish(axes, title, lines=len(names))
    return _outcome(points)


@_plot(
    name="plot_msd",
    inputs=("runs...",),
    parameters={
        "labels": _LABELS,
        "title": _TITLE,
        "scale": Choice("linear", "log", default="linear", description="of both axes"),
    },
)
def plot_msd(labels: str, title: str, scale: str, run: Run) -> Outcome:
    """Draw the mean squared displacement of one or more runs of `msd`, with the fitted lines in their windows."""
    _check_lines(run)
    names = _labels(run, labels)
    points = 0
    with drawing(run) as (_, (axes,)):
        for fields, name, style in zip(run.upstream, names, _styles(len(names)), strict=True):
            table = _table(_file(fields, "msd", "msd"))
            t, y = table["time_ps"], table["msd_angstrom2"]
            start = 1 if scale == "log" else 0  # no logarithm of the first
            metrics, errors = fields.get("metrics") or {}, fields.get("uncertainty") or {}
            axes.plot(t[start:], y[start:], label=name, **style)
            points += len(t) - start
            if {"fit_from", "fit_to", "diffusion_angstrom2_ps"} <= metrics.keys():
                window = (t >= metrics["fit_from"] - 1e-9) & (t <= metrics["fit_to"] + 1e-9)
                slope = 6.0 * metrics["diffusion_angstrom2_ps"]
                line = y[window].mean() + slope * (t[window] - t[window].mean())
                error = errors.get("diffusion")
                said = _with_error(metrics["diffusion"] * 1e5, None if error is None else error * 1e5)
                label = f"D = ({said}) $\\times 10^{{-5}}$ cm$^2$/s"
                axes.plot(t[window], line, color="black", linewidth=1.0, linestyle="--", label=label)
        axes.set(xlabel="time (ps)", ylabel="mean squared displacement (angstrom$^2$)", xscale=scale, yscale=scale)
        if scale == "linear":
            axes.set_xlim(0, None)
            axes.set_ylim(0, None)
        _finish(axes, title, lines=2)
    return _outcome(points)


def _with_error(value: float, error: float | None) -> str:
    if error is None or not math.isfinite(error) or error <= 0:
        return f"{value:.3g}"
    digits = max(0, 1 - math.floor(math.log10(error)))
    return f"{value:.{digits}f} ± {error:.{digits}f}"


@_plot(
    name="plot_dos",
    inputs=("runs...",),
    parameters={"labels": _LABELS, "title": _TITLE},
)
def plot_dos(labels: str, title: str, run: Run) -> Outcome:
    """Draw the vibrational density of states of one or more runs of `vacf`; of a single one also by species."""
    _check_lines(run)
    names = _labels(run, labels)
    points, lines, highest = 0, 0, 0.0
    with drawing(run) as (_, (axes,)):
        styles = iter(_styles(_MOST_LINES))
        for fields, name in zip(run.upstream, names, strict=True):
            table = _table(_file(fields, "dos", "vacf"))
            frequency = table["frequency_THz"]
            columns = {name if len(names) > 1 else "all atoms": table["dos_per_atom_THz"]}
            if len(names) == 1:
                columns |= {
                    k[4:-13]: v for k, v in table.items() if k.startswith("dos_") and k != "dos_per_atom_THz"
                }
            for label, dos in columns.items():
                axes.plot(frequency, dos, label=label, **next(styles))
                lines += 1
                points += len(frequency)
                above = np.flatnonzero(dos > 0.005 * dos.max())
                highest = max(highest, float(frequency[above[-1]]))
        axes.set(xlabel="frequency (THz)", ylabel="density of states (1/THz/atom)")
        axes.set_xlim(0, 1.05 * highest)
        axes.set_ylim(0, None)
        _finish(axes, title, lines=lines)
    return _outcome(points)


# ---- thermodynamics


@app(
    name="plot_thermo",
    version="1.0.0",
    app_type="analysis",
    inputs=("run",),
    parameters={"title": _TITLE},
    metrics={"n_points": _POINTS},
    seeded=False,
    failure_modes=(*_FAILURES, "NoThermo", "BadThermo", "NoUnits", "ReducedUnits"),
    estimated_runtime_s=1.0,
)
def plot_thermo(title: str, run: Run) -> Outcome:
    """Draw temperature, energies, pressure and density of a run of molecular dynamics against time."""
    from hpcagent.science.analysis.averages import read_table

    table = read_table(run.upstream[0])
    if "time" in table:
        x, xlabel = table["time"], "time (ps)"
    else:
        x, xlabel = np.arange(len(table), dtype=np.float64), "row of the table"
    atoms = table.n_atoms or 1
    energy = "eV/atom" if table.n_atoms else "eV"
    wanted = [
        ("temperature (K)", "temperature", 1.0),
        (f"potential energy\n({energy})", "potential", 1.0 / atoms),
        (f"total energy\n({energy})", "total", 1.0 / atoms),
        ("pressure (bar)", "pressure", 1.0),
    ]
    volume = table.columns.get("volume")
    if "density" in table and (volume is None or np.ptp(volume) > 0):
        wanted.append(("density (g/cm$^3$)", "density", 1.0))
    panels = [(label, table[name] * scale) for label, name, scale in wanted if name in table]
    if not panels:
        raise AppFailed(f"{table.source} has none of the columns that are drawn.", kind="contract", name="NoData")
    with drawing(run, len(panels), size=(6.8, 0.9 + 1.5 * len(panels)), sharex=True) as (figure, axes):
        for ax, (label, values) in zip(axes, panels, strict=True):
            ax.plot(x, values, color=COLORS[0], linewidth=0.9)
            ax.axhline(np.nanmean(values), color=COLORS[1], linewidth=0.9, linestyle="--")
            ax.set_ylabel(label)
        figure.align_ylabels(axes)
        axes[-1].set_xlabel(xlabel)
        axes[-1].set_xlim(float(x[0]), float(x[-1]) if len(x) > 1 else float(x[0]) + 1.0)
        if title:
            axes[0].set_title(title)
    return _outcome(len(x) * len(panels), ["dashed: means over all rows, the start-up included"])


# ---- crystals and levels of theory


@_plot(
    name="plot_eos",
    inputs=("run",),
    parameters={"title": _TITLE},
)
def plot_eos(title: str, run: Run) -> Outcome:
    """Draw energies against volume with the fitted equation of state of a run of `eos_fit`."""
    from hpcagent.science.analysis.eos import birch_murnaghan
    from hpcagent.units import factor

    fields = run.upstream[0]
    table = _table(_file(fields, "eos", "eos_fit"))
    metrics, errors = fields.get("metrics") or {}, fields.get("uncertainty") or {}
    v, e = table["volume_angstrom3_per_atom"], table["energy_eV_per_atom"]
    with drawing(run) as (_, (axes,)):
        lowest = metrics.get("e0", float(e.min()))
        axes.plot(v, (e - lowest) * 1e3, "o", color=COLORS[0], label="energies")
        if {"v0", "e0", "bulk_modulus", "bulk_modulus_prime"} <= metrics.keys():
            fine = np.linspace(v.min(), v.max(), 200)
            b0 = metrics["bulk_modulus"] * factor("GPa", "eV/angstrom^3")
            curve = birch_murnaghan(fine, metrics["v0"], metrics["e0"], b0, metrics["bulk_modulus_prime"])
            said = _with_error(metrics["bulk_modulus"], errors.get("bulk_modulus"))
            label = f"Birch-Murnaghan, B = {said} GPa"
            axes.plot(fine, (curve - lowest) * 1e3, color=COLORS[1], zorder=0, label=label)
            axes.axvline(metrics["v0"], ymax=0.1, color=_GREY, linewidth=0.8, linestyle=":")
        axes.set(xlabel="volume (angstrom$^3$/atom)", ylabel=f"energy - ({lowest:.4f} eV)  (meV/atom)")
        _finish(axes, title, lines=2)
    return _outcome(len(v))


@_plot(
    name="plot_convergence",
    inputs=("runs...",),
    parameters={
        "parameter": Text(description="parameter of the runs along the axis, e.g. ecut"),
        "metric": Text(default="energy", description="metric that is drawn"),
        "relative": Choice(
            "last", "no", default="last", description="last: less its value at the parameter's last value"
        ),
        "title": _TITLE,
    },
)
def plot_convergence(parameter: str, metric: str, relative: str, title: str, run: Run) -> Outcome:
    """Draw a metric of several runs against one of their parameters, e.g. the energy against the cutoff.

    Energies are drawn for each atom where the runs have structures.
    """
    x, words, y, error, unit = _against(run, parameter, metric)
    if relative == "last":
        y = y - y[-1]
    with drawing(run) as (_, (axes,)):
        label = metric.replace("_", " ")
        if relative == "last":
            last = words[-1] if words else f"{x[-1]:g}"
            label += f" - that at {parameter} = {last}"
        if relative == "last" and unit.startswith("eV") and np.ptp(y) < 0.5:
            y, error, unit = y * 1e3, error * 1e3, unit.replace("eV", "meV", 1)
        axes.errorbar(x, y, yerr=error if np.isfinite(error).all() else None, color=COLORS[0], marker="o")
        if words:
            slanted = {"rotation": 30, "ha": "right"} if max(map(len, words)) > 6 else {}
            axes.set_xticks(x, words, **slanted)
        if relative == "last":
            axes.axhline(0.0, color=_GREY, linewidth=0.8, zorder=0)
        axes.set(xlabel=_axis(parameter, run), ylabel=f"{label}\n({unit})" if unit != "1" else label)
        _finish(axes, title, lines=1)
    return _outcome(len(x))


def _axis(parameter: str, run: Run) -> str:
    from hpcagent.science.engines.base import LEVEL

    known = LEVEL.get(parameter)
    return f"{parameter} ({known.unit})" if known is not None and known.unit != "1" else parameter


def _against(run: Run, parameter: str, metric: str) -> tuple[_Array, list[str], _Array, _Array, str]:
    """Values of the parameter (numbers, or places of words), the metric with its errors, and its unit."""
    found: list[tuple[Any, float, float]] = []
    unit = ""
    for number, fields in enumerate(run.upstream):
        params = (fields.get("manifest") or {}).get("params") or {}
        metrics = fields.get("metrics") or {}
        for name, where, what in ((parameter, params, "parameter"), (metric, metrics, "metric")):
            if name not in where:
                raise AppFailed(
                    f"input {number + 1} ({fields.get('workdir')}) has no {what} {name!r}; {nearest(name, where)}",
                    kind="contract",
                    name="NoData",
                )
        unit = (fields.get("units") or {}).get(metric) or unit or ("eV" if metric == "energy" else "1")
        share = 1
        if metric == "energy":
            share = _atoms(fields)
        error = (fields.get("uncertainty") or {}).get(metric, math.nan)
        found.append((params[parameter], float(metrics[metric]) / share, float(error) / share))
    if metric == "energy" and unit == "eV" and all(_atoms(f) > 1 for f in run.upstream):
        unit = "eV/atom"
    words: list[str] = []
    if all(isinstance(value, (int, float)) for value, _, _ in found):
        found.sort(key=lambda row: row[0])
        x = np.array([row[0] for row in found], np.float64)
    else:
        words = [str(row[0]) for row in found]
        x = np.arange(len(found), dtype=np.float64)
    return x, words, np.array([row[1] for row in found]), np.array([row[2] for row in found]), unit


def _atoms(fields: Mapping[str, Any]) -> int:
    from hpcagent.apps.structures import structure_of

    try:
        return len(structure_of(fields))
    except AppFailed:
        return 1


@_plot(
    name="plot_scf",
    inputs=("run",),
    parameters={"title": _TITLE},
)
def plot_scf(title: str, run: Run) -> Outcome:
    """Draw how the SCF of a run converged: the change of the energy in every step of every attempt."""
    path = _file(run.upstream[0], "scf", "an app with an SCF")
    calculations = read_fields(path)["calculations"]
    shown = [c for c in calculations if c.get("attempts")]
    attempts = [(c, number, steps) for c in shown for number, steps in enumerate(c["attempts"])]
    notes = []
    if len(attempts) > _MOST_LINES:
        notes.append(f"the first {_MOST_LINES} of {len(attempts)} attempts are drawn")
        attempts = attempts[:_MOST_LINES]
    points = 0
    with drawing(run) as (_, (axes,)):
        for (calculation, number, steps), style in zip(attempts, _styles(len(attempts)), strict=True):
            changes = np.array([math.nan if change is None else abs(change) for _, change in steps], np.float64)
            drawn = np.isfinite(changes) & (changes > 0)
            if not drawn.any():
                continue
            where = calculations.index(calculation) + 1
            name = f"calculation {where}" if len(shown) > 1 else "SCF"
            if len(calculation["attempts"]) > 1:
                name += f", attempt {number + 1}"
            axes.plot(np.arange(1, len(changes) + 1)[drawn], changes[drawn], marker=".", label=name, **style)
            points += int(drawn.sum())
        if points == 0:
            raise AppFailed(f"{path} holds no changes of the energy.", kind="contract", name="NoData")
        axes.set(xlabel="SCF step", ylabel="change of the energy (eV)", yscale="log")
        axes.xaxis.get_major_locator().set_params(integer=True)
        _finish(axes, title, lines=len(attempts))
    return _outcome(points, notes)


@app(
    name="plot_structure",
    version="1.0.0",
    app_type="analysis",
    inputs=("run",),
    parameters={"title": _TITLE},
    metrics={"n_points": Metric(name="n_points", unit="1", description="atoms drawn")},
    seeded=False,
    failure_modes=("NoStructure", "MissingFile", "NoEngine"),
    estimated_runtime_s=1.0,
)
def plot_structure(title: str, run: Run) -> Outcome:
    """Draw the structure of a run from the side (along y) and from the top (along z), by ASE.

    Atoms have the colours of Jmol and their covalent radii; the cell is drawn where there is one.
    """
    from ase.data import chemical_symbols, covalent_radii
    from ase.data.colors import jmol_colors
    from ase.visualize.plot import plot_atoms
    from matplotlib.patches import Patch

    from hpcagent.apps.structures import read_structure

    atoms = read_structure(run)
    atoms.calc = None
    radii = 0.9 * covalent_radii[atoms.numbers]
    shown = 2 if atoms.cell.rank == 3 else 0
    extent = np.ptp(np.concatenate([atoms.positions, atoms.cell[:].sum(axis=0)[None], np.zeros((1, 3))]), axis=0)
    tall = max(0.6, min(1.8, float(max(extent[1], extent[2]) + 2) / (float(extent[0]) + 2)))
    views = (("-90x", "x (angstrom)", "z (angstrom)", "side"), ("", "x (angstrom)", "y (angstrom)", "top"))
    with drawing(run, 1, 2, size=(8.0, 1.4 + 3.6 * tall)) as (figure, axes):
        for ax, (rotation, xlabel, ylabel, name) in zip(axes, views, strict=True):
            plot_atoms(atoms, ax, rotation=rotation, radii=radii, show_unit_cell=shown)
            ax.set_axis_on()
            ax.set(xlabel=xlabel, ylabel=ylabel, title=name)
        # One scale for both.
        low, high = (
            f(value)
            for f, value in zip((min, max), zip(*(ax.get_xlim() for ax in axes), strict=True), strict=True)
        )
        for ax in axes:
            ax.set_xlim(low, high)
        kinds = sorted(set(atoms.numbers.tolist()))
        handles = [Patch(facecolor=jmol_colors[z], edgecolor="black", label=chemical_symbols[z]) for z in kinds]
        figure.legend(handles=handles, loc="outside lower center", ncols=min(len(kinds), 8))
        if title:
            figure.suptitle(title)
    return _outcome(len(atoms))
