"""Lennard-Jones argon by small LAMMPS runs: what it is made of, and whether it is solid or liquid."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import hpcagent as ha
from hpcagent.science.chains.argon import lattice_constant

pytestmark = pytest.mark.lammps


@pytest.fixture
def here(tmp_path):
    """The folder of an open site."""
    with ha.open_site("threads", run_dir=tmp_path):
        yield tmp_path


def by_app(folder: Path, app: str) -> list[dict[str, object]]:
    """Parameters of the runs of an app in the site's folder."""
    made = [json.loads(f.read_text()) for f in folder.glob("work/*/manifest.json")]
    return [m["params"] for m in made if m["app"] == app]


def test_the_lattice_constant_is_that_of_the_density():
    # Four atoms of 39.948 g/mol in a cube.
    grams = 4 * 39.948 / 6.02214076e23
    assert lattice_constant(1.374) == pytest.approx((grams / 1.374) ** (1 / 3) * 1e8, rel=1e-7)
    # Solid argon: 5.30 angstrom and 1.77 g/cm^3 near 0 K (O. G. Peterson et al., Phys. Rev. 150, 703, 1966).
    assert lattice_constant(1.772) == pytest.approx(5.31, abs=0.01)


def test_quenched_argon_is_a_solid(here):
    steps = {"melt_steps": 500, "settle_steps": 500, "produce_steps": 1000}
    result = ha.apps.melt_quench(cells=4, quench_rate=40, **steps).result()
    assert result.ok, result.failure
    # Between the liquid's 3.68 angstrom (J. L. Yarnell et al., Phys. Rev. A 7, 2130, 1973) and the 3.88 of the perfect
    # crystal of 1.6 g/cm^3; two atoms alone rest at 2^(1/6) sigma = 3.82.
    assert result["first_peak"] == pytest.approx(3.78, abs=0.06)
    assert result["first_peak_height"] > 3.2
    assert result["coordination_number"] == pytest.approx(12.5, abs=0.7)
    assert result["mean_temperature"] == pytest.approx(40, abs=6)
    assert any("solid" in note for note in result.notes)
    # -8.6 epsilon/atom would be the perfect crystal (89 meV/atom); a glass lies above, the liquid far above it.
    assert -85 < result["potential_energy"] < -65
    assert {"trajectory", "structure", "rdf", "plot"} <= set(result.artifacts)
    dynamics = ["lj_minimize", *["lj_equilibrate"] * 3, "lj_produce"]
    assert [p.app for p in result.parts] == ["build_crystal", *dynamics, "rdf", "msd", "plot_rdf"]
    # (200 K - 40 K) / (40 K/ps) in steps of 5 fs.
    assert sorted(p["steps"] for p in by_app(here, "lj_equilibrate")) == [500, 500, 800]


def test_two_temperatures_of_a_liquid_share_the_melt_and_the_hotter_diffuses_faster(here):
    asked = {"cells": 4, "produce_steps": 2000, "settle_steps": 1000, "melt_steps": 500}
    cold, hot = (ha.apps.argon_diffusion(temperature=t, **asked).result() for t in (90, 200))
    assert cold.ok and hot.ok, (cold.failure, hot.failure)
    # Rahman (1964): 2.43e-5 cm^2/s at 94.4 K; some 256 atoms followed for 10 ps tell no more than a third.
    assert cold["diffusion"] == pytest.approx(2.2e-5, rel=0.4)
    assert hot["diffusion"] > 1.5 * cold["diffusion"]
    assert cold["mean_temperature"] == pytest.approx(90, abs=12)
    assert cold["first_peak"] == pytest.approx(3.7, abs=0.08)
    assert hot["pressure"] > cold["pressure"]
    assert not any("solid" in note for note in (*cold.notes, *hot.notes))
    # One crystal, one melt, two equilibrations.
    assert len(by_app(here, "build_crystal")) == 1
    assert sorted(p["t_stop"] for p in by_app(here, "lj_equilibrate")) == [90, 200, 250]
    table = np.loadtxt(Path(hot.workdir) / hot.artifacts["msd"], delimiter=",", skiprows=1)
    assert table[-1, 1] > table[1, 1]
    # The finite-size correction is there only where a viscosity is given.
    assert "diffusion_corrected" not in hot.metrics
    corrected = ha.apps.argon_diffusion(temperature=90, viscosity=0.28, **asked).result()
    assert corrected["diffusion"] == cold["diffusion"]
    # Yeh and Hummer (2004): xi k T / (6 pi eta L), here 2.8373 k 90 K / (6 pi 0.28 mPa s 23.1 angstrom).
    added = 2.837297 * 1.380649e-23 * corrected["mean_temperature"] / (
        6 * np.pi * 0.28e-3 * 4 * lattice_constant(1.374) * 1e-10
    )  # fmt: skip
    assert corrected["diffusion_corrected"] - corrected["diffusion"] == pytest.approx(added * 1e4, rel=0.02)


def test_a_timestep_that_blows_up_fails_by_its_name(here):
    failure = ha.apps.argon_diffusion(cells=3, timestep=0.02, melt_temperature=2000, density=3.0,
                                      melt_steps=500, settle_steps=100, produce_steps=100).result().failure  # fmt: skip
    assert failure is not None and failure.kind == "simulation"
    assert "its inner run lj_equilibrate" in failure.message
