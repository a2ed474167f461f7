"""What engines that are Python packages have in common: finding the package, handing on keywords."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from hpcagent.apps.made_with import package_version
from hpcagent.errors import AppFailed, nearest

__all__ = ["accepted", "needs", "no_bands", "refuse_decided", "versions_of"]


def needs(module: str, how: str) -> Any:
    """Import a package that an engine needs.

    Args:
        module: What to import.
        how: The command that installs it.

    Raises:
        AppFailed: `NoEngine`, of kind infrastructure: another executor of the site may have it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise AppFailed(
            f"the Python package {module.partition('.')[0]!r} cannot be imported where the run is ({error}).",
            kind="infrastructure",
            name="NoEngine",
            repair=f"install it into the workers' environment: {how}",
        ) from None


def versions_of(*distributions: str) -> dict[str, str]:
    """Versions of those of these Python distributions that are installed."""
    found = {name: package_version(name) for name in distributions}
    return {name: version for name, version in found.items() if version is not None}


def refuse_decided(what: str, keywords: Iterable[str], decided: Mapping[str, str]) -> None:
    """Refuse keywords that would go past a parameter or a setting.

    Args:
        what: The engine.
        keywords: Names in the setting `keywords`.
        decided: Keyword -> the parameter (or setting) that decides it.

    Raises:
        AppFailed: `BadSettings`, naming the parameter for each.
    """
    both = [f"{name!r} (use {decided[name.lower()]})" for name in keywords if name.lower() in decided]
    if both:
        raise AppFailed(
            f"the setting `keywords` has {', '.join(both)}: for {what} the app's parameters decide that.",
            kind="contract",
            name="BadSettings",
            repair="take it out of `keywords` and set the parameter",
        )


def accepted(what: str, make: Callable[..., Any], keywords: Mapping[str, Any], **own: Any) -> Any:
    """Make a calculator with the keywords that a user gave and our own.

    Raises:
        AppFailed: `BadSettings`: it does not take one of them, or we have set it already.
    """
    both = sorted(set(keywords) & set(own))
    if both:
        raise AppFailed(
            f"the setting `keywords` has {', '.join(both)}, which the app's parameters decide for {what}; leave "
            "it out there.",
            kind="contract",
            name="BadSettings",
        )
    _check_known(what, make, keywords)
    try:
        return make(**own, **keywords)
    except AppFailed:
        raise
    except (TypeError, ValueError, KeyError, AttributeError, NotImplementedError) as error:
        raise AppFailed(
            f"{what} does not take these keywords ({', '.join(map(repr, [*own, *keywords])) or 'none'}): {error}.",
            kind="contract",
            name="BadSettings",
        ) from None


def _check_known(what: str, make: Callable[..., Any], keywords: Mapping[str, Any]) -> None:
    """Refuse misspelt keywords: ASE's own base class takes any keyword, and passes over it."""
    known = set(getattr(make, "default_parameters", None) or ())
    if not known:
        return
    known |= set(getattr(make, "more_parameters", ())) | set(inspect.signature(make).parameters)
    for name in keywords:
        if name not in known:
            raise AppFailed(
                f"{what} has no keyword {name!r}; {nearest(name, known - {'self', 'kwargs'})}",
                kind="contract",
                name="BadSettings",
            )


def no_bands(name: str) -> AppFailed:
    """The failure of an engine that has no band structure."""
    return AppFailed(
        f"engine {name!r} computes no bands.",
        kind="contract",
        name="NoBands",
        repair="an engine with bands, e.g. gpaw, espresso, vasp or pyscf with a periodic structure",
    )
