"""Runs on their way: sent to a site, cancelled, ended; what they took is written down."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hpcagent.apps.base import App
from hpcagent.apps.finished import final_result
from hpcagent.apps.made_with import changed_files
from hpcagent.errors import BadInput, StoreError
from hpcagent.gate.rules import Caller
from hpcagent.model.records import Manifest, Result
from hpcagent.workspace.app_store import AppStore
from hpcagent.workspace.artifacts import size_of
from hpcagent.workspace.desk import Job, failed
from hpcagent.workspace.rows import Row, job_facts
from hpcagent.workspace.sites import Sites
from hpcagent.workspace.telling import Telling

__all__ = ["Sending"]


class Sending(Telling):
    """Single runs, from the gate to their results.

    Args:
        root: The workspace's folder.
        clock: Unix time, in seconds.
        apart: Sites are kept by processes of their own, which outlive this one.
    """

    def __init__(self, root: Path, *, clock: Callable[[], float] = time.time, apart: bool = False) -> None:
        super().__init__(root, clock=clock)
        self.store = AppStore(self.folder.apps)
        self.sites = Sites(self.folder, lambda: self.rules, self.store, tell=self._say, apart=apart)
        self._late: list[tuple[Row, Result, float]] = []  # results that are not in the journal yet

    def _send(self, row: Row, app: App, manifest: Manifest, taken: Sequence[Mapping[str, Any]]) -> None:
        def began() -> None:
            with self._turn:
                for one in self._waiting_for(manifest.execution_id):
                    if one.job != row.job:
                        continue
                    one.state = "running"
                    self._touch(one, self._clock())
                    self.outbox.put("on_job_started", one.owner, job_facts(one), f"{one.id} started", one.cause)
                self._turn.notify_all()
            self.outbox.tell_on()

        def ended(result: Result, lost_node_hours: float = 0.0) -> None:
            with self._turn:
                # Whoever asked for it first may have cancelled it since: then it is another's.
                waiting = [one for one in self._waiting_for(manifest.execution_id) if one.job == row.job]
                payer = next((one for one in waiting if not one.shares), row)
                self._late.append((payer, result, lost_node_hours))
                self._take_late()

        job = Job(app, manifest, taken, ended, began, row.owner, row.reference, row.settings, row.code)
        self.sites.desk(row).add(job)

    def _take_late(self) -> None:
        """Record results; what a full disk does not take waits for `look`, and lies in the run's folder."""
        while self._late:
            row, result, lost_node_hours = self._late[0]
            try:
                self._result(row, result, lost_node_hours)
            except StoreError as error:
                self._say(error.message)
                return
            except Exception as error:  # whatever is wrong with it, others' results do not wait for this one
                self._say(f"the result of {row.id} could not be recorded: {type(error).__name__}: {error}")
                if result.failure is None or result.cost.wall_s:
                    self._late[0] = row, failed(result.manifest, error), lost_node_hours
                    continue
            self._late.pop(0)

    def _result(self, row: Row, result: Result, lost_node_hours: float = 0.0) -> None:
        if self._closed:
            return
        fields = result.model_dump(mode="json", exclude={"manifest"})
        price = self.rules.price(row.site)
        hours = result.cost.node_hours + lost_node_hours
        lost = f"{lost_node_hours:.3g} node-hours went into attempts that the machine has lost"
        state = {"COMPLETED": "completed", "FAILED": "failed", "STOPPED": "stopped"}[result.status]
        if row.over:  # it was cancelled, and this is what it took until then
            took = {"event": "took", "id": row.id, "node_hours": hours, "usd": (price or 0.0) * hours}
            took["cost"] = fields["cost"]
            self._take_down(took)
            return
        self._end(
            row,
            state,
            sharing=[one for one in self._waiting_for(row.execution_id) if one.job == row.job and one is not row],
            result=fields,
            node_hours=hours,
            usd=0.0 if price is None else price * hours,
            bytes=size_of(self._workdir(row)),
            note=lost if lost_node_hours else None,
        )

    def _share(self, row: Row, with_: Row) -> None:
        self._end(row, with_.state, result=with_.result, note="the same work had been asked for before")

    def _found_ended(self, row: Row, manifest: Manifest) -> bool:
        """Take the result of a run that ended while there was no service, if it did."""
        done, _ = final_result(self._workdir(row))
        if done is None or changed_files(done.get("files") or {}):
            return False
        try:
            result = Result.model_validate({"manifest": manifest} | done)
        except ValidationError:
            return False
        self._late.append((row, result, 0.0))
        self._take_late()
        return True

    def cancel(self, caller: Caller, identity: str) -> dict[str, Any]:
        """Keep a run from being done, or end it. Again: does nothing."""
        with self._turn:
            self.gate.require(caller, "run")
            row = self._row(caller, identity)
            if row.over:
                return self._said(row, found=True)
            if row.kind == "campaign":
                raise BadInput(f"{identity} is a campaign: stop it.", value=identity)
            shared = [o for o in self._same_work(row.execution_id) if o.id != row.id and not o.over]
            if shared:
                # Somebody else waits for the same work: it goes on for them, and on their account.
                self._hand_over(row, shared)
            self._end(row, "cancelled", note=f"cancelled by {caller.name}")
        # Without the turn: what the site says meanwhile needs it.
        how = "shared" if shared else self.sites.desk(row).cancel(row.execution_id)
        words = {
            "waiting": "it had not begun",
            "ended": "its worker is ended",
            "left": "what has begun goes on to its end, and its result is not taken",
            "shared": "it goes on for others who have asked for the same work",
        }[how]
        return self._said(row, found=True) | {"how": words}

    def _hand_over(self, row: Row, others: Sequence[Row]) -> None:
        if row.shares:
            return
        first, *rest = others
        others_now = [one.id for one in rest]
        self._take_down({"event": "paid_by", "id": first.id, "others": others_now, "at": self._clock()})
