"""One finding of the doctor."""

from __future__ import annotations

from typing import Literal, NamedTuple

__all__ = ["Check"]


class Check(NamedTuple):
    """One finding.

    Attributes:
        status: `ok`, `warn` or `FAIL`.
        what: What was looked at.
        found: What there is.
        todo: What to do about it; empty if it is ok.
    """

    status: Literal["ok", "warn", "FAIL"]
    what: str
    found: str
    todo: str = ""

    def __str__(self) -> str:
        return f"{self.status:4}  {self.what}: {self.found}" + (f"  -> {self.todo}" if self.todo else "")
