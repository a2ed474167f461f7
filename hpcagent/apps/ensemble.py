"""Many runs in one MPI launch, on a worker: its ranks are split into slots that take run after run.

What has ended is a line of `answers.jsonl` at once, for the coordinator, which reads it as it grows; what it wants
done beside stands in `more.jsonl`.
"""

from __future__ import annotations

import contextlib
import faulthandler
import math
import os
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from hpcagent.apps.ending import Limit
from hpcagent.apps.hooks import LAMMPS, lammps
from hpcagent.apps.launch import Launch, planned
from hpcagent.apps.lines import Lines, new_lines
from hpcagent.apps.ranks.group import Event, Group, refuse_without_mpi4py, words_of
from hpcagent.apps.run import Run
from hpcagent.apps.worker import broken_off, execute
from hpcagent.beside import as_told, told
from hpcagent.errors import AppFailed
from hpcagent.lifeline import FORKS

__all__ = ["ANSWERS", "MORE", "execute_ensemble"]

ANSWERS = "answers.jsonl"
MORE = "more.jsonl"
_LOOK_S = 0.25
MOST_AGAIN = 2
"""So often is a run begun anew that was ended with its launch, and not by itself as far as that is known."""
_MOST_STARTS = 3
_TOGETHER_S = 2.0
_FOLLOWING_S = 10.0
_FATAL = {"Segmentation fault": 11, "Aborted": 6, "Floating": 8, "Bus error": 7, "Illegal instruction": 4}


@dataclass
class _Flight:
    """A run in a slot."""

    order: Mapping[str, Any]
    limit: Limit
    crash: Path
    began: float = field(default_factory=time.monotonic)
    key: str = ""

    @property
    def wall_s(self) -> float:
        return time.monotonic() - self.began


