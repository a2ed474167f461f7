"""Trajectories that runs leave behind, frame by frame: angstrom, picoseconds, atoms in one order.

`open_trajectory` tells the format by what is in the file: LAMMPS text dumps, ASE `.traj`, extended XYZ, H5MD, DCD,
XTC. One frame is in memory at a time, and any frame can be read without those before it, so that ranks can share a
file.

Nothing is guessed: where neither the file nor the run says what a step lasts, asking for times fails (`NoTimes`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcagent.apps.bounded import NOT_UNPACKED, open_unpacked
from hpcagent.apps.missing import missing_file
from hpcagent.errors import AppFailed
from hpcagent.moved import moved
from hpcagent.science.lammps.ase_trajectory import AseTrajectory, Extxyz
from hpcagent.science.lammps.dcd_xtc import Dcd, Xtc
from hpcagent.science.lammps.dump import Dump
from hpcagent.science.lammps.frames import Frame, Reading, Trajectory
from hpcagent.science.lammps.h5md import H5md
from hpcagent.science.lammps.run_of_trajectory import Said

__all__ = ["open_trajectory"]

_PLAIN = Reading()


def open_trajectory(upstream: Mapping[str, Any], reading: Reading = _PLAIN) -> Trajectory:
    """The trajectory among the artifacts of an input run.

    Args:
        upstream: The run, as `Run.upstream` holds it; its artifact `trajectory` names the file.
        reading: What the user says about it.

    Raises:
        AppFailed: `NoTrajectory`, `MissingFile`, `BadTrajectory`, `NoUnits`, `ReducedUnits`, `TooFewFrames`
        (none).
    """
    artifacts = upstream.get("artifacts") or {}
    if "trajectory" not in artifacts:
        raise AppFailed(
            f"the input run {upstream.get('workdir') or '(without a directory)'} has no trajectory among its "
            f"artifacts (it has: {', '.join(artifacts) or 'none'}).",
            kind="contract",
            name="NoTrajectory",
            repair="let the run write frames, e.g. with LAMMPS's dump command",
        )
    path = Path(upstream["workdir"]) / artifacts["trajectory"]
    try:
        trajectory = _opened(path, Said(upstream), reading)
    except FileNotFoundError:
        raise missing_file(upstream, path, "trajectory") from None
    except NOT_UNPACKED as error:
        raise AppFailed(
            f"{path} cannot be unpacked to its end: {error}.",
            kind="contract",
            name="BadTrajectory",
            repair="the file is cut or damaged: copy it again, or unpack what is there (zcat)",
        ) from None
    if len(trajectory) == 0:
        raise AppFailed(
            f"{path} holds no complete frame.", kind="contract", name="TooFewFrames", repair="run longer"
        )
    return trajectory


class _Empty(Trajectory):
    """A file with nothing in it: a run that was killed before its first frame."""

    def read(self, number: int) -> Frame:
        raise IndexError(f"{self.path} holds no frames; {number} was asked for.")


def _opened(path: Path, said: Said, reading: Reading) -> Trajectory:
    with open_unpacked(path) as file:
        head = file.read(64)
    if head.lstrip().startswith(b"ITEM:"):
        return Dump(path, said, reading)
    if head.startswith(b"\x89HDF"):
        return H5md(path, said, reading)
    if head.startswith(b"- of Ulm"):
        return AseTrajectory(path, said, reading)
    if b"CORD" in head[4:12]:
        return Dcd(path, said, reading)
    if head[:4] in (b"\x00\x00\x07\xcb", b"\x00\x00\x07\xe7"):  # 1995, and 2023 of large files
        return Xtc(path, said, reading)
    if head.split(b"\n", 1)[0].strip().isdigit():
        return Extxyz(path, said, reading)
    if not head:
        return _Empty(path)
    raise AppFailed(
        f"{path} is no trajectory that can be read here: it begins with {head[:20]!r}. Known: LAMMPS text dumps, "
        "ASE .traj, extended XYZ, H5MD, DCD, XTC.",
        kind="contract",
        name="BadTrajectory",
    )


__getattr__ = moved(
    __name__, {"READING": "hpcagent.science.lammps.frames", "last_frame_of_dump": "hpcagent.science.lammps.dump"}
)
