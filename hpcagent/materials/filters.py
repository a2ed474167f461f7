"""What is asked of a database of materials: structured filters, the same for every source."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator
from pydantic import Field as Given

from hpcagent.errors import BadInput, in_brief, nearest
from hpcagent.materials.formulas import ELEMENTS, alike, counts_of, named_formulas
from hpcagent.model.base import Record, build
from hpcagent.model.texts import Line
from hpcagent.resources.place import bounded
from hpcagent.resources.ranges import Range

__all__ = ["Asked", "Filters"]


def _element(text: str) -> str:
    if text not in ELEMENTS:
        raise BadInput(f"{text[:40]!r} is no element; {nearest(text, ELEMENTS)}", value=text[:40])
    return text


def _formula(text: str) -> str:
    counts_of(text)
    return text


class Filters(Record):
    """Conditions that all have to hold. A source that cannot judge one refuses it; none is dropped.

    Attributes:
        elements: All of these are in it; others may be, too.
        nelements: So many different elements are in it.
        formula: Its reduced formula: Al3Ni finds Al6Ni2.
        ranges: Name of a number -> a range with its unit. Where the number is not known, it does not hold.
        texts: Name of a text -> what it is, or several of which it is one.

    Raises:
        BadInput: An element, a formula or a range is none, or a key is not known.

    Example:
        >>> Filters(elements=["Cu", "O"], ranges={"energy": {"max": -1000, "unit": "meV"}}).elements
        ('Cu', 'O')
    """

    elements: tuple[Annotated[str, AfterValidator(_element)], ...] = Given(default=(), max_length=len(ELEMENTS))
    nelements: int | None = Given(default=None, ge=1, le=len(ELEMENTS))
    formula: Annotated[str, AfterValidator(_formula)] | None = None
    ranges: dict[Line, Range] = Given(default_factory=dict, max_length=100)
    texts: dict[Line, Line | tuple[Line, ...]] = Given(default_factory=dict, max_length=100)

    @classmethod
    def of(cls, given: Filters | Mapping[str, object] | None) -> Filters:
        """Filters from plain data.

        Raises:
            BadInput: They are none; a text of SQL is none.
        """
        if given is None:
            return cls()
        if isinstance(given, cls):
            return given
        if not isinstance(given, Mapping):
            raise BadInput(
                f"filters={in_brief(given)} must be a table with {', '.join(cls.model_fields)}; text of a query "
                "language is not taken.",
                value=in_brief(given),
            )
        return build(cls, given, where="filters")


@dataclass(frozen=True, slots=True)
class Asked:
    """One question to one source.

    Attributes:
        query: As it was given.
        formulas: What the query names, e.g. `Cu` and `ZnO`.
        filters: Conditions.
        limit: Largest number of records, 1 to 1000.
        offset: How many to leave out before.
    """

    query: str
    formulas: tuple[str, ...]
    filters: Filters
    limit: int
    offset: int

    @classmethod
    def of(cls, query: str, filters: Filters | Mapping[str, object] | None, limit: int, offset: int) -> Asked:
        """A checked question.

        Raises:
            BadInput: A part of it is not allowed.
        """
        limit, offset = bounded(limit, offset)
        return cls(query, named_formulas(query), Filters.of(filters), limit, offset)

    @property
    def elements(self) -> frozenset[str]:
        """All that must be in it, by the query and by the filters."""
        named = {element for formula in self.formulas for element in counts_of(formula)}
        return frozenset(named | set(self.filters.elements))

    @property
    def about_atoms(self) -> bool:
        """Whether it cannot be judged without knowing the atoms."""
        return bool(self.elements or self.filters.nelements or self.filters.formula)

    def holds_for(self, counts: Mapping[str, int]) -> bool:
        """Whether what is asked of the atoms holds for a composition."""
        wanted = self.filters
        return (
            self.elements <= counts.keys()
            and (wanted.nelements is None or len(counts) == wanted.nelements)
            and (wanted.formula is None or alike(counts_of(wanted.formula), counts))
        )

    def refuse_unknown(self, source: str, *, numbers: Collection[str], texts: Collection[str]) -> None:
        """Refuse ranges and texts that a source does not have.

        Raises:
            BadInput: The first one, with what there is.
        """
        for kind, given, known in (("number", self.filters.ranges, numbers), ("text", self.filters.texts, texts)):
            for name in given:
                if name not in known:
                    raise BadInput(f"{source} has no {kind} {name[:80]!r}; {nearest(name, known)}", value=name)
