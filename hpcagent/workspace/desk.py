"""One site of a workspace: opened when it is first needed, kept busy, and never given more than it can do."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hpcagent.apps.base import App
from hpcagent.apps.worker import execute
from hpcagent.campaign.launch_costs import LaunchCost
from hpcagent.errors import BadInput, HpcAgentError
from hpcagent.model.failures import meaning
from hpcagent.model.records import Cost, Failure, Manifest, Result
from hpcagent.sites.ended import failure_of
from hpcagent.sites.opening import open_site
from hpcagent.sites.site import Site
from hpcagent.workspace.chain_desk import ChainOnSite

__all__ = ["Desk", "Job", "failed"]

# So many runs wait at the site for each that goes: a worker has its next one before it has ended the last.
AHEAD = 1

# A site that could not be opened is tried again after so long.
AGAIN_S = 10.0


@dataclass(slots=True)
class Job:
    """A run on its way.

    Attributes:
        app: What runs.
        manifest: As it was asked for.
        inputs: Results that it takes as input, as plain data.
        ended: Called once with its result, and the node-hours of attempts that the machine has lost.
        began: Called when it is handed to the site.
        owner: Whose turn it takes.
        reference: The app by a name that another process finds.
        settings: What of the app is set otherwise than it is found.
        code: The app's digest when the run was asked for.
        gone: It was cancelled.
        futures: What was sent to the site for it.
        chain: Its inner runs, where it is a chain.
        lost_node_hours: What attempts have taken that the machine has lost.
        handed: Whether the process that keeps the site has it.
        losses: How often that process has ended with it.
    """

    app: App
    manifest: Manifest
    inputs: Sequence[Mapping[str, Any]]
    ended: Callable[[Result, float], None]
    began: Callable[[], None]
    owner: str = ""
    reference: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    code: str = ""
    gone: bool = False
    futures: list[Future[Any]] = field(default_factory=list)
    chain: ChainOnSite | None = None
    lost_node_hours: float = 0.0
    handed: bool = False
    losses: int = 0


class Desk:
    """Hands runs to one site, in turn among their owners.

    Args:
        profile: The site's profile.
        folder: Where its ledger and Parsl's logs are.
        work: The folder with a directory for each execution id.
        retries: How often a run is started again after an infrastructure failure.
        tell: Is given a sentence of what happens to the site.
    """

    def __init__(
        self, profile: str, folder: Path, work: Path, *, retries: int, tell: Callable[[str], None]
    ) -> None:
        self._profile, self._folder, self._work = profile, folder, work
        self._retries, self._tell = retries, tell
        self._lock = threading.Condition()
        self._waiting: dict[str, deque[Job]] = {}  # by owner, in the order of their turns
        self._going: dict[str, Job] = {}
        self._site: Site | None = None
        self._closed = False
        self._thread: threading.Thread | None = None

    def add(self, job: Job) -> None:
        """Have a run done; its `ended` is called in another thread."""
        with self._lock:
            self._waiting.setdefault(job.owner, deque()).append(job)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work_on, name=f"desk {self._profile}", daemon=True)
                self._thread.start()
            self._lock.notify_all()

    @property
    def busy(self) -> int:
        """Runs that wait or go."""
        with self._lock:
            return len(self._going) + sum(map(len, self._waiting.values()))

    def cancel(self, execution_id: str) -> str:
        """Keep a run from being done, or end it; say how far that went: `waiting`, `ended`, `left`."""
        with self._lock:
            for queue in self._waiting.values():
                for job in queue:
                    if job.manifest.execution_id == execution_id:
                        queue.remove(job)
                        return "waiting"
            going = self._going.get(execution_id)
            if going is None:
                return "left"
            going.gone = True
            site = self._site
        if going.chain is not None:
            going.chain.gone = True
        open_ones = [future for future in going.futures if not future.done()]
        if going.chain is not None and not open_ones:
            return "ended"  # its function ends at the next run that it asks for
        return "ended" if site is not None and site.cancel([execution_id], open_ones) else "left"

    def close(self, *, end: bool = True) -> None:
        """End what goes and close the site; nobody is told of what had not ended.

        Args:
            end: As of `Kept`; here nothing can go on.
        """
        with self._lock:
            self._closed = True
            self._lock.notify_all()
            thread, site = self._thread, self._site
        if site is not None:
            site.close()
        if thread is not None:
            thread.join(5.0)

    # -- the thread ---------------------------------------------------------------------------

    def _work_on(self) -> None:
        while True:
            with self._lock:
                while not self._closed and not any(self._waiting.values()):
                    self._lock.wait()
                if self._closed:
                    return
            try:
                site = self._opened()
            except BadInput as error:  # of the profile: it will not open later either
                for lost in self._all_waiting():
                    self._ended(lost, failed(lost.manifest, error))
                continue
            except HpcAgentError as error:
                self._tell(f"the site {self._profile} cannot be opened, it is tried again: {error.message}")
                with self._lock:
                    self._lock.wait(AGAIN_S)
                continue
            with self._lock:
                job = self._next(site)
                if job is None:
                    self._lock.wait(1.0)
                    continue
                self._going[job.manifest.execution_id] = job
            try:
                self._send(site, job)
            except Exception as error:  # it costs this run, and no other
                self._ended(job, failed(job.manifest, error))

    def _all_waiting(self) -> list[Job]:
        with self._lock:
            found = [job for queue in self._waiting.values() for job in queue]
            self._waiting.clear()
            return found

    def _opened(self) -> Site:
        if self._site is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            site = open_site(self._profile, run_dir=self._folder, private=True)
            with self._lock:
                self._site = site
                if self._closed:
                    site.close()
        assert self._site is not None
        for sentence in self._site.news():
            self._tell(sentence)
        return self._site

    def _next(self, site: Site) -> Job | None:
        """The next run whose site has room for it: owners take turns."""
        for owner in list(self._waiting):
            queue = self._waiting[owner]
            if not queue:
                del self._waiting[owner]
                continue
            job = queue[0]
            if not job.app.chain and self._full(site, job):
                continue
            queue.popleft()
            self._waiting[owner] = self._waiting.pop(owner)  # to the end
            return job
        return None

    def _full(self, site: Site, job: Job) -> bool:
        try:
            return len(self._going) >= (1 + AHEAD) * site.workers_for(job.manifest.resources)
        except BadInput:  # it has no place for it, which is said when it is sent
            return False

    def _sent(self, site: Site, app: App, manifest: Manifest, inputs: Sequence[Any], attempt: int) -> Future[Any]:
        label, needs = site.place(manifest.resources, estimated_runtime_s=manifest.estimated_runtime_s)
        order = app.order(manifest, work=self._work, site=site.about, attempt=attempt)
        return site.submit(execute, order, *inputs, executor=label, needs=needs)

    def _run(self, site: Site, job: Job, app: App, manifest: Manifest, inputs: Sequence[Any]) -> Future[Result]:
        """Have one run done, again where the machine has lost it; the future has its result, also a failed one."""
        whole: Future[Result] = Future()
        tries = _Tries(self._retries)

        def send() -> None:
            try:
                future = self._sent(site, app, manifest, inputs, tries.attempt)
            except HpcAgentError as error:
                whole.set_result(failed(manifest, error))
                return
            job.futures = [*(one for one in job.futures if not one.done()), future]
            future.add_done_callback(back)

        def back(done: Future[Any]) -> None:
            result = _result(manifest, done)
            if result.failure is not None and result.cost.wall_s == 0.0:
                result = result.model_copy(update={"cost": self._taken(site, manifest)})
            if not job.gone and not self._closed and tries.again(result):
                job.lost_node_hours += result.cost.node_hours
                send()
            else:
                whole.set_result(result)

        send()
        return whole

    def _send(self, site: Site, job: Job) -> None:
        job.began()
        if job.app.chain:
            chain = ChainOnSite(self._work, site.about, partial(self._run, site, job))
            job.chain = chain
            inputs = [Result.model_validate(one) for one in job.inputs]
            chain.start(job.app, job.manifest, inputs, lambda result: self._ended(job, result))
            return
        whole = self._run(site, job, job.app, job.manifest, job.inputs)
        whole.add_done_callback(lambda done: self._ended(job, done.result()))

    def _taken(self, site: Site, manifest: Manifest) -> Cost:
        """What a run took whose worker was lost or ended, by when its folder's `manifest.json` was written."""
        try:
            began = (self._work / manifest.execution_id / "manifest.json").stat().st_mtime
        except OSError:  # it had not begun
            return Cost()
        wall_s = max(0.0, time.time() - began)
        charged = LaunchCost.of(manifest.resources, site.about["node_cores"]).nodes
        return Cost(wall_s=wall_s, node_hours=charged * wall_s / 3600)

    def _ended(self, job: Job, result: Result) -> None:
        with self._lock:
            self._going.pop(job.manifest.execution_id, None)
            closed = self._closed
            self._lock.notify_all()
        if not closed:
            job.ended(result, job.lost_node_hours)


