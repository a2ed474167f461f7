"""What Parsl is given of an app that is called by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcagent.apps.worker import execute_as_result
from hpcagent.model.records import Result

__all__ = ["run_placed"]


def run_placed(order: Mapping[str, Any], *upstream: Any, parsl_resource_specification: object = None) -> Result:
    """Run an order on a worker. Parsl hands a task's resources to its function as well."""
    result: Result = execute_as_result(order, *upstream)
    return result
