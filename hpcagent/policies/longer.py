"""A suggestion that a known run goes on from its end, in place of a further run of its point."""

from __future__ import annotations

from collections.abc import Mapping

from hpcagent.model.base import Scalar
from hpcagent.model.parameter import Params

__all__ = ["Longer", "as_meant"]


class Longer(dict[str, Scalar]):
    """A point as any other; and which run there is to be made longer.

    Whoever does not know of it takes it for what it is otherwise: a further run of the point.

    Attributes:
        run: Position of that run in the campaign (`Observation.index`).
        factor: How many times longer than it is.

    Example:
        >>> point = Longer({"x": 1.0}, run=3, factor=2.0)
        >>> point == {"x": 1.0}, point.run
        (True, 3)
    """

    __slots__ = ("factor", "run")

    def __init__(self, params: Mapping[str, Scalar], *, run: int, factor: float) -> None:
        super().__init__(params)
        self.run, self.factor = run, factor


def as_meant(suggested: Params, point: Params) -> Params:
    """The point as a suggestion of the same kind as `suggested`."""
    return Longer(point, run=suggested.run, factor=suggested.factor) if isinstance(suggested, Longer) else point
