"""PySCF: DFT of molecules in Gaussian basis sets, and of small crystals with GTH pseudopotentials."""

from __future__ import annotations

import functools
import math
import re
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hpcagent.apps.deciding import Deciding
from hpcagent.apps.packages import needs, no_bands, refuse_decided, versions_of
from hpcagent.errors import AppFailed
from hpcagent.science.engines.base import KPOINTS, Iteration, Level, NotConverged
from hpcagent.science.engines.functionals import canonical, spelling
from hpcagent.science.engines.protocols import sampled
from hpcagent.science.engines.tblite import unpaired

if TYPE_CHECKING:
    from ase import Atoms

    from hpcagent.apps.run import Run

__all__ = ["ENGINE", "PySCFEngine"]

MOLECULE_BASIS = "def2-svp"
CRYSTAL_BASIS = "gth-dzvp"
_METHODS = ("RKS", "UKS", "ROKS")
# Where the last step changes the energy by little its forces may still be off; PySCF's own rule, sqrt(tolerance),
# is looser than this for the tolerances that are usual here.
_GRADIENT_HARTREE = 1e-4
# The first element for which the def2 sets replace core electrons by a potential.
_DEF2_ECP_FROM = 37


_DECIDED = {
    "xc": "xc",
    "basis": "basis",
    "kpts": "kpts",
    "charge": "charge",
    "spin": "magmom",
    "conv_tol": "tolerance",
    "max_cycle": "max_scf",
    "damp": "mixing",
    "diis_damp": "mixing",
    "mol": "the input structure",
    "cell": "the input structure",
}

# Names of basis sets and pseudopotentials: 6-311++G(3df,3pd), cc-pV(T+d)Z, ano@3s2p. PySCF itself would also take
# the content of a basis set, and any file, for one.
_SET = re.compile(r"[A-Za-z0-9][A-Za-z0-9 +*(),_-]{0,79}(@[A-Za-z0-9]{1,40})?")


