"""How the runs of an app are started, which decides nothing of what they give."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcagent.errors import BadInput, nearest

__all__ = ["ENSEMBLE", "LAMMPS", "LAMMPS_MODES", "MODE", "is_mode", "takes_mode", "with_mode"]

MODE = "mode"
"""The setting of an app; it is not part of its digest. Absent: a program or call for each run."""
ENSEMBLE = "ensemble"
LAMMPS = "hpcagent.apps.lammps.run:lammps_run"
LAMMPS_MODES = ("executable", "library", "auto", ENSEMBLE)
_FUNCTION_MODES = ("call", ENSEMBLE)


def takes_mode(function: str, settings: Mapping[str, Any]) -> bool:
    """Whether an app's setting `mode` is how its runs are started, and not a setting of the user's."""
    return function == LAMMPS or settings.get(MODE, ENSEMBLE) == ENSEMBLE


def is_mode(name: str, value: object, function: str) -> bool:
    """Whether a setting says how runs are started; a user's own `mode` decides what they give."""
    return name == MODE and (function == LAMMPS or value == ENSEMBLE)


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
