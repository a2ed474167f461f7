"""Going on with a campaign: what it is to take on top goes through the gate anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcagent.campaign.asked import request_of
from hpcagent.campaign.budget import Budget
from hpcagent.campaign.loading import load_run
from hpcagent.campaign.record import Campaign
from hpcagent.campaign.recorded import Snapshot, snapshot
from hpcagent.campaign.state import State
from hpcagent.campaign.sweep_space import SWEEP
from hpcagent.campaign.taken_up import other_parts, refuse_other_layout
from hpcagent.errors import BadInput, RunDirChanged
from hpcagent.gate.not_allowed import NotAllowed
from hpcagent.gate.request import Request
from hpcagent.gate.rules import Caller
from hpcagent.store.rundir import RunDir, holder
from hpcagent.workspace.campaigns import Campaigns
from hpcagent.workspace.forecast import Forecast, expecting
from hpcagent.workspace.on_top import OwnRuns, is_exhausted, outside_of_what_ran, runs_in_all, runs_on_top
from hpcagent.workspace.plain_campaigns import check_changes, check_options, check_values
from hpcagent.workspace.references import sandbox_of
from hpcagent.workspace.rows import Row

__all__ = ["Extending"]

ROUNDING = 1e-6  # of a run, where a cap leaves room for a whole number of them


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
            _, whole, asked, _ = self._extension(row, changes or {}, caller, why=why, data_only=data_only)
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
        self, row: Row, changes: Mapping[str, Any], caller: Caller, *, why: str = "", data_only: bool = False
    ) -> tuple[Campaign, Request, Request, Forecast]:
        """A campaign with these changes, what the gate is asked (as a whole, for what comes on top), its forecast.

        Raises:
            NotAllowed: A change is not allowed.
        """
        _refuse_app(changes)
        if data_only:
            check_changes(changes)
        folder = self._workdir(row)
        self.references.app(row.reference)  # refuses a tool that was rejected since, and an app that was removed
        try:
            written, campaign = load_run(folder), load_run(folder, changes=changes)
            check_options(campaign)
            if data_only:
                check_values(campaign, known=written.fixed)
            _refuse_another(written, campaign, changes)
            refuse_other_layout(RunDir(folder), campaign, written)
            there = snapshot(folder, written)
            own = self._brings_code(campaign, row.reference)
            if row.over:
                _refuse_nothing_more(there, campaign, changes)
        except NotAllowed:
            raise
        except (BadInput, RunDirChanged) as error:
            raise NotAllowed("contract", error.message, do="correct it and ask again") from None
        price = self.rules.price(row.site)
        whole = request_of(
            campaign,
            site=row.site,
            own=own,
            sandbox=sandbox_of(campaign.app),
            price=price,
            why=why,
            given=row.request.get("given"),
        )
        # A sweep that grows repeats its contenders once more.
        each_s = self._each(campaign, row.site, caller)[0]
        whole = whole.model_copy(update={"runs": runs_in_all(campaign, there), "expected_s": each_s})
        rest = None if whole.node_hours is None else max(0.0, whole.node_hours - row.settled)
        usd = None if price is None or rest is None else price * rest
        forecast = self._on_top(campaign, row, there, whole.nodes, rest, caller)
        asked = whole.model_copy(update={"node_hours": rest, "usd": usd})
        return campaign, whole, expecting(asked, forecast.node_hours, each_s), forecast

    def _on_top(
        self, campaign: Campaign, row: Row, there: Snapshot, nodes: int, most: float | None, caller: Caller
    ) -> Forecast:
        """What comes on top of what a campaign has taken, at most so many node-hours."""
        state, runs = there.state, runs_on_top(campaign, there)
        each_s, each, source = self._each_on_top(campaign, row, nodes, state, caller)
        outside = outside_of_what_ran(campaign, state, runs)
        fit = runs if most is None or not each else int(most / each + ROUNDING)
        if fit and runs and each and not Budget(campaign).room(runs, state):
            fit, source = 0, f"the coordinator's forecast: each may take more than {source}"
        if runs is None:
            source = f"nothing says how many runs are to come; of one: {source}"
        elif fit is not None and fit < runs:
            runs, few = fit, f"no further run fits under the cap, by {source}"
            source = f"the cap, as {source} would be more" if fit else few
        expected = None if runs is None or each is None else runs * each
        expected = expected if expected is None or most is None else min(expected, most)
        return Forecast(runs, each_s, expected, source + (f"; {outside}" if outside else ""))

    def _each_on_top(
        self, campaign: Campaign, row: Row, nodes: int, state: State, caller: Caller
    ) -> tuple[float | None, float | None, str]:
        """What one more run of a campaign takes, in seconds and in node-hours, and what that is from."""
        if campaign.fidelity is not None:
            return None, None, "not known: what its cheap runs took says nothing of the dear ones to come"
        own = OwnRuns.of(state)
        if own is not None:
            return own.wall_s, own.node_hours, own.words
        each_s, source = self._each(campaign, row.site, caller)
        share = self._charged_share(campaign.app, row.site, self.sites.found(row.site), campaign.largest)
        return each_s, nodes * share * each_s / 3600, source


def _refuse_app(changes: Mapping[str, Any]) -> None:
    for key, value in changes.items():
        if key.partition(".")[0] == "app":
            raise _another([key], key, value)


def _refuse_another(written: Campaign, campaign: Campaign, changes: Mapping[str, Any]) -> None:
    """Refuse changes with which it would be another campaign: its coordinator would not go on with it.

    Raises:
        NotAllowed: They change what has to stay.
    """
    parts = other_parts(written, campaign)
    if not parts:
        return
    # The app is another by its settings; a sweep's table is part of its policy and of its space.
    tables = {"app": ("settings",), "space": ("space", "constraints", "sweep")}
    keys = [key for part in parts for key in changes if key.partition(".")[0] in tables.get(part, (part,))]
    field = keys[0] if keys else parts[0]
    raise _another(keys or parts, field, changes.get(field))


def _another(keys: Sequence[str], field: str, value: Any) -> NotAllowed:
    return NotAllowed(
        "contract",
        f"with another {' and '.join(dict.fromkeys(keys))} it would be another campaign",
        field=field,
        value=value,
        allowed="changes of until, policy, objective and confirm, and of a sweep also of space and constraints",
        do="start another campaign with it (hpcagent workspace start); this one stays as it is",
    )


def _refuse_nothing_more(there: Snapshot, campaign: Campaign, changes: Mapping[str, Any]) -> None:
    """Refuse what would end as soon as it has begun.

    Raises:
        NotAllowed: No run is to come, none has room under the cap, or it has come to its end and nothing is
            changed.
    """
    state, most, cap = there.state, campaign.until.budget(), campaign.until.cap()
    runs = runs_on_top(campaign, there)
    ended = state.finished - state.elsewhere
    if runs == 0 and most is not None and most <= ended:
        had = "1 run has" if ended == 1 else f"{ended} runs have"
        raise NotAllowed(
            "contract",
            f"{had} ended already, and max_runs = {most} is the whole campaign's",
            field="until.max_runs",
            value=most,
            allowed=f"more than {ended}",
            do=f"for 4 more runs, change until.max_runs to {ended + 4}",
        )
    if runs == 0 and campaign.policy.name == SWEEP:
        raise NotAllowed(
            "contract",
            f"every run of the design has ended ({ended} in all), and none is to come",
            field="sweep",
            allowed="a design with more runs: more values or points, or more replicates",
            do="change what is to be run on top, as sweep.replicates or sweep.values",
        )
    if is_exhausted(there, campaign, changes):
        raise NotAllowed(
            "contract",
            f"the policy {campaign.policy.name} has nothing left to suggest: all its points have been run "
            f"({ended} runs have ended), and no other end brings more of them",
            field="policy",
            value=campaign.policy.name,
            allowed="a policy with further points",
            do="give it more points (of a grid policy.levels), or name another policy (policy.name); nothing was "
            "written",
        )
    spent = state.node_hours + state.overhead
    if cap is not None and cap <= spent:
        raise NotAllowed(
            "contract",
            f"{spent:.4g} node-hours are spent already, and node_hours = {cap:g} is the whole campaign's",
            field="until.node_hours",
            value=cap,
            allowed=f"more than {spent:.4g}",
            do="raise until.node_hours by what the runs on top are to take",
        )
    if not changes and there.reason is not None and not state.waiting():
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
