"""Finds an app by what a person calls it: a name, a script, a contract, a dotted path."""

from __future__ import annotations

import contextlib
import functools
import importlib
import re
from pathlib import Path

from hpcagent.apps import BUILT_IN
from hpcagent.apps.base import App
from hpcagent.errors import BadInput, nearest
from hpcagent.model.base import read_toml
from hpcagent.moved import new_name
from hpcagent.offered import load, offered, path_of

__all__ = [
    "app_names",
    "find_app",
    "from_name",
    "is_executable",
    "is_packaged",
    "list_apps",
    "look_up",
    "not_deprecated",
]

_VERSIONED = re.compile(r"(?P<app>.+)@(?P<version>\d+\.\d+\.\d+([-+][0-9A-Za-z.+-]+)?)\Z", re.S)

_FROM_NAME = {
    "adsorption_energy": "adsorption",
    "dft_eos": "eos",
    "neb": "vacancy_migration",
    "phonons": "crystal_phonons",
    "substitution": "crystal_substitution",
    "surface_energy": "crystal_surface_energy",
    "vacancy": "crystal_vacancy",
    "vibrations": "molecule_vibrations",
}


def from_name(app: str) -> str:
    """The built-in app that builds the input of another from a name; empty: there is none.

    Example:
        >>> from_name("phonons")
        'crystal_phonons'
    """
    return _FROM_NAME.get(app, "")


def find_app(reference: str, *, relative_to: Path | None = None) -> App:
    """Return the app that `reference` names.

    Args:
        reference: A built-in name (`synthetic`), a packaged LAMMPS input (`lj_argon`), the path of an
            input script or its contract, the path of an executable's TOML (with a key `command`) or of a
            service's (with a table `[http]`), a name that a
            package offers by an entry point in the group `hpcagent.apps`, or `package.module:name` of an app made
            with `@app`. With `@` and a version behind it (`synthetic@1.0.0`) that version is meant and no other.
        relative_to: Folder that a relative path starts from (that of the campaign's TOML).

    Raises:
        BadInput: Nothing of that name; the message names the nearest. Or it is there with another version than the
            one asked for, or is deprecated and not asked for by its version.

    Example:
        >>> find_app("synthetic").name
        'synthetic'
        >>> find_app("synthetic@1.0.0").contract.version
        '1.0.0'
    """
    app, version = _looked_up(reference, relative_to)
    return app if version else not_deprecated(app, reference)


def look_up(reference: str, *, relative_to: Path | None = None) -> App:
    """As `find_app`, also an app that is deprecated: to show it, or where a record names it.

    Raises:
        BadInput: Nothing of that name, or another version of it.
    """
    return _looked_up(reference, relative_to)[0]


def not_deprecated(app: App, reference: str) -> App:
    """The app, if it may be used without naming its version.

    Raises:
        BadInput: It is deprecated: why, and how it is had all the same.
    """
    c = app.contract
    if c.deprecated is None:
        return app
    why = c.deprecated.rstrip(".")
    raise BadInput(
        f"app {c.name!r} {c.version} is deprecated: {why}. To use it all the same, ask for its version: "
        f"'{reference}@{c.version}'.",
        value=reference,
    )


def _looked_up(reference: str, relative_to: Path | None) -> tuple[App, str]:
    """The app, and the version that was asked for, or empty."""
    asked = _VERSIONED.match(reference)
    if asked is None or _is_file(reference, relative_to):
        return _named(reference, relative_to), ""
    name, version = asked["app"], asked["version"]
    app = _named(name, relative_to)
    if app.contract.version != version:
        raise BadInput(
            f"app {name!r} has version {app.contract.version} here, not {version}; ask for '{name}' or "
            f"'{name}@{app.contract.version}', or install what has {version}.",
            value=reference,
        )
    return app, version


def _is_file(reference: str, relative_to: Path | None) -> bool:
    path = Path(reference).expanduser()
    return path.is_file() or (relative_to is not None and (relative_to / path).is_file())


