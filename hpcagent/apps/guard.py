"""Whether a run that is going on is to be stopped: pure functions of what it gave so far.

Imports only the standard library, for workers use it. Who watches a run makes a `Sofar` of it now and then, and
asks `decide` with all of them; the verdict ends the run, and goes into its result (`Verdict.stopped`).

What the finished run would give is foretold from what there is so far, for a metric that is a mean over the run or
behaves like one (its error falls as the root of the length):

- Its error is that of the difference between the finished value and the one so far: part of the run is in both.
- The standard error is itself one of few independent samples, so the distribution is Student's t, and what the
  value did from look to look is a second estimate of it: the larger one counts.
- A value that moves towards the better side is taken to go on moving so to the end, in a straight line or in a
  parabola, whichever goes further. Whether it moves at all has an error, which counts in full. Whether it bends
  has one, too: that of what scatters around a line, for it is not a drift that hides a bend.
- Every look is a chance to be wrong. The risk of the whole run is spent over them in proportion to the part of the
  run that has gone by (K. K. G. Lan and D. L. DeMets, "Discrete sequential boundaries for clinical trials",
  Biometrika 70, 659 (1983)), each look's own share by the sum rule, whatever the looks have in common.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from hpcagent.errors import AppFailed

__all__ = ["REASONS", "Sofar", "Verdict", "as_recorded", "blown_up", "checked", "decide"]

REASONS = ("blown_up", "limit", "cannot_win")

FEW = 8.0
"""Degrees of freedom of a stated standard error, where nobody says of how many samples it is."""
LATEST_HALF = 0.75
"""At what part of what there is the value must have been looked at, to say whether it drifts."""
LATEST = 0.85
"""The same for the last third of what there is, to say whether it drifts faster and faster."""
ENOUGH = 8
"""Looks from which on a scatter around a line says anything."""
LEAST_AROUND = 0.1
"""What the scatter around a line is taken for at least, in units of the error itself."""
FEW_OF_SPEEDS = 8.0
"""Degrees of freedom of the noise of a speed: a neighbour comes and goes."""
SPEED_NOISE = 0.1
"""Relative standard deviation of a speed against the finished run's, where nothing better is known."""


@dataclass(frozen=True, slots=True)
class Sofar:
    """What a run that is going on has given by now.

    Attributes:
        share: Which part of it is done, 0 to 1.
        metrics: As the finished run's are made, of what there is.
        uncertainty: Standard errors of them, corrected for correlation.
        blown_up: Why its numbers are beyond sense, in words; empty where they are not.
        wall_s: Its wall time so far, in seconds.
        effective: Independent samples behind an error, where that is known.
    """

    share: float
    metrics: Mapping[str, float] = field(default_factory=dict)
    uncertainty: Mapping[str, float] = field(default_factory=dict)
    blown_up: str = ""
    wall_s: float = 0.0
    effective: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A run is to be stopped.

    Attributes:
        reason: `blown_up`, `limit` or `cannot_win`.
        sentence: Why, with the numbers.
        metric: The metric that decided; empty for `blown_up`.
        bounds: Metric -> on which side of the threshold the finished run's value would lie.
        threshold: The limit, or the best so far, in the metric's unit.
    """

    reason: str
    sentence: str
    metric: str = ""
    bounds: Mapping[str, str] = field(default_factory=dict)
    threshold: float | None = None

    def stopped(self, share: float) -> dict[str, Any]:
        """What an `Outcome` says of it (`Outcome.stopped`), or an `AppFailed` of a run that has blown up.

        Example:
            >>> Verdict("blown_up", "the temperature is 1e9 K.").stopped(0.25)["reason"]
            'blown_up'
        """
        return {
            "reason": self.reason,
            "sentence": self.sentence,
            "share": share,
            "metric": self.metric,
            "threshold": self.threshold,
        }


def blown_up(verdict: Verdict, share: float, *, log_tail: str = "") -> AppFailed:
    """The failure of a run that was stopped because it has blown up.

    Args:
        verdict: Its reason is `blown_up`.
        share: Which part of the run was done, 0 to 1.
        log_tail: Last lines of the program's output.

    Example:
        >>> blown_up(Verdict("blown_up", "the temperature is 1e9 K."), 0.25).details["name"]
        'BlownUp'
    """
    return AppFailed(
        f"stopped by the guard after {share:.0%} of the run: {verdict.sentence.rstrip('.')}.",
        kind="simulation",
        name="BlownUp",
        log_tail=log_tail,
        repair="smaller timestep, or minimise first",
        stopped=verdict.stopped(share),
    )


def checked(stopped: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a function says of a run that it has ended early, looked at.

    Raises:
        AppFailed: It is not what `Verdict.stopped` makes.
    """
    share, threshold = stopped.get("share"), stopped.get("threshold")
    fine = (
        stopped.get("reason") in REASONS
        and isinstance(stopped.get("sentence"), str)
        and isinstance(stopped.get("metric", ""), str)
        and isinstance(share, (int, float))
        and 0 <= share <= 1
        and (threshold is None or (isinstance(threshold, (int, float)) and math.isfinite(threshold)))
    )
    if fine:
        return stopped
    raise AppFailed(
        f"the outcome's `stopped` is {stopped!r:.200}; it is what hpcagent.apps.guard.Verdict.stopped makes.",
        kind="contract",
        name="BadReturn",
    )


