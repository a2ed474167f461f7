"""What `hpcagent workspace` answers, as a person reads it: tables of lists, lines of what is one thing."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["IN_A_CELL", "Said", "shown"]

IN_A_CELL = 4
"""So many parameters or metrics of a run are shown in a list, where nobody says which."""


_OF_COSTS = {
    "estimated_s": "mean_estimated_s",
    "actual_s": "mean_actual_s",
    "actual_over_estimated": "median_actual_over_estimated",
}
"""Columns that say what kind of average they have."""


@dataclass(frozen=True, slots=True)
class Said:
    """An answer with words of its own.

    Attributes:
        data: What `--json` prints.
        words: Makes what a person reads; called only where it is printed.
    """

    data: Any
    words: Callable[[], str]


def shown(what: str, found: Any) -> str:
    """An answer for a person.

    Args:
        what: The command.
        found: What the service has answered.
    """
    if isinstance(found, Said):
        return found.words()
    if what in ("add-app", "added-apps", "describe", "remove-app"):
        from hpcagent.commands.added import shown as card

        return card(what, found)
    if what == "costs":
        people = [
            {"who": name, **about} for name, about in [("all", found["workspace"]), *found["people"].items()]
        ]
        accuracy = [
            {"app": name, **{_OF_COSTS.get(key, key): value for key, value in about.items()}}
            for name, about in found["accuracy"].items()
        ]
        return "\n\n".join(shown("", rows) for rows in (people, accuracy) if rows)
    rows = found.get("runs") if what == "list" else found if isinstance(found, list) else None
    if rows is not None:
        if not rows:
            return "none"
        names = [n for n in rows[0] if n not in ("request", "digest", "ended_at")]
        return _table(names, [[_cell(name, row.get(name)) for name in names] for row in rows])
    return "\n".join(_lines(found))


def _table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns, words to the left, as wide as their widest cell."""
    lines = [list(names), *map(list, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(names))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def _failure_lines(failure: Mapping[str, Any], *, log: bool) -> list[str]:
    """Why a run has no result: its name, the sentence, what would help, and the log's last lines, if wanted."""
    lines = [f"failure: {failure.get('name', '')} ({failure.get('kind', '')}): {failure.get('message', '')}"]
    lines += [f"  would probably help: {failure['repair']}"] if failure.get("repair") else []
    tail = str(failure.get("log_tail") or "").splitlines() if log else []
    return [*lines, *(["log:"] if tail else []), *(f"  {line}" for line in tail)]


def _lines(found: Mapping[str, Any]) -> list[str]:
    lines: list[str] = []
    for name, value in found.items():
        if name == "log_tail":
            lines += ["log:", *(f"  {line}" for line in value)] if value else []
        elif name == "failure" and isinstance(value, dict):
            lines += _failure_lines(value, log=not found.get("log_tail"))
        elif name == "metrics":
            units, errors = found.get("units") or {}, found.get("uncertainty") or {}
            for metric, number in value.items():
                error = f" ± {errors[metric]:.2g}" if errors.get(metric) is not None else ""
                unit = units.get(metric, "1")
                lines.append(f"{metric}: {number:.6g}{error}" + ("" if unit == "1" else f" {unit}"))
        elif name not in ("units", "uncertainty") and value not in (None, "", [], {}):
            lines.append(f"{name}: {json.dumps(value) if isinstance(value, (dict, list)) else _cell(name, value)}")
    return lines


def _cell(name: str, value: Any) -> str:
    """A value in a table."""
    if name.endswith("_at") and value:
        return time.strftime("%m-%d %H:%M", time.localtime(value))
    if name == "since" and isinstance(value, float):
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(value))
    if isinstance(value, dict):
        told = [f"{key}={_cell('', one)}" for key, one in value.items() if one not in ("", None)]
        return " ".join([*told[:IN_A_CELL], *(["..."] if len(told) > IN_A_CELL else [])])
    return f"{value:.5g}" if isinstance(value, float) else "" if value is None else str(value)
