"""Tools and agents of a workspace: registered, tried, approved, assigned; each change is a line of the journal."""

from __future__ import annotations

import base64
import contextlib
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

from hpcagent.apps.base import App
from hpcagent.apps.sandbox.record import Tier
from hpcagent.catalog import app_names, look_up
from hpcagent.contexts.events import EVERYONE
from hpcagent.errors import BadInput, HpcAgentError, NotThere
from hpcagent.gate.not_allowed import NotAllowed
from hpcagent.gate.rules import Caller
from hpcagent.registry.agents import Agents, SeenAgent
from hpcagent.registry.findings import warnings_of
from hpcagent.registry.record import ToolRecord
from hpcagent.registry.scripts import SCRIPTS, scripts_on
from hpcagent.registry.source import LARGEST
from hpcagent.registry.store import Seen
from hpcagent.registry.trials import tried
from hpcagent.shown import plain
from hpcagent.workspace.app_store import packed
from hpcagent.workspace.artifacts import read_piece
from hpcagent.workspace.following import Following
from hpcagent.workspace.inner import ARTIFACT
from hpcagent.workspace.lines_told import Lately, told_of

__all__ = ["Registered"]

LOOK_S = 2.0
OF_ITSELF = ("tool_changed", "tool_tested")
"""Events that no request asks for, though one may see them first."""
_TIERS: tuple[Tier, ...] = ("bubblewrap", "limits")


