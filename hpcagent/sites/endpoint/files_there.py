"""Files on an endpoint: inputs that are put there once, runs' files that are asked for, and what is removed.

Inputs are kept by their content beside the campaigns, `work_dir/inputs/SHA256`, in a folder that only their user
can enter. Chunks may come in any order and from several campaigns at once: each is a file until all are there.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import stat
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcagent.errors import BadInput
from hpcagent.sites.endpoint.computing import files_of, sha256_of
from hpcagent.sites.endpoint.control import Control, private_folder
from hpcagent.sites.endpoint.protocol import LARGEST_CHUNK, packed_bytes, unpacked_bytes

__all__ = ["get", "inputs", "list_files", "put", "remove"]

_MOST_LISTED = 50_000
_COPIED = 1 << 20


def inputs(root: Path) -> Path:
    """The folder of inputs, which all campaigns of a work directory share."""
    return root.parent / "inputs"


# ---- put


def put(request: Mapping[str, Any], root: Path) -> dict[str, Any]:
    """Take a chunk of an input; see `protocol.put`."""
    sha256, offset, total = request["sha256"], request["offset"], request["total"]
    folder = private_folder(inputs(root))
    target = folder / sha256
    if _is_whole(target, total):
        return {"stored": True, "received": total}
    chunk = unpacked_bytes(request["blob"], most=min(LARGEST_CHUNK, total - offset))
    if offset == 0 and len(chunk) == total:
        _store_whole(chunk, target, sha256)
        return {"stored": True, "received": total}
    if not chunk:
        raise BadInput(f"a chunk of nothing, at byte {offset} of {total}.")
    parts = folder / f".{sha256}.{total}.parts"
    try:
        _write(private_folder(parts) / f"{offset:016d}", chunk)
        received = _received(parts)
        if received >= total:
            _join(parts, target, sha256, total)
    except (FileNotFoundError, BadInput):
        if not _is_whole(target, total):
            raise
        # Another one that sends the same was quicker, and has removed chunks while they were joined here.
    if _is_whole(target, total):
        shutil.rmtree(parts, ignore_errors=True)
        return {"stored": True, "received": total}
    return {"stored": False, "received": received}


def _is_whole(target: Path, total: int) -> bool:
    try:
        found = target.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_size == total


def _store_whole(data: bytes, target: Path, sha256: str) -> None:
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise _damaged(sha256, found)
    _write(target, data)


def _damaged(sha256: str, found: str) -> BadInput:
    return BadInput(f"what came for {sha256} has the SHA-256 {found}: it was damaged on the way; send it again.")


def _write(target: Path, data: bytes) -> None:
    """Write under a name of its own and rename: of two that do so one is the last, and both are whole."""
    part = target.with_name(f".{uuid.uuid4().hex}.part")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(part, flags, 0o600), "wb") as file:
            file.write(data)
        part.rename(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _received(parts: Path) -> int:
    """Bytes from the beginning on without a gap."""
    reached = 0
    with contextlib.suppress(FileNotFoundError), os.scandir(parts) as entries:
        sizes = {int(e.name): e.stat(follow_symlinks=False).st_size for e in entries if e.name.isdigit()}
        for offset in sorted(sizes):
            if offset > reached:
                break
            reached = max(reached, offset + sizes[offset])
    return reached


def _join(parts: Path, target: Path, sha256: str, total: int) -> None:
    """Make one file of the chunks, if it has the content that it is named by."""
    whole = target.with_name(f".{uuid.uuid4().hex}.part")
    digest = hashlib.sha256()
    try:
        with whole.open("xb") as file:
            for part in sorted(p for p in parts.iterdir() if p.name.isdigit()):
                with part.open("rb") as chunk:
                    chunk.seek(max(0, file.tell() - int(part.name)))
                    while piece := chunk.read(_COPIED):
                        file.write(piece)
                        digest.update(piece)
            size = file.tell()
        if digest.hexdigest() != sha256 or size != total:
            shutil.rmtree(parts, ignore_errors=True)  # all of it is sent again
            raise _damaged(sha256, digest.hexdigest())
        whole.chmod(0o600)
        whole.rename(target)
    finally:
        whole.unlink(missing_ok=True)


# ---- get


def get(request: Mapping[str, Any], root: Path) -> dict[str, Any]:
    """Give a chunk of a run's file; see `protocol.get`."""
    with _opened(root, request["execution"], request["path"]) as file:
        size = os.fstat(file.fileno()).st_size
        if request["offset"] > size:
            raise BadInput(f"offset {request['offset']} lies behind the end of {request['path']} ({size} bytes).")
        file.seek(request["offset"])
        data = file.read(min(request["length"], LARGEST_CHUNK))
    return {"data": packed_bytes(data), "size": size, "sha256": hashlib.sha256(data).hexdigest()}


