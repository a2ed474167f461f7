"""Averages of a run's thermodynamic output, with errors that know of correlation and a start-up left out.

Also the one table of thermodynamic output for a LAMMPS log (read by `hpcagent.science.lammps.leg`) and the
`thermo.csv` of a run of ASE's molecular dynamics.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcagent.apps.bounded import read_csv, read_fields
from hpcagent.apps.decorator import app
from hpcagent.apps.missing import missing_file
from hpcagent.apps.run import Outcome, Run
from hpcagent.errors import AppFailed
from hpcagent.model.contract import Metric
from hpcagent.model.parameter import Choice, Float
from hpcagent.statistics.timeseries import block_average, conserved, statistical_inefficiency
from hpcagent.units import AVOGADRO, BOLTZMANN_EV_PER_K, factor

__all__ = ["CUT", "Table", "averages", "chodera_start", "cut_of", "mser5_start", "read_table"]

_Array = NDArray[np.float64]
FAILURES = ("NoThermo", "BadThermo", "TooFewSamples", "ReducedUnits", "NoUnits", "MissingFile")

CUT = {
    "equilibration": Choice(
        "none",
        "share",
        "mser5",
        "chodera",
        default="chodera",
        description="how the start-up is found and left out",
    ),
    "discard": Float(0.0, 0.95, default=0.2, description="share of the rows left out with equilibration = share"),
}
"""The parameters by which an app is told what to leave out."""


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Thermodynamic output of one leg of molecular dynamics; columns that are not printed are missing.

    Attributes:
        columns: `time` ps, `temperature` K, `potential`, `kinetic`, `total` eV (of the whole cell), `volume`
            angstrom^3, `pressure` bar, `density` g/cm^3; (n_rows,) float64 each.
        n_atoms: Number of atoms; None where it is not known or changes.
        ensemble: `nve`, `nvt`, `npt`, or empty where the run does not say.
        source: Name of the file.
        freedom: Degrees of freedom, where the run says them by 2 K = f k_B T.
        counts: (n_rows,) number of atoms in each row, where it changes and is known.
    """

    columns: dict[str, _Array]
    n_atoms: int | None
    ensemble: str = ""
    source: str = ""
    notes: tuple[str, ...] = field(default=())
    freedom: float | None = None
    counts: _Array | None = None

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def __contains__(self, name: str) -> bool:
        return name in self.columns

    def __getitem__(self, name: str) -> _Array:
        if name not in self.columns:
            raise AppFailed(
                f"{self.source} has no column of the {name}; it has {', '.join(self.columns)}.",
                kind="contract",
                name="BadThermo",
                repair="print it, with LAMMPS's thermo_style",
            )
        return self.columns[name]


def read_table(upstream: Mapping[str, Any]) -> Table:
    """The thermodynamic output of an input run: its artifact `thermo` (CSV) or its LAMMPS log.

    Of a log it is the last complete run that made steps.

    Raises:
        AppFailed: `NoThermo`, `BadThermo`, `NoUnits`, `ReducedUnits`, `MissingFile`.
    """
    artifacts = upstream.get("artifacts") or {}
    if "thermo" in artifacts:
        return _of_csv(upstream)
    if "log" in artifacts:
        return _of_log(upstream)
    raise AppFailed(
        f"the input run {upstream.get('workdir') or '(without a directory)'} has neither a thermo.csv nor a "
        f"LAMMPS log among its artifacts (it has: {', '.join(artifacts) or 'none'}).",
        kind="contract",
        name="NoThermo",
        repair="pass a run of molecular dynamics",
    )


