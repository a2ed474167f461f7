"""tblite against the numbers in its own documentation, its SCF and its failures."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from ase import Atoms
from ase.build import bulk, molecule
from ase.units import kB

from hpcagent.apps.run import Run
from hpcagent.errors import AppFailed
from hpcagent.science.engines.base import Level, NotConverged
from hpcagent.science.engines.registry import engine
from hpcagent.science.engines.tblite import unpaired

ENGINE = engine("tblite")


def calculator(atoms: Atoms, tmp_path: Path, **level: Any) -> Any:
    return ENGINE.calculator(atoms, Level("tblite", **level), Run(workdir=tmp_path))


@pytest.mark.parametrize(
    ("xc", "charge", "energy"),
    # From the docstring of tblite.ase 0.8.
    [
        ("", 0, -137.96777594361677),
        ("GFN2-xTB", 0, -137.96777594361677),
        ("GFN1-xTB", 0, -156.96750590276173),
        ("", -1, -131.50015843891816),
    ],
)
def test_energies_are_those_of_its_documentation(xc: str, charge: int, energy: float, tmp_path: Path) -> None:
    atoms = molecule("H2O")
    made = calculator(atoms, tmp_path, xc=xc, charge=charge, magmom=1 / 3 if charge else 0.0)
    assert made.get_potential_energy(atoms) == pytest.approx(energy, abs=1e-4)


def test_its_scf_has_a_history_that_ends_in_the_energy(tmp_path: Path) -> None:
    atoms = molecule("H2O")
    made = calculator(atoms, tmp_path, tolerance=1e-6)
    energy = made.get_potential_energy(atoms)
    history = ENGINE.iterations(made)
    assert 4 < len(history) < 30
    assert history[-1].energy == pytest.approx(energy, abs=1e-6)
    assert history[-1].change < 1e-6 < history[1].change


def test_what_it_prints_is_kept_from_the_output(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    atoms = molecule("H2O")
    calculator(atoms, tmp_path).get_potential_energy(atoms)
    assert capfd.readouterr().out == ""


def test_bytes_that_are_no_text_cost_the_history_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    atoms = molecule("H2O")
    made = calculator(atoms, tmp_path)
    monkeypatch.setattr(type(made), "_hear", lambda self, said: b"\xfe".decode())
    assert made.get_potential_energy(atoms) == pytest.approx(-137.96777594361677, abs=1e-4)
    assert ENGINE.iterations(made) == ()
    atoms.rattle(0.01, seed=1)
    assert made.get_potential_energy(atoms) != pytest.approx(-137.9677759, abs=1e-6)


def test_too_few_steps_are_not_converged_with_their_history(tmp_path: Path) -> None:
    atoms = molecule("H2O")
    with pytest.raises(NotConverged, match="did not converge in 2 steps") as failed:
        calculator(atoms, tmp_path, max_scf=2).get_potential_energy(atoms)
    assert len(failed.value.history) == 2


def test_smearing_is_the_temperature_of_the_electrons(tmp_path: Path) -> None:
    # 300 K is its own; stretched H2 gains much by hotter electrons.
    atoms = Atoms("H2", [[0, 0, 0], [0, 0, 3.0]])
    own, same, hot = (
        calculator(atoms, tmp_path, smearing=width).get_potential_energy(atoms)
        for width in (0.0, 300 * kB, 5000 * kB)
    )
    assert same == pytest.approx(own, abs=1e-9)
    assert hot < own - 0.05


def test_hotter_electrons_are_its_last_repair() -> None:
    names = [name for name, _ in ENGINE.repairs(Level("tblite", max_scf=10))]
    assert names == ["more_steps", "gentler_mixing", "more_smearing"]
    last = dict(ENGINE.repairs(Level("tblite")))["more_smearing"]
    assert last.smearing > 1000 * kB


def test_crystals_have_a_stress(tmp_path: Path) -> None:
    atoms = bulk("C", "diamond", a=3.57, cubic=True)
    made = calculator(atoms, tmp_path, xc="GFN1-xTB")
    assert len(made.get_property("stress", atoms)) == 6


@pytest.mark.parametrize(
    ("level", "said"),
    [
        ({"xc": "PBE"}, "no method of tblite"),
        ({"options": {"keywords": {"acuracy": 1.0}}}, "no keyword 'acuracy'; did you mean 'accuracy'"),
        ({"options": {"keywords": {"accuracy": 1.0}}}, "which the app's parameters decide"),
        ({"charge": 1}, "10 electrons|9 electrons"),
    ],
)
def test_what_it_cannot_do_is_refused(level: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(AppFailed, match=said) as failed:
        made = calculator(molecule("H2O"), tmp_path, **level)
        made.get_potential_energy(molecule("H2O"))
    assert (failed.value.kind, failed.value.name) == ("contract", "BadSettings")


def test_unpaired_electrons_come_from_the_structure_first() -> None:
    assert unpaired(molecule("O2"), Level("tblite")) == 2  # ASE's has moments of 1 on both
    assert unpaired(molecule("H2O"), Level("tblite")) == 0


def test_it_has_no_bands(tmp_path: Path) -> None:
    with pytest.raises(AppFailed, match="computes no bands"):
        ENGINE.bands(None, bulk("Si"), Level("tblite"), None, Run(workdir=tmp_path))


def test_threads_of_a_process_hear_the_same_scf_as_one_alone(tmp_path: Path) -> None:
    def heard(seed: int) -> tuple[float, int]:
        atoms = molecule("CH3OH")
        atoms.rattle(0.05, seed=seed)  # type: ignore[no-untyped-call]
        made = calculator(atoms, tmp_path)
        return round(made.get_potential_energy(atoms), 6), len(ENGINE.iterations(made))

    # Without a lock, lines were lost or no text (an error) in about 1 of 45 runs.
    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(heard, range(200))) == [heard(seed) for seed in range(200)]
