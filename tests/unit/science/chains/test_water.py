"""Salt water from SMILES to g(r): RDKit, Packmol, LAMMPS and freud in one chain."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import hpcagent as ha


def needed(*programs: str) -> None:
    missing = [p for p in programs if shutil.which(p) is None]
    if missing:
        words = f"{', '.join(missing)} not found; install the packages of tests/apt.txt"
        if os.environ.get("CI") == "true":
            pytest.fail(words)
        pytest.skip(words)


@pytest.mark.slow
def test_salt_water_has_its_density_its_temperature_and_the_neighbours_of_water(tmp_path):
    needed("packmol")
    with ha.open_site("threads", run_dir=tmp_path):
        result = ha.apps.water_box(steps=500).result()
    assert result.ok, result.failure
    # 262 x 18.015 + 22.990 + 35.45 u in (20 angstrom)^3.
    assert result["density"] == pytest.approx(0.9918, abs=1e-4)
    assert result["mean_temperature"] == pytest.approx(300, abs=15)
    # Oxygen and oxygen: 2.75 angstrom in SPC/E (P. Mark, L. Nilsson, J. Phys. Chem. A 105, 9954, 2001), 2.80 +- 0.01
    # by X-rays (L. B. Skinner et al., J. Chem. Phys. 138, 074506, 2013).
    assert result["oo_peak"] == pytest.approx(2.75, abs=0.05)
    # SPC/E: -46.7 kJ/mol of water (J. Phys. Chem. 91, 6269, 1987, without the polarisation), here with two ions.
    of_water = result["potential_energy"] * 788 / 262 * 0.0964853
    assert -52 < of_water < -44
    made = [p.app for p in result.parts]
    assert sorted(made) == sorted(
        ["smiles_to_xyz"] * 3 + ["packmol_box", "water_nvt", "rdf", "plot_rdf", "plot_thermo"]
    )
    for name in ("plot", "plot_thermo"):
        assert (Path(result.workdir) / result.artifacts[name]).read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_pure_water_needs_no_ions_and_the_box_sets_its_density(tmp_path):
    needed("packmol")
    with ha.open_site("threads", run_dir=tmp_path):
        result = ha.apps.water_box(waters=64, ion_pairs=0, box=12.5, steps=200, equil_steps=200).result()
    assert result.ok, result.failure
    # 64 x 18.015 u in (12.5 angstrom)^3.
    assert result["density"] == pytest.approx(64 * 18.015 * 1.66053907 / 12.5**3, rel=1e-4)
    assert result["density"] == pytest.approx(0.980, abs=1e-3)
    assert result["oo_peak"] == pytest.approx(2.75, abs=0.12)
    assert [p.app for p in result.parts].count("smiles_to_xyz") == 1
