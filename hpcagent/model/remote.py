"""Where a run's files lie that was run on an endpoint: their names, sizes and SHA-256, as the endpoint said."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from hpcagent.errors import BadInput, in_brief
from hpcagent.model.base import Record
from hpcagent.model.texts import Line, Shown, line
from hpcagent.shown import size_text

__all__ = ["MOST_LISTED", "FarFile", "FarPath", "Remote", "far_path"]

MOST_LISTED = 64
"""Files that a record lists. A run of LAMMPS has about ten; a record stands in the journal for each run."""

_MOST_NAMED = 8 * MOST_LISTED
"""Artifacts that are listed beyond that."""

_SHA256 = re.compile(r"[0-9a-f]{64}\Z")
_LONGEST_PATH = 3000
_LONGEST_PART = 240
"""Bytes of a file's name: file systems take 255, and a file that is being fetched has something added."""


def far_path(text: str) -> str:
    """The path of a file below a run's directory, as somebody else gave it: it leads nowhere else.

    Raises:
        BadInput: It is absolute, has `..` in it, or is no file's name.

    Example:
        >>> far_path("dump/run.lammpstrj")
        'dump/run.lammpstrj'
    """
    problem = _problem(text)
    if problem:
        raise BadInput(
            f"{in_brief(text)} {problem}; it must be a file's path below the run's directory, e.g. log.lammps.",
            value=text[:200],
        )
    return text


def _problem(text: str) -> str:
    if not text or len(text.encode("utf-8", "replace")) > _LONGEST_PATH:
        return "is empty" if not text else f"has {len(text)} characters"
    try:
        line(text)
    except BadInput as error:
        return f"has a character in it that is not seen ({in_brief(error.message)})"
    if text.startswith("/"):
        return "is an absolute path"
    parts = text.split("/")
    if any(part in ("", ".", "..") for part in parts):
        return "has an empty part, '.' or '..' in it"
    longest = max(len(part.encode("utf-8", "replace")) for part in parts)
    return f"has a part of {longest} bytes" if longest > _LONGEST_PART else ""


def _sha256(text: str | None) -> str | None:
    if text is not None and not _SHA256.match(text):
        raise BadInput(f"{in_brief(text)} is no SHA-256: 64 digits of 0-9 and a-f.", value=text[:80])
    return text


FarPath = Annotated[str, AfterValidator(far_path)]
"""A path below a run's directory on an endpoint."""
FarFile = tuple[Annotated[int, Field(ge=0, le=2**63 - 1)], Annotated[str | None, AfterValidator(_sha256)]]
"""Bytes of a file there, and its SHA-256 if the endpoint looked."""


class Remote(Record):
    """Where the files of a run lie that an endpoint computed.

    Attributes:
        site: The site's name.
        endpoint_id: The endpoint's UUID.
        workdir: The run's directory there, absolute.
        files: Path below it -> bytes, and the SHA-256 if it was taken.
        unlisted: Files there that are not listed: there were too many, or their names cannot be fetched.

    Example:
        >>> where = Remote(endpoint_id="8f0c", workdir="/scratch/me/work/1b", files={"log.lammps": (2048, None)})
        >>> print(where)
        /scratch/me/work/1b on the endpoint 8f0c
    """

    site: Shown = ""
    endpoint_id: Line = ""
    workdir: Line = ""
    files: dict[FarPath, FarFile] = Field(default_factory=dict)
    unlisted: Annotated[int, Field(ge=0)] = 0

    def __str__(self) -> str:
        return f"{self.workdir or 'its directory'} on {self.at}"

    @property
    def at(self) -> str:
        """The endpoint, in words."""
        known = " ".join(filter(None, (self.site, self.endpoint_id and f"({self.endpoint_id})")))
        return f"the endpoint {known}" if self.site else f"the endpoint {self.endpoint_id or '(unnamed)'}"

    def fetch_words(self, path: str, run: str | int = "RUN", run_dir: object = "RUN_DIR") -> str:
        """Where a file is that is not here, and how it comes, in words.

        Example:
            >>> Remote(endpoint_id="8f0c").fetch_words("log.lammps", 7)
            'lies on the endpoint 8f0c; fetch it by: hpcagent fetch RUN_DIR 7 log.lammps'
        """
        return f"lies on {self.at}; fetch it by: hpcagent fetch {run_dir} {run} {shlex.quote(path)}"

    @property
    def size(self) -> int:
        """Bytes of the files that are listed."""
        return sum(size for size, _ in self.files.values())

    @property
    def brief(self) -> str:
        """How many files there are, and how large, in words."""
        count = len(self.files) + self.unlisted
        more = f", {self.unlisted} of them not listed" if self.unlisted else ""
        return f"{count} file{'' if count == 1 else 's'}{more}, {size_text(self.size)}"

    @classmethod
    def of(
        cls,
        said: Mapping[str, Any],
        *,
        site: str,
        endpoint_id: str,
        named: Iterable[str] = (),
        most: float = MOST_LISTED,
    ) -> tuple[Remote, tuple[str, ...]]:
        """What a record keeps of what an endpoint said of a run's files.

        Args:
            said: Its answer: `workdir`, `files` (path -> [bytes, sha256 or null]) and `left_out`: how many more.
            site: Name of the site.
            endpoint_id: The endpoint's UUID.
            named: Files that are listed in any case: the run's artifacts.
            most: Files that are listed otherwise.

        Returns:
            The record, and remarks on what it does not list.
        """
        good, odd = _checked(said.get("files"))
        first = [name for name in dict.fromkeys(named) if name in good]
        listed = dict.fromkeys((*first, *sorted(good)))
        room = max(most, min(len(first), _MOST_NAMED))
        kept = [name for number, name in enumerate(listed) if number < room]
        unlisted = len(good) - len(kept) + odd + _count(said.get("left_out"))
        workdir, notes = _workdir(said.get("workdir"))
        remote = cls(
            site=site,
            endpoint_id=endpoint_id,
            workdir=workdir,
            files={name: good[name] for name in kept},
            unlisted=unlisted,
        )
        if odd:
            notes.append(f"{odd} file(s) on {remote.at} have names or sizes that cannot be fetched")
        if unlisted - odd:
            notes.append(
                f"{unlisted - odd} more file(s) of it on {remote.at} are not listed here; a glob finds them: "
                "hpcagent fetch RUN_DIR RUN '*'"
            )
        return remote, tuple(notes)


def _checked(files: object) -> tuple[dict[str, tuple[int, str | None]], int]:
    """The files whose names and sizes can be, and how many others there were."""
    good: dict[str, tuple[int, str | None]] = {}
    if not isinstance(files, Mapping):
        return good, 0
    for name, about in files.items():
        if not isinstance(about, (list, tuple)) or len(about) != 2:
            continue
        size, sha256 = about
        if not isinstance(name, str) or _problem(name) or isinstance(size, bool) or not isinstance(size, int):
            continue
        if 0 <= size < 2**63 and (sha256 is None or (isinstance(sha256, str) and _SHA256.match(sha256))):
            good[name] = size, sha256
    return good, len(files) - len(good)


def _workdir(text: object) -> tuple[str, list[str]]:
    try:
        if isinstance(text, str) and text.startswith("/"):
            return line(text), []
    except BadInput:
        pass
    return "", [f"the endpoint names its directory {in_brief(text)}, which is no path"]


def _count(number: object) -> int:
    return number if isinstance(number, int) and not isinstance(number, bool) and 0 < number < 2**63 else 0
