"""Files of a run brought from an endpoint: in chunks, each verified, and the whole; never half a file.

A chunk is an errand of two megabytes: a few are on their way at once, because a round trip takes half a second.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcagent.errors import AppFailed, BadInput, FetchFailed, in_brief
from hpcagent.model.remote import Remote
from hpcagent.shown import size_text
from hpcagent.sites.endpoint import protocol
from hpcagent.sites.endpoint.link import AnyLink
from hpcagent.store.arriving import Arriving, Place

__all__ = ["CHUNK", "Brought", "Errands", "Wanted", "bring", "root_of"]

CHUNK = 2 << 20
"""Bytes of a chunk."""
IN_FLIGHT = 4
"""Chunks on their way at once."""
TRIES = 3
"""So often a chunk is asked for that arrives damaged."""
LOOK_S = 20.0
"""An answer that does not come for so long, in seconds: is the endpoint there?"""

Progress = Callable[[str, int, int], None]
"""Is told the file, the bytes that are here, and its size."""
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A file to bring.

    Attributes:
        path: Below the run's directory there.
        size: Bytes.
        sha256: Of its content; None where nobody has looked.
    """

    path: str
    size: int
    sha256: str | None


@dataclass(frozen=True, slots=True)
class Brought:
    """A file that is here now.

    Attributes:
        path: Its path below the run's directory.
        here: Where it is.
        size: Bytes.
        sha256: Of its content, verified.
        already: Whether it was here, so that nothing was sent.
        kept: Bytes that an earlier try had brought.
    """

    path: str
    here: Path
    size: int
    sha256: str
    already: bool = False
    kept: int = 0


def root_of(remote: Remote, execution_id: str) -> str:
    """The campaign's folder on the endpoint, by which its files are asked for.

    Raises:
        FetchFailed: The run's directory there is not known.
    """
    root, _, identity = remote.workdir.rpartition("/")
    root, _, work = root.rpartition("/")
    if identity != execution_id or work != "work" or not root:
        raise FetchFailed(
            f"run {execution_id}: its record names {in_brief(remote.workdir)} as its directory on {remote.at}, "
            "which is not where runs of a campaign lie; its files cannot be asked for.",
            value=remote.workdir,
        )
    return root


