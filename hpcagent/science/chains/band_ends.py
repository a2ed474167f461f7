"""The two ends of a band: what they hold, whether atoms were exchanged, whether they are two minima at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hpcagent.errors import AppFailed
from hpcagent.science.chains.references import atoms_of

if TYPE_CHECKING:
    from ase import Atoms

__all__ = ["alike_held", "check_two_minima", "exchanged"]

# Relaxed ends nearer than this, and than half of what they were apart, are one minimum, in angstrom.
_ONE_PLACE = 0.2
# Atoms of one element whose ways add up to this much more than they must, in angstrom.
_DETOUR = 0.5


def alike_held(initial: Any, final: Any) -> tuple[Any, Any, tuple[str, ...]]:
    """Both ends with the same atoms held: those of the one end that holds some, if the other says nothing.

    Raises:
        AppFailed: `MixedRuns`: they hold different atoms.
    """
    first, last = atoms_of(initial), atoms_of(final)
    if len(first) != len(last):
        return initial, final, ()  # refused where both are put side by side
    held = [sorted(repr(c.todict()) for c in atoms.constraints) for atoms in (first, last)]
    if held[0] == held[1]:
        return initial, final, ()
    if held[0] and held[1]:
        raise AppFailed(
            "the two ends hold different atoms, or hold them in other ways.",
            kind="contract",
            name="MixedRuns",
            repair="the same constraints in both",
        )
    from hpcagent.apps.structures import given

    silent, speaks = (last, first) if held[0] else (first, last)
    silent.set_constraint(speaks.constraints)
    which = "final" if held[0] else "initial"
    note = f"the {which} end held no atoms: it was given the constraints of the other"
    taken = given(silent)
    return (initial, taken, (note,)) if held[0] else (taken, final, (note,))


def exchanged(first: Atoms, last: Atoms) -> tuple[str, ...]:
    """Says which atoms go farther than atoms of their elements must: in the final structure they changed places.

    Args:
        first: The first image.
        last: The last, each atom where it is nearest to the first.

    Example:
        >>> from ase import Atoms
        >>> one = Atoms("Al2", [(0, 0, 0), (3, 0, 0)])
        >>> exchanged(one, one[[1, 0]])[0][:40]
        'atoms 0, 1 (Al) have changed places: if '
    """
    from ase.geometry import get_distances
    from scipy.optimize import linear_sum_assignment

    notes = []
    for element in sorted(set(first.get_chemical_symbols())):
        own = np.flatnonzero(first.symbols == element)
        ways = get_distances(first.positions[own], last.positions[own], cell=first.cell, pbc=first.pbc)[1]
        rows, columns = linear_sum_assignment(ways**2)
        least, given = float(ways[rows, columns].sum()), float(np.trace(ways))
        if given > least + _DETOUR and (rows != columns).any():
            swapped = own[rows[rows != columns]]
            notes.append(
                f"atoms {', '.join(map(str, swapped))} ({element}) have changed places: if that is not meant, put "
                f"them in the order of the other end, where all {element} go {least:.2f} angstrom, not {given:.2f}"
            )
    return tuple(notes)


def check_two_minima(given: tuple[Atoms, Atoms], relaxed: tuple[Atoms, Atoms]) -> None:
    """Refuse a band whose ends relaxed into one minimum.

    Args:
        given: The ends as they were given.
        relaxed: The relaxed ones, each atom of the last where it is nearest to the first.

    Raises:
        AppFailed: `SameMinimum`.
    """
    from ase.geometry import find_mic

    def apart(one: Atoms, other: Atoms) -> float:
        return float(find_mic(other.positions - one.positions, one.cell, one.pbc)[1].max())

    before, now = apart(*given), apart(*relaxed)
    if now < min(_ONE_PLACE, before / 2):
        raise AppFailed(
            f"both ends relaxed into one minimum: no atom is more than {now:.3g} angstrom from where it is in the "
            f"other, before it was {before:.3g}. There is no barrier between them.",
            kind="contract",
            name="SameMinimum",
            repair="an end that is a minimum of its own, or relax_ends = 'no'",
        )
