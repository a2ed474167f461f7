"""ASE's calculator of VASP; boxes, moments, POTCARs and failures are ours. Imports ASE, so it is loaded last."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from ase import Atoms
from ase.calculators.calculator import Calculator, CalculatorSetupError
from ase.calculators.vasp import Vasp as AseVasp

from hpcagent.apps.packages import accepted, refuse_decided
from hpcagent.apps.printed import number_or_nan
from hpcagent.apps.run import Run
from hpcagent.errors import AppFailed, nearest
from hpcagent.science.engines.base import Level
from hpcagent.science.engines.dipole import layer_of
from hpcagent.science.engines.functionals import spelling
from hpcagent.science.engines.mesh import VACUUM, boxed
from hpcagent.science.engines.protocols import VASP_FIXED_EV, sampled
from hpcagent.science.engines.vasp_files import check, contents, potential_folder, potentials, potpaw_folder

__all__ = ["Vasp"]

_DECIDED = {
    "encut": "ecut",
    "xc": "xc",
    "gga": "xc",
    "metagga": "xc",
    "kpts": "kpts",
    "kspacing": "kpts",
    "ismear": "smearing",
    "sigma": "smearing",
    "charge": "charge",
    "nelect": "charge",
    "ispin": "magmom",
    "magmom": "magmom",
    "ediff": "tolerance",
    "nelm": "max_scf",
    "amix": "mixing",
    "setups": "pseudopotentials",
    "pp": "xc",
}


class Started(AseVasp):
    """ASE's calculator with our way of starting the program."""

    start: Any = None
    folder = ""

    def write_input(self, *args: Any, **keywords: Any) -> None:
        with potential_folder(self.folder):
            super().write_input(*args, **keywords)  # type: ignore[no-untyped-call]

    def _run(self, command: Any = None, out: Any = None, directory: Any = None) -> tuple[int, str]:
        self.start()
        return 0, ""


