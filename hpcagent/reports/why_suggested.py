"""Why a policy suggested a run, and what was expected of it.

The policy is asked again with what it was given then (see `decisions`), so the reason is the policy's own. Where
it gives none, a model fitted to the runs known then says what could have been expected, and is named as that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hpcagent.campaign.decisions import Decision, policy_of
from hpcagent.campaign.numbers import point_text
from hpcagent.model.parameter import Params
from hpcagent.model.records import Manifest
from hpcagent.policies.base import Reason
from hpcagent.reports.lessons import fitted
from hpcagent.reports.outcome import Outcome
from hpcagent.statistics.covariance import Array, NoFit
from hpcagent.statistics.insight import models, rank
from hpcagent.statistics.surrogate import MetricModel, Surrogate

__all__ = ["suggested"]


def suggested(decision: Decision, manifest: Manifest, seen: Outcome) -> dict[str, Any]:
    """Fields of the explanation of a run that the policy suggested."""
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


def _expectations(decision: Decision, reason: Reason, point: Params, seen: Outcome) -> dict[str, Any]:
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
