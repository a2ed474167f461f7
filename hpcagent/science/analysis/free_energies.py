"""Zero-point and free energies of a molecule or an adsorbate from its frequencies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hpcagent.errors import AppFailed
from hpcagent.model.parameter import Choice, Float, Int, Parameter
from hpcagent.science.analysis.rotations import geometry_of, symmetry_number

if TYPE_CHECKING:
    from ase import Atoms

__all__ = ["THERMO", "check_spin", "free_energies"]

_LOW = 100.0  # 1/cm; kT at 298 K is 207
_ZERO = 1.0
# Ground terms S or Sigma: no orbital degeneracy.
_NO_ORBITAL = ("H", "Li", "Na", "K", "N", "P", "O2", "S2", "CN")
_NEARLY = (0.1, 0.2, 0.3)  # angstrom

THERMO: dict[str, Parameter] = {
    "model": Choice(
        "auto",
        "ideal_gas",
        "harmonic",
        default="auto",
        description="of the free energy; auto: ideal gas for a free molecule, harmonic for what is held",
    ),
    "temperature": Float(0.1, 10000.0, unit="K", default=298.15, description="temperature of the free energy"),
    "pressure": Float(1e-15, 1e6, unit="bar", log=True, default=1.0, description="pressure of the ideal gas"),
    "symmetry_number": Int(
        0, 120, default=0, description="rotations that leave the molecule as it is; 0: found from its geometry"
    ),
    "spin": Float(
        -1.0,
        20.0,
        default=-1.0,
        unit="1",
        description="total spin S, 1 for O2; -1: half the engine's moment, else the structure's",
    ),
    "low_modes": Choice(
        "harmonic",
        "grimme",
        default="harmonic",
        description="entropy of low modes; grimme: goes over to a rotor's below `cutoff`",
    ),
    "cutoff": Float(1.0, 1000.0, unit="1/cm", default=100.0, description="where grimme goes over to rotors"),
    "imaginary": Int(
        0, 10, default=0, description="imaginary modes that are expected and left out: 1 at a saddle point"
    ),
}
"""Parameters of free energies."""


def free_energies(
    atoms: Atoms,
    frequencies: NDArray[np.float64],
    energy: float,
    known: Mapping[str, Any],
    *,
    free: bool,
    model: str,
    temperature: float,
    pressure: float,
    symmetry_number: int,
    spin: float,
    low_modes: str,
    cutoff: float,
    imaginary: int,
) -> tuple[dict[str, float], list[str]]:
    """Metrics of the free energy, and what is to be said of them.

    Args:
        atoms: The structure.
        frequencies: In 1/cm, imaginary ones negative.
        energy: Potential energy, in eV.
        known: Metrics of the run that computed it, for its moment.
        free: Whether it is a free molecule, all of whose atoms vibrate.
        model, temperature, pressure, symmetry_number, spin, low_modes, cutoff, imaginary: See `THERMO`.

    Raises:
        AppFailed: `BadModel`: an ideal gas of something that is held.
    """
    from ase import units
    from ase.thermochemistry import HarmonicThermo

    if model == "ideal_gas" and not free:
        raise AppFailed(
            "model = ideal_gas needs a free molecule, all of whose atoms vibrate.",
            kind="contract",
            name="BadModel",
            repair="model = 'harmonic'",
        )
    check_spin(spin)
    gas = free and model != "harmonic"
    found = int((frequencies < -_ZERO).sum())
    if found != imaginary:
        return {}, [f"no zero-point or free energy: {found} imaginary mode(s), `imaginary` expects {imaginary}"]
    real = frequencies[frequencies > _ZERO]
    notes = []
    if len(real) + found < len(frequencies):
        notes.append(f"{len(frequencies) - len(real) - found} modes below {_ZERO:g} 1/cm are left out of the sums")
    if low_modes == "harmonic" and len(real) and real[0] < _LOW:
        notes.append(
            f"modes below {_LOW:g} 1/cm ({real[0]:.0f}) are no good harmonic oscillators; their entropy is "
            "uncertain: see low_modes"
        )
    quanta = [float(f * units.invcm) for f in real]
    metrics = {"zero_point_energy": sum(quanta) / 2}
    extra = _rotors(quanta, atoms, temperature, cutoff) if low_modes == "grimme" else 0.0
    if gas:
        values, said = _gas(atoms, quanta, known, temperature, pressure, symmetry_number, spin)
        notes += said
        cold = _too_cold(atoms, temperature, values["entropy"])
        if cold:
            return metrics, [*notes, cold]
    else:
        thermo = HarmonicThermo(quanta)
        values = {
            "enthalpy_correction": float(thermo.get_internal_energy(temperature, verbose=False)),
            "entropy": float(thermo.get_entropy(temperature, verbose=False)),
        }
        notes.append(f"harmonic model at {temperature:g} K: {len(quanta)} modes, no translation or rotation")
    entropy = values["entropy"] + extra
    metrics |= values
    metrics["free_energy_correction"] = values["enthalpy_correction"] - temperature * entropy
    metrics["free_energy"] = energy + metrics["free_energy_correction"]
    metrics["entropy"] = entropy * units._e * units._Nav
    return metrics, notes


def _gas(
    atoms: Atoms,
    quanta: list[float],
    known: Mapping[str, Any],
    temperature: float,
    pressure: float,
    sigma: int,
    spin: float,
) -> tuple[dict[str, float], list[str]]:
    """Enthalpy in eV and entropy in eV/K of an ideal gas (rigid rotor, harmonic oscillator)."""
    from ase.thermochemistry import IdealGasThermo

    own = float(atoms.get_initial_magnetic_moments().sum())
    moment = abs(float(known.get("magnetic_moment", own)))
    total = round(moment) / 2 if spin < 0 else spin
    turns = sigma or symmetry_number(atoms)
    thermo = IdealGasThermo(
        quanta,
        geometry_of(atoms),
        atoms=atoms,
        symmetrynumber=turns,
        spin=total,
        vib_selection="all",  # translations and rotations are out already
    )
    said = (
        f"ideal gas at {temperature:g} K and {pressure:g} bar: {geometry_of(atoms)}, symmetry number {turns}"
        f"{'' if sigma else ' (found)'}, spin {total:g}{' (by the moment)' if spin < 0 and moment else ''}"
    )
    notes = [said]
    if total and geometry_of(atoms) != "nonlinear" and str(atoms.symbols) not in _NO_ORBITAL:
        notes.append(
            "degeneracy is that of the spin alone: where the ground term has an orbital one (C, O, F, Cl; OH, NO) "
            "up to R ln 3 of entropy is missing"
        )
    if not sigma:
        notes += _nearly(atoms, turns)
    return {
        "enthalpy_correction": float(thermo.get_enthalpy(temperature, verbose=False)),
        "entropy": float(thermo.get_entropy(temperature, pressure=pressure * 1e5, verbose=False)),
        "symmetry_number": float(turns),
        "spin": total,
    }, notes


def check_spin(spin: float) -> None:
    """Refuse what is no spin.

    Raises:
        AppFailed: `BadModel`.
    """
    if spin != -1 and (spin < 0 or 2 * spin % 1):
        raise AppFailed(
            f"spin={spin:g} is no total spin: those are 0, 0.5, 1, ...; -1 takes it from the moment.",
            kind="contract",
            name="BadModel",
            repair="half the number of unpaired electrons",
        )


def _too_cold(atoms: Atoms, temperature: float, entropy: float) -> str:
    """Why there is no free energy at this temperature, where rotation or translation are no classical ones."""
    from ase import units

    inertia = atoms.get_moments_of_inertia()
    inertia = inertia[inertia > 1e-3]
    joules = units._hbar**2 / (2 * inertia * units._amu * 1e-20)
    coldest = float(joules.max() / units._k) if len(inertia) else 0.0
    if temperature < coldest:
        return (
            f"no free energy at {temperature:g} K: rotations count as classical ones, and the rotational "
            f"temperature is {coldest:.3g} K"
        )
    if entropy < 0:
        return f"no free energy at {temperature:g} K: the entropy of an ideal gas is negative there"
    return ""


def _nearly(atoms: Atoms, found: int) -> list[str]:
    """Says that a molecule is nearly more symmetric than it was found: a loose relaxation hides its symmetry."""
    more, off = max((symmetry_number(atoms, tolerance), -tolerance) for tolerance in _NEARLY)
    if more <= found:
        return []
    return [
        f"symmetry number {found}, but {more} if atoms may be {-off:g} angstrom off: relax further (smaller "
        f"fmax), or give symmetry_number; R ln({more}/{found}) of entropy depends on it"
    ]


def _rotors(quanta: list[float], atoms: Atoms, temperature: float, cutoff: float) -> float:
    """What Grimme's interpolation adds to the harmonic entropy, in eV/K."""
    from ase.thermochemistry import HarmonicMode, RRHOMode

    inertia = float(np.mean(atoms.get_moments_of_inertia()))
    added = 0.0
    for q in quanta:
        damped: Any = RRHOMode(q, inertia, tau=cutoff).get_entropy(temperature, contributions=False)
        plain: Any = HarmonicMode(q).get_entropy(temperature, contributions=False)
        added += float(damped) - float(plain)
    return added
