"""What a forked child does on an endpoint: take orders apart, compute them, list their files, say so in a pipe."""

from __future__ import annotations

import faulthandler
import hashlib
import json
import os
import random
import signal
import sys
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from hpcagent.sites.endpoint.protocol import LARGEST_RESULT, is_execution

__all__ = ["HASHED_BYTES", "MOST_FILES", "compute", "files_of", "sha256_of"]

HASHED_BYTES = 1024 * 1024
"""Files up to so many bytes come with their SHA-256, and artifacts whatever their size; others on request."""
MOST_FILES = 2000
"""So many files of a run are told with its result; more on request."""
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class _Ended(BaseException):
    """The run is to end: its programs are ended politely on the way out."""


def _end(number: int, _: object) -> None:
    signal.signal(number, signal.SIG_IGN)
    raise _Ended


def compute(task: Mapping[str, Any], answers: int, output: int, environ: Mapping[str, str]) -> None:
    """Do a task, in a process of its own.

    Args:
        task: `do`: `run` or `probe`; what it is done with, `root` and `cores`.
        answers: Open file that takes a line of JSON for whatever there is to say.
        output: Open file in place of stdout and stderr.
        environ: The environment of the worker.
    """
    _settle(task, output, environ)
    with os.fdopen(answers, "wb", buffering=0) as pipe:

        def say(**words: Any) -> None:
            sys.stdout.flush()
            sys.stderr.flush()
            text = json.dumps(words).encode() + b"\n"
            while text:
                text = text[pipe.write(text) :]

        try:
            if task["do"] == "probe":
                from hpcagent.sites.endpoint.probing import probed

                say(said=probed(task))
            else:
                _run(task, say)
        except _Ended:
            say(stopped=True)
        except (Exception, SystemExit) as error:
            tail = traceback.format_exc()[-4000:]
            message = str(getattr(error, "message", "")) or f"{type(error).__name__}: {error}"
            say(broken={"name": type(error).__name__, "message": message, "log_tail": tail})


def _settle(task: Mapping[str, Any], output: int, environ: Mapping[str, str]) -> None:
    """Be as the worker is now: its environment, its cores; with its own streams and random numbers."""
    for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGCHLD, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    nowhere = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nowhere, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.close(nowhere)
    os.close(output)
    faulthandler.enable(file=2)
    if dict(os.environ) != environ:
        os.environ.clear()
        os.environ.update(environ)
    cores = task.get("cores")
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
    random.seed()
    numbers = sys.modules.get("numpy.random")
    if numbers is not None:
        numbers.seed()  # or every run would draw the same ones
    os.chdir(task["root"])


def _run(task: Mapping[str, Any], say: Any) -> None:
    from hpcagent.apps.ranks.inside import once
    from hpcagent.apps.worker import execute

    once()
    root = Path(task["root"])
    unpacked, missing = _unpacked(task, root)
    if missing:
        say(missing=sorted(missing))
        return
    for index, (order, upstream) in enumerate(unpacked, start=int(task.get("first", 0))):
        if not order["site"].get("node_cores"):  # the profile does not say
            order = {**order, "site": {**order["site"], "node_cores": os.cpu_count()}}
        resources = order["manifest"]["resources"]
        threads = str(int(resources.get("threads_per_rank") or 1))
        os.environ.update(dict.fromkeys(_THREADS, threads))
        walltime_s = resources.get("walltime_s") or task.get("walltime_s")
        say(begins=index, walltime_s=walltime_s, about=_about(order))
        result = execute(order, *upstream)
        say(ended=index, result=small_enough({**result, "remote": remote_of(order["workdir"], result)}))


def _unpacked(task: Mapping[str, Any], root: Path) -> tuple[list[tuple[dict[str, Any], list[Any]]], set[str]]:
    inputs = root.parent / "inputs"
    missing: set[str] = set()

    def fetch(sha256: str) -> Path:
        path = inputs / sha256
        if not path.is_file():
            missing.add(sha256)
            raise FileNotFoundError(2, "it has not been sent yet", sha256)
        return path

    found = []
    for packed, upstream in zip(task["orders"], task["upstream"], strict=True):
        try:
            order, taken = _order(packed, upstream, fetch, root)
            order["workdir"] = f"{root}/work/{_execution(order)}"
            found.append((order, taken))
        except FileNotFoundError:
            if not missing:
                raise
    return found, missing


