"""Energies of elements, which formation energies refer to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcagent.apps.structures import Given, structure_of
from hpcagent.model.parameter import Float, Parameter
from hpcagent.science.engines.registry import engine
from hpcagent.science.structures.crystal import build_crystal
from hpcagent.science.structures.molecule import build_molecule

__all__ = ["BOX", "GASES", "atoms_of", "reference"]

GASES = {"H": ("H2", 0.0), "N": ("N2", 0.0), "O": ("O2", 1.0), "F": ("F2", 0.0), "Cl": ("Cl2", 0.0)}
"""Elements whose reference is a molecule, and the initial moment of each of its atoms in Bohr magnetons."""

BOX: dict[str, Parameter] = {
    "box": Float(2.0, 50.0, unit="angstrom", default=5.0, description="empty space around gas molecules")
}


def reference(element: str, relaxed: Any, level: Mapping[str, Any], *, box: float) -> Any:
    """The run whose `energy_per_atom` an element's energy is: its crystal, relaxed with its cell, or its gas.

    Args:
        element: Its symbol.
        relaxed: The app `dft_relax` with the settings of the chain.
        level: Parameters of the app: the level of theory, `fmax`, `max_steps`.
        box: Empty space around a molecule, in angstrom.
    """
    if element in GASES:
        molecule, magmom = GASES[element]
        spin = {"magmom": magmom} if "magmom" in engine(level["engine"]).takes else {}
        return relaxed(build_molecule(name=molecule, vacuum=box), **({**level} | spin))
    crystal = build_crystal(name=element, cubic="no")
    return relaxed(crystal, cell="shape_and_volume", **level)


def atoms_of(structure: Any) -> Any:
    """The structure that an input of a chain is, waited for."""
    fields = structure.fields if isinstance(structure, Given) else structure
    if not isinstance(fields, dict) and hasattr(fields, "result"):
        fields = fields.result()
    if hasattr(fields, "model_dump"):
        fields = fields.model_dump(mode="json")
    return structure_of(fields)
