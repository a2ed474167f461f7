"""How the runs of an app are started, which decides nothing of what they give."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcagent.apps.hooks import LAMMPS
from hpcagent.errors import BadInput, nearest

__all__ = ["ENSEMBLE", "LAMMPS_MODES", "MODE", "in_ensemble", "is_mode", "with_mode"]

MODE = "mode"
"""The setting of LAMMPS; it is not part of the app's digest. Absent: the program for each run.

Of a Python function it is `App.ensemble`, set by that name too where the app has no setting `mode` of its own.
"""
ENSEMBLE = "ensemble"
LAMMPS_MODES = ("executable", "library", "auto", ENSEMBLE)
_FUNCTION_MODES = ("call", ENSEMBLE)


def in_ensemble(name: str, value: object) -> bool:
    """Whether the mode of a Python function says that its runs share launches.

    Args:
        name: The app's name.
        value: The mode.

    Raises:
        BadInput: There is no such mode.
    """
    return with_mode(name, "", {}, value) == {MODE: ENSEMBLE}


def is_mode(name: str, function: str) -> bool:
    """Whether a setting says how runs are started; a user's own `mode` decides what they give."""
    return name == MODE and function == LAMMPS


def with_mode(name: str, function: str, settings: Mapping[str, Any], value: object) -> dict[str, Any]:
    """An app's settings with another mode.

    Args:
        name: The app's name.
        function: Its function.
        settings: Its settings.
        value: The mode; the first one allowed is the default and leaves no trace.

    Raises:
        BadInput: There is no such mode.
    """
    allowed = LAMMPS_MODES if function == LAMMPS else _FUNCTION_MODES
    if not isinstance(value, str) or value not in allowed:
        raise BadInput(
            f"mode={value!r} of app {name!r}: {nearest(str(value), allowed)} Allowed: {', '.join(allowed)}.",
            value=value,
        )
    kept = {k: v for k, v in settings.items() if k != MODE}
    return kept if value == allowed[0] else {**kept, MODE: value}
