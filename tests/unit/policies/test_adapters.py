"""Other people's optimisers keep the rules of a policy, and ours keep those of gest-api."""

from __future__ import annotations

import logging
import math
import random
import subprocess
import sys
import types
import warnings
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec

import numpy as np
import pytest

from hpcagent.errors import BadInput
from hpcagent.model.objective import Objective, at_least, at_most, maximize, minimize
from hpcagent.model.parameter import Choice, Float, Int, Params
from hpcagent.model.records import Observation
from hpcagent.model.space import Space
from hpcagent.policies import make_policy
from hpcagent.policies.adapters import common
from hpcagent.policies.adapters.imputation import believed, penalised, told
from hpcagent.testing import PolicyContract

optuna = pytest.importorskip("optuna", reason="pip install 'hpcagent[optuna]'")
pytest.importorskip("gest_api", reason="pip install 'hpcagent[gest]'")

LINE = Space.of(x=Float(0.0, 1.0))
SQUARE = Space.of(x=Float(0.0, 1.0), y=Float(0.0, 1.0))
SPEED = maximize("speed", subject_to={"error": at_most(1.0)})
ROUND_TRIP = "hpcagent.policies.adapters.gest:Generator"


class TestOptunaTPE(PolicyContract):
    factory = partial(make_policy, "optuna")
    steers = True
    several_goals = True


class TestOptunaCmaEs(PolicyContract):
    factory = partial(make_policy, "optuna", sampler="CmaEsSampler")
    steers = True


class TestOptunaNSGAII(PolicyContract):
    factory = partial(make_policy, "optuna", sampler="NSGAIISampler")
    steers = True
    several_goals = True


class TestGestWithOurOwnGenerator(PolicyContract):
    """There and back: a policy of ours, as a gest-api generator, as a policy."""

    factory = partial(
        make_policy, "gest", generator=ROUND_TRIP, options={"policy": "optuna", "sampler": "NSGAIISampler"}
    )
    steers = True
    several_goals = True


# A batch takes seconds, and the packages are too large for the extra `test`: tested where somebody has them.
if find_spec("ax"):

    @pytest.mark.slow
    class TestAx(PolicyContract):
        factory = partial(make_policy, "ax", startup=16)
        steers = True
        several_goals = True

else:

    def test_ax_keeps_the_rules():
        pytest.skip("Ax (PyTorch, 1.6 GB) is not in the extra test: pip install 'hpcagent[ax]' to test it")


if find_spec("torch"):

    @pytest.mark.slow
    class TestOptunaGP(PolicyContract):
        factory = partial(make_policy, "optuna", sampler="GPSampler", startup=16)
        steers = True
        several_goals = True

else:

    def test_the_gpsampler_keeps_the_rules():
        pytest.skip("PyTorch (1 GB) is not in the extra test: pip install 'hpcagent[optuna-gp]' to test it")


def run(x: float, index: int = 0, **metrics: float) -> Observation:
    return Observation({"x": x}, metrics=metrics, index=index)


def crash(x: float) -> Observation:
    return Observation({"x": x}, completed=False, failure="LostAtoms")


def campaign(
    policy: str,
    simulate: Callable[[Params], dict[str, float]],
    objective: Objective = SPEED,
    *,
    space: Space = SQUARE,
    batches: int = 8,
    **options: object,
) -> list[Observation]:
    steering = make_policy(policy, space=space, objective=objective, seed=3, **options)
    runs: list[Observation] = []
    for batch in range(batches):
        for point in steering.suggest(tuple(runs), 6):
            runs.append(Observation(point, metrics=simulate(point), batch=batch, index=len(runs)))
    return runs


# What is told


