"""The same run with something changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from hpcagent.mcp.callers import Caller
from hpcagent.mcp.serving import Price, tool
from hpcagent.mcp.tools.runs import Handle, Why, handle_of

__all__ = ["repeat_run"]


class Repeated(Handle):
    """A run that was made of an earlier one."""

    since: str
    app: str
    version: str
    params: dict[str, Any] = Field(description="All of its parameters, in the unit of units.")
    units: dict[str, str] = Field(description="Parameter to unit.")
    changes: list[str]
    notes: list[str]


def _price(caller: Caller, *, changes: list[str], run_id: str, other_version: bool, why: str) -> Mapping[str, Any]:
    return caller.workspace.estimate_repeat(changes, run_id, other_version=other_version, data_only=True)


@tool(
    "The same run with something changed",
    scope="runs:write",
    read_only=False,
    idempotent=False,
    asks=True,
    price=Price(_price, "use run_job with walltime_s"),
)
def repeat_run(
    caller: Caller,
    changes: Annotated[
        list[Annotated[str, Field(max_length=1000)]],
        Field(
            description=(
                '"skin=1 angstrom", "temperature +50 K", "timestep /2", "style=omp". A number needs its '
                "unit; it is converted."
            ),
            min_length=1,
            max_length=100,
        ),
    ],
    run_id: Annotated[
        str, Field(description="The earlier run; empty: the newest of the caller's.", max_length=200)
    ] = "",
    other_version: Annotated[
        bool, Field(description="Go on where the app has another version now than that run had.")
    ] = False,
    why: Why = "",
) -> Repeated:
    """Run an earlier run's app again with something changed: "the same with skin 1 angstrom", "50 degrees higher".

    All else (other parameters, seed, site, inputs) is as it was. The new parameters are in the answer.
    """
    found = caller.workspace.repeat(changes, run_id, other_version=other_version, why=why, data_only=True)
    return Repeated(**handle_of(found).model_dump())
