"""What if another policy had steered a recorded campaign: its runs played again, in a world made of the record.

The world: at a point that was run, one of its recorded results; anywhere else a draw from the surrogate that is
fitted to all recorded runs (mean, noise of a run, chance to fail). What a point is really worth is fixed: the
surrogate's mean. Where every point of a finite space was run no surrogate is needed, and it is the recorded mean.
The surrogate is smooth, so such a world is kinder to policies that model than reality is; its error, found by
leaving out one point at a time, is part of the answer.
"""

from __future__ import annotations

import heapq
import math
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

import numpy as np
from scipy.special import stdtrit

from hpcagent.campaign.answer import number, point_text
from hpcagent.campaign.compare import compare, full_fidelity, observations, projected
from hpcagent.campaign.coordinator import load_run
from hpcagent.campaign.played import decisions
from hpcagent.campaign.plots import available
from hpcagent.campaign.record import Campaign, PolicyChoice
from hpcagent.campaign.rolling import due
from hpcagent.campaign.runtimes import RunTimes
from hpcagent.campaign.state import State
from hpcagent.campaign.table import Table
from hpcagent.campaign.warm import earlier_observations
from hpcagent.errors import BadInput
from hpcagent.model.base import build
from hpcagent.model.records import Observation, Result, Role
from hpcagent.model.space import Params
from hpcagent.policies.base import make_policy, takes_option
from hpcagent.policies.gp import Array, NoFit
from hpcagent.policies.points import Key, inside, key
from hpcagent.policies.recommend import recommend, top
from hpcagent.policies.surrogate import MetricModel, Surrogate
from hpcagent.store.files import refusing_clearly
from hpcagent.store.journal import read_events
from hpcagent.store.rundir import RunDir

__all__ = [
    "Course",
    "ModelError",
    "Played",
    "PolicySpec",
    "Replay",
    "World",
    "check_plot",
    "policy_choice",
    "replay",
]

PolicySpec: TypeAlias = str | Mapping[str, Any] | PolicyChoice

CANDIDATES = 4096
NEAR, ENDS = 64, 8
POOR = 0.5
CLOSE = (0.05, 0.01)
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9")  # Okabe and Ito 2008


@dataclass(frozen=True)
class ModelError:
    """How well the surrogate says one metric of a point that it has not seen: each point left out in turn.

    Attributes:
        metric: Its name.
        unit: Its unit.
        points: How many points were left out, one at a time.
        rms: Root mean square error, in the unit.
        relative: The same of error / value; None where a value is not positive.
        r2: 1 - squared error / variance, on the scale of the model; includes the noise of the runs.
        within_one: Share of the points that it says within one standard error: 0.68 where it knows its error.
        within_two: Within two: 0.95.
    """

    metric: str
    unit: str
    points: int
    rms: float
    relative: float | None
    r2: float
    within_one: float
    within_two: float

    @property
    def poor(self) -> bool:
        """Whether it explains less than half of the variance."""
        return not self.r2 >= POOR

    @classmethod
    def of(cls, model: MetricModel, unit: str) -> ModelError:
        """Leave out every point of a model in turn."""
        said, error = model.gp.left_out()
        seen = model.gp.centre + model.gp.unit * model.gp.y
        raw_said, raw = model.scale.backward(said), model.scale.backward(seen)
        spread = float(((seen - seen.mean()) ** 2).sum())
        squares = float(((said - seen) ** 2).sum())
        off = np.abs(said - seen) / error
        return cls(
            metric=model.metric,
            unit=unit,
            points=len(seen),
            rms=_rms(raw_said - raw),
            relative=_rms(raw_said / raw - 1) if (raw > 0).all() else None,
            r2=1 - squares / spread if spread > 0 else (1.0 if squares == 0 else -math.inf),
            within_one=float((off <= 1).mean()),
            within_two=float((off <= 2).mean()),
        )

    def __str__(self) -> str:
        unit = "" if self.unit == "1" else f" {self.unit}"
        # Of values near zero the relative error says nothing.
        relative = "" if self.relative is None or self.relative > 1 else f" ({self.relative:.1%})"
        return (
            f"{self.metric}: error {number(self.rms)}{unit}{relative}, R2 = {self.r2:.2f}, "
            f"{self.within_one:.0%} within 1 and {self.within_two:.0%} within 2 standard errors"
        )


