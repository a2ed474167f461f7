"""Contracts and scripts that fit, and those that do not: one sentence each, with file and nearest word."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest

import hpcagent as ha
from hpcagent.apps.base import App
from hpcagent.catalog import find_app
from hpcagent.errors import BadInput
from hpcagent.science.lammps.contract import lammps, packaged_inputs
from tests.unit.science.lammps.scripts import SCRIPT, TIMESTEP, app_of


@pytest.mark.parametrize(
    ("contract", "said"),
    [
        ('metrcs = ["pressure"]', "unknown key 'metrcs'; did you mean 'metrics'?"),
        (TIMESTEP + "hihg = 1.0", "variables.timestep: unknown key 'hihg'; did you mean 'high'?"),
        ("[checks]\nconserve_energy = true", "unknown key 'conserve_energy'; did you mean 'conserved_energy'?"),
        ("[resources]\nwalltime = 3", "resources: unknown key 'walltime'; did you mean 'walltime_s'?"),
        (TIMESTEP.replace("0.0005", "0.5"), "variables.timestep: low > high for 'timestep': 0.5 > 0.01 ps"),
        (TIMESTEP.replace('unit = "ps"', ""), "variables.timestep: the key 'unit' is missing"),
        (TIMESTEP.replace('"ps"', '""'), "parameter 'timestep' has no unit"),
        (TIMESTEP.replace("0.0005", "nan"), "bounds of 'timestep' are not finite"),
        (TIMESTEP.replace("0.01", "inf"), "bounds of 'timestep' are not finite"),
        (TIMESTEP.replace("low = 0.0005", ""), "'timestep' needs both low and high"),
        (TIMESTEP + "default = 5.0", "timestep=5 ps is outside [0.0005, 0.01] ps"),
        (TIMESTEP.replace("0.0005", "0.0") + "log = true", "'timestep' is logarithmic, so low must be > 0"),
        (TIMESTEP.replace("timestep", "timestp"), "never uses the variable 'timestp'; did you mean 'timestep'?"),
        ('[variables.mode]\nchoices = ["a", "b c"]', "choice 'b c' of 'mode' is not a plain word"),
        ('[variables.mode]\nchoices = ["a", "/etc/x"]', "choice '/etc/x' of 'mode' is not a plain word"),
        ('[variables.mode]\nchoices = ["a", "b/../../x"]', "choice 'b/../../x' of 'mode' is not a plain word"),
        ('[variables.mode]\nchoices = ["a", "$x"]', "choice '$x' of 'mode' is not a plain word"),
        ('[variables.mode]\nchoices = ["a", "a"]', "'mode' lists a choice twice"),
        ('[variables.steps]\nkind = "int"\nlow = 0.5\nhigh = 9\nunit = "1"', "'steps' is an int; its bounds"),
        ('[variables.steps]\nkind = "integer"\nlow = 1\nhigh = 9\nunit = "1"', "steps.kind: input should be"),
        ('metrics = ["presure"]', "unknown metric 'presure'; did you mean 'pressure'?"),
        ('metrics = ["tau_per_day"]', "unknown metric 'tau_per_day' (it exists, but not in `units metal`)"),
        ('seed_variables = ["sed"]', "never uses the variable 'sed'; did you mean 'seed'?"),
        (TIMESTEP + "[dummy]\n", "unknown key 'dummy'"),
        ('seed_variables = ["timestep"]' + TIMESTEP, "'timestep' is both a variable and a seed variable"),
        (
            TIMESTEP.replace('"ps"', '"fs"'),
            "'timestep' is in fs, but the script's `timestep ${timestep}` under `units metal` takes ps",
        ),
        (TIMESTEP.replace('"ps"', '"angstrom"'), "'timestep' is in angstrom, but"),
        (TIMESTEP.replace('"ps"', '"tau"'), "'timestep' is in tau, but"),
        (TIMESTEP.replace('"ps"', '"pss"'), "'timestep' is in pss, but"),
        (
            'app = "in.md"\n[objective]\nmaximize = "ns_per_day"',
            "md.toml beside in.md is read as its contract, but it looks like a campaign ([objective]); rename one of them.",
        ),
        (
            'app = "in.md"',
            "md.toml beside in.md is read as its contract, but it looks like a campaign (the key 'app')",
        ),
        ('version = "1"', "version '1' is not a semantic version like 1.0.0"),
        ("estimated_runtime_s = nan", "estimated_runtime_s=nan must be a number of seconds"),
        ("[resources]\nwalltime_s = 0", "walltime_s=0 must be a positive number of seconds"),
        ('[columns.x]\ncolumn = "Temp"', "columns.x: the key 'unit' is missing"),
        ('[columns.x]\ncolumn = "Temp"\nunit = "K"\nreduce = "median"', "columns.x.reduce: input should be"),
        ('[columns.temperature]\ncolumn = "Temp"\nunit = "K"', "metric 'temperature' is promised twice"),
        ("[log]\ndiscard = 1.0", "log.discard: input should be less than 1"),
        ("[log]\nproduction = 0.5", "log.production: input should be a valid integer"),
        ('script = "in.other"', "is the contract of 'in.other', not of 'in.md'"),
        ("name = ", "not valid TOML"),
    ],
)
def test_a_wrong_contract_is_refused_in_one_sentence(tmp_path: Path, contract: str, said: str) -> None:
    with pytest.raises(BadInput) as error:
        app_of(tmp_path, contract)
    message = str(error.value)
    assert said in message
    assert message.startswith(str(tmp_path / "md.toml"))
    assert "\n" not in message
    assert message[-1] in ".?"


def test_variables_that_are_no_parameters_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"'timestep': 0\.002.*ha\.Float\(low, high, unit="):
        app_of(tmp_path, variables={"timestep": 0.002})


def test_files_that_are_not_there_or_not_scripts_are_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"lj_argn: no such LAMMPS input script.*did you mean 'lj_argon'\?"):
        lammps("lj_argn")
    with pytest.raises(BadInput, match=r"in\.none: no such LAMMPS input script"):
        lammps(tmp_path / "in.none")
    with pytest.raises(BadInput, match=r"none\.toml: no such file"):
        lammps(tmp_path / "none.toml")
    app_of(tmp_path)
    with pytest.raises(BadInput, match=r"none\.toml: no such contract file"):
        lammps(tmp_path / "in.md", contract=tmp_path / "none.toml")
    with pytest.raises(BadInput, match=r"is a folder; name the input script in it\."):
        lammps(tmp_path)
    (tmp_path / "md.toml").write_text(TIMESTEP)
    with pytest.raises(BadInput, match=r"md\.toml: the key 'script' is missing"):
        lammps(tmp_path / "md.toml")
    (tmp_path / "md.toml").write_text('script = "in.gone"')
    with pytest.raises(BadInput, match=r"in\.gone: no such LAMMPS input script"):
        lammps(tmp_path / "md.toml")
    (tmp_path / "in.bin").write_bytes(b"\x80\x00\xff")
    with pytest.raises(BadInput, match=r"in\.bin: cannot be read as text"):
        lammps(tmp_path / "in.bin")


@pytest.mark.parametrize("name", ["md.toml", "in.md.toml"])
def test_the_contract_lies_beside_the_script(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text('name = "mine"\n' + TIMESTEP)
    assert app_of(tmp_path).name == "mine"


def test_arguments_go_before_the_contract(tmp_path: Path) -> None:
    app = app_of(
        tmp_path,
        'name = "mine"\nmetrics = ["pressure"]\n[resources]\nwalltime_s = 5\n' + TIMESTEP,
        name="other",
        metrics=("temperature",),
        variables={"timestep": ha.Float(0.001, 0.002, unit="ps")},
        resources=ha.Resources(walltime_s=7),
    )
    assert (app.name, app.contract.resources.walltime_s) == ("other", 7)
    assert app.contract.space["timestep"].high == 0.002
    assert [m.name for m in app.contract.metrics if m.required] == ["temperature"]


def test_columns_checks_and_log_can_be_given_in_python(tmp_path: Path) -> None:
    contract = '[columns.coldest]\ncolumn = "Temp"\nreduce = "min"\nunit = "K"\n[checks]\nnonsense_above = 0.3\n'
    app = app_of(
        tmp_path,
        contract + "[log]\nproduction = 0\n",
        columns={"hottest": {"column": "Temp", "reduce": "max", "unit": "K"}},
        checks={"conserved_energy": True},
        log={"discard": 0.1},
    )
    assert sorted(app.settings["columns"]) == ["coldest", "hottest"]
    assert app.contract.metric("hottest").unit == "K"
    assert (app.settings["conserved_energy"], app.settings["nonsense_above"]) == (True, 0.3)
    assert (app.settings["production"], app.settings["discard"]) == (0, 0.1)
    wrong: tuple[tuple[dict[str, Any], str], ...] = (
        ({"columns": {"a": {"colum": "Temp", "unit": "K"}}}, "did you mean 'column'"),
        ({"columns": {"a": "Temp"}}, "give a dict such as"),
        ({"columns": ["Temp"]}, r"table \[columns\]"),
        ({"checks": {"conserve_energy": True}}, "did you mean 'conserved_energy'"),
        ({"log": {"discard": 1.5}}, "discard"),
        ({"checks": {"nonsense_above": float("nan")}}, "nonsense_above"),
        ({"checks": {"min_cpu_use_percent": -1.0}}, "min_cpu_use_percent"),
        ({"columns": {1: {"column": "Temp", "unit": "K"}}}, "name of a metric is a text"),
        ({"columns": {"../x": {"column": "Temp", "unit": "K"}}}, "no name of a metric"),
        ({"columns": {"a": {"column": "Temp", "unit": ""}}}, "unit"),
    )
    for given, said in wrong:
        with pytest.raises(BadInput, match=said):
            app_of(tmp_path, **given)


def test_the_seed_of_a_run_is_given_to_seed_variables(tmp_path: Path) -> None:
    app = app_of(tmp_path, seed_variables=["seed"])
    assert app.settings["seed_variables"] == ["seed"]
    with pytest.raises(BadInput, match="seed_variables"):
        app_of(tmp_path, variables={"seed": ha.Int(1, 99)})
    with pytest.raises(BadInput, match="give a list"):
        app_of(tmp_path, seed_variables="seed")


def test_without_a_contract_the_variables_given_are_all_there_is(tmp_path: Path) -> None:
    app = app_of(
        tmp_path,
        variables={
            "timestep": ha.Float(0.001, 0.01, unit="ps"),
            "steps": ha.Int(1, 10_000, unit="steps"),
            "mode": ha.Choice("a", "b"),
            "level": ha.Choice(1, 2),
        },
    )
    assert app.name == "md"
    # The script's own `variable x index ...` are the defaults.
    assert app.contract.space.validated({}) == {"timestep": 0.002, "steps": 1000, "mode": "b", "level": 2}
    assert {m.name for m in app.contract.metrics if m.required} == {"timesteps_per_s", "loop_time_s", "n_atoms"}


def test_a_campaign_named_where_a_contract_belongs_is_said_to_be_one(tmp_path: Path) -> None:
    (tmp_path / "tune.toml").write_text('app = "in.md"')
    with pytest.raises(BadInput, match="it is a campaign"):
        lammps(tmp_path / "tune.toml")


@pytest.mark.parametrize("name", ["lj_argon", "lj_melt", "eam_cu"])
def test_the_packaged_inputs_are_found_by_name_wherever_one_is(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / name).mkdir()  # a folder of that name is in the way
    monkeypatch.chdir(tmp_path)
    app = lammps(name)
    assert (app.name, app.contract.version) == (name, "1.0.0")
    assert find_app(name).digest == app.digest
    assert lammps(packaged_inputs()[name]).digest == app.digest
    assert lammps(packaged_inputs()[name].parent / f"in.{name}").digest == app.digest
    # What the contract says and what the script does by hand are the same.
    script = (packaged_inputs()[name].parent / f"in.{name}").read_text().splitlines()
    by_hand = {line.split()[1]: line.split()[3] for line in script if line.startswith("variable")}
    for parameter in app.contract.space.parameters:
        said = by_hand[parameter.name]
        assert parameter.default == (said if parameter.kind == "choice" else float(said))


def test_an_app_survives_json_with_its_digest(tmp_path: Path) -> None:
    (tmp_path / "data.md").write_text("data")
    app = app_of(tmp_path, TIMESTEP, SCRIPT + "read_data data.md\n")
    again = App.model_validate_json(app.model_dump_json())
    assert again == app
    assert again.digest == app.digest
    assert again.manifest({}).execution_id == app.manifest({}).execution_id


def test_the_json_schema_takes_what_the_contract_takes(tmp_path: Path) -> None:
    app = app_of(tmp_path, TIMESTEP + '[variables.mode]\nchoices = ["a", "b"]\n')
    schema = app.contract.space.json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate({"timestep": 0.001, "mode": "a"}, schema)
    for wrong in ({"timestep": 1.0}, {"timestep": "0.001"}, {"mode": "c"}, {"mode": "a; shell ls"}, {"steps": 1}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)
        with pytest.raises(BadInput):
            app.manifest(wrong)
