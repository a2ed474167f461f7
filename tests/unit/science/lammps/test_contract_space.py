"""Variables of a contract and defaults of its script."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcagent.errors import BadInput
from tests.unit.science.lammps.scripts import TIMESTEP, app_of


def test_all_variables_that_are_wrong_are_told_of_at_once(tmp_path: Path) -> None:
    bounds = "low = 1\nhigh = 9\n"
    contract = f"[variables.timestep]\n{bounds}[variables.steps]\n{bounds}[variables.mode]\nchoices = ['a', 'a']\n"
    with pytest.raises(BadInput) as error:
        app_of(tmp_path, contract + f"[variables.level]\n{bounds}")
    assert (
        "variables.timestep, variables.steps, variables.level: the key 'unit' is missing; write '1' for a pure number"
        in str(error.value)
    )
    assert "'mode' lists a choice twice" in str(error.value)


def test_a_default_of_the_script_out_of_bounds_is_none(tmp_path: Path) -> None:
    app = app_of(tmp_path, TIMESTEP.replace("0.0005", "0.004"))
    assert app.contract.space["timestep"].default is None
    with pytest.raises(BadInput, match="timestep"):
        app.manifest({})


def test_a_default_of_the_contract_goes_before_that_of_the_script(tmp_path: Path) -> None:
    assert app_of(tmp_path, TIMESTEP + "default = 0.005\n").contract.space["timestep"].default == 0.005
