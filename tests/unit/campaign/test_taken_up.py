"""What a record takes in memory when a campaign is taken up again: bytes, which no load of the machine changes."""

from __future__ import annotations

import json
import tracemalloc

from hpcagent.apps.landscape import synthetic
from hpcagent.campaign.state import State, result_event
from hpcagent.model.records import Cost, Result

RUNS = 300


def events():
    """The lines of a journal, and the results that they tell of."""
    digest = synthetic.digest
    asked = [
        synthetic.manifest({"x": 0.1, "y": i / RUNS}, replicate=i, index=i, batch=i // 100, digest=digest)
        for i in range(RUNS)
    ]
    results = [
        Result(
            manifest=m,
            status="COMPLETED",
            metrics={"value": 10.0, "error": 0.5},
            units={"value": "1", "error": "1"},
            started_at=1.0,
            ended_at=2.0,
            host="host",
            cost=Cost(wall_s=1.0, cpu_s=1.0, core_hours=1 / 3600, node_hours=1 / 7200),
            workdir=f"/runs/work/{m.execution_id}",
        )
        for m in asked
    ]
    lines = [
        {"event": "manifests", "at": 1.0, "manifests": [m.model_dump(mode="json") for m in asked]},
        {"event": "results", "at": 2.0, "results": [result_event(r) for r in results]},
    ]
    return [json.dumps(line) for line in lines], results


def test_a_run_that_is_taken_up_takes_few_bytes_and_is_what_it_was():
    lines, results = events()
    State.replay(map(json.loads, lines[:0]))  # what is imported and built once
    tracemalloc.start()
    state = State.replay(map(json.loads, lines))
    each = tracemalloc.get_traced_memory()[0] / RUNS
    tracemalloc.stop()
    assert state.in_order() == results
    assert each < 5500  # 4300; 7000 with a set of the given fields for each record
    assert len({id(m.__pydantic_fields_set__) for m in state.manifests}) == 1


def test_a_copy_of_a_record_that_was_taken_up_changes_no_other():
    lines, _ = events()
    state = State.replay(map(json.loads, lines))
    first, second = state.in_order()[:2]
    given = set(second.model_fields_set)
    changed = first.model_copy(update={"site": "here", "notes": ("one",)})
    assert {"site", "notes"} <= changed.model_fields_set
    assert second.model_fields_set == given == first.model_fields_set
    assert "site" not in given and result_event(second) == result_event(state.in_order()[2]) | {
        "execution_id": second.manifest.execution_id,
        "workdir": second.workdir,
    }
