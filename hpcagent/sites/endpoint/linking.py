"""The way to an endpoint, made when it is needed: the SDK takes a second to import."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpcagent.sites.endpoint.link import AnyLink, OnSent
    from hpcagent.sites.profile import Profile

__all__ = ["LinkMaker", "link_to"]


LinkMaker = Callable[..., "AnyLink"]


def link_to(profile: Profile, label: str, *, on_sent: OnSent, tell: Callable[[str], None]) -> AnyLink:
    """The link of one executor to its endpoint, over the SDK."""
    link: AnyLink = import_module("hpcagent.sites.endpoint.link").Link(profile, label, on_sent=on_sent, tell=tell)
    return link
