"""Logs as they are printed, for the tests that read and measure them."""

from __future__ import annotations

from hpcagent.science.lammps.log import parse_log
from hpcagent.science.lammps.log_records import Log

ROWS = """
0    40  -60.000  -65  5
100  44  -59.988  -65.488 5.5
200  40  -59.980  -64.980 5
300  44  -59.968  -65.468 5.5
400  40  -59.960  -64.960 5
"""


def log_of(
    rows: str,
    *,
    header: str = "Step Temp TotEng PotEng KinEng",
    before: str = "units metal\ntimestep 0.002\nthermo 100\nrun 400\n",
    loop: str = "Loop time of 2 on 1 procs for 400 steps with 100 atoms",
    after: str = "",
) -> Log:
    table = "".join(line.strip() + " \n" for line in rows.strip().splitlines())
    return parse_log(f"{before}{header} \n{table}{loop}\n{after}\n")


def table_lines(text: str) -> list[str]:
    """Lines between the one-line header and `Loop time`."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.split()[:1] == ["Step"])
    end = next((i for i, line in enumerate(lines) if line.startswith("Loop time")), len(lines))
    return lines[start + 1 : end]