def _of_log(upstream: Mapping[str, Any]) -> Table:
    from hpcagent.science.lammps.leg import leg_of

    leg = leg_of(upstream)
    style, run, notes = leg.style, leg.run, leg.notes
    if style.reduced or style.time_ps is None or style.energy_mev is None:
        raise AppFailed(
            f"{leg.source} is in reduced units (lj), which have no size in eV and K; the app `thermo` and the "
            "metrics of the LAMMPS app itself know them.",
            kind="contract",
            name="ReducedUnits",
            repair="run with `units metal` or `real`",
        )
    columns: dict[str, _Array] = {}
    if leg.times is not None:
        columns["time"] = leg.times * style.time_ps
    for name, keyword in (("potential", "PotEng"), ("kinetic", "KinEng"), ("total", "TotEng")):
        energy = leg.energy(keyword)
        if energy is not None:
            columns[name] = energy * factor(style.energy, "eV")
    for name, keyword, scale in (
        ("temperature", "Temp", 1.0),
        ("volume", "Volume", (style.distance_angstrom or 1.0) ** 3),
        ("pressure", "Press", style.pressure_bar or 1.0),
        ("density", "Density", None if style.density is None else factor(style.density, "g/cm^3")),
    ):
        if keyword in run and scale is not None:
            columns[name] = run[keyword] * scale
    columns = _completed(columns)
    if run.dimension == 2 and ("pressure" in columns or "density" in columns):
        notes += ("in two dimensions LAMMPS's pressure and density are per area: bar angstrom, g/cm^3 angstrom",)
    if leg.counts is None:
        notes += ("the number of atoms of each row is not known (it changes, or the log does not say it)",)
    freedom = None
    if "KinEng" in run and "Temp" in run and "kinetic" in columns and float(columns["temperature"].mean()) > 0:
        # Two dimensions and constraints have fewer than 3N - 3; LAMMPS's Temp is 2 K / (k_B f).
        freedom = 2.0 * float(columns["kinetic"].mean() / columns["temperature"].mean()) / BOLTZMANN_EV_PER_K
    counts = leg.counts
    steady = counts is not None and np.ptp(counts) == 0
    return Table(
        columns,
        int(counts[0]) if counts is not None and steady else None,
        source=leg.source,
        notes=notes,
        freedom=freedom,
        counts=counts if counts is not None and not steady and (counts > 0).all() else None,
    )


def _of_csv(upstream: Mapping[str, Any]) -> Table:
    path = Path(upstream["workdir"]) / upstream["artifacts"]["thermo"]
    if not path.is_file():
        raise missing_file(upstream, path, "thermodynamic output")
    try:
        table = read_csv(path)
    except ValueError as error:
        raise _bad(f"{path.name} holds something else than numbers ({error})") from None
    header, data = table.header, table.data
    if len(data) == 0:
        raise _bad(f"{path.name} holds no rows")
    known = {
        "time_ps": ("time", 1.0),
        "temperature_K": ("temperature", 1.0),
        "epot_eV": ("potential", 1.0),
        "ekin_eV": ("kinetic", 1.0),
        "etot_eV": ("total", 1.0),
        "volume_A3": ("volume", 1.0),
        "pressure_GPa": ("pressure", 1e4),
    }
    columns = {}
    for place, title in enumerate(header):
        if title.strip() in known:
            name, scale = known[title.strip()]
            if np.isfinite(data[:, place]).any():
                columns[name] = data[:, place] * scale
    md = _md(path.parent, upstream)
    n_atoms, mass = _atoms_of(upstream)
    if mass is not None and "volume" in columns:
        # g/mol over angstrom^3: 1e24 / N_A
        columns["density"] = mass / columns["volume"] * (1e24 / AVOGADRO)
    ensemble = str(md.get("ensemble", "")).lower()
    return Table(_completed(columns), n_atoms, ensemble=ensemble, source=path.name)


def _md(folder: Path, upstream: Mapping[str, Any]) -> Mapping[str, Any]:
    path = folder / (upstream.get("artifacts") or {}).get("protocol", "md.json")
    return read_fields(path) if path.is_file() else {}


def _atoms_of(upstream: Mapping[str, Any]) -> tuple[int | None, float | None]:
    """Number of atoms and mass of the cell in g/mol, where the run says them."""
    from hpcagent.apps.structures import structure_of

    try:
        atoms: Any = structure_of(upstream)
    except AppFailed:
        count = (upstream.get("metrics") or {}).get("n_atoms")
        return (None if count is None else int(count)), None
    return len(atoms), float(atoms.get_masses().sum())


