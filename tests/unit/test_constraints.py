"""Conditions on parameters: read, held against the parameters, kept by points."""

from __future__ import annotations

import itertools
import json
import time

import numpy as np
import pytest

from hpcagent.errors import BadInput
from hpcagent.model.conditions import folded, holds
from hpcagent.model.grammar import read_condition, written
from hpcagent.model.parameter import Choice, Float, Int
from hpcagent.model.space import Space

WIDE = {
    "x": Float(0, 1),
    "y": Float(0, 1),
    "t": Float(1, 2, unit="ps"),
    "f": Float(1, 2, unit="fs"),
    "n": Int(1, 8),
    "style": Choice("plain", "tuned"),
    "fast": Choice(True, False),
}
POINT = {"x": 0.25, "y": 0.5, "t": 1.5, "f": 1.5, "n": 3, "style": "plain", "fast": True}


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("x + y <= 0.75", True),
        ("x + y < 0.75", False),
        ("x < y < 2 * y", True),
        ("y < x < 1", False),
        ("x * y == 0.125", True),
        ("y / x == 2", True),
        ("2 ** n == 8 and -x ** 2 == -0.0625", True),
        ("abs(x - y) >= 0.25", True),
        ("sqrt(x) == y and exp(log(y)) == y and log10(100) == 2", True),
        ("min(x, y, n) == x and max(x, y) == y", True),
        ("n % 2 == 1", True),
        ("style == 'plain' or x > y", True),
        ("style != 'plain'", False),
        ('style in ("plain", "tuned") and n in [1, 3]', True),
        ("style not in ('plain',)", False),
        ("not (x < y and fast)", False),
        ("fast", True),
        ("log(x - y) < 0", False),  # no value: not kept
        ("not log(x - y) < 0", False),
        ("not (log(x - y) < 0 or x > 1)", False),
        ("not (log(x - y) < 0 and x > 1)", True),  # broken whatever the first would be
        ("log(x - y) != 0", False),
        ("1 / (x - x) > 0", False),
        ("1 / (1 / (x - x)) == 0", False),
        ("1 / (x - x) > 0 or y > 0", True),
        ("t + 0.001 * f <= 1.5015", True),
        ("t * t <= t ** 2", True),
    ],
)
def test_a_condition_says_what_arithmetic_says(text: str, kept: bool) -> None:
    space = Space.of(**WIDE, constraints=[text])
    assert space.allows(POINT) is kept
    assert written(read_condition(written(read_condition(text)))) == written(read_condition(text))
    assert Space.of(**WIDE, constraints=[written(read_condition(text))]).allows(POINT) is kept


def test_multiples_are_found_in_spite_of_rounding() -> None:
    space = Space.of(x=Float(0, 1), constraints=["x % 0.1 == 0"])
    assert all(space.allows({"x": k / 10}) for k in range(11))  # 0.3 % 0.1 is 0.09999999999999998
    assert not any(space.allows({"x": k / 10 + 0.01}) for k in range(10))
    rest = Space.of(x=Float(0, 1), constraints=["x % 0.3 <= 0.05"])
    assert rest.allows({"x": 0.9}) and rest.allows({"x": 0.34}) and not rest.allows({"x": 0.89})


def test_a_known_value_does_not_make_what_has_none_true() -> None:
    left = folded(read_condition("not (log(x - 2) < 1 or y > 1)"), {"x": 0.0})
    assert not isinstance(left, bool) and not holds(left, {"y": 0.5}) and not holds(left, {"y": 2.0})
    assert folded(read_condition("not log(x - 2) < 1"), {"x": 0.0}) is False
    assert folded(read_condition("not log(x - 2) < 1"), {"x": 30.0}) is True


def test_sums_are_compared_to_rounding() -> None:
    space = Space.of(a=Float(0, 1), b=Float(0, 1), constraints=["a + b == 0.3", "a + b <= 0.3"])
    assert 0.1 + 0.2 != 0.3 and space.allows({"a": 0.1, "b": 0.2})
    assert not space.allows({"a": 0.1, "b": 0.2000001})


