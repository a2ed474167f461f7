"""What tuning an input script found, as tables and words."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hpcagent.campaign.compare import ESTIMATE_BIAS, estimated_at
from hpcagent.campaign.numbers import number, with_error
from hpcagent.campaign.result import CampaignResult
from hpcagent.campaign.table import Table
from hpcagent.model.objective import Objective
from hpcagent.science.lammps.knobs import Knob
from hpcagent.science.lammps.rewritten import PHYSICAL
from hpcagent.science.lammps.settings import Settings
from hpcagent.statistics.points import key
from hpcagent.statistics.recommend import Estimate
from hpcagent.store.files import write_whole
from hpcagent.tuning.checks import FORCE_RATIO, Confirmed

__all__ = ["Tuned", "contenders", "judged", "settings_rows"]

MOST_ROWS = 10

SURE = 0.9
"""P(as accurate as the script as it came) from which a point is taken."""

_ESTIMATED, _ELSEWHERE = "estimated from CPU time", " on other ranks or threads"

# Relative standard deviation of a speed-up by other ranks or threads that is worked out from CPU time: timed in
# turn, such ones came out 2 to 3.6 times too high, as it is not seen how long ranks wait for each other or a core.
_OTHER_CORES = 0.4
# Share of their cores below which it is said that runs used no more.
_CORES = 0.8
_GUESSES = (
    f"{_ESTIMATED}{_ELSEWHERE}: how long ranks wait for each other or for a core is not seen; timed in turn, such "
    "speed-ups came out up to 3.6 times too high, so their order among other ranks and threads says little"
)


def judged(points: Sequence[Estimate], objective: Objective, made: Sequence[Knob]) -> list[Estimate]:
    """The points, those with the force settings of the script as it came not judged by the error of their forces.

    It is the same by construction; what other points say of theirs, through a model, is no evidence against them.
    """
    others = tuple(c for c in objective.constraints if c.metric != FORCE_RATIO)
    if others == objective.constraints:
        return list(points)
    names = [k for k in made if k.setting in PHYSICAL]
    found = []
    for p in points:
        if p.runs and all(number(p.params.get(k.name, k.own)) == number(k.own) for k in names):
            alone = math.prod(c.probability(p.metrics[c.metric], p.uncertainty.get(c.metric, 0.0)) for c in others)
            least = alone * p.runs / (p.runs + p.failed)
            p = p.model_copy(update={"probability_feasible": max(least, p.probability_feasible)})
        found.append(p)
    return found


def contenders(
    sure: Sequence[Estimate], as_it_came: Callable[[Estimate], bool], order: Callable[[Estimate], float]
) -> list[Estimate]:
    """Points that seem faster than the script as it came, those first that are surest to be; else that one itself.

    Args:
        sure: Points that were run and keep the limits.
        as_it_came: Whether a point is the script as it came.
        order: By what the points are taken, larger first.
    """
    own = [p for p in sure if as_it_came(p)]
    least = max((p.score for p in own), default=-math.inf)
    return sorted((p for p in sure if p.score > least), key=order, reverse=True) or own


def settings_rows(settings: Settings, made: Sequence[Knob]) -> tuple[tuple[str, str, str], ...]:
    """Setting, what the script says or LAMMPS's default that applies, and what is tried."""
    rule, kspace, cutoffs = settings.rebuild, settings.kspace, settings.cutoffs
    omp = settings.threads
    tried = {k.setting: k.range.partition(":")[0] for k in made}

    def said(value: str, what: str, *commands: str) -> str:
        return by(value, what) if any(settings.named(c) for c in commands) else f"{value} (LAMMPS's default)"

    def by(value: str, what: str) -> str:
        return f"{value} (its variable {settings.driven[what]})" if what in settings.driven else value

    skin = "?" if settings.skin is None else f"{settings.skin:g}"
    rows = [
        ("ranks", "not in a script", "ranks"),
        ("threads", "not in a script" if omp is None else f"package omp {omp}", "threads"),
        ("accelerator", said(settings.suffix, "accelerator", "suffix"), "accelerator"),
        ("processors", said(" ".join(settings.grid), "grid", "processors"), "grid"),
        ("newton", said(settings.newton, "newton", "newton"), "newton"),
        ("neighbor skin", said(skin, "skin", "neighbor"), "skin"),
        ("neighbor style", said(settings.bins, "bins", "neighbor"), "bins"),
    ]
    given = {w for c in settings.named("neigh_modify") for w in c.words[1:]}
    for word in ("every", "delay", "check"):
        value = said(rule[word], word, "neigh_modify") if word in given else f"{rule[word]} (LAMMPS's default)"
        rows.append((f"neigh_modify {word}", value, word if word in tried else "rebuild"))
    for word in ("one", "page"):
        value = rule[word] if word in given else f"{rule[word]} (LAMMPS's default)"
        rows.append((f"neigh_modify {word}", value, "room"))
    if kspace is not None:
        words = {word for words in kspace.kept for word in words}

        def default(word: str) -> str:
            return "" if word in words else " (LAMMPS's default)"

        rows += [
            ("kspace_style", by(kspace.style, "kspace"), "kspace"),
            ("kspace accuracy", by(f"{kspace.accuracy:g}", "accuracy"), "accuracy"),
            (
                "kspace order",
                by(f"{kspace.order}{default('order')}", "order"),
                "order",
            ),
            ("kspace diff", by(f"{kspace.diff}{default('diff')}", "diff"), "diff"),
        ]
    if cutoffs is not None:
        rows.append(("Coulomb cutoff", by(f"{cutoffs.coulomb:g}", "coulomb"), "coulomb"))
    rows.append(("timestep", "as it came", "never"))
    tried |= {"never": "never changed", "room": "raised where a larger skin needs it"}
    return tuple((name, value, tried.get(what, "as it came")) for name, value, what in rows)


