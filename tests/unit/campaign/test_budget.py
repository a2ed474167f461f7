"""Node-hours as a hard cap: what runs will take, what may still begin, and what is kept back."""

from __future__ import annotations

import math
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcagent.apps.decorator import app
from hpcagent.campaign.budget import Budget, Outlook, costs
from hpcagent.campaign.coordinator import Coordinator
from hpcagent.campaign.decisions import replays
from hpcagent.campaign.launch_costs import LaunchCost
from hpcagent.campaign.record import Campaign
from hpcagent.campaign.runner import Runner
from hpcagent.campaign.runtimes import Load, RunTimes
from hpcagent.campaign.spending import Spending
from hpcagent.campaign.state import State
from hpcagent.errors import AppFailed, BadInput
from hpcagent.model.contract import Resources
from hpcagent.model.objective import maximize
from hpcagent.model.parameter import Choice, Float
from hpcagent.model.records import Cost, Failure, Manifest, Result, Stopped
from hpcagent.policies.stop_combined import all_of, any_of
from hpcagent.policies.stop_spent import max_runs, node_hours
from hpcagent.runs.follow import follow
from hpcagent.runs.run import run
from hpcagent.store.journal import Journal
from hpcagent.store.rundir import RunDir

SPACE = {
    "x": Float(0.0, 1.0),
    "y": Float(1e-3, 1.0, log=True),
    "style": Choice("a", "b", "c"),
}


@app(name="paced", version="1.0.0", parameters=SPACE, metrics={"value": "1"}, estimated_runtime_s=60.0)
def paced(x: float, y: float, style: str) -> dict[str, float]:
    return {"value": x}


@app(
    name="sleeper",
    version="1.0.0",
    parameters={"x": Float(0.0, 1.0)},
    metrics={"value": "1"},
    estimated_runtime_s=0.02,
)
def sleeper(x: float) -> dict[str, float]:
    time.sleep(0.01 + 0.03 * x)
    return {"value": 1 - (x - 0.5) ** 2}


@app(
    name="stuck",
    version="1.0.0",
    parameters={"x": Float(0.0, 1.0)},
    metrics={"value": "1"},
    estimated_runtime_s=0.001,
)
def stuck(x: float) -> dict[str, float]:
    time.sleep(2.0)
    return {"value": x}


@app(
    name="flaky",
    version="1.0.0",
    parameters={"x": Float(0.0, 1.0)},
    metrics={"value": "1"},
    estimated_runtime_s=0.02,
)
def flaky(x: float) -> dict[str, float]:
    time.sleep(0.02)
    raise AppFailed("the file system is away.", kind="infrastructure", name="Away")


def campaign(cap: float | None, what: Any = paced, **more: Any) -> Campaign:
    until = {"max_runs": 500} | ({} if cap is None else {"node_hours": cap})
    return Campaign(what, maximize("value"), **({"until": until, "policy": "sobol"} | more))


class Truth:
    """Log-normal run times that depend on every parameter, by factors that differ between seeds."""

    def __init__(self, seed: int, *, outliers: float = 0.0) -> None:
        self.rng, self.outliers = np.random.default_rng(seed), outliers
        self.base = 60 * math.exp(self.rng.normal(0, 0.8))
        self.slopes = self.rng.normal(0, 0.7, 2)
        self.styles = dict(zip("abc", self.rng.normal(0, 0.4, 3), strict=True))
        self.spread = self.rng.choice([0.03, 0.1, 0.3, 0.6])

    def point(self) -> dict[str, Any]:
        x, y = self.rng.random(2)
        return {"x": float(x), "y": float(10 ** (-3 * y)), "style": str(self.rng.choice(list("abc")))}

    def seconds(self, params: dict[str, Any]) -> float:
        u, v = 2 * params["x"] - 1, 1 + 2 * math.log10(params["y"]) / 3
        told = self.slopes @ [u, v] + self.styles[params["style"]] + self.rng.normal(0, self.spread)
        longer = min(10.0, self.rng.pareto(1.4) + 1) if self.rng.random() < self.outliers else 1.0
        return self.base * math.exp(told) * longer

    def typical_hours(self) -> float:
        return float(np.mean([self.seconds(self.point()) for _ in range(200)])) / 3600


