"""Whether other settings of speed compute the same (energies of the first steps, averages), and how fast."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from hpcagent.apps.base import App
from hpcagent.campaign.numbers import with_error
from hpcagent.campaign.record import Campaign
from hpcagent.errors import AppFailed
from hpcagent.model.parameter import Params
from hpcagent.model.records import Result
from hpcagent.science.lammps.log import parse_log
from hpcagent.science.lammps.rewritten import check_script
from hpcagent.science.lammps.settings import Settings
from hpcagent.statistics.points import key
from hpcagent.statistics.replicates import mean_error

__all__ = ["FORCE_RATIO", "SPEED", "Agreement", "Confirmed", "agreement", "averages_differ", "confirmed", "timed"]

SPEED, FORCE_RATIO = "timesteps_per_s", "force_error_ratio"

ROUND_OFF = 1e-9
"""Of two energies that are equal but for the order of their sums, relative to the kinetic and potential energy."""

# The energies have 15 digits in the log.
_PRINTED = 1e-15

# Differences of averages that are looked into, in their standard errors.
_APART = 4.0

# Total energies are the same within such a part of the error of the potential energy, which moves with them.
_SAME_ENERGY = 0.2


def timed(app: App) -> Result:
    """Run an app without parameters on the open site.

    Raises:
        AppFailed: The run failed; the message has what LAMMPS said.
    """
    result: Result = app().result()
    if result.failure is not None:
        failure = result.failure
        raise AppFailed(
            f"{app.name}: {failure.message}",
            kind=failure.kind,
            name=failure.name,
            log_tail=failure.log_tail,
            repair=failure.repair,
        )
    return result


class _Row(NamedTuple):
    """Energies and pressure of one configuration, in the script's units."""

    potential: float
    kinetic: float
    pressure: float


@dataclass(frozen=True, slots=True)
class Agreement:
    """Whether two scripts have the same energies.

    Attributes:
        refused: Why they do not; empty where they do.
        said: What was compared, in sentences without a full stop.
    """

    refused: str
    said: tuple[str, ...]


def agreement(
    settings: Settings,
    words: Mapping[str, str],
    *,
    forces: Mapping[str, str],
    app: Callable[[str, str, int, int], App],
    name: str,
    now: tuple[int, int],
    then: tuple[int, int],
) -> Agreement:
    """Compare the energies of the first steps with other settings with those of the script as it came.

    Settings that change no force must leave the energies as they are. Where others are changed too, it is said how
    far they move the energy and the pressure of the start; whether they are as accurate is told by
    `force_error_ratio`.

    Args:
        settings: Of the script as it came.
        words: Setting -> word, of those that change no force.
        forces: The same of all that are changed.
        app: Makes an app of a name, a text, ranks and threads.
        name: Of the script.
        now: Ranks and threads of the script as it came.
        then: Ranks and threads with the other settings.
    """

    def start(called: str, said: Mapping[str, str], ranks: int, threads: int) -> list[_Row]:
        return _energies(timed(app(f"{name}.{called}", check_script(settings, said), ranks, threads)))

    try:
        own = start("check_own", {}, *now)
        other = start("check_tuned", words, *then)
        beside: list[_Row] | None = None
        if _apart(own, other) > ROUND_OFF and now[0] != then[0]:
            # Velocities or molecules that are drawn atom by atom, atoms that are numbered rank by rank: on other
            # ranks the script's own start is another one.
            beside = start("check_ranks", {k: v for k, v in words.items() if k == "grid"}, then[0], 1)
        all_of_it = start("check_forces", forces, *then) if forces != words else None
    except AppFailed as error:
        return Agreement(f"it could not be compared: {error.message}", ())
    compared = f"energies of the first {len(own)} configurations" if len(own) > 1 else "energies of the start"
    if forces != words:
        kept = ", ".join(words) or "ranks and threads"
        compared = f"{compared} with the settings that change no force ({kept})"
    apart = _apart(own if beside is None else beside, other)
    if apart > ROUND_OFF:
        return Agreement(f"its {compared} differ from the script's own by {apart:.1e} of their size", ())
    within = f"within {apart:.0e} of their size" if apart >= _PRINTED else "to all 15 digits"
    if beside is None:
        said = f"{compared}: equal to the script's own {within}"
    else:
        said = (
            f"{compared}: equal {within} to those of the script as it came on {then[0]} ranks too; on {now[0]} "
            f"its atoms or velocities are numbered or drawn otherwise, so there {_same_start(own, other)}"
        )
    return Agreement("", (said, *([] if all_of_it is None else [_moved(other, all_of_it, words, forces)])))


