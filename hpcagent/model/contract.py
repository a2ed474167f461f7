"""What an app takes and gives: parameters, metrics, resources, cost, the ways it fails."""

from __future__ import annotations

import math
import re
from typing import Literal

from pydantic import field_validator, model_validator

from hpcagent.errors import BadInput, nearest
from hpcagent.model.base import Record
from hpcagent.model.space import Space

__all__ = ["Contract", "Metric", "Resources"]

SEMVER = re.compile(r"\d+\.\d+\.\d+([-+][0-9A-Za-z.+-]+)?\Z")


class Metric(Record):
    """One number an app returns.

    Attributes:
        name: As it stands in `Result.metrics`.
        unit: Unit of the number; `"1"` for a pure number.
        description: One sentence.
        direction: Which way is better, where that is clear.
        required: A required metric that is missing or not finite makes the run a failure.
        noise: Relative standard deviation of one run from outside its control (machine speed), if known.
        undisturbed: Name of a metric that estimates this one where a run did not have its core, e.g. a speed
            per CPU time for a speed per wall time.
    """

    name: str
    unit: str
    description: str = ""
    direction: Literal["maximize", "minimize"] | None = None
    required: bool = True
    noise: float | None = None
    undisturbed: str | None = None

    @field_validator("unit")
    @classmethod
    def _has_unit(cls, unit: str) -> str:
        if not unit:
            raise BadInput("a metric needs a unit; write '1' for a pure number.")
        return unit


class Resources(Record):
    """What one run occupies; decides which executor of a site takes it.

    Attributes:
        nodes: Whole nodes (1 for anything that shares one).
        ranks_per_node: MPI ranks on each node.
        threads_per_rank: Threads of each rank.
        gpus_per_node: GPUs on each node.
        walltime_s: Hard limit, in seconds; the run's whole process group is killed then.
        memory_gb: Memory on each node, in GB, or None for the site's share.
    """

    nodes: int = 1
    ranks_per_node: int = 1
    threads_per_rank: int = 1
    gpus_per_node: int = 0
    walltime_s: float = 3600.0
    memory_gb: float | None = None

    @model_validator(mode="after")
    def _check(self) -> Resources:
        for name in ("nodes", "ranks_per_node", "threads_per_rank"):
            if getattr(self, name) < 1:
                raise BadInput(f"{name}={getattr(self, name)} must be at least 1.")
        if self.gpus_per_node < 0:
            raise BadInput(f"gpus_per_node={self.gpus_per_node} must be at least 0.")
        if not (math.isfinite(self.walltime_s) and self.walltime_s > 0):
            raise BadInput(f"walltime_s={self.walltime_s:g} must be a positive number of seconds.")
        if self.memory_gb is not None and not self.memory_gb > 0:
            raise BadInput(f"memory_gb={self.memory_gb} must be positive.")
        return self

    @property
    def cores(self) -> int:
        """Cores of one run: nodes x ranks_per_node x threads_per_rank."""
        return self.nodes * self.ranks_per_node * self.threads_per_rank


class Contract(Record):
    """What an app promises, before anything runs.

    Attributes:
        name: The app's name.
        version: Semantic version; part of every manifest.
        app_type: simulation, analysis, ml, database or optimization.
        description: One or two sentences.
        space: The parameters, with bounds, units and defaults.
        inputs: Names of the upstream results it needs (`("run",)` for an analysis of a run).
        metrics: The numbers it returns.
        resources: What one run occupies by default.
        deterministic: Whether the same manifest gives the same metrics (measured times excluded).
        estimated_runtime_s: Expected wall time of one run, in seconds.
        estimated_cost: Expected node-hours of one run.
        side_effects: What it touches beside its own directory.
        failure_modes: Names of the failures it can return.
        deprecated: Why it should not be used any more, or None.
    """

    name: str
    version: str = "0.1.0"
    app_type: Literal["simulation", "analysis", "ml", "database", "optimization"] = "simulation"
    description: str = ""
    space: Space = Space()
    inputs: tuple[str, ...] = ()
    metrics: tuple[Metric, ...] = ()
    resources: Resources = Resources()
    deterministic: bool = True
    estimated_runtime_s: float = 1.0
    estimated_cost: float | None = None
    side_effects: str = "declared outputs in its own directory only"
    failure_modes: tuple[str, ...] = ()
    deprecated: str | None = None

    @model_validator(mode="after")
    def _check(self) -> Contract:
        if not SEMVER.match(self.version):
            raise BadInput(f"version {self.version!r} is not a semantic version like 1.0.0.")
        if not (math.isfinite(self.estimated_runtime_s) and self.estimated_runtime_s >= 0):
            raise BadInput(f"estimated_runtime_s={self.estimated_runtime_s} must be a number of seconds >= 0.")
        names = [m.name for m in self.metrics]
        for name in names:
            if names.count(name) > 1:
                raise BadInput(f"metric {name!r} is promised twice.")
        return self

    def metric(self, name: str) -> Metric:
        """Return the promised metric `name`.

        Raises:
            BadInput: The app does not return it; the message names the nearest one.
        """
        for metric in self.metrics:
            if metric.name == name:
                return metric
        raise BadInput(
            f"app {self.name!r} returns no metric {name!r}; {nearest(name, [m.name for m in self.metrics])}",
            value=name,
        )
