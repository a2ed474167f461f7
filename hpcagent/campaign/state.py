"""The state of a campaign: rebuilt from its events, extended by every new one."""

from __future__ import annotations

import gc
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from hpcagent.campaign.changes import change_text
from hpcagent.campaign.damage import Damage
from hpcagent.campaign.earlier import WarmStart
from hpcagent.campaign.facts import Facts
from hpcagent.campaign.lean import Lean
from hpcagent.campaign.same_files import FilesOfLevel, level_key
from hpcagent.model.base import read_record
from hpcagent.model.failures import meaning
from hpcagent.model.records import Manifest, Result

__all__ = ["State", "manifest_event", "result_event"]

# What a line with words of the wrong type or form raises.
_UNFIT = (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError)

# From here on the garbage collector is told to leave replayed records alone.
MANY = 5000
MOST_RUNS = 10_000_000
"""A position beyond it is a damaged one; no id follows from it."""


class State(Facts):
    """What a campaign knows, as its journal tells it: each event adds to it.

    Attributes:
        damage: What of the journal could not be read, and what was found elsewhere instead.
    """

    def __init__(self, *, app: tuple[str, str] | None = None, put_back: Iterable[Manifest] = ()) -> None:
        """Begin with nothing.

        Args:
            app: Name and version of the campaign's app; a manifest of another one is of another campaign.
            put_back: Manifests whose own lines are lost; they are taken in where they belong.
        """
        super().__init__()
        self.damage = Damage()
        self._app = app
        self._line = 0
        self._lean = Lean()
        lost = sorted(put_back, key=lambda m: m.index)
        self._put_back = deque(m for m in lost if m.role != "part")
        self._waiting_back = {m.execution_id for m in self._put_back}
        for manifest in lost:
            if manifest.role == "part":
                self.add_part(manifest, manifest.requested_by)

    @property
    def remarks(self) -> tuple[str, ...]:
        """What was not as it should be in the journal, in sentences without their full stop."""
        return self.damage.remarks(gaps=self.gaps, freed=self.freed)

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
            self.damage.add(self._line, error)
            return False
        return True

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
        self.damage.told = max(self.damage.told, int(event.get("damaged", 0)))
        self.damage.rebuilt.update(self._apply_manifests(event["manifests"]))
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
        self.damage.add(self._line, "it is no event in JSON.")

    def _apply_doubled(self, event: Mapping[str, Any]) -> None:
        self.damage.doubled += 1

    def _apply_manifests(self, rows: Iterable[Mapping[str, Any]]) -> list[str]:
        """Take in manifests that stand on one line; one that does not fit costs only itself."""
        taken: list[str] = []
        for fields in rows:
            try:
                manifest = self._manifest_of(fields)
            except _UNFIT as error:
                self.damage.add(self._line, error, Manifest)
                continue
            if self._app is not None and (manifest.app, manifest.app_version) != self._app:
                self.damage.add(
                    self._line, f"a run of {manifest.app} {manifest.app_version} is of another campaign."
                )
                continue
            self.place_back(before=manifest.index)
            self.add_manifest(manifest)
            taken.append(manifest.execution_id)
        return taken

    def _apply_parts(self, event: Mapping[str, Any]) -> None:
        for row in event["parts"]:
            try:
                manifest = _unchanged(read_record(Manifest, row["manifest"], self.damage.unknown))
                self.add_part(manifest, str(row["chain"]))
            except _UNFIT as error:
                self.damage.add(self._line, error, Manifest)

    def _manifest_of(self, fields: Mapping[str, Any]) -> Manifest:
        shared = self._lean.resources(fields["resources"], self.damage.unknown)
        return self._lean.record(
            _unchanged(read_record(Manifest, {**fields, "resources": shared}, self.damage.unknown))
        )

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
                self.damage.strays[str(identity)] = None
                return
            data = {**fields, "manifest": manifest}
            del data["execution_id"]
            self.add_result(self._lean.result(_finite(read_record(Result, data, self.damage.unknown))))
        except _UNFIT as error:
            self.damage.add(self._line, error, Result)

    def _apply_part_results(self, event: Mapping[str, Any]) -> None:
        for fields in event["results"]:
            try:
                identity = fields["execution_id"]
                manifest = self._part_manifests.get(identity)
                if manifest is None:
                    self.damage.strays[str(identity)] = None
                    continue
                data = {k: v for k, v in fields.items() if k not in ("execution_id", "shared")}
                result = _finite(read_record(Result, data | {"manifest": manifest}, self.damage.unknown))
                self.add_part_result(result, shared=bool(fields.get("shared")))
            except _UNFIT as error:
                self.damage.add(self._line, error, Result)

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
    if not (0 <= manifest.index <= MOST_RUNS and 0 <= manifest.batch <= MOST_RUNS):
        raise ValueError(f"run {manifest.execution_id}: no campaign has so many runs ({manifest.index}).")
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


def manifest_event(manifest: Manifest) -> dict[str, Any]:
    """A manifest as it stands in the journal: without what is the default, but for what each line has."""
    fields: dict[str, Any] = manifest.model_dump(mode="json", exclude_defaults=True)
    place = {"role": manifest.role, "batch": manifest.batch, "index": manifest.index}
    return {"params": {}, "resources": {}, **fields, **place}


def result_event(result: Result) -> dict[str, Any]:
    """A result as it stands in the journal: without its manifest, which has its own line."""
    fields = result.model_dump(mode="json", exclude={"manifest"}, exclude_defaults=True)
    return {"execution_id": result.manifest.execution_id, "status": result.status, **fields}