def _order(
    packed: Mapping[str, Any], upstream: Sequence[Any], fetch: Callable[[str], Path], root: Path
) -> tuple[dict[str, Any], list[Any]]:
    """An order as `execute` takes it: packed for the journey, or plain as it is."""
    if "common" in packed:
        from hpcagent.apps.travel import unpack

        return unpack(packed, upstream, fetch, root=root)
    return dict(packed), [_there(result) for result in upstream]


def _there(result: Mapping[str, Any]) -> Mapping[str, Any]:
    """An input run as it is here: its directory is the one on this endpoint."""
    workdir = (result.get("remote") or {}).get("workdir")
    return {**result, "workdir": workdir} if isinstance(workdir, str) else result


def _execution(order: Mapping[str, Any]) -> str:
    name = order["manifest"]["execution_id"]
    if not is_execution(name):
        raise ValueError(f"the execution id {name!r:.100} names no folder")
    return str(name)


def small_enough(result: dict[str, Any]) -> dict[str, Any]:
    """The result, or where it is too large to be sent back the failure that says so."""
    size = len(json.dumps(result))
    if size <= LARGEST_RESULT:
        return result
    kept = ("started_at", "ended_at", "host", "cost", "workdir", "attempt")
    failure = _failure(
        "contract",
        "ResultTooLarge",
        f"the result has {size / 1e6:.1f} MB, more than the {LARGEST_RESULT / 1e6:.1f} MB that are sent back; it "
        f"is in {result['workdir']}/result.json.",
    )
    return {"status": "FAILED", **{name: result[name] for name in kept if name in result}, "failure": failure}


def _failure(kind: str, name: str, message: str) -> dict[str, Any]:
    return {"kind": kind, "name": name, "message": message, "log_tail": "", "repair": None}


def _about(order: Mapping[str, Any]) -> dict[str, Any]:
    """What the worker has to know to write the result of a run whose process ended."""
    manifest = order["manifest"]
    return {
        "manifest": {"resources": manifest["resources"]},
        "site": {"node_cores": order["site"].get("node_cores")},
        "workdir": order["workdir"],
        "attempt": order.get("attempt", 1),
    }


# ---- files


def remote_of(workdir: str, result: Mapping[str, Any]) -> dict[str, Any]:
    """Where the files of a run lie, and which there are."""
    artifacts = result.get("artifacts") or {}
    files, left_out = files_of(Path(workdir), also=set(artifacts.values()))
    return {"workdir": workdir, "files": files} | ({"left_out": left_out} if left_out else {})


def files_of(
    workdir: Path, *, also: Collection[str] = (), most: int = MOST_FILES
) -> tuple[dict[str, list[Any]], int]:
    """The files below a run's directory: path -> [bytes, SHA-256 or None]; and how many were left out.

    Args:
        workdir: The directory.
        also: Relative paths that get a SHA-256 whatever their size.
        most: So many are told.
    """
    found: dict[str, list[Any]] = {}
    left_out = 0
    for path, entry in _walk(str(workdir), ""):
        if len(found) >= most and path not in also:
            left_out += 1
            continue
        try:
            path.encode()
            size = entry.stat(follow_symlinks=False).st_size
            digest = _sha256(entry.path) if size <= HASHED_BYTES or path in also else None
        except (OSError, UnicodeEncodeError):
            left_out += 1
            continue
        found[path] = [size, digest]
    return found, left_out


def _walk(folder: str, before: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Plain files below a folder; links are not followed."""
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda e: e.name):
            if entry.is_dir(follow_symlinks=False):
                yield from _walk(entry.path, f"{before}{entry.name}/")
            elif entry.is_file(follow_symlinks=False):
                yield f"{before}{entry.name}", entry


def _sha256(path: str) -> str:
    # A name that was a file a moment ago may be a FIFO now: not blocking.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        return sha256_of(file)


def sha256_of(file: IO[bytes]) -> str:
    """The SHA-256 of an open file."""
    return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]  # asks for what IO has
