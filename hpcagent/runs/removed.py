"""Remove a campaign, or only the folders of its runs: what is its own, and nothing else."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import stat
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcagent.apps.run_records import FOLDER
from hpcagent.campaign.far import far_files
from hpcagent.campaign.recorded import Snapshot, snapshot
from hpcagent.errors import BadInput, HpcAgentError, RunDirLocked, StoreFull
from hpcagent.model.records import Result
from hpcagent.runs.on_disk import Space, freeable, usage_of
from hpcagent.sites.endpoint.tasks import open_tasks
from hpcagent.sites.ledger import read_ledger
from hpcagent.store.journal import Journal, read_events
from hpcagent.store.rundir import Lock, RunDir, holder

__all__ = ["Removal", "remove_run"]

_OWN = frozenset(
    {
        *("campaign.toml", "app.json", "events.jsonl", "events.torn", "enqueued.jsonl", "site.toml", "jobs.jsonl"),
        *("metrics.h5", "work", "files", "report", "results.csv", "results.parquet", "parsl", ".lock"),
        *("coordinator", "coordinator.log", "coordinator.sh", "transfers.jsonl"),
    }
)
"""What a campaign's folder may have; see docs/reference/run_directory.md."""
_LAST = ("app.json", "campaign.toml", "jobs.jsonl", "events.jsonl", ".lock")
"""Removed in this order at the end: what is left of an interrupted removal is still known as a campaign."""


@dataclass(frozen=True, slots=True)
class Removal:
    """What was removed, or would be.

    Attributes:
        folder: The campaign's.
        name: The campaign's; empty if it could not be read.
        keep_records: Whether only folders of runs go.
        done: Whether it was done, not only looked at.
        freed: What goes.
        runs: Execution ids of the runs whose folders go, with `keep_records`.
        kept: What stays although it is there, a sentence each without a full stop.
        failed: What could not be removed, and why.
    """

    folder: Path
    name: str
    keep_records: bool
    done: bool
    freed: Space
    runs: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()

    def data(self) -> dict[str, Any]:
        """As plain data; sizes in bytes."""
        return {
            "folder": str(self.folder),
            "name": self.name,
            "keep_records": self.keep_records,
            "done": self.done,
            **self.freed.data(),
            "runs": list(self.runs),
            "kept": list(self.kept),
            "failed": list(self.failed),
        }

    def __str__(self) -> str:
        verb = "removed" if self.done else "would remove"
        what = (
            f"the folders of {len(self.runs)} run(s) of {self.folder}" if self.keep_records else str(self.folder)
        )
        lines = [f"{verb} {what}: {self.freed}"]
        lines += [f"kept: {words}" for words in self.kept]
        lines += [f"not removed: {words}" for words in self.failed]
        return "\n".join(lines)


def remove_run(run_dir: str | Path, *, keep_records: bool = False, dry_run: bool = False) -> Removal:
    """Remove the folder of a campaign, or free the folders of its runs and keep what is on record.

    Only what a campaign writes is removed: other files in the folder stay, and are named. No link is followed.
    With `keep_records` the journal says that the folders are gone; `status`, `report`, `export`, `open_run` and
    `resume` work on, and no finished run is repeated. A folder stays whose run has not finished, or whose result
    only it has.

    Args:
        run_dir: The campaign's folder.
        keep_records: Remove only `work/EXECUTION_ID` of finished runs.
        dry_run: Say what would be removed; change nothing.

    Raises:
        BadInput: The folder is no campaign's, is another user's, is what one stands in, or jobs of it are open.
        RunDirLocked: A coordinator is at it, or may be on another machine.

    Example:
        >>> import tempfile
        >>> from hpcagent.runs.run import run
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = run("synthetic", site="threads", run_dir=folder)
        ...     remove_run(folder, dry_run=True).freed.files > 3
        True
    """
    folder = RunDir(run_dir)
    _refuse_other(folder)
    if dry_run:
        _refuse_attended(folder)
        return _look(folder, keep_records)[0]
    lock = Lock(folder.root, passing=True)
    lock.acquire()
    try:
        _refuse_attended(folder, locked=True)
        seen, gone = _look(folder, keep_records)
        if keep_records:
            failed = _free(folder, seen.runs, gone)
        else:
            failed = _remove_all(folder, gone)
    finally:
        lock.release()
        if not keep_records:
            _remove_rest(folder)
    freed = _less(seen.freed, [path for path in gone if _there(path)]) if failed else seen.freed
    return Removal(seen.folder, seen.name, keep_records, True, freed, seen.runs, seen.kept, tuple(failed))


