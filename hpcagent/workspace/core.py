"""The workspace itself: what is on record, and what may be asked of it. One process has it at a time."""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import os
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hpcagent.apps.base import App
from hpcagent.apps.made_with import changed_files
from hpcagent.apps.sandbox.tiers import tiers
from hpcagent.apps.worker import final_result
from hpcagent.campaign.asked import request_of
from hpcagent.campaign.record import load_campaign
from hpcagent.campaign.recorded import snapshot
from hpcagent.catalog import find_app, list_apps
from hpcagent.contexts.events import EVERYONE, Events, Told
from hpcagent.contexts.triggers import Started, Triggers, load_triggers
from hpcagent.errors import BadInput, HpcAgentError, RunDirLocked, StoreError, in_brief
from hpcagent.gate.accounts import Accounts
from hpcagent.gate.approvals import Approval, Approvals
from hpcagent.gate.gate import Admission, Gate
from hpcagent.gate.not_allowed import NotAllowed
from hpcagent.gate.request import Request, Tier
from hpcagent.gate.rules import Caller, Rules
from hpcagent.model.failures import meaning
from hpcagent.model.records import Manifest, Result
from hpcagent.model.texts import as_name
from hpcagent.runs.attached import run_detached
from hpcagent.runs.stopped import stop_run
from hpcagent.shown import plain
from hpcagent.store.files import write_whole
from hpcagent.store.journal import Journal, read_events
from hpcagent.store.rundir import Lock, holder
from hpcagent.workspace.answers import answer_of, campaign_toml, next_points
from hpcagent.workspace.artifacts import list_files, read_piece, tail_of
from hpcagent.workspace.desk import Desk, Job
from hpcagent.workspace.folder import Folder
from hpcagent.workspace.kept import Kept
from hpcagent.workspace.shared import change_told, key_of, may_read, readers_of, said_by

__all__ = ["Core", "Row"]

OVER = ("completed", "failed", "stopped", "cancelled")
LIST_MOST = 1000
MOST_POINTS = 64
SIMULATION = "oscillator"
# So often campaigns are looked at.
LOOK_S = 5.0


@dataclass(slots=True)
class Row:
    """A run, or a campaign, as it stands.

    Attributes:
        id: Its id: never guessed, never used again.
        kind: `run` or `campaign`.
        owner: Who asked for it.
        app: The app by the name it was asked for.
        site: Where it runs.
        state: pending, running, completed, failed, stopped, cancelled.
        asked_at: Unix time, in seconds.
        ended_at: Likewise; 0 before.
        manifest: As plain data; of a campaign nothing.
        request: What the gate let through, as plain data.
        result: As plain data, once it has ended.
        shares: The run whose work it shares, where that was asked for before.
        inputs: Ids of the runs that it takes as input.
        note: What is to be said of it.
        approval: The approval that it used.
        label: What its owner calls it; not unique.
    """

    id: str
    kind: str
    owner: str
    app: str
    site: str
    state: str
    asked_at: float
    execution_id: str
    ended_at: float = 0.0
    manifest: Mapping[str, Any] = field(default_factory=dict)
    request: Mapping[str, Any] = field(default_factory=dict)
    result: Mapping[str, Any] | None = None
    shares: str = ""
    inputs: tuple[str, ...] = ()
    note: str = ""
    approval: str = ""
    label: str = ""

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self.state in OVER

    def brief(self) -> dict[str, Any]:
        """A line of a list."""
        failure = (self.result or {}).get("failure") or {}
        return {
            "id": self.id,
            "kind": self.kind,
            "app": self.app,
            "site": self.site,
            "state": self.state,
            "owner": self.owner,
            "asked_at": self.asked_at,
            "ended_at": self.ended_at or None,
            "failure": failure.get("name"),
        }


