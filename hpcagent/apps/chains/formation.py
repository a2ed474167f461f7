"""Formation energy of a compound from its elements."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hpcagent.apps.build.crystal import build_crystal
from hpcagent.apps.build.molecule import build_molecule
from hpcagent.apps.chain import artifacts_of, chain
from hpcagent.apps.chains.levels import level_of, own_settings
from hpcagent.apps.dft.relax import RELAXATION, dft_relax
from hpcagent.apps.engines.base import LEVEL
from hpcagent.apps.engines.registry import engine
from hpcagent.apps.engines.task import FILES, RANKS, SETTINGS
from hpcagent.apps.run import Outcome, Run
from hpcagent.apps.structures import Given, structure_of
from hpcagent.model.contract import Metric
from hpcagent.model.space import Float

__all__ = ["formation_energy"]

GASES = {"H": ("H2", 0.0), "N": ("N2", 0.0), "O": ("O2", 1.0), "F": ("F2", 0.0), "Cl": ("Cl2", 0.0)}
"""Elements whose reference is a molecule, and the initial moment of each of its atoms in Bohr magnetons."""


@chain(
    name="formation_energy",
    version="1.0.0",
    inputs=("structure",),
    parameters=LEVEL
    | RANKS
    | {name: RELAXATION[name] for name in ("fmax", "max_steps")}
    | {"box": Float(2.0, 50.0, unit="angstrom", default=5.0, description="empty space around gas molecules")},
    metrics={
        "formation_energy": Metric(
            name="formation_energy", unit="eV/atom", description="energy over that of the elements; < 0 is stable"
        ),
        "energy_per_atom": Metric(
            name="energy_per_atom", unit="eV/atom", description="energy of the relaxed compound"
        ),
        "volume": Metric(
            name="volume", unit="angstrom^3", description="volume of its relaxed cell", required=False
        ),
        "converged": Metric(name="converged", unit="1", description="1: what does not converge has failed"),
    },
    settings=SETTINGS,
    files=FILES,
    estimated_runtime_s=300.0,
    seeded=False,
    failure_modes=("NotConverged", "NotRelaxed", "BadLattice", "NoStructure"),
)
def formation_energy(
    structure: Any, *, box: float, run: Run, fmax: float, max_steps: int, **params: Any
) -> Outcome:
    """Energy of a compound over that of its elements, each relaxed with its cell at the same level of theory.

    E_f = [E(compound) - sum_i n_i E(element i) per atom] / sum_i n_i. Elements are in the crystal that
    `ase.build.bulk` has for them, H, N, O, F, Cl diatomic molecules. At 0 K, without zero-point energies, and
    without the corrections that databases apply to oxides.
    """
    relaxed = dft_relax.with_settings(**own_settings(run.settings))
    level = level_of(params) | {"fmax": fmax, "max_steps": max_steps}
    counts = Counter(_symbols(structure))
    compound = relaxed(structure, cell="shape_and_volume", **level)
    references = {}
    for element in counts:
        if element in GASES:
            molecule, magmom = GASES[element]
            references[element] = relaxed(
                build_molecule(name=molecule, vacuum=box),
                **(level | ({"magmom": magmom} if "magmom" in engine(params["engine"]).takes else {})),
            )
        else:
            crystal = build_crystal(name=element, cubic="no")
            references[element] = relaxed(crystal, cell="shape_and_volume", **level)
    whole = compound.result()
    atoms = sum(counts.values())
    elements = sum(n * references[e].result()["energy_per_atom"] for e, n in counts.items()) / atoms
    metrics = {
        "formation_energy": whole["energy_per_atom"] - elements,
        "energy_per_atom": whole["energy_per_atom"],
        "converged": 1.0,
    }
    if "volume" in whole.metrics:
        metrics["volume"] = whole["volume"]
    return Outcome(metrics=metrics, artifacts=artifacts_of(run, structure=compound))


def _symbols(structure: Any) -> list[str]:
    fields = structure.fields if isinstance(structure, Given) else structure
    if not isinstance(fields, dict) and hasattr(fields, "result"):
        fields = fields.result()
    if hasattr(fields, "model_dump"):
        fields = fields.model_dump(mode="json")
    found: list[str] = structure_of(fields).get_chemical_symbols()
    return found