class PySCFEngine:
    """PySCF in a process of its own.

    A structure without periodic directions is a molecule: `xc` (PBE; `HF` is Hartree-Fock) in the basis set
    `basis` (def2-svp), restricted where all electrons are paired, else unrestricted. `magmom` times the number of
    atoms, or the initial moments of the structure, is the number of unpaired electrons.

    Any other structure is periodic in all three directions: GTH pseudopotentials of `xc`, `basis` (gth-dzvp),
    k-points that must be given, and `ecut` for the density's mesh (PySCF's own is safe and slow). Good for small
    cells of light elements. A functional without GTH pseudopotentials of its own takes those of PBE, with a note.

    `basis` is a name that PySCF knows, or the absolute path of a file of numbers; expressions in it are refused.

    Settings: `keywords` are attributes of the mean-field object (`{"init_guess": "atom", "diis_space": 12}`),
    `method`: RKS, UKS or ROKS, and `pseudo`: the pseudopotentials of a crystal.
    """

    name = "pyscf"
    kind: Literal["dft"] = "dft"
    isolated = True
    takes = ("xc", "basis", "ecut", *KPOINTS, "smearing", "charge", "magmom", "tolerance", "max_scf", "mixing")

    def calculator(self, atoms: Atoms, level: Level, run: Run) -> Any:
        """A calculator that runs one SCF for all properties of a geometry."""
        needs("pyscf", "pip install 'hpcagent[dft]'")
        named = ((n, getattr(level, n)) for n in ("kpts", "kspacing", "mesh", "ecut"))
        given = [f"{name}={value}" for name, value in named if value not in (0, 1, "")]
        if not atoms.pbc.any() and given:
            raise AppFailed(
                f"{' and '.join(given)} are for periodic structures; {atoms.symbols} has "
                "no periodic direction. Leave them at their defaults.",
                kind="contract",
                name="BadSettings",
            )
        if atoms.pbc.any() and atoms.cell.rank < 3:
            raise AppFailed(
                f"{atoms.symbols} is periodic, but its cell has only {atoms.cell.rank} vector(s); PySCF needs "
                "three. Give a slab a cell with vacuum.",
                kind="contract",
                name="BadSettings",
            )
        return _calculator_class()(level, int(run.resources.get("threads_per_rank") or 1), bool(atoms.pbc.any()))

    def iterations(self, calculator: Any) -> tuple[Iteration, ...]:
        """The cycles of the last SCF; of a second-order one its macro iterations."""
        return tuple(calculator.history)

    def repairs(self, level: Level) -> tuple[tuple[str, Level], ...]:
        """More steps where they were few, the second-order solver, damping."""
        enough = max(4 * level.max_scf, 100)
        found = []
        if level.max_scf < 100:
            found.append(("more_steps", replace(level, max_scf=enough)))
        if level.smearing <= 0:  # the second-order solver knows whole occupations only
            options = {**level.options, "second_order": True}
            found.append(("second_order", replace(level, max_scf=enough, options=options)))
        gentler = 0.4 * (level.mixing or 1.0)
        found.append(("gentler_mixing", replace(level, max_scf=2 * enough, mixing=gentler)))
        return tuple(found)

    def files(self, level: Level, site: Mapping[str, Any]) -> tuple[Deciding, ...]:
        """None: basis sets and pseudopotentials are in the package; a path in `basis` counts by itself."""
        return ()

    def versions(self, calculator: Any) -> dict[str, str]:
        """PySCF's."""
        return versions_of("pyscf")

    def used(self, level: Level, atoms: Atoms, calculator: Any) -> dict[str, str]:
        """Basis set, pseudopotentials, cutoff of the density's mesh, unpaired electrons, kind of mean field."""
        found = {"unpaired_electrons": f"{unpaired(atoms, level)}"}
        if calculator.field is not None:
            found["method"] = type(getattr(calculator.field, "_scf", calculator.field)).__name__
        if not atoms.pbc.any():
            return found | {"basis": level.basis or MOLECULE_BASIS}
        cutoff = f"{level.ecut:g} eV" if level.ecut else "PySCF's own for the basis"
        return found | {"basis": level.basis or CRYSTAL_BASIS, "pseudopotentials": gth(level)[0], "ecut": cutoff}

    def bands(self, calculator: Any, atoms: Atoms, level: Level, path: Any, run: Run) -> Any:
        """Bands along a path in the converged density."""
        import numpy as np
        from ase.spectrum.band_structure import BandStructure
        from ase.units import Hartree

        if not atoms.pbc.any():
            raise no_bands("pyscf (of a molecule)")
        field = calculator.converged(atoms)
        energies = np.asarray(field.get_bands(field.cell.get_abs_kpts(path.kpts))[0]) * Hartree
        if energies.ndim == 2:
            energies = energies[None]
        return BandStructure(path, energies, reference=calculator.results["fermi"])


