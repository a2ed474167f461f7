"""Equation of state: energies at several volumes, all at once, and the fit."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcagent.apps.chain import artifacts_of, chain, metrics_of
from hpcagent.apps.run import Outcome, Run
from hpcagent.model.parameter import Choice, Float, Int, Text
from hpcagent.science.analysis.eos import LATTICES, eos_fit
from hpcagent.science.chains.levels import fixed_mesh, level_of, own_settings
from hpcagent.science.dft.energy import dft_energy
from hpcagent.science.engines.base import LEVEL
from hpcagent.science.engines.task import FILES, RANKS, SETTINGS
from hpcagent.science.plots import plot_eos
from hpcagent.science.structures.crystal import build_crystal
from hpcagent.science.structures.deform import deform

__all__ = ["dft_eos", "eos"]

VOLUMES = {
    "points": Int(5, 51, default=7, description="volumes at which the energy is computed"),
    "span": Float(
        0.005, 0.5, default=0.06, description="largest and smallest volume: 1 + span, 1 - span times the first"
    ),
}
METRICS = {m.name: m for m in eos_fit.contract.metrics}


@chain(
    name="dft_eos",
    version="1.0.0",
    inputs=("structure",),
    parameters=LEVEL
    | RANKS
    | VOLUMES
    | {"lattice": Choice("none", *LATTICES, default="none", description="cubic lattice whose constant is wanted")},
    metrics=METRICS,
    settings=SETTINGS,
    files=FILES,
    estimated_runtime_s=120.0,
    seeded=False,
    failure_modes=eos_fit.contract.failure_modes,
)
def dft_eos(structure: Any, *, points: int, span: float, lattice: str, run: Run, **params: Any) -> Outcome:
    """The equation of state of a crystal: one `dft_energy` at each volume, in parallel, and a Birch-Murnaghan fit.

    The cell keeps its shape and the atoms their relative positions: for a cubic crystal without inner degrees of
    freedom that is exact, others need a relaxation at each volume. All have the mesh of k-points of the structure
    that was given.

    Example:
        >>> # doctest: +SKIP
        >>> with open_site("laptop"):
        ...     dft_eos(bulk("Cu"), engine="emt", lattice="fcc").result()["a0"]
        3.59
    """
    energy = dft_energy.with_settings(**own_settings(run.settings))
    ratios = 1 + span * np.linspace(-1, 1, points)
    level = fixed_mesh(structure, level_of(params))
    runs = [energy(deform(structure, volume_ratio=round(float(r), 9)), forces="no", **level) for r in ratios]
    return _fitted(runs, lattice, run)


def _fitted(runs: list[Any], lattice: str, run: Run) -> Outcome:
    fit = eos_fit(*runs, lattice=lattice)
    drawn = plot_eos(fit)
    metrics: dict[str, Any] = {name: fit[name] for name in metrics_of(fit)}
    return Outcome(
        metrics=metrics,
        artifacts=artifacts_of(run, eos=fit, plot=drawn),
    )


@chain(
    name="eos",
    version="1.0.0",
    parameters={
        "name": Text(default="Si", description="element or formula"),
        "crystal": Choice("auto", *LATTICES, default="auto", description="lattice; auto: the element's own"),
        "a": Float(0.0, 100.0, unit="angstrom", default=0.0, description="lattice constant to start at; 0: ASE's"),
        "cell": Choice("primitive", "cubic", default="primitive", description="the cell that is computed"),
    }
    | LEVEL
    | RANKS
    | VOLUMES,
    metrics=METRICS,
    settings=SETTINGS,
    files=FILES,
    estimated_runtime_s=120.0,
    seeded=False,
    failure_modes=("BadLattice", *eos_fit.contract.failure_modes),
    vary=("ecut", "kpts"),
)
def eos(name: str, crystal: str, a: float, cell: str, run: Run, **params: Any) -> Any:
    """Lattice constant and bulk modulus of a cubic crystal: built, strained, computed at each volume, fitted."""
    built = build_crystal(name=name, lattice=crystal, a=a, cubic="yes" if cell == "cubic" else "no")
    lattice = element_lattice(name) if crystal == "auto" else crystal
    return dft_eos.with_settings(**own_settings(run.settings))(built, lattice=lattice, **params)


def element_lattice(name: str) -> str:
    """The cubic lattice of an element as ASE knows it; `none` for any other, and for compounds."""
    from ase.data import atomic_numbers, reference_states

    state = reference_states[atomic_numbers[name]] if name in atomic_numbers else None
    found = state["symmetry"] if state else "none"
    return found if found in LATTICES else "none"
