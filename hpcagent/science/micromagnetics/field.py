"""Effective field and energies of a magnetisation: stray field, exchange, anisotropy, applied field."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcagent.science.micromagnetics.body import Body
from hpcagent.science.micromagnetics.material import MU0, Material
from hpcagent.science.micromagnetics.newell import demag_tensor

__all__ = ["TERMS", "Energies", "Magnet"]

_Array = NDArray[np.float64]

# Component of the tensor -> the two axes that it mixes.
_MIXED = {3: (0, 1), 4: (0, 2), 5: (1, 2)}
TERMS = ("demagnetization", "exchange", "anisotropy", "zeeman")


@dataclass(frozen=True, slots=True)
class Energies:
    """Densities over the magnetic volume, J/m^3."""

    demagnetization: float
    exchange: float
    anisotropy: float
    zeeman: float

    @property
    def total(self) -> float:
        """Their sum."""
        return self.demagnetization + self.exchange + self.anisotropy + self.zeeman


class Magnet:
    """A body of a material: B_eff = -(1/Ms) dE/dm of each cell, in T.

    Magnetisations are (3, nx, ny, nz) float64: unit vectors in magnetic cells, 0 elsewhere. The stray field is
    the convolution with the demagnetising tensor, by FFT without wrap-around; exchange is that of six neighbours
    (M. J. Donahue and D. G. Porter, Physica B 343, 177 (2004)) with a free surface.
    """

    def __init__(self, body: Body, material: Material) -> None:
        self.body, self.material = body, material
        self._inside = body.inside.astype(np.float64)
        self._prepare_stray()
        self._links = [self._link(axis) for axis in range(3)]
        self._scale = 0.5 * MU0 * material.ms**2 + abs(material.anisotropy)

    # ---- the stray field

    def _prepare_stray(self) -> None:
        from scipy.fft import next_fast_len, rfftn

        shape = self.body.shape
        padded = [1 if n == 1 else next_fast_len(2 * n - 1, real=True) for n in shape]
        self._padded = tuple(padded)
        tensor = demag_tensor(shape, self.body.cell)
        signs = {0: (1, 1, 1), 1: (1, 1, 1), 2: (1, 1, 1), 3: (-1, -1, 1), 4: (-1, 1, -1), 5: (1, -1, -1)}
        self._kernels: dict[int, _Array] = {}
        for row in range(6):
            kernel = np.zeros(padded)
            kernel[: shape[0], : shape[1], : shape[2]] = tensor[row]
            for axis, (n, sign) in enumerate(zip(shape, signs[row], strict=True)):
                if n == 1:
                    continue
                ahead = [slice(None)] * 3
                behind = [slice(None)] * 3
                ahead[axis], behind[axis] = slice(1, n), slice(-1, -n, -1)
                kernel[tuple(behind)] = sign * kernel[tuple(ahead)]
            if kernel.any():
                # Even, or odd in two axes: its transform is real.
                self._kernels[row] = np.ascontiguousarray(rfftn(kernel).real)

    def stray(self, m: _Array) -> _Array:
        """(3, nx, ny, nz) stray field, T."""
        from scipy.fft import irfftn, rfftn

        k, axes = self._kernels, (1, 2, 3)
        of = rfftn(m, s=self._padded, axes=axes)
        h = np.stack([k[0] * of[0], k[1] * of[1], k[2] * of[2]])
        for row, (a, b) in _MIXED.items():
            if row in k:
                h[a] += k[row] * of[b]
                h[b] += k[row] * of[a]
        nx, ny, nz = self.body.shape
        field: _Array = irfftn(h, s=self._padded, axes=axes)[:, :nx, :ny, :nz]
        return field * (-MU0 * self.material.ms)

    # ---- exchange

    def _link(self, axis: int) -> _Array | None:
        """Field per difference of m of each pair of neighbours along an axis, T; 0 where one is not magnetic."""
        if self.body.shape[axis] == 1:
            return None
        low, high = _pair(axis, 3)
        both = self._inside[low] * self._inside[high]
        same = self.body.grain[low] == self.body.grain[high]
        coupling = np.where(same, 1.0, self.body.coupling)
        result: _Array = (
            both * coupling * (2.0 * self.material.exchange / (self.material.ms * self.body.cell[axis] ** 2))
        )
        return result

    def exchange(self, m: _Array) -> _Array:
        """(3, nx, ny, nz) exchange field, T."""
        field = np.zeros_like(m)
        for axis, link in enumerate(self._links):
            if link is not None:
                low, high = _pair(axis + 1, 4)
                step = link * (m[high] - m[low])
                field[low] += step
                field[high] -= step
        return field

    # ---- all of them

    def field(self, m: _Array, applied: _Array) -> _Array:
        """(3, nx, ny, nz) effective field, T; `applied`: (3,) T."""
        return self._internal(m)[0] + applied.reshape(3, 1, 1, 1) * self._inside

    def _internal(self, m: _Array) -> tuple[_Array, _Array]:
        """Field without the applied one, and m along the easy axes."""
        along = np.einsum("ixyz,ixyz->xyz", m, np.broadcast_to(self.body.axes, m.shape))
        field = self.stray(m)
        field += self.exchange(m)
        if self.material.anisotropy:
            field += self.material.anisotropy_field * along * self.body.axes
        field *= self._inside
        return field, along

    def field_and_energy(self, m: _Array, applied: _Array) -> tuple[_Array, float, float]:
        """Effective field (T); energy density but for a constant, and what its rounding is relative to (J/m^3)."""
        field, _ = self._internal(m)
        n, ms = self.body.n_cells, self.material.ms
        inner = -0.5 * ms * float(np.vdot(m, field)) / n
        field += applied.reshape(3, 1, 1, 1) * self._inside
        zeeman = -ms * float(applied @ m.reshape(3, -1).sum(axis=1)) / n
        return field, inner + zeeman, self._scale + abs(zeeman)

    def energies(self, m: _Array, applied: _Array) -> Energies:
        """Each energy on its own."""
        n, ms, k1 = self.body.n_cells, self.material.ms, self.material.anisotropy
        along = np.einsum("ixyz,ixyz->xyz", m, np.broadcast_to(self.body.axes, m.shape))
        return Energies(
            demagnetization=-0.5 * ms * float(np.vdot(m, self.stray(m) * self._inside)) / n,
            exchange=-0.5 * ms * float(np.vdot(m, self.exchange(m))) / n,
            anisotropy=k1 * (1.0 - float((along**2 * self._inside).sum()) / n),
            zeeman=-ms * float(applied @ m.reshape(3, -1).sum(axis=1)) / n,
        )


def _pair(axis: int, dimensions: int) -> tuple[Any, Any]:
    low: list[slice] = [slice(None)] * dimensions
    high: list[slice] = [slice(None)] * dimensions
    low[axis], high[axis] = slice(None, -1), slice(1, None)
    return tuple(low), tuple(high)
