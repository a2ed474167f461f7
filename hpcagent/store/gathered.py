"""One HDF5 file for the metrics of many runs, written while their ranks run, or in the end by one of them.

Where h5py was built with MPI every rank writes its own rows into the file; elsewhere rank 0 gathers them when the
file is closed. A program without hpcagent can load this module by its path: it imports numpy and h5py, and nothing
else that does not come with Python. The file lies under another name until it is whole.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

__all__ = ["Gathered", "GatheredFile", "ParallelFile", "open_gathered", "read_gathered"]

DONE = "done"
"""Dataset that says of which runs there are metrics: 1, else 0."""
GROUP = "metrics"
"""Group of the metrics: each a dataset of one float64 for each run, NaN where it has no such number."""
_TEXTS = "execution_id"


class Gathered(Protocol):
    """A file that is being filled."""

    @property
    def parallel(self) -> bool:
        """Whether every rank writes into the file itself."""

    def put(self, index: int, metrics: Mapping[str, float]) -> None:
        """Keep the metrics of run `index`; of one that is put twice the later ones count."""

    def close(self) -> None:
        """Finish the file; all ranks together, each once."""


def open_gathered(
    path: str | os.PathLike[str],
    names: Mapping[str, str] | Sequence[str],
    n: int,
    comm: Any = None,
    *,
    ids: Sequence[str] = (),
) -> Gathered:
    """Begin a file of the metrics of `n` runs; all ranks together.

    Args:
        path: Where it is to be; there is nothing under that name until it is closed.
        names: The metrics, alike on all ranks; with their units, where it is a mapping.
        n: How many runs there are.
        comm: mpi4py communicator of those that put; None: this process alone.
        ids: Execution id of each run, or nothing.

    Raises:
        ValueError: A name that cannot be one, a number of runs that is negative, or ids of other runs.
        OSError: It cannot be written.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "metrics.h5"
        >>> file = open_gathered(path, {"energy": "eV"}, 3)
        >>> file.put(2, {"energy": -1.5})
        >>> file.close()
        >>> read_gathered(path)["energy"].tolist()
        [nan, nan, -1.5]
    """
    units = dict(names) if isinstance(names, Mapping) else dict.fromkeys(names, "")
    for name in units:
        if not name or "/" in name or "\0" in name or name in (".", ".."):
            raise ValueError(f"{name!r} cannot be the name of a metric: it is a dataset's of HDF5.")
    if n < 0:
        raise ValueError(f"n={n}: a number of runs is not negative.")
    if ids and len(ids) != n:
        raise ValueError(f"{len(ids)} ids for {n} runs.")
    if comm is not None and comm.size > 1 and _with_mpi():
        return ParallelFile(Path(path), units, n, comm, ids)
    return GatheredFile(Path(path), units, n, comm, ids)


def read_gathered(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The columns of such a file: `done` and each metric `(n_runs,)`; `execution_id` where it was given.

    Raises:
        OSError, KeyError: It is no such file.
    """
    with _forks():  # it registers what a fork has to do
        import h5py

    with _forks(), h5py.File(path, "r") as file:
        columns: dict[str, Any] = {DONE: file[DONE][...].astype(bool)}
        if _TEXTS in file:
            columns[_TEXTS] = file[_TEXTS].asstr()[...]
        return columns | {name: dataset[...] for name, dataset in file[GROUP].items()}


class GatheredFile:
    """Rows in memory until the file is closed, when rank 0 has all of them and writes them."""

    parallel = False

    def __init__(self, path: Path, units: Mapping[str, str], n: int, comm: Any, ids: Sequence[str]) -> None:
        self._path, self._units, self._n, self._comm, self._ids = path, units, n, comm, tuple(ids)
        self._rows: dict[int, dict[str, float]] = {}

    def put(self, index: int, metrics: Mapping[str, float]) -> None:
        """Keep the metrics of run `index`.

        Raises:
            ValueError: There is no such run, or a metric that was not named in the beginning.
        """
        self._rows[_checked(index, self._n, metrics, self._units)] = {k: float(v) for k, v in metrics.items()}

    def write(self) -> None:
        """Write what there is by now, whole; for a process alone, which may go on putting."""
        columns, done = _columns(self._rows, self._units, self._n)
        part = _part(self._path)
        try:
            _write(part, columns, done, self._units, self._ids)
            part.replace(self._path)
        except BaseException:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
            raise

    def close(self) -> None:
        """Write the file: rank 0 does, with the rows of all.

        Raises:
            OSError: On all ranks, where it cannot be written.
        """
        if self._comm is None or self._comm.size == 1:
            self.write()
            return
        parts = self._comm.gather(self._rows)
        wrong = None
        if self._comm.rank == 0:
            self._rows = {index: row for part in parts for index, row in part.items()}
            try:
                self.write()
            except OSError as error:
                wrong = [error.errno, error.strerror or str(error), str(self._path)]
        wrong = self._comm.bcast(wrong)
        if wrong is not None:
            raise OSError(*wrong)


