"""What every app must keep, as a test class to inherit; it runs the app at the points given.

from hpcagent.testing import AppContract
from mypackage.mymodule import my_app

class TestMyApp(AppContract):
    app = my_app
    points = ({"x": 0.5}, {"x": 1.0})
"""

from __future__ import annotations

import contextlib
import math
import os
from pathlib import Path
from typing import Any, ClassVar

import pytest

from hpcagent.apps.base import App
from hpcagent.apps.document import ContractDocument, output_of
from hpcagent.apps.invocation import Invocation
from hpcagent.errors import BadInput
from hpcagent.model.contract import Metric
from hpcagent.model.determinism import disagreements
from hpcagent.model.parameter import Parameter
from hpcagent.model.records import Result
from hpcagent.sites.opening import open_site
from hpcagent.testing.writes import Writes

__all__ = ["AppContract"]


class AppContract:
    """Inherit, set `app` and `points`, and pytest runs the contract.

    Attributes:
        app: The app, with its settings.
        points: Parameters of runs that complete; the first is run several times.
        inputs: What it takes as positional arguments, e.g. the path of a structure.
        deterministic: False: what the contract says of it is not tried, e.g. on a machine that computes otherwise.
        varying: Metrics that differ from run to run although the contract says that the app is deterministic.
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
        """A run of each point, and the first one again: a replicate of it."""
        with open_site(cls.site, workers=1, run_dir=tmp_path_factory.mktemp("app")):
            first = [cls._run(cls.app, point) for point in cls.points]
            return [*first, cls._run(cls.app, cls.points[0], replicate=1)]

    @pytest.fixture(scope="class")
    @classmethod
    def again(cls, results: list[Result], tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Writes]:
        """The first run once more in another folder, where nobody has its result, and what it wrote elsewhere."""
        folder, here = tmp_path_factory.mktemp("again"), Path.cwd()
        # In an empty working directory, so that what a program leaves there is seen. Worker processes need theirs.
        place = tmp_path_factory.mktemp("here") if cls.site == "threads" else None
        inputs = tuple(here / i if isinstance(i, (str, Path)) else i for i in cls.inputs)
        writes = Writes(outside=folder, watched=place)
        with open_site(cls.site, workers=1, run_dir=folder), writes, contextlib.chdir(place or here):
            result = cls.app(*inputs, **cls.points[0]).result(timeout=cls.timeout_s)
        return result, writes

    @classmethod
    def _run(cls, app: App, point: dict[str, Any], **given: Any) -> Result:
        result = app(*cls.inputs, **given, **point).result(timeout=cls.timeout_s)
        assert isinstance(result, Result)
        return result

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

    def test_its_document_is_read_back_and_says_what_the_app_is(self) -> None:
        document = ContractDocument.of(self.app)
        again = ContractDocument.from_json(document.model_dump_json())
        assert again == document and again.differences(self.app) == ()

    def test_what_it_takes_and_gives_fits_its_schemas(self, results: list[Result]) -> None:
        jsonschema = pytest.importorskip("jsonschema")
        document = ContractDocument.of(self.app)
        for schema in (document.input_schema, document.output_schema):
            jsonschema.Draft202012Validator.check_schema(schema)
        takes = jsonschema.Draft202012Validator(document.input_schema)
        gives = jsonschema.Draft202012Validator(document.output_schema)
        for result in results:
            inputs = Invocation.of(result.manifest, self.app.contract).inputs
            takes.validate(inputs)
            gives.validate(output_of(result))
            assert not takes.is_valid({**inputs, "no_such_parameter": 1})
            for name in result.manifest.params:
                for bad in self._bad(self.app.contract.space[name]):
                    # JSON has neither infinities nor NaN.
                    if not (isinstance(bad, float) and not math.isfinite(bad)):
                        assert not takes.is_valid({**inputs, name: bad}), f"the schema allows {name}={bad!r}"

    def test_a_call_of_it_is_written_down_and_read_back(self, results: list[Result]) -> None:
        for result in results:
            call = Invocation.of(result.manifest, self.app.contract)
            assert Invocation.from_json(call.model_dump_json()) == call
            assert call.execution_id == result.manifest.execution_id

    def test_the_same_manifest_gives_the_same_numbers(
        self, results: list[Result], again: tuple[Result, Writes]
    ) -> None:
        if not (self.deterministic and self.app.contract.deterministic):
            pytest.skip("not deterministic")
        alike = [results[0], again[0], results[-1]]
        kept = [
            r.model_copy(update={"metrics": {k: v for k, v in r.metrics.items() if k not in self.varying}})
            for r in alike
        ]
        found = disagreements(self.app.contract, kept)
        assert not found, "; ".join(map(str, found))

    def test_a_run_writes_nothing_outside_of_its_folder(self, again: tuple[Result, Writes]) -> None:
        allowed = self.app.contract.side_effects
        if allowed not in ("declared outputs only", "reads the network"):
            pytest.skip(f"its contract says: {allowed}")
        assert not again[1].found, f"written elsewhere: {', '.join(again[1].found)}"

    def test_a_metric_that_is_missing_is_a_failure(self, results: list[Result], tmp_path: Path) -> None:
        contract = self.app.contract
        promised = (*contract.metrics, Metric(name="no_such_metric", unit="1"))
        more = self.app._changed(contract=contract.model_copy(update={"metrics": promised}))
        with open_site(self.site, workers=1, run_dir=tmp_path):
            result = self._run(more, self.points[0])
        assert result.status == "FAILED" and result.failure is not None and result.failure.kind == "contract"
        assert "no_such_metric" in result.failure.message and "no_such_metric" not in result.metrics

    def test_a_run_leaves_this_process_as_it_was(self, results: list[Result], tmp_path_factory: Any) -> None:
        before, folder = dict(os.environ), Path.cwd()
        with open_site(self.site, workers=1, run_dir=tmp_path_factory.mktemp("process")):
            self.app(*self.inputs, **self.points[0]).result(timeout=self.timeout_s)
        assert Path.cwd() == folder and dict(os.environ) == before

    def test_what_is_not_allowed_is_refused_before_anything_runs(self, tmp_path: Path) -> None:
        with open_site(self.site, workers=1, run_dir=tmp_path):
            with pytest.raises(BadInput):
                self.app(*self.inputs, **{**self.points[0], "no_such_parameter": 1})
            space = self.app.contract.space
            for name in space.validated(self.points[0]):  # what is not active there is not looked at
                for bad in self._bad(space[name]):
                    with pytest.raises(BadInput) as refused:
                        self.app(*self.inputs, **{**self.points[0], name: bad})
                    assert name in str(refused.value), f"{name}={bad!r} is refused without its name"

    @staticmethod
    def _bad(p: Parameter) -> tuple[Any, ...]:
        """Values that a parameter does not allow: beyond its bounds, of another type, no finite number."""
        if p.kind == "text":
            return (5, "two\nlines")
        if p.kind == "choice":
            return ("no such choice", math.inf)
        assert p.low is not None and p.high is not None
        beyond = (p.low - 1.0 - abs(p.low), p.high + 1.0 + abs(p.high), math.inf, math.nan, "a word")
        return (*beyond, p.low + 0.5) if p.kind == "int" else beyond

    def test_it_is_read_back_from_its_record(self) -> None:
        again = App.model_validate_json(self.app.model_dump_json())
        assert again.digest == self.app.digest and again.contract == self.app.contract
