"""Why a run was asked for, what was expected of it, and what came out.

The policy is asked again with what it was given then (see `played`), so the reason is the policy's own. Where it
gives none, a model fitted to the runs known then says what could have been expected, and is named as that.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from hpcagent.campaign.compare import Comparison, observations
from hpcagent.campaign.counts import stop_words
from hpcagent.campaign.decisions import Decision, decision_of, policy_of
from hpcagent.campaign.history import History
from hpcagent.campaign.loading import load_run
from hpcagent.campaign.numbers import number, point_text
from hpcagent.campaign.record import Campaign
from hpcagent.campaign.recorded import begun_state, replayed
from hpcagent.campaign.state import State
from hpcagent.errors import BadInput
from hpcagent.html import Card, Displayed
from hpcagent.model.failures import RunStates
from hpcagent.model.parameter import Params
from hpcagent.model.records import Manifest, Observation, Result, Side
from hpcagent.policies.base import Reason
from hpcagent.reports.lessons import fitted
from hpcagent.statistics.covariance import Array, NoFit
from hpcagent.statistics.insight import models, rank, run_noise
from hpcagent.statistics.recommend import Estimate, estimates
from hpcagent.statistics.surest import contenders as found_contenders
from hpcagent.statistics.surrogate import MetricModel, Surrogate
from hpcagent.store.journal import read_events
from hpcagent.store.rundir import RunDir, holder

__all__ = ["LEAST_PREFIX", "Expected", "Explanation", "explain", "named_run"]

LEAST_PREFIX = 4  # characters of an execution id
MODEL = "a model of the runs known then, not what the policy used"


@dataclass(frozen=True, slots=True)
class Expected:
    """One metric: what was expected of the run, and what came out.

    Attributes:
        metric: Which.
        unit: Its unit.
        mean: What was expected.
        error: Standard error of that, without a run's own noise.
        noise: Standard deviation of a single run, or None where nothing is known of it.
        limit: The limit on it, in words, or an empty text.
        value: What came out, as it is compared with other runs; None where there is nothing.
        off: How far that lies from the mean, in standard deviations of error and noise together.
        bound: On which side of `value` the true value lies, for a run that was stopped early.
    """

    metric: str
    unit: str
    mean: float
    error: float
    noise: float | None = None
    limit: str = ""
    value: float | None = None
    off: float | None = None
    bound: Side | None = None

    def __str__(self) -> str:
        unit = "" if self.unit == "1" else f" {self.unit}"
        text = f"{self.metric} = {number(self.mean)} ± {self.error:.2g}{unit}"
        if self.noise:
            text += f" (± {math.hypot(self.error, self.noise):.2g} for one run)"
        text += f", limit {self.limit}" if self.limit else ""
        if self.value is None:
            return text
        if self.bound is not None:
            return f"{text}; came out: {self.bound} {number(self.value)}{unit}"
        text += f"; came out: {number(self.value)}{unit}"
        if self.off is not None:
            text += f", {abs(self.off):.1f} standard errors {'above' if self.off > 0 else 'below'}"
        return text


@dataclass(frozen=True, repr=False)
class Explanation(Displayed):
    """Why a run was asked for, and what came of it.

    Attributes:
        index: Position of the run in the campaign, from 0.
        execution_id: Its execution id.
        batch: Its batch.
        role: `suggested`, `reference`, `replicate` or `repeat`.
        params: The varied parameters.
        units: Unit of each parameter.
        policy: The campaign's policy.
        purpose: What the run was for, in one or two words: what the policy says, or the role.
        why: One sentence or more.
        known: How many results were known then; None where no policy was asked.
        pending: How many points had been suggested and had not come back.
        asked: How many points the policy was asked for.
        place: Which of its points this was, from 1; None where it does not suggest it again.
        again: Whether the policy, asked again, suggests the point; None where it was not asked.
        source: Where the expectations come from: `policy`, `model` (fitted to what was known then, not what the
            policy used), `runs` (the means of earlier runs there), or an empty text.
        expected: Of each metric of the objective.
        probability_feasible: P(every limit is kept), or None.
        probability_completes: P(the run does not fail), or None.
        rank: Where the expected goal stood among the points with a run and itself: (place, of how many).
        numbers: What else the policy says that it was chosen by.
        status: How its last attempt ended: COMPLETED, FAILED or STOPPED; `no result` where there is none.
        state: What became of it: `completed`, `failed`, `given up`, `running` or `waiting`.
        outcome: The same in words.
        feasible: Whether what it measured kept every limit; None where that is not known.
        notes: Remarks worth reading.
    """

    index: int
    execution_id: str
    batch: int
    role: str
    params: Params
    units: Mapping[str, str]
    policy: str
    purpose: str
    why: str
    known: int | None = None
    pending: int | None = None
    asked: int | None = None
    place: int | None = None
    again: bool | None = None
    source: str = ""
    expected: tuple[Expected, ...] = ()
    probability_feasible: float | None = None
    probability_completes: float | None = None
    rank: tuple[int, int] | None = None
    numbers: Mapping[str, float] = field(default_factory=dict)
    status: str = "no result"
    state: RunStates = "waiting"
    outcome: str = ""
    feasible: bool | None = None
    notes: tuple[str, ...] = ()

    def _card(self) -> Card:
        point = point_text(self.params, dict(self.units))
        facts = [
            ("point", point),
            ("asked by", self._asked_by),
            ("why", self.why),
            ("chosen by", ", ".join(f"{n} = {number(v)}" for n, v in self.numbers.items())),
            ("expected", "\n".join(line.strip() for line in self._expectations())),
            ("outcome", self.outcome),
            ("notes", "\n".join(self.notes)),
            ("execution id", self.execution_id),
        ]
        title = f"run {self.index}, batch {self.batch}"
        return Card("Explanation", title, facts, brief=f"{self.purpose}; {point}; {self.outcome or self.state}")

    def data(self) -> dict[str, Any]:
        """All of it as plain data, for JSON; numbers that are not finite are left out as None."""
        found: dict[str, Any] = _plain(asdict(self))
        return found

    def __str__(self) -> str:
        lines = [
            f"run {self.index} ({self.execution_id}), batch {self.batch}: {self._asked_by}",
            f"  {point_text(self.params, dict(self.units))}",
            f"why: {self.why}",
        ]
        if self.known is not None:
            lines.append(
                f"known then: {self.known} result(s), {self.pending} point(s) pending; asked for {self.asked} "
                f"point(s)" + ("" if self.place is None else f", of which this is no. {self.place}")
            )
        if self.numbers:
            lines.append("chosen by: " + ", ".join(f"{n} = {number(v)}" for n, v in self.numbers.items()))
        lines += self._expectations()
        lines.append(f"outcome: {self.outcome}")
        if self.again:
            lines.append("asked again with the same history, the policy suggests this point again")
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join(lines)

    @property
    def _asked_by(self) -> str:
        if self.role != "suggested":
            if self.role == "told":
                return "a told result, measured elsewhere"
            by = "somebody" if self.role == "enqueued" else "the campaign"
            return f"a{'n' * (self.role in ('enqueued', 'extended'))} {self.role} run, asked for by {by}"
        return f"suggested by {self.policy}" + (f" as {self.purpose}" if self.purpose else "")

    def _expectations(self) -> list[str]:
        chances = []
        if self.probability_feasible is not None:
            chances.append(f"P(feasible) = {self.probability_feasible:.2f}")
        if self.probability_completes is not None:
            chances.append(f"P(completes) = {self.probability_completes:.2f}")
        if self.rank is not None:
            chances.append(
                f"the expected {self.expected[0].metric} is no. {self.rank[0]} of {self.rank[1]} points"
            )
        if not self.expected and not chances:
            return []
        said = {"policy": f"the policy {self.policy}", "model": MODEL, "runs": "the runs there before"}
        lines = [f"expected, by {said.get(self.source, self.source)}:"]
        return lines + [f"  {e}" for e in self.expected] + ([f"  {', '.join(chances)}"] if chances else [])


def explain(run_dir: str | Path, run: int | str) -> Explanation:
    """Say why a run was asked for, what was expected of it, and what came out.

    Reads only, so the campaign may be running. The policy is asked once more with what it knew then, which takes
    as long as it took then.

    Args:
        run_dir: The campaign's folder.
        run: Position of the run in the campaign, from 0, or the first characters of its execution id.

    Raises:
        BadInput: The folder is not that of a campaign, or it has no such run.

    Example:
        >>> import tempfile
        >>> from hpcagent.runs.run import run
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = run("synthetic", site="threads", run_dir=folder)
        ...     found = explain(folder, 7)
        >>> found.role, found.again, found.source
        ('suggested', True, 'policy')
    """
    campaign = load_run(run_dir, to_read=True)
    events = list(read_events(RunDir(run_dir).events))
    state = replayed(RunDir(run_dir), campaign)
    manifest = named_run(state, run, run_dir)
    seen = _Outcome.of(campaign, state, manifest, attended=holder(run_dir)[0])
    if manifest.by_policy:
        about = _suggested(decision_of(run_dir, manifest.index), manifest, seen)
        if not about["again"]:
            about["notes"] += _other_versions(events, manifest.index)
    else:
        about = _planned(
            campaign,
            _before(events, manifest.index, begun_state(RunDir(run_dir), campaign)),
            state,
            manifest,
            seen,
        )
    names = campaign.search.names
    notes = (*about.pop("notes", ()), *seen.notes)
    remote = None if seen.result is None else seen.result.remote
    if remote is not None:
        notes += (f"its files ({remote.brief}) are in {remote}: hpcagent fetch {run_dir} {manifest.index} PATH",)
    return Explanation(
        index=manifest.index,
        execution_id=manifest.execution_id,
        batch=manifest.batch,
        role=manifest.role,
        params={n: manifest.params[n] for n in names if n in manifest.params},
        units={p.name: p.unit for p in campaign.search.parameters},
        policy=campaign.policy.name,
        status="no result" if seen.result is None else seen.result.status,
        state=seen.state,
        outcome=seen.text,
        feasible=seen.feasible,
        notes=notes,
        **about,
    )


def named_run(state: State, run: int | str, run_dir: str | Path) -> Manifest:
    """The manifest of a run, by its number or the beginning of its execution id.

    Raises:
        BadInput: There is none, or more than one.
    """
    text = str(run).strip()
    last = state.next_index - 1
    has = f"it has runs 0 to {last}" if last >= 0 else "it has no runs yet"
    here = [m for m in state.manifests if text.isdecimal() and m.index == int(text)]
    if here:
        return here[0]
    word = text.lower().removesuffix("...")
    found = [m for m in state.manifests if m.execution_id.startswith(word)] if len(word) >= LEAST_PREFIX else []
    if len(found) == 1:
        return found[0]
    if found:
        some = ", ".join(f"{m.execution_id} (run {m.index})" for m in found[:3])
        raise BadInput(f"{text!r} is the beginning of {len(found)} execution ids: {some}; give more.", value=run)
    chains = [chain for part, chain in state.parts.items() if len(word) >= LEAST_PREFIX and part.startswith(word)]
    chain = state.manifest(chains[0]) if chains else None
    if chain is not None:
        raise BadInput(
            f"{text} is an inner run of the chain that is run {chain.index}; explain that one.", value=run
        )
    raise BadInput(
        f"there is no run {text} in {run_dir}; {has}. Give one of these numbers, or at least {LEAST_PREFIX} "
        "characters of an execution id.",
        value=run,
    )


# -- what came out ------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Outcome:
    """What came of a run."""

    campaign: Campaign
    result: Result | None
    observation: Observation | None
    comparison: Comparison | None
    state: RunStates

    @classmethod
    def of(cls, campaign: Campaign, state: State, manifest: Manifest, *, attended: bool) -> _Outcome:
        comparison = History.now(campaign, state).comparison
        result = state.results.get(manifest.execution_id)
        seen = [] if result is None else observations(campaign, [result], comparison)
        now = state.state_of(manifest.execution_id, attended=attended)
        return cls(campaign, result, seen[0] if seen else None, comparison, now)

    @property
    def feasible(self) -> bool | None:
        objective, o = self.campaign.objective, self.observation
        if o is None or not o.completed or not all(c.metric in o.metrics for c in objective.constraints):
            return None
        return objective.feasible(o.metrics) if objective.constraints else None

    @property
    def text(self) -> str:
        result, objective = self.result, self.campaign.objective
        if result is None:
            return f"{self.state}: no result yet"
        if result.failure is not None:
            failure = result.failure
            return f"{self.state}: {failure.name} ({failure.kind}): {failure.message}"
        if result.stopped is not None:
            return f"{stop_words(result)}: {result.stopped.sentence}"
        units = {m.name: m.unit for m in self.campaign.app.contract.metrics}
        metrics = self.observation.metrics if self.observation is not None else result.metrics
        text = f"{self.state}: " + point_text({n: metrics[n] for n in objective.metrics if n in metrics}, units)
        if self.feasible is not None:
            broken = [
                c.text(units.get(c.metric, "1")) for c in objective.constraints if c.excess(metrics[c.metric]) > 0
            ]
            text += f"; breaks {' and '.join(broken)}" if broken else "; keeps every limit"
        return text

    @property
    def notes(self) -> list[str]:
        found: list[str] = []
        result, o = self.result, self.observation
        if result is None:
            return found
        if result.distrusted is not None:
            found.append(f"its measured times should not be believed: {result.distrusted}")
        found += [f"repaired after {r.failure} ({r.repair}): {r.changed}" for r in result.repairs]
        if result.stopped is not None:
            saved = result.stopped.saved_node_seconds
            found.append(f"the rest of it would have taken {saved:.3g} node-seconds")
        if o is not None and o.stopped:
            sides = [f"{m} would have ended {side} {number(o.metrics[m])}" for m, side in o.bounds.items()]
            found.append(f"a policy sees of it only that {' and '.join(sides)}; it is never the answer")
            return found
        if o is None:
            found.append("it says nothing of the point, so no policy learns from it; resuming runs it again")
            return found
        for name in self.campaign.objective.metrics:
            raw, used = result.metrics.get(name), o.metrics.get(name)
            if raw is not None and used is not None and not math.isclose(raw, used, rel_tol=1e-6):
                found.append(f"{name} is as compared with other runs; the run itself measured {number(raw)}")
        return found

    def beside(
        self,
        metric: str,
        mean: float,
        error: float,
        *,
        at: tuple[MetricModel, Array] | None = None,
        noise: float | None = None,
    ) -> Expected:
        """An expectation with what came out beside it; `at`: the model that it is of, and the point's row."""
        o = self.observation
        value = o.metrics.get(metric) if o is not None and o.completed else None
        bound = o.bounds.get(metric) if o is not None else None
        stated = 0.0 if o is None or value is None else o.uncertainty.get(metric, 0.0)
        unit = self.campaign.app.contract.metric(metric).unit
        limits = {c.metric: c.text(unit) for c in self.campaign.objective.constraints if c.metric == metric}
        off = None
        if at is not None:
            model, row = at
            slope = float(model.scale.slope(np.array([mean]))[0])
            one_run = float(run_noise(model, row, np.array([stated]))[0])
            noise = one_run / max(slope, 1e-300)
            if value is not None:
                away = float(model.scale.forward(np.array([value]))[0] - model.scale.forward(np.array([mean]))[0])
                off = away / math.hypot(error * slope, one_run)
        elif value is not None:
            noise = max(noise or 0.0, stated) or None
            width = math.hypot(error, noise or 0.0)
            off = (value - mean) / width if width > 0 else None
        goals = {g.metric for g in self.campaign.objective.goals}
        believed = not (o is not None and o.distrusted and metric in goals)
        return Expected(
            metric=metric,
            unit=unit,
            mean=mean,
            error=error,
            noise=noise,
            limit=limits.get(metric, "").removeprefix(metric).strip(),
            value=value,
            off=off if bound is None and believed else None,
            bound=bound,
        )


