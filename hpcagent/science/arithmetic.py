"""Arithmetic as an app: an expression, computed exactly or to digits that are known to be right."""

from __future__ import annotations

import ast
import decimal
import json
import math
import re
import sys
import warnings
from decimal import Decimal
from fractions import Fraction

from hpcagent.apps.decorator import app
from hpcagent.apps.run import Outcome, Run
from hpcagent.errors import AppFailed, BadInput, nearest
from hpcagent.model.contract import Metric
from hpcagent.model.parameter import Int, Text
from hpcagent.science.exact import FUNCTIONS, Interval, NeedsDigits, Number, Numbers
from hpcagent.units import factor

__all__ = ["Result", "calculate", "evaluate"]

_LONGEST = 1000
_MOST_NODES = 300
_DEEPEST = 60
_MOST_ZEROS = 5000
# How often the digits that are worked with are doubled, until those that are wanted are right.
_DOUBLINGS = 3
_LITERAL = re.compile(r"(?:\d[\d_]*)?(?:\.[\d_]*)?(?:[eE](?P<exponent>[+-]?\d+))?\Z")
_OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "add",
    ast.Sub: "subtract",
    ast.Mult: "multiply",
    ast.Div: "divide",
    ast.FloorDiv: "floor_divide",
    ast.Mod: "modulo",
    ast.Pow: "power",
}
_CONSTANTS = ("pi", "e")


class Result:
    """What an expression gives.

    Attributes:
        text: The number in decimal digits, or as a whole number; all of it where that is finite.
        exact: The fraction, if it is one; else None.
        value: As a float64; nan where it is too large or too small for one.
    """

    def __init__(self, text: str, exact: Fraction | None, value: float) -> None:
        self.text, self.exact, self.value = text, exact, value


@app(
    name="calculate",
    version="1.0.0",
    app_type="analysis",
    parameters={
        "expression": Text(description="numbers, + - * / // % **, brackets, functions, pi, e: '-log10(0.01)'"),
        "digits": Int(1, 1000, default=30, description="significant digits of what is not exact"),
    },
    metrics={
        "value": Metric(
            name="value", unit="1", description="the number as a float64, where one holds it", required=False
        ),
        "exact": Metric(name="exact", unit="1", description="1: the number is exact; 0: it is right to `digits`"),
    },
    seeded=False,
    failure_modes=("BadExpression", "NotReal", "TooLarge", "DigitsLost"),
    estimated_runtime_s=0.01,
)
def calculate(expression: str, digits: int, run: Run) -> Outcome:
    """Value of an arithmetic expression: exact where it is a fraction, else with digits known to be right.

    Decimal numbers are taken as they are written (0.1 is 1/10). The four operations, whole powers, roots and
    logarithms that come out even are exact; all else is computed between two bounds, with more and more digits
    until `digits` of them are right to one unit of the last. Functions: abs, atan, cbrt, ceil, comb, cos, exp,
    factorial, floor, gcd, ln, log10, log2, max, min, sin, sqrt, tan (angles in radians).

    Numbers are pure: a unit in the expression is refused, not dropped. The text is parsed, never run as code; its
    length, the size of numbers and powers are limited.

    Artifact `calculation`: JSON with `expression`, `value` (all digits, as a text), `exact`, `fraction` (or null).

    Raises:
        AppFailed: `BadExpression`: not arithmetic, an unknown name, a unit. `NotReal`: division by 0, a root or
            logarithm of a negative number. `TooLarge`. `DigitsLost`: the result cannot be told from 0, or from
            the border of a rounding, with any digits that are worked with.
    """
    found = evaluate(expression, digits)
    record = {
        "expression": expression,
        "value": found.text,
        "exact": found.exact is not None,
        "fraction": None if found.exact is None else _fraction(found.exact),
        "digits": digits,
    }
    (run.workdir / "calculation.json").write_text(json.dumps(record, indent=1) + "\n")
    how = "exactly" if found.exact is not None else f"to {digits} digits"
    shown = found.text if len(found.text) <= 200 else f"{found.text[:80]}... ({len(found.text)} characters)"
    notes = [f"{expression} = {shown} ({how})"]
    metrics = {"exact": float(found.exact is not None)}
    if math.isfinite(found.value):
        metrics["value"] = found.value
    else:
        notes.append("a float64 does not hold this number: read it in calculation.json")
    return Outcome(metrics=metrics, artifacts={"calculation": "calculation.json"}, notes=tuple(notes))