class ParallelFile:
    """A file that all ranks have open and write their rows into, as they come."""

    parallel = True

    def __init__(self, path: Path, units: Mapping[str, str], n: int, comm: Any, ids: Sequence[str]) -> None:
        with _forks():
            import h5py

        self._path, self._units, self._n, self._comm = path, units, n, comm
        # What is created is created by all, in the same order; values are written by whoever has them.
        self._file = h5py.File(_part(path), "w", driver="mpio", comm=comm)
        self._done = self._file.create_dataset(DONE, shape=(n,), dtype=np.uint8, fillvalue=0)
        self._columns = {}
        for name, unit in units.items():
            column = self._file.create_dataset(f"{GROUP}/{name}", shape=(n,), dtype=np.float64, fillvalue=np.nan)
            if unit:
                column.attrs["unit"] = unit
            self._columns[name] = column
        if not units:
            self._file.create_group(GROUP)
        if ids:
            # Of a fixed length: HDF5 cannot write texts of any length in parallel.
            texts = [text.encode() for text in ids]
            kind = h5py.string_dtype(length=max(1, *map(len, texts)))
            column = self._file.create_dataset(_TEXTS, shape=(n,), dtype=kind)
            if comm.rank == 0:
                column[...] = np.array(texts, dtype=kind)

    def put(self, index: int, metrics: Mapping[str, float]) -> None:
        """Write the metrics of run `index`.

        Raises:
            ValueError: There is no such run, or a metric that was not named in the beginning.
        """
        index = _checked(index, self._n, metrics, self._units)
        for name, column in self._columns.items():
            column[index] = float(metrics.get(name, np.nan))
        self._done[index] = 1

    def close(self) -> None:
        """Close it on all ranks, and give it its name."""
        self._file.close()
        wrong = None
        if self._comm.rank == 0:
            try:
                _part(self._path).replace(self._path)
            except OSError as error:
                wrong = [error.errno, error.strerror or str(error), str(self._path)]
        wrong = self._comm.bcast(wrong)
        if wrong is not None:
            raise OSError(*wrong)


def _checked(index: int, n: int, metrics: Mapping[str, float], units: Mapping[str, str]) -> int:
    if not 0 <= index < n:
        raise ValueError(f"there is no run {index}: they go from 0 to {n - 1}.")
    unknown = [name for name in metrics if name not in units]
    if unknown:
        raise ValueError(f"metric {unknown[0]!r} was not named when the file was begun ({', '.join(units)}).")
    return int(index)


def _columns(
    rows: Mapping[int, Mapping[str, float]], names: Mapping[str, str], n: int
) -> tuple[dict[str, Any], Any]:
    columns = {name: np.full(n, np.nan) for name in names}
    done = np.zeros(n, np.uint8)
    for index, row in rows.items():
        done[index] = 1
        for name, value in row.items():
            columns[name][index] = value
    return columns, done


def _write(
    part: Path, columns: Mapping[str, Any], done: Any, units: Mapping[str, str], ids: Sequence[str]
) -> None:
    with _forks():
        import h5py

    # Built in memory, then written as plain bytes: HDF5 crashes the process if the disk fills while it writes.
    image = io.BytesIO()
    with _forks(), h5py.File(image, "w") as file:
        file.create_dataset(DONE, data=done)
        group = file.create_group(GROUP)
        for name, values in columns.items():
            group.create_dataset(name, data=values)
            if units[name]:
                group[name].attrs["unit"] = units[name]
        if ids:
            file.create_dataset(_TEXTS, data=list(ids), dtype=h5py.string_dtype())
    part.write_bytes(image.getvalue())


def _part(path: Path) -> Path:
    return path.with_name(f"{path.name}.part")


def _with_mpi() -> bool:
    with _forks():
        import h5py

    return bool(h5py.get_config().mpi)


def _forks() -> Any:
    """Keeps forks of this process away while HDF5 is at work; nothing where this module stands alone."""
    try:
        from hpcagent.lifeline import FORKS
    except ImportError:
        return contextlib.nullcontext()
    return FORKS
