"""A magnetic body on a grid: its cells, their grains and easy axes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpcagent.errors import AppFailed
from hpcagent.science.micromagnetics.material import Material

__all__ = ["Body", "Grains", "direction", "grid", "made"]

_Array = NDArray[np.float64]
Triple = tuple[float, float, float]

_MOST_CELLS = 2_000_000
_MOST_GRAINS = 100_000
_NM = 1e-9
# Share of its box that a form fills.
_FILLED = {"block": 1.0, "ellipsoid": math.pi / 6.0, "cylinder": math.pi / 4.0}


@dataclass(frozen=True, slots=True)
class Grains:
    """How the grains of a polycrystal are.

    Attributes:
        size: Cube root of the mean volume of a grain, m.
        spread: Half-angle of the cone in which the easy axes lie, evenly, degrees; 90: all directions.
        coupling: Exchange across a boundary over that inside of a grain.
    """

    size: float
    spread: float
    coupling: float


@dataclass(frozen=True, slots=True)
class Body:
    """A magnetic body.

    Attributes:
        shape: Cells along x, y and z.
        cell: Edges of a cell, m.
        inside: (nx, ny, nz) bool, the cells that are magnetic.
        axes: (3, nx, ny, nz) or (3, 1, 1, 1) float64, unit vectors: easy axis of each cell.
        grain: (nx, ny, nz) int, number of each cell's grain.
        n_grains: Grains that have a cell.
        coupling: Exchange across a grain boundary over that inside.
        form_error: How far the volume of the cells is off that of the form, as a share of it.
    """

    shape: tuple[int, int, int]
    cell: Triple
    inside: NDArray[np.bool_]
    axes: _Array
    grain: NDArray[np.intp]
    n_grains: int
    coupling: float
    form_error: float

    @property
    def n_cells(self) -> int:
        """Magnetic cells."""
        return int(self.inside.sum())

    @property
    def cell_volume(self) -> float:
        """m^3."""
        return self.cell[0] * self.cell[1] * self.cell[2]

    @property
    def volume(self) -> float:
        """Of the magnetic cells, m^3."""
        return self.n_cells * self.cell_volume

    def uniform(self, towards: _Array) -> _Array:
        """All magnetic cells magnetised along a direction."""
        result: _Array = towards.reshape(3, 1, 1, 1) / np.linalg.norm(towards) * self.inside
        return result

    def normalized(self, m: _Array) -> _Array:
        """Unit vectors again, in magnetic cells; 0 elsewhere."""
        norm = np.sqrt(np.einsum("ixyz,ixyz->xyz", m, m))
        result: _Array = np.divide(m, norm, out=np.zeros_like(m), where=self.inside)
        return result

    def mean(self, m: _Array) -> _Array:
        """(3,) mean of a vector field over the magnetic cells."""
        result: _Array = m[:, self.inside].mean(axis=1)
        return result


def direction(polar: float, azimuth: float) -> _Array:
    """(3,) unit vector: polar angle from z and azimuth from x, in degrees.

    Example:
        >>> direction(90.0, 90.0).round(12).tolist()
        [0.0, 1.0, 0.0]
    """
    theta, phi = math.radians(polar), math.radians(azimuth)
    v = np.array([math.sin(theta) * math.cos(phi), math.sin(theta) * math.sin(phi), math.cos(theta)])
    v[np.abs(v) < 1e-15] = 0.0
    result: _Array = v / np.linalg.norm(v)
    return result


def grid(size: Triple, cell: float, material: Material) -> tuple[int, int, int]:
    """Cells along each axis, none longer than `cell`; both in m.

    Raises:
        AppFailed: `CellTooLarge`: longer than the exchange length; `TooManyCells`.
    """
    counts = [max(1, math.ceil(edge / cell - 1e-9)) for edge in size]
    if math.prod(counts) > _MOST_CELLS:
        raise AppFailed(
            f"{counts[0]} x {counts[1]} x {counts[2]} cells are more than {_MOST_CELLS:,}.",
            kind="contract",
            name="TooManyCells",
            repair="a smaller body, or larger cells up to the exchange length",
        )
    # Along an axis with one cell the magnetisation is taken as uniform; the longest edge that counts:
    longest = max((edge / n for edge, n in zip(size, counts, strict=True) if n > 1), default=0.0)
    length = material.exchange_length
    if longest > length:
        raise AppFailed(
            f"cells of {longest / _NM:.4g} nm are longer than the exchange length of the material, "
            f"{length / _NM:.4g} nm (the smaller of sqrt(2 A/(mu0 Ms^2)) and sqrt(A/|K1|)): walls and vortices "
            "would be pinned by the grid.",
            kind="contract",
            name="CellTooLarge",
            repair=f"cell at most {length / _NM:.3g}",
        )
    return counts[0], counts[1], counts[2]


def made(
    form: str,
    size: Triple,
    counts: tuple[int, int, int],
    axis: _Array,
    grains: Grains | None,
    seed: tuple[int, ...],
) -> Body:
    """A body of a form in the box `size` (m), of one crystal or of Voronoi cells around random points.

    Args:
        form: `block`, `ellipsoid`, or `cylinder` (along z).
        size: Edges of its box, m.
        counts: Cells along each axis.
        axis: (3,) easy axis, or that of the texture.
        grains: None: one crystal.
        seed: Of the points and axes.

    Raises:
        AppFailed: `EmptyBody`, `TooManyCells` (grains).
    """
    edges = (size[0] / counts[0], size[1] / counts[1], size[2] / counts[2])
    centres = [(np.arange(n) + 0.5) / n * 2 - 1 for n in counts]
    x, y, z = np.meshgrid(*centres, indexing="ij")  # -1 ... 1 in the box
    inside = np.ones(counts, bool)
    if form == "ellipsoid":
        inside = x * x + y * y + z * z <= 1.0
    elif form == "cylinder":
        inside = x * x + y * y <= 1.0
    if not inside.any():
        raise AppFailed(
            f"no cell of the grid has its centre in the {form}.",
            kind="contract",
            name="EmptyBody",
            repair="smaller cells",
        )
    error = abs(float(inside.mean()) / _FILLED[form] - 1.0)
    if grains is None:
        return Body(counts, edges, inside, axis.reshape(3, 1, 1, 1), np.zeros(counts, np.intp), 1, 1.0, error)
    rng = np.random.default_rng([*seed, 1])
    n_points = max(1, round(math.prod(size) / grains.size**3))
    if n_points > _MOST_GRAINS:
        raise AppFailed(
            f"{n_points:,} grains are more than {_MOST_GRAINS:,}.",
            kind="contract",
            name="TooManyCells",
            repair="larger grains, or a smaller body",
        )
    from scipy.spatial import cKDTree

    half = np.array(size) / 2
    points = rng.uniform(-1.0, 1.0, (n_points, 3)) * half
    grain = cKDTree(points).query(np.stack([x, y, z], axis=-1) * half)[1].astype(np.intp)
    axes = _cone(rng, n_points, axis, grains.spread)
    each = np.ascontiguousarray(np.moveaxis(axes[grain], -1, 0))
    return Body(counts, edges, inside, each, grain, len(np.unique(grain[inside])), grains.coupling, error)


def _cone(rng: np.random.Generator, n: int, axis: _Array, spread: float) -> _Array:
    """(n, 3) unit vectors spread evenly over the solid angle within `spread` degrees of the axis."""
    cosine = rng.uniform(math.cos(math.radians(spread)), 1.0, n)
    sine = np.sqrt(1.0 - cosine**2)
    phi = rng.uniform(0.0, 2 * np.pi, n)
    helper = np.eye(3)[int(np.argmin(np.abs(axis)))]
    u = np.cross(axis, helper)
    u /= np.linalg.norm(u)
    v = np.cross(axis, u)
    result: _Array = cosine[:, None] * axis + sine[:, None] * (np.cos(phi)[:, None] * u + np.sin(phi)[:, None] * v)
    return result