def _refuse_other(folder: RunDir) -> None:
    """Refuse what is not a campaign's folder beyond doubt, or not this user's."""
    root = folder.root
    if root.is_symlink():
        raise BadInput(
            f"{root} is a symbolic link, to {root.readlink()}; name that folder itself.", value=str(root)
        )
    folder.require()
    if folder.events.is_symlink() or not folder.app.is_file():
        raise BadInput(
            f"{root} has an events.jsonl, but not all of what a campaign's folder has (app.json). "
            "Look at it, and remove it by hand.",
            value=str(root),
        )
    folder.require_own()
    here, real = Path.cwd(), root.resolve()
    if real == here or real in here.parents or real == Path.home() or real in Path.home().parents:
        raise BadInput(f"{root} is, or holds, the folder you are in or your home; go elsewhere first.")
    kinds = {"session", "warm_start", "manifests", "files", "results", "told", "changed", "stop", "damaged"}
    first = next(read_events(folder.events), None)
    if first is not None and first.get("event") not in kinds:
        raise BadInput(f"{folder.events} does not begin as a campaign's journal does; {root} is not removed.")


def _refuse_attended(folder: RunDir, *, locked: bool = False) -> None:
    """Refuse where somebody is, or may be, at the campaign."""
    root = folder.root
    held, who = holder(root) if not locked else (False, holder(root)[1])
    if held:
        raise RunDirLocked(
            f"{root} is in use by a coordinator ({who or 'its process is not recorded'}). Stop it first: "
            f"`hpcagent stop {root}`.",
            path=str(root),
        )
    opened = [e for e in read_ledger(folder.jobs) if e.ended is None]
    if opened:
        raise BadInput(
            f"{len(opened)} job(s) of {root} have no end in its ledger ({opened[0].job_id or opened[0].name}); "
            f"`hpcagent reap {root}` ends them and sees them gone. Then remove it.",
            value=str(root),
        )
    if tasks := open_tasks(folder.jobs):
        raise BadInput(
            f"{len(tasks)} task(s) of {root} on the endpoint {tasks[0].endpoint_id} have no end in its ledger; "
            f"`hpcagent reap {root}` ends them and sees them gone. Then remove it.",
            value=str(root),
        )
    session = _unended_session(folder)
    host = "" if session is None else str(session.get("host", ""))
    if host and host != socket.gethostname():
        raise RunDirLocked(
            f"The last coordinator of {root}, on {host}, has not written its end: it may still run there, where "
            f"its lock is not seen from here. Run `hpcagent rm` on {host}, or end it with `hpcagent resume`.",
            path=str(root),
        )


def _unended_session(folder: RunDir) -> dict[str, Any] | None:
    """The last session, where the journal does not tell that it ended."""
    session: dict[str, Any] | None = None
    for event in read_events(folder.events):
        if event.get("event") == "session":
            session = event
        elif event.get("event") in ("stop", "interrupted"):
            session = None
    return session


