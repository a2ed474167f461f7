"""The energy of a crystal's surface, from slabs of several thicknesses."""

from __future__ import annotations

import csv
import math
from typing import Any

from hpcagent.apps.chain import artifacts_of, chain, metrics_of
from hpcagent.apps.run import Outcome, Run
from hpcagent.errors import AppFailed
from hpcagent.model.contract import Metric
from hpcagent.model.parameter import Choice, Float, Int
from hpcagent.science.chains.levels import level_of, own_settings, refuse_charge
from hpcagent.science.chains.references import atoms_of
from hpcagent.science.dft.energy import dft_energy
from hpcagent.science.dft.relax import RELAXATION, dft_relax
from hpcagent.science.engines.base import LEVEL
from hpcagent.science.engines.task import FILES, RANKS, SETTINGS
from hpcagent.science.structures import oriented
from hpcagent.science.structures.cut import CUT, cut_slab

__all__ = ["J_PER_M2", "surface_energy"]

_STEP = 3.5  # angstrom
# Fit and crystal differ by more than this share: EMT's faces of copper by 2e-4, DFT with good k-points by 1 %.
_DIFFER = 0.02
_OFF_LINE = 0.2  # meV/angstrom^2 (3 mJ/m^2), of one area

J_PER_M2 = 16.02176634
"""One eV/angstrom^2 (CODATA 2018)."""


