"""A chain whose computations are runs of a workspace: each has an owner, a quota and an approval."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

from hpcagent.apps.base import App
from hpcagent.apps.chain import ChainRun, inner_manifest
from hpcagent.apps.parts import Part
from hpcagent.apps.worker import execute_as_result
from hpcagent.errors import AppFailed, BadInput, nearest
from hpcagent.model.records import Manifest, Result

__all__ = ["RUN_OPTIONS", "Computes", "check_options", "computed_by"]

RUN_OPTIONS = ("site", "walltime_s", "why", "label")
"""Of `Workspace.run`: how a run is asked for. What decides its result stands elsewhere."""


class Computes(Protocol):
    """What starts runs and waits for them: a workspace."""

    def run(
        self,
        app: App,
        params: Mapping[str, Any],
        *,
        site: str = ...,
        seed: int = ...,
        replicate: int = ...,
        inputs: Sequence[str] = ...,
        walltime_s: float | None = ...,
        why: str = ...,
        label: str = ...,
    ) -> Mapping[str, Any]:
        """Start a run, or find the one that did the same work."""

    def wait(self, identity: str) -> Mapping[str, Any]:
        """Its status once it has ended."""

    def fetch(self, identity: str, path: str) -> Any:
        """A file of it, as bytes."""

    def close(self) -> None:
        """Close the connection of the thread that calls."""


def check_options(options: Mapping[str, Any]) -> None:
    """See that these say how a run is asked for, and nothing else.

    Raises:
        BadInput: One does not.
    """
    for name in options:
        if name not in RUN_OPTIONS:
            raise BadInput(
                f"run_options has {name!r}; {nearest(str(name), RUN_OPTIONS)} What is computed stands in the "
                "other arguments.",
                value=name,
            )


def computed_by(
    workspace: Computes, app: App, manifest: Manifest, options: Mapping[str, Any]
) -> tuple[Result, dict[str, str]]:
    """The result of a chain, whose function is called here, and whose inner runs are the workspace's.

    Args:
        workspace: Who runs them.
        app: The chain; without inputs.
        manifest: Of the run.
        options: How the runs are asked for, see `RUN_OPTIONS`.

    Returns:
        The result, and execution id -> id in the workspace of each run that it was made of. The chain itself has
        no folder: its files are those of its runs.

    Raises:
        NotAllowed: The gate refuses a run, or one waits for an approval; those that have begun are found again.
        BadInput: The workspace computes something else than was planned.
    """
    whole = _Whole(workspace, options)
    answer: Future[Result] = Future()

    def run() -> None:
        try:
            with TemporaryDirectory(prefix="hpcagent-chain-") as folder:
                answer.set_result(whole.run(app, manifest, (), Path(folder)))
        except BaseException as error:
            answer.set_exception(error)
        finally:
            workspace.close()

    # A chain waits for all that it has begun; who interrupts this call does not: it goes on in the workspace.
    threading.Thread(target=run, name=f"chain {app.name}", daemon=True).start()
    result = answer.result()
    if whole.refused:
        raise whole.refused[0]
    return result, whole.runs


class _Whole:
    """One chain and those in it."""

    def __init__(self, workspace: Computes, options: Mapping[str, Any]) -> None:
        self._workspace, self._options = workspace, options
        self.runs: dict[str, str] = {}
        self.refused: list[Exception] = []

    def run(self, app: App, manifest: Manifest, upstream: tuple[Any, ...], work: Path) -> Result:
        """Call a chain's function, and give what comes of it."""

        def ask(
            inner: App,
            inputs: tuple[Any, ...],
            params: Mapping[str, Any],
            seed: int | None,
            replicate: int | None,
        ) -> Part:
            asked = inner_manifest(manifest, app, inner, inputs, params, seed, replicate, None)
            part = Part(inner.name, asked.execution_id)
            # A workspace takes runs as input that have ended.
            for one in inputs:
                if isinstance(one, Part) and one.result().failure is not None:
                    part.set_result(_passed_on(asked, one.result()))
                    return part
            if inner.chain:
                self._in_a_thread(part, lambda: self.run(inner, asked, inputs, work))
            else:
                self._begin(part, inner, asked, inputs)
            return part

        running = ChainRun(app, upstream, ask)
        order = app.order(manifest, work=work, site={}) | {
            "function": running.function,
            "account": running.account,
        }
        result: Result = execute_as_result(order)
        return result

    def _begin(self, part: Part, app: App, manifest: Manifest, inputs: tuple[Any, ...]) -> None:
        foreign = next((one for one in inputs if not isinstance(one, Part)), None)
        if foreign is not None:
            raise self._told(
                BadInput(
                    f"{app.name}: a workspace takes runs as input, and a {type(foreign).__name__} cannot be "
                    "handed to it; compute it on an open site.",
                    value=type(foreign).__name__,
                )
            )
        try:
            begun = self._workspace.run(
                app,
                manifest.params,
                inputs=[self.runs[one.execution_id] for one in inputs],
                seed=manifest.seed,
                replicate=manifest.replicate,
                **self._options,
            )
        except Exception as error:
            raise self._told(error) from None
        self.runs[manifest.execution_id] = begun["id"]
        part.shared = bool(begun["found"])
        self._in_a_thread(part, lambda: self._ended(begun["id"], manifest))

    def _told(self, error: Exception) -> Exception:
        self.refused.append(error)
        return error

    def _in_a_thread(self, part: Part, call: Any) -> None:
        def run() -> None:
            try:
                part.set_result(call())
            except Exception as error:
                part.set_exception(self._told(error))
            finally:
                self._workspace.close()

        threading.Thread(target=run, name=f"workspace {part.app}", daemon=True).start()

    def _ended(self, identity: str, manifest: Manifest) -> Result:
        """What a run of the workspace has come to."""
        status = self._workspace.wait(identity)
        if status["execution_id"] != manifest.execution_id:
            raise BadInput(
                f"the workspace ran {manifest.app} as {status['execution_id']}, where {manifest.execution_id} was "
                "planned: its service has other code than this program. End it (`hpcagent workspace end`) and ask "
                "again.",
                value=status["execution_id"],
            )
        if status["state"] == "completed":
            try:
                whole = json.loads(self._workspace.fetch(identity, "result.json"))
                return Result.model_validate({**whole, "manifest": manifest})
            except ValueError as error:
                raise AppFailed(
                    f"the result of the run {identity} cannot be read: {error}",
                    kind="infrastructure",
                    name="BadResult",
                ) from None
        words = "; ".join(status["notes"]) or status["state"]
        cancelled = {"kind": "cancelled", "name": "CancelledError", "message": f"The run {identity}: {words}."}
        return _failed(manifest, status["failure"] or cancelled, float(status["ended_at"] or 0.0))


def _failed(manifest: Manifest, failure: Mapping[str, Any], at: float) -> Result:
    facts = {"manifest": manifest, "status": "FAILED", "failure": dict(failure), "started_at": at, "ended_at": at}
    return Result.model_validate(facts)


def _passed_on(manifest: Manifest, of: Result) -> Result:
    """Of a run whose input has failed: it was not begun."""
    assert of.failure is not None
    message = f"its input run {of.manifest.app} ({of.manifest.execution_id}) failed: {of.failure.message}"
    failure = of.failure.model_dump(mode="json") | {"message": message}
    return _failed(manifest, failure, of.ended_at)