@dataclass(frozen=True)
class Course:
    """One campaign, played or real.

    Attributes:
        seed: Of the policy and of the world's chances; None for the real one.
        gaps: Gap of the best point run so far to the best of the world, after each run; 1 before there is one
            that keeps the limits.
        recommended: Runs, and the gap of the point that is recommended then; 1 if it breaks a limit, or if none
            can be recommended.
        wrong: Whether the last recommendation is said to keep the limits and does not.
        node_hours: Spent after each run.
        wall_h: Hours from the first run to the last.
        failed: Runs that failed.
        recorded: Runs at points that the real campaign has run.
    """

    seed: int | None
    gaps: tuple[float, ...]
    recommended: tuple[tuple[int, float], ...]
    wrong: bool
    node_hours: tuple[float, ...]
    wall_h: float
    failed: int
    recorded: int

    @property
    def runs(self) -> int:
        """How many runs it had; fewer than wanted where a design was exhausted."""
        return len(self.gaps)

    @property
    def final(self) -> float:
        """Gap of the last recommendation."""
        return self.recommended[-1][1] if self.recommended else 1.0

    def reached(self, gap: float) -> int | None:
        """Runs until a point within `gap` of the best was run, or None."""
        return next((k for k, found in enumerate(self.gaps, 1) if found <= gap), None)


