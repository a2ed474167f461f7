"""A table of real LAMMPS runs: how cutoff, accuracy and solver trade speed for force error in hot rock salt.

512 ions of NaCl (I. S. Joung, T. E. Cheatham, J. Phys. Chem. B 112, 9020, 2008), each displaced by up to 0.3 angstrom,
with a Lennard-Jones cutoff of 8 angstrom throughout, so that only the electrostatics changes. The force error is
rms(force - converged force) / rms(converged force) on the first step; it is the same in every repeat. Speeds are
steps per second of CPU time, relative to a reference run every few runs, because machines change speed; the median of
three repeats, each in another order, counts.

    python benchmarks/nacl_ewald_grid.py            measure the table (benchmarks/nacl_ewald_grid.csv, ten minutes)
    python benchmarks/nacl_ewald_grid.py --answer   what the table says is best
"""

from __future__ import annotations

import argparse
import csv
import math
import random
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

TABLE = Path(__file__).with_suffix(".csv")
CUTOFFS = (5.0, 6.0, 7.0, 8.0, 9.0, 10.5, 12.0)
ACCURACIES = (3e-6, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
# Solver -> (ending of the pair style, kspace style, order of the interpolation).
SOLVERS = {
    "pppm5": ("long", "pppm", 5),
    "pppm7": ("long", "pppm", 7),
    "ewald": ("long", "ewald", 5),
    "msm": ("msm", "msm", 10),
}
REFERENCE = (10.0, 1e-4, "pppm5")
EVERY = 7  # runs between two references
STEPS = 100
REPEATS = 3
LONGEST_S = 60.0
LIMIT = 1e-3

SCRIPT = """
units           real
atom_style      charge
lattice         custom 5.64 a1 1 0 0 a2 0 1 0 a3 0 0 1 &
                basis 0 0 0 basis 0.5 0.5 0 basis 0.5 0 0.5 basis 0 0.5 0.5 &
                basis 0.5 0 0 basis 0 0.5 0 basis 0 0 0.5 basis 0.5 0.5 0.5
region          box block 0 4 0 4 0 4
create_box      2 box
create_atoms    1 box basis 5 2 basis 6 2 basis 7 2 basis 8 2
mass            1 22.99
mass            2 35.453
set             type 1 charge 1.0
set             type 2 charge -1.0
pair_style      lj/cut/coul/${pair} 8.0 ${cutoff}
pair_modify     mix arithmetic
neigh_modify    one 4000
pair_coeff      1 1 0.3526418 2.1595
pair_coeff      2 2 0.0127850 4.8305
kspace_style    ${style} ${accuracy}
kspace_modify   order ${order}
displace_atoms  all random 0.3 0.3 0.3 4711 units box
velocity        all create 1200.0 4711
fix             move all nve
timestep        0.5
thermo          ${steps}
dump            forces all custom 1000000 forces.txt id fx fy fz
dump_modify     forces sort id format float %.10g
run             0
undump          forces
run             ${steps}
"""


def measured(
    cutoff: float, accuracy: float, solver: str, folder: Path, steps: int = STEPS
) -> tuple[float, np.ndarray]:
    """Run LAMMPS: (steps per second of CPU time, forces on the first step in kcal/mol/angstrom).

    Raises:
        RuntimeError: LAMMPS stopped with an error.
        subprocess.TimeoutExpired: It took longer than a minute.
    """
    pair, style, order = SOLVERS[solver]
    values = {"pair": pair, "style": style, "order": order, "cutoff": cutoff, "accuracy": accuracy, "steps": steps}
    (folder / "in.nacl").write_text(SCRIPT)
    command = [str(Path(sys.executable).with_name("lmp")), "-log", "none", "-in", "in.nacl"]
    for name, value in values.items():
        command += ["-var", name, str(value)]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LONGEST_S)
    loops = re.findall(r"Loop time of (\S+) on", run.stdout)
    used = re.findall(r"(\S+)% CPU use", run.stdout)
    if run.returncode or len(loops) != 2:
        raise RuntimeError(run.stdout[-300:])
    forces = np.loadtxt(folder / "forces.txt", skiprows=9)[:, 1:]
    return steps / (float(loops[1]) * float(used[1]) / 100), forces


def measure() -> None:
    """Run the grid in random order, the reference every few runs, and write the table."""
    grid = [(c, a, s) for c in CUTOFFS for a in ACCURACIES for s in SOLVERS]
    points = [point for i in range(REPEATS) for point in random.Random(i).sample(grid, len(grid))]
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _, converged = measured(12.0, 1e-9, "ewald", folder, steps=1)
        size = float(np.sqrt((converged**2).mean()))
        before, _ = measured(*REFERENCE, folder)
        for first in range(0, len(points), EVERY):
            group = []
            for cutoff, accuracy, solver in points[first : first + EVERY]:
                try:
                    speed, forces = measured(cutoff, accuracy, solver, folder)
                except (RuntimeError, subprocess.TimeoutExpired) as why:
                    print(cutoff, accuracy, solver, why)
                    continue
                error = float(np.sqrt(((forces - converged) ** 2).mean())) / size
                group.append((cutoff, accuracy, solver, speed, error))
            after, _ = measured(*REFERENCE, folder)
            base = math.sqrt(before * after)
            rows += [(c, a, s, v / base, e, before, after) for c, a, s, v, e in group]
            before = after
            print(f"{first + len(group)}/{len(points)}", end="\r", flush=True)
    with TABLE.open("w", newline="") as file:
        writer = csv.writer(file)
        head = "cutoff_angstrom accuracy solver speed_over_reference force_error reference_before reference_after"
        writer.writerow(head.split())
        for row in sorted(rows):
            writer.writerow([f"{v:.5g}" if isinstance(v, float) else v for v in row])
    print(f"{len(rows)} rows in {TABLE}")


