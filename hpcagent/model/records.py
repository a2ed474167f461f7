"""What was asked (Manifest) and what came back (Result)."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha1
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import NAMESPACE_URL, UUID, uuid5

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from hpcagent.errors import BadInput, in_brief
from hpcagent.html import Card, Displayed, Rows
from hpcagent.model.base import Record, Scalar, canonical_json, with_shared_names
from hpcagent.model.contract import Resources
from hpcagent.model.failures import FailureKind, Meaning, RunStates, meaning
from hpcagent.model.parameter import Params
from hpcagent.model.remote import FarFile, FarPath, Remote
from hpcagent.model.repairs import Repair
from hpcagent.model.texts import Shown

__all__ = [
    "Cost",
    "Failure",
    "FailureKind",
    "InnerRun",
    "Manifest",
    "Observation",
    "Remote",
    "Result",
    "Role",
    "Side",
    "Status",
    "StopReason",
    "Stopped",
    "params_text",
]

Status = Literal["COMPLETED", "FAILED", "STOPPED"]
Role = Literal[
    "suggested", "enqueued", "reference", "replicate", "repeat", "told", "direct", "part", "earlier", "extended"
]
Side = Literal["above", "below"]
StopReason = Literal["blown_up", "limit", "cannot_win"]
Taken = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]

NAMESPACE: UUID = uuid5(NAMESPACE_URL, "https://hpcagent.example/execution")
_NAMESPACE = NAMESPACE.bytes


def uuid5_text(name: str) -> str:
    """The UUID5 of a name in `NAMESPACE`, as text: a journal is checked by one for each run.

    Example:
        >>> uuid5_text("a run") == str(uuid5(NAMESPACE, "a run"))
        True
    """
    h = sha1(_NAMESPACE + name.encode(), usedforsecurity=False).hexdigest()
    variant = "89ab"[int(h[16], 16) & 3]  # it and the version, 5: RFC 4122, section 4.3
    return f"{h[:8]}-{h[8:12]}-5{h[13:16]}-{variant}{h[17:20]}-{h[20:32]}"


def params_text(params: Params) -> str:
    """Parameters on one line, numbers in brief.

    Example:
        >>> params_text({"x": 0.123456, "style": "opt"})
        'x = 0.1235, style = opt'
    """
    return ", ".join(f"{n} = {f'{v:.4g}' if isinstance(v, float) else v}" for n, v in params.items())


LARGEST_WHOLE = 2**63 - 1
"""The largest seed and replicate: tables hold whole numbers of 64 bits."""


def checked_counter(name: str, value: object, *, least: int = 0) -> int:
    """A seed or a replicate that a run's record can hold.

    Raises:
        BadInput: It is no whole number, or too large or small.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= LARGEST_WHOLE:
        raise BadInput(
            f"{name}={in_brief(value)} must be a whole number, {least} to {LARGEST_WHOLE} (2**63 - 1).",
            value=value,
        )
    return int(value)


