"""The parts of the solver: stray field, exchange, minima, dynamics, materials, bodies."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from hpcagent.errors import AppFailed
from hpcagent.science.micromagnetics import llg, newell
from hpcagent.science.micromagnetics.body import Body, Grains, direction, grid, made
from hpcagent.science.micromagnetics.field import Magnet
from hpcagent.science.micromagnetics.llg import GYROMAGNETIC, evolve
from hpcagent.science.micromagnetics.material import MU0, Material, material_at, reduced_magnetization
from hpcagent.science.micromagnetics.relax import relax

PERMALLOY = Material(8e5, 1.3e-11, 0.0)
Z = np.array([0.0, 0.0, 1.0])


def block(counts, cell=(1e-9, 1e-9, 1e-9), form="block", grains=None, seed=(0,)) -> Body:
    size = tuple(n * edge for n, edge in zip(counts, cell, strict=True))
    return made(form, size, counts, Z, grains, seed)


# ---- the demagnetising tensor


def aharoni(a: float, b: float, c: float) -> float:
    """Factor along the third edge of a block, edges 2a x 2b x 2c: A. Aharoni, J. Appl. Phys. 83, 3432 (1998)."""
    ab, bc, ca = math.hypot(a, b), math.hypot(b, c), math.hypot(c, a)
    r = math.sqrt(a * a + b * b + c * c)
    log = math.log
    return (
        (b * b - c * c) / (2 * b * c) * log((r - a) / (r + a))
        + (a * a - c * c) / (2 * a * c) * log((r - b) / (r + b))
        + b / (2 * c) * log((ab + a) / (ab - a))
        + a / (2 * c) * log((ab + b) / (ab - b))
        + c / (2 * a) * log((bc - b) / (bc + b))
        + c / (2 * b) * log((ca - a) / (ca + a))
        + 2 * math.atan(a * b / (c * r))
        + (a**3 + b**3 - 2 * c**3) / (3 * a * b * c)
        + (a * a + b * b - 2 * c * c) / (3 * a * b * c) * r
        + c / (a * b) * (ca + bc)
        - (ab**3 + bc**3 + ca**3) / (3 * a * b * c)
    ) / math.pi


@pytest.mark.parametrize("edges", [(1.0, 1.0, 1.0), (5.0, 5.0, 3.0), (2.0, 7.0, 1.0), (100.0, 25.0, 1.0)])
def test_blocks_have_the_factors_of_aharonis_formula(edges):
    a, b, c = edges
    found = newell.demag_factors(edges)
    assert found == pytest.approx([aharoni(b, c, a), aharoni(c, a, b), aharoni(a, b, c)], abs=1e-11)
    assert sum(found) == pytest.approx(1.0, abs=1e-13)


def test_a_cube_has_a_third_along_each_edge_and_a_thin_plate_all_of_it_across():
    assert newell.demag_factors((2.0, 2.0, 2.0)) == pytest.approx([1 / 3] * 3, abs=1e-14)
    assert newell.demag_factors((1e4, 1e4, 1.0))[2] == pytest.approx(1.0, abs=1e-3)
    assert newell.demag_factors((1.0, 1.0, 1e4))[2] == pytest.approx(0.0, abs=1e-4)


def face_to_face(n: tuple[int, int, int], cell: tuple[float, float, float], points: int = 24) -> float:
    """N_zz of two blocks by the charges of their faces: 1/(4 pi V) sum of +- int int dS dS' / distance."""
    grid_, weight = np.polynomial.legendre.leggauss(points)
    triangle = (grid_ + 1) / 2, weight / 2  # of |u - u'|, whose density is 2 (1 - t), on both sides
    a, b, c = cell
    total = 0.0
    for sign, dz in ((2.0, n[2] * c), (-1.0, (n[2] + 1) * c), (-1.0, (n[2] - 1) * c)):
        for u, wu in zip(*triangle, strict=True):
            for v, wv in zip(*triangle, strict=True):
                for sx in (-1, 1):
                    for sy in (-1, 1):
                        x, y = (n[0] + sx * u) * a, (n[1] + sy * v) * b
                        total += sign * wu * (1 - u) * wv * (1 - v) / math.sqrt(x * x + y * y + dz * dz)
    return total * (a * b) ** 2 / (4 * math.pi * a * b * c)


