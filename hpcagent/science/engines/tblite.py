"""tblite: the semi-empirical methods GFN1-xTB, GFN2-xTB and IPEA1-xTB; fast, with a real SCF, not DFT."""

from __future__ import annotations

import functools
import math
import re
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from hpcagent.apps.deciding import Deciding
from hpcagent.apps.packages import accepted, needs, no_bands, versions_of
from hpcagent.errors import AppFailed, nearest
from hpcagent.science.engines.base import Iteration, Level, NotConverged

if TYPE_CHECKING:
    from ase import Atoms

    from hpcagent.apps.run import Run

__all__ = ["ENGINE", "METHODS", "TBLiteEngine"]

METHODS = ("GFN2-xTB", "GFN1-xTB", "IPEA1-xTB")
"""doi:10.1021/acs.jctc.8b01176 (GFN2-xTB), 10.1021/acs.jctc.7b00118 (GFN1-xTB), 10.1039/c7sc00601b (IPEA1-xTB)."""

_OWN_MIXING = 0.4
_OWN_TEMPERATURE_K = 300.0
# tblite's threshold of the energy at accuracy 1, in hartree.
_THRESHOLD_HARTREE = 1e-6
# The text that tblite prints is put together in memory that all threads of a process share: with several at once
# lines were lost, or were no text (2 % of runs with 16 threads; energies and forces were right).
_ALONE = threading.Lock()
_ROW = re.compile(r"^\s*\d+\s+(-?\d+\.\d+)\s+(-?\d+\.\d+E[+-]\d+)\s+\S+\s*$")


class TBLiteEngine:
    """tblite in the run's own process: molecules and crystals (at Gamma only), with forces and stress.

    `xc` is the method. `smearing` is kT of the electrons; 0 leaves tblite its own 300 K. `tolerance` becomes its
    accuracy (1 is a threshold of 1e-6 hartree), `mixing` its damping. `magmom` times the number of atoms (or the
    initial moments of the structure) is the number of unpaired electrons.
    """

    name = "tblite"
    kind: Literal["semi-empirical"] = "semi-empirical"
    isolated = False
    takes = ("xc", "charge", "magmom", "smearing", "tolerance", "max_scf", "mixing")

    def calculator(self, atoms: Atoms, level: Level, run: Run) -> Any:
        """A calculator that keeps the rows tblite prints of its SCF."""
        needs("tblite.ase", "pip install 'hpcagent[dft]'")
        from ase.units import Hartree, kB

        method = level.xc or METHODS[0]
        if method not in METHODS:
            raise AppFailed(
                f"xc={method!r} is no method of tblite; {nearest(method, METHODS)} Allowed: {', '.join(METHODS)}.",
                kind="contract",
                name="BadSettings",
            )
        return accepted(
            "tblite",
            _calculator_class(),
            level.options.get("keywords") or {},
            method=method,
            charge=level.charge,
            multiplicity=unpaired(atoms, level) + 1,
            accuracy=min(max(level.tolerance / Hartree / _THRESHOLD_HARTREE, 1e-4), 1e3),
            max_iterations=level.max_scf,
            mixer_damping=level.mixing or _OWN_MIXING,
            electronic_temperature=level.smearing / kB if level.smearing > 0 else _OWN_TEMPERATURE_K,
        )

    def iterations(self, calculator: Any) -> tuple[Iteration, ...]:
        """The rows of the last SCF; empty where tblite is not heard (before 0.5, or what it says is no text)."""
        return tuple(calculator.history)

    def repairs(self, level: Level) -> tuple[tuple[str, Level], ...]:
        """More steps, a gentler mixing, and hotter electrons, which is another physics."""
        from ase.units import kB

        gentler = replace(level, mixing=(level.mixing or _OWN_MIXING) * 0.25, max_scf=max(4 * level.max_scf, 500))
        hotter = max(4 * level.smearing, 5 * kB * _OWN_TEMPERATURE_K)
        found = [("gentler_mixing", gentler), ("more_smearing", replace(gentler, smearing=round(hotter, 4)))]
        if level.max_scf < 100:
            found.insert(0, ("more_steps", replace(level, max_scf=250)))
        return tuple(found)

    def files(self, level: Level, site: Mapping[str, Any]) -> tuple[Deciding, ...]:
        """None: the parameters are in the package."""
        return ()

    def versions(self, calculator: Any) -> dict[str, str]:
        """tblite's."""
        return versions_of("tblite")

    def used(self, level: Level, atoms: Atoms, calculator: Any) -> dict[str, str]:
        """Method, unpaired electrons, temperature of the electrons."""
        smearing = f"{level.smearing:g} eV" if level.smearing > 0 else f"{_OWN_TEMPERATURE_K:g} K"
        return {
            "xc": level.xc or METHODS[0],
            "unpaired_electrons": f"{unpaired(atoms, level)}",
            "smearing": smearing,
            "kpoints": "Gamma only" if atoms.pbc.any() else "none, not periodic",
        }

    def bands(self, calculator: Any, atoms: Atoms, level: Level, path: Any, run: Run) -> Any:
        """None: it has no k-points."""
        raise no_bands(self.name)


