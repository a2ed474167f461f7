"""What is known of materials: own results and databases, asked alike; catalysts that are computed only once."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_WHERE = {
    "Answer": "hpcagent.materials.answer",
    "AseDatabase": "hpcagent.materials.from_ase",
    "Campaigns": "hpcagent.materials.from_campaigns",
    "CatalystTable": "hpcagent.materials.from_table",
    "Filters": "hpcagent.materials.filters",
    "Found": "hpcagent.materials.answer",
    "Optimade": "hpcagent.materials.from_optimade",
    "query_materials_database": "hpcagent.materials.query",
    "run_catalyst": "hpcagent.materials.catalyst",
    "source_behind": "hpcagent.materials.query",
}

__all__ = sorted(_WHERE)

if TYPE_CHECKING:
    from hpcagent.materials.answer import Answer as Answer
    from hpcagent.materials.answer import Found as Found
    from hpcagent.materials.catalyst import run_catalyst as run_catalyst
    from hpcagent.materials.filters import Filters as Filters
    from hpcagent.materials.from_ase import AseDatabase as AseDatabase
    from hpcagent.materials.from_campaigns import Campaigns as Campaigns
    from hpcagent.materials.from_optimade import Optimade as Optimade
    from hpcagent.materials.from_table import CatalystTable as CatalystTable
    from hpcagent.materials.query import query_materials_database as query_materials_database
    from hpcagent.materials.query import source_behind as source_behind


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'hpcagent.materials' has no attribute {name!r}")