@pytest.mark.parametrize(
    ("text", "said", "column"),
    [
        ("x + ? <= 1", "'?' has no meaning here", 4),
        ("x + y = 1", "two values are compared with ==", 6),
        ("x ^ 2 < 1", r"powers are written with \*\*", 2),
        ("x & y", "write 'and'", 2),
        ("x + y", "this is no condition", 2),
        ("foo + x < 1", "there is no parameter 'foo'; known: f, fast, n, style, t, x, y", 0),
        ("stile == 'plain'", "did you mean 'style'", 0),
        ("x <= 'a'", "a number cannot be compared with a word", 5),
        ("style == 'plan'", "'plan' is none of the choices; did you mean 'plain'", 9),
        ("style < 'b'", "words have no order", 8),
        ("style == 'b", "the quote is not closed", 9),
        ("x + t <= 2", "1 and ps cannot be added: they are units of different things", 4),
        ("t + f < 3", "multiply what is in fs by 0.001", 4),
        ("t < x", "ps and 1 cannot be compared", 4),
        ("log(t) < 1", "log needs a pure number, not one in ps", 0),
        ("x ** t < 1", "an exponent is a pure number", 5),
        ("min(x, t) < 1", "ps|1", 7),
        ("(x + y <= 1", r"'\)' is missing", 11),
        ("x + y <= 1 1", "'1' is not expected here", 11),
        ("x <=", "a value is missing at the end", 4),
        ("sqrt(x, y) < 1", "sqrt takes one value", 0),
        ("__import__('os') == 1", "there is no function '__import__'", 0),
        ("x.real < 1", "'.' has no meaning here", 1),
        ("x <= 1e999", "too large", 5),
        ("x in (y)", "a list holds words in quotes and numbers", 6),
        ("(" * 50 + "x" + ")" * 50 + " < 1", "more than 40 brackets", 41),
        ("fast > 1", "a truth cannot be compared with a number", 7),
        ("3 < 4", "names no parameter", 0),
    ],
)
def test_what_makes_no_sense_is_pointed_at(text: str, said: str, column: int) -> None:
    with pytest.raises(BadInput, match=said) as caught:
        Space.of(**WIDE, constraints=[text])
    *_, shown, caret = str(caught.value).splitlines()
    assert shown == text or len(text) > 100
    assert caret.index("^") == column


def test_long_and_strange_conditions_are_refused() -> None:
    for given in ("x < 1 and " * 200 + "x < 1", "", "x < 1\x00", "+".join("x" * 450) + " < 1"):
        with pytest.raises(BadInput):
            Space.of(x=Float(0, 1), constraints=[given])
    with pytest.raises(BadInput, match="is a list of conditions"):
        Space.of(x=Float(0, 1), constraints="x < 1")
    with pytest.raises(BadInput, match="too many"):
        Space.of(x=Float(0, 1), constraints=["x < 1"] * 101)


def test_a_forbidden_point_is_refused_with_the_sum() -> None:
    space = Space.of(x=Float(0, 1), y=Float(0, 1), constraints=["x + y <= 1"])
    with pytest.raises(BadInput, match=r"'x \+ y <= 1' is not kept at x=0.75, y=0.5 \(x \+ y = 1.25\)"):
        space.validated({"x": 0.75, "y": 0.5})


# Conditional parameters


def solver() -> Space:
    return Space.of(
        smoother=Choice("jacobi", "sor", when="levels > 3"),
        levels=Int(2, 8, when="solver == 'mg'"),
        solver=Choice("mg", "cg"),
        tol=Float(1e-8, 1e-2, log=True),
        constraints=["levels * tol <= 0.02"],
    )


