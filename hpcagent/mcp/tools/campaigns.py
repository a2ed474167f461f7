"""Campaigns: find one, estimate, start, follow, extend, stop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from hpcagent.campaign.loading import list_configs
from hpcagent.mcp.callers import Caller
from hpcagent.mcp.named import named
from hpcagent.mcp.routes import campaign_uri
from hpcagent.mcp.serving import Answer, Price, tool
from hpcagent.mcp.tools.runs import Site, Why
from hpcagent.model.base import read_toml

__all__ = [
    "CampaignId",
    "bayesian_optimize",
    "estimate_campaign",
    "extend_campaign",
    "get_campaign",
    "list_packaged_campaigns",
    "start_campaign",
    "stop_campaign",
]

WAIT_S = 0.5
MOST_POINTS = 50
"""Points of a sweep in an answer: more would fill the context of whoever asks."""
BOUND_OF_CAMPAIGN = 'give changes = {"until.node_hours": ...}'

CampaignId = Annotated[str, Field(description="Handle of a campaign.", max_length=200)]
Which = Annotated[
    str,
    Field(
        description=(
            "Name of list_packaged_campaigns, or a campaign's TOML: app (of list_apps), objective, "
            "space, policy, until. No paths, no code."
        ),
        min_length=1,
        max_length=100_000,
    ),
]
Changes = Annotated[
    dict[str, Any],
    Field(
        description=(
            'Dotted key to its new value, e.g. {"until.max_runs": 12, "space.skin.high": 4.0}, in the'
            " units of describe_app; until.node_hours in node-hours."
        ),
        max_length=100,
    ),
]


class PackagedCampaign(Answer):
    """A campaign that comes along."""

    name: str
    app: str
    description: str
    max_runs: int | None = Field(description="null: no bound.")


class PackagedCampaigns(Answer):
    """Campaigns that come along."""

    campaigns: list[PackagedCampaign]


class CampaignHandle(Answer):
    """A campaign that was started, or found."""

    campaign_id: str
    state: str
    found: bool = Field(description="Known: nothing began anew.")
    workdir: str
    uri: str


class CampaignEstimate(Answer):
    """What a campaign would take."""

    app: str
    site: str
    runs: int | None = Field(description="At most; null: no bound.")
    wall_s_per_run: float = Field(description="Expected wall time of one run, in seconds.")
    node_hours: float | None = Field(description="Expected; null: no bound of runs.")
    node_hours_at_most: float | None = Field(description="null: nothing bounds them.")
    usd_at_most: float | None = Field(description="In USD; null: no price or no bound.")
    approval: str = Field(description="Why a person has to say yes; empty: nobody has to.")
    refused: dict[str, Any] | None = Field(description="Why it would be refused.")
    known: str | None = Field(description="The very same campaign, begun before.")


class CampaignStatus(Answer):
    """How a campaign stands."""

    campaign_id: str
    name: str
    app: str
    site: str
    state: str
    question: str = Field(description="Goal and limits.")
    policy: str
    runs: dict[str, Any] = Field(
        description="done: have ended; most: at most, null: no bound; by_state: state to number."
    )
    node_hours: float = Field(description="Node-hours taken so far.")
    node_hours_at_most: float | None = Field(description="Node-hours at most; null: nothing bounds them.")
    note: str | None = Field(description="Why it ended.")
    failures: dict[str, int] = Field(description="Name to number of runs.")
    answer: dict[str, Any] | None = Field(
        description=(
            "best (params, metrics, uncertainty: one standard error, units, probability_feasible 0 to 1, ties; "
            "estimated: metrics estimated from CPU time; about: what else is to be known), expected_regret "
            "(with its unit), node_hours, remarks (what disturbed the runs); null: none yet. Of a sweep points, "
            f"the first {MOST_POINTS} of points_in_all, in place of best."
        )
    )
    answer_state: str = Field(description="none, running (a newer one is worked out), done, failed.")
    answer_of_runs: int | None = Field(description="Runs that it knows.")
    answer_handle: str | None = Field(description="Of a newer answer: get_answer.")


class CampaignStopping(Answer):
    """What becomes of it."""

    campaign_id: str
    state: str = Field(description="As it was when this was asked.")
    note: str


def _handle(found: dict[str, Any]) -> CampaignHandle:
    workdir = "/".join(str(found.pop("workdir")).split("/")[-2:])
    identity = found.pop("id")
    return CampaignHandle(campaign_id=identity, workdir=workdir, uri=campaign_uri(identity), **found)


def fewer_points(answer: dict[str, Any] | None) -> dict[str, Any] | None:
    """An answer with some points of a sweep only, and those once."""
    if answer is None or "points" not in answer:
        return answer
    rest = {name: value for name, value in answer.items() if name != "table"}
    return rest | {"points": answer["points"][:MOST_POINTS]}


@tool("Packaged campaigns", foreign=True)
def list_packaged_campaigns(caller: Caller) -> PackagedCampaigns:
    """Campaigns that come with hpcagent: name, app, what each finds out. start_campaign starts one by its name."""
    found = []
    for name, path in list_configs().items():
        data = read_toml(path)
        until = data.get("until", {})
        found.append(
            PackagedCampaign(
                name=name,
                app=str(data.get("app", "")),
                description=str(data.get("description", "")),
                max_runs=until.get("max_runs") if isinstance(until, dict) else None,
            )
        )
    return PackagedCampaigns(campaigns=found)


@tool("What a campaign would take")
def estimate_campaign(
    caller: Caller,
    campaign: Which,
    changes: Changes = {},  # noqa: B006
    site: Site = "",
) -> CampaignEstimate:
    """Runs and node-hours of a campaign before anything runs, and whether the gate would let it through."""
    return CampaignEstimate(
        **caller.workspace.estimate_campaign(campaign, changes=changes, site=site, data_only=True)
    )


def _price(caller: Caller, *, campaign: str, changes: dict[str, Any], site: str, why: str) -> Mapping[str, Any]:
    return caller.workspace.estimate_campaign(campaign, changes=changes, site=site, data_only=True)


@tool(
    "Start a campaign",
    scope="runs:write",
    read_only=False,
    asks=True,
    price=Price(_price, BOUND_OF_CAMPAIGN),
)
def start_campaign(
    caller: Caller,
    campaign: Which,
    changes: Changes = {},  # noqa: B006
    site: Site = "",
    why: Why = "",
) -> CampaignHandle:
    """Start a campaign, approved as a whole with its cap, and return at once; the very same one is found.

    Follow it by get_campaign.
    """
    return _handle(
        caller.workspace.start(campaign, changes=changes, site=site, why=why, data_only=True, at_once=True)
    )


def _far(data: Mapping[str, Any]) -> tuple[float, float | None, str]:
    return data["runs"]["done"], data["runs"]["most"], "runs"


@tool("How a campaign stands", foreign=True, waits=True, progress=_far)
def get_campaign(caller: Caller, campaign_id: CampaignId) -> CampaignStatus:
    """Progress, node-hours, and the answer so far with its uncertainty, P(feasible) and expected regret.

    Progress is of this moment. The answer is worked out in the background: ask again, or get_answer.
    """
    found = caller.workspace.campaign(campaign_id, timeout_s=WAIT_S)
    found["answer"] = fewer_points(found["answer"])
    return CampaignStatus(campaign_id=found.pop("id"), **found)


def _price_of_extension(
    caller: Caller, *, campaign_id: str, changes: dict[str, Any], why: str
) -> Mapping[str, Any]:
    return caller.workspace.estimate_extension(campaign_id, changes, data_only=True)


@tool(
    "Go on with a campaign",
    scope="runs:write",
    read_only=False,
    idempotent=False,
    asks=True,
    price=Price(_price_of_extension, BOUND_OF_CAMPAIGN),
)
def extend_campaign(
    caller: Caller,
    campaign_id: CampaignId,
    changes: Changes,
    why: Why = "",
) -> CampaignHandle:
    """Go on with a campaign that has ended or was stopped, e.g. with more runs; returns at once.

    What it is to take on top is let through anew.
    """
    return _handle(caller.workspace.extend(campaign_id, changes, why=why, data_only=True, at_once=True))


@tool("Stop a campaign", scope="runs:write", read_only=False, destructive=True)
def stop_campaign(caller: Caller, campaign_id: CampaignId) -> CampaignStopping:
    """Stop a campaign; what has finished is kept, and extend_campaign goes on. Returns at once."""
    found = caller.workspace.stop(campaign_id, at_once=True)
    over = found["state"] in ("completed", "failed", "stopped")
    note = "it had ended before" if over else "it is asked to stop, which may take a minute"
    return CampaignStopping(campaign_id=campaign_id, state=found["state"], note=note)


def _cap(caller: Caller, *, node_hours: float | None, **more: Any) -> Mapping[str, Any]:
    return {"node_hours_at_most": node_hours}


@tool(
    "Look for the best point",
    scope="runs:write",
    read_only=False,
    asks=True,
    price=Price(_cap, "give node_hours"),
)
def bayesian_optimize(
    caller: Caller,
    objective_function: Annotated[
        str, Field(description="An app by its name (list_apps): never code.", max_length=200)
    ],
    objective: Annotated[
        dict[str, Any],
        Field(
            description='E.g. {"maximize": "ns_per_day", "subject_to": {"drift": {"at_most": 1.0}}}; limits are '
            "in the metric's unit (describe_app)."
        ),
    ],
    budget: Annotated[int, Field(ge=1, le=100_000, description="Runs at most.")],
    search_space: Annotated[
        dict[str, dict[str, Any]],
        Field(
            description='Parameter to {"low": ..., "high": ...} or {"choices": [...]} in the contract\'s unit; '
            "empty: what the app varies.",
            max_length=100,
        ),
    ] = {},  # noqa: B006
    constraints: Annotated[
        list[str], Field(description='Conditions between parameters, e.g. ["x + y <= 1"].', max_length=100)
    ] = [],  # noqa: B006
    fixed: Annotated[
        dict[str, Any], Field(description="Values of other parameters, in their units.", max_length=100)
    ] = {},  # noqa: B006
    node_hours: Annotated[float | None, Field(gt=0, description="Node-hours at most.")] = None,
    seed: Annotated[int, Field(ge=0, description="Seed of the policy.")] = 0,
    site: Site = "",
    why: Why = "",
) -> CampaignHandle:
    """Look for the best point of an app with Gaussian processes: a campaign, as by start_campaign."""
    return _handle(
        caller.workspace.bayesian_optimize(
            named(objective_function, caller.workspace),
            objective,
            budget,
            search_space=search_space or None,
            constraints=constraints,
            fixed=fixed,
            node_hours=node_hours,
            seed=seed,
            site=site,
            why=why,
            at_once=True,
        )
    )
