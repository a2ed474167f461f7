"""Chemical formulas as counts of elements, and names of materials made of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import reduce
from math import gcd

from hpcagent.errors import BadInput

__all__ = ["ELEMENTS", "alike", "counts_of", "named_formulas", "reduced_text"]

ELEMENTS = frozenset(
    """
    H He Li Be B C N O F Ne Na Mg Al Si P S Cl Ar K Ca Sc Ti V Cr Mn Fe Co Ni Cu Zn Ga Ge As Se Br Kr Rb Sr Y Zr
    Nb Mo Tc Ru Rh Pd Ag Cd In Sn Sb Te I Xe Cs Ba La Ce Pr Nd Pm Sm Eu Gd Tb Dy Ho Er Tm Yb Lu Hf Ta W Re Os Ir
    Pt Au Hg Tl Pb Bi Po At Rn Fr Ra Ac Th Pa U Np Pu Am Cm Bk Cf Es Fm Md No Lr Rf Db Sg Bh Hs Mt Ds Rg Cn Nh
    Fl Mc Lv Ts Og
    """.split()  # noqa: SIM905  (118 quoted symbols are not easier to read)
)
_TOKEN = re.compile(r"([A-Z][a-z]?)(\d*)|(\()|(\))(\d*)")
_LONGEST = 200


def counts_of(formula: str) -> dict[str, int]:
    """Element -> number of atoms.

    Raises:
        BadInput: It is no formula of known elements with whole numbers.

    Example:
        >>> counts_of("Ca(OH)2")
        {'Ca': 1, 'O': 2, 'H': 2}
    """
    levels: list[dict[str, int]] = [{}]
    at = 0
    if isinstance(formula, str) and 0 < len(formula) <= _LONGEST:
        while found := _TOKEN.match(formula, at):
            element, number, opened, closed, times = found.groups()
            at = found.end()
            if opened:
                levels.append({})
                continue
            if closed:
                if len(levels) < 2:
                    break
                inner, factor = levels.pop(), _whole(times)
                for name, n in inner.items():
                    levels[-1][name] = levels[-1].get(name, 0) + n * factor
            elif element not in ELEMENTS:
                break
            else:
                levels[-1][element] = levels[-1].get(element, 0) + _whole(number)
            if at == len(formula) and len(levels) == 1 and all(levels[0].values()):
                return levels[0]
    raise BadInput(
        f"{str(formula)[:80]!r} is no chemical formula (element symbols, whole numbers, brackets, e.g. CuZnO or "
        "Ca(OH)2).",
        value=formula,
    )


def _whole(digits: str) -> int:
    return int(digits[:9]) if digits else 1


def named_formulas(text: str) -> tuple[str, ...]:
    """The formulas that a name of a material is made of: `Cu-ZnO` or `Cu/ZnO` is copper on zinc oxide.

    Raises:
        BadInput: It is something else: free words and SQL are not understood, and not guessed at.

    Example:
        >>> named_formulas("Cu-ZnO"), named_formulas("")
        (('Cu', 'ZnO'), ())
    """
    if not isinstance(text, str):
        raise BadInput(
            f"query={text!r} must be a text: a formula, or several with '-' or '/' between.", value=text
        )
    parts = tuple(re.split(r"\s*[-/]\s*|\s+", text.strip())) if text.strip() else ()
    for part in parts:
        try:
            counts_of(part)
        except BadInput:
            raise BadInput(
                f"query={text[:120]!r}: {part[:40]!r} is no chemical formula. A query is a formula, or several "
                "with '-' or '/' between them (Cu-ZnO); conditions are given as filters, not as words or SQL.",
                value=text[:200],
            ) from None
    return parts


def alike(one: Mapping[str, int], other: Mapping[str, int]) -> bool:
    """Whether two formulas have the same ratios.

    Example:
        >>> alike(counts_of("Al6Ni2"), counts_of("Al3Ni"))
        True
    """
    return _reduced(one) == _reduced(other)


def reduced_text(counts: Mapping[str, int]) -> str:
    """The reduced formula in OPTIMADE's order: elements by alphabet, no 1.

    Example:
        >>> reduced_text(counts_of("Ni2Al6"))
        'Al3Ni'
    """
    return "".join(f"{e}{'' if n == 1 else n}" for e, n in sorted(_reduced(counts).items()))


def _reduced(counts: Mapping[str, int]) -> dict[str, int]:
    divisor = reduce(gcd, counts.values(), 0) or 1
    return {name: n // divisor for name, n in counts.items()}