# -- suggested runs -----------------------------------------------------------------------------


def _suggested(decision: Decision, manifest: Manifest, seen: _Outcome) -> dict[str, Any]:
    campaign = decision.campaign
    point = {n: manifest.params[n] for n in campaign.search.names if n in manifest.params}
    answer, trouble = _asked_again(decision)
    place = next((i for i, r in enumerate(answer) if r.params == point), None)
    reason = Reason(point, "") if place is None else answer[place]
    about: dict[str, Any] = {
        "purpose": reason.role,
        "why": reason.text or _plain_reason(decision, reason),
        "known": len(decision.results),
        "pending": len(decision.pending),
        "asked": decision.n,
        "place": None if place is None else place + 1,
        "again": place is not None,
        "numbers": dict(reason.numbers),
        "notes": [],
    }
    if decision.warm is not None:
        about["notes"].append(f"it also knew of {decision.warm.runs} run(s) of earlier campaigns")
    if place is None:
        now = "; ".join(point_text(r.params) for r in answer[:2]) or "nothing"
        about["notes"].append(
            trouble
            or f"asked again with the same history, the policy does NOT suggest this point (now: {now}"
            f"{'; ...' if len(answer) > 2 else ''}). The policy or its version differs from the one that ran, it "
            "is not a pure function of what it is given, or the journal was changed."
        )
        about["why"] = "not known: the policy does not suggest this point again, see the note."
    about |= _expectations(decision, reason, point, seen)
    no_model = about.pop("no_model", None)
    if no_model is not None:
        about["notes"].append(f"no model says what to expect: {no_model}")
    return about