def _moved(
    other: Sequence[_Row], all_of_it: Sequence[_Row], words: Mapping[str, str], forces: Mapping[str, str]
) -> str:
    """How far the settings that change forces move the energy and the pressure of the start."""
    names = ", ".join(k for k in forces if k not in words)
    before, after = other[0], all_of_it[0]
    apart = abs(after.potential - before.potential) / (abs(before.potential) or 1.0)
    return (
        f"{names} change forces: at the start the potential energy differs by {apart:.1e} of its size, the "
        f"pressure is {after.pressure:.5g} and was {before.pressure:.5g}"
    )


def _same_start(own: Sequence[_Row], other: Sequence[_Row]) -> str:
    if _apart(own[:1], other[:1]) <= ROUND_OFF:
        return "only the start has the same energies"
    return "it begins at another start of the same system"


def _energies(result: Result) -> list[_Row]:
    log = parse_log((Path(result.workdir) / result.artifacts["log"]).read_text(errors="replace"))
    leg = log.runs[-1]
    return [_Row(*map(float, row)) for row in zip(leg["PotEng"], leg["KinEng"], leg["Press"], strict=True)]


def _apart(one: Sequence[_Row], other: Sequence[_Row]) -> float:
    """The largest difference of two series of energies, relative to their size."""
    if len(one) != len(other) or not one:
        return math.inf
    gaps = [abs(a - b) for x, y in zip(one, other, strict=True) for a, b in zip(x[:2], y[:2], strict=True)]
    if not all(map(math.isfinite, gaps)):
        return math.inf
    return max(gaps) / (max(abs(e) for row in one for e in row[:2]) or 1.0)


def averages_differ(
    campaign: Campaign, results: Sequence[Result], params: Params, *, constant_energy: bool
) -> list[str]:
    """Compare forces and averages of the runs at a point with those of the script as it came, in words.

    Args:
        campaign: Of the runs.
        results: All of them.
        params: The point.
        constant_energy: Whether the run that is timed keeps the energy with which it begins.
    """
    at = key(campaign.complete(params))
    tuned = [r for r in results if r.ok and key(r.manifest.params) == at]
    own = [r for r in results if r.ok and r.manifest.role == "reference"]
    forces = _forces_said(tuned)
    names = [
        n
        for n in (tuned[0].metrics if tuned else {})
        if n.startswith(("temperature", "pressure", "density", "potential_energy"))
        and all(n in r.uncertainty and r.uncertainty[n] > 0 for r in (*tuned, *own))
    ]
    if not own or not names:
        return [*forces, "averages: too few thermo rows for an error of any, so none was compared"]
    if constant_energy and (why := _other_energy(own, tuned)):
        return [*forces, why]
    said: list[str] = []
    apart: list[str] = []
    for n in names:
        one, other = ([r.metrics[n] for r in runs] for runs in (tuned, own))
        # Runs from the same start are no independent samples: the error of one is that of their mean.
        error = math.hypot(*(fmean(r.uncertainty[n] for r in runs) for runs in (tuned, own)))
        gap = abs(fmean(one) - fmean(other))
        (apart if gap > _APART * error else said).append(n)
    lines = [*forces, *([f"averages equal within their errors: {', '.join(said)}"] if said else [])]
    if apart:
        lines.append(f"averages that DIFFER by more than {_APART:g} standard errors: {', '.join(apart)}")
    return lines


def _forces_said(tuned: Sequence[Result]) -> list[str]:
    """How large the error of the forces is, beside that of the script as it came at the same positions."""
    if not tuned or any(FORCE_RATIO not in r.metrics for r in tuned):
        return []
    then, ratio = (fmean(r.metrics[n] for r in tuned) for n in ("force_error", FORCE_RATIO))
    errors = [r.uncertainty.get(FORCE_RATIO, 0.0) for r in tuned]
    error = math.hypot(*errors) / len(errors)
    return [
        f"rms error of the forces over the rms force: {then:.2e}, {with_error(ratio, error)} times that of the "
        "script as it came at the same positions"
    ]