def ended(params: dict[str, Any], seconds: float, *, failed: bool = False, **more: Any) -> Result:
    manifest = Manifest(execution_id=f"{params}{seconds}", app="paced", app_version="1.0.0", params=params, **more)
    failure = Failure(kind="simulation", name="Crash", message="gone.") if failed else None
    cost = Cost(wall_s=seconds, node_hours=seconds / 3600)
    return Result(manifest=manifest, status="FAILED" if failed else "COMPLETED", failure=failure, cost=cost)


def known(truth: Truth, n: int, **more: Any) -> RunTimes:
    times = RunTimes(campaign(None, **more), node_cores=1)
    points = [truth.point() for _ in range(n)]
    times.learn([ended(p, truth.seconds(p)) for p in points])
    return times


# -- what runs will take ----------------------------------------------------------------------


@pytest.mark.parametrize("n", [3, 10, 40, 200])
def test_the_forecast_quantiles_hold_for_one_run_and_for_the_sum_of_eight(n: int) -> None:
    one, eight = {0.5: 0, 0.95: 0}, {0.5: 0, 0.95: 0}
    for seed in range(100):
        truth = Truth(seed)
        times = known(truth, n)
        points = [truth.point() for _ in range(8)]
        taken = [truth.seconds(p) / 3600 for p in points]
        loads = times.loads(points)
        for p in one:
            one[p] += taken[0] <= loads[0].quantile(p)
            eight[p] += sum(taken) <= sum(loads, Load.none()).quantile(p)
    # Of 100 seeds the binomial distribution leaves these ranges with a probability below 1 %.
    for counted in (one, eight):
        assert 36 <= counted[0.5] <= 66
        assert counted[0.95] >= 88


def test_what_a_parameter_does_is_learned() -> None:
    truth = Truth(3)
    truth.spread, truth.slopes = 0.05, np.array([1.5, 0.0])
    times = known(truth, 40)
    quick, slow = {"x": 0.0, "y": 0.03, "style": "a"}, {"x": 1.0, "y": 0.03, "style": "a"}
    (_, few, _), (_, many, _) = times.estimates([quick, slow])
    assert many / few == pytest.approx(math.exp(3.0), rel=0.2)  # from one end to the other: e^(2 * 1.5)


def test_before_the_first_run_there_is_the_contracts_estimate_with_a_wide_spread() -> None:
    times = RunTimes(campaign(None), node_cores=1)
    seconds, hours, high = times.estimates([Truth(0).point()])[0]
    assert (seconds, hours) == (pytest.approx(60.0), pytest.approx(60 / 3600))
    assert high > 3 * hours


def test_a_walltime_is_the_most_that_a_run_takes_unless_runs_are_seen_that_took_more() -> None:
    limited = paced.model_copy(
        update={"contract": paced.contract.model_copy(update={"resources": Resources(walltime_s=90.0)})}
    )
    times = RunTimes(campaign(None, limited), node_cores=1)
    point = Truth(0).point()
    (load,) = times.loads([point])
    assert load.quantile(0.9999) <= 1.05 * 90 / 3600
    times.learn([ended(point, 400.0, resources=Resources(walltime_s=90.0))])
    (load,) = times.loads([point])
    assert load.quantile(0.9) > 1.05 * 90 / 3600


@pytest.mark.parametrize("whole", [0, 4])
def test_runs_that_the_guard_has_stopped_do_not_make_the_others_look_short(whole: int) -> None:
    def stopped(params: dict[str, Any], seconds: float, share: float) -> Result:
        found = ended(params, seconds * share)
        why = Stopped(reason="limit", sentence="It would break a limit.", share=share)
        return found.model_copy(update={"status": "STOPPED", "stopped": why})

    truth = Truth(5)
    points = [truth.point() for _ in range(8)]
    times = RunTimes(campaign(None), node_cores=1)
    times.learn([ended(p, 100.0) for p in points[:whole]] + [stopped(p, 100.0, 0.1) for p in points[whole:]])
    (load,) = times.loads([truth.point()])
    assert 50 / 3600 < load.quantile(0.5) < 150 / 3600
    assert 80 / 3600 < load.quantile(0.8) < 200 / 3600


