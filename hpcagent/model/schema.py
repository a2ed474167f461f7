"""JSON Schemas (draft 2020-12) of what an app takes and gives, as far as JSON Schema can say it."""

from __future__ import annotations

from typing import Any

from hpcagent.errors import BadInput
from hpcagent.model.base import Scalar
from hpcagent.model.conditions import holds
from hpcagent.model.constraints import Constraint
from hpcagent.model.contract import Contract
from hpcagent.model.grammar import Compare, Literal, Logic, Member, Name, Node
from hpcagent.model.parameter import Parameter
from hpcagent.model.space import Space

__all__ = ["ARTIFACT", "DRAFT", "EXECUTION_ID", "input_schema", "output_schema"]

DRAFT = "https://json-schema.org/draft/2020-12/schema"
EXECUTION_ID = r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"
"""What the id of a run looks like."""
ARTIFACT = EXECUTION_ID[:-1] + "/.+$"
"""What the id of an artifact looks like: the run's id and the artifact's name."""

# What `str.isprintable` refuses and a text may well have: control characters, other spaces, ends of lines.
_PRINTABLE = r"^[^\u0000-\u001f\u007f-\u00a0\u1680\u2000-\u200f\u2028-\u202f\u205f\u3000\ufeff]*$"
_SWAPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}
_BOUND = {"<": "exclusiveMaximum", "<=": "maximum", ">": "exclusiveMinimum", ">=": "minimum"}


def input_schema(contract: Contract) -> dict[str, Any]:
    """The JSON Schema of the inputs of a run: its parameters, and the runs that it takes, by their ids.

    Each parameter has its `unit`, its bounds or choices, and its default. One that belongs to a point only under a
    condition (`when`) is refused where it does not hold, if the condition compares parameters with values; the
    condition stands as `x-when` in any case. A constraint likewise, in `x-constraints`: what compares parameters
    with each other no JSON Schema can say, and the app checks it.

    Args:
        contract: Of the app.

    Raises:
        BadInput: An input and a parameter have one name.

    Example:
        >>> from hpcagent.model.parameter import Float
        >>> contract = Contract(name="md", space=Space.of(dt=Float(1, 4, unit="fs")), inputs=("start",))
        >>> schema = input_schema(contract)
        >>> schema["properties"]["dt"]["unit"], schema["required"]
        ('fs', ['dt', 'start'])
    """
    space = contract.space
    schema = space.json_schema()
    for p in space.parameters:
        if p.kind == "text":
            schema["properties"][p.name]["pattern"] = _PRINTABLE
    for name in contract.inputs:
        _add_input(schema, name, contract)
    rules = [rule for p in space.parameters if p.when is not None for rule in _when(p, space)]
    kept = (_kept(constraint.node, space) for constraint in space.constraints)
    rules += [rule for rule in kept if rule is not None]
    return schema | ({"allOf": rules} if rules else {})


def _add_input(schema: dict[str, Any], name: str, contract: Contract) -> None:
    plain = name.removesuffix("...")
    if plain in schema["properties"]:
        raise BadInput(
            f"app {contract.name!r} has an input and a parameter of the name {plain!r}; give one of them another.",
            value=plain,
        )
    # A structure that is handed over as a file has an id made of its content, which is no UUID.
    one = {"type": "string", "minLength": 1, "x-artifact": "execution id of a run, or id of a structure"}
    said = {"description": f"The id of the {plain} it takes."}
    if plain != name:
        said = {"description": f"The ids of one or more {plain}, in their order."}
        one = {"type": "array", "items": one, "minItems": 1}
    schema["properties"][plain] = said | one
    schema["required"] = [*schema["required"], plain]


def _when(p: Parameter, space: Space) -> list[dict[str, Any]]:
    """The rule of a parameter that belongs to a point only under a condition; none if no schema can say it."""
    condition = _kept(Constraint(text=str(p.when)).node, space)
    if condition is None:
        return []
    free = p.default is not None or (p.constant and p.kind != "text")
    then = {} if free else {"then": {"required": [p.name]}}
    return [{"if": condition, **then, "else": {"properties": {p.name: False}}}]


def _kept(node: Node, space: Space) -> dict[str, Any] | None:
    """A schema that inputs fit where the condition is kept; None where none can say it."""
    if isinstance(node, Logic):
        parts = [_kept(part, space) for part in node.parts]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            return None
        if node.op == "not":
            return {"not": known[0]}
        return {"allOf" if node.op == "and" else "anyOf": known}
    if isinstance(node, Compare) and len(node.ops) > 1:
        pairs = zip(node.terms, node.ops, node.terms[1:], strict=False)
        return _kept(Logic("and", tuple(Compare((a, b), (op,)) for a, op, b in pairs)), space)
    if isinstance(node, Compare):
        (left, right), op = node.terms, node.ops[0]
        if isinstance(left, Literal) and isinstance(right, Name):
            left, right, op = right, left, _SWAPPED[op]
        if isinstance(left, Name) and isinstance(right, Literal):
            return _of(left.name, _compared(op, right.value), node, space)
    if isinstance(node, Member) and isinstance(node.term, Name):
        return _of(node.term.name, {"enum": list(node.values)}, node, space)
    if isinstance(node, Name):
        return _of(node.name, {"const": True}, node, space)
    return None


def _compared(op: str, value: Scalar) -> dict[str, Any]:
    if op in _BOUND:
        return {_BOUND[op]: value}
    return {"const": value} if op == "==" else {"not": {"const": value}}


def _of(name: str, schema: dict[str, Any], node: Node, space: Space) -> dict[str, Any] | None:
    """The parameter `name` fits the schema, also where its default does and it is not given."""
    if name not in space or space[name].when is not None:
        return None  # whether it is there at all is decided by others
    default = space[name].default
    found = {"properties": {name: schema}}
    if default is not None and bool(holds(node, {name: default})):
        return found
    return found | {"required": [name]}


def output_schema(contract: Contract) -> dict[str, Any]:
    """The JSON Schema of what a completed run gives: metrics with units, standard errors, artifacts by their ids.

    Example:
        >>> from hpcagent.model.contract import Metric
        >>> schema = output_schema(Contract(name="md", metrics=(Metric(name="pressure", unit="GPa"),)))
        >>> schema["properties"]["metrics"]["properties"]["pressure"]["unit"]
        'GPa'
    """
    metrics: dict[str, dict[str, Any]] = {}
    errors: dict[str, dict[str, Any]] = {}
    for m in contract.metrics:
        metrics[m.name] = {"type": "number", "unit": m.unit, "description": m.description}
        if m.direction is not None:
            metrics[m.name]["x-direction"] = m.direction
        if m.noise is not None:
            metrics[m.name]["x-noise"] = m.noise
        errors[m.name] = {"type": "number", "minimum": 0, "unit": m.unit}
    return {
        "$schema": DRAFT,
        "type": "object",
        "properties": {
            "execution_id": {"type": "string", "pattern": EXECUTION_ID, "description": "The run's id."},
            "metrics": {
                "type": "object",
                "properties": metrics,
                "required": [m.name for m in contract.metrics if m.required],
                "additionalProperties": False,
            },
            "uncertainty": {
                "type": "object",
                "description": "Standard errors of metrics, where the run itself can tell.",
                "properties": errors,
                "additionalProperties": False,
            },
            "artifacts": {
                "type": "object",
                "description": "Name of a file that the run has written -> its id.",
                "additionalProperties": {"type": "string", "pattern": ARTIFACT},
            },
        },
        "required": ["execution_id", "metrics", "uncertainty", "artifacts"],
        "additionalProperties": False,
    }
