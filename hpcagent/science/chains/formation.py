"""Formation energy of a compound from its elements."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hpcagent.apps.chain import artifacts_of, chain
from hpcagent.apps.run import Outcome, Run
from hpcagent.model.contract import Metric
from hpcagent.science.chains.levels import level_of, own_settings
from hpcagent.science.chains.references import BOX, atoms_of, reference
from hpcagent.science.dft.relax import RELAXATION, dft_relax
from hpcagent.science.engines.base import LEVEL
from hpcagent.science.engines.task import FILES, RANKS, SETTINGS

__all__ = ["formation_energy"]


@chain(
    name="formation_energy",
    version="1.0.0",
    inputs=("structure",),
    parameters=LEVEL | RANKS | {name: RELAXATION[name] for name in ("fmax", "max_steps")} | BOX,
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
    counts = Counter(atoms_of(structure).get_chemical_symbols())
    compound = relaxed(structure, cell="shape_and_volume", **level)
    references = {element: reference(element, relaxed, level, box=box) for element in counts}
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
