"""Correlations of rows, inverses of their covariances, and the one thread that they are worked on with."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache
from importlib import import_module
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpcagent.later import Later

__all__ = [
    "JITTER",
    "Array",
    "Kernel",
    "NoFit",
    "bordered",
    "correlation",
    "inverted",
    "one_thread",
    "squared_distances",
]

# Imported when a number is first asked for: it takes longer than the rest of a start.
linalg = Later("scipy.linalg")

Array: TypeAlias = NDArray[np.float64]
Kernel: TypeAlias = Literal["rbf", "matern", "mixed"]

JITTER = 1e-7


class NoFit(ArithmeticError):
    """No model can be fitted to these values."""


@cache
def _controller() -> Any:
    from threadpoolctl import ThreadpoolController

    import_module("scipy.linalg")  # its BLAS: the controller knows only what is loaded when it is made
    return ThreadpoolController()


def one_thread() -> AbstractContextManager[Any]:
    """Within it matrices are worked on by one thread: these are small, and the cores belong to the runs."""
    limited: AbstractContextManager[Any] = _controller().limit(limits=1, user_api="blas")
    return limited


def squared_distances(a: Array, b: Array) -> Array:
    """Squared distances of rows, `(len(a), len(b))`."""
    found = (a * a).sum(1)[:, None] + (b * b).sum(1)[None, :] - 2 * (a @ b.T)
    return np.asarray(np.maximum(found, 0.0))


def bordered(solved: tuple[Array, Array], beside: Array, left: float, value: float) -> tuple[Array, Array]:
    """M and alpha of `GP._solved` with one more value: far cheaper than another inverse (Schur's complement).

    Args:
        solved: M and alpha before.
        beside: `(n,)` covariances of the new point with those before.
        left: Variance of a value there, given those before.
        value: The value.
    """
    inverse, alpha = solved
    border = inverse @ beside / left
    off = (value - float(beside @ alpha)) / left
    n = len(beside)
    grown = np.empty((n + 1, n + 1))
    grown[:n, :n] = inverse + left * np.outer(border, border)
    grown[n, :n] = grown[:n, n] = -border
    grown[n, n] = 1 / left
    return grown, np.concatenate([alpha - off * left * border, [off]])


def correlation(r2: Array, kernel: Kernel) -> Array:
    """Correlation at squared distances `r2`, each scaled by its length: `exp(-r2/2)`, or Matern 5/2."""
    if kernel != "matern":
        return np.asarray(np.exp(-0.5 * r2))
    r = np.sqrt(5 * r2)
    return np.asarray((1 + r + r * r / 3) * np.exp(-r))


def inverted(k: Array) -> tuple[Array, float]:
    """Inverse of a positive definite matrix and half the logarithm of its determinant."""
    lower, failed = linalg.lapack.dpotrf(k, lower=1, clean=1)
    if failed:
        raise NoFit("the covariance of the values is not positive definite")
    half_log = float(np.log(np.diag(lower)).sum())
    half, failed = linalg.lapack.dpotri(lower, lower=1)
    if failed:
        raise NoFit("the covariance of the values cannot be inverted")
    full = half + half.T
    full.flat[:: len(full) + 1] *= 0.5
    return full, half_log
