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

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from hpcagent.errors import BadInput
from hpcagent.later import Later
from hpcagent.model.base import Scalar
from hpcagent.model.objective import Objective
from hpcagent.model.parameter import Params
from hpcagent.model.records import Observation
from hpcagent.model.space import Space
from hpcagent.policies.base import Reason
from hpcagent.policies.lengthening import Costs, Worth, extendable, most_worth, of_an_ordinary_run
from hpcagent.policies.longer import Longer
from hpcagent.policies.sweeps import Sobol
from hpcagent.statistics.acquisition import Acquisition, answer_gain, incumbents
from hpcagent.statistics.gp import Array, Features, NoFit, one_thread
from hpcagent.statistics.points import Key, inside, key, located, shares, spread_size, whole
from hpcagent.statistics.surrogate import MetricModel, Surrogate, noisy

optimize = Later("scipy.optimize")

__all__ = ["Bayes"]

SPREAD_OUT = 256  # random candidates for the start of a search
AROUND = 24  # candidates around each of the best points, at each width
WIDTHS = (0.2, 0.05, 0.01)
STARTS = 2
STEPS = 12
CLOSELY = 8  # after so many points of a batch the search is shorter: fewer candidates, one start, no repeats
ENUMERATED = 2000  # a finite space up to this size is looked through whole
MANY = 5  # numbers from which on a trust region is used
WIDEST, NARROWEST = 0.8, 0.05
IN_TURN = 4  # size of the batch whose roles are taken in turn where one or two points are wanted
GAIN = 1e-3  # a relative gain that counts as progress
AGAIN = 3.0  # times more that a repeat must be worth than a new point: it can wait, what a new point opens cannot
LEAST_AGAIN = 1e-3  # and at least this share of the spread of the goal
CONTENDERS = 32  # known points that may be run again
DEARER = 4.0  # how much dearer the next level is taken to be, until it is known


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
        self.fidelity = None if fidelity is None else _Levels.read(space, fidelity)
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
        search = _Search(self, surrogate, history, waiting)
        reasons = search.found(n)
        if len(reasons) < n and len(search.used) < self.space.size:
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


@dataclass(frozen=True)
class _Levels:
    """The fidelity: which parameter, and its values from the cheapest to the one that counts."""

    parameter: str
    levels: tuple[Scalar, ...]

    @classmethod
    def read(cls, space: Space, fidelity: Mapping[str, Any]) -> _Levels:
        found = cls(fidelity["parameter"], tuple(fidelity["levels"]))
        if space[found.parameter].kind != "choice":
            raise BadInput(
                f"policy 'bayes': the fidelity {found.parameter!r} is a {space[found.parameter].kind}; it must be "
                f"a choice. Narrow it to its levels: space.{found.parameter} = "
                f"{{choices = {list(found.levels)}}}.",
                value=found.parameter,
            )
        return found

    def cheapest(self, points: Sequence[Params]) -> list[Params]:
        """The points at the cheapest level, but for the first one: that one is also run as it counts."""
        return [{**p, self.parameter: self.levels[0 if i else -1]} for i, p in enumerate(points)]

    def costs(self, history: Sequence[Observation]) -> list[float]:
        """Median cost of a run at each level, in node-hours (or seconds where those are unknown)."""
        costs: list[float] = []
        for level in self.levels:
            runs = [o for o in history if o.params.get(self.parameter) == level and o.completed]
            found = [o.node_hours or o.wall_s for o in runs if (o.node_hours or o.wall_s) > 0]
            costs.append(float(np.median(found)) if found else math.nan)
        for i, cost in enumerate(costs):
            if math.isnan(cost):
                before = costs[i - 1] if i else next((c for c in costs if not math.isnan(c)), 1.0) / DEARER
                costs[i] = before * DEARER if i else before
        return costs


class _EnoughLooks(Exception):
    """A climb has looked as often as it may."""


