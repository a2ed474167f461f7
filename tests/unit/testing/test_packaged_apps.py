"""Every app that comes along and needs no engine keeps the contract of an app; of the others it is said what they need."""

from __future__ import annotations

import importlib.util
import shutil

import numpy as np
import pytest

import hpcagent as ha
from hpcagent.apps import BUILT_IN
from hpcagent.catalog import list_apps
from hpcagent.testing import AppContract
from tests.unit.science.analysis.trajectories import dump, walk

pytest.importorskip("ase")

pytestmark = pytest.mark.slow  # hundreds of runs


def crystal(folder):
    from ase.build import bulk

    return (bulk("Cu", cubic=True),)


def iron(folder):
    from ase.build import bulk

    return (bulk("Fe", cubic=True),)


def slab_and_adsorbate(folder):
    from ase.build import fcc111, molecule

    return fcc111("Pt", (2, 2, 3), vacuum=8.0), molecule("CO")


def slab(folder):
    return slab_and_adsorbate(folder)[:1]


def water(folder):
    from ase.build import molecule

    return (molecule("H2O"),)


def trajectory(folder):
    # 30 atoms walk 0.2 angstrom a frame in a box of 12 angstrom.
    steps = walk(60, 30, 0.2, seed=1, edge=12.0)
    return (dump(folder / "walk.dump", steps, 12.0, velocities=np.gradient(steps, axis=0)),)


def table(folder):
    rng = np.random.default_rng(3)
    rows = ["time_ps,temperature_K,epot_eV,ekin_eV,etot_eV,econserved_eV,volume_A3,pressure_GPa"]
    for i in range(400):
        potential, kinetic = -50 + 0.1 * rng.normal(), 10 + 0.1 * rng.normal()
        temperature = 2 * kinetic / (297 * 8.617333262e-5)
        rows.append(f"{0.01 * i},{temperature},{potential},{kinetic},{potential + kinetic},,1000,0.1")
    (folder / "thermo.csv").write_text("\n".join(rows) + "\n")
    return (folder / "thermo.csv",)


def log(folder):
    rng = np.random.default_rng(3)
    kinetic, rest = rng.normal(1.2, 0.05, 400), rng.normal(-30, 0.05, 400)
    rows = [
        f"{10 * i:8d} {k / (46.5 * 8.617333262e-5):12.4f} {k:12.6f} {p:12.6f} {k + p:12.6f} {1000:10.2f}"
        for i, (k, p) in enumerate(zip(kinetic, rest, strict=True))
    ]
    (folder / "log.lammps").write_text(
        "LAMMPS (2 Aug 2023)\nunits metal\ntimestep 0.001\nfix 1 all nvt temp 300 300 0.1\nrun 3990\n"
        "   Step          Temp          KinEng         PotEng         TotEng       Volume\n"
        + "\n".join(rows)
        + "\nLoop time of 0.5 on 1 procs for 3990 steps with 32 atoms\n"
    )
    return (folder / "log.lammps",)


def of(app, inputs, **params):
    """A run of another app as the input."""

    def made(folder):
        with ha.open_site("threads", workers=1, run_dir=folder / "before"):
            return (getattr(ha.apps, app)(*inputs(folder), **params).result(timeout=120),)

    return made


def series(folder):
    with ha.open_site("threads", workers=1, run_dir=folder / "before"):
        return tuple(ha.apps.synthetic(x=x).result(timeout=60) for x in (0.1, 0.2, 0.4))


def nothing(folder):
    return ()


FRAMES = {"timestep": 2.0, "units": "metal", "species": "Ar"}

