"""Numbers are read as they stand, or it is said in words why not: never a zero in their place."""

from __future__ import annotations

import json
import math
import time

import h5py
import numpy as np
import pytest

import hpcagent as ha
from hpcagent.apps.executable.matching import found_in
from hpcagent.apps.executable.reading import from_match, number_of
from hpcagent.errors import AppFailed, BadInput


def read(how, folder, text=None, name=None):
    """Read a metric `m`; with `text`, from a file of that content."""
    if text is not None:
        (folder / how.file).write_text(text)
    if how.regex is None:
        return number_of("m", how, folder, {})
    (found,) = found_in(folder, [{"file": how.file, "pattern": how.regex, "match": how.match}])
    return from_match("m", how, found)


def why(how, folder, text=None):
    with pytest.raises(AppFailed) as failed:
        read(how, folder, text)
    assert "'m'" in failed.value.message or how.file in failed.value.message
    return failed.value.name, failed.value.message


def test_json_is_followed_by_keys_and_numbers(tmp_path):
    text = json.dumps(
        {"runs": [{"e": 1}, {"e": -2.5, "se": 0.1}], "a.b": {"0": 7}, "n": None, "t": "3", "b": True}
    )
    how = ha.output.from_json("o.json", "runs[-1].e", error_key="runs[-1].se", unit="eV")
    assert (read(how, tmp_path, text).value, read(how, tmp_path).error) == (-2.5, 0.1)
    assert read(ha.output.from_json("o.json", ("a.b", 0), unit="1"), tmp_path).value == 7
    for key, name, words in (
        ("runs[2].e", "MissingMetric", "the list has 2"),
        ("runs[0].f", "MissingMetric", "known: e"),
        ("n", "BadOutput", "null"),
        ("t", "BadOutput", "'3'"),
        ("b", "BadOutput", "True"),
        ("t.x", "MissingMetric", "not an object"),
        ("runs.--1", "MissingMetric", "no element '--1'"),
        ("runs.\u00b2", "MissingMetric", "no element"),
    ):
        assert why(ha.output.from_json("o.json", key, unit="1"), tmp_path)[0] == name
        assert words in why(ha.output.from_json("o.json", key, unit="1"), tmp_path)[1]
    assert "line 1" in why(ha.output.from_json("o.json", "x", unit="1"), tmp_path, "{'x': 1}")[1]
    for error in ("-0.1", "NaN", "Infinity"):
        how = ha.output.from_json("o.json", "e", error_key="se", unit="eV")
        failed = why(how, tmp_path, f'{{"e": 1, "se": {error}}}')
        assert failed[0] == "BadOutput" and "standard error, which is a finite number >= 0" in failed[1]
    assert why(ha.output.from_json("absent.json", "x", unit="1"), tmp_path)[0] == "NoOutput"


def test_a_pattern_takes_the_last_match_its_error_and_its_unit(tmp_path):
    text = "E = -1.5D-01 Ha\nE = -2.0 +- 0.5 Ha\n"
    assert read(ha.output.from_regex(r"E = (\S+)", file="log", unit="1"), tmp_path, text).value == -2.0
    assert read(ha.output.from_regex(r"E = (\S+)", file="log", unit="1", match="first"), tmp_path).value == -0.15
    full = r"E = (?P<value>\S+)(?: \+- (?P<error>\S+))? (?P<unit>\w+)$"
    number = read(ha.output.from_regex(full, file="log", unit="eV"), tmp_path)
    assert number.value == pytest.approx(-2 * 27.211386, rel=1e-6)  # CODATA 2018
    assert number.error == pytest.approx(0.5 * 27.211386, rel=1e-6)
    name, words = why(ha.output.from_regex(full, file="log", unit="ps"), tmp_path)
    assert (name, "'Ha'" in words) == ("BadOutput", True)
    name, words = why(ha.output.from_regex(r"F = (\S+)", file="log", unit="1"), tmp_path)
    assert (name, "2 line(s)" in words) == ("MissingMetric", True)
    assert "no number" in why(ha.output.from_regex(r"E = (.*)", file="log", unit="1"), tmp_path)[1]
    assert math.isnan(read(ha.output.from_regex(r"E = (\S+)", file="log", unit="1"), tmp_path, "E = nan\n").value)


def test_a_pattern_that_takes_for_ever_is_ended(tmp_path):
    (tmp_path / "log").write_text("a" * 40 + "\n")
    began = time.monotonic()
    assert found_in(tmp_path, [{"file": "log", "pattern": "(a+)+b", "match": "last"}], limit_s=0.5) is None
    assert time.monotonic() - began < 60


TABLE = "t, T, P\n0, 10, 1e5\n1, 12,1e5\n2, 14,1e5\n"


