"""A person's thread that hears what happens in the workspace, and looks where nothing is told."""

from __future__ import annotations

import contextlib
import logging
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from mcp.server.subscriptions import ResourcesListChanged, ResourceUpdated, ServerEvent, ToolsListChanged

from hpcagent.contexts.events import MISSED
from hpcagent.errors import BadInput, HpcAgentError
from hpcagent.gate.rules import Rights
from hpcagent.mcp.routes import OVERVIEW, REPORT, campaign_uri, run_uri, shared_uri
from hpcagent.workspace.client import Workspace

__all__ = ["EVENTS", "Watch", "notices_of"]

APP = re.compile(r"[A-Za-z_][\w.-]{0,99}", re.ASCII)

log = logging.getLogger(__name__)

EVENTS = (
    "on_job_started",
    "on_job_complete",
    "on_job_failed",
    "on_resource_modified",
    "on_tool_registered",
    "on_tool_deprecated",
    "on_quota_exceeded",
)
LOOK_S = 1.0
"""So often is looked at what no event tells of: progress of campaigns, new runs, approvals."""
AGAIN_S = 1.0
EXPIRES_S = 6 * 3600.0  # of a subscription whose server was killed


class Watch:
    """Hears for all streams of one person.

    Args:
        workspace: The workspace in that person's name.
        tell: Is given what has changed, in this thread.
    """

    def __init__(self, workspace: Workspace, tell: Callable[[Iterable[ServerEvent]], None]) -> None:
        self._workspace, self._tell = workspace, tell
        self._turn = threading.Lock()
        self._users = 0
        self._uris: Counter[str] = Counter()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._subscription = ""
        self._n: int | None = None
        self._why = ""
        self._states: dict[str, str] = {}
        self._after, self._since = "", 0.0
        self._read: dict[str, int] = {}
        self._approvals: frozenset[str] | None = None
        self._rights: Rights | None = None

    # -- its streams, under the lock of whoever has it -----------------------------------------

    def join(self, uris: Iterable[str]) -> None:
        """One more stream, with the resources that it asks for."""
        self._users += 1
        self._uris.update(uris)

    def leave(self, uris: Iterable[str]) -> bool:
        """One stream fewer; returns whether there are any left."""
        self._users -= 1
        self._uris.subtract(uris)
        self._uris += Counter()  # without those that nobody asks for any more
        return self._users > 0

    # -- its thread ---------------------------------------------------------------------------

    def begin(self) -> None:
        """Subscribe and start the thread, unless that was done; what happens from now on is told.

        Raises:
            HpcAgentError: The workspace does not answer.
        """
        with self._turn:
            if self._thread is None and not self._stopped.is_set():
                self._subscribe()
                self._since = time.time()
                self._after = self._workspace.changes("now")["after"]
                self._rights_changed()
                self._thread = threading.Thread(target=self._go, name="mcp notices", daemon=True)
                self._thread.start()
            for uri, moved in self._campaigns():
                if uri.removeprefix(campaign_uri("")) not in self._read:
                    moved()  # how it stands now, from which on changes are told

    def stop(self) -> None:
        """Have the thread end; waits for nothing."""
        self._stopped.set()

    @property
    def alive(self) -> bool:
        """Whether the thread goes on."""
        return self._thread is not None and self._thread.is_alive()

    def ended(self) -> None:
        """Wait for the thread that was stopped."""
        if self._thread is None:
            return
        if self.alive and self._workspace.served:
            with contextlib.suppress(HpcAgentError):  # it may have ended before
                self._workspace.unsubscribe(self._subscription)  # wakes the thread, which waits for the next event
        self._thread.join(2 * LOOK_S)

    def _subscribe(self) -> None:
        made = self._workspace.subscribe(EVENTS, after=self._n, expires_s=EXPIRES_S)
        self._subscription = made["subscription_id"]

    def _go(self) -> None:
        looked = time.monotonic()
        while not self._stopped.is_set():
            try:
                self._hear()
                if time.monotonic() - looked >= LOOK_S:
                    looked = time.monotonic()
                    self._look()
            except HpcAgentError as error:
                self._failed(error.message)
            except Exception as error:  # the thread goes on; notices are late, not lost
                self._failed(repr(error))
        with contextlib.suppress(HpcAgentError):  # it may have ended before
            if self._workspace.served:
                self._workspace.unsubscribe(self._subscription)
        self._workspace.close()

    def _failed(self, why: str) -> None:
        """Say so once, and try again after a while."""
        if self._stopped.is_set():
            return  # it was ended under this
        if why != self._why:
            log.warning("what happens in the workspace is not heard: %s", why)
        self._why = why
        self._stopped.wait(AGAIN_S)

    def _hear(self) -> None:
        try:
            found = self._workspace.notifications(self._subscription, timeout_s=LOOK_S)
        except BadInput:
            if not self._stopped.is_set():
                self._subscribe()  # it has expired or was ended: on behind the last event that was told
            return
        self._why = ""
        if not found or self._stopped.is_set():
            return
        changed: dict[ServerEvent, None] = {}
        for one in found:
            changed |= dict.fromkeys(notices_of(one["event"], one["payload"]))
            if one["event"] == MISSED:
                changed |= dict.fromkeys(ResourceUpdated(uri) for uri in list(self._uris))
            if "job_id" in one["payload"]:  # a later look tells nothing that was told
                self._states[one["payload"]["job_id"]] = one["payload"].get("state", "running")
        self._tell(changed)
        self._n = found[-1]["n"]
        self._workspace.acknowledge(self._subscription, self._n)

    # -- what no event tells of ---------------------------------------------------------------

    def _look(self) -> None:
        changed: dict[ServerEvent, None] = {}
        for row, anew in self._changes():
            identity, state, known = row["id"], row["state"], self._states.get(row["id"])
            if known is None and row["asked_at"] >= self._since:
                changed[ResourcesListChanged()] = None
            elif known != state and not (known is None and anew):
                changed |= dict.fromkeys(_of_run(identity))
            self._states[identity] = state
        changed |= dict.fromkeys(ResourceUpdated(uri) for uri in self._look_at_campaigns())
        if self._rights_changed():
            changed |= {ToolsListChanged(): None, ResourceUpdated(OVERVIEW): None}
        if self._uris[OVERVIEW]:
            pending = frozenset(one["id"] for one in self._workspace.approvals(pending=True))
            if self._approvals not in (None, pending):
                changed[ResourceUpdated(OVERVIEW)] = None
            self._approvals = pending
        if changed:
            self._tell(changed)

    def _changes(self) -> Iterator[tuple[Mapping[str, Any], bool]]:
        """Rows that have changed since the last look, and whether all come again: the service is another one."""
        more, anew = True, False
        while more:
            found = self._workspace.changes(self._after)
            self._after, more, anew = found["after"], found["more"], anew or found["anew"]
            for row in found["rows"]:
                yield row, anew

    def _rights_changed(self) -> bool:
        """Whether workspace.toml says otherwise since the last look what the person may do."""
        before = self._rights
        with contextlib.suppress(BadInput):  # one that is wrong changes nothing
            self._rights = self._workspace.rights()
        return before not in (None, self._rights)

    def _look_at_campaigns(self) -> list[str]:
        """What has changed of campaigns: more runs have ended since the last look, or there is a new report."""
        with self._turn:
            return [uri for uri, moved in self._campaigns() if moved()]

    def _campaigns(self) -> list[tuple[str, Callable[[], bool]]]:
        begins = campaign_uri("")
        found: list[tuple[str, Callable[[], bool]]] = []
        for uri in [one for one in list(self._uris) if one.startswith(begins)]:
            campaign, _, part = uri.removeprefix(begins).partition("/")
            if part == REPORT:
                found.append((uri, partial(self._report_written, campaign)))
            elif not part:
                found.append((uri, partial(self._more_finished, campaign)))
        return found

    def _report_written(self, campaign: str) -> bool:
        before = self._read.get(f"{campaign}/{REPORT}")
        try:
            now = self._workspace.piece(campaign, f"{REPORT}/report.md", length=0)["bytes"]
        except BadInput:  # there is none
            now = 0
        self._read[f"{campaign}/{REPORT}"] = now
        return before not in (None, now)

    def _more_finished(self, campaign: str) -> bool:
        before = self._read.get(campaign)
        try:
            said = self._workspace.status(campaign, lines=0)["progress"]
        except BadInput:  # it is not there for this person
            said = None
        # Where it does not go on an event tells of its end.
        now = (before or 0) if said is None else int(said["done"])
        self._read[campaign] = now
        return before not in (None, now)


