"""Structures into LAMMPS and out of it: data files, final structures, and the files that a run promises."""

from __future__ import annotations

import io
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcagent.apps.bounded import require_size
from hpcagent.apps.missing import missing_file
from hpcagent.apps.packages import needs
from hpcagent.apps.run import Run
from hpcagent.errors import AppFailed
from hpcagent.regular import open_regular

__all__ = ["READABLE", "STYLES", "final_of", "given", "taken", "written"]

STYLES = ("atomic", "charge", "full")
"""The `atom_style`s whose data files are written here."""
READABLE = (*STYLES, "angle", "bond", "molecular")
"""The `atom_style`s whose data files ASE reads."""
MARGIN_ANGSTROM = 10.0
"""Empty space on either side of atoms along a direction in which the structure has no cell."""


# ---- into LAMMPS


def taken(run: Run) -> list[str]:
    """Write what the input run hands over under the name that the script reads; returns notes.

    Raises:
        AppFailed: `NoStructure`: the run has no such artifact. `BadStructure`: it does not fit the contract.
            `MissingFile`: its file is gone. `NoEngine`: ASE is not installed.
    """
    rule = run.settings.get("structure")
    if rule is None:
        return []
    # Also where it is only the final structure that wants it: better now than after the run.
    needs("ase", "pip install 'hpcagent[ase]'")
    if not rule["file"]:
        return []
    target = run.workdir / rule["file"]
    if rule["artifact"] != "structure":
        _copied(run.upstream[0], rule["artifact"], target)
        return []
    from hpcagent.apps.structures import read_structure

    atoms = read_structure(run)
    text, notes = written(atoms, rule, units=run.settings["units"])
    target.write_text(text)
    return notes


def _copied(upstream: Mapping[str, Any], artifact: str, target: Path) -> None:
    artifacts = upstream.get("artifacts") or {}
    if artifact not in artifacts:
        raise AppFailed(
            f"the input run {upstream.get('workdir') or '(a structure that was given)'} has no artifact "
            f"{artifact!r} (it has: {', '.join(artifacts) or 'none'}).",
            kind="contract",
            name="NoStructure",
            repair=f"pass a LAMMPS run whose contract names {artifact!r} in [artifacts]",
        )
    source = Path(upstream["workdir"]) / artifacts[artifact]
    try:
        shutil.copyfile(source, target)
    except FileNotFoundError:
        raise missing_file(upstream, source, f"artifact {artifact!r}") from None


def written(atoms: Any, rule: Mapping[str, Any], *, units: str) -> tuple[str, list[str]]:
    """A structure as the text of a LAMMPS data file, and notes.

    Args:
        atoms: The structure (ASE `Atoms`); velocities are written if it has any.
        rule: `elements` in the order of the types, `atom_style`, `charges`, `bonds`, `angles`.
        units: The script's style.

    Raises:
        AppFailed: `BadStructure`: an element without a type, bonds that are not found, a cell that is left-handed.
    """
    from ase.calculators.lammps import Prism

    notes: list[str] = []
    _check_elements(atoms, rule["elements"])
    placed = _boxed(atoms, notes)
    prism = Prism(placed.get_cell())
    if prism.is_skewed():
        notes.append("LAMMPS has the cell turned: its first vector lies along x, its second in the xy plane")
    if placed.constraints:
        notes.append("the constraints of the structure (fixed atoms) are not known to LAMMPS")
    bonds, angles = _topology(placed, rule)
    sections = {
        "Masses": _masses(placed, rule["elements"], units),
        f"Atoms # {rule['atom_style']}": _atoms(placed, rule, prism, units),
        "Velocities": _velocities(placed, prism, units),
        "Bonds": [" ".join(map(str, bond)) for bond in bonds],
        "Angles": [" ".join(map(str, angle)) for angle in angles],
    }
    head = [f"{len(placed)} atoms", f"{len(rule['elements'])} atom types"]
    for word, found, known in (("bond", bonds, rule["bonds"]), ("angle", angles, rule["angles"])):
        if known:
            head += [f"{len(found)} {word}s", f"{len(known)} {word} types"]
    parts = ["\n".join(["written by hpcagent", "", *head, *_box(prism, units)])]
    for title, rows in sections.items():
        if rows:
            parts += [title, "\n".join(f"{number} {row}" for number, row in enumerate(rows, 1))]
    return "\n\n".join(parts) + "\n", notes


def _check_elements(atoms: Any, elements: Sequence[str]) -> None:
    unknown = sorted(set(atoms.get_chemical_symbols()) - set(elements))
    if unknown or not len(atoms):
        raise AppFailed(
            f"the structure has {', '.join(unknown) or 'no atoms'}, but [structure] elements of the contract "
            f"names {', '.join(elements)}.",
            kind="contract",
            name="BadStructure",
            repair="pass another structure, or give the element a type and a potential",
        )


