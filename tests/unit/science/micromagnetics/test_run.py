"""Hysteresis loops and dynamics as apps: Stoner and Wohlfarth, muMAG, what is refused."""

from __future__ import annotations

import itertools
import math
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcagent.apps.worker import execute_as_result
from hpcagent.errors import BadInput
from hpcagent.model.records import Result
from hpcagent.science.micromagnetics.run import magnetization_dynamics, simulate_micromagnetics

COUNTER = itertools.count()

# A cube of one cell has no stray field that turns it: Stoner and Wohlfarth's particle, 2 K / Ms = 1.25 T.
PARTICLE: dict[str, Any] = {
    "size_x": 3.0,
    "size_y": 3.0,
    "size_z": 3.0,
    "cell": 3.0,
    "saturation_magnetization": 800.0,
    "exchange_stiffness": 10.0,
    "anisotropy": 500.0,
    "temperature": 300.0,
    "constants_at": 300.0,
    "field_max": 2.0,
    "field_polar": 0.0,
    "field_azimuth": 0.0,
}
ANISOTROPY_FIELD = 1.25  # T
# muMAG's standard problem 4, field 1: (-24.6, 4.3, 0) mT on the s-state of a film of permalloy.
PROBLEM_4: dict[str, Any] = {
    "size_x": 500.0,
    "size_y": 125.0,
    "size_z": 3.0,
    "cell": 5.0,
    "saturation_magnetization": 800.0,
    "exchange_stiffness": 13.0,
    "anisotropy": 0.0,
    "temperature": 300.0,
    "constants_at": 300.0,
    "start_polar": 90.0,
    "start_azimuth": 5.7,
    "field": math.hypot(24.6, 4.3) * 1e-3,
    "field_polar": 90.0,
    "field_azimuth": math.degrees(math.atan2(4.3, -24.6)),
    "damping": 0.02,
    "duration": 0.2,
}


def done(app, tmp_path: Path, seed: int = 0, **params: Any) -> Result:
    manifest = app.manifest(params, seed=seed, upstream=())
    result = execute_as_result(app.order(manifest, work=tmp_path / str(next(COUNTER)), site={}))
    assert isinstance(result, Result)
    if result.failure is not None:
        assert result.failure.name in app.contract.failure_modes, result.failure
    return result


def loop(tmp_path: Path, seed: int = 0, **params: Any) -> Result:
    return done(simulate_micromagnetics, tmp_path, seed, **PARTICLE | params)


def switching(psi: float) -> float:
    """Stoner and Wohlfarth's field of switching over 2 K / (mu0 Ms): Phil. Trans. R. Soc. A 240, 599 (1948)."""
    c, s = math.cos(math.radians(psi)), math.sin(math.radians(psi))
    return (c ** (2 / 3) + s ** (2 / 3)) ** -1.5


@pytest.mark.parametrize("psi", [0.0, 5.0, 22.5, 45.0, 60.0, 75.0])
def test_a_particle_has_the_loop_of_stoner_and_wohlfarth(tmp_path, psi):
    result = loop(tmp_path, field_polar=psi)
    assert result.ok, result.failure
    # Above 45 degrees the magnetisation along the field is 0 before it jumps: sin(2 psi) / 2.
    coercivity = switching(psi) if psi <= 45 else math.sin(math.radians(2 * psi)) / 2
    assert result["switching_field"] == pytest.approx(switching(psi) * ANISOTROPY_FIELD, abs=1.5e-3)
    assert result["coercivity"] == pytest.approx(coercivity * ANISOTROPY_FIELD, abs=1.5e-3)
    assert result["coercivity_resolution"] <= 1e-3
    assert result["coercive_field"] == pytest.approx(result["coercivity"] / (4e-7 * math.pi) / 1e3, rel=1e-6)
    assert result["remanence"] == pytest.approx(math.cos(math.radians(psi)), abs=1e-5)
    assert result["remanent_magnetization"] == pytest.approx(800 * math.cos(math.radians(psi)), abs=1e-2)
    assert result["simulation_stable"] == 1
    assert result["largest_torque"] <= 1e-6


def test_the_area_of_a_square_loop_is_four_times_that_of_its_quarter(tmp_path):
    """4 Ms mu0 Hc of a particle along its axis, 8 K: all that it was lifted by is lost."""
    assert loop(tmp_path)["loop_area"] == pytest.approx(8 * 5e5, rel=2e-3)


# 2 mu0 Ms times the integral of m dh over Stoner and Wohlfarth's branch from 1.6 to -1.6 (h = u^2 above the switching
# field, so that the slope is finite there; 20001 points), times 1.25 T.
@pytest.mark.parametrize(("psi", "area"), [(15.0, 2.90312), (45.0, 1.62380), (60.0, 1.14305), (85.0, 0.21028)])
@pytest.mark.parametrize("steps", [25, 50])
def test_the_area_is_within_its_stated_error_and_not_biased_by_the_steps(tmp_path, psi, area, steps):
    result = loop(tmp_path, field_polar=psi, field_steps=steps)
    off, error = result["loop_area"] / 8e5 - area, result.uncertainty["loop_area"] / 8e5
    assert abs(off) < 2 * error < 0.03 * area
    assert abs(off) < 1e-3 * area  # straight lines between the fields: up to 1.1e-2


