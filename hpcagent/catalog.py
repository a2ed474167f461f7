"""Finds an app by what a person calls it: a name, a script, a contract, a dotted path."""

from __future__ import annotations

import contextlib
import importlib
from pathlib import Path

from hpcagent.apps import BUILT_IN
from hpcagent.apps.base import App
from hpcagent.errors import BadInput, nearest
from hpcagent.model.base import read_toml
from hpcagent.moved import new_name
from hpcagent.offered import load, offered, path_of

__all__ = ["find_app", "from_name", "is_executable", "list_apps"]

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
            with `@app`.
        relative_to: Folder that a relative path starts from (that of the campaign's TOML).

    Raises:
        BadInput: Nothing of that name; the message names the nearest.

    Example:
        >>> find_app("synthetic").name
        'synthetic'
    """
    from hpcagent.science.lammps.contract import lammps, packaged_inputs

    if reference in BUILT_IN:
        return _dotted(f"{BUILT_IN[reference]}:{reference}")
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


def list_apps() -> list[App]:
    """Every app that comes with hpcagent, and those that packages offer by entry points.

    One that cannot be loaded is left out; `hpcagent doctor` names it and says why.
    """
    from hpcagent.science.lammps.contract import packaged_inputs

    own = (*BUILT_IN, *packaged_inputs())
    apps = [find_app(name) for name in own]
    for name in offered("apps"):
        if name not in own:
            with contextlib.suppress(BadInput):
                apps.append(find_app(name))
    return apps
