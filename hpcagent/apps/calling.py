"""The function of an order: where it is, whether it is the one recorded, what it gives. Standard library only."""

from __future__ import annotations

import errno
import importlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from hpcagent.apps.carried import Carried
from hpcagent.apps.guard import checked
from hpcagent.apps.made_with import OtherFile, other_files
from hpcagent.apps.modules import OtherModule, other_modules
from hpcagent.apps.run import Outcome
from hpcagent.errors import AppFailed
from hpcagent.moved import new_name
from hpcagent.surroundings import import_on_a_worker

__all__ = ["STALE", "function_of", "of_numbers", "os_name", "outcome_of", "refuse_others"]


STALE = "open the site anew: its processes have imported the module before it was edited (or reload it there)"


def refuse_others(modules: Mapping[str, str], settings: Mapping[str, Any]) -> None:
    """Refuse modules that were loaded, and files of settings, which are not those that were recorded.

    Raises:
        AppFailed: `FilesChanged`.
    """
    other: list[OtherModule | OtherFile] = [*other_modules(modules), *other_files(settings)]
    if not other:
        return
    stale = any(isinstance(one, OtherModule) and one.stale for one in other)
    raise AppFailed(
        f"{'; '.join(map(str, other))}: not computed, as the run stands for the content that is recorded.",
        kind="infrastructure",
        name="FilesChanged",
        repair=STALE if stale else "put the old content back and go on, or start anew in another folder (run_dir)",
    )


def outcome_of(returned: Any) -> Outcome:
    """What an app's function has returned, as an outcome.

    Raises:
        AppFailed: `BadReturn`.
    """
    if isinstance(returned, Outcome):
        if returned.stopped is not None:
            checked(returned.stopped)
        return returned
    if isinstance(returned, Mapping):
        return Outcome(metrics=returned)
    raise AppFailed(
        f"the app's function returned {type(returned).__name__}; it must return a dict of metrics or an Outcome.",
        kind="contract",
        name="BadReturn",
    )


def of_numbers(outcome: Outcome) -> Outcome:
    """The outcome with every metric and standard error a Python float; a metric that is None is left out.

    Raises:
        AppFailed: `BadReturn`: one is no real number.
    """
    found: dict[str, dict[str, float]] = {}
    for what in ("metrics", "uncertainty"):
        found[what] = {}
        for name, value in getattr(outcome, what).items():
            if value is None:
                continue
            try:
                if isinstance(value, (str, bytes)):
                    raise TypeError
                found[what][name] = float(value)
            except (TypeError, ValueError, OverflowError):
                which = "metric" if what == "metrics" else "standard error of the metric"
                shown = repr(value)
                raise AppFailed(
                    f"the {which} {name!r} is {shown[:80]} ({type(value).__name__}); it must be a real number.",
                    kind="contract",
                    name="BadReturn",
                ) from None
    return replace(outcome, metrics=found["metrics"], uncertainty=found["uncertainty"])


def function_of(reference: str | Carried | Callable[..., Any]) -> Callable[..., Any]:
    """The function of an order, imported or unpacked.

    Raises:
        AppFailed: `AppNotImportable`.
    """
    if isinstance(reference, Carried):
        return reference.function()
    return _imported(reference) if isinstance(reference, str) else reference


def _imported(reference: str) -> Callable[..., Any]:
    module, _, name = reference.partition(":")
    try:
        with import_on_a_worker():
            function = getattr(importlib.import_module(new_name(module)), name)
    except (ImportError, AttributeError) as error:
        raise AppFailed(
            f"the worker cannot import {reference!r} ({error}); install the module that defines the app "
            "where the workers run.",
            kind="infrastructure",
            name="AppNotImportable",
        ) from error
    # A function decorated with @app is an App record; its plain function stands beside it.
    plain = getattr(function, "plain_function", None)
    return plain if callable(plain) else function  # type: ignore[no-any-return]


def os_name(error: OSError) -> str:
    """The failure that an error of the operating system is: `DiskFull`, `NoPermission`, else its class."""
    names = {
        errno.ENOSPC: "DiskFull",
        errno.EDQUOT: "DiskFull",
        errno.EROFS: "ReadOnly",
        errno.EACCES: "NoPermission",
    }
    return names.get(error.errno or 0, type(error).__name__)
