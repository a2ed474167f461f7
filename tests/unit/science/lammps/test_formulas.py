"""Formulas of LAMMPS are worked out where the script says all that they need."""

from __future__ import annotations

import pytest

from hpcagent.science.lammps.formulas import Variables, immediate


def variables(text: str = "", given: dict[str, object] | None = None, dt: float | None = 0.005) -> Variables:
    made = Variables(given or {}, dt)
    for line in text.splitlines():
        made.define(line.split())
    return made


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("12", 12.0),
        (".5e-2", 0.005),
        ("$(2*3+1)", 7.0),
        ("$(round(20.0/dt))", 4000.0),
        ("$(2^3)", 8.0),
        ("$(1.0/3:%.2f)", 0.33),
        ("$(sqrt(floor(4.9)))", 2.0),
        ("${a}", 3.0),
        ("v_a", 3.0),
        ("$a", 3.0),
        ("$(v_b+${a})", 9.0),
        ("$(v_self)", None),
        ("$(random(1,2,3))", None),
        ("$(lx*2)", None),
        ("$(v_none)", None),
        ("$(-2^2)", None),  # 4 in LAMMPS, whose sign binds first
        ("$(1/0)", None),
        ("npt", None),
        ("$(__import__('os'))", None),
    ],
)
def test_what_an_argument_is(word: str, value: float | None) -> None:
    text = "variable a index 3\nvariable b equal 2*v_a\nvariable self equal v_self+1"
    assert variables(text).value(word) == pytest.approx(value)


def test_a_variable_is_what_lammps_makes_of_its_definitions() -> None:
    text = (
        "variable n index 5 6 7\nvariable i loop 10\nvariable s string 1\nvariable s string 2\nvariable x index 9"
    )
    made = variables(text, {"x": 4})
    assert [made.value(f"${{{name}}}") for name in "nisx"] == [None, None, 2.0, 4.0]
    made.define(["variable", "s", "equal", "v_x"], sure=False)
    assert made.value("${s}") is None


def test_what_follows_the_timestep_is_found_through_variables() -> None:
    made = variables(
        "variable d equal 100*dt\nvariable e equal v_d/2\nvariable time equal step*dt\nvariable dt index 1"
    )
    assert made.follows_dt("v_e") and made.follows_dt("$(dt)")
    assert not made.follows_dt("${dt} v_dt c_dt")
    assert made.only_as_time("v_time") and not made.only_as_time("v_e")


def test_brackets_belong_to_the_formula() -> None:
    assert immediate("a $((1+2)*(3)) ${b}$c $") == ["$((1+2)*(3))", "${b}", "$c"]
