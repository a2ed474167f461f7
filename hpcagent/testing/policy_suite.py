"""What every policy must keep, as a test class to inherit.

    from functools import partial
    from hpcagent.policies import make_policy
    from hpcagent.testing import PolicyContract

    class TestMine(PolicyContract):
        factory = partial(make_policy, "mypackage.mymodule:MyPolicy")
        steers = True

`factory` is called with the keywords `space`, `objective` and `seed`. A plain function needs
`staticmethod(...)` around it. The rules themselves are at the top of `hpcagent.policies.base`.
"""

from __future__ import annotations

import copy
import json
import math
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pytest

from hpcagent.errors import BadInput
from hpcagent.model.objective import Objective, at_most, maximize
from hpcagent.model.parameter import Choice, Float, Int, Params
from hpcagent.model.records import Observation, Role
from hpcagent.model.space import Space
from hpcagent.policies.base import Policy

__all__ = ["HISTORIES", "OBJECTIVE", "SPACES", "PolicyContract", "observe"]

OBJECTIVE = maximize("speed", subject_to={"error": at_most(1.0)})

SPACES: Mapping[str, Space] = {
    "float": Space.of(x=Float(-1.0, 2.0), y=Float(0.0, 1.0)),
    "log": Space.of(x=Float(1e-3, 10.0, log=True), y=Float(0.5, 6.0)),
    "int": Space.of(k=Int(1, 40), m=Int(2, 512, log=True)),
    "choice": Space.of(c=Choice("a", "b", "c", "d"), d=Choice(1, 2, 4, 8)),
    "mixed": Space.of(x=Float(0.001, 0.03, log=True, unit="ps"), k=Int(1, 8), c=Choice("off", "opt", "omp")),
    "constant": Space.of(x=Float(0.0, 1.0), fixed=Float(2.0, 2.0), only=Choice("one"), n=Int(3, 3)),
    "one": Space.of(x=Float(0.0, 1.0)),
    "tiny": Space.of(k=Int(1, 2), c=Choice("a", "b")),
    "constrained": Space.of(
        x=Float(0.0, 1.0), y=Float(0.01, 1.0, log=True), k=Int(1, 8), constraints=["x + y <= 1", "8 * x < k"]
    ),
    "conditional": Space.of(
        **{part: Float(0.0, 1.0) for part in "abc"},
        solver=Choice("mg", "cg"),
        levels=Int(2, 8, when="solver == 'mg'"),
        smoother=Choice("jacobi", "sor", when="levels > 4"),
        constraints=["a + b + c == 1", "a >= b"],
    ),
}
HISTORIES = (
    "empty",
    "completed",
    "failed third",
    "all failed",
    "all infeasible",
    "distrusted",
    "with references",
    "without metrics",
    "huge and negative",
)

IN_ANOTHER_PROCESS = """
import json, pickle, sys
factory, space, objective, runs, waiting = pickle.load(sys.stdin.buffer)
print(json.dumps(factory(space=space, objective=objective, seed=7).suggest(runs, 4, waiting)))
"""

# Each space with a third of the histories, and each history with a third of the spaces.
PAIRS = [(name, kind) for i, name in enumerate(SPACES) for j, kind in enumerate(HISTORIES) if (i + j) % 3 == 0]


def observe(space: Space, params: Params, index: int, history: str = "completed") -> Observation:
    """A made-up run: `error` grows with the mean coordinate u (limit 1 at u = 0.6), `speed` too.

    Args:
        space: The space.
        params: The point.
        index: Number of the run; every batch has six.
        history: One of `HISTORIES`.
    """
    u = float(np.mean(space.to_unit(params)))
    wobble = 0.02 * math.sin(12.9898 * (index + 1))
    metrics = {"speed": 1.0 + u + wobble, "error": (u / 0.6) ** 2 + abs(wobble)}
    fails = history == "all failed" or (history == "failed third" and u > 2 / 3)
    role: Role = "reference" if history == "with references" and index % 6 == 0 else "suggested"
    if history == "all infeasible":
        metrics["error"] += 5.0
    if history == "without metrics" and index % 2:
        metrics = {}
    if history == "huge and negative":
        metrics = {"speed": (-1.0) ** index * 10.0 ** (index % 9), "error": -199619.0 if index % 3 else 1e12}
    return Observation(
        params=params,
        completed=not fails,
        metrics={} if fails else metrics,
        uncertainty={"error": 0.01} if index % 2 and not fails else {},
        failure="LostAtoms" if fails else None,
        role=role,
        batch=index // 6,
        index=index,
        distrusted=history == "distrusted" and index % 3 == 0,
    )


