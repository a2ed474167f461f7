"""Resources: tables, objects and notebooks that several people and programs share, with who may do what with each.

`Resources.open(folder, caller="anna", role="planner")` is the way in. (What a run occupies, nodes and ranks, is
`ha.Resources`.)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_WHERE = {
    "Caller": "hpcagent.resources.callers",
    "Database": "hpcagent.resources.database",
    "Field": "hpcagent.resources.record",
    "Notebook": "hpcagent.resources.notebook",
    "ObjectStore": "hpcagent.resources.objects",
    "Range": "hpcagent.resources.ranges",
    "Resource": "hpcagent.resources.record",
    "Resources": "hpcagent.resources.folder",
}

__all__ = sorted(_WHERE)

if TYPE_CHECKING:
    from hpcagent.resources.callers import Caller as Caller
    from hpcagent.resources.database import Database as Database
    from hpcagent.resources.folder import Resources as Resources
    from hpcagent.resources.notebook import Notebook as Notebook
    from hpcagent.resources.objects import ObjectStore as ObjectStore
    from hpcagent.resources.ranges import Range as Range
    from hpcagent.resources.record import Field as Field
    from hpcagent.resources.record import Resource as Resource


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'hpcagent.resources' has no attribute {name!r}")
