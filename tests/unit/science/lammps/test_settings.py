"""Settings of speed are read from a script as LAMMPS would take them, and rewritten without touching anything else."""

from __future__ import annotations

import pytest

from hpcagent.errors import BadInput
from hpcagent.science.lammps.knobs import System, knobs, room_for
from hpcagent.science.lammps.rewritten import check_script, rewritten
from hpcagent.science.lammps.timeable import read_settings

SALT = """units real
atom_style charge
read_data salt.data
pair_style lj/cut/coul/long 8.0   # LJ and Coulomb
pair_coeff * * 0.1 3.0
kspace_style pppm 1.0e-4
kspace_modify slab 3.0
neighbor 1.5 bin
neigh_modify delay 5 &
   every 1
fix move all nve
timestep 1.0
run 5000
run ${steps} start 0
"""


@pytest.fixture
def salt(tmp_path):
    (tmp_path / "salt.data").write_text("")
    path = tmp_path / "in.salt"
    path.write_text("variable steps index 2000\nvariable skin index 9\n# $(v_skin)\n" + SALT)
    return path


def test_settings_are_what_the_script_says_or_the_default(salt):
    read = read_settings(salt)
    assert (read.skin, read.bins, read.newton, read.suffix, read.grid) == (
        1.5,
        "bin",
        "on",
        "off",
        ("*", "*", "*"),
    )
    assert read.rebuild == {"every": "1", "delay": "5", "check": "yes", "one": "2000", "page": "100000"}
    assert read.kspace.style == "pppm" and read.kspace.accuracy == 1e-4 and read.kspace.order == 5
    assert (read.cutoffs.before, read.cutoffs.coulomb) == (("8.0",), 8.0)
    assert read.steps == 2000 and read.left == ()


@pytest.mark.parametrize(
    ("fixes", "constant"),
    [
        ("fix move all nve", True),
        ("fix heat all langevin 1 1 1 5\nfix move all nve/omp\nrun 10\nunfix heat\nfix look all print 10 x", True),
        ("fix heat all langevin 1 1 1 5\nfix move all nve", False),
        ("fix move all nvt temp 1 1 1", False),
        ("fix move all npt temp 1 1 1 iso 0 0 1\nrun 10\nunfix move\nfix move all nve", True),
        ('fix move all nve\nif "1 == 1" then "fix heat all langevin 1 1 1 5"', False),
        ("fix move all nve\nfix more all addforce 1 0 0", False),
        ("", False),
    ],
)
def test_whether_the_timed_run_keeps_its_energy_is_told_by_the_fixes_that_are_there_then(
    tmp_path, fixes, constant
):
    (tmp_path / "in.x").write_text(f"units lj\npair_style lj/cut 2.5\n{fixes}\nrun 100\n")
    assert read_settings(tmp_path / "in.x").constant_energy is constant


def test_only_the_lines_that_are_set_change(salt):
    read = read_settings(salt)
    text = rewritten(read, {"skin": "3", "coulomb": "10", "rebuild": "every1_delay0", "newton": "off"}, steps="7")
    kept = [line for line in text.splitlines() if not line.startswith("#")]
    changed = {"newton off", "neighbor 3 bin", "neigh_modify every 1 delay 0 check yes", "run 7 start 0"}
    changed |= {"pair_style lj/cut/coul/long 8.0 10"}
    assert set(kept) - set(salt.read_text().splitlines()) == changed
    assert "# as it came: neighbor 1.5 bin" in text and "timestep 1.0" in kept
    # After the script's own neigh_modify, or it would win.
    assert kept.index("neigh_modify every 1 delay 0 check yes") > kept.index("   every 1")


def test_converged_forces_are_asked_for_after_the_run_with_what_else_the_script_says_of_kspace(salt):
    read = read_settings(salt)
    lines = rewritten(read, {"accuracy": "2e-4", "diff": "ad"}, measure_forces=True, atoms=5000).splitlines()
    last = max(i for i, line in enumerate(lines) if line.startswith("run ${steps}"))
    assert lines.index("kspace_style pppm 2e-4") < lines.index("kspace_modify order 5 diff ad") < last
    after = lines[last:]
    tight = after.index("kspace_style pppm 1e-06")
    assert after[tight + 1 : tight + 3] == ["kspace_modify slab 3.0", "kspace_modify order 7 diff ik"]
    assert [line for line in after if line.startswith("run")][1:] == ["run 0 post no"] * 2


def test_a_variable_of_the_script_keeps_its_name_and_ranges_stay_within_the_box(salt):
    read = read_settings(salt)
    made = {k.setting: k for k in knobs(read, System(500, (22.0, 22.0, 22.0), 8.0), ranks=(1, 2), cores=2)}
    assert made["skin"].name == "tune_skin" and made["newton"].name == "newton"
    assert made["skin"].table["high"] == pytest.approx(3.0)  # 22/2 - 8, not 2.5 times the default
    assert made["coulomb"].table["high"] <= 11.0
    assert "timestep" not in made
    assert room_for(read, System(40000, (22.0, 22.0, 22.0), 8.0), made.values()) > 2000


def test_runs_inside_an_if_before_the_last_one_are_shortened_where_only_speed_is_asked_for(salt):
    equilibrate = 'if "1 > 0" then "run 500"\n'
    salt.write_text(salt.read_text().replace("run 5000\n", equilibrate))
    read = read_settings(salt)
    assert read.run.words[0] == "run" and equilibrate in rewritten(read, {"rebuild": "every1_delay5"}, earlier=10)
    assert "run 500" not in check_script(read, {})


def test_the_check_stops_before_the_first_run_and_prints_all_digits(salt):
    text = check_script(read_settings(salt), {"skin": "3"})
    assert text.count("\nrun ") == 1 and "run 10" in text and "%.15g" in text


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("jump SELF again", "it jumps"),
        ('if "1 > 0" then "timestep 2" "run 5"', "once more inside an `if`"),
        ("run 10 every 5 NULL", "every"),
        ("run 10 post no", "post no"),
        ("run 0", "makes 0 steps"),
        ("clear", "starts over"),
        ("read_data nowhere.data", "not there"),
    ],
)
def test_what_cannot_be_timed_is_refused(salt, line, said):
    salt.write_text(salt.read_text() + line + "\n")
    with pytest.raises(BadInput, match=said) as refused:
        read_settings(salt)
    assert str(salt) in str(refused.value)


def test_a_script_without_a_run_is_refused(tmp_path):
    (tmp_path / "in.x").write_text("units lj\ninclude in.y\n")
    (tmp_path / "in.y").write_text("run 5\n")
    with pytest.raises(BadInput, match=r"no `run` command of its own.*in\.y"):
        read_settings(tmp_path / "in.x")


def test_what_is_left_alone_is_said(salt):
    more = "kspace_modify mesh 8 8 8\nprocessors 2 1 1\nsuffix gpu\n"
    salt.write_text(salt.read_text().replace("neighbor 1.5 bin\n", f"{more}neighbor v_unknown bin\n"))
    left = dict(read_settings(salt).left)
    assert set(left) == {"kspace", "processors", "accelerator", "neighbor"}
    made = knobs(read_settings(salt), System(500, (22.0, 22.0, 22.0), 8.0), ranks=(1, 2), cores=2)
    assert {k.setting for k in made} == {"ranks", "newton", "rebuild"}
