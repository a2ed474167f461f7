"""Campaigns with constraints and conditional parameters: checked before anything runs, kept to the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import hpcagent as ha
from hpcagent.apps.landscape import synthetic
from hpcagent.campaign.dry_run import plan
from hpcagent.campaign.loading import load_campaign, load_run
from hpcagent.errors import BadInput

SPACE: dict[str, dict[str, Any]] = {"x": {}, "y": {"when": "style != 'heavy'"}, "style": {}}


def campaign(**options: Any) -> ha.Campaign:
    given = {"space": SPACE, "constraints": ["x + y <= 0.9"], "site": "threads", "until": ha.until.max_runs(12)}
    return ha.Campaign(synthetic, ha.maximize("value"), **{**given, **options})


@ha.app(
    parameters={
        "solver": ha.Choice("mg", "cg"),
        "levels": ha.Int(2, 8, when="solver == 'mg'"),
        "a": ha.Float(0, 1),
        "b": ha.Float(0, 1),
    },
    metrics={"t": "s"},
    constraints=["a + b == 1"],
    seeded=False,
)
def solve(solver: str, a: float, b: float, levels: int | None = None) -> dict[str, float]:
    """Best at multigrid with 5 levels and a = 0.3."""
    assert abs(a + b - 1) < 1e-9 and (levels is None) == (solver == "cg")
    return {"t": (1 + 0.2 * (levels - 5) ** 2 if levels is not None else 2) + 4 * (a - 0.3) ** 2}


def test_an_app_with_both_is_run_and_resumed(tmp_path: Path) -> None:
    asked = ha.Campaign(solve, ha.minimize("t"), site="threads", until=ha.until.max_runs(12), batch_size=6)
    first = ha.run(asked, run_dir=tmp_path / "run", progress=False)
    assert all(r.ok for r in first.results)
    with_levels = [r for r in first.results if "levels" in r.manifest.params]
    assert 0 < len(with_levels) < 12
    assert all((r.manifest.params["solver"] == "mg") == (r in with_levels) for r in first.results)
    again = ha.run(
        load_run(tmp_path / "run", changes={"until.max_runs": 18}), run_dir=tmp_path / "run", progress=False
    )
    best = again.best
    assert best is not None and best.params["solver"] == "mg" and best.params["levels"] == 5
    assert abs(float(best.params["a"]) - 0.3) < 0.05
    row = next(line for line in str(again.table(20)).splitlines() if line.lstrip().startswith("cg"))
    assert row.split()[1] == "-"


def test_toml_says_the_same_as_python(tmp_path: Path) -> None:
    asked = campaign()
    (tmp_path / "c.toml").write_text(asked.toml())
    assert 'constraints = [\n    "x + y <= 0.9",\n]' in asked.toml()
    read = load_campaign(tmp_path / "c.toml")
    assert read.search == asked.search and read.identity()["space"] == asked.identity()["space"]
    assert read.identity()["space"] != campaign(constraints=[]).identity()["space"]


def test_the_dry_run_shows_allowed_points_and_says_what_forbids_nothing() -> None:
    found = plan(campaign(constraints=["x + y <= 0.9", "x > 0.001"]), site="threads")
    for manifest in found.manifests:
        assert ("y" in manifest.params) == (manifest.params["style"] != "heavy")
        assert float(manifest.params["x"]) + float(manifest.params.get("y", 0)) <= 0.9
    assert any("'x > 0.001' forbids none" in note for note in found.notes)
    assert not any("x + y" in note for note in found.notes)


def test_without_a_space_no_knob_of_the_cost_is_varied_and_it_is_said() -> None:
    asked = ha.Campaign(synthetic, ha.maximize("value"), site="threads", until=ha.until.max_runs(6))
    assert asked.search.names == ("x", "y", "style")
    assert any(
        "space does not say what is varied: x, y, style; not noise, fail_above, run_time_s" in note
        for note in plan(asked, site="threads").notes
    )

    @ha.app(
        parameters={"size": ha.Int(1, 9, default=3), "ranks": ha.Int(1, 4, default=1)},
        metrics={"y": "1"},
        resources_from={"ranks_per_node": "ranks"},
    )
    def sized(size: int, ranks: int) -> dict[str, float]:
        return {"y": float(size * ranks)}

    assert ha.Campaign(sized, ha.maximize("y")).search.names == ("size",)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"constraints": ["x + z <= 1"]}, "there is no parameter 'z'"),
        ({"constraints": ["x > 2"]}, "no point of the space keeps the constraints"),
        ({"constraints": ["run_time_s >= 1"], "fixed": {"run_time_s": 0.5}}, "not kept at run_time_s=0.5"),
        ({"reference": {"x": 0.9, "y": 0.9}}, r"not kept at x=0\.9, y=0\.9"),
        ({"confirm": {"baseline": {"x": 0.9, "y": 0.9, "style": "plain"}}}, r"not kept at x=0\.9, y=0\.9"),
        (
            {"space": {"x": {}, "y": {"when": "style == 'heavy'"}}, "fixed": {"style": "plain"}},
            "never a part of a run",
        ),
        ({"space": {"x": {"when": 3}}}, "is a condition in quotes"),
        ({"constraints": "x < 1"}, "constraints"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(options: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        campaign(**options)


def test_an_app_that_has_no_value_for_what_is_left_out_is_refused() -> None:
    with pytest.raises(BadInput, match=r"argument 'levels' of bad\(\) is left out where"):

        @ha.app(parameters={"s": ha.Choice("a", "b"), "levels": ha.Int(2, 8, when="s == 'a'")}, metrics={"y": "1"})
        def bad(s: str, levels: int) -> dict[str, float]:
            return {"y": 1.0}


def test_fixed_values_count_in_conditions() -> None:
    fixed = campaign(
        space={"x": {}, "y": {}}, fixed={"style": "plain"}, constraints=["x + y <= 0.9 or style == 'heavy'"]
    )
    assert [c.text for c in fixed.search.constraints] == ["(x + y) <= 0.9"]
    free = campaign(
        space={"x": {}, "y": {}}, fixed={"style": "heavy"}, constraints=["x + y <= 0.9 or style == 'heavy'"]
    )
    assert free.search.simple
    assert not fixed.allows({"x": 0.9, "y": 0.9}) and free.allows({"x": 0.9, "y": 0.9})
