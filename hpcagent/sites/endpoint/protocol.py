"""What a client and an endpoint say to each other: JSON both ways, of this form and no other.

Both sides import it, and nothing beyond the standard library: they may have different versions of everything else.
A request is taken for hostile by the side that answers it, an answer by the side that asked.

Example:
    >>> request = look("/scratch/me/hpcagent/tuning", keys=["0" * 32])
    >>> request["op"], checked(request) is request
    ('look', True)
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
import uuid
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import hpcagent
from hpcagent.errors import BadInput

__all__ = [
    "BEATS_S",
    "LARGEST_ANSWER",
    "LARGEST_CHUNK",
    "LARGEST_INPUT",
    "LARGEST_RESULT",
    "OPS",
    "PROTOCOL",
    "SILENT_S",
    "OtherProtocol",
    "cancel",
    "checked",
    "get",
    "is_execution",
    "list_files",
    "look",
    "new_key",
    "packed_bytes",
    "probe",
    "put",
    "puts",
    "remove",
    "run",
    "unpacked_bytes",
]

PROTOCOL = 1

LARGEST_ANSWER = 9 * 1024 * 1024
"""Bytes of an answer's JSON; the service takes 10 MiB."""
LARGEST_RESULT = 4 * 1024 * 1024
"""Bytes of the JSON of one run's result."""
LARGEST_CHUNK = 4 * 1024 * 1024
"""Bytes of a file in one request or answer, before they are packed: 5.6 MB then, if they cannot be compressed."""
LARGEST_INPUT = 4 * 1024**3
"""Bytes of an input that is sent with the requests; larger ones are brought there by hand."""
BEATS_S = 15.0
"""So often, in seconds, a run that goes on touches its control file."""
SILENT_S = 90.0
"""A run of another host that has not done so for so long, in seconds, is dead."""

MOST_ORDERS = 10_000
MOST_KEYS = 100_000
LONGEST_PATH = 3000

KEY = re.compile(r"[0-9a-f]{32}\Z")
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")
_EXECUTION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}\Z")
_CONTROL = re.compile("[\x00-\x1f\x7f\u2028\u2029\ud800-\udfff]")


class OtherProtocol(BadInput):
    """Client and endpoint speak different protocols."""


def new_key() -> str:
    """A name for a task that no other has."""
    return uuid.uuid4().hex


# ---- requests


def _request(op: str, root: str, key: str | None, **fields: Any) -> dict[str, Any]:
    own = {
        "protocol": PROTOCOL,
        "hpcagent": hpcagent.__version__,
        "op": op,
        "key": key or new_key(),
        "root": str(root),
    }
    return own | {name: value for name, value in fields.items() if value is not None}


def run(
    root: str,
    orders: Sequence[Mapping[str, Any]],
    *,
    upstream: Sequence[Sequence[Mapping[str, Any]]] | None = None,
    walltime_s: float | None = None,
    key: str | None = None,
) -> dict[str, Any]:
    """Compute orders, one after the other.

    The answer has `answers`, a list with the result of each order (`execute`'s dict and `remote`), or `missing`:
    the SHA-256 of inputs that have to be put first; nothing was run then. With `cancelled` those that had not
    ended are null. Without that a null means: it is finished, but the answer had no room for it; send it again.

    Args:
        root: The campaign's folder there: absolute, or below `~`.
        orders: Packed orders (`hpcagent.apps.travel`), or plain ones that are JSON.
        upstream: Results that each takes as input.
        walltime_s: Limit of each order that has none of its own (`manifest.resources.walltime_s`).
        key: Name of the task; a new one.
    """
    given = [list(results) for results in upstream] if upstream is not None else [[] for _ in orders]
    return _request("run", root, key, orders=list(orders), upstream=given, walltime_s=walltime_s)


