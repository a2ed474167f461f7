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

import contextlib
import json
import math
import os
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hpcagent.apps.deciding import Deciding
from hpcagent.apps.packages import needs, refuse_decided
from hpcagent.apps.printed import number_or_nan, read_text
from hpcagent.apps.run import Run
from hpcagent.errors import AppFailed, nearest
from hpcagent.science.engines.base import KPOINTS, Iteration, Level, NotConverged
from hpcagent.science.engines.dipole import layer_of
from hpcagent.science.engines.external import Ended, program
from hpcagent.science.engines.families import Family, family_of, known, list_of, recommended
from hpcagent.science.engines.functionals import spelling
from hpcagent.science.engines.mesh import VACUUM, boxed, vacuum_along
from hpcagent.science.engines.protocols import sampled
from hpcagent.science.engines.upf import Pseudopotential, available, choose, family

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ase import Atoms

__all__ = ["ENGINE", "FAILURE_MODES", "iterations"]

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

RY = 13.605693122994
"""Rydberg, in eV (CODATA 2018)."""

PSEUDO_DIR = "/usr/share/espresso/pseudo"
"""Where Debian's package quantum-espresso-data puts its pseudopotentials."""

_ADVICE = (
    "Install Quantum ESPRESSO (Debian: apt-get install quantum-espresso; conda-forge: qe), or name the site's "
    "pw.x as `command` in [apps.espresso] of its profile."
)

# What pw.x takes as `input_dft` in one word (its Modules/funct.f90).
_FUNCTIONALS = (
    "PZ", "BP", "PW91", "PW86PBE", "B86BPBE", "PBEQ2D", "OPTBK88", "OPTB86B", "PBE0", "B86BPBEX", "BHAHLYP",
    "HSE", "GAUPBE", "B3LYP", "B3LYP-V1R", "X3LYP", "RPBE", "WC", "M06L", "SCAN", "SCAN0", "SOGGA", "OLYP", "HCTH",
    "TB09", "EV93", "VDW-DF", "VDW-DF2", "VDW-DF-C09", "VDW-DF2-C09", "VDW-DF-CX",
    "VDW-DF-OB86", "VDW-DF2-B86R", "RVV10",
)  # fmt: skip
# Functionals for which pseudopotentials are made; others take those of PBE.
_OWN = ("LDA", "PBE", "PBESOL", "BLYP", "REVPBE", "TPSS")