@pytest.mark.parametrize("n", [(2, 0, 3), (3, 2, 4), (0, 4, 2)])
def test_the_tensor_between_cells_is_that_of_the_charges_on_their_faces(n):
    cell = (1.0, 0.8, 0.5)
    tensor = newell.demag_tensor((5, 5, 5), cell)
    assert tensor[2][n] == pytest.approx(face_to_face(n, cell), rel=1e-7)


def test_far_away_the_tensor_is_a_dipoles_and_joins_newells_formula():
    """Also where the differences of Newell's formula cancel; its trace is 0 but for the cell itself."""
    tensor = newell.demag_tensor((300, 20, 12), (1.0, 1.0, 0.6))
    x, y, z = 299.0, 10.0, 10 * 0.6
    r = math.sqrt(x * x + y * y + z * z)
    dipole = [(r * r - 3 * x * x), (r * r - 3 * y * y), (r * r - 3 * z * z), -3 * x * y, -3 * x * z, -3 * y * z]
    assert tensor[:, 299, 10, 10] == pytest.approx(np.array(dipole) * 0.6 / (4 * math.pi * r**5), rel=2e-5)
    trace = tensor[:3].sum(axis=0)
    assert trace[0, 0, 0] == pytest.approx(1.0, abs=1e-14)
    trace[0, 0, 0] = 0.0
    assert np.abs(trace).max() < 1e-14
    # Both ways, on either side of the border.
    axis = np.arange(8, 13).astype(float)
    both = newell._averaged_dipole(axis, 0 * axis + 2, 0 * axis + 0.6, (1.0, 1.0, 0.6), 6)
    exact = newell._differences((13, 3, 2), (1.0, 1.0, 0.6))[:, 8:13, 2, 1]
    assert both == pytest.approx(exact, rel=1e-10)


def test_negative_distances_have_the_field_of_their_mirror_image():
    """Where arctan2 takes the place of arctan it has not. Two cells, one magnetised askew."""
    magnet = Magnet(block((3, 3, 3)), PERMALLOY)
    tensor = newell.demag_tensor((3, 3, 3), (1.0, 1.0, 1.0))
    for place in ((0, 0, 0), (2, 0, 2), (0, 2, 0)):
        m = np.zeros((3, 3, 3, 3))
        m[(slice(None), *place)] = (0.36, 0.48, 0.8)
        field = magnet.stray(m)
        for at in np.ndindex(3, 3, 3):
            d = np.array(at) - place
            s = np.sign(d) + (d == 0)
            xx, yy, zz, xy, xz, yz = tensor[(slice(None), *np.abs(d))]
            xy, xz, yz = xy * s[0] * s[1], xz * s[0] * s[2], yz * s[1] * s[2]
            n = np.array([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]])
            expected = -MU0 * PERMALLOY.ms * n @ (0.36, 0.48, 0.8)
            assert field[(slice(None), *at)] == pytest.approx(expected, abs=1e-12)


def test_the_energy_of_a_divided_block_is_that_of_the_whole():
    whole = newell.demag_factors((6.0, 4.0, 2.0))
    magnet = Magnet(block((6, 4, 2)), PERMALLOY)
    for axis in range(3):
        energy = magnet.energies(magnet.body.uniform(np.eye(3)[axis]), np.zeros(3)).demagnetization
        assert energy == pytest.approx(0.5 * MU0 * PERMALLOY.ms**2 * whole[axis], rel=1e-10)


def test_a_sphere_of_cells_has_a_third_and_a_long_ellipsoid_osborns_factor():
    sphere = Magnet(block((16, 16, 16), form="ellipsoid"), PERMALLOY)
    scale = 0.5 * MU0 * PERMALLOY.ms**2
    for towards in (Z, np.array([1.0, 1.0, 1.0])):
        energy = sphere.energies(sphere.body.uniform(towards), np.zeros(3)).demagnetization
        assert energy / scale == pytest.approx(1 / 3, abs=0.002)
    # J. A. Osborn, Phys. Rev. 67, 351 (1945): axes in the ratio 2, N = 0.1736 along the long one.
    e = math.sqrt(1 - 1 / 4)
    osborn = (1 - e**2) / e**2 * (math.log((1 + e) / (1 - e)) / (2 * e) - 1)
    assert osborn == pytest.approx(0.1736, abs=5e-5)
    long = Magnet(block((24, 24, 48), form="ellipsoid"), PERMALLOY)
    energy = long.energies(long.body.uniform(Z), np.zeros(3)).demagnetization
    assert energy / scale == pytest.approx(osborn, abs=0.005)


# ---- fields and energies


