"""magnum.np as a second solver. It is under the GPL and brings PyTorch: only a child process of a run imports it.

F. Bruckner et al., Sci. Rep. 13, 12054 (2023), doi:10.1038/s41598-023-39192-5.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcagent.apps.packages import needs
from hpcagent.errors import AppFailed
from hpcagent.science.micromagnetics.body import Body
from hpcagent.science.micromagnetics.field import Energies
from hpcagent.science.micromagnetics.llg import GYROMAGNETIC, Moment
from hpcagent.science.micromagnetics.material import MU0, Material
from hpcagent.science.micromagnetics.relax import Rest

__all__ = ["Magnumnp"]

_Array = NDArray[np.float64]


class Magnumnp:
    """magnum.np, with double precision on the CPU."""

    # Simulated seconds of a stretch of its adaptive steps while a state comes to rest, and while it is followed.
    _REST = 2e-12
    _FOLLOW = 1e-12

    def __init__(self, body: Body, material: Material) -> None:
        if body.n_grains > 1 and body.coupling != 1.0:
            raise AppFailed(
                f"grain_coupling={body.coupling:g}: magnum.np takes the exchange of both cells' material, so that "
                "grains are coupled in full or not at all.",
                kind="contract",
                name="BadSettings",
                repair="engine = own, or grain_coupling = 1",
            )
        mn = needs("magnumnp", "pip install 'hpcagent[magnetics]'")
        import torch

        # Compiling its kernels takes a C++ compiler and minutes; uncompiled they are the same.
        torch._dynamo.config.disable = True
        torch.set_default_dtype(torch.float64)
        self._torch, self._mn, self._body = torch, mn, body
        self._state: Any = mn.State(mn.Mesh(body.shape, body.cell))
        inside = torch.tensor(body.inside.astype(np.float64))[..., None]
        axes = np.moveaxis(np.broadcast_to(body.axes, (3, *body.shape)), 0, -1)
        self._state.material = {
            "Ms": material.ms * inside,
            "A": material.exchange * inside,
            "alpha": 1.0,
            "Ku": material.anisotropy * inside,
            "Ku_axis": torch.tensor(np.ascontiguousarray(axes)),
        }
        self._terms = {"demagnetization": mn.DemagField(), "exchange": mn.ExchangeField()}
        if material.anisotropy:
            self._terms["anisotropy"] = mn.UniaxialAnisotropyField()
        self._k1 = material.anisotropy

    def _begin(self, m: _Array, applied: _Array) -> dict[str, Any]:
        self._state.m = self._torch.tensor(np.ascontiguousarray(np.moveaxis(m, 0, -1)))
        self._state.t = 0.0
        return self._terms | {"zeeman": self._mn.ExternalField([float(b) / MU0 for b in applied])}

    def _now(self) -> _Array:
        m = np.moveaxis(self._state.m.numpy(), -1, 0)
        # It makes unit vectors of all cells; those outside have none.
        result: _Array = np.where(self._body.inside, m, 0.0)
        return result

    def _outside(self) -> None:
        self._state.m[~self._torch.tensor(self._body.inside)] = 0.0

    def rest(self, m: _Array, applied: _Array, *, tolerance: float, max_steps: int) -> Rest:
        """See `Solver`: dynamics with a damping of 1 until no torque is left."""
        terms = list(self._begin(m, applied).values())
        llg = self._mn.LLGSolver(terms)
        self._state.material["alpha"] = 1.0
        left = np.inf
        for step in range(max_steps):
            field = MU0 * sum(term.h(self._state) for term in terms)
            torque = self._torch.linalg.cross(self._state.m, field)
            left = float(self._torch.nan_to_num(torque).norm(dim=-1).max())
            if left <= tolerance:
                return Rest(self._now(), left, step)
            llg.step(self._state, self._REST)
            self._outside()
        raise AppFailed(
            f"magnum.np has not come to rest in {max_steps} stretches of {self._REST * 1e12:g} ps: a torque of "
            f"{left:.3g} T is left, allowed are {tolerance:.3g} T.",
            name="NotConverged",
            repair="more max_steps, or a larger tolerance",
        )

    def follow(
        self,
        m: _Array,
        applied: _Array,
        *,
        duration: float,
        damping: float,
        g_factor: float,
        step_error: float,
        max_steps: int,
    ) -> Iterator[Moment]:
        """See `Solver`: a moment each picosecond; time is stretched to the gyromagnetic ratio that is wanted."""
        terms = list(self._begin(m, applied).values())
        self._state.material["alpha"] = damping
        llg = self._mn.LLGSolver(terms, atol=step_error, rtol=step_error)
        stretch = float(self._mn.constants.gamma) / MU0 / (g_factor * GYROMAGNETIC)
        n = max(1, round(duration / self._FOLLOW))
        if n > max_steps:
            raise AppFailed(
                f"{n} stretches of {self._FOLLOW * 1e12:g} ps are more than max_steps={max_steps}.",
                name="TooManySteps",
                repair="more max_steps, or a shorter duration",
            )
        yield Moment(0.0, self._now(), 0.0, 0)
        for i in range(1, n + 1):
            llg.step(self._state, duration / n / stretch)
            self._outside()
            now = self._now()
            length = np.sqrt((now**2).sum(axis=0))[self._body.inside]
            off = float(np.abs(length - 1.0).max())
            if not np.isfinite(off):
                raise AppFailed("the magnetisation of magnum.np is no number.", name="Unstable")
            yield Moment(i * duration / n, now, off, 0)

    def energies(self, m: _Array, applied: _Array) -> Energies:
        """See `Solver`."""
        terms = self._begin(m, applied)
        volume = self._body.volume
        found = {name: float(term.E(self._state)) / volume for name, term in terms.items()}
        # Its anisotropy is counted from the hard direction.
        return Energies(
            demagnetization=found["demagnetization"],
            exchange=found["exchange"],
            anisotropy=found.get("anisotropy", 0.0) + self._k1,
            zeeman=found["zeeman"],
        )
