"""A contract and a script that do not fit are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

import hpcagent as ha
from hpcagent.errors import BadInput
from hpcagent.science.lammps.contract import lammps, packaged_inputs
from tests.unit.science.lammps.scripts import SCRIPT, TIMESTEP, app_of


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (SCRIPT + "print ${timstep}\n", "uses ${timstep}, which has no value; add it to the contract's variables"),
        (SCRIPT + "print $x\n", "uses ${x}, which has no value"),
        (SCRIPT + "fix 1 all addforce v_pull 0 0\n", "uses ${pull}, which has no value"),
        ("variable timestep equal 0.002\n" + SCRIPT, "sets 'timestep' itself with `variable timestep equal"),
        ("units metall\n" + SCRIPT.replace("units metal\n", ""), "units: 'metall' is not a LAMMPS units style"),
    ],
)
def test_a_script_that_does_not_fit_is_refused_in_one_sentence(tmp_path: Path, script: str, said: str) -> None:
    with pytest.raises(BadInput) as error:
        app_of(tmp_path, TIMESTEP, script)
    message = str(error.value)
    assert said in message
    assert "in.md" in message
    assert "\n" not in message


def test_a_variable_that_only_an_if_sets_has_a_value(tmp_path: Path) -> None:
    choice = 'if "${level} > 1" then "variable extra equal 2.0" else "variable extra equal 3.0"\n'
    assert "extra" not in app_of(tmp_path, TIMESTEP, SCRIPT + choice + "print $(v_extra)\n").contract.space


def test_a_contract_for_another_script_is_noticed_by_its_variables(tmp_path: Path) -> None:
    app_of(tmp_path)
    with pytest.raises(BadInput, match=r"it is the contract of 'in\.lj_argon', not of 'in\.md'"):
        lammps(tmp_path / "in.md", contract=packaged_inputs()["lj_argon"])
    other = tmp_path / "other.toml"
    other.write_text('[variables.skin]\nlow = 1\nhigh = 2\nunit = "angstrom"\n')
    with pytest.raises(BadInput, match=r"other\.toml: the script in\.md never uses the variable 'skin'"):
        lammps(tmp_path / "in.md", contract=other)


def test_a_column_has_the_unit_in_which_lammps_prints_it(tmp_path: Path) -> None:
    def unit(column: str, unit: str, reduce: str = "mean") -> str:
        given = {"a": {"column": column, "unit": unit, "reduce": reduce}}
        return app_of(tmp_path, columns=given).contract.metric("a").unit

    # units metal: bar, K, eV of the system or of an atom; nothing is known of a variable.
    for column, right in (
        ("Press", "bar"),
        ("temp", "K"),
        ("PotEng", "eV"),
        ("pe", "eV/atom"),
        ("v_x", "furlong"),
    ):
        assert unit(column, right) == right
    assert unit("Press", "bar/ps", "slope") == "bar/ps"
    for column, wrong in (("Press", "Pa"), ("Temp", "bar"), ("Temp", "foo"), ("PotEng", "kcal/mol")):
        with pytest.raises(BadInput, match="is printed in"):
            unit(column, wrong)
    with pytest.raises(BadInput, match="is printed in bar/ps"):
        unit("Press", "bar", "slope")


@pytest.mark.parametrize(
    ("units", "unit", "line"),
    [
        ("metal", "1", "timestep ${timestep}"),
        ("metal", "picoseconds", "timestep ${timestep}"),
        ("lj", "tau", "timestep ${timestep}"),
        ("lj", "reduced", "timestep ${timestep}"),
        ("real", "fs", "timestep ${timestep}"),
        ("micro", "µs", "timestep ${timestep}"),
        ("metal", "fs", "timestep $(v_timestep/1000)"),
        ("metal", "fs", "variable dt equal ${timestep}/1000\ntimestep ${dt}"),
    ],
)
def test_a_timestep_in_the_units_of_the_script_or_converted_by_it_is_taken(
    tmp_path: Path, units: str, unit: str, line: str
) -> None:
    script = SCRIPT.replace("metal", units).replace("timestep ${timestep}", line)
    made = app_of(tmp_path, script=script, variables={"timestep": ha.Float(0.1, 0.2, unit=unit)})
    assert made.contract.space["timestep"].unit == unit
