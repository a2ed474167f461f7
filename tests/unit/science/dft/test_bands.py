"""Band structures: the edges by hand, silicon and copper by the real engines."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, molecule
from ase.io.jsonio import read_json

from hpcagent.apps.run import Outcome, Run
from hpcagent.apps.structures import given
from hpcagent.errors import AppFailed
from hpcagent.science.dft.bands import dft_bands, edges


def _require(name: str) -> None:
    there = {"espresso": shutil.which("pw.x"), "gpaw": find_spec("gpaw")}
    if there[name] is None:
        words = f"no {name} to test with; see tests/apt.txt and docs/howto/gpaw_build.md"
        if os.environ.get("CI") == "true":
            pytest.fail(words)
        pytest.skip(words)


def bands(atoms: Atoms, folder: Path, **params: Any) -> Outcome:
    values = dft_bands.contract.space.validated(params, where="the test")
    run = Run(workdir=folder, upstream=(given(atoms).fields,), settings=dft_bands.settings)
    assert dft_bands.plain_function is not None
    outcome: Outcome = dft_bands.plain_function(run=run, **values)
    return outcome


# ---- edges


def test_the_gap_is_from_the_highest_occupied_to_the_lowest_empty_energy() -> None:
    found = edges([[[-5.0, 0.0, 3.0], [-4.0, -1.0, 1.5], [-4.5, -0.5, 2.0]]], fermi=0.7, electrons=4)
    assert (found.vbm, found.cbm, found.gap, found.direct) == (0.0, 1.5, 1.5, 2.5)
    assert (found.vbm_at, found.cbm_at) == (0, 1)


def test_without_spin_electrons_are_counted_and_a_fermi_level_in_a_band_does_no_harm() -> None:
    # With fixed occupations a program gives the highest level of its mesh, below the end of the band on the path.
    assert edges([[[-1.0, 2.0], [0.0, 1.0]]], fermi=-0.3, electrons=2).gap == 1.0
    assert edges([[[-1.0, 2.0], [0.0, 1.0]]], fermi=-0.3).gap == 0.0


def test_an_odd_number_of_electrons_or_bands_that_overlap_are_a_metal() -> None:
    for energies, electrons in (([[[-1.0, 2.0], [0.0, 1.0]]], 3), ([[[-1.0, 2.0], [1.5, 1.8], [0, 1.2]]], 2)):
        found = edges(energies, fermi=0.5, electrons=electrons)
        assert (found.gap, found.vbm, found.cbm, found.direct) == (0.0, None, None, None)


def test_with_spin_the_fermi_level_decides() -> None:
    up, down = [[-1.0, 2.0], [-0.5, 3.0]], [[-0.2, 1.0], [-0.1, 1.4]]
    found = edges([up, down], fermi=0.3, electrons=2)
    assert found.gap == pytest.approx(1.1)  # both edges are of spin down
    assert found.direct == pytest.approx(1.2)  # at the first k-point
    assert edges([up, [[-0.2, 1.0], [0.5, 1.4]]], fermi=0.3, electrons=2).vbm is None


def test_an_insulator_whose_bands_come_unsorted_is_still_one() -> None:
    assert edges([[[2.0, -1.0], [1.0, 0.0]]], fermi=0.5, electrons=2).gap == 1.0


# ---- real engines


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["espresso", "gpaw"])
@pytest.mark.dft
def test_silicon_has_the_gap_of_pbe(engine: str, tmp_path: Path) -> None:
    # PBE: 0.57 to 0.62 eV from Gamma to 0.85 of the way to X, about 2.55 eV at Gamma (Hummer, Harl, Kresse,
    # doi:10.1103/PhysRevB.80.115205, and others).
    _require(engine)
    outcome = bands(
        bulk("Si", "diamond", a=5.47), tmp_path, engine=engine, kpts=4, ecut=250.0, path="LGX", points=31
    )
    metrics = outcome.metrics
    assert metrics["gap"] == pytest.approx(0.60, abs=0.05)
    assert metrics["direct_gap"] == pytest.approx(2.56, abs=0.06)
    assert metrics["cbm"] - metrics["vbm"] == pytest.approx(metrics["gap"])
    assert metrics["is_metal"] == 0
    (where,) = [note for note in outcome.notes if "valence band ends" in note]
    assert "ends at G" in where and "0.8" in where and "from G to X" in where
    written = read_json(tmp_path / "bands.json")
    assert written.path.path == "LGX"
    assert written.energies.shape[:2] == (1, 31)
    # Valence bands of silicon are 12 eV wide.
    assert np.ptp(written.energies[0, :, :4]) == pytest.approx(12.0, abs=0.3)
    assert (tmp_path / "bands.png").stat().st_size > 5000
    assert set(outcome.artifacts) >= {"bands", "plot", "scf"}
    assert not list(tmp_path.glob("*.scratch"))


@pytest.mark.dft
def test_copper_is_a_metal(tmp_path: Path) -> None:
    _require("espresso")
    outcome = bands(bulk("Cu", a=3.63), tmp_path, engine="espresso", kpts=3, ecut=350.0, smearing=0.3, points=15)
    assert (outcome.metrics["gap"], outcome.metrics["is_metal"]) == (0.0, 1.0)
    assert "vbm" not in outcome.metrics and "direct_gap" not in outcome.metrics
    assert read_json(tmp_path / "bands.json").energies.shape[1] == 15


@pytest.mark.dft
def test_one_kpoint_is_too_few(tmp_path: Path) -> None:
    _require("espresso")
    with pytest.raises(AppFailed, match="more than one k-point") as caught:
        bands(bulk("Si"), tmp_path, engine="espresso", ecut=200.0, kpts=1)
    assert (caught.value.kind, caught.value.name) == ("contract", "FewKpoints")


def test_a_molecule_and_a_wrong_path_are_refused(tmp_path: Path) -> None:
    _require("espresso")
    with pytest.raises(AppFailed, match="has levels, not bands") as caught:
        bands(molecule("H2"), tmp_path, engine="espresso")
    assert caught.value.name == "NotPeriodic"
    with pytest.raises(
        AppFailed, match=r"path='GZ' is no path in this cell: .*special points are .*G.*X"
    ) as caught:
        bands(bulk("Si"), tmp_path, engine="espresso", path="GZ")
    assert (caught.value.kind, caught.value.name) == ("contract", "BadPath")


def test_an_engine_without_bands_says_so(tmp_path: Path) -> None:
    with pytest.raises(AppFailed, match="no bands") as caught:
        bands(bulk("Cu"), tmp_path, engine="emt")
    assert (caught.value.kind, caught.value.name) == ("contract", "NoBands")
