"""The workspace itself: what may be asked of it. One process has it at a time."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hpcagent.catalog import list_apps
from hpcagent.contexts.triggers import Started, Triggers, load_triggers
from hpcagent.errors import BadInput, HpcAgentError
from hpcagent.gate.rules import Caller
from hpcagent.model.records import Manifest
from hpcagent.shown import plain
from hpcagent.sites.profiles import list_profiles
from hpcagent.workspace.app_search import found_by
from hpcagent.workspace.artifacts import size_of
from hpcagent.workspace.catalyst_calls import CatalystCalls
from hpcagent.workspace.configured import changed_since, configured
from hpcagent.workspace.counters import counters_of
from hpcagent.workspace.kept import Kept
from hpcagent.workspace.only_data import check_only_data, check_words
from hpcagent.workspace.plain_campaigns import check_changes
from hpcagent.workspace.rows import Row
from hpcagent.workspace.rules_said import rules_words, site_line

__all__ = ["Core"]

# So often campaigns are looked at.
LOOK_S = 5.0
# So often the folders of old runs are removed.
EXPIRE_S = 3600.0
# Files of runs that no run reads, asked about only, are removed after so long.
UNNAMED_S = 86400.0


class Core(CatalystCalls):
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
        with self._turn:
            self._tell_lost()  # before anything is told of what happens from now on
            self.write_cards()
            self._remove_expired()
            self._count_inputs()
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
                app = self.references.app(row.reference)
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
                check_only_data(self.references.app(job.name), said, {})
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
        self.outbox.tell_on()
        self.questions.look()
        if self._triggers is not None:
            try:
                self._triggers.run_once()
            except HpcAgentError as error:
                self._say(error.message)
        for desk in self.sites.desks():
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
                self._say(f"old folders were not removed: {error}")
        self._count_inputs()

    def _count_inputs(self) -> None:
        """See what is kept for runs to read; what a disk refuses is written down with the next look."""
        try:
            self.count_inputs()
        except HpcAgentError as error:
            self._say(error.message)

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
            if not dry_run:
                self._remove_expired()
            days = self.rules.retention_days
            if days is None:
                return {"removed": [], "bytes": 0, "note": "workspace.toml sets no retention_days: all is kept"}
            gone: dict[str, int] = {}
            works: set[str] = set()
            for row in self._older_than(self._clock() - days * 86400):
                if row.execution_id in works:
                    continue
                works.add(row.execution_id)
                gone[row.id] = size_of(self._workdir(row))
            note = "" if gone else f"no run that has files ended more than {days:g} days ago"
            if gone and not dry_run:
                # First the line: a folder that is gone without one would be its owner's for good.
                said = {"event": "expired", "runs": gone, "by": caller.name, "at": self._clock()}
                self.answered.mark(said)
                self._take_down(said)
                note = self._remove_expired()
            return {"removed": list(gone), "bytes": sum(gone.values()), "note": note}

    def _remove_expired(self) -> str:
        """Remove the folders that the journal says are removed; what was not, in a sentence."""
        removed, why = [], ""
        for identity, at in self._to_remove.items():
            row = self.rows[identity]
            works = (self.rows[i] for i in self._by_work[row.execution_id])
            # Where the machine had lost it, the same work may have been done since, in a folder of that name.
            if not any(one.asked_at > at and not one.shares for one in works):
                try:
                    shutil.rmtree(self._workdir(row))
                except FileNotFoundError:
                    pass
                except OSError as error:
                    why = f"not all folders could be removed yet: {error}"
                    continue
            removed.append(identity)
        if removed:
            try:
                self._take_down({"event": "removed", "runs": removed, "at": self._clock()})
            except HpcAgentError as error:  # tried again with the next ones
                why = error.message
        if why:
            self._say(why)
        return why

    def _older_than(self, before: float) -> Iterator[Row]:
        """Runs with a folder that nobody has asked for since, in Unix seconds."""
        going = {self.rows[identity].execution_id for identity in self._to_remove}
        for row in list(self.rows.values()):
            works = [self.rows[i] for i in self._by_work[row.execution_id]]
            young = any(not one.over or one.ended_at >= before for one in works)
            if row.kind == "run" and not young and row.execution_id not in going and self._workdir(row).exists():
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

    def rules_said(self, caller: Caller) -> dict[str, Any]:
        """What holds for the caller: rules in words, and the sites that they may use, each with what it is."""
        named = list(self.rules.sites) or [one.name for one in list_profiles()]
        mine = [name for name in named if self.gate.may_use(caller, "sites", name)]
        sites = []
        for name in mine:
            try:
                sites.append(site_line(name, self.sites.found(name), self.rules))
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
        self._read_rules()  # what is wrong with them is among the news
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
        return any(desk.busy for desk in self.sites.desks())

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
            desks = self.sites.desks()
        for desk in desks:
            with contextlib.suppress(HpcAgentError):
                desk.close(end=end)
        if self._triggers is not None:
            self._triggers.close()
        self._journal.close()
        self._lock_file.release()
