"""Numbers that are exact, or known to lie between two others: fractions, and intervals of decimals.

What four operations, whole powers and exact roots give stays a fraction. All else is an interval whose ends are
rounded outwards (R. E. Moore, Interval Analysis, 1966), so that the digits of a result are known to be right.

Decimals meet in the methods of a context of their own only: operators (also a minus, and `abs`) round to the 28
digits of the thread's context.
"""

from __future__ import annotations

import decimal
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from hpcagent.errors import AppFailed

__all__ = ["FUNCTIONS", "MOST_BITS", "Interval", "NeedsDigits", "Number", "Numbers"]

MOST_BITS = 40_000
"""Of a numerator or denominator."""
_MOST_FACTORIAL = 3000
_LARGEST_ANGLE = 10**15
_LARGEST_EXPONENT = 100_000


class NeedsDigits(Exception):
    """Two numbers cannot be told apart with the digits that are worked with."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A number that lies from `low` to `high`."""

    low: Decimal
    high: Decimal


Number = Fraction | Interval


def _too_large(what: str) -> AppFailed:
    return AppFailed(
        f"{what} is larger than what is computed (fractions of {MOST_BITS} bits, exponents of "
        f"{_LARGEST_EXPONENT}).",
        kind="contract",
        name="TooLarge",
        repair="its logarithm, or a smaller expression",
    )


