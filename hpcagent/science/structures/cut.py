"""Slabs cut out of any crystal: alloys and compounds, any face, every termination."""

from __future__ import annotations

import csv
from collections import Counter
from typing import TYPE_CHECKING, Any

from hpcagent.apps.decorator import app
from hpcagent.apps.packages import needs
from hpcagent.apps.run import Outcome, Run
from hpcagent.apps.structures import read_structure, write_structure
from hpcagent.errors import AppFailed
from hpcagent.model.contract import Metric
from hpcagent.model.parameter import Choice, Float, Int
from hpcagent.science.structures.crystal import SIZE, size
from hpcagent.science.structures.oriented import Cut, Face, face, formula
from hpcagent.science.structures.slab import check_held

if TYPE_CHECKING:
    from ase import Atoms

__all__ = ["CUT", "cut_slab", "planes_of"]

CUT = {
    "h": Int(-12, 12, default=1, description="Miller index"),
    "k": Int(-12, 12, default=1, description="Miller index"),
    "l": Int(-12, 12, default=1, description="Miller index"),
    "miller_of": Choice(
        "conventional",
        "input",
        default="conventional",
        description="cell that they are of: the space group's conventional one, or that of the input",
    ),
    "termination": Int(0, 200, default=0, description="which of the distinct surfaces; terminations.csv has all"),
    "symmetric": Choice(
        "auto",
        "yes",
        "no",
        default="auto",
        description="both sides alike; auto: if the composition stays the crystal's; yes: whatever it is then",
    ),
}
"""Parameters that say which surface is meant."""