def as_recorded(stopped: Mapping[str, Any], *, wall_s: float, nodes: float) -> dict[str, Any]:
    """`stopped` as it stands in a result: with what the rest of the run would have taken.

    Args:
        stopped: From `checked`; with `rest_s` where who watched it knows better how long the rest would have taken
            than by the run's wall time so far.
        wall_s: What the run has taken, in seconds.
        nodes: Nodes it held, or the share of one.

    Example:
        >>> said = Verdict("limit", "too hot.", "temperature", {}, 300.0).stopped(0.25)
        >>> as_recorded(said, wall_s=10.0, nodes=2)["saved_node_seconds"]
        60.0
    """
    share = float(stopped["share"])
    rest_s = wall_s * (1 - share) / share if share > 0 else 0.0
    rest_s = max(0.0, float(stopped.get("rest_s", rest_s)))
    threshold = stopped.get("threshold")
    return {
        "reason": stopped["reason"],
        "sentence": stopped["sentence"],
        "share": share,
        "saved_node_seconds": nodes * rest_s,
        "metric": stopped.get("metric", ""),
        "threshold": None if threshold is None else float(threshold),
    }


def decide(guard: Mapping[str, Any], history: Sequence[Sofar]) -> Verdict | None:
    """Whether the run is to be stopped now.

    Args:
        guard: As `hpcagent.campaign.guarding` makes it: `stops`, `confidence`, `least_share`, `limits` (`metric`,
            `op`, `value`), `goal` (`metric`, `direction`, `best`, `best_error`) or None, `kinds` (metric ->
            `mean`, `speed`, `rising` or `falling`; another one never stops a run), `noise` (speed -> relative
            standard deviation), `discard`.
        history: What the run gave at every look so far, the newest last. Between two calls it only grows.

    Returns:
        None: the run goes on.

    Example:
        >>> guard = {"stops": ["limit"], "confidence": 0.99, "least_share": 0.2, "kinds": {"t": "mean"},
        ...          "limits": [{"metric": "t", "op": "<=", "value": 100.0}], "goal": None}
        >>> looks = [Sofar(share, {"t": 300.0}, {"t": 1.0}) for share in (0.1, 0.2, 0.3)]
        >>> decide(guard, looks[:1]), decide(guard, looks).bounds
        (None, {'t': 'above'})
    """
    now, stops = history[-1], guard["stops"]
    if now.blown_up:  # it is not waited for, however little of the run is done
        return Verdict("blown_up", now.blown_up) if "blown_up" in stops else None
    looks = [one for one in history if one.share >= guard["least_share"]]
    if not looks or looks[-1] is not now or not 0 < now.share < 1:
        return None
    limits = guard["limits"] if "limit" in stops else ()
    goal = guard["goal"] if "cannot_win" in stops else None
    claims = len(limits) + (goal is not None)
    before = looks[-2].share if len(looks) > 1 else 0.0
    risk = (1 - guard["confidence"]) * max(now.share - before, 0.0) / max(claims, 1)
    for limit in limits:
        verdict = _breaks(guard, history, limit, risk)
        if verdict is not None:
            return verdict
    return None if goal is None else _cannot_win(guard, history, goal, risk)


def _breaks(
    guard: Mapping[str, Any], history: Sequence[Sofar], limit: Mapping[str, Any], risk: float
) -> Verdict | None:
    metric, above = limit["metric"], limit["op"] == "<="
    found = _foretold(guard, history, metric, up=above)
    if found is None or not found.beyond(limit["value"], 0.0, risk, above=above):
        return None
    side, word = ("above", "at most") if above else ("below", "at least")
    said = (
        f"{found.words(metric)} after {history[-1].share:.0%} of the run: it would end {side} the limit "
        f"({word} {limit['value']:g})"
    )
    return Verdict("limit", said, metric, {metric: side}, float(limit["value"]))


