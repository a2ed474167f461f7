"""Elastic constants from stresses at small strains."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcagent.apps.decorator import app
from hpcagent.apps.run import Outcome, Run
from hpcagent.errors import AppFailed
from hpcagent.model.contract import Metric
from hpcagent.model.parameter import Choice
from hpcagent.science.analysis.symmetry import Symmetry, bond, crystal_symmetry, general_basis
from hpcagent.units import factor

__all__ = ["elastic_constants", "strain_between", "voigt_reuss_hill"]

_Array = NDArray[np.float64]
_VOIGT = ((0, 0), (1, 1), (2, 2), (1, 2), (0, 2), (0, 1))
# Beyond it the terms left out are several percent of the stress.
_LARGE = 0.02
# Stress of the reference, in bulk moduli, from which on it is said: constants change by 2 to 7 times the pressure
# (copper: W. B. Daniels and C. S. Smith, Phys. Rev. 111, 713 (1958)), so this is about a percent.
_STRESSED = 0.002


@app(
    name="elastic_constants",
    version="2.0.0",
    app_type="analysis",
    inputs=("runs...",),
    parameters={
        "symmetry": Choice(
            "auto",
            "cubic",
            "none",
            default="auto",
            description="auto: that of the reference, however it lies; cubic: refused if it is not; none: 21",
        )
    },
    metrics={
        "c11": Metric(name="c11", unit="GPa", description="elastic constant C11"),
        "c12": Metric(name="c12", unit="GPa", description="elastic constant C12"),
        "c44": Metric(name="c44", unit="GPa", description="elastic constant C44"),
        **{
            name: Metric(
                name=name,
                unit="GPa",
                description=f"elastic constant {name.upper()}, of less than cubic",
                required=False,
            )
            for name in ("c13", "c33", "c14", "c66")
        },
        "n_constants": Metric(
            name="n_constants", unit="1", description="independent elastic constants that were fitted"
        ),
        "bulk_modulus": Metric(name="bulk_modulus", unit="GPa", description="bulk modulus, Voigt-Reuss-Hill"),
        "shear_modulus": Metric(name="shear_modulus", unit="GPa", description="shear modulus, Voigt-Reuss-Hill"),
        "stable": Metric(
            name="stable", unit="1", description="1 where every strain costs energy (Born's conditions), else 0"
        ),
        "residual_stress": Metric(
            name="residual_stress", unit="GPa", description="largest stress component of the reference"
        ),
        "fit_rms": Metric(name="fit_rms", unit="GPa", description="rms distance of the stresses from the fit"),
    },
    seeded=False,
    failure_modes=(
        "NotCubic",
        "TooFewRuns",
        "NoStructure",
        "NoStress",
        "MixedRuns",
        "StrainsMissing",
        "MissingFile",
    ),
    estimated_runtime_s=0.2,
)
def elastic_constants(symmetry: str, run: Run) -> Outcome:
    """Elastic constants by least squares of stress against strain; the first run is the reference.

    sigma_i = sigma_i(reference) + C_ij eps_j in Voigt's notation (eps_4 = 2 eps_yz, ...), the engine's Cauchy
    stress turned back by the rotation in the deformation; the stress at no strain is fitted too. What is fitted
    are the constants that the reference's symmetry leaves (`hpcagent.science.analysis.symmetry`), in the
    orientation it has; the metrics are those in the standard axes of its system (of a trigonal one with C14 >= 0),
    elastic.csv is in the axes of the structure. Strains of both signs cancel what is quadratic. Averages over
    directions: W. Voigt (1928), A. Reuss (1929), R. Hill, Proc. Phys. Soc. A 65, 349 (1952),
    doi:10.1088/0370-1298/65/5/307. Stability: the eigenvalues of C are positive (F. Mouhat and F.-X. Coudert,
    Phys. Rev. B 90, 224104 (2014), doi:10.1103/PhysRevB.90.224104). Errors, also of the averages, are from the
    fit's covariance. Own code: three packages fit this (elastic, pymatgen, matscipy), each with calculators or a
    framework of its own around twenty lines of algebra.

    Raises:
        AppFailed: `NotCubic`; `NoStress`; `NoStructure`; `MixedRuns`: not one crystal strained; `TooFewRuns`,
            `StrainsMissing`: the strains do not tell the constants apart.
    """
    strains, stresses, reference = _measured(run)
    found = _symmetry(reference, symmetry)
    # Stress components (n, 6) of each allowed tensor.
    columns = np.einsum("nij,rj->rin", found.basis, strains)
    n_constants = columns.shape[2]
    # One unknown stress for each component beside the constants.
    design = np.concatenate([columns, np.broadcast_to(np.eye(6), (len(strains), 6, 6))], axis=2)
    matrix, values = design.reshape(-1, n_constants + 6), stresses.reshape(-1)
    # One size for all strains: that of each column would make rounding in a strain that is not there count.
    scale = np.ones(n_constants + 6)
    scale[:n_constants] = np.abs(strains).max() or 1.0
    if np.linalg.matrix_rank(matrix / scale, tol=1e-3) < n_constants + 6:
        raise AppFailed(
            f"the strains of the {len(strains)} runs do not tell the {n_constants} elastic constants apart.",
            kind="contract",
            name="StrainsMissing",
            repair="a cubic crystal along its axes: a stretch and a shear, of both signs; any: all six strains",
        )
    solution, *_ = np.linalg.lstsq(matrix / scale, values, rcond=None)
    solution = solution / scale
    residual = values - matrix @ solution
    free = len(values) - n_constants - 6
    inverse = np.linalg.inv((matrix / scale).T @ (matrix / scale)) / np.outer(scale, scale)
    covariance = inverse * (float(residual @ residual) / free) if free > 0 else np.full_like(inverse, np.nan)
    tensor = np.einsum("n,nij->ij", solution[:n_constants], found.basis)
    spread = covariance[:n_constants, :n_constants]
    errors = _errors(found.basis, spread)
    np.savetxt(
        run.workdir / "elastic.csv",
        np.concatenate([tensor, errors]),
        delimiter=",",
        fmt="%.8g",
        header="C_i1_GPa,C_i2_GPa,C_i3_GPa,C_i4_GPa,C_i5_GPa,C_i6_GPa (six rows; then six of their errors)",
        comments="",
    )
    eigenvalues = np.linalg.eigvalsh(tensor)
    stable = bool(eigenvalues.min() > 0)
    bulk, shear = voigt_reuss_hill(tensor)
    found = _with_positive_c14(found, tensor)
    turn = bond(found.axes)
    standard = np.einsum("ij,njk,lk->nil", turn, found.basis, turn)
    constants = np.einsum("n,nij->ij", solution[:n_constants], standard)
    standard_errors = _errors(standard, spread)
    metrics = {
        **{name: constants[place] for name, place in _shown(n_constants).items()},
        "n_constants": n_constants,
        "bulk_modulus": bulk,
        "shear_modulus": shear,
        "stable": float(stable),
        "residual_stress": float(np.abs(stresses[0]).max()),
        "fit_rms": float(np.sqrt((residual**2).mean())),
    }
    uncertainty = {name: standard_errors[place] for name, place in _shown(n_constants).items()}
    for name, error in zip(
        ("bulk_modulus", "shear_modulus"),
        _errors_of_moduli(found.basis, solution[:n_constants], spread),
        strict=True,
    ):
        uncertainty[name] = error
    return Outcome(
        metrics={k: float(v) for k, v in metrics.items()},
        uncertainty={k: float(v) for k, v in uncertainty.items() if math.isfinite(v)},
        artifacts={"elastic": "elastic.csv"},
        notes=(*_of_symmetry(found, symmetry), *_remarks(strains, metrics, stable, eigenvalues)),
    )


def _symmetry(reference: Any, wanted: str) -> Symmetry:
    if wanted == "none":
        return Symmetry("triclinic", general_basis(), np.eye(3))
    found = crystal_symmetry(reference)
    if wanted == "cubic" and found.name != "cubic":
        raise AppFailed(
            f"the reference, {reference.symbols}, is {found.name}, not cubic: it has {len(found.basis)} "
            "constants, and three would fit none of them.",
            kind="contract",
            name="NotCubic",
            repair="symmetry='auto'; or relax the reference better, if it should be cubic",
        )
    return found


def _of_symmetry(found: Symmetry, wanted: str) -> tuple[str, ...]:
    if wanted == "none":
        return ()
    turned = (
        []
        if not found.turned
        else [
            "constants are in the standard axes, which are not those of the structure: "
            f"x = {_vector(found.axes[0])}, "
            f"z = {_vector(found.axes[2])} in its own"
        ]
    )
    lower = [] if found.name == "cubic" else [f"{found.name}: {len(found.basis)} constants, all in elastic.csv"]
    if found.name == "trigonal":
        lower.append("x is that of its two directions with which C14 is positive")
    return (*lower, *turned)


def _vector(axis: _Array) -> str:
    return "(" + ", ".join(f"{x:.4g}" for x in np.round(axis, 4) + 0.0) + ")"


def _shown(n_constants: int) -> dict[str, tuple[int, int]]:
    """Which entries of the tensor are metrics."""
    few = {"c11": (0, 0), "c12": (0, 1), "c44": (3, 3)}
    return few if n_constants == 3 else few | {"c13": (0, 2), "c33": (2, 2), "c14": (0, 3), "c66": (5, 5)}


def _errors(basis: _Array, covariance: _Array) -> _Array:
    """Standard errors (6, 6) of a tensor, a sum of `basis` (n, 6, 6) with coefficients of this covariance."""
    variance: _Array = np.einsum("nij,nm,mij->ij", basis, covariance, basis)
    return np.sqrt(np.maximum(variance, 0.0))


def _errors_of_moduli(basis: _Array, coefficients: _Array, covariance: _Array) -> tuple[float, float]:
    """Standard errors of Hill's bulk and shear modulus: their slopes by each coefficient, and its covariance."""
    step = 1e-4 * float(np.abs(coefficients).max())
    slopes = np.array(
        [
            np.subtract(
                voigt_reuss_hill(np.einsum("n,nij->ij", coefficients + change, basis)),
                voigt_reuss_hill(np.einsum("n,nij->ij", coefficients - change, basis)),
            )
            / (2.0 * step)
            for change in step * np.eye(len(coefficients))
        ]
    )
    bulk, shear = np.sqrt(np.maximum(np.einsum("nk,nm,mk->k", slopes, covariance, slopes), 0.0))
    return float(bulk), float(shear)


