"""A catalyst's adsorption energy: looked up, and computed, stored and written down only where nobody has yet."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from hpcagent.apps.base import App
from hpcagent.contexts.events import EVERYONE, Events
from hpcagent.errors import AppFailed, BadInput, HpcAgentError, NoSite, in_brief, nearest
from hpcagent.materials.by_workspace import Computes, check_options, computed_by
from hpcagent.materials.formulas import counts_of, named_formulas, reduced_text
from hpcagent.model.records import Manifest, Result
from hpcagent.model.texts import line
from hpcagent.resources.database import Database, Row
from hpcagent.resources.folder import Resources
from hpcagent.resources.notebook import Entry
from hpcagent.resources.objects import ObjectStore

__all__ = [
    "EVENT",
    "THRESHOLD_EV",
    "Catalyst",
    "CatalystPlan",
    "PromisingCatalyst",
    "Tells",
    "check_may_store",
    "known_catalyst",
    "plan_catalyst",
    "record_catalyst",
    "run_catalyst",
]

THRESHOLD_EV = -1.2
EVENT = "new_promising_catalyst"
# Atoms whose adsorption energies are counted from half a molecule, as in the literature: O and N (B. Hammer,
# J. K. Norskov, Adv. Catal. 45, 71 (2000)), H (J. K. Norskov et al., J. Electrochem. Soc. 152, J23 (2005)),
# halogens alike. From a free atom they are lower by half the molecule's binding energy, 1 to 5 eV, and nearly
# all metals are below -1.2 eV.
_HALVES = ("H", "N", "O", "F", "Cl", "Br", "I")
_CONDITIONS = ("energy_reference", "facet", "site", "relax")
_TABLE, _OBJECTS, _NOTEBOOK = "catalyst_db", "dft_results", "lab_notebook"


class Tells(Protocol):
    """Where the event goes: a workspace."""

    def tell(self, event: str, payload: Mapping[str, Any], *, to: str = ..., key: str = ...) -> object:
        """Tell an event to somebody; of the same key a trigger starts something once."""


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


@dataclass(frozen=True, slots=True)
class CatalystPlan:
    """The run that would be made.

    Attributes:
        chain: What computes it.
        inputs: A structure; the molecule is built where it is computed.
        manifest: Of the run.
        metal: Of the catalyst.
        support: Likewise; `none` without one.
        adsorbate: What adsorbs.
        structure: The element, or the slab.
    """

    chain: App
    inputs: tuple[Any, ...]
    manifest: Manifest
    metal: str
    support: str
    adsorbate: str
    structure: str

    @property
    def catalyst(self) -> str:
        return self.metal if self.support == "none" else f"{self.metal}-{self.support}"

    @property
    def key(self) -> str:
        """Of the stored result, e.g. `CuZnO_CO2_run47.json`."""
        support = "" if self.support == "none" else self.support
        name = re.sub(r"[^A-Za-z0-9_+-]", "", f"{self.metal}{support}_{self.adsorbate}")[:100]
        return f"{name}_run{self.manifest.execution_id}.json"

    @property
    def conditions(self) -> dict[str, str]:
        """What the energy depends on beside the method, by columns; a slab of one's own has no facet."""
        params = self.manifest.params
        said = {name: str(params[name]) for name in ("facet", "site", "relax") if name in params}
        return {"energy_reference": f"{params['share']:g} {params['reference'] or self.adsorbate}"} | said

    @property
    def remarks(self) -> tuple[str, ...]:
        """What is to be known of the number before anything is computed."""
        from hpcagent.science.engines.registry import engine
        from hpcagent.science.structures.slab import SITES

        params, said = self.manifest.params, []
        used = engine(str(params["engine"]))
        if used.kind != "dft":
            said.append(f"engine {used.name} is a {used.kind} model, no DFT")
        if "site" in params:
            others = ", ".join(site for site in SITES if site != params["site"])
            said.append(
                f"it is of the site {params['site']}: at others ({others}) it may bind more strongly; they are "
                "computations of their own"
            )
        return tuple(said)

    def check(self) -> None:
        """See that it can be computed.

        Raises:
            BadInput: A parameter is missing without which the run would fail.
        """
        from hpcagent.science.engines.protocols import refuse_unsampled

        refuse_unsampled(self.manifest.params)

    @property
    def method(self) -> str:
        m = self.manifest
        return line(f"{m.app} {m.app_version}, {m.params['engine']}")


