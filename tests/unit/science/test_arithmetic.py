"""Arithmetic: exact where it is, right to the last digit where it is not, and bounded."""

from __future__ import annotations

import decimal
import itertools
import json
import math
import time
from fractions import Fraction
from pathlib import Path

import pytest

from hpcagent.apps.worker import execute_as_result
from hpcagent.errors import AppFailed
from hpcagent.model.records import Result
from hpcagent.science.arithmetic import calculate, evaluate

COUNTER = itertools.count()


def calculated(tmp_path: Path, expression: str, digits: int = 30) -> Result:
    order = calculate.order(
        calculate.manifest({"expression": expression, "digits": digits}),
        work=tmp_path / str(next(COUNTER)),
        site={},
    )
    result = execute_as_result(order)
    assert isinstance(result, Result)
    if result.failure is not None:
        assert result.failure.name in calculate.contract.failure_modes
    return result


def test_the_ph_of_a_hundredth_is_2_exactly(tmp_path):
    result = calculated(tmp_path, "-log10(0.01)")
    assert (result["value"], result["exact"]) == (2.0, 1.0)
    record = json.loads(Path(result.workdir, result.artifacts["calculation"]).read_text())
    assert (record["value"], record["exact"], record["fraction"]) == ("2", True, "2")
    assert "-log10(0.01) = 2 (exactly)" in result.notes


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("0.1 + 0.2", "0.3"),
        ("1/3 + 1/6", "0.5"),
        ("1/3", "1/3"),
        ("-7 // 2", "-4"),
        ("-7 % 3", "2"),
        ("2 ** -3", "0.125"),
        ("sqrt(4/9)", "2/3"),
        ("8 ** (1/3)", "2"),
        ("cbrt(-27)", "-3"),
        ("log2(1/1024)", "-10"),
        ("log10(1e300)", "300"),
        ("exp(0) + ln(1) + sin(0) + cos(0)", "2"),
        ("floor(-2.5) + ceil(-2.5)", "-5"),
        ("factorial(20)", "2432902008176640000"),
        ("comb(50, 25)", "126410606437752"),
        ("gcd(84, 36)", "12"),
        ("max(1, 5/2, 2) - min(3, 2)", "0.5"),
        ("1_000 * .5", "500"),
        ("1e-3", "0.001"),
        ("123456789123456789 * 987654321987654321", "121932631356500531347203169112635269"),
        ("9007199254740993 - 9007199254740992", "1"),
        ("floor(pi * 100)", "314"),
        ("0 * pi", "0"),
    ],
)
def test_what_is_exact_stays_exact(expression, expected):
    found = evaluate(expression)
    assert found.text == expected
    assert found.exact == Fraction(expected)


# 50 digits, of J. M. Borwein and others, and the tables of OEIS (A000796, A001113, A002193, A002392, A002162).
KNOWN = {
    "pi": "3.1415926535897932384626433832795028841971693993751",
    "e": "2.7182818284590452353602874713526624977572470937000",
    "sqrt(2)": "1.4142135623730950488016887242096980785696718753769",
    "ln(10)": "2.3025850929940456840179914546843642076011014886288",
    "ln(2)": "0.69314718055994530941723212145817656807550013436026",
    "(1 + sqrt(5)) / 2": "1.6180339887498948482045868343656381177203091798058",
    "atan(1)": "0.78539816339744830961566084581987572104929234984378",
    "sin(1)": "0.84147098480789650665250232163029899962256306079837",
    "cos(1)": "0.54030230586813971740093660744297660373231042061792",
}


@pytest.mark.parametrize(("expression", "digits"), [(e, n) for e in KNOWN for n in (3, 20, 49)])
def test_digits_of_what_is_not_exact_are_right_to_one_unit_of_the_last(expression, digits):
    found = evaluate(expression, digits)
    assert found.exact is None
    shown, known = decimal.Decimal(found.text), decimal.Decimal(KNOWN[expression])
    assert len(shown.as_tuple().digits) == digits
    with decimal.localcontext(prec=80):
        assert abs(shown - known) <= decimal.Decimal(10) ** (shown.as_tuple().exponent)
    assert found.value == pytest.approx(float(known), rel=10.0 ** (1 - digits))


def test_numbers_that_cancel_are_worked_out_with_more_digits():
    """sqrt(1 + h) - 1 is h/2 - h^2/8 + h^3/16, where a float64 has nothing left."""
    assert math.sqrt(1 + 1e-20) - 1 == 0.0
    assert evaluate("sqrt(1 + 1e-20) - 1", 30).text == "4.99999999999999999998750000000E-21"


def test_the_digits_do_not_depend_on_the_contexts_of_the_thread():
    with decimal.localcontext(prec=5, rounding=decimal.ROUND_UP):
        assert (
            evaluate("pi - atan(2) + sin(-3) - abs(-sqrt(2))", 40).text
            == evaluate("pi - atan(2) - sin(3) - sqrt(2)", 40).text
        )
    # By hand from 15 digits of each: 3.14159265358979 - 1.10714871779409 - 0.14112000805987 - 1.41421356237310.
    assert evaluate("pi - atan(2) - sin(3) - sqrt(2)", 40).value == pytest.approx(0.47911036536273, abs=1e-13)


