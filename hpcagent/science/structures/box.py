"""Boxes of molecules, packed by Packmol."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcagent.apps.decorator import app
from hpcagent.apps.ending import run_mpi
from hpcagent.apps.packages import needs
from hpcagent.apps.printed import read_text
from hpcagent.apps.run import Outcome, Run
from hpcagent.apps.structures import read_structure, write_structure
from hpcagent.errors import AppFailed
from hpcagent.model.contract import Metric
from hpcagent.model.parameter import Float, Int, Text
from hpcagent.science.structures.crystal import SIZE, size

__all__ = ["packmol_box"]

SLACK = 0.02
"""By how much, in angstrom, distances may fall short of the tolerance."""
PRECISION = 1e-4
"""Packmol's sum of squared violations at which a packing is good; its own 0.01 lets atoms 0.1 angstrom out."""


@app(
    name="packmol_box",
    version="1.0.0",
    inputs=("molecules...",),
    parameters={
        "counts": Text(default="1", description="how many of each input molecule, e.g. 262,1,1"),
        "box": Float(1.0, 10_000.0, unit="angstrom", default=20.0, description="edge of the cubic, periodic box"),
        "tolerance": Float(
            0.1,
            10.0,
            unit="angstrom",
            default=2.0,
            description="least distance between atoms of different molecules",
        ),
        "loops": Int(1, 100_000, default=200, description="Packmol's `nloop`, for each kind of molecule"),
    },
    metrics=SIZE
    | {
        "n_molecules": Metric(name="n_molecules", unit="1", description="molecules in the box"),
        "charge": Metric(name="charge", unit="e", description="total charge, as the molecules say of themselves"),
        "closest_contact": Metric(
            name="closest_contact",
            unit="angstrom",
            description="shortest distance between atoms of different molecules, periodic images included",
            required=False,
        ),
        "packmol_error": Metric(
            name="packmol_error",
            unit="angstrom",
            description="largest violation of the target distance, as Packmol prints it",
            required=False,
        ),
    },
    failure_modes=(
        "BadCounts",
        "NotPacked",
        "NoExecutable",
        "NoStructure",
        "MissingFile",
        "NoEngine",
        "Walltime",
        "BlockEnded",
    ),
    estimated_runtime_s=5.0,
)
def packmol_box(counts: str, box: float, tolerance: float, loops: int, run: Run) -> Outcome:
    """A cubic, periodic box of molecules at random places and in random orientations, by Packmol.

    L. Martinez, R. Andrade, E. G. Birgin, J. M. Martinez, J. Comput. Chem. 30, 2157, 2009. Packmol is the site's
    command (`[apps.packmol]` of its profile) or the `packmol` on PATH, started with the run's seed. Versions from
    20.15 on pack periodically; older ones keep half of the tolerance free at each wall, so that no atom comes
    closer than the tolerance to the next image. In the structure, `mol-id` is each atom's molecule, counted from
    1, and `kind` which of the inputs it is, counted from 0.

    Failures: `NotPacked` (no packing found, with Packmol's words; or one that does not keep what it promises),
    `BadCounts`, `NoExecutable`, `NoStructure`.
    """
    needs("ase", "pip install 'hpcagent[ase]'")
    molecules = [read_structure(run, index) for index in range(len(run.upstream))]
    numbers = _counts(counts, len(molecules))
    if box < 2 * tolerance:
        raise AppFailed(
            f"box={box:g} angstrom has no room for molecules a tolerance of {tolerance:g} angstrom apart.",
            kind="contract",
            name="BadCounts",
            repair="a larger box or a smaller tolerance",
        )
    command = _command(run.site)
    for index, molecule in enumerate(molecules):
        _write_xyz(run.workdir / f"molecule{index}.xyz", molecule)
    periodic = _version(run, command) >= (20, 15)
    seed = (run.seed * 1_000_003 + run.replicate) % (2**31 - 2) + 1
    (run.workdir / "packmol.inp").write_text(_input(numbers, box, tolerance, loops, seed, periodic=periodic))
    ended = _packed(run, command, "packmol.inp", "packmol.out")
    atoms = _read(run.workdir / "packed.xyz", molecules, numbers, box, ended.stdout)
    contact = _closest(atoms, tolerance)
    if contact is not None and contact < tolerance - SLACK:
        raise _not_packed(
            f"the packing has atoms of different molecules {contact:.3f} angstrom apart, less than the tolerance "
            f"of {tolerance:g}",
            ended.stdout,
        )
    metrics = size(atoms) | {"n_molecules": float(sum(numbers)), "charge": float(atoms.info["charge"])}
    if contact is not None:
        metrics["closest_contact"] = contact
    error = re.findall(r"Maximum violation of target distance:\s*([-+\d.Ee]+)", ended.stdout)
    if error:
        metrics["packmol_error"] = float(error[-1])
    return Outcome(
        metrics=metrics,
        artifacts=write_structure(run, atoms) | {"input": "packmol.inp", "output": "packmol.out"},
        notes=() if periodic else ("this Packmol packs without periodic images: the walls are a little emptier",),
    )