@functools.cache
def _calculator_class() -> Any:
    import numpy as np
    from ase.calculators.calculator import Calculator, PropertyNotImplementedError
    from ase.units import Bohr, Hartree

    class PySCF(Calculator):
        """One mean-field object for each geometry; forces and stress come from it when they are asked for."""

        implemented_properties = ["energy", "free_energy", "forces", "stress", "magmom", "dipole"]

        def __init__(self, level: Level, threads: int, periodic: bool) -> None:
            super().__init__()  # type: ignore[no-untyped-call]
            self.level = level
            self.threads = threads
            self.history: list[Iteration] = []
            self.field: Any = None
            self._density: Any = None
            self.notes = spelling(level.xc, "pyscf")[1] + (gth(level)[1] if periodic else ())

        def converged(self, atoms: Any) -> Any:
            """The mean field of these atoms."""
            self.get_property("energy", atoms)  # type: ignore[no-untyped-call]
            return self.field

        def calculate(self, atoms: Any = None, properties: Any = ("energy",), system_changes: Any = ()) -> None:
            super().calculate(atoms, properties, system_changes)  # type: ignore[no-untyped-call]
            # ASE calls nothing else when the atoms change, and a field of other atoms has their forces.
            if system_changes:
                self.field = None
            if self.field is None:
                self.field = self._scf()
            field = self.field
            try:
                if "forces" in properties:
                    self.results["forces"] = -np.asarray(field.nuc_grad_method().kernel()) * Hartree / Bohr
                if "stress" in properties:
                    self.results["stress"] = self._stress(field)
            except (NotImplementedError, AssertionError) as error:
                raise PropertyNotImplementedError(f"{', '.join(properties)} with this method: {error}") from None

        def _stress(self, field: Any) -> Any:
            if not hasattr(field, "cell"):
                raise PropertyNotImplementedError("stress of a molecule")
            raw = np.asarray(field.nuc_grad_method().get_stress()) * Hartree / Bohr**3
            return ((raw + raw.T) / 2).flat[[0, 4, 8, 5, 2, 1]]

        def _scf(self) -> Any:
            from pyscf import lib

            lib.num_threads(self.threads)
            self.history.clear()
            atoms: Any = self.atoms
            field = _field(atoms, self.level)
            field.callback = self._cycle
            # The density of the geometry before is the best guess there is; of another basis it would be none.
            guess = self._density
            nao = None if hasattr(field, "cell") else field.mol.nao_nr()
            field.kernel(dm0=guess if guess is not None and guess.shape[-1] == nao else None)
            if not field.converged:
                raise NotConverged(
                    f"the SCF of PySCF did not converge to {self.level.tolerance:g} eV in {len(self.history)} "
                    f"cycles (max_scf={self.level.max_scf}).",
                    history=tuple(self.history),
                )
            if nao is not None:
                self._density = np.asarray(field.make_rdm1())
            self.results |= _results(field, atoms)
            return field

        def _cycle(self, local: dict[str, Any]) -> None:
            energy, before = float(local["e_tot"]), float(local.get("last_hf_e", math.nan))
            self.history.append(Iteration(energy * Hartree, abs(energy - before) * Hartree))

    return PySCF


def _field(atoms: Any, level: Level) -> Any:
    """The mean-field object, not converged yet."""
    keywords = dict(level.options.get("keywords") or {})
    if keywords.pop("pseudo", None) and not atoms.pbc.any():
        raise _refused("`keywords` has 'pseudo', which is for crystals")
    refuse_decided("PySCF", keywords, _DECIDED)
    method = str(keywords.pop("method", "")).upper()
    if method and method not in _METHODS:
        raise _refused(f"method={method!r} is none of {', '.join(_METHODS)}")
    periodic = bool(atoms.pbc.any())
    spin = unpaired(atoms, level)
    _without_eval()
    try:
        field = _crystal(atoms, level, spin, method) if periodic else _molecule(atoms, level, spin, method)
        _without_checkpoint(field)
        field.xc = spelling(level.xc, "pyscf")[0]
        _check_whole(field._numint.libxc, field.xc)
    except (KeyError, ValueError, RuntimeError, UserWarning) as error:
        raise _refused(str(error.args[0] if error.args else error).strip().rstrip(".")) from None
    _tune(field, level, keywords)
    if level.options.get("second_order"):
        field = field.newton()
        field.max_cycle = level.max_scf
    return field


def _check_whole(libxc: Any, xc: str) -> None:
    """Refuse half of a functional: PySCF takes `LDA` or `B88` for an exchange without any correlation.

    A comma in the name, as in `b88,`, says that it is meant so.
    """
    hybrid, parts = libxc.parse_xc(xc)
    kinds = [_kind(libxc, int(code)) for code, _ in parts]
    if hybrid[0] or "," in xc or not set(kinds) <= {"exchange", "correlation"} or len(set(kinds)) == 2:
        return
    exchange = kinds[:1] == ["exchange"]
    half = "exchange" if exchange else "correlation"
    raise _refused(
        f"xc={xc!r} is {half} only; name both, as in 'lda,vwn', a functional of the table "
        f"(LDA, PBE, BLYP ...), or write {xc + ',' if exchange else ',' + xc!r} if half of it is wanted"
    )


def _kind(libxc: Any, code: int) -> str:
    """Which half of a functional a number of libxc is: `exchange`, `correlation`, or `both`."""
    names = [str(name).upper() for name, number in libxc.XC_CODES.items() if number == code]
    if any("_XC_" in name for name in names):
        return "both"
    if any("_X_" in name or name == "LDA_X" for name in names):
        return "exchange"
    return "correlation" if any("_C_" in name for name in names) else "both"


