"""The runs of a campaign and of those before it, as a policy, an answer or a replay is shown them.

Three things are put together here and nowhere else: which results were known at a moment and in which order, how
their speeds are compared over the reference runs that were known then (`compare.py`), and what of earlier
campaigns goes before them (`warm.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

from hpcagent.campaign.compare import Comparison, compare, full_fidelity, observations, projected
from hpcagent.campaign.earlier import WarmStart
from hpcagent.campaign.record import Campaign
from hpcagent.campaign.state import State
from hpcagent.campaign.warm import comparable, earlier_evidence, earlier_observations
from hpcagent.model.extended import superseded
from hpcagent.model.records import Observation, Result

__all__ = ["Growing", "History"]


class History:
    """What is known of a campaign's runs at a moment.

    Args:
        campaign: Whose.
        results: Of its own runs, those known then in the order in which a policy sees them; or what gives them.
        warm: What it began with.
        points: `points`, where they have been worked out already.

    Example:
        >>> from hpcagent.apps.landscape import synthetic
        >>> from hpcagent.model.objective import minimize
        >>> campaign = Campaign(synthetic, minimize("value"), space={"x": {}})
        >>> ran = Result(manifest=synthetic.manifest({"x": 0.5}), status="COMPLETED", metrics={"value": 2.0})
        >>> seen = History(campaign, [ran]).shown()
        >>> [(o.params, o.metrics) for o in seen]
        [({'x': 0.5}, {'value': 2.0})]
    """

    def __init__(
        self,
        campaign: Campaign,
        results: Sequence[Result] | Callable[[], Sequence[Result]],
        warm: WarmStart | None = None,
        *,
        points: Sequence[Observation] | None = None,
    ) -> None:
        self.campaign, self.warm = campaign, warm
        self._results, self._points = results, points

    @classmethod
    def now(cls, campaign: Campaign, state: State) -> History:
        """All that is on record: in the order of the manifests, in rolling mode in that of the journal."""
        results = state.in_arrival if campaign.mode == "rolling" else state.in_order
        return cls(campaign, results, state.warm)

    @classmethod
    def past(cls, campaign: Campaign, rows: Sequence[Result], warm: WarmStart | None) -> History:
        """As it was when so many results had been recorded.

        Args:
            campaign: As it was then.
            rows: These results, as they were recorded: a later one of a run takes the place of the earlier one.
            warm: What it began with.
        """
        known = {result.manifest.execution_id: result for result in rows}
        if campaign.mode == "rolling":
            return cls(campaign, tuple(known.values()), warm)
        return cls(campaign, tuple(sorted(known.values(), key=lambda r: r.manifest.index)), warm)

    # -- the campaign's own runs --------------------------------------------------------------

    @cached_property
    def results(self) -> Sequence[Result]:
        """The results of its own runs."""
        return self._results() if callable(self._results) else self._results

    @cached_property
    def comparison(self) -> Comparison | None:
        """How the reference point did; None where the campaign has none."""
        return compare(self.campaign, self.results)

    @cached_property
    def own(self) -> Sequence[Observation]:
        """The runs with all their parameters, speeds as they are compared, without what infrastructure ended."""
        return observations(self.campaign, self.results, self.comparison)

    @property
    def points(self) -> Sequence[Observation]:
        """The runs as points of the search space, without other systems; see `compare.projected`."""
        if self._points is None:
            self._points = projected(self.campaign, self.own)
        return self._points

    def points_in_full(self) -> list[Observation]:
        """Those of the points that may be an answer: at the last level, where the campaign has a fidelity."""
        return full_fidelity(self.campaign, self.points)

    # -- with those of earlier campaigns ------------------------------------------------------

    def earlier(self) -> list[Observation]:
        """The runs of earlier campaigns as points of the search space, as far as their speeds can be compared."""
        return [] if self.warm is None else earlier_observations(self.campaign, self.warm, self.results)

    def shown(self) -> list[Observation]:
        """What a policy sees: the runs of earlier campaigns, then the own ones. A list of the caller's."""
        return [*self.earlier(), *self.points]

    def alike(self) -> list[Observation]:
        """What a policy sees, without runs in other circumstances."""
        return comparable(self.campaign, self.shown())

    def contending(self) -> list[Observation]:
        """Among what contenders are looked for: runs in the same circumstances that may be an answer."""
        return full_fidelity(self.campaign, self.alike())

    def evidence(self) -> list[Observation]:
        """What models of the runs rest on, with all parameters: sound earlier runs, then all of the own ones."""
        return [*earlier_evidence(self.campaign, self.warm, self.results), *self.own]

    def answering(self) -> list[Observation]:
        """What an answer rests on: of the evidence what may be an answer."""
        return full_fidelity(self.campaign, self.evidence())


class Growing:
    """The history of a campaign that goes on: asked again and again, and only what is new is worked out.

    Args:
        campaign: Whose.
        state: What is on record.
    """

    def __init__(self, campaign: Campaign, state: State) -> None:
        self._campaign, self._state = campaign, state
        self._points: list[Observation] = []
        self._seen = self._replaced = 0

    def now(self) -> History:
        """The history up to the last result."""
        history = History.now(self._campaign, self._state)
        # With every batch a reference changes how all others are compared.
        return history if self._campaign.reference is not None else self._grown(history)

    def forget(self) -> None:
        """Work it out anew: something else than the loop has planned runs, in another order."""
        self._replaced = -1

    def _grown(self, history: History) -> History:
        # Without a reference nothing of the past changes, so only what is new is added; but a run that was given
        # up in one session may have been repeated in the next.
        state = self._state
        replaced = len(state.rows) - len(state.arrived)
        if self._replaced != replaced:
            self._replaced, self._seen, self._points = replaced, 0, []
        if self._seen != len(state.arrived):
            new = [state.results[i] for i in state.arrived[self._seen :]]
            self._seen = len(state.arrived)
            if self._campaign.mode == "batch":
                # A batch is whole before the next is planned, so sorting it sorts everything. After a resume
                # the runs that were still missing may belong before recorded ones.
                new.sort(key=lambda r: r.manifest.index)
                if self._points and new and new[0].manifest.index < self._points[-1].index:
                    new, self._points = state.in_order(), []
            self._points += History(self._campaign, new).points
            if any(r.manifest.extends for r in new):
                gone = superseded(state.results.values())
                taken = {state.results[i].manifest.index for i in gone if i in state.results}
                self._points = [o for o in self._points if o.index not in taken]
        return History(self._campaign, history._results, history.warm, points=self._points)