def _look(folder: RunDir, keep_records: bool) -> tuple[Removal, list[Path]]:
    """What would go, as a record and as paths."""
    root = folder.root
    read: Snapshot | None = None
    try:
        read = snapshot(root)
    except HpcAgentError:
        if keep_records:  # what the record has is not known
            raise
    kept = _linked(folder)
    usage = usage_of(root)
    name = "" if read is None else read.campaign.name
    if read is not None and read.campaign.cache is not None:
        kept.append(f"the cache that other campaigns may share, {read.campaign.cache}")
    if read is not None:
        kept += [f"{far}, which is not removed from there" for far in far_files(_all_results(read))]
    if not keep_records:
        names = sorted(entry.name for entry in os.scandir(root))
        gone = [root / one for one in names if _is_own(one)]
        foreign = [one for one in names if not _is_own(one)]
        if foreign:
            kept.append(f"{', '.join(foreign)} in {root}, which no campaign writes, and so the folder itself")
        freed = _less(usage.total, [root / one for one in foreign])
        return Removal(root, name, False, False, freed, (), tuple(kept)), gone
    assert read is not None
    ids = freeable(read)
    runs = () if folder.work.is_symlink() else tuple(sorted(i for i in ids if _there(folder.work / i)))
    if folder.work.is_symlink():
        kept.append("all folders of runs, as work/ is a link: free them where it leads")
    others = [] if folder.work.is_symlink() else sorted(set(_names(folder.work)) - ids - {FOLDER})
    if others:
        some = ", ".join(others[:3]) + (", ..." if len(others) > 3 else "")
        kept.append(f"{len(others)} folder(s) of runs that have not finished, or that the journal lacks: {some}")
    freed = sum((usage.runs.get(i, Space()) for i in runs), Space())
    return Removal(root, name, True, False, freed, runs, tuple(kept)), [folder.work / i for i in runs]


def _all_results(read: Snapshot) -> Iterable[Result]:
    return (*read.results, *read.state.part_results.values())


def _less(whole: Space, left: Iterable[Path]) -> Space:
    """What is gone of `whole` where these are left."""
    there = sum(map(_space, left), Space())
    return Space(whole.size - there.size, whole.files - there.files)


def _space(path: Path) -> Space:
    """What a file, or a folder with all in it, takes."""
    if path.is_dir() and not path.is_symlink():
        return usage_of(path).total
    return Space(path.lstat().st_blocks * 512, 1)


def _is_own(name: str) -> bool:
    return name.removesuffix(".part") in _OWN or name.startswith(("results.csv.", "results.parquet."))


def _linked(folder: RunDir) -> list[str]:
    """Folders of the campaign that are links: the link goes, what it leads to stays."""
    paths = (folder.work, folder.parsl, folder.report, folder.root / "coordinator", folder.root / "files")
    return [f"what {path} leads to, {path.readlink()}" for path in paths if path.is_symlink()]


def _names(work: Path) -> list[str]:
    try:
        return [entry.name for entry in os.scandir(work)]
    except OSError:
        return []


def _there(path: Path) -> bool:
    return os.path.lexists(path)


def _free(folder: RunDir, runs: Iterable[str], gone: Iterable[Path]) -> list[str]:
    """Remove folders of runs, and write that down: before it is done, unless the disk is too full for a line."""
    event = {"event": "freed", "at": time.time(), "runs": list(runs)}
    if not event["runs"]:
        return []
    written = False
    with contextlib.suppress(StoreFull):
        _note(folder, event)
        written = True
    failed = _remove_all(folder, gone)
    if not written:
        _note(folder, event)
    return failed


def _note(folder: RunDir, event: dict[str, Any]) -> None:
    journal = Journal.open(folder.events)
    try:
        journal.append([event])
    finally:
        journal.close()


def _remove_all(folder: RunDir, gone: Iterable[Path]) -> list[str]:
    """Remove files and folders, the work first, the journal last; returns what could not be removed, and why."""
    ordered = sorted(gone, key=lambda path: (path.name != "work", path.name))
    last = [folder.root / name for name in _LAST[:-1]]
    failed = [wrong for path in ordered if path not in (*last, folder.root / ".lock") and (wrong := _remove(path))]
    if not failed:
        failed = [wrong for path in last if path in ordered and (wrong := _remove(path))]
    return failed


def _remove(path: Path) -> str:
    """Remove what has this name, of a link the link; returns what is wrong, or nothing."""
    try:
        if stat.S_ISDIR(path.lstat().st_mode):
            shutil.rmtree(path)  # never follows a link, also where one is put there meanwhile
        else:
            path.unlink()
    except OSError as error:
        return f"{error.filename or path} ({error.strerror or error})"
    return ""


def _remove_rest(folder: RunDir) -> None:
    """Remove the lock and the folder itself, where nothing else is left in it."""
    with contextlib.suppress(OSError):
        if not folder.exists:
            (folder.root / ".lock").unlink(missing_ok=True)
            folder.root.rmdir()
