"""The tasks of an endpoint in jobs.jsonl: every one from before it is sent to its end, many in a line.

A task whose end is not written may still run there, whatever became of the process that sent it. A campaign that
is resumed takes it up; `hpcagent reap` cancels it.

Also in the ledger: the campaign's folder on the endpoint. A copy of a run directory gets one of its own, as long
as the original is there; a run directory that was moved keeps it.
"""

from __future__ import annotations

import os
import re
import socket
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpcagent.errors import StoreError
from hpcagent.sites.endpoint.protocol import KEY
from hpcagent.sites.ledger import ELSEWHERE, Ledger, read_lines, same_file

__all__ = ["Book", "Task", "may_run", "open_tasks", "read_tasks", "root_there"]

_UUID = re.compile(r"[0-9a-fA-F-]{32,36}\Z")
_UNUSUAL = re.compile(r"[^A-Za-z0-9._-]+")
_MOST_NAME = 40


@dataclass(frozen=True, slots=True)
class Task:
    """A task as the ledger knows it.

    Attributes:
        key: Ours, unique; known before it is sent.
        site: Name of the profile.
        executor: Label of its executor.
        endpoint_id: Where it went.
        root: The campaign's folder there.
        runs: Execution id -> attempt.
        folder: The run directory that it was written in.
        sent_at: Unix time, in seconds.
        task_group_id: The service's; empty if the submission was begun and never reported.
        task_id: Likewise.
        cancelling: Whether its cancellation was asked for.
        ended: `finished`, `cancelled`, `failed`, `lost` or `elsewhere`; None while it may still run.
    """

    key: str
    site: str
    executor: str
    endpoint_id: str
    root: str
    runs: Mapping[str, int]
    folder: str
    sent_at: float
    task_group_id: str = ""
    task_id: str = ""
    cancelling: bool = False
    ended: str | None = None


class Book:
    """Writes the tasks of one executor into jobs.jsonl; each call is one line on the disk.

    Args:
        path: The jobs.jsonl.
        site: Name of the profile.
        executor: Label of the executor.
        endpoint_id: Where the tasks go.
        root: The campaign's folder there.

    Attributes:
        noted: Called when ids were noted, in any thread: whoever flushes should not wait with it, for a task whose
            ids are not on the disk is not found again should this process be killed.
    """

    noted: Callable[[], None] = staticmethod(lambda: None)

    def __init__(self, path: Path, *, site: str, executor: str, endpoint_id: str, root: str) -> None:
        self.path = path
        self._ledger = Ledger(path)
        self._about = {"site": site, "executor": executor, "endpoint_id": endpoint_id, "root": root}
        self._lock = threading.Lock()
        self._tasks: set[str] = set()
        self._sent: list[tuple[str, str, str]] = []
        self._ended: list[tuple[str, str]] = []

    def sending(self, tasks: Sequence[tuple[str, Mapping[str, int]]]) -> None:
        """Write that tasks are about to be sent: keys with their execution ids and attempts.

        Raises:
            StoreFull: It cannot be written; they must not be sent then.
        """
        self._ledger.write(
            {
                "event": "tasks",
                **self._about,
                "host": socket.gethostname(),
                "pid": os.getpid(),
                "folder": os.path.realpath(self.path.parent),
                "tasks": [{"key": key, "runs": list(runs.items())} for key, runs in tasks],
            }
        )
        with self._lock:
            self._tasks.update(key for key, _ in tasks)

    def sent(self, key: str, task_group_id: str, task_id: str) -> None:
        """Note the service's ids of a task; written with the next `flush`. Errands are no tasks."""
        with self._lock:
            if key not in self._tasks:
                return
            self._sent.append((key, task_group_id, task_id))
            first = len(self._sent) == 1
        if first:
            self.noted()

    def ended(self, key: str, how: str) -> None:
        """Note how a task ended; written with the next `flush`."""
        with self._lock:
            self._ended.append((key, how))

    def cancelling(self, keys: Iterable[str]) -> None:
        """Write that the cancellation of tasks is asked for."""
        self._ledger.write({"event": "tasks_cancelling", "keys": list(keys)})

    def flush(self) -> None:
        """Write what was noted.

        Raises:
            StoreFull: It cannot be written; it is kept for the next time.
        """
        with self._lock:
            sent, ended = self._sent, self._ended
            self._sent, self._ended = [], []
        try:
            if sent:
                self._ledger.write({"event": "tasks_sent", "sent": sent})
                sent = []
            if ended:
                self._ledger.write({"event": "tasks_ended", "ended": ended})
                ended = []
        finally:
            with self._lock:
                self._sent[:0], self._ended[:0] = sent, ended


