"""What is on record in a workspace: who asked for what, what was let through, what became of it, what it took."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hpcagent.apps.sandbox.tiers import tiers
from hpcagent.contexts.events import EVERYONE, Events, Told
from hpcagent.errors import HpcAgentError, NotThere, RunDirGone, RunDirLocked
from hpcagent.gate.accounts import Accounts
from hpcagent.gate.approvals import OF_APPROVALS, Approval, Approvals
from hpcagent.gate.gate import Admission, Gate, refuse_secret
from hpcagent.gate.not_allowed import NotAllowed
from hpcagent.gate.request import charged_of
from hpcagent.gate.rules import Caller, Rules
from hpcagent.registry.inputs import AddedApps
from hpcagent.shown import plain
from hpcagent.store.journal import Journal, read_events
from hpcagent.store.rundir import Lock, holder
from hpcagent.workspace.answered import Answered
from hpcagent.workspace.changed import Changed
from hpcagent.workspace.experience import Experience
from hpcagent.workspace.folder import Folder, own_name
from hpcagent.workspace.lines_told import OF_ADDED, OF_TOOLS
from hpcagent.workspace.outbox import Outbox
from hpcagent.workspace.rows import Row, as_given, job_facts, lost

__all__ = ["MOST_OF_TOOLS", "MOST_REFUSALS", "Records"]

MOST_REFUSALS = 1000
"""Lines of refusals of one person in an hour; more are counted, so that nobody fills the disk with them."""
MOST_OF_TOOLS = 1000
"""The last lines about tools that are known: what was written and not told is among them."""

OF_ROW = ("manifest", "request", "shares", "note", "approval", "label", "settings", "code")
"""What a line of the journal may have of a run or campaign, by the names that it has of its row."""
OF_EXTENSION = ("state", "ended_at", "request", "before", "went_s", "again_at", "again_behind", "changes")
"""What of a campaign is another when it is let go on."""


class Records:
    """The journal of a workspace, and all that follows from it.

    Args:
        root: Its folder, which is there.
        clock: Unix time, in seconds.

    Raises:
        RunDirLocked: Another process serves it.
        BadInput: `workspace.toml` is wrong.
        StoreFull: It cannot be written.
    """

    def __init__(self, root: Path, *, clock: Callable[[], float] = time.time) -> None:
        self.folder = Folder(root)
        self._clock = clock
        self._rules_read = _written_at(self.folder.rules)
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
        self._closed = False
        self.rows: dict[str, Row] = {}
        self._by_work: dict[str, list[str]] = {}
        self._newest: list[str] = []
        self.changed = Changed()
        self.news: list[str] = []
        self.answered = Answered(clock)
        self._to_remove: dict[str, float] = {}  # runs whose folders go, as was written down at that Unix time
        self.kept_files: dict[str, tuple[str, int]] = {}  # files of runs that others read -> who brought it, bytes
        self.tool_seals: dict[tuple[str, str], str] = {}  # (name, version) -> seal of the record that was approved
        self.added = AddedApps()
        self._of_tools: deque[Mapping[str, Any]] = deque(maxlen=MOST_OF_TOOLS)  # the last lines about them
        self.accounts = Accounts()
        self.events = Events(root / "events", may_see=self._may_see)
        self.outbox = Outbox(self.events, self._say)
        self._owner = Caller(name=own_name(), role="admin")
        events = read_events(self.folder.journal) if self.folder.journal.exists() else ()
        self.approvals = Approvals(self._write, clock=clock, expires_s=self.rules.approval_expires_s)
        self.damaged = 0
        self._refusals: dict[str, tuple[int, int, int]] = {}  # by person: hour, lines, those left out since
        self.gate = Gate(
            self.rules,
            self.approvals,
            self.accounts,
            clock=clock,
            record=self._refusal,
            tiers=sandbox_tiers,
        )
        self.experience = Experience(self.gate, self._turn)
        with self._turn:
            for event in events:
                self._replay(event)
        self._journal = Journal.open(self.folder.journal)

    # -- the journal --------------------------------------------------------------------------

    def _write(self, *events: dict[str, Any]) -> None:
        """Append events, all or none; what was written holds.

        Raises:
            RunDirGone: The journal was deleted, moved or replaced; looked at before each write, as the answer
                to a request may rest on it.
            StoreFull: The disk refuses.
        """
        try:
            self._journal.check()
        except RunDirGone as error:
            raise RunDirGone(
                f"{self.folder.journal} is not as this service has left it: deleted, replaced or written by "
                "somebody else. Nothing is written, and nothing new begins. Put the file back, or end the service "
                "(hpcagent workspace end): the next one goes on from what is there.",
                path=str(self.folder.journal),
            ) from error
        self._journal.append(events)

    def _refusal(self, event: dict[str, Any]) -> None:
        """A refusal is a line of the journal; one by a quota is an event as well."""
        more = self._refused_lines(event["by"])
        if more is None:
            return
        self._write(event | more)
        if event.get("check") == "quota":
            said = {"quota": event.get("field", ""), "why": event["why"]}
            self.outbox.tell("on_quota_exceeded", event["by"], said)

    def _refused_lines(self, who: str) -> dict[str, int] | None:
        """What to add to the line of a refusal; None: somebody has so many this hour that it is only counted."""
        hour = int(self._clock() // 3600)
        before, lines, left_out = self._refusals.get(who, (hour, 0, 0))
        if before == hour and lines >= MOST_REFUSALS:
            self._refusals[who] = hour, lines, left_out + 1
            return None
        self._refusals[who] = hour, lines + 1 if before == hour else 1, 0
        return {"not_written": left_out} if left_out else {}

    def _replay(self, event: Mapping[str, Any]) -> None:
        try:
            kind = event["event"]
            if "call" in event:
                self.answered.replay(event)
            if kind in FOLLOWS:
                FOLLOWS[kind](self, event)
            if kind in OF_TOOLS and math.isfinite(event["at"]):
                self._of_tools.append(event)
        except (KeyError, TypeError, ValueError, AttributeError):
            self.damaged += 1

    def _begin(self, caller: Caller, admission: Admission, identity: str, **facts: Any) -> Row:
        """Write down what was let through, with the approval that it uses, all or nothing."""
        asked = admission.request
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
            "request": asked.model_dump(mode="json", exclude={"units"}),
            **{name: value for name, value in facts.items() if value not in ("", [], {})},
        }
        self._let_through(event, admission)
        return self.rows[identity]

    def _let_through(self, event: dict[str, Any], admission: Admission) -> None:
        """Write down an event with the approval that it uses, all or nothing, and what follows from it."""
        self.answered.mark(event)
        events, approval = [event], admission.approval
        if approval is not None:
            event["approval"] = approval.id
            events.append(self.approvals.used(approval, event["id"]))
        self._take_down(*events)

    def _take_down(self, *events: dict[str, Any]) -> None:
        """Write events, all or none; what follows from them is so from now on."""
        self._write(*events)
        for event in events:
            self._replay(event)

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
            reference=event.get("reference", event["app"]),
            inputs=tuple(event.get("inputs", ())),
            cause=tuple(event.get("cause", ())),
            **{name: event[name] for name in OF_ROW if name in event},
        )
        shared = self.rows.get(row.shares)
        row.job = row.id if shared is None else shared.job
        self.rows[row.id] = row
        self._newest.append(row.id)
        self._by_work.setdefault(row.execution_id, []).append(row.id)
        self._touch(row, row.asked_at)
        if not row.shares:
            self._commit(row, row.asked_at)
        if event.get("approval"):  # its own line may be damaged
            self.approvals.mark_used(event["approval"], row.id)
        return row

    def _ended(self, event: Mapping[str, Any]) -> Row:
        row = self.rows[event["id"]]
        if not math.isfinite(event["at"]):
            raise ValueError("a time that is none.")
        _check_cost(event)
        row.state, row.ended_at, row.result = event["state"], event["at"], event.get("result")
        row.note = event.get("note", row.note)
        row.settled += event.get("node_hours", 0.0)
        row.stored += event.get("bytes", 0)
        self._touch(row, event["at"])
        if row.kind == "run":
            self.experience.ended(row)
        if not row.shares:
            self.accounts.settle(
                row.owner,
                row.id,
                event.get("node_hours", 0.0),
                event.get("usd", 0.0),
                event.get("bytes", 0),
            )
        if event.get("taught") is not None and not self.experience.learn(row, event["taught"]):
            self.damaged += 1
        return row

    def _end(
        self, row: Row, state: str, *, sharing: Sequence[Row] = (), note: str | None = None, **more: Any
    ) -> None:
        """Write down that a run or campaign has ended, and those that share its work: all of them or none."""
        facts = {"event": "ended", "state": state, "at": self._clock()}
        said = {name: value for name, value in {**more, "note": note}.items() if value is not None}
        shared = {"result": more.get("result"), "note": "the same work had been asked for before"}
        events = [facts | {"id": row.id} | said, *(facts | {"id": one.id} | shared for one in sharing)]
        self._write(*events)
        for event in events:
            self._ended(event)
        self._turn.notify_all()
        for one in (row, *sharing):
            self._tell_end(one)

    def _tell_end(self, row: Row) -> None:
        """Tell that it has ended, as its last line in the journal says."""
        said = job_facts(row) | {"state": row.state, "result_url": f"workspace:runs/{row.id}"}
        if row.state == "completed" or (row.state == "stopped" and row.kind == "run"):  # a run's stop is a result
            self.outbox.tell("on_job_complete", row.owner, said, row.end_key, row.cause)
        else:
            failure = (row.result or {}).get("failure") or {}
            reason = str(failure.get("message") or row.note or row.state)[:500]
            self.outbox.tell("on_job_failed", row.owner, said | {"reason": reason}, row.end_key, row.cause)

    def _paid_by(self, event: Mapping[str, Any]) -> None:
        """Work goes on for another who has asked for it, and on their account."""
        row = self.rows[event["id"]]
        row.shares = ""
        for identity in event["others"]:
            self.rows[identity].shares = row.id
        self._commit(row, event["at"])

    def _expired(self, event: Mapping[str, Any]) -> None:
        """The folders of old runs are removed."""
        for identity, size in event["runs"].items():
            row = self.rows[identity]
            self._to_remove[identity] = event["at"]
            row.note = f"{row.note}; its files were removed" if row.note else "its files were removed"
            self._touch(row, event["at"])
            self.accounts.settle(row.owner, row.id, 0.0, 0.0, -size)

    def _removed(self, event: Mapping[str, Any]) -> None:
        for identity in event["runs"]:
            self._to_remove.pop(identity, None)

    def _took(self, event: Mapping[str, Any]) -> None:
        """What it really took is known."""
        row = self.rows[event["id"]]
        _check_cost(event)
        row.took = event.get("cost", {"node_hours": event["node_hours"]})
        self.accounts.settle(row.owner, row.id, event["node_hours"], event["usd"])

    def _inputs_kept(self, event: Mapping[str, Any]) -> None:
        """Files of runs are kept for others to read, or take another room now; they stay whose they were first."""
        sizes = {str(path): int(size) for path, size in event["files"].items()}
        if any(size < 0 for size in sizes.values()):
            raise ValueError("a size that is none.")
        for path, size in sizes.items():
            owner, before = self.kept_files.get(path, (str(event["by"]), 0))
            self.kept_files[path] = owner, size
            self.accounts.store(owner, size - before)

    def _inputs_removed(self, event: Mapping[str, Any]) -> None:
        for path in event["files"]:
            owner, size = self.kept_files.pop(path, ("", 0))  # the line that it was kept may be damaged
            self.accounts.store(owner, -size)

    def _tool_approved(self, event: Mapping[str, Any]) -> None:
        self.tool_seals[event["name"], event["version"]] = event["seal"]

    def _tool_rejected(self, event: Mapping[str, Any]) -> None:
        self.tool_seals.pop((event["name"], event["version"]), None)

    def _damaged(self, event: Mapping[str, Any]) -> None:
        """A line before it is damaged, and was so when an earlier service read it."""
        self.damaged += 1

    def _extended(self, event: Mapping[str, Any]) -> None:
        """A campaign that had ended goes on, with what was let through since."""
        row = self.rows[event["id"]]
        row.was, row.in_vain = replace(row, was=None), ""
        row.went_s, row.again_at = row.elapsed_s(event["at"]), event["at"]
        row.state, row.ended_at, row.note = "running", 0.0, event.get("note", row.note)
        row.again_behind, row.changes = event.get("behind"), event.get("changes", {})
        if "request" in event:
            row.request, row.before = event["request"], row.settled
        self._touch(row, event["at"])
        self._commit(row, event["at"])

    def _not_extended(self, event: Mapping[str, Any]) -> None:
        """A campaign that was let go on, and did not begin to, stands as it did before."""
        row = self.rows[event["id"]]
        was, why = row.was, str(event["why"])
        if was is None:
            raise ValueError("it was not extended.")
        for name in OF_EXTENSION:
            setattr(row, name, getattr(was, name))
        row.was, row.in_vain = None, why
        row.note = f"{was.note.rstrip('.')}. It did not go on: {why}" if was.note else f"it did not go on: {why}"
        self.accounts.settle(row.owner, row.id, 0.0, 0.0)
        self._touch(row, event["at"])

    def _touch(self, row: Row, at: float) -> None:
        """A row has changed: whoever waits for that looks."""
        row.changed_at = at
        self.changed.touch(row.id)
        self._turn.notify_all()

    def _commit(self, row: Row, at: float) -> None:
        asked = row.request
        self.accounts.commit(row.owner, row.id, charged_of(asked) or 0.0, asked.get("usd") or 0.0, at)

    def _say(self, news: str) -> None:
        """Put a sentence into the news, where it is not the last one."""
        if not self.news or self.news[-1] != news:
            self.news.append(news)

    # -- who ----------------------------------------------------------------------------------

    def _read_rules(self) -> None:
        """Read `workspace.toml` again if it was written since; one that is wrong changes nothing, and is told."""
        written = _written_at(self.folder.rules)
        if written == self._rules_read:
            return
        with self._turn:
            self._rules_read = written
            try:
                rules = self.folder.read_rules()
            except HpcAgentError as error:
                self._say(f"the rules as they were still hold: {error.message}")
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
        name = mine or self._owner.name
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

    def whoami(self, caller: Caller) -> dict[str, Any]:
        """Name, role and rights of the caller."""
        rights = self.rules.rights(caller.role)
        return {"name": caller.name, "role": caller.role, "may": list(rights.may), "apps": list(rights.apps)}

    def _may_see(self, who: str, told: Told) -> bool:
        """Events are seen by their owner, those they were told to, and whoever sees all."""
        if told.owner in (who, EVERYONE) or who in told.readers:
            return True
        person = self.rules.people.get(who)
        role = self._owner.role if who == self._owner.name else "viewer" if person is None else person.role
        return "see_all" in self.rules.rights(role).may

    # -- rows ---------------------------------------------------------------------------------

    def _row(self, caller: Caller, identity: str) -> Row:
        row = self.rows.get(identity)
        if row is None or not self.gate.sees(caller, row.owner):
            raise NotThere(f"there is no run {identity!r}; `hpcagent workspace list` shows yours.", value=identity)
        return row

    def _row_or_work(self, caller: Caller, identity: str) -> Row:
        """A run by its handle, or the newest that has done a work, by the execution id that tables have."""
        seen = [one for one in self._same_work(identity) if self.gate.sees(caller, one.owner)]
        return seen[-1] if seen else self._row(caller, identity)

    def _workdir(self, row: Row) -> Path:
        return self.folder.work / row.execution_id if row.kind == "run" else self.folder.campaigns / row.id

    def _said(self, row: Row, *, found: bool) -> dict[str, Any]:
        return {"id": row.id, "state": row.state, "found": found, "workdir": str(self._workdir(row))}

    def _same_work(self, execution_id: str) -> list[Row]:
        """Runs that did, or do, this very work: not those that were cancelled, or lost by the machine."""
        found = [self.rows[i] for i in self._by_work.get(execution_id, ())]
        return [row for row in found if row.state != "cancelled" and not lost(row)]

    def _waiting_for(self, execution_id: str) -> list[Row]:
        rows = (self.rows[identity] for identity in self._by_work.get(execution_id, ()))
        return [row for row in rows if not row.over]

    # -- approvals ----------------------------------------------------------------------------

    def decide(self, caller: Caller, identity: str, *, grant: bool, note: str = "") -> dict[str, Any]:
        """Grant or deny an approval; nobody grants their own request unless the role is admin."""
        with self._turn, self.gate.recorded(caller, what=f"approval {identity}"):
            self.gate.require(caller, "approve")
            refuse_secret("note", note)
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

    # -- accounts -----------------------------------------------------------------------------

    def costs(self, caller: Caller) -> dict[str, Any]:
        """Spent and committed, in the whole workspace and by person; estimated against actual, by app.

        Apps are those that the caller may use or has run; other people's own code is told only to who sees all.
        """
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
            return {
                "workspace": people.pop(""),
                "people": people,
                "accuracy": self.experience.accuracy(caller),
            }


def _check_cost(event: Mapping[str, Any]) -> None:
    if not all(0.0 <= event.get(name, 0.0) < math.inf for name in ("node_hours", "usd")):
        raise ValueError("a cost that is none.")


FOLLOWS: Mapping[str, Callable[[Records, Mapping[str, Any]], object]] = {
    "asked": Records._asked,
    "ended": Records._ended,
    "took": Records._took,
    "paid_by": Records._paid_by,
    "extended": Records._extended,
    "not_extended": Records._not_extended,
    "expired": Records._expired,
    "removed": Records._removed,
    "inputs_kept": Records._inputs_kept,
    "inputs_removed": Records._inputs_removed,
    "tool_approved": Records._tool_approved,
    "tool_rejected": Records._tool_rejected,
    "damaged": Records._damaged,
    **dict.fromkeys(OF_APPROVALS, lambda records, event: records.approvals.replay(event)),
    **dict.fromkeys(OF_ADDED, lambda records, event: records.added.replay(event)),
}
"""What follows from a line of the journal, by what it says."""


def sandbox_tiers() -> dict[str, str]:
    """Sandbox tiers, each with "" or why it is not to be had here."""
    return {state.name: "" if state.available else state.why for state in tiers()}


def _plain(one: Approval) -> dict[str, Any]:
    names = ("id", "words", "why", "asked_by", "asked_at", "expires_at", "state", "decided_by", "note", "used_for")
    asked = dict(one.request)
    shown = as_given(asked.get("params", {}), asked.get("given", {}))
    said = {"params": shown, "asked_why": asked.get("why", "")}
    return {name: getattr(one, name) for name in names} | said | {"digest": one.digest, "request": asked}


def _written_at(path: Path) -> float:
    """When a file was last written, in Unix seconds; 0 where it is not there."""
    try:
        return path.stat().st_mtime
    except (OSError, ValueError):
        return 0.0
