"""The result of a run that has ended, as its directory has it, and what of it counts when it is used again."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcagent.apps.made_with import newer_versions
from hpcagent.apps.modes import MODE
from hpcagent.model.failures import meaning
from hpcagent.regular import read_regular
from hpcagent.shown import writable

__all__ = ["checked_result", "final_result", "read_result", "with_reuse_said", "without_other_speeds"]


def read_result(workdir: Path) -> dict[str, Any] | None:
    """The final result in a run's directory, or None if it must (still) be run."""
    return final_result(workdir)[0]


def final_result(workdir: Path) -> tuple[dict[str, Any] | None, str]:
    """The final result in a run's directory, or None if it must (still) be run; and what is wrong with the file.

    Raises:
        OSError: The file is there and cannot be read.
    """
    path = workdir / "result.json"
    try:
        fields = json.loads(read_regular(path))
    except (FileNotFoundError, NotADirectoryError):
        return None, ""
    except (ValueError, RecursionError) as error:
        return None, f"{path} is damaged: {error}."
    return checked_result(fields, str(path))


def checked_result(fields: Any, where: str) -> tuple[dict[str, Any] | None, str]:
    """The fields of a result, or None if the run must (still) be run; and what is wrong with them.

    Args:
        fields: Plain data that should be those of a result.
        where: What they are, for the sentence that says what is wrong.
    """
    wrong = _misfit(fields)
    if wrong:
        return None, f"{where} is damaged: {wrong}."
    failure = fields.get("failure")
    if failure is not None and not meaning(failure["kind"], failure["name"], failure.get("repair")).final:
        return None, ""
    return writable(fields), ""


def _misfit(fields: Any) -> str:
    """What is not as in a result; empty: nothing. Whoever records it looks at the rest."""
    if not isinstance(fields, dict) or not isinstance(fields.get("status"), str):
        return "it has no status"
    failure = fields.get("failure")
    early = fields["status"] == "STOPPED" and isinstance(fields.get("stopped"), dict)
    if (fields["status"] == "COMPLETED" or early) != (failure is None):
        return f"its status is {fields['status']}, its failure {failure!r:.80}"
    if failure is not None and not (
        isinstance(failure, dict)
        and all(isinstance(failure.get(key), str) for key in ("kind", "name", "message"))
        and isinstance(failure.get("repair"), (str, type(None)))
    ):
        return f"its failure is {failure!r:.80}"
    metrics = fields.get("metrics", {})
    if not isinstance(metrics, dict):
        return f"its metrics are {metrics!r:.80}"
    for name, value in metrics.items():
        if not _is_number(value):
            return f"metrics.{name} is {value!r:.40} and no finite number"
    cost = fields.get("cost", {})
    if not isinstance(cost, dict):
        return f"its cost is {cost!r:.80}"
    for name, value in cost.items():
        if not (_is_number(value) and value >= 0) and (name, value) != ("cpu_s", None):
            return f"cost.{name} is {value!r:.40} and no finite number from 0"
    return ""


def _is_number(value: Any) -> bool:
    """Whether it is a finite number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond any float
        return False


def with_reuse_said(fields: dict[str, Any]) -> dict[str, Any]:
    """A finished result that is used again, with a note where what computed it has another version here."""
    newer = newer_versions(fields.get("versions") or {})
    if not newer:
        return fields
    said = f"found finished, not run again: computed with {', '.join(newer)}"
    return {**fields, "notes": [*fields.get("notes", ()), said]}


def without_other_speeds(fields: dict[str, Any], order: Mapping[str, Any], workdir: Path) -> dict[str, Any]:
    """A finished result of a call with other resources or another mode: what it computed, not how fast.

    Resources are no part of an execution id, because what is computed does not depend on them: a script that goes
    on in a larger allocation repeats nothing. A speed does depend on them.
    """
    try:
        then = json.loads(read_regular(workdir / "manifest.json"))["resources"]
        asked = order["manifest"]["resources"]
        limits = ("walltime_s", "memory_gb")
        other = {name: then[name] for name in asked if name not in limits and then[name] != asked[name]}
    except (OSError, ValueError, KeyError, TypeError):
        return fields  # of a folder that has lost it nobody knows
    if fields.get(MODE) and order.get("asked_mode", fields[MODE]) != fields[MODE]:
        other[MODE], asked = fields[MODE], {**asked, MODE: order["asked_mode"]}
    if not other:
        return fields
    timed = fields["metrics"].keys() & set(order.get("speeds") or ())
    was = ", ".join(f"{name} = {value} (asked for: {asked[name]})" for name, value in other.items())
    said = f"found finished, not run again: computed with {was}"
    if timed:
        said += (
            f"; so it has no {', '.join(sorted(timed))}: to measure so, call with another `replicate`, or in a "
            "run_dir of its own"
        )
    metrics, uncertainty = (
        {n: v for n, v in fields.get(key, {}).items() if n not in timed} for key in ("metrics", "uncertainty")
    )
    notes = [*fields.get("notes", ()), said]
    return {**fields, "metrics": metrics, "uncertainty": uncertainty, "notes": notes}
