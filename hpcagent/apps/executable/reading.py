"""Reads the numbers of a run from what its program printed and wrote."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcagent.apps.bounded import require_room
from hpcagent.apps.executable.matching import LARGEST, Found
from hpcagent.apps.executable.record import OUTPUT, PRINTED, Reading, json_path
from hpcagent.apps.executable.tables import parse_number, read_table, wrong
from hpcagent.apps.printed import read_bytes, too_large
from hpcagent.errors import AppFailed, BadInput, nearest
from hpcagent.lifeline import FORKS
from hpcagent.statistics.reductions import REDUCTIONS
from hpcagent.statistics.timeseries import block_average
from hpcagent.units import factor

__all__ = ["Number", "from_match", "json_text", "number_of", "parsed_json", "reduced", "step_into"]

_Array = NDArray[np.float64]


class Number:
    """A number that was read.

    Attributes:
        value: In the metric's unit.
        error: Its standard error, in the same unit; NaN where none is known.
        said: What is worth knowing of it; may be empty.
    """

    __slots__ = ("error", "said", "value")

    def __init__(self, value: float, error: float = math.nan, said: str = "") -> None:
        self.value, self.error, self.said = value, error, said


def number_of(metric: str, how: Reading, folder: Path, documents: dict[str, Any]) -> Number:
    """Read one number from a JSON file, a table or an array.

    Args:
        metric: Its name, for messages.
        how: How it is read; not by `regex`, see `from_match`.
        folder: Of the run.
        documents: JSON files that were read already, by name; more are put in.

    Raises:
        AppFailed: `NoOutput`, `MissingMetric`, `BadOutput`, `NotFinite` or `FileTooLarge`.
    """
    path = folder / (OUTPUT if how.file == PRINTED else how.file)
    if how.way == "key":
        assert how.key is not None
        if how.file not in documents:
            documents[how.file] = parsed_json(_there(metric, path, json_text), how.file)
        value = _number(metric, step_into(metric, documents[how.file], json_path(how.key), how.file), how)
        if how.error_key is None:
            return Number(value)
        steps = json_path(how.error_key)
        error = _number(metric, step_into(metric, documents[how.file], steps, how.file), how)
        return Number(value, _standard_error(metric, error, how.file))
    if how.way == "array":
        values, rows = _there(metric, path, lambda p: _array(metric, p, how)), "values"
    else:
        assert how.column is not None
        column = how.column
        values, rows = _there(metric, path, lambda p: read_table(metric, p, column)), "rows"
    return reduced(metric, values, how, rows)


def _there(metric: str, path: Path, read: Callable[[Path], Any]) -> Any:
    try:
        if not path.is_file():
            raise FileNotFoundError(path)
        return read(path)
    except FileNotFoundError:
        raise AppFailed(
            f"the program ended well, but {path.name}, from which the metric {metric!r} is read, is not there.",
            kind="contract",
            name="NoOutput",
            repair="look at what the program printed (output.txt), and at the name of the file it writes",
        ) from None


# ---- JSON

LARGEST_JSON = 64_000_000
"""Bytes; in memory it takes ten times that."""


def json_text(path: Path) -> bytes:
    """The bytes of a JSON file that a program wrote.

    Raises:
        AppFailed: `FileTooLarge`.
        OSError: It cannot be read.
    """
    size = path.stat().st_size
    if size > LARGEST_JSON:
        raise too_large(path, size, most=LARGEST_JSON)
    return read_bytes(path)


def parsed_json(text: bytes, file: str) -> Any:
    """A JSON document.

    Raises:
        AppFailed: `BadOutput`, with the place.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        lines = text.count(b"\n") + 1
        why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise AppFailed(
            f"{file} is no JSON ({len(text):,} bytes, {lines:,} line(s)): {why}.",
            kind="contract",
            name="BadOutput",
            log_tail=text[-2000:].decode(errors="replace"),
        ) from None


def step_into(metric: str, document: Any, steps: Sequence[str | int], file: str) -> Any:
    """The value in a JSON document to which steps lead.

    Raises:
        AppFailed: `MissingMetric`, naming the step that is not there.

    Example:
        >>> step_into("e", {"runs": [{"e": 1}, {"e": 2}]}, ("runs", -1, "e"), "out.json")
        2
    """
    here, so_far = document, ""
    for step in steps:
        index = int(step) if isinstance(here, list) and re.fullmatch(r"-?[0-9]{1,9}", str(step)) else None
        if isinstance(here, dict) and str(step) in here:
            here = here[str(step)]
        elif index is not None and -len(here) <= index < len(here):
            here = here[index]
        else:
            where = f"{file}, {so_far}" if so_far else file
            if isinstance(here, dict):
                has = f"there is no {step!r}; {nearest(str(step), map(str, here))}"
            elif isinstance(here, list):
                has = f"there is no element {step!r}: the list has {len(here)}"
            else:
                has = f"there is {here!r:.60} and not an object with {step!r}"
            raise wrong(metric, f"in {where}: {has.rstrip('.')}", "MissingMetric")
        so_far += f"[{step}]" if index is not None else f"{'.' * bool(so_far)}{step}"
    return here


def _standard_error(metric: str, error: float, where: str) -> float:
    if not 0 <= error < math.inf:
        raise wrong(metric, f"{where} has {error:g} for its standard error, which is a finite number >= 0")
    return error


def _number(metric: str, value: Any, how: Reading) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        kind = "null" if value is None else f"{value!r:.60}"
        raise wrong(metric, f"{how.file} has {kind} there, which is no number")
    try:
        return float(value)
    except OverflowError:
        return math.inf