class _Search:
    """One call of the policy: models, candidates and what has been chosen so far."""

    def __init__(
        self, policy: Bayes, surrogate: Surrogate, history: Sequence[Observation], waiting: Sequence[Params]
    ) -> None:
        self.policy, self.surrogate, self.history = policy, surrogate, history
        self.features: Features = surrogate.features
        self.rng = np.random.default_rng([policy.seed, len(history), len(waiting), 5])
        pending = [p for q in waiting if (p := inside(policy.space, q)) is not None]
        self.used = {*surrogate.used, *(key(p) for p in pending)}
        self.given = len(history) + len(waiting)
        self.levels = policy.fidelity
        if self.levels is not None:
            self.place = self.features.names.index(self.levels.parameter)
            choices = list(policy.space[self.levels.parameter].choices)
            self.columns = [choices.index(level) for level in self.levels.levels]
            self.costs = self.levels.costs(history)
        self.worth = Acquisition.of(self._as_it_counts(surrogate), self.features.rows(pending))
        _, self.tops = incumbents(self.worth.models)
        self.whole = self._everything()
        # As `worth`, but with the noise of runs: what repeats are chosen by.
        self.after = self._as_it_counts(surrogate).believing(self.features.rows(pending))
        waits = {key(p) for p in pending}
        here = located(policy.space, history) if policy.extend else []
        self.extendable = extendable(here, waits)
        self.price = Costs.of(history) if self.extendable else None
        self.runs_at: dict[Key, list[Observation]] = {}
        for params, o in here:
            self.runs_at.setdefault(key(params), []).append(o)
        self.repeated = False
        self.chosen: set[Key] = set()  # points that a run goes on at
        self.doubted = [p for p in surrogate.surprising if key(p) not in waits]

    def found(self, n: int) -> list[Reason]:
        reasons: list[Reason] = []
        for slot in range(n):
            place, of = self._place(slot, n)
            last = of >= 3 and place == of - 1
            explore, s = self.policy.explore, self.surrogate
            bold = explore and last and (bool(s.limits) or s.failures is not None)
            careful = explore and bool(s.limits) and of >= 4 and place == of - 2
            worth = self.worth.boldly() if bold else self.worth.carefully() if careful else self.worth
            if len(self.surrogate.goals) > 1:
                worth = worth.weighted(self._weights())
            box = None if last else self._box()
            row = self._best(worth, box, closely=slot < CLOSELY)
            role, text = self._role(worth, box)
            self.longer: Worth | None = None
            again = self._again(row, slot) if worth is self.worth or row is None else None
            if again is not None:
                row, role, text = again
            if row is None:
                break
            if self.levels is not None and again is None:
                row, role, text = self._level(row, role, text)
            params = self.features.points(row[None])[0]
            self.used.add(key(params))
            self.after = self.after.believing(row[None])
            reason = self._reason(params, row, role, text, worth)
            reasons.append(reason if self.longer is None else self._lengthened(reason, self.longer))
            self.worth = self.worth.believing(row[None])
        return reasons

    def _place(self, slot: int, n: int) -> tuple[int, int]:
        """Which place of how large a batch the suggestion has.

        Fewer than three at a time, as in rolling mode, are too few for the roles of a batch: they take them in
        turn, by how many runs came before.
        """
        if n >= 3:
            return slot, n
        return (self.given + slot) % IN_TURN, IN_TURN

    def _again(self, new: Array | None, slot: int) -> tuple[Array, str, str] | None:
        """A known point to run again in place of the new one, and why; None where the new one is worth more."""
        s = self.surrogate
        if not s.noisy:
            return None
        if self.doubted:
            row = self.features.rows([self.doubted.pop(0)])[0]
            return row, "repeat", "Its only run is too good to be believed, by all others: it is run again."
        if new is not None and (self.repeated or slot >= CLOSELY):
            return None  # one of a batch is enough, and what the first places are not worth later ones are not
        known = self._known_rows()
        if not len(known) or (new is not None and (self.levels is not None or len(s.goals) > 1)):
            return None
        if len(s.goals) > 1:
            unsure = sum(m.gp.predict(known)[1] / m.gp.unit for m in self.after.goals)
            best, gain = int(np.argmax(unsure)), math.nan
        else:
            options = known if new is None else np.vstack([known, new])
            if self.price is not None:
                return self._again_or_longer(known, new)
            gains = answer_gain(self.after, options, options)
            best = int(np.argmax(gains[: len(known)]))
            gain = float(gains[best])
            least = max(AGAIN * float(gains[-1]), LEAST_AGAIN * s.goals[0].gp.unit)
            if new is not None and gain <= least:
                return None
        text = "Another run here makes the answer surer than a new point would."
        if new is None:
            text = "Every point was run, and runs differ: another one here makes the answer surest."
        self.repeated = True
        return known[best], "repeat", text

    def _again_or_longer(self, known: Array, new: Array | None) -> tuple[Array, str, str] | None:
        """Of a further run of a known point and one that goes on, what is worth more for its cost, if enough."""
        assert self.price is not None
        answers = known if new is None else np.vstack([known, new])
        gains = answer_gain(
            self.after, answers, answers, noise=of_an_ordinary_run(self.after, answers, self.history)
        )
        points = self.features.points(known)
        prices = np.array([self.price.again(self.runs_at.get(key(p), ())) for p in points])
        best = int(np.argmax(gains[: len(known)] / prices))
        gain, price = float(gains[best]), float(prices[best])
        open_to = [one for one in self.extendable if key(one[0]) not in self.chosen]
        rows = self.features.rows([params for params, _, _ in open_to])
        longer = most_worth(self.after, rows, open_to, answers, self.price)
        if longer is not None and longer.gain / longer.cost <= gain / price:
            longer = None
        if longer is not None:
            gain, price = longer.gain, longer.cost
        unit = self.surrogate.goals[0].gp.unit
        if new is not None and (gain / price <= AGAIN * float(gains[-1]) or gain <= LEAST_AGAIN * unit):
            return None
        self.repeated = True
        if longer is None:
            text = "Another run here makes the answer surer than a new point or a longer run would, for its cost."
            return known[best], "repeat", text
        self.longer = longer
        text = (
            f"Run {longer.run.index} goes on to {longer.factor:g} times its length, for {longer.cost:.2g} of a "
            "run's cost: that makes the answer surer than a further run or a new point would, for what each costs."
        )
        return longer.row, "extend", text

    def _lengthened(self, reason: Reason, longer: Worth) -> Reason:
        self.chosen.add(key(longer.params))
        now, then = longer.error
        numbers = {**reason.numbers, "cost_in_runs": longer.cost, "error_by_runs": now, "error_then": then}
        point = Longer(reason.params, run=longer.run.index, factor=longer.factor)
        return replace(reason, params=point, numbers=numbers)

    def _known_rows(self) -> Array:
        """The rows of known points that may still be the best: those whose bounds are highest."""
        s = self.after
        mean, sd = s.goals[0].gp.predict(s.rows)
        chance = s.feasible(s.rows) * s.completes(s.rows)
        high = s.goals[0].sign * mean + 2 * sd + np.log(np.maximum(chance, 1e-12)) * s.goals[0].gp.unit
        rows: Array = s.rows[np.argsort(-high, kind="stable")[:CONTENDERS]]
        if self.levels is None:
            return rows
        run = [key(point) in s.used for point in self.features.points(rows)]
        return np.asarray(rows[np.array(run, dtype=bool)])

    # Where to look

    def _everything(self) -> Array | None:
        """Every point of a small finite space; None where there are too many."""
        space = self.policy.space
        if space.size > ENUMERATED:
            return None
        if not space.simple:
            every = space.region.every
            return None if every is None else self._at_last_level(self.features.rows(every))
        values = [
            range(int(p.low or 0), int(p.high or 0) + 1) if p.kind == "int" else p.levels(1)
            for p in space.parameters
        ]
        rows = self.features.rows([dict(zip(space.names, point, strict=True)) for point in product(*values)])
        return self._at_last_level(rows)

    def _at_last_level(self, rows: Array) -> Array:
        if self.levels is None or not len(rows):
            return rows
        there = self.features.with_choice(rows, self.place, self.columns[-1])
        if not self.features.simple:
            there = self.features.kept(self.features.snapped(there))
        return np.unique(there, axis=0)

    def _as_it_counts(self, s: Surrogate) -> Surrogate:
        """The models with every measured point taken at the last level, where an answer has to be."""
        return s if self.levels is None else replace(s, rows=self._at_last_level(s.rows))

    def _candidates(self, box: tuple[Array, Array] | None, part: int) -> Array:
        """Points to begin from; one in `part` of them."""
        f, rng = self.features, self.rng
        around = AROUND // part
        cube = f.drawn(rng, SPREAD_OUT // part)
        low, high = box if box is not None else (np.zeros(len(f.of)), np.ones(len(f.of)))
        found = [np.where(f.numeric, low + cube * (high - low), cube)]
        for top in self.tops:
            for width in WIDTHS:
                near = np.repeat(top[None], around, axis=0)
                moved = rng.random((around, f.size)) < max(0.5, min(1.0, 2 / f.size))
                near = near + width * self._directions(near.shape) * moved[:, f.of] * f.numeric
                for j in np.flatnonzero(f.choices):
                    columns = f.columns(int(j))
                    values = columns.stop - columns.start
                    changed = rng.random(around) < 0.2
                    near[changed, columns] = (
                        math.sqrt(0.5) * np.eye(values)[rng.integers(values, size=around)][changed]
                    )
                found.append(np.where(f.numeric, np.clip(near, low, high), near))
        return self._at_last_level(f.kept(f.snapped(np.vstack(found))))

    def _directions(self, shape: tuple[int, ...]) -> Array:
        """Normal random steps; where not all is allowed half of them have the shape of what is."""
        steps = self.rng.standard_normal(shape)
        f = self.features
        if f.simple or len(f.cover) < 2:
            return steps
        which = self.rng.integers(len(f.cover), size=(2, len(steps)))
        apart = 3.0 * (f.cover[which[0]] - f.cover[which[1]])
        return np.where((self.rng.random(len(steps)) < 0.5)[:, None], apart, steps)

    def _box(self) -> tuple[Array, Array] | None:
        """The trust region around the best point; None with few numbers, or before anything is allowed."""
        f = self.features
        numbers = int(f.numeric.sum())
        if numbers < MANY or self.worth.best is None or len(self.surrogate.goals) > 1:
            return None
        side = _side(self.history, self.policy.objective, numbers)
        lengths = np.clip(self.surrogate.goals[0].gp.lengths, NARROWEST, 4.0)
        half = np.where(f.numeric, 0.5 * side * lengths / np.exp(np.log(lengths[f.numeric]).mean()), 0.0)
        top = self.tops[0]
        low, high = np.clip(top - half, 0.0, 1.0), np.clip(top + half, 0.0, 1.0)
        return np.where(f.numeric, low, 0.0), np.where(f.numeric, high, 1.0)

    # The most worth there

    def _best(self, worth: Acquisition, box: tuple[Array, Array] | None, *, closely: bool = True) -> Array | None:
        """The row of the best unused point, or None where every point is used."""
        if self.whole is not None:
            return self._unused(self.whole, worth(self.whole, slopes=False)[0])
        rows = self._candidates(box, 1 if closely else 4)
        if not len(rows):
            return None
        values = worth(rows, slopes=False)[0]
        starts = _apart(rows[np.argsort(-values, kind="stable")[:200]], STARTS if closely else 1)
        if worth.weights is not None:
            ends = self._wandered(worth, starts)
        else:
            ends = self._climbed(worth, starts, box, STEPS if closely else STEPS // 2)
            if not self.features.simple:
                ends = self._along_borders(worth, starts, ends, closely=closely)
        steps = self._at_last_level(self.features.kept(self.features.steps(np.vstack([ends, starts])[:STARTS])))
        tried = np.vstack([ends, starts, steps])
        return self._unused(tried, worth(tried, slopes=False)[0]) if len(tried) else None

    def _climbed(self, worth: Acquisition, starts: Array, box: tuple[Array, Array] | None, steps: int) -> Array:
        """Uphill from every start along the numbers, all at once: of each the best that was seen."""
        moving = np.flatnonzero(self.features.numeric)
        if not len(moving):
            return starts
        k, m = len(starts), len(moving)
        low, high = (np.zeros(m), np.ones(m)) if box is None else (box[0][moving], box[1][moving])
        ends, best, looks = starts.copy(), np.full(k, -np.inf), 0

        def downhill(flat: Array) -> tuple[float, Array]:
            nonlocal looks
            if looks == 2 * steps:  # scipy counts between its line searches only, and one of them may take twenty
                raise _EnoughLooks
            looks += 1
            rows = starts.copy()
            rows[:, moving] = flat.reshape(k, m)
            value, slope = worth(rows)
            better = value > best
            ends[better], best[better] = rows[better], value[better]
            return -float(value.sum()), -slope[:, moving].ravel()

        bounds = list(zip(low, high, strict=True)) * k
        with contextlib.suppress(_EnoughLooks):
            optimize.fmin_l_bfgs_b(downhill, starts[:, moving].ravel(), bounds=bounds, maxiter=steps)
        return self.features.snapped(ends)

    def _along_borders(self, worth: Acquisition, starts: Array, ends: Array, *, closely: bool) -> Array:
        """What was climbed to, led back to what is allowed, and then along its border by ever smaller steps."""
        f = self.features
        low, high = np.zeros(len(ends)), np.ones(len(ends))
        for _ in range(8):  # how far each can go on its way
            middle = 0.5 * (low + high)
            there = f.snapped(starts + middle[:, None] * (ends - starts))
            good = np.array([len(f.kept(row[None])) > 0 for row in there])
            low, high = np.where(good, middle, low), np.where(good, high, middle)
        back = f.snapped(starts + low[:, None] * (ends - starts))
        at = f.kept(np.vstack([starts, back, ends]))
        for width in (0.03, 0.01, 0.003, 0.001) if closely else (0.01,):
            best = at[np.argsort(-worth(at, slopes=False)[0], kind="stable")[:STARTS]]
            near = np.repeat(best, AROUND, axis=0)
            near = near + width * self._directions(near.shape) * f.numeric
            at = np.vstack([best, f.kept(f.snapped(near))])
        order = np.argsort(-worth(at, slopes=False)[0], kind="stable")
        return np.asarray(at[order[:STARTS]])

    def _wandered(self, worth: Acquisition, starts: Array) -> Array:
        """Uphill by random steps, where the worth has no simple derivative."""
        f = self.features
        for width in (0.1, 0.03, 0.01, 0.003):
            steps = self.rng.standard_normal((16, *starts.shape)) * f.numeric * width
            rows = self._at_last_level(f.kept(f.snapped(np.vstack([starts, *(starts + s for s in steps)]))))
            starts = _apart(rows[np.argsort(-worth(rows, slopes=False)[0], kind="stable")], STARTS)
        return starts

    def _unused(self, rows: Array, values: Array) -> Array | None:
        for i in np.argsort(-values, kind="stable"):
            row: Array = rows[i]
            point = self.features.points(row[None])[0]
            if not self.policy.space.allows(point):
                continue  # by the rounding of a strict constraint
            if key(point) not in self.used or self._lower(row) is not None:
                return row
        return None

    def _lower(self, row: Array) -> Array | None:
        """With fidelities: the same point at a level where it has not been run."""
        if self.levels is None:
            return None
        for column in reversed(self.columns[:-1]):
            other = self.features.with_choice(row[None], self.place, column)
            if key(self.features.points(other)[0]) not in self.used:
                return np.asarray(other[0])
        return None

    # Several goals, fidelities

    def _weights(self) -> Array:
        drawn = np.abs(self.rng.standard_normal(len(self.surrogate.goals))) + 1e-3
        return np.asarray(drawn / np.linalg.norm(drawn))

    def _level(self, row: Array, role: str, text: str) -> tuple[Array, str, str]:
        """The level at which a run tells most of the last one for what it costs."""
        assert self.levels is not None
        best: tuple[float, int, Array] | None = None
        for i, column in enumerate(self.columns):
            there = self.features.with_choice(row[None], self.place, column)
            if key(self.features.points(there)[0]) in self.used:
                continue
            share = min(self._told(m, there, row[None]) for m in (*self.surrogate.goals, *self.surrogate.limits))
            worth = share / self.costs[i]
            if best is None or worth > best[0]:
                best = worth, i, np.asarray(there[0])
        assert best is not None
        _, level, chosen = best
        if level == len(self.columns) - 1:
            return chosen, role, text
        times = self.costs[-1] / self.costs[level]
        said = f" At {self.levels.levels[level]!r}, where a run costs {times:.3g} times less, for what it tells."
        return chosen, f"{role}, cheaper level", text + said

    @staticmethod
    def _told(model: MetricModel, there: Array, here: Array) -> float:
        """Share of the variance at `here` that a run at `there` would explain."""
        gp = model.gp
        both = float(gp.covariances(there, here)[0, 0])
        noise = float(model.one_run(there)[0]) ** 2
        return both**2 / ((float(gp.predict(there)[1][0]) ** 2 + noise) * float(gp.predict(here)[1][0]) ** 2)

    # In words

    def _role(self, worth: Acquisition, box: tuple[Array, Array] | None) -> tuple[str, str]:
        if worth.weights is not None:
            shares = ", ".join(
                f"{g.metric} {w**2:.0%}"
                for g, w in zip(self.surrogate.objective.goals, worth.weights, strict=True)
            )
            return "front", f"The largest expected gain of the front, with the goals weighted {shares}."
        if worth.best is None:
            return "feasibility", "Nothing keeps the limits yet; here they are most likely kept."
        if worth.careful:
            return (
                "careful",
                "The largest expected improvement that surely keeps the limits: it would do as the answer.",
            )
        if worth.bold > 0:
            return "bold", "Would be better than the best, if the limits are as kind as they may be."
        where = " near the best point" if box is not None else ""
        return "improvement", f"The largest expected improvement{where}, times the chance that it is allowed."

    def _reason(self, params: Params, row: Array, role: str, text: str, worth: Acquisition) -> Reason:
        s = self.surrogate
        predicted = {}
        for model in (*s.goals, *s.limits):
            value, error = model.values(row[None])
            predicted[model.metric] = (float(value[0]), float(error[0]))
        return Reason(
            params,
            role,
            text,
            predicted=predicted,
            probability_feasible=float(s.feasible(row[None])[0]),
            probability_completes=float(s.completes(row[None])[0]),
            numbers={"expected_improvement": float(worth.improvement(row[None])[0])},
        )


def _apart(rows: Array, k: int) -> Array:
    """The first `k` rows that are not close to each other."""
    chosen = [0]
    for i in range(1, len(rows)):
        if len(chosen) == k:
            break
        if ((rows[i] - rows[chosen]) ** 2).sum(1).min() > 0.01:
            chosen.append(i)
    return rows[chosen]


def _side(history: Sequence[Observation], objective: Objective, numbers: int) -> float:
    """Side of the trust region: doubled after three batches with progress, halved after a few without."""
    batches: dict[int, list[Observation]] = {}
    for o in history:
        batches.setdefault(o.batch, []).append(o)
    best: float | None = None
    side, good, bad = WIDEST, 0, 0
    for number in sorted(batches):
        runs = [o for o in batches[number] if o.completed and objective.known(o.metrics)]
        top = max((objective.score(o.metrics) for o in runs if objective.feasible(o.metrics)), default=None)
        if best is None:
            best = top
        elif top is not None and top > best + GAIN * abs(best):
            best, good, bad = top, good + 1, 0
        else:
            good, bad = 0, bad + 1
        if good == 3:
            side, good = min(2 * side, WIDEST), 0
        if bad >= max(4, numbers) / len(batches[number]):
            side, bad = max(side / 2, NARROWEST), 0
    return side
