"""How sure it is that nothing better was missed: the expected regret of an answer.

    E[max(0, max_x f(x) - f(answer))]   over x that keep the limits and complete

by joint draws of the goal and the limits from their models, on points that cover the space, the points that were
run, and points around the best ones. It is as right as the models: what no run gave a hint of, they don't know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from hpcagent.model.base import Record, Scalar
from hpcagent.model.objective import Objective
from hpcagent.model.records import Observation
from hpcagent.model.space import Params, Space

if TYPE_CHECKING:
    from hpcagent.policies.gp import Features

__all__ = ["Missed", "missed"]

COVERING = 256
AROUND = 32
DRAWS = 256
NOTABLE = 0.01


class Missed(Record):
    """What a better point than the answer may be worth.

    Attributes:
        metric: The goal.
        expected: Expected regret, in the goal's unit, never negative.
        share: The same as a share of the answer's value; NaN near zero.
        at_most: With 95 % certainty no allowed point is better by more than this, in the goal's unit.
        notable: P(an allowed point is better by more than 1 % of the answer's value).
    """

    metric: str
    expected: float
    share: float
    at_most: float
    notable: float

    def __str__(self) -> str:
        share = f" ({self.share:.1%})" if np.isfinite(self.share) else ""
        return (
            f"expected regret {self.expected:.2g}{share} of {self.metric}; 95 % sure that no allowed point is "
            f"better by more than {self.at_most:.2g}, by the models"
        )


def missed(
    history: Sequence[Observation],
    objective: Objective,
    params: Params,
    *,
    space: Space,
    seed: int = 0,
    held: Mapping[str, Scalar] | None = None,
    noise: Mapping[str, float] | None = None,
) -> Missed | None:
    """Estimate what was missed by answering `params`; None where no model fits.

    Args:
        history: Finished runs.
        objective: Goal and limits; with several goals the first one counts.
        params: The answer.
        space: Where better points are looked for.
        seed: Of the draws.
        held: Parameters that every answer has alike, e.g. the fidelity; runs with other values still teach.
        noise: Known relative standard deviation of one run, by metric; 0 where runs are exact.

    Example:
        >>> from hpcagent.model.objective import maximize
        >>> from hpcagent.model.space import Float
        >>> space = Space.of(x=Float(0, 1))
        >>> runs = [Observation({"x": x / 8}, metrics={"y": -(x / 8 - 0.5) ** 2}) for x in range(9)]
        >>> missed(runs, maximize("y"), {"x": 0.5}, space=space).expected < 0.002
        True
    """
    from hpcagent.policies.acquisition import RISK, incumbents  # bring scipy, which reading a result need not
    from hpcagent.policies.gp import one_thread
    from hpcagent.policies.surrogate import Surrogate

    rng = np.random.default_rng([abs(seed), len(history), 9])
    try:
        s = Surrogate.fit(space, objective, history, noise=noise)
        f = s.features
        s = replace(s, rows=np.unique(_held(f, s.rows, held or {}, params), axis=0))
        _, tops = incumbents(s)
        near = [
            np.where(f.numeric, np.clip(top + width * rng.standard_normal((AROUND, len(f.of))), 0, 1), top)
            for top in tops
            for width in (0.1, 0.03)
        ]
        cover = f.from_cube(rng.random((COVERING, f.size)))
        rows = np.vstack(
            [f.rows([params]), _held(f, f.snapped(np.vstack([cover, *near])), held or {}, params), s.rows]
        )
        with one_thread():
            rows = rows[np.concatenate([[True], s.completes(rows[1:]) >= 1 - RISK])]
            goal = s.goals[0]
            value = goal.sign * goal.scale.backward(_drawn(goal.gp.joint(rows), rng))
            allowed = np.ones(value.shape, dtype=bool)
            for model in s.limits:
                assert model.limit is not None
                allowed &= model.sign * (_drawn(model.gp.joint(rows), rng) - model.limit) >= 0
    except (ArithmeticError, np.linalg.LinAlgError):
        return None
    best = np.where(allowed, value, -np.inf).max(axis=1)
    regret = np.maximum(best - value[:, 0], 0.0)
    size = abs(float(np.median(value[:, 0])))
    spread = float(np.ptp(goal.scale.backward(goal.gp.centre + goal.gp.unit * goal.gp.y)))
    relative = size > 0.01 * spread
    return Missed(
        metric=goal.metric,
        expected=float(regret.mean()),
        share=float(regret.mean()) / size if relative else float("nan"),
        at_most=float(np.quantile(regret, 0.95)),
        notable=float((regret > NOTABLE * size).mean()) if relative else float("nan"),
    )


def _held(f: Features, rows: np.ndarray, held: Mapping[str, Scalar], params: Params) -> np.ndarray:
    """The rows with these parameters at these values."""
    rows = rows.copy()
    there = f.rows([{**params, **held}])[0]
    for name in held:
        if name in f.names:
            columns = f.columns(f.names.index(name))
            rows[:, columns] = there[columns]
    return rows


def _drawn(joint: tuple[np.ndarray, np.ndarray], rng: np.random.Generator) -> np.ndarray:
    """`(DRAWS, m)` draws of a normal vector, by the eigenvalues of its covariance."""
    mean, covariance = joint
    values, vectors = np.linalg.eigh(0.5 * (covariance + covariance.T))
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    return np.asarray(mean + rng.standard_normal((DRAWS, len(mean))) @ root.T)
