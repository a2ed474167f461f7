"""The oscillator is what velocity Verlet of a spring must be, to the last step."""

from __future__ import annotations

import math

import pytest

import hpcagent as ha
from hpcagent.apps.spring import oscillator


def run(**params):
    with ha.open_site("threads"):
        return oscillator(**params).result()


def test_positions_are_those_of_the_discrete_solution():
    # A mass of 1 u on 1 eV/angstrom^2 has w = sqrt(1.602176634e-19 / 1e-20 / 1.66053906660e-27) = 9.8227e13 rad/s.
    w = 9.8226948e13 * 1e-15
    h, n = 2.0, 777
    found = run(max_steps=n, timestep=h, mass=1.0, spring=1.0, temperature=0.0)
    big = math.acos(1 - (w * h) ** 2 / 2) / h
    assert found["position"] == pytest.approx(0.1 * math.cos(big * n * h), abs=2e-6)
    assert found["steps_completed"] == n and found["simulated_time"] == n * h


def test_the_energy_error_falls_with_the_square_of_the_timestep():
    coarse, fine = (run(max_steps=4000, timestep=h, mass=1.0, temperature=0.0)["energy_error"] for h in (2.0, 1.0))
    assert 3.8 < coarse / fine < 4.2


def test_an_unstable_timestep_is_a_failure_that_names_the_step_and_the_limit():
    failure = run(max_steps=5000, timestep=21.0, mass=1.0, spring=1.0).failure
    assert failure.name == "Unstable" and failure.message.startswith("step ")
    assert "20.4 fs" in failure.repair  # 2 / w
    assert run(max_steps=5000, timestep=20.0, mass=1.0, spring=1.0).ok


def test_the_energy_error_is_that_of_every_step():
    # The start is at rest at x0, where the energy of Verlet's shadow oscillator is furthest from that at x = 0:
    # the share is (w h / 2)^2. A period of ten steps returns to the start at every tenth step.
    w = 9.8226948e13 * 1e-15
    h = 2 * math.sin(math.pi / 10) / w
    found = run(max_steps=1000, timestep=h, mass=1.0, temperature=0.0)
    phases = [math.cos(2 * math.pi * n / 10) for n in range(10)]
    expected = max((w * h / 2) ** 2 * (1 - c * c) for c in phases)
    assert found["energy_error"] == pytest.approx(expected, rel=1e-4)


def test_a_failed_run_tells_the_steps_that_it_completed():
    result = run(max_steps=5000, timestep=21.0, mass=1.0, spring=1.0)
    assert not result.ok and result.failure.message.startswith(
        f"step {result.metrics['steps_completed'] + 1:.0f}:"
    )
    assert result.metrics["steps_completed"] > 1


def test_the_seed_draws_the_start_and_the_same_seed_the_same_one():
    with ha.open_site("threads"):
        one, other = (oscillator(seed=s).result() for s in (1, 2))
        again = oscillator(seed=1, replicate=0, max_steps=1000).result()
    assert one["position"] != other["position"] and one["position"] == again["position"]


def test_starts_have_the_temperature_on_average():
    with ha.open_site("threads"):
        runs = [oscillator(seed=s, max_steps=1, timestep=0.001) for s in range(400)]
        mean = sum(one.result()["energy"] for one in runs) / 400
    assert mean == pytest.approx(8.617333e-5 * 300, rel=0.15)  # kT: half of it kinetic, half potential
