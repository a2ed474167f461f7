"""Campaigns side by side: what was asked otherwise, what came out, how fast, and what both have measured."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcagent.campaign.numbers import number, point_text, with_error
from hpcagent.errors import BadInput
from hpcagent.model.base import canonical_json
from hpcagent.model.determinism import disagreements
from hpcagent.model.extended import counting, superseded
from hpcagent.model.records import Result
from hpcagent.runs.opened import CampaignRun, open_run
from hpcagent.statistics.replicates import mean_error

__all__ = ["Compared", "Difference", "Progress", "compare"]

ERRORS = 2.0
"""So many combined standard errors a difference has to have: 1 of 20 would by chance, if errors are normal."""
_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Difference:
    """A metric of one campaign against that of the first.

    Attributes:
        metric: Its name.
        unit: Its unit.
        first: The first campaign's value.
        first_error: Its standard error; None where it is not known.
        other: The other's value.
        other_error: Its standard error; None where it is not known.
        with_: The number of the other campaign, from 0.
    """

    metric: str
    unit: str
    first: float
    first_error: float | None
    other: float
    other_error: float | None
    with_: int

    @property
    def difference(self) -> float:
        """The other's value minus the first's."""
        return self.other - self.first

    @property
    def error(self) -> float | None:
        """The combined standard error, sqrt(a² + b²); None where one is not known."""
        if self.first_error is None or self.other_error is None:
            return None
        return math.hypot(self.first_error, self.other_error)

    @property
    def significant(self) -> bool | None:
        """Whether it is more than `ERRORS` combined standard errors; None where an error is not known."""
        return None if self.error is None else abs(self.difference) > ERRORS * self.error

    def data(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "metric": self.metric,
            "unit": self.unit,
            "with": self.with_,
            "values": [self.first, self.other],
            "errors": [self.first_error, self.other_error],
            "difference": self.difference,
            "error": self.error,
            "significant": self.significant,
        }

    def __str__(self) -> str:
        unit = "" if self.unit == "1" else f" {self.unit}"
        values = f"{with_error(self.first, self.first_error)} | {with_error(self.other, self.other_error)}{unit}"
        by = with_error(self.difference, self.error)
        if self.significant is None:
            return f"{self.metric}: {values}; differs by {by}{unit}, whether by chance is not known (no error)"
        judged = "more" if self.significant else "not more"
        return f"{self.metric}: {values}; differs by {by}{unit}, {judged} than {ERRORS:g} standard errors"


@dataclass(frozen=True, slots=True)
class Progress:
    """The best single run so far, by what was measured, in the order in which runs were planned or came.

    Attributes:
        best: After each run; NaN before the first that kept the limits.
        node_hours: That runs had taken by then.
    """

    best: tuple[float, ...]
    node_hours: tuple[float, ...]

    def runs_to(self, value: float, sign: float) -> int | None:
        """Runs after which it was as good as that, or None if it never was."""
        found = (i for i, best in enumerate(self.best, 1) if sign * best >= sign * value)
        return next(found, None)


@dataclass(frozen=True, slots=True)
class Compared:
    """Two or more campaigns side by side.

    Attributes:
        names: What each is called here: its folder or file.
        settings: Dotted key -> its value in each, where they are not the same; None where it is not there.
        answers: Of each the answer in words, or why there is none.
        differences: Of the answers, for each metric of the objective, against the first campaign.
        metric: What `progress` is of; empty where the campaigns do not ask for the same.
        unit: Of that metric.
        sign: 1 where larger is better, -1 where smaller is.
        progress: Of each.
        points: Points that the first and another have both run, with the differences of all metrics there.
        notes: What was not compared, and why; sentences without a full stop.
    """

    names: tuple[str, ...]
    settings: Mapping[str, tuple[Any, ...]]
    answers: tuple[str, ...]
    differences: tuple[Difference, ...]
    metric: str
    unit: str
    sign: float
    progress: tuple[Progress, ...]
    points: tuple[tuple[str, tuple[Difference, ...]], ...]
    notes: tuple[str, ...] = ()

    def data(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "campaigns": list(self.names),
            "settings": {key: list(values) for key, values in self.settings.items()},
            "answers": list(self.answers),
            "differences": [d.data() for d in self.differences],
            "metric": self.metric,
            "unit": self.unit,
            "progress": [
                {"best": [None if math.isnan(b) else b for b in p.best], "node_hours": list(p.node_hours)}
                for p in self.progress
            ],
            "points": [{"point": point, "differences": [d.data() for d in ds]} for point, ds in self.points],
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        letters = [chr(ord("A") + i) if i < 26 else str(i) for i in range(len(self.names))]
        lines = [f"{letter}: {name}" for letter, name in zip(letters, self.names, strict=True)]
        lines += [f"note: {note}" for note in self.notes]
        lines.append("settings that differ:" if self.settings else "no setting differs")
        lines += [f"  {key}: " + " | ".join(map(_shown, values)) for key, values in self.settings.items()]
        lines.append("answers:")
        for letter, answer in zip(letters, self.answers, strict=True):
            lines.append(f"  {letter}: " + answer.replace("\n", "\n     "))
        lines += [f"  A | {letters[d.with_]} {d}" for d in self.differences]
        lines += self._progress_lines(letters)
        lines += self._point_lines(letters)
        return "\n".join(lines)

    def _progress_lines(self, letters: Sequence[str]) -> list[str]:
        if not self.metric:
            return []
        unit = "" if self.unit == "1" else f" {self.unit}"
        lines = [f"best single run so far, as measured ({self.metric}):"]
        longest = max(len(p.best) for p in self.progress)
        for at in sorted({max(1, longest * part // 4) for part in (1, 2, 3, 4)}):
            cells = [
                f"{letter} {_number(p.best[at - 1]) if at <= len(p.best) else 'over'}"
                for letter, p in zip(letters, self.progress, strict=True)
            ]
            lines.append(f"  after {at} run(s): " + ", ".join(cells))
        ends = [p.best[-1] for p in self.progress if p.best and not math.isnan(p.best[-1])]
        if len(ends) > 1:
            common = min(ends, key=lambda value: self.sign * value)
            for letter, p in zip(letters, self.progress, strict=True):
                runs = p.runs_to(common, self.sign)
                when = "never" if runs is None else f"after {runs} run(s), {p.node_hours[runs - 1]:.2g} node-hours"
                lines.append(f"  {letter} was at {number(common)}{unit} {when}")
        return lines

    def _point_lines(self, letters: Sequence[str]) -> list[str]:
        found = [d for _, differences in self.points for d in differences]
        judged = [d for d in found if d.significant is not None]
        if not self.points:
            return ["no point was run in both"]
        above = sum(d.significant is True for d in judged)
        lines = [
            f"{len(self.points)} point(s) run in both: {above} of {len(judged)} values differ by more than "
            f"{ERRORS:g} standard errors (about 1 of 20 would by chance)"
        ]
        for point, differences in self.points[:_SHOWN]:
            lines.append(f"  {point}")
            lines += [f"    A | {letters[d.with_]} {d}" for d in differences]
        if len(self.points) > _SHOWN:
            lines.append(f"  ... and {len(self.points) - _SHOWN} more (--json has all)")
        return lines

    def plot(self, path: str | Path) -> Path:
        """Draw the best run so far of each against runs and node-hours, as `.png`, `.pdf` or `.svg`.

        Raises:
            BadInput: The campaigns do not ask for the same, or matplotlib is not installed (extra `plots`).
        """
        from hpcagent.reports.plots import available

        if not self.metric:
            raise BadInput("The campaigns do not ask for the same metric; there is no progress to draw.")
        if not available():
            raise BadInput("A plot needs the extra `plots`: pip install 'hpcagent[plots]'.")
        from matplotlib.figure import Figure

        from hpcagent.store.files import refusing_clearly

        figure = Figure(figsize=(9.5, 4.2), layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True)
        styles = ("-", "--", "-.", ":")
        for i, (name, p) in enumerate(zip(self.names, self.progress, strict=True)):
            style: dict[str, Any] = {"color": f"C{i}", "ls": styles[i % 4], "where": "post", "label": name}
            left.step(range(1, len(p.best) + 1), p.best, **style)
            right.step(p.node_hours, p.best, **style)
        unit = "" if self.unit == "1" else f" [{self.unit}]"
        left.set_ylabel(f"best {self.metric} so far{unit}".replace("$", r"\$"))
        left.set_xlabel("runs")
        left.xaxis.get_major_locator().set_params(integer=True)
        right.set_xlabel("node-hours of runs")
        right.ticklabel_format(axis="x", style="sci", scilimits=(-3, 4))
        left.legend(frameon=False, fontsize="small")
        for axes in (left, right):
            axes.grid(alpha=0.3)
        target = Path(path).expanduser()
        with refusing_clearly(target):
            figure.savefig(target, dpi=120)
        return target


def _shown(value: Any) -> str:
    text = "not given" if value is None else number(value) if isinstance(value, (int, float)) else str(value)
    return text if len(text) < 80 else f"{text[:77]}..."


def _number(value: float) -> str:
    return "none yet" if math.isnan(value) else number(value)


def compare(*run_dirs: str | Path) -> Compared:
    """Put campaigns side by side; the first is what the others are compared with. Reads only.

    Values are compared only where app, metric and unit are the same; what is not is said. A difference counts as
    one where it is more than two combined standard errors.

    Args:
        run_dirs: Two or more folders, or archives.

    Raises:
        BadInput: Fewer than two, or one is not a campaign's.

    Example:
        >>> import tempfile
        >>> from hpcagent.runs.run import run
        >>> from hpcagent.campaign.loading import load_campaign
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for seed in (1, 2):
        ...         asked = load_campaign("synthetic", changes={"seed": seed, "until.max_runs": 8})
        ...         result = run(asked, site="threads", run_dir=f"{folder}/{seed}")
        ...     compare(f"{folder}/1", f"{folder}/2").settings
        {'seed': (1, 2)}
    """
    if len(run_dirs) < 2:
        raise BadInput("Name two campaigns or more to compare.", value=[str(r) for r in run_dirs])
    runs = [open_run(run_dir) for run_dir in run_dirs]
    notes: list[str] = []
    alike = [0, *(i for i in range(1, len(runs)) if _same_app(runs, i, notes))]
    units = [_units(run) for run in runs]
    differences = [d for i in alike[1:] for d in _of_answers(runs, units, i, notes)]
    metric, unit, sign, progress = _progress(runs, alike, units, notes)
    points = [shared for i in alike[1:] for shared in _shared(runs, units, i, notes)]
    for i in alike[1:]:
        _say_unequal(runs, i, notes)
    _say_speeds(runs, [*differences, *(d for _, ds in points for d in ds)], notes)
    return Compared(
        tuple(str(r) for r in run_dirs),
        _settings(runs),
        tuple(_answer(run) for run in runs),
        tuple(differences),
        metric,
        unit,
        sign,
        progress,
        tuple(points),
        tuple(dict.fromkeys(notes)),
    )


def _same_app(runs: Sequence[CampaignRun], other: int, notes: list[str]) -> bool:
    a, b = runs[0].campaign.app, runs[other].campaign.app
    if a.name != b.name:
        notes.append(
            f"the apps are not the same ({a.name}, {b.name}): no value is compared, one name may mean two things"
        )
        return False
    if a.contract.version != b.contract.version:
        notes.append(f"{a.name} has the versions {a.contract.version} and {b.contract.version}")
    elif a.digest != b.digest:
        notes.append(f"{a.name} is not the same in both: its settings, script or files differ")
    return True


def _units(run: CampaignRun) -> dict[str, str]:
    units = {m.name: m.unit for m in run.campaign.app.contract.metrics}
    for result in run.results:
        units |= result.units
    return units


def _settings(runs: Sequence[CampaignRun]) -> dict[str, tuple[Any, ...]]:
    """What the campaigns' TOML has that is not the same in all."""
    flat: list[dict[str, Any]] = []
    for run in runs:
        one: dict[str, Any] = {}
        app = run.campaign.app
        _flatten(tomllib.loads(run.campaign.toml(app=f"{app.name} {app.contract.version}")), "", one)
        flat.append(one)
    keys = dict.fromkeys(key for one in flat for key in one)
    rows = {key: tuple(one.get(key) for one in flat) for key in keys}
    differ = {key: row for key, row in rows.items() if len({canonical_json(str(value)) for value in row}) > 1}
    where = tuple(map(_sites, runs))
    return {"site": where, **differ} if len(set(where)) > 1 else differ


