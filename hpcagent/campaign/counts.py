"""What is counted of a campaign, and which single run was the best, the same wherever it is said."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from hpcagent.apps.modes import MODE, is_mode
from hpcagent.apps.sandbox.setting import SANDBOX
from hpcagent.campaign.compare import estimated
from hpcagent.campaign.record import Campaign
from hpcagent.model.extended import counting, superseded
from hpcagent.model.failures import RunStates
from hpcagent.model.records import Result

__all__ = [
    "best_single",
    "extended_words",
    "guarded_text",
    "mode_words",
    "run_counts",
    "sandbox_words",
    "stop_words",
    "told_note",
    "told_words",
]


def run_counts(results: Iterable[Result], states: Mapping[str, RunStates]) -> dict[RunStates, int]:
    """State -> how many runs are in it; what was told is no run.

    Args:
        results: Those that there are.
        states: Execution id -> state of every planned run; empty where only the results are known.
    """
    results = tuple(results)
    told = {r.manifest.execution_id for r in results if r.manifest.origin}
    if states:
        return dict(Counter(state for i, state in states.items() if i not in told))
    return dict(Counter(r.state for r in results if not r.manifest.origin))


def told_words(results: Iterable[Result]) -> str:
    """How many results were told, and where they come from; empty without any."""
    told = Counter(r.manifest.origin for r in results if r.manifest.origin)
    origins = ", ".join(f"{origin}: {n}" for origin, n in sorted(told.items()))
    return f"and {told.total()} result(s) that were told, not run here ({origins})" if told else ""


def extended_words(results: Iterable[Result]) -> str:
    """How many runs count as part of one that went on from them; empty without any."""
    n = len(superseded(results))
    return f"{n} of them counted as part of a run that went on from them" if n else ""


def mode_words(campaign: Campaign) -> str:
    """How the campaign's runs are started, where that is not a program for each; a clause, or empty."""
    mode = "ensemble" if campaign.app.shares_launches else campaign.app.settings.get(MODE)
    if not is_mode(MODE, campaign.app.function) and mode != "ensemble":
        return ""  # a setting of the user's own
    return "" if mode is None else f"runs are started in the mode {mode}"


def sandbox_words(campaign: Campaign) -> str:
    """In which sandbox the campaign's runs are; a clause, or empty."""
    sandbox = campaign.app.settings.get(SANDBOX)
    if not isinstance(sandbox, Mapping):
        return ""
    tier = sandbox["require"]
    return f"runs are confined to the sandbox {tier}{' or a better one' if tier == 'limits' else ''}"


def told_note(result: Result) -> str:
    """What stands behind a result that was told, as " (told by a friend, not run here)"; empty for a run."""
    return f" (told, not run here: {result.manifest.origin})" if result.manifest.origin else ""


def best_single(campaign: Campaign, results: Iterable[Result]) -> Result | None:
    """The best single result that kept the limits: as measured, or as estimated where the run had no core.

    Where a speed is asked for, a run without its core of which nothing can be estimated counts only where there is
    no other. It is not the answer: of noisy runs the best one was lucky.

    Returns:
        The result; None where none completed and kept the limits, and in a sweep.
    """
    objective = campaign.objective
    if not objective.goals:
        return None
    kept: list[tuple[bool, float, Result]] = []
    for result in counting(tuple(results)):
        if not result.ok or not campaign.full(result.manifest.params):
            continue
        guessed = estimated(campaign, result)
        metrics = result.metrics | guessed
        if objective.known(metrics) and objective.feasible(metrics):
            believed = result.distrusted is None or not campaign.timed or bool(guessed)
            kept.append((believed, objective.score(metrics), result))
    return max(kept, key=lambda one: one[:2], default=(False, 0.0, None))[2]


def stop_words(result: Result) -> str:
    """How a run that the guard has stopped is called in a table, as "stopped at 20 %: cannot win"."""
    assert result.stopped is not None
    reason = {"limit": "breaks a limit", "cannot_win": "cannot win", "blown_up": "has blown up"}
    return f"stopped at {result.stopped.share:.0%}: {reason[result.stopped.reason]}"


def guarded_text(results: Iterable[Result], node_hours: float) -> str:
    """What the guard of a campaign has stopped and saved, in words; empty where it has stopped nothing.

    Args:
        results: Of the campaign.
        node_hours: What its runs have taken.
    """
    results = tuple(results)
    found = [r.stopped for r in results if r.stopped is not None]
    if not found:
        return ""
    runs = sum(not r.manifest.origin for r in results)
    saved = sum(one.saved_node_seconds for one in found) / 3600
    reasons: Counter[str] = Counter(one.reason for one in found)
    told = {"limit": "would break a limit", "cannot_win": "could not win", "blown_up": "had blown up"}
    why = ", ".join(f"{reasons[reason]} {words}" for reason, words in told.items() if reasons[reason])
    return (
        f"the guard has stopped {len(found)} of {runs} runs and saved {saved:.2g} of {saved + node_hours:.2g} "
        f"node-hours ({why})"
    )
