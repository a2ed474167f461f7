"""Going on from a restart file instead of starting over.

The script says how it continues (`if "${restart} == none" then ... else "read_restart ${restart}"`) and how long
it is in all (`run N upto`); hpcagent adds the `restart` command before that last run, sets the variable, and
joins the thermo rows of the attempts. Where the contract names the variable of the length (`steps`), a finished
run leaves a restart file of its end, from which a longer one goes on; that one has what it needs of the earlier
run in `attempt-0/`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hpcagent.apps.made_with import sha256
from hpcagent.apps.printed import read_bytes, read_text
from hpcagent.errors import AppFailed, BadInput
from hpcagent.model.space import Space
from hpcagent.regular import open_regular
from hpcagent.science.lammps.legs import legs
from hpcagent.science.lammps.log import parse_log
from hpcagent.science.lammps.log_records import Log, Run
from hpcagent.science.lammps.script import Script

__all__ = [
    "END",
    "FILES",
    "NONE",
    "SOURCE",
    "Earlier",
    "Ends",
    "changed",
    "continued",
    "earlier",
    "ends_of",
    "gaps",
    "gone",
    "joined",
    "other_end",
    "progress",
    "read_logs",
    "restart_step",
    "stacked",
    "steps_in_all",
    "taken_over",
    "times_at_most",
    "with_restarts",
]

FILES = ("restart.a", "restart.b")
"""LAMMPS writes them in turn: whenever it is killed, one of them is whole."""
END = "restart.end"
"""What a run leaves that can be extended: its last step."""
NONE = "none"
"""Value of the script's variable in a run that starts from the beginning."""
SOURCE = "restart_from"
"""A link to the file to continue from: `if` takes only letters, digits and `_` in a word it compares."""
CONTINUED = "continued.json"

Ends = Mapping[str, Sequence[Any]]
"""Files that a longer run goes on from: path in its directory -> bytes and SHA-256; see `Result.ends_with`."""

_IDIOM = (
    'variable {0} index none ... if "${{{0}}} == none" then "create_box 1 box" ... else "read_restart ${{{0}}}"'
)


# ---- the script


def with_restarts(
    read: Script, variable: str, every: int, *, production: int, where: str, steps: str | None = None
) -> str:
    """The script with a `restart` command before its last run, and a restart file of its end where it has `steps`.

    Args:
        read: The script.
        variable: Its variable that names the file to continue from, or is `none`.
        every: Steps between restart files.
        production: The contract's key of that name.
        where: The contract, for messages.
        steps: Its variable that is the length of the last run, if runs can be extended.

    Raises:
        BadInput: The script does not read the file, its last run has no `upto`, or another run is measured.
    """
    if variable not in read.used or not re.search(rf"read_restart\s+\$(\{{{variable}\}}|{variable}\b)", read.text):
        raise BadInput(
            f"{where}, restart: the script {read.path.name} has no `read_restart ${{{variable}}}`; write "
            f"{_IDIOM.format(variable)}.",
            value=variable,
        )
    if read.defined.get(variable, ("index", NONE)) not in (("index", NONE), ("string", NONE)):
        raise BadInput(
            f"{where}, restart: write `variable {variable} index none` in {read.path.name}: from the beginning is "
            "what it does when run by hand.",
            value=variable,
        )
    if production != -1:
        raise BadInput(
            f"{where}, restart: it is the script's last run that is continued, so that run must be the one "
            f"that is measured; drop `production = {production}`.",
            value=production,
        )
    lines = read.text.splitlines(keepends=True)
    first, words, last = _last_run(lines)
    if first is None or "upto" not in words:
        said = f"it is `{' '.join(words)}`" if words else "it has none that stands by itself"
        raise BadInput(
            f"{where}, restart: the last run of {read.path.name} must be `run N upto`, so that it ends at the "
            f"same step wherever it begins; {said}.",
            value=" ".join(words),
        )
    # Flushed, or the rows since the last full buffer are lost with the process.
    added = ["thermo_modify flush yes\n", f"restart {every} {FILES[0]} {FILES[1]}\n"]
    if steps is None:
        return "".join(lines[:first] + added + lines[first:])
    if words[1] not in (f"${{{steps}}}", f"${steps}" if len(steps) == 1 else ""):
        raise BadInput(
            f"{where}, restart: steps = {steps!r} must be the length of the last run of {read.path.name}, as "
            f"`run ${{{steps}}} upto`; it is `{' '.join(words)}`.",
            value=steps,
        )
    run = lines[first : last + 1]
    run[-1] = run[-1].rstrip("\n") + "\n"
    return "".join([*lines[:first], *added, *run, f"write_restart {END}\n", *lines[last + 1 :]])