def _sites(run: CampaignRun) -> str:
    """Where its runs were; records of before 0.1.0 do not say."""
    return ", ".join(sorted({r.site or "not recorded" for r in run.results}))


def _say_unequal(runs: Sequence[CampaignRun], other: int, notes: list[str]) -> None:
    """Runs of one execution id in both folders whose results differ although the app is deterministic."""
    ours, theirs = runs[0].results, runs[other].results
    once = {id(r) for r in ours}
    found = disagreements(runs[0].campaign.app.contract, (*ours, *theirs))
    across = [one for one in found if id(one.first) in once and id(one.other) not in once]
    notes += [str(one) for one in across[:_SHOWN]]
    if len(across) > _SHOWN:
        notes.append(f"{len(across) - _SHOWN} more runs gave two results")


def _say_speeds(runs: Sequence[CampaignRun], compared: Sequence[Difference], notes: list[str]) -> None:
    """A difference of speeds that were measured on several sites tells of the machines as well."""
    found = runs[0].campaign.app.contract.timed
    names = dict.fromkeys(d.metric for d in compared if d.metric in found)
    where = [_sites(run) for run in runs]
    if names and (len(set(where)) > 1 or "," in where[0]):
        notes.append(
            f"{' and '.join(names)}: measured on different sites ({' | '.join(where)}), so that a difference "
            "tells of the machines, too, and is no evidence of better settings"
        )


