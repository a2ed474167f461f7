"""The largest run that a space allows, where constraints keep its resources together: `ranks * threads <= 16`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

from hpcagent.model.constraints import Constraint
from hpcagent.model.parameter import Parameter
from hpcagent.model.space import Space

__all__ = ["largest_of", "most_cores"]

# More combinations than these are not gone through: then each resource counts at its highest value.
_MOST = 10_000

# A campaign asks for the same many times while it is begun.
_MOST_KNOWN = 64
_KNOWN: dict[tuple[object, ...], dict[str, int]] = {}


def most_cores(
    resources_from: Mapping[str, str],
    search: Space,
    constraints: Iterable[Constraint],
    fixed: Mapping[str, int] | None = None,
) -> dict[str, int] | None:
    """The combination of resources with the most cores that the constraints on them allow.

    Args:
        resources_from: Resource -> the parameter that decides it.
        search: Where runs may be.
        constraints: Those that hold; one that needs other parameters too is left out.
        fixed: Values of those parameters among them that are not varied.

    Returns:
        Resource -> its value; None where no constraint ties two of them, or there are too many combinations.

    Example:
        >>> from hpcagent.model.parameter import Choice
        >>> from hpcagent.model.space import Space
        >>> space = Space.of(ranks=Choice(1, 2, 4), threads=Choice(1, 2, 4), constraints=["ranks * threads <= 4"])
        >>> most_cores({"ranks_per_node": "ranks", "threads_per_rank": "threads"}, space, space.constraints)
        {'ranks_per_node': 4, 'threads_per_rank': 1}
    """
    fixed = fixed or {}
    names = {resource: name for resource, name in resources_from.items() if name in search or name in fixed}
    tied = [c for c in constraints if len(c.names) > 1 and c.names <= set(names.values())]
    if not tied:
        return None
    values = [[fixed[name]] if name in fixed else _values(search[name]) for name in names.values()]
    if math.prod(map(len, values)) > _MOST:
        return None
    shape = tuple(names.items()), tuple(map(tuple, values))
    known = _KNOWN.get((*shape, tuple(c.text for c in tied)))
    if known is None:
        known = _most_allowed(*shape, tied)
        if len(_KNOWN) >= _MOST_KNOWN:
            _KNOWN.clear()
        _KNOWN[*shape, tuple(c.text for c in tied)] = known
    return known or None


def _most_allowed(
    names: tuple[tuple[str, str], ...], values: tuple[tuple[int, ...], ...], tied: Sequence[Constraint]
) -> dict[str, int]:
    """Of all combinations that the constraints allow the one with the most cores; empty: there is none."""
    resources, parameters = [r for r, _ in names], [name for _, name in names]
    points = [dict(zip(resources, point, strict=True)) for point in itertools.product(*values)]
    points.sort(key=lambda p: (*_cores(p), p.get("gpus_per_node", 0)), reverse=True)
    for point in points:
        if all(c.kept(dict(zip(parameters, point.values(), strict=True))) for c in tied):
            return point
    return {}


def largest_of(sizes: Sequence[Mapping[str, int]], resources: Iterable[str]) -> dict[str, int]:
    """The most of each resource, ranks and threads together: those of the size with the most cores on a node.

    Example:
        >>> sizes = [{"ranks_per_node": 1, "threads_per_rank": 2}, {"ranks_per_node": 2, "threads_per_rank": 1}]
        >>> largest_of(sizes, ["ranks_per_node", "threads_per_rank"])
        {'ranks_per_node': 2, 'threads_per_rank': 1}
    """
    on_a_node = ("ranks_per_node", "threads_per_rank")
    most = max(sizes, key=lambda size: _cores({r: size[r] for r in on_a_node if r in size}))
    return {r: most[r] if r in on_a_node else max(size[r] for size in sizes if r in size) for r in resources}


def _cores(size: Mapping[str, int]) -> tuple[int, int]:
    """All cores, and of as many the more ranks."""
    product = math.prod(size.get(r, 1) for r in ("nodes", "ranks_per_node", "threads_per_rank"))
    return product, size.get("ranks_per_node", 1)


def _values(parameter: Parameter) -> Sequence[int]:
    if parameter.choices:
        return [int(value) for value in parameter.choices]
    return range(int(parameter.low or 0), int(parameter.high or 0) + 1)
