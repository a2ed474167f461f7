"""Numbers from thermo columns."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hpcagent.errors import BadInput
from hpcagent.science.lammps.reduced import reduce_column, reduced
from tests.unit.science.lammps.printed import ROWS, log_of

# 400 steps of 2 fs; E rises by 0.01 eV per 0.2 ps with a zigzag of 0.002 eV.


@pytest.mark.parametrize(
    ("how", "value"),
    [
        ("mean", 41.6),
        ("std", math.sqrt(0.24) * 4),
        ("first", 40),
        ("last", 40),
        ("min", 40),
        ("max", 44),
        ("slope", 0.0),
    ],
)
def test_columns_are_reduced_as_asked(how: str, value: float) -> None:
    assert reduce_column(log_of(ROWS).runs[0], "temp", how) == pytest.approx(value, abs=1e-9)


def test_errors_of_columns_are_those_of_an_autoregressive_series() -> None:
    # x(i) = phi x(i-1) + noise of variance 1 - phi^2: sd 1, g = (1 + phi) / (1 - phi) = 9, of x^2 with phi^2.
    n, phi = 4000, 0.8
    rng = np.random.default_rng(7)
    misses: dict[str, list[float]] = {"mean": [], "std": [], "slope": []}
    for _ in range(12):
        noise = rng.normal(0, math.sqrt(1 - phi**2), n)
        x = np.zeros(n)
        for i in range(1, n):
            x[i] = phi * x[i - 1] + noise[i]
        rows = "\n".join(f"{100 * i} {v:.9g}" for i, v in enumerate(x))
        run = log_of(
            rows, header="Step Mine", loop=f"Loop time of 2 on 1 procs for {100 * n} steps with 9 atoms"
        ).runs[0]
        for how, true in (("mean", 0.0), ("std", 1.0), ("slope", 0.0)):
            value, error = reduced(run, "Mine", how)
            misses[how].append((value - true) / error)
            assert value == reduce_column(run, "Mine", how)
        # One error of 40 batches is known to a fifth, and skewed upwards; their coverage is held below.
        assert 0.65 < reduced(run, "Mine", "mean")[1] / math.sqrt(9 / n) < 1.7
        assert 0.65 < reduced(run, "Mine", "std")[1] / (0.5 * math.sqrt(2 / n * (1 + phi**2) / (1 - phi**2))) < 1.8
        assert math.isnan(reduced(run, "Mine", "max")[1])
    for how, found in misses.items():
        # That of a slope allows for a walk below the noise, and so is up to three times too large here.
        least = 0.3 if how == "slope" else 0.4
        assert np.abs(found).max() < 3.5 and least < np.sqrt(np.mean(np.square(found))) < 1.7, how


def test_a_column_is_reduced_after_the_discarded_share_in_time_of_the_style() -> None:
    run = log_of(ROWS).runs[0]
    assert reduce_column(run, "Temp", "first", 0.2) == 44
    assert reduce_column(run, "etotal", "slope") == pytest.approx(0.05)
    broken = log_of(ROWS.replace("-59.980", "nan")).runs[0]
    assert math.isnan(reduce_column(broken, "etotal", "mean"))
    with pytest.raises(BadInput, match="no thermo column 'Tmp'"):
        reduce_column(run, "Tmp", "mean")
    with pytest.raises(BadInput, match="did you mean 'mean'"):
        reduce_column(run, "Temp", "meen")
