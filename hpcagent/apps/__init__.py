"""Apps: what runs on a worker, and the contract that says what it takes and gives."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["BUILT_IN", "run_mpi"]

BUILT_IN = {
    # build
    "build_crystal": "hpcagent.science.structures.crystal",
    "build_slab": "hpcagent.science.structures.slab",
    "add_adsorbate": "hpcagent.science.structures.slab",
    "cut_slab": "hpcagent.science.structures.cut",
    "adsorption_sites": "hpcagent.science.structures.sites",
    "place_adsorbate": "hpcagent.science.structures.sites",
    "magnetic_ordering": "hpcagent.science.structures.magnetic",
    "point_defect": "hpcagent.science.structures.defect",
    "build_molecule": "hpcagent.science.structures.molecule",
    "smiles_to_xyz": "hpcagent.science.structures.molecule",
    "packmol_box": "hpcagent.science.structures.box",
    "deform": "hpcagent.science.structures.deform",
    "k_mesh": "hpcagent.science.structures.kmesh",
    # compute
    "dft_energy": "hpcagent.science.dft.energy",
    "dft_relax": "hpcagent.science.dft.relax",
    "dft_bands": "hpcagent.science.dft.bands",
    "mlip_md": "hpcagent.science.mlip.md",
    "mlip_relax": "hpcagent.science.mlip.relax",
    "simulate_micromagnetics": "hpcagent.science.micromagnetics.run",
    "magnetization_dynamics": "hpcagent.science.micromagnetics.run",
    "simulate_chemical_reaction": "hpcagent.science.chemistry.reaction",
    "calculate": "hpcagent.science.arithmetic",
    "query_materials_database": "hpcagent.materials.as_app",
    "synthetic": "hpcagent.apps.landscape",
    "oscillator": "hpcagent.apps.spring",
    # learn
    "ml_train_surrogate": "hpcagent.science.ml.surrogate",
    "ml_predict_property": "hpcagent.science.ml.predict",
    "train_pod_potential": "hpcagent.science.ml.pod_train",
    "pod_frames": "hpcagent.science.ml.pod_frames",
    # analyse
    "thermo": "hpcagent.science.analysis.thermo",
    "averages": "hpcagent.science.analysis.averages",
    "rdf": "hpcagent.science.analysis.rdf",
    "coordination": "hpcagent.science.analysis.coordination",
    "msd": "hpcagent.science.analysis.msd",
    "vacf": "hpcagent.science.analysis.vacf",
    "heat_capacity": "hpcagent.science.analysis.heat_capacity",
    "viscosity": "hpcagent.science.analysis.viscosity",
    "eos_fit": "hpcagent.science.analysis.eos",
    "elastic_constants": "hpcagent.science.analysis.elastic",
    "band_path": "hpcagent.science.analysis.band",
    "phonon_properties": "hpcagent.science.analysis.phonons",
    "vibration_modes": "hpcagent.science.analysis.vibrations",
    "adsorption_energy_of": "hpcagent.science.analysis.adsorption",
    "plot_data": "hpcagent.science.plot_numbers",
    **dict.fromkeys(
        (
            "plot_rdf",
            "plot_msd",
            "plot_dos",
            "plot_thermo",
            "plot_eos",
            "plot_convergence",
            "plot_scf",
            "plot_structure",
        ),
        "hpcagent.science.plots",
    ),
    # chains
    "dft_eos": "hpcagent.science.chains.eos",
    "eos": "hpcagent.science.chains.eos",
    "dft_convergence": "hpcagent.science.chains.convergence",
    "adsorption_energy": "hpcagent.science.chains.adsorption",
    "adsorption": "hpcagent.science.chains.adsorption",
    "formation_energy": "hpcagent.science.chains.formation",
    "elastic": "hpcagent.science.chains.elastic",
    "magnetic_orderings": "hpcagent.science.chains.magnetic",
    "surface_energy": "hpcagent.science.chains.surface",
    "vacancy": "hpcagent.science.chains.defects",
    "substitution": "hpcagent.science.chains.defects",
    "crystal_surface_energy": "hpcagent.science.chains.named",
    "crystal_vacancy": "hpcagent.science.chains.named",
    "crystal_substitution": "hpcagent.science.chains.named",
    "vibrations": "hpcagent.science.chains.vibrations",
    "neb": "hpcagent.science.chains.neb",
    "vacancy_migration": "hpcagent.science.chains.neb",
    "phonons": "hpcagent.science.chains.phonons",
    "crystal_phonons": "hpcagent.science.chains.phonons",
    "molecule_vibrations": "hpcagent.science.chains.vibrations",
    "active_learning": "hpcagent.science.chains.active_learning",
    "melt_quench": "hpcagent.science.chains.argon",
    "argon_diffusion": "hpcagent.science.chains.argon",
    "water_box": "hpcagent.science.chains.water",
}
"""Name of an app that comes along -> the module that has it under that name."""


def __getattr__(name: str) -> Any:
    # `ha.apps.rdf` is the app. A worker that only runs orders never comes here.
    module = "hpcagent.apps.ending" if name == "run_mpi" else BUILT_IN.get(name)
    if module is None:
        from hpcagent.errors import nearest

        raise AttributeError(f"module 'hpcagent.apps' has no attribute {name!r}; {nearest(name, BUILT_IN)}")
    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, *BUILT_IN])
