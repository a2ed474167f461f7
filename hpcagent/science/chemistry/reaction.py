"""The reaction app: products, balance, enthalpy."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from fractions import Fraction

from hpcagent.apps.decorator import app
from hpcagent.apps.run import Outcome, Run
from hpcagent.errors import AppFailed
from hpcagent.model.contract import Metric
from hpcagent.model.parameter import Choice, Float, Text
from hpcagent.science.chemistry.formula import Term, balanced, composition, read_side, written
from hpcagent.science.chemistry.tables import REFERENCE_K, Substance, enthalpy, substance

__all__ = ["simulate_chemical_reaction"]

_HALOGENS = {"F2": "F", "Cl2": "Cl", "Br2": "Br", "I2": "I"}


@app(
    name="simulate_chemical_reaction",
    version="1.1.0",
    parameters={
        "reactants": Text(description="substances: 'H2(g) + O2(g)', or a JSON list of them; by formula or name"),
        "temperature": Float(0.0, 6000.0, unit="K", description="of reactants and products"),
        "pressure": Float(
            0.0,
            20.0,
            unit="bar",
            default=1.0,
            description="of gases, which are taken as ideal: enthalpies do not depend on it",
        ),
        "products": Text(
            default="",
            description="as reactants; empty: of a complete combustion, or of hydrogen and a halogen; all else is "
            "refused",
        ),
        "water": Choice(
            "not_said",
            "liquid",
            "gas",
            default="not_said",
            description="phase of water where the products are not given: liquid gives the higher heating value, "
            "gas the lower",
        ),
    },
    metrics={
        "reaction_enthalpy": Metric(
            name="reaction_enthalpy",
            unit="kJ/mol",
            description="enthalpy of products less that of reactants for one mole of the reaction as it is "
            "written; negative: heat is given off",
        ),
        "energy_released": Metric(
            name="energy_released", unit="kJ/mol", description="heat given off: minus reaction_enthalpy"
        ),
        "enthalpy_of_first": Metric(
            name="enthalpy_of_first",
            unit="kJ/mol",
            description="reaction enthalpy for one mole of the reactant that is named first",
        ),
        "gas_moles_change": Metric(
            name="gas_moles_change",
            unit="1",
            description="moles of gas of the products less those of the reactants",
        ),
    },
    app_type="database",
    seeded=False,
    failure_modes=(
        "BadFormula",
        "UnknownSubstance",
        "PhaseNeeded",
        "NotBalanced",
        "AmbiguousReaction",
        "NoHeatCapacity",
    ),
    estimated_runtime_s=0.05,
)
def simulate_chemical_reaction(
    reactants: str, temperature: float, pressure: float, products: str, water: str, run: Run
) -> Outcome:
    """Balanced equation of a reaction and its standard enthalpy at a temperature, from tabulated values.

    Coefficients keep atoms and charge, by exact arithmetic. dH(T) = sum of n [dHf(298.15 K) + H(T) - H(298.15 K)]
    of the products less that of the reactants, with values of CODATA, JANAF and NBS; H(T) - H(298.15 K) by
    Shomate's equation in its range only. Nothing is guessed: of a substance with several phases in the table the
    phase must be said, and products that are not given are found only where one answer is possible: one fuel of
    C, H and O with O2 burns completely to CO2(g) and water, and hydrogen and a halogen become its hydride.

    Uncertainties are standard errors: half of the tables' (taken as two standard deviations, the convention of
    thermochemistry), summed in quadrature by coefficients; those of elements in their standard states are 0. Where
    a table states none, the result has none, and a note names the substance.

    Whether the reaction goes that way, how far and how fast, is not computed; nor is whether the phases exist at
    this temperature and pressure.

    Artifact `reaction`: JSON with `equation`, `reactants`, `products` (each with formula, phase, coefficient,
    enthalpy in kJ/mol, source), `reaction_enthalpy_kJ_mol`, `energy_released_kJ_mol`, `temperature_K`.

    Raises:
        AppFailed: `BadFormula`, `UnknownSubstance`, `PhaseNeeded`, `NotBalanced`, `AmbiguousReaction`,
            `NoHeatCapacity`.
    """
    left = _in_table(read_side(reactants, "reactants"))
    if products.strip():
        right = _in_table(read_side(products, "products"))
        how = "products as given"
        if water != "not_said":
            raise AppFailed(
                f"water={water} says of which phase water is where products are not given, but they are.",
                kind="contract",
                name="AmbiguousReaction",
                repair="leave water out, and write the phase in products: H2O(l) or H2O(g)",
            )
    else:
        given, how = _inferred([found for _, found in left], water)
        right = _in_table(given)
    many, more = _coefficients([t for t, _ in left], [t for t, _ in right])
    sides = [
        [(n, found, enthalpy(found, temperature)) for n, (_, found) in zip(ns, side, strict=True)]
        for ns, side in ((many, left), (more, right))
    ]
    before, after = (sum(float(n) * h for n, _, h in side) for side in sides)
    change = after - before
    equation = f"{written([t for t, _ in left], many)} -> {written([t for t, _ in right], more)}"
    gas = [sum(float(n) for n, found, _ in side if found.phase == "g") for side in sides]
    record = {
        "equation": equation,
        "temperature_K": temperature,
        "pressure_bar": pressure,
        "reaction_enthalpy_kJ_mol": change,
        "energy_released_kJ_mol": -change,
        "how": how,
        "reactants": [_row(*item) for item in sides[0]],
        "products": [_row(*item) for item in sides[1]],
    }
    (run.workdir / "reaction.json").write_text(json.dumps(record, indent=1) + "\n")
    sources = ", ".join(sorted({found.source for side in sides for _, found, _ in side}))
    heat = "" if abs(temperature - REFERENCE_K) <= 0.01 else "; heat contents by Shomate's equation (NIST WebBook)"
    off, told = _uncertainty(sides)
    return Outcome(
        metrics={
            "reaction_enthalpy": change,
            "energy_released": -change,
            "enthalpy_of_first": change / float(many[0]),
            "gas_moles_change": gas[1] - gas[0],
        },
        uncertainty={}
        if off is None
        else {"reaction_enthalpy": off, "energy_released": off, "enthalpy_of_first": off / float(many[0])},
        artifacts={"reaction": "reaction.json"},
        notes=(
            f"{equation}, {change:.6g} kJ per mole of it at {temperature:g} K ({how})",
            f"enthalpies of formation: {sources}{heat}",
            told,
            "standard states at 1 bar, gases ideal; that these phases exist at the temperature and pressure is "
            "not checked",
        ),
    )


def _uncertainty(sides: Sequence[Sequence[tuple[Fraction, Substance, float]]]) -> tuple[float | None, str]:
    """Standard error of the reaction's enthalpy, kJ/mol, None where it is not known; and what is to be said of it.

    What stands on both sides counts by the difference of its coefficients. Values of one table share measurements:
    between phases of one substance the true uncertainty is smaller.
    """
    net: dict[Substance, Fraction] = {}
    for sign, side in zip((-1, 1), sides, strict=True):
        for n, found, _ in side:
            net[found] = net.get(found, Fraction(0)) + sign * n
    silent, squares = [], 0.0
    for found, n in net.items():
        if n and found.uncertainty is None and found.formation != 0:
            silent.append(f"{found} ({found.source})")
        squares += (float(n) * (found.uncertainty or 0.0)) ** 2
    known = math.sqrt(squares) / 2
    if silent:
        return None, (
            f"no uncertainty: the table states none of {', '.join(sorted(silent))}; the other substances alone "
            f"make a standard error of {known:.2g} kJ/mol"
        )
    return known, (
        "uncertainty: half of the tables', taken as two standard deviations, in quadrature; without that of heat "
        "contents"
    )


def _in_table(terms: Sequence[Term]) -> list[tuple[Term, Substance]]:
    """Each term with its row; the term then has the row's formula and phase."""
    rows = [substance(term) for term in terms]
    return [(Term(row.formula, row.phase, term.coefficient), row) for term, row in zip(terms, rows, strict=True)]


