"""Points of one's own, for a campaign to run next: in its record, or in the folder while it runs."""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hpcagent.campaign.own_points import own_point
from hpcagent.errors import BadInput
from hpcagent.model.base import open_regular
from hpcagent.model.parameter import Parameter, Params
from hpcagent.model.space import Space
from hpcagent.statistics.points import Key, key
from hpcagent.store.files import open_plain, refusing_clearly
from hpcagent.store.rundir import RunDir, holder
from hpcagent.units import convert

if TYPE_CHECKING:
    from hpcagent.campaign.record import Campaign
    from hpcagent.campaign.state import State

__all__ = ["INBOX", "Enqueued", "Queue", "enqueue", "point_in"]

INBOX = "enqueued.jsonl"
"""Points that somebody has added to a folder, one JSON object a line; only ever added to."""

LOOK_EVERY_S = 30.0
"""So often is it looked at between two batches."""


@dataclass(frozen=True, slots=True)
class Enqueued:
    """What `enqueue` has done.

    Attributes:
        points: Points that were added.
        known: Points that had been run, planned or added before; they are not run again.
        waiting: Points that wait to be run, these included.
        attended: Whether a coordinator is at it, which takes them with its next batch.
        ended: Why the campaign has stopped, if it has.
        room: Runs for which its budget has room; None without a bound.
        run_dir: The campaign's folder.
    """

    points: tuple[Params, ...]
    known: tuple[Params, ...]
    waiting: int
    attended: bool
    ended: str | None
    room: int | None
    run_dir: Path

    def __str__(self) -> str:
        words = [f"{len(self.points)} point(s) added"]
        words += [f"{len(self.known)} known before and not added"] if self.known else []
        words.append(f"{self.waiting} wait to be run")
        text = ", ".join(words)
        more = ""
        if self.room is not None and self.waiting > self.room:
            text += f"; the budget has room for {self.room} more run(s)"
            more = " --set until.max_runs=N"
        if self.attended:
            return (
                f"{text}; the coordinator that is at it takes them with its next batch, as far as there is room "
                "(a script that submits by itself plans no batch: there `hpcagent resume` runs them afterwards)"
            )
        done = "the campaign has stopped" if self.ended else "no coordinator is at it"
        return f"{text}; {done}: `hpcagent resume {self.run_dir}{more}` runs them"


def enqueue(run_dir: str | Path, points: Sequence[Mapping[str, object]]) -> Enqueued:
    """Add points of one's own to a campaign, also while it runs: they are run before what its policy suggests.

    They count in its budget, and each is run once. A coordinator that is at it looks for them before each batch.

    Args:
        run_dir: The campaign's folder.
        points: Points of its varied parameters.

    Raises:
        BadInput: The folder is not that of a campaign, or a point is not allowed; nothing was added.
        StoreFull: The folder cannot be written.

    Example:
        >>> import tempfile
        >>> from hpcagent.runs.run import run
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = run("synthetic", site="threads", run_dir=folder, progress=False)
        ...     done = enqueue(folder, [{"x": 0.1, "y": 0.9, "style": "plain"}])
        >>> done.waiting, done.room, done.attended
        (1, 0, False)
    """
    from hpcagent.campaign.loading import load_run
    from hpcagent.campaign.recorded import replayed

    folder = RunDir(run_dir)
    campaign = load_run(run_dir)
    state = replayed(folder, campaign)
    attended = holder(folder.root)[0]
    added, known = add(folder, campaign, state, points)
    queue = Queue(folder, campaign, state, remark=lambda words: None)
    queue.look(force=True)
    budget = campaign.until.budget()
    room = None if budget is None else max(0, budget - len(state.manifests) + state.elsewhere)
    ended = state.stopped if state.over(attended=attended) else None
    return Enqueued(added, known, len(queue.waiting()), attended, ended, room, folder.root)