class PolicyContract:
    """Inherit, set `factory`, and pytest runs the contract.

    Attributes:
        factory: Called with `space`, `objective`, `seed`; returns the policy.
        steers: Whether it learns from the history (then it must avoid failing regions).
        several_goals: Whether it takes an objective with several goals; a sweep always does.
        seeded: Whether another seed gives other points.
    """

    factory: ClassVar[Callable[..., Policy]]
    steers: ClassVar[bool] = False
    several_goals: ClassVar[bool] = False
    seeded: ClassVar[bool] = True

    def make(self, space: Space, *, seed: int = 7, objective: Objective = OBJECTIVE) -> Policy:
        """A new instance."""
        return type(self).factory(space=space, objective=objective, seed=seed)

    def history(self, space: Space, kind: str, n: int = 12) -> tuple[Observation, ...]:
        """`n` runs of the policy's own choosing, in batches of six, with outcomes of the given kind."""
        name = (space, kind, n)
        if name not in self._histories:
            self._histories[name] = self._simulated(space, kind, n)
        return copy.deepcopy(self._histories[name])

    def fresh(self, space: Space, kind: str, n: int, waiting: Sequence[Params] = ()) -> list[Params]:
        """What a new instance suggests after such a history; asked once, as many tests compare with it."""
        name = (space, kind, n, json.dumps(waiting))
        if name not in self._suggested:
            self._suggested[name] = self.make(space).suggest(self.history(space, kind), n, tuple(waiting))
        return copy.deepcopy(self._suggested[name])

    _histories: ClassVar[dict[tuple[Space, str, int], tuple[Observation, ...]]] = {}
    _suggested: ClassVar[dict[tuple[Space, str, int, str], list[Params]]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls._histories, cls._suggested = {}, {}

    def _simulated(self, space: Space, kind: str, n: int) -> tuple[Observation, ...]:
        runs: list[Observation] = []
        while kind != "empty" and len(runs) < n:
            points = self.make(space).suggest(tuple(runs), min(6, n - len(runs)))
            if not points:
                break
            start = len(runs)
            runs += [observe(space, p, start + i, kind) for i, p in enumerate(points)]
        return tuple(runs)

    @pytest.fixture(params=list(SPACES))
    def space(self, request: pytest.FixtureRequest) -> Space:
        """One of the spaces."""
        return SPACES[str(request.param)]

    def test_is_a_policy(self) -> None:
        assert isinstance(self.make(SPACES["float"]), Policy)

    @pytest.fixture(params=PAIRS, ids="-".join)
    def pair(self, request: pytest.FixtureRequest) -> tuple[Space, str]:
        """One of the spaces, and one of the histories."""
        name, kind = request.param
        return SPACES[name], kind

    def test_n_valid_points_after_any_history_the_same_in_a_new_instance(self, pair: tuple[Space, str]) -> None:
        """As plain JSON, of arguments that stay as they were. One test, because what is costly is the same."""
        space, kind = pair
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            waiting = self.fresh(space, kind, 1)
            runs = list(self.history(space, kind))
            before = copy.deepcopy((runs, waiting))
            given = self.make(space).suggest(runs, 4, waiting)
            assert (runs, waiting) == before
            assert self.make(space).suggest(runs, 0) == []
            for n, points in ((1, waiting), (4, given)):
                assert len(points) == n or (len(points) < n and self.exhausted(space, runs, [*waiting, *points]))
                for point in points:
                    assert space.validated(point) == point
                    assert list(point) == [name for name in space.names if name in point]
                    assert space.allows(point)
                    assert json.loads(json.dumps(point, allow_nan=False)) == point
                    assert all(type(v) in (int, float, str) for v in point.values())
            given, kept = copy.deepcopy(given), given
            for point in kept:
                point.clear()  # what was given is the caller's
            assert self.fresh(space, kind, 4, waiting) == given

    def test_earlier_calls_leave_no_trace(self, space: Space) -> None:
        kind = "failed third"
        runs, used = self.history(space, kind), self.make(space)
        for end in (0, 6):
            used.suggest(runs[:end], 3)
        waiting = used.suggest(runs, 1)
        assert waiting == self.fresh(space, kind, 1)
        assert used.suggest(runs, 4, waiting) == self.fresh(space, kind, 4, waiting)

    def test_another_seed_gives_other_points(self) -> None:
        if not self.seeded:
            pytest.skip("does not depend on the seed")
        space = SPACES["mixed"]
        found = {json.dumps(self.make(space, seed=seed).suggest((), 4)) for seed in range(5)}
        assert len(found) > 1

    def test_pending_points_are_taken_into_account(self) -> None:
        space = SPACES["float"]
        runs = self.history(space, "completed", 1)
        policy = self.make(space)
        waiting: list[Params] = []
        for _ in range(3):
            waiting += policy.suggest(runs, 1, tuple(waiting))
        assert len({json.dumps(p) for p in waiting}) >= 2

    def test_the_same_points_come_out_of_another_process(self) -> None:
        """No dependence on hash seeds, on the time, or on anything set up in this process."""
        space = SPACES["mixed"]
        kind = "failed third"
        waiting, runs = self.fresh(space, kind, 1), self.history(space, kind)
        try:
            task = pickle.dumps((type(self).factory, space, OBJECTIVE, runs, waiting))
        except (pickle.PicklingError, AttributeError, TypeError):
            pytest.skip("the factory cannot be pickled")
        assert json.loads(self.elsewhere(task)) == self.fresh(space, kind, 4, waiting)

    @staticmethod
    def elsewhere(task: bytes) -> str:
        """What a new process suggests, as JSON; `task`: a pickle of what IN_ANOTHER_PROCESS takes."""
        # The child finds what this process found, also where tests put folders on sys.path.
        command = [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}\n{IN_ANOTHER_PROCESS}"]
        return subprocess.run(command, input=task, capture_output=True, timeout=120, check=True).stdout.decode()

    def test_a_long_history_works(self) -> None:
        space = SPACES["mixed"]
        points = space.sample(np.random.default_rng(0), 500)
        runs = [observe(space, p, i, "failed third") for i, p in enumerate(points)]
        assert len(self.make(space).suggest(runs, 6)) in (0, 6)

    def test_points_outside_of_the_space_in_the_history_do_no_harm(self) -> None:
        """The space may have been narrowed, and references may lie outside of it."""
        space = SPACES["mixed"]
        strange: list[dict[str, Any]] = [{"x": 5.0, "k": 99, "c": "other"}, {"x": 0.002}, {}]
        runs = [Observation(p, metrics={"speed": 1.0, "error": 0.1}, role="reference") for p in strange]
        assert len(self.make(space).suggest(runs, 3)) == 3

    def test_several_goals(self) -> None:
        objective = maximize("speed", "accuracy")
        if self.steers and not self.several_goals:
            with pytest.raises(BadInput, match="one goal"):
                self.make(SPACES["float"], objective=objective)
        else:
            assert len(self.make(SPACES["float"], objective=objective).suggest((), 3)) == 3

    def test_steers_away_from_where_runs_fail(self) -> None:
        """x > 2/3 fails: a uniform choice would go there in a third of the runs."""
        if not self.steers:
            pytest.skip("does not steer")
        space = Space.of(x=Float(0.0, 1.0), y=Float(0.0, 1.0))
        late, bad = 0, 0
        for seed in range(3):
            policy = self.make(space, seed=seed)
            runs: list[Observation] = []
            for batch in range(8):
                for point in policy.suggest(tuple(runs), 6):
                    x = float(point["x"])
                    metrics = {"speed": 1 + x, "error": 0.5}
                    fails = x > 2 / 3
                    runs.append(
                        Observation(point, not fails, {} if fails else metrics, batch=batch, index=len(runs))
                    )
                    late += batch >= 4
                    bad += batch >= 4 and fails
        assert bad / late < 0.2

    def exhausted(self, space: Space, runs: Sequence[Observation], points: Sequence[Params]) -> bool:
        """Whether fewer points than asked for are right: a finite space was given completely.

        Policies with a finite design of their own (a grid) override this.
        """
        seen = {json.dumps(p) for p in (*(o.params for o in runs), *points)}
        return len(seen) >= space.size