def _asked_again(decision: Decision) -> tuple[list[Reason], str]:
    """What the policy answers now, and why it does not, if so."""
    search = decision.campaign.search
    try:
        policy = policy_of(decision.campaign)
        ask: Callable[..., Sequence[Reason]] | None = getattr(policy, "reasons", None)
        if ask is None:
            points = policy.suggest(decision.history, decision.n, decision.pending)
            found = [Reason(p, "") for p in points]
        else:
            found = list(ask(decision.history, decision.n, decision.pending))
        return [_validated(r, search.validated(r.params)) for r in found[: decision.n]], ""
    except Exception as error:  # a policy may be anyone's code, and need a package that is not here
        return [], f"the policy cannot be asked again here: {type(error).__name__}: {error}"


def _other_versions(events: Sequence[Mapping[str, Any]], index: int) -> list[str]:
    """Packages that are not the ones that the coordinator had when it planned a run."""
    then: Mapping[str, str] = {}
    for event in events:
        if event.get("event") == "session":
            then = event.get("versions", {})
        if _plans(event, index):
            break
    found = []
    for package, version in then.items():
        try:
            now = platform.python_version() if package == "python" else metadata.version(package)
        except metadata.PackageNotFoundError:
            now = "not installed"
        if now != version:
            found.append(f"{package} {version} (here {now})")
    return [f"it was planned with {', '.join(found)}"] if found else []


