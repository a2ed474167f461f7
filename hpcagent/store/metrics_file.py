"""metrics.h5: the consolidated numbers, one row for each result. Derived: it can be rebuilt at any time.

Written whole under another name and renamed, so that a reader never meets half a file and needs no
special mode; rewritten at most so often that writing stays a small share of the campaign's time.
"""

from __future__ import annotations

import io
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hpcagent.errors import BadInput
from hpcagent.model.base import Scalar
from hpcagent.model.contract import Contract
from hpcagent.model.records import Result
from hpcagent.store.files import write_whole

__all__ = ["MetricsFile", "read_table", "table_of"]

# Share of the time that rewriting may take while runs go on.
SHARE = 0.05


class MetricsFile:
    """Keeps metrics.h5 in step with the results."""

    def __init__(self, path: Path, contract: Contract) -> None:
        self._path = path
        self._contract = contract
        self._next = 0.0
        self._rows: int | None = None

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
        if final and self._rows is None:
            self._rows = _rows_in(self._path)  # a resumed campaign may have nothing to add
        if self._rows == len(results):
            return
        write_table(self._path, table_of(results, self._contract), units_of(results, self._contract))
        self._rows = len(results)
        self._next = time.monotonic() + (time.monotonic() - now) / SHARE


def _rows_in(path: Path) -> int | None:
    """How many results a metrics.h5 holds; None where there is none that can be read."""
    import h5py

    try:
        with h5py.File(path, "r") as file:
            return len(file["index"])
    except (OSError, RuntimeError, KeyError, ValueError, TypeError, AttributeError):
        return None


def units_of(results: Sequence[Result], contract: Contract) -> dict[str, str]:
    """Unit of each column of `table_of`."""
    units = {f"params/{p.name}": p.unit for p in contract.space.parameters}
    metric_units = {m.name: m.unit for m in contract.metrics}
    for result in results:
        metric_units |= result.units
    for name, unit in metric_units.items():
        units[f"metrics/{name}"] = units[f"uncertainty/{name}"] = unit
    costs = {"wall_s": "s", "node_hours": "node h", "estimated_node_hours": "node h"}
    return units | costs | {"started_at": "s since 1970"}


def table_of(results: Sequence[Result], contract: Contract) -> dict[str, list[Any]]:
    """Columns of plain values, one entry for each result; NaN where a result has no such number."""
    columns: dict[str, list[Any]] = {
        "execution_id": [r.manifest.execution_id for r in results],
        "index": [r.manifest.index for r in results],
        "batch": [r.manifest.batch for r in results],
        "role": [r.manifest.role for r in results],
        "replicate": [r.manifest.replicate for r in results],
        "seed": [r.manifest.seed for r in results],
        "status": [r.status for r in results],
        "state": [r.state for r in results],
        "failure": [r.failure.name if r.failure else "" for r in results],
        "failure_kind": [r.failure.kind if r.failure else "" for r in results],
        "distrusted": [r.distrusted or "" for r in results],
        "host": [r.host for r in results],
        "started_at": [r.started_at for r in results],
        "wall_s": [r.cost.wall_s for r in results],
        "node_hours": [r.cost.node_hours for r in results],
        "estimated_node_hours": [r.manifest.estimated_node_hours or math.nan for r in results],
    }
    for p in contract.space.parameters:
        empty: Scalar = "" if p.kind == "choice" else math.nan
        columns[f"params/{p.name}"] = [r.manifest.params.get(p.name, empty) for r in results]
    names: dict[str, None] = {}
    for result in results:
        names |= dict.fromkeys(result.metrics)
    for name in names:
        columns[f"metrics/{name}"] = [r.metrics.get(name, math.nan) for r in results]
        if any(name in r.uncertainty for r in results):
            columns[f"uncertainty/{name}"] = [r.uncertainty.get(name, math.nan) for r in results]
    return columns


def write_table(path: Path, columns: Mapping[str, list[Any]], units: Mapping[str, str]) -> None:
    """Write columns as HDF5 datasets with their units as attributes."""
    import h5py

    # Built in memory, then written as plain bytes: HDF5 crashes the process if the disk fills while it writes.
    image = io.BytesIO()
    with h5py.File(image, "w") as file:
        for name, values in columns.items():
            data = _array(values)
            dataset = file.create_dataset(name, data=data, dtype=data.dtype)
            if name in units:
                dataset.attrs["unit"] = units[name]
    write_whole(path, image.getvalue())


def _array(values: list[Any]) -> Any:
    import h5py

    if any(isinstance(v, str) for v in values):
        return np.array([str(v) for v in values], dtype=h5py.string_dtype())
    return np.array(values)


def read_table(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Read metrics.h5: columns as numpy arrays `(n_results,)`, and their units.

    Raises:
        BadInput: The file is missing or is no such file.
    """
    import h5py

    try:
        columns: dict[str, Any] = {}
        units: dict[str, str] = {}
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
