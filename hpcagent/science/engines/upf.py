"""Pseudopotential files in UPF: what their headers say, and which of a folder's files belongs to a functional.

UPF is described at https://pseudopotentials.quantum-espresso.org/home/unified-pseudopotential-format; version 1
has a header of plain lines, version 2 one XML element with attributes.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from hpcagent.apps.made_with import sha256
from hpcagent.apps.printed import read_head
from hpcagent.errors import AppFailed

__all__ = ["RY", "Pseudopotential", "available", "choose", "family", "read_header"]

RY = 13.605693122994
"""Rydberg, in eV (CODATA 2018)."""

# How the parts of a functional are called in UPF files (Modules/funct.f90 of Quantum ESPRESSO) -> its name.
_FAMILIES = {
    "LDA": "LDA",
    "PZ": "LDA",
    "PW": "LDA",
    "SLA PZ NOGX NOGC": "LDA",
    "SLA PW NOGX NOGC": "LDA",
    "PBE": "PBE",
    "SLA PW PBX PBC": "PBE",
    "SLA PW PBE PBE": "PBE",
    "PBESOL": "PBESOL",
    "SLA PW PSX PSC": "PBESOL",
    "BLYP": "BLYP",
    "SLA LYP B88 BLYP": "BLYP",
    "REVPBE": "REVPBE",
    "SLA PW REVX PBC": "REVPBE",
    "SLA PW RPB PBC": "REVPBE",
    "TPSS": "TPSS",
    "SLA PW TPSS TPSS": "TPSS",
}

Kind = Literal["PAW", "US", "NC"]


@dataclass(frozen=True, slots=True)
class Pseudopotential:
    """What the header of a UPF file says.

    Attributes:
        path: The file.
        element: Chemical symbol.
        functional: The family of functionals it was made with (`PBE`), or the header's own words where not known.
        kind: Projector augmented waves, ultrasoft or norm-conserving.
        relativistic: `scalar`, `full` (with spin-orbit; pw.x averages it unless told otherwise) or `no`.
        valence: Number of electrons that it leaves.
        wfc_cutoff: Suggested cutoff of the wavefunctions, in Ry; 0 where it suggests none.
        rho_cutoff: Suggested cutoff of the density, in Ry; 0 where it suggests none.
        sha256: Of the file.
    """

    path: Path
    element: str
    functional: str
    kind: Kind
    relativistic: Literal["scalar", "full", "no"]
    valence: float
    wfc_cutoff: float
    rho_cutoff: float
    sha256: str

    @property
    def record(self) -> dict[str, Any]:
        """As plain data, for a file beside the results."""
        return asdict(self) | {"path": str(self.path), "file": self.path.name}


def family(functional: str) -> str:
    """The family of a functional as a UPF file or a user names it; the words themselves where it is not known.

    Example:
        >>> family("SLA  PW   PBX  PBC"), family("pbesol"), family("RPBE")
        ('PBE', 'PBESOL', 'RPBE')
    """
    words = " ".join(re.split(r"[\s+]+", functional.strip().upper()))
    return _FAMILIES.get(words, words)


def read_header(path: Path) -> Pseudopotential | None:
    """The header of a UPF file, or None for a file that is none (or a bare Coulomb potential).

    Raises:
        OSError: It cannot be read, or is no regular file.
    """
    # The SHA-256 is known as long as the file stays as it is, and so is what follows from the content.
    return _header(path, sha256(path))


# The header stands at the begin, after notes on how the potential was made, and has some thirty lines.
_BEGIN, _LONGEST_HEADER = 16 << 20, 1 << 16


@functools.lru_cache(maxsize=4096)
def _header(path: Path, digest: str) -> Pseudopotential | None:
    text = read_head(path, _BEGIN)
    begin = max(text.find("<PP_HEADER"), 0)
    text = text[: begin + _LONGEST_HEADER]  # the notes before it say what is relativistic in version 1
    found = _version_2(text) or _version_1(text)
    return None if found is None else Pseudopotential(path=path, sha256=digest, **found)


def _version_2(text: str) -> dict[str, Any] | None:
    header = re.search(r"<PP_HEADER\s+([^>]*?)/?>", text)
    if header is None:
        return None
    said = {
        name: value.strip() for name, _, value in re.findall(r"(\w+)\s*=\s*(['\"])(.*?)\2", header[1], re.DOTALL)
    }
    if _true(said.get("is_coulomb", "")) or "element" not in said:
        return None
    kind: Kind = "PAW" if _true(said.get("is_paw", "")) else "US" if _true(said.get("is_ultrasoft", "")) else "NC"
    relativistic = said.get("relativistic", "no").lower()
    return {
        "element": said["element"].capitalize(),
        "functional": family(said.get("functional", "")),
        "kind": kind,
        "relativistic": relativistic if relativistic in ("scalar", "full") else "no",
        "valence": _number(said.get("z_valence", "0")),
        "wfc_cutoff": _number(said.get("wfc_cutoff", "0")),
        "rho_cutoff": _number(said.get("rho_cutoff", "0")),
    }


def _version_1(text: str) -> dict[str, Any] | None:
    header = re.search(r"<PP_HEADER>\s*\n(.*?)</PP_HEADER>", text, re.DOTALL)
    if header is None:
        return None
    lines = {}
    for name in ("Element", "pseudopotential", "functional", "Z valence", "Suggested cutoff"):
        line = re.search(rf"^.*{name}.*$", header[1], re.MULTILINE)
        lines[name] = "" if line is None else line[0]
    words = lines["functional"].split("Exchange")[0].split()
    cutoffs = [_number(word) for word in lines["Suggested cutoff"].split()[:2]] or [0.0, 0.0]
    paw = re.search(r"\bPAW\b", lines["pseudopotential"])
    made = re.search(r"(Fully|Scalar|Non)-Relativistic", text[: header.start()])
    if not lines["Element"].split() or not lines["Z valence"].split():
        return None
    return {
        "element": lines["Element"].split()[0].capitalize(),
        "functional": family(" ".join(words[:4])),
        "kind": "PAW" if paw else "US" if lines["pseudopotential"].split()[:1] == ["US"] else "NC",
        "relativistic": {"Fully": "full", "Scalar": "scalar"}.get(made[1] if made else "", "no"),
        "valence": _number(lines["Z valence"].split()[0]),
        "wfc_cutoff": cutoffs[0],
        "rho_cutoff": cutoffs[1],
    }


def _true(text: str) -> bool:
    return text.strip(". ").lower() in ("t", "true")


def _number(text: str) -> float:
    try:
        return float(text.replace("d", "e").replace("D", "e"))
    except ValueError:
        return 0.0


def choose(
    elements: Iterable[str], functional: str, folder: Path, named: Mapping[str, str]
) -> dict[str, Pseudopotential]:
    """One pseudopotential for each element, all made with this functional.

    A file that is not named is looked for in the folder. Of several that fit, the first in this order is taken:
    without spin-orbit before with it; PAW, ultrasoft, norm-conserving; scalar-relativistic before
    non-relativistic; one that suggests a cutoff before one that does not; the lower cutoff; by name.

    Raises:
        AppFailed: `NoPseudopotential` (the message lists what is there), or `MixedFunctionals`.
    """
    wanted = sorted(set(elements))
    for element in named:
        if not isinstance(named[element], str):
            raise AppFailed(
                f"pseudopotentials: {element} = {named[element]!r} is no file name.",
                kind="contract",
                name="NoPseudopotential",
            )
    # Headers of a whole folder, 100 MB for some libraries, only if one has to be looked for.
    there = () if all(element in named for element in wanted) else _in(folder)
    chosen = {}
    for element in wanted:
        found = _named(folder, named[element], element) if element in named else _found(there, element, functional)
        if found is None:
            raise _none_for(element, functional, folder, there)
        if found.functional != functional:
            raise AppFailed(
                f"the pseudopotential {found.path.name} of {element} was made with {found.functional}, the run "
                f"asks for {functional}; the two do not go together.",
                kind="contract",
                name="MixedFunctionals",
                repair=f"a pseudopotential of {element} made with {functional}, or xc={found.functional}",
            )
        chosen[element] = found
    return chosen


def available(functional: str, folder: Path, named: Mapping[str, str]) -> dict[str, Path]:
    """The file that `choose` would take for each element there is one for; what it would refuse is left out."""
    found = {}
    there = _in(folder)
    for element in {one.element for one in there}:
        one = _found(there, element, functional)
        if one is not None:
            found[element] = one.path
    return found | {element: path for element, name in named.items() if _is_file(path := folder / str(name))}


def _in(folder: Path) -> tuple[Pseudopotential, ...]:
    # A link into nowhere or a file of another user is no concern of runs that can do without it.
    found = []
    for path in _listed(folder):
        with contextlib.suppress(OSError):
            found.append(read_header(path))
    return tuple(one for one in found if one is not None)


def _listed(folder: Path) -> list[Path]:
    """Files, or what is called like them, of a folder; none of one that cannot be read."""
    try:
        return sorted(path for path in folder.iterdir() if path.suffix.lower() == ".upf")
    except OSError:
        return []


def _is_file(path: Path) -> bool:
    # Not Path.is_file, which raises where a folder above may not be entered.
    return os.path.isfile(path)  # noqa: PTH113


def _found(there: Iterable[Pseudopotential], element: str, functional: str) -> Pseudopotential | None:
    fitting = [one for one in there if one.element == element and one.functional == functional]
    return min(fitting, key=_order) if fitting else None


def _order(one: Pseudopotential) -> tuple[Any, ...]:
    kinds = ("PAW", "US", "NC")
    return (
        one.relativistic == "full",
        kinds.index(one.kind),
        one.relativistic != "scalar",
        one.wfc_cutoff == 0,
        one.wfc_cutoff,
        one.path.name,
    )


def _named(folder: Path, name: str, element: str) -> Pseudopotential | None:
    path = folder / name
    if not os.path.lexists(path):
        raise AppFailed(
            f"the pseudopotential {name!r} of {element} is not in {folder}.",
            kind="contract",
            name="NoPseudopotential",
            repair="correct `pseudopotentials`, or `pseudo_dir`",
        )
    try:
        found = read_header(path)
    except OSError as error:
        raise AppFailed(
            f"the pseudopotential {name!r} of {element} in {folder} cannot be read: {error.strerror}"
            f"{_where_to(path)}.",
            kind="contract",
            name="NoPseudopotential",
            repair="put a file there that you may read; or correct `pseudopotentials`, or `pseudo_dir`",
        ) from None
    if found is None or found.element != element:
        what = "is no UPF file" if found is None else f"is one of {found.element}"
        raise AppFailed(
            f"the pseudopotential {name!r} of {element} {what}.", kind="contract", name="NoPseudopotential"
        )
    return found


def _where_to(path: Path) -> str:
    return f" (a link to {os.readlink(path)})" if path.is_symlink() else ""  # noqa: PTH115


def _unreadable(folder: Path) -> str:
    """A clause on files of the folder that cannot be read; empty if all can."""
    names = []
    for path in _listed(folder):
        try:
            read_header(path)
        except OSError as error:
            names.append(f"{path.name} ({error.strerror})")
    return f"; not readable: {', '.join(names)}" if names else ""


def _none_for(element: str, functional: str, folder: Path, there: Iterable[Pseudopotential]) -> AppFailed:
    of_element = [f"{one.path.name} ({one.functional})" for one in there if one.element == element]
    known = sorted({one.element for one in there if one.functional == functional})
    return AppFailed(
        f"no {functional} pseudopotential of {element} in {folder}; of {element} there are: "
        f"{', '.join(of_element) or 'none'}; with {functional} there are: {', '.join(known) or 'none'}"
        f"{_unreadable(folder)}.",
        kind="contract",
        name="NoPseudopotential",
        repair=(
            "download one (a library such as SSSP, PseudoDojo or GBRV) and name it: "
            "settings pseudopotentials and pseudo_dir"
        ),
    )
