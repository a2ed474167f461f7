"""The ASE calculator behind the engine `espresso`: pw.x, started where the run was placed."""

from __future__ import annotations

import itertools
import math
import re
import shutil
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from ase.calculators.espresso import EspressoProfile, EspressoTemplate
from ase.calculators.genericfileio import GenericFileIOCalculator

from hpcagent.apps.printed import read_text
from hpcagent.model.failures import mode
from hpcagent.science.engines.base import Iteration
from hpcagent.science.engines.external import Ended, Program

if TYPE_CHECKING:
    from ase import Atoms

__all__ = ["Pwscf"]

# Seconds before the run's limit at which pw.x is asked to stop by itself, so that its output is whole.
_IN_TIME_S = 10.0

# Largest displacement, in angstrom, up to which the density of the calculation before is a better beginning than
# that of free atoms: for a copper slab it saved nothing at 0.05, a quarter of the time at 0.005.
_NEAR = 0.03


class _Template(EspressoTemplate):
    """ASE's way of writing inputs and reading outputs, with our way of starting the program between them."""

    def __init__(
        self,
        start: Callable[[Path, str, str], None],
        prepared: Callable[[Atoms], Atoms],
        fermi: Callable[[str], float | None],
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._fermi = fermi
        self._start = start
        self._prepared = prepared

    def write_input(self, profile: Any, directory: Path, atoms: Atoms, parameters: Any, properties: Any) -> None:
        super().write_input(profile, directory, self._prepared(atoms), dict(parameters), properties)  # type: ignore[no-untyped-call]

    def execute(self, directory: Path, profile: Any) -> None:
        self._start(directory, self.inputname, self.outputname)

    def read_results(self, directory: Any) -> Any:
        results = super().read_results(directory)  # type: ignore[no-untyped-call]
        # ASE 3.29 takes the last column, which with pw.x 6 is another quantity.
        text = read_text(Path(directory) / self.outputname)
        moments = re.findall(r"charge\s*[:=]\s*\S+\s+magn\s*[:=]\s*(\S+)", text)
        if "magmoms" in results:
            results["magmoms"] = np.array([float(moment) for moment in moments[-len(results["magmoms"]) :]])
        fermi = self._fermi(text)
        if fermi is not None:
            results["fermi"] = fermi
        total = re.findall(r"^\s*total magnetization\s+=\s+(\S+) Bohr", text, re.MULTILINE)
        if total:
            results["magmom"] = float(total[-1])
        return results


class Pwscf(GenericFileIOCalculator):
    """ASE's Espresso calculator, started through the launcher of the site.

    When atoms have moved but little it begins with the density and the wavefunctions of the calculation before,
    which saves SCF steps in a relaxation. Where pw.x refuses them (the symmetry, and so the k-points, are others
    now), it starts anew. pw.x does not renormalise a density that it reads: the energy is off by some 1e-5 eV from
    that of a fresh start (measured for silicon).

    Args:
        program: pw.x.
        directory: Where its files go; the last input and output stay, wavefunctions go with `close`.
        pseudo_dir: Folder of the pseudopotentials.
        data: Keywords of pw.x, flat.
        more: The other arguments of ASE's `write_espresso_in`: pseudopotentials, kpts.
        prepared: Puts atoms into a cell and gives them moments.
        check: Raises if a calculation went wrong.
        history: Reads SCF steps from an output.
        fermi: Reads the Fermi energy from an output.
        keep: Whether the wavefunctions stay.
        words: Behind the command, before the input: how ranks are divided.
        valence_electrons: Their number.
        notes: What a user must know of how this was set up.
        artifacts: Files beside the output.
    """

    def __init__(
        self,
        program: Program,
        *,
        directory: Path,
        pseudo_dir: Path,
        data: Mapping[str, Any],
        more: Mapping[str, Any],
        prepared: Callable[[Atoms], Atoms],
        check: Callable[[Ended, Path], None],
        history: Callable[[str], tuple[Iteration, ...]],
        fermi: Callable[[str], float | None],
        keep: bool = False,
        words: tuple[str, ...] = (),
        valence_electrons: float = math.nan,
        notes: tuple[str, ...] = (),
        artifacts: Mapping[str, str] | None = None,
    ) -> None:
        self.program = program
        self.history: tuple[Iteration, ...] = ()
        self.notes = notes
        self.artifacts = {"input": "espresso.pwi", "output": "espresso.pwo", **(artifacts or {})}
        self.valence_electrons = valence_electrons
        self._check = check
        self._words = words
        self._read_history = history
        self._before: Atoms | None = None
        self._stress = False
        self.scratch = next(
            folder for i in itertools.count(1) if not (folder := directory / f"espresso-{i}.scratch").exists()
        )
        self.scratch.mkdir(parents=True)
        super().__init__(
            profile=EspressoProfile(" ".join(program.words), pseudo_dir),  # type: ignore[no-untyped-call]
            template=_Template(self._start, prepared, fermi),
            directory=directory,
            parameters=dict(more) | {"input_data": dict(data) | {"outdir": self.scratch.name}},
        )
        # Wavefunctions of a slab take hundreds of MB: they must not stay because somebody forgot to close.
        self._removed = None if keep else weakref.finalize(self, shutil.rmtree, self.scratch, ignore_errors=True)

    def close(self) -> None:
        """Delete the wavefunctions and the density, unless they are to be kept."""
        if self._removed is not None:
            self._removed()
        self._before = None

    def get_property(self, name: str, atoms: Any = None, allow_calculation: bool = True) -> Any:
        """ASE's; remembers that the stress was asked for."""
        self._stress = self._stress or name == "stress"
        return super().get_property(name, atoms, allow_calculation)  # type: ignore[no-untyped-call]

    def calculate(self, atoms: Atoms, properties: Any, system_changes: Any) -> None:
        """Energy and forces; the stress of a crystal the first time, later only if somebody has asked for it."""
        again = self._continues(atoms)
        self.results = {}
        self._before = None
        try:
            self._once(atoms, properties, again)
        except Exception as error:
            ended = mode(str(getattr(error, "name", "")))
            if not again or (ended is not None and ended.timed):
                raise
            self._once(atoms, properties, again=False)
        self._before = atoms.copy()

    def _once(self, atoms: Atoms, properties: Any, again: bool) -> None:
        self.atoms = atoms.copy()
        self._say(self.atoms, again=again)
        super().calculate(self.atoms, properties, [])  # type: ignore[no-untyped-call]

    def bands(self, kpts: Any, count: int) -> None:
        """Let pw.x compute `count` bands at these k-points in the density of the calculation before."""
        kept = self.parameters
        more = {"calculation": "bands", "nbnd": count, "verbosity": "low"}
        data = {
            k: v for k, v in kept["input_data"].items() if k not in ("startingpot", "startingwfc", "max_seconds")
        }
        self.parameters = {**kept, "input_data": data | more, "kpts": kpts}
        try:
            self.write_inputfiles(self.atoms, ["energy"])  # type: ignore[no-untyped-call]
            shutil.copyfile(self.directory / "espresso.pwi", self.directory / "bands.pwi")
            self._start(self.directory, "bands.pwi", "bands.pwo")
        finally:
            self.parameters = kept
            self.write_inputfiles(self.atoms, ["energy"])  # type: ignore[no-untyped-call]

    def _continues(self, atoms: Atoms) -> bool:
        # In another cell the grid of the density may be another one.
        before = self._before
        return (
            before is not None
            and len(before) == len(atoms)
            and bool((before.numbers == atoms.numbers).all())
            and bool((before.cell == atoms.cell).all())
            and bool((before.pbc == atoms.pbc).all())
            and float(abs(before.positions - atoms.positions).max()) < _NEAR
        )

    def _say(self, atoms: Atoms, *, again: bool) -> None:
        data = dict(self.parameters["input_data"])
        # Energy, forces and stress are often asked for one after the other; another start of pw.x costs more.
        first = not self.history and bool(atoms.pbc.all())
        data |= {"tprnfor": True, "tstress": self._stress or first}
        for name in ("startingpot", "startingwfc"):
            data.pop(name, None)
            if again:
                data[name] = "file"
        left = self.program.seconds_left
        if left > 6 * _IN_TIME_S:
            data["max_seconds"] = round(left - _IN_TIME_S, 1)
        self.parameters = {**self.parameters, "input_data": data}

    def _start(self, directory: Path, inputname: str, outputname: str) -> None:
        (directory / "CRASH").unlink(missing_ok=True)
        ended = self.program.start(*self._words, "-in", inputname, cwd=directory, output=outputname)
        if outputname != "bands.pwo":
            self.history = self._read_history(ended.text)
        self._check(ended, directory)
