"""What every engine must keep, as a test class to inherit; it computes a molecule or a small crystal a few times.

from ase.build import bulk
from hpcagent.testing import EngineContract

class TestMine(EngineContract):
    name = "mine"
    params = {"xc": "PBE"}

    def atoms(self):
        return bulk("Cu", cubic=True)
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest

from hpcagent.apps.run import Run
from hpcagent.errors import AppFailed
from hpcagent.science.engines.base import LEVEL, Engine, Level
from hpcagent.science.engines.protocols import settled
from hpcagent.science.engines.registry import check, engine

if TYPE_CHECKING:
    from ase import Atoms

__all__ = ["EngineContract"]

_STEP = 0.01


class EngineContract:
    """Inherit, set `name`, and pytest runs the contract.

    Attributes:
        name: The engine's, hpcagent's own or an entry point's.
        params: Of the level of theory.
        settings: Of the app, e.g. pseudopotentials.
        force_tolerance: Forces may differ from the energy's slope by so much, in eV/angstrom.
        energy_tolerance: Energies of the same structure may differ by so much, in eV.
    """

    name: ClassVar[str]
    params: ClassVar[dict[str, Any]] = {}
    settings: ClassVar[dict[str, Any]] = {}
    force_tolerance: ClassVar[float] = 0.02
    energy_tolerance: ClassVar[float] = 1e-4

    def atoms(self) -> Atoms:
        """A small structure, not at rest: forces are compared."""
        from ase.build import bulk

        made = bulk("Cu", cubic=True)
        made.rattle(0.05, seed=1)
        return made

    @pytest.fixture
    def its(self) -> Engine:
        """The engine."""
        return engine(self.name)

    def energy(self, its: Engine, atoms: Atoms, folder: Path) -> Any:
        """The calculator of these atoms, attached to them."""
        folder.mkdir(exist_ok=True)
        level, _ = settled(Level.of({"engine": self.name, **self.params}, self.settings), atoms, its)
        atoms.calc = its.calculator(atoms, level, Run(workdir=folder))
        return atoms.get_potential_energy()

    def test_it_says_what_it_is(self, its: Engine) -> None:
        assert its.name == self.name
        assert its.kind in ("dft", "semi-empirical", "classical", "machine-learned", "other")
        assert isinstance(its.isolated, bool) and set(its.takes) <= set(LEVEL)
        level = Level.of({"engine": self.name, **self.params}, self.settings)
        check(its, level)
        assert all(isinstance(word, str) and isinstance(other, Level) for word, other in its.repairs(level))
        assert isinstance(its.files(level, {}), tuple)

    def test_what_it_does_not_take_is_refused(self, its: Engine) -> None:
        others = {"ecut": 312.0, "basis": "sto-3g", "charge": 1, "mixing": 0.3}
        for name in others.keys() - set(its.takes):
            with pytest.raises(AppFailed, match=name):
                check(its, Level.of({"engine": self.name, **self.params, name: others[name]}, self.settings))

    def test_forces_are_the_slope_of_the_energy(self, its: Engine, tmp_path: Path) -> None:
        atoms = self.atoms()
        self.energy(its, atoms, tmp_path / "0")
        forces = atoms.get_forces()
        assert forces.shape == (len(atoms), 3) and np.isfinite(forces).all()
        at = int(np.abs(forces).argmax())
        atom, axis = divmod(at, 3)
        values = []
        for sign in (-1, 1):
            moved = self.atoms()
            moved.positions[atom, axis] += sign * _STEP
            values.append(self.energy(its, moved, tmp_path / f"moved{sign}"))
        slope = -(values[1] - values[0]) / (2 * _STEP)
        assert abs(slope - forces[atom, axis]) < self.force_tolerance

    def test_energy_does_not_depend_on_where_and_in_which_order_atoms_are(
        self, its: Engine, tmp_path: Path
    ) -> None:
        atoms = self.atoms()
        first = self.energy(its, atoms, tmp_path / "first")
        turned = self.atoms()[::-1]
        if not turned.pbc.any():
            turned.translate([0.31, -0.2, 0.1])
        assert abs(self.energy(its, turned, tmp_path / "turned") - first) < self.energy_tolerance

    def test_versions_name_what_has_computed(self, its: Engine, tmp_path: Path) -> None:
        atoms = self.atoms()
        self.energy(its, atoms, tmp_path / "0")
        versions = its.versions(atoms.calc)
        assert versions and all(isinstance(v, str) and v for v in versions.values())
        assert isinstance(its.iterations(atoms.calc), tuple)

    def test_files_stay_in_the_folder_of_the_run(
        self, its: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        here = tmp_path / "here"
        here.mkdir()
        monkeypatch.chdir(here)
        self.energy(its, self.atoms(), tmp_path / "run")
        assert not list(here.iterdir())
