"""Files of a chain's inner runs by its handle: `inner/EXECUTION_ID/PATH`, of those that its record names."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcagent.apps.finished import final_result
from hpcagent.errors import BadInput, in_brief
from hpcagent.workspace.artifacts import MOST_FILES, list_files

__all__ = ["ARTIFACT", "INNER", "all_files", "folder_and_path", "shown_artifacts"]

ARTIFACT = "artifact:"
INNER = "inner"
MOST_INNER = 1000
_ID = re.compile(r"[0-9a-f][0-9a-f-]{7,127}")


def folder_and_path(folder: Path, result: Mapping[str, Any], path: str) -> tuple[Path, str]:
    """The folder that has a file of a run, and the file's path in it.

    Args:
        folder: The run's.
        result: The run's, as it is on record.
        path: As `all_files` says it.

    Raises:
        BadInput: It names a run that is no inner run of this one.
    """
    first, _, rest = path.partition("/")
    if first != INNER or not result.get("parts"):
        return folder, path
    identity, _, inside = rest.partition("/")
    if identity not in _inner_ids(folder.parent, result):
        raise BadInput(
            f"{in_brief(identity)} is no inner run of this run; the list of its files says which there are.",
            value=path,
        )
    return folder.parent / identity, inside


def all_files(folder: Path, result: Mapping[str, Any], below: str = "") -> list[dict[str, Any]]:
    """Files of a run, and those of its inner runs behind them (`inner/EXECUTION_ID/PATH`); as `list_files`."""
    found = list_files(folder, below)
    first, _, rest = below.partition("/")
    if below and first != INNER:
        return found
    wanted, _, inside = rest.partition("/")
    inner_runs = _inner_ids(folder.parent, result) if result.get("parts") else {}
    for identity in inner_runs:
        if wanted not in ("", identity):
            continue
        if len(found) >= MOST_FILES:
            break
        for one in list_files(folder.parent / identity, inside):
            found.append({"path": f"{INNER}/{identity}/{one['path']}", "bytes": one["bytes"]})
    return found[:MOST_FILES]


def shown_artifacts(folder: Path, result: Mapping[str, Any]) -> dict[str, str]:
    """Name -> path of a run's artifacts, as `all_files` has them; a chain's lie in folders of its inner runs."""
    known = _inner_ids(folder.parent, result) if result.get("parts") else {}
    shown: dict[str, str] = {}
    for name, path in (result.get("artifacts") or {}).items():
        up, _, rest = os.path.normpath(path).partition("/")
        shown[name] = f"{INNER}/{rest}" if up == ".." and rest.partition("/")[0] in known else path
    return shown


def _inner_ids(work: Path, result: Mapping[str, Any]) -> dict[str, None]:
    """Execution ids of the inner runs that a record names, and of those that are chains likewise."""
    found: dict[str, None] = {}
    left = [str(one["execution_id"]) for one in result.get("parts") or ()]
    while left and len(found) < MOST_INNER:
        identity = left.pop(0)
        if identity in found or not _ID.fullmatch(identity):
            continue
        found[identity] = None
        done, _ = final_result(work / identity)
        left += [str(one.get("execution_id")) for one in (done or {}).get("parts") or ()]
    return found
