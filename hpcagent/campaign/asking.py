"""Ask and tell beside the loop: a script or a person decides what is run; the coordinator runs and records it."""

from __future__ import annotations

import asyncio
import shlex
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hpcagent.campaign.extending import Extension, extension_of
from hpcagent.campaign.own_points import own_point
from hpcagent.campaign.planner import Planner, PolicyQuestion
from hpcagent.campaign.runner import Runner
from hpcagent.campaign.state import State
from hpcagent.errors import BadInput, BudgetSpent, Interrupted, in_brief
from hpcagent.model.parameter import Params
from hpcagent.model.records import Manifest, Result, checked_counter
from hpcagent.policies.stop import Stop
from hpcagent.statistics.points import Key, key, whole

__all__ = ["Asking", "OwnRun", "Results"]

# How long somebody waits for the one who takes results in.
TICK_S = 0.2

MOST_ASKED = 10_000
"""Points of one question: a policy holds all of them in memory, and compares each with the others."""


class OwnRun:
    """A run that a script has asked for: wait for it with `result()`, or `await` it.

    Attributes:
        manifest: What was asked.
        recorded: Whether its result was on record already, so that nothing was started for it.
    """

    def __init__(self, manifest: Manifest, asking: Asking, *, recorded: bool) -> None:
        self.manifest, self.recorded = manifest, recorded
        self._asking = asking

    @property
    def execution_id(self) -> str:
        """Of the run."""
        return self.manifest.execution_id

    def done(self) -> bool:
        """Whether it has ended, as far as was seen."""
        return self._asking.ended(self.execution_id)

    def result(self, timeout_s: float | None = None) -> Result:
        """Wait for the run; a run that failed has a result, too, whose `failure` says why.

        Raises:
            TimeoutError: It has not ended within `timeout_s`.
            Interrupted: The coordinator was closed before it ended.
        """
        if not self._asking.wait(self.done, timeout_s):
            raise TimeoutError(f"run {self.manifest.index} has not ended within {timeout_s:g} s.")
        return self._asking.result(self.execution_id)

    def __await__(self) -> Generator[Any, None, Result]:
        # In a thread: an event loop must not wait for a simulation.
        return asyncio.to_thread(self.result).__await__()

    def __repr__(self) -> str:
        state = "ended" if self.done() else "running"
        return f"<run {self.manifest.index} {self.manifest.params}: {state}{', recorded' * self.recorded}>"


class Results:
    """The results of submitted runs as they come in: `for`, or `async for`; ends when none is under way."""

    def __init__(self, asking: Asking) -> None:
        self._asking = asking

    def __iter__(self) -> Iterator[Result]:
        while (result := self._asking.next_result()) is not None:
            yield result

    async def __aiter__(self) -> AsyncIterator[Result]:
        while (result := await asyncio.to_thread(self._asking.next_result)) is not None:
            yield result


class _Offer(NamedTuple):
    """A point that the policy has given: an answer to which question, and where it stood in it."""

    asked: PolicyQuestion
    place: int
    point: Params


class _Wanted(NamedTuple):
    """One point of a call of `submit`: as it is known, or as it is to be planned."""

    point: Params
    known: Manifest | None = None
    offer: _Offer | None = None