def _named(reference: str, relative_to: Path | None) -> App:
    if reference in BUILT_IN:
        return _dotted(f"{BUILT_IN[reference]}:{reference}")

    from hpcagent.science.lammps.contract import lammps, packaged_inputs

    path = Path(reference).expanduser()
    if relative_to is not None and not path.is_absolute() and (relative_to / path).is_file():
        return _of_file(relative_to / path)
    if path.is_file():
        return _of_file(path)
    if reference in packaged_inputs():
        return lammps(reference)
    if path_of("apps", reference) is not None:
        return _app(load("apps", reference, {}), reference)
    if ":" in reference and "/" not in reference:
        return _dotted(reference)
    if path.suffix or "/" in reference or reference.startswith("in."):
        where = f" (looked in {relative_to} and here)" if relative_to else ""
        raise BadInput(
            f"{reference}: no such LAMMPS input script or contract, nor an executable's TOML{where}.",
            value=reference,
        )
    known = [*BUILT_IN, *packaged_inputs(), *offered("apps")]
    raise BadInput(
        f"no app {reference!r}; {nearest(reference, known)} A LAMMPS script is named by its path, an app of "
        "your own by 'package.module:name'.",
        value=reference,
    )


def _of_file(path: Path) -> App:
    """The app of a LAMMPS script or contract, or of an executable's TOML."""
    from hpcagent.apps.executable.contract import executable_file
    from hpcagent.apps.executable.service import service_file
    from hpcagent.science.lammps.contract import lammps

    if not is_executable(path):
        return lammps(path)
    return service_file(path) if "http" in read_toml(path) else executable_file(path)


def is_executable(path: Path) -> bool:
    """Whether a file is the TOML of an executable or a service, not a script or contract of LAMMPS."""
    if path.suffix != ".toml":
        return False
    data = read_toml(path)
    # The metrics of a LAMMPS contract are a list, and its parameters are called variables.
    return bool({"command", "container", "http", "local", "parameters"} & set(data)) or isinstance(
        data.get("metrics"), dict
    )


def _dotted(reference: str) -> App:
    module, _, name = reference.partition(":")
    try:
        found = getattr(importlib.import_module(new_name(module)), name)
    except (ImportError, AttributeError) as error:
        raise BadInput(f"app {reference!r} cannot be imported: {error}.", value=reference) from None
    return _app(found, reference)


def _app(found: object, reference: str) -> App:
    if not isinstance(found, App):
        raise BadInput(
            f"{reference!r} is a {type(found).__name__}, not an app; decorate the function with @ha.app(...).",
            value=reference,
        )
    return found


def packaged(name: str) -> App | None:
    """The app of that name that comes with hpcagent; None if none does."""
    return look_up(name) if is_packaged(name) else None


def is_packaged(name: str) -> bool:
    """Whether an app of that name comes with hpcagent; it is not loaded."""
    from hpcagent.science.lammps.contract import packaged_inputs

    return name in BUILT_IN or name in packaged_inputs()


def app_names() -> frozenset[str]:
    """Names of all apps that come with hpcagent or are offered by entry points; none is loaded."""
    from hpcagent.science.lammps.contract import packaged_inputs

    return _names(*packaged_inputs(), *offered("apps"))


@functools.lru_cache(maxsize=8)
def _names(*more: str) -> frozenset[str]:
    return frozenset((*BUILT_IN, *more))


def list_apps() -> list[App]:
    """Every app that comes with hpcagent, and those that packages offer by entry points; deprecated ones, too.

    One that cannot be loaded is left out; `hpcagent doctor` names it and says why.
    """
    from hpcagent.science.lammps.contract import packaged_inputs

    own = (*BUILT_IN, *packaged_inputs())
    apps = [look_up(name) for name in own]
    for name in offered("apps"):
        if name not in own:
            with contextlib.suppress(BadInput):
                apps.append(look_up(name))
    return apps
