"""Reactions: balances by hand, enthalpies of handbooks, everything that is refused."""

from __future__ import annotations

import itertools
import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from hpcagent.apps.worker import execute_as_result
from hpcagent.errors import AppFailed
from hpcagent.model.records import Result
from hpcagent.science.chemistry import tables
from hpcagent.science.chemistry.formula import Term, balanced, composition, read_side
from hpcagent.science.chemistry.reaction import simulate_chemical_reaction

COUNTER = itertools.count()


def react(tmp_path: Path, reactants: str, products: str = "", temperature: float = 298.15, **given: Any) -> Result:
    app = simulate_chemical_reaction
    manifest = app.manifest({"reactants": reactants, "products": products, "temperature": temperature} | given)
    result = execute_as_result(app.order(manifest, work=tmp_path / str(next(COUNTER)), site={}))
    assert isinstance(result, Result)
    if result.failure is not None:
        assert result.failure.name in app.contract.failure_modes, result.failure
        assert result.failure.kind == "contract"
    return result


def refused(tmp_path: Path, *args: Any, **given: Any) -> Any:
    failure = react(tmp_path, *args, **given).failure
    assert failure is not None
    return failure


# ---- formulas and balances


@pytest.mark.parametrize(
    ("formula", "atoms"),
    [
        ("H2O", {"H": 2, "O": 1}),
        ("Ca(OH)2", {"Ca": 1, "O": 2, "H": 2}),
        ("[Fe(CN)6]^4-", {"Fe": 1, "C": 6, "N": 6, "charge": -4}),
        ("CuSO4·5H2O", {"Cu": 1, "S": 1, "O": 9, "H": 10}),
        ("Co", {"Co": 1}),
        ("CO", {"C": 1, "O": 1}),
        ("NH4+", {"N": 1, "H": 4, "charge": 1}),
        ("SO4^2-", {"S": 1, "O": 4, "charge": -2}),
    ],
)
def test_formulas_are_counted(formula, atoms):
    assert composition(formula) == atoms


@pytest.mark.parametrize("formula", ["Xx2", "H2O)", "(H2O", "h2o", "H0", "", "H2+O2", "Ca2+", "[H2)", "H9999999"])
def test_what_is_no_formula_is_refused(formula):
    with pytest.raises(AppFailed) as failed:
        composition(formula)
    assert failed.value.name == "BadFormula"


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ("H2 + O2", "H2O", [2, 1, 2]),
        ("C2H6 + O2", "CO2 + H2O", [2, 7, 4, 6]),
        ("KMnO4 + HCl", "KCl + MnCl2 + H2O + Cl2", [2, 16, 2, 2, 8, 5]),
        # Charge counts: without it this has more than one answer.
        ("MnO4- + Fe^2+ + H+", "Mn^2+ + Fe^3+ + H2O", [1, 5, 8, 1, 5, 4]),
        # A known hard one, with coefficients of four digits.
        (
            "[Cr(N2H4CO)6]4[Cr(CN)6]3 + KMnO4 + H2SO4",
            "K2Cr2O7 + MnSO4 + CO2 + KNO3 + K2SO4 + H2O",
            [10, 1176, 1399, 35, 1176, 420, 660, 223, 1879],
        ),
    ],
)
def test_equations_are_balanced_in_the_smallest_whole_numbers(left, right, expected):
    found = balanced(read_side(left, ""), read_side(right, ""))
    assert [*found[0], *found[1]] == expected


@pytest.mark.parametrize(
    ("left", "right", "name"),
    [
        ("H2", "H2O", "NotBalanced"),  # no oxygen
        ("H2 + O2", "H2O + Ar", "NotBalanced"),
        ("H2 + H2O", "O2", "NotBalanced"),  # hydrogen would be on the other side
        ("H2 + O2", "H2O + H2O2", "AmbiguousReaction"),
        ("2 H2 + O2", "H2O", "NotBalanced"),  # as written
        ("H2 + O2", "H2 + H2O", "NotBalanced"),  # twice
        ("Fe^3+ + H2", "Fe^2+ + H2O", "NotBalanced"),
    ],
)
def test_what_keeps_no_atoms_or_keeps_them_in_several_ways_is_refused(left, right, name):
    with pytest.raises(AppFailed) as failed:
        balanced(read_side(left, ""), read_side(right, ""))
    assert failed.value.name == name


