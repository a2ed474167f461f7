"""What takes longer than a moment to say of a campaign: a handle at once, the answer later."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from mcp_types import ContentBlock, ResourceLink
from pydantic import Field

from hpcagent.mcp.callers import Caller
from hpcagent.mcp.routes import file_uri
from hpcagent.mcp.serving import Answer, tool
from hpcagent.mcp.tools.campaigns import WAIT_S, CampaignId, fewer_points

__all__ = ["explain_run", "get_answer", "make_report", "recommend_points", "replay_campaign"]

TYPES = {"md": "text/markdown", "html": "text/html", "png": "image/png"}


class Later(Answer):
    """An answer, or the handle by which it is had."""

    handle: str = Field(description="For get_answer.")
    what: str
    campaign_id: str
    state: Literal["running", "done", "failed"] = Field(description="running: ask get_answer again.")
    answer: dict[str, Any] | None = Field(description="null: none yet.")
    error: dict[str, Any] | None = Field(description="kind, message.")


def _later(found: dict[str, Any]) -> Later:
    return Later(campaign_id=found.pop("campaign"), **found)


def _far(data: Mapping[str, Any]) -> tuple[float, float | None, str]:
    return float(data["state"] != "running"), 1.0, data["state"]


def _files(data: Mapping[str, Any]) -> list[ContentBlock]:
    """The files of a report as links."""
    if data["what"] != "report" or data["answer"] is None:
        return []
    return [
        ResourceLink(
            type="resource_link",
            uri=file_uri(data["campaign_id"], path),
            name=path.rpartition("/")[2],
            mime_type=TYPES.get(path.rpartition(".")[2]),
        )
        for path in data["answer"]["files"]
    ]


@tool("Why a run was asked for", foreign=True, waits=True, progress=_far)
def explain_run(
    caller: Caller,
    campaign_id: CampaignId,
    run: Annotated[
        str,
        Field(
            description="Its number in the campaign, from 0, or at least 4 characters of its execution id.",
            min_length=1,
            max_length=100,
        ),
    ],
) -> Later:
    """Why a campaign asked for a run, what was expected with which error, and what came out.

    The answer has why, expected (mean, error, unit), outcome, feasible, and text.
    """
    return _later(caller.workspace.ask_later(campaign_id, "explain", timeout_s=WAIT_S, run=run))


@tool("Next points", foreign=True, waits=True, progress=_far)
def recommend_points(
    caller: Caller,
    campaign_id: CampaignId,
    n: Annotated[int, Field(ge=1, le=64, description="How many points.")] = 1,
) -> Later:
    """Points that a campaign's policy would run next, with their expected improvement; nothing is run.

    The answer has recommended_points (params, why, predicted with error, unit) and expected_improvement in unit.
    """
    return _later(caller.workspace.ask_later(campaign_id, "recommend", timeout_s=WAIT_S, n=n))


@tool(
    "What other policies would have found",
    scope="runs:write",
    read_only=False,
    foreign=True,
    waits=True,
    progress=_far,
)
def replay_campaign(
    caller: Caller,
    campaign_id: CampaignId,
    policies: Annotated[
        list[Annotated[str, Field(max_length=500)]],
        Field(
            description='By name, with options: ["random", "ucb:buckets=4"]. The recorded one is played, too.',
            max_length=8,
        ),
    ],
    seeds: Annotated[int, Field(ge=1, le=50, description="How often each is played.")] = 10,
) -> Later:
    """Play other policies on a recorded campaign, in a model of its runs: which needs fewest for the best point?

    The answer has conclusions, warnings, the gap to the best point run by run (a share of gap_of), and text.
    Nothing is run; it may take minutes. One is played at a time, three of one person may wait; the role must run.
    """
    asked = {"policies": policies, "seeds": seeds}
    return _later(caller.workspace.ask_later(campaign_id, "replay", timeout_s=WAIT_S, **asked))


@tool("Write a campaign's report", scope="runs:write", read_only=False, blocks=_files, waits=True, progress=_far)
def make_report(caller: Caller, campaign_id: CampaignId) -> Later:
    """Write a campaign's report with its plots, finished or not.

    fetch_artifact reads its files, with campaign_id as run_id.
    """
    return _later(caller.workspace.ask_later(campaign_id, "report", timeout_s=WAIT_S))


@tool("An answer", foreign=True, blocks=_files, waits=True, progress=_far)
def get_answer(
    caller: Caller,
    handle: Annotated[str, Field(description="As the question returned it: j-...", max_length=100)],
) -> Later:
    """The answer to a question that was asked before: explain_run, replay_campaign, make_report, get_campaign."""
    found = caller.workspace.get_answer(handle, timeout_s=WAIT_S)
    return _later(found | {"answer": fewer_points(found["answer"])} if found["what"] == "answer" else found)
