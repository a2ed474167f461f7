"""Unit systems of LAMMPS and conversion between the units this library uses.

Constants are CODATA 2018 (https://physics.nist.gov/cuu/Constants). LAMMPS itself uses slightly older ones
(`units` page of its manual, https://docs.lammps.org/units.html; for instance k_B = 8.617343e-5 eV/K in
`metal`), so a value that LAMMPS derived from a constant can differ from ours in the sixth digit.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction

from hpcagent.errors import BadInput, nearest

__all__ = [
    "AVOGADRO",
    "BOLTZMANN_EV_PER_K",
    "BOLTZMANN_J_PER_K",
    "STYLES",
    "UnitStyle",
    "convert",
    "factor",
    "measure",
    "unit_style",
]

_E = Fraction("1.602176634e-19")  # C, exact
AVOGADRO = 6.02214076e23
"""1/mol, exact."""
BOLTZMANN_J_PER_K = 1.380649e-23
"""Boltzmann's constant in J/K, exact."""
BOLTZMANN_EV_PER_K = float(Fraction("1.380649e-23") / _E)
"""The same in eV/K."""
_HARTREE = Fraction("4.3597447222071e-18")  # J
_BOHR = Fraction("5.29177210903e-11")  # m
_DEGREE = Fraction(math.pi) / 180
_AMU = Fraction("1.66053906660e-27")  # kg
# LAMMPS `units electron`: "Bohr/atomic time units [1.03275e-15 seconds]", that is sqrt(amu bohr^2 / hartree).
_ELECTRON_TIME = Fraction(float(_AMU * _BOHR**2 / _HARTREE) ** 0.5)

_Dimension = dict[str, int]
_LENGTH: _Dimension = {"m": 1}
_MASS: _Dimension = {"kg": 1}
_TIME: _Dimension = {"s": 1}
_TEMPERATURE: _Dimension = {"K": 1}
_ENERGY: _Dimension = {"kg": 1, "m": 2, "s": -2}
_PRESSURE: _Dimension = {"kg": 1, "m": -1, "s": -2}
_FORCE: _Dimension = {"kg": 1, "m": 1, "s": -2}
_NUMBER: _Dimension = {}

