"""A site as the service has it: jobs are handed to the process that keeps the site, which outlives the service."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hpcagent.elsewhere.detach import spawned
from hpcagent.errors import HpcAgentError, SiteFailed
from hpcagent.model.records import Result
from hpcagent.store.files import make_folder
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
        self._idle_since = time.monotonic()
        self._turn = threading.Condition(threading.RLock())
        self._jobs: dict[str, Job] = {}
        self._how: dict[str, str] = {}
        self._lines: Lines | None = None
        self._closed = False
        self._thread: threading.Thread | None = None

    def add(self, job: Job) -> None:
        """Have a run done; its `ended` is called in another thread."""
        with self._turn:
            self._jobs[job.manifest.execution_id] = job
            if self._thread is None:
                self._thread = threading.Thread(target=self._work_on, name=f"site {self._profile}", daemon=True)
                self._thread.start()
            self._send_job(job)

    @property
    def busy(self) -> int:
        """Runs that wait or go."""
        with self._turn:
            return len(self._jobs)

    def cancel(self, execution_id: str) -> str:
        """Keep a run from being done, or end it; say how far that went: `waiting`, `ended`, `left`.

        What one that had begun has taken is still told by its `ended`.
        """
        with self._turn:
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
                self._jobs.pop(execution_id, None)
            return far

    def leave_if_idle(self) -> None:
        """Leave a site of modules of somebody's own that has had nothing to do for long."""
        with self._turn:
            if self._jobs or not self._path:
                self._idle_since = time.monotonic()
            elif time.monotonic() - self._idle_since > IDLE_S and self._lines is not None:
                self._send(do="leave", end=False)
                self._lines.close()

    def close(self, *, end: bool = False) -> None:
        """Leave the site; what goes there goes on without this process, or is ended with `end`."""
        with self._turn:
            self._closed = True
            self._send(do="leave", end=end)
            lines, self._lines = self._lines, None
            self._turn.notify_all()
        if lines is not None:
            lines.close()

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
                self._lines = lines
                self._jobs = {name: job for name, job in self._jobs.items() if not job.gone}
                self._send(do="wanted", runs=list(self._jobs))
                for job in self._jobs.values():
                    self._send_job(job)
            with contextlib.suppress(OSError, ValueError):
                while line := lines.read():
                    self._heard(json.loads(line))
            with self._turn:
                lost = self._lines is lines
                self._lines = None
                self._turn.notify_all()
                waiting = len(self._jobs)
                if self._closed:
                    return
            if lost and waiting:
                self._tell(
                    f"the process that keeps the site {self._profile} has ended (see {self._log}); another is "
                    f"started, and {waiting} run(s) that had not ended are handed to it"
                )

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
                raise SiteFailed(f"the process that keeps the site {self._profile} did not start: {''.join(tail)}")
            if time.monotonic() > until or self._closed:
                raise SiteFailed(
                    f"the process that keeps the site {self._profile} has not answered within "
                    f"{STARTS_WITHIN_S:g} s; see {self._log}."
                )
            time.sleep(0.02)

    def _send_job(self, job: Job) -> None:
        self._send(
            do="run",
            app=job.reference,
            settings=dict(job.settings),
            code=job.code,
            manifest=job.manifest.model_dump(mode="json"),
            inputs=list(job.inputs),
            owner=job.owner,
        )

    def _send(self, **said: Any) -> None:
        if self._lines is None:
            return  # it is sent once there is a keeper
        try:
            self._lines.write(said)
        except OSError:
            self._lines = None

    def _heard(self, said: dict[str, Any]) -> None:
        """Take what is said; what goes wrong with it costs the rest nothing."""
        try:
            self._take(said)
        except Exception as error:
            self._tell(f"what the site {self._profile} said was not taken: {type(error).__name__}: {error}")

    def _take(self, said: dict[str, Any]) -> None:
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
                del self._jobs[said["ended"]]
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
