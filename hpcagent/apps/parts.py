"""Runs that a chain asks for, their metrics as futures, and whoever an app's call goes to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextvars import ContextVar
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from hpcagent.errors import AppFailed, BadInput
from hpcagent.model.records import Failure, Result

if TYPE_CHECKING:
    from hpcagent.apps.base import App

__all__ = ["CALLER", "Caller", "Part", "Value", "by_hand", "failed", "failure_in", "valued"]


class Value(Future[float]):
    """A metric of a run that has perhaps not ended: `run["energy"]`.

    Attributes:
        part: The run.
        metric: Its metric.
    """

    def __init__(self, part: Part, metric: str) -> None:
        super().__init__()
        self.part = part
        self.metric = metric
        part.add_done_callback(self._take)

    def _take(self, done: Future[Result]) -> None:
        try:
            result = done.result()
        except BaseException as error:
            self.set_exception(error)
            return
        if result.failure is not None:
            self.set_exception(failed(result))
        elif self.metric not in result.metrics:
            self.set_exception(
                AppFailed(
                    f"the run {result.manifest.app} {result.manifest.execution_id} has no metric {self.metric!r}; "
                    f"it has: {', '.join(sorted(result.metrics)) or 'none'}.",
                    kind="contract",
                    name="MissingMetric",
                )
            )
        else:
            self.set_result(result.metrics[self.metric])


class Part(Future[Result]):
    """A run that a chain asked for; its result is a `Result`, also when the run failed.

    Attributes:
        app: Name of the app.
        execution_id: The run's.
        shared: Whether another chain, or another campaign, has paid for it.
    """

    def __init__(self, app: str, execution_id: str) -> None:
        super().__init__()
        self.app = app
        self.execution_id = execution_id
        self.shared = False

    def __getitem__(self, metric: str) -> Value:
        return Value(self, metric)


class Caller(Protocol):
    """A chain whose function runs."""

    def ask(
        self,
        app: App,
        upstream: tuple[Any, ...],
        params: Mapping[str, Any],
        seed: int | None,
        replicate: int | None,
    ) -> Part:
        """Start an inner run."""
        ...


CALLER: ContextVar[Caller | None] = ContextVar("hpcagent_chain", default=None)
"""The chain whose function runs in this thread; the calls of apps in it are its inner runs."""


def failure_in(result: Result) -> Failure:
    assert result.failure is not None
    return result.failure


def failed(result: Result) -> AppFailed:
    """The error by which a chain fails with one of its inner runs."""
    failure = failure_in(result)
    return AppFailed(
        f"its inner run {result.manifest.app} ({result.place or result.manifest.execution_id}) failed: "
        f"{failure.message}",
        kind=failure.kind,
        name=failure.name,
        log_tail=failure.log_tail,
        repair=failure.repair,
    )


def valued(upstream: Any) -> Any:
    """The value of a future that is none of our runs (a Parsl app of the user's), waited for; others as they are.

    What it is decides what the run computes, so it must be known before the run has an execution id.

    Raises:
        BadInput: It failed.
    """
    if not isinstance(upstream, Future) or isinstance(getattr(upstream, "execution_id", None), str):
        return upstream
    try:
        return upstream.result()
    except Exception as error:  # whatever the user's own function raises
        raise BadInput(
            f"an input is a future that failed: {type(error).__name__}: {error}.", value=repr(upstream)
        ) from error


def by_hand() -> Callable[..., Any]:
    """What starts a run that no chain asks for: a call on the open site. By name, as sites are built on apps."""
    call: Callable[..., Any] = import_module("hpcagent.sites.calls").call
    return call
