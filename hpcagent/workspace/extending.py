"""Going on with a campaign: what it is to take on top goes through the gate anew."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcagent.campaign.asked import request_of
from hpcagent.campaign.loading import load_run
from hpcagent.campaign.record import Campaign
from hpcagent.campaign.recorded import snapshot
from hpcagent.errors import BadInput
from hpcagent.gate.not_allowed import NotAllowed
from hpcagent.gate.request import Request
from hpcagent.gate.rules import Caller
from hpcagent.store.rundir import holder
from hpcagent.workspace.campaigns import Campaigns, brings_code
from hpcagent.workspace.plain_campaigns import check_changes, check_options, check_values
from hpcagent.workspace.references import sandbox_of
from hpcagent.workspace.rows import Row

__all__ = ["Extending"]


class Extending(Campaigns):
    """Campaigns that have ended or were stopped, and go on. Arguments as `Campaigns`."""

    def extend(
        self,
        caller: Caller,
        identity: str,
        *,
        changes: Mapping[str, Any] | None = None,
        why: str = "",
        data_only: bool = False,
        at_once: bool = False,
    ) -> dict[str, Any]:
        """Go on with a campaign that has ended or was stopped; what it is to take on top is let through anew.

        Args:
            identity: The campaign.
            changes: Dotted key -> value, e.g. `{"until.max_runs": 40}`.
            why: What it is for.
            data_only: The changes may name no code and no file.
            at_once: As of `start`.

        Raises:
            NotAllowed: The gate refuses it, or the campaign goes on at this moment.
        """
        with self._turn, self.gate.recorded(caller, what=f"extend {identity}"):
            self.gate.require(caller, "run")
            row = self._campaign(caller, identity)
            if self.answered.earlier is not None:
                return self._once_begun(row, at_once=at_once)
            folder = self._workdir(row)
            goes = identity in self._beginning or holder(folder)[0]
            if goes and not (folder / "events.jsonl").exists():
                raise _goes_on(identity)
            _, whole, asked = self._extension(row, changes or {}, why=why, data_only=data_only)
            if not row.over and Request.model_validate(row.request).digest == asked.digest:
                # Asked for once more, as after a lost answer: it was let through, and needs no other approval.
                if goes:
                    return self._said(row, found=True)
                return self._soon(row, whole, None, changes or {}, found=True)
            if goes:
                raise _goes_on(identity)
            admission = self.gate.admit(asked, caller)
            event = {
                "event": "extended",
                "id": identity,
                "by": caller.name,
                "at": self._clock(),
                "request": asked.model_dump(mode="json"),
                "changes": dict(changes or {}),
                "behind": _length(folder),
            }
            self._let_through(event, admission)
            self._beginning.add(identity)
            if at_once:
                return self._soon(row, whole, None, changes or {})
        return self._in_the_background(row, whole, toml=None, changes=changes or {})

    def _extension(
        self, row: Row, changes: Mapping[str, Any], *, why: str = "", data_only: bool = False
    ) -> tuple[Campaign, Request, Request]:
        """A campaign with these changes, and what the gate is asked: as a whole, and for what comes on top.

        Raises:
            NotAllowed: A change is not allowed.
        """
        if data_only:
            check_changes(changes)
        folder = self._workdir(row)
        try:
            campaign = load_run(folder, changes=changes)
            check_options(campaign)
            if data_only:
                check_values(campaign, known=load_run(folder).fixed)
            if row.over:
                _refuse_nothing_more(folder, campaign, changes)
        except NotAllowed:
            raise
        except BadInput as error:
            raise NotAllowed("contract", error.message, do="correct it and ask again") from None
        price = self.rules.price(row.site)
        whole = request_of(
            campaign,
            site=row.site,
            own=brings_code(campaign),
            sandbox=sandbox_of(campaign.app),
            price=price,
            why=why,
            given=row.request.get("given"),
        )
        rest = None if whole.node_hours is None else max(0.0, whole.node_hours - row.settled)
        usd = None if price is None or rest is None else price * rest
        return campaign, whole, whole.model_copy(update={"node_hours": rest, "usd": usd})


def _refuse_nothing_more(folder: Path, campaign: Campaign, changes: Mapping[str, Any]) -> None:
    """Refuse what would end as soon as it has begun.

    Raises:
        NotAllowed: So many runs have ended already, or it has come to its end and nothing is changed.
    """
    there = snapshot(folder)
    ended, most = there.state.ended - there.state.elsewhere, campaign.until.budget()
    if most is not None and most <= ended:
        runs = "1 run has" if ended == 1 else f"{ended} runs have"
        raise NotAllowed(
            "contract",
            f"{runs} ended already, and max_runs = {most} is the whole campaign's",
            field="until.max_runs",
            value=most,
            allowed=f"more than {ended}",
            do=f"for 4 more runs, change until.max_runs to {ended + 4}",
        )
    if not changes and there.reason is not None:
        raise NotAllowed(
            "contract",
            f"the campaign has come to its end ({there.reason.rstrip('.')}), and nothing is changed",
            field="changes",
            allowed="another end, as until.max_runs or until.node_hours",
            do="say until when it shall go on",
        )


def _goes_on(identity: str) -> NotAllowed:
    return NotAllowed(
        "contract",
        "the campaign goes on at this moment",
        field="identity",
        value=identity,
        allowed="one that has ended or was stopped",
        do=f"wait for it, or stop it first (hpcagent workspace stop {identity})",
    )


def _length(run_dir: Path) -> int:
    """Bytes of a campaign's own journal; 0 where it has none."""
    try:
        return (run_dir / "events.jsonl").stat().st_size
    except OSError:
        return 0
