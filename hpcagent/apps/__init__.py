"""Apps: what runs on a worker, and the contract that says what it takes and gives."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["BUILT_IN", "run_mpi"]

BUILT_IN = {
    # build
    "build_crystal": "hpcagent.apps.build.crystal",
    "build_slab": "hpcagent.apps.build.slab",
    "add_adsorbate": "hpcagent.apps.build.slab",
    "cut_slab": "hpcagent.apps.build.cut",
    "adsorption_sites": "hpcagent.apps.build.sites",
    "place_adsorbate": "hpcagent.apps.build.sites",
    "magnetic_ordering": "hpcagent.apps.build.magnetic",
    "point_defect": "hpcagent.apps.build.defect",
    "build_molecule": "hpcagent.apps.build.molecule",
    "smiles_to_xyz": "hpcagent.apps.build.molecule",
    "packmol_box": "hpcagent.apps.build.box",
    "deform": "hpcagent.apps.build.deform",
    "k_mesh": "hpcagent.apps.build.kmesh",
    # compute
    "dft_energy": "hpcagent.apps.dft.energy",
    "dft_relax": "hpcagent.apps.dft.relax",
    "dft_bands": "hpcagent.apps.dft.bands",
    "mlip_md": "hpcagent.apps.mlip.md",
    "mlip_relax": "hpcagent.apps.mlip.relax",
    "synthetic": "hpcagent.apps.landscape",
    # analyse
    "thermo": "hpcagent.apps.analysis.thermo",
    "averages": "hpcagent.apps.analysis.averages",
    "rdf": "hpcagent.apps.analysis.rdf",
    "coordination": "hpcagent.apps.analysis.coordination",
    "msd": "hpcagent.apps.analysis.msd",
    "vacf": "hpcagent.apps.analysis.vacf",
    "heat_capacity": "hpcagent.apps.analysis.heat_capacity",
    "viscosity": "hpcagent.apps.analysis.viscosity",
    "eos_fit": "hpcagent.apps.analysis.eos",
    "elastic_constants": "hpcagent.apps.analysis.elastic",
    "band_path": "hpcagent.apps.analysis.band",
    "phonon_properties": "hpcagent.apps.analysis.phonons",
    "vibration_modes": "hpcagent.apps.analysis.vibrations",
    "adsorption_energy_of": "hpcagent.apps.analysis.adsorption",
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
        "hpcagent.apps.plots",
    ),
    # chains
    "dft_eos": "hpcagent.apps.chains.eos",
    "eos": "hpcagent.apps.chains.eos",
    "dft_convergence": "hpcagent.apps.chains.convergence",
    "adsorption_energy": "hpcagent.apps.chains.adsorption",
    "adsorption": "hpcagent.apps.chains.adsorption",
    "formation_energy": "hpcagent.apps.chains.formation",
    "elastic": "hpcagent.apps.chains.elastic",
    "magnetic_orderings": "hpcagent.apps.chains.magnetic",
    "surface_energy": "hpcagent.apps.chains.surface",
    "vacancy": "hpcagent.apps.chains.defects",
    "substitution": "hpcagent.apps.chains.defects",
    "crystal_surface_energy": "hpcagent.apps.chains.named",
    "crystal_vacancy": "hpcagent.apps.chains.named",
    "crystal_substitution": "hpcagent.apps.chains.named",
    "vibrations": "hpcagent.apps.chains.vibrations",
    "neb": "hpcagent.apps.chains.neb",
    "vacancy_migration": "hpcagent.apps.chains.neb",
    "phonons": "hpcagent.apps.chains.phonons",
    "crystal_phonons": "hpcagent.apps.chains.phonons",
    "molecule_vibrations": "hpcagent.apps.chains.vibrations",
    "melt_quench": "hpcagent.apps.chains.argon",
    "argon_diffusion": "hpcagent.apps.chains.argon",
    "water_box": "hpcagent.apps.chains.water",
}
"""Name of an app that comes along -> the module that has it under that name."""


def __getattr__(name: str) -> Any:
    # `ha.apps.rdf` is the app. A worker that only runs orders never comes here.
    module = "hpcagent.apps.launch" if name == "run_mpi" else BUILT_IN.get(name)
    if module is None:
        from hpcagent.errors import nearest

        raise AttributeError(f"module 'hpcagent.apps' has no attribute {name!r}; {nearest(name, BUILT_IN)}")
    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, *BUILT_IN])
