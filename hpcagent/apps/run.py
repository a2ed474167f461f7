"""What an app's function is handed on the worker, and what it may hand back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from hpcagent.apps.each import each

__all__ = [
    "LazyRun",
    "Outcome",
    "Run",
    "note",
    "noted",
    "noting",
    "repaired_by",
    "repairs_made",
    "spent",
    "spent_cpu_s",
]


_Item = TypeVar("_Item")
_Value = TypeVar("_Value")

_noted: ContextVar[list[str] | None] = ContextVar("noted", default=None)


_repaired: ContextVar[list[Mapping[str, Any]] | None] = ContextVar("repaired", default=None)


def repaired_by(made: Sequence[Mapping[str, Any]]) -> None:
    """Say by which repairs the run that this thread is at has come to its present try: all of them, in order."""
    kept = _repaired.get()
    if kept is not None:
        kept[:] = made


def repairs_made() -> tuple[Mapping[str, Any], ...]:
    """The repairs of the run that this thread is at."""
    return tuple(_repaired.get() or ())


def note(sentence: str) -> None:
    """Add to the notes of the run that this thread is at; without a run nothing happens.

    For what the machinery of a run has to say, whatever its function returns or raises.
    """
    sentences = _noted.get()
    if sentences is not None and sentence not in sentences:
        sentences.append(sentence)


def noted() -> tuple[str, ...]:
    """What was noted of the run that this thread is at."""
    return tuple(_noted.get() or ())


_spent: ContextVar[list[float] | None] = ContextVar("spent", default=None)


def spent(cpu_s: float) -> None:
    """Add to the CPU seconds of the run that this thread is at what the system does not know to be its own.

    Args:
        cpu_s: Used by a process that was there before and goes on; negative for what is another run's.
    """
    kept = _spent.get()
    if kept is not None:
        kept.append(cpu_s)


def spent_cpu_s() -> float:
    """CPU seconds that were added to the run that this thread is at."""
    return sum(_spent.get() or ())


@contextmanager
def noting() -> Iterator[None]:
    """Collect what is noted inside; `noted` returns it, and `repairs_made` the repairs."""
    token, of_repairs, of_spent = _noted.set([]), _repaired.set([]), _spent.set([])
    try:
        yield
    finally:
        _noted.reset(token)
        _repaired.reset(of_repairs)
        _spent.reset(of_spent)


@dataclass(frozen=True, slots=True)
class Run:
    """One run, as its function sees it. Ask for it with a parameter named `run`.

    Attributes:
        workdir: The run's own directory; also the place for every file it writes.
        execution_id: The manifest's; a source of random numbers that differ from run to run.
        seed: Random seed of the manifest.
        replicate: 0, or a counter for deliberate repetitions.
        settings: The app's settings (plain data).
        upstream: Results this run takes as input, as plain dicts (`workdir`, `artifacts`, `metrics`, ...).
        resources: `nodes`, `ranks_per_node`, `threads_per_rank`, `walltime_s`, ...
        site: What the site says of itself: `name`, `node_cores`, `launcher`, `launchers`, `apps`.
        files: SHA-256 of the files that decide its numbers, as they were when its execution id was made; None
            where nobody looked (a function called by hand).
        extends: The run from whose end it goes on: `execution_id`, `workdir`, `artifacts`, `metrics`,
            `uncertainty`, `times`, `ends_with`; None for a run that begins anew.
        times: How many times as long as an ordinary run it is to be in all, what it extends included.
        guard: What may end the run early (see `hpcagent.apps.guard`); None in a campaign without `[guard]`.
        expected_s: Its expected wall time, in seconds, or None.
        comm: The mpi4py communicator of the run's ranks, in an app with `mpi=True`; else None.
    """

    workdir: Path
    execution_id: str = ""
    seed: int = 0
    replicate: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    upstream: tuple[Mapping[str, Any], ...] = ()
    resources: Mapping[str, Any] = field(default_factory=dict)
    site: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, str] | None = None
    extends: Mapping[str, Any] | None = None
    times: float = 1.0
    guard: Mapping[str, Any] | None = None
    expected_s: float | None = None
    comm: Any = None

    def each(self, function: Callable[[_Item], _Value], items: Iterable[_Item]) -> list[_Value]:
        """What a function gives for every item, in the order of the items; the ranks of the run share them.

        Whoever is free takes the next item, so that slow ones keep nobody. With `mpi=True` all ranks of the run
        must come here, with the same items, and all get the list; elsewhere it is a plain loop. The function must
        not communicate with other ranks.

        Args:
            function: Called with one item; what it returns has to pickle.
            items: E.g. the numbers of frames. Few thousand at most: put small ones together.

        Example:
            >>> Run(workdir=Path()).each(len, ["a", "bc"])
            [1, 2]
        """
        return each(function, items, self.comm)


class LazyRun(Run):
    """A run whose directory is made when it is first asked for: most short functions write no file.

    Its `workdir` is given as a function that makes the directory.
    """

    __slots__ = ("_folder",)
    _folder: Path | Callable[[], Path]

    @property
    def workdir(self) -> Path:
        """The run's own directory; it is there from now on."""
        return self._folder() if callable(self._folder) else self._folder

    @workdir.setter
    def workdir(self, folder: Path | Callable[[], Path]) -> None:
        object.__setattr__(self, "_folder", folder)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a function returns when metrics alone do not say it all.

    Attributes:
        metrics: Numbers in the contract's units; one that is not finite counts as missing.
        units: Unit of each metric, where the contract does not fix it.
        uncertainty: Standard error of a metric, in its unit.
        bounds: Metrics of a run that ended early on purpose: the finished run's value would lie `above` or `below`
            the threshold of `stopped`, or without one the value given.
        artifacts: Name -> file, relative to the run's directory.
        notes: Remarks worth reading.
        distrusted: Why the measured times should not be believed, or None.
        files: Files whose content decided the metrics: path -> SHA-256.
        versions: What has computed: name of the program or Python distribution -> version.
        level_of_theory: What it was computed with, defaults resolved: name -> value with its unit.
        extendable_s: Wall seconds that an ordinary run's length more would take from its end; None where the app
            does not say, NaN where it cannot go on.
        ends_with: Files that a longer run would go on from, as they are at the end: path in the run's directory ->
            bytes and SHA-256.
        stopped: Why the run was ended early by the guard (`hpcagent.apps.guard.Verdict.stopped`), or None.
    """

    metrics: Mapping[str, float]
    units: Mapping[str, str] = field(default_factory=dict)
    uncertainty: Mapping[str, float] = field(default_factory=dict)
    bounds: Mapping[str, str] = field(default_factory=dict)
    artifacts: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    distrusted: str | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    level_of_theory: Mapping[str, str] = field(default_factory=dict)
    extendable_s: float | None = None
    ends_with: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    stopped: Mapping[str, Any] | None = None
