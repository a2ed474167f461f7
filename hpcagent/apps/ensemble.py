"""Many runs in one MPI launch, on a worker: its ranks are split into slots that take run after run.

What has ended is a line of `answers.jsonl` at once, for the coordinator, which reads it as it grows; what it wants
done beside stands in `more.jsonl`.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hpcagent.apps.launch import Launch, Limit, planned
from hpcagent.apps.modes import LAMMPS
from hpcagent.apps.ranks.group import Group, words_of
from hpcagent.apps.run import Run
from hpcagent.apps.worker import broken_off, execute
from hpcagent.errors import AppFailed
from hpcagent.lifeline import FORKS

__all__ = ["ANSWERS", "MORE", "execute_ensemble"]

ANSWERS = "answers.jsonl"
MORE = "more.jsonl"
_LOOK_S = 0.25
MOST_AGAIN = 2
"""So often is a run begun anew that was ended with its launch, by a rank of another run."""
_MOST_STARTS = 3
_TOGETHER_S = 2.0
_FATAL = {"Segmentation fault": 11, "Aborted": 6, "Floating": 8, "Bus error": 7, "Illegal instruction": 4}


@dataclass
class _Flight:
    """A run in a slot."""

    order: Mapping[str, Any]
    limit: Limit
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
        AppFailed: The launch could not be started.
    """
    return _Ensemble(request).all()


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
        self._blamed = False  # whether a run has taken a rank of this launch with it
        self._group: Group | None = None
        self._answers = -1

    def all(self) -> list[tuple[str, dict[str, Any]]]:
        if self._waiting and self._waiting[0]["function"] == LAMMPS:
            _refuse_other_lammps(self._run)
        self._folder.mkdir(0o775, parents=True, exist_ok=True)
        self._answers = os.open(
            self._folder / ANSWERS, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o664
        )
        try:
            while self._more() or self._waiting or self._flying:
                if not self._flying and not self._time_left():
                    break
                self._step()
        finally:
            if self._group is not None:
                self._group.close(at_once=True)
            os.close(self._answers)
        return self._ended

    def _step(self) -> None:
        if self._group is None:
            self._group = Group(_tolerant(planned(
                self._run, words_of(self._ranks), app="lammps", env={"PYTHONFAULTHANDLER": "1"}
            )), slots=self._slots, ranks=self._ranks)  # fmt: skip
            self._starts += 1
            self._blamed = False
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
        lost = []
        for event in group.wait(self._until()):
            if event.what == "answer" and event.answer is not None:
                self._starts = 0
                self._answered(group, event.slot, event.answer)
            elif event.what == "lost":
                lost.append((event.slot, event.aborted, (event.answer or {}).get("size")))
        if lost:
            self._lost(group, lost)
        self._stop_late(group)

    def _until(self) -> float:
        left = [f.limit.seconds - f.wall_s for f in self._flying.values()]
        return max(0.0, min([_LOOK_S, *left]))

    def _give(self, group: Group) -> None:
        for slot in group.ready:
            if slot in self._flying or not self._waiting or not self._time_left():
                continue
            order = self._waiting.pop(0)
            flight = _Flight(order, Limit.of(_run_of(order)))
            self._begun = True
            self._write({"begun": _id(order)})
            flight.key = group.send(slot, {"what": "call", "function": execute, "args": [order]}, pickled=True)
            self._flying[slot] = flight

    def _time_left(self) -> bool:
        """Whether the block has time for the next run, as far as that is known."""
        ends = os.environ.get("HPCAGENT_BLOCK_ENDS")
        if not ends or not self._waiting:
            return True
        wanted = _expected(self._waiting[0]) if self._begun else 0.0
        return float(ends) - time.time() > wanted

    def _answered(self, group: Group, slot: int, answer: Mapping[str, Any]) -> None:
        flight = self._flying.get(slot)
        if flight is None or answer.get("key") != flight.key:
            return
        del self._flying[slot]
        if "value" in answer:
            self._end(flight, dict(answer["value"]))
            return
        failure = AppFailed(
            f"its rank process could not run it: {answer.get('error')}",
            kind="infrastructure",
            name="LaunchFailed",
            log_tail=str(answer.get("traceback") or ""),
        )
        self._end(flight, broken_off(flight.order, flight.wall_s, _plain(failure)))

    def _lost(self, group: Group, lost: list[tuple[int, bool, Any]]) -> None:
        """Runs whose slot has lost a rank: the first is to blame; others that went with the launch begin anew."""
        # By a signal a rank of several takes the launch along, a moment later.
        until = time.monotonic() + _TOGETHER_S
        while self._ranks > 1 and time.monotonic() < until and (group.ready or group.waiting):
            for event in group.wait(0.2):
                if event.what == "answer" and event.answer is not None:
                    self._answered(group, event.slot, event.answer)
                elif event.what == "lost":
                    lost.append((event.slot, event.aborted, None))
        whole = not group.ready and not group.waiting
        if all(slot not in self._flying for slot, _, _ in lost):
            self._idle_lost(group, lost)
        gone = [(slot, aborted) for slot, aborted, _ in lost if slot in self._flying]
        # What shows why it has ended is to blame before what does not.
        for slot, aborted in sorted(gone, key=lambda one: not (one[1] or _signal_of(self._flying[one[0]].order))):
            flight = self._flying.pop(slot)
            again = self._again.get(_id(flight.order), 0)
            own = aborted or _signal_of(flight.order)
            if self._blamed and not own and again < MOST_AGAIN:
                self._again[_id(flight.order)] = again + 1
                self._waiting.insert(0, flight.order)
                continue
            self._blamed = True
            self._end(flight, broken_off(flight.order, flight.wall_s, _plain(_crash(flight, group, aborted))))
        if whole:
            group.close(at_once=True)
            self._group = None

    def _idle_lost(self, group: Group, lost: list[tuple[int, bool, Any]]) -> None:
        if self._starts < _MOST_STARTS:
            return
        sizes = {size for _, _, size in lost if size is not None}
        said = group.printed().strip()[-2000:]
        raise AppFailed(
            f"the launch of {self._slots} x {self._ranks} rank(s) has not come up {self._starts} times"
            + (f" (its ranks see {min(sizes)} of each other)" if sizes else "")
            + (f": {said.splitlines()[-1]}" if said else "."),
            kind="infrastructure",
            name="LaunchFailed",
            log_tail=said,
            repair="in the site profile, the launcher of the MPI that mpi4py is built for ([apps.lammps])",
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
        """Take what the coordinator has added; True, so that it stands first in a condition without ending it."""
        path = self._folder / MORE
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_size > self._read:
                with path.open("rb") as file:
                    file.seek(self._read)
                    text = file.read()
                whole = text[: text.rfind(b"\n") + 1]
                self._read += len(whole)
                for line in whole.splitlines():
                    said = json.loads(line)
                    if said.get("drop"):
                        self._waiting.clear()
                    else:
                        self._waiting.append(said["order"])
                self._waiting.sort(key=_expected, reverse=True)
        return False

    def _end(self, flight: _Flight, answer: dict[str, Any]) -> None:
        name = _id(flight.order)
        if self._again.get(name):
            said = f"begun anew {self._again[name]} time(s): a rank of another run had ended the whole launch"
            answer["notes"] = [*answer.get("notes", ()), said]
        self._ended.append((name, answer))
        self._write({"execution_id": name, "answer": answer})

    def _write(self, line: Mapping[str, Any]) -> None:
        os.write(self._answers, json.dumps(line).encode() + b"\n")


def _id(order: Mapping[str, Any]) -> str:
    return str(order["manifest"]["execution_id"])


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
    from hpcagent.apps.lammps.mode import not_here

    why = not_here(run)
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


def _signal_of(order: Mapping[str, Any]) -> int:
    """The signal that a run says it has crashed with; 0: it says nothing of that, as where it was killed."""
    printed = _text(Path(order["workdir"]) / "output.txt")
    return next((number for said, number in _FATAL.items() if f"Fatal Python error: {said}" in printed), 0)


def _crash(flight: _Flight, group: Group, aborted: bool) -> AppFailed:
    """What a run whose rank is gone has failed with."""
    folder = Path(flight.order["workdir"])
    printed = _text(folder / "output.txt") or group.printed()
    number = _signal_of(flight.order) or 9
    if flight.order["function"] == LAMMPS:
        from hpcagent.apps.lammps.failures import Ended, failure_of

        ended = Ended(
            returncode=1 if aborted else -number,
            log=_text(folder / "log.lammps"),
            printed=printed,
            stopped=None,
            wall_s=flight.wall_s,
            launcher=None,
            goes_on=None,
        )
        found = failure_of(ended)
        assert found is not None
        return found
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


def _plain(error: AppFailed) -> dict[str, Any]:
    return {"message": error.message, **{k: error.details.get(k) for k in ("kind", "name", "log_tail", "repair")}}
