"""Frames shared out among MPI ranks, and what is common to the analyses that follow atoms through time.

A work is a function of a trajectory, parameters and a communicator: `rdf.count`, `msd.follow`, `vacf.follow`. Its
sums run over blocks (of frames, of atoms) that do not depend on the number of ranks and are added up in their
order, so that the result is the same to the last bit on one rank and on many.

As a program, `python -m hpcagent.science.analysis.frames job.json`, it is one rank of a parallel analysis.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hpcagent.apps.each import drawn
from hpcagent.apps.run import Run
from hpcagent.beside import as_told, told
from hpcagent.errors import AppFailed, HpcAgentError
from hpcagent.model.parameter import Int
from hpcagent.science.lammps.frames import Frame, Reading, Trajectory
from hpcagent.science.lammps.trajectory import open_trajectory

__all__ = ["RANKS", "Communicator", "Followed", "Work", "analyse", "followed", "following", "shares", "total"]

_Array = NDArray[np.float64]
# More than the ranks of a node, few enough that a block is worth a message.
BLOCKS = 256
# A displacement of this share of the cell between two frames: the next image could as well be the right one.
FARTHEST = 0.4
_JOB, _RESULT, _FAILURE = "frames-job.json", "frames-result.npz", "frames-failure.json"

RANKS = Int(1, 256, default=1, description="MPI ranks that share the trajectory")


class Communicator(Protocol):
    """What is used of mpi4py's."""

    rank: int
    size: int

    def gather(self, value: Any, root: int = 0) -> Any: ...
    def allgather(self, value: Any) -> Any: ...
    def send(self, value: Any, dest: int, tag: int = 0) -> None: ...
    def recv(self, *, source: int, tag: int) -> Any: ...
    def Barrier(self) -> None: ...  # noqa: N802  # mpi4py's name


class _Alone:
    """The communicator of a single rank."""

    rank, size = 0, 1

    def gather(self, value: Any, root: int = 0) -> Any:
        return [value]

    def allgather(self, value: Any) -> Any:
        return [value]

    def send(self, value: Any, dest: int, tag: int = 0) -> None:
        raise AssertionError("there is nobody to send to")

    def recv(self, *, source: int, tag: int) -> Any:
        raise AssertionError("there is nobody to receive from")

    def Barrier(self) -> None:  # noqa: N802
        pass


Work = Callable[[Trajectory, Reading, Mapping[str, Any], Path, Communicator], dict[str, NDArray[Any]]]


def analyse(
    run: Run, work: Work, reading: Reading, params: Mapping[str, Any], ranks: int
) -> dict[str, NDArray[Any]]:
    """The arrays that a work makes of the run's first input, on this process or on several ranks.

    Args:
        run: The run; scratch files go to its directory.
        work: A function of a module, see above.
        reading: How the trajectory is read.
        params: Plain data for the work.
        ranks: MPI ranks.

    Raises:
        AppFailed: What the work raises; `NoEngine`: several ranks, and no mpi4py; `AnalysisFailed`: a rank died.
    """
    if ranks == 1:
        with open_trajectory(run.upstream[0], reading) as trajectory:
            result = work(trajectory, reading, params, run.workdir, _Alone())
            return {**result, "notes": np.array(trajectory.notes, dtype=np.str_)}
    return _in_parallel(run, work, reading, params)


