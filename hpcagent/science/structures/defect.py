"""A point defect in a supercell: an atom taken out, or replaced by another."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from hpcagent.apps.decorator import app
from hpcagent.apps.packages import needs
from hpcagent.apps.run import Outcome, Run
from hpcagent.apps.structures import read_structure, write_structure
from hpcagent.errors import AppFailed, nearest
from hpcagent.model.contract import Metric
from hpcagent.model.parameter import Choice, Int, Text
from hpcagent.science.structures.crystal import SIZE, size
from hpcagent.science.structures.oriented import SYMPREC, asked

if TYPE_CHECKING:
    from ase import Atoms

__all__ = ["DEFECT", "check_element", "point_defect", "sites_of"]

DEFECT = {
    "element": Text(default="", description="element of the atom that is taken out; empty: any"),
    "site": Int(0, 10_000, default=0, description="which of the distinct atoms of that element, from 0"),
}
"""Parameters that say which atom is meant."""


@app(
    name="point_defect",
    version="1.0.0",
    inputs=("structure",),
    parameters=DEFECT
    | {
        "kind": Choice(
            "vacancy",
            "substitution",
            "none",
            default="vacancy",
            description="none: the supercell without a defect",
        ),
        "replacement": Text(default="", description="element that takes its place in a substitution"),
        "repeat": Int(
            1,
            100,
            default=2,
            description="cells along the longest vector; along others as many as are as long",
        ),
    },
    metrics=SIZE
    | {
        "n_sites": Metric(name="n_sites", unit="1", description="distinct atoms of that element"),
        "alike": Metric(name="alike", unit="1", description="atoms of the input that are like this one"),
        "distance": Metric(
            name="distance", unit="angstrom", description="shortest distance of the defect from its own image"
        ),
    },
    failure_modes=("NoCell", "NoSuchAtom", "NoSymmetry", "NoStructure", "MissingFile", "NoEngine"),
    estimated_runtime_s=0.2,
    seeded=False,
)
def point_defect(run: Run, *, element: str, site: int, kind: str, replacement: str, repeat: int) -> Outcome:
    """A supercell with one atom taken out, or replaced; the distinct atoms of the crystal are found by spglib.

    The supercell has the shape of the input's cell, stretched to about the same width along each vector.
    """
    needs("ase", "pip install 'hpcagent[ase]'")
    from ase.geometry import minkowski_reduce

    host = read_structure(run)
    found = sites_of(host, element)
    if site >= len(found):
        raise AppFailed(
            f"site={site}: the crystal has {len(found)} distinct atoms"
            f"{f' of {element}' if element else ''}, counted from 0.",
            kind="contract",
            name="NoSuchAtom",
        )
    if kind == "substitution":
        check_element(replacement)
    alike = found[site]
    cells = repeats(host, repeat)
    atoms = host * cells
    atoms.set_constraint()
    taken = str(host.symbols[alike[0]])
    notes: tuple[str, ...] = ()
    if kind == "vacancy":
        del atoms[alike[0]]
        notes = (f"vacancy of {taken}, distinct atom {site}",)
    elif kind == "substitution":
        atoms.symbols[alike[0]] = replacement
        notes = (f"{replacement} in place of {taken}, distinct atom {site}",)
    if not len(atoms):
        raise AppFailed(
            "nothing is left of a cell of one atom.", kind="contract", name="NoSuchAtom", repair="a larger repeat"
        )
    reduced, _ = minkowski_reduce(atoms.cell.array, pbc=True)
    metrics = {
        "n_sites": float(len(found)),
        "alike": float(len(alike)),
        "distance": float(min(math.hypot(*vector) for vector in reduced)),
    }
    return Outcome(metrics=size(atoms) | metrics, artifacts=write_structure(run, atoms), notes=notes)


def sites_of(host: Atoms, element: str = "") -> list[list[int]]:
    """Indices of the atoms of a crystal, those together that its symmetry maps on each other.

    Raises:
        AppFailed: `NoCell`; `NoSuchAtom`: it has none of that element; `NoSymmetry`, `NoEngine`.

    Example:
        >>> from ase.build import bulk
        >>> sites_of(bulk("Cu", cubic=True))
        [[0, 1, 2, 3]]
    """
    spglib = needs("spglib", "pip install 'hpcagent[dft]'")
    if not host.pbc.all() or host.cell.rank < 3:
        raise AppFailed(
            f"{host.symbols} is no crystal: a supercell needs a structure that is periodic in three directions.",
            kind="contract",
            name="NoCell",
        )
    symbols = host.get_chemical_symbols()
    if element and element not in symbols:
        raise AppFailed(
            f"element={element!r} is not in {host.symbols}; {nearest(element, sorted(set(symbols)))}",
            kind="contract",
            name="NoSuchAtom",
        )
    cell = (host.cell.array, host.get_scaled_positions(), host.numbers)
    classes = asked(host, lambda: spglib.get_symmetry_dataset(cell, symprec=SYMPREC)).equivalent_atoms
    groups: dict[int, list[int]] = {}
    for index, group in enumerate(classes):
        if not element or symbols[index] == element:
            groups.setdefault(int(group), []).append(index)
    return list(groups.values())


def repeats(host: Atoms, repeat: int) -> tuple[int, int, int]:
    """Cells along each vector.

    Example:
        >>> from ase.build import bulk
        >>> repeats(bulk("Mg"), 2)
        (4, 4, 2)
    """
    lengths: list[float] = host.cell.lengths().tolist()
    first, second, third = (math.ceil(repeat * max(lengths) / length - 1e-6) for length in lengths)
    return first, second, third


def check_element(symbol: str) -> None:
    """Refuse what is no element.

    Raises:
        AppFailed: `NoSuchAtom`.
    """
    from ase.data import atomic_numbers

    if symbol not in atomic_numbers or symbol == "X":
        raise AppFailed(
            f"replacement={symbol!r} is no element{'' if not symbol else '; ' + nearest(symbol, atomic_numbers)}",
            kind="contract",
            name="NoSuchAtom",
            repair="the symbol of an element, e.g. Zn",
        )
