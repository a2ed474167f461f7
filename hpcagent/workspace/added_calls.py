"""What scripts and the shell ask of a workspace about LAMMPS scripts that are its apps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcagent.apps.base import App
from hpcagent.apps.hooks import LAMMPS
from hpcagent.catalog import is_executable
from hpcagent.errors import BadInput
from hpcagent.model.parameter import Parameter
from hpcagent.science.lammps.contract import lammps
from hpcagent.workspace.app_store import packed
from hpcagent.workspace.connection import Connection

__all__ = ["AddedCalls"]

Answer = dict[str, Any]


class AddedCalls(Connection):
    """Calls of `Workspace` about apps that were added."""

    def add_app(
        self,
        script: str | Path | App,
        variables: Mapping[str, Parameter] | None = None,
        *,
        seed_variables: Sequence[str] | None = None,
        name: str = "",
        why: str = "",
        sandbox: str = "",
        walltime_s: float | None = None,
    ) -> Answer:
        """Make a LAMMPS script an app of the workspace, by its name for every client.

        Script, contract and the files that the script reads are copied: what is edited later changes nothing here.

        Args:
            script: Its path, or that of its contract; or what `ha.lammps` has made of it.
            variables: Name -> `ha.Float(100, 500, unit="K")`, ...: what may be asked for, and nothing else. Those
                of a contract beside the script need not be named.
            seed_variables: Variables that take the run's random seed.
            name: By default that of the contract, or of the file: `krypton` of `in.krypton`.
            why: What it is for; the description, where the contract has none.
            sandbox: The tier that each run needs: `bubblewrap` or `limits`; empty: as the contract says.
            walltime_s: Wall time after which a run is ended, in seconds; None: as the contract says.

        Returns:
            Its card: `name`, `version`, `state` (`approved` where an admin has added it, else `pending`),
            `parameters`, `files`, `sha256`, `warnings`.

        Raises:
            BadInput: The script or a variable is wrong, the name is taken, or a file cannot be kept.
            NotAllowed: The role may not write.
        """
        if isinstance(script, App):
            if variables or seed_variables is not None:
                raise BadInput("an app has its variables; give them with the path of a script.")
            made = script if script.function != LAMMPS or not sandbox else script.with_settings(sandbox=sandbox)
        else:
            _refuse_others(Path(script).expanduser())
            more = {"seed_variables": seed_variables, "sandbox": sandbox or None}
            made = lammps(script, variables=variables, **more)  # type: ignore[arg-type]
        if walltime_s is not None:
            made = made.with_resources(walltime_s=walltime_s)
        if name:
            made = made.model_copy(update={"contract": made.contract.model_copy(update={"name": name})})
        found: Answer = self._call("add_app", app=packed(made), why=why)
        return found

    def added_apps(self) -> list[Answer]:
        """LAMMPS scripts that were added as apps, in whatever state; see `add_app`."""
        return [one for one in self._call("list_tools") if one.get("kind") == "lammps"]

    def remove_app(self, name: str) -> Answer:
        """Remove an app that was added; runs of it stay, and none is begun again.

        Raises:
            BadInput: There is none of that name.
            NotAllowed: It is somebody else's, and the role may not approve.
        """
        found: Answer = self._call("remove_app", name=name)
        return found


def _refuse_others(path: Path) -> None:
    if path.suffix == ".py":
        raise BadInput(
            f"{path} is Python: a function becomes a tool by `hpcagent tools register {path}`.", value=str(path)
        )
    if path.is_file() and is_executable(path):
        raise BadInput(
            f"{path} is the TOML of a program; only LAMMPS scripts are added. It is run by its path "
            f"(`hpcagent workspace run {path}`).",
            value=str(path),
        )
