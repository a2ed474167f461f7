"""Single runs of a workspace: asked for, sent to a site, ended, seen."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hpcagent.apps.base import App
from hpcagent.apps.finished import final_result
from hpcagent.apps.hooks import LAMMPS
from hpcagent.apps.invocation import Invocation
from hpcagent.apps.made_with import changed_files
from hpcagent.apps.modes import MODE
from hpcagent.catalog import app_names, find_app, packaged
from hpcagent.contexts.admitted import secret_in, unsecret
from hpcagent.errors import BadInput, HpcAgentError, NotThere, StoreError
from hpcagent.gate.not_allowed import NotAllowed
from hpcagent.gate.request import Request, Tier, effects_of
from hpcagent.gate.rules import Caller
from hpcagent.model.base import build, canonical_json
from hpcagent.model.contract import Resources
from hpcagent.model.records import Manifest, Result
from hpcagent.registry.contract import app_of, as_texts, tool_of
from hpcagent.registry.scripts import SCRIPTS, as_lines, script_app
from hpcagent.registry.store import Change, Tools, split_version
from hpcagent.shown import plain
from hpcagent.sites.limits import check, executor_for
from hpcagent.sites.profiles import find_profile
from hpcagent.workspace.app_store import STORED, AppStore, code_key, packed
from hpcagent.workspace.artifacts import list_files, read_piece, tail_of
from hpcagent.workspace.configured import configured
from hpcagent.workspace.desk import Desk, Job
from hpcagent.workspace.inner import all_files, folder_and_path, shown_artifacts
from hpcagent.workspace.inputs import Inputs, refuse_unended
from hpcagent.workspace.kept import Kept
from hpcagent.workspace.only_data import check_only_data
from hpcagent.workspace.progress import Progress
from hpcagent.workspace.records import Records
from hpcagent.workspace.rows import Row, exit_code, job_facts

__all__ = [
    "ARTIFACT",
    "Runs",
    "is_function",
    "is_ours",
    "refuse_files",
    "refuse_label",
    "sandbox_of",
    "size_of",
]

ARTIFACT = "artifact:"
LIST_MOST = 1000
LONGEST_SITE = 200
# Settings that name code: the calculator of the engine `ase`.
CODE = {"calculator"}
SIMULATION = "oscillator"


class Runs(Records):
    """Single runs, behind the gate.

    Args:
        root: The workspace's folder.
        clock: Unix time, in seconds.
        apart: Sites are kept by processes of their own, which outlive this one.
    """

    def __init__(self, root: Path, *, clock: Callable[[], float] = time.time, apart: bool = False) -> None:
        super().__init__(root, clock=clock)
        self._apart = apart
        self._desks: dict[str, Desk | Kept] = {}
        self._sites_said: dict[str, list[str]] = {}
        self._apps: dict[str, App] = {}
        self._kinds: dict[str, str] = {}  # of the profiles that were seen
        self.store = AppStore(self.folder.apps)
        self.inputs = Inputs(self.folder.inputs)
        self.tool_changes: deque[Change] = deque()  # what was edited by hand, until it is told
        self.tools = Tools(
            self.folder.tools,
            taken=lambda: app_names() | SCRIPTS.keys(),
            owner=self._owner.name,
            pins=lambda name, version: self.tool_seals.get((name, version)),
            told=self.tool_changes.append,
            clock=clock,
        )
        self._progress = Progress(self._workdir, clock)
        self._drawing: set[tuple[str, str, int]] = set()  # seeds of simulations that are being asked for
        self._late: list[tuple[Row, Result, float]] = []  # results that are not in the journal yet

    # -- asking -------------------------------------------------------------------------------

    def app(self, reference: str) -> App:
        """The app of a reference: a name, `NAME@VERSION`, the path of a script or contract, or a kept one.

        No code is imported for it but what is installed with hpcagent and its extensions.

        Raises:
            NotAllowed: There is none of that name, or of that version.
        """
        try:
            if reference.startswith(STORED):
                return self._may_still_run(self.store.app(reference))
            if reference in self._apps:
                return self._apps[reference]
            tool = self.tool_app(reference)
            if tool is not None:
                return tool
            if is_function(reference):
                raise BadInput(
                    f"the service imports no code: {reference!r} goes along with a call of ha.Workspace or of "
                    "`hpcagent workspace`, as it is where that is called."
                )
            found = find_app(reference)
        except HpcAgentError as error:
            raise NotAllowed(
                "contract",
                error.message,
                field="app",
                value=reference,
                do="`hpcagent workspace apps` lists those that you may use",
            ) from None
        if not Path(reference).expanduser().is_file():  # a file may be another one at the next call
            self._apps[reference] = found
        return found

    def _may_still_run(self, app: App) -> App:
        """A kept app, if it is no registered tool that has been rejected since, and no script that is off by now.

        Raises:
            BadInput: It is.
        """
        if app.name in SCRIPTS:
            script_app(app.name, self.rules)
        tool = tool_of(app)
        if tool is not None:
            name, version, sha256 = tool
            record, _ = self.tools.approved(f"{name}@{version}")
            if record.sha256 != sha256:
                raise BadInput(f"{name}@{version} is another text than was approved.", value=name)
        return app

    def referred(self, app: str | Mapping[str, Any]) -> str:
        """How the app of a call is called from now on; one that came along is kept.

        Raises:
            NotAllowed: What came along is no app.
        """
        try:
            if isinstance(app, Mapping):
                return self.store.put(app)
            if not isinstance(app, str):
                raise BadInput("an app is a name, or what ha.Workspace makes of an app of one's own.")
            # Kept as it was approved: whoever runs it compares the digest of the text.
            tool = self.tool_app(app)
            return app if tool is None else self.store.put(packed(tool))
        except BadInput as error:
            named = (
                {"value": app, "do": "`hpcagent tools list` says how each tool stands"}
                if isinstance(app, str)
                else {}
            )
            raise NotAllowed("contract", error.message, field="app", **named) from None

    def tool_app(self, reference: str) -> App | None:
        """The app of a registered tool, by `NAME` or `NAME@VERSION`; None: there is no tool of that name.

        Raises:
            BadInput: There is, and it may not run: it is not approved, or its files are others than were approved.
        """
        name, version = split_version(reference)
        if name in SCRIPTS:
            script = script_app(name, self.rules)
            if version not in ("", script.contract.version):
                raise BadInput(
                    f"{name} has version {script.contract.version} here, not {version}.", value=reference
                )
            return script
        if name in app_names() or not self.tools.has(name):
            return None
        record, path = self.tools.approved(reference)
        assert record.contract is not None  # of a text that was approved
        return app_of(record.contract, path, sha256=record.sha256, version=record.version, sandbox=record.sandbox)

    def request(
        self,
        caller: Caller,
        app: str,
        params: Mapping[str, Any],
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
        data_only: bool = False,
    ) -> tuple[App, Manifest, Request, list[Mapping[str, Any]]]:
        """What a call would run: checked by the contract, with what it takes at most.

        Raises:
            NotAllowed: Which field, which value, what is allowed.
        """
        found = self.app(app)
        try:
            params = as_texts(found, as_lines(found, params))
        except BadInput as error:
            raise NotAllowed("contract", error.message, field="params", do="correct it and ask again") from None
        if data_only:
            check_only_data(found, params, settings or {})
            refuse_files(found, params)
        asked_for = dict(resources or {}) | ({} if walltime_s is None else {"walltime_s": walltime_s})
        field = "resources" if resources else "walltime_s"
        try:
            found = found.with_resources(**asked_for) if asked_for else found
            field = "settings"
            found = configured(found, settings or {})
        except BadInput as error:
            raise NotAllowed("contract", error.message, field=field, value=error.details.get("value")) from None
        where = self._known_site(site or self.rules.default_site, site_kind)
        taken = [self._input(caller, found, i, one) for i, one in enumerate(inputs)]
        if not found.contract.takes(len(taken)):
            raise NotAllowed(
                "contract",
                f"{found.name} takes other input runs",
                field="inputs",
                value=list(inputs),
                allowed=", ".join(found.contract.inputs) or "none",
                do="name runs that have ended, by their ids" if found.contract.inputs else "leave inputs out",
            )
        values = {name: self._file_of(caller, value, field=name) for name, value in params.items()}
        self._refuse_absent(where, found, values)
        try:
            manifest = found.manifest(
                values,
                seed=seed,
                replicate=replicate,
                upstream=tuple(str(one["manifest"]["execution_id"]) for one in taken),
                requested_by=caller.name,
            )
        except BadInput as error:
            field = next((name for name in params if name in error.message), "")
            raise NotAllowed(
                "contract",
                error.message,
                field=field,
                value=params.get(field),
                do=_where_said(found),
            ) from None
        self._refuse_misfit(where, manifest.resources)
        nodes, limit_s = manifest.resources.nodes, manifest.resources.walltime_s
        most = None if limit_s is None else nodes * limit_s / 3600
        price = self.rules.price(where)
        expected_s, _ = self._expected(found.name, where, manifest.params, manifest.estimated_runtime_s or 0.0)
        share = self._share_of_node.get((where, found.name), 1.0)
        asked = Request(
            kind="run",
            app=found.name,
            version=found.contract.version,
            work=manifest.execution_id,
            params=dict(manifest.params),
            given={name: str(value) for name, value in params.items() if values[name] != value},
            site=where,
            nodes=nodes,
            node_hours=most,
            expected_node_hours=nodes * share * expected_s / 3600,
            expected_s=expected_s,
            usd=None if price is None or most is None else price * most,
            priced=price is not None,
            effects=effects_of(found.contract.side_effects),
            own=not is_ours(found) or bool(self._path_of(app)),
            sandbox=sandbox_of(found),
            why=why,
        )
        return found, manifest, asked, taken

    def _input(self, caller: Caller, app: App, place: int, identity: str) -> Mapping[str, Any]:
        row = self._row(caller, identity)
        names = app.contract.inputs
        wanted = names[min(place, len(names) - 1)] if names else "no input"
        if row.state != "completed" or row.result is None:
            raise NotAllowed(
                "contract",
                f"the run {identity} has not completed ({row.state})",
                field=wanted,
                value=identity,
                allowed="a completed run",
                do="wait for it, or name another",
            )
        return {**row.result, "manifest": row.manifest}

    def _file_of(self, caller: Caller, value: Any, *, field: str = "") -> Any:
        """A file of a run that is named `artifact:RUN/PATH`, as the path where it is kept; all else as it is."""
        if not (isinstance(value, str) and value.startswith(ARTIFACT)):
            return value
        folder, inside = self.artifact(caller, value)
        with self._turn:
            row = self._row(caller, value.removeprefix(ARTIFACT).partition("/")[0])
            refuse_unended(value, row, self._waiting_for(folder.name), field=field)
        return str(self.inputs.keep(folder, inside))

    def artifact(self, caller: Caller, text: str) -> tuple[Path, str]:
        """The folder of a file that is named `artifact:RUN/PATH`, and its path in it; see `folder_and_path`.

        Args:
            caller: Who asks.
            text: The name; PATH is as `artifacts` says it, also `inner/EXECUTION_ID/PATH`.

        Raises:
            BadInput: There is no such run that the caller may see, or PATH names no inner run of it.
        """
        identity, _, path = text.removeprefix(ARTIFACT).partition("/")
        with self._turn:
            row = self._row(caller, identity)
        return folder_and_path(self._workdir(row), row.result or {}, path)

    def _refuse_absent(self, site: str, app: App, values: Mapping[str, Any]) -> None:
        """Refuse a file that is not there, unless the site is another machine, which may have it.

        Raises:
            NotAllowed: Which parameter, and the path.
        """
        if find_profile(self._profile(site)).remote:
            return
        for name in app.settings.get("reads", ()):
            value = values.get(name)
            if not isinstance(value, str) or not value:
                continue
            if not Path(value).is_absolute() or not Path(value).is_file():
                raise NotAllowed(
                    "contract",
                    "there is no such file",
                    field=name,
                    value=value,
                    allowed="the absolute path of a file, or artifact:RUN/PATH, a file of a run",
                    do="correct the path, or make the file, and ask again; nothing was run",
                )

    def run(
        self,
        caller: Caller,
        app: str | Mapping[str, Any],
        params: Mapping[str, Any],
        *,
        label: str = "",
        cause: Sequence[str] = (),
        again: bool = False,
        anywhere: bool = False,
        **more: Any,
    ) -> dict[str, Any]:
        """Start a run, or find the one that did the same work; returns at once.

        Args:
            again: Do it once more where the same work has ended, as the next replicate.
            anywhere: What was done on another site, or with other nodes and ranks, will do, also for measured
                times and speeds.

        Raises:
            NotAllowed: The gate refuses it; nothing has run.
        """
        begun = self._begun_before()
        if begun is not None:
            return self._said(begun, found=False)
        with self.gate.recorded(caller, what="run"):
            self.gate.require(caller, "run")
            refuse_label(label)
            reference = self.referred(app)
            # Without the turn: modules, files and images may take long.
            found, manifest, asked, taken = self._settled(
                caller, reference, params, again=again, anywhere=anywhere, **more
            )
        with self._turn:
            known = self._same_work(manifest.execution_id)
            mine = [row for row in known if row.owner == caller.name and row.label == label]
            if mine:
                return self._said(mine[0], found=True)
            admission = self.gate.admit(asked, caller)
            identity = f"r-{secrets.token_urlsafe(12)}"
            row = self._begin(
                caller,
                admission,
                identity,
                app=found.name,
                reference=reference,
                manifest=manifest.model_dump(mode="json"),
                inputs=list(more.get("inputs", ())),
                settings=dict(more.get("settings") or {}),
                code=found.digest,
                tier=admission.tier,
                label=label,
                cause=list(cause),
                shares=known[0].id if known else "",
            )
            if known and known[0].over:
                self._share(row, known[0])
            elif not known:
                try:
                    self._send(row, found, manifest, taken)
                except (HpcAgentError, OSError) as error:
                    self._end(row, "failed", note=f"it could not be handed to its site: {plain(str(error))}")
            return self._said(row, found=False)

    def _begun_before(self) -> Row | None:
        """What the request of this thread has begun already, when the service ended before it could answer."""
        earlier = self.answered.earlier
        return None if earlier is None else self.rows[earlier["id"]]

    def _settled(
        self,
        caller: Caller,
        reference: str,
        params: Mapping[str, Any],
        *,
        again: bool = False,
        anywhere: bool = False,
        **more: Any,
    ) -> tuple[App, Manifest, Request, list[Mapping[str, Any]]]:
        """What a call would run, or have found: see `request`, with the replicate that it takes."""
        while True:
            found, manifest, asked, taken = self.request(caller, reference, params, **more)
            with self._turn:
                known = self._same_work(manifest.execution_id)
                ended = again and any(row.over for row in known)
                # Numbers are the same everywhere, speeds are not: those are of a site, nodes and ranks.
                timed = found.contract.timed and not anywhere
                site = asked.site if more.get("site") else ""
                here = [row for row in known if self._is_place(row, site, manifest)]
            if not (ended or (timed and known and not here)):
                return found, manifest, asked, taken
            more["replicate"] = manifest.replicate + 1

    def _is_place(self, row: Row, site: str, manifest: Manifest) -> bool:
        """Whether a run is, or was, done on this site (empty: any) with as many nodes, ranks, threads and GPUs."""
        done = self.rows.get(row.shares) or row
        return site in ("", done.site) and _occupied(done.manifest) == _occupied(manifest.model_dump(mode="json"))

    def _said(self, row: Row, *, found: bool) -> dict[str, Any]:
        """A run as a call returns it: with where the work is done, or was, and why nothing ran anew."""
        said = super()._said(row, found=found)
        if row.kind != "run":
            return said
        done = self.rows.get(row.shares) or row
        said |= {
            "site": done.site,
            "resources": _occupied(done.manifest),
            "replicate": int(done.manifest.get("replicate", 0)),
            "asked_at": done.asked_at,
            "ended_at": done.ended_at or None,
            "note": "",
        }
        if found or done is not row:
            size = ", ".join(f"{name} {n}" for name, n in said["resources"].items())
            state = "has ended" if done.over else "is under way"
            whose = "was asked for before" if found else "of somebody's"
            said["note"] = (
                f"the same work {whose} and {state} on {done.site} ({size}), replicate {said['replicate']}: "
                "nothing runs anew. again=true does it once more when it has ended, as the next replicate"
            )
        return said

    def _refuse_misfit(self, site: str, resources: Resources) -> None:
        """Refuse at once what no block of a site can ever hold.

        Raises:
            NotAllowed: What does not fit, with both numbers.
        """
        profile = find_profile(self._profile(site))
        try:
            if not profile.batch and not profile.remote and resources.nodes > 1:
                raise BadInput(f"a run of {resources.nodes} nodes does not fit: {site} is one node.")
            check(profile, executor_for(profile, resources), resources)
        except BadInput as error:
            several = [name for name in ("nodes", "ranks_per_node") if getattr(resources, name) > 1]
            raise NotAllowed(
                "contract",
                f"it can never run there: {error.message.rstrip('.')}",
                field="resources",
                value=_occupied({"resources": resources.model_dump(mode="json")}),
                allowed="what the site has" if not several else f"fewer {' or '.join(several)}, or a larger site",
                do="ask for less, or name another site; nothing was run",
            ) from None

    def invoke(
        self, caller: Caller, *, invocation: Mapping[str, Any], site: str = "", why: str = ""
    ) -> dict[str, Any]:
        """Start the run that an invocation writes down (see `ha.types.Invocation`), as it is written.

        Its budget bounds the run, its approval has to be one of this very request.

        Raises:
            NotAllowed: It was changed, is of another version or code, or the gate refuses it.
        """
        with self.gate.recorded(caller, what="invoke"):
            try:
                call = build(Invocation, dict(invocation), where="the invocation")
                app = self.app(f"{call.tool_name}@{call.tool_version}")
                manifest = call.manifest(app, allow_deprecated=True)
            except BadInput as error:
                raise NotAllowed("contract", error.message, field="invocation", do="write it anew") from None
            more: dict[str, Any] = {"seed": manifest.seed, "replicate": manifest.replicate}
            more["inputs"] = [self._run_of(caller, one) for one in manifest.upstream]
            more |= {"site": site, "why": why}
            if call.budget is not None:
                more["walltime_s"] = call.budget * 3600 / manifest.resources.nodes
            name = f"{call.tool_name}@{call.tool_version}"
            if call.approval:
                given = self.approvals.get(call.approval)
                asked = self.request(caller, name, manifest.params, **more)[2]
                if given.digest != asked.digest or given.asked_by != caller.name:
                    raise NotAllowed(
                        "approval",
                        f"the approval {call.approval} is of another request",
                        field="approval",
                        value=call.approval,
                        allowed="one of this very request, asked for by the same caller",
                        do="leave it out, and ask for one",
                    )
        return self.run(caller, name, manifest.params, anywhere=True, **more)

    def _run_of(self, caller: Caller, execution_id: str) -> str:
        """The run here that did a work which an invocation takes as input."""
        with self._turn:
            for row in self._same_work(execution_id):
                if row.state == "completed" and self.gate.sees(caller, row.owner):
                    return row.id
        raise NotAllowed(
            "contract",
            "no run of this workspace has done what it takes as input",
            field="inputs",
            value=execution_id,
            do="run that first",
        )

    def invocation(self, caller: Caller, identity: str) -> dict[str, Any]:
        """A run as an invocation: the same call, written once, with its approval."""
        with self._turn:
            row = self._row(caller, identity)
        if row.kind != "run":
            raise BadInput(f"{identity} is a campaign; an invocation is one run.", value=identity)
        manifest = Manifest.model_validate(row.manifest)
        kept = row.reference.startswith(STORED)  # also of a tool that may run no more
        contract = (self.store.app(row.reference) if kept else self.app(row.reference)).contract
        return Invocation.of(manifest, contract, approval=row.approval).model_dump(mode="json")

    def _path_of(self, reference: str) -> list[str]:
        """Folders of modules that an app brings along.

        Raises:
            BadInput: The kept app is damaged.
        """
        return list(self.store.record(reference)["path"]) if reference.startswith(STORED) else []

    def estimate(
        self, caller: Caller, app: str | Mapping[str, Any], params: Mapping[str, Any], **more: Any
    ) -> dict[str, Any]:
        """What a run would take, whether it was done before, and what the gate would say; nothing is run."""
        if not isinstance(app, str):
            self.gate.require(caller, "run")  # an app that comes along is kept
        found, manifest, asked, _ = self._settled(caller, self.referred(app), params, **more)
        with self._turn:
            why, refused = self.rules.approval_for(asked, caller), self.gate.refusal(asked, caller)
            known = [row for row in self._same_work(manifest.execution_id) if self.gate.sees(caller, row.owner)]
            typical, source = self._expected(
                found.name, asked.site, manifest.params, manifest.estimated_runtime_s or 0.0
            )
            return {
                "app": found.name,
                "version": found.contract.version,
                "site": asked.site,
                "digest": asked.digest,
                "wall_s": typical,
                "from": source,
                "node_hours": asked.expected_node_hours,
                "node_hours_at_most": asked.node_hours,
                "usd_at_most": asked.usd,
                "approval": why,
                "refused": None if refused is None else refused.plain(),
                "known": known[0].id if known else None,
            }

    def simulation_run(
        self,
        caller: Caller,
        *,
        name: str = "default_simulation",
        max_steps: int = 1000,
        seed: int | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Start the simulation that needs nothing (`oscillator`) under a name of one's own; returns at once.

        Without a seed one is drawn, and said: the same seed and parameters give the same result. The name is a
        label of the caller's; `run_id` is what is unique.

        Raises:
            NotAllowed: `max_steps`, the seed, the name or a parameter is not allowed.
        """
        with self.gate.recorded(caller, what="simulation_run"):
            if not isinstance(name, str) or not name.strip() or len(name) > 200 or not name.isprintable():
                raise NotAllowed("contract", "a name has 1 to 200 printable characters", field="name", value=name)
            most = self.app(SIMULATION).contract.space["max_steps"]
            if isinstance(max_steps, bool) or not isinstance(max_steps, int) or max_steps < 1:
                raise NotAllowed(
                    "contract",
                    "max_steps is a positive whole number",
                    field="max_steps",
                    value=max_steps,
                    allowed=most.range,
                )
            if params is not None and (not isinstance(params, Mapping) or "max_steps" in params):
                raise NotAllowed(
                    "contract",
                    "params is a table of the simulation's other parameters",
                    field="params",
                    value=params,
                    allowed=", ".join(n for n in self.app(SIMULATION).contract.space.names if n != "max_steps"),
                )
        values = {**(params or {}), "max_steps": max_steps}
        with self._drawn(caller, name, values) if seed is None else contextlib.nullcontext(seed) as taken:
            begun = self.run(caller, SIMULATION, values, seed=taken, label=name)
        return self.simulation_get_results(caller, name=begun["id"])

    @contextlib.contextmanager
    def _drawn(self, caller: Caller, name: str, values: Mapping[str, Any]) -> Iterator[int]:
        """A seed that no run of this name has: the same one until a run has it, as while a person is asked."""
        with self._turn:
            used = {row.manifest["seed"] for row in self._simulations(caller, name)}
            for n in itertools.count():
                text = canonical_json([self.rules.name, caller.name, name, dict(values), n])
                seed = int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) >> 1
                mine = (caller.name, name, seed)
                if seed not in used and mine not in self._drawing:
                    break
            self._drawing.add(mine)
        try:
            yield seed
        finally:
            with self._turn:
                self._drawing.discard(mine)

    def _simulations(self, caller: Caller, name: str) -> Iterator[Row]:
        """Simulations of that name that the caller has asked for, the newest first."""
        named = (self.rows[identity] for identity in reversed(self._newest))
        return (r for r in named if (r.kind, r.app, r.owner, r.label) == ("run", SIMULATION, caller.name, name))

    def simulation_get_results(self, caller: Caller, *, name: str) -> dict[str, Any]:
        """How a simulation stands, by its `run_id`, or the newest of the caller's by its name; reads only."""
        with self._turn:
            row = self.rows.get(name) or next(self._simulations(caller, name), None)
            if row is None or not self.gate.sees(caller, row.owner) or row.app != SIMULATION:
                raise NotThere(f"there is no simulation {name!r}; simulation_run starts one.", value=name)
            result = row.result or {}
            failure = result.get("failure") or {}
            failed = row.state in ("failed", "stopped", "cancelled")
            params = dict(row.manifest["params"])
            found = {
                "status": "error" if failed else "success",
                "run_id": row.id,
                "steps_completed": int(result.get("metrics", {}).get("steps_completed", 0)),
                "config": {
                    "name": row.label,
                    "max_steps": params.pop("max_steps"),
                    "seed": row.manifest["seed"],
                    "params": params,
                },
                "simulation_status": row.state,
                "results": {
                    n: {"value": v, "unit": result.get("units", {}).get(n, "1")}
                    for n, v in result.get("metrics", {}).items()
                },
            }
            return found | ({"error": failure.get("message") or row.note or row.state} if failed else {})

    def cancel(self, caller: Caller, identity: str) -> dict[str, Any]:
        """Keep a run from being done, or end it. Again: does nothing."""
        with self._turn:
            self.gate.require(caller, "run")
            row = self._row(caller, identity)
            if row.over:
                return self._said(row, found=True)
            if row.kind == "campaign":
                raise BadInput(f"{identity} is a campaign: stop it.", value=identity)
            shared = [o for o in self._same_work(row.execution_id) if o.id != row.id and not o.over]
            if shared:
                # Somebody else waits for the same work: it goes on for them, and on their account.
                self._hand_over(row, shared)
            self._end(row, "cancelled", note=f"cancelled by {caller.name}")
        # Without the turn: what the site says meanwhile needs it.
        how = "shared" if shared else self._desk(row).cancel(row.execution_id)
        words = {
            "waiting": "it had not begun",
            "ended": "its worker is ended",
            "left": "what has begun goes on to its end, and its result is not taken",
            "shared": "it goes on for others who have asked for the same work",
        }[how]
        return self._said(row, found=True) | {"how": words}

    def _hand_over(self, row: Row, others: Sequence[Row]) -> None:
        if row.shares:
            return
        first, *rest = others
        event = {"event": "paid_by", "id": first.id, "others": [one.id for one in rest], "at": self._clock()}
        self._write(event)
        self._replay(event)

    # -- sites --------------------------------------------------------------------------------

    def _known_site(self, site: str, kind: str = "") -> str:
        """The site, if it has a profile, of this kind where one is named.

        Raises:
            NotAllowed: It has none, or a wrong one.
        """
        if len(site) > LONGEST_SITE or not site.isprintable():
            words = f"a site's name has at most {LONGEST_SITE} printable characters"
            raise NotAllowed("contract", words, field="site", value=plain(site)[:80])
        profile = self._profile(site)
        try:
            if profile not in self._kinds:
                self._kinds[profile] = find_profile(profile).kind
        except BadInput as error:
            known = ", ".join(self.rules.sites)
            raise NotAllowed(
                "contract",
                error.message,
                field="site",
                value=site,
                allowed=known,
                do="name another site, or correct its profile",
            ) from None
        if kind and self._kinds[profile] != kind:
            raise NotAllowed(
                "contract",
                f"{site} is a site of the kind {self._kinds[profile]}",
                field="site",
                value=site,
                allowed=f"a site whose profile has kind = {kind}",
                do="name such a site, or start it without asking for that kind",
            )
        return site

    def _profile(self, site: str) -> str:
        rule = self.rules.sites.get(site)
        profile = rule.profile if rule is not None and rule.profile else site
        beside = self.folder.root / profile  # a file that is named relative to workspace.toml
        return str(beside) if beside.is_file() else profile

    def _desk(self, row: Row) -> Desk | Kept:
        """Where the runs of a site go; those with modules of their own have workers of their own."""
        site, path, key = row.site, [], ""
        if self._apart and row.reference.startswith(STORED):
            record = self.store.record(row.reference)
            path, key = record["path"], code_key(record)
        folder = self.folder.of_site(site, key)
        desk = self._desks.get(folder.name)
        if desk is None:
            profile = self._profile(site)
            said = self._sites_said.setdefault(site, [])

            def tell(news: str) -> None:
                said[:] = [*said[-19:], news]
                self.news.append(news)

            retries = self.rules.retries
            if self._apart:
                desk = Kept(profile, folder, retries=retries, tell=tell, path=path)
            else:
                desk = Desk(profile, folder, self.folder.work, retries=retries, tell=tell)
            self._desks[folder.name] = desk
        return desk

    def _send(self, row: Row, app: App, manifest: Manifest, taken: Sequence[Mapping[str, Any]]) -> None:
        def began() -> None:
            with self._turn:
                for one in self._waiting_for(manifest.execution_id):
                    if one.job != row.job:
                        continue
                    one.state = "running"
                    self._touch(one, self._clock())
                    self._tell("on_job_started", one.owner, job_facts(one), f"{one.id} started", one.cause)
                self._turn.notify_all()

        def ended(result: Result, lost_node_hours: float = 0.0) -> None:
            with self._turn:
                # Whoever asked for it first may have cancelled it since: then it is another's.
                waiting = [one for one in self._waiting_for(manifest.execution_id) if one.job == row.job]
                payer = next((one for one in waiting if not one.shares), row)
                self._late.append((payer, result, lost_node_hours))
                self._take_late()

        job = Job(app, manifest, taken, ended, began, row.owner, row.reference, row.settings, row.code)
        self._desk(row).add(job)

    def _take_late(self) -> None:
        """Record results; what a full disk does not take waits for `look`, and lies in the run's folder."""
        while self._late:
            try:
                self._result(*self._late[0])
            except StoreError as error:
                if not self.news or self.news[-1] != error.message:
                    self.news.append(error.message)
                return
            self._late.pop(0)

    def _result(self, row: Row, result: Result, lost_node_hours: float = 0.0) -> None:
        if self._closed:
            return
        fields = result.model_dump(mode="json", exclude={"manifest"})
        price = self.rules.price(row.site)
        hours = result.cost.node_hours + lost_node_hours
        lost = f"{lost_node_hours:.3g} node-hours went into attempts that the machine has lost"
        state = {"COMPLETED": "completed", "FAILED": "failed", "STOPPED": "stopped"}[result.status]
        if row.over:  # it was cancelled, and this is what it took until then
            took = {"event": "took", "id": row.id, "node_hours": hours, "usd": (price or 0.0) * hours}
            took["cost"] = fields["cost"]
            self._write(took)
            self._replay(took)
            return
        self._end(
            row,
            state,
            result=fields,
            node_hours=hours,
            usd=0.0 if price is None else price * hours,
            bytes=size_of(self._workdir(row)),
            note=lost if lost_node_hours else None,
        )
        for other in self._waiting_for(row.execution_id):
            if other.job == row.job:
                self._share(other, row)

    def _share(self, row: Row, with_: Row) -> None:
        self._end(row, with_.state, result=with_.result, note="the same work had been asked for before")

    def _found_ended(self, row: Row, manifest: Manifest) -> bool:
        """Take the result of a run that ended while there was no service, if it did."""
        done, _ = final_result(self._workdir(row))
        if done is None or changed_files(done.get("files") or {}):
            return False
        try:
            result = Result.model_validate({"manifest": manifest} | done)
        except ValidationError:
            return False
        self._result(row, result)
        return True

    # -- what is seen -------------------------------------------------------------------------

    def status(self, caller: Caller, identity: str, *, lines: int = 40) -> dict[str, Any]:
        """State, progress, metrics with units and errors, failure, cost, the last lines of the log of a run."""
        with self._turn:
            row = self._row_or_work(caller, identity)
            result = row.result or {}
            found = row.brief() | {
                "changed_at": row.changed_at,
                "params": row.params,
                "version": row.request.get("version", ""),
                "execution_id": row.execution_id,
                "metrics": result.get("metrics", {}),
                "units": result.get("units", {}),
                "uncertainty": result.get("uncertainty", {}),
                "failure": result.get("failure"),
                "cost": result.get("cost") or dict(row.took) or None,
                "estimated_node_hours": row.request.get("expected_node_hours"),
                "notes": [*result.get("notes", ()), *([row.note] if row.note else []), *self._site_news(row)],
                "approval": row.approval or None,
                "level_of_theory": result.get("level_of_theory", {}),
                "rc": exit_code(row),
                "workdir": str(self._workdir(row)),
            }
        if row.kind == "campaign" and not row.over:
            with contextlib.suppress(OSError):
                seen = (self._workdir(row) / "events.jsonl").stat().st_mtime
                found["changed_at"] = max(row.changed_at, seen)
        found["artifacts"] = shown_artifacts(self._workdir(row), result)
        found["progress"] = self._progress.of(row)
        if lines:
            found["log_tail"] = tail_of(self._workdir(row), lines)
        return found

    def _site_news(self, row: Row) -> list[str]:
        """Why a run waits, where its site has said something."""
        return [] if row.over or row.kind != "run" else self._sites_said.get(row.site, [])[-1:]

    def wait(self, caller: Caller, identity: str, timeout_s: float) -> dict[str, Any]:
        """Its status once it has ended, or after `timeout_s`."""
        until = time.monotonic() + timeout_s
        with self._turn:
            row = self._row(caller, identity)
            while not row.over and not self._closed:
                left = until - time.monotonic()
                if left <= 0 or not self._turn.wait(left):
                    break
        return self.status(caller, identity, lines=0)

    def listed(
        self, caller: Caller, *, state: str = "", app: str = "", after: str = "", most: int = 100
    ) -> dict[str, Any]:
        """Runs that the caller may see, the newest first, a page at a time."""
        if not 1 <= most <= LIST_MOST:
            raise BadInput(f"most={most} must be 1 to {LIST_MOST}.", value=most)
        with self._turn:
            found: list[dict[str, Any]] = []
            skipping = bool(after)
            if skipping:
                self._row(caller, after)
            more = False
            for identity in reversed(self._newest):
                row = self.rows[identity]
                if skipping:
                    skipping = identity != after
                    continue
                if not self.gate.sees(caller, row.owner):
                    continue
                if (state and row.state != state) or (app and row.app != app):
                    continue
                if len(found) == most:
                    more = True
                    break
                found.append(row.brief())
            return {"runs": found, "after": found[-1]["id"] if more else None}

    def artifacts(self, caller: Caller, identity: str) -> list[dict[str, Any]]:
        """Files of a run: path, size in bytes; of a chain's inner runs as `inner/EXECUTION_ID/PATH`."""
        with self._turn:
            row = self._row_or_work(caller, identity)
        return all_files(self._workdir(row), row.result or {})

    def fetch(
        self, caller: Caller, identity: str, path: str, *, offset: int = 0, length: int = 1 << 20
    ) -> dict[str, Any]:
        """A piece of a run's file."""
        with self._turn:
            row = self._row_or_work(caller, identity)
        folder, inside = folder_and_path(self._workdir(row), row.result or {}, path)
        return read_piece(folder, inside, offset, length) | {"path": path}


