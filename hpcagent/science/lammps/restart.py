"""Going on from a restart file instead of starting over: earlier attempts, joined to one run.

hpcagent sets the script's variable (see `restart_script`) and joins the thermo rows of the attempts. Where the
contract names the variable of the length (`steps`), a finished run leaves a restart file of its end, from which a
longer one goes on; that one has what it needs of the earlier run in `attempt-0/` (see `extended`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from hpcagent.apps.printed import read_bytes, read_text
from hpcagent.errors import AppFailed
from hpcagent.moved import moved
from hpcagent.science.lammps.legs import legs
from hpcagent.science.lammps.log import parse_log
from hpcagent.science.lammps.log_records import Log, Run
from hpcagent.science.lammps.restart_file import END, FILES, restart_step
from hpcagent.science.lammps.restart_rows import gaps, stacked, timed

__all__ = [
    "CONTINUED",
    "SOURCE",
    "Earlier",
    "continued",
    "earlier",
    "joined",
    "origin_of",
    "progress",
    "read_logs",
]

SOURCE = "restart_from"
"""A link to the file to continue from: `if` takes only letters, digits and `_` in a word it compares."""
CONTINUED = "continued.json"


@dataclass(frozen=True, slots=True)
class Earlier:
    """What a run continues from.

    Attributes:
        attempt: Number of the earlier attempt; 0: the run that this one extends.
        file: Its restart file, relative to the run's directory.
        step: The step of that file.
        before: The runs of the first attempt's log before the production run.
        production: That run up to `step`, joined over the attempts.
    """

    attempt: int
    file: str
    step: int
    before: tuple[Run, ...]
    production: Run

    @property
    def first_step(self) -> int:
        """The step at which the production run began."""
        return int(self.production["Step"][0])


def earlier(workdir: Path, logs: list[str]) -> tuple[Earlier | None, str | None]:
    """What a new attempt in this directory can continue from, and why not where there would be something.

    The newest whole file of which the log still holds the rows before it: without those a run that goes on
    could not be measured as a whole, and starting over is more honest.

    Args:
        workdir: The run's directory, with `attempt-N/` of the earlier attempts in it.
        logs: Names of further logs that the script opens.
    """
    found = []
    for folder in workdir.glob("attempt-*"):
        number = folder.name.removeprefix("attempt-")
        if not number.isdigit():
            continue
        for name in FILES if int(number) else (END,):
            at = restart_step(folder / name)
            if at is not None:
                found.append((at, int(number), name))
    refused = None
    for step, attempt, name in sorted(found, reverse=True):
        rows = _rows(workdir, attempt, step, logs)
        if rows is None:
            why = f"its log lacks rows, or its {CONTINUED} is damaged"
            refused = refused or f"the restart file at step {step} of attempt {attempt} is not used: {why}"
            continue
        before, production, ended_at = rows
        words = "" if attempt else _torn(production, step, ended_at)
        if words:
            refused = refused or f"{words}, and its restart file is of step {step}"
            continue
        if attempt and ended_at is not None and step >= ended_at:
            continue  # nothing would be left to run, and so nothing to measure a speed by
        return Earlier(attempt, f"attempt-{attempt}/{name}", step, before, production), None
    return None, refused


def _rows(
    workdir: Path, attempt: int, step: int, logs: list[str]
) -> tuple[tuple[Run, ...], Run, int | None] | None:
    """The runs before, the production run up to `step`, and where that run ended if it came to its end."""
    folder = workdir / f"attempt-{attempt}"
    runs = legs(parse_log(read_logs(folder, logs)).runs)
    if not runs or "Step" not in runs[-1]:
        return None
    leg = runs[-1]
    ended_at = int(leg["Step"][-1]) if leg.complete and len(leg) else None
    leg = replace(leg, data=leg.data[leg["Step"] <= step])
    try:
        origin = origin_of(folder)
    except (OSError, ValueError):  # nobody knows where it began: not at the start, if it says anything
        return None
    if origin is None:
        return (runs[:-1], leg, ended_at) if len(leg) else None
    from_attempt, from_step = origin
    if attempt and from_attempt >= attempt:
        return None
    # What lies in `attempt-0/` is a whole run, with attempts of its own.
    base = _rows(workdir if attempt else folder, from_attempt, from_step, logs)
    if base is None:
        return None
    whole = stacked(base[1], leg, from_step)
    if whole is not None and not attempt and leg.steps:
        whole = timed(whole, base[1], leg, from_step, finished=from_attempt == 0)
    return None if whole is None else (base[0], whole, ended_at)


def origin_of(folder: Path) -> tuple[int, int] | None:
    """The attempt and the step that an attempt went on from; None: it began at the start.

    Raises:
        OSError, ValueError: Its note of that cannot be read, or is damaged.
    """
    try:
        said = json.loads(read_bytes(folder / CONTINUED))
    except FileNotFoundError:
        return None
    except RecursionError as error:
        raise ValueError(str(error)) from None
    attempt, step = (said.get("attempt"), said.get("step")) if isinstance(said, dict) else (None, None)
    if type(attempt) is not int or type(step) is not int or attempt < 0 or not 0 <= step < 1 << 63:
        raise ValueError(f"{CONTINUED} says no attempt and step")
    return attempt, step


def _torn(production: Run, step: int, ended_at: int | None) -> str:
    """What a log lacks of a run that came to its end at `step`, in a clause; empty: nothing."""
    if ended_at is None:
        return "its log does not come to the end of the run"
    if ended_at != step:
        return f"its log ends at step {ended_at}"
    return gaps(production)


def continued(workdir: Path, source: Earlier | None) -> None:
    """Link what this attempt continues from into the run's directory, and note it for the attempts after it."""
    if source is not None:
        (workdir / SOURCE).symlink_to(source.file)
        text = json.dumps({"attempt": source.attempt, "file": source.file, "step": source.step})
        (workdir / CONTINUED).write_text(text)


