"""What campaigns take on the disk: bytes and inodes, by kind, and what could be freed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hpcagent.apps.run_records import FOLDER
from hpcagent.campaign.far import Far, far_files
from hpcagent.campaign.folders import DEPTH, find_campaigns
from hpcagent.campaign.recorded import Snapshot, snapshot
from hpcagent.errors import HpcAgentError
from hpcagent.shown import size_text

__all__ = ["DiskUse", "FileKinds", "Space", "Usage", "disk_use", "freeable", "kind_of", "usage_of"]

FileKinds = Literal["records", "work", "logs", "trajectories"]
KINDS: Mapping[FileKinds, str] = {
    "records": "journal, metrics, reports, and the files that parameters choose from",
    "work": "inputs and outputs of runs",
    "logs": "what programs, workers and coordinators printed",
    "trajectories": "configurations of runs: dumps, trajectories, restart files",
}
_TRAJECTORY = re.compile(
    r".*\.(?:dump|lammpstrj|traj|dcd|xtc|trr|ncdf|restart\d*|rst\d*|chk|gpw|wfc\d*|hdf5traj)(?:\.\d+|\.gz)?"
    r"|(?:dump|restart|traj)\..*|CHGCAR|WAVECAR|XDATCAR|AECCAR\d|CHG"
)
_LOG = re.compile(r".*\.(?:log|out|err|stdout|stderr)|log\..*|output\.txt|gpaw\.txt")
LARGEST = 5


@dataclass(frozen=True, slots=True)
class Space:
    """Room on a disk.

    Attributes:
        size: Bytes that are allocated; a file with several names in a campaign counts once.
        files: Inodes: files, folders and links.
    """

    size: int = 0
    files: int = 0

    def __add__(self, other: Space) -> Space:
        return Space(self.size + other.size, self.files + other.files)

    def __str__(self) -> str:
        return f"{size_text(self.size)} in {self.files} file{'' if self.files == 1 else 's'}"

    def data(self) -> dict[str, int]:
        """As plain data, in bytes."""
        return {"size_bytes": self.size, "files": self.files}


@dataclass(frozen=True, slots=True)
class Usage:
    """What one campaign takes.

    Attributes:
        folder: The campaign's.
        kinds: Kind of file -> what it takes; see `KINDS`.
        runs: Execution id -> what its own folder takes.
        freeable: What `hpcagent rm --keep-records` would free; None where that is not known.
        unread: Folders in it that cannot be read.
        problem: Why it is not known what could be freed.
        far: What lies on endpoints, as it was recorded when each run ended; it is not in the total.
    """

    folder: Path
    kinds: Mapping[FileKinds, Space]
    runs: Mapping[str, Space]
    freeable: Space | None = None
    unread: int = 0
    problem: str = ""
    far: tuple[Far, ...] = ()

    @property
    def total(self) -> Space:
        """All of it."""
        return sum(self.kinds.values(), Space())

    @property
    def largest(self) -> tuple[tuple[str, Space], ...]:
        """The folders of the runs that take most, the largest first."""
        return tuple(sorted(self.runs.items(), key=lambda one: (-one[1].size, one[0]))[:LARGEST])

    def data(self) -> dict[str, Any]:
        """As plain data; sizes in bytes."""
        return {
            "folder": str(self.folder),
            **self.total.data(),
            "kinds": {kind: space.data() for kind, space in self.kinds.items()},
            "largest_runs": [{"execution_id": name, **space.data()} for name, space in self.largest],
            "freeable": None if self.freeable is None else self.freeable.data(),
            "unread_folders": self.unread,
            "problem": self.problem,
            "far": [far.data() for far in self.far],
        }

    def __str__(self) -> str:
        lines = [f"{self.folder}: {self.total}"]
        lines += [f"  {kind:12} {space}" for kind, space in self.kinds.items() if space.files]
        if len(self.runs) > 1:
            some = ", ".join(f"{name} {size_text(space.size)}" for name, space in self.largest)
            lines.append(f"  largest runs {some}")
        if self.unread:
            lines.append(f"  {self.unread} folder(s) in it cannot be read and are not counted")
        if self.freeable is None:
            lines.append(f"  what could be freed is not known: {self.problem}")
        elif self.freeable.files:
            lines.append(f"  `hpcagent rm {self.folder} --keep-records` would free {self.freeable}")
        lines += [f"  not here: {far}" for far in self.far]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class DiskUse:
    """What the campaigns below a folder take.

    Attributes:
        root: The folder that was looked into.
        campaigns: Each of them, the largest first.
        unread: Folders beside them that cannot be read.
    """

    root: Path
    campaigns: tuple[Usage, ...]
    unread: tuple[Path, ...] = ()

    @property
    def total(self) -> Space:
        """All campaigns together."""
        return sum((one.total for one in self.campaigns), Space())

    def __iter__(self) -> Iterator[Usage]:
        return iter(self.campaigns)

    def __len__(self) -> int:
        return len(self.campaigns)

    def __str__(self) -> str:
        lines = [f"{path} cannot be read" for path in self.unread] + [str(one) for one in self.campaigns]
        if not self.campaigns:
            lines.append(f"no campaign in {self.root}")
        elif len(self.campaigns) > 1:
            free = sum((one.freeable for one in self.campaigns if one.freeable is not None), Space())
            lines.append(f"{len(self.campaigns)} campaigns: {self.total}; {free} of runs could be freed")
        return "\n".join(lines)


def disk_use(folder: str | Path = "runs", *, depth: int = DEPTH) -> DiskUse:
    """Add up what the campaigns below a folder take on the disk: one look at each file; links are not followed.

    Args:
        folder: Where to look; may be a campaign's own folder.
        depth: How many folders below it.

    Raises:
        BadInput: There is no such folder.

    Example:
        >>> import tempfile
        >>> from hpcagent.runs.run import run
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = run("synthetic", site="threads", run_dir=f"{folder}/a")
        ...     used = disk_use(folder)
        >>> used.campaigns[0].kinds["records"].files > 3, used.campaigns[0].freeable.files  # no run has files
        (True, 0)
    """
    unread: list[Path] = []
    found = [usage_of(path, free=True) for path in find_campaigns(folder, depth=depth, unread=unread)]
    found.sort(key=lambda one: (-one.total.size, str(one.folder)))
    return DiskUse(Path(folder).expanduser(), tuple(found), tuple(unread))


def usage_of(folder: Path, *, free: bool = False) -> Usage:
    """Add up what one campaign takes.

    Args:
        folder: The campaign's.
        free: Also say what could be freed; takes its journal.
    """
    kinds: dict[FileKinds, Space] = dict.fromkeys(KINDS, Space())
    runs: dict[str, Space] = {}
    seen: set[tuple[int, int]] = set()
    unread = 0
    below: list[tuple[str, ...]] = [()]
    itself = folder.stat()
    kinds["records"] = Space(itself.st_blocks * 512, 1)
    while below:
        parts = below.pop()
        try:
            found = list(os.scandir(folder.joinpath(*parts)))
        except OSError:
            unread += 1
            continue
        for entry in found:
            inner = (*parts, entry.name)
            try:
                status = entry.stat(follow_symlinks=False)
                is_folder = entry.is_dir(follow_symlinks=False)
            except OSError:
                continue  # a run that goes on has just removed it
            if (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
            space = Space(status.st_blocks * 512, 1)  # stat(2): blocks of 512 bytes, whatever the file system
            kind = "work" if is_folder and inner[0] == "work" else kind_of(inner)
            kinds[kind] += space
            if inner[0] == "work" and len(inner) > 1 and inner[1] != FOLDER:
                runs[inner[1]] = runs.get(inner[1], Space()) + space
            if is_folder:
                below.append(inner)
    usage = Usage(folder, kinds, runs, unread=unread)
    if not free:
        return usage
    try:
        read = snapshot(folder)
        ids = freeable(read)
    except (HpcAgentError, OSError, ValueError) as error:
        return Usage(folder, kinds, runs, None, unread, str(error))
    far = far_files((*read.results, *read.state.part_results.values()))
    return Usage(folder, kinds, runs, sum((runs[i] for i in ids if i in runs), Space()), unread, far=far)


def kind_of(parts: tuple[str, ...]) -> FileKinds:
    """What a file of a campaign is, by its path in the campaign's folder.

    Example:
        >>> kind_of(("events.jsonl",)), kind_of(("work", "a1", "result.json")), kind_of(("work", "a1", "md.traj"))
        ('records', 'work', 'trajectories')
        >>> kind_of(("work", "a1", "log.lammps")), kind_of(("parsl", "000", "parsl.log"))
        ('logs', 'logs')
    """
    top, name = parts[0], parts[-1]
    if parts[:2] == ("work", FOLDER):
        return "records"
    if top in ("parsl", "coordinator") or top == "coordinator.log":
        return "logs"
    if top != "work":
        return "records"
    if _TRAJECTORY.fullmatch(name):
        return "trajectories"
    return "logs" if _LOG.fullmatch(name) else "work"


def freeable(read: Snapshot) -> frozenset[str]:
    """Execution ids of the runs whose folders hold nothing that the record lacks, and that going on would need.

    That is: the journal itself has their final result, and no chain that is still to be run asks for them.
    """
    state = read.state
    lost = state.damage.read_from_work | {m.execution_id for m in state.damage.unrecorded}
    done = {i for i in state.results if state.final(i)} - lost
    parts = {i for i in state.part_results if state.final_part(i)} - lost
    return frozenset(done | {i for i in parts if _asked_by(i, state.parts) in done})


def _asked_by(identity: str, parts: Mapping[str, str]) -> str:
    """The run of the campaign itself that an inner run belongs to, through chains in chains."""
    seen: set[str] = set()
    while identity in parts and identity not in seen:
        seen.add(identity)
        identity = parts[identity]
    return identity