def run_catalyst(
    resources: Resources,
    structure: Any,
    adsorbate: str,
    *,
    catalyst: str | None = None,
    accept: Literal["same_method", "any_method"] = "same_method",
    threshold_ev: float = THRESHOLD_EV,
    on_event: Callable[[PromisingCatalyst], object] | None = None,
    events: Events | Tells | None = None,
    workspace: Computes | None = None,
    run_options: Mapping[str, Any] | None = None,
    note_found: bool = False,
    settings: Mapping[str, Any] | None = None,
    **parameters: Any,
) -> Catalyst:
    """Find the adsorption energy of a catalyst, or compute it, store it and write it down.

    It is looked up in `catalyst_db`. If it is not there it is computed on the open site, or by a workspace, by
    the chain `adsorption` (an element) or `adsorption_energy` (a slab); the result is stored in `dft_results`, a
    row is added to `catalyst_db`, an entry to `lab_notebook`, and below the threshold the event
    `new_promising_catalyst` is told: in the history of `catalyst_db`, to `events`, then to `on_event`. Of several
    who ask for the same at once one computes. A call that was killed in between is completed by the next one
    from what is stored. A run that fails is an entry of the notebook, with its failure and no output.

    E_ads = E(slab + adsorbate) - E(slab) - share E(molecule), in eV, below 0 where it binds; see the chain.
    Unless `reference` or `share` is given, H, N, O and halogens refer to half of their molecule (B. Hammer,
    J. K. Norskov, Adv. Catal. 45, 71 (2000)), all others to what adsorbs.

    Args:
        resources: From `Resources.open`; to compute, the role must be allowed to add to all three.
        structure: An element, of which the chain makes the slab; or the slab: ASE `Atoms`, or the path
            of a structure file.
        adsorbate: An atom or a molecule of `ase.build.molecule`.
        catalyst: What it is called, e.g. `Cu-ZnO` for copper on zinc oxide. By default the element, or the reduced
            formula of the slab.
        accept: Which row of the table will do: `same_method`: one that this very run has made (same structure,
            level of theory and versions of the apps). `any_method`: any of this metal, support and adsorbate; of
            several the one that differs least in what the energy refers to, facet, site and relaxation (in this
            order), then the newest. Notes say each difference, and what the others are.
        threshold_ev: Below this the result is promising, in eV.
        on_event: Is called with the event, after everything is stored; what it raises is raised.
        events: A workspace, or `Events`: its triggers and all its subscribers get the event. It is told before the
            row is added, so a call that was killed tells it again; by its key a trigger starts something once.
        workspace: A workspace that computes in place of the open site: each computation is a run of the caller's,
            behind the gate, with quota and approval. For elements.
        run_options: How these runs are asked for: `site`, `walltime_s`, `why`, `label`; see `Workspace.run`.
        note_found: Write an entry into the notebook for a result that was found, too.
        settings: Of the engine, as for `with_settings`.
        parameters: Of the chain, e.g. `engine="emt"`, `facet="fcc111"`, `site="fcc"`.

    Returns:
        The row, whether it was found, and what was written.

    Raises:
        BadInput: The run has no such parameter (it is not dropped), or a value is not allowed. Nothing was done.
        NotPermitted: The role may not; asked before anything is computed.
        NoSite: It has to be computed, and no site is open.
        AppFailed: The run has failed; the notebook says so.
        NotAllowed: The gate of the workspace refuses a run, or it waits for an approval: nothing was stored. Runs
            that have ended are found again by the next call.

    Example:
        >>> import tempfile
        >>> import hpcagent as ha
        >>> with tempfile.TemporaryDirectory() as folder, ha.open_site("threads", run_dir=f"{folder}/runs"):
        ...     resources = ha.resources.Resources.open(f"{folder}/shared", caller="bot", role="executor")
        ...     how = {"engine": "emt", "relax": "none", "layers": 2, "site": "fcc"}
        ...     first = ha.materials.run_catalyst(resources, "Pt", "O", **how)
        ...     again = ha.materials.run_catalyst(resources, "Pt", "O", **how)
        >>> first.found, again.found, again.adsorption_energy == first.adsorption_energy
        (False, True, True)
    """
    if accept not in ("same_method", "any_method"):
        raise BadInput(f"accept={accept!r} must be 'same_method' or 'any_method'.", value=accept)
    if (
        isinstance(threshold_ev, bool)
        or not isinstance(threshold_ev, (int, float))
        or not math.isfinite(threshold_ev)
    ):
        raise BadInput(f"threshold_ev={threshold_ev!r} must be a finite number, in eV.", value=threshold_ev)
    ask = _Ask(events, workspace, dict(run_options or {}))
    plan = _planned(structure, adsorbate, catalyst, settings or {}, parameters, here=workspace is None)
    ask.check(plan)
    resources.require(**{_TABLE: "read"}, **({_NOTEBOOK: "add"} if note_found else {}))
    known = _known(resources, plan, accept)
    if known is not None:
        return _noted(resources, plan, known) if note_found else known
    plan.check()
    check_may_store(resources)
    with resources.claim(_TABLE, plan.manifest.execution_id) as waited:
        known = _known(resources, plan, accept) if waited else None
        if known is not None:
            return _noted(resources, plan, known) if note_found else known
        found = _new(resources, plan, threshold_ev, ask)
    if found.event is not None and on_event is not None:
        on_event(found.event)
    return found