def test_the_field_is_the_derivative_of_the_energy():
    rng = np.random.default_rng(1)
    material = Material(6e5, 2e-11, 3e5)
    body = block((4, 3, 2), form="cylinder", grains=Grains(2e-9, 40.0, 0.3))
    magnet = Magnet(body, material)
    m = body.normalized(rng.normal(size=(3, 4, 3, 2)))
    applied = np.array([0.1, -0.2, 0.3])
    field, *_ = magnet.field_and_energy(m, applied)
    assert field == pytest.approx(magnet.field(m, applied))
    for place in ((1, 1, 0), (2, 1, 1)):
        assert body.inside[place]
        for axis in range(3):
            up, down = m.copy(), m.copy()
            up[(axis, *place)] += 1e-4
            down[(axis, *place)] -= 1e-4
            slope = (magnet.energies(up, applied).total - magnet.energies(down, applied).total) / 2e-4
            assert field[(axis, *place)] == pytest.approx(-slope * body.n_cells / material.ms, rel=1e-6)


def test_exchange_of_a_spiral_is_that_of_its_wave():
    """A (grad m)^2 = A q^2, on a grid 2 A (1 - cos(q d)) / d^2 for each pair of neighbours."""
    q, d = 2 * math.pi / 20e-9, 1e-9
    body = block((40, 1, 1))
    x = np.arange(40) * d
    m = np.zeros((3, 40, 1, 1))
    m[0, :, 0, 0], m[1, :, 0, 0] = np.cos(q * x), np.sin(q * x)
    energy = Magnet(body, PERMALLOY).energies(m, np.zeros(3)).exchange
    assert energy == pytest.approx(39 / 40 * 2 * 1.3e-11 * (1 - math.cos(q * d)) / d**2, rel=1e-10)
    assert energy == pytest.approx(1.3e-11 * q**2, rel=0.05)


def test_grains_that_are_not_coupled_have_no_exchange_between_them():
    material = Material(8e5, 1e-11, 0.0)
    loose, tight = (block((8, 8, 8), grains=Grains(4e-9, 90.0, c), seed=(3,)) for c in (0.0, 1.0))
    assert loose.n_grains == tight.n_grains > 3
    m = np.moveaxis(np.random.default_rng(0).normal(size=(1000, 3))[loose.grain], -1, 0)
    m = loose.normalized(m)  # each grain in a direction of its own
    assert Magnet(loose, material).energies(m, np.zeros(3)).exchange == pytest.approx(0.0, abs=1e-6)
    assert Magnet(tight, material).energies(m, np.zeros(3)).exchange > 1e5


def test_axes_of_grains_lie_evenly_in_their_cone():
    body = block((30, 30, 30), grains=Grains(1.5e-9, 60.0, 1.0))
    axes = {tuple(a) for a in np.moveaxis(body.axes, 0, -1).reshape(-1, 3)}
    cosines = np.array([a[2] for a in axes])
    assert cosines.min() >= 0.5 - 1e-12
    # Evenly over the solid angle is evenly in the cosine: mean (1 + 0.5) / 2, deviation 0.5 / sqrt(12).
    assert cosines.mean() == pytest.approx(0.75, abs=4 * 0.5 / math.sqrt(12 * len(axes)))
    assert block((6, 6, 6), grains=Grains(2e-9, 60.0, 1.0), seed=(1,)).axes[2].std() > 0
    assert np.array_equal(
        block((6, 6, 6), grains=Grains(2e-9, 60.0, 1.0), seed=(1,)).axes,
        block((6, 6, 6), grains=Grains(2e-9, 60.0, 1.0), seed=(1,)).axes,
    )


# ---- states at rest


def test_a_wall_has_the_energy_and_width_of_bloch():
    """E = 4 sqrt(A K) an area and m_z = -tanh(x / sqrt(A/K)), of a wall in a long rod whose ends hold it."""
    material = Material(1e4, 1e-11, 1e5)  # a weak stray field: 2 K / (mu0 Ms^2) is 1600
    width = math.sqrt(1e-11 / 1e5)
    cell = width / 10
    body = block((160, 1, 1), (cell, cell, cell))
    m = body.uniform(Z)
    m[2, 80:] *= -1
    m[0, 79:81, 0, 0] = 1.0
    rest = relax(Magnet(body, material), body.normalized(m), np.zeros(3), tolerance=1e-5, max_steps=20000)
    energies = Magnet(body, material).energies(rest.m, np.zeros(3))
    wall = (energies.exchange + energies.anisotropy) * 160 * cell
    assert wall == pytest.approx(4 * math.sqrt(1e-11 * 1e5), rel=0.01)
    x = (np.arange(160) - 79.5) * cell
    assert rest.m[2, :, 0, 0] == pytest.approx(-np.tanh(x / width), abs=0.01)


