"""What the runs of a campaign taught beyond the answer: a model of them, and how good its predictions were.

It is worked out from the record whatever the policy was: the model is this library's own, fitted to the runs, not
what the policy used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from hpcagent.campaign.decisions import Decision, decisions
from hpcagent.campaign.history import History
from hpcagent.campaign.record import Campaign
from hpcagent.campaign.result import CampaignResult
from hpcagent.model.parameter import Params
from hpcagent.model.records import Observation
from hpcagent.statistics.covariance import NoFit
from hpcagent.statistics.insight import (
    Calibration,
    Importance,
    Prediction,
    Slice,
    calibration,
    chances,
    importance,
    predictions,
    slices,
)
from hpcagent.statistics.recommend import recommend
from hpcagent.statistics.surrogate import Surrogate

__all__ = ["Learned", "Progress", "fitted", "learned", "progress"]

# Of a long campaign so many moments are looked at, evenly taken.
MOST_MOMENTS = 25
# A model of hundreds of runs takes a good part of a second: of campaigns with more than MANY, fewer are made.
MANY, MOST_OF_MANY = 100, 12
# Panels for more parameters than this are too small to read.
MOST_SLICED = 6


@dataclass(frozen=True, slots=True)
class Progress:
    """The answer as it was at a moment.

    Attributes:
        runs: Results by then.
        node_hours: What these had taken.
        value: The best point's goal, in its unit: the runs there, with the help of the trend through all.
        error: Its standard error.
        feasible: Whether the point kept every limit with P >= 0.9; otherwise it is the most probable one.
    """

    runs: int
    node_hours: float
    value: float
    error: float
    feasible: bool


@dataclass(frozen=True)
class Learned:
    """What the runs taught.

    Attributes:
        point: The point that slices go through: the answer, or the most probable one.
        importance: Of each parameter, for each metric of the objective.
        slices: Every metric along the parameters that matter most.
        predictions: What was expected of suggested runs by a model of the runs before them.
        chances: P(a run completes and what it measures keeps the limits), and whether it did.
        moments: How many models the predictions are of.
        progress: The answer as it was in the course of the campaign.
        note: Why there is no model, or an empty text.
    """

    point: Params | None = None
    importance: tuple[Importance, ...] = ()
    slices: tuple[Slice, ...] = ()
    predictions: tuple[Prediction, ...] = ()
    chances: tuple[tuple[float, bool], ...] = ()
    moments: int = 0
    progress: tuple[Progress, ...] = ()
    note: str = ""

    @cached_property
    def calibration(self) -> tuple[Calibration, ...]:
        """How the predictions of each metric compare with what came out."""
        return calibration(self.predictions)


def learned(result: CampaignResult) -> Learned:
    """Work it out from a campaign's record, finished or not."""
    done = progress(result)
    history = History(result.campaign, result.results, result.warm).alike()
    try:
        surrogate = _surrogate(result.campaign, history)
    except NoFit as why:
        return Learned(progress=done, note=f"no model of the runs: {why}")
    found, asked, moments = _foretold(result)
    cut = _cut(result, surrogate, history)
    return replace(cut, predictions=found, chances=asked, moments=moments, progress=done)


def sliced(result: CampaignResult) -> Learned:
    """Of what the runs taught only `point`, `importance`, `slices` and `note`: the rest takes longer."""
    history = History(result.campaign, result.results, result.warm).alike()
    try:
        return _cut(result, _surrogate(result.campaign, history), history)
    except NoFit as why:
        return Learned(note=f"no model of the runs: {why}")


def _cut(result: CampaignResult, surrogate: Surrogate, history: Sequence[Observation]) -> Learned:
    weights = importance(surrogate)
    point = None if result.best is None else dict(result.best.params)
    shown = tuple(sorted(weights[0].names, key=lambda n: -_most(weights, n))[:MOST_SLICED])
    names = [n for n in weights[0].names if n in shown]
    known = [o for o in history if result.campaign.full(o.params)]
    cuts = () if point is None else slices(surrogate, point, known, names=names)
    return Learned(point=point, importance=weights, slices=cuts)


def _most(weights: Sequence[Importance], name: str) -> float:
    return max(w.total[w.names.index(name)] for w in weights)


def fitted(decision: Decision) -> Surrogate:
    """A model of what was known when the policy was asked.

    Raises:
        NoFit: Too few runs were.
    """
    campaign = decision.campaign
    return _surrogate(campaign, decision.known.alike())


def _surrogate(campaign: Campaign, history: Sequence[Observation]) -> Surrogate:
    return Surrogate.fit(campaign.search, campaign.objective, history, noise=campaign.noise)


# -- predictions --------------------------------------------------------------------------------


def _foretold(result: CampaignResult) -> tuple[tuple[Prediction, ...], tuple[tuple[float, bool], ...], int]:
    """Predictions of the suggested runs, each by a model of the runs before it; how many models that took.

    Decisions that follow one another share a model where there are many: that of the first of them.
    """
    campaign = result.campaign
    seen = {o.index: o for o in History(campaign, result.results).points}
    # Of an earlier time with another objective, too, the models are asked for what is looked for now.
    asked_then = (replace(d, campaign=campaign) for d in decisions(result.run_dir))
    taken = [d for d in asked_then if any(m.index in seen for m in d.manifests)]
    found: list[Prediction] = []
    asked: list[tuple[float, bool]] = []
    moments = 0
    for group in _grouped(taken, _most_moments(result)):
        try:
            surrogate = fitted(group[0])
        except NoFit:
            continue
        moments += 1
        runs = [seen[m.index] for d in group for m in d.manifests if m.index in seen]
        found += predictions(surrogate, runs)
        asked += chances(surrogate, runs)
    return tuple(found), tuple(asked), moments


def _grouped(taken: Sequence[Decision], most: int) -> list[Sequence[Decision]]:
    count = min(len(taken), most)
    edges = [round(i * len(taken) / count) for i in range(count + 1)] if count else []
    return [taken[a:b] for a, b in pairwise(edges)]


# -- progress -----------------------------------------------------------------------------------


def progress(result: CampaignResult) -> tuple[Progress, ...]:
    """What the answer was after each batch; in rolling mode, and in long campaigns, at evenly taken moments."""
    campaign, results = result.campaign, result.results
    goal = campaign.objective.goal
    found = []
    for count in _moments(result):
        known = results[:count]
        seen = History(campaign, known, result.warm).answering()
        now = recommend(seen, campaign.objective, space=campaign.smoothed, noise=campaign.noise)
        if now is not None:
            found.append(
                Progress(
                    runs=count,
                    node_hours=sum(r.cost.node_hours for r in known),
                    value=goal.score(now.best.score),
                    error=now.best.score_error,
                    feasible=now.feasible,
                )
            )
    return tuple(found)


def _moments(result: CampaignResult) -> list[int]:
    """Numbers of results: at the end of each batch, or evenly taken."""
    total = len(result.results)
    if result.campaign.mode == "batch":
        batches = [r.manifest.batch for r in result.results]
        ends = [i for i in range(1, total) if batches[i] != batches[i - 1]]
        ends += [total] * (total > 0)
    else:
        ends = list(range(1, total + 1))
    most = _most_moments(result)
    if len(ends) <= most:
        return ends
    step = (len(ends) - 1) / (most - 1)
    return [ends[round(i * step)] for i in range(most)]


def _most_moments(result: CampaignResult) -> int:
    return MOST_MOMENTS if len(result.results) <= MANY else MOST_OF_MANY
