"""A campaign in one file, which opens elsewhere, read only: what is in it, what was left out, digests of all."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import tarfile
import time
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

from pydantic_core import to_json

from hpcagent.apps.run_records import FOLDER
from hpcagent.campaign.recorded import snapshot
from hpcagent.errors import BadInput
from hpcagent.runs.masking import Masking
from hpcagent.runs.on_disk import Space, kind_of
from hpcagent.shown import size_text
from hpcagent.store.files import open_plain, refusing_clearly

__all__ = ["CONTENTS", "FORMAT", "Archived", "archive", "is_record"]

FORMAT = "hpcagent archive 1"
CONTENTS = "archive.json"
"""The first file of an archive: what is in it, and what was left out."""
LARGEST = 1 << 20
"""Files of runs up to this size, in bytes, are taken without `with_work`."""
_WHOLE = 1 << 26
"""Text is read whole, to be masked, up to this size, in bytes."""
# The journal first: it names the hosts that are masked in all others.
_RECORDS = ("events.jsonl", "campaign.toml", "app.json", "enqueued.jsonl", "jobs.jsonl", "site.toml")
_DERIVED = ("metrics.h5", "results.csv", "results.parquet")
_OF_RUNS = ("manifest.json", "result.json")
_JSON = frozenset({"app.json", "manifest.json", "result.json", "call.json", "outcome.json"})
_TOLD = 1000


def is_record(name: str) -> bool:
    """Whether a reader of the archive needs a file, by its path in the campaign's folder.

    Example:
        >>> is_record("events.jsonl"), is_record("work/records/n1-7-ab.jsonl"), is_record("work/a1/log.lammps")
        (True, True, False)
    """
    parts = name.split("/")
    of_run = len(parts) == 3 and parts[0] == "work" and (parts[1] == FOLDER or parts[2] in _OF_RUNS)
    return name in _RECORDS or of_run


@dataclass(frozen=True, slots=True)
class Archived:
    """What went into an archive.

    Attributes:
        path: The file.
        size: Its size in bytes.
        packed: What is in it, unpacked.
        left_out: Path in the campaign's folder (`...` for more) -> why it is not in it.
        left: Room on the disk of what was left out.
        notes: What else whoever passes it on should know, a sentence each without a full stop.
    """

    path: Path
    size: int
    packed: Space
    left_out: Mapping[str, str]
    left: Space
    notes: tuple[str, ...] = ()

    def data(self) -> dict[str, Any]:
        """As plain data; sizes in bytes."""
        return {
            "path": str(self.path),
            "size_bytes": self.size,
            "packed": self.packed.data(),
            "left_out": {**self.left.data(), "why": _by_reason(self.left_out)},
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        lines = [f"{self.path}: {size_text(self.size)}, {self.packed}"]
        lines += [f"left out: {n} file(s), {why}" for why, n in _by_reason(self.left_out).items()]
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join(lines)


def _by_reason(left_out: Mapping[str, str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for why in left_out.values():
        counts[why] = counts.get(why, 0) + 1
    return counts


@dataclass(frozen=True, slots=True)
class _Member:
    """A file on its way into an archive: its content, or where it is read from."""

    name: str
    size: int
    digest: str
    modified: float
    content: bytes | None
    source: Path


def archive(
    run_dir: str | Path, output: str | Path, *, with_work: bool = False, largest: int = LARGEST
) -> Archived:
    """Write a campaign into one file, which `open_run` opens anywhere, read only.

    Paths are relative to the campaign's folder; absolute ones, hosts, users and secrets are masked in all text
    (`Masking`). Links are not followed. Whatever is left out is named in the archive and in what is returned. The
    digests tell damage; they are no signature.

    Args:
        run_dir: The campaign's folder; nothing in it is changed.
        output: The file, `.tar.gz`, `.tgz` or `.zip`; must not be there.
        with_work: All files of runs and logs, also large and binary ones, which cannot be masked.
        largest: Without it: text files of runs up to this size, in bytes.

    Raises:
        BadInput: The folder is not that of a campaign, the file's name ends otherwise or is taken, or a file
            changed meanwhile.
        StoreFull: It cannot be written.

    Example:
        >>> import tempfile
        >>> from hpcagent.runs.run import run
        >>> from hpcagent.runs.opened import open_run
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = run("synthetic", site="threads", run_dir=f"{folder}/a")
        ...     made = archive(f"{folder}/a", f"{folder}/a.tar.gz")
        ...     len(open_run(made.path).results)
        36
    """
    root, path = Path(run_dir).expanduser(), Path(output).expanduser()
    writer = _writer_of(path)
    if os.path.lexists(path):
        raise BadInput(f"{path} is there already; name another file with -o.", value=str(path))
    read = snapshot(root)
    packing = _Packing(root, with_work=with_work, largest=largest)
    members = packing.members()
    runs = len(read.state.manifests)
    notes = packing.notes()
    if read.attended:
        notes += ("a coordinator was at it: it is as it stood then",)
    contents = {
        "format": FORMAT,
        "made_at": time.time(),
        "campaign": read.campaign.name,
        "runs": runs,
        "with_work": with_work,
        "files": {m.name: {"size": m.size, "sha256": m.digest} for m in members},
        "left_out": dict(list(packing.left_out.items())[:_TOLD]),
        "left_out_in_all": {"files": len(packing.left_out), "size_bytes": packing.left.size},
        "notes": notes,
    }
    part = path.with_name(path.name + ".part")
    with refusing_clearly(path):
        try:
            with writer(part) as put:
                text = to_json(contents, indent=2)
                put(_Member(CONTENTS, len(text), "", time.time(), text, root))
                for member in members:
                    put(member)
            part.rename(path)
        finally:
            part.unlink(missing_ok=True)
    packed = Space(sum(m.size for m in members), len(members))
    return Archived(path, path.stat().st_size, packed, packing.left_out, packing.left, notes)


class _Packing:
    """Chooses the files of a campaign that go into an archive, and masks them."""

    def __init__(self, root: Path, *, with_work: bool, largest: int) -> None:
        self._root, self._all, self._largest = root, with_work, largest
        self._masking = Masking(root)
        self._raw = 0
        self.left_out: dict[str, str] = {}
        self.left = Space()

    def notes(self) -> tuple[str, ...]:
        """What whoever passes it on should know."""
        said = ["absolute paths, hosts, users and secrets are masked in its text files"]
        if self._masking.left:
            some = list(self._masking.left)
            said.append(
                f"{len(some)} absolute path(s) stay, in parameters or elsewhere: {', '.join(some[:3])}"
                + (", ..." if len(some) > 3 else "")
            )
        if self._raw:
            said.append(f"{self._raw} binary or large file(s) are as they are: what they tell is not masked")
        return tuple(said)

    def members(self) -> list[_Member]:
        """The files, the records first."""
        names = [(name,) for name in _RECORDS if (self._root / name).is_file()]
        found = [(m,) for name in names if (m := self._member(name)) is not None]
        below: list[tuple[str, ...]] = [()]
        others: list[_Member] = []
        while below:
            parts = below.pop()
            for entry in sorted(os.scandir(self._root.joinpath(*parts)), key=lambda e: e.name):
                inner = (*parts, entry.name)
                if inner in names or inner == (".lock",):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    if why := self._no_folder(inner):
                        self._leave(inner, why, entry)
                    else:
                        below.append(inner)
                elif why := self._no_file(inner, entry):
                    self._leave(inner, why, entry)
                elif (member := self._member(inner)) is not None:
                    others.append(member)
        # What a reader needs comes first: it need not read on.
        others.sort(key=lambda m: (not is_record(m.name), m.name))
        return [m for (m,) in found] + others

    def _no_folder(self, inner: tuple[str, ...]) -> str:
        if inner[0] in ("parsl", "coordinator") and not self._all:
            return "logs of workers and jobs"
        if len(inner) == 1 and inner[0] not in ("work", "report", "files", "parsl", "coordinator"):
            return "no campaign writes it"
        return ""

    def _no_file(self, inner: tuple[str, ...], entry: os.DirEntry[str]) -> str:
        if not stat.S_ISREG(entry.stat(follow_symlinks=False).st_mode):
            return "links and special files are not followed"
        name = inner[-1]
        if len(inner) == 1 and name in _DERIVED:
            return "`hpcagent export` writes them anew"
        if len(inner) == 1 and name not in ("coordinator.log", "coordinator.sh"):
            return "no campaign writes it"
        if name.endswith(".part"):
            return "it is being written"
        if self._all or inner[0] in ("report", "files") or is_record("/".join(inner)):
            return ""
        if kind_of(inner) == "trajectories":
            return "trajectories and restart files (--with-work takes them)"
        if entry.stat(follow_symlinks=False).st_size > self._largest:
            return f"larger than {size_text(self._largest)} (--with-work takes them)"
        return ""

    def _leave(self, inner: tuple[str, ...], why: str, entry: os.DirEntry[str]) -> None:
        from hpcagent.runs.on_disk import usage_of

        path = self._root.joinpath(*inner)
        folder = entry.is_dir(follow_symlinks=False)
        self.left_out["/".join(inner) + ("/" if folder else "")] = why
        self.left += usage_of(path).total if folder else Space(path.lstat().st_blocks * 512, 1)

    def _member(self, inner: tuple[str, ...]) -> _Member | None:
        """A file, masked where it is text."""
        path, name = self._root.joinpath(*inner), "/".join(inner)
        with os.fdopen(open_plain(path, os.O_RDONLY), "rb") as file:
            status = os.fstat(file.fileno())
            if status.st_size > _WHOLE and not is_record(name):
                digest = hashlib.file_digest(file, "sha256").hexdigest()
                self._raw += 1
                return _Member(name, status.st_size, digest, status.st_mtime, None, path)
            content = file.read()
        if inner[0] != "files":  # a parameter's file is known by its content
            shown = self._masked(inner, content)
            if shown is None and not self._all and inner[0] == "work":
                self.left_out[name] = "binary (--with-work takes them)"
                self.left += Space(status.st_blocks * 512, 1)
                return None
            self._raw += shown is None and inner[0] != "report"
            content = content if shown is None else shown
        else:
            self._raw += 1
        return _Member(name, len(content), hashlib.sha256(content).hexdigest(), status.st_mtime, content, path)

    def _masked(self, inner: tuple[str, ...], content: bytes) -> bytes | None:
        """A text without what it tells of this machine; None where it is none."""
        name = inner[-1]
        try:
            if name.endswith(".jsonl"):
                return self._masking.lines(content)
            if name in _JSON:
                return self._masking.json(content)
            if len(inner) == 1 and name.endswith(".toml"):
                return self._masking.toml(content)
        except ValueError:
            pass  # it is damaged: as text
        if b"\0" in content[:8192]:
            return None
        try:
            return self._masking.text(content.decode()).encode()
        except UnicodeDecodeError:
            return None


# ---- writing


class _Put(Protocol):
    def __call__(self, member: _Member) -> None: ...


def _writer_of(path: Path) -> Any:
    name = path.name.lower()
    if name.endswith((".tar.gz", ".tgz")):
        return _tar
    if name.endswith(".zip"):
        return _zip
    raise BadInput(f"{path}: an archive's name ends in .tar.gz, .tgz or .zip.", value=str(path))


@contextmanager
def _tar(path: Path) -> Iterator[_Put]:
    with (
        os.fdopen(open_plain(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file,
        tarfile.open(fileobj=file, mode="w:gz", format=tarfile.PAX_FORMAT) as whole,
    ):

        def put(member: _Member) -> None:
            info = tarfile.TarInfo(member.name)
            info.size, info.mtime, info.mode = member.size, int(member.modified), 0o644
            with _content(member) as content:
                whole.addfile(info, content)

        yield put


@contextmanager
def _zip(path: Path) -> Iterator[_Put]:
    with (
        os.fdopen(open_plain(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file,
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as whole,
    ):

        def put(member: _Member) -> None:
            at = time.gmtime(max(member.modified, 315532800.0))[:6]  # zip has no earlier time than 1980
            info = zipfile.ZipInfo(member.name, at)
            info.compress_type, info.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            with _content(member) as content, whole.open(info, "w", force_zip64=True) as into:
                while piece := content.read(1 << 20):
                    into.write(piece)

        yield put


@contextmanager
def _content(member: _Member) -> Iterator[IO[bytes]]:
    if member.content is not None:
        yield io.BytesIO(member.content)
        return
    with os.fdopen(open_plain(member.source, os.O_RDONLY), "rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != member.digest:
            raise BadInput(
                f"{member.source} changed while it was packed; wait until the campaign has stopped, or leave "
                "--with-work out.",
                value=str(member.source),
            )
        file.seek(0)
        yield file
