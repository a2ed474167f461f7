"""The workspace as scripts, notebooks and the shell use it: a connection to the process that serves it."""

from __future__ import annotations

from typing import Any

from hpcagent.workspace.added_calls import AddedCalls
from hpcagent.workspace.campaign_calls import CampaignCalls
from hpcagent.workspace.connection import Answer
from hpcagent.workspace.event_calls import EventCalls
from hpcagent.workspace.run_calls import RunCalls
from hpcagent.workspace.tool_calls import ToolCalls

__all__ = ["Workspace"]


class Workspace(RunCalls, CampaignCalls, EventCalls, ToolCalls, AddedCalls):
    """A workspace by its folder; its service is started when it is needed, and may end at any time.

    Args:
        where: The folder; by default `$HPCAGENT_WORKSPACE`, else `.hpcagent` here.
        as_: Somebody of `workspace.toml` to speak for.
        client: Program and version, written down with each call.
        create: Make the workspace if there is none.
        trace: An id of the caller's own, written down with each call.

    Raises:
        BadInput: There is no workspace, or another user owns it.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     workspace = Workspace(folder + "/ws", create=True)
        ...     run = workspace.run("synthetic", {"x": 0.3}, site="threads")
        ...     status = workspace.wait(run["id"], 60)
        ...     workspace.end()
        >>> status["state"], status["metrics"]["value"]
        ('completed', 25.2)
    """

    # -- approvals, costs ---------------------------------------------------------------------

    def approvals(self, *, pending: bool = False) -> Any:
        """Approvals: what would run, where, at what cost at most, why a person has to decide."""
        return self._call("approvals", pending=pending)

    def grant(self, identity: str, note: str = "") -> Answer:
        """Grant an approval: it holds once, for that very request."""
        return self._one("decide", identity=identity, grant=True, note=note)

    def deny(self, identity: str, note: str = "") -> Answer:
        """Deny an approval."""
        return self._one("decide", identity=identity, grant=False, note=note)

    def costs(self) -> Answer:
        """Spent and committed in the whole `workspace` and by person; how good the estimates were, by app."""
        return self._one("costs")

    def expire(self, *, dry_run: bool = False) -> Answer:
        """Remove folders of runs that are older than `retention_days`; `dry_run` only says which."""
        return self._one("expire", dry_run=dry_run)

    def rules(self) -> Answer:
        """What holds for the caller: `rules` in words, `sites` that they may use, `default_site`."""
        return self._one("rules")

    def counters(self, identity: str) -> Answer:
        """What the nodes say of a run: `cpu_s`, `wall_s`, `cores_held`, `cpu_use_percent`, `max_rss_bytes`.

        What is not known is None, with its reason in `unknown`. `jobs` are those that the site had meanwhile.
        """
        return self._one("counters", identity=identity)

    # -- following ----------------------------------------------------------------------------

    def changes(self, after: str = "", *, most: int = 1000, timeout_s: float = 0.0) -> Answer:
        """Runs and campaigns that have changed since, in the order of their last change, a page at a time.

        Args:
            after: The cursor of the last answer; empty: from the beginning; `now`: from this moment on.
            most: So many at most, 2000.
            timeout_s: Wait so long for a change where there is none, in seconds.

        Returns:
            `rows` as they stand now; `after`, the cursor to go on from; `more`: whether to ask on at once; `anew`:
            the cursor was of a service that has ended, and this begins from the beginning.
        """
        return self._one("changes", after=after, most=most, timeout_s=timeout_s)

    def campaign_runs(self, identity: str, after: str = "", *, most: int = 2000) -> Answer:
        """Runs of a campaign that were planned or have ended since, as columns, a page at a time.

        Args:
            identity: The campaign.
            after: The cursor of the last answer; empty: from the beginning.
            most: So many at most, 2000.

        Returns:
            `runs` (a list for each name), `after`, `more`, `anew`, `totals`, and at the beginning `about`: what is
            asked, with units.
        """
        return self._one("campaign_runs", identity=identity, after=after, most=most)

    def campaign_run(self, identity: str, run: str, *, lines: int = 40) -> Answer:
        """One run of a campaign, by its execution id: parameters, metrics, failure, cost, the log's last lines."""
        return self._one("campaign_run", identity=identity, run=run, lines=lines)

    def jobs(self) -> Any:
        """Jobs of the schedulers that the sites here have had, the newest first."""
        return self._call("jobs")

    def about(self) -> Answer:
        """The workspace and its service."""
        return self._one("about")