def test_angles_of_many_turns_lose_no_digits():
    """Of an angle of 1.6e9 turns; mpmath's value with 40 digits is -0.48750602508751069152779..."""
    assert evaluate("sin(1e10)", 15).text == "-0.487506025087511"
    assert evaluate("sin(1e10)**2 + cos(1e10)**2 - 1 + 1e-40", 3).text == "1.00E-40"


@pytest.mark.parametrize("expression", ["sqrt(2)**2 - 2", "sin(pi)", "1 / (pi - 4*atan(1))", "floor(sqrt(2)**2)"])
def test_what_cannot_be_told_from_0_or_a_whole_number_is_a_failure_and_no_number(expression):
    with pytest.raises(AppFailed) as failed:
        evaluate(expression)
    assert failed.value.name == "DigitsLost"


@pytest.mark.parametrize(
    "expression",
    [
        "9**9**9",
        "9**-9**9",
        "10**10**10",
        "2**(2**(2**(2**(2**2))))",
        "factorial(factorial(10))",
        "factorial(1e9)",
        "comb(1e9, 5e8)",
        "exp(1e9)",
        "exp(exp(exp(10)))",
        "1e999999999",
        "1e5001",
        "pi**1e9",
        "sin(1e300)",
        "(" * 100 + "1" + ")" * 100 + "+-" * 100 + "1",
        "+".join(["1"] * 400),
        "7" * 1001,
        "-" * 900 + "1",
        "ln(" * 61 + "1" + ")" * 61,
        "(((10**4000)**3)**2)",
    ],
)
def test_nothing_hangs(expression):
    begin = time.process_time()
    with pytest.raises(AppFailed) as failed:
        evaluate(expression)
    assert failed.value.name in ("TooLarge", "BadExpression")
    assert time.process_time() - begin < 5.0


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("().__class__", "not arithmetic"),
        ("(1).real", "not arithmetic"),
        ("__import__('os').system('true')", "not arithmetic"),
        ("__import__('os')", "no function"),
        ("eval('1')", "no function"),
        ("[1][0]", "not arithmetic"),
        ("lambda: 1", "not arithmetic"),
        ("1 if 1 else 2", "not arithmetic"),
        ("1 < 2", "not arithmetic"),
        ("1; 2", "no expression"),
        ("a := 1", "no expression"),
        ("'a' * 9", "no decimal number"),
        ("1j", "no decimal number"),
        ("0x10", "no decimal number"),
        ("True", "no decimal number"),
        ("sqrt(x=2)", "not arithmetic|no function"),
        ("sqrt(*[2])", "not arithmetic"),
        ("sqrt(1, 2)", "takes 1 argument"),
        ("2(3)", "not arithmetic"),
        ("2^3", "is no power"),
        ("log(3)", "ln or log10"),
        ("sqr(2)", "did you mean 'sqrt'"),
        ("sqrt", "is a function"),
        ("x + 1", "no number called 'x'"),
        ("3 * nm + 2 * angstrom", "'nm' is a unit"),
        ("5 K", "no expression"),
        ("2 − 1", "not in arithmetic"),
        ("", "no expression"),
        ("gcd(1.5, 2)", "whole numbers"),
        ("factorial(-1)", "whole numbers"),
    ],
)
def test_what_is_no_arithmetic_of_pure_numbers_is_refused(expression, says):
    with pytest.raises(AppFailed, match=says) as failed:
        evaluate(expression)
    assert failed.value.name == "BadExpression"


@pytest.mark.parametrize("expression", ["1/0", "0**-1", "1 % 0", "sqrt(-2)", "(-8)**(1/3)", "ln(0)", "log10(-1)"])
def test_what_is_not_real_is_a_failure(expression):
    with pytest.raises(AppFailed) as failed:
        evaluate(expression)
    assert failed.value.name == "NotReal"


def test_a_number_that_no_float64_holds_is_in_the_file_and_not_a_metric(tmp_path):
    for expression, text in (("10**400", "1" + "0" * 400), ("10**-400", "0." + "0" * 399 + "1")):
        result = calculated(tmp_path, expression)
        assert result.ok, result.failure
        assert "value" not in result.metrics
        assert result["exact"] == 1
        record = json.loads(Path(result.workdir, result.artifacts["calculation"]).read_text())
        assert record["value"] == text
        assert any("float64 does not hold" in note for note in result.notes)
    # More digits than Python itself writes: 2^20000 ends in ...09376 (Euler: 2^20000 = 2^10000^2, mod 1e5).
    text = evaluate("2**20000").text
    assert len(text) == 6021 == math.floor(20000 * math.log10(2)) + 1
    assert int(text[-5:]) == pow(2, 20000, 10**5)
    assert int(text[:15]) == pytest.approx(10 ** (20000 * math.log10(2) % 1 + 14), rel=1e-9)