class Registered(Following):
    """Tools of a workspace's own, and agents, behind the gate.

    Args:
        root: The workspace's folder.
        clock: Unix time, in seconds.
        apart: Sites are kept by processes of their own, which outlive this one.
    """

    def __init__(self, root: Path, *, clock: Callable[[], float] = time.time, apart: bool = False) -> None:
        super().__init__(root, clock=clock, apart=apart)
        self.agents = Agents(self.folder.agents, clock=clock)
        self._to_try: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._trying: set[str] = set()
        self._trier: threading.Thread | None = None
        self._tools_seen_at = -LOOK_S

    # -- registering --------------------------------------------------------------------------

    def register_tool(
        self,
        caller: Caller,
        *,
        text: str = "",
        file: str = "",
        why: str = "",
        origin: str = "",
        sandbox: Tier = "bubblewrap",
    ) -> dict[str, Any]:
        """Register each function of a text as a tool; pending until its tests have run and a person approves.

        Args:
            caller: Who asks.
            text: Python: one function or several.
            file: In its place: `artifact:RUN/PATH`, a file of a run.
            why: What it is for.
            origin: Where the text is from, as the caller says.
            sandbox: The tier that each of its runs has at least; `limits` is shown to whoever approves.

        Returns:
            `tools`: a card of each.

        Raises:
            NotAllowed: The role may not write.
            BadInput: What is wrong with the text, all of it at once.
        """
        with self.gate.recorded(caller, what="register_tool"):
            self.gate.require(caller, "write")
            if sandbox not in _TIERS:
                raise NotAllowed(
                    "contract",
                    "a tool runs in a sandbox",
                    field="sandbox",
                    value=sandbox,
                    allowed=", ".join(_TIERS),
                    do="leave it out",
                )
        earlier = self.answered.earlier
        if earlier is not None:
            return {"tools": [self._card(self.tools.see(name)) for name in earlier["names"]]}
        if bool(text) == bool(file):
            raise BadInput("give the text of the tool, or a file of a run that has it: one of them.")
        if file:
            text = self._text_of(caller, file)
        may_replace = "approve" in self.rules.rights(caller.role).may
        made = self.tools.register(
            text,
            by=caller.name,
            origin=file or plain(origin)[:300] or f"by {plain(caller.client) or 'a caller'}",
            why=plain(why)[:2000],
            sandbox=sandbox,
            may_replace=may_replace,
        )
        self.answered.also(names=[record.name for record in made])
        lines = self._write_down(*(_facts("tool_registered", record, by=caller.name) for record in made))
        for record, line in zip(made, lines, strict=True):
            self._tell_line(line)
            self._try(record)
        return {"tools": [self._card(Seen(record)) for record in made]}

    def _text_of(self, caller: Caller, file: str) -> str:
        """The text in a file of a run that the caller may see."""
        if not file.startswith(ARTIFACT):
            raise BadInput(
                f"{file[:100]!r} is no file of a run: artifact:RUN/PATH. A file of this machine is read by "
                "whoever registers it, and given as text.",
                value=file[:100],
            )
        folder, path = self.artifact(caller, file)
        piece = read_piece(folder, path, 0, LARGEST + 1)
        if piece["bytes"] > LARGEST:
            raise BadInput(f"{file[:100]} has {piece['bytes']} bytes; a text of tools has at most {LARGEST}.")
        try:
            return base64.b64decode(piece["data"]).decode()
        except UnicodeDecodeError:
            raise BadInput(f"{file[:100]} is no text (UTF-8).") from None

    # -- seeing -------------------------------------------------------------------------------

    def list_tools(self, caller: Caller) -> list[dict[str, Any]]:
        """All registered tools, in whatever state."""
        self.gate.require(caller, "read")
        seen = self.tools.look()
        self._tell_changes()
        agents = self.agents.every()
        return [self._card(one, agents) for one in seen]

    def get_tool(self, caller: Caller, *, name: str) -> dict[str, Any]:
        """One tool, with its text and all that was found in it."""
        self.gate.require(caller, "read")
        seen = self.tools.see(name)
        self._tell_changes()
        text = ""
        with contextlib.suppress(BadInput):  # which is its problem
            text = self.tools.text(name)
        contract = None if seen.record.contract is None else seen.record.contract.model_dump(mode="json")
        return self._card(seen) | {
            "text": text,
            "contract": contract,
            "tests": seen.record.tests.model_dump(mode="json"),
        }

    def _card(self, seen: Seen, agents: Sequence[SeenAgent] | None = None) -> dict[str, Any]:
        one = seen.record
        problem = seen.problem
        if one.name in app_names():
            problem = "an app of that name comes with the library now, and is what runs; rename the tool"
        return {
            "name": one.name,
            "version": one.version,
            "state": one.state,
            "usable": seen.usable and not problem,
            "problem": problem,
            "description": "" if one.contract is None else one.contract.summary,
            "sha256": one.sha256,
            "asked_by": one.asked_by,
            "at": one.at,
            "origin": one.origin,
            "why": one.why,
            "sandbox": one.sandbox,
            "walltime_s": None if one.contract is None else one.contract.limit_s,
            "limit": "" if one.contract is None else one.contract.limit_words,
            "decided_by": one.decided_by,
            "decided_at": one.decided_at or None,
            "note": one.note,
            "errors": [str(finding) for finding in one.refused],
            "warnings": [str(finding) for finding in warnings_of(one.findings)],
            "tests": one.tests.state,
            "agents": [a.record.name for a in agents or self.agents.every() if one.name in a.record.tools],
        }

    def tools_that_run(self, caller: Caller) -> list[App]:
        """Approved tools that the caller may use, and apps that run scripts where the rules let them."""
        found = [
            app
            for name in scripts_on(self.rules)
            if self.gate.may_use(caller, "apps", f"own:{name}") and (app := self.references.tool(name)) is not None
        ]
        for seen in self.tools.look():
            record = seen.record
            mine = self.gate.may_use(caller, "apps", f"own:{record.name}")
            if seen.usable and mine and record.name not in app_names() and record.contract is not None:
                with contextlib.suppress(BadInput):  # edited since it was looked at
                    app = self.references.tool(f"{record.name}@{record.version}")
                    found += [app] if app is not None else []
        self._tell_changes()
        return found

    def describe(self, caller: Caller, *, app: str) -> dict[str, Any]:
        """The contract of an app or of a registered tool that the caller may use, as plain data."""
        name = app.partition("@")[0]
        own = name not in app_names()
        found = self.references.tool(app) if own else look_up(app)
        if found is None or not self.gate.may_use(caller, "apps", f"own:{name}" if own else name):
            raise NotThere(f"there is no app {app[:80]!r} that you may use.", value=app[:80])
        return found.contract.model_dump(mode="json")

    def packed_tool(self, caller: Caller, *, app: str) -> dict[str, Any]:
        """A registered tool that the caller may use, as a record of an app; nothing is kept.

        Raises:
            NotAllowed: It may not run, or the caller may not use it.
        """
        own = f"own:{app.partition('@')[0]}"
        try:
            found = self.references.tool(app) if self.gate.may_use(caller, "apps", own) else None
        except BadInput as error:
            raise NotAllowed(
                "contract",
                error.message,
                field="app",
                value=app[:80],
                do="`hpcagent tools list` says how each tool stands",
            ) from None
        if found is None:
            raise NotAllowed(
                "contract",
                "there is no tool of that name that you may use",
                field="app",
                value=app[:80],
                do="`hpcagent workspace apps` lists those that you may use",
            )
        return packed(found)

    # -- deciding -----------------------------------------------------------------------------

    def decide_tool(
        self,
        caller: Caller,
        *,
        name: str,
        approve: bool,
        note: str = "",
        sha256: str = "",
        despite_tests: bool = False,
        dry_run: bool = False,
    ) -> dict[str, Any]:
        """Approve or reject a tool as it is now; nobody approves what they registered, unless the role is admin.

        Args:
            caller: Who decides.
            name: The tool.
            approve: Or reject: also one that was approved.
            note: What they say.
            sha256: The digest of the text that they have read, all 64 digits.
            despite_tests: Approve it although its tests have failed, are not there or could not run.
            dry_run: Check all that a decision needs, and decide nothing.

        Raises:
            NotAllowed: The role may not approve, or it is the caller's own.
            BadInput: It is not there, has errors, is another text than they read, or its tests say no.
        """
        if self.answered.earlier is not None:
            return self._card(self.tools.see(name))
        with self.gate.recorded(caller, what=f"tool {name[:80]}"):
            self.gate.require(caller, "approve")
            before = self.tools.see(name).record
            if approve and before.asked_by == caller.name and caller.role != "admin":
                raise NotAllowed(
                    "approval",
                    "nobody approves a tool that they have registered themselves",
                    field="by",
                    value=caller.name,
                    allowed="somebody else with the right to approve",
                    do="ask one of them",
                )
        kind = "tool_approved" if approve else "tool_rejected"
        lines: list[dict[str, Any]] = []

        def on_record(record: ToolRecord) -> None:
            lines.append(self._note(kind, record, by=caller.name, note=record.note))

        # Whoever has both locks takes the workspace's first.
        with self._turn:
            record = self.tools.decide(
                name,
                approve=approve,
                by=caller.name,
                note=plain(note)[:2000],
                # What was looked at above is what is decided on.
                sha256=sha256 or before.sha256,
                despite_tests=despite_tests,
                dry_run=dry_run,
                on_record=on_record,
            )
            if not (lines or dry_run):  # it stood so before
                on_record(record)
        self._tell_changes()
        for line in lines:
            self._tell_line(line)
        return self._card(self.tools.see(name))

    def remove_tool(self, caller: Caller, *, name: str) -> dict[str, Any]:
        """Remove a tool that is not approved: one's own, or any with the right to approve."""
        if self.answered.earlier is not None:
            return {"name": name, "removed": True}
        with self.gate.recorded(caller, what=f"remove tool {name[:80]}"):
            self.gate.require(caller, "write")
            record = self.tools.see(name).record
            if record.asked_by != caller.name:
                self.gate.require(caller, "approve")
        removed = self.tools.remove(name)
        self._tell_line(self._note("tool_removed", removed, by=caller.name))
        return {"name": name, "removed": True}

    # -- agents -------------------------------------------------------------------------------

    def list_agents(self, caller: Caller) -> list[dict[str, Any]]:
        """All agents, with their role texts and tools."""
        self.gate.require(caller, "read")
        return [_agent(one) for one in self.agents.every()]

    def add_agent(
        self, caller: Caller, *, name: str, role: str, tools: Sequence[str] = (), origin: str = ""
    ) -> dict[str, Any]:
        """Make an agent of a role text and tools; one of an `origin` waits until a person lets it work."""
        if self.answered.earlier is not None:
            return _agent(self.agents.get(name))
        with self.gate.recorded(caller, what=f"agent {name[:80]}"):
            self.gate.require(caller, "write")
        for tool in tools:
            self._known_tool(tool)
        made = self.agents.add(name, role, tools=tuple(tools), by=caller.name, origin=plain(origin)[:300])
        more = {"origin": made.record.origin} if made.record.origin else {}
        self._event("agent_added", name=name, by=caller.name, tools=list(made.record.tools), **more)
        return _agent(made)

    def accept_agent(self, caller: Caller, *, name: str) -> dict[str, Any]:
        """Let an agent work that is from elsewhere."""
        with self.gate.recorded(caller, what=f"agent {name[:80]}"):
            self.gate.require(caller, "approve")
        found = self.agents.accept(name, by=caller.name)
        self._event("agent_accepted", name=name, by=caller.name)
        return _agent(found)

    def remove_agent(self, caller: Caller, *, name: str) -> dict[str, Any]:
        """Remove an agent; its tools stay."""
        if self.answered.earlier is not None:
            return {"name": name, "removed": True}
        with self.gate.recorded(caller, what=f"agent {name[:80]}"):
            self.gate.require(caller, "write")
        self.agents.remove(name)
        self._event("agent_removed", name=name, by=caller.name)
        return {"name": name, "removed": True}

    def assign_tool(self, caller: Caller, *, tool: str, agent: str, take: bool = False) -> dict[str, Any]:
        """Give an agent a tool (an app's or a registered one's name), or take it away."""
        if self.answered.earlier is not None:
            return _agent(self.agents.get(agent))
        with self.gate.recorded(caller, what=f"agent {agent[:80]}"):
            self.gate.require(caller, "write")
        if not take:
            self._known_tool(tool)
        found = self.agents.assign(tool, agent, by=caller.name, take=take)
        self._event("tool_taken" if take else "tool_assigned", name=tool, agent=agent, by=caller.name)
        return _agent(found)

    def _known_tool(self, tool: str) -> None:
        if tool not in app_names() and not self.references.has_own(tool) and tool not in SCRIPTS:
            raise BadInput(
                f"there is no tool and no app {tool[:80]!r}; `hpcagent tools list` has the tools, "
                "`hpcagent workspace apps` the apps.",
                value=tool[:80],
            )

    # -- trying -------------------------------------------------------------------------------

    def _try(self, record: ToolRecord) -> None:
        """Have the tests of a tool run in the background, unless they have run or do."""
        if record.tests.state != "waiting" or record.state != "pending" or record.refused:
            return
        with self._turn:
            if record.name in self._trying or self._closed:
                return
            self._trying.add(record.name)
            if self._trier is None:
                self._trier = threading.Thread(target=self._try_all, name="tests of tools", daemon=True)
                self._trier.start()
        self._to_try.put(record.name)

    def _try_all(self) -> None:
        while (name := self._to_try.get()) is not None:
            try:
                self._try_one(name)
            except Exception as error:  # the next tool is tried all the same
                self._say(f"the tests of the tool {name} could not run: {plain(str(error))}")
            finally:
                with self._turn:
                    self._trying.discard(name)
                    self._turn.notify_all()

    def _try_one(self, name: str) -> None:
        record = self.tools.see(name).record
        parsed = self.tools.check(self.tools.text(name))
        tool = next((one for one in parsed.tools if one.name == name), None)
        if tool is None or record.tests.state != "waiting":
            return
        trial = tried(tool, record.sha256, require=record.sandbox)
        if not self._closed and self.tools.tested(name, record.sha256, trial):
            self._event("tool_tested", name=name, version=record.version, sha256=record.sha256, tests=trial.state)

    def look_at_tools(self) -> None:
        """See what was edited by hand, and have tried what waits for it."""
        now = time.monotonic()
        if now - self._tools_seen_at < LOOK_S or not self.folder.tools.is_dir():
            return
        self._tools_seen_at = now
        for seen in self.tools.look():
            if not seen.problem:
                self._try(seen.record)
        self._tell_changes()

    def try_no_more(self) -> None:
        """End the thread that has tools tried, behind the one that it tries."""
        self._to_try.put(None)

    @property
    def tries(self) -> bool:
        """Whether tests of tools go on."""
        return bool(self._trying)

    # -- telling ------------------------------------------------------------------------------

    def _tell_changes(self) -> None:
        """Write down and tell what was edited by hand."""
        while self.tool_changes:
            try:
                change = self.tool_changes.popleft()
            except IndexError:  # another thread tells it
                return
            line = self._event(
                "tool_changed",
                name=change.name,
                version=change.version,
                was=change.was,
                before=change.before,
                state=change.now,
                why=change.why,
            )
            self._tell_line(line)
            with contextlib.suppress(HpcAgentError):
                self._try(self.tools.see(change.name).record)

    def _tell_lost(self) -> None:
        """Tell what the service before this one had written down, and was killed before it told it.

        Before anything else is told, and in the order in which it was written: a service that is killed in the
        middle leaves what follows to the next.
        """
        try:
            told = Lately.told(self.events.log)
        except HpcAgentError as error:
            self._say(f"whether all events were told is not known: {error.message}")
            return
        lines: list[tuple[float, str, Callable[[], None]]] = [
            (row.ended_at, row.end_key, partial(self._tell_end, row)) for row in self.rows.values() if row.over
        ]
        for line in self._of_tools:
            with contextlib.suppress(KeyError):  # of an older library
                lines.append((line["at"], told_of(line)[2], partial(self._tell_line, line)))
        lines.sort(key=itemgetter(0))
        since = told.since((at, key) for at, key, _ in lines)
        for at, key, tell in lines:
            if at >= since and key not in told.keys:
                tell()

    def _tell_line(self, line: Mapping[str, Any]) -> None:
        """Tell what a line of the journal says of a tool or an added app."""
        event, payload, key = told_of(line)
        self.outbox.tell(event, EVERYONE, payload, key)

    def _note(self, event: str, record: ToolRecord, **more: Any) -> dict[str, Any]:
        return self._write_down(_facts(event, record, **more))[0]

    def _event(self, event: str, **facts: Any) -> dict[str, Any]:
        return self._write_down({"event": event, **facts})[0]

    def _write_down(self, *events: dict[str, Any]) -> list[dict[str, Any]]:
        """Write events into the journal, all or none; gives their lines."""
        with self._turn:
            at = self._clock()
            whole = [{"event": event["event"], "at": at, **event} for event in events]
            for event in whole:
                if event["event"] not in OF_ITSELF:
                    self.answered.mark(event)  # the first of them
            self._take_down(*whole)
        return whole


def _facts(event: str, record: ToolRecord, **more: Any) -> dict[str, Any]:
    """An event about a tool as it is."""
    names = ("name", "version", "sha256", "seal", "state", "origin", "sandbox")
    return {"event": event, **{name: getattr(record, name) for name in names}, **more}


def _agent(seen: SeenAgent) -> dict[str, Any]:
    found = seen.record.model_dump(mode="json")
    return found | {"problem": seen.problem, "warnings": [str(one) for one in seen.findings]}
