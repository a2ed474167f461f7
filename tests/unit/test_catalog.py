"""Every app that comes along keeps the house's rules."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

import hpcagent as ha
from hpcagent.apps import BUILT_IN
from hpcagent.catalog import app_names, find_app, list_apps
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
_BODY = ["size_x", "size_y", "size_z", "cell", "saturation_magnetization", "exchange_stiffness", "anisotropy"]
_GRAINS = ["grain_size", "axis_spread", "grain_coupling"]
_AT = ["temperature", "constants_at", "curie_temperature", "curve_shape", "curve_power"]
_FIELD = ["field_polar", "field_azimuth"]
MUST_BE_SAID = {
    "heat_capacity": ["ensemble"],
    "plot_convergence": ["parameter"],
    "simulate_micromagnetics": [*_BODY, *_GRAINS, *_AT, "field_max", *_FIELD],
    "magnetization_dynamics": [
        *_BODY, *_GRAINS, *_AT, "start_polar", "start_azimuth", "field", *_FIELD, "damping", "duration",
    ],
    "simulate_chemical_reaction": ["reactants", "temperature"],
    "calculate": ["expression"],
    "plot_data": ["x", "y"],
    "ml_train_surrogate": ["target"],
    "ml_predict_property": ["model_id"],
    "train_pod_potential": ["condition"],
    "query_materials_database": ["source"],
}  # fmt: skip


@pytest.mark.parametrize("name", APPS)
def test_every_parameter_has_a_default_unless_it_must_be_said(name):
    contract = find_app(name).contract
    missing = [p.name for p in contract.space.parameters if p.default is None]
    assert missing == MUST_BE_SAID.get(name, [])


def test_an_unknown_app_names_the_nearest():
    with pytest.raises(ha.BadInput, match="did you mean 'dft_energy'"):
        find_app("dft_enegy")


def test_the_names_of_apps_are_looked_for_once(monkeypatch):
    """Each run of a workspace asks for them: no folder is read then."""
    names = app_names()
    monkeypatch.setattr(Path, "glob", lambda *given, **more: pytest.fail("a folder was read"))
    assert app_names() == names and "lj_argon" in names
