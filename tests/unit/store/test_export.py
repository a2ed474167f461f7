"""Which format a table is exported in."""

from pathlib import Path

import pytest

from hpcagent.errors import BadInput
from hpcagent.store.export import format_of


@pytest.mark.parametrize(
    ("to", "file", "found"),
    [
        (None, None, "csv"),
        (None, "tab.parquet", "parquet"),
        (None, "tab.PARQUET", "parquet"),
        (None, "tab", "csv"),
        (None, "-", "csv"),
        ("parquet", "-", "parquet"),
        ("parquet", "tab.data", "parquet"),
        ("csv", "tab.csv", "csv"),
    ],
)
def test_the_suffix_decides_where_no_format_is_named(to: str | None, file: str | None, found: str) -> None:
    assert format_of(to, None if file is None else Path(file)) == found


@pytest.mark.parametrize(("to", "file", "words"), [("csv", "a.parquet", "does not fit"), ("xml", None, "known")])
def test_a_format_that_contradicts_the_file_is_refused(to: str, file: str | None, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        format_of(to, None if file is None else Path(file))
