"""Models of properties: coverage on held-out data, flags, refusals, records."""

from __future__ import annotations

import csv
import hashlib
import json
import math
import pickle
from pathlib import Path

import numpy as np
import pytest

import hpcagent as ha
from hpcagent.errors import AppFailed
from hpcagent.science.ml.features import elements_of
from hpcagent.science.ml.predict import ml_predict_property
from hpcagent.science.ml.regressors import fit, predict
from hpcagent.science.ml.saved import load, model_id, save
from hpcagent.science.ml.surrogate import ml_train_surrogate
from hpcagent.science.ml.tables import read_table
from tests.unit.science.ml.tables import called, waves


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    called(ml_train_surrogate, folder, paths={"data": waves(folder / "d.csv", 0)}, target="y", features="a,b")
    return folder / "surrogate.npz"


# 120 rows calibrate with `cross`, 24 with `split`: a further one is inside with ceil(0.9 (n + 1)) / (n + 1).
@pytest.mark.parametrize(("calibration", "wanted"), [("cross", 109 / 121), ("split", 23 / 25)])
def test_intervals_hold_new_rows_as_often_as_they_say_over_twenty_seeds(
    tmp_path: Path, calibration: str, wanted: float
) -> None:
    held, measured = [], []
    for seed in range(20):
        outcome = called(
            ml_train_surrogate,
            tmp_path / str(seed),
            seed=seed,
            paths={"data": waves(tmp_path / f"{seed}.csv", seed)},
            target="y",
            features="a,b",
            calibration=calibration,
            coverage=0.9,
        )
        measured.append(outcome.metrics["coverage_measured"])
        model = tmp_path / str(seed) / "surrogate.npz"
        new = waves(tmp_path / f"new{seed}.csv", 1000 + seed, n=300)
        called(
            ml_predict_property,
            tmp_path / f"p{seed}",
            paths={"model": model, "rows": new},
            model_id=model_id(model),
        )
        with new.open() as truth, (tmp_path / f"p{seed}" / "predictions.csv").open() as said:
            for row, wave in zip(csv.DictReader(said), csv.DictReader(truth), strict=True):
                y, low, high = (float(v) for v in (wave["y [GPa]"], row["lower [GPa]"], row["upper [GPa]"]))
                held.append(low <= y <= high)
    # The coverage of one calibration on n rows scatters by sqrt(0.09 / n): 0.06 for 24, of twenty 0.014.
    assert np.mean(held) == pytest.approx(wanted, abs=0.035)
    # What the reports say is the same share, of 30 test rows each.
    assert np.mean(measured) == pytest.approx(np.mean(held), abs=0.05)


def test_twice_the_stated_error_holds_95_percent_of_new_values(tmp_path: Path) -> None:
    held = []
    for seed in range(20):
        data = waves(tmp_path / f"{seed}.csv", seed)
        called(
            ml_train_surrogate, tmp_path / f"t{seed}", seed=seed, paths={"data": data}, target="y", features="a,b"
        )
        model = tmp_path / f"t{seed}" / "surrogate.npz"
        rng = np.random.default_rng(seed)
        for a in (-0.8, -0.1, 0.4):
            outcome = called(
                ml_predict_property,
                tmp_path / "p",
                paths={"model": model},
                model_id=model_id(model),
                descriptors=f"a = {a} eV, b = 0.2",
            )
            if outcome.metrics["extrapolation"]:  # far from its neighbours by chance: no error is stated
                continue
            truth = math.sin(3 * a) + 0.04 + (0.3 if a > 0 else 0.1) * rng.normal(size=20)
            held += list(np.abs(truth - outcome.metrics["prediction"]) <= 2 * outcome.uncertainty["prediction"])
    assert len(held) > 1000 and 0.92 <= np.mean(held) <= 0.99