class Numbers:
    """Arithmetic with `digits` decimal digits where it is not exact."""

    def __init__(self, digits: int) -> None:
        traps = [decimal.InvalidOperation, decimal.DivisionByZero, decimal.Overflow]
        made = {"prec": digits, "Emax": _LARGEST_EXPONENT, "Emin": -_LARGEST_EXPONENT, "traps": traps}
        self.digits = digits
        self._down = decimal.Context(rounding=decimal.ROUND_FLOOR, **made)  # type: ignore[arg-type]  # of a dict
        self._up = decimal.Context(rounding=decimal.ROUND_CEILING, **made)  # type: ignore[arg-type]

    # ---- from one kind to the other

    def interval(self, a: Number) -> Interval:
        """The number as an interval."""
        if isinstance(a, Interval):
            return a
        top, bottom = Decimal(a.numerator), Decimal(a.denominator)
        return Interval(self._down.divide(top, bottom), self._up.divide(top, bottom))

    def _checked(self, a: Fraction) -> Fraction:
        if max(a.numerator.bit_length(), a.denominator.bit_length()) > MOST_BITS:
            raise _too_large("a number on the way")
        return a

    def _around(self, value: Decimal) -> Interval:
        """What is right to half a unit of the last digit."""
        return Interval(self._down.next_minus(value), self._up.next_plus(value))

    # ---- the four operations

    def add(self, a: Number, b: Number) -> Number:
        """a + b."""
        if isinstance(a, Fraction) and isinstance(b, Fraction):
            return self._checked(a + b)
        x, y = self.interval(a), self.interval(b)
        return Interval(self._down.add(x.low, y.low), self._up.add(x.high, y.high))

    def negative(self, a: Number) -> Number:
        """-a."""
        return -a if isinstance(a, Fraction) else Interval(a.high.copy_negate(), a.low.copy_negate())

    def subtract(self, a: Number, b: Number) -> Number:
        """a - b."""
        return self.add(a, self.negative(b))

    def multiply(self, a: Number, b: Number) -> Number:
        """a b."""
        if isinstance(a, Fraction) and isinstance(b, Fraction):
            return self._checked(a * b)
        if 0 in (a, b):
            return Fraction(0)
        x, y = self.interval(a), self.interval(b)
        ends = [(p, q) for p in (x.low, x.high) for q in (y.low, y.high)]
        return Interval(
            min(self._down.multiply(p, q) for p, q in ends), max(self._up.multiply(p, q) for p, q in ends)
        )

    def divide(self, a: Number, b: Number) -> Number:
        """a / b."""
        if self.sign(b) == 0:
            raise AppFailed(
                "the expression divides by 0.", kind="contract", name="NotReal", repair="another expression"
            )
        if isinstance(a, Fraction) and isinstance(b, Fraction):
            return self._checked(a / b)
        x, y = self.interval(a), self.interval(b)
        ends = [(p, q) for p in (x.low, x.high) for q in (y.low, y.high)]
        return Interval(min(self._down.divide(p, q) for p, q in ends), max(self._up.divide(p, q) for p, q in ends))

    def sign(self, a: Number) -> int:
        """-1, 0 or 1.

        Raises:
            NeedsDigits: It is not known.
        """
        if isinstance(a, Fraction):
            return (a > 0) - (a < 0)
        if a.low > 0:
            return 1
        if a.high < 0:
            return -1
        raise NeedsDigits

    def floor(self, a: Number) -> Fraction:
        """Largest whole number that is not above."""
        if isinstance(a, Fraction):
            return Fraction(math.floor(a))
        if max(a.low.adjusted(), a.high.adjusted()) > MOST_BITS // 4:
            raise _too_large("a number to be rounded")
        low, high = (math.floor(Fraction(end)) for end in (a.low, a.high))
        if low != high:
            raise NeedsDigits
        return Fraction(low)

    def floor_divide(self, a: Number, b: Number) -> Number:
        """a // b."""
        return self.floor(self.divide(a, b))

    def modulo(self, a: Number, b: Number) -> Number:
        """a - b (a // b)."""
        return self.subtract(a, self.multiply(b, self.floor_divide(a, b)))

    # ---- powers, roots, logarithms

    def power(self, a: Number, b: Number) -> Number:
        """a to the power of b."""
        if isinstance(b, Fraction) and b.denominator == 1:
            return self._whole_power(a, int(b))
        if self.sign(a) < 0:
            raise AppFailed(
                "a power of a negative number with an exponent that is not whole is not real.",
                kind="contract",
                name="NotReal",
            )
        if isinstance(b, Fraction) and isinstance(a, Fraction):
            if a == 0:
                return self._whole_power(a, self.sign(b))
            exact = _root(a, b.denominator)
            if exact is not None:
                return self._whole_power(exact, b.numerator)
        return self.exp(self.multiply(b, self.ln(a)))

    def _whole_power(self, a: Number, n: int) -> Number:
        if n < 0 and self.sign(a) == 0:
            raise AppFailed(
                "the expression divides by 0.", kind="contract", name="NotReal", repair="another expression"
            )
        if isinstance(a, Fraction):
            if a in (0, 1, -1):
                return a**n if n >= 0 else a ** (-n)
            if abs(n) * (max(a.numerator.bit_length(), a.denominator.bit_length()) - 1) > MOST_BITS:
                raise _too_large("a power")
            return self._checked(a**n)
        if n == 0:
            return Fraction(1)
        if abs(n) > _LARGEST_EXPONENT:
            raise _too_large("an exponent")
        result: Number = Fraction(1)
        square: Number = a
        for bit in bin(abs(n))[:1:-1]:
            if bit == "1":
                result = self.multiply(result, square)
            square = self.multiply(square, square)
        return self.divide(Fraction(1), result) if n < 0 else result

    def sqrt(self, a: Number) -> Number:
        """Square root."""
        return self.root(a, 2)

    def cbrt(self, a: Number) -> Number:
        """Cube root; of a negative number, too."""
        if self.sign(a) < 0:
            return self.negative(self.root(self.negative(a), 3))
        return self.root(a, 3)

    def root(self, a: Number, n: int) -> Number:
        """n-th root."""
        if self.sign(a) < 0:
            raise AppFailed("the square root of a negative number is not real.", kind="contract", name="NotReal")
        return self.power(a, Fraction(1, n))

    def exp(self, a: Number) -> Number:
        """e to the power of a."""
        if a == 0:
            return Fraction(1)
        return self._rising(a, lambda context, x: context.exp(x))

    def ln(self, a: Number) -> Number:
        """Natural logarithm."""
        self._positive(a)
        if a == 1:
            return Fraction(0)
        return self._rising(a, lambda context, x: context.ln(x))

    def log10(self, a: Number) -> Number:
        """Logarithm to the base 10; exact for powers of ten."""
        return self._log(a, 10)

    def log2(self, a: Number) -> Number:
        """Logarithm to the base 2; exact for powers of two."""
        return self._log(a, 2)

    def _log(self, a: Number, base: int) -> Number:
        self._positive(a)
        if isinstance(a, Fraction):
            for number, sign in ((a, 1), (1 / a, -1)):
                if number.denominator == 1:
                    n = round(math.log(number.numerator, base))
                    if base**n == number.numerator:
                        return Fraction(sign * n)
        if base == 10:
            return self._rising(a, lambda context, x: context.log10(x))
        return self.divide(self.ln(a), self.ln(Fraction(base)))

    def _positive(self, a: Number) -> None:
        if self.sign(a) <= 0:
            raise AppFailed(
                "the logarithm of 0 or of a negative number is not real.", kind="contract", name="NotReal"
            )

    def _rising(self, a: Number, function: Callable[[decimal.Context, Decimal], Decimal]) -> Interval:
        """A function that rises, whose value in `decimal` is right to half a unit of the last digit."""
        x = self.interval(a)
        low, high = function(self._down, x.low), function(self._up, x.high)
        return Interval(self._down.next_minus(low), self._up.next_plus(high))

    # ---- angles

    def pi(self) -> Interval:
        """Circumference over diameter of a circle."""
        return self._around(self._down.divide(Decimal(_pi(self.digits + 5)), _ten(self.digits + 5)))

    def e(self) -> Number:
        """Base of natural logarithms."""
        return self.exp(Fraction(1))

    def sin(self, a: Number) -> Number:
        """Sine of an angle in radians."""
        return Fraction(0) if a == 0 else self._circular(a, 1)

    def cos(self, a: Number) -> Number:
        """Cosine of an angle in radians."""
        return Fraction(1) if a == 0 else self._circular(a, 0)

    def tan(self, a: Number) -> Number:
        """Tangent of an angle in radians."""
        return self.divide(self.sin(a), self.cos(a))

    def atan(self, a: Number) -> Number:
        """Angle, in radians, whose tangent it is."""
        if a == 0:
            return Fraction(0)
        middle, radius = self._ball(a)
        # atan(x) = 2 atan(x / (1 + sqrt(1 + x^2))): small soon, where the series is short.
        work = decimal.Context(prec=self.digits + 20, Emax=_LARGEST_EXPONENT, Emin=-_LARGEST_EXPONENT)
        x, times = middle, 1
        while x.copy_abs() > Decimal("0.05"):
            x = work.divide(x, work.add(1, work.sqrt(work.add(1, work.multiply(x, x)))))
            times *= 2
        total, term, n = x, x, 1
        square = work.multiply(x, x)
        while term and term.adjusted() > total.adjusted() - self.digits - 15:
            term = work.multiply(term, square).copy_negate()
            n += 2
            total = work.add(total, work.divide(term, Decimal(n)))
        return self._widened(work.multiply(total, Decimal(times)), radius)

    def _ball(self, a: Number) -> tuple[Decimal, Decimal]:
        x = self.interval(a)
        work = decimal.Context(prec=self.digits + 20, Emax=_LARGEST_EXPONENT, Emin=-_LARGEST_EXPONENT)
        middle = work.divide(work.add(x.low, x.high), Decimal(2))
        return middle, self._up.subtract(x.high, x.low)

    def _widened(self, value: Decimal, radius: Decimal) -> Interval:
        near = self._around(self._down.plus(value))
        return Interval(self._down.subtract(near.low, radius), self._up.add(near.high, radius))

    def _circular(self, a: Number, first: int) -> Interval:
        """Taylor's series about 0 of sine (`first` 1) or cosine (0), of the angle less whole turns.

        No derivative is above 1, so that the width of the angle is at most added to that of the result.
        """
        middle, radius = self._ball(a)
        if middle.copy_abs() > _LARGEST_ANGLE:
            raise AppFailed(
                f"an angle of {middle:.3g} rad is larger than {_LARGEST_ANGLE:.0e} rad.",
                kind="contract",
                name="TooLarge",
                repair="a smaller angle",
            )
        digits = self.digits + 40
        work = decimal.Context(prec=digits, Emax=_LARGEST_EXPONENT, Emin=-_LARGEST_EXPONENT)
        turn = work.multiply(2, work.divide(Decimal(_pi(digits)), _ten(digits)))
        x = work.subtract(middle, work.multiply(turn, work.divide(middle, turn).to_integral_value()))
        square = work.multiply(x, x)
        term = x if first else Decimal(1)
        total, n = term, first
        small = _ten(-self.digits - 25)
        while term.copy_abs() > small:
            n += 2
            term = work.divide(work.multiply(term, square), Decimal(n * (n - 1))).copy_negate()
            total = work.add(total, term)
        # What is left of the series, and the turns of an angle of up to 1e15, is less than this.
        return self._widened(total, self._up.add(radius, _ten(-self.digits - 20)))

    # ---- the rest

    def absolute(self, a: Number) -> Number:
        """|a|."""
        if isinstance(a, Interval) and a.low <= 0 <= a.high:
            return Interval(Decimal(0), max(a.low.copy_negate(), a.high))
        return a if self.sign(a) >= 0 else self.negative(a)

    def ceil(self, a: Number) -> Number:
        """Smallest whole number that is not below."""
        return self.negative(self.floor(self.negative(a)))

    def smallest(self, *numbers: Number) -> Number:
        """The smallest."""
        return functools.reduce(lambda a, b: b if self.sign(self.subtract(b, a)) < 0 else a, numbers)

    def largest(self, *numbers: Number) -> Number:
        """The largest."""
        return functools.reduce(lambda a, b: b if self.sign(self.subtract(b, a)) > 0 else a, numbers)

    def factorial(self, a: Number) -> Number:
        """1 x 2 x ... x a."""
        return self._checked(Fraction(math.factorial(_counter(a, "factorial"))))

    def comb(self, a: Number, b: Number) -> Number:
        """Ways to choose b of a."""
        return self._checked(Fraction(math.comb(_counter(a, "comb"), _counter(b, "comb"))))

    def gcd(self, a: Number, b: Number) -> Number:
        """Greatest common divisor of whole numbers."""
        for number in (a, b):
            if isinstance(number, Interval) or number.denominator != 1:
                raise AppFailed("gcd is of whole numbers.", kind="contract", name="BadExpression")
        assert isinstance(a, Fraction) and isinstance(b, Fraction)
        return Fraction(math.gcd(int(a), int(b)))