def test_a_minimum_that_is_not_reached_is_a_failure():
    body = block((4, 4, 1), (3e-9, 3e-9, 3e-9))
    m = body.normalized(np.random.default_rng(0).normal(size=(3, 4, 4, 1)))
    with pytest.raises(AppFailed, match="not converged in 3 steps") as failed:
        relax(Magnet(body, PERMALLOY), m, np.zeros(3), tolerance=1e-9, max_steps=3)
    assert failed.value.name == "NotConverged"


def test_a_step_that_would_raise_the_energy_is_taken_back(monkeypatch):
    body = block((8, 8, 1), (4e-9, 4e-9, 4e-9))
    magnet = Magnet(body, PERMALLOY)
    tried = []
    inner = magnet.field_and_energy

    def recorded(m, b):
        found = inner(m, b)
        tried.append((m, found[1]))
        return found

    monkeypatch.setattr(magnet, "field_and_energy", recorded)
    m = body.normalized(np.random.default_rng(0).normal(size=(3, 8, 8, 1)))
    rest = relax(magnet, m, np.zeros(3), tolerance=1e-7, max_steps=5000)
    assert rest.torque <= 1e-7
    at, lowest = tried[0]
    refused = 0
    for (new, energy), (following, _) in itertools.pairwise(tried[1:]):
        if energy > lowest + 1e-4 * abs(lowest):
            refused += 1
            # A quarter of the step, from where it began.
            assert np.linalg.norm(following - at) == pytest.approx(0.25 * np.linalg.norm(new - at), rel=0.2)
        elif energy <= lowest:
            at, lowest = new, energy
    assert refused > 0
    assert np.array_equal(rest.m, tried[-1][0])


# ---- dynamics


def follow(magnet, m, applied, **given):
    given = {"tolerance": 1e-7, "largest_step": 1e-11, "max_steps": 10000, "g_factor": 2.0} | given
    return list(evolve(magnet, m, lambda _: applied, **given))


def test_a_moment_turns_with_larmors_frequency_and_falls_as_mallinson_says():
    """theta: tan(theta/2) falls as exp(-alpha gamma B t / (1 + alpha^2)); J. C. Mallinson, IEEE Trans. Magn. 36 (2000)."""
    magnet = Magnet(block((1, 1, 1)), Material(1e3, 1e-11, 0.0))  # a cube: its stray field has no torque
    start = direction(60.0, 0.0).reshape(3, 1, 1, 1)
    field, alpha, time = 0.5, 0.1, 0.05e-9
    end = follow(magnet, start, field * Z, damping=alpha, duration=time)[-1]
    assert end.time == pytest.approx(time)
    rate = 2.0 * GYROMAGNETIC * field / (1 + alpha**2)
    theta = 2 * math.atan(math.tan(math.radians(30)) * math.exp(-alpha * rate * time))
    phi = rate * time
    expected = [math.sin(theta) * math.cos(phi), math.sin(theta) * math.sin(phi), math.cos(theta)]
    assert end.m.ravel() == pytest.approx(expected, abs=1e-5)
    assert pytest.approx(2.2102e5, rel=1e-4) == 2.0 * GYROMAGNETIC * MU0  # m/(A s), of g = 2


def test_without_damping_the_energy_stays_and_a_smaller_error_keeps_lengths_better():
    body = block((4, 4, 1), (4e-9, 4e-9, 4e-9))
    magnet = Magnet(body, PERMALLOY)
    m = body.normalized(Z.reshape(3, 1, 1, 1) + 0.3 * np.random.default_rng(0).normal(size=(3, 4, 4, 1)))
    worst = []
    for tolerance in (1e-4, 1e-7):
        moments = follow(magnet, m, 0.1 * Z, damping=0.0, duration=2e-11, tolerance=tolerance)
        worst.append(max(q.norm_error for q in moments))
        first, last = (magnet.energies(q.m, 0.1 * Z).total for q in (moments[0], moments[-1]))
        assert last == pytest.approx(first, rel=20 * tolerance)
        assert np.sqrt((moments[-1].m ** 2).sum(axis=0)) == pytest.approx(1.0, abs=1e-12)
    assert worst[1] < worst[0] / 50


