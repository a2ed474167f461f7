"""MACE: what is checked before PyTorch is asked; the real thing where mace-torch is installed."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ase.build import bulk, molecule

from hpcagent.apps.run import Run
from hpcagent.apps.structures import given
from hpcagent.errors import AppFailed
from hpcagent.science.engines.base import Level
from hpcagent.science.engines.registry import engine
from hpcagent.science.mlip.md import mlip_md

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


# A model of copper with random weights: its forces are those of no metal, but they are the slope of its energy.
UNTRAINED = """
import sys
import mace  # before e3nn: it tells torch to load e3nn's constants
import numpy, torch
from e3nn import o3
from mace import modules
torch.manual_seed(1)
torch.set_default_dtype(torch.float64)
blocks = modules.interaction_classes
model = modules.ScaleShiftMACE(
    r_max=4.0, num_bessel=4, num_polynomial_cutoff=5, max_ell=1, num_interactions=1, num_elements=1,
    interaction_cls=blocks["RealAgnosticResidualInteractionBlock"],
    interaction_cls_first=blocks["RealAgnosticInteractionBlock"],
    hidden_irreps=o3.Irreps("4x0e"), MLP_irreps=o3.Irreps("4x0e"), gate=torch.nn.functional.silu,
    atomic_energies=numpy.array([-1.0]), avg_num_neighbors=12.0, atomic_numbers=[29], correlation=1,
    radial_type="bessel", atomic_inter_scale=10.0, atomic_inter_shift=0.0,
)
torch.save(model, sys.argv[1])
"""


@pytest.mark.slow
@pytest.mark.skipif(not INSTALLED, reason="mace-torch is not installed")
def test_an_untrained_model_conserves_its_energy_and_knows_its_elements(tmp_path: Path) -> None:
    path = tmp_path / "cu.model"
    subprocess.run([sys.executable, "-c", UNTRAINED, str(path)], check=True, capture_output=True)
    app = mlip_md.with_settings(checkpoint=path)
    assert app.plain_function is not None
    values = app.contract.space.validated(
        {"ensemble": "nve", "steps": 200, "sample_every": 5, "timestep": 2.0, "temperature": 300.0}
    )

    def run(name: str, atoms: Any) -> Run:
        (tmp_path / name).mkdir()
        return Run(workdir=tmp_path / name, settings=app.settings, upstream=(given(atoms).fields,))

    outcome = app.plain_function(run=run("cu", bulk("Cu", cubic=True) * (2, 2, 2)), **values)
    assert outcome.metrics["energy_fluctuation"] < 0.01
    assert "pressure" in outcome.metrics
    assert app.settings["files"]["checkpoint"] in (tmp_path / "cu" / "md.json").read_text()
    with pytest.raises(AppFailed, match="was not trained on Si"):
        app.plain_function(run=run("si", bulk("Si")), **values)
    path.write_bytes(b"no model")
    with pytest.raises(AppFailed, match="cannot be loaded as a MACE model"):
        app.plain_function(run=run("broken", bulk("Cu")), **values)
