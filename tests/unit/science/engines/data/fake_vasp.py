"""Stands in for VASP: reads INCAR, POSCAR, KPOINTS and POTCAR, writes OUTCAR, OSZICAR, vasprun.xml and CONTCAR.

Energies, forces and stress are those of ASE's EMT (copper and its neighbours), so that a test can say what must come
out. Its SCF converges by a factor of ten a step with ALGO = All, by a factor of two else, and stops at NELM.

    FAKE_VASP=crash | zhegv | cut | slow    in the environment makes it fail
"""

import os
import sys
import time
from pathlib import Path


def incar():
    pairs = [line.split("=", 1) for line in Path("INCAR").read_text().splitlines() if "=" in line]
    return {key.strip().upper(): value.strip() for key, value in pairs}


def vectors(rows, form="%16.8f %16.8f %16.8f"):
    return "\n".join(f"   <v> {form % tuple(row)} </v>" for row in rows)


def main():
    import numpy as np
    from ase.calculators.emt import EMT
    from ase.io import read, write
    from ase.units import GPa

    how = os.environ.get("FAKE_VASP", "")
    print(" running on    1 total cores")
    for name in ("INCAR", "POSCAR", "KPOINTS", "POTCAR"):
        if not Path(name).is_file():
            print(f" I REFUSE TO CONTINUE WITH THIS SICK JOB ... no {name}")
            return 1
    if how == "crash":
        return 139
    if how == "slow":
        time.sleep(60)
    said = incar()
    atoms = read("POSCAR")
    atoms.calc = EMT()
    total = atoms.get_potential_energy()
    forces, stress = atoms.get_forces(), atoms.get_stress(voigt=False)
    ediff, nelm = float(said["EDIFF"]), int(said["NELM"])
    shrink = 0.1 if said.get("ALGO", "Normal").lower() == "all" else 0.5

    rows, energy, change = [], 0.0, 0.0
    for step in range(1, nelm + 1):
        new = total + 2.0 * shrink**step
        change, energy = new - energy, new
        rows.append((step, energy, change))
        if abs(change) < ediff:
            energy = total
            break
    converged = abs(change) < ediff
    if how == "zhegv":
        print(" Error EDDDAV: Call to ZHEGV failed. Returncode =   8 1   8")
        return 1

    osz = "       N       E                     dE             d eps       ncg     rms          rms(c)\n"
    for step, e, de in rows:
        osz += f"DAV: {step:3d}    {e:18.12E}   {de:12.5E}   {de:12.5E}   96   0.110E+02    0.100E+01\n"
    osz += f"   1 F= {energy:.8E} E0= {energy:.8E}  d E ={energy:.6E}\n"
    Path("OSZICAR").write_text(osz)

    spin = said.get("ISPIN") == "2"
    moment = 0.5 * len(atoms) if spin else 0.0
    out = [" vasp.6.4.2 20Jul23 (build stand-in) complex", "", f"   ISPIN  =      {2 if spin else 1}"]
    out += [
        f"   EDIFF  = {ediff:.1E}   stopping-criterion for ELM",
        "   k-points           NKPTS =      1   number of bands    NBANDS=      8",
    ]
    for step, e, de in rows:
        out += [
            f"--------------------------------------- Iteration      1({step:4d})  ---------------------------------------"
        ]
        out += [f"  total energy-change (2. order) :{de:14.7E}  ({de:14.7E})"]
        out += [f" number of electron      11.0000000 magnetization      {moment:12.7f}"]
    reached = "because EDIFF is reached" if converged else "EDIFF was not reached (unconverged)"
    out += [f"------------------------ aborting loop {reached} ----------------------------------------"]
    out += [" E-fermi :   7.5000     XC(G=0):  -9.0000     alpha+bet : -8.0000"]
    if spin:
        out += [
            "",
            " magnetization (x)",
            "",
            "# of ion       s       p       d       tot",
            "------------------------------------------",
        ]
        out += [f"  {i + 1:3d}        0.000   0.000   0.500   0.500" for i in range(len(atoms))]
    if how != "cut":
        out += [
            " General timing and accounting informations for this job:",
            " ========================================",
        ]
    Path("OUTCAR").write_text("\n".join(out) + "\n")

    names = atoms.get_chemical_symbols()
    kbar = -stress / GPa * 10
    energies = f'<i name="e_fr_energy"> {energy:.8f} </i><i name="e_wo_entrp"> {energy:.8f} </i><i name="e_0_energy"> {energy:.8f} </i>'
    structure = (
        f'<crystal><varray name="basis">\n{vectors(atoms.cell)}\n</varray></crystal>\n'
        f'<varray name="positions">\n{vectors(atoms.get_scaled_positions())}\n</varray>'
    )
    Path("vasprun.xml").write_text(
        f"""<?xml version="1.0" encoding="ISO-8859-1"?>
<modeling>
<generator><i name="program" type="string">vasp</i></generator>
<kpoints><varray name="kpointlist">
{vectors([[0, 0, 0]])}
</varray><varray name="weights"><v> 1.0 </v></varray></kpoints>
<parameters><separator name="electronic"><i name="ENMAX"> 300.0</i></separator></parameters>
<atominfo><atoms> {len(atoms)} </atoms><array name="atoms"><set>
{"".join(f"<rc><c>{name}</c><c>1</c></rc>" for name in names)}
</set></array></atominfo>
<structure name="initialpos">
{structure}
</structure>
<calculation><scstep><energy>{energies}</energy></scstep>
<structure>
{structure}
</structure>
<varray name="forces">
{vectors(forces)}
</varray><varray name="stress">
{vectors(kbar)}
</varray><energy>{energies}</energy>
</calculation>
</modeling>
"""
    )
    write("CONTCAR", atoms, format="vasp")
    if said.get("LWAVE", ".TRUE.").upper().startswith(".T"):
        Path("WAVECAR").write_bytes(np.zeros(10).tobytes())
    return 0


sys.exit(main())