def test_a_step_over_a_sudden_field_is_taken_back():
    """Without a field nothing moves and steps grow; then a moment turns for 30 ps in 1 T."""
    magnet = Magnet(block((1, 1, 1)), Material(1e3, 1e-11, 0.0))
    moments = list(
        evolve(
            magnet,
            magnet.body.uniform(np.array([1.0, 0.0, 0.0])),
            lambda t: Z if t > 70e-12 else 0.0 * Z,
            duration=100e-12,
            damping=0.0,
            g_factor=2.0,
            tolerance=1e-6,
            largest_step=1e-10,
            max_steps=10000,
        )
    )
    angle = 2.0 * GYROMAGNETIC * 30e-12
    assert moments[-1].m.ravel() == pytest.approx([math.cos(angle), math.sin(angle), 0.0], abs=1e-4)
    assert moments[-1].refused > 0


def test_the_coefficients_of_dormand_and_prince_belong_together():
    """Rows add up to the times of their stages, the error's to 0: a constant rate has none."""
    assert [sum(row) for row in llg._A] == pytest.approx([1 / 5, 3 / 10, 4 / 5, 8 / 9, 1, 1], abs=1e-14)
    assert sum(llg._E) == pytest.approx(0.0, abs=1e-15)
    # A rate that grows as t^n, n up to 3, has no error of order 4 either.
    times = [0.0, *(sum(row) for row in llg._A)]
    for n in (1, 2, 3):
        assert sum(e * t**n for e, t in zip(llg._E, times, strict=True)) == pytest.approx(0.0, abs=1e-15)


def test_a_field_that_is_no_number_and_too_few_steps_are_failures():
    magnet = Magnet(block((2, 1, 1)), PERMALLOY)
    m = magnet.body.uniform(np.array([1.0, 0.1, 0.0]))
    with pytest.raises(AppFailed) as failed:
        follow(magnet, m, np.array([np.nan, 0.0, 0.0]), damping=0.1, duration=1e-9)
    assert failed.value.name == "Unstable"
    with pytest.raises(AppFailed, match="of 1 ns") as failed:
        follow(magnet, m, Z, damping=0.1, duration=1e-9, max_steps=5)
    assert failed.value.name == "TooManySteps"


# ---- materials and grids


def test_kuzmins_law_has_the_magnetisation_of_iron():
    """At 293 K iron has 0.978 +- 0.005 of its magnetisation at 0 K (1.713e6 of 1.752e6 A/m)."""
    assert reduced_magnetization(293.0, 1044.0, 0.35, 4.0) == pytest.approx(0.978, abs=0.005)
    assert reduced_magnetization(1043.9, 1044.0, 0.35, 4.0) < 0.1


def test_constants_go_to_another_temperature_by_the_law_only():
    given = Material(1e6, 1e-11, 1e6)
    same, _ = material_at(given, 300.0, 300.0, "none", None, None, None)
    assert same == given
    there, said = material_at(given, 500.0, 300.0, "kuzmin", 1000.0, 1.0, 2.5)
    ratio = ((1 - 0.5**1.5) / (1 - 0.3**1.5)) ** (1 / 3)
    assert (there.ms, there.exchange, there.anisotropy) == pytest.approx(
        (1e6 * ratio, 1e-11 * ratio**2, 1e6 * ratio**3)
    )
    assert "assumed" in said
    for temperature, law in ((310.0, "none"), (1000.0, "kuzmin"), (1200.0, "kuzmin")):
        with pytest.raises(AppFailed) as failed:
            material_at(given, temperature, 300.0, law, 1000.0, 1.0, 2.5)
        assert failed.value.name == "UnknownTemperature"


def test_cells_are_no_longer_than_the_exchange_length():
    assert PERMALLOY.exchange_length == pytest.approx(5.69e-9, rel=1e-3)  # of muMAG's standard problem 4
    assert grid((500e-9, 125e-9, 3e-9), 5e-9, PERMALLOY) == (100, 25, 1)
    with pytest.raises(AppFailed, match="exchange length") as failed:
        grid((500e-9, 125e-9, 3e-9), 10e-9, PERMALLOY)
    assert failed.value.name == "CellTooLarge"
    with pytest.raises(AppFailed) as failed:
        grid((5e-6, 5e-6, 1e-6), 5e-9, PERMALLOY)
    assert failed.value.name == "TooManyCells"
