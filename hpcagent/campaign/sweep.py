"""Sweeps: all points of a design and what was measured there, with errors; nothing is looked for."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hpcagent.apps.base import App
from hpcagent.campaign.budget import costs
from hpcagent.campaign.compare import estimated, observations
from hpcagent.campaign.numbers import number, point_text, with_error
from hpcagent.campaign.record import Campaign
from hpcagent.campaign.repairing import repaired_note, repaired_there
from hpcagent.campaign.result import CampaignResult, event_text, inner_text
from hpcagent.campaign.sweep_runs import design_of, ranges_text
from hpcagent.campaign.table import Table, headed
from hpcagent.errors import BadInput
from hpcagent.model.base import Scalar
from hpcagent.model.extended import counting
from hpcagent.model.failures import state_counts
from hpcagent.model.parameter import Parameter, Params
from hpcagent.model.records import Observation, Result
from hpcagent.policies.design import REPLICATES
from hpcagent.statistics.points import Key, key
from hpcagent.statistics.recommend import Estimate
from hpcagent.statistics.replicates import mean_error

__all__ = ["Sweep", "SweepPoint", "SweepResult", "sweep_answer"]

LONGEST_WHY = 60


def Sweep(  # noqa: N802  (reads as a kind of campaign where it is used)
    app: App,
    space: Mapping[str, Any] | None = None,
    *,
    design: Literal["grid", "latin_hypercube", "sobol", "list"] = "grid",
    replicates: int = REPLICATES,
    points: int | Sequence[Mapping[str, Scalar]] | None = None,
    levels: int | Mapping[str, int] | None = None,
    metrics: Sequence[str] = (),
    **options: Any,
) -> Campaign:
    """A campaign without an objective: every point of a design, each `replicates` times.

    Args:
        app: What runs.
        space: Parameter -> its values (`[100, 200, 300]`), a `Float`, `Int` or `Choice` inside the app's own
            range, or a table such as `{"low": 100, "high": 300}` (`{}` for the whole range). By default those
            that the app names.
        design: `grid`: all combinations; `latin_hypercube`, `sobol`: `points` spread evenly; `list`: `points`.
        replicates: Runs at each point, with different seeds.
        points: How many points of `latin_hypercube` and `sobol`, or those of a `list`: `[{"T": 100}, ...]`.
        levels: Of a grid: values of each numeric parameter without a list: one number, or one for each name.
        metrics: What the table and the plots show; by default every metric that the app is sure to return; of a
            LAMMPS script whose contract names no metrics the averages that it prints, and no speeds.
        options: Of the campaign, e.g. `until=ha.until.node_hours(2)`, `fixed`, `seed`, `name`, `batch_size`; an
            `objective` makes the same runs and gives an answer too.

    Raises:
        BadInput: One sentence on the first thing that is wrong.

    Example:
        >>> from hpcagent.apps.landscape import synthetic
        >>> sweep = Sweep(synthetic, {"x": [0.1, 0.2, 0.4]}, replicates=2, metrics=["value"])
        >>> sweep.search["x"].range
        '[0.1, 0.4]'
    """
    if not isinstance(app, App):
        raise BadInput(f"a sweep is of an app, e.g. ha.lammps('in.my_system', ...); got {app!r}.", value=app)
    if isinstance(metrics, str):
        raise BadInput(f"metrics={metrics!r}: give a list, as [{metrics!r}].", value=metrics)
    wanted: dict[str, Any] = {"design": design, "replicates": replicates}
    ranges, values = _ranges(app, {} if space is None else space)
    given = {"points": points, "levels": levels, "values": values or None}
    if isinstance(points, Sequence) and not isinstance(points, str):
        given["points"] = [dict(p) if isinstance(p, Mapping) else p for p in points]
    if isinstance(levels, Mapping):
        given["levels"] = dict(levels)
    wanted |= {name: value for name, value in given.items() if value is not None}
    for name in ("policy", "space", "sweep", "show", "app"):
        if name in options:
            known = {"policy": "a sweep has its own", "show": "name them in metrics"}
            raise BadInput(
                f"{name}= is no option of a sweep: {known.get(name, 'it is given already')}.", value=name
            )
    made = Campaign(app, **options, space=ranges or None, sweep=wanted, show=tuple(metrics))
    design_of(made)  # said now, not when it is run
    return made


def _ranges(app: App, space: Mapping[str, Any]) -> tuple[dict[str, dict[str, Any]], dict[str, list[Any]]]:
    """What is varied in which range, and the values of those that have a list."""
    if not isinstance(space, Mapping):
        raise BadInput(
            f"space is a dict of parameters and their values, e.g. {{'T': [100, 200]}}; got {space!r}.",
            value=space,
        )
    ranges: dict[str, dict[str, Any]] = {}
    values: dict[str, list[Any]] = {}
    for name, of in space.items():
        whole = app.contract.space[name]
        if isinstance(of, Parameter):
            ranges[name] = _range(whole, of)
        elif isinstance(of, Mapping):
            ranges[name] = dict(of)
        elif isinstance(of, str) or not hasattr(of, "__iter__"):
            raise BadInput(
                f"space: {name} = {of!r}; give a list of values, ha.Float(low, high) or {{}} for its whole range.",
                value=of,
            )
        else:
            values[name] = [whole.validated(value) for value in of]
    return ranges, values


def _range(whole: Parameter, given: Parameter) -> dict[str, Any]:
    if given.unit not in ("1", whole.unit):
        raise BadInput(
            f"{whole.name} is given in {given.unit}, and the app takes {whole.unit}; write it in that unit.",
            value=given.unit,
        )
    if given.kind == "choice":
        return {"choices": list(given.choices)}
    if given.low is None or given.high is None or whole.kind not in ("float", "int"):
        raise BadInput(f"{whole.name} is {whole.range}; give a list of its values.", value=given)
    return {"low": given.low, "high": given.high} | ({"log": True} if given.log else {})


class SweepPoint(Estimate):
    """What was measured at one point of a sweep.

    Attributes:
        params: The varied parameters.
        runs: Completed runs there.
        failed: Runs that failed there, or were given up.
        waiting: Runs of the design that have not ended.
        metrics: Mean of each metric over the runs.
        uncertainty: Its ±, two of which cover 95 %; see `policies.replicates.mean_error`, and `error_of`.
        error_of: Metric -> `replicates` where the ± is of the mean over runs, `run` the only run's own.
        values: Metric -> its value in each run.
        failures: What went wrong, each with the number of runs.
        estimated: Metrics that are estimates from CPU time: no run there had its core.
        score: Not a number: nothing is better or worse.
    """

    score: float = math.nan
    waiting: int = 0
    error_of: dict[str, Literal["replicates", "run"]] = {}
    values: dict[str, tuple[float, ...]] = {}
    failures: dict[str, int] = {}
    estimated: tuple[str, ...] = ()

    @property
    def what(self) -> str:
        """How many runs it has, and what became of the others."""
        words = [str(self.runs)]
        words += [f"{self.waiting} to come"] if self.waiting else []
        words += [f"{n} x {why}" for why, n in self.failures.items()]
        words += [f"{', '.join(self.estimated)} estimated from CPU time"] if self.estimated else []
        return "; ".join(words)


@dataclass(frozen=True, slots=True, repr=False)
class SweepResult(CampaignResult):
    """A sweep as it stands. It has no best point and no regret: nothing was looked for."""

    points: tuple[SweepPoint, ...] = ()

    @property
    def rivals(self) -> int:
        """All points: a sweep has no best one."""
        return len(self.points)

    def table(self, n: int | None = None) -> Table:
        """All points (or the first `n`): parameters, metrics with their ±, runs and what became of the others."""
        campaign = self.campaign
        known = {m for p in self.points for m in p.metrics}
        # Of those by default, what no run has (a column that its script does not print) is left out.
        metrics = [m for m in campaign.shown if m in known or campaign.show or not known]
        units = {m.name: m.unit for m in campaign.app.contract.metrics}
        header = [headed(p.name, p.unit) for p in campaign.search.parameters]
        header += [headed(m, units[m]) for m in metrics] + ["runs"]
        rows = []
        texts = {
            name: _apart([p.params[name] for p in self.points if name in p.params])
            for name in campaign.search.names
        }
        for point in self.points[:n]:
            cells = [texts[name][point.params[name]] if name in point.params else "-" for name in texts]
            for m in metrics:
                found = _digits(point.metrics[m], point.uncertainty.get(m)) if m in point.metrics else "-"
                cells.append(f"{found} *" if point.error_of.get(m) == "run" else found)
            rows.append([*cells, point.what])
        return Table(f"{campaign.name}: {self.error_text}", header, rows)

    def data(self) -> list[dict[str, Any]]:
        """The points as plain data: `params`, `metrics`, `uncertainty` and `error_of`, runs, failures."""
        fields = {"params", "metrics", "uncertainty", "error_of", "runs", "waiting", "failures", "values"}
        return [point.model_dump(mode="json", include=fields) for point in self.points]

    @property
    def error_text(self) -> str:
        """What the ± of the table are, in words."""
        kinds = {kind for point in self.points for kind in point.error_of.values()}
        words = []
        if "replicates" in kinds:
            words.append("± of the mean over the runs at a point: two of it cover 95 % (Student's t)")
        if "run" in kinds:
            words.append("±, marked *: of one run, as the app states it; how runs differ is not in it")
        shown = self.campaign.shown
        several = [p for p in self.points if p.runs > 1 and set(shown) & set(p.metrics)]
        copies = [p for p in several if not any(p.error_of.get(m) == "replicates" for m in shown)]
        if copies:
            fewest, most = min(p.runs for p in copies), max(p.runs for p in copies)
            runs = f"{fewest}" if fewest == most else f"{fewest} to {most}"
            words.append(
                f"at {len(copies)} point(s) {runs} runs gave the same numbers to the last digit: counted as one"
            )
        if not words:
            words.append("no ±: there is one run at a point, and the app states no error of it")
        return "; ".join(words)

    @property
    def exit_code(self) -> int:
        """0, or 1 where no run completed, or 4 where the machine failed runs, which `resume` runs again."""
        if not any(r.ok for r in self.results):
            return 1
        return 4 if any(r.failure is not None and r.failure.means.machine for r in self.given_up) else 0

    def __str__(self) -> str:
        campaign, counts = self.campaign, self.counts
        lines = [f"{campaign.name}: sweep of {ranges_text(campaign)}"]
        cap = campaign.until.cap()
        capped = "" if cap is None else f", cap {cap:g}"
        runs = f"{sum(counts.values())} runs at {len(self.points)} points"
        lines.append(f"{runs}, {state_counts(counts)}, {self.charged}{capped}")
        units = {p.name: p.unit for p in campaign.search.parameters}
        for point in self.points:
            lines += [f"at {point_text(point.params, units)}: {n} x {why}" for why, n in point.failures.items()]
        costed = costs(self.results)
        lines += [f"cost: {costed}"] if costed is not None else []
        lines += ["made of " + inner_text(self.inner)] if self.inner else []
        lines += self.disturbed
        lines += [said] if (said := repaired_note(self.results)) else []
        for point in self.points:
            said = repaired_there(self.results, point.params)
            lines += [f"at {point_text(point.params, units)}: {said}"] if said else []
        lines += [f"note: {remark}" for remark in self.remarks]
        lines += [f"stopped: {self.reason}"] if self.reason else []
        lines.append(self.error_text)
        lines += [event_text(event) for event in self.events]
        lines.append(f"everything is in {self.run_dir}")
        return "\n".join(lines)


def sweep_answer(campaign: Campaign, results: Sequence[Result], plain: Mapping[str, Any]) -> SweepResult:
    """What a sweep's results say.

    Args:
        campaign: The sweep.
        results: Its results.
        plain: The other fields of `CampaignResult`, which have nothing to do with an objective.
    """
    names = campaign.search.names
    constant = _constant(campaign)
    here: dict[Key, list[tuple[Result, Observation]]] = {}
    elsewhere = 0
    counted = counting(results)  # of a run that goes on only the longest
    shown = [r for r in counted if r.shown]
    seen = {r.manifest.execution_id: o for r, o in zip(shown, observations(campaign, results, None), strict=True)}
    for result in counted:
        params = result.manifest.params
        if any(params.get(name) != value for name, value in constant.items()):
            elsewhere += 1
            continue
        observed = seen.get(result.manifest.execution_id) or result.observation()
        here.setdefault(key({n: params[n] for n in names if n in params}), []).append((result, observed))
    design = design_of(campaign)
    asked = {key(p): p for p in (design.points if design is not None else ())}
    found = {k: dict(k) for k in here if k not in asked}
    replicates = design.replicates if design is not None else 0
    points = [
        _point(campaign, {n: p[n] for n in names if n in p}, here.get(k, []), replicates if k in asked else 0)
        for k, p in {**asked, **found}.items()
    ]
    if found and design is not None and design.design == "grid":  # values added in several goes, in their order
        points.sort(key=lambda point: [_place(p, point.params.get(p.name)) for p in campaign.search.parameters])
    remarks = list(plain["remarks"])
    if campaign.single:
        remarks.append(f"each point is run once: {campaign.single}")
    if elsewhere:
        remarks.append(
            f"{elsewhere} run(s) differ in a parameter that is not varied now; they are kept, and not in the table"
        )
    fields = {**plain, "remarks": tuple(remarks)}
    return SweepResult(campaign=campaign, results=tuple(results), points=tuple(points), **fields)


def _apart(values: Iterable[Scalar]) -> dict[Scalar, str]:
    """Each value as text, with as many digits as it takes to tell different ones apart.

    Example:
        >>> _apart([0.5, 100000000001, 100000000002])
        {0.5: '0.5', 100000000001: '100000000001', 100000000002: '100000000002'}
    """
    different = list(dict.fromkeys(values))
    texts = [number(v) for v in different]
    for digits in range(5, 18):
        if len(set(texts)) == len(different):
            break
        texts = [f"{v:.{digits}g}" if isinstance(v, float) else str(v) for v in different]
    return dict(zip(different, texts, strict=True))


def _digits(value: float, error: float | None) -> str:
    """A value and its ±, both to the second digit of that.

    Example:
        >>> _digits(3.62714, 0.000031), _digits(104.2, 3.46), _digits(2.5, None)
        ('3.627140 ± 0.000031', '104.2 ± 3.5', '2.5')
    """
    decimals = 1 - math.floor(math.log10(error)) if error else -1
    if error is None or not 0 <= decimals <= 8 or abs(value) >= 1e6:
        return with_error(value, error)
    return f"{value:.{decimals}f} ± {error:.{decimals}f}"


def _place(parameter: Parameter, value: Scalar | None) -> tuple[float, str]:
    """Where a value stands among those of its parameter: numbers by size, choices in their order."""
    if parameter.choices:
        known = parameter.choices.index(value) if value in parameter.choices else len(parameter.choices)
        return float(known), str(value)
    return (math.inf, "") if value is None or isinstance(value, str) else (float(value), "")


def _constant(campaign: Campaign) -> Params:
    search = campaign.search
    middle = campaign.complete(search.middle)
    return {name: value for name, value in middle.items() if name not in search}


def _point(
    campaign: Campaign, params: Params, ran: Sequence[tuple[Result, Observation]], replicates: int
) -> SweepPoint:
    done = [o for r, o in ran if r.ok]
    guessed = {m for r, _ in ran for m in estimated(campaign, r)}
    values: dict[str, tuple[float, ...]] = {}
    means: dict[str, float] = {}
    errors: dict[str, float] = {}
    kinds: dict[str, Literal["replicates", "run"]] = {}
    doubtful = []
    for metric in dict.fromkeys(name for o in done for name in o.metrics):
        known = [o for o in done if metric in o.metrics]
        if metric in guessed:  # a measured speed is not averaged with estimates
            sound = [o for (r, o) in ran if r.ok and r.distrusted is None and metric in o.metrics]
            doubtful += [] if sound else [metric]
            known = sound or known
        values[metric] = tuple(o.metrics[metric] for o in known)
        # Copies of one run, to the last digit, tell no more than one.
        copies = len({(o.metrics[metric], o.uncertainty.get(metric)) for o in known}) == 1
        means[metric], error = mean_error(values[metric][:1] if copies else values[metric])
        if error is not None:
            errors[metric], kinds[metric] = error, "replicates"
        elif known[0].uncertainty.get(metric):
            errors[metric], kinds[metric] = known[0].uncertainty[metric], "run"
    failures = Counter(_why(r) for r, _ in ran if not r.ok)
    return SweepPoint(
        params=params,
        runs=len(done),
        failed=sum(failures.values()),
        waiting=max(0, replicates - sum(r.manifest.role != "repeat" for r, _ in ran)),
        metrics=means,
        uncertainty=errors,
        error_of=kinds,
        values=values,
        failures=dict(failures),
        estimated=tuple(m for m in campaign.shown if m in doubtful),
    )


def _why(result: Result) -> str:
    assert result.failure is not None
    said = " ".join(result.failure.message.split())
    said = said if len(said) <= LONGEST_WHY else f"{said[: LONGEST_WHY - 3]}..."
    return f"{result.state}: {result.failure.name} ({said})"
