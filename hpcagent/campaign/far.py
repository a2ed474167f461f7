"""What is said of runs whose files lie on an endpoint, wherever their files would be looked for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcagent.model.records import Result
from hpcagent.shown import size_text

__all__ = ["Far", "far_files", "far_log", "far_words"]


@dataclass(frozen=True, slots=True)
class Far:
    """Files of a campaign on one endpoint.

    Attributes:
        at: The endpoint, in words.
        runs: Runs that it computed.
        files: Their files, as far as they are listed.
        size: Bytes of these.
        unlisted: Further files.
    """

    at: str
    runs: int
    files: int
    size: int
    unlisted: int

    def __str__(self) -> str:
        more = f" and {self.unlisted} not listed" if self.unlisted else ""
        return f"{self.files} files{more} of {self.runs} run(s), {size_text(self.size)}, on {self.at}"

    def data(self) -> dict[str, Any]:
        """As plain data; sizes in bytes."""
        return {
            "at": self.at,
            "runs": self.runs,
            "files": self.files,
            "size_bytes": self.size,
            "unlisted_files": self.unlisted,
        }


def far_files(results: Iterable[Result]) -> tuple[Far, ...]:
    """The files of results that lie on endpoints, by endpoint."""
    found: dict[str, list[Result]] = {}
    for result in results:
        if result.remote is not None:
            found.setdefault(result.remote.at, []).append(result)
    return tuple(
        Far(
            at,
            len(some),
            sum(len(r.remote.files) for r in some if r.remote),
            sum(r.remote.size for r in some if r.remote),
            sum(r.remote.unlisted for r in some if r.remote),
        )
        for at, some in found.items()
    )


def far_words(results: Iterable[Result], run_dir: object) -> tuple[str, ...]:
    """A remark for each endpoint that has files of a campaign, without a full stop."""
    return tuple(f"{far}; `hpcagent fetch {run_dir} RUN PATH` brings them" for far in far_files(results))


def far_log(result: Result, folder: Path, run_dir: object) -> str:
    """Where the log of a run is, if it is on an endpoint and not in `folder`: a clause, or empty."""
    name = result.artifacts.get("log", "")
    if result.remote is None or not name or (folder / name).is_file():
        return ""
    words = result.remote.fetch_words("log", result.manifest.index, run_dir)
    return f"the log of run {result.manifest.index} {words}"
