"""What if another policy had steered a recorded campaign: campaigns played in a world made of the record.

The surrogate is smooth, so that world is kinder to policies that model than reality is; its error, found by
leaving out one point at a time, is part of the answer.
"""

from __future__ import annotations

import heapq
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

import numpy as np

from hpcagent.campaign.choices import PolicyChoice
from hpcagent.campaign.compare import full_fidelity, projected
from hpcagent.campaign.decisions import decisions
from hpcagent.campaign.history import History
from hpcagent.campaign.loading import load_run
from hpcagent.campaign.record import Campaign
from hpcagent.campaign.recorded import replayed
from hpcagent.campaign.rolling import due
from hpcagent.errors import BadInput
from hpcagent.model.base import build, parse_toml
from hpcagent.model.parameter import Params
from hpcagent.model.records import Observation, Result, Role
from hpcagent.policies.base import make_policy, takes_option
from hpcagent.replays.regret import Course, ModelError, Played, Replay
from hpcagent.replays.world import World
from hpcagent.statistics.covariance import NoFit
from hpcagent.statistics.points import inside, key
from hpcagent.statistics.recommend import recommend
from hpcagent.statistics.surest import contenders
from hpcagent.store.rundir import RunDir

__all__ = ["PolicySpec", "policy_choice", "replay"]

PolicySpec: TypeAlias = str | Mapping[str, Any] | PolicyChoice


@dataclass
class _Tally:
    """A course while it goes on: worth of what was run and recommended, gaps come when the best is known."""

    world: World
    history: list[Observation]
    own: list[Observation]
    scores: list[float]
    answers: list[tuple[int, float]]
    node_hours: list[float]
    wrong: bool = False
    recorded: int = 0
    wall_s: float = 0.0

    @classmethod
    def begun(cls, world: World, earlier: Sequence[Observation] = ()) -> _Tally:
        return cls(world, list(earlier), [], [], [], [])

    def take(self, o: Observation, *, recorded: bool = False) -> None:
        """One more run, in the order in which they end."""
        self.scores.append(self._score(o.params))
        self.node_hours.append(o.node_hours)
        self.recorded += recorded
        for seen in projected(self.world.campaign, [o]):
            self.own.append(seen)
            self.history.append(seen)

    def answer(self) -> None:
        """Note what is recommended now."""
        campaign = self.world.campaign
        found = recommend(full_fidelity(campaign, self.own), campaign.objective, **_knowledge(campaign))
        if found is None or not found.feasible:
            self.wrong = False
            self.answers.append((len(self.scores), -math.inf))
            return
        # Of those that cannot be told apart one that was run more than once, as in the campaign's own answer.
        best = max(found.alike, key=lambda e: e.runs > 1)
        score = self._score(best.params)
        self.wrong = math.isinf(score)
        self.answers.append((len(self.scores), score))

    def course(self, seed: int | None, best: float, unit: float) -> Course:
        def gap(score: float) -> float:
            return min(1.0, max(0.0, (best - score) / unit))

        return Course(
            seed=seed,
            gaps=tuple(gap(s) for s in accumulate(self.scores, max)),
            recommended=tuple((k, gap(s)) for k, s in self.answers),
            wrong=self.wrong,
            node_hours=tuple(accumulate(self.node_hours)),
            wall_h=self.wall_s / 3600,
            failed=sum(o.failed for o in self.own),
            recorded=self.recorded,
        )

    def _score(self, params: Params) -> float:
        world = self.world
        known = projected(world.campaign, [Observation(world.campaign.complete(params))])
        point = inside(world.space, known[0].params) if known else None
        if point is None or not world.campaign.full(point):
            return -math.inf
        worth = world.worth([point])[0]
        return worth.score if worth.keeps else -math.inf


def _knowledge(campaign: Campaign) -> dict[str, Any]:
    return {"space": campaign.smoothed, "noise": campaign.noise}


@dataclass(frozen=True)
class _Plan:
    """How a policy is played."""

    choice: PolicyChoice
    label: str
    batch: int | None
    runs: int
    workers: int
    in_flight: int = 1


