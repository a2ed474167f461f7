"""What a check has found in a text: the rule, where, in a sentence, and whether it is refused for it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from hpcagent.errors import BadInput
from hpcagent.model.base import Record

__all__ = ["Finding", "Severity", "errors_of", "refuse", "warnings_of"]

MOST_TOLD = 50
"""Errors that a message lists."""
Severity = Literal["error", "warning"]


class Finding(Record):
    """One thing that a check has found.

    Attributes:
        rule: Its name, e.g. `docstring`.
        line: Line of the text, from 1; 0: of the text as a whole.
        says: One sentence: what is wrong, and what to do.
        severity: `error` refuses the registration, `warning` is shown to whoever approves.
        tool: The function that it is about; empty: the text as a whole.
        words: The words that were found, where it is about words.
    """

    rule: str
    line: int = 0
    says: str
    severity: Severity = "error"
    tool: str = ""
    words: str = ""

    def __str__(self) -> str:
        where = f"line {self.line}: " if self.line else ""
        return f"{where}{self.says} ({self.rule})"


def errors_of(findings: Iterable[Finding]) -> list[Finding]:
    """Those that refuse a registration."""
    return [one for one in findings if one.severity == "error"]


def warnings_of(findings: Iterable[Finding]) -> list[Finding]:
    """Those that are shown to whoever approves."""
    return [one for one in findings if one.severity == "warning"]


def refuse(findings: Iterable[Finding], what: str) -> None:
    """Refuse a text for all errors that were found in it, at once.

    Args:
        findings: What was found.
        what: What the text is, for the message.

    Raises:
        BadInput: There is an error among them.

    Example:
        >>> refuse([Finding(rule="unit", line=3, says="x has no unit", severity="warning")], "the text")
    """
    errors = errors_of(findings)
    if not errors:
        return
    many = "1 error" if len(errors) == 1 else f"{len(errors)} errors"
    lines = "\n".join(f"  {one}" for one in errors[:MOST_TOLD])
    if len(errors) > MOST_TOLD:
        lines += f"\n  and {len(errors) - MOST_TOLD} more"
    raise BadInput(f"{what} is not registered, for {many}:\n{lines}", value=[one.rule for one in errors])
