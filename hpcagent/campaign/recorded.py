"""What is on record of a campaign: its journal, and what the runs' own directories have where that is damaged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import from_json

from hpcagent.apps.run_records import FOLDER, OnRecord, RunRecords
from hpcagent.campaign.changes import change_text
from hpcagent.campaign.determinism import unequal_words
from hpcagent.campaign.far import far_words
from hpcagent.campaign.loading import load_run
from hpcagent.campaign.record import Campaign
from hpcagent.campaign.state import State, manifest_event
from hpcagent.model.base import explain, read_record
from hpcagent.model.records import Manifest, Result
from hpcagent.regular import read_regular
from hpcagent.sites.ledger import damage
from hpcagent.store.journal import read_events
from hpcagent.store.rundir import RunDir, holder

__all__ = [
    "Snapshot",
    "begun_state",
    "deprecated_words",
    "found_result",
    "rebuilt_event",
    "replayed",
    "snapshot",
    "where_found",
]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One reading of a campaign's folder.

    Attributes:
        folder: Where it is.
        campaign: What was asked.
        state: What the journal tells.
        attended: Whether a coordinator had the folder when it was read.
    """

    folder: RunDir
    campaign: Campaign
    state: State
    attended: bool

    @property
    def results(self) -> list[Result]:
        """Every result: in manifest order, in rolling mode as they came."""
        return self.state.in_arrival() if self.campaign.mode == "rolling" else self.state.in_order()

    @property
    def reason(self) -> str | None:
        """Why the campaign stopped; None while it goes on, or was interrupted."""
        return self.state.stopped if self.state.over(attended=self.attended) else None

    @property
    def remarks(self) -> tuple[str, ...]:
        """What could not be read of the record, was put back, changed, differs, lies elsewhere; no full stops."""
        guard, campaign = self.campaign.guard, self.campaign
        unguarded = "" if guard is None else guard.unwatched(campaign.app, campaign.objective)
        said = (self.campaign.app.unknown_before, damage(self.folder.jobs), unguarded, deprecated_words(campaign))
        unequal = unequal_words(campaign, self.state)
        changes = map(change_text, self.state.changes)
        far = far_words((*self.results, *self.state.part_results.values()), self.folder.root)
        return (
            *self.campaign._unread,
            *self.state.remarks,
            *(one for one in said if one),
            *unequal,
            *changes,
            *far,
        )


def deprecated_words(campaign: Campaign) -> str:
    """That the app of a campaign should not be used any more, without a full stop; empty where it may be."""
    c = campaign.app.contract
    return "" if c.deprecated is None else f"app {c.name} {c.version} is deprecated: {c.deprecated.rstrip('.')}"


def snapshot(run_dir: str | Path, campaign: Campaign | None = None) -> Snapshot:
    """Read a campaign's folder once, without touching it, also while the campaign runs.

    Args:
        run_dir: The folder.
        campaign: The campaign there, where it was read already.

    Raises:
        BadInput: The folder is not that of a campaign.
        StoreError: The journal cannot be read.
    """
    campaign = load_run(run_dir, to_read=True) if campaign is None else campaign
    folder = RunDir(run_dir)
    state = replayed(folder, campaign)
    return Snapshot(folder, campaign, state, holder(folder.root)[0])


_ROLES = frozenset({"suggested", "enqueued", "reference", "replicate", "repeat", "told", "extended"})


def replayed(folder: RunDir, campaign: Campaign, *, look: bool | None = None, results: bool = True) -> State:
    """Replay a journal, with the runs that damage has taken from it put back where they belong.

    A run's manifest is written into its worker's records, or its own directory, before it begins, so whatever had
    begun is found there. That costs one listing of `work`, one reading of the records, and one look at each run
    there that has no result in the journal.

    Args:
        folder: The run directory.
        campaign: Its campaign.
        look: Look for lost runs also where every line could be read, as whole lines may be missing; by default
            where no coordinator has the folder: one has looked when it began, and records what ends since.
        results: Also read what ended and is not in the journal; a coordinator records that itself.

    Raises:
        StoreError: The journal cannot be read.
    """
    app = campaign.app.name, campaign.app.contract.version
    look = not holder(folder.root)[0] if look is None else look
    begun = _Begun(folder.work) if look else None  # before the journal, which has a run before it begins
    state = State.replay(read_events(folder.events), app=app)
    if state.damage.none and not look:
        return state
    begun = _Begun(folder.work) if begun is None else begun
    begun.read(state)
    lost = _lost(begun, state, app)
    late = [m for m in map(state.manifest, (*state.damage.strays, *state.damage.rebuilt)) if m is not None]
    if lost or late:
        rebuilt = state.damage.rebuilt | {m.execution_id for m in lost if m.role != "part"}
        state = State.replay(read_events(folder.events), app=app, put_back=(*lost, *late))
        state.damage.rebuilt |= rebuilt
        state.damage.unrecorded = lost
    if results:
        for manifest in state.open_ended():
            name = manifest.execution_id
            if name in begun.folders or name in begun.on_record:
                _take_result(state, *found_result(folder.work, manifest, begun.on_record.get(name)))
    return state


def _take_result(state: State, result: Result | None, wrong: str) -> None:
    if result is not None:
        state.add_result(result)
        state.damage.found += 1
        state.damage.read_from_work.add(result.manifest.execution_id)
    if wrong:
        state.damage.unusable.append(wrong.rstrip("."))


