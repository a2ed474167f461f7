"""Single runs of a workspace as they are seen: their state, their files, a list of them. All of it only reads."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpcagent.errors import BadInput
from hpcagent.gate.rules import Caller
from hpcagent.workspace.artifacts import read_piece, tail_of
from hpcagent.workspace.inner import ARTIFACT, all_files, folder_and_path, shown_artifacts
from hpcagent.workspace.progress import Progress
from hpcagent.workspace.rows import Row, exit_code
from hpcagent.workspace.sending import Sending

__all__ = ["Looking"]

LIST_MOST = 1000


class Looking(Sending):
    """Single runs, to look at. Arguments as `Sending`."""

    def __init__(self, root: Path, *, clock: Callable[[], float] = time.time, apart: bool = False) -> None:
        super().__init__(root, clock=clock, apart=apart)
        self._progress = Progress(self._workdir, clock)

    def status(self, caller: Caller, identity: str, *, lines: int = 40) -> dict[str, Any]:
        """State, progress, metrics with units and errors, failure, cost, the last lines of the log of a run."""
        with self._turn:
            row = self._row_or_work(caller, identity)
            result = row.result or {}
            found = row.brief() | {
                "changed_at": row.changed_at,
                "params": row.params,
                "version": row.request.get("version", ""),
                "execution_id": row.execution_id,
                "metrics": result.get("metrics", {}),
                "units": result.get("units", {}),
                "uncertainty": result.get("uncertainty", {}),
                "failure": result.get("failure"),
                "cost": result.get("cost") or dict(row.took) or None,
                "estimated_node_hours": row.request.get("expected_node_hours"),
                "notes": [*result.get("notes", ()), *([row.note] if row.note else []), *self._site_news(row)],
                "approval": row.approval or None,
                "level_of_theory": result.get("level_of_theory", {}),
                "rc": exit_code(row),
                "workdir": str(self._workdir(row)),
            }
        if row.kind == "campaign" and not row.over:
            with contextlib.suppress(OSError):
                seen = (self._workdir(row) / "events.jsonl").stat().st_mtime
                found["changed_at"] = max(row.changed_at, seen)
        found["artifacts"] = shown_artifacts(self._workdir(row), result)
        found["progress"] = self._progress.of(row)
        if lines:
            found["log_tail"] = tail_of(self._workdir(row), lines)
        return found

    def _site_news(self, row: Row) -> list[str]:
        """Why a run waits, where its site has said something."""
        return [] if row.over or row.kind != "run" else self.sites.last_said(row.site)

    def wait(self, caller: Caller, identity: str, timeout_s: float) -> dict[str, Any]:
        """Its status once it has ended, or after `timeout_s`."""
        until = time.monotonic() + timeout_s
        with self._turn:
            row = self._row(caller, identity)
            while not row.over and not self._closed:
                left = until - time.monotonic()
                if left <= 0 or not self._turn.wait(left):
                    break
        return self.status(caller, identity, lines=0)

    def listed(
        self, caller: Caller, *, state: str = "", app: str = "", after: str = "", most: int = 100
    ) -> dict[str, Any]:
        """Runs that the caller may see, the newest first, a page at a time."""
        if not 1 <= most <= LIST_MOST:
            raise BadInput(f"most={most} must be 1 to {LIST_MOST}.", value=most)
        with self._turn:
            found: list[dict[str, Any]] = []
            skipping = bool(after)
            if skipping:
                self._row(caller, after)
            more = False
            for identity in reversed(self._newest):
                row = self.rows[identity]
                if skipping:
                    skipping = identity != after
                    continue
                if not self.gate.sees(caller, row.owner):
                    continue
                if (state and row.state != state) or (app and row.app != app):
                    continue
                if len(found) == most:
                    more = True
                    break
                found.append(row.brief())
            return {"runs": found, "after": found[-1]["id"] if more else None}

    def artifacts(self, caller: Caller, identity: str, *, below: str = "") -> list[dict[str, Any]]:
        """Files of a run: path, size in bytes; of a chain's inner runs as `inner/EXECUTION_ID/PATH`.

        Args:
            caller: Who asks.
            identity: The run or campaign.
            below: Only those in this folder: a campaign's run has its in `work/EXECUTION_ID`.

        Raises:
            BadInput: There is no such run, or `below` leads elsewhere.
        """
        with self._turn:
            row = self._row_or_work(caller, identity)
        return all_files(
            self._workdir(row), row.result or {}, below.rstrip("/") if isinstance(below, str) else below
        )

    def fetch(
        self, caller: Caller, identity: str, path: str, *, offset: int = 0, length: int = 1 << 20
    ) -> dict[str, Any]:
        """A piece of a run's file."""
        with self._turn:
            row = self._row_or_work(caller, identity)
        folder, inside = folder_and_path(self._workdir(row), row.result or {}, path)
        return read_piece(folder, inside, offset, length) | {"path": path}

    def artifact(self, caller: Caller, text: str) -> tuple[Path, str]:
        """The folder of a file that is named `artifact:RUN/PATH`, and its path in it; see `folder_and_path`.

        Args:
            caller: Who asks.
            text: The name; PATH is as `artifacts` says it, also `inner/EXECUTION_ID/PATH`.

        Raises:
            BadInput: There is no such run that the caller may see, or PATH names no inner run of it.
        """
        identity, _, path = text.removeprefix(ARTIFACT).partition("/")
        with self._turn:
            row = self._row(caller, identity)
        return folder_and_path(self._workdir(row), row.result or {}, path)
