"""The space of a LAMMPS app: the variables of its contract, with the defaults that the script has."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcagent.errors import BadInput
from hpcagent.model.base import Scalar, build
from hpcagent.model.files import with_file_choices
from hpcagent.model.parameter import Parameter
from hpcagent.model.space import Space
from hpcagent.science.lammps.contract_file import ContractFile, Variable
from hpcagent.science.lammps.script import Script

__all__ = ["space_of"]


def space_of(read: Script, file: ContractFile, given: Mapping[str, Parameter], where: str, folder: Path) -> Space:
    """An app's parameters: those of its contract, over them those given in Python, with the script's defaults.

    Raises:
        BadInput: A default is missing or not allowed, or a variable has no value.
    """
    parameters = _parameters(file, where, folder)
    for name, parameter in given.items():
        if not isinstance(parameter, Parameter):
            raise BadInput(
                f"variables={{{name!r}: {parameter!r}}}: a variable is given as ha.Float(low, high, unit=...), "
                "ha.Int(...), ha.Choice(...) or ha.File(...).",
                value=parameter,
            )
        parameters[name] = parameter.model_copy(update={"name": name})
    with_defaults = [_with_default(read, p) for p in parameters.values()]
    for p in with_defaults:
        if p.when is not None and p.default is None:
            raise BadInput(
                f"{where}: variable {p.name!r} is left out where {p.when!r} is not kept, and has no default; give "
                f"it one, or define it in the script (variable {p.name} index ...).",
                value=p.name,
            )
    return Space(parameters=tuple(with_defaults))


def _parameters(file: ContractFile, where: str, folder: Path) -> dict[str, Parameter]:
    """The contract's own variables; what is wrong with them is told of all at once."""
    parameters: dict[str, Parameter] = {}
    lacking: list[str] = []
    wrong: list[BadInput] = []
    for name, variable in file.variables.items():
        if variable.unit is None and _kind(variable) != "choice":
            lacking.append(f"variables.{name}")
            continue
        try:
            parameters[name] = _parameter(name, variable, where, folder)
        except BadInput as error:
            wrong.append(error)
    if lacking:
        said = f"{where}, {', '.join(lacking)}: the key 'unit' is missing; write '1' for a pure number."
        wrong.insert(0, BadInput(said))
    if len(wrong) == 1:
        raise wrong[0]
    if wrong:
        raise BadInput(" ".join(error.message for error in wrong))
    return parameters


def _kind(variable: Variable) -> str:
    return variable.kind or ("choice" if variable.choices or variable.files else "float")


def _parameter(name: str, variable: Variable, where: str, folder: Path) -> Parameter:
    data: dict[str, Any] = with_file_choices(variable.model_dump(exclude_none=True), folder, f"{where}, {name}")
    unit = "1" if variable.unit is None else variable.unit
    return build(
        Parameter, data | {"name": name, "kind": _kind(variable), "unit": unit}, where=f"{where}, variables.{name}"
    )


def _with_default(read: Script, parameter: Parameter) -> Parameter:
    """Take the script's own `variable x index 1.0` as the default, where it is allowed."""
    style, word = read.defined.get(parameter.name, ("", ""))
    if any(isinstance(choice, bool) for choice in parameter.choices):
        raise BadInput(
            f"variables.{parameter.name}: a LAMMPS variable is a number or a word, not true or false; list what "
            'the script takes there, e.g. choices = ["yes", "no"] or [1, 0].',
            value=list(parameter.choices),
        )
    if parameter.default is not None or style not in ("index", "string"):
        return parameter
    value: Scalar = next((c for c in parameter.choices if str(c) == word), word)
    if parameter.kind != "choice":
        try:
            value = float(word)
        except ValueError:
            return parameter
    try:
        return parameter.model_copy(update={"default": parameter.validated(value)})
    except BadInput:
        return parameter