def _workdir(root: Path, execution: str) -> Path:
    workdir = root / "work" / execution
    if not workdir.is_dir():
        raise BadInput(f"there is no run {execution} in {root} on this endpoint.", value=execution)
    return workdir


def _opened(root: Path, execution: str, path: str) -> Any:
    """A plain file of a run, open for reading; a link may not lead out of the run's directory.

    Raises:
        BadInput: There is none, it is none, or it lies elsewhere.
    """
    workdir = _workdir(root, execution).resolve()
    try:
        real = (workdir / path).resolve(strict=True)
    except (OSError, RuntimeError):  # also a circle of links
        raise BadInput(f"run {execution} has no file {path!r} in {workdir}.", value=path) from None
    if not real.is_relative_to(workdir):
        raise BadInput(f"{path!r} of run {execution} is a link that leads out of {workdir}: {real}.", value=path)
    # Not blocking: a FIFO would wait for a writer for ever.
    descriptor = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise BadInput(f"{path!r} of run {execution} is no file.", value=path)
    return os.fdopen(descriptor, "rb")


def list_files(request: Mapping[str, Any], root: Path) -> dict[str, Any]:
    """Tell the files of a run; see `protocol.list_files`."""
    execution, paths = request["execution"], request.get("paths")
    workdir = _workdir(root, execution)
    if paths is None:
        files, left_out = files_of(workdir, most=_MOST_LISTED)
        return {"workdir": str(workdir), "files": files, "left_out": left_out}
    told = {}
    for path in paths:
        with _opened(root, execution, path) as file:
            told[path] = [os.fstat(file.fileno()).st_size, sha256_of(file)]
    return {"workdir": str(workdir), "files": told, "left_out": 0}


# ---- remove


def remove(request: Mapping[str, Any], root: Path) -> dict[str, Any]:
    """Remove control files, runs, inputs or a whole campaign; see `protocol.remove`."""
    kept: dict[str, str] = {}
    control = Control(root)
    if not control.folder.is_dir():
        return {"removed": {}, "kept": {str(root): "no campaign has ever run in it"}}
    now = control.now()
    running = control.running(now)
    if request.get("everything"):
        if running:
            return {"removed": {}, "kept": {str(root): f"{len(running)} tasks run in it: cancel them first"}}
        shutil.rmtree(root)
        return {"removed": {"campaigns": 1}, "kept": {}}
    removed = {"keys": 0, "executions": 0, "inputs": 0}
    for key in request.get("keys", ()):
        if key in running:
            kept[key] = "it is running"
        else:
            removed["keys"] += bool(control.task(key).forget())
    busy = {execution for executions in running.values() for execution in executions}
    for execution in request.get("executions", ()):
        if execution in busy:
            kept[execution] = "it is running"
        else:
            removed["executions"] += _removed(root / "work" / execution, kept)
    for sha256 in request.get("inputs", ()):
        with contextlib.suppress(FileNotFoundError):
            (inputs(root) / sha256).unlink()
            removed["inputs"] += 1
    return {"removed": removed, "kept": kept}


def _removed(folder: Path, kept: dict[str, str]) -> bool:
    try:
        shutil.rmtree(folder)  # of a link it removes nothing
    except FileNotFoundError:
        return False
    except OSError as error:
        kept[folder.name] = os.strerror(error.errno or errno.EIO)
        return False
    return True
