"""Radial distribution functions and neighbours with known answers."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from hpcagent.errors import AppFailed
from hpcagent.science.analysis.coordination import coordination
from hpcagent.science.analysis.frames import FARTHEST
from hpcagent.science.analysis.rdf import _redrawn, peaks, rdf
from tests.unit.science.analysis.trajectories import dump, run_of, upstream

READ = {"discard": 0.0, "every": 1, "timestep": 0.001, "units": "metal", "species": ""}
RDF = {"r_max": 0.0, "bins": 100, "a": "", "b": "", "ranks": 1, **READ}
COUNT = {"cutoff": 0.0, "a": "", "b": "", "ranks": 1, **READ}


def fcc(a: float, cells: int, n_frames: int, rattle: float = 0.0, seed: int = 0) -> tuple[np.ndarray, float]:
    from ase.build import bulk

    atoms = bulk("Cu", "fcc", a=a, cubic=True) * (cells, cells, cells)
    noise = np.random.default_rng(seed).normal(0, 1, (n_frames, len(atoms), 3))
    return atoms.positions + rattle * noise, a * cells


def table(path: Path) -> np.ndarray:
    return np.loadtxt(path, delimiter=",", skiprows=1)


def test_g_of_an_ideal_gas_is_one_within_its_errors(tmp_path: Path) -> None:
    positions = np.random.default_rng(0).uniform(0, 20, (200, 50, 3))
    dump(tmp_path / "a.dump", positions, 20.0)
    run = run_of(tmp_path)
    found = rdf.plain_function(run=run, **RDF)
    r, g, error, _ = table(run.workdir / "rdf.csv").T
    far = r > 2  # nearer there are few pairs
    assert abs(g[far].mean() - 1) < 0.01
    assert 0.5 < np.std((g[far] - 1) / error[far]) < 1.5
    assert found.metrics["number_density"] == pytest.approx(50 / 8000)
    assert "first_peak" not in found.metrics and "no first shell" in " ".join(found.notes)


def test_g_of_an_ideal_gas_in_two_dimensions_is_one_within_its_errors(tmp_path: Path) -> None:
    positions = np.random.default_rng(4).uniform(0, 20.0, (150, 80, 3))
    positions[:, :, 2] = 1.0
    positions[:, :, 1] *= 1.2
    dump(tmp_path / "a.dump", positions, np.array([20.0, 24.0, 2.0]))
    found = rdf.plain_function(run=run_of(tmp_path), **{**RDF, "bins": 50})
    r, g, error, around = table(next(tmp_path.glob("work-*/rdf.csv"))).T
    assert r[-1] == pytest.approx(0.48 * 20, abs=0.2)
    assert found.metrics["areal_density"] == pytest.approx(80 / 480)
    assert "number_density" not in found.metrics
    far = r > 1.0
    misses = (g[far] - 1.0) / error[far]
    assert np.abs(misses).max() < 4.5 and 0.6 < np.sqrt(np.mean(misses**2)) < 1.5
    # 2 pi rho r dr for 79 others.
    assert around[-1] == pytest.approx(79 / 480 * np.pi * (r[-1] + 0.5 * (r[1] - r[0])) ** 2, rel=0.02)


def test_each_atom_of_a_triangular_lattice_has_six_neighbours(tmp_path: Path) -> None:
    a = 3.0
    i, j = np.meshgrid(np.arange(8), np.arange(8))
    rng = np.random.default_rng(0)
    upright = np.stack([(i + 0.5 * (j % 2)) * a, j * a * 0.75**0.5, 0.0 * i], axis=-1).reshape(-1, 3)
    positions = upright + rng.normal(0, 0.03, (20, 64, 3)) * [1, 1, 0]
    dump(tmp_path / "a.dump", positions, np.array([8 * a, 8 * a * 0.75**0.5, 1.0]))
    found = rdf.plain_function(run=run_of(tmp_path), **{**RDF, "bins": 100})
    assert found.metrics["first_peak"] == pytest.approx(a, abs=0.1)
    assert found.metrics["coordination_number"] == pytest.approx(6.0, abs=1e-6)
    found = coordination.plain_function(run=run_of(tmp_path), **{**COUNT, "cutoff": 1.2 * a})
    assert (found.metrics["coordination_number"], found.metrics["coordination_spread"]) == (6.0, 0.0)
    # The same lattice in its own tilted cell, turned by 0.3 in the plane and mirrored.
    for mirror in (1.0, -1.0):
        turn = np.array(
            [[np.cos(0.3), np.sin(0.3), 0], [-mirror * np.sin(0.3), mirror * np.cos(0.3), 0], [0, 0, 1]]
        )
        cell = np.array([[8 * a, 0, 0], [4 * a, 8 * a * 0.75**0.5, 0], [0, 0, 1.0]]) @ turn
        tilted = np.stack([(i + 0.5 * j) * a, j * a * 0.75**0.5, 0.0 * i], axis=-1).reshape(-1, 3) @ turn
        from ase import Atoms
        from ase.io import write

        frames = [Atoms("Ar64", tilted, cell=cell, pbc=True) for _ in range(3)]
        write(tmp_path / "b.extxyz", frames)
        found = rdf.plain_function(run=run_of(tmp_path, upstream(tmp_path, "b.extxyz")), **{**RDF, "bins": 100})
        assert found.metrics["coordination_number"] == pytest.approx(6.0, abs=1e-6)
        assert found.metrics["areal_density"] == pytest.approx(2 / 3**0.5 / a**2)


def test_each_atom_of_fcc_has_twelve_neighbours_at_a_over_the_root_of_two(tmp_path: Path) -> None:
    a = 3.61
    dump(tmp_path / "a.dump", *fcc(a, 4, 5, rattle=0.08), element="Cu")
    run = run_of(tmp_path)
    found = rdf.plain_function(run=run, **{**RDF, "bins": 140})
    assert found.metrics["first_peak"] == pytest.approx(a / np.sqrt(2), abs=0.05)
    assert found.metrics["coordination_number"] == pytest.approx(12, abs=0.05)
    assert a / np.sqrt(2) < found.metrics["first_minimum"] < a
    # n(r) within 1.1 a, beyond the second shell: 12 + 6.
    r, _, _, within = table(run.workdir / "rdf.csv").T
    assert within[np.searchsorted(r, 1.1 * a)] == pytest.approx(18, abs=0.1)
    counted = coordination.plain_function(run=run_of(tmp_path), **COUNT)
    assert counted.metrics["coordination_number"] == pytest.approx(12, abs=0.05)
    counted = coordination.plain_function(run=run_of(tmp_path), **{**COUNT, "cutoff": 1.1 * a})
    assert counted.metrics["coordination_number"] == pytest.approx(18, abs=0.1)


def test_pairs_of_rocksalt_are_counted_by_species(tmp_path: Path) -> None:
    from ase.build import bulk

    atoms = bulk("NaCl", "rocksalt", a=5.64, cubic=True) * (3, 3, 3)
    positions = atoms.positions + np.random.default_rng(2).normal(0, 0.05, (4, len(atoms), 3))
    dump(tmp_path / "a.dump", positions, 3 * 5.64, element=atoms.get_chemical_symbols())
    expected = {("Na", "Cl"): (6, 2.82), ("Na", "Na"): (12, 5.64 / np.sqrt(2)), ("", "Cl"): (3, 2.82)}
    for (a, b), (neighbors, distance) in expected.items():
        found = rdf.plain_function(run=run_of(tmp_path), **{**RDF, "a": a, "b": b})
        assert found.metrics["coordination_number"] == pytest.approx(neighbors, abs=0.02), (a, b)
        assert found.metrics["first_peak"] == pytest.approx(distance, abs=0.06)
        counted = coordination.plain_function(run=run_of(tmp_path), **{**COUNT, "a": a, "b": b})
        assert counted.metrics["coordination_number"] == pytest.approx(neighbors, abs=0.02)
    assert found.metrics["number_density"] == pytest.approx(4 / 5.64**3)


def test_g_in_a_tilted_cell_is_that_of_the_same_crystal_in_an_upright_one(tmp_path: Path) -> None:
    import ase.io
    from ase.build import bulk

    rng = np.random.default_rng(5)
    atoms = bulk("Cu", "fcc", a=3.61, cubic=True) * (4, 4, 4)
    atoms.positions += rng.normal(0, 0.1, atoms.positions.shape)
    tilted = atoms.copy()
    cell = atoms.cell[:].copy()
    cell[1] += cell[0]  # the same lattice
    cell[2] -= cell[1] - cell[0]
    tilted.set_cell(cell)
    tilted.rotate(37, (1, 2, 3), rotate_cell=True)
    ase.io.write(tmp_path / "upright.traj", atoms)
    ase.io.write(tmp_path / "tilted.traj", tilted)
    tables = []
    for name in ("upright.traj", "tilted.traj"):
        run = run_of(tmp_path, upstream(tmp_path, name))
        rdf.plain_function(run=run, **{**RDF, "r_max": 4.0})
        tables.append(table(run.workdir / "rdf.csv"))
    # freud has single precision: a pair may fall into the next interval.
    assert np.abs(tables[0][:, 3] - tables[1][:, 3]).max() < 0.02


def test_the_volume_of_each_frame_counts(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    edges = np.linspace(20, 30, 200)
    positions = rng.uniform(0, 1, (200, 60, 3)) * edges[:, None, None]
    dump(tmp_path / "a.dump", positions, np.repeat(edges[:, None], 3, axis=1))
    run = run_of(tmp_path)
    rdf.plain_function(run=run, **{**RDF, "bins": 20})
    r, g, _, _ = table(run.workdir / "rdf.csv").T
    assert abs(g[r > 3].mean() - 1) < 0.01


def test_a_radius_beyond_half_of_the_cell_is_refused(tmp_path: Path) -> None:
    dump(tmp_path / "a.dump", *fcc(4.0, 2, 2))
    for app, params in ((rdf, {**RDF, "r_max": 4.1}), (coordination, {**COUNT, "cutoff": 4.1})):
        with pytest.raises(AppFailed) as failed:
            app.plain_function(run=run_of(tmp_path), **params)
        assert failed.value.name == "CellTooSmall" and "4" in failed.value.repair


def test_an_unknown_species_and_an_open_cell_are_refused(tmp_path: Path) -> None:
    dump(tmp_path / "a.dump", *fcc(4.0, 3, 2))
    with pytest.raises(AppFailed, match="Xe") as failed:
        rdf.plain_function(run=run_of(tmp_path), **{**RDF, "a": "Xe"})
    assert failed.value.name == "NoSuchSpecies"
    dump(tmp_path / "a.dump", *fcc(4.0, 3, 2), pbc="ff")
    with pytest.raises(AppFailed) as failed:
        rdf.plain_function(run=run_of(tmp_path), **RDF)
    assert failed.value.name == "NotPeriodic"


def test_neighbours_in_a_cluster_and_a_slab_are_counted_without_images(tmp_path: Path) -> None:
    import ase.io
    from ase.build import fcc111
    from ase.cluster import Icosahedron

    # 13 atoms: the middle one has 12 neighbours, each of the others 5 and the middle one.
    ase.io.write(tmp_path / "cluster.traj", Icosahedron("Cu", 2))
    found = coordination.plain_function(
        run=run_of(tmp_path, upstream(tmp_path, "cluster.traj")), **{**COUNT, "cutoff": 3.0}
    )
    assert found.metrics["coordination_number"] == pytest.approx((12 + 12 * 6) / 13)
    # Three layers: 9 neighbours on either surface, 12 within.
    ase.io.write(tmp_path / "slab.traj", fcc111("Cu", (4, 4, 3), vacuum=None, periodic=False))
    found = coordination.plain_function(
        run=run_of(tmp_path, upstream(tmp_path, "slab.traj")), **{**COUNT, "cutoff": 3.0}
    )
    assert found.metrics["coordination_number"] == pytest.approx((9 + 12 + 9) / 3)


def test_every_and_discard_choose_frames(tmp_path: Path) -> None:
    dump(tmp_path / "a.dump", *fcc(4.0, 3, 20, 0.1))
    found = rdf.plain_function(run=run_of(tmp_path), **{**RDF, "discard": 0.5, "every": 3})
    assert found.metrics["n_frames"] == 4
    with pytest.raises(AppFailed) as failed:
        rdf.plain_function(run=run_of(tmp_path), **{**RDF, "discard": 0.95 + 0.049})
    assert failed.value.name == "TooFewFrames"


@pytest.mark.skipif(importlib.util.find_spec("mpi4py") is None, reason="no mpi4py")
def test_two_ranks_count_what_one_counts_to_the_last_bit(tmp_path: Path) -> None:
    dump(tmp_path / "a.dump", *fcc(4.0, 3, 23, 0.1))
    runs = [run_of(tmp_path), run_of(tmp_path, ranks=2)]
    for app, params in ((rdf, RDF), (coordination, COUNT)):
        alone, shared = (
            app.plain_function(run=run, **{**params, "ranks": ranks})
            for run, ranks in zip(runs, (1, 2), strict=True)
        )
        assert alone.metrics == shared.metrics and alone.uncertainty == shared.uncertainty
    assert (runs[0].workdir / "rdf.csv").read_bytes() == (runs[1].workdir / "rdf.csv").read_bytes()


@pytest.mark.skipif(importlib.util.find_spec("mpi4py") is None, reason="no mpi4py")
def test_a_failure_on_one_of_two_ranks_is_the_failure_of_the_run(tmp_path: Path) -> None:
    positions, edge = fcc(4.0, 3, 6)
    text = dump(tmp_path / "a.dump", positions, edge).read_text()
    last = text.index("ITEM: TIMESTEP\n4\n")
    (tmp_path / "a.dump").write_text(text[:last] + text[last:].replace(" Ar 0 0 0\n", " Ar nan 0 0\n"))
    with pytest.raises(AppFailed, match="not finite") as failed:
        rdf.plain_function(run=run_of(tmp_path, ranks=2), **{**RDF, "ranks": 2})
    assert failed.value.name == "BadTrajectory" and failed.value.kind == "contract"


def test_the_limit_of_a_jump_is_below_half_a_cell() -> None:
    assert FARTHEST < 0.5


def test_a_flat_first_minimum_does_not_jump_by_whole_intervals() -> None:
    # As liquid argon at 190 K has it: within 0.01 over three intervals of 0.11 angstrom, the true minimum at 5.35.
    r = 0.1133 * (np.arange(100) + 0.5)
    wave = 0.72 + 0.19 * (r - 5.35) ** 2
    g = np.where(np.abs(r - 5.35) < 1.4, wave, 1.0 + 1.4 * np.exp(-(((r - 3.75) / 0.15) ** 2)) * (r < 5.0))
    noise = np.full(100, 0.007)
    rng = np.random.default_rng(4)
    minima, errors = [], []
    for _ in range(40):
        seen = g + noise * rng.normal(size=100)
        minima.append(peaks(r, seen, noise)[1])
        errors.append(np.std([m for _, m in _redrawn(r, seen, noise)[:60] if m is not None]))
    assert None not in minima
    off = np.abs(np.array(minima, float) - 5.35)
    assert np.sqrt(np.mean(off**2)) < 0.05
    assert np.mean(off <= 2 * np.array(errors)) >= 0.95


def test_the_first_minimum_has_the_error_with_which_it_scatters() -> None:
    # g(r) = 1 + cos-like shells; its noise of 0.01 in each interval moves a flat minimum and hardly the sharp maximum.
    r = 0.05 + 0.1 * np.arange(100)
    g = np.where(
        r < 3.2, 0.0, 1 + 1.6 * np.exp(-(((r - 3.7) / 0.3) ** 2)) - 0.4 * np.exp(-(((r - 5.3) / 0.7) ** 2))
    )
    g += 0.2 * np.exp(-(((r - 7.0) / 0.5) ** 2))
    noise = np.full(100, 0.01)
    rng = np.random.default_rng(5)
    found = [peaks(r, g + noise * rng.normal(size=100), noise) for _ in range(60)]
    others = _redrawn(r, g + noise * rng.normal(size=100), noise)
    for pick in (lambda one: one[0][0], lambda one: one[1]):
        assert 0.5 < np.std([pick(o) for o in others]) / np.std([pick(f) for f in found]) < 2.0
    assert np.std([o[1] for o in others]) > 3 * np.std([o[0][0] for o in others])
