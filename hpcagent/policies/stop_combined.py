"""Stop conditions together, and how they are read from plain data.

In TOML a table of conditions ends the campaign at the first that holds:

    stop = {max_runs = 48, plateau = {batches = 3}, no_feasible_point = {min_runs = 24}}

and `any_of` / `all_of` take lists of such tables, which may hold such lists again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, SerializeAsAny, field_validator

from hpcagent.errors import BadInput, nearest
from hpcagent.model.base import build
from hpcagent.offered import load, offered
from hpcagent.policies.stop import Progress, Stop
from hpcagent.policies.stop_infeasible import NoFeasiblePoint
from hpcagent.policies.stop_reached import Plateau, TargetReached
from hpcagent.policies.stop_spent import MaxBatches, MaxRuns, NodeHours, WallTime

__all__ = ["PLAIN", "RECORDS", "AllOf", "AnyOf", "StopCondition", "all_of", "any_of", "read_stop"]


class AnyOf(Stop):
    """Ends when one of the conditions holds."""

    kind: Literal["any_of"] = "any_of"
    conditions: tuple[StopCondition, ...]

    @field_validator("conditions")
    @classmethod
    def _some(cls, conditions: tuple[Stop, ...]) -> tuple[Stop, ...]:
        return _at_least_one_condition("any_of", conditions)

    def metrics(self) -> tuple[str, ...]:
        """The metrics that its conditions look at."""
        return tuple(m for c in self.conditions for m in c.metrics())

    def check(self, progress: Progress) -> str | None:
        return next((reason for c in self.conditions if (reason := c.check(progress))), None)

    def budget(self) -> int | None:
        return min((b for c in self.conditions if (b := c.budget()) is not None), default=None)

    def cap(self) -> float | None:
        return min((hours for c in self.conditions if (hours := c.cap()) is not None), default=None)

    def limit_s(self) -> float | None:
        return min((limit for c in self.conditions if (limit := c.limit_s()) is not None), default=None)

    def toml(self) -> dict[str, Any]:
        tables = [c.toml() for c in self.conditions]
        keys = [key for table in tables for key in table]
        if len(keys) == len(set(keys)):
            return {key: value for table in tables for key, value in table.items()}
        return {"any_of": tables}


class AllOf(Stop):
    """Ends when all conditions hold."""

    kind: Literal["all_of"] = "all_of"
    conditions: tuple[StopCondition, ...]

    @field_validator("conditions")
    @classmethod
    def _some(cls, conditions: tuple[Stop, ...]) -> tuple[Stop, ...]:
        return _at_least_one_condition("all_of", conditions)

    def metrics(self) -> tuple[str, ...]:
        """The metrics that its conditions look at."""
        return tuple(m for c in self.conditions for m in c.metrics())

    def check(self, progress: Progress) -> str | None:
        reasons = [c.check(progress) for c in self.conditions]
        if any(reason is None for reason in reasons):
            return None
        return " ".join(reason for reason in reasons if reason)

    def budget(self) -> int | None:
        # All have to hold, so the campaign may go on until the last one does.
        budgets = [c.budget() for c in self.conditions]
        known = [b for b in budgets if b is not None]
        return max(known) if len(known) == len(budgets) else None

    def cap(self) -> float | None:
        # As with runs: one that is reached does not end the campaign while another condition does not hold.
        caps = [c.cap() for c in self.conditions]
        known = [hours for hours in caps if hours is not None]
        return max(known) if len(known) == len(caps) else None

    def limit_s(self) -> float | None:
        limits = [c.limit_s() for c in self.conditions]
        known = [limit for limit in limits if limit is not None]
        return max(known) if len(known) == len(limits) else None

    def toml(self) -> dict[str, Any]:
        return {"all_of": [c.toml() for c in self.conditions]}


def any_of(*conditions: Stop) -> Stop:
    """End when one of the conditions holds.

    Example:
        >>> from hpcagent.policies.stop_reached import plateau
        >>> from hpcagent.policies.stop_spent import max_runs
        >>> any_of(max_runs(36), plateau(3)).toml()
        {'max_runs': 36, 'plateau': {'batches': 3, 'relative': 0.01}}
    """
    return build(AnyOf, {"conditions": conditions}, where="any_of")


def all_of(*conditions: Stop) -> Stop:
    """End when all conditions hold."""
    return build(AllOf, {"conditions": conditions}, where="all_of")


def _at_least_one_condition(name: str, conditions: tuple[Stop, ...]) -> tuple[Stop, ...]:
    if not conditions:
        raise BadInput(f"{name} needs at least one condition.")
    return conditions


def read_stop(data: Any, *, where: str = "until") -> Stop:
    """Read a stop condition from plain data.

    Args:
        data: A table such as `{max_runs = 36, plateau = {batches = 3}}` (the first that holds ends the
            campaign), a list of such tables, a record's own JSON form (with `kind`), or a `Stop`.
        where: What the data is, for messages.

    Raises:
        BadInput: Unknown key, wrong value, or nothing given.

    Example:
        >>> read_stop({"max_runs": 36, "plateau": {"batches": 3}}).budget()
        36
    """
    if isinstance(data, Stop):
        return data
    if isinstance(data, (list, tuple)):
        return any_of(*(read_stop(d, where=f"{where}[{i}]") for i, d in enumerate(data)))
    if not isinstance(data, Mapping) or not data:
        raise BadInput(f"{where} is a table of conditions such as {{max_runs = 36}}; got {data!r}.", value=data)
    if "kind" in data:
        return _read_record(data, where)
    conditions = [_read_one(key, value, f"{where}.{key}") for key, value in data.items()]
    return conditions[0] if len(conditions) == 1 else AnyOf(conditions=tuple(conditions))


def _read_record(data: Mapping[str, Any], where: str) -> Stop:
    return build(_record(data["kind"], where, "kind"), data, where=where)


def _record(name: Any, where: str, what: str) -> type[Stop]:
    """The class of a condition: hpcagent's own, or one that a package offers or a path names."""
    if name in RECORDS:
        return RECORDS[name]
    if not isinstance(name, str) or (":" not in name and name not in offered("stops")):
        known = (*RECORDS, *offered("stops"))
        raise BadInput(f"{where}: unknown {what} {name!r}; {nearest(str(name), known)}", value=name)
    found = load("stops", name, {})
    if not (isinstance(found, type) and issubclass(found, Stop)):
        raise BadInput(f"{where}: {name!r} is no subclass of hpcagent.policies.stop.Stop.", value=name)
    if "kind" not in found.model_fields or found.model_fields["kind"].default != name:
        needed = f'kind: Literal["{name}"] = "{name}"'
        raise BadInput(f"{where}: {found.__name__} needs the field {needed}.", value=name)
    return found


