"""How long the runs of an app have taken, against what was estimated when they were asked for."""

from __future__ import annotations

from bisect import insort
from typing import Any

__all__ = ["Took"]


class Took:
    """Of one app.

    Attributes:
        runs: How many.
    """

    def __init__(self) -> None:
        self.runs = 0
        self._walls: list[float] = []
        self._ratios: list[float] = []
        self._estimated = self._actual = 0.0

    def add(self, estimated_s: float, actual_s: float) -> None:
        """One more run, both in seconds of wall time."""
        self.runs += 1
        self._estimated, self._actual = self._estimated + estimated_s, self._actual + actual_s
        insort(self._walls, actual_s)
        if estimated_s > 0:
            insort(self._ratios, actual_s / estimated_s)

    @property
    def median_s(self) -> float:
        """The median of their wall times, in seconds.

        Example:
            >>> took = Took()
            >>> for wall_s in (3.0, 1.0, 2.0):
            ...     took.add(1.0, wall_s)
            >>> took.median_s, took.accuracy()["actual_over_estimated"]
            (2.0, 2.0)
        """
        return self._walls[len(self._walls) // 2]

    def accuracy(self) -> dict[str, Any]:
        """Means in seconds, the median of actual over estimated, and the share of runs within a factor of two."""
        ratios = self._ratios
        return {
            "runs": self.runs,
            "estimated_s": self._estimated / self.runs,
            "actual_s": self._actual / self.runs,
            "actual_over_estimated": ratios[len(ratios) // 2] if ratios else None,
            "within_factor_2": sum(0.5 <= one <= 2 for one in ratios) / len(ratios) if ratios else None,
        }