def _ten(power: int) -> Decimal:
    return Decimal((0, (1,), power))


def _counter(a: Number, what: str) -> int:
    if isinstance(a, Interval) or a.denominator != 1 or a < 0:
        raise AppFailed(f"{what} is of whole numbers from 0 on.", kind="contract", name="BadExpression")
    if a > _MOST_FACTORIAL:
        raise AppFailed(f"{what} of {int(a):.6g} is above {_MOST_FACTORIAL}.", kind="contract", name="TooLarge")
    return int(a)


def _root(a: Fraction, n: int) -> Fraction | None:
    """The n-th root, if it is a fraction."""
    parts = []
    for number in (a.numerator, a.denominator):
        if number.bit_length() < n and number > 1:
            return None
        root = math.isqrt(number) if n == 2 else _whole_root(number, n)
        if root**n != number:
            return None
        parts.append(root)
    return Fraction(*parts)


def _whole_root(number: int, n: int) -> int:
    """Largest whole number whose n-th power is not above, by Newton's steps."""
    if number < 2:
        return number
    x = 1 << -(-number.bit_length() // n)
    while True:
        y = ((n - 1) * x + number // x ** (n - 1)) // n
        if y >= x:
            return x
        x = y


@functools.lru_cache(maxsize=8)
def _pi(digits: int) -> int:
    """pi times 10^digits, right to a unit or two, by Machin's formula: 16 atan(1/5) - 4 atan(1/239)."""
    one: int = 10 ** (digits + 10)

    def atan(inverse: int) -> int:
        term = total = one // inverse
        n = 1
        while term:
            term = -term // (inverse * inverse)
            n += 2
            total += term // n
        return total

    return (16 * atan(5) - 4 * atan(239)) // 10**10


FUNCTIONS: dict[str, tuple[str, int, int]] = {
    "sqrt": ("sqrt", 1, 1),
    "cbrt": ("cbrt", 1, 1),
    "exp": ("exp", 1, 1),
    "ln": ("ln", 1, 1),
    "log10": ("log10", 1, 1),
    "log2": ("log2", 1, 1),
    "sin": ("sin", 1, 1),
    "cos": ("cos", 1, 1),
    "tan": ("tan", 1, 1),
    "atan": ("atan", 1, 1),
    "abs": ("absolute", 1, 1),
    "floor": ("floor", 1, 1),
    "ceil": ("ceil", 1, 1),
    "min": ("smallest", 1, 50),
    "max": ("largest", 1, 50),
    "factorial": ("factorial", 1, 1),
    "comb": ("comb", 2, 2),
    "gcd": ("gcd", 2, 2),
}
"""Name in an expression -> method of `Numbers`, fewest and most arguments."""
