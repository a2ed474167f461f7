"""An app called by hand: a Parsl app on whatever is open."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcagent.apps.structures import Given
from hpcagent.apps.worker import execute_as_result
from hpcagent.errors import BadInput, NoSite
from hpcagent.model.records import Result
from hpcagent.sites.site import current_dfk, current_site

if TYPE_CHECKING:
    from parsl.dataflow.futures import AppFuture

    from hpcagent.apps.base import App

__all__ = ["call"]


def call(
    app: App, upstream: tuple[Any, ...], params: Mapping[str, Any], *, seed: int, replicate: int
) -> AppFuture:
    """Submit one run to the open site, or to the user's own Parsl configuration.

    The same call twice on one site gives the same future: same work, same directory.

    Raises:
        NoSite: Nothing is open.
        BadInput: A parameter is not allowed, or an input is none that could be one.
    """
    dfk = current_dfk()
    if dfk is None:
        raise NoSite(
            f"app {app.name!r} was called, but no site is open. Write `with ha.open_site('laptop'):` around "
            "the calls, or load a Parsl configuration of your own with parsl.load(...)."
        )
    manifest = app.manifest(params, seed=seed, replicate=replicate, upstream=tuple(map(_identity, upstream)))
    # On the DataFlowKernel itself, so that they end with it.
    known: dict[str, AppFuture] = dfk.__dict__.setdefault("hpcagent_futures", {})
    if manifest.execution_id in known:
        return known[manifest.execution_id]
    site = current_site()
    about: dict[str, Any] = {}
    where: Any = "all"
    how: dict[str, Any] = {}
    work = Path(dfk.run_dir).absolute() / "work"
    if site is not None:
        about = site.about
        label, needs = site.place(manifest.resources, estimated_runtime_s=manifest.estimated_runtime_s)
        where, how = [label], {"parsl_resource_specification": needs}
        work = site.work_dir.absolute()
    order = app.order(manifest, work=work, site=about)
    upstream = tuple(u.fields if isinstance(u, Given) else u for u in upstream)
    future = dfk.submit(
        run_placed,
        app_args=(order, *upstream),
        executors=where,
        cache=False,
        ignore_for_cache=None,
        app_kwargs=how,
    )
    future.execution_id = manifest.execution_id
    known[manifest.execution_id] = future
    return future


def run_placed(order: Mapping[str, Any], *upstream: Any, parsl_resource_specification: object = None) -> Result:
    """Run an order on a worker. Parsl hands a task's resources to its function as well."""
    result: Result = execute_as_result(order, *upstream)
    return result


def _identity(upstream: Any) -> str:
    if isinstance(upstream, Result):
        return upstream.manifest.execution_id
    if isinstance(upstream, Given):
        return upstream.identity
    identity = getattr(upstream, "execution_id", None)
    if isinstance(upstream, Future) and isinstance(identity, str):
        return identity
    if isinstance(upstream, Future):
        # A future of the user's own Parsl app: its task number is all that is known of it.
        return f"parsl task {getattr(upstream, 'tid', id(upstream))}"
    raise BadInput(
        "an input run is the future of an app, its Result, an ASE Atoms or the path of a structure file; got "
        f"{type(upstream).__name__}.",
        value=upstream,
    )
