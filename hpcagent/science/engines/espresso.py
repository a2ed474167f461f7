"""Quantum ESPRESSO's pw.x as an engine: plane waves and pseudopotentials, always periodic.

What the parameters of a level become:

| parameter | pw.x | |
|---|---|---|
| `xc` | the pseudopotentials | all must be made with it; a functional that has none of its own (`rpbe`, `vdw-df`): `input_dft`, with those of PBE |
| `ecut` | `ecutwfc` | eV to Ry; 0: the largest that the family recommends or a pseudopotential suggests; refused if one has none |
| | `ecutrho` | 4 x `ecutwfc` if all are norm-conserving; else 8 x, or what a header suggests if that is more |
| `kpts` | `K_POINTS` | Gamma-centred mesh (`hpcagent.science.engines.mesh`); one point: the faster code for Gamma |
| `smearing` | `occupations`, `degauss` | Marzari-Vanderbilt (doi:10.1103/PhysRevLett.82.3296); 0: fixed occupations |
| `magmom` | `nspin`, `starting_magnetization` | with fixed occupations also `tot_magnetization`, the sum |
| `tolerance` | `conv_thr` | eV to Ry: the estimated error of the energy, of the whole cell |
| `mixing` | `mixing_beta` | |

The energy is pw.x's total energy; with smearing that is the free energy, which with Marzari-Vanderbilt differs from
the one without smearing only in third order of the width. Atoms without a cell get a box (`boxed`); where that is
wide enough, a molecule's images are left out by the method of Martyna and Tuckerman (doi:10.1063/1.477923).
"""  # noqa: E501

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hpcagent.apps.deciding import Deciding
from hpcagent.apps.packages import needs
from hpcagent.apps.printed import read_text
from hpcagent.apps.run import Run
from hpcagent.errors import AppFailed
from hpcagent.moved import moved
from hpcagent.science.engines.base import KPOINTS, Iteration, Level
from hpcagent.science.engines.espresso_functionals import functional_of, made_with, refuse_unknown
from hpcagent.science.engines.espresso_keywords import electrons, input_data, prepared
from hpcagent.science.engines.espresso_output import check, eigenvalues, fermi_energy, iterations
from hpcagent.science.engines.espresso_pseudopotentials import (
    chosen,
    files_of,
    has_family,
    notes_on,
    pseudo_dir,
    write_record,
)
from hpcagent.science.engines.external import program
from hpcagent.science.engines.families import family_of
from hpcagent.science.engines.protocols import sampled
from hpcagent.science.engines.upf import RY

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ase import Atoms

__all__ = ["ENGINE", "FAILURE_MODES"]

FAILURE_MODES = (
    "NoExecutable",
    "NoPseudopotential",
    "OtherPseudopotential",
    "NeedsCutoff",
    "MixedFunctionals",
    "NeedsSmearing",
    "BadSettings",
    "NotConverged",
    "DiagonalizationFailed",
    "OutOfMemory",
    "ExecutableFailed",
    "Walltime",
    "BlockEnded",
    "NoPlace",
    "NoLauncher",
    "WrongRanks",
    "FewKpoints",
    "NoEngine",
)

_ADVICE = (
    "Install Quantum ESPRESSO (Debian: apt-get install quantum-espresso; conda-forge: qe), or name the site's "
    "pw.x as `command` in [apps.espresso] of its profile."
)


