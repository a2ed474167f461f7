"""Campaigns of a workspace: approved as a whole, in processes of their own, which need no service to go on."""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcagent import errors
from hpcagent.campaign.asked import let_through, request_of
from hpcagent.campaign.loading import load_campaign, load_run
from hpcagent.campaign.record import Campaign
from hpcagent.campaign.recorded import Snapshot, snapshot
from hpcagent.catalog import packaged
from hpcagent.elsewhere.detach import said_by
from hpcagent.errors import BadInput, HpcAgentError, RunDirLocked, SiteFailed
from hpcagent.gate.not_allowed import NotAllowed
from hpcagent.gate.request import Request
from hpcagent.gate.rules import Caller
from hpcagent.model.base import read_json, read_toml
from hpcagent.model.texts import as_name
from hpcagent.runs.stopped import stop_run
from hpcagent.shown import plain
from hpcagent.store.files import make_folder, write_whole
from hpcagent.store.journal import event_in
from hpcagent.store.rundir import holder
from hpcagent.workspace.answers import answer_of, campaign_toml, next_points
from hpcagent.workspace.app_store import packed
from hpcagent.workspace.artifacts import size_of
from hpcagent.workspace.checked import refuse_files, refuse_label
from hpcagent.workspace.plain_campaigns import (
    as_data,
    check_changes,
    check_options,
    check_values,
    is_name,
    packaged_campaign,
)
from hpcagent.workspace.references import is_function, is_ours, sandbox_of
from hpcagent.workspace.rows import Row
from hpcagent.workspace.simulations import Simulations
from hpcagent.workspace.took import numbers_of

__all__ = ["Campaigns"]

MOST_TIMES = 100
"""Runs of a campaign that estimates learn from, the last ones."""
MOST_POINTS = 64
# A coordinator that was started has the lock of its folder after so long.
BEGINS_WITHIN_S = 20.0


