"""Standard enthalpies of formation and heat contents, from the tables beside this module.

Sources (column `source`):

- CODATA: J. D. Cox, D. D. Wagman and V. A. Medvedev, CODATA Key Values for Thermodynamics, Hemisphere, 1989.
- JANAF: M. W. Chase, NIST-JANAF Thermochemical Tables, 4th ed., J. Phys. Chem. Ref. Data, Monograph 9 (1998).
- NBS: D. D. Wagman et al., The NBS Tables of Chemical Thermodynamic Properties, J. Phys. Chem. Ref. Data 11,
  Suppl. 2 (1982).
- Pittam-Pilcher: D. A. Pittam and G. Pilcher, J. Chem. Soc. Faraday Trans. 1 68, 2224 (1972).

Heat contents are Shomate's equations of the NIST Chemistry WebBook, fitted there to JANAF.
"""

from __future__ import annotations

import csv
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hpcagent.errors import AppFailed, nearest
from hpcagent.science.chemistry.formula import PHASES, Term, composition

__all__ = ["REFERENCE_K", "Substance", "enthalpy", "known", "substance"]

REFERENCE_K = 298.15
"""Temperature of the enthalpies of formation, K."""
# As near as this a temperature is the reference's, K.
_SAME = 0.01


@dataclass(frozen=True, slots=True)
class Shomate:
    """H(T) - H(298.15 K) = a t + b t^2/2 + c t^3/3 + d t^4/4 - e/t + f - h, t = T / 1000 K, kJ/mol."""

    low: float
    high: float
    coefficients: tuple[float, ...]
    source: str

    def heat_content(self, temperature: float) -> float:
        """H(T) - H(298.15 K), kJ/mol."""
        a, b, c, d, e, f, h = self.coefficients
        t = temperature / 1000.0
        return a * t + b * t**2 / 2 + c * t**3 / 3 + d * t**4 / 4 - e / t + f - h


@dataclass(frozen=True, slots=True)
class Substance:
    """A row of the table.

    Attributes:
        formula, phase, name: What it is.
        formation: Standard enthalpy of formation at 298.15 K and 1 bar, kJ/mol.
        uncertainty: As the source states it, kJ/mol; None where it states none.
        source: See the module.
        heats: Heat contents over ranges of temperature.
    """

    formula: str
    phase: str
    name: str
    formation: float
    uncertainty: float | None
    source: str
    heats: tuple[Shomate, ...]

    def __str__(self) -> str:
        return f"{self.formula}({self.phase})"


@functools.cache
def known() -> Mapping[tuple[str, str], Substance]:
    """(formula, phase) -> substance, of all in the table."""
    heats: dict[tuple[str, str], list[Shomate]] = {}
    for row in _rows("heat_capacity.csv"):
        heats.setdefault((row["formula"], row["phase"]), []).append(
            Shomate(
                float(row["low_K"]), float(row["high_K"]), tuple(float(row[k]) for k in "abcdefh"), row["source"]
            )
        )
    return {
        (row["formula"], row["phase"]): Substance(
            row["formula"],
            row["phase"],
            row["name"],
            float(row["formation_enthalpy_kJ_mol"]),
            float(row["uncertainty_kJ_mol"]) if row["uncertainty_kJ_mol"] else None,
            row["source"],
            tuple(heats.get((row["formula"], row["phase"]), ())),
        )
        for row in _rows("formation.csv")
    }


def _rows(name: str) -> list[dict[str, str]]:
    with (Path(__file__).parent / name).open(newline="") as file:
        return list(csv.DictReader(file))


def substance(term: Term) -> Substance:
    """The row of a term: by its formula or its name, and its phase where there is more than one.

    Raises:
        AppFailed: `UnknownSubstance`, `PhaseNeeded`; `BadFormula` for what is neither a name nor a formula.

    Example:
        >>> substance(Term("water", "l")).formation
        -285.83
    """
    table = known()
    word = term.formula
    rows = [s for s in table.values() if word in (s.formula, s.name)]
    if not rows:
        of_name = [s.name for s in table.values()]
        if word.islower():
            raise _unknown(word, nearest(word, of_name), ())
        atoms = composition(word)
        alike = [s for s in table.values() if composition(s.formula) == atoms]
        raise _unknown(word, nearest(word, {s.formula for s in table.values()}), alike)
    if term.phase:
        for row in rows:
            if row.phase == term.phase:
                return row
        has = ", ".join(map(str, rows))
        raise AppFailed(
            f"{term} is not in the table of enthalpies, which has {has}.",
            kind="contract",
            name="UnknownSubstance",
            repair=f"one of {has}",
        )
    if len(rows) > 1:
        has = " or ".join(f"{row} ({PHASES[row.phase]}, {row.formation:g} kJ/mol)" for row in rows)
        raise AppFailed(
            f"{word} has several phases, and its enthalpy depends on which: {has}.",
            kind="contract",
            name="PhaseNeeded",
            repair=f"write {' or '.join(map(str, rows))}",
        )
    return rows[0]


def _unknown(word: str, near: str, alike: object) -> AppFailed:
    same = ", ".join(f"{s} ({s.name})" for s in alike) if isinstance(alike, list) else ""
    hint = f"of the same atoms: {same}" if same else near if len(near) < 200 else "see the reference for all"
    return AppFailed(
        f"{word!r} is not in the table of enthalpies; {hint.rstrip('.')}.",
        kind="contract",
        name="UnknownSubstance",
        repair="a substance of the table; a guess would be a wrong number",
    )


def enthalpy(found: Substance, temperature: float) -> float:
    """Enthalpy at a temperature, from the elements at 298.15 K; kJ/mol.

    Raises:
        AppFailed: `NoHeatCapacity`: the temperature is another than 298.15 K, and no table reaches it.
    """
    if abs(temperature - REFERENCE_K) <= _SAME:
        return found.formation
    for heat in found.heats:
        if heat.low <= temperature <= heat.high:
            return found.formation + heat.heat_content(temperature)
    ranges = ", ".join(f"{h.low:g} to {h.high:g} K" for h in found.heats) or "none"
    raise AppFailed(
        f"no heat capacity of {found} ({found.name}) is tabulated at {temperature:g} K (its ranges: {ranges}).",
        kind="contract",
        name="NoHeatCapacity",
        repair=f"temperature = {REFERENCE_K}, or a temperature and phase that the table has",
    )
