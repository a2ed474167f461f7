"""An SCF that does not converge is repaired in order, within bounds, and never in silence."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ase import Atoms
from ase.build import molecule
from ase.calculators.calculator import Calculator, PropertyNotImplementedError, compare_atoms

from hpcagent.apps.deciding import Deciding
from hpcagent.apps.run import Run
from hpcagent.errors import AppFailed
from hpcagent.science.engines.base import Iteration, Level, NotConverged
from hpcagent.science.engines.registry import engine
from hpcagent.science.engines.watched import Watch, changed_in, changes, charged


class Moody(Calculator):
    """Converges where `converges(level, call)` says so, in three steps; else fails after max_scf."""

    implemented_properties = ["energy"]

    def __init__(self, engine: Scripted, level: Level) -> None:
        super().__init__()
        self.engine, self.level, self.history = engine, level, ()

    def calculate(self, atoms: Any = None, properties: Any = None, system_changes: Any = None) -> None:
        super().calculate(atoms, properties, system_changes)
        self.engine.calls += 1
        if not self.engine.converges(self.level, self.engine.calls):
            history = tuple(Iteration(-1.0 + 0.5 * (-1) ** n, 1.0) for n in range(self.level.max_scf))
            raise NotConverged(
                f"no convergence in {self.level.max_scf} steps.", history=history, log_tail="said so"
            )
        self.history = (Iteration(-1.0, math.nan), Iteration(-1.5, 0.5), Iteration(-1.6, 0.1))
        self.results["energy"] = -1.6


class Scripted:
    """An engine whose SCF converges when a test says so."""

    name = "pyscf"
    kind = "dft"
    isolated = False
    takes = ("smearing", "mixing", "max_scf")

    def __init__(self, converges: Callable[[Level, int], bool]) -> None:
        self.converges = converges
        self.calls = 0

    def calculator(self, atoms: Atoms, level: Level, run: Run) -> Any:
        return Moody(self, level)

    def iterations(self, calculator: Any) -> tuple[Iteration, ...]:
        return calculator.history

    def repairs(self, level: Level) -> tuple[tuple[str, Level], ...]:
        return (
            ("gentler_mixing", replace(level, mixing=0.28)),
            ("more_smearing", replace(level, mixing=0.28, smearing=0.4)),
        )

    def files(self, level: Level, site: Any) -> tuple[Deciding, ...]:
        return ()

    def versions(self, calculator: Any) -> dict[str, str]:
        return {}

    def bands(self, *_: Any) -> Any:
        raise NotImplementedError


def watch(converges: Callable[[Level, int], bool], tmp_path: Path, **level: Any) -> Watch:
    return Watch(
        Scripted(converges), water(), Level("pyscf", mixing=0.7, max_scf=5, **level), Run(workdir=tmp_path)
    )


def water(shift: float = 0.0) -> Atoms:
    atoms = molecule("H2O")
    atoms.positions[0, 2] += shift
    return atoms


def scf(tmp_path: Path) -> list[dict[str, Any]]:
    return json.loads((tmp_path / "scf.json").read_text())["calculations"]


def test_the_history_of_each_calculation_is_written(tmp_path: Path) -> None:
    watched = watch(lambda level, call: True, tmp_path)
    watched.compute(water(), ["energy"])
    watched.compute(water(0.1), ["energy"])
    assert watched.close() == {"scf": "scf.json"}
    first, second = scf(tmp_path)
    assert first["attempts"] == [[[-1.0, None], [-1.5, 0.5], [-1.6, 0.1]]]
    assert (second["calculation"], second["energy_eV"], second["converged"]) == (2, -1.6, True)
    assert (watched.scf_steps, watched.n_calculations) == (6, 2)


def test_asking_again_for_the_same_atoms_counts_nothing_twice(tmp_path: Path) -> None:
    watched = watch(lambda level, call: True, tmp_path)
    watched.compute(water(), ["energy"])
    watched.compute(water(), ["energy"], again=True)
    assert (watched.scf_steps, watched.n_calculations) == (3, 1)


def test_a_repair_is_recorded_and_kept_for_what_follows(tmp_path: Path) -> None:
    watched = watch(lambda level, call: level.mixing < 0.5, tmp_path)
    assert watched.compute(water(), ["energy"])["energy"] == -1.6
    watched.compute(water(0.1), ["energy"])
    assert watched.repaired == ["gentler_mixing: mixing 0.7 -> 0.28"]
    assert watched.level.mixing == 0.28
    assert watched.notes == [
        "an SCF did not converge; repaired by gentler_mixing: mixing 0.7 -> 0.28 (for the whole run)"
    ]
    watched.close()
    first, second = scf(tmp_path)
    assert first["repairs"] == watched.repaired
    assert [len(history) for history in first["attempts"]] == [5, 3]
    assert second["repairs"] == []
    assert watched.scf_steps == 5 + 3 + 3


def test_a_repair_that_changes_the_physics_says_that_energies_do_not_compare(tmp_path: Path) -> None:
    # The second geometry converges only with more smearing.
    watched = watch(lambda level, call: call == 1 or level.smearing > 0, tmp_path)
    watched.compute(water(), ["energy"])
    watched.compute(water(0.1), ["energy"])
    assert watched.repaired[1] == "more_smearing: smearing 0 -> 0.4 eV"
    assert any(
        "more_smearing changed the physics" in note and "must not be compared" in note for note in watched.notes
    )
    assert all("from calculation 2 on" in note for note in watched.notes)
    assert not any("gentler_mixing changed" in note for note in watched.notes)


@pytest.mark.parametrize(("allowed", "tried"), [(0, 0), (1, 1), (2, 2), (4, 2)])
def test_there_are_no_more_repairs_than_allowed_or_known(allowed: int, tried: int, tmp_path: Path) -> None:
    watched = watch(lambda level, call: False, tmp_path, repairs=allowed)
    with pytest.raises(NotConverged) as failed:
        watched.compute(water(), ["energy"])
    assert len(watched.repaired) == tried
    assert failed.value.message.count("->") == (0, 1, 2)[tried]
    assert scf(tmp_path)[0]["n_steps"] == 5 * (1 + tried)


def test_when_nothing_helps_the_failure_has_sentence_history_and_advice(tmp_path: Path) -> None:
    watched = watch(lambda level, call: False, tmp_path)
    with pytest.raises(NotConverged) as failed:
        watched.compute(water(), ["energy"])
    error = failed.value
    assert error.message == (
        "no convergence in 5 steps, also not after gentler_mixing: mixing 0.7 -> 0.28; "
        "more_smearing: smearing 0 -> 0.4 eV."
    )
    assert (error.name, error.kind, len(error.history)) == ("NotConverged", "simulation", 5)
    assert error.log_tail.startswith("said so\n  step")
    assert len(error.log_tail.splitlines()) == 2 + 5
    assert "smearing" in error.repair
    assert scf(tmp_path)[0]["converged"] is False


def test_each_repair_is_used_once_in_a_run(tmp_path: Path) -> None:
    # Converges once after the first repair, then never again: mixing must not shrink without end.
    watched = watch(lambda level, call: call == 2, tmp_path)
    watched.compute(water(), ["energy"])
    with pytest.raises(NotConverged, match=r"\(calculation 2 of the run\)"):
        watched.compute(water(0.1), ["energy"])
    assert [said.split(":")[0] for said in watched.repaired] == ["gentler_mixing", "more_smearing"]


class Broken(Scripted):
    """Its calculator fails in its own way."""

    def __init__(self, error: Exception) -> None:
        super().__init__(lambda level, call: True)
        self.error = error

    def calculator(self, atoms: Atoms, level: Level, run: Run) -> Any:
        made = Moody(self, level)

        def calculate(*_: Any) -> None:
            raise self.error

        made.calculate = calculate
        return made


@pytest.mark.parametrize(
    ("error", "kind", "name"),
    [
        (ZeroDivisionError("by zero"), "simulation", "EngineFailed"),
        (PropertyNotImplementedError("stress"), "contract", "NoProperty"),
        (AppFailed("no such xc.", kind="contract", name="BadSettings"), "contract", "BadSettings"),
    ],
)
def test_other_failures_of_a_calculator_are_typed(error: Exception, kind: str, name: str, tmp_path: Path) -> None:
    watched = Watch(Broken(error), water(), Level("pyscf"), Run(workdir=tmp_path))
    with pytest.raises(AppFailed) as failed:
        watched.compute(water(), ["energy"])
    assert (failed.value.kind, failed.value.name) == (kind, name)


def test_a_full_disk_stays_what_it_is(tmp_path: Path) -> None:
    watched = Watch(Broken(OSError(28, "No space left on device")), water(), Level("pyscf"), Run(workdir=tmp_path))
    with pytest.raises(OSError, match="No space left"):
        watched.compute(water(), ["energy"])


@pytest.mark.parametrize(
    "change",
    [
        lambda atoms: None,
        lambda atoms: atoms.positions.__setitem__((1, 2), atoms.positions[1, 2] + 1e-9),
        # Within the tolerance of ASE, and just beyond it.
        lambda atoms: atoms.positions.__setitem__((1, 2), atoms.positions[1, 2] + 5e-16),
        lambda atoms: atoms.positions.__setitem__((1, 2), atoms.positions[1, 2] + 3e-15),
        lambda atoms: atoms.positions.__setitem__((0, 0), math.nan),
        lambda atoms: atoms.numbers.__setitem__(0, 16),
        lambda atoms: atoms.set_cell([5.0, 5.0, 5.1]),
        lambda atoms: atoms.set_pbc([True, False, False]),
        lambda atoms: atoms.set_initial_charges([1.0, 0.0, 0.0]),
        lambda atoms: atoms.set_initial_magnetic_moments([0.0, 0.0, 0.0]),
        lambda atoms: atoms.append("He"),
        lambda atoms: (atoms.rattle(0.1), atoms.set_pbc(True)),
        lambda atoms: atoms.set_velocities([[0.0, 0.0, 1.0]] * 3),
        lambda atoms: atoms.info.update(charge=1),
    ],
)
def test_what_of_a_structure_has_changed_is_what_ase_finds(change: Callable[[Atoms], Any]) -> None:
    before = molecule("H2O", cell=[5.0, 5.0, 5.0])
    before.positions[1, 2] = 0.5
    for with_moments in (False, True):
        if with_moments:
            before.set_initial_magnetic_moments([0.0, 1.0, -1.0])
        after = before.copy()
        change(after)
        assert sorted(changed_in(before, after)) == sorted(compare_atoms(before, after))
    assert changed_in(None, before) == compare_atoms(None, before)


def test_changes_of_a_level_in_words() -> None:
    old = Level("pyscf", options={"keywords": {}})
    new = replace(old, mixing=0.28, max_scf=400, options={"keywords": {}, "second_order": True})
    assert changes(old, new) == "max_scf 100 -> 400, mixing (own) -> 0.28, second_order not set -> True"


def test_a_real_scf_is_repaired(tmp_path: Path) -> None:
    level = Level("tblite", max_scf=3)
    watched = Watch(engine("tblite"), water(), level, Run(workdir=tmp_path))
    # As in the documentation of tblite for this structure.
    assert watched.compute(water(), ["energy"])["energy"] == pytest.approx(-137.967776, abs=1e-4)
    assert watched.repaired == ["more_steps: max_scf 3 -> 250"]
    watched.close()
    assert [len(history) for history in scf(tmp_path)[0]["attempts"]] == [3, 8]


# ---- the charge of a structure


def ion(**settings: Any) -> Atoms:
    return Atoms("Mg", charges=[2], **settings)


def test_the_charge_of_a_structure_is_that_of_the_calculation() -> None:
    atoms = ion()
    assert charged(atoms, Level("tblite")).charge == 2
    assert atoms.info["charge"] == 2  # what is written goes on with it
    assert charged(Atoms("Mg", info={"charge": 1}), Level("pyscf")).charge == 1
    # One that the parameter gives goes on with the structure, too.
    neutral = Atoms("Na")
    assert charged(neutral, Level("pyscf", charge=1)).charge == 1 and neutral.info["charge"] == 1


@pytest.mark.parametrize(
    ("atoms", "level", "words"),
    [
        (ion(), Level("pyscf", charge=1), r"charge=\+1, but the structure Mg has a charge of \+2"),
        (ion(), Level("emt"), "knows no charges"),
        (ion(), Level("mace"), "knows no charges"),
        (Atoms("Na", charges=[0.4]), Level("pyscf"), "no whole number"),
    ],
)
def test_a_charge_that_cannot_be_computed_with_is_refused(atoms: Atoms, level: Level, words: str) -> None:
    with pytest.raises(AppFailed, match=words):
        charged(atoms, level)


def test_magnesium_from_smiles_is_computed_as_the_ion(tmp_path: Path) -> None:
    pytest.importorskip("tblite")
    pytest.importorskip("rdkit")
    import hpcagent as ha

    with ha.open_site("threads", run_dir=tmp_path):
        found = ha.apps.dft_energy(ha.apps.smiles_to_xyz(smiles="[Mg+2]"), engine="tblite", forces="no").result()
        by_hand = ha.apps.dft_energy(Atoms("Mg"), engine="tblite", charge=2, forces="no").result()
        neutral = ha.apps.dft_energy(Atoms("Mg"), engine="tblite", forces="no").result()
    assert found["energy"] == pytest.approx(by_hand["energy"], abs=1e-6)
    # The two ionisation energies of magnesium are 7.65 and 15.04 eV (NIST).
    assert found["energy"] - neutral["energy"] > 15
