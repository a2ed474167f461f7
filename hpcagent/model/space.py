"""The space that parameters span."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Any

from pydantic import SerializerFunctionWrapHandler, model_serializer, model_validator

from hpcagent.errors import BadInput, nearest
from hpcagent.html import Card, Displayed, Rows
from hpcagent.later import Later
from hpcagent.model.allowed import Region
from hpcagent.model.base import Record, Scalar, build
from hpcagent.model.conditions import holds
from hpcagent.model.constraints import Constraint
from hpcagent.model.files import check_files
from hpcagent.model.parameter import Parameter, Params
from hpcagent.model.within import check_rules, without_known
from hpcagent.moved import moved

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    np = Later("numpy")

__all__ = ["Space"]


class Space(Displayed, Record):
    """The parameters that may be set together, in a fixed order.

    Attributes:
        parameters: One for each knob. One with a condition (`when`) is left out of points that do not keep it.
        constraints: Conditions that every point keeps, e.g. `x + y <= 1`.

    Example:
        >>> from hpcagent.model.parameter import Choice, Float
        >>> space = Space.of(timestep=Float(0.001, 0.03, unit="ps", log=True), style=Choice("a", "b"))
        >>> space.names
        ('timestep', 'style')
        >>> space.validated({"timestep": 0.002, "style": "a"})
        {'timestep': 0.002, 'style': 'a'}
        >>> mix = Space.of(a=Float(0, 1), b=Float(0, 1), constraints=["a + b <= 1"])
        >>> mix.allows({"a": 0.5, "b": 0.25}), mix.allows({"a": 0.5, "b": 0.75})
        (True, False)
    """

    parameters: tuple[Parameter, ...] = ()
    constraints: tuple[Constraint, ...] = ()

    def _card(self) -> Card:
        brief = ", ".join(f"{p.name} in {p.range}" for p in self.parameters)
        kept = "\n".join(map(str, self.constraints))
        title = f"{len(self)} parameter{'' if len(self) == 1 else 's'}"
        return Card("Space", title, [("constraints", kept)], self._rows(), brief=brief)

    def _rows(self) -> tuple[Rows, ...]:
        """Its parameters as a table, if it has any; a column that would be empty is left out."""
        if not self.parameters:
            return ()
        columns: dict[str, list[object]] = {
            "parameter": [p.name for p in self.parameters],
            "allowed": [p.range for p in self.parameters],
            "default": [p.default for p in self.parameters],
            "scale": ["log" if p.log else None for p in self.parameters],
            "when": [p.when for p in self.parameters],
            "about": [p.description or None for p in self.parameters],
        }
        kept = {name: cells for name, cells in columns.items() if any(cell is not None for cell in cells)}
        rows = zip(*kept.values(), strict=True)
        return (Rows("", list(kept), [["" if cell is None else cell for cell in row] for row in rows]),)

    @model_serializer(mode="wrap")
    def _as_before(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without constraints where there are none: digests of campaigns stay what they were."""
        data: dict[str, Any] = dump(self)
        return {k: v for k, v in data.items() if k != "constraints" or v}

    @model_validator(mode="after")
    def _check(self) -> Space:
        names = self.names
        for name in names:
            if names.count(name) > 1:
                raise BadInput(f"parameter {name!r} is given twice.")
        check_rules(self.parameters, self.constraints)
        check_files(self.parameters)
        return self

    @classmethod
    def of(cls, *, constraints: Sequence[str | Constraint] | Parameter = (), **parameters: Parameter) -> Space:
        """A space from keyword arguments; each parameter takes the keyword as its name.

        Args:
            constraints: Conditions that every point keeps, e.g. `["x + y <= 1"]`.
            parameters: The parameters.

        Raises:
            BadInput: One of them is no parameter, a name is no identifier, or a condition makes no sense.
        """
        if isinstance(constraints, Parameter):  # one that is called so
            parameters["constraints"] = constraints
            constraints = ()
        for name, parameter in parameters.items():
            if not isinstance(parameter, Parameter):
                raise BadInput(
                    f"{name}={parameter!r}: a parameter is given as Float(low, high, unit=...), Int(...), "
                    "Choice(...) or Text(...).",
                    value=parameter,
                )
        named = tuple(p.model_copy(update={"name": n}) for n, p in parameters.items())
        return cls.made(named, constraints)

    @classmethod
    def made(cls, parameters: Sequence[Parameter], constraints: Sequence[str | Constraint] = ()) -> Space:
        """A space of these parameters under these constraints.

        Raises:
            BadInput: A constraint cannot be read, or makes no sense for the parameters.
        """
        if isinstance(constraints, str) or not isinstance(constraints, Sequence):
            raise BadInput(
                f'constraints is a list of conditions, e.g. ["x + y <= 1"]; got {constraints!r}.',
                value=constraints,
            )
        return build(cls, {"parameters": tuple(parameters), "constraints": tuple(constraints)}, where="")

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The parameters' names in order."""
        return tuple(p.name for p in self.parameters)

    @cached_property
    def choosing(self) -> tuple[Parameter, ...]:
        """The parameters whose choices are files."""
        return tuple(p for p in self.parameters if p.files)

    @property
    def free(self) -> Space:
        """The part of the space in which there is something to choose."""
        if self.simple:
            return Space(parameters=tuple(p for p in self.parameters if not p.constant))
        known = {p.name: p.levels(1)[0] for p in self.parameters if p.constant and (p.kind != "text" or p.default)}
        return self.without(known)

    def without(self, known: Mapping[str, Scalar]) -> Space:
        """The rest of the space where these parameters have these values, which conditions then count with.

        Raises:
            BadInput: A constraint is broken by the values, whatever the others are.
        """
        if not known:
            return self
        parameters, constraints = without_known(self.parameters, self.constraints, known)
        return Space(parameters=parameters, constraints=constraints)

    @cached_property
    def simple(self) -> bool:
        """Whether every combination of values is allowed and every parameter a part of every point."""
        return not self.constraints and all(p.when is None for p in self.parameters)

    @cached_property
    def region(self) -> Region:
        """How allowed points are found where there are constraints or conditional parameters."""
        return Region(self)

    @cached_property
    def middle(self) -> Params:
        """The middle of the space, or an allowed point near it.

        Raises:
            BadInput: No point is allowed.
        """
        return self.from_unit([0.5] * len(self)) if self.simple else dict(self.region.middle)

    def allows(self, params: Mapping[str, Scalar]) -> bool:
        """Whether a point keeps every constraint (see `violated`)."""
        return self.violated(params) is None

    def violated(self, params: Mapping[str, Scalar]) -> str | None:
        """The first constraint that a point breaks, with its values, in words; None where all are kept.

        Bounds and types are not looked at (`validated` does). A constraint with a parameter that is left out, or
        that is not active here, does not apply.

        Example:
            >>> from hpcagent.model.parameter import Float
            >>> Space.of(a=Float(0, 1), b=Float(0, 1), constraints=["a + b <= 1"]).violated({"a": 0.5, "b": 0.75})
            "'a + b <= 1' is not kept at a=0.5, b=0.75 (a + b = 1.25)"
        """
        if not self.constraints:
            return None
        known = self._active(params)
        return next((why for c in self.constraints if (why := c.why_not(known)) is not None), None)

    def _active(self, params: Mapping[str, Scalar]) -> dict[str, Scalar]:
        """The values of parameters that are active."""
        left_out: set[str] = set()
        for name, node, names in self.region.columns.whens:
            if names & left_out or not names <= set(params) or not holds(node, params):
                left_out.add(name)
        return {n: params[n] for n in self.names if n in params and n not in left_out}

    @property
    def size(self) -> float:
        """Number of distinct points; `inf` where a parameter is continuous.

        With constraints those that are allowed, or where there are too many to look through, all.
        """
        if not self.simple and self.region.every is not None:
            return float(len(self.region.every))
        return self.cells

    @property
    def cells(self) -> float:
        """Number of combinations of values, allowed or not; `inf` where a parameter is continuous."""
        total = 1.0
        for p in self.parameters:
            if p.kind == "choice":
                total *= len(p.choices)
            elif p.kind == "text":
                continue
            elif p.kind == "int":
                assert p.low is not None and p.high is not None
                total *= p.high - p.low + 1
            elif not p.constant:
                return math.inf
        return total

    def __getitem__(self, name: str) -> Parameter:
        for p in self.parameters:
            if p.name == name:
                return p
        raise BadInput(f"no parameter {name!r}; {nearest(name, self.names)}", value=name)

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __len__(self) -> int:
        return len(self.parameters)

    def validated(self, params: Mapping[str, object], *, where: str = "") -> Params:
        """Return all parameters as plain values in the space's order, defaults filled in.

        Parameters that are not active there (see `Parameter.when`) are left out.

        Raises:
            BadInput: Unknown name, missing value, wrong type, out of bounds, or a constraint is not kept.
        """
        place = f" ({where})" if where else ""
        names = self.names
        for name in params:
            if name not in names:
                raise BadInput(f"unknown parameter {name!r}{place}; {nearest(name, names)}", value=name)
        values: Params = {}
        for p in self.parameters if self.simple else self._in_order:
            if p.when is not None and not self._is_on(p, values):
                continue
            given = params.get(p.name, p.default)
            if given is None:
                if p.constant and p.kind != "text":
                    given = p.choices[0] if p.kind == "choice" else p.low
                else:
                    raise BadInput(f"parameter {p.name!r} has no value{place}; allowed: {p.range}.")
            try:
                values[p.name] = p.validated(given)
            except BadInput as error:
                raise BadInput(error.message.rstrip(".") + f"{place}.", **error.details) from None
        if self.simple:
            return values
        broken = self.violated(values)
        if broken is not None:
            raise BadInput(f"{broken}{place}; change one of these values.", value=broken)
        return {name: values[name] for name in names if name in values}

    @cached_property
    def _in_order(self) -> tuple[Parameter, ...]:
        """The parameters, conditional ones after those that decide about them."""
        last = [name for name, _, _ in self.region.columns.whens]
        return tuple(p for p in self.parameters if p.when is None) + tuple(self[name] for name in last)

    @staticmethod
    def _is_on(p: Parameter, values: Mapping[str, Scalar]) -> bool:
        return p.when is None or (
            Constraint(text=p.when).names <= set(values) and bool(holds(Constraint(text=p.when).node, values))
        )

    def clipped(self, params: Mapping[str, Scalar]) -> Params:
        """Return the nearest point: numbers moved to the bounds, whole numbers rounded, equalities settled.

        It may still break another constraint; what is not active is left out.
        """
        values: Params = {}
        for p in self.parameters:
            if p.name not in params and not self.simple:
                continue
            value = params[p.name]
            if p.kind in ("choice", "text"):
                values[p.name] = p.validated(value)
                continue
            assert p.low is not None and p.high is not None and not isinstance(value, str)
            number = min(max(float(value), p.low), p.high)
            values[p.name] = round(number) if p.kind == "int" else number
        return values if self.simple else self.region.columns.point(values)

    def from_unit(self, u: Sequence[float] | NDArray[np.float64]) -> Params:
        """Map a point of the unit cube, `u: (len(space),)`, to parameters.

        Equalities are settled (the nearest point at which they hold) and what is not active is left out; another
        constraint may still be broken, see `allows`.
        """
        values = {p.name: p.from_unit(float(x)) for p, x in zip(self.parameters, u, strict=True)}
        return values if self.simple else self.region.columns.point(values)

    def to_unit(self, params: Mapping[str, Scalar]) -> NDArray[np.float64]:
        """Map parameters to the unit cube; returns `(len(space),)` float64 in [0, 1], 0.5 for what is left out."""
        if self.simple:
            return np.array([p.to_unit(params[p.name]) for p in self.parameters])
        return np.array([p.to_unit(params[p.name]) if p.name in params else 0.5 for p in self.parameters])

    def sample(self, rng: np.random.Generator, n: int) -> list[Params]:
        """Draw `n` allowed points uniformly (on the log scale where a parameter is logarithmic).

        Raises:
            BadInput: No point is allowed.
        """
        if self.simple:
            return [self.from_unit(u) for u in rng.random((n, len(self)))]
        seed = int(rng.integers(2**31))
        units = lambda stop: np.random.default_rng(seed).random((stop, len(self)))  # noqa: E731
        found = self.region.sequence(units, n, seed=seed, even=False)
        if n and not found:
            raise self.region.columns.empty()
        return [dict(found[i % len(found)]) for i in range(n)]

    def grid(self, levels: int | Mapping[str, int] = 3) -> list[Params]:
        """All allowed combinations of `levels` values of each parameter (every choice of a choice).

        A number that follows from an equality (the last of `a + b + c == 1`) takes what follows.

        Args:
            levels: One number for all, or one for each parameter name (3 where not named).

        Example:
            >>> from hpcagent.model.parameter import Choice, Float
            >>> len(Space.of(x=Float(0, 1), c=Choice("a", "b")).grid(5))
            10
        """
        if isinstance(levels, Mapping):
            for name in levels:
                self[name]
            count = {p.name: int(levels.get(p.name, 3)) for p in self.parameters}
        else:
            count = {p.name: int(levels) for p in self.parameters}
        axes = [p.levels(count[p.name]) for p in self.parameters]
        if not self.simple:
            return self.region.combined(axes)
        return [dict(zip(self.names, values, strict=True)) for values in product(*axes)]

    def narrowed(self, changes: Mapping[str, Mapping[str, Any]]) -> Space:
        """A copy in which the named parameters have tighter ranges (see `Parameter.narrowed`)."""
        for name in changes:
            self[name]
        return Space(
            parameters=tuple(p.narrowed(**changes[p.name]) if p.name in changes else p for p in self.parameters),
            constraints=self.constraints,
        )

    def json_schema(self) -> dict[str, Any]:
        """The JSON Schema (2020-12) of a dict of these parameters.

        Example:
            >>> from hpcagent.model.parameter import Float
            >>> Space.of(x=Float(0, 1)).json_schema()["required"]
            ['x']
        """
        schema: dict[str, Any] = {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "properties": {p.name: p.json_schema() for p in self.parameters},
            "required": [p.name for p in self.parameters if p.default is None and p.when is None],
            "additionalProperties": False,
        }
        if self.constraints:
            # JSON Schema has no way to compare properties: said in words, and as a list for programs.
            schema["description"] = "Constraints: " + "; ".join(map(str, self.constraints))
            schema["x-constraints"] = [str(c) for c in self.constraints]
        return schema


__getattr__ = moved(
    __name__,
    dict.fromkeys(("Choice", "File", "Float", "Int", "Parameter", "Params", "Text"), "hpcagent.model.parameter"),
)
