"""Band structures along lines of the Brillouin zone, and the gap."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hpcagent.apps.decorator import app
from hpcagent.apps.run import Outcome, Run
from hpcagent.errors import AppFailed
from hpcagent.model.contract import Metric
from hpcagent.model.parameter import Int, Text
from hpcagent.science.engines.base import LEVEL, Level
from hpcagent.science.engines.isolated import FAILURE_MODES, run_isolated
from hpcagent.science.engines.task import FILES, RANKS, RESOURCES_FROM, SETTINGS
from hpcagent.science.engines.watched import attached

if TYPE_CHECKING:
    from pathlib import Path

    from ase import Atoms

__all__ = ["Edges", "dft_bands", "edges"]

_METAL_EV = 1e-3
"""A gap below this is none: engines converge band energies to about so much."""


@dataclass(frozen=True, slots=True)
class Edges:
    """Where the bands of a band structure end, in eV.

    Attributes:
        vbm: Highest energy of the occupied bands; None in a metal.
        cbm: Lowest energy of the empty ones; None in a metal.
        direct: Smallest distance between the two at one k-point and spin; None in a metal.
        vbm_at: Index of the k-point of `vbm`.
        cbm_at: Index of the k-point of `cbm`.
    """

    vbm: float | None = None
    cbm: float | None = None
    direct: float | None = None
    vbm_at: int = 0
    cbm_at: int = 0

    @property
    def gap(self) -> float:
        """`cbm` - `vbm`, 0 in a metal."""
        return 0.0 if self.vbm is None or self.cbm is None else self.cbm - self.vbm


@app(
    name="dft_bands",
    version="0.1.0",
    inputs=("structure",),
    parameters={
        **LEVEL,
        "path": Text(default="", description="special points, e.g. LGXKG; empty: the standard path of the cell"),
        "points": Int(10, 2000, default=100, description="k-points along the path"),
        **RANKS,
    },
    metrics={
        "gap": Metric(name="gap", unit="eV", description="lowest empty minus highest occupied energy; 0: a metal"),
        "direct_gap": Metric(
            name="direct_gap", unit="eV", description="smallest gap at one k-point; not in a metal", required=False
        ),
        "vbm": Metric(
            name="vbm", unit="eV", description="highest occupied energy; not in a metal", required=False
        ),
        "cbm": Metric(name="cbm", unit="eV", description="lowest empty energy; not in a metal", required=False),
        "fermi": Metric(
            name="fermi",
            unit="eV",
            description="Fermi energy of the SCF, or its highest occupied level where occupations are fixed",
            required=False,
        ),
        "is_metal": Metric(name="is_metal", unit="1", description="1 for a metal, else 0"),
        "scf_steps": Metric(name="scf_steps", unit="1", description="SCF steps of the density, repairs included"),
        "n_repairs": Metric(name="n_repairs", unit="1", description="repairs that the SCF needed"),
    },
    resources_from=RESOURCES_FROM,
    settings=SETTINGS,
    files=FILES,
    estimated_runtime_s=60.0,
    seeded=False,
    failure_modes=(*FAILURE_MODES, "NotPeriodic", "BadPath", "NoBands", "FewKpoints"),
)
def dft_bands(run: Run, **params: Any) -> Outcome:
    """Bands along a path of special points, in the density of an SCF, and the gap.

    The gap is that of the k-points on the path: where a band edge lies beside the path, the true one is smaller.
    The standard path is that of Setyawan and Curtarolo (doi:10.1016/j.commatsci.2010.05.010) for the Bravais
    lattice of the cell; give a primitive cell, in a larger one bands are folded. Energies are those of the engine,
    relative to its own zero; gaps of semilocal functionals are too small by a third and more.

    Artifacts: `bands` (`ase.spectrum.band_structure.BandStructure`, JSON), `plot` (PNG), `scf` and the engine's
    files.

    Failures: `NotPeriodic`, `BadPath` (the message lists the cell's special points), `NoBands`, and those of the
    engine.
    """
    return run_isolated(_bands, run, **params)


def _bands(run: Run, *, path: str, points: int, **params: Any) -> Outcome:
    atoms, watch = attached(run, Level.of(params, run.settings))
    close = getattr(watch.calculator, "close", lambda: None)
    try:
        band_path = _path(atoms, path, points)
        atoms.get_potential_energy()
        # A repair has made another calculator.
        close = getattr(watch.calculator, "close", lambda: None)
        structure = watch.engine.bands(watch.calculator, atoms, watch.level, band_path, run)
    finally:
        scf = watch.write()
        close()
    found = edges(structure.energies, float(structure.reference), _electrons(watch.calculator))
    structure.write(run.workdir / "bands.json")
    fermi = float(structure.reference)
    notes, plot = list(watch.notes), {}
    notes += getattr(watch.calculator, "notes", ())
    if _draw(structure, found, fermi, run.workdir / "bands.png"):
        plot = {"plot": "bands.png"}
    else:
        notes.append("no plot: matplotlib is not installed here")
    if found.vbm is not None:
        notes.append(
            f"valence band ends at {_named(band_path, found.vbm_at)}, conduction band begins at "
            f"{_named(band_path, found.cbm_at)}"
        )
    artifacts = {**getattr(watch.calculator, "artifacts", {}), **scf, "bands": "bands.json", **plot}
    values = {"direct_gap": found.direct, "vbm": found.vbm, "cbm": found.cbm}
    return Outcome(
        metrics={
            "gap": found.gap,
            "is_metal": float(found.vbm is None),
            "scf_steps": watch.scf_steps,
            "n_repairs": len(watch.repaired),
            **({"fermi": fermi} if math.isfinite(fermi) else {}),
            **{name: value for name, value in values.items() if value is not None},
        },
        artifacts=artifacts,
        notes=tuple(notes),
        **watch.made_with,
    )


def _path(atoms: Atoms, path: str, points: int) -> Any:
    if not atoms.pbc.any():
        raise AppFailed(
            f"{atoms.symbols} is not periodic, so it has levels, not bands.",
            kind="contract",
            name="NotPeriodic",
            repair="a crystal; its `pbc` must say that it is one",
        )
    try:
        return atoms.cell.bandpath(path or None, npoints=points, pbc=atoms.pbc)
    except (KeyError, ValueError) as error:
        known = ", ".join(atoms.cell.get_bravais_lattice(pbc=atoms.pbc).get_special_points())
        raise AppFailed(
            f"path={path!r} is no path in this cell: {error}; its special points are {known}.",
            kind="contract",
            name="BadPath",
        ) from None


def _electrons(calculator: Any) -> float | None:
    """Valence electrons of the cell, where the engine says how many they are."""
    found = getattr(calculator, "valence_electrons", None)
    if found is None:
        found = getattr(getattr(getattr(calculator, "field", None), "cell", None), "nelectron", None)
    return None if found is None else float(found)


def edges(energies: Any, fermi: float, electrons: float | None = None) -> Edges:
    """The edges of bands.

    Without spin, bands are filled from below with two electrons each. With spin, or where the number of electrons
    is not known, a band is occupied if all of it is below `fermi`; where one lies on both sides, it is a metal.

    Args:
        energies: (spins, k-points, bands), in eV.
        fermi: Fermi energy, in eV.
        electrons: In the cell.

    Example:
        >>> edges([[[-1.0, 2.0], [0.0, 1.0], [-0.5, 0.5]]], 0.2, 2).gap
        0.5
    """
    import numpy as np

    bands = np.sort(np.asarray(energies, dtype=float), axis=2)
    counts = _occupied(bands, fermi, electrons)
    if counts is None:
        return Edges()
    # For each k-point the highest occupied and the lowest empty energy of each spin.
    spins = range(len(bands))
    below = np.array(
        [bands[s, :, counts[s] - 1] if counts[s] else np.full(bands.shape[1], -np.inf) for s in spins]
    )
    above = np.array(
        [bands[s, :, counts[s]] if counts[s] < bands.shape[2] else np.full(bands.shape[1], np.inf) for s in spins]
    )
    if not np.isfinite(below).any() or not np.isfinite(above).any():
        return Edges()
    vbm, cbm = float(below.max()), float(above.min())
    if cbm - vbm < _METAL_EV:
        return Edges()
    return Edges(
        vbm=vbm,
        cbm=cbm,
        direct=float((above - below).min()),
        vbm_at=int(np.unravel_index(below.argmax(), below.shape)[1]),
        cbm_at=int(np.unravel_index(above.argmin(), above.shape)[1]),
    )


def _occupied(bands: Any, fermi: float, electrons: float | None) -> list[int] | None:
    """How many bands of each spin are occupied; None in a metal."""
    if len(bands) == 1 and electrons is not None:
        return (
            None if round(electrons) % 2 or abs(electrons - round(electrons)) > 1e-3 else [round(electrons) // 2]
        )
    lowest, highest = bands.min(axis=1), bands.max(axis=1)
    if ((lowest < fermi - _METAL_EV) & (highest > fermi + _METAL_EV)).any():
        return None
    counts = [int((of_spin <= fermi + _METAL_EV).sum()) for of_spin in highest]
    if electrons is not None and sum(counts) != round(electrons):
        return None
    return counts


def _named(path: Any, index: int) -> str:
    """A k-point by its letter, or as the share of the way between two special points."""
    import numpy as np

    x, special, labels = path.get_linear_kpoint_axis()
    right = min(int(np.searchsorted(special, x[index] - 1e-9)), len(special) - 1)
    if abs(special[right] - x[index]) < 1e-6 or right == 0:
        return str(labels[right])
    share = (x[index] - special[right - 1]) / (special[right] - special[right - 1])
    return f"{share:.2f} of the way from {labels[right - 1]} to {labels[right]}"


_WINDOW_EV = (-14.0, 10.0)


def _draw(structure: Any, found: Edges, fermi: float, file: Path) -> bool:
    """Draw the bands; says whether it could."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    x, special, labels = structure.path.get_linear_kpoint_axis()
    zero = fermi if found.vbm is None else found.vbm
    if not math.isfinite(zero):
        zero = 0.0
    figure = Figure(figsize=(7.0, 5.0), layout="constrained")
    axes = figure.add_subplot()
    spins = len(structure.energies)
    for energies, colour, name in zip(
        structure.energies, ("#0072B2", "#D55E00"), ("spin up", "spin down"), strict=False
    ):
        lines = axes.plot(x, energies - zero, color=colour, linewidth=1.2)
        if spins == 2:
            lines[0].set_label(name)
    for place in special:
        axes.axvline(place, color="#999999", linewidth=0.6)
    axes.axhline(0.0, color="#999999", linewidth=0.8, linestyle="--")
    axes.set_xticks(*_ticks(special, labels))
    axes.set_xlim(x[0], x[-1])
    low, high = structure.energies.min() - zero, structure.energies.max() - zero
    axes.set_ylim(max(_WINDOW_EV[0], low - 0.5), min(_WINDOW_EV[1], high + 0.5))
    axes.set_ylabel(f"energy - {'Fermi energy' if found.vbm is None else 'valence band maximum'} (eV)")
    gap = f"gap {found.gap:.2f} eV"
    axes.set_title("metal" if found.vbm is None else f"{gap}, direct {found.direct:.2f} eV", fontsize=10)
    if spins == 2:
        axes.legend(loc="upper right")
    figure.savefig(file, dpi=120)
    return True


def _ticks(special: Any, labels: Any) -> tuple[list[float], list[str]]:
    """Places and letters of the special points; two that share a place (the path jumps) share a label."""
    places: list[float] = []
    names: list[str] = []
    for place, label in zip(special, labels, strict=True):
        letter = {"G": "\N{GREEK CAPITAL LETTER GAMMA}"}.get(label, label)
        if places and abs(places[-1] - place) < 1e-9:
            names[-1] += f"|{letter}"
        else:
            places.append(float(place))
            names.append(letter)
    return places, names
