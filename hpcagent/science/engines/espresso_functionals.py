"""Functionals of pw.x: how it spells them, and those that pseudopotentials are made with."""

from __future__ import annotations

from hpcagent.errors import AppFailed, nearest
from hpcagent.science.engines.functionals import spelling
from hpcagent.science.engines.upf import family

__all__ = ["functional_of", "made_with", "refuse_unknown"]

# What pw.x takes as `input_dft` in one word (its Modules/funct.f90).
_FUNCTIONALS = (
    "PZ", "BP", "PW91", "PW86PBE", "B86BPBE", "PBEQ2D", "OPTBK88", "OPTB86B", "PBE0", "B86BPBEX", "BHAHLYP",
    "HSE", "GAUPBE", "B3LYP", "B3LYP-V1R", "X3LYP", "RPBE", "WC", "M06L", "SCAN", "SCAN0", "SOGGA", "OLYP", "HCTH",
    "TB09", "EV93", "VDW-DF", "VDW-DF2", "VDW-DF-C09", "VDW-DF2-C09", "VDW-DF-CX",
    "VDW-DF-OB86", "VDW-DF2-B86R", "RVV10",
)  # fmt: skip
# Functionals for which pseudopotentials are made; others take those of PBE.
_OWN = ("LDA", "PBE", "PBESOL", "BLYP", "REVPBE", "TPSS")


def functional_of(xc: str) -> str:
    """The functional as pw.x and the headers of pseudopotentials spell it.

    Raises:
        AppFailed: `BadSettings`: pw.x has not got it.
    """
    return family(spelling(xc, "espresso")[0])


def refuse_unknown(functional: str, xc: str) -> None:
    """Refuse what pw.x knows neither by one word nor by its parts.

    Raises:
        AppFailed: `BadSettings`.
    """
    if functional not in _OWN and functional not in _FUNCTIONALS and "+" not in xc:
        raise AppFailed(
            f"xc={xc!r} is no functional that pw.x knows by one word; "
            f"{nearest(functional, (*_OWN, *_FUNCTIONALS))}",
            kind="contract",
            name="BadSettings",
            repair="another xc; parts as pw.x spells them are joined by +, as in SLA+PW+RPB+PBC",
        )


def made_with(functional: str) -> str:
    """The functional that the pseudopotentials of a calculation with `functional` are made with."""
    return functional if functional in _OWN else "PBE"