def replay(
    run_dir: str | Path,
    *,
    policy: PolicySpec | Sequence[PolicySpec] = (),
    batch: int | None = None,
    runs: int | None = None,
    seeds: int = 20,
    workers: int | None = None,
    watch: Callable[[str, int], None] | None = None,
) -> Replay:
    """Play other policies on a recorded campaign. Reads only, so the campaign may be running.

    Args:
        run_dir: The campaign's folder.
        policy: One or several: a name, `NAME:key=value,...`, or as in a campaign's TOML. The recorded policy, as
            it was asked, is always played too: the real campaign is but one draw of it.
        batch: Runs in a batch of the policies asked for; as recorded by default.
        runs: Runs of a campaign; as many as are recorded by default.
        seeds: How many campaigns of each policy.
        workers: Runs at the same time; as many as the record shows by default.
        watch: Called with a policy and the number of its next seed.

    Raises:
        BadInput: Not the folder of a campaign, too few runs in it, several goals, or a policy or option that is
            not known.
    """
    plans, world, earlier, results, elapsed_s = _prepared(run_dir, policy, batch, runs, seeds, workers)
    tallies = []
    for plan in plans:
        found = []
        for seed in range(seeds):
            if watch is not None:
                watch(plan.label, seed)
            found.append(_play(world, plan, seed, earlier))
        tallies.append(found)
    real = _real(world, results, elapsed_s)
    best = world.best
    if best is None:
        raise BadInput(
            f"{run_dir}: no point of this campaign, run or modelled, keeps every limit, so there is no best point "
            "to measure against; a looser limit needs a campaign of its own.",
            value=str(run_dir),
        )
    point, score = best
    value = world.objective.goal.score(score)
    unit, of_best = world.scale_of(value)
    units = {m.name: m.unit for m in world.campaign.app.contract.metrics}
    return Replay(
        run_dir=Path(run_dir),
        campaign=world.campaign,
        real=real.course(None, score, unit),
        played=tuple(
            Played(p.label, p.batch, tuple(t.course(i, score, unit) for i, t in enumerate(found)))
            for p, found in zip(plans, tallies, strict=True)
        ),
        errors=tuple(ModelError.of(m, units[m.metric]) for m in world.models),
        best=point,
        value=value,
        value_error=world.error_at(point),
        best_recorded=key(point) in world.at,
        unit_of_gap=unit,
        of_best=of_best,
        workers=plans[0].workers,
        table_world=world.is_table,
    )


def policy_choice(spec: PolicySpec) -> tuple[PolicyChoice, str]:
    """A policy from how it was named, and that name.

    Raises:
        BadInput: It cannot be read.

    Example:
        >>> policy_choice("ucb:buckets=4")[0].options
        {'buckets': 4}
    """
    if isinstance(spec, PolicyChoice):
        return spec, _label(spec)
    if isinstance(spec, Mapping):
        choice = build(PolicyChoice, dict(spec), where="policy")
        return choice, _label(choice)
    if not isinstance(spec, str) or not spec:
        raise BadInput(f"a policy is named like 'ucb' or 'ucb:buckets=4'; got {spec!r}.", value=spec)
    # The path of a plug-in, module:factory, has a colon as well.
    found = re.fullmatch(r"(.+?):(\w+\s*=.*)", spec)
    if found is None:
        return PolicyChoice(name=spec), spec
    return PolicyChoice(name=found[1], options=_options(found[2], spec)), spec


def _options(text: str, spec: str) -> dict[str, Any]:
    try:
        return parse_toml(f"options = {{{text}}}", spec)["options"]  # type: ignore[no-any-return]
    except BadInput:
        pass
    options: dict[str, Any] = {}
    for part in re.split(r",(?=\s*\w+\s*=)", text):  # words without quotes, as a shell leaves them
        name, equals, value = part.partition("=")
        if not equals or not name.strip().isidentifier():
            raise BadInput(f"policy {spec!r}: write NAME:key=value,key=value.", value=spec)
        try:
            options[name.strip()] = parse_toml(f"value = {value.strip()}", spec)["value"]
        except BadInput:
            options[name.strip()] = value.strip()
    return options


def _label(choice: PolicyChoice) -> str:
    options = ",".join(f"{name}={value}" for name, value in choice.options.items())
    return f"{choice.name}:{options}" if options else choice.name