def put(
    root: str, chunk: bytes, *, sha256: str, offset: int = 0, total: int | None = None, key: str | None = None
) -> dict[str, Any]:
    """Send a chunk of an input; the chunks may arrive in any order. The answer has `stored`: whether it is whole.

    Args:
        root: The campaign's folder there; inputs are kept beside it, in `inputs`, for all campaigns.
        chunk: At most `LARGEST_CHUNK` bytes.
        sha256: Of the whole.
        offset: Where the chunk begins.
        total: Bytes of the whole; the chunk is all of it.
        key: Name of the task; a new one.
    """
    whole = offset + len(chunk) if total is None else total
    return _request("put", root, key, blob=packed_bytes(chunk), sha256=sha256, offset=offset, total=whole)


def puts(
    root: str, source: bytes | Path, *, sha256: str = "", chunk: int = LARGEST_CHUNK
) -> Iterator[dict[str, Any]]:
    """The requests that send an input, in chunks.

    Args:
        root: The campaign's folder there.
        source: The bytes, or a file.
        sha256: Of the whole, if it is known.
        chunk: Bytes of each.

    Raises:
        BadInput: It is larger than `LARGEST_INPUT`.
    """
    total = input_size(source)
    digest = sha256 or _digest(source)
    for offset in range(0, max(total, 1), chunk):
        yield put(root, _piece(source, offset, chunk), sha256=digest, offset=offset, total=total)


def input_size(source: bytes | Path) -> int:
    """Bytes of an input.

    Raises:
        BadInput: They are more than `LARGEST_INPUT`.
    """
    total = len(source) if isinstance(source, bytes) else source.stat().st_size
    if total > LARGEST_INPUT:
        raise BadInput(
            f"an input of {total / 1e9:.3g} GB is more than the {LARGEST_INPUT / 1e9:.3g} GB that are sent "
            "with the runs: bring it there by Globus Transfer, and name its path there.",
            value=total,
        )
    return total


def _digest(source: bytes | Path) -> str:
    if isinstance(source, bytes):
        return hashlib.sha256(source).hexdigest()
    with source.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _piece(source: bytes | Path, offset: int, length: int) -> bytes:
    if isinstance(source, bytes):
        return source[offset : offset + length]
    with source.open("rb") as file:
        file.seek(offset)
        return file.read(length)


def get(
    root: str, execution: str, path: str, *, offset: int = 0, length: int = LARGEST_CHUNK, key: str | None = None
) -> dict[str, Any]:
    """Ask for a chunk of a run's file; the answer has `data` (packed), `size` of the file, `sha256` of the chunk.

    Args:
        root: The campaign's folder there.
        execution: Execution id of the run.
        path: The file, relative to the run's directory.
        offset: Where the chunk begins.
        length: Its bytes; the answer has fewer at the end of the file.
        key: Name of the task; a new one.
    """
    return _request("get", root, key, execution=execution, path=path, offset=offset, length=length)


def list_files(
    root: str, execution: str, *, paths: Sequence[str] | None = None, key: str | None = None
) -> dict[str, Any]:
    """Ask for the files of a run. The answer has `files`: path -> [bytes, sha256].

    Args:
        root: The campaign's folder there.
        execution: Execution id of the run.
        paths: Only these, and each with its SHA-256, however large it is; else large ones have null.
        key: Name of the task; a new one.
    """
    return _request("list", root, key, execution=execution, paths=None if paths is None else list(paths))


def cancel(root: str, keys: Sequence[str], *, key: str | None = None) -> dict[str, Any]:
    """End tasks. The answer has `states`: key -> `requested`, `ended`, `never` (it will not begin) or `finished`.

    Args:
        root: The campaign's folder there.
        keys: Of the tasks.
        key: Name of this one; a new one.
    """
    return _request("cancel", root, key, keys=list(keys))


def look(
    root: str, *, keys: Sequence[str] = (), executions: Sequence[str] = (), key: str | None = None
) -> dict[str, Any]:
    """Ask how tasks stand, and runs.

    The answer has `states`: key -> {state, host, pid, since, ...}, `state` one of `waiting` (not begun),
    `running`, `dead` (its process is gone), `cancelled` and `finished`; and `executions`: id -> `finished`,
    `begun` or `unknown`.

    Args:
        root: The campaign's folder there.
        keys: Of the tasks.
        executions: Execution ids of runs.
        key: Name of this task; a new one.
    """
    return _request("look", root, key, keys=list(keys), executions=list(executions))


