"""Equations of state, elastic constants and adsorption energies with known answers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcagent.errors import AppFailed
from hpcagent.science.analysis.adsorption import adsorption_energy_of
from hpcagent.science.analysis.elastic import elastic_constants, strain_between, voigt_reuss_hill
from hpcagent.science.analysis.eos import birch_murnaghan, eos_fit, fitted
from tests.unit.science.analysis.trajectories import run_of

GPA = 160.21766208


def written(folder: Path, atoms: Any, number: int, **fields: Any) -> dict[str, Any]:
    """An energy run of these atoms, as its result stands in `Run.upstream`."""
    from ase.io.extxyz import write_extxyz

    place = folder / f"run-{number}"
    place.mkdir()
    known = getattr(atoms.calc, "implemented_properties", ())
    if "stress" in known and atoms.pbc.all() and type(atoms.calc).__name__ != "SinglePointCalculator":
        atoms.get_stress()
    with (place / "structure.xyz").open("w") as file:
        write_extxyz(file, [atoms])
    metrics = {} if atoms.calc is None else {"energy": float(atoms.get_potential_energy())}
    return {"workdir": str(place), "artifacts": {"structure": "structure.xyz"}, "metrics": metrics, **fields}


def copper(scale: float = 1.0) -> Any:
    from ase.build import bulk
    from ase.calculators.emt import EMT

    atoms = bulk("Cu", "fcc", a=3.6)
    atoms.set_cell(atoms.cell[:] * scale, scale_atoms=True)
    atoms.calc = EMT()
    return atoms


def lennard_jones(a: float) -> Any:
    from ase.build import bulk
    from ase.calculators.lj import LennardJones

    atoms = bulk("Ar", "fcc", a=a)
    atoms.calc = LennardJones(sigma=3.405, epsilon=0.0104, rc=10.0, smooth=False)
    return atoms


# ---- equation of state


def test_exact_energies_give_back_their_parameters() -> None:
    true = (11.8, -3.7, 0.85, 5.1)
    volumes = np.linspace(10.5, 13.2, 9)
    found, _ = fitted(volumes, birch_murnaghan(volumes, *true))
    assert found == pytest.approx(true, rel=1e-7)


def test_the_bulk_modulus_is_the_curvature_and_its_derivative_the_slope() -> None:
    v0, b0, prime = 11.8, 0.85, 5.1
    h = 1e-3
    v = v0 + h * np.arange(-2, 3)
    energy = birch_murnaghan(v, v0, 0.0, b0, prime)
    assert v0 * (energy[1] - 2 * energy[2] + energy[3]) / h**2 == pytest.approx(b0, rel=1e-5)

    def pressure(x: float) -> float:
        return float(
            -(birch_murnaghan(x + h, v0, 0, b0, prime) - birch_murnaghan(x - h, v0, 0, b0, prime)) / (2 * h)
        )

    def modulus(x: float) -> float:
        return -x * (pressure(x + 0.01) - pressure(x - 0.01)) / 0.02

    slope = (modulus(v0 - 0.1) - modulus(v0 + 0.1)) / (pressure(v0 - 0.1) - pressure(v0 + 0.1))
    assert slope == pytest.approx(prime, rel=2e-3)


def test_errors_of_the_fit_agree_with_the_scatter_over_noise() -> None:
    true = (11.8, -3.7, 0.85, 5.1)
    volumes = np.linspace(10.5, 13.2, 15)
    rng = np.random.default_rng(0)
    found, errors = [], []
    for _ in range(200):
        parameters, covariance = fitted(volumes, birch_murnaghan(volumes, *true) + rng.normal(0, 5e-4, 15))
        found.append(parameters)
        errors.append(np.sqrt(np.diag(covariance)))
    scatter = np.std(found, axis=0)
    assert np.sqrt(np.mean(np.square(errors), axis=0)) == pytest.approx(scatter, rel=0.2)
    assert np.abs(np.mean(found, axis=0) - true) == pytest.approx(0, abs=4 * scatter.max() / np.sqrt(200) + 0.05)


def test_copper_by_effective_medium_theory_is_that_of_ases_own_fit(tmp_path: Path) -> None:
    from ase.eos import EquationOfState

    structures = [copper(s) for s in np.linspace(0.97, 1.03, 9)]
    runs = [written(tmp_path, atoms, i) for i, atoms in enumerate(structures)]
    run = run_of(tmp_path, *runs)
    found = eos_fit.plain_function(run=run, lattice="fcc")
    volumes = [atoms.get_volume() for atoms in structures]
    energies = [atoms.get_potential_energy() for atoms in structures]
    v0, e0, b0 = EquationOfState(volumes, energies, eos="birchmurnaghan").fit()
    assert found.metrics["v0"] == pytest.approx(v0, rel=1e-5)
    assert found.metrics["e0"] == pytest.approx(e0, abs=1e-5)
    assert found.metrics["bulk_modulus"] == pytest.approx(b0 * GPA, rel=1e-3)
    assert found.metrics["a0"] == pytest.approx((4 * v0) ** (1 / 3), rel=1e-5)
    # Copper itself: 3.615 angstrom, 137 GPa (C. Kittel, Introduction to Solid State Physics).
    assert found.metrics["a0"] == pytest.approx(3.615, rel=0.01)
    assert found.metrics["bulk_modulus"] == pytest.approx(137, rel=0.1)
    assert found.uncertainty["a0"] < 1e-3
    table = np.loadtxt(run.workdir / "eos.csv", delimiter=",", skiprows=1)
    assert table.shape == (9, 3) and (np.diff(table[:, 0]) > 0).all()


def test_a_minimum_that_is_not_among_the_volumes_is_refused(tmp_path: Path) -> None:
    for low, high, side in ((1.02, 1.08, "smaller"), (0.92, 0.97, "larger")):
        runs = [
            written(tmp_path, copper(s), i + (100 if side == "larger" else 0))
            for i, s in enumerate(np.linspace(low, high, 6))
        ]
        with pytest.raises(AppFailed) as failed:
            eos_fit.plain_function(run=run_of(tmp_path, *runs), lattice="none")
        assert failed.value.name == "MinimumOutside" and failed.value.kind == "simulation"
        assert side in failed.value.repair


def test_points_that_are_no_curve_and_runs_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    from ase.build import bulk
    from ase.calculators.singlepoint import SinglePointCalculator

    runs = []
    for i, (scale, energy) in enumerate(zip(np.linspace(0.97, 1.03, 7), (0, 5, -3, 4, -2, 6, 1), strict=True)):
        atoms = copper(scale)
        atoms.calc = SinglePointCalculator(atoms, energy=float(energy))
        runs.append(written(tmp_path, atoms, i))
    with pytest.raises(AppFailed) as failed:
        eos_fit.plain_function(run=run_of(tmp_path, *runs), lattice="none")
    assert failed.value.name in ("BadFit", "MinimumOutside")
    with pytest.raises(AppFailed) as failed:
        eos_fit.plain_function(run=run_of(tmp_path, *runs[:4]), lattice="none")
    assert failed.value.name == "TooFewRuns"
    other = {**written(tmp_path, bulk("Ag"), 50), "metrics": {"energy": 0.0}}
    with pytest.raises(AppFailed) as failed:
        eos_fit.plain_function(run=run_of(tmp_path, *runs, other), lattice="none")
    assert failed.value.name == "MixedRuns"
    bare = written(tmp_path, bulk("Cu"), 51)
    with pytest.raises(AppFailed) as failed:
        eos_fit.plain_function(run=run_of(tmp_path, *runs, bare), lattice="none")
    assert failed.value.name == "NoEnergy"


# ---- elastic constants


def strained(make: Callable[[], Any], size: float, modes: tuple[int, ...] = (0, 3)) -> list[Any]:
    """The reference, and for each mode (Voigt, from 0) both signs of the strain."""
    voigt = ((0, 0), (1, 1), (2, 2), (1, 2), (0, 2), (0, 1))
    found = [make()]
    for mode in modes:
        for sign in (1, -1):
            atoms = make()
            strain = np.eye(3)
            i, j = voigt[mode]
            if i == j:
                strain[i, i] += sign * size
            else:
                strain[i, j] += sign * size / 2
                strain[j, i] += sign * size / 2
            atoms.set_cell(atoms.cell[:] @ strain, scale_atoms=True)
            found.append(atoms)
    return found


def relaxed_argon() -> float:
    from scipy.optimize import brentq

    return float(brentq(lambda a: lennard_jones(a).get_stress()[0], 5.1, 5.5, xtol=1e-10))


def test_a_pair_potential_obeys_cauchy_and_its_bulk_modulus_is_that_of_the_eos(tmp_path: Path) -> None:
    a = relaxed_argon()
    runs = [written(tmp_path, atoms, i) for i, atoms in enumerate(strained(lambda: lennard_jones(a), 1e-3))]
    found = elastic_constants.plain_function(run=run_of(tmp_path, *runs), symmetry="cubic").metrics
    assert found["c12"] == pytest.approx(found["c44"], rel=2e-3)
    assert found["stable"] == 1 and found["residual_stress"] < 1e-6
    assert found["bulk_modulus"] == pytest.approx((found["c11"] + 2 * found["c12"]) / 3)
    points = [written(tmp_path, lennard_jones(a * s), 100 + i) for i, s in enumerate(np.linspace(0.99, 1.01, 9))]
    eos = eos_fit.plain_function(run=run_of(tmp_path, *points), lattice="fcc").metrics
    assert eos["a0"] == pytest.approx(a, rel=1e-4)
    assert found["bulk_modulus"] == pytest.approx(eos["bulk_modulus"], rel=0.01)
    # N. W. Ashcroft and N. D. Mermin, Solid State Physics, ch. 20: r0 = 1.09 sigma, B0 = 75 eps/sigma^3
    # from the lattice sums over all neighbours; the cutoff at 2.94 sigma leaves out some percent.
    assert a / np.sqrt(2) / 3.405 == pytest.approx(1.09, rel=0.005)
    assert found["bulk_modulus"] / (0.0104 * GPA / 3.405**3) == pytest.approx(75, rel=0.05)


def test_all_constants_of_a_cubic_crystal_are_those_of_its_symmetry(tmp_path: Path) -> None:
    def make() -> Any:
        return copper(3.59 / 3.6)

    runs = [written(tmp_path, atoms, i) for i, atoms in enumerate(strained(make, 2e-3, modes=(0, 1, 2, 3, 4, 5)))]
    run = run_of(tmp_path, *runs)
    whole = elastic_constants.plain_function(run=run, symmetry="none")
    cubic = elastic_constants.plain_function(run=run_of(tmp_path, *runs), symmetry="cubic")
    for name in ("c11", "c12", "c44", "bulk_modulus", "shear_modulus"):
        assert whole.metrics[name] == pytest.approx(cubic.metrics[name], rel=5e-3)
        assert name not in cubic.uncertainty or cubic.uncertainty[name] < 0.5
    tensor = np.loadtxt(run.workdir / "elastic.csv", delimiter=",", skiprows=1)[:6]
    assert np.abs(tensor[:3, 3:]).max() < 0.01 * tensor[0, 0] and tensor[5, 5] == pytest.approx(
        tensor[3, 3], rel=1e-3
    )
    # Copper itself: 168, 121, 75 GPa (C. Kittel, Introduction to Solid State Physics).
    assert cubic.metrics["c11"] == pytest.approx(168, rel=0.1)
    assert cubic.metrics["c12"] == pytest.approx(121, rel=0.1)
    assert cubic.metrics["c44"] == pytest.approx(75, rel=0.3)


def test_a_rotated_cell_is_not_strained_and_its_stress_is_turned_back(tmp_path: Path) -> None:
    structures = strained(lambda: lennard_jones(5.3), 1e-3)
    plain = [written(tmp_path, atoms, i) for i, atoms in enumerate(structures)]
    for number, atoms in enumerate(structures[1:]):
        atoms.rotate(20 * (number + 1), (1, 2, 3), rotate_cell=True)
    turned = [written(tmp_path, atoms, 50 + i) for i, atoms in enumerate(structures)]
    a, b = (
        elastic_constants.plain_function(run=run_of(tmp_path, *runs), symmetry="cubic") for runs in (plain, turned)
    )
    for name in ("c11", "c12", "c44"):
        assert a.metrics[name] == pytest.approx(b.metrics[name], rel=1e-4)
    strain, rotation = strain_between(structures[0].cell[:], structures[1].cell[:])
    assert strain[0, 0] == pytest.approx(1e-3) and np.linalg.det(rotation) == pytest.approx(1.0)


def test_moduli_of_an_isotropic_body_are_its_own() -> None:
    bulk, shear = 70.0, 30.0
    c = np.zeros((6, 6))
    c[:3, :3] = bulk - 2 * shear / 3
    c[range(3), range(3)] = bulk + 4 * shear / 3
    c[range(3, 6), range(3, 6)] = shear
    assert voigt_reuss_hill(c) == pytest.approx((bulk, shear))


def test_a_lattice_that_is_not_stable_says_so(tmp_path: Path) -> None:
    from ase.build import bulk
    from ase.calculators.lj import LennardJones

    def simple_cubic() -> Any:
        # Held together by a pair potential, a simple cubic lattice gives way to shear.
        atoms = bulk("Ar", "sc", a=3.6)
        atoms.calc = LennardJones(sigma=3.405, epsilon=0.0104, rc=4.5)
        return atoms

    runs = [written(tmp_path, atoms, i) for i, atoms in enumerate(strained(simple_cubic, 1e-3))]
    found = elastic_constants.plain_function(run=run_of(tmp_path, *runs), symmetry="cubic")
    assert found.metrics["stable"] == 0 and any("not stable" in note for note in found.notes)


def test_strains_that_do_not_suffice_are_refused(tmp_path: Path) -> None:
    structures = strained(lambda: lennard_jones(5.3), 1e-3)
    runs = [written(tmp_path, atoms, i) for i, atoms in enumerate(structures)]
    for some, name in ((runs[:3], "StrainsMissing"), (runs[:2], "TooFewRuns")):
        with pytest.raises(AppFailed) as failed:
            elastic_constants.plain_function(run=run_of(tmp_path, *some), symmetry="cubic")
        assert failed.value.name == name
    structures[2].calc = None
    bare = written(tmp_path, structures[2], 60)
    with pytest.raises(AppFailed) as failed:
        elastic_constants.plain_function(run=run_of(tmp_path, *runs, bare), symmetry="cubic")
    assert failed.value.name == "NoStress"


# About those of alpha-quartz, in GPa, in the form of class 32 (J. F. Nye, table 9); x is a twofold axis.
QUARTZ = {"c11": 86.8, "c12": 7.0, "c13": 11.9, "c33": 105.8, "c44": 58.2, "c14": -18.0, "c66": 39.9}


def quartz_tensor() -> Any:
    c = np.zeros((6, 6))
    for (i, j), name in {(0, 0): "c11", (1, 1): "c11", (0, 1): "c12", (0, 2): "c13", (1, 2): "c13", (2, 2): "c33",
                         (3, 3): "c44", (4, 4): "c44", (0, 3): "c14", (4, 5): "c14", (5, 5): "c66"}.items():  # fmt: skip
        c[i, j] = c[j, i] = QUARTZ[name]
    c[1, 3] = c[3, 1] = -QUARTZ["c14"]
    return c


def quartz_runs(folder: Path, *, angle: float = 0.0, noise: float = 0.0, seed: int = 0) -> list[dict[str, Any]]:
    """Strained crystals of class 32 with the stresses of quartz, turned about z and with noise in GPa."""
    from ase.calculators.singlepoint import SinglePointCalculator
    from test_symmetry import QUARTZ as CRYSTAL

    from hpcagent.science.analysis.symmetry import bond

    def make() -> Any:
        atoms = CRYSTAL.copy()
        atoms.rotate(angle, "z", rotate_cell=True)
        return atoms

    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(seed)
    structures = strained(make, 0.005, modes=(0, 1, 2, 3, 4, 5))
    rotation = np.linalg.solve(CRYSTAL.cell[:], structures[0].cell[:]).T
    tensor = bond(rotation) @ quartz_tensor() @ bond(rotation).T
    runs = []
    for number, atoms in enumerate(structures):
        strain, _ = strain_between(structures[0].cell[:], atoms.cell[:])
        voigt = [strain[0, 0], strain[1, 1], strain[2, 2], 2 * strain[1, 2], 2 * strain[0, 2], 2 * strain[0, 1]]
        stress = (tensor @ voigt + noise * rng.normal(size=6)) / GPA
        atoms.calc = SinglePointCalculator(atoms, energy=0.0, stress=stress)
        runs.append(written(folder, atoms, number))
    return runs


@pytest.mark.parametrize("angle", [0.0, 60.0, 180.0, 25.0])
def test_quartz_has_its_constants_however_it_lies_with_c14_positive(tmp_path: Path, angle: float) -> None:
    runs = quartz_runs(tmp_path / "runs", angle=angle)
    found = elastic_constants.plain_function(run=run_of(tmp_path, *runs), symmetry="auto")
    for name, value in QUARTZ.items():
        assert found.metrics[name] == pytest.approx(abs(value), rel=1e-5), name
    assert any("with which C14 is positive" in note for note in found.notes)


def test_errors_of_the_moduli_of_a_trigonal_crystal_are_their_scatter(tmp_path: Path) -> None:
    names = ("bulk_modulus", "shear_modulus", "c11", "c14")
    found, stated = [], []
    for seed in range(40):
        runs = quartz_runs(tmp_path / f"seed-{seed}", noise=0.01, seed=seed)
        fit = elastic_constants.plain_function(run=run_of(tmp_path, *runs), symmetry="auto")
        found.append([fit.metrics[name] for name in names])
        stated.append([fit.uncertainty[name] for name in names])
    # A standard deviation from 40 is right within 11 %.
    assert np.sqrt(np.mean(np.square(stated), axis=0)) == pytest.approx(np.std(found, axis=0, ddof=1), rel=0.3)


# ---- adsorption


LEVEL = {
    "engine": "pyscf",
    "xc": "PBE",
    "basis": "def2-svp",
    "ecut": 0.0,
    "kpts": 4,
    "smearing": 0.1,
    "magmom": 0.0,
}


def energy_run(energy: float, *, app: str = "dft_energy", digest: str = "d", **params: Any) -> dict[str, Any]:
    manifest = {"app": app, "input_digest": digest, "params": {**LEVEL, **params}}
    return {"workdir": "", "artifacts": {}, "metrics": {"energy": energy}, "manifest": manifest}


def adsorbed(*runs: dict[str, Any], share: float = 1.0, folder: Path) -> Any:
    return adsorption_energy_of.plain_function(run=run_of(folder, *runs), share=share)


def test_an_adsorption_energy_is_the_difference_of_three_energies(tmp_path: Path) -> None:
    runs = energy_run(-100.0), energy_run(-10.0, kpts=1, magmom=2.0), energy_run(-107.5)
    assert adsorbed(*runs, share=0.5, folder=tmp_path).metrics["adsorption_energy"] == pytest.approx(-2.5)
    assert adsorbed(*runs, folder=tmp_path).metrics["adsorption_energy"] == pytest.approx(2.5)


def test_energies_of_different_levels_are_not_subtracted(tmp_path: Path) -> None:
    cases = (
        ("xc is 'PBE' (slab), 'PBE0' (molecule)", energy_run(-10.0, xc="PBE0")),
        ("smearing is 0.1 (slab), 0.2 (molecule)", energy_run(-10.0, smearing=0.2)),
        ("engine is 'pyscf' (slab), 'gpaw' (molecule)", energy_run(-10.0, engine="gpaw")),
        ("settings of dft_energy", energy_run(-10.0, digest="other")),
    )
    for words, molecule in cases:
        with pytest.raises(AppFailed) as failed:
            adsorbed(energy_run(-100.0), molecule, energy_run(-111.0), folder=tmp_path)
        assert failed.value.name == "LevelsDiffer" and failed.value.kind == "contract"
        assert words in failed.value.message
    # A relaxation is another app, so its digest is another one.
    relaxed = energy_run(-111.0, app="dft_relax", digest="other")
    adsorbed(energy_run(-100.0), energy_run(-10.0), relaxed, folder=tmp_path)


METALS = {"Cu": 11.565, "Al": 15.93, "Pd": 14.59}


@functools.cache
def exact_metal(element: str) -> tuple[float, float, float]:
    """Volume (angstrom^3), bulk modulus (GPa) and its derivative by EMT, from derivatives of the energy."""
    from ase.build import bulk
    from ase.calculators.emt import EMT
    from ase.units import GPa
    from scipy.optimize import minimize_scalar

    def energy(volume: float) -> float:
        atoms = bulk(element, "fcc", a=(4 * volume) ** (1 / 3))
        atoms.calc = EMT()
        return float(atoms.get_potential_energy())

    def second(at: float, h: float = 0.02) -> float:
        return (energy(at + h) - 2 * energy(at) + energy(at - h)) / h**2

    near = METALS[element]
    v = minimize_scalar(energy, bracket=(0.96 * near, near, 1.04 * near), tol=1e-12).x
    third = (second(v + 0.05) - second(v - 0.05)) / 0.1
    return v, v * second(v) / GPa, -1 - v * third / second(v)


@pytest.mark.parametrize("element", METALS)
@pytest.mark.parametrize(
    ("span", "points", "beside"),
    [
        *((*one, 0.0) for one in ((0.1, 9), (0.06, 5), (0.06, 9), (0.06, 15), (0.03, 5), (0.03, 9))),
        *((*one, 0.01) for one in ((0.06, 5), (0.06, 7), (0.03, 9))),
    ],
)
def test_the_error_of_a_fit_covers_what_the_equation_leaves_out(
    tmp_path: Path, element: str, span: float, points: int, beside: float
) -> None:
    from ase.build import bulk
    from ase.calculators.emt import EMT

    runs = []
    for number, ratio in enumerate((1 + beside) * (1 + span * np.linspace(-1, 1, points))):
        atoms = bulk(element, "fcc", a=(4 * METALS[element] * ratio) ** (1 / 3))
        atoms.calc = EMT()
        runs.append(written(tmp_path, atoms, number))
    found = eos_fit.plain_function(run=run_of(tmp_path, *runs), lattice="fcc")
    for name, exact in zip(("v0", "bulk_modulus", "bulk_modulus_prime"), exact_metal(element), strict=True):
        off, error = abs(found.metrics[name] - exact), found.uncertainty[name]
        assert off < 2 * error, name
    if element == "Cu" and not beside:
        # Not by being large: 0.11 GPa is left out over 6 %, and 0.12 is stated, from five points 0.15.
        assert found.uncertainty["bulk_modulus"] < {0.1: 0.6, 0.06: 0.16, 0.03: 0.06}[span]
    # Five points cannot tell the equation's error from scatter.
    assert points == 5 or any("that of the equation" in note for note in found.notes)


@pytest.mark.parametrize(("span", "points"), [(0.06, 5), (0.03, 5), (0.015, 5), (0.03, 7), (0.03, 9)])
def test_the_error_of_a_fit_is_that_of_noise_where_noise_makes_it(
    tmp_path: Path, span: float, points: int
) -> None:
    from ase.build import bulk
    from ase.calculators.singlepoint import SinglePointCalculator

    from hpcagent.science.analysis.eos import vinet

    true = (11.565, -3.7, 134.5 / GPA, 4.8)
    rng = np.random.default_rng(5)
    covered, narrower, seeds = np.zeros(3), 0, 40
    for seed in range(seeds):
        runs = []
        for ratio in 1 + span * np.linspace(-1, 1, points):
            atoms = bulk("Cu", a=(4 * true[0] * ratio) ** (1 / 3))
            energy = float(vinet(true[0] * ratio, *true)) + rng.normal(0, 2e-5)
            atoms.calc = SinglePointCalculator(atoms, energy=energy)
            runs.append(written(tmp_path, atoms, points * seed + len(runs)))
        found = eos_fit.plain_function(run=run_of(tmp_path, *runs), lattice="none")
        names = (("v0", true[0]), ("bulk_modulus", 134.5), ("bulk_modulus_prime", true[3]))
        covered += [abs(found.metrics[name] - value) < 2 * found.uncertainty[name] for name, value in names]
        narrower += any("narrower range" in note for note in found.notes)
    # 95 % of 40 is 38; 33 and fewer would be seen in one of 70.
    assert (covered >= 34).all(), covered
    # What noise makes grows when the range is narrowed: at most some of it is taken for the equation's.
    assert narrower <= 0.2 * seeds


def test_how_much_fits_differ_by_noise_is_what_noise_makes_of_them() -> None:
    from hpcagent.science.analysis.eos import _by_vinet, _inner, _of_order, vinet

    true = (11.565, -3.7, 0.84, 4.8)
    volumes = true[0] * (1 + 0.05 * np.linspace(-1, 1, 9))
    energies = vinet(volumes, *true)
    start, change = np.array(true), 1e-6 * np.random.default_rng(1).normal(size=9)
    for fit in (
        lambda e: _of_order(volumes, e, true[0], 3),
        lambda e: _of_order(volumes, e, true[0], 4),
        lambda e: _of_order(volumes, e, true[0], 5),
        lambda e: _inner(volumes, e, true[0]),
        lambda e: _by_vinet(volumes, e, start),
    ):
        plus, minus, at = fit(energies + change), fit(energies - change), fit(energies)
        assert plus is not None and minus is not None and at is not None
        moved = (plus.parameters - minus.parameters) / 2
        assert at.gain @ change == pytest.approx(moved, rel=2e-3, abs=1e-9)


def test_where_nothing_can_be_compared_no_errors_are_stated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hpcagent.science.analysis import eos

    runs = [written(tmp_path, copper(s), i) for i, s in enumerate(np.linspace(0.98, 1.02, 7))]
    monkeypatch.setattr(eos, "_by_vinet", lambda *_: None)
    monkeypatch.setattr(eos, "_of_order", lambda *_: None)
    found = eos_fit.plain_function(run=run_of(tmp_path, *runs), lattice="fcc")
    assert found.uncertainty == {} and any("no errors are stated" in note for note in found.notes)


def test_the_two_equations_are_what_they_should_be() -> None:
    from hpcagent.science.analysis.eos import birch_murnaghan, polynomial, vinet

    volumes = np.linspace(10.5, 12.5, 9)
    third = birch_murnaghan(volumes, 11.5, -3.0, 0.8, 4.5)
    for order in (3, 4):
        assert polynomial(volumes, third, 11.4, order) == pytest.approx([11.5, -3.0, 0.8, 4.5], rel=1e-5)
    # Vinet's: B0 and B0' are those of the energy's derivatives at V0.
    at, h = 11.5, 0.01
    e = vinet(at + h * np.arange(-2, 3), at, -3.0, 0.8, 4.5)
    second = (e[3] - 2 * e[2] + e[1]) / h**2
    third_derivative = (e[4] - 2 * e[3] + 2 * e[1] - e[0]) / (2 * h**3)
    assert at * second == pytest.approx(0.8, rel=1e-4)
    assert -1 - at * third_derivative / second == pytest.approx(4.5, rel=1e-3)


def test_an_impossible_derivative_of_the_bulk_modulus_is_said(tmp_path: Path) -> None:
    from ase.build import bulk
    from ase.calculators.singlepoint import SinglePointCalculator

    from hpcagent.science.analysis.eos import birch_murnaghan

    runs = []
    for number, volume in enumerate(np.linspace(18.8, 21.2, 7)):
        atoms = bulk("Si", a=(8 * volume) ** (1 / 3))
        energy = 2 * float(birch_murnaghan(volume, 20.0, -5.0, 0.55, 17.0))
        atoms.calc = SinglePointCalculator(atoms, energy=energy)
        runs.append(written(tmp_path, atoms, number))
    found = eos_fit.plain_function(run=run_of(tmp_path, *runs), lattice="none")
    assert found.metrics["bulk_modulus_prime"] == pytest.approx(17, rel=1e-3)
    assert any("bulk_modulus_prime is 17, in solids it is 2 to 9" in note for note in found.notes)


def test_charges_that_do_not_add_up_and_other_kpoints_in_one_cell_are_refused(tmp_path: Path) -> None:
    slab, gas = energy_run(-100.0), energy_run(-10.0, kpts=1)
    cases = (
        ("charge is +2 (slab), +0 (molecule), +0 (together)", energy_run(-100.0, charge=2), energy_run(-111.0)),
        ("kpts is 4 (slab), 8 (together) in the same cell", slab, energy_run(-111.0, kpts=8)),
        ("changed the physics", slab, energy_run(-111.0) | {"notes": ["the repair x changed the physics: y"]}),
    )
    for words, clean, together in cases:
        with pytest.raises(AppFailed) as failed:
            adsorbed(clean, gas, together, folder=tmp_path)
        assert failed.value.name == "LevelsDiffer" and words in failed.value.message
    # An ion on a neutral slab: charges add up.
    found = adsorbed(slab, energy_run(-10.0, charge=1), energy_run(-111.0, charge=1), folder=tmp_path)
    assert found.metrics["adsorption_energy"] == pytest.approx(-1.0)


def test_atoms_that_do_not_add_up_are_refused(tmp_path: Path) -> None:
    from ase import Atoms
    from ase.build import fcc111
    from ase.calculators.singlepoint import SinglePointCalculator

    slab = fcc111("Cu", (1, 1, 3), vacuum=8.0)
    molecule = Atoms("O2", positions=[[0, 0, 0], [0, 0, 1.2]])
    together = slab + Atoms("O", positions=[[0, 0, 14.0]])
    for atoms, energy in ((slab, -3.0), (molecule, -9.0), (together, -9.5)):
        atoms.info.clear()
        atoms.calc = SinglePointCalculator(atoms, energy=energy)
    runs = [written(tmp_path, atoms, i) for i, atoms in enumerate((slab, molecule, together))]
    found = adsorbed(*runs, share=0.5, folder=tmp_path)
    assert found.metrics["adsorption_energy"] == pytest.approx(-9.5 + 3.0 + 4.5)
    assert any("not checked" in note for note in found.notes)  # no manifests
    with pytest.raises(AppFailed) as failed:
        adsorbed(*runs, share=1.0, folder=tmp_path)
    assert failed.value.name == "AtomsDiffer"
    with pytest.raises(AppFailed) as failed:
        adsorbed(runs[0], {**runs[1], "metrics": {}}, runs[2], folder=tmp_path)
    assert failed.value.name == "NoEnergy"