def _with_positive_c14(found: Symmetry, tensor: _Array) -> Symmetry:
    """The axes with x turned about where a trigonal crystal's C14 is negative: its lattice leaves that open."""
    turn = bond(found.axes)
    if found.name != "trigonal" or float((turn @ tensor @ turn.T)[0, 3]) >= 0:
        return found
    return replace(found, axes=np.diag([-1.0, -1.0, 1.0]) @ found.axes)


def _remarks(
    strains: _Array, metrics: Mapping[str, float], stable: bool, eigenvalues: NDArray[Any]
) -> tuple[str, ...]:
    notes = []
    if not stable:
        notes.append(f"not stable: the smallest eigenvalue of C is {eigenvalues.min():.4g} GPa")
    if metrics["residual_stress"] > _STRESSED * abs(metrics["bulk_modulus"]):
        notes.append(
            f"the reference is under a stress of {metrics['residual_stress']:.3g} GPa; what is given are the "
            "coefficients of stress against strain there, which differ from those of a relaxed crystal by some "
            "times that stress, and the errors do not hold it"
        )
    if np.abs(strains).max() > _LARGE:
        notes.append(
            f"strains up to {np.abs(strains).max():.3g} are large; what is left out goes with their square"
        )
    opposite = all(any(np.allclose(s, -t, atol=0.1 * np.abs(s).max() + 1e-12) for t in strains) for s in strains)
    if not opposite:
        notes.append("not every strain comes with its opposite, so what is quadratic in it does not cancel")
    return tuple(notes)


