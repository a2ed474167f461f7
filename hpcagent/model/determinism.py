"""Whether an app that says it is deterministic is: results of one manifest, held against each other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hpcagent.model.base import canonical_json
from hpcagent.model.conditions import TOLERANCE
from hpcagent.model.contract import Contract
from hpcagent.model.records import Result

__all__ = ["Disagreement", "disagreements"]


@dataclass(frozen=True, slots=True)
class Disagreement:
    """Two completed results of one manifest that are not the same.

    Attributes:
        app: Name and version of the app.
        seeded: Whether seed and replicate count: where they do, it is one execution id; else they may differ.
        first: The one that was there first.
        other: The one that differs from it.
        metrics: What differs.
    """

    app: str
    seeded: bool
    first: Result
    other: Result
    metrics: tuple[str, ...]

    def __str__(self) -> str:
        units = self.first.units | self.other.units
        values = ", ".join(
            f"{name} is {_value(self.first, name)} and {_value(self.other, name)}{_suffix(units.get(name, '1'))}"
            for name in self.metrics
        )
        a, b = self.first.manifest, self.other.manifest
        if a.execution_id == b.execution_id:
            which = f"run {a.index} ({a.execution_id}) gave two results"
        else:
            which = f"runs {a.index} and {b.index} differ only in seed and replicate, which decide nothing"
        return f"{self.app} says that it is deterministic, but {which}: {values}{self._places()}"

    def _places(self) -> str:
        a, b = self.first, self.other
        said = [f"on {a.host} and {b.host}"] if a.host != b.host and a.host and b.host else []
        for name in sorted(a.versions.keys() & b.versions.keys()):
            if a.versions[name] != b.versions[name]:
                said.append(f"by {name} {a.versions[name]} and {b.versions[name]}")
        return f" ({', '.join(said)})" if said else ""


def disagreements(contract: Contract, results: Iterable[Result]) -> tuple[Disagreement, ...]:
    """Completed results that should be the same and are not, each with the first of its manifest.

    One execution id stands for all that decides a result, the seed included. Where the contract says that no seed
    decides it, runs that differ in seed and replicate only are compared, too. Measured times and speeds are left
    out. Two numbers are the same if they differ by at most 1e-9 of the largest of that metric here: further digits
    depend on the processor.

    Args:
        contract: Of the app; one that is not deterministic promises nothing.
        results: Of it, in the order they came; those of other apps and versions are left out.

    Example:
        >>> from hpcagent.model.contract import Metric
        >>> from hpcagent.model.records import Manifest
        >>> run = Manifest(execution_id="a", app="md", app_version="0.1.0")
        >>> results = [Result(manifest=run, status="COMPLETED", metrics={"energy": e}) for e in (1.0, 1.5)]
        >>> contract = Contract(name="md", metrics=(Metric(name="energy", unit="eV"),))
        >>> [found.metrics for found in disagreements(contract, results)]
        [('energy',)]
    """
    if not contract.deterministic:
        return ()
    named = (contract.name, contract.version)
    groups: dict[str, list[Result]] = {}
    for r in results:
        if r.ok and (r.manifest.app, r.manifest.app_version) == named:
            groups.setdefault(_same(r, contract.seeded), []).append(r)
    several = [some for some in groups.values() if len(some) > 1]
    if not several:
        return ()
    timed = contract.timed
    largest: dict[str, float] = {}
    for some in groups.values():
        for r in some:
            for name, value in r.metrics.items():
                largest[name] = max(largest.get(name, 0.0), abs(value))
    found = []
    for first, *others in several:
        for other in others:
            unequal = _unequal(first, other, timed, largest)
            if unequal:
                found.append(Disagreement(" ".join(named), contract.seeded, first, other, unequal))
    return tuple(found)


def _same(result: Result, seeded: bool) -> str:
    """What results have in common that should be the same."""
    m = result.manifest
    if seeded:
        return m.execution_id
    return canonical_json([m.input_digest, m.params, m.upstream, m.extends, m.times])


def _unequal(first: Result, other: Result, timed: Iterable[str], largest: dict[str, float]) -> tuple[str, ...]:
    names: Sequence[str] = [n for n in dict.fromkeys((*first.metrics, *other.metrics)) if n not in timed]
    return tuple(n for n in names if not _equal(first.metrics.get(n), other.metrics.get(n), largest[n]))


def _equal(a: float | None, b: float | None, largest: float) -> bool:
    if a is None or b is None:
        return a is b
    return abs(a - b) <= TOLERANCE * largest


def _value(result: Result, name: str) -> Any:
    return f"{result.metrics[name]:.12g}" if name in result.metrics else "missing"


def _suffix(unit: str) -> str:
    return "" if unit == "1" else f" {unit}"
