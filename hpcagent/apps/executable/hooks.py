"""The files that decide the numbers of a program's run beside those of its settings: what it is given to read.

See `hpcagent.apps.hooks`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcagent.apps.executable.reads import digests, named
from hpcagent.apps.hooks import Files, files_of

__all__ = ["declared", "places"]


def declared(params: Mapping[str, Any], settings: Mapping[str, Any], site: Mapping[str, Any]) -> dict[str, str]:
    """Parameter -> SHA-256 of the file that it names, of those that can be read here."""
    others = _others(params)
    found = {} if others is None else others.declared(params, settings, site)
    return {**found, **digests(params, settings)}


def places(params: Mapping[str, Any], settings: Mapping[str, Any], site: Mapping[str, Any]) -> dict[str, str]:
    """Where they are: parameter -> path."""
    others = _others(params)
    found = {} if others is None else others.places(params, settings, site)
    return found | {name: str(path) for name, path in named(params, settings).items()}


def _others(params: Mapping[str, Any]) -> Files | None:
    """What a program with a parameter `engine` is taken to have: its execution ids stay as they were."""
    return files_of("", params)
