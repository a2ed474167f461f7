"""A chain of a workspace: its function runs in a thread beside the site, its inner runs on it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from hpcagent.apps.base import App
from hpcagent.apps.chain import ChainRun, inner_manifest
from hpcagent.apps.parts import Part
from hpcagent.apps.worker import execute_as_result
from hpcagent.campaign.chain_runs import plain_inputs, refused
from hpcagent.errors import AppFailed, BadInput, HpcAgentError
from hpcagent.model.records import Manifest, Result

__all__ = ["ChainOnSite", "Send"]

Send = Callable[[App, Manifest, Sequence[Mapping[str, Any]]], Future[Result]]
"""Sends a run to the site; the future has its result, also when it failed."""


class ChainOnSite:
    """One chain with all its inner runs, also those of chains within it.

    Args:
        work: The folder with a directory for each execution id.
        about: The site, as manifests have it.
        send: Sends an inner run.
    """

    def __init__(self, work: Path, about: Mapping[str, Any], send: Send) -> None:
        self._work, self._about, self._send = work, about, send
        self._lock = threading.Lock()
        self._parts: dict[str, Part] = {}
        self.gone = False

    def start(self, app: App, manifest: Manifest, inputs: Sequence[Any], ended: Callable[[Result], None]) -> None:
        """Run a chain's function in a thread of its own.

        Args:
            app: The chain.
            manifest: What was asked for.
            inputs: Results or structures that it takes.
            ended: Called once with its result.
        """

        def ask(
            inner: App, taken: tuple[Any, ...], params: Mapping[str, Any], seed: int | None, replicate: int | None
        ) -> Part:
            if self.gone:
                raise AppFailed("The run was cancelled.", kind="cancelled", name="CancelledError")
            asked = inner_manifest(manifest, app, inner, taken, params, seed, replicate, self._about)
            return self._asked(inner, asked, taken)

        running = ChainRun(app, tuple(inputs), ask)

        def run() -> None:
            try:
                order = app.order(manifest, work=self._work, site=self._about) | {
                    "function": running.function,
                    "account": running.account,
                }
                result = execute_as_result(order)
            except Exception as error:
                known = (
                    error
                    if isinstance(error, HpcAgentError)
                    else HpcAgentError(f"{type(error).__name__}: {error}")
                )
                result = self._refused(manifest, known)
            ended(result)

        threading.Thread(target=run, name=f"chain {app.name}", daemon=True).start()

    def _asked(self, app: App, manifest: Manifest, inputs: tuple[Any, ...]) -> Part:
        """The inner run, which starts once all that it takes has ended; the same work is one run."""
        with self._lock:
            known = self._parts.get(manifest.execution_id)
            if known is not None:
                return known
            part = self._parts[manifest.execution_id] = Part(app.name, manifest.execution_id)
        waiting = [one for one in inputs if isinstance(one, Part)]
        left = [len(waiting)]

        def one_ended(_: Any = None) -> None:
            with self._lock:
                left[0] -= 1
                ready = left[0] <= 0
            if ready:
                self._begin(app, manifest, inputs, part)

        if not waiting:
            self._begin(app, manifest, inputs, part)
        for one in waiting:
            one.add_done_callback(one_ended)
        return part

    def _begin(self, app: App, manifest: Manifest, inputs: tuple[Any, ...], part: Part) -> None:
        try:
            taken = [one.result() if isinstance(one, Part) else one for one in inputs]
            plain = plain_inputs(app, taken)
            app.contract.space.validated(manifest.params, where=f"app {app.name}")
            if app.chain:
                self.start(app, manifest, taken, part.set_result)
                return
            future = self._send(app, manifest, plain)
        except HpcAgentError as error:
            part.set_result(self._refused(manifest, error))
            return
        future.add_done_callback(lambda done: part.set_result(done.result()))

    def _refused(self, manifest: Manifest, error: HpcAgentError) -> Result:
        known = error if isinstance(error, AppFailed | BadInput) else BadInput(error.message)
        return refused(manifest, known, self._work / manifest.execution_id)