# Name -> (value in SI, dimension); values are exact, so that a conversion rounds once. Atoms, degrees of
# freedom, steps and the reduced units of `lj` are dimensions of their own: eV is not eV/atom, and no number turns
# an epsilon into electronvolts.
_UNITS: dict[str, tuple[Fraction, _Dimension]] = {
    "1": (Fraction(1), _NUMBER),
    "%": (Fraction("1e-2"), _NUMBER),
    "ppm": (Fraction("1e-6"), _NUMBER),
    "mol": (Fraction("6.02214076e23"), _NUMBER),
    "fs": (Fraction("1e-15"), _TIME),
    "ps": (Fraction("1e-12"), _TIME),
    "ns": (Fraction("1e-9"), _TIME),
    "us": (Fraction("1e-6"), _TIME),
    "ms": (Fraction("1e-3"), _TIME),
    "s": (Fraction(1), _TIME),
    "min": (Fraction(60), _TIME),
    "h": (Fraction(3600), _TIME),
    "hours": (Fraction(3600), _TIME),
    "day": (Fraction(86400), _TIME),
    "electron_time": (_ELECTRON_TIME, _TIME),
    "meV": (Fraction("1e-3") * _E, _ENERGY),
    "eV": (_E, _ENERGY),
    "J": (Fraction(1), _ENERGY),
    "kJ": (Fraction("1e3"), _ENERGY),
    "MJ": (Fraction("1e6"), _ENERGY),
    "pJ": (Fraction("1e-12"), _ENERGY),
    "cal": (Fraction("4.184"), _ENERGY),
    "kcal": (Fraction(4184), _ENERGY),
    "erg": (Fraction("1e-7"), _ENERGY),
    "hartree": (_HARTREE, _ENERGY),
    "Ry": (Fraction("0.5") * _HARTREE, _ENERGY),
    "K": (Fraction(1), _TEMPERATURE),
    "Pa": (Fraction(1), _PRESSURE),
    "mPa": (Fraction("1e-3"), _PRESSURE),
    "kPa": (Fraction("1e3"), _PRESSURE),
    "MPa": (Fraction("1e6"), _PRESSURE),
    "GPa": (Fraction("1e9"), _PRESSURE),
    "bar": (Fraction("1e5"), _PRESSURE),
    "kbar": (Fraction("1e8"), _PRESSURE),
    "atm": (Fraction(101325), _PRESSURE),
    "Hz": (Fraction(1), {"s": -1}),
    "THz": (Fraction("1e12"), {"s": -1}),
    "deg": (_DEGREE, _NUMBER),
    # Charges are counted in e, a dimension of their own: one ampere is 1/_E of them a second.
    "T": (_E, {"kg": 1, "s": -1, "e": -1}),
    "mT": (Fraction("1e-3") * _E, {"kg": 1, "s": -1, "e": -1}),
    "kA": (Fraction("1e3") / _E, {"e": 1, "s": -1}),
    "e": (Fraction(1), {"e": 1}),
    "mu_B": (Fraction(1), {"mu_B": 1}),
    "pm": (Fraction("1e-12"), _LENGTH),
    "angstrom": (Fraction("1e-10"), _LENGTH),
    "bohr": (_BOHR, _LENGTH),
    "nm": (Fraction("1e-9"), _LENGTH),
    "um": (Fraction("1e-6"), _LENGTH),
    "mm": (Fraction("1e-3"), _LENGTH),
    "cm": (Fraction("1e-2"), _LENGTH),
    "m": (Fraction(1), _LENGTH),
    "kg": (Fraction(1), _MASS),
    "g": (Fraction("1e-3"), _MASS),
    "pg": (Fraction("1e-15"), _MASS),
    "ag": (Fraction("1e-21"), _MASS),
    "amu": (_AMU, _MASS),
    "N": (Fraction(1), _FORCE),
    "dyne": (Fraction("1e-5"), _FORCE),
    "atom": (Fraction(1), {"atom": 1}),
    "katom": (Fraction("1e3"), {"atom": 1}),
    "Matom": (Fraction("1e6"), {"atom": 1}),
    "dof": (Fraction(1), {"dof": 1}),
    "kT": (Fraction(1), {"kT": 1}),
    "step": (Fraction(1), {"step": 1}),
    "timesteps": (Fraction(1), {"step": 1}),
    "tau": (Fraction(1), {"tau": 1}),
    "sigma": (Fraction(1), {"sigma": 1}),
    "epsilon": (Fraction(1), {"epsilon": 1}),
    "kB": (Fraction(1), {"kB": 1}),
    "mass": (Fraction(1), {"mass": 1}),
}
_ALIASES = {
    "": "1",
    "A": "angstrom",
    "Å": "angstrom",
    "Angstrom": "angstrom",
    "Bohr": "bohr",
    "Hartree": "hartree",
    "Ha": "hartree",
    "µs": "us",
    "μs": "us",
    "µm": "um",
    "μm": "um",
    "hour": "h",
    "days": "day",
    "atoms": "atom",
    "steps": "step",
    "timestep": "timesteps",
    "u": "amu",
}


@dataclass(frozen=True, slots=True)
class UnitStyle:
    """The units of one LAMMPS `units` style (https://docs.lammps.org/units.html).

    Attributes:
        name: The style.
        time: Unit of time; the other unit fields likewise. `density` is the one in three dimensions;
            None where the manual names no unit.
        default_timestep: Timestep that the `units` command sets, in `time`.
        default_skin: Neighbour skin that the `units` command sets, in `distance`.
        normalized: Whether thermo output divides energies by the number of atoms unless told otherwise.
    """

    name: str
    time: str
    energy: str
    temperature: str
    pressure: str
    distance: str
    mass: str
    density: str | None
    velocity: str
    force: str
    default_timestep: float
    default_skin: float
    normalized: bool = False

    @property
    def reduced(self) -> bool:
        """Whether the style is `lj`, whose units have no size."""
        return self.name == "lj"

    @property
    def boltzmann(self) -> float:
        """k_B in the style's energy per its temperature; 1 in `lj`."""
        return 1.0 if self.reduced else BOLTZMANN_J_PER_K / _resolve(self.energy)[0]

    @property
    def time_ps(self) -> float | None:
        """Picoseconds in the style's unit of time; None in `lj`."""
        return None if self.reduced else factor(self.time, "ps")

    @property
    def energy_mev(self) -> float | None:
        """Millielectronvolts in the style's unit of energy; None in `lj`."""
        return None if self.reduced else factor(self.energy, "meV")

    @property
    def temperature_k(self) -> float | None:
        """Kelvins in the style's unit of temperature; None in `lj`."""
        return None if self.reduced else 1.0

    @property
    def pressure_bar(self) -> float | None:
        """Bars in the style's unit of pressure; None in `lj`."""
        return None if self.reduced else factor(self.pressure, "bar")

    @property
    def distance_angstrom(self) -> float | None:
        """Angstroms in the style's unit of distance; None in `lj`."""
        return None if self.reduced else factor(self.distance, "angstrom")


