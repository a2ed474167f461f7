"""Bayesian optimisation under limits and noise: the default policy.

1. *Spread.* A few Sobol points: two, and one for each number or further value of a choice.
2. *Model.* A Gaussian process for each goal and each limit, and one for where runs fail (`surrogate`).
3. *Suggest.* The point whose run is worth most (`acquisition`), found by a gradient search from many starts; then
   the next one, as if the first had come out as expected, and not beside it where noise decides what a run says.
   Under limits the last of three or more is bold, because the best point lies where a limit is just kept, and
   steps along it are else too small; of four or more the one before it is careful: it would do as the answer.
   One or two suggestions at a time, as in rolling mode, take the roles of a batch of four in turn.
4. *Close in.* With five or more numbers all but the last look inside a box around the best point, which shrinks
   while nothing better is found (a trust region, Eriksson et al., NeurIPS 2019).
5. *Repeat.* A known point is run again where that is expected to make the answer better by more than the new
   point would, by far (`answer_gain`; one of a batch), where its only run was too good to be believed, and where
   nothing new is left; never where runs are known to be exact, or repeats came out equal.
6. *Go on.* With `extend` a known run is made longer where that is expected to make the answer better by more for
   its cost than a repeat, which also pays for a start, and by far more than a new point (`lengthening`).
7. *Fidelity.* Where runs can be cheaper, the point is chosen for the last level, and the level by how much a run
   there would tell of the last one for what it costs.

A suggestion depends on seed, history and pending alone, and is worked out on one thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hpcagent.errors import BadInput
from hpcagent.model.objective import Objective
from hpcagent.model.parameter import Params
from hpcagent.model.records import Observation
from hpcagent.model.space import Space
from hpcagent.policies.base import Reason
from hpcagent.policies.bayes_batch import Batch
from hpcagent.policies.levels import Levels
from hpcagent.policies.sweeps import Sobol
from hpcagent.statistics.covariance import NoFit, one_thread
from hpcagent.statistics.points import Key, inside, key, located, shares, spread_size, whole
from hpcagent.statistics.surrogate import Surrogate, noisy

__all__ = ["Bayes"]


class Bayes:
    """Gaussian processes and the expected improvement under limits; see the rules at the top of this module.

    Args:
        space: Where it may suggest.
        objective: Goals and limits.
        seed: Decides the first points and the random starts of searches.
        initial: Points of the first spread; None means two and one for each number or further value of a choice, 4
            to 12.
        explore: Whether the last suggestions of a batch take the limits kinder and sterner than they probably are.
        strict: Raise `NoFit` where no model can be fitted, instead of going on with Sobol points.
        fidelity: `parameter`: the choice that is the fidelity; `levels`: its values, the cheapest first.
        noise: Relative standard deviation of one run that is known beforehand, by metric; 0 where runs are exact.
            A campaign hands over what its app's contract states.
        extend: Let known runs go on from their end as well, where the app can (`[restart] steps`, `extendable`).
            One goal, no fidelity.

    Example:
        >>> from hpcagent.model.objective import maximize
        >>> from hpcagent.model.parameter import Float
        >>> bayes = Bayes(Space.of(x=Float(0, 1)), maximize("y"))
        >>> runs = [Observation({"x": x}, metrics={"y": -(x - 0.3) ** 2}) for x in (0.0, 0.25, 0.5, 0.75, 1.0)]
        >>> abs(bayes.suggest(runs, 1)[0]["x"] - 0.3) < 0.02
        True
    """

    repeats = True
    """The same point may come again, on purpose (see `hpcagent.policies.portfolio`)."""

    def __init__(
        self,
        space: Space,
        objective: Objective,
        *,
        seed: int = 0,
        initial: int | None = None,
        explore: bool = True,
        strict: bool = False,
        fidelity: Mapping[str, Any] | None = None,
        noise: Mapping[str, float] | None = None,
        extend: bool = False,
    ) -> None:
        self.extend = _told_to_extend(extend, objective, fidelity)
        self.noise = shares(noise)
        self.space, self.objective, self.seed = space, objective, abs(int(seed))
        self.initial = spread_size(space) if initial is None else whole("initial", initial)
        self.explore, self.strict = bool(explore), bool(strict)
        self.fidelity = None if fidelity is None else Levels.read(space, fidelity)
        self._spread = Sobol(space, seed=seed)

    def suggest(self, history: Sequence[Observation], n: int, pending: Sequence[Params] = ()) -> list[Params]:
        """The next `n` points."""
        return [reason.params for reason in self.reasons(history, n, pending)]

    def reasons(self, history: Sequence[Observation], n: int, pending: Sequence[Params] = ()) -> list[Reason]:
        """The next `n` points, each with why.

        Raises:
            NoFit: With `strict`, where no model can be fitted.
        """
        early = min(n, max(0, self.initial - len(history) - len(pending)))
        reasons = self._spread_out(history, early, pending, "The first points cover the space.")
        if len(reasons) == n:
            return reasons
        waiting = [*pending, *(r.params for r in reasons)]
        try:
            with one_thread():
                return reasons + self._modelled(history, n - len(reasons), waiting)
        except (NoFit, np.linalg.LinAlgError) as error:
            if self.strict:
                raise
            why = f"No model can be fitted ({error}), so the points go on covering the space."
            reasons += self._spread_out(history, n - len(reasons), waiting, why)
            return reasons + self._repeated(history, n - len(reasons))

    def _repeated(self, history: Sequence[Observation], n: int) -> list[Reason]:
        """Known points again, the fewest runs first, where every point is known and no model says more."""
        runs: dict[Key, list[Params]] = {}
        for params, o in located(self.space, history):
            if o.completed:
                runs.setdefault(key(params), []).append(params)
        if n <= 0 or not runs or not noisy(located(self.space, history), self.objective, self.noise):
            return []
        ordered = sorted(runs.values(), key=len)
        text = "Every point was run, and runs differ: one with few runs again."
        return [Reason(ordered[i % len(ordered)][0], "repeat", text) for i in range(n)]

    def _modelled(self, history: Sequence[Observation], n: int, waiting: Sequence[Params]) -> list[Reason]:
        surrogate = Surrogate.fit(self.space, self.objective, history, noise=self.noise)
        batch = Batch(
            surrogate,
            history,
            waiting,
            levels=self.fidelity,
            seed=self.seed,
            explore=self.explore,
            extend=self.extend,
        )
        reasons = batch.found(n)
        if len(reasons) < n and len(batch.used) < self.space.size:
            besides = [*waiting, *(r.params for r in reasons)]
            why = "The search found no new point, so one that covers the space."
            reasons += self._spread_out(history, n - len(reasons), besides, why)
        return reasons

    def _spread_out(
        self, history: Sequence[Observation], n: int, pending: Sequence[Params], why: str
    ) -> list[Reason]:
        if n <= 0:
            return []
        pretended = [replace(o, role="suggested") for o in history if inside(self.space, o.params) is not None]
        found = self._spread.suggest(pretended, n, pending)
        if self.fidelity is not None:
            found = self.fidelity.cheapest(found)
        return [Reason(p, "space-filling", why) for p in found]


def _told_to_extend(extend: object, objective: Objective, fidelity: object) -> bool:
    if not isinstance(extend, bool):
        raise BadInput(f"policy 'bayes': extend={extend!r} must be true or false.", value=extend)
    if extend and (len(objective.goals) > 1 or fidelity is not None):
        what = "a fidelity" if fidelity is not None else f"{len(objective.goals)} goals"
        raise BadInput(
            f"policy 'bayes': extend = true is for one goal and no fidelity; the campaign has {what}: drop it.",
            value=extend,
        )
    return extend
