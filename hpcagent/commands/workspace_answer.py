"""`hpcagent workspace answer`: what the service says of a campaign, worded as `hpcagent status` does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hpcagent.commands.workspace_runs import failed_run
from hpcagent.commands.workspace_shown import IN_A_CELL, Said, shown

if TYPE_CHECKING:
    from hpcagent.workspace.client import Workspace

__all__ = ["answered", "ended_with_answer"]

# Of a campaign that has ended, these lines; the answer has the rest.
_OF_STATUS = ("id", "app", "site", "state", "workdir", "failure")


def answered(there: Workspace, identity: str, command: Callable[..., str]) -> Said:
    """The answer of a campaign so far.

    Args:
        there: The workspace.
        identity: The campaign.
        command: Makes a command of this workspace from its words.
    """
    found = there.answer(identity)
    rest = f"all metrics, and the rest: {command('answer', identity, '--json')}"

    def words() -> str:
        failed = failed_run(there, identity) if found["best"] is None else []
        return "\n".join([_words(found, _about(there, identity), identity, command), *failed, rest])

    return Said(found, words)


def ended_with_answer(there: Workspace, status: dict[str, Any], command: Callable[..., str]) -> Said:
    """How a campaign has ended, with its answer.

    Args:
        there: The workspace.
        status: Of the campaign.
        command: As of `answered`.
    """
    from hpcagent.errors import BadInput

    ended_well = status["state"] == "completed"
    brief = {name: status.get(name) for name in (*_OF_STATUS, *(() if ended_well else ("notes",)))}
    try:
        said = answered(there, status["id"], command)
    except BadInput:  # it has not come so far that there is a record of it
        if ended_well:
            raise
        return Said(status | {"answer": None}, lambda: shown("", brief))
    data = status | {"answer": said.data}
    return Said(data, lambda: f"{shown('', brief)}\n{said.words()}")


def _about(there: Workspace, identity: str) -> Mapping[str, Any]:
    """What is asked: goals, limits; empty where the campaign's record cannot be read."""
    return there.campaign_runs(identity, most=1)["about"] or {}


def _words(found: Mapping[str, Any], about: Mapping[str, Any], identity: str, command: Callable[..., str]) -> str:
    from hpcagent.model.failures import state_counts

    counts = found["runs"]
    lines = [
        found["question"],
        f"{sum(counts.values())} runs, {state_counts(counts)}, {found['node_hours']:.2g} node-hours",
    ]
    lines += [f"note: {remark}" for remark in found["remarks"]]
    lines += [f"stopped: {found['reason']}"] if found["reason"] else []
    best, sweep = found["best"], bool(about) and not about["goals"]
    if sweep:
        return "\n".join([*lines, *_points(found), f"its runs: {command('runs', identity)}"])
    if best is None:
        yet = "no answer: no run completed" if found["reason"] else "no answer yet: no run has completed"
        return "\n".join([*lines, f"{yet} with the objective's metrics"])
    return "\n".join([*lines, *_best_lines(best, about)])


def _points(found: Mapping[str, Any]) -> list[str]:
    """The points of a sweep as a table; of very many it says how many are shown."""
    if not found.get("table"):
        return ["a sweep has no best point"]
    more = found["points_in_all"] - len(found["points"])
    return [found["table"], *([f"and {more} more points: report/report.md has them"] if more else [])]


def _best_lines(best: Mapping[str, Any], about: Mapping[str, Any]) -> list[str]:
    from hpcagent.campaign.numbers import point_text

    # A metric may have the name of a parameter: `units` then has the metric's.
    places = best["units"] | (about.get("fixed_units") or {})
    goals: Sequence[Mapping[str, Any]] = about.get("goals") or []
    label = "best" if best["feasible"] else "most probable"
    if len(goals) > 1:
        label += f" {goals[0]['metric']}"
    lines = [f"{label}: {point_text(best['params'], places)}"]
    limits = {one["metric"]: f"; limit: {one['text']}" for one in about.get("limits") or ()}
    lines += [f"  {name} = {_value(best, name)}{limits.get(name, '')}" for name in _asked_for(best, about)]
    lines.append(f"  P(feasible) = {best['probability_feasible']:.2f}, from {best['runs']} run(s)")
    if not best["feasible"]:
        lines.append("  NOT feasible: no point keeps every limit with the asked confidence")
    lines += [f"  {line}" for line in best["about"]]
    if best["ties"]:
        lines.append(f"  not worse beyond the noise: {'; '.join(point_text(t, places) for t in best['ties'][:5])}")
    return lines


def _asked_for(best: Mapping[str, Any], about: Mapping[str, Any]) -> Sequence[str]:
    """Metrics of the objective: goals, limits."""
    asked = [one["metric"] for key in ("goals", "limits") for one in about.get(key) or ()]
    known = [name for name in dict.fromkeys(asked) if name in best["metrics"]]
    return known or list(best["metrics"])[:IN_A_CELL]


def _value(best: Mapping[str, Any], name: str) -> str:
    """A metric: what the models expect, where there are any, and what was measured, or estimated."""
    how = "estimated from CPU time" if name in best["estimated"] else "measured"
    unit = best["units"].get(name, "1")
    measured = _with_unit(best["metrics"][name], best["uncertainty"].get(name), unit)
    if name not in best["expected"]:
        return measured if how == "measured" else f"{measured}, {how}"
    expected = _with_unit(best["expected"][name], best["expected_error"].get(name), unit)
    return f"{expected} expected; {how} {measured}"


def _with_unit(value: float, error: float | None, unit: str) -> str:
    from hpcagent.campaign.numbers import with_error

    text = with_error(value, error)
    return text if unit == "1" else f"{text} {unit}"
