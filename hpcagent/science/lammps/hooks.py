"""What the generic code of a run asks of LAMMPS: see `hpcagent.apps.hooks`."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcagent.apps.made_with import sha256
from hpcagent.errors import AppFailed
from hpcagent.regular import open_regular
from hpcagent.science.lammps.failures import Ended, failure_of
from hpcagent.science.lammps.mode import not_here
from hpcagent.science.lammps.potentials import elsewhere
from hpcagent.science.lammps.repairs import attempt_before, repaired

__all__ = ["attempt_before", "crashed", "declared", "not_here", "places", "repaired"]

# Of a log, for the reason of a crash.
_MOST_BYTES = 1 << 20


def declared(params: Mapping[str, Any], settings: Mapping[str, Any], site: Mapping[str, Any]) -> dict[str, str]:
    """Potentials that do not lie beside the script: name -> SHA-256, of those that can be read here."""
    found = {}
    for one in elsewhere(settings, site, params):
        with contextlib.suppress(OSError):
            found[one.name] = sha256(one.path)
    return found


def places(params: Mapping[str, Any], settings: Mapping[str, Any], site: Mapping[str, Any]) -> dict[str, str]:
    """The same: name -> path."""
    return {one.name: str(one.path) for one in elsewhere(settings, site, params)}


def crashed(folder: Path, printed: str, returncode: int, wall_s: float) -> AppFailed:
    """What a run in a shared launch has failed with, whose rank process is gone.

    Args:
        folder: The run's directory.
        printed: What it has printed.
        returncode: Of its process, negative for a signal.
        wall_s: How long it ran.
    """
    log = ""
    with contextlib.suppress(OSError), open_regular(folder / "log.lammps") as file:
        file.seek(max(0, (folder / "log.lammps").stat().st_size - _MOST_BYTES))
        log = file.read().decode(errors="replace")
    ended = Ended(
        returncode=returncode,
        log=log,
        printed=printed,
        stopped=None,
        wall_s=wall_s,
        launcher=None,
        goes_on=None,
    )
    found = failure_of(ended)
    assert found is not None
    return found
