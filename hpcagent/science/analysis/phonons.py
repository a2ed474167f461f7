"""Phonons of a crystal from the forces in displaced supercells, by phonopy."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hpcagent.apps.decorator import app
from hpcagent.apps.packages import needs, versions_of
from hpcagent.apps.run import Outcome, Run
from hpcagent.apps.structures import structure_of
from hpcagent.errors import AppFailed
from hpcagent.model.contract import Metric
from hpcagent.model.parameter import Float, Int, Parameter, Text
from hpcagent.science.plots import can_draw, drawing

if TYPE_CHECKING:
    from ase import Atoms

__all__ = ["PHONONS", "PHONON_METRICS", "displaced_supercells", "phonon_properties"]

_Array = NDArray[np.float64]
_NOTHING = 1e-3  # THz: of a rigid translation; its entropy would be that of noise

PHONONS: dict[str, Parameter] = {
    "displacement": Float(
        1e-3, 0.3, unit="angstrom", log=True, default=0.01, description="of the displaced atoms"
    ),
    "symprec": Float(
        1e-6, 0.1, unit="angstrom", log=True, default=1e-4, description="distance within which symmetry holds"
    ),
    "temperature": Float(0.0, 20000.0, unit="K", default=300.0, description="temperature of the free energy"),
    "t_max": Float(1.0, 20000.0, unit="K", default=1000.0, description="highest temperature of thermal.csv"),
    "q_length": Float(
        1.0,
        1000.0,
        unit="angstrom",
        default=100.0,
        description="mesh of q-points: so many cells along a vector fill it",
    ),
    "path": Text(default="", description="special points, e.g. GXWLG; empty: the standard path of the cell"),
    "points": Int(10, 2000, default=200, description="q-points along the path"),
    "noise": Float(
        0.0, 5.0, unit="THz", default=0.05, description="an imaginary frequency counts from here on: what is noise"
    ),
}
"""Parameters of phonons from forces."""

PHONON_METRICS = {
    name: Metric(name=name, unit=unit, description=description, required=required)
    for name, unit, description, required in (
        ("n_displacements", "1", "displaced supercells that the symmetry needs", True),
        ("supercell_atoms", "1", "atoms in a supercell", True),
        ("max_frequency", "THz", "highest frequency on the mesh of q-points", True),
        ("min_frequency", "THz", "lowest frequency on the mesh; an imaginary one as a negative number", True),
        ("optical_gamma", "THz", "highest frequency at Gamma, where there are optical modes", False),
        ("acoustic_gamma", "THz", "largest acoustic frequency at Gamma before the sum rule is imposed", True),
        ("n_imaginary", "1", "imaginary modes at the q-points that the supercell holds exactly", True),
        ("imaginary_share", "1", "share of imaginary modes on the interpolated mesh", True),
        ("zero_point_energy", "eV/atom", "zero-point energy", False),
        (
            "vibrational_free_energy",
            "eV/atom",
            "harmonic Helmholtz energy at `temperature`, zero point included",
            False,
        ),
        ("free_energy", "eV/atom", "the same and the potential energy at rest", False),
        ("entropy", "J/mol/K", "vibrational entropy at `temperature`, of a mole of atoms", False),
        ("heat_capacity", "J/mol/K", "heat capacity at fixed volume and `temperature`, of a mole of atoms", False),
    )
}
"""Metrics of phonons."""


@app(
    name="phonon_properties",
    version="1.0.0",
    app_type="analysis",
    inputs=("runs...",),
    parameters={"supercell": Text(default="", description="cells along each vector, 4x4x4")} | PHONONS,
    metrics=PHONON_METRICS,
    seeded=False,
    failure_modes=("NoEngine", "NoStructure", "NoForces", "NotPeriodic", "MixedRuns", "BadSupercell", "BadPath"),
    estimated_runtime_s=2.0,
)
def phonon_properties(run: Run, *, supercell: str, **params: Any) -> Outcome:
    """Bands, density of states and thermal properties; the first run is the cell at rest, others are displaced.

    By phonopy (A. Togo, L. Chaput, T. Tadano, I. Tanaka, J. Phys.: Condens. Matter 35, 353001 (2023),
    doi:10.1088/1361-648X/acd831): force constants by finite displacements and the crystal's symmetry, made to obey
    the acoustic sum rule. Frequencies are exact, for these forces, at the q-points that fit into the supercell
    and interpolated between them. So imaginary modes are counted at the former (`n_imaginary`), without the three
    translations at Gamma; one that is only on the interpolated mesh (`imaginary_share`), mostly near Gamma,
    wants a larger supercell. With `n_imaginary` above 0 the crystal is not stable, and no thermal properties are
    given. The path is that of Setyawan and Curtarolo (doi:10.1016/j.commatsci.2010.05.010), as ASE has it.

    Without Born charges: in polar crystals the splitting of longitudinal and transverse optical modes near Gamma
    is missing, which a note says.

    Artifacts: `phonopy` (phonopy_params.yaml, with forces and force constants: `phonopy.load` opens it), `bands`,
    `dos`, `thermal` (CSV), `plot`.
    """
    needs("phonopy", "pip install 'hpcagent[phonons]'")
    rest = structure_of(run.upstream[0])
    phonons, wanted = displaced_supercells(rest, supercell, params["displacement"], params["symprec"])
    phonons.forces = _forces(run, wanted)
    phonons.produce_force_constants(show_drift=False)
    drift = float(np.abs(_lowest(_at(phonons, [(0, 0, 0)])[0], 3)).max())
    phonons.symmetrize_force_constants(show_drift=False)
    phonons.save(run.workdir / "phonopy_params.yaml", settings={"force_constants": True})
    gamma = _at(phonons, [(0, 0, 0)])[0]
    metrics: dict[str, float] = {
        "n_displacements": len(wanted),
        "supercell_atoms": len(wanted[0]),
        "acoustic_gamma": drift,
    }
    if len(gamma) > 3:
        metrics["optical_gamma"] = float(gamma.max())
    exact, where = _imaginary(phonons, params["noise"])
    notes = list(where)
    mesh = phonons.run_mesh(params["q_length"], is_gamma_center=True)
    frequencies, weights = np.asarray(mesh.frequencies), np.asarray(mesh.weights, np.float64)
    share = float(((frequencies < -params["noise"]).mean(axis=1) @ weights) / weights.sum())
    metrics |= {
        "n_imaginary": exact,
        "imaginary_share": share,
        "max_frequency": float(frequencies.max()),
        "min_frequency": float(frequencies.min()),
    }
    if share and not exact:
        notes.append(
            f"{100 * share:.2g} % of the modes are imaginary between the q-points that the supercell holds, none "
            "at these: an artefact of interpolation, or an instability that it does not hold; try a larger "
            "supercell. Thermal properties leave them out"
        )
    artifacts = {"phonopy": "phonopy_params.yaml"} | _bands(run, phonons, params)
    dos = phonons.run_total_dos()
    _table(
        run,
        "dos.csv",
        ("frequency_thz", "states_per_thz_per_cell"),
        zip(dos.frequency_points, dos.dos, strict=True),
    )
    artifacts["dos"] = "dos.csv"
    if not exact:
        metrics |= _thermal(run, phonons, params, run.upstream[0].get("metrics") or {}, len(rest))
        artifacts["thermal"] = "thermal.csv"
    if len(set(rest.get_chemical_symbols())) > 1:
        notes.append("without Born charges: where the crystal is polar, optical modes do not split near Gamma")
    if can_draw():
        _drawn(run, params["noise"])
        artifacts["plot"] = "plot.png"
    else:
        notes.append("no plot: matplotlib is not installed here")
    return Outcome(
        metrics=metrics, artifacts=artifacts, notes=tuple(notes), versions=versions_of("phonopy", "spglib")
    )


def displaced_supercells(
    rest: Atoms, supercell: str, displacement: float, symprec: float
) -> tuple[Any, list[Atoms]]:
    """The displacements that the symmetry of a crystal needs.

    Args:
        rest: The relaxed cell, primitive or not.
        supercell: Cells along each vector, `4x4x4`.
        displacement: In angstrom.
        symprec: Distance within which symmetry holds, in angstrom.

    Returns:
        phonopy's object, and the supercells.

    Raises:
        AppFailed: `NotPeriodic`; `BadSupercell`.
    """
    from phonopy import Phonopy
    from phonopy.structure.atoms import PhonopyAtoms
    from phonopy.structure.cells import guess_primitive_matrix

    if not rest.pbc.all() or rest.cell.rank < 3:
        raise AppFailed(
            f"phonons need a crystal; {rest.symbols} is periodic along {int(rest.pbc.sum())} of three directions.",
            kind="contract",
            name="NotPeriodic",
            repair="the chain `vibrations` takes molecules and adsorbates",
        )
    words = supercell.split("x")
    if len(words) != 3 or not all(w.isdecimal() and 0 < int(w) < 100 for w in words):
        raise AppFailed(
            f"supercell={supercell!r} does not say how many cells there are along each vector.",
            kind="contract",
            name="BadSupercell",
            repair="three whole numbers from 1 to 99, as in 4x4x4",
        )
    moments = rest.get_initial_magnetic_moments()
    cell = PhonopyAtoms(
        symbols=rest.get_chemical_symbols(),
        cell=rest.cell[:],
        scaled_positions=rest.get_scaled_positions(),
        masses=rest.get_masses(),
        magnetic_moments=moments if np.abs(moments).max() > 0 else None,
    )
    primitive = guess_primitive_matrix(cell, symprec=symprec)  # what "auto" does, with a warning
    phonons = Phonopy(cell, np.diag([int(w) for w in words]), primitive_matrix=primitive, symprec=symprec)
    if len(phonons.supercell) == 1:
        raise AppFailed(
            "a supercell of one atom has no phonons: to move it moves the whole crystal.",
            kind="contract",
            name="BadSupercell",
            repair="a larger supercell, repeat or length",
        )
    phonons.generate_displacements(distance=displacement)
    return phonons, [_atoms(one) for one in phonons.supercells_with_displacements or ()]


def _atoms(cell: Any) -> Atoms:
    from ase import Atoms

    found = Atoms(
        cell.symbols, cell=cell.cell, scaled_positions=cell.scaled_positions, pbc=True, masses=cell.masses
    )
    if cell.magnetic_moments is not None:
        found.set_initial_magnetic_moments(cell.magnetic_moments)
    return found


def _forces(run: Run, wanted: Sequence[Atoms]) -> list[_Array]:
    """Forces of the displaced supercells, in eV/angstrom, held against what they are to be."""
    given = run.upstream[1:]
    if len(given) != len(wanted):
        raise AppFailed(
            f"{len(given)} displaced supercells are given, {len(wanted)} are wanted.",
            kind="contract",
            name="MixedRuns",
        )
    found = []
    for number, (fields, should) in enumerate(zip(given, wanted, strict=True), 2):
        atoms = structure_of(fields)
        same = atoms.get_chemical_symbols() == should.get_chemical_symbols()
        if not same or np.abs(atoms.positions - should.positions).max() > 1e-5:
            raise AppFailed(
                f"input {number} ({atoms.symbols}) is not the displaced supercell that belongs there.",
                kind="contract",
                name="MixedRuns",
                repair="use the chain `phonons`; supercell, displacement and symprec must be those of the runs",
            )
        forces = None if atoms.calc is None else atoms.calc.results.get("forces")
        if forces is None:
            raise AppFailed(
                f"the structure of input {number} ({fields.get('workdir')}) has no forces.",
                kind="contract",
                name="NoForces",
                repair="compute it with forces = 'yes'",
            )
        found.append(np.asarray(forces, np.float64))
    return found


def _at(phonons: Any, points: Any) -> _Array:
    """Frequencies (points, branches) in THz; imaginary ones negative."""
    return np.asarray(phonons.run_qpoints(np.array(points, dtype=float)).frequencies, np.float64)


def _lowest(frequencies: _Array, n: int) -> _Array:
    """The n that are nearest to 0."""
    return frequencies[np.argsort(np.abs(frequencies))[:n]]


def _imaginary(phonons: Any, noise: float) -> tuple[int, list[str]]:
    """Imaginary modes at the q-points that fit into the supercell, and where they are."""
    from phonopy.harmonic.dynmat_to_fc import get_commensurate_points

    cells = np.rint(np.linalg.solve(phonons.primitive.cell.T, phonons.supercell.cell.T)).astype("int64")
    points = np.asarray(get_commensurate_points(cells), np.float64)
    count, said = 0, []
    for point, frequencies in zip(points, _at(phonons, points), strict=True):
        left = frequencies
        if np.abs(point - np.rint(point)).max() < 1e-8:  # Gamma: three of them are translations
            left = frequencies[np.argsort(np.abs(frequencies))[3:]]
        some = left[left < -noise]
        count += len(some)
        if len(some):
            at = ", ".join(f"{x:.3g}" for x in point)
            said.append(f"({at}): {', '.join(f'{-f:.3g}i' for f in some)} THz")
    if not count:
        return 0, []
    more = f" and {len(said) - 6} more q-points" if len(said) > 6 else ""
    return count, [
        f"not stable: {count} imaginary modes at q-points of the supercell (in reciprocal vectors of the "
        f"primitive cell): {'; '.join(said[:6])}{more}; no thermal properties"
    ]


def _bands(run: Run, phonons: Any, params: dict[str, Any]) -> dict[str, str]:
    from ase.cell import Cell

    cell = Cell(np.asarray(phonons.primitive.cell, np.float64))
    try:
        path = cell.bandpath(params["path"] or None, npoints=params["points"])
    except (KeyError, ValueError) as error:
        known = " ".join(cell.bandpath(npoints=0).special_points)
        raise AppFailed(
            f"path={params['path']!r} cannot be followed ({error}); the special points of the cell are {known}.",
            kind="contract",
            name="BadPath",
            repair="path='', the standard one",
        ) from None
    x, ticks, labels = path.get_linear_kpoint_axis()
    frequencies = _at(phonons, path.kpts)
    # Where the path jumps, two points have one place, and each its name.
    names: dict[str, list[str]] = {}
    for tick, label in zip(ticks, labels, strict=True):
        names.setdefault(f"{tick:.8f}", []).append(label)
    rows = []
    for at, point, some in zip((f"{v:.8f}" for v in x), path.kpts, frequencies, strict=True):
        name = names[at].pop(0) if names.get(at) else ""
        rows.append((at, name, *(f"{q:.8f}" for q in point), *(f"{f:.6f}" for f in some)))
    columns = ("path_per_angstrom", "point", "q1", "q2", "q3", *(f"f{i}_thz" for i in range(frequencies.shape[1])))
    _table(run, "bands.csv", columns, rows)
    return {"bands": "bands.csv"}


def _thermal(run: Run, phonons: Any, params: dict[str, Any], known: Any, n_atoms: int) -> dict[str, float]:
    from ase.units import kJ, mol

    per_atom = 1.0 / len(phonons.primitive)
    temperatures = [*np.linspace(0.0, params["t_max"], 101), params["temperature"]]
    found = phonons.run_thermal_properties(temperatures=temperatures, cutoff_frequency=_NOTHING)
    # phonopy: kJ/mol and J/mol/K of primitive cells.
    ev = float(kJ / mol) * per_atom
    free = np.asarray(found.free_energy) * ev
    entropy, heat = np.asarray(found.entropy) * per_atom, np.asarray(found.heat_capacity) * per_atom
    columns = ("temperature_k", "free_energy_ev_per_atom", "entropy_j_per_mol_k", "heat_capacity_j_per_mol_k")
    rows = zip(temperatures[:-1], free[:-1], entropy[:-1], heat[:-1], strict=True)
    _table(run, "thermal.csv", columns, ([f"{v:.8g}" for v in row] for row in rows))
    values = {
        "zero_point_energy": float(found.zero_point_energy) * ev,
        "vibrational_free_energy": float(free[-1]),
        "entropy": float(entropy[-1]),
        "heat_capacity": float(heat[-1]),
    }
    if "energy" in known:
        values["free_energy"] = float(known["energy"]) / n_atoms + values["vibrational_free_energy"]
    return values


def _table(run: Run, name: str, columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
    with (run.workdir / name).open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(columns)
        table.writerows(rows)


def _drawn(run: Run, noise: float) -> None:
    """Bands, and the density of states beside them."""
    with (run.workdir / "bands.csv").open() as file:
        rows = list(csv.reader(file))[1:]
    x = np.array([float(row[0]) for row in rows])
    frequencies = np.array([[float(f) for f in row[5:]] for row in rows])
    dos = np.loadtxt(run.workdir / "dos.csv", delimiter=",", skiprows=1)
    ticks: dict[float, str] = {}
    for row in rows:
        if row[1]:
            name, at = "Γ" if row[1] == "G" else row[1], float(row[0])
            ticks[at] = f"{ticks[at]}|{name}" if at in ticks else name
    # Where the path jumps, two points have one place.
    breaks = np.flatnonzero(np.diff(x) < 1e-9) + 1
    with drawing(run, 1, 2, size=(8.0, 4.4), sharey=True, width_ratios=(3, 1)) as (_, (bands, states)):
        for part in np.split(np.arange(len(x)), breaks):
            bands.plot(x[part], frequencies[part], color="#0072B2", linewidth=1.3)
        for at in ticks:
            bands.axvline(at, color="#cccccc", linewidth=0.8, zorder=0)
        bands.set_xticks(list(ticks), list(ticks.values()))
        bands.set_xlim(x[0], x[-1])
        bands.set_ylabel("frequency (THz)" + ("; imaginary below 0" if frequencies.min() < -noise else ""))
        states.plot(dos[:, 1], dos[:, 0], color="#D55E00")
        states.set_xlim(left=0)
        states.set_xlabel("states / THz / cell")
        for axes in (bands, states):
            axes.axhline(0, color="#888888", linewidth=0.8)
        if frequencies.min() > -noise:
            bands.set_ylim(bottom=0)
