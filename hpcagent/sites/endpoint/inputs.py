"""Inputs of runs on the way to an endpoint: each content once, in chunks, and runs go when theirs are there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from hpcagent.sites.endpoint import protocol

__all__ = ["Inputs"]


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
        self._wanted[task] = needed
        for sha256 in sorted(needed - self._chunks.keys()):
            try:
                self._begin(sha256, blobs[sha256])
            except BaseException:
                self._drop(sha256)
                del self._wanted[task]
                raise
        return False

    def _begin(self, sha256: str, blob: bytes | Path) -> None:
        requests = {r["key"]: r for r in protocol.puts(self._root, blob, sha256=sha256)}
        self._chunks[sha256] = requests
        for key, request in list(requests.items()):
            self._of[key] = sha256
            self._send(request)

    def knows(self, key: str) -> bool:
        """Whether a request was one of these."""
        return key in self._of

    def answered(self, key: str, wrong: BaseException | None) -> tuple[list[str], list[str]]:
        """A chunk has been answered; return the tasks that may go now, and those that never can."""
        sha256 = self._of.pop(key)
        chunks = self._chunks.get(sha256, {})
        chunks.pop(key, None)
        tasks = [task for task, needed in self._wanted.items() if sha256 in needed]
        if wrong is not None:
            self._drop(sha256)
            for task in tasks:
                del self._wanted[task]
            return [], tasks
        if chunks:
            return [], []
        self._chunks.pop(sha256, None)
        self._there.add(sha256)
        ready = []
        for task in tasks:
            self._wanted[task].discard(sha256)
            if not self._wanted[task]:
                del self._wanted[task]
                ready.append(task)
        return ready, []

    def _drop(self, sha256: str) -> None:
        for key in self._chunks.pop(sha256, {}):
            self._of.pop(key, None)

    def forget(self, contents: Iterable[str]) -> None:
        """They are not there any more."""
        self._there.difference_update(contents)

    def again(self) -> None:
        """Send once more what has no answer: it may have been lost on the way."""
        for requests in self._chunks.values():
            for request in requests.values():
                self._send(request)
