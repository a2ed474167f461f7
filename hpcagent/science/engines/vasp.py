"""VASP as an engine: projector augmented waves in plane waves, always periodic. It and its POTCARs are licensed.

What the parameters of a level become:

| parameter | VASP | |
|---|---|---|
| `xc` | `GGA` and the folder of POTCARs | ASE's names: `pbe`, `lda`, `pbesol`, `rpbe`, ...; empty: PBE |
| `ecut` | `ENCUT` | 0: the largest ENMAX of the POTCARs |
| `kpts` | KPOINTS | Gamma-centred mesh (`hpcagent.science.engines.mesh`) |
| `smearing` | `ISMEAR = 0`, `SIGMA` | Gaussian: VASP has no Marzari-Vanderbilt; 0: a Gaussian of 0.01 eV |
| `magmom` | `ISPIN`, `MAGMOM` | each atom's, the structure's own if it has any |
| `tolerance` | `EDIFF` | |
| `mixing` | `AMIX` | |

The energy is the one extrapolated to no smearing, `free_energy` the one that forces belong to, as ASE has it.

Tested against a stand-in for the program that reads and writes its formats, not against VASP itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hpcagent.apps.deciding import Deciding
from hpcagent.apps.packages import needs
from hpcagent.apps.printed import read_head
from hpcagent.errors import AppFailed
from hpcagent.science.engines.base import KPOINTS, Iteration, Level
from hpcagent.science.engines.external import program
from hpcagent.science.engines.protocols import VASP_FIXED_EV
from hpcagent.science.engines.vasp_files import check, contents, iterations, potpaw_folder

if TYPE_CHECKING:
    from ase import Atoms

from hpcagent.apps.run import Run

__all__ = ["ENGINE", "VaspEngine", "check", "iterations"]

# Folders of POTCARs, as ASE looks for them.
_POTCARS = ("potpaw_PBE", "potpaw", "potpaw_GGA")
_ADVICE = (
    "VASP is licensed and installed by the site: name its command as `command` in [apps.vasp] of the site profile "
    '(for example ["vasp_std"]).'
)


class VaspEngine:
    """VASP through ASE's calculator, started through the launcher of the site."""

    name = "vasp"
    kind: Literal["dft"] = "dft"
    isolated = False
    takes = ("xc", "ecut", *KPOINTS, "smearing", "charge", "magmom", "tolerance", "max_scf", "mixing")

    def calculator(self, atoms: Atoms, level: Level, run: Run) -> Any:
        """A calculator that starts VASP in the run's directory.

        Options: `command`, `pseudo_dir` (the folder with `potpaw_PBE`; else $VASP_PP_PATH), `pseudopotentials`
        (element -> POTCAR, `{"Cu": "Cu_pv"}`), `keywords` (of ASE's `Vasp`), `vacuum` (angstrom), `keep` (WAVECAR
        and CHGCAR), `dipole` (off, auto).

        Raises:
            AppFailed: `NoExecutable`, `NoPseudopotential` or `BadSettings`.
        """
        needs("ase.calculators.vasp", "pip install 'hpcagent[ase]'")
        found = program(
            run,
            "vasp",
            options=level.options,
            variables=("HPCAGENT_VASP", "ASE_VASP_COMMAND", "VASP_COMMAND"),
            usual=("vasp_std",),
            advice=_ADVICE,
        )
        from hpcagent.science.engines.vasp_calculator import Vasp

        return Vasp(atoms, level, run, found)

    def iterations(self, calculator: Any) -> tuple[Iteration, ...]:
        """SCF steps in the OSZICAR of the last calculation: energy and its change, in eV."""
        return iterations(contents(Path(calculator.directory) / "OSZICAR"))

    def repairs(self, level: Level) -> tuple[tuple[str, Level], ...]:
        """More steps; all bands optimised at once (ALGO = All); careful mixing; a wider smearing."""
        steps = replace(level, max_scf=min(10000, 2 * level.max_scf))
        all_bands = replace(steps, options={**level.options, "algo": "All"})
        gentle = replace(
            steps, mixing=min(0.1, (level.mixing or 0.4) / 2), options={**level.options, "gentle": True}
        )
        tries = [("more_steps", steps), ("algo_all", all_bands), ("gentler_mixing", gentle)]
        if level.smearing > 0:
            tries.append(("more_smearing", replace(gentle, smearing=min(5.0, 2 * level.smearing))))
        return tuple(tries)

    def files(self, level: Level, site: Mapping[str, Any]) -> tuple[Deciding, ...]:
        """The POTCAR of each element: the plain one, or the one that is named."""
        folder = potpaw_folder(level.options, site)
        places = [Path(folder).expanduser() / name for name in _POTCARS] if folder else []
        named = {str(name): element for element, name in (level.options.get("pseudopotentials") or {}).items()}
        found = []
        for place in filter(Path.is_dir, places):
            for path in sorted(place.glob("*/POTCAR*")):
                plain = re.fullmatch(r"[A-Z][a-z]?", path.parent.name)
                element = named.get(path.parent.name) or (path.parent.name if plain else "")
                if element:
                    found.append(Deciding("/".join(path.parts[-3:]), path, element))
        return tuple(found)

    def versions(self, calculator: Any) -> dict[str, str]:
        """What VASP calls itself in its OUTCAR."""
        said = re.search(r"vasp\.(\d\S*)", read_head(Path(calculator.directory) / "OUTCAR", 1000))
        return {"vasp": said[1]} if said else {}

    def used(self, level: Level, atoms: Atoms, calculator: Any) -> dict[str, str]:
        """Cutoff, and the width that stands for no smearing."""
        smearing = f"{level.smearing:g} eV" if level.smearing > 0 else f"none (Gaussian, {VASP_FIXED_EV:g} eV)"
        ecut = f"{level.ecut:g} eV" if level.ecut else "the largest ENMAX of the POTCARs"
        return {"ecut": ecut, "smearing": smearing}

    def bands(self, calculator: Any, atoms: Atoms, level: Level, path: Any, run: Run) -> Any:
        """Not yet: nobody has tried it against VASP."""
        raise AppFailed(
            "bands by VASP are not there yet.",
            kind="contract",
            name="NoBands",
            repair="engine espresso or gpaw",
        )


ENGINE = VaspEngine()
