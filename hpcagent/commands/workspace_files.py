"""`hpcagent workspace fetch`: a file of a run, or of a campaign's run by its number."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpcagent.commands.workspace_runs import folder_of, is_numbered
from hpcagent.commands.workspace_shown import Said
from hpcagent.errors import BadInput

if TYPE_CHECKING:
    from hpcagent.workspace.client import Workspace

__all__ = ["fetched"]


def fetched(there: Workspace, identity: str, words: Sequence[str]) -> Said:
    """A file of a run, brought here.

    Args:
        there: The workspace.
        identity: The run, or a campaign.
        words: Of a campaign, the number of its run; the path as `files` says it; where it is written: a
            new name, or a folder that is there (by default here).

    Raises:
        BadInput: The run has no such file, or there is one already where it would be written.
    """
    from hpcagent.shown import size_text

    folder, rest = "", list(words)
    if rest and is_numbered(identity, rest[0]):
        folder = f"{folder_of(there, identity, rest.pop(0))}/"
    if not 1 <= len(rest) <= 2:
        what = "the path is missing" if not rest else f"{rest[2]!r} is one word too many"
        raise BadInput(
            f"`hpcagent workspace fetch RUN PATH [TO]`, or `fetch CAMPAIGN_ID NUMBER PATH [TO]`: {what}; "
            f"`hpcagent workspace files` lists the paths.",
            value=identity,
        )
    # As `files CAMPAIGN_ID NUMBER` lists it, the path has the folder already.
    path = rest[0] if rest[0].startswith(folder) else folder + rest[0]
    where = there.fetch(identity, path, rest[1] if len(rest) > 1 else ".")
    assert isinstance(where, Path)  # as there is a place
    size = where.stat().st_size
    return Said({"path": str(where), "bytes": size}, lambda: f"{where}: {size_text(size)}")