def test_a_failed_run_is_told_as_the_worst_goal_and_the_largest_violation_seen():
    history = [run(0.1, speed=3.0, error=0.5), run(0.5, speed=2.0, error=math.e**2), crash(0.9)]
    data = told(LINE, SPEED, history)
    assert [t.imputed for t in data] == [False, False, True]
    assert data[2].values == (2.0,)
    assert data[2].excess == pytest.approx((2.0,))  # log(e^2 / 1)
    cheap = told(LINE, minimize("cost"), [run(0.1, cost=3.0), run(0.2, cost=7.0), crash(0.9)])
    assert cheap[2].values == (7.0,)


def test_a_failed_run_is_told_as_infeasible_even_where_every_other_run_keeps_the_limits():
    assert told(LINE, SPEED, [run(0.1, speed=3.0, error=0.5), crash(0.9)])[1].excess == (1.0,)
    assert told(LINE, SPEED, [crash(0.9)])[0].excess == (1.0,)


@pytest.mark.parametrize("limit", [at_most(2.0), at_least(2.0), at_most(-2.0), at_least(0.0)])
def test_the_excess_is_positive_exactly_where_the_limit_is_broken_and_grows_with_the_violation(limit):
    objective = maximize("speed", subject_to={"m": limit})
    values = [1e9, 100.0, 2.1, 2.0, 1.0, 0.0, -1.0, -2.0, -1e9]
    data = told(LINE, objective, [run(0.5, speed=1.0, m=v) for v in values])
    constraint = objective.constraints[0]
    for v, t in zip(values, data, strict=True):
        assert (t.excess[0] > 0) == (constraint.excess(v) > 0), v
    order = [t.excess[0] for t in sorted(data, key=lambda t: t.excess[0])]
    assert order == sorted(order) and max(map(abs, order)) <= 10.0


def test_the_goal_of_a_distrusted_run_is_never_told():
    def distrusted(x, **metrics):
        return Observation({"x": x}, metrics=metrics, distrusted=True)

    history = [run(0.1, speed=1.0, error=0.5), run(0.2, speed=3.0, error=0.5)]
    kept = distrusted(0.3, speed=1e6, error=0.5)
    broken = distrusted(0.4, speed=1e6, error=5.0)
    data = told(LINE, SPEED, [*history, kept, broken, crash(0.9)])
    assert [t.params["x"] for t in data] == [0.1, 0.2, 0.4, 0.9]
    assert data[2].values == (2.0,) and not data[2].feasible
    assert data[3].values == (1.0,)


def test_runs_without_metrics_and_points_outside_of_the_space_are_left_out():
    history = [run(0.1), run(0.2, speed=1.0), run(7.0, speed=1.0, error=0.1), Observation({}), crash(8.0)]
    assert told(LINE, SPEED, history) == []


def test_an_optimiser_without_limits_is_told_that_breaking_one_is_worse_than_anything_that_keeps_them():
    history = [run(0.1, speed=1.0, error=0.5), run(0.2, speed=9.0, error=1.5), run(0.3, speed=99.0, error=50.0)]
    history += [run(0.4, speed=0.5, error=0.9)]
    for objective, sign in ((SPEED, 1), (minimize("speed", subject_to={"error": at_most(1.0)}), -1)):
        values = [sign * t.values[0] for t in penalised(objective, told(LINE, objective, history))]
        assert values[0] == sign * 1.0 and values[3] == sign * 0.5
        assert values[2] < values[1] < min(values[0], values[3])


def test_it_is_worse_also_where_every_goal_is_negative():
    history = [run(0.1, speed=-5.0, error=0.5), run(0.2, speed=-6.0, error=0.5), run(0.3, speed=0.0, error=1.001)]
    assert penalised(SPEED, told(LINE, SPEED, history))[2].values[0] < -6.0


def test_pending_points_are_believed_to_be_the_median_run():
    data = told(LINE, SPEED, [run(0.1, speed=s, error=0.5) for s in (1.0, 2.0, 30.0)])
    assert [(t.params, t.values) for t in believed(data, [{"x": 0.7}])] == [({"x": 0.7}, (2.0,))]
    assert believed([], [{"x": 0.7}]) == []


