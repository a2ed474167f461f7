"""Which magnetic ordering of a crystal has the lowest energy."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from typing import Any

from hpcagent.apps.chain import artifacts_of, chain, metrics_of
from hpcagent.apps.missing import brought
from hpcagent.apps.run import Outcome, Run
from hpcagent.apps.structures import structure_of
from hpcagent.errors import AppFailed
from hpcagent.model.contract import Metric
from hpcagent.model.parameter import Choice, Float, Parameter
from hpcagent.science.chains.levels import level_of, own_settings, refuse_charge
from hpcagent.science.chains.references import atoms_of
from hpcagent.science.dft.energy import dft_energy
from hpcagent.science.dft.relax import RELAXATION, dft_relax
from hpcagent.science.engines.base import LEVEL
from hpcagent.science.engines.registry import engine
from hpcagent.science.engines.task import FILES, RANKS, SETTINGS
from hpcagent.science.structures.magnetic import ORDERED, magnetic_ordering

__all__ = ["magnetic_orderings"]

_LEVEL: dict[str, Parameter] = {name: p for name, p in LEVEL.items() if name not in ("magmom", "mesh", "kpts")}
"""Moments are those of the ordering; numbers of k-points mean another density in every cell."""


@chain(
    name="magnetic_orderings",
    version="1.0.0",
    inputs=("structure",),
    parameters=ORDERED
    | {
        "nonmagnetic": Choice("yes", "no", default="yes", description="whether to compute it without moments too"),
        "relax": Choice(
            "none",
            "fixed",
            "volume",
            "shape_and_volume",
            default="none",
            description="fixed: atoms; else the cell too",
        ),
        "least_moment": Float(
            0.001,
            5.0,
            default=0.2,
            description="final moment of an atom, in Bohr magnetons, below which it counts as lost",
        ),
    }
    | _LEVEL
    | RANKS
    | {name: RELAXATION[name] for name in ("fmax", "max_steps")},
    metrics={
        name: Metric(name=name, unit=unit, description=description, required=required)
        for name, unit, description, required in (
            ("best", "1", "number of the ordering with the lowest energy; -1: without moments", True),
            ("energy_best", "eV/atom", "its energy", True),
            ("moment", "1", "its mean final moment of an atom that began with one, Bohr magnetons", False),
            ("net_moment", "1", "its final moment per atom of the cell, in Bohr magnetons", False),
            ("fm_energy", "meV/atom", "energy of all moments aligned, over the lowest", False),
            ("nm_energy", "meV/atom", "energy without moments, over the lowest", False),
            ("afm_energy", "meV/atom", "lowest energy of an antiferromagnetic ordering, over the lowest", False),
            ("n_orderings", "1", "distinct orderings", True),
            ("n_collapsed", "1", "orderings that ended as another, or without moments", True),
        )
    },
    settings=SETTINGS,
    files=FILES,
    estimated_runtime_s=1200.0,
    seeded=False,
    failure_modes=(
        *magnetic_ordering.contract.failure_modes,
        "BadSettings",
        "NotRelaxed",
        "NotConverged",
        "Charged",
    ),
)
def magnetic_orderings(
    structure: Any,
    *,
    nonmagnetic: str,
    relax: str,
    least_moment: float,
    fmax: float,
    max_steps: int,
    run: Run,
    **params: Any,
) -> Outcome:
    """All collinear magnetic orderings of a crystal up to a cell's size, ranked by their energies.

    Each begins with its moments (`magnetic_ordering`), and its SCF may end with others: an ordering whose final
    moments have other signs, or are below `least_moment`, has collapsed, and its energy is that of what it became.
    It is listed, named in the notes, and not among those that are ranked. `orderings.csv` has the energies and the
    initial and final moments of all. k-points go by distance (`kspacing`, `protocol`), for the cells differ in
    size. A collinear SCF finds a minimum near its beginning, not every one.
    """
    which = engine(params["engine"])
    if "magmom" not in which.takes and which.kind != "other":
        raise AppFailed(
            f"engine {which.name!r} knows no moments.",
            kind="contract",
            name="BadSettings",
            repair="espresso, gpaw, vasp or pyscf",
        )
    refuse_charge("magnetic orderings", atoms_of(structure), params)
    settings, level = own_settings(run.settings), level_of(params)
    wanted: dict[str, Any] = {name: params[name] for name in ORDERED}
    first = magnetic_ordering(structure, number=0, **wanted)
    count = int(metrics_of(first)["n_orderings"])
    numbers = [*range(count), *([-1] if nonmagnetic == "yes" else [])]
    built = [first if n == 0 else magnetic_ordering(structure, number=n, **wanted) for n in numbers]
    if relax == "none":
        energy = dft_energy.with_settings(**settings)
        computed = [energy(one, forces="no", **level) for one in built]
    else:
        relaxed = dft_relax.with_settings(**settings)
        computed = [relaxed(one, cell=relax, fmax=fmax, max_steps=max_steps, **level) for one in built]
    found = [_end(n, b, c, least_moment) for n, b, c in zip(numbers, built, computed, strict=True)]
    _write(found, run)
    lasting = [one for one in found if one.state in ("kept", "unknown")]
    ranked = lasting or [one for one in found if math.isfinite(one.energy)]
    if not ranked:
        metrics_of(computed[0])  # the chain fails as that run did
    best = min(ranked, key=lambda one: one.energy)
    collapsed = [one for one in found if one.state not in ("kept", "unknown", "failed")]
    notes = [f"{one.name}: {one.state}" for one in collapsed]
    if any(one.state == "unknown" for one in found):
        notes.append("the engine tells no final moments: whether an ordering collapsed is not known")
    if not lasting:
        notes.append("every ordering collapsed: the best is named by how it began")
    metrics = _ranked(best, ranked) | {"n_orderings": float(count), "n_collapsed": float(len(collapsed))}
    chosen = computed[found.index(best)]
    artifacts = {"orderings": "orderings.csv", **artifacts_of(run, structure=chosen)}
    return Outcome(metrics=metrics, artifacts=artifacts, notes=(f"lowest: {best.name}", *notes))


@dataclass(frozen=True)
class _End:
    """How an ordering ended: energy in eV/atom, moments in Bohr magnetons."""

    number: int
    name: str
    state: str
    energy: float
    initial: tuple[float, ...]
    final: tuple[float, ...]
    net: float


def _end(number: int, built: Any, computed: Any, least: float) -> _End:
    made, result = built.result(), computed.result()
    name = made.notes[0] if made.notes else str(number)
    initial = _structure(made).get_initial_magnetic_moments().tolist()
    if result.failure is not None:
        return _End(number, name, "failed", math.inf, tuple(initial), (), math.nan)
    energy = result.metrics["energy_per_atom"]
    if number < 0:
        return _End(number, name, "kept", energy, tuple(initial), (), 0.0)
    calculator = _structure(result).calc
    known = getattr(calculator, "results", {}).get("magmoms")
    final = [] if known is None else [float(m) for m in known]
    net = result.metrics.get("magnetic_moment", sum(final) if final else math.nan) / len(initial)
    state = _state(initial, final, least) if final else "unknown"
    return _End(number, name, state, energy, tuple(initial), tuple(final), net)


def _structure(result: Any) -> Any:
    return structure_of(brought(result, "structure"))


def _state(initial: list[float], final: list[float], least: float) -> str:
    """`kept`, or what became of the moments.

    Example:
        >>> _state([2.0, -2.0, 0.0], [-1.8, 1.8, 0.1], 0.2)
        'kept'
        >>> _state([2.0, -2.0], [2.1, 2.1], 0.2)
        'became FM'
    """
    pairs = [(begun, end) for begun, end in zip(initial, final, strict=True) if begun]
    signs = [0 if abs(end) < least else math.copysign(1, begun * end) for begun, end in pairs]
    if all(sign == 0 for sign in signs):
        return "became nonmagnetic"
    if 0 in signs:
        return f"{signs.count(0)} of {len(signs)} moments were lost"
    if len(set(signs)) == 1:
        return "kept"
    return "became FM" if len({math.copysign(1, end) for _, end in pairs}) == 1 else "became another ordering"


def _ranked(best: _End, ranked: list[_End]) -> dict[str, float]:
    metrics = {"best": float(best.number), "energy_best": best.energy}
    begun = [abs(end) for start, end in zip(best.initial, best.final, strict=False) if start]
    if begun:
        metrics["moment"] = sum(begun) / len(begun)
    if math.isfinite(best.net):
        metrics["net_moment"] = best.net
    for metric, prefix in (("fm_energy", "FM"), ("nm_energy", "no moments"), ("afm_energy", "AFM")):
        those = [one.energy for one in ranked if one.name.startswith(prefix)]
        if those:
            metrics[metric] = 1000 * (min(those) - best.energy)
    return metrics


def _write(found: list[_End], run: Run) -> None:
    lowest = min((one.energy for one in found), default=math.inf)
    with (run.workdir / "orderings.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        head = ["number", "ordering", "state", "energy_ev_per_atom", "above_lowest_mev_per_atom"]
        rows.writerow([*head, "initial_moments_bohr_magneton", "final_moments_bohr_magneton"])
        for one in found:
            known = math.isfinite(one.energy)
            energies = [one.energy, round(1000 * (one.energy - lowest), 4)] if known else ["", ""]
            moments = (" ".join(f"{m:.3f}" for m in values) for values in (one.initial, one.final))
            rows.writerow([one.number, one.name, one.state, *energies, *moments])