def _completed(columns: dict[str, _Array]) -> dict[str, _Array]:
    if "total" not in columns and {"potential", "kinetic"} <= columns.keys():
        columns["total"] = columns["potential"] + columns["kinetic"]
    if "kinetic" not in columns and {"potential", "total"} <= columns.keys():
        columns["kinetic"] = columns["total"] - columns["potential"]
    if "potential" not in columns and {"kinetic", "total"} <= columns.keys():
        columns["potential"] = columns["total"] - columns["kinetic"]
    return columns


def _bad(what: str) -> AppFailed:
    return AppFailed(f"{what}.", kind="contract", name="BadThermo")


# ---- where the start-up ends


def mser5_start(x: NDArray[Any]) -> int:
    """First row after the start-up, by MSER-5.

    The cut d that makes the error of the mean of what is left smallest, sum (y - <y>)^2 / (n - d)^2 over batches
    of five; looked for in the first half: K. P. White, M. J. Cobb, S. C. Spratt, Proc. Winter Simulation Conf.,
    755 (2000), doi:10.1109/WSC.2000.899792.
    """
    series = np.asarray(x, np.float64)
    batches = series[: series.size // 5 * 5].reshape(-1, 5).mean(axis=1)
    n = batches.size
    if n < 4:
        return 0
    batches = batches - batches.mean()
    left = np.arange(n, 0, -1)
    sums = np.cumsum(batches[::-1])[::-1]
    squares = np.cumsum(batches[::-1] ** 2)[::-1]
    measure = (squares - sums**2 / left) / left**2
    return 5 * int(np.argmin(measure[: n // 2 + 1]))


def chodera_start(x: NDArray[Any]) -> int:
    """First row after the start-up: the cut that leaves most independent samples, (n - t0) / g(t0).

    J. D. Chodera, J. Chem. Theory Comput. 12, 1799 (2016), doi:10.1021/acs.jctc.5b00784. Fifty cuts are tried, at
    most at nine tenths of the series.
    """
    series = np.asarray(x, np.float64)
    n = series.size
    if n < 20:
        return 0
    best, start = -1.0, 0
    for cut in np.unique(np.linspace(0, 0.9 * n, 51).astype(int)):
        g = statistical_inefficiency(series[cut:])
        if math.isnan(g):
            continue
        effective = (n - cut) / g
        if effective > best * (1 + 1e-9):
            best, start = effective, int(cut)
    return start


def cut_of(table: Table, equilibration: str, discard: float, along: tuple[str, ...]) -> int:
    """First row that is used: the latest cut that any of the columns asks for.

    Args:
        along: Columns that must have settled; those that are missing or constant do not count.
    """
    if equilibration == "none":
        return 0
    if equilibration == "share":
        return int(np.ceil(discard * len(table)))
    find = mser5_start if equilibration == "mser5" else chodera_start
    starts = [find(table[name]) for name in along if name in table and np.ptp(table[name]) > 0]
    return max(starts, default=0)


@app(
    name="averages",
    version="1.0.0",
    app_type="analysis",
    inputs=("run",),
    parameters=dict(CUT),
    metrics={
        "temperature": Metric(name="temperature", unit="K", description="mean temperature", required=False),
        "pressure": Metric(name="pressure", unit="bar", description="mean pressure", required=False),
        "density": Metric(name="density", unit="g/cm^3", description="mean density", required=False),
        "volume": Metric(name="volume", unit="angstrom^3", description="mean volume of the cell", required=False),
        "potential_energy": Metric(
            name="potential_energy", unit="eV/atom", description="mean potential energy", required=False
        ),
        "total_energy": Metric(
            name="total_energy", unit="eV/atom", description="mean total energy", required=False
        ),
        "enthalpy": Metric(
            name="enthalpy",
            unit="eV/atom",
            description="mean of E + P V with the instantaneous pressure",
            required=False,
        ),
        "n_samples": Metric(name="n_samples", unit="1", description="rows used"),
        "n_effective": Metric(
            name="n_effective", unit="1", description="independent ones among them, of the slowest column"
        ),
        "equilibration_ps": Metric(
            name="equilibration_ps", unit="ps", description="time left out at the start", required=False
        ),
    },
    seeded=False,
    failure_modes=FAILURES,
    estimated_runtime_s=0.2,
)
def averages(equilibration: str, discard: float, run: Run) -> Outcome:
    """Means of temperature, pressure, density, energies and enthalpy, with errors that know of correlation.

    Errors are those of `statistics.block_average`; a conserved total energy has none. The start-up is left out as
    `equilibration` says: up to the cut of J. D. Chodera (2016) or of MSER-5, whichever column (temperature,
    energy, volume) settles last, or a share.

    Raises:
        AppFailed: `NoThermo`, `BadThermo`, `TooFewSamples` (fewer than ten rows are left), `ReducedUnits`,
        `NoUnits`.
    """
    table = read_table(run.upstream[0])
    start = cut_of(table, equilibration, discard, ("temperature", "potential", "volume", "density"))
    rows = len(table) - start
    if rows < 10:
        raise AppFailed(
            f"{table.source} has {len(table)} rows, of which {rows} are left after the start-up; at least 10 are "
            "needed.",
            kind="contract",
            name="TooFewSamples",
            repair="run longer, or print more often",
        )
    metrics: dict[str, float] = {"n_samples": float(rows)}
    uncertainty: dict[str, float] = {}
    lines, effective = [], [float(rows)]
    for name, unit, series in _wanted(table):
        used = series[start:]
        mean, error = block_average(used)
        if (
            name == "total_energy"
            and "kinetic" in table
            and conserved(table["total"][start:], table["kinetic"][start:])
        ):
            error = math.nan  # set at the start, not sampled
        g = statistical_inefficiency(used)
        independent = rows / g if math.isfinite(g) else math.nan
        if math.isfinite(independent):
            effective.append(independent)
        metrics[name] = mean
        if math.isfinite(error):
            uncertainty[name] = error
        lines.append(f"{name},{unit},{mean:.10g},{error:.4g},{float(used.std()):.6g},{independent:.5g}")
    metrics["n_effective"] = min(effective)
    if "time" in table:
        metrics["equilibration_ps"] = float(table["time"][start] - table["time"][0])
    notes = list(table.notes)
    if start > 0.5 * len(table):
        notes.append(f"more than half of the rows ({start} of {len(table)}) are start-up; the run is too short")
    elif metrics["n_effective"] < 10:
        notes.append(f"only {metrics['n_effective']:.0f} independent samples; the errors are rough")
    if table.n_atoms is None and table.counts is None:
        notes.append("the number of atoms is not known, so there are no energies for each atom")
    (run.workdir / "averages.csv").write_text(
        "\n".join(["quantity,unit,mean,error,standard_deviation,n_effective", *lines]) + "\n"
    )
    return Outcome(
        metrics=metrics, uncertainty=uncertainty, artifacts={"averages": "averages.csv"}, notes=tuple(notes)
    )


def _wanted(table: Table) -> list[tuple[str, str, _Array]]:
    found = [
        (name, unit, table[name])
        for name, unit in (
            ("temperature", "K"),
            ("pressure", "bar"),
            ("density", "g/cm^3"),
            ("volume", "angstrom^3"),
        )
        if name in table
    ]
    atoms = table.n_atoms if table.counts is None else table.counts
    if atoms is not None and np.all(atoms):
        for name, column in (("potential_energy", "potential"), ("total_energy", "total")):
            if column in table:
                found.append((name, "eV/atom", table[column] / atoms))
        if {"total", "pressure", "volume"} <= table.columns.keys():
            work = table["pressure"] * table["volume"] * factor("bar*angstrom^3", "eV")
            found.append(("enthalpy", "eV/atom", (table["total"] + work) / atoms))
    return [(name, unit, series) for name, unit, series in found if np.isfinite(series).all()]