# Optuna


def mixed_history() -> tuple[Space, list[Observation]]:
    space = Space.of(
        x=Float(1e-3, 1.0, log=True),
        k=Int(1, 9),
        m=Int(2, 64, log=True),
        c=Choice("a", "b"),
        fixed=Float(2.0, 2.0),
    )
    points = space.sample(np.random.default_rng(0), 9)
    runs = [Observation(p, metrics={"speed": float(i), "error": 0.5 + 0.2 * i}) for i, p in enumerate(points)]
    return space, [*runs, Observation(points[0] | {"k": 9}, completed=False, failure="LostAtoms")]


def test_optuna_gets_limits_pending_points_and_native_parameters(monkeypatch):
    studies = []
    create = optuna.create_study
    monkeypatch.setattr(optuna, "create_study", lambda **kw: studies.append(create(**kw)) or studies[-1])
    space, history = mixed_history()
    waiting = [history[3].params | {"k": 5}]
    suggested = make_policy("optuna", space=space, objective=SPEED).suggest(history, 2, waiting)
    trials = studies[0].trials
    finished, running = trials[:10], trials[10]
    assert all(t.state == optuna.trial.TrialState.COMPLETE for t in finished)
    assert running.state == optuna.trial.TrialState.RUNNING and running.params["k"] == 5
    assert set(running.params) == {"x", "k", "m", "c"}  # no constants
    assert [t.value for t in finished] == [0, 1, 2, 3, 4, 5, 6, 7, 8, 0]
    limits = [getattr(t, "constraints", None) or t.system_attrs["constraints"] for t in finished]
    excess = [next(iter(e.values() if isinstance(e, dict) else e)) for e in limits]
    assert excess[0] == pytest.approx(math.log(0.5)) and excess[8] == pytest.approx(math.log(2.1))
    assert excess[9] == 1.0
    kinds = {n: (type(d).__name__, getattr(d, "log", None)) for n, d in running.distributions.items()}
    assert kinds == {
        "x": ("FloatDistribution", True),
        "k": ("IntDistribution", False),
        "m": ("IntDistribution", True),
        "c": ("CategoricalDistribution", None),
    }
    assert all(p["fixed"] == 2.0 for p in suggested)


@pytest.mark.parametrize(
    ("sampler", "kept", "mean"),
    [
        ("TPESampler", 0.5, 1.1),
        ("CmaEsSampler", 0.6, 1.0),
        ("NSGAIISampler", 0.5, 0.8),
        ("NSGAIIISampler", 0.5, 0.8),
    ],
)
def test_every_sampler_learns_the_goal_and_keeps_to_the_limits(sampler, kept, mean):
    """speed = x + y under x <= 0.5: of random points that keep the limit the mean is 0.75, the best is 1.5."""

    def simulate(p):
        return {"speed": p["x"] + p["y"], "error": (p["x"] / 0.5) ** 2}

    late = campaign("optuna", simulate, sampler=sampler, batches=12)[36:]
    speeds = [o.metrics["speed"] for o in late if o.metrics["error"] <= 1]
    assert len(speeds) > kept * len(late)
    assert np.mean(speeds) > mean


def test_a_sampler_with_memory_follows_its_own_path_though_it_is_made_anew_for_each_batch():
    """CMA-ES narrows its search generation by generation; told only of points, it would stay as wide as it began."""

    def simulate(p):
        return {"miss": (p["x"] - 0.3) ** 2 + (p["y"] - 0.8) ** 2}

    runs = campaign("optuna", simulate, minimize("miss"), sampler="CmaEsSampler", batches=12)
    assert np.mean([o.metrics["miss"] for o in runs[-18:]]) < 0.03  # 0.2 for random points