def _cannot_win(
    guard: Mapping[str, Any], history: Sequence[Sofar], goal: Mapping[str, Any], risk: float
) -> Verdict | None:
    best, metric, above = goal.get("best"), goal["metric"], goal["direction"] == "minimize"
    if best is None:
        return None
    found = _foretold(guard, history, metric, up=above)
    error = float(goal.get("best_error") or 0.0)
    if found is None or not found.beyond(best, error, risk, above=above):
        return None
    side = "above" if above else "below"
    said = (
        f"{found.words(metric)} after {history[-1].share:.0%} of the run: it would end {side} the best so far "
        f"({best:.4g}{f' +- {error:.1g}' if error else ''})"
    )
    return Verdict("cannot_win", said, metric, {metric: side}, float(best))


@dataclass(frozen=True, slots=True)
class _Foretold:
    """What the finished run would give: `value`, moved by at most `drift` towards the better side, +- `error`."""

    value: float
    stated: float
    drift: float
    error: float
    freedom: float
    certain: bool = False

    def words(self, metric: str) -> str:
        error = f" +- {self.stated:.2g}" if self.stated else ""
        return f"{metric} is {self.value:.4g}{error}"

    def beyond(self, threshold: float, its_error: float, risk: float, *, above: bool) -> bool:
        """Whether it would end on that side of the threshold, but for a probability of `risk`."""
        margin = (self.value - threshold if above else threshold - self.value) - self.drift
        if margin <= 0:
            return False
        error = math.hypot(self.error, its_error)
        if error <= 0:
            return self.certain
        return _tail(margin / error, self.freedom) < risk


def _foretold(guard: Mapping[str, Any], history: Sequence[Sofar], metric: str, *, up: bool) -> _Foretold | None:
    """What the finished run would give; None where that cannot be told.

    Args:
        guard: As above.
        history: As above.
        metric: Which.
        up: Whether it is about being too large: what may still rescue it is then a fall.
    """
    now, kind = history[-1], guard.get("kinds", {}).get(metric)
    value = now.metrics.get(metric)
    if value is None or not math.isfinite(value):
        return None
    if kind in ("rising", "falling"):
        certain = (kind == "rising") == up  # it can only get worse
        return _Foretold(value, 0.0, 0.0, 0.0, math.inf, certain=True) if certain else None
    if kind not in ("mean", "speed"):
        return None
    stated = now.uncertainty.get(metric, 0.0)
    if not (math.isfinite(stated) and stated >= 0):
        return None
    if kind == "mean" and stated <= 0:
        return None  # a series that says too little of its mean has no error; one that is exact has none either
    if kind == "speed":
        noise = float(guard.get("noise", {}).get(metric) or 0.0) or SPEED_NOISE
        drift = _line(history, metric, up=up)
        return _Foretold(value, stated, drift, math.hypot(noise * abs(value), stated), FEW_OF_SPEEDS)
    given = guard.get("discard")
    # Where the contract says nothing a leg of equilibration is most often there, and nothing is left out.
    course = _course(history, metric, up=up, discard=0.0 if given is None else float(given))
    if course is None:
        return None
    error = max(stated, _seen_error(history, metric))
    around = min(error, max(LEAST_AROUND * error, _error_around_line(history, metric) or error))
    freedom = max(now.effective.get(metric, FEW + 1) - 1, 1.0)
    return _Foretold(value, error, course.move, math.hypot(error * course.line, around * course.bend), freedom)


def _values(history: Sequence[Sofar], metric: str) -> list[tuple[float, float]]:
    """Share and value of every look that has the metric, where the run has gone on since the one before."""
    found: list[tuple[float, float]] = []
    for one in history:
        value = one.metrics.get(metric)
        if value is not None and math.isfinite(value) and one.share > (found[-1][0] if found else 0.0):
            found.append((one.share, value))
    return found


def _shared(one: float, other: float, discard: float) -> float:
    """Covariance of a series' means at two lengths, in units of that of the whole series

    Each leaves out the same share at its beginning: the more is left out the less do they have in common.

    Example:
        >>> _shared(0.5, 0.5, 0.0), _shared(0.5, 1.0, 0.0), _shared(0.5, 1.0, 0.5)
        (2.0, 1.0, 0.0)
    """
    common = max(0.0, min(one, other) - discard * max(one, other))
    return common / (one * other * (1 - discard) ** 2)


def _near(values: Sequence[tuple[float, float]], share: float) -> tuple[float, float]:
    return min(values, key=lambda one: abs(one[0] - share))


