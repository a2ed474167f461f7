"""The rows of a thermo table, from its text: the styles one, yaml and multi, and the table of a `tad`."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpcagent.science.lammps.log_words import NUMBER, as_float, names_of
from hpcagent.science.lammps.thermo_columns import canonical
from hpcagent.science.lammps.true_rows import SIMILAR, Layout, Positions

__all__ = ["BANNER", "CHUNK", "Unread", "read_multi", "read_one", "read_tad", "read_yaml"]

_Array = NDArray[np.float64]


BANNER = re.compile(rb"-+ Step +(\d+) -+ CPU = +(\S+) \(sec(?:s|onds)?\) -+[ \t]*")
_PAIR = re.compile(rb"(\S(?:[^=\n]*\S)?)\s+=\s*(" + NUMBER + rb")(?:\s+|$)")
_NUMBER_BYTES = b"0123456789+-.eE \tnaifNAIF#DQS"
_YAML_ROW = b"  - ["
CHUNK = 1 << 21
_TAD_STATUS = re.compile(rb"^((?:[-+.\d]+ +){4})[A-Z]+", re.MULTILINE)
_YAML_BLANKS = bytes.maketrans(b"],", b"  ")


@dataclass(slots=True)
class Unread:
    """Lines that look like rows and were not taken for any."""

    count: int = 0
    first: bytes = b""

    def add(self, lines: Sequence[bytes]) -> None:
        if lines and not self.count:
            self.first = lines[0].strip()
        self.count += len(lines)


_INTEGERS = frozenset(("step", "elapsed", "elaplong", "atoms", "part", "nbuild", "ndanger"))


def read_one(text: bytes, columns: tuple[str, ...], unread: Unread) -> _Array:
    """Rows of a one-line table: (n_rows, n_columns)."""
    n = len(columns)
    row = re.compile(rb"^[ \t]*(" + NUMBER + rb")(?:[ \t]+" + NUMBER + rb"){%d}([ \t]*)$" % (n - 1), re.MULTILINE)
    text = _whole_lines(text, row)
    first = row.search(text)
    if first is None:
        unread.add([li for li in text.split(b"\n") if SIMILAR.match(li) and len(li.split()) == n])
        return np.empty((0, n))
    layout = Layout.of(first[0], integer=first[1].isdigit() and canonical(columns[0]) in _INTEGERS)
    parts = []
    for chunk in _chunks(text, b"\n"):
        fields = _fields(chunk, n)
        if fields is None:
            # First refuse lines with letters that no number has: that is often all, and quick.
            lines: list[bytes] = []
            others: list[bytes] = []
            for line in chunk.split(b"\n"):
                (others if line.translate(None, _NUMBER_BYTES) else lines).append(line)
            unread.add([line for line in others if layout.similar(line)])
            chunk = b"\n".join(filter(None, lines)) + b"\n"
            fields = _fields(chunk, n)
        if fields is None:
            unread.add([li for li in chunk.split(b"\n") if layout.similar(li) and not row.match(li)])
            rows = [m[0] for m in row.finditer(chunk)]
            if not rows:
                continue
            chunk = _plain_nan(b"\n".join(rows) + b"\n")
            fields = _fields(chunk, n)
            assert fields is not None, "the pattern finds nothing else"
        values, starts, ends = fields
        kept = layout.fits(chunk, values[:, 0], starts, ends)
        if not kept.all():
            refused = np.flatnonzero(~kept)
            at = refused[0]
            unread.add([chunk[ends[at - 1] + 1 if at else 0 : ends[at]]])
            unread.count += refused.size - 1
        parts.append(values[kept])
    return np.concatenate(parts) if parts else np.empty((0, n))


def read_tad(text: bytes, columns: tuple[str, ...], unread: Unread) -> _Array:
    """Rows of the table of a `tad`, with NaN for the word in its fifth column: (n_rows, n_columns)."""
    return read_one(_TAD_STATUS.sub(rb"\1nan", text), columns, unread)


def _whole_lines(text: bytes, row: re.Pattern[bytes]) -> bytes:
    """Drop an unfinished last line, unless a blank after its last number shows the row to be whole."""
    if not text or text.endswith(b"\n"):
        return text
    start = text.rfind(b"\n") + 1
    whole = row.match(text, start)
    return text + b"\n" if whole and whole[2] else text[:start]


def _plain_nan(text: bytes) -> bytes:
    """`1.#IND` and its like are how Windows prints NaN and infinity."""
    if b"#" not in text:
        return text
    return re.sub(rb"1\.#[A-Z]+", lambda m: b"inf" if m[0].startswith(b"1.#INF") else b"nan", text)


def _chunks(text: bytes, boundary: bytes) -> Iterator[bytes]:
    """Pieces of about `CHUNK` bytes, each ending with the newline that opens `boundary`."""
    start = 0
    while start < len(text):
        end = text.find(boundary, start + CHUNK)
        end = len(text) if end < 0 else end + 1
        yield text[start:end]
        start = end


def _fields(chunk: bytes, n: int) -> tuple[_Array, Positions, Positions] | None:
    """Numbers (n_rows, n), where each begins (n_rows, n), and where each line ends (n_rows,).

    None unless all lines are n numbers.
    """
    text = np.frombuffer(chunk, np.uint8)
    blank = text <= 32
    ends = np.flatnonzero(text == 10)
    starts = np.flatnonzero(blank[:-1] & ~blank[1:]) + 1
    if text.size and not blank[0]:
        starts = np.concatenate(([0], starts))
    if starts.size != n * ends.size:
        return None
    # The reader refuses lines of different lengths, so that one number less and one more do not even out.
    try:
        values = np.loadtxt(io.BytesIO(chunk), dtype=np.float64, comments=None, ndmin=2)
    except ValueError:
        return None
    return (values, starts.reshape(-1, n), ends) if values.shape == (ends.size, n) else None


def read_yaml(text: bytes, columns: tuple[str, ...], unread: Unread) -> _Array:
    """Rows `  - [1, 2, ]` of a YAML table: (n_rows, n_columns)."""
    n = len(columns)
    number = re.compile(
        rb"^  - \[[ \t]*(" + NUMBER + rb")(?:,[ \t]*" + NUMBER + rb"){%d},?[ \t]*\][ \t]*$" % (n - 1),
        re.MULTILINE,
    )
    parts = []
    for chunk in _chunks(text[: text.rfind(b"\n") + 1], b"\n"):
        if chunk.count(b"\n") == chunk.count(b",]\n") + chunk.count(b", ]\n") == chunk.count(_YAML_ROW):
            fields = _fields(chunk.replace(_YAML_ROW, b"").translate(_YAML_BLANKS), n)
        else:
            fields = None
        if fields is None:
            rows = [m[0] for m in number.finditer(chunk)]
            unread.add(
                [li for li in chunk.split(b"\n") if (_YAML_ROW in li and not number.match(li)) or b"\0" in li]
            )
            if not rows:
                continue
            plain = b"\n".join(rows).replace(_YAML_ROW, b"").translate(_YAML_BLANKS)
            fields = _fields(_plain_nan(plain + b"\n"), n)
            assert fields is not None, "the pattern finds nothing else"
        parts.append(fields[0])
    return np.concatenate(parts) if parts else np.empty((0, n))


_Skeleton = tuple[tuple[bytes, ...], ...]


def read_multi(text: bytes, unread: Unread, *, cut: bool) -> tuple[tuple[str, ...], _Array]:
    """Columns and rows of a multi-line table that begins with the banner of its first record.

    Columns are Step and CPU of the banner and the fields in order, without a Step or CPU among them.
    """
    text = text[: text.rfind(b"\n") + 1]
    skeleton, whole = _skeleton(text, cut=cut)
    names = names_of([b"Step", b"CPU", *(name for line in skeleton for name in line)])
    keep = [i for i, n in enumerate(names) if i < 2 or canonical(n) not in ("step", "cpu")]
    if not whole:
        return tuple(names[i] for i in keep), np.empty((0, len(keep)))
    # The first piece may end inside a record only if the table is cut there.
    parts = []
    for chunk in _chunks(text, b"\n--"):
        rows = _multi_regular(chunk, skeleton, len(names))
        parts.append(_multi_careful(chunk, skeleton, len(names), unread) if rows is None else rows)
    data = np.concatenate(parts) if parts else np.empty((0, len(names)))
    return tuple(names[i] for i in keep), data[:, keep]


def _skeleton(text: bytes, *, cut: bool) -> tuple[_Skeleton, bool]:
    """Names on each line of a record, and whether the first record is known to be whole."""
    records: list[list[tuple[bytes, ...]]] = []
    closed = False
    for line in text.split(b"\n"):
        if BANNER.fullmatch(line):
            if len(records) == 2:
                break
            records.append([])
            closed = False
        elif records and line and not closed:
            pairs = _pairs(line)
            if pairs is None:
                closed = True
                continue
            records[-1].append(tuple(name for name, _ in pairs))
            # A line holds three fields unless it is the record's last, which (since 2022) ends without a blank.
            closed = len(pairs) < 3 or not line[-1:].isspace()
    if not records:
        return (), False
    first = records[0]
    if len(records) == 2 and len(records[1]) >= len(first):
        return tuple(a for a, b in zip(first, records[1], strict=False) if a == b), True
    return tuple(first), closed or len(records) == 2 or not cut


def _pairs(line: bytes) -> list[tuple[bytes, bytes]] | None:
    found, position = [], 0
    while position < len(line):
        match = _PAIR.match(line, position)
        if match is None:
            return None
        found.append((match[1], match[2]))
        position = match.end()
    return found or None


def _multi_regular(chunk: bytes, skeleton: _Skeleton, n: int) -> _Array | None:
    """Rows of a chunk of nothing but whole records; None if it holds anything else."""
    banner = chunk[: chunk.find(b"\n")].split()
    period: list[bytes | None] = [*banner]
    for place in (2, 6):
        period[place] = None
    for line in skeleton:
        for name in line:
            period += [*name.split(), b"=", None]
    tokens = chunk.split()
    records, rest = divmod(len(tokens), len(period))
    if rest or chunk.count(b"\n") != records * (1 + len(skeleton)):
        return None
    columns = []
    for place, literal in enumerate(period):
        taken = tokens[place :: len(period)]
        if literal is None:
            try:
                columns.append(np.fromiter(map(float, taken), np.float64, records))
            except ValueError:
                return None
        elif taken.count(literal) != records:
            return None
    return np.stack(columns, axis=1) if len(columns) == n else None


def _multi_careful(chunk: bytes, skeleton: _Skeleton, n: int, unread: Unread) -> _Array:
    """Rows of the records whose lines all come, in order, whatever stands between them."""
    rows: list[list[float]] = []
    row: list[float] | None = None
    due, begun = 0, b""
    for line in chunk.split(b"\n"):
        banner = BANNER.fullmatch(line)
        if banner:
            if row is not None:
                unread.add([begun])
            begun = line
            row, due = [float(banner[1]), as_float(banner[2], np.nan)], 0
        elif row is not None and due < len(skeleton):
            pairs = _pairs(line)
            if pairs is None or tuple(name for name, _ in pairs) != skeleton[due]:
                continue
            row += [as_float(_plain_nan(value), np.nan) for _, value in pairs]
            due += 1
        if row is not None and due == len(skeleton):
            rows.append(row)
            row = None
    return np.asarray(rows, dtype=np.float64).reshape(-1, n)