def probe(root: str, *, site: Mapping[str, Any] | None = None, key: str | None = None) -> dict[str, Any]:
    """Ask what is there: `versions`, `lammps`, `cores`, `missing` (what to install), and what is said of `root`.

    Args:
        root: The campaign's folder there.
        site: What the profile says of it (`Site.about`): the commands of its apps.
        key: Name of the task; a new one.
    """
    return _request("probe", root, key, site=dict(site or {}))


def remove(
    root: str,
    *,
    keys: Sequence[str] = (),
    executions: Sequence[str] = (),
    inputs: Sequence[str] = (),
    everything: bool = False,
    key: str | None = None,
) -> dict[str, Any]:
    """Remove what is not needed there any more. The answer has `removed`: how many of each, and `kept`: why not.

    Args:
        root: The campaign's folder there.
        keys: Control files of these tasks.
        executions: Directories of these runs.
        inputs: SHA-256 of inputs.
        everything: The whole folder of the campaign, unless something runs in it.
        key: Name of the task; a new one.
    """
    given = {"keys": list(keys), "executions": list(executions), "inputs": list(inputs)}
    return _request("remove", root, key, **given, everything=everything)


# ---- what is in them


def packed_bytes(data: bytes) -> str:
    """Bytes as text: base64 of gzip.

    Example:
        >>> unpacked_bytes(packed_bytes(b"Step Temp"), most=100)
        b'Step Temp'
    """
    return base64.b64encode(gzip.compress(data, compresslevel=3, mtime=0)).decode()


def unpacked_bytes(text: str, *, most: int) -> bytes:
    """The bytes of `packed_bytes`, if they are no more than allowed.

    Raises:
        BadInput: It is no such text, or holds more: a few bytes can be made to unpack to any number.
    """
    try:
        raw = base64.b64decode(text, validate=True)
        unpacker = zlib.decompressobj(wbits=31)
        data = unpacker.decompress(raw, most + 1)
    except (ValueError, zlib.error) as error:
        raise BadInput(f"what was sent is no base64 of gzip ({error}).") from None
    if len(data) > most:
        raise BadInput(f"what was sent unpacks to more than the {most} bytes that are allowed.", value=most)
    if not unpacker.eof or unpacker.unused_data:
        raise BadInput("what was sent is cut off, or has something behind its end.")
    return data


# ---- checks


def checked(request: Mapping[str, Any]) -> Mapping[str, Any]:
    """A request, if it has the form of one.

    Raises:
        BadInput: It has not: what, which value, what is allowed.
    """
    if not isinstance(request, Mapping):
        raise BadInput(f"a request is a JSON object, not {type(request).__name__}.")
    if request.get("protocol") != PROTOCOL:
        raise OtherProtocol(
            f"the client (hpcagent {_short(request.get('hpcagent'))}) speaks protocol "
            f"{_short(request.get('protocol'))}, this endpoint (hpcagent {hpcagent.__version__}) speaks "
            f"{PROTOCOL}: install the same hpcagent on both sides (there: in the environment that the endpoint's "
            "worker_init activates)."
        )
    op = request.get("op")
    if not isinstance(op, str) or op not in OPS:
        raise BadInput(f"op is {_short(op)}; allowed are {', '.join(OPS)}.", value=_short(op))
    allowed = {"protocol", "hpcagent", "op", "key", "root", *OPS[op]}
    for name in request:
        if name not in allowed:
            raise BadInput(f"{op}: unknown field {_short(name)}; allowed are {', '.join(sorted(allowed))}.")
    _field(request, "key", _is_key)
    _field(request, "root", _is_root)
    for name, test in OPS[op].items():
        if name in request or name in _NEEDED:
            _field(request, name, test)
    if op == "run" and len(request["orders"]) != len(request.get("upstream", request["orders"])):
        raise BadInput("upstream has to have a list for each of the orders.")
    if op == "put" and request["offset"] > request["total"]:
        raise BadInput(f"offset {request['offset']} lies behind the end of an input of {request['total']} bytes.")
    return request


