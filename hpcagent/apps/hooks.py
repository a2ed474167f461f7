"""What rooms above know of the runs of their own apps: LAMMPS, and the engines of DFT and MLIPs.

The generic code of a run (its id, its files, its repairs, its process) asks here; the room that has the app
answers by a module `hooks`, which is imported when it is asked first. Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    from pathlib import Path

    from hpcagent.apps.run import Run
    from hpcagent.errors import AppFailed

__all__ = ["LAMMPS", "PROGRAMS", "Files", "LammpsHooks", "Repaired", "files_of", "lammps"]

LAMMPS = "hpcagent.apps.lammps.run:lammps_run"
"""The function of every app that runs a LAMMPS script, by the name that stands in records and execution ids."""

PROGRAMS = "hpcagent.apps.executable.run:executable_run"
"""Likewise of every app that runs a described program."""


class Files(Protocol):
    """The files that decide the numbers of a run."""

    def declared(
        self, params: Mapping[str, Any], settings: Mapping[str, Any], site: Mapping[str, Any]
    ) -> dict[str, str]:
        """Name -> SHA-256, of those that can be read here."""

    def places(
        self, params: Mapping[str, Any], settings: Mapping[str, Any], site: Mapping[str, Any]
    ) -> dict[str, str]:
        """Name -> path."""


class Repaired(Protocol):
    """A run as a repair has it."""

    @property
    def settings(self) -> dict[str, Any]:
        """Of its app, with the repair."""

    @property
    def changed(self) -> str:
        """What is changed."""

    @property
    def note(self) -> str:
        """What that means."""


class LammpsHooks(Files, Protocol):
    """What is known of runs of LAMMPS."""

    def not_here(self, run: Run) -> str | None:
        """Why the library cannot be used, or None."""

    def crashed(self, folder: Path, printed: str, returncode: int, wall_s: float) -> AppFailed:
        """What a run in a shared launch has failed with, whose rank process is gone."""

    def repaired(
        self, name: str, settings: dict[str, Any], times: int, params: Mapping[str, Any] | None = None
    ) -> Repaired | None:
        """The settings of a run with a repair, made so many times; None where it would change nothing more."""

    def attempt_before(self, run: Run) -> Path | None:
        """The folder of an interrupted attempt from whose restart file the run can go on."""


def lammps() -> LammpsHooks:
    """What is known of runs of LAMMPS."""
    return cast(LammpsHooks, import_module("hpcagent.science.lammps.hooks"))


def files_of(function: str, params: Mapping[str, Any]) -> Files | None:
    """Who knows the files that decide the numbers of an app's run; None: it has none.

    Args:
        function: The app's function, by its dotted path: that of LAMMPS has potentials, that of programs files
            that they are given to read.
        params: Of the run: one that has an `engine` has what that declares.
    """
    if function == LAMMPS:
        return lammps()
    if function == PROGRAMS:
        return cast(Files, import_module("hpcagent.apps.executable.hooks"))
    if "engine" in params:
        return cast(Files, import_module("hpcagent.science.engines.hooks"))
    return None