def _flatten(data: Mapping[str, Any], above: str, into: dict[str, Any]) -> None:
    for key, value in data.items():
        if isinstance(value, Mapping) and value:
            _flatten(value, f"{above}{key}.", into)
        else:
            into[f"{above}{key}"] = value


def _answer(run: CampaignRun) -> str:
    if run.campaign.sweep:
        return f"a sweep, {len({canonical_json(r.manifest.params) for r in run.results if r.ok})} points"
    return "no run has completed with the objective's metrics" if run.best is None else str(run.best)


def _of_answers(
    runs: Sequence[CampaignRun], units: Sequence[Mapping[str, str]], other: int, notes: list[str]
) -> list[Difference]:
    a, b = (None if runs[i].campaign.sweep else runs[i].best for i in (0, other))
    if a is None or b is None:
        return []
    found = []
    for name in a.shown:
        values = [best.expected.get(name, best.metrics.get(name)) for best in (a, b)]
        if values[0] is None or values[1] is None:
            notes.append(f"{name} is not in both answers")
        elif units[0].get(name) != units[other].get(name):
            notes.append(_other_unit(name, units[0].get(name), units[other].get(name)))
        else:
            errors = [
                0.0 if best.exact else best.expected_error.get(name, best.uncertainty.get(name)) for best in (a, b)
            ]
            found.append(
                Difference(name, units[0].get(name, "1"), values[0], errors[0], values[1], errors[1], other)
            )
    return found


