"""What other packages offer by entry points, and how a name or a dotted path becomes an object.

A package says in its `pyproject.toml`

    [project.entry-points."hpcagent.policies"]
    mine = "mypackage.mymodule:MyPolicy"

and the name is known wherever one of hpcagent's own is; `GROUPS` has the groups. Names of hpcagent's own come
first: `hpcagent doctor` says which offered ones are not reached for that.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import lru_cache
from importlib import import_module
from typing import Any, NamedTuple

from hpcagent.errors import BadInput, nearest

__all__ = ["GROUPS", "Offer", "import_no_paths", "load", "offered", "offers", "path_of", "refuse_path"]

GROUPS: Mapping[str, str] = {
    "apps": "app",
    "engines": "engine",
    "policies": "policy",
    "schedulers": "scheduler",
    "sites": "site profile",
    "stops": "stop condition",
}
"""The group `hpcagent.KEY` of entry points -> what one of it is."""


class Offer(NamedTuple):
    """One entry point.

    Attributes:
        name: What it is called.
        path: `package.module:name`.
        package: The distribution that offers it, with its version.
    """

    name: str
    path: str
    package: str


def offers(group: str) -> tuple[Offer, ...]:
    """Return the entry points of a group, sorted; reads the installed packages' metadata once for each `sys.path`.

    Example:
        >>> offers("policies")
        ()
    """
    return _offers(group, tuple(sys.path))


@lru_cache(maxsize=64)
def _offers(group: str, _path: tuple[str, ...]) -> tuple[Offer, ...]:
    from importlib.metadata import entry_points  # reads the disk, so only when a name is looked up

    found = set()
    for entry in entry_points(group=f"hpcagent.{group}"):
        package = f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else "an unknown package"
        found.add(Offer(entry.name, entry.value, package))
    return tuple(sorted(found))


def offered(group: str) -> tuple[str, ...]:
    """Return the names of a group, sorted."""
    return tuple(dict.fromkeys(offer.name for offer in offers(group)))


def path_of(group: str, name: str) -> str | None:
    """Return the dotted path that packages offer under a name; None: there is none.

    Raises:
        BadInput: Two packages offer different things under it.
    """
    found = {offer.path: offer.package for offer in offers(group) if offer.name == name}
    if len(found) > 1:
        both = " and ".join(f"{package} ({path})" for path, package in found.items())
        raise BadInput(
            f"{len(found)} packages offer a {GROUPS[group]} {name!r}: {both}. Uninstall one, or name the one that "
            "is meant by its path, package.module:name.",
            value=name,
        )
    return next(iter(found), None)


class _Paths:
    imported = True


def import_no_paths() -> None:
    """From now on this process imports nothing that is named by a path, only what has a name.

    For a process that serves several people, who name what they want before anybody has let it through.
    """
    _Paths.imported = False


def refuse_path(what: str, path: str) -> None:
    """Refuse to import a module by its path, where this process imports none.

    Raises:
        BadInput: It imports none.
    """
    if not _Paths.imported:
        raise BadInput(
            f"the {what} {path!r} is code of somebody's own, and a workspace's service imports none. Run what "
            "needs it with `hpcagent run`, or have it offered by an installed package (docs/howto/own_parts.md).",
            value=path,
        )


def load(group: str, name: str, built_in: Mapping[str, str]) -> Any:
    """Return what a name of a group stands for.

    Args:
        group: One of `GROUPS`.
        name: One of `built_in`, one that a package offers, or `package.module:name`.
        built_in: hpcagent's own: name -> dotted path.

    Raises:
        BadInput: There is nothing of that name, it cannot be imported, or is a path where none is imported.

    Example:
        >>> load("policies", "half", {"half": "fractions:Fraction"})(1, 2)
        Fraction(1, 2)
    """
    what = GROUPS[group]
    if not isinstance(name, str):
        raise BadInput(f"a {what} is named by a word; got {name!r}.", value=name)
    path = built_in.get(name) or path_of(group, name) or (name if ":" in name else None)
    if path is None:
        raise BadInput(f"unknown {what} {name!r}; {nearest(name, (*built_in, *offered(group)))}", value=name)
    if path == name:
        refuse_path(what, path)
    module, _, attribute = path.partition(":")
    try:
        found: Any = import_module(module)
        for part in attribute.split(".") if attribute else ():
            found = getattr(found, part)
    except Exception as error:  # whatever another package's module raises
        said = f"{type(error).__name__}: {error}" if not isinstance(error, ImportError | AttributeError) else error
        raise BadInput(f"{what} {name!r} cannot be loaded from {path!r}: {said}.", value=name) from error
    return found
