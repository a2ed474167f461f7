"""How long the runs of an app have taken, against what was estimated when they were asked for."""

from __future__ import annotations

import math
from bisect import insort
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from hpcagent.later import Later

if TYPE_CHECKING:
    import numpy as np

    from hpcagent.statistics.covariance import Array
else:
    np = Later("numpy")

__all__ = ["AppVersion", "Took", "by_label", "lengths_of", "numbers_of"]

REMEMBERED = 500
"""Runs that the estimate is from, the latest."""
ENOUGH = 4
"""With fewer runs it is their median."""
WALL = ""
"""The column of wall times; no parameter has this name."""
LARGEST = 1e150
"""A larger number tells nothing here, and its square is none."""
RIDGE = 0.05
"""How much slopes are drawn to zero: as if so many more runs had said that a parameter does nothing."""


class AppVersion(NamedTuple):
    """What runs are of: others of the same name teach nothing about it.

    Attributes:
        app: The app's name, which code of anybody's may have.
        version: Its semantic version; empty where an old record does not say.
        code: The digest of somebody's own code; empty: it is the library's.
    """

    app: str
    version: str
    code: str = ""


def by_label(found: Mapping[AppVersion, Took], packaged: Iterable[str]) -> dict[str, Took]:
    """Each with a text for people: the newest of a name has it alone, but own code not that of a packaged app.

    Args:
        found: In the order in which they have come.
        packaged: Names of packaged apps.

    Example:
        >>> old, new, own = ("md", "1.0.0"), ("md", "1.1.0"), ("md", "9.0.0", "ab" * 32)
        >>> list(by_label({AppVersion(*one): Took() for one in (old, new, own)}, ["md"]))
        ['md', 'md 1.0.0', 'md 9.0.0 (own code abababababab)']
    """
    ours = set(packaged)
    alone = {of.app: of for of in found if not (of.code and of.app in ours)}
    same = Counter((of.app, of.version) for of in found)
    labels = {}
    for of in found:
        words = [of.app] if alone.get(of.app) == of else [of.app, of.version]
        if of.code and len(words) > 1 and (of.app in ours or same[of.app, of.version] > 1):
            # Of what was kept before there were digests, the reference stands in its place.
            words.append(f"(own code {of.code.rpartition(':')[2][:12]})")
        labels[of] = " ".join(filter(None, words))
    return {labels[of]: found[of] for of in sorted(found, key=labels.__getitem__)}


