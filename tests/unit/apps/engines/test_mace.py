"""MACE: what is checked before PyTorch is asked; the real thing where mace-torch is installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from ase.build import molecule

from hpcagent.apps.engines.base import Level
from hpcagent.apps.engines.registry import engine
from hpcagent.apps.run import Run
from hpcagent.errors import AppFailed

ENGINE = engine("mace")
INSTALLED = importlib.util.find_spec("mace") is not None


def calculator(checkpoint: str, tmp_path: Path, **keywords: Any) -> Any:
    run = Run(workdir=tmp_path, settings={"paths": {"checkpoint": checkpoint}})
    return ENGINE.calculator(molecule("H2O"), Level("mace", options={"keywords": keywords}), run)


def test_without_a_checkpoint_nothing_is_downloaded(tmp_path: Path) -> None:
    with pytest.raises(AppFailed, match="no checkpoint, and none is downloaded") as failed:
        calculator("", tmp_path)
    assert failed.value.kind == "contract"


def test_a_checkpoint_that_the_node_does_not_see_is_a_failure_of_the_site(tmp_path: Path) -> None:
    with pytest.raises(AppFailed, match="is not there where the run was placed") as failed:
        calculator(str(tmp_path / "my.model"), tmp_path)
    assert (failed.value.kind, failed.value.name) == ("infrastructure", "MissingFile")


def test_an_unknown_precision_is_refused(tmp_path: Path) -> None:
    (tmp_path / "my.model").write_bytes(b"")
    with pytest.raises(AppFailed, match="'float16' is none of float32, float64"):
        calculator(str(tmp_path / "my.model"), tmp_path, default_dtype="float16")


@pytest.mark.skipif(INSTALLED, reason="mace-torch is installed")
def test_a_missing_package_says_how_to_get_it(tmp_path: Path) -> None:
    (tmp_path / "my.model").write_bytes(b"")
    with pytest.raises(AppFailed, match="package 'torch' cannot be imported") as failed:
        calculator(str(tmp_path / "my.model"), tmp_path)
    assert (failed.value.kind, failed.value.name) == ("infrastructure", "NoEngine")
    assert "pip install 'hpcagent[mace]'" in str(failed.value.repair)
