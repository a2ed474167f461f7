"""Records of what a campaign began with: runs of earlier ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import PrivateAttr

from hpcagent.model.base import Record
from hpcagent.model.parameter import Params
from hpcagent.model.records import Observation, Side

__all__ = ["EarlierRun", "Source", "WarmStart"]


class EarlierRun(Record):
    """One run of an earlier campaign, as far as anything can be learned from it.

    Attributes:
        params: All its parameters.
        completed: False where the simulation itself failed.
        metrics: In the units of the contract; speeds as that campaign compared them.
        uncertainty: Standard errors.
        bounds: Metrics that are only bounds.
        failure: Name of the failure.
        distrusted: Whether its measured times should not be believed.
        wall_s: Wall time, in seconds.
        node_hours: What it cost then.
        host: Where it ran.
    """

    params: Params
    completed: bool = True
    metrics: dict[str, float] = {}
    uncertainty: dict[str, float] = {}
    bounds: dict[str, Side] = {}
    failure: str | None = None
    distrusted: bool = False
    wall_s: float = 0.0
    node_hours: float = 0.0
    host: str = ""


class Source(Record):
    """What was taken over from one earlier campaign.

    Attributes:
        folder: Where it lay.
        campaign: Its name.
        digest: Input digest of its app then.
        found: How many results it had.
        outside: Of these, left out because they are not points of this campaign's space.
        uninformative: Of these, left out because infrastructure failed or they were cancelled.
        context: The circumstances it stated.
        reference: Point that its speeds are relative to, or None.
        metric: The metric of that reference.
        value: Its median there, in the metric's unit.
        runs: The runs that were taken over.
    """

    folder: str
    campaign: str
    digest: str
    found: int
    outside: int = 0
    uninformative: int = 0
    context: Params = {}
    reference: Params | None = None
    metric: str = ""
    value: float | None = None
    runs: tuple[EarlierRun, ...] = ()

    def __str__(self) -> str:
        text = f"{len(self.runs)} of {self.found} run(s) of {self.folder}"
        left = [f"{self.outside} outside of this space"] * (self.outside > 0)
        left += [f"{self.uninformative} that infrastructure or a user stopped"] * (self.uninformative > 0)
        return text + (f" (left out: {', '.join(left)})" if left else "")


class WarmStart(Record):
    """What a campaign began with; one event of its journal, so that nothing depends on the folders any more.

    Attributes:
        host: Where its coordinator was then.
        earlier: The earlier campaigns.
    """

    host: str = ""
    earlier: tuple[Source, ...] = ()
    # The last answer of `earlier_observations`: with thousands of runs it takes as long as a suggestion.
    _known: tuple[object, list[Observation]] | None = PrivateAttr(default=None)

    @classmethod
    def recorded(cls, event: Mapping[str, Any]) -> WarmStart:
        """From the event `warm_start`."""
        return cls.model_validate({k: event[k] for k in ("host", "earlier") if k in event})

    def event(self) -> dict[str, Any]:
        """The event `warm_start`."""
        return {"event": "warm_start", **self.model_dump(mode="json", exclude_defaults=True)}

    @property
    def runs(self) -> int:
        """How many runs were taken over."""
        return sum(len(source.runs) for source in self.earlier)

    def __str__(self) -> str:
        return "; ".join(map(str, self.earlier))