def _occupied(manifest: Mapping[str, Any]) -> dict[str, int]:
    """What a run occupies that its speed depends on."""
    asked = manifest.get("resources") or {}
    names = {"nodes": 1, "ranks_per_node": 1, "threads_per_rank": 1, "gpus_per_node": 0}
    return {name: int(asked.get(name) or least) for name, least in names.items()}


def sandbox_of(app: App) -> Tier:
    """The tier that every run of an app has at least; `none` without a sandbox."""
    asked = app.settings.get("sandbox")
    found: Tier = asked["require"] if isinstance(asked, Mapping) else "none"
    return found


def is_ours(app: App) -> bool:
    """Whether the library brings the app and all that it runs: settings that are code make it somebody's own."""
    try:
        known = packaged(app.name)
    except BadInput:
        return False
    if known is None or (known.source, known.function) != (app.source, app.function) or app.made_of:
        return False
    if known.contract.version != app.contract.version or known.code_digest != app.code_digest:
        return False
    differ = {n for n in {*known.settings, *app.settings} if known.settings.get(n) != app.settings.get(n)}
    return not differ & CODE and (known.function != LAMMPS or differ <= {MODE, "sandbox"})


def is_function(reference: str) -> bool:
    """Whether a reference names a function of somebody's own."""
    module, colon, _ = reference.partition(":")
    return bool(colon) and not module.startswith("hpcagent.") and not Path(reference).expanduser().is_file()