@pytest.mark.parametrize("sampler", ["CmaEsSampler", "NSGAIISampler", "NSGAIIISampler"])
def test_a_sampler_with_memory_is_told_the_points_that_were_run(sampler, monkeypatch):
    space, history = mixed_history()
    studies = []
    create = optuna.create_study
    monkeypatch.setattr(optuna, "create_study", lambda **kw: studies.append(create(**kw)) or studies[-1])
    make_policy("optuna", space=space, objective=maximize("speed"), sampler=sampler).suggest(history, 1)
    assert [t.params | {"fixed": 2.0} for t in studies[0].trials[:10]] == [o.params for o in history]
    assert [t.value for t in studies[0].trials[:10]] == [0, 1, 2, 3, 4, 5, 6, 7, 8, 0]


def test_of_more_runs_than_an_optimiser_can_take_it_gets_the_best_and_the_newest():
    policy = make_policy("optuna", space=LINE, objective=SPEED)
    policy.most_runs = 6
    speeds = [9.0, 1.0, 8.0, 99.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    history = [run(i / 10, speed=s, error=2.0 if s == 99.0 else 0.5) for i, s in enumerate(speeds)]
    assert [t.values[0] for t in policy._useful(told(LINE, SPEED, history))] == [9.0, 8.0, 3.0, 4.0, 5.0, 6.0]


def test_startup_points_are_those_of_our_sobol_sequence_and_then_the_sampler_takes_over():
    sobol = make_policy("sobol", space=SQUARE, objective=SPEED, seed=3)
    policy = make_policy("optuna", space=SQUARE, objective=SPEED, seed=3, startup=6)
    assert policy.suggest((), 5) == sobol.suggest((), 5)
    runs = campaign("optuna", lambda p: {"speed": p["x"], "error": 0.5}, batches=1)
    assert [r.role for r in policy.reasons(runs, 3)] == ["optuna"] * 3
    assert [r.params for r in policy.reasons(runs, 3)] == policy.suggest(runs, 3) != sobol.suggest(runs, 3)


def test_pending_points_change_what_is_suggested_after_the_startup():
    runs = campaign("optuna", lambda p: {"speed": p["x"], "error": 0.5}, batches=3)
    policy = make_policy("optuna", space=SQUARE, objective=SPEED, seed=3)
    first = policy.suggest(runs, 3)
    second = policy.suggest(runs, 3, first)
    assert not [p for p in second if p in first]


def test_several_goals_are_followed_at_once():
    """a = x - y and b = 1 - x - y: the front is y = 0, all x."""

    def simulate(p):
        return {"a": p["x"] - p["y"], "b": 1 - p["x"] - p["y"]}

    late = campaign("optuna", simulate, maximize("a", "b"), batches=10)[-18:]
    assert np.mean([o.params["y"] for o in late]) < 0.25
    assert np.ptp([o.params["x"] for o in late]) > 0.3


def test_a_finite_space_is_given_once_and_completely():
    space = Space.of(k=Int(1, 5), c=Choice("a", "b", "c"))
    runs = campaign("optuna", lambda p: {"speed": p["k"], "error": 0.5}, space=space, batches=5)
    assert len(runs) == 15 == len({tuple(o.params.items()) for o in runs})


def test_a_long_history_takes_less_than_seconds_with_samplers_that_are_replayed():
    space = SQUARE
    points = space.sample(np.random.default_rng(0), 300)
    runs = [Observation(p, metrics={"speed": p["x"], "error": 0.5}, index=i) for i, p in enumerate(points)]
    policy = make_policy("optuna", space=space, objective=SPEED, sampler="CmaEsSampler")
    assert len(policy.suggest(runs, 6)) == 6


def test_nothing_global_is_changed_and_nothing_is_said(capfd):
    optuna.logging.set_verbosity(optuna.logging.INFO)
    loggers = {name: (log.level, log.disabled) for name, log in sorted(_optuna_loggers().items())}
    assert not any(disabled for _, disabled in loggers.values())
    runs = campaign("optuna", lambda p: {"speed": p["x"], "error": 0.5}, batches=2)
    random.seed(5)
    np.random.seed(5)
    before = random.getstate(), np.random.get_state()[1].tolist(), list(warnings.filters)
    capfd.readouterr()
    make_policy("optuna", space=SQUARE, objective=SPEED).suggest(runs, 3)
    assert (random.getstate(), np.random.get_state()[1].tolist(), list(warnings.filters)) == before
    assert {name: (log.level, log.disabled) for name, log in sorted(_optuna_loggers().items())} == loggers
    assert capfd.readouterr() == ("", "")


def _optuna_loggers() -> dict[str, logging.Logger]:
    known = logging.Logger.manager.loggerDict.items()
    return {n: log for n, log in known if n.startswith("optuna") and isinstance(log, logging.Logger)}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sampler": "TPE"}, "unknown sampler 'TPE'.*TPESampler"),
        ({"sampler_options": {"n_ei_candidate": 3}}, "no option 'n_ei_candidate'.*n_ei_candidates"),
        ({"sampler_options": {"seed": 3}}, "may not hold 'seed'"),
        ({"sampler_options": ["multivariate"]}, "table of options"),
        ({"sampler_options": {"group": True, "multivariate": False}}, "not accepted.*group"),
        ({"startup": 0}, "startup=0 must be a whole number"),
        ({"samplr": "TPESampler"}, "no option 'samplr'"),
    ],
)
def test_wrong_options_are_refused_when_the_policy_is_made(options, words):
    with pytest.raises(BadInput, match=words):
        make_policy("optuna", space=SQUARE, objective=SPEED, **options)


