"""report/report.md: the answer, the table and the plots, written anew from the recorded events."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hpcagent.campaign.answer import read_run
from hpcagent.campaign.budget import costs
from hpcagent.campaign.compare import estimated
from hpcagent.campaign.counts import mode_words, sandbox_words, stop_words
from hpcagent.campaign.numbers import error_text, number, point_text
from hpcagent.campaign.repairing import repaired_note, repairs_text
from hpcagent.campaign.result import CampaignResult, event_text, inner_text
from hpcagent.campaign.sweep import SweepResult
from hpcagent.campaign.table import headed
from hpcagent.campaign.view import duration
from hpcagent.model.base import Scalar
from hpcagent.model.failures import state_counts
from hpcagent.model.records import Failure, Result
from hpcagent.reports.html_report import html_report
from hpcagent.reports.lessons import Learned, Progress, learned
from hpcagent.reports.sweep_report import sweep_text
from hpcagent.shown import markdown
from hpcagent.statistics.insight import Bin
from hpcagent.store.files import refusing_clearly, write_whole
from hpcagent.store.rundir import RunDir

__all__ = ["Written", "report"]


@dataclass(frozen=True, slots=True)
class Written:
    """What the report consists of.

    Attributes:
        path: The Markdown file.
        plots: The PNG files beside it.
        note: Why there are no plots, or an empty text.
        html: The same as one HTML file with the plots inside.
        learned: What the models of all runs say in a line for each metric: which parameters matter.
    """

    path: Path
    plots: tuple[Path, ...]
    note: str = ""
    html: Path | None = None
    learned: tuple[str, ...] = ()

    def __str__(self) -> str:
        first = f"{self.html} (open this first), " if self.html is not None else ""
        plots = f" with {', '.join(p.name for p in self.plots)}" if self.plots else ""
        return f"{first}{self.path}{plots}" + (f" ({self.note})" if self.note else "")


def report(run_dir: str | Path, *, plots: bool = True, to: Path | None = None) -> Written:
    """Write the report of a campaign, finished or not: `report.md`, and `report.html` with the plots inside.

    Args:
        run_dir: The campaign's folder.
        plots: Draw the plots as well (needs matplotlib).
        to: The folder to write into; `report` in the campaign's by default.

    Raises:
        BadInput: The folder is not that of a campaign.
        StoreFull: The report cannot be written.
    """
    from hpcagent.reports.plots import available, draw, left_out
    from hpcagent.reports.sweep_plots import draw_sweep

    result = read_run(run_dir)
    folder = RunDir(run_dir).report if to is None else to
    with refusing_clearly(folder):
        folder.mkdir(exist_ok=True)
    swept = result if isinstance(result, SweepResult) else None
    found = Learned() if swept is not None else _learned(result)
    drawn: list[Path] = []
    note = ""
    if plots and available():
        with refusing_clearly(folder):
            drawn = draw(result, folder, found) if swept is None else draw_sweep(swept, folder)
        note = left_out(result) if swept is None else ""
    elif plots:
        note = "no plots: install the extra `plots`, pip install 'hpcagent[plots]'"
    path = folder / "report.md"
    text = _text(result, found, drawn, note) if swept is None else sweep_text(swept, drawn, note)
    write_whole(path, text)
    page = folder / "report.html"
    write_whole(page, html_report(text, drawn))
    return Written(path, tuple(drawn), note, page, _matters(found))


def _matters(found: Learned) -> tuple[str, ...]:
    """Which parameters each metric depends on, where the model predicts it at all."""
    lines = []
    for w in found.importance:
        ranked = sorted(zip(w.total, w.names, strict=True), reverse=True)
        if w.trusted and len(ranked) > 1:
            shares = ", ".join(f"{name} {share:.0%}" for share, name in ranked)
            lines.append(
                f"{w.metric} depends on {shares} (shares of its variance over the space, with interactions)"
            )
    return tuple(lines)


def _learned(result: CampaignResult) -> Learned:
    try:
        return learned(result)
    except Exception as error:  # a report without a model is better than none at the end of a long campaign
        return Learned(note=f"{type(error).__name__}: {error}".rstrip("."))


def _text(result: CampaignResult, found: Learned, drawn: list[Path], note: str) -> str:
    beside = {p.stem: f"![{p.stem}]({p.name})" for p in drawn}
    own = tuple(beside.values())
    parts = [_head(result), _answer(result), _events(result), _measuring(result), _failures(result)]
    learnt = [_convergence(result, found, beside), *_model(found, beside)]
    parts += list(beside.values())  # those that no section has taken
    if note:
        parts.append(f"({note})")
    parts += [*learnt, _batches(result), _where(result)]
    # Names, failures and notes come from programs and people: the whole page at once, so that none is forgotten.
    return markdown("\n\n".join(p for p in parts if p), own=own) + "\n"


def _line(cells: Iterable[str]) -> str:
    """A row of a table: what is in a cell cannot end it."""
    return "| " + " | ".join(_flat(cell).replace("|", "\\|") for cell in cells) + " |"


def _flat(text: str) -> str:
    """Without line ends: a failure's text is no heading."""
    return " ".join(text.split())