def _prepared(
    run_dir: str | Path,
    policy: PolicySpec | Sequence[PolicySpec],
    batch: int | None,
    runs: int | None,
    seeds: int,
    workers: int | None,
) -> tuple[list[_Plan], World, list[Observation], Sequence[Result], float]:
    for name, value in (("batch", batch), ("runs", runs), ("seeds", seeds), ("workers", workers)):
        if value is not None and value < 1:
            raise BadInput(f"{name}={value} must be at least 1.", value=value)
    campaign = load_run(run_dir, to_read=True)
    if campaign.sweep:
        raise BadInput(
            f"{run_dir} is a sweep and has no objective that policies could be compared by; put one on it "
            f"(`hpcagent resume {run_dir} --set objective.minimize=METRIC`). `hpcagent replay --check` works."
        )
    if len(campaign.objective.goals) > 1:
        goals = ", ".join(g.metric for g in campaign.objective.goals)
        raise BadInput(
            f"{run_dir}: the objective has several goals ({goals}), so there is no one best point whose gap could "
            "be compared; `hpcagent replay --check` works.",
            value=goals,
        )
    specs = [policy] if isinstance(policy, (str, Mapping, PolicyChoice)) else list(policy)
    chosen = [policy_choice(spec) for spec in specs]
    for choice, _ in chosen:
        _made(campaign, choice, 0)  # a wrong name or option is told before anything is fitted
    state = replayed(RunDir(run_dir), campaign)
    history = History.now(campaign, state)
    earlier, results = history.earlier(), history.results
    try:
        world = World(campaign, results, earlier)
    except NoFit as error:
        raise BadInput(
            f"{run_dir}: no model of the points that were not run can be made: {error}. Let the campaign run on.",
            value=str(run_dir),
        ) from None
    was = None if campaign.mode == "rolling" else _batch_size(campaign, results)
    length = runs or len(world.real)
    count = workers or _at_once(results)
    ahead = campaign.in_flight or _in_flight(run_dir)
    plans = [_Plan(campaign.policy, _label(campaign.policy), was, length, count, ahead)]
    plans += [_Plan(choice, label, batch or was, length, count, ahead) for choice, label in chosen]
    return _different(plans), world, earlier, results, state.elapsed_s


def _different(plans: Sequence[_Plan]) -> list[_Plan]:
    """The plans, each once."""
    found: list[_Plan] = []
    for plan in plans:
        if all(plan.choice != p.choice or plan.batch != p.batch for p in found):
            found.append(plan)
    return found


def _made(campaign: Campaign, choice: PolicyChoice, seed: int) -> Any:
    """The policy. One that knows no fidelities gets the last level only."""
    asked = campaign.model_copy(update={"policy": choice})
    options, space = dict(asked.policy_options), campaign.search
    if campaign.fidelity is not None and not takes_option(choice.name, "fidelity"):
        options.pop("fidelity", None)
        space = space.narrowed({campaign.fidelity.parameter: {"choices": [campaign.fidelity.levels[-1]]}})
    return make_policy(choice.name, space=space, objective=campaign.objective, seed=seed, **options)


