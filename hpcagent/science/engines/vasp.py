"""VASP as an engine: projector augmented waves in plane waves, always periodic. It and its POTCARs are licensed.

What the parameters of a level become:

| parameter | VASP | |
|---|---|---|
| `xc` | `GGA` and the folder of POTCARs | ASE's names: `pbe`, `lda`, `pbesol`, `rpbe`, ...; empty: PBE |
| `ecut` | `ENCUT` | 0: the largest ENMAX of the POTCARs |
| `kpts` | KPOINTS | Gamma-centred mesh (`hpcagent.science.engines.mesh`) |
| `smearing` | `ISMEAR = 0`, `SIGMA` | Gaussian: VASP has no Marzari-Vanderbilt; 0: a Gaussian of 0.01 eV |
| `magmom` | `ISPIN`, `MAGMOM` | each atom's, the structure's own if it has any |
| `tolerance` | `EDIFF` | |
| `mixing` | `AMIX` | |

The energy is the one extrapolated to no smearing, `free_energy` the one that forces belong to, as ASE has it.

Tested against a stand-in for the program that reads and writes its formats, not against VASP itself.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import math
import os
import re
import threading
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hpcagent.apps.deciding import Deciding
from hpcagent.apps.packages import accepted, needs, refuse_decided
from hpcagent.apps.printed import read_bytes, read_head, read_text
from hpcagent.errors import AppFailed, nearest
from hpcagent.science.engines.base import KPOINTS, Iteration, Level, NotConverged
from hpcagent.science.engines.dipole import layer_of
from hpcagent.science.engines.external import Ended, program
from hpcagent.science.engines.functionals import spelling
from hpcagent.science.engines.mesh import VACUUM, boxed
from hpcagent.science.engines.protocols import VASP_FIXED_EV, sampled

if TYPE_CHECKING:
    from ase import Atoms

from hpcagent.apps.run import Run

__all__ = ["ENGINE", "VaspEngine", "check", "iterations"]

# Folders of POTCARs, as ASE looks for them.
_POTCARS = ("potpaw_PBE", "potpaw", "potpaw_GGA")
_ADVICE = (
    "VASP is licensed and installed by the site: name its command as `command` in [apps.vasp] of the site profile "
    '(for example ["vasp_std"]).'
)


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


class VaspEngine:
    """VASP through ASE's calculator, started through the launcher of the site."""

    name = "vasp"
    kind: Literal["dft"] = "dft"
    isolated = False
    takes = ("xc", "ecut", *KPOINTS, "smearing", "charge", "magmom", "tolerance", "max_scf", "mixing")

    def calculator(self, atoms: Atoms, level: Level, run: Run) -> Any:
        """A calculator that starts VASP in the run's directory.

        Options: `command`, `pseudo_dir` (the folder with `potpaw_PBE`; else $VASP_PP_PATH), `pseudopotentials`
        (element -> POTCAR, `{"Cu": "Cu_pv"}`), `keywords` (of ASE's `Vasp`), `vacuum` (angstrom), `keep` (WAVECAR
        and CHGCAR), `dipole` (off, auto).

        Raises:
            AppFailed: `NoExecutable`, `NoPseudopotential` or `BadSettings`.
        """
        needs("ase.calculators.vasp", "pip install 'hpcagent[ase]'")
        found = program(
            run,
            "vasp",
            options=level.options,
            variables=("HPCAGENT_VASP", "ASE_VASP_COMMAND", "VASP_COMMAND"),
            usual=("vasp_std",),
            advice=_ADVICE,
        )
        return _calculator_class()(atoms, level, run, found)

    def iterations(self, calculator: Any) -> tuple[Iteration, ...]:
        """SCF steps in the OSZICAR of the last calculation: energy and its change, in eV."""
        return iterations(_read(Path(calculator.directory) / "OSZICAR"))

    def repairs(self, level: Level) -> tuple[tuple[str, Level], ...]:
        """More steps; all bands optimised at once (ALGO = All); careful mixing; a wider smearing."""
        steps = replace(level, max_scf=min(10000, 2 * level.max_scf))
        all_bands = replace(steps, options={**level.options, "algo": "All"})
        gentle = replace(
            steps, mixing=min(0.1, (level.mixing or 0.4) / 2), options={**level.options, "gentle": True}
        )
        tries = [("more_steps", steps), ("algo_all", all_bands), ("gentler_mixing", gentle)]
        if level.smearing > 0:
            tries.append(("more_smearing", replace(gentle, smearing=min(5.0, 2 * level.smearing))))
        return tuple(tries)

    def files(self, level: Level, site: Mapping[str, Any]) -> tuple[Deciding, ...]:
        """The POTCAR of each element: the plain one, or the one that is named."""
        folder = _folder(level.options, site)
        places = [Path(folder).expanduser() / name for name in _POTCARS] if folder else []
        named = {str(name): element for element, name in (level.options.get("pseudopotentials") or {}).items()}
        found = []
        for place in filter(Path.is_dir, places):
            for path in sorted(place.glob("*/POTCAR*")):
                plain = re.fullmatch(r"[A-Z][a-z]?", path.parent.name)
                element = named.get(path.parent.name) or (path.parent.name if plain else "")
                if element:
                    found.append(Deciding("/".join(path.parts[-3:]), path, element))
        return tuple(found)

    def versions(self, calculator: Any) -> dict[str, str]:
        """What VASP calls itself in its OUTCAR."""
        said = re.search(r"vasp\.(\d\S*)", read_head(Path(calculator.directory) / "OUTCAR", 1000))
        return {"vasp": said[1]} if said else {}

    def bands(self, calculator: Any, atoms: Atoms, level: Level, path: Any, run: Run) -> Any:
        """Not yet: nobody has tried it against VASP."""
        raise AppFailed(
            "bands by VASP are not there yet.",
            kind="contract",
            name="NoBands",
            repair="engine espresso or gpaw",
        )


