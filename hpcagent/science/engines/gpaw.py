"""GPAW as an engine: projector augmented waves in plane waves, atomic orbitals or on a grid, inside of Python.

What the parameters of a level become:

| parameter | GPAW | |
|---|---|---|
| `basis` | `mode` | `pw` (plane waves; the default), `lcao` (atomic orbitals, dzp) or `fd` (grid, 0.2 angstrom) |
| `xc` | `xc` | empty: PBE; built without libxc: LDA, PBE, revPBE, RPBE, PW91 |
| `ecut` | `PW(ecut)` | 0: the protocol's 340, 600 or 800 eV |
| `kpts` | `kpts` | Gamma-centred mesh (`hpcagent.science.engines.mesh`) |
| `smearing` | `occupations` | Marzari-Vanderbilt (doi:10.1103/PhysRevLett.82.3296), not extrapolated, as in the engine `espresso`; 0: the same number of electrons at each k-point, and a total moment that is the sum of the initial ones |
| `magmom` | `magmoms` | each atom's, the structure's own if it has any |
| `tolerance` | `convergence` | of the energy of the whole cell over three steps; density and eigenstates as GPAW has them, stricter in proportion below 1e-5 eV |
| `mixing` | `mixer` | share of the new density in Pulay mixing; 0: GPAW's own mixer |

Energies are relative to those of GPAW's reference atoms. In plane waves every direction is periodic: a molecule is put
into a box (`boxed`). GPAW's setups come with the package gpaw-data; nothing has to be set. It runs in one process.
"""  # noqa: E501

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hpcagent.apps.deciding import Deciding, told_by
from hpcagent.apps.packages import needs, versions_of
from hpcagent.errors import AppFailed, nearest
from hpcagent.science.engines.base import KPOINTS, Iteration, Level
from hpcagent.science.engines.functionals import setups_of
from hpcagent.science.engines.gpaw_log import iterations
from hpcagent.science.engines.protocols import PROTOCOL

if TYPE_CHECKING:
    from ase import Atoms

from hpcagent.apps.run import Run

__all__ = ["ENGINE", "LOG", "GpawEngine", "iterations"]

LOG = "gpaw.txt"
"""What GPAW writes, in the run's directory."""

_MODES = ("pw", "lcao", "fd")
_INSTALL = (
    "pip install 'hpcagent[gpaw]' with the environment variable GPAW_CONFIG naming a file of build settings "
    "(docs/howto/gpaw_build.md)"
)


class GpawEngine:
    """GPAW."""

    name = "gpaw"
    kind: Literal["dft"] = "dft"
    isolated = True
    takes = ("xc", "basis", "ecut", *KPOINTS, "smearing", "charge", "magmom", "tolerance", "max_scf", "mixing")

    def calculator(self, atoms: Atoms, level: Level, run: Run) -> Any:
        """A calculator that writes `gpaw.txt` into the run's directory.

        Options: `keywords` (of GPAW), `vacuum` (angstrom, of the box of a molecule), `dipole` (off, auto).

        Raises:
            AppFailed: `NoEngine` or `BadSettings`.
        """
        needs("gpaw", _INSTALL)
        mode = level.basis.lower() or "pw"
        if mode not in _MODES:
            raise AppFailed(
                f"basis={level.basis!r} is no mode of GPAW; {nearest(mode, _MODES)} Allowed: {', '.join(_MODES)}.",
                kind="contract",
                name="BadSettings",
            )
        if level.ecut and mode != "pw":
            raise AppFailed(
                f"ecut={level.ecut:g} eV is for plane waves; the mode is {mode!r}.",
                kind="contract",
                name="BadSettings",
            )
        from hpcagent.science.engines.gpaw_calculator import Gpaw

        return Gpaw(atoms, level, mode, run.workdir / LOG)

    def iterations(self, calculator: Any) -> tuple[Iteration, ...]:
        """SCF steps of the last calculation: energy and its change, in eV."""
        return iterations(calculator.written())

    def repairs(self, level: Level) -> tuple[tuple[str, Level], ...]:
        """More steps; Pulay mixing with a small share; a wider smearing, where there is one (another physics)."""
        steps = replace(level, max_scf=min(10000, max(300, 2 * level.max_scf)))
        gentle = replace(steps, mixing=level.mixing / 2 if level.mixing else 0.05)
        tries = [("more_steps", steps), ("gentler_mixing", gentle)]
        if level.smearing > 0:
            tries.append(("more_smearing", replace(gentle, smearing=min(5.0, 2 * level.smearing))))
        return tuple(tries)

    def files(self, level: Level, site: Mapping[str, Any]) -> tuple[Deciding, ...]:
        """The PAW setups of all elements (with `lcao` the basis sets too), and the file of GPAW's own settings."""
        kinds = (f".{setups_of(level.xc)}", *((".basis",) if level.basis.lower() == "lcao" else ()))
        found: dict[str, Deciding] = {}
        for folder in _setup_folders(site):
            for path in sorted(folder.iterdir()) if folder.is_dir() else ():
                name = path.name.removesuffix(".gz")
                if name.endswith(kinds):
                    found.setdefault(name, Deciding(name, path, name.partition(".")[0]))
        settings = Path("~/.gpaw/rc.py").expanduser()
        return (*found.values(), *((Deciding("rc.py", settings),) if settings.is_file() else ()))

    def versions(self, calculator: Any) -> dict[str, str]:
        """Of GPAW and its data."""
        return versions_of("gpaw", "gpaw-data")

    def used(self, level: Level, atoms: Atoms, calculator: Any) -> dict[str, str]:
        """Mode, cutoff of plane waves, setups."""
        found = {"basis": calculator.mode, "pseudopotentials": f"PAW setups made with {setups_of(level.xc)}"}
        if calculator.mode == "pw":
            found["ecut"] = f"{level.ecut or PROTOCOL[level.protocol].gpaw_ecut:g} eV"
        return found

    def bands(self, calculator: Any, atoms: Atoms, level: Level, path: Any, run: Run) -> Any:
        """Bands along a path in the density of the SCF."""
        return calculator.bands(path, run.workdir / "gpaw_bands.txt")


ENGINE = GpawEngine()


def _setup_folders(site: Mapping[str, Any]) -> list[Path]:
    """Where GPAW looks for setups, in its order; found without importing it."""
    given = told_by("GPAW_SETUP_PATH", "gpaw", site)
    folders = [Path(place) for place in given.split(os.pathsep) if place]
    spec = find_spec("gpaw_data")
    packaged = [] if spec is None else [Path(p) / "setups" for p in spec.submodule_search_locations or ()]
    return folders + packaged