def test_runs_that_break_off_do_not_make_the_others_look_short() -> None:
    truth = Truth(5)
    truth.spread = 0.1
    points = [truth.point() for _ in range(40)]
    times = RunTimes(campaign(None), node_cores=1)
    broke = [i % 4 == 0 for i in range(40)]
    times.learn(
        [ended(p, truth.seconds(p) * (0.1 if b else 1.0), failed=b) for p, b in zip(points, broke, strict=True)]
    )
    asked = [truth.point() for _ in range(200)]
    whole = sum(truth.seconds(p) for p in asked) / 3600
    expected = sum(hours for _, hours, _ in times.estimates(asked))
    assert expected == pytest.approx(whole * (0.75 + 0.25 * 0.1), rel=0.15)
    assert sum(times.loads(asked), Load.none()).quantile(0.99) > 0.9 * whole


def test_what_takes_long_is_learned_before_it_ends() -> None:
    truth = Truth(1)
    truth.spread = 0.1
    times = known(truth, 12)
    point = truth.point()
    usual = times.loads([point])[0].expected
    times.loads([point] * 4, [10 * usual * 3600] * 4)
    assert times.loads([point])[0].expected > 2 * usual


# -- what may begin ---------------------------------------------------------------------------


def spend(
    seed: int, *, outliers: float = 0.0, batch: int = 8, walltime: float | None = None
) -> tuple[float, float]:
    """A campaign in batches on paper: share of the cap that was spent, and the cap in typical runs."""
    truth = Truth(seed, outliers=outliers)
    typical = truth.typical_hours()
    what = paced
    longest = math.inf
    if walltime is not None:
        longest = walltime * typical * 3600
        resources = Resources(walltime_s=longest)
        what = paced.model_copy(update={"contract": paced.contract.model_copy(update={"resources": resources})})
    cap = typical * math.exp(truth.rng.uniform(math.log(20), math.log(100)))
    budget = Budget(campaign(cap, what), node_cores=1)
    spent = 0.0
    while True:
        n = budget.most(batch, spent=spent, running=Load.none())
        points = [truth.point() for _ in range(n)]
        chosen = budget.fitting([(p, "suggested") for p in points], spent=spent, running=Load.none())
        if not chosen:
            return spent / cap, cap / typical
        results = [ended(points[i], min(truth.seconds(points[i]), longest)) for i in chosen]
        spent += sum(r.cost.node_hours for r in results)
        budget.times.learn(results)


def test_plans_keep_the_cap_and_use_it() -> None:
    shares = np.array([spend(seed)[0] for seed in range(60)])
    assert (shares > 1).sum() <= 1
    assert np.median(shares) > 0.85


def test_plans_nearly_always_keep_the_cap_where_runs_are_stopped_at_their_walltime() -> None:
    """One run in twenty takes up to ten times as long, or its walltime: four typical runs."""
    shares = np.array([spend(seed, outliers=0.05, walltime=4.0)[0] for seed in range(40)])
    assert (shares > 1).sum() <= 2 and shares.max() < 1.1
    assert np.median(shares) > 0.85


def test_a_batch_is_shrunk_to_what_fits_and_refused_with_the_numbers() -> None:
    truth = Truth(2)
    truth.spread = 0.05
    budget = Budget(campaign(10.0), node_cores=1)
    budget.times = known(truth, 40)
    points = [(truth.point(), "suggested") for _ in range(8)]
    one = budget.times.loads([p for p, _ in points])
    taken = np.cumsum([load.expected for load in one])
    chosen = budget.fitting(points, spent=10.0 - 1.1 * taken[4], running=Load.none())
    assert chosen in ([0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3, 4])
    least = min(load.expected for load in one)
    assert budget.fitting(points, spent=10.0 - 0.5 * least, running=Load.none()) == []
    words = budget.refusal([p for p, _ in points], spent=9.97, running=Load.none(), reserve=[])
    assert "the cap of 10 node-hours" in words and "9.97 are spent" in words and f"{least:.2g}" in words


def test_a_reference_goes_first_but_not_alone() -> None:
    truth = Truth(2)
    truth.spread = 0.05
    budget = Budget(campaign(10.0), node_cores=1)
    budget.times = known(truth, 40)
    point = truth.point()
    one = budget.times.loads([point])[0].quantile(0.999)
    points = [(point, "suggested"), (point, "reference"), (point, "suggested")]
    assert budget.fitting(points, spent=10 - 2.5 * one, running=Load.none()) == [0, 1]
    assert budget.fitting(points, spent=10 - 1.2 * one, running=Load.none()) == []


