"""Single runs of a workspace, behind the gate: what a call would run, and the run that it starts or finds."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from hpcagent.apps.base import App
from hpcagent.apps.invocation import Invocation
from hpcagent.catalog import app_names
from hpcagent.errors import BadInput, HpcAgentError, StoreError
from hpcagent.gate.not_allowed import NotAllowed
from hpcagent.gate.request import Request, effects_of
from hpcagent.gate.rules import Caller
from hpcagent.model.base import build
from hpcagent.model.contract import Resources
from hpcagent.model.records import Manifest
from hpcagent.registry.scripts import SCRIPTS
from hpcagent.registry.store import Change, Tools
from hpcagent.shown import plain
from hpcagent.sites.profile import Profile
from hpcagent.workspace.app_store import STORED
from hpcagent.workspace.checked import as_asked, manifest_of, params_of, refuse_inputs, refuse_label
from hpcagent.workspace.inner import ARTIFACT
from hpcagent.workspace.inputs import Inputs, refuse_unended
from hpcagent.workspace.looking import Looking
from hpcagent.workspace.references import References, runtime_is_stated, sandbox_of, version_of
from hpcagent.workspace.rows import Row, occupied
from hpcagent.workspace.took import AppVersion

__all__ = ["Runs"]

Asked: TypeAlias = tuple[App, Manifest, Request, list[Mapping[str, Any]], str]
"""The app, what would run, what the gate is asked, the results that it takes as inputs, and the app's digest."""