def _other_energy(own: Sequence[Result], tuned: Sequence[Result]) -> str:
    """Why averages of runs at constant energy say nothing: they are those of the energy with which each began.

    The errors of such a run are those of fluctuations at its energy. One that begins at another, as after a
    thermostat with random forces on other ranks, has other averages, however long it is.
    """

    def of(prefix: str) -> str:
        return next((n for n in tuned[0].metrics if n.startswith(prefix)), "")

    total, potential, runs = of("total_energy"), of("potential_energy"), (*own, *tuned)
    if any(total not in r.metrics or potential not in r.uncertainty for r in runs):
        return ""
    came, then = (fmean(r.metrics[total] for r in some) for some in (own, tuned))
    error = math.hypot(*(fmean(r.uncertainty[potential] for r in some) for some in (own, tuned)))
    if abs(then - came) <= _SAME_ENERGY * error:
        return ""
    return (
        f"averages were not compared: the run that is timed is at constant energy, and began at another one "
        f"({total} {then:.6g}; of the script as it came {came:.6g})"
    )


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The tuned script timed in turn with the script as it came.

    Attributes:
        factor: How many times faster it is.
        error: The true factor is within two of it in 95 % of cases (Student's t over the pairs); NaN for one pair.
        own: Steps per second of each run of the script as it came.
        tuned: And of the tuned one.
        unsafe_builds: Of the tuned runs, the most.
        cores: Share of their cores that the runs used, of the script of which it is less; NaN where LAMMPS does
            not say, and of several threads, which rest beside what is not threaded.
    """

    factor: float
    error: float
    own: tuple[float, ...]
    tuned: tuple[float, ...]
    unsafe_builds: float
    cores: float = math.nan

    @property
    def faster(self) -> bool:
        """Whether it is faster beyond the noise; of one pair, whose noise is not known, at all."""
        return self.factor > 1 + 2 * (0.0 if math.isnan(self.error) else self.error)

    @property
    def slower(self) -> bool:
        """Whether it is slower beyond the noise; of one pair at all."""
        return self.factor < 1 - 2 * (0.0 if math.isnan(self.error) else self.error)

    def __str__(self) -> str:
        error = " (timed once: no error)" if math.isnan(self.error) else f" ± {self.error:.2f}"
        tie = "" if self.faster or self.slower else " (a tie: the difference is within the noise)"
        return f"{self.factor:.2f}{error} times the script as it came{tie}"


def confirmed(own: App, tuned: App, *, repeats: int, threads: tuple[int, int] = (1, 1)) -> Confirmed:
    """Time two apps in turn, in pairs, and compare them pair by pair: machines change speed within minutes.

    Args:
        own: The script as it came.
        tuned: The tuned one.
        repeats: How many pairs.
        threads: OpenMP threads of each rank of the one and the other.
    """
    pairs = []
    for i in range(repeats):
        first, second = (own, tuned) if i % 2 == 0 else (tuned, own)
        runs = {id(app): _replicate(app, i) for app in (first, second)}
        pairs.append((runs[id(own)], runs[id(tuned)]))
    logs = [math.log(b.metrics[SPEED] / a.metrics[SPEED]) for a, b in pairs]
    mean, error = mean_error(logs)
    return Confirmed(
        factor=math.exp(mean),
        error=math.nan if error is None else math.exp(mean) * error,
        own=tuple(a.metrics[SPEED] for a, _ in pairs),
        tuned=tuple(b.metrics[SPEED] for _, b in pairs),
        unsafe_builds=max(b.metrics.get("unsafe_builds", math.nan) for _, b in pairs),
        cores=min(
            (
                fmean(r.metrics.get("cpu_use_percent", math.nan) for r in runs) / 100
                for runs, n in zip(zip(*pairs, strict=True), threads, strict=True)
                if n == 1
            ),
            default=math.nan,
        ),
    )


def _replicate(app: App, i: int) -> Result:
    result: Result = app(replicate=i).result()
    if result.failure is not None:
        raise AppFailed(
            f"{app.name}: {result.failure.message}",
            kind=result.failure.kind,
            name=result.failure.name,
            log_tail=result.failure.log_tail,
            repair=result.failure.repair,
        )
    return result
