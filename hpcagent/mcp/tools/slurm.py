"""Jobs on Slurm: a run on a site of that kind, and what the nodes say of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from hpcagent.mcp.callers import Caller
from hpcagent.mcp.named import named
from hpcagent.mcp.serving import Answer, Price, tool
from hpcagent.mcp.tools.runs import BOUND_BY_WALLTIME, Again, Anywhere, Handle, RunId, SiteName, Why, handle_of
from hpcagent.model.contract import LONGEST_S

__all__ = ["SlurmSpec", "get_node_counters", "submit_slurm"]


class SlurmSpec(BaseModel):
    """A run on a Slurm site; nothing else is taken, and nothing of it is a line of a script."""

    model_config = ConfigDict(extra="forbid", strict=True)

    app: str = Field(min_length=1, max_length=200, description="Name of an app, as list_apps has it.")
    site: SiteName = Field(
        min_length=1,
        description="A site of kind slurm, of get_workspace; its profile has partition and account.",
    )
    params: dict[str, Any] = Field(
        default={}, description="In the units of the app's contract; those not given take their defaults."
    )
    nodes: int = Field(default=1, ge=1, le=100_000, description="Whole nodes of the run.")
    ranks_per_node: int = Field(default=1, ge=1, le=100_000, description="MPI ranks on each node.")
    walltime_s: float | None = Field(
        default=None, gt=0, le=LONGEST_S, description="Wall time at most, in s; without it what the app says."
    )
    seed: int = Field(default=0, ge=0, le=2**63 - 1, description="Random seed.")
    inputs: list[Annotated[str, Field(max_length=200)]] = Field(
        default=[], max_length=100, description="run_ids that it takes as input."
    )
    why: Why = ""
    again: Again = False
    anywhere: Anywhere = False


def _order_of(caller: Caller, spec: SlurmSpec) -> dict[str, Any]:
    """A run as the workspace takes it, to run or to estimate."""
    return {
        "app": named(spec.app, caller.workspace),
        "params": spec.params,
        "site": spec.site,
        "site_kind": "slurm",
        "seed": spec.seed,
        "inputs": spec.inputs,
        "walltime_s": spec.walltime_s,
        "resources": {"nodes": spec.nodes, "ranks_per_node": spec.ranks_per_node},
        "why": spec.why,
        "again": spec.again,
        "anywhere": spec.anywhere,
        "data_only": True,
    }


def _price(caller: Caller, spec: SlurmSpec) -> Mapping[str, Any]:
    return caller.workspace.estimate(**_order_of(caller, spec))


@tool(
    "Run an app on Slurm",
    scope="runs:write",
    read_only=False,
    idempotent=False,
    asks=True,
    price=Price(_price, BOUND_BY_WALLTIME),
)
def submit_slurm(
    caller: Caller, spec: Annotated[SlurmSpec, Field(description="What runs, where, on how many nodes.")]
) -> Handle:
    """Start a run on a Slurm site through the gate, and return at once; the same work is found, not repeated.

    It goes into a job of the site's profile; several runs may share one. Follow it by get_status.
    """
    return handle_of(caller.workspace.run(**_order_of(caller, spec)))


class Counters(Answer):
    """What the nodes say of a run. A number that is not known is null, with its reason in `unknown`."""

    run_id: str
    state: str
    site: str
    node: str | None = Field(description="Host name, the first of several.")
    nodes: int
    ranks: int
    threads_per_rank: int
    gpus_per_node: int
    cores_held: float = Field(description="Cores that the run held, or was to hold.")
    cpu_s: float | None = Field(description="Processor time of all its processes, in seconds.")
    wall_s: float | None = Field(description="In s.")
    cpu_use_percent: float | None = Field(description="cpu_s over wall_s times cores_held, in percent.")
    max_rss_bytes: int | None = Field(description="Most memory that it had, in bytes.")
    processes: int | None
    source: str
    unknown: dict[str, str] = Field(description="Name to why a number is null.")
    jobs: list[dict[str, Any]] = Field(
        description=(
            "The site's jobs meanwhile, which runs share: scheduler, job_id, nodes, state, "
            "submitted_at, started_at, ended_at (Unix time, s)."
        )
    )


@tool("Node counters of a run", foreign=True)
def get_node_counters(caller: Caller, run_id: RunId) -> Counters:
    """Processor time, wall time, cores, CPU use, memory and node of a run, as far as they are known.

    While it runs on this machine, from the kernel; after its end, from its worker's record.
    """
    found = caller.workspace.counters(run_id)
    return Counters(run_id=found.pop("id"), **found)