def plan_catalyst(
    structure: str, adsorbate: str, *, catalyst: str | None = None, parameters: Mapping[str, Any] | None = None
) -> CatalystPlan:
    """The run that a workspace would make for the adsorption energy of an element; nothing is started.

    Args:
        structure: An element, of which the chain `adsorption` makes the slab.
        adsorbate: As `run_catalyst` has it, and so are `catalyst` and `parameters`.

    Raises:
        BadInput: The run has no such parameter, or a value is not allowed.
    """
    if not re.fullmatch(r"[A-Z][a-z]?", structure):
        raise BadInput(f"structure={in_brief(structure)} is no element.", value=structure)
    return _planned(structure, adsorbate, catalyst, {}, parameters or {}, here=False)


def known_catalyst(
    resources: Resources, plan: CatalystPlan, accept: Literal["same_method", "any_method"] = "same_method"
) -> Catalyst | None:
    """What `catalyst_db` has of it; None: nothing. See `run_catalyst`.

    Raises:
        NotPermitted: The role may not read it.
    """
    resources.require(**{_TABLE: "read"})
    return _known(resources, plan, accept)


def record_catalyst(
    resources: Resources,
    plan: CatalystPlan,
    result: Result,
    *,
    runs: Mapping[str, str],
    threshold_ev: float = THRESHOLD_EV,
    events: Events | Tells | None = None,
) -> Catalyst:
    """Store the result of a run that was planned by `plan_catalyst`, write it down and tell it, once.

    Args:
        resources: The role must be allowed to add to all three.
        plan: What was planned.
        result: Of its run.
        runs: Execution id -> id in the workspace, of the runs that it comes from.
        threshold_ev: Below this it is promising, in eV.
        events: Who is told.

    Raises:
        NotPermitted: The role may not.
        AppFailed: The run has failed; the notebook says so.
    """
    check_may_store(resources)
    with resources.claim(_TABLE, plan.manifest.execution_id):
        known = _known(resources, plan, "same_method")
        if known is not None:
            return known
        return _new(resources, plan, threshold_ev, _Ask(events, None, {}, (result, dict(runs))))


def check_may_store(resources: Resources) -> None:
    """See that the role may store what would be computed.

    Raises:
        NotPermitted: It may not.
    """
    resources.require(**{_TABLE: "add", _OBJECTS: "add", _NOTEBOOK: "add"})
    resources.require(**{_OBJECTS: "read", _NOTEBOOK: "read"})


@dataclass(frozen=True, slots=True)
class _Ask:
    """Who computes, and who is told."""

    events: Events | Tells | None
    workspace: Computes | None
    options: Mapping[str, Any]
    done: tuple[Result, dict[str, str]] | None = None  # it was computed, by these runs

    def check(self, plan: CatalystPlan) -> None:
        """See that a workspace can make this run.

        Raises:
            BadInput: It cannot.
        """
        check_options(self.options)
        if self.workspace is None:
            if self.options:
                raise BadInput(
                    f"run_options={in_brief(dict(self.options))} without workspace=; an open site takes none.",
                    value=dict(self.options),
                )
            return
        if plan.inputs:
            raise BadInput(
                "a workspace takes runs as input, and a slab of your own cannot be handed to it; compute it on an "
                "open site, without workspace=.",
                value=plan.catalyst,
            )

    def tell(self, event: PromisingCatalyst, by: str, key: str) -> None:
        said = asdict(event) | {"adsorption_energy_unit": "eV"}
        if isinstance(self.events, Events):
            self.events.tell(EVENT, said, owner=EVERYONE, by=by, key=key)
        elif self.events is not None:
            self.events.tell(EVENT, said, to=EVERYONE, key=key)


