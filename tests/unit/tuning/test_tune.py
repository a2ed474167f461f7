"""A user's own script is tuned from beginning to end: campaign, checks, tuned script, confirmation."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import hpcagent as ha
from hpcagent.campaign.largest import most_cores
from hpcagent.errors import AppFailed, BadInput
from hpcagent.science.lammps.accuracy import force_errors
from hpcagent.science.lammps.knobs import Knob
from hpcagent.science.lammps.log import parse_log
from hpcagent.science.lammps.rewritten import PHYSICAL, force_files, rewritten
from hpcagent.science.lammps.timeable import read_settings
from hpcagent.statistics.recommend import Estimate
from hpcagent.tuning.checks import (
    ROUND_OFF,
    Confirmed,
    _apart,
    _Row,
    agreement,
    averages_differ,
    confirmed,
)
from hpcagent.tuning.quiet import wait_quiet
from hpcagent.tuning.site import alone
from hpcagent.tuning.tuned import contenders, judged
from hpcagent.tuning.work import Place, Work

MELT = """units lj
atom_style atomic
lattice fcc 0.8442
region box block 0 4 0 4 0 4
create_box 1 box
create_atoms 1 box
mass 1 1.0
velocity all create 1.44 87287 loop geom
pair_style lj/cut 2.5
pair_coeff 1 1 1.0 1.0 2.5
neighbor 0.3 bin
neigh_modify delay 0 every 20 check no
fix 1 all nve
thermo 5
run 60
"""


SALT = """units lj
atom_style charge
lattice sc 0.5
region box block 0 4 0 4 0 4
create_box 2 box
lattice sc 0.5 origin 0 0 0 spacing 2 2 2
create_atoms 1 random 32 5 box
create_atoms 2 random 32 7 box
mass * 1.0
set type 1 charge 1.0
set type 2 charge -1.0
pair_style lj/cut/coul/long 3.0 5.0
pair_coeff * * 1.0 0.1
kspace_style pppm 1e-4
neighbor 1.0 bin
timestep 0.0001
fix 1 all nve
thermo_style custom step temp pe etotal press
thermo 10
run 20
"""


def test_a_script_is_tuned_to_its_end(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "in.melt"
    script.write_text(MELT)
    tuned = ha.tune(script, ranks=[1], runs=6, repeats=1, steps=60, progress=False)
    folder = tmp_path / "tuned" / "melt"
    campaign = ha.load_campaign(folder / "tune.toml")
    assert tuned.script == folder / "in.melt.tuned" and tuned.speedup > 0
    assert campaign.reference.params["rebuild"] == "as_it_came"  # unchecked: only the reference is run so
    assert "as_it_came" not in campaign.search["rebuild"].choices
    assert all(r.ok for r in tuned.result.results)
    # The script is the user's own, other settings apart.
    changed = ("newton", "processors", "package", "suffix", "neighbor", "neigh_modify", "#")
    plain = [line for line in tuned.script.read_text().splitlines() if not line.startswith(changed)]
    assert plain == [line for line in MELT.splitlines() if not line.startswith(changed)]
    assert any("equal to the script's own" in said for said in tuned.checks)
    written = json.loads((folder / "tuned.json").read_text(), parse_constant=pytest.fail)  # no NaN
    assert written["command"] == tuned.command and bool(tuned.command) == tuned.faster
    assert written["confirmed"]["error"] is None  # of one pair
    assert "as it came" in str(tuned.table) and "check no" in (folder / "tuned.txt").read_text()
    crowded = tuple(r.model_copy(update={"distrusted": "shared its core"}) for r in tuned.result.results)
    guessed = replace(tuned, result=replace(tuned.result, results=crowded))
    slow = replace(tuned, confirmed=Confirmed(0.5, 0.1, (), (), 0.0))
    assert str(slow).startswith(
        "NOT faster, keep the script as it came: 0.50 ± 0.10"
    ) and "run it with" not in str(slow)
    assert slow.data()["command"] == "" and slow.data()["slower"] is True
    row = guessed._row(tuned.best, tuned.best, tuned.best.score)
    assert row[1] == "estimated from CPU time" and 0.15 <= float(row[0].split(" ± ")[1]) < 0.4
    # On other ranks such an estimate does not see how long they wait: 2.31 in the table, 0.64 timed in turn.
    there = tuned.best.model_copy(
        update={
            "params": tuned.best.params | {"threads": 2, "accelerator": "omp"},
            "score": 2.31 * tuned._own_speed(),
            "score_error": 0.0,
        }
    )
    moved = tuple(
        r.model_copy(
            update={"manifest": r.manifest.model_copy(update={"params": campaign.complete(there.params)})}
        )
        for r in crowded
    )
    other = replace(tuned, best=there, result=replace(tuned.result, results=moved, busy=("load 2.0):",)))
    row = other._row(there, there, there.score)
    assert row[1] == "estimated from CPU time on other ranks or threads"
    own = [r for r in tuned.result.results if r.manifest.role == "reference"]
    with_own = replace(other, result=replace(other.result, results=(*moved, *own), points=(there,)))
    said = str(replace(with_own, confirmed=Confirmed(0.64, 0.24, (), (), 0.0))).splitlines()
    assert said[0] == (
        "nothing proved faster, keep the script as it came: 0.64 ± 0.24 times the script as it came (a tie: the "
        "difference is within the noise), timed in turn"
    )
    assert "2.31 ± 0.92 for it, estimated from CPU time on other ranks" in said[1] and "differ" not in said[1]
    assert said[2].startswith("it began on a busy machine (load 2.0)") and "run it with" not in "".join(said)
    apart = str(replace(with_own, confirmed=Confirmed(0.3, 0.05, (), (), 0.0))).splitlines()
    assert "the two differ by more than their errors, and what was timed in turn counts" in apart[1]
    assert "up to 3.6 times too high" in "".join(said)
    crowd = str(replace(with_own, confirmed=Confirmed(1.5, 0.1, (), (), 0.0, cores=0.42))).splitlines()
    assert (
        crowd[2]
        == "the runs timed in turn used 42% of their cores: something else ran here, or ranks waited for each other"
    )
    assert tuned.order(tuned.best) == tuned.best.score  # measured, or on the same ranks and threads
    assert with_own.order(there) == pytest.approx(0.6 * there.score)
    with pytest.raises(BadInput, match="was tuned to its end"):
        ha.tune(script, progress=False)


def test_the_salt_has_the_energy_of_its_lattice_sums_and_its_forces_an_error_that_is_measured(tmp_path):
    first = {"start": {"column": "PotEng", "reduce": "first", "unit": "kcal/mol"}}
    md = ha.lammps("nacl_hot", columns=first, log={"discard": 0.0})
    with ha.open_site("laptop_alone", run_dir=tmp_path):
        cold = md(temperature=100.0, equil_steps=0, steps=50, accuracy=1e-5).result()
        hot = md(temperature=2400.0, equil_steps=50, steps=50).result()
    assert cold.ok and hot.ok, (cold.failure, hot.failure)
    # Coulomb: Madelung's constant, 332.06371 kcal/mol angstrom / e^2; Lennard-Jones: pairs to 10 angstrom by hand.
    n = np.arange(-4, 5)
    cells = 5.9 * np.stack(np.meshgrid(n, n, n), -1).reshape(-1, 3)
    basis = np.array([[0, 0, 0], [0.5, 0.5, 0], [0.5, 0, 0.5], [0, 0.5, 0.5]]) * 5.9
    like = np.linalg.norm((cells[:, None] + basis).reshape(-1, 3), axis=1)
    unlike = np.linalg.norm((cells[:, None] + basis + [2.95, 0, 0]).reshape(-1, 3), axis=1)

    def pairs(r, eps, sigma):
        r = r[(r > 0.1) & (r < 10.0)]
        return np.sum(4 * eps * ((sigma / r) ** 12 - (sigma / r) ** 6))

    na, cl = (0.3526418, 2.1595), (0.0127850, 4.8305)
    mixed = (np.sqrt(na[0] * cl[0]), (na[1] + cl[1]) / 2)
    per_pair = 0.5 * (pairs(like, *na) + pairs(like, *cl)) + pairs(unlike, *mixed) - 1.7475646 * 332.06371 / 2.95
    assert cold["start"] == pytest.approx(500 * per_pair, rel=2e-5)
    assert hot["unsafe_builds"] == 0 and 3e-4 < hot["force_error"] < 9e-4


def test_the_packaged_campaign_keeps_to_two_cores_and_one_run_at_a_time():
    campaign = ha.load_campaign("tune_performance")
    largest = campaign.largest
    assert (largest.ranks_per_node, largest.threads_per_rank, campaign.site) == (2, 1, "laptop_alone")
    assert not campaign.allows({"ranks": 2, "threads": 2, "accelerator": "omp"})
    assert campaign.allows({"ranks": 1, "threads": 2, "accelerator": "omp"})


def test_more_ranks_than_cores_are_refused_before_anything_runs(tmp_path):
    (tmp_path / "in.melt").write_text(MELT)
    with pytest.raises(BadInput, match=r"do not fit a node of laptop_alone"):
        ha.tune(tmp_path / "in.melt", ranks=[100_000], folder=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(BadInput, match="no executor for them"):
        ha.tune(tmp_path / "in.melt", site="threads")


def test_a_script_that_its_contract_confines_is_not_run_without_its_sandbox(tmp_path):
    (tmp_path / "in.melt").write_text(MELT)
    (tmp_path / "melt.toml").write_text('[sandbox]\nrequire = "limits"\n')
    with pytest.raises(BadInput, match=r"is confined to a sandbox by .*melt\.toml, and tuning runs it without"):
        ha.tune(tmp_path / "in.melt", folder=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_dry_run_says_what_the_script_has_and_writes_nothing(tmp_path):
    (tmp_path / "in.melt").write_text(MELT)
    said = str(ha.tune(tmp_path / "in.melt", dry_run=True))
    assert "on (LAMMPS's default)" in said and "0.3" in said and list(tmp_path.iterdir()) == [tmp_path / "in.melt"]


def test_with_the_same_forces_nothing_is_tried_that_changes_one(tmp_path):
    (tmp_path / "in.salt").write_text(SALT)
    tried = {k.setting for k in ha.tune(tmp_path / "in.salt", dry_run=True).knobs}
    same = ha.tune(tmp_path / "in.salt", dry_run=True, same_forces=True)
    assert {k.setting for k in same.knobs} == tried - set(PHYSICAL) < tried
    assert ("Coulomb cutoff", "5", "as it came") in same.settings


def test_a_quiet_machine_is_waited_for_no_longer_than_asked():
    def waited(loads, seconds, profile="laptop"):
        now, said, left = [0.0], [], iter(loads)
        wait_quiet(
            alone(profile),
            seconds,
            said.append,
            load=lambda: {"load": next(left)},
            sleep=lambda s: now.__setitem__(0, now[0] + s),
            clock=lambda: now[0],
        )
        return now[0], said

    assert waited([0.0], 60) == (0.0, []) and waited([], 0) == (0.0, [])
    took, said = waited([1.0, 1.0, 0.1], 60)
    assert (
        took == 10.0 and said[0].startswith("this machine is busy (load") and said[1].endswith("quiet after 10 s")
    )
    took, said = waited([1.0] * 9, 12)
    assert took == 12.0 and "still busy after 12 s" in said[1] and said[1].endswith("going on")
    with pytest.raises(BadInput, match="wait_quiet=-1"):
        ha.tune("in.melt", wait_quiet=-1)


def test_energies_that_differ_beyond_round_off_are_seen():
    own = [_Row(-100.0, 50.0, 1.0), _Row(-99.0, 49.0, 1.0)]
    assert _apart(own, [_Row(-100.0, 50.0, 2.0), _Row(-99.0, 49.0 + 1e-9, 1.0)]) < ROUND_OFF
    assert _apart(own, [_Row(-100.0, 50.0, 1.0), _Row(-99.0, 49.0 + 1e-6, 1.0)]) > ROUND_OFF
    assert _apart(own, own[:1]) == float("inf") and _apart(own, [own[0], _Row(float("nan"), 49.0, 1.0)]) > 1


def test_settings_that_change_forces_are_not_said_to_leave_the_energies_equal(tmp_path):
    (tmp_path / "in.salt").write_text(SALT)
    settings = read_settings(tmp_path / "in.salt")
    profile = alone("laptop")
    work = Work(settings, tmp_path, "salt", profile, Place(1, 1), 2)
    skin = {"skin": "1.5"}
    with ha.open_site(profile, run_dir=tmp_path / "checks"):
        found = agreement(
            settings, skin, forces=skin | {"coulomb": "4"}, app=work.app, name="salt", now=(1, 1), then=(1, 1)
        )
        rows = {}
        for name, cutoff in (("own", "5"), ("other", "4")):
            text = SALT.replace("3.0 5.0", f"3.0 {cutoff}.0").replace("run 20", "run 0")
            (result,) = [work.app(f"salt.{name}", text, 1, 1)().result()]
            rows[name] = parse_log((Path(result.workdir) / result.artifacts["log"]).read_text()).runs[-1]
    assert found.refused == ""
    assert "that change no force (skin): equal to the script's own" in found.said[0]
    before, after = (float(rows[n]["PotEng"][0]) for n in ("own", "other"))
    assert abs(after - before) > 1e-6 * abs(before)
    assert f"differs by {abs(after - before) / abs(before):.1e} of its size" in found.said[1]


def test_the_error_of_the_final_timing_is_students(monkeypatch):
    speeds = iter([1.0, 1.1, 1.3, 1.0, 1.0, 1.2])  # own, tuned; tuned, own; own, tuned

    def run(app, i):
        metrics = {"timesteps_per_s": next(speeds), "unsafe_builds": 0.0, "cpu_use_percent": 90.0}
        return SimpleNamespace(metrics=metrics)

    monkeypatch.setattr("hpcagent.tuning.checks._replicate", run)
    found = confirmed(object(), object(), repeats=3, threads=(1, 2))
    assert found.cores == pytest.approx(0.9)  # of one thread
    logs = np.log([1.1, 1.3, 1.2])
    assert found.factor == pytest.approx(np.exp(logs.mean()))
    assert found.error == pytest.approx(found.factor * logs.std(ddof=1) / np.sqrt(3) * 4.30265 / 2, rel=1e-5)
    assert not found.faster and not found.slower and "a tie" in str(found)  # 1.20 ± 0.12
    slow = Confirmed(factor=0.7, error=0.1, own=(), tuned=(), unsafe_builds=0.0)
    assert slow.slower and "tie" not in str(slow)


def test_the_error_of_forces_is_that_of_the_same_atoms(tmp_path):
    files = {"computed": "a", "converged": "b"}
    head = "ITEM: TIMESTEP\n0\nITEM: ATOMS id fx fy fz\n"
    (tmp_path / "a").write_text(head + "2 0 3 0\n1 4 0 0\n")
    (tmp_path / "b").write_text(head + "1 3 0 0\n2 0 3 0\n")
    assert force_errors(tmp_path, files).values == {"force_error": pytest.approx(np.sqrt(1 / 18))}
    # Beside them forces with an error of 2 on another atom: half as large, and unsure, as it is one atom's each.
    (tmp_path / "c").write_text(head + "1 3 0 0\n2 0 5 0\n")
    found = force_errors(tmp_path, files | {"beside": "c"})
    assert found.values["force_error_ratio"] == pytest.approx(0.5)
    assert found.uncertainty["force_error_ratio"] >= 0.5
    with pytest.raises(AppFailed, match="have no error"):
        force_errors(tmp_path, files | {"beside": "b"})
    (tmp_path / "b").write_text(head + "1 3 0 0\n3 0 3 0\n")
    with pytest.raises(AppFailed, match="the same atoms"):
        force_errors(tmp_path, files)
    (tmp_path / "b").write_text(head + "1 0 0 0\n2 0 0 0\n")
    with pytest.raises(AppFailed, match="zero"):
        force_errors(tmp_path, files)


def test_the_error_of_a_ratio_of_force_errors_is_how_much_it_scatters_over_samples(tmp_path):
    rng, ratios, errors = np.random.default_rng(5), [], []
    names = {"computed": "a", "converged": "b", "beside": "c"}
    for _ in range(60):
        forces = rng.normal(size=(200, 3))
        for name, size in (("a", 0.02), ("b", 0.0), ("c", 0.01)):
            rows = forces + size * rng.normal(size=forces.shape)
            lines = [f"{i} {x} {y} {z}" for i, (x, y, z) in enumerate(rows, 1)]
            (tmp_path / name).write_text("\n".join(["ITEM: ATOMS id fx fy fz", *lines]) + "\n")
        found = force_errors(tmp_path, names)
        ratios.append(found.values["force_error_ratio"])
        errors.append(found.uncertainty["force_error_ratio"])
    assert np.mean(ratios) == pytest.approx(2.0, rel=0.02)
    # Independent atoms: half of it is for what those of a mesh have in common.
    assert np.mean(errors) / 2 == pytest.approx(np.std(ratios), rel=0.3)


def test_the_forces_of_the_same_settings_have_the_same_error_wherever_the_atoms_have_gone(tmp_path):
    # A pair has a Lennard-Jones cutoff of its own, which another `pair_style` of LAMMPS's would take from it.
    (tmp_path / "in.salt").write_text(SALT.replace("0.1\n", "0.1\npair_coeff 1 1 1.0 0.1 2.0\n"))
    settings = read_settings(tmp_path / "in.salt")
    table = "[forces]\n" + "".join(f'{k} = "{v}"\n' for k, v in force_files(PHYSICAL).items())
    (tmp_path / "forces.toml").write_text(table)
    found = {}
    with ha.open_site(alone("laptop"), run_dir=tmp_path / "runs"):
        for name, steps, words in (
            ("here", "20", {}),
            ("there", "4000", {"skin": "1.5"}),
            ("coarse", "20", {"accuracy": "8e-4"}),
            ("long", "20", {"coulomb": "5.5"}),
        ):
            text = rewritten(settings, words, steps=steps, measure_forces=True, varied=PHYSICAL, atoms=64)
            (tmp_path / f"in.{name}").write_text(text)
            md = ha.lammps(tmp_path / f"in.{name}", contract=tmp_path / "forces.toml", name=name)
            found[name] = md().result()
    assert all(r.ok for r in found.values()), [r.failure for r in found.values()]
    errors, ratios = ({n: r.metrics[m] for n, r in found.items()} for m in ("force_error", "force_error_ratio"))
    assert abs(errors["there"] / errors["here"] - 1) > 0.01  # of one setting, at two configurations
    for name in ("here", "there"):
        assert ratios[name] == pytest.approx(1.0, abs=1e-6)
        assert found[name].uncertainty["force_error_ratio"] < 1e-5
    # After so few steps the atoms are still where those of the script as it came are.
    for name in ("coarse", "long"):
        assert ratios[name] == pytest.approx(errors[name] / errors["here"], rel=1e-3) and ratios[name] > 1.05
    assert found["coarse"].uncertainty["force_error_ratio"] > 0.01


def test_a_point_with_the_scripts_own_force_settings_is_not_failed_by_the_error_of_its_forces():
    objective = ha.types.Objective.model_validate(
        {
            "maximize": "timesteps_per_s",
            "subject_to": {"unsafe_builds": {"at_most": 0.5}, "force_error_ratio": {"at_most": 1.05}},
        }
    )
    made = [Knob("ranks", "ranks", 1), Knob("order", "order", 5)]

    def at(builds, **params):
        metrics = {"unsafe_builds": builds, "force_error_ratio": 1.0}
        return Estimate(params=params, runs=1, metrics=metrics, score=1.0, probability_feasible=0.3)

    points = [at(0.0, ranks=2, order=5), at(0.0, ranks=2, order=6), at(3.0, ranks=2, order=5)]
    assert [p.probability_feasible for p in judged(points, objective, made)] == [1.0, 0.3, 0.3]


def test_the_largest_run_keeps_the_constraints_on_its_resources():
    space = ha.Space.of(ranks=ha.Choice(1, 2), threads=ha.Choice(1, 2), constraints=["ranks * threads <= 2"])
    names = {"ranks_per_node": "ranks", "threads_per_rank": "threads"}
    assert most_cores(names, space, space.constraints) == {"ranks_per_node": 2, "threads_per_rank": 1}
    assert most_cores(names, ha.Space.of(ranks=ha.Int(1, 9), threads=ha.Int(1, 9)), ()) is None


def test_a_script_with_random_forces_is_compared_at_its_start(tmp_path):
    text = MELT.replace("thermo 5", "fix 2 all langevin 1.0 1.0 10.0 904297\nthermo 5").replace(" loop geom", "")
    (tmp_path / "in.melt").write_text(text.replace("check no", "check yes"))
    settings = read_settings(tmp_path / "in.melt")
    assert settings.random_fixes == ("2",)
    profile = alone("laptop")
    work = Work(settings, tmp_path, "melt", profile, Place(1, 1), 2)
    with ha.open_site(profile, run_dir=tmp_path / "checks"):
        same = agreement(
            settings, {"skin": "0.5"}, forces={"skin": "0.5"}, app=work.app, name="melt", now=(1, 1), then=(1, 1)
        )
        other = agreement(settings, {}, forces={}, app=_hotter(work), name="melt", now=(1, 1), then=(1, 1))
    assert same.refused == "" and "energies of the start" in same.said[0]
    assert "differ from the script's own" in other.refused


def _hotter(work):
    """The second of the two scripts has another physics."""
    return lambda name, text, *place: work.app(
        name, text.replace("create 1.44", "create 1.45") if name.endswith("tuned") else text, *place
    )


def _averages(*, shift: float, constant_energy: bool) -> str:
    """What is said of two runs whose averages differ, of which the second began at another energy."""

    def run(role, ranks, total, potential):
        return SimpleNamespace(
            ok=True,
            manifest=SimpleNamespace(role=role, params={"ranks": ranks}),
            metrics={"total_energy_epsilon_per_atom": total, "potential_energy_epsilon_per_atom": potential},
            uncertainty={"potential_energy_epsilon_per_atom": 0.002},  # none of the total energy: it hardly moves
        )

    runs = [run("reference", 1, -4.2832, -5.289), run("suggested", 2, -4.2832 + shift, -5.268)]
    campaign = SimpleNamespace(complete=dict)
    return " ".join(averages_differ(campaign, runs, {"ranks": 2}, constant_energy=constant_energy))


def test_averages_at_constant_energy_are_compared_where_the_runs_have_the_same_energy_only():
    # As found: a thermostat with random forces on other ranks, then constant energy (fix langevin, unfix, nve).
    assert "not compared" in _averages(shift=0.031, constant_energy=True)
    assert "DIFFER" not in _averages(shift=0.031, constant_energy=True)
    assert "DIFFER" in _averages(shift=0.0, constant_energy=True)
    # In a thermostat the energy is an average like others.
    assert "DIFFER" in _averages(shift=0.031, constant_energy=False)


def test_measured_speeds_are_timed_first_and_unsure_ones_not_left_out():
    own, measured, guessed, slow = (
        Estimate(params={"ranks": n}, runs=1, metrics={}, score=score)
        for n, score in ((1, 10.0), (2, 15.0), (4, 16.0), (8, 9.0))
    )

    def order(p):
        return p.score * (0.6 if p is guessed else 1.0)  # less than the script as it came is sure to have

    def found(*points):
        return contenders(points, lambda p: p is own, order)

    assert found(own, guessed, measured, slow) == [measured, guessed]
    assert found(own, guessed) == [guessed] and found(slow, own) == [own]