def test_coefficients_that_are_written_and_right_are_kept():
    found = balanced(read_side("H2 + 1/2 O2", ""), read_side("H2O", ""))
    assert found == ([1, Fraction(1, 2)], [1])
    # Where several reactions are possible, they say which.
    found = balanced(read_side("3 H2 + 2 O2", ""), read_side("2 H2O + H2O2", ""))
    assert found == ([3, 2], [2, 1])


# ---- the tables


@pytest.mark.parametrize("row", list(tables.known().values()), ids=str)
def test_every_row_is_a_formula_with_a_source(row):
    atoms = composition(row.formula)
    assert row.phase in ("g", "l", "s", "aq")
    assert ("charge" in atoms) == row.formula.endswith(("+", "-"))
    assert row.source in tables.__doc__
    # Elements in their reference state, of which formation enthalpies are counted, have none.
    if row.formation == 0:
        assert len(atoms) == 1 or row.formula == "H+"


# Cp at 298.15 K, J/(mol K), of the NIST-JANAF tables.
CP = {
    "H2(g)": 28.836, "O2(g)": 29.376, "N2(g)": 29.124, "F2(g)": 31.302, "Cl2(g)": 33.949, "H2O(l)": 75.351,
    "H2O(g)": 33.590, "CO(g)": 29.142, "CO2(g)": 37.129, "NH3(g)": 35.652, "HF(g)": 29.138, "HCl(g)": 29.136,
    "H2S(g)": 34.192, "SO2(g)": 39.878, "SO3(g)": 50.661, "CH4(g)": 35.639, "C2H2(g)": 44.095, "C2H4(g)": 42.886,
    "NO(g)": 29.845, "NO2(g)": 36.974, "N2O(g)": 38.617,
}  # fmt: skip


def test_heat_contents_are_0_at_their_reference_and_rise_with_the_heat_capacity_of_janaf():
    """A wrong digit of any coefficient shows in one or the other."""
    with_heat = {str(s): s for s in tables.known().values() if s.heats}
    assert with_heat.keys() == CP.keys()
    for name, row in with_heat.items():
        first = row.heats[0]
        assert first.heat_content(298.15) == pytest.approx(0.0, abs=0.012), name
        slope = (first.heat_content(299.0) - first.heat_content(298.0)) * 1000
        assert slope == pytest.approx(CP[name], abs=0.06), name
        for lower, upper in itertools.pairwise(row.heats):
            assert lower.high == upper.low
            assert lower.heat_content(lower.high) == pytest.approx(upper.heat_content(upper.low), abs=0.05), name


# H(T) - H(298.15 K), kJ/mol, of the NIST-JANAF tables.
@pytest.mark.parametrize(
    ("what", "temperature", "expected"),
    [
        ("H2O(g)", 400, 3.452),
        ("H2O(g)", 500, 6.925),
        ("H2O(g)", 1000, 26.000),
        ("H2(g)", 400, 2.959),
        ("H2(g)", 1000, 20.680),
        ("O2(g)", 400, 3.025),
        ("O2(g)", 1000, 22.703),
        ("N2(g)", 1000, 21.463),
        ("CO2(g)", 1000, 33.397),
        ("CO(g)", 1000, 21.690),
        ("CH4(g)", 1000, 38.179),
    ],
)
def test_heat_contents_are_those_of_the_janaf_tables(what, temperature, expected):
    row = next(s for s in tables.known().values() if str(s) == what)
    assert tables.enthalpy(row, temperature) - row.formation == pytest.approx(expected, abs=0.02)


# ---- enthalpies


