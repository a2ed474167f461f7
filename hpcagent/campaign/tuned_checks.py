"""Whether other settings of speed compute the same (energies of the first steps, averages), and how fast."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

from hpcagent.apps.base import App
from hpcagent.apps.lammps.log import parse_log
from hpcagent.apps.lammps.rewritten import check_script
from hpcagent.apps.lammps.settings import Settings
from hpcagent.campaign.record import Campaign
from hpcagent.errors import AppFailed
from hpcagent.model.records import Result
from hpcagent.model.space import Params
from hpcagent.policies.points import key

__all__ = ["SPEED", "Agreement", "Confirmed", "agreement", "averages_differ", "confirmed", "timed"]

SPEED = "timesteps_per_s"

ROUND_OFF = 1e-9
"""Of two energies that are equal but for the order of their sums, relative to the kinetic and potential energy."""

# Differences of averages that are looked into, in their standard errors.
_APART = 4.0


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
    app: Callable[[str, str, int, int], App],
    name: str,
    now: tuple[int, int],
    then: tuple[int, int],
) -> Agreement:
    """Compare the energies of the first steps with other settings with those of the script as it came.

    Args:
        settings: Of the script as it came.
        words: Setting -> word, of those that change no force.
        app: Makes an app of a name, a text, ranks and threads.
        name: Of the script.
        now: Ranks and threads of the script as it came.
        then: Ranks and threads with the other settings.
    """
    try:
        own = _energies(timed(app(f"{name}.check_own", check_script(settings, {}), *now)))
        other = _energies(timed(app(f"{name}.check_tuned", check_script(settings, words), *then)))
    except AppFailed as error:
        return Agreement(f"it could not be compared: {error.message}", ())
    compared = f"energies of the first {len(own)} configurations" if len(own) > 1 else "energies of the start"
    apart = _apart(own, other)
    if apart <= ROUND_OFF:
        return Agreement(
            "", (f"{compared}: equal to the script's own within {max(apart, 1e-16):.0e} of their size",)
        )
    if now[0] != then[0]:
        # Velocities or molecules that are drawn atom by atom, atoms that are numbered rank by rank: the script's
        # own start is another one on other ranks.
        grid = {k: v for k, v in words.items() if k == "grid"}
        try:
            beside = _energies(timed(app(f"{name}.check_ranks", check_script(settings, grid), then[0], 1)))
        except AppFailed as error:
            return Agreement(f"it could not be compared: {error.message}", ())
        apart = _apart(beside, other)
        if apart <= ROUND_OFF:
            return Agreement(
                "",
                (
                    f"{compared}: equal within {max(apart, 1e-16):.0e} of their size to those of the script as "
                    f"it came on {then[0]} ranks too; on {now[0]} its atoms or velocities are numbered or drawn "
                    f"otherwise, so there {_same_start(own, other)}",
                ),
            )
    return Agreement(f"its {compared} differ from the script's own by {apart:.1e} of their size", ())


def _same_start(own: Sequence[tuple[float, float]], other: Sequence[tuple[float, float]]) -> str:
    if _apart(own[:1], other[:1]) <= ROUND_OFF:
        return "only the start has the same energies"
    return "it begins at another start of the same system"


def _energies(result: Result) -> list[tuple[float, float]]:
    """(potential, kinetic) energy of each step."""
    log = parse_log((Path(result.workdir) / result.artifacts["log"]).read_text(errors="replace"))
    leg = log.runs[-1]
    return list(zip(map(float, leg["PotEng"]), map(float, leg["KinEng"]), strict=True))


def _apart(one: Sequence[tuple[float, float]], other: Sequence[tuple[float, float]]) -> float:
    """The largest difference of two series of energies, relative to their size."""
    if len(one) != len(other) or not one:
        return math.inf
    gaps = [abs(a - b) for x, y in zip(one, other, strict=True) for a, b in zip(x, y, strict=True)]
    if not all(map(math.isfinite, gaps)):
        return math.inf
    return max(gaps) / (max(abs(e) for pair in one for e in pair) or 1.0)


def averages_differ(campaign: Campaign, results: Sequence[Result], params: Params) -> list[str]:
    """Compare the averages of the runs at a point with those of the script as it came, in words."""
    at = key(campaign.complete(params))
    tuned = [r for r in results if r.ok and key(r.manifest.params) == at]
    own = [r for r in results if r.ok and r.manifest.role == "reference"]
    names = [
        n
        for n in (tuned[0].metrics if tuned else {})
        if n.startswith(("temperature", "pressure", "density", "potential_energy"))
        and all(n in r.uncertainty and r.uncertainty[n] > 0 for r in (*tuned, *own))
    ]
    if not own or not names:
        return ["averages: too few thermo rows for an error of any, so none was compared"]
    said: list[str] = []
    apart: list[str] = []
    for n in names:
        one, other = ([r.metrics[n] for r in runs] for runs in (tuned, own))
        # Runs from the same start are no independent samples: the error of one is that of their mean.
        error = math.hypot(*(fmean(r.uncertainty[n] for r in runs) for runs in (tuned, own)))
        gap = abs(fmean(one) - fmean(other))
        (apart if gap > _APART * error else said).append(n)
    lines = [f"averages equal within their errors: {', '.join(said)}"] if said else []
    if apart:
        lines.append(f"averages that DIFFER by more than {_APART:g} standard errors: {', '.join(apart)}")
    return lines


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The tuned script timed in turn with the script as it came.

    Attributes:
        factor: How many times faster it is.
        error: Standard error; NaN for one pair.
        own: Steps per second of each run of the script as it came.
        tuned: And of the tuned one.
        unsafe_builds: Of the tuned runs, the most.
    """

    factor: float
    error: float
    own: tuple[float, ...]
    tuned: tuple[float, ...]
    unsafe_builds: float

    @property
    def slower(self) -> bool:
        """Whether it is slower beyond the noise."""
        return self.factor < 1 - 2 * (0.0 if math.isnan(self.error) else self.error)

    def __str__(self) -> str:
        error = "" if math.isnan(self.error) else f" ± {self.error:.2f}"
        tie = " (a tie: the difference is within the noise)" if abs(self.factor - 1) < 2 * self.error else ""
        return f"{self.factor:.2f}{error} times the script as it came{tie}"


def confirmed(own: App, tuned: App, *, repeats: int) -> Confirmed:
    """Time two apps in turn, in pairs, and compare them pair by pair: machines change speed within minutes."""
    pairs = []
    for i in range(repeats):
        first, second = (own, tuned) if i % 2 == 0 else (tuned, own)
        runs = {id(app): _replicate(app, i) for app in (first, second)}
        pairs.append((runs[id(own)], runs[id(tuned)]))
    logs = [math.log(b.metrics[SPEED] / a.metrics[SPEED]) for a, b in pairs]
    factor = math.exp(fmean(logs))
    return Confirmed(
        factor=factor,
        error=factor * stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.nan,
        own=tuple(a.metrics[SPEED] for a, _ in pairs),
        tuned=tuple(b.metrics[SPEED] for _, b in pairs),
        unsafe_builds=max(b.metrics.get("unsafe_builds", math.nan) for _, b in pairs),
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
