"""The answer of a program or a service, `{"status": ..., "result": {...}, "units": {...}}`: read and checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hpcagent.apps.executable.reading import Number, parsed_json
from hpcagent.apps.executable.record import Reading
from hpcagent.errors import AppFailed, BadInput
from hpcagent.units import convert

__all__ = ["Answer", "answer_of", "in_units", "refuse_reported"]

SUCCESS = ("success", "ok", "completed", "done")
ERROR = ("error", "failed", "failure")


@dataclass(frozen=True, slots=True)
class Answer:
    """What was answered.

    Attributes:
        result: Where the metrics are.
        units: Key of a number in the result -> its unit, where the answer says.
    """

    result: Any
    units: Mapping[str, str]


def answer_of(text: bytes, what: str, who: str, *, log_tail: str = "") -> Answer:
    """Read an answer.

    Args:
        text: JSON.
        what: What the text is, for messages: `what the program printed`.
        who: Whose it is.
        log_tail: Last lines of a log, for the failure.

    Raises:
        AppFailed: `ReportedError`: it says that it failed; `BadOutput`: it is no answer.

    Example:
        >>> answer_of(b'{"status": "success", "result": {"x": 1}}', "the answer", "it").result
        {'x': 1}
    """
    said = parsed_json(text, what)
    refuse_reported(said, who, log_tail=log_tail)
    status = str(said.get("status", "")).lower() if isinstance(said, dict) else ""
    units = said.get("units", {}) if isinstance(said, dict) else {}
    known = isinstance(units, dict) and all(isinstance(unit, str) for unit in units.values())
    if status not in SUCCESS or "result" not in said or not known:
        raise AppFailed(
            f"{what} is no answer: a JSON object with status ({', '.join(SUCCESS[:2])} or {ERROR[0]}), result "
            f"and, if need be, units (key -> unit) is expected; got {text[:200].decode(errors='replace')!r}.",
            kind="contract",
            name="BadOutput",
            log_tail=log_tail,
        )
    return Answer(said["result"], units)


def refuse_reported(said: Any, who: str, *, log_tail: str = "") -> None:
    """Refuse an answer that says itself that there is no result.

    Raises:
        AppFailed: `ReportedError`.
    """
    status = str(said.get("status", "")).lower() if isinstance(said, dict) else ""
    if status in ERROR:
        result = said.get("message") or said.get("error") or said.get("result") or "it did not say why"
        raise AppFailed(
            f"{who} said that it failed: {str(result)[:1000]}",
            kind="simulation",
            name="ReportedError",
            log_tail=log_tail,
        )


def in_units(metric: str, how: Reading, number: Number, units: Mapping[str, str]) -> Number:
    """A number in the unit of its metric, within the metric's bounds.

    Args:
        metric: Its name.
        how: Its unit, key and bounds.
        number: In the unit that the answer names, else in the metric's.
        units: Of the answer.

    Raises:
        AppFailed: `WrongUnit`, `OutOfRange`.

    Example:
        >>> from hpcagent.apps.executable.record import from_json
        >>> how = from_json("stdout", "e", unit="eV")
        >>> round(in_units("e", how, Number(1.0), {"e": "Ha"}).value, 3)
        27.211
    """
    key = how.key if isinstance(how.key, str) else ".".join(map(str, how.key or ()))
    given, value, error_of = units.get(key), number.value, number.error
    if given is not None and given != how.unit:
        try:
            value, error_of = (convert(one, given, how.unit) for one in (value, error_of))
        except BadInput as error:
            raise AppFailed(
                f"the metric {metric!r} is in {how.unit}, and the answer gives it in {given!r}: "
                f"{error.message.rstrip('.')}.",
                kind="contract",
                name="WrongUnit",
            ) from None
    low, high = how.low, how.high
    if math.isfinite(value) and not (-math.inf if low is None else low) <= value <= (
        math.inf if high is None else high
    ):
        bounds = f"[{'-inf' if low is None else f'{low:g}'}, {'inf' if high is None else f'{high:g}'}]"
        raise AppFailed(
            f"the metric {metric!r} is {value:g} {how.unit}, outside of {bounds} {how.unit}, in which it can be.",
            kind="contract",
            name="OutOfRange",
            repair="look at the units of the answer, and at low and high of the metric",
        )
    return Number(value, error_of, number.said)
