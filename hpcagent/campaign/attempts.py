"""Whether a run that failed is started again, when, and with how much time."""

from __future__ import annotations

import time
from collections.abc import Callable

from hpcagent.apps.base import App
from hpcagent.campaign.state import State
from hpcagent.model.failures import MOST_LOST
from hpcagent.model.records import Result

__all__ = ["Attempts"]

# Before an attempt that follows one on a full disk, in seconds: the second, the third, and all further ones.
PAUSES_S = (5.0, 20.0, 60.0)


def pause_s(attempt: int) -> float:
    """Seconds to wait after this attempt of a run, where another one may go better later only.

    Example:
        >>> [pause_s(attempt) for attempt in (1, 2, 3, 20)]
        [5.0, 20.0, 60.0, 60.0]
    """
    return PAUSES_S[min(attempt, len(PAUSES_S)) - 1]


class Attempts:
    """The attempts of a campaign's runs.

    Args:
        state: What is known.
        retries: How often a run is started again after an infrastructure failure.

    Attributes:
        wants_s: Execution id -> the time that it is sent with, in seconds, where an earlier one was too short.
        pause_s: Attempt -> the seconds to wait after it, where the run waits for something to go by.
    """

    def __init__(self, state: State, retries: int) -> None:
        self._state, self.retries = state, retries
        self.wants_s: dict[str, float] = {}
        self.pause_s: Callable[[int], float] = pause_s
        self.paused: list[tuple[float, str]] = []  # when by `time.monotonic`, and which run is sent again

    def another(self, result: Result, app: App, *, charged: bool) -> bool:
        """Whether the run is to be started again.

        Args:
            result: What came of the attempt.
            app: What ran.
            charged: Whether the attempt counts against the run.
        """
        if result.failure is None or not result.failure.means.again:
            return False
        if app.chain:
            return False  # its inner runs have had their attempts
        lost = self._state.uncharged_attempts.get(result.manifest.execution_id, 0)
        if not charged:
            return lost < MOST_LOST
        return result.attempt - lost <= self.retries

    def more_time(self, result: Result, app: App, whole_s: float) -> bool:
        """Ask for more time for a run that its block's end has cut off; False if it had all that a block has.

        Args:
            result: What came of the attempt.
            app: What ran.
            whole_s: The whole usable time of a block, in seconds.
        """
        failure, name = result.failure, result.manifest.execution_id
        goes_on = failure is not None and failure.means.goes_on
        if goes_on or "restart" in app.settings:
            return True
        had = self.wants_s.get(name, 0.0)
        if had >= whole_s:
            return False
        # How long it ran is known where it was stopped in time; where the scheduler ended the job it is not.
        known = result.cost.wall_s if not had else 0.0
        self.wants_s[name] = min(2 * known, whole_s) if known else whole_s
        return True

    def had_all(self, result: Result, whole_s: float) -> Result:
        """The result of a run that the whole time of a block was not enough for."""
        assert result.failure is not None
        words = f"{result.failure.message} It had the whole usable time of a block ({whole_s:g} s)."
        repair = "longer blocks (--walltime; walltime in [block]), shorter runs, or restart files ([restart])"
        return result.model_copy(
            update={"failure": result.failure.model_copy(update={"message": words, "repair": repair})}
        )

    def pause(self, result: Result) -> str:
        """Send a run again after a while, when what it failed of may have gone by.

        Returns:
            What is to be said of it; empty where others wait already.
        """
        assert result.failure is not None
        seconds, name = self.pause_s(result.attempt), result.manifest.execution_id
        first = not self.paused
        self.paused.append((time.monotonic() + seconds, name))
        if not first:
            return ""
        return f"run {result.manifest.index} failed of {result.failure.name}, and is begun anew in {seconds:g} s"

    def due(self) -> list[str]:
        """Those whose pause is over, once."""
        if not self.paused:
            return []
        now = time.monotonic()
        due = [name for at, name in self.paused if at <= now]
        self.paused = [(at, name) for at, name in self.paused if at > now]
        return due
