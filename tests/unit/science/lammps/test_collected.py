"""What a run that goes on collects anew is named, as it is not of the whole run."""

from __future__ import annotations

from pathlib import Path

import pytest

import hpcagent as ha
from hpcagent.campaign.extending import before_and_after, in_the_way
from hpcagent.science.lammps.collected import begun_anew, not_of_the_whole
from hpcagent.science.lammps.executable import installed

SCRIPT = """\
variable restart index none
variable steps index 200
variable temperature index 1.0
units lj
if "${restart} == none" then &
  "lattice fcc 0.8442" &
  "region box block 0 3 0 3 0 3" &
  "create_box 1 box" &
  "create_atoms 1 box" &
  "mass 1 1.0" &
  "velocity all create ${temperature} 87287" &
else "read_restart ${restart}"
pair_style lj/cut 2.5
pair_coeff 1 1 1.0 1.0
fix move all nve
fix av all ave/time 1 20 20 c_thermo_temp ave running
fix short all ave/time 1 20 20 c_thermo_temp
fix long all ave/correlate/long 1 20 c_thermo_temp file long.dat
compute r all rdf 20
fix rd all ave/time 10 1 10 c_r[*] file rdf.dat mode vector ave running overwrite
dump d all custom 100 d.lammpstrj id x
variable twice equal 2*f_av
thermo_style custom step time temp pe ke etotal press vol f_av v_twice f_short
thermo 20
timestep 0.004
run ${steps} upto
"""
COLUMNS = {
    "fav": ("f_av", "last"),
    "twice": ("v_twice", "mean"),
    "short": ("f_short", "mean"),
    "short_last": ("f_short", "last"),
    "temp": ("Temp", "mean"),
}


def app(folder: Path) -> ha.App:
    (folder / "in.md").write_text(SCRIPT)
    tables = [
        "[variables.temperature]\nlow = 0.5\nhigh = 2.0\nunit = '1'\n",
        "[variables.steps]\nkind = 'int'\nlow = 100\nhigh = 10000\nunit = '1'\n",
        "[restart]\nevery = 100\nsteps = 'steps'\n",
        *(f"[columns.{n}]\ncolumn = '{c}'\nreduce = '{r}'\nunit = '1'\n" for n, (c, r) in COLUMNS.items()),
    ]
    (folder / "md.toml").write_text("".join(tables))
    return ha.lammps(folder / "in.md")


def test_metrics_of_a_fix_that_begins_anew_are_found_through_variables(tmp_path: Path) -> None:
    assert not_of_the_whole(app(tmp_path).settings) == {
        "fav": "fix av (ave/time)",
        "twice": "fix av (ave/time)",
        "short_last": "fix short (ave/time)",
    }
    counted = "fix t all langevin 1 1 1 1 tally yes\ncompute c all reduce sum f_t\nrun 1\n"
    heat = {"script": counted, "columns": {"heat": {"column": "c_c", "reduce": "slope"}}}
    assert not_of_the_whole(heat) == {"heat": "fix t (langevin)"}
    (note,) = begun_anew(heat, 7)
    assert note.startswith("heat (slope of c_c) is not of the whole run")
    assert begun_anew({"script": "fix 1 all nve\nrun 1\n", "columns": {}}, 7) == []


@pytest.mark.skipif(installed() is None, reason="the lammps package is not installed")
def test_an_extended_run_says_what_is_of_its_added_part_only(tmp_path: Path) -> None:
    def campaign(metric: str) -> ha.Campaign:
        until = {"max_runs": 3}
        space: dict[str, dict[str, float]] = {"temperature": {}}
        return ha.Campaign(
            app(tmp_path), ha.minimize(metric), space=space, policy="sobol", until=until, batch_size=1
        )

    with ha.Coordinator(campaign("temp"), site="threads", run_dir=tmp_path / "run") as coordinator:
        (first,) = coordinator.run_points([{"temperature": 1.0}])
        longer = coordinator.extend(0).result()
    assert first.ok and longer.ok, (first.failure, longer.failure)
    assert not any("added part" in note for note in first.notes)
    (said,) = [note for note in longer.notes if "added part" in note]
    for name in ("step 200", "fix av (ave/time)", "fix rd (ave/time, rdf.dat)", "dump d (d.lammpstrj)"):
        assert name in said
    assert "fix long" not in said
    told = before_and_after(campaign("temp"), first, longer)
    assert f"  note: {said}" in told and told[0].startswith("  length: ") and told[0].endswith(" = 400 now")
    assert {note.split()[0] for note in longer.notes if "not of the whole run" in note} == {
        "fav",
        "twice",
        "short_last",
    }
    # What decides a campaign is not replaced by such a value.
    work = tmp_path / "run" / "work"
    assert in_the_way(campaign("temp"), first, 2.0, work) == ""
    assert "fav of a longer run 0 would be of the added part only" in in_the_way(campaign("fav"), first, 2.0, work)
