"""The largest run that a space allows, where constraints keep its resources together: `ranks * threads <= 16`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

from hpcagent.model.constraints import Constraint
from hpcagent.model.space import Parameter, Space

__all__ = ["most_cores"]

# More combinations than these are not gone through: then each resource counts at its highest value.
_MOST = 10_000


def most_cores(
    resources_from: Mapping[str, str], search: Space, constraints: Iterable[Constraint]
) -> dict[str, int] | None:
    """The combination of resources with the most cores that the constraints on them allow.

    Args:
        resources_from: Resource -> the parameter that decides it.
        search: Where runs may be.
        constraints: Those that hold; one that needs other parameters too is left out.

    Returns:
        Resource -> its value; None where no constraint ties two of them, or there are too many combinations.

    Example:
        >>> from hpcagent.model.space import Choice, Space
        >>> space = Space.of(ranks=Choice(1, 2, 4), threads=Choice(1, 2, 4), constraints=["ranks * threads <= 4"])
        >>> most_cores({"ranks_per_node": "ranks", "threads_per_rank": "threads"}, space, space.constraints)
        {'ranks_per_node': 4, 'threads_per_rank': 1}
    """
    names = {resource: name for resource, name in resources_from.items() if name in search}
    tied = [c for c in constraints if len(c.names) > 1 and c.names <= set(names.values())]
    if not tied:
        return None
    values = [_values(search[name]) for name in names.values()]
    if math.prod(map(len, values)) > _MOST:
        return None
    allowed = [
        dict(zip(names, point, strict=True))
        for point in itertools.product(*values)
        if all(c.kept(dict(zip(names.values(), point, strict=True))) for c in tied)
    ]
    cores = ("nodes", "ranks_per_node", "threads_per_rank")
    return max(
        allowed,
        key=lambda p: (
            math.prod(p.get(r, 1) for r in cores),
            p.get("ranks_per_node", 1),
            p.get("gpus_per_node", 0),
        ),
        default=None,
    )


def _values(parameter: Parameter) -> Sequence[int]:
    if parameter.choices:
        return [int(value) for value in parameter.choices]
    return range(int(parameter.low or 0), int(parameter.high or 0) + 1)
