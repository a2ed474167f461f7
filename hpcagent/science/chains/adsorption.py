"""How strongly something binds to a surface: the clean slab, the molecule, both together."""

from __future__ import annotations

from typing import Any

from hpcagent.apps.chain import artifacts_of, chain
from hpcagent.apps.run import Outcome, Run
from hpcagent.model.contract import Metric
from hpcagent.model.parameter import Choice, Float, Int, Text
from hpcagent.science.analysis.adsorption import adsorption_energy_of
from hpcagent.science.chains.levels import level_of_engine, own_settings
from hpcagent.science.dft.energy import dft_energy
from hpcagent.science.dft.relax import dft_relax
from hpcagent.science.engines.base import LEVEL
from hpcagent.science.engines.registry import engine
from hpcagent.science.engines.task import FILES, RANKS, SETTINGS
from hpcagent.science.structures.binding import ATOM
from hpcagent.science.structures.molecule import build_molecule
from hpcagent.science.structures.slab import FACETS, SITES, add_adsorbate, build_slab

__all__ = ["adsorption", "adsorption_energy"]

PLACED = {
    "site": Choice(*SITES, default="ontop", description="where on the slab; see add_adsorbate"),
    "height": Float(
        0.0, 20.0, unit="angstrom", default=0.0, description="above the top layer; 0: by covalent radii"
    ),
    "atom": ATOM,
    "reference": Text(default="", description="molecule that the energy refers to, e.g. O2; empty: the adsorbate"),
    "share": Float(0.001, 1000.0, default=1.0, description="molecules of it that one adsorbate is made of"),
    "reference_magmom": Float(
        -10.0,
        10.0,
        default=0.0,
        unit="1",
        description="initial moment of each atom of it in Bohr magnetons (O2: 1)",
    ),
    "relax": Choice(
        "none", "adsorbed", "all", default="adsorbed", description="what is relaxed, or computed as built"
    ),
    "fmax": Float(1e-4, 1.0, unit="eV/angstrom", log=True, default=0.05, description="largest force when relaxed"),
    "max_steps": Int(1, 10000, default=100, description="steps of a relaxation"),
    "box": Float(2.0, 50.0, unit="angstrom", default=5.0, description="empty space around the reference molecule"),
}
_HALF_RELAXED = (
    "only slab and adsorbate together were relaxed: slab and molecule are computed as built, so this binds too "
    "strongly by what they would gain (tens of meV; 46 were seen); relax='all' has no such bias"
)
METRICS = {
    "adsorption_energy": adsorption_energy_of.contract.metric("adsorption_energy"),
    "energy_together": Metric(name="energy_together", unit="eV", description="energy of slab and adsorbate"),
    "energy_slab": Metric(name="energy_slab", unit="eV", description="energy of the clean slab"),
    "energy_molecule": Metric(name="energy_molecule", unit="eV", description="energy of the reference molecule"),
    "height": Metric(
        name="height", unit="angstrom", description="of the binding atom above the top layer, as it was placed"
    ),
}


