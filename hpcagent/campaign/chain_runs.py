"""The inner runs of chains: each is run once, whoever asks for it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcagent.apps.base import App
from hpcagent.apps.parts import Part
from hpcagent.apps.structures import Given
from hpcagent.campaign.state import State, manifest_event, result_event
from hpcagent.errors import AppFailed, BadInput, StoreFull
from hpcagent.model.failures import known_kind
from hpcagent.model.records import Failure, Manifest, Result

__all__ = ["ChainCall", "Inner", "InnerRuns"]


@dataclass(frozen=True, slots=True, eq=False)
class ChainCall:
    """A chain's call of an app, on its way from the chain's thread to the runner.

    Attributes:
        part: The future that the chain was given.
        app: What it called.
        manifest: The run.
        inputs: Runs it takes: `Part`s, `Result`s or structures.
        chain: Execution id of the chain.
    """

    part: Part
    app: App
    manifest: Manifest
    inputs: tuple[Any, ...]
    chain: str


@dataclass(slots=True, eq=False)
class Inner:
    """One inner run.

    Attributes:
        app: Its app.
        manifest: What was asked.
        inputs: Runs it takes.
        chain: Execution id of the chain that pays for it.
        parts: The futures of all who wait for it.
        result: What came of it.
        sent: Whether it was submitted.
        shared: Whether it was found finished in the cache: another campaign has paid for it.
    """

    app: App
    manifest: Manifest
    inputs: tuple[Any, ...]
    chain: str
    parts: list[Part] = field(default_factory=list)
    result: Result | None = None
    sent: bool = False
    shared: bool = False


class InnerRuns:
    """Every inner run of a campaign, by its execution id.

    Args:
        state: What is known from the journal.
        work: The campaign's folder of runs.
        cache: A folder that campaigns share; each inner run then lies in it, with a link in `work`.
    """

    def __init__(self, state: State, work: Path, cache: Path | None) -> None:
        self._state = state
        self._work = work
        self._cache = cache
        self._runs: dict[str, Inner] = {}
        self._dependents: dict[str, list[Inner]] = {}

    def __contains__(self, identity: str) -> bool:
        return identity in self._runs

    def __getitem__(self, identity: str) -> Inner:
        return self._runs[identity]

    def get(self, identity: str) -> Inner | None:
        """The inner run of that id, if it is one."""
        return self._runs.get(identity)

    @property
    def place(self) -> Path:
        """The folder in which the directories of inner runs are."""
        return self._work if self._cache is None else self._cache

    @property
    def cached(self) -> bool:
        """Whether the folder is shared with other campaigns."""
        return self._cache is not None

    def unfinished(self) -> list[Inner]:
        """Those without a result, in the order they were asked for."""
        return [inner for inner in self._runs.values() if inner.result is None]

    def admit(self, asked: Iterable[ChainCall]) -> tuple[list[dict[str, Any]], list[Inner]]:
        """Take in what chains have asked for.

        Returns:
            The records of new runs for the journal, and the runs that are ready to be sent.
        """
        records: list[dict[str, Any]] = []
        ready: list[Inner] = []
        for one in asked:
            identity = one.manifest.execution_id
            inner = self._runs.get(identity)
            if inner is None:
                inner = self._new(one)
                if identity not in self._state.parts:
                    records.append({"chain": one.chain, "manifest": manifest_event(one.manifest)})
                    self._state.parts[identity] = one.chain
                if inner.result is None and not self._waits(inner):
                    ready.append(inner)
            one.part.shared = inner.chain != one.chain
            if inner.result is not None:
                self._tell(inner, one.part)
            else:
                inner.parts.append(one.part)
        return records, ready

    def _new(self, one: ChainCall) -> Inner:
        identity = one.manifest.execution_id
        inner = Inner(one.app, one.manifest, one.inputs, self._state.parts.get(identity, one.chain))
        self._runs[identity] = inner
        known = self._state.part_results.get(identity)
        # One whose folder was removed is run again: who asks for it may need its files.
        if known is not None and self._state.final_part(identity) and identity not in self._state.freed:
            inner.result = known
            inner.shared = identity in self._state.shared_parts
        return inner

    def _waits(self, inner: Inner) -> bool:
        waits = False
        for before in {p.execution_id for p in inner.inputs if isinstance(p, Part)}:
            source = self._runs.get(before)
            if source is None or source.result is None:
                self._dependents.setdefault(before, []).append(inner)
                waits = True
        return waits

    def inputs_of(self, inner: Inner) -> list[Any]:
        """The inputs as a worker takes them: plain data of results and structures.

        Raises:
            AppFailed: `UpstreamFailed`: one of them failed.
            BadInput: One is no run of this campaign.
        """
        taken = []
        for one in inner.inputs:
            source = self._runs.get(one.execution_id) if isinstance(one, Part) else None
            taken.append(one if source is None or source.result is None else source.result)
        return plain_inputs(inner.app, taken)

    def link(self, inner: Inner) -> None:
        """Show an inner run that lies in the cache in the campaign's own folder too."""
        if self._cache is None:
            return
        identity = inner.manifest.execution_id
        try:
            self._cache.mkdir(parents=True, exist_ok=True)
            self._work.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                (self._work / identity).symlink_to(self._cache / identity)
        except OSError as error:
            raise StoreFull(f"the cache folder {self._cache} cannot be used: {error.strerror}.") from None

    def ended(self, result: Result, *, shared: bool = False) -> list[Inner]:
        """Take in the result of an inner run and tell all who wait; return the runs that are ready now."""
        inner = self._runs[result.manifest.execution_id]
        inner.result = result
        inner.shared = shared
        for part in inner.parts:
            self._tell(inner, part)
        inner.parts.clear()
        waiting = self._dependents.pop(result.manifest.execution_id, [])
        return [d for d in waiting if d.result is None and not d.sent and self._all_there(d)]

    def _all_there(self, inner: Inner) -> bool:
        sources = [self._runs.get(p.execution_id) for p in inner.inputs if isinstance(p, Part)]
        return all(s is not None and s.result is not None for s in sources)

    def ready(self) -> list[Inner]:
        """Those without a result whose inputs are there."""
        return [inner for inner in self.unfinished() if self._all_there(inner)]

    def _tell(self, inner: Inner, part: Part) -> None:
        part.shared = part.shared or inner.shared
        if not part.done():
            assert inner.result is not None
            part.set_result(inner.result)

    def let_go(self) -> None:
        """Release the chains that wait, because the campaign is being interrupted."""
        for inner in self._runs.values():
            for part in inner.parts:
                if not part.done():
                    part.set_exception(interrupted())
            inner.parts.clear()