def _measured(run: Run) -> tuple[_Array, _Array, Any]:
    """Strains (n, 6) and stresses (n, 6) in GPa, Voigt, in the axes of the reference; the reference."""
    from hpcagent.apps.structures import structure_of

    if len(run.upstream) < 3:
        raise AppFailed(
            f"{len(run.upstream)} runs are too few: the reference and at least two strained ones are needed.",
            kind="contract",
            name="TooFewRuns",
        )
    gpa = factor("eV/angstrom^3", "GPa")
    found: list[Any] = [structure_of(fields) for fields in run.upstream]
    strains, stresses = [], []
    for number, atoms in enumerate(found):
        if atoms.get_chemical_symbols() != found[0].get_chemical_symbols():
            raise AppFailed(
                f"input {number + 1} holds {atoms.symbols}, the reference {found[0].symbols}.",
                kind="contract",
                name="MixedRuns",
                repair="pass one crystal, strained; the first run is the reference",
            )
        results = {} if atoms.calc is None else atoms.calc.results
        if results.get("stress") is None:
            raise AppFailed(
                f"the structure of input {number + 1} ({run.upstream[number].get('workdir')}) has no stress.",
                kind="contract",
                name="NoStress",
                repair="use an engine that computes stresses, and a periodic cell",
            )
        strain, rotation = strain_between(np.asarray(found[0].cell[:]), np.asarray(atoms.cell[:]))
        stress = _matrix(np.asarray(results["stress"], np.float64))
        turned = rotation.T @ stress @ rotation
        strains.append([strain[i, j] * (1.0 if i == j else 2.0) for i, j in _VOIGT])
        stresses.append([turned[i, j] * gpa for i, j in _VOIGT])
    if np.abs(np.array(strains)).max() > 0.2:
        raise AppFailed(
            f"the cells differ by strains up to {np.abs(np.array(strains)).max():.2g}: not one crystal, strained.",
            kind="contract",
            name="MixedRuns",
            repair="the first run is the reference, all others strain its very cell a little",
        )
    return np.array(strains), np.array(stresses), found[0]