def execute_ensemble(request: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Run orders in the slots of a launch until none is left; one that fails keeps none of the others.

    Args:
        request: `orders`, as for `execute`; `folder` of the ensemble; `resources` of the launch; `slots` and
            `ranks` of each; `site`.

    Returns:
        Execution id and answer of every run that has ended. A run that is missing has not begun: the time of the
        block did not suffice.

    Raises:
        AppFailed: The launch could not be started; `LaunchFailed`: there is an error in what drives it, which is
            no run's own; `NoEngine`: its ranks need mpi4py, which is not there.
        OSError, MemoryError: The machine's.
    """
    try:
        return _Ensemble(request).all()
    except (AppFailed, OSError, MemoryError):
        raise
    except Exception as error:
        raise AppFailed(
            f"the launch has ended by an error of what drives it, not of a run: {type(error).__name__}: {error}",
            kind="infrastructure",
            name="LaunchFailed",
            log_tail=traceback.format_exc()[-4000:],
        ) from None


class _Ensemble:
    def __init__(self, request: Mapping[str, Any]) -> None:
        self._folder = Path(request["folder"])
        self._slots, self._ranks = int(request["slots"]), int(request["ranks"])
        self._run = Run(workdir=self._folder, resources=request["resources"], site=request["site"])
        self._waiting = sorted(request["orders"], key=_expected, reverse=True)
        self._flying: dict[int, _Flight] = {}
        self._again: dict[str, int] = {}
        self._ended: list[tuple[str, dict[str, Any]]] = []
        self._begun = False
        self._read = 0
        self._starts = 0
        self._following = 0.0  # until then what is lost may have ended because of what was lost before
        self._group: Group | None = None
        self._answers: Lines
        self._app = "lammps"

    def all(self) -> list[tuple[str, dict[str, Any]]]:
        began = time.time()
        if self._waiting:
            self._app = _table(self._waiting[0])
        if self._app == "lammps":
            _refuse_other_lammps(self._run)
        self._folder.mkdir(0o775, parents=True, exist_ok=True)
        self._answers = Lines(self._folder / ANSWERS)
        self._write({"launch": {"began": began}})
        try:
            while self._more() or self._waiting or self._flying:
                if not self._flying and self._waiting and self._next() is None:
                    break
                self._step()
        finally:
            if self._group is not None:
                self._group.close(at_once=True)
            self._write({"launch": {"ended": time.time()}})
            self._answers.close()
        return self._ended

    def _step(self) -> None:
        if self._group is None:
            launch = planned(self._run, words_of(self._ranks), app=self._app, env={"PYTHONFAULTHANDLER": "1"})
            if launch.launcher is not None:
                refuse_without_mpi4py(f"the launch of {self._slots} x {self._ranks} rank(s)")
            self._group = Group(_tolerant(launch), slots=self._slots, ranks=self._ranks)
            self._starts += 1
            self._following = 0.0
        group = self._group
        there = len(group.ready) + len(group.waiting)
        # Slots that are gone come back with the next launch; the others end what they have begun first.
        worn = 4 * (self._slots - there) >= self._slots
        if worn and not self._flying:
            group.close(at_once=True)
            self._group = None
            return
        if not worn:
            self._give(group)
        late = group.late()
        if late is not None:
            self._write({"late": late})
        self._answers.flush()
        lost = self._heard(group, self._until())
        if lost:
            self._lost(group, lost)
        self._stop_late(group)

    def _heard(self, group: Group, timeout_s: float) -> list[Event]:
        """Take in answers, and give the slots that are lost: none before another, as far as that is seen."""
        lost = []
        for event in group.wait(timeout_s):
            if event.what == "answer" and event.answer is not None:
                self._starts = 0
                self._answered(group, event.slot, event.answer)
            elif event.what == "lost":
                lost.append(event)
        return lost

    def _until(self) -> float:
        left = [f.limit.seconds - f.wall_s for f in self._flying.values()]
        return max(0.0, min([_LOOK_S, *left]))

    def _give(self, group: Group) -> None:
        for slot in group.ready:
            place = self._next()
            if slot in self._flying or place is None:
                continue
            order = self._waiting.pop(place)
            flight = _Flight(order, Limit.of(_run_of(order)), self._folder / f"crash-{slot}.txt")
            self._begun = True
            self._write({"begun": _id(order)})
            request = {"what": "call", "function": _executed, "args": [order, sys.path, told(), str(flight.crash)]}
            flight.key = group.send(slot, request, pickled=True)
            self._flying[slot] = flight

    def _next(self) -> int | None:
        """Position of the longest run that the block has time for, as far as that is known; None: none."""
        ends = os.environ.get("HPCAGENT_BLOCK_ENDS")
        left_s = float(ends) - time.time() if ends else math.inf
        wanted = (_expected(order) if self._begun else 0.0 for order in self._waiting)
        return next((i for i, seconds in enumerate(wanted) if left_s > seconds), None)

    def _answered(self, group: Group, slot: int, answer: Mapping[str, Any]) -> None:
        flight = self._flying.get(slot)
        if flight is None or answer.get("key") != flight.key:
            return
        del self._flying[slot]
        if answer.get("left"):
            group.end(slot)  # the next run would find it; the slot comes back with the next launch
        if isinstance(answer.get("value"), dict):
            self._end(flight, dict(answer["value"]))
            return
        failure = AppFailed(
            f"its rank process could not run it: {answer.get('error', 'what it answers is no result')}",
            kind="infrastructure",
            name="LaunchFailed",
            log_tail=str(answer.get("traceback") or ""),
        )
        self._end(flight, broken_off(flight.order, flight.wall_s, _plain(failure)))

    def _lost(self, group: Group, first: list[Event]) -> None:
        """Slots that have lost a rank: who is to blame has failed; others that went with the launch begin anew."""
        together = list(first)
        # By a signal a rank of several takes the launch along, a moment later; so does a launcher that is killed.
        until = time.monotonic() + (_TOGETHER_S if self._ranks > 1 else _TOGETHER_S / 4)
        said = all(event.slot in self._flying and self._own(event) for event in first)
        while (self._ranks > 1 or not said) and time.monotonic() < until and (group.ready or group.waiting):
            together += self._heard(group, 0.2)
        whole = not group.ready and not group.waiting
        if all(event.slot not in self._flying for event in together):
            self._idle_lost(group, together)
        events = {event.slot: event for event in together if event.slot in self._flying}
        blamed = self._to_blame(group, first, list(events.values()), whole=whole)
        for slot, event in events.items():
            flight = self._flying.pop(slot)
            again = self._again.get(_id(flight.order), 0)
            if slot not in blamed and again < MOST_AGAIN:
                self._again[_id(flight.order)] = again + 1
                self._waiting.insert(0, flight.order)
                continue
            failure = _crash(flight, group, event) if slot in blamed else _with_the_launch(flight, group)
            answer = broken_off(flight.order, flight.wall_s, _plain(failure))
            self._end(flight, _with_no_repair_said(flight.order, answer))
        self._following = time.monotonic() + _FOLLOWING_S
        if whole:
            group.close(at_once=True)
            self._group = None

    def _to_blame(self, group: Group, first: list[Event], lost: list[Event], *, whole: bool) -> set[int]:
        """Slots, of those with a run, that have ended by their own doing; none where nobody can say which.

        Args:
            first: What was lost first, also of slots with nothing to do: one that ends another does so before it.
            lost: All that was lost and had a run.
            whole: Whether the launch is gone.
        """
        own = {one.slot for one in lost if self._own(one)}
        if not whole and self._ranks == 1:
            return {one.slot for one in lost}
        if own or time.monotonic() < self._following:
            return own
        if not whole:
            return {one.slot for one in lost}
        code = group.exit_code(grace_s=1.0)
        at_first = {one.slot for one in first if one.slot >= 0}
        if len(at_first) != 1 or (code is not None and code < 0):  # the launcher itself was killed
            return set()
        return at_first & {one.slot for one in lost}

    def _own(self, event: Event) -> bool:
        """Whether the run in that slot says itself why it has ended."""
        return event.aborted or _signal_of(self._flying[event.slot]) > 0

    def _idle_lost(self, group: Group, lost: list[Event]) -> None:
        if self._starts < _MOST_STARTS:
            return
        sizes = {event.answer["size"] for event in lost if event.answer and event.answer.get("size") is not None}
        said = group.printed().strip()[-2000:]
        raise AppFailed(
            f"the launch of {self._slots} x {self._ranks} rank(s) has not come up {self._starts} times"
            + (f" (its ranks see {min(sizes)} of each other)" if sizes else "")
            + (f": {said.splitlines()[-1]}" if said else "."),
            kind="infrastructure",
            name="LaunchFailed",
            log_tail=said,
            repair=f"in the site profile, the launcher of the MPI that mpi4py is built for ([apps.{self._app}])",
        )

    def _stop_late(self, group: Group) -> None:
        for slot, flight in list(self._flying.items()):
            if flight.wall_s < flight.limit.seconds:
                continue
            del self._flying[slot]
            group.end(slot)
            failure = flight.limit.failure(wall_s=flight.wall_s, log_tail=_tail(flight.order))
            self._end(flight, broken_off(flight.order, flight.wall_s, _plain(failure)))

    def _more(self) -> bool:
        """Take what the coordinator has added. Returns False: it stands first in the condition of a loop."""
        said: list[dict[str, Any]] = []
        # A look that fails is made up for by the next; runs of a line that is damaged, or no order, are sent again
        # by who has sent them.
        with contextlib.suppress(OSError):
            said, self._read = new_lines(self._folder / MORE, self._read)
        for line in said:
            if line.get("drop"):
                self._drop()
            elif _is_order(line.get("order")):
                self._waiting.append(line["order"])
        if said:
            self._waiting.sort(key=_expected, reverse=True)
        return False

    def _drop(self) -> None:
        """End all that goes on, and begin nothing more: nobody wants the answers."""
        self._waiting.clear()
        for slot in self._flying:
            if self._group is not None:
                self._group.end(slot)
        self._flying.clear()

    def _end(self, flight: _Flight, answer: dict[str, Any]) -> None:
        name = _id(flight.order)
        if self._again.get(name):
            said = f"begun anew {self._again[name]} time(s): the whole launch had ended, not by this run"
            answer["notes"] = [*answer.get("notes", ()), said]
        self._ended.append((name, answer))
        self._write({"execution_id": name, "answer": answer})

    def _write(self, line: Mapping[str, Any]) -> None:
        self._answers.add(line)  # what has to wait for room comes later, or with the answer of all


def _executed(order: Mapping[str, Any], path: Sequence[str], modules: Sequence[str], crash: str) -> dict[str, Any]:
    """Run an order in a rank process, which finds the modules that the worker finds.

    What prints nothing of its own says in the file `crash` by which signal it has crashed: one for each slot,
    emptied when the next run begins.
    """
    if order["function"] != LAMMPS:
        file = _crash_file(crash)
        os.ftruncate(file, 0)
        faulthandler.enable(file)
    sys.path += [entry for entry in path if entry not in sys.path]
    as_told(modules)
    return execute(order)


@lru_cache(maxsize=1)  # a rank process is of one slot
def _crash_file(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o664)


def _table(order: Mapping[str, Any]) -> str:
    """Name of the table `[apps.NAME]` of the site profile that has a say in the launch."""
    return "lammps" if order["function"] == LAMMPS else str(order["manifest"]["app"])


def _id(order: Mapping[str, Any]) -> str:
    return str(order["manifest"]["execution_id"])


def _is_order(said: Any) -> bool:
    """Whether a line has all that is asked here of an order; what else it says is the matter of its run."""
    try:
        return bool(
            isinstance(said["function"], str)
            and isinstance(said["settings"], dict)
            and isinstance(said["manifest"]["execution_id"], str)
            and math.isfinite(_expected(said))
            and _table(said)
            and _run_of(said)
            and Limit.of(_run_of(said)).seconds is not None
        )
    except Exception:  # whatever is wrong with it
        return False


def _expected(order: Mapping[str, Any]) -> float:
    return float(order["manifest"].get("estimated_runtime_s") or 0.0)


def _run_of(order: Mapping[str, Any]) -> Run:
    return Run(workdir=Path(order["workdir"]), resources=order["manifest"]["resources"], site=order["site"])


def _tolerant(launch: Launch) -> Launch:
    """The launch with ranks that may end without taking the others along, where its launcher can do that."""
    words: Sequence[str] = launch.words
    if launch.launcher == "hydra":
        words = [words[0], "-disable-auto-cleanup", *words[1:]]
    elif launch.launcher == "srun":
        words = ["--kill-on-bad-exit=0" if word == "--kill-on-bad-exit=1" else word for word in words]
    return replace(launch, words=list(words))


def _refuse_other_lammps(run: Run) -> None:
    why = lammps().not_here(run)
    if why is not None:
        raise AppFailed(
            f'LAMMPS cannot be used as a library in an ensemble: {why}. Take mode = "executable".',
            kind="infrastructure",
            name="NoExecutable",
        )


def _text(path: Path, most: int = 1 << 20) -> str:
    with contextlib.suppress(OSError), FORKS, path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - most))
        return file.read().decode(errors="replace")
    return ""


def _tail(order: Mapping[str, Any]) -> str:
    folder = Path(order["workdir"])
    return (_text(folder / "log.lammps", 3000) or _text(folder / "output.txt", 3000))[-2000:]


def _signal_of(flight: _Flight) -> int:
    """The signal that a run says it has crashed with; 0: it says nothing of that, as where it was killed."""
    printed = _said_by(flight)
    return next((number for said, number in _FATAL.items() if f"Fatal Python error: {said}" in printed), 0)


def _said_by(flight: _Flight) -> str:
    """What a run has printed, or its process while it crashed."""
    return _text(Path(flight.order["workdir"]) / "output.txt") + _text(flight.crash)


def _with_the_launch(flight: _Flight, group: Group) -> AppFailed:
    """What a run has failed with that was ended with its launch again and again, by nobody knows what."""
    return AppFailed(
        f"its launch has ended {MOST_AGAIN + 1} times while it ran, and not by this run as far as that is known.",
        kind="infrastructure",
        name="LaunchLost",
        log_tail=group.printed()[-2000:],
    )


def _crash(flight: _Flight, group: Group, event: Event) -> AppFailed:
    """What a run whose rank is gone has failed with."""
    if event.answer:
        from hpcagent.apps.over_ranks import failure_of_a_rank

        with contextlib.suppress(Exception):  # no failure of a rank: then it is one that has gone without a word
            return failure_of_a_rank(event.answer, _text(Path(flight.order["workdir"]) / "output.txt", 4000))
    printed = _said_by(flight) or group.printed()
    number = _signal_of(flight) or 9
    if flight.order["function"] == LAMMPS:
        code = 1 if event.aborted else -number
        return lammps().crashed(Path(flight.order["workdir"]), printed, code, flight.wall_s)
    if number == 9:
        return AppFailed(
            "a rank process of the run was ended from outside, or has ended itself.",
            kind="infrastructure",
            name="Killed",
            log_tail=printed[-2000:],
        )
    return AppFailed(
        f"the function crashed with signal {number}.",
        kind="simulation",
        name="FunctionCrashed",
        log_tail=printed[-2000:],
    )


def _with_no_repair_said(order: Mapping[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    """An answer with a note, where the campaign knows a repair for its failure."""
    name = (answer.get("failure") or {}).get("name")
    if name not in ((order["settings"].get("repairs") or {}).get("rules") or ()):
        return answer
    said = f"not repaired: {name} has ended the rank process that would have tried it again"
    return {**answer, "notes": [*answer.get("notes", ()), said]}


def _plain(error: AppFailed) -> dict[str, Any]:
    return {"message": error.message, **{k: error.details.get(k) for k in ("kind", "name", "log_tail", "repair")}}
