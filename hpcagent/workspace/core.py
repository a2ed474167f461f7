"""The workspace itself: what may be asked of it. One process has it at a time."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

from hpcagent.catalog import list_apps
from hpcagent.contexts.triggers import Started, Triggers, load_triggers
from hpcagent.errors import BadInput, HpcAgentError
from hpcagent.gate.not_allowed import NotAllowed
from hpcagent.gate.rules import Caller
from hpcagent.materials.catalyst import (
    THRESHOLD_EV,
    CatalystPlan,
    Tells,
    check_may_store,
    known_catalyst,
)
from hpcagent.model.records import Manifest
from hpcagent.resources.folder import Resources
from hpcagent.shown import plain
from hpcagent.sites.profiles import find_profile, list_profiles
from hpcagent.workspace.app_search import found_by
from hpcagent.workspace.catalysts import Catalysts, catalyst_data, plan_of
from hpcagent.workspace.configured import changed_since, configured
from hpcagent.workspace.counters import counters_of
from hpcagent.workspace.kept import Kept
from hpcagent.workspace.only_data import check_only_data, check_words
from hpcagent.workspace.plain_campaigns import check_changes
from hpcagent.workspace.rows import Row
from hpcagent.workspace.rules_said import rules_words, site_line
from hpcagent.workspace.runs import size_of
from hpcagent.workspace.shared import opened_resources
from hpcagent.workspace.tools import Registered

__all__ = ["Core"]

# So often campaigns are looked at.
LOOK_S = 5.0
# So often the folders of old runs are removed.
EXPIRE_S = 3600.0
# Files of runs that no run reads, asked about only, are removed after so long.
UNNAMED_S = 86400.0
ELEMENT = re.compile(r"[A-Z][a-z]?")


class Core(Registered):
    """Everything that is asked of a workspace.

    Args:
        root: Its folder, which is there.
        clock: Unix time, in seconds.
        apart: Sites are kept by processes of their own, which outlive this one.

    Raises:
        RunDirLocked: Another process serves it.
        BadInput: `workspace.toml` is wrong.
        StoreFull: It cannot be written.
    """

    def __init__(self, root: Path, *, clock: Callable[[], float] = time.time, apart: bool = False) -> None:
        super().__init__(root, clock=clock, apart=apart)
        self.started_at = clock()
        self._expired_at = clock()
        self._looked_at = -LOOK_S
        self._triggers: Triggers | None = None
        triggers = root / "triggers.toml"
        if triggers.is_file():
            self._triggers = Triggers(
                root / "triggers", self.events, load_triggers(triggers), self._triggered, owner=self._owner.name
            )
        self.catalysts = Catalysts(root / "catalysts", opened=self._resources_of, news=self._say)
        with self._turn:
            self._take_up()

    def _take_up(self) -> None:
        """Have done what was asked for and had not ended when the service before this one did."""
        for row in list(self.rows.values()):
            if row.over:
                continue
            if row.kind == "campaign":
                row.state = "running"
                self._take_up_campaign(row)
                continue
            if row.shares:
                other = self.rows.get(row.shares)
                if other is not None and other.over:
                    self._share(row, other)
                continue
            try:
                app = self.app(row.reference)
                manifest = Manifest.model_validate(row.manifest)
                taken = [{**(self.rows[i].result or {}), "manifest": self.rows[i].manifest} for i in row.inputs]
                app = configured(app, row.settings)
                changed = changed_since(app, manifest, row.code)
                if changed:
                    raise BadInput(changed)
            except (HpcAgentError, KeyError, ValueError) as error:
                self._end(row, "failed", note=f"not taken up by the new service: {plain(str(error))}")
                continue
            if not self._found_ended(row, manifest):
                self._send(row, app, manifest, taken)

    def _triggered(self, job: Started) -> str:
        """What a trigger starts goes through the gate as if the workspace's owner had asked for it."""
        why = f"trigger {job.trigger}"
        # Handed over again after a crash it is the same work of the same owner, which is found.
        # Whoever may tell an event says these values: they are data, as those of any client.
        said = {name: job.arguments[name] for name in job.of_payload if name in job.arguments}
        with self.gate.recorded(self._owner, what=why):
            if job.kind == "tool":
                check_only_data(self.app(job.name), said, {})
            elif job.kind == "campaign":
                check_changes(said)
                check_words(said)
        if job.kind == "tool":
            return str(self.run(self._owner, job.name, job.arguments, why=why, cause=job.cause)["id"])
        if job.kind == "campaign":
            begun = self.start(self._owner, job.name, changes=job.arguments, why=why, cause=job.cause)
            return str(begun["id"])
        raise BadInput(f"{why}: a workspace starts tools and campaigns; prompts need an agent.")

    def look(self) -> None:
        """See what has become of campaigns, triggers, late results and old folders."""
        now = time.monotonic()
        with self._turn:
            self._take_late()
        self.questions.look()
        if self._triggers is not None:
            try:
                self._triggers.run_once()
            except HpcAgentError as error:
                if not self.news or self.news[-1] != error.message:
                    self.news.append(error.message)
        for desk in list(self._desks.values()):
            if isinstance(desk, Kept):
                desk.look()
        self.catalysts.look(self.rows)
        self.look_at_tools()
        if now - self._looked_at < LOOK_S:
            return
        self._looked_at = now
        self._look_at_campaigns()
        with self._turn:
            self._expire_in_time()

    def _expire_in_time(self) -> None:
        """Once an hour, without being asked."""
        now = self._clock()
        if now - self._expired_at <= EXPIRE_S:
            return
        self._expired_at = now
        self.questions.expire()
        held = (r for r in self.rows.values() if not r.over or r.kind == "campaign" or self._workdir(r).exists())
        self.inputs.tidy((row.request.get("params", {}) for row in held), now - UNNAMED_S)
        if self.rules.retention_days is not None:
            try:
                self.expire(self._owner)
            except (HpcAgentError, OSError) as error:
                self.news.append(f"old folders were not removed: {error}")

    def expire(self, caller: Caller, *, dry_run: bool = False) -> dict[str, Any]:
        """Remove the folders of runs that are older than `retention_days`; their records stay.

        Args:
            caller: Who asks.
            dry_run: Remove nothing, say what would be removed.
        """
        earlier = self.answered.earlier
        if earlier is not None:
            return {"removed": list(earlier["runs"]), "bytes": sum(earlier["runs"].values()), "note": ""}
        with self._turn, self.gate.recorded(caller, what="expire"):
            self.gate.require(caller, "manage")
            days = self.rules.retention_days
            if days is None:
                return {"removed": [], "bytes": 0, "note": "workspace.toml sets no retention_days: all is kept"}
            gone: dict[str, int] = {}
            works: set[str] = set()
            for row in self._older_than(self._clock() - days * 86400):
                if row.execution_id in works:
                    continue
                works.add(row.execution_id)
                freed = size_of(self._workdir(row))
                if not dry_run:
                    shutil.rmtree(self._workdir(row))
                gone[row.id] = freed
            if gone and not dry_run:
                said = {"event": "expired", "runs": gone, "by": caller.name, "at": self._clock()}
                self.answered.mark(said)
                self._write(said)
                self._replay(said)
            note = "" if gone else f"no run that has files ended more than {days:g} days ago"
            return {"removed": list(gone), "bytes": sum(gone.values()), "note": note}

    def _older_than(self, before: float) -> Iterator[Row]:
        """Runs with a folder that nobody has asked for since, in Unix seconds."""
        for row in list(self.rows.values()):
            works = [self.rows[i] for i in self._by_work[row.execution_id]]
            young = any(not one.over or one.ended_at >= before for one in works)
            if row.kind == "run" and not young and self._workdir(row).exists():
                yield row

    def apps(self, caller: Caller, *, query: str = "") -> list[dict[str, Any]]:
        """Apps and approved tools that the caller may use; with a query those that it finds, the best first."""
        tools = self.tools_that_run(caller)
        apps = [app for app in list_apps() if self.gate.may_use(caller, "apps", app.name)]
        mark = {app.name: {"tool": True} for app in tools}
        return [
            {
                "name": app.name,
                "version": app.contract.version,
                "description": app.contract.description,
                **mark.get(app.name, {}),
            }
            for app in found_by([*apps, *tools], query)
        ]

    def catalyst(
        self,
        caller: Caller,
        *,
        structure: str,
        adsorbate: str,
        catalyst: str = "",
        accept: Literal["same_method", "any_method"] = "same_method",
        threshold_ev: float = THRESHOLD_EV,
        parameters: Mapping[str, Any] | None = None,
        site: str = "",
        walltime_s: float | None = None,
        why: str = "",
    ) -> dict[str, Any]:
        """A catalyst's adsorption energy: what is known, or the run that computes it; returns at once.

        The run is one of the chain `adsorption`, behind the gate as a whole. When it has ended its result is
        stored, written into the notebook, told and added to `catalyst_db`, in the caller's name, as
        `hpcagent.materials.run_catalyst` does it.

        Args:
            structure: An element.
            adsorbate: An atom or a molecule of `ase.build.molecule`.
            catalyst: What it is called, e.g. `Cu-ZnO`.
            accept: Which row of the table will do; see `run_catalyst`.
            threshold_ev: Below this it is promising, in eV.
            parameters: Of the chain.
            site: Where it runs.
            walltime_s: In seconds.
            why: What it is for.

        Returns:
            `state` (found, pending, running, recording, recorded, failed), `run_id` (of `found` the run that has
            computed it, where the caller may see it), `error` and `repair`, and what is known.

        Raises:
            NotAllowed: A value is not allowed, or the gate refuses the run.
            NotPermitted: The role may not read the table, or may not store what would be computed.
        """
        asked = {
            "structure": structure,
            "adsorbate": adsorbate,
            "catalyst": catalyst,
            "parameters": dict(parameters or {}),
            "threshold_ev": threshold_ev,
        }
        plan = self._planned(caller, asked)
        resources, _ = self._resources_of(caller.name)
        known = known_catalyst(resources, plan, accept)
        if known is not None:
            with self._turn:
                mine = [run for run in known.runs.values() if self._seen_by(caller, run)]
            run_id = mine[0] if mine else None
            return {"state": "found", "run_id": run_id, "error": None, "repair": None} | catalyst_data(
                known, asked
            )
        self._check_plan(caller, plan)
        check_may_store(resources)
        begun = self.run(caller, **_order_of(plan, site=site, walltime_s=walltime_s, why=why))
        if not self._has_failed(begun["id"]):
            self.catalysts.follow(begun["id"], caller.name, asked)
        return self.catalyst_state(caller, begun["id"])

    def estimate_catalyst(
        self,
        caller: Caller,
        *,
        structure: str,
        adsorbate: str,
        catalyst: str = "",
        accept: Literal["same_method", "any_method"] = "same_method",
        threshold_ev: float = THRESHOLD_EV,
        parameters: Mapping[str, Any] | None = None,
        site: str = "",
        walltime_s: float | None = None,
        why: str = "",
    ) -> dict[str, Any]:
        """What `catalyst` would take, and what the gate would say; nothing is run. Arguments as `catalyst`.

        Returns:
            As `estimate`; `known` is also what `catalyst_db` has.

        Raises:
            NotAllowed: A value is not allowed.
            NotPermitted: The role may not read the table.
        """
        asked = {
            "structure": structure,
            "adsorbate": adsorbate,
            "catalyst": catalyst,
            "parameters": dict(parameters or {}),
            "threshold_ev": threshold_ev,
        }
        plan = self._planned(caller, asked)
        known = known_catalyst(self._resources_of(caller.name)[0], plan, accept)
        if known is None:
            self._check_plan(caller, plan)
        found = self.estimate(caller, **_order_of(plan, site=site, walltime_s=walltime_s, why=why))
        return found if known is None else found | {"known": known.result_uri}

    def _planned(self, caller: Caller, asked: Mapping[str, Any]) -> CatalystPlan:
        """The run of a catalyst.

        Raises:
            NotAllowed: A value is not allowed.
        """
        structure = asked["structure"]
        with self.gate.recorded(caller, what="catalyst"):
            if not isinstance(structure, str) or not ELEMENT.fullmatch(structure):
                raise NotAllowed(
                    "contract",
                    "the slab is made of its element",
                    field="structure",
                    value=structure,
                    allowed="the symbol of an element, e.g. Cu",
                    do="correct it and ask again",
                )
            # To plan looks at files that parameters name: none of this machine is to be named at all.
            check_only_data(self.app("adsorption"), asked["parameters"], {})
            try:
                return plan_of(asked)
            except BadInput as error:
                why_not, value = error.message, error.details.get("value")
                field = next((name for name, one in asked.items() if one == value), "parameters")
                raise NotAllowed(
                    "contract", why_not, field=field, value=value, do="correct it and ask again"
                ) from None

    def _check_plan(self, caller: Caller, plan: CatalystPlan) -> None:
        """See that it can be computed.

        Raises:
            NotAllowed: A parameter is missing without which the run would fail.
        """
        with self.gate.recorded(caller, what="catalyst"):
            try:
                plan.check()
            except BadInput as error:
                raise NotAllowed(
                    "contract",
                    error.message,
                    field="parameters",
                    value=plan.manifest.params["engine"],
                    do="give one of them and ask again; nothing was run",
                ) from None

    def _seen_by(self, caller: Caller, run: str) -> bool:
        row = self.rows.get(run)
        return row is not None and self.gate.sees(caller, row.owner)

    def _has_failed(self, run: str) -> bool:
        """Whether it is written down already that this run gave nothing: it is not written down twice."""
        try:
            order, still = self.catalysts.state(run)
        except BadInput:
            return False
        return not still and "error" in order

    def catalyst_state(self, caller: Caller, identity: str) -> dict[str, Any]:
        """How a catalyst stands that a run computes; fields as `catalyst`."""
        with self._turn:
            row = self._row(caller, identity)
        order, _ = self.catalysts.state(identity)
        found = order.get("found")
        state = "recorded" if found else "failed" if "error" in order else "recording" if row.over else row.state
        nothing: dict[str, Any] = {
            "adsorption_energy_ev": None,
            "result_uri": None,
            "row": None,
            "promising": None,
            "notes": [],
        }
        said = {"error": order.get("error"), "repair": order.get("repair")}
        return {"state": state, "run_id": identity} | said | (found or nothing)

    def _resources_of(self, name: str) -> tuple[Resources, Tells]:
        """The resources of the workspace for somebody, with the rights of their role now."""
        person = self.rules.people.get(name)
        role = self._owner.role if name == self._owner.name else "" if person is None else person.role
        caller = Caller(name=name, role=role or "viewer")

        class Told:
            def tell(_, event: str, payload: Mapping[str, Any], *, to: str = "", key: str = "") -> object:  # noqa: N805
                return self.tell(caller, event=event, payload=payload, to=to, key=key)

        folder = self.folder.root / "resources"
        announce = partial(self._announced, caller)
        return opened_resources(folder, name, caller.role, self.rules, announce=announce), Told()

    def _announced(self, caller: Caller, resource: str, at: int) -> None:
        self.modified(caller, resource=resource, at=at)

    def _say(self, news: str) -> None:
        if not self.news or self.news[-1] != news:
            self.news.append(news)

    def rules_said(self, caller: Caller) -> dict[str, Any]:
        """What holds for the caller: rules in words, and the sites that they may use, each with what it is."""
        named = list(self.rules.sites) or [one.name for one in list_profiles()]
        mine = [name for name in named if self.gate.may_use(caller, "sites", name)]
        sites = []
        for name in mine:
            try:
                sites.append(site_line(name, find_profile(self._profile(name)), self.rules))
            except BadInput as error:
                sites.append({"name": name, "kind": "", "description": f"not usable: {error.message}"})
        return rules_words(self.rules, caller) | {"sites": sites}

    def counters(self, caller: Caller, identity: str) -> dict[str, Any]:
        """What the nodes say of a run: processor time, wall time, cores, memory; see `counters_of`."""
        with self._turn:
            row = self._row(caller, identity)
        if row.kind != "run":
            raise BadInput(f"{identity} is a campaign; counters are of one run of it.", value=identity)
        ledgers = self.folder.ledgers(row.site)
        found = counters_of(row, self._workdir(row), ledgers=ledgers, now=self._clock())
        return {"id": row.id, "site": row.site, **found}

    def about(self) -> dict[str, Any]:
        """The workspace and its service, for people."""
        with self._turn:
            states: dict[str, int] = {}
            for row in self.rows.values():
                states[row.state] = states.get(row.state, 0) + 1
            return {
                "name": self.rules.name,
                "folder": str(self.folder.root),
                "pid": os.getpid(),
                "since": self.started_at,
                "runs": states,
                "approvals_pending": len(self.approvals.list(pending=True)),
                "damaged_lines": self.damaged,
                "news": list(self.news[-20:]),
            }

    @property
    def busy(self) -> bool:
        """Whether something is under way."""
        if self.questions.busy or self.catalysts.busy or self.tries:
            return True
        return any(desk.busy for desk in self._desks.values())

    def close(self, *, end: bool = False) -> None:
        """Leave the sites; what had not ended is taken up by the next service.

        Args:
            end: End what goes on sites that others keep; on those of this process nothing can go on.
        """
        with self._turn:
            if self._closed:
                return
            self._closed = True
            self._turn.notify_all()
            self.try_no_more()
            desks = list(self._desks.values())
        for desk in desks:
            with contextlib.suppress(HpcAgentError):
                desk.close(end=end)
        if self._triggers is not None:
            self._triggers.close()
        self._journal.close()
        self._lock_file.release()


def _order_of(plan: CatalystPlan, *, site: str, walltime_s: float | None, why: str) -> dict[str, Any]:
    """The run of a catalyst as `run` and `estimate` take it."""
    return {
        "app": plan.chain.name,
        "params": plan.manifest.params,
        "site": site,
        "walltime_s": walltime_s,
        "why": why or f"{plan.catalyst} and {plan.adsorbate}",
        "data_only": True,
        "anywhere": True,
    }
