"""The demagnetising tensor between the cells of a grid, exact for cells magnetised uniformly.

A. J. Newell, W. Williams and D. J. Dunlop, J. Geophys. Res. 98, 9551 (1993), doi:10.1029/93JB00694. Their
differences cancel far away, where the dipole field is averaged over both cells instead.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

__all__ = ["COMPONENTS", "demag_factors", "demag_tensor"]

_Array = NDArray[np.float64]
_Long = NDArray[np.longdouble]
Triple = tuple[float, float, float]

COMPONENTS = ("xx", "yy", "zz", "xy", "xz", "yz")
"""Order of the tensor's components."""

# Distances, in the longest edge of a cell, from which on the averaged dipole is taken, and its points an axis: the
# first is where its error and the rounding of the differences (in 64 bits of mantissa) are both below 1e-11 of the
# value, the second where four points do as well as six.
_FAR = 10.0
_FARTHER = 40.0


def demag_tensor(shape: tuple[int, int, int], cell: Triple) -> _Array:
    """Tensor N of the field H = -N M that one cell makes in another, averaged over that one.

    Args:
        shape: Cells along x, y and z.
        cell: Edges of a cell, in any unit.

    Returns:
        (6, *shape) float64: `COMPONENTS` for distances of 0 ... shape - 1 cells. Of negative distances along an
        axis, components with one index of that axis have the other sign, all others the same.

    Example:
        >>> [round(float(n), 12) for n in demag_tensor((1, 1, 1), (1.0, 1.0, 1.0))[:3, 0, 0, 0]]
        [0.333333333333, 0.333333333333, 0.333333333333]
    """
    unit = max(cell)
    edges = tuple(edge / unit for edge in cell)
    near = tuple(min(n, int(np.ceil(_FAR / edge)) + 1) for n, edge in zip(shape, edges, strict=True))
    tensor = np.zeros((6, *shape))
    tensor[:, : near[0], : near[1], : near[2]] = _differences(near, edges)
    at = [np.arange(n) * edge for n, edge in zip(shape, edges, strict=True)]
    x, y, z = np.meshgrid(*at, indexing="ij")
    r2 = x * x + y * y + z * z
    for points, inner, outer in ((6, _FAR, _FARTHER), (4, _FARTHER, np.inf)):
        here = (r2 > inner * inner) & (r2 <= outer * outer)
        if here.any():
            tensor[:, here] = _averaged_dipole(x[here], y[here], z[here], edges, points)
    return tensor


def demag_factors(edges: Triple) -> tuple[float, float, float]:
    """Magnetometric demagnetising factors of a block.

    Example:
        >>> [round(n, 4) for n in demag_factors((100.0, 100.0, 1.0))]
        [0.017, 0.017, 0.966]
    """
    xx, yy, zz = demag_tensor((1, 1, 1), edges)[:3, 0, 0, 0]
    return float(xx), float(yy), float(zz)


def _differences(shape: tuple[int, ...], cell: tuple[float, ...]) -> _Array:
    """Newell's formula: second differences of f and g along each axis, in the longest type there is."""
    axes = [
        np.arange(-1, n + 1).astype(np.longdouble) * np.longdouble(e) for n, e in zip(shape, cell, strict=True)
    ]
    x, y, z = np.meshgrid(*axes, indexing="ij", sparse=True)
    x, y, z = np.broadcast_arrays(x, y, z)
    scale = -4 * np.pi * cell[0] * cell[1] * cell[2]
    parts: list[tuple[Callable[..., _Long], tuple[_Long, _Long, _Long]]] = [
        (_f, (x, y, z)), (_f, (y, x, z)), (_f, (z, y, x)), (_g, (x, y, z)), (_g, (x, z, y)), (_g, (y, z, x)),
    ]  # fmt: skip
    found = []
    for function, arguments in parts:
        values = function(*arguments)
        for axis in range(3):
            values = np.diff(values, n=2, axis=axis)
        found.append(np.asarray(values / scale, np.float64))
    return np.stack(found)