def test_runs_in_flight_count_with_what_they_still_need() -> None:
    truth = Truth(2)
    truth.spread = 0.05
    budget = Budget(campaign(10.0), node_cores=1)
    budget.times = known(truth, 40)
    point = truth.point()
    one = budget.times.loads([point])[0].expected
    manifest = ended(point, 1.0).manifest
    fresh = budget.committed({"a": (manifest, 0.0)})
    late = budget.committed({"a": (manifest, 5 * one * 3600)})
    assert fresh.expected == pytest.approx(one, rel=0.05)
    assert late.expected > 5 * one
    budget.committed({})
    room: dict[str, Any] = {"spent": 10.0 - 3.2 * one, "reserve": ()}
    assert budget.fitting([(point, "suggested")] * 2, running=Load.none(), **room) == [0, 1]
    assert budget.fitting([(point, "suggested")] * 2, running=fresh, **room) == [0]


def test_the_share_of_the_confirmation_is_kept_but_at_most_half_of_the_cap() -> None:
    truth = Truth(2)
    truth.spread = 0.05
    budget = Budget(campaign(10.0), node_cores=1)
    budget.times = known(truth, 40)
    point = truth.point()
    one = budget.times.loads([point])[0].expected
    points = [(point, "suggested")] * 8
    spent = 10.0 - 12 * one
    free = budget.fitting(points, spent=spent, running=Load.none())
    kept = budget.fitting(points, spent=spent, running=Load.none(), reserve=[point] * 5)
    assert len(free) == 8 and 4 <= len(kept) <= 6
    budget.cap = 12 * one
    assert budget.reserved([point] * 100).expected == pytest.approx(6 * one, rel=0.2)


def test_a_cap_in_any_of_is_one_and_in_all_of_it_takes_all() -> None:
    assert any_of(max_runs(9), node_hours(2.0), node_hours(1.5)).cap() == 1.5
    assert all_of(max_runs(9), node_hours(2.0)).cap() is None
    assert all_of(node_hours(1.0), node_hours(2.0)).cap() == 2.0
    assert any_of(max_runs(9), all_of(max_runs(9), node_hours(2.0))).cap() is None


def test_a_cap_below_one_run_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    limited = sleeper.model_copy(
        update={"contract": sleeper.contract.model_copy(update={"resources": Resources(walltime_s=3600.0)})}
    )
    with pytest.raises(BadInput, match="at its walltime"):
        Coordinator(campaign(1e-3, limited), site="threads", run_dir=tmp_path / "r")
    with pytest.raises(BadInput, match="estimated_runtime_s"):
        Coordinator(campaign(1e-9, sleeper), site="threads", run_dir=tmp_path / "r")
    assert not (tmp_path / "r").exists()


# -- campaigns --------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["batch", "rolling"])
def test_a_campaign_keeps_its_cap_with_its_confirmation_and_says_why_it_ends(tmp_path: Path, mode: str) -> None:
    cap = 0.6 / 3600  # 0.6 s of whole nodes
    asked = campaign(cap, sleeper, mode=mode, batch_size=8, confirm={"top": 2, "replicates": 2})
    outlooks: list[Outlook] = []
    result = run(
        asked,
        site="threads",
        run_dir=tmp_path / "r",
        watch=lambda e: outlooks.append(e.outlook) if e.outlook is not None else None,
    )
    assert 0 < result.node_hours <= cap
    roles = [r.manifest.role for r in result.results]
    assert "replicate" in roles  # its share was kept
    assert len(roles) < 500
    assert result.reason is not None and "leaves no room for another run" in result.reason
    assert outlooks[-1].cap == cap and outlooks[-1].spent == pytest.approx(result.node_hours)
    assert all(r.manifest.estimated_node_hours for r in result.results)
    assert "cost: estimated" in str(result)
    assert replays(tmp_path / "r") == []
    assert "node-hours spent" in next(iter(follow(tmp_path / "r"))).reason
    again = run(asked, site="threads", run_dir=tmp_path / "r")
    assert len(again.results) == len(result.results)


def test_a_larger_cap_goes_on_and_confirms_again(tmp_path: Path) -> None:
    small = campaign(0.3 / 3600, sleeper, batch_size=4, confirm={"top": 1, "replicates": 2})
    first = run(small, site="threads", run_dir=tmp_path / "r")
    runs = len(first.results) + 20  # the new cap is large enough for these on a busy machine too
    large = small.model_copy(update={"until": any_of(max_runs(runs), node_hours(20 / 3600))})
    second = run(large, site="threads", run_dir=tmp_path / "r")
    assert len(second.results) > len(first.results) + 2
    assert second.results[-1].manifest.role == "replicate"
    assert second.node_hours <= 20 / 3600


