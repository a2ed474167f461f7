"""The pseudopotentials of a calculation with pw.x: where they are, which are taken, and the record of them."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hpcagent.apps.deciding import Deciding, told_by
from hpcagent.apps.run import Run
from hpcagent.errors import AppFailed
from hpcagent.science.engines.base import Level
from hpcagent.science.engines.espresso_functionals import functional_of, made_with
from hpcagent.science.engines.families import Family, family_of, known, list_of, recommended
from hpcagent.science.engines.upf import RY, Pseudopotential, available, choose

__all__ = [
    "PSEUDO_DIR",
    "chosen",
    "files_of",
    "has_family",
    "notes_on",
    "pseudo_dir",
    "write_record",
]

PSEUDO_DIR = "/usr/share/espresso/pseudo"
"""Where Debian's package quantum-espresso-data puts its pseudopotentials."""


def has_family(options: Mapping[str, Any]) -> bool:
    """Whether the options name a family."""
    return options.get("family") not in (None, "")


def _named(options: Mapping[str, Any]) -> dict[str, str]:
    """Element -> file, for elements whose file the options name."""
    named: dict[str, str] = options.get("pseudopotentials") or {}
    return named


def _folder(options: Mapping[str, Any], site: Mapping[str, Any]) -> Path:
    """Where pseudopotentials are looked for."""
    given = options.get("pseudo_dir") or told_by("ESPRESSO_PSEUDO", "espresso", site) or PSEUDO_DIR
    return Path(given).expanduser().absolute()


def pseudo_dir(level: Level, run: Run) -> Path:
    """The folder in which a run looks for pseudopotentials.

    Raises:
        AppFailed: `NoPseudopotential`: there is none.
    """
    folder = _folder(level.options, run.site)
    if not os.path.isdir(folder):  # noqa: PTH112  (Path.is_dir raises where a folder above may not be entered)
        raise AppFailed(
            f"no pseudopotentials: {folder} is no folder; name one by the setting `pseudo_dir`, by "
            "$ESPRESSO_PSEUDO, or install an example set (Debian: apt-get install quantum-espresso-data).",
            kind="infrastructure",
            name="NoPseudopotential",
        )
    return folder


def chosen(
    symbols: Iterable[str], functional: str, folder: Path, options: Mapping[str, Any], family: Family | None
) -> dict[str, Pseudopotential]:
    """A pseudopotential for each element, with the cutoffs that its family recommends, or its header."""
    named = _named(options)
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
    found = choose(
        elements, functional, folder, {e: f for e, f in (family.named | named).items() if e in elements}
    )
    return recommended(family, found, [e for e in elements if e not in named])


def files_of(level: Level, site: Mapping[str, Any]) -> tuple[Deciding, ...]:
    """The pseudopotential of each element that would be taken."""
    folder = _folder(level.options, site)
    named = _named(level.options)
    with contextlib.suppress(AppFailed):
        if has_family(level.options):
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
        taken = available(made_with(functional_of(level.xc)), folder, named)
        return tuple(Deciding(element, path, element) for element, path in sorted(taken.items()))
    return ()


def notes_on(
    pseudo: Mapping[str, Pseudopotential], family: Family | None, data: Mapping[str, Any], level: Level
) -> list[str]:
    """Where the pseudopotentials are from, and what is left out of them."""
    return [_of_family(family, pseudo, data, level)] if family else _notes(pseudo, level.options)


def _of_family(
    family: Family, pseudo: Mapping[str, Pseudopotential], data: Mapping[str, Any], level: Level
) -> str:
    own = [one.path.name for e, one in pseudo.items() if one.path.name != family.named.get(e)]
    said = f"pseudopotentials of the family {family.name}, hashes as listed"
    if own:
        said += f", but {', '.join(own)} by name"
    return said if level.ecut else f"{said}; cutoff as recommended, {data['ecutwfc'] * RY:.0f} eV"


def _notes(pseudo: Mapping[str, Pseudopotential], options: Mapping[str, Any]) -> list[str]:
    named = _named(options)
    notes = []
    found = [f"{one.path.name}" for element, one in pseudo.items() if element not in named]
    if found:
        notes.append(f"pseudopotentials found by functional, not named: {', '.join(found)}")
    averaged = [one.path.name for one in pseudo.values() if one.relativistic == "full"]
    if averaged:
        notes.append(f"spin-orbit coupling of {', '.join(averaged)} is averaged")
    return notes


def write_record(
    workdir: Path,
    folder: Path,
    functional: str,
    pseudo: Mapping[str, Pseudopotential],
    data: Mapping[str, Any],
    options: Mapping[str, Any],
    family: Family | None,
) -> None:
    """Write into the run's directory which pseudopotentials it takes, and why."""
    named = _named(options)
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