def test_what_is_not_active_is_left_out() -> None:
    space = solver()
    assert space.validated({"solver": "cg", "tol": 1e-2}) == {"solver": "cg", "tol": 1e-2}
    assert space.validated({"solver": "cg", "tol": 1e-2, "levels": 4, "smoother": "sor"}) == {
        "solver": "cg",
        "tol": 1e-2,
    }
    assert list(space.validated({"solver": "mg", "tol": 1e-3, "levels": 4, "smoother": "sor"})) == [
        *("smoother", "levels", "solver", "tol")
    ]
    with pytest.raises(BadInput, match="'levels' has no value"):
        space.validated({"solver": "mg", "tol": 1e-3})
    with pytest.raises(BadInput, match=r"not kept at levels=8, tol=0\.01"):
        space.validated({"solver": "mg", "tol": 1e-2, "levels": 8, "smoother": "sor"})


def test_finite_conditional_points_are_counted_once() -> None:
    space = Space.of(s=Choice("mg", "cg", "lu"), k=Int(1, 5, when="s == 'mg'"), m=Int(1, 2, when="k >= 4"))
    assert space.size == 3 + 2 * 2 + 2  # k = 1, 2, 3; k = 4, 5 with two m; cg; lu
    assert len(space.grid(5)) == 9


