"""What is known of noise, from the contract to the policy; repeats as runs of their own."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import hpcagent as ha
from hpcagent.errors import BadInput
from hpcagent.model.contract import Metric
from hpcagent.policies import make_policy

SPEEDS = {"a": 8.0, "b": 9.0, "c": 10.0, "d": 12.0}


@ha.app(parameters={"word": ha.Choice(*SPEEDS)}, metrics={"speed": Metric(name="speed", unit="1/s", noise=0.2)})
def words(word: str, run: Any) -> dict[str, float]:
    """A speed with 20 % of noise, which the contract states."""
    rng = random.Random(f"{run.seed} {run.replicate} {word}")
    return {"speed": SPEEDS[word] * (1 + 0.2 * rng.gauss(0, 1))}


@ha.app(parameters={"word": ha.Choice(*SPEEDS)}, metrics={"speed": "1/s"}, seeded=False)
def exact(word: str) -> dict[str, float]:
    """No seed decides it."""
    return {"speed": SPEEDS[word]}


def campaign(app: Any, *, policy: str = "bayes", runs: int = 24, **more: Any) -> ha.Campaign:
    return ha.Campaign(
        name="words",
        app=app,
        objective=ha.maximize("speed"),
        policy=policy,
        batch_size=4,
        until=ha.until.max_runs(runs),
    ).model_copy(update=more)


def test_the_contracts_noise_reaches_the_policies_that_ask_for_it() -> None:
    assert campaign(words).noise == {"speed": 0.2}
    assert campaign(words).policy_options["noise"] == {"speed": 0.2}
    assert "noise" not in campaign(words, policy="sobol").policy_options
    assert not campaign(words).exact and campaign(words).smoothed is not None
    assert campaign(exact).noise == {"speed": 0.0} and campaign(exact).exact


@pytest.mark.parametrize("wrong", [{"speed": -0.1}, {"speed": "much"}, {"speed": True}, 0.2])
def test_noise_that_is_no_share_is_refused(wrong: Any) -> None:
    space = words.contract.space
    with pytest.raises(BadInput, match="noise"):
        make_policy("bayes", space=space, objective=ha.maximize("speed"), noise=wrong)


def test_a_repeat_is_a_run_of_its_own_and_the_budget_is_used(tmp_path: Path) -> None:
    """Four words, 24 runs: each repeat has its replicate, execution id and value."""
    result = ha.run(campaign(words), site="threads", run_dir=tmp_path / "run")
    assert len(result.results) == 24 and "24 runs" in str(result.reason)
    assert len({r.manifest.execution_id for r in result.results}) == 24
    assert len({r.metrics["speed"] for r in result.results}) == 24
    for word in SPEEDS:
        own = [r.manifest for r in result.results if r.manifest.params["word"] == word]
        assert [m.replicate for m in own] == list(range(len(own)))
    assert result.best is not None and result.best.runs > 6


def test_exact_runs_are_never_repeated(tmp_path: Path) -> None:
    result = ha.run(campaign(exact), site="threads", run_dir=tmp_path / "run")
    assert len(result.results) == 4 and "exhausted" in str(result.reason)
    assert result.best is not None and result.best.params == {"word": "d"}


def test_a_rolling_campaign_repeats_too(tmp_path: Path) -> None:
    rolling = campaign(words, runs=12, mode="rolling")
    result = ha.run(rolling, site="threads", run_dir=tmp_path / "run")
    assert len({r.manifest.execution_id for r in result.results}) == 12


@ha.app(parameters={"word": ha.Choice(*SPEEDS)}, metrics={"speed": "1/s"})
def unstated(word: str, run: Any) -> dict[str, float]:
    """A speed whose noise nobody states."""
    return {"speed": SPEEDS[word] * (1 + 0.2 * random.Random(f"{run.seed} {run.replicate} {word}").gauss(0, 1))}


def test_an_answer_says_why_nothing_is_said_of_what_was_missed(tmp_path: Path) -> None:
    result = ha.run(campaign(unstated, runs=4), site="threads", run_dir=tmp_path / "unstated")
    assert result.missed is None and "the noise of speed is not stated" in str(result)
    assert "95 % sure" not in str(result)


def test_models_are_named_only_where_they_fitted(tmp_path: Path) -> None:
    result = ha.run(campaign(unstated, runs=2), site="threads", run_dir=tmp_path / "two")
    assert not result.best.expected and "the models of all" not in str(result)
    assert "a better point was missed cannot be said: 2 points with a completed run; a model needs 3" in str(
        result
    )