@lru_cache
def table() -> dict[str, dict[tuple[float, float], tuple[float, float]]]:
    """Solver -> (cutoff, accuracy) -> (speed over the reference, force error)."""
    found: dict[str, dict[tuple[float, float], tuple[float, float]]] = {s: {} for s in SOLVERS}
    for (cutoff, accuracy, solver), runs in repeats().items():
        found[solver][cutoff, accuracy] = statistics.median(v for v, _ in runs), runs[0][1]
    return found


@lru_cache
def repeats() -> dict[tuple[float, float, str], list[tuple[float, float]]]:
    """(Cutoff, accuracy, solver) -> (speed over the reference, force error) of every run there."""
    found: dict[tuple[float, float, str], list[tuple[float, float]]] = {}
    with TABLE.open() as file:
        for row in csv.DictReader(file):
            place = float(row["cutoff_angstrom"]), float(row["accuracy"]), row["solver"]
            found.setdefault(place, []).append((float(row["speed_over_reference"]), float(row["force_error"])))
    return found


@lru_cache
def noise() -> float:
    """Relative standard deviation of one speed: the median over the points of that between repeats."""
    spreads = [[math.log(v) for v, _ in runs] for runs in repeats().values() if len(runs) == REPEATS]
    # The median of the standard deviation of three normal numbers is sqrt(ln 2) of the true one.
    return statistics.median(statistics.stdev(v) for v in spreads) / math.sqrt(math.log(2))


def true(cutoff: float, accuracy: float, solver: str) -> tuple[float, float] | None:
    """(speed over the reference, force error): between the grid's points linear in their logarithms.

    None where a neighbouring point of the grid could not be run.
    """
    found = table()[solver]
    total = np.zeros(2)
    for c, wc in _between(cutoff, CUTOFFS, float):
        for a, wa in _between(accuracy, ACCURACIES, math.log):
            if wc * wa > 0:
                if (c, a) not in found:
                    return None
                total += wc * wa * np.log(found[c, a])
    speed, error = np.exp(total)
    return float(speed), float(error)


def _between(
    x: float, grid: Sequence[float], scale: Callable[[float], float]
) -> tuple[tuple[float, float], tuple[float, float]]:
    """The grid's two points around `x`, each with its weight."""
    i = min(max(sum(g <= x for g in grid) - 1, 0), len(grid) - 2)
    w = (scale(x) - scale(grid[i])) / (scale(grid[i + 1]) - scale(grid[i]))
    w = min(max(w, 0.0), 1.0)
    return (grid[i], 1 - w), (grid[i + 1], w)


def _weights(values: np.ndarray, grid: Sequence[float], scale: Callable[[float], float]) -> np.ndarray:
    """Of each value, the weights of the grid's points: two of them are not zero."""
    found = np.zeros((len(values), len(grid)))
    for row, x in zip(found, values.tolist(), strict=True):
        for place, weight in _between(x, grid, scale):
            row[grid.index(place)] = weight
    return found


@lru_cache
def optimum() -> tuple[float, dict[str, float | str]]:
    """The fastest point that keeps the limit: (speed over the reference, the point)."""
    cutoffs = np.linspace(CUTOFFS[0], CUTOFFS[-1], 281)
    accuracies = np.geomspace(ACCURACIES[0], ACCURACIES[-1], 281)
    between = _weights(cutoffs, CUTOFFS, float), _weights(accuracies, ACCURACIES, math.log)
    best: tuple[float, dict[str, float | str]] = (0.0, {})
    for solver in SOLVERS:  # as `true`, of all points at once
        found = table()[solver]
        known = np.array([[(c, a) in found for a in ACCURACIES] for c in CUTOFFS])
        logs = np.array([[np.log(found.get((c, a), (1.0, 1.0))) for a in ACCURACIES] for c in CUTOFFS])
        speed, error = (np.exp(between[0] @ logs[..., i] @ between[1].T) for i in (0, 1))
        missing = between[0] @ ~known @ between[1].T > 0
        speed = np.where(missing | (error > LIMIT), 0.0, speed)
        i, j = np.unravel_index(np.argmax(speed), speed.shape)
        if speed[i, j] > best[0]:
            point: dict[str, float | str] = {"cutoff": float(cutoffs[i]), "accuracy": float(accuracies[j])}
            best = float(speed[i, j]), {**point, "solver": solver}
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--answer", action="store_true")
    if parser.parse_args().answer:
        best, point = optimum()
        print(f"{point}: {best:.2f} times the reference {REFERENCE}; a speed has {100 * noise():.1f} % of noise")
        for solver, found in table().items():
            fastest = max((v for v in found.items() if v[1][1] <= LIMIT), key=lambda v: v[1][0], default=None)
            print(f"{solver}: the grid's fastest allowed point {fastest}")
    else:
        measure()


if __name__ == "__main__":
    main()
