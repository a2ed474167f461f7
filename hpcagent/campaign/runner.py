"""The one gate to the site: checks, submits, retries and records runs."""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

from hpcagent.apps.base import App
from hpcagent.apps.worker import execute, read_result
from hpcagent.campaign.state import State, result_event
from hpcagent.model.records import Failure, Manifest, Result
from hpcagent.sites.site import Site, failure_of, usable_cores
from hpcagent.store.journal import Journal
from hpcagent.store.rundir import RunDir

__all__ = ["Runner"]

# Infrastructure failures that the same attempt on the same site would only repeat.
NOT_RETRIED = frozenset({"Walltime", "NoExecutable", "MPILibraryMissing", "AppNotImportable", "ReadOnly", "NoPermission"})


class Runner:
    """Runs manifests on a site; every result is in the journal before anyone else sees it.

    Args:
        app: What runs.
        site: Where it runs.
        state: What is known; extended by every result.
        journal: Where it is recorded.
        folder: The run directory.
        required: Metrics that a run must yield beyond what its contract promises.
        retries: How often a run is started again after an infrastructure failure.
        clock: Unix time, in seconds.
    """

    def __init__(
        self,
        app: App,
        site: Site,
        state: State,
        journal: Journal,
        folder: RunDir,
        *,
        required: Iterable[str] = (),
        retries: int = 2,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._app = app
        self._site = site
        self._state = state
        self._journal = journal
        self._work = folder.work.absolute()
        self._required = tuple(required)
        self._retries = retries
        self._clock = clock
        self._finished: queue.SimpleQueue[tuple[Manifest, Future[Any]]] = queue.SimpleQueue()
        self._about_site = {
            "node_cores": site.profile.node_cores or len(usable_cores()),
            "lammps": list(site.profile.lammps or ()),
        }
        self._held: tuple[Manifest, Future[Any]] | None = None
        self.running: dict[str, Manifest] = {}
        self.given_up: set[str] = set()

    def recover(self) -> list[Result]:
        """Take over results that a worker wrote but no coordinator recorded."""
        found = []
        for manifest in self._state.waiting():
            fields = read_result(self._work / manifest.execution_id)
            if fields is not None:
                found.append(Result.model_validate({"manifest": manifest, **fields}))
        self._record(found)
        return found

    def start(self, manifests: Iterable[Manifest]) -> None:
        """Submit runs; their manifests must be in the journal already."""
        for manifest in manifests:
            self._submit(manifest, attempt=self._state.retried.get(manifest.execution_id, 1))

    def _submit(self, manifest: Manifest, *, attempt: int) -> None:
        # The gate: whatever suggested this, nothing outside the contract reaches a worker.
        self._app.contract.space.validated(manifest.params, where=f"app {self._app.name}")
        order = self._app.order(
            manifest, work=self._work, site=self._about_site, required=self._required, attempt=attempt
        )
        self.running[manifest.execution_id] = manifest
        future = self._site.submit(execute, order)
        future.add_done_callback(lambda done: self._finished.put((manifest, done)))

    def peek(self, timeout_s: float) -> bool:
        """Wait until a run has ended, at most `timeout_s`; takes nothing in, so it may be interrupted."""
        if self._held is None:
            with contextlib.suppress(queue.Empty):
                self._held = self._finished.get(timeout=timeout_s)
        return self._held is not None

    def collect(self) -> list[Result]:
        """Record and return every run that has ended; those worth it are started again instead."""
        return self._take()

    def drain(self) -> list[Result]:
        """Record the runs that have ended, without waiting and without retrying any."""
        return self._take(retry=False)

    def _take(self, *, retry: bool = True) -> list[Result]:
        ended = [] if self._held is None else [self._held]
        self._held = None
        while True:
            try:
                ended.append(self._finished.get_nowait())
            except queue.Empty:
                break
        results, again = [], []
        for manifest, future in ended:
            self.running.pop(manifest.execution_id, None)
            result = self._result(manifest, future)
            if self._worth_retrying(result):
                if retry:
                    again.append(result)
                continue
            if result.failure is not None and result.failure.kind in ("infrastructure", "cancelled"):
                self.given_up.add(manifest.execution_id)
            results.append(result)
        self._record(results)
        for result in again:
            self._retry(result)
        return results

    def _result(self, manifest: Manifest, future: Future[Any]) -> Result:
        error = future.exception()
        if error is None:
            return Result.model_validate({"manifest": manifest, **future.result()})
        kind, name, message = failure_of(error)
        now = self._clock()
        return Result(
            manifest=manifest,
            status="STOPPED" if kind == "cancelled" else "FAILED",
            failure=Failure(kind=kind, name=name, message=message),
            started_at=now,
            ended_at=now,
            workdir=str(self._work / manifest.execution_id),
            attempt=self._state.retried.get(manifest.execution_id, 1),
        )

    def _worth_retrying(self, result: Result) -> bool:
        failure = result.failure
        if failure is None or failure.kind != "infrastructure" or failure.name in NOT_RETRIED:
            return False
        return result.attempt <= self._retries

    def _retry(self, result: Result) -> None:
        manifest = result.manifest
        event = {
            "event": "retry",
            "at": self._clock(),
            "execution_id": manifest.execution_id,
            "attempt": result.attempt + 1,
            "failure": None if result.failure is None else result.failure.model_dump(mode="json"),
        }
        self._journal.append([event])
        self._state.apply(event)
        self._submit(manifest, attempt=result.attempt + 1)

    def _record(self, results: list[Result]) -> None:
        if not results:
            return
        self._journal.append(
            [{"event": "results", "at": self._clock(), "results": [result_event(r) for r in results]}]
        )
        for result in results:
            self._state.add_result(result)