class Errands:
    """Small requests to an endpoint on the files of one run.

    Args:
        link: The way there.
        remote: What the run's record says of its files.
        execution_id: The run.
        say: Takes sentences on what is waited for.
        clock: Monotonic time, in seconds.
    """

    def __init__(
        self,
        link: AnyLink,
        remote: Remote,
        execution_id: str,
        *,
        say: Say = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._link, self._at, self._execution = link, remote.at, execution_id
        self._root = root_of(remote, execution_id)
        self._say, self._clock = say, clock

    def listed(self, paths: Sequence[str] | None = None) -> dict[str, Wanted]:
        """What is there now.

        Args:
            paths: Only these, with their SHA-256 however large they are.

        Raises:
            FetchFailed: The endpoint does not say.
        """
        request = protocol.list_files(self._root, self._execution, paths=paths)
        answer = self._answer(self._send(request), "the list of its files")
        said = {"workdir": "/", "files": answer.get("files")}
        found, _ = Remote.of(said, site="", endpoint_id="", most=math.inf)
        return {path: Wanted(path, size, sha256) for path, (size, sha256) in found.files.items()}

    def chunks(self, wanted: Wanted, start: int) -> Iterator[bytes]:
        """The content of a file from `start` on, in order, each piece verified.

        Raises:
            FetchFailed: It cannot be read there, has another size by now, or keeps arriving damaged.
        """
        # Of an empty file one byte is asked for: whether it is there, and empty.
        asked = iter(range(start, wanted.size, CHUNK)) if wanted.size else iter([0])
        waiting: deque[tuple[int, int, Future[dict[str, Any]]]] = deque()
        while True:
            while len(waiting) < IN_FLIGHT and (at := next(asked, None)) is not None:
                length = min(CHUNK, wanted.size - at) or 1
                waiting.append((at, length, self._get(wanted, at, length)))
            if not waiting:
                return
            yield self._verified(wanted, *waiting.popleft())

    def _get(self, wanted: Wanted, at: int, length: int) -> Future[dict[str, Any]]:
        return self._send(protocol.get(self._root, self._execution, wanted.path, offset=at, length=length))

    def _send(self, request: Mapping[str, Any]) -> Future[dict[str, Any]]:
        return self._link.submit(request, control=True).future

    def _verified(self, wanted: Wanted, at: int, length: int, first: Future[dict[str, Any]]) -> bytes:
        future, wrong = first, ""
        for _ in range(TRIES):
            answer = self._answer(future, wanted.path)
            size = answer.get("size")
            if size != wanted.size:
                raise changed(wanted, f"it had {wanted.size} bytes, and has {in_brief(size)} now", self._at)
            data, wrong = _piece(answer, min(length, wanted.size - at))
            if not wrong:
                return data
            future = self._get(wanted, at, length)
        raise FetchFailed(
            f"{wanted.path}: the piece at byte {at} arrived damaged {TRIES} times from {self._at} ({wrong}). "
            "What came before is kept; fetch it again later."
        )

    def _answer(self, future: Future[dict[str, Any]], what: str) -> Mapping[str, Any]:
        """The answer of an errand; waits as long as the endpoint is there."""
        since, told = self._clock(), False
        while True:
            try:
                answer = future.result(timeout=LOOK_S)
                break
            except NotYet:
                if future.done():
                    raise FetchFailed(f"{what}: {self._at} gave no answer.") from None
                told = self._still_there(what, self._clock() - since, told)
            except AppFailed as error:
                raise FetchFailed(f"{what}: {error.message}") from error
        if not isinstance(answer, Mapping):
            raise FetchFailed(f"{what}: {self._at} answered {in_brief(answer)}, which is no answer to a request.")
        if answer.get("error") is not None:
            raise _refused(what, answer["error"], self._at)
        return answer

    def _still_there(self, what: str, waited_s: float, told: bool) -> bool:
        status = self._link.status()
        if status.known and not status.online:
            raise FetchFailed(
                f"{what}: {self._at} is offline ({status.words}). What has come is kept; the same command goes on "
                "with it when the endpoint is back."
            )
        if not told:
            self._say(
                f"no answer from {self._at} for {waited_s:.0f} s; it is waited for. Without [control] in the "
                "profile files go the way of runs, and wait in the queue of the machine. Ctrl-C ends it, "
                "what has come is kept"
            )
        return True


def _piece(answer: Mapping[str, Any], length: int) -> tuple[bytes, str]:
    """The bytes of an answer, and what is wrong with them."""
    try:
        data = protocol.unpacked_bytes(str(answer.get("data")), most=length)
    except BadInput as error:
        return b"", error.message.rstrip(".")
    if len(data) != length:
        return b"", f"{len(data)} bytes of {length}"
    if hashlib.sha256(data).hexdigest() != answer.get("sha256"):
        return b"", "its SHA-256 is another"
    return data, ""


def _refused(what: str, error: object, at: str) -> FetchFailed:
    said = error if isinstance(error, Mapping) else {"message": error}
    name, message = str(said.get("name") or "error")[:100], str(said.get("message") or "no reason")[:2000]
    return FetchFailed(f"{what}: {at} answered {name}: {message}", name=name)


def changed(wanted: Wanted, how: str, at: str) -> FetchFailed:
    """What is said of a file that is another one than was recorded."""
    return FetchFailed(
        f"{wanted.path} on {at} has changed since the run ended: {how}. It is not taken for the run's file; "
        "--changed fetches it as it is now, to another folder (--to).",
        name="FileChanged",
        path=wanted.path,
    )


def bring(
    errands: Callable[[], Errands], place: Place, wanted: Wanted, at: str, watch: Progress = lambda *_: None
) -> Brought:
    """Bring a file, if it is not here already.

    Args:
        errands: Opens the way to its run; not called for a file that is here.
        place: Where it goes, by its own path.
        wanted: The file, with its SHA-256.
        at: The endpoint, in words.
        watch: Told how far it is.

    Raises:
        FetchFailed: It did not come; what came is kept as NAME.part, and gone on with.
        BadInput: Another file has its name here.
        StoreFull: The disk refuses.
    """
    assert wanted.sha256 is not None
    here = place.digest(wanted.path, wanted.size)
    if here == wanted.sha256:
        watch(wanted.path, wanted.size, wanted.size)
        return Brought(wanted.path, place.path(wanted.path), wanted.size, here, already=True)
    if here is not None:
        raise BadInput(
            f"{place.path(wanted.path)} is here with another content than on {at} ({size_text(wanted.size)}, "
            f"SHA-256 {wanted.sha256[:12]}...). It stays: remove it, or fetch to another folder (--to).",
            value=str(place.path(wanted.path)),
        )
    with place.arriving(wanted.path) as file:
        if file.have > wanted.size:
            file.restart()
        kept = file.have
        digest = _filled(errands(), file, wanted, watch)
        if digest != wanted.sha256 and kept:
            file.restart()  # what an earlier try has left was of something else
            kept = 0
            digest = _filled(errands(), file, wanted, watch)
        if digest != wanted.sha256:
            file.restart()
            raise changed(wanted, f"its SHA-256 was {wanted.sha256[:12]}..., and is {digest[:12]}... now", at)
        file.settle()
    return Brought(wanted.path, place.path(wanted.path), wanted.size, digest, kept=kept)


def _filled(errands: Errands, file: Arriving, wanted: Wanted, watch: Progress) -> str:
    if file.have < wanted.size or not wanted.size:
        for data in errands.chunks(wanted, file.have):
            file.write(data)
            watch(wanted.path, file.have, wanted.size)
    return file.digest()
