"""The one table of a campaign's results: its columns, by name, unit and kind.

CSV, Parquet, pandas, xarray and metrics.h5 are made from these columns, so that a name means the same everywhere.
A parameter and a metric may have the same name: `params/NAME` and `metrics/NAME` are two columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hpcagent.model.base import Scalar
from hpcagent.model.contract import Contract
from hpcagent.model.extended import superseded
from hpcagent.model.records import Result

__all__ = ["Column", "Kind", "columns_of"]

Kind = Literal["whole", "number", "flag", "text"]


@dataclass(frozen=True, slots=True)
class Column:
    """One column.

    Attributes:
        name: `state`, `params/x`, `metrics/value`, `uncertainty/value`, ...
        kind: Whole numbers, numbers, true or false, or text; numbers and words together are text.
        values: One for each result, None where it has no such value.
        unit: Unit of the values; None for what has none (text, counters), `1` for a pure number.
    """

    name: str
    kind: Kind
    values: tuple[Any, ...]
    unit: str | None = None

    @property
    def complete(self) -> bool:
        """Whether every result has a value."""
        return None not in self.values

    def filled(self) -> Sequence[Any]:
        """The values for a format that knows no missing ones: NaN, or an empty text, in their place."""
        empty: Scalar = "" if self.kind == "text" else math.nan
        return self.values if self.complete else [empty if v is None else v for v in self.values]


def columns_of(results: Sequence[Result], contract: Contract) -> tuple[Column, ...]:
    """The columns of results: who and when, then parameters, metrics, their errors and bounds.

    Args:
        results: One row each, in this order.
        contract: Of their app: its parameters, and the units of its metrics.

    Example:
        >>> from hpcagent.apps.landscape import synthetic
        >>> [c.name for c in columns_of([], synthetic.contract)][:4]
        ['execution_id', 'index', 'batch', 'role']
    """
    found = [Column(name, kind, tuple(map(of, results)), unit) for name, kind, unit, of in _EVERY]
    if any(r.site for r in results):  # records of before have no such column
        found.append(Column("site", "text", tuple(r.site or None for r in results), None))
    found += [*_lengths(results), *_repairs(results)]
    points = [r.manifest.params for r in results]
    for p in contract.space.parameters:
        values = tuple(point.get(p.name) for point in points)
        kind = _kind(values, "text" if p.kind in ("choice", "text") else "whole" if p.kind == "int" else "number")
        found.append(Column(f"params/{p.name}", kind, _worded(values, kind), p.unit))
    if any(r.remote is not None for r in results):
        found += [Column(name, "text", tuple(map(of, results))) for name, of in _FAR]
    units = {m.name: m.unit for m in contract.metrics}
    names: dict[str, None] = {}
    for result in results:
        names |= dict.fromkeys(result.metrics)
        units |= result.units
    metrics = [r.metrics for r in results]
    uncertain = {name for r in results if r.uncertainty for name in r.uncertainty}
    bounded = {name for r in results if r.bounds for name in r.bounds}
    for name in names:
        unit = units.get(name, "1")
        found.append(Column(f"metrics/{name}", "number", tuple(given.get(name) for given in metrics), unit))
        if name in uncertain:
            errors = tuple(r.uncertainty.get(name) for r in results)
            found.append(Column(f"uncertainty/{name}", "number", errors, unit))
        if name in bounded:
            found.append(Column(f"bounds/{name}", "text", tuple(r.bounds.get(name) for r in results)))
    return tuple(found)


def _lengths(results: Sequence[Result]) -> list[Column]:
    """Of a campaign in which a run goes on from another: from which, how long in all, and which one counts."""
    if not any(r.manifest.extends for r in results):
        return []
    by = {identity: r.manifest.execution_id for identity, r in superseded(results).items()}
    return [
        Column("extends", "text", tuple(r.manifest.extends or None for r in results), None),
        Column("times", "number", tuple(r.manifest.times for r in results), "1"),
        Column("superseded_by", "text", tuple(by.get(r.manifest.execution_id) for r in results), None),
    ]


def _repairs(results: Sequence[Result]) -> list[Column]:
    """Of a campaign in which runs were repaired: what was changed in which, one after the other."""
    if not any(r.repairs for r in results):
        return []
    made = ("; ".join(one.changed or one.repair for one in r.repairs) or None for r in results)
    return [Column("repairs", "text", tuple(made), None)]


def _kind(values: Sequence[Any], otherwise: Kind) -> Kind:
    """What values are. A choice may be of words, numbers, or both; of nothing, the parameter's own kind."""
    types = {type(v) for v in values if v is not None}
    if not types:
        return otherwise
    if types == {bool}:
        return "flag"
    if types == {int}:
        return "whole" if otherwise != "number" else "number"
    return "number" if types <= {int, float} else "text"


def _worded(values: tuple[Any, ...], kind: Kind) -> tuple[Any, ...]:
    """Values of one type; in a column of text also the numbers and flags among them are words."""
    if kind == "text":
        worded = all(issubclass(each, (str, type(None))) for each in set(map(type, values)))
        return values if worded else tuple(v if v is None or isinstance(v, str) else str(v) for v in values)
    return tuple(v if v is None else float(v) for v in values) if kind == "number" else values


def _failure(result: Result) -> str | None:
    return result.failure.name if result.failure else None


def _failure_kind(result: Result) -> str | None:
    return result.failure.kind if result.failure else None


_FAR: tuple[tuple[str, Callable[[Result], Any]], ...] = (
    ("endpoint_id", lambda r: None if r.remote is None else r.remote.endpoint_id),
    ("remote_workdir", lambda r: None if r.remote is None else r.remote.workdir),
)
"""Columns of results of which an endpoint computed some."""

_EVERY: tuple[tuple[str, Kind, str | None, Callable[[Result], Any]], ...] = (
    ("execution_id", "text", None, lambda r: r.manifest.execution_id),
    ("index", "whole", None, lambda r: r.manifest.index),
    ("batch", "whole", None, lambda r: r.manifest.batch),
    ("role", "text", None, lambda r: r.manifest.role),
    ("replicate", "whole", None, lambda r: r.manifest.replicate),
    ("seed", "whole", None, lambda r: r.manifest.seed),
    ("status", "text", None, lambda r: r.status),
    ("state", "text", None, lambda r: r.state),
    ("failure", "text", None, _failure),
    ("failure_kind", "text", None, _failure_kind),
    ("distrusted", "text", None, lambda r: r.distrusted),
    ("host", "text", None, lambda r: r.host),
    ("started_at", "number", "s since 1970", lambda r: r.started_at),
    ("wall_s", "number", "s", lambda r: r.cost.wall_s),
    ("node_hours", "number", "node h", lambda r: r.cost.node_hours),
    ("estimated_node_hours", "number", "node h", lambda r: r.manifest.estimated_node_hours or None),
)
"""Name, kind, unit and value of the columns that every result has."""