class Campaigns(Simulations):
    """Campaigns, behind the gate.

    Args:
        root: The workspace's folder.
        clock: Unix time, in seconds.
        apart: Sites are kept by processes of their own, which outlive this one.
    """

    def __init__(self, root: Path, *, clock: Callable[[], float] = time.time, apart: bool = False) -> None:
        super().__init__(root, clock=clock, apart=apart)
        self._beginning: set[str] = set()  # those whose coordinator is being started
        self._booked_at: dict[str, float] = {}  # when the journal was written of which all is booked
        self._up_since = time.monotonic() if self.rows else -BEGINS_WITHIN_S

    def start(
        self,
        caller: Caller,
        campaign: str | Mapping[str, Any],
        *,
        changes: Mapping[str, Any] | None = None,
        site: str = "",
        why: str = "",
        cause: Sequence[str] = (),
        at_once: bool = False,
    ) -> dict[str, Any]:
        """Start a campaign, approved as a whole with its cap, in a process of its own; returns once it has begun.

        Args:
            campaign: Path or name of its TOML; or `toml`, its text, and `app`, as a call of `run` has it; or
                `data`, the name of a packaged one or a text that may name no code and no file.
            changes: Dotted key -> value, in place of what stands there.
            site: Where it runs.
            why: What it is for.
            at_once: Return when it is let through; why it does not begin is noted with it.

        Raises:
            NotAllowed: The gate refuses it; nothing has begun.
        """
        begun = self._begun_before()
        if begun is not None:
            return self._once_begun(begun, at_once=at_once)
        with self.gate.recorded(caller, what="start"):
            self.gate.require(caller, "run")
            try:
                found, toml, reference, given = self._campaign_of(caller, campaign, changes)
            except NotAllowed:
                raise
            except BadInput as error:
                raise NotAllowed("contract", error.message, do="correct it and ask again") from None
            refuse_label(found.name, field="name")
        with self._turn:
            with self.gate.recorded(caller, what="start"):
                where = self.sites.known(site or self.rules.default_site)
                self.sites.refuse_misfit(where, self.sites.found(where), found.largest)
            asked = request_of(
                found,
                site=where,
                own=brings_code(found),
                sandbox=sandbox_of(found.app),
                price=self.rules.price(where),
                why=why,
                given=given,
            )
            known = [r for r in self._same_work(asked.work) if r.owner == caller.name and r.kind == "campaign"]
            if known:
                return self._said(known[0], found=True)
            self.gate.refuse_beyond(asked, caller)
            admission = self.gate.admit(asked, caller)
            identity = f"c-{secrets.token_urlsafe(12)}"
            # First what is to be done: killed right behind the line, the next service begins it.
            self._write_order(identity, reference, toml, None)
            try:
                row = self._begin(
                    caller,
                    admission,
                    identity,
                    app=found.app.name,
                    reference=reference,
                    label=found.name,
                    note=found.name,
                    cause=list(cause),
                )
            except HpcAgentError:
                self._order(identity).unlink(missing_ok=True)
                raise
            row.state = "running"
            self._touch(row, self._clock())
            self._beginning.add(identity)
            if at_once:
                return self._soon(row, asked, toml, None)
        return self._in_the_background(row, asked, toml=toml)

    def _once_begun(self, row: Row, *, at_once: bool) -> dict[str, Any]:
        """The answer to a request that is sent again; the new service has begun what it asked for."""
        with self._turn:
            if not at_once:
                self._turn.wait_for(lambda: row.id not in self._beginning or self._closed)
            return self._said(row, found=False)

    def _campaign_of(
        self, caller: Caller, campaign: str | Mapping[str, Any], changes: Mapping[str, Any] | None
    ) -> tuple[Campaign, str, str, dict[str, str]]:
        """A campaign, its text, the reference of its app, for which no code is imported, and its files of runs.

        Raises:
            BadInput: It is wrong, or names a file of a run that is not there or not the caller's to read.
        """
        found, toml, reference = self._read(campaign, changes)
        check_options(found)
        files = self._files_of_runs(caller, found)
        if files:
            given = {name: str(found.fixed[name]) for name in files}
            found = found.model_copy(update={"fixed": {**found.fixed, **files}})
            return found, found.toml(), reference, given
        return found, toml, reference, {}

    def _files_of_runs(self, caller: Caller, campaign: Campaign) -> dict[str, str]:
        """Paths of the files of runs that a campaign's fixed parameters name, found as those of a run are."""
        named = {n: v for n, v in campaign.fixed.items() if isinstance(v, str) and v.startswith("artifact:")}
        refuse_files(campaign.app, named)
        return {name: str(self._file_of(caller, value, field=name)) for name, value in named.items()}

    def _read(
        self, campaign: str | Mapping[str, Any], changes: Mapping[str, Any] | None
    ) -> tuple[Campaign, str, str]:
        """A campaign, its text, and the reference of its app, for which no code is imported.

        Raises:
            BadInput: It is wrong.
        """
        if isinstance(campaign, str):
            refuse_function(campaign)
            found = load_campaign(campaign, changes=changes)
            known = packaged(found.app.name)
            named = known is not None and known.digest == found.app.digest
            return found, found.toml(), found.app.name if named else self.store.put(packed(found.app))
        if "data" in campaign:
            wanted = str(campaign["data"])
            if is_name(wanted):
                check_changes(changes or {})
                found, toml, reference = self._read(str(packaged_campaign(wanted)), changes)
                check_values(found)
                return found, toml, reference
            text, name = as_data(wanted, changes or {}, self.references.has_own)
            reference = self.references.of(name)
        else:
            reference = self.references.of(campaign["app"])
            text = str(campaign["toml"])
        asked = self.folder.root / "asked"
        asked.mkdir(mode=0o700, exist_ok=True)
        # Nothing is left of what is only asked about: who may not write could fill the disk with it.
        with tempfile.TemporaryDirectory(dir=asked) as one:
            path = Path(one) / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.toml"
            write_whole(path, text, private=True)
            found = load_campaign(path, changes=changes, app=self.references.app(reference), where="the campaign")
        if "data" in campaign:
            check_values(found)
        return found, found.toml(), reference

    def _in_the_background(
        self, row: Row, asked: Request, *, toml: str | None, changes: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Start a campaign's coordinator, which outlives the service; others are answered meanwhile.

        It is one of `_beginning` since it was let through: until it has begun, its last end is no end.
        """
        folder = self._workdir(row)
        try:
            make_folder(folder)
            profile = self.sites.found(row.site).name
            let_through(folder, asked, workspace=self.folder.root, identity=row.id, profile=profile)
            if toml is None:  # of a new one it was written before it was let through
                self._write_order(row.id, row.reference, None, changes)
            begin(self.folder.root, row.id, self.sites.profile(row.site))
        except RunDirLocked:  # nobody else has this folder: the service before this one has had it begun
            pass
        except HpcAgentError as error:
            with self._turn:
                self._end(row, "failed", note=f"it did not begin: {plain(error.message)}")
            raise
        finally:
            with self._turn:
                self._beginning.discard(row.id)
                self._turn.notify_all()
        with self._turn:
            return self._said(row, found=False)

    def _order(self, identity: str) -> Path:
        return self.folder.campaigns / f"{identity}.asked.json"

    def _write_order(
        self, identity: str, reference: str, toml: str | None, changes: Mapping[str, Any] | None
    ) -> None:
        """Write down what the process that begins a campaign is to do."""
        order = {"toml": toml, "app": reference, "changes": None if changes is None else dict(changes)}
        write_whole(self._order(identity), json.dumps(order), private=True)

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
            whole, asked = self._extension(row, changes or {}, why=why, data_only=data_only)
            if not row.over and Request.model_validate(row.request).digest == asked.digest:
                # Asked for once more, as after a lost answer: it was let through, and needs no other approval.
                if goes:
                    return self._said(row, found=True)
                return self._soon(row, whole, None, changes or {}, found=True)
            if goes:
                raise _goes_on(identity)
            self.gate.refuse_beyond(asked, caller)
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

    def estimate_extension(
        self,
        caller: Caller,
        identity: str,
        *,
        changes: Mapping[str, Any] | None = None,
        data_only: bool = False,
    ) -> dict[str, Any]:
        """What going on with a campaign would take on top, and what the gate would say; nothing is run.

        Args:
            identity: The campaign.
            changes: As of `extend`.
            data_only: As of `extend`.

        Returns:
            `app`, `site`, `runs` (of the whole campaign), `node_hours_at_most`, `usd_at_most`, `approval`,
            `refused`.

        Raises:
            NotAllowed: A change is not allowed.
        """
        with self._turn:
            row = self._campaign(caller, identity)
            _, asked = self._extension(row, changes or {}, data_only=data_only)
            refused = self.gate.refusal(asked, caller)
            return {
                "app": asked.app,
                "site": asked.site,
                "runs": asked.runs,
                "node_hours_at_most": asked.node_hours,
                "usd_at_most": asked.usd,
                "approval": self.rules.approval_for(asked, caller),
                "refused": None if refused is None else refused.plain(),
            }

    def _extension(
        self, row: Row, changes: Mapping[str, Any], *, why: str = "", data_only: bool = False
    ) -> tuple[Request, Request]:
        """What the gate is asked for a campaign with these changes: as a whole, and for what it is to take on top.

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
        return whole, whole.model_copy(update={"node_hours": rest, "usd": usd})

    def _soon(
        self,
        row: Row,
        asked: Request,
        toml: str | None,
        changes: Mapping[str, Any] | None,
        *,
        found: bool = False,
    ) -> dict[str, Any]:
        """Have what was let through begun by another thread; within the turn."""
        self._beginning.add(row.id)
        threading.Thread(target=self._begin_late, args=(row, asked, toml, changes), daemon=True).start()
        return self._said(row, found=found)

    def _take_up_campaign(self, row: Row) -> None:
        """Begin one that was let through, and whose coordinator was not started before the service died."""
        if self._since(row, "session"):
            return
        toml, changes = None, None
        if row.again_at:
            changes = row.changes
        elif self._order(row.id).is_file():
            toml = read_json(self._order(row.id))["toml"]
        else:
            self._end(row, "failed", note="it had not begun when the service ended; ask for it again")
            return
        asked = Request.model_validate({**row.request, "node_hours": row.node_hours_at_most})
        self._beginning.add(row.id)
        threading.Thread(target=self._begin_late, args=(row, asked, toml, changes), daemon=True).start()

    def _since(self, row: Row, event: str) -> bool:
        """Whether a campaign's own journal has such an event since it was let through, or let go on."""
        path = self._workdir(row) / "events.jsonl"
        if not row.again_at or row.again_behind is None:
            return path.exists()
        try:
            with path.open("rb") as file:
                file.seek(row.again_behind)
                return any((event_in(line) or {}).get("event") == event for line in file)
        except OSError:
            return False

    def _begin_late(self, row: Row, asked: Request, toml: str | None, changes: Mapping[str, Any] | None) -> None:
        with contextlib.suppress(HpcAgentError):  # it is noted with the campaign
            self._in_the_background(row, asked, toml=toml, changes=changes)

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
        at_once: bool = False,
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
            at_once: As of `start`.

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
            app = self.references.app(objective_function)
            try:
                text = campaign_toml(
                    objective_function,
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
        return self.start(caller, {"data": text}, site=site, why=why, at_once=at_once)

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

    def stop(self, caller: Caller, identity: str, *, at_once: bool = False) -> dict[str, Any]:
        """Ask the coordinator of a campaign to end, as Ctrl-C would; what has finished is kept.

        Args:
            caller: Who asks.
            identity: The campaign.
            at_once: Do not wait for its end; why it does not end is a line of `about`'s news.
        """
        with self._turn:
            self.gate.require(caller, "run")
            row = self._row(caller, identity)
            if row.kind != "campaign":
                raise BadInput(f"{identity} is a single run: cancel it.", value=identity)
            said = self._said(row, found=True)
        if at_once:
            if not row.over:
                threading.Thread(target=self._stop_late, args=(row,), daemon=True).start()
            return said
        stop_run(self._workdir(row))
        self._look_at_campaigns()
        with self._turn:
            return self._said(row, found=True)

    def _stop_late(self, row: Row) -> None:
        with self._turn:
            self._turn.wait_for(lambda: row.id not in self._beginning or self._closed, BEGINS_WITHIN_S)
        try:
            stop_run(self._workdir(row))
        except (HpcAgentError, TimeoutError) as error:
            self.news.append(f"the campaign {row.id} was not stopped: {plain(str(error))}")
        self._look_at_campaigns()

    def _written_since(self, row: Row) -> bool:
        """Whether a campaign's journal was written after it was seen to have ended, and not looked at since."""
        at = _written_at(self._workdir(row))
        return at > row.ended_at and at != self._booked_at.get(row.id)

    def _look_at_campaigns(self) -> None:
        """See which have ended, and book what they took.

        A campaign that goes on again has the end of before in its journal until it has begun: that is none.
        """
        with self._turn:
            campaigns = [row for row in self.rows.values() if row.kind == "campaign"]
            open_ones = [row for row in campaigns if not row.over and row.id not in self._beginning]
            stopped = [row for row in campaigns if row.state == "stopped"]
        # One that was stopped may have been gone on with by hand.
        for row in (*open_ones, *filter(self._written_since, stopped)):
            seen, written_at = _standing(row), _written_at(self._workdir(row))
            if holder(self._workdir(row))[0]:
                continue
            try:
                there = snapshot(self._workdir(row))
            except HpcAgentError as error:
                with self._turn:
                    gone_on = row.id in self._beginning or holder(self._workdir(row))[0]
                    if not row.over and not gone_on and _standing(row) == seen:
                        self._end(row, "failed", note=f"its folder cannot be read: {plain(error.message)}")
                continue
            reason = there.reason if self._since(row, "stop") else None
            young = time.monotonic() - self._up_since < BEGINS_WITHIN_S
            if there.attended or (young and reason is None and not row.over):
                continue  # what the service before this one has begun may not have its lock yet
            hours = max(0.0, there.state.node_hours + there.state.overhead - row.settled)
            price = self.rules.price(row.site)
            state = "completed" if reason is not None else "stopped"
            taught = _taught(there, row.taught)
            if row.state == state and not hours and taught is None:
                self._booked_at[row.id] = written_at
                continue
            with self._turn:
                if row.id in self._beginning or _standing(row) != seen:
                    continue  # it goes on since it was read, or another thread has booked this
                self._end(
                    row,
                    state,
                    node_hours=hours,
                    usd=0.0 if price is None else price * hours,
                    note=reason or "it was interrupted; `hpcagent resume` goes on with its folder",
                    bytes=max(0, size_of(self._workdir(row)) - row.stored),
                    taught=taught,
                )


def _taught(there: Snapshot, before: int) -> dict[str, Any] | None:
    """What estimates learn from a campaign: `results` so far; of the new ones how many `failed`, and `times`.

    Args:
        there: The campaign.
        before: Its results that were taken in when it ended before, in the order in which they came.

    Returns:
        `times` are wall time in seconds and numbers among the parameters of the last that were run here;
        None: nothing is new.
    """
    new = there.state.in_arrival()[before:]
    runs = [one for one in new if not one.manifest.origin and not one.manifest.extends and one.manifest.times == 1]
    whole = [one for one in runs if one.status == "COMPLETED" and one.distrusted is None and one.cost.wall_s > 0]
    times = [(one.cost.wall_s, numbers_of(one.manifest.params)) for one in whole[-MOST_TIMES:]]
    failed = sum(one.status == "FAILED" for one in runs)
    return {"results": before + len(new), "failed": failed, "times": times} if new else None


def _written_at(run_dir: Path) -> float:
    """When a campaign's own journal was written, Unix time in seconds; 0 where it has none."""
    try:
        return (run_dir / "events.jsonl").stat().st_mtime
    except OSError:
        return 0.0


def _goes_on(identity: str) -> NotAllowed:
    return NotAllowed(
        "contract",
        "the campaign goes on at this moment",
        field="identity",
        value=identity,
        allowed="one that has ended or was stopped",
        do=f"wait for it, or stop it first (hpcagent workspace stop {identity})",
    )


def brings_code(campaign: Campaign) -> bool:
    """Whether a campaign has code that the library does not bring: in its app, or as its policy."""
    return not is_ours(campaign.app) or ":" in campaign.policy.name


def refuse_function(campaign: str) -> None:
    """Refuse the TOML of a campaign whose app is a function of somebody's own: the service imports no code.

    Raises:
        BadInput: It is one, or the file is wrong.
    """
    path = Path(campaign).expanduser()
    app = read_toml(path).get("app") if path.is_file() else None
    if isinstance(app, str) and is_function(app):
        raise BadInput(
            f"the service imports no code: the campaign {path} with {app!r} goes along with a call of "
            "ha.Workspace or of `hpcagent workspace start`.",
            value=app,
        )


def _standing(row: Row) -> tuple[str, float, float]:
    """What of a campaign is another when it has ended, or was let go on."""
    return row.state, row.ended_at, row.again_at


def _length(run_dir: Path) -> int:
    """Bytes of a campaign's own journal; 0 where it has none."""
    try:
        return (run_dir / "events.jsonl").stat().st_size
    except OSError:
        return 0


def begin(root: Path, identity: str, profile: str) -> None:
    """Have a campaign begun, by a process of its own.

    Raises:
        HpcAgentError: It does not begin; the message is that of the process.
    """
    last, why = said_by("hpcagent.workspace.beginning", str(root), identity, profile)
    try:
        said = json.loads(last)
    except ValueError:
        raise SiteFailed(f"the process that begins campaigns did not say how that went: {why}") from None
    if said:
        kind = getattr(errors, said["kind"], BadInput)
        raise kind(said["message"])
