"""Look at a campaign from outside while its coordinator runs elsewhere: another shell, another node, a job."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hpcagent.campaign.changes import change_text
from hpcagent.campaign.events import Event
from hpcagent.campaign.loading import load_run
from hpcagent.campaign.recorded import begun_state
from hpcagent.campaign.result import event_text
from hpcagent.campaign.slow_runs import LateRun
from hpcagent.campaign.spending import Spending
from hpcagent.campaign.standing import ROLE, Standing, job_words, standing
from hpcagent.campaign.sweep_runs import PlannedRuns
from hpcagent.campaign.where import busy, going_on
from hpcagent.errors import HpcAgentError
from hpcagent.model.failures import state_counts
from hpcagent.sites.ledger import Entry, read_ledger
from hpcagent.sites.schedulers.answers import Job
from hpcagent.sites.schedulers.base import SchedulerDown
from hpcagent.sites.schedulers.registry import scheduler
from hpcagent.store.journal import event_in
from hpcagent.store.rundir import RunDir, holder

__all__ = ["Standing", "follow", "standing"]

_ASK_EVERY_S = 20.0
"""The scheduler is asked no more often than this after a job that is to go on with the campaign."""
_MANY = 3
"""A coordinator is gone when it was not there so many looks in a row: between two jobs it is away for a moment."""


def follow(run_dir: str | Path, *, every_s: float = 1.0) -> Iterator[Event]:
    """Tell what has happened in a campaign, then what happens, until it stops or nobody is at it any more.

    Only reads, so any number may follow, from anywhere that sees the folder. The events are those that a
    `watch=` gets, so a view can be handed them.

    Args:
        run_dir: The campaign's folder.
        every_s: Time between two looks, in seconds.

    Yields:
        First `opened`, whose reason tells what there is; then `finished`, `batch`, `site` (jobs), `late`, `tick`,
        and at the end `stopped` (the campaign's own end) or `left` (no coordinator is there; the reason says what
        to do).

    Raises:
        BadInput: The folder is not that of a campaign.

    Example:
        >>> import tempfile
        >>> from hpcagent.runs.run import run
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = run("synthetic", site="threads", run_dir=folder)
        ...     [event.kind for event in follow(folder)]
        ['opened', 'stopped']
    """
    return _Follower(run_dir, every_s).events()


class _Follower:
    def __init__(self, run_dir: str | Path, every_s: float) -> None:
        self.folder = RunDir(run_dir)
        self.folder.require()
        self.every_s = every_s
        self.state = begun_state(self.folder, load_run(run_dir, to_read=True))
        self._spending: Spending | None = None
        self.submitted = 0
        self._journal = _Tail(self.folder.events)
        self._known: dict[str, Entry] = {}
        self._attended = False
        self._asked: tuple[float, Job | None] = (0.0, None)
        self._read_campaign()

    def _read_campaign(self) -> None:
        campaign = load_run(self.folder.root, to_read=True)
        self._planned = PlannedRuns(campaign)
        self._unknown = campaign.app.unknown_before
        # What the coordinator knows of the site is read from the first results.
        self._spending = Spending(campaign, self.state, self.folder.work)

    def events(self) -> Iterator[Event]:
        """See `follow`."""
        for event in self._journal.read():
            self.state.read(event)
        self._known = {entry.name: entry for entry in read_ledger(self.folder.jobs)}
        self._attended = holder(self.folder.root)[0]
        yield self._event("opened", reason=self._so_far(), ids=list(self.state.results))
        away = 0
        while True:
            # Before reading: what it wrote until it let go is then read below.
            attended = self._attended = holder(self.folder.root)[0]
            yield from self._new()
            stopped = self.state.stopped
            if not attended and stopped is not None and self.state.over():
                yield self._event("stopped", reason=self.state.why_stopped(stopped))
                return
            away = 0 if attended or self._somebody_comes() else away + 1
            if away >= _MANY:
                yield self._event("left", reason=self._left())
                return
            yield self._event("tick")
            time.sleep(self.every_s if not away else min(self.every_s, 0.2))

    def _new(self) -> Iterator[Event]:
        for event in self._journal.read():
            told = None
            try:
                fits = self.state.read(event)
                told = self._told(event) if fits and event["event"] != "damaged" else None
            except (KeyError, TypeError, ValueError, AttributeError):
                fits = False
            if not fits or event["event"] == "damaged":
                told = self._event("site", reason="a line of events.jsonl cannot be read; it is left out")
            if told is not None:
                yield told
        for entry in read_ledger(self.folder.jobs):
            before = self._known.get(entry.name)
            if before == entry or (before is None and entry.job_id is None and entry.ended is None):
                continue
            self._known[entry.name] = entry
            yield self._event("site", reason=f"job {job_words(entry)}")

    def _told(self, event: Mapping[str, Any]) -> Event | None:
        """What a line of the journal tells those who look on, if anything."""
        kind = event.get("event")
        if kind == "results":
            return self._event("finished", ids=[fields.get("execution_id") for fields in event["results"]])
        if kind == "told":
            return self._event("finished", ids=[event["result"].get("execution_id")])
        if kind == "session":
            self._read_campaign()
            where = f"process {event.get('pid')} on {event.get('host')}"
            crowded = busy(event.get("busy", ""))
            where += f"; {crowded}" if crowded else ""
            return self._event("site", reason=f"a coordinator has begun: {where}")
        if kind == "batch":
            ids = [r.manifest.execution_id for r in self.state.batch(int(event["batch"]))]
            return self._event("batch", ids=ids)
        if kind == "rule":
            return self._event("rule", reason=event_text(event))
        if kind == "files" and event.get("note"):
            return self._event("site", reason=event["note"])
        if kind == "site_lost":
            return self._event("site", reason=f"the site {event.get('site')} is lost: {event.get('reason')}")
        if kind == "late":
            return self._event("late", reason=LateRun.words(event))
        if kind == "rebuilt":
            return self._event("site", reason="; ".join(event.get("remarks", ())))
        if kind == "changed":
            return self._event("site", reason=change_text(event))
        if kind == "interrupted":
            return self._event("site", reason="the coordinator was interrupted")
        return None

    def _event(self, kind: str, *, reason: str = "", ids: Any = ()) -> Event:
        results = tuple(self.state.results[i] for i in ids if i in self.state.results)
        waiting = {m.execution_id: m for m in self.state.manifests if m.execution_id not in self.state.results}
        assert self._spending is not None
        self._spending.look(waiting)
        return Event(
            kind,
            results=results,
            reason=reason,
            running=len(self.state.manifests) - self.state.ended if self._attended else 0,
            runs=self.state.ended - self.state.elsewhere,
            budget=self._planned.count(self.state.manifests),
            outlook=self._spending.outlook(),
        )

    def _so_far(self) -> str:
        state = self.state
        budget = self._planned.count(state.manifests)
        total = f" of {budget}" if budget is not None else ""
        counts = Counter(state.states(attended=self._attended).values())
        words = [f"{state.ended}{total} run(s) so far", state_counts(counts)]
        assert self._spending is not None
        words.append(str(self._spending.outlook()))
        notes = [f"note: {remark}" for remark in (*state.remarks, self._unknown) if remark]
        return "\n".join([", ".join(words), *notes, str(standing(self.folder.root))])

    def _somebody_comes(self) -> bool:
        """Whether a job of the coordinator waits or runs, as far as the scheduler tells."""
        waiting = [
            e
            for e in read_ledger(self.folder.jobs)
            if e.ended is None and e.job_id is not None and (e.about or {}).get("role") == ROLE
        ]
        if not waiting:
            return False
        last = waiting[-1]
        at, job = self._asked
        if job is None or job.job_id != last.job_id or time.monotonic() - at > _ASK_EVERY_S:
            assert last.job_id is not None
            try:
                found = scheduler(last.scheduler).ours({last.job_id: last.sent})[0].get(last.job_id)
            except (SchedulerDown, HpcAgentError):
                found = None  # not where the scheduler can be asked: nothing is known of it
            job = found or Job(last.job_id, "failed")
            self._asked = time.monotonic(), job
        return not job.over

    def _left(self) -> str:
        root = self.folder.root
        begun = "" if self.state.sessions else " (it was never begun)"
        jobs = any(entry.ended is None for entry in self._known.values())
        reap = f" `hpcagent reap {root}` ends the jobs that may be left." if jobs else ""
        return (
            f"not finished, and no coordinator is at it{begun}, as far as this machine can tell. "
            f"It goes on with {going_on(load_run(root, to_read=True), root)}.{reap}"
        )


class _Tail:
    """What was added to a journal since the last look."""

    def __init__(self, path: Path) -> None:
        self._path, self._at = path, 0

    def read(self) -> Iterator[dict[str, Any]]:
        with self._path.open("rb") as file:
            file.seek(self._at)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._at += len(line)
                yield event_in(line) or {"event": "damaged" if line.strip() else "blank"}