def _play(world: World, plan: _Plan, seed: int, earlier: Sequence[Observation]) -> _Tally:
    """One campaign in the world."""
    campaign = world.campaign
    policy = _made(campaign, plan.choice, seed)
    tally = _Tally.begun(world, earlier)
    runs = _Runs(world, seed)
    confirm = campaign.confirming
    reference = campaign.reference is not None
    reserve = min(plan.runs // 2, confirm.runs + reference) if confirm is not None and confirm.runs else 0
    wanted = plan.runs - reserve
    if plan.batch is None:
        _roll(tally, runs, policy, plan, wanted)
    else:
        number_of = 0
        while runs.made < wanted:
            n = min(plan.batch, wanted - runs.made)
            beside = reference and n > 1
            points = _valid(world, plan, policy.suggest(list(tally.history), n - beside))
            if not points:
                break
            _batch(tally, runs, [(p, "suggested") for p in points], number_of, plan.workers, reference=beside)
            number_of += 1
    if confirm is not None and confirm.runs and runs.made:
        _confirmation(tally, runs, plan)
    return tally


class _Runs:
    """The world's runs in one campaign: chances depend on the seed and on which run it is."""

    def __init__(self, world: World, seed: int) -> None:
        self.world, self.seed, self.made = world, seed, 0

    def at(self, params: Params, role: Role, batch: int) -> tuple[Observation, bool]:
        """A run at a point of the space."""
        o, recorded = self.world.run(params, self._chance())
        o = replace(o, params=self.world.campaign.complete(params), role=role, batch=batch, index=self.made)
        self.made += 1
        return o, recorded

    def references(self, batch: int) -> list[tuple[Observation, bool]]:
        """The run of the reference: one of those recorded, wherever it lies."""
        recorded = [o for o in self.world.real if o.role == "reference"]
        if not recorded:
            return []
        o = recorded[int(self._chance().integers(len(recorded)))]
        self.made += 1
        return [(replace(o, batch=batch, index=self.made - 1), True)]

    def _chance(self) -> np.random.Generator:
        return np.random.default_rng([self.seed, self.made, 7])


def _valid(world: World, plan: _Plan, points: Sequence[Params]) -> list[Params]:
    return [world.space.validated(p, where=f"policy {plan.choice.name}") for p in points]


def _batch(
    tally: _Tally, runs: _Runs, points: Sequence[tuple[Params, Role]], batch: int, workers: int, *, reference: bool
) -> None:
    done = [runs.at(p, role, batch) for p, role in points]
    if reference:
        done[len(done) // 2 : len(done) // 2] = runs.references(batch)
    for o, recorded in done:
        tally.take(o, recorded=recorded)
    tally.wall_s += _makespan([o.wall_s for o, _ in done], workers)
    tally.answer()


def _roll(tally: _Tally, runs: _Runs, policy: Any, plan: _Plan, wanted: int) -> None:
    """New suggestions while runs go on, with those in flight pending, as the coordinator asks for them."""
    going: list[tuple[float, int, Observation, bool]] = []
    free = [0.0] * plan.workers
    now, every = 0.0, max(1, wanted // 12)
    exhausted = False
    while going or (runs.made < wanted and not exhausted):
        n = min(due(max(plan.in_flight, plan.workers), len(going), plan.workers), wanted - runs.made)
        if n > 0 and not exhausted:
            pending = projected(runs.world.campaign, [g[2] for g in sorted(going, key=_index)])
            points = policy.suggest(list(tally.history), n, [o.params for o in pending])
            exhausted = not points and not going
            for point in _valid(runs.world, plan, points):
                o, recorded = runs.at(point, "suggested", 0)
                end = max(now, heapq.heappop(free)) + o.wall_s
                heapq.heappush(free, end)
                heapq.heappush(going, (end, o.index, o, recorded))
        if going:
            now, _, o, recorded = heapq.heappop(going)
            tally.take(o, recorded=recorded)
            if len(tally.scores) % every == 0:
                tally.answer()
    tally.wall_s += now
    tally.answer()


def _index(going: tuple[float, int, Observation, bool]) -> int:
    return going[1]


def _confirmation(tally: _Tally, runs: _Runs, plan: _Plan) -> None:
    """The last batch: the contenders again. A baseline, which lies elsewhere, is left out."""
    campaign = runs.world.campaign
    confirm = campaign.confirming
    assert confirm is not None
    seen = full_fidelity(campaign, tally.own)
    found = contenders(
        seen,
        campaign.objective,
        confirm.top,
        replicates=max(1, confirm.replicates),
        held=campaign.last_level,
        **_knowledge(campaign),
    )
    if not found:
        return
    points = [found[i % len(found)] for _ in range(confirm.replicates) for i in range(confirm.top)]
    points = points[: max(0, plan.runs - runs.made)]
    if points:
        batch = 1 + max((o.batch for o in tally.own), default=0)
        again: list[tuple[Params, Role]] = [(p, "replicate") for p in points]
        _batch(tally, runs, again, batch, plan.workers, reference=False)


def _real(world: World, results: Sequence[Result], elapsed_s: float) -> _Tally:
    """The recorded campaign, judged by the same worth of points."""
    tally = _Tally.begun(world)
    rolling = world.campaign.mode == "rolling"
    every = max(1, len(world.real) // 12)
    for i, o in enumerate(world.real):
        tally.take(o, recorded=True)
        last = i + 1 == len(world.real)
        if last or (len(tally.scores) % every == 0 if rolling else world.real[i + 1].batch != o.batch):
            tally.answer()
    times = [(r.started_at, r.ended_at) for r in results if r.ended_at]
    tally.wall_s = max(e for _, e in times) - min(s for s, _ in times) if times else elapsed_s
    return tally


def _makespan(times: Sequence[float], workers: int) -> float:
    free = [0.0] * workers
    for seconds in times:
        heapq.heappush(free, heapq.heappop(free) + seconds)
    return max(free)


def _batch_size(campaign: Campaign, results: Sequence[Result]) -> int:
    if campaign.batch_size:
        return campaign.batch_size
    sizes = Counter(Counter(r.manifest.batch for r in results).values())
    return sizes.most_common(1)[0][0] if sizes else 1


def _in_flight(run_dir: str | Path) -> int:
    """How many runs there were in flight after a suggestion, typically."""
    asked = [len(d.pending) + len(d.manifests) for d in decisions(run_dir)]
    return max(1, round(median(asked))) if asked else 1


def _at_once(results: Sequence[Result]) -> int:
    """How many runs went at the same time, at most."""
    edges = [(r.started_at, 1) for r in results if r.ended_at] + [(r.ended_at, -1) for r in results if r.ended_at]
    return max([1, *accumulate(step for _, step in sorted(edges))])
