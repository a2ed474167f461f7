"""What travels by its content: files and long texts, found there again by their SHA-256.

Imports only the standard library at the top, for workers do.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcagent.apps.made_with import OtherFile, sha256
from hpcagent.errors import AppFailed, BadInput
from hpcagent.shown import plain

__all__ = ["LARGEST", "Luggage", "is_inside", "json_text", "unchanged"]

LARGEST = 50 * 1024**2
"""Bytes of a file that travels with the runs; a larger one has to be brought there."""


@dataclass(slots=True)
class Luggage:
    """What travels by its content."""

    blobs: dict[str, bytes | Path] = field(default_factory=dict)

    def text(self, value: Any, where: str) -> str:
        data = json_text(value, where).encode()
        digest = hashlib.sha256(data).hexdigest()
        self.blobs[digest] = data
        return digest

    def file(self, path: Path, name: str, recorded: str = "") -> dict[str, Any]:
        """Note a file; how it is named on the way.

        Raises:
            BadInput: It is too large.
            AppFailed: `MissingFile`, or `FilesChanged`: another content than is recorded.
        """
        try:
            found = path.stat()
            if found.st_size > LARGEST:
                raise BadInput(
                    f"{path} ({name}) has {found.st_size / 1e6:.0f} MB; files up to {LARGEST / 1e6:.0f} MB travel "
                    "with the runs. Bring it to the endpoint (Globus Transfer), and name it by its path there: in "
                    "the script, or by `[apps.*]` of the site profile.",
                    value=str(path),
                )
            digest = sha256(path)
        except OSError as error:
            raise AppFailed(
                f"{path} ({name}) cannot be read, so that it cannot be sent: {error.strerror or error}.",
                kind="contract",
                name="MissingFile",
                repair="put it back",
            ) from None
        if recorded and digest != recorded:
            raise _changed(name, path, recorded, digest)
        self.blobs[digest] = path
        return {"sha256": digest, "name": path.name, "x": bool(found.st_mode & stat.S_IXUSR)}


def unchanged(blobs: Mapping[str, bytes | Path]) -> None:
    """Look again at files that were noted before; one that is gone tells nothing.

    Raises:
        AppFailed: `FilesChanged`: one was edited since.
    """
    for digest, path in blobs.items():
        if isinstance(path, Path):
            with contextlib.suppress(OSError):
                if (now := sha256(path)) != digest:
                    raise _changed(path.name, path, digest, now)


def _changed(name: str, path: Path, recorded: str, digest: str) -> AppFailed:
    return AppFailed(
        f"{OtherFile(name, str(path), recorded, digest)}: not sent, as the run stands for the content "
        "that is recorded.",
        kind="infrastructure",
        name="FilesChanged",
        repair="put the old content back and go on, or start anew in another folder (run_dir)",
    )


def is_inside(path: object) -> bool:
    if not isinstance(path, str) or not path or "\0" in path:
        return False
    return not path.startswith("/") and not any(part in ("", ".", "..") for part in path.split("/"))


def json_text(value: Any, where: str) -> str:
    """Compact JSON.

    Raises:
        BadInput: Something in it is no plain data.
    """
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError):
        path, found = next(_not_plain(value, where), (where, value))
        raise BadInput(
            f"{path} is {plain(repr(found))[:200]}, which JSON cannot say, and nothing else is sent to an "
            "endpoint; give numbers, texts, lists and dicts of them.",
            value=plain(repr(found))[:200],
        ) from None


def _not_plain(value: Any, where: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, one in value.items():
            if not isinstance(name, str):
                yield f"a key of {where}", name
            yield from _not_plain(one, f"{where}: {name}")
    elif isinstance(value, (list, tuple)):
        for number, one in enumerate(value):
            yield from _not_plain(one, f"{where}[{number}]")
    else:
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError):
            yield where, value
