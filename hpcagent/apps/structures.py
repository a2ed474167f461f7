"""Structures between runs: ASE `Atoms`, written as extended XYZ in the directory of the run that made them.

A run that makes a structure has the artifact `structure`. Lengths are in angstrom, energies in eV, as everywhere
in ASE.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcagent.apps.bounded import require_size
from hpcagent.apps.made_with import sha256
from hpcagent.apps.missing import missing_file
from hpcagent.apps.run import Run
from hpcagent.errors import AppFailed, BadInput

if TYPE_CHECKING:
    from ase import Atoms

__all__ = ["FILE", "Given", "given", "read_structure", "structure_of", "total_charge", "write_structure"]

FILE = "structure.xyz"
"""Name of the structure's file in a run's directory (extended XYZ)."""


@dataclass(frozen=True, slots=True)
class Given:
    """A structure that no run has made: stands where the result of a run would.

    Attributes:
        identity: Derived from what is in it; part of the execution id of the runs that use it.
        fields: What a worker is handed in place of a result.
    """

    identity: str
    fields: Mapping[str, Any]


TRAJECTORIES = (".lammpstrj", ".dump", ".traj", ".xyz", ".extxyz", ".h5", ".h5md", ".gz")
"""Endings of files that an analysis takes for a trajectory."""


def given(value: Any, name: str = "structure") -> Any:
    """A structure given as ASE `Atoms` or as a path in place of a run; anything else comes back as it is.

    Args:
        value: An input of an app.
        name: What the app calls it: a path for a `run` is that of a trajectory, a LAMMPS log or a thermo.csv.

    Raises:
        BadInput: The file is not there, ASE finds no structure in it, or the structure has no atoms.

    Example:
        >>> from ase.build import bulk
        >>> given(bulk("Cu")).identity[:10]
        'structure '
    """
    if isinstance(value, (str, Path)) and name.startswith("run"):
        return _of_file(Path(value).expanduser().absolute())
    if isinstance(value, (str, Path)):
        return _of_text(_text_of(_from_file(Path(value).expanduser())))
    # Without importing ASE: where nobody has made an Atoms, none is given.
    if any(base.__module__ == "ase.atoms" and base.__name__ == "Atoms" for base in type(value).__mro__):
        return _of_text(_text_of(value))
    return value


@lru_cache(maxsize=256)
def _of_text(text: str) -> Given:
    digest = hashlib.sha256(text.encode()).hexdigest()
    return Given(f"structure {digest}", {"status": "COMPLETED", "metrics": {}, "structure": text, "workdir": ""})


def _of_file(path: Path) -> Given:
    """A file that some program has left, in place of the run that wrote it."""
    if not path.is_file():
        raise BadInput(
            f"{path}: no such file. An input is the future of a run, its Result, or the path of a trajectory, a "
            "LAMMPS log or a thermo.csv.",
            value=str(path),
        )
    if path.suffix == ".csv":
        kind = "thermo"
    elif path.suffix in TRAJECTORIES or path.name.startswith("dump"):
        kind = "trajectory"
    elif path.suffix in (".log", ".lammps") or path.name.startswith("log"):
        kind = "log"
    else:
        raise BadInput(
            f"{path}: what this is does not follow from its name: trajectories end in {', '.join(TRAJECTORIES)}, "
            "logs in .log, .lammps or begin with log, tables of thermo output end in .csv.",
            value=str(path),
        )
    digest = sha256(path)
    fields = {"status": "COMPLETED", "metrics": {}, "artifacts": {kind: path.name}, "workdir": str(path.parent)}
    return Given(f"{kind} {digest}", fields)


def _text_of(atoms: Atoms) -> str:
    from ase.io.extxyz import write_extxyz

    if len(atoms) == 0:
        raise BadInput("the structure has no atoms; give one with at least one atom.", value=str(atoms))
    bare: Atoms = atoms.copy()
    bare.info = _writable(bare.info)
    file = io.StringIO()
    write_extxyz(file, [bare])
    return file.getvalue()


def _writable(info: Mapping[str, Any]) -> dict[str, Any]:
    """What of `Atoms.info` extended XYZ can hold; ASE warns of the rest (`adsorbate_info` of a slab).

    Numbers come back from a file as NumPy's, of which only float64 is one of Python's.
    """
    plain = {k: v.item() if getattr(v, "shape", None) == () else v for k, v in info.items()}
    return {k: v for k, v in plain.items() if isinstance(v, (str, int, float, bool))}


def _from_file(path: Path) -> Atoms:
    import ase.io

    if not path.is_file():
        raise BadInput(
            f"{path}: no such structure file. An input is the future of a run, its Result, an ASE Atoms or the "
            "path of a file that ASE reads.",
            value=str(path),
        )
    try:
        require_size(path)
        found = ase.io.read(path)
    except AppFailed as error:
        raise BadInput(f"{error.message}", value=str(path)) from None
    except Exception as error:  # each format fails in its own way
        raise BadInput(f"{path}: ASE cannot read a structure from it: {error}.", value=str(path)) from None
    return found[-1] if isinstance(found, list) else found


def structure_of(fields: Mapping[str, Any]) -> Atoms:
    """The structure of an input run, as `Run.upstream` holds it.

    Raises:
        AppFailed: `NoStructure`: the run has made none.
    """
    from ase.io.extxyz import read_xyz

    if "structure" in fields:
        found: Atoms = next(read_xyz(io.StringIO(fields["structure"]), 0))
        return found
    name = (fields.get("artifacts") or {}).get("structure")
    if name is None:
        raise AppFailed(
            f"the input run {fields.get('workdir') or '(without a directory)'} has no structure among its "
            f"artifacts (it has: {', '.join(fields.get('artifacts') or {}) or 'none'}).",
            kind="contract",
            name="NoStructure",
            repair="pass a run that builds, relaxes or moves atoms",
        )
    path = Path(fields["workdir"]) / name
    try:
        require_size(path)
        with path.open() as file:
            last: Atoms = next(read_xyz(file, -1))
            return last
    except FileNotFoundError:
        raise missing_file(fields, path, "structure") from None


def total_charge(atoms: Atoms) -> float:
    """Charge of a structure in elementary charges: `charge` in its `info`, else the sum of the initial charges.

    Example:
        >>> from ase import Atoms
        >>> total_charge(Atoms("Mg", charges=[2])), total_charge(Atoms("Mg", info={"charge": 1}))
        (2.0, 1.0)
    """
    own = atoms.info.get("charge")
    return float(atoms.get_initial_charges().sum() if own is None else own)


def read_structure(run: Run, index: int = 0) -> Atoms:
    """The structure of the run's input number `index`.

    Raises:
        AppFailed: `NoStructure`, or `MissingFile`.
    """
    return structure_of(run.upstream[index])


def write_structure(run: Run, atoms: Atoms, name: str = FILE) -> dict[str, str]:
    """Write a structure into the run's directory, with its energy and forces if they are known.

    Returns:
        `{"structure": name}`, for the artifacts of the `Outcome`.
    """
    from ase.io.extxyz import write_extxyz

    kept = atoms.info
    atoms.info = _writable(kept)
    try:
        with (run.workdir / name).open("w") as file:
            write_extxyz(file, [atoms])
    finally:
        atoms.info = kept
    return {"structure": name}