def _matrix(voigt: _Array) -> _Array:
    if voigt.shape == (3, 3):
        return voigt
    full = np.zeros((3, 3))
    for value, (i, j) in zip(voigt, _VOIGT, strict=True):
        full[i, j] = full[j, i] = value
    return full


def strain_between(reference: _Array, cell: _Array) -> tuple[_Array, _Array]:
    """Strain that makes one cell of the other, and the rotation after it.

    The deformation F with cell = reference F^T is R (1 + eps), R a rotation and eps symmetric (the polar
    decomposition), so that a rotated cell is not strained.

    Args:
        reference: (3, 3), rows are the cell vectors.
        cell: (3, 3), likewise.

    Returns:
        eps (3, 3) and R (3, 3).

    Example:
        >>> strain, rotation = strain_between(np.eye(3), np.diag([1.01, 1.0, 1.0]))
        >>> bool(np.allclose(strain, np.diag([0.01, 0.0, 0.0])))
        True
    """
    from scipy.linalg import polar

    deformation = (np.linalg.inv(reference) @ cell).T
    rotation, stretch = polar(deformation)
    strain: _Array = stretch - np.eye(3)
    return strain, np.asarray(rotation)


def voigt_reuss_hill(c: _Array) -> tuple[float, float]:
    """Hill's bulk and shear modulus of an elastic tensor: the means of Voigt's and Reuss's.

    Args:
        c: (6, 6) elastic constants, Voigt.

    Returns:
        Bulk and shear modulus, in the unit of `c`; NaN where `c` cannot be inverted.
    """
    try:
        s = np.linalg.inv(c)
    except np.linalg.LinAlgError:
        return math.nan, math.nan
    normal, cross, shear = (
        c[range(3), range(3)].sum(),
        c[0, 1] + c[0, 2] + c[1, 2],
        c[range(3, 6), range(3, 6)].sum(),
    )
    bulk_v = (normal + 2.0 * cross) / 9.0
    shear_v = (normal - cross + 3.0 * shear) / 15.0
    normal, cross, shear = (
        s[range(3), range(3)].sum(),
        s[0, 1] + s[0, 2] + s[1, 2],
        s[range(3, 6), range(3, 6)].sum(),
    )
    bulk_r = 1.0 / (normal + 2.0 * cross)
    shear_r = 15.0 / (4.0 * normal - 4.0 * cross + 3.0 * shear)
    return float((bulk_v + bulk_r) / 2.0), float((shear_v + shear_r) / 2.0)
