"""What an answer says of runs that were repaired."""

from __future__ import annotations

from pathlib import Path

import hpcagent as ha


@ha.app(
    parameters={"x": ha.Float(0.0, 1.0), "mixing": ha.Float(0.0, 1.0, default=0.7)},
    metrics={"y": "1"},
    failure_modes=("NotConverged",),
    vary=("x",),
)
def converging(x: float, mixing: float) -> dict[str, float]:
    if x > 0.5 and mixing > 0.3:
        raise ha.AppFailed("It oscillates.", kind="simulation", name="NotConverged")
    return {"y": x}


def test_an_answer_whose_runs_were_repaired_says_what_was_changed(tmp_path: Path) -> None:
    repairs = {"NotConverged": {"mixing": 0.2}}
    options = {"policy": "sobol", "until": ha.until.max_runs(6), "confirm": None, "repairs": repairs}
    found = ha.run(ha.Campaign(converging, ha.maximize("y"), **options), site="threads", run_dir=tmp_path / "a")
    assert found.best is not None and found.best.params["x"] > 0.5
    assert "1 of its 1 completed run(s) did not run as they were asked for, but repaired: " in str(found)
    assert "mixing" in str(found).split("but repaired: ")[1].splitlines()[0]
    least = ha.run(ha.Campaign(converging, ha.minimize("y"), **options), site="threads", run_dir=tmp_path / "b")
    assert least.best is not None and least.best.params["x"] < 0.5 and "but repaired: " not in str(least)


def test_a_sweep_says_at_which_points_runs_were_repaired(tmp_path: Path) -> None:
    sweep = ha.Sweep(
        converging, {"x": [0.1, 0.9]}, replicates=1, metrics=["y"], repairs={"NotConverged": {"mixing": 0.2}}
    )
    found = ha.run(sweep, site="threads", run_dir=tmp_path)
    said = [line for line in str(found).splitlines() if "repaired" in line]
    assert (
        len(said) == 2
        and said[0].startswith("1 run(s) failed and were repaired")
        and "at x = 0.9: 1 of its 1" in said[1]
    )
    table = {column.name: column.values for column in found.columns}
    assert [text is not None for text in table["repairs"]] == [False, True]
    assert "were repaired" in found.report(plots=False).path.read_text()