def _counts(text: str, n: int) -> list[int]:
    words = text.replace(",", " ").split()
    if len(words) != n or not all(word.isdigit() and int(word) > 0 for word in words):
        raise AppFailed(
            f"counts={text!r} does not say how many there are of each of {n} input molecule(s): it must be {n} "
            "positive whole number(s) with commas between them.",
            kind="contract",
            name="BadCounts",
        )
    return [int(word) for word in words]


def _command(site: Mapping[str, Any]) -> list[str]:
    of_app = (site.get("apps") or {}).get("packmol") or {}
    words = list(of_app.get("command") or ["packmol"])
    found = shutil.which(words[0])
    if found is None:
        raise AppFailed(
            f"no Packmol: {words[0]!r} is not there or not executable. Install it (`apt install packmol`, "
            "`conda install -c conda-forge packmol` or `pip install packmol`), or name the site's command in its "
            "profile: [apps.packmol] command.",
            kind="infrastructure",
            name="NoExecutable",
        )
    return [str(Path(found).absolute()), *words[1:]]


def _packed(run: Run, command: list[str], given: str, output: str) -> Any:
    # It reads its input from stdin, which a program of a run does not have.
    words = ["sh", "-c", f'exec "$@" < {given}', "sh", *command]
    return run_mpi(run, words, app="packmol", output=output)


def _version(run: Run, command: list[str]) -> tuple[int, ...]:
    """What it says of itself before it reads anything; an input of nothing ends it there."""
    (run.workdir / "empty.inp").write_text("\n")
    said = re.search(r"Version\s+(\d+)\.(\d+)", _packed(run, command, "empty.inp", "version.out").stdout)
    return (0, 0) if said is None else (int(said[1]), int(said[2]))


def _write_xyz(path: Path, molecule: Any) -> None:
    rows = [
        f"{s} {x:.8f} {y:.8f} {z:.8f}" for s, (x, y, z) in zip(molecule.symbols, molecule.positions, strict=True)
    ]
    path.write_text("\n".join([str(len(rows)), "molecule", *rows]) + "\n")


def _input(numbers: list[int], box: float, tolerance: float, loops: int, seed: int, *, periodic: bool) -> str:
    margin = 0.0 if periodic else tolerance / 2
    low, high = f"{margin:.6f}", f"{box - margin:.6f}"
    lines = [f"tolerance {tolerance:.6f}", "filetype xyz", "output packed.xyz", f"seed {seed}", f"nloop {loops}"]
    lines.append(f"precision {PRECISION:g}")
    if periodic:
        lines.append(f"pbc {box:.6f} {box:.6f} {box:.6f}")
    for index, number in enumerate(numbers):
        lines += ["", f"structure molecule{index}.xyz", f"  number {number}"]
        lines += [f"  inside box {low} {low} {low} {high} {high} {high}", "end structure"]
    return "\n".join(lines) + "\n"


def _read(path: Path, molecules: list[Any], numbers: list[int], box: float, printed: str) -> Any:
    """The packed box with molecule ids and charges; packmol writes atoms in the order of its input."""
    import numpy as np
    from ase import Atoms

    if "Success!" not in printed or not path.is_file():
        said = re.findall(r"^\s*(ERROR.*|STOP.*|.*could not be found.*|.*not possible.*)$", printed, re.MULTILINE)
        raise _not_packed("Packmol found no packing" + (f": {said[0].strip()}" if said else ""), printed)
    order = [index for index, number in enumerate(numbers) for _ in range(number)]
    rows = [line.split() for line in read_text(path).splitlines()[2:] if line.strip()]
    symbols = [symbol for index in order for symbol in molecules[index].symbols]
    if [row[0] for row in rows] != symbols:
        raise _not_packed(f"the packing has {len(rows)} atoms, {len(symbols)} were asked for, or others", printed)
    atoms = Atoms(symbols, positions=[[float(x) for x in row[1:4]] for row in rows], cell=[box] * 3, pbc=True)
    lengths = [len(molecules[index]) for index in order]
    atoms.set_array("mol-id", np.repeat(np.arange(1, len(order) + 1), lengths))
    atoms.set_array("kind", np.repeat(order, lengths))
    charges = [molecule.get_initial_charges() for molecule in molecules]
    if any(charge.any() for charge in charges):
        atoms.set_initial_charges(np.concatenate([charges[index] for index in order]))
    own = [float(m.info.get("charge", c.sum())) for m, c in zip(molecules, charges, strict=True)]
    atoms.info["charge"] = round(sum(own[index] for index in order), 9)
    return atoms


def _not_packed(message: str, printed: str) -> AppFailed:
    return AppFailed(
        f"{message}.",
        name="NotPacked",
        log_tail=printed[-4000:],
        repair="a larger box, a smaller tolerance, fewer molecules, more loops, or another seed",
    )


def _closest(atoms: Any, tolerance: float) -> float | None:
    from ase.neighborlist import neighbor_list

    molecule = atoms.arrays["mol-id"]
    for cutoff in (tolerance, 1.5 * tolerance, 3 * tolerance, 10 * tolerance):
        i, j, d = neighbor_list("ijd", atoms, cutoff)
        # An atom and its own image are of the same molecule by id, yet they must not touch either; a bond of it
        # across the wall is shorter than half the box.
        apart = (molecule[i] != molecule[j]) | (i == j)
        if apart.any():
            return float(d[apart].min())
    return None
