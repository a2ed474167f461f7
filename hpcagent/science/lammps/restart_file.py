"""Restart files of LAMMPS: their names in a run's directory, and the step of one that is whole."""

from __future__ import annotations

import struct
from pathlib import Path

from hpcagent.regular import open_regular

__all__ = ["END", "FILES", "restart_step"]

FILES = ("restart.a", "restart.b")
"""LAMMPS writes them in turn: whenever it is killed, one of them is whole."""
END = "restart.end"
"""What a run leaves that can be extended: its last step."""
_MAGIC = b"LammpS RestartT\0"


def restart_step(path: Path) -> int | None:
    """The step of a restart file, or None if it is not whole.

    LAMMPS writes the same 16 bytes at both ends of the file; one that was being written has them only at its
    beginning. What stands between them is not looked at here.
    """
    try:
        with open_regular(path) as file:
            head = file.read(4096)
            file.seek(-len(_MAGIC), 2)
            if file.read() != _MAGIC or not head.startswith(_MAGIC):
                return None
        return _step_in(head)
    except (OSError, struct.error, KeyError):
        return None


# Of `lmprestart.h`: what stands before the step.
_STRINGS = (0, 4)  # VERSION, UNITS
_INTS = (1, 2, 3, 48)  # SMALLINT, TAGINT, BIGINT, IMAGEINT
_BIGINT, _NTIMESTEP = 3, 5


def _step_in(head: bytes) -> int | None:
    at = len(_MAGIC)
    (order,) = struct.unpack_from("=i", head, at)
    if order != 1:  # written on a machine of the other byte order
        return None
    at += 8  # and the revision of the format
    sizes: dict[int, int] = {}
    while True:
        (flag,) = struct.unpack_from("=i", head, at)
        at += 4
        if flag == _NTIMESTEP:
            (step,) = struct.unpack_from({4: "=i", 8: "=q"}[sizes.get(_BIGINT, 8)], head, at)
            return int(step) if step >= 0 else None
        if flag not in _STRINGS and flag not in _INTS:
            return None
        (value,) = struct.unpack_from("=i", head, at)
        at += 4
        sizes[flag] = value
        if flag in _STRINGS:
            at += value
