"""What runs will take, learned from those that have ended, with the spread that is left.

Bayesian linear regression of log(node-hours) on the parameters, with a normal-inverse-gamma prior (Gelman et al.,
Bayesian Data Analysis, 3rd ed., ch. 14): run times scatter by factors, and what a parameter does to them is mostly
a factor too. Its draws know that a wrong level is wrong for all runs of a batch at once, so the spread of a sum
does not shrink with the number of runs alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, TypeAlias

from hpcagent.campaign.record import Campaign
from hpcagent.later import Later
from hpcagent.model.contract import Resources
from hpcagent.model.parameter import Parameter, Params
from hpcagent.model.records import Result
from hpcagent.statistics.trend import chance

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    np = Later("numpy")

__all__ = ["Load", "RunTimes"]

Array: TypeAlias = "NDArray[np.float64]"
Columns: TypeAlias = tuple[tuple[float, ...], Callable[[Params], tuple[float, ...]]]
"""Standard deviations of the prior, and the values from a run's parameters."""

DRAWS = 160
REMEMBERED = 1000
"""Runs that the model is fitted to, the latest: machines change, and more would not make it better."""
OVERTIME = 1.05
"""A run ends within this factor of its walltime, where something ends it."""

# Prior: standard deviations of what half of a parameter's range, or a choice, does to the logarithm; the scatter
# is about 0.3 (a factor of 1.35), known as well as six runs would tell.
LEVEL, SLOPE, CURVE, STEP, ELSEWHERE = 10.0, 0.7, 0.3, 0.5, 1.0
FREEDOM, SCATTER = 3.0, 0.3
# Before the first run there is the contract's estimate, which may be wrong by a factor of 2.5 for all runs alike.
GUESS, GUESS_SCATTER, GUESS_SLOPE = 0.9, 0.5, 0.3
WORST_SCATTER = 2.0
SHORT = 0.5
"""A failed run that took less than this share of what was predicted is one that broke off."""
ENOUGH_FAILURES = 20


@dataclass(frozen=True, slots=True)
class Load:
    """Node-hours of some runs together, under each draw of the model.

    Attributes:
        mean: (draws,) float64, node-hours: their mean.
        variance: (draws,) float64, node-hours squared: their scatter around it.
        most: Node-hours if each takes its whole walltime; inf where nothing ends them.
        worst: Node-hours more than expected if one of them is as far above its forecast as the worst run was so
            far: run times have longer tails than a model made of logarithms.
    """

    mean: Array
    variance: Array
    most: float = 0.0
    worst: float = 0.0

    @classmethod
    def none(cls) -> Load:
        """No runs."""
        return cls(np.zeros(DRAWS), np.zeros(DRAWS))

    def __add__(self, other: Load) -> Load:
        worst = max(self.worst, other.worst)
        return Load(self.mean + other.mean, self.variance + other.variance, self.most + other.most, worst)

    def less(self, paid: float) -> Load:
        """What is left of it after `paid` node-hours."""
        return Load(np.maximum(self.mean - paid, 0.0), self.variance, max(0.0, self.most - paid), self.worst)

    def expecting(self, node_hours: float, *, taken: float = 0.0) -> Load:
        """The same doubt about a run whose expected node-hours are known otherwise, of which so much is taken."""
        factor = node_hours / self.expected if self.expected > 0 else 0.0
        mean = np.minimum(np.maximum(self.mean * factor, taken), self.most)
        return Load(mean, self.variance * factor**2, self.most, self.worst * factor)

    @property
    def expected(self) -> float:
        """Expected node-hours (of the draws' middle nine tenths: the mean of a wide guess has no meaning)."""
        low, high = np.quantile(self.mean, [0.05, 0.95])
        return min(float(np.clip(self.mean, low, high).mean()), self.most)

    def within(self, room: float) -> float:
        """Probability that they take at most `room` node-hours."""
        if self.most <= room:
            return 1.0
        if room <= 0:
            return 0.0
        middle, width = self._logarithms()
        return float(chance((math.log(room) - middle) / width).mean())

    def quantile(self, p: float) -> float:
        """Node-hours that they stay below with probability `p`."""
        if not self.mean.any():
            return 0.0
        middle, width = self._logarithms()
        # A mixture's quantile lies between those of its parts.
        each = middle + NormalDist().inv_cdf(p) * width
        low, high = float(each.min()), float(each.max())
        while high - low > 1e-6:
            between = (low + high) / 2
            if chance((between - middle) / width).mean() < p:
                low = between
            else:
                high = between
        return min(math.exp(high), self.most)

    def _logarithms(self) -> tuple[Array, Array]:
        """Mean and width of the logarithm of the node-hours, of each draw.

        A sum of log-normal times is nearly log-normal: Fenton, IRE Trans. Commun. Syst. 8 (1960) 57.
        """
        mean = np.maximum(self.mean, 1e-100)
        square = np.log1p(self.variance / mean**2)
        return np.log(mean) - square / 2, np.sqrt(np.maximum(square, 1e-12))


