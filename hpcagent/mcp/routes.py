"""Addresses of resources: which function reads which, and how an address is written."""

from __future__ import annotations

import functools
import inspect
import json
import mimetypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote

from mcp.server.mcpserver.exceptions import ResourceNotFoundError
from mcp.server.mcpserver.resources import DEFAULT_RESOURCE_SECURITY
from mcp.shared.uri_template import UriTemplate
from mcp_types import Annotations, ResourceTemplate

from hpcagent.mcp.said import clean

__all__ = [
    "JSON",
    "MARKDOWN",
    "OVERVIEW",
    "PNG",
    "REPORT",
    "ROUTES",
    "TEXT",
    "Content",
    "Route",
    "as_json",
    "campaign_uri",
    "file_uri",
    "matched",
    "mime_of",
    "resource",
    "run_uri",
    "shared_uri",
    "templates",
]

JSON, MARKDOWN, PNG, TEXT = "application/json", "text/markdown", "image/png", "text/plain"
OVERVIEW, REPORT = "workspace://overview", "report"

# What simulations write, and no table of MIME types knows.
_TEXTS = (".dump", ".extxyz", ".in", ".input", ".jsonl", ".lammps", ".log", ".toml", ".traj.txt", ".xyz", ".yaml")


@dataclass(frozen=True)
class Content:
    """What was read.

    Attributes:
        data: A text, or bytes of what is none.
        mime: Its MIME type.
        meta: What is known about it.
    """

    data: str | bytes
    mime: str = JSON
    meta: dict[str, Any] | None = None


@dataclass(frozen=True)
class Route:
    """Resources of one kind.

    Attributes:
        template: Their address, with variables in braces (RFC 6570).
        read: Takes the caller, and the variables by name; its docstring is the description.
        title: For people.
        mime: MIME type; empty: it depends on which one.
        audience: Whom it is for.
    """

    template: str
    read: Callable[..., Content]
    title: str
    mime: str = JSON
    audience: tuple[Literal["user", "assistant"], ...] = ("user", "assistant")

    @property
    def name(self) -> str:
        """As lists have it."""
        return self.read.__name__

    @property
    def description(self) -> str:
        """What it is."""
        return inspect.cleandoc(self.read.__doc__ or "")

    @functools.cached_property
    def parsed(self) -> UriTemplate:
        """The template, taken apart."""
        return UriTemplate.parse(self.template)


ROUTES: list[Route] = []
"""In the order in which they are tried."""


def resource(template: str, title: str, **more: Any) -> Callable[[Callable[..., Content]], Callable[..., Content]]:
    """Make a function read the resources of a template; see `Route`."""

    def made(function: Callable[..., Content]) -> Callable[..., Content]:
        ROUTES.append(Route(template, function, title, **more))
        return function

    return made


def matched(uri: str) -> tuple[Route, dict[str, str]] | None:
    """Which resource an address means; None: none of these.

    Raises:
        ResourceNotFoundError: It leads out of where it begins.
    """
    for route in ROUTES:
        found = route.parsed.match(uri)
        if found is None:
            continue
        if DEFAULT_RESOURCE_SECURITY.validate(found) is not None:
            raise ResourceNotFoundError("there is no such resource: its address leads out of where it begins.")
        return route, {name: str(value) for name, value in found.items()}
    return None


def templates() -> list[ResourceTemplate]:
    """The templates, as a client lists them."""
    return [
        ResourceTemplate(
            uri_template=route.template,
            name=route.name,
            title=route.title,
            description=route.description,
            mime_type=route.mime or None,
            annotations=Annotations(audience=list(route.audience)),
        )
        for route in ROUTES
        if route.parsed.variable_names
    ]


def as_json(data: Any, *, exact: bool = False, **more: Any) -> Content:
    """Plain data without secrets and control characters, as JSON; `exact`: with all digits."""
    return Content(json.dumps(clean(data, exact=exact), ensure_ascii=False, separators=(",", ":")), JSON, **more)


def mime_of(path: str, data: str | bytes) -> str:
    """MIME type of a file, by its name and whether it is text."""
    guessed = None if path.lower().endswith(_TEXTS) else mimetypes.guess_type(path)[0]
    if isinstance(data, bytes):
        return guessed if guessed and not guessed.startswith("text/") else "application/octet-stream"
    textual = guessed and (guessed.startswith("text/") or guessed.endswith(("json", "xml")))
    return str(guessed) if textual else TEXT


def run_uri(identity: str) -> str:
    """Address of a run, or of a campaign as a run."""
    return f"run://{quote(identity, safe='')}"


def campaign_uri(identity: str) -> str:
    """Address of a campaign's answer."""
    return f"campaign://{quote(identity, safe='')}"


def file_uri(identity: str, path: str) -> str:
    """Address of a run's file.

    Example:
        >>> file_uri("r-1", "a b/50%.txt")
        'run://r-1/files/a%20b/50%25.txt'
    """
    return f"{run_uri(identity)}/files/{quote(path, safe='/')}"


def shared_uri(name: str, item: str = "") -> str:
    """Address of a resource that the workspace's people share, or of something in it."""
    return f"resource://{quote(name, safe='')}" + (f"/{quote(item, safe='')}" if item else "")
