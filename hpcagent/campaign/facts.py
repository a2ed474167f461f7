"""What a campaign knows: its manifests and results, what they cost, and what has become of each run."""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Mapping
from typing import Any

from hpcagent.campaign.earlier import WarmStart
from hpcagent.campaign.recent import RecentRuns
from hpcagent.campaign.same_files import FilesOfLevel
from hpcagent.model.failures import RunStates
from hpcagent.model.parameter import Params
from hpcagent.model.records import Manifest, Result

__all__ = ["Facts"]

Key = tuple[tuple[str, ...] | float | int | str, ...]
_NAMES: dict[tuple[str, ...], tuple[str, ...]] = {}


class Facts:
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
        began_at: When the campaign began, Unix time in seconds, if the journal's first line tells.
        elapsed_s: Wall time of the sessions so far, in seconds.
        node_hours: Node-hours of all results, and of attempts that were repeated.
        overhead: Node-hours of launches that runs share, beside those of their runs.
        failed: How many runs have failed.
        elsewhere: How many results were told: measured elsewhere, no runs of this campaign.
        finished: How many runs are finished: completed or failed.
        retried: Execution id -> the attempt that was started last, where that is not the first.
        uncharged_attempts: Execution id -> how many attempts ended through no fault of the run.
        attempts_of_unknown_cost: Execution id -> how many attempts ended without telling what they took: their
            worker was lost.
        parts: Execution id of an inner run -> that of the chain that pays for it.
        part_results: Execution id of an inner run -> its last recorded result.
        replaced_parts: Results of inner runs that a later one of the same run has replaced.
        shared_parts: Inner runs that were found finished in a cache.
        alerts: What rules told of: events as they stand in the journal.
        files: Key of `same_files.level_key` -> the files of the runs at that level.
        rows: Every result as it was recorded, those that a later one of the same run has replaced included.
        recent: How long the last of them took.
        busy: Of each session that began on a busy machine, how busy, and which speeds that concerns.
        changes: Events of what was changed when it was gone on with.
        warm: What it began with: runs of earlier campaigns (see `warm.earlier_observations`), or None.
        site: Name of the site of the last session; empty where that was not written down.
        freed: Execution id of a run whose own folder was removed on purpose -> when, Unix time in seconds.
    """

    def __init__(self) -> None:
        self.began_at: float | None = None
        self.manifests: list[Manifest] = []
        self.results: dict[str, Result] = {}
        self.arrived: list[str] = []
        self.stopped: str | None = None
        self.confirmed: int | None = None
        self.confirmed_budget: int | None = None
        self.confirmed_cap: float | None = None
        self.sessions = 0
        self.elapsed_s = 0.0
        self.retried: dict[str, int] = {}
        self.uncharged_attempts: dict[str, int] = {}
        self.attempts_of_unknown_cost: dict[str, int] = {}
        self.node_hours = 0.0
        self.overhead = 0.0
        self.failed = self.finished = self.elsewhere = 0
        self.parts: dict[str, str] = {}
        self.part_results: dict[str, Result] = {}
        self.replaced_parts: list[Result] = []
        self.shared_parts: set[str] = set()
        self.alerts: list[Mapping[str, Any]] = []
        self.files: dict[str, FilesOfLevel] = {}
        self.rows: list[Result] = []
        self.recent = RecentRuns()
        self.busy: list[str] = []
        self.changes: list[Mapping[str, Any]] = []
        self.warm: WarmStart | None = None
        self.site = ""
        self.freed: dict[str, float] = {}
        self._part_manifests: dict[str, Manifest] = {}
        self._batches: dict[int, list[str]] = {}
        self._by_id: dict[str, Manifest] = {}
        self._repeats: dict[Key, int] | None = None  # made when it is asked for
        self._session_began: float | None = None
        self._stopped_since = False
        self._not_started: frozenset[str] = frozenset()
        self._given_up: set[str] = set()
        self._last = 0.0

    def add_part(self, manifest: Manifest, chain: str) -> None:
        """Take in the manifest of an inner run that a chain has asked for."""
        self.parts[manifest.execution_id] = chain
        self._part_manifests[manifest.execution_id] = manifest

    def known(self, identity: str) -> bool:
        """Whether there is a manifest of this run, or inner run."""
        return identity in self._by_id or identity in self._part_manifests

    @property
    def next_index(self) -> int:
        """The position of the next run: one after the last, also where runs between were lost."""
        return 1 + max((m.index for m in self.manifests[-1:]), default=-1)

    @property
    def gaps(self) -> int:
        """How many positions have no run: planned, not begun, and lost with their line."""
        return self.next_index - len({m.index for m in self.manifests if m.index >= 0})

    def add_part_result(self, result: Result, *, shared: bool) -> None:
        """Take in the result of an inner run; one that another campaign has paid for costs nothing."""
        identity = result.manifest.execution_id
        before = self.part_results.get(identity)
        if before is not None and before != result:
            self.replaced_parts.append(before)
        self.part_results[identity] = result
        self.recent.add_part(result)
        self.freed.pop(identity, None)  # it was run again since
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
        """Take in a manifest, once."""
        if manifest.execution_id in self._by_id:
            return
        if self.manifests and manifest.index < self.manifests[-1].index:  # lines out of order
            insort(self.manifests, manifest, key=lambda m: m.index)
        else:
            self.manifests.append(manifest)
        self._by_id[manifest.execution_id] = manifest
        self.elsewhere += bool(manifest.origin)
        self._batches.setdefault(manifest.batch, []).append(manifest.execution_id)
        if self._repeats is not None:
            _count(self._repeats, manifest)

    def add_result(self, result: Result) -> None:
        """Take in a result, once; a later one of the same run replaces the earlier."""
        identity = result.manifest.execution_id
        before = self.results.get(identity)
        if before is None:
            self.arrived.append(identity)
        elif before == result:
            return
        else:
            self.finished -= before.final
            self.failed -= before.state == "failed"
        self.rows.append(result)
        self.recent.add(result)
        self.results[identity] = result
        failure = result.failure
        if failure is not None and not result.parts and result.cost.wall_s <= 0:
            self.attempts_of_unknown_cost[identity] = (
                self.attempts_of_unknown_cost.get(identity, 0) + failure.means.machine
            )
        # Both attempts were paid for. A chain's cost is that of its inner runs, which are counted themselves.
        if not result.parts:
            self.node_hours += result.cost.node_hours
        if failure is None or result.final:
            self.finished += 1
            self.failed += failure is not None
            self._given_up.discard(identity)
        else:
            self._given_up.add(identity)

    def manifest(self, identity: str) -> Manifest | None:
        """The manifest of a run of the campaign itself (inner runs of chains are others)."""
        return self._by_id.get(identity)

    def next_replicate(self, params: Params) -> int:
        """0 for new parameters, otherwise one more than was ever asked for."""
        if self._repeats is None:
            self._repeats = {}
            for manifest in self.manifests:
                _count(self._repeats, manifest)
        return self._repeats.get(_key(params), 0)

    def final(self, identity: str) -> bool:
        """Whether the run has ended in a way that running it again would not change."""
        result = self.results.get(identity)
        return result is not None and (result.failure is None or result.final)

    def open_ended(self) -> list[Manifest]:
        """Manifests without a final result; one that was told has lost its line, and has it in its directory."""
        return [m for m in self.manifests if not self.final(m.execution_id)]

    def waiting(self, *, give_up: frozenset[str] = frozenset()) -> list[Manifest]:
        """Manifests that still have to run, except those given up in this session."""
        return [m for m in self.open_ended() if m.execution_id not in give_up and not m.origin]

    def over(self, *, attended: bool = False) -> bool:
        """Whether the campaign has stopped: no run of it is to come unless somebody resumes it.

        Args:
            attended: Whether a coordinator has the folder now. One that has opened it again after its end says so
                with its own stop; earlier versions did not write that a second time.
        """
        return self._settled or (self.stopped is not None and not attended and not self.waiting())

    @property
    def _settled(self) -> bool:
        """Whether it has stopped since it was opened last, and every run has a result or was said not to get one.

        One that has none although nobody said so is a result that the journal has lost.
        """
        return self._stopped_since and len(self.manifests) <= len(self.results) + len(self._not_started)

    def lacking(self) -> frozenset[str]:
        """Runs of a campaign that has stopped, of which the journal tells no result nor that there is none.

        It wrote so of every run before it stopped: that line is lost.
        """
        if not self._stopped_since:
            return frozenset()
        told = self.results.keys() | self._not_started
        return frozenset(m.execution_id for m in self.manifests if m.execution_id not in told)

    @property
    def ended(self) -> int:
        """How many runs have ended: finished, or given up by the coordinator that is or was last at it."""
        return len(self.manifests) if self._settled else self.finished + len(self._given_up)

    def state_of(self, identity: str, *, attended: bool = False) -> RunStates:
        """What the state of a run is called; see `model.failures.RUN_STATES`."""
        result = self.results.get(identity)
        if result is not None and (result.final or identity in self._given_up):
            return result.state
        if self._stopped_since and (result is not None or identity in self._not_started):
            return "given up"  # the cap of node-hours left no room for it
        return "running" if attended else "waiting"

    def states(self, *, attended: bool = False) -> dict[str, RunStates]:
        """Execution id -> state of every run that was planned, in manifest order."""
        return {m.execution_id: self.state_of(m.execution_id, attended=attended) for m in self.manifests}

    def given_up(self) -> Counter[str]:
        """Failure -> how many runs have been given up with it; `not started`: the cap left no room for them."""
        if self.finished == len(self.results) and not self._not_started:
            return Counter()
        found = [self.results.get(i) for i, state in self.states().items() if state == "given up"]
        names = ["not started" if r is None or r.failure is None else r.failure.name for r in found]
        return Counter(names)

    def why_stopped(self, reason: str) -> str:
        """A reason to stop, and which runs were given up: the campaign has ended without being finished."""
        found = self.given_up()
        if not found:
            return reason
        many = sum(found.values())
        names = ", ".join(f"{n} {name}" for name, n in sorted(found.items()))
        runs = "1 run was" if many == 1 else f"{many} runs were"
        again = "resuming runs it again" if many == 1 else "resuming runs them again"
        return f"{reason.rstrip('.')}. {runs} given up ({names}); {again}."

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


def _count(repeats: dict[Key, int], manifest: Manifest) -> None:
    if not manifest.origin:  # else it is no run: the first run of its point is not a repetition
        key = _key(manifest.params)
        repeats[key] = max(repeats.get(key, 0), manifest.replicate + 1)


def _key(params: Params) -> Key:
    """A point, for one of very many: its names are shared by all points that have them."""
    names = tuple(sorted(params))
    return (_NAMES.setdefault(names, names), *map(params.__getitem__, names))
