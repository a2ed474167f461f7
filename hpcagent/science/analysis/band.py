"""The energy along a path of images: barriers, their plot, the highest image."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcagent.apps.decorator import app
from hpcagent.apps.run import Outcome, Run
from hpcagent.apps.structures import structure_of, write_structure
from hpcagent.errors import AppFailed
from hpcagent.model.contract import Metric
from hpcagent.science.plots import can_draw, drawing

if TYPE_CHECKING:
    from ase import Atoms

__all__ = ["BARRIERS", "band_path", "unwrapped"]

# So far above the highest image the fit says that there is more: 0.02 eV, or a share of the barrier.
_ABOVE, _SHARE = 0.02, 0.05

BARRIERS = {
    name: Metric(name=name, unit=unit, description=description)
    for name, unit, description in (
        ("barrier", "eV", "energy of the highest image minus that of the first"),
        ("reverse_barrier", "eV", "energy of the highest image minus that of the last"),
        ("reaction_energy", "eV", "energy of the last image minus that of the first"),
        ("barrier_fit", "eV", "highest point of the curve fitted to energies and forces, minus the first image"),
        ("saddle_at", "1", "where the highest image is: length of the path up to it, over the whole"),
        ("path_length", "angstrom", "length of the path, over all coordinates"),
        ("n_images", "1", "images, with both ends"),
    )
}
"""Metrics of a path."""


@app(
    name="band_path",
    version="1.0.0",
    app_type="analysis",
    inputs=("runs...",),
    metrics=BARRIERS,
    seeded=False,
    failure_modes=("TooFewRuns", "NoStructure", "NoForces", "MixedRuns"),
    estimated_runtime_s=0.5,
)
def band_path(run: Run) -> Outcome:
    """Barriers along images in their order, both ends included, and their energy against the length of the path.

    The curve between images is the cubic that has their energies and their forces along the path
    (`ase.utils.forcecurve`; G. Henkelman and H. Jonsson, J. Chem. Phys. 113, 9978 (2000), doi:10.1063/1.1323224).
    Where `barrier_fit` is much above `barrier` no image is at the saddle.

    Artifacts: `structure` (the highest image), `band` (all, extended XYZ with energies and forces), `path` (CSV),
    `plot`.
    """
    from ase.io.extxyz import write_extxyz
    from ase.utils.forcecurve import fit_images

    if len(run.upstream) < 3:
        raise AppFailed(
            f"{len(run.upstream)} images are no path: both ends and one between them at least.",
            kind="contract",
            name="TooFewRuns",
        )
    images = unwrapped([structure_of(fields) for fields in run.upstream])
    for number, image in enumerate(images, 1):
        if image.calc is None or "forces" not in image.calc.results:
            raise AppFailed(
                f"the structure of input {number} has no energy and forces.",
                kind="contract",
                name="NoForces",
                repair="compute it with forces = 'yes'",
            )
    fit = fit_images(images)
    path, energies = np.asarray(fit.path, np.float64), np.asarray(fit.energies, np.float64)
    top = int(energies.argmax())
    with (run.workdir / "band.xyz").open("w") as file:
        write_extxyz(file, images)
    with (run.workdir / "path.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["path_angstrom", "energy_ev"])
        table.writerows([f"{x:.8g}", f"{e:.8g}"] for x, e in zip(path, energies, strict=True))
    artifacts = write_structure(run, images[top]) | {"band": "band.xyz", "path": "path.csv"}
    notes = []
    if top in (0, len(images) - 1):
        notes.append("no image is above both ends: the path has no saddle, or too few images to see it")
    above = float(np.max(fit.fit_energies)) - float(energies[top])
    if above > max(_ABOVE, _SHARE * float(energies[top])):
        notes.append(
            f"the curve through energies and forces goes {above:.3g} eV above the highest image: no image is at "
            "the saddle; take more of them, or climb"
        )
    if can_draw():
        _drawn(run, fit, top)
        artifacts["plot"] = "plot.png"
    else:
        notes.append("no plot: matplotlib is not installed here")
    metrics = {
        "barrier": energies[top],
        "reverse_barrier": energies[top] - energies[-1],
        "reaction_energy": energies[-1],
        "barrier_fit": np.max(fit.fit_energies),
        "saddle_at": path[top] / path[-1],
        "path_length": path[-1],
        "n_images": len(images),
    }
    return Outcome(metrics={k: float(v) for k, v in metrics.items()}, artifacts=artifacts, notes=tuple(notes))


def unwrapped(images: list[Atoms]) -> list[Atoms]:
    """The images with each atom where it is nearest to where it was in the image before.

    Periodic ones are wrapped, free molecules turned and moved, with their forces.

    Raises:
        AppFailed: `MixedRuns`: not the same atoms in the same order and cell, or two images in one place.
    """
    from ase.calculators.singlepoint import SinglePointCalculator

    found = [images[0]]
    for number, image in enumerate(images[1:], 2):
        last = found[-1]
        same = image.get_chemical_symbols() == last.get_chemical_symbols() and (image.pbc == last.pbc).all()
        if not same or not np.allclose(image.cell[:], last.cell[:], atol=1e-4):
            raise _mixed(
                f"image {number} ({image.symbols}) has other atoms, another order or another cell than the one "
                f"before it ({last.symbols})."
            )
        moved, results = _onto(last, image)
        if float(np.abs(moved.positions - last.positions).max()) < 1e-3:
            raise _mixed(f"image {number} is where the one before it is.")
        if results:
            moved.calc = SinglePointCalculator(moved, **results)
        found.append(moved)
    return found


def _onto(last: Atoms, image: Atoms) -> tuple[Atoms, dict[str, Any]]:
    """The image nearest to the one before it, and its results: wrapped; or turned, where it is a free molecule."""
    from ase.build.rotate import rotation_matrix_from_points
    from ase.geometry import find_mic

    results = {} if image.calc is None else dict(image.calc.results)
    moved = image.copy()
    if image.pbc.any():
        way, _ = find_mic(image.positions - last.positions, image.cell, image.pbc)
        moved.positions = last.positions + way
    elif not last.constraints:
        centre, own = last.positions.mean(axis=0), image.positions.mean(axis=0)
        turn = rotation_matrix_from_points((image.positions - own).T, (last.positions - centre).T)
        moved.positions = (image.positions - own) @ turn.T + centre
        results = {k: v @ turn.T if k == "forces" else v for k, v in results.items() if k != "stress"}
    return moved, results


def _mixed(what: str) -> AppFailed:
    return AppFailed(
        what,
        kind="contract",
        name="MixedRuns",
        repair="two different minima of the same atoms, in the same order and the same cell",
    )


def _drawn(run: Run, fit: Any, top: int) -> None:
    with drawing(run) as (_, (axes,)):
        axes.plot(fit.fit_path, fit.fit_energies, color="#0072B2", label="fit to energies and forces")
        for x, y in fit.lines:
            axes.plot(x, y, color="#009E73", linewidth=1.0)
        axes.plot(fit.path, fit.energies, "o", color="#000000", label="images; slopes are their forces")
        axes.plot(fit.path[top], fit.energies[top], "o", color="#D55E00", label=f"{fit.energies[top]:.3f} eV")
        axes.axhline(0, color="#cccccc", linewidth=0.8, zorder=0)
        axes.set_ylim(top=1.3 * max(max(fit.fit_energies), 1e-3))
        axes.set_xlabel("length of the path (Å)")
        axes.set_ylabel("energy (eV)")
        axes.legend(loc="upper left", ncols=2, fontsize=9)
