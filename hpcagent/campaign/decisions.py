"""What the policy was given for every suggestion, rebuilt from the journal, and whether it would answer the same.

A policy is a pure function of its seed, the history and what is pending. The journal says with each group of
suggestions how many results there were when the policy was asked (`seen`), which runs were pending and how many
points were wanted; so each question can be put again, exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from hpcagent.campaign.changes import as_begun
from hpcagent.campaign.earlier import WarmStart
from hpcagent.campaign.history import History
from hpcagent.campaign.loading import load_run
from hpcagent.campaign.record import Campaign
from hpcagent.campaign.recorded import begun_state, replayed
from hpcagent.campaign.state import State
from hpcagent.errors import BadInput
from hpcagent.model.parameter import Params
from hpcagent.model.records import Manifest, Observation, Result
from hpcagent.policies.base import Policy, make_policy
from hpcagent.store.journal import read_events
from hpcagent.store.rundir import RunDir

__all__ = ["Decision", "Difference", "decision_of", "decisions", "policy_of", "replays"]


@dataclass(frozen=True)
class Decision:
    """One question to the policy and what came of it.

    Attributes:
        campaign: Whose policy it was.
        manifests: The suggested runs, in the order in which the policy gave them.
        n: How many points it was asked for.
        pending: Points that had been suggested and had not come back, in manifest order.
        at: When the answer was written down: Unix time, in seconds.
        warm: What the campaign began with, runs of other campaigns; they come first in `history`.
        rows: Results of this campaign, as they were recorded.
        seen: How many of them were known.
    """

    campaign: Campaign
    manifests: tuple[Manifest, ...]
    n: int
    pending: tuple[Params, ...]
    at: float
    warm: WarmStart | None = None
    rows: Sequence[Result] = field(default=(), repr=False)
    seen: int = 0

    @cached_property
    def known(self) -> History:
        """What was known when the policy was asked."""
        return History.past(self.campaign, self.rows[: self.seen], self.warm)

    @property
    def results(self) -> Sequence[Result]:
        """Results of this campaign that were known, in the order of the history."""
        return self.known.results

    @cached_property
    def history(self) -> list[Observation]:
        """What the policy was given; speeds are compared over the reference runs that were known then."""
        return self.known.shown()

    @property
    def points(self) -> list[Params]:
        """The points as the policy gave them: the varied parameters."""
        names = self.campaign.search.names
        return [{name: m.params[name] for name in names if name in m.params} for m in self.manifests]


@dataclass(frozen=True)
class Difference:
    """A decision that the policy would not take again.

    Attributes:
        decision: What was recorded.
        points: What the policy says now.
    """

    decision: Decision
    points: list[Params]

    def __str__(self) -> str:
        pairs = zip(self.decision.manifests, [*self.points, *[None] * len(self.decision.manifests)], strict=False)
        for (manifest, now), then in zip(pairs, self.decision.points, strict=True):
            if now != then:
                return f"run {manifest.index} was suggested at {then}; now the policy says {now or 'nothing'}"
        return f"the policy now gives {len(self.points)} points where it gave {len(self.decision.points)}"


def decisions(run_dir: str | Path) -> Iterator[Decision]:
    """Rebuild every question to the policy of a campaign, in the order in which they were answered.

    Reads only, so the campaign may be running. A history is worked out when it is looked at.

    Args:
        run_dir: The campaign's folder.

    Raises:
        BadInput: The folder is not that of a campaign.

    Example:
        >>> import tempfile
        >>> from hpcagent.runs.run import run
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = run("synthetic", site="threads", run_dir=folder)
        ...     found = list(decisions(folder))
        >>> found[0].n == len(found[0].manifests), found[0].history
        (True, [])
    """
    campaign = load_run(run_dir, to_read=True)
    folder = RunDir(run_dir)
    state = begun_state(folder, campaign)
    # Each question was put to the policy of its time.
    campaign, *later = as_begun(campaign, [e for e in read_events(folder.events) if e.get("event") == "changed"])
    for event in read_events(folder.events):
        before = list(state.manifests)
        state.read(event)
        if event.get("event") == "changed":
            campaign = later.pop(0)
        if event.get("event") in ("manifests", "told"):
            suggested = _new(event, state, {m.execution_id for m in before})
            if suggested:
                yield _decision(campaign, event, suggested, state, before)


def _new(event: Mapping[str, Any], state: State, before: set[str]) -> tuple[Manifest, ...]:
    """The suggested runs of a line; of those whose own line is lost nobody knows what the policy was asked."""
    rows = event.get("manifests", [event.get("manifest")])
    rows = rows if isinstance(rows, list) else []
    named = (state.manifest(str(row.get("execution_id"))) for row in rows if isinstance(row, dict))
    return tuple(m for m in named if m is not None and m.by_policy and m.execution_id not in before)


def _decision(
    campaign: Campaign,
    event: Mapping[str, Any],
    suggested: tuple[Manifest, ...],
    state: State,
    before: Sequence[Manifest],
) -> Decision:
    asked = event.get("asked")
    if asked is None:  # written before this was recorded, when nothing happened while the policy was thinking
        going = [m for m in before if m.execution_id not in state.results]
        asked = {
            "n": len(suggested),
            "seen": len(state.rows),
            "pending": [m.index for m in going] if campaign.mode == "rolling" else [],
        }
    names = campaign.search.names
    by_index = {m.index: m for m in before} if asked.get("pending") else {}
    pending = tuple(
        {n: by_index[i].params[n] for n in names if n in by_index[i].params}
        for i in asked.get("pending", ())
        if i in by_index
    )
    pending += tuple(asked.get("besides", ()))
    return Decision(
        campaign,
        suggested,
        int(asked["n"]),
        pending,
        float(event.get("at", 0.0)),
        state.warm,
        state.rows,
        int(asked["seen"]),
    )


def decision_of(run_dir: str | Path, index: int) -> Decision:
    """The decision that a run came from.

    Args:
        run_dir: The campaign's folder.
        index: Position of the run in the campaign, from 0.

    Raises:
        BadInput: There is no such run, or no policy suggested it.
    """
    for decision in decisions(run_dir):
        if any(m.index == index for m in decision.manifests):
            return decision
    state = replayed(RunDir(run_dir), load_run(run_dir, to_read=True))
    found = [m for m in state.manifests if m.index == index]
    if found and found[0].by_policy:
        raise BadInput(
            f"run {index} was suggested by the policy, but what the policy was asked stood on a damaged line of "
            f"events.jsonl; its manifest was put back from {RunDir(run_dir).work / found[0].execution_id}.",
            value=index,
        )
    if found:
        raise BadInput(
            f"run {index} was not suggested by the policy: it is a {found[0].role} run that the campaign itself "
            "asked for.",
            value=index,
        )
    last = state.next_index - 1
    known = f"runs 0 to {last}" if last >= 0 else "no runs yet"
    raise BadInput(f"there is no run {index} in {run_dir}; it has {known}.", value=index)


def policy_of(campaign: Campaign) -> Policy:
    """The campaign's policy, made anew."""
    return make_policy(
        campaign.policy.name,
        space=campaign.search,
        objective=campaign.objective,
        seed=campaign.seed,
        **campaign.policy_options,
    )


def replays(run_dir: str | Path) -> list[Difference]:
    """Ask the policy every question of a campaign again.

    Args:
        run_dir: The campaign's folder.

    Returns:
        The decisions that come out differently: none, if policy and record are what they were.

    Raises:
        BadInput: The folder is not that of a campaign.

    Example:
        >>> import tempfile
        >>> from hpcagent.runs.run import run
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = run("synthetic", site="threads", run_dir=folder)
        ...     replays(folder)
        []
    """
    different = []
    policy: Policy | None = None
    asked: Campaign | None = None
    for decision in decisions(run_dir):
        if policy is None or decision.campaign is not asked:
            asked, policy = decision.campaign, policy_of(decision.campaign)
        search = decision.campaign.search
        answer = policy.suggest(decision.history, decision.n, decision.pending)
        points = [
            search.validated(p, where=f"policy {decision.campaign.policy.name}") for p in answer[: decision.n]
        ]
        # With a budget that was running out, fewer of them may have been planned than were suggested.
        rest = iter(points)
        if not all(point in rest for point in decision.points):
            different.append(Difference(decision, points))
    return different