_DECIDED = {
    "ecutwfc": "ecut",
    "input_dft": "xc",
    "conv_thr": "tolerance",
    "electron_maxstep": "max_scf",
    "mixing_beta": "mixing",
    "tot_charge": "charge",
    "degauss": "smearing",
    "nspin": "magmom",
    "starting_magnetization": "magmom",
    "pseudo_dir": "pseudo_dir",
    "calculation": "another app",
    "prefix": "nothing: it is the run's own",
    "outdir": "nothing: it is the run's own",
}


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
        folder = _pseudo_dir(level, run)
        functional = _functional(level.xc)
        if functional not in _OWN and functional not in _FUNCTIONALS and "+" not in level.xc:
            raise AppFailed(
                f"xc={level.xc!r} is no functional that pw.x knows by one word; "
                f"{nearest(functional, (*_OWN, *_FUNCTIONALS))}",
                kind="contract",
                name="BadSettings",
                repair="another xc; parts as pw.x spells them are joined by +, as in SLA+PW+RPB+PBC",
            )
        family = family_of(options["family"], folder) if _has_family(options) else None
        folder = family.folder if family else folder
        pseudo = _chosen(atoms.get_chemical_symbols(), _made_with(functional), folder, options, family)
        keywords = _checked(options.get("keywords") or {})
        refuse_decided("pw.x", _names(keywords), _DECIDED)
        data, notes = _data(atoms, level, pseudo, functional)
        field, said = _dipole(atoms, level)
        data |= field
        notes += said
        notes += [
            f"keywords: {name} = {value!r} in place of {data[name]!r}"
            for name, value in keywords.items()
            if name in data and data[name] != value
        ]
        data |= keywords
        points = sampled(atoms, level)
        if family:
            notes.append(_of_family(family, pseudo, data, level))
        _write_pseudopotentials(run.workdir, folder, functional, pseudo, data, options, family)
        vacuum = float(options.get("vacuum") or VACUUM)
        return Pwscf(
            found,
            directory=run.workdir,
            pseudo_dir=folder,
            data=data,
            more={
                "pseudopotentials": {element: one.path.name for element, one in pseudo.items()},
                "kpts": None if points == (1, 1, 1) else points,
            },
            prepared=lambda these: _prepared(these, level, pseudo, vacuum),
            check=check,
            history=iterations,
            fermi=fermi_energy,
            words=("-nk", str(int(options["pools"]))) if options.get("pools") else (),
            keep=bool(options.get("keep")),
            valence_electrons=_electrons(atoms, level, pseudo),
            notes=(*notes, *([] if family else _notes(pseudo, options))),
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
        folder = _folder(level.options, site)
        named = level.options.get("pseudopotentials") or {}
        with contextlib.suppress(AppFailed):
            if _has_family(level.options):
                path = list_of(level.options["family"])
                try:
                    family = family_of(level.options["family"], folder)
                except AppFailed:
                    # The run fails with it; mended it is another run.
                    return (Deciding("family", path),)
                # The list decides the cutoffs; a file that it does not name is not taken.
                own = {e: family.folder / f for e, f in (family.named | named).items()}
                listed = [Deciding(e, path, e) for e, path in sorted(own.items()) if os.path.isfile(path)]  # noqa: PTH113
                return (*listed, Deciding("family", family.path))
            taken = available(_made_with(_functional(level.xc)), folder, named)
            return tuple(Deciding(element, path, element) for element, path in sorted(taken.items()))
        return ()

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
        energies, fermi = _eigenvalues(calculator.scratch / "pwscf.save" / "data-file-schema.xml")
        scf = fermi_energy(read_text(run.workdir / "espresso.pwo"))
        return BandStructure(path, energies, reference=fermi if scf is None else scf)


ENGINE = Espresso()


def _has_family(options: Mapping[str, Any]) -> bool:
    return options.get("family") not in (None, "")


def _functional(xc: str) -> str:
    """The functional as pw.x and the headers of pseudopotentials spell it.

    Raises:
        AppFailed: `BadSettings`: pw.x has not got it.
    """
    return family(spelling(xc, "espresso")[0])


def _made_with(functional: str) -> str:
    """The functional that the pseudopotentials of a calculation with `functional` are made with."""
    return functional if functional in _OWN else "PBE"


def _folder(options: Mapping[str, Any], site: Mapping[str, Any]) -> Path:
    """Where pseudopotentials are looked for."""
    of_site: Mapping[str, Any] = ((site.get("apps") or {}).get("espresso") or {}).get("env") or {}
    given = (
        options.get("pseudo_dir")
        or of_site.get("ESPRESSO_PSEUDO")
        or os.environ.get("ESPRESSO_PSEUDO")
        or PSEUDO_DIR
    )
    return Path(given).expanduser().absolute()


def _pseudo_dir(level: Level, run: Run) -> Path:
    folder = _folder(level.options, run.site)
    if not os.path.isdir(folder):  # noqa: PTH112  (Path.is_dir raises where a folder above may not be entered)
        raise AppFailed(
            f"no pseudopotentials: {folder} is no folder; name one by the setting `pseudo_dir`, by "
            "$ESPRESSO_PSEUDO, or install an example set (Debian: apt-get install quantum-espresso-data).",
            kind="infrastructure",
            name="NoPseudopotential",
        )
    return folder


def _chosen(
    symbols: Iterable[str], functional: str, folder: Path, options: Mapping[str, Any], family: Family | None
) -> dict[str, Pseudopotential]:
    """A pseudopotential for each element, with the cutoffs that its family recommends, or its header."""
    named = options.get("pseudopotentials") or {}
    if family is None:
        return {element: known(one) for element, one in choose(symbols, functional, folder, named).items()}
    elements = sorted(set(symbols))
    missing = [e for e in elements if e not in named and e not in family.named]
    if missing:
        raise AppFailed(
            f"the family {family.name!r} has no file of {', '.join(missing)} in {family.folder}; it has those of "
            f"{', '.join(sorted(family.named)) or 'no element'}.",
            kind="contract",
            name="NoPseudopotential",
            repair="put the family's files beside its list, or into pseudo_dir; or name one by `pseudopotentials`",
        )
    chosen = choose(
        elements, functional, folder, {e: f for e, f in (family.named | named).items() if e in elements}
    )
    return recommended(family, chosen, [e for e in elements if e not in named])


def _of_family(
    family: Family, pseudo: Mapping[str, Pseudopotential], data: Mapping[str, Any], level: Level
) -> str:
    own = [one.path.name for e, one in pseudo.items() if one.path.name != family.named.get(e)]
    said = f"pseudopotentials of the family {family.name}, hashes as listed"
    if own:
        said += f", but {', '.join(own)} by name"
    return said if level.ecut else f"{said}; cutoff as recommended, {data['ecutwfc'] * RY:.0f} eV"


def _checked(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords given flat, or in a dict for each namelist, flat as far as ASE knows them.

    One that ASE does not know goes to pw.x only inside of its namelist; given flat, ASE would drop it in silence.

    Raises:
        AppFailed: `BadSettings`.
    """
    from ase.io.espresso_namelist.keys import ALL_KEYS

    known = {name for names in ALL_KEYS["pw"].values() for name in names}
    found: dict[str, Any] = {}
    for name, value in keywords.items():
        if name.lower() in ALL_KEYS["pw"] and isinstance(value, dict):
            found |= {k: v for k, v in value.items() if _bare(k) in known}
            unknown = {k: v for k, v in value.items() if _bare(k) not in known}
            if unknown:
                found[name.lower()] = unknown
        elif _bare(name) in known:
            found[name] = value
        else:
            raise AppFailed(
                f"the setting `keywords` has {name!r}, which is no keyword of pw.x that ASE knows; "
                f"{nearest(name, known)} One that is newer than this ASE goes into its namelist: "
                f"{{'system': {{{name!r}: ...}}}}.",
                kind="contract",
                name="BadSettings",
            )
    return found


def _names(keywords: Mapping[str, Any]) -> list[str]:
    """All keywords, also those that are inside of their namelist."""
    inside = [_bare(name) for value in keywords.values() if isinstance(value, dict) for name in value]
    return [*map(_bare, keywords), *inside]


def _bare(keyword: str) -> str:
    return keyword.split("(")[0].lower()


def _data(
    atoms: Atoms, level: Level, pseudo: Mapping[str, Pseudopotential], functional: str
) -> tuple[dict[str, Any], list[str]]:
    notes = []
    silent = [one.path.name for one in pseudo.values() if not one.wfc_cutoff]
    if silent and not level.ecut:
        raise AppFailed(
            f"{', '.join(silent)} suggests no cutoff, and none was given.",
            kind="contract",
            name="NeedsCutoff",
            repair="ecut in eV, converged (chain dft_convergence); or `family`, whose list has cutoffs",
        )
    cutoff = level.ecut / RY if level.ecut else max(one.wfc_cutoff for one in pseudo.values())
    if all(one.kind == "NC" for one in pseudo.values()):
        density = 4 * cutoff
    else:
        density = max([8 * cutoff, *(one.rho_cutoff for one in pseudo.values())])
    data: dict[str, Any] = {
        "calculation": "scf",
        "prefix": "pwscf",
        "disk_io": "low",
        "ecutwfc": round(cutoff, 6),
        "ecutrho": round(density, 6),
        "conv_thr": level.tolerance / RY,
        "electron_maxstep": level.max_scf,
    }
    if functional not in _OWN:
        data["input_dft"] = "+".join(functional.lower().split())
        notes.append(f"{level.xc} with pseudopotentials made with PBE")
    wanted = max(one.wfc_cutoff for one in pseudo.values())
    if cutoff < wanted - 0.5:
        notes.append(
            f"ecut of {cutoff * RY:.0f} eV is below the {wanted * RY:.0f} eV its pseudopotentials suggest"
        )
    if level.charge:
        data["tot_charge"] = level.charge
    if level.mixing:
        data["mixing_beta"] = level.mixing
    if level.options.get("gentle") and any(vacuum_along(atoms)):
        data["mixing_mode"] = "local-TF"
    if level.smearing > 0:
        data |= {"occupations": "smearing", "smearing": "mv", "degauss": level.smearing / RY}
    else:
        data["occupations"] = "fixed"
    moments = _moments(atoms, level)
    if any(moments):
        data["nspin"] = 2
        if level.smearing <= 0:
            data["tot_magnetization"] = _total_moment(moments, _electrons(atoms, level, pseudo))
    if not any(atoms.pbc) and not atoms.cell.any():
        vacuum = float(level.options.get("vacuum") or VACUUM)
        notes.append(f"a box around the molecule, {vacuum:g} angstrom beyond its atoms: pw.x is always periodic")
        extent = [float(max(x) - min(x)) for x in atoms.positions.T]
        # The method wants a box twice as wide as the density, which reaches about 2 angstrom beyond the nuclei.
        if all(length + 2 * vacuum >= 2 * (length + 4) for length in extent):
            data["assume_isolated"] = "mt"
        else:
            notes.append("its images are too near to be left out (assume_isolated): energies include them")
    return data, notes


# Share of the cell over which the potential of the dipole layer falls; pw.x's own default is 0.1.
_LAYER = 0.05


def _dipole(atoms: Atoms, level: Level) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Keywords of the dipole correction: the added potential falls in the middle of the vacuum."""
    layer, notes = layer_of(boxed(atoms, float(level.options.get("vacuum") or VACUUM)), level)
    if layer is None:
        return {}, notes
    falling = min(_LAYER, layer.width / 4)
    keywords = {"tefield": True, "dipfield": True, "edir": layer.axis + 1, "eamp": 0.0}
    return keywords | {"emaxpos": round((layer.middle - falling / 2) % 1.0, 6), "eopreg": round(falling, 6)}, notes


def _moments(atoms: Atoms, level: Level) -> list[float]:
    """Initial moment of each atom: its own if the structure has any, else the level's."""
    own: list[float] = atoms.get_initial_magnetic_moments().tolist()
    return own if any(own) else [level.magmom] * len(atoms)


def _total_moment(moments: list[float], electrons: float) -> int:
    total = round(sum(moments))
    if (round(electrons) - total) % 2:
        raise AppFailed(
            f"{electrons:g} electrons cannot have a total moment of {total} Bohr magnetons (the sum of the "
            "initial moments), as fixed occupations need it.",
            kind="contract",
            name="BadSettings",
            repair="another magmom, or smearing > 0, with which the moment is found",
        )
    return total


def _electrons(atoms: Atoms, level: Level, pseudo: Mapping[str, Pseudopotential]) -> float:
    return sum(pseudo[symbol].valence for symbol in atoms.get_chemical_symbols()) - level.charge


def _prepared(atoms: Atoms, level: Level, pseudo: Mapping[str, Pseudopotential], vacuum: float) -> Atoms:
    copy = boxed(atoms, vacuum)
    # pw.x reads numbers below 1 as a share of the valence electrons in every version, larger ones only since 7.3.
    shares = [
        max(-1.0, min(1.0, moment / pseudo[symbol].valence))
        for moment, symbol in zip(_moments(atoms, level), atoms.get_chemical_symbols(), strict=True)
    ]
    copy.set_initial_magnetic_moments(shares)
    return copy


def _notes(pseudo: Mapping[str, Pseudopotential], options: Mapping[str, Any]) -> list[str]:
    named = options.get("pseudopotentials") or {}
    notes = []
    found = [f"{one.path.name}" for element, one in pseudo.items() if element not in named]
    if found:
        notes.append(f"pseudopotentials found by functional, not named: {', '.join(found)}")
    averaged = [one.path.name for one in pseudo.values() if one.relativistic == "full"]
    if averaged:
        notes.append(f"spin-orbit coupling of {', '.join(averaged)} is averaged")
    return notes


def _write_pseudopotentials(
    workdir: Path,
    folder: Path,
    functional: str,
    pseudo: Mapping[str, Pseudopotential],
    data: Mapping[str, Any],
    options: Mapping[str, Any],
    family: Family | None = None,
) -> None:
    named = options.get("pseudopotentials") or {}
    record = {
        "functional": functional,
        "folder": str(folder),
        "family": None if family is None else str(family.path),
        "ecutwfc_ry": data["ecutwfc"],
        "ecutrho_ry": data["ecutrho"],
        "pseudopotentials": {
            element: one.record | {"chosen": "named" if element in named else "found"}
            for element, one in pseudo.items()
        },
    }
    (workdir / "pseudopotentials.json").write_text(json.dumps(record, indent=2) + "\n")


# ---- what pw.x wrote


_ENERGY = re.compile(r"^!?\s+total energy\s+=\s+(\S+) Ry", re.MULTILINE)
_ACCURACY = re.compile(r"^\s+estimated scf accuracy\s+<\s+(\S+) Ry", re.MULTILINE)


def iterations(output: str) -> tuple[Iteration, ...]:
    """SCF steps in an output of pw.x.

    Example:
        >>> (step,) = iterations(
        ...     "     total energy              =     -15.79448930 Ry\\n"
        ...     "     estimated scf accuracy    <       0.01000000 Ry\\n"
        ... )
        >>> round(step.energy, 3), round(step.change, 3)
        (-214.895, 0.136)
    """
    energies = [number_or_nan(word) * RY for word in _ENERGY.findall(output)]
    changes = [number_or_nan(word) * RY for word in _ACCURACY.findall(output)]
    changes += [math.nan] * (len(energies) - len(changes))
    return tuple(Iteration(energy, change) for energy, change in zip(energies, changes, strict=False))


def fermi_energy(output: str) -> float | None:
    """Fermi energy, or the highest occupied level, in eV."""
    found = re.findall(
        r"the Fermi energy is\s+(\S+) ev|highest occupied(?:, lowest unoccupied)? level \(ev\):\s+(\S+)", output
    )
    return number_or_nan(found[-1][0] or found[-1][1]) if found else None


# (pattern in pw.x's words, name, kind, repair); the first that matches wins.
_KNOWN = (
    (
        r"the system is metallic, specify occupations|fixed occupations and lsda",
        "NeedsSmearing",
        "contract",
        "set smearing, e.g. 0.2 eV for a metal",
    ),
    (
        r"S matrix not positive definite|eigenvectors failed to converge|too many bands are not converged"
        r"|problems computing cholesky|cdiaghg|rdiaghg",
        "DiagonalizationFailed",
        "simulation",
        "settings keywords = {'diagonalization': 'cg'}, or another mixing",
    ),
    (r"charge is wrong: smearing is needed", "NeedsSmearing", "contract", "set smearing"),
    (
        r"[Cc]annot allocate|out of memory|insufficient virtual memory",
        "OutOfMemory",
        "infrastructure",
        "more nodes",
    ),
    (
        r"not enough slots|cannot open shared object|wrong number of|some nodes have no k-points",
        "WrongRanks",
        "infrastructure",
        "fewer ranks, or the launcher of this pw.x's own MPI ([apps.espresso] launcher)",
    ),
    (
        r"reading namelist|unknown variable|bad line in namelist|functional|dft has",
        "BadSettings",
        "contract",
        "correct `keywords` (or xc)",
    ),
)


def check(ended: Ended, directory: Path) -> None:
    """Raise what went wrong in a calculation.

    Raises:
        AppFailed: One of `FAILURE_MODES`.
    """
    text = ended.text
    tail = text[-4000:]
    if ended.stopped is not None or "Maximum CPU time exceeded" in text:
        limit = ended.stopped
        if limit is not None:
            raise limit.failure(wall_s=ended.wall_s, log_tail=tail)
        raise AppFailed(
            f"pw.x stopped by itself after {ended.wall_s:.3g} s, shortly before the run's limit; what it wrote is "
            "kept.",
            kind="infrastructure",
            name="Walltime",
            log_tail=tail,
            repair="raise walltime_s, or make the calculation smaller",
        )
    history = iterations(text)
    if "convergence NOT achieved" in text:
        raise NotConverged(
            f"the SCF of pw.x did not converge in {len(history)} steps: estimated error "
            f"{history[-1].change:.2g} eV."
            if history
            else "the SCF of pw.x did not converge.",
            history=history,
            log_tail=tail,
            repair="more max_scf, less mixing, or more smearing",
        )
    _check_ranks(ended)
    said = _crash(text, directory)
    if said or ended.returncode != 0:
        raise _failure(said, ended, history, tail)
    if "JOB DONE." not in text:
        raise AppFailed(
            "pw.x ended with exit code 0, but its output has no end (no `JOB DONE.`): it was cut off.",
            name="ExecutableFailed",
            kind="infrastructure",
            log_tail=tail,
        )


def _check_ranks(ended: Ended) -> None:
    """Refuse copies of one rank each where the launcher's MPI is not that of pw.x."""
    got = re.search(r"running on\s+(\d+)\s+proc", ended.text)
    if got is None and "Serial version" not in ended.text:
        return
    running = int(got[1]) if got else 1
    if running < ended.ranks:
        raise AppFailed(
            f"pw.x ran on {running} MPI rank(s), {ended.ranks} were asked for: the launcher and the MPI library "
            "of this pw.x do not know each other.",
            kind="infrastructure",
            name="WrongRanks",
            log_tail=ended.text[-2000:],
            repair="in the site profile, the launcher of its own MPI ([apps.espresso] launcher)",
        )


def _crash(text: str, directory: Path) -> str:
    """What pw.x says in its box of % signs, in the output or the file CRASH."""
    crash = directory / "CRASH"
    for source in (text, read_text(crash) if crash.is_file() else ""):
        found = re.search(r"Error in routine\s+(.*?)(?:\n\s*%{10,}|\Z)", source, re.DOTALL)
        if found:
            return " ".join(found[1].split())
    return ""


def _killed(ended: Ended, tail: str) -> AppFailed:
    return AppFailed(
        f"pw.x was killed by signal {-ended.returncode} after {ended.wall_s:.3g} s; it says nothing of it itself.",
        kind="infrastructure",
        name="Killed",
        log_tail=tail,
        repair="if nobody did it: memory; fewer runs beside each other, or more memory",
    )


def _failure(said: str, ended: Ended, history: tuple[Iteration, ...], tail: str) -> AppFailed:
    for pattern, name, kind, repair in _KNOWN:
        if re.search(pattern, said or ended.text):
            return AppFailed(
                f"pw.x stopped: {said or _last(ended.text)}.", kind=kind, name=name, log_tail=tail, repair=repair
            )
    if not said and ended.returncode in (-9, -15):
        return _killed(ended, tail)
    how = f"signal {-ended.returncode}" if ended.returncode < 0 else f"exit code {ended.returncode}"
    return AppFailed(
        f"pw.x stopped: {said}." if said else f"pw.x ended with {how}: {_last(ended.text)}.",
        kind="simulation" if said or history else "infrastructure",
        name="ExecutableFailed",
        log_tail=tail,
    )


def _last(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "it printed nothing"


def _eigenvalues(path: Path) -> tuple[Any, float]:
    """Band energies (spin, k-point, band) and the Fermi energy, in eV, from the XML file of pw.x."""
    import numpy as np
    from ase.units import Hartree

    structure = ElementTree.parse(path).getroot().find("output/band_structure")
    if structure is None:
        raise AppFailed(f"{path.name} of pw.x has no band structure.", name="ExecutableFailed")
    rows = [
        [float(word) for word in (node.text or "").split()]
        for node in structure.iterfind("ks_energies/eigenvalues")
    ]
    energies = np.array(rows)[None] * Hartree
    if (structure.findtext("lsda") or "").strip() == "true":
        # Those of spin up, then those of spin down.
        energies = np.concatenate(np.split(energies, 2, axis=2))
    fermi = structure.findtext("fermi_energy") or structure.findtext("highestOccupiedLevel")
    return energies, math.nan if fermi is None else float(fermi) * Hartree
