"""The campaigns below a folder, a line each: what each asked, how far it is, and who is at it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hpcagent.campaign.counts import told_note
from hpcagent.campaign.folders import DEPTH, find_campaigns
from hpcagent.campaign.numbers import with_error
from hpcagent.campaign.recorded import Snapshot, snapshot
from hpcagent.campaign.standing import ROLE
from hpcagent.campaign.sweep_runs import PlannedRuns
from hpcagent.errors import HpcAgentError
from hpcagent.runs.on_disk import usage_of
from hpcagent.runs.status import best_run
from hpcagent.shown import size_text
from hpcagent.sites.ledger import read_ledger
from hpcagent.store.rundir import Holder, RunDir, holder

__all__ = [
    "Listed",
    "RunList",
    "list_runs",
]


States = Literal["running", "submitted", "ended", "stopped", "damaged"]


@dataclass(frozen=True, slots=True)
class Listed:
    """One campaign among others.

    Attributes:
        folder: Where it is.
        state: `running`: a coordinator has the folder. `submitted`: nobody has it, but a job of a coordinator has
            no end in its ledger (the scheduler is not asked). `ended`: it is over. `stopped`: it can go on.
            `damaged`: it cannot be read, or not by this user.
        why: Why it ended, or what is wrong; empty otherwise.
        name: The campaign's; empty if it cannot be read.
        app: Name and version of its app.
        sweep: Whether it has no objective.
        runs: Runs that have ended.
        planned: Runs in all, or None where nothing bounds them.
        points: Distinct points among the runs that completed.
        best: The best single run in words (it is not the answer), or the number of points of a sweep.
        node_hours: Of the runs.
        written_at: When something was recorded last: Unix time, in seconds.
        coordinator: Who has the folder; None where nobody has, or that was not written down.
        site: Where it ran last, by the name of the site; empty where that is not known.
        size: Bytes on the disk, where that was asked for.
        files: Files and folders, likewise.
    """

    folder: Path
    state: States
    why: str = ""
    name: str = ""
    app: str = ""
    sweep: bool = False
    runs: int = 0
    planned: int | None = None
    points: int = 0
    best: str = ""
    node_hours: float = 0.0
    written_at: float | None = None
    coordinator: Holder | None = None
    site: str = ""
    size: int | None = None
    files: int | None = None

    def data(self) -> dict[str, Any]:
        """As plain data; times in Unix seconds, sizes in bytes."""
        who = self.coordinator
        return {
            "folder": str(self.folder),
            "name": self.name,
            "app": self.app,
            "sweep": self.sweep,
            "state": self.state,
            "why": self.why,
            "site": self.site,
            "coordinator": None if who is None else {"host": who.host, "pid": who.pid, "since": who.since},
            "runs": self.runs,
            "planned": self.planned,
            "points": self.points,
            "best": self.best,
            "node_hours": self.node_hours,
            "written_at": self.written_at,
            "size_bytes": self.size,
            "files": self.files,
        }

    @property
    def state_text(self) -> str:
        """The state, and where it runs."""
        if self.state != "running":
            return self.state
        where = f" on {self.site}" if self.site else ""
        who = self.coordinator
        return f"running{where}" + (f", process {who.pid} on {who.host}" if who else "")

    @property
    def name_text(self) -> str:
        """The folder, and the campaign's name where that is another."""
        return str(self.folder) + (f" ({self.name})" if self.name not in ("", self.folder.name) else "")


@dataclass(frozen=True, slots=True)
class RunList:
    """Campaigns below a folder; prints as a table, `for one in list_runs()` gives each.

    Attributes:
        root: The folder that was looked into.
        campaigns: What was found, by folder.
        depth: Folders below `root` that were looked into.
        unread: Folders that could not be looked into.
    """

    root: Path
    campaigns: tuple[Listed, ...]
    depth: int
    unread: tuple[Path, ...] = ()

    def __iter__(self) -> Iterator[Listed]:
        return iter(self.campaigns)

    def __len__(self) -> int:
        return len(self.campaigns)

    def __str__(self) -> str:
        lines = [f"{path} cannot be read" for path in self.unread]
        if not self.campaigns:
            return "\n".join([f"no campaign in {self.root}, nor {self.depth} folders below it", *lines])
        sized = any(one.size is not None for one in self.campaigns)
        head = ["campaign", "app", "state", "runs", "best run", "node-hours", "last"] + ["size"] * sized
        rows = [head, *(_cells(one, sized) for one in self.campaigns)]
        widths = [max(len(row[i]) for row in rows if len(row) > i + 1) for i in range(len(head) - 1)]
        for row in rows:
            padded = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
            lines.append("  ".join([*padded[: len(row) - 1], row[-1]]).rstrip())
        return "\n".join(lines)