def _in_parallel(run: Run, work: Work, reading: Reading, params: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    from hpcagent.apps.ending import run_mpi

    if importlib.util.find_spec("mpi4py") is None:
        raise AppFailed(
            "ranks > 1 needs mpi4py, which is not installed here.",
            kind="infrastructure",
            name="NoEngine",
            repair="pip install mpi4py, or ranks = 1",
        )
    job = {
        "work": f"{work.__module__}:{work.__qualname__}",
        "upstream": run.upstream[0],
        "reading": asdict(reading),
        "params": dict(params),
        "modules": told(),
    }
    for name in (_RESULT, _FAILURE):
        (run.workdir / name).unlink(missing_ok=True)
    (run.workdir / _JOB).write_text(json.dumps(job, default=str))
    ended = run_mpi(
        run,
        [sys.executable, "-P", "-m", "hpcagent.science.analysis.frames", _JOB],
        app="analysis",
        env={"PYTHONPATH": _python_path()},
        output="frames-output.txt",
    )
    failure = run.workdir / _FAILURE
    if failure.exists():
        said = json.loads(failure.read_text())
        raise AppFailed(said.pop("message"), **said)
    if ended.returncode != 0 or not (run.workdir / _RESULT).exists():
        raise AppFailed(
            f"the parallel analysis ended with exit code {ended.returncode}.",
            kind="infrastructure",
            name="AnalysisFailed",
            log_tail=ended.stdout[-4000:],
        )
    with np.load(run.workdir / _RESULT) as stored:
        return {name: stored[name] for name in stored.files}


def _python_path() -> str:
    """Where the ranks find hpcagent, also where a worker has it from somewhere else than site-packages."""
    import hpcagent

    here = str(Path(hpcagent.__file__).parents[1])
    return os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH", ""), here]))


# ---- sums over blocks


def shares(numbers: NDArray[np.intp], comm: Communicator) -> Iterator[tuple[int, NDArray[np.intp]]]:
    """The blocks of this rank, as it draws them: (number of the block, what is in it); all ranks, to the end.

    Frames of a block are neighbours in the file. Whoever is free takes the next block.
    """
    blocks = np.array_split(numbers, min(len(numbers), BLOCKS))
    for index in drawn(len(blocks), comm):
        yield index, blocks[index]


def total(
    blocks: int, part: Callable[[int], tuple[NDArray[Any], ...]], comm: Communicator
) -> tuple[NDArray[Any], ...] | None:
    """The sum over blocks of what `part` gives, added in their order; on rank 0, None elsewhere.

    Blocks go round the ranks; only one of them at a time is in memory.
    """
    summed: list[NDArray[Any]] | None = None
    for block in range(blocks):
        owner = block % comm.size
        if comm.rank == owner:
            own = part(block)
            if owner != 0:
                comm.send(own, dest=0, tag=block)
        if comm.rank == 0:
            got = own if owner == 0 else comm.recv(source=owner, tag=block)
            if summed is None:
                summed = [np.array(array) for array in got]
            else:
                for so_far, array in zip(summed, got, strict=True):
                    so_far += array
    return None if summed is None else tuple(summed)


# ---- atoms followed through time


@dataclass(frozen=True, slots=True, eq=False)
class Followed:
    """A vector of every atom in every frame, in a scratch file: (n_frames, n_atoms, 3) float64.

    Attributes:
        rows: The vectors: displacements since the frame before (angstrom; zero in the first), or velocities
            (angstrom/ps); the drift of the centre of mass taken out.
        interval_ps: Time between frames.
        species: (n_atoms,) names.
        masses: (n_atoms,) g/mol; ones where the species are no elements.
        volume: Mean volume of the cell, in angstrom^3.
        periodic: Whether the cell is periodic along all its vectors.
        temperature: Mean kinetic temperature, in K; NaN without velocities or masses.
        weighed: Whether the masses are known.
        moving: The directions (0, 1, 2) along which any atom moves: two in a two-dimensional system.
    """

    rows: NDArray[np.float64]
    interval_ps: float
    species: NDArray[np.str_]
    masses: _Array
    volume: float
    periodic: bool
    temperature: float
    weighed: bool
    moving: tuple[int, ...] = (0, 1, 2)
    notes: tuple[str, ...] = ()


@contextlib.contextmanager
def following(
    trajectory: Trajectory, reading: Reading, what: str, folder: Path, comm: Communicator
) -> Iterator[Followed]:
    """As `followed`, for the frames of a reading, with a scratch file that is gone afterwards."""
    numbers = trajectory.chosen(reading, at_least=10)
    scratch = folder / f"{what}.scratch"
    try:
        data = followed(trajectory, numbers, what, scratch, comm)
        if comm.rank == 0:
            trajectory.notes += data.notes
        yield data
        comm.Barrier()
    finally:
        if comm.rank == 0:
            scratch.unlink(missing_ok=True)


def followed(
    trajectory: Trajectory, numbers: NDArray[np.intp], kind: str, scratch: Path, comm: Communicator
) -> Followed:
    """Writes `displacement` or `velocity` of every atom and frame to a scratch file; the ranks share the frames.

    Unwrapping adds up the shortest displacements in Cartesian coordinates, which is right also where the cell
    changes: S. von Bulow, J. T. Bullerjahn, G. Hummer, J. Chem. Phys. 153, 021101 (2020), doi:10.1063/5.0008316.

    Raises:
        AppFailed: `NoTimes`; `UnevenFrames`; `NoIds`: atoms cannot be told apart; `NoVelocities`;
            `FramesTooFarApart`: an atom goes more than 0.4 of the cell between frames; `BadTrajectory`: atoms come
            or go; `TooFewAtoms`: there is one atom.
    """
    numbers, notes = _even(trajectory, numbers)
    times = trajectory.times_ps[numbers]
    if not trajectory.tracked:
        raise AppFailed(
            f"{trajectory.path.name} has no column `id`: LAMMPS writes atoms in any order, so none can be "
            "followed.",
            kind="contract",
            name="NoIds",
            repair="add `id` to the dump's columns",
        )
    first = trajectory.read(int(numbers[0]))
    if kind == "velocity" and first.velocities is None:
        raise AppFailed(
            f"{trajectory.path.name} has no velocities.",
            kind="contract",
            name="NoVelocities",
            repair="add vx vy vz to the dump's columns",
        )
    n = len(first.positions)
    if n < 2:
        raise AppFailed(
            f"{trajectory.path.name} has {n} atom: motion is measured against the centre of mass, and nothing is "
            "left of that of a single atom.",
            kind="contract",
            name="TooFewAtoms",
            repair="at least two atoms; many, for an error that means something",
        )
    masses = np.ones(n) if first.masses is None else first.masses
    if comm.rank == 0:
        with scratch.open("wb") as file:
            file.truncate(max(len(numbers) * n * 24, 1))
    comm.Barrier()
    rows: NDArray[np.float64] = np.memmap(scratch, np.float64, "r+", shape=(len(numbers), n, 3))
    mine = np.array_split(np.arange(len(numbers)), comm.size)[comm.rank]
    volumes, kinetic = np.zeros(len(mine)), np.zeros(len(mine))
    extent, drift, spread = np.zeros((len(mine), 3)), np.zeros((len(mine), 3)), np.zeros(len(mine))
    before: Frame | None = None
    for place, row in enumerate(mine):
        if row and before is None and kind == "displacement":
            before = trajectory.read(int(numbers[row - 1]))
        frame = trajectory.read(int(numbers[row]))
        _check_same(trajectory, first, frame)
        if kind == "displacement":
            vectors = np.zeros((n, 3)) if before is None else _displacement(trajectory, before, frame)
            before = frame
        else:
            if frame.velocities is None:
                raise trajectory.bad(f"frame {numbers[row]} has no velocities, the first one has")
            vectors = np.array(frame.velocities)
        extent[place] = np.abs(vectors).max(axis=0)
        drift[place] = masses @ vectors / masses.sum()
        vectors -= drift[place]
        spread[place] = float((vectors**2).sum()) / n
        rows[row] = vectors
        volumes[place] = frame.volume
        if frame.velocities is not None:
            relative = frame.velocities - masses @ frame.velocities / masses.sum()
            kinetic[place] = float(masses @ (relative**2).sum(axis=1))
        else:
            kinetic[place] = np.nan
    del rows  # written out before any rank reads
    volume = np.concatenate(comm.allgather(volumes))
    energy = np.concatenate(comm.allgather(kinetic))
    farthest = np.concatenate(comm.allgather(extent)).max(axis=0)
    of_all = np.concatenate(comm.allgather(drift))[1:]
    of_one = float(np.concatenate(comm.allgather(spread))[1:].mean())
    comm.Barrier()
    moving = tuple(int(i) for i in np.flatnonzero(farthest > 1e-9 * max(float(farthest.max()), 1e-300)))
    notes += _of_motion(moving, n, float(of_all.var(axis=0).sum()), of_one)
    if first.masses is None and len(set(first.species)) > 1:
        notes += ("masses are not known (name the types with `species`): the drift is that of the plain mean",)
    if first.unwrapped and np.ptp(volume) > 1e-3 * volume.mean():
        notes += (
            "the cell changes and the file holds unwrapped coordinates, which then carry part of that change "
            "(von Bulow et al. 2020); wrapped ones (x y z) would be unwrapped here without it",
        )
    return Followed(
        rows=np.memmap(scratch, np.float64, "r", shape=(len(numbers), n, 3)),
        interval_ps=float((times[-1] - times[0]) / (len(times) - 1)),
        species=first.species,
        masses=masses,
        volume=float(volume.mean()),
        periodic=all(first.pbc),
        temperature=_temperature(energy, len(moving) * (n - 1)) if first.masses is not None else float("nan"),
        weighed=first.masses is not None,
        moving=moving or (0, 1, 2),
        notes=notes,
    )


def _of_motion(moving: tuple[int, ...], n: int, of_all: float, of_one: float) -> tuple[str, ...]:
    """What is to be said of directions without motion, and of a centre of mass that moves at random.

    Args:
        moving: Directions in which atoms move.
        n: Number of atoms.
        of_all: Variance of the centre of mass's steps; of independent atoms it is 1/n of that of one.
        of_one: Mean square of an atom's steps against the centre of mass.
    """
    notes: tuple[str, ...] = ()
    if 0 < len(moving) < 3:
        still = "".join("xyz"[i] for i in range(3) if i not in moving)
        notes += (f"no atom moves along {' and '.join(still)}: taken as a system of {len(moving)} dimension(s)",)
    if of_one > 0 and of_all > 0.25 * of_one / n and n <= 200:
        notes += (
            "the centre of mass moves at random, as under a thermostat that does not conserve momentum (Langevin, "
            f"Brownian); its motion is taken out, which lowers the diffusion of {n} independent atoms by 1/{n}, "
            f"{1 / n:.1%}",
        )
    return notes


def _temperature(twice_kinetic: _Array, freedom: int) -> float:
    """<m v^2> in g/mol angstrom^2/ps^2 over f k_B, in K, f the degrees of freedom."""
    gas_constant = 8.31446261815324  # J/mol/K; 1 g/mol (angstrom/ps)^2 = 10 J/mol
    return float(twice_kinetic.mean() * 10.0 / (max(freedom, 1) * gas_constant))


def _even(trajectory: Trajectory, numbers: NDArray[np.intp]) -> tuple[NDArray[np.intp], tuple[str, ...]]:
    times = trajectory.times_ps[numbers]
    notes: tuple[str, ...] = ()
    if len(times) > 3:
        gaps = np.diff(times)
        if abs(gaps[-1] - gaps[0]) > 1e-3 * gaps[0] and np.ptp(gaps[:-1]) <= 1e-3 * gaps[0]:
            numbers, notes = numbers[:-1], ("the last frame comes off the interval of the others and is left out",)
            gaps = gaps[:-1]
        if gaps.min() <= 0 or np.ptp(gaps) > 1e-3 * gaps.mean():
            raise AppFailed(
                f"the frames of {trajectory.path.name} are {gaps.min():g} to {gaps.max():g} ps apart; following "
                "atoms needs equal intervals.",
                kind="contract",
                name="UnevenFrames",
                repair="write frames every N steps with one timestep, or leave the uneven part out with `discard`",
            )
    return numbers, notes


def _check_same(trajectory: Trajectory, first: Frame, frame: Frame) -> None:
    if len(frame.positions) != len(first.positions) or (
        first.ids is not None and frame.ids is not None and not np.array_equal(first.ids, frame.ids)
    ):
        raise trajectory.bad(
            f"the atoms of step {frame.step} are not those of step {first.step}; only atoms that are always there "
            "can be followed"
        )


def _displacement(trajectory: Trajectory, before: Frame, frame: Frame) -> _Array:
    moved: _Array = frame.positions - before.positions
    if frame.unwrapped or not any(frame.pbc):
        return moved
    # Differences in the fractions of each frame's own cell would contain the change of the cell.
    cell = frame.whole_cell
    share = moved @ np.linalg.inv(cell)
    jumps = np.rint(share) * np.array(frame.pbc)
    share -= jumps
    farthest = float(np.abs(share[:, np.array(frame.pbc)]).max())
    if farthest > FARTHEST:
        raise AppFailed(
            f"between steps {before.step} and {frame.step} of {trajectory.path.name} an atom is {farthest:.2f} of "
            f"the cell away from where it was (at most {FARTHEST}): which periodic image it went to cannot be "
            "told.",
            kind="contract",
            name="FramesTooFarApart",
            repair="write frames more often, or write xu yu zu (or ix iy iz) to the dump",
        )
    result: _Array = moved - jumps @ cell
    return result


# ---- one rank


def main(path: str) -> None:
    """One rank of `analyse`."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    job = json.loads(Path(path).read_text())
    as_told(job["modules"])
    module, _, name = job["work"].partition(":")
    reading = Reading(**job["reading"])
    folder = Path(path).absolute().parent
    try:
        work = getattr(importlib.import_module(module), name)
        trajectory = open_trajectory(job["upstream"], reading)
        result = work(trajectory, reading, job["params"], folder, comm)
        if comm.rank == 0:
            part = folder / f"{_RESULT}.part"
            with part.open("wb") as file:
                np.savez(file, **result, notes=np.array(trajectory.notes, dtype=np.str_))
            part.rename(folder / _RESULT)
    except HpcAgentError as error:
        part = folder / f"{_FAILURE}.{comm.rank}"
        said = {k: error.details[k] for k in ("kind", "name", "repair") if k in error.details}
        part.write_text(json.dumps({"message": error.message, **said}))
        part.rename(folder / _FAILURE)
        comm.Abort(1)  # the other ranks may wait for this one
    except BaseException:
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
        comm.Abort(1)


if __name__ == "__main__":
    main(sys.argv[1])
