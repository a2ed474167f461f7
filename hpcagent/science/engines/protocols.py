"""What is taken where a level of theory leaves k-points and smearing open: three sets of defaults for crystals.

The names, the distances of the k-points and the width of the smearing are those of the protocols that eleven
codes share (S. P. Huber et al., npj Comput. Mater. 7, 136 (2021), doi:10.1038/s41524-021-00594-6; the distances
are those for VASP, `moderate` and `precise` also those for Quantum ESPRESSO, the width is that for Quantum
ESPRESSO). `moderate` is for results, `precise` for what needs a few meV, `fast` for trying out. Energies
relative to `precise`, measured with pw.x; for silicon without smearing there:

| crystal | fast | moderate | precise |
|---|---|---|---|
| Si (PBE) | 9x9x9: 0.8 meV/atom | 14x14x14: 0.13 meV/atom, of which smearing 0.12 | 20x20x20 |
| Al (LDA) | 11x11x11: 7.5 meV/atom | 18x18x18: 2.8 meV/atom | 27x27x27 |

Molecules are sampled at Gamma, and directions in which a cell has vacuum with one point.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hpcagent.errors import AppFailed, BadInput
from hpcagent.science.engines.base import Engine, Level
from hpcagent.science.engines.mesh import mesh, spaced, vacuum_along

if TYPE_CHECKING:
    from ase import Atoms

__all__ = ["PROTOCOL", "VASP_FIXED_EV", "Protocol", "refuse_unsampled", "sampled", "settled"]


@dataclass(frozen=True, slots=True)
class Protocol:
    """Defaults for a crystal.

    Attributes:
        kspacing: Largest distance of k-points along a reciprocal vector, in 1/angstrom, 2 pi included.
        smearing: Width of the occupations, in eV (Marzari-Vanderbilt, doi:10.1103/PhysRevLett.82.3296).
        gpaw_ecut: Cutoff of GPAW's plane waves, in eV: GPAW's own default, and those of the shared protocols.
    """

    kspacing: float
    smearing: float
    gpaw_ecut: float


_DEGAUSS_EV = 0.136057  # 0.01 Ry

PROTOCOL = {
    "fast": Protocol(kspacing=0.25, smearing=_DEGAUSS_EV, gpaw_ecut=340.0),
    "moderate": Protocol(kspacing=0.15, smearing=_DEGAUSS_EV, gpaw_ecut=600.0),
    "precise": Protocol(kspacing=0.10, smearing=_DEGAUSS_EV, gpaw_ecut=800.0),
}
"""The protocols by their names."""

# Engines with Marzari-Vanderbilt smearing; a Gaussian's energy would depend on the width in second order.
_COLD = ("espresso", "gpaw")
VASP_FIXED_EV = 0.01
"""Width of VASP's Gaussian, in eV, where no smearing is wanted."""
# What no smearing means in the others.
_UNSMEARED = {"vasp": f"a Gaussian of {VASP_FIXED_EV:g} eV", "tblite": "its own 300 K"}
# Without the crystal's symmetry a converged mesh would cost a hundred times as much: it has to be asked for.
_NO_SYMMETRY = ("pyscf",)
_SAMPLING = ("mesh", "kpts", "kspacing")
_AXES = "abc"
_MOST_POINTS = 1000


def settled(level: Level, atoms: Atoms, engine: Engine) -> tuple[Level, tuple[str, ...]]:
    """The level with a mesh and a smearing for these atoms, and what must be said of what was not given.

    Raises:
        AppFailed: `BadSettings`: k-points are given twice, or a number that means nothing; `NeedsKpoints`: the
            engine has no converged default.
    """
    _check(level)
    notes: list[str] = []
    if "kpts" in engine.takes and atoms.pbc.any():
        given = any(getattr(level, name) for name in _SAMPLING)
        if not given and engine.name in _NO_SYMMETRY:
            raise _needs_kpoints(engine.name)
        points = sampled(atoms, level)
        if not given or level.kspacing:
            notes.append(_said(points, level, atoms, given))
        level = replace(level, mesh="x".join(map(str, points)), kpts=0, kspacing=0.0)
    if level.smearing < 0 and "smearing" in engine.takes:
        crystal = bool(atoms.pbc.any()) and not all(vacuum_along(atoms))
        cold = crystal and engine.name in _COLD
        level = replace(level, smearing=PROTOCOL[level.protocol].smearing if cold else 0.0)
        if cold:
            notes.append(
                f"occupations smeared by {level.smearing:.3g} eV (Marzari-Vanderbilt; protocol {level.protocol}), "
                "smearing was not given"
            )
        elif crystal:
            notes.append(
                f"smearing was not given: none, which in {engine.name} is "
                f"{_UNSMEARED.get(engine.name, 'fixed occupations')}; right for an insulator, a metal needs more "
                "(0.1 to 0.2 eV)"
            )
    return level, tuple(notes)