@pytest.mark.parametrize(
    ("reactants", "products", "expected"),
    [
        # Heats of combustion for one mole of the first, kJ/mol: CRC Handbook and textbooks.
        ("H2 + O2", "H2O(l)", -285.83),
        ("H2 + O2", "H2O(g)", -241.83),
        ("CH4 + O2", "CO2 + H2O(l)", -890.3),
        ("CO + O2", "CO2", -282.98),
        ("C2H5OH(l) + O2", "CO2 + H2O(l)", -1366.8),
        # Haber and Bosch, for one mole of N2.
        ("N2 + H2", "NH3", -91.88),
        # CO2 to methanol and water, gases.
        ("CO2 + H2", "CH3OH(g) + H2O(g)", -49.0),
        # Lime is burnt and slaked; thermite; precipitation and neutralisation.
        ("CaCO3", "CaO + CO2", 178.5),
        ("Fe2O3 + Al", "Al2O3 + Fe", -851.5),
        ("Ag+ + Cl-", "AgCl", -65.7),
        ("H+ + OH-", "H2O(l)", -55.82),
    ],
)
def test_enthalpies_are_those_of_handbooks(tmp_path, reactants, products, expected):
    result = react(tmp_path, reactants, products)
    assert result.ok, result.failure
    assert result["enthalpy_of_first"] == pytest.approx(expected, abs=0.3)
    assert result["energy_released"] == -result["reaction_enthalpy"]


def test_the_heat_of_hydrogen_at_350_k_is_lower_and_stated_for_its_phase(tmp_path):
    """By hand: -285.83 + 31.8 J/(mol K) x 51.85 K; Cp 75.35 - 28.96 - 29.4 / 2."""
    liquid = react(tmp_path, "2 H2(g) + O2(g)", temperature=350.0, water="liquid")
    assert liquid["enthalpy_of_first"] == pytest.approx(-285.83 + (75.35 - 28.96 - 14.73) * 0.05185, abs=0.05)
    assert liquid["reaction_enthalpy"] == pytest.approx(2 * liquid["enthalpy_of_first"])
    vapour = react(tmp_path, "H2 + O2", temperature=1000.0, water="gas")
    assert vapour["enthalpy_of_first"] == pytest.approx(-247.857, abs=0.03)  # JANAF: formation of H2O(g) at 1000 K
    assert vapour["gas_moles_change"] == -1
    record = json.loads((Path(liquid.workdir) / liquid.artifacts["reaction"]).read_text())
    assert record["equation"] == "2 H2(g) + O2(g) -> 2 H2O(l)"
    assert record["energy_released_kJ_mol"] == liquid["energy_released"]
    assert [p["source"] for p in record["products"]] == ["CODATA"]
    assert any("kJ per mole of it at 350 K" in note for note in liquid.notes)


@pytest.mark.parametrize(
    ("reactants", "given", "expected"),
    [
        ("C2H4 + O2", {"water": "liquid"}, "C2H4(g) + 3 O2(g) -> 2 CO2(g) + 2 H2O(l)"),
        ('["methane", "oxygen"]', {"water": "gas"}, "CH4(g) + 2 O2(g) -> CO2(g) + 2 H2O(g)"),
        ("C(s) + O2", {}, "C(s) + O2(g) -> CO2(g)"),
        ("H2 + Cl2", {}, "H2(g) + Cl2(g) -> 2 HCl(g)"),
        ("Br2(l), H2", {}, "Br2(l) + H2(g) -> 2 HBr(g)"),
    ],
)
def test_products_are_found_where_there_is_one_answer(tmp_path, reactants, given, expected):
    result = react(tmp_path, reactants, **given)
    assert result.ok, result.failure
    assert result.notes[0].startswith(f"{expected},")