class Runs(Looking):
    """Single runs, behind the gate. Arguments as `Sending`."""

    def __init__(self, root: Path, *, clock: Callable[[], float] = time.time, apart: bool = False) -> None:
        super().__init__(root, clock=clock, apart=apart)
        self.inputs = Inputs(self.folder.inputs)
        self._being_kept: Counter[str] = Counter()  # files that are being taken to it at this moment
        self.tool_changes: deque[Change] = deque()  # what was edited by hand, until it is told
        self.tools = Tools(
            self.folder.tools,
            taken=lambda: app_names() | SCRIPTS.keys() | self.added.here.keys(),
            owner=self._owner.name,
            pins=lambda name, version: self.tool_seals.get((name, version)),
            told=self.tool_changes.append,
            clock=clock,
        )
        self.references = References(
            self.store, self.tools, self.added, self.folder.added / "files", lambda: self.rules
        )
        self.experience.is_offered = self.references.offers

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
    ) -> Asked:
        """What a call would run: checked by the contract, with what it takes at most.

        Raises:
            NotAllowed: Which field, which value, what is allowed.
        """
        found = self.references.app(app)
        params = params_of(found, params, settings or {}, data_only=data_only)
        found = as_asked(found, settings or {}, resources or {}, walltime_s)
        where = site or self.rules.default_site
        profile = self.sites.known(where, site_kind)
        taken = [self._input(caller, found, i, one) for i, one in enumerate(inputs)]
        refuse_inputs(found, inputs)
        values = {name: self._file_of(caller, value, field=name) for name, value in params.items()}
        self.sites.refuse_absent(profile, found, values)
        upstream = tuple(str(one["manifest"]["execution_id"]) for one in taken)
        digest = found.digest
        manifest = manifest_of(
            found,
            values,
            params,
            seed=seed,
            replicate=replicate,
            upstream=upstream,
            requested_by=caller.name,
            digest=digest,
        )
        self.sites.refuse_misfit(where, profile, manifest.resources)
        given = {name: str(value) for name, value in params.items() if values[name] != value}
        own = self.references.brings_code(found, app)
        by_cores = self.sites.share_of_node(profile, found, manifest.resources)
        asked = self._asked_for(
            found, manifest, where, by_cores=by_cores, given=given, own=own, why=why, digest=digest
        )
        return found, manifest, asked, taken, digest

    def _charged_share(self, app: App, site: str, profile: Profile, resources: Resources) -> float:
        """Which share of its nodes a run will be charged for: by its cores, else as its app was before."""
        by_cores = self.sites.share_of_node(profile, app, resources)
        return self.experience.share_of_node(site, version_of(app)) if by_cores is None else by_cores

    def _asked_for(
        self,
        app: App,
        manifest: Manifest,
        site: str,
        *,
        by_cores: float | None,
        given: Mapping[str, str],
        own: bool,
        why: str,
        digest: str,
    ) -> Request:
        """What the gate is asked: a run with what it takes at most, and what it is expected to take.

        Where its share of a node is not known (`by_cores`), whole nodes may be charged; earlier runs tell what is
        expected.
        """
        nodes, limit_s = manifest.resources.nodes, manifest.resources.walltime_s
        of = version_of(app, own=own, digest=digest)
        at_most = 1.0 if by_cores is None else by_cores
        share = self.experience.share_of_node(site, of) if by_cores is None else by_cores
        most = None if limit_s is None else nodes * limit_s / 3600
        price = self.rules.price(site)
        units = {p.name: p.unit for p in app.contract.space.parameters if p.kind in ("float", "int")}
        expected_s, _ = self._expected(of, app, site, manifest.params, limit_s)
        return Request(
            kind="run",
            app=app.name,
            version=app.contract.version,
            work=manifest.execution_id,
            params=dict(manifest.params),
            given=dict(given),
            units={n: unit for n, unit in units.items() if n in manifest.params},
            site=site,
            nodes=nodes,
            node_hours=most,
            share=at_most,
            expected_node_hours=nodes * share * expected_s / 3600,
            expected_s=expected_s,
            usd=None if price is None or most is None else price * at_most * most,
            priced=price is not None,
            effects=effects_of(app.contract.side_effects),
            own=own,
            sandbox=sandbox_of(app),
            why=why,
        )

    def _expected(
        self,
        of: AppVersion,
        app: App,
        site: str,
        params: Mapping[str, Any],
        limit_s: float | None,
        *,
        caller: Caller | None = None,
    ) -> tuple[float, str]:
        """What a run takes, in seconds, and what that is from; never more than its walltime."""
        seconds, source = self.experience.expected(
            of,
            site,
            params,
            app.contract.estimated_runtime_s,
            stated=runtime_is_stated(app),
            caller=caller,
        )
        if limit_s is None or seconds <= limit_s:
            return seconds, source
        return limit_s, f"its walltime; {source} would be {seconds:.3g} s"

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
        return str(self.inputs.keep(folder, inside, partial(self._room, caller)))

    @contextlib.contextmanager
    def _room(self, caller: Caller, path: str, size: int) -> Iterator[None]:
        """Count a file that is about to be kept, on the caller's account; one that somebody has brought is theirs.

        Raises:
            NotAllowed: It is more than a quota allows.
        """
        with self._turn:
            new = path not in self.kept_files
            if new:
                self.gate.check_file(caller, path.rpartition("/")[2], size)
                # First the line: killed behind it, the next service sees that there is no such file.
                self._files_kept(caller.name, {path: size})
            self._being_kept[path] += 1
        try:
            yield
        finally:
            with self._turn:
                self._being_kept[path] -= 1
                there = self._being_kept[path] > 0 or (self.folder.inputs / path).exists()
                self._being_kept += Counter()  # without those that are 0
                if not there and path in self.kept_files:
                    with contextlib.suppress(StoreError):  # it is counted anew within an hour
                        self._files_gone([path])

    def _files_kept(self, by: str, files: Mapping[str, int]) -> None:
        self._take_down({"event": "inputs_kept", "by": by, "files": files, "at": self._clock()})

    def _files_gone(self, files: Sequence[str]) -> None:
        self._take_down({"event": "inputs_removed", "files": files, "at": self._clock()})

    def count_inputs(self) -> None:
        """Have the journal say what is kept for runs to read: what was removed, and what takes another room now.

        A large file is a second name of the run's own, and takes no room until the run's folder is removed. What
        nobody is known to have brought, as a version before files counted has left it, is the workspace's.
        """
        taken = {path.partition("/")[0] for path in self._being_kept}  # at this moment
        there = {path: n for path, n in self.inputs.sizes().items() if path.partition("/")[0] not in taken}
        known = {path: n for path, (_, n) in self.kept_files.items() if path.partition("/")[0] not in taken}
        gone = sorted(known.keys() - there.keys())
        other = {path: n for path, n in there.items() if known.get(path) != n}
        if gone:
            self._files_gone(gone)
        if other:
            self._files_kept("", other)

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
            reference = self.references.of(app)
            # Without the turn: modules, files and images may take long.
            found, manifest, asked, taken, digest = self._settled(
                caller, reference, params, again=again, anywhere=anywhere, **more
            )
        with self._turn:
            known = self._same_work(manifest.execution_id)
            mine = [row for row in known if row.owner == caller.name and row.label == label]
            if mine:
                return self._said(mine[0], found=True)
            admission = self.gate.admit(asked, caller, takes=not known)
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
                code=digest,
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
    ) -> Asked:
        """What a call would run, or have found: see `request`, with the replicate that it takes."""
        while True:
            found, manifest, asked, taken, digest = self.request(caller, reference, params, **more)
            with self._turn:
                known = self._same_work(manifest.execution_id)
                if not known:
                    return found, manifest, asked, taken, digest
                ended = again and any(row.over for row in known)
                # Numbers are the same everywhere, speeds are not: those are of a site, nodes and ranks.
                timed = found.contract.timed and not anywhere
                site = asked.site if more.get("site") else ""
                here = [row for row in known if self._is_place(row, site, manifest)]
            if not (ended or (timed and not here)):
                return found, manifest, asked, taken, digest
            more["replicate"] = manifest.replicate + 1

    def _is_place(self, row: Row, site: str, manifest: Manifest) -> bool:
        """Whether a run is, or was, done on this site (empty: any) with as many nodes, ranks, threads and GPUs."""
        done = self.rows.get(row.shares) or row
        return site in ("", done.site) and occupied(done.manifest) == occupied(manifest.model_dump(mode="json"))

    def _said(self, row: Row, *, found: bool) -> dict[str, Any]:
        """A run as a call returns it: with where the work is done, or was, and why nothing ran anew."""
        said = super()._said(row, found=found)
        if row.kind != "run":
            return said
        done = self.rows.get(row.shares) or row
        said |= {
            "site": done.site,
            "resources": occupied(done.manifest),
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
                app = self.references.app(f"{call.tool_name}@{call.tool_version}")
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
        contract = (self.store.app(row.reference) if kept else self.references.app(row.reference)).contract
        return Invocation.of(manifest, contract, approval=row.approval).model_dump(mode="json")

    def estimate(
        self, caller: Caller, app: str | Mapping[str, Any], params: Mapping[str, Any], **more: Any
    ) -> dict[str, Any]:
        """What a run would take, whether it was done before, and what the gate would say; nothing is run."""
        if not isinstance(app, str):
            self.gate.require(caller, "run")  # an app that comes along is kept
        found, manifest, asked, _, digest = self._settled(caller, self.references.of(app), params, **more)
        of = version_of(found, own=asked.own, digest=digest)
        with self._turn:
            why, refused = self.rules.approval_for(asked, caller), self.gate.refusal(asked, caller)
            known = [row for row in self._same_work(manifest.execution_id) if self.gate.sees(caller, row.owner)]
            typical, source = self._expected(
                of, found, asked.site, manifest.params, manifest.resources.walltime_s, caller=caller
            )
            return {
                "app": found.name,
                "version": found.contract.version,
                "site": asked.site,
                "digest": asked.digest,
                "wall_s": typical,
                "from": source,
                "node_hours": asked.expected_node_hours,
                "node_hours_at_most": asked.charged_node_hours,
                "usd_at_most": asked.usd,
                "approval": why,
                "refused": None if refused is None else refused.plain(),
                "known": known[0].id if known else None,
            }
