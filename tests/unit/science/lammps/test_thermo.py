"""What a script's thermo output holds, told from its text alone."""

from __future__ import annotations

import pytest

import hpcagent as ha
from hpcagent.campaign.dry_run import plan
from hpcagent.errors import BadInput
from hpcagent.science.lammps.thermo import columns_of, lacking
from hpcagent.types import Objective


@pytest.mark.parametrize(
    ("text", "metric", "without"),
    [
        ("thermo_style custom step temp pe\nrun 1\n", "density", True),
        ("thermo_style custom step temp &\n  density\nrun 1\n", "density", False),
        ("run 1\n", "density", True),  # LAMMPS's own columns: one
        ("run 1\n", "pressure", False),
        ("thermo_style one\nrun 1\n", "potential_energy_mev_per_atom", True),  # it has E_pair and TotEng only
        ("thermo_style multi\nrun 1\n", "potential_energy_mev_per_atom", False),
        ("run 1\nthermo_style custom step density\nrun 1\n", "pressure", False),  # the first run has it
        ("thermo_style custom step pe\nrun 1\n", "energy_fluctuation_1ps", True),
        ("thermo_style custom step pe ke\nrun 1\n", "energy_fluctuation_1ps", False),
        ("thermo_style custom step temp\nrun 1\n", "timesteps_per_s", False),
        ("thermo_style custom step c_a[1]\nrun 1\n", "own", True),
        ("thermo_style custom step c_a[*]\nrun 1\n", "own", False),
        ("thermo_style custom step c_a[2]\nrun 1\n", "own", False),
        # Where it cannot be told, nothing is said.
        ("include in.more\nrun 1\n", "density", False),
        ("thermo_style ${style}\nrun 1\n", "density", False),
        ("thermo_style custom ${more}\nrun 1\n", "density", False),
        ('if "${a} == 1" then "thermo_style custom step"\nrun 1\n', "density", False),
        ("thermo_style yaml\nrun 1\n", "density", False),
        ("thermo_style custom step temp\nthermo_modify colname 2 Density\nrun 1\n", "density", False),
        ("label a\nthermo_style custom step\nrun 1\njump SELF a\n", "density", True),
        ("jump in.next\n", "density", False),
    ],
)
def test_a_metric_without_its_column_is_found_where_the_script_tells_it(
    text: str, metric: str, without: bool
) -> None:
    settings = {"script": text, "columns": {"own": {"column": "c_a[2]", "reduce": "mean"}}}
    assert bool(lacking(settings, [metric])) is without


def test_one_and_multi_have_the_columns_that_lammps_prints() -> None:
    assert columns_of("thermo_style one\n") >= {"temp", "epair", "emol", "etotal", "press"}
    assert "density" not in (columns_of("thermo_style multi\n") or ())


def test_an_objective_that_is_never_printed_is_refused_before_anything_runs(tmp_path) -> None:
    (tmp_path / "in.cu").write_text("units metal\nvariable a index 3.6\nlattice fcc ${a}\nthermo 10\nrun 10\n")
    app = ha.lammps(tmp_path / "in.cu", variables={"a": ha.Float(3.5, 3.7, unit="angstrom")})
    limits = {"pressure": {"at_most": 2e4}}
    campaign = ha.Campaign(app, Objective(maximize="density", subject_to=limits), space={"a": {}})
    with pytest.raises(
        BadInput, match=r"'density' \(column density\).*thermo_style custom step temp density press"
    ):
        ha.run(campaign, site="threads", run_dir=tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()
    with pytest.raises(BadInput, match="density"):
        plan(campaign, site="threads")
