"""The table of metrics."""

from __future__ import annotations

import pytest

from hpcagent.errors import BadInput
from hpcagent.science.lammps.metric_table import METRICS, metric_units
from hpcagent.units import STYLES, factor


@pytest.mark.parametrize("style", STYLES)
def test_every_metric_of_a_style_has_a_unit_that_converts(style: str) -> None:
    units = metric_units(style)
    assert set(units) <= set(METRICS)
    assert all(factor(unit, unit) == 1 for unit in units.values())
    assert ("ns_per_day" in units) != ("tau_per_day" in units)


def test_metrics_of_an_unknown_style_are_refused() -> None:
    with pytest.raises(BadInput, match="did you mean 'metal'"):
        metric_units("metall")
