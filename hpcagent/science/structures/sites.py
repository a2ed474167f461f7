"""Sites of a surface, listed, and something put on one of them."""

from __future__ import annotations

import csv

from hpcagent.apps.decorator import app
from hpcagent.apps.packages import needs
from hpcagent.apps.run import Outcome, Run
from hpcagent.apps.structures import read_structure, write_structure
from hpcagent.errors import AppFailed
from hpcagent.model.contract import Metric
from hpcagent.model.parameter import Choice, Float, Int
from hpcagent.science.structures.binding import ATOM, binding_atom
from hpcagent.science.structures.crystal import SIZE, size
from hpcagent.science.structures.places import KINDS, places
from hpcagent.science.structures.slab import add_to, upright, z_of_contact

__all__ = ["DEPTH", "adsorption_sites", "place_adsorbate"]

DEPTH = Float(
    0.01,
    20.0,
    unit="angstrom",
    default=1.0,
    description="atoms at most so far below the highest one make the surface",
)
_FAILURES = ("NoSite", "NoSymmetry", "NoStructure", "MissingFile", "NoEngine")
_COUNTS = {
    "n_sites": Metric(name="n_sites", unit="1", description="distinct sites"),
    "n_surface_atoms": Metric(name="n_surface_atoms", unit="1", description="atoms that make the surface"),
} | {f"n_{kind}": Metric(name=f"n_{kind}", unit="1", description=f"distinct sites: {kind}") for kind in KINDS}


@app(
    name="adsorption_sites",
    version="1.0.0",
    inputs=("slab",),
    parameters={"depth": DEPTH},
    metrics=_COUNTS,
    failure_modes=_FAILURES,
    estimated_runtime_s=0.3,
    seeded=False,
)
def adsorption_sites(depth: float, run: Run) -> Outcome:
    """All distinct sites of a slab's upper surface: tops, bridges, hollows, with the atoms that make them.

    On surfaces of any elements. Sites that the slab's symmetry maps on each other are one; `sites.csv` has a row
    for each: number, kind, name, x, y and z in angstrom (z: mean height of its atoms), how many there are in the
    cell, and the indices of the atoms that make it. `place_adsorbate` takes the number. Artifact: `sites`.
    """
    needs("ase", "pip install 'hpcagent[ase]'")
    slab = read_structure(run)
    found = places(slab, depth)
    with (run.workdir / "sites.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["site", "kind", "name", "x_angstrom", "y_angstrom", "z_angstrom", "alike", "atoms"])
        for number, place in enumerate(found):
            at = (f"{x:.6f}" for x in place.position)
            rows.writerow([number, place.kind, place.name, *at, place.alike, " ".join(map(str, place.atoms))])
    kinds = [place.kind for place in found]
    tops = sum(place.alike for place in found if place.kind == "top")
    metrics = {"n_sites": float(len(found)), "n_surface_atoms": float(tops)}
    metrics |= {f"n_{kind}": float(kinds.count(kind)) for kind in KINDS}
    notes = tuple(f"site {number}: {place.name}" for number, place in enumerate(found))
    bridges = sum(place.alike for place in found if place.kind == "bridge")
    if 2 * bridges != sum(place.alike for place in found):
        notes += (
            "some sites are within 0.1 angstrom of each other and count as one: bridges are not as many as tops "
            "and hollows together",
        )
    return Outcome(metrics=metrics, artifacts={"sites": "sites.csv"}, notes=notes)


@app(
    name="place_adsorbate",
    version="2.0.0",
    inputs=("slab", "adsorbate"),
    parameters={
        "site": Int(0, 10_000, default=0, description="number of the distinct site, as adsorption_sites lists it"),
        "height": Float(
            0.0,
            20.0,
            unit="angstrom",
            default=0.0,
            description="of the binding atom above the site's atoms; 0: as covalent radii say",
        ),
        "atom": ATOM,
        "orient": Choice(
            "up", "as_given", default="up", description="up: the adsorbate's centre is put above the binding atom"
        ),
        "depth": DEPTH,
    },
    metrics=SIZE
    | {
        "height": Metric(name="height", unit="angstrom", description="of the binding atom above the site's atoms"),
        "closest_contact": Metric(
            name="closest_contact", unit="angstrom", description="shortest distance from adsorbate to slab"
        ),
        "n_sites": Metric(name="n_sites", unit="1", description="distinct sites of the surface"),
    },
    failure_modes=(*_FAILURES, "NoSuchAtom", "Overlap"),
    estimated_runtime_s=0.3,
    seeded=False,
)
def place_adsorbate(site: int, height: float, atom: int, orient: str, depth: float, run: Run) -> Outcome:
    """Put an atom or a molecule on a site of `adsorption_sites`, by its number.

    Heights, tags and moments are as in `add_adsorbate`.
    """
    needs("ase", "pip install 'hpcagent[ase]'")
    slab, molecule = read_structure(run, 0), read_structure(run, 1)
    found = places(slab, depth)
    if site >= len(found):
        known = "; ".join(f"{n} {place.name}" for n, place in enumerate(found))
        raise AppFailed(
            f"site={site}: the surface has the sites {known}.",
            kind="contract",
            name="NoSite",
            repair="one of them",
        )
    x, y, z = found[site].position
    atom, notes = binding_atom(molecule, atom)
    upright(molecule, atom, orient)
    above = height or z_of_contact(slab, molecule.numbers[atom], (x, y)) - z
    both, contact = add_to(slab, molecule, atom, (x, y, z + above))
    metrics = {"height": float(above), "closest_contact": contact, "n_sites": float(len(found))}
    return Outcome(
        metrics=size(both) | metrics,
        artifacts=write_structure(run, both),
        notes=(f"site {site}: {found[site].name}", *notes),
    )