def plain_inputs(app: App, inputs: Iterable[Any]) -> list[Any]:
    """The inputs of an inner run as a worker takes them: plain data of results and structures.

    Raises:
        AppFailed: `UpstreamFailed`: one of them failed.
        BadInput: One is no run of the chain, no result and no structure.
    """
    plain: list[Any] = []
    for one in inputs:
        if isinstance(one, Given):
            plain.append(dict(one.fields))
        elif not isinstance(one, Result):
            raise BadInput(
                f"an input of {app.name} is the future of another site or of Parsl; in a chain the "
                "inputs are its own runs, Results, ASE Atoms or paths.",
                value=repr(one),
            )
        elif one.failure is not None:
            raise AppFailed(
                f"its input {one.manifest.app} ({one.place}) failed: {one.failure.name}: {one.failure.message}",
                kind=one.failure.kind,
                name="UpstreamFailed",
            )
        else:
            plain.append(one.model_dump(mode="json"))
    return plain


def interrupted() -> AppFailed:
    """Why a chain has no result: the coordinator was stopped under it."""
    return AppFailed(
        "the campaign was interrupted; what its inner runs have finished is kept, and it goes on when resumed.",
        kind="cancelled",
        name="Interrupted",
    )


def refused(manifest: Manifest, error: AppFailed | BadInput, workdir: Path) -> Result:
    """The result of an inner run that could not be started."""
    details: Mapping[str, Any] = error.details if isinstance(error, AppFailed) else {}
    now = time.time()
    return Result(
        manifest=manifest,
        status="FAILED",
        failure=Failure(
            kind=known_kind(details.get("kind", "contract")),
            name=details.get("name", "BadInput"),
            message=error.message,
        ),
        started_at=now,
        ended_at=now,
        workdir=str(workdir),
    )


def part_events(results: Sequence[Result], shared: frozenset[str]) -> dict[str, Any]:
    """Results of inner runs as they stand in the journal."""
    rows = [result_event(r) | ({"shared": True} if r.manifest.execution_id in shared else {}) for r in results]
    return {"event": "part_results", "results": rows}