def _box(prism: Any, units: str) -> list[str]:
    xhi, yhi, zhi, xy, xz, yz = _convert(prism.get_lammps_prism(), "distance", units)
    rows = [f"0 {xhi:.15g} xlo xhi", f"0 {yhi:.15g} ylo yhi", f"0 {zhi:.15g} zlo zhi"]
    return [*rows, f"{xy:.15g} {xz:.15g} {yz:.15g} xy xz yz"] if prism.is_skewed() else rows


def _masses(atoms: Any, elements: Sequence[str], units: str) -> list[str]:
    from ase.data import atomic_masses, atomic_numbers

    own = dict(zip(atoms.get_chemical_symbols(), atoms.get_masses(), strict=True))
    masses = [own.get(element, atomic_masses[atomic_numbers[element]]) for element in elements]
    return [f"{_convert(m, 'mass', units):.10g} # {e}" for m, e in zip(masses, elements, strict=True)]


def _atoms(atoms: Any, rule: Mapping[str, Any], prism: Any, units: str) -> list[str]:
    types = [rule["elements"].index(symbol) + 1 for symbol in atoms.get_chemical_symbols()]
    said = [str(number) for number in types]
    if rule["atom_style"] != "atomic":
        said = [f"{number} {charge:.10g}" for number, charge in zip(types, _charges(atoms, rule), strict=True)]
    if rule["atom_style"] == "full":
        molecules = atoms.arrays.get("mol-id", [0] * len(atoms))
        said = [f"{molecule} {words}" for molecule, words in zip(molecules, said, strict=True)]
    positions = _convert(prism.vector_to_lammps(atoms.get_positions()), "distance", units)
    return [f"{words} {x:.15g} {y:.15g} {z:.15g}" for words, (x, y, z) in zip(said, positions, strict=True)]


def _velocities(atoms: Any, prism: Any, units: str) -> list[str]:
    if "momenta" not in atoms.arrays:
        return []
    velocities = _convert(prism.vector_to_lammps(atoms.get_velocities()), "velocity", units)
    return [f"{x:.10g} {y:.10g} {z:.10g}" for x, y, z in velocities]


def _convert(value: Any, quantity: str, units: str) -> Any:
    """From ASE's units to those of a LAMMPS style."""
    from ase.calculators.lammps import convert

    return convert(value, quantity, "ASE", units)


def _boxed(atoms: Any, notes: list[str]) -> Any:
    """A copy with a cell vector along every direction, as LAMMPS wants; atoms stay where they are in a cell."""
    placed = atoms.copy()
    missing = [i for i in range(3) if not placed.cell[i].any()]
    if not missing:
        if placed.cell.handedness == 1:
            return placed
        raise AppFailed(
            "the cell vectors of the structure are left-handed; LAMMPS takes right-handed ones.",
            kind="contract",
            name="BadStructure",
            repair="swap two of the cell vectors",
        )
    if any(placed.pbc[i] for i in missing):
        raise AppFailed(
            "the structure is periodic along a direction in which it has no cell vector.",
            kind="contract",
            name="BadStructure",
        )
    placed.center(vacuum=MARGIN_ANGSTROM, axis=missing)
    which = ", ".join("abc"[i] for i in missing)
    notes.append(f"no cell along {which}: the box ends {MARGIN_ANGSTROM:g} angstrom beyond the outermost atoms")
    return placed


def _charges(atoms: Any, rule: Mapping[str, Any]) -> list[float]:
    """Charge of each atom: by element as the contract says, else the structure's own."""
    own = atoms.get_initial_charges()
    by_element = rule["charges"]
    return [float(by_element.get(s, q)) for s, q in zip(atoms.get_chemical_symbols(), own, strict=True)]


def _topology(atoms: Any, rule: Mapping[str, Any]) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """Bonds (type, i, j) and angles (type, i, centre, k), atoms counted from 1.

    Two atoms are bonded if the contract lists a bond of their elements, they belong to the same molecule (where
    the structure says which atom belongs to which), and they are no further apart than 1.2 times the sum of
    their covalent radii.
    """
    if not rule["bonds"]:
        return [], []
    from ase.data import covalent_radii
    from ase.neighborlist import neighbor_list

    symbols = atoms.get_chemical_symbols()
    radii = [1.2 * covalent_radii[z] for z in atoms.numbers]
    molecule = atoms.arrays.get("mol-id")
    types = {tuple(sorted(b.split("-"))): n for n, b in enumerate(rule["bonds"], 1)}
    bonds: list[tuple[int, ...]] = []
    partners: dict[int, list[int]] = {}
    near = neighbor_list("ij", atoms, radii)
    for i, j in zip(*near, strict=True):
        kind = types.get(tuple(sorted((symbols[i], symbols[j]))))
        if kind is None or (molecule is not None and molecule[i] != molecule[j]):
            continue
        partners.setdefault(int(i), []).append(int(j))
        if i < j:
            bonds.append((kind, int(i) + 1, int(j) + 1))
    _check_found(rule["bonds"], [b[0] for b in bonds], "bond")
    kinds = {_angle(a.split("-")): n for n, a in enumerate(rule["angles"], 1)}
    angles: list[tuple[int, ...]] = []
    for centre, around in sorted(partners.items()):
        for at, i in enumerate(sorted(around)):
            for k in sorted(around)[at + 1 :]:
                kind = kinds.get(_angle((symbols[i], symbols[centre], symbols[k])))
                if kind is not None:
                    angles.append((kind, i + 1, centre + 1, k + 1))
    _check_found(rule["angles"], [a[0] for a in angles], "angle")
    return bonds, angles