def test_attempts_that_are_repeated_count_against_the_cap(tmp_path: Path) -> None:
    free = run(campaign(None, flaky, until={"max_runs": 6}, batch_size=6), site="threads", run_dir=tmp_path / "a")
    assert {r.attempt for r in free.results} == {3}
    # Each attempt takes 0.02 s on a share of a node; six runs of three attempts do not fit, six of one do.
    cap = 0.55 * free.node_hours
    held = run(campaign(cap, flaky, batch_size=6), site="threads", run_dir=tmp_path / "b")
    assert held.node_hours <= cap
    assert any(r.attempt < 3 and "cap of node-hours" in r.failure.message for r in held.results if r.failure)


@app(parameters={"x": Float(0.0, 1.0)}, metrics={"value": "1"}, estimated_runtime_s=36.0, ensemble=True)
def sharing(x: float) -> dict[str, float]:
    return {"value": x}


def test_what_launches_take_beside_their_runs_counts_against_the_cap(tmp_path: Path) -> None:
    launch, began = LaunchCost.of(Resources(nodes=2, ranks_per_node=4), 4), time.time() - 3600
    assert launch.unbooked() == 0 and launch.event("first") is None  # it waits for its nodes
    launch.hear({"began": began})
    launch.pay({"cost": {"node_hours": 0.5}})
    assert launch.unbooked(0.25) == pytest.approx(1.25, abs=0.05)
    launch.hear({"ended": began + 3600})
    assert launch.unbooked(0.25) == pytest.approx(1.25)
    event = launch.event("first")
    assert event is not None and event["overhead_node_hours"] == pytest.approx(1.5)
    assert launch.event("first") is None  # once
    state = State()
    state.apply(event | {"at": 1.0})
    assert (state.node_hours, state.overhead) == (0.0, pytest.approx(1.5))
    with pytest.raises(ValueError, match="overhead_node_hours"):
        state.apply(event | {"at": 2.0, "overhead_node_hours": math.nan})

    asked, manifest = campaign(3.0, sharing), sharing.manifest({"x": 0.5})
    spending = Spending(asked, state, tmp_path)
    spending.look({manifest.execution_id: manifest})
    assert spending.plan([({"x": 0.1}, "suggested")]) == [0] and not spending.at_the_cap()
    seen: list[set[str]] = []
    spending.unbooked = lambda taken: seen.append(set(taken)) or 1.5  # type: ignore[func-returns-value]
    assert spending.plan([({"x": 0.1}, "suggested")]) == [] and "3 are spent" in str(spending.refusal)
    assert spending.at_the_cap().keys() == {manifest.execution_id} and "3 were spent" in str(spending.reached)
    assert seen[-1] == {manifest.execution_id} and spending.outlook().spent == pytest.approx(3.0)


def test_what_goes_on_at_the_cap_is_ended(tmp_path: Path) -> None:
    """The estimate says a millisecond, the runs take 2 s: no forecast could know."""
    cap = 0.5 / 3600
    told: list[str] = []
    asked = campaign(cap, stuck, batch_size=4)
    result = run(asked, site="threads", run_dir=tmp_path / "r", watch=lambda e: told.append(e.kind))
    cut = [r for r in result.results if r.failure is not None and r.failure.name == "CapReached"]
    assert cut and all(r.status == "STOPPED" for r in cut)
    assert result.reason is not None and result.reason.startswith(f"the cap of {cap:g} node-hours is reached")
    # A look a second, at the runs of at most all workers.
    assert result.node_hours <= cap + 1.5 * 4 / 3600


def test_an_attempt_whose_worker_did_not_live_to_tell_counts_as_an_expected_run() -> None:
    asked = campaign(10.0)
    truth = Truth(4)
    truth.spread = 0.05
    state, budget = State(), Budget(asked, node_cores=1)
    for _ in range(10):
        point = truth.point()
        result = ended(point, truth.seconds(point))
        state.add_manifest(result.manifest)
        state.add_result(result)
    budget.learn(state)
    before = budget.spent(state)
    lost = state.manifests[0]
    state.apply(
        {"event": "retry", "execution_id": lost.execution_id, "attempt": 2, "failure": None, "node_hours": 0.0}
    )
    expected = budget.times.loads([lost.params])[0].expected
    assert budget.spent(state) - before == pytest.approx(expected)


