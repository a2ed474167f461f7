"""What a vacancy or a foreign atom in a crystal costs."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from typing import Any

from hpcagent.apps.chain import artifacts_of, chain, metrics_of
from hpcagent.apps.run import Outcome, Run
from hpcagent.model.contract import Metric
from hpcagent.model.parameter import Choice, Float, Int, Parameter
from hpcagent.science.chains.levels import level_of, own_settings, refuse_charge
from hpcagent.science.chains.references import BOX, atoms_of, reference
from hpcagent.science.dft.energy import dft_energy
from hpcagent.science.dft.relax import RELAXATION, dft_relax
from hpcagent.science.engines.base import LEVEL
from hpcagent.science.engines.task import FILES, RANKS, SETTINGS
from hpcagent.science.structures.defect import DEFECT, check_element, point_defect, sites_of

__all__ = ["substitution", "vacancy"]

PARAMETERS: dict[str, Parameter] = (
    DEFECT
    | {
        "repeat": Int(
            1, 50, default=2, description="smallest supercell: cells along the longest vector, see point_defect"
        ),
        "sizes": Int(1, 10, default=2, description="supercells, each one cell larger than the one before"),
        "relax": Choice("yes", "no", default="yes", description="whether the atoms around the defect relax"),
        "cell": Choice(
            "fixed", "shape_and_volume", default="fixed", description="what of the supercell relaxes with them"
        ),
        "relax_bulk": Choice("yes", "no", default="yes", description="whether the crystal relaxes first"),
        "mu_removed": Float(
            -20.0,
            20.0,
            unit="eV",
            default=0.0,
            description="chemical potential of the atom taken out, over that of its reference",
        ),
    }
    | LEVEL
    | RANKS
    | {name: RELAXATION[name] for name in ("fmax", "max_steps")}
    | BOX
)
# Two shells of neighbours of a metal: nearer defects share theirs.
_NEAR = 6.0  # angstrom
METRICS = {
    name: Metric(name=name, unit=unit, description=description, required=required)
    for name, unit, description, required in (
        ("formation_energy", "eV", "energy of the defect in the largest supercell", True),
        ("size_change", "eV", "that minus the one in the next smaller supercell", False),
        ("extrapolated", "eV", "line through the two largest supercells over 1/N, at 1/N = 0", False),
        ("relaxation_energy", "eV", "what the atoms around the defect gain, in the largest supercell", False),
        ("energy_removed", "eV/atom", "energy of the reference of the atom taken out", True),
        ("n_atoms", "1", "atoms of the largest supercell without a defect", True),
        ("n_sites", "1", "distinct atoms of that element", True),
    )
}
FAILURES = (*point_defect.contract.failure_modes, "NotRelaxed", "NotConverged", "BadLattice", "Charged")


@chain(
    name="vacancy",
    version="1.0.0",
    inputs=("structure",),
    parameters=PARAMETERS,
    metrics=METRICS,
    settings=SETTINGS,
    files=FILES,
    estimated_runtime_s=600.0,
    seeded=False,
    failure_modes=FAILURES,
)
def vacancy(structure: Any, *, run: Run, **params: Any) -> Outcome:
    """Formation energy of a neutral vacancy, in supercells of several sizes.

    E_f = E(one atom missing) - E(whole) + mu. In a crystal of one element mu is its own energy per atom; in a
    compound that of the element's crystal or gas (as in `formation_energy`), plus `mu_removed`. At 0 K. A
    supercell at fixed volume is wrong by about 1/N, N being its atoms: `size_change` says how much that still is.
    `supercells.csv` has all sizes.
    """
    return _defect(structure, "vacancy", "", 0.0, params, run)


@chain(
    name="substitution",
    version="1.0.0",
    inputs=("structure",),
    parameters=PARAMETERS
    | {
        "replacement": point_defect.contract.space["replacement"].model_copy(update={"default": "Zn"}),
        "mu_added": Float(
            -20.0,
            20.0,
            unit="eV",
            default=0.0,
            description="chemical potential of the foreign atom, over that of its reference",
        ),
    },
    metrics=METRICS
    | {
        "energy_added": Metric(
            name="energy_added", unit="eV/atom", description="energy of the reference of the foreign atom"
        )
    },
    settings=SETTINGS,
    files=FILES,
    estimated_runtime_s=600.0,
    seeded=False,
    failure_modes=FAILURES,
    vary=("replacement",),
)
def substitution(structure: Any, *, replacement: str, mu_added: float, run: Run, **params: Any) -> Outcome:
    """Energy of a foreign atom in place of one of the crystal's: the solution energy, negative if it dissolves.

    E = E(with the foreign atom) - E(without) + mu(removed) - mu(added). The foreign atom's reference is its
    element's crystal or gas, plus `mu_added`; the removed one's is as in `vacancy`. At 0 K, neutral cells.
    """
    return _defect(structure, "substitution", replacement, mu_added, params, run)


def _defect(
    structure: Any, kind: str, replacement: str, mu_added: float, params: Mapping[str, Any], run: Run
) -> Outcome:
    settings = own_settings(run.settings)
    relaxed, energy = dft_relax.with_settings(**settings), dft_energy.with_settings(**settings)
    level = level_of(params)
    ways = {name: params[name] for name in ("fmax", "max_steps")}
    which: dict[str, Any] = {name: params[name] for name in DEFECT}
    if kind == "substitution":
        check_element(replacement)
    given = atoms_of(structure)
    refuse_charge("vacancies" if kind == "vacancy" else "foreign atoms", given, params)
    taken = str(given.symbols[_first(given, params)])
    host = (
        relaxed(structure, cell="shape_and_volume", **level, **ways)
        if params["relax_bulk"] == "yes"
        else structure
    )
    pairs = []
    for repeat in range(params["repeat"], params["repeat"] + params["sizes"]):
        whole = point_defect(host, kind="none", repeat=repeat)
        cell = point_defect(host, kind=kind, replacement=replacement, repeat=repeat, **which)
        if params["relax"] == "yes":
            computed = relaxed(cell, cell=params["cell"], **level, **ways)
        else:
            computed = energy(cell, forces="no", **level)
        pairs.append((energy(whole, forces="no", **level), computed, cell))
    one_element = len(set(given.get_chemical_symbols())) == 1
    own = None if one_element else reference(taken, relaxed, level | ways, box=params["box"])
    foreign = reference(replacement, relaxed, level | ways, box=params["box"]) if kind == "substitution" else None
    added = 0.0 if foreign is None else metrics_of(foreign)["energy_per_atom"] + mu_added
    rows = []
    for whole_run, defect_run, built in pairs:
        perfect, defect = metrics_of(whole_run), metrics_of(defect_run)
        removed = (perfect if own is None else metrics_of(own))["energy_per_atom"]
        cost = defect["energy"] - perfect["energy"] + removed + params["mu_removed"] - added
        rows.append((perfect["n_atoms"], cost, defect.get("energy_gain"), removed, metrics_of(built)["n_sites"]))
    with (run.workdir / "supercells.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["n_atoms", "formation_energy_ev", "relaxation_energy_ev"])
        table.writerows([int(row[0]), *row[1:3]] for row in rows)
    artifacts = {"supercells": "supercells.csv", **artifacts_of(run, structure=pairs[-1][1])}
    metrics = _summary(rows)
    if foreign is not None:
        metrics["energy_added"] = added - mu_added
    near = min(metrics_of(built)["distance"] for _, _, built in pairs)
    notes: tuple[str, ...] = ()
    if near < _NEAR:
        small = min(row[0] for row in rows)
        notes = (
            f"in the smallest supercell ({small:.0f} atoms) the defect is {near:.2f} angstrom from its own image: "
            "a larger repeat",
        )
    return Outcome(metrics=metrics, artifacts=artifacts, notes=notes)


def _first(given: Any, params: Mapping[str, Any]) -> int:
    """Index of the atom meant; a number that is none is refused where the defect is built."""
    found = sites_of(given, params["element"])
    return int(found[min(params["site"], len(found) - 1)][0])


def _summary(rows: list[tuple[float, float, float | None, float, float]]) -> dict[str, float]:
    n_atoms, cost, gain, removed, n_sites = rows[-1]
    metrics = {"formation_energy": cost, "energy_removed": removed, "n_atoms": n_atoms, "n_sites": n_sites}
    if gain is not None:
        metrics["relaxation_energy"] = gain
    if len(rows) > 1:
        before, other = rows[-2][:2]
        metrics["size_change"] = cost - other
        # E(N) = E + c/N through both.
        metrics["extrapolated"] = (n_atoms * cost - before * other) / (n_atoms - before)
    return metrics