def test_columns_are_found_by_title_or_number_in_csv_and_between_blanks(tmp_path):
    for text in (
        TABLE,
        TABLE.replace(",", ";"),
        TABLE.replace(",", "\t"),
        "# run 7\n# " + TABLE.replace(",", " "),
    ):
        for column in ("T", 1, -2):
            assert read(ha.output.from_column("d", column, unit="K", series=False), tmp_path, text).value == 12
    how = {"unit": "K", "series": False}
    got = {
        r: read(ha.output.from_column("d", "T", reduce=r, **how), tmp_path).value
        for r in ("last", "first", "min", "max")
    }
    assert got == {"last": 14, "first": 10, "min": 10, "max": 14}
    assert read(ha.output.from_column("d", "T", reduce="std", **how), tmp_path).value == pytest.approx(
        math.sqrt(8 / 3)
    )
    half = read(ha.output.from_column("d", "T", discard=0.5, **how), tmp_path)
    assert (half.value, "2 of 3 rows" in half.said) == (13, True)


@pytest.mark.parametrize(
    ("text", "column", "name", "words"),
    [
        (TABLE, "Temp", "MissingMetric", "known: P, T, t"),
        (TABLE, 3, "MissingMetric", "3 column(s)"),
        ("1 2\n3 4\n", "T", "MissingMetric", "no titles"),
        ("T T\n1 2\n", "T", "MissingMetric", "two columns"),
        ("T\n", "T", "MissingMetric", "no rows"),
        ("", "T", "MissingMetric", "no rows"),
        (TABLE + "3, ,1\n", "T", "BadOutput", "line 5"),
        (TABLE + "3, x,1\n", "T", "BadOutput", "'x'"),
        (TABLE + "3\n", "T", "BadOutput", "1 cell(s)"),
        (TABLE + "3,nan,1\n", "T", "NotFinite", "number 4 of the 4 rows"),
        (TABLE + "3,1_0,1\n", "T", "BadOutput", "1_0"),
    ],
)
def test_a_table_that_is_not_as_expected_is_a_failure_with_its_line(tmp_path, text, column, name, words):
    failed = why(ha.output.from_column("d", column, unit="K"), tmp_path, text)
    assert failed[0] == name
    assert words in failed[1]


@pytest.mark.parametrize(
    ("text", "column", "words"),
    [
        # What stood in the first row was taken for titles, or counted as another number, without a word.
        ("0 ******\n1 2.0\n2 4.0\n", 1, "line 1 of d has '******', which is no number"),
        ("0 -nan(ind)\n1 2.0\n2 4.0\n", 1, "line 1 of d has '-nan(ind)'"),
        ("NA\n2.0\n4.0\n", 0, "line 1 of d has 'NA'"),
        ("1.234-103\n2.0\n", 0, "line 1 of d has '1.234-103'"),
        ("t,300,400\n0,1,2\n1,3,4\n", 1, "titles, or a row?"),
        ("0,5;1,5\n2,5;3,5\n4,5;5,5\n", 0, "decimal commas"),
        ("t;T\n0,5;1,5\n", "T", "a decimal comma?"),
        ("0,5\n2,5\n4,5\n", 0, "decimal comma?"),
        ("1,000\n3,000\n", -1, "decimal comma?"),
        ("1,000 2\n3,000 4\n", 0, "decimal commas"),
        ("1.5,2 3\n4.5,5 6\n", 0, "'2 3'"),
        ("0 1,5\n1 2,5\n", 1, "decimal commas"),
        ("a;b,c\n1;2,3\n", 0, "',' and ';'"),
        ("1 2 3\n4 5\n6 7 8\n", -1, "line 2 of d has 2 cell(s), and line 1 has 3"),
        ("1 2\n4 5 6\n", 0, "line 2 of d has 3 cell(s)"),
        ("1,2,3\n4;5;6\n", 0, "with ',' between"),
        ('1,"2\n', 0, "no row of a table"),
    ],
)
def test_a_table_that_can_be_meant_in_two_ways_is_refused(tmp_path, text, column, words):
    assert words in why(ha.output.from_column("d", column, unit="K"), tmp_path, text)[1]


@pytest.mark.parametrize(
    ("text", "column", "value"),
    [
        ("\ufefft,T\r1,2\r3,4\r", "T", 3),  # as spreadsheets write it
        ("t,T\r\n1,2\r\n3,4\r\n", 0, 2),
        ("t,300\n0,1\n1,3\n", "300", 2),
        ("1 -nan 2\n3 4 4\n", 2, 3),
        ("step,count\n1,2\n3,4\n", 0, 2),
        ("1,2\n3,4\n", 1, 3),
        (",T\n0,2\n1,4\n", 1, 3),  # as pandas writes it
        ("1,\t2,\t5\n3,\t4,\t7\n", -1, 6),
        ('"t; s","T, K"\n1,2\n3,4\n', "T, K", 3),
        ("2024-01-01 10:00:00,2\n2024-01-01 11:00:00,4\n", 1, 3),
        ("# t T P\n1,2,3\n3,4,5\n", "T", 3),
    ],
)
def test_a_table_with_one_meaning_is_read(tmp_path, text, column, value):
    (tmp_path / "d").write_bytes(text.encode())
    assert read(ha.output.from_column("d", column, unit="K", series=False), tmp_path).value == value