def _validated(reason: Reason, params: Params) -> Reason:
    fields = {name: getattr(reason, name) for name in Reason.__dataclass_fields__}
    return Reason(**{**fields, "params": params})


def _plain_reason(decision: Decision, reason: Reason) -> str:
    """For a policy that gives no text: what it says of itself."""
    name = decision.campaign.policy.name
    doc = (type(policy_of(decision.campaign)).__doc__ or "").strip().split("\n\n")[0]
    said = f" It is: {' '.join(doc.split())}" if doc else ""
    if reason.role:
        return f"{name} suggested it as {reason.role}."
    return f"{name} gives no reasons for single points.{said}"


def _expectations(decision: Decision, reason: Reason, point: Params, seen: _Outcome) -> dict[str, Any]:
    """What was expected: by the policy where it says, otherwise by a model of what was known then."""
    try:
        surrogate: Surrogate | None = fitted(decision)
        why = ""
    except NoFit as refusal:
        surrogate, why = None, str(refusal)
    at: dict[str, tuple[MetricModel, Array]] = {}
    if surrogate is not None:
        at = {m.metric: (m, surrogate.features.rows([point])) for m in models(surrogate)}
    if reason.predicted:
        wanted = [m for m in decision.campaign.objective.metrics if m in reason.predicted]
        return {
            "source": "policy",
            "expected": tuple(seen.beside(m, *reason.predicted[m], at=at.get(m)) for m in wanted),
            "probability_feasible": reason.probability_feasible,
            "probability_completes": reason.probability_completes,
            "rank": None if surrogate is None or not wanted else rank(surrogate, point),
        }
    if surrogate is None:
        return {"no_model": why}
    row = surrogate.features.rows([point])
    expected = []
    for model, _ in at.values():
        middle, error = model.values(row)
        expected.append(seen.beside(model.metric, float(middle[0]), float(error[0]), at=at[model.metric]))
    return {
        "source": "model",
        "expected": tuple(expected),
        "probability_feasible": float(surrogate.feasible(row)[0]) if surrogate.limits else None,
        "probability_completes": None if surrogate.failures is None else float(surrogate.completes(row)[0]),
        "rank": rank(surrogate, point),
    }


