"""The simulation that needs no files, no network and no program: to try a client, and to compare with others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from hpcagent.mcp.callers import Caller
from hpcagent.mcp.serving import Answer, Price, tool

__all__ = ["simulation_get_results", "simulation_run"]

Name = Annotated[
    str, Field(min_length=1, max_length=200, description="A name of your own: printable, not empty, not unique.")
]


class Simulation(Answer):
    """How a simulation stands."""

    status: Literal["success", "error"] = Field(
        description="error: it has failed; success: it has not, though it may go on (simulation_status)."
    )
    run_id: str = Field(description="Its handle, for get_status, too.")
    steps_completed: int = Field(description="0 until it has ended.")
    config: dict[str, Any] = Field(
        description=(
            "name, max_steps, seed, params: timestep (fs), mass (u), spring (eV/angstrom^2), temperature (K)."
        )
    )
    simulation_status: str
    results: dict[str, dict[str, Any]] = Field(description="Name to value and unit.")
    error: str | None = Field(default=None, description="Why it has failed.")


def _price(
    caller: Caller, *, name: str, max_steps: int, seed: int | None, params: dict[str, float]
) -> Mapping[str, Any]:
    found = caller.workspace.estimate("oscillator", {**params, "max_steps": max_steps}, seed=seed or 0)
    return found if seed is not None else {**found, "known": None}  # with a seed that no run has


@tool(
    "Start the simple simulation",
    scope="runs:write",
    read_only=False,
    idempotent=False,
    asks=True,
    price=Price(_price, "use run_job with the kind oscillator and walltime_s"),
)
def simulation_run(
    caller: Caller,
    name: Name = "default_simulation",
    max_steps: Annotated[
        int, Field(ge=1, strict=True, description="Steps to make: a positive whole number; it bounds the run.")
    ] = 1000,
    seed: Annotated[
        int | None,
        Field(ge=0, le=2**63 - 1, description="Draws the start; without it one is drawn."),
    ] = None,
    params: Annotated[
        dict[str, float],
        Field(
            description=(
                "timestep (fs), mass (u), spring (eV/angstrom^2), temperature (K); bounds: describe_app "
                "of oscillator."
            )
        ),
    ] = {},  # noqa: B006
) -> Simulation:
    """Start the simulation `oscillator` (a particle on a spring) under a name of your own, and return at once.

    The same seed and params give the same result. Its results come by simulation_get_results.
    """
    return Simulation(**caller.workspace.simulation_run(name, max_steps, seed, params))


@tool("Results of the simple simulation", foreign=True)
def simulation_get_results(
    caller: Caller,
    name: Annotated[
        str, Field(min_length=1, max_length=200, description="run_id, or name of simulation_run.")
    ] = "default_simulation",
) -> Simulation:
    """How a simulation stands, and its results with units; changes nothing. An unknown name is an error."""
    return Simulation(**caller.workspace.simulation_get_results(name))
