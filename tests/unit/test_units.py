"""Units against the LAMMPS manual and CODATA."""

from __future__ import annotations

import math

import pytest

from hpcagent.errors import BadInput
from hpcagent.units import STYLES, convert, factor, unit_style

PHYSICAL = [name for name in STYLES if name != "lj"]
# force->boltz in LAMMPS's update.cpp; older constants than CODATA 2018.
LAMMPS_BOLTZMANN = {
    "real": 0.0019872067,
    "metal": 8.617343e-5,
    "si": 1.3806504e-23,
    "cgs": 1.3806504e-16,
    "electron": 3.16681534e-6,
    "micro": 1.3806504e-8,
    "nano": 0.013806504,
}


@pytest.mark.parametrize(
    ("value", "from_unit", "to_unit", "expected"),
    [
        (2.0, "fs", "ps", 0.002),
        (1.0, "ns", "fs", 1e6),
        (1.0, "day", "s", 86400),
        (1.0, "us", "µs", 1),
        (1.0, "eV", "meV", 1000),
        (1.0, "eV", "J", 1.602176634e-19),
        (1.0, "kcal/mol", "meV", 43.36410424),
        (1.0, "kJ/mol", "meV", 10.36426966),
        (1.0, "Hartree", "eV", 27.211386245988),
        (1.0, "atm", "bar", 1.01325),
        (1.0, "bar", "Pa", 1e5),
        (1.0, "eV/angstrom^3", "GPa", 160.2176634),
        (1.0, "bohr", "angstrom", 0.529177210903),
        (1.0, "nm", "angstrom", 10),
        (1.0, "g/mol", "amu", 1.0),
        (1.0, "g/cm^3", "kg/m3", 1000),
        (50.0, "ppm", "1", 5e-5),
        (1.0, "%", "ppm", 1e4),
        (0.0, "1", "%", 0.0),
        (1.0, "meV/atom/ns", "eV/atom/ps", 1e-6),
        (1.0, "Matom-step/s", "katom-step/s", 1000),
    ],
)
def test_values_convert(value: float, from_unit: str, to_unit: str, expected: float) -> None:
    assert convert(value, from_unit, to_unit) == pytest.approx(expected, rel=1e-8)


def test_a_number_in_another_unit_is_the_float_that_one_would_write() -> None:
    thousandths = [f"{k}e-3" for k in range(1, 3001)]
    assert [convert(k, "meV", "eV") for k in range(1, 3001)] == [float(text) for text in thousandths]
    assert [convert(k / 10, "meV", "eV") for k in range(1, 3001)] == [float(f"{k}e-4") for k in range(1, 3001)]
    assert [convert(float(text), "eV", "meV") for text in thousandths] == list(range(1, 3001))
    assert convert(1, "kcal/mol", "kJ/mol") == 4.184 and convert(3.3, "nm", "angstrom") == 33.0


def test_numbers_that_are_too_large_or_none_stay_what_they_are() -> None:
    assert convert(-1e300, "m", "pm") == -math.inf
    assert math.isnan(convert(math.nan, "m", "pm")) and convert(10**400, "m", "pm") == math.inf


@pytest.mark.parametrize(
    ("from_unit", "to_unit", "says"),
    [
        ("fs", "bar", "'fs' cannot be converted to 'bar': the first is a time, the second a pressure"),
        ("eV", "eV/atom", "cannot be converted"),
        ("epsilon", "eV", "cannot be converted"),
        ("tau", "ps", "cannot be converted"),
        ("1", "K", "a pure number"),
        ("fss", "ps", "unknown unit 'fss' in 'fss'; did you mean 'fs'"),
        ("meV/atm0", "ps", "unknown unit 'atm0'"),
    ],
)
def test_what_cannot_be_converted_is_refused_in_a_sentence(from_unit: str, to_unit: str, says: str) -> None:
    with pytest.raises(BadInput, match=says.replace("(", r"\(")):
        convert(1.0, from_unit, to_unit)


@pytest.mark.parametrize("name", PHYSICAL)
def test_each_style_has_the_boltzmann_constant_of_lammps_to_five_digits(name: str) -> None:
    assert unit_style(name).boltzmann == pytest.approx(LAMMPS_BOLTZMANN[name], rel=1e-5)


@pytest.mark.parametrize("name", PHYSICAL)
def test_units_of_a_style_measure_what_they_say(name: str) -> None:
    style = STYLES[name]
    for unit, kind in (
        (style.time, "ps"),
        (style.energy, "meV"),
        (style.temperature, "K"),
        (style.pressure, "bar"),
        (style.distance, "angstrom"),
        (style.mass, "g/mol"),
        (style.velocity, "m/s"),
        (style.force, "N"),
        *([(style.density, "g/cm^3")] if style.density else []),
    ):
        assert factor(unit, kind) * factor(kind, unit) == pytest.approx(1)


@pytest.mark.parametrize("name", ["si", "cgs", "micro", "nano"])
def test_mechanical_styles_are_consistent(name: str) -> None:
    """In these, LAMMPS needs no conversion factor: energy = mass velocity^2, pressure = energy / volume."""
    style = STYLES[name]
    mass, length, time = (
        factor(u, si) for u, si in ((style.mass, "kg"), (style.distance, "m"), (style.time, "s"))
    )
    assert factor(style.energy, "J") == pytest.approx(mass * length**2 / time**2)
    assert factor(style.pressure, "Pa") == pytest.approx(mass / length / time**2)
    assert factor(style.velocity, "m/s") == pytest.approx(length / time)


def test_numbers_that_the_manual_gives() -> None:
    assert factor("electron_time", "s") == pytest.approx(1.03275e-15, rel=1e-5)
    assert STYLES["cgs"].pressure_bar == pytest.approx(1e-6)
    assert [STYLES[s].default_timestep for s in ("lj", "real", "metal", "electron", "micro", "nano")] == [
        0.005,
        1.0,
        0.001,
        0.001,
        2.0,
        0.00045,
    ]
    assert (STYLES["real"].time_ps, STYLES["metal"].time_ps) == (0.001, 1.0)
    assert STYLES["real"].energy_mev == pytest.approx(43.364104)


def test_reduced_units_have_no_size() -> None:
    lj = STYLES["lj"]
    assert lj.reduced and lj.normalized and lj.boltzmann == 1
    sizes = (lj.time_ps, lj.energy_mev, lj.temperature_k, lj.pressure_bar, lj.distance_angstrom)
    assert sizes == (None,) * 5


def test_an_unknown_style_is_refused() -> None:
    with pytest.raises(BadInput, match="did you mean 'metal'"):
        unit_style("metals")