ENGINE = VaspEngine()


_ROW = re.compile(r"^\s*(?:DAV|RMM|CG|CGA|EDI|SDA|DMP)\s*:\s*\d+\s+(\S+)\s+(\S+)", re.MULTILINE)


def iterations(oszicar: str) -> tuple[Iteration, ...]:
    """SCF steps of an OSZICAR.

    Example:
        >>> iterations("DAV:   2    -0.108E+02   -0.24149E+02   -0.229E+02   128   0.110E+02\\n")
        (Iteration(energy=-10.8, change=24.149),)
    """
    return tuple(Iteration(_float(energy), abs(_float(change))) for energy, change in _ROW.findall(oszicar))


def _float(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        return math.nan


# (pattern in what VASP printed, name, kind, repair); the first that matches wins.
_KNOWN = (
    (
        r"insufficient (virtual )?memory|[Cc]annot allocate",
        "OutOfMemory",
        "infrastructure",
        "more memory or nodes",
    ),
    (
        r"EDDDAV|ZHEGV|ZPOTRF|BRMIX|EDWAV",
        "DiagonalizationFailed",
        "simulation",
        "settings keywords = {'algo': 'All'}, or a sounder structure",
    ),
    (
        r"I REFUSE TO CONTINUE|Error reading item|ERROR: there must be 1 or 3 items|not enough memory for POTCAR",
        "BadSettings",
        "contract",
        "correct `keywords`",
    ),
    (r"[Ll]icen[sc]e", "NoExecutable", "infrastructure", "ask the site for VASP"),
    (
        r"cannot open shared object|not enough slots",
        "NoExecutable",
        "infrastructure",
        "load the modules of VASP in worker_init of the site profile",
    ),
)


def check(ended: Ended, directory: Path, max_scf: int) -> None:
    """Raise what went wrong in a calculation.

    Raises:
        AppFailed: `NotConverged`, `Walltime`, `BlockEnded` or another of the engine.
    """
    tail = ended.text[-4000:]
    if ended.stopped is not None:
        raise ended.stopped.failure(wall_s=ended.wall_s, log_tail=tail)
    outcar = _read(directory / "OUTCAR")
    if ended.returncode != 0 or "General timing and accounting" not in outcar:
        raise _failure(ended, tail)
    if "aborting loop because EDIFF is reached" in outcar:
        return
    history = iterations(_read(directory / "OSZICAR"))
    last = f": last change {history[-1].change:.2g} eV" if history else ""
    raise NotConverged(
        f"the SCF of VASP did not reach EDIFF in {len(history)} of at most {max_scf} steps{last}.",
        history=history,
        log_tail=tail,
        repair="more max_scf, ALGO = All, less mixing, or more smearing",
    )


def _failure(ended: Ended, tail: str) -> AppFailed:
    for pattern, name, kind, repair in _KNOWN:
        found = re.search(rf"^.*(?:{pattern}).*$", ended.text, re.MULTILINE)
        if found:
            return AppFailed(
                f"VASP stopped: {found[0].strip(' |')}.", kind=kind, name=name, log_tail=tail, repair=repair
            )
    how = f"signal {-ended.returncode}" if ended.returncode < 0 else f"exit code {ended.returncode}"
    cut = ", but its OUTCAR has no end" if ended.returncode == 0 else ""
    return AppFailed(
        f"VASP ended with {how}{cut}.", kind="simulation" if tail else "infrastructure", name="ExecutableFailed",
        log_tail=tail,
    )  # fmt: skip


def _read(path: Path) -> str:
    return read_text(path) if path.is_file() else ""


def _folder(options: Mapping[str, Any], site: Mapping[str, Any]) -> str:
    """The folder that holds those of the POTCARs."""
    of_site = ((site.get("apps") or {}).get("vasp") or {}).get("env") or {}
    return str(options.get("pseudo_dir") or of_site.get("VASP_PP_PATH") or os.environ.get("VASP_PP_PATH") or "")


def _potentials(directory: Path) -> dict[str, Any]:
    """What the POTCAR is made of, and its SHA-256.

    Raises:
        AppFailed: `MixedFunctionals`.
    """
    data = read_bytes(directory / "POTCAR")
    text = data.decode(errors="replace")
    titles = [" ".join(title.split()) for title in re.findall(r"^\s*TITEL\s*=\s*(.*)$", text, re.MULTILINE)]
    functionals = re.findall(r"^\s*LEXCH\s*=\s*(\w+)", text, re.MULTILINE)
    if len(set(functionals)) > 1:
        pairs = ", ".join(f"{title} ({made})" for title, made in zip(titles, functionals, strict=False))
        raise AppFailed(
            f"the POTCARs were made with different functionals: {pairs}.", kind="contract", name="MixedFunctionals"
        )
    return {"potcar": titles, "functional": functionals[:1], "sha256": hashlib.sha256(data).hexdigest()}


_ENVIRONMENT = threading.Lock()


@contextlib.contextmanager
def _potential_folder(folder: str) -> Iterator[None]:
    """ASE finds POTCARs by this variable only; runs may be threads of one process."""
    with _ENVIRONMENT:
        before = os.environ.get("VASP_PP_PATH")
        os.environ["VASP_PP_PATH"] = folder
        try:
            with warnings.catch_warnings():
                # From 3.29 on ASE says that this should be in a file of its own settings.
                warnings.filterwarnings("ignore", "Loaded VASP_PP")
                yield
        finally:
            if before is None:
                os.environ.pop("VASP_PP_PATH", None)
            else:
                os.environ["VASP_PP_PATH"] = before


@functools.cache
def _calculator_class() -> Any:
    import numpy as np
    from ase.calculators.calculator import Calculator, CalculatorSetupError
    from ase.calculators.vasp import Vasp as AseVasp

    class Started(AseVasp):
        """ASE's calculator with our way of starting the program."""

        start: Any = None
        folder = ""

        def write_input(self, *args: Any, **keywords: Any) -> None:
            with _potential_folder(self.folder):
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
            self._folder = _folder(options, run.site)
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
            record = _potentials(directory)
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
            fermi = re.findall(r"E-fermi\s*:\s*(\S+)", _read(Path(self.directory) / "OUTCAR"))
            if fermi and math.isfinite(_float(fermi[-1])):
                self.results["fermi"] = _float(fermi[-1])

    return Vasp
