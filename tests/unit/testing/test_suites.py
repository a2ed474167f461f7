"""The contract suites, kept by what hpcagent brings; each is seen to fail in `test_broken.py`."""

from __future__ import annotations

import numpy as np
import pytest

import hpcagent as ha
from hpcagent.policies.stop_combined import any_of
from hpcagent.policies.stop_infeasible import NoFeasiblePoint
from hpcagent.policies.stop_reached import Plateau
from hpcagent.policies.stop_spent import max_runs
from hpcagent.sites.profiles import find_profile, list_profiles
from hpcagent.testing import AppContract, EngineContract, SiteContract, StopContract


@ha.app(
    metrics={"area": ha.Metric(name="area", unit="m^2", description="of a circle")},
    parameters={"radius": ha.Float(0.0, 10.0, unit="m", description="of the circle")},
)
def circle(radius):
    return {"area": float(np.pi * radius**2)}


class TestSynthetic(AppContract):
    app = ha.apps.synthetic
    points = ({"x": 0.2, "y": 0.3}, {"x": 0.9, "y": 0.1})


class TestAnAppOfAScript(AppContract):
    app = circle
    points = ({"radius": 1.0}, {"radius": 2.0})


class TestMaxRuns(StopContract):
    condition = max_runs(12)
    stops_after = 12


class TestPlateau(StopContract):
    condition = Plateau(batches=2)


class TestNoFeasiblePoint(StopContract):
    condition = NoFeasiblePoint(min_runs=12)


class TestSeveral(StopContract):
    condition = any_of(max_runs(12), Plateau(batches=3))
    stops_after = 12


class TestEmt(EngineContract):
    name = "emt"
    force_tolerance = 1e-3
    energy_tolerance = 1e-9


class TestLj(EngineContract):
    name = "lj"
    settings = {"keywords": {"sigma": 2.3, "epsilon": 0.4, "rc": 6.0}}
    force_tolerance = 0.05  # the potential is cut off


@pytest.mark.parametrize("profile", [entry.name for entry in list_profiles() if entry.source.parent.name != ""])
class TestPackagedProfiles(SiteContract):
    @pytest.fixture
    def its(self, profile):
        type(self).profile = profile
        return find_profile(profile)


class TestThisMachine(SiteContract):
    profile = "threads"
    live = True