class Vasp(Calculator):
    """ASE's Vasp inside: boxes, moments, POTCARs and failures are ours."""

    implemented_properties = ["energy", "free_energy", "forces", "stress", "magmom", "magmoms"]

    def __init__(self, atoms: Atoms, level: Level, run: Run, program: Any) -> None:
        super().__init__(directory=str(run.workdir))  # type: ignore[no-untyped-call]
        self.level = level
        self.program = program
        self.notes: tuple[str, ...] = spelling(level.xc, "vasp")[1]
        self.artifacts = {"input": "INCAR", "output": "OUTCAR", "oszicar": "OSZICAR"}
        self.artifacts["pseudopotentials"] = "pseudopotentials.json"
        options = level.options
        self._vacuum = float(options.get("vacuum") or VACUUM)
        if not atoms.cell.any():
            self.notes += (f"a box around the molecule, {self._vacuum:g} angstrom beyond its atoms",)
        self._folder = potpaw_folder(options, run.site)
        if not self._folder or not Path(self._folder).expanduser().is_dir():
            raise AppFailed(
                f"no POTCARs: {self._folder or 'the setting pseudo_dir is empty and $VASP_PP_PATH not set'}"
                f"{' is no folder' if self._folder else ''}; it must hold the folders potpaw_PBE, potpaw_LDA.",
                kind="infrastructure",
                name="NoPseudopotential",
                repair='[apps.vasp] env = {VASP_PP_PATH = "..."} in the site profile',
            )
        own: list[float] = atoms.get_initial_magnetic_moments().tolist()
        self._moments = own if any(own) else [level.magmom] * len(atoms)
        refuse_decided("VASP", options.get("keywords") or {}, _DECIDED)
        self.vasp = accepted(
            "VASP",
            Started,
            options.get("keywords") or {},
            directory=str(run.workdir),
            command="vasp",
            txt=None,
            **self._arguments(atoms),
        )
        self._refuse_unknown(options.get("keywords") or {})
        self.vasp.start = self._start
        self.vasp.folder = self._folder

    def _refuse_unknown(self, keywords: Mapping[str, Any]) -> None:
        # ASE writes down whatever it is given, and VASP passes over what it does not know.
        plain: Any = AseVasp(command="vasp")
        kinds = (
            "float",
            "exp",
            "string",
            "int",
            "bool",
            "list_bool",
            "list_int",
            "list_float",
            "special",
            "dict",
        )
        known = {name for kind in (*kinds, "input") for name in getattr(plain, f"{kind}_params")}
        for name in keywords:
            if name not in known:
                raise AppFailed(
                    f"the setting `keywords` has {name!r}, which is no tag of VASP that ASE knows; "
                    f"{nearest(name, known)} One that is newer than this ASE goes into `custom`.",
                    kind="contract",
                    name="BadSettings",
                )

    def _arguments(self, atoms: Atoms) -> dict[str, Any]:
        level = self.level
        keywords = level.options.get("keywords") or {}
        found: dict[str, Any] = {
            "xc": spelling(level.xc, "vasp")[0].lower(),
            "kpts": sampled(atoms, level),
            "gamma": True,
            "ismear": 0,
            "sigma": level.smearing if level.smearing > 0 else VASP_FIXED_EV,
            "ediff": level.tolerance,
            "nelm": level.max_scf,
            "nsw": 0,
            "ibrion": -1,
            # Both go with `close`; the next step of a relaxation begins with the WAVECAR.
            "lwave": True,
            "lcharg": bool(level.options.get("keep")),
        }
        if "prec" not in keywords:
            found["prec"] = "Accurate"
        if level.ecut:
            found["encut"] = level.ecut
        layer, said = layer_of(boxed(atoms, self._vacuum), level)
        self.notes += said
        if layer is not None:
            # The centre is to be that of the slab; VASP puts the layer half a cell away from it.
            centre = [0.5, 0.5, 0.5]
            centre[layer.axis] = (layer.middle + 0.5) % 1.0
            found |= {"ldipol": True, "idipol": layer.axis + 1, "dipol": centre}
        if level.charge:
            found["charge"] = level.charge
        if any(self._moments):
            found |= {"ispin": 2, "lorbit": 11}
        if level.mixing:
            found["amix"] = level.mixing
        if level.options.get("gentle"):
            found["bmix"] = 0.0001  # almost linear: the advice of VASP's manual for charge that sloshes
        if level.options.get("algo") and "algo" not in keywords:
            found["algo"] = level.options["algo"]
        setups = level.options.get("pseudopotentials") or {}
        if setups:
            # ASE wants what follows the element: Cu_pv is "_pv".
            found["setups"] = {element: str(name).removeprefix(element) for element, name in setups.items()}
        return found

    def close(self) -> None:
        """Delete the wavefunctions and the density, unless they are to be kept."""
        if not self.level.options.get("keep"):
            for name in ("WAVECAR", "CHGCAR", "CHG"):
                (Path(self.directory) / name).unlink(missing_ok=True)

    def _prepared(self, atoms: Atoms) -> Atoms:
        copy = boxed(atoms, self._vacuum)
        copy.pbc = True
        copy.set_initial_magnetic_moments(self._moments)
        return copy

    def _start(self) -> None:
        directory = Path(self.directory)
        record = potentials(directory)
        (directory / "pseudopotentials.json").write_text(json.dumps(record, indent=2) + "\n")
        # Of a start before, which VASP would not overwrite if it fails at once.
        for name in ("OUTCAR", "OSZICAR", "vasprun.xml"):
            (directory / name).unlink(missing_ok=True)
        ended = self.program.start(cwd=directory, output="vasp.out")
        check(ended, directory, self.level.max_scf)

    def calculate(self, atoms: Any = None, properties: Any = ("energy",), system_changes: Any = ()) -> None:
        super().calculate(atoms, properties, system_changes)  # type: ignore[no-untyped-call]
        inside = self._prepared(atoms)
        try:
            self.vasp.calculate(inside, properties)
        except AppFailed:
            raise
        except CalculatorSetupError as error:
            raise AppFailed(f"{error}.", kind="contract", name="BadSettings") from None
        except RuntimeError as error:
            if "pseudopotential" not in str(error):
                raise
            raise AppFailed(
                f"no POTCAR: {' '.join(str(error).split())} (in {self._folder}).",
                kind="contract",
                name="NoPseudopotential",
                repair="settings pseudopotentials, e.g. {'Cu': 'Cu_pv'}, or pseudo_dir",
            ) from None
        results = self.vasp.results
        for name in ("energy", "free_energy", "magmom"):
            if results.get(name) is not None:
                self.results[name] = float(results[name])
        for name in ("forces", "stress", "magmoms"):
            if results.get(name) is not None:
                self.results[name] = np.array(results[name])
        fermi = re.findall(r"E-fermi\s*:\s*(\S+)", contents(Path(self.directory) / "OUTCAR"))
        if fermi and math.isfinite(number_or_nan(fermi[-1])):
            self.results["fermi"] = number_or_nan(fermi[-1])
