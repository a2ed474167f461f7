"""The potential POD of LAMMPS as a linear model: descriptors, committee, leverage and calibrated errors of forces.

N. C. Nguyen and A. Rohskopf, J. Comput. Phys. 480, 112030 (2023), doi:10.1016/j.jcp.2023.112030. The energy of a
frame is D . c, with D its global descriptors (n,) and c the coefficients (n,); forces are G . c with G (atoms, 3,
n).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hpcagent.apps.packages import needs
from hpcagent.errors import AppFailed

if TYPE_CHECKING:
    from ase import Atoms

__all__ = [
    "REGULARIZATION",
    "Calibration",
    "Committee",
    "Frame",
    "Rows",
    "calibrated",
    "fitted",
    "folds_of",
    "parameter_file",
    "rows_of",
]

_Array = NDArray[np.float64]

REGULARIZATION = 1e-10
"""Share by which `fitpod` enlarges the diagonal of its normal equations; also the least value on it."""
# Of the descriptors' correlation matrix: directions with less have not been seen in training.
_SEEN = 1e-8
_MOST_FOLDS = 10
MOST_BEYOND = 0.1
"""How far the volume may be outside of the training frames', as a share of their range, before it is flagged."""
_HOW = "pip install 'hpcagent[lammps]'"


@dataclass(frozen=True, slots=True)
class Frame:
    """A labelled structure.

    Attributes:
        atoms: Without a calculator.
        energy: Its energy, in eV.
        forces: (atoms, 3), in eV/angstrom.
        condition: What it was made at; conditions are held out whole.
        number: Its place in the file, from 0.
    """

    atoms: Atoms
    energy: float
    forces: _Array
    condition: str
    number: int


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows that a frame has in the linear model.

    Attributes:
        energy: (n,) derivative of its energy by the coefficients.
        forces: (3 atoms, n) those of its forces, in 1/angstrom.
        atoms: Number of atoms.
        volume: Of the cell for an atom, in angstrom^3.
    """

    energy: _Array
    forces: _Array
    atoms: int
    volume: float


def parameter_file(elements: Sequence[str], params: Mapping[str, Any]) -> str:
    """The file of descriptors that `fitpod` and `pair_style pod` read (LAMMPS manual, fitpod command).

    Args:
        elements: Chemical symbols; LAMMPS's types stand in their order.
        params: `rcut`, `rin` (angstrom), `two_body`, `three_body`, `three_body_angular`, `four_body`,
            `four_body_angular`.
    """
    lines = {
        "species": " ".join(elements),
        "pbc": "1 1 1",
        "rin": f"{params['rin']:.10g}",
        "rcut": f"{params['rcut']:.10g}",
        "bessel_polynomial_degree": 3,
        "inverse_polynomial_degree": 6,
        "onebody": 1,
        "twobody_number_radial_basis_functions": params["two_body"],
        "threebody_number_radial_basis_functions": params["three_body"],
        "threebody_angular_degree": params["three_body_angular"],
        "fourbody_number_radial_basis_functions": params["four_body"],
        "fourbody_angular_degree": params["four_body_angular"],
        "fivebody_number_radial_basis_functions": 0,
        "fivebody_angular_degree": 0,
        "sixbody_number_radial_basis_functions": 0,
        "sixbody_angular_degree": 0,
    }
    return "".join(f"{name} {value}\n" for name, value in lines.items())


def rows_of(atoms: Atoms, elements: Sequence[str], parameters: Path, coefficients: Path) -> Rows:
    """Descriptors of a structure and their derivatives, by LAMMPS's `compute pod/global`.

    Args:
        atoms: Three periodic directions.
        elements: As in the parameter file.
        parameters: The parameter file.
        coefficients: A file of coefficients; their values do not matter here.

    Raises:
        AppFailed: `NoEngine`: no LAMMPS with ML-POD; `EngineFailed`: LAMMPS refuses the structure.
    """
    # MPICH of the wheel is found by mpi4py only.
    needs("mpi4py.MPI", _HOW)
    lammps = needs("lammps", _HOW)
    from ase.calculators.lammps import Prism
    from ase.data import atomic_masses, atomic_numbers

    prism = Prism(atoms.cell.array)
    xhi, yhi, zhi, xy, xz, yz = prism.get_lammps_prism()
    types = [elements.index(symbol) + 1 for symbol in atoms.get_chemical_symbols()]
    masses = "\n".join(f"mass {i} {atomic_masses[atomic_numbers[e]]:.8f}" for i, e in enumerate(elements, 1))
    files = f"{parameters} {coefficients} {' '.join(elements)}"
    run = lammps.lammps(cmdargs=["-log", "none", "-screen", "none", "-nocite"])
    try:
        run.commands_string(
            "units metal\natom_style atomic\natom_modify map array sort 0 0\nboundary p p p\nbox tilt large\n"
            f"region cell prism 0 {xhi:.17g} 0 {yhi:.17g} 0 {zhi:.17g} {xy:.17g} {xz:.17g} {yz:.17g}\n"
            f"create_box {len(elements)} cell\n{masses}\npair_style pod\n"
        )
        places = prism.vector_to_lammps(atoms.positions, wrap=True)
        run.create_atoms(len(atoms), None, types, places.ravel().tolist())
        run.commands_string(
            f"pair_coeff * * {files}\nneighbor 0.0 bin\ncompute rows all pod/global {files}\nrun 0 post no\n"
        )
        table = np.array(run.numpy.extract_compute("rows", 0, 2), dtype=float)
    except Exception as error:  # LAMMPS's own exception types differ with its version
        raise AppFailed(
            f"LAMMPS cannot work out the descriptors of {atoms.symbols}: {error}.", name="EngineFailed"
        ) from None
    finally:
        run.close()
    n = table.shape[1]
    # Rows of forces are in LAMMPS's frame, in the order in which atoms were created.
    turned = np.asarray(prism.vector_to_ase(np.moveaxis(table[1:].reshape(len(atoms), 3, n), 1, 2).reshape(-1, 3)))
    forces = np.moveaxis(turned.reshape(len(atoms), n, 3), 2, 1).reshape(-1, n)
    return Rows(table[0], forces, len(atoms), float(atoms.get_volume()) / len(atoms))


# ---- fits


@dataclass(frozen=True, slots=True)
class _Normal:
    """Normal equations of frames: (frames, n, n) and (frames, n)."""

    matrices: _Array
    sides: _Array

    @classmethod
    def of(cls, rows: Sequence[Rows], frames: Sequence[Frame], weights: tuple[float, float]) -> _Normal:
        matrices, sides = [], []
        for one, frame in zip(rows, frames, strict=True):
            energy, force = (weights[0] / one.atoms) ** 2, weights[1] ** 2
            matrices.append(energy * np.outer(one.energy, one.energy) + force * one.forces.T @ one.forces)
            sides.append(energy * frame.energy * one.energy + force * one.forces.T @ frame.forces.ravel())
        return cls(np.array(matrices), np.array(sides))

    def solved(self, times: _Array) -> _Array:
        """Coefficients (n,) with every frame so many `times` (frames,) in the fit."""
        matrix = np.tensordot(times, self.matrices, 1)
        at = np.arange(len(matrix))
        matrix[at, at] = np.maximum(matrix[at, at] * (1 + REGULARIZATION), REGULARIZATION)
        # Scaled to a unit diagonal first: descriptors differ by many powers of ten.
        scale = 1 / np.sqrt(np.diag(matrix))
        found = np.linalg.solve(matrix * np.outer(scale, scale), scale * (times @ self.sides))
        return np.asarray(scale * found)


def fitted(rows: Sequence[Rows], frames: Sequence[Frame], weights: tuple[float, float]) -> _Array:
    """Coefficients (n,) by the least squares of `fitpod`.

    sum over frames of (w_E / atoms)^2 (D . c - E)^2 + w_F^2 |G . c - F|^2, with a diagonal larger by
    `REGULARIZATION`, as in LAMMPS's fitpod command; the app compares both.

    Args:
        rows: Of the frames.
        frames: The labels.
        weights: Of energies and of forces.
    """
    return _Normal.of(rows, frames, weights).solved(np.ones(len(rows)))


@dataclass(frozen=True, slots=True)
class Committee:
    """Several fits to bootstrap samples, and where the training frames are.

    Attributes:
        main: (n,) coefficients of the fit to all frames.
        members: (members, n) those of the fits to samples.
        centre: (n,) mean of the training frames' energy rows per atom.
        whitening: (n, n) `|(x - centre) W|^2` is the leverage of an energy row per atom x.
        force_whitening: (n, n) `|g W|^2` is the leverage of a row g of forces.
        volumes: (2,) smallest and largest volume for an atom of the training frames, in angstrom^3.
    """

    main: _Array
    members: _Array
    centre: _Array
    whitening: _Array
    force_whitening: _Array
    volumes: _Array

    @classmethod
    def of(
        cls,
        rows: Sequence[Rows],
        frames: Sequence[Frame],
        weights: tuple[float, float],
        members: int,
        rng: np.random.Generator,
    ) -> Committee:
        """Fit to frames: one fit to all, and one to each of the samples drawn with replacement."""
        normal = _Normal.of(rows, frames, weights)
        n = len(rows)
        drawn = [np.bincount(rng.integers(0, n, n), minlength=n).astype(float) for _ in range(members)]
        fits = np.array([normal.solved(times) for times in drawn])
        centre, whitening = _whitened(rows)
        volumes = np.array([one.volume for one in rows])
        ends = np.array([volumes.min(), volumes.max()])
        return cls(normal.solved(np.ones(n)), fits, centre, whitening, _whitened_forces(rows), ends)

    def leverage(self, rows: Rows) -> float:
        """x' (A'A)^-1 x of a frame's energy row per atom, as a share of the training frames' mean (1)."""
        x = (rows.energy / rows.atoms - self.centre) @ self.whitening
        return float(x @ x)

    def force_leverage(self, rows: Rows) -> float:
        """The same of its rows of forces, their mean: single atoms whose surroundings no training frame has."""
        return float(((rows.forces @ self.force_whitening) ** 2).sum(axis=1).mean())

    def beyond(self, rows: Rows) -> float:
        """How far the volume for an atom is outside of the training frames', as a share of their range.

        Where those have one volume only, of one percent of it.
        """
        low, high = (float(end) for end in self.volumes)
        return max(low - rows.volume, rows.volume - high, 0.0) / max(high - low, 0.01 * high)

    def flagged(self, rows: Rows, thresholds: tuple[float, float]) -> bool:
        """Whether no sigma is stated for a frame.

        Args:
            rows: Of the frame.
            thresholds: Largest leverages of energy and forces that are not flagged.
        """
        inside = (
            self.leverage(rows) <= thresholds[0]
            and self.force_leverage(rows) <= thresholds[1]
            and self.beyond(rows) <= MOST_BEYOND
        )
        return not inside

    def energy(self, rows: Rows) -> float:
        """Energy of a frame, in eV."""
        return float(rows.energy @ self.main)

    def forces(self, rows: Rows) -> _Array:
        """(3 atoms,) forces, in eV/angstrom."""
        return np.asarray(rows.forces @ self.main)

    def spread(self, rows: Rows) -> _Array:
        """(3 atoms,) standard deviation of the members' forces about the main fit's, in eV/angstrom."""
        off = rows.forces @ (self.members - self.main).T
        return np.asarray(np.sqrt((off**2).mean(axis=1)))


def _whitened(rows: Sequence[Rows]) -> tuple[_Array, _Array]:
    """Centre and whitening of energy rows; directions that no training frame has count as far as they are."""
    x = np.array([one.energy / one.atoms for one in rows])
    centre = x.mean(axis=0)
    off = x - centre
    width = off.std(axis=0)
    width = np.where(width > 1e-12 * max(1.0, float(np.abs(centre).max())), width, np.inf)
    scaled = off / width
    values, vectors = np.linalg.eigh(scaled.T @ scaled / len(x))
    least = _SEEN * max(float(values.max()), 1e-300)
    dimension = max(1, int((values > least).sum()))
    root = vectors / np.sqrt(np.maximum(values, least) * dimension)
    return centre, np.asarray(root / width[:, None])


def _whitened_forces(rows: Sequence[Rows]) -> _Array:
    """Whitening of rows of forces; their mean leverage over the training frames is 1."""
    matrix = sum(one.forces.T @ one.forces for one in rows) / sum(len(one.forces) for one in rows)
    width = np.sqrt(np.diag(matrix))
    width = np.where(width > 1e-12 * max(1.0, float(width.max())), width, np.inf)
    values, vectors = np.linalg.eigh(matrix / np.outer(width, width))
    least = _SEEN * max(float(values.max()), 1e-300)
    dimension = max(1, int((values > least).sum()))
    return np.asarray(vectors / np.sqrt(np.maximum(values, least) * dimension) / width[:, None])


# ---- calibration


@dataclass(frozen=True, slots=True)
class Calibration:
    """What was measured on conditions that were held out.

    Attributes:
        scale: Factor of the committee's spread: the rms of error / spread of the frames that are not flagged.
        threshold: Largest leverage that is not flagged.
        force_threshold: Largest leverage of forces that is not flagged.
        energy_errors: (frames,) errors of energies of held-out frames, in eV/atom.
        force_errors: For each frame (3 atoms,), in eV/angstrom.
        covered: For each frame (3 atoms,) whether 1.96 calibrated sigma hold the error, calibrated on the others.
        leverages: (frames,).
        force_leverages: (frames,).
        conditions: Which folds were held out, by condition.
    """

    scale: float
    threshold: float
    force_threshold: float
    energy_errors: _Array
    force_errors: tuple[_Array, ...]
    covered: tuple[NDArray[np.bool_], ...]
    leverages: _Array
    force_leverages: _Array
    conditions: tuple[tuple[str, ...], ...]

    @property
    def flagged(self) -> NDArray[np.bool_]:
        """(frames,) those that would be flagged by a leverage; a volume that is held out is none of a new kind."""
        return np.asarray(
            (self.leverages > self.threshold) | (self.force_leverages > self.force_threshold), dtype=np.bool_
        )


def folds_of(conditions: Iterable[str], rng: np.random.Generator) -> tuple[tuple[str, ...], ...]:
    """Conditions that are held out together: one by one, or in ten parts where there are more.

    Example:
        >>> folds_of(["300 K", "600 K", "300 K"], np.random.default_rng(0))
        (('300 K',), ('600 K',))
    """
    names = sorted(set(conditions))
    if len(names) <= _MOST_FOLDS:
        return tuple((name,) for name in names)
    mixed = [names[i] for i in rng.permutation(len(names))]
    return tuple(tuple(sorted(mixed[i::_MOST_FOLDS])) for i in range(_MOST_FOLDS))


def calibrated(
    rows: Sequence[Rows],
    frames: Sequence[Frame],
    weights: tuple[float, float],
    members: int,
    seed: int,
    level: float,
) -> Calibration:
    """Hold out each condition, fit to the others, and compare errors of forces with the committee's spread.

    The factor of a fold's own coverage is that of the other folds, so that no frame is judged by itself.

    Args:
        rows: Of the frames.
        frames: Labelled, of two or more conditions.
        weights: Of energies and of forces.
        members: Fits of the committee.
        seed: Of the samples and folds.
        level: Share of the held-out frames that each leverage does not flag.
    """
    folds = folds_of((f.condition for f in frames), np.random.default_rng([seed, 0]))
    of = np.array([next(i for i, fold in enumerate(folds) if f.condition in fold) for f in frames])
    count = len(frames)
    energy, leverage, of_forces = np.zeros(count), np.zeros(count), np.zeros(count)
    errors: list[_Array] = [np.zeros(0)] * count
    spreads: list[_Array] = [np.zeros(0)] * count
    for i in range(len(folds)):
        inside = np.flatnonzero(of != i).tolist()
        committee = Committee.of(
            [rows[k] for k in inside],
            [frames[k] for k in inside],
            weights,
            members,
            np.random.default_rng([seed, 1, i]),
        )
        for k in np.flatnonzero(of == i).tolist():
            energy[k] = (committee.energy(rows[k]) - frames[k].energy) / rows[k].atoms
            errors[k] = committee.forces(rows[k]) - frames[k].forces.ravel()
            spreads[k] = committee.spread(rows[k])
            leverage[k] = committee.leverage(rows[k])
            of_forces[k] = committee.force_leverage(rows[k])
    threshold, most = (float(np.quantile(one, level, method="higher")) for one in (leverage, of_forces))
    # Never empty: with a level of one half or more each holds more than half of the frames.
    trusted = (leverage <= threshold) & (of_forces <= most)
    squares = [(e / np.maximum(s, 1e-300)) ** 2 for e, s in zip(errors, spreads, strict=True)]
    covered: list[NDArray[np.bool_]] = [np.zeros(0, np.bool_)] * count
    for k in range(count):
        others = [squares[j] for j in np.flatnonzero(trusted & (of != of[k]))]
        scale = math.sqrt(float(np.concatenate(others).mean())) if others else math.nan
        covered[k] = np.abs(errors[k]) <= 1.959964 * scale * spreads[k]
    whole = math.sqrt(float(np.concatenate([squares[j] for j in np.flatnonzero(trusted)]).mean()))
    return Calibration(whole, threshold, most, energy, tuple(errors), tuple(covered), leverage, of_forces, folds)