@dataclass(frozen=True)
class Played:
    """One policy, played with several seeds.

    Attributes:
        policy: As it was named.
        batch: Runs in a batch; None: a new suggestion whenever a run ends.
        courses: One for each seed.
    """

    policy: str
    batch: int | None
    courses: tuple[Course, ...]

    @property
    def label(self) -> str:
        """The policy, and how it was asked."""
        return f"{self.policy}, {'rolling' if self.batch is None else f'batch {self.batch}'}"

    @property
    def runs(self) -> int:
        """Of the longest course."""
        return max(c.runs for c in self.courses)

    def quantile(self, p: float) -> list[float]:
        """Quantile over the seeds of the gap after each run."""
        rows = [[*c.gaps, *[c.gaps[-1] if c.gaps else 1.0] * (self.runs - c.runs)] for c in self.courses]
        return np.quantile(np.array(rows), p, axis=0).tolist()  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Replay:
    """What came of it.

    Attributes:
        run_dir: The recorded campaign.
        real: Its own course, judged in the same world.
        played: The recorded policy as it was, played with other seeds; then those asked for.
        errors: How well the surrogate knows each metric; empty where none was needed.
        best: The best point of the world.
        value: The goal's value there, in its unit.
        value_error: Its standard error by the surrogate; 0 where it was measured.
        best_recorded: Whether the real campaign has run it.
        unit_of_gap: What a gap of 1 is, in the goal's unit.
        of_best: Whether that is the best value itself; otherwise the range of the recorded values.
        workers: Runs at the same time.
        campaign: What was recorded.
        table_world: Whether every point of the space was run.

    Example:
        >>> import tempfile
        >>> from hpcagent.campaign.coordinator import run
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = run("synthetic", site="threads", run_dir=folder)
        ...     found = replay(folder, policy="random", seeds=2)
        >>> [p.policy for p in found.played]
        ['quality_first', 'random']
    """

    run_dir: Path
    campaign: Campaign
    real: Course
    played: tuple[Played, ...]
    errors: tuple[ModelError, ...]
    best: Params
    value: float
    value_error: float
    best_recorded: bool
    unit_of_gap: float
    of_best: bool
    workers: int
    table_world: bool

    def table(self) -> Table:
        """The real campaign, the recorded policy in this world, and the others: medians over the seeds."""
        header = ["", "seeds", "runs", *(f"runs to {g:.0%}" for g in CLOSE), "gap at end", "wrong", "failed"]
        header += ["node-hours", f"node-hours to {CLOSE[0]:.0%}", "wall hours"]
        rows = [self._row("the real one", (self.real,))]
        rows += [self._row(p.label, p.courses) for p in self.played]
        return Table(f"gap to the best in % of {self.gap_words}; medians over seeds", header, rows)

    @property
    def gap_words(self) -> str:
        """What a gap is a share of."""
        return "the best value" if self.of_best else "the range of the recorded values"

    @property
    def recorded(self) -> float:
        """Share of the played runs that were at recorded points."""
        courses = [c for p in self.played for c in p.courses]
        return sum(c.recorded for c in courses) / max(1, sum(c.runs for c in courses))

    @property
    def warnings(self) -> tuple[str, ...]:
        """Why the comparison may be wrong, a sentence each."""
        found = [
            f"the surrogate explains {max(0.0, e.r2):.0%} of the variance of {e.metric} at points left out: the "
            "metric is mostly noise, or the surrogate is poor. The comparison is not to be trusted."
            for e in self.errors
            if e.poor
        ]
        if self.value_error > CLOSE[0] * self.unit_of_gap and not self.best_recorded:
            found.append(
                f"the best point of this world was never run, and the surrogate is not sure of it (± "
                f"{number(self.value_error)}): gaps below {self.value_error / self.unit_of_gap:.0%} mean little."
            )
        if len(self.played[0].courses) < 5:
            found.append("with fewer than 5 seeds hardly any difference can be told from chance.")
        return tuple(found)

    @property
    def conclusions(self) -> tuple[str, ...]:
        """For each policy but the recorded one: whether it did better, and how sure that is."""
        return tuple(self._compared(other) for other in self.played[1:])

    def plot(self, path: str | Path) -> Path:
        """Draw the regret curves: median, and the band of 10 to 90 % of the seeds. Needs matplotlib.

        Raises:
            BadInput: matplotlib is not installed, or the file cannot be written.
        """
        path = Path(path)
        check_plot(path)
        from matplotlib.figure import Figure

        figure = Figure(figsize=(9.5, 4.4), layout="constrained")
        _draw(figure, self)
        with refusing_clearly(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(path, dpi=120)
        return path

    def data(self) -> dict[str, Any]:
        """Everything as plain data."""
        return {
            "run_dir": str(self.run_dir),
            "best": {
                "params": self.best,
                "value": self.value,
                "error": self.value_error,
                "run": self.best_recorded,
            },
            "gap_of": {"what": self.gap_words, "value": self.unit_of_gap},
            "workers": self.workers,
            "surrogate": [asdict(e) | {"poor": e.poor} for e in self.errors],
            "at_recorded_points": self.recorded,
            "real": asdict(self.real),
            "policies": [
                {
                    "policy": p.policy,
                    "batch": p.batch,
                    "median": p.quantile(0.5),
                    "low": p.quantile(0.1),
                    "high": p.quantile(0.9),
                    "courses": [asdict(c) for c in p.courses],
                }
                for p in self.played
            ],
            "conclusions": list(self.conclusions),
            "warnings": list(self.warnings),
        }

    def __str__(self) -> str:
        campaign, goal = self.campaign, self.campaign.objective.goal
        units = {p.name: p.unit for p in campaign.app.contract.space.parameters}
        unit = campaign.app.contract.metric(goal.metric).unit
        error = f" ± {number(self.value_error)}" if self.value_error else ""
        lines = [f"{campaign.name}: {campaign.objective}"]
        if self.table_world:
            lines.append("every point of the space was run: no surrogate was needed")
        else:
            lines.append("surrogate, each point left out in turn:")
            lines += [f"  {e}" for e in self.errors]
            lines.append(
                f"  {self.recorded:.0%} of the played runs were at recorded points, the rest drawn from it"
            )
        run = "run by the real campaign" if self.best_recorded else "never run"
        lines.append(
            f"best of this world ({run}): {goal.metric} = {number(self.value)}{error}"
            f"{'' if unit == '1' else f' {unit}'} at {point_text(self.best, units)}"
        )
        lines += ["", str(self.table()), ""]
        lines += list(self.conclusions) or [self._luck()]
        lines += [f"warning: {text}" for text in self.warnings]
        return "\n".join(lines)

    def _row(self, label: str, courses: Sequence[Course]) -> list[str]:
        alone = len(courses) == 1
        cells = [
            label,
            "-" if courses[0].seed is None else str(len(courses)),
            f"{_median([c.runs for c in courses]):g}",
        ]
        for gap in CLOSE:
            reached = [c.reached(gap) for c in courses]
            middle = _median([math.inf if k is None else k for k in reached])
            share = "" if alone else f" ({sum(k is not None for k in reached)}/{len(courses)})"
            cells.append(("-" if math.isinf(middle) else f"{middle:g}") + share)
        cells.append(f"{_median([c.final for c in courses]):.1%}")
        cells.append(str(sum(c.wrong for c in courses)) + ("" if alone else f"/{len(courses)}"))
        cells.append(f"{_median([c.failed for c in courses]):g}")
        cells.append(f"{_median([c.node_hours[-1] if c.runs else 0.0 for c in courses]):.2g}")
        spent = [math.inf if (k := c.reached(CLOSE[0])) is None else c.node_hours[k - 1] for c in courses]
        cells.append("-" if math.isinf(_median(spent)) else f"{_median(spent):.2g}")
        cells.append(f"{_median([c.wall_h for c in courses]):.2g}")
        return cells

    def _compared(self, other: Played) -> str:
        base = self.played[0]
        end = _Paired.of([b.final - a.final for a, b in zip(base.courses, other.courses, strict=True)])
        way = _Paired.of(
            [_mean_gap(b, a.runs) - _mean_gap(a, b.runs) for a, b in zip(base.courses, other.courses, strict=True)]
        )
        text = f"{other.label} against {base.label}, paired over {len(base.courses)} seed(s): "
        text += f"{end.words('the point recommended at the end')}; "
        text += f"{way.words('the best point run, averaged over the campaign')}."
        error = next((e.rms for e in self.errors if e.metric == self.campaign.objective.goal.metric), 0.0)
        if end.sure and abs(end.mean) * self.unit_of_gap < error:
            text += (
                f" The difference at the end is less than the surrogate's own error "
                f"({error / self.unit_of_gap:.1%}), so it may be the surrogate's."
            )
        return text + (" Not to be trusted: see the warning." if any(e.poor for e in self.errors) else "")

    def _luck(self) -> str:
        base = self.played[0]
        better = sum(c.final < self.real.final for c in base.courses)
        return (
            f"the real campaign ended with a gap of {self.real.final:.1%}; {better} of {len(base.courses)} played "
            "campaigns of the same policy ended closer to the best."
        )


@dataclass(frozen=True)
class _Paired:
    """Differences of gaps, seed by seed: the other policy less the recorded one."""

    mean: float
    half: float
    better: int
    worse: int

    @classmethod
    def of(cls, differences: Sequence[float]) -> _Paired:
        d = np.array(differences)
        if len(d) < 2:
            half = math.inf
        else:
            half = float(stdtrit(len(d) - 1, 0.975) * d.std(ddof=1) / math.sqrt(len(d)))
        return cls(float(d.mean()), half, int((d < -1e-9).sum()), int((d > 1e-9).sum()))

    @property
    def sure(self) -> bool:
        """Whether the 95 % interval leaves out zero."""
        return abs(self.mean) > self.half

    def words(self, what: str) -> str:
        spread = "" if math.isinf(self.half) else f" ± {self.half:.1%}"
        if not self.sure:
            return f"{what} differs by no more than the noise (gap {self.mean:+.1%}{spread})"
        side = "nearer to" if self.mean < 0 else "further from"
        count = f"better with {self.better} seeds, worse with {self.worse}"
        return f"{what} is {side} the best (gap {self.mean:+.1%}{spread}; {count})"


# -- the world --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Worth:
    """What a point is really worth in the world.

    Attributes:
        score: The goal, larger is better.
        keeps: Whether it completes and keeps every limit.
    """

    score: float
    keeps: bool


class World:
    """A recorded campaign as something that runs can be made in.

    Args:
        campaign: What was recorded.
        results: Its results.
        earlier: What it began with.

    Raises:
        NoFit: Too few runs for a surrogate.
    """

    def __init__(self, campaign: Campaign, results: Sequence[Result], earlier: Sequence[Observation] = ()) -> None:
        self.campaign, self.space, self.objective = campaign, campaign.search, campaign.objective
        self.real = observations(campaign, results, compare(campaign, results))
        seen = projected(campaign, self.real)
        self.at: dict[Key, list[Observation]] = {}
        for o in seen:
            if not o.completed or self.objective.known(o.metrics):
                self.at.setdefault(key(o.params), []).append(o)
        points = [p for os in self.at.values() if (p := inside(self.space, os[0].params)) is not None]
        self.is_table = math.isfinite(self.space.size) and len(points) >= self.space.size
        self.surrogate = None if self.is_table else Surrogate.fit(self.space, self.objective, [*earlier, *seen])
        self._times = RunTimes(campaign)
        self._times.learn(results)
        self._spread, self._broken = self._times_spread(results)
        failures = Counter(o.failure for o in seen if o.failure)
        self._failure = failures.most_common(1)[0][0] if failures else "Failed"
        self._noise = {} if self.surrogate is None else self._noises(seen)
        self._known: dict[Key, Worth] = {}
        self.points = points

    @property
    def models(self) -> tuple[MetricModel, ...]:
        """The surrogate's models, one a metric."""
        if self.surrogate is None:
            return ()
        found = {m.metric: m for m in (*self.surrogate.limits, *self.surrogate.goals)}
        return tuple(found[name] for name in self.objective.metrics)

    def worth(self, points: Sequence[Params]) -> list[Worth]:
        """What points of the space are really worth."""
        new = {key(p): p for p in points if key(p) not in self._known}
        if new and self.surrogate is None:
            self._known |= {k: self._recorded_worth(k) for k in new}
        elif new:
            self._known |= dict(zip(new, self._modelled(self._rows(list(new.values()))), strict=True))
        return [self._known[key(p)] for p in points]

    def run(self, point: Params, rng: np.random.Generator) -> tuple[Observation, bool]:
        """A run at a point of the space, and whether it is one of those recorded there."""
        runs = self.at.get(key(point))
        if runs:
            return replace(runs[int(rng.integers(len(runs)))], params=dict(point)), True
        assert self.surrogate is not None
        row = self._rows([point])
        fails = rng.random() >= float(self.surrogate.completes(row)[0])
        seconds, node_hours, _ = self._times.estimates([self.campaign.complete(point)])[0]
        factor = math.exp(self._spread * rng.standard_normal() - self._spread**2 / 2)
        if fails:
            factor *= self._broken
        wall_s, node_hours = seconds * factor, node_hours * factor
        if fails:
            failed = Observation(dict(point), completed=False, failure=self._failure)
            return replace(failed, wall_s=wall_s, node_hours=node_hours), False
        metrics, errors = {}, {}
        for model in self.models:
            own, stated = self._noise[model.metric]
            mean = model.gp.predict(row)[0]
            value = model.scale.backward(mean + math.hypot(own, stated) * rng.standard_normal())
            metrics[model.metric] = float(value[0])
            if stated:
                errors[model.metric] = float(stated / model.scale.slope(value)[0])
        done = Observation(dict(point), metrics=metrics, uncertainty=errors, wall_s=wall_s, node_hours=node_hours)
        return done, False

    @property
    def best(self) -> tuple[Params, float] | None:
        """The best point that keeps the limits, and its score; None where there is none.

        Of those that were run, that were asked for so far, and that a search of the surrogate finds.
        """
        self.worth([*self.points, *self._searched])
        kept = [(dict(k), w.score) for k, w in self._known.items() if w.keeps and self.campaign.full(dict(k))]
        if not kept:
            return None
        point, score = max(kept, key=lambda pair: pair[1])
        return {name: point[name] for name in self.space.names}, score

    def error_at(self, point: Params) -> float:
        """Standard error of the goal there, in its unit."""
        if self.surrogate is None:
            return 0.0
        return float(self.surrogate.goals[0].values(self._rows([point]))[1][0])

    def scale_of(self, best: float) -> tuple[float, bool]:
        """What gaps are measured in, and whether it is the best value itself.

        A share of the best value says nothing where that is near zero, or far from it like a total energy.
        """
        values = [o.metrics[self.objective.goal.metric] for os in self.at.values() for o in os if o.completed]
        spread = max(values) - min(values) if values else 0.0
        if not spread or 0.01 * spread <= abs(best) <= 20 * spread:
            return abs(best) or 1.0, True
        return spread, False

    def _rows(self, points: Sequence[Params]) -> Array:
        assert self.surrogate is not None
        return self.surrogate.features.rows(points)

    def _modelled(self, rows: Array) -> list[Worth]:
        assert self.surrogate is not None
        goal = self.surrogate.goals[0]
        values = goal.scale.backward(goal.gp.predict(rows)[0])
        keeps = self.surrogate.completes(rows) >= 0.5
        for model in self.surrogate.limits:
            keeps = keeps & (model.room(rows) >= 0)
        return [Worth(goal.sign * v, k) for v, k in zip(values.tolist(), keeps.tolist(), strict=True)]

    def _recorded_worth(self, point: Key) -> Worth:
        runs = self.at[point]
        done = [o for o in runs if o.completed]
        trusted = [o for o in done if not o.distrusted] or done
        if 2 * len(done) < len(runs) or not done:
            return Worth(-math.inf, False)
        goal = self.objective.goal.metric
        means = {m: float(np.mean([o.metrics[m] for o in done])) for m in self.objective.metrics}
        means[goal] = float(np.mean([o.metrics[goal] for o in trusted]))
        return Worth(self.objective.score(means), self.objective.feasible(means))

    @cached_property
    def _searched(self) -> list[Params]:
        """Good points of the surrogate: a fine sample of the space, then ever nearer to the best of it."""
        if self.surrogate is None:
            return []
        features, rng = self.surrogate.features, np.random.default_rng(0)
        sample = features.snapped(features.from_cube(rng.random((CANDIDATES, features.size))))
        found = self._top(self._full(np.vstack([sample, self._rows(self.points)])))
        for width in (0.1, 0.03, 0.01, 0.003, 0.001):
            near = np.repeat(found, NEAR, axis=0)
            near = near + width * rng.standard_normal(near.shape) * features.numeric
            steps = self._full(np.vstack([features.snapped(near), features.steps(found)]))
            found = self._top(np.vstack([found, steps]))
        return features.points(found)

    def _full(self, rows: Array) -> Array:
        """The rows at the last level of the fidelity, where there is one."""
        assert self.surrogate is not None
        fidelity, features = self.campaign.fidelity, self.surrogate.features
        if fidelity is None or fidelity.parameter not in features.names:
            return rows
        choices = self.space[fidelity.parameter].choices
        return features.with_choice(
            rows, features.names.index(fidelity.parameter), choices.index(fidelity.levels[-1])
        )

    def _top(self, rows: Array) -> Array:
        worth = self._modelled(rows)
        score = np.array([w.score if w.keeps else -math.inf for w in worth])
        return rows[np.argsort(-score, kind="stable")[:ENDS]]

    def _noises(self, seen: Sequence[Observation]) -> dict[str, tuple[float, float]]:
        """Standard deviation of a run about the surrogate, on its scale: its own part, and what runs state."""
        found = {}
        for model in self.models:
            done = [o for o in seen if o.completed and model.metric in o.metrics]
            stated = np.array([o.uncertainty.get(model.metric, 0.0) for o in done])
            slopes = model.scale.slope([o.metrics[model.metric] for o in done])
            typical = float(np.median(np.where(np.isfinite(stated), stated, 0.0) * slopes)) if done else 0.0
            own = math.sqrt(model.gp.own_noise) * model.gp.unit
            # What is left over at points of a program without chance is the surrogate's error, not noise.
            found[model.metric] = (0.0 if self.campaign.exact and not typical else own, typical)
        return found

    def _times_spread(self, results: Sequence[Result]) -> tuple[float, float]:
        """Of the run times: standard deviation of log(actual / expected), and what failed runs take of it."""
        used = [r for r in results if r.cost.node_hours > 0]
        expected = self._times.estimates([dict(r.manifest.params) for r in used])
        logs = [
            (r.ok, math.log(r.cost.node_hours / e[1])) for r, e in zip(used, expected, strict=True) if e[1] > 0
        ]
        ended = [v for ok, v in logs if ok]
        broken = [v for ok, v in logs if not ok]
        spread = float(np.std(ended)) if len(ended) > 1 else 0.0
        return spread, math.exp(float(np.median(broken))) if broken else 1.0


# -- playing ----------------------------------------------------------------------------------


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
        best = max((found.best, *found.ties), key=lambda e: e.runs > 1)
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
            failed=sum(not o.completed for o in self.own),
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
    noise = {m.name: m.noise for m in campaign.app.contract.metrics if m.noise is not None}
    return {"space": campaign.smoothed, "noise": noise}


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
        return tomllib.loads(f"options = {{{text}}}")["options"]  # type: ignore[no-any-return]
    except tomllib.TOMLDecodeError:
        pass
    options: dict[str, Any] = {}
    for part in re.split(r",(?=\s*\w+\s*=)", text):  # words without quotes, as a shell leaves them
        name, equals, value = part.partition("=")
        if not equals or not name.strip().isidentifier():
            raise BadInput(f"policy {spec!r}: write NAME:key=value,key=value.", value=spec)
        try:
            options[name.strip()] = tomllib.loads(f"value = {value.strip()}")["value"]
        except tomllib.TOMLDecodeError:
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
) -> tuple[list[_Plan], World, list[Observation], list[Result], float]:
    for name, value in (("batch", batch), ("runs", runs), ("seeds", seeds), ("workers", workers)):
        if value is not None and value < 1:
            raise BadInput(f"{name}={value} must be at least 1.", value=value)
    campaign = load_run(run_dir)
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
    state = State.replay(read_events(RunDir(run_dir).events))
    results = state.in_arrival() if campaign.mode == "rolling" else state.in_order()
    earlier = earlier_observations(campaign, state.warm, results)
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
    contenders = top(
        seen, campaign.objective, confirm.top, replicates=max(1, confirm.replicates), **_knowledge(campaign)
    )
    if not contenders:
        return
    points = [
        contenders[i % len(contenders)].params for _ in range(confirm.replicates) for i in range(confirm.top)
    ]
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