@pytest.mark.parametrize(
    ("policy", "options", "words"),
    [
        ("optuna", {}, r"needs the package 'optuna'.*hpcagent\[optuna\]"),
        ("ax", {}, r"needs the package 'ax'.*hpcagent\[ax\]"),
        ("gest", {"generator": ROUND_TRIP}, r"needs the package 'gest_api'.*hpcagent\[gest\]"),
    ],
)
def test_a_missing_package_is_named_with_the_extra_that_brings_it(policy, options, words, monkeypatch):
    monkeypatch.setattr(common, "find_spec", lambda name: None)
    with pytest.raises(BadInput, match=words):
        make_policy(policy, space=SQUARE, objective=SPEED, **options)


def test_gpsampler_without_pytorch_says_what_to_install(monkeypatch):
    monkeypatch.setattr(common, "find_spec", lambda name: None if name == "torch" else find_spec(name))
    with pytest.raises(BadInput, match=r"'torch'.*hpcagent\[optuna-gp\]"):
        make_policy("optuna", space=SQUARE, objective=SPEED, sampler="GPSampler")


def test_the_adapters_import_nobody_until_they_are_used():
    code = """
import sys
import hpcagent.policies.adapters.ax, hpcagent.policies.adapters.gest, hpcagent.policies.adapters.optuna
from hpcagent.policies import policy_names
assert {'ax', 'gest', 'optuna'} <= set(policy_names())
print([m for m in ('optuna', 'ax', 'torch', 'gest_api', 'cmaes', 'scipy') if m in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# gest-api: their generators here


class Recorder:
    """A generator that draws points, one at a time, and keeps what it was told."""

    made: list[Recorder] = []

    def __init__(self, vocs, *, seed=0, fails=False):
        if fails:
            raise ValueError("I cannot take this.")
        self.vocs, self.rng, self.rows = vocs, np.random.default_rng(seed), []
        self.made.append(self)

    def suggest(self, num_points):
        if num_points != 1:
            raise ValueError("one at a time")
        found = {}
        for name, v in self.vocs.variables.items():
            values = getattr(v, "values", None)
            found[name] = self.rng.choice(sorted(values)) if values else np.float64(self.rng.uniform(*v.domain))
        return [found | {"_id": len(self.rows)}]

    def ingest(self, results):
        self.rows += results


@pytest.fixture
def recorder(monkeypatch):
    module = types.ModuleType("a_generator_of_theirs")
    module.Recorder = type("Recorder", (Recorder,), {"__module__": module.__name__, "made": []})
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module.Recorder


def test_a_generator_sees_logarithms_positions_and_tamed_limits(recorder):
    space, history = mixed_history()
    space = Space(parameters=(*space.parameters, Choice(0.5, 2, 8, name="q")))
    history = [Observation(o.params | {"q": 2}, o.completed, o.metrics, failure=o.failure) for o in history]
    policy = make_policy("gest", space=space, objective=SPEED, generator="a_generator_of_theirs:Recorder")
    points = policy.suggest(history, 3, [history[2].params | {"k": 5}])
    seen = recorder.made[-1]
    domains = {n: getattr(v, "domain", None) or sorted(v.values) for n, v in seen.vocs.variables.items()}
    assert domains == {
        "x": [-3.0, 0.0],
        "k": [1.0, 9.0],
        "m": pytest.approx([math.log10(2), math.log10(64)]),
        "c": [0, 1],
        "q": [0.5, 2, 8],
    }
    assert {n: type(o).__name__ for n, o in seen.vocs.objectives.items()} == {"speed": "MaximizeObjective"}
    assert {n: (type(c).__name__, c.value) for n, c in seen.vocs.constraints.items()} == {
        "error_excess": ("LessThanConstraint", 0.0)
    }
    first, failed, pending = seen.rows[0], seen.rows[9], seen.rows[10]
    assert first["x"] == pytest.approx(math.log10(history[0].params["x"]))
    assert first["c"] == ("a", "b").index(history[0].params["c"])
    assert first["speed"] == 0.0 and first["error_excess"] == pytest.approx(math.log(0.5))
    assert failed["speed"] == 0.0 and failed["error_excess"] == 1.0
    assert pending["k"] == 5 and pending["speed"] == 3.5
    assert len(points) == 3 and [space.validated(p) for p in points] == points
    assert policy.suggest(history, 3, [history[2].params | {"k": 5}]) == points  # its seed is ours


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "package.module:Class"),
        ({"generator": "no.such.module:G"}, "cannot be loaded"),
        ({"generator": "math:pi"}, "suggest and ingest"),
        ({"generator": "a_generator_of_theirs:Recorder", "options": {"fails": True}}, "I cannot take this"),
        ({"generator": "a_generator_of_theirs:Recorder", "options": {"nonsense": 1}}, "nonsense"),
        ({"generator": "a_generator_of_theirs:Recorder", "options": {"vocs": 1}}, "may not hold 'vocs'"),
    ],
)
def test_a_generator_that_is_not_one_or_refuses_is_named(options, words, recorder):
    with pytest.raises(BadInput, match=words):
        make_policy("gest", space=SQUARE, objective=SPEED, **options)


# gest-api: ours there


def exported(policy: str = "quality_first", **options: object):
    from gest_api.vocs import VOCS

    from hpcagent.policies.adapters.gest import Generator

    vocs = VOCS(
        variables={"time step": [1e-3, 1.0], "n": {1, 2, 4}, "style": {"a b", "c"}},
        objectives={"f": "MINIMIZE"},
        constraints={"c": ["BOUNDS", 0.0, 2.0], "d": ["GREATER_THAN", -1.0]},
        constants={"k": 5},
        observables={"o"},
    )
    return Generator(vocs, policy=policy, log=["time step"], **options)


def answered(points: list[dict[str, object]], **changes: object) -> list[dict[str, object]]:
    return [p | {"f": p["time step"], "c": 1.0, "d": 0.0, "o": 0.0} | changes for p in points]


def test_a_policy_of_ours_is_a_generator_of_the_standard():
    from gest_api.generator import Generator as Standard

    generator = exported(batch_size=3)
    assert isinstance(generator, Standard)
    assert len(generator.suggest(None)) == 3
    for _ in range(5):
        points = generator.suggest(4)
        assert len(points) == 4
        for p in points:
            assert list(p) == ["time step", "n", "style", "k"] and p["k"] == 5
            assert 1e-3 <= p["time step"] <= 1 and p["n"] in {1, 2, 4} and p["style"] in {"a b", "c"}
        generator.ingest(answered(points))
    generator.finalize()
    assert min(p["time step"] for p in points) < 0.01  # it is minimised


def test_results_that_are_missing_or_not_finite_are_failed_runs_and_foreign_points_are_data():
    generator = exported()
    points = generator.suggest(4)
    rows = answered(points)
    rows[1] |= {"f": float("nan")}
    del rows[2]["c"]
    rows[3]["time step"] *= 1 + 1e-9  # through a file of nine digits
    foreign = rows[0] | {"time step": 0.5}
    generator.ingest([*rows, foreign])
    history = generator._steering.history
    assert [o.completed for o in history] == [True, False, False, True, True]
    assert [o.role for o in history] == ["suggested"] * 4 + ["earlier"]
    assert generator._steering.pending == []
    assert history[0].metrics == {"f": points[0]["time step"], "c": 1.0, "d": 0.0}


def test_an_exported_sweep_follows_the_sequence_of_the_policy():
    space = Space.of(p0=Float(1e-3, 1.0, log=True), p1=Choice(1, 2, 4), p2=Choice("v0", "v1"))
    expected = make_policy("sobol", space=space, objective=minimize("f")).suggest((), 4)
    generator = exported("sobol")
    points = generator.suggest(2)
    generator.ingest(answered(points))
    points += generator.suggest(2)
    assert [p["time step"] for p in points] == [p["p0"] for p in expected]


def test_an_exhausted_space_is_a_value_error_as_the_standard_says():
    from gest_api.vocs import VOCS

    from hpcagent.policies.adapters.gest import Generator

    generator = Generator(VOCS(variables={"n": {1, 2, 3}}, objectives={"f": "MAXIMIZE"}), policy="sobol")
    with pytest.raises(ValueError, match="only 3 are left"):
        generator.suggest(4)
    assert len(generator.suggest(3)) == 3


@pytest.mark.parametrize(
    ("changes", "options", "words"),
    [
        ({"objectives": {"f": "EXPLORE"}}, {}, "'f' is a ExploreObjective"),
        ({"objectives": {}}, {}, "no objective"),
        ({"variables": {"t": "CONTEXTUAL"}}, {}, "only observed"),
        ({"objectives": {"f": "MINIMIZE", "g": "MINIMIZE"}}, {}, "one goal"),
        ({}, {"policy": "nonsense"}, "unknown policy 'nonsense'"),
        ({}, {"log": ["y"]}, "'y', which is not a variable"),
        ({}, {"log": "x"}, "low must be > 0"),
        ({}, {"batch_size": 0}, "batch_size=0"),
    ],
)
def test_what_a_policy_cannot_take_is_a_value_error(changes, options, words):
    from gest_api.vocs import VOCS

    from hpcagent.policies.adapters.gest import Generator

    vocs = VOCS(**({"variables": {"x": [0, 1]}, "objectives": {"f": "MINIMIZE"}} | changes))
    with pytest.raises(ValueError, match=words):
        Generator(vocs, **({"policy": "quality_first"} | options))


def test_results_without_a_variable_are_refused():
    with pytest.raises(ValueError, match="without the variable 'n'"):
        exported().ingest([{"time step": 0.1, "style": "c", "f": 1.0, "c": 1.0, "d": 0.0}])


def test_the_generator_without_gest_api_says_what_to_install(monkeypatch):
    from hpcagent.policies.adapters import gest

    monkeypatch.setattr(common, "find_spec", lambda name: None)
    monkeypatch.delitem(vars(gest), "Generator", raising=False)
    with pytest.raises(ImportError, match=r"hpcagent\[gest\]"):
        gest.Generator