class Took:
    """Of one version of an app.

    Attributes:
        runs: How many have completed.
        failed: How many have failed; what they took counts in no estimate.
    """

    def __init__(self) -> None:
        self.runs = self.failed = 0
        self._walls: list[float] = []
        self._ratios: list[float] = []
        self._estimated = self._actual = 0.0  # of those with an estimate
        self._with_estimate = 0
        # The last runs: those that no estimate has seen yet, and a column for each parameter.
        self._fresh: deque[tuple[dict[str, float], float]] = deque(maxlen=REMEMBERED)
        self._columns: dict[str, Array] = {}
        self._kept = 0

    def add(self, estimated_s: float | None, actual_s: float, params: Mapping[str, Any] | None = None) -> None:
        """One more run: wall times in seconds (None: nothing was estimated for it alone), and its parameters."""
        numbers = numbers_of(params or {})
        self.runs += 1
        insort(self._walls, actual_s)
        if estimated_s is not None:
            self._with_estimate += 1
            self._estimated, self._actual = self._estimated + estimated_s, self._actual + actual_s
            if estimated_s > 0:
                insort(self._ratios, actual_s / estimated_s)
        self._fresh.append((numbers, actual_s))

    @property
    def median_s(self) -> float:
        """The median of their wall times, in seconds.

        Example:
            >>> took = Took()
            >>> for wall_s in (3.0, 1.0, 2.0):
            ...     took.add(1.0, wall_s)
            >>> took.median_s, took.accuracy()["actual_over_estimated"]
            (2.0, 2.0)
        """
        return self._walls[len(self._walls) // 2]

    def expected(
        self,
        params: Mapping[str, Any],
        *,
        contract_s: float = 0.0,
        stated: bool = True,
        lengths: Sequence[str] = (),
        ranges_said: bool = True,
    ) -> tuple[float, str]:
        """What a run with these parameters takes, in seconds, and what that is from.

        Least squares of log(wall time) on the logarithms of the parameters (on themselves, where one is not
        positive), each scaled to its spread, with slopes drawn to zero. While there are too few runs for that, or
        all have had the same length, wall times are in proportion to the length. Where another whole number, as of
        cells, or one that all had alike, is outside of what they had, it is not below the contract's estimate,
        if somebody has stated that.

        Args:
            params: Of the run.
            contract_s: The contract's estimate, in seconds.
            stated: Whether somebody has stated it; a default does not go before measurements.
            lengths: Parameters that say how long it is (`lengths_of`).
            ranges_said: Whether the words may tell of earlier runs' parameters, maybe other people's: not only
                ranges, as what lies outside of them would tell where they end.

        Example:
            >>> took = Took()
            >>> for steps in (100, 200, 400, 800):
            ...     took.add(1.0, steps / 100, {"steps": steps})
            >>> seconds, words = took.expected({"steps": 1600})
            >>> 13 < seconds < 17, words
            (True, '4 runs here; outside of what they had: steps = 1600 (100 to 800)')
        """
        if not self.runs:
            return contract_s, "the contract's estimate: no run here has completed"
        asked = numbers_of(params)
        columns, walls = self._table()
        had = {name: columns[name] for name in asked if name in columns}
        # All at once: there is one such call for each run that is asked for.
        rows = np.array([*had.values()]).reshape(len(had), len(walls))
        lows, highs = np.fmin.reduce(rows, axis=1).tolist(), np.fmax.reduce(rows, axis=1).tolist()
        ranges = dict(zip(had, zip(lows, highs, strict=True), strict=True))
        outside = {
            name: f"{name} = {asked[name]:g}{_had(low, high)}"
            for name, (low, high) in ranges.items()
            if not math.isnan(low) and not low <= asked[name] <= high
        }
        words = f"{self.runs} run{'s' if self.runs > 1 else ''} here"
        totals = zip(had, rows.sum(axis=1).tolist(), strict=True)
        always = {name for name, total in totals if not math.isnan(total)}
        varied = [name for name in had if name in always and ranges[name][0] < ranges[name][1]]
        fits = len(walls) >= ENOUGH and bool(varied)
        known = varied if fits else []
        if fits:
            table = np.column_stack([had[name] for name in varied])
            seconds = _fitted(table, walls, np.array([asked[name] for name in varied]), self.median_s)
        else:
            seconds = self.median_s
        scaled = [name for name in lengths if name in always]
        if scaled and not set(scaled) & set(known):
            length = sum(asked[name] for name in scaled)
            of_runs = np.sum([had[name] for name in scaled], axis=0)
            if length and of_runs.all() and ((of_runs != length).any() or not ranges_said):
                times = np.sort((seconds if fits else walls) * length / of_runs)
                seconds = float(times[len(times) // 2])
                words += f", in proportion to {' + '.join(scaled)}"
        if outside and ranges_said:
            words += f"; outside of what they had: {', '.join(outside.values())}"
        counts = {name for name in outside if isinstance(params[name], int) or ranges[name][0] == ranges[name][1]}
        counts -= {*scaled, *known}
        if stated and contract_s > seconds and counts:
            return contract_s, f"the contract's estimate, above the {seconds:.3g} s of {words}"
        return seconds, words

    def _table(self) -> tuple[dict[str, Array], Array]:
        """`(runs,)` of each parameter, NaN where a run had no such number, and the wall times of the last runs."""
        for numbers, wall_s in self._fresh:
            at = self._kept % REMEMBERED
            run = {**numbers, WALL: wall_s}
            for name in run.keys() - self._columns.keys():
                self._columns[name] = np.full(REMEMBERED, math.nan)
            for name, column in self._columns.items():
                column[at] = run.get(name, math.nan)
            self._kept += 1
        self._fresh.clear()
        kept = min(self._kept, REMEMBERED)
        columns = {name: column[:kept] for name, column in self._columns.items()}
        return columns, columns.pop(WALL)

    def accuracy(self) -> dict[str, Any]:
        """Of runs that were asked for one by one: means in seconds, median of actual over estimated, and the share
        within a factor of two. `runs` and `failed` count those of campaigns, too, where they were run here.
        """
        ratios, asked = self._ratios, self._with_estimate
        return {
            "runs": self.runs,
            "asked": asked,
            "failed": self.failed,
            "estimated_s": self._estimated / asked if asked else None,
            "actual_s": self._actual / asked if asked else None,
            "actual_over_estimated": ratios[len(ratios) // 2] if ratios else None,
            "within_factor_2": sum(0.5 <= one <= 2 for one in ratios) / len(ratios) if ratios else None,
        }


def _had(low: float, high: float) -> str:
    return f" ({low:g} in all)" if low == high else f" ({low:g} to {high:g})"


def _fitted(table: Array, walls: Array, point: Array, otherwise: float) -> float:
    """Wall time at a point, in seconds, by least squares of the runs of a table, `(runs, parameters)`.

    Args:
        table: Parameters of runs.
        walls: `(runs,)` wall times in seconds.
        point: `(parameters,)`.
        otherwise: What it is where the numbers do not allow a fit.
    """
    positive = (table > 0).all(axis=0) & (point > 0)
    table = np.where(positive, np.log(np.where(positive, table, 1.0)), table)
    point = np.where(positive, np.log(np.where(positive, point, 1.0)), point)
    with np.errstate(over="ignore", invalid="ignore"):
        middle, spread = table.mean(axis=0), table.std(axis=0)
    told = spread > 1e-9 * np.maximum(1.0, np.abs(middle))  # not by rounding alone
    middle, spread, point = middle[told], spread[told], point[told]
    x = (table[:, told] - middle) / spread
    y = np.log(np.maximum(walls, 1e-6))
    slopes = np.linalg.solve(x.T @ x + RIDGE * np.eye(len(point)), x.T @ (y - y.mean()))
    guess = float(y.mean() + (point - middle) / spread @ slopes)
    return math.exp(min(guess, 50.0)) if math.isfinite(guess) else otherwise


def lengths_of(names: Iterable[str]) -> tuple[str, ...]:
    """Of the names of parameters those that say how long a run is, in steps.

    Example:
        >>> lengths_of(["timestep", "equil_steps", "steps", "max_steps", "every"])
        ('equil_steps', 'steps')
    """
    return tuple(n for n in names if (n == "steps" or n.endswith("_steps")) and not n.startswith("max_"))


def numbers_of(params: Mapping[str, Any]) -> dict[str, float]:
    """The parameters that are numbers, and not too large to be reckoned with."""
    return {
        name: float(value)
        for name, value in params.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST
    }