class RunTimes:
    """The model of one campaign's runs.

    Args:
        campaign: Whose.
        node_cores: Cores of a node of the site; None where that is not known: read from the first results.
        expected_s: What a run is expected to take until one has ended, in seconds; None: as the contract says.
    """

    def __init__(
        self, campaign: Campaign, *, node_cores: int | None = None, expected_s: float | None = None
    ) -> None:
        self._app, self._search = campaign.app, campaign.search
        self._columns = _columns(campaign)
        self._prior = np.array([width for widths, _ in self._columns for width in widths])
        self._node_cores = node_cores
        self._rows: list[tuple[Array, float, bool]] = []  # row of the design, log of seconds, whether it failed
        self._going: list[tuple[Array, float]] = []
        self._recent: list[Params] = []
        self._fitted = -1
        self._walltime_holds = True
        contract = campaign.app.contract
        guessed_s = contract.estimated_runtime_s
        if self._app.chain and contract.estimated_cost is not None:
            guessed_s = contract.estimated_cost * 3600
        elif expected_s is not None and campaign.fidelity is None:
            guessed_s = expected_s
        self._guessed_s = max(guessed_s, 1e-6)
        rng = np.random.default_rng(0)
        self._normal = rng.standard_normal((DRAWS, len(self._prior)))
        self._beta = self._normal.T
        self._scatter = np.ones(DRAWS)
        self._break_off = (0.0, 1.0, 0.0)
        self._worst = 1.0
        rng = np.random.default_rng(0)
        points = self._search.sample(rng, 16)
        self._few = [campaign.complete(point) for point in points]

    def learn(self, results: Sequence[Result]) -> None:
        """Take in runs that have ended. Those whose worker did not live to tell teach nothing."""
        self._learn_of_site(results)
        found: list[list[tuple[Params, float, bool]]] = []
        recent: list[Params] = []
        many = 0
        for result in reversed(results):
            if not _tells(result):
                continue
            recent.append(result.manifest.params)
            found.append(self._lessons(result))
            many += len(found[-1])
            if many > 2 * REMEMBERED:
                break  # of a long campaign that is taken up the last runs tell enough
        learned = [lesson for of_run in reversed(found) for lesson in of_run]
        if len(self._rows) + len(learned) > 2 * REMEMBERED:
            del learned[:-REMEMBERED]
        self._rows += [(self._row(params), took, broke_off) for params, took, broke_off in learned]
        self._recent += reversed(recent)
        if len(self._rows) > 2 * REMEMBERED:
            del self._rows[:-REMEMBERED]
            self._fitted = -1
        del self._recent[:-32]

    def _learn_of_site(self, results: Sequence[Result]) -> None:
        """The cores of a node, and whether anything ends a run at its walltime: any run may tell."""
        for result in results:
            cost, resources = result.cost, result.manifest.resources
            walltime = resources.walltime_s
            asks = self._node_cores is None and not self._app.chain and resources.nodes == 1
            late = walltime is not None and cost.wall_s > OVERTIME * walltime + 5.0
            if (asks or late) and _tells(result):
                if asks:
                    share = cost.node_hours * 3600 / cost.wall_s
                    self._node_cores = max(1, round(resources.cores / share))
                if late:
                    self._walltime_holds = False  # a plain function, which nothing ends

    def _lessons(self, result: Result) -> list[tuple[Params, float, bool]]:
        """Parameters, log(seconds), and whether it broke off: of a run that the guard has ended up to two."""
        params, stopped = result.manifest.params, result.stopped
        seconds = result.cost.node_hours / self.rate(result.manifest.resources)
        if stopped is None:
            return [(params, math.log(seconds), result.failure is not None)]
        # What it would have taken, and that it broke off.
        whole_s = seconds if stopped.share <= 0 else seconds / stopped.share
        found = [(params, math.log(whole_s), stopped.share <= 0)]
        return [*found, (params, math.log(seconds), True)] if seconds < SHORT * whole_s else found

    @property
    def known(self) -> int:
        """How many runs it is fitted to."""
        return len(self._rows)

    def typical(self) -> list[Params]:
        """Parameters like those that come next: those of the latest runs, at first some from the whole space."""
        return self._recent or self._few

    def loads(self, points: Sequence[Params], elapsed_s: Sequence[float] | None = None) -> list[Load]:
        """What each run will take in all.

        Args:
            points: Complete parameters of each.
            elapsed_s: Seconds that each has been running, for all runs in flight: what takes long is learned from
                them before they end, for quick runs end first and are not like the others.
        """
        if elapsed_s is not None:
            self._going = [
                (self._row(p), math.log(seconds))
                for p, seconds in zip(points, elapsed_s, strict=True)
                if seconds > 0 and self._rows
            ]
            self._fitted = -1
        if not points:
            return []
        self._fit()
        rates = np.array([self.rate(self._resources(p)) for p in points])
        typical = np.array([self._row(p) for p in points]) @ self._beta
        square = self._scatter**2
        mean = np.exp(np.clip(typical + square / 2, -60, 60))
        chance_of, share, _ = self._break_off
        # Counted only as far as it is certain: the model of failures knows nothing of where they happen.
        second = (1 - chance_of) * np.exp(square) * mean**2 + chance_of * (share * mean) ** 2
        mean *= 1 - chance_of * (1 - share)
        variance = np.maximum(second - mean**2, 0.0)
        if elapsed_s is not None:
            # E[X | X > t] of a log-normal X exceeds t by about t sigma for t far out.
            mean = np.maximum(mean, np.array(elapsed_s)[:, None] * (1 + self._scatter))
        walltimes = [self._walltime(p) for p in points]
        limits = np.array(walltimes)[:, None]
        mean = np.minimum(mean, limits)
        middle = np.exp(np.clip(typical.mean(axis=1), -60, 60))
        extra = np.maximum(np.minimum(middle * self._worst, limits[:, 0]) - middle, 0.0) * rates
        return [
            Load(m * rate, v * rate**2, limit * rate, worst)
            for m, v, rate, limit, worst in zip(
                mean, variance, rates.tolist(), walltimes, extra.tolist(), strict=True
            )
        ]

    def estimates(self, points: Sequence[Params]) -> list[tuple[float, float, float]]:
        """Of each run: expected seconds, expected node-hours, node-hours that 95 % of such runs stay below."""
        if not points:
            return []
        self._fit()
        typical = np.array([self._row(p) for p in points]) @ self._beta
        middle = typical.mean(axis=1)
        spread = np.sqrt(typical.var(axis=1) + float(np.mean(self._scatter**2)))
        broken, share = self._break_off[2], self._break_off[1]
        # The contract's estimate is taken as it stands.
        above = np.minimum(spread, 1.0) ** 2 / 2 if self._rows else -middle + math.log(self._guessed_s)
        expected = np.exp(np.clip(middle + above, -60, 60)) * (1 - broken * (1 - share))
        high = np.exp(np.clip(middle + 1.645 * spread, -60, 60))
        found = []
        for point, mean, most in zip(points, expected.tolist(), high.tolist(), strict=True):
            rate, limit = self.rate(self._resources(point)), self._walltime(point)
            seconds = min(mean, limit)
            found.append((seconds, seconds * rate, min(max(most, mean), limit) * rate))
        return found

    def worst(self, params: Params) -> float | None:
        """Node-hours of a run that takes its whole walltime; None where it has none."""
        limit = self._resources(params).walltime_s
        return None if limit is None else limit * self.rate(self._resources(params))

    # -- the fit ------------------------------------------------------------------------------

    def _fit(self) -> None:
        # A few more among hundreds change nothing, and short runs leave no time for it.
        new = len(self._rows) - self._fitted
        if self._fitted >= 0 and (new == 0 or (new < len(self._rows) / 50 and not self._going)):
            return
        self._fitted = len(self._rows)
        rows = self._rows[-REMEMBERED:]
        if not rows:
            self._guess()
            return
        x = np.array([row for row, _, _ in rows])
        y = np.array([value for _, value, _ in rows])
        broke = np.array([failed for _, _, failed in rows])
        keep = ~broke if (~broke).any() else np.ones(len(rows), dtype=bool)
        mean, factor, a, b = self._solve(x[keep], y[keep])
        if self._going:
            x, y, broke, keep = self._with_going(x, y, broke, keep, mean, math.sqrt(b / a))
            mean, factor, a, b = self._solve(x[keep], y[keep])
        # A failure at the end of a run, or at its walltime, cost as much as a success: it is one of the runs.
        ratio = y - x @ mean
        short = broke & (ratio < math.log(SHORT))
        if (broke & ~short & ~keep).any():
            mean, factor, a, b = self._solve(x[~short], y[~short])
        self._break_off = _broken_off(int(short.sum()), len(rows), np.exp(ratio[short]))
        self._worst = math.exp(max(0.0, float((y - x @ mean).max())))
        rng = np.random.default_rng(0)
        self._scatter = np.minimum(np.sqrt(b / rng.gamma(a, size=DRAWS)), WORST_SCATTER)
        self._beta = mean[:, None] + np.linalg.solve(factor.T, self._normal.T) * self._scatter

    def _with_going(
        self, x: Array, y: Array, broke: Array, keep: Array, mean: Array, scatter: float
    ) -> tuple[Array, Array, Array, Array]:
        """The rows, with runs that take longer than thought: each at its mean given that it goes on."""
        rows = np.array([row for row, _ in self._going])
        since = np.array([value for _, value in self._going])
        for _ in range(3):
            k = (since - rows @ mean) / scatter
            late = k > -1.0
            # Mean of a normal deviate above k: phi(k) / Phi(-k), for k far out k + 1/k.
            beyond = np.where(
                k > 5,
                k + 1 / np.maximum(k, 1),
                np.exp(-(k**2) / 2) / math.sqrt(2 * math.pi) / _at_least(chance(-k)),
            )
            values = rows @ mean + scatter * beyond
            none = np.zeros(int(late.sum()), dtype=bool)
            both = np.vstack([x, rows[late]]), np.concatenate([y, values[late]])
            kept = np.concatenate([keep, ~none])
            mean, _, a, b = self._solve(both[0][kept], both[1][kept])
            scatter = math.sqrt(b / a)
        return *both, np.concatenate([broke, none]), kept

    def _solve(self, x: Array, y: Array) -> tuple[Array, Array, float, float]:
        """Posterior mean, Cholesky factor of the precision (in units of the scatter), and of the scatter: a, b.

        The prior of the slopes is in units of the scatter, where all of this has a closed form; so it is scaled
        to the scatter that comes out.
        """
        centre = np.zeros(x.shape[1])
        centre[0] = y.mean()
        square, products, scatter = x.T @ x, x.T @ y, SCATTER**2
        a = FREEDOM + len(y) / 2
        for _ in range(3):
            prior = scatter / self._prior**2
            factor = np.asarray(np.linalg.cholesky(square + np.diag(prior)), dtype=float)
            halfway = np.linalg.solve(factor, products + prior * centre)
            mean = np.asarray(np.linalg.solve(factor.T, halfway), dtype=float)
            rest, moved = y - x @ mean, mean - centre
            b = FREEDOM * SCATTER**2 + 0.5 * float(rest @ rest + moved @ (prior * moved))
            scatter = b / a
        return mean, factor, a, b

    def _guess(self) -> None:
        width = np.full(len(self._prior), GUESS_SLOPE)
        width[0] = GUESS
        self._beta = (self._normal * width).T
        self._beta[0] += math.log(self._guessed_s)
        self._scatter = np.full(DRAWS, GUESS_SCATTER)
        self._break_off = (0.0, 1.0, 0.0)

    # -- one run ------------------------------------------------------------------------------

    def _row(self, params: Params) -> Array:
        return np.array([value for _, values in self._columns for value in values(params)])

    def _resources(self, params: Params) -> Resources:
        return self._app.contract.resources_for(params)

    def rate(self, resources: Resources) -> float:
        """Node-hours of a second. A chain is reckoned in seconds of a whole node, whatever its runs occupy."""
        if self._app.chain:
            return 1 / 3600
        cores = resources.cores
        share = min(1.0, cores / (self._node_cores or cores)) if resources.nodes == 1 else 1.0
        return resources.nodes * share / 3600

    def _walltime(self, params: Params) -> float:
        if self._app.chain or not self._walltime_holds:
            return math.inf
        limit = self._resources(params).walltime_s
        return math.inf if limit is None else OVERTIME * limit


