"""Adsorption energies, from three runs at one level of theory."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from typing import Any

from hpcagent.apps.decorator import app
from hpcagent.apps.made_with import mixed_versions
from hpcagent.apps.run import Outcome, Run
from hpcagent.errors import AppFailed
from hpcagent.model.contract import Metric
from hpcagent.model.parameter import Float
from hpcagent.science.engines.base import LEVEL

__all__ = ["MAY_DIFFER", "adsorption_energy_of", "differences"]

MAY_DIFFER = ("kpts", "mesh", "magmom", "charge", "max_scf", "mixing", "repairs")
"""Parameters of a level that depend on the structure, or on how the SCF gets there, not on what it approximates.
k-points are compared where the cells are the same, charges by whether they add up."""
_OF_CELL = ("kpts", "mesh")
_SAME_CELL = 1e-6  # angstrom
_SAME_CHARGE = 1e-6
_INPUTS = ("slab", "molecule", "together")


@app(
    name="adsorption_energy_of",
    version="1.0.0",
    app_type="analysis",
    inputs=_INPUTS,
    parameters={
        "share": Float(
            0.001, 1000.0, default=1.0, description="molecules that one adsorbate is made of, e.g. 0.5 for O of O2"
        )
    },
    metrics={
        "adsorption_energy": Metric(
            name="adsorption_energy", unit="eV", description="E(together) - E(slab) - share E(molecule); < 0 binds"
        )
    },
    seeded=False,
    failure_modes=("NoEnergy", "LevelsDiffer", "AtomsDiffer"),
    estimated_runtime_s=0.05,
)
def adsorption_energy_of(share: float, run: Run) -> Outcome:
    """Adsorption energy from three runs: the slab, the molecule in vacuum, both together.

    E_ads = E(together) - E(slab) - share E(molecule); negative where the adsorbate binds. Zero-point energies are
    not in it (see e.g. B. Hammer, L. B. Hansen, J. K. Norskov, Phys. Rev. B 59, 7413 (1999)).

    Raises:
        AppFailed: `NoEnergy`; `LevelsDiffer`: the runs were not computed alike, so their difference means nothing;
            `AtomsDiffer`: slab and adsorbate do not add up to what is together.
    """
    energies, errors = [], []
    for name, fields in zip(_INPUTS, run.upstream, strict=True):
        energy = (fields.get("metrics") or {}).get("energy")
        if energy is None:
            raise AppFailed(
                f"the input {name} ({fields.get('workdir')}) has no metric `energy`.",
                kind="contract",
                name="NoEnergy",
                repair="pass runs that compute energies",
            )
        energies.append(float(energy))
        errors.append(float((fields.get("uncertainty") or {}).get("energy", math.nan)))
    runs = dict(zip(_INPUTS, run.upstream, strict=True))
    found = [*differences(runs), *_of_structures(runs, share)]
    if found:
        raise AppFailed(
            f"the three runs were not computed alike, so their energies cannot be subtracted: {'; '.join(found)}.",
            kind="contract",
            name="LevelsDiffer",
            repair="compute slab, molecule and both together with the same engine and settings",
        )
    notes = _check_atoms(run, share)
    if any(not (fields.get("manifest") or {}).get("params") for fields in run.upstream):
        notes += ("not all inputs say how they were computed; that they were computed alike was not checked",)
    mixed = mixed_versions(fields.get("versions") or {} for fields in run.upstream)
    notes += tuple(f"the three runs were computed with different versions: {said}" for said in mixed)
    slab, molecule, together = energies
    error = math.sqrt(errors[2] ** 2 + errors[0] ** 2 + (share * errors[1]) ** 2)
    return Outcome(
        metrics={"adsorption_energy": together - slab - share * molecule},
        uncertainty={"adsorption_energy": error} if math.isfinite(error) else {},
        notes=notes,
    )


def differences(runs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """How the levels of theory of these runs differ: one clause for each parameter, empty if they do not.

    Runs of one app must also have the same settings (pseudopotentials, keywords), which its input digest tells.
    """
    manifests = {name: fields.get("manifest") or {} for name, fields in runs.items()}
    params = {name: m.get("params") or {} for name, m in manifests.items() if m.get("params")}
    found = []
    for key in LEVEL:
        values = {name: p[key] for name, p in params.items() if key in p}
        if key not in MAY_DIFFER and len(set(values.values())) > 1:
            found.append(f"{key} is " + ", ".join(f"{value!r} ({name})" for name, value in values.items()))
    for name, fields in runs.items():
        found += [f"{name}: {note}" for note in fields.get("notes") or () if "changed the physics" in note]
    digests: dict[str, dict[str, str]] = {}
    for name, manifest in manifests.items():
        if manifest.get("app") and manifest.get("input_digest"):
            digests.setdefault(manifest["app"], {})[name] = manifest["input_digest"]
    for app_name, of_app in digests.items():
        if len(set(of_app.values())) > 1:
            found.append(f"the settings of {app_name} are not the same for {', '.join(of_app)}")
    return found


def _of_structures(runs: Mapping[str, Mapping[str, Any]], share: float) -> list[str]:
    """What differs between the runs that only their structures tell: k-points in one cell, charges."""
    from hpcagent.apps.structures import structure_of, total_charge

    params = {name: (fields.get("manifest") or {}).get("params") or {} for name, fields in runs.items()}
    atoms: dict[str, Any] = {}
    with contextlib.suppress(AppFailed):
        atoms = {name: structure_of(fields) for name, fields in runs.items()}
    found = []
    # Without structures nobody knows the cells; an adsorbate is put onto a slab in the slab's own.
    same_cell = not atoms or (
        atoms["slab"].cell.rank == 3
        and bool(abs(atoms["slab"].cell.array - atoms["together"].cell.array).max() < _SAME_CELL)
    )
    for key in _OF_CELL if same_cell else ():
        values = [params[name].get(key) for name in ("slab", "together")]
        if None not in values and values[0] != values[1]:
            found.append(f"{key} is {values[0]!r} (slab), {values[1]!r} (together) in the same cell")
    charges = {
        name: (total_charge(atoms[name]) if atoms else 0.0) or float(params[name].get("charge") or 0)
        for name in runs
    }
    if abs(charges["slab"] + share * charges["molecule"] - charges["together"]) > _SAME_CHARGE:
        found.append(
            "charge is " + ", ".join(f"{charge:+g} ({name})" for name, charge in charges.items()) + ": slab and "
            f"{share:g} of the molecule do not add up to both together"
        )
    return found


def _check_atoms(run: Run, share: float) -> tuple[str, ...]:
    """Whether slab and adsorbate add up to what is together, where all three have structures."""
    from collections import Counter

    from hpcagent.apps.structures import structure_of

    try:
        atoms: list[Any] = [structure_of(fields) for fields in run.upstream]
    except AppFailed:
        return ("not all inputs have structures; that their atoms add up was not checked",)
    slab, molecule, together = (Counter(a.get_chemical_symbols()) for a in atoms)
    for symbol in {*slab, *molecule, *together}:
        expected = slab[symbol] + share * molecule[symbol]
        if abs(expected - together[symbol]) > 1e-6:
            raise AppFailed(
                f"the slab ({atoms[0].symbols}) and {share:g} of the molecule ({atoms[1].symbols}) have "
                f"{expected:g} atoms of {symbol}, what is together ({atoms[2].symbols}) has {together[symbol]}.",
                kind="contract",
                name="AtomsDiffer",
                repair="pass the inputs as slab, molecule, together, and the share of the molecule that adsorbs",
            )
    return ()
