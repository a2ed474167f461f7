"""What a campaign knows: rebuilt from its events, extended by every new one."""

from __future__ import annotations

import gc
import math
import time
from bisect import insort
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from pydantic import ValidationError

from hpcagent.campaign.changes import change_text
from hpcagent.campaign.earlier import WarmStart
from hpcagent.campaign.lean import Lean
from hpcagent.campaign.recent import RecentRuns
from hpcagent.campaign.same_files import FilesOfLevel, level_key
from hpcagent.model.base import explain, read_record
from hpcagent.model.failures import RunStates, meaning
from hpcagent.model.records import Manifest, Result
from hpcagent.model.space import Params

__all__ = ["State", "result_event"]

# What a line with words of the wrong type or form raises.
_UNFIT = (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError)

# So many damaged lines are told one by one.
MOST_TOLD = 5

# From here on the garbage collector is told to leave replayed records alone.
MANY = 5000

Key = tuple[tuple[str, ...] | float | int | str, ...]
_NAMES: dict[tuple[str, ...], tuple[str, ...]] = {}


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
        damaged: Lines of the journal, or results or manifests on them, that could not be read.
        damage: Which, and what is wrong with them: a sentence each, of the first.
        told_damage: How many of them the journal itself tells of (event `rebuilt`).
        doubled: Lines that stood there twice; each counts once.
        unknown: Keys that this version does not know: a newer one has written them.
        strays: Execution ids of results whose manifest had not come before them.
        rebuilt: Execution ids of runs whose manifest was not found in the journal but in the run's own directory.
        unrecorded: Those manifests, inner runs' included, of which the journal does not tell yet.
        began_at: When the campaign began, Unix time in seconds, if the journal's first line tells.
        found: How many results were read from the runs' own directories, as the journal does not have them.
        read_from_work: Execution ids of those.
        unusable: What is wrong with results there that cannot be used as they are: sentences.
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

    def __init__(self, *, app: tuple[str, str] | None = None, put_back: Iterable[Manifest] = ()) -> None:
        """Begin with nothing.

        Args:
            app: Name and version of the campaign's app; a manifest of another one is of another campaign.
            put_back: Manifests whose own lines are lost; they are taken in where they belong.
        """
        self._app = app
        lost = sorted(put_back, key=lambda m: m.index)
        self._put_back = deque(m for m in lost if m.role != "part")
        self._waiting_back = {m.execution_id for m in self._put_back}
        self.rebuilt: set[str] = set()
        self.unrecorded: list[Manifest] = []
        self.began_at: float | None = None
        self.damage: list[str] = []
        self.told_damage = 0
        self.doubled = 0
        self.found = 0
        self.read_from_work: set[str] = set()
        self.unusable: list[str] = []
        self.unknown: dict[str, None] = {}
        self.strays: dict[str, None] = {}
        self._line = 0
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
        self._lean = Lean()
        self._repeats: dict[Key, int] | None = None  # made when it is asked for
        self._session_began: float | None = None
        self._stopped_since = False
        self._not_started: frozenset[str] = frozenset()
        self._given_up: set[str] = set()
        self._last = 0.0
        for manifest in lost:
            if manifest.role == "part":
                self.add_part(manifest, manifest.requested_by)

    @classmethod
    def replay(
        cls,
        events: Iterable[Mapping[str, Any]],
        *,
        app: tuple[str, str] | None = None,
        put_back: Iterable[Manifest] = (),
    ) -> State:
        """Rebuild the state from recorded events; see `State` for `app` and `put_back`."""
        state = cls(app=app, put_back=put_back)
        collecting = gc.isenabled()
        # The collector would walk through all records again and again while they only grow in number.
        gc.disable()
        try:
            for event in events:
                state.read(event)
            state.place_back()
        finally:
            if collecting:
                gc.enable()
        if len(state.results) > MANY:
            gc.freeze()  # they live as long as the campaign; no later collection need look at them
        state.end_session()
        return state

    def read(self, event: Mapping[str, Any]) -> bool:
        """Take in the event of the next line of a journal; what does not fit is left out, noted, and False."""
        self._line += 1
        if self._line == 1 and event.get("event") in ("session", "warm_start"):
            at = event.get("at")
            self.began_at = at if isinstance(at, float) else None
        try:
            self.apply(event)
        except _UNFIT as error:
            self._damaged(error)
            return False
        return True

    def _damaged(self, error: BaseException | str, record: type[Manifest] | type[Result] | None = None) -> None:
        self.damaged += 1
        if len(self.damage) >= MOST_TOLD:
            return
        if isinstance(error, ValidationError) and record is not None:
            words = explain(record, error).message
        elif isinstance(error, KeyError):
            words = f"the key {error} is missing."
        elif isinstance(error, (TypeError, AttributeError)):
            words = f"it has not the form of its kind of event ({error})."
        else:
            words = str(error).splitlines()[0] if str(error) else type(error).__name__
        self.damage.append(f"line {self._line}: {words}")

    def apply(self, event: Mapping[str, Any]) -> None:
        """Take in one recorded event; unknown events are kept in the journal and ignored here."""
        at = event.get("at", 0.0)
        if isinstance(at, bool) or not isinstance(at, (int, float)) or not math.isfinite(at):
            raise ValueError(f"at: {str(at)[:40]!r} is no time.")
        apply = self._KINDS.get(str(event.get("event")))
        if apply is not None:
            apply(self, event)
        self._last = max(self._last, at)

    def _apply_planned(self, event: Mapping[str, Any]) -> None:
        self._apply_manifests(event["manifests"])
        self._apply_confirmation(event)

    def _apply_results(self, event: Mapping[str, Any]) -> None:
        for fields in event["results"]:
            self._apply_result(fields)

    def _apply_told(self, event: Mapping[str, Any]) -> None:
        self._apply_manifests([event["manifest"]])
        self._apply_result(event["result"])

    def _apply_rebuilt(self, event: Mapping[str, Any]) -> None:
        self.told_damage = max(self.told_damage, int(event.get("damaged", 0)))
        self.rebuilt.update(self._apply_manifests(event["manifests"]))
        self._apply_parts({"parts": (), **event})
        self._apply_confirmation(event)

    def _apply_rule(self, event: Mapping[str, Any]) -> None:
        if not (isinstance(event["data"], Mapping) and event["rule"] and event["execution_id"]):
            raise ValueError("what a rule told is not there.")
        self.alerts.append(event)

    def _apply_files(self, event: Mapping[str, Any]) -> None:
        of = (event["app"], event["params"], event["settings"])
        self.files.setdefault(level_key(*of), FilesOfLevel(*of, event.get("function", ""))).add(event)

    def _apply_changed(self, event: Mapping[str, Any]) -> None:
        change_text(event)  # raises where it is none
        self.changes.append(event)

    def _apply_warm_start(self, event: Mapping[str, Any]) -> None:
        self.warm = WarmStart.recorded(event)

    def _apply_session(self, event: Mapping[str, Any]) -> None:
        self.end_session()
        self.sessions += 1
        self._stopped_since = False
        self._given_up.clear()
        self._not_started = frozenset()
        self._session_began = event["at"]
        self.site = str(event.get("site", ""))
        if event.get("busy"):
            self.busy.append(event["busy"])

    def _apply_retry(self, event: Mapping[str, Any]) -> None:
        identity = event["execution_id"]
        self.retried[identity] = event["attempt"]
        self.node_hours += event.get("node_hours", 0.0)
        if not event.get("node_hours"):
            self.attempts_of_unknown_cost[identity] = self.attempts_of_unknown_cost.get(identity, 0) + 1
        if not event.get("charged", _charged(event.get("failure"))):
            self.uncharged_attempts[identity] = self.uncharged_attempts.get(identity, 0) + 1

    def _apply_launch(self, event: Mapping[str, Any]) -> None:
        hours = float(event["overhead_node_hours"])
        if not 0 <= hours < math.inf:
            raise ValueError(f"overhead_node_hours: {hours} is no time of nodes.")
        self.overhead += hours

    def _apply_stop(self, event: Mapping[str, Any]) -> None:
        self.stopped = event["reason"]
        self._stopped_since = True
        self._not_started = frozenset(map(str, event.get("not_started", ())))

    def _apply_freed(self, event: Mapping[str, Any]) -> None:
        self.freed.update(dict.fromkeys(map(str, event["runs"]), float(event.get("at", 0.0))))

    def _apply_damaged(self, event: Mapping[str, Any]) -> None:
        self._damaged("it is no event in JSON.")

    def _apply_doubled(self, event: Mapping[str, Any]) -> None:
        self.doubled += 1

    def _apply_manifests(self, rows: Iterable[Mapping[str, Any]]) -> list[str]:
        """Take in manifests that stand on one line; one that does not fit costs only itself."""
        taken: list[str] = []
        for fields in rows:
            try:
                manifest = self._manifest_of(fields)
            except _UNFIT as error:
                self._damaged(error, Manifest)
                continue
            if self._app is not None and (manifest.app, manifest.app_version) != self._app:
                self._damaged(f"a run of {manifest.app} {manifest.app_version} is of another campaign.")
                continue
            self.place_back(before=manifest.index)
            self.add_manifest(manifest)
            taken.append(manifest.execution_id)
        return taken

    def _apply_parts(self, event: Mapping[str, Any]) -> None:
        for row in event["parts"]:
            try:
                manifest = _unchanged(read_record(Manifest, row["manifest"], self.unknown))
                self.add_part(manifest, str(row["chain"]))
            except _UNFIT as error:
                self._damaged(error, Manifest)

    def _manifest_of(self, fields: Mapping[str, Any]) -> Manifest:
        shared = self._lean.resources(fields["resources"], self.unknown)
        return self._lean.record(_unchanged(read_record(Manifest, {**fields, "resources": shared}, self.unknown)))

    def _apply_confirmation(self, event: Mapping[str, Any]) -> None:
        if event.get("confirm"):
            self.confirmed = len(self.manifests)
            self.confirmed_budget = event.get("budget")
            self.confirmed_cap = event.get("cap")

    def place_back(self, *, before: int | None = None) -> None:
        """Take in manifests whose own lines are lost: those that come before this position, or all."""
        while self._put_back and (before is None or self._put_back[0].index < before):
            manifest = self._put_back.popleft()
            self._waiting_back.discard(manifest.execution_id)
            self.add_manifest(manifest)

    def _apply_result(self, fields: Mapping[str, Any]) -> None:
        try:
            identity = fields["execution_id"]
            if identity in self._waiting_back:
                self.place_back(before=1 + next(m.index for m in self._put_back if m.execution_id == identity))
            manifest = self._by_id.get(identity)
            if manifest is None:
                self.strays[str(identity)] = None
                return
            data = {**fields, "manifest": manifest}
            del data["execution_id"]
            self.add_result(self._lean.result(_finite(read_record(Result, data, self.unknown))))
        except _UNFIT as error:
            self._damaged(error, Result)

    def _apply_part_results(self, event: Mapping[str, Any]) -> None:
        for fields in event["results"]:
            try:
                identity = fields["execution_id"]
                manifest = self._part_manifests.get(identity)
                if manifest is None:
                    self.strays[str(identity)] = None
                    continue
                data = {k: v for k, v in fields.items() if k not in ("execution_id", "shared")}
                result = _finite(read_record(Result, data | {"manifest": manifest}, self.unknown))
                self.add_part_result(result, shared=bool(fields.get("shared")))
            except _UNFIT as error:
                self._damaged(error, Result)

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
    def whole(self) -> bool:
        """Whether every line could be read and came in its place."""
        return not (self.damaged or self.strays or self.rebuilt)

    @property
    def remarks(self) -> tuple[str, ...]:
        """What was not as it should be in the journal, in sentences without their full stop."""
        said = []
        if self.damaged or self.rebuilt:
            more = f", and {self.damaged - len(self.damage)} more" if self.damaged > len(self.damage) else ""
            words = f"damage in events.jsonl ({'; '.join(self.damage)}{more})" if self.damaged else "events.jsonl"
            said.append(
                f"{words}: {len(self.rebuilt)} run(s) that were lost there were put back from work/"
                if self.rebuilt
                else f"{words}: no run that had begun was lost with it"
            )
            if self.gaps:
                said.append(
                    f"{self.gaps} run(s) planned there had not begun and are gone; others take their place"
                )
        if self.found:
            said.append(f"{self.found} result(s) that events.jsonl does not have were read from work/")
        said += self.unusable[:MOST_TOLD]
        if len(self.unusable) > MOST_TOLD:
            said.append(f"{len(self.unusable) - MOST_TOLD} more result.json cannot be used")
        if self.strays:
            some = ", ".join(list(self.strays)[:MOST_TOLD])
            said.append(
                f"results of {len(self.strays)} run(s) in events.jsonl are left out, as neither it nor work/ says "
                f"what was run: {some}"
            )
        if self.freed:
            when = time.strftime("%Y-%m-%d", time.localtime(max(self.freed.values())))
            said.append(
                f"the folders of {len(self.freed)} run(s) were removed to free space (last on {when}): their "
                "numbers are here, their files are not"
            )
        if self.doubled:
            said.append(f"{self.doubled} line(s) of events.jsonl stand there twice and count once")
        if self.unknown:
            said.append(
                f"events.jsonl was written by another version: what it says by {', '.join(self.unknown)} is not "
                "used (it stays in the file)"
            )
        return tuple(said)

    @property
    def gaps(self) -> int:
        """How many positions have no run: planned, not begun, and lost with their line."""
        return len(set(range(self.next_index)) - {m.index for m in self.manifests})

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
        if self.results.get(identity) == result:
            return
        self.rows.append(result)
        self.recent.add(result)
        before = self.results.get(identity)
        if before is None:
            self.arrived.append(identity)
        else:
            self.finished -= before.final
            self.failed -= before.state == "failed"
        self.results[identity] = result
        if result.failure is not None and not result.parts and result.cost.wall_s <= 0:
            self.attempts_of_unknown_cost[identity] = (
                self.attempts_of_unknown_cost.get(identity, 0) + result.failure.means.machine
            )
        # Both attempts were paid for. A chain's cost is that of its inner runs, which are counted themselves.
        if not result.parts:
            self.node_hours += result.cost.node_hours
        self.finished += result.final
        self.failed += result.state == "failed"
        if result.final:
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
        return result is not None and result.final

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

    _KINDS: ClassVar[Mapping[str, Callable[[State, Mapping[str, Any]], None]]] = {
        "changed": _apply_changed,
        "damaged": _apply_damaged,
        "doubled": _apply_doubled,
        "files": _apply_files,
        "freed": _apply_freed,
        "launch": _apply_launch,
        "manifests": _apply_planned,
        "part_results": _apply_part_results,
        "parts": _apply_parts,
        "rebuilt": _apply_rebuilt,
        "results": _apply_results,
        "retry": _apply_retry,
        "rule": _apply_rule,
        "session": _apply_session,
        "stop": _apply_stop,
        "told": _apply_told,
        "warm_start": _apply_warm_start,
    }


