"""Phonons: a crystal, relaxed, in supercells with displaced atoms."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcagent.apps.chain import artifacts_of, chain, metrics_of
from hpcagent.apps.packages import needs
from hpcagent.apps.run import Outcome, Run
from hpcagent.apps.structures import total_charge
from hpcagent.errors import AppFailed
from hpcagent.model.parameter import Choice, Float, Int, Text
from hpcagent.science.analysis.phonons import PHONON_METRICS, PHONONS, displaced_supercells, phonon_properties
from hpcagent.science.chains.levels import fit_for_forces, fixed_mesh, own_settings
from hpcagent.science.chains.vibrations import TOLERANCE, structure_at
from hpcagent.science.dft.energy import dft_energy
from hpcagent.science.dft.relax import RELAXATION, dft_relax
from hpcagent.science.engines.base import LEVEL
from hpcagent.science.engines.task import FILES, RANKS, SETTINGS
from hpcagent.science.structures.crystal import LATTICES, build_crystal

if TYPE_CHECKING:
    from ase import Atoms

__all__ = ["crystal_phonons", "phonons"]

SUPERCELL = {
    "supercell": Int(0, 20, default=0, description="cells along each vector; 0: by repeat or length"),
    "repeat": Text(default="", description="cells along each vector itself, 4x4x2; empty: by supercell or length"),
    "length": Float(
        1.0, 200.0, unit="angstrom", default=10.0, description="so long is each vector of the supercell at least"
    ),
    "relax": Choice(
        "cell",
        "atoms",
        "none",
        default="cell",
        description="what is relaxed first; cell: its shape and volume, too",
    ),
    "fmax": Float(
        1e-5, 1.0, unit="eV/angstrom", log=True, default=0.001, description="largest force when it is relaxed"
    ),
    "max_steps": RELAXATION["max_steps"],
}


@chain(
    name="phonons",
    version="1.0.0",
    inputs=("structure",),
    parameters=LEVEL | RANKS | TOLERANCE | SUPERCELL | PHONONS,
    metrics=PHONON_METRICS,
    settings=SETTINGS,
    files=FILES,
    estimated_runtime_s=600.0,
    seeded=False,
    failure_modes=(*phonon_properties.contract.failure_modes, "NotRelaxed", "NotConverged", "Charged"),
    vary=("length",),
)
def phonons(
    structure: Any,
    *,
    supercell: int,
    repeat: str,
    length: float,
    relax: str,
    fmax: float,
    max_steps: int,
    run: Run,
    **params: Any,
) -> Outcome:
    """Phonons of a crystal: relaxed, displaced in supercells, bands, states and thermal properties by phonopy.

    phonopy finds the fewest displacements that the symmetry needs; each is a run of its own, all start at once,
    and another temperature, path or mesh of q-points repeats none. Supercells have the k-points of the relaxed
    cell, divided by its repetition and rounded up. Displacements, symmetry and sums are as in
    `phonon_properties`. A supercell is large enough when a larger one changes nothing: vary `length`, or
    `supercell`.
    """
    needs("phonopy", "pip install 'hpcagent[phonons]'")
    level, notes = fit_for_forces(params)
    level = fixed_mesh(structure, level)
    settings = own_settings(run.settings)
    energy = dft_energy.with_settings(**settings)
    if relax == "none":
        at_rest = energy(structure, forces="yes", **level)
    else:
        cell = "shape_and_volume" if relax == "cell" else "fixed"
        at_rest = dft_relax.with_settings(**settings)(
            structure, cell=cell, fmax=fmax, max_steps=max_steps, **level
        )
    rest = structure_at(at_rest)
    if total_charge(rest) or level.get("charge"):
        raise AppFailed("phonons of charged cells are not defined here.", kind="contract", name="Charged")
    if relax == "none":
        left = float(np.linalg.norm(rest.get_forces(), axis=1).max())
        if left > fmax:
            notes.append(
                f"not relaxed: forces up to {left:.3g} eV/angstrom are left (fmax {fmax:g}), so this is no "
                "minimum and its frequencies are not those of the crystal"
            )
    cells = _cells(rest, supercell, repeat, length)
    _, wanted = displaced_supercells(rest, cells, params["displacement"], params["symprec"])
    inside = dict(level)
    if level.get("mesh"):
        numbers = zip(level["mesh"].split("x"), cells.split("x"), strict=True)
        inside["mesh"] = "x".join(str(math.ceil(int(k) / int(n))) for k, n in numbers)
        notes.append(f"k-points {level['mesh']} of the cell, {inside['mesh']} of the {cells} supercell")
    runs = [energy(one, forces="yes", **inside) for one in wanted]
    found = phonon_properties(at_rest, *runs, supercell=cells, **{name: params[name] for name in PHONONS})
    return Outcome(
        metrics=dict(metrics_of(found)),
        artifacts=artifacts_of(
            run, structure=at_rest, phonopy=found, bands=found, dos=found, thermal=found, plot=found
        ),
        notes=(f"supercell {cells}", *notes),
    )


@chain(
    name="crystal_phonons",
    version="1.0.0",
    parameters={
        "name": Text(default="Al", description="element or formula"),
        "crystal": Choice(*LATTICES, default="auto", description="lattice; auto: the element's own"),
        "a": Float(0.0, 100.0, unit="angstrom", default=0.0, description="lattice constant to start at; 0: ASE's"),
    }
    | LEVEL
    | RANKS
    | TOLERANCE
    | SUPERCELL
    | PHONONS,
    metrics=PHONON_METRICS,
    settings=SETTINGS,
    files=FILES,
    estimated_runtime_s=600.0,
    seeded=False,
    failure_modes=("BadLattice", *phonons.contract.failure_modes),
    vary=("length",),
)
def crystal_phonons(name: str, crystal: str, a: float, run: Run, **params: Any) -> Any:
    """Phonons of a crystal from its name: built, relaxed, displaced in supercells; see `phonons`."""
    built = build_crystal(name=name, lattice=crystal, a=a, cubic="no")
    return phonons.with_settings(**own_settings(run.settings))(built, **params)


def _cells(rest: Atoms, supercell: int, repeat: str, length: float) -> str:
    """How often the cell is repeated along each vector, as 4x4x2."""
    if supercell and repeat:
        raise AppFailed(
            f"supercell={supercell} and repeat={repeat!r} both say how large the supercell is.",
            kind="contract",
            name="BadSupercell",
            repair="leave one out",
        )
    if repeat:
        return repeat
    if supercell:
        return f"{supercell}x{supercell}x{supercell}"
    return "x".join(str(max(1, math.ceil(length / float(side) - 1e-6))) for side in rest.cell.lengths())
