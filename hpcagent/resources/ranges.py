"""Numeric ranges with their unit, as filters have them."""

from __future__ import annotations

import math
from collections.abc import Mapping

from pydantic import Field as Given
from pydantic import model_validator

from hpcagent.errors import BadInput
from hpcagent.model.base import Record, build
from hpcagent.units import convert

__all__ = ["Range"]


class Range(Record):
    """Numbers from `min` to `max`, both included, in a unit.

    Attributes:
        min: Smallest; None: no limit.
        max: Largest; None: no limit.
        unit: Of both; '1' for a pure number. None only where the source itself has no unit.

    Raises:
        BadInput: It has no limit, `min` is above `max`, or a limit is not finite.

    Example:
        >>> Range(max=-1200, unit="meV").within("eV", "adsorption_energy")
        (None, -1.2)
    """

    min: float | None = Given(default=None, allow_inf_nan=False)
    max: float | None = Given(default=None, allow_inf_nan=False)
    unit: str | None = None

    @model_validator(mode="after")
    def _sensible(self) -> Range:
        if self.min is None and self.max is None:
            raise BadInput("a range without min and max holds for everything; give one of them or leave it out.")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise BadInput(f"min={self.min:g} is above max={self.max:g}; exchange them.", value=self.min)
        return self

    @classmethod
    def of(cls, given: object, name: str) -> Range:
        """A range as it was given: one, or a table `{min, max, unit}`.

        Raises:
            BadInput: It is neither.
        """
        if isinstance(given, cls):
            return given
        if isinstance(given, Mapping):
            return build(cls, given, where=f"the range of {name}")
        raise BadInput(
            f"{name}={given!r} must be a range: {{'min': ..., 'max': ..., 'unit': ...}}; equal numbers are "
            "min = max.",
            value=given,
        )

    def within(self, unit: str, name: str) -> tuple[float | None, float | None]:
        """Both limits in another unit, or None where there is none.

        Raises:
            BadInput: The range has no unit, or one of something else.
        """
        if self.unit is None:
            raise BadInput(f"the range of {name} has no unit; give one, e.g. {unit!r}.", value=name)
        try:
            low, high = (None if one is None else convert(one, self.unit, unit) for one in (self.min, self.max))
        except BadInput as error:
            raise BadInput(f"the range of {name}: {error.message}", **error.details) from None
        for one in (low, high):
            if one is not None and not math.isfinite(one):
                raise BadInput(f"the range of {name} is beyond what a number can hold in {unit}.", value=one)
        return low, high
