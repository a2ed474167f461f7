"""What every adapter does: spread the first points, tell the rest, keep repeats out, leave no trace.

A policy is a function of the history, and the optimisers are not: so each suggestion starts a new one and tells
it the whole history. That costs milliseconds for a tree of Parzen estimators and seconds for a Gaussian process,
which has to be fitted again anyway.
"""

from __future__ import annotations

import logging
import random
import sys
import warnings
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from typing import Any

import numpy as np

from hpcagent.errors import BadInput
from hpcagent.model.objective import Objective
from hpcagent.model.parameter import Params
from hpcagent.model.records import Observation
from hpcagent.model.space import Space
from hpcagent.policies.adapters.imputation import Told, told
from hpcagent.policies.base import Reason
from hpcagent.policies.sweeps import Sobol
from hpcagent.statistics.points import generator, given, inside, key, led_back, whole

__all__ = ["Adapter", "isolated", "needed", "table"]

OTHER_CHOICE = 0.1


class Adapter:
    """A policy that asks somebody else's optimiser.

    Until `startup` runs have come back with something to learn from (a failed run counts, a distrusted one need
    not) the points are those of a Sobol sequence. So are the points that stand in for repeats: the optimisers may
    suggest the same point twice, a campaign wants each point once. A suggestion next to a failed run is put back,
    and used only if the optimiser has nothing else.

    Args:
        space: Where it may suggest. Constants are kept from the optimiser.
        objective: Goals and limits.
        seed: Decides the first points, and seeds the optimiser.
        startup: Runs from which the optimiser takes over.
    """

    name = "adapter"
    modules: tuple[str, ...] = ()  # what `ask` needs
    loggers: tuple[str, ...] = ()
    most_runs = 10_000  # beyond this the optimiser is told of the best third and the newest
    asks = 16  # at most, for each point wanted, where points are repeats or next to failures

    def __init__(self, space: Space, objective: Objective, *, seed: int = 0, startup: int = 8) -> None:
        self.space, self.objective, self.seed = space, objective, abs(int(seed))
        self.free = space.free
        self.startup = whole("startup", startup)
        self._first = Sobol(space, objective, seed=seed)

    def _load(self) -> None:
        """Import what `ask` needs, before its traces are covered; importing may warn too."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for module in self.modules:
                import_module(module)

    def ask(
        self, data: Sequence[Told], waiting: Sequence[Params], n: int, seed: int
    ) -> Generator[Params, None, None]:
        """Points of the free space, best first; at least `n` where the optimiser can.

        Args:
            data: The finished runs, `startup` or more.
            waiting: Points whose outcome is not known yet.
            n: How many are wanted.
            seed: For the optimiser's random choices.
        """
        raise NotImplementedError

    def suggest(self, history: Sequence[Observation], n: int, pending: Sequence[Params] = ()) -> list[Params]:
        """Return `n` points that were not suggested before; fewer where a finite space is exhausted."""
        return [r.params for r in self.reasons(history, n, pending)]

    def reasons(self, history: Sequence[Observation], n: int, pending: Sequence[Params] = ()) -> list[Reason]:
        """The same points, each with where it comes from."""
        if n <= 0:
            return []
        data = told(self.space, self.objective, history)
        chosen: list[Params] = []
        if len(data) >= self.startup and len(self.free):
            chosen = self._chosen(data, history, n, pending)
        more = self._first.suggest(history, n - len(chosen), [*pending, *chosen])
        return [Reason(p, self.name, f"Suggested by {self.name}.") for p in chosen] + [
            Reason(p, "space-filling", "The next point of a Sobol sequence.") for p in more
        ]

    def _chosen(
        self, data: Sequence[Told], history: Sequence[Observation], n: int, pending: Sequence[Params]
    ) -> list[Params]:
        used = {key(inside(self.space, p) or p) for p in given(history, pending)}
        waiting = [self._part(p) for p in (inside(self.space, q) for q in pending) if p is not None]
        seed = int(generator(self.seed, history, pending).integers(2**31))
        parts = [Told(self._part(t.params), t.values, t.excess, t.imputed) for t in data]
        # Asked for more points than a finite space still has, some optimisers search for minutes.
        n = int(min(n, self.free.size - len({key(p) for p in [*waiting, *(t.params for t in parts)]})))
        if n <= 0:
            return []
        near_failed = _NearFailed(self.free, parts)
        known = [t.params for t in data if not t.imputed]
        found: list[Params] = []
        risky: list[Params] = []
        self._load()
        with isolated(seed, self.loggers), closing(self.ask(self._useful(parts), waiting, n, seed)) as asked:
            for point in islice(asked, self.asks * n):
                params = self._whole(point)
                if not self.space.simple:
                    params = led_back(self.space, params, known)
                if key(params) in used:
                    continue
                used.add(key(params))
                (risky if near_failed(self._part(params)) else found).append(params)
                if len(found) == n:
                    break
        return (found + risky)[:n]

    def _useful(self, data: Sequence[Told]) -> list[Told]:
        """At most `most_runs` of the runs, in their order."""
        goal = self.objective.goal
        everything = range(len(data))
        ranked = sorted(everything, key=lambda i: (not data[i].feasible, -goal.score(data[i].values[0])))
        kept = set(ranked[: self.most_runs // 3])
        newest = [i for i in reversed(everything) if i not in kept]
        return [data[i] for i in sorted(kept | set(newest[: self.most_runs - len(kept)]))]

    def _part(self, params: Params) -> Params:
        """The free part of a point; what is not active there has the middle of its range: optimisers need one."""
        return {p.name: params.get(p.name, p.from_unit(0.5)) for p in self.free.parameters}

    def _whole(self, point: Mapping[str, Any]) -> Params:
        """A point of the space: constants put back, numbers within the bounds and of ten digits."""
        values: dict[str, Any] = {}
        for p in self.space.parameters:
            if p.constant:
                values[p.name] = p.levels(1)[0]
            elif p.name not in point:
                continue
            elif p.kind == "float":
                values[p.name] = float(f"{float(point[p.name]):.10g}")
            else:
                values[p.name] = point[p.name]
        near = self.space.clipped(values)
        return self.space.validated(near) if self.space.simple else near


class _NearFailed:
    """Whether one of the two runs closest to a point failed.

    The best point is often next to where runs crash, and an optimiser that is told of crashes as data still steps
    over the edge: a third of the runs of a TPE do, with this 14 % (speed = 1 + x, failing beyond x = 2/3).
    Distances are those of the unit cube; a choice that differs counts as a step of a tenth, since a failure at a
    long time step should not speak against another choice everywhere.
    """

    def __init__(self, space: Space, data: Sequence[Told]) -> None:
        self.space = space
        self.failed = np.array([t.imputed for t in data], dtype=bool)
        self.units = np.array([space.to_unit(t.params) for t in data]).reshape(len(data), len(space))
        self.choice = np.array([p.kind == "choice" for p in space.parameters], dtype=bool)

    def __call__(self, params: Params) -> bool:
        if not self.failed.any() or self.failed.all():
            return False
        off = np.abs(self.units - self.space.to_unit(params))
        off[:, self.choice] = np.where(off[:, self.choice] > 1e-9, OTHER_CHOICE, 0.0)
        nearest = np.argsort(np.linalg.norm(off, axis=1), kind="stable")[:2]
        return bool(self.failed[nearest].any())


@contextmanager
def isolated(seed: int, loggers: Sequence[str] = ()) -> Iterator[None]:
    """Start the global random numbers at `seed`, silence warnings and the named loggers; afterwards undo it all.

    Some optimisers draw from the global generators of `random`, NumPy or PyTorch, and all of them talk.
    """
    torch = sys.modules.get("torch")
    python, numpy = random.getstate(), np.random.get_state()
    if torch is not None:
        drawn, threads = torch.get_rng_state(), torch.get_num_threads()
        torch.manual_seed(seed)
        torch.set_num_threads(1)  # sums in another order are other sums; the points must not depend on the machine
    random.seed(seed)
    np.random.seed(seed % 2**32)
    talking = [logger for logger in _below(loggers) if not logger.disabled]
    for logger in talking:
        logger.disabled = True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger in talking:
            logger.disabled = False
        random.setstate(python)
        np.random.set_state(numpy)
        if torch is not None:
            torch.set_rng_state(drawn)
            torch.set_num_threads(threads)


def _below(names: Sequence[str]) -> list[logging.Logger]:
    """The loggers of these names and all below them (which may have levels of their own)."""
    known = logging.Logger.manager.loggerDict
    return [
        logger
        for name, logger in known.items()
        if isinstance(logger, logging.Logger) and any(name == n or name.startswith(f"{n}.") for n in names)
    ]


def needed(policy: str, package: str, extra: str) -> None:
    """Raise `BadInput` unless `package` is installed."""
    try:
        found = find_spec(package) is not None
    except (ImportError, ValueError):
        found = False
    if not found:
        raise BadInput(
            f"policy {policy} needs the package {package!r}, which is not installed here; "
            f"pip install 'hpcagent[{extra}]'.",
            value=package,
        )


def table(name: str, value: Any, reserved: Mapping[str, str]) -> dict[str, Any]:
    """Return a table of options as a dict; a key in `reserved` is refused with the reason given there."""
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(k, str) for k in value):
        raise BadInput(
            f"{name} is a table of options such as {{multivariate = true}}; got {value!r}.", value=value
        )
    for option, why in reserved.items():
        if option in value:
            raise BadInput(f"{name} may not hold {option!r}: {why}.", value=option)
    return dict(value)
