"""The equation of state of a crystal, from energies at several volumes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hpcagent.apps.decorator import app
from hpcagent.apps.run import Outcome, Run
from hpcagent.errors import AppFailed
from hpcagent.model.contract import Metric
from hpcagent.model.parameter import Choice
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
    F. Birch, Phys. Rev. 71, 809 (1947), doi:10.1103/PhysRev.71.809. Least squares by scipy. The errors are so wide
    that twice each holds 95 %: those of the fit's covariance by Student's distribution (few residuals tell the
    scatter badly; ASE's EquationOfState fits the same and gives none), with that of the model in quadrature: what
    the largest difference to Vinet's equation, to the fourth and fifth order, and to the third order over the
    inner volumes has beyond scatter (`model_error`).

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
    scatter = np.sqrt(np.diag(covariance)) * _student(len(volumes) - len(parameters)) / 2.0
    model, seen = model_error(volumes, energies, parameters)
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
    notes = _notes(volumes, prime, model[2] * gpa, scatter[2] * gpa, seen=bool(seen[2]))
    return Outcome(
        metrics={k: float(v) for k, v in metrics.items()},
        uncertainty={k: float(v) for k, v in uncertainty.items() if math.isfinite(v)},
        artifacts={"eos": "eos.csv"},
        notes=tuple(notes),
    )


def _student(freedom: int) -> float:
    """How many standard errors from so many degrees of freedom hold 95 % on both sides."""
    from scipy.stats import t

    return float(t.ppf(0.975, freedom))


def _notes(volumes: _Array, prime: float, model_gpa: float, scatter_gpa: float, *, seen: bool) -> list[str]:
    notes = (
        []
        if len(volumes) > _FEWEST
        else ["five points for four parameters: one residual tells the scatter, so the errors are wide"]
    )
    low, high = _USUAL_PRIME
    if not low <= prime <= high:
        notes.append(
            f"bulk_modulus_prime is {prime:.3g}, in solids it is {low:g} to {high:g}: the energies are not smooth "
            "enough for it, and the bulk modulus is as doubtful; a higher cutoff, the same k-points and grid at "
            "every volume, or a wider range"
        )
    if not math.isfinite(model_gpa):
        notes.append("no other equation has a minimum among these volumes to compare with: no errors are stated")
    elif seen and model_gpa > scatter_gpa:
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


@dataclass(frozen=True)
class _Fit:
    """A fit to energies.

    Attributes:
        parameters: (4,) v0, e0, b0, b0'.
        gain: (4, n) their derivatives by each energy, so that noise in the energies is followed to them.
        residual: (n,) energies less the fit, in eV.
    """

    parameters: _Array
    gain: _Array
    residual: _Array


def model_error(volumes: _Array, energies: _Array, parameters: _Array) -> tuple[_Array, NDArray[np.bool_]]:
    """How far v0, e0, b0 and b0' would be elsewhere by another equation or over another range.

    The largest difference D to Vinet's equation, to the fourth-order Birch-Murnaghan equation, and, from seven
    points on, to the fifth order and to the third without the outermost points. No equation is the true one, and
    what is left out grows with the range: over 6 % of the volume of copper (EMT) the bulk modulus is 0.11 GPa too
    low, over 4 % 0.05. Noise alone makes fits differ, too: both are linear in small changes of the energies, which
    gives var D, and what is counted is sqrt(max(0, D^2 - var D)). The noise is that of the residuals of the fourth
    order, with fewer than seven points of the third.

    Args:
        volumes: (n,), in angstrom^3.
        energies: (n,), in eV.
        parameters: (4,), those of the third order over all points.

    Returns:
        (4,), in the units of `parameters`, NaN where no other fit has a minimum; and (4,) whether D is more than
        noise makes in 95 % (Student's distribution).
    """
    about, many = float(parameters[0]), len(volumes) >= _FEWEST + 2
    third, fourth = (_of_order(volumes, energies, about, order) for order in (3, 4))
    others = [_by_vinet(volumes, energies, parameters), fourth]
    if many:
        others += [_of_order(volumes, energies, about, 5), _inner(volumes, energies, about)]
    found = [other for other in others if other is not None]
    if third is None or not found:
        return np.full(4, np.nan), np.zeros(4, np.bool_)
    richest, freedom = (fourth, len(volumes) - 5) if many and fourth is not None else (third, len(volumes) - 4)
    variance = float(richest.residual @ richest.residual) / freedom
    apart = np.array([other.parameters - parameters for other in found])
    by_noise = variance * np.array([((other.gain - third.gain) ** 2).sum(axis=1) for other in found])
    counted = np.sqrt(np.maximum(0.0, apart**2 - by_noise))
    largest = counted.argmax(axis=0), np.arange(4)
    seen = abs(apart) > _student(freedom) * np.sqrt(by_noise)
    return counted[largest], seen[largest]


def _inner(volumes: _Array, energies: _Array, about: float) -> _Fit | None:
    """Third order without the outermost points, which have no gain."""
    found = _of_order(volumes[1:-1], energies[1:-1], about, 3)
    return None if found is None else _Fit(found.parameters, np.pad(found.gain, ((0, 0), (1, 1))), found.residual)


def _by_vinet(volumes: _Array, energies: _Array, start: _Array) -> _Fit | None:
    from scipy.optimize import curve_fit

    scale = np.where(start == 0, 1.0, abs(start))
    try:
        with np.errstate(all="ignore"):
            found, _ = curve_fit(vinet, volumes, energies, p0=start, x_scale=scale, method="trf", max_nfev=2000)
    except (RuntimeError, ValueError):
        return None
    steps = 1e-5 * scale * np.eye(4)
    slopes = np.array([(vinet(volumes, *(found + h)) - vinet(volumes, *(found - h))) / 2e-5 for h in steps])
    if not np.isfinite(slopes).all():
        return None
    gain = np.linalg.pinv(slopes.T, rcond=1e-14) * scale[:, None]
    return _Fit(np.asarray(found), gain, energies - vinet(volumes, *found))


def polynomial(volumes: _Array, energies: _Array, about: float, order: int) -> _Array | None:
    """Birch-Murnaghan of any order, a polynomial in V^(-2/3): v0, e0, b0, b0', or None without a minimum.

    Args:
        volumes: (n,), in angstrom^3.
        energies: (n,), in eV.
        about: A volume near the minimum, in angstrom^3.
        order: 3 has four parameters, 4 has five.
    """
    found = _of_order(volumes, energies, about, order)
    return None if found is None else found.parameters


def _of_order(volumes: _Array, energies: _Array, about: float, order: int) -> _Fit | None:
    """The fit of `polynomial`, with its gain: that of the minimum by the implicit function E'(x) = 0."""
    from scipy.optimize import brentq

    powers = -2.0 / 3.0 * np.arange(order + 1)
    u = volumes / about
    design = u[:, None] ** powers
    coefficients = np.linalg.lstsq(design, energies, rcond=None)[0]
    by_energy = np.linalg.pinv(design, rcond=1e-15)

    def row(at: float, n: int) -> _Array:
        """The n-th derivative there, by each coefficient."""
        factors = np.prod([powers - k for k in range(n)], axis=0) if n else np.ones_like(powers)
        result: _Array = factors * at ** (powers - n)
        return result

    def slope(at: float) -> float:
        return float(row(at, 1) @ coefficients)

    low, high = float(u.min()), float(u.max())
    if not slope(low) < 0 < slope(high):
        return None
    at = float(brentq(slope, low, high, xtol=1e-12))
    e0, _, second, third, fourth = (float(row(at, n) @ coefficients) for n in range(5))
    if second <= 0:
        return None
    moved = -row(at, 1) @ by_energy / second
    d_second = row(at, 2) @ by_energy + third * moved
    d_third = row(at, 3) @ by_energy + fourth * moved
    return _Fit(
        np.array([at * about, e0, at * second / about, -1.0 - at * third / second]),
        np.array(
            [
                moved * about,
                row(at, 0) @ by_energy,
                (moved * second + at * d_second) / about,
                -(moved * third + at * d_third) / second + at * third * d_second / second**2,
            ]
        ),
        energies - design @ coefficients,
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