def unpaired(atoms: Atoms, level: Level) -> int:
    """Unpaired electrons that the initial moments ask for: the structure's own, else `magmom` for each atom.

    Raises:
        AppFailed: `BadSettings`: the electrons cannot be paired so.

    Example:
        >>> from ase import Atoms
        >>> unpaired(Atoms("O2", [[0, 0, 0], [0, 0, 1.2]]), Level("tblite", magmom=1.0))
        2
    """
    own = atoms.get_initial_magnetic_moments()
    moment = float(own.sum()) if own.any() else level.magmom * len(atoms)
    found = round(abs(moment))
    electrons = int(atoms.numbers.sum()) - level.charge
    if (electrons - found) % 2 and not atoms.pbc.any():
        raise AppFailed(
            f"{atoms.symbols} with charge {level.charge:+d} has {electrons} electrons, of which {found} cannot be "
            "unpaired; set magmom so that magmom times the number of atoms is the number of unpaired electrons "
            f"(now {moment:g}).",
            kind="contract",
            name="BadSettings",
        )
    return found


@functools.cache
def _calculator_class() -> Any:
    from ase.calculators.calculator import CalculationFailed, InputError
    from ase.units import Hartree
    from tblite import library
    from tblite.ase import TBLite

    class Listening(TBLite):
        """tblite's own ASE calculator; what it prints is kept, not printed."""

        # Its short forms of `solvation`.
        more_parameters = tuple(
            f"{name}_solvation" for name in ("alpb", "gbsa", "cosmo", "cpcm", "pcm", "gbe", "gb")
        )

        def __init__(self, **keywords: Any) -> None:
            self.history: list[Iteration] = []
            self._deaf = False
            super().__init__(**{"verbosity": 0, **keywords})

        def calculate(self, atoms: Any = None, properties: Any = None, system_changes: Any = ()) -> None:
            self.history.clear()
            try:
                with _ALONE:
                    super().calculate(atoms, properties, system_changes)
            except CalculationFailed as error:
                if "codec can't decode" in str(error) and not self._deaf:
                    # tblite 0.8 may print bytes that are no text, and takes that for an error: again, unheard.
                    self._deaf, self._xtb, self._res = True, None, None
                    self.calculate(atoms, properties, system_changes)
                    return
                if "not converged" not in str(error):
                    raise AppFailed(f"tblite failed: {error}.", name="EngineFailed") from None
                raise NotConverged(
                    f"the SCF of tblite did not converge in {self.parameters['max_iterations']} steps.",
                    history=tuple(self.history),
                ) from None
            except InputError as error:
                raise AppFailed(
                    f"tblite refuses its input: {error}.", kind="contract", name="BadSettings"
                ) from None

        def _check_api_calculator(self, system_changes: Any) -> None:
            super()._check_api_calculator(system_changes)
            if self._xtb is None:
                from tblite.ase import _create_api_calculator

                self._xtb = _create_api_calculator(self.atoms, self.parameters)  # type: ignore[arg-type]
                if self._deaf:
                    self._xtb.set("verbosity", 0)
                    return
                try:
                    self._xtb._ctx = library.new_context(color=False, logger=self._hear)
                    self._xtb.set("verbosity", 1)
                except (TypeError, AttributeError):  # another version: not a word, then
                    self._xtb.set("verbosity", 0)

        def _hear(self, said: str) -> None:
            for line in said.splitlines():
                row = _ROW.match(line)
                if row:
                    last = self.history[-1].energy if self.history else math.nan
                    energy = float(row[1]) * Hartree
                    self.history.append(Iteration(energy, abs(energy - last)))

    return Listening


ENGINE = TBLiteEngine()
