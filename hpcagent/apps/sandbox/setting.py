"""The setting `sandbox` of an app: what it may be, and with what else of an app it does not go."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcagent.apps.hooks import LAMMPS, PROGRAMS
from hpcagent.apps.modes import ENSEMBLE, MODE
from hpcagent.apps.sandbox.record import Sandbox
from hpcagent.errors import BadInput
from hpcagent.model.base import build
from hpcagent.model.contract import Resources

__all__ = ["FAILURES", "SANDBOX", "as_setting", "check_goes_with", "counting", "refuse_as_setting"]

SANDBOX = "sandbox"
FAILURES = ("SandboxLimit", "OutputsTooLarge", "NoSandbox", "SandboxFailed", "SandboxLost")
"""What a run in a sandbox can fail with beside those of every run."""

_OPENS = ("network", "read", "pass_env")


def as_setting(value: object, where: str) -> dict[str, Any]:
    """A sandbox as plain data.

    Args:
        value: A `Sandbox`, its keys, or the name of a tier.
        where: What it is of, for the message.

    Raises:
        BadInput: It is none of these, or one of its keys does not fit.

    Example:
        >>> as_setting("limits", "app mine")["require"]
        'limits'
    """
    if isinstance(value, Sandbox):
        return value.model_dump(mode="json")
    if isinstance(value, str):
        value = {"require": value}
    if not isinstance(value, Mapping):
        raise BadInput(
            f"{where}: sandbox={value!r}: give the name of a tier (limits, bubblewrap), the keys of [sandbox] as "
            "a dict, or a Sandbox.",
            value=value,
        )
    return build(Sandbox, value, where=f"{where}: sandbox").model_dump(mode="json")


def counting(settings: Mapping[str, Any], function: str) -> dict[str, Any]:
    """The settings with what of a sandbox decides a result: what it opens, not its tier and its limits.

    A limit can so be raised in the middle of a campaign; an approval of a run that sees nothing else is none of
    one that does. Of a described program all of it has always counted: its execution ids stay as they are.

    Args:
        settings: Of an app.
        function: The app's function, by its dotted path.

    Example:
        >>> counting({"sandbox": as_setting("limits", "app mine")}, "")
        {}
        >>> counting({"sandbox": as_setting(Sandbox(network=True), "app mine")}, "")
        {'sandbox': {'network': True}}
    """
    if settings.get(SANDBOX) is None or function == PROGRAMS:
        return dict(settings)
    opened = {name: settings[SANDBOX][name] for name in _OPENS if settings[SANDBOX].get(name)}
    return {k: v for k, v in settings.items() if k != SANDBOX} | ({SANDBOX: opened} if opened else {})


def refuse_as_setting(settings: Mapping[str, Any], where: str) -> None:
    """Refuse a setting of a user's own function that would be taken for its sandbox.

    Raises:
        BadInput: There is one.
    """
    if SANDBOX in settings:
        raise BadInput(
            f"{where}: a setting cannot be called {SANDBOX!r}, which says how an app is confined; give @ha.app "
            "sandbox=..., or the setting another name.",
            value=SANDBOX,
        )


def check_goes_with(
    name: str,
    settings: Mapping[str, Any],
    resources: Resources,
    *,
    function: str = "",
    mpi: bool = False,
    ensemble: bool = False,
) -> None:
    """Refuse a sandbox where the runs of an app are not processes of their own, with one rank and their own files.

    Args:
        name: The app's name.
        settings: Its settings, with the sandbox if it has one.
        resources: What one run occupies.
        function: Its function, by its dotted path.
        mpi: Whether its function runs on MPI ranks.
        ensemble: Whether runs of its function share launches.

    Raises:
        BadInput: What does not go with it, and what to do.
    """
    if settings.get(SANDBOX) is None:
        return
    mode = settings.get(MODE) if function == LAMMPS else ENSEMBLE if ensemble else None
    if mode in ("library", ENSEMBLE):
        own = '"executable" or "auto"' if function == LAMMPS else '"call"'
        raise BadInput(
            f"app {name!r}: in mode {mode!r} its runs share a process with others, which cannot be confined to a "
            f"sandbox; take mode {own}, or drop the sandbox.",
            value=mode,
        )
    ranks = resources.nodes * resources.ranks_per_node
    if mpi or ranks > 1:
        asked = "its function runs on MPI ranks (mpi=True)" if mpi else f"a run has {ranks} MPI ranks"
        raise BadInput(
            f"app {name!r}: {asked}, and a run in a sandbox is one process; give it threads_per_rank and one "
            "rank, or drop the sandbox.",
            value=ranks,
        )
    if settings.get("extendable") and function != LAMMPS:
        raise BadInput(
            f"app {name!r}: a function in a sandbox cannot be extended (extendable=True): of its files only "
            "declared ones leave it, so the end to go on from would not be there; drop one of the two.",
            value=name,
        )
    if function == LAMMPS:
        _check_files(name, settings)


def _check_files(name: str, settings: Mapping[str, Any]) -> None:
    """Refuse files beside a script that lie there by accident: it names what it wants to see."""
    read = settings[SANDBOX].get("read") or ()
    for file, path in (settings.get("paths") or {}).items():
        if any(part.startswith(".") for part in Path(file).parts):
            raise BadInput(
                f"app {name!r}: its script names {file!r}, a hidden file or one in a hidden folder, which a "
                "script in a sandbox is not given; put the script and its data into a folder of their own.",
                value=file,
            )
        folder, target = Path(path).parents[len(Path(file).parts) - 1].resolve(), Path(path).resolve()
        if not any(target.is_relative_to(place) for place in (folder, *read)):
            raise BadInput(
                f"app {name!r}: its script names {file!r}, a link to {target} outside of its folder, which a "
                "script in a sandbox is given only if it is under `read` of [sandbox]; add it there, or copy it.",
                value=file,
            )
