"""The same call again with something changed, held against the app's contract."""

from __future__ import annotations

import pytest

import hpcagent as ha
from hpcagent.contexts import Change, Contexts, again, new_call, recalled
from hpcagent.contexts.calls import read_change
from hpcagent.errors import BadInput


def app(version="1.2.0", **more):
    parameters = {
        "temperature": ha.Float(100, 900, unit="K"),
        "timestep": ha.Float(0.1, 10, unit="fs", default=1.0),
        "steps": ha.Int(1, 100_000, default=1000),
        "style": ha.Choice("opt", "omp", "2x2", default="opt"),
        "kpoints": ha.Choice(1, 2, 4, 8, default=2),
        "fixed": ha.Choice(True, False, default=False),
        "threads": ha.Int(1, 8, default=1, when="style == 'omp'"),
        "field": ha.Float(-2, 2, unit="1", default=0.1),
        "formula": ha.Text(default="NaCl"),
    }

    def reaction(**_):
        return {"energy": 1.0}

    return ha.app(parameters=parameters | more, metrics={"energy": "eV"}, version=version)(reaction)


@pytest.fixture
def context(tmp_path):
    return Contexts(tmp_path).create("c")


def made(context, changes, *, of=None, **options):
    reaction = of or app()
    if not context.read().calls:
        first = new_call(app(), {"temperature": 300})
        context.write(first.record("call-1", result="file:///runs/1/result.json"), by="planner")
    return again(context.read(), changes, {"reaction": reaction}.__getitem__, **options)


def test_the_same_fifty_degrees_higher(context):
    call = made(context, "temperature +50 K")
    assert (call.app, call.version, call.since) == ("reaction", "1.2.0", "call-1")
    assert call.params == {
        "temperature": 350.0,
        "timestep": 1.0,
        "steps": 1000,
        "style": "opt",
        "kpoints": 2,
        "fixed": False,
        "field": 0.1,
        "formula": "NaCl",
    }
    assert call.units == {"temperature": "K", "timestep": "fs"} and call.changes == ("temperature +50 K",)
    # It becomes the earlier call of the next one.
    context.write(call.record("call-2"), by="planner")
    assert made(context, "temperature +50 K").params["temperature"] == 400.0
    assert made(context, "temperature +50 K", call="call-1").params["temperature"] == 350.0


@pytest.mark.parametrize(
    ("change", "name", "value"),
    [
        ("temperature=350 K", "temperature", 350.0),
        ("temperature=76.85 degC", "temperature", 350.0),  # 273.15 + 76.85
        ("temperature +50 degC", "temperature", 350.0),
        ("temperature -50K", "temperature", 250.0),
        ("temperature x2", "temperature", 600.0),
        ("temperature * 1.5", "temperature", 450.0),
        ("temperature /2", "temperature", 150.0),
        ("timestep=0.002 ps", "timestep", 2.0),
        ("timestep +500 as", "timestep", None),
        ("timestep +0.0005 ps", "timestep", 1.5),
        ("steps x2", "steps", 2000),
        ("steps=2e3", "steps", 2000),
        ("steps +5 ", "steps", 1005),
        ("kpoints x2", "kpoints", 4),
        ("style=2x2", "style", "2x2"),
        ("fixed=true", "fixed", True),
        ("field +0.2", "field", 0.3),
        ("field=-1.5", "field", -1.5),
        ("formula=H2O", "formula", "H2O"),
        ("formula='2 H2O'", "formula", "2 H2O"),
        (Change(field="temperature", add=-50, unit="K"), "temperature", 250.0),
        ({"field": "temperature", "set": 350, "unit": "K"}, "temperature", 350.0),
        ({"field": "steps", "times": 0.5}, "steps", 500),
    ],
)
def test_a_change_is_absolute_relative_or_a_factor_in_any_unit(context, change, name, value):
    if value is None:
        with pytest.raises(BadInput, match="unknown unit 'as'"):
            made(context, change)
        return
    found = made(context, change).params[name]
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("temprature +50 K", r"has no parameter 'temprature'; did you mean 'temperature'\?"),
        ("cutoff=400 eV", "app reaction 1.2.0 has no parameter 'cutoff'"),
        ("temperature +50", "temperature is in K, and the number has no unit"),
        ("temperature=350", "and the number has no unit; write it, e.g. 'temperature=350 K'"),
        ("temperature +50 eV", "'eV' cannot be converted to 'K'"),
        ("temperature +50 Kelvins", "unknown unit 'Kelvins'"),
        ("temperature +5000 K", r"temperature=5300 K is outside \[100, 900\] K"),
        ("temperature x2 K", "a factor has no unit"),
        ("temperature /0", "divides by zero"),
        ("temperature +inf K", "is no number"),
        ("temperature = ", "gives no value"),
        ("hotter", "is no change; write NAME=VALUE UNIT"),
        ("temperature ++50 K", "is no change"),
        ("steps x1.0005", "steps=1000.5 is not a whole number"),
        ("kpoints x3", r"kpoints=6 is not one of \{1, 2, 4, 8\}"),
        ("style +1", "style is 'opt', so it cannot be added to"),
        ("style=cuda", r"style='cuda' is not one of"),
        ("threads=2", "threads of app reaction 1.2.0 applies only when style == 'omp'"),
        (["temperature +1 K", "temperature +2 K"], "'temperature' is changed twice"),
        (
            {"field": "temperature", "set": 350, "add": 1, "unit": "K"},
            "has one of set, add and times; got set, add",
        ),
        ({"field": "temperature"}, "got none"),
        ({"field": "temperature", "add": 50, "units": "K"}, r"unknown key 'units'; did you mean 'unit'\?"),
        (Change(field="formula", set="x", unit="K"), "is a text and has no unit"),
        (7, "a change is a text or a table, or a list of them; got 7"),
        ([], "no change is given"),
    ],
)
def test_what_the_app_does_not_have_or_allow_is_refused(context, change, said):
    with pytest.raises(BadInput, match=said):
        made(context, change)