def read_tasks(path: Path, *, copies: bool = True) -> dict[str, Task]:
    """The tasks of a jobs.jsonl by their keys, in the order in which they were sent; damaged lines are skipped.

    A task of another folder that is still there, of which this one is a copy, has ended here: `elsewhere`; without
    `copies` that is not looked at.
    """
    tasks: dict[str, Task] = {}
    for _, line in read_lines(path):
        if line is not None:
            try:
                _note(tasks, line)
            except (KeyError, TypeError, ValueError, AttributeError):
                continue  # `damage` counts lines that are no objects; what its later lines say stands
    if not copies:
        return tasks
    others = _originals(path, {task.folder for task in tasks.values() if task.ended is None})
    return {
        key: replace(task, ended=ELSEWHERE) if task.ended is None and key in others.get(task.folder, ()) else task
        for key, task in tasks.items()
    }


def open_tasks(path: Path) -> list[Task]:
    """The tasks of a jobs.jsonl that have no end, the first sent first."""
    return [task for task in read_tasks(path).values() if task.ended is None]


def may_run(tasks: Mapping[str, Task]) -> list[Task]:
    """Those without an end, and those taken for lost whose runs nothing else has finished."""
    finished = {run for task in tasks.values() if task.ended == "finished" for run in task.runs}
    return [
        task
        for task in tasks.values()
        if task.ended is None or (task.ended == "lost" and not task.runs.keys() <= finished)
    ]


def _note(tasks: dict[str, Task], line: Mapping[str, Any]) -> None:
    event = line["event"]
    if event == "tasks":
        for task in _of_line(line):
            tasks[task.key] = task
    elif event == "tasks_sent":
        for key, group, task_id in line["sent"]:
            if key in tasks and _UUID.match(group) and _UUID.match(task_id):
                tasks[key] = replace(tasks[key], task_group_id=group, task_id=task_id)
    elif event == "tasks_cancelling":
        for key in line["keys"]:
            if key in tasks:
                tasks[key] = replace(tasks[key], cancelling=True)
    elif event == "tasks_ended":
        for key, how in line["ended"]:
            if key in tasks:
                tasks[key] = replace(tasks[key], ended=str(how))


def _of_line(line: Mapping[str, Any]) -> Iterator[Task]:
    for told in line["tasks"]:
        key = str(told["key"])
        if KEY.match(key):
            yield Task(
                key=key,
                site=str(line["site"]),
                executor=str(line["executor"]),
                endpoint_id=str(line["endpoint_id"]),
                root=str(line["root"]),
                runs={str(execution_id): int(attempt) for execution_id, attempt in told["runs"]},
                folder=str(line.get("folder", "")),
                sent_at=float(line["at"]),
            )


def _originals(path: Path, folders: Iterable[str]) -> dict[str, frozenset[str]]:
    """Other folders that are still there, with the keys of all their tasks."""
    here = os.path.realpath(path.parent)
    found: dict[str, frozenset[str]] = {}
    for folder in folders:
        other = Path(folder, path.name)
        if folder and folder != here and not same_file(other, path):
            found[folder] = frozenset(task.key for task in _tasks_of(other))
    return found


def _tasks_of(path: Path) -> Iterator[Task]:
    try:
        for _, line in read_lines(path):
            if line is not None and line.get("event") == "tasks":
                yield from _of_line(line)
    except (StoreError, KeyError, TypeError, ValueError, AttributeError):
        return  # it was moved here, is out of sight, or damaged


def root_there(path: Path, *, site: str, endpoint_id: str, work_dir: str) -> str:
    """The campaign's folder on an endpoint, unique to the run directory; made up, and written down, once.

    Args:
        path: The jobs.jsonl of the run directory.
        site: Name of the profile.
        endpoint_id: The endpoint.
        work_dir: Of the profile: the folder there in which it lies.

    Raises:
        StoreFull: It cannot be written down.
    """
    work_dir = work_dir.rstrip("/")
    here = os.path.realpath(path.parent)
    for line in reversed(_roots(path)):
        root, folder = str(line["root"]), str(line.get("folder", ""))
        if line.get("endpoint_id") != endpoint_id or root.rpartition("/")[0] != work_dir:
            continue
        other = Path(folder, path.name)
        copied = folder != here and not same_file(other, path) and root in {r["root"] for r in _roots(other)}
        if not copied:
            return root
    name = _UNUSUAL.sub("_", path.parent.name).strip("._-")[:_MOST_NAME] or "runs"
    root = f"{work_dir}/{name}-{uuid.uuid4().hex[:8]}"
    Ledger(path).write(
        {
            "event": "root",
            "site": site,
            "endpoint_id": endpoint_id,
            "root": root,
            "folder": here,
            "host": socket.gethostname(),
        }
    )
    return root


def _roots(path: Path) -> list[dict[str, Any]]:
    try:
        return [
            line
            for _, line in read_lines(path)
            if line is not None and line.get("event") == "root" and isinstance(line.get("root"), str)
        ]
    except StoreError:
        return []
