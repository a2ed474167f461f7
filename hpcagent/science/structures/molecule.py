"""Molecules: from ASE's G2 set, or from SMILES."""

from __future__ import annotations

import functools
import threading
from typing import Any

from hpcagent.apps.decorator import app
from hpcagent.apps.packages import needs
from hpcagent.apps.run import Outcome, Run
from hpcagent.apps.structures import write_structure
from hpcagent.errors import AppFailed, nearest
from hpcagent.model.contract import Metric
from hpcagent.model.parameter import Choice, Float, Int, Text
from hpcagent.science.structures.crystal import SIZE, size

__all__ = ["build_molecule", "smiles_to_xyz"]


@app(
    name="build_molecule",
    version="1.0.0",
    parameters={
        "name": Text(default="H2O", description="a molecule of ase.build.molecule (the G2 set), or an element"),
        "vacuum": Float(
            0.0, 100.0, unit="angstrom", default=0.0, description="empty space on each side; 0: no cell at all"
        ),
    },
    metrics=SIZE
    | {
        "mass": Metric(name="mass", unit="u", description="mass of the molecule"),
        "moment": Metric(name="moment", unit="mu_B", description="sum of the initial magnetic moments"),
    },
    failure_modes=("BadMolecule", "NoEngine"),
    estimated_runtime_s=0.05,
)
def build_molecule(name: str, vacuum: float, run: Run) -> Outcome:
    """A molecule by its name, or an atom by its symbol, with the spins of its ground state.

    Geometries are MP2/6-31G(d) (L. A. Curtiss et al., J. Chem. Phys. 106, 1063, 1997), as ASE has them; moments of
    atoms are ASE's `ground_state_magnetic_moments`.

    Failures: `BadMolecule`.
    """
    needs("ase", "pip install 'hpcagent[ase]'")
    from ase import Atoms
    from ase.data import atomic_numbers, ground_state_magnetic_moments

    g2 = _g2()
    if name in g2.names:
        atoms = g2[name]
    elif name in atomic_numbers and name != "X":
        atoms = Atoms(name, magmoms=[ground_state_magnetic_moments[atomic_numbers[name]]])
    else:
        raise AppFailed(
            f"no molecule {name!r} in ASE's G2 set, and no element of that name; {nearest(name, g2.names)}",
            kind="contract",
            name="BadMolecule",
            repair="molecules of other kinds come from smiles_to_xyz, or from a file",
        )
    if vacuum:
        atoms.center(vacuum=vacuum)
    totals = {"mass": float(atoms.get_masses().sum()), "moment": float(atoms.get_initial_magnetic_moments().sum())}
    return Outcome(metrics=size(atoms) | totals, artifacts=write_structure(run, atoms))


@app(
    name="smiles_to_xyz",
    version="1.0.0",
    parameters={
        "smiles": Text(default="O", description="e.g. CCO, [Na+]"),
        "conformers": Int(1, 1000, default=1, description="embedded; the one of lowest energy is kept"),
        "force_field": Choice("MMFF", "UFF", "none", default="MMFF", description="MMFF94 where it has parameters"),
    },
    metrics=SIZE
    | {
        "mass": Metric(name="mass", unit="u", description="mass of the molecule"),
        "charge": Metric(name="charge", unit="e", description="total formal charge"),
        "moment": Metric(name="moment", unit="mu_B", description="number of unpaired electrons in the SMILES"),
        "strain_energy": Metric(
            name="strain_energy",
            unit="kcal/mol",
            description="energy of the force field; of use only to compare conformers",
            required=False,
        ),
    },
    failure_modes=("NoEngine", "BadSmiles", "NoEmbedding"),
    estimated_runtime_s=0.5,
)
def smiles_to_xyz(smiles: str, conformers: int, force_field: str, run: Run) -> Outcome:
    """A molecule or ion in three dimensions from its SMILES, with all hydrogens, by RDKit.

    Embedded by ETKDGv3 with the run's seed (S. Wang et al., J. Chem. Inf. Model. 60, 2044, 2020), then minimised
    in MMFF94 (T. A. Halgren, J. Comput. Chem. 17, 490, 1996), or in UFF where MMFF94 lacks parameters. Formal
    charges are kept as the atoms' initial charges, their sum as `charge` in the structure's `info`.

    Failures: `BadSmiles`, `NoEmbedding`, `NoEngine` (RDKit is not installed).
    """
    needs("ase", "pip install 'hpcagent[ase]'")
    from ase import Atoms

    molecule = _parsed(smiles)
    notes: list[str] = []
    energy = None
    if molecule.GetNumAtoms() == 1:
        positions: Any = [[0.0, 0.0, 0.0]]
    else:
        best = _embedded(molecule, smiles, conformers, run)
        if force_field != "none":
            best, energy = _minimised(molecule, force_field, notes)
        positions = molecule.GetConformer(best).GetPositions()
    charges = [atom.GetFormalCharge() for atom in molecule.GetAtoms()]
    radicals = [atom.GetNumRadicalElectrons() for atom in molecule.GetAtoms()]
    atoms = Atoms(
        symbols=[atom.GetSymbol() for atom in molecule.GetAtoms()],
        positions=positions,
        charges=charges if any(charges) else None,
        magmoms=radicals if any(radicals) else None,
    )
    atoms.info |= {"smiles": smiles, "charge": sum(charges)}
    totals = {
        "mass": float(atoms.get_masses().sum()),
        "charge": float(sum(charges)),
        "moment": float(sum(radicals)),
    }
    if energy is not None:
        totals["strain_energy"] = energy
    return Outcome(metrics=size(atoms) | totals, artifacts=write_structure(run, atoms), notes=tuple(notes))


