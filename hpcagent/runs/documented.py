"""The contract of an app as a document, with what runs on record have taken."""

from __future__ import annotations

from pathlib import Path

from hpcagent.apps.base import App
from hpcagent.apps.document import ContractDocument
from hpcagent.catalog import find_app
from hpcagent.errors import BadInput

__all__ = ["contract_document"]


def contract_document(
    app: App | str, *, run_dir: str | Path | None = None, usd_per_node_hour: float | None = None
) -> ContractDocument:
    """The document of an app's contract (see `ha.types.ContractDocument`).

    Args:
        app: The app, or what `ha.find_app` takes.
        run_dir: A campaign's folder: the completed runs of the app there, inner runs of chains included, give the
            expected runtime and node-hours. Without it, the contract does.
        usd_per_node_hour: Price of a node-hour, in US dollars; without it the document has no cost in dollars.

    Raises:
        BadInput: No such app, the folder is not that of a campaign, or no run of the app has completed there.

    Example:
        >>> contract_document("synthetic").estimated_runtime_sec
        0.01
    """
    from hpcagent.campaign.recorded import snapshot

    app = find_app(app) if isinstance(app, str) else app
    if run_dir is None:
        return ContractDocument.of(app, usd_per_node_hour=usd_per_node_hour)
    read = snapshot(run_dir)
    state = read.state
    # What was found in a cache is no run of this folder, but it took what it took.
    runs = [*state.results.values(), *state.part_results.values()]
    document = ContractDocument.of(app, runs=runs, usd_per_node_hour=usd_per_node_hour, runs_of=run_dir)
    wanted = f"{app.name} {app.contract.version}"
    there = sorted({f"{r.manifest.app} {r.manifest.app_version}" for r in runs if r.ok and not r.manifest.origin})
    if wanted not in there:
        raise BadInput(
            f"{run_dir} has no completed run of {wanted} to estimate from; "
            + (f"it has runs of {', '.join(there)}." if there else "no run has completed there.")
            + " Name another folder, or none: the contract's estimate is used then.",
            value=str(run_dir),
        )
    return document
