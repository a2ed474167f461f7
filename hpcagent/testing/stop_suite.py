"""What every stop condition must keep, as a test class to inherit.

from hpcagent.testing import StopContract
from mypackage.mymodule import Steady

class TestSteady(StopContract):
    condition = Steady(within=0.01)
"""

from __future__ import annotations

import copy
import json
from typing import ClassVar

import pytest

from hpcagent.model.records import Observation
from hpcagent.policies.stop import Progress, Stop
from hpcagent.policies.stop_combined import any_of, read_stop
from hpcagent.policies.stop_spent import max_runs
from hpcagent.testing.policy_suite import HISTORIES, OBJECTIVE, SPACES, observe

__all__ = ["StopContract"]


class StopContract:
    """Inherit, set `condition`, and pytest runs the contract.

    Attributes:
        condition: One instance.
        stops_after: A number of completed runs of the suite's own space after which it holds; None: not said.
    """

    condition: ClassVar[Stop]
    stops_after: ClassVar[int | None] = None

    def progress(self, n: int, history: str = "completed") -> Progress:
        """A campaign after `n` runs, in batches of six, with outcomes of the given kind."""
        space = SPACES["float"]
        runs: list[Observation] = []
        for index in range(n):
            u = (index + 0.5) / max(n, 1)
            runs.append(observe(space, space.from_unit([u, (7 * u) % 1.0]), index, history))
        failed = sum(not run.completed for run in runs)
        return Progress(runs, OBJECTIVE, space, n // 6, 10.0 * n, 0.01 * n, n, failed)

    @pytest.fixture(params=[kind for kind in HISTORIES if kind != "empty"])
    def kind(self, request: pytest.FixtureRequest) -> str:
        """One of the outcomes."""
        return str(request.param)

    def test_it_is_read_back_from_toml_and_from_json(self) -> None:
        assert read_stop(self.condition.toml() or {"kind": self.condition.model_dump()["kind"]}) == self.condition
        assert read_stop(json.loads(self.condition.model_dump_json())) == self.condition

    def test_it_goes_with_others(self) -> None:
        both = any_of(max_runs(10**6), self.condition)
        assert read_stop(json.loads(both.model_dump_json())) == both
        assert read_stop(both.toml()) == both
        assert both.check(self.progress(12)) == self.condition.check(self.progress(12))

    def test_it_says_why_in_a_sentence_or_nothing(self, kind: str) -> None:
        for n in (0, 1, 6, 30):
            reason = self.condition.check(self.progress(n, kind))
            assert reason is None or (isinstance(reason, str) and reason.endswith("."))
            assert reason is None or reason[0].isupper() or reason[0].isdecimal()

    def test_nothing_has_been_run_is_no_reason(self) -> None:
        assert self.condition.check(self.progress(0)) is None

    def test_the_same_progress_gives_the_same_answer(self, kind: str) -> None:
        progress = self.progress(18, kind)
        before = copy.deepcopy(list(progress.history))
        first = self.condition.check(progress)
        assert self.condition.check(self.progress(18, kind)) == first and self.condition.check(progress) == first
        assert list(progress.history) == before

    def test_its_bounds_are_numbers(self) -> None:
        budget, cap, limit = self.condition.budget(), self.condition.cap(), self.condition.limit_s()
        assert budget is None or (isinstance(budget, int) and budget >= 1)
        assert cap is None or cap > 0
        assert limit is None or limit > 0
        assert all(isinstance(name, str) for name in self.condition.metrics())

    def test_it_stops_when_it_should(self) -> None:
        if self.stops_after is None:
            pytest.skip("stops_after is not set")
        assert self.condition.check(self.progress(self.stops_after)) is not None
