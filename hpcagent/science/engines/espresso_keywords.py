"""What atoms and a level become in the input of pw.x, and the keywords that are given beside them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hpcagent.apps.packages import refuse_decided
from hpcagent.errors import AppFailed, nearest
from hpcagent.science.engines.base import Level
from hpcagent.science.engines.dipole import layer_of
from hpcagent.science.engines.espresso_functionals import made_with
from hpcagent.science.engines.mesh import VACUUM, boxed, vacuum_along
from hpcagent.science.engines.upf import RY, Pseudopotential

if TYPE_CHECKING:
    from ase import Atoms

__all__ = ["electrons", "input_data", "prepared"]

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

# Share of the cell over which the potential of the dipole layer falls; pw.x's own default is 0.1.
_LAYER = 0.05


def input_data(
    atoms: Atoms, level: Level, pseudo: Mapping[str, Pseudopotential], functional: str
) -> tuple[dict[str, Any], list[str]]:
    """Keywords of the input, those of the setting `keywords` in place of others, and notes on them.

    Raises:
        AppFailed: `BadSettings` or `NeedsCutoff`.
    """
    keywords = _checked(level.options.get("keywords") or {})
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
    return data, notes


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
    if made_with(functional) != functional:
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
            data["tot_magnetization"] = _total_moment(moments, electrons(atoms, level, pseudo))
    if not any(atoms.pbc) and not atoms.cell.any():
        vacuum = _vacuum(level)
        notes.append(f"a box around the molecule, {vacuum:g} angstrom beyond its atoms: pw.x is always periodic")
        extent = [float(max(x) - min(x)) for x in atoms.positions.T]
        # The method wants a box twice as wide as the density, which reaches about 2 angstrom beyond the nuclei.
        if all(length + 2 * vacuum >= 2 * (length + 4) for length in extent):
            data["assume_isolated"] = "mt"
        else:
            notes.append("its images are too near to be left out (assume_isolated): energies include them")
    return data, notes


def _vacuum(level: Level) -> float:
    return float(level.options.get("vacuum") or VACUUM)


def _dipole(atoms: Atoms, level: Level) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Keywords of the dipole correction: the added potential falls in the middle of the vacuum."""
    layer, notes = layer_of(boxed(atoms, _vacuum(level)), level)
    if layer is None:
        return {}, notes
    falling = min(_LAYER, layer.width / 4)
    keywords = {"tefield": True, "dipfield": True, "edir": layer.axis + 1, "eamp": 0.0}
    return keywords | {"emaxpos": round((layer.middle - falling / 2) % 1.0, 6), "eopreg": round(falling, 6)}, notes


def _moments(atoms: Atoms, level: Level) -> list[float]:
    """Initial moment of each atom: its own if the structure has any, else the level's."""
    own: list[float] = atoms.get_initial_magnetic_moments().tolist()
    return own if any(own) else [level.magmom] * len(atoms)


def _total_moment(moments: list[float], valence: float) -> int:
    total = round(sum(moments))
    if (round(valence) - total) % 2:
        raise AppFailed(
            f"{valence:g} electrons cannot have a total moment of {total} Bohr magnetons (the sum of the "
            "initial moments), as fixed occupations need it.",
            kind="contract",
            name="BadSettings",
            repair="another magmom, or smearing > 0, with which the moment is found",
        )
    return total


def electrons(atoms: Atoms, level: Level, pseudo: Mapping[str, Pseudopotential]) -> float:
    """How many valence electrons there are."""
    return sum(pseudo[symbol].valence for symbol in atoms.get_chemical_symbols()) - level.charge


def prepared(atoms: Atoms, level: Level, pseudo: Mapping[str, Pseudopotential]) -> Atoms:
    """The atoms as pw.x is to have them: in a box, with the moments that it begins with."""
    copy = boxed(atoms, _vacuum(level))
    # pw.x reads numbers below 1 as a share of the valence electrons in every version, larger ones only since 7.3.
    shares = [
        max(-1.0, min(1.0, moment / pseudo[symbol].valence))
        for moment, symbol in zip(_moments(atoms, level), atoms.get_chemical_symbols(), strict=True)
    ]
    copy.set_initial_magnetic_moments(shares)
    return copy
