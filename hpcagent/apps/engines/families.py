"""Families of pseudopotentials: lists of files with their hashes and the cutoffs that are recommended for them.

A list is a JSON file in the form in which SSSP comes (https://www.materialscloud.org/discover/sssp): element ->
`filename`, `md5` (or `sha256`), `cutoff_wfc` and `cutoff_rho` in Ry. PseudoDojo and GBRV publish hashes and
cutoffs in forms of their own; such a list is quickly written for their files. The packaged list `debian` is of
files of Debian's quantum-espresso-data 6.7: the cutoffs are those that the headers suggest, rounded up, with a
density cutoff of 8 times as much or more; of silicon, whose header has none, 30 Ry, with which the energy is
within 1 meV/atom of that at 44 Ry.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from hpcagent.apps.engines.upf import Pseudopotential
from hpcagent.errors import AppFailed

__all__ = ["Family", "family_of", "known", "recommended"]

PACKAGED = ("debian",)


@dataclass(frozen=True, slots=True)
class Member:
    """One file of a family.

    Attributes:
        file: Its name.
        algorithm: `sha256` or `md5`.
        digest: Hash of its content.
        wfc_cutoff: Recommended cutoff of the wavefunctions, in Ry.
        rho_cutoff: Recommended cutoff of the density, in Ry; 0: none.
    """

    file: str
    algorithm: str
    digest: str
    wfc_cutoff: float
    rho_cutoff: float


@dataclass(frozen=True, slots=True)
class Family:
    """A family of pseudopotentials.

    Attributes:
        name: Of the list.
        path: The list.
        folder: Where the files are.
        members: By element.
    """

    name: str
    path: Path
    folder: Path
    members: Mapping[str, Member]

    @property
    def named(self) -> dict[str, str]:
        """Element -> file, for elements whose file is there."""
        return {e: one.file for e, one in self.members.items() if (self.folder / one.file).is_file()}


def family_of(given: str, folder: Path) -> Family:
    """The family that the setting `family` names.

    Args:
        given: `debian`, the path of a list, or a folder with one list.
        folder: Where the files are if they do not lie beside the list.

    Raises:
        AppFailed: `BadSettings`.
    """
    if given in PACKAGED:
        path = Path(str(files(__package__) / f"{given}.json"))
    else:
        path = Path(given).expanduser().absolute()
        if path.is_dir():
            lists = sorted(path.glob("*.json"))
            if len(lists) != 1:
                raise _bad(f"family={given!r} is a folder with {len(lists)} lists (*.json); name one of them.")
            path = lists[0]
    if not path.is_file():
        raise _bad(f"family={given!r} is no file, no folder and not {' or '.join(PACKAGED)}.")
    members = _members(path)
    beside = any((path.parent / one.file).is_file() for one in members.values())
    return Family(path.stem, path, path.parent if beside else folder, members)


def _members(path: Path) -> dict[str, Member]:
    try:
        listed: dict[str, Any] = json.loads(path.read_text())
        found = {element.capitalize(): _member(one) for element, one in listed.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _bad(
            f"{path} is no list of pseudopotentials ({type(error).__name__}: {error}): element -> filename, md5 "
            "or sha256, cutoff_wfc and cutoff_rho in Ry, as SSSP has it."
        ) from None
    return found


def _member(one: Mapping[str, Any]) -> Member:
    algorithm = "sha256" if "sha256" in one else "md5"
    wfc, rho = float(one["cutoff_wfc"]), float(one.get("cutoff_rho") or 0.0)
    if not 0 < wfc < 1000:
        raise ValueError(f"cutoff_wfc={wfc:g} Ry")
    return Member(str(one["filename"]), algorithm, str(one[algorithm]).lower(), wfc, rho)


def recommended(
    family: Family, chosen: Mapping[str, Pseudopotential], elements: Iterable[str]
) -> dict[str, Pseudopotential]:
    """The chosen files of these elements with the family's cutoffs, after a look at their hashes.

    Raises:
        AppFailed: `OtherPseudopotential`: a file is not the one that the family lists.
    """
    found = dict(chosen)
    for element in elements:
        member, one = family.members[element], chosen[element]
        digest = hashlib.new(member.algorithm, one.path.read_bytes(), usedforsecurity=False).hexdigest()
        if digest != member.digest:
            raise AppFailed(
                f"{one.path} is not the file that the family {family.name!r} lists for {element}: its "
                f"{member.algorithm} is {digest}, the list has {member.digest}.",
                kind="contract",
                name="OtherPseudopotential",
                repair="the file as the family's authors publish it; or name it by `pseudopotentials`",
            )
        found[element] = replace(one, wfc_cutoff=member.wfc_cutoff, rho_cutoff=member.rho_cutoff)
    return found


@lru_cache(maxsize=1)
def _packaged() -> dict[str, Member]:
    lists = (_members(Path(str(files(__package__) / f"{name}.json"))) for name in PACKAGED)
    return {member.digest: member for members in lists for member in members.values()}


def known(one: Pseudopotential) -> Pseudopotential:
    """The file with the cutoffs of a packaged family where its header suggests none and it is in that family."""
    member = _packaged().get(one.sha256)
    if one.wfc_cutoff or member is None:
        return one
    return replace(one, wfc_cutoff=member.wfc_cutoff, rho_cutoff=member.rho_cutoff)


def _bad(message: str) -> AppFailed:
    return AppFailed(message, kind="contract", name="BadSettings")