def _without_checkpoint(field: Any) -> None:
    """Close and remove its temporary file: one for each geometry would pile up in a relaxation."""
    field.chkfile = None
    file = getattr(field, "_chkfile", None)
    if file is not None:
        file.close()


def _refused(why: str) -> AppFailed:
    return AppFailed(f"PySCF does not take these settings: {why}.", kind="contract", name="BadSettings")


def _without_eval() -> None:
    """Have PySCF evaluate no text of a basis set, pseudopotential or geometry as Python, as it does by default."""
    from pyscf.gto import mole
    from pyscf.gto.basis import parse_cp2k, parse_molpro, parse_nwchem, parse_nwchem_ecp

    for module in (mole, parse_cp2k, parse_molpro, parse_nwchem, parse_nwchem_ecp):
        module.DISABLE_EVAL = True


def _set_name(what: str, text: str) -> str:
    """The name of a basis set or of pseudopotentials, or the absolute path of a file with one.

    Raises:
        AppFailed: `BadSettings`: it is neither; a name of a file in the run's directory is none.
    """
    known = _SET.fullmatch(text) is not None and not Path(text).exists()
    if known or (text.isprintable() and Path(text).is_absolute() and Path(text).is_file()):
        return text
    raise _refused(f"{what}={text[:80]!r} is no name of a set that PySCF brings, and no absolute path of a file")


def _geometry(atoms: Any) -> list[tuple[str, Any]]:
    return list(zip(atoms.get_chemical_symbols(), atoms.get_positions(), strict=True))


def _molecule(atoms: Any, level: Level, spin: int, method: str) -> Any:
    from pyscf import dft, gto

    basis = _set_name("basis", level.basis or MOLECULE_BASIS)
    # The def2 sets of heavier elements are made for their core potentials; PySCF takes them without, and is wrong.
    heavy = {atom.symbol for atom in atoms if atom.number >= _DEF2_ECP_FROM}
    core = dict.fromkeys(sorted(heavy), basis) if basis.lower().startswith("def2") else {}
    molecule = gto.M(
        atom=_geometry(atoms), unit="Angstrom", basis=basis, ecp=core, charge=level.charge, spin=spin, verbose=0
    )
    return getattr(dft, method or ("UKS" if spin else "RKS"))(molecule)


# Functionals for which there are GTH pseudopotentials (S. Goedecker, M. Teter, J. Hutter, Phys. Rev. B 54, 1703
# (1996), doi:10.1103/PhysRevB.54.1703; M. Krack, doi:10.1007/s00214-005-0655-y); `pade` is a fit of PW92.
_GTH = {"LDA": "gth-pade", "PBE": "gth-pbe", "PBEsol": "gth-pbesol", "BLYP": "gth-blyp", "HF": "gth-hf"}


def gth(level: Level) -> tuple[str, tuple[str, ...]]:
    """The pseudopotentials of a crystal at this level, and what has to be said of them.

    Those of the functional; one that has none of its own takes those of PBE, as with the engine `espresso`.

    Raises:
        AppFailed: `BadSettings`: for a functional that is in no table nobody says which belong to it.
    """
    given = (level.options.get("keywords") or {}).get("pseudo")
    if given:
        return str(given), ()
    name = canonical(level.xc)
    if name is None:
        raise _refused(
            f"xc={level.xc!r} is in no table of functionals, so which GTH pseudopotentials belong to it is not "
            "known; name them with keywords={'pseudo': 'gth-pbe'}, or take another xc"
        )
    own = _GTH.get(name)
    return own or "gth-pbe", () if own else (f"{name} with GTH pseudopotentials made with PBE",)


