"""What a log says of a trajectory."""

from __future__ import annotations

import pytest


def leg(first: int, steps: int, timestep: float, every: int = 10) -> str:
    rows = "".join(f"{step:10d}   100            \n" for step in range(first, first + steps + 1, every))
    return f"timestep {timestep}\nrun {steps}\n      Step          Temp     \n{rows}Loop time of 1 on 1 procs for {steps} steps with 2 atoms\n"


@pytest.mark.parametrize(
    ("legs", "first", "last", "expected"),
    [
        ([(0, 100, 1.0), (100, 100, 2.0)], 100, 200, 2.0),
        ([(0, 100, 1.0), (100, 100, 2.0)], 0, 100, 1.0),
        ([(0, 100, 1.0), (100, 100, 2.0)], 50, 200, None),
        ([(0, 100, 1.0), (100, 100, 2.0), (200, 100, 2.0)], 100, 300, 2.0),
        ([(0, 100, 1.0), (0, 100, 2.0)], 0, 100, 2.0),  # counted anew
        ([(0, 100, 1.0), (0, 100, 2.0)], 0, 200, None),
        ([(0, 100, 1.0)], 70, 70, 1.0),
    ],
)
def test_the_timestep_is_that_of_the_runs_that_made_the_frames(
    legs: list[tuple[int, int, float]], first: int, last: int, expected: float | None
) -> None:
    from hpcagent.science.lammps.log import parse_log
    from hpcagent.science.lammps.run_of_trajectory import timestep_of_log

    text = "units real\nthermo_style custom step temp\nthermo 10\n" + "".join(leg(*each) for each in legs)
    log = parse_log(text)
    assert [r.timestep for r in log.runs] == [each[2] for each in legs]
    assert timestep_of_log(log, first, last) == expected
