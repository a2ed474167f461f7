"""Runs that share MPI launches: handed out to ensembles, and their answers taken in while those go on."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import os
import sys
import threading
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcagent.apps.base import App
from hpcagent.apps.ensemble import ANSWERS, MORE, execute_ensemble
from hpcagent.apps.hooks import LAMMPS
from hpcagent.apps.lines import Lines, new_lines
from hpcagent.apps.ranks.group import MPI4PY
from hpcagent.campaign.ensemble_table import Ensemble, refuse_ensemble
from hpcagent.campaign.launch_costs import LaunchCost
from hpcagent.errors import AppFailed, BadInput, SiteFailed
from hpcagent.model.contract import Resources
from hpcagent.model.failures import MOST_LOST
from hpcagent.model.records import Cost, Manifest
from hpcagent.science.lammps.executable import is_another
from hpcagent.sites.ended import failure_of
from hpcagent.sites.several import Sites
from hpcagent.sites.site import Site
from hpcagent.sites.workers.fair_share import Turn

__all__ = ["Ensembles", "refuse_site"]

_LOOK_S = 1.0
_END_S = 3.0


def refuse_site(site: Site, app: App) -> None:
    """Raise `BadInput` where no MPI launch can be shared by runs of an app."""
    if isinstance(site, Sites):
        raise BadInput(
            f"mode 'ensemble' is for one site: runs of {site.profile.name} are given to one of several when there "
            "is room, one by one. Choose one --site, or leave the mode out.",
            value=site.profile.name,
        )
    if site.profile.remote:
        raise BadInput(
            f"mode 'ensemble' is not for Globus Compute endpoints ({site.profile.name}), which start each run "
            'in a process of its own; leave the mode out (settings.mode = "executable").',
            value=site.profile.name,
        )
    if app.function == LAMMPS:
        _refuse_other_lammps(site)


def _refuse_no_mpi4py(site: Site, app: App, launch: Resources) -> None:
    """Refuse a site on this machine whose ranks, in this Python, have no mpi4py.

    Others are asked by their worker, before its first launch.
    """
    alone = launch.nodes * launch.ranks_per_node == 1 and not app.mpi
    if alone or importlib.util.find_spec("mpi4py") is not None:
        return
    profile = site.profile
    if profile.batch or any(one.python or one.worker_init for one in profile.executors.values()):
        return
    raise BadInput(
        f"mode 'ensemble' needs mpi4py, which {sys.executable} has not got: {MPI4PY}. Or leave the mode out.",
        value=profile.name,
    )


def _refuse_other_lammps(site: Site) -> None:
    """Refuse a LAMMPS that cannot be the package's; what only a worker can see is refused there."""
    profile = site.profile
    about = site.about["apps"].get("lammps") or {}
    where, words = f"[apps.lammps] command of the site {profile.name}", list(about.get("command") or ())
    if not words:
        where = "HPCAGENT_LAMMPS"
        words = (profile.env.get(where) or ("" if profile.batch else os.environ.get(where, ""))).split()
    if words and is_another(words):
        raise BadInput(
            f"mode 'ensemble': LAMMPS runs there as the library of the package `lammps`; {where} names "
            f'another: {" ".join(words)}. Drop it for this campaign, or take mode = "executable".',
            value=words[0],
        )


@dataclass
class _Flying:
    """An ensemble that was sent.

    Attributes:
        folder: Its files.
        shape: Resources of its runs.
        runs: Those without an answer yet.
        begun: Those that a slot has taken.
        read: Bytes of its answers that were read.
        task: What the worker gives in the end.
        cost: Its account.
    """

    folder: Path
    shape: Resources
    runs: dict[str, Manifest]
    slots: int
    plain: bool
    cost: LaunchCost
    begun: set[str] = field(default_factory=set)
    read: int = 0
    task: Future[Any] | None = None
    metrics: dict[str, Mapping[str, float]] = field(default_factory=dict)
    units: dict[str, str] = field(default_factory=dict)
    more: Lines | None = None

    def tell(self, line: Mapping[str, Any]) -> None:
        """Tell the worker something; it reads it within a second, where there is room for it."""
        if self.more is None:
            self.more = Lines(self.folder / MORE)
        self.more.add(line)

    def close(self) -> None:
        """Release its files."""
        if self.more is not None:
            self.more.close()
            self.more = None


