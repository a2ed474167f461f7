"""Reading of LAMMPS dumps: frames per second and memory against ASE and MDAnalysis.

    python benchmarks/trajectory.py [--atoms 10000] [--frames 100] [--rounds 3] [--large 2000]

All readers read every position of the same dump, each in a process of its own (so that its peak of memory is its own),
in turn within each round, so that a change of the machine's speed meets all of them; the ratios are medians over rounds.
`positions` is hpcagent without the velocities that the dump holds as well; the others have no such choice.
`--large` is the number of frames of a second dump, read by hpcagent alone, whose memory must not grow with the file.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

READERS = {
    "hpcagent": """
from hpcagent.science.lammps.frames import Reading
from hpcagent.science.lammps.trajectory import open_trajectory
run = {"workdir": "", "artifacts": {"trajectory": path}}
frames = (f.positions for f in open_trajectory(run, Reading(units="metal", timestep=0.001)).frames())
""",
    "positions": """
from hpcagent.science.lammps.frames import Reading
from hpcagent.science.lammps.trajectory import open_trajectory
run = {"workdir": "", "artifacts": {"trajectory": path}}
trajectory = open_trajectory(run, Reading(units="metal", timestep=0.001))
trajectory.velocities = False
frames = (f.positions for f in trajectory.frames())
""",
    "ASE": """
import ase.io
frames = (a.positions for a in ase.io.iread(path, index=":", format="lammps-dump-text"))
""",
    "MDAnalysis": """
import warnings
warnings.simplefilter("ignore")
import MDAnalysis
universe = MDAnalysis.Universe.empty(atoms, trajectory=True)
universe.load_new(path, format="LAMMPSDUMP")
frames = (universe.atoms.positions for _ in universe.trajectory)
""",
}
CHILD = """
import json, resource, sys, time
path, atoms = sys.argv[1], int(sys.argv[2])
import numpy
{imports}
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
began = time.perf_counter()
{reader}
n, total = 0, 0.0
for positions in frames:
    n, total = n + 1, total + float(positions[-1].sum())
seconds = time.perf_counter() - began
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps(dict(n=n, seconds=seconds, total=total, before_mb=before / 1024, peak_mb=peak / 1024)))
"""
IMPORTS = {
    "hpcagent": "import hpcagent.science.lammps.trajectory, ase.data",
    "positions": "import hpcagent.science.lammps.trajectory, ase.data",
    "ASE": "import ase.io, ase.io.lammpsrun",
    "MDAnalysis": "import MDAnalysis, MDAnalysis.coordinates.LAMMPS",
}


def write_dump(path: Path, atoms: int, frames: int) -> None:
    """A dump as `dump custom id type x y z vx vy vz` writes it, atoms out of order as on several ranks."""
    rng = np.random.default_rng(7)
    edge = (atoms / 0.02) ** (1 / 3)
    order = rng.permutation(atoms) + 1
    bodies = []
    for _ in range(min(frames, 5)):
        x, v = rng.uniform(0, edge, (atoms, 3)), rng.normal(0, 2, (atoms, 3))
        rows = (
            f"{i} 1 {a:.6g} {b:.6g} {c:.6g} {d:.6g} {e:.6g} {f:.6g} "
            for i, (a, b, c), (d, e, f) in zip(order, x, v, strict=True)
        )
        bodies.append("\n".join(rows) + "\n")
    with path.open("w") as file:
        for i in range(frames):
            file.write(f"ITEM: TIMESTEP\n{10 * i}\nITEM: NUMBER OF ATOMS\n{atoms}\nITEM: BOX BOUNDS pp pp pp\n")
            file.write(f"0 {edge}\n" * 3 + "ITEM: ATOMS id type x y z vx vy vz \n" + bodies[i % len(bodies)])


def read(name: str, path: Path, atoms: int) -> dict[str, float]:
    script = CHILD.format(imports=IMPORTS[name], reader=READERS[name])
    words = [sys.executable, "-W", "ignore", "-c", script, str(path), str(atoms)]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{name}: {done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--atoms", type=int, default=10_000)
    parser.add_argument("--frames", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--large", type=int, default=2000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.dump"
        write_dump(path, given.atoms, given.frames)
        print(f"{path.stat().st_size / 1e6:.0f} MB, {given.frames} frames of {given.atoms} atoms")
        found: dict[str, list[dict[str, float]]] = {name: [] for name in READERS}
        for _ in range(given.rounds):
            for name in READERS:
                found[name].append(read(name, path, given.atoms))
        ours = [r["seconds"] for r in found["hpcagent"]]
        for name, rounds in found.items():
            seconds = statistics.median(r["seconds"] for r in rounds)
            ratio = statistics.median(r["seconds"] / o for r, o in zip(rounds, ours, strict=True))
            peak = max(r["peak_mb"] for r in rounds)
            more = max(r["peak_mb"] - r["before_mb"] for r in rounds)
            print(
                f"{name:>10}: {given.frames / seconds:7.1f} frames/s  {ratio:5.1f} x our time  "
                f"peak {peak:5.0f} MB ({more:.0f} MB for reading)"
            )
        if given.large:
            write_dump(path, given.atoms, given.large)
            large = read("hpcagent", path, given.atoms)
            print(
                f"large dump of {path.stat().st_size / 1e6:.0f} MB, {large['n']:.0f} frames: "
                f"{large['n'] / large['seconds']:.1f} frames/s, peak {large['peak_mb']:.0f} MB "
                f"({large['peak_mb'] - large['before_mb']:.0f} MB for reading)"
            )


if __name__ == "__main__":
    main()