@pytest.mark.parametrize(
    ("reactants", "products", "given", "name", "says"),
    [
        ("CH4 + O2", "", {}, "PhaseNeeded", "water = liquid"),
        ("H2 + O2", "H2O", {}, "PhaseNeeded", "H2O(l)"),
        ("H2 + N2", "", {}, "AmbiguousReaction", "give products"),
        ("CO2 + O2", "", {}, "AmbiguousReaction", "give products"),
        ("CH4 + C2H6 + O2", "", {"water": "gas"}, "AmbiguousReaction", "give products"),
        ("NH3 + O2", "", {"water": "gas"}, "AmbiguousReaction", "give products"),
        ("CH4 + O2", "CO2 + H2O(l)", {"water": "gas"}, "AmbiguousReaction", "leave water out"),
        ("H2 + Cl2", "", {"water": "gas"}, "AmbiguousReaction", "leave it out"),
        ("2 H2 + 3 O2", "", {"water": "gas"}, "NotBalanced", "correct"),
        ("H2O(s) + CO2", "CH4 + O2", {}, "UnknownSubstance", "H2O(l)"),
        ("Unobtainium + O2", "", {}, "BadFormula", None),
        ("C6H12O6 + O2", "CO2 + H2O(l)", {}, "UnknownSubstance", None),
        ("methanee + O2", "", {}, "UnknownSubstance", None),
        ("H2+O2", "H2O(l)", {}, "BadFormula", "blanks"),
        ("H2 + O2", "H2O(g)", {"temperature": 3000.0}, "NoHeatCapacity", "298.15"),
        ("CH4 + O2", "CO2 + H2O(l)", {"temperature": 600.0}, "NoHeatCapacity", "298.15"),
        ("Fe2O3 + Al", "Al2O3 + Fe", {"temperature": 400.0}, "NoHeatCapacity", "298.15"),
        ("", "H2O(l)", {}, "BadFormula", "e.g."),
        ("[1, 2]", "H2O(l)", {}, "BadFormula", None),
    ],
)
def test_nothing_is_guessed(tmp_path, reactants, products, given, name, says):
    failure = refused(tmp_path, reactants, products, **given)
    assert failure.name == name
    if says:
        assert says in failure.repair


def test_an_unknown_substance_names_the_nearest_and_those_of_the_same_atoms(tmp_path):
    assert "did you mean 'methane'" in refused(tmp_path, "methanee + O2").message
    with pytest.raises(AppFailed, match=r"same atoms: C2H5OH\(l\) \(ethanol\)"):
        tables.substance(Term("C2H6O", "l"))


def test_the_pressure_of_ideal_gases_changes_nothing(tmp_path):
    one, ten = (react(tmp_path, "N2 + H2", "NH3", temperature=700.0, pressure=p) for p in (1.0, 10.0))
    assert one["reaction_enthalpy"] == ten["reaction_enthalpy"]


def test_the_tables_uncertainties_are_those_of_the_result_by_its_coefficients(tmp_path):
    """CODATA: CO +- 0.17, CO2 +- 0.13, H2O(g) +- 0.040 kJ/mol, two standard deviations; elements 0."""
    shift = react(tmp_path, "CO(g) + H2O(g)", "CO2 + H2")
    assert shift.uncertainty["reaction_enthalpy"] == pytest.approx((0.17**2 + 0.13**2 + 0.04**2) ** 0.5 / 2)
    water = react(tmp_path, "2 H2 + O2", "H2O(l)")
    assert water.uncertainty["energy_released"] == pytest.approx(0.040)
    assert water.uncertainty["enthalpy_of_first"] == pytest.approx(0.020)
    assert any("two standard deviations" in note for note in water.notes)


def test_without_a_tabulated_uncertainty_the_result_has_none_and_says_of_what(tmp_path):
    burnt = react(tmp_path, "CH4 + O2", water="gas")
    assert burnt.ok and not burnt.uncertainty
    # CO2 +- 0.13 and 2 H2O(g) +- 0.040: half of 0.153.
    assert any("states none of CH4(g) (JANAF)" in note and "0.076 kJ/mol" in note for note in burnt.notes)
    rust = react(tmp_path, "Fe + O2", "Fe2O3")
    assert any("states none of Fe2O3(s) (NBS)" in note for note in rust.notes)