def _quotient(a: _Long, b: _Long) -> _Long:
    """a / b; 0 where b is: there the terms in which it stands are 0."""
    result: _Long = np.divide(a, b, out=np.zeros_like(a), where=b != 0)
    return result


def _f(x: _Long, y: _Long, z: _Long) -> _Long:
    x, y, z = np.abs(x), np.abs(y), np.abs(z)
    x2, y2, z2 = x * x, y * y, z * z
    r = np.sqrt(x2 + y2 + z2)
    result: _Long = (
        y / 2 * (z2 - x2) * np.arcsinh(_quotient(y, np.sqrt(x2 + z2)))
        + z / 2 * (y2 - x2) * np.arcsinh(_quotient(z, np.sqrt(x2 + y2)))
        - x * y * z * np.arctan(_quotient(y * z, x * r))
        + (2 * x2 - y2 - z2) * r / 6
    )
    return result


def _g(x: _Long, y: _Long, z: _Long) -> _Long:
    # arctan, not arctan2: the angle is that of the quotient, for negative coordinates, too.
    x2, y2, z2 = x * x, y * y, z * z
    r = np.sqrt(x2 + y2 + z2)
    result: _Long = (
        x * y * z * np.arcsinh(_quotient(z, np.sqrt(x2 + y2)))
        + y / 6 * (3 * z2 - y2) * np.arcsinh(_quotient(x, np.sqrt(y2 + z2)))
        + x / 6 * (3 * z2 - x2) * np.arcsinh(_quotient(y, np.sqrt(x2 + z2)))
        - z2 * z / 6 * np.arctan(_quotient(x * y, z * r))
        - z * y2 / 2 * np.arctan(_quotient(x * z, y * r))
        - z * x2 / 2 * np.arctan(_quotient(y * z, x * r))
        - x * y * r / 3
    )
    return result


def _averaged_dipole(x: _Array, y: _Array, z: _Array, cell: tuple[float, ...], points: int) -> _Array:
    """The dipole's tensor averaged over both cells, by quadrature.

    The difference of two points of equal intervals has the weight 1 - |t|; `points` nodes of Gauss for it are
    exact for polynomials of degree 2 points - 1.
    """
    nodes, weights = _gauss_triangle(points)
    total = np.zeros((6, len(x)))
    for u, wu in zip(nodes, weights, strict=True):
        for v, wv in zip(nodes, weights, strict=True):
            for w, ww in zip(nodes, weights, strict=True):
                a, b, c = x + u * cell[0], y + v * cell[1], z + w * cell[2]
                r2 = a * a + b * b + c * c
                r5 = wu * wv * ww / (r2 * r2 * np.sqrt(r2))
                for row, (p, q) in enumerate(((a, a), (b, b), (c, c), (a, b), (a, c), (b, c))):
                    total[row] += ((r2 if row < 3 else 0.0) - 3.0 * p * q) * r5
    total *= cell[0] * cell[1] * cell[2] / (4.0 * np.pi)
    return total


def _gauss_triangle(points: int) -> tuple[_Array, _Array]:
    """Nodes and weights of Gauss for the weight 1 - |t| on [-1, 1], by G. H. Golub and J. H. Welsch (1969)."""
    grid, legendre = np.polynomial.legendre.leggauss(40)
    fine = np.concatenate([(grid - 1) / 2, (grid + 1) / 2])
    weight = np.concatenate([legendre, legendre]) / 2 * (1 - np.abs(fine))
    before, now = np.zeros_like(fine), np.full_like(fine, 1 / np.sqrt(weight.sum()))
    off: list[float] = []
    for _ in range(points - 1):  # the three-term recurrence; its diagonal is 0, as the weight is even
        following = fine * now - (off[-1] if off else 0.0) * before
        off.append(float(np.sqrt(np.sum(weight * following**2))))
        before, now = now, following / off[-1]
    nodes, vectors = np.linalg.eigh(np.diag(off, 1) + np.diag(off, -1))
    return nodes, weight.sum() * vectors[0] ** 2
