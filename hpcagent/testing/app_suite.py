"""What every app must keep, as a test class to inherit; it runs the app at the points given.

from hpcagent.testing import AppContract
from mypackage.mymodule import my_app

class TestMyApp(AppContract):
    app = my_app
    points = ({"x": 0.5}, {"x": 1.0})
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any, ClassVar

import pytest

from hpcagent.apps.base import App
from hpcagent.errors import BadInput
from hpcagent.model.records import Result
from hpcagent.sites.opening import open_site

__all__ = ["AppContract"]


class AppContract:
    """Inherit, set `app` and `points`, and pytest runs the contract.

    Attributes:
        app: The app, with its settings.
        points: Parameters of runs that complete; the first is run twice.
        inputs: What it takes as positional arguments, e.g. the path of a structure.
        deterministic: Whether the same parameters give the same metrics; measured speeds and times aside.
        varying: Further metrics that differ from run to run all the same.
        site: Where they are run, one after another.
        timeout_s: So long a run may take.
    """

    app: ClassVar[App]
    points: ClassVar[tuple[dict[str, Any], ...]] = ({},)
    inputs: ClassVar[tuple[Any, ...]] = ()
    deterministic: ClassVar[bool] = True
    varying: ClassVar[tuple[str, ...]] = ()
    site: ClassVar[str] = "threads"
    timeout_s: ClassVar[float] = 300.0

    @pytest.fixture(scope="class")
    @classmethod
    def results(cls, tmp_path_factory: pytest.TempPathFactory) -> list[Result]:
        """A run of each point, and the first one again."""
        with open_site(cls.site, workers=1, run_dir=tmp_path_factory.mktemp("app")):
            first = [cls.app(*cls.inputs, **point).result(timeout=cls.timeout_s) for point in cls.points]
            # A replicate: it is run, and not answered from the first one.
            return [*first, cls.app(*cls.inputs, replicate=1, **cls.points[0]).result(timeout=cls.timeout_s)]

    def test_its_contract_says_what_it_takes_and_gives(self) -> None:
        contract = self.app.contract
        assert contract.name and contract.version and contract.metrics
        for metric in contract.metrics:
            assert metric.description, f"metric {metric.name} has no description"
        for name in contract.space.names:
            assert contract.space[name].description, f"parameter {name} has no description"

    def test_every_run_completes_with_the_metrics_it_promises(self, results: list[Result]) -> None:
        metrics = {metric.name: metric for metric in self.app.contract.metrics}
        for result in results:
            assert result.status == "COMPLETED", f"{result.manifest.params}: {result.failure}"
            missing = [name for name, metric in metrics.items() if metric.required and name not in result.metrics]
            assert not missing and not set(result.metrics) - set(metrics)
            assert all(math.isfinite(value) for value in result.metrics.values())
            assert all(error >= 0 for error in result.uncertainty.values())

    def test_the_same_parameters_give_the_same_numbers(self, results: list[Result]) -> None:
        if not self.deterministic:
            pytest.skip("not deterministic")
        timed = self.app.contract.timed | set(self.varying)
        first, again = ({k: v for k, v in r.metrics.items() if k not in timed} for r in (results[0], results[-1]))
        assert first == again

    def test_a_run_leaves_this_process_as_it_was(self, results: list[Result], tmp_path_factory: Any) -> None:
        before, folder = dict(os.environ), Path.cwd()
        with open_site(self.site, workers=1, run_dir=tmp_path_factory.mktemp("again")):
            self.app(*self.inputs, **self.points[0]).result(timeout=self.timeout_s)
        assert Path.cwd() == folder and dict(os.environ) == before

    def test_what_is_not_allowed_is_refused_before_anything_runs(self, tmp_path: Path) -> None:
        with open_site(self.site, workers=1, run_dir=tmp_path):
            with pytest.raises(BadInput):
                self.app(*self.inputs, **{**self.points[0], "no_such_parameter": 1})
            for name in self.app.contract.space.names:
                if self.app.contract.space[name].kind in ("float", "int"):
                    with pytest.raises(BadInput):
                        self.app(*self.inputs, **{**self.points[0], name: math.inf})

    def test_it_is_read_back_from_its_record(self) -> None:
        again = App.model_validate_json(self.app.model_dump_json())
        assert again.digest == self.app.digest and again.contract == self.app.contract
