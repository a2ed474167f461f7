"""How long the runs of an app have taken, against what was estimated when they were asked for."""

from __future__ import annotations

import math
from bisect import insort
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hpcagent.later import Later

if TYPE_CHECKING:
    import numpy as np
else:
    np = Later("numpy")

__all__ = ["Took", "lengths_of"]

REMEMBERED = 500
"""Runs that the estimate is from, the latest."""
ENOUGH = 4
"""With fewer runs it is their median."""
RIDGE = 0.05
"""How much slopes are drawn to zero: as if so many more runs had said that a parameter does nothing."""


class Took:
    """Of one app.

    Attributes:
        runs: How many have completed.
        failed: How many have failed; what they took counts in no estimate.
    """

    def __init__(self) -> None:
        self.runs = self.failed = 0
        self._walls: list[float] = []
        self._ratios: list[float] = []
        self._estimated = self._actual = 0.0
        self._last: deque[tuple[dict[str, float], float]] = deque(maxlen=REMEMBERED)

    def add(self, estimated_s: float, actual_s: float, params: Mapping[str, Any] | None = None) -> None:
        """One more run: wall times in seconds, and its parameters."""
        self.runs += 1
        self._estimated, self._actual = self._estimated + estimated_s, self._actual + actual_s
        insort(self._walls, actual_s)
        if estimated_s > 0:
            insort(self._ratios, actual_s / estimated_s)
        self._last.append((_numbers(params or {}), actual_s))

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

    def expected(
        self, params: Mapping[str, Any], *, contract_s: float = 0.0, lengths: Sequence[str] = ()
    ) -> tuple[float, str]:
        """What a run with these parameters takes, in seconds, and what that is from.

        Least squares of log(wall time) on the logarithms of the parameters (on themselves, where one is not
        positive), each scaled to its spread, with slopes drawn to zero. While there are too few runs for that, or
        all have had the same length, wall times are in proportion to the length. Where another whole number, as of
        cells, is outside of what they had, it is not below the contract's estimate.

        Args:
            params: Of the run.
            contract_s: The contract's estimate, in seconds.
            lengths: Parameters that say how long it is (`lengths_of`).

        Example:
            >>> took = Took()
            >>> for steps in (100, 200, 400, 800):
            ...     took.add(1.0, steps / 100, {"steps": steps})
            >>> seconds, words = took.expected({"steps": 1600})
            >>> 13 < seconds < 17, words
            (True, '4 runs here; outside of what they had: steps = 1600 (100 to 800)')
        """
        asked = _numbers(params)
        seen = {name: [one[name] for one, _ in self._last if name in one] for name in asked}
        outside = {
            name: f"{name} = {value:g} ({min(seen[name]):g} to {max(seen[name]):g})"
            for name, value in asked.items()
            if seen[name] and not min(seen[name]) <= value <= max(seen[name])
        }
        words = f"{self.runs} run{'s' if self.runs > 1 else ''} here"
        varied = [name for name in asked if len(seen[name]) == len(self._last) and len(set(seen[name])) > 1]
        fits = len(self._last) >= ENOUGH and bool(varied)
        known = varied if fits else []
        seconds = self._fitted(asked, varied) if fits else self.median_s
        scaled = [name for name in lengths if len(seen.get(name, ())) == len(self._last)]
        if not set(scaled) & set(known):
            length = sum(asked[name] for name in scaled)
            of_runs = [sum(one[name] for name in scaled) for one, _ in self._last]
            if length and all(of_runs) and any(one != length for one in of_runs):
                walls = [seconds] * len(of_runs) if fits else [wall_s for _, wall_s in self._last]
                times = sorted(wall_s * length / one for wall_s, one in zip(walls, of_runs, strict=True))
                seconds = times[len(times) // 2]
                words += f", in proportion to {' + '.join(scaled)}"
        words += f"; outside of what they had: {', '.join(outside.values())}" if outside else ""
        counts = {name for name in outside if isinstance(params[name], int)} - set(scaled) - set(known)
        if contract_s > seconds and counts:
            return contract_s, f"the contract's estimate, as that of {words} is lower"
        return seconds, words

    def _fitted(self, asked: Mapping[str, float], names: list[str]) -> float:
        table = np.array([[one[name] for name in names] for one, _ in self._last])
        point = np.array([asked[name] for name in names])
        positive = (table > 0).all(axis=0) & (point > 0)
        table = np.where(positive, np.log(np.where(positive, table, 1.0)), table)
        point = np.where(positive, np.log(np.where(positive, point, 1.0)), point)
        middle, spread = table.mean(axis=0), table.std(axis=0)
        x = (table - middle) / spread
        y = np.log(np.maximum([wall_s for _, wall_s in self._last], 1e-6))
        slopes = np.linalg.solve(x.T @ x + RIDGE * np.eye(len(names)), x.T @ (y - y.mean()))
        guess = float(y.mean() + (point - middle) / spread @ slopes)
        return math.exp(min(guess, 50.0))

    def accuracy(self) -> dict[str, Any]:
        """Means in seconds, the median of actual over estimated, and the share of runs within a factor of two."""
        ratios = self._ratios
        return {
            "runs": self.runs,
            "failed": self.failed,
            "estimated_s": self._estimated / self.runs if self.runs else None,
            "actual_s": self._actual / self.runs if self.runs else None,
            "actual_over_estimated": ratios[len(ratios) // 2] if ratios else None,
            "within_factor_2": sum(0.5 <= one <= 2 for one in ratios) / len(ratios) if ratios else None,
        }


def lengths_of(names: Iterable[str]) -> tuple[str, ...]:
    """Of the names of parameters those that say how long a run is, in steps.

    Example:
        >>> lengths_of(["timestep", "equil_steps", "steps", "max_steps", "every"])
        ('equil_steps', 'steps')
    """
    return tuple(n for n in names if (n == "steps" or n.endswith("_steps")) and not n.startswith("max_"))


def _numbers(params: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in params.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