@chain(
    name="surface_energy",
    version="2.0.0",
    inputs=("structure",),
    parameters=CUT
    | {
        "thickness": Float(
            2.0,
            200.0,
            unit="angstrom",
            default=10.0,
            description="of the thinnest slab, at least; high indices then get the many planes they need",
        ),
        "layers": Int(0, 200, default=0, description="planes of the thinnest slab, at least; 0: by thickness"),
        "thicknesses": Int(1, 20, default=3, description="slabs of how many thicknesses; the fit needs two"),
        "step": Int(
            0,
            50,
            default=0,
            description="planes by which each is thicker than the one before, at least; 0: 3.5 angstrom",
        ),
        "method": Choice(
            "fit",
            "bulk",
            default="fit",
            description="energy of the inside: the slope over the slabs' thickness, or that of the crystal",
        ),
        "vacuum": Float(2.0, 100.0, unit="angstrom", default=8.0, description="empty space on each side"),
        "relax": Choice("yes", "no", default="yes", description="whether the slabs' atoms relax"),
        "relax_bulk": Choice("yes", "no", default="yes", description="whether the crystal relaxes first"),
    }
    | LEVEL
    | RANKS
    | {name: RELAXATION[name] for name in ("fmax", "max_steps")},
    metrics={
        name: Metric(name=name, unit=unit, description=description, required=required)
        for name, unit, description, required in (
            ("surface_energy", "J/m^2", "energy of the surface per area, by the method asked for", True),
            ("surface_energy_ev", "eV/angstrom^2", "the same", True),
            ("surface_energy_of_bulk", "J/m^2", "of the thickest slab, with the energy of the crystal", True),
            ("bulk_energy", "eV/atom", "energy of the crystal", True),
            ("bulk_energy_fit", "eV/atom", "slope of the slabs' energies over their atoms", False),
            ("fit_rms", "meV", "root mean square distance of the slabs' energies from the line", False),
            ("n_slabs", "1", "thicknesses", True),
            ("area", "angstrom^2", "area of one side", True),
            ("n_layers", "1", "planes of the thickest slab", True),
            ("symmetric", "1", "1: both sides are the same surface; 0: the energy is their mean", True),
        )
    },
    settings=SETTINGS,
    files=FILES,
    estimated_runtime_s=600.0,
    seeded=False,
    failure_modes=(
        *cut_slab.contract.failure_modes,
        "NotStoichiometric",
        "TooFewRuns",
        "NotRelaxed",
        "NotConverged",
        "Charged",
    ),
    vary=("h", "k", "l"),
)
def surface_energy(
    structure: Any,
    *,
    thickness: float,
    layers: int,
    thicknesses: int,
    step: int,
    method: str,
    vacuum: float,
    relax: str,
    relax_bulk: str,
    fmax: float,
    max_steps: int,
    run: Run,
    **params: Any,
) -> Outcome:
    """Energy per area that it costs to make a surface, from slabs of several thicknesses.

    E(N) = 2 A gamma + N e: with `fit`, gamma and e are those of the line through the slabs' energies over their
    atoms N, so that an energy of the crystal from other k-points does not make gamma diverge with the thickness
    (V. Fiorentini, M. Methfessel, J. Phys.: Condens. Matter 8, 6525 (1996)); with `bulk`, e is the crystal's, and
    gamma that of the thickest slab. Where the two differ, k-points or thickness are not enough. Slabs must be
    composed as the crystal; of one whose sides differ, gamma is the mean of both. The crystal relaxes with its
    cell before it is cut. Where fit and crystal disagree, or the energies are on no line, a note says so.
    `slabs.csv` has the slabs.
    """
    settings = own_settings(run.settings)
    relaxed, energy = dft_relax.with_settings(**settings), dft_energy.with_settings(**settings)
    level = level_of(params)
    ways: dict[str, Any] = {"fmax": fmax, "max_steps": max_steps}
    face = {name: params[name] for name in CUT}
    if method == "fit" and thicknesses < 2:
        raise AppFailed(
            "method='fit' is a line through slabs of two thicknesses or more; thicknesses is 1.",
            kind="contract",
            name="TooFewRuns",
            repair="thicknesses = 3, or method = bulk",
        )
    refuse_charge("surfaces", atoms_of(structure), params)
    if relax_bulk == "yes":
        bulk = relaxed(structure, cell="shape_and_volume", **level, **ways)
        crystal: Any = bulk
    else:
        bulk = energy(structure, forces="no", **level)
        crystal = structure
    slabs: list[dict[str, float]] = []
    computed: list[Any] = []
    if not (layers and step):
        apart = _apart(atoms_of(crystal), face)
        layers = layers or 1 + math.ceil(thickness / apart - 1e-6)
        step = step or max(1, math.ceil(_STEP / apart - 1e-6))
    for _ in range(thicknesses):
        least = layers if not slabs else int(slabs[-1]["n_layers"]) + step
        slab = cut_slab(crystal, layers=least, vacuum=vacuum, **face)
        slabs.append(metrics_of(slab))
        _check(slabs[-1], face)
        computed.append(relaxed(slab, **level, **ways) if relax == "yes" else energy(slab, forces="no", **level))
    energies = [metrics_of(one)["energy"] for one in computed]
    inside = metrics_of(bulk)["energy_per_atom"]
    metrics, fitted = _surface(slabs, energies, inside)
    chosen = fitted if method == "fit" and fitted is not None else metrics["surface_energy_of_bulk"] / J_PER_M2
    metrics |= {"surface_energy": chosen * J_PER_M2, "surface_energy_ev": chosen, "bulk_energy": inside}
    with (run.workdir / "slabs.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["n_layers", "n_atoms", "area_angstrom2", "energy_ev", "surface_energy_of_bulk_j_per_m2"])
        for slab, total in zip(slabs, energies, strict=True):
            of_bulk = J_PER_M2 * (total - slab["n_atoms"] * inside) / (2 * slab["area"])
            rows.writerow([int(slab["n_layers"]), int(slab["n_atoms"]), slab["area"], total, of_bulk])
    return Outcome(
        metrics=metrics,
        artifacts={"slabs": "slabs.csv", **artifacts_of(run, structure=computed[-1])},
        notes=(*_said(slabs[-1]), *_doubts(metrics, fitted)),
    )


def _check(slab: dict[str, float], face: dict[str, Any]) -> None:
    if slab["stoichiometric"]:
        return
    raise AppFailed(
        f"the slab of {slab['n_layers']:.0f} planes with termination {face['termination']} on both sides is not "
        "composed as the crystal: its energy needs chemical potentials, which this chain does not take.",
        kind="contract",
        name="NotStoichiometric",
        repair="symmetric = auto or no",
    )


def _surface(
    slabs: list[dict[str, float]], energies: list[float], inside: float
) -> tuple[dict[str, float], float | None]:
    """Metrics of the slabs, and the surface energy of the fit in eV/angstrom^2, if there are two."""
    import numpy as np

    last = slabs[-1]
    metrics = {name: last[name] for name in ("area", "n_layers", "symmetric")} | {"n_slabs": float(len(slabs))}
    excess = energies[-1] - last["n_atoms"] * inside
    metrics["surface_energy_of_bulk"] = J_PER_M2 * excess / (2 * last["area"])
    if len(slabs) < 2:
        return metrics, None
    counts = np.array([slab["n_atoms"] for slab in slabs])
    slope, intercept = np.polyfit(counts, energies, 1)
    left = np.array(energies) - slope * counts - intercept
    metrics |= {"bulk_energy_fit": float(slope), "fit_rms": 1000 * float(np.sqrt((left**2).mean()))}
    return metrics, float(intercept) / (2 * last["area"])


def _apart(crystal: Any, face: dict[str, Any]) -> float:
    """Mean distance of the planes of atoms along the face, in angstrom."""
    miller = (face["h"], face["k"], face["l"])
    seen = oriented.face(crystal, miller, of=face["miller_of"])
    return seen.spacing / len(seen.planes)


def _doubts(metrics: dict[str, float], fitted: float | None) -> tuple[str, ...]:
    """What speaks against the surface energy: slabs and crystal that disagree, energies that are on no line."""
    if fitted is None:
        return ()
    notes = []
    line, bulk = fitted * J_PER_M2, metrics["surface_energy_of_bulk"]
    if abs(line - bulk) > _DIFFER * max(abs(bulk), 1e-6):
        inside = 1000 * (metrics["bulk_energy_fit"] - metrics["bulk_energy"])
        notes.append(
            f"the line through the slabs says {line:.4g} J/m^2, the crystal's energy {bulk:.4g} J/m^2 (the line's "
            f"inside is {inside:+.2g} meV/atom off the crystal's): thicker slabs, or denser k-points"
        )
    if metrics["fit_rms"] > _OFF_LINE * metrics["area"]:
        notes.append(
            f"the slabs' energies are {metrics['fit_rms']:.2g} meV off a line: the thinnest is too thin for one, "
            "or the slabs relaxed into different surfaces"
        )
    return tuple(notes)


def _said(slab: dict[str, float]) -> tuple[str, ...]:
    notes: list[str] = []
    if not slab["symmetric"]:
        notes.append("the slab's two sides are different surfaces: the energy is their mean")
    if slab["polar"]:
        notes.append("the slab is polar if its elements bear charges: then its energy grows with the thickness")
    return tuple(notes)
