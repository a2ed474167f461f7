"""Where a value lies in the range of its parameter, from 0 to 1, and back: one value, or a column of many."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeAlias

from hpcagent.errors import BadInput
from hpcagent.later import Later
from hpcagent.model.base import Scalar

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hpcagent.model.parameter import Parameter
else:
    np = Later("numpy")

__all__ = [
    "as_given",
    "column_from_unit",
    "from_unit",
    "is_numeric",
    "levels",
    "rounded_for",
    "ten_digits",
    "to_unit",
]

Array: TypeAlias = "NDArray[np.float64]"


def from_unit(p: Parameter, u: float) -> Scalar:
    """Map `u` in [0, 1] onto the range (log scale where `log`; equal shares for ints and choices)."""
    u = min(max(float(u), 0.0), 1.0)
    if p.kind == "text":
        return _only_value(p)
    if p.kind == "choice":
        return p.choices[min(int(u * len(p.choices)), len(p.choices) - 1)]
    assert p.low is not None and p.high is not None
    low, high = p.low, p.high
    if p.kind == "int":
        if p.log:
            value = math.exp(math.log(low) + u * (math.log(high + 1) - math.log(low)))
        else:
            value = low + u * (high - low + 1)
        return min(max(int(value), int(low)), int(high))
    if p.log:
        value = math.exp(math.log(low) + u * (math.log(high) - math.log(low)))
    else:
        value = low + u * (high - low)
    # Ten digits: short in tables and inputs, far below any accuracy that matters.
    return min(max(float(f"{value:.10g}"), low), high)


def to_unit(p: Parameter, value: Scalar) -> float:
    """The inverse of `from_unit`: where in [0, 1] the value lies (middle of its share for choices)."""
    if p.kind == "choice":
        return (p.choices.index(value) + 0.5) / len(p.choices)
    if p.kind == "text":
        return 0.5
    assert p.low is not None and p.high is not None and not isinstance(value, str)
    low, high, x = p.low, p.high, float(value)
    if p.kind == "int":
        low, high, x = low, high + 1, x + 0.5
    if low == high:
        return 0.5
    if p.log:
        return (math.log(x) - math.log(low)) / (math.log(high) - math.log(low))
    return (x - low) / (high - low)


def levels(p: Parameter, n: int) -> tuple[Scalar, ...]:
    """At most `n` values spread over the range, ends included; every choice of a choice."""
    if n < 1:
        raise BadInput(f"a grid needs at least 1 level of {p.label}; got {n}.", value=n)
    if p.kind == "choice":
        return p.choices
    if p.kind == "text":
        return (_only_value(p),)
    if p.constant:
        return (p.validated(p.low),)
    assert p.low is not None and p.high is not None
    if n == 1:
        return (from_unit(p, 0.5),)
    scale = np.geomspace if p.log else np.linspace
    values = scale(p.low, p.high, n)
    values[0], values[-1] = p.low, p.high
    if p.kind == "int":
        return tuple(dict.fromkeys(round(v) for v in values))
    return tuple(min(max(float(f"{v:.10g}"), p.low), p.high) for v in values)


def _only_value(p: Parameter) -> Scalar:
    if p.default is None:
        raise BadInput(f"parameter {p.label} is a text and has no default; set it, it cannot be varied.")
    return p.default


def column_from_unit(p: Parameter, u: Array) -> NDArray[Any]:
    """`Parameter.from_unit` for many, without rounding."""
    if p.kind == "choice":
        which = np.minimum((u * len(p.choices)).astype(int), len(p.choices) - 1)
        column = np.empty(len(p.choices), dtype=float if is_numeric(p) else object)
        column[:] = p.choices
        return np.asarray(column[which])
    if p.kind not in ("float", "int"):
        return np.full(len(u), p.from_unit(0.5), dtype=object)
    assert p.low is not None and p.high is not None
    low, high = p.low, p.high + (p.kind == "int")
    if p.log:
        found = np.exp(math.log(low) + u * (math.log(high) - math.log(low)))
    else:
        found = low + u * (high - low)
    return np.clip(np.floor(found) if p.kind == "int" else found, p.low, p.high)


def is_numeric(p: Parameter) -> bool:
    """Whether its values are numbers: a text, a word or a boolean is none."""
    return p.kind != "text" and not any(isinstance(c, (str, bool)) for c in p.choices)


def as_given(p: Parameter, value: Any) -> Scalar:
    """A value of a column as the plain value it stands for."""
    if p.kind == "float":
        return float(value)
    if p.kind == "int":
        return int(value)
    if p.kind == "choice":
        return next(
            c for c in p.choices if c == value and isinstance(c, bool) == isinstance(value, (bool, np.bool_))
        )
    return value  # type: ignore[no-any-return]  # a text


def rounded_for(p: Parameter, column: NDArray[Any]) -> NDArray[Any]:
    """A column of values as they stand in points: real numbers with ten digits, within the bounds."""
    if p.kind != "float":
        return column
    assert p.low is not None and p.high is not None
    return np.clip(ten_digits(column), p.low, p.high)


def ten_digits(values: NDArray[Any]) -> Array:
    """Numbers with ten digits: short in tables and inputs, far below any accuracy that matters."""
    return np.array([float(f"{v:.10g}") for v in values], dtype=float)