def _cells(one: Listed, sized: bool) -> list[str]:
    if one.state == "damaged":
        return [one.name_text, f"cannot be read: {one.why}"]
    cells = [
        one.name_text,
        one.app,
        one.state_text,
        f"{one.runs}" if one.planned is None else f"{one.runs}/{one.planned}",
        one.best or "none",
        f"{one.node_hours:.2g}",
        "" if one.written_at is None else f"{_age(time.time() - one.written_at)} ago",
    ]
    if sized:
        cells.append("" if one.size is None else f"{size_text(one.size)} in {one.files} files")
    return cells


def _age(seconds: float) -> str:
    """A time span in its largest unit.

    Example:
        >>> _age(75), _age(86400 * 3.2)
        ('1 min', '3 d')
    """
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{int(seconds // length)} {unit}"
    return f"{max(0, int(seconds))} s"


def list_runs(folder: str | Path = "runs", *, depth: int = DEPTH, size: bool = False) -> RunList:
    """Say of each campaign below a folder how far it is and who is at it. Reads each journal once, fits nothing.

    Args:
        folder: Where to look; may be a campaign's own folder.
        depth: How many folders below it. What is inside a campaign's folder is not looked into, nor are links.
        size: Also add up what each takes on the disk: one look at each of its files.

    Raises:
        BadInput: There is no such folder.

    Example:
        >>> import tempfile
        >>> from hpcagent.runs.run import run
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = run("synthetic", site="threads", run_dir=f"{folder}/a/b")
        ...     [(one.name, one.state, one.runs, one.planned) for one in list_runs(folder)]
        [('synthetic', 'ended', 36, 36)]
    """
    root = Path(folder).expanduser()
    unread: list[Path] = []
    found = sorted(find_campaigns(root, depth=depth, unread=unread))
    return RunList(root, tuple(_listed(path, size=size) for path in found), depth, tuple(unread))


def _listed(path: Path, *, size: bool) -> Listed:
    space, files = None, None
    if size:
        whole = usage_of(path).total
        space, files = whole.size, whole.files
    folder = RunDir(path)
    if not folder.exists:
        why = "it has no events.jsonl: a coordinator has not begun, or the file is gone"
        return Listed(path, "damaged", why, size=space, files=files)
    try:
        read = snapshot(path)
        return _in_brief(read, space, files)
    except HpcAgentError as error:
        return Listed(path, "damaged", str(error), size=space, files=files)
    except (OSError, ValueError) as error:  # one folder is not to hide the others
        return Listed(path, "damaged", f"{type(error).__name__}: {error}", size=space, files=files)


def _in_brief(read: Snapshot, space: int | None, files: int | None) -> Listed:
    campaign, state, path = read.campaign, read.state, read.folder.root
    points = len({tuple(sorted(r.manifest.params.items())) for r in read.results if r.ok})
    called: States = "stopped"
    if read.attended:
        called = "running"
    elif read.reason is not None:
        called = "ended"
    elif any(e.ended is None and (e.about or {}).get("role") == ROLE for e in read_ledger(read.folder.jobs)):
        called = "submitted"
    written: float | None = None
    with contextlib.suppress(OSError):
        written = read.folder.events.stat().st_mtime
    return Listed(
        path,
        called,
        "" if read.reason is None else state.why_stopped(read.reason),
        name=campaign.name,
        app=f"{campaign.app.name} {campaign.app.contract.version}",
        sweep=campaign.sweep,
        runs=state.ended - state.elsewhere,  # what was told is no run
        planned=PlannedRuns(campaign).count(state.manifests),
        points=points,
        best=f"{points} point{'' if points == 1 else 's'}" if campaign.sweep else _best_text(read),
        node_hours=state.node_hours,
        written_at=written,
        coordinator=holder(path)[1] if read.attended else None,
        site=state.site,
        size=space,
        files=files,
    )


def _best_text(read: Snapshot) -> str:
    """What the objective aims at, of the best run."""
    best = best_run(read)
    if best is None:
        return ""
    contract = read.campaign.app.contract
    units = {m.name: m.unit for m in contract.metrics} | best.units
    said = []
    for goal in read.campaign.objective.goals:
        value = best.metrics.get(goal.metric)
        unit = units.get(goal.metric, "1")
        error = best.uncertainty.get(goal.metric)
        shown = "estimated" if value is None else with_error(value, error) + ("" if unit == "1" else f" {unit}")
        said.append(f"{goal.metric} = {shown}")
    return ", ".join(said) + told_note(best)