@dataclass(frozen=True)
class Tuned:
    """What was found for one input script.

    Attributes:
        path: The script.
        name: Its name.
        folder: Where everything is; None for a dry run.
        settings: Setting, what the script says, what is tried.
        left: What was left alone, and why.
        result: The campaign's answer.
        knobs: What was tried.
        best: The point that was taken.
        script: The tuned script.
        command: How it is run; empty where it did not prove faster.
        confirmed: The tuned script timed beside the script as it came.
        checks: What was compared with the script as it came, in sentences.
        probe: What the first run of the script as it came told.
    """

    path: Path
    name: str
    settings: tuple[tuple[str, str, str], ...]
    left: tuple[tuple[str, str], ...]
    folder: Path | None = None
    result: CampaignResult | None = None
    knobs: tuple[Knob, ...] = ()
    best: Estimate | None = None
    script: Path | None = None
    command: str = ""
    confirmed: Confirmed | None = None
    checks: tuple[str, ...] = ()
    probe: tuple[str, ...] = ()

    @property
    def speedup(self) -> float:
        """How many times faster the tuned script is than the script as it came; NaN where none was found."""
        return math.nan if self.confirmed is None else self.confirmed.factor

    @property
    def table(self) -> Table:
        """Speed-up over the script as it came, of the points that are as accurate, the fastest first."""
        if self.result is None:
            return Table("", [], [])
        own = self._own_speed()
        header = ["speed-up", "", *(k.setting for k in self.knobs), "as accurate", "runs"]
        points = judged(self.result.points, self.result.campaign.objective, self.knobs)
        points = [p for p in points if p.runs and not self._is_own(p)]
        points = sorted(points, key=lambda p: (p.probability_feasible < SURE, -p.score))
        rows = [self._row(p, points[0], own) for p in points[:MOST_ROWS]]
        rows.append(["1", "as it came", *(number(k.own) for k in self.knobs), "itself", str(self._own_runs())])
        return Table(f"speed-up of {self.name} over the script as it came", header, rows)

    def _is_own(self, p: Estimate) -> bool:
        """Whether it is the script as it came; values on a logarithmic scale come back rounded."""
        return all(number(p.params.get(k.name, k.own)) == number(k.own) for k in self.knobs)

    def _row(self, p: Estimate, first: Estimate, own: float) -> list[str]:
        sure = p.probability_feasible >= SURE
        tie = sure and p is not first and first.score - p.score < 2 * math.hypot(first.score_error, p.score_error)
        factor = with_error(p.score / own, self._error(p) / own) if own else "-"
        marks = ["tie"] * tie + list(filter(None, [self._how(p)]))
        cells = [number(p.params.get(k.name, k.own)) for k in self.knobs]
        accurate = f"yes (P = {p.probability_feasible:.2f})" if sure else f"NO (P = {p.probability_feasible:.2f})"
        return [factor, ", ".join(marks), *cells, accurate, str(p.runs)]

    def _is_estimated(self, p: Estimate) -> bool:
        """Whether no run of a point had its cores."""
        if self.result is None:
            return False
        campaign = self.result.campaign
        return key(campaign.complete(p.params)) in estimated_at(campaign, self.result.results)

    def _elsewhere(self, p: Estimate) -> bool:
        """Whether it is on other ranks or threads than the script as it came."""
        places = [k for k in self.knobs if k.setting in ("ranks", "threads")]
        return any(p.params.get(k.name, k.own) != k.own for k in places)

    def _how(self, p: Estimate) -> str:
        """How its speed is known, where it is not by the clock."""
        if not self._is_estimated(p):
            return ""
        return f"{_ESTIMATED}{_ELSEWHERE}" if self._elsewhere(p) else _ESTIMATED

    def _error(self, p: Estimate) -> float:
        """Standard error of its speed; repeats do not average out how far estimates are off together."""
        if not self._is_estimated(p):
            return p.score_error
        return math.hypot(p.score_error, p.score * (_OTHER_CORES if self._elsewhere(p) else ESTIMATE_BIAS))

    def order(self, p: Estimate) -> float:
        """By what points are taken, larger first: estimates on other ranks or threads by what is sure of them."""
        return p.score - (self._error(p) if self._is_estimated(p) and self._elsewhere(p) else 0.0)

    def _own_speed(self) -> float:
        compared = self.result.comparison if self.result is not None else None
        return compared.value if compared is not None and compared.value > 0 else 0.0

    def _own_runs(self) -> int:
        return sum(r.ok and r.manifest.role == "reference" for r in self.result.results) if self.result else 0

    @property
    def slower(self) -> bool:
        """Whether the tuned script was slower than the script as it came when they were timed in turn."""
        return self.confirmed is not None and self.confirmed.slower

    @property
    def faster(self) -> bool:
        """Whether it was faster beyond the noise of that timing."""
        return self.confirmed is not None and self.confirmed.faster

    def _verdict(self) -> list[str]:
        if self.script is None:
            return ["no settings were found that are faster and as accurate; the script stays as it came"]
        about = [*self._beside_the_table(), *self._crowds()]
        if not self.faster:
            begin = "NOT faster" if self.slower else "nothing proved faster"
            return [
                f"{begin}, keep the script as it came: {self.confirmed}, timed in turn",
                *about,
                "or tune again while nothing else runs here (--wait-quiet; ranks that share a core wait for each "
                f"other), with more --repeats; what was tried is in {self.script}",
            ]
        return [
            f"tuned: {self.confirmed}",
            *about,
            f"the tuned script: {self.script}",
            f"run it with: {self.command}",
        ]

    def _beside_the_table(self) -> list[str]:
        """What the campaign said of the point that was timed in turn, and whether the two agree."""
        own = self._own_speed()
        if self.best is None or self.confirmed is None or not own:
            return []
        factor, error = self.best.score / own, self._error(self.best) / own
        how = self._how(self.best)
        said = f"the table below has {with_error(factor, error)} for it{f', {how}' if how else ''}"
        timed = 0.0 if math.isnan(self.confirmed.error) else self.confirmed.error
        if abs(factor - self.confirmed.factor) <= 2 * math.hypot(error, timed):
            return [said]
        why = "; CPU time does not tell how long ranks wait for each other or for a core" if how else ""
        return [f"{said}: the two differ by more than their errors, and what was timed in turn counts{why}"]

    def _crowds(self) -> list[str]:
        busy = () if self.result is None else self.result.busy
        said = []
        if self.confirmed is not None and self.confirmed.cores < _CORES:
            share = f"the runs timed in turn used {self.confirmed.cores:.0%} of their cores"
            said = [f"{share}: something else ran here, or ranks waited for each other"]
        return said + [f"it began on a busy machine ({words} measured then may be too low" for words in busy]

    def __str__(self) -> str:
        names = ["setting", "in the script", "tried"]
        lines = [] if self.result is None else [*self._verdict(), ""]
        lines.append(str(Table(f"settings of {self.path}", names, [list(row) for row in self.settings])))
        lines += [f"left alone: {what}: {why}" for what, why in self.left]
        lines += self.probe
        if self.result is None:
            return "\n".join([*lines, "dry run: nothing was written or run"])
        lines += ["", str(self.table), *([_GUESSES] if _ELSEWHERE in str(self.table) else []), "", *self.checks]
        lines += self._crowds() if self.script is None else []
        lines += [f"runs that failed: {name} {n} time(s)" for name, n in self.result.failures.items()]
        return "\n".join([*lines, f"everything is in {self.folder}; again: hpcagent run {self.folder}/tune.toml"])

    def data(self) -> dict[str, Any]:
        """The same as plain data."""
        return {
            "script": str(self.path),
            "folder": None if self.folder is None else str(self.folder),
            "settings": [dict(zip(("setting", "script", "tried"), row, strict=True)) for row in self.settings],
            "left": [{"setting": what, "why": why} for what, why in self.left],
            "tuned": None if self.script is None else str(self.script),
            "command": self.command if self.faster else "",
            "faster": self.faster,
            "slower": self.slower,
            "params": None if self.best is None else self.best.params,
            "confirmed": None if self.confirmed is None else _finite(asdict(self.confirmed)),
            "checks": list(self.checks),
        }

    def written(self) -> Tuned:
        """Write the same into the folder, as `tuned.txt` and `tuned.json`."""
        if self.folder is not None:
            write_whole(self.folder / "tuned.txt", f"{self}\n")
            write_whole(self.folder / "tuned.json", json.dumps(self.data(), indent=1, allow_nan=False) + "\n")
        return self


def _finite(data: dict[str, Any]) -> dict[str, Any]:
    """None in place of what is not known: JSON has no NaN."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in data.items()}
