"""Nudged elastic bands: a path over a saddle between two minima, each image of each step a run of its own."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcagent.apps.chain import artifacts_of, chain, metrics_of
from hpcagent.apps.run import Outcome, Run
from hpcagent.errors import AppFailed
from hpcagent.model.contract import Metric
from hpcagent.model.parameter import Choice, Float, Int, Text
from hpcagent.science.analysis.band import BARRIERS, band_path, unwrapped
from hpcagent.science.chains.band_ends import alike_held, check_two_minima, exchanged
from hpcagent.science.chains.levels import fixed_mesh, level_of, own_settings
from hpcagent.science.chains.references import atoms_of
from hpcagent.science.chains.vibrations import structure_at, vibrations
from hpcagent.science.dft.energy import dft_energy
from hpcagent.science.dft.relax import dft_relax
from hpcagent.science.engines.base import LEVEL
from hpcagent.science.engines.task import FILES, RANKS, SETTINGS
from hpcagent.science.structures.crystal import LATTICES, build_crystal

if TYPE_CHECKING:
    from ase import Atoms

__all__ = ["neb", "vacancy_migration"]

_METHOD = "improvedtangent"  # the tangent of Henkelman and Jonsson
# Below this many times fmax the band is near the path, and the highest image begins to climb.
_CLIMB_AT = 5.0
# Atoms that go at least this share of the longest way take part in what happens at the saddle.
_TAKES_PART = 0.1

BAND = {
    "images": Int(1, 101, default=5, description="images between the two ends"),
    "interpolation": Choice(
        "idpp", "linear", default="idpp", description="first path; idpp keeps atoms apart, linear goes straight"
    ),
    "climb": Choice("yes", "no", default="yes", description="whether the highest image climbs to the saddle"),
    "spring": Float(
        1e-3, 100.0, unit="eV/angstrom^2", log=True, default=0.1, description="springs between images"
    ),
    "optimizer": Choice("BFGS", "LBFGS", "FIRE", default="BFGS", description="ASE's; FIRE for rough starts"),
    "fmax": Float(
        1e-4,
        1.0,
        unit="eV/angstrom",
        log=True,
        default=0.05,
        description="largest force on an atom of an image, without its part along the path; also of the ends",
    ),
    "max_steps": Int(1, 10000, default=200, description="steps of the band, and of the relaxation of each end"),
    "relax_ends": Choice("yes", "no", default="yes", description="whether the ends are relaxed first"),
    "verify": Choice(
        "no",
        "yes",
        default="no",
        description="whether the modes of the saddle are computed: one is imaginary there",
    ),
}
METRICS = BARRIERS | {
    name: Metric(name=name, unit=unit, description=description, required=required)
    for name, unit, description, required in (
        ("max_force", "eV/angstrom", "largest force that is left on the band", True),
        ("n_steps", "1", "steps of the band", True),
        ("n_imaginary", "1", "imaginary modes at the highest image, with `verify`", False),
        ("imaginary_frequency", "1/cm", "frequency of the lowest of them", False),
    )
}


@chain(
    name="neb",
    version="1.1.0",
    inputs=("initial", "final"),
    parameters=LEVEL | RANKS | BAND,
    metrics=METRICS,
    settings=SETTINGS,
    files=FILES,
    estimated_runtime_s=1200.0,
    seeded=False,
    failure_modes=(
        *band_path.contract.failure_modes,
        "SameMinimum",
        "BadPath",
        "BandNotConverged",
        "NonNumeric",
        "NotRelaxed",
        "NotConverged",
    ),
)
def neb(initial: Any, final: Any, *, run: Run, **params: Any) -> Outcome:
    """Barrier between two minima by a climbing-image nudged elastic band (ASE's NEB).

    Both ends are relaxed, `images` are put between them, and the band is relaxed until the forces across the path
    are below `fmax`; the highest image climbs from 5 `fmax` on (G. Henkelman, B. P. Uberuaga and H. Jonsson, J.
    Chem. Phys. 113, 9901 (2000), doi:10.1063/1.1329672). Tangents are the improved ones
    (doi:10.1063/1.1323224). First path: S. Smidstrup et al., J. Chem. Phys. 140, 214106 (2014),
    doi:10.1063/1.4878664.

    Each image of each step is a run of its own: all of a step run side by side, on as many workers as there are
    images, and an interrupted band goes on where it was, since every step that is there answers at once. The price
    is that each SCF starts anew. Atoms must stand in the same order in both ends. A band that is not relaxed
    within `max_steps` is a failure (`BandNotConverged`); its last images are kept in `band.xyz` in the chain's
    directory.

    Artifacts: `structure` (the highest image), `band`, `path`, `plot`.
    """
    level = fixed_mesh(initial, level_of(params))
    settings = own_settings(run.settings)
    energy = dft_energy.with_settings(**settings)
    initial, final, notes = alike_held(initial, final)
    before = atoms_of(initial), atoms_of(final)
    ends = [_end(end, params, level, settings) for end in (initial, final)]
    relaxed = structure_at(ends[0]), structure_at(ends[1])
    if params["relax_ends"] == "yes" and before[0].pbc.any() and len(before[0]) == len(before[1]):
        check_two_minima(before, relaxed)
    first, last = unwrapped(list(relaxed))
    swapped = exchanged(first, last)
    notes += swapped
    parts: list[Any] = []

    def computed(some: list[Atoms]) -> None:
        parts[:] = [energy(_bare(image), forces="yes", **level) for image in some]
        for image, part in zip(some, parts, strict=True):
            _attach(image, structure_at(part))

    try:
        images = _interpolated(first, last, params)
        steps, left = _relaxed(images, computed, params, run)
    except AppFailed as error:
        if not swapped:
            raise
        said = " ".join((error.message, *swapped))
        raise AppFailed(said, kind=error.kind, name=error.name, repair=error.repair) from error
    found = band_path(ends[0], *parts, ends[1])
    metrics = dict(metrics_of(found)) | {"n_steps": float(steps), "max_force": left}
    if params["climb"] != "yes":
        notes += ("no image has climbed: the barrier is below that of the saddle",)
    if params["verify"] == "yes":
        taking_part = _taking_part(first, last)
        modes = vibrations.with_settings(**settings)(
            structure_at(found), relax="no", atoms=taking_part, model="harmonic", imaginary=1, **level
        )
        metrics["n_imaginary"] = metrics_of(modes)["n_imaginary"]
        if metrics["n_imaginary"]:
            metrics["imaginary_frequency"] = metrics_of(modes)["lowest_frequency"]
        if metrics["n_imaginary"] != 1:
            notes += (
                f"the highest image has {metrics['n_imaginary']:.0f} imaginary modes (atoms {taking_part}), "
                "a saddle has one",
            )
    return Outcome(
        metrics=metrics,
        artifacts=artifacts_of(run, structure=found, band=found, path=found, plot=found),
        notes=notes,
    )


@chain(
    name="vacancy_migration",
    version="1.1.0",
    parameters={
        "name": Text(default="Cu", description="element"),
        "crystal": Choice(*LATTICES, default="auto", description="lattice; auto: the element's own"),
        "a": Float(
            0.0, 100.0, unit="angstrom", default=0.0, description="lattice constant; 0: ASE's (experiment)"
        ),
        "size": Int(2, 20, default=2, description="cubic cells along each vector"),
    }
    | LEVEL
    | RANKS
    | BAND,
    metrics=METRICS,
    settings=SETTINGS,
    files=FILES,
    estimated_runtime_s=1200.0,
    seeded=False,
    failure_modes=("BadLattice", *neb.contract.failure_modes),
    vary=("name", "size"),
)
def vacancy_migration(name: str, crystal: str, a: float, size: int, run: Run, **params: Any) -> Any:
    """Barrier for an atom of a crystal to jump into a vacancy of its element beside it; see `neb`.

    In a compound it is the first element of the formula that jumps, to the nearest place of its own sublattice.
    """
    perfect = structure_at(build_crystal(name=name, lattice=crystal, a=a, nx=size, ny=size, nz=size))
    # Of its own element: an atom of another one would end on the wrong sublattice.
    others = [int(i) for i in np.flatnonzero(perfect.numbers == perfect.numbers[0]) if i]
    jumps = others[int(np.argmin(perfect.get_distances(0, others, mic=True)))]
    before, after = perfect.copy(), perfect.copy()
    after.positions[jumps] = perfect.positions[0]
    del before[0], after[0]
    return neb.with_settings(**own_settings(run.settings))(before, after, **params)


def _end(end: Any, params: dict[str, Any], level: dict[str, Any], settings: dict[str, Any]) -> Any:
    if params["relax_ends"] == "no":
        return dft_energy.with_settings(**settings)(end, forces="yes", **level)
    return dft_relax.with_settings(**settings)(end, fmax=params["fmax"], max_steps=params["max_steps"], **level)


def _interpolated(first: Atoms, last: Atoms, params: dict[str, Any]) -> list[Atoms]:
    from ase.mep.neb import NEB, idpp_interpolate, interpolate

    images = [first, *(first.copy() for _ in range(params["images"])), last]
    interpolate(images, mic=bool(first.pbc.any()), apply_constraint=False)
    if params["interpolation"] == "idpp":
        with np.errstate(divide="ignore", invalid="ignore"):  # atoms in one place: seen below
            idpp_interpolate(NEB(images, method=_METHOD), traj=None, log=None, mic=bool(first.pbc.any()))
    if not all(np.isfinite(image.positions).all() for image in images):
        raise AppFailed(
            "the first path leads atoms through each other: no images between the ends.",
            kind="contract",
            name="BadPath",
            repair="another number of images, or ends whose atoms do not change places",
        )
    return images


def _relaxed(
    images: list[Atoms], computed: Callable[[list[Atoms]], None], params: dict[str, Any], run: Run
) -> tuple[int, float]:
    """Relax the images in place; returns the steps and the largest force that is left, in eV/angstrom."""
    import ase.optimize
    from ase.mep.neb import NEB

    free = not images[0].pbc.any() and not images[0].constraints

    class Band(NEB):
        """Asks for all images of a step at once."""

        left = math.inf

        def get_forces(self) -> Any:
            if free:
                _turned(self.images)
            if any(image.calc is None or image.calc.atoms != image for image in self.images[1:-1]):
                computed(self.images[1:-1])
            forces = super().get_forces()  # type: ignore[no-untyped-call]  # nor that
            self.left = float(np.sqrt((forces**2).sum(axis=1).max()))
            return forces

    make: Any = Band  # ASE is not typed
    band = make(images, k=params["spring"], method=_METHOD)
    fmax, steps, relaxed = params["fmax"], 0, False
    climbs = params["climb"] == "yes"
    for climb in (False, True) if climbs else (False,):
        band.climb = climb
        wanted = fmax if climb == climbs else _CLIMB_AT * fmax
        with (
            (run.workdir / "band.log").open("a") as log,
            getattr(ase.optimize, params["optimizer"])(band, logfile=log) as optimizer,
        ):
            for relaxed in optimizer.irun(fmax=wanted, steps=params["max_steps"] - steps):  # noqa: B007
                if not math.isfinite(band.left):
                    raise AppFailed(
                        f"forces are no number after {steps + optimizer.nsteps} steps of the band.",
                        name="NonNumeric",
                        repair="interpolation = 'idpp': two atoms in one place?",
                    )
            steps += int(optimizer.nsteps)
        if not relaxed:
            break
    if not relaxed:
        _keep(images, run)
        raise AppFailed(
            f"the band is not relaxed in {steps} steps of {params['optimizer']}: the largest force is "
            f"{band.left:.3g} eV/angstrom, fmax is {fmax:g}. The last images are kept in band.xyz.",
            name="BandNotConverged",
            repair="more max_steps, optimizer = 'FIRE', or another number of images",
        )
    return steps, band.left


def _keep(images: list[Atoms], run: Run) -> None:
    from ase.io.extxyz import write_extxyz

    with (run.workdir / "band.xyz").open("w") as file:
        write_extxyz(file, images)


def _bare(image: Atoms) -> Atoms:
    copy: Atoms = image.copy()
    copy.calc = None
    return copy


def _turned(images: list[Atoms]) -> None:
    """Turn and move each image of a free molecule onto the one before it."""
    from ase.build import minimize_rotation_and_translation
    from ase.calculators.singlepoint import SinglePointCalculator

    energy = images[-1].get_potential_energy()
    for one, after in itertools.pairwise(images):
        minimize_rotation_and_translation(one, after)
    images[-1].calc = SinglePointCalculator(images[-1], energy=energy)


def _attach(image: Atoms, result: Atoms) -> None:
    from ase.calculators.singlepoint import SinglePointCalculator

    results = result.calc.results
    image.calc = SinglePointCalculator(image, energy=results["energy"], forces=results["forces"])


def _taking_part(first: Atoms, last: Atoms) -> str:
    """Numbers of the atoms that move most between the ends, as the chain `vibrations` takes them."""
    way = np.linalg.norm(last.positions - first.positions, axis=1)
    return ",".join(str(i) for i in np.flatnonzero(way >= _TAKES_PART * way.max()))
