"""A crystal with one of its collinear magnetic orderings."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable
from typing import Any

from hpcagent.apps.decorator import app
from hpcagent.apps.packages import needs
from hpcagent.apps.run import Outcome, Run
from hpcagent.apps.structures import read_structure, write_structure
from hpcagent.errors import AppFailed
from hpcagent.model.contract import Metric
from hpcagent.model.parameter import Choice, Int, Text
from hpcagent.science.structures.crystal import SIZE, size
from hpcagent.science.structures.orderings import orderings

__all__ = ["MOMENTS", "ORDERED", "magnetic_ordering", "moments_of"]

MOMENTS = {"Cr": 3.0, "Mn": 4.0, "Fe": 3.0, "Co": 2.0, "Ni": 1.5}
"""Initial moments, in Bohr magnetons, of elements whose moments are not given."""

ORDERED = {
    "moments": Text(
        default="",
        description="initial moments in Bohr magnetons, 'Fe:3 Cr:2.5'; empty: Cr 3, Mn 4, Fe 3, Co 2, Ni 1.5",
    ),
    "max_cells": Int(1, 12, default=2, description="primitive cells of a magnetic cell, at most"),
    "net": Choice(
        "compensated",
        "any",
        default="compensated",
        description="compensated: equivalent atoms are all aligned, or half up and half down; any: all signs",
    ),
}
"""Parameters that say which orderings are meant."""

_PAIR = re.compile(r"([A-Z][a-z]?)\s*[:=]\s*(\d+(?:\.\d*)?)")
_LARGEST = 10.0


@app(
    name="magnetic_ordering",
    version="1.0.0",
    inputs=("structure",),
    parameters=ORDERED
    | {"number": Int(-1, 100_000, default=0, description="0: all aligned; -1: primitive, without moments")},
    metrics=SIZE
    | {
        "n_orderings": Metric(name="n_orderings", unit="1", description="distinct orderings"),
        "n_cells": Metric(name="n_cells", unit="1", description="primitive cells of this one's magnetic cell"),
        "net_moment": Metric(
            name="net_moment", unit="1", description="sum of its initial moments, in Bohr magnetons"
        ),
    },
    failure_modes=(
        "BadMoments",
        "TooManyOrderings",
        "NoCell",
        "NoSuchAtom",
        "NoSymmetry",
        "NoStructure",
        "MissingFile",
        "NoEngine",
    ),
    estimated_runtime_s=0.3,
    seeded=False,
)
def magnetic_ordering(run: Run, *, moments: str, max_cells: int, net: str, number: int) -> Outcome:
    """A crystal's magnetic cell, with initial moments, of one of its distinct collinear orderings.

    All ways to point the moments of the magnetic elements up or down, in all supercells of the primitive cell up
    to `max_cells`, that no symmetry of the crystal and no reversal of all moments maps on each other; at most 12
    magnetic atoms. `orderings.csv` lists them. Artifacts: `structure`, `orderings`.
    """
    needs("ase", "pip install 'hpcagent[ase]'")
    bulk = read_structure(run)
    found = orderings(
        bulk,
        moments_of(moments, bulk.get_chemical_symbols()),
        max_cells=max_cells,
        compensated=net == "compensated",
    )
    with (run.workdir / "orderings.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["number", "ordering", "cells", "net_moment_bohr_magneton"])
        rows.writerows(
            [i, one.label, one.cells, float(one.atoms.get_initial_magnetic_moments().sum())]
            for i, one in enumerate(found)
        )
    if number >= len(found):
        raise AppFailed(
            f"number={number}: there are {len(found)} orderings, counted from 0 "
            f"({', '.join(one.label for one in found[:20])}{', ...' if len(found) > 20 else ''}).",
            kind="contract",
            name="NoSuchAtom",
            repair="a larger max_cells, net = any, or a smaller number",
        )
    chosen = found[max(number, 0)]
    atoms = chosen.atoms.copy()
    if number < 0:
        del atoms.arrays["initial_magmoms"]
    metrics = {
        "n_orderings": float(len(found)),
        "n_cells": float(chosen.cells),
        "net_moment": float(atoms.get_initial_magnetic_moments().sum()),
    }
    return Outcome(
        metrics=size(atoms) | metrics,
        artifacts=write_structure(run, atoms) | {"orderings": "orderings.csv"},
        notes=("no moments" if number < 0 else chosen.label,),
    )


def moments_of(text: str, symbols: Iterable[str]) -> dict[str, float]:
    """Element -> moment in Bohr magnetons, as a user wrote it.

    Raises:
        AppFailed: `BadMoments`.

    Example:
        >>> moments_of("Fe:2.5, Cr: 3", ["Fe", "Cr"])
        {'Fe': 2.5, 'Cr': 3.0}
        >>> moments_of("", ["Ni", "O"])
        {'Ni': 1.5}
    """
    if not text.strip():
        return {symbol: MOMENTS[symbol] for symbol in dict.fromkeys(symbols) if symbol in MOMENTS}
    found: dict[str, Any] = {symbol: float(value) for symbol, value in _PAIR.findall(text)}
    rest = _PAIR.sub("", text).replace(",", " ").replace(";", " ").strip()
    wrong = [s for s, value in found.items() if not 0 < value <= _LARGEST or not math.isfinite(value)]
    if rest or wrong or not found:
        raise AppFailed(
            f"moments={text!r} is not understood{f' (at {rest!r})' if rest else ''}: write an element, a colon "
            f"and a size above 0 and up to {_LARGEST:g} Bohr magnetons, as in 'Fe:2.5 Cr:3'.",
            kind="contract",
            name="BadMoments",
        )
    return found