class Core:
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
        self.folder = Folder(root)
        self._clock = clock
        self._apart = apart
        self._rules_read = _written_at(str(self.folder.rules))
        self.rules: Rules = self.folder.read_rules()
        self.folder.create()
        self._lock_file = Lock(root)
        try:
            self._lock_file.acquire()
        except RunDirLocked:
            raise RunDirLocked(
                f"the workspace {root} is served by another process ({holder(root)[1]}); there is one at a time.",
                path=str(root),
            ) from None
        self._turn = threading.Condition(threading.RLock())
        self.rows: dict[str, Row] = {}
        self._by_work: dict[str, list[str]] = {}
        self._newest: list[str] = []
        self._desks: dict[str, Desk | Kept] = {}
        self._apps: dict[str, tuple[float, App]] = {}
        self.news: list[str] = []
        self.started_at = clock()
        self.touched_at = time.monotonic()
        self.accounts = Accounts()
        self._closed = False
        self._late: list[tuple[Row, Result]] = []  # results that are not in the journal yet
        self._looked_at = -LOOK_S
        self._listeners: list[Callable[[dict[str, Any]], None]] = []
        self.events = Events(root / "events", may_see=self._may_see)
        self._owner = Caller(name=_own_name(), role="admin")
        self._triggers: Triggers | None = None
        events = read_events(self.folder.journal) if self.folder.journal.exists() else ()
        self.approvals = Approvals(self._write, clock=clock, expires_s=self.rules.approval_expires_s)
        self.damaged = 0
        for event in events:
            self._replay(event)
        self._journal = Journal.open(self.folder.journal)
        self.gate = Gate(
            self.rules,
            self.approvals,
            self.accounts,
            clock=clock,
            record=self._refusal,
            tiers=sandbox_tiers,
        )
        triggers = root / "triggers.toml"
        if triggers.is_file():
            self._triggers = Triggers(
                root / "triggers", self.events, load_triggers(triggers), self._triggered, owner=self._owner.name
            )
        with self._turn:
            self._take_up()

    # -- the journal --------------------------------------------------------------------------

    def _write(self, *events: dict[str, Any]) -> None:
        """Append events, all or none; what was written holds."""
        self._journal.append(events)
        for event in events:
            for listener in self._listeners:
                listener(event)

    def _refusal(self, event: dict[str, Any]) -> None:
        """A refusal is a line of the journal; one by a quota is an event as well."""
        self._write(event)
        if event.get("check") == "quota":
            self._tell("on_quota_exceeded", event["by"], {"quota": event.get("field", ""), "why": event["why"]})

    def _tell(self, event: str, owner: str, payload: dict[str, Any], key: str = "") -> None:
        """Tell an event; a disk that refuses it costs the event, not the run."""
        try:
            self.events.tell(event, payload, owner=owner, by="workspace", key=key)
        except StoreError as error:
            self.news.append(error.message)

    def _may_see(self, who: str, told: Told) -> bool:
        """Events are seen by their owner, those they were told to, and whoever sees all."""
        if told.owner in (who, EVERYONE) or who in told.readers:
            return True
        person = self.rules.people.get(who)
        role = self._owner.role if who == self._owner.name else "viewer" if person is None else person.role
        return "see_all" in self.rules.rights(role).may

    def _triggered(self, job: Started) -> str:
        """What a trigger starts goes through the gate as if the workspace's owner had asked for it."""
        why = f"trigger {job.trigger}"
        # Handed over again after a crash it is the same work of the same owner, which is found.
        if job.kind == "tool":
            return str(self.run(self._owner, job.name, job.arguments, why=why)["id"])
        if job.kind == "campaign":
            return str(self.start(self._owner, job.name, changes=job.arguments, why=why)["id"])
        raise BadInput(f"{why}: a workspace starts tools and campaigns; prompts need an agent.")

    def subscribe(
        self,
        caller: Caller,
        *,
        events: Sequence[str],
        where: Mapping[str, Any] | None = None,
        after: int | None = None,
        expires_s: float | None = None,
    ) -> dict[str, Any]:
        """Subscribe to events by name, with conditions on what they say; see `Events.subscribe`."""
        made = self.events.subscribe(events, owner=caller.name, where=where, after=after, expires_s=expires_s)
        return dict(made.acknowledgement)

    def tell(
        self,
        caller: Caller,
        *,
        event: str,
        payload: Mapping[str, Any],
        to: str | Sequence[str] = (),
        key: str = "",
    ) -> dict[str, Any]:
        """Tell an event of the caller's own; triggers and subscribers get it.

        Args:
            event: One of `TOLD_BY_PEOPLE`, or a name of one's own.
            payload: What it says; `by` is added.
            to: Who may see it beside the caller and those who see all; `*`: everybody.
            key: The same for the same event told twice: it sets off a trigger once.

        Raises:
            NotAllowed: The role may not write, or only the service tells this event.
            BadInput: A field is missing, something may not stand in an event, or somebody is not known.
        """
        with self.gate.recorded(caller, what=f"tell {in_brief(event)}"):
            self.gate.require(caller, "write")
            said = said_by(event, payload, caller.name)
        readers = readers_of(to, self.rules, self._owner.name)
        named = key_of(key, caller.name)
        n = self.events.tell(event, said, owner=caller.name, readers=readers, by=caller.name, key=named)
        return {"event": event, "n": n, "to": list(readers)}

    def modified(self, caller: Caller, *, resource: str, at: int, session: str = "") -> dict[str, Any]:
        """Tell `on_resource_modified` of a change that the caller has made, as the resource's history has it.

        Args:
            resource: Its name.
            at: Where the line of its history begins, in bytes.
            session: Of a resource that each session has its own of.

        Raises:
            BadInput: The history has no such change of the caller's.
        """
        said, key = change_told(self.folder.root / "resources", resource, at, session, caller.name)
        readers = may_read(self.rules, resource)
        try:
            self.events.tell(
                "on_resource_modified", said, owner=caller.name, readers=readers, by="workspace", key=key
            )
        except StoreError as error:  # as everywhere it costs the event, not the change
            self.news.append(error.message)
        return {"resource": resource, "action": said["action"]}

    def unsubscribe(self, caller: Caller, *, subscription_id: str) -> dict[str, Any]:
        """End a subscription."""
        self.events.unsubscribe(subscription_id, owner=caller.name)
        return {"subscription_id": subscription_id, "status": "ended"}

    def notifications(self, caller: Caller, *, subscription_id: str, most: int = 100) -> list[dict[str, Any]]:
        """The next notifications of a subscription; they come again until they are acknowledged."""
        found = self.events.look(subscription_id, owner=caller.name, most=most)
        return [one.data() | {"n": one.n} for one in found.notifications]

    def acknowledge(self, caller: Caller, *, subscription_id: str, n: int) -> dict[str, Any]:
        """Say that all notifications up to number `n` have come."""
        self.events.acknowledge(subscription_id, n, owner=caller.name)
        return {"subscription_id": subscription_id, "n": n}

    def whoami(self, caller: Caller) -> dict[str, Any]:
        """Name, role and rights of the caller."""
        rights = self.rules.rights(caller.role)
        return {"name": caller.name, "role": caller.role, "may": list(rights.may), "apps": list(rights.apps)}

    def _replay(self, event: Mapping[str, Any]) -> None:
        kind = event["event"]
        try:
            if kind == "asked":
                self._asked(event)
            elif kind == "ended":
                self._ended(event)
            elif kind == "took":
                self.accounts.settle(self.rows[event["id"]].owner, event["id"], event["node_hours"], event["usd"])
            elif kind.startswith("approval_"):
                self.approvals.replay(event)
            elif kind == "damaged":
                self.damaged += 1
        except (KeyError, TypeError, ValueError):
            self.damaged += 1

    def _asked(self, event: Mapping[str, Any]) -> Row:
        row = Row(
            id=event["id"],
            kind=event["kind"],
            owner=event["owner"],
            app=event["app"],
            site=event["site"],
            state="pending",
            asked_at=event["at"],
            execution_id=event["work"],
            manifest=event.get("manifest", {}),
            request=event.get("request", {}),
            shares=event.get("shares", ""),
            inputs=tuple(event.get("inputs", ())),
            note=event.get("note", ""),
            approval=event.get("approval", ""),
            label=event.get("label", ""),
        )
        self.rows[row.id] = row
        self._newest.append(row.id)
        self._by_work.setdefault(row.execution_id, []).append(row.id)
        request = row.request
        if not row.shares:
            self.accounts.commit(
                row.owner, row.id, request.get("node_hours") or 0.0, request.get("usd") or 0.0, row.asked_at
            )
        return row

    def _ended(self, event: Mapping[str, Any]) -> Row:
        row = self.rows[event["id"]]
        row.state, row.ended_at, row.result = event["state"], event["at"], event.get("result")
        row.note = event.get("note", row.note)
        if not row.shares:
            self.accounts.settle(
                row.owner,
                row.id,
                event.get("node_hours", 0.0),
                event.get("usd", 0.0),
                event.get("bytes", 0),
            )
        return row

    # -- who ----------------------------------------------------------------------------------

    def _read_rules(self) -> None:
        """Read `workspace.toml` again if it was written since; one that is wrong changes nothing, and is told."""
        written = _written_at(str(self.folder.rules))
        if written == self._rules_read:
            return
        with self._turn:
            self._rules_read = written
            try:
                rules = self.folder.read_rules()
            except HpcAgentError as error:
                self.news.append(f"the rules as they were still hold: {error.message}")
                return
            self.rules = self.gate.rules = rules
            self.approvals.expires_s = rules.approval_expires_s

    def caller(self, uid: int, as_: str = "", client: str = "", trace: str = "") -> Caller:
        """Who a process of this user id is; the folder's owner may also speak for somebody who is known.

        Raises:
            NotAllowed: The user is not known here, or may not speak for that person.
        """
        self._read_rules()
        owner = self.folder.root.stat().st_uid
        mine = next((name for name, person in self.rules.people.items() if person.uid == uid), None)
        if mine is None and uid != owner:
            raise NotAllowed(
                "caller",
                "this user is not known here",
                field="uid",
                value=uid,
                allowed="people of workspace.toml",
                do="have yourself added to workspace.toml",
            )
        name = mine or _own_name()
        role = self.rules.people[mine].role if mine else "admin"
        if not as_ or as_ == name:
            return Caller(name=name, role=role, client=client, trace=trace)
        person = self.rules.people.get(as_)
        if person is None or "manage" not in self.rules.rights(role).may:
            raise NotAllowed(
                "caller",
                f"{name} cannot speak for {as_!r}",
                field="as",
                value=as_,
                allowed=", ".join(self.rules.people) or "nobody: workspace.toml names no people",
                do="leave it out, or have the person added to workspace.toml",
            )
        return Caller(name=as_, role=person.role, client=client, trace=trace)

    # -- asking -------------------------------------------------------------------------------

    def app(self, reference: str) -> App:
        """The app of a name, as `NAME` or `NAME@VERSION`.

        Raises:
            NotAllowed: There is none of that name, or of that version.
        """
        name, _, version = reference.partition("@")
        known = self._apps.get(name)
        written = _written_at(name)
        if known is None or known[0] != written:
            try:
                known = written, find_app(name)
            except HpcAgentError as error:
                raise NotAllowed(
                    "contract", str(error), field="app", value=name, do="hpcagent apps lists those that there are"
                ) from None
            self._apps[name] = known
        app = known[1]
        if version and version != app.contract.version:
            raise NotAllowed(
                "contract",
                f"{app.name} has another version here",
                field="version",
                value=version,
                allowed=app.contract.version,
                do="ask for that version, or for none",
            )
        return app

    def request(
        self,
        caller: Caller,
        app: str,
        params: Mapping[str, Any],
        *,
        site: str = "",
        seed: int = 0,
        replicate: int = 0,
        inputs: Sequence[str] = (),
        walltime_s: float | None = None,
        why: str = "",
    ) -> tuple[App, Manifest, Request, list[Mapping[str, Any]]]:
        """What a call would run: checked by the contract, with what it takes at most.

        Raises:
            NotAllowed: Which field, which value, what is allowed.
        """
        found = self.app(app)
        if walltime_s is not None:
            try:
                found = found.with_resources(walltime_s=walltime_s)
            except BadInput as error:
                raise NotAllowed("contract", error.message, field="walltime_s", value=walltime_s) from None
        where = site or self.rules.default_site
        taken = [self._input(caller, found, i, one) for i, one in enumerate(inputs)]
        if not found.contract.takes(len(taken)):
            raise NotAllowed(
                "contract",
                f"{found.name} takes other input runs",
                field="inputs",
                value=list(inputs),
                allowed=", ".join(found.contract.inputs) or "none",
                do="name runs that have ended, by their ids",
            )
        values = {name: self._file_of(caller, value) for name, value in params.items()}
        try:
            manifest = found.manifest(
                values,
                seed=seed,
                replicate=replicate,
                upstream=tuple(str(one["manifest"]["execution_id"]) for one in taken),
                requested_by=caller.name,
            )
        except BadInput as error:
            field = next((name for name in params if name in error.message), "")
            raise NotAllowed(
                "contract",
                error.message,
                field=field,
                value=params.get(field),
                do=f"hpcagent apps {found.name} has names, units and bounds",
            ) from None
        resources = manifest.resources
        walltime_s = resources.walltime_s
        most = None if walltime_s is None else resources.nodes * walltime_s / 3600
        price = self.rules.price(where)
        asked = Request(
            kind="run",
            app=found.name,
            version=found.contract.version,
            work=manifest.execution_id,
            params=dict(manifest.params),
            site=where,
            nodes=resources.nodes,
            node_hours=most,
            expected_node_hours=resources.nodes * (manifest.estimated_runtime_s or 0.0) / 3600,
            usd=None if price is None or most is None else price * most,
            own=not is_ours(found),
            sandbox=sandbox_of(found),
            why=why,
        )
        return found, manifest, asked, taken

    def run(
        self, caller: Caller, app: str, params: Mapping[str, Any], *, label: str = "", **more: Any
    ) -> dict[str, Any]:
        """Start a run, or find the one that did the same work; returns at once.

        Raises:
            NotAllowed: The gate refuses it; nothing has run.
        """
        with self._turn:
            with self.gate.recorded(caller, what=f"run {app}"):
                self.gate.require(caller, "run")
                found, manifest, asked, taken = self.request(caller, app, params, **more)
            known = self._same_work(manifest.execution_id)
            mine = [row for row in known if row.owner == caller.name]
            if mine and mine[0].label == label:
                return self._said(mine[0], found=True)
            admission = self.gate.admit(asked, caller)
            identity = f"r-{secrets.token_urlsafe(12)}"
            row = self._begin(
                caller,
                admission,
                identity,
                app=app,
                manifest=manifest.model_dump(mode="json"),
                inputs=list(more.get("inputs", ())),
                tier=admission.tier,
                label=label,
                shares=known[0].id if known else "",
            )
            if known and known[0].over:
                self._share(row, known[0])
            elif not known:
                self._send(row, found, manifest, taken)
            return self._said(row, found=False)

    def _begin(self, caller: Caller, admission: Admission, identity: str, **facts: Any) -> Row:
        """Write down what was let through, with the approval that it uses, all or nothing."""
        asked, approval = admission.request, admission.approval
        event = {
            "event": "asked",
            "id": identity,
            "kind": asked.kind,
            "owner": caller.name,
            "role": caller.role,
            "client": caller.client,
            "trace": caller.trace,
            "site": asked.site,
            "at": self._clock(),
            "work": asked.work,
            "request": asked.model_dump(mode="json"),
            **{name: value for name, value in facts.items() if value not in ("", [])},
        }
        events = [event]
        if approval is not None:
            event["approval"] = approval.id
            events.append(self.approvals.used(approval, identity))
        self._write(*events)
        for one in events:
            self._replay(one)
        return self.rows[identity]

    def estimate(self, caller: Caller, app: str, params: Mapping[str, Any], **more: Any) -> dict[str, Any]:
        """What a run would take, whether it was done before, and what the gate would say; nothing is run."""
        with self._turn:
            found, manifest, asked, _ = self.request(caller, app, params, **more)
            why = self.rules.approval_for(asked, caller)
            took = [
                float(row.result["cost"]["wall_s"])
                for row in self.rows.values()
                if row.result and row.state == "completed" and row.app == app and not row.shares
            ]
            known = [row for row in self._same_work(manifest.execution_id) if self.gate.sees(caller, row.owner)]
            typical = sorted(took)[len(took) // 2] if took else manifest.estimated_runtime_s
            return {
                "app": found.name,
                "version": found.contract.version,
                "site": asked.site,
                "digest": asked.digest,
                "wall_s": typical,
                "from": f"the median of {len(took)} runs here" if took else "the contract's estimate",
                "node_hours": asked.nodes * (typical or 0.0) / 3600,
                "node_hours_at_most": asked.node_hours,
                "usd_at_most": asked.usd,
                "approval": why,
                "known": known[0].id if known else None,
            }

    def _same_work(self, execution_id: str) -> list[Row]:
        """Runs that did, or do, this very work: not those that were cancelled, or lost by the machine."""
        found = [self.rows[i] for i in self._by_work.get(execution_id, ())]
        return [row for row in found if row.state != "cancelled" and not _machine(row)]

    def _input(self, caller: Caller, app: App, place: int, identity: str) -> Mapping[str, Any]:
        row = self._row(caller, identity)
        names = app.contract.inputs
        wanted = names[min(place, len(names) - 1)] if names else "no input"
        if row.state != "completed" or row.result is None:
            raise NotAllowed(
                "contract",
                f"the run {identity} has not completed ({row.state})",
                field=wanted,
                value=identity,
                allowed="a completed run",
                do="wait for it, or name another",
            )
        return {**row.result, "manifest": row.manifest}

    def _file_of(self, caller: Caller, value: Any) -> Any:
        """A file of an earlier run that is named `artifact:RUN/PATH`, as its path; all else as it is."""
        if not (isinstance(value, str) and value.startswith("artifact:")):
            return value
        identity, _, path = value.removeprefix("artifact:").partition("/")
        row = self._row(caller, identity)
        read_piece(self._workdir(row), path, 0, 0)  # that it is there, and a file of this run
        return str(self._workdir(row) / path)

    def simulation_run(
        self,
        caller: Caller,
        *,
        name: str = "default_simulation",
        max_steps: int = 1000,
        seed: int | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Start the simulation that needs nothing (`oscillator`) under a name of one's own; returns at once.

        Without a seed one is drawn, and said: the same seed and parameters give the same result. The name is a
        label of the caller's; `run_id` is what is unique.

        Raises:
            NotAllowed: `max_steps`, the seed, the name or a parameter is not allowed.
        """
        with self.gate.recorded(caller, what="simulation_run"):
            if not isinstance(name, str) or not name.strip() or len(name) > 200 or not name.isprintable():
                raise NotAllowed("contract", "a name has 1 to 200 printable characters", field="name", value=name)
            most = self.app(SIMULATION).contract.space["max_steps"]
            if isinstance(max_steps, bool) or not isinstance(max_steps, int) or max_steps < 1:
                raise NotAllowed(
                    "contract",
                    "max_steps is a positive whole number",
                    field="max_steps",
                    value=max_steps,
                    allowed=most.range,
                )
            if params is not None and (not isinstance(params, Mapping) or "max_steps" in params):
                raise NotAllowed(
                    "contract",
                    "params is a table of the simulation's other parameters",
                    field="params",
                    value=params,
                    allowed=", ".join(n for n in self.app(SIMULATION).contract.space.names if n != "max_steps"),
                )
        drawn = secrets.randbelow(2**31) if seed is None else seed
        begun = self.run(caller, SIMULATION, {**(params or {}), "max_steps": max_steps}, seed=drawn, label=name)
        return self.simulation_get_results(caller, name=begun["id"])

    def simulation_get_results(self, caller: Caller, *, name: str) -> dict[str, Any]:
        """How a simulation stands, by its `run_id`, or the newest of the caller's by its name; reads only."""
        with self._turn:
            mine = (self.rows[i] for i in reversed(self._newest))
            row = self.rows.get(name) or next(
                (one for one in mine if one.label == name and one.owner == caller.name), None
            )
            if row is None or not self.gate.sees(caller, row.owner) or row.app != SIMULATION:
                raise BadInput(f"there is no simulation {name!r}; simulation_run starts one.", value=name)
            result = row.result or {}
            failure = result.get("failure") or {}
            failed = row.state in ("failed", "stopped", "cancelled")
            params = dict(row.manifest["params"])
            found = {
                "status": "error" if failed else "success",
                "run_id": row.id,
                "steps_completed": int(result.get("metrics", {}).get("steps_completed", 0)),
                "config": {
                    "name": row.label,
                    "max_steps": params.pop("max_steps"),
                    "seed": row.manifest["seed"],
                    "params": params,
                },
                "simulation_status": row.state,
                "results": {
                    n: {"value": v, "unit": result.get("units", {}).get(n, "1")}
                    for n, v in result.get("metrics", {}).items()
                },
            }
            return found | ({"error": failure.get("message") or row.note or row.state} if failed else {})

    # -- what happens -------------------------------------------------------------------------

    def _take_up(self) -> None:
        """Have done what was asked for and had not ended when the service before this one did."""
        for row in list(self.rows.values()):
            if row.over or row.kind != "run":
                continue
            if row.shares:
                other = self.rows.get(row.shares)
                if other is not None and other.over:
                    self._share(row, other)
                continue
            try:
                app = self.app(row.app)
                manifest = Manifest.model_validate(row.manifest)
                taken = [{**(self.rows[i].result or {}), "manifest": self.rows[i].manifest} for i in row.inputs]
                if app.contract.version != manifest.app_version:
                    raise BadInput(
                        f"{app.name} was {manifest.app_version} when it was asked for, and is "
                        f"{app.contract.version} now"
                    )
            except (HpcAgentError, KeyError, ValueError) as error:
                self._end(row, "failed", note=f"not taken up by the new service: {plain(str(error))}")
                continue
            if not self._found_ended(row, manifest):
                self._send(row, app, manifest, taken)

    def _found_ended(self, row: Row, manifest: Manifest) -> bool:
        """Take the result of a run that ended while there was no service, if it did."""
        done, _ = final_result(self._workdir(row))
        if done is None or changed_files(done.get("files") or {}):
            return False
        try:
            result = Result.model_validate({"manifest": manifest} | done)
        except ValidationError:
            return False
        self._result(row, result)
        return True

    def _send(self, row: Row, app: App, manifest: Manifest, taken: Sequence[Mapping[str, Any]]) -> None:
        def began() -> None:
            with self._turn:
                if not row.over:
                    row.state = "running"
                    self._turn.notify_all()
                    self._tell("on_job_started", row.owner, _job(row), key=f"{row.id} started")

        def ended(result: Result) -> None:
            with self._turn:
                self._late.append((row, result))
                self._take_late()

        self._desk(row.site).add(Job(app, manifest, taken, ended, began, owner=row.owner, reference=row.app))

    def _take_late(self) -> None:
        """Record results; what a full disk does not take waits for `look`, and lies in the run's folder."""
        while self._late:
            try:
                self._result(*self._late[0])
            except StoreError as error:
                if not self.news or self.news[-1] != error.message:
                    self.news.append(error.message)
                return
            self._late.pop(0)

    def _desk(self, site: str) -> Desk | Kept:
        desk = self._desks.get(site)
        if desk is None:
            profile, folder = self._profile(site), self.folder.sites / _as_name(site)
            retries, tell = self.rules.retries, self.news.append
            if self._apart:
                desk = Kept(profile, folder, retries=retries, tell=tell)
            else:
                desk = Desk(profile, folder, self.folder.work, retries=retries, tell=tell)
            self._desks[site] = desk
        return desk

    def _profile(self, site: str) -> str:
        rule = self.rules.sites.get(site)
        return rule.profile if rule is not None and rule.profile else site

    def _result(self, row: Row, result: Result) -> None:
        if self._closed:
            return
        fields = result.model_dump(mode="json", exclude={"manifest"})
        price = self.rules.price(row.site)
        hours = result.cost.node_hours
        state = {"COMPLETED": "completed", "FAILED": "failed", "STOPPED": "stopped"}[result.status]
        if row.over:  # it was cancelled, and this is what it took until then
            took = {"event": "took", "id": row.id, "node_hours": hours, "usd": (price or 0.0) * hours}
            self._write(took)
            self._replay(took)
            return
        self._end(
            row,
            state,
            result=fields,
            node_hours=hours,
            usd=0.0 if price is None else price * hours,
            bytes=_size(self._workdir(row)),
        )
        for identity in self._by_work.get(row.execution_id, ()):
            other = self.rows[identity]
            if other.shares == row.id and not other.over:
                self._share(other, row)

    def _share(self, row: Row, with_: Row) -> None:
        self._end(row, with_.state, result=with_.result, note="the same work had been asked for before")

    def _end(self, row: Row, state: str, **more: Any) -> None:
        event = {"event": "ended", "id": row.id, "state": state, "at": self._clock()}
        event |= {name: value for name, value in more.items() if value is not None}
        self._write(event)
        self._ended(event)
        self._turn.notify_all()
        said = _job(row) | {"state": state, "result_url": f"workspace:runs/{row.id}"}
        if state in ("completed", "stopped"):
            self._tell("on_job_complete", row.owner, said, key=f"{row.id} ended")
        else:
            failure = (row.result or {}).get("failure") or {}
            reason = str(failure.get("message") or row.note or state)[:500]
            self._tell("on_job_failed", row.owner, said | {"reason": reason}, key=f"{row.id} ended")

    # -- what is seen -------------------------------------------------------------------------

    def _row(self, caller: Caller, identity: str) -> Row:
        row = self.rows.get(identity)
        if row is None or not self.gate.sees(caller, row.owner):
            raise BadInput(f"there is no run {identity!r}; `hpcagent workspace list` shows yours.", value=identity)
        return row

    def _workdir(self, row: Row) -> Path:
        return self.folder.work / row.execution_id if row.kind == "run" else self.folder.campaigns / row.id

    def _said(self, row: Row, *, found: bool) -> dict[str, Any]:
        return {"id": row.id, "state": row.state, "found": found, "workdir": str(self._workdir(row))}

    def status(self, caller: Caller, identity: str, *, lines: int = 40) -> dict[str, Any]:
        """Where a run stands: state, metrics with units and errors, failure, cost, the log's last lines."""
        with self._turn:
            row = self._row(caller, identity)
            result = row.result or {}
            found = row.brief() | {
                "params": row.manifest.get("params", {}),
                "version": row.request.get("version", ""),
                "execution_id": row.execution_id,
                "metrics": result.get("metrics", {}),
                "units": result.get("units", {}),
                "uncertainty": result.get("uncertainty", {}),
                "failure": result.get("failure"),
                "cost": result.get("cost"),
                "estimated_node_hours": row.request.get("expected_node_hours"),
                "notes": [*result.get("notes", ()), *([row.note] if row.note else [])],
                "artifacts": result.get("artifacts", {}),
                "approval": row.approval or None,
            }
        if lines:
            found["log_tail"] = tail_of(self._workdir(row), lines)
        return found

    def wait(self, caller: Caller, identity: str, timeout_s: float) -> dict[str, Any]:
        """Its status once it has ended, or after `timeout_s`."""
        until = time.monotonic() + timeout_s
        with self._turn:
            row = self._row(caller, identity)
            while not row.over and not self._closed:
                left = until - time.monotonic()
                if left <= 0 or not self._turn.wait(left):
                    break
        return self.status(caller, identity, lines=0)

    def listed(
        self, caller: Caller, *, state: str = "", app: str = "", after: str = "", most: int = 100
    ) -> dict[str, Any]:
        """Runs that the caller may see, the newest first, a page at a time."""
        if not 1 <= most <= LIST_MOST:
            raise BadInput(f"most={most} must be 1 to {LIST_MOST}.", value=most)
        with self._turn:
            found: list[dict[str, Any]] = []
            skipping = bool(after)
            more = False
            for identity in reversed(self._newest):
                row = self.rows[identity]
                if skipping:
                    skipping = identity != after
                    continue
                if not self.gate.sees(caller, row.owner):
                    continue
                if (state and row.state != state) or (app and row.app.partition("@")[0] != app):
                    continue
                if len(found) == most:
                    more = True
                    break
                found.append(row.brief())
            return {"runs": found, "after": found[-1]["id"] if more else None}

    def artifacts(self, caller: Caller, identity: str) -> list[dict[str, Any]]:
        """Files of a run: path, size in bytes."""
        with self._turn:
            row = self._row(caller, identity)
        return list_files(self._workdir(row))

    def fetch(
        self, caller: Caller, identity: str, path: str, *, offset: int = 0, length: int = 1 << 20
    ) -> dict[str, Any]:
        """A piece of a run's file."""
        with self._turn:
            row = self._row(caller, identity)
        return read_piece(self._workdir(row), path, offset, length)

    def cancel(self, caller: Caller, identity: str) -> dict[str, Any]:
        """Keep a run from being done, or end it. Again: does nothing."""
        with self._turn:
            self.gate.require(caller, "run")
            row = self._row(caller, identity)
            if row.over:
                return self._said(row, found=True)
            if row.kind == "campaign":
                raise BadInput(f"{identity} is a campaign: stop it.", value=identity)
            shared = [o for o in self._same_work(row.execution_id) if o.id != row.id and not o.over]
            if shared:
                # Somebody else waits for the same work: it goes on for them.
                self._hand_over(row, shared)
            self._end(row, "cancelled", note=f"cancelled by {caller.name}")
        # Without the turn: what the site says meanwhile needs it.
        how = "shared" if shared else self._desk(row.site).cancel(row.execution_id)
        words = {
            "waiting": "it had not begun",
            "ended": "its worker is ended",
            "left": "what has begun goes on to its end, and its result is not taken",
            "shared": "it goes on for others who have asked for the same work",
        }[how]
        return self._said(row, found=True) | {"how": words}

    def _hand_over(self, row: Row, others: Sequence[Row]) -> None:
        if not row.shares:
            # The first of the others has its turn now; its own job would find the same directory.
            first = others[0]
            first.shares = ""
            app, manifest = self.app(first.app), Manifest.model_validate(first.manifest)
            taken = [{**(self.rows[i].result or {}), "manifest": self.rows[i].manifest} for i in first.inputs]
            self._send(first, app, manifest, taken)
            for other in others[1:]:
                other.shares = first.id

    # -- approvals ----------------------------------------------------------------------------

    def decide(self, caller: Caller, identity: str, *, grant: bool, note: str = "") -> dict[str, Any]:
        """Grant or deny an approval; nobody grants their own request unless the role is admin."""
        with self._turn, self.gate.recorded(caller, what=f"approval {identity}"):
            self.gate.require(caller, "approve")
            one = self.approvals.get(identity)
            if grant and one.asked_by == caller.name and caller.role != "admin":
                raise NotAllowed(
                    "approval",
                    "nobody grants what they have asked for themselves",
                    field="by",
                    value=caller.name,
                    allowed="somebody else with the right to approve",
                    do="ask one of them",
                    approval=identity,
                )
            return _plain(self.approvals.decide(identity, grant=grant, by=caller.name, note=plain(note)))

    def approval_list(self, caller: Caller, *, pending: bool = False) -> list[dict[str, Any]]:
        """Approvals that the caller may see."""
        with self._turn:
            found = self.approvals.list(pending=pending)
            may = "approve" in self.rules.rights(caller.role).may
            return [_plain(one) for one in found if may or self.gate.sees(caller, one.asked_by)]

    # -- campaigns ----------------------------------------------------------------------------

    def start(
        self,
        caller: Caller,
        campaign: str,
        *,
        changes: Mapping[str, Any] | None = None,
        site: str = "",
        why: str = "",
    ) -> dict[str, Any]:
        """Start a campaign, approved as a whole with its cap, in a process of its own; returns once it has begun.

        Args:
            campaign: Path or name of its TOML.
            changes: Dotted key -> value, in place of what stands there.
            site: Where it runs.
            why: What it is for.

        Raises:
            NotAllowed: The gate refuses it; nothing has begun.
        """
        with self._turn:
            with self.gate.recorded(caller, what=f"start {campaign}"):
                self.gate.require(caller, "run")
                try:
                    found = load_campaign(campaign, changes=changes)
                except BadInput as error:
                    raise NotAllowed("contract", error.message, do="correct it and ask again") from None
            where = site or self.rules.default_site
            asked = request_of(
                found,
                site=where,
                own=not is_ours(found.app),
                sandbox=sandbox_of(found.app),
                price=self.rules.price(where),
                why=why,
            )
            known = [r for r in self._same_work(asked.work) if r.owner == caller.name and r.kind == "campaign"]
            if known:
                return self._said(known[0], found=True)
            admission = self.gate.admit(asked, caller)
            identity = f"c-{secrets.token_urlsafe(12)}"
            row = self._begin(caller, admission, identity, app=found.app.name, note=found.name)
            try:
                run_detached(found, site=self._profile(where), run_dir=self._workdir(row))
            except HpcAgentError as error:
                self._end(row, "failed", note=f"it did not begin: {plain(error.message)}")
                raise
            row.state = "running"
            return self._said(row, found=False)

    def bayesian_optimize(
        self,
        caller: Caller,
        *,
        objective_function: str,
        objective: Mapping[str, Any],
        budget: int,
        search_space: Mapping[str, Any] | None = None,
        constraints: Sequence[str] = (),
        fixed: Mapping[str, Any] | None = None,
        node_hours: float | None = None,
        seed: int = 0,
        site: str = "",
        why: str = "",
    ) -> dict[str, Any]:
        """Look for the best point of an app with Gaussian processes: a campaign, approved as a whole.

        Args:
            objective_function: An app that this caller may run, by name: never code.
            objective: `maximize` or `minimize` a metric, `subject_to` limits, as in a campaign's TOML.
            budget: Runs at most.
            search_space: Parameter -> table with `low`, `high`, `log`, `choices`; by default what the app varies.
            constraints: Conditions between parameters.
            fixed: Values of other parameters.
            node_hours: Cap.
            seed: Of the policy.
            site: Where it runs.
            why: What it is for.

        Raises:
            NotAllowed: The gate refuses it; nothing has begun.
        """
        with self.gate.recorded(caller, what=f"bayesian_optimize {objective_function}"):
            if isinstance(budget, bool) or not isinstance(budget, int) or budget < 1:
                raise NotAllowed(
                    "contract",
                    "a budget is a whole number of runs",
                    field="budget",
                    value=budget,
                    allowed="1 or more",
                )
            app = self.app(objective_function)
            try:
                text = campaign_toml(
                    objective_function.partition("@")[0],
                    objective,
                    search_space=search_space,
                    constraints=constraints,
                    fixed=fixed or {},
                    budget=budget,
                    node_hours=node_hours,
                    seed=seed,
                    name=as_name(f"optimize-{app.name}"),
                )
            except BadInput as error:
                raise NotAllowed("contract", error.message, do="correct it and ask again") from None
        asked = self.folder.root / "asked"
        asked.mkdir(mode=0o700, exist_ok=True)
        path = asked / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.toml"
        write_whole(path, text, private=True)
        return self.start(caller, str(path), site=site, why=why)

    def answer(self, caller: Caller, identity: str) -> dict[str, Any]:
        """A campaign's answer so far: the best point with errors, P(feasible), expected regret, node-hours."""
        return answer_of(self._workdir(self._campaign(caller, identity)))

    def recommend(self, caller: Caller, identity: str, *, n: int = 1) -> dict[str, Any]:
        """Points that a campaign's policy would run next, with their expected improvement; nothing is run."""
        if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= MOST_POINTS:
            raise BadInput(f"n={n!r} must be 1 to {MOST_POINTS}.", value=n)
        return next_points(self._workdir(self._campaign(caller, identity)), n)

    def _campaign(self, caller: Caller, identity: str) -> Row:
        with self._turn:
            row = self._row(caller, identity)
        if row.kind != "campaign":
            raise BadInput(f"{identity} is a single run, not a campaign: ask for its status.", value=identity)
        return row

    def stop(self, caller: Caller, identity: str) -> dict[str, Any]:
        """Ask the coordinator of a campaign to end, as Ctrl-C would; what has finished is kept."""
        with self._turn:
            self.gate.require(caller, "run")
            row = self._row(caller, identity)
            if row.kind != "campaign":
                raise BadInput(f"{identity} is a single run: cancel it.", value=identity)
        stop_run(self._workdir(row))
        self.look()
        with self._turn:
            return self._said(row, found=True)

    def look(self) -> None:
        """See which campaigns have ended, and book what they took. A coordinator needs no service to go on."""
        now = time.monotonic()
        with self._turn:
            self._take_late()
        if self._triggers is not None:
            try:
                self._triggers.run_once()
            except HpcAgentError as error:
                if not self.news or self.news[-1] != error.message:
                    self.news.append(error.message)
        if now - self._looked_at < LOOK_S:
            return
        self._looked_at = now
        with self._turn:
            open_ones = [row for row in self.rows.values() if row.kind == "campaign" and not row.over]
        for row in open_ones:
            try:
                there = snapshot(self._workdir(row))
            except HpcAgentError:
                with self._turn:
                    if not row.over and not self._workdir(row).exists():
                        self._end(row, "failed", note="its folder is gone")
                continue
            if there.attended:
                continue
            hours = sum(result.cost.node_hours for result in there.results)
            price = self.rules.price(row.site)
            state = "completed" if there.reason is not None else "stopped"
            with self._turn:
                if not row.over:
                    self._end(
                        row,
                        state,
                        node_hours=hours,
                        usd=0.0 if price is None else price * hours,
                        note=there.reason or "it was interrupted; `hpcagent resume` goes on with its folder",
                        bytes=_size(self._workdir(row)),
                    )

    def expire(self, caller: Caller) -> dict[str, Any]:
        """Remove the folders of runs that are older than `retention_days`; their records stay."""
        with self._turn, self.gate.recorded(caller, what="expire"):
            self.gate.require(caller, "manage")
            days = self.rules.retention_days
            if days is None:
                return {"removed": [], "bytes": 0, "note": "workspace.toml sets no retention_days: all is kept"}
            before = self._clock() - days * 86400
            gone: list[str] = []
            size = 0
            for row in self.rows.values():
                folder = self._workdir(row)
                works = [self.rows[i] for i in self._by_work[row.execution_id]]
                young = any(not one.over or one.ended_at >= before for one in works)
                if row.kind != "run" or young or not folder.exists():
                    continue
                size += _size(folder)
                shutil.rmtree(folder)
                gone.append(row.id)
            self._write({"event": "expired", "runs": gone, "bytes": size, "by": caller.name, "at": self._clock()})
            return {"removed": gone, "bytes": size}

    # -- accounts -----------------------------------------------------------------------------

    def costs(self, caller: Caller) -> dict[str, Any]:
        """Spent and committed, by person; estimated against actual, by app."""
        with self._turn:
            self.accounts.of(caller.name)
            people = {
                name: {
                    "node_hours": account.node_hours,
                    "usd": account.usd,
                    "committed_node_hours": account.in_flight[0],
                    "runs": len(account.committed),
                    "bytes": account.bytes,
                }
                for name, account in [("", self.accounts.whole), *self.accounts.people().items()]
                if not name or self.gate.sees(caller, name)
            }
            table: dict[str, list[tuple[float, float]]] = {}
            for row in self.rows.values():
                if row.result and row.state == "completed" and not row.shares and row.kind == "run":
                    expected = row.manifest.get("estimated_runtime_s") or 0.0
                    table.setdefault(row.app, []).append((expected, float(row.result["cost"]["wall_s"])))
            accuracy = {
                app: {
                    "runs": len(pairs),
                    "estimated_s": sum(e for e, _ in pairs) / len(pairs),
                    "actual_s": sum(a for _, a in pairs) / len(pairs),
                }
                for app, pairs in sorted(table.items())
            }
            return {"people": people, "accuracy": accuracy}

    def apps(self, caller: Caller) -> list[dict[str, Any]]:
        """Apps that the caller may use."""
        return [
            {"name": app.name, "version": app.contract.version, "description": app.contract.description}
            for app in list_apps()
            if self.gate.may_use(caller, "apps", app.name)
        ]

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
            desks = list(self._desks.values())
        for desk in desks:
            with contextlib.suppress(HpcAgentError):
                desk.close(end=end)
        if self._triggers is not None:
            self._triggers.close()
        self._journal.close()
        self._lock_file.release()


def sandbox_tiers() -> dict[str, str]:
    """Sandbox tiers, each with "" or why it is not to be had here."""
    return {state.name: "" if state.available else state.why for state in tiers()}


def sandbox_of(app: App) -> Tier:
    """The tier that every run of an app has at least; `none` without a sandbox."""
    asked = app.settings.get("sandbox")
    found: Tier = asked["require"] if isinstance(asked, Mapping) else "none"
    return found


def is_ours(app: App) -> bool:
    """Whether the library brings the app and all that it runs."""
    function = app.function or ""
    packaged = app.source in (app.name, "") or app.source.startswith("hpcagent.")
    return function.startswith("hpcagent.") and packaged


def _job(row: Row) -> dict[str, Any]:
    """What an event says of a run."""
    facts = {"job_id": row.id, "job_type": row.app, "kind": row.kind, "site": row.site}
    return facts | ({"label": row.label} if row.label else {})


def _machine(row: Row) -> bool:
    failure = (row.result or {}).get("failure") or {}
    if failure:
        return not meaning(failure["kind"], failure["name"], failure.get("repair")).final
    return row.state == "failed" and row.result is None


def _plain(one: Approval) -> dict[str, Any]:
    names = ("id", "words", "why", "asked_by", "asked_at", "expires_at", "state", "decided_by", "note", "used_for")
    return {name: getattr(one, name) for name in names} | {"digest": one.digest, "request": dict(one.request)}


def _written_at(name: str) -> float:
    """When a script or contract was last written, so that an edited one is read again."""
    try:
        return Path(name).stat().st_mtime
    except (OSError, ValueError):
        return 0.0


def _as_name(text: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in text).strip(".") or "site"


def _own_name() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return f"uid-{os.getuid()}"


def _size(folder: Path) -> int:
    return sum(int(one["bytes"]) for one in list_files(folder))
