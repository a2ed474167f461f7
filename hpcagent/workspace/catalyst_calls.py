"""Catalysts, asked of a workspace: what is known of one, or the run that computes it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

from hpcagent.errors import BadInput
from hpcagent.gate.not_allowed import NotAllowed
from hpcagent.gate.rules import Caller
from hpcagent.materials.catalyst import THRESHOLD_EV, Tells
from hpcagent.materials.catalyst_plan import CatalystPlan
from hpcagent.materials.catalyst_rows import Catalyst, check_may_store, known_catalyst
from hpcagent.resources.folder import Resources
from hpcagent.workspace.added import Added
from hpcagent.workspace.catalysts import Catalysts, catalyst_data, plan_of
from hpcagent.workspace.only_data import check_only_data
from hpcagent.workspace.shared import opened_resources

__all__ = ["CatalystCalls"]

ELEMENT = re.compile(r"[A-Z][a-z]?")


class CatalystCalls(Added):
    """What is asked about catalysts. Arguments as `Core`."""

    def __init__(self, root: Path, *, clock: Callable[[], float] = time.time, apart: bool = False) -> None:
        super().__init__(root, clock=clock, apart=apart)
        self.catalysts = Catalysts(root / "catalysts", opened=self._resources_of, news=self._say)

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
        asked = _asked(structure, adsorbate, catalyst, parameters, threshold_ev)
        plan = self._planned(caller, asked)
        resources, _ = self._resources_of(caller.name)
        known = known_catalyst(resources, plan, accept)
        if known is not None:
            run_id = self._run_seen_by(caller, known)
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
        asked = _asked(structure, adsorbate, catalyst, parameters, threshold_ev)
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
            check_only_data(self.references.app("adsorption"), asked["parameters"], {})
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

    def _run_seen_by(self, caller: Caller, known: Catalyst) -> str | None:
        """The run that has computed it, where the caller may see it."""
        with self._turn:
            rows = (self.rows.get(run) for run in known.runs.values())
            return next((row.id for row in rows if row is not None and self.gate.sees(caller, row.owner)), None)

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


def _asked(
    structure: str, adsorbate: str, catalyst: str, parameters: Mapping[str, Any] | None, threshold_ev: float
) -> dict[str, Any]:
    """What is asked for, as it is written down."""
    return {
        "structure": structure,
        "adsorbate": adsorbate,
        "catalyst": catalyst,
        "parameters": dict(parameters or {}),
        "threshold_ev": threshold_ev,
    }


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
