"""`hpcagent contract`: the contract of an app as one document, shown, written or compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from hpcagent.commands.common import say

__all__ = ["add"]


def add(cli: typer.Typer) -> None:
    """Add the command."""
    cli.command()(contract)


def contract(
    app: Annotated[str, typer.Argument(help="A name, a script, a contract, a program's TOML, module:function.")],
    version: Annotated[
        str | None, typer.Option("--version", help="The version that is meant; a deprecated app needs it.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The document as JSON.")] = False,
    runs: Annotated[
        Path | None, typer.Option("--runs", metavar="RUN_DIR", help="Estimate from the runs of this campaign.")
    ] = None,
    usd_per_node_hour: Annotated[
        float | None, typer.Option("--usd-per-node-hour", metavar="PRICE", help="Also say the cost in US dollars.")
    ] = None,
    compare: Annotated[
        Path | None, typer.Option("--compare", metavar="FILE", help="What the app has otherwise than this.")
    ] = None,
) -> None:
    """Show an app's contract: inputs and outputs as JSON Schemas, cost, determinism, side effects, failures."""
    from hpcagent.apps.document import ContractDocument
    from hpcagent.catalog import look_up
    from hpcagent.model.base import read_json
    from hpcagent.runs.documented import contract_document

    if compare is not None:
        # A deprecated app is compared, not used.
        found = look_up(app if version is None else f"{app}@{version}")
        document = ContractDocument.from_json(json.dumps(read_json(compare)))
        differences = document.differences(found)
        say(
            json.dumps(list(differences))
            if as_json
            else "\n".join(differences) or "the app is as the document says"
        )
        if differences:
            raise typer.Exit(1)
        return
    document = contract_document(
        app if version is None else f"{app}@{version}", run_dir=runs, usd_per_node_hour=usd_per_node_hour
    )
    say(document.model_dump_json(indent=2) if as_json else "\n".join(document.lines()))
