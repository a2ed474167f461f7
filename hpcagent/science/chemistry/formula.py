"""Chemical formulas and equations: read, counted, balanced in whole numbers."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from hpcagent.errors import AppFailed, nearest

__all__ = ["ELEMENTS", "PHASES", "Term", "balanced", "composition", "read_side", "written"]

ELEMENTS = frozenset(
    """H He Li Be B C N O F Ne Na Mg Al Si P S Cl Ar K Ca Sc Ti V Cr Mn Fe Co Ni Cu Zn Ga Ge As Se Br Kr Rb Sr Y
    Zr Nb Mo Tc Ru Rh Pd Ag Cd In Sn Sb Te I Xe Cs Ba La Ce Pr Nd Pm Sm Eu Gd Tb Dy Ho Er Tm Yb Lu Hf Ta W Re Os
    Ir Pt Au Hg Tl Pb Bi Po At Rn Fr Ra Ac Th Pa U Np Pu Am Cm Bk Cf Es Fm Md No Lr Rf Db Sg Bh Hs Mt Ds Rg Cn Nh
    Fl Mc Lv Ts Og""".split()  # noqa: SIM905  (118 texts in quotes cannot be read)
)
PHASES = {"g": "gas", "l": "liquid", "s": "solid", "aq": "in water"}
CHARGE = "charge"

_MOST_TERMS = 20
_MOST_ATOMS = 100_000
_TERM = re.compile(
    r"\s*(?:(?P<n>\d+(?:\.\d+)?|\d+\s*/\s*\d+)\s*(?:\*\s*)?(?=[A-Za-z(\[]))?(?P<what>.*?)\s*"
    r"(?:\((?P<phase>g|l|s|aq)\))?\s*\Z"
)
_CHARGE = re.compile(r"(?P<body>.*?)(?:\^(?P<size>\d*)(?P<sign>[+-])|(?P<one>[+-]))\Z")
_PIECE = re.compile(r"([A-Z][a-z]?)(\d*)|([(\[])|([)\]])(\d*)")


@dataclass(frozen=True, slots=True)
class Term:
    """One substance of an equation.

    Attributes:
        formula: As it was written, without phase and coefficient.
        phase: `g`, `l`, `s`, `aq`, or empty.
        coefficient: As it was written; None where nothing was.
    """

    formula: str
    phase: str
    coefficient: Fraction | None = None

    def __str__(self) -> str:
        return f"{self.formula}({self.phase})" if self.phase else self.formula


def composition(formula: str) -> dict[str, int]:
    """Atoms of a formula, and its charge (in e) under `charge`, where it has one.

    Raises:
        AppFailed: `BadFormula`.

    Example:
        >>> composition("Ca(OH)2"), composition("SO4^2-")
        ({'Ca': 1, 'O': 2, 'H': 2}, {'S': 1, 'O': 4, 'charge': -2})
    """
    charge = 0
    body = formula
    found = _CHARGE.match(formula)
    if found:
        body = found["body"]
        sign = found["one"] or found["sign"]
        charge = int(f"{sign}{found['size'] or 1}")
        if found["one"] and len(re.findall(r"[A-Z]", body)) == 1 and re.fullmatch(r"[A-Z][a-z]?\d", body):
            raise AppFailed(
                f"{formula!r} may be {body[:-1]}^{body[-1]}{sign} or {body}^{sign}.",
                kind="contract",
                name="BadFormula",
                repair=f"write {body[:-1]}^{body[-1]}{sign} or {body}^{sign}",
            )
    total: dict[str, int] = {}
    for part in body.split("·"):
        times = re.match(r"\d*", part)
        assert times is not None
        for element, count in _counted(formula, part[times.end() :]).items():
            total[element] = total.get(element, 0) + count * int(times[0] or 1)
    if sum(total.values()) > _MOST_ATOMS:
        raise AppFailed(f"{formula!r} has more than {_MOST_ATOMS:,} atoms.", kind="contract", name="BadFormula")
    return total | ({CHARGE: charge} if charge else {})


def _counted(formula: str, body: str) -> dict[str, int]:
    stack: list[dict[str, int]] = [{}]
    opened: list[str] = []
    at = 0
    while at < len(body):
        piece = _PIECE.match(body, at)
        if piece is None:
            raise AppFailed(
                f"{formula!r} is no formula (at {body[at:]!r}): elements, numbers, brackets, a charge after ^, as "
                "in Ca(OH)2 or SO4^2-.",
                kind="contract",
                name="BadFormula",
                repair="' + ' between substances has blanks around it",
            )
        at = piece.end()
        element, count, opening, closing, times = piece.groups()
        if opening:
            stack.append({})
            opened.append(opening)
            continue
        if closing:
            if not opened or opened.pop() + closing not in ("()", "[]"):
                raise AppFailed(
                    f"{formula!r} has a bracket too many, or one of another kind.",
                    kind="contract",
                    name="BadFormula",
                )
            inner = stack.pop()
            found = {e: n * _number(formula, times) for e, n in inner.items()}
        elif element in ELEMENTS:
            found = {element: _number(formula, count)}
        else:
            raise AppFailed(
                f"{formula!r}: there is no element {element!r}; {nearest(element, ELEMENTS)[:60]}",
                kind="contract",
                name="BadFormula",
            )
        for e, n in found.items():
            stack[-1][e] = stack[-1].get(e, 0) + n
    if len(stack) > 1 or not stack[0]:
        raise AppFailed(
            f"{formula!r} has a bracket that is not closed, or no element.", kind="contract", name="BadFormula"
        )
    return stack[0]


def _number(formula: str, text: str) -> int:
    if not text:
        return 1
    if len(text) > 6 or int(text) == 0:
        raise AppFailed(
            f"{formula!r}: {text[:20]} is no count of atoms; allowed are 1 to 999999.",
            kind="contract",
            name="BadFormula",
        )
    return int(text)


def read_side(text: str, what: str) -> list[Term]:
    """The substances of one side: `2 H2(g) + O2(g)`, a list with commas, or a JSON list of texts.

    Raises:
        AppFailed: `BadFormula`.

    Example:
        >>> [str(term) for term in read_side("2 H2 + O2(g)", "reactants")]
        ['H2', 'O2(g)']
    """
    if re.match(r"\s*\[\s*[\"\]]", text):  # a complex begins with a bracket, too
        try:
            words = json.loads(text)
        except (ValueError, RecursionError):
            words = None
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise AppFailed(
                f'{what}={text[:80]!r} is no JSON list of texts, as in ["H2(g)", "O2(g)"].',
                kind="contract",
                name="BadFormula",
            )
    else:
        words = re.split(r"\s+\+\s+|\s*[,;]\s*", text.strip())
    if not any(word.strip() for word in words):
        raise AppFailed(
            f"{what} names no substance.",
            kind="contract",
            name="BadFormula",
            repair=f'e.g. {what} = "H2(g) + O2(g)"',
        )
    if len(words) > _MOST_TERMS:
        raise AppFailed(
            f"{what} has {len(words)} substances; at most {_MOST_TERMS}.", kind="contract", name="BadFormula"
        )
    return [_read_term(word) for word in words]


def _read_term(word: str) -> Term:
    found = _TERM.match(word)
    if found is None or not found["what"]:
        raise AppFailed(
            f"{word!r} is no substance: a coefficient, a formula and a phase, as in 2 H2O(l).",
            kind="contract",
            name="BadFormula",
        )
    coefficient = None
    if found["n"]:
        try:
            coefficient = Fraction(found["n"].replace(" ", ""))
        except ZeroDivisionError:
            coefficient = Fraction(0)
        if not 0 < coefficient < 10**6:
            raise AppFailed(
                f"{word!r}: a coefficient is a number above 0 and below 1000000.",
                kind="contract",
                name="BadFormula",
            )
    return Term(found["what"].strip(), found["phase"] or "", coefficient)


def balanced(left: Sequence[Term], right: Sequence[Term]) -> tuple[list[Fraction], list[Fraction]]:
    """Coefficients that keep every kind of atom and the charge, by exact arithmetic.

    The smallest whole numbers, where no coefficient is written; else those that are written, 1 where none is, if
    they do keep them.

    Raises:
        AppFailed: `NotBalanced`: nothing keeps them; `AmbiguousReaction`: more than one set of coefficients does.

    Example:
        >>> left, right = read_side("Fe + O2", ""), read_side("Fe2O3", "")
        >>> [[int(n) for n in side] for side in balanced(left, right)]
        [[4, 3], [2]]
    """
    terms = [*left, *right]
    names = [str(term) for term in terms]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise AppFailed(
            f"{', '.join(twice)} stands twice.",
            kind="contract",
            name="NotBalanced",
            repair="take out what is not changed, e.g. a catalyst",
        )
    counts = [composition(term.formula) for term in terms]
    kinds = list(dict.fromkeys(kind for count in counts for kind in count))
    signs = [1] * len(left) + [-1] * len(right)
    matrix = [[Fraction(s * count.get(k, 0)) for s, count in zip(signs, counts, strict=True)] for k in kinds]
    if any(term.coefficient is not None for term in terms):
        chosen = [term.coefficient if term.coefficient is not None else Fraction(1) for term in terms]
        for kind, row in zip(kinds, matrix, strict=True):
            off = sum((a * n for a, n in zip(row, chosen, strict=True)), Fraction(0))
            if off:
                raise AppFailed(
                    f"the coefficients as written do not balance {kind}: the left side has {abs(off)} "
                    f"{'more' if off > 0 else 'less'} than the right side.",
                    kind="contract",
                    name="NotBalanced",
                    repair="correct them, or leave all of them out: they are found then",
                )
        return chosen[: len(left)], chosen[len(left) :]
    vectors = _kernel(matrix, len(terms))
    if not vectors:
        raise _unbalanced(left, right, kinds, matrix)
    if len(vectors) > 1:
        raise AppFailed(
            f"{' + '.join(names[: len(left)])} -> {' + '.join(names[len(left) :])} can be balanced in more than "
            f"one way ({len(vectors)} independent reactions).",
            kind="contract",
            name="AmbiguousReaction",
            repair="write the coefficients, or one reaction at a time",
        )
    vector = vectors[0]
    if sum(n < 0 for n in vector) > sum(n > 0 for n in vector):
        vector = [-n for n in vector]
    if any(n <= 0 for n in vector):
        wrong = [name for name, n in zip(names, vector, strict=True) if n <= 0]
        raise AppFailed(
            f"{', '.join(wrong)} can only be balanced with a coefficient that is 0 or negative: on the other "
            "side, or without part in the reaction.",
            kind="contract",
            name="NotBalanced",
        )
    # One of them is 1, so that no number divides all of them afterwards.
    scale = math.lcm(*(n.denominator for n in vector))
    whole = [n * scale for n in vector]
    return whole[: len(left)], whole[len(left) :]


def _unbalanced(
    left: Sequence[Term], right: Sequence[Term], kinds: Sequence[str], matrix: Sequence[Sequence[Fraction]]
) -> AppFailed:
    alone = [
        f"{kind} stands on one side only"
        for kind, row in zip(kinds, matrix, strict=True)
        if kind != CHARGE and (all(n >= 0 for n in row) or all(n <= 0 for n in row))
    ]
    why = "; ".join(alone) or "no coefficients keep all of them at once"
    return AppFailed(
        f"{' + '.join(map(str, left))} -> {' + '.join(map(str, right))} cannot be balanced: {why}.",
        kind="contract",
        name="NotBalanced",
        repair="add the substance that is missing",
    )


def _kernel(matrix: Sequence[Sequence[Fraction]], n: int) -> list[list[Fraction]]:
    """A basis of what the matrix makes 0, by elimination in fractions."""
    rows = [list(row) for row in matrix]
    pivots: list[int] = []
    for column in range(n):
        at = next((i for i in range(len(pivots), len(rows)) if rows[i][column]), None)
        if at is None:
            continue
        top = len(pivots)
        rows[top], rows[at] = rows[at], rows[top]
        rows[top] = [a / rows[top][column] for a in rows[top]]
        for i, row in enumerate(rows):
            if i != top and row[column]:
                rows[i] = [a - row[column] * b for a, b in zip(row, rows[top], strict=True)]
        pivots.append(column)
    basis = []
    for free in (c for c in range(n) if c not in pivots):
        vector = [Fraction(0)] * n
        vector[free] = Fraction(1)
        for row, pivot in zip(rows, pivots, strict=False):
            vector[pivot] = -row[free]
        basis.append(vector)
    return basis


def written(terms: Sequence[Term], coefficients: Sequence[Fraction]) -> str:
    """One side as text.

    Example:
        >>> written([Term("H2", "g"), Term("O2", "g")], [Fraction(1), Fraction(1, 2)])
        'H2(g) + 1/2 O2(g)'
    """
    return " + ".join(f"{'' if n == 1 else f'{n} '}{term}" for term, n in zip(terms, coefficients, strict=True))
