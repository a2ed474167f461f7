"""Relaxation of positions and cell."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hpcagent.apps.decorator import app
from hpcagent.apps.ending import Limit
from hpcagent.apps.printed import read_tail
from hpcagent.apps.run import Outcome, Run
from hpcagent.errors import AppFailed
from hpcagent.model.contract import Metric
from hpcagent.model.parameter import Choice, Float, Int, Parameter
from hpcagent.science.engines.base import LEVEL, Level
from hpcagent.science.engines.isolated import FAILURE_MODES, run_isolated
from hpcagent.science.engines.task import (
    CALCULATION,
    FILES,
    RANKS,
    RESOURCES_FROM,
    SETTINGS,
    calculation,
    keep_structure,
    largest,
    three_periods,
)
from hpcagent.science.engines.watched import Watch, attached

if TYPE_CHECKING:
    from ase import Atoms

__all__ = ["RELAXATION", "RELAX_FAILURES", "RELAX_METRICS", "dft_relax", "relax"]

TRAJECTORY = "relax.traj"

RELAXATION: dict[str, Parameter] = {
    "fmax": Float(
        1e-5,
        1.0,
        unit="eV/angstrom",
        log=True,
        default=0.02,
        description="largest force on an atom when it counts as relaxed; of a cell, stress times volume in eV",
    ),
    "max_steps": Int(1, 100000, default=200, description="steps of the optimiser before it counts as not relaxed"),
    "optimizer": Choice(
        "BFGS",
        "LBFGS",
        "FIRE",
        "GPMin",
        default="BFGS",
        description="ASE's; FIRE for rough starts, LBFGS for many atoms",
    ),
    "cell": Choice(
        "fixed",
        "volume",
        "shape",
        "shape_and_volume",
        default="fixed",
        description="what of the cell relaxes with the atoms",
    ),
    "pressure_gpa": Float(
        -100.0, 1000.0, unit="GPa", default=0.0, description="outer pressure on a cell that relaxes"
    ),
}
"""Parameters of a relaxation."""

RELAX_METRICS: dict[str, Metric] = CALCULATION | {
    name: Metric(name=name, unit=unit, description=description, required=required)
    for name, unit, description, required in (
        ("max_force", "eV/angstrom", "largest force on an atom that may move, in the end", True),
        ("n_steps", "1", "steps of the optimiser", True),
        ("n_calculations", "1", "calculations of energy and forces", True),
        ("energy_gain", "eV", "energy of the start minus that of the end", True),
        ("displacement", "angstrom", "largest way of an atom, without what the cell's change moves it", True),
        ("volume_change", "1", "volume of the end divided by that of the start, minus 1", False),
        ("a", "angstrom", "length of the first vector of the cell", False),
        ("b", "angstrom", "length of the second vector of the cell", False),
        ("c", "angstrom", "length of the third vector of the cell", False),
    )
}

RELAX_FAILURES = (*FAILURE_MODES, "NotRelaxed", "NonNumeric")


@app(
    name="dft_relax",
    version="1.0.0",
    inputs=("structure",),
    parameters=LEVEL | RELAXATION | RANKS,
    metrics=RELAX_METRICS,
    resources_from=RESOURCES_FROM,
    settings=SETTINGS,
    files=FILES,
    estimated_runtime_s=120.0,
    seeded=False,
    failure_modes=RELAX_FAILURES,
)
def dft_relax(run: Run, **params: Any) -> Outcome:
    """Relax positions, and the cell if wanted, to the nearest minimum of the energy.

    The optimisers are ASE's. A cell relaxes by the method of `FrechetCellFilter` (the logarithm of the deformation
    gradient together with the positions); `volume` scales it only, `shape` keeps its volume. Constraints of the
    structure hold. Not relaxed within `max_steps` is a failure (`NotRelaxed`); the trajectory stays in the run's
    directory, and its last structure is `structure.xyz` there.

    Artifacts: `structure` (relaxed, with energy and forces), `trajectory` (ASE), `scf` (with an SCF).
    """
    return run_isolated(relax, run, **params)


def relax(run: Run, **params: Any) -> Outcome:
    """The work of `dft_relax` and `mlip_relax`, in this process."""
    atoms, watch = attached(run, Level.of(params, run.settings))
    start = atoms.copy()
    if params["cell"] != "fixed":
        _check_cell(atoms, params["cell"])
    try:
        energy, steps = _optimised(run, atoms, watch, params)
        metrics, notes = calculation(atoms, watch)
    finally:
        files = watch.close()
    metrics["max_force"] = _moving(atoms)
    metrics |= _compared(start, atoms, params["cell"])
    metrics |= {
        "n_steps": steps,
        "n_calculations": watch.n_calculations,
        "energy_gain": energy - metrics["energy"],
    }
    return Outcome(
        metrics=metrics,
        artifacts=keep_structure(run, atoms) | {"trajectory": TRAJECTORY} | files,
        notes=(*watch.remarks, *notes),
        **watch.made_with,
    )


def _check_cell(atoms: Atoms, cell: str) -> None:
    if not three_periods(atoms):
        raise AppFailed(
            f"cell={cell!r} needs a structure that is periodic in three directions; {atoms.symbols} has pbc "
            f"{atoms.pbc.tolist()}.",
            kind="contract",
            name="BadSettings",
            repair="cell='fixed'",
        )
    if "stress" not in atoms.calc.implemented_properties:
        raise AppFailed(
            f"cell={cell!r} needs the stress, which engine {atoms.calc.name!r} does not compute.",
            kind="contract",
            name="NoProperty",
            repair="cell='fixed', or another engine",
        )


def _optimised(run: Run, atoms: Atoms, watch: Watch, params: Mapping[str, Any]) -> tuple[float, int]:
    """Relax the atoms in place; returns the energy of the start and the number of steps."""
    import ase.optimize
    from ase.io import Trajectory

    limit, since = Limit.of(run), time.monotonic()
    optimizer = getattr(ase.optimize, params["optimizer"])
    first: float | None = None
    with (
        Trajectory(run.workdir / TRAJECTORY, "w", atoms) as trajectory,
        (run.workdir / "relax.log").open("w") as log,
        optimizer(_degrees(atoms, params), logfile=log) as steps,
    ):
        steps.attach(trajectory.write, interval=1)
        relaxed = False
        # One step at a time: what an optimiser makes of a force that is no number is anybody's guess.
        for relaxed in steps.irun(fmax=params["fmax"], steps=params["max_steps"]):
            energy = float(atoms.get_potential_energy())
            if not math.isfinite(energy) or not math.isfinite(_moving(atoms)):
                raise AppFailed(
                    f"energy or forces are no number after {steps.nsteps} steps of the optimiser.",
                    name="NonNumeric",
                    log_tail=_log(run),
                    repair="FIRE, or a sounder structure: two atoms in one place?",
                )
            first = energy if first is None else first
            if not relaxed and time.monotonic() - since > limit.seconds:
                keep_structure(run, atoms)
                raise limit.failure(wall_s=time.monotonic() - since, log_tail=_log(run))
        count = int(steps.nsteps)
    if not relaxed:
        keep_structure(run, atoms)
        raise AppFailed(
            f"not relaxed in {count} steps of {params['optimizer']}: the largest force is {_moving(atoms):.3g} "
            f"eV/angstrom, fmax is {params['fmax']:g}. {TRAJECTORY} and the last structure (structure.xyz) are "
            "kept in the run's directory.",
            name="NotRelaxed",
            log_tail=_log(run),
            repair="start from the last structure with more max_steps"
            + ("" if params["optimizer"] == "FIRE" else ", or with optimizer FIRE"),
        )
    assert first is not None
    return first, count


def _degrees(atoms: Atoms, params: Mapping[str, Any]) -> Any:
    """The atoms, with the cell if it is to relax."""
    if params["cell"] == "fixed":
        return atoms
    from ase.filters import FrechetCellFilter
    from ase.units import GPa

    return FrechetCellFilter(
        atoms,
        hydrostatic_strain=params["cell"] == "volume",
        constant_volume=params["cell"] == "shape",
        scalar_pressure=params["pressure_gpa"] * GPa,
    )


def _moving(atoms: Atoms) -> float:
    """Largest force on an atom, without those that constraints take up, in eV/angstrom."""
    return largest(atoms.get_forces(apply_constraint=True))


def _compared(start: Atoms, end: Atoms, cell: str) -> dict[str, float]:
    import numpy as np

    # In the cell of the end, so that a mere change of the cell moves nothing.
    moved = start.copy()
    moved.set_constraint()
    if cell != "fixed":
        moved.set_cell(end.cell, scale_atoms=True)
    way = np.linalg.norm(end.positions - moved.positions, axis=1).max()
    found = {"displacement": float(way)}
    if three_periods(end):
        volume = start.get_volume()
        found["volume_change"] = float(end.get_volume() / volume - 1)
        found |= dict(zip("abc", map(float, end.cell.lengths()), strict=True))
    return found


def _log(run: Run) -> str:
    return read_tail(run.workdir / "relax.log", 2000)
