"""The same call with something changed: "the same, 50 degrees higher", checked by the app's contract."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from pydantic import model_validator

from hpcagent.contexts.document import Call, Document, Operation, record_call
from hpcagent.errors import BadInput, in_brief, nearest
from hpcagent.model.base import Record, Scalar, build
from hpcagent.model.contract import Contract
from hpcagent.model.parameter import Parameter
from hpcagent.units import convert

__all__ = ["Change", "HasContract", "NewCall", "again", "new_call", "read_change", "recalled"]

_CELSIUS = ("degC", "°C", "celsius")
_ZERO_CELSIUS_K = 273.15

_FORM = re.compile(
    r"\s*(?P<name>[A-Za-z_]\w*)\s*(?:(?P<set>=)\s*(?P<value>.*?)|(?P<sign>[+-])\s*(?P<step>[^+-].*?)"
    r"|(?P<times>[x*×/])\s*(?P<factor>[^\s].*?))\s*\Z",
    re.DOTALL,
)
_NUMBER = re.compile(r"(?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(?P<unit>.*)\Z", re.DOTALL)


class HasContract(Protocol):
    """An app: what has a contract."""

    @property
    def contract(self) -> Contract:
        """What it takes and gives."""
        ...


class Change(Record):
    """A change of one parameter of a call; one of `set`, `add` and `times` is given.

    Attributes:
        field: Name of the parameter.
        set: The new value.
        add: What is added to the old value; negative: subtracted.
        times: The factor of the old value.
        unit: Unit of `set` or `add`. A number needs it where the parameter has one.

    Example:
        >>> Change(field="temperature", add=50, unit="K")
        Change(field='temperature', set=None, add=50.0, times=None, unit='K')
    """

    field: str
    set: Scalar | None = None
    add: float | None = None
    times: float | None = None
    unit: str = ""

    @model_validator(mode="after")
    def _check(self) -> Change:
        given = [name for name in ("set", "add", "times") if getattr(self, name) is not None]
        if len(given) != 1:
            raise BadInput(
                f"a change of {self.field!r} has one of set, add and times; got {', '.join(given) or 'none'}."
            )
        number = getattr(self, given[0])
        if isinstance(number, float) and not math.isfinite(number):
            raise BadInput(f"{self.field}: {given[0]}={number} is not finite.", value=number)
        if self.unit and given[0] == "times":
            raise BadInput(f"{self.field}: a factor has no unit; got {self.unit!r}.", value=self.unit)
        return self

    def __str__(self) -> str:
        unit = f" {self.unit}" if self.unit else ""
        if self.set is not None:
            return f"{self.field}={self.set}{unit}"
        if self.add is not None:
            return f"{self.field} {self.add:+g}{unit}"
        return f"{self.field} x{self.times:g}"


def read_change(text: str) -> Change:
    """A change that is written as a text.

    Args:
        text: `temperature=350 K`, `temperature +50 K`, `temperature -50 K`, `timestep x2`, `timestep /2`,
            `style=omp`.

    Raises:
        BadInput: It has no such form.

    Example:
        >>> read_change("temperature +50 K").add, read_change("timestep /2").times
        (50.0, 0.5)
    """
    if not isinstance(text, str):
        raise BadInput(f"a change is a text or a table; got {in_brief(text)}.", value=text)
    found = _FORM.match(text) if len(text) < 5000 else None
    if found is None:
        raise BadInput(
            f"{in_brief(text)} is no change; write NAME=VALUE UNIT, NAME +VALUE UNIT, NAME -VALUE UNIT, NAME "
            "xFACTOR or NAME /FACTOR, e.g. 'temperature +50 K'.",
            value=text[:200],
        )
    name = found["name"]
    if found["set"]:
        return _read_set(name, found["value"])
    if found["sign"]:
        number, unit = _number(found["step"], text)
        return build(
            Change, {"field": name, "add": -number if found["sign"] == "-" else number, "unit": unit}, where=text
        )
    number, unit = _number(found["factor"], text)
    if unit:
        raise BadInput(f"{in_brief(text)}: a factor has no unit; got {unit!r}.", value=text)
    if found["times"] == "/":
        if number == 0:
            raise BadInput(f"{in_brief(text)} divides by zero.", value=text)
        number = 1 / number
    return build(Change, {"field": name, "times": number}, where=text)


def _number(text: str, whole: str) -> tuple[float, str]:
    found = _NUMBER.match(text)
    if found is None:
        raise BadInput(f"{in_brief(whole)}: {in_brief(text)} is no number.", value=whole[:200])
    return float(found["number"]), found["unit"]


def _read_set(name: str, text: str) -> Change:
    if not text:
        raise BadInput(f"'{name}=' gives no value.", value=name)
    if text[0] in "'\"" and len(text) > 1 and text[-1] == text[0]:
        return Change(field=name, set=text[1:-1])
    if text in ("true", "false"):
        return Change(field=name, set=text == "true")
    found = _NUMBER.match(text)
    if found is None:
        return Change(field=name, set=text)
    # Whether it is a number or a word that begins with one (`2x2`) only the parameter knows: see `_set_value`.
    return Change(field=name, set=text)


@dataclass(frozen=True, slots=True)
class NewCall:
    """A call that was checked and can be made.

    Attributes:
        app: Name of the app.
        version: Its version.
        params: All arguments, in the units of the contract, defaults filled in.
        units: Unit of each number that has one.
        since: Id of the call that it was made of; empty where it is of none.
        changes: What was changed, in words.
        notes: What is to be known beside: parameters that do not apply any more, another version.
    """

    app: str
    version: str
    params: dict[str, Any]
    units: dict[str, str]
    since: str = ""
    changes: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())

    def record(self, id: str, *, result: str = "", outputs: Mapping[str, object] | None = None) -> Operation:
        """The operation that records it in a context, see `hpcagent.contexts.record_call`."""
        return record_call(
            id, self.app, self.version, self.params, units=self.units, result=result, outputs=outputs
        )


def new_call(app: HasContract | Contract, params: Mapping[str, object]) -> NewCall:
    """A first call of an app, checked by its contract.

    Args:
        app: The app, or its contract.
        params: The arguments, in the contract's units.

    Raises:
        BadInput: A parameter that the app does not have, or a value that is not allowed.

    Example:
        >>> from hpcagent.apps.landscape import synthetic
        >>> new_call(synthetic, {"x": 0.25}).params["x"]
        0.25
    """
    contract = _contract(app)
    values = contract.space.validated(params, where=f"app {contract.name} {contract.version}")
    left_out = [name for name in params if name not in values]
    if left_out:
        raise BadInput(_no_effect(contract, left_out[0]), value=left_out[0])
    return NewCall(contract.name, contract.version, dict(values), _units(contract, values))


def again(
    document: Document,
    changes: str | Change | Mapping[str, Any] | Sequence[str | Change | Mapping[str, Any]],
    find: Callable[[str], HasContract | Contract],
    *,
    call: str | None = None,
    app: str | None = None,
    other_version: bool = False,
) -> NewCall:
    """An earlier call with something changed. It runs nothing.

    Args:
        document: The context, as it was read.
        changes: As for `read_change`, a `Change`, a table of its fields, or several of them.
        find: Gives the app of a name, e.g. `ha.find_app`, or a dictionary's `__getitem__`.
        call: Id of the earlier call; None: the last one.
        app: The last call of this app.
        other_version: Go on where the app has another version now than it had in that call; else that is refused.

    Returns:
        The new call, with all its parameters.

    Raises:
        BadInput: There is no such call; a parameter that the app does not have; a unit that is missing, unknown or
            of another dimension; a value that is not allowed; another version of the app.

    Example:
        >>> import hpcagent as ha
        >>> from hpcagent.contexts.document import Call, Document
        >>> kelvin = ha.Float(50, 900, unit="K")
        >>> @ha.app(parameters={"temperature": kelvin}, metrics={"energy": "eV"}, version="1.0.0")
        ... def reaction(temperature):
        ...     return {"energy": 0.1 * temperature}
        >>> first = Call("call-1", "reaction", "1.0.0", {"temperature": 300.0}, {"temperature": "K"})
        >>> document = Document("c", 1, 0.0, {}, {}, (), (), (first,))
        >>> again(document, "temperature +50 K", {"reaction": reaction}.__getitem__).params
        {'temperature': 350.0}
    """
    earlier = document.call(call, app=app)
    contract = _contract(find(earlier.app))
    notes = _same_app(earlier, contract, other_version)
    before = _in_units_of_today(earlier, contract)
    wanted = _listed(changes)
    params: dict[str, object] = dict(before)
    changed: set[str] = set()
    for change in wanted:
        if change.field in changed:
            raise BadInput(f"{change.field!r} is changed twice; say once what it is to be.", value=change.field)
        params[change.field] = _changed(contract, change, before)
        changed.add(change.field)
    values = contract.space.validated(params, where=f"app {contract.name} {contract.version}")
    for name in params:
        if name not in values:
            if name in changed:
                raise BadInput(_no_effect(contract, name), value=name)
            notes += (f"{name}={params[name]} is left out: it applies only when {contract.space[name].when}",)
    for name in values:
        if name not in params:
            notes += (f"{name}={values[name]} is the default: the earlier call did not have it",)
    return NewCall(
        contract.name,
        contract.version,
        dict(values),
        _units(contract, values),
        since=earlier.id,
        changes=tuple(map(str, wanted)),
        notes=notes,
    )


def recalled(document: Document, find: Callable[[str], HasContract | Contract]) -> dict[str, str]:
    """For each call of a context, why it cannot be made again as it was; empty where it can.

    Args:
        document: The context, as it was read.
        find: See `again`. Where it raises `BadInput` or `KeyError`, there is no such app.

    Example:
        >>> from hpcagent.apps.landscape import synthetic
        >>> from hpcagent.contexts.document import Call, Document
        >>> old = Call("call-1", "synthetic", "0.0.1", {"x": 0.5})
        >>> recalled(Document("c", 1, 0.0, {}, {}, (), (), (old,)), lambda name: synthetic)["call-1"].split(";")[0]
        "call 'call-1' was made with synthetic 0.0.1, which is 1.0.0 now"
    """
    found = {}
    for call in document.calls:
        try:
            contract = _contract(find(call.app))
            _same_app(call, contract, False)
            contract.space.validated(
                _in_units_of_today(call, contract), where=f"app {contract.name} {contract.version}"
            )
            found[call.id] = ""
        except BadInput as error:
            found[call.id] = error.message
        except KeyError:
            found[call.id] = f"there is no app {call.app!r} any more."
    return found


def _contract(app: HasContract | Contract) -> Contract:
    return app if isinstance(app, Contract) else app.contract


def _listed(given: Any) -> list[Change]:
    if not isinstance(given, (str, Change, Mapping, list, tuple)):
        raise BadInput(f"a change is a text or a table, or a list of them; got {in_brief(given)}.", value=given)
    several = list(given) if isinstance(given, (list, tuple)) else [given]
    if not several:
        raise BadInput("no change is given; the same call again needs none of this function.")
    return [
        one
        if isinstance(one, Change)
        else build(Change, one, where="a change")
        if isinstance(one, Mapping)
        else read_change(one)
        for one in several
    ]


def _same_app(call: Call, contract: Contract, other_version: bool) -> tuple[str, ...]:
    if contract.name != call.app:
        raise BadInput(
            f"call {call.id!r} is of app {call.app!r}, and the app that was found is {contract.name!r}.",
            value=contract.name,
        )
    if contract.version == call.version:
        return ()
    what = f"call {call.id!r} was made with {call.app} {call.version}, which is {contract.version} now"
    if not other_version:
        raise BadInput(
            f"{what}; its result may mean something else. Give other_version=True to go on with "
            f"{contract.version}.",
            value=contract.version,
        )
    return (what,)


def _in_units_of_today(call: Call, contract: Contract) -> dict[str, Any]:
    made = {}
    for name, value in call.params.items():
        if name not in contract.space:
            raise BadInput(
                f"call {call.id!r} has a parameter {name!r}, which app {contract.name} {contract.version} does "
                f"not have; {nearest(name, contract.space.names)}",
                value=name,
            )
        then, now = call.units.get(name, contract.space[name].unit), contract.space[name].unit
        made[name] = _rounded(convert(value, then, now)) if then != now and _is_number(value) else value
    return made


def _changed(contract: Contract, change: Change, before: Mapping[str, Any]) -> object:
    name = change.field
    if name not in contract.space:
        raise BadInput(
            f"app {contract.name} {contract.version} has no parameter {name!r}; "
            f"{nearest(name, contract.space.names)}",
            value=name,
        )
    parameter = contract.space[name]
    if change.set is not None:
        return _set_value(parameter, change)
    old = before.get(name, parameter.default)
    if not _is_number(old):
        what = f"is {old!r}" if old is not None else "has no value in that call"
        raise BadInput(
            f"'{change}': {name} {what}, so it cannot be added to or multiplied; write {name}=VALUE, allowed: "
            f"{parameter.range}.",
            value=old,
        )
    if change.times is not None:
        made = float(old) * change.times
    else:
        assert change.add is not None
        made = float(old) + _in_unit(parameter, change.add, change.unit, str(change), step=True)
    return _whole(parameter, _rounded(made))


def _set_value(parameter: Parameter, change: Change) -> object:
    value, unit = change.set, change.unit
    if parameter.kind == "text" or (isinstance(value, str) and value in parameter.choices):
        if unit:
            raise BadInput(f"'{change}': {parameter.name} is a text and has no unit.", value=unit)
        return value
    if isinstance(value, str):
        found = _NUMBER.match(value)
        words_only = parameter.kind == "choice" and not any(map(_is_number, parameter.choices))
        if found is None or words_only:
            return value  # a word: the parameter says whether it is one of its choices
        value, unit = float(found["number"]), unit or found["unit"]
    if isinstance(value, bool):
        return value
    assert value is not None
    return _whole(parameter, _rounded(_in_unit(parameter, float(value), unit, str(change), step=False)))


def _in_unit(parameter: Parameter, value: float, unit: str, said: str, *, step: bool) -> float:
    """A number in the parameter's unit."""
    wanted = parameter.unit
    if not unit:
        if wanted == "1":
            return value
        raise BadInput(
            f"'{said}': {parameter.name} is in {wanted}, and the number has no unit; write it, e.g. '{said} "
            f"{wanted}'.",
            value=said,
        )
    if unit in _CELSIUS:
        value, unit = value if step else value + _ZERO_CELSIUS_K, "K"
    try:
        return convert(value, unit, wanted)
    except BadInput as error:
        raise BadInput(f"'{said}': {error.message}", **error.details) from None


def _whole(parameter: Parameter, value: float) -> float | int:
    """A whole number for parameters of whole numbers; what is none is refused by the parameter."""
    whole = parameter.kind == "int" or (
        parameter.kind == "choice" and any(type(choice) is int for choice in parameter.choices)
    )
    return int(value) if whole and value == int(value) else value


def _rounded(value: float) -> float:
    """Fifteen digits, so that 0.1 + 0.2 is 0.3."""
    return float(f"{value:.15g}")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _units(contract: Contract, values: Mapping[str, Any]) -> dict[str, str]:
    return {
        name: contract.space[name].unit
        for name, value in values.items()
        if _is_number(value) and contract.space[name].unit != "1"
    }


def _no_effect(contract: Contract, name: str) -> str:
    when = contract.space[name].when
    return (
        f"{name} of app {contract.name} {contract.version} applies only when {when}, which is not so here; leave "
        "it out."
    )
