"""What somebody wants to run, as the gate sees it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Literal, get_args

from pydantic import Field

from hpcagent.model.base import Record, canonical_json
from hpcagent.model.texts import Name

__all__ = ["TIERS", "Effect", "Request", "Tier", "charged_of", "effects_of"]

Tier = Literal["none", "limits", "bubblewrap"]
TIERS: tuple[Tier, ...] = ("none", "limits", "bubblewrap")
"""Sandbox tiers; a later one keeps what the earlier ones keep."""

Effect = Literal["reads the network", "writes outside its folder", "changes another system"]
"""Side effects beyond an app's declared outputs, the weaker first; see `model.contract.SIDE_EFFECTS`."""


def effects_of(side_effects: str) -> tuple[Effect, ...]:
    """What an app with this side effect may do beyond its declared outputs.

    Example:
        >>> effects_of("writes outside its folder")
        ('reads the network', 'writes outside its folder')
        >>> effects_of("declared outputs only")
        ()
    """
    known: tuple[Effect, ...] = get_args(Effect)
    return known[: known.index(side_effects) + 1] if side_effects in known else ()


def charged_of(asked: Mapping[str, Any]) -> float | None:
    """Node-hours that are booked at most of a request in plain data, as `Request.charged_node_hours`.

    Example:
        >>> charged_of({"node_hours": 1.0, "share": 0.5}), charged_of({"node_hours": 1.0}), charged_of({})
        (0.5, 1.0, None)
    """
    hours = asked.get("node_hours")
    return None if hours is None else float(hours) * float(asked.get("share", 1.0))


class Request(Record):
    """One run, or one campaign as a whole.

    Attributes:
        kind: A single run, or a campaign.
        app: The app's name.
        version: Its semantic version.
        work: What decides the result: a run's execution id, a campaign's digest.
        params: Parameters of a run; of a campaign, for people to read: its objective with the limits, what is
            fixed, and the ranges of what it varies.
        given: Of parameters that are files of runs: the text `artifact:RUN/PATH` that the caller wrote, which is
            shown in place of the path. No approval is bound to it: the path is in `params` or in `work`.
        units: Of those that are numbers, as the contract has them: for whoever approves a run.
        site: The site's profile.
        runs: Runs at most; None without a bound.
        nodes: Nodes of one run.
        node_hours: Node-hours at most: nodes x walltime of a run, a campaign's cap. None where nothing ends it.
        share: The share of its nodes that a run is charged for at most. A campaign's cap is of what is charged.
        expected_node_hours: As forecast; never more than is charged at most. None: not known.
        expected_s: Likewise: seconds of wall time of a run, of a campaign of one of its runs.
        usd: Cost at most in US dollars, where the site has a price: of what is charged.
        priced: Whether the site has a price.
        effects: Side effects beyond declared outputs: an app's, and what is weaker.
        own: Whether it is code that the library does not bring: a script or function of somebody's own.
        sandbox: The tier that every run has at least.
        why: What the caller says it is for.
    """

    kind: Literal["run", "campaign"] = "run"
    app: Name
    version: str
    work: str
    params: dict[str, Any] = Field(default_factory=dict)
    given: dict[str, str] = Field(default_factory=dict)
    units: dict[str, str] = Field(default_factory=dict)
    site: str = ""
    runs: int | None = 1
    nodes: int = 1
    node_hours: float | None = None
    share: float = 1.0
    expected_node_hours: float | None = 0.0
    expected_s: float = 0.0
    usd: float | None = None
    priced: bool = False
    effects: tuple[Effect, ...] = ()
    own: bool = False
    sandbox: Tier = "none"
    why: str = Field(default="", max_length=2000)

    @property
    def charged_node_hours(self) -> float | None:
        """Node-hours that are booked at most: what quotas commit. None where nothing ends it.

        Example:
            >>> Request(app="synthetic", version="1.0.0", work="w", node_hours=1.0, share=0.5).charged_node_hours
            0.5
        """
        return None if self.node_hours is None else self.share * self.node_hours

    @property
    def digest(self) -> str:
        """SHA-256 of all that an approval is bound to; a forecast, which changes by itself, is not in it.

        Example:
            >>> one = Request(app="synthetic", version="1.0.0", work="w", node_hours=1.0)
            >>> one.digest == one.model_copy(update={"expected_node_hours": 0.5}).digest
            True
            >>> one.digest == one.model_copy(update={"node_hours": 2.0}).digest
            False
        """
        left_out = {"expected_node_hours", "expected_s", "given", "share", "units", "why"}
        fields = self.model_dump(mode="json", exclude=left_out)
        return hashlib.sha256(canonical_json(fields).encode()).hexdigest()

    def words(self) -> str:
        """What would run, where, at what cost at most, in a line."""
        what = "a run" if self.kind == "run" else "a campaign"
        hours = self.charged_node_hours
        most = "without a bound" if hours is None else f"at most {hours:.4g} node-hours"
        cost = "" if self.usd is None else f" ({self.usd:.2f} USD)"
        runs = "" if self.kind == "run" else f", {'any number of' if self.runs is None else self.runs} runs"
        effects = f", {' and '.join(self.effects)}" if self.effects else ""
        where = f" on {self.site}" if self.site else ""
        return f"{what} of {self.app} {self.version}{where}{runs}, {most}{cost}{effects}"