# ---- regular expressions


def from_match(metric: str, how: Reading, found: Found) -> Number:
    """The number of a regular expression's match.

    Raises:
        AppFailed: As `number_of`.
    """
    if found["problem"] == "large":
        raise too_large(Path(how.file), LARGEST, unpacked=False, most=LARGEST)
    if found["problem"]:
        raise AppFailed(
            f"the program ended well, but {how.file}, from which the metric {metric!r} is read, is not there.",
            kind="contract",
            name="NoOutput",
            repair="look at what the program printed (output.txt), and at the name of the file it writes",
        )
    if not found["count"]:
        raise wrong(
            metric,
            f"nothing in the {found['lines']:,} line(s) of {how.file} matches {how.regex!r}",
            "MissingMetric",
        )
    named, groups = found["named"], found["groups"]
    text = named["value"] if "value" in named else groups[-1]
    where = f"line {found['line']:,} of {how.file}"
    scale = 1.0
    if named.get("unit"):
        scale = _scale(metric, str(named["unit"]), how, where)
    value = _parsed(metric, text, where) * scale
    error = _parsed(metric, named["error"], where) * scale if named.get("error") else math.nan
    return Number(value, _standard_error(metric, error, where) if named.get("error") else error)


def _scale(metric: str, unit: str, how: Reading, where: str) -> float:
    if unit == how.unit:
        return 1.0
    try:
        return factor(unit, how.unit)
    except BadInput as error:
        raise wrong(
            metric, f"{where} says {unit!r}, and it is in {how.unit}: {error.message.rstrip('.')}"
        ) from None


def _parsed(metric: str, text: str | None, where: str) -> float:
    try:
        return parse_number(text or "")
    except ValueError:
        raise wrong(metric, f"{where} has {text!r:.60}, which is no number") from None


# ---- arrays


def _array(metric: str, path: Path, how: Reading) -> _Array:
    try:
        found = _npy(metric, path) if path.suffix == ".npy" else _hdf5(metric, path, how.array or "")
    except ValueError as error:
        raise wrong(metric, f"{path.name} is no array that can be read: {error}") from None
    if how.column is not None:
        if (
            found.ndim != 2
            or not isinstance(how.column, int)
            or not -found.shape[1] <= how.column < found.shape[1]
        ):
            raise wrong(metric, f"the array of {path.name} has the shape {found.shape}, no column {how.column!r}")
        found = found[:, how.column]
    if found.ndim > 1:
        raise wrong(metric, f"the array of {path.name} has the shape {found.shape}; name a column of it")
    return np.atleast_1d(found)


def _npy(metric: str, path: Path) -> _Array:
    mapped = np.load(path, mmap_mode="r", allow_pickle=False)
    return _numbers(metric, mapped, path)


def _numbers(metric: str, found: Any, path: Path) -> _Array:
    if found.dtype.kind not in "iuf":
        raise wrong(metric, f"the array of {path.name} holds {found.dtype} and no numbers")
    require_room(path, 8.0 * found.size, "its numbers take")
    return np.asarray(found[()], dtype=np.float64)


def _hdf5(metric: str, path: Path, name: str) -> _Array:
    with FORKS:  # it registers what a fork has to do
        import h5py

    try:
        with h5py.File(path, "r") as file:
            found = file.get(name) if name else None
            if not isinstance(found, h5py.Dataset):
                has = ", ".join(sorted(file)[:20])
                raise wrong(metric, f"{path.name} has no data set {name!r}; at its top: {has}", "MissingMetric")
            return _numbers(metric, found, path)
    except OSError as error:
        raise wrong(metric, f"{path.name} is no HDF5 file that can be read: {error}") from None


# ---- from many to one


def reduced(metric: str, values: _Array, how: Reading, rows: str = "rows") -> Number:
    """One number of a column, with its standard error where the rows are a series.

    The error of a mean is that of `block_average`, which knows that neighbouring rows are alike; that of a
    standard deviation s follows from the error of the mean of (x - <x>)^2: error(s^2) / (2 s).

    Args:
        metric: Its name, for messages.
        values: (n,) float64.
        how: `reduce`, `discard`, `series`.
        rows: What `values` are called.

    Raises:
        AppFailed: `MissingMetric`: there are none; `NotFinite`: one of those that count is no finite number.
    """
    first = int(len(values) * how.discard)
    kept = values[first:]
    if not len(kept):
        raise wrong(metric, f"{how.file} has no {rows}", "MissingMetric")
    bad = np.flatnonzero(~np.isfinite(kept))
    if bad.size:
        raise AppFailed(
            f"the metric {metric!r}: number {first + bad[0] + 1:,} of the {len(values):,} {rows} of {how.file} is "
            f"{kept[bad[0]]:g}.",
            kind="simulation",
            name="NotFinite",
        )
    with np.errstate(over="ignore"):
        value = REDUCTIONS[how.reduce](kept)
    said = f"{metric}: {how.reduce} of {len(kept):,} of {len(values):,} {rows} of {how.file}"
    if not how.series or how.reduce not in ("mean", "std"):
        return Number(value, said=said)
    if how.reduce == "mean":
        error = block_average(kept)[1]
    else:
        error = block_average((kept - kept.mean()) ** 2)[1] / (2.0 * value) if value else math.nan
    if not math.isfinite(error):
        said += "; too few, or too much alike, for a standard error"
    return Number(value, error, said)
