"""Plain data on the wire: the C pickler instead of dill, which costs 50 µs a call for a small dict.

Dill stays the fallback for what pickle cannot say: functions of a notebook, closures, local classes.
"""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable, Mapping
from typing import Any

from parsl.serialize.base import SerializerBase

__all__ = ["CANCEL", "Cancelled", "PlainSerializer", "pack", "placed", "run", "run_dill"]

RUN = {"task_executor": {"f": f"{__name__}.run"}}
"""Parsl's task context that makes a worker call `run` on the payload."""

PLACE = "HPCAGENT_PLACE"
"""Environment variable of a worker with the place of its run (JSON): hosts with cores and gpus; see `room.py`."""

CANCEL = "cancel"
"""In place of a task's call: the task of that id is not wanted any more."""


class Cancelled(Exception):
    """A task was cancelled before it had begun."""


def pack(function: Callable[..., Any], args: tuple[Any, ...]) -> bytes | None:
    """Return the payload for `run`, or None if the function cannot be found by its name on a worker."""
    if getattr(function, "__module__", "__main__") == "__main__":
        return None
    try:
        return pickle.dumps((function, args), protocol=pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError):
        return None


def placed(task: dict[str, Any], place: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the task as it is sent to a worker that is to know where it may run."""
    if not place:
        return task
    context = task["context"]
    how = context.get("task_executor", {"f": f"{__name__}.run_dill"})
    return {**task, "context": {**context, "task_executor": {**how, "k": {"place": json.dumps(place)}}}}


def run(payload: bytes, place: str = "") -> Any:
    """Call the function that `pack` put into the payload; runs on a worker."""
    _be_at(place)
    function, args = pickle.loads(payload)
    return function(*args)


def run_dill(payload: bytes, place: str = "") -> Any:
    """Run a task that Parsl packed, on a worker."""
    from parsl.executors.execute_task import execute_task

    _be_at(place)
    return execute_task(payload)


def _be_at(place: str) -> None:
    if place:
        os.environ[PLACE] = place
    else:
        os.environ.pop(PLACE, None)


class PlainSerializer(SerializerBase):  # type: ignore[misc]  # Parsl has no type information
    """Parsl's own plug-in point: the reader finds this class by the name in front of the data."""

    identifier = f"{__name__} PlainSerializer".encode()

    def serialize(self, data: Any) -> bytes:  # any plain data
        return pickle.dumps(data, protocol=pickle.HIGHEST_PROTOCOL)

    def deserialize(self, body: bytes) -> Any:  # what serialize was given
        return pickle.loads(body)


def prefer_plain() -> None:
    """Make this process answer in plain pickles where it can. For workers, whose process is ours."""
    from parsl.serialize import facade

    others = dict(facade.methods_for_data)
    facade.methods_for_data.clear()
    facade.register_method_for_data(PlainSerializer())
    facade.methods_for_data.update(others)