def evaluate(expression: str, digits: int = 30) -> Result:
    """Compute an expression.

    Args:
        expression: One line of arithmetic.
        digits: Significant digits, 1 to 1000, of what is not exact.

    Raises:
        AppFailed: See `calculate`.

    Example:
        >>> evaluate("-log10(0.01)").text, evaluate("0.1 + 0.2").text, evaluate("sqrt(2)", 10).text
        ('2', '0.3', '1.414213562')
    """
    tree = _parsed(expression)
    work = digits + 15
    for _ in range(_DOUBLINGS):
        try:
            return _rounded(_value(tree, expression, Numbers(work)), digits)
        except NeedsDigits:
            work *= 2
        except (decimal.Overflow, decimal.Underflow):
            raise AppFailed(
                "a number on the way is too large.", kind="contract", name="TooLarge", repair="its logarithm"
            ) from None
    raise AppFailed(
        f"with {work // 2} digits the expression, or what a function takes, still cannot be told from 0 or from a "
        "whole number.",
        kind="contract",
        name="DigitsLost",
        repair="simplify it: a difference of equal numbers is 0",
    )


def _parsed(expression: str) -> ast.expr:
    if len(expression) > _LONGEST:
        raise AppFailed(
            f"the expression has {len(expression)} characters; at most {_LONGEST}.",
            kind="contract",
            name="TooLarge",
        )
    if not expression.isascii():
        odd = next(c for c in expression if not c.isascii())
        raise AppFailed(
            f"the character {odd!r} is not in arithmetic; write + - * / ** and ASCII names.",
            kind="contract",
            name="BadExpression",
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # `2(3)` is refused below, in our words
            tree = ast.parse(expression.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        said = error.msg if isinstance(error, SyntaxError) else str(error)
        raise AppFailed(
            f"{expression!r} is no expression: {said}.", kind="contract", name="BadExpression"
        ) from None
    if sum(1 for _ in ast.walk(tree)) > _MOST_NODES:
        raise AppFailed(f"the expression has more than {_MOST_NODES} parts.", kind="contract", name="TooLarge")
    return tree


def _value(node: ast.expr, text: str, numbers: Numbers, depth: int = 0) -> Number:
    if depth > _DEEPEST:
        raise AppFailed(f"the expression is nested more than {_DEEPEST} deep.", kind="contract", name="TooLarge")
    match node:
        case ast.Constant():
            return _literal(node, text)
        case ast.Name(id=name):
            return _constant(name, numbers)
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=inner):
            value = _value(inner, text, numbers, depth + 1)
            return numbers.negative(value) if isinstance(sign, ast.USub) else value
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _OPERATORS:
            a, b = (_value(side, text, numbers, depth + 1) for side in (left, right))
            result: Number = getattr(numbers, _OPERATORS[type(operator)])(a, b)
            return result
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in FUNCTIONS:
            method, fewest, most = FUNCTIONS[name]
            if not fewest <= len(arguments) <= most:
                raise AppFailed(
                    f"{name} takes {fewest if fewest == most else f'{fewest} to {most}'} argument(s).",
                    kind="contract",
                    name="BadExpression",
                )
            given = [_value(argument, text, numbers, depth + 1) for argument in arguments]
            found: Number = getattr(numbers, method)(*given)
            return found
    raise _refused(node, text)


def _refused(node: ast.expr, text: str) -> AppFailed:
    part = (ast.get_source_segment(text.strip(), node) or text)[:60]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id == "log":
            return AppFailed(
                f"{part!r}: log may be ln or log10.",
                kind="contract",
                name="BadExpression",
                repair="write ln, log10 or log2",
            )
        return AppFailed(
            f"{part!r}: there is no function {node.func.id!r}; {nearest(node.func.id, FUNCTIONS)}",
            kind="contract",
            name="BadExpression",
        )
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitXor):
        return AppFailed(
            f"{part!r}: ^ is no power here.", kind="contract", name="BadExpression", repair="write **"
        )
    return AppFailed(
        f"{part!r} is not arithmetic: allowed are numbers, + - * / // % **, brackets, pi, e and the functions "
        f"{', '.join(sorted(FUNCTIONS))}.",
        kind="contract",
        name="BadExpression",
    )


