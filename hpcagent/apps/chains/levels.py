"""What every chain of computations hands on to its runs: the level of theory, the cores, the settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcagent.apps.engines.base import LEVEL
from hpcagent.apps.engines.task import RANKS

__all__ = ["level_of", "own_settings"]


def level_of(params: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a chain's parameters that say what to compute with and on how many cores."""
    return {name: value for name, value in params.items() if name in LEVEL or name in RANKS}


def own_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A chain's settings as those of its apps; files by their paths."""
    paths = settings.get("paths", {})
    return {k: paths.get(k) or v for k, v in settings.items() if k not in ("files", "paths")}
