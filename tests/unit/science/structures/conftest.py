"""Building apps called as a worker calls them, in directories of their own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from hpcagent.apps.base import App
from hpcagent.apps.run import Run
from hpcagent.apps.worker import execute_as_result
from hpcagent.model.records import Result

pytest.importorskip("ase")

COUNTER = itertools.count()  # no run is taken for another
Build = Callable[..., Result]


@pytest.fixture
def build(tmp_path: Path) -> Build:
    def built(app: App, *inputs: Any, seed: int = 0, on: Mapping[str, Any] | None = None, **params: Any) -> Result:
        upstream = tuple(str(n) for n, _ in enumerate(inputs))
        manifest = app.manifest(params, seed=seed, upstream=(*upstream, str(next(COUNTER))))
        result = execute_as_result(app.order(manifest, work=tmp_path, site=on or {}), *inputs)
        assert isinstance(result, Result)
        if result.failure is not None:
            assert result.failure.name in app.contract.failure_modes, result.failure
            assert result.failure.message[-1] in ".?"
        return result

    return built


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(workdir=tmp_path)
