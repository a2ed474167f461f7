"""The function of an order: where it is, whether it is the one recorded, what it gives. Standard library only."""

from __future__ import annotations

import errno
import importlib
import inspect
import re
import signal
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from types import GeneratorType
from typing import Any

from hpcagent.apps.as_found import AsFound
from hpcagent.apps.carried import Carried
from hpcagent.apps.guard import checked
from hpcagent.apps.hooks import LAMMPS, PROGRAMS
from hpcagent.apps.made_with import OtherFile, other_files
from hpcagent.apps.modules import OtherModule, other_modules
from hpcagent.apps.run import Outcome, Run
from hpcagent.apps.watching import driven
from hpcagent.errors import AppFailed
from hpcagent.moved import new_name
from hpcagent.surroundings import import_on_a_worker

__all__ = [
    "STALE",
    "as_failure",
    "called",
    "crash_of",
    "function_of",
    "is_confined",
    "of_numbers",
    "os_name",
    "outcome_of",
    "refuse_others",
]

_MACHINE = (signal.SIGILL, signal.SIGBUS)
_SIGNAL = re.compile(r"\bsignal (\d+)\b")
_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGXCPU)
_TAIL = 4000
# Functions of ours that start a program, and that in its sandbox.
_CONFINE_THEIR_PROGRAM = (LAMMPS, PROGRAMS)

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


def called(
    function: Callable[..., Any],
    params: Mapping[str, Any],
    run: Run,
    promises: Mapping[str, Any],
    *,
    lasts: bool = True,
) -> Outcome:
    """What an app's function gives, with `run` if it has such an argument; one that yields is driven.

    Args:
        function: The function.
        params: Its other arguments.
        run: The run.
        promises: Metrics of the contract.
        lasts: Whether further runs come in this process.

    Raises:
        AppFailed: `BadReturn`; or what it raises.
    """
    # Of a method the function: a cached one would keep its object (a chain, and whom it asks) for good.
    given = {**params, "run": run} if _wants_run(getattr(function, "__func__", function)) else params
    found = AsFound(lasts=lasts)
    return outcome_of(found.call(_returned, called=function, given=given, run=run, promises=promises))


def _returned(called: Callable[..., Any], given: Mapping[str, Any], run: Run, promises: Mapping[str, Any]) -> Any:
    returned = called(**given)
    return driven(returned, run, promises) if isinstance(returned, GeneratorType) else returned


@lru_cache(maxsize=64)
def _wants_run(function: Callable[..., Any]) -> bool:
    return "run" in inspect.signature(function).parameters


def is_confined(order: Mapping[str, Any]) -> bool:
    """Whether the function of an order is itself not to be trusted: it is called in a sandbox only."""
    return order["settings"].get("sandbox") is not None and order["function"] not in _CONFINE_THEIR_PROGRAM


def crash_of(code: int, tail: str, *, ranks: int = 1) -> AppFailed:
    """What the end of the processes of an app's function says, of which none has said anything.

    Args:
        code: Exit code of what has started them; negative for a signal.
        tail: Last lines of what they printed.
        ranks: How many they are.
    """
    number = -code if code < 0 else code - 128 if code > 128 else 0
    # "Killed (signal 9)" of hydra, whose own exit code is then 9; "exited on signal 9" of Open MPI.
    by_launcher = _SIGNAL.findall(tail)
    if not number and ranks > 1 and by_launcher:
        number = int(by_launcher[-1])
    which = "a rank of the app's function" if ranks > 1 else "the app's function"
    try:
        name = signal.Signals(number).name if number else ""
    except ValueError:
        name = ""
    if not name:
        return AppFailed(
            f"{which} ended its own process with exit code {code} (os._exit?); it must return.",
            kind="contract",
            name="FunctionExited",
            log_tail=tail,
        )
    if number in _FROM_OUTSIDE:
        return AppFailed(
            f"{which} was ended by {name} from outside (out of memory, or the job was stopped).",
            kind="infrastructure",
            name="Killed",
            log_tail=tail,
        )
    machine = number in _MACHINE
    why = ": built for another processor, or the file system or its memory failed" if machine else ""
    return AppFailed(
        f"{which} crashed with {name}{why}.",
        kind="infrastructure" if machine else "simulation",
        name="FunctionCrashed",
        log_tail=tail,
    )


def as_failure(error: BaseException) -> dict[str, Any]:
    """What a process that calls an app's function says of what that raised, as plain data."""
    if isinstance(error, AppFailed):
        told = ("kind", "name", "log_tail", "repair", "stopped")
        details = {name: value for name, value in error.details.items() if name in told}
        return {"failure": {"message": error.message, **details}}
    if isinstance(error, OSError):
        message, path = error.strerror or str(error), error.filename and str(error.filename)
        return {"os_error": [error.errno or errno.EIO, message, path]}
    if isinstance(error, MemoryError):
        return {"memory": str(error) or "not enough memory"}
    last = "".join(traceback.format_exception_only(error)).strip().splitlines()[-1:]
    return {
        "failure": {
            "message": last[0] if last else type(error).__name__,
            "kind": "contract",
            "name": type(error).__name__,
            "log_tail": traceback.format_exc()[-_TAIL:],
        }
    }
