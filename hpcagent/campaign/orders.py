"""What a worker is told of a run; before it is sent, its files are held against those of the finished ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from hpcagent.apps.base import App
from hpcagent.apps.deciding import Looks, declared, keeping
from hpcagent.apps.run_records import FOLDER, Ended
from hpcagent.campaign.chain_runs import Inner
from hpcagent.campaign.extending import from_the_end_of
from hpcagent.campaign.guarding import Guarding
from hpcagent.campaign.same_files import compared, files_event, level_key, refusal, unknown_before
from hpcagent.campaign.state import State
from hpcagent.model.records import Manifest
from hpcagent.store.rundir import RunDir

__all__ = ["Orders"]


class Orders:
    """Makes the orders of a campaign's runs.

    Args:
        app: What the campaign runs.
        state: What is known.
        folder: The run directory.
        promises: What a run of the app must yield.
        write: Puts an event into the journal and the state.

    Attributes:
        altering: Which settings repairs may alter, and how.
        guard: What ends runs early, if anything.
        news: What was noticed of files, in sentences.
    """

    def __init__(
        self,
        app: App,
        state: State,
        folder: RunDir,
        *,
        promises: Any,
        write: Callable[[dict[str, Any]], None],
    ) -> None:
        self._app, self._state, self._promises, self._write = app, state, promises, write
        self._root = folder.root
        self._work = folder.work.absolute()
        self._looks: Looks = {}
        self._sent_before: set[str] = set()
        self._ended = Ended(self._work)
        self.altering: Mapping[str, Any] | None = None
        self.guard: Guarding | None = None
        self.news: list[str] = []

    @property
    def records(self) -> str:
        """The folder of the workers' record files."""
        return f"{self._work}/{FOLDER}"

    def keeping(self) -> Any:
        """A block in which files that were looked at before are not looked at again."""
        return keeping(self._looks)

    def sent_before(self, runs: Iterable[str]) -> None:
        """Note that these may have been sent: their directories may be there, or workers in them."""
        self._sent_before.update(runs)

    def look_for_ended(self) -> None:
        """Read what workers that were lost have recorded, once for all runs that are sent again."""
        self._ended.look(self._state.final)

    def of(self, manifest: Manifest, about: Mapping[str, Any]) -> dict[str, Any]:
        """The order of a run of the campaign's own app.

        Raises:
            InputsChanged: Finished runs at this level have used another file.
        """
        # The gate: whatever suggested this, nothing outside the contract reaches a worker.
        self._app.contract.space.validated(manifest.params, where=f"app {self._app.name}")
        with self.keeping():
            order = self._app.order(
                manifest,
                work=self._work,
                site=about,
                promises=self._promises,
                attempt=self._attempt(manifest),
            )
        self.look(self._app, manifest, order["files"], about)
        order["records"] = self.records
        if self.altering is not None:
            order["altering"] = self.altering
        if manifest.execution_id in self._sent_before:
            order["again"] = True
            if (ended := self._ended.of(manifest.execution_id)) is not None:
                order["ended"] = ended
        self._sent_before.add(manifest.execution_id)
        if manifest.extends:
            order["extends"] = from_the_end_of(self._state.results.get(manifest.extends), self._work)
        elif self.guard is not None:  # what is extended is to be known better
            order["guard"] = self.guard.of(manifest)
        return order

    def of_part(
        self, app: App, manifest: Manifest, about: Mapping[str, Any], *, work: Path, promises: Any = None
    ) -> dict[str, Any]:
        """The order of a run that a chain asked for, or of a chain's function; raises as `of`."""
        with self.keeping():
            order = app.order(
                manifest,
                work=work,
                site=about,
                attempt=self._attempt(manifest),
                promises=promises,
            )
        self.look(app, manifest, order["files"], about)
        return order

    def look_at(self, inner: Inner, about: Mapping[str, Any]) -> None:
        """Hold the files of an inner run that is not sent against those of the finished ones; raises as `of`."""
        with self.keeping():
            files = declared(inner.app.function, inner.manifest.params, inner.app.settings, about)
        self.look(inner.app, inner.manifest, files, about)

    def _attempt(self, manifest: Manifest) -> int:
        return self._state.retried.get(manifest.execution_id, 1)

    def look(self, app: App, manifest: Manifest, files: Mapping[str, str], about: Mapping[str, Any]) -> None:
        """Before a run is sent: its files are those of the finished ones; what is new is written down.

        Raises:
            InputsChanged: Finished runs at this level have used another file.
        """
        if not files:
            return
        level = self._state.files.get(level_key(app.name, manifest.params, app.settings))
        known = level is not None and all(digest in level.files.get(name, ()) for name, digest in files.items())
        if level is not None and known and all(len(level.files[name]) == 1 for name in files):
            return
        ended = (*self._state.results.values(), *self._state.part_results.values())
        other = [] if level is None else compared(level, files, ended, about)
        if other:
            raise refusal(str(self._root), other, done=self._state.finished, elsewhere=True)
        if known:
            return
        # Of a chain its inner runs say it; which potentials a LAMMPS script reads may follow from any parameter.
        quiet = level is not None or app.chain or "engine" not in manifest.params
        note = "" if quiet else unknown_before(app.name, manifest.params, files, ended)
        self._write(files_event(app.name, manifest.params, app.settings, files, note, function=app.function))
        if note:
            self.news.append(note)

    def note_of(self, app: App, manifest: Manifest) -> str:
        """What is to be said of a run's files: that earlier runs do not say what they were computed with."""
        if not any(level.note for level in self._state.files.values()):
            return ""
        level = self._state.files.get(level_key(app.name, manifest.params, app.settings))
        return "" if level is None else level.note