class _Begun:
    """The runs that have begun, by what they left in `work`, as it is when this is made.

    Attributes:
        work: The folder.
        folders: Execution ids of those that have a directory.
        on_record: What the workers' records have of those that the journal does not say all of.
    """

    def __init__(self, work: Path) -> None:
        self.work = work
        try:
            self.folders = frozenset(path.name for path in work.iterdir()) - {FOLDER}
        except OSError:
            self.folders = frozenset()
        self._records = RunRecords(work)
        self.on_record: Mapping[str, OnRecord] = {}

    def read(self, state: State) -> None:
        """Read the records of runs that a state does not know, or has no final result of."""
        self.on_record = self._records.of(lambda name: not state.known(name) or not state.final(name))


def begun_state(folder: RunDir, campaign: Campaign) -> State:
    """A state without any event, to which those of the journal can be given one by one: it puts lost runs back."""
    known = replayed(folder, campaign, results=False)
    lost = [m for m in known.manifests if m.execution_id in known.damage.rebuilt]
    state = State(
        app=(campaign.app.name, campaign.app.contract.version), put_back=(*lost, *known.damage.unrecorded)
    )
    state.damage.rebuilt |= known.damage.rebuilt
    return state


def rebuilt_event(state: State, *, budget: int | None, cap: float | None) -> dict[str, Any] | None:
    """What is written into a damaged journal, so that it has every run again; None where that is done.

    Args:
        state: From `replayed`.
        budget: Runs that the campaign was last to end with, which its confirmation was then planned for.
        cap: Node-hours, likewise.
    """
    lost = [m for m in state.damage.unrecorded if m.role != "part"]
    parts = [m for m in state.damage.unrecorded if m.role == "part"]
    if not state.damage.unrecorded and state.damage.count <= state.damage.told:
        return None
    event: dict[str, Any] = {
        "event": "rebuilt",
        "damaged": state.damage.count,
        "remarks": list(state.remarks),
        "manifests": [manifest_event(m) for m in lost],
        "parts": [{"chain": m.requested_by, "manifest": manifest_event(m)} for m in parts],
    }
    if any(m.role == "replicate" for m in lost):  # of the confirmation, which is planned once
        event |= {"confirm": True, "budget": budget} | ({} if cap is None else {"cap": cap})
    return event


def found_result(work: Path, manifest: Manifest, on_record: OnRecord | None = None) -> tuple[Result | None, str]:
    """The final result in a run's own directory or on record, and what is wrong with what is there, in a sentence.

    Args:
        work: Folder of the runs.
        manifest: Of the run.
        on_record: What the workers' records have of it, if they were read.
    """
    from hpcagent.apps.finished import checked_result, final_result  # rarely needed, and it can do much more

    path = work / manifest.execution_id / "result.json"
    try:
        fields, wrong = final_result(path.parent)
    except OSError as error:
        return None, f"{path} cannot be read: {error.strerror or error}."
    if fields is None and on_record is not None:  # a directory has the later attempt
        path = work / FOLDER
        wrong = wrong or on_record.wrong
        if on_record.result is not None:
            fields, misfit = checked_result(on_record.result, f"the result of {manifest.execution_id} in {path}")
            wrong = wrong or misfit
    if fields is None:
        return None, wrong
    unknown: dict[str, None] = {}
    try:
        result = read_record(Result, {**fields, "manifest": manifest}, unknown)
    except ValidationError as error:
        return None, explain(Result, error, str(path)).message
    where = Path(result.workdir).name
    if where not in ("", manifest.execution_id):
        return None, f"{path} is the result of another run, {where}."
    if unknown:
        return result, f"{path}: what it says by {', '.join(unknown)} is of another version and is not used."
    return result, ""


def where_found(results: Sequence[Result]) -> str:
    """Where results were that workers have written and no coordinator had recorded."""
    own = sum(bool(r.workdir) for r in results)
    on_record = len(results) - own
    if not own:
        return f"work/{FOLDER}"
    return f"work/{FOLDER} ({on_record}) and in their own folders" if on_record else "their own folders"


def _lost(begun: _Begun, state: State, app: tuple[str, str]) -> list[Manifest]:
    """Manifests in `work` of runs that the state does not know, and of inner runs that its results speak of."""
    names = sorted(name for name in begun.folders | begun.on_record.keys() if not state.known(name))
    # What lay there before the campaign began is of an earlier one in the same folder.
    began = state.began_at or 0.0
    there = (_manifest_in(begun.work / name, begun.on_record.get(name)) for name in names)
    found = [m for m in there if m is not None and m.created_at >= began]
    ours = [m for m in found if m.role in _ROLES and (m.app, m.app_version) == app]
    parts = [m for m in found if m.role == "part" and m.execution_id in state.damage.strays]
    return sorted([*ours, *parts], key=lambda m: m.index)


def _manifest_in(workdir: Path, on_record: OnRecord | None) -> Manifest | None:
    """A run's manifest, as on record, in its directory, or in the newest attempt set aside there."""
    if on_record is not None and (manifest := _manifest_of(on_record.manifest, workdir.name)) is not None:
        return manifest
    try:
        attempts = sorted(workdir.glob("attempt-*"), key=lambda p: (len(p.name), p.name), reverse=True)
    except OSError:
        return None
    for folder in (workdir, *attempts):
        try:
            fields = from_json(read_regular(folder / "manifest.json"))
        except (OSError, ValueError):
            continue
        if (manifest := _manifest_of(fields, workdir.name)) is not None:
            return manifest
    return None


def _manifest_of(fields: Any, name: str) -> Manifest | None:
    """A manifest from plain data, if it is that of the run of this name."""
    try:
        manifest = read_record(Manifest, fields, {})
        return manifest if manifest.execution_id == name == manifest.identity else None
    except (ValueError, TypeError, AttributeError):
        return None