class Asking:
    """What scripts have asked for in one session of a coordinator; may be used from several threads.

    Args:
        planner: Writes down what is run.
        state: What is on record.
        runner: Has what is running.
        turn: Held by whoever changes the state.
        start: Sends runs.
        step: Takes in what has ended; waits a moment for it.
        batch_done: Tells of a batch whose runs have all ended.
    """

    def __init__(
        self,
        planner: Planner,
        state: State,
        runner: Runner,
        *,
        turn: threading.RLock,
        start: Callable[[Sequence[Manifest]], None],
        step: Callable[[], None],
        batch_done: Callable[[int], object],
    ) -> None:
        self._planner, self._state, self._runner = planner, state, runner
        self._start, self._step, self._batch_done = start, step, batch_done
        self._turn = threading.Condition(turn)
        self._offers: dict[Key, _Offer] = {}
        self._again: dict[Key, Manifest] = {}
        self._claimed: deque[str] = deque()
        self._stepping = self._closed = False
        self._batch: int | None = None  # the one that is being filled
        self._in_batch = 0
        self._open_batches: list[int] = []

    # -- asking -------------------------------------------------------------------------------

    def ask(self, n: int) -> list[Params]:
        """See `Coordinator.ask`."""
        whole("n", n, most=MOST_ASKED)
        with self._turn:
            points = self._left_over(n)
            if len(points) == n:
                return points
            given_up = frozenset(self._runner.given_up)
            waiting = self._state.waiting(give_up=given_up)
            besides = [offer.point for offer in self._offers.values()]
            asked, answer = self._planner.ask(n - len(points), waiting, besides)
            for place, point in enumerate(answer):
                self._offers[key(point)] = _Offer(asked, place, point)
            return points + [dict(p) for p in answer]

    def _left_over(self, n: int) -> list[Params]:
        """Points that were suggested in an earlier session, whose runs have not ended: they come first."""
        names = self._planner.search.names
        found: list[Params] = []
        for manifest in self._state.waiting(give_up=frozenset(self._runner.given_up)):
            point = {name: manifest.params[name] for name in names if name in manifest.params}
            mark = key(point)
            waits = manifest.role == "suggested" and manifest.execution_id not in self._runner.running
            if waits and mark not in self._again and len(found) < n:
                self._again[mark] = manifest
                found.append(point)
        return found

    def answered(self, params: Mapping[str, object]) -> PolicyQuestion | None:
        """The question whose answer a point is that was measured elsewhere; None where nobody asked for it."""
        offer = self._offers.get(key(own_point(self._planner.campaign, params, where="tell")))
        return None if offer is None else offer.asked

    def told(self, result: Result) -> None:
        """A point that was asked for has its result."""
        self._offers.pop(
            key({n: result.manifest.params[n] for n in self._planner.search.names if n in result.manifest.params}),
            None,
        )

    # -- running ------------------------------------------------------------------------------

    def submit(self, points: Sequence[Mapping[str, object]], *, replicate: int, claim: bool) -> list[OwnRun]:
        """See `Coordinator.submit`; with `claim` the results come out of `next_result` as well."""
        if isinstance(points, (Mapping, str)) or not isinstance(points, Iterable):
            raise BadInput(
                f"submit takes a list of points: submit([{{'x': 1.0}}]); got {in_brief(points)}.", value=points
            )
        checked_counter("replicate", replicate)
        campaign = self._planner.campaign
        checked = [own_point(campaign, p, where=f"point {i}") for i, p in enumerate(points)]
        with self._turn:
            self._refuse_closed()
            wanted = [self._wanted(point, replicate) for point in checked]
            new = {key(w.point): w for w in wanted if w.known is None}
            self._refuse_over_budget(list(new.values()))
            planned = self._plan(list(new.values()), replicate)
            self._send_again([one.known for one in wanted if one.known is not None])
            runs = []
            for one in wanted:
                manifest = one.known or planned[key(one.point)]
                runs.append(
                    OwnRun(manifest, self, recorded=one.known is not None and self.ended(manifest.execution_id))
                )
            if claim:
                self._claimed.extend(run.execution_id for run in runs)
            return runs

    def extend(self, run: object, factor: float, work: Path) -> OwnRun:
        """See `Coordinator.extend`."""
        planner = self._planner
        with self._turn:
            self._refuse_closed()
            extension = extension_of(planner.campaign, self._state, run, factor, work)
            known = planner.known_extension(extension)
            if known is not None:
                self._send_again([known])
                return OwnRun(known, self, recorded=self.ended(known.execution_id))
            room = planner.runs_left()
            planned: list[Manifest] = []
            if room is None or room > 0:
                batch, _ = self._place(1)
                planned = planner.extend(extension, batch=batch)
            if not planned:
                no_run = room is not None and room <= 0
                why = "" if no_run else planner.spending.refusal
                why = why or f"the budget of runs ({_in_words(planner.campaign.until)}) is used up"
                raise BudgetSpent(
                    f"run {extension.before.manifest.index} is to be extended, but {why.rstrip('.')}. Nothing was "
                    f"begun. Give the campaign a larger budget{_larger(planner, room, work, extension, factor)}.",
                    room=room,
                )
            self._start(planned)
            self._claimed.append(planned[0].execution_id)
            return OwnRun(planned[0], self, recorded=False)

    def _wanted(self, point: Params, replicate: int) -> _Wanted:
        mark = key(point)
        if replicate == 0:
            again = self._again.pop(mark, None)
            if again is not None:
                return _Wanted(point, again)
            if mark in self._offers:
                return _Wanted(point, offer=self._offers.pop(mark))
        return _Wanted(point, self._planner.known(point, replicate))

    def _refuse_over_budget(self, new: Sequence[_Wanted]) -> None:
        planner, n = self._planner, len(new)
        room = planner.runs_left()
        words = "" if room is None or n <= room else f"the budget of runs has room for {room} more"
        if not words and n:
            fits = planner.affordable([w.point for w in new])
            words = "" if fits == n else f"the cap of node-hours leaves room for {fits} of them"
        if not words:
            return
        for w in new:  # they may be asked for again when there is more
            if w.offer is not None:
                self._offers[key(w.point)] = w.offer
        raise BudgetSpent(
            f"{n} run(s) are asked for, but {words} ({_in_words(planner.campaign.until)}). None of them was "
            "begun. Give the campaign a larger budget and run the script again: what is on "
            "record is not run again.",
            room=room,
        )

    def _plan(self, new: Sequence[_Wanted], replicate: int) -> dict[Key, Manifest]:
        """Plan and send what is not on record, what one question gave on one line; by point."""
        groups: dict[int, list[_Wanted]] = {}
        for one in new:
            groups.setdefault(0 if one.offer is None else id(one.offer.asked), []).append(one)
        planned: list[Manifest] = []
        for ones in groups.values():
            asked = None if ones[0].offer is None else ones[0].offer.asked
            # In the order of the answer: the question can then be put again, and the answer be compared.
            ones = sorted(ones, key=lambda one: 0 if one.offer is None else one.offer.place)
            points = [one.point if one.offer is None else one.offer.point for one in ones]
            batch, first = self._place(len(points))
            room = self._planner.runs_left()
            planned += self._planner.own(
                points,
                batch=batch,
                asked=asked,
                replicate=None if asked is not None else replicate,
                reference=first and (room is None or room > len(new)),
            )
        self._start(planned)
        names = self._planner.search.names
        return {key({k: m.params[k] for k in names if k in m.params}): m for m in planned if m.role != "reference"}

    def _place(self, n: int) -> tuple[int | None, bool]:
        """Number of the batch of the next `n` runs, and whether they are its first.

        Runs that come one by one fill a batch: a table and a reference for each would be too many.
        """
        if self._planner.campaign.mode == "rolling":
            first, size = self._state.next_index, self._planner.size
            return None, any(i % size == 0 for i in range(first, first + n))
        last = self._state.last_batch
        if self._batch != last or self._in_batch + n > self._planner.size:
            self._batch, self._in_batch = last + 1, 0
            self._open_batches.append(self._batch)
        self._in_batch += n
        return self._batch, self._in_batch == n

    def _send_again(self, known: Sequence[Manifest]) -> None:
        """Send those that an earlier session had planned and that have not ended, or were given up in it."""
        left = {m.execution_id: m for m in known if not self._state.final(m.execution_id)}
        skip = self._runner.given_up | self._runner.running.keys()
        self._start([m for i, m in left.items() if i not in skip])

    # -- waiting ------------------------------------------------------------------------------

    def ended(self, identity: str) -> bool:
        """Whether a run has a result, and is not under way again."""
        return identity in self._state.results and identity not in self._runner.running

    def result(self, identity: str) -> Result:
        """Of a run that has ended."""
        return self._state.results[identity]

    def next_result(self) -> Result | None:
        """The next result of the runs that were claimed, once for each time it was asked for; None without any."""

        def there() -> bool:
            return not self._claimed or any(self.ended(i) for i in self._claimed)

        self.wait(there, None)
        with self._turn:
            found = next((i for i in self._claimed if self.ended(i)), None)
            if found is None:
                return None
            self._claimed.remove(found)
            return self.result(found)

    def wait(self, ready: Callable[[], bool], timeout_s: float | None) -> bool:
        """Take in results until something is so; one thread at a time does that, the others look on.

        Raises:
            Interrupted: The coordinator was closed.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            with self._turn:
                if ready():
                    return True
                self._refuse_closed()
                if deadline is not None and time.monotonic() > deadline:
                    return False
                if self._stepping:
                    self._turn.wait(TICK_S)
                    continue
                self._stepping = True
            try:
                self._step()
                self._tell_batches()
            finally:
                with self._turn:
                    self._stepping = False
                    self._turn.notify_all()

    def _tell_batches(self, *, last: bool = False) -> None:
        """Write down and tell the batches that are full and whose runs have ended; at the last all."""
        with self._turn:
            for number in list(self._open_batches):
                full = number != self._batch or self._in_batch >= self._planner.size
                if (last or full) and not any(m.batch == number for m in self._runner.running.values()):
                    self._open_batches.remove(number)
                    self._batch_done(number)

    def close(self, *, tell: bool) -> None:
        """No run is begun or waited for from here on; with `tell` what has ended is told of as batches."""
        with self._turn:
            self._closed = True
            self._turn.notify_all()
            if tell:
                self._tell_batches(last=True)

    def _refuse_closed(self) -> None:
        if self._closed:
            raise Interrupted(
                "the coordinator was closed; what had not ended is run again when it is asked for again."
            )


def _larger(planner: Planner, room: int | None, work: Path, extension: Extension, factor: float) -> str:
    """The command with which an extension has room."""
    until = planner.campaign.until.toml()
    if room is not None and room <= 0:
        key, value = "max_runs", str(planner.budget_with_room())
    else:
        key, value = "node_hours", "HOURS"
    if key not in until:  # in a condition of conditions
        return ""
    longer = "" if factor == 2 else f" --factor {factor:g}"
    run = f"{shlex.quote(str(work.parent))} {extension.before.manifest.index}{longer}"
    return f": `hpcagent extend {run} --set until.{key}={value}`"


def _in_words(until: Stop) -> str:
    """What bounds the runs of a campaign, as it stands in its TOML."""
    runs, cap = until.budget(), until.cap()
    said = [] if runs is None else [f"max_runs = {runs}"]
    said += [] if cap is None else [f"node_hours = {cap:g}"]
    return f"until: {', '.join(said)}"
