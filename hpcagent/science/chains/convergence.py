"""Is a cutoff or a k-mesh good enough? The error of an energy against a converged one."""

from __future__ import annotations

from typing import Any

from hpcagent.apps.chain import chain
from hpcagent.apps.run import Run
from hpcagent.model.contract import Metric
from hpcagent.model.parameter import Choice, Float, Int, Text
from hpcagent.science.analysis.eos import LATTICES
from hpcagent.science.chains.levels import level_of, own_settings
from hpcagent.science.dft.energy import dft_energy
from hpcagent.science.engines.base import LEVEL
from hpcagent.science.engines.task import FILES, RANKS, SETTINGS
from hpcagent.science.structures.crystal import build_crystal

__all__ = ["dft_convergence"]


@chain(
    name="dft_convergence",
    version="1.0.0",
    parameters={
        "name": Text(default="Si", description="element or formula"),
        "crystal": Choice("auto", *LATTICES, default="auto", description="lattice; auto: the element's own"),
        "a": Float(0.0, 100.0, unit="angstrom", default=0.0, description="lattice constant; 0: ASE's"),
        "rattle": Float(
            0.0,
            0.5,
            unit="angstrom",
            default=0.0,
            description="random displacements, so that no symmetry cancels an error",
        ),
        "converged_ecut": Float(
            10.0, 5000.0, unit="eV", default=800.0, description="cutoff that counts as converged"
        ),
        "converged_kpts": Int(1, 64, default=12, description="k-points that count as converged"),
    }
    | LEVEL
    | {
        "ecut": Float(1.0, 5000.0, unit="eV", default=400.0, description="plane-wave cutoff that is tried"),
        "kpts": Int(1, 64, default=8, description="k-points that are tried, along the longest reciprocal vector"),
    }
    | RANKS,
    metrics={
        "error": Metric(
            name="error",
            unit="meV/atom",
            direction="minimize",
            description="absolute difference of the energy from the converged one",
        ),
        "work": Metric(
            name="work",
            unit="1",
            direction="minimize",
            description="(ecut / converged_ecut)^(3/2) (kpts / converged_kpts)^3: plane waves times k-points, "
            "relative to the converged run",
        ),
        "energy_per_atom": Metric(name="energy_per_atom", unit="eV/atom", description="energy at this setting"),
        "wall_s": Metric(
            name="wall_s", unit="s", description="wall time of the run at this setting", direction="minimize"
        ),
    },
    settings=SETTINGS,
    files=FILES,
    estimated_runtime_s=20.0,
    seeded=False,
    failure_modes=("NotConverged", "BadLattice"),
    vary=("ecut", "kpts"),
)
def dft_convergence(
    name: str,
    crystal: str,
    a: float,
    rattle: float,
    converged_ecut: float,
    converged_kpts: int,
    run: Run,
    **params: Any,
) -> dict[str, Any]:
    """Error of the energy of a crystal at one cutoff and k-mesh, against that of a converged run they all share.

    The number of plane waves in a volume V is V (2 m E_cut)^(3/2) / (6 pi^2 hbar^3), and the time of a run goes
    with it and with the number of k-points: `work` counts both without the noise of a clock.
    """
    energy = dft_energy.with_settings(**own_settings(run.settings))
    built = build_crystal(name=name, lattice=crystal, a=a, cubic="no", rattle=rattle)
    level = level_of(params)
    here = energy(built, forces="no", **level)
    best = energy(built, forces="no", **(level | {"ecut": converged_ecut, "kpts": converged_kpts}))
    found = here.result()
    error = abs(found["energy_per_atom"] - best.result()["energy_per_atom"]) * 1e3
    work = (params["ecut"] / converged_ecut) ** 1.5 * (params["kpts"] / converged_kpts) ** 3
    return {
        "error": error,
        "work": work,
        "energy_per_atom": here["energy_per_atom"],
        "wall_s": found.cost.wall_s,
    }