STYLES: dict[str, UnitStyle] = {
    style.name: style
    for style in (
        UnitStyle(
            "lj",
            time="tau",
            energy="epsilon",
            temperature="epsilon/kB",
            pressure="epsilon/sigma^3",
            distance="sigma",
            mass="mass",
            density="mass/sigma^3",
            velocity="sigma/tau",
            force="epsilon/sigma",
            default_timestep=0.005,
            default_skin=0.3,
            normalized=True,
        ),
        UnitStyle(
            "real",
            time="fs",
            energy="kcal/mol",
            temperature="K",
            pressure="atm",
            distance="angstrom",
            mass="g/mol",
            density="g/cm^3",
            velocity="angstrom/fs",
            force="kcal/mol/angstrom",
            default_timestep=1.0,
            default_skin=2.0,
        ),
        UnitStyle(
            "metal",
            time="ps",
            energy="eV",
            temperature="K",
            pressure="bar",
            distance="angstrom",
            mass="g/mol",
            density="g/cm^3",
            velocity="angstrom/ps",
            force="eV/angstrom",
            default_timestep=0.001,
            default_skin=2.0,
        ),
        UnitStyle(
            "si",
            time="s",
            energy="J",
            temperature="K",
            pressure="Pa",
            distance="m",
            mass="kg",
            density="kg/m^3",
            velocity="m/s",
            force="N",
            default_timestep=1e-8,
            default_skin=0.001,
        ),
        UnitStyle(
            "cgs",
            time="s",
            energy="erg",
            temperature="K",
            pressure="dyne/cm^2",
            distance="cm",
            mass="g",
            density="g/cm^3",
            velocity="cm/s",
            force="dyne",
            default_timestep=1e-8,
            default_skin=0.1,
        ),
        UnitStyle(
            "electron",
            time="fs",
            energy="hartree",
            temperature="K",
            pressure="Pa",
            distance="bohr",
            mass="amu",
            density=None,
            velocity="bohr/electron_time",
            force="hartree/bohr",
            default_timestep=0.001,
            default_skin=2.0,
        ),
        UnitStyle(
            "micro",
            time="us",
            energy="pg*um^2/us^2",
            temperature="K",
            pressure="pg/um/us^2",
            distance="um",
            mass="pg",
            density="pg/um^3",
            velocity="um/us",
            force="pg*um/us^2",
            default_timestep=2.0,
            default_skin=0.1,
        ),
        UnitStyle(
            "nano",
            time="ns",
            energy="ag*nm^2/ns^2",
            temperature="K",
            pressure="ag/nm/ns^2",
            distance="nm",
            mass="ag",
            density="ag/nm^3",
            velocity="nm/ns",
            force="ag*nm/ns^2",
            default_timestep=0.00045,
            default_skin=0.1,
        ),
    )
}


def unit_style(name: str) -> UnitStyle:
    """The units of a LAMMPS `units` style.

    Args:
        name: One of `STYLES`.

    Returns:
        Its record.

    Raises:
        BadInput: LAMMPS has no such style.

    Example:
        >>> unit_style("real").time, unit_style("real").energy
        ('fs', 'kcal/mol')
    """
    if name not in STYLES:
        raise BadInput(f"{name!r} is not a LAMMPS units style; {nearest(name, STYLES)}", value=name)
    return STYLES[name]