@pytest.mark.parametrize(
    ("whens", "said"),
    [
        ({"a": "b > 0", "b": "a > 0"}, "circle"),
        ({"a": "a > 0"}, "about a itself"),
        ({"a": "c > 0"}, "a, when: there is no parameter 'c'"),
        ({"a": "1 < 2"}, "decides nothing"),
        ({"a": "b >"}, "a, when: the condition cannot be read"),
    ],
)
def test_conditions_that_cannot_be_are_refused(whens: dict[str, str], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        Space.of(a=Float(0, 1, when=whens.get("a")), b=Float(0, 1, when=whens.get("b")))


def test_known_values_are_put_into_conditions() -> None:
    space = solver()
    assert space.without({"solver": "cg"}).names == ("tol",)
    multigrid = space.without({"solver": "mg"})
    assert multigrid["levels"].when is None and multigrid["smoother"].when == "levels > 3"
    fixed = space.without({"levels": 8})  # only counts where the solver is mg
    assert fixed.allows({"solver": "cg", "tol": 1e-2}) and not fixed.allows({"solver": "mg", "tol": 1e-2})
    assert fixed["smoother"].when == "solver == 'mg'"
    with pytest.raises(BadInput, match="not kept at"):
        Space.of(x=Float(0, 1), y=Float(0, 1), constraints=["x <= 0.5"]).without({"x": 0.75})


# Points of the allowed region


@pytest.mark.parametrize("n", [3, 8])
def test_compositions_are_drawn_evenly(n: int) -> None:
    """Each part of an even composition has mean 1/n and variance (n - 1) / (n^2 (n + 1)) (Dirichlet)."""
    names = [f"c{i}" for i in range(n)]
    space = Space.of(**{name: Float(0, 1) for name in names}, constraints=[" + ".join(names) + " == 1"])
    points = space.sample(np.random.default_rng(0), 2000)
    rows = np.array([list(p.values()) for p in points])
    assert np.abs(rows.sum(1) - 1).max() < 1e-11 and rows.min() >= 0
    variance = (n - 1) / (n**2 * (n + 1))
    assert np.abs(rows.mean(0) - 1 / n).max() < 5 * np.sqrt(variance / 2000)
    assert np.abs(rows.var(0) / variance - 1).max() < 0.25
    assert all(space.validated(p) == p for p in points[:50])
    assert [space.from_unit(space.to_unit(p)) for p in points[:50]] == points[:50]


def test_the_parts_of_a_composition_keep_their_bounds() -> None:
    space = Space.of(a=Float(0.2, 0.4), b=Float(0, 1), c=Float(0.1, 0.9), constraints=["a + b + c == 1"])
    rows = np.array([list(p.values()) for p in space.sample(np.random.default_rng(0), 2000)])
    drawn = np.random.default_rng(1).random((200_000, 2)) * [0.2, 1] + [0.2, 0]
    drawn = drawn[np.abs(1 - drawn.sum(1) - 0.5) <= 0.4]
    assert np.allclose(rows.mean(0)[:2], drawn.mean(0), atol=0.015)
    assert np.allclose(rows.var(0)[:2], drawn.var(0), rtol=0.1)


def test_a_grid_of_compositions_is_a_lattice() -> None:
    space = Space.of(a=Float(0, 1), b=Float(0, 1), c=Float(0, 1), constraints=["a + b + c == 1"])
    quarters = [p for p in itertools.product(range(5), repeat=3) if sum(p) == 4]
    assert {tuple(round(4 * v) for v in p.values()) for p in space.grid(5)} == set(quarters)


def test_several_equalities_and_products_hold_together() -> None:
    space = Space.of(
        **{n: Float(0.05, 1) for n in "abcd"}, constraints=["a + b + c + d == 1", "a == 2 * b", "c * d == 0.06"]
    )
    for p in space.sample(np.random.default_rng(0), 20):
        assert abs(sum(p.values()) - 1) < 1e-8 and p["a"] == pytest.approx(2 * p["b"])
        assert p["c"] * p["d"] == pytest.approx(0.06)


@pytest.mark.slow
def test_equalities_that_hang_together_are_kept_by_chains_in_seconds() -> None:
    """One number is free: a from 0 to 1/2, evenly."""
    space = Space.of(
        **{n: Float(0, 1) for n in "abcd"}, constraints=["a + b + c + d == 1", "a == b", "c == 2 * d"]
    )
    begin = time.process_time()
    points = space.sample(np.random.default_rng(0), 64)
    assert time.process_time() - begin < 8  # 26 s when each step left the slice
    assert all(space.allows(p) for p in points) and len({p["a"] for p in points}) == 64
    assert np.mean([p["a"] for p in points]) == pytest.approx(0.25, abs=0.08)


def test_a_whole_number_follows_too() -> None:
    space = Space.of(**{n: Int(0, 200) for n in ("i", "j", "k")}, constraints=["i + j + k == 200"])
    points = space.sample(np.random.default_rng(0), 100)
    assert all(sum(p.values()) == 200 for p in points) and len({str(p) for p in points}) > 90


def test_a_thin_region_is_found_and_covered() -> None:
    """A tube along the diagonal with 1e-10 of the volume: x is even from 0.5 to 1."""
    space = Space.of(
        x=Float(0, 1),
        y=Float(0, 1),
        z=Float(0, 1),
        constraints=["abs(x - y) <= 1e-5", "abs(y - z) <= 1e-5", "x > 0.5"],
    )
    begin = time.process_time()
    points = space.sample(np.random.default_rng(0), 200)
    assert time.process_time() - begin < 3
    x = np.array([p["x"] for p in points])
    assert len(set(x)) == 200 and all(space.allows(p) for p in points)
    assert abs(x.mean() - 0.75) < 0.08 and abs(x.std() / (0.5 / np.sqrt(12)) - 1) < 0.25


def test_an_empty_region_is_refused_in_words() -> None:
    space = Space.of(x=Float(0, 1), y=Float(0, 1), constraints=["x + y >= 2.1", "x < 0.9"])
    with pytest.raises(BadInput, match="no point of the space keeps the constraints"):
        space.middle
    with pytest.raises(BadInput, match="no point of the space keeps the constraints"):
        Space.of(k=Int(1, 3), constraints=["k > 3"]).middle


def test_old_spaces_are_written_as_before() -> None:
    """Digests of campaigns and apps are made of this text."""
    space = Space.of(x=Float(0, 1))
    assert json.loads(space.model_dump_json()) == {
        "parameters": [
            {
                **{"name": "x", "kind": "float", "low": 0.0, "high": 1.0, "unit": "1", "log": False},
                **{"choices": [], "default": None, "description": ""},
            }
        ]
    }
    again = Space.model_validate_json(solver().model_dump_json())
    assert again == solver() and again.constraints[0].text == "levels * tol <= 0.02"


def test_the_schema_says_the_constraints() -> None:
    schema = solver().json_schema()
    assert schema["x-constraints"] == ["levels * tol <= 0.02"] and "levels * tol" in schema["description"]
    assert schema["properties"]["levels"]["x-when"] == "solver == 'mg'"
    assert schema["required"] == ["solver", "tol"]
