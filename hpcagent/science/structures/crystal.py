"""Crystals: a lattice, repeated, strained, with displaced and missing atoms if wanted."""

from __future__ import annotations

from typing import Any

from hpcagent.apps.decorator import app
from hpcagent.apps.packages import needs
from hpcagent.apps.run import Outcome, Run
from hpcagent.apps.structures import write_structure
from hpcagent.errors import AppFailed
from hpcagent.model.contract import Metric
from hpcagent.model.parameter import Choice, Float, Int, Text

__all__ = ["LATTICES", "SIZE", "build_crystal", "in_words", "size"]

LATTICES = (
    "auto", "sc", "fcc", "bcc", "bct", "hcp", "rhombohedral", "diamond", "zincblende", "rocksalt",
    "cesiumchloride", "fluorite", "wurtzite",
)  # fmt: skip
"""As `ase.build.bulk` calls them; `auto` is the element's own."""

GRAMS_PER_CM3 = 1.66053906660
"""One atomic mass unit per cubic angstrom (CODATA 2018)."""

SIZE = {
    "n_atoms": Metric(name="n_atoms", unit="1", description="number of atoms"),
    "volume": Metric(
        name="volume", unit="angstrom^3", description="volume of the cell, if there is one", required=False
    ),
    "density": Metric(
        name="density", unit="g/cm^3", description="mass over volume, if it is periodic throughout", required=False
    ),
}
"""Metrics of everything that is built."""


def _shear(of: str) -> Any:
    return Float(-0.5, 0.5, default=0.0, description=f"Voigt strain, {of}")


@app(
    name="build_crystal",
    version="1.0.0",
    parameters={
        "name": Text(default="Cu", description="element or formula, e.g. Cu, NaCl"),
        "lattice": Choice(*LATTICES, default="auto", description="as in ase.build.bulk; auto: the element's own"),
        "a": Float(
            0.0, 100.0, unit="angstrom", default=0.0, description="lattice constant; 0: ASE's for elements"
        ),
        "c_over_a": Float(0.0, 10.0, default=0.0, description="c/a; 0: the element's own, or the ideal one"),
        "cubic": Choice(
            "yes", "no", default="yes", description="the cubic cell, where there is one, or the primitive"
        ),
        "nx": Int(1, 1000, default=1, description="cells along the first vector"),
        "ny": Int(1, 1000, default=1, description="cells along the second vector"),
        "nz": Int(1, 1000, default=1, description="cells along the third vector"),
        "strain": Float(-0.5, 1.0, default=0.0, description="linear strain, the same along all directions"),
        "e1": _shear("xx"),
        "e2": _shear("yy"),
        "e3": _shear("zz"),
        "e4": _shear("2 yz"),
        "e5": _shear("2 xz"),
        "e6": _shear("2 xy"),
        "rattle": Float(
            0.0, 2.0, unit="angstrom", default=0.0, description="standard deviation of random displacements"
        ),
        "vacancies": Int(0, 1_000_000, default=0, description="atoms taken out at random"),
    },
    metrics=SIZE
    | {"volume_ratio": Metric(name="volume_ratio", unit="1", description="volume over that without strain")},
    failure_modes=("BadLattice", "TooFewAtoms", "NoEngine"),
    estimated_runtime_s=0.1,
)
def build_crystal(
    name: str,
    lattice: str,
    a: float,
    c_over_a: float,
    cubic: str,
    nx: int,
    ny: int,
    nz: int,
    strain: float,
    e1: float,
    e2: float,
    e3: float,
    e4: float,
    e5: float,
    e6: float,
    rattle: float,
    vacancies: int,
    run: Run,
) -> Outcome:
    """A crystal, repeated, strained, with random displacements and vacancies.

    The cell and the atoms are deformed by x -> (1 + strain) (1 + e) x, where the symmetric e has the Voigt
    components e1 ... e6 (e4, e5, e6 are twice the tensor's, as in J. F. Nye, Physical Properties of Crystals,
    1957). `rattle` and `vacancies` come from the run's seed.

    Failures: `BadLattice` (unknown element, lattice or missing lattice constant), `TooFewAtoms` (all would be
    vacancies).
    """
    needs("ase", "pip install 'hpcagent[ase]'")
    import numpy as np

    atoms = _bulk(name, lattice, a, c_over_a, cubic == "yes")
    atoms *= (nx, ny, nz)
    unstrained = atoms.get_volume()
    tensor = np.array([[e1, e6 / 2, e5 / 2], [e6 / 2, e2, e4 / 2], [e5 / 2, e4 / 2, e3]])
    deformation = (1.0 + strain) * (np.eye(3) + tensor)
    atoms.set_cell(atoms.cell @ deformation, scale_atoms=True)
    rng = np.random.default_rng([run.seed, run.replicate])
    if vacancies >= len(atoms):
        raise AppFailed(
            f"vacancies={vacancies} would leave nothing of {len(atoms)} atoms.",
            kind="contract",
            name="TooFewAtoms",
            repair="more cells (nx, ny, nz) or fewer vacancies",
        )
    if vacancies:
        del atoms[sorted(rng.choice(len(atoms), size=vacancies, replace=False).tolist())]
    if rattle:
        atoms.positions += rng.normal(scale=rattle, size=(len(atoms), 3))
    ratio = float(atoms.get_volume() / unstrained)
    return Outcome(metrics=size(atoms) | {"volume_ratio": ratio}, artifacts=write_structure(run, atoms))


def in_words(error: Exception) -> str:
    """What ASE says of an error, in one line without a full stop."""
    said = str(error.args[0]) if error.args else type(error).__name__
    return said.strip().splitlines()[0].rstrip(". ") if said.strip() else type(error).__name__


def size(atoms: Any) -> dict[str, float]:
    """The metrics in `SIZE` of an ASE `Atoms`; those of its cell where it has one."""
    found = {"n_atoms": float(len(atoms))}
    if atoms.cell.rank == 3:
        found["volume"] = float(atoms.get_volume())
        if atoms.pbc.all():
            found["density"] = float(atoms.get_masses().sum()) / found["volume"] * GRAMS_PER_CM3
    return found


def _bulk(name: str, lattice: str, a: float, c_over_a: float, cubic: bool) -> Any:
    from ase.build import bulk

    given: dict[str, Any] = {"a": a} if a else {}
    if c_over_a:
        given["covera"] = c_over_a
    wanted = None if lattice == "auto" else lattice
    try:
        atoms = bulk(name, wanted, **given)
    except (ValueError, KeyError, RuntimeError, TypeError) as error:
        raise AppFailed(
            f"no crystal of name={name!r}, lattice={lattice}, a={a:g} angstrom, c_over_a={c_over_a:g}: "
            f"{in_words(error)}.",
            kind="contract",
            name="BadLattice",
            repair="compounds, and lattices that are not the element's own, need both lattice and a; hcp, bct and "
            "wurtzite take c_over_a too",
        ) from None
    if not cubic:
        return atoms
    try:
        return bulk(name, wanted, **given, cubic=True)
    except (RuntimeError, ValueError):
        return atoms  # hcp and its like have no cubic cell
