"""A chain: a function over runs of other apps, steered as one. Which engine computes is a parameter."""

import hpcagent as ha


@ha.chain(
    parameters={
        "a": ha.Float(2, 8, unit="angstrom", description="lattice constant"),
        "formula": ha.Text(default="Cu", description="an element"),
        "engine": ha.Choice("emt", "espresso", "gpaw", "tblite", "pyscf", "vasp", default="emt"),
        "xc": ha.Choice("PBE", "PBEsol", "LDA", default="PBE"),
        "basis": ha.Text(default="", description="of gpaw: pw"),
        "ecut": ha.Float(0, 5000, unit="eV", default=0, description="plane-wave cutoff; 0: the engine's own"),
        "kpts": ha.Int(0, 64, default=0, description="k-points; 0: the engine's converged default"),
        "smearing": ha.Float(-1, 5, unit="eV", default=-1, description="of the occupations; -1: the engine's own"),
        "ranks": ha.Int(1, 1024, default=1),
    },
    metrics={"energy_per_atom": "eV/atom", "pressure": "GPa"},
    estimated_runtime_s=2.0,
    seeded=False,
)
def energy_of(a, formula, engine, xc, basis, ecut, kpts, smearing, ranks):
    """Energy and pressure of a cubic crystal at a lattice constant."""
    level = {"engine": engine, "ranks": ranks}
    if engine != "emt":  # a classical potential has neither functional nor cutoff
        level |= {"xc": xc, "basis": basis, "ecut": ecut, "kpts": kpts, "smearing": smearing}
    crystal = ha.apps.build_crystal(name=formula, a=a)
    result = ha.apps.dft_energy(crystal, **level).result()
    return {"energy_per_atom": result["energy_per_atom"], "pressure": result["pressure"]}