@app(
    name="cut_slab",
    version="1.0.0",
    inputs=("structure",),
    parameters=CUT
    | {
        "layers": Int(1, 500, default=6, description="planes of atoms, at least"),
        "vacuum": Float(0.0, 500.0, unit="angstrom", default=8.0, description="empty space on each side"),
        "nx": Int(1, 100, default=1, description="surface cells along the first vector"),
        "ny": Int(1, 100, default=1, description="surface cells along the second vector"),
        "fixed_layers": Int(0, 500, default=0, description="planes at the bottom whose atoms do not move"),
        "plane_tolerance": Float(
            0.001,
            2.0,
            unit="angstrom",
            default=0.1,
            description="atoms whose heights differ by less are of one plane",
        ),
    },
    metrics=SIZE
    | {
        "area": Metric(name="area", unit="angstrom^2", description="area of one surface"),
        "thickness": Metric(name="thickness", unit="angstrom", description="lowest to highest atom"),
        "n_layers": Metric(name="n_layers", unit="1", description="planes of atoms"),
        "n_terminations": Metric(name="n_terminations", unit="1", description="distinct surfaces of this face"),
        "stoichiometric": Metric(
            name="stoichiometric", unit="1", description="1: composed as the crystal is; 0: not"
        ),
        "symmetric": Metric(name="symmetric", unit="1", description="1: both sides are the same surface; 0: not"),
        "polar": Metric(
            name="polar",
            unit="1",
            description="1: a dipole across the slab if its elements bear charges; in a metal without meaning",
        ),
    },
    failure_modes=(
        "BadFace",
        "NoCell",
        "NoSymmetry",
        "TooManyHeld",
        "NoTermination",
        "NotSymmetric",
        "NoStructure",
        "MissingFile",
        "NoEngine",
    ),
    estimated_runtime_s=0.3,
    seeded=False,
)
def cut_slab(run: Run, *, h: int, k: int, l: int, **params: Any) -> Outcome:  # noqa: E741
    """A slab of any crystal along the face (h k l), with any of the distinct surfaces on top.

    The crystal can end between any two planes of atoms; ends that a symmetry of the crystal maps on each other
    are one termination. `terminations.csv` lists them: the composition of the two upper planes, whether a slab
    can end in it on both sides, and whether whole repeat units are polar. That asks whether the mean heights of
    the elements differ: then, and only then, charges of the elements that add up to zero make a dipole (the third
    type of P. W. Tasker, J. Phys. C 12, 4977 (1979)). `auto` adds planes until the slab is composed as the crystal
    and both sides are alike; where no slab is both, it is composed as the crystal. Atoms have their plane as tag,
    1 being the top. Initial moments of the input are left out. Artifacts: `structure`, `terminations`.
    """
    needs("ase", "pip install 'hpcagent[ase]'")
    import numpy as np

    bulk = read_structure(run)
    seen = face(bulk, (h, k, l), of=params["miller_of"], tolerance=params["plane_tolerance"])
    with (run.workdir / "terminations.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["termination", "top", "beneath", "two_sides_alike", "polar"])
        rows.writerows([c.number, c.top, c.beneath, int(bool(c.bottoms)), int(c.polar)] for c in seen.cuts)
    cut = _chosen(seen, params["termination"], (h, k, l))
    count, alike = planes_of(seen, cut, params["layers"], params["symmetric"])
    slab = seen.stack(cut, count)
    slab *= (params["nx"], params["ny"], 1)
    thickness = float(np.ptp(slab.positions[:, 2]))
    whole = _stoichiometric(slab, seen.unit)
    polar = not alike and _dipole(slab)
    slab.center(vacuum=params["vacuum"], axis=2)
    check_held(params["fixed_layers"], count)
    if params["fixed_layers"]:
        from ase.constraints import FixAtoms

        slab.set_constraint(FixAtoms(np.flatnonzero(slab.get_tags() > count - params["fixed_layers"])))
    metrics = size(slab) | {
        "area": float(abs(np.linalg.det(slab.cell.array[:2, :2]))),
        "thickness": thickness,
        "n_layers": float(count),
        "n_terminations": float(len(seen.cuts)),
        "stoichiometric": float(whole),
        "symmetric": float(alike),
        "polar": float(polar),
    }
    notes: tuple[str, ...] = (
        f"({h} {k} {l}) of {formula(seen.unit)}, termination {cut.number}: {cut.top} over {cut.beneath}",
    )
    if params["fixed_layers"] == count:
        notes += ("all of its atoms are held",)
    if bulk.get_initial_magnetic_moments().any():
        notes += ("initial moments of the crystal were left out",)
    artifacts = write_structure(run, slab) | {"terminations": "terminations.csv"}
    return Outcome(metrics=metrics, artifacts=artifacts, notes=notes)


def _chosen(seen: Face, number: int, miller: tuple[int, int, int]) -> Cut:
    if number < len(seen.cuts):
        return seen.cuts[number]
    known = ", ".join(f"{cut.number} ({cut.top} over {cut.beneath})" for cut in seen.cuts)
    raise AppFailed(
        f"termination={number}: the face ({' '.join(map(str, miller))}) of {formula(seen.unit)} has {known}.",
        kind="contract",
        name="NoTermination",
    )


def planes_of(seen: Face, cut: Cut, least: int, symmetric: str) -> tuple[int, bool]:
    """How many planes a slab gets, and whether both its sides are alike.

    Raises:
        AppFailed: `NotSymmetric`: no slab can end in this surface on both sides.
    """
    n, elements = len(seen.planes), seen.unit.get_chemical_symbols()
    top = cut.planes[0]
    if symmetric == "yes" and not cut.bottoms:
        raise AppFailed(
            f"no slab of {formula(seen.unit)} ends in the termination {cut.number} ({cut.top} over {cut.beneath}) "
            "on both sides: no operation of the crystal turns this face round.",
            kind="contract",
            name="NotSymmetric",
            repair="symmetric = auto or no, with a dipole correction; or another termination or face",
        )
    bulk = Counter(elements)
    fitting: list[tuple[int, bool]] = []
    for count in range(least, least + n + 1):
        kept = Counter(elements[a] for below in range(count) for a in seen.planes[(top - below) % n])
        whole = all(kept[e] * len(elements) == bulk[e] * sum(kept.values()) for e in bulk)
        alike = (top - count) % n in cut.bottoms
        if (alike and whole) or (alike and symmetric == "yes") or (whole and symmetric == "no"):
            return count, alike
        if whole:
            fitting.append((count, alike))
    return fitting[0]


def _stoichiometric(slab: Atoms, unit: Atoms) -> bool:
    kept, bulk = Counter(slab.get_chemical_symbols()), Counter(unit.get_chemical_symbols())
    return all(kept[e] * len(unit) == bulk[e] * len(slab) for e in bulk)


def _dipole(slab: Atoms) -> bool:
    """Whether charges of the elements may make a dipole: their mean heights differ."""
    means = [float(slab.positions[slab.numbers == number, 2].mean()) for number in set(slab.numbers.tolist())]
    return max(means) - min(means) > 0.01
