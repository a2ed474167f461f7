"""Campaigns by their folders: run, attached, followed, opened, compared, listed, stopped, archived, removed."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_WHERE = {
    "compare": "hpcagent.runs.compared",
    "contract_document": "hpcagent.runs.documented",
    "disk_use": "hpcagent.runs.on_disk",
    "list_runs": "hpcagent.runs.listed",
}

__all__ = ["compare", "contract_document", "disk_use", "list_runs"]

if TYPE_CHECKING:
    from hpcagent.runs.compared import compare as compare
    from hpcagent.runs.documented import contract_document as contract_document
    from hpcagent.runs.listed import list_runs as list_runs
    from hpcagent.runs.on_disk import disk_use as disk_use


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'hpcagent.runs' has no attribute {name!r}")
