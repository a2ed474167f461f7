"""Regressors that are fitted by a library and predicted by twenty lines of NumPy: nothing is unpickled."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcagent.apps.packages import needs, versions_of
from hpcagent.errors import AppFailed

__all__ = ["MODELS", "MOST_ROWS", "fit", "predict", "versions"]

_Array = NDArray[np.float64]
Arrays = dict[str, NDArray[Any]]

MODELS = ("gp", "gp_ard", "forest")
"""Gaussian process of hpcagent's own, that of scikit-learn with a length for each column, random forest."""

MOST_ROWS = 3000
"""Of Gaussian processes, whose cost grows with the cube of the rows."""
_HOW = "pip install 'hpcagent[ml]'"


def fit(kind: str, x: _Array, y: _Array, *, seed: int, trees: int) -> Arrays:
    """Fit a model.

    Args:
        kind: One of `MODELS`.
        x: (rows, columns), standardised.
        y: (rows,).
        seed: Of what is drawn.
        trees: Of a forest.

    Returns:
        What `predict` needs, as arrays.

    Raises:
        AppFailed: `NoEngine`: no scikit-learn; `TooManyRows`; `NotConverged`: the process cannot be fitted.
    """
    if kind == "forest":
        return _forest(x, y, seed, trees)
    if len(x) > MOST_ROWS:
        raise AppFailed(
            f"{len(x)} rows are more than the {MOST_ROWS} that a Gaussian process is fitted to.",
            kind="contract",
            name="TooManyRows",
            repair="model='forest'",
        )
    return _own_gp(x, y) if kind == "gp" else _sklearn_gp(x, y, seed)


def predict(arrays: Mapping[str, NDArray[Any]], x: _Array) -> tuple[_Array, _Array]:
    """Mean and spread (of the process with its noise, or of the trees) at rows (m, columns): (m,) each."""
    return _of_forest(arrays, x) if "threshold" in arrays else _of_process(arrays, x)


def versions(kind: str) -> dict[str, str]:
    """Versions of what fits this kind."""
    return versions_of("numpy", "scipy") if kind == "gp" else versions_of("numpy", "scikit-learn")


# ---- Gaussian processes


def _own_gp(x: _Array, y: _Array) -> Arrays:
    from hpcagent.model.parameter import Float
    from hpcagent.model.space import Space
    from hpcagent.statistics.covariance import NoFit, one_thread
    from hpcagent.statistics.features import Features
    from hpcagent.statistics.gp import GP

    low, high = x.min(axis=0), x.max(axis=0)
    width = np.where(high > low, high - low, 1.0)
    space = Space.of(**{f"x{j}": Float(0.0, 1.0) for j in range(x.shape[1])})
    try:
        with one_thread():
            found = GP.fit(Features(space), (x - low) / width, y, kernel="matern")
    except NoFit as error:
        raise AppFailed(f"the Gaussian process cannot be fitted: {error}.", name="NotConverged") from None
    return _process(x, found.y, found.scales / width, found.variance, found.own_noise, found.centre, found.unit)


def _sklearn_gp(x: _Array, y: _Array, seed: int) -> Arrays:
    processes = needs("sklearn.gaussian_process", _HOW)
    kernels = needs("sklearn.gaussian_process.kernels", _HOW)
    centre, unit = float(y.mean()), float(y.std()) or 1.0
    kernel = kernels.ConstantKernel(1.0, (1e-3, 1e3)) * kernels.Matern(
        np.ones(x.shape[1]), (1e-2, 1e3), nu=2.5
    ) + kernels.WhiteKernel(1e-2, (1e-8, 1.0))
    made = processes.GaussianProcessRegressor(kernel, n_restarts_optimizer=2, random_state=seed)
    with warnings.catch_warnings():
        # A length at its bound is how a process says that a column does not matter.
        warnings.simplefilter("ignore")
        found = made.fit(x, (y - centre) / unit).kernel_
    lengths = np.broadcast_to(found.k1.k2.length_scale, (x.shape[1],))
    return _process(
        x, (y - centre) / unit, 1 / lengths, found.k1.k1.constant_value, found.k2.noise_level, centre, unit
    )


def _process(
    x: _Array, z: _Array, scales: _Array, variance: float, noise: float, centre: float, unit: float
) -> Arrays:
    return {
        "x": x,
        "z": np.asarray(z),
        "scales": np.asarray(scales),
        "hyper": np.array([variance, noise, centre, unit]),
    }


def _matern(a: _Array, b: _Array) -> _Array:
    """Matern's correlation 5/2 (Rasmussen and Williams 2006, eq. 4.17) of rows in length scales."""
    squares = (a * a).sum(1)[:, None] + (b * b).sum(1)[None] - 2 * a @ b.T
    r = np.sqrt(5 * np.maximum(squares, 0.0))
    return np.asarray((1 + r + r * r / 3) * np.exp(-r))


def _of_process(arrays: Mapping[str, NDArray[Any]], x: _Array) -> tuple[_Array, _Array]:
    from scipy import linalg

    variance, noise, centre, unit = (float(v) for v in arrays["hyper"])
    own = arrays["x"] * arrays["scales"]
    matrix = variance * _matern(own, own)
    # As much as rounding takes: rows may stand twice.
    matrix.flat[:: len(own) + 1] += noise + 1e-10 * variance
    root = linalg.cholesky(matrix, lower=True)
    beside = variance * _matern(own, x * arrays["scales"])
    inner = linalg.solve_triangular(root, beside, lower=True)
    mean = inner.T @ linalg.solve_triangular(root, arrays["z"], lower=True)
    left = variance + noise - (inner**2).sum(axis=0)
    return centre + unit * mean, unit * np.sqrt(np.maximum(left, 1e-12 * variance))


# ---- forests


def _forest(x: _Array, y: _Array, seed: int, trees: int) -> Arrays:
    ensemble = needs("sklearn.ensemble", _HOW)
    made = ensemble.RandomForestRegressor(trees, random_state=seed, n_jobs=1).fit(x, y)
    parts = [one.tree_ for one in made.estimators_]
    starts = np.cumsum([0, *(part.node_count for part in parts)])
    return {
        "starts": starts[:-1],
        "feature": np.concatenate([part.feature for part in parts]),
        "threshold": np.concatenate([part.threshold for part in parts]),
        "left": np.concatenate([part.children_left + s for part, s in zip(parts, starts, strict=False)]),
        "right": np.concatenate([part.children_right + s for part, s in zip(parts, starts, strict=False)]),
        "value": np.concatenate([part.value[:, 0, 0] for part in parts]),
    }


def _of_forest(arrays: Mapping[str, NDArray[Any]], x: _Array) -> tuple[_Array, _Array]:
    # scikit-learn compares in single precision, and so must who walks its trees.
    x = x.astype(np.float32)
    rows = np.arange(len(x))
    values = []
    for start in arrays["starts"]:
        at = np.full(len(x), int(start))
        while True:
            feature = arrays["feature"][at]
            inside = feature >= 0
            if not inside.any():
                break
            goes_left = x[rows, np.maximum(feature, 0)] <= arrays["threshold"][at]
            at = np.where(inside, np.where(goes_left, arrays["left"][at], arrays["right"][at]), at)
        values.append(arrays["value"][at])
    table = np.array(values)
    return table.mean(axis=0), table.std(axis=0)
