"""What a caller is shown: resources that there are, and how an address goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from mcp_types import Annotations, Completion, Resource

from hpcagent.errors import HpcAgentError
from hpcagent.mcp.callers import Caller
from hpcagent.mcp.pages import PAGES
from hpcagent.mcp.routes import JSON, MARKDOWN, REPORT, ROUTES, campaign_uri, run_uri, shared_uri
from hpcagent.mcp.said import clean_text
from hpcagent.mcp.shared import META, about_of, readable

__all__ = ["MOST", "arguments_of", "completed", "listed"]

MOST = 100
"""So many runs and campaigns, the newest, are in the list of resources, and so many completions are given."""
MOST_SOUGHT = 1000


def listed(caller: Caller) -> list[Resource]:
    """Resources that there are for a caller: workspace, pages, what is shared, newest runs."""
    if "runs:read" not in caller.scopes:
        return []
    return [*_fixed(), *_pages(), *_shared(caller), *_runs(caller)]


def _fixed() -> list[Resource]:
    return [
        Resource(
            uri=route.template,
            name=route.name,
            title=route.title,
            description=route.description,
            mime_type=route.mime,
            annotations=Annotations(audience=list(route.audience)),
        )
        for route in ROUTES
        if not route.parsed.variable_names
    ]


def _pages() -> list[Resource]:
    return [
        Resource(
            uri=f"docs://{name}",
            name=name,
            title=page.title,
            description=page.description,
            mime_type=MARKDOWN,
            annotations=Annotations(audience=["user", "assistant"]),
        )
        for name, page in PAGES.items()
    ]


def _shared(caller: Caller) -> list[Resource]:
    resources = caller.workspace.resources()
    return [
        Resource(
            uri=shared_uri(record.name),
            name=record.name,
            title=record.name,
            description=clean_text(record.identity.description),
            mime_type=JSON,
            annotations=Annotations(audience=["user", "assistant"]),
            _meta={META: about_of(resources, record)},
        )
        for record in readable(resources)
    ]


def _runs(caller: Caller) -> list[Resource]:
    found = []
    for row in caller.workspace.list(most=MOST)["runs"]:
        campaign = row["kind"] == "campaign"
        found.append(
            Resource(
                uri=campaign_uri(row["id"]) if campaign else run_uri(row["id"]),
                name=row["id"],
                title=clean_text(f"{row['kind']} of {row['app']}"),
                description=clean_text(f"{row['kind']} of {row['app']} on {row['site']}, of {row['owner']}"),
                mime_type=JSON,
                annotations=Annotations(
                    audience=["user", "assistant"], last_modified=_iso(row["ended_at"] or row["asked_at"])
                ),
            )
        )
    return found


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


# -- completion -------------------------------------------------------------------------------


def completed(caller: Caller, name: str, value: str, others: Mapping[str, str]) -> Completion:
    """Values of a variable of an address, or of an argument of a prompt, that begin like this.

    Args:
        caller: Sees only what is theirs.
        name: Of the variable.
        value: What was typed.
        others: Variables that have their values.
    """
    source = _VALUES.get(name)
    if source is None or "runs:read" not in caller.scopes:
        return Completion(values=[], total=0, has_more=False)
    try:
        found = [one for one in source(caller, others) if one.startswith(value)]
    except HpcAgentError:  # of a run that is not there, or not theirs, nothing is known
        found = []
    return Completion(
        values=[clean_text(one) for one in found[:MOST]], total=len(found), has_more=len(found) > MOST
    )


def _ids(kind: str) -> Callable[[Caller, Mapping[str, str]], Iterable[str]]:
    def found(caller: Caller, others: Mapping[str, str]) -> Iterable[str]:
        rows = caller.workspace.list(most=MOST_SOUGHT)["runs"]
        return [row["id"] for row in rows if kind in ("", row["kind"])]

    return found


def _paths(caller: Caller, others: Mapping[str, str]) -> Iterable[str]:
    return [one["path"] for one in caller.workspace.artifacts(others.get("run_id", ""))]


def _apps(caller: Caller, others: Mapping[str, str]) -> Iterable[str]:
    return [one["name"] for one in caller.workspace.apps()]


def _shared_names(caller: Caller, others: Mapping[str, str]) -> Iterable[str]:
    return [one.name for one in readable(caller.workspace.resources())]


def _plots(caller: Caller, others: Mapping[str, str]) -> Iterable[str]:
    beginning = f"{REPORT}/"
    paths = [one["path"] for one in caller.workspace.artifacts(others.get("campaign_id", ""))]
    return [p.removeprefix(beginning) for p in paths if p.startswith(beginning) and p.endswith(".png")]


def _keys(caller: Caller, others: Mapping[str, str]) -> Iterable[str]:
    resources = caller.workspace.resources()
    name = others.get("resource", "")
    stores = [one.name for one in readable(resources) if one.identity.type == "object_store"]
    if name not in stores or name not in resources.provisioned:
        return []
    return [one.key for one in resources.objects(name).listed(limit=MOST_SOUGHT)]


_VALUES: dict[str, Callable[[Caller, Mapping[str, str]], Iterable[str]]] = {
    "run_id": _ids(""),
    "campaign_id": _ids("campaign"),
    "path": _paths,
    "app": _apps,
    "page": lambda caller, others: PAGES,
    "plot": _plots,
    "resource": _shared_names,
    "key": _keys,
}


def arguments_of(context: Any) -> dict[str, str]:
    """Variables that a client has given along with what is to be completed."""
    return dict(getattr(context, "arguments", None) or {})
