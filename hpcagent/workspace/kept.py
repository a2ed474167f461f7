"""A site as the service has it: jobs are handed to the process that keeps the site, which outlives the service."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hpcagent.elsewhere.detach import spawned
from hpcagent.errors import HpcAgentError, SiteFailed
from hpcagent.model.base import read_json
from hpcagent.model.records import Result
from hpcagent.store.files import make_folder
from hpcagent.workspace.afterwards import AFTERWARDS
from hpcagent.workspace.desk import Job, failed
from hpcagent.workspace.folder import KEEPER
from hpcagent.workspace.keeper import OTHER
from hpcagent.workspace.sockets import Lines, connect

__all__ = ["Kept"]

STARTS_WITHIN_S = 60.0
# After its keeper has ended under it, or could not be started, it is tried again after so long.
AGAIN_S = 2.0
# A keeper says at once how far a cancellation goes.
HOW_S = 10.0
IDLE_S = 60.0
# Its keeper answers each ping; one that does not (stopped, hung) is told of, and ended in the end.
SILENT_S = 30.0
DEAD_S = 180.0
PARTS_WITHIN_S = 2.0


class Kept:
    """Hands runs to a site's keeper; the same from outside as `Desk`.

    Args:
        profile: The site's profile.
        folder: `sites/NAME` of the workspace.
        retries: How often a run is started again after an infrastructure failure.
        tell: Is given a sentence of what happens to the site.
        path: Folders of the modules that its runs are made of.
    """

    def __init__(
        self,
        profile: str,
        folder: Path,
        *,
        retries: int,
        tell: Callable[[str], None],
        path: Sequence[str] = (),
    ) -> None:
        self._profile, self._folder, self._retries, self._tell = profile, folder, retries, tell
        self._path = tuple(path)
        self._idle_since = self._heard_at = time.monotonic()
        self._told_silent = False
        self._said: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._unsent: list[Job | dict[str, Any]] = []
        self._writer: threading.Thread | None = None
        self._next: dict[str, Job] = {}
        self._turn = threading.Condition(threading.RLock())
        self._jobs: dict[str, Job] = {}
        self._how: dict[str, str] = {}
        self._lines: Lines | None = None
        self._closed = False
        self._thread: threading.Thread | None = None

    def add(self, job: Job) -> None:
        """Have a run done; its `ended` is called in another thread."""
        with self._turn:
            before = self._jobs.get(job.manifest.execution_id)
            if before is not None and before.gone:  # it is being ended: its end is not that of this one
                self._next[job.manifest.execution_id] = job
                return
            self._jobs[job.manifest.execution_id] = job
            if self._thread is None:
                self._thread = threading.Thread(target=self._work_on, name=f"site {self._profile}", daemon=True)
                self._thread.start()
            self._send_job(job)

    @property
    def busy(self) -> int:
        """Runs that wait or go."""
        with self._turn:
            return len(self._jobs) + len(self._next)

    def cancel(self, execution_id: str) -> str:
        """Keep a run from being done, or end it; say how far that went: `waiting`, `ended`, `left`.

        What one that had begun has taken is still told by its `ended`.
        """
        with self._turn:
            if self._next.pop(execution_id, None) is not None:
                return "waiting"
            job = self._jobs.get(execution_id)
            if job is None:
                return "left"
            job.gone = True
            self._send(do="cancel", run=execution_id)
            until = time.monotonic() + HOW_S
            while execution_id not in self._how and self._lines is not None:
                left = until - time.monotonic()
                if left <= 0 or not self._turn.wait(left):
                    break
            far = self._how.pop(execution_id, "left" if self._lines is not None else "waiting")
            if far == "waiting":  # nothing will be heard of it
                self._over(execution_id)
            return far

    def look(self) -> None:
        """Leave a site of somebody's own modules that has long had nothing to do; end a keeper that is silent."""
        now = time.monotonic()
        with self._turn:
            if self._jobs or not self._path:
                self._idle_since = now
            elif now - self._idle_since > IDLE_S and self._lines is not None:
                self._part(end=False)
            if self._lines is None or not self._jobs:
                self._heard_at = now
                return
            self._send(do="ping")
            silent_s = now - self._heard_at
            told, self._told_silent = self._told_silent, silent_s > SILENT_S
        if silent_s > SILENT_S and not told:
            self._tell(
                f"the process that keeps the site {self._profile} has not answered for {silent_s:.0f} s; after "
                f"{DEAD_S:g} s it is ended, and another takes its runs"
            )
        if silent_s > DEAD_S:
            self._end_silent()

    def _end_silent(self) -> None:
        with contextlib.suppress(HpcAgentError, OSError, KeyError, TypeError, ValueError):
            os.kill(int(read_json(self._folder / KEEPER)["pid"]), signal.SIGKILL)
        with self._turn:
            if self._lines is not None:
                self._lines.close()

    def close(self, *, end: bool = False) -> None:
        """Leave the site; what goes there goes on without this process, or is ended with `end`."""
        with self._turn:
            self._closed = True
            self._part(end=end)
            self._turn.notify_all()
        if self._writer is not None:
            self._writer.join(PARTS_WITHIN_S)

    def _part(self, *, end: bool) -> None:
        """Say that nothing more will be asked; the connection is closed once that is said."""
        self._send(do="leave", end=end)
        self._said.put(None)
        self._lines = None

    def _over(self, execution_id: str) -> Job | None:
        """A job has ended; the same work that was asked for again after it was cancelled comes next."""
        job = self._jobs.pop(execution_id, None)
        again = self._next.pop(execution_id, None)
        if again is not None:
            self._jobs[execution_id] = again
            self._send_job(again)
        return job

    # -- the connection -----------------------------------------------------------------------

    def _work_on(self) -> None:
        """Be connected while there is something to do; hand on what is said."""
        told = ""
        while True:
            with self._turn:
                while not self._jobs and not self._closed:
                    self._turn.wait(1.0)
                if self._closed:
                    return
            try:
                lines = self._connected()
            except HpcAgentError as error:
                if error.message != told:
                    told = error.message
                    self._tell(told)
                time.sleep(AGAIN_S)
                continue
            with self._turn:
                if self._closed:
                    lines.close()
                    return
                self._lines, self._said, self._heard_at = lines, queue.SimpleQueue(), time.monotonic()
                self._unsent.clear()
                self._writer = threading.Thread(target=self._write, args=(lines, self._said), daemon=True)
                self._writer.start()
                self._jobs = {name: job for name, job in self._jobs.items() if not job.gone} | self._next
                self._next = {}
                self._send(do="wanted", runs=list(self._jobs))
                for job in self._jobs.values():
                    self._send_job(job)
            with contextlib.suppress(OSError, ValueError):
                while line := lines.read():
                    self._heard(json.loads(line))
            with self._turn:
                lost = self._lines is lines
                if lost:
                    self._said.put(None)
                    self._lines = None
                self._turn.notify_all()
                if self._closed:
                    return
                hopeless = self._lost() if lost else []
                waiting = len(self._jobs)
            for job in hopeless:
                job.ended(failed(job.manifest, SiteFailed(self._why_hopeless())), 0.0)
            if lost and waiting:
                self._tell(
                    f"the process that keeps the site {self._profile} has ended (see {self._log}); another is "
                    f"started, and {waiting} run(s) that had not ended are handed to it"
                )

    def _lost(self) -> list[Job]:
        """The keeper has ended with all that goes: those that it has often ended with are not handed on."""
        for job in self._jobs.values():
            job.losses += job.handed
            job.handed = False
        hopeless = [job for job in self._jobs.values() if job.losses > self._retries + 1]
        for job in hopeless:
            del self._jobs[job.manifest.execution_id]
        return hopeless

    def _why_hopeless(self) -> str:
        return (
            f"the process that keeps the site {self._profile} has ended {self._retries + 2} times with this run; "
            f"see {self._log}."
        )

    def _write(self, lines: Lines, said: queue.SimpleQueue[dict[str, Any] | None]) -> None:
        """Send what is asked, in a thread of its own: a keeper that does not read holds up nobody."""
        with contextlib.suppress(OSError, ValueError):
            while (one := said.get()) is not None:
                lines.write(one)
        lines.close()

    @property
    def _log(self) -> Path:
        return self._folder / "keeper.log"

    def _connected(self) -> Lines:
        """A connection to the keeper, which is started if it is not there.

        Raises:
            HpcAgentError: It does not start, or runs on another machine.
        """
        make_folder(self._folder)
        until = time.monotonic() + STARTS_WITHIN_S
        started = None
        while True:
            lines = connect(
                self._folder / KEEPER,
                what=f"the process that keeps the site {self._profile} of {self._folder.parent.parent}",
                do="log in there, or end it there (`hpcagent workspace end --runs`)",
            )
            if lines is not None:
                return lines
            if started is None or started.code == OTHER:  # one that is just ending, or just beginning
                if started is not None:
                    time.sleep(0.1)
                started = spawned(
                    "hpcagent.workspace.keeper",
                    str(self._folder),
                    self._profile,
                    str(self._retries),
                    *self._path,
                    log=self._log,
                )
            elif started.code is not None:
                tail = self._log.read_text(errors="replace").strip().splitlines()[-1:]
                words = "".join(tail) or f"it ended with {started.code}, without a word: is the disk full?"
                raise SiteFailed(f"the process that keeps the site {self._profile} did not start: {words}")
            if time.monotonic() > until or self._closed:
                raise SiteFailed(
                    f"the process that keeps the site {self._profile} has not answered within "
                    f"{STARTS_WITHIN_S:g} s; see {self._log}."
                )
            time.sleep(0.02)

    def _send_job(self, job: Job) -> None:
        job.handed = self._lines is not None
        self._unsent.append(job)
        AFTERWARDS.do(self._send_rest)  # waking others takes as long as the rest of an answer

    def _send(self, **said: Any) -> None:
        self._unsent.append(said)
        self._send_rest()

    def _send_rest(self) -> None:
        """Hand on what is to be said, in its order; without a keeper nothing: jobs are sent once there is one."""
        with self._turn:
            if self._lines is not None:
                for one in self._unsent:
                    self._said.put(_order(one) if isinstance(one, Job) else one)
            self._unsent.clear()

    def _heard(self, said: dict[str, Any]) -> None:
        """Take what is said; what goes wrong with it costs the rest nothing."""
        self._heard_at = time.monotonic()
        try:
            self._take(said)
        except Exception as error:
            self._tell(f"what the site {self._profile} said was not taken: {type(error).__name__}: {error}")

    def _take(self, said: dict[str, Any]) -> None:
        if "pong" in said:
            return
        if "news" in said:
            self._tell(said["news"])
            return
        if "how" in said:
            with self._turn:
                self._how[said["how"]] = said["far"]
                self._turn.notify_all()
            return
        with self._turn:
            job = self._jobs.get(said.get("began") or said["ended"])
            if job is not None and "ended" in said:
                self._over(said["ended"])
        if job is None:
            return
        if "began" in said:
            job.began()
            return
        try:
            result = Result.model_validate(said["result"])
        except ValidationError as wrong:
            result = failed(job.manifest, wrong)
        job.ended(result, float(said["lost_node_hours"]))


def _order(job: Job) -> dict[str, Any]:
    """A job as a keeper takes it."""
    return {
        "do": "run",
        "app": job.reference,
        "settings": dict(job.settings),
        "code": job.code,
        "manifest": job.manifest.model_dump(mode="json"),
        "inputs": list(job.inputs),
        "owner": job.owner,
    }