@pytest.mark.slow
def test_ways_of_reversal_that_chance_decides_between_are_told_and_the_lowest_is_given(tmp_path):
    """A bar along its axis: its ends turn to one side (0.060 T), or to opposite ones (0.081 T) with seed 0."""
    bar = PARTICLE | {
        "size_x": 100.0,
        "size_y": 40.0,
        "size_z": 5.0,
        "cell": 5.0,
        "exchange_stiffness": 13.0,
        "anisotropy": 0.0,
        "field_max": 0.1,
        "field_polar": 90.0,
        "field_steps": 20,
        "field_resolution": 2e-3,
    }
    alone = done(simulate_micromagnetics, tmp_path, 0, **bar, starts=1)
    assert any("one start" in note for note in alone.notes)
    found = done(simulate_micromagnetics, tmp_path, 0, **bar)
    assert found["coercivity"] == pytest.approx(0.0605, abs=1e-3)  # as with seeds 1 to 19
    assert alone["coercivity"] > 1.2 * found["coercivity"]
    spread = alone["coercivity"] - found["coercivity"]
    assert found.uncertainty["coercivity"] == pytest.approx(spread / math.sqrt(2), rel=0.05)
    assert any("the starts reverse in different ways, at 0.06" in note for note in found.notes)


def test_across_the_axis_nothing_is_lost_and_no_field_of_switching_is_given(tmp_path):
    result = loop(tmp_path, field_polar=90.0)
    assert result.ok, result.failure
    assert "switching_field" not in result.metrics
    assert result["loop_area"] == pytest.approx(0.0, abs=5e-3 * 8 * 5e5)
    assert result["coercivity"] == pytest.approx(0.0, abs=2e-3)
    assert any("never jumps" in note for note in result.notes)
    assert any("no larger than twice its resolution" in note for note in result.notes)


def test_the_loop_is_written_with_both_branches(tmp_path):
    result = loop(tmp_path, field_polar=30.0)
    rows = np.genfromtxt(Path(result.workdir) / result.artifacts["loop"], delimiter=",", names=True)
    there, back = rows[rows["branch_1"] == 0], rows[rows["branch_1"] == 1]
    assert there["field_T"][0] == -there["field_T"][-1] == 2.0
    assert np.array_equal(back["m_along_field_1"], -there["m_along_field_1"])
    length = np.sqrt(sum(rows[f"m_{axis}_1"] ** 2 for axis in "xyz"))
    assert length == pytest.approx(1.0, abs=1e-8)
    towards = np.array([math.sin(math.pi / 6), 0.0, math.cos(math.pi / 6)])
    along = sum(rows[f"m_{axis}_1"] * t for axis, t in zip("xyz", towards, strict=True))
    assert along == pytest.approx(rows["m_along_field_1"], abs=1e-8)


def test_a_field_that_turns_nothing_round_is_a_failure(tmp_path):
    failure = loop(tmp_path, field_max=0.5).failure
    assert failure is not None
    assert failure.name == "NotSaturated"
    assert "larger field_max" in failure.repair


def test_no_constants_are_assumed_for_another_temperature(tmp_path):
    failure = loop(tmp_path, temperature=350.0).failure
    assert failure is not None
    assert failure.name == "UnknownTemperature"
    assert failure.kind == "contract"


def test_by_a_law_of_temperature_the_anisotropy_field_falls_as_the_square_of_the_magnetisation(tmp_path):
    """K1 as Ms^3, so that 2 K1 / Ms goes as Ms^2."""
    law = {"temperature_law": "kuzmin", "curie_temperature": 1000.0, "curve_shape": 0.5, "curve_power": 2.5}
    result = loop(tmp_path, temperature=600.0, constants_at=0.0, **law)
    assert result.ok, result.failure
    ratio = (1 - 0.5 * 0.6**1.5 - 0.5 * 0.6**2.5) ** (1 / 3)
    assert result["saturation_magnetization"] == pytest.approx(800 * ratio)
    assert result["coercivity"] == pytest.approx(ANISOTROPY_FIELD * ratio**2, abs=1.5e-3)
    assert any("assumed" in note for note in result.notes)


@pytest.mark.slow
def test_a_larger_cube_of_cells_turns_as_one_particle(tmp_path):
    result = loop(tmp_path, size_x=6.0, size_y=6.0, size_z=6.0, field_polar=45.0)
    assert result["n_cells"] == 8
    assert result["coercivity"] == pytest.approx(0.5 * ANISOTROPY_FIELD, abs=3e-3)