def test_the_error_of_a_mean_covers_though_rows_are_correlated(tmp_path):
    """First-order autoregressive rows with rho = 0.9: the error is sqrt(19) times that of independent ones."""
    rng, within, errors = np.random.default_rng(5), 0, []
    how = ha.output.from_column("d", 0, unit="K", discard=0.1)
    for _ in range(60):
        x = np.zeros(2200)
        for i, kick in enumerate(rng.normal(size=2199), start=1):
            x[i] = 0.9 * x[i - 1] + kick
        number = read(how, tmp_path, "\n".join(map(repr, x.tolist())))
        errors.append(number.error)
        within += abs(number.value) < 2 * number.error
    # Variance of a mean of n: (1 / (1 - rho)^2) / n.
    assert np.median(errors) == pytest.approx(10 / math.sqrt(1980), rel=0.2)
    assert within >= 52  # of 60 at 95 %: 57, and less than 52 in one of a thousand
    assert math.isnan(read(ha.output.from_column("d", 0, unit="K", series=False), tmp_path).error)
    assert "no standard error" not in read(how, tmp_path, "1\n2\n").said
    assert "for a standard error" in read(how, tmp_path, "1\n2\n").said


def test_arrays_of_numpy_and_hdf5_are_read_and_pickles_are_not(tmp_path):
    np.save(tmp_path / "a.npy", np.array([[1.0, 2.0], [3.0, 4.0]]))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["run/energy"] = np.arange(5)
        file["name"] = "text"
    assert read(ha.output.from_array("a.npy", column=1, unit="1", reduce="sum"), tmp_path).value == 6
    assert read(ha.output.from_array("a.h5", "run/energy", unit="eV", reduce="last"), tmp_path).value == 4
    assert "shape (2, 2)" in why(ha.output.from_array("a.npy", unit="1"), tmp_path)[1]
    assert why(ha.output.from_array("a.h5", "energy", unit="1"), tmp_path)[0] == "MissingMetric"
    assert "no numbers" in why(ha.output.from_array("a.h5", "name", unit="1"), tmp_path)[1]
    np.save(tmp_path / "p.npy", np.array([{}], dtype=object), allow_pickle=True)
    assert why(ha.output.from_array("p.npy", unit="1"), tmp_path)[0] == "BadOutput"
    (tmp_path / "b.h5").write_text("no HDF5")
    assert "no HDF5" in why(ha.output.from_array("b.h5", "x", unit="1"), tmp_path)[1]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ha.output.from_json("../o.json", "x", unit="1"), "not the name of a file"),
        (lambda: ha.output.from_json("o.json", "", unit="1"), "key is empty"),
        (lambda: ha.output.from_json("o.json", "a[x]", unit="1"), "number of an element"),
        (lambda: ha.output.from_json("o.json", "x", unit=""), "unit"),
        (lambda: ha.output.from_json("o.json", "x", unit="1", discard=0.1), "discard does not go with key"),
        (lambda: ha.output.from_regex("(a", unit="1"), "no regular expression"),
        (lambda: ha.output.from_regex("(a)(b)", unit="1"), "2 groups"),
        (lambda: ha.output.from_regex("(?P<x>a)", unit="1"), "called 'x'"),
        (lambda: ha.output.from_column("d", "T", unit="K", reduce="median"), "reduce"),
        (lambda: ha.output.from_column("d", "T", unit="K", discard=1.0), "discard"),
        (lambda: ha.output.from_array("stdout", unit="K"), "needs a file"),
    ],
)
def test_a_reader_that_makes_no_sense_is_refused(make, words):
    with pytest.raises(BadInput) as refused:
        make()
    assert words in str(refused.value)


def test_an_optional_number_may_be_absent_and_that_is_said(tmp_path, python, called):
    app = ha.executable(
        python("print('x=1')"),
        parameters={},
        metrics={
            "x": ha.output.from_regex("x=(.*)", unit="1"),
            "y": ha.output.from_regex("y=(.*)", unit="1", required=False),
        },
        relative_to=tmp_path,
    )
    result = called(app)
    assert result["metrics"] == {"x": 1.0}
    assert any("'y'" in note and "left out" in note for note in result["notes"])