def steps_in_all(settings: Mapping[str, Any], params: Mapping[str, Any], times: float) -> int | None:
    """Length of a run that is `times` times an ordinary one, in steps; None without `steps` in the contract."""
    steps = (settings.get("restart") or {}).get("steps")
    return None if steps is None else round(float(params[steps]) * times)


def times_at_most(settings: Mapping[str, Any], space: Space, params: Mapping[str, Any]) -> float | None:
    """How many times as long as an ordinary run one may be by the contract's range of its length; None: no range.

    Args:
        settings: Of the app.
        space: The parameters of its contract.
        params: Of the run.
    """
    steps = (settings.get("restart") or {}).get("steps")
    most = None if steps is None else space[steps].high
    return None if steps is None or most is None else float(most) / float(params[steps])


def _last_run(lines: list[str]) -> tuple[int | None, list[str], int]:
    """Index, words and last line of the last `run` command that is a line of its own."""
    found: int | None = None
    last = 0
    words: list[str] = []
    going_on, quoted, inside = False, False, False
    for number, line in enumerate(lines):
        here = line.partition("#")[0].split()
        if not going_on and not quoted:
            inside = here[:1] == ["run"]
            if inside:
                found, words = number, []
        if inside:
            words += [word for word in here if word != "&"]
            last = number
        quoted ^= bool(line.count('"""') % 2)
        going_on = line.rstrip().endswith("&")
        inside = inside and going_on
    return found, words, last


# ---- the files


_MAGIC = b"LammpS RestartT\0"


def restart_step(path: Path) -> int | None:
    """The step of a restart file, or None if it is not whole.

    LAMMPS writes the same 16 bytes at both ends of the file; one that was being written has them only at its
    beginning. What stands between them is not looked at here.
    """
    try:
        with open_regular(path) as file:
            head = file.read(4096)
            file.seek(-len(_MAGIC), 2)
            if file.read() != _MAGIC or not head.startswith(_MAGIC):
                return None
        return _step_in(head)
    except (OSError, struct.error, KeyError):
        return None


# Of `lmprestart.h`: what stands before the step.
_STRINGS = (0, 4)  # VERSION, UNITS
_INTS = (1, 2, 3, 48)  # SMALLINT, TAGINT, BIGINT, IMAGEINT
_BIGINT, _NTIMESTEP = 3, 5


def _step_in(head: bytes) -> int | None:
    at = len(_MAGIC)
    (order,) = struct.unpack_from("=i", head, at)
    if order != 1:  # written on a machine of the other byte order
        return None
    at += 8  # and the revision of the format
    sizes: dict[int, int] = {}
    while True:
        (flag,) = struct.unpack_from("=i", head, at)
        at += 4
        if flag == _NTIMESTEP:
            (step,) = struct.unpack_from({4: "=i", 8: "=q"}[sizes.get(_BIGINT, 8)], head, at)
            return int(step) if step >= 0 else None
        if flag not in _STRINGS and flag not in _INTS:
            return None
        (value,) = struct.unpack_from("=i", head, at)
        at += 4
        sizes[flag] = value
        if flag in _STRINGS:
            at += value


# ---- earlier attempts


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
        origin = _origin(folder)
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
    whole = _stacked(base[1], leg, from_step)
    if whole is not None and not attempt and leg.steps:
        whole = _timed(whole, base[1], leg, from_step, finished=from_attempt == 0)
    return None if whole is None else (base[0], whole, ended_at)


