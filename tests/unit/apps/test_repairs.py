"""Repairs of apps that are no LAMMPS scripts: the same function with other values of its parameters."""

from __future__ import annotations

import re

import pytest

import hpcagent as ha
from hpcagent.errors import AppFailed, BadInput


@ha.app(
    parameters={"x": ha.Float(0, 1), "mixing": ha.Float(0.05, 1.0, default=0.7)},
    metrics={"y": "1"},
    failure_modes=("NotConverged", "Odd", "Walltime"),
)
def mixed(x: float, mixing: float) -> dict[str, float]:
    """Converges with little mixing only; near 1 not even then."""
    if mixing > 0.3 * (1 - x):
        raise AppFailed(f"no convergence with {mixing}.", name="NotConverged")
    return {"y": x**2 + mixing}


def campaign(**more: object) -> ha.Campaign:
    given: dict[str, object] = {
        "space": {"x": {}},
        "policy": {"name": "grid", "levels": 3},
        "until": {"max_runs": 3},
        "repairs": {"NotConverged": [{"mixing": 0.2}, {"mixing": 0.1}]},
    }
    return ha.Campaign(mixed, ha.minimize("y"), **(given | more))


def test_a_function_that_did_not_converge_is_called_again_with_other_values(tmp_path) -> None:
    found = ha.run(campaign(), site="threads", run_dir=tmp_path)
    by_x = {r.manifest.params["x"]: r for r in found.results}
    assert [r.repair for r in by_x[0.0].repairs] == ["mixing = 0.2"]
    assert by_x[0.0]["y"] == pytest.approx(0.2)
    assert [r.repair for r in by_x[0.5].repairs] == ["mixing = 0.2", "mixing = 0.1"]
    assert by_x[1.0].failure is not None
    assert by_x[1.0].failure.name == "NotConverged"
    assert by_x[0.5].manifest.params["mixing"] == 0.7  # what was asked for stays what was asked for
    assert any("computed with mixing = 0.1" in note for note in by_x[0.5].notes)
    assert "3 run(s) failed and were repaired, 2 of them completed" in str(found)
    assert "repaired: mixing = 0.2, mixing = 0.1" in found.report().path.read_text()
    again = ha.run(campaign(), site="threads", run_dir=tmp_path)
    assert [r.repairs for r in again.results] == [r.repairs for r in found.results]


def test_without_the_table_nothing_is_repaired(tmp_path) -> None:
    found = ha.run(campaign(repairs=None), site="threads", run_dir=tmp_path)
    assert {r.failure and r.failure.name for r in found.results} == {"NotConverged"}
    assert not any(r.repairs for r in found.results)


@pytest.mark.parametrize(
    ("repairs", "said"),
    [
        ({"NotConverged": "minimize"}, "repairs with a name are for LAMMPS scripts"),
        ({"Walltime": {"mixing": 0.1}}, "those are NotConverged, Odd"),
        ({"NotConverged": {"mixing": 2.0}}, "mixing"),
        ({"NotConverged": {"x": 0.1}}, "would change x, which this campaign varies"),
        ({"Odd": [{"mixing": 0.1}, {"mixing": 0.2}], "tries": 1}, "lists 2 repairs"),
        ({"NotConverged": []}, "name a repair"),
    ],
)
def test_repairs_that_make_no_sense_are_refused(repairs, said) -> None:
    with pytest.raises(BadInput, match=re.escape(said)):
        campaign(repairs=repairs)


def test_only_runs_whose_repair_changed_what_is_studied_say_so(tmp_path) -> None:
    rules = {"NotConverged": [{"mixing": 0.1}, {"x": 0.5}], "changes_studied": True}
    found = ha.run(campaign(repairs=rules), site="threads", run_dir=tmp_path)
    said = {r.manifest.params["x"]: any("changes_studied" in note for note in r.notes) for r in found.results}
    assert said == {0.0: False, 0.5: False, 1.0: True}
    assert {r.manifest.params["x"]: len(r.repairs) for r in found.results} == {0.0: 1, 0.5: 1, 1.0: 2}


def test_what_is_studied_may_be_changed_where_the_campaign_says_so_and_each_result_tells(tmp_path) -> None:
    rules = {"NotConverged": {"x": 0.1}, "changes_studied": True}
    found = ha.run(campaign(repairs=rules, fixed={"mixing": 0.25}), site="threads", run_dir=tmp_path)
    moved = [r for r in found.results if r.repairs]
    assert [r.manifest.params["x"] for r in moved] == [0.5, 1.0]
    assert all(any("changes_studied" in note for note in r.notes) for r in moved)