# -- figures ----------------------------------------------------------------------------------


def check_plot(path: Path) -> None:
    """Raise `BadInput` unless a plot can be written there."""
    if not available():
        raise BadInput(f"{path}: plots need matplotlib; pip install 'hpcagent[plots]', or leave --plot out.")
    if path.suffix not in (".png", ".pdf", ".svg"):
        raise BadInput(f"{path}: a plot is a .png, .pdf or .svg.", value=str(path))


def _draw(figure: Any, found: Replay) -> None:
    left, right = figure.subplots(1, 2, sharey=True)
    least = 1e-3

    def shown(gaps: Sequence[float]) -> list[float]:
        return [100 * max(g, least) for g in gaps]

    for played, colour in zip(found.played, COLOURS * (1 + len(found.played) // len(COLOURS)), strict=False):
        runs = range(1, played.runs + 1)
        left.plot(runs, shown(played.quantile(0.5)), c=colour, lw=1.8, label=played.label)
        left.fill_between(
            runs, shown(played.quantile(0.1)), shown(played.quantile(0.9)), color=colour, alpha=0.15, lw=0
        )
        hours, gaps = _answers(played.courses)
        right.plot(hours, shown(gaps[1]), c=colour, lw=1.8, marker="o", ms=3)
        right.fill_between(hours, shown(gaps[0]), shown(gaps[2]), color=colour, alpha=0.15, lw=0)
    left.plot(
        range(1, found.real.runs + 1), shown(found.real.gaps), c="black", lw=1.2, ls="--", label="the real one"
    )
    hours, gaps = _answers((found.real,))
    right.plot(hours, shown(gaps[1]), c="black", lw=1.2, ls="--", marker="s", ms=3)
    left.set(xlabel="runs", ylabel=f"gap (% of {found.gap_words})", yscale="log", title="best point run so far")
    right.set(xlabel="node-hours", title="recommended point")
    left.set_ylim(100 * least * 0.8, 130)
    left.legend(fontsize=8)
    figure.suptitle(
        f"{found.campaign.name}: median and 10 to 90 % of {len(found.played[0].courses)} seeds", fontsize=10
    )


def _answers(courses: Sequence[Course]) -> tuple[list[float], list[list[float]]]:
    """Median node-hours at each recommendation, and the 10, 50 and 90 % quantiles of its gap."""
    n = min(len(c.recommended) for c in courses)
    hours = [_median([c.node_hours[c.recommended[i][0] - 1] for c in courses]) for i in range(n)]
    gaps = [[c.recommended[i][1] for c in courses] for i in range(n)]
    return hours, [[float(np.quantile(g, p)) for g in gaps] for p in (0.1, 0.5, 0.9)]


def _median(values: Sequence[float]) -> float:
    """The middle value; of two, the larger one if that is infinite."""
    ordered = sorted(values)
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return high if math.isinf(high) else (low + high) / 2


def _mean_gap(course: Course, runs: int) -> float:
    """Mean gap of the best point run, over as many runs as both courses had."""
    gaps = course.gaps[:runs]
    return sum(gaps) / len(gaps) if gaps else 1.0


def _rms(values: Array) -> float:
    return float(np.sqrt((values**2).mean()))
