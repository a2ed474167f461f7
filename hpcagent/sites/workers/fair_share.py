"""Whose run is next where several campaigns share a site: start-time fair queueing (Goyal, Vin, Cheng, 1996).

Every campaign has a clock of its own that goes on by the worker time of what it submits. A run is sent with the
clock's reading, and the smallest reading goes first: so a campaign that has waited comes before one that has had
more, however much that one has submitted before. One that had nothing to run gets no credit for it.
"""

from __future__ import annotations

import math
import threading

__all__ = ["Turn", "Turns"]


class Turns:
    """The order of runs on a site.

    Example:
        >>> turns = Turns()
        >>> many, few = turns.join(), turns.join()
        >>> [many.next(1.0) for _ in range(3)], few.next(1.0)
        ([1.0, 2.0, 3.0], 1.0)
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now = 1.0  # 0 is for runs that are sent again
        self._turns: list[Turn] = []
        self._by_hand = Turn(self)
        self._cost_s = 1.0

    def join(self) -> Turn:
        """Take part."""
        turn = Turn(self)
        with self._lock:
            self._turns.append(turn)
        return turn

    def by_hand(self) -> float | None:
        """Return the priority of a task that no campaign sends; None while there are no campaigns.

        Tasks sent by hand take turns with campaigns as if they were one more, a task for a run.
        """
        if not self._turns:
            return None
        return self._by_hand.next(self._cost_s, runs=0)


class Turn:
    """One campaign's part in the order; made by `Turns.join`."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._clock = 0.0
        self._sent = 0

    def next(self, cost_s: float, *, runs: int = 1, ahead: bool = False) -> float:
        """Return the priority of what is sent now.

        Args:
            cost_s: Worker time that it will probably take, in seconds.
            runs: How many runs it is.
            ahead: Before whatever else of this campaign is waiting.
        """
        turns = self._turns
        with turns._lock:
            start = turns._now if ahead else max(turns._now, self._clock)
            self._clock = max(turns._now, self._clock) + cost_s
            self._sent += runs
            turns._cost_s = cost_s / max(1, runs)
            return start

    def again(self, runs: int = 1) -> float:
        """Return the priority of what is sent once more: before everything else."""
        with self._turns._lock:
            self._sent += runs
        return 0.0

    def back(self, priority: float, *, runs: int = 1) -> None:
        """What was sent with this priority has ended."""
        turns = self._turns
        with turns._lock:
            turns._now = max(turns._now, priority)
            self._sent -= runs

    def share(self, workers: int) -> int:
        """Return how many of so many workers are this campaign's: an equal part, and what others leave free.

        Example:
            >>> turns = Turns()
            >>> here, there = turns.join(), turns.join()
            >>> here.share(8), there.next(1.0) and here.share(8)
            (8, 7)
        """
        turns = self._turns
        with turns._lock:
            others = [t._sent for t in turns._turns if t is not self and t._sent > 0]
            fair = math.ceil(workers / (1 + len(others)))
            return max(fair, workers - sum(min(fair, sent) for sent in others))

    def leave(self) -> None:
        """Take part no longer. Harmless when called twice."""
        with self._turns._lock:
            if self in self._turns._turns:
                self._turns._turns.remove(self)
