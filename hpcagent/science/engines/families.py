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
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from hpcagent.errors import AppFailed
from hpcagent.model.base import read_json
from hpcagent.science.engines.upf import Pseudopotential

__all__ = ["Family", "family_of", "known", "list_of", "recommended"]

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
        return {e: one.file for e, one in self.members.items() if _is_file(self.folder / one.file)}


def list_of(given: object) -> Path:
    """The list that the setting `family` names: `debian`, the path of a list, or a folder with one list.

    Raises:
        AppFailed: `BadSettings`.
    """
    if not isinstance(given, str):
        raise _bad(
            f"family={given!r} is no text; give the path of one list, of a folder with one list, or "
            f"{' or '.join(PACKAGED)}."
        )
    if given in PACKAGED:
        return Path(str(files(__package__) / f"{given}.json"))
    path = Path(given).expanduser().absolute()
    if os.path.isdir(path):  # noqa: PTH112  (Path.is_dir raises where a folder above may not be entered)
        lists = sorted(path.glob("*.json"))
        if len(lists) != 1:
            raise _bad(f"family={given!r} is a folder with {len(lists)} lists (*.json); name one of them.")
        path = lists[0]
    if not _is_file(path):
        raise _bad(f"family={given!r} is no file, no folder and not {' or '.join(PACKAGED)}.")
    return path


def family_of(given: object, folder: Path) -> Family:
    """The family that the setting `family` names.

    Args:
        given: See `list_of`.
        folder: Where the files are if they do not lie beside the list.

    Raises:
        AppFailed: `BadSettings`.
    """
    path = list_of(given)
    members = _members(path)
    beside = any(_is_file(path.parent / one.file) for one in members.values())
    return Family(path.stem, path, path.parent if beside else folder, members)


def _members(path: Path) -> dict[str, Member]:
    try:
        listed: dict[str, Any] = read_json(path)
        _once((element.capitalize(), one) for element, one in listed.items())
        found = {element.capitalize(): _member(element, one) for element, one in listed.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _bad(
            f"{path} is no list of pseudopotentials ({type(error).__name__}: {error}): element -> filename, md5 "
            "or sha256, cutoff_wfc and cutoff_rho in Ry, as SSSP has it."
        ) from None
    return found


def _is_file(path: Path) -> bool:
    # Not Path.is_file, which raises where a folder above may not be entered.
    return os.path.isfile(path)  # noqa: PTH113


def _once(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """The pairs as a dict, where none stands twice: the last would win in silence."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{name!r} stands in it twice (capital letters make no difference for elements)")
        found[name] = value
    return found


def _member(element: str, one: Mapping[str, Any]) -> Member:
    algorithm = "sha256" if "sha256" in one else "md5"
    wfc, rho = float(one["cutoff_wfc"]), float(one.get("cutoff_rho") or 0.0)
    if not 0 < wfc < 1000:
        raise ValueError(f"{element}: cutoff_wfc={wfc:g} Ry; it must be above 0 and below 1000")
    # The density is the square of the wavefunctions; pw.x itself asks for 4 times their cutoff.
    if rho != 0 and not wfc <= rho < 100000:
        raise ValueError(f"{element}: cutoff_rho={rho:g} Ry; it must be cutoff_wfc={wfc:g} or more, or left out")
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
