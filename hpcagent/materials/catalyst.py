"""A catalyst's adsorption energy: looked up, and computed, stored and written down only where nobody has yet."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

from hpcagent.contexts.events import EVERYONE, Events
from hpcagent.errors import AppFailed, BadInput, NoSite, in_brief
from hpcagent.materials.by_workspace import Computes, check_options, computed_by
from hpcagent.materials.catalyst_plan import CatalystPlan, planned
from hpcagent.materials.catalyst_rows import (
    NOTEBOOK,
    OBJECTS,
    TABLE,
    Catalyst,
    PromisingCatalyst,
    added,
    check_may_store,
    content_of,
    entry_of,
    known_catalyst,
    noted,
    stored_of,
)
from hpcagent.model.records import Result
from hpcagent.resources.folder import Resources

__all__ = ["EVENT", "THRESHOLD_EV", "Tells", "record_catalyst", "run_catalyst"]

THRESHOLD_EV = -1.2
EVENT = "new_promising_catalyst"


class Tells(Protocol):
    """Where the event goes: a workspace."""

    def tell(self, event: str, payload: Mapping[str, Any], *, to: str = ..., key: str = ...) -> object:
        """Tell an event to somebody; of the same key a trigger starts something once."""


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
    plan = planned(structure, adsorbate, catalyst, settings or {}, parameters, here=workspace is None)
    ask.check(plan)
    resources.require(**{TABLE: "read"}, **({NOTEBOOK: "add"} if note_found else {}))
    known = known_catalyst(resources, plan, accept)
    if known is not None:
        return noted(resources, plan, known) if note_found else known
    plan.check()
    check_may_store(resources)
    with resources.claim(TABLE, plan.manifest.execution_id) as waited:
        known = known_catalyst(resources, plan, accept) if waited else None
        if known is not None:
            return noted(resources, plan, known) if note_found else known
        found = _new(resources, plan, threshold_ev, ask)
    if found.event is not None and on_event is not None:
        on_event(found.event)
    return found


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
    with resources.claim(TABLE, plan.manifest.execution_id):
        known = known_catalyst(resources, plan, "same_method")
        if known is not None:
            return known
        return _new(resources, plan, threshold_ev, _Ask(events, None, {}, (result, dict(runs))))


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


def _new(resources: Resources, plan: CatalystPlan, threshold_ev: float, ask: _Ask) -> Catalyst:
    """Compute it, unless a call before was killed after that; then store what is not stored yet."""
    objects, run_id = resources.objects(OBJECTS), plan.manifest.execution_id
    stored = stored_of(objects, plan)
    if stored is None:
        stored = content_of(plan, *_computed(resources, plan, ask))
        objects.put(plan.key, stored, run_id=run_id)
    info = objects.info(plan.key)
    energy, notes = float(stored["metrics"]["adsorption_energy"]), tuple(stored["notes"])
    notebook = resources.notebook(NOTEBOOK)
    before = notebook.entries(experiment_id=run_id, limit=1000).items
    written = [e for e in before if e["output_uri"] == info.uri and e.at >= info.created_at]
    entry = (
        written[-1] if written else notebook.append(entry_of(plan, info.uri) | {"adsorption_energy_ev": energy})
    )
    event = None
    if energy < threshold_ev:
        event = PromisingCatalyst(plan.catalyst, plan.adsorbate, energy, info.uri, float(threshold_ev))
        _tell_once(resources, event, since=info.created_at)
        ask.tell(event, resources.caller.name, f"{run_id[:64]} {info.created_at:.3f}")
    # The row is last: with it everything is done, and nobody looks further.
    row = added(resources.database(TABLE), plan, energy, info.uri)
    return Catalyst(False, row, energy, info.uri, event, entry, notes, dict(stored.get("runs", {})))


def _tell_once(resources: Resources, event: PromisingCatalyst, *, since: float) -> None:
    for before in resources.history(TABLE):
        if before["event"] == EVENT and before["result_uri"] == event.result_uri and before["at"] >= since:
            return
    resources.tell(TABLE, EVENT, **asdict(event), adsorption_energy_unit="eV")


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
        why = f"{plan.catalyst} and {plan.adsorbate}, for {TABLE}"
        result, runs = computed_by(ask.workspace, plan.chain, plan.manifest, {"why": why, **ask.options})
    failure = result.failure
    if failure is not None:
        told = {"kind": failure.kind, "name": failure.name, "message": failure.message}
        resources.notebook(NOTEBOOK).append(entry_of(plan, None) | {"failure": told})
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
            f"{plan.catalyst} and {plan.adsorbate} are not in {TABLE} and have to be computed, but no site is "
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
