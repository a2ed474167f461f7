"""LAMMPS in a process that a worker keeps: it has the library loaded, and opens an instance for each run.

A helper is kept for runs of the same size in the same place. One that crashed, was stopped at a limit or has grown
is replaced: the next run begins in a new one. Helpers end with their worker.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcagent.apps.ending import Finished, Limit
from hpcagent.apps.launch import Launch, planned
from hpcagent.apps.ranks.group import Group, words_of
from hpcagent.apps.ranks.inside import inside
from hpcagent.apps.ranks.library import end_run
from hpcagent.apps.run import Run, note, spent

__all__ = ["GROWTH_MB", "end_helpers", "inside_lammps", "warm_lammps"]

GROWTH_MB = 512.0
"""A helper that holds so much more memory than after its first run is replaced, in MB."""
MOST_KEPT = 2
# What is looked at when a library is loaded or OpenMP begins, once in a process.
_DECIDES = (
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "PYTHONPATH",
    "OMP_NUM_THREADS",
    "OMP_PROC_BIND",
    "OMP_PLACES",
    "CUDA_VISIBLE_DEVICES",
)
_OUTPUT = "output.txt"


@dataclass
class _Helper:
    """A kept helper.

    Attributes:
        group: Its ranks, in one slot.
        key: What runs it is for.
        first_mb: What it held after its first run.
        cpu_s: CPU seconds that its runs so far have been told of.
    """

    group: Group
    key: tuple[object, ...]
    first_mb: float = 0.0
    cpu_s: float = 0.0
    runs: int = 0


_kept: list[_Helper] = []
_lock = threading.Lock()


def warm_lammps(
    run: Run,
    words: Sequence[str],
    *,
    env: Mapping[str, str],
    limit: Limit,
    begun: Callable[[Callable[[], None]], None] | None = None,
) -> tuple[Finished, str | None]:
    """Run what `lmp WORDS` would in the run's directory, with the run's ranks and threads, in a kept helper.

    Args:
        run: Its resources and site say where and with what.
        words: Behind `lmp`.
        env: Variables beyond those of this process; what LAMMPS needs.
        limit: When it is stopped.
        begun: Called once it is started, with what ends it before its limit.

    Returns:
        How it ended, as `finish` says it of a program, and the launcher of its ranks, if there was one.

    Raises:
        AppFailed: The helper cannot be started: as of a program.
    """
    output = run.workdir / _OUTPUT
    if limit.seconds <= 0:
        output.touch()
        return Finished(-signal.SIGTERM, limit), None
    ranks = int(run.resources.get("nodes") or 1) * int(run.resources.get("ranks_per_node") or 1)
    launch = planned(run, words_of(ranks), app="lammps", env=env)
    started = time.monotonic()
    helper = _taken(_key(launch), launch, ranks)
    its_own = threading.Lock()  # held by whoever ends the helper, and for good once the run is not in it any more

    def end() -> None:
        if its_own.acquire(blocking=False):
            helper.group.terminate()
            its_own.release()

    if begun is not None:
        begun(end)
    # The place of a run that was here before must not be in the environment of this one.
    request = {"what": "lammps", "workdir": str(run.workdir), "words": list(words), "env": launch.env}
    try:
        while (finished := _asked(helper, request, limit, started, output)) is None:
            _closed(helper, at_once=True)
            helper = _taken(_key(launch), launch, ranks)
    except BaseException:
        its_own.acquire()
        _closed(helper, at_once=True)
        raise
    its_own.acquire()
    whole = finished.stopped is None and helper.group.returncode is None and helper.group.ready
    if whole:
        _give_back(helper)
    else:
        _closed(helper, at_once=True)
    _trimmed(output, launch.keeps)
    return finished, launch.launcher


def inside_lammps(
    run: Run,
    words: Sequence[str],
    *,
    env: Mapping[str, str],
    begun: Callable[[Callable[[], None]], None] | None = None,
) -> Finished:
    """Run what `lmp WORDS` would in this rank process and those of its slot; its limit is held by their driver.

    Args:
        run: Its resources say how many threads.
        words: Behind `lmp`.
        env: Variables beyond those of this process.
        begun: Called before it is started, with what ends it early; not where other ranks would wait for this one.
    """
    here = inside()
    assert here is not None
    if begun is not None and here.ranks == 1:
        begun(end_run)
    began = time.monotonic()
    whole = {**os.environ, **env, "OMP_NUM_THREADS": str(int(run.resources.get("threads_per_rank") or 1))}
    return Finished(here.lammps(run.workdir, words, whole), None, time.monotonic() - began)


def _key(launch: Launch) -> tuple[object, ...]:
    """What must be the same for a helper to serve a run: all but the environment, which is set for each run."""
    given = tuple((name, launch.env.get(name)) for name in _DECIDES)
    return (os.getpid(), tuple(launch.words), launch.cores, launch.launcher, given)


def _taken(key: tuple[object, ...], launch: Launch, ranks: int) -> _Helper:
    while (helper := _kept_for(key)) is not None:
        # It may have ended since its last run, whatever ended it: that is not the next run's.
        if not any(event.what == "lost" for event in helper.group.wait(0)):
            return helper
        _closed(helper, at_once=True)
    return _Helper(Group(launch, slots=1, ranks=ranks), key)


def _kept_for(key: tuple[object, ...]) -> _Helper | None:
    with _lock:
        for helper in _kept:
            if helper.key == key:
                _kept.remove(helper)
                return helper
    return None


def _closed(helper: _Helper, *, at_once: bool = False) -> None:
    """End a helper. All its CPU time then counts as this process's; what its runs were told of is not new."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    helper.group.close(at_once=at_once)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    came = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    spent(-min(helper.cpu_s, came))
    helper.cpu_s = 0.0