def add(
    folder: RunDir, campaign: Campaign, state: State, points: Sequence[Mapping[str, object]]
) -> tuple[tuple[Params, ...], tuple[Params, ...]]:
    """Write points into the inbox; return those that are new, and those that were known.

    Raises:
        BadInput: A point is not allowed; none was written.
    """
    if isinstance(points, (Mapping, str)):
        raise BadInput("enqueue takes a list of points: enqueue([{'x': 1.0}]).", value=points)
    checked = [own_point(campaign, p, where=f"enqueue, point {i}") for i, p in enumerate(points)]
    queue = Queue(folder, campaign, state, remark=lambda words: None)
    queue.look(force=True)
    waiting = {key(p) for p in queue.waiting()}
    new: dict[Key, Params] = {}
    known: list[Params] = []
    for point in checked:
        seen = key(point) in waiting or key(point) in new or queue.planned(point)
        if seen:
            known.append(point)
        else:
            new[key(point)] = point
    lines = "".join(json.dumps({"at": time.time(), "params": p}) + "\n" for p in new.values())
    if lines:
        path = folder.root / INBOX
        with refusing_clearly(path):
            descriptor = open_plain(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
            try:
                size = os.fstat(descriptor).st_size
                if size and os.pread(descriptor, 1, size - 1) != b"\n":
                    lines = "\n" + lines  # of somebody who was killed in the middle of a line
                os.write(descriptor, lines.encode())
            finally:
                os.close(descriptor)
    return tuple(new.values()), tuple(known)


class Queue:
    """The points that somebody has added and that are not planned yet: of the record first, then of the folder.

    What was planned is seen in the journal, so nothing has to be taken out of a queue or written down twice.

    Args:
        folder: Of the campaign.
        campaign: Its record, with `points`.
        state: What is planned.
        remark: Is told what cannot be used.
    """

    def __init__(self, folder: RunDir, campaign: Campaign, state: State, *, remark: Callable[[str], None]) -> None:
        self._path = folder.root / INBOX
        self._campaign, self._state, self._remark = campaign, state, remark
        self._points: dict[Key, Params] = {}
        self._read = 0
        self._looked = -LOOK_EVERY_S
        for point in campaign.points:
            self._take(own_point(campaign, point, where="points"))

    def look(self, *, force: bool = False) -> None:
        """See whether points were added: one `stat`, at most every `LOOK_EVERY_S` unless forced."""
        now = time.monotonic()
        if not force and now - self._looked < LOOK_EVERY_S:
            return
        self._looked = now
        try:
            if self._path.stat().st_size <= self._read:
                return
            with open_regular(self._path) as file:
                file.seek(self._read)
                for line in file:
                    if not line.endswith(b"\n"):
                        break  # it is being written
                    self._read += len(line)
                    self._take_line(line)
        except FileNotFoundError:
            return
        except OSError as error:
            self._remark(f"{self._path} cannot be read: {error.strerror}; points there are not run")

    def _take_line(self, line: bytes) -> None:
        if not line.strip():
            return
        try:
            self._take(own_point(self._campaign, json.loads(line)["params"], where=INBOX))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            words = error.message if isinstance(error, BadInput) else "it has not the form of a point."
            self._remark(f"a line of {self._path} is not used: {words}")

    def _take(self, point: Params) -> None:
        self._points.setdefault(key(point), point)

    def planned(self, point: Params) -> bool:
        """Whether the point was run, or is planned."""
        return self._state.next_replicate(self._campaign.complete(point)) > 0

    def waiting(self) -> list[Params]:
        """The points that are not planned yet, in the order in which they were added."""
        for mark, point in list(self._points.items()):
            if self.planned(point):
                del self._points[mark]
        return list(self._points.values())


def point_in(space: Space, words: Sequence[str]) -> Params:
    """A point written as `x=1 style=plain`, as a person writes it; a number may have a unit, `dt=4 fs`.

    Raises:
        BadInput: A word is no `name=value`, a name stands twice, a number is none, or its unit is another kind.

    Example:
        >>> from hpcagent.model.parameter import Choice, Float
        >>> point_in(Space.of(x=Float(0, 2), style=Choice("plain", "fine")), ["x=1", "style=fine"])
        {'x': 1.0, 'style': 'fine'}
        >>> point_in(Space.of(timestep=Float(1e-4, 1e-2, unit="ps")), ["timestep=4fs"])
        {'timestep': 0.004}
    """
    found: Params = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or not name:
            raise BadInput(f"{word!r}: a point is written name=value, e.g. {space.names[0]}=1.", value=word)
        if name in found:
            raise BadInput(f"{name!r} is given twice.", value=name)
        parameter = space[name]
        if parameter.kind in ("float", "int"):
            found[name] = _number_in(parameter, text)
        else:
            found[name] = next((c for c in parameter.choices if str(c) == text), text)
    return found


_WITH_UNIT = re.compile(r"\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*([^\W\d_].*?)\s*", re.DOTALL)


def _number_in(parameter: Parameter, text: str) -> float:
    """A number in the parameter's unit, as it stands or converted."""
    with contextlib.suppress(ValueError):
        return float(text)
    found = _WITH_UNIT.fullmatch(text)
    if found is None:
        raise BadInput(f"{parameter.name}={text!r} is no number; allowed: {parameter.range}.", value=text)
    try:
        return convert(float(found[1]), found[2], parameter.unit)
    except BadInput as error:
        raise BadInput(
            f"{parameter.name}={text!r}: {error.message.rstrip('.')}; allowed: {parameter.range}.", value=text
        ) from None
