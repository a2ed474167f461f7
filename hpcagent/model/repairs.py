"""Which failures of a run its campaign repairs, and how."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field, model_validator

from hpcagent.errors import BadInput
from hpcagent.model.base import Record, Scalar
from hpcagent.model.texts import Shown

__all__ = ["Repair", "Repairs"]

_OWN = ("tries", "changes_studied", "rules")


class Repair(Record):
    """A repair that was made of a run: a try failed, and the next one was changed.

    Attributes:
        failure: Name of the failure.
        message: What the try that failed said.
        repair: Name of the repair, or the parameters that it gave other values.
        changed: What was changed, in words.
        folder: Where the try that failed lies, relative to the run's directory.
        wall_s: How long that try ran, in seconds.
    """

    failure: Shown
    message: Shown = ""
    repair: Shown
    changed: Shown = ""
    folder: Shown = ""
    wall_s: float = 0.0


class Repairs(Record):
    """A campaign's table `[repairs]`.

    Attributes:
        rules: Failure -> its repairs, in order: names, or tables of parameters with other values.
        tries: How many repairs one run may have, 1 or 2.
        changes_studied: Whether a repair may change a parameter that the campaign varies.

    Example:
        >>> Repairs.model_validate({"LostAtoms": "minimize", "tries": 1}).rules
        {'LostAtoms': ('minimize',)}
    """

    rules: dict[str, tuple[str | dict[str, Scalar], ...]] = {}
    tries: int = Field(default=2, ge=1, le=2)
    changes_studied: bool = False

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, data: Any) -> Any:
        """Accept failures and options in one table, and one repair without a list."""
        if not isinstance(data, Mapping) or "rules" in data:
            return data
        rules = {}
        for name, given in data.items():
            if name in _OWN:
                continue
            rules[name] = list(given) if isinstance(given, (list, tuple)) else [given]
            if not rules[name] or not all(isinstance(one, (str, Mapping)) and one for one in rules[name]):
                raise BadInput(
                    f'repairs.{name} = {given!r}: name a repair, such as {name} = "half_timestep", or a table of '
                    f"parameters, such as {name} = {{mixing = 0.2}}; or a list of them, tried in order.",
                    value=given,
                )
        return {"rules": rules} | {name: data[name] for name in _OWN if name in data}

    def toml(self) -> dict[str, Any]:
        """The short form."""
        short: dict[str, Any] = {n: list(r) if len(r) > 1 else r[0] for n, r in self.rules.items()}
        short |= {"tries": self.tries} if self.tries != 2 else {}
        return short | ({"changes_studied": True} if self.changes_studied else {})

    def plain(self) -> dict[str, Any]:
        """As a worker takes it from the app's settings."""
        rules = {name: list(listed) for name, listed in self.rules.items()}
        return {"rules": rules, "tries": self.tries} | ({"changes_studied": True} if self.changes_studied else {})