# -- runs that the campaign itself asked for ----------------------------------------------------


def _before(events: Sequence[Mapping[str, Any]], index: int, state: State) -> State:
    """What was known when a run was planned, in a state to which nothing was given yet."""
    for event in events:
        if _plans(event, index):
            break
        state.read(event)
    return state


def _plans(event: Mapping[str, Any], index: int) -> bool:
    rows = event.get("manifests", [event.get("manifest")]) if event.get("event") in ("manifests", "told") else None
    return isinstance(rows, list) and any(isinstance(m, dict) and m.get("index", 0) == index for m in rows)


def _planned(
    campaign: Campaign, before: State, state: State, manifest: Manifest, seen: _Outcome
) -> dict[str, Any]:
    if manifest.role == "reference":
        return {"purpose": "reference", "why": _why_reference(campaign, seen)}
    if manifest.role == "repeat":
        return {"purpose": "repeat", "why": _why_repeat(state, manifest)}
    if manifest.role == "extended":
        why = f"somebody asked that run {manifest.extends} goes on, to {manifest.times:g} times an ordinary run."
        return {"purpose": "extended", "why": why}
    if manifest.role == "enqueued":
        return {"purpose": "enqueued", "why": "somebody chose this point; the policy did not suggest it."}
    if manifest.role == "told":
        why = f"its result was told, not run here ({manifest.origin}); nobody suggested the point."
        return {"purpose": "told", "why": why}
    if manifest.role != "replicate":
        return {"purpose": manifest.role, "why": f"it was asked for as a {manifest.role} run."}
    return _confirmation(campaign, before, manifest, seen)


