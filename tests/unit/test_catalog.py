"""Every app that comes along keeps the house's rules."""

from __future__ import annotations

import inspect

import pytest

import hpcagent as ha
from hpcagent.apps import BUILT_IN
from hpcagent.catalog import find_app, list_apps
from hpcagent.units import factor

APPS = sorted(BUILT_IN)


@pytest.mark.parametrize("name", APPS)
def test_every_app_is_found_by_its_name(name):
    app = find_app(name)
    assert app.name == name
    assert getattr(ha.apps, name) is app
    assert app in list_apps()


@pytest.mark.parametrize("name", APPS)
def test_every_number_has_a_known_unit_and_a_description(name):
    contract = find_app(name).contract
    for parameter in contract.space.parameters:
        assert factor(parameter.unit, parameter.unit) == 1
        assert parameter.description, parameter.name
    for metric in contract.metrics:
        assert factor(metric.unit, metric.unit) == 1
        assert metric.description, metric.name


@pytest.mark.parametrize("name", APPS)
def test_every_app_says_what_it_does_and_how_it_fails(name):
    app = find_app(name)
    assert app.contract.description.endswith(".")
    assert app.contract.metrics
    doc = inspect.getdoc(app.plain_function)
    assert doc
    for failure in app.contract.failure_modes:
        assert failure.isidentifier()


# What nobody else can know: a wrong guess would give a wrong number.
MUST_BE_SAID = {
    "heat_capacity": ["ensemble"],
    "plot_convergence": ["parameter"],
    "ml_train_surrogate": ["target"],
    "ml_predict_property": ["model_id"],
    "train_pod_potential": ["condition"],
}


@pytest.mark.parametrize("name", APPS)
def test_every_parameter_has_a_default_unless_it_must_be_said(name):
    contract = find_app(name).contract
    missing = [p.name for p in contract.space.parameters if p.default is None]
    assert missing == MUST_BE_SAID.get(name, [])


def test_an_unknown_app_names_the_nearest():
    with pytest.raises(ha.BadInput, match="did you mean 'dft_energy'"):
        find_app("dft_enegy")
