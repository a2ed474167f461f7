"""Metrics that an app promises."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcagent.errors import BadInput
from hpcagent.science.lammps.metric_table import metric_units
from tests.unit.science.lammps.scripts import SCRIPT, app_of


def test_the_units_of_the_script_decide_which_metrics_there_are(tmp_path: Path) -> None:
    script = SCRIPT.replace("units metal", "units lj")
    with pytest.raises(BadInput, match=r"unknown metric 'ns_per_day' \(it exists, but not in `units lj`\)"):
        app_of(tmp_path, script=script, metrics=("ns_per_day",))
    app = app_of(tmp_path, script=script, metrics=("tau_per_day",))
    assert {m.name for m in app.contract.metrics} == set(metric_units("lj"))


def test_columns_of_ones_own_are_promised_with_their_unit(tmp_path: Path) -> None:
    contract = '[columns.hottest]\ncolumn = "Temp"\nreduce = "max"\nunit = "K"\n'
    metric = app_of(tmp_path, contract).contract.metric("hottest")
    assert (metric.unit, metric.required, metric.description) == ("K", True, "max of thermo column Temp")
    # They are enough: a script that only minimises has no speed.
    assert [m.name for m in app_of(tmp_path, contract).contract.metrics if m.required] == ["hottest"]
    named = app_of(tmp_path, 'metrics = ["hottest", "pressure"]\n' + contract)
    assert {m.name for m in named.contract.metrics if m.required} == {"hottest", "pressure"}


@pytest.mark.parametrize(("units", "speeds"), [("metal", ("ns_per_day",)), ("lj", ("tau_per_day",))])
def test_every_speed_has_an_estimate_from_cpu_time(tmp_path: Path, units: str, speeds: tuple[str, ...]) -> None:
    app = app_of(tmp_path, script=SCRIPT.replace("units metal", f"units {units}"))
    twins = {m.name: m.undisturbed for m in app.contract.metrics if m.undisturbed}
    assert twins == {name: f"{name}_cpu" for name in (*speeds, "timesteps_per_s")}
