"""An order and its inputs, made ready to travel to an endpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcagent.apps import travel
from hpcagent.errors import BadInput
from hpcagent.sites.endpoint.flight import Call, Run

if TYPE_CHECKING:
    from hpcagent.sites.profile import Profile

__all__ = ["inputs_there", "resources_of", "run_of"]


def run_of(
    order: Mapping[str, Any],
    upstream: Sequence[Any],
    *,
    call: Call,
    index: int,
    profile: Profile,
    mpi: bool,
    priority: float,
) -> Run:
    """The run that an order asks for.

    Args:
        order: From `App.order`.
        upstream: Results, or their fields, of the runs it takes as input.
        call: Who waits for it.
        index: For which place in its answer.
        profile: Of the site.
        mpi: Whether its executor has the MPI engine, which wants nodes and ranks of every task.
        priority: Smaller goes first.

    Raises:
        BadInput: It cannot travel: an input lies elsewhere, a file is gone, a function has no source.
    """
    manifest = order["manifest"]
    packed = travel.pack(order, inputs_there(upstream, profile))
    text = json.dumps(packed.order)
    resources = manifest["resources"]
    return Run(
        call=call,
        index=index,
        manifest=manifest,
        attempt=int(order.get("attempt", 1)),
        workdir=str(order["workdir"]),
        order=packed.order,
        upstream=packed.upstream,
        blobs=packed.blobs,
        like=(manifest["app"], json.dumps(resources, sort_keys=True, default=str)),
        resources=resources_of(resources) if mpi else None,
        estimated_s=float(manifest.get("estimated_runtime_s") or 1.0),
        size=len(text),
        priority=priority,
    )


def resources_of(resources: Mapping[str, Any]) -> dict[str, Any]:
    """The resource specification of Globus Compute's MPI engine.

    Example:
        >>> resources_of({"nodes": 2, "ranks_per_node": 4})
        {'num_nodes': 2, 'ranks_per_node': 4, 'num_ranks': 8}
    """
    nodes, ranks = int(resources["nodes"]), int(resources["ranks_per_node"])
    return {"num_nodes": nodes, "ranks_per_node": ranks, "num_ranks": nodes * ranks}


def inputs_there(upstream: Sequence[Any], profile: Profile) -> list[Any]:
    """Results that are inputs, as `travel.pack` takes them.

    One that was run on this endpoint is found there by its directory; of one that lies here its artifacts travel.

    Raises:
        BadInput: Its files are on another endpoint, and were not fetched.
    """
    return [_there(result, profile) for result in upstream]


def _there(result: Any, profile: Profile) -> Any:
    fields = result if isinstance(result, Mapping) else getattr(result, "fields", None)
    if not isinstance(fields, Mapping):
        fields = result.model_dump(mode="json", exclude_none=True)
    remote = fields.get("remote")
    if not remote or remote.get("endpoint_id") == str(profile.endpoint_id):
        return fields
    near = {name: value for name, value in fields.items() if name != "remote"}
    lacking = [
        path for path in (fields.get("artifacts") or {}).values() if not Path(fields["workdir"], path).is_file()
    ]
    if not lacking:
        return near
    manifest = fields.get("manifest")
    name = manifest.get("execution_id", "") if isinstance(manifest, Mapping) else ""
    where = f"{remote.get('site') or 'another endpoint'} ({remote.get('endpoint_id')})"
    raise BadInput(
        f"the run {name} is an input, and its file {lacking[0]} lies on {where}, not on the endpoint of "
        f"{profile.name}: `hpcagent fetch RUN_DIR {name} {lacking[0]}` brings it here, from where it is sent; or "
        "run both on one site (--site).",
        value=name,
    )