def _crystal(atoms: Any, level: Level, spin: int, method: str) -> Any:
    from ase.units import Hartree
    from pyscf.pbc import dft, gto

    pseudo, _ = gth(level)
    n = sampled(atoms, level)
    points = math.prod(n)
    settings: dict[str, Any] = dict(  # noqa: C408
        atom=_geometry(atoms),
        a=atoms.cell.array,
        unit="Angstrom",
        basis=_set_name("basis", level.basis or CRYSTAL_BASIS),
        pseudo=_set_name("pseudo", pseudo),
        charge=level.charge,
        # Of the cell; PySCF counts over the whole mesh of k-points.
        spin=spin * points,
        ke_cutoff=level.ecut / Hartree if level.ecut else None,
        verbose=0,
    )
    with warnings.catch_warnings():
        # An odd number of electrons in the cell is even in a mesh of several k-points; PySCF warns all the same.
        warnings.simplefilter("ignore")
        cell = gto.M(**settings)
    electrons = cell.tot_electrons(points)
    if (electrons - spin * points) % 2:
        # PySCF would go on with one electron more.
        raise _refused(
            f"{electrons} electrons in {points} k-point(s), of which {spin * points} cannot be unpaired; set "
            "magmom, or kpts so that their number is even"
        )
    kind = "K" + (method or ("UKS" if spin else "RKS"))
    return getattr(dft, kind)(cell, cell.make_kpts(n))


def _tune(field: Any, level: Level, keywords: dict[str, Any]) -> None:
    from ase.units import Hartree

    field.conv_tol = level.tolerance / Hartree
    field.conv_tol_grad = min(math.sqrt(field.conv_tol), _GRADIENT_HARTREE)
    field.max_cycle = level.max_scf
    field.verbose = 0
    if level.mixing and level.mixing < 1.0:
        # The one while DIIS is at work (from the second cycle on), the other before.
        field.diis_damp = field.damp = 1.0 - level.mixing
    unknown = [name for name in keywords if not hasattr(field, name)]
    if unknown:
        raise _refused(f"its {type(field).__name__} has no attribute {', '.join(map(repr, unknown))} (`keywords`)")
    for name, value in keywords.items():
        setattr(field, name, value)
    if level.smearing > 0:
        from pyscf.pbc.scf.addons import smearing_ as of_crystal
        from pyscf.scf.addons import smearing_ as of_molecule

        smear = of_crystal if hasattr(field, "cell") else of_molecule
        smear(field, sigma=level.smearing / Hartree, method="fermi")


def _results(field: Any, atoms: Any) -> dict[str, Any]:
    import numpy as np
    from ase.units import Hartree

    smeared = getattr(field, "e_free", None)
    found: dict[str, Any] = {}
    if smeared is None:
        found["energy"] = found["free_energy"] = float(field.e_tot) * Hartree
    else:
        # ASE's meaning: `energy` is extrapolated to no smearing, forces belong to `free_energy`.
        found |= {"energy": float(field.e_zero) * Hartree, "free_energy": float(smeared) * Hartree}
    energies = np.concatenate([np.ravel(e) for e in _flat(field.mo_energy)])
    occupations = np.concatenate([np.ravel(o) for o in _flat(field.mo_occ)])
    full = occupations > 1e-3
    if full.any() and smeared is None:
        top = energies[full].max()
        found["fermi"] = float(top) * Hartree
        if not full.all():
            found["gap"] = max(float(energies[~full].min() - top), 0.0) * Hartree
    elif hasattr(field, "get_fermi"):
        found["fermi"] = float(np.max(field.get_fermi())) * Hartree
    if np.ndim(field.mo_occ) and field.istype("UKS" if not atoms.pbc.any() else "KUKS"):
        up, down = (np.sum([np.sum(o) for o in _flat(part)]) for part in field.mo_occ)
        found["magmom"] = float(up - down) / (len(field.kpts) if atoms.pbc.any() else 1)
    elif field.istype("ROKS") and not atoms.pbc.any():
        found["magmom"] = float(field.mol.spin)
    if not atoms.pbc.any():
        from ase.units import Debye

        found["dipole"] = np.asarray(field.dip_moment(verbose=0)) * Debye
    return found


def _flat(arrays: Any) -> list[Any]:
    """A list of arrays out of nested lists of them (spins, k-points)."""
    import numpy as np

    if isinstance(arrays, (list, tuple)):
        return [array for part in arrays for array in _flat(part)]
    return [np.asarray(arrays)]


ENGINE = PySCFEngine()
