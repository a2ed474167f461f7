"""Campaigns of a workspace: approved as a whole, in processes of their own, which need no service to go on."""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcagent import errors
from hpcagent.campaign.asked import NOTE, let_through, request_of
from hpcagent.campaign.budget import refuse_no_first_run
from hpcagent.campaign.loading import load_campaign
from hpcagent.campaign.record import Campaign
from hpcagent.campaign.sweep_space import SWEEP
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
from hpcagent.workspace.answers import answer_of, campaign_toml, next_points
from hpcagent.workspace.app_store import packed
from hpcagent.workspace.booking import BEGINS_WITHIN_S, Booking
from hpcagent.workspace.checked import refuse_files, refuse_label
from hpcagent.workspace.forecast import Forecast, expecting
from hpcagent.workspace.plain_campaigns import (
    as_data,
    check_changes,
    check_options,
    check_values,
    is_name,
    names_path,
    packaged_campaign,
)
from hpcagent.workspace.references import is_function, sandbox_of, version_of
from hpcagent.workspace.rows import Row

__all__ = ["Campaigns"]

MOST_POINTS = 64


class Campaigns(Booking):
    """Campaigns, behind the gate.

    Args:
        root: The workspace's folder.
        clock: Unix time, in seconds.
        apart: Sites are kept by processes of their own, which outlive this one.
    """

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
                where = site or self.rules.default_site
                self.sites.refuse_misfit(where, self.sites.known(where), found.largest)
            asked, _ = self._asked_as_a_whole(found, where, reference, given, caller, why=why)
            known = [r for r in self._same_work(asked.work) if r.owner == caller.name and r.kind == "campaign"]
            if known:
                return self._said(known[0], found=True)
            with self.gate.recorded(caller, asked):
                self._refuse_no_run(found, where, asked)
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

    def _asked_as_a_whole(
        self,
        campaign: Campaign,
        site: str,
        reference: str,
        given: Mapping[str, str],
        caller: Caller,
        *,
        why: str = "",
    ) -> tuple[Request, Forecast]:
        """What the gate is asked of a new campaign, with what it is expected to take."""
        asked = request_of(
            campaign,
            site=site,
            own=self._brings_code(campaign, reference),
            sandbox=sandbox_of(campaign.app),
            price=self.rules.price(site),
            why=why,
            given=given,
        )
        each_s, source = self._each(campaign, site, caller)
        share = self._charged_share(campaign.app, site, self.sites.known(site), campaign.largest)
        expected = None if asked.runs is None else asked.runs * asked.nodes * share * each_s / 3600
        if expected is not None and asked.node_hours is not None and asked.node_hours < expected:
            expected, source = asked.node_hours, f"the cap, as {source} would be more"
        return expecting(asked, expected, each_s), Forecast(asked.runs, each_s, expected, source)

    def _refuse_no_run(self, campaign: Campaign, site: str, asked: Request) -> None:
        """Refuse a campaign whose coordinator would begin no run under its cap.

        Raises:
            NotAllowed: With the numbers.
        """
        try:
            cores = self.sites.node_cores(self.sites.known(site))
            refuse_no_first_run(campaign, node_cores=cores, expected_s=asked.expected_s)
        except NotAllowed:
            raise
        except BadInput as error:
            raise NotAllowed(
                "contract",
                error.message,
                field="until.node_hours",
                value=asked.node_hours,
                do="raise the cap, or give its runs a shorter walltime_s; nothing was run",
            ) from None

    def _each(self, campaign: Campaign, site: str, caller: Caller) -> tuple[float, str]:
        """What a run in the middle of a campaign's space takes, in seconds, and what that is from."""
        app, params = campaign.app, campaign.complete(campaign.search.middle)
        return self._expected(version_of(app), app, site, params, campaign.largest.walltime_s, caller=caller)

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

    def _brings_code(self, campaign: Campaign, reference: str) -> bool:
        """Whether a campaign runs code that the library does not bring: its app, its policy, or what ends it.

        Args:
            campaign: The campaign.
            reference: How its app is called.

        Raises:
            BadInput: The kept app is damaged.
        """
        return self.references.brings_code(campaign.app, reference) or names_code(campaign)

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
        noted = _noted(folder)
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
                if row.was is None or self._since(row, "session"):
                    self._end(row, "failed", note=f"it did not begin: {plain(error.message)}")
                else:
                    self._back(row, plain(error.message), noted)
            raise
        finally:
            with self._turn:
                self._beginning.discard(row.id)
                self._turn.notify_all()
        with self._turn:
            return self._said(row, found=False)

    def _back(self, row: Row, why: str, noted: bytes | None) -> None:
        """Have a campaign that did not go on stand as it did before; nobody is told of an end.

        Args:
            row: The campaign.
            why: Why it did not.
            noted: What its folder had of what was let through.
        """
        event = {"event": "not_extended", "id": row.id, "at": self._clock(), "why": why}
        self._write(event)
        self._not_extended(event)
        if noted is not None:
            write_whole(self._workdir(row) / NOTE, noted, private=True)

    def _order(self, identity: str) -> Path:
        return self.folder.campaigns / f"{identity}.asked.json"

    def _write_order(
        self, identity: str, reference: str, toml: str | None, changes: Mapping[str, Any] | None
    ) -> None:
        """Write down what the process that begins a campaign is to do."""
        order = {"toml": toml, "app": reference, "changes": None if changes is None else dict(changes)}
        write_whole(self._order(identity), json.dumps(order), private=True)

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
        try:
            self.references.app(row.reference)
        except NotAllowed as refused:  # since it was let through
            self._end(row, "failed", note=f"not begun by the new service: {plain(refused.why)}")
            return
        asked = Request.model_validate({**row.request, "node_hours": row.node_hours_at_most})
        self._beginning.add(row.id)
        threading.Thread(target=self._begin_late, args=(row, asked, toml, changes), daemon=True).start()

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
            self._say(f"the campaign {row.id} was not stopped: {plain(str(error))}")
        self._look_at_campaigns()


def _noted(run_dir: Path) -> bytes | None:
    """What a campaign's folder has of what was let through; None where it has nothing."""
    try:
        return (run_dir / NOTE).read_bytes()
    except OSError:
        return None


def names_code(campaign: Campaign) -> bool:
    """Whether a campaign names code that the library does not bring: as its policy, for it, or for its end."""
    policy = campaign.policy
    # The values of a sweep are those of its parameters.
    options = {} if policy.name == SWEEP else policy.options
    return ":" in policy.name or names_path(options) or names_path(campaign.until.toml())


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
