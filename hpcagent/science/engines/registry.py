"""Finds an engine by its name, and holds a level of theory against what the engine can do."""

from __future__ import annotations

import importlib
from dataclasses import fields

from hpcagent.errors import AppFailed, BadInput, nearest
from hpcagent.offered import load
from hpcagent.science.engines.base import BUILT_IN, ENGINES, LEVEL, Engine, Level
from hpcagent.science.engines.dipole import check_dipole

__all__ = ["SETTINGS", "check", "engine"]

# Where an engine is, if not as ENGINE in the module of its name.
_PLACES = {"emt": "classical:EMT", "lj": "classical:LJ", "ase": "dotted:ENGINE"}

SETTINGS: dict[str, tuple[str, ...]] = {
    "pyscf": ("keywords",),
    "tblite": ("keywords",),
    "emt": ("keywords",),
    "lj": ("keywords",),
    "mace": ("keywords", "checkpoint"),
    "ase": ("keywords", "calculator"),
}
"""Settings of an app that an engine reads; one that is not named here reads what it likes."""

# Of the app's settings: those that are for engines.
_FOR_ENGINES = (
    "keywords",
    "pseudopotentials",
    "family",
    "pseudo_dir",
    "command",
    "calculator",
    "vacuum",
    "pools",
    "keep",
    "checkpoint",
)


def engine(name: str) -> Engine:
    """The engine of that name. Its packages are imported only when it makes a calculator.

    Raises:
        AppFailed: `BadSettings`: no such name; `NoEngine`: this installation has no such module.

    Example:
        >>> engine("emt").kind
        'classical'
    """
    if name not in ENGINES:
        raise AppFailed(
            f"engine {name!r} is not known; {nearest(name, ENGINES)}", kind="contract", name="BadSettings"
        )
    if name not in BUILT_IN:
        try:
            offered_one: Engine = load("engines", name, {})
        except BadInput as error:
            raise AppFailed(error.message, kind="infrastructure", name="NoEngine") from None
        return offered_one
    module, _, attribute = _PLACES.get(name, f"{name}:ENGINE").partition(":")
    path = f"{__package__}.{module}"
    try:
        found: Engine = getattr(importlib.import_module(path), attribute)
    except ModuleNotFoundError as error:
        if error.name != path:
            raise
        raise AppFailed(
            f"this installation of hpcagent has no engine {name!r} (module {path}).",
            kind="infrastructure",
            name="NoEngine",
            repair="install the same version of hpcagent on the site as here",
        ) from None
    return found


def check(engine: Engine, level: Level) -> None:
    """Refuse what the engine would pass over in silence: a parameter or a setting that it does not take.

    Raises:
        AppFailed: `BadSettings`, naming all of them and what it takes.
    """
    taken = {"engine", "repairs", "options", *engine.takes}
    defaults = {name: parameter.default for name, parameter in LEVEL.items()}
    ignored = [
        f"{field.name}={getattr(level, field.name)!r}"
        for field in fields(level)
        if field.name not in taken and getattr(level, field.name) != defaults[field.name]
    ]
    if ignored:
        takes = ", ".join(name for name in LEVEL if name in engine.takes and name != "engine")
        raise AppFailed(
            f"engine {engine.name!r} does not take {', '.join(ignored)}; it takes {takes or 'no parameters'}. "
            "Leave the others at their defaults.",
            kind="contract",
            name="BadSettings",
        )
    check_dipole(level.options.get("dipole", "off"), engine.name)
    reads = SETTINGS.get(engine.name)
    if reads is None:
        return
    unread = [name for name in _FOR_ENGINES if level.options.get(name) and name not in reads]
    if unread:
        raise AppFailed(
            f"engine {engine.name!r} does not read the setting(s) {', '.join(unread)}; it reads "
            f"{', '.join(reads)}.",
            kind="contract",
            name="BadSettings",
        )