def _head(result: CampaignResult) -> str:
    campaign = result.campaign
    units = {p.name: p.unit for p in campaign.app.contract.space.parameters}
    lines = [f"# {campaign.name}", "", _flat(campaign.description or campaign.app.contract.description), ""]
    lines.append(f"- question: {campaign.question}")
    for p in campaign.search.parameters:
        lines.append(f"- varied: {p.name} in {p.range}" + (f", when {p.when}" if p.when else ""))
    lines += [f"- constraint: {c.text}" for c in campaign.search.constraints]
    constant = {n: v for n, v in campaign.complete(_middle(result)).items() if n not in campaign.search}
    if constant:
        lines.append(f"- constant: {point_text(constant, units)}")
    lines.append(
        f"- app {campaign.app.name} {campaign.app.contract.version}; policy {campaign.policy.name}; "
        f"mode {campaign.mode}; seed {campaign.seed}"
    )
    counts = result.counts
    lines.append(
        f"- {sum(counts.values())} runs, {state_counts(counts)}, {result.charged}, "
        f"{duration(result.wall_s)} of wall time"
    )
    lines += [f"- {text}" for text in (result.told_text, result.extended_text, result.guarded_text) if text]
    costed = costs(result.results)
    if costed is not None:
        lines.append(f"- cost: {costed}")
    if result.inner:
        lines.append(f"- made of {inner_text(result.inner)}")
    if result.warm is not None:
        lines.append(f"- begun with {result.warm}")
    lines.append(f"- stopped: {_flat(result.reason)}" if result.reason else "- not finished")
    return "\n".join(lines)


def _cell(params: Mapping[str, Scalar], name: str) -> str:
    """A parameter's value; a dash where it is not active."""
    return number(params[name]) if name in params else "-"


def _middle(result: CampaignResult) -> dict[str, float | int | str]:
    space = result.campaign.search
    return space.middle


