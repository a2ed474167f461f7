"""What is told to an optimiser that knows neither failed nor distrusted runs.

- A run that failed in the simulation is told as data: the worst goal measured so far and, for each limit, the
  largest violation so far. Dropping it, or marking it failed, makes the optimiser come back: it learns nothing.
- Limits are told as an excess over the limit on a tamed scale (logarithmic where the metric is positive, else
  asinh), because beyond a limit a metric may grow by many powers of ten. Positive is broken.
- A distrusted run's goal is not a measurement. Where the run breaks a limit, the limits are told with the median
  of the measured goals; where it keeps them it is left out, since a goal for it would have to be invented.
- Runs without the objective's metrics, and points outside of the space, are left out.
- A metric that is only a bound (of a run stopped early) is told as it is: the truth lies further off in the
  direction for which the run was stopped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hpcagent.model.objective import Constraint, Objective
from hpcagent.model.parameter import Params
from hpcagent.model.records import Observation
from hpcagent.model.space import Space
from hpcagent.policies.early import imputed
from hpcagent.statistics.points import located
from hpcagent.statistics.trend import Scale, tame

__all__ = ["Told", "believed", "penalised", "told"]

FARTHEST = 10.0  # an excess by a factor of e^10 = 22000 says no less than a larger one
BROKEN = 1.0  # excess of a failed run where no run has broken the limit yet: a factor of e


@dataclass(frozen=True)
class Told:
    """One run, as an optimiser is told of it.

    Attributes:
        params: The point.
        values: Value of each goal, in the metric's unit.
        excess: Tamed excess over each limit; <= 0 where it is kept.
        imputed: Whether the run failed, so that values and excess are not measured.
    """

    params: Params
    values: tuple[float, ...]
    excess: tuple[float, ...]
    imputed: bool = False

    @property
    def feasible(self) -> bool:
        """Whether it keeps every limit."""
        return all(e <= 0 for e in self.excess)


def told(space: Space, objective: Objective, history: Sequence[Observation]) -> list[Told]:
    """The runs that say something, in the order of the history.

    Example:
        >>> from hpcagent.model.objective import at_most, maximize
        >>> from hpcagent.model.parameter import Float
        >>> speed = maximize("speed", subject_to={"error": at_most(1.0)})
        >>> good = Observation({"x": 0.1}, metrics={"speed": 3.0, "error": 0.5})
        >>> crashed = Observation({"x": 0.9}, completed=False, failure="LostAtoms")
        >>> [(t.values, round(t.excess[0], 2)) for t in told(Space.of(x=Float(0, 1)), speed, [good, crashed])]
        [((3.0,), -0.69), ((3.0,), 1.0)]
    """
    located_runs = located(space, history)
    ended = imputed([o for _, o in located_runs], objective)
    runs = [(params, o) for (params, _), o in zip(located_runs, ended, strict=True)]
    known = [o for _, o in runs if o.completed and objective.known(o.metrics)]
    excess = _excess(objective, known)
    most = tuple(max([BROKEN, *(excess[id(o)][k] for o in known)]) for k in range(len(objective.constraints)))
    goals = [tame([o.metrics[g.metric] for o in known if not o.distrusted]) for g in objective.goals]
    worst = tuple(
        (g.sign * float((g.sign * v).min()) if v.size else 0.0)
        for g, v in zip(objective.goals, goals, strict=True)
    )
    middle = tuple(float(np.median(v)) if v.size else 0.0 for v in goals)
    found: list[Told] = []
    for params, o in runs:
        if not o.completed:
            found.append(Told(params, worst, most, imputed=True))
        elif id(o) in excess:
            values = tuple(float(tame(o.metrics[g.metric])) for g in objective.goals)
            one = Told(params, middle if o.distrusted else values, excess[id(o)])
            if not (o.distrusted and one.feasible):
                found.append(one)
    return found


def penalised(objective: Objective, data: Sequence[Told]) -> list[Told]:
    """The same runs for an optimiser that takes no limits: breaking one is worse than any run that keeps them.

    A run beyond a limit gets the worst goal of those that keep all of them, less the sum of its excess in units of
    the goals' spread (Deb, Comput. Methods Appl. Mech. Eng. 186 (2000) 311). For one goal.
    """
    goal = objective.goal
    scores = np.array([goal.score(t.values[0]) for t in data])
    kept = np.array([t.feasible for t in data], dtype=bool)
    spread = float(np.ptp(scores)) or 1.0 if len(scores) else 1.0
    floor = float(scores[kept].min()) if kept.any() else 0.0
    return [
        t if t.feasible else replace(t, values=(goal.score(floor - spread * sum(max(e, 0.0) for e in t.excess)),))
        for t in data
    ]


def believed(data: Sequence[Told], points: Sequence[Params]) -> list[Told]:
    """Pending points as if they had come back as the median run: the "constant liar".

    For optimisers that know no pending points; it keeps them from suggesting the same again (Ginsbourger, Le Riche
    and Carraro, in Computational Intelligence in Expensive Optimization Problems, 2010, ch. 6).
    """
    if not data:
        return []
    values = tuple(float(np.median(v)) for v in zip(*(t.values for t in data), strict=True))
    excess = tuple(float(np.median(e)) for e in zip(*(t.excess for t in data), strict=True))
    return [Told(p, values, excess) for p in points]


def _excess(objective: Objective, runs: Sequence[Observation]) -> dict[int, tuple[float, ...]]:
    """Identity of the run -> its tamed excess over each limit."""
    columns = [_column(c, [o.metrics[c.metric] for o in runs]) for c in objective.constraints]
    return {id(o): tuple(column[i] for column in columns) for i, o in enumerate(runs)}


def _column(limit: Constraint, metrics: Sequence[float]) -> list[float]:
    values = tame(metrics)
    scale = Scale.of_limited(values, limit.limit)
    beyond = limit.sign * (scale.forward(limit.limit) - scale.forward(values))
    return [float(b) for b in np.clip(beyond, -FARTHEST, FARTHEST)]
