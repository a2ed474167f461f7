"""Catalysts that are computed by runs of a workspace: each is recorded once its run has ended, whoever waits.

`catalysts/RUN.json` says what is to be recorded, from before the call is answered: who asked, and the plan. When
the run has ended the service stores the result, writes the notebook's entry, tells the event and adds the row;
then the file is `RUN.done.json`. A service that was killed in between is followed by one that goes on.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcagent.errors import AppFailed, BadInput, HpcAgentError, NotPermitted
from hpcagent.model.base import read_json
from hpcagent.model.records import Manifest, Result
from hpcagent.resources.folder import Resources
from hpcagent.shown import plain
from hpcagent.store.files import make_folder, write_whole
from hpcagent.workspace.rows import Row

if TYPE_CHECKING:
    from hpcagent.materials.catalyst import Tells
    from hpcagent.materials.catalyst_plan import CatalystPlan
    from hpcagent.materials.catalyst_rows import Catalyst

__all__ = ["Catalysts", "catalyst_data", "plan_of"]

Opened = Callable[[str], tuple[Resources, "Tells"]]
"""The resources of somebody, by name, and where events go in that name."""


def plan_of(asked: Mapping[str, Any]) -> CatalystPlan:
    """What a call asks for.

    Raises:
        BadInput: A value is not allowed.
    """
    from hpcagent.materials.catalyst_plan import plan_catalyst

    return plan_catalyst(
        asked["structure"],
        asked["adsorbate"],
        catalyst=asked["catalyst"] or None,
        parameters=asked["parameters"],
    )


def catalyst_data(known: Catalyst, asked: Mapping[str, Any]) -> dict[str, Any]:
    """What is known of a catalyst, as plain data."""
    return {
        "adsorption_energy_ev": known.adsorption_energy,
        "result_uri": known.result_uri,
        "row": {"id": known.row.id, **known.row.values},
        "promising": known.adsorption_energy < asked["threshold_ev"],
        "notes": list(dict.fromkeys((*known.notes, *_about_support(asked)))),
    }


def _about_support(asked: Mapping[str, Any]) -> list[str]:
    if "-" not in asked["catalyst"]:
        return []
    return [f"the slab that was computed is of {asked['structure']} alone: the support is in the name only"]


class Catalysts:
    """The catalysts of a workspace that are under way.

    Args:
        folder: `catalysts` of the workspace.
        opened: The resources of somebody.
        news: Is told what went wrong.
    """

    def __init__(self, folder: Path, *, opened: Opened, news: Callable[[str], None]) -> None:
        self._folder, self._opened, self._news = folder, opened, news
        self._turn = threading.Lock()
        self._open: dict[str, dict[str, Any]] = {}
        self._recording: set[str] = set()
        for path in sorted(folder.glob("*.json")) if folder.is_dir() else ():
            if not path.name.endswith(".done.json"):
                self._open[path.stem] = read_json(path)

    @property
    def busy(self) -> bool:
        """Whether one is still to be recorded."""
        return bool(self._open)

    def follow(self, run: str, owner: str, asked: Mapping[str, Any]) -> None:
        """Record the catalyst once this run has ended; it is written down before this returns.

        Raises:
            StoreFull: The disk refuses.
        """
        with self._turn:
            if run in self._open:
                return
            order = {"owner": owner, "asked": dict(asked)}
            make_folder(self._folder)
            write_whole(self._folder / f"{run}.json", json.dumps(order), private=True)
            self._open[run] = order

    def state(self, run: str) -> tuple[dict[str, Any], bool]:
        """What was asked for and has come of it, and whether it is still open.

        Raises:
            BadInput: No catalyst is computed by this run.
        """
        with self._turn:
            order = self._open.get(run)
        if order is not None:
            return order, True
        path = self._folder / f"{run}.done.json"
        if "/" in run or not path.is_file():
            raise BadInput(f"no catalyst is computed by the run {run!r}.", value=run)
        found: dict[str, Any] = read_json(path)
        return found, False

    def look(self, rows: Mapping[str, Row]) -> None:
        """Record those whose runs have ended, each in a thread of its own: another program may hold its claim."""
        with self._turn:
            ready = [run for run in self._open if run not in self._recording and _over(rows.get(run))]
            self._recording.update(ready)
        for run in ready:
            threading.Thread(
                target=self._record, args=(run, rows[run]), name=f"catalyst {run}", daemon=True
            ).start()

    def _record(self, run: str, row: Row) -> None:
        order = self._open[run]
        try:
            done = self._recorded(order, row)
        except Exception as error:  # the next look tries again; others are not to suffer from it
            self._news(f"the catalyst of the run {run} is not recorded yet: {plain(str(error))}")
            print(f"{type(error).__name__}: {plain(str(error))}", file=sys.stderr, flush=True)
            done = None
        with self._turn:
            try:
                if done is not None:
                    write_whole(self._folder / f"{run}.done.json", json.dumps(order | done), private=True)
                    (self._folder / f"{run}.json").unlink(missing_ok=True)
                    self._open.pop(run, None)
            except (HpcAgentError, OSError) as error:
                self._news(f"the catalyst of the run {run}: {plain(str(error))}")
            finally:
                self._recording.discard(run)

    def _recorded(self, order: Mapping[str, Any], row: Row) -> dict[str, Any]:
        """What has come of it, once and for all."""
        from hpcagent.materials.catalyst import record_catalyst

        asked = order["asked"]
        if row.result is None:
            return {"error": row.note or f"its run was {row.state}"}
        try:
            plan = plan_of(asked)
            if plan.manifest.execution_id != row.execution_id:
                return {"error": "the apps have changed since it was asked for; ask again"}
            result = Result.model_validate({**row.result, "manifest": Manifest.model_validate(row.manifest)})
            notes = (*result.notes, *_about_support(asked))
            resources, events = self._opened(order["owner"])
            known = record_catalyst(
                resources,
                plan,
                result.model_copy(update={"notes": notes}),
                runs={row.execution_id: row.id},
                threshold_ev=asked["threshold_ev"],
                events=events,
            )
        except AppFailed as error:
            return {"error": error.message, "repair": error.details.get("repair")}
        except (BadInput, NotPermitted) as error:
            return {"error": f"it could not be recorded: {error.message}"}
        return {"found": catalyst_data(known, asked)}


def _over(row: Row | None) -> bool:
    return row is not None and row.over
