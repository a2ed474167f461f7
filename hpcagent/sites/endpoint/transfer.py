"""Large files of a run by Globus Transfer: between two collections, not through the service of the tasks.

A transfer goes on by itself when this process has ended. Its submission id is written into the campaign's folder
(`transfers.jsonl`) before it is submitted: asked for again, the same transfer is taken up, not begun anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from hpcagent.errors import BadInput, FetchFailed, in_brief
from hpcagent.model.remote import Remote
from hpcagent.shown import plain, size_text
from hpcagent.sites.endpoint.credentials import hidden
from hpcagent.sites.endpoint.fetching import Brought, Progress, Say, Wanted
from hpcagent.sites.endpoint_settings import TransferSettings
from hpcagent.store.arriving import PART, Place
from hpcagent.store.files import open_plain

__all__ = ["LOOKS_S", "Record", "client", "transfer"]

LOOKS_S = 5.0
"""Time between two questions how a transfer stands."""
_DONE, _FAILED = "SUCCEEDED", "FAILED"


def client() -> Any:  # globus_sdk.TransferClient
    """Globus's client for transfers, with the credentials that tasks have; asks nobody.

    Raises:
        BadInput: Globus's packages are not installed.
        SiteFailed: There is no login, or it does not cover transfers.
    """
    from hpcagent.sites.endpoint import credentials

    found = credentials.app(transfer=True)
    return import_module("globus_sdk").TransferClient(app=found)


class Record:
    """The transfers of a campaign's folder that were asked for, one JSON object in a line.

    Args:
        path: The file, made with the first line; None: nothing is kept.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def open_one(self, what: str) -> tuple[str, str]:
        """(submission id, task id) of a transfer of the same files that has no end; empty where not known."""
        submission = task = ""
        for line in self._lines():
            if line.get("what") != what:
                continue
            if line.get("event") == "submitting":
                submission, task = str(line.get("submission_id") or ""), ""
            elif line.get("event") == "submitted":
                task = str(line.get("task_id") or "")
            elif line.get("event") == "ended":
                submission = task = ""
        return submission, task

    def write(self, event: str, what: str, **more: Any) -> None:
        """Add a line."""
        if self._path is None:
            return
        line = json.dumps({"at": time.time(), "event": event, "what": what, **more})
        with os.fdopen(open_plain(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "w") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())

    def _lines(self) -> Iterator[Mapping[str, Any]]:
        if self._path is None or not self._path.is_file():
            return
        with os.fdopen(open_plain(self._path, os.O_RDONLY), errors="replace") as file:
            for text in file:
                try:
                    line = json.loads(text)
                except ValueError:
                    continue  # torn
                if isinstance(line, dict):
                    yield line


@dataclass(frozen=True, slots=True)
class _Way:
    """One file's two ends, as paths of the collections."""

    wanted: Wanted
    source: str
    target: str


def transfer(
    wanted: Sequence[Wanted],
    place: Place,
    remote: Remote,
    settings: TransferSettings,
    record: Record,
    *,
    connect: Callable[[], Any] = client,
    watch: Progress = lambda *_: None,
    say: Say = lambda _: None,
    pause: Callable[[float], None] = time.sleep,
) -> list[Brought]:
    """Bring files by one transfer, and verify each against its SHA-256. What is here is not sent again.

    Args:
        wanted: The files, each with its SHA-256.
        place: Where they go, by their own paths.
        remote: What the run's record says of them.
        settings: `[transfer]` of the profile.
        record: Where transfers are written down.
        connect: Makes the client.
        watch: Told how far all are together.
        say: Takes sentences on what is waited for.
        pause: Waits between two questions.

    Raises:
        BadInput: A file lies outside of what a collection shows, or another one has its name here.
        FetchFailed: The transfer failed, or brought something else.
        SiteFailed: There is no login for transfers.
    """
    here = {one.path: place.digest(one.path, one.size) for one in wanted}
    for one in wanted:
        if here[one.path] not in (None, one.sha256):
            raise BadInput(
                f"{place.path(one.path)} is here with another content, and stays. Remove it, or fetch to another "
                "folder (--to).",
                value=str(place.path(one.path)),
            )
    missing = [one for one in wanted if here[one.path] is None]
    if missing:
        ways = [_way(one, place, remote, settings) for one in missing]
        _carried(ways, place, settings, record, connect, watch, say, pause)
        for one in missing:
            _settled(one, place, remote)
    return [
        Brought(one.path, place.path(one.path), one.size, str(one.sha256), already=one not in missing)
        for one in wanted
    ]


def _way(one: Wanted, place: Place, remote: Remote, settings: TransferSettings) -> _Way:
    target = f"{place.path(one.path).absolute()}{PART}"
    return _Way(
        one,
        _in_collection(f"{remote.workdir}/{one.path}", settings.there_path, "there_path"),
        _in_collection(target, settings.here_path, "here_path"),
    )


def _in_collection(path: str, root: str, key: str) -> str:
    """A path as a collection names it, whose root is a folder of that machine."""
    if ".." in path.split("/"):
        raise BadInput(f"{plain(path)} is no path that is transferred.", value=path)
    root = root.rstrip("/")
    if not root:
        return path
    if not path.startswith(f"{root}/"):
        raise BadInput(
            f"{plain(path)} does not lie below {root}, which is all that the collection shows ([transfer] {key} "
            "of the profile).",
            value=path,
        )
    return path.removeprefix(root)