class Espresso:
    """pw.x of Quantum ESPRESSO."""

    name = "espresso"
    kind: Literal["dft"] = "dft"
    isolated = False
    takes = ("xc", "ecut", *KPOINTS, "smearing", "charge", "magmom", "tolerance", "max_scf", "mixing")

    def calculator(self, atoms: Atoms, level: Level, run: Run) -> Any:
        """A calculator that starts pw.x in the run's directory.

        Options: `family` (of pseudopotentials), `pseudopotentials` (element -> file), `pseudo_dir`, `command`,
        `keywords` (of pw.x, flat or by namelist), `vacuum` (angstrom, of the box of a molecule), `pools`
        (groups of ranks that share the k-points), `keep` (wavefunctions and density), `dipole` (off, auto).

        Raises:
            AppFailed: `NoExecutable`, `NoPseudopotential`, `MixedFunctionals` or `BadSettings`.
        """
        needs("ase.calculators.espresso", "pip install 'hpcagent[ase]'")
        from hpcagent.science.engines.pwscf import Pwscf

        options = level.options
        found = program(
            run,
            "espresso",
            options=options,
            variables=("HPCAGENT_ESPRESSO",),
            usual=("pw.x",),
            advice=_ADVICE,
        )
        folder = pseudo_dir(level, run)
        functional = functional_of(level.xc)
        refuse_unknown(functional, level.xc)
        family = family_of(options["family"], folder) if has_family(options) else None
        folder = family.folder if family else folder
        pseudo = chosen(atoms.get_chemical_symbols(), made_with(functional), folder, options, family)
        data, notes = input_data(atoms, level, pseudo, functional)
        points = sampled(atoms, level)
        notes += notes_on(pseudo, family, data, level)
        write_record(run.workdir, folder, functional, pseudo, data, options, family)
        return Pwscf(
            found,
            directory=run.workdir,
            pseudo_dir=folder,
            data=data,
            more={
                "pseudopotentials": {element: one.path.name for element, one in pseudo.items()},
                "kpts": None if points == (1, 1, 1) else points,
            },
            prepared=lambda these: prepared(these, level, pseudo),
            check=check,
            history=iterations,
            fermi=fermi_energy,
            words=("-nk", str(int(options["pools"]))) if options.get("pools") else (),
            keep=bool(options.get("keep")),
            valence_electrons=electrons(atoms, level, pseudo),
            notes=tuple(notes),
            artifacts={"pseudopotentials": "pseudopotentials.json"},
        )

    def iterations(self, calculator: Any) -> tuple[Iteration, ...]:
        """SCF steps of the last calculation: energy and estimated error, in eV."""
        found: tuple[Iteration, ...] = calculator.history
        return found

    def repairs(self, level: Level) -> tuple[tuple[str, Level], ...]:
        """More steps; less mixing (in a cell with vacuum, mixing that damps long waves); a wider smearing.

        Each keeps what the one before has changed. Fixed occupations stay fixed: smearing them would be another
        state, not another way to the same one.
        """
        steps = replace(level, max_scf=min(10000, 2 * level.max_scf))
        beta = min(0.3, (level.mixing or 0.7) / 2)
        gentle = replace(steps, mixing=beta, options={**level.options, "gentle": True})
        tries = [("more_steps", steps), ("gentler_mixing", gentle)]
        if level.smearing > 0:
            tries.append(("more_smearing", replace(gentle, smearing=min(5.0, 2 * level.smearing))))
        return tuple(tries)

    def files(self, level: Level, site: Mapping[str, Any]) -> tuple[Deciding, ...]:
        """The pseudopotential of each element that would be taken."""
        return files_of(level, site)

    def versions(self, calculator: Any) -> dict[str, str]:
        """What pw.x calls itself in its output."""
        try:
            with (Path(calculator.directory) / "espresso.pwo").open(errors="replace") as file:
                said = re.search(r"Program PWSCF v\.?\s*(\S+)", file.read(4000))
        except OSError:
            said = None
        return {"espresso": said[1]} if said else {}

    def used(self, level: Level, atoms: Atoms, calculator: Any) -> dict[str, str]:
        """Cutoffs of wavefunctions and density, and the pseudopotentials' files."""
        data, files = calculator.parameters["input_data"], calculator.parameters["pseudopotentials"]
        return {
            "ecut": f"{data['ecutwfc'] * RY:.6g} eV",
            "ecut_density": f"{data['ecutrho'] * RY:.6g} eV",
            "pseudopotentials": ", ".join(sorted(set(files.values()))),
        }

    def bands(self, calculator: Any, atoms: Atoms, level: Level, path: Any, run: Run) -> Any:
        """Bands along a path: pw.x once more, in the density of the SCF.

        Raises:
            AppFailed: `FewKpoints`: the density is that of a single k-point.
        """
        from ase.spectrum.band_structure import BandStructure

        if sampled(atoms, level) == (1, 1, 1):
            raise AppFailed(
                "bands need a density from more than one k-point (pw.x computes Gamma alone with other code).",
                kind="contract",
                name="FewKpoints",
                repair="kpts of 4 or more",
            )
        occupied = math.ceil(calculator.valence_electrons / 2)
        calculator.bands(path, occupied + max(4, occupied // 2))
        energies, fermi = eigenvalues(calculator.scratch / "pwscf.save" / "data-file-schema.xml")
        scf = fermi_energy(read_text(run.workdir / "espresso.pwo"))
        return BandStructure(path, energies, reference=fermi if scf is None else scf)


ENGINE = Espresso()


__getattr__ = moved(
    __name__,
    {
        "PSEUDO_DIR": "hpcagent.science.engines.espresso_pseudopotentials",
        "RY": "hpcagent.science.engines.upf",
        **dict.fromkeys(("check", "fermi_energy", "iterations"), "hpcagent.science.engines.espresso_output"),
    },
)
