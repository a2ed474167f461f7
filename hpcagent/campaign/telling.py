"""What a session of a campaign tells whoever watches it."""

from __future__ import annotations

from collections.abc import Callable

from hpcagent.campaign.events import Event
from hpcagent.campaign.runner import Runner
from hpcagent.campaign.spending import Spending
from hpcagent.campaign.state import State
from hpcagent.campaign.sweep_runs import PlannedRuns
from hpcagent.model.records import Result
from hpcagent.sites.site import Site

__all__ = ["Teller"]


class Teller:
    """Tells events, each with how far the campaign is.

    Args:
        watch: Is told.
        planned: How many runs are planned in all.

    Attributes:
        state: What is on record; at first nothing.
        runner: Whose runs are under way.
        spending: Whose forecast is told.
    """

    def __init__(self, watch: Callable[[Event], None], planned: PlannedRuns) -> None:
        self._watch = watch
        self.planned = planned
        self.state = State()
        self.runner: Runner | None = None
        self.spending: Spending | None = None

    def tell(self, kind: str, *, results: tuple[Result, ...] = (), reason: str = "") -> None:
        """Tell of one thing that has happened; see `Event` for the kinds."""
        self._watch(
            Event(
                kind,
                results=results,
                reason=reason,
                running=0 if self.runner is None else len(self.runner.running),
                runs=self.state.ended - self.state.elsewhere,
                budget=self.planned.count(self.state.manifests),
                outlook=None if self.spending is None else self.spending.outlook(),
            )
        )

    def news(self, site: Site | None) -> None:
        """Tell what the runner and the site have to say."""
        for text in () if self.runner is None else self.runner.news():
            self.tell("site", reason=text)
        for text in () if site is None else site.news():
            self.tell("site", reason=text)
