"""An app called by hand: a Parsl app on whatever is open."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcagent.apps.chain import ChainRun, identity_of, inner_manifest
from hpcagent.apps.hooks import LAMMPS
from hpcagent.apps.modes import LAMMPS_MODES, MODE
from hpcagent.apps.parts import Part
from hpcagent.apps.structures import Given
from hpcagent.apps.worker import execute_as_result
from hpcagent.errors import NoSite
from hpcagent.model.records import Failure, Manifest, Result
from hpcagent.sites.ended import failure_of
from hpcagent.sites.placed import run_placed
from hpcagent.sites.site import current_dfk, current_site

if TYPE_CHECKING:
    from parsl.dataflow.futures import AppFuture

    from hpcagent.apps.base import App

__all__ = [
    "call",
]


def call(
    app: App, upstream: tuple[Any, ...], params: Mapping[str, Any], *, seed: int, replicate: int
) -> AppFuture | Part:
    """Submit one run to the open site, or to the user's own Parsl configuration.

    The same call twice on one site gives the same future: same work, same directory.

    Raises:
        NoSite: Nothing is open.
        BadInput: A parameter is not allowed, or an input is none that could be one.
    """
    _dfk(app)
    site = current_site()
    manifest = app.manifest(
        params,
        seed=seed,
        replicate=replicate,
        upstream=tuple(map(identity_of, upstream)),
        site=None if site is None else site.about,
    )
    return _started(app, manifest, upstream)


def _dfk(app: App) -> Any:  # parsl.DataFlowKernel
    dfk = current_dfk()
    if dfk is None:
        raise NoSite(
            f"app {app.name!r} was called, but no site is open. Write `with ha.open_site('laptop'):` around "
            "the calls, or load a Parsl configuration of your own with parsl.load(...)."
        )
    return dfk


def _started(app: App, manifest: Manifest, upstream: tuple[Any, ...]) -> AppFuture | Part:
    dfk = _dfk(app)
    # On the DataFlowKernel itself, so that they end with it.
    known: dict[Any, Any] = dfk.__dict__.setdefault("hpcagent_futures", {})
    key = _key(app, manifest)
    if key in known:
        return known[key]
    site = current_site()
    about: dict[str, Any] = {}
    where: Any = "all"
    how: dict[str, Any] = {}
    work = Path(dfk.run_dir).absolute() / "work"
    if site is not None:
        about = site.about
        work = site.work_dir.absolute()
    if app.chain:
        future: Any = _chain_started(app, manifest, upstream, work, about)
        known[key] = future
        return future
    if site is not None:
        label, needs = site.place(manifest.resources, estimated_runtime_s=manifest.estimated_runtime_s)
        where, how = [label], {"parsl_resource_specification": needs}
    order = app.order(manifest, work=work, site=about) | _asked_mode(app)
    future = dfk.submit(
        run_placed,
        app_args=(order, *(u.fields if isinstance(u, Given) else u for u in upstream)),
        executors=where,
        cache=False,
        ignore_for_cache=None,
        app_kwargs=how,
    )
    future.execution_id = manifest.execution_id
    known[key] = future
    return future


def _key(app: App, manifest: Manifest) -> tuple[Any, ...]:
    """What makes two calls one future: the same work on the same resources, started in the same way."""
    asked = manifest.resources
    shape = asked.nodes, asked.ranks_per_node, asked.threads_per_rank, asked.gpus_per_node
    return manifest.execution_id, *shape, *_asked_mode(app).values()


def _asked_mode(app: App) -> dict[str, Any]:
    """The mode of a LAMMPS app: it decides no metric but speeds, so that it is in no execution id."""
    return {"asked_mode": app.settings.get(MODE, LAMMPS_MODES[0])} if app.function == LAMMPS else {}


def _chain_started(
    app: App, manifest: Manifest, upstream: tuple[Any, ...], work: Path, about: Mapping[str, Any]
) -> Part:
    """Run a chain's function in a thread; its inner runs go to Parsl like any other call."""

    def ask(
        inner: App, inputs: tuple[Any, ...], params: Mapping[str, Any], seed: int | None, replicate: int | None
    ) -> Part:
        asked = inner_manifest(manifest, app, inner, inputs, params, seed, replicate, about)
        known = _dfk(inner).__dict__.get("hpcagent_futures", {})
        before = _key(inner, asked) in known
        part = _as_part(asked, _started(inner, asked, inputs))
        part.shared = before
        return part

    running = ChainRun(app, upstream, ask)
    whole = Part(app.name, manifest.execution_id)

    def run() -> None:
        try:
            order = app.order(manifest, work=work, site=about) | {
                "function": running.function,
                "account": running.account,
            }
            whole.set_result(execute_as_result(order))
        except BaseException as error:
            whole.set_exception(error)

    threading.Thread(target=run, name=f"chain {app.name}", daemon=True).start()
    return whole


def _as_part(manifest: Manifest, future: Future[Result]) -> Part:
    """The future of a run, which never has an exception: that is a failed `Result` too."""
    part = Part(manifest.app, manifest.execution_id)

    def take(done: Future[Result]) -> None:
        error = done.exception()
        part.set_result(done.result() if error is None else _lost(manifest, error))

    future.add_done_callback(take)
    return part


def _lost(manifest: Manifest, error: BaseException) -> Result:
    kind, name, message = failure_of(error)
    now = time.time()
    return Result(
        manifest=manifest,
        status="FAILED",
        failure=Failure.model_validate({"kind": kind, "name": name, "message": message}),
        started_at=now,
        ended_at=now,
    )