def _coefficients(left: Sequence[Term], right: Sequence[Term]) -> tuple[list[Fraction], list[Fraction]]:
    """As `balanced`; those of reactants alone decide of how many moles the reaction is."""
    if any(t.coefficient is not None for t in right) or all(t.coefficient is None for t in left):
        return balanced(left, right)
    plain = [[Term(t.formula, t.phase) for t in side] for side in (left, right)]
    many, more = balanced(*plain)
    wanted = [t.coefficient if t.coefficient is not None else Fraction(1) for t in left]
    times = {w / n for w, n in zip(wanted, many, strict=True)}
    if len(times) > 1:
        raise AppFailed(
            f"{written(left, wanted)} do not react without a rest: {written(left, many)} do.",
            kind="contract",
            name="NotBalanced",
            repair="correct the coefficients, or leave all of them out: they are found then",
        )
    (scale,) = times
    return [n * scale for n in many], [n * scale for n in more]


def _row(n: object, found: Substance, h: float) -> dict[str, object]:
    return {
        "formula": found.formula,
        "phase": found.phase,
        "name": found.name,
        "coefficient": str(n),
        "enthalpy_kJ_mol": h,
        "formation_enthalpy_kJ_mol": found.formation,
        "uncertainty_kJ_mol": found.uncertainty,
        "source": found.source,
    }


