"""A file of an input run that is not here: gone, or on the endpoint that computed the run."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcagent.errors import AppFailed

__all__ = ["brought", "elsewhere", "missing_file"]


def missing_file(upstream: Mapping[str, Any], path: Path, what: str) -> AppFailed:
    """The error of a reader that does not find a file of an input run.

    Args:
        upstream: The input run, as `Run.upstream` holds it.
        path: Where the file would be.
        what: What it is: `log`, `trajectory`.
    """
    if not elsewhere(upstream, path):
        return AppFailed(
            f"the {what} of the input run is gone: {path}.", kind="infrastructure", name="MissingFile"
        )
    remote = upstream["remote"]
    at = " ".join(filter(None, ("the endpoint", remote.get("site"), f"({remote.get('endpoint_id')})")))
    run = (upstream.get("manifest") or {}).get("execution_id") or path.parent.name
    name = next((n for n, file in (upstream.get("artifacts") or {}).items() if path.name == file), path.name)
    return AppFailed(
        f"the {what} of the input run lies on {at}; fetch it by: hpcagent fetch RUN_DIR {run} {shlex.quote(name)} "
        f"(or result.fetch({name!r})).",
        kind="infrastructure",
        name="MissingFile",
    )


def elsewhere(upstream: Mapping[str, Any], path: Path) -> bool:
    """Whether a file of an input run lies on an endpoint and not here."""
    return bool(upstream.get("remote")) and not path.exists()


def brought(result: Any, *artifacts: str) -> Mapping[str, Any]:  # a `Result`
    """A result as a reader takes it; of a run on an endpoint the artifacts are fetched first.

    For what is read beside the campaign: a chain decides by the structure of an inner run which ones come next.

    Raises:
        FetchFailed: The endpoint did not give one.
    """
    for name in artifacts:
        if result.remote is not None and name in result.artifacts:
            result.fetch(name)
    fields: Mapping[str, Any] = result.model_dump(mode="json")
    return fields
