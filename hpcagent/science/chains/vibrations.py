"""Vibrations: a structure, relaxed, and each of its atoms displaced both ways in x, y and z."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcagent.apps.chain import artifacts_of, chain, metrics_of
from hpcagent.apps.missing import brought
from hpcagent.apps.run import Outcome, Run
from hpcagent.apps.structures import structure_of
from hpcagent.errors import AppFailed
from hpcagent.model.parameter import Choice, Float, Text
from hpcagent.science.analysis.free_energies import THERMO, check_spin
from hpcagent.science.analysis.vibrations import VIBRATIONS, vibration_modes
from hpcagent.science.chains.levels import fit_for_forces, own_settings
from hpcagent.science.dft.energy import dft_energy
from hpcagent.science.dft.relax import RELAXATION, dft_relax
from hpcagent.science.engines.base import LEVEL
from hpcagent.science.engines.task import FILES, RANKS, SETTINGS
from hpcagent.science.structures.molecule import build_molecule

if TYPE_CHECKING:
    from ase import Atoms

    from hpcagent.model.records import Result

__all__ = ["DISPLACED", "TOLERANCE", "molecule_vibrations", "moved_atoms", "structure_at", "vibrations"]

TOLERANCE = {
    "tolerance": Float(
        0.0,
        1e-2,
        unit="eV",
        default=0.0,
        description="largest change of the energy in the last SCF step; 0: what small forces need, by engine",
    )
}
DISPLACED = {
    "atoms": Text(
        default="",
        description="which atoms vibrate: numbers from 0 (0-2,5), elements (O,H), free (not fixed) or all; "
        "empty: all of a molecule, the adsorbate (tag 0) on a slab, else those not fixed",
    ),
    "displacement": Float(
        1e-4, 0.2, unit="angstrom", log=True, default=0.01, description="of each atom, both ways, in x, y and z"
    ),
    "relax": Choice("yes", "no", default="yes", description="whether the structure is relaxed first"),
    "fmax": Float(
        1e-5, 1.0, unit="eV/angstrom", log=True, default=0.005, description="largest force when it is relaxed"
    ),
    "max_steps": RELAXATION["max_steps"],
}


@chain(
    name="vibrations",
    version="1.0.0",
    inputs=("structure",),
    parameters=LEVEL | RANKS | TOLERANCE | DISPLACED | THERMO,
    metrics=VIBRATIONS,
    settings=SETTINGS,
    files=FILES,
    estimated_runtime_s=300.0,
    seeded=False,
    failure_modes=(*vibration_modes.contract.failure_modes, "BadAtoms", "NotRelaxed", "NotConverged"),
)
def vibrations(
    structure: Any,
    *,
    atoms: str,
    displacement: float,
    relax: str,
    fmax: float,
    max_steps: int,
    run: Run,
    **params: Any,
) -> Outcome:
    """Harmonic frequencies, zero-point energy and free energies of a molecule, or of an adsorbate on a held slab.

    The structure is relaxed, then six runs for each atom that vibrates give the forces, all at once; they are runs
    of their own, so another temperature, pressure or model repeats none. The frequencies are as good as the
    forces, so an SCF is converged further than for energies.
    """
    check_spin(params["spin"])
    level, notes = fit_for_forces(params)
    settings = own_settings(run.settings)
    energy = dft_energy.with_settings(**settings)
    if relax == "yes":
        at_rest = dft_relax.with_settings(**settings)(structure, fmax=fmax, max_steps=max_steps, **level)
    else:
        at_rest = energy(structure, **level)
    rest = structure_at(at_rest)
    moving = moved_atoms(rest, atoms)
    runs = [energy(one, forces="yes", **level) for one in _displaced(rest, moving, displacement)]
    found = vibration_modes(at_rest, *runs, **{name: params[name] for name in THERMO})
    return Outcome(
        metrics=dict(metrics_of(found)),
        artifacts=artifacts_of(run, structure=at_rest, frequencies=found, modes=found, plot=found),
        notes=tuple(notes),
    )


@chain(
    name="molecule_vibrations",
    version="1.0.0",
    parameters={"name": Text(default="H2O", description="atom or molecule of ase.build.molecule")}
    | LEVEL
    | RANKS
    | TOLERANCE
    | {name: p for name, p in DISPLACED.items() if name not in ("atoms", "relax")}
    | THERMO,
    metrics=VIBRATIONS,
    settings=SETTINGS,
    files=FILES,
    estimated_runtime_s=300.0,
    seeded=False,
    failure_modes=("BadMolecule", *vibrations.contract.failure_modes),
    vary=("name", "temperature"),
)
def molecule_vibrations(name: str, run: Run, **params: Any) -> Any:
    """A molecule from its name: relaxed, its frequencies, zero-point energy and free energy as an ideal gas."""
    built = build_molecule(name=name)
    return vibrations.with_settings(**own_settings(run.settings))(built, **params)


def structure_at(part: Any) -> Atoms:
    """The structure that an inner run has made, waited for.

    Raises:
        AppFailed: It failed.
    """
    metrics_of(part)
    result: Result = part.result()
    return structure_of(brought(result, "structure"))


def moved_atoms(atoms: Atoms, wanted: str) -> list[int]:
    """Numbers of the atoms that are to vibrate.

    Args:
        atoms: The structure.
        wanted: See `DISPLACED["atoms"]`.

    Raises:
        AppFailed: `BadAtoms`.

    Example:
        >>> from ase.build import molecule
        >>> [moved_atoms(molecule("H2O"), wanted) for wanted in ("", "1-2", "O")]
        [[0, 1, 2], [1, 2], [0]]
    """
    every = list(range(len(atoms)))
    held = {int(i) for c in atoms.constraints if hasattr(c, "get_indices") for i in c.get_indices()}
    free = [i for i in every if i not in held]
    tags = atoms.get_tags().tolist()
    adsorbed = [i for i in every if tags[i] == 0]
    if wanted.strip() == "all":
        chosen = every
    elif wanted.strip() == "free":
        chosen = free
    elif wanted.strip():
        chosen = _numbered(atoms, wanted)
    elif not atoms.pbc.any():
        chosen = free
    elif any(tags) and adsorbed:
        chosen = adsorbed
    else:
        chosen = free
    if not chosen:
        raise AppFailed(
            f"atoms={wanted!r} of {atoms.symbols} are none: {len(held)} of {len(atoms)} are fixed.",
            kind="contract",
            name="BadAtoms",
            repair="name atoms that may move",
        )
    return chosen


def _numbered(atoms: Atoms, wanted: str) -> list[int]:
    chosen: set[int] = set()
    for word in re.split(r"[\s,]+", wanted.strip()):
        span = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", word)
        some = (
            set(range(int(span[1]), int(span[2] or span[1]) + 1))
            if span
            else {i for i, s in enumerate(atoms.get_chemical_symbols()) if s == word}
        )
        if not some or max(some) >= len(atoms):
            raise AppFailed(
                f"atoms={wanted!r}: {word!r} is no atom of {atoms.symbols}, which has the numbers 0 to "
                f"{len(atoms) - 1}.",
                kind="contract",
                name="BadAtoms",
                repair="numbers and ranges (0-2,5), elements (O,H), 'free' or 'all'",
            )
        chosen |= some
    return sorted(chosen)


def _displaced(rest: Atoms, moving: list[int], step: float) -> list[Atoms]:
    found = []
    for atom in moving:
        for axis in np.eye(3):
            for sign in (1, -1):
                one = rest.copy()
                one.calc = None
                one.positions[atom] += sign * step * axis
                found.append(one)
    return found
