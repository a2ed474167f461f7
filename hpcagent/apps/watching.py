"""A run is looked at while it goes on, and ended early where its campaign's guard says so.

What a run gives so far comes from the app: a LAMMPS log that grows (`hpcagent.science.lammps.watch`), or a Python
function that yields. `hpcagent.apps.guard.decide` says whether that is enough to stop it. Without a guard nothing
of this runs. Imports only the standard library, for workers use it.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hpcagent.apps.guard import Sofar, Verdict, blown_up, decide
from hpcagent.apps.run import Outcome, Run, note
from hpcagent.errors import AppFailed

__all__ = ["Watching", "driven", "verdict_on", "with_news"]

_CHEAP = 50
"""A look is followed by a pause of at least so many times the processor time that it took: 2 % at most."""
_FIRST_S = 0.5
"""Before the first looks: a run that diverges does so at its beginning."""
_MOST_NEWS = 4096
GRACE_S = 20.0
"""A run that does not end by itself within this time, in seconds, is ended by a signal."""


def verdict_on(guard: Mapping[str, Any], history: list[Sofar]) -> Verdict | None:
    """What the guard says of a run, after its newest look."""
    return decide(with_news(guard), history)


def with_news(guard: Mapping[str, Any]) -> Mapping[str, Any]:
    """The guard with the best that the campaign has found since the run was sent, where the run can see that.

    Example:
        >>> with_news({"goal": None, "news": ""})
        {'goal': None, 'news': ''}
    """
    goal, path = guard.get("goal"), guard.get("news")
    if goal is None or not path:
        return guard
    try:
        with Path(path).open("rb") as file:
            news = json.loads(file.read(_MOST_NEWS))
        best, error = float(news["best"]), float(news["best_error"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return guard  # none yet, or a worker elsewhere: what the order says stays
    if not (math.isfinite(best) and math.isfinite(error) and error >= 0):
        return guard
    return {**guard, "goal": {**goal, "best": best, "best_error": error}}


class Watching:
    """Looks at a run from a thread of its own, while the caller waits for the run's end.

    Args:
        guard: What may end it (`Run.guard`).
        look: What the run gives so far; None where nothing is new.
        ask: Asks the run to end by itself; False where it cannot be asked.
        obeys: Whether the run is ending by itself, after it was asked.

    Attributes:
        verdict: Why it was stopped, or None.
        share: How much of it was done when that was decided, 0 to 1.
        by: How it was stopped: `asked` or `signal`; empty if it was not, or could not be.

    Example:
        >>> watching = Watching({"stops": ["blown_up"], "every_s": 0.01}, look=lambda: None)
        >>> with watching:
        ...     pass
        >>> watching.verdict is None
        True
    """

    def __init__(
        self,
        guard: Mapping[str, Any],
        look: Callable[[], Sofar | None],
        *,
        ask: Callable[[], bool] = lambda: False,
        obeys: Callable[[], bool] = lambda: False,
    ) -> None:
        self._guard, self._look, self._ask, self._obeys = guard, look, ask, obeys
        self._history: list[Sofar] = []
        self._ended = threading.Event()
        self._killing = threading.Lock()
        self._kill: Callable[[], None] | None = None
        self._thread = threading.Thread(target=self._go_on, name="watching", daemon=True)
        self._trouble: Exception | None = None
        self.verdict: Verdict | None = None
        self.share = 0.0
        self.by = ""

    def kill_with(self, kill: Callable[[], None]) -> None:
        """The run has begun: how it is ended where it does not end by itself."""
        self._kill = kill

    def __enter__(self) -> Watching:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        with self._killing:  # nothing is signalled once the run's process is gone
            self._ended.set()
        self._thread.join()
        if self._trouble is not None:
            note(f"the run was not watched to its end: {type(self._trouble).__name__}: {self._trouble}")

    def _go_on(self) -> None:
        pause = min(_FIRST_S, float(self._guard["every_s"]))
        while not self._ended.wait(pause):
            cpu = time.thread_time()
            try:
                sofar = self._look()
                if sofar is not None:
                    self._history.append(sofar)
                    self.verdict = verdict_on(self._guard, self._history)
            except Exception as error:  # whatever is wrong with watching, the run is not to suffer from it
                self._trouble = error
                return
            if self.verdict is not None:
                self.share = self._history[-1].share
                self._stop()
                return
            pause = min(2 * pause, float(self._guard["every_s"]))
            pause = max(pause, _CHEAP * (time.thread_time() - cpu))

    def _stop(self) -> None:
        if self._ended.is_set():
            self.verdict = None  # it has come to its end meanwhile
            return
        asked = self._ask()
        self.by = "asked" if asked else ""
        until = time.monotonic() + GRACE_S
        while asked and not self._ended.wait(0.1):
            if self._obeys():
                self._ended.wait()  # what the script does after the run may take its time; the walltime holds
            elif time.monotonic() > until:
                break
        with self._killing:
            if not self._ended.is_set():
                self.by = "" if self._kill is None else "signal"
                if self._kill is not None:
                    self._kill()


# ---- functions that yield


def driven(values: Generator[Any, Any, Any], run: Run, promises: Mapping[str, Any] | None = None) -> Outcome:
    """Run a function that yields what it has so far; the last it yields, or what it returns, is its outcome.

    Args:
        values: The generator. It yields metrics, `(metrics, uncertainty)`, `(metrics, uncertainty, share)`, an
            `Outcome` or a `Sofar`. Where it says no share of its run, 0 to 1, only what has blown up is stopped.
        run: Its guard is asked about every value. Without one the function runs to its end.
        promises: Metrics of the contract: `share` among the metrics is one of them then, and otherwise the share.

    Raises:
        AppFailed: `BlownUp`; `BadReturn`: it yields something else, or nothing at all.
    """
    began = time.perf_counter()
    promised = promises or {}
    history: list[Sofar] = []
    last: Outcome | None = None
    try:
        for number in range(1, 1 << 62):
            try:
                value = next(values)
            except StopIteration as end:
                if end.value is not None:
                    last = _as_outcome(end.value, promised, "returned")[0]
                break
            last, share = _as_outcome(value, promised, f"yielded as its value number {number}")
            if run.guard is None:
                continue
            history.append(_sofar(last, share, time.perf_counter() - began))
            verdict = verdict_on(run.guard, history)
            if verdict is not None:
                if verdict.reason == "blown_up":
                    raise blown_up(verdict, share or 0.0)
                return replace(last, bounds=verdict.bounds, stopped=verdict.stopped(share or 0.0))
    finally:
        values.close()
    if last is None:
        raise AppFailed(
            "the app's function yielded nothing and returned nothing; it must yield or return metrics.",
            kind="contract",
            name="BadReturn",
        )
    return last


def _sofar(outcome: Outcome, share: float | None, wall_s: float) -> Sofar:
    bad = [f"{name} is {value}" for name, value in outcome.metrics.items() if not _is_finite(value)]
    return Sofar(
        share=share or 0.0,
        metrics={name: float(v) for name, v in outcome.metrics.items() if _is_finite(v)},
        uncertainty={name: float(v) for name, v in outcome.uncertainty.items() if _is_finite(v)},
        blown_up=", ".join(bad),
        wall_s=wall_s,
    )


def _is_finite(value: Any) -> bool:
    return value is None or math.isfinite(value)


def _as_outcome(value: Any, promised: Mapping[str, Any], how: str) -> tuple[Outcome, float | None]:
    share: Any = None
    match value:
        case Outcome():
            return value, None
        case Sofar():
            outcome, share = Outcome(metrics=value.metrics, uncertainty=value.uncertainty), value.share
        case Mapping():
            outcome = Outcome(metrics=value)
        case (Mapping() as metrics, Mapping() as uncertainty):
            outcome = Outcome(metrics=metrics, uncertainty=uncertainty)
        case (Mapping() as metrics, Mapping() as uncertainty, share):
            outcome = Outcome(metrics=metrics, uncertainty=uncertainty)
        case _:
            raise AppFailed(
                f"the app's function has {how} {type(value).__name__}; it must be a dict of metrics, (metrics, "
                "uncertainty), (metrics, uncertainty, share) or an Outcome.",
                kind="contract",
                name="BadReturn",
            )
    if share is None and "share" in outcome.metrics and "share" not in promised:
        share = outcome.metrics["share"]
        outcome = replace(outcome, metrics={n: v for n, v in outcome.metrics.items() if n != "share"})
    if share is not None and not (isinstance(share, (int, float)) and 0 <= share <= 1):
        raise AppFailed(
            f"the app's function has {how} the share {share!r}; it is the part of its run that is done, 0 to 1.",
            kind="contract",
            name="BadReturn",
        )
    return outcome, None if share is None else float(share)