def _answer(result: CampaignResult) -> str:
    best = result.best
    if best is None:
        return "## Answer\n\nNone: no run completed with the objective's metrics."
    lines = ["## Answer", ""]
    if best.feasible:
        lines.append(f"**{point_text(best.params, best.point_units)}**")
    else:
        lines.append("**No point keeps every limit with P(feasible) >= 0.9.** The most probable one:")
        lines += ["", point_text(best.params, best.point_units)]
    header = ("metric", "expected", "standard error", "measured mean", "standard error", "unit")
    lines += ["", _line(header), "|---" * len(header) + "|"]
    for name, value in sorted(best.metrics.items(), key=lambda item: (item[0] not in best.shown, item[0])):
        error, expected = best.uncertainty.get(name), best.expected.get(name)
        shown = "-" if error is None else error_text(error)
        cells = ["-", "-"] if expected is None else [number(expected), error_text(best.expected_error[name])]
        cells += [number(value), shown, best.units.get(name, "1")]
        lines.append(_line([name, *cells]))
    by = " Expected: by the models of all runs." if best.expected else ""
    if best.estimated:
        by += f" No run here had its core: {' and '.join(best.estimated)} is an estimate from CPU time."
    lines += ["", f"P(feasible) = {best.probability_feasible:.2f}, from {best.origin}.{by}"]
    missed = result.missed_text if best.feasible else ""
    lines += [f"- {missed}"] if missed else []
    lines += [f"- {edge}" for edge in result.edges]
    lines += [f"- {result.single_text}"] if result.single_text else []
    lines += [f"- {s}" for s in result.speedups]
    lines += [f"- {ranked}" for ranked in result.agreements]
    if best.ties:
        shown_ties = "; ".join(point_text(t, best.point_units) for t in best.ties[:5])
        lines.append(f"- not distinguishable from it within the noise ({len(best.ties)}): {shown_ties}")
    return "\n".join([*lines, *_front(result)])


def _front(result: CampaignResult) -> list[str]:
    """With several goals: the runs that no other one beats in every goal."""
    if not result.front:
        return []
    campaign = result.campaign
    goals, names = [g.metric for g in campaign.objective.goals], campaign.search.names
    units = {m.name: m.unit for m in campaign.app.contract.metrics}
    header = ["run", *(headed(p.name, p.unit) for p in campaign.search.parameters)]
    header += [headed(m, units[m]) for m in goals]
    lines = ["", f"The point above is the best by {goals[0]}. No measured run beats these in every goal:", ""]
    lines += [_line(header), "|---" * len(header) + "|"]
    for r in sorted(result.front, key=lambda r: campaign.objective.goal.score(r.metrics[goals[0]]), reverse=True):
        cells = [str(r.manifest.index), *(_cell(r.manifest.params, n) for n in names)]
        lines.append(_line([*cells, *(number(r.metrics[m]) for m in goals)]))
    return lines


def _events(result: CampaignResult) -> str:
    if not result.campaign.rules:
        return ""
    lines = ["## Events", "", *(f"- rule {rule}" for rule in result.campaign.rules), ""]
    lines += [f"- **{_flat(event_text(event))}**" for event in result.events] or ["None so far."]
    return "\n".join(lines)


def _measuring(result: CampaignResult) -> str:
    comparison = result.comparison
    lines = []
    if comparison is not None and comparison.scale:
        lines.append(
            f"- Reference: {comparison.metric} = {number(comparison.value)} (median of {len(comparison.scale)} "
            f"batches; largest over smallest {comparison.spread:.2f}). Values are compared relative to the "
            f"reference of their batch; one compared value has a relative standard deviation of "
            f"{100 * comparison.noise:.1f} %."
        )
    repaired = filter(
        None, (mode_words(result.campaign), sandbox_words(result.campaign), repaired_note(result.results))
    )
    lines += [f"- {_flat(line)}." for line in (*repaired, *result.disturbed, *result.remarks)]
    lines += _by_site(result)
    hosts = Counter(r.host for r in result.results if r.host)
    if hosts:
        lines.append("- Hosts: " + ", ".join(f"{host} ({n})" for host, n in hosts.most_common()))
    return "## Measuring\n\n" + "\n".join(lines) if lines else ""


def _by_site(result: CampaignResult) -> list[str]:
    """How many runs were on each site, and what they took there."""
    runs = Counter(r.site for r in result.results if r.site)
    hours = dict.fromkeys(runs, 0.0)
    for r in result.results:
        if r.site:
            hours[r.site] += r.cost.node_hours
    each = [f"{_flat(site)} ({n} runs, {hours[site]:.3g} node-hours)" for site, n in runs.most_common()]
    return [f"- Sites: {', '.join(each)}"] if each else []