def _origin(folder: Path) -> tuple[int, int] | None:
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


def _stacked(first: Run, then: Run, step: int) -> Run | None:
    """`then` with the rows of `first` before its own; None if they have other columns."""
    if first.columns != then.columns or not len(then) or int(then["Step"][0]) != step:
        return None
    data = then.data.copy()
    if "Time" in then:
        # A restart file does not always keep the time: it begins again at 0, or at step * timestep.
        column = then._position("Time")
        data[:, column] += _time_at(first, then, step) - data[0, column]
    if len(first) and int(first["Step"][-1]) >= step:
        data = data[1:]
    return replace(
        then,
        data=np.vstack([first.data, data]),
        n_atoms_start=then.n_atoms_start if first.n_atoms_start is None else first.n_atoms_start,
        atoms_changed_by=tuple(dict.fromkeys((*first.atoms_changed_by, *then.atoms_changed_by))),
        units=then.units or first.units,
        timestep=then.timestep if then.timestep is not None else first.timestep,
    )


def stacked(first: Run, then: Run, step: int) -> Run | None:
    """A run with the rows up to `step` of the one that it goes on from; None if they do not fit."""
    return _stacked(first, then, step)


def _time_at(first: Run, then: Run, step: int) -> float:
    """Time at `step`, from the rows before it and the step size of the rows after it."""
    last_step, last_time = float(first["Step"][-1]), float(first["Time"][-1])
    for run in (first, then):
        if len(run) > 1:
            per_step = (run["Time"][-1] - run["Time"][0]) / (run["Step"][-1] - run["Step"][0])
            return last_time + float(per_step) * (step - last_step)
    return last_time + (first.timestep or 0.0) * (step - last_step)


def gaps(run: Run) -> str:
    """Which thermo rows of a run are not there, though they were due, in a clause; empty: none, or nobody knows.

    Example:
        >>> rows = np.array([[0.0], [10.0], [40.0]])
        >>> gaps(Run(("Step",), rows, True, every=10))
        'its log lacks the thermo rows between steps 10 and 40'
    """
    if not run.every or "Step" not in run:
        return ""
    steps = run["Step"]
    wide = np.flatnonzero(np.diff(steps) > run.every)
    if not wide.size:
        return ""
    first = int(wide[0])
    return f"its log lacks the thermo rows between steps {steps[first]:.0f} and {steps[first + 1]:.0f}"


def _torn(production: Run, step: int, ended_at: int | None) -> str:
    """What a log lacks of a run that came to its end at `step`, in a clause; empty: nothing."""
    if ended_at is None:
        return "its log does not come to the end of the run"
    if ended_at != step:
        return f"its log ends at step {ended_at}"
    return gaps(production)


def ends_of(folder: Path, logs: list[str]) -> dict[str, tuple[int, str]]:
    """The files that a longer run would go on from, as they are now: path in the directory -> bytes and SHA-256.

    Args:
        folder: Directory of the run.
        logs: Names of further logs that the script opens.

    Raises:
        AppFailed: `RestartGone`: an attempt that it was continued from is not there.
        OSError: One cannot be read.
    """
    return {name: ((folder / name).stat().st_size, sha256(folder / name)) for name in _needed(folder, logs)}


def other_end(folder: Path, logs: list[str], ends: Ends) -> str:
    """What a longer run would go on from that is not as it was when the run ended, in a clause; empty: nothing.

    Args:
        folder: The run's directory, or a copy of these files.
        logs: Names of further logs that the script opens.
        ends: As they were when the run ended; empty where its record is older than that.
    """
    if not ends:
        return ""
    try:
        found = list(_needed(folder, logs))
        for name in dict.fromkeys((*ends, *found)):
            if name not in ends:
                return f"{name} was not there when the run ended"
            path = folder / name
            if not path.is_file():
                return f"{name} is not there, or no file"
            size, digest = ends[name]
            now = path.stat().st_size
            if now != size:
                return f"{name} has {now} bytes, and had {size} when the run ended"
            other = sha256(path)
            if other != digest:
                return f"{name} has SHA-256 {other[:12]}, and had {str(digest)[:12]} when the run ended"
    except AppFailed as error:
        return error.message.rstrip(".")
    except OSError as error:
        return f"{error.filename} cannot be read: {error.strerror}"
    return ""