def joined(log: Log, source: Earlier, tail: str) -> tuple[Log, list[str], str | None]:
    """The log of a run that was continued, as if it had been one; notes; why its speed says little, or None.

    Speed, loop time and neighbour builds are those of the last part, the latter two scaled to the whole.

    Args:
        log: The log of the last attempt.
        source: What it continued from.
        tail: Last lines of the log, for failures.

    Raises:
        AppFailed: `BadScript`: the script did not go on at the step of its restart file.
    """
    *before, leg = legs(log.runs)
    whole = stacked(source.production, leg, source.step)
    if whole is None or not leg.steps:
        begun = f"at step {leg['Step'][0]:.0f}" if "Step" in leg and len(leg) else "elsewhere"
        raise AppFailed(
            f"the script was to continue from step {source.step} of attempt {source.attempt}, but its last run "
            f"begins {begun} or prints other columns.",
            kind="contract",
            name="BadScript",
            log_tail=tail,
            repair="what sets the step or the columns must not depend on whether a restart file is read",
        )
    whole = timed(whole, source.production, leg, source.step, finished=source.attempt == 0)
    steps = whole.steps or leg.steps
    if source.attempt:
        notes = [
            f"continued from step {source.step} of attempt {source.attempt}; speed, loop time and neighbour "
            f"builds are those of the last {leg.steps} of {steps} steps, scaled to all of them"
        ]
    else:
        notes = [f"went on from step {source.step} of the run that it extends, and is measured over {steps} steps"]
    missing = _missing(source)
    if missing:
        notes.append(missing)
    few = leg.steps < 0.02 * steps
    return (
        replace(log, runs=(*source.before, *before, whole)),
        notes,
        f"its speed was measured over the last {leg.steps} of {steps} steps only" if few else None,
    )


def _missing(source: Earlier) -> str | None:
    steps = source.production["Step"]
    gap = source.step - int(steps[-1])
    usual = int(np.median(np.diff(steps))) if len(steps) > 2 else gap
    if gap <= usual:
        return None
    return (
        f"the thermo rows between steps {steps[-1]:.0f} and {source.step} were lost with attempt {source.attempt}"
    )


def read_logs(folder: Path, logs: list[str]) -> str:
    """The text of a run's log, with those that the script's `log` commands opened after it.

    Raises:
        AppFailed: `FileTooLarge`: one of them is larger than the site's `max_read_mb`.
    """
    texts = []
    for name in ("log.lammps", *logs):
        path = folder / name
        if path.is_file():
            texts.append(read_text(path))
    return "".join(texts)


def progress(workdir: Path, source: Earlier | None) -> int | None:
    """The step up to which this attempt has got in restart files, or None if no further than it began."""
    steps = [step for name in FILES if (step := restart_step(workdir / name)) is not None]
    began = -1 if source is None else source.step
    return max(steps) if steps and max(steps) > began else None


_MOVED = {
    "hpcagent.science.lammps.extended": "Ends changed ends_of gone other_end taken_over",
    "hpcagent.science.lammps.restart_file": "END FILES restart_step",
    "hpcagent.science.lammps.restart_rows": "gaps stacked",
    "hpcagent.science.lammps.restart_script": "NONE steps_in_all times_at_most with_restarts",
}
__getattr__ = moved(__name__, {name: new for new, names in _MOVED.items() for name in names.split()})
