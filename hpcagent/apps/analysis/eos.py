"""The equation of state of a crystal, from energies at several volumes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hpcagent.apps.base import app
from hpcagent.apps.run import Outcome, Run
from hpcagent.errors import AppFailed
from hpcagent.model.contract import Metric
from hpcagent.model.space import Choice
from hpcagent.units import factor

__all__ = ["LATTICES", "birch_murnaghan", "eos_fit", "fitted"]

_Array = NDArray[np.float64]
LATTICES = {"sc": 1, "bcc": 2, "fcc": 4, "diamond": 8, "rocksalt": 8, "zincblende": 8, "cesiumchloride": 2}
"""Atoms in the conventional cubic cell."""
_FEWEST = 5


@app(
    name="eos_fit",
    version="1.0.0",
    app_type="analysis",
    inputs=("runs...",),
    parameters={
        "lattice": Choice(
            "none", *LATTICES, default="none", description="cubic lattice whose conventional constant is wanted"
        )
    },
    metrics={
        "v0": Metric(name="v0", unit="angstrom^3/atom", description="volume of the lowest energy"),
        "a0": Metric(name="a0", unit="angstrom", description="conventional lattice constant", required=False),
        "e0": Metric(name="e0", unit="eV/atom", description="lowest energy"),
        "bulk_modulus": Metric(name="bulk_modulus", unit="GPa", description="bulk modulus at v0"),
        "bulk_modulus_prime": Metric(
            name="bulk_modulus_prime", unit="1", description="its derivative by the pressure at v0"
        ),
        "fit_rms": Metric(
            name="fit_rms", unit="meV/atom", description="rms distance of the energies from the fit"
        ),
    },
    seeded=False,
    failure_modes=(
        "TooFewRuns",
        "NoStructure",
        "NoEnergy",
        "MixedRuns",
        "MinimumOutside",
        "BadFit",
        "WrongLattice",
        "MissingFile",
    ),
    estimated_runtime_s=0.2,
)
def eos_fit(lattice: str, run: Run) -> Outcome:
    """Fit the third-order Birch-Murnaghan equation of state to energies at five or more volumes.

    E(V) = E0 + 9 V0 B0 / 16 {[(V0/V)^(2/3) - 1]^3 B0' + [(V0/V)^(2/3) - 1]^2 [6 - 4 (V0/V)^(2/3)]}:
    F. Birch, Phys. Rev. 71, 809 (1947), doi:10.1103/PhysRev.71.809. Least squares by scipy; errors from its
    covariance, scaled by the residuals (ASE's EquationOfState fits the same and gives none).

    Raises:
        AppFailed: `TooFewRuns` (fewer than five volumes), `NoEnergy`, `NoStructure`, `MixedRuns` (other elements);
            `MinimumOutside`: the volumes lie on one side of the minimum; `BadFit`: no minimum, or far from the
            points.
    """
    volumes, energies = _points(run)
    order = np.argsort(volumes)
    volumes, energies = volumes[order], energies[order]
    parameters, covariance = fitted(volumes, energies)
    v0, e0, b0, prime = parameters
    errors = np.sqrt(np.diag(covariance))
    residual = energies - birch_murnaghan(volumes, *parameters)
    gpa = factor("eV/angstrom^3", "GPa")
    metrics = {
        "v0": v0,
        "e0": e0,
        "bulk_modulus": b0 * gpa,
        "bulk_modulus_prime": prime,
        "fit_rms": float(np.sqrt((residual**2).mean())) * 1e3,
    }
    uncertainty = {
        "v0": errors[0],
        "e0": errors[1],
        "bulk_modulus": errors[2] * gpa,
        "bulk_modulus_prime": errors[3],
    }
    if lattice != "none":
        _check_lattice(lattice, run)
        metrics["a0"] = (LATTICES[lattice] * v0) ** (1.0 / 3.0)
        uncertainty["a0"] = metrics["a0"] * errors[0] / (3.0 * v0)
    np.savetxt(
        run.workdir / "eos.csv",
        np.column_stack([volumes, energies, energies - residual]),
        delimiter=",",
        fmt="%.12g",
        header="volume_angstrom3_per_atom,energy_eV_per_atom,fit_eV_per_atom",
        comments="",
    )
    notes = () if len(volumes) > _FEWEST else ("five points for four parameters: the errors are rough",)
    return Outcome(
        metrics={k: float(v) for k, v in metrics.items()},
        uncertainty={k: float(v) for k, v in uncertainty.items() if math.isfinite(v)},
        artifacts={"eos": "eos.csv"},
        notes=notes,
    )


def birch_murnaghan(v: ArrayLike, v0: float, e0: float, b0: float, prime: float) -> _Array:
    """Third-order Birch-Murnaghan energy; `b0` in the unit of `e0` over that of `v0`.

    Example:
        >>> float(birch_murnaghan(10.0, 10.0, -3.0, 0.5, 4.0))
        -3.0
    """
    x = (v0 / np.asarray(v, np.float64)) ** (2.0 / 3.0)
    result: _Array = e0 + 9.0 * v0 * b0 / 16.0 * ((x - 1.0) ** 3 * prime + (x - 1.0) ** 2 * (6.0 - 4.0 * x))
    return result


def fitted(volumes: _Array, energies: _Array) -> tuple[_Array, _Array]:
    """Parameters (v0, e0, b0, b0') of the fit, and their covariance.

    Raises:
        AppFailed: `MinimumOutside`, `BadFit`.
    """
    from scipy.optimize import curve_fit

    lowest, highest = float(volumes.min()), float(volumes.max())
    c2, c1, c0 = np.polyfit(volumes, energies, 2)
    minimum = -c1 / (2.0 * c2) if c2 > 0 else math.nan
    if not c2 > 0:
        raise _outside(volumes, energies)
    middle = min(max(minimum, lowest), highest)
    start = [middle, float(np.polyval([c2, c1, c0], middle)), 2.0 * c2 * middle, 4.0]
    try:
        parameters, covariance = curve_fit(
            birch_murnaghan, volumes, energies, p0=start, x_scale=[middle, 1.0, start[2], 1.0], method="trf",
            xtol=1e-15, ftol=1e-15, gtol=1e-15, max_nfev=5000,
        )  # fmt: skip
    except RuntimeError as error:
        raise AppFailed(
            f"the Birch-Murnaghan fit to {len(volumes)} energies does not converge: {error}.", name="BadFit"
        ) from None
    v0, _, b0, _ = parameters
    if not lowest < v0 < highest:
        raise _outside(volumes, energies)
    residual = energies - birch_murnaghan(volumes, *parameters)
    depth = float(np.ptp(energies))
    if b0 <= 0 or float(np.abs(residual).max()) > 0.2 * depth:
        raise AppFailed(
            f"the energies are not those of one phase: they lie up to {np.abs(residual).max() * 1e3:.3g} meV/atom "
            f"from the best Birch-Murnaghan curve (bulk modulus {b0 * factor('eV/angstrom^3', 'GPa'):.3g} GPa) "
            f"over a range of {depth * 1e3:.3g} meV/atom.",
            name="BadFit",
            repair="look at eos points for jumps: magnetism, too few k-points, SCF that ended early",
        )
    return np.asarray(parameters), np.asarray(covariance)


# Shortest distance between atoms of a cubic lattice, in its constant.
_NEAREST = {
    "sc": 1.0,
    "bcc": 3**0.5 / 2,
    "fcc": 0.5**0.5,
    "diamond": 3**0.5 / 4,
    "zincblende": 3**0.5 / 4,
    "rocksalt": 0.5,
    "cesiumchloride": 3**0.5 / 2,
}


def _check_lattice(lattice: str, run: Run) -> None:
    """Refuse a lattice whose nearest neighbours are not where those of the structure are."""
    from ase.neighborlist import neighbor_list

    from hpcagent.apps.structures import structure_of

    atoms: Any = structure_of(run.upstream[0])
    a = (LATTICES[lattice] * atoms.get_volume() / len(atoms)) ** (1.0 / 3.0)
    distances = neighbor_list("d", atoms, 1.2 * a)
    nearest = float(distances.min()) if len(distances) else math.inf
    if abs(nearest - _NEAREST[lattice] * a) > 0.02 * a:
        raise AppFailed(
            f"lattice = {lattice} does not fit the structure: its nearest neighbours would be "
            f"{_NEAREST[lattice] * a:.4g} angstrom apart at this volume, they are {nearest:.4g} angstrom apart.",
            kind="contract",
            name="WrongLattice",
            repair="lattice = none, or the right one",
        )


def _outside(volumes: _Array, energies: _Array) -> AppFailed:
    side = "smaller" if energies[int(np.argmin(volumes))] < energies[int(np.argmax(volumes))] else "larger"
    return AppFailed(
        f"the energy has no minimum among the volumes {volumes.min():.4g} to {volumes.max():.4g} angstrom^3/atom.",
        name="MinimumOutside",
        repair=f"add {side} volumes",
    )


def _points(run: Run) -> tuple[_Array, _Array]:
    """Volumes (angstrom^3/atom) and energies (eV/atom) of the inputs."""
    from hpcagent.apps.structures import structure_of

    volumes, energies = [], []
    formula = ""
    for number, fields in enumerate(run.upstream):
        atoms: Any = structure_of(fields)
        reduced = atoms.symbols.formula.reduce()[0].format("hill")
        if formula and reduced != formula:
            raise AppFailed(
                f"input {number + 1} is {reduced}, those before are {formula}; an equation of state is that of "
                "one substance.",
                kind="contract",
                name="MixedRuns",
            )
        formula = reduced
        energy = (fields.get("metrics") or {}).get("energy")
        if energy is None and atoms.calc is not None and "energy" in atoms.calc.results:
            energy = atoms.calc.results["energy"]
        if energy is None:
            raise AppFailed(
                f"input {number + 1} ({fields.get('workdir')}) has no metric `energy`.",
                kind="contract",
                name="NoEnergy",
                repair="pass runs that compute energies",
            )
        volumes.append(atoms.get_volume() / len(atoms))
        energies.append(float(energy) / len(atoms))
    found = np.array(volumes)
    distinct = len(np.unique(np.round(found, 9)))
    if distinct < _FEWEST:
        raise AppFailed(
            f"{distinct} different volumes are too few for four parameters; at least {_FEWEST} are needed.",
            kind="contract",
            name="TooFewRuns",
        )
    return found, np.array(energies)