def _progress(
    runs: Sequence[CampaignRun], alike: Sequence[int], units: Sequence[Mapping[str, str]], notes: list[str]
) -> tuple[str, str, float, tuple[Progress, ...]]:
    """What all ask for, its unit, where it is better, and how each came to it."""
    nothing: tuple[str, str, float, tuple[Progress, ...]] = ("", "", 1.0, ())
    objectives = [run.campaign.objective for run in runs]
    if len(alike) < len(runs) or any(len(o.goals) != 1 for o in objectives):
        notes.append("progress is compared only of campaigns of one app with one goal each")
        return nothing
    aims = [o.goals[0] for o in objectives]
    if len({(g.metric, g.direction, u.get(g.metric)) for g, u in zip(aims, units, strict=True)}) > 1:
        notes.append("the campaigns do not ask for the same metric in the same unit: progress is not compared")
        return nothing
    if len({canonical_json(o.toml()) for o in objectives}) > 1:
        notes.append("the objectives' limits are not the same: each best run keeps those of its own campaign")
    goal = aims[0]
    return goal.metric, units[0].get(goal.metric, "1"), goal.sign, tuple(map(_so_far, runs))


def _so_far(run: CampaignRun) -> Progress:
    campaign = run.campaign
    goal = campaign.objective.goals[0]
    best, spent, bests, hours = math.nan, 0.0, [], []
    values: dict[str, float] = {}
    for i, result in enumerate(run.results, 1):
        spent += result.cost.node_hours
        if result.ok and result.manifest.extends:  # what it goes on from counts no more
            for gone in superseded(run.results[:i]):
                values.pop(gone, None)
            best = max(values.values(), key=lambda v: goal.sign * v, default=math.nan)
        fits = result.ok and campaign.full(result.manifest.params) and campaign.objective.known(result.metrics)
        if fits and campaign.objective.feasible(result.metrics):
            value = values[result.manifest.execution_id] = result.metrics[goal.metric]
            best = value if math.isnan(best) or goal.sign * value > goal.sign * best else best
        bests.append(best)
        hours.append(spent)
    return Progress(tuple(bests), tuple(hours))