def _give_back(helper: _Helper) -> None:
    with _lock:
        _kept.append(helper)
        superfluous = _kept[:-MOST_KEPT]
        del _kept[:-MOST_KEPT]
    for other in superfluous:
        _closed(other)


def _asked(
    helper: _Helper, request: Mapping[str, object], limit: Limit, started: float, output: Path
) -> Finished | None:
    """How the run has ended; None: it has not begun, as its helper had ended after the run before."""
    group, sent = helper.group, False
    while True:
        if not sent and group.ready:
            group.send(0, request)
            sent = True
        left = limit.seconds - (time.monotonic() - started)
        if left <= 0:
            _closed(helper, at_once=True)
            output.touch()
            return Finished(-signal.SIGTERM, limit, time.monotonic() - started)
        for event in group.wait(left):
            if event.what == "answer" and event.answer is not None:
                answer = event.answer
                total = float(answer.get("cpu_s") or helper.cpu_s)
                spent(total - helper.cpu_s)
                helper.cpu_s = total
                helper.runs += 1
                _look_at_memory(helper, float(answer.get("memory_mb") or 0.0))
                if "error" in answer:
                    _said(output, str(answer["error"]))
                return Finished(int(answer.get("returncode", 1)), None, time.monotonic() - started)
            if event.what == "lost":
                if helper.runs and not output.exists():
                    return None
                code = 1 if event.aborted else _code(group)
                _said(output, group.printed())
                return Finished(code, None, time.monotonic() - started)


def _code(group: Group) -> int:
    code = group.exit_code()
    # A rank that has closed its connection and goes on is none that has ended well.
    return 1 if code is None else code


def _look_at_memory(helper: _Helper, now_mb: float) -> None:
    helper.first_mb = helper.first_mb or now_mb
    if now_mb > helper.first_mb + GROWTH_MB:
        _closed(helper)


def _said(output: Path, text: str) -> None:
    with output.open("ab") as file:  # also where there is nothing to say: a run has that file
        file.write(text.encode())


def _trimmed(output: Path, most: int) -> None:
    """Leave out the middle of what was printed, where it is more than is kept."""
    try:
        size = output.stat().st_size
    except OSError:
        return
    if size <= most:
        return
    half = most // 2
    with output.open("r+b") as file:
        file.seek(size - half)
        tail = file.read(half)
        file.seek(most - half)
        file.truncate()
        file.write(f"\n[{size - most:,} bytes are left out here]\n".encode() + tail)
    note(
        f"{size - most:,} of the {size:,} bytes that LAMMPS printed are left out of {output.name}, before its end"
    )


def end_helpers() -> None:
    """End the helpers that this process keeps."""
    with _lock:
        helpers, _kept[:] = list(_kept), []
    for helper in helpers:
        if helper.key[0] == os.getpid():  # those of a parent are the parent's
            with contextlib.suppress(OSError):
                helper.group.close()


atexit.register(end_helpers)
