"""A variable of the script that decides a setting of speed, and nothing else, is what is varied."""

from __future__ import annotations

import pytest

from hpcagent.errors import BadInput
from hpcagent.science.lammps.contract import packaged_inputs
from hpcagent.science.lammps.knobs import UNKNOWN, knobs
from hpcagent.science.lammps.rewritten import check_script, given_words, rewritten
from hpcagent.science.lammps.timeable import read_settings

SCRIPT = """variable skin index 0.3
variable acc index off
variable nb index off
variable n equal 5000
if "${acc} == omp" then "package omp 0"
suffix ${acc}
units lj
newton on ${nb}
lattice fcc 0.8442
region box block 0 4 0 4 0 4
create_box 1 box
pair_style lj/cut 2.5
neighbor ${skin} bin
if "1 > 0" then "timestep 0.002" "run ${n}"
run ${n}
run 100
"""


def read(tmp_path, text, **given):
    (tmp_path / "in.x").write_text(text)
    return read_settings(tmp_path / "in.x", given)


def test_each_setting_of_the_packaged_inputs_is_varied_by_its_own_variable():
    found = {
        name: dict(read_settings(packaged_inputs()[name].parent / f"in.{name}").driven)
        for name in ("spce_bulk", "kg_melt", "si_sw", "lj_shear")
    }
    both = {"accelerator": "accelerator", "skin": "skin"}
    assert found["si_sw"].items() >= both.items() and found["lj_shear"].items() >= both.items()
    assert found["kg_melt"].items() >= (both | {"every": "check_every"}).items()
    mesh = {"kspace": "solver", "accuracy": "accuracy", "order": "order", "coulomb": "cutoff"}
    assert found["spce_bulk"].items() >= (both | mesh).items()


def test_the_line_that_sets_the_variable_is_what_changes(tmp_path):
    settings = read(tmp_path, SCRIPT)
    assert settings.driven == {"accelerator": "acc", "skin": "skin"} and settings.left == ()
    made = {k.setting: k for k in knobs(settings, UNKNOWN, ranks=(1, 2), cores=2)}
    assert (made["skin"].name, made["skin"].driven, made["skin"].own) == ("skin", True, 0.3)
    assert "its variable acc" in made["accelerator"].range
    lines = rewritten(settings, {"skin": "0.5", "accelerator": "omp", "newton": "off"}).splitlines()
    assert "variable skin index 0.5" in lines and "variable acc index omp" in lines
    assert "neighbor ${skin} bin" in lines and "variable skin index 0.3" not in lines
    # Where it stood, for the variable of the bonds is not known before.
    assert lines.index("newton off ${nb}") > lines.index("variable nb index off")


@pytest.mark.parametrize(
    "more",
    [
        "fix w all wall/lj93 zlo 0.0 1.0 1.0 ${skin}",
        "variable twice equal 2*v_skin",
        'if "${skin} > 0.2" then "timestep 0.001"',
        "variable skin delete",
        "variable skin equal 0.3",
        "log ${skin}.log",
    ],
)
def test_a_variable_that_decides_something_else_too_stays_and_the_line_is_changed(tmp_path, more):
    settings = read(tmp_path, SCRIPT.replace("pair_style", f"{more}\npair_style"))
    assert "skin" not in settings.driven
    if settings.skin is not None:
        text = rewritten(settings, {"skin": "0.5"})
        assert "neighbor 0.5 bin" in text and "\nvariable skin index 0.3" in f"\n{text}" and more in text


def test_one_variable_for_two_settings_is_not_varied(tmp_path):
    settings = read(tmp_path, SCRIPT.replace("lj/cut 2.5", "lj/cut ${skin}"))
    assert "skin" not in settings.driven
    assert "pair_style lj/cut ${skin}" in rewritten(settings, {"skin": "0.5"})


def test_a_variable_that_is_used_in_an_included_file_is_not_varied(tmp_path):
    (tmp_path / "more.inc").write_text("timestep ${skin}\nneigh_modify every 2\n")
    settings = read(tmp_path, SCRIPT.replace("units lj", "units lj\ninclude more.inc"))
    assert "skin" not in settings.driven and "in more.inc" in dict(settings.left)["neigh_modify"]
    (tmp_path / "more.inc").write_text("run 10\n")
    with pytest.raises(BadInput, match=r"more\.inc, which it includes, runs"):
        read_settings(tmp_path / "in.x")


def test_variables_of_the_command_line_count_and_are_varied_there(tmp_path):
    settings = read(tmp_path, SCRIPT.replace("variable skin index 0.3\n", ""), skin="0.4")
    assert settings.skin == 0.4 and settings.driven["skin"] == "skin"
    assert given_words(settings, {"skin": "0.6"}) == {"skin": "0.6"}
    assert rewritten(settings, {"skin": "0.6"}).startswith("variable skin index 0.6\n")
    assert "0.6" not in rewritten(settings, {"skin": "0.6"}, command_line=True)


