"""Inputs of runs on the way to an endpoint: each content once, in chunks, and runs go when theirs are there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hpcagent.sites.endpoint import protocol

__all__ = ["Inputs"]

MOST_UNDER_WAY = 32 * 2**20
"""Bytes of requests that have no answer, before more of the inputs is read."""


class Inputs:
    """What is there, as far as is known here; the endpoint says what it lacks after all.

    Args:
        root: The campaign's folder there.
        send: Sends a request; its answer comes back by `answered`.
    """

    def __init__(self, root: str, send: Callable[[dict[str, Any]], None]) -> None:
        self._root = root
        self._send = send
        self._there: set[str] = set()
        self._chunks: dict[str, dict[str, dict[str, Any]]] = {}  # sha256 -> key -> request that has no answer
        self._of: dict[str, str] = {}  # key -> sha256
        self._coming: dict[str, Iterator[dict[str, Any]]] = {}  # sha256 -> requests that are yet to be made
        self._under_way = 0  # bytes
        self._wanted: dict[str, set[str]] = {}  # task -> what it waits for

    def bring(self, task: str, blobs: Mapping[str, bytes | Path]) -> bool:
        """Send what is not there; return whether all is there already, so that the task may go.

        Raises:
            BadInput: One is too large to be sent.
            OSError: A file cannot be read.
        """
        needed = {sha256 for sha256 in blobs if sha256 not in self._there}
        if not needed:
            return True
        for sha256 in needed - self._chunks.keys():
            protocol.input_size(blobs[sha256])
        self._wanted[task] = needed
        for sha256 in sorted(needed - self._chunks.keys()):
            self._chunks[sha256] = {}
            self._coming[sha256] = protocol.puts(self._root, blobs[sha256], sha256=sha256)
        failed = self._pump()
        if task in failed:
            raise failed[task]
        return False

    def _pump(self) -> dict[str, BaseException]:
        """Read and send what has room on the way; return tasks whose inputs cannot be sent, and why."""
        failed: dict[str, BaseException] = {}
        while self._coming and self._under_way < MOST_UNDER_WAY:
            sha256, requests = next(iter(self._coming.items()))
            try:
                request = next(requests, None)
                if request is None:
                    del self._coming[sha256]
                    continue
                key = request["key"]
                self._of[key] = sha256
                self._chunks[sha256][key] = request
                self._under_way += len(request["blob"])
                self._send(request)
            except Exception as error:
                failed |= dict.fromkeys(self._give_up(sha256), error)
        return failed

    def _give_up(self, sha256: str) -> list[str]:
        self._drop(sha256)
        tasks = [task for task, needed in self._wanted.items() if sha256 in needed]
        for task in tasks:
            del self._wanted[task]
        return tasks

    def knows(self, key: str) -> bool:
        """Whether a request was one of these."""
        return key in self._of

    def answered(self, key: str, wrong: BaseException | None) -> tuple[list[str], dict[str, BaseException]]:
        """A chunk has been answered; return the tasks that may go now, and those that never can, and why."""
        sha256 = self._of.pop(key)
        request = self._chunks.get(sha256, {}).pop(key, None)
        self._under_way -= len(request["blob"]) if request is not None else 0
        if wrong is not None:
            failed = dict.fromkeys(self._give_up(sha256), wrong)
            return [], failed | self._pump()
        failed = self._pump()
        if sha256 in self._coming or self._chunks.get(sha256) != {}:
            return [], failed
        del self._chunks[sha256]
        self._there.add(sha256)
        ready = []
        for task in [task for task, needed in self._wanted.items() if sha256 in needed]:
            self._wanted[task].discard(sha256)
            if not self._wanted[task]:
                del self._wanted[task]
                ready.append(task)
        return ready, failed

    def _drop(self, sha256: str) -> None:
        self._coming.pop(sha256, None)
        for key, request in self._chunks.pop(sha256, {}).items():
            self._of.pop(key, None)
            self._under_way -= len(request["blob"])

    def forget(self, contents: Iterable[str]) -> None:
        """They are not there any more."""
        self._there.difference_update(contents)

    def again(self) -> None:
        """Send once more what has no answer: it may have been lost on the way."""
        for requests in self._chunks.values():
            for request in requests.values():
                self._send(request)
