"""By which of its atoms a molecule binds to a metal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcagent.errors import AppFailed
from hpcagent.model.parameter import Int

if TYPE_CHECKING:
    from ase import Atoms

__all__ = ["ATOM", "binding_atom"]

ATOM = Int(
    -1,
    10_000,
    default=-1,
    description="index of the adsorbate's atom that binds; -1: the one known to (C of CO, N of NO, O of CH3OH)",
)

# By Hill formula, on transition metals: A. Gross, Theoretical Surface Science (2009); lone pairs where not there.
_KNOWN = {
    "CO": "C", "CN": "C", "CH": "C", "CH2": "C", "CH3": "C", "CHO": "C", "CHO2": "O", "CS": "C",
    "NO": "N", "HN": "N", "H2N": "N", "H3N": "N", "HNO": "N", "CH5N": "N", "C5H5N": "N", "C2H3N": "N",
    "HO": "O", "H2O": "O", "CH3O": "O", "CH4O": "O", "C2H5O": "O", "HO2": "O",
    "HS": "S", "H2S": "S", "O2S": "S", "CH3S": "S", "CH4S": "S", "H3P": "P",
}  # fmt: skip


def binding_atom(molecule: Atoms, atom: int = -1) -> tuple[int, tuple[str, ...]]:
    """Index of the atom that binds, and what is to be said of it.

    Args:
        molecule: The adsorbate.
        atom: Its index; -1: the one that is known to bind, else the first, which a note says.

    Raises:
        AppFailed: `NoSuchAtom`.

    Example:
        >>> from ase.build import molecule
        >>> co = molecule("CO")
        >>> str(co.symbols), binding_atom(co)
        ('OC', (1, ('bound by C (atom 1 of CO)',)))
    """
    if atom >= len(molecule):
        raise AppFailed(
            f"atom={atom}, but the adsorbate has {len(molecule)} atoms, counted from 0.",
            kind="contract",
            name="NoSuchAtom",
        )
    symbols, formula = molecule.get_chemical_symbols(), molecule.get_chemical_formula("hill")
    if len(set(symbols)) == 1:
        return max(atom, 0), ()
    known = _KNOWN.get(formula)
    if atom >= 0:
        found, why = atom, ""
    elif known:
        found, why = symbols.index(known), ""
    else:
        found, why = 0, ", its first: which one binds is not known here; say it with atom"
    return found, (f"bound by {symbols[found]} (atom {found} of {formula}{why})",)