_READING = threading.Lock()


def _g2() -> Any:
    """ASE's G2 molecules, read whole.

    ASE reads its own table when it is first asked, without a lock: a second thread then sees a part of it. So this
    one is ours alone.
    """
    with _READING:
        return _collection()


@functools.cache
def _collection() -> Any:
    from ase.collections.collection import Collection

    found = Collection("g2")
    assert found.names
    return found


def _parsed(smiles: str) -> Any:
    """The molecule with its hydrogens."""
    needs("rdkit.Chem", "pip install 'hpcagent[build]'")
    from rdkit import Chem, rdBase

    with rdBase.BlockLogs():
        read = Chem.MolFromSmiles(smiles)
        why: list[str] = [] if read is not None else _problems(smiles)
    if read is None or read.GetNumAtoms() == 0:
        raise AppFailed(
            f"{smiles!r} is no SMILES{': ' + '; '.join(why) if why else ''}.",
            kind="contract",
            name="BadSmiles",
            repair="valences and brackets are what is most often wrong: [NH4+], not NH4+",
        )
    return Chem.AddHs(read)


def _problems(smiles: str) -> list[str]:
    from rdkit import Chem

    raw = Chem.MolFromSmiles(smiles, sanitize=False)
    if raw is None:
        return ["it does not parse"]
    return [problem.Message() for problem in Chem.DetectChemistryProblems(raw)]


def _embedded(molecule: Any, smiles: str, conformers: int, run: Run) -> int:
    """Embed; returns the id of the first conformer."""
    from rdkit import rdBase
    from rdkit.Chem import rdDistGeom

    how: Any = rdDistGeom.ETKDGv3()
    how.randomSeed = (run.seed * 1_000_003 + run.replicate) % (2**31 - 1) + 1
    with rdBase.BlockLogs():
        ids = list(rdDistGeom.EmbedMultipleConfs(molecule, numConfs=conformers, params=how))
        if not ids:
            how.useRandomCoords = True
            ids = list(rdDistGeom.EmbedMultipleConfs(molecule, numConfs=conformers, params=how))
    if not ids:
        raise AppFailed(
            f"RDKit finds no arrangement in space for {smiles!r}.",
            name="NoEmbedding",
            repair="another seed; impossible ring strain or stereochemistry has none",
        )
    return int(ids[0])


def _minimised(molecule: Any, force_field: str, notes: list[str]) -> tuple[int, float | None]:
    """Minimise all conformers; returns the id of the lowest and its energy, in kcal/mol."""
    from rdkit import rdBase
    from rdkit.Chem import rdForceFieldHelpers

    ids = [conformer.GetId() for conformer in molecule.GetConformers()]
    with rdBase.BlockLogs():
        if force_field == "MMFF" and rdForceFieldHelpers.MMFFHasAllMoleculeParams(molecule):
            done = rdForceFieldHelpers.MMFFOptimizeMoleculeConfs(molecule, maxIters=2000)
        elif rdForceFieldHelpers.UFFHasAllMoleculeParams(molecule):
            if force_field == "MMFF":
                notes.append("MMFF94 lacks parameters for this molecule; it was minimised in UFF")
            done = rdForceFieldHelpers.UFFOptimizeMoleculeConfs(molecule, maxIters=2000)
        else:
            notes.append("neither MMFF94 nor UFF has parameters for this molecule; it was not minimised")
            return ids[0], None
    if any(left for left, _ in done):
        notes.append(f"{sum(1 for left, _ in done if left)} of {len(done)} minimisations did not converge")
    energies = [float(energy) for _, energy in done]
    lowest = min(range(len(ids)), key=energies.__getitem__)
    return ids[lowest], energies[lowest]