def factor(from_unit: str, to_unit: str) -> float:
    """The number by which a value in one unit is multiplied to give it in another.

    Args:
        from_unit: A unit, or a quotient or product of units: `eV`, `meV/atom/ns`, `g/cm^3`, `pg*um^2/us^2`.
            Everything after the first `/` divides.
        to_unit: Likewise, of the same dimension.

    Returns:
        The factor.

    Raises:
        BadInput: A unit is unknown, or the two measure different things.

    Example:
        >>> factor("eV/atom/ps", "meV/atom/ns")
        1000000.0
    """
    return float(_ratio(from_unit, to_unit))


def _ratio(from_unit: str, to_unit: str) -> Fraction:
    """See `factor`; exact as far as the units are."""
    from_value, from_dimension = _resolve(from_unit)
    to_value, to_dimension = _resolve(to_unit)
    if from_dimension != to_dimension:
        raise BadInput(
            f"{from_unit!r} cannot be converted to {to_unit!r}: the first is {_say(from_dimension)}, "
            f"the second {_say(to_dimension)}.",
            from_unit=from_unit,
            to_unit=to_unit,
        )
    return from_value / to_value


def convert(value: float, from_unit: str, to_unit: str) -> float:
    """A value in another unit, rounded once: 700 meV is the number 0.7 eV, and a filter in meV finds it.

    Args:
        value: The number in `from_unit`; it is taken as the decimal number that it prints as.
        from_unit: See `factor`.
        to_unit: See `factor`.

    Returns:
        The number in `to_unit`.

    Raises:
        BadInput: A unit is unknown, or the two measure different things.

    Example:
        >>> convert(2.0, "fs", "ps"), convert(-699.3, "meV", "eV")
        (0.002, -0.6993)
    """
    ratio = _ratio(from_unit, to_unit)
    if not isinstance(value, int):
        value = float(value)
        if not math.isfinite(value):
            return value
    try:
        return float(Fraction(repr(value) if isinstance(value, float) else value) * ratio)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def measure(unit: str) -> tuple[float, dict[str, int]]:
    """Value of a unit in SI, and its dimension as powers of base units.

    Raises:
        BadInput: The unit is unknown.

    Example:
        >>> measure("ps")
        (1e-12, {'s': 1})
    """
    value, dimension = _resolve(unit)
    return float(value), dimension


def _resolve(unit: str) -> tuple[Fraction, _Dimension]:
    """Value in SI, exact, and dimension of a unit expression."""
    value = Fraction(1)
    dimension: dict[str, int] = {}
    for place, part in enumerate(unit.strip().split("/")):
        sign = 1 if place == 0 else -1
        for piece in re.split(r"[*-]", part):
            name, power = _split_power(piece.strip())
            name = _ALIASES.get(name, name)
            if name not in _UNITS:
                raise BadInput(f"unknown unit {piece.strip()!r} in {unit!r}; {nearest(name, _UNITS)}", value=unit)
            base, exponents = _UNITS[name]
            value *= base ** (sign * power)
            for axis, exponent in exponents.items():
                dimension[axis] = dimension.get(axis, 0) + sign * power * exponent
    return value, {axis: exponent for axis, exponent in dimension.items() if exponent}


def _split_power(piece: str) -> tuple[str, int]:
    match = re.fullmatch(r"(.*[^\d^])\^?([1-9])", piece)
    return (match[1], int(match[2])) if match else (piece, 1)


_NAMED = (
    ("a pure number", _NUMBER),
    ("a time", _TIME),
    ("a length", _LENGTH),
    ("a mass", _MASS),
    ("a temperature", _TEMPERATURE),
    ("an energy", _ENERGY),
    ("a pressure", _PRESSURE),
    ("a force", _FORCE),
)


def _say(dimension: _Dimension) -> str:
    for name, known in _NAMED:
        if known == dimension:
            return name
    return "in " + " ".join(f"{axis}^{power}" if power != 1 else axis for axis, power in sorted(dimension.items()))
