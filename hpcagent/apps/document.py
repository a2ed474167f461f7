"""The contract of an app as a document of its own: for programs, agents and people that do not run hpcagent."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator
from pydantic_core import from_json as parse_json

from hpcagent.apps.base import App
from hpcagent.errors import BadInput, in_brief
from hpcagent.html import Card, Displayed, Rows
from hpcagent.model.base import Record, build
from hpcagent.model.contract import SEMVER
from hpcagent.model.records import Result
from hpcagent.model.schema import DRAFT, input_schema, output_schema

__all__ = ["ContractDocument", "output_of"]

# What is worked out anew each time, from other runs perhaps.
_ESTIMATES = ("estimated_runtime_sec", "estimated_node_hours", "estimated_cost_usd")
_MOST_NAMED = 20

OF_CONTRACT = "the contract"


class ContractDocument(Displayed, Record):
    """What an app is, takes, gives, costs and may do, in one JSON document.

    Attributes:
        tool_name: The app's name.
        tool_type: ml, simulation, database, optimization or analysis.
        version: Semantic version.
        description: One or two sentences.
        input_schema: JSON Schema (2020-12) of the inputs: parameters with `unit`, bounds or choices; runs and
            structures that it takes by their ids.
        output_schema: JSON Schema of what a completed run gives, see `output_of`.
        estimated_runtime_sec: Expected wall time of one run, in seconds.
        estimated_node_hours: Expected node-hours of one run.
        estimated_cost_usd: These at `usd_per_node_hour`, in US dollars; None where no price was given.
        usd_per_node_hour: The price that was given, in US dollars for a node-hour, or None.
        estimated_from: Where the estimates come from, in words: recorded runs and their number, or the contract.
        determinism: `deterministic`: the same manifest, seed included, gives the same metrics (measured times
            aside); or `stochastic`.
        side_effects: What a run may touch beside its own directory; see `hpcagent.model.contract.SIDE_EFFECTS`.
        failure_modes: Names of the failures that are its own; any run may also end by its machine or walltime.
        deprecated: Why it should not be used any more, or None.
        digest: SHA-256 of function, settings, code and input files: what decides a result beside the inputs.

    Example:
        >>> import hpcagent as ha
        >>> document = ContractDocument.of(ha.apps.synthetic)
        >>> document.tool_name, document.determinism, document.side_effects
        ('synthetic', 'deterministic', 'declared outputs only')
        >>> ContractDocument.from_json(document.model_dump_json()).differences(ha.apps.synthetic)
        ()
    """

    tool_name: str = Field(min_length=1)
    tool_type: Literal["ml", "simulation", "database", "optimization", "analysis"]
    version: str
    description: str = ""
    input_schema: dict[str, Any]
    output_schema: dict[str, Any]
    estimated_runtime_sec: float = Field(ge=0.0, allow_inf_nan=False)
    estimated_node_hours: float = Field(ge=0.0, allow_inf_nan=False)
    estimated_cost_usd: float | None = Field(default=None, ge=0.0, allow_inf_nan=False)
    usd_per_node_hour: float | None = Field(default=None, ge=0.0, allow_inf_nan=False)
    estimated_from: str
    determinism: Literal["deterministic", "stochastic"]
    side_effects: str
    failure_modes: tuple[str, ...] = ()
    deprecated: str | None = None
    digest: str = ""

    @field_validator("version")
    @classmethod
    def _semantic(cls, version: str) -> str:
        if not SEMVER.match(version):
            raise BadInput(f"version {version!r} is not a semantic version like 1.0.0.", value=version)
        return version

    @field_validator("input_schema", "output_schema")
    @classmethod
    def _of_the_draft(cls, schema: dict[str, Any]) -> dict[str, Any]:
        if schema.get("$schema") != DRAFT or schema.get("type") != "object":
            raise BadInput(
                f"it is no schema of an object by {DRAFT}; $schema is {in_brief(schema.get('$schema'))}, type "
                f"{in_brief(schema.get('type'))}.",
                value=schema.get("$schema"),
            )
        if schema.get("additionalProperties") is not False:
            raise BadInput('it lacks "additionalProperties": false: what it does not name would be ignored.')
        return schema

    @classmethod
    def of(
        cls,
        app: App,
        *,
        runs: Iterable[Result] = (),
        usd_per_node_hour: float | None = None,
        runs_of: str | Path = "",
    ) -> ContractDocument:
        """The document of an app.

        Args:
            app: The app, with its settings.
            runs: Recorded runs: the completed ones of this app and version give runtime and cost, as their means.
                Without any the contract's estimate does; where that has no node-hours, they are whole nodes times
                the expected time.
            usd_per_node_hour: Price, in US dollars.
            runs_of: Where the runs come from, for `estimated_from`.

        Raises:
            BadInput: The price is none, or an input and a parameter of the app have one name.
        """
        price = usd_per_node_hour
        if price is not None and (
            isinstance(price, bool) or not isinstance(price, (int, float)) or not 0 <= price < math.inf
        ):
            raise BadInput(
                f"usd_per_node_hour={in_brief(price)} must be a number >= 0, in US dollars.", value=price
            )
        c = app.contract
        runtime, hours, source = _estimate(app, [r for r in runs if _counts(r, app)], str(runs_of))
        return cls(
            tool_name=c.name,
            tool_type=c.app_type,
            version=c.version,
            description=c.description,
            input_schema=input_schema(c),
            output_schema=output_schema(c),
            estimated_runtime_sec=runtime,
            estimated_node_hours=hours,
            estimated_cost_usd=None if price is None else hours * price,
            usd_per_node_hour=price,
            estimated_from=source,
            determinism="deterministic" if c.deterministic else "stochastic",
            side_effects=c.side_effects,
            failure_modes=c.failure_modes,
            deprecated=c.deprecated,
            digest=app.digest,
        )

    @classmethod
    def from_json(cls, text: str | bytes) -> ContractDocument:
        """Read a document back.

        Raises:
            BadInput: It is no JSON object, or not that of a contract: which key, and what is allowed.
        """
        return build(cls, json_object(text, "the contract"), where="the contract")

    def differences(self, app: App) -> tuple[str, ...]:
        """What an app has otherwise than this document says, one sentence without a full stop for each; none: ().

        Estimates are compared where they are the contract's: those from runs change with the runs.
        """
        now = ContractDocument.of(app, usd_per_node_hour=self.usd_per_node_hour)
        # As JSON has them: a tuple is a list there, and 1.0 may be 1.
        here = parse_json(self.model_dump_json())
        there = parse_json(now.model_dump_json())
        if self.estimated_from != now.estimated_from:
            for name in (*_ESTIMATES, "estimated_from"):
                here.pop(name), there.pop(name)
        found = list(_differ(here, there, ""))
        more = len(found) - _MOST_NAMED
        return tuple(found[:_MOST_NAMED]) + ((f"{more} more places differ",) if more > 0 else ())

    def lines(self) -> list[str]:
        """The document as text to read, a line each."""
        card = self._card()
        found = [f"{card.title}", *(f"{name}: {text}" for name, text in card.facts if str(text))]
        for table in card.tables:
            cells = [[str(cell) for cell in row] for row in (table.header, *table.rows)]
            wide = [max(len(row[i]) for row in cells) for i in range(len(table.header))]
            found.append("")
            found += ["  ".join(c.ljust(w) for c, w in zip(row, wide, strict=True)).rstrip() for row in cells]
        return found

    def _card(self) -> Card:
        price = self.estimated_cost_usd
        cost = "" if price is None else f", {price:.3g} USD at {self.usd_per_node_hour:g} USD for a node-hour"
        takes = f"{self.estimated_runtime_sec:.4g} s, {self.estimated_node_hours:.3g} node-hours{cost}"
        facts = [
            ("about", self.description),
            ("deprecated", self.deprecated or ""),
            ("type", self.tool_type),
            ("a run takes", takes),
            ("by", self.estimated_from),
            ("determinism", self.determinism),
            ("side effects", self.side_effects),
            ("can fail as", ", ".join(self.failure_modes)),
            ("digest", self.digest),
        ]
        needed = self.input_schema.get("required", ())
        inputs = [
            [name, _unit(of), _allowed(of), "required" if name in needed else _default(of), _about(of)]
            for name, of in _properties(self.input_schema).items()
        ]
        metrics = _properties(_properties(self.output_schema).get("metrics", {}))
        tables = (
            Rows("", ["input", "unit", "allowed", "default", "about"], inputs),
            Rows(
                "",
                ["metric", "unit", "about"],
                [[n, _unit(m), _about(m)] for n, m in metrics.items()],
            ),
        )
        return Card(
            "Contract",
            f"{self.tool_name} {self.version}",
            facts,
            tuple(t for t in tables if t.rows),
            brief=f"{self.tool_type}, {self.determinism}, {self.side_effects}",
        )


def output_of(result: Result) -> dict[str, Any]:
    """A completed run's outputs as `output_schema` has them: metrics, standard errors, artifacts by their ids.

    Raises:
        BadInput: The run has not completed: it has no outputs, but a failure or a reason why it was stopped.

    Example:
        >>> from hpcagent.model.records import Manifest
        >>> run = Manifest(execution_id="6c1c0f5e-5d0b-5f6c-9a55-0d1d0b3c8a01", app="md", app_version="1.0.0")
        >>> output_of(Result(manifest=run, status="COMPLETED", artifacts={"log": "log.txt"}))["artifacts"]
        {'log': '6c1c0f5e-5d0b-5f6c-9a55-0d1d0b3c8a01/log'}
    """
    identity = result.manifest.execution_id
    if not result.ok:
        why = "" if result.failure is None else f": {result.failure.name}, {result.failure.message}"
        raise BadInput(f"run {identity} has no outputs, it is {result.state}{why}", value=identity)
    return {
        "execution_id": identity,
        "metrics": dict(result.metrics),
        "uncertainty": dict(result.uncertainty),
        "artifacts": {name: f"{identity}/{name}" for name in result.artifacts},
    }


def _counts(result: Result, app: App) -> bool:
    m = result.manifest
    return result.ok and not m.origin and (m.app, m.app_version) == (app.name, app.contract.version)


def _estimate(app: App, runs: Sequence[Result], runs_of: str) -> tuple[float, float, str]:
    """Seconds and node-hours of one run, and what they come from."""
    c = app.contract
    if runs:
        n = len(runs)
        source = f"the mean of {n} completed run{'s' if n > 1 else ''}" + (f" in {runs_of}" if runs_of else "")
        return sum(map(_took, runs)) / n, sum(r.cost.node_hours for r in runs) / n, source
    if c.estimated_cost is not None:
        return c.estimated_runtime_s, c.estimated_cost, OF_CONTRACT
    hours = c.resources.nodes * c.estimated_runtime_s / 3600
    return c.estimated_runtime_s, hours, f"{OF_CONTRACT}; node-hours at most, as if a run had its nodes to itself"


def _took(run: Result) -> float:
    """Seconds from start to end; the cost of a chain is the sum of runs that may have been side by side."""
    return max(0.0, run.ended_at - run.started_at) if run.parts else run.cost.wall_s


def json_object(text: str | bytes, what: str) -> dict[str, Any]:
    """A JSON object that somebody has handed over.

    Raises:
        BadInput: It is none.
    """
    try:
        data = parse_json(text, allow_inf_nan=False)
    except ValueError as error:
        raise BadInput(f"{what} is no JSON: {error}.", value=in_brief(text)) from None
    if not isinstance(data, dict):
        raise BadInput(f"{what} is {in_brief(data)}; it must be a JSON object.", value=in_brief(text))
    return data


def _differ(here: Any, there: Any, at: str) -> Iterable[str]:
    """Where two values of JSON differ: of objects each key."""
    if isinstance(here, Mapping) and isinstance(there, Mapping):
        for key in dict.fromkeys((*here, *there)):
            place = f"{at}.{key}" if at else str(key)
            if key not in there:
                yield f"{place}: {in_brief(here[key])} in the document, not there in the app"
            elif key not in here:
                yield f"{place}: not there in the document, {in_brief(there[key])} in the app"
            else:
                yield from _differ(here[key], there[key], place)
    elif here != there or isinstance(here, bool) != isinstance(there, bool):
        yield f"{at}: {in_brief(here)} in the document, {in_brief(there)} in the app"


def _properties(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    found = schema.get("properties", {})
    return found if isinstance(found, Mapping) else {}


def _unit(schema: Mapping[str, Any]) -> str:
    unit = str(schema.get("unit", ""))
    return "" if unit == "1" else unit


def _allowed(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return "{" + ", ".join(map(str, schema["enum"])) + "}"
    if "minimum" in schema:
        return f"[{schema['minimum']:g}, {schema['maximum']:g}]"
    return "ids of runs" if schema.get("type") == "array" else "id" if "x-artifact" in schema else "text"


def _about(schema: Mapping[str, Any]) -> str:
    return str(schema.get("description", ""))


def _default(schema: Mapping[str, Any]) -> str:
    return str(schema.get("default", ""))
