"""Files of trained models: arrays and a record in JSON, without pickles, known by their content.

A model file is NumPy's `.npz`. It is written and read with `allow_pickle=False`, so that reading one runs no code,
whoever has made it; the worst that a foreign file can do is to predict wrongly. Which file it is, is told by its
SHA-256, the `model_id`.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcagent.apps.bounded import require_size
from hpcagent.apps.made_with import sha256
from hpcagent.apps.run import Run
from hpcagent.errors import AppFailed
from hpcagent.model.base import canonical_json

__all__ = ["FORMAT", "load", "model_id", "path_of", "save"]

FORMAT = 1
"""Of the files that are written; others are refused."""
_RECORD = "record"


def save(path: Path, kind: str, arrays: Mapping[str, NDArray[Any]], record: Mapping[str, Any]) -> str:
    """Write a model; the same content gives the same file.

    Args:
        path: Where, ending in `.npz`.
        kind: What it is a model of: `surrogate` or `pod`.
        arrays: Numbers and texts only.
        record: Plain data.

    Returns:
        Its model_id.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder, "m.npz")
        ...     one = save(file, "pod", {"a": np.arange(3.0)}, {"seed": 1})
        ...     one == save(file, "pod", {"a": np.arange(3.0)}, {"seed": 1}), load(file, "pod")[1]["seed"]
        (True, 1)
    """
    text = canonical_json(dict(record) | {"kind": kind, "format": FORMAT})
    part = path.with_name(f"{path.name}.part.npz")
    np.savez(part, allow_pickle=False, **{_RECORD: np.frombuffer(text.encode(), np.uint8)}, **dict(arrays))
    part.rename(path)
    return sha256(path)


def load(path: Path, kind: str, expected: str = "") -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Arrays and record of a model file.

    Args:
        path: The file.
        kind: What it must be a model of.
        expected: The model_id that it must have; empty: any.

    Raises:
        AppFailed: `MissingFile`, `OtherModel` (another content than `expected`), `NotAModel`.
    """
    try:
        require_size(path)
        found = sha256(path)
    except OSError as error:
        raise AppFailed(
            f"the model {path} cannot be read: {error.strerror or error}.",
            kind="infrastructure",
            name="MissingFile",
            repair="put it on a file system that the site's nodes share",
        ) from None
    if expected and expected != found:
        raise AppFailed(
            f"{path.name} is not the model that was asked for: its model_id is {found}, not {expected}.",
            kind="contract",
            name="OtherModel",
            repair="the file of that model_id, or the model_id of this file",
        )
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: np.array(file[name]) for name in file.files}
        record = json.loads(arrays.pop(_RECORD).tobytes().decode())
        is_one = record["kind"] == kind and record["format"] == FORMAT
    except (ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise _not_one(path, kind, f"{type(error).__name__}: {error}") from None
    if not is_one:
        raise _not_one(path, kind, f"it is a model of kind {record['kind']!r}, format {record['format']!r}")
    return arrays, record


def _not_one(path: Path, kind: str, why: str) -> AppFailed:
    return AppFailed(
        f"{path.name} is no model file of kind {kind!r} and format {FORMAT} ({why}).",
        kind="contract",
        name="NotAModel",
        repair="a file that the app which trains such models has written",
    )


def model_id(path: str | Path) -> str:
    """The model_id of a model file: SHA-256 of its content."""
    return sha256(Path(path))


def path_of(run: Run, name: str, *, why: str) -> Path:
    """The file of a setting.

    Raises:
        AppFailed: `NoData`: the setting was not given; `MissingFile`.
    """
    path = str((run.settings.get("paths") or {}).get(name) or "")
    if not path:
        raise AppFailed(
            f"the setting `{name}` names no file; {why}.",
            kind="contract",
            name="NoData",
            repair=f'with_settings({name}="PATH"), or `{name} = "PATH"` under [settings] of a campaign',
        )
    if not Path(path).is_file():
        raise AppFailed(
            f"{path} (setting `{name}`) is not there where the run was placed.",
            kind="infrastructure",
            name="MissingFile",
            repair="put it on a file system that the site's nodes share",
        )
    return Path(path)