@with_shared_names
class Manifest(Displayed, Record):
    """One run as it was asked for; written before it is submitted, never changed.

    Attributes:
        execution_id: Derived from everything that decides the result: same work, same id.
        app: The app's name.
        app_version: Its semantic version.
        input_digest: SHA-256 of the app's input files and settings, and of the files by which its engine computes.
        params: All parameters, in the units of the app's contract.
        seed: Random seed handed to the app.
        replicate: 0, or a counter for deliberate repetitions of the same parameters.
        upstream: Execution ids of the results it takes as input.
        role: Why it runs: suggested by the policy, enqueued by somebody, reference point, replicate, repeat of a
            distrusted run, called by hand, part of a chain; `extended`: it goes on from the end of another run; or
            `told`: measured elsewhere, at a point that nobody suggested.
        batch: Batch number in the campaign, from 0.
        index: Position in the campaign, from 0.
        resources: What it occupies.
        estimated_runtime_s: Expected wall time, in seconds: from the runs before it, at first from the contract.
        estimated_node_hours: Expected node-hours, likewise; None where nobody forecast them.
        estimated_node_hours_high: Node-hours that 95 % of such runs were forecast to stay below.
        requested_by: Who asked (policy name, user).
        priority: Smaller runs earlier.
        created_at: Unix time, in seconds.
        origin: Where a result comes from that was told and not run here; empty for a run.
        extends: Execution id of the run from whose end it goes on; its result takes that one's place.
        times: How many times as long as an ordinary run at these parameters it is in all, what it extends
            included.
    """

    execution_id: str
    app: str
    app_version: str
    input_digest: str = ""
    params: Params = Field(default_factory=dict)
    seed: int = Field(default=0, ge=-LARGEST_WHOLE, le=LARGEST_WHOLE)
    replicate: int = Field(default=0, ge=0, le=LARGEST_WHOLE)
    upstream: tuple[str, ...] = ()
    role: Role = "suggested"
    batch: int = 0
    index: int = 0
    resources: Resources = Resources()
    estimated_runtime_s: float | None = None
    estimated_node_hours: float | None = None
    estimated_node_hours_high: float | None = None
    requested_by: str = ""
    priority: int = 0
    created_at: float = 0.0
    origin: Shown = ""
    extends: str = ""
    times: float = Field(default=1.0, ge=1.0, allow_inf_nan=False)

    @model_serializer(mode="wrap")
    def _written(self, plainly: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without what says nothing: the files of runs that extend no other stay as they were."""
        fields: dict[str, Any] = plainly(self)
        if not self.extends:
            fields.pop("extends", None)
            fields.pop("times", None)
        return fields

    def _card(self) -> Card:
        point = params_text(self.params)
        facts = [
            ("app", f"{self.app} {self.app_version}"),
            ("parameters", point),
            ("role", self.role),
            ("batch", self.batch),
            ("seed", f"{self.seed}, replicate {self.replicate}" if self.replicate else self.seed),
            ("asked by", self.requested_by),
            ("goes on from", f"{self.extends}, to {self.times:g} times an ordinary run" if self.extends else ""),
            ("execution id", self.execution_id),
        ]
        return Card("Manifest", f"run {self.index} of {self.app}", facts, brief=f"{self.role}; {point}")

    @staticmethod
    def identify(
        *,
        app: str,
        app_version: str,
        input_digest: str,
        params: dict[str, Scalar],
        seed: int,
        replicate: int,
        upstream: tuple[str, ...] = (),
        extends: str = "",
        times: float = 1.0,
    ) -> str:
        """The execution id: a UUID5 of the canonical JSON of what decides the result."""
        deciding = [app, app_version, input_digest, params, seed, replicate, list(upstream)]
        if extends:
            deciding.append({"extends": extends, "times": float(times)})
        return uuid5_text(canonical_json(deciding))

    @property
    def by_policy(self) -> bool:
        """Whether the policy asked for it: a suggestion, or that a run goes on."""
        return self.role == "suggested" or (self.role == "extended" and self.requested_by != "user")

    @property
    def identity(self) -> str:
        """The execution id that what stands here has: another than `execution_id` means that it was changed."""
        return self.identify(
            app=self.app,
            app_version=self.app_version,
            input_digest=self.input_digest,
            params=self.params,
            seed=self.seed,
            replicate=self.replicate,
            upstream=self.upstream,
            extends=self.extends,
            times=self.times,
        )


class Failure(Record):
    """Why a run has no result.

    Attributes:
        kind: Who is at fault: `simulation`, `contract`, `infrastructure` or `cancelled`; see `model.failures`.
        name: Typed name, e.g. `LostAtoms`.
        message: A full sentence.
        log_tail: Last lines of the program's output.
        repair: What would probably help, in words.
    """

    kind: FailureKind
    name: Shown
    message: Shown
    log_tail: Shown = ""
    repair: Shown | None = None

    @property
    def means(self) -> Meaning:
        """What it means: whether it is final, shown to the policy, tried again, charged to the run."""
        return meaning(self.kind, self.name, self.repair)


class Cost(Record):
    """What a run took.

    Attributes:
        wall_s: Wall time on the worker, in seconds.
        cpu_s: CPU time of the run and its children, in seconds.
        core_hours: Cores held x wall time.
        node_hours: Nodes held (or the share of one) x wall time.
    """

    wall_s: Taken = 0.0
    cpu_s: Taken | None = None
    core_hours: Taken = 0.0
    node_hours: Taken = 0.0


class InnerRun(Record):
    """A run that a chain was made of; its own record is in its own directory.

    Attributes:
        execution_id: Its own.
        app: Its app.
        status: How it ended.
        shared: Whether it was run for another chain, or another campaign, and only used here.
        node_hours: What it cost this chain: 0 if shared.
    """

    execution_id: str
    app: str
    status: Status
    shared: bool = False
    node_hours: Taken = 0.0


class Stopped(Record):
    """Why a campaign's guard has ended a run early.

    Attributes:
        reason: `limit`: the finished run would break a limit; `cannot_win`: it would not be better than the best
            so far; `blown_up`: its numbers are beyond sense.
        sentence: The same in words, with the numbers.
        share: Which part of the run was done, 0 to 1.
        saved_node_seconds: What the rest would have taken, by the time that the part took.
        metric: The metric that decided; empty where none did.
        threshold: The value of it on whose far side the finished run would be, in its unit: the limit, or the best
            so far. `Result.bounds` says which side.
    """

    reason: StopReason
    sentence: Shown
    share: float = Field(ge=0.0, le=1.0)
    saved_node_seconds: float = Field(default=0.0, ge=0.0, allow_inf_nan=False)
    metric: Shown = ""
    threshold: float | None = Field(default=None, allow_inf_nan=False)


@with_shared_names
class Result(Displayed, Record):
    """What came back from one run.

    Attributes:
        manifest: What was asked.
        status: How its last attempt ended: COMPLETED, FAILED, or STOPPED on purpose. See also `state`.
        metrics: Finite numbers in the units of the contract; of a run that was stopped early those so far.
        units: Unit of each metric.
        uncertainty: Standard error of a metric, in its unit, where the run itself tells.
        bounds: Metrics of a run that was stopped early: the finished run's value would lie `above` or `below` the
            threshold of `stopped`, or without one the value given.
        failure: Why there are no metrics, when not COMPLETED.
        stopped: Why the campaign's guard has ended it early, or None.
        started_at: Unix time, in seconds.
        ended_at: Unix time, in seconds.
        host: Where it ran.
        site: Name of the site it ran on; empty in records that are older than this field.
        cost: What it took.
        artifacts: Name -> file, relative to `workdir`.
        workdir: The run's own directory here. Of a run on an endpoint it is made when a file is fetched.
        notes: Remarks worth reading.
        distrusted: Why the measured times of this run should not be believed, or None.
        attempt: 1, or more after infrastructure failures.
        parts: The runs it was made of, for a chain; its cost is the sum of those that were run for it.
        files: Files whose content decides the metrics (pseudopotentials, PAW setups, models): path -> SHA-256.
        versions: What has computed: name of the program or Python distribution -> version.
        level_of_theory: What an engine really computed with, defaults resolved (functional, basis set, charge,
            k-points, cutoff ...): name -> value with its unit; of a chain what its runs had, where they differ
            beside each other.
        repairs: What was changed between its tries, by the campaign's `[repairs]`; empty where nothing was.
        remote: Where its files lie, if it was run on an endpoint; `hpcagent fetch` brings them here.
        mode: How a LAMMPS run was asked to be started: `executable`, `library`, `ensemble`, `auto`; empty for
            others and in records that are older than this field.
        extendable_s: Wall seconds that an ordinary run's length more would take from its end; None where it cannot
            go on.
        ends_with: Files that a longer run goes on from, as they were when it ended: path in its directory -> bytes
            and SHA-256. Of LAMMPS: restart file and logs. Empty where there are none, and in records from before
            this field.
    """

    manifest: Manifest
    status: Status
    metrics: dict[str, float] = Field(default_factory=dict)
    units: dict[str, str] = Field(default_factory=dict)
    uncertainty: dict[str, float] = Field(default_factory=dict)
    bounds: dict[str, Side] = Field(default_factory=dict)
    failure: Failure | None = None
    stopped: Stopped | None = None
    started_at: float = 0.0
    ended_at: float = 0.0
    host: Shown = ""
    site: Shown = ""
    cost: Cost = Cost()
    artifacts: dict[str, str] = Field(default_factory=dict)
    workdir: str = ""
    notes: tuple[Shown, ...] = ()
    distrusted: Shown | None = None
    attempt: int = 1
    parts: tuple[InnerRun, ...] = ()
    files: dict[str, str] = Field(default_factory=dict)
    versions: dict[str, str] = Field(default_factory=dict)
    level_of_theory: dict[str, str] = Field(default_factory=dict)
    repairs: tuple[Repair, ...] = ()
    remote: Remote | None = None
    mode: str = ""
    extendable_s: float | None = Field(default=None, ge=0.0, allow_inf_nan=False)
    ends_with: dict[FarPath, FarFile] = Field(default_factory=dict)

    def _card(self) -> Card:
        m, failure = self.manifest, self.failure
        why = "" if failure is None else f"{failure.name}: {failure.message}"
        if failure is None and self.stopped is not None:
            why = self.stopped.sentence
        point = params_text(m.params)
        numbers = ", ".join(f"{n} = {v:.4g}" for n, v in self.metrics.items())
        facts = [
            ("state", self.state),
            ("why", why),
            ("what may help", "" if failure is None else failure.repair or ""),
            ("parameters", point),
            ("not to be believed", self.distrusted or ""),
            ("notes", "\n".join(self.notes)),
            ("repaired", "\n".join(f"{r.repair} after {r.failure}: {r.changed}" for r in self.repairs)),
            ("took", f"{self.cost.wall_s:.3g} s on {self.host or 'an unnamed host'}"),
            ("site", self.site),
            ("computed with", ", ".join(f"{n} {v}" for n, v in self.level_of_theory.items())),
            ("made of", f"{len(self.parts)} inner runs" if self.parts else ""),
            ("files in", self.workdir if self.remote is None else f"{self.remote} ({self.remote.brief})"),
            ("fetched to", "" if self.remote is None else self.workdir),
            ("execution id", m.execution_id),
        ]
        rows = [
            [n, f"{v:.6g}", f"{self.uncertainty[n]:.2g}" if n in self.uncertainty else "", self._unit(n)]
            for n, v in self.metrics.items()
        ]
        table = (Rows("", ["metric", "value", "standard error", "unit"], rows),) if rows else ()
        brief = f"{self.state}; {point}; {why or numbers}"
        return Card("Result", f"run {m.index} of {m.app}", facts, table, brief=brief)

    def _unit(self, metric: str) -> str:
        unit = self.units.get(metric, "1")
        return "" if unit == "1" else unit

    @property
    def ok(self) -> bool:
        """Whether the run completed with metrics."""
        return self.status == "COMPLETED"

    @property
    def final(self) -> bool:
        """Whether running it again would tell the same. A run whose result is not final is run again on resume."""
        return self.failure is None or self.failure.means.final

    @property
    def state(self) -> RunStates:
        """What became of the run: `completed`, `stopped`, `failed`, or `given up` (run again on resume)."""
        if not self.final:
            return "given up"
        if self.failure is None and self.status == "STOPPED":
            return "stopped"
        return "completed" if self.failure is None else "failed"

    @property
    def shown(self) -> bool:
        """Whether a policy sees it: what the machine or somebody ended says nothing of the parameters."""
        return self.failure is None or self.failure.means.shown

    @property
    def place(self) -> str:
        """Where its files are, in words: its directory, on an endpoint the one there."""
        return self.workdir if self.remote is None else str(self.remote)

    @property
    def cost_ratio(self) -> float | None:
        """Actual over estimated node-hours; None without an estimate, or where the cost is not known."""
        estimated, actual = self.manifest.estimated_node_hours, self.cost.node_hours
        return actual / estimated if estimated and actual else None

    def __getitem__(self, metric: str) -> float:
        if metric in self.metrics:
            return self.metrics[metric]
        why = f" ({self.failure.name}: {self.failure.message})" if self.failure else ""
        why += "".join(f" ({note})" for note in self.notes if metric in note)
        raise KeyError(f"run {self.manifest.execution_id} has no metric {metric!r}{why}")

    def fetch(
        self, path: str, to: str | Path | None = None, *, max_mb: float = 100.0, site: str | Path | None = None
    ) -> Path:
        """Bring a file of the run here from the endpoint that computed it, verified; nothing is sent twice.

        Args:
            path: Name of an artifact (`log`), or a file below the run's directory.
            to: Another folder than the run's own, `workdir`.
            max_mb: Largest size, in MB (10**6 bytes).
            site: Profile of the site, by name or path; not given: the open site's, or the campaign's.

        Returns:
            Where the file is. Of a run of this machine that is where it has always been.

        Raises:
            BadInput: There is no such file, or it is too large.
            FetchFailed: The endpoint did not give it.
        """
        # By name: records are below what knows of endpoints.
        found: Path = import_module("hpcagent.runs.fetched").fetch_of(self, path, to=to, max_mb=max_mb, site=site)
        return found

    def observation(self) -> Observation:
        """The part of the result that a policy may learn from.

        Of a run that was stopped early that is the side of the threshold on which it would have ended, and no
        value: what it had so far is no measurement of the whole run.
        """
        metrics, uncertainty = dict(self.metrics), dict(self.uncertainty)
        early = self.state == "stopped"
        if early:
            why = self.stopped
            metrics = {name: value for name, value in metrics.items() if name in self.bounds}
            if why is not None and why.threshold is not None and why.metric in self.bounds:
                metrics[why.metric] = why.threshold
            uncertainty = {}
        return Observation(
            params=dict(self.manifest.params),
            completed=self.status == "COMPLETED",
            metrics=metrics,
            uncertainty=uncertainty,
            bounds=dict(self.bounds),
            failure=None if self.failure is None else self.failure.name,
            role=self.manifest.role,
            batch=self.manifest.batch,
            index=self.manifest.index,
            distrusted=self.distrusted is not None,
            wall_s=self.cost.wall_s,
            node_hours=self.cost.node_hours,
            origin=self.manifest.origin,
            times=self.manifest.times,
            extendable_s=None if self.remote is not None or self.repairs else self.extendable_s,
            stopped=early,
        )


@dataclass(frozen=True, slots=True)
class Observation:
    """One finished run as a policy sees it.

    Infrastructure failures and cancelled runs never become observations: they say nothing of the physics.

    Attributes:
        params: Where it ran.
        completed: True with metrics; False when the simulation itself failed there, or was stopped early.
        metrics: Finite numbers, in the contract's units.
        uncertainty: Standard errors, where known.
        failure: Name of the failure, or None.
        role: `suggested`, `enqueued`, `reference`, `replicate`, `repeat`, `extended` (it takes the place of the
            run that it went on from), `told` (measured elsewhere), or `earlier`: a run of another campaign.
        batch: Batch number.
        index: Manifest number.
        distrusted: The measured times should not be believed (the run did not have its core).
        wall_s: Wall time, in seconds.
        bounds: Metrics of a run that was stopped early: the true value lies `above` or `below` the one given.
        node_hours: What the run cost.
        context: What a campaign of other circumstances stated of them, e.g. `{"atoms": 4000}`; empty for the own.
        origin: Where it was measured, if not by a run of this campaign; empty for a run.
        times: How many times as long as an ordinary run it is, those that it went on from included.
        extendable_s: Wall seconds that an ordinary run's length more would take from its end; None where it cannot
            go on.
        times_at_most: How many times as long as an ordinary run it may be made in all, by the contract's range of
            its length; None: nothing is said of that.
        stopped: It was ended early by the campaign's guard: no failure, and its `metrics` are those of `bounds`.
    """

    params: Params
    completed: bool = True
    metrics: dict[str, float] = field(default_factory=dict)
    uncertainty: dict[str, float] = field(default_factory=dict)
    failure: str | None = None
    role: Role = "suggested"
    batch: int = 0
    index: int = 0
    distrusted: bool = False
    wall_s: float = 0.0
    bounds: dict[str, Side] = field(default_factory=dict)
    node_hours: float = 0.0
    context: dict[str, Scalar] = field(default_factory=dict)
    origin: str = ""
    times: float = 1.0
    extendable_s: float | None = None
    times_at_most: float | None = None
    stopped: bool = False

    @property
    def failed(self) -> bool:
        """Whether the simulation itself failed there; a run that was stopped early has not."""
        return not self.completed and not self.stopped
