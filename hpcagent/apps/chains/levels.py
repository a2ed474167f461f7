"""What every chain of computations hands on to its runs: the level of theory, the cores, the settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcagent.apps.build.kmesh import k_mesh
from hpcagent.apps.chain import metrics_of
from hpcagent.apps.engines.base import KPOINTS, LEVEL
from hpcagent.apps.engines.registry import engine
from hpcagent.apps.engines.task import RANKS

__all__ = ["fixed_mesh", "level_of", "level_of_engine", "own_settings"]


def level_of(params: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a chain's parameters that say what to compute with and on how many cores."""
    return {name: value for name, value in params.items() if name in LEVEL or name in RANKS}


def level_of_engine(params: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """As `level_of`, without what the engine does not take, and a note that says so.

    For chains whose engine may be varied: a classical potential has no functional, but the DFT beside it has one.
    """
    level = level_of(params)
    takes = engine(level["engine"]).takes
    unused = [
        n
        for n, v in level.items()
        if n in LEVEL and n not in (*takes, "engine", "repairs") and v != LEVEL[n].default
    ]
    note = f"engine {level['engine']} has no use for {', '.join(unused)}" if unused else ""
    return {n: v for n, v in level.items() if n not in unused}, (note,) if note else ()


def fixed_mesh(structure: Any, level: Mapping[str, Any], *, denser: float = 1.0) -> dict[str, Any]:
    """A level whose k-points are those of this structure, for all strained ones.

    The mesh of a strained cell would jump where a length passes a whole number of points, and the energy with it.

    Args:
        structure: The unstrained cell.
        level: Parameters of `LEVEL`.
        denser: So many times as many k-points along each vector.
    """
    if "mesh" not in engine(level["engine"]).takes:
        return dict(level)
    given = {name: level[name] for name in KPOINTS if name in level}
    found = metrics_of(k_mesh(structure, engine=level["engine"], denser=denser, **given))
    numbers = "x".join(f"{found[f'n{i}']:.0f}" for i in (1, 2, 3))
    return dict(level) | {"mesh": numbers, "kpts": 0, "kspacing": 0.0}


def own_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A chain's settings as those of its apps; files by their paths."""
    paths = settings.get("paths", {})
    return {k: paths.get(k) or v for k, v in settings.items() if k not in ("files", "paths")}