def _read_one(key: str, value: Any, where: str) -> Stop:
    if key in ("any_of", "all_of"):
        if not isinstance(value, (list, tuple)):
            raise BadInput(f"{where} is a list of tables; got {value!r}.", value=value)
        parts = tuple(read_stop(v, where=f"{where}[{i}]") for i, v in enumerate(value))
        return build(RECORDS[key], {"conditions": parts}, where=where)
    its = _record(key, where, "key")
    field = PLAIN.get(key)
    if isinstance(value, Mapping):
        return build(its, value, where=where)
    if field is None:
        raise BadInput(f"{where} is a table; got {value!r}.", value=value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise BadInput(f"{where} is a number; got {value!r}.", value=value)
    return build(its, {field: value}, where=where)


def _as_condition(data: Any) -> Any:
    return read_stop(data)


StopCondition: TypeAlias = Annotated[
    MaxRuns
    | MaxBatches
    | WallTime
    | NodeHours
    | TargetReached
    | Plateau
    | NoFeasiblePoint
    | AnyOf
    | AllOf
    | SerializeAsAny[Stop],
    BeforeValidator(_as_condition),
]
"""The type for a field of a record: takes a `Stop`, the TOML form and the JSON form."""

RECORDS: Mapping[str, type[Stop]] = {
    "max_runs": MaxRuns,
    "max_batches": MaxBatches,
    "wall_time_s": WallTime,
    "node_hours": NodeHours,
    "target": TargetReached,
    "plateau": Plateau,
    "no_feasible_point": NoFeasiblePoint,
    "any_of": AnyOf,
    "all_of": AllOf,
}
# Conditions that may be written as a plain number, and the field it is.
PLAIN: Mapping[str, str] = {
    "max_runs": "runs",
    "max_batches": "batches",
    "wall_time_s": "seconds",
    "node_hours": "hours",
    "no_feasible_point": "min_runs",
}

AnyOf.model_rebuild()
AllOf.model_rebuild()
