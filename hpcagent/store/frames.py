"""The table of results as a pandas DataFrame or an xarray Dataset; both are extras, imported when asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from hpcagent.errors import BadInput
from hpcagent.store.columns import Column

if TYPE_CHECKING:
    import pandas
    import xarray

__all__ = ["RUN", "flat", "is_coordinate", "to_pandas", "to_xarray"]

RUN = "index"
"""The dimension of metrics.h5 and of the Dataset: the position of a run in its campaign."""

_WHERE_AND_WHO = ("execution_id", "batch", "role", "replicate", "seed", "status", "state")


def to_pandas(columns: Sequence[Column], about: Mapping[str, Any]) -> pandas.DataFrame:
    """A DataFrame with one row for each result; `attrs["units"]` has the units by column.

    Whole numbers and flags stay so where some are missing (`Int64`, `boolean`): those are then NA.

    Args:
        columns: From `columns_of`.
        about: What goes into `attrs` beside the units.

    Raises:
        BadInput: pandas is not installed.
    """
    found: Any = _library("pandas")
    data = {c.name: _series(found, c) for c in columns}
    frame: pandas.DataFrame = found.DataFrame(data)
    frame.attrs = {**about, "units": {c.name: c.unit for c in columns if c.unit is not None}}
    return frame


def _series(found: Any, column: Column) -> Any:
    types = {"whole": "int64" if column.complete else "Int64", "number": "float64", "text": "string"}
    types["flag"] = "bool" if column.complete else "boolean"
    values = column.filled() if column.kind == "number" else list(column.values)
    return found.Series(values, dtype=types[column.kind])


def to_xarray(columns: Sequence[Column], about: Mapping[str, Any]) -> xarray.Dataset:
    """A Dataset along `index`, the number of the run; names and attributes are those of metrics.h5 in xarray.

    `params/x` is the coordinate `params_x`, `metrics/value` the variable `metrics_value`; `units` is an attribute
    of each.

    Args:
        columns: From `columns_of`.
        about: Attributes of the Dataset.

    Raises:
        BadInput: xarray is not installed.
    """
    import numpy as np

    found: Any = _library("xarray")
    variables: dict[str, Any] = {}
    coordinates: dict[str, Any] = {}
    for column in columns:
        values = np.array(column.filled(), dtype=object if column.kind == "text" else None)
        attributes = {} if column.unit is None else {"units": column.unit}
        if column.name == "started_at":
            # What xarray makes of the unit in metrics.h5.
            values, attributes = (values * 1e9).astype("datetime64[ns]"), {}
        target = coordinates if is_coordinate(column.name) else variables
        target[flat(column.name)] = (RUN, values, attributes)
    dataset: xarray.Dataset = found.Dataset(variables, coords=coordinates, attrs=dict(about))
    return dataset


def flat(name: str) -> str:
    """A column's name where a slash would be a folder: `params/x` is `params_x`.

    Example:
        >>> flat("params/x"), flat("wall_s")
        ('params_x', 'wall_s')
    """
    return name.replace("/", "_")


def is_coordinate(name: str) -> bool:
    """Whether a column says which run, or where; the others are what came out."""
    return name == RUN or name in _WHERE_AND_WHO or name.startswith("params/")


def _library(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise BadInput(
            f"this needs {name}, which is not installed: pip install 'hpcagent[{name}]'. `hpcagent export` writes "
            "CSV without it.",
            value=name,
        ) from None
