"""Apps: what runs on a worker, and the contract that says what it takes and gives."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["run_mpi", "synthetic", "thermo"]

if TYPE_CHECKING:
    from hpcagent.apps.base import App
    from hpcagent.apps.launch import run_mpi as run_mpi

    synthetic: App
    thermo: App


def __getattr__(name: str) -> Any:
    # `ha.apps.thermo` is the app. A worker that only runs orders never comes here.
    places = {
        "run_mpi": "hpcagent.apps.launch",
        "synthetic": "hpcagent.apps.landscape",
        "thermo": "hpcagent.apps.analysis.thermo",
    }
    if name in places:
        value = getattr(import_module(places[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'hpcagent.apps' has no attribute {name!r}")
