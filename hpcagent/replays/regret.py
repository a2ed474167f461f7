"""What came of playing other policies: regret, what it cost, and which differences are more than chance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpcagent.campaign.numbers import number, point_text
from hpcagent.campaign.record import Campaign
from hpcagent.campaign.table import Table
from hpcagent.errors import BadInput
from hpcagent.html import Card, Displayed, Rows
from hpcagent.model.parameter import Params
from hpcagent.reports.plots import available
from hpcagent.statistics.covariance import Array
from hpcagent.statistics.surrogate import MetricModel
from hpcagent.store.files import refusing_clearly

__all__ = ["Course", "ModelError", "Played", "Replay", "check_plot", "t_quantile"]

POOR = 0.5
CLOSE = (0.05, 0.01)
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9")  # Okabe and Ito 2008

# 97.5 % quantile of Student's t for one and two degrees of freedom.
FEW = (12.706, 4.303)


def t_quantile(freedom: int) -> float:
    """97.5 % quantile of Student's t, to 0.8 % (Abramowitz and Stegun 1964, eq. 26.7.5).

    Example:
        >>> round(t_quantile(4), 2), round(t_quantile(19), 3)
        (2.77, 2.093)
    """
    if freedom <= len(FEW):
        return FEW[freedom - 1]
    z, v = 1.959964, float(freedom)
    return (
        z
        + (z**3 + z) / (4 * v)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
    )


@dataclass(frozen=True)
class ModelError:
    """How well the surrogate says one metric of a point that it has not seen: each point left out in turn.

    Attributes:
        metric: Its name.
        unit: Its unit.
        points: How many points were left out, one at a time.
        rms: Root mean square error, in the unit.
        relative: The same of error / value, where the surrogate is of the logarithm; otherwise None.
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
            # Where the model is not of ratios, the relative error is that of the values nearest to zero.
            relative=_rms(raw_said / raw - 1) if model.scale.kind == "log" else None,
            r2=1 - squares / spread if spread > 0 else float(squares == 0),
            within_one=float((off <= 1).mean()),
            within_two=float((off <= 2).mean()),
        )

    def __str__(self) -> str:
        unit = "" if self.unit == "1" else f" {self.unit}"
        relative = "" if self.relative is None else f" ({self.relative:.1%})"
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


@dataclass(frozen=True, repr=False)
class Replay(Displayed):
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
        >>> from hpcagent.runs.run import run
        >>> from hpcagent.replays.whatif import replay
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = run("synthetic", site="threads", run_dir=folder)
        ...     found = replay(folder, policy="random", seeds=2)
        >>> [p.policy for p in found.played]
        ['bayes', 'random']
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

    def _card(self) -> Card:
        said = list(self.conclusions) or [self._luck()]
        facts = [
            ("question", self.campaign.objective),
            ("recorded in", self.run_dir),
            ("surrogate", "\n".join(map(str, self.errors))),
            ("conclusions", "\n".join(said)),
            ("warnings", "\n".join(self.warnings)),
        ]
        table = self.table()
        policies = ", ".join(p.policy for p in self.played)
        tables = [Rows(table.title, table.header, table.rows)]
        return Card("Replay", self.campaign.name, facts, tables, brief=f"{policies} played; {self.run_dir}")

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
        lines = [f"{campaign.name}: {campaign.question}"]
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
            half = float(t_quantile(len(d) - 1) * d.std(ddof=1) / math.sqrt(len(d)))
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
