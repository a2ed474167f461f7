"""Control files of tasks on an endpoint: what has begun, where, and what is to end. Standard library only.

`root/control/KEY.json` is written when a task begins, touched while it goes on, and written anew at its end;
`root/control/KEY.cancel` asks for its end. A task writes the first before it looks for the second, who cancels
writes the second before the look at the first: so one of them always sees the other.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcagent.errors import BadInput
from hpcagent.lifeline import birth, node_name
from hpcagent.owners import require_own, require_own_links
from hpcagent.sites.endpoint.protocol import SILENT_S

__all__ = ["Control", "Task", "campaign_root", "private_folder"]

_LARGEST = 4_000_000


def campaign_root(root: str) -> Path:
    """The campaign's folder of a checked request; `~` is the home of whoever the endpoint runs as.

    Raises:
        BadInput: It belongs to another user, or there is no home.
    """
    try:
        path = Path(root).expanduser()
    except RuntimeError as error:
        raise BadInput(f"root {root!r}: {error}; give an absolute path.", value=root) from None
    require_own_links(path)
    require_own(path, what="files in it")
    return path


def private_folder(folder: Path) -> Path:
    """Make a folder that nobody else can enter, and return it; one of another user is refused.

    Raises:
        BadInput: It is another user's.
        OSError: It cannot be made.
    """
    try:
        found = os.lstat(folder)
    except FileNotFoundError:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)  # noqa: PTH102  (its mode, also under a strange umask)
        found = os.lstat(folder)
    if stat.S_ISLNK(found.st_mode):
        require_own_links(folder)
    require_own(folder, what="what is in it")
    return folder


def _namespace() -> str:
    """Where process ids mean the same: this boot of this machine, this namespace."""
    found = [node_name()]
    for path in ("/proc/sys/kernel/random/boot_id",):
        with contextlib.suppress(OSError):
            found.append(Path(path).read_text().strip())
    with contextlib.suppress(OSError):
        found.append(os.readlink("/proc/self/ns/pid"))  # noqa: PTH115
    return " ".join(found)


class Control:
    """The control files of a campaign on an endpoint.

    Args:
        root: The campaign's folder.
    """

    def __init__(self, root: Path) -> None:
        self.folder = root / "control"

    def task(self, key: str) -> Task:
        """One task."""
        return Task(self.folder, key)

    def made(self) -> Control:
        """Itself, with its folder made."""
        private_folder(self.folder)
        return self

    def running(self, now: float) -> dict[str, list[str]]:
        """Tasks that run: key -> execution ids.

        Args:
            now: The file system's time.
        """
        keys = [path.stem for path in self.folder.glob("*.json") if not path.name.startswith(".")]
        tasks = [self.task(key) for key in keys]
        return {task.key: task.executions() for task in tasks if task.stands(now)["state"] == "running"}

    def now(self) -> float:
        """The time as the file system has it: clocks of nodes differ."""
        clock = self.folder / ".clock"
        try:
            clock.touch(mode=0o600)
            return clock.stat().st_mtime
        except OSError:
            return time.time()


class Task:
    """The control files of one task.

    Args:
        folder: Where they are.
        key: Its name.
    """

    def __init__(self, folder: Path, key: str) -> None:
        self.key = key
        self._folder = folder
        self._path = folder / f"{key}.json"
        self._about: dict[str, Any] = {}

    def begin(self, executions: Sequence[str]) -> None:
        """Write down that it begins here."""
        self._about = {
            "state": "running",
            "host": node_name(),
            "pid": os.getpid(),
            "birth": birth(os.getpid()),
            "where": _namespace(),
            "since": time.time(),
            "executions": list(executions),
        }
        self._write()

    def end(self, state: str) -> None:
        """Write down that it has ended: `finished` or `cancelled`."""
        self._about |= {"state": state, "ended": time.time()}
        self._write()

    def forget_beginning(self) -> None:
        """It did not begin after all: what it needs is not there."""
        with contextlib.suppress(OSError):
            self._path.unlink()

    def beat(self) -> None:
        """Show that it goes on."""
        with contextlib.suppress(OSError):
            os.utime(self._path)

    def _write(self) -> None:
        part = self._folder / f".{self.key}.{os.getpid()}.part"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(part, flags, 0o600), "wb") as file:
            file.write(json.dumps(self._about).encode())
        os.rename(part, self._path)  # noqa: PTH104

    def is_cancelled(self) -> bool:
        """Whether somebody asks for its end."""
        # Opened first: NFS believes for half a minute that a file is not there, unless its folder was opened anew.
        try:
            folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            os.stat(f"{self.key}.cancel", dir_fd=folder, follow_symlinks=False)
        except OSError:
            return False
        finally:
            os.close(folder)
        return True

    def cancel(self, now: float) -> str:
        """Ask for its end; return `requested`, `ended`, `never` (it will not begin) or `finished`."""
        if self.stands(now)["state"] == "finished":
            return "finished"
        (self._folder / f"{self.key}.cancel").touch(mode=0o600)
        state = self.stands(now)["state"]
        words = {"running": "requested", "waiting": "never", "cancelled": "ended", "dead": "ended"}
        return words.get(state, "finished")

    def stands(self, now: float) -> dict[str, Any]:
        """How it stands: `state`, and where and since when it ran.

        Args:
            now: The file system's time.
        """
        about = self._read()
        if about is None:
            return {"state": "waiting"}
        told: dict[str, Any] = {
            name: about.get(name) for name in ("state", "host", "pid", "since", "ended") if name in about
        }
        if told.get("state") == "running" and not self._is_alive(about, now):
            told["state"] = "dead"
        return told

    def executions(self) -> list[str]:
        """Execution ids of its runs, as far as they are known."""
        found = (self._read() or {}).get("executions")
        return [str(execution) for execution in found] if isinstance(found, list) else []

    def _read(self) -> dict[str, Any] | None:
        try:
            with self._path.open("rb") as file:
                about = json.loads(file.read(_LARGEST))
        except FileNotFoundError:
            return None
        except ValueError:  # a full disk, or somebody's editor
            return {"state": "dead"}
        return about if isinstance(about, dict) and isinstance(about.get("state"), str) else {"state": "dead"}

    def _is_alive(self, about: Mapping[str, Any], now: float) -> bool:
        pid = about.get("pid")
        if about.get("where") == _namespace() and isinstance(pid, int):
            return birth(pid) == about.get("birth")
        try:
            return now - self._path.stat().st_mtime < SILENT_S
        except OSError:
            return False

    def forget(self) -> int:
        """Remove its files, unless it runs; return how many there were."""
        removed = 0
        for path in (self._path, self._folder / f"{self.key}.cancel"):
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
                removed += 1
        return removed