def _planned(
    structure: Any,
    adsorbate: str,
    catalyst: str | None,
    settings: Mapping[str, Any],
    parameters: Mapping[str, Any],
    *,
    here: bool,
) -> CatalystPlan:
    """The run, checked whole; nothing is started."""
    from hpcagent.apps.structures import Given, given, structure_of
    from hpcagent.science.chains.adsorption import adsorption, adsorption_energy
    from hpcagent.science.structures.molecule import build_molecule
    from hpcagent.sites.site import current_site

    if not isinstance(adsorbate, str) or not adsorbate.strip():
        raise BadInput(f"adsorbate={in_brief(adsorbate)} must be the name of an atom or a molecule.")
    names = () if catalyst is None else named_formulas(catalyst)
    if catalyst is not None and len(names) not in (1, 2):
        raise BadInput(
            f"catalyst={catalyst!r} must be a metal, or a metal and its support: Cu-ZnO.", value=catalyst
        )
    of_element = isinstance(structure, str) and not Path(structure).suffix
    chain = adsorption if of_element else adsorption_energy
    taken = {"metal", "adsorbate"} & {p.name for p in chain.contract.space.parameters}
    for name in parameters:
        free = [p.name for p in chain.contract.space.parameters if p.name not in taken]
        if name not in free:
            instead = "they are structure and adsorbate" if name in taken else nearest(name, free)
            raise BadInput(
                f"the run ({chain.name} {chain.contract.version}) has no input {name!r}, and nothing is dropped; "
                f"{instead}",
                value=name,
            )
    parameters = _with_reference(adsorbate, parameters)
    if settings:
        chain = chain.with_settings(**settings)
    site = current_site() if here else None
    about = None if site is None else site.about
    if of_element:
        made = named_formulas(structure)
        if len(made) != 1 or len(counts_of(structure)) != 1:
            raise BadInput(
                f"structure={structure!r} is no element, and of others no slab can be made from the name; give "
                f"the slab (ASE Atoms, or the path of a file) and catalyst={structure!r}.",
                value=structure,
            )
        params = {**parameters, "metal": structure, "adsorbate": adsorbate}
        manifest = chain.manifest(params, site=about)
        metal, support = _pair(names) or (structure, "none")
        return CatalystPlan(chain, (), manifest, metal, support, adsorbate, structure)
    slab = given(structure, "slab")
    if not isinstance(slab, Given):
        raise BadInput(f"structure={in_brief(structure)} is no element, no ASE Atoms and no path of a structure.")
    symbols = structure_of(slab.fields).get_chemical_symbols()
    formula = reduced_text({s: symbols.count(s) for s in dict.fromkeys(symbols)})
    values = chain.contract.space.validated(parameters, where=f"app {chain.name} {chain.contract.version}")
    molecule = build_molecule.manifest({"name": adsorbate, "vacuum": values["box"]}, site=about)
    upstream = (slab.identity, molecule.execution_id)
    manifest = chain.manifest(parameters, upstream=upstream, site=about)
    metal, support = _pair(names) or (formula, "none")
    return CatalystPlan(chain, (slab,), manifest, metal, support, adsorbate, slab.fields["structure"])