def test_flags_fire_on_a_group_that_was_left_out_and_hardly_on_others(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    away, near = [], []
    for seed in range(5):
        centres = rng.uniform(-3, 3, (8, 4))
        centres[0] = 6.0
        rows = [(f"g{g}", *(centres[g] + 0.3 * rng.normal(size=4))) for g in range(8) for _ in range(25)]

        def write(name: str, some: list[tuple[object, ...]]) -> Path:
            path = tmp_path / name
            path.write_text(
                "g,a,b,c,d,y\n" + "".join(",".join(map(str, (*r, float(sum(r[1:]))))) + "\n" for r in some)
            )
            return path

        known = [r for i, r in enumerate(rows) if r[0] != "g0" and i % 5]
        data = write("d.csv", known)
        called(ml_train_surrogate, tmp_path / "t", seed=seed, paths={"data": data}, target="y", features="a,b,c,d")
        model = tmp_path / "t" / "surrogate.npz"
        for found, some in ((away, [r for r in rows if r[0] == "g0"]), (near, rows[25::5])):
            outcome = called(
                ml_predict_property,
                tmp_path / "p",
                paths={"model": model, "rows": write("n.csv", some)},
                model_id=model_id(model),
            )
            found.append(outcome.metrics["n_extrapolated"] / outcome.metrics["n_rows"])
    assert np.mean(away) == 1.0
    assert np.mean(near) < 0.15  # 5 % of rows like the training data


def test_beyond_the_data_there_is_an_interval_but_no_standard_error(trained: Path, tmp_path: Path) -> None:
    def at(a: float):  # type: ignore[no-untyped-def]
        asked = f"a = {a} eV, b = 0.1"
        return called(
            ml_predict_property, tmp_path, paths={"model": trained}, model_id=model_id(trained), descriptors=asked
        )

    inside, beyond = at(0.1), at(9.0)
    assert inside.metrics["extrapolation"] == 0 and inside.uncertainty["prediction"] > 0
    assert beyond.metrics["extrapolation"] == 1 and not beyond.uncertainty
    assert beyond.metrics["half_width"] > 0 and any("not known" in note for note in beyond.notes)
    assert inside.units["prediction"] == "GPa"


def test_groups_are_held_out_whole(tmp_path: Path) -> None:
    data = waves(tmp_path / "d.csv", 1)
    outcome = called(
        ml_train_surrogate, tmp_path / "t", paths={"data": data}, target="y", features="a,b", group="g"
    )
    with (tmp_path / "t" / "test.csv").open() as file:
        tested = {(int(row["row"]) - 1) % 15 for row in csv.DictReader(file)}
    assert len(tested) == 3 and outcome.metrics["n_test"] == 30  # 15 groups of 10 rows, one part in five
    report = json.loads((tmp_path / "t" / "report.json").read_text())
    assert set(report["by_group"]) == {f"g{i}" for i in tested}
    assert report["calibration"] == "cross conformal, 5 folds of g"
    assert outcome.metrics["coverage_lowest_group"] <= outcome.metrics["coverage_measured"]


def test_rows_that_are_not_used_are_named(tmp_path: Path) -> None:
    data = waves(tmp_path / "d.csv", 2, more="0.1,,0.3,g1\n0.1,0.2,,g1\n0.1,0.2,inf,g2\n")
    outcome = called(ml_train_surrogate, tmp_path / "t", paths={"data": data}, target="y", features="a,b")
    assert outcome.metrics["n_rows"] == 150 and outcome.metrics["n_dropped"] == 3
    assert (tmp_path / "t" / "dropped.csv").read_text().splitlines() == [
        "row,why",
        "151,no finite number in b",
        "152,no finite number in y",
        "153,no finite number in y",
    ]
    assert any("3 of 153 rows were not used (row 151: no finite number in b" in note for note in outcome.notes)


def test_the_record_says_what_the_model_was_made_of(trained: Path) -> None:
    _, record = load(trained, "surrogate")
    data = trained.with_name("d.csv")
    assert record["data_sha256"] == hashlib.sha256(data.read_bytes()).hexdigest()
    assert record["seed"] == 0 and record["n_rows"] == 150 and record["unit"] == "GPa"
    assert record["versions"]["numpy"] == np.__version__
    assert record["features"]["columns"] == [["a", "eV"], ["b", "1"]]


def test_the_same_training_gives_the_same_model_id(tmp_path: Path) -> None:
    data = waves(tmp_path / "d.csv", 3, n=60)
    for name in "ab":
        called(ml_train_surrogate, tmp_path / name, seed=4, paths={"data": data}, target="y", features="a,b")
    one, other = (model_id(tmp_path / name / "surrogate.npz") for name in "ab")
    assert one == other


@pytest.mark.parametrize(
    ("asked", "name", "said"),
    [
        ("a = 0.1 eV", "BadData", "no finite number in b"),
        ("a = 0.1 meV, b = 1", "OtherUnit", "'meV', the model takes 'eV'"),
        ("a = 0.1 eV, b = 1, c = 2", "BadData", "'c' is no column"),
        ("a = 0.1 eV, a = 0.2 eV, b = 1", "BadData", "stands twice"),
        ("a: 0.1", "BadData", "name = number unit"),
        ("", "NoData", "nothing is asked for"),
    ],
)
def test_what_is_not_what_the_model_takes_is_refused(
    trained: Path, tmp_path: Path, asked: str, name: str, said: str
) -> None:
    if asked == "a = 0.1 eV":
        name, said = "MissingColumn", "'b'"
    with pytest.raises(AppFailed, match=said) as refused:
        called(
            ml_predict_property, tmp_path, paths={"model": trained}, model_id=model_id(trained), descriptors=asked
        )
    assert refused.value.name == name


def test_rows_in_another_unit_or_without_a_column_are_refused(trained: Path, tmp_path: Path) -> None:
    for head, name in (("a [meV],b", "OtherUnit"), ("a [eV],c", "MissingColumn")):
        (tmp_path / "r.csv").write_text(f"{head}\n0.1,0.2\n")
        with pytest.raises(AppFailed) as refused:
            called(
                ml_predict_property,
                tmp_path / "p",
                paths={"model": trained, "rows": tmp_path / "r.csv"},
                model_id=model_id(trained),
            )
        assert refused.value.name == name


def test_another_file_than_the_model_id_says_is_refused(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(AppFailed, match="not the model that was asked for") as refused:
        called(
            ml_predict_property,
            tmp_path,
            paths={"model": trained},
            model_id="0" * 64,
            descriptors="a = 0 eV, b = 0",
        )
    assert refused.value.name == "OtherModel"


class _Opened:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (eval, ("__import__('pathlib').Path('opened').touch()",))


def test_a_pickle_in_a_model_file_is_never_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plain = tmp_path / "plain.npz"
    plain.write_bytes(pickle.dumps(_Opened()))
    inside = tmp_path / "inside.npz"
    np.savez(inside, record=np.array([_Opened()], dtype=object), allow_pickle=True)
    other = tmp_path / "other.npz"
    save(other, "pod", {}, {})
    for file in (plain, inside, other):
        with pytest.raises(AppFailed) as refused:
            load(file, "surrogate")
        assert refused.value.name == "NotAModel"
    assert not (tmp_path / "opened").exists()


def test_too_few_rows_for_a_coverage_are_refused_with_how_many_it_needs(tmp_path: Path) -> None:
    data = waves(tmp_path / "d.csv", 0, n=20)
    with pytest.raises(AppFailed, match="fewer than the 19") as refused:
        called(ml_train_surrogate, tmp_path / "t", paths={"data": data}, target="y", features="a,b")
    assert refused.value.name == "TooFewRows"


@pytest.mark.parametrize(
    ("params", "name"),
    [
        ({"target": "z", "features": "a"}, "MissingColumn"),
        ({"target": "y", "features": "a,z"}, "MissingColumn"),
        ({"target": "y", "features": ""}, "NoFeatures"),
        ({"target": "y", "features": "a,y"}, "NoFeatures"),
        ({"target": "y", "features": "a", "group": "g", "test_folds": 20}, "TooFewGroups"),
    ],
)
def test_training_that_cannot_be_is_refused(tmp_path: Path, params: dict[str, object], name: str) -> None:
    data = waves(tmp_path / "d.csv", 0, n=60)
    with pytest.raises(AppFailed) as refused:
        called(ml_train_surrogate, tmp_path / "t", paths={"data": data}, **params)
    assert refused.value.name == name


def test_shares_of_elements_are_those_of_the_formula() -> None:
    assert elements_of("Fe2(SO4)3") == pytest.approx({"Fe": 2 / 17, "S": 3 / 17, "O": 12 / 17})
    assert elements_of("Ni0.8Al0.2") == pytest.approx({"Ni": 0.8, "Al": 0.2})
    for wrong in ("", "Q2", "2", "(Fe", "Fe)", "fe"):
        with pytest.raises(ValueError):
            elements_of(wrong)


def test_compositions_are_learnt_and_unknown_elements_refused(tmp_path: Path) -> None:
    # A law of mixtures: the mean of the elements' numbers.
    rng = np.random.default_rng(0)
    number = {"Al": 13.0, "Cu": 29.0, "Ni": 28.0}
    lines = ["formula,z"]
    for _ in range(80):
        n = dict(zip(number, rng.integers(0, 9, 3).tolist(), strict=True))
        n["Al"] += 1
        whole = sum(n.values())
        formula = "".join(f"{s}{k}" for s, k in n.items() if k)
        lines.append(f"{formula},{sum(number[s] * k for s, k in n.items()) / whole + 0.05 * rng.normal()}")
    (tmp_path / "d.csv").write_text("\n".join(lines))
    outcome = called(
        ml_train_surrogate, tmp_path / "t", paths={"data": tmp_path / "d.csv"}, target="z", composition="formula"
    )
    assert outcome.metrics["n_features"] == 3 and outcome.metrics["rmse"] < 0.2
    model = tmp_path / "t" / "surrogate.npz"

    def of(formula: str) -> float:
        asked = {"model_id": model_id(model), "composition": formula}
        return called(ml_predict_property, tmp_path / "p", paths={"model": model}, **asked).metrics["prediction"]

    assert of("AlCuNi") == pytest.approx(70 / 3, abs=0.3)
    with pytest.raises(AppFailed, match="not trained on Fe") as refused:
        of("AlFe")
    assert refused.value.name == "UnknownElement"


def test_the_results_of_a_campaign_are_a_table(tmp_path: Path) -> None:
    from hpcagent.store.export import export_columns

    campaign = ha.Campaign(
        ha.find_app("synthetic"), ha.minimize("value"), policy="random", until=ha.until.max_runs(40), batch_size=40
    )
    result = ha.run(campaign, site="threads", run_dir=tmp_path / "c")
    export_columns(result.columns, tmp_path / "c.csv", to="csv")
    outcome = called(
        ml_train_surrogate,
        tmp_path / "t",
        paths={"data": tmp_path / "c.csv"},
        target="metrics/value",
        features="params/x,params/y",
    )
    assert outcome.metrics["n_rows"] == 40


def test_tables_in_json_say_their_units(tmp_path: Path) -> None:
    rows = [{"a": 1.0, "y": 2.0}, {"a": None, "y": 1}]
    (tmp_path / "d.json").write_text(json.dumps({"units": {"a": "eV"}, "rows": rows}))
    table = read_table(tmp_path / "d.json")
    assert table.units == {"a": "eV", "y": "1"} and len(table.rows) == 2
    for text in ("3", '{"rows": [1]}', '{"units": {"b": "eV"}, "rows": [{"a": 1}]}', "{"):
        (tmp_path / "d.json").write_text(text)
        with pytest.raises(AppFailed) as refused:
            read_table(tmp_path / "d.json")
        assert refused.value.name == "BadData"


@pytest.mark.parametrize("text", ["a,a\n1,2\n", "a,b\n1\n", "a],b\n1,2\n", ""])
def test_a_crooked_csv_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "d.csv").write_text(text)
    with pytest.raises(AppFailed) as refused:
        read_table(tmp_path / "d.csv")
    assert refused.value.name == "BadData"


@pytest.mark.parametrize("kind", ["gp_ard", "forest"])
def test_arrays_predict_what_scikit_learn_predicts(kind: str) -> None:
    pytest.importorskip("sklearn")
    from sklearn.ensemble import RandomForestRegressor

    rng = np.random.default_rng(0)
    x = rng.normal(size=(25, 3))
    y = np.sin(x[:, 0]) + 0.1 * rng.normal(size=25)
    new = rng.normal(size=(30, 3))
    mean, spread = predict(fit(kind, x, y, seed=1, trees=20), new)
    if kind == "forest":
        made = RandomForestRegressor(20, random_state=1).fit(x, y)
        assert mean == pytest.approx(made.predict(new))
        assert spread == pytest.approx(np.std([tree.predict(new) for tree in made.estimators_], axis=0))
    else:
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

        arrays = fit(kind, x, y, seed=1, trees=20)
        variance, noise, centre, unit = arrays["hyper"].tolist()
        kernel = ConstantKernel(variance) * Matern(1 / arrays["scales"], nu=2.5) + WhiteKernel(noise)
        made = GaussianProcessRegressor(kernel, optimizer=None).fit(x, (y - centre) / unit)
        wanted, sigma = made.predict(new, return_std=True)
        assert mean == pytest.approx(centre + unit * wanted, abs=1e-6)
        assert spread == pytest.approx(unit * sigma, abs=1e-5)


def test_our_process_predicts_what_its_own_class_predicts() -> None:
    from hpcagent.model.parameter import Float
    from hpcagent.model.space import Space
    from hpcagent.statistics.features import Features
    from hpcagent.statistics.gp import GP

    rng = np.random.default_rng(0)
    x = rng.uniform(0, 1, (40, 2))
    x[0], x[1] = 0.0, 1.0  # the range is the cube itself
    y = np.sin(4 * x[:, 0]) + 0.1 * rng.normal(size=40)
    new = rng.uniform(0, 1, (20, 2))
    own = GP.fit(Features(Space.of(x0=Float(0, 1), x1=Float(0, 1))), x, y, kernel="matern")
    wanted, sigma = own.predict(new)
    mean, spread = predict(fit("gp", x, y, seed=0, trees=1), new)
    assert mean == pytest.approx(wanted, abs=1e-6)
    assert spread == pytest.approx(np.hypot(sigma, own.unit * math.sqrt(own.own_noise)), rel=1e-4)


def test_magpie_descriptors_are_matminers(tmp_path: Path) -> None:
    pytest.importorskip("matminer")
    from hpcagent.science.ml.features import Features
    from hpcagent.science.ml.tables import Table

    features = Features(composition="f", by="magpie", elements=("Al", "Ni"))
    table = Table({"f": "1"}, ({"f": "Al3Ni"},), (), "t")
    x, names = features.matrix(table, [0])
    # Mean atomic number of Al3Ni: (3 * 13 + 28) / 4.
    assert x[0, names.index("MagpieData mean Number")] == pytest.approx(16.75)


def test_soap_descriptors_do_not_see_rotations() -> None:
    pytest.importorskip("dscribe")
    from ase.build import molecule

    from hpcagent.science.ml.features import Features
    from hpcagent.science.ml.tables import Table

    one, turned, other = molecule("H2O"), molecule("H2O"), molecule("H2O")
    turned.rotate(37, "xyz")
    other.positions[1] += 0.1
    features = Features(soap={"cutoff": 4.0, "n_max": 3, "l_max": 2}, elements=("H", "O"))
    x, _ = features.matrix(Table({}, ({}, {}, {}), (one, turned, other), "t"), [0, 1, 2])
    assert x[0] == pytest.approx(x[1], abs=1e-6) and np.abs(x[0] - x[2]).max() > 1e-3