class Ensembles:
    """Hands runs out to launches, as many as go on the site at a time.

    All but the answers is used by the one thread of the loop.

    Args:
        app: What runs.
        site: Where.
        turn: The campaign's turn among those that share the site.
        root: The run directory.
        table: How large a launch is.
        order: What is sent of a run.
        ended: Called, from another thread, with a run and the future of its answer.
        wake: Called, from another thread, when `go` has something to do.
        tell: Called, from another thread, with a sentence that the campaign should know.
        wants_s: Execution id -> time of a block that the run needs, where that is known.
        whole: Whether a launch has all its slots even where fewer runs wait: others will come.

    Raises:
        BadInput: The site or the app cannot have ensembles.
    """

    def __init__(
        self,
        app: App,
        site: Site,
        turn: Turn,
        root: Path,
        *,
        table: Ensemble | None,
        order: Callable[[Manifest], dict[str, Any]],
        ended: Callable[[Manifest, Future[Any]], None],
        wake: Callable[[], None],
        tell: Callable[[str], None],
        wants_s: Mapping[str, float],
        whole: bool,
    ) -> None:
        refuse_ensemble(app)
        refuse_site(site, app)
        self._app, self._site, self._turn, self._root = app, site, turn, root
        self._table = table or Ensemble()
        self._dropped = False
        self._order, self._ended, self._wake, self._tell = order, ended, wake, tell
        self._wants_s, self._whole = wants_s, whole
        self._waiting: deque[Manifest] = deque()
        self._back: deque[Manifest] = deque()
        self._flying: list[_Flying] = []
        self._over: list[_Flying] = []
        self._lost: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._news = threading.Event()
        self._thread: threading.Thread | None = None
        self._stopped = False
        launch, _ = self._launch(app.contract.resources)
        _refuse_no_mpi4py(site, app, launch)

    def add(self, manifests: Sequence[Manifest], *, again: bool = False) -> None:
        """Take runs; `go` sends them."""
        (self._waiting.extendleft if again else self._waiting.extend)(manifests)

    def drop(self, costs: Mapping[str, Cost]) -> None:
        """Begin no more runs of what was sent, and end those in flight: the budget is used up.

        Args:
            costs: Execution id -> what a run in flight is booked.
        """
        self._waiting.clear()
        self._dropped = True
        with self._lock:
            for one in self._flying:
                for name in one.runs:
                    one.cost.of_runs += costs.get(name, Cost()).node_hours
                one.runs.clear()  # what they still answer comes too late
                try:
                    one.tell({"drop": True})
                except OSError as error:
                    self._tell(f"The ensemble {one.folder.name} cannot be ended: {error}. What it runs goes on.")

    def unbooked(self, taken: Mapping[str, float]) -> float:
        """Node-hours that launches have taken beside their runs, and that no event has yet.

        Args:
            taken: Execution id -> node-hours so far, of runs in flight.
        """
        with self._lock:
            return sum(
                one.cost.unbooked(sum(taken.get(name, 0.0) for name in one.runs))
                for one in (*self._flying, *self._over)
            )

    def book(self, *, settled: bool = False) -> list[dict[str, Any]]:
        """Events of what launches have taken beside their runs, of those that are over.

        Args:
            settled: Also of those that have no run left, which are let come to their end first. Not of one whose
                runs go on where the campaign is interrupted: these are in nobody's account either.
        """
        if settled:
            with self._lock:
                tasks = [one.task for one in self._flying if one.task is not None and not one.runs]
            wait(tasks, _END_S)
        with self._lock:
            done, self._over = self._over, []
            if settled:
                ending = [one for one in self._flying if not one.runs]
                done = [*done, *ending]
                for one in ending:
                    for line in self._said(one):
                        one.cost.hear(line.get("launch"))
            events = [one.cost.event(one.folder.name) for one in done]
        return [event for event in events if event is not None]

    def stop(self) -> None:
        """Look at no answers any more."""
        self._stopped = True
        self._news.set()
        if self._thread is not None:
            self._thread.join(5.0)
        for one in self._flying:  # the campaign has all its results, or is interrupted
            self._close(one)

    def go(self) -> None:
        """Send what waits: in new launches where there is room for some, else to those that go on."""
        while self._back:
            self._waiting.appendleft(self._back.popleft())
        while self._waiting:
            shape = self._waiting[0].resources
            alike = [m for m in self._waiting if m.resources == shape]
            launch, slots = self._launch(shape)
            with self._lock:
                room = self._site.workers_for(launch) - len(self._flying)
                going = [f for f in self._flying if f.shape == shape and f.plain and not _over(f)]
            if room <= 0:
                if going:
                    self._gone(self._feed(going, alike))
                    continue
                return  # the next launch that ends makes room
            share = alike[: max(1, math.ceil(len(alike) / room))]
            self._gone(share)
            self._send(share, launch, slots if self._whole else min(slots, len(share)))

    def _gone(self, manifests: Sequence[Manifest]) -> None:
        ids = {m.execution_id for m in manifests}
        self._waiting = deque(m for m in self._waiting if m.execution_id not in ids)

    def _launch(self, shape: Resources) -> tuple[Resources, int]:
        nodes, cores = self._site.largest(shape)
        launch, slots = self._table.launch(shape, nodes=nodes, cores=cores)
        self._site.place(launch)
        return launch, slots

    def _send(self, manifests: Sequence[Manifest], launch: Resources, slots: int) -> None:
        shape = manifests[0].resources
        per_run = shape.nodes * shape.ranks_per_node
        if slots * per_run < launch.nodes * launch.ranks_per_node:
            nodes = max(
                shape.nodes, math.ceil(launch.nodes * slots * per_run / (launch.nodes * launch.ranks_per_node))
            )
            per_node = -(-slots * per_run // nodes)
            if per_node * nodes != slots * per_run:  # as many on each node: some slots stay idle
                slots, nodes = launch.nodes * launch.ranks_per_node // per_run, launch.nodes
                per_node = launch.ranks_per_node
            launch = launch.model_copy(update={"nodes": nodes, "ranks_per_node": per_node})
        orders = [self._order(m) for m in manifests]
        name = f"{time.strftime('%Y%m%dT%H%M%S')}-{uuid.uuid4().hex[:6]}"
        flying = _Flying(
            self._root / "ensembles" / name,
            shape,
            {m.execution_id: m for m in manifests},
            slots,
            all(isinstance(order["function"], str) for order in orders),
            LaunchCost.of(launch, self._site.about.get("node_cores")),
        )
        flying.folder.mkdir(0o775, parents=True)
        request = {
            "orders": orders,
            "folder": str(flying.folder.absolute()),
            "resources": launch.model_dump(mode="json"),
            "slots": slots,
            "ranks": per_run,
            "site": dict(self._site.about),
        }
        expected = sum(m.estimated_runtime_s or 0.0 for m in manifests) / slots
        label, needs = self._site.place(launch, estimated_runtime_s=expected or None)
        wants = max((self._wants_s.get(m.execution_id, 0.0) for m in manifests), default=0.0)
        if wants:
            needs = {**needs, "walltime_s": max(wants, needs.get("walltime_s", 0.0))}
        turn, runs = self._turn, len(manifests)
        priority = turn.next(expected or float(runs), runs=runs)
        flying.task = self._site.submit(execute_ensemble, request, executor=label, needs=needs, priority=priority)
        with self._lock:
            self._flying.append(flying)
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="ensembles", daemon=True)
            self._thread.start()

        def done(_: Future[Any]) -> None:
            turn.back(priority, runs=runs)
            self._news.set()

        flying.task.add_done_callback(done)

    def _feed(self, going: Sequence[_Flying], manifests: Sequence[Manifest]) -> list[Manifest]:
        """Give runs to ensembles that go on; returns those that were given."""
        given = []
        for manifest in manifests:
            one = min(going, key=lambda f: len(f.runs) / f.slots)
            order = self._order(manifest)
            with self._lock:
                if one not in self._flying:  # it has ended this moment
                    break
                one.tell({"order": order})
                one.runs[manifest.execution_id] = manifest
                one.begun.discard(manifest.execution_id)
            given.append(manifest)
        return given

    # -- answers ------------------------------------------------------------------------------

    def _watch(self) -> None:
        try:
            self._follow()
        except Exception as error:  # nobody would take in an answer any more: who waits for them is to hear of it
            with self._lock:
                left = [manifest for one in self._flying for manifest in one.runs.values()]
            for manifest in left:
                lost: Future[Any] = Future()
                lost.set_exception(SiteFailed(f"What an ensemble answers cannot be followed: {error!r}."))
                self._ended(manifest, lost)

    def _follow(self) -> None:
        while not self._stopped:
            self._news.wait(_LOOK_S)
            self._news.clear()
            with self._lock:
                flying = list(self._flying)
            for one in flying:
                over = _over(one)
                with self._lock:
                    answers = self._grown(one)
                    if over:
                        answers += self._rest(one)
                        self._flying.remove(one)
                        self._over.append(one)
                for manifest, answer in answers:
                    self._ended(manifest, answer)
                if over:
                    self._close(one)
                    self._wake()

    def _grown(self, one: _Flying) -> list[tuple[Manifest, Future[Any]]]:
        if one.more is not None:
            one.more.flush()
        found: list[tuple[Manifest, Future[Any]]] = []
        for line in self._said(one):
            if "begun" in line:
                one.begun.add(str(line["begun"]))
            elif "launch" in line:
                one.cost.hear(line["launch"])
            elif "late" in line:
                self._tell(f"The ensemble {one.folder.name}: {line['late']}")
            else:
                found += self._answer(one, str(line.get("execution_id")), line.get("answer"))
        return found

    def _said(self, one: _Flying) -> list[dict[str, Any]]:
        said: list[dict[str, Any]] = []
        # What is missing, also of a damaged line, comes with the task's own answer.
        with contextlib.suppress(OSError):
            said, one.read = new_lines(one.folder / ANSWERS, one.read)
        return said

    def _answer(self, one: _Flying, name: Any, answer: Any) -> list[tuple[Manifest, Future[Any]]]:
        manifest = one.runs.pop(name, None)
        if manifest is None or not isinstance(answer, dict):
            return []
        one.cost.pay(answer)
        # Whether it is a result is asked where it is recorded; one that is none must not keep others from there.
        metrics, units = answer.get("metrics"), answer.get("units")
        one.metrics[name] = metrics if isinstance(metrics, dict) else {}
        one.units.update(units if isinstance(units, dict) else {})
        future: Future[Any] = Future()
        future.set_result(answer)
        return [(manifest, future)]

    def _rest(self, one: _Flying) -> list[tuple[Manifest, Future[Any]]]:
        """What an ensemble that has ended leaves: runs that have not begun go to another, others are lost."""
        assert one.task is not None
        error: BaseException | None = SiteFailed(f"The ensemble {one.folder.name} was cancelled.")
        if not one.task.cancelled():
            error = _of_the_launch(one.folder.name, one.task.exception())
        found: list[tuple[Manifest, Future[Any]]] = []
        if error is None:
            for name, answer in one.task.result():
                found += self._answer(one, name, answer)
        again = []
        for name, manifest in one.runs.items():
            # Else the time of its block was over after others, which says nothing of this one.
            if error is not None or not (one.begun or one.metrics):
                self._lost[name] += 1
            hopeless = isinstance(error, SiteFailed) or not (one.begun or error is None)
            if name not in one.begun and not hopeless and not self._dropped and self._lost[name] <= MOST_LOST:
                again.append(manifest)
                continue
            future: Future[Any] = Future()
            future.set_exception(error or SiteFailed(f"The ensemble {one.folder.name} ended without this run."))
            found.append((manifest, future))
        one.runs.clear()
        self._back.extend(reversed(again))
        return found

    def _close(self, one: _Flying) -> None:
        """Release the files of an ensemble that has ended, and gather its metrics."""
        one.close()
        try:
            _write_metrics(one)
        except (OSError, ValueError, RuntimeError) as error:  # h5py's, too
            self._tell(
                f"The metrics of the ensemble {one.folder.name} are not gathered in its metrics.h5: {error}. Each "
                "run's result has its own."
            )


