"""Elastic constants: the relaxed cell, strained both ways in each direction."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hpcagent.apps.chain import artifacts_of, chain, metrics_of
from hpcagent.apps.missing import brought
from hpcagent.apps.run import Outcome, Run
from hpcagent.apps.structures import structure_of
from hpcagent.model.parameter import Choice, Float
from hpcagent.model.records import Result
from hpcagent.science.analysis.elastic import elastic_constants
from hpcagent.science.analysis.symmetry import crystal_symmetry
from hpcagent.science.chains.levels import FORCE_TOLERANCE, fit_for_forces, fixed_mesh, own_settings
from hpcagent.science.dft.energy import dft_energy
from hpcagent.science.dft.relax import RELAXATION, dft_relax
from hpcagent.science.engines.base import LEVEL
from hpcagent.science.engines.task import FILES, RANKS, SETTINGS
from hpcagent.science.structures.deform import deform

__all__ = ["STRESS_TOLERANCE", "elastic"]

STRESS_TOLERANCE = FORCE_TOLERANCE

# Force on an atom, in eV/angstrom, that is little beside what a strain of 1 makes: a strain e moves atoms by about
# e times 1 angstrom against springs of 1 to 10 eV/angstrom^2, so 0.05 e is one to some percent of its forces.
_FORCE_OF_STRAIN = 0.05
_SMALLEST_FMAX = 1e-5  # what a relaxation takes


@chain(
    name="elastic",
    version="2.1.0",
    inputs=("structure",),
    parameters=LEVEL
    | RANKS
    | {
        "symmetry": Choice(
            "auto",
            "cubic",
            "none",
            default="auto",
            description="of the crystal; auto: found, with the strains it needs; cubic: refused if not; none: 12",
        ),
        "tolerance": Float(
            0.0,
            1e-2,
            unit="eV",
            default=0.0,
            description="largest change of the energy in the last SCF step; 0: what stresses need, by engine",
        ),
        "k_check": Choice(
            "yes",
            "no",
            default="yes",
            description="repeat the stresses with 1.5 times as many k-points along each vector, for the errors",
        ),
        "strain": Float(1e-5, 0.05, log=True, default=0.005, description="largest strain, in both directions"),
        "fmax": Float(
            0.0,
            1.0,
            unit="eV/angstrom",
            default=0.0,
            description="largest force on an atom when it counts as relaxed; 0: 0.05 times the strain",
        ),
        "max_steps": RELAXATION["max_steps"],
    },
    metrics={m.name: m for m in elastic_constants.contract.metrics},
    settings=SETTINGS,
    files=FILES,
    estimated_runtime_s=600.0,
    seeded=False,
    failure_modes=(*elastic_constants.contract.failure_modes, "NotRelaxed", "NotConverged"),
)
def elastic(
    structure: Any,
    *,
    symmetry: str,
    k_check: str,
    strain: float,
    fmax: float,
    max_steps: int,
    run: Run,
    **params: Any,
) -> Outcome:
    """Elastic constants of a crystal: relaxed with its cell, strained, atoms relaxed in each cell, fitted.

    Needs an engine with stresses. The strains are those that the crystal's symmetry needs, each with both
    signs: e1 and e4 for a cubic crystal along its axes. All cells have the k-points of the structure that was
    given. A strain makes small forces, and atoms that are left where it puts them give constants that are too
    high, so `fmax` goes with the strain. A stress is wrong in first order of what
    the SCF leaves, an energy in second, so the SCF goes further than for energies. The stated errors are the
    scatter about the fit and, with `k_check`, the change with a
    mesh of 1.5 times as many points along each vector; cutoff and functional are not in them.
    """
    level, notes = fit_for_forces(params)
    fmax = fmax or max(_FORCE_OF_STRAIN * strain, _SMALLEST_FMAX)
    level = fixed_mesh(structure, level)
    relaxed = dft_relax.with_settings(**own_settings(run.settings))
    ways: dict[str, Any] = {"fmax": fmax, "max_steps": max_steps}
    at_rest = relaxed(structure, cell="shape_and_volume", **level, **ways)
    strains: list[dict[str, Any]] = [
        {name: sign * strain} for name in _strains(at_rest, symmetry) for sign in (-1, 1)
    ]
    strained = [relaxed(deform(at_rest, **e), cell="fixed", **level, **ways) for e in strains]
    fit = elastic_constants(at_rest, *strained, symmetry=symmetry)
    notes.append(_left([metrics_of(cell) for cell in (at_rest, *strained)], fmax, strain))
    denser = None
    if level.get("mesh") and k_check == "yes":
        finer = fixed_mesh(structure, level, denser=1.5)
        stress = dft_energy.with_settings(**own_settings(run.settings))
        denser = elastic_constants(*(stress(cell, **finer) for cell in (at_rest, *strained)), symmetry=symmetry)
        notes.append(f"errors hold the change from {level['mesh']} to {finer['mesh']} k-points")
    elif level.get("mesh"):
        notes.append(f"errors leave out that of the k-points ({level['mesh']}): k_check was no")
    values = metrics_of(fit)
    return Outcome(
        metrics=dict(values),
        uncertainty=_errors(fit.result(), None if denser is None else metrics_of(denser)),
        artifacts=artifacts_of(run, structure=at_rest, elastic=fit),
        notes=tuple(notes),
    )


def _left(cells: list[dict[str, float]], fmax: float, strain: float) -> str:
    """What is to be said of the forces that are left."""
    left = max(cell["max_force"] for cell in cells)
    said = f"atoms relaxed to forces below {fmax:.2g} eV/angstrom in each cell ({left:.2g} are left)"
    if left <= 2 * _FORCE_OF_STRAIN * strain:
        return said
    return (
        f"{said}, which is much for strains of {strain:g}: where atoms have room to move, the constants lie "
        "towards those with clamped atoms; leave fmax out"
    )


def _strains(at_rest: Any, symmetry: str) -> tuple[str, ...]:
    """The fewest of the six strains, in their order, that tell the constants apart."""
    every = tuple(f"e{i}" for i in range(1, 7))
    if symmetry == "none":
        return every
    metrics_of(at_rest)  # it did not fail
    result = at_rest.result()
    found = crystal_symmetry(structure_of(brought(result, "structure")))
    chosen: list[int] = []
    rank = 0
    for i in range(6):
        # Column i of each allowed tensor is the stress of the strain i.
        columns = found.basis[:, :, [*chosen, i]].reshape(len(found.basis), -1)
        more = int(np.linalg.matrix_rank(columns, tol=1e-2))
        if more > rank:
            chosen, rank = [*chosen, i], more
    return tuple(every[i] for i in chosen)


def _errors(fit: Result, denser: dict[str, float] | None) -> dict[str, float]:
    """Scatter about the fit, and the change with the denser mesh, as one standard error; none without scatter."""
    if denser is None:
        return dict(fit.uncertainty)
    return {
        name: math.hypot(error, fit[name] - denser[name])
        for name, error in fit.uncertainty.items()
        if name in denser
    }