def _failures(result: CampaignResult) -> str:
    failed = [r for r in result.results if r.failure is not None]
    if not failed:
        return "## Failures\n\nNone."
    header = "| name | kind | runs | state | first message | what may help |"
    lines = ["## Failures", "", header, "|---|---|---|---|---|---|"]
    alike: dict[tuple[str, str, str], list[Failure]] = {}
    for r in failed:
        if r.failure is not None:
            alike.setdefault((r.failure.name, r.failure.kind, result.state(r)), []).append(r.failure)
    for (name, kind, state), found in sorted(alike.items(), key=lambda item: -len(item[1])):
        message, repair = _flat(found[0].message)[:200], found[0].repair or ""
        lines.append(_line([name, kind, str(len(found)), state, message, repair]))
    return "\n".join(lines)


def _convergence(result: CampaignResult, found: Learned, plots: dict[str, str]) -> str:
    if len(found.progress) < 2:
        return ""
    last = found.progress[-1]
    # From when on the answer was the last one within its error.
    early = next(
        p
        for i, p in enumerate(found.progress)
        if all(
            q.feasible == last.feasible and abs(q.value - last.value) <= 2 * _error(q, last)
            for q in found.progress[i:]
        )
    )
    text = (
        f"From {early.runs} runs ({early.node_hours:.2g} node-hours) on the answer's goal stayed within two "
        "standard errors of the last one (of values beside each other: without what all absolute values share)."
    )
    if result.best is not None:
        goal = result.campaign.objective.goal.metric
        text += f" The answer: {goal} = {result.best.expected_text(goal)}."
    if early is last:
        text = (
            "The answer's goal was still changing by more than two standard errors between the last two moments."
        )
    return "\n\n".join(["## Convergence", text, *_taken(plots, "convergence")])


def _error(a: Progress, b: Progress) -> float:
    return math.hypot(a.error, b.error) or 1e-9 * max(abs(a.value), abs(b.value))


def _taken(plots: dict[str, str], name: str) -> list[str]:
    """The plot, which then stands in its section."""
    link = plots.pop(name, None)
    return [] if link is None else [link]


def _model(found: Learned, plots: dict[str, str]) -> list[str]:
    if found.note:
        return [f"## What a model says\n\nNothing: {_flat(found.note)}."]
    head = (
        "## What a model says\n\nOf this library's own model (Gaussian processes) of all runs, whatever the "
        "policy was. It is as good as its predictions were, see the calibration."
    )
    return [head, _importance(found, plots), _slices(found, plots), _calibration(found, plots)]


def _importance(found: Learned, plots: dict[str, str]) -> str:
    lines = [
        "### Parameter importance",
        "",
        "Sobol' indices of what the model expects: the share of a metric's variance over the whole space that "
        "comes from a parameter alone, and with all that it acts together with. Infeasible parts of the space "
        "count too. The scale is the one of the model; Q² is the share of the runs' variance that it predicts of "
        "runs left out.",
        "",
        _line(["metric (scale, Q²)", *found.importance[0].names]),
        "|---|" + "---|" * len(found.importance[0].names),
    ]
    for w in found.importance:
        cells = [f"{s:.2f} / {max(s, t):.2f}" for s, t in zip(w.first, w.total, strict=True)]
        lines.append(_line([f"{w.metric} ({w.scale}, {w.predicted:.2f})", *cells]))
    lines += ["", "(alone / with others)"]
    weak = [w.metric for w in found.importance if not w.trusted]
    if weak:
        lines.append(f"\n**The model hardly predicts {' and '.join(weak)}: its shares mean little.**")
    return "\n\n".join(["\n".join(lines), *_taken(plots, "importance")])


def _slices(found: Learned, plots: dict[str, str]) -> str:
    taken = _taken(plots, "slices")
    if not taken:
        return ""
    left = [n for n in found.importance[0].names if n not in {s.name for s in found.slices}]
    text = "Each metric along each parameter, the others as at the answer; runs near the slice as points."
    if left:
        text += f" Not drawn, because they matter least: {', '.join(left)}."
    return "\n\n".join(["### Slices of the model", text, *taken])


