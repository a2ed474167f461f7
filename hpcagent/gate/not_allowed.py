"""A request that the gate has refused, and why, in a form that a program can act on."""

from __future__ import annotations

from typing import Any, Literal

from hpcagent.errors import BadInput, in_brief

__all__ = ["Check", "NotAllowed"]

Check = Literal["contract", "caller", "sandbox", "quota", "approval"]
"""The checks of the gate, in their order."""


LONGEST_WHY = 1200
LONGEST_VALUE = 200
"""Characters of a value that are told and written down; who asked knows the rest."""


class NotAllowed(BadInput):
    """The gate did not let a request through; nothing has run.

    Attributes:
        check: Which check refused it.
        field: The parameter or right that it is about; empty where it is the request as a whole.
        value: What was asked for.
        allowed: What would be allowed.
        do: What to do next.
        approval: The id of the approval that it waits for, if that is what is missing.

    Example:
        >>> str(NotAllowed("quota", "3 runs are going", field="runs_at_once", value=4, allowed="3", do="wait"))
        'refused (quota): 3 runs are going; runs_at_once = 4, allowed: 3. Do this: wait.'
    """

    def __init__(
        self,
        check: Check,
        why: str,
        *,
        field: str = "",
        value: Any = None,
        allowed: str = "",
        do: str = "",
        approval: str = "",
    ) -> None:
        if len(why) > LONGEST_WHY:
            why = f"{why[: LONGEST_WHY // 2]}...{why[-LONGEST_WHY // 2 :]}"
        self.check, self.why, self.field, self.value = check, why.rstrip("."), field, value
        self.allowed, self.do, self.approval = allowed, do.rstrip("."), approval
        what = f"; {field} = {in_brief(value)}" if field else ""
        what += f"{',' if field else ';'} allowed: {allowed}" if allowed else ""
        then = f" Do this: {self.do}." if self.do else ""
        super().__init__(f"refused ({check}): {self.why}{what}.{then}", value=value)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).of, (self.plain(),)

    def plain(self) -> dict[str, Any]:
        """The same as plain data, for a journal or a message."""
        value = self.value
        if isinstance(value, str):
            value = value if len(value) <= LONGEST_VALUE else f"{value[: LONGEST_VALUE - 3]}..."
        elif not isinstance(value, (bool, float, type(None))) and not (
            isinstance(value, int) and abs(value) < 2**63
        ):
            value = in_brief(value)
        fields = {
            "check": self.check,
            "why": self.why,
            "field": self.field,
            "value": value,
            "allowed": self.allowed,
            "do": self.do,
            "approval": self.approval,
        }
        return {name: text for name, text in fields.items() if text not in ("", None)}

    @classmethod
    def of(cls, fields: dict[str, Any]) -> NotAllowed:
        """Read back what `plain` gave."""
        rest = {name: fields[name] for name in ("field", "value", "allowed", "do", "approval") if name in fields}
        return cls(fields["check"], fields["why"], **rest)
