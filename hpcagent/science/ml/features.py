"""Rows of numbers that a model takes: columns of a table, descriptors of compositions and of structures."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcagent.apps.packages import needs, versions_of
from hpcagent.errors import AppFailed
from hpcagent.science.ml.tables import Table, number

__all__ = ["Features", "elements_of", "list_of"]

_Array = NDArray[np.float64]
_HOW = "pip install 'hpcagent[ml]'"


def list_of(text: str) -> list[str]:
    """Names between commas.

    Example:
        >>> list_of("a, b,")
        ['a', 'b']
    """
    return [word.strip() for word in text.split(",") if word.strip()]


def elements_of(formula: str) -> dict[str, float]:
    """Share of each element in a formula; amounts need not be whole.

    Raises:
        ValueError: It is no formula, or has a symbol that is no element.

    Example:
        >>> elements_of("Al2O3"), elements_of("Ga0.5In0.5As")
        ({'Al': 0.4, 'O': 0.6}, {'Ga': 0.25, 'In': 0.25, 'As': 0.5})
        >>> elements_of("Ca(OH)2")
        {'Ca': 0.2, 'O': 0.4, 'H': 0.4}
    """
    from ase.data import atomic_numbers

    tokens = re.findall(r"[A-Z][a-z]?|\d+\.?\d*|\.\d+|[()]|\S", formula)
    levels: list[dict[str, float]] = [{}]
    last: dict[str, float] = {}

    def close() -> None:
        for symbol, amount in last.items():
            levels[-1][symbol] = levels[-1].get(symbol, 0.0) + amount
        last.clear()

    for token in tokens:
        if token == "(":
            close()
            levels.append({})
        elif token == ")":
            close()
            if len(levels) == 1:
                raise ValueError(f"{formula!r} closes a bracket that it has not opened")
            last = levels.pop()
        elif token[0].isdigit() or token[0] == ".":
            if not last:
                raise ValueError(f"{formula!r} has a number {token} without an element before it")
            for symbol in last:
                last[symbol] *= float(token)
            close()
        elif token in atomic_numbers and token != "X":
            close()
            last = {token: 1.0}
        else:
            raise ValueError(f"{token!r} in {formula!r} is no element")
    close()
    whole = sum(levels[0].values())
    if len(levels) > 1 or not whole > 0:
        raise ValueError(f"{formula!r} is no formula")
    return {symbol: amount / whole for symbol, amount in levels[0].items()}


@dataclass(frozen=True, slots=True)
class Features:
    """What a model's columns are; plain data, so that it goes into the model's record.

    Attributes:
        columns: (name, unit) of the numeric columns of the table.
        composition: Name of the column with formulas; empty: none.
        by: `fractions` or `magpie`: descriptors of compositions.
        soap: `cutoff` (angstrom), `n_max` and `l_max` of an averaged SOAP of the structures; empty: none.
        elements: Elements of the training data, sorted.
    """

    columns: tuple[tuple[str, str], ...] = ()
    composition: str = ""
    by: str = "fractions"
    soap: Mapping[str, float] | None = None
    elements: tuple[str, ...] = ()

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Features:
        """From a model's record."""
        columns = tuple((str(n), str(u)) for n, u in record["columns"])
        return cls(**{**record, "columns": columns, "elements": tuple(record["elements"])})

    def record(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)

    def versions(self) -> dict[str, str]:
        """Versions of the libraries that work out the descriptors."""
        names = [*(["matminer", "pymatgen"] if self.composition and self.by == "magpie" else [])]
        names += ["dscribe"] if self.soap else []
        return versions_of(*names)

    def known(self, table: Table) -> tuple[list[int], list[tuple[int, str]], set[str]]:
        """Rows that have everything the model takes, (row from 1, why) of the others, and the elements met."""
        for name, unit in self.columns:
            table.require(name, unit)
        if self.composition:
            table.require(self.composition)
        if self.soap and not table.structures:
            raise AppFailed(
                f"{table.source} has no structures, and the model takes descriptors of them.",
                kind="contract",
                name="MissingColumn",
                repair="an extended XYZ file",
            )
        good, bad = [], []
        met: set[str] = set()
        for i, row in enumerate(table.rows):
            missing = [name for name, _ in self.columns if number(row.get(name)) is None]
            if missing:
                bad.append((i + 1, f"no finite number in {', '.join(missing)}"))
                continue
            try:
                own = set(elements_of(str(row.get(self.composition) or ""))) if self.composition else set()
            except ValueError as error:
                bad.append((i + 1, str(error)))
                continue
            if self.soap:
                own |= set(table.structures[i].get_chemical_symbols())
            met |= own
            good.append(i)
        return good, bad, met

    def matrix(self, table: Table, rows: Sequence[int]) -> tuple[_Array, list[str]]:
        """(rows, features) and the names of the features.

        Raises:
            AppFailed: `NoEngine`: a library is not installed; `NonNumeric`: a descriptor is no number.
        """
        parts: list[_Array] = []
        names: list[str] = []
        if self.columns:
            parts.append(np.array([[float(table.rows[i][n]) for n, _ in self.columns] for i in rows]))
            names += [n for n, _ in self.columns]
        if self.composition:
            found, own = self._of_compositions([str(table.rows[i][self.composition]) for i in rows])
            parts.append(found)
            names += own
        if self.soap:
            found = self._of_structures([table.structures[i] for i in rows])
            parts.append(found)
            names += [f"soap {k}" for k in range(found.shape[1])]
        x = np.hstack(parts)
        if not np.isfinite(x).all():
            where = int(np.flatnonzero(~np.isfinite(x).all(axis=1))[0])
            raise AppFailed(
                f"row {rows[where] + 1} of {table.source} has a descriptor that is no number.",
                kind="contract",
                name="NonNumeric",
            )
        return x, names

    def _of_compositions(self, formulas: Sequence[str]) -> tuple[_Array, list[str]]:
        if self.by == "fractions":
            shares = [elements_of(formula) for formula in formulas]
            table = [[share.get(symbol, 0.0) for symbol in self.elements] for share in shares]
            return np.array(table), [f"fraction {symbol}" for symbol in self.elements]
        featurizer, composition = _magpie()
        table = [featurizer.featurize(composition(elements_of(formula))) for formula in formulas]
        return np.array(table, dtype=float), list(featurizer.feature_labels())

    def _of_structures(self, structures: Sequence[Any]) -> _Array:
        descriptors = needs("dscribe.descriptors", _HOW)
        soap = dict(self.soap or {})
        made = descriptors.SOAP(
            species=list(self.elements),
            r_cut=soap["cutoff"],
            n_max=int(soap["n_max"]),
            l_max=int(soap["l_max"]),
            average="inner",
            periodic=bool(structures[0].pbc.any()),
        )
        return np.array([made.create(atoms) for atoms in structures], dtype=float)


@lru_cache(maxsize=1)
def _magpie() -> tuple[Any, Any]:
    featurizers = needs("matminer.featurizers.composition", _HOW)
    core = needs("pymatgen.core", _HOW)
    # Of properties that an element lacks the mean of all; without this a row with a noble gas would be lost.
    made = featurizers.ElementProperty.from_preset("magpie", impute_nan=True)
    made.set_n_jobs(1)
    return made, core.Composition
