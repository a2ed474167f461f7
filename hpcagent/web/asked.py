"""What a page may send: checked here, and once more by the gate."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from hpcagent.mcp.named import site_name
from hpcagent.model.contract import LONGEST_S

__all__ = [
    "Asked",
    "CampaignAsked",
    "Decision",
    "Explain",
    "Extension",
    "Name",
    "Nothing",
    "PackagedAsked",
    "RunAsked",
]

Site = Annotated[str, Field(max_length=200), AfterValidator(site_name)]
Why = Annotated[str, Field(max_length=2000)]
Name = Annotated[str, Field(min_length=1, max_length=200)]


class Asked(BaseModel):
    """What a page sends: nothing else is taken, and nothing is converted."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Nothing(Asked):
    """No more than the address says."""


class RunAsked(Asked):
    """A run: an app by its name, parameters in the units of its contract."""

    app: Name
    params: dict[str, Any] = Field(default={}, max_length=200)
    site: Site = ""
    walltime_s: float | None = Field(default=None, gt=0, le=LONGEST_S)
    seed: int = Field(default=0, ge=0, le=2**63 - 1)
    why: Why = ""


class Range(Asked):
    """Bounds of a parameter, or its choices."""

    low: float | None = None
    high: float | None = None
    choices: list[str | float | bool] | None = Field(default=None, max_length=100)


class Limit(Asked):
    """A limit on a metric, in its unit."""

    at_most: float | None = None
    at_least: float | None = None


class CampaignAsked(Asked):
    """A campaign that looks for the best point of an app."""

    app: Name
    metric: Name
    direction: str = Field(pattern="^(maximize|minimize)$")
    limits: dict[str, Limit] = Field(default={}, max_length=20)
    space: dict[str, Range] = Field(default={}, max_length=100)
    fixed: dict[str, Any] = Field(default={}, max_length=100)
    max_runs: int = Field(ge=1, le=100_000)
    node_hours: float | None = Field(default=None, gt=0)
    seed: int = Field(default=0, ge=0, le=2**63 - 1)
    site: Site = ""
    why: Why = ""


class PackagedAsked(Asked):
    """A campaign that comes with the library, by its name; what is given replaces what stands in it."""

    campaign: Name
    max_runs: int | None = Field(default=None, ge=1, le=100_000)
    node_hours: float | None = Field(default=None, gt=0)
    site: Site = ""
    why: Why = ""


class Extension(Asked):
    """How far a campaign that has ended goes on."""

    max_runs: int | None = Field(default=None, ge=1, le=100_000)
    node_hours: float | None = Field(default=None, gt=0)
    why: Why = ""


class Decision(Asked):
    """Yes or no to what waits for a person."""

    grant: bool
    note: str = Field(default="", max_length=500)


class Explain(Asked):
    """The run of a campaign that is to be explained, by its number."""

    run: int = Field(ge=0)