def _shared(
    runs: Sequence[CampaignRun], units: Sequence[Mapping[str, str]], other: int, notes: list[str]
) -> list[tuple[str, tuple[Difference, ...]]]:
    """Points that were run in both, with all parameters the same, and the metrics there."""
    here, there = _by_point(runs[0].results), _by_point(runs[other].results)
    names = {n for run in (runs[0], runs[other]) for n in run.campaign.search.names}
    parameters = {p.name: p.unit for p in runs[0].campaign.app.contract.space.parameters}
    found = []
    for key in here.keys() & there.keys() if len(here) > len(there) else [k for k in here if k in there]:
        differences = []
        for name in here[key][0].metrics:
            if name in units[other] and units[0].get(name) != units[other][name]:
                notes.append(_other_unit(name, units[0].get(name), units[other][name]))
                continue
            a, b = _mean(runs[0], here[key], name), _mean(runs[other], there[key], name)
            if a is not None and b is not None:
                differences.append(Difference(name, units[0].get(name, "1"), *a, *b, other))
        params = here[key][0].manifest.params
        shown = {n: v for n, v in params.items() if n in names}
        found.append((point_text(shown, parameters), tuple(differences)))
    return sorted(found)


def _by_point(results: Sequence[Result]) -> dict[str, list[Result]]:
    points: dict[str, list[Result]] = {}
    for result in counting(results):
        if result.ok:
            points.setdefault(canonical_json(result.manifest.params), []).append(result)
    return points


def _mean(run: CampaignRun, results: Sequence[Result], name: str) -> tuple[float, float | None] | None:
    """Mean over the runs of a point and its error: by Student's t of their scatter, or what a single run tells."""
    found = [r for r in results if name in r.metrics and name not in r.bounds]
    if not found:
        return None
    values = [r.metrics[name] for r in found]
    if len({(r.metrics[name], r.uncertainty.get(name)) for r in found}) > 1:  # copies tell no more than one
        return mean_error(values)
    exact = 0.0 if run.campaign.noise.get(name) == 0.0 else None  # no seed decides it
    return values[0], found[0].uncertainty.get(name, exact)


def _other_unit(name: str, one: str | None, other: str | None) -> str:
    return f"{name} has the units {one} and {other}, and is not compared"
