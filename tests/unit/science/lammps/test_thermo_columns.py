"""Names and units of columns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hpcagent.science.lammps.log import read_log
from hpcagent.science.lammps.thermo_columns import canonical

Lammps = Callable[..., Path]


def test_columns_are_found_under_every_usual_name(lammps: Lammps) -> None:
    run = read_log(lammps("run 100\n")).runs[0]
    for name in ("TotEng", "etotal", "Etot", "E_tot", "Etotal", "toteng"):
        assert name in run
        np.testing.assert_array_equal(run[name], run.data[:, 2])
    assert canonical("v_TEMP") == "v_TEMP"
    assert "density" not in run
    with pytest.raises(KeyError, match="no thermo column 'density'; it has Step, Temp"):
        run["density"]
    with pytest.raises(KeyError):
        run.unit("density")
    assert (run.unit("press"), run.unit("vol"), run.unit("step")) == ("bar", "angstrom^3", "1")
