"""The workspace as scripts, notebooks and the shell use it: a connection to the process that serves it."""

from __future__ import annotations

import base64
import contextlib
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from hpcagent.apps.base import App
from hpcagent.apps.invocation import Invocation
from hpcagent.campaign.loading import load_campaign
from hpcagent.campaign.record import Campaign
from hpcagent.catalog import find_app, packaged
from hpcagent.contexts.contexts import Contexts
from hpcagent.contexts.events import Events
from hpcagent.errors import BadInput
from hpcagent.gate.rules import Rights
from hpcagent.model.base import read_toml
from hpcagent.registry.scripts import SCRIPTS
from hpcagent.resources.folder import Resources
from hpcagent.workspace.added_calls import AddedCalls
from hpcagent.workspace.app_store import asked, packed, unpacked
from hpcagent.workspace.connection import Answer, traced
from hpcagent.workspace.shared import context_permit, may_read, opened_resources
from hpcagent.workspace.tool_calls import ToolCalls

__all__ = ["Workspace", "traced"]

LONGEST_WAIT_S = 300.0


class Workspace(ToolCalls, AddedCalls):
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

    # -- runs ---------------------------------------------------------------------------------

    def run(
        self,
        app: str | App,
        params: Mapping[str, Any] | None = None,
        *,
        site: str = "",
        site_kind: str = "",
        seed: int = 0,
        replicate: int = 0,
        inputs: Sequence[str] = (),
        walltime_s: float | None = None,
        settings: Mapping[str, Any] | None = None,
        resources: Mapping[str, Any] | None = None,
        why: str = "",
        label: str = "",
        again: bool = False,
        anywhere: bool = False,
        data_only: bool = False,
    ) -> Answer:
        """Start a run, or find the one that did the same work; returns at once.

        Args:
            app: Its name (`lj_argon`, `lj_argon@0.2.0`), the path of a script, or `module:function`; or the app
                itself, with the settings and resources that it has.
            params: In the units of its contract; those not given take their defaults. A file of an earlier run is
                `artifact:RUN/PATH`.
            site: Where it runs; by default as `workspace.toml` says.
            site_kind: Refuse a site whose profile has another `kind`, e.g. where it is to be `slurm`.
            seed: Random seed.
            replicate: A counter for deliberate repetitions.
            inputs: Ids of the runs that it takes as input.
            walltime_s: Wall time after which it is ended, in seconds, in place of what the app says: a
                bound of its node-hours.
            settings: Of the app, as `App.with_settings` takes them.
            resources: As `App.with_resources` takes them, e.g. `{"nodes": 2}`.
            why: What it is for, for whoever approves it.
            label: What the caller calls it; need not be unique.
            again: Do it once more where the same work has ended, as the next replicate.
            anywhere: What was done on another site, or with other nodes and ranks, will do also where the app
                measures times or speeds; else such work is done anew, as the next replicate.
            data_only: Refuse settings and parameters that may be code, or name a file of this machine: for doors
                whose callers are not known as this user is.

        Returns:
            `id`, `state`, `found` (whether the same work was known), `workdir`; `site`, `resources`, `replicate`,
            `asked_at` and `ended_at` of the work, and in `note` why nothing ran anew.

        Raises:
            NotAllowed: The gate refuses it: `check`, `field`, `value`, `allowed`, `do`, `approval`.
        """
        return self._one(
            "run",
            **self._asked(app, settings, resources),
            params=dict(params or {}) if data_only else self._from_here(app, params or {}),
            site=site,
            site_kind=site_kind,
            seed=seed,
            replicate=replicate,
            inputs=list(inputs),
            walltime_s=walltime_s,
            why=why,
            label=label,
            again=again,
            anywhere=anywhere,
            data_only=data_only,
        )

    def estimate(self, app: str | App, params: Mapping[str, Any] | None = None, **more: Any) -> Answer:
        """What a run would take, and what the gate would say; nothing is run. Arguments as `run`."""
        settings, resources = more.pop("settings", None), more.pop("resources", None)
        asked_for = self._asked(app, settings, resources)
        found = dict(params or {}) if more.get("data_only") else self._from_here(app, params or {})
        return self._one("estimate", **asked_for, params=found, **more)

    def _asked(
        self, app: str | App, settings: Mapping[str, Any] | None, resources: Mapping[str, Any] | None
    ) -> Answer:
        """An app as the service is asked for it; a registered tool by its name."""
        if isinstance(app, str) and self.is_tool(app):
            return {"app": app, "settings": dict(settings or {}), "resources": dict(resources or {})}
        return asked(app, settings, resources)

    def has_tool(self, name: str) -> bool:
        """Whether there is a registered tool or an added app of that name, in any state, or it runs scripts."""
        notes = (self.folder.tools / f"{name}.json", self.folder.added / f"{name}.json")
        return name in SCRIPTS or (name.isidentifier() and any(note.is_file() for note in notes))

    def is_tool(self, app: str) -> bool:
        """Whether `NAME` or `NAME@VERSION` is that of a registered tool or added app, and of no packaged app."""
        name = app.partition("@")[0]
        return name.isidentifier() and not Path(app).is_file() and packaged(name) is None and self.has_tool(name)

    def _named(self, app: str | App) -> str:
        """An app by a name that the service knows."""
        wanted = self._asked(app, None, None)
        if not isinstance(wanted["app"], str) or wanted["settings"] or wanted["resources"]:
            raise BadInput(
                f"{app if isinstance(app, str) else app.name!r} has no name that it has everywhere: "
                "`bayesian_optimize` takes packaged apps as they are; `start` takes a campaign with any app.",
                value=str(app),
            )
        return str(wanted["app"])

    def apps(self, query: str = "") -> Any:
        """Apps and approved tools that the caller may use: `name`, `version`, `description` of each.

        Args:
            query: Words of name, description, kind, engine, parameters or metrics; those with all of them first.
        """
        return self._call("apps", query=query)

    def invoke(self, invocation: Invocation, *, site: str = "", why: str = "") -> Answer:
        """Start the run that an invocation writes down, as it is written: of packaged apps as they are.

        Args:
            invocation: Its budget bounds the run; its approval has to be one of this very request.
            site: Where it runs.
            why: What it is for.

        Raises:
            NotAllowed: It was changed, is of another version or code, or the gate refuses it.
        """
        return self._one("invoke", invocation=invocation.model_dump(mode="json"), site=site, why=why)

    def invocation(self, identity: str) -> Invocation:
        """A run as an invocation: the same call, written once, with its approval."""
        return Invocation.model_validate(self._one("invocation", identity=identity))

    def status(self, identity: str, *, lines: int = 40) -> Answer:
        """State, metrics with units and errors, failure, cost, the last lines of the log, `progress`.

        `progress` is None unless it runs and something is known: `done` `of` so many in `unit` (steps of the
        LAMMPS `run` command that goes on, runs of a campaign, else seconds), `share` (0 to 1), `from` what says
        it, `elapsed_s`, `expected_s`. `changed_at` (Unix time, s) is when it has come to stand as it does, of a
        campaign that goes on that of its last event. `rc` is 0 of a run that is completed, else the exit code
        that its failure names, or None; `workdir` its directory.
        """
        return self._one("status", identity=identity, lines=lines)

    def wait(self, identity: str, timeout_s: float | None = None) -> Answer:
        """Its status once it has ended.

        Raises:
            TimeoutError: It has not ended within `timeout_s`.
        """
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left = LONGEST_WAIT_S if until is None else until - time.monotonic()
            status = self._one("wait", identity=identity, timeout_s=max(0.0, min(left, LONGEST_WAIT_S)))
            if status["ended_at"] is not None:
                return status
            if until is not None and time.monotonic() >= until:
                raise TimeoutError(f"run {identity} has not ended within {timeout_s:g} s ({status['state']}).")

    def list(self, *, state: str = "", app: str = "", after: str = "", most: int = 100) -> Answer:
        """Runs, the newest first, a page at a time: `runs`, and `after` for the next page."""
        return self._one("list", state=state, app=app, after=after, most=most)

    def cancel(self, identity: str) -> Answer:
        """Keep a run from being done, or end it."""
        return self._one("cancel", identity=identity)

    def artifacts(self, identity: str, *, below: str = "") -> Any:
        """Files of a run or campaign: `path`, `bytes`; the first ten thousand by name.

        Args:
            identity: The run or campaign.
            below: Only those in this folder: a campaign's run has its in `work/EXECUTION_ID`.

        Raises:
            BadInput: There is no such run, or `below` leads elsewhere.
        """
        return self._call("artifacts", identity=identity, below=below)

    def fetch(self, identity: str, path: str, to: str | Path | None = None) -> bytes | Path:
        """A file of a run, as bytes, or written to `to`.

        Raises:
            BadInput: The run has no such file, or `to` is there already or cannot be written.
        """
        pieces: list[bytes] = []
        at: int | None = 0
        with contextlib.ExitStack() as stack:
            file = None if to is None else stack.enter_context(_new_file(Path(to)))
            while at is not None:
                piece = self.piece(identity, path, offset=at)
                data = base64.b64decode(piece["data"])
                if file is None:
                    pieces.append(data)
                else:
                    file.write(data)
                at = piece["next"] if data else None
        return b"".join(pieces) if to is None else Path(to)

    def piece(self, identity: str, path: str, *, offset: int = 0, length: int = 1 << 20) -> Answer:
        """A piece of a run's file.

        Args:
            identity: The run.
            path: As `artifacts` says it.
            offset: First byte.
            length: Bytes at most, 8 MiB.

        Returns:
            `path`, `bytes` of the whole file, `offset`, `data` in base64, `next` (offset; None at the end).

        Raises:
            BadInput: The run has no such file, or the piece is none of it.
        """
        return self._one("fetch", identity=identity, path=path, offset=offset, length=length)

    def repeat(
        self,
        changes: str | Sequence[str],
        identity: str = "",
        *,
        other_version: bool = False,
        why: str = "",
        data_only: bool = False,
    ) -> Answer:
        """An earlier run with something changed: "the same with skin 1 angstrom".

        Args:
            changes: `skin=1 angstrom`, `temperature +50 K`, `timestep /2`; one or several.
            identity: The run; empty: the newest of the caller's.
            other_version: Go on where the app has another version now.
            why: What it is for.
            data_only: What is changed may name no file of this machine.

        Returns:
            As `run`, with `since`, `app`, `version`, `params`, `units`, `changes`, `notes`.

        Raises:
            NotAllowed: A unit is missing or wrong, a value is out of bounds, or the gate refuses it.
        """
        several = [changes] if isinstance(changes, str) else list(changes)
        more = {"other_version": other_version, "why": why, "data_only": data_only}
        return self._one("repeat", changes=several, identity=identity, **more)

    def estimate_repeat(
        self,
        changes: str | Sequence[str],
        identity: str = "",
        *,
        other_version: bool = False,
        data_only: bool = False,
    ) -> Answer:
        """What `repeat` with these arguments would take, as `estimate` says it; nothing is run."""
        several = [changes] if isinstance(changes, str) else list(changes)
        more = {"other_version": other_version, "data_only": data_only}
        return self._one("estimate_repeat", changes=several, identity=identity, **more)

    def simulation_run(
        self,
        name: str = "default_simulation",
        max_steps: int = 1000,
        seed: int | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> Answer:
        """Start the simulation that needs nothing (`oscillator`) under a name of one's own; returns at once.

        Args:
            name: A label; the newest of that name is found by it, `run_id` is what is unique.
            max_steps: Steps to make.
            seed: Draws the start; without it one is drawn, and stands in `config`.
            params: `timestep` (fs), `mass` (u), `spring` (eV/angstrom^2), `temperature` (K).

        Returns:
            `status`, `run_id`, `steps_completed`, `config`, `simulation_status`, `results` with units, `error`.
        """
        return self._one("simulation_run", name=name, max_steps=max_steps, seed=seed, params=params)

    def simulation_get_results(self, name: str = "default_simulation") -> Answer:
        """How a simulation stands, by its `run_id` or its name; see `simulation_run`."""
        return self._one("simulation_get_results", name=name)

    def catalyst(
        self,
        structure: str,
        adsorbate: str,
        *,
        catalyst: str = "",
        accept: str = "same_method",
        threshold_ev: float = -1.2,
        parameters: Mapping[str, Any] | None = None,
        site: str = "",
        walltime_s: float | None = None,
        why: str = "",
    ) -> Answer:
        """A catalyst's adsorption energy: what is known, or the run that computes it; returns at once.

        `hpcagent.materials.run_catalyst` waits and does the same. Here the service stores the result, writes it
        into the notebook and tells it when the run has ended, whatever has become of the caller.

        Args:
            structure: An element.
            adsorbate: An atom or a molecule of `ase.build.molecule`.
            catalyst: What it is called, e.g. `Cu-ZnO`.
            accept: Which row of `catalyst_db` will do: `same_method` or `any_method`.
            threshold_ev: Below this it is promising, in eV.
            parameters: Of the chain `adsorption`, e.g. `{"engine": "emt"}`.
            site: Where it runs.
            walltime_s: In seconds.
            why: What it is for.

        Returns:
            `state` (found, pending, running, recording, recorded, failed), `run_id`, `adsorption_energy_ev`,
            `result_uri`, `row`, `promising`, `notes`, `error`.

        Raises:
            NotAllowed: A value is not allowed, or the gate refuses the run.
            NotPermitted: The role may not read the table, or may not store what would be computed.
        """
        return self._one(
            "catalyst",
            structure=structure,
            adsorbate=adsorbate,
            catalyst=catalyst,
            accept=accept,
            threshold_ev=threshold_ev,
            parameters=dict(parameters or {}),
            site=site,
            walltime_s=walltime_s,
            why=why,
        )

    def estimate_catalyst(
        self, structure: str, adsorbate: str, *, parameters: Mapping[str, Any] | None = None, **more: Any
    ) -> Answer:
        """What `catalyst` would take, and what the gate would say; nothing is run. Arguments as `catalyst`.

        Returns:
            As `estimate`; `known` is also what `catalyst_db` has, and then nothing is taken.

        Raises:
            NotAllowed: A value is not allowed.
            NotPermitted: The role may not read the table.
        """
        asked = {"structure": structure, "adsorbate": adsorbate, "parameters": dict(parameters or {})}
        return self._one("estimate_catalyst", **asked, **more)

    def catalyst_state(self, identity: str) -> Answer:
        """How a catalyst stands that a run computes; fields as `catalyst`."""
        return self._one("catalyst_state", identity=identity)

    # -- campaigns ----------------------------------------------------------------------------

    def start(
        self,
        campaign: Campaign | str | Path,
        *,
        changes: Mapping[str, Any] | None = None,
        site: str = "",
        why: str = "",
        data_only: bool = False,
        at_once: bool = False,
    ) -> Answer:
        """Start a campaign in a process of its own; `ha.attach(workdir)` follows it.

        Args:
            campaign: A campaign, the path of its TOML, or the name of a packaged one.
            changes: Dotted key -> value, in place of what stands there.
            site: Where it runs.
            why: What it is for, for whoever approves it.
            data_only: The campaign is the name of a packaged one, or a TOML text (not a path), and may name no
                code and no file: for campaigns that come from a client.
            at_once: Return when it is let through; why it does not begin is noted with it.

        Raises:
            NotAllowed: The gate refuses it.
        """
        whole = self._whole(campaign, changes, data_only)
        rest = {"changes": dict(changes or {})} if data_only else {}
        return self._one("start", campaign=whole, site=site, why=why, at_once=at_once, **rest)

    def estimate_campaign(
        self,
        campaign: Campaign | str | Path,
        *,
        changes: Mapping[str, Any] | None = None,
        site: str = "",
        data_only: bool = False,
    ) -> Answer:
        """What a campaign would take as a whole, and what the gate would say; nothing is run. See `start`."""
        whole = self._whole(campaign, changes, data_only)
        rest = {"changes": dict(changes or {})} if data_only else {}
        return self._one("estimate_campaign", campaign=whole, site=site, **rest)

    def _whole(
        self, campaign: Campaign | str | Path, changes: Mapping[str, Any] | None, data_only: bool
    ) -> dict[str, Any]:
        if data_only:
            return {"data": str(campaign)}
        if isinstance(campaign, Campaign) and changes:
            raise BadInput("changes go with a campaign's TOML; a Campaign has its own values.")
        if not isinstance(campaign, Campaign):
            tool = self._tool_of(Path(campaign).expanduser(), changes or {})
            if tool:
                made = self._tool(tool)
                more = _beside(Path(campaign).expanduser(), made, changes or {})
                return {"toml": load_campaign(campaign, changes=more, app=made).toml(), "app": tool}
        found = campaign if isinstance(campaign, Campaign) else load_campaign(campaign, changes=changes)
        wanted = asked(found.app)
        same = not wanted["settings"] and not wanted["resources"]
        return {"toml": found.toml(), "app": wanted["app"] if same else packed(found.app)}

    def _tool_of(self, path: Path, changes: Mapping[str, Any]) -> str:
        """The registered tool that the TOML of a campaign names as its app; empty: it names another app."""
        named = changes.get("app", read_toml(path).get("app") if path.is_file() else None)
        ours = isinstance(named, str) and not (path.parent / named).is_file() and self.is_tool(named)
        return str(named) if ours else ""

    def _tool(self, app: str) -> App:
        return unpacked(self._one("packed_tool", app=app))

    def _from_here(self, app: str | App, params: Mapping[str, Any]) -> dict[str, Any]:
        """Parameters with absolute paths for files: the service has another working directory."""
        if not any(_is_path(value) for value in params.values()):
            return dict(params)
        found: App | None = None
        if isinstance(app, App):
            found = app
        elif self.is_tool(app):
            found = self._tool(app)
        elif Path(app).is_file():
            found = find_app(app)
        reads = () if found is None else found.settings.get("reads", ())
        return {n: _absolute(v, Path()) if n in reads and _is_path(v) else v for n, v in params.items()}

    def bayesian_optimize(
        self,
        objective_function: str | App,
        objective: Mapping[str, Any],
        budget: int,
        *,
        search_space: Mapping[str, Any] | None = None,
        constraints: Sequence[str] = (),
        fixed: Mapping[str, Any] | None = None,
        node_hours: float | None = None,
        seed: int = 0,
        site: str = "",
        why: str = "",
        at_once: bool = False,
    ) -> Answer:
        """Look for the best point of an app with Gaussian processes: a campaign, approved as a whole.

        Args:
            objective_function: An app by the name that it has everywhere: never code.
            objective: E.g. `{"maximize": "value", "subject_to": {"error": {"at_most": 1.0}}}`.
            budget: Runs at most.
            search_space: Parameter -> `{"low": ..., "high": ...}`; by default what the app varies.
            constraints: Conditions between parameters.
            fixed: Values of other parameters.
            node_hours: Cap.
            seed: Of the policy.
            site: Where it runs.
            why: What it is for.
            at_once: As of `start`.

        Returns:
            As `start`; `answer` has the best point, `recommend` the next ones with their expected improvement.
        """
        return self._one(
            "bayesian_optimize",
            objective_function=self._named(objective_function),
            objective=dict(objective),
            budget=budget,
            search_space=search_space and dict(search_space),
            constraints=list(constraints),
            fixed=dict(fixed or {}),
            node_hours=node_hours,
            seed=seed,
            site=site,
            why=why,
            at_once=at_once,
        )

    def campaign(self, identity: str, *, timeout_s: float = 0.0) -> Answer:
        """How a campaign stands, at once, with its newest answer; a newer one is worked out in the background.

        Args:
            identity: The campaign.
            timeout_s: Wait so long for a newer answer, in seconds.

        Returns:
            `state`, `runs` (`done`, `most`, `by_state`), `node_hours`, `question`, `policy`; `answer` as `answer`
            has it or None, of `answer_of_runs` runs; `answer_handle` of one that is being worked out.
        """
        return self._one("campaign", identity=identity, timeout_s=timeout_s)

    def ask_later(self, identity: str, what: str, *, timeout_s: float = 0.0, **args: Any) -> Answer:
        """Ask something about a campaign that takes longer than a moment; a process of its own answers.

        Args:
            identity: The campaign.
            what: `explain` (`run`: a number or the beginning of an execution id), `recommend` (`n`), `replay`
                (`policies`, `seeds`), `report` (writes it into the campaign's folder), `answer`,
                `slices` (the models along each parameter through the answer).
            timeout_s: Wait so long for the answer, in seconds.
            args: Of the question.

        Returns:
            `handle`, `state` (running, done, failed), `answer`, `error`. Asked again while the campaign's
            journal is the same, it is the same question.

        Raises:
            BadInput: An argument is wrong.
        """
        return self._one("ask_later", identity=identity, what=what, args=args, timeout_s=timeout_s)

    def get_answer(self, handle: str, *, timeout_s: float = 0.0) -> Answer:
        """The answer to a question of `ask_later`, for whoever may see the campaign."""
        return self._one("get_answer", handle=handle, timeout_s=timeout_s)

    def answer(self, identity: str) -> Answer:
        """A campaign's answer so far: the best point with errors, P(feasible), expected regret, node-hours."""
        return self._one("answer", identity=identity)

    def recommend(self, identity: str, n: int = 1) -> Answer:
        """Points that a campaign's policy would run next, with their expected improvement; nothing is run."""
        return self._one("recommend", identity=identity, n=n)

    def extend(
        self,
        identity: str,
        changes: Mapping[str, Any] | None = None,
        *,
        why: str = "",
        data_only: bool = False,
        at_once: bool = False,
    ) -> Answer:
        """Go on with a campaign that has ended or was stopped; what it is to take on top is let through anew.

        Args:
            identity: The campaign.
            changes: Dotted key -> value, e.g. `{"until.max_runs": 40}`.
            why: What it is for.
            data_only: As of `start`.
            at_once: As of `start`.

        Raises:
            NotAllowed: The gate refuses it, or it goes on at this moment.
        """
        more = {"changes": dict(changes or {}), "why": why, "data_only": data_only, "at_once": at_once}
        return self._one("extend", identity=identity, **more)

    def estimate_extension(
        self, identity: str, changes: Mapping[str, Any] | None = None, *, data_only: bool = False
    ) -> Answer:
        """What `extend` with these changes would take on top of what was taken; nothing is run.

        Returns:
            `app`, `site`, `runs` (of the whole campaign), `node_hours_at_most` and `usd_at_most` of what is on top
            (None: nothing bounds it), `approval` (why a person has to say yes), `refused` (why it would be).

        Raises:
            NotAllowed: A change is not allowed.
        """
        more = {"changes": dict(changes or {}), "data_only": data_only}
        return self._one("estimate_extension", identity=identity, **more)

    def stop(self, identity: str, *, at_once: bool = False) -> Answer:
        """Stop a campaign; what has finished is kept.

        Args:
            identity: The campaign.
            at_once: Do not wait for its end.
        """
        return self._one("stop", identity=identity, at_once=at_once)

    # -- events, contexts, resources ----------------------------------------------------------

    def tell(
        self, event: str, payload: Mapping[str, Any], *, to: str | Sequence[str] = (), key: str = ""
    ) -> Answer:
        """Tell an event in the caller's name; the workspace's triggers and subscribers get it.

        Args:
            event: `on_message`, `on_comment_added`, `on_tool_registered`, `on_tool_deprecated`,
                `on_auth_expiring`, or a name of your own that does not begin with `on_`. What the service knows by
                itself (`on_job_*`, `on_resource_modified`, ...) it tells alone.
            payload: What it says: plain data; `by` is added.
            to: Names of people who may see it beside the caller and those who see all; `"*"`: everybody.
            key: The same for the same event told twice, of which a trigger starts something once.

        Returns:
            `event`, its number `n`, and `to` whom.

        Raises:
            NotAllowed: The role has no right to write, or the event is one that only the service tells.
        """
        # Its own key tells triggers apart, also where the service was killed after it had told the event.
        return self._one(
            "tell",
            event=event,
            payload=dict(payload),
            to=to if isinstance(to, str) else list(to),
            key=key or uuid.uuid4().hex,
        )

    def subscribe(
        self,
        events: str | Sequence[str],
        *,
        where: Mapping[str, Any] | None = None,
        after: int | None = None,
        expires_s: float | None = None,
    ) -> Answer:
        """Subscribe to events (`on_job_complete`, ...) by name; `where` has conditions on what they say.

        Returns:
            `subscription_id`, `status`.
        """
        names = [events] if isinstance(events, str) else list(events)
        return self._one("subscribe", events=names, where=where and dict(where), after=after, expires_s=expires_s)

    def unsubscribe(self, subscription_id: str) -> Answer:
        """End a subscription."""
        return self._one("unsubscribe", subscription_id=subscription_id)

    def notifications(self, subscription_id: str, *, most: int = 100, timeout_s: float = 0.0) -> Any:
        """The next notifications: `event`, `payload`, `n`; they come again until `acknowledge` says so.

        Args:
            subscription_id: What `subscribe` has returned.
            most: So many at most.
            timeout_s: Wait so long for one where there is none, in seconds.
        """
        asked = {"subscription_id": subscription_id, "most": most, "timeout_s": timeout_s}
        return self._call("notifications", **asked)

    def acknowledge(self, subscription_id: str, n: int) -> Answer:
        """Say that all notifications up to number `n` have come."""
        return self._one("acknowledge", subscription_id=subscription_id, n=n)

    def whoami(self) -> Answer:
        """Name, role and rights here."""
        return self._one("whoami")

    def rights(self) -> Rights:
        """What one's role may do, as `workspace.toml` says it now; asks no service."""
        return self.folder.rights(self._as)

    def contexts(self) -> Contexts:
        """The contexts that this workspace's people and programs share; a write tells `on_context_update`.

        They are read with the right `read` and written with `write`, as the role has them now.
        """
        who, rules = self.whoami(), self.folder.read_rules()
        events = Events(self.folder.root / "events")
        return Contexts(
            self.folder.root / "contexts",
            announce=events.context_updates(owner=who["name"], readers=may_read(rules)),
            permit=context_permit(who["name"], who["role"], rules),
        )

    def resources(self, session: str | None = None) -> Resources:
        """`catalyst_db`, `dft_results`, `lab_notebook` and others of this workspace; changes are told.

        The role's rights decide, as they are now: `read` reads, `write` adds, replaces and makes, `manage` expires
        and copies, and `resources` says of which names. Each change tells `on_resource_modified`.

        Args:
            session: A name, for resources that each session has its own of.
        """
        who = self.whoami()
        return opened_resources(
            self.folder.root / "resources",
            who["name"],
            who["role"],
            self.folder.read_rules(),
            session=session,
            announce=lambda name, at: self._one("modified", resource=name, at=at, session=session or ""),
        )

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


def _is_path(value: object) -> bool:
    """Whether a parameter could be the path of a file; one of a run is `artifact:RUN/PATH`."""
    return isinstance(value, str | Path) and bool(str(value)) and not str(value).startswith("artifact:")


def _absolute(value: object, folder: Path) -> str:
    return str((folder / Path(str(value)).expanduser()).absolute())


def _beside(path: Path, app: App, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The changes of a campaign with its fixed files as absolute paths; those in its TOML lie beside it."""
    table = read_toml(path)
    fixed = table.get("fixed", {})
    found = dict(changes)
    for name in app.settings.get("reads", ()):
        key = f"fixed.{name}"
        if key in changes:
            found |= {key: _absolute(changes[key], Path())} if _is_path(changes[key]) else {}
        elif isinstance(fixed, Mapping) and _is_path(fixed.get(name)):
            found[key] = _absolute(fixed[name], path.parent)
    return found


def _new_file(path: Path) -> BinaryIO:
    try:
        return path.open("xb")
    except FileExistsError:
        raise BadInput(f"{path} is there already: name another file, or remove it.", value=str(path)) from None
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror}.", value=str(path)) from None