# App -> points, inputs, and the module or program it needs beyond ASE.
CASES = {
    "build_crystal": (({"name": "Cu"}, {"name": "Fe", "rattle": 0.05}), nothing, ""),
    "build_slab": (({"name": "Pt"}, {"name": "Cu", "facet": "fcc100", "layers": 3}), nothing, ""),
    "build_molecule": (({"name": "H2O"},), nothing, ""),
    "smiles_to_xyz": (({"smiles": "CCO"},), nothing, "rdkit"),
    "packmol_box": (({"counts": "5", "box": 12.0},), water, "packmol"),
    "add_adsorbate": (({"site": "ontop"},), slab_and_adsorbate, ""),
    "place_adsorbate": (({"site": 0},), slab_and_adsorbate, "spglib"),
    "adsorption_sites": (({},), slab, "spglib"),
    "cut_slab": (({},), crystal, "spglib"),
    "magnetic_ordering": (({"moments": "Fe:2.2"},), iron, "spglib"),
    "point_defect": (({},), crystal, "spglib"),
    "deform": (({"e1": 0.01},), crystal, ""),
    "synthetic": (({"x": 0.2}, {"x": 0.9, "noise": 0.1}), nothing, ""),
    "oscillator": (({"max_steps": 50}, {"max_steps": 20, "timestep": 0.5}), nothing, ""),
    "calculate": (({"expression": "-log10(0.01)"}, {"expression": "1/3 + 2"}), nothing, ""),
    "thermo": (({},), log, ""),
    "averages": (({},), table, ""),
    "heat_capacity": (({"ensemble": "nvt"},), log, ""),
    "rdf": ((FRAMES,), trajectory, "freud"),
    "coordination": (({**FRAMES, "cutoff": 4.0},), trajectory, "freud"),
    "msd": ((FRAMES,), trajectory, ""),
    "vacf": ((FRAMES,), trajectory, ""),
    "plot_rdf": (({},), of("rdf", trajectory, **FRAMES), "matplotlib"),
    "plot_msd": (({},), of("msd", trajectory, **FRAMES), "matplotlib"),
    "plot_dos": (({},), of("vacf", trajectory, **FRAMES), "matplotlib"),
    "plot_thermo": (({},), table, "matplotlib"),
    "plot_convergence": (({"parameter": "x", "metric": "value"},), series, "matplotlib"),
    "plot_structure": (({},), of("build_crystal", nothing), "matplotlib"),
}

# What the others need.
NEED = {
    "runs of an engine": (
        "eos_fit",
        "elastic_constants",
        "band_path",
        "phonon_properties",
        "vibration_modes",
        "adsorption_energy_of",
        "plot_eos",
        "plot_scf",
    ),
    "tables, models or lists, which the tests of their rooms have": (
        "ml_train_surrogate",
        "ml_predict_property",
        "train_pod_potential",
        "pod_frames",
        "plot_data",
        "query_materials_database",
        "simulate_chemical_reaction",
    ),
    "a long run of LAMMPS": ("viscosity", "melt_quench", "argon_diffusion", "water_box"),
}


def missing(need):
    return bool(need) and importlib.util.find_spec(need) is None and shutil.which(need) is None


class Packaged(AppContract):
    make = None

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def made(cls, tmp_path_factory):
        cls.inputs = cls.make(tmp_path_factory.mktemp("inputs"))


for _name, (_points, _make, _need) in CASES.items():
    _class = type(
        f"Test_{_name}",
        (Packaged,),
        {"app": getattr(ha.apps, _name), "points": _points, "make": staticmethod(_make)},
    )
    globals()[_class.__name__] = pytest.mark.skipif(missing(_need), reason=f"needs {_need}")(_class)


def test_of_every_packaged_app_it_is_known_what_it_needs_to_be_tried():
    engines = {name for name in BUILT_IN if "engine" in getattr(ha.apps, name).contract.space}
    others = {name for names in NEED.values() for name in names}
    lammps = {app.name for app in list_apps()} - BUILT_IN.keys()
    assert not CASES.keys() & (engines | others)
    assert CASES.keys() | engines | others == BUILT_IN.keys()
    assert lammps and all(not ha.find_app(name).contract.deterministic for name in lammps)