def _with_reference(adsorbate: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters with the literature's reference, where none was asked for."""
    if adsorbate not in _HALVES or {"reference", "share"} & parameters.keys():
        return dict(parameters)
    spin = {"reference_magmom": 1.0} if adsorbate == "O" else {}
    return {"reference": f"{adsorbate}2", "share": 0.5} | spin | dict(parameters)


def _pair(names: tuple[str, ...]) -> tuple[str, str] | None:
    return None if not names else (names[0], names[1] if len(names) == 2 else "none")


def _known(resources: Resources, plan: CatalystPlan, accept: str) -> Catalyst | None:
    """What the table has, or None."""
    if _TABLE not in resources.provisioned:
        return None
    table = resources.database(_TABLE)
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
    if store != _OBJECTS or not row.run_id:
        return found
    try:
        stored = resources.objects(_OBJECTS).get(key)
    except (HpcAgentError, OSError) as error:  # no right to read it, or it is gone
        return replace(found, notes=(*notes, f"the remarks of its run cannot be read: {line(str(error))}"))
    return replace(found, notes=(*notes, *stored.get("notes", ())), runs=dict(stored.get("runs", {})))


def _noted(resources: Resources, plan: CatalystPlan, known: Catalyst) -> Catalyst:
    entry = resources.notebook(_NOTEBOOK).append(
        _entry(plan, known.result_uri) | {"found": True, "adsorption_energy_ev": known.adsorption_energy}
    )
    return replace(known, entry=entry)


def _new(resources: Resources, plan: CatalystPlan, threshold_ev: float, ask: _Ask) -> Catalyst:
    """Compute it, unless a call before was killed after that; then store what is not stored yet."""
    objects, run_id = resources.objects(_OBJECTS), plan.manifest.execution_id
    stored = _stored(objects, plan)
    if stored is None:
        stored = _content(plan, *_computed(resources, plan, ask))
        objects.put(plan.key, stored, run_id=run_id)
    info = objects.info(plan.key)
    energy, notes = float(stored["metrics"]["adsorption_energy"]), tuple(stored["notes"])
    notebook = resources.notebook(_NOTEBOOK)
    before = notebook.entries(experiment_id=run_id, limit=1000).items
    written = [e for e in before if e["output_uri"] == info.uri and e.at >= info.created_at]
    entry = written[-1] if written else notebook.append(_entry(plan, info.uri) | {"adsorption_energy_ev": energy})
    event = None
    if energy < threshold_ev:
        event = PromisingCatalyst(plan.catalyst, plan.adsorbate, energy, info.uri, float(threshold_ev))
        _tell_once(resources, event, since=info.created_at)
        ask.tell(event, resources.caller.name, f"{run_id[:64]} {info.created_at:.3f}")
    # The row is last: with it everything is done, and nobody looks further.
    row = _added(resources.database(_TABLE), plan, energy, info.uri)
    return Catalyst(False, row, energy, info.uri, event, entry, notes, dict(stored.get("runs", {})))


def _tell_once(resources: Resources, event: PromisingCatalyst, *, since: float) -> None:
    for before in resources.history(_TABLE):
        if before["event"] == EVENT and before["result_uri"] == event.result_uri and before["at"] >= since:
            return
    resources.tell(_TABLE, EVENT, **asdict(event), adsorption_energy_unit="eV")


def _stored(objects: ObjectStore, plan: CatalystPlan) -> dict[str, Any] | None:
    """The result of this run, if it is there and whole."""
    if plan.key not in {s.key for s in objects.listed(plan.key, limit=1)}:
        return None
    return objects.get(plan.key)


def _computed(resources: Resources, plan: CatalystPlan, ask: _Ask) -> tuple[Result, dict[str, str]]:
    """The result, and the runs of a workspace that it was made of.

    Raises:
        AppFailed: It failed; the notebook says so.
    """
    runs: dict[str, str] = {}
    if ask.done is not None:
        result, runs = ask.done
    elif ask.workspace is None:
        result = _on_site(plan)
    else:
        why = f"{plan.catalyst} and {plan.adsorbate}, for {_TABLE}"
        result, runs = computed_by(ask.workspace, plan.chain, plan.manifest, {"why": why, **ask.options})
    failure = result.failure
    if failure is not None:
        told = {"kind": failure.kind, "name": failure.name, "message": failure.message}
        resources.notebook(_NOTEBOOK).append(_entry(plan, None) | {"failure": told})
        raise AppFailed(
            f"{plan.catalyst} and {plan.adsorbate}: {failure.message}",
            kind=failure.kind,
            name=failure.name,
            log_tail=failure.log_tail,
            repair=failure.repair,
        )
    if result.manifest.execution_id != plan.manifest.execution_id:
        raise AssertionError(f"{result.manifest.execution_id} is not the run that was planned")
    return result, runs


def _on_site(plan: CatalystPlan) -> Result:
    from hpcagent.science.structures.molecule import build_molecule
    from hpcagent.sites.site import current_dfk

    if current_dfk() is None:
        raise NoSite(
            f"{plan.catalyst} and {plan.adsorbate} are not in {_TABLE} and have to be computed, but no site is "
            "open. Write `with ha.open_site('laptop'):` around the call, or give workspace=."
        )
    params: dict[str, Any] = dict(plan.manifest.params)
    inputs: tuple[Any, ...] = ()
    if plan.inputs:
        from hpcagent.apps.structures import structure_of

        slab = structure_of(plan.inputs[0].fields)
        inputs = (slab, build_molecule(name=plan.adsorbate, vacuum=params["box"]))
    result: Result = plan.chain(*inputs, **params).result()
    return result


def _content(plan: CatalystPlan, result: Result, runs: Mapping[str, str]) -> dict[str, Any]:
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


def _added(table: Database, plan: CatalystPlan, energy: float, uri: str) -> Row:
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


def _entry(plan: CatalystPlan, uri: str | None) -> dict[str, Any]:
    return {
        "experiment_id": plan.manifest.execution_id,
        "inputs": {"catalyst": plan.catalyst, "adsorbate": plan.adsorbate, "method": plan.method},
        "output_uri": uri,
    }
