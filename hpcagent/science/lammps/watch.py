"""A LAMMPS run is followed by its log while it goes on, and ended early where its campaign's guard says so.

What it gives so far is what `measure` makes of the rows there are, as of a finished run. The speed so far is that
between the newest rows of two looks. Which run of the script is measured, and how it can be stopped, is read from
the script (`hpcagent.science.lammps.halting`).
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hpcagent.apps.cpu_use import CpuUse
from hpcagent.apps.guard import Sofar, blown_up
from hpcagent.apps.run import Run, note
from hpcagent.apps.watching import Watching
from hpcagent.errors import AppFailed, BadInput
from hpcagent.science.lammps.failures import Ended, failure_of
from hpcagent.science.lammps.growing import Growing, as_log, asked_of
from hpcagent.science.lammps.halting import ended_by_us, ends_by_itself, watchable
from hpcagent.science.lammps.legs import legs
from hpcagent.science.lammps.log import parse_log
from hpcagent.science.lammps.log_records import Log
from hpcagent.science.lammps.log_records import Run as Leg
from hpcagent.science.lammps.metric_table import METRICS
from hpcagent.science.lammps.metrics import measure
from hpcagent.science.lammps.production import discarded_share
from hpcagent.science.lammps.reduced import reduced
from hpcagent.science.lammps.restart import Earlier
from hpcagent.science.lammps.restart_rows import stacked
from hpcagent.units import STYLES, unit_style

__all__ = ["LammpsWatch", "beyond_sense", "watch_of"]

_FEWEST_ROWS = 4
_CORE = ("Temp", "PotEng", "KinEng", "TotEng", "Press")
# Far beyond any matter of atoms; and far above what the run began with, for plasmas begin hot.
_HOTTEST_K = 1e6
_HOTTEST_REDUCED = 1e4
_RUNAWAY = 100.0
_GOOD_PART = 0.2


def watch_of(run: Run, source: Earlier | None, folder: Path) -> LammpsWatch | None:
    """What watches this run, in the folder where LAMMPS works; None where no guard wants it watched."""
    return None if run.guard is None else LammpsWatch(run, run.guard, source, folder)


class LammpsWatch:
    """Watches one run of LAMMPS.

    Args:
        run: The run.
        guard: Its guard.
        source: What it goes on from, or None.
        folder: Where LAMMPS works: the run's directory, or that of its sandbox, of whose files none is trusted.

    Attributes:
        script: The script as it is to be run.
        thread: Looks at the run while it is open.
    """

    def __init__(self, run: Run, guard: Mapping[str, Any], source: Earlier | None, folder: Path) -> None:
        ranks = int(run.resources.get("nodes", 1)) * int(run.resources.get("ranks_per_node", 1))
        settings = run.settings
        paths = [Path(path).parent for name, path in settings["paths"].items() if "/" not in name]
        self._how = watchable(
            settings["script"],
            production=settings["production"],
            ranks=ranks,
            folder=paths[0] if paths else None,
        )
        self.script = self._how.text
        self._settings, self._source, self._folder = settings, source, folder
        self._growing = Growing(folder, settings["logs"])
        self._paces: list[tuple[float, float]] = []  # time at which the newest row was written, its step
        self._cpu = CpuUse(folder)
        self._threads = int(run.resources.get("threads_per_rank", 1))
        self._began = time.monotonic()
        self._found = False  # the file that ends the run, when it had ended
        self.thread = Watching(guard, self.look, ask=self._ask, obeys=self._growing_closed)
        if not self._how.known:
            note(
                f"guard: {self._how.why}, so that only what has blown up is stopped; what the run gives so far "
                "is not known"
            )

    # -- while it goes on

    def look(self) -> Sofar | None:
        """What the run gives so far; None where nothing has come since the last look, or too little."""
        growing = self._growing
        if not growing.read():
            return None
        current = growing.current()
        production = growing.production()
        if current is None or current.kind in ("minimize", "rerun"):
            return None
        wall = time.monotonic() - self._began
        conserved = bool(self._settings["conserved_energy"]) and production is not None
        bad = beyond_sense(current, conserved=conserved, limit=self._settings["nonsense_above"])
        done = None if production is None else self._done(production)
        self._note_pace()
        if bad or production is None or done is None or growing.full or len(production) < _FEWEST_ROWS:
            return Sofar(share=done.share if done else 0.0, blown_up=bad, wall_s=wall) if bad else None
        metrics, uncertainty = self._measured(as_log(growing.before, self._whole(production, done)))
        return Sofar(share=done.share, metrics=metrics, uncertainty=uncertainty, wall_s=wall)

    def _measured(self, log: Log) -> tuple[dict[str, float], dict[str, float]]:
        settings = self._settings
        measured = measure(log, discard=settings["discard"])
        metrics, uncertainty = dict(measured.values), dict(measured.uncertainty)
        share = discarded_share(log, settings["discard"])
        for name, how in settings["columns"].items():
            with contextlib.suppress(BadInput):  # the end says that
                value, error = reduced(log.runs[-1], how["column"], how["reduce"], share)
                if math.isfinite(value):
                    metrics[name] = value
                    if math.isfinite(error):
                        uncertainty[name] = error
        self._undisturbed(metrics)
        return metrics, uncertainty

    def _undisturbed(self, metrics: dict[str, float]) -> None:
        """Speeds as the campaign compares them: where a run lacks its cores, those by CPU time, or none at all."""
        use, least = metrics.get("cpu_use_percent"), self._settings["min_cpu_use_percent"]
        for twin in [name for name in METRICS if name.endswith("_cpu")]:
            speed = twin.removesuffix("_cpu")
            if speed in metrics and least is not None and (use is None or use < least):
                value = metrics.pop(speed)
                if use is not None:
                    metrics[speed] = metrics.get(twin, value)

    def _done(self, production: Leg) -> _Done | None:
        """How far the production run is, its earlier attempts included."""
        asked = self._growing.length
        if asked is None or "Step" not in production:
            return None
        here = int(production["Step"][0])
        first = here if self._source is None else self._source.first_step
        length = asked - first if self._growing.upto else asked + here - first
        last = int(production["Step"][-1])
        return _Done(first, last, length) if length > 0 else None

    def _whole(self, production: Leg, done: _Done) -> Leg:
        """The run so far, its rows of earlier attempts included, as if it had been asked to be so long."""
        leg = production
        if self._source is not None:
            leg = stacked(self._source.production, production, self._source.step) or production
        steps = done.last - done.first
        pace = self._pace()
        return replace(
            leg,
            complete=True,
            steps=steps,
            loop_time_s=steps / pace if pace else None,
            cpu_use_percent=self._cpu.percent(),
            threads=self._threads,
            n_atoms=leg.n_atoms if leg.n_atoms is not None else _atoms(leg),
        )

    def _note_pace(self, *, cpu: bool = True) -> None:
        production = self._growing.production()
        if production is not None and "Step" in production:
            self._paces.append((self._growing.written_at(), float(production["Step"][-1])))
            if cpu:  # once it has ended its processes are gone
                self._cpu.look()

    def _pace(self) -> float | None:
        """Steps in a second, between the first look and the last; None before there are two."""
        if len(self._paces) < 2:
            return None
        (begin, first), (end, last) = self._paces[0], self._paces[-1]
        return (last - first) / (end - begin) if end > begin and last > first else None

    def _ask(self) -> bool:
        if not self._how.halts or self._growing.production() is None:
            return False
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with contextlib.suppress(OSError):  # a link or a pipe in its place is there, which ends the run as well
            os.close(os.open(self._folder / self._how.stop_file, flags, 0o644))
        return True

    def _growing_closed(self) -> bool:
        self._growing.read()
        return self._growing.closed()

    # -- when it has ended

    def settle(self, ended: Ended) -> tuple[Log, dict[str, Any]] | None:
        """The log of a run that was stopped, as of a finished one, and what an `Outcome` says of the stop.

        Args:
            ended: How LAMMPS ended.

        Returns:
            None where the guard has not stopped it: also where it came to its end while it was being stopped.

        Raises:
            AppFailed: `BlownUp`; or what it failed of while it was being stopped.
        """
        verdict = self.thread.verdict
        self._put_away()
        if verdict is None:
            return None
        if self._growing.read():
            self._note_pace(cpu=False)
        share, by = self.thread.share, self.thread.by
        if by == "" or (failure_of(ended) is None and self._to_its_end(parse_log(ended.log))):
            if by == "":
                note(f"guard: {verdict.sentence.rstrip('.')}; but the run could not be stopped: {self._how.why}")
            return None
        if verdict.reason == "blown_up":
            raise blown_up(verdict, share, log_tail=ended.log[-2000:])
        if by == "signal" and ended.stopped is None and ended.returncode != 0:
            log, said = self._cut_off(ended), f"stopped by a signal: {self._how.why or 'it did not end by itself'}"
        else:
            failure = failure_of(ended)
            if failure is not None:
                raise failure
            log, said = (
                parse_log(ended.log),
                "stopped by a check file" if by == "asked" else "stopped by its timer",
            )
        production = self._growing.production()
        done = None if production is None else self._done(production)
        pace = self._pace()
        stopped = verdict.stopped(share if done is None else done.share)
        if done is not None and pace:
            stopped["rest_s"] = (done.length - (done.last - done.first)) / pace
        note(f"guard: {said}; the metrics are of the part that was done")
        return log, {"bounds": dict(verdict.bounds), "stopped": stopped}

    def _put_away(self) -> None:
        """Take the file away that ends the run: else a run by hand would end at once."""
        if self._how.stop_file:
            path = self._folder / self._how.stop_file
            self._found = os.path.lexists(path)
            with contextlib.suppress(OSError):  # a folder, which is not ours
                path.unlink(missing_ok=True)

    def check_whole(self, log: Log, ended: Ended) -> None:
        """Refuse a run that counts as whole and has ended before its last step: somebody else has stopped it.

        One that its own script may end early (`fix halt`, `timer timeout`) is as long as it is.

        Args:
            log: Of the run, which the guard has not stopped.
            ended: How LAMMPS ended.

        Raises:
            AppFailed: `CutShort`.
        """
        if not self._how.halts:
            return
        whole = legs([run for run in log.runs if run.complete and run.steps])
        asked, leg = asked_of(ended.log), whole[-1] if whole else None
        last = first = None
        if leg is not None and "Step" in leg and len(leg):
            first, last = int(leg["Step"][0]), int(leg["Step"][-1])
            last = max(last, first + (leg.steps or 0))  # one that is ended does not always print its last row
        end = None if asked is None or first is None else asked[0] + (0 if asked[1] else first)
        short = end is not None and last is not None and last < end
        if short or end is None:
            ours = ended_by_us(ended.log) or self._found
            if not ours and (end is None or ends_by_itself(self.script) or ends_by_itself(ended.log)):
                return
            why = "the file that ends it was made by somebody else" if ours else "it is not known why"
            made = "" if last is None else f" at step {last}" + ("" if end is None else f" of {end}")
            raise AppFailed(
                f"the run ended{made}, although its guard has not stopped it: {why}.",
                kind="infrastructure",
                name="CutShort",
                log_tail=ended.log[-2000:],
                repair="look who writes into the directories of runs; it is started again",
            )

    def _to_its_end(self, log: Log) -> bool:
        """Whether the production run made all the steps that it was asked for."""
        production = self._growing.production()
        done = None if production is None else self._done(production)
        whole = legs([run for run in log.runs if run.complete and run.steps])
        return bool(
            done is not None
            and whole
            and "Step" in whole[-1]
            and whole[-1]["Step"][-1] >= done.first + done.length
        )

    def _cut_off(self, ended: Ended) -> Log:
        """The log of a run that was ended by a signal: its last run counts as far as it got."""
        log = parse_log(ended.log)
        production = self._growing.production()
        done = None if production is None else self._done(production)
        if production is None or done is None:
            return log
        last = log.runs[-1]
        steps = int(last["Step"][-1] - last["Step"][0]) if "Step" in last and len(last) else 0
        pace = self._pace()
        cut = replace(
            last,
            complete=True,
            steps=steps,
            loop_time_s=steps / pace if pace else None,
            cpu_use_percent=self._cpu.percent(),
            threads=self._threads,
            n_atoms=_atoms(last),
        )
        return replace(log, runs=(*log.runs[:-1], cut), finished=True)


@dataclass(frozen=True, slots=True)
class _Done:
    """How far a run is: the steps it began at and has come to, and its length in steps."""

    first: int
    last: int
    length: int

    @property
    def share(self) -> float:
        return min(1.0, max(0.0, (self.last - self.first) / self.length))


def _atoms(leg: Leg) -> int | None:
    if "Atoms" in leg and len(leg) and np.isfinite(leg["Atoms"][-1]):
        return int(leg["Atoms"][-1])
    return leg.n_atoms_start


def beyond_sense(leg: Leg, *, conserved: bool, limit: float) -> str:
    """What of a run's rows no sound run has, in words; empty: nothing.

    Args:
        leg: The run, as far as it is there.
        conserved: Whether the contract says that it conserves its energy.
        limit: `nonsense_above` of the contract: how much the total energy may fluctuate, against the kinetic one.

    Example:
        >>> log = parse_log("units metal\\nrun 9\\nStep Temp TotEng \\n0 80 -50 \\n1 nan -50 \\n")
        >>> beyond_sense(log.runs[0], conserved=True, limit=0.5)
        'Temp is nan at step 1'
    """
    if not len(leg):
        return ""
    for name in _CORE:
        if name in leg:
            bad = np.flatnonzero(~np.isfinite(leg[name]))
            if bad.size:
                return f"{name} is {leg[name][bad[0]]:g}{_at(leg, int(bad[0]))}"
    return _runaway(leg) or (_energy_lost(leg, limit) if conserved else "")


def _runaway(leg: Leg) -> str:
    """A temperature that no matter of atoms has, and that it did not begin with."""
    if "Temp" not in leg or leg.units not in STYLES or len(leg) < 2:
        return ""
    temperature = leg["Temp"]
    hottest = _HOTTEST_REDUCED if unit_style(leg.units).reduced else _HOTTEST_K
    if temperature[-1] <= hottest or temperature[-1] <= _RUNAWAY * max(abs(temperature[0]), 1e-300):
        return ""
    return f"the temperature has run away, from {temperature[0]:.4g} to {temperature[-1]:.4g}{_at(leg, -1)}"


def _energy_lost(leg: Leg, limit: float) -> str:
    """A total energy that is to be conserved and has gone elsewhere.

    What the contract refuses at the end (`nonsense_above`) is a fluctuation over the run. Of a part that may be a
    matter of its few rows, so more is asked for here: the energy must have changed since the first row, too, by a
    good part of the kinetic energy; by more of it in systems so small that this fluctuates by as much.
    """
    if len(leg) < _FEWEST_ROWS or "TotEng" not in leg or "KinEng" not in leg:
        return ""
    kinetic, total = leg["KinEng"], leg["TotEng"]
    typical, scatter = float(np.median(kinetic)), float(kinetic.std())
    change = float(abs(total[-1] - total[0]))
    if typical <= 0 or change <= 2 * limit * max(_GOOD_PART * typical, scatter) or total.std() <= limit * scatter:
        return ""
    return (
        f"the total energy, which the contract says is conserved, has changed by {change / typical:.2g} of the "
        f"kinetic energy{_at(leg, -1)}"
    )


def _at(leg: Leg, row: int) -> str:
    return f" at step {leg['Step'][row]:.0f}" if "Step" in leg else f" in row {row % len(leg) + 1}"
