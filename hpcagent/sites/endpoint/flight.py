"""Runs on their way to an endpoint: one run, the call that wants it, and the task in which it travels."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcagent.errors import HpcAgentError
from hpcagent.statistics.pace import Pace

__all__ = ["Call", "Flight", "Paces", "Run", "fitting"]

TASK_S = 0.5
"""Runs travel together until they take about so long: a round trip takes as much."""
MOST_TOGETHER = 64
_MOST_BYTES = 2**20


class Call:
    """A future that somebody waits for, for one run or several.

    Args:
        runs: How many.
        single: The future has the answer of the one run, and not a list; a run that is lost fails it.
        wrap: Makes of an answer what the caller expects.
    """

    def __init__(self, runs: int, *, single: bool, wrap: Any = None) -> None:
        self.future: Future[Any] = Future()
        self.future.set_running_or_notify_cancel()  # what was sent, runs
        self._single = single
        self._wrap = wrap
        self._answers: list[Any] = [None] * runs
        self._left = set(range(runs))

    def answer(self, index: int, fields: dict[str, Any]) -> None:
        """A run has been answered."""
        if index not in self._left:
            return
        self._left.discard(index)
        self._answers[index] = fields
        if not self._left:
            self._finish()

    def fail(self, index: int, error: Exception, failed: dict[str, Any]) -> None:
        """A run has no answer: the future fails, or has the failed result among those of the others."""
        if index not in self._left:
            return
        if not self._single:
            self.answer(index, failed)
            return
        self._left.clear()
        self.future.set_exception(error)

    def close(self, error: Exception) -> None:
        """Nobody answers any more."""
        if self._left:
            self._left.clear()
            self.future.set_exception(error)

    def _finish(self) -> None:
        try:
            answers = [self._wrap(a) for a in self._answers] if self._wrap else self._answers
        except Exception as error:  # a record that does not fit; whoever asked hears of it
            self.future.set_exception(error)
        else:
            self.future.set_result(answers[0] if self._single else answers)


@dataclass(slots=True)
class Run:
    """One run that is to be done there.

    Attributes:
        call: Who waits for it, and for which place in the answer.
        index: That place.
        manifest: Of the run.
        attempt: Which one.
        workdir: Its directory here.
        order: As it travels.
        upstream: As they travel.
        blobs: SHA-256 -> content that must lie there.
        like: Runs of the same kind may travel together: app, resources, walltime.
        resources: The specification of Globus Compute, for the MPI engine.
        estimated_s: As its contract says.
        size: Of the order as JSON, in bytes.
        priority: Smaller goes first.
        lost: How often it was lost with a task.
    """

    call: Call
    index: int
    manifest: Mapping[str, Any]
    attempt: int
    workdir: str
    order: Mapping[str, Any]
    upstream: Sequence[Any]
    blobs: Mapping[str, bytes | Path]
    like: tuple[Any, ...]
    resources: dict[str, Any] | None
    estimated_s: float
    size: int
    priority: float
    lost: int = 0
    done: bool = False

    @property
    def execution_id(self) -> str:
        """Of its manifest."""
        return str(self.manifest["execution_id"])

    def answer(self, fields: dict[str, Any]) -> None:
        """It has ended."""
        self.done = True
        self.call.answer(self.index, fields)

    def fail(self, error: Exception) -> None:
        """It has no answer."""
        from hpcagent.sites.ended import failure_of

        self.done = True
        kind, name, message = failure_of(error)
        details = error.details if isinstance(error, HpcAgentError) else {}
        now = time.time()
        failed = {
            "status": "STOPPED" if kind == "cancelled" else "FAILED",
            "started_at": now,
            "ended_at": now,
            "workdir": self.workdir,
            "attempt": self.attempt,
            "failure": {
                "kind": kind,
                "name": name,
                "message": message,
                "log_tail": str(details.get("log_tail", "")),
                "repair": details.get("repair"),
            },
        }
        self.call.fail(self.index, error, failed)


@dataclass(slots=True)
class Flight:
    """A task that was sent, or waits for its inputs to be there.

    Attributes:
        runs: Execution id -> run; None for one of an earlier session that nobody has asked for (yet).
        key: Unique.
        sent_at: By the executor's clock; None: not sent yet.
        answers: Execution id -> answer that came before anybody asked for it.
        again: How often inputs were missing there.
        ended: How, once it has.
        adopted: Whether an earlier session has sent it.
        cancelling: Whether its end was asked for.
    """

    runs: dict[str, Run | None]
    key: str = field(default_factory=lambda: uuid.uuid4().hex)
    sent_at: float | None = None
    answers: dict[str, Any] = field(default_factory=dict)
    again: int = 0
    ended: str | None = None
    adopted: bool = False
    cancelling: bool = False

    @property
    def wanted(self) -> list[Run]:
        """Its runs that somebody waits for."""
        return [run for run in self.runs.values() if run is not None and not run.done]

    @property
    def attempts(self) -> dict[str, int]:
        """Execution id -> attempt, for the ledger."""
        return {name: run.attempt for name, run in self.runs.items() if run is not None}


class Paces:
    """How long runs take, by what they are: measured where some have ended, else as their contract says."""

    def __init__(self) -> None:
        self._paces: dict[Any, Pace] = {}

    def heard(self, like: Any, wall_s: float) -> None:
        """A run has taken so long."""
        self._paces.setdefault(like, Pace()).add(wall_s)

    def expected_s(self, run: Run) -> float:
        """How long the next one will take."""
        pace = self._paces.get(run.like)
        return run.estimated_s if pace is None or pace.mean_s is None else pace.mean_s


def fitting(first: Run, rest: Iterable[Run], *, expected_s: float, share: int) -> list[Run]:
    """The runs that go in one task: alike, together about `TASK_S`, and no more than leaves work for all workers.

    Args:
        first: The next one.
        rest: Those after it, in order.
        expected_s: How long one takes.
        share: How many may go together so that every worker has some.
    """
    most = max(1, min(int(TASK_S / max(expected_s, 1e-4)), share, MOST_TOGETHER))
    together, size = [first], first.size
    for run in rest:
        size += run.size
        if len(together) >= most or run.like != first.like or size > _MOST_BYTES:
            break
        together.append(run)
    return together