def _literal(node: ast.Constant, text: str) -> Fraction:
    """The number as it is written: as a float it would have been rounded."""
    written = ast.get_source_segment(text.strip(), node) or ""
    found = _LITERAL.match(written)
    if found is None or type(node.value) not in (int, float) or not written:
        raise AppFailed(f"{written[:60]!r} is no decimal number.", kind="contract", name="BadExpression")
    if abs(int(found["exponent"] or 0)) > _MOST_ZEROS:
        raise AppFailed(
            f"{written} is too large or too small a number; exponents go to {_MOST_ZEROS}.",
            kind="contract",
            name="TooLarge",
        )
    return Fraction(written.replace("_", ""))


def _constant(name: str, numbers: Numbers) -> Number:
    if name == "pi":
        return numbers.pi()
    if name == "e":
        return numbers.e()
    if name in FUNCTIONS:
        raise AppFailed(
            f"{name} is a function; write what it is of, {name}(...).", kind="contract", name="BadExpression"
        )
    try:
        factor(name, name)
    except BadInput:
        raise AppFailed(
            f"there is no number called {name!r}; {nearest(name, [*FUNCTIONS, *_CONSTANTS])}",
            kind="contract",
            name="BadExpression",
            repair="write it as a number",
        ) from None
    raise AppFailed(
        f"{name!r} is a unit: expressions are of pure numbers, so that units are not mixed unseen.",
        kind="contract",
        name="BadExpression",
        repair="convert all quantities to one unit first, and write their numbers",
    )


def _rounded(value: Number, digits: int) -> Result:
    if isinstance(value, Interval):
        near = decimal.Context(prec=digits, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN)
        width = near.subtract(value.high, value.low)
        # Also where 0 lies between them: the width is larger than the nearer end then.
        if width > near.scaleb(value.low.copy_abs(), -digits - 2):
            raise NeedsDigits
        shown = near.plus(value.low)
        return Result(_written(shown), None, _as_float(float(shown), zero=False))
    try:
        as_float = _as_float(float(value), zero=value == 0)
    except OverflowError:
        as_float = math.nan
    return Result(_exact_text(value, digits), value, as_float)


def _as_float(value: float, *, zero: bool) -> float:
    """The float64, or nan where the number is too large for one, or so small that it has lost digits."""
    return value if zero or sys.float_info.min <= abs(value) < math.inf else math.nan


def _exact_text(value: Fraction, digits: int) -> str:
    """All digits where they end; else the fraction."""
    rest, twos, fives = value.denominator, 0, 0
    while rest % 2 == 0:
        rest, twos = rest // 2, twos + 1
    while rest % 5 == 0:
        rest, fives = rest // 5, fives + 1
    if rest != 1:
        return _fraction(value)
    places = max(twos, fives)
    whole = abs(value.numerator) * 10**places // value.denominator
    text = _digits(whole).rjust(places + 1, "0")
    text = f"{text[:-places]}.{text[-places:]}" if places else text
    return f"-{text}" if value < 0 else text


def _fraction(value: Fraction) -> str:
    sign = "-" if value < 0 else ""
    top = f"{sign}{_digits(abs(value.numerator))}"
    return top if value.denominator == 1 else f"{top}/{_digits(value.denominator)}"


def _digits(whole: int) -> str:
    """Decimal digits: Python itself writes no number of more than 4300."""
    with decimal.localcontext(decimal.Context(prec=decimal.MAX_PREC)):
        return format(Decimal(whole), "f") if whole.bit_length() < 14_000 else _in_parts(whole)


def _in_parts(whole: int) -> str:
    half = whole.bit_length() * 3 // 20
    high, low = divmod(whole, 10**half)
    return _digits(high) + _digits(low).rjust(half, "0")


def _written(number: Decimal) -> str:
    return format(number, "f") if -7 < number.adjusted() < 40 else format(number, "E")
