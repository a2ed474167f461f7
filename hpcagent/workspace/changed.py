"""Which runs of a workspace have changed since somebody looked."""

from __future__ import annotations

import secrets
from itertools import takewhile

__all__ = ["Changed"]


class Changed:
    """Ids in the order of their last change; each counts once.

    A cursor is `BOOT-N`: that of another boot is of another process, whose numbers say nothing here.

    Example:
        >>> changed = Changed()
        >>> changed.touch("a"); changed.touch("b"); changed.touch("a")
        >>> [identity for identity, _ in changed.since(0)], changed.n
        (['b', 'a'], 3)
    """

    def __init__(self) -> None:
        self.boot = secrets.token_hex(6)
        self.n = 0
        self._at: dict[str, int] = {}

    def touch(self, identity: str) -> None:
        """Something about it has changed."""
        self.n += 1
        self._at.pop(identity, None)
        self._at[identity] = self.n

    def since(self, n: int) -> list[tuple[str, int]]:
        """Ids that have changed after number `n`, with the numbers of their changes, the oldest first."""
        return [*takewhile(lambda item: item[1] > n, reversed(self._at.items()))][::-1]

    def cursor(self, n: int) -> str:
        """The cursor of a number of this boot."""
        return f"{self.boot}-{n}"

    def number(self, cursor: str) -> int | None:
        """The number of a cursor; None where it is of another boot, or none."""
        boot, _, n = cursor.partition("-")
        return int(n) if boot == self.boot and n.isdecimal() else None
