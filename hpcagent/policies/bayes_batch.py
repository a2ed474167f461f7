"""The suggestions of one call of `bayes`, one after the other: what each is for, and why it is worth most."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hpcagent.model.parameter import Params
from hpcagent.model.records import Observation
from hpcagent.policies.base import Reason
from hpcagent.policies.bayes_search import CLOSELY, Search
from hpcagent.policies.lengthening import Costs, Worth, extendable, most_worth, of_an_ordinary_run
from hpcagent.policies.levels import LevelRows, Levels
from hpcagent.policies.longer import Longer
from hpcagent.statistics.acquisition import Acquisition, answer_gain, incumbents
from hpcagent.statistics.covariance import Array
from hpcagent.statistics.points import Key, inside, key, located
from hpcagent.statistics.surrogate import Surrogate

__all__ = ["Batch"]

IN_TURN = 4  # size of the batch whose roles are taken in turn where one or two points are wanted
AGAIN = 3.0  # times more that a repeat must be worth than a new point: it can wait, what a new point opens cannot
LEAST_AGAIN = 1e-3  # and at least this share of the spread of the goal
CONTENDERS = 32  # known points that may be run again


class Batch:
    """One call of the policy: models, and what has been chosen so far.

    Args:
        surrogate: The models of what has been run.
        history: What that is.
        waiting: Points whose runs have not ended.
        levels: The fidelity, if there is one.
        seed: Of the policy; `explore` and `extend` as `Bayes` has them.
        explore: Whether the last of a batch may be bold, or careful.
        extend: Whether runs may go on.
    """

    def __init__(
        self,
        surrogate: Surrogate,
        history: Sequence[Observation],
        waiting: Sequence[Params],
        *,
        levels: Levels | None,
        seed: int,
        explore: bool,
        extend: bool,
    ) -> None:
        self.surrogate, self.history, self._explore = surrogate, history, explore
        self.features = surrogate.features
        space = self.features.space
        self.rng = np.random.default_rng([seed, len(history), len(waiting), 5])
        pending = [p for q in waiting if (p := inside(space, q)) is not None]
        self.used = {*surrogate.used, *(key(p) for p in pending)}
        self.given = len(history) + len(waiting)
        self.levels = None if levels is None else LevelRows(levels, self.features, history)
        # Every measured point taken at the last level, where an answer has to be.
        counted = (
            surrogate if self.levels is None else replace(surrogate, rows=self.levels.at_last(surrogate.rows))
        )
        self.worth = Acquisition.of(counted, self.features.rows(pending))
        _, tops = incumbents(self.worth.models)
        self._search = Search(surrogate, self.levels, tops, self.rng)
        # As `worth`, but with the noise of runs: what repeats are chosen by.
        self.after = counted.believing(self.features.rows(pending))
        waits = {key(p) for p in pending}
        here = located(space, history) if extend else []
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
            explore, s = self._explore, self.surrogate
            bold = explore and last and (bool(s.limits) or s.failures is not None)
            careful = explore and bool(s.limits) and of >= 4 and place == of - 2
            worth = self.worth.boldly() if bold else self.worth.carefully() if careful else self.worth
            if len(self.surrogate.goals) > 1:
                worth = worth.weighted(self._weights())
            box = None if last else self._search.box(self.worth, self.history)
            row = self._search.best(worth, box, self.used, closely=slot < CLOSELY)
            role, text = self._role(worth, box)
            self.longer: Worth | None = None
            again = self._again(row, slot) if worth is self.worth or row is None else None
            if again is not None:
                row, role, text = again
            if row is None:
                break
            if self.levels is not None and again is None:
                s = self.surrogate
                row, said = self.levels.chosen(row, (*s.goals, *s.limits), self.used)
                role, text = (f"{role}, cheaper level", text + said) if said else (role, text)
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

    def _weights(self) -> Array:
        drawn = np.abs(self.rng.standard_normal(len(self.surrogate.goals))) + 1e-3
        return np.asarray(drawn / np.linalg.norm(drawn))

    def _role(self, worth: Acquisition, box: object) -> tuple[str, str]:
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
