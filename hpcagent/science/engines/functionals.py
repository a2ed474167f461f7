"""Names of functionals: one name means the same in every engine, or the engine refuses it.

| name | exchange and correlation | source |
|---|---|---|
| `LDA` | Slater; correlation of the electron gas of Ceperley and Alder | doi:10.1103/PhysRevLett.45.566 |
| `PBE` | | doi:10.1103/PhysRevLett.77.3865 |
| `PBEsol` | | doi:10.1103/PhysRevLett.100.136406 |
| `revPBE` | PBE with another kappa in the exchange | doi:10.1103/PhysRevLett.80.890 |
| `RPBE` | PBE with another form of the exchange | doi:10.1103/PhysRevB.59.7413 |
| `PW91` | | doi:10.1103/PhysRevB.46.6671 |
| `BLYP` | Becke 1988; Lee, Yang and Parr | doi:10.1103/PhysRevA.38.3098, 10.1103/PhysRevB.37.785 |
| `TPSS` | | doi:10.1103/PhysRevLett.91.146401 |
| `SCAN` | | doi:10.1103/PhysRevLett.115.036402 |
| `r2SCAN` | | doi:10.1021/acs.jpclett.0c02405 |
| `PBE0` | a quarter of exact exchange | doi:10.1063/1.478522 |
| `HSE06` | screened at 0.11 / bohr | doi:10.1063/1.2404663 |
| `B3LYP` | with the VWN correlation that Gaussian has (VWN-RPA), not VWN5 | doi:10.1021/j100096a001 |
| `HF` | Hartree-Fock, no correlation | |

The correlation of `LDA` is Ceperley's and Alder's in the fit that the engine has: Perdew and Wang (PW92) in
`pyscf` and `gpaw`, Perdew and Zunger (PZ) in `espresso` and `vasp`, whose pseudopotentials are made with it. The
total energy of water (def2-svp) is 42 meV higher with PZ than with PW92, with VWN 76 meV lower; of the 170 meV
that lengthening one bond by a tenth costs, PZ has 2 less and VWN 1 more.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from hpcagent.errors import AppFailed

__all__ = ["FUNCTIONALS", "canonical", "setups_of", "spelling"]

FUNCTIONALS: Mapping[str, Mapping[str, str]] = {
    "LDA": {"pyscf": "lda,pw", "gpaw": "LDA", "espresso": "pz", "vasp": "lda"},
    "PBE": {"pyscf": "pbe,pbe", "gpaw": "PBE", "espresso": "pbe", "vasp": "pbe"},
    "PBEsol": {"pyscf": "pbe_sol,pbe_sol", "espresso": "pbesol", "vasp": "pbesol"},
    "revPBE": {"pyscf": "pbe_r,pbe", "gpaw": "revPBE", "espresso": "revpbe", "vasp": "revpbe"},
    "RPBE": {"pyscf": "rpbe,pbe", "gpaw": "RPBE", "espresso": "rpbe", "vasp": "rpbe"},
    "PW91": {"pyscf": "pw91,pw91", "gpaw": "PW91", "espresso": "pw91", "vasp": "pw91"},
    "BLYP": {"pyscf": "b88,lyp", "espresso": "blyp", "vasp": "blyp"},
    "TPSS": {"pyscf": "tpss,tpss", "gpaw": "TPSS", "espresso": "tpss", "vasp": "tpss"},
    "SCAN": {"pyscf": "scan,scan", "gpaw": "MGGA_X_SCAN+MGGA_C_SCAN", "espresso": "scan", "vasp": "scan"},
    "r2SCAN": {"pyscf": "r2scan,r2scan", "gpaw": "MGGA_X_R2SCAN+MGGA_C_R2SCAN", "vasp": "r2scan"},
    "PBE0": {"pyscf": "pbe0", "gpaw": "PBE0", "espresso": "pbe0", "vasp": "pbe0"},
    "HSE06": {"pyscf": "hse06", "gpaw": "HSE06", "espresso": "hse", "vasp": "hse06"},
    "B3LYP": {"pyscf": "hyb_gga_xc_b3lyp", "gpaw": "B3LYP", "espresso": "b3lyp-v1r", "vasp": "b3lyp"},
    "HF": {"pyscf": "hf", "gpaw": "EXX", "vasp": "hf"},
}
"""Name -> engine -> how the engine spells it; an engine that is not there has not got it."""

# What is in no table goes to the engine as it is: never a path, and nothing of several lines.
_NAME = re.compile(r"[A-Za-z0-9.,][A-Za-z0-9 +*,.:_()-]{0,199}")


def canonical(xc: str) -> str | None:
    """The functional's name in the table, in whatever case it is written; None where the table has not got it.

    Example:
        >>> canonical("pbesol"), canonical(""), canonical("wb97x")
        ('PBEsol', 'PBE', None)
    """
    lower = {name.lower(): name for name in FUNCTIONALS}
    return lower.get(xc.strip().lower() or "pbe")


def spelling(xc: str, engine: str) -> tuple[str, tuple[str, ...]]:
    """How the engine spells a functional, and what has to be said of it.

    A name that the table has not got goes to the engine as it is, which the note says.

    Raises:
        AppFailed: `BadSettings`: the functional is in the table, but the engine has not got it, or it is no name.

    Example:
        >>> spelling("LDA", "pyscf")
        ('lda,pw', ())
    """
    name = canonical(xc)
    if name is None:
        if not _NAME.fullmatch(xc):
            raise AppFailed(
                f"xc={xc[:80]!r} is no name of a functional: letters, digits, blanks and + - * , . : _ ( ) only.",
                kind="contract",
                name="BadSettings",
                repair=f"one of {', '.join(FUNCTIONALS)}, or a name that {engine} knows",
            )
        return xc, (f"xc={xc!r} is in no table of functionals: {engine} has it as it understands the name",)
    found = FUNCTIONALS[name].get(engine)
    if found is None:
        have = ", ".join(other for other, of in FUNCTIONALS.items() if engine in of)
        raise AppFailed(
            f"xc={xc!r}: engine {engine!r} has no {name}; it has {have}.",
            kind="contract",
            name="BadSettings",
            repair="another functional, or another engine",
        )
    return found, ()


def setups_of(xc: str) -> str:
    """For which functional the PAW setups of a calculation were made: those GPAW has none for take PBE's."""
    name = canonical(xc)
    return name if name in ("LDA", "PBE", "revPBE", "RPBE", "PW91") else "PBE"
