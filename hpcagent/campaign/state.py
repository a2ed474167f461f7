"""What a campaign knows: rebuilt from its events, extended by every new one."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Mapping
from typing import Any

from hpcagent.campaign.same_files import FilesOfLevel, level_key
from hpcagent.campaign.warm import WarmStart
from hpcagent.model.base import canonical_json
from hpcagent.model.contract import Resources
from hpcagent.model.failures import meaning
from hpcagent.model.records import Manifest, Result
from hpcagent.model.space import Params

__all__ = ["State", "result_event"]

# From here on the garbage collector is told to leave replayed records alone.
MANY = 5000

Key = tuple[tuple[str, float | int | str], ...]


class State:
    """The manifests and results of a campaign, in the order of the journal.

    Attributes:
        manifests: Every manifest, by position (`manifest.index`).
        results: Execution id -> its last recorded result.
        arrived: Execution ids in the order their results were recorded.
        stopped: Why the campaign stopped for good, or None.
        confirmed: Number of manifests when the confirmation was planned, or None.
        confirmed_budget: The budget of runs that this was the end of, or None.
        confirmed_cap: The cap of node-hours that this was the end of, or None.
        sessions: How many times a coordinator opened the folder.
        damaged: Lines of the journal that could not be read.
        elapsed_s: Wall time of the sessions so far, in seconds.
        node_hours: Node-hours of all results, and of attempts that were repeated.
        failed: How many results are failures.
        retried: Execution id -> the attempt that was started last, where that is not the first.
        lost: Execution id -> how many attempts ended through no fault of the run.
        untold: Execution id -> how many attempts ended without telling what they took: their worker was lost.
        parts: Execution id of an inner run -> that of the chain that pays for it.
        part_results: Execution id of an inner run -> its last recorded result.
        shared_parts: Inner runs that were found finished in a cache.
        told: What rules told of: events as they stand in the journal.
        files: Key of `same_files.level_key` -> the files of the runs at that level.
        rows: Every result as it was recorded, those that a later one of the same run has replaced included.
        busy: Of each session that began on a busy machine, how busy, and which speeds that concerns.
        warm: What it began with: runs of earlier campaigns (see `warm.earlier_observations`), or None.
    """

    def __init__(self) -> None:
        self.manifests: list[Manifest] = []
        self.results: dict[str, Result] = {}
        self.arrived: list[str] = []
        self.stopped: str | None = None
        self.confirmed: int | None = None
        self.confirmed_budget: int | None = None
        self.confirmed_cap: float | None = None
        self.sessions = 0
        self.damaged = 0
        self.elapsed_s = 0.0
        self.retried: dict[str, int] = {}
        self.lost: dict[str, int] = {}
        self.untold: dict[str, int] = {}
        self.node_hours = 0.0
        self.failed = 0
        self.parts: dict[str, str] = {}
        self.part_results: dict[str, Result] = {}
        self.shared_parts: set[str] = set()
        self.told: list[Mapping[str, Any]] = []
        self.files: dict[str, FilesOfLevel] = {}
        self.rows: list[Result] = []
        self.busy: list[str] = []
        self.warm: WarmStart | None = None
        self._part_manifests: dict[str, Mapping[str, Any]] = {}
        self._batches: dict[int, list[str]] = {}
        self._by_id: dict[str, Manifest] = {}
        self._resources: dict[str, Resources] = {}
        self._repeats: dict[Key, int] = {}
        self._session_began: float | None = None
        self._last = 0.0

    @classmethod
    def replay(cls, events: Iterable[Mapping[str, Any]]) -> State:
        """Rebuild the state from recorded events."""
        state = cls()
        collecting = gc.isenabled()
        # The collector would walk through all records again and again while they only grow in number.
        gc.disable()
        try:
            for event in events:
                state.apply(event)
        finally:
            if collecting:
                gc.enable()
        if len(state.results) > MANY:
            gc.freeze()  # they live as long as the campaign; no later collection need look at them
        state.end_session()
        return state

    def apply(self, event: Mapping[str, Any]) -> None:
        """Take in one recorded event; unknown events are kept in the journal and ignored here."""
        kind = event.get("event")
        if kind == "results":
            for fields in event["results"]:
                self._apply_result(fields)
        elif kind == "manifests":
            for fields in event["manifests"]:
                # One Resources record for all manifests that ask for the same.
                text = canonical_json(fields["resources"])
                shared = self._resources.get(text)
                if shared is None:
                    shared = self._resources[text] = Resources.model_validate(fields["resources"])
                self.add_manifest(Manifest.model_validate({**fields, "resources": shared}))
            if event.get("confirm"):
                self.confirmed = len(self.manifests)
                self.confirmed_budget = event.get("budget")
                self.confirmed_cap = event.get("cap")
        elif kind == "parts":
            for row in event["parts"]:
                identity = row["manifest"]["execution_id"]
                self.parts[identity] = row["chain"]
                self._part_manifests[identity] = row["manifest"]
        elif kind == "rule":
            self.told.append(event)
        elif kind == "files":
            of = (event["app"], event["params"], event["settings"])
            self.files.setdefault(level_key(*of), FilesOfLevel(*of, event.get("function", ""))).add(event)
        elif kind == "warm_start":
            self.warm = WarmStart.recorded(event)
        elif kind == "part_results":
            self._apply_part_results(event["results"])
        elif kind == "session":
            self.end_session()
            self.sessions += 1
            self._session_began = event["at"]
            if event.get("busy"):
                self.busy.append(event["busy"])
        elif kind == "retry":
            identity = event["execution_id"]
            self.retried[identity] = event["attempt"]
            self.node_hours += event.get("node_hours", 0.0)
            if not event.get("node_hours"):
                self.untold[identity] = self.untold.get(identity, 0) + 1
            if not event.get("charged", _charged(event.get("failure"))):
                self.lost[identity] = self.lost.get(identity, 0) + 1
        elif kind == "stop":
            self.stopped = event["reason"]
        elif kind == "damaged":
            self.damaged += 1
        self._last = max(self._last, event.get("at", 0.0))

    def _apply_result(self, fields: Mapping[str, Any]) -> None:
        manifest = self._by_id.get(fields["execution_id"])
        if manifest is None:  # its manifest stood on a damaged line
            self.damaged += 1
            return
        data = {**fields, "manifest": manifest}
        del data["execution_id"]
        self.add_result(Result.model_validate(data))

    def _apply_part_results(self, rows: Iterable[Mapping[str, Any]]) -> None:
        for fields in rows:
            identity = fields["execution_id"]
            manifest = self._part_manifests.get(identity)
            if manifest is None:
                self.damaged += 1
                continue
            data = {k: v for k, v in fields.items() if k not in ("execution_id", "shared")} | {
                "manifest": manifest
            }
            self.add_part_result(Result.model_validate(data), shared=bool(fields.get("shared")))

    def add_part_result(self, result: Result, *, shared: bool) -> None:
        """Take in the result of an inner run; one that another campaign has paid for costs nothing."""
        identity = result.manifest.execution_id
        self.part_results[identity] = result
        if shared:
            self.shared_parts.add(identity)
        elif not result.parts:
            self.node_hours += result.cost.node_hours

    def final_part(self, identity: str) -> bool:
        """Whether an inner run has ended in a way that running it again would not change."""
        return self.part_results[identity].final

    def end_session(self) -> None:
        """Count the wall time of the session that just ended."""
        if self._session_began is not None:
            self.elapsed_s += max(0.0, self._last - self._session_began)
        self._session_began = None

    def add_manifest(self, manifest: Manifest) -> None:
        """Take in a manifest."""
        self.manifests.append(manifest)
        self._by_id[manifest.execution_id] = manifest
        self._batches.setdefault(manifest.batch, []).append(manifest.execution_id)
        key = _key(manifest.params)
        self._repeats[key] = max(self._repeats.get(key, 0), manifest.replicate + 1)

    def add_result(self, result: Result) -> None:
        """Take in a result; a later one of the same run replaces the earlier."""
        identity = result.manifest.execution_id
        self.rows.append(result)
        before = self.results.get(identity)
        if before is None:
            self.arrived.append(identity)
        else:
            self.failed -= before.failure is not None
        self.results[identity] = result
        if result.failure is not None and not result.parts and result.cost.wall_s <= 0:
            self.untold[identity] = self.untold.get(identity, 0) + result.failure.means.machine
        # Both attempts were paid for. A chain's cost is that of its inner runs, which are counted themselves.
        if not result.parts:
            self.node_hours += result.cost.node_hours
        self.failed += result.failure is not None

    def manifest(self, identity: str) -> Manifest | None:
        """The manifest of a run of the campaign itself (inner runs of chains are others)."""
        return self._by_id.get(identity)

    def next_replicate(self, params: Params) -> int:
        """0 for new parameters, otherwise one more than was ever asked for."""
        return self._repeats.get(_key(params), 0)

    def final(self, identity: str) -> bool:
        """Whether the run has ended in a way that running it again would not change."""
        result = self.results.get(identity)
        return result is not None and result.final

    def waiting(self, *, give_up: frozenset[str] = frozenset()) -> list[Manifest]:
        """Manifests that still have to run, except those given up in this session."""
        return [m for m in self.manifests if m.execution_id not in give_up and not self.final(m.execution_id)]

    def in_order(self) -> list[Result]:
        """The results in manifest order."""
        return [self.results[m.execution_id] for m in self.manifests if m.execution_id in self.results]

    def in_arrival(self) -> list[Result]:
        """The results in the order they were recorded."""
        return [self.results[i] for i in self.arrived]

    def batch(self, number: int) -> list[Result]:
        """The results of one batch, in manifest order."""
        return [self.results[i] for i in self._batches.get(number, ()) if i in self.results]

    @property
    def last_batch(self) -> int:
        """Number of the last planned batch, -1 before the first."""
        return self.manifests[-1].batch if self.manifests else -1


def _charged(failure: Mapping[str, Any] | None) -> bool:
    """Whether an attempt counted against the run's retries, where its event does not say so itself."""
    return failure is None or meaning(failure["kind"], failure["name"], failure.get("repair")).charged != "no"


def result_event(result: Result) -> dict[str, Any]:
    """A result as it stands in the journal: without its manifest, which has its own line."""
    fields = result.model_dump(mode="json", exclude={"manifest"}, exclude_defaults=True)
    return {"execution_id": result.manifest.execution_id, "status": result.status, **fields}


def _key(params: Params) -> Key:
    return tuple(sorted(params.items()))