def refuse_unsampled(params: Mapping[str, Any]) -> None:
    """Refuse parameters of a crystal or a slab with which `settled` would find no k-points, before it is started.

    Raises:
        BadInput: The engine has no default, and nothing says what they are.
    """
    engine = params["engine"]
    if engine in _NO_SYMMETRY and not any(params.get(name) for name in _SAMPLING):
        raise BadInput(
            f"engine={engine!r} has no default for the k-points of a slab or crystal: give kspacing (0.15 to 0.5 "
            "1/angstrom), kpts or mesh; or take another engine: gpaw and espresso have defaults; emt, a quick "
            "model of Al, Cu, Ag, Au, Ni, Pd and Pt with a few light atoms, is no DFT.",
            value=engine,
        )


def sampled(atoms: Atoms, level: Level) -> tuple[int, int, int]:
    """Numbers of k-points along each vector: the level's `mesh`, or what its other parameters make of the cell."""
    if not atoms.pbc.any():
        return 1, 1, 1
    if level.mesh:
        return _numbers(level.mesh)
    along = [bool(p) and not v for p, v in zip(atoms.pbc, vacuum_along(atoms), strict=True)]
    if level.kpts:
        points, given = mesh(atoms.cell, along, level.kpts), f"kpts={level.kpts}"
    else:
        distance = level.kspacing or PROTOCOL[level.protocol].kspacing
        points = spaced(atoms.cell, along, distance)
        given = f"kspacing={distance:g} 1/angstrom{'' if level.kspacing else f' (protocol {level.protocol})'}"
    if max(points) > _MOST_POINTS:
        raise _bad(
            f"{given} makes a mesh of {'x'.join(map(str, points))} k-points for this cell; at most {_MOST_POINTS} "
            "along a vector are taken. Give a larger kspacing, a smaller kpts or a mesh."
        )
    return points


def _numbers(text: str) -> tuple[int, int, int]:
    found = re.fullmatch(r"\s*(\d+)\s*[x ,]\s*(\d+)\s*[x ,]\s*(\d+)\s*", text)
    numbers = tuple(int(word) for word in found.groups()) if found else ()
    if len(numbers) != 3 or min(numbers) < 1 or max(numbers) > _MOST_POINTS:
        raise _bad(
            f"mesh={text!r} is no mesh of k-points; write three numbers from 1 to {_MOST_POINTS}, as in '8x8x6'."
        )
    return numbers[0], numbers[1], numbers[2]


def _check(level: Level) -> None:
    given = [
        f"{name}={value!r}"
        for name, value in (("mesh", level.mesh), ("kpts", level.kpts), ("kspacing", level.kspacing))
        if value
    ]
    if len(given) > 1:
        raise _bad(f"{' and '.join(given)} both say what the k-points are; give one of them.")
    if level.mesh:
        _numbers(level.mesh)
    if -1 < level.smearing < 0:
        raise _bad(f"smearing={level.smearing:g} eV is no width; give one >= 0, or -1 for the protocol's.")


def _said(points: tuple[int, int, int], level: Level, atoms: Atoms, given: bool) -> str:
    distance = level.kspacing or PROTOCOL[level.protocol].kspacing
    source = "" if given else f"; protocol {level.protocol}, k-points were not given"
    rough = ", which is for trying out: energies are off by some meV/atom" if level.protocol == "fast" else ""
    empty = [
        _AXES[i] for i, (p, v) in enumerate(zip(atoms.pbc, vacuum_along(atoms), strict=True)) if bool(p) and v
    ]
    vacuum = f"; one along {' and '.join(empty)}, where there is vacuum" if empty else ""
    return (
        f"k-points {'x'.join(map(str, points))}: at most {distance:g} 1/angstrom apart, 2 pi included{vacuum}"
        f"{source}{'' if given else rough}"
    )


def _needs_kpoints(name: str) -> AppFailed:
    return AppFailed(
        f"engine {name!r} has no default for the k-points of a crystal: it uses no symmetry, so a converged mesh "
        "may take hours, and one point is far off (silicon by 8 eV/atom).",
        kind="contract",
        name="NeedsKpoints",
        repair="give kspacing (0.15 to 0.5 1/angstrom), kpts or mesh, and look at the energy with a denser one",
    )


def _bad(message: str) -> AppFailed:
    return AppFailed(message, kind="contract", name="BadSettings")