def _charged(failure: Mapping[str, Any] | None) -> bool:
    """Whether an attempt counted against the run's retries, where its event does not say so itself."""
    return failure is None or meaning(failure["kind"], failure["name"], failure.get("repair")).charged != "no"


def _unchanged(manifest: Manifest) -> Manifest:
    """A manifest as it was read; raises `ValueError` where its execution id is not that of what it says.

    Without this a changed digit would be believed, and the result of one point be taken for that of another.
    """
    if manifest.execution_id != manifest.identity:
        raise ValueError(f"run {manifest.execution_id}: what it says was run is not what this id stands for.")
    return manifest


def _finite(result: Result) -> Result:
    """A result as it was read; raises `ValueError` where a number of it is none."""
    for name, value in result.metrics.items():
        if not math.isfinite(value):
            raise ValueError(f"metrics.{name}: {value} is no finite number.")
    cost = result.cost
    for amount in (cost.wall_s, cost.node_hours, result.started_at, result.ended_at):
        if not math.isfinite(amount):
            raise ValueError(f"a time or cost of run {result.manifest.execution_id} is {amount}.")
    return result


def result_event(result: Result) -> dict[str, Any]:
    """A result as it stands in the journal: without its manifest, which has its own line."""
    fields = result.model_dump(mode="json", exclude={"manifest"}, exclude_defaults=True)
    return {"execution_id": result.manifest.execution_id, "status": result.status, **fields}


def _count(repeats: dict[Key, int], manifest: Manifest) -> None:
    if not manifest.origin:  # else it is no run: the first run of its point is not a repetition
        key = _key(manifest.params)
        repeats[key] = max(repeats.get(key, 0), manifest.replicate + 1)


def _key(params: Params) -> Key:
    """A point, for one of very many: its names are shared by all points that have them."""
    names = tuple(sorted(params))
    return (_NAMES.setdefault(names, names), *map(params.__getitem__, names))
