"""The table `[sandbox]`: in which tier a program runs, what it may use, what it may see."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from hpcagent.errors import BadInput
from hpcagent.model.base import Record
from hpcagent.model.texts import Line, Variable
from hpcagent.redacted import is_credential

__all__ = ["Sandbox", "Tier"]

Tier = Literal["limits", "bubblewrap"]


class Sandbox(Record):
    """How a program is confined; where one is given, the name of a tier will do for it with its usual limits.

    Attributes:
        require: The tier that it needs: `limits` (resource limits, a clean environment, a folder of its own) or
            `bubblewrap` (also namespaces: it sees neither your files, nor other processes, nor the network). The
            best tier that is there is used; where the required one is not, the run is refused.
        network: Whether it may use the network; only `bubblewrap` can keep it away from that.
        memory_mb: Memory of each of its processes, and of all together, in MB of 10^6 bytes.
        cpu_s: CPU time of each of its processes, in seconds.
        processes: Processes at a time, of all its descendants.
        file_mb: Size of a file that it writes, in MB.
        disk_mb: All that it writes, in MB.
        open_files: Files that each of its processes has open at a time.
        output_mb: Size of all declared outputs together, in MB; more are not taken.
        read: Files and folders that it may read beside the system's own and this Python's.
        pass_env: Names of environment variables that it may see beside the usual ones; none of a credential.

    Example:
        >>> Sandbox(require="limits", memory_mb=500).processes
        64
    """

    require: Tier = "bubblewrap"
    network: bool = False
    memory_mb: float = Field(default=4000.0, ge=10.0, le=1e8, allow_inf_nan=False)
    cpu_s: int = Field(default=3600, ge=1, le=100_000_000)
    processes: int = Field(default=64, ge=1, le=100_000)
    file_mb: float = Field(default=1000.0, gt=0.0, le=1e9, allow_inf_nan=False)
    disk_mb: float = Field(default=2000.0, gt=0.0, le=1e9, allow_inf_nan=False)
    open_files: int = Field(default=1024, ge=16, le=1_000_000)
    output_mb: float = Field(default=1000.0, gt=0.0, le=1e9, allow_inf_nan=False)
    read: tuple[Annotated[Line, Field(min_length=1)], ...] = ()
    pass_env: tuple[Variable, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _named(cls, data: Any) -> Any:
        """A tier alone stands for a sandbox with its usual limits."""
        return {"require": data} if isinstance(data, str) else data

    @model_validator(mode="after")
    def _check(self) -> Sandbox:
        for name in self.pass_env:
            if is_credential(name):
                raise BadInput(
                    f"pass_env: {name!r} has the name of a credential, and none reaches a sandboxed program; give "
                    "it the data that it needs as a file.",
                    value=name,
                )
        for path in self.read:
            if not Path(path).is_absolute() or Path(path) == Path("/") or ".." in Path(path).parts:
                raise BadInput(
                    f"read: {path!r} is not the whole path of a file or folder (and not / itself).", value=path
                )
        return self