def _of_the_launch(name: str, error: BaseException | None) -> BaseException | None:
    """What has ended a launch, as its runs are told: an error without a name is the launch's, not theirs."""
    if error is None or isinstance(error, (AppFailed, OSError, MemoryError)) or failure_of(error)[0] != "contract":
        return error
    return AppFailed(
        f"the launch {name} has ended by an error of what drives it, not of a run: {error!r}",
        kind="infrastructure",
        name="LaunchFailed",
    )


def _write_metrics(one: _Flying) -> None:
    """The metrics of an ensemble in one file, with a row for each of its runs that has some.

    Raises:
        OSError, ValueError, RuntimeError: It cannot be written; the journal has them all.
    """
    names = sorted({name for metrics in one.metrics.values() for name in metrics})
    if not names:
        return
    from hpcagent.store.gathered import open_gathered  # numpy and h5py, which other campaigns do not wait for

    rows = list(one.metrics.items())
    units = {name: one.units.get(name, "1") for name in names}
    file = open_gathered(one.folder / "metrics.h5", units, len(rows), ids=[name for name, _ in rows])
    try:
        for index, (_, metrics) in enumerate(rows):
            file.put(index, metrics)
    finally:
        file.close()


def _over(one: _Flying) -> bool:
    return one.task is not None and one.task.done()
