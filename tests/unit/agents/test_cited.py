"""Numbers of an answer are found, converted, rounded and looked up; what nobody has is flagged."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from hpcagent.agents.cited import cite, known_of, numbers_of_answer, run_ids_in
from hpcagent.agents.numbers import Known, numbers_in, same

DENSITY = Known(0.9918337095687336, "g/cm^3", "r-1", "density")
STEP = Known(2.0, "fs", "r-1", "timestep")
ENERGY = Known(-169.54369697827747, "meV/atom", "r-1", "potential_energy")


@pytest.mark.parametrize(
    ("text", "known", "right"),
    [
        ("0.9918 g/cm^3", DENSITY, True),
        ("0.9918 g/cm³", DENSITY, True),
        ("0.99 g/cm3", DENSITY, True),
        ("991.8 kg/m^3", DENSITY, True),
        ("0.9918", DENSITY, True),
        ("0.9919 g/cm^3", DENSITY, False),
        ("0.9918 kg/m^3", DENSITY, False),
        ("0.9918 GPa", DENSITY, False),
        ("0.002 ps", STEP, True),
        ("2e-15 s", STEP, True),
        ("2 ps", STEP, False),
        ("−0.1695 eV/atom", ENERGY, True),
        ("-169.5 meV/atom", ENERGY, True),
        ("169.5 meV/atom", ENERGY, False),
        ("-1.695 x 10^-1 eV/atom", ENERGY, True),
        ("1,250 bar", Known(1250.4, "bar", "r-1", "p"), True),
        ("1,250 bar", Known(1251.4, "bar", "r-1", "p"), False),
    ],
)
def test_a_number_is_the_known_one_within_its_digits_and_in_its_unit(text, known, right):
    (said,) = numbers_in(text)
    assert same(said, known) is right


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("run r-jE62yTIxgVcAaXBH of 2026-11-26 10:15 by lj_argon@1.0.0, v2.3.0", []),
        ("1. first\n2) second\n- 3. third, step 4", []),
        ("T = 300K and p=1.5e2 bar.", ["300K", "1.5e2 bar"]),
        ("10.5-20.5 Å", ["10.5", "20.5 Å"]),
        ("262 H2O in 20 Å", ["262", "20 Å"]),
        ("99.99999999999999 %", ["99.99999999999999 %"]),
        ("execution 44f3276d-6df6-5e6a-ae32-5711fc8ccaf5", []),
    ],
)
def test_what_is_a_number_and_what_is_none(text, found):
    assert [one.text for one in numbers_in(text)] == found


def test_each_number_has_its_source_and_the_rest_is_flagged():
    answer = "Density 0.9918 g/cm^3 at 300 K, estimated 0.5 h, released 295 kJ in 3 runs."
    found = cite(
        answer, runs=[DENSITY], tools=[Known(0.5, "h", "estimate", "node_hours")], asked="at 300 K, please"
    )
    assert [(one.text, one.source, one.run) for one in found] == [
        ("0.9918 g/cm^3", "run", "r-1"),
        ("300 K", "asked", ""),
        ("0.5 h", "tool", "estimate"),
        ("295 kJ", "none", ""),
    ]


def test_units_are_those_that_stand_nearest():
    record = {"values": {"adsorption_energy": -0.347}, "units": {"adsorption_energy": "eV"}}
    (known,) = numbers_of_answer("query_database", {"records": [record]})
    assert (known.value, known.unit, known.run) == (-0.347, "eV", "query_database")


def test_of_several_runs_that_have_a_number_the_one_named_nearest_is_cited():
    one, two = "r-jE62yTIxgVcAaXBH", "r-AAAAAAAAAAAAAAAA"
    runs = [Known(0.9918, "g/cm^3", run, "density") for run in (one, two)]
    found = cite(f"0.9918 g/cm^3 ({two}); earlier, in another cell, {one}: 0.992 g/cm^3", runs=runs)
    assert [each.run for each in found] == [two, one]


def test_numbers_and_handles_in_texts_of_an_answer_are_no_results():
    answer = {"log_tail": "density 7.77 g/cm^3 r-AAAAAAAAAAAAAAAA", "run_id": "r-jE62yTIxgVcAaXBH", "wall_s": 3.5}
    assert [(one.value, one.unit) for one in numbers_of_answer("get_status", answer)] == [(3.5, "s")]
    assert run_ids_in(answer) == ["r-jE62yTIxgVcAaXBH"]
    assert run_ids_in({"log_tail": "r-AAAAAAAAAAAAAAAA", "runs": [{"id": "c-jE62yTIxgVcAaXBH"}]}) == [
        "c-jE62yTIxgVcAaXBH"
    ]


def test_a_number_is_known_as_the_run_has_it_and_as_the_model_has_read_it_rounded_by_its_error():
    status = {"metrics": {"speed": 951.3}, "uncertainty": {"speed": 123.0}, "units": {"speed": "ns/day"}}
    workspace = SimpleNamespace(
        status=lambda identity, lines: status,
        describe=lambda app: {"space": {"parameters": []}, "metrics": []},
        catalyst_state=lambda identity: {},
    )
    known = known_of(SimpleNamespace(workspace=workspace), "r-1")
    said = [numbers_in(text)[0] for text in ("951.0 ns/day", "951.3 ns/day", "951.2 ns/day")]
    assert [any(same(one, other) for other in known) for one in said] == [True, True, False]


GAP = Known(17.4, "eV", "r-1", "gap")
WARM = Known(300.0, "K", "r-1", "temperature")


@pytest.mark.parametrize(
    "text",
    [
        "300 °C",
        "300 °F",
        "300 degrees Celsius",
        "300 mK",
        "300 hPa",
        "17.4 mHa",
        "17.4 kcal/mole",
        "17.4 GB",
        "17.4 USD",
        "$17.4",
        "17.4 node-hours",
        "17.4 times faster",
        "17.4x",
        "17.4-fold",
        "17.4 eV per atom",
        "17.4 steps/s",
        "0 eV",
    ],
)
def test_a_number_with_another_unit_is_no_runs(text):
    (found,) = cite(text, runs=[GAP, WARM, Known(-0.3, "eV", "r-1", "energy")])
    assert found.flagged


def test_units_that_are_written_otherwise_are_converted():
    assert same(numbers_in("27 °C")[0], Known(300.2, "K", "r-1", "t"))
    assert same(numbers_in("80.3 °F")[0], Known(300.0, "K", "r-1", "t"))
    assert same(numbers_in("300000 mK")[0], WARM) and same(
        numbers_in("15.2 hPa")[0], Known(1520.0, "Pa", "r-1", "p")
    )
    assert same(numbers_in("0.5 node-hours")[0], Known(0.5, "h", "r-1", "node_hours"))
    assert not same(numbers_in("0.5 node-hours")[0], Known(0.5, "h", "r-1", "wall"))
    assert same(numbers_in("2.5 times")[0], Known(2.5, "1", "r-1", "speed_ratio"))


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("~17.9 eV, the 34.5-fold, x3.7, _17.2_, #17, 1/17, a/17.2", [17.9, 34.5, 3.7, 17.2, 17, 17, 17.2]),
        ("10^5 runs, 10⁵, 5 x 10^3 K", [1e5, 1e5, 5e3]),
        ("0,99 g/cm³ and 17.2,18.3", [0.99, 17.2, 18.3]),
        ("1 000 000 steps, 1'234 K, 1\u202f234 567 K", [1e6, 1234, 1234567]),
        ("steps 250000; a 17.2-eV gap", [250000, 17.2]),
        ("3x faster, a speedup of 7, 5-fold, 4 times faster", [3, 7, 5, 4]),
        ("run 3 times, 2 of 3 runs, a 3-body term, 2x2x1 cells", []),
        ("run_17.json in /tmp/x17/y, energy_fluctuation_1ps, log17.lammps, Fe-17", []),
    ],
)
def test_whatever_is_a_number_is_looked_at(text, values):
    found = [one.value for one in numbers_in(text) if not one.counts]
    assert found == pytest.approx(values)


def test_a_unit_beside_numbers_is_theirs_and_a_number_that_fits_many_says_so():
    regret = {"expected_regret": {"mean": 694.77, "at_most_95": 2054.9, "unit": "fs"}, "share": 0.2}
    known = numbers_of_answer("get_campaign", regret)
    assert [(one.value, one.unit) for one in known] == [(694.77, "fs"), (2054.9, "fs"), (0.2, "")]
    many = [Known(0.2 + n / 1000, "1", "r-1", f"m{n}") for n in range(5)]
    (one,) = cite("0.2", runs=many)
    assert not one.flagged and one.others == 4
