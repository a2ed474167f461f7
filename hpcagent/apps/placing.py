"""Where what has travelled is put on an endpoint: below the campaign's folder, read-only, by its own name.

Imports only the standard library, for workers do.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from hpcagent.apps.luggage import is_inside
from hpcagent.apps.made_with import sha256
from hpcagent.errors import BadInput
from hpcagent.shown import plain

__all__ = ["Fetch", "content", "fetch_all", "place", "place_in"]

Fetch = Callable[[str], Path]


def fetch_all(digests: Sequence[str], fetch: Fetch) -> None:
    """Ask for all of them, so that whoever answers knows of each that is missing."""
    missing: FileNotFoundError | None = None
    for digest in digests:
        try:
            fetch(digest)
        except FileNotFoundError as error:
            missing = error
    if missing is not None:
        raise missing


def content(digest: str, fetch: Fetch) -> dict[str, Any]:
    path = fetch(digest)
    found = path.stat()
    return dict(_read(str(path), digest, found.st_mtime_ns, found.st_size))


@lru_cache(maxsize=64)
def _read(path: str, digest: str, modified_ns: int, size: int) -> Mapping[str, Any]:
    data = Path(path).read_bytes()
    if hashlib.sha256(data).hexdigest() != digest:
        raise BadInput(f"{path} has another content than its name says; delete it, and it is sent again.")
    content: Mapping[str, Any] = json.loads(data)
    return content


def place(file: Mapping[str, Any], fetch: Fetch, root: Path) -> str:
    """Put a file below the campaign's folder, by its own name; where it is."""
    name, digest = file["name"], file["sha256"]
    if not is_inside(name) or not is_inside(digest) or "/" in digest:
        raise BadInput(f"{plain(name)!r:.100} is no name of a file.")
    target = root / "placed" / (f"{digest}.x" if file.get("x") else digest) / name
    _put(fetch(digest), target, digest, executable=bool(file.get("x")))
    return str(target)


def _put(source: Path, target: Path, digest: str, *, executable: bool) -> None:
    """A private copy, made whole; one that was damaged since is made anew."""
    with contextlib.suppress(OSError):
        if sha256(target) == digest:
            return
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o775)
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    with contextlib.suppress(FileNotFoundError):
        part.unlink()
    shutil.copyfile(source, part)
    part.chmod(0o555 if executable else 0o444)
    if sha256(part) != digest:
        part.unlink()
        raise BadInput(f"{source} has another content than its name says; delete it, and it is sent again.")
    part.replace(target)


def place_in(files: Mapping[str, Mapping[str, Any]], fetch: Fetch, root: Path, what: str) -> str:
    """Put files into one folder, by their relative names (`name`); the folder, which is theirs alone."""
    key = hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()
    folder = root / "placed" / f"{what}-{key[:32]}"
    fetch_all([str(file["sha256"]) for file in files.values()], fetch)
    for file in files.values():
        if not is_inside(file["name"]):
            raise BadInput(f"{plain(repr(file['name']))[:100]} is no name of a file.")
        _put(fetch(file["sha256"]), folder / file["name"], file["sha256"], executable=bool(file.get("x")))
    return str(folder)