def test_parameters_that_no_longer_apply_are_named(context):
    call = made(context, ["style=omp", "threads=4"])
    assert call.params["threads"] == 4
    context.write(call.record("call-2"), by="planner")
    back = made(context, "style=opt")
    assert "threads" not in back.params
    assert back.notes == ("threads=4 is left out: it applies only when style == 'omp'",)


def test_another_version_of_the_app_is_told_and_units_are_converted(context):
    made(context, "temperature +50 K")
    newer = app(
        "2.0.0",
        timestep=ha.Float(1e-4, 1e-2, unit="ps", default=1e-3),
        pressure=ha.Float(0, 9, unit="bar", default=1.0),
    )
    with pytest.raises(
        BadInput, match=r"was made with reaction 1\.2\.0, which is 2\.0\.0 now; its result may mean"
    ):
        made(context, "temperature +50 K", of=newer)
    call = made(context, "temperature +50 K", of=newer, other_version=True)
    assert call.version == "2.0.0" and call.params["timestep"] == 0.001 and call.units["timestep"] == "ps"
    assert call.notes == (
        "call 'call-1' was made with reaction 1.2.0, which is 2.0.0 now",
        "pressure=1.0 is the default: the earlier call did not have it",
    )


def test_a_journal_says_which_calls_cannot_be_made_again(context):
    reaction = app()
    context.write(new_call(reaction, {"temperature": 300}).record("good"), by="planner")
    old = new_call(app("1.0.0"), {"temperature": 300})
    context.write(old.record("old"), by="planner")
    context.write(new_call(ha.apps.synthetic, {"x": 0.5}).record("other"), by="planner")
    found = recalled(context.read(), {"reaction": reaction}.__getitem__)
    assert found["good"] == "" and "was made with reaction 1.0.0, which is 1.2.0 now" in found["old"]
    assert found["other"] == "there is no app 'synthetic' any more."
    narrower = app(temperature=ha.Float(400, 900, unit="K"))
    assert "outside [400, 900] K" in recalled(context.read(), lambda name: narrower)["good"]


def test_the_last_call_of_an_app_is_found_by_its_name(context):
    made(context, "temperature +50 K")
    context.write(new_call(ha.apps.synthetic, {"x": 0.5}).record("other"), by="planner")
    assert made(context, "temperature +50 K", app="reaction").params["temperature"] == 350.0
    with pytest.raises(BadInput, match="has no call of app 'reactor'; did you mean 'reaction'"):
        made(context, "temperature +50 K", app="reactor")
    with pytest.raises(BadInput, match="the app that was found is 'reaction'"):
        again(context.read(), "x +0.1", lambda name: app())


def test_a_first_call_is_checked_too():
    with pytest.raises(BadInput, match="unknown parameter 'temp'"):
        new_call(app(), {"temp": 300})
    with pytest.raises(BadInput, match=r"threads of app reaction 1.2.0 applies only when"):
        new_call(app(), {"temperature": 300, "threads": 2})


def test_a_change_is_written_as_it_is_read():
    for text in ("temperature=350 K", "temperature +50 K", "temperature -50 K", "timestep x2"):
        assert str(read_change(text)) == text
