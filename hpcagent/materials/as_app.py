"""`query_materials_database` as an app: a question that is asked on a worker, and the answer as a file."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from hpcagent.apps.decorator import app
from hpcagent.apps.run import Outcome, Run
from hpcagent.errors import AppFailed, BadInput, NotPermitted, SourceFailed
from hpcagent.model.contract import Metric
from hpcagent.model.parameter import Int, Text

__all__ = ["query_materials_database"]

FILE = "answer.json"


@app(
    name="query_materials_database",
    version="1.0.0",
    parameters={
        "formula": Text(default="", description="a formula, or several with '-' between"),
        "filters": Text(
            default="{}",
            description="JSON: elements, nelements, formula, ranges with units, e.g. "
            '{"ranges": {"gap": {"min": 1, "unit": "eV"}}}',
        ),
        "source": Text(
            description="path of an ASE database or of folders with campaigns, or address of an OPTIMADE provider"
        ),
        "limit": Int(1, 1000, default=50, description="records at most"),
        "offset": Int(0, 10**9, default=0, description="records to leave out before"),
    },
    metrics={
        "n_records": Metric(name="n_records", unit="1", description="records in the answer"),
        "n_total": Metric(
            name="n_total", unit="1", description="records that there are, where the source says", required=False
        ),
    },
    failure_modes=("BadQuery", "SourceFailed", "NotPermitted"),
    deterministic=False,
    side_effects="reads the network",
    estimated_runtime_s=2.0,
)
def query_materials_database(
    formula: str, filters: str, source: str, limit: int, offset: int, run: Run
) -> Outcome:
    """Records of a database of materials that a question with structured filters finds; the answer is a file.

    Its records, with artifact ids, units, the source, its version and the question as it was sent, are in
    `answer.json`. See `ha.materials.query_materials_database`, which is the same by hand.

    Raises:
        AppFailed: `BadQuery`, `NotPermitted` (contract) or `SourceFailed` (infrastructure).
    """
    from hpcagent.materials.query import query_materials_database as ask

    try:
        wanted: Any = json.loads(filters)
    except ValueError as error:
        raise AppFailed(f"filters is no JSON: {error}.", kind="contract", name="BadQuery") from None
    if not isinstance(wanted, dict):
        raise AppFailed("filters is a JSON object.", kind="contract", name="BadQuery")
    try:
        answer = ask(formula, wanted, source=source, limit=limit, offset=offset)
    except BadInput as error:
        raise AppFailed(error.message, kind="contract", name="BadQuery") from None
    except NotPermitted as error:
        raise AppFailed(error.message, kind="contract", name="NotPermitted") from None
    except SourceFailed as error:
        raise AppFailed(error.message, kind="infrastructure", name="SourceFailed") from None
    (run.workdir / FILE).write_text(json.dumps(dataclasses.asdict(answer), indent=1) + "\n")
    metrics = {"n_records": float(len(answer))} | (
        {} if answer.total is None else {"n_total": float(answer.total)}
    )
    return Outcome(metrics=metrics, artifacts={"answer": FILE})
