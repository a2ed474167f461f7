"""Rolling mode: how many runs are in flight, and a policy that thinks while they go on."""

from __future__ import annotations

import math
import queue
import sys
import threading
import time
from collections.abc import Callable

from hpcagent.model.parameter import Params
from hpcagent.statistics.pace import Pace

__all__ = ["Suggester", "due", "in_flight"]

# The way to a worker and back, in seconds: what a run that is there already saves.
WAY_S = 0.02

# For runs shorter than the way there, so many in flight for each worker are enough.
MOST_AHEAD = 60

# So many of the last suggestions say how long the next one takes.
RECENT = 4


def in_flight(workers: int, mean_s: float | None, suggest_s: float = 0.0, *, most_ahead: int = MOST_AHEAD) -> int:
    """Enough runs in flight that no worker waits for a suggestion, few enough that each one is informed.

    A suggestion fills what was free when it was asked for, and while it is worked out as many runs end again: so
    what ends in two such times has to be there beyond the runs that are going, and some more because run times
    vary.

    Args:
        workers: Runs that go at the same time.
        mean_s: Mean time of the last runs, in seconds; None if nothing is known of it.
        suggest_s: How long a suggestion takes, in seconds.
        most_ahead: Runs that may wait for each worker.

    Example:
        >>> in_flight(8, None), in_flight(8, 10.0), in_flight(8, 1.0, suggest_s=0.25)
        (8, 9, 14)
    """
    if mean_s is None:
        return workers
    ending = workers * (2 * suggest_s + WAY_S) / max(mean_s, 1e-4)
    return workers + max(1, min(math.ceil(ending + math.sqrt(ending) / 2), workers * most_ahead))


def due(limit: int, running: int, workers: int) -> int:
    """How many runs to ask for now: short ones several at once, for workers have enough to do meanwhile.

    Example:
        >>> due(9, 8, 8), due(60, 50, 2), due(60, 40, 2), due(60, 0, 2)
        (1, 0, 20, 60)
    """
    free = limit - running
    return free if free > 0 and free >= min((limit - workers) // 4, limit) else 0


class Suggester:
    """Has the policy asked in a thread of its own, one question at a time, while its owner goes on.

    Args:
        wake: Called in that thread when an answer is there that nobody waits for.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._questions: queue.SimpleQueue[tuple[Callable[[], list[Params]], _Answer] | None] = queue.SimpleQueue()
        self._answer: _Answer | None = None
        self._thread: threading.Thread | None = None
        self._took = Pace(RECENT)
        self._answers = 0
        self._sure = False

    @property
    def busy(self) -> bool:
        """Whether a question was asked whose answer has not been taken."""
        return self._answer is not None

    @property
    def takes_s(self) -> float:
        """How long the last suggestions took, in seconds; 0 before the first."""
        return self._took.mean_s or 0.0

    @property
    def sure(self) -> bool:
        """Whether `takes_s` tells how long the next takes: a question that imports modules does not."""
        return self._sure

    def ask(self, question: Callable[[], list[Params]]) -> None:
        """Have the question answered."""
        assert self._answer is None
        if self._thread is None or not self._thread.is_alive():
            # A daemon: a policy that never comes back must not keep the process.
            self._thread = threading.Thread(target=self._work, name="policy", daemon=True)
            self._thread.start()
        self._answer = _Answer()
        self._questions.put((question, self._answer))

    def wait(self, timeout_s: float) -> bool:
        """Wait for the answer, at most `timeout_s`; after that `wake` is called when it comes."""
        answer = self._answer
        assert answer is not None
        if answer.there.wait(timeout_s):
            return True
        answer.wake = True
        return answer.there.is_set()

    def take(self) -> list[Params]:
        """Return the answer, or raise what the policy raised."""
        answer, self._answer = self._answer, None
        assert answer is not None and answer.there.is_set()
        if not self._sure:
            self._took.clear()
        self._took.add(answer.took_s)
        self._answers += 1
        self._sure = self._sure or answer.imported == 0 or self._answers > 1
        if answer.error is not None:
            raise answer.error
        return answer.points

    def forget(self) -> None:
        """Do without the answer. The next question is put when the policy has come back."""
        self._answer = None

    def close(self, timeout_s: float = 2.0) -> None:
        """End the thread, and wait a moment for it. Harmless when called twice."""
        self.forget()
        if self._thread is not None:
            self._questions.put(None)
            self._thread.join(timeout_s)
            self._thread = None
            self._questions = queue.SimpleQueue()

    def _work(self) -> None:
        questions = self._questions
        while (asked := questions.get()) is not None:
            question, answer = asked
            if answer is not self._answer:
                continue  # forgotten before its turn
            began, modules = time.perf_counter(), len(sys.modules)
            try:
                answer.points = question()
            except BaseException as error:  # the owner raises it
                answer.error = error
            answer.took_s, answer.imported = time.perf_counter() - began, len(sys.modules) - modules
            answer.there.set()
            if answer.wake:
                try:
                    self._wake()
                except Exception as error:  # the owner looks by itself before long, and raises it then
                    answer.error = answer.error or error


class _Answer:
    """What the policy said, when it has."""

    def __init__(self) -> None:
        self.there = threading.Event()
        self.points: list[Params] = []
        self.error: BaseException | None = None
        self.took_s = 0.0
        self.imported = 0
        self.wake = False
