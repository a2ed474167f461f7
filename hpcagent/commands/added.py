"""Ranges of a LAMMPS script's variables as `hpcagent workspace add-app` takes them: `T=100:500`."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcagent.commands.axes import axis, named_values
from hpcagent.errors import BadInput, nearest

if TYPE_CHECKING:
    from hpcagent.model.parameter import Parameter
    from hpcagent.model.space import Space

__all__ = ["shown", "variables_of"]

HOW = "write NAME=LOW:HIGH, NAME=LOW:HIGH:log or NAME=LOW:HIGH:int for a range, NAME=A,B,C for a few values"
UNITS = "K, ps, fs, angstrom, nm, eV, bar, GPa, steps"
FORMS = "angstrom/ps, kcal/mol, eV/angstrom^3"
# The words of a command that LAMMPS takes as whole numbers only.
_COUNTS = {"run": 1, "thermo": 1}


def variables_of(script: str, words: Sequence[str], units: Sequence[str] | None) -> dict[str, Parameter]:
    """The parameters that the words of the command line declare.

    Args:
        script: Path of the script; a contract beside it has units of what it declares, too.
        words: `T=100:500`, `style=a,b`.
        units: `T=K`.

    Raises:
        BadInput: A word is no range, a unit is missing, or a name is given twice.
    """
    named = named_values(units, "--unit")
    known = _declared(script)
    counts = _counts(script)
    found: dict[str, Parameter] = {}
    for word in words:
        name, parameter = _one(word, named, known, counts)
        if name in found:
            raise BadInput(f"{name} is given twice; write it once.", value=name)
        found[name] = parameter
    unknown = next((name for name in named if name not in found), None)
    if unknown is not None:
        raise BadInput(
            f"--unit {unknown}={named[unknown]}: no range is given for {unknown}; {nearest(unknown, list(found))} "
            f"Write {unknown}=LOW:HIGH too.",
            value=unknown,
        )
    return found


def _one(word: str, units: dict[str, str], known: Space | None, counts: set[str]) -> tuple[str, Parameter]:
    from hpcagent.model.parameter import Choice, Float, Int

    text, whole = word.removesuffix(":int"), word.endswith(":int")
    if text.removesuffix(":log").count(":") > 1:
        raise BadInput(
            f"{word!r}: how many points there are is a matter of a sweep, not of an app; {HOW}.", value=word
        )
    try:
        name, of = axis(text)
    except BadInput as error:
        raise BadInput(f"{word!r}: {HOW}.", value=word) from error
    declared = known[name] if known is not None and name in known else None
    if not isinstance(of, (list, dict)):
        raise BadInput(
            f"{word!r}: one value is no range; {HOW}. A value that stays belongs into the script: variable {name} "
            f"index {of}.",
            value=word,
        )
    unit = units.get(name) or (declared.unit if declared is not None else "")
    if isinstance(of, list):
        if whole:
            raise BadInput(f"{word!r}: :int is for a range; {HOW}.", value=word)
        numbers = all(isinstance(one, (int, float)) and not isinstance(one, bool) for one in of)
        _need_unit(name, unit if numbers else unit or "1")
        return name, Choice(*of, unit=unit or "1")
    _need_unit(name, unit)
    low, high, log = of["low"], of["high"], bool(of.get("log"))
    _need_order(word, name, low, high)
    if whole or name in counts or (declared is not None and declared.kind == "int"):
        if not all(isinstance(one, int) for one in (low, high)):
            raise BadInput(f"{word!r}: the bounds of a whole number are whole numbers.", value=word)
        return name, Int(low, high, unit=unit, log=log)
    return name, Float(low, high, unit=unit, log=log)


def _need_unit(name: str, unit: str) -> None:
    if not unit:
        raise BadInput(
            f"{name}: its unit is missing. Write --unit {name}=UNIT, the unit in which the script takes it, as "
            f"the number goes to it as it stands. UNIT is a unit ({UNITS}), units with *, / and ^ ({FORMS}), or 1 "
            "for a pure number.",
            value=name,
        )


def _need_order(word: str, name: str, low: float, high: float) -> None:
    if low > high:
        raise BadInput(
            f"{word!r}: low > high for {name}: {low:g} > {high:g}; write the smaller first: "
            f"{name}={high:g}:{low:g}.",
            value=word,
        )


def _declared(script: str) -> Space | None:
    """What a contract beside the script declares."""
    from hpcagent.science.lammps.contract import lammps

    with contextlib.suppress(BadInput):
        return lammps(script).contract.space
    return None


def _counts(script: str) -> set[str]:
    """Variables that are, alone, how many steps a command takes."""
    from hpcagent.science.lammps.script import REFERENCE, commands, read_script

    path, found = Path(script).expanduser(), set[str]()
    text: Any = ""
    with contextlib.suppress(BadInput):
        text = read_script(path).text if path.is_file() and path.suffix != ".toml" else ""
    for one in commands(text):
        at = _COUNTS.get(one.name, len(one.words))
        match = REFERENCE.fullmatch(one.words[at]) if at < len(one.words) else None
        if match is not None:
            found.add(next(filter(None, match.groups())))
    return found


def shown(what: str, found: Any) -> str:
    """Cards of added apps, or a contract, for a person."""
    from hpcagent.shown import plain

    if what == "describe":
        return plain("\n".join(_described(found)))
    cards = found if isinstance(found, list) else [found]
    return plain("\n\n".join(map(_card, cards)) or "none")


def _described(contract: dict[str, Any]) -> list[str]:
    from hpcagent.model.contract import Contract

    made = Contract.model_validate(contract)
    lines = [f"{made.name} {made.version}: {made.description}", "parameters:"]
    for one in made.space.parameters:
        default = "" if one.default is None else f", {one.default} by default"
        about = f": {one.description}" if one.description else ""
        lines.append(f"  {one.name} {one.range}{default}{about}")
    lines.append("metrics:")
    lines += [
        f"  {one.name} ({one.unit}){': ' + one.description if one.description else ''}" for one in made.metrics
    ]
    return lines


def _card(one: dict[str, Any]) -> str:
    if one.get("removed"):
        return f"{one['name']}: removed; its runs stay"
    lines = [
        f"{one['name']} {one['version']}: {one['state']}; SHA-256 {one['sha256'][:12]}",
        f"  {one['description']}",
    ]
    lines += [f"  {name}: {said}" for name, said in one["parameters"].items()]
    lines += [f"  file {name}, SHA-256 {digest[:12]}" for name, digest in one["files"].items()]
    lines.append(f"  added by {one['asked_by']}, sandbox {one['sandbox']}, {one['limit']}")
    lines += [f"  look at: {line}" for line in one["warnings"]]
    lines += [f"  {one['state']} by {one['decided_by']}: {one['note']}"] if one["decided_by"] else []
    lines += [f"  cannot be used: {one['problem']}"] if one["problem"] else []
    if one["state"] == "pending":
        lines.append(
            f"  waits for a person: `hpcagent tools show {one['name']}`, `hpcagent tools approve {one['name']}`"
        )
    return "\n".join(lines)
