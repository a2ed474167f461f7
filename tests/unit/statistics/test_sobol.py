"""The same points as those of scipy, which takes long to import."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from scipy.stats import qmc

from hpcagent.statistics.sobol import scrambled_sobol


@pytest.mark.parametrize("size", [1, 2, 3, 7, 20, 64, 65])
@pytest.mark.parametrize("n", [1, 2, 8, 1024])
def test_every_point_is_that_of_scipy_to_the_last_bit(size, n):
    for seed in (0, 7):
        assert np.array_equal(scrambled_sobol(size, n, seed), qmc.Sobol(size, seed=seed).random(n))
    mine, theirs = np.random.default_rng([3, 1]), np.random.default_rng([3, 1])
    for _ in range(2):  # the second time from the same generator: others
        assert np.array_equal(scrambled_sobol(size, n, mine), qmc.Sobol(size, seed=theirs).random(n))
    assert mine.random() == theirs.random()


def test_no_points_are_none():
    assert scrambled_sobol(3, 0, 0).shape == (0, 3)


def test_a_report_and_a_steering_policy_import_no_scipy_stats():
    code = """
import sys
import numpy as np
import hpcagent.policies.bayes, hpcagent.reports.model_plots, hpcagent.reports.report
from hpcagent.statistics.insight import sobol_indices
from hpcagent.policies import make_policy
from hpcagent.model.objective import maximize
from hpcagent.model.parameter import Float
from hpcagent.model.space import Space

sobol_indices(lambda u: u[:, 0], 2)
make_policy("sobol", space=Space.of(x=Float(0.0, 1.0)), objective=maximize("y"), seed=1).suggest((), 4)
print("scipy.stats" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