def is_execution(value: Any) -> bool:
    """Whether it is an execution id: the name of a folder."""
    return not _is_execution(value)


def _field(request: Mapping[str, Any], name: str, test: Callable[[Any], str]) -> None:
    wrong = test(request.get(name))
    if wrong:
        raise BadInput(f"{request['op']}: {name} is {_short(request.get(name))}; {wrong}.", value=name)


def _short(value: Any) -> str:
    text = repr(value[:100] if isinstance(value, (str, list)) else value)
    return text if len(text) <= 120 else f"{text[:117]}..."


def _is_key(value: Any) -> str:
    return "" if isinstance(value, str) and KEY.match(value) else "it is 32 digits of base 16"


def _is_sha256(value: Any) -> str:
    return "" if isinstance(value, str) and _SHA256.match(value) else "it is 64 digits of base 16"


def _is_execution(value: Any) -> str:
    return "" if isinstance(value, str) and _EXECUTION.match(value) else "it is an execution id"


def _is_root(value: Any) -> str:
    if not isinstance(value, str) or not value.startswith(("/", "~/")) or len(value) > LONGEST_PATH:
        return "it is an absolute path, or begins with ~/"
    parts = value.split("/")[1:]
    if _CONTROL.search(value) or any(part in ("", ".", "..") for part in parts):
        return "it is a path without '..', empty parts and control characters"
    return "" if len(parts) >= 2 or value.startswith("~/") else "it is a campaign's folder below a work directory"


def _is_path(value: Any) -> str:
    if not isinstance(value, str) or not value or len(value) > LONGEST_PATH or _CONTROL.search(value):
        return "it is a path relative to the run's directory"
    if any(part in ("", ".", "..") for part in value.split("/")):
        return "it is a relative path without '..', '.' and empty parts"
    return ""


def _is_text(value: Any) -> str:
    return "" if isinstance(value, str) else "it is a text"


def _is_count(value: Any) -> str:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return "" if whole and 0 <= value <= 2**53 else "it is a whole number, 0 or more"


def _is_total(value: Any) -> str:
    return _is_count(value) or ("" if value <= LARGEST_INPUT else f"at most {LARGEST_INPUT} bytes are sent")


def _is_length(value: Any) -> str:
    return _is_count(value) or (
        "" if 0 < value <= LARGEST_CHUNK else f"1 to {LARGEST_CHUNK} bytes are sent at once"
    )


def _is_walltime(value: Any) -> str:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return "" if number and 0 < value < 1e9 else "it is a number of seconds, more than 0"


def _is_object(value: Any) -> str:
    return "" if isinstance(value, Mapping) else "it is a JSON object"


def _is_flag(value: Any) -> str:
    return "" if isinstance(value, bool) else "it is true or false"


def _several(test: Callable[[Any], str], most: int = MOST_KEYS) -> Callable[[Any], str]:
    def are(value: Any) -> str:
        if not isinstance(value, list) or len(value) > most:
            return f"it is a list of at most {most}"
        return next((f"of {_short(each)}: {wrong}" for each in value if (wrong := test(each))), "")

    return are


OPS: dict[str, dict[str, Callable[[Any], str]]] = {
    "run": {
        "orders": _several(_is_object, MOST_ORDERS),
        "upstream": _several(_several(_is_object), MOST_ORDERS),
        "walltime_s": _is_walltime,
    },
    "put": {"blob": _is_text, "sha256": _is_sha256, "offset": _is_count, "total": _is_total},
    "get": {"execution": _is_execution, "path": _is_path, "offset": _is_count, "length": _is_length},
    "list": {"execution": _is_execution, "paths": _several(_is_path)},
    "cancel": {"keys": _several(_is_key)},
    "look": {"keys": _several(_is_key), "executions": _several(_is_execution)},
    "probe": {"site": _is_object},
    "remove": {
        "keys": _several(_is_key),
        "executions": _several(_is_execution),
        "inputs": _several(_is_sha256),
        "everything": _is_flag,
    },
}
"""Operations, with their fields and what each must be."""

_NEEDED = {"orders", "blob", "sha256", "offset", "total", "execution", "path", "length"}