def notices_of(event: str, payload: Mapping[str, Any]) -> Iterator[ServerEvent]:
    """What has changed by an event of the workspace."""
    if event in ("on_job_started", "on_job_complete", "on_job_failed"):
        yield from _of_run(str(payload["job_id"]))
        yield ResourceUpdated(OVERVIEW)
        if event == "on_job_started":
            yield ResourcesListChanged()
    elif event == "on_resource_modified":
        name = str(payload["resource"])
        yield ResourceUpdated(shared_uri(name))
        if payload.get("item"):
            yield ResourceUpdated(shared_uri(name, str(payload["item"])))
    elif event in ("on_tool_registered", "on_tool_deprecated"):
        yield ToolsListChanged()
        if APP.fullmatch(str(payload["tool"])):  # anybody may tell it, of whatever they like
            yield ResourceUpdated(f"app://{payload['tool']}")
    elif event == "on_quota_exceeded":
        yield ResourceUpdated(OVERVIEW)
    elif event == MISSED:
        yield ResourcesListChanged()
        yield ToolsListChanged()


def _of_run(identity: str) -> Iterator[ResourceUpdated]:
    run, campaign = run_uri(identity), campaign_uri(identity)
    for uri in (run, f"{run}/log", campaign, f"{campaign}/report"):
        yield ResourceUpdated(uri)
