"""What is on record of catalysts: rows of `catalyst_db`, stored results, entries of the notebook."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from hpcagent.errors import HpcAgentError
from hpcagent.materials.catalyst_plan import CatalystPlan
from hpcagent.model.records import Result
from hpcagent.model.texts import line
from hpcagent.resources.database import Database, Row
from hpcagent.resources.folder import Resources
from hpcagent.resources.notebook import Entry
from hpcagent.resources.objects import ObjectStore

__all__ = [
    "NOTEBOOK",
    "OBJECTS",
    "TABLE",
    "Catalyst",
    "PromisingCatalyst",
    "added",
    "check_may_store",
    "content_of",
    "entry_of",
    "known_catalyst",
    "noted",
    "stored_of",
]

TABLE, OBJECTS, NOTEBOOK = "catalyst_db", "dft_results", "lab_notebook"
_CONDITIONS = ("energy_reference", "facet", "site", "relax")


@dataclass(frozen=True, slots=True)
class PromisingCatalyst:
    """The event `new_promising_catalyst`.

    Attributes:
        catalyst: E.g. `Cu-ZnO`.
        adsorbate: What adsorbs.
        adsorption_energy: In eV, below the threshold.
        result_uri: Of the result.
        threshold: In eV.
    """

    catalyst: str
    adsorbate: str
    adsorption_energy: float
    result_uri: str
    threshold: float


@dataclass(frozen=True, slots=True)
class Catalyst:
    """What is known of a catalyst.

    Attributes:
        found: Whether it was there; else it was computed now.
        row: Of the table.
        adsorption_energy: In eV.
        result_uri: Where it comes from: a stored result, or what the row refers to.
        event: What was told, for a new result below the threshold; or None.
        entry: What was written into the notebook; or None.
        notes: Remarks of the run that made it, what else is to be known of the number, other rows there are.
        runs: Execution id -> id in the workspace, of the runs that it comes from, where a workspace computed it.
    """

    found: bool
    row: Row
    adsorption_energy: float
    result_uri: str
    event: PromisingCatalyst | None = None
    entry: Entry | None = None
    notes: tuple[str, ...] = ()
    runs: Mapping[str, str] = field(default_factory=dict)


def check_may_store(resources: Resources) -> None:
    """See that the role may store what would be computed.

    Raises:
        NotPermitted: It may not.
    """
    resources.require(**{TABLE: "add", OBJECTS: "add", NOTEBOOK: "add"})
    resources.require(**{OBJECTS: "read", NOTEBOOK: "read"})


def known_catalyst(
    resources: Resources, plan: CatalystPlan, accept: Literal["same_method", "any_method"] = "same_method"
) -> Catalyst | None:
    """What `catalyst_db` has of it; None: nothing. See `run_catalyst`.

    Raises:
        NotPermitted: The role may not read it.
    """
    resources.require(**{TABLE: "read"})
    if TABLE not in resources.provisioned:
        return None
    table = resources.database(TABLE)
    made = table.query({"run_id": plan.manifest.execution_id}, descending=True, limit=1)
    if made.total and accept == "same_method":
        return _of_row(resources, made.items[0], ())
    alike = {"metal": plan.metal, "support": plan.support, "adsorbate": plan.adsorbate}
    others = table.query(alike, descending=True, limit=100)
    if not made.total and (accept == "same_method" or not others.total):
        return None
    row = made.items[0] if made.total else min(others, key=lambda one: _differences(plan, one))
    notes = []
    if others.total > 1:
        energies = [one["adsorption_energy"] for one in others]
        notes.append(
            f"{others.total} rows of {plan.catalyst} and {plan.adsorbate}, by any method: {min(energies):.3f} to "
            f"{max(energies):.3f} eV; this is the one that differs least from what was asked, by {row['method']}"
        )
    for name, wanted in plan.conditions.items():
        has = row.values.get(name)
        if has != wanted:
            notes.append(f"{name}: asked for {wanted}, the row " + (f"has {has}" if has else "does not say"))
    return _of_row(resources, row, tuple(notes))


def _differences(plan: CatalystPlan, row: Row) -> list[bool]:
    """In what a row differs from what was asked; what matters most is first."""
    return [row.values.get(name) != plan.conditions[name] for name in _CONDITIONS if name in plan.conditions]


def _of_row(resources: Resources, row: Row, notes: tuple[str, ...]) -> Catalyst:
    """A row with what was said of it when it was computed."""
    uri = str(row["reference"])
    found = Catalyst(True, row, row["adsorption_energy"], uri, notes=notes)
    store, _, key = uri.partition("/")
    if store != OBJECTS or not row.run_id:
        return found
    try:
        stored = resources.objects(OBJECTS).get(key)
    except (HpcAgentError, OSError) as error:  # no right to read it, or it is gone
        return replace(found, notes=(*notes, f"the remarks of its run cannot be read: {line(str(error))}"))
    return replace(found, notes=(*notes, *stored.get("notes", ())), runs=dict(stored.get("runs", {})))


def noted(resources: Resources, plan: CatalystPlan, known: Catalyst) -> Catalyst:
    """A result that was found, with an entry in the notebook that says so."""
    entry = resources.notebook(NOTEBOOK).append(
        entry_of(plan, known.result_uri) | {"found": True, "adsorption_energy_ev": known.adsorption_energy}
    )
    return replace(known, entry=entry)


def stored_of(objects: ObjectStore, plan: CatalystPlan) -> dict[str, Any] | None:
    """The result of this run, if it is there and whole."""
    if plan.key not in {s.key for s in objects.listed(plan.key, limit=1)}:
        return None
    return objects.get(plan.key)


def content_of(plan: CatalystPlan, result: Result, runs: Mapping[str, str]) -> dict[str, Any]:
    """What is stored of a result."""
    # What a workspace has computed lies in the folders of its runs.
    where = {"runs": dict(runs)} if runs else {"workdir": result.workdir}
    return {
        "experiment_id": plan.manifest.execution_id,
        "catalyst": plan.catalyst,
        "adsorbate": plan.adsorbate,
        "structure": plan.structure,
        "app": result.manifest.app,
        "app_version": result.manifest.app_version,
        "input_digest": result.manifest.input_digest,
        "parameters": dict(result.manifest.params),
        "metrics": dict(result.metrics),
        "units": dict(result.units),
        "uncertainty": dict(result.uncertainty),
        "notes": list(dict.fromkeys((*result.notes, *plan.remarks))),
        "level_of_theory": dict(result.level_of_theory),
        "versions": dict(result.versions),
        "files": dict(result.files),
        "ended_at": result.ended_at,
        **where,
    }


def added(table: Database, plan: CatalystPlan, energy: float, uri: str) -> Row:
    """The row of a result, which is added if it is not there."""
    before = table.query({"run_id": plan.manifest.execution_id}, descending=True, limit=1)
    if before.total:
        return before.items[0]
    # Surface per mass is nothing that a slab has: it stays unknown.
    values = {
        "metal": plan.metal,
        "support": plan.support,
        "adsorbate": plan.adsorbate,
        "adsorption_energy": energy,
        "reference": uri,
        "method": plan.method,
    }
    columns = {field.name for field in table.fields}
    values |= {name: said for name, said in plan.conditions.items() if name in columns}
    # A table of a folder that was made before these columns keeps its own.
    left = [f"{name} {said}" for name, said in plan.conditions.items() if name not in columns]
    if left:
        values["method"] = line("; ".join([plan.method, *left]))
    return table.add(values, run_id=plan.manifest.execution_id)


def entry_of(plan: CatalystPlan, uri: str | None) -> dict[str, Any]:
    """What an entry of the notebook has of a run; without a result no `uri`."""
    return {
        "experiment_id": plan.manifest.execution_id,
        "inputs": {"catalyst": plan.catalyst, "adsorbate": plan.adsorbate, "method": plan.method},
        "output_uri": uri,
    }