def taken_over(source: Path, workdir: Path, logs: list[str], ends: Ends | None = None) -> None:
    """Put what a run goes on from into its directory as `attempt-0/`: restart file of the end, and logs.

    By hard links where that is possible: nothing of a finished run is written again, and it may be removed later.
    Each attempt looks whether they are as they were when that run ended.

    Args:
        source: Directory of the finished run that is extended.
        workdir: The new run's own directory.
        logs: Names of further logs that the script opens.
        ends: As these files were when that run ended; None or empty where its record is older than that.

    Raises:
        AppFailed: `RestartGone`, `RestartChanged`.
    """
    target = workdir / "attempt-0"
    if target.is_dir():
        words = other_end(target, logs, ends or {})
        if words:
            raise changed(target, words)
        return
    if restart_step(source / END) is None:
        raise gone(source, f"it has no whole {END}")
    part = workdir / "attempt-0.part"
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir()
        for name in _needed(source, logs):
            _same(source / name, part / name)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise gone(source, str(error)) from None
    words = other_end(part, logs, ends or {})
    if words:
        shutil.rmtree(part, ignore_errors=True)
        raise changed(source, words)
    part.rename(target)


def gone(source: Path, why: str) -> AppFailed:
    """The failure of a run whose beginning is not there any more."""
    return AppFailed(
        f"the files of the run that it goes on from are gone or damaged ({source}: {why}).",
        kind="infrastructure",
        name="RestartGone",
        repair="run a replicate instead; the earlier result stays on record as it is",
    )


def changed(source: Path, why: str) -> AppFailed:
    """The failure of a run whose beginning is another than when the run that it extends has ended."""
    return AppFailed(
        f"the files of the run that it goes on from are not those that it ended with ({source}: {why}).",
        kind="infrastructure",
        name="RestartChanged",
        repair="put the files back as they were, or run a replicate instead; the earlier result stays on record",
    )


def _needed(source: Path, logs: list[str]) -> Iterator[str]:
    """Paths in a run's directory: its restart file, its logs, those of what it was continued from and extends."""
    yield END
    base = at = source
    seen = {at}
    while True:
        for name in ("log.lammps", *logs, CONTINUED):
            if (at / name).is_file():
                yield (at / name).relative_to(source).as_posix()
        try:
            origin = _origin(at)
        except ValueError as error:
            raise gone(source, f"{CONTINUED}: {error}") from None
        if origin is None:
            return
        number, _ = origin
        at = base / f"attempt-{number}"
        if at in seen or not at.is_dir():
            raise gone(source, f"attempt-{number} is not there")
        seen.add(at)
        if number == 0:
            base = at


def _same(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # another file system, or one without hard links
        shutil.copyfile(source, target)


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
    whole = _stacked(source.production, leg, source.step)
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
    whole = _timed(whole, source.production, leg, source.step, finished=source.attempt == 0)
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


def _timed(whole: Run, first: Run, leg: Run, step: int, *, finished: bool) -> Run:
    """The joined run with its length, and the times and counts of both parts where the first one has its own.

    Where it was killed (not `finished`) those of the last part are scaled to the whole.
    """
    last = leg.steps or 1
    steps = step - int(first["Step"][0]) + last
    scale = steps / last

    def of_both(before: float | None, then: float | None) -> float | None:
        if then is None:
            return None
        return before + then if finished and before is not None else then * scale

    builds = of_both(first.neighbor_builds, leg.neighbor_builds)
    dangerous = of_both(first.dangerous_builds, leg.dangerous_builds)
    return replace(
        whole,
        steps=steps,
        loop_time_s=of_both(first.loop_time_s, leg.loop_time_s),
        neighbor_builds=None if builds is None else round(builds),
        dangerous_builds=None if dangerous is None else round(dangerous),
        performance={} if finished else leg.performance,  # LAMMPS's own line is of the last part
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