@chain(
    name="adsorption_energy",
    version="2.0.0",
    inputs=("slab", "adsorbate"),
    parameters=PLACED | LEVEL | RANKS,
    metrics=METRICS,
    settings=SETTINGS,
    files=FILES,
    estimated_runtime_s=300.0,
    seeded=False,
    failure_modes=("LevelsDiffer", "AtomsDiffer", "NoSite", "NoSuchAtom", "Overlap", "NotRelaxed", "NotConverged"),
)
def adsorption_energy(
    slab: Any,
    adsorbate: Any,
    *,
    site: str,
    height: float,
    atom: int,
    reference: str,
    share: float,
    reference_magmom: float,
    relax: str,
    fmax: float,
    max_steps: int,
    box: float,
    run: Run,
    **params: Any,
) -> Outcome:
    """E(slab + adsorbate) - E(slab) - share E(molecule), all three at the same level of theory.

    The clean slab and the molecule are runs of their own: another adsorbate on the same slab, another site, or
    another campaign with the same cache uses them again. Without zero-point energies. With `relax = "adsorbed"`
    only slab and adsorbate together are relaxed; an energy to publish wants `all`.
    """
    settings, (level, notes) = own_settings(run.settings), level_of_engine(params)
    energy = dft_energy.with_settings(**settings)
    relaxed = dft_relax.with_settings(**settings)

    def computed(structure: Any, how: bool, **changes: Any) -> Any:
        if how:
            return relaxed(structure, fmax=fmax, max_steps=max_steps, **(level | changes))
        return energy(structure, forces="no", **(level | changes))

    both = add_adsorbate(slab, adsorbate, site=site, height=height, atom=atom)
    molecule = build_molecule(name=reference, vacuum=box) if reference else adsorbate
    # A classical potential knows no spin.
    spin = {"magmom": reference_magmom} if reference and "magmom" in engine(params["engine"]).takes else {}
    alone = computed(molecule, relax == "all", **spin)
    clean = computed(slab, relax == "all")
    together = computed(both, relax != "none")
    if relax == "adsorbed":
        notes = (*notes, _HALF_RELAXED)
    found = adsorption_energy_of(clean, alone, together, share=share)
    metrics: dict[str, Any] = {  # futures: the chain waits for them
        "adsorption_energy": found["adsorption_energy"],
        "energy_together": together["energy"],
        "energy_slab": clean["energy"],
        "energy_molecule": alone["energy"],
        "height": both["height"],
    }
    return Outcome(metrics=metrics, artifacts=artifacts_of(run, structure=together), notes=notes)


@chain(
    name="adsorption",
    version="2.0.0",
    parameters={
        "metal": Text(default="Cu", description="element of the slab"),
        "facet": Choice(*FACETS, default="fcc111", description="lattice and face"),
        "adsorbate": Text(default="O", description="atom or molecule of ase.build.molecule"),
        "layers": Int(1, 50, default=3, description="atomic layers"),
        "size": Int(1, 50, default=1, description="surface cells along x and y: 1 is a full monolayer"),
        "root": Int(1, 100, default=1, description="turned cells sqrt(root) times as wide: 2 on fcc100 is c(2x2)"),
        "fixed_layers": Int(0, 50, default=2, description="layers at the bottom that do not move"),
        "vacuum": Float(2.0, 100.0, unit="angstrom", default=6.0, description="empty space on each side"),
        "a": Float(
            0.0, 100.0, unit="angstrom", default=0.0, description="lattice constant; 0: ASE's (experiment)"
        ),
    }
    | PLACED
    | LEVEL
    | RANKS,
    metrics=METRICS,
    settings=SETTINGS,
    files=FILES,
    estimated_runtime_s=300.0,
    seeded=False,
    failure_modes=("BadLattice", "BadMolecule", "TooManyHeld", *adsorption_energy.contract.failure_modes),
    vary=("metal", "site"),
)
def adsorption(
    metal: str,
    facet: str,
    adsorbate: str,
    layers: int,
    size: int,
    root: int,
    fixed_layers: int,
    vacuum: float,
    a: float,
    run: Run,
    **params: Any,
) -> Any:
    """Adsorption energy of an atom or molecule on a metal's face, from the elements' names."""
    if params["relax"] == "none":  # nothing moves: how many are held has no meaning
        fixed_layers = min(fixed_layers, layers)
    cell = {"nx": size, "ny": size, "root": root, "layers": layers, "fixed_layers": fixed_layers}
    slab = build_slab(name=metal, facet=facet, vacuum=vacuum, a=a, **cell)
    molecule = build_molecule(name=adsorbate, vacuum=params["box"])
    return adsorption_energy.with_settings(**own_settings(run.settings))(slab, molecule, **params)
