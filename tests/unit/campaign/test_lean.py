"""Records that share what is equal in them: equal to those they are made of, and much smaller."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from hpcagent.campaign.lean import Lean
from hpcagent.model.records import Manifest, Result

NUMBER = 500


def _results() -> list[Result]:
    return [
        Result.model_validate(
            {
                "manifest": {"execution_id": f"run {i}", "app": "x", "app_version": "1.0.0", "params": {"x": i}},
                "status": "COMPLETED",
                "metrics": {"speed": float(i)},
                "units": {"speed": "m/s"},
                "cost": {"wall_s": 1.0},
            }
        )
        for i in range(NUMBER)
    ]


def _bytes_of_each(make: Callable[[Any], Any], records: list[Any]) -> float:
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        made = [make(record) for record in records]
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return (after - before) / len(made)


def test_a_lean_record_is_equal_and_says_the_same() -> None:
    lean = Lean()
    for result in _results()[:3]:
        made, manifest = lean.result(result), lean.record(result.manifest)
        assert made == result and manifest == result.manifest
        assert made.model_dump(mode="json") == result.model_dump(mode="json")
        assert made.model_fields_set == result.model_fields_set
        assert manifest.model_fields_set == result.manifest.model_fields_set
        assert made.cost.model_fields_set == {"wall_s"}


def test_lean_records_share_equal_texts_and_the_sets_of_names() -> None:
    lean = Lean()
    one, other = map(lean.result, _results()[:2])
    assert one.units is other.units and one.metrics is not other.metrics
    assert one.model_fields_set is other.model_fields_set
    assert one.cost.model_fields_set is other.cost.model_fields_set


@pytest.mark.parametrize("which", ["result", "manifest"])
def test_the_names_of_fields_are_shared_however_many_records_there_were_before(which: str) -> None:
    """Without that the dictionary of each would have the names again: a campaign of 100 000 runs 80 MB more."""
    results = _results()  # each of them, made by pydantic, has a dictionary of its own
    records: list[Result] | list[Manifest] = [r.manifest for r in results] if which == "manifest" else results
    lean = Lean()
    copied = _bytes_of_each(lambda record: record.__dict__.copy(), records)
    assert _bytes_of_each(lean.record, records) < 0.8 * copied
