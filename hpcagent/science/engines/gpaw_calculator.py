"""GPAW's calculator behind ASE's interface. Imports GPAW, so it is loaded last."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gpaw
import numpy as np
from ase import Atoms
from ase.calculators.calculator import Calculator
from gpaw.convergence_criteria import Energy

from hpcagent.apps.packages import accepted, refuse_decided
from hpcagent.apps.printed import read_tail, read_text
from hpcagent.errors import AppFailed
from hpcagent.science.engines.base import Level, NotConverged
from hpcagent.science.engines.dipole import layer_of
from hpcagent.science.engines.functionals import canonical, setups_of, spelling
from hpcagent.science.engines.gpaw_log import iterations
from hpcagent.science.engines.mesh import VACUUM, boxed
from hpcagent.science.engines.protocols import PROTOCOL, sampled

__all__ = ["Gpaw"]

_DECIDED = {
    "mode": "basis and ecut",
    "xc": "xc",
    "kpts": "kpts",
    "occupations": "smearing",
    "charge": "charge",
    "spinpol": "magmom",
    "magmoms": "magmom",
    "hund": "magmom",
    "maxiter": "max_scf",
    "convergence": "tolerance",
}


class Gpaw(Calculator):
    """GPAW's calculator behind ASE's interface: boxes, moments and failures are ours."""

    implemented_properties = ["energy", "free_energy", "forces", "stress", "magmom", "magmoms", "dipole"]

    def __init__(self, atoms: Atoms, level: Level, mode: str, log: Path) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.level = level
        self.mode = mode
        self.log = log
        self.vacuum = float(level.options.get("vacuum") or VACUUM)
        self.notes: tuple[str, ...] = self._of_functional()
        self.artifacts = {"log": log.name}
        if not atoms.cell.any():
            self.notes += (f"a box around the molecule, {self.vacuum:g} angstrom beyond its atoms",)
        if mode == "pw" and not level.ecut:
            ecut = PROTOCOL[level.protocol].gpaw_ecut
            self.notes += (f"ecut {ecut:g} eV (protocol {level.protocol}), it was not given",)
        self._moments = self._initial(atoms)
        self._layer, said = layer_of(boxed(atoms, self.vacuum), level)
        self.notes += said
        if level.smearing <= 0:
            self._refuse_odd(atoms)
        refuse_decided("GPAW", level.options.get("keywords") or {}, _DECIDED)
        self.gpaw = accepted(
            "GPAW", gpaw.GPAW, level.options.get("keywords") or {}, txt=str(log), **self._arguments(atoms)
        )

    def _of_functional(self) -> tuple[str, ...]:
        said = spelling(self.level.xc, "gpaw")[1]
        name = canonical(self.level.xc)
        made_with = setups_of(self.level.xc)
        other = name is not None and name != made_with
        return (*said, *((f"{name} with PAW setups made with {made_with}",) if other else ()))

    def _initial(self, atoms: Atoms) -> list[float]:
        own: list[float] = atoms.get_initial_magnetic_moments().tolist()
        return own if any(own) else [self.level.magmom] * len(atoms)

    def _refuse_odd(self, atoms: Atoms) -> None:
        # Setups leave closed shells out, so valence electrons are odd where all of them are.
        electrons, moment = int(atoms.numbers.sum()) - self.level.charge, sum(self._moments)
        if abs(moment - round(moment)) > 1e-6 or (electrons - round(moment)) % 2:
            raise AppFailed(
                f"{atoms.symbols} with charge {self.level.charge:+d} has {electrons} electrons, which cannot "
                f"have a total moment of {moment:g} Bohr magnetons (the sum of the initial moments) in fixed "
                "occupations.",
                kind="contract",
                name="NeedsSmearing",
                repair="set smearing, e.g. 0.2 eV for a metal, or for a molecule another magmom",
            )

    def _arguments(self, atoms: Atoms) -> dict[str, Any]:
        level = self.level
        modes = {
            "pw": {"name": "pw", "ecut": level.ecut or PROTOCOL[level.protocol].gpaw_ecut},
            "lcao": {"name": "lcao"},
            "fd": {"name": "fd"},
        }
        found: dict[str, Any] = {
            "mode": modes[self.mode],
            "xc": spelling(level.xc, "gpaw")[0],
            "kpts": {"size": sampled(atoms, level), "gamma": True},
            "occupations": {"name": "marzari-vanderbilt", "width": level.smearing}
            if level.smearing > 0
            # With a width of zero electrons would jump between k-points from step to step.
            else {"name": "fixed-uniform"},
            "convergence": {"energy": Energy(tol=level.tolerance, relative=False), **_density(level)},
            "maxiter": level.max_scf,
        }
        keywords = level.options.get("keywords") or {}
        if self.mode == "lcao" and "basis" not in keywords:
            found["basis"] = "dzp"
        if self.mode != "pw" and "h" not in keywords and "gpts" not in keywords:
            found["h"] = 0.2
        if level.smearing <= 0 and self.mode != "lcao" and "nbands" not in keywords:
            found["nbands"] = -4  # so many are empty; fixed occupations need one at least
        if self._layer is not None:
            found["poissonsolver"] = {"dipolelayer": self._layer.axis}
        if level.charge:
            found["charge"] = level.charge
        if level.mixing:
            found["mixer"] = {"backend": "pulay", "beta": level.mixing, "nmaxold": 5, "weight": 50}
        return found

    @property
    def valence_electrons(self) -> float:
        """Their number, after a calculation."""
        return float(self.gpaw.get_number_of_electrons())

    def written(self) -> str:
        """The log so far."""
        return read_text(self.log) if self.log.is_file() else ""

    def _prepared(self, atoms: Atoms) -> Atoms:
        copy = boxed(atoms, self.vacuum)
        if self.mode == "pw":
            copy.pbc = True
        if self._layer is not None:
            self._open(copy, self._layer.axis, self._layer.middle)
        if any(self._moments):
            copy.set_initial_magnetic_moments(self._moments)
        return copy

    def _open(self, atoms: Atoms, axis: int, middle: float) -> None:
        """GPAW puts the layer on the border of the cell, along a vector that is exactly perpendicular."""
        atoms.pbc[axis] = False
        cell = atoms.cell.array.copy()
        first, second = (cell[i] for i in range(3) if i != axis)
        normal = np.cross(first, second) / np.linalg.norm(np.cross(first, second))
        cell[axis] = (cell[axis] @ normal) * normal
        atoms.set_cell(cell)
        scaled = atoms.get_scaled_positions(wrap=False)
        scaled[:, axis] = (scaled[:, axis] - middle) % 1.0
        atoms.set_scaled_positions(scaled)

    def calculate(self, atoms: Any = None, properties: Any = ("energy",), system_changes: Any = ()) -> None:
        super().calculate(atoms, properties, system_changes)  # type: ignore[no-untyped-call]
        inside = self._prepared(atoms)
        wanted = dict.fromkeys(["energy", *(p for p in properties if p != "free_energy")])
        if any(self._moments):
            wanted |= dict.fromkeys(["magmom", "magmoms"])
        for name in wanted:
            self.results[name] = self._computed(inside, name)
        self.results["fermi"] = float(self.gpaw.get_fermi_level())
        self.results["free_energy"] = self._computed(inside, "free_energy")

    def _computed(self, atoms: Atoms, name: str) -> Any:
        try:
            if name == "free_energy":
                return float(self.gpaw.get_potential_energy(atoms, force_consistent=True))
            value = self.gpaw.get_property(name, atoms)
        except gpaw.KohnShamConvergenceError:
            history = iterations(self.written())
            last = f": last change {history[-1].change:.2g} eV" if history else ""
            raise NotConverged(
                f"the SCF of GPAW did not converge in {len(history)} steps{last}.",
                history=history,
                log_tail=self.written()[-4000:],
                repair="more max_scf, less mixing, or more smearing",
            ) from None
        except (NameError, KeyError, NotImplementedError) as error:
            raise self._refused(error) from None
        except FileNotFoundError as error:
            raise AppFailed(
                f"GPAW has no setup for one of {', '.join(sorted(set(atoms.symbols)))}: {error}.",
                kind="contract",
                name="NoPseudopotential",
                repair="the package gpaw-data has setups for LDA, PBE and revPBE of most elements",
            ) from None
        return np.asarray(value) if name in ("forces", "stress", "magmoms", "dipole") else float(value)

    def _refused(self, error: Exception) -> AppFailed:
        return AppFailed(
            f"GPAW refuses xc={self.level.xc or 'PBE'!r} or its settings: {error}.",
            kind="contract",
            name="BadSettings",
            log_tail=self.written()[-2000:],
            repair="without libxc GPAW has LDA, PBE, revPBE, RPBE and PW91",
        )

    def bands(self, path: Any, log: Path) -> Any:
        """Bands along an ASE BandPath; more of them than are occupied."""
        from ase.spectrum.band_structure import BandStructure

        occupied = math.ceil(self.valence_electrons / 2)
        count = occupied + max(4, occupied // 2)
        fermi = self.gpaw.get_fermi_level()
        try:
            fixed = self.gpaw.fixed_density(
                nbands=count + 2,
                symmetry="off",
                kpts=path.kpts,
                convergence={"bands": count},
                # Fixed occupations cannot keep a Fermi level; nothing depends on them here.
                occupations={"name": "fermi-dirac", "width": max(self.level.smearing, 0.0)},
                maxiter=max(self.level.max_scf, 300),
                txt=str(log),
            )
        except gpaw.KohnShamConvergenceError:
            raise NotConverged("the bands of GPAW did not converge.", log_tail=read_tail(log)) from None
        spins = fixed.get_number_of_spins()
        energies = np.array(
            [[fixed.get_eigenvalues(kpt=k, spin=s)[:count] for k in range(len(path.kpts))] for s in range(spins)]
        )
        return BandStructure(path, energies, reference=fermi)


def _density(level: Level) -> dict[str, float]:
    """Criteria of density and eigenstates: GPAW's own up to the usual tolerance, stricter with a stricter one.

    A stress is as wrong as the density is, and that goes with the square root of the energy's error.
    """
    share = level.tolerance / 1e-5
    return {} if share >= 1 else {"density": 1e-4 * math.sqrt(share), "eigenstates": 4e-8 * share}
