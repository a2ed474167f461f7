"""Heat capacity at constant volume, from the fluctuations of a run."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from hpcagent.apps.decorator import app
from hpcagent.apps.run import Outcome, Run
from hpcagent.errors import AppFailed
from hpcagent.model.contract import Metric
from hpcagent.model.parameter import Choice
from hpcagent.science.analysis.averages import CUT, FAILURES, Table, cut_of, read_table
from hpcagent.statistics.timeseries import block_average, conserved, fluctuation_ratio, statistical_inefficiency
from hpcagent.units import BOLTZMANN_EV_PER_K

__all__ = ["heat_capacity"]

_Array = NDArray[np.float64]
_GAS_CONSTANT = 8.31446261815324  # J/mol/K
# Fewer independent samples than this give a variance to 20 %.
_ENOUGH = 50


@app(
    name="heat_capacity",
    version="1.1.0",
    app_type="analysis",
    inputs=("run",),
    parameters={
        "ensemble": Choice("nvt", "nve", description="what the run kept constant"),
        **CUT,
    },
    metrics={
        "heat_capacity": Metric(
            name="heat_capacity", unit="kB/atom", description="C_V for each atom, in Boltzmann constants"
        ),
        "heat_capacity_molar": Metric(
            name="heat_capacity_molar", unit="J/mol/K", description="C_V of a mole of atoms"
        ),
        "temperature": Metric(name="temperature", unit="K", description="mean temperature of the rows used"),
        "n_samples": Metric(name="n_samples", unit="1", description="rows used"),
    },
    seeded=False,
    failure_modes=(*FAILURES, "WrongEnsemble", "NoFluctuations"),
    estimated_runtime_s=0.2,
)
def heat_capacity(ensemble: str, equilibration: str, discard: float, run: Run) -> Outcome:
    """Heat capacity C_V from the fluctuations of the energy (NVT) or of the kinetic energy (NVE).

    NVT: C_V = (<E^2> - <E>^2) / (k_B T^2), E the total energy without that of the thermostat (M. P. Allen and
    D. J. Tildesley, Computer Simulation of Liquids, 2nd ed., eq. 2.80). NVE, with f = 2 <K> / (k_B <T>) where both
    are printed (fewer than 3N - 3 in two dimensions and with constraints), else f = 3N - 3:
    (<K^2> - <K>^2) / <K>^2 = 2/f (1 - f k_B / (2 C_V)): J. L. Lebowitz, J. K. Percus, L. Verlet, Phys. Rev. 153,
    250 (1967), doi:10.1103/PhysRev.153.250. A classical harmonic crystal has 3 k_B for each atom (less its share
    of the three motions of the centre of mass, 3 (1 - 1/N)).

    Errors are those of the mean of the influence (`hpcagent.statistics.timeseries`), and not less than that of
    the variance of as many independent Gaussian samples.

    Raises:
        AppFailed: `WrongEnsemble`: the run says another one, or its total energy fluctuates as in another one;
            `NoFluctuations`; `NoThermo`, `BadThermo`, `TooFewSamples`, `ReducedUnits`, `NoUnits`.
    """
    table = read_table(run.upstream[0])
    if table.n_atoms is None:
        raise AppFailed(
            f"{table.source} does not say how many atoms there are, or they change.",
            kind="contract",
            name="BadThermo",
        )
    start = cut_of(table, equilibration, discard, ("temperature", "potential"))
    rows = len(table) - start
    if rows < 50:
        raise AppFailed(
            f"{table.source} has {len(table)} rows, of which {rows} are left after the start-up; fluctuations "
            "need at least 50.",
            kind="contract",
            name="TooFewSamples",
            repair="run longer, or print more often",
        )
    total, kinetic = table["total"][start:], table["kinetic"][start:]
    temperature = float(table["temperature"][start:].mean())
    _check_ensemble(table, ensemble, total, kinetic)
    if ensemble == "nvt":
        value = float(total.var()) / (BOLTZMANN_EV_PER_K * temperature**2)
        error = block_average((total - total.mean()) ** 2)[1] / (BOLTZMANN_EV_PER_K * temperature**2)
    else:
        freedom = _freedom(table)
        value = _lebowitz(kinetic, freedom)
        error = block_average(_influence(kinetic, value, freedom))[1]
    # Few independent samples scatter too little among themselves for a jackknife: for Gaussian fluctuations the
    # relative error of a variance of n of them is sqrt(2/n).
    series = total if ensemble == "nvt" else kinetic
    independent = rows / max(1.0, g if math.isfinite(g := statistical_inefficiency(series)) else 1.0)
    lever = 1.0 if ensemble == "nvt" else abs(value / (0.5 * BOLTZMANN_EV_PER_K * _freedom(table)) - 1.0)
    notes = table.notes
    if math.isfinite(error):
        error = max(error, lever * value * math.sqrt(2.0 / independent))
    else:
        notes = (*notes, "no error is stated: the rows hold too few correlation times of the fluctuations")
    if independent < _ENOUGH:
        notes = (
            *notes,
            f"only about {independent:.0f} independent samples of the energy's fluctuations: the heat capacity is "
            "rough, and more often too small than too large; a longer run is needed",
        )
    per_atom, per_atom_error = (
        value / (BOLTZMANN_EV_PER_K * table.n_atoms),
        error / (BOLTZMANN_EV_PER_K * table.n_atoms),
    )
    uncertainty = {}
    if math.isfinite(error):
        uncertainty = {"heat_capacity": per_atom_error, "heat_capacity_molar": per_atom_error * _GAS_CONSTANT}
    return Outcome(
        metrics={
            "heat_capacity": per_atom,
            "heat_capacity_molar": per_atom * _GAS_CONSTANT,
            "temperature": temperature,
            "n_samples": float(rows),
        },
        uncertainty=uncertainty,
        notes=notes,
    )


def _freedom(table: Table) -> float:
    freedom = 3.0 * (table.n_atoms or 0) - 3.0 if table.freedom is None else table.freedom
    if freedom < 1.0:
        raise AppFailed(
            f"{table.source} is a run of {table.n_atoms} atom(s), which leaves {freedom:.2g} degrees of freedom: "
            "there is nothing to fluctuate.",
            kind="contract",
            name="NoFluctuations",
            repair="more atoms",
        )
    return freedom


def _lebowitz(kinetic: _Array, freedom: float) -> float:
    relative = float(kinetic.var()) / float(kinetic.mean()) ** 2
    rest = 1.0 - 0.5 * freedom * relative
    if rest <= 0.0:
        raise AppFailed(
            f"the kinetic energy fluctuates by {relative:.3g} of its square, more than any system does at "
            f"constant energy (2/f = {2 / freedom:.3g}).",
            kind="simulation",
            name="NoFluctuations",
            repair="run longer; check that the run kept its energy and had settled",
        )
    return 0.5 * freedom * BOLTZMANN_EV_PER_K / rest


def _influence(kinetic: _Array, value: float, freedom: float) -> _Array:
    """(n,) what each row adds to the heat capacity at constant energy, to first order.

    With q = var(K) / <K>^2 and C = a / (1 - f q / 2), a = f k_B / 2: dC/dq = C^2 f / (2 a).
    """
    mean = float(kinetic.mean())
    apart = (kinetic - mean) / mean
    per_q = value**2 / BOLTZMANN_EV_PER_K
    result: _Array = per_q * (apart**2 - 2.0 * float(np.mean(apart**2)) * apart)
    return result


def _check_ensemble(table: Table, ensemble: str, total: _Array, kinetic: _Array) -> None:
    known = table.ensemble[:3]
    if known and known != ensemble:
        raise AppFailed(
            f"the run is {table.ensemble.upper()}, so the formula for {ensemble.upper()} does not hold.",
            kind="contract",
            name="WrongEnsemble",
            repair=f"ensemble = {known}" if known in ("nve", "nvt") else "run at constant volume",
        )
    volume = table.columns.get("volume")
    if volume is not None and np.ptp(volume) > 1e-6 * volume.mean():
        raise AppFailed(
            f"the volume of the run changes, by {np.ptp(volume) / volume.mean():.2%}: C_V needs a constant one.",
            kind="contract",
            name="WrongEnsemble",
            repair="run at constant volume",
        )
    if np.ptp(kinetic) == 0.0:
        raise AppFailed("the kinetic energy does not fluctuate at all.", kind="contract", name="NoFluctuations")
    ratio, _ = fluctuation_ratio(total, kinetic)
    if (ensemble == "nve") != conserved(total, kinetic):
        other = "nvt" if ensemble == "nve" else "nve"
        raise AppFailed(
            f"the total energy fluctuates {ratio:.2g} times as much as the kinetic one, which is that of "
            f"{other.upper()}, not of {ensemble.upper()}.",
            kind="contract",
            name="WrongEnsemble",
            repair=f"ensemble = {other}",
        )
