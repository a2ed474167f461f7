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

__all__ = ["LATTICES", "birch_murnaghan", "eos_fit", "fitted", "model_error", "polynomial", "vinet"]

_Array = NDArray[np.float64]
LATTICES = {"sc": 1, "bcc": 2, "fcc": 4, "diamond": 8, "rocksalt": 8, "zincblende": 8, "cesiumchloride": 2}
"""Atoms in the conventional cubic cell."""
_FEWEST = 5
# Measured pressure derivatives: 2 to 7 for elements and compounds, 8 and more for solid noble gases only.
_USUAL_PRIME = (2.0, 9.0)


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
    covariance, scaled by the residuals (ASE's EquationOfState fits the same and gives none), with that of the
    model in quadrature: the largest difference to the fourth order, to Vinet's equation, and to the third order
    over the inner volumes (`model_error`).

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
    scatter, model = np.sqrt(np.diag(covariance)), model_error(volumes, energies, parameters)
    errors = np.hypot(scatter, model)
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
    notes = _notes(volumes, prime, model[2] * gpa, scatter[2] * gpa)
    return Outcome(
        metrics={k: float(v) for k, v in metrics.items()},
        uncertainty={k: float(v) for k, v in uncertainty.items() if math.isfinite(v)},
        artifacts={"eos": "eos.csv"},
        notes=tuple(notes),
    )


def _notes(volumes: _Array, prime: float, model_gpa: float, scatter_gpa: float) -> list[str]:
    notes = [] if len(volumes) > _FEWEST else ["five points for four parameters: the errors are rough"]
    low, high = _USUAL_PRIME
    if not low <= prime <= high:
        notes.append(
            f"bulk_modulus_prime is {prime:.3g}, in solids it is {low:g} to {high:g}: the energies are not smooth "
            "enough for it, and the bulk modulus is as doubtful; a higher cutoff, the same k-points and grid at "
            "every volume, or a wider range"
        )
    if model_gpa > scatter_gpa:
        notes.append(
            f"the error of the bulk modulus is that of the equation ({model_gpa:.2g} GPa), not of the points "
            f"({scatter_gpa:.2g} GPa): a narrower range of volumes makes it smaller"
        )
    return notes


def vinet(v: ArrayLike, v0: float, e0: float, b0: float, prime: float) -> _Array:
    """Energy of P. Vinet et al., J. Phys.: Condens. Matter 1, 1941 (1989), doi:10.1088/0953-8984/1/11/002.

    Example:
        >>> float(vinet(10.0, 10.0, -3.0, 0.5, 4.0))
        -3.0
    """
    y = np.cbrt(np.asarray(v, np.float64) / v0)
    decay = np.exp(-1.5 * (prime - 1.0) * (y - 1.0))
    result: _Array = e0 + 2.0 * b0 * v0 / (prime - 1.0) ** 2 * (
        2.0 - (5.0 + 3.0 * prime * (y - 1.0) - 3.0 * y) * decay
    )
    return result


def model_error(volumes: _Array, energies: _Array, parameters: _Array) -> _Array:
    """How far v0, e0, b0 and b0' would be elsewhere by another equation or over another range.

    The largest difference to Vinet's equation, to the fourth-order Birch-Murnaghan equation, and, from seven
    points on, to the third order without the outermost ones. No equation is the true one, and what is left out
    grows with the range: over 6 % of the volume of copper (EMT) the bulk modulus is 0.11 GPa too low, over 4 %
    0.05.

    Args:
        volumes: (n,), in angstrom^3.
        energies: (n,), in eV.
        parameters: (4,), those of the third order over all points.

    Returns:
        (4,), in the units of `parameters`.
    """
    about = float(parameters[0])
    others = [_by_vinet(volumes, energies, parameters), polynomial(volumes, energies, about, 4)]
    if len(volumes) >= _FEWEST + 2:
        others.append(polynomial(volumes[1:-1], energies[1:-1], about, 3))
    found = [abs(other - parameters) for other in others if other is not None]
    return np.max(found, axis=0) if found else np.zeros(4)


def _by_vinet(volumes: _Array, energies: _Array, start: _Array) -> _Array | None:
    from scipy.optimize import curve_fit

    try:
        with np.errstate(all="ignore"):
            found, _ = curve_fit(
                vinet, volumes, energies, p0=start, x_scale=abs(start), method="trf", max_nfev=2000
            )
    except (RuntimeError, ValueError):
        return None
    return np.asarray(found)


def polynomial(volumes: _Array, energies: _Array, about: float, order: int) -> _Array | None:
    """Birch-Murnaghan of any order, a polynomial in V^(-2/3): v0, e0, b0, b0', or None without a minimum.

    Args:
        volumes: (n,), in angstrom^3.
        energies: (n,), in eV.
        about: A volume near the minimum, in angstrom^3.
        order: 3 has four parameters, 4 has five.
    """
    from scipy.optimize import brentq

    powers = -2.0 / 3.0 * np.arange(order + 1)
    u = volumes / about
    coefficients = np.linalg.lstsq(u[:, None] ** powers, energies, rcond=None)[0]

    def derivative(at: float, n: int) -> float:
        factors = np.prod([powers - k for k in range(n)], axis=0) if n else np.ones_like(powers)
        return float((coefficients * factors * at ** (powers - n)).sum())

    low, high = float(u.min()), float(u.max())
    if not derivative(low, 1) < 0 < derivative(high, 1):
        return None
    at = float(brentq(derivative, low, high, args=(1,), xtol=1e-12))
    second, third = derivative(at, 2), derivative(at, 3)
    if second <= 0:
        return None
    return np.array([at * about, derivative(at, 0), at * second / about, -1.0 - at * third / second])


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