def _calibration(found: Learned, plots: dict[str, str]) -> str:
    title = "### Calibration of its predictions"
    if not found.calibration:
        return f"{title}\n\nNone of the suggested runs came after enough others for a prediction."
    lines = [
        f"What was expected of each suggested run by a model of the runs before it ({found.moments} model(s)), "
        "beside what came out. z is the difference over the standard deviation of such a prediction, a run's "
        "noise included.",
        "",
        "| metric | runs | inside 50 % | inside 90 % | rms z | mean z | errors |",
        "|---|---|---|---|---|---|---|",
    ]
    for c in found.calibration:
        half = f"{100 * c.within_50:.0f} ± {100 * c.error_50:.0f} %"
        most = f"{100 * c.within_90:.0f} ± {100 * c.error_90:.0f} %"
        lines.append(_line([c.metric, str(c.runs), half, most, f"{c.rms:.2f}", f"{c.bias:+.2f}", c.verdict]))
    bins = Bin.of(found.chances)
    if bins:
        lines += ["", "| P(completes and keeps the limits) | runs | predicted | came true |", "|---|---|---|---|"]
        lines += [
            f"| {b.low:.2f} to {b.high:.2f} | {b.runs} | {b.predicted:.2f} | {b.share:.2f} ± {b.error:.2f} |"
            for b in bins
        ]
    lines += ["", "(±: standard deviation by chance, if the predictions are right)"]
    return "\n\n".join([title, "\n".join(lines), *_taken(plots, "calibration")])


def _batches(result: CampaignResult) -> str:
    campaign = result.campaign
    metrics = campaign.shown
    units = {m.name: m.unit for m in campaign.app.contract.metrics}
    header = ["run", "batch", "role", *campaign.search.names]
    header += [m if units[m] == "1" else f"{m} ({units[m]})" for m in metrics] + ["", "directory"]
    lines = ["## Runs", "", _line(header), "|" + "---|" * len(header)]
    for r in result.results:
        lines.append(_line(_row(result, r, metrics)))
    return "\n".join(lines)


def _row(result: CampaignResult, r: Result, metrics: tuple[str, ...]) -> list[str]:
    campaign = result.campaign
    cells = [str(r.manifest.index), str(r.manifest.batch), r.manifest.role]
    cells += [_cell(r.manifest.params, n) for n in campaign.search.names]
    cells += [number(r.metrics[m]) if m in r.metrics else "-" for m in metrics]
    remark = ""
    if r.failure is not None:
        remark = f"{result.state(r)}: {r.failure.name}"
    elif r.stopped is not None:
        remark = stop_words(r)
    elif campaign.objective.known(r.metrics) and not campaign.objective.feasible(r.metrics):
        remark = "infeasible"
    remark = f"{remark} {repairs_text(r)}".strip()
    if r.manifest.origin:
        remark = f"{remark} told: {r.manifest.origin}".strip()
    if r.distrusted and campaign.timed:
        guesses = [f"{m} {number(v)} by CPU time" for m, v in estimated(campaign, r).items()]
        remark = f"{remark} distrusted".strip() + (f" ({', '.join(guesses)})" if guesses else "")
    return [*cells, remark, f"work/{r.manifest.execution_id[:8]}..."]


def _where(result: CampaignResult) -> str:
    by_hand = "; `lmp -in in.lammps` there repeats one" if "script" in result.campaign.app.settings else ""
    return (
        "## Where everything is\n\n"
        "- `events.jsonl`: every manifest and result as it happened\n"
        "- `metrics.h5`: all numbers as columns with units; `hpcagent export` writes CSV or Parquet\n"
        f"- `work/EXECUTION_ID/`: inputs, log and result of each run{by_hand}\n"
        "- `campaign.toml`, `app.json`: what was asked, exactly"
    )
