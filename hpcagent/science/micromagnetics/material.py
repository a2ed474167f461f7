"""Material constants of a magnet, and what they are at another temperature."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hpcagent.errors import AppFailed

__all__ = ["MU0", "Material", "material_at", "reduced_magnetization"]

MU0 = 1.25663706212e-6
"""Vacuum permeability, T m/A (CODATA 2018)."""

# Constants that were measured at a temperature are taken for one that differs by no more than this, in K.
_SAME = 1.0


@dataclass(frozen=True, slots=True)
class Material:
    """Constants at the temperature of the run.

    Attributes:
        ms: Saturation magnetisation, A/m.
        exchange: Exchange stiffness, J/m.
        anisotropy: Uniaxial anisotropy K1, J/m^3; negative: an easy plane.
    """

    ms: float
    exchange: float
    anisotropy: float

    @property
    def exchange_length(self) -> float:
        """sqrt(2 A / (mu0 Ms^2)), or sqrt(A / |K1|) where that is shorter; in m."""
        stray = 2.0 * self.exchange / (MU0 * self.ms**2)
        wall = self.exchange / abs(self.anisotropy) if self.anisotropy else math.inf
        return math.sqrt(min(stray, wall))

    @property
    def anisotropy_field(self) -> float:
        """2 K1 / Ms, in T."""
        return 2.0 * self.anisotropy / self.ms


def reduced_magnetization(temperature: float, curie: float, shape: float, power: float) -> float:
    """Ms(T) / Ms(0) = (1 - s t^(3/2) - (1 - s) t^p)^(1/3), t = T / Tc.

    M. D. Kuz'min, Phys. Rev. Lett. 94, 107204 (2005), doi:10.1103/PhysRevLett.94.107204.

    Args:
        temperature: K, below `curie`.
        curie: Curie temperature, K.
        shape: s, from 0 to 2.5.
        power: p, above 3/2: 4 for iron, 5/2 for most others.

    Raises:
        AppFailed: `UnknownTemperature`: the law has no magnetisation there.

    Example:
        >>> reduced_magnetization(0.0, 1044.0, 0.35, 4.0)
        1.0
    """
    if not 0.0 <= temperature < curie:
        raise AppFailed(
            f"the law of temperature has a magnetisation from 0 K to below the Curie temperature of {curie:g} K; "
            f"asked for is {temperature:g} K.",
            kind="contract",
            name="UnknownTemperature",
            repair="a temperature below curie_temperature",
        )
    t = temperature / curie
    cube = 1.0 - shape * t**1.5 - (1.0 - shape) * t**power
    if not 0.0 < cube <= 1.0:
        raise AppFailed(
            f"with curve_shape={shape:g} and curve_power={power:g} the law gives Ms(T)/Ms(0) = "
            f"({cube:.3g})^(1/3) at {temperature:g} K.",
            kind="contract",
            name="UnknownTemperature",
            repair="curve_shape and curve_power that were fitted to this material: 0.35 and 4 (Fe), 0.11 and 2.5 "
            "(Co), 0.15 and 2.5 (Ni)",
        )
    return float(cube ** (1.0 / 3.0))


def material_at(
    given: Material,
    temperature: float,
    constants_at: float,
    law: str,
    curie: float | None,
    shape: float | None,
    power: float | None,
) -> tuple[Material, str]:
    """The constants at a temperature, and a sentence that says how they were found.

    With the law `kuzmin`, Ms goes as `reduced_magnetization`, K1 as its third power (H. B. Callen and E. Callen,
    J. Phys. Chem. Solids 27, 1271 (1966): uniaxial, single-ion) and A as its second (mean field).

    Args:
        given: Constants at `constants_at`.
        temperature: Of the run, K.
        constants_at: Where the constants were measured, K.
        law: `none` or `kuzmin`.
        curie, shape, power: Of the law.

    Raises:
        AppFailed: `UnknownTemperature`.
    """
    if law == "none":
        if abs(temperature - constants_at) > _SAME:
            raise AppFailed(
                f"the material constants are those at {constants_at:g} K, the run is at {temperature:g} K, and "
                "no law of temperature is given.",
                kind="contract",
                name="UnknownTemperature",
                repair="give the constants at this temperature, or temperature_law = kuzmin with "
                "curie_temperature and curve_shape",
            )
        return (
            given,
            f"material constants as given for {constants_at:g} K; nothing is assumed of other temperatures",
        )
    assert curie is not None and shape is not None and power is not None
    there, here = (reduced_magnetization(t, curie, shape, power) for t in (temperature, constants_at))
    ratio = there / here
    return (
        Material(given.ms * ratio, given.exchange * ratio**2, given.anisotropy * ratio**3),
        f"from {constants_at:g} K to {temperature:g} K: Ms x {ratio:.6g} (Kuz'min's law, Tc = {curie:g} K, "
        f"s = {shape:g}, p = {power:g}), A x {ratio**2:.6g} (assumed: Ms^2), K1 x {ratio**3:.6g} (assumed: "
        "Ms^3, Callen-Callen)",
    )