def _carried(
    ways: Sequence[_Way],
    place: Place,
    settings: TransferSettings,
    record: Record,
    connect: Callable[[], Any],
    watch: Progress,
    say: Say,
    pause: Callable[[float], None],
) -> None:
    words = [settings.there, settings.here, *(f"{w.source}\0{w.target}\0{w.wanted.sha256}" for w in ways)]
    what = hashlib.sha256("\0".join(words).encode()).hexdigest()
    service = connect()
    submission, task = record.open_one(what)
    for way in ways:
        with place.arriving(way.wanted.path):
            pass  # its folder is here, and no link is on the way to it
    try:
        if task:
            say(f"the transfer {task} is under way already, and is waited for")
        else:
            task = _submitted(service, ways, settings, record, what, submission)
            say(f"transfer {task}: {len(ways)} file(s), {size_text(sum(w.wanted.size for w in ways))}")
        _waited(service, task, ways, watch, say, pause)
    except KeyboardInterrupt:
        if task:
            try:
                _asked(lambda: service.cancel_task(task))
            except FetchFailed as error:
                say(f"the transfer {task} could not be cancelled, and may go on: {error}")
            else:
                record.write("ended", what, status="cancelled")
        raise
    except FetchFailed as error:
        if error.details.get("ended") or error.details.get("forgotten"):
            record.write("ended", what, status=_FAILED)
        raise
    record.write("ended", what, status=_DONE)


def _submitted(
    service: Any, ways: Sequence[_Way], settings: TransferSettings, record: Record, what: str, known: str
) -> str:
    """Submit; with a submission id that the service has seen it answers with the transfer that there is."""
    submission = known or str(_asked(service.get_submission_id)["value"])
    if not known:
        record.write("submitting", what, submission_id=submission)
    data = import_module("globus_sdk").TransferData(
        settings.there,
        settings.here,
        label="hpcagent fetch",
        submission_id=submission,
        sync_level="checksum",
        verify_checksum=True,
        notify_on_succeeded=False,
    )
    for way in ways:
        data.add_item(way.source, way.target)
    task = str(_asked(lambda: service.submit_transfer(data))["task_id"])
    record.write("submitted", what, task_id=task)
    return task


def _waited(
    service: Any, task: str, ways: Sequence[_Way], watch: Progress, say: Say, pause: Callable[[float], None]
) -> None:
    total, told = sum(way.wanted.size for way in ways), ""
    name = ways[0].wanted.path if len(ways) == 1 else f"{len(ways)} files"
    while True:
        now = _of_task(service, task)
        status = str(now["status"])
        watch(name, min(int(now.get("bytes_transferred") or 0), total), total)
        if status == _DONE:
            return
        nice = plain(str(now.get("nice_status") or ""))[:200]
        details = plain(str(now.get("nice_status_details") or ""))[:500]
        if status == _FAILED:
            fatal = now.get("fatal_error") or {}
            why = plain(str(fatal.get("description") or details or nice or "no reason"))[:500]
            raise FetchFailed(
                f"the transfer {task} failed: {why}. Nothing of it is taken; ask again when that is mended.",
                name=str(fatal.get("code") or "TransferFailed")[:100],
                ended=True,
            )
        faults = f"{nice}: {details}" if details else nice
        if (status == "INACTIVE" or (nice and nice.upper() not in ("OK", "QUEUED"))) and faults != told:
            told = faults
            say(
                f"the transfer {task} waits ({faults or status}); Globus tries again until its deadline. Ctrl-C "
                "cancels it"
            )
        pause(LOOKS_S)


def _of_task(service: Any, task: str) -> Any:
    """How a transfer stands; one that the service has forgotten is asked for anew the next time."""
    try:
        return _asked(lambda: service.get_task(task))
    except FetchFailed as error:
        gone = error.details.get("status") == 404
        words = "Ask again: it is begun anew." if gone else "The transfer may go on; ask again to take it up."
        raise FetchFailed(f"{error} {words}", name=str(error.details.get("name")), forgotten=gone) from None


def _asked(ask: Callable[[], Any]) -> Any:
    """An answer of the service, or why there is none, in words."""
    sdk = import_module("globus_sdk")
    try:
        return ask()
    except sdk.GlobusAPIError as error:
        raise FetchFailed(
            f"Globus Transfer refused: {_refusal(error)}", name=str(error.code)[:100], status=error.http_status
        ) from None
    except sdk.GlobusError as error:
        words = hidden(f"{type(error).__name__}: {error}")[:500]
        raise FetchFailed(f"Globus Transfer cannot be asked: {words}. Ask again later.") from None


def _refusal(error: Any) -> str:
    message = plain(hidden(str(error.message or error.code)))[:500]
    if error.info.consent_required:
        scopes = error.info.consent_required.required_scopes or []
        return (
            f"{message}. Your login does not cover this collection: `hpcagent globus login --transfer "
            f"--collection ID` with its id. (Wanted: {in_brief(' '.join(map(str, scopes)))})"
        )
    if error.http_status == 401:
        return f"{message}. Log in anew: `hpcagent globus login --transfer`."
    if error.http_status == 403:
        return f"{message}. You may not read or write there: look at the collections of [transfer] in the profile."
    if error.http_status == 404:
        return f"{message}. Look at the ids of the collections in [transfer] of the profile."
    return f"{message} ({error.code})."


def _settled(one: Wanted, place: Place, remote: Remote) -> None:
    """Give a file that has come its name, if it is the one that was wanted."""
    with place.arriving(one.path) as file:
        if file.have != one.size or file.digest() != one.sha256:
            file.restart()
            raise FetchFailed(
                f"{one.path}: the transfer brought another content than {remote.at} had when the run ended, or "
                "nothing (does here_path name this machine's folder?); it is not taken.",
                name="FileChanged",
                path=one.path,
            )
        file.settle()