def _line(history: Sequence[Sofar], metric: str, *, up: bool) -> float:
    """By how much the value may still move to the better side, if it goes on as since half of what there is.

    A signal that rises in a straight line moves its running mean in a straight line, too.
    """
    values = _values(history, metric)
    if len(values) < 2:
        return 0.0
    share, value = values[-1]
    begin, then = _near(values[:-1], share / 2)
    if begin > LATEST_HALF * share:
        return 0.0
    return max(0.0, then - value if up else value - then) * (1 - share) / (share - begin)


class _Course(NamedTuple):
    """Where a value goes: how far to the better side, and the errors of that in units of the value's own.

    `line`: the error of a straight line's end against the finished value; `bend`: what a parabola's end has more.
    """

    move: float
    line: float
    bend: float


def _course(history: Sequence[Sofar], metric: str, *, up: bool, discard: float) -> _Course | None:
    """Where a value goes until the end, in a line or in a parabola, whichever gets further to the better side.

    A signal that is a parabola of time has a running mean that is one, too. It is laid through the means
    of a third, of two thirds and of all of what there is; the line goes through those of half and of all. In the
    errors all that these means and the finished one have in common is counted. None without looks near there.
    """
    values = _values(history, metric)
    if len(values) < 3:
        return None
    share, value = values[-1]
    first, second = _near(values[:-1], share / 3), _near(values[:-1], 2 * share / 3)
    half = _near(values[:-1], share / 2)
    if not (0 < first[0] < second[0] and first[0] <= share / 2 and second[0] <= LATEST * share):
        return None
    ends, errors = [], []
    for points in ((half, values[-1]), (first, second, values[-1])):
        at = [place for place, _ in points]
        weights = [math.prod((1 - x) / (here - x) for x in at if x != here) for here in at]
        ends.append(sum(w * mean for w, (_, mean) in zip(weights, points, strict=True)))
        terms = [*zip(weights, at, strict=True), (-1.0, 1.0)]
        variance = sum(v * w * _shared(x, y, discard) for v, x in terms for w, y in terms)
        errors.append(max(0.0, variance) / _shared(share, share, discard))
    move = max(0.0, *(value - end if up else end - value for end in ends))
    return _Course(move, math.sqrt(errors[0]), math.sqrt(max(0.0, errors[1] - errors[0])))


def _seen_error(history: Sequence[Sofar], metric: str) -> float:
    """The standard error of the newest value by what it did from look to look; 0 where looks are few.

    Parts of the run that lie between two looks have means of their own; these scatter as the whole's error says.
    """
    values = _values(history, metric)
    if len(values) < 4:
        return 0.0
    share, value = values[-1]
    squares = 0.0
    for (s0, v0), (s1, v1) in pairwise(values):
        part = s1 - s0
        squares += ((s1 * v1 - s0 * v0) - part * value) ** 2 / part
    return math.sqrt(squares / (len(values) - 2) / share)


def _error_around_line(history: Sequence[Sofar], metric: str) -> float | None:
    """As `_seen_error`, by how parts between looks scatter around a straight line; None where looks are few."""
    values = _values(history, metric)
    if len(values) < ENOUGH:
        return None
    parts = [(s1 - s0, (s0 + s1) / 2, (s1 * v1 - s0 * v0) / (s1 - s0)) for (s0, v0), (s1, v1) in pairwise(values)]
    whole = sum(w for w, _, _ in parts)
    x0, y0 = sum(w * x for w, x, _ in parts) / whole, sum(w * y for w, _, y in parts) / whole
    slope = sum(w * (x - x0) * (y - y0) for w, x, y in parts) / sum(w * (x - x0) ** 2 for w, x, _ in parts)
    squares = sum(w * (y - y0 - slope * (x - x0)) ** 2 for w, x, y in parts)
    return math.sqrt(squares / (len(parts) - 2) / values[-1][0])


def _tail(t: float, freedom: float) -> float:
    """P(T > t) of Student's t, t >= 0.

    Example:
        >>> round(_tail(2.776, 4), 4), round(_tail(1.96, math.inf), 4)
        (0.025, 0.025)
    """
    if not math.isfinite(freedom) or freedom > 1e6:
        return 0.5 * math.erfc(t / math.sqrt(2))
    return 0.5 * _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t))


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function, by its continued fraction (Abramowitz and Stegun 26.5.8)."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(b, a, 1 - x)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    tiny = 1e-300
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1) or tiny)
    fraction = d
    for m in range(1, 300):
        for step in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / (1 + step * d or tiny)
            c = 1 + step / c or tiny
            fraction *= c * d
        if abs(c * d - 1) < 1e-12:
            break
    return front * fraction / a