@pytest.mark.slow
def test_loose_grains_with_axes_all_around_have_the_remanence_of_stoner_and_wohlfarth(tmp_path):
    """One half, where grains see nothing of each other: neither exchange nor, at small Ms, a stray field."""
    found = [
        loop(
            tmp_path,
            seed=seed,
            starts=1,
            microstructure_model="voronoi",
            grain_size=4.5,
            tolerance=1e-3,
            axis_spread=90.0,
            grain_coupling=0.0,
            size_x=24.0,
            size_y=24.0,
            size_z=24.0,
            saturation_magnetization=10.0,
            anisotropy=6.25,
            exchange_stiffness=0.1,
            field_resolution=0.1,
            field_steps=8,
        )
        for seed in (1, 2)
    ]
    for result in found:
        assert result.ok, result.failure
        assert result["n_grains"] > 100
        # |cos| of each grain scatters by 0.29.
        assert result["remanence"] == pytest.approx(0.5, abs=4 * 0.29 / math.sqrt(result["n_grains"]))
        # 0.479 of 2 K / Ms for the particles' mean loop: E. C. Stoner and E. P. Wohlfarth (1948).
        assert result["coercivity"] == pytest.approx(0.479 * ANISOTROPY_FIELD, abs=0.08)
    assert found[0]["remanence"] != found[1]["remanence"]


def test_parameters_that_a_choice_needs_are_asked_for(tmp_path):
    with pytest.raises(BadInput, match="grain_size"):
        loop(tmp_path, microstructure_model="voronoi")
    with pytest.raises(BadInput, match="curie_temperature"):
        loop(tmp_path, temperature_law="kuzmin")


# ---- dynamics


@pytest.mark.slow
def test_the_film_of_standard_problem_4_is_across_at_the_time_of_mumags_solutions(tmp_path):
    """m_x is 0 first at 0.138 ns (https://www.ctcms.nist.gov/~rdm/std4/results.html, 0.136 to 0.140 ns)."""
    result = done(magnetization_dynamics, tmp_path, **PROBLEM_4)
    assert result.ok, result.failure
    assert result["zero_x"] == pytest.approx(0.138, abs=0.0015)
    assert result["n_cells"] == 2500
    assert result["norm_error"] < 1e-5
    assert result["energy_change"] < 0
    state = np.load(Path(result.workdir) / result.artifacts["state"])
    assert state.shape == (3, 100, 25, 1)
    assert state.reshape(3, -1).mean(axis=1) == pytest.approx([result[f"m_{a}"] for a in "xyz"], abs=1e-12)


def test_a_time_step_that_lets_the_energy_rise_is_a_failure(tmp_path, monkeypatch):
    from hpcagent.science.micromagnetics import llg

    small = PROBLEM_4 | {"size_x": 20.0, "size_y": 10.0, "duration": 0.05}
    assert done(magnetization_dynamics, tmp_path, **small).ok
    right = llg.slope
    monkeypatch.setattr(llg, "slope", lambda m, b, gamma, alpha: right(m, b, gamma, -alpha))
    failure = done(magnetization_dynamics, tmp_path, **small).failure
    assert failure is not None
    assert failure.name == "Unstable"
    assert "has risen" in failure.message


@pytest.mark.slow
def test_a_large_body_has_a_process_that_its_walltime_ends(tmp_path):
    app = magnetization_dynamics.with_resources(walltime_s=3.0)
    failure = done(app, tmp_path, **PROBLEM_4 | {"duration": 1000.0, "max_steps": 10_000_000}).failure
    assert failure is not None
    assert failure.name == "Walltime"


# ---- magnum.np


def test_without_magnumnp_its_absence_is_said(tmp_path):
    if find_spec("magnumnp") is not None:
        pytest.skip("magnum.np is installed")
    failure = loop(tmp_path, engine="magnumnp").failure
    assert failure is not None
    assert failure.name == "NoEngine"
    assert "hpcagent[magnetics]" in failure.repair


@pytest.mark.slow
def test_magnumnp_has_the_same_loop_and_the_same_time(tmp_path):
    pytest.importorskip("magnumnp")
    here, there = (loop(tmp_path, field_polar=22.5, engine=e, field_resolution=5e-3) for e in ("own", "magnumnp"))
    assert there.ok, there.failure
    assert there["coercivity"] == pytest.approx(here["coercivity"], abs=6e-3)
    assert there["remanence"] == pytest.approx(here["remanence"], abs=1e-4)
    film = PROBLEM_4 | {"size_x": 200.0, "size_y": 50.0, "duration": 0.1}
    here, there = (done(magnetization_dynamics, tmp_path, **film, engine=e) for e in ("own", "magnumnp"))
    assert there.ok, there.failure
    assert [there[f"m_{a}"] for a in "xyz"] == pytest.approx([here[f"m_{a}"] for a in "xyz"], abs=5e-3)
    assert there["energy"] == pytest.approx(here["energy"], rel=1e-2)