def _angle(names: Sequence[str]) -> tuple[str, ...]:
    first, centre, last = names
    return (*sorted((first, last)), centre)


def _check_found(named: Sequence[str], found: Sequence[int], what: str) -> None:
    for number, name in enumerate(named, 1):
        if number not in found:
            raise AppFailed(
                f"the structure has no {what} {name}, which [structure] {what}s of the contract names.",
                kind="contract",
                name="BadStructure",
                repair="pass a structure of molecules with their atoms at bond lengths",
            )


# ---- out of LAMMPS


def given(run: Run) -> dict[str, str]:
    """The artifacts that the contract names, and the final structure made from them.

    The structure comes from the data file `data`, or else from the last frame of the dump `trajectory`.

    Raises:
        AppFailed: `MissingArtifact`: a file was not written. `BadStructure`: no structure can be read from it.
    """
    artifacts: dict[str, str] = dict(run.settings.get("artifacts") or {})
    for name, file in artifacts.items():
        path = run.workdir / file
        if not path.is_file() or path.stat().st_size == 0:
            raise AppFailed(
                f"the artifact {name!r} of the contract was not written: {file} is "
                f"{'empty' if path.is_file() else 'not there'}, although LAMMPS ended well.",
                kind="contract",
                name="MissingArtifact",
                repair="write it in the script (write_data, dump), or correct [artifacts]",
            )
    rule = run.settings.get("structure")
    source = None if rule is None else final_of(artifacts, rule["atom_style"])
    if rule is None or source is None or "structure" in artifacts:
        return artifacts
    from hpcagent.apps.structures import write_structure

    try:
        atoms = _final(run.workdir / artifacts[source], source, rule, run.settings["units"])
    except AppFailed:
        raise
    except Exception as error:  # ASE's readers fail in many ways
        raise AppFailed(
            f"no structure can be read from {artifacts[source]} (the artifact {source!r}): {error}.",
            kind="contract",
            name="BadStructure",
            repair="`write_data FILE nocoeff`, or `dump ... custom ... id type x y z` (xu yu zu, vx vy vz)",
        ) from error
    return artifacts | write_structure(run, atoms)


def final_of(artifacts: Mapping[str, str], atom_style: str) -> str | None:
    """Which of a run's artifacts its final structure is made from: `data` if it can be read, or `trajectory`."""
    if "data" in artifacts and atom_style in READABLE:
        return "data"
    return "trajectory" if "trajectory" in artifacts else None


def _final(path: Path, source: str, rule: Mapping[str, Any], units: str) -> Any:
    import numpy as np
    from ase.data import atomic_masses, atomic_numbers
    from ase.io.lammpsdata import read_lammps_data
    from ase.io.lammpsrun import read_lammps_dump_text

    elements: Sequence[str] = rule["elements"]
    if source == "data":
        numbers = {n: atomic_numbers[e] for n, e in enumerate(elements, 1)}
        require_size(path)
        with io.TextIOWrapper(open_regular(path), encoding="utf-8") as file:
            found: Any = read_lammps_data(file, Z_of_type=numbers, units=units, atom_style=rule["atom_style"])
        if rule["periodic"] is not None:
            found.pbc = rule["periodic"]
    else:
        from hpcagent.science.lammps.dump import last_frame_of_dump

        with io.StringIO(last_frame_of_dump(path).decode()) as file:
            found = read_lammps_dump_text(file, index=-1, units=units, specorder=list(elements))
    # Where the box begins is LAMMPS's affair; ASE's cells begin at the origin.
    found.positions -= found.get_celldisp().ravel()
    found.set_celldisp(np.zeros(3))
    for name in ("id", "type", "mmcharges", "bonds", "angles", "dihedrals"):
        found.arrays.pop(name, None)
    if np.allclose(found.get_masses(), atomic_masses[found.numbers], atol=0.01):
        found.arrays.pop("masses", None)
    found.calc = None
    found.info = {}
    return found