class _Tries:
    """How often a run may be started again.

    Args:
        most: So many failures that count, beyond which it stays failed.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._charged = 0
        self.attempt = 1

    def again(self, result: Result) -> bool:
        """Whether to start it once more after this result."""
        failure = result.failure
        if failure is None:
            return False
        what = meaning(failure.kind, failure.name, failure.repair)
        self._charged += what.charged != "no"
        if not what.again or self._charged > self._most or self.attempt > 3 * (self._most + 1):
            return False
        self.attempt += 1
        return True


def _result(manifest: Manifest, done: Future[Any]) -> Result:
    """What has come back, as a result; an error is a failed one."""
    error = done.exception()
    if error is not None:
        return failed(manifest, error)
    fields = done.result()
    if isinstance(fields, Result):
        return fields
    try:
        return Result.model_validate({"manifest": manifest} | dict(fields))
    except ValidationError as wrong:
        return failed(manifest, wrong)


def failed(manifest: Manifest, error: BaseException) -> Result:
    """A run that has failed with this error, as its result."""
    kind, name, message = failure_of(error)
    now = time.time()
    failure = Failure.model_validate({"kind": kind, "name": name, "message": message})
    return Result(manifest=manifest, status="FAILED", failure=failure, started_at=now, ended_at=now)
