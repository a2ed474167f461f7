"""One folder for each campaign, and the lock that keeps a second coordinator out."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from hpcagent.errors import BadInput, RunDirLocked, StoreError
from hpcagent.owners import require_own, require_own_links
from hpcagent.store.files import make_folder, open_plain, refusing_clearly

__all__ = ["LOCK", "Holder", "Lock", "RunDir", "holder"]

_TRIES = 4
_PAUSE_S = 0.1


LOCK = ".lock"
"""The file in a folder that whoever works in it holds."""


class RunDir:
    """The paths of a campaign's folder.

    Attributes:
        root: The folder.
        campaign: `campaign.toml`, the frozen copy.
        app: `app.json`, the app exactly as it runs (with the text of its script).
        events: `events.jsonl`, the append-only truth.
        metrics: `metrics.h5`, derived.
        work: One directory for each execution id.
        jobs: `jobs.jsonl`, every job submitted to a scheduler.
        report: Report and plots.
        parsl: What Parsl writes.
    """

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root).expanduser()
        self.campaign = self.root / "campaign.toml"
        self.app = self.root / "app.json"
        self.events = self.root / "events.jsonl"
        self.metrics = self.root / "metrics.h5"
        self.work = self.root / "work"
        self.jobs = self.root / "jobs.jsonl"
        self.report = self.root / "report"
        self.parsl = self.root / "parsl"

    @property
    def exists(self) -> bool:
        """Whether a campaign was begun here."""
        return self.events.is_file()

    def require(self) -> None:
        """Raise `BadInput` unless a campaign was begun here."""
        if self.root.is_file():
            raise BadInput(
                f"{self.root} is a file. An archive is read only: `hpcagent status`, `report` and `export` "
                "open it, and `ha.open_run`; nothing can be run in it.",
                value=str(self.root),
            )
        if not self.exists:
            raise BadInput(
                f"{self.root} is not the folder of a campaign (it has no events.jsonl); name the folder that "
                "`hpcagent run` wrote, e.g. runs/lj_tuning.",
                value=str(self.root),
            )

    def require_own(self) -> None:
        """Raise `BadInput` if another user wrote, or may write, what is run from here."""
        require_own(
            self.root,
            self.app,
            self.campaign,
            self.events,
            self.jobs,
            self.root / "site.toml",
            what="the commands and modules it names",
        )
        require_own_links(self.work, self.parsl, self.report, self.root / "coordinator")

    def create(self) -> None:
        """Make the folder.

        Raises:
            StoreFull: It cannot be made or written.
            BadInput: It was there, and another user owns or may write it: nothing is run before that is said. Or
                it has runs, but no record of the campaign they belong to.
        """
        with refusing_clearly(self.root):
            make_folder(self.work)
            left = sorted(entry.name for entry in os.scandir(self.work))
        self.require_own()
        # In this order: the journal of a campaign that begins at this moment is there before its first run.
        if left and not self.exists:
            raise BadInput(
                f"{self.root} has what runs left ({len(left)} entries in {self.work.name}/, the first is "
                f"{left[0]}), but no {self.events.name}: it was lost, and which runs have ended is not known. Put "
                "it back from a backup, or name another --run-dir; runs there begin anew.",
                value=str(self.root),
            )


class Lock:
    """Held by the one coordinator of a run directory; the kernel frees it when that process dies.

    Args:
        root: The run directory.
        passing: Taken for a moment only: afterwards the coordinator that had it last is still named.
    """

    def __init__(self, root: Path, *, passing: bool = False) -> None:
        self._path = root / LOCK
        self._descriptor = -1
        self._passing = passing
        self._before = b""

    def acquire(self) -> None:
        """Take the lock.

        Raises:
            RunDirLocked: A live coordinator has it; the message names host and process.
            StoreFull: The lock file cannot be written.
        """
        with refusing_clearly(self._path):
            self._descriptor = open_plain(self._path, os.O_RDWR | os.O_CREAT)
        try:
            self._take()
            with refusing_clearly(self._path):
                self._sign()
        except BaseException:
            os.close(self._descriptor)
            self._descriptor = -1
            raise

    def _take(self) -> None:
        try:
            self._try()
        except BlockingIOError:
            raise RunDirLocked(
                f"{self._path.parent} is in use by another coordinator ({self._owner()}). Wait for it, stop it "
                "with Ctrl-C or SIGTERM, or choose another --run-dir.",
                path=str(self._path.parent),
            ) from None
        except OSError as error:
            # A file system without locks: say so rather than pretend.
            raise StoreError(
                f"{self._path.parent} is on a file system without file locks ({error.strerror}); put the run "
                "directory elsewhere (scratch, home).",
                path=str(self._path.parent),
            ) from error

    def _sign(self) -> None:
        self._before = os.pread(self._descriptor, 4096, 0)
        text = json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "since": time.time()})
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, text.encode(), 0)

    def _try(self) -> None:
        for tries_left in reversed(range(_TRIES)):
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if not tries_left:
                    raise
                time.sleep(_PAUSE_S)  # somebody may only be looking, see `holder`

    def _owner(self) -> str:
        return str(_written(self._descriptor) or "its process is not recorded")

    def release(self) -> None:
        """Free the lock; harmless when it is not held."""
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                if self._passing:
                    os.ftruncate(self._descriptor, 0)
                    os.pwrite(self._descriptor, self._before, 0)
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            os.close(self._descriptor)
            self._descriptor = -1


@dataclass(frozen=True, slots=True)
class Holder:
    """The coordinator that has, or had, a run directory.

    Attributes:
        host: Its machine.
        pid: Its process there.
        since: When it took the directory: Unix time, in seconds.
    """

    host: str
    pid: int
    since: float

    def __str__(self) -> str:
        try:
            since = time.strftime("%Y-%m-%d %H:%M", time.localtime(self.since))
        except (OverflowError, ValueError, OSError):
            since = f"{self.since} s"
        return f"process {self.pid} on {self.host}, since {since}"


def holder(root: str | Path) -> tuple[bool, Holder | None]:
    """Say whether a coordinator has a run directory, and which one has it or had it last.

    Where a file system keeps locks to each machine, a coordinator on another one is not seen.
    """
    try:
        descriptor = open_plain(Path(root) / LOCK, os.O_RDONLY)
    except OSError:
        return False, None
    try:
        try:
            # There is no way to look at a flock without trying; it is given back at once.
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True, _written(descriptor)
        except OSError:
            return False, _written(descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        return False, _written(descriptor)
    finally:
        os.close(descriptor)


def _written(descriptor: int) -> Holder | None:
    try:
        data = json.loads(os.pread(descriptor, 4096, 0))
        return Holder(str(data["host"]), int(data["pid"]), float(data["since"]))
    except (ValueError, KeyError, TypeError, OSError, OverflowError, RecursionError):
        return None
