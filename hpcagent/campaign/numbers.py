"""Numbers, and points of a space, as they are printed."""

from __future__ import annotations

from hpcagent.model.parameter import Params

__all__ = ["error_text", "number", "point_text", "with_error"]


def with_error(value: float, error: float | None) -> str:
    """A value and its standard error, where it has one.

    Example:
        >>> with_error(88.31, 1.94)
        '88.31 ± 1.9'
        >>> with_error(2625, 141)
        '2625 ± 140'
    """
    return number(value) + (f" ± {error_text(error)}" if error else "")


def error_text(error: float) -> str:
    """An error in two significant digits, without a pointless exponent.

    Example:
        >>> error_text(141), error_text(1.94), error_text(3.9e-05)
        ('140', '1.9', '3.9e-05')
    """
    return f"{float(f'{error:.2g}'):.0f}" if 100 <= error < 1e6 else f"{error:.2g}"


def number(value: float | int | str) -> str:
    """Four significant digits, without a pointless exponent.

    Example:
        >>> number(0.0099999), number(1234.5), number("opt")
        ('0.01', '1234', 'opt')
    """
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    if value and (abs(value) >= 1e6 or abs(value) < 1e-4):
        return f"{value:.3e}"
    return f"{value:.4g}"


def point_text(params: Params, units: dict[str, str] | None = None) -> str:
    """A point as one line of text.

    Example:
        >>> point_text({"timestep": 0.01, "style": "opt"}, {"timestep": "ps"})
        'timestep = 0.01 ps, style = opt'
    """
    units = units or {}
    parts = []
    for name, value in params.items():
        unit = units.get(name, "1")
        parts.append(f"{name} = {number(value)}" + ("" if unit == "1" or isinstance(value, str) else f" {unit}"))
    return ", ".join(parts)
