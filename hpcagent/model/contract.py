"""What an app takes and gives: parameters, metrics, resources, cost, the ways it fails."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import ValidationInfo, field_validator, model_validator

from hpcagent.errors import BadInput, in_brief, nearest
from hpcagent.html import Card, Displayed, Rows
from hpcagent.model.base import RECORDED, Record
from hpcagent.model.parameter import Parameter
from hpcagent.model.space import Space
from hpcagent.model.texts import Line, checked_name

__all__ = ["LONG_RUNTIME_S", "MEASURED_TIMES", "RUNTIME_S", "SIDE_EFFECTS", "Contract", "Metric", "Resources"]

MEASURED_TIMES = frozenset({"s", "min", "h", "1/s"})

# The share of its cores that a run had, in every app that measures it.
CPU_USE = "cpu_use_percent"
"""Units of measured wall times and of rates by them; times of the simulated world are in fs to ns."""

# Resources that a parameter may decide.
COUNTED = ("nodes", "ranks_per_node", "threads_per_rank", "gpus_per_node")
OUTPUTS_ONLY = "declared outputs only"
SIDE_EFFECTS = {
    OUTPUTS_ONLY: "writes into its run's own directory and nowhere else, and asks no other machine",
    "reads the network": "asks other machines beside that: the answer may be another one tomorrow",
    "writes outside its folder": "adds to or changes files outside of its run's directory: a model store, a cache",
    "changes another system": "acts on something that is no file of ours: a database, an instrument, a service",
}
"""What an app may touch -> what that means; each may do what stands before it, too."""
# As records of before the vocabulary have the first of them.
_BEFORE = "declared outputs in its own directory only"
SEMVER = re.compile(r"\d+\.\d+\.\d+([-+][0-9A-Za-z.+-]+)?\Z")


class Metric(Record):
    """One number an app returns.

    Attributes:
        name: As it stands in `Result.metrics`.
        unit: Unit of the number; `"1"` for a pure number.
        description: One sentence.
        direction: Which way is better, where that is clear.
        required: A required metric that is missing or not finite makes the run a failure.
        noise: Relative standard deviation of one run from outside its control (machine speed), if known: a share
            of the value, 0 to 1 (0.2 is 20 %).
        undisturbed: Name of a metric that estimates this one where a run did not have its core, e.g. a speed
            per CPU time for a speed per wall time.
    """

    name: str
    unit: Line
    description: str = ""
    direction: Literal["maximize", "minimize"] | None = None
    required: bool = True
    noise: float | None = None
    undisturbed: str | None = None

    @field_validator("name")
    @classmethod
    def _a_name(cls, name: str, info: ValidationInfo) -> str:
        return name if (info.context or {}).get(RECORDED) else checked_name(name, "the metric's name")

    @field_validator("unit")
    @classmethod
    def _has_unit(cls, unit: str) -> str:
        if not unit:
            raise BadInput("a metric needs a unit; write '1' for a pure number.")
        return unit

    @field_validator("noise")
    @classmethod
    def _noise_is_a_share(cls, noise: float | None) -> float | None:
        if noise is not None and not 0 <= noise <= 1:
            raise BadInput(
                f"noise={noise:g} must be a share of the metric's value, 0 to 1: 0.2 is 20 %.", value=noise
            )
        return noise


MOST_OF_EACH = 10**6
"""Nodes, ranks on a node, GB on a node, ...: no machine has more, and products of them stay numbers."""
LONGEST_S = 30 * 365 * 86400.0
"""Wall time that may be asked for, in seconds."""


class Resources(Record):
    """What one run occupies; decides which executor of a site takes it.

    Attributes:
        nodes: Whole nodes (1 for anything that shares one).
        ranks_per_node: MPI ranks on each node.
        threads_per_rank: Threads of each rank.
        gpus_per_node: GPUs on each node.
        walltime_s: Hard limit, in seconds; everything the run has started is ended then. None: on a cluster what
            its block has left, elsewhere an hour.
        memory_gb: Memory on each node, in GB, or None for the site's share.
    """

    nodes: int = 1
    ranks_per_node: int = 1
    threads_per_rank: int = 1
    gpus_per_node: int = 0
    walltime_s: float | None = None
    memory_gb: float | None = None

    @field_validator("*", mode="before")
    @classmethod
    def _number(cls, value: object, info: ValidationInfo) -> object:
        if isinstance(value, bool | str):
            raise BadInput(f"{info.field_name}={in_brief(value)} must be a number.")
        return value

    @model_validator(mode="after")
    def _check(self) -> Resources:
        for name in ("nodes", "ranks_per_node", "threads_per_rank", "gpus_per_node"):
            value, least = getattr(self, name), 0 if name == "gpus_per_node" else 1
            if value < least:
                raise BadInput(f"{name}={in_brief(value)} must be at least {least}.")
            if value > MOST_OF_EACH:
                raise BadInput(f"{name}={in_brief(value)} must be at most {MOST_OF_EACH}.")
        if self.walltime_s is not None and not (math.isfinite(self.walltime_s) and self.walltime_s > 0):
            raise BadInput(f"walltime_s={self.walltime_s:g} must be a positive number of seconds.")
        if self.walltime_s is not None and self.walltime_s > LONGEST_S:
            raise BadInput(f"walltime_s={self.walltime_s:g} must be at most {LONGEST_S:g} s (30 years).")
        if self.memory_gb is not None and not self.memory_gb > 0:
            raise BadInput(f"memory_gb={self.memory_gb} must be positive.")
        if self.memory_gb is not None and not self.memory_gb <= MOST_OF_EACH:
            raise BadInput(f"memory_gb={self.memory_gb} must be at most {MOST_OF_EACH} GB.")
        return self

    @property
    def cores(self) -> int:
        """Cores of one run: nodes x ranks_per_node x threads_per_rank."""
        return self.nodes * self.ranks_per_node * self.threads_per_rank

    @property
    def size(self) -> str:
        """Nodes, ranks, threads and GPUs in words.

        Example:
            >>> Resources(nodes=2, ranks_per_node=64).size
            '2 node(s) x 64 rank(s) x 1 thread(s)'
        """
        size = f"{self.nodes} node(s) x {self.ranks_per_node} rank(s) x {self.threads_per_rank} thread(s)"
        return size + (f", {self.gpus_per_node} GPU(s) on each node" if self.gpus_per_node else "")

    @property
    def layout(self) -> dict[str, int]:
        """What a run's speed depends on, its limits left out.

        Example:
            >>> Resources(ranks_per_node=4, walltime_s=60).layout
            {'nodes': 1, 'ranks_per_node': 4, 'threads_per_rank': 1, 'gpus_per_node': 0}
        """
        return self.model_dump(exclude={"walltime_s", "memory_gb"})


RUNTIME_S, LONG_RUNTIME_S = 1.0, 60.0
"""Expected wall time in seconds where nobody has stated one; the second of a LAMMPS script and of a chain."""


class Contract(Displayed, Record):
    """What an app promises, before anything runs.

    Attributes:
        name: The app's name.
        version: Semantic version; part of every manifest.
        app_type: simulation, analysis, ml, database or optimization.
        description: One or two sentences.
        space: The parameters, with bounds, units and defaults.
        inputs: Names of the upstream results it needs (`("run",)` for an analysis of a run). Three dots after the
            last name stand for one or more: `("runs...",)`.
        metrics: The numbers it returns.
        resources: What one run occupies by default.
        resources_from: Resources that a parameter decides, e.g. `{"ranks_per_node": "ranks"}`: so runs of
            different sizes are points of one campaign. The parameter is an `Int`, or a `Choice` of whole numbers.
        deterministic: Whether the same manifest gives the same metrics (measured times excluded). Where it does
            not although its contract says so, the campaign's remarks name the runs.
        seeded: Whether the result depends on the run's seed and replicate. Where it does not, repetitions of a
            chain share the run.
        estimated_runtime_s: Expected wall time of one run, in seconds.
        estimated_cost: Expected node-hours of one run.
        side_effects: What it touches beside its own directory: one of `SIDE_EFFECTS`, the strongest that applies.
        failure_modes: Names of the failures it can return.
        deprecated: Why it should not be used any more, and what instead; None: it may be. By its name alone it is
            not found then, only with its version (`name@1.0.0`).
    """

    name: str
    version: str = "0.1.0"
    app_type: Literal["simulation", "analysis", "ml", "database", "optimization"] = "simulation"
    description: str = ""
    space: Space = Space()
    inputs: tuple[str, ...] = ()
    metrics: tuple[Metric, ...] = ()
    resources: Resources = Resources()
    resources_from: dict[str, str] = {}
    deterministic: bool = True
    seeded: bool = True
    estimated_runtime_s: float = RUNTIME_S
    estimated_cost: float | None = None
    side_effects: str = OUTPUTS_ONLY
    failure_modes: tuple[str, ...] = ()
    deprecated: Line | None = None

    @field_validator("side_effects")
    @classmethod
    def _in_the_vocabulary(cls, said: str, info: ValidationInfo) -> str:
        if said == _BEFORE:
            return OUTPUTS_ONLY
        if said in SIDE_EFFECTS or (info.context or {}).get(RECORDED):
            return said
        known = ", ".join(map(repr, SIDE_EFFECTS))
        raise BadInput(f"side_effects={said!r} is none of {known}; take the strongest that applies.", value=said)

    @field_validator("deprecated")
    @classmethod
    def _says_why(cls, said: str | None) -> str | None:
        if said is not None and not said.strip():
            raise BadInput("deprecated: say why, and what to use instead; leave it out otherwise.", value=said)
        return said

    @field_validator("name")
    @classmethod
    def _a_name(cls, name: str, info: ValidationInfo) -> str:
        # A lambda has no other name, and nothing is called by it: see `Campaign.name`.
        known = (info.context or {}).get(RECORDED) or name == "<lambda>"
        return name if known else checked_name(name, "the app's name")

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
        for resource, parameter in self.resources_from.items():
            self._check_resource(resource, parameter)
        return self

    def _check_resource(self, resource: str, name: str) -> None:
        if resource not in COUNTED:
            raise BadInput(
                f"resources_from: {resource!r} is no resource that is counted; {nearest(resource, COUNTED)}"
            )
        if name not in self.space:
            raise BadInput(
                f"resources_from: {resource} comes from {name!r}, which is no parameter; "
                f"{nearest(name, self.space.names)}",
                value=name,
            )
        values = _extremes(self.space[name])
        if values is None:
            raise BadInput(
                f"resources_from: {resource} comes from {name!r}, which allows {self.space[name].range}; only a "
                "parameter of whole numbers can (Int, or a Choice of them).",
                value=name,
            )
        least = 0 if resource == "gpus_per_node" else 1
        if values[0] < least:
            raise BadInput(
                f"resources_from: {resource} comes from {name!r}, whose lowest value is {values[0]}; it must be "
                f"at least {least}.",
                value=values[0],
            )

    def _card(self) -> Card:
        return Card("Contract", f"{self.name} {self.version}", self._facts(), self._tables(), brief=self._brief())

    def _brief(self) -> str:
        names = ", ".join(m.name for m in self.metrics)
        return f"{', '.join(self.space.names) or 'no parameters'} -> {names or 'no metrics'}"

    def _facts(self) -> list[tuple[str, object]]:
        r = self.resources
        size = r.size
        size += f", at most {r.walltime_s:g} s" if r.walltime_s else ""
        return [
            ("about", self.description),
            ("deprecated", self.deprecated or ""),
            ("inputs", ", ".join(self.inputs)),
            ("a run takes", size),
            ("expected time", f"{self.estimated_runtime_s:g} s"),
            ("same again", "the same metrics" if self.deterministic else "not to the last digit"),
            ("side effects", self.side_effects),
            ("can fail as", ", ".join(self.failure_modes)),
        ]

    def _tables(self) -> tuple[Rows, ...]:
        rows = [[m.name, "" if m.unit == "1" else m.unit, m.description] for m in self.metrics]
        return (*self.space._rows(), *((Rows("", ["metric", "unit", "about"], rows),) if rows else ()))

    def takes(self, n: int) -> bool:
        """Whether `n` upstream results are what it needs.

        Example:
            >>> Contract(name="fit", inputs=("runs...",)).takes(7)
            True
        """
        several = bool(self.inputs) and self.inputs[-1].endswith("...")
        return n >= len(self.inputs) if several else n == len(self.inputs)

    def resources_for(self, params: Mapping[str, Any]) -> Resources:
        """What a run with these parameters occupies.

        Args:
            params: All parameters, already checked.

        Example:
            >>> from hpcagent.model.parameter import Int
            >>> contract = Contract(
            ...     name="md", space=Space.of(ranks=Int(1, 64)), resources_from={"ranks_per_node": "ranks"}
            ... )
            >>> contract.resources_for({"ranks": 8}).cores
            8
        """
        if not self.resources_from:
            return self.resources
        return Resources(**(self.resources.model_dump() | {r: params[p] for r, p in self.resources_from.items()}))

    def largest_resources(self, space: Space | None = None) -> Resources:
        """What the largest run occupies: each resource that a parameter decides at its highest value.

        Args:
            space: Where runs may be, if narrower than the contract's own space; a parameter that is not in it
                is taken at its highest value.
        """
        high = {}
        for resource, name in self.resources_from.items():
            where = space if space is not None and name in space else self.space
            values = _extremes(where[name])
            assert values is not None
            high[resource] = values[1]
        return Resources(**(self.resources.model_dump() | high)) if high else self.resources

    @property
    def speeds(self) -> frozenset[str]:
        """The metrics that are measured speeds, or estimate one: those with `undisturbed`, and what it names."""
        return frozenset(name for m in self.metrics if m.undisturbed for name in (m.name, m.undisturbed))

    @property
    def timed(self) -> frozenset[str]:
        """The metrics that the machine decides, too: speeds, measured times and CPU use."""
        times = {m.name for m in self.metrics if m.unit in MEASURED_TIMES or m.name == CPU_USE}
        return self.speeds | times

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


def _extremes(parameter: Parameter) -> tuple[int, int] | None:
    """Lowest and highest value of a parameter of whole numbers; None for any other."""
    if parameter.kind == "int":
        assert parameter.low is not None and parameter.high is not None
        return int(parameter.low), int(parameter.high)
    if parameter.kind == "choice" and all(type(choice) is int for choice in parameter.choices):
        whole = [int(choice) for choice in parameter.choices]
        return min(whole), max(whole)
    return None
