"""A tuning that is refused leaves nothing; one that is interrupted goes on; one that has ended is left as it is."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

import hpcagent as ha
from hpcagent.campaign.largest import largest_of, most_cores
from hpcagent.cli import cli
from hpcagent.errors import BadInput, Interrupted
from hpcagent.model.texts import as_name
from hpcagent.science.lammps.contract import stem_of
from hpcagent.science.lammps.knobs import System
from hpcagent.tuning import tune as tune_module
from hpcagent.tuning.asked import taken
from hpcagent.tuning.probe import Probe, read_probe
from hpcagent.tuning.work import Work

MELT = """units lj
lattice fcc 0.8442
region box block 0 4 0 4 0 4
create_box 1 box
create_atoms 1 box
mass 1 1.0
velocity all create 1.44 87287 loop geom
pair_style lj/cut 2.5
pair_coeff 1 1 1.0 1.0 2.5
fix 1 all nve
thermo 5
run 60
"""
ASKED = {"script": "abc", "runs": 6}


def test_a_folder_whose_campaign_was_not_written_is_removed_with_those_above_it(tmp_path):
    with pytest.raises(BadInput, match="x"), taken(tmp_path / "a" / "b", ASKED) as folder:
        (folder / "in.x").write_text("")
        raise BadInput("x")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "empty").mkdir()
    with pytest.raises(KeyboardInterrupt), taken(tmp_path / "empty", ASKED):
        raise KeyboardInterrupt
    assert list((tmp_path / "empty").iterdir()) == []


def test_the_same_question_goes_on_and_another_one_is_refused(tmp_path):
    with pytest.raises(KeyboardInterrupt), taken(tmp_path / "t", ASKED) as folder:
        (folder / "tune.toml").write_text("")
        raise KeyboardInterrupt
    with taken(tmp_path / "t", ASKED) as folder:
        assert (folder / "tune.toml").exists()
    with pytest.raises(BadInput, match="another runs"), taken(tmp_path / "t", ASKED | {"runs": 7}):
        pass
    (tmp_path / "t" / "tuned.json").write_text("{}")
    with pytest.raises(BadInput, match="to its end"), taken(tmp_path / "t", ASKED):
        pass
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").write_text("mine")
    with pytest.raises(BadInput, match="not empty"), taken(tmp_path / "other", ASKED):
        pass
    assert (tmp_path / "other" / "mine.txt").exists()


def test_an_interrupted_tuning_goes_on_without_repeating_a_run(tmp_path, monkeypatch):
    (tmp_path / "in.melt").write_text(MELT)
    how = {"ranks": [1], "runs": 6, "repeats": 1, "steps": 60, "folder": tmp_path / "t", "progress": False}

    def stopped(*_args, **_options):
        raise Interrupted("Ctrl-C")

    with monkeypatch.context() as patched:
        patched.setattr(tune_module, "_checked", stopped)
        with pytest.raises(Interrupted, match="the same `hpcagent tune` goes on"):
            ha.tune(tmp_path / "in.melt", **how)
    events = (tmp_path / "t" / "runs" / "events.jsonl").read_text()
    monkeypatch.setattr(Work, "probe", pytest.fail)
    tuned = ha.tune(tmp_path / "in.melt", **how)
    assert (tmp_path / "t" / "tuned.json").exists() and len(tuned.result.results) == 6
    after = (tmp_path / "t" / "runs" / "events.jsonl").read_text()
    assert after.count('"execution_id"') == events.count('"execution_id"') > 0


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("fix 1 all nve", "fix 1 all nvx", "fails as it came.*Unrecognized fix style"),
        ("run 60", "", "no `run` command"),
        ("run 60", "run 60\nquit", "it may quit early"),
        ("run 60", "shell rm x\nrun 60", "it calls the shell"),
        ("run 60", "run 60\nminimize 1e-4 1e-4 10 10", "after its last `run` the script minimises"),
        ("units lj", "units lj\nprocessors 1000 1 1", "do not fit a node"),
    ],
)
def test_refusals_leave_with_2_one_error_and_no_folder(tmp_path, monkeypatch, old, new, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.melt").write_text(MELT.replace(old, new))
    done = CliRunner().invoke(cli, ["tune", "in.melt", "--ranks", "1", "--runs", "6", "--steps", "20"])
    error = done.exception
    assert isinstance(error, BadInput) and error.exit_code == 2
    with pytest.raises(BadInput, match=f"(?s){said}"):
        raise error
    assert [p.name for p in tmp_path.iterdir()] == ["in.melt"]


def test_ranks_that_the_grid_of_the_script_does_not_take_are_refused(tmp_path):
    (tmp_path / "in.melt").write_text(f"processors 2 1 1\n{MELT}")
    with pytest.raises(BadInput, match=r"`processors 2 1 1` does not take 1 rank"):
        ha.tune(tmp_path / "in.melt", ranks=[1], dry_run=True)


def test_the_probe_is_read_as_it_was_written(tmp_path):
    probe = Probe(System(4, (1.0, 2.0, 3.0), 2.5, True), 60, {"timesteps_per_s": 2.0}, 1.5)
    probe.write(tmp_path / "p.json")
    assert read_probe(tmp_path / "p.json") == probe and read_probe(tmp_path / "no.json") is None


def test_the_largest_run_has_the_fixed_ranks_and_the_threads_that_go_with_them():
    names = {"ranks_per_node": "ranks", "threads_per_rank": "threads"}
    space = ha.Space.of(ranks=ha.Choice(1, 2), threads=ha.Choice(1, 2), constraints=["ranks * threads <= 2"])
    varied = ha.Space.of(threads=ha.Choice(1, 2))
    assert most_cores(names, varied, space.constraints, {"ranks": 2}) == {
        "ranks_per_node": 2,
        "threads_per_rank": 1,
    }
    sizes = [{"ranks_per_node": 1, "threads_per_rank": 2}, {"ranks_per_node": 2, "threads_per_rank": 1}]
    assert largest_of(sizes, names) == {"ranks_per_node": 2, "threads_per_rank": 1}


@pytest.mark.parametrize("name", ["silicon_tuning", "water_tuning", "polymer_tuning", "shear_tuning"])
def test_ranks_are_a_dimension_of_the_packaged_campaigns_and_decide_what_a_run_occupies(name):
    campaign = ha.load_campaign(name)
    assert {"ranks", "threads", "grid"} <= {p.name for p in campaign.search.parameters}
    assert (campaign.largest.ranks_per_node, campaign.largest.threads_per_rank) == (2, 1)
    point = campaign.complete(campaign.reference.params | {"ranks": 2})
    assert campaign.app.contract.resources_for(point).cores == 2
    for wrong in ({"ranks": 2, "threads": 2, "accelerator": "omp"}, {"threads": 2}, {"grid": "x"}):
        assert not campaign.allows(campaign.reference.params | wrong)


@pytest.mark.parametrize(
    "name",
    [
        "in.melt",
        "melt.in",
        "run.lmp",
        "foo.lammps",
        "system.txt",
        "in.lj.lmp",
        "in.v1.2",
        "in.a b",
        "in.it's",
        "in.$x#;",
    ],
)
def test_what_a_tuning_writes_is_found_by_its_name_whatever_the_script_is_called(name):
    short = as_name(stem_of(Path(name)))
    assert stem_of(Path(f"in.{short}")) == short  # so that in.SHORT has SHORT.toml as its contract


def test_of_two_tunings_in_one_folder_the_second_is_refused_and_the_first_goes_on(tmp_path):
    with taken(tmp_path / "t", {"a": 1}) as folder:
        with pytest.raises(BadInput, match="another tuning is at it"), taken(tmp_path / "t", {"a": 1}):
            pass
        assert (folder / "asked.json").exists()
        (folder / "tune.toml").write_text("")
    with taken(tmp_path / "t", {"a": 1}):  # it goes on
        pass
    with pytest.raises(BadInput, match="with another a"), taken(tmp_path / "t", {"a": 2}):
        pass
    assert (tmp_path / "t" / "asked.json").exists()