class Lost:
    """A site that loses every run."""

    about: dict[str, Any] = {}
    workers = 4

    def __init__(self) -> None:
        from hpcagent.sites.workers.fair_share import Turns

        self.turns, self.sent = Turns(), 0

    def place(self, resources: Any, *, estimated_runtime_s: float | None = None) -> tuple[str, dict[str, Any]]:
        return "workers", {}

    def submit(self, *args: Any, **more: Any) -> Future[Any]:
        self.sent += 1
        future: Future[Any] = Future()
        failure = {"kind": "infrastructure", "name": "Away", "message": "gone.", "log_tail": "", "repair": None}
        future.set_result({"status": "FAILED", "failure": failure, "cost": {"wall_s": 1.0, "node_hours": 1.0}})
        return future


def test_a_further_attempt_that_the_budget_refuses_ends_the_run_with_its_last_failure(tmp_path: Path) -> None:
    folder, state, site = RunDir(tmp_path), State(), Lost()
    journal = Journal.open(folder.events)
    runner = Runner(paced, site, state, journal, folder, retries=5)  # type: ignore[arg-type]
    manifest = paced.manifest({"x": 0.5, "y": 0.1, "style": "a"})
    state.add_manifest(manifest)
    runner.may_retry = lambda which, hours: state.node_hours + hours < 2.0
    runner.start([manifest])
    results = []
    while runner.running:
        runner.peek(1.0)
        results += runner.collect()
    journal.close()
    (result,) = results
    assert site.sent == 2 and state.node_hours == pytest.approx(2.0)
    assert result.failure is not None and "the cap of node-hours leaves no room" in result.failure.message


# -- what is told -----------------------------------------------------------------------------


def test_the_outlook_has_what_is_spent_in_flight_forecast_and_the_cap() -> None:
    truth = Truth(6)
    truth.spread, truth.slopes = 0.02, np.zeros(2)
    truth.styles = dict.fromkeys("abc", 0.0)
    asked = campaign(100.0, until={"max_runs": 30, "node_hours": 100.0})
    state, budget = State(), Budget(asked, node_cores=1)
    for _ in range(10):
        point = truth.point()
        result = ended(point, truth.seconds(point))
        state.add_manifest(result.manifest)
        state.add_result(result)
    flying = {"a": (ended(truth.point(), 1.0).manifest, 0.0)}
    found = budget.outlook(state, flying)
    one = truth.base / 3600
    assert found.spent == pytest.approx(10 * one, rel=0.05)
    assert found.committed == pytest.approx(one, rel=0.2)
    assert found.forecast == pytest.approx(30 * one, rel=0.1)
    assert found.high is not None and found.forecast <= found.high <= 100.0
    assert "spent" in str(found) and "in flight" in str(found) and "cap 100" in str(found)
    assert budget.outlook(state, {}, closed=True).forecast == pytest.approx(found.spent)


def test_estimated_against_actual_cost_in_a_sentence() -> None:
    results = [
        ended({"x": 0.1 * i}, 3600.0 * actual, estimated_node_hours=1.0, batch=min(i, 1))
        for i, actual in enumerate([20.0, 0.5, 1.0, 2.0])
    ]
    assert results[3].cost_ratio == 2.0
    words = costs(results)
    # By hand: sums 4 and 23.5; the median of 0.5, 1, 2; 9 of 10 parts of the way between ln 2 and ln 2. The first
    # batch, forecast before anything was known, says nothing of the forecasts.
    assert words == (
        "estimated 4, actual 23.5 node-hours of 4 run(s) (after the first batch a run took 1.00 times its forecast "
        "in the median, and 90 % of the runs within a factor of 2 of that)"
    )
    alike = [results[0], *(ended({"x": 0.1 * i}, 3600.0, estimated_node_hours=1.0, batch=1) for i in range(3))]
    assert (costs(alike) or "").endswith(
        "1.00 times its forecast in the median, and 90 % of the runs within 5 % of that)"
    )
    assert costs(results[:3]) == "estimated 3, actual 21.5 node-hours of 3 run(s)"
    assert costs(results[:2]) is None