def _why_reference(campaign: Campaign, seen: _Outcome) -> str:
    text = "the reference point is run in every batch, to see how the machine's speed changes."
    comparison, result = seen.comparison, seen.result
    if comparison is None or not comparison.scale or result is None or not result.ok:
        return text
    factor = comparison.of(result.manifest.batch, result.site)
    return (
        f"{text} Here {comparison.metric} was {100 * (1 / factor - 1):+.1f} % off its median over "
        f"{len(comparison.scale)} batches, {number(comparison.value)}."
    )


def _why_repeat(state: State, manifest: Manifest) -> str:
    for other in (m for m in state.manifests if m.index < manifest.index):
        result = state.results.get(other.execution_id)
        if other.params == manifest.params and result is not None and result.distrusted is not None:
            return (
                f"run {other.index} again, because its measured times should not be believed: {result.distrusted}"
            )
    return "a run whose measured times should not be believed, once more."


def _confirmation(campaign: Campaign, before: State, manifest: Manifest, seen: _Outcome) -> dict[str, Any]:
    """A contender run again at the end, or the baseline beside it."""
    then = History.now(campaign, before)
    confirm, history, known = campaign.confirming, then.contending(), len(then.results)
    found = [] if confirm is None else _contenders(campaign, history, confirm.top, confirm.replicates)
    params = [campaign.complete(point) for point, _ in found]
    about: dict[str, Any] = {"purpose": "confirmation"}
    if manifest.params not in params:
        return about | {"why": _why_baseline(campaign, manifest, params)}
    place = params.index(manifest.params)
    estimate = found[place][1]
    if estimate is None:
        return about | {
            "why": f"the contender no. {place + 1} of {len(found)} after {known} results, not run before: "
            "of all points that surely keep the limits the best one, as the models have it."
        }
    noise = campaign.noise
    expected = []
    for metric in campaign.objective.metrics:
        if metric in estimate.metrics:
            mean, error = estimate.metrics[metric], estimate.uncertainty.get(metric)
            one_run = abs(mean) * noise.get(metric, 0.0) if error is None else error * math.sqrt(estimate.runs)
            if error is None and metric in estimate.expected:
                # Nothing but the models knows of the noise.
                mean, error = estimate.expected[metric], estimate.expected_error[metric]
            expected.append(seen.beside(metric, mean, error or 0.0, noise=one_run))
    return about | {
        "why": f"run again to confirm: the contender no. {place + 1} of {len(found)} after {known} "
        f"results; it had {estimate.runs} run(s) there.",
        "source": "runs",
        "expected": tuple(expected),
        "probability_feasible": estimate.probability_feasible if campaign.objective.constraints else None,
    }


def _contenders(
    campaign: Campaign, history: Sequence[Observation], k: int, replicates: int
) -> list[tuple[Params, Estimate | None]]:
    """The contenders, each with what was known of it; None of one that had not been run."""
    space, noise = campaign.smoothed, campaign.noise
    found = found_contenders(
        history,
        campaign.objective,
        k,
        space=space,
        noise=noise,
        replicates=max(1, replicates),
        held=campaign.last_level,
    )
    every = estimates(history, campaign.objective, space=space, noise=noise)
    known = {tuple(e.params.items()): e for e in every}
    return [(point, known.get(tuple(point.items()))) for point in found]


def _why_baseline(campaign: Campaign, manifest: Manifest, contenders: Sequence[Params]) -> str:
    confirm = campaign.confirm
    if confirm is not None and confirm.baseline:
        for i, params in enumerate(contenders):
            if campaign.complete({**params, **confirm.baseline}) == manifest.params:
                changed = ", ".join(f"{k} = {v}" for k, v in confirm.baseline.items())
                return f"the baseline: the contender no. {i + 1} with {changed}, to see what the change is worth."
    return (
        "a contender run again to confirm it. From what the journal says was known then, it is not one of the "
        "contenders now: the library's version differs, or the journal was changed."
    )


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
