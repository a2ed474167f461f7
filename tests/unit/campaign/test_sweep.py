"""Sweeps: every point of a design, errors over replicates, growing in the same folder, an objective on top."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import hpcagent as ha
from hpcagent.apps.landscape import synthetic
from hpcagent.campaign.answer import read_run
from hpcagent.campaign.changes import change_text
from hpcagent.campaign.decisions import decisions, replays
from hpcagent.campaign.loading import load_campaign, load_run
from hpcagent.campaign.sweep_runs import PlannedRuns
from hpcagent.cli import cli
from hpcagent.commands.axes import axis as read_axis
from hpcagent.commands.axes import listed_points
from hpcagent.errors import BadInput, RunDirChanged
from hpcagent.policies.design import Design
from hpcagent.replays.whatif import replay
from hpcagent.reports.explain import explain
from hpcagent.reports.report import report
from hpcagent.reports.sweep_plots import title_of
from hpcagent.runs.status import status_of
from hpcagent.statistics.replicates import mean_error
from hpcagent.store.journal import read_events

# Metric by seed, so that errors are known by hand: replicates 0, 1, 2 of seed 0 give T - 1, T, T + 1.
KELVIN = ha.Float(0, 1000, unit="K")


@ha.app(parameters={"T": KELVIN, "style": ha.Choice("a", "b", default="a")}, metrics={"length": "angstrom"})
def rod(T: float, style: str, run: ha.Run) -> dict[str, float]:  # noqa: N803
    if style == "b" and T > 300:
        raise ValueError("too hot for b")
    return {"length": T - 1 + run.seed}


@ha.app(parameters={"T": KELVIN}, metrics={"length": "angstrom"}, seeded=False)
def exact_rod(T: float) -> dict[str, float]:  # noqa: N803
    return {"length": 2 * T}


def swept(folder, *args, **options):
    return ha.run(ha.Sweep(*args, **options), run_dir=folder, site="threads", progress=False)


def test_the_error_of_a_mean_is_by_students_t():
    # Student 1908; t of 95 % for 1, 2 and 9 degrees of freedom: 12.706, 4.303, 2.262 (any table of t), halved.
    for values, t in (([0, 2], 6.353), ([0, 1, 2], 2.1515), (list(range(10)), 1.131)):
        n = len(values)
        s = math.sqrt(sum((v - sum(values) / n) ** 2 for v in values) / (n - 1))
        mean, error = mean_error(values)
        assert mean == sum(values) / n and error == pytest.approx(t * s / math.sqrt(n), rel=1e-3)
    assert mean_error([3.0]) == (3.0, None)


@pytest.mark.parametrize("replicates", [2, 3, 5])
def test_two_of_the_stated_errors_cover_95_percent_of_the_points(replicates):
    # 2000 points: the share that is covered has a standard error of 0.5 %.
    noise = np.random.default_rng(replicates).normal(size=(2000, replicates))
    found = [mean_error(list(runs)) for runs in noise]
    covered = sum(abs(mean) <= 2 * (error or 0) for mean, error in found) / len(found)
    assert 0.93 <= covered <= 0.97


def test_a_sweep_gives_every_point_with_the_error_over_replicates_and_says_what_failed(tmp_path):
    result = swept(tmp_path, rod, {"T": [100, 400], "style": ["a", "b"]}, replicates=3)
    assert [p.params for p in result.points] == [{"T": t, "style": s} for t in (100.0, 400.0) for s in "ab"]
    first, last = result.points[0], result.points[-1]
    assert first.metrics == {"length": 100.0} and first.values["length"] == (99.0, 100.0, 101.0)
    assert first.uncertainty["length"] == pytest.approx(4.303 / 2 / math.sqrt(3), rel=1e-3)
    assert last.runs == 0 and last.failed == 3 and "too hot for b" in str(result.table())
    assert result.best is None and result.exit_code == 0 and "Student's t" in str(result.table())
    assert result.points == read_run(tmp_path).points
    assert "sweep of T in [100, 400] K" in str(status_of(tmp_path)) and "best" not in str(result)
    assert replays(tmp_path) == [] and "suggested by sweep" in str(explain(tmp_path, 0))


def test_more_points_values_and_replicates_run_only_what_is_new(tmp_path):
    swept(tmp_path, rod, {"T": [100, 300]}, replicates=2)
    result = swept(tmp_path, rod, {"T": [100, 200, 300]}, replicates=3)
    assert len(result.results) == 9 and {p.runs for p in result.points} == {3}
    assert [r.manifest.params["T"] for r in result.results[4:]].count(200.0) == 3
    # Values by themselves are added to those that are there.
    result = swept(tmp_path, rod, {"T": [50]}, replicates=1)
    assert [(p.params["T"], p.runs) for p in result.points] == [(50, 1), (100, 3), (200, 3), (300, 3)]
    assert len([e for e in read_events(tmp_path / "events.jsonl") if e["event"] == "changed"]) == 2
    assert replays(tmp_path) == []


@pytest.mark.parametrize("mode", ["batch", "rolling"])
def test_a_sweep_that_grows_behind_its_confirmation_runs_what_is_new_and_confirms_again(tmp_path, mode):
    toml = 'app = "synthetic"\nfixed = { noise = 0.1 }\nobjective = { maximize = "value" }\nspace = { x = {} }\n'
    toml += "sweep = { replicates = 1, values = { x = [0.1, 0.2] } }\nconfirm = { top = 1, replicates = 2 }\n"
    (tmp_path / "c.toml").write_text(f'{toml}mode = "{mode}"\n')
    campaign, folder = load_campaign(tmp_path / "c.toml"), tmp_path / "run"
    for changes, runs in (({}, 4), ({}, 4), ({"sweep.values.x": [0.1, 0.2, 0.4]}, 7), ({}, 7)):
        if folder.exists():
            campaign = load_run(folder, changes=changes)
        result = ha.run(campaign, run_dir=folder, site="threads", progress=False)
        assert len(result.results) == runs
    roles = [r.manifest.role for r in result.results]
    assert roles == ["suggested"] * 2 + ["replicate"] * 2 + ["suggested"] + ["replicate"] * 2


def test_a_larger_hypercube_and_a_longer_sequence_keep_their_points(tmp_path):
    for design in ("latin_hypercube", "sobol"):
        folder = tmp_path / design
        small = swept(folder, rod, {"T": {}, "style": {}}, design=design, points=4, replicates=1)
        large = swept(folder, rod, {"T": {}, "style": {}}, design=design, points=8, replicates=1)
        assert len(large.results) == 8
        assert [p.params for p in large.points[:4]] == [p.params for p in small.points]
    # A Latin hypercube: each quarter of the range once in each block of four.
    found = [p.params["T"] for p in read_run(tmp_path / "latin_hypercube").points]
    assert [sorted(int(t // 250) for t in block) for block in (found[:4], found[4:])] == [[0, 1, 2, 3]] * 2


def test_designs_keep_only_points_that_the_space_allows():
    space = ha.Space.of(x=ha.Float(0, 1), y=ha.Float(0, 1), constraints=["x + y <= 1"])
    assert len(Design(space, levels=3, replicates=1).points) == 6  # of 9: three have a sum above 1
    for design in ("sobol", "latin_hypercube"):
        found = Design(space, design=design, points=12).points
        assert len(found) == 12 and all(p["x"] + p["y"] <= 1 for p in found)
    with pytest.raises(BadInput, match="x \\+ y <= 1"):
        Design(space, design="list", points=[{"x": 1, "y": 1}])


def test_replicates_that_would_be_copies_are_not_run_and_it_is_said(tmp_path):
    result = swept(tmp_path, exact_rod, {"T": [1, 2]}, replicates=3)
    assert len(result.results) == 2 and result.points[1].metrics["length"] == 4.0
    assert "each point is run once: no seed decides what exact_rod gives" in str(result)
    assert "no ±: there is one run at a point" in str(result.table())


def test_an_objective_on_top_makes_the_sweep_the_beginning_of_a_campaign(tmp_path):
    swept(tmp_path, rod, {"T": [100, 200, 300]}, replicates=2)
    on_top = ha.Campaign(
        rod, ha.minimize("length"), space={"T": {"low": 50, "high": 300}}, until=ha.until.max_runs(10)
    )
    result = ha.run(on_top, run_dir=tmp_path, site="threads", progress=False)
    assert len(result.results) == 10 and result.best is not None and result.best.params["T"] < 100
    assert "policy from" in str(result) and "objective from none" in str(result)
    asked = [d.campaign.policy.name for d in decisions(tmp_path)]
    assert asked[0] == "sweep" and asked[-1] == "bayes" and replays(tmp_path) == []
    (changed,) = [e for e in read_events(tmp_path / "events.jsonl") if e["event"] == "changed"]
    assert changed["changes"]["objective"] == {"old": {}, "new": {"minimize": "length"}} and changed["at"] > 1e9
    with pytest.raises(RunDirChanged, match="seed"):
        ha.run(on_top.model_copy(update={"seed": 5}), run_dir=tmp_path, site="threads", progress=False)
    # A condition that came later is not held against what was asked before.
    ruled = ha.Sweep(rod, {"T": [100, 200, 300, 400]}, replicates=3, constraints=["T <= 350"])
    assert len(ha.run(ruled, run_dir=tmp_path, site="threads", progress=False).points) >= 3
    assert replays(tmp_path) == []
    # By the shell's way, from the folder alone; the other policy decides from then on.
    ha.run(ha.Sweep(synthetic, {"x": [0.1, 0.9]}, replicates=1), run_dir=tmp_path / "s", site="threads")
    changes = {"objective.maximize": "value", "policy": "random", "until.max_runs": 5}
    more = ha.run(load_run(tmp_path / "s", changes=changes), run_dir=tmp_path / "s", site="threads")
    assert len(more.results) == 5 and more.best is not None and replays(tmp_path / "s") == []


def test_a_sweep_is_read_from_toml_and_written_back(tmp_path):
    path = tmp_path / "rod.toml"
    path.write_text(
        'app = "synthetic"\nshow = ["value"]\n[sweep]\nreplicates = 2\nvalues = { x = [0.1, 0.3] }\n'
        "levels = { y = 3 }\n[space]\ny = {}\n[until]\nnode_hours = 1\n"
    )
    campaign = load_campaign(path)
    assert campaign.sweep and campaign.search["x"].range == "[0.1, 0.3]" and campaign.until.cap() == 1
    (tmp_path / "again.toml").write_text(campaign.toml())
    assert load_campaign(tmp_path / "again.toml").identity() == campaign.identity()


@pytest.mark.parametrize(
    ("space", "options", "words"),
    [
        ({"T": [100, 2000]}, {}, "outside"),
        ({"T": 5}, {}, "give a list of values"),
        ({"T": ha.Float(0, 5, unit="ps")}, {}, "in ps, and the app takes K"),
        ({"T": []}, {}, "one or more"),
        ({"T": {}}, {"replicates": 0}, "replicates=0"),
        ({"T": {}}, {"design": "gird"}, "did you mean 'grid'"),
        ({"T": {}}, {"points": 3}, "takes levels and values, not points"),
        ({}, {"design": "list"}, "a list of points"),
        ({"T": {}}, {"metrics": ["lenght"]}, "did you mean 'length'"),
        ({"T": {}}, {"until": {"plateau": {"batches": 2}}}, "until.plateau need"),
        ({"T": {}}, {"confirm": {"top": 1}}, "confirm need"),
    ],
)
def test_a_wrong_sweep_is_one_sentence_before_anything_runs(space, options, words):
    with pytest.raises(BadInput, match=words):
        ha.Sweep(rod, space, **options)


def test_without_an_objective_there_is_only_a_sweep():
    with pytest.raises(BadInput, match="the objective is missing"):
        ha.Campaign(rod, space={"T": {}}, policy="grid")


def test_every_chosen_metric_is_drawn_against_what_was_varied(tmp_path):
    plans = {
        "line": ({"x": [0.1, 0.5]}, {}),
        "bars": ({"style": {}}, {}),
        "lines": ({"x": [0.1, 0.5], "style": {}}, {}),
        "map": ({"x": {}, "y": {}}, {"levels": 7}),
        "dots": ({"x": {}, "y": {}}, {"design": "sobol", "points": 8}),
        "matrix": ({"x": {}, "y": {}, "style": {}}, {"levels": 2}),
    }
    pytest.importorskip("matplotlib")
    for name, (space, options) in plans.items():
        fixed = {"run_time_s": 0.0, "noise": 0.1}
        swept(tmp_path / name, synthetic, space, replicates=2, metrics=["value"], fixed=fixed, **options)
        written = report(tmp_path / name)
        assert [p.name for p in written.plots] == ["sweep_value.png"]
        text = written.path.read_text()
        assert "![sweep_value](sweep_value.png)" in text and "Student's t" in text and "best" not in text


def test_a_sweep_by_the_shell_is_the_one_of_python(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runner = CliRunner()
    words = ["sweep", "synthetic", "x=0.1:0.5:3", "run_time_s=0", "--replicates", "2", "--metrics", "value"]
    words += ["--site", "threads", "--no-plots"]
    dry = runner.invoke(cli, [*words, "--dry-run"])
    assert "6 runs at most" in dry.stdout and "x = 0.3" in dry.stdout and not (tmp_path / "runs").exists()
    assert runner.invoke(cli, [*words, "--json"]).exit_code == 0
    done = read_run("runs/synthetic")
    assert [p.params["x"] for p in done.points] == [0.1, 0.3, 0.5] and {p.runs for p in done.points} == {2}
    # The folder by itself is gone on with; one value more, as many replicates.
    again = runner.invoke(cli, ["sweep", "runs/synthetic", "x=0.1,0.3,0.5,0.7", *words[4:], "--json"])
    answer = json.loads(again.stdout.splitlines()[-1])
    assert answer["runs"] == 8 and [p["params"]["x"] for p in answer["points"]] == [0.1, 0.3, 0.5, 0.7]
    (tmp_path / "points.csv").write_text("x,style\n0.2,plain\n0.4,tuned\n")
    listed = ["sweep", "synthetic", "run_time_s=0", "--design", "list", "--from", "points.csv", "--run-dir", "l"]
    assert runner.invoke(cli, [*listed, "--replicates", "1", "--site", "threads", "--no-plots"]).exit_code == 0
    assert [p.params for p in read_run("l").points] == [
        {"x": 0.2, "style": "plain"},
        {"x": 0.4, "style": "tuned"},
    ]


@pytest.mark.parametrize(
    ("axis", "words"),
    [
        ("x", "write NAME="),
        ("x=1:2:3:4", "write NAME="),
        ("x=0:1:1", "how many"),
        ("x=0:1:3:log", "> 0"),
        ("x=0:inf:3", "finite"),
        ("x=0:1e-323:5", "not 5 different"),
    ],
)
def test_an_axis_that_cannot_be_read_says_how_to_write_one(axis, words):
    with pytest.raises(BadInput, match=words):
        read_axis(axis)


@ha.app(parameters={"T": KELVIN}, metrics={"length": "angstrom"})
def careless_rod(T: float) -> dict[str, float]:  # noqa: N803
    return {"length": T}


def test_copies_of_one_run_have_no_error_and_a_sweep_is_not_replayed_by_policies(tmp_path):
    result = swept(tmp_path, careless_rod, {"T": [1, 2]}, replicates=2)
    assert "at 2 point(s) 2 runs gave the same numbers to the last digit: counted as one" in result.error_text
    assert result.points[0].runs == 2 and result.points[0].uncertainty == {}
    with pytest.raises(BadInput, match="no objective"):
        replay(tmp_path, policy="random")


def shell(*words):
    done = CliRunner().invoke(cli, ["sweep", *map(str, words), "--site", "threads", "--no-plots"])
    return done


def test_a_folder_by_the_shell_keeps_all_that_is_not_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    new = [
        "synthetic",
        "x=0.02:1",
        "y=0:1",
        "run_time_s=0",
        "--design",
        "sobol",
        "--points",
        "4",
        "--replicates",
        "1",
    ]
    new += [
        "--set",
        "until.max_runs=5",
        "--set",
        "until.node_hours=1",
        "--set",
        "retries=7",
        "--set",
        "mode=rolling",
    ]
    new += ["--set", 'constraints=["x + y <= 1.5"]', "--set", "objective.maximize=value", "--run-dir", "q"]
    assert shell(*new).exit_code == 0
    begun = load_run("q")
    # Another metric to be shown is no reason to run anything.
    assert shell("q", "--metrics", "error").exit_code == 0
    assert load_run("q") == begun.model_copy(update={"show": ("error",)}) and len(read_run("q").results) == 4
    assert (
        "4 point(s), 8 run(s), 4 of them new; the stop condition lets 1 of them start"
        in (done := shell("q", "--replicates", "2")).stderr
        and done.exit_code == 0
    )
    after = load_run("q")
    assert len(read_run("q").results) == 5 and after.policy.options == {**begun.policy.options, "replicates": 2}
    assert (after.until, after.retries, after.constraints) == (begun.until, 7, begun.constraints)
    assert after.objective == begun.objective and after.space == begun.space and after.mode == "rolling"
    refused = shell("q", "x=0.1,0.2")
    assert isinstance(refused.exception, BadInput) and "choose --design grid" in str(refused.exception)


def test_values_added_in_a_folder_keep_its_replicates_and_its_other_axes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    begun = shell(
        "synthetic", "x=0.1,0.3", "style=plain", "y=0.2,0.4", "run_time_s=0", "--replicates=1", "--run-dir=q"
    )
    assert begun.exit_code == 0 and "4 point(s), 4 run(s)" in begun.stderr
    dry = shell("q", "x=0.1,0.3,0.5", "--dry-run")
    assert "6 point(s), 6 run(s), 2 of them new" in dry.stdout
    grown = shell("q", "x=0.1,0.3,0.5")
    assert "6 point(s), 6 run(s), 2 of them new" in grown.stderr
    points = [p.params for p in read_run("q").points]
    assert points == [{"x": x, "y": y} for x in (0.1, 0.3, 0.5) for y in (0.2, 0.4)]
    # From a grid to a sequence: in the ranges that the values spanned.
    assert shell("q", "--design", "sobol", "--points", "2").exit_code == 0
    assert load_run("q").search["x"].range == "[0.1, 0.5]" and len(read_run("q").results) == 8


PROGRAM = """
command = "python3 -c 'import json,sys; json.dump(dict(area=float(sys.argv[1])**2), open(sys.argv[2],\\"w\\"))' {x} o.json"
[parameters]
x = { low = 0.0, high = 4.0, unit = "m" }
[metrics]
area = { file = "o.json", key = "area", unit = "m^2" }
"""


def test_a_program_is_swept_by_its_toml_and_gone_on_with_by_its_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "square.toml").write_text(PROGRAM)
    assert shell("square.toml", "x=0:2:3", "--replicates", "1", "--run-dir", "q").exit_code == 0
    assert shell("q", "x=1,2,3").exit_code == 0
    found = read_run("q")
    assert [(p.params["x"], p.metrics["area"]) for p in found.points] == [(0, 0), (1, 1), (2, 4), (3, 9)]
    refused = shell("q", "x=1,2", "--unit", "x=m")
    assert isinstance(refused.exception, BadInput) and "declares its own" in str(refused.exception)


def test_values_of_a_range_stay_in_it_and_apart_and_a_table_shows_them_apart(tmp_path):
    large = 100_000_000_001
    assert read_axis(f"T={large}:{large + 4}:5")[1] == [large + i for i in range(5)]
    for low, high in ((0.1, 0.5), (1 / 3, 1 / 3 + 1e-9), (-1e-9, 1e-9), (5.0, 1.0)):
        found = read_axis(f"T={low}:{high}:7")[1]
        assert len(set(found)) == 7 and min(low, high) == min(found) and max(low, high) == max(found)
    assert read_axis("T=0.1:0.5:5")[1] == [0.1, 0.2, 0.3, 0.4, 0.5]
    table = swept(tmp_path, rod, {"T": [100.0001, 100.0002, 300]}, replicates=1).table()
    assert [row[0] for row in table.rows] == ["100.0001", "100.0002", "300"]


@pytest.mark.parametrize(
    ("text", "words"), [("x,x\n1,2\n", "names 'x' twice"), ("x,y\n1\n", "line 2"), ("x\n", "no point")]
)
def test_a_list_of_points_that_cannot_be_read_is_refused(tmp_path, text, words):
    (tmp_path / "p.csv").write_text(text)
    with pytest.raises(BadInput, match=words):
        listed_points(tmp_path / "p.csv")


def test_points_of_excel_are_read_and_a_pipe_is_refused(tmp_path):
    (tmp_path / "p.csv").write_bytes(b"\xef\xbb\xbfx,style\r\n0.5,a\r\n")
    assert listed_points(tmp_path / "p.csv") == [{"x": 0.5, "style": "a"}]
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadInput, match="no regular file"):
        listed_points(tmp_path / "pipe")


def test_a_change_is_told_in_brief():
    old = {"name": "sweep", "design": "list", "replicates": 1, "points": [{"T": float(i)} for i in range(99)]}
    new = {**old, "replicates": 3, "points": old["points"][:9]}
    event = {"at": 0.0, "changes": {"policy": {"old": old, "new": new}}}
    assert change_text(event) == "changed 1970-01-01 00:00 UTC: replicates from 1 to 3; points from 99 to 9"


def test_replicates_that_agree_are_not_called_one_run(tmp_path):
    result = swept(tmp_path, careless_rod, {"T": [1, 2]}, replicates=2)
    assert "one run" not in result.error_text and "seed" not in result.error_text
    assert "gave the same number" in title_of(result, "length") and "one run at" not in title_of(result, "length")


LJ = """units lj
variable T index 1.0
lattice fcc 0.8442
region box block 0 3 0 3 0 3
create_box 1 box
create_atoms 1 box
mass 1 1.0
velocity all create ${T} 4711
pair_style lj/cut 2.5
pair_coeff 1 1 1.0 1.0
fix nve all nve
thermo 20
run 200
"""


def test_an_own_script_of_lammps_shows_its_averages_and_no_speeds(tmp_path: Path) -> None:
    (tmp_path / "in.melt").write_text(LJ)
    app = ha.lammps(tmp_path / "in.melt", variables={"T": ha.Float(0.5, 2.0)})
    plain = ha.Sweep(app, {"T": [1.0, 1.5]}, replicates=2)
    energies = ["potential_energy_epsilon_per_atom", "total_energy_epsilon_per_atom"]
    assert list(plain.shown) == ["temperature_reduced", "pressure_reduced", "density_reduced", *energies]
    assert not plain.timed and plain.single  # without a speed there is nothing that a repeat tells
    fast = ha.Sweep(app, {"T": [1.0, 1.5]}, replicates=2, metrics=["timesteps_per_s"])
    assert fast.shown == ("timesteps_per_s",) and fast.timed and not fast.single
    result = ha.run(plain, site="threads", run_dir=tmp_path / "r", progress=False)
    assert len(result.results) == 2 and all(r.ok for r in result.results)
    # thermo_style one prints no density and no PotEng: no empty column stands for them.
    heads = [h.split(" (")[0] for h in result.table().header]
    assert heads == ["T", "temperature_reduced", "pressure_reduced", "total_energy_epsilon_per_atom", "runs"]


@pytest.mark.parametrize("mode", ["batch", "rolling"])
@pytest.mark.parametrize(
    ("until", "more", "runs"),
    [
        ({"max_runs": 100}, {}, 5),
        ({"max_runs": 100}, {"confirm": {"top": 1, "replicates": 2}}, 7),
        ({"max_runs": 3}, {}, 3),
        ({"node_hours": 1.0}, {}, 5),
    ],
)
def test_a_grid_in_a_campaign_has_as_many_runs_as_points(tmp_path, mode, until, more, runs):
    """Not as many as its budget has room for: what it would take is told before it begins."""
    grid = {"name": "grid", "levels": 5}
    campaign = ha.Campaign(
        synthetic, ha.maximize("value"), space={"x": {}}, policy=grid, until=until, mode=mode, batch_size=4, **more
    )
    planned = PlannedRuns(campaign)
    assert planned.count([]) == runs
    result = ha.run(campaign, site="threads", run_dir=tmp_path / "run", progress=False)
    done = [r.manifest for r in result.results]
    assert len(done) == runs == planned.count(done)
    assert planned.count(done[:2]) == runs


@pytest.mark.parametrize("policy", ["random", "sobol", "latin_hypercube"])
def test_a_finite_space_has_as_many_runs_as_points(tmp_path, policy):
    until, styles = {"max_runs": 9}, ["plain", "heavy"]
    campaign = ha.Campaign(
        synthetic,
        ha.maximize("value"),
        space={"style": {"choices": styles}},
        policy=policy,
        until=until,
        batch_size=2,
    )
    assert PlannedRuns(campaign).count([]) == 2
    result = ha.run(campaign, site="threads", run_dir=tmp_path / "run", progress=False)
    assert len(result.results) == 2


def test_a_grid_with_runs_of_a_reference_is_bounded_by_its_budget():
    campaign = ha.Campaign(
        synthetic,
        ha.maximize("value"),
        space={"x": {}},
        policy={"name": "grid", "levels": 5},
        until={"max_runs": 100},
        reference={},
    )
    assert PlannedRuns(campaign).count([]) == 100