def _where_said(app: App) -> str:
    """What shows the parameters of an app; a registered tool is shown by another command than an app."""
    if app.name in SCRIPTS:
        return f"the parameters of {app.name} are {', '.join(app.contract.space.names)}"
    command = "tools show" if tool_of(app) is not None else "apps"
    return f"`hpcagent {command} {app.name}` has names, units and bounds"


def refuse_files(app: App, params: Mapping[str, Any]) -> None:
    """No text of an app that the library brings is a file: what a run has written is none of its words.

    Raises:
        NotAllowed: One names a file of a run.
    """
    for name, value in params.items():
        if isinstance(value, str) and value.startswith(ARTIFACT) and is_ours(app):
            raise NotAllowed(
                "contract",
                f"{name} of {app.name} takes no file",
                field=name,
                value=value,
                allowed="what its contract says; runs whose results it takes are named by inputs",
                do="correct it and ask again; nothing was run",
            )


def refuse_label(label: str, *, field: str = "label") -> None:
    """Refuse what is no label, or has a credential in it.

    Raises:
        NotAllowed: It is none.
    """
    if not isinstance(label, str) or len(label) > 200 or (label and not label.isprintable()) or secret_in(label):
        raise NotAllowed(
            "contract",
            f"a {field} has at most 200 printable characters, and no credential in it",
            field=field,
            value=unsecret(plain(str(label)[:200])),
            do="give another one",
        )


def size_of(folder: Path) -> int:
    """Bytes of all files of a run."""
    return sum(int(one["bytes"]) for one in list_files(folder))
