"""Which of the runs of a job has eaten its memory? The scheduler names the job, and all of its runs are lost."""

from __future__ import annotations

from collections.abc import Collection

__all__ = ["Suspects"]


class Suspects:
    """Keeps the runs of jobs that ran out of memory apart, until it is clear which of them it was.

    Started again side by side they would end together again, and the innocent be given up with the culprit. So at
    most half of them go at a time, those first that were lost least often; a run is charged with an attempt when
    no other can have been it.

    Example:
        >>> suspects = Suspects()
        >>> suspects.culprit(["a", "b"])  # of a job in which both were lost: nobody knows
        >>> suspects.add("a"), suspects.add("b")
        (None, None)
        >>> suspects.release()  # one of the two
        ['a']
        >>> suspects.done("a")
        >>> suspects.release()
        ['b']
        >>> suspects.culprit(["b", "c"])  # c was beside it, but had not been suspected before
        'b'
    """

    def __init__(self) -> None:
        self._losses: dict[str, int] = {}
        self._held: list[str] = []
        self._out: set[str] = set()

    def culprit(self, lost: Collection[str]) -> str | None:
        """Which of the runs that were lost together it was: the only one, or the only suspect; None: not known."""
        suspects = lost if len(lost) == 1 else self._out
        return next(iter(suspects)) if len(suspects) == 1 else None

    def add(self, name: str) -> None:
        """Keep a run back until `release` returns it."""
        self._losses[name] = self._losses.get(name, 0) + 1
        self._out.discard(name)
        self._held.append(name)

    def done(self, name: str) -> None:
        """The run has ended, for whatever reason."""
        self._out.discard(name)

    def release(self) -> list[str]:
        """Return the runs that may be started now."""
        most = max(1, (len(self._held) + len(self._out)) // 2)
        self._held.sort(key=lambda name: self._losses[name])
        count = max(0, most - len(self._out))
        free, self._held = self._held[:count], self._held[count:]
        self._out.update(free)
        return free
