"""Values go to their places once, and are never looked at again."""

from __future__ import annotations

import pytest

from hpcagent.apps.executable.words import filled, pieces, text_filled
from hpcagent.errors import AppFailed, BadInput


def test_a_value_is_not_looked_at_again_for_places():
    assert filled("{a}{b}", {"a": "{b}", "b": 2}) == "{b}2"
    parts = pieces("${a} ${b}\n", "in.txt", template=True)
    assert text_filled(parts, {"a": "x+y/z", "b": 0.1}) == "x+y/z 0.1\n"


@pytest.mark.parametrize(
    "value", ["a b", "a\nb", "x;rm", "$(id)", "'", "../x", "-x", "", float("nan"), True, None]
)
def test_nothing_but_plain_words_and_finite_numbers_gets_into_an_input_file(value):
    with pytest.raises(AppFailed) as failed:
        text_filled(pieces("a = ${a}\n", "in.txt", template=True), {"a": value})
    assert failed.value.name == "BadParameter"


@pytest.mark.parametrize(
    ("word", "value", "written"),
    [
        ("{x}", 0.1 + 0.2, "0.30000000000000004"),
        ("{x:.2f}", 2, "2.00"),
        ("{x:+.1e}", 1234.0, "+1.2e+03"),
        ("{x:05d}", 42, "00042"),
        ("{x:x}", 255, "ff"),
        ("{x:8.3f}", 1.0, "   1.000"),
        ("n={x}%{{}}", -1, "n=-1%{}"),
    ],
)
def test_numbers_are_written_as_asked(word, value, written):
    assert filled(word, {"x": value}) == written


@pytest.mark.parametrize(
    "word", ["{", "}", "{}", "{x", "x}", "{x!s}", "{x[0]}", "{0}", "{x:}", "{x:{y}}", "{x:*<9}", "{ x}"]
)
def test_other_braces_are_refused(word):
    with pytest.raises(BadInput):
        pieces(word, "command")