def _at_least(values: Array) -> Array:
    return np.maximum(values, 1e-12)


def _broken_off(short: int, runs: int, ratios: Array) -> tuple[float, float, float]:
    """Of runs that break off: their probability at least, what they cost of a whole one, their probability."""
    if not short:
        return 0.0, 1.0, 0.0
    share = short / runs
    certain = share - 1.645 * math.sqrt(share * (1 - share) / runs) - 1 / runs if runs >= ENOUGH_FAILURES else 0.0
    return max(0.0, certain), float(ratios.mean()), share


def _columns(campaign: Campaign) -> list[Columns]:
    """The columns of the design."""
    contract, search = campaign.app.contract, campaign.search
    columns: list[Columns] = [((LEVEL,), lambda params: (1.0,))]
    for p in search.parameters:
        if p.constant or p.kind == "text":
            continue
        if p.kind == "choice":
            columns.append(((STEP,) * len(p.choices), _which(p)))
        else:
            columns.append(((SLOPE, CURVE), _along_and_bent(p)))
    if contract.resources_from:
        columns.append(((SLOPE,), lambda params: (math.log(contract.resources_for(params).cores),)))
    if campaign.reference is not None or (campaign.confirm is not None and campaign.confirm.baseline):
        # A reference or baseline that differs in what is not varied is another system, with times of its own.
        middle = campaign.complete(search.middle)
        fixed = {name: value for name, value in middle.items() if name not in search}
        columns.append(
            ((ELSEWHERE,), lambda params: (float(any(params.get(n, v) != v for n, v in fixed.items())),))
        )
    return columns


def _which(p: Parameter) -> Callable[[Params], tuple[float, ...]]:
    return lambda params: tuple(float(params.get(p.name) == choice) for choice in p.choices)


def _along_and_bent(p: Parameter) -> Callable[[Params], tuple[float, ...]]:
    """Where in [-1, 1] of its range a parameter is, a reference somewhat outside; and the square of that."""

    def values(params: Params) -> tuple[float, ...]:
        try:
            at = min(max(2 * p.to_unit(params[p.name]) - 1, -1.5), 1.5)
        except (KeyError, ValueError):  # not there, or not a number that has a logarithm
            at = 0.0
        return at, at**2 - 1 / 3

    return values


def _tells(result: Result) -> bool:
    """Whether it is known what a run took; one that went on from another took only what was missing."""
    return result.cost.wall_s > 0 and result.cost.node_hours > 0 and not result.manifest.extends