def _inferred(found: Sequence[Substance], water: str) -> tuple[list[Term], str]:
    """The products where there is one answer only."""
    formulas = [s.formula for s in found]
    others = [s for s in found if s.formula != "O2"]
    if "O2" in formulas and len(others) == 1 and len(found) == 2:
        atoms = composition(others[0].formula)
        if set(atoms) <= {"C", "H", "O"} and {"C", "H"} & set(atoms) and _burns(others[0]):
            made = [Term("CO2", "g")] if "C" in atoms else []
            if "H" in atoms:
                made.append(Term("H2O", _water(water)))
            elif water != "not_said":
                raise _unused(water)
            return made, "complete combustion"
    halogen = [s for s in found if s.formula in _HALOGENS]
    if len(found) == 2 and "H2" in formulas and len(halogen) == 1:
        if water != "not_said":
            raise _unused(water)
        return [Term(f"H{_HALOGENS[halogen[0].formula]}", "g")], "hydrogen and a halogen, to its hydride as a gas"
    raise AppFailed(
        f"what {' and '.join(map(str, found))} become is not certain: products are known of themselves only of "
        "one fuel of C, H and O with O2 (complete combustion), and of H2 with a halogen.",
        kind="contract",
        name="AmbiguousReaction",
        repair="give products, e.g. products = 'CO2(g) + H2O(l)'",
    )


def _burns(fuel: Substance) -> bool:
    """Whether oxygen has something left to take: not with CO2 or water."""
    atoms = composition(fuel.formula)
    return 2 * atoms.get("C", 0) + atoms.get("H", 0) / 2 > atoms.get("O", 0)


def _unused(water: str) -> AppFailed:
    return AppFailed(
        f"water={water}, but no water is formed.", kind="contract", name="AmbiguousReaction", repair="leave it out"
    )


def _water(water: str) -> str:
    if water == "not_said":
        raise AppFailed(
            "the combustion forms water, and its heat depends on the phase: 44 kJ/mol of water at 298.15 K.",
            kind="contract",
            name="PhaseNeeded",
            repair="water = liquid (higher heating value) or water = gas (lower heating value)",
        )
    return {"liquid": "l", "gas": "g"}[water]
