"""A campaign's answer so far as plain data, and what its policy would run next with what that is worth."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from hpcagent.campaign.answer import read_run
from hpcagent.campaign.decisions import policy_of
from hpcagent.campaign.history import History
from hpcagent.campaign.record import Campaign
from hpcagent.campaign.recorded import snapshot
from hpcagent.campaign.repairing import repaired_note
from hpcagent.campaign.result import CampaignResult
from hpcagent.campaign.sweep import SweepResult
from hpcagent.campaign.sweep_runs import ranges_text
from hpcagent.errors import BadInput
from hpcagent.policies.base import Reason

__all__ = ["answer_data", "answer_of", "campaign_toml", "next_points"]

MOST_SWEEP_POINTS = 1000
"""Points of a sweep that its answer has."""


def answer_of(run_dir: Path) -> dict[str, Any]:
    """The answer so far, with its errors, P(feasible), the expected regret, and what it took.

    `remarks` are of all runs, `exit_code` is that of `hpcagent run`. Of the best point `estimated` names metrics
    that are estimates (from CPU time, as no run there had its core), `about` has what else is to be known of its
    numbers.

    A sweep has no best point but `points` (the first 1000 of `points_in_all`), each with its metrics and their ±,
    `units`, and `table`: the same as text.

    Raises:
        BadInput: There is no campaign there.
    """
    return answer_data(read_run(run_dir))


def answer_data(result: CampaignResult) -> dict[str, Any]:
    """An answer as plain data; see `answer_of`."""
    states: dict[str, int] = {}
    for state in result.states.values():
        states[state] = states.get(state, 0) + 1
    found: dict[str, Any] = {
        "question": result.campaign.question,
        "runs": states,
        "reason": result.reason,
        "node_hours": result.node_hours + result.overhead_node_hours,
        "best": None,
        "expected_regret": None,
        "exit_code": result.exit_code,
        "remarks": [*result.disturbed, *filter(None, [repaired_note(result.results)]), *result.remarks],
    }
    if isinstance(result, SweepResult):
        found |= {
            "question": f"sweep of {ranges_text(result.campaign)}",
            "points": result.data()[:MOST_SWEEP_POINTS],
            "points_in_all": len(result.points),
            "units": {m.name: m.unit for m in result.campaign.app.contract.metrics},
            "table": str(result.table(MOST_SWEEP_POINTS)),
        }
    best = result.best
    if best is not None:
        found["best"] = {
            "params": dict(best.params),
            "metrics": dict(best.metrics),
            "uncertainty": dict(best.uncertainty),
            "units": dict(best.units),
            "expected": dict(best.expected),
            "expected_error": dict(best.expected_error),
            "feasible": best.feasible,
            "probability_feasible": best.probability_feasible,
            "runs": best.runs,
            "ties": [dict(point) for point in best.ties],
            "estimated": list(best.estimated),
            "about": result.about_best,
        }
        regret = result.missed
        if regret is not None:
            found["expected_regret"] = {
                "metric": regret.metric,
                "unit": best.units.get(regret.metric, "1"),
                "expected": regret.expected,
                "at_most_95": regret.at_most,
                "text": result.missed_text,
            }
    return found


def next_points(run_dir: Path, n: int) -> dict[str, Any]:
    """Points that the policy would run next, each with its expected improvement in the goal's unit; runs nothing.

    Args:
        run_dir: The campaign's folder.
        n: How many.

    Raises:
        BadInput: There is no campaign there, or its policy gives no reasons for its points.
    """
    there = snapshot(run_dir)
    campaign: Campaign = there.campaign
    policy = policy_of(campaign)
    ask = getattr(policy, "reasons", None)
    if ask is None:
        raise BadInput(
            f"the policy {campaign.policy.name} does not say what its points are worth; `bayes` does.",
            value=campaign.policy.name,
        )
    reasons: Sequence[Reason] = ask(History.now(campaign, there.state).shown(), n)
    units = {m.name: m.unit for m in campaign.app.contract.metrics}
    goal = campaign.objective.goals[0].metric
    points = [
        {
            "params": dict(one.params),
            "role": one.role,
            "why": one.text,
            "predicted": {m: {"mean": v, "error": e, "unit": units[m]} for m, (v, e) in one.predicted.items()},
            "probability_feasible": one.probability_feasible,
            "expected_improvement": _finite(one.numbers.get("expected_improvement")),
        }
        for one in reasons
    ]
    known = [found for one in reasons if (found := _finite(one.numbers.get("expected_improvement"))) is not None]
    return {
        "recommended_points": points,
        "expected_improvement": max(known) if known else None,
        "unit": units[goal],
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def campaign_toml(
    app: str,
    objective: Mapping[str, Any],
    *,
    search_space: Mapping[str, Any] | None,
    constraints: Sequence[str],
    fixed: Mapping[str, Any],
    budget: int,
    node_hours: float | None,
    seed: int,
    name: str,
) -> str:
    """The campaign that looks for the best point of a registered app with Gaussian processes, as TOML."""
    until: dict[str, Any] = {"max_runs": budget}
    if node_hours is not None:
        until["node_hours"] = node_hours
    table: dict[str, Any] = {
        "name": name,
        "app": app,
        "seed": seed,
        "objective": dict(objective),
        "policy": {"name": "bayes"},
        "until": until,
    }
    for key, value in (("space", search_space), ("constraints", list(constraints)), ("fixed", fixed)):
        if value:
            table[key] = value
    try:
        return tomli_w.dumps(table)
    except (TypeError, ValueError) as error:
        raise BadInput(
            f"bayesian_optimize: {error}; numbers, words, flags, lists and tables are allowed."
        ) from None
