"""metrics.h5: the consolidated numbers, one row for each result. Derived: it can be rebuilt at any time.

Written whole under another name and renamed, so that a reader never meets half a file and needs no
special mode; rewritten at most so often that writing stays a small share of the campaign's time.
"""

from __future__ import annotations

import hashlib
import io
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hpcagent.errors import BadInput
from hpcagent.lifeline import FORKS
from hpcagent.model.contract import Contract
from hpcagent.model.records import Result
from hpcagent.store.columns import columns_of
from hpcagent.store.files import write_whole
from hpcagent.store.frames import RUN, flat, is_coordinate

__all__ = ["MetricsFile", "read_table", "table_of"]

# Share of the time that rewriting may take while runs go on.
SHARE = 0.05


class MetricsFile:
    """Keeps metrics.h5 in step with the results."""

    def __init__(self, path: Path, contract: Contract) -> None:
        self._path = path
        self._contract = contract
        self._next = 0.0
        self._held = b""

    def update(self, all_results: Callable[[], Sequence[Result]], *, final: bool = False) -> None:
        """Write all results, unless the last writing was too recent for its cost.

        Args:
            all_results: Gives the results; called only when they are written.
            final: Write in any case.

        Raises:
            StoreFull: The disk refuses; the old file stays.
        """
        now = time.monotonic()
        if now < self._next and not final:
            return
        results = all_results()
        if final and not self._held:
            self._held = _held_in(self._path)  # a resumed campaign may have nothing to add
        # Not only how many: a run that was given up and is run again takes the place of its row.
        held = _digest((r.manifest.execution_id, r.state, r.started_at) for r in results)
        if self._held == held:
            return
        columns = columns_of(results, self._contract)
        units = {c.name: c.unit for c in columns if c.unit is not None}
        write_table(self._path, {c.name: c.filled() for c in columns}, units)
        self._held = held
        self._next = time.monotonic() + (time.monotonic() - now) / SHARE


def _digest(rows: Iterable[tuple[str, str, float | None]]) -> bytes:
    """Which results: of the id, state and start of each."""
    return hashlib.sha256(repr(list(rows)).encode()).digest()


def _held_in(path: Path) -> bytes:
    """Which results a metrics.h5 holds; empty where there is none that can be read."""
    with FORKS:  # it registers what a fork has to do
        import h5py

    try:
        _require_whole(path)
        with FORKS, h5py.File(path, "r") as file:
            ids, states = (file[name].asstr()[...].tolist() for name in ("execution_id", "state"))
            starts = (None if math.isnan(at) else at for at in file["started_at"][...].tolist())
            return _digest(zip(ids, states, starts, strict=True))
    except (OSError, RuntimeError, KeyError, ValueError, TypeError, AttributeError):
        return b""


def units_of(results: Sequence[Result], contract: Contract) -> dict[str, str]:
    """Unit of each column of `table_of` that has one."""
    return {c.name: c.unit for c in columns_of(results, contract) if c.unit is not None}


def table_of(results: Sequence[Result], contract: Contract) -> dict[str, list[Any]]:
    """Columns of plain values, one entry for each result; NaN, or "", where a result has no such value."""
    return {c.name: list(c.filled()) for c in columns_of(results, contract)}


def write_table(path: Path, columns: Mapping[str, Sequence[Any]], units: Mapping[str, str]) -> None:
    """Write columns as HDF5 datasets with their units as attributes.

    Where there is a column `index`, it is the dimension of the others, and those in groups (`metrics/value`) have
    a second name at the top (`metrics_value`, a link, not a copy): so `xarray.open_dataset` finds everything.
    """
    with FORKS:  # it registers what a fork has to do
        import h5py

    # Built in memory, then written as plain bytes: HDF5 crashes the process if the disk fills while it writes.
    image = io.BytesIO()
    with FORKS, h5py.File(image, "w") as file:
        for name, values in columns.items():
            data = _array(values)
            dataset = file.create_dataset(name, data=data, dtype=data.dtype)
            if name in units:
                dataset.attrs["unit"] = units[name]
                dataset.attrs["units"] = _DATES if name == "started_at" else units[name]
        if RUN in columns:
            _give_dimension(file, list(columns))
    data = image.getvalue()  # no view of it: collected with the traceback of a full disk, that crashes Python 3.12
    write_whole(path, (data, _SEAL, hashlib.sha256(data).digest()))


_SEAL = b"\0hpcagent sha256\0"
"""Stands before the SHA-256 at the end of the file, behind the end that HDF5 knows."""


def _require_whole(path: Path) -> None:
    """Hold a file against the digest at its end, before HDF5 opens it: damage can keep HDF5 busy for ever.

    Raises:
        OSError: It is missing, or damaged. A file of before there were digests passes.
    """
    data = memoryview(path.read_bytes())
    at = len(data) - len(_SEAL) - hashlib.sha256().digest_size
    sealed = at > 0 and data[at : at + len(_SEAL)] == _SEAL
    if sealed and hashlib.sha256(data[:at]).digest() != data[at + len(_SEAL) :]:
        raise OSError("it was damaged after it had been written")


_DATES = "seconds since 1970-01-01"
"""The unit of Unix time in the words that make dates of it."""


def _give_dimension(file: Any, names: Sequence[str]) -> None:
    """What netCDF asks for: the dimension of each dataset, and which of them are coordinates."""
    file[RUN].make_scale(RUN)
    for name in names:
        if name != RUN:
            file[name].dims[0].attach_scale(file[RUN])
        if flat(name) != name:
            file[flat(name)] = file[name]
    file.attrs["coordinates"] = " ".join(flat(name) for name in names if is_coordinate(name) and name != RUN)


def _array(values: Sequence[Any]) -> Any:
    with FORKS:  # it registers what a fork has to do
        import h5py

    if any(issubclass(kind, str) for kind in set(map(type, values))):
        return np.array([str(v) for v in values], dtype=h5py.string_dtype())
    return np.array(values)


def read_table(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Read metrics.h5: columns as numpy arrays `(n_results,)`, and their units.

    Raises:
        BadInput: The file is missing or is no such file.
    """
    with FORKS:  # it registers what a fork has to do
        import h5py

    try:
        columns: dict[str, Any] = {}
        units: dict[str, str] = {}
        _require_whole(path)
        with h5py.File(path, "r") as file:

            def visit(name: str, item: Any) -> None:
                if isinstance(item, h5py.Dataset):
                    text = h5py.check_string_dtype(item.dtype) is not None
                    columns[name] = item.asstr()[...] if text else item[...]
                    if "unit" in item.attrs:
                        units[name] = str(item.attrs["unit"])

            file.visititems(visit)
        return columns, units
    except (
        OSError,
        RuntimeError,
        KeyError,
        ValueError,
        TypeError,
        AttributeError,
    ) as error:  # h5py, by what is damaged
        raise BadInput(
            f"{path} cannot be read as a metrics file: {error}. It is derived: delete it, and `hpcagent resume "
            f"{path.parent}` writes it anew.",
            value=str(path),
        ) from None