def test_runs_whose_length_is_a_formula_are_shortened_too(tmp_path):
    text = rewritten(read(tmp_path, SCRIPT), {}, earlier=100, steps="10")
    shorter = "run 100"  # of a variable whose value is known
    assert f'if "1 > 0" then "timestep 0.002" "{shorter}"' in text and text.count("run 100\n") == 2
    text = rewritten(read(tmp_path, SCRIPT.replace("equal 5000", "equal 50*100")), {}, earlier=100)
    assert "run $(v_n*(v_n<100)+100*(v_n>=100):%.0f)" in text
    assert "run 100000 upto" in rewritten(
        read(tmp_path, SCRIPT.replace("run ${n}\nrun", "run 100000 upto\nrun")), {}, earlier=10
    )


@pytest.mark.parametrize(("grid", "fits"), [("2 1 1", [2]), ("2 * 1", [2, 4]), ("* * *", [1, 2, 3, 4])])
def test_a_grid_of_the_script_decides_which_ranks_there_are(tmp_path, grid, fits):
    settings = read(tmp_path, f"processors {grid}\n{SCRIPT}")
    assert [n for n in (1, 2, 3, 4) if settings.fits(n)] == fits
    assert ("processors" in dict(settings.left)) == (grid != "* * *")


def test_in_two_dimensions_nothing_is_cut_along_z(tmp_path):
    made = knobs(read(tmp_path, f"dimension 2\n{SCRIPT}"), UNKNOWN, ranks=(1, 4), cores=4)
    assert {k.setting: k.values for k in made}["grid"] == ("auto", "x", "y", "xy")


@pytest.mark.parametrize(("asked", "threads"), [("2", 2), ("0", None)])
def test_threads_of_the_script_itself_are_those_it_came_with(tmp_path, asked, threads):
    settings = read(tmp_path, f"package omp {asked}\nsuffix omp\nunits lj\nrun 100\n")
    assert settings.threads == threads and "threads" not in dict(settings.left)
    inside = SCRIPT.replace("package omp 0", "package omp 2").replace(
        "index off\nvariable nb", "index omp\nvariable nb"
    )
    assert dict(read(tmp_path, inside).left)["threads"] == "the script says `package omp 2`"


def test_a_pair_style_that_needs_newton_keeps_it(tmp_path):
    settings = read(tmp_path, SCRIPT.replace("lj/cut 2.5", "sw"))
    assert dict(settings.left)["newton"] == "pair_style sw needs `newton on`"


def test_what_else_a_line_of_kspace_modify_says_stays_for_the_converged_forces(tmp_path):
    text = SCRIPT.replace("lj/cut 2.5", "lj/cut/coul/long 2.5")
    text = text.replace("neighbor", "kspace_style pppm 1e-4\nkspace_modify order 7 slab 3.0\nneighbor")
    after = rewritten(read(tmp_path, text), {}, measure_forces=True).rpartition("kspace_style pppm")[2]
    assert "kspace_modify slab 3.0" in after and "order 7 slab" not in check_script(read(tmp_path, SCRIPT), {})


SWITCH = (
    'variable way index auto\nif "${way} == x" then "processors * 1 1"\nif "${way} == y" then "processors 1 * 1"\n'
)


def test_a_variable_by_which_an_if_chooses_a_layout_is_varied(tmp_path):
    settings = read(tmp_path, SWITCH + SCRIPT)
    assert settings.driven["grid"] == "way" and settings.choices["grid"] == ("x", "y") and settings.left == ()
    made = {k.setting: k for k in knobs(settings, UNKNOWN, ranks=(1, 2), cores=2)}
    assert (made["grid"].name, made["grid"].own, made["grid"].values) == ("way", "auto", ("auto", "x", "y"))
    assert "\nvariable way index x\n" in rewritten(settings, {"grid": "x"})


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("processors * 1 1", "processors 2 1 1"),  # fits two ranks only
        ('== x" then', '== x" then "timestep 0.1"'),
        ("processors 1 * 1", 'processors 1 * 1" else "processors * * 1'),
        ("${way} == y", "${other} == y"),
        ("variable way index auto\n", ""),
    ],
)
def test_a_switch_that_may_do_something_else_is_left_alone(tmp_path, old, new):
    settings = read(tmp_path, SWITCH.replace(old, new) + SCRIPT)
    assert "grid" not in settings.driven and "decides `processors`" in dict(settings.left)["processors"]
    assert "grid" not in {k.setting for k in knobs(settings, UNKNOWN, ranks=(1, 2), cores=2)}
