"""How long things took lately, in constant time."""

from __future__ import annotations

from collections import deque

__all__ = ["RECENT", "Pace"]

RECENT = 32
"""So many of the last runs say how long the next one takes."""


class Pace:
    """The mean time of the latest of many things.

    Args:
        latest: How many of them count.

    Example:
        >>> pace = Pace(latest=2)
        >>> print(pace.mean_s)
        None
        >>> for seconds in (9.0, 1.0, 3.0):
        ...     pace.add(seconds)
        >>> pace.mean_s, len(pace)
        (2.0, 2)
    """

    def __init__(self, latest: int = RECENT) -> None:
        self._took_s: deque[float] = deque(maxlen=latest)

    def __len__(self) -> int:
        return len(self._took_s)

    def add(self, seconds: float) -> None:
        """One more has ended, and took so long."""
        self._took_s.append(seconds)

    def clear(self) -> None:
        """Forget what has been: what comes is not like it."""
        self._took_s.clear()

    @property
    def mean_s(self) -> float | None:
        """Their mean in seconds; None before the first."""
        return sum(self._took_s) / len(self._took_s) if self._took_s else None
